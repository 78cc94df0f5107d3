// A peer that attacks an RPC-over-RDMA server, written against libibverbs and librdmacm alone. It shares no code with
// the server, and knows no more of it than the specifications say and the program that `bench-tool serve` answers
// (docs/bench-program.md). scenarios/one-hostile.sh runs it beside a neighbour that keeps to the rules.
//
// usage: hostile-peer ADDRESS PORT ATTACK
//
// It prints how many connections the attack had. Where the server is to end them, it waits until each has ended, and
// prints how long after the attack's last message that was. Exit status: 0; 1 when one of them did not end; 100 when
// the attack could not be carried out.
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    FAILED = 100,
    // TIME: for each step of a connection and each answer; far more than any of them takes.
    PATIENCE_MS = 120000,
    // Of each connection: Receives are posted once and never again, and Sends take a slot each.
    RECEIVE_BYTES = 8192,
    RECEIVES_MAX = 16,
    SEND_BYTES = 256,
    SENDS_MAX = 256,
    CHUNK_BYTES = 1 << 20,
    PEERS_MAX = 64,
    // Numbers of the protocols.
    MSG = 0,
    CONNPROP = 5,
    TRANSMIT_REQUEST = 0x52545201,
    PROGRAM = 0x2042454e,
    NULL_CALL = 0,
    READ = 2,
    WRITE = 3,
    // A key that nothing answers to.
    NO_KEY = 0x7fffff01,
    // In a credit word: at most so many are ever granted.
    MOST = 1000 << 16,
};

struct peer {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_mr *region;
    unsigned char *memory;
    unsigned sends;
};

static struct sockaddr_in server;
static struct peer peers[PEERS_MAX];

static void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "hostile-peer: %s: %m\n", what);
    exit(FAILED);
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// --- Connections -------------------------------------------------------------------------------

// The next event of a connection, or -1 when none came in time.
static int next_event(struct peer *peer, long timeout_ms) {
    struct pollfd ready = {.fd = peer->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    if (poll(&ready, 1, timeout_ms < 0 ? 0 : (int)timeout_ms) != 1) return -1;
    require(rdma_get_cm_event(peer->channel, &event) == 0, "an event");
    int kind = event->event;
    rdma_ack_cm_event(event);
    return kind;
}

static void post_receives(struct peer *peer, unsigned count) {
    for (unsigned index = 0; index < count; index++) {
        struct ibv_sge place = {
            .addr = (uintptr_t)(peer->memory + CHUNK_BYTES + index * RECEIVE_BYTES),
            .length = RECEIVE_BYTES,
            .lkey = peer->region->lkey,
        };
        struct ibv_recv_wr request = {.wr_id = index, .sg_list = &place, .num_sge = 1}, *bad;
        require(ibv_post_recv(peer->id->qp, &request, &bad) == 0, "a Receive");
    }
}

// Begins a connection that posts so many Receives; whether it comes about is told by `is_connected`.
static void begin(struct peer *peer, unsigned receives) {
    // RFC 8797: Sends and Receives of 4096 octets.
    static const unsigned char private_data[] = {0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3};
    const size_t bytes = CHUNK_BYTES + RECEIVES_MAX * RECEIVE_BYTES + SENDS_MAX * SEND_BYTES;
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_qp_init_attr wanted = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = SENDS_MAX, .max_recv_wr = RECEIVES_MAX, .max_send_sge = 1, .max_recv_sge = 1},
    };
    // Without end: the server's device is to try again as long as the server lets it.
    struct rdma_conn_param parameters = {
        .private_data = private_data,
        .private_data_len = sizeof private_data,
        .responder_resources = 16,
        .initiator_depth = 16,
        .retry_count = 7,
        .rnr_retry_count = 7,
    };
    memset(peer, 0, sizeof *peer);
    require((peer->channel = rdma_create_event_channel()) != NULL, "an event channel");
    require(rdma_create_id(peer->channel, &peer->id, NULL, RDMA_PS_TCP) == 0, "an identifier");
    require(rdma_resolve_addr(peer->id, NULL, (struct sockaddr *)&server, PATIENCE_MS) == 0, "the address");
    require(next_event(peer, PATIENCE_MS) == RDMA_CM_EVENT_ADDR_RESOLVED, "the address");
    require(rdma_resolve_route(peer->id, PATIENCE_MS) == 0, "the route");
    require(next_event(peer, PATIENCE_MS) == RDMA_CM_EVENT_ROUTE_RESOLVED, "the route");
    require(rdma_create_qp(peer->id, NULL, &wanted) == 0, "a queue pair");
    require((peer->memory = calloc(1, bytes)) != NULL, "memory");
    require((peer->region = ibv_reg_mr(peer->id->pd, peer->memory, bytes, access)) != NULL, "a memory region");
    post_receives(peer, receives);
    require(rdma_connect(peer->id, &parameters) == 0, "a connect");
}

static bool is_connected(struct peer *peer) {
    int event = next_event(peer, PATIENCE_MS);
    require(event == RDMA_CM_EVENT_ESTABLISHED || event == RDMA_CM_EVENT_REJECTED, "a connection");
    return event == RDMA_CM_EVENT_ESTABLISHED;
}

static struct peer *connected(struct peer *peer, unsigned receives) {
    begin(peer, receives);
    require(is_connected(peer), "a connection that is not rejected");
    return peer;
}

static void end(struct peer *peer) {
    rdma_destroy_qp(peer->id);
    ibv_dereg_mr(peer->region);
    rdma_destroy_id(peer->id);
    rdma_destroy_event_channel(peer->channel);
    free(peer->memory);
}

// --- Messages ----------------------------------------------------------------------------------

struct message {
    uint32_t words[SEND_BYTES / 4];
    unsigned count;
};

static void add(struct message *message, unsigned count, const uint32_t *words) {
    for (unsigned index = 0; index < count; index++) message->words[message->count++] = htonl(words[index]);
}
#define ADD(message, ...) \
    add(message, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (const uint32_t[]){__VA_ARGS__})

// With IBV_SEND_SIGNALED it has a completion. An attacker seldom has a use for it.
static void send_flagged(struct peer *peer, const void *octets, unsigned count, unsigned flags) {
    unsigned char *slot =
        peer->memory + CHUNK_BYTES + RECEIVES_MAX * RECEIVE_BYTES + peer->sends % SENDS_MAX * SEND_BYTES;
    struct ibv_sge place = {.addr = (uintptr_t)slot, .length = count, .lkey = peer->region->lkey};
    struct ibv_send_wr request =
        {.opcode = IBV_WR_SEND, .sg_list = &place, .num_sge = 1, .send_flags = flags}, *bad;
    memcpy(slot, octets, count);
    peer->sends++;
    // A queue pair that has ended takes nothing.
    ibv_post_send(peer->id->qp, &request, &bad);
}

static void send_octets(struct peer *peer, const void *octets, unsigned count) {
    send_flagged(peer, octets, count, 0);
}


static void send_message(struct peer *peer, const struct message *message) {
    send_octets(peer, message->words, 4 * message->count);
}

// What begins the header of a message; chunk lists follow.
static struct message header(unsigned version, uint32_t xid, uint32_t credit) {
    struct message message = {.count = 0};
    if (version == 1)
        ADD(&message, xid, 1, 32, MSG);
    else
        ADD(&message, xid, 2, credit, MSG, 0, 0);
    return message;
}

static void add_call(struct message *message, uint32_t xid, uint32_t procedure) {
    ADD(message, xid, 0, 2, PROGRAM, 1, procedure, 0, 0, 0, 0);
}

static void send_null(struct peer *peer, unsigned version, uint32_t xid, uint32_t credit) {
    struct message message = header(version, xid, credit);
    ADD(&message, 0, 0, 0);
    add_call(&message, xid, NULL_CALL);
    send_message(peer, &message);
}

// A call for so many octets, in the reply.
static void send_read(struct peer *peer, unsigned version, uint32_t xid, uint32_t credit, uint32_t bytes) {
    struct message message = header(version, xid, credit);
    ADD(&message, 0, 0, 0);
    add_call(&message, xid, READ);
    ADD(&message, 0, 7, bytes);
    send_message(peer, &message);
}

// A call for so many octets, in a Write chunk.
static void send_read_chunk(struct peer *peer, unsigned version, uint32_t xid, uint32_t key, uint32_t bytes) {
    uint64_t at = (uintptr_t)peer->memory;
    struct message message = header(version, xid, MOST | 1);
    ADD(&message, 0, 1, 1, key, bytes, at >> 32, (uint32_t)at, 0, 0);
    add_call(&message, xid, READ);
    ADD(&message, 0, 7, bytes);
    send_message(peer, &message);
}

// A call that brings so many octets, in a Read chunk behind the twelve octets that go before them.
static void send_write_chunk(struct peer *peer, unsigned version, uint32_t xid, uint32_t key, uint32_t bytes) {
    uint64_t at = (uintptr_t)peer->memory;
    struct message message = header(version, xid, MOST | 1);
    ADD(&message, 1, 40 + 12, key, bytes, at >> 32, (uint32_t)at, 0, 0, 0);
    add_call(&message, xid, WRITE);
    ADD(&message, 0, 7, bytes);
    send_message(peer, &message);
}

// Waits for the next message of the server, and tells its XID. The first one of version 2 grants the credits for all
// that follows here. TIME: the limit is for a server that hangs.
static uint32_t await_message(struct peer *peer) {
    long deadline = now_ms() + PATIENCE_MS;
    struct ibv_wc completion;
    uint32_t xid;
    int count;
    while ((count = ibv_poll_cq(peer->id->recv_cq, 1, &completion)) == 0 && now_ms() < deadline) usleep(1000);
    require(count == 1 && completion.status == IBV_WC_SUCCESS, "a message of the server");
    memcpy(&xid, peer->memory + CHUNK_BYTES + completion.wr_id * RECEIVE_BYTES, sizeof xid);
    return ntohl(xid);
}

// Waits until the last Send, which has a completion, has arrived, or the server has ended the connection: then the
// device may send it again for ever. TIME: the limit is for a server that hangs.
static void await_arrival(struct peer *peer) {
    long deadline = now_ms() + PATIENCE_MS;
    struct ibv_wc completion;
    while (ibv_poll_cq(peer->id->send_cq, 1, &completion) == 0) {
        if (next_event(peer, 1) == RDMA_CM_EVENT_DISCONNECTED) return;
        require(now_ms() < deadline, "the end of a Send");
    }
}

// --- Attacks -----------------------------------------------------------------------------------

// Waits until the server has ended all connections.
static bool all_are_ended(unsigned count) {
    long start = now_ms(), first = -1;
    unsigned ended = 0;
    for (; ended < count; ended++) {
        int event = 0;
        while (event != RDMA_CM_EVENT_DISCONNECTED && event != -1)
            event = next_event(&peers[ended], start + PATIENCE_MS - now_ms());
        if (event == -1) break;
        if (first < 0) first = now_ms() - start;
    }
    printf("the server ended %u of them, from %ld to %ld ms later\n", ended, first, now_ms() - start);
    return ended == count;
}

// As many as the server takes, which say nothing.
static unsigned silent(void) {
    unsigned count = 0;
    for (unsigned number = 0; number < PEERS_MAX; number++) {
        begin(&peers[count], 1);
        if (is_connected(&peers[count]))
            count++;
        else
            end(&peers[count]);
    }
    return count;
}

// Version 2: each grants 900 credits and calls, and has posted one Receive, for the message that grants it its own.
static unsigned no_receives(void) {
    for (unsigned number = 0; number < 4; number++) {
        struct peer *peer = connected(&peers[number], 1);
        send_read(peer, 2, 1, MOST | 900, 3000);
        await_message(peer);
        for (uint32_t xid = 2; xid < 30; xid++) send_read(peer, 2, xid, MOST, 3000);
    }
    return 4;
}

// Version 1, two dozen: each makes all the calls that it may, and takes the first two replies alone.
static unsigned deaf(void) {
    for (unsigned number = 0; number < 24; number++) {
        struct peer *peer = connected(&peers[number], 2);
        for (uint32_t xid = 1; xid <= 32; xid++) send_read(peer, 1, xid, 0, 3000);
    }
    return 24;
}

// Each reply is to be placed in four Sends, and the server has one credit: it uses none, and has all of the replies.
static unsigned one_credit(void) {
    for (unsigned number = 0; number < 4; number++) {
        struct peer *peer = connected(&peers[number], RECEIVES_MAX);
        struct message properties = {.count = 0};
        // Receives of 1024 octets and a page, into which Sends may place; replies in up to four Sends.
        ADD(&properties, 1, 2, MOST | 1, CONNPROP, 0, 6);
        ADD(&properties, 1, 4, 5120, 2, 4, 5120, 0x52545203, 4, 7);
        ADD(&properties, 0x52545204, 40, 5120, 2, 1, 1024, 0, 0, 1, 4096, 0, 1);
        ADD(&properties, 0x52545205, 4, 4, 0x52545206, 4, 4);
        send_message(peer, &properties);
        await_message(peer);
        for (uint32_t xid = 2; xid < 10; xid++) {
            struct message call = {.count = 0};
            // No items; one direction, for all: placed; one Send, four of the reply; octets of the call.
            ADD(&call, xid, 2, MOST, TRANSMIT_REQUEST, 0, 0, 1, 0, UINT32_MAX, 1, 1, 2, 1, 4, 52);
            add_call(&call, xid, READ);
            ADD(&call, 0, 7, 16000);
            send_message(peer, &call);
        }
    }
    return 4;
}

// The server cannot answer for want of credits, and grants no more than once: 200 calls are beyond that.
static unsigned beyond_credits(void) {
    for (unsigned number = 0; number < 8; number++) {
        struct peer *peer = connected(&peers[number], RECEIVES_MAX);
        send_null(peer, 2, 1, MOST);
        await_message(peer);
        for (uint32_t xid = 2; xid < 202; xid++) send_null(peer, 2, xid, MOST);
    }
    return 8;
}

static unsigned bad_keys(void) {
    for (unsigned number = 0; number < 16; number++) {
        struct peer *peer = connected(&peers[number], RECEIVES_MAX);
        unsigned version = 1 + number % 2;
        if (number % 4 < 2)
            send_read_chunk(peer, version, 1, NO_KEY, 65536);
        else
            send_write_chunk(peer, version, 1, NO_KEY, 65536);
    }
    return 16;
}

// A process of its own for each, killed while the server reads the chunks of its calls. Before that it has eight replies,
// so that the server has read something of each. TIME: all eight chunks that follow are read where a peer is killed too
// late, and none where it is killed too early: the ten are killed after different times, and one has to be in between.
static unsigned killed(void) {
    for (unsigned number = 0; number < 10; number++) {
        pid_t child = fork();
        int status;
        require(child >= 0, "a process");
        if (child == 0) {
            struct peer *peer = connected(&peers[0], RECEIVES_MAX);
            send_null(peer, 2, 1, MOST | 8);
            await_message(peer);
            for (uint32_t xid = 2; xid < 10; xid++)
                send_write_chunk(peer, 2, xid, peer->region->rkey, CHUNK_BYTES);
            // Grants may come between the replies.
            for (unsigned replies = 0; replies < 8;)
                if (await_message(peer) - 2 < 8) replies++;
            for (uint32_t xid = 10; xid < 18; xid++)
                send_write_chunk(peer, 2, xid, peer->region->rkey, CHUNK_BYTES);
            usleep(10000 * (1 + number));
            kill(getpid(), SIGKILL);
        }
        require(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "a process that is killed");
    }
    return 10;
}

// Octets at random, half of them behind the beginning of a good header.
static unsigned garbage(void) {
    srandom(1);
    for (unsigned number = 0; number < 32; number++) {
        struct peer *peer = connected(&peers[number], RECEIVES_MAX);
        for (unsigned round = 0; round < 8; round++) {
            struct message message = {.count = SEND_BYTES / 4};
            for (unsigned index = 0; index < message.count; index++)
                message.words[index] = (uint32_t)random() << (random() % 2 * 24);
            if (round % 2 == 0) {
                struct message good = header(1 + number % 2, round, MOST | 1);
                memcpy(message.words, good.words, 4 * good.count);
            }
            send_flagged(peer, message.words, 1 + (unsigned)random() % SEND_BYTES, round == 7 ? IBV_SEND_SIGNALED : 0);
        }
    }
    for (unsigned number = 0; number < 32; number++) {
        await_arrival(&peers[number]);
        end(&peers[number]);
    }
    return 32;
}

// Four processes connect as fast as they can, and go without waiting for an answer half of the time. Counted are
// those that were answered, and taken.
static unsigned storm(void) {
    unsigned taken = 0;
    for (unsigned number = 0; number < 4; number++) {
        pid_t child = fork();
        require(child >= 0, "a process");
        if (child == 0) {
            for (unsigned round = 0; round < 50; round++) {
                begin(&peers[0], 1);
                if (round % 2 == 0 && is_connected(&peers[0])) taken++;
                end(&peers[0]);
            }
            exit((int)taken);
        }
    }
    for (unsigned number = 0; number < 4; number++) {
        int status;
        require(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) != FAILED, "a process that connects");
        taken += (unsigned)WEXITSTATUS(status);
    }
    return taken;
}

static const struct {
    const char *name;
    unsigned (*play)(void);
    bool is_ended_by_the_server;
} attacks[] = {
    {"silent", silent, true},
    {"no-receives", no_receives, true},
    {"deaf", deaf, true},
    {"one-credit", one_credit, true},
    {"beyond-credits", beyond_credits, true},
    {"bad-keys", bad_keys, true},
    {"killed", killed, false},
    {"garbage", garbage, false},
    {"storm", storm, false},
};

int main(int count, char **arguments) {
    server.sin_family = AF_INET;
    if (count == 4 && inet_pton(AF_INET, arguments[1], &server.sin_addr) == 1) {
        server.sin_port = htons((uint16_t)atoi(arguments[2]));
        for (unsigned number = 0; number < sizeof attacks / sizeof *attacks; number++) {
            if (strcmp(arguments[3], attacks[number].name) != 0) continue;
            unsigned connections = attacks[number].play();
            printf("%u connections\n", connections);
            return attacks[number].is_ended_by_the_server && !all_are_ended(connections);
        }
    }
    fprintf(stderr, "usage: hostile-peer ADDRESS PORT ATTACK\nattacks:");
    for (unsigned number = 0; number < sizeof attacks / sizeof *attacks; number++)
        fprintf(stderr, " %s", attacks[number].name);
    fprintf(stderr, "\n");
    return 2;
}
