/* What the header promises, checked from C: what is wrong is refused with a code and a text, and never crashes; calls are answered
 * now and later; data goes both ways in every form. Ends with the line "kept". */
#define _GNU_SOURCE
#include <pthread.h>
#include <rpcrdma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, rpcrdma_error_text());       \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)
#define OK(call) CHECK((call) == RPCRDMA_OK)
#define FAILS(code, call) CHECK((call) == (code) && strlen(rpcrdma_error_text()) > 0)

#define PROGRAM 0x20000f10
/* The limit of every wait, far longer than one takes on a machine with other work. */
#define PATIENCE_MS 600000
enum { ECHO = 1, LATER, REFUSE, BULK, KEEP, BAD, LONG, SILENT, ONCE };
static const rpcrdma_procedure NAMED[] = {
    {PROGRAM, 1, 0},    {PROGRAM, 1, ECHO}, {PROGRAM, 2, LATER}, {PROGRAM, 1, REFUSE}, {PROGRAM, 1, BULK},
    {PROGRAM, 1, KEEP}, {PROGRAM, 1, BAD},  {PROGRAM, 1, LONG},  {PROGRAM, 1, SILENT},
    {PROGRAM, 1, ONCE},
};

static struct {
    pthread_t thread;
    rpcrdma_call *later, *silent, *kept_handle;
    rpcrdma_buffer *kept;
    int connected, disconnected, closed[RPCRDMA_CLOSED_REPLACED + 1];
    uint64_t connection;
    /* Of ONCE: how often it ran, and the call whose connection is cut before its answer. */
    int runs;
    rpcrdma_call *cut;
    rpcrdma_node *node;
} state;

/* Of all nodes and clients: no limit of the defaults is long enough for any machine that valgrind runs on. */
static rpcrdma_options *patient;

static rpcrdma_options *patient_new(void)
{
    static const char *const limits[][2] = {{"connect_timeout_ms", "600000"},
                                            {"call_timeout_ms", "300000"},
                                            {"keep_alive_silent_ticks_max", "255"},
                                            {"stall_timeout_ms", "600000"}};
    rpcrdma_options *options = rpcrdma_options_new();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        OK(rpcrdma_options_set(options, limits[i][0], limits[i][1]));
    return options;
}

static void *answer_later(void *later)
{
    uint32_t word;
    /* Nothing is read by it. */
    CHECK(rpcrdma_get_u32(later, &word) == RPCRDMA_E_USAGE);
    rpcrdma_buffer *buffer;
    OK(rpcrdma_put_u32(later, 1));
    int taken = rpcrdma_call_buffer(later, 10000, &buffer);
    if (taken == RPCRDMA_OK) {
        struct iovec pieces[32];
        size_t count;
        OK(rpcrdma_buffer_pieces(buffer, pieces, 32, &count));
        for (size_t i = 0; i < count; i++)
            memset(pieces[i].iov_base, 'L', pieces[i].iov_len);
        OK(rpcrdma_put_bulk(later, buffer));
    } else {
        CHECK(taken == RPCRDMA_E_NO_BUFFERS);
        char *copy = malloc(10000);
        memset(copy, 'L', 10000);
        OK(rpcrdma_put_bulk_copy(later, copy, 10000));
        free(copy);
    }
    OK(rpcrdma_put_u32(later, 2));
    OK(rpcrdma_call_answer(later, RPCRDMA_OK));
    return NULL;
}

/* The call ran, and its client does not learn so by this connection. */
static void *cut_and_answer(void *call)
{
    int connected = state.connected;
    OK(rpcrdma_node_close(state.node, state.connection));
    while (__atomic_load_n(&state.connected, __ATOMIC_ACQUIRE) == connected)
        sched_yield();
    OK(rpcrdma_put_u32(call, (uint32_t)state.runs));
    OK(rpcrdma_call_answer(call, RPCRDMA_OK));
    return NULL;
}

static int serve(void *user, rpcrdma_call *call)
{
    CHECK(user == &state);
    const void *data;
    size_t bytes;
    uint32_t flavor, word = 0;
    state.kept_handle = call;
    switch (rpcrdma_call_number(call)) {
    case ECHO:
        CHECK(rpcrdma_call_version(call) == 1 && rpcrdma_call_connection(call) == state.connection);
        OK(rpcrdma_call_credential(call, &flavor, &data, &bytes));
        CHECK(flavor == 7 ? bytes == 4 && !memcmp(data, "cred", 4) : bytes == 0);
        /* It is not ours to end, and stays whole. */
        rpcrdma_call_free(call);
        FAILS(RPCRDMA_E_USAGE, rpcrdma_call_run(call));
        FAILS(RPCRDMA_E_USAGE, rpcrdma_call_answer(call, 0));
        OK(rpcrdma_get_opaque(call, &data, &bytes));
        return rpcrdma_put_opaque(call, data, bytes);
    case LATER:
        CHECK(rpcrdma_call_version(call) == 2);
        OK(rpcrdma_call_later(call, &state.later));
        FAILS(RPCRDMA_E_BUSY, rpcrdma_call_later(call, &state.later));
        CHECK(pthread_create(&state.thread, NULL, answer_later, state.later) == 0);
        return RPCRDMA_OK;
    case REFUSE:
        OK(rpcrdma_get_u32(call, &word));
        return (int)word;
    case BULK:
        OK(rpcrdma_get_bulk(call, &data, &bytes));
        OK(rpcrdma_put_u32(call, 7));
        OK(rpcrdma_put_bulk_copy(call, data, bytes));
        return rpcrdma_put_u32(call, 8);
    case KEEP:
        /* The data that came is kept without a copy, and goes out from there at the next call. */
        if (state.kept) {
            OK(rpcrdma_put_bulk(call, state.kept));
            state.kept = NULL;
            return RPCRDMA_OK;
        }
        return rpcrdma_take_bulk(call, &state.kept);
    case BAD: {
        uint64_t hyper;
        return rpcrdma_get_u64(call, &hyper);
    }
    case LONG:
        for (int i = 0; i < 100000; i++)
            rpcrdma_put_opaque(call, "0123456789", 10);
        return RPCRDMA_OK;
    case SILENT:
        return rpcrdma_call_later(call, &state.silent);
    case ONCE:
        if (++state.runs > 1)
            return rpcrdma_put_u32(call, (uint32_t)state.runs);
        OK(rpcrdma_call_later(call, &state.cut));
        CHECK(pthread_create(&state.thread, NULL, cut_and_answer, state.cut) == 0);
        return RPCRDMA_OK;
    default:
        return RPCRDMA_E_PROCEDURE_UNAVAILABLE;
    }
}

static void connected(void *user, uint64_t connection, const char *identity)
{
    CHECK(user == &state && !identity);
    state.connection = connection;
    __atomic_add_fetch(&state.connected, 1, __ATOMIC_RELEASE);
}

static void disconnected(void *user, uint64_t connection, int reason, const char *text)
{
    CHECK(user == &state && connection != UINT64_MAX);
    CHECK(reason >= RPCRDMA_CLOSED_LOCAL && reason <= RPCRDMA_CLOSED_REPLACED && strlen(text) > 0);
    CHECK(reason != RPCRDMA_CLOSED_LOCAL || !strcmp(text, "closed from this side"));
    state.closed[reason]++;
    state.disconnected++;
}

static void nulls(void)
{
    const int refused = RPCRDMA_E_ARGUMENT;
    const rpcrdma_procedure any = {PROGRAM, 1, 1};
    rpcrdma_client *client = NULL;
    rpcrdma_server *server = NULL;
    rpcrdma_service none = {.program = PROGRAM, .version_low = 1, .version_high = 1};
    rpcrdma_service empty = {.program = PROGRAM, .version_low = 2, .version_high = 1, .call = serve};
    FAILS(refused, rpcrdma_client_connect(NULL, NULL, &client));
    FAILS(refused, rpcrdma_client_connect("shm:contract", NULL, NULL));
    FAILS(refused, rpcrdma_client_connect("shm:\xff", NULL, &client));
    FAILS(refused, rpcrdma_client_call(NULL, any, NULL));
    FAILS(refused, rpcrdma_client_again(NULL, NULL, any));
    FAILS(refused, rpcrdma_client_buffer(NULL, 1, 1, NULL));
    FAILS(refused, rpcrdma_client_is_connected(NULL));
    FAILS(refused, rpcrdma_call_run(NULL));
    FAILS(refused, rpcrdma_call_answer(NULL, 0));
    FAILS(refused, rpcrdma_call_later(NULL, NULL));
    FAILS(refused, rpcrdma_put_u32(NULL, 1));
    FAILS(refused, rpcrdma_put_bulk(NULL, NULL));
    FAILS(refused, rpcrdma_get_u32(NULL, NULL));
    FAILS(refused, rpcrdma_get_bulk(NULL, NULL, NULL));
    FAILS(refused, rpcrdma_take_bulk(NULL, NULL));
    FAILS(refused, rpcrdma_poller_new(NULL, 1, NULL));
    FAILS(refused, rpcrdma_poller_submit(NULL, NULL, 0));
    FAILS(refused, rpcrdma_poller_complete(NULL, NULL, 0));
    FAILS(refused, rpcrdma_poller_wait(NULL, NULL, 1, 1));
    FAILS(refused, rpcrdma_server_start("shm:contract", NULL, 1, NULL, &server));
    FAILS(refused, rpcrdma_server_start("shm:contract", &none, 1, NULL, &server));
    FAILS(refused, rpcrdma_server_start("shm:contract", &empty, 1, NULL, &server));
    FAILS(refused, rpcrdma_server_drain(NULL, 1));
    FAILS(refused, rpcrdma_node_listen(NULL, "shm:contract", NULL, NULL, 0));
    FAILS(refused, rpcrdma_client_node(NULL, NULL));
    FAILS(refused, rpcrdma_node_metric(NULL, "calls_sent", NULL));
    FAILS(refused, rpcrdma_options_set(NULL, "depth", "1"));
    FAILS(refused, rpcrdma_buffer_pieces(NULL, NULL, 0, NULL));
    CHECK(rpcrdma_buffer_bytes(NULL) == 0 && rpcrdma_poller_outstanding(NULL) == 0 && rpcrdma_call_number(NULL) == 0);
    CHECK(!rpcrdma_server_address(NULL) && !rpcrdma_call_error(NULL) && !client && !server);
    rpcrdma_options_free(NULL), rpcrdma_node_free(NULL), rpcrdma_server_free(NULL), rpcrdma_client_free(NULL);
    rpcrdma_call_free(NULL), rpcrdma_poller_free(NULL), rpcrdma_buffer_free(NULL);
    FAILS(RPCRDMA_E_ADDRESS, rpcrdma_client_connect("tcp:here", NULL, &client));
    CHECK(!strcmp(rpcrdma_error_name(RPCRDMA_E_ADDRESS), "RPCRDMA_E_ADDRESS") && !strcmp(rpcrdma_version(), "0.1.0"));
}

static void options(void)
{
    rpcrdma_options *options = rpcrdma_options_new();
    static const char *const right[][2] = {
        {"profile", "shm"}, {"idle", "park"}, {"cpus", "0,1"},  {"cores", "2"},      {"depth", "4"},      {"spin_us", "1"},
        {"repeat", "no"},   {"wait", "no"},     {"wait", "yes"},  {"device", "no"}, {"timeout_ms", "1"}, {"patience_ms", "1"}};
    static const char *const wrong[][2] = {{"depht", "4"}, {"depth", "four"}, {"wait", "maybe"}, {"repeat", "once"}, {"cpus", "0-1"},
                                           {"idle", "rest"}, {"authentication", "trust"}, {"depth", "0"},
                                           {"cores", "0"}, {"connections", "0"}, {"bulk_buffers", "x"}, {"bulk_buffers", "70000"}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        OK(rpcrdma_options_set(options, right[i][0], right[i][1]));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_options_set(options, wrong[i][0], wrong[i][1]));
        CHECK(strstr(rpcrdma_error_text(), wrong[i][0]));
        CHECK(!i == (strstr(rpcrdma_error_text(), "no such option") != NULL));
    }
    CHECK(strstr(rpcrdma_error_text(), "0 to 65536"));
    rpcrdma_options_free(options);
    /* A key needs its file, and the name of this end. */
    rpcrdma_client *client;
    options = rpcrdma_options_new();
    OK(rpcrdma_options_set(options, "authentication", "key"));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_client_connect("shm:contract", options, &client));
    OK(rpcrdma_options_set(options, "key_file", "/none"));
    OK(rpcrdma_options_set(options, "host_name", "here"));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_client_connect("shm:contract", options, &client));
    CHECK(strstr(rpcrdma_error_text(), "/none"));
    rpcrdma_options_free(options);
}

/* Runs a call of one word. */
static int run_word(rpcrdma_client *client, rpcrdma_call *call, int procedure, uint32_t word)
{
    OK(rpcrdma_client_again(client, call, NAMED[procedure]));
    OK(rpcrdma_put_u32(call, word));
    return rpcrdma_call_run(call);
}

static void calls(rpcrdma_client *client)
{
    rpcrdma_call *call;
    const void *data;
    size_t bytes;
    uint32_t word;
    OK(rpcrdma_client_call(client, NAMED[ECHO], &call));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_get_u32(call, &word));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_later(call, &state.later));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_put_opaque(call, NULL, 1));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_put_opaque(call, "x", SIZE_MAX));
    OK(rpcrdma_call_set_credential(call, 7, "cred", 4));
    OK(rpcrdma_put_opaque(call, "hello", 5));
    OK(rpcrdma_call_run(call));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_run(call));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_u32(call, 1));
    OK(rpcrdma_get_rest(call, &data, &bytes));
    CHECK(bytes == 12 && !memcmp(data, "\0\0\0\5hello\0\0\0", 12));
    OK(rpcrdma_get_opaque(call, &data, &bytes));
    CHECK(bytes == 5 && !memcmp(data, "hello", 5));
    FAILS(RPCRDMA_E_BAD_REPLY, rpcrdma_get_u32(call, &word));

    /* The handle that the handler had is good for nothing now, and does not crash. */
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_u32(state.kept_handle, 1));
    rpcrdma_call_free(state.kept_handle);

    static const int refusals[] = {RPCRDMA_E_PROCEDURE_UNAVAILABLE, RPCRDMA_E_GARBAGE_ARGS, RPCRDMA_E_SYSTEM_ERROR,
                                   RPCRDMA_E_DENIED};
    for (size_t i = 0; i < 4; i++)
        FAILS(refusals[i], run_word(client, call, REFUSE, (uint32_t)refusals[i]));
    FAILS(RPCRDMA_E_SYSTEM_ERROR, run_word(client, call, REFUSE, (uint32_t)RPCRDMA_E_USAGE));
    OK(run_word(client, call, REFUSE, 5));
    FAILS(RPCRDMA_E_GARBAGE_ARGS, run_word(client, call, BAD, 1));
    FAILS(RPCRDMA_E_SYSTEM_ERROR, run_word(client, call, LONG, 1));
    OK(rpcrdma_client_again(client, call, (rpcrdma_procedure){PROGRAM + 1, 1, 1}));
    FAILS(RPCRDMA_E_PROGRAM_UNAVAILABLE, rpcrdma_call_run(call));
    OK(rpcrdma_client_again(client, call, (rpcrdma_procedure){PROGRAM, 3, 1}));
    FAILS(RPCRDMA_E_PROGRAM_MISMATCH, rpcrdma_call_run(call));

    OK(rpcrdma_client_again(client, call, NAMED[LATER]));
    OK(rpcrdma_call_expect_bulk(call, 10000));
    OK(rpcrdma_call_run(call));
    CHECK(pthread_join(state.thread, NULL) == 0);
    OK(rpcrdma_get_u32(call, &word));
    CHECK(word == 1);
    OK(rpcrdma_get_bulk(call, &data, &bytes));
    CHECK(bytes == 10000);
    for (size_t i = 0; i < bytes; i++)
        CHECK(((const char *)data)[i] == 'L');
    OK(rpcrdma_get_u32(call, &word));
    CHECK(word == 2);

    /* TIME: nobody answers before the right to answer is given up, so no machine is too slow for it. */
    OK(rpcrdma_client_again(client, call, NAMED[SILENT]));
    OK(rpcrdma_call_timeout(call, 20));
    FAILS(RPCRDMA_E_TIMED_OUT, rpcrdma_call_run(call));
    /* The server may be late with it. */
    while (!__atomic_load_n(&state.silent, __ATOMIC_SEQ_CST))
        sched_yield();
    rpcrdma_call_free(state.silent);
    rpcrdma_call_free(call);
}

static void bulk(rpcrdma_client *client)
{
    static const size_t lengths[] = {0, 1, 100, 4096, 65537, 300000};
    rpcrdma_call *call;
    rpcrdma_buffer *buffer;
    const void *data;
    size_t bytes, count;
    uint32_t word;
    char *sent = malloc(300000), *came = malloc(300000);
    for (size_t i = 0; i < 300000; i++)
        sent[i] = (char)(i * 7 + i / 251);
    OK(rpcrdma_client_call(client, NAMED[BULK], &call));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t length = lengths[i];
        for (int way = 0; way < 3; way++) {
            OK(rpcrdma_client_again(client, call, NAMED[BULK]));
            OK(rpcrdma_client_buffer(client, length, PATIENCE_MS, &buffer));
            CHECK(rpcrdma_buffer_bytes(buffer) == length);
            OK(rpcrdma_buffer_write(buffer, sent, length));
            FAILS(RPCRDMA_E_TOO_LONG, rpcrdma_buffer_write(buffer, sent, length + 1));
            OK(rpcrdma_put_bulk(call, buffer));
            OK(rpcrdma_call_expect_bulk(call, (uint32_t)length));
            OK(rpcrdma_call_run(call));
            OK(rpcrdma_get_u32(call, &word));
            CHECK(word == 7);
            memset(came, 0, 300000);
            if (way == 0) {
                OK(rpcrdma_get_bulk(call, &data, &bytes));
                CHECK(bytes == length && !memcmp(data, sent, length));
            } else if (way == 1) {
                struct iovec pieces[32];
                OK(rpcrdma_get_bulk_pieces(call, pieces, 32, &count));
                for (size_t piece = 0, at = 0; piece < count; at += pieces[piece++].iov_len)
                    CHECK(!memcmp(pieces[piece].iov_base, sent + at, pieces[piece].iov_len));
            } else {
                OK(rpcrdma_take_bulk(call, &buffer));
                CHECK(rpcrdma_buffer_bytes(buffer) == length);
            }
            OK(rpcrdma_get_u32(call, &word));
            CHECK(word == 8);
            if (way == 2) {
                /* It outlives its call. */
                OK(rpcrdma_client_again(client, call, NAMED[ECHO]));
                OK(rpcrdma_buffer_read(buffer, came, length));
                CHECK(!memcmp(came, sent, length));
                FAILS(RPCRDMA_E_TOO_LONG, rpcrdma_buffer_read(buffer, came, length + 1));
                rpcrdma_buffer_free(buffer);
            }
        }
        OK(rpcrdma_client_again(client, call, NAMED[KEEP]));
        OK(rpcrdma_put_bulk_copy(call, sent, length));
        OK(rpcrdma_call_run(call));
        OK(rpcrdma_client_again(client, call, NAMED[KEEP]));
        OK(rpcrdma_call_expect_bulk(call, (uint32_t)length));
        OK(rpcrdma_call_run(call));
        OK(rpcrdma_get_bulk(call, &data, &bytes));
        CHECK(bytes == length && !memcmp(data, sent, length));
    }
    /* Too few places for the pieces. */
    OK(rpcrdma_client_again(client, call, NAMED[BULK]));
    OK(rpcrdma_put_bulk_copy(call, sent, 300000));
    OK(rpcrdma_call_expect_bulk(call, 300000));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_get_u32(call, &word));
    FAILS(RPCRDMA_E_TOO_LONG, rpcrdma_get_bulk_pieces(call, NULL, 0, &count));
    /* The data is longer than was expected, and it says so. */
    OK(rpcrdma_client_again(client, call, NAMED[BULK]));
    OK(rpcrdma_put_bulk_copy(call, sent, 4096));
    OK(rpcrdma_call_expect_bulk(call, 1000));
    FAILS(RPCRDMA_E_BAD_REPLY, rpcrdma_call_run(call));
    CHECK(strstr(rpcrdma_error_text(), "expect more"));
    /* Nothing was expected: it comes in the stream. */
    OK(rpcrdma_client_again(client, call, NAMED[BULK]));
    OK(rpcrdma_put_bulk_copy(call, sent, 4096));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_get_u32(call, &word));
    OK(rpcrdma_get_bulk(call, &data, &bytes));
    CHECK(bytes == 4096 && !memcmp(data, sent, bytes));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_u32(call, 1));
    /* A buffer that is refused stays. */
    OK(rpcrdma_client_buffer(client, 10, PATIENCE_MS, &buffer));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_bulk(call, buffer));
    CHECK(rpcrdma_buffer_bytes(buffer) == 10);
    rpcrdma_buffer_free(buffer);
    FAILS(RPCRDMA_E_NO_BUFFERS, rpcrdma_client_buffer(client, (size_t)1 << 40, 5000, &buffer));
    /* TIME: there is no 49th, so no machine is too slow for the second that it is waited for. */
    /* Three quarters of the 64 are for the program. It comes to know by a call, too, and what it does then still goes. */
    OK(rpcrdma_client_again(client, call, NAMED[BULK]));
    rpcrdma_buffer *held[64];
    for (count = 0; count < 64; count++)
        if (rpcrdma_client_buffer(client, 1, count < 48 ? PATIENCE_MS : 1000, &held[count]) != RPCRDMA_OK)
            break;
    CHECK(count == 48);
    FAILS(RPCRDMA_E_NO_BUFFERS, rpcrdma_call_buffer(call, 1, &buffer));
    CHECK(strstr(rpcrdma_error_text(), "rpcrdma_client_buffer() waits"));
    OK(rpcrdma_put_bulk_copy(call, sent, 300000));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_get_u32(call, &word));
    OK(rpcrdma_get_bulk(call, &data, &bytes));
    CHECK(bytes == 300000 && !memcmp(data, sent, bytes));
    while (count > 0)
        rpcrdma_buffer_free(held[--count]);
    rpcrdma_call_free(call);
    free(sent), free(came);
}

static void batches(rpcrdma_client *client)
{
    enum { DEPTH = 4 };
    rpcrdma_poller *poller, *other;
    rpcrdma_call *call, *full;
    rpcrdma_completion ended[DEPTH];
    const void *data;
    size_t bytes;
    OK(rpcrdma_poller_new(client, DEPTH, &poller));
    OK(rpcrdma_poller_new(client, 1, &other));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_wait(poller, ended, DEPTH, 5000));
    CHECK(rpcrdma_poller_complete(poller, ended, DEPTH) == 0);
    for (uint64_t tag = 0; tag < DEPTH; tag++) {
        OK(rpcrdma_poller_call(poller, NAMED[tag == 2 ? BAD : ECHO], &call));
        OK(rpcrdma_put_opaque(call, &tag, tag == 2 ? 0 : sizeof tag));
        OK(rpcrdma_poller_submit(poller, call, tag + 100));
    }
    OK(rpcrdma_poller_call(poller, NAMED[ECHO], &full));
    OK(rpcrdma_put_opaque(full, "again", 5));
    FAILS(RPCRDMA_E_BUSY, rpcrdma_poller_submit(poller, full, 0));
    CHECK(rpcrdma_poller_outstanding(poller) == DEPTH);
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_wait(poller, NULL, 0, 5000));
    for (int done = 0; done < DEPTH;) {
        int count = rpcrdma_poller_wait(poller, ended, 2, PATIENCE_MS);
        CHECK(count == 1 || count == 2);
        for (int i = 0; i < count; i++, done++) {
            uint64_t tag = ended[i].tag - 100;
            int failed = tag == 2;
            CHECK(ended[i].error == (failed ? RPCRDMA_E_GARBAGE_ARGS : RPCRDMA_OK));
            CHECK((strlen(rpcrdma_call_error(ended[i].call)) > 0) == failed);
            if (!failed) {
                OK(rpcrdma_get_opaque(ended[i].call, &data, &bytes));
                CHECK(bytes == sizeof tag && !memcmp(data, &tag, sizeof tag));
            }
            FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_submit(poller, ended[i].call, 0));
            rpcrdma_call_free(ended[i].call);
        }
    }
    /* What was refused because the poller was full goes now, and again with the same handle. */
    OK(rpcrdma_poller_submit(poller, full, 1));
    while (rpcrdma_poller_complete(poller, ended, DEPTH) == 0)
        ;
    CHECK(ended[0].call == full);
    OK(rpcrdma_poller_again(other, full, NAMED[ECHO]));
    OK(rpcrdma_put_opaque(full, "other", 5));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_poller_submit(NULL, full, 1));
    /* TIME: nobody answers in the time that the poller waits, however long that is. */
    __atomic_store_n(&state.silent, NULL, __ATOMIC_SEQ_CST);
    OK(rpcrdma_poller_call(poller, NAMED[SILENT], &call));
    OK(rpcrdma_poller_submit(poller, call, 5));
    CHECK(rpcrdma_poller_wait(poller, ended, DEPTH, 0) == 0);
    CHECK(rpcrdma_poller_wait(poller, ended, DEPTH, 20) == 0);
    while (!__atomic_load_n(&state.silent, __ATOMIC_SEQ_CST))
        CHECK(rpcrdma_poller_wait(poller, ended, DEPTH, 1) == 0);
    rpcrdma_call_free(state.silent);
    CHECK(rpcrdma_poller_wait(poller, ended, DEPTH, PATIENCE_MS) == 1);
    CHECK(ended[0].error == RPCRDMA_E_SYSTEM_ERROR && ended[0].tag == 5);
    rpcrdma_call_free(ended[0].call);
    /* A poller may end with calls under way. */
    OK(rpcrdma_poller_submit(other, full, 1));
    rpcrdma_poller_free(other);
    rpcrdma_poller_free(poller);
}

/* A call that a poller refuses stays whole, and the program's; one that it has is its own until it gives it back. */
static void refused(rpcrdma_client *client, rpcrdma_client *elsewhere)
{
    rpcrdma_poller *poller, *wrong;
    rpcrdma_call *call;
    rpcrdma_completion ended;
    const void *data;
    size_t bytes;
    OK(rpcrdma_poller_new(client, 2, &poller));
    OK(rpcrdma_poller_new(elsewhere, 2, &wrong));
    OK(rpcrdma_poller_call(poller, NAMED[REFUSE], &call));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_submit(wrong, call, 1));
    OK(rpcrdma_put_u32(call, (uint32_t)RPCRDMA_E_DENIED));
    OK(rpcrdma_poller_submit(poller, call, 2));
    CHECK(rpcrdma_poller_wait(poller, &ended, 1, PATIENCE_MS) == 1);
    CHECK(ended.call == call && ended.tag == 2 && ended.error == RPCRDMA_E_DENIED);
    OK(rpcrdma_poller_again(poller, call, NAMED[BULK]));
    for (int item = 0; item < 1000; item++)
        OK(rpcrdma_call_expect_bulk(call, 1));
    for (int time = 0; time < 2; time++)
        FAILS(RPCRDMA_E_TOO_LONG, rpcrdma_poller_submit(poller, call, 3));
    /* While it is under way it is the poller's. */
    __atomic_store_n(&state.silent, NULL, __ATOMIC_SEQ_CST);
    OK(rpcrdma_poller_again(poller, call, NAMED[SILENT]));
    OK(rpcrdma_poller_submit(poller, call, 4));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_submit(poller, call, 5));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_submit(wrong, call, 5));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_again(poller, call, NAMED[ECHO]));
    CHECK(strstr(rpcrdma_error_text(), "under way"));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_client_again(client, call, NAMED[ECHO]));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_opaque(call, "x", 1));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_expect_bulk(call, 1));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_run(call));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_answer(call, RPCRDMA_OK));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_get_opaque(call, &data, &bytes));
    rpcrdma_call_free(call);
    CHECK(rpcrdma_poller_outstanding(poller) == 1 && rpcrdma_poller_complete(poller, &ended, 1) == 0);
    while (!__atomic_load_n(&state.silent, __ATOMIC_SEQ_CST))
        sched_yield();
    /* The handle of a peer's call begins no other one, and stays as it is. */
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_again(poller, state.silent, NAMED[ECHO]));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_client_again(client, state.silent, NAMED[ECHO]));
    OK(rpcrdma_put_opaque(state.silent, "late", 4));
    OK(rpcrdma_call_answer(state.silent, RPCRDMA_OK));
    CHECK(rpcrdma_poller_wait(poller, &ended, 1, PATIENCE_MS) == 1);
    CHECK(ended.call == call && ended.tag == 4 && ended.error == RPCRDMA_OK);
    OK(rpcrdma_get_opaque(call, &data, &bytes));
    CHECK(bytes == 4 && !memcmp(data, "late", 4));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_poller_submit(poller, call, 6));
    rpcrdma_call_free(call);
    rpcrdma_poller_free(wrong);
    rpcrdma_poller_free(poller);
}

/* The server ends and another one listens at its address: the client connects again. */
static void restart(const char *address, const rpcrdma_service *service, rpcrdma_server **server, rpcrdma_client *client)
{
    rpcrdma_call *call;
    uint64_t reconnects;
    int result;
    OK(rpcrdma_client_reconnects(client, &reconnects));
    CHECK(reconnects == 0);
    rpcrdma_server_free(*server);
    OK(rpcrdma_server_start(address, service, 1, patient, server));
    OK(rpcrdma_client_call(client, NAMED[REFUSE], &call));
    /* Before the loss is noticed, a call can be lost with the connection. */
    while ((result = run_word(client, call, REFUSE, 5)) == RPCRDMA_E_DISCONNECTED)
        ;
    OK(result);
    OK(rpcrdma_client_reconnects(client, &reconnects));
    CHECK(reconnects == 1);
    rpcrdma_call_free(call);
}

static void gone(void *count)
{
    __atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST);
}

/* Memory of the program, which maps it itself: data goes from it and comes into it, where the program sees it. */
static void memory(const char *address)
{
    enum { BLOCK = 65536, SIZE = 4 * BLOCK };
    rpcrdma_options *options = patient_new();
    rpcrdma_memory *memory, *other;
    rpcrdma_buffer *from, *into, *third;
    rpcrdma_client *client;
    rpcrdma_node *node;
    rpcrdma_call *call;
    uint32_t word;
    uint64_t copied;
    int released = 0, file = memfd_create("contract", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(file >= 0 && ftruncate(file, SIZE) == 0);
    char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(own != MAP_FAILED);
    for (size_t i = 0; i < SIZE; i++)
        own[i] = (char)(i * 11 + i / 253);
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_memory_of_file(-1, BLOCK, &memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_of_file(file, 1000, &memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_of_dma_buf(file, 3, &memory));
    OK(rpcrdma_memory_of_file(file, BLOCK, &memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_of_file(file, BLOCK, &other));
    CHECK(pwrite(file, "x", 1, 0) == -1 && ftruncate(file, 0) == -1); /* sealed */
    CHECK(rpcrdma_memory_start(memory) && rpcrdma_memory_start(memory) != own && !rpcrdma_memory_start(NULL));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_options_add_memory(options, NULL));
    OK(rpcrdma_options_add_memory(options, memory));
    OK(rpcrdma_node_start(address, NULL, 0, options, &node));
    rpcrdma_options_free(options);
    OK(rpcrdma_client_connect_on(node, address, patient, &client));
    OK(rpcrdma_memory_buffer(memory, 0, BLOCK, &from));
    FAILS(RPCRDMA_E_NO_BUFFERS, rpcrdma_memory_buffer(memory, 100, 1, &third));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_memory_buffer(memory, SIZE, 1, &third));
    OK(rpcrdma_memory_buffer(memory, 2 * BLOCK, BLOCK, &into));
    OK(rpcrdma_client_call(client, NAMED[BULK], &call));
    OK(rpcrdma_put_bulk(call, from));
    OK(rpcrdma_call_expect_bulk_into(call, into));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_get_u32(call, &word));
    OK(rpcrdma_take_bulk(call, &into));
    CHECK(rpcrdma_buffer_bytes(into) == BLOCK);
    FAILS(RPCRDMA_E_NO_BUFFERS, rpcrdma_memory_buffer(memory, 2 * BLOCK, 1, &third));
    CHECK(!memcmp(own + 2 * BLOCK, own, BLOCK));
    OK(rpcrdma_node_metric(node, "bulk_bytes_copied", &copied));
    CHECK(copied == 0);
    rpcrdma_node_free(node);
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_expect_bulk_into(call, into));
    rpcrdma_call_free(call);
    rpcrdma_client_free(client);
    rpcrdma_memory_free(memory);
    /* What is left is the buffer, which keeps the memory. */
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_of_file(file, BLOCK, &other));
    CHECK(strstr(rpcrdma_error_text(), "registered already"));
    rpcrdma_buffer_free(into);
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_of_file(file, BLOCK, &other));
    CHECK(strstr(rpcrdma_error_text(), "sealed"));
    close(file);

    /* A file without seals stays as it is, and is for devices. */
    file = memfd_create("plain", MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, SIZE) == 0);
    OK(rpcrdma_memory_of_file(file, BLOCK, &memory));
    CHECK(pwrite(file, "x", 1, 0) == 1 && *(char *)rpcrdma_memory_start(memory) == 'x');
    options = rpcrdma_options_new();
    OK(rpcrdma_options_add_memory(options, memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_node_start(address, NULL, 0, options, &node));
    CHECK(strstr(rpcrdma_error_text(), "MFD_ALLOW_SEALING"));
    rpcrdma_options_free(options);
    rpcrdma_memory_free(memory);
    close(file);

    /* By its address: for devices. */
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_memory_at_address(NULL, SIZE, BLOCK, gone, &released, &memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_memory_at_address(own + 1, SIZE, BLOCK, gone, &released, &memory));
    CHECK(strstr(rpcrdma_error_text(), "multiple of 4096"));
    OK(rpcrdma_memory_at_address(own, SIZE, BLOCK, gone, &released, &memory));
    CHECK(rpcrdma_memory_start(memory) == own);
    options = rpcrdma_options_new();
    OK(rpcrdma_options_add_memory(options, memory));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_node_start(address, NULL, 0, options, &node));
    CHECK(strstr(rpcrdma_error_text(), "descriptor of a memfd"));
    rpcrdma_options_free(options);
    OK(rpcrdma_memory_buffer(memory, 0, 10, &from));
    rpcrdma_memory_free(memory);
    CHECK(__atomic_load_n(&released, __ATOMIC_SEQ_CST) == 0);
    rpcrdma_buffer_free(from);
    /* The core that could not start ends on its own thread. */
    /* TIME: so many pauses last two minutes or longer, and it ends in a millisecond. */
    for (int i = 0; i < 120000 && !__atomic_load_n(&released, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    CHECK(__atomic_load_n(&released, __ATOMIC_SEQ_CST) == 1);
    rpcrdma_memory_free(NULL);
    munmap(own, SIZE);
}

/* A call is lost with its connection after it ran: it is sent again, and does not run again. */
static void once(const char *address)
{
    const rpcrdma_procedure other = {PROGRAM, 3, ONCE};
    rpcrdma_service service = {.program = PROGRAM,
                               .version_low = 1,
                               .version_high = 2,
                               .call = serve,
                               .connected = connected,
                               .disconnected = disconnected,
                               .user = &state,
                               .once = &other,
                               .once_count = 1};
    rpcrdma_options *options = patient_new();
    rpcrdma_server *server;
    rpcrdma_client *client;
    rpcrdma_call *call;
    uint32_t word;
    int closed = state.closed[RPCRDMA_CLOSED_LOCAL];
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_server_start(address, &service, 1, NULL, &server));
    service.once = &NAMED[ONCE];
    OK(rpcrdma_server_start(address, &service, 1, options, &server));
    OK(rpcrdma_server_node(server, &state.node));
    /* Of a core that the node does not have. */
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_node_close(state.node, 1 << 20));
    OK(rpcrdma_options_set(options, "repeat", "yes"));
    OK(rpcrdma_client_connect(address, options, &client));
    OK(rpcrdma_client_call(client, NAMED[ONCE], &call));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_get_u32(call, &word));
    CHECK(word == 1 && state.runs == 1 && state.closed[RPCRDMA_CLOSED_LOCAL] == closed + 1);
    CHECK(pthread_join(state.thread, NULL) == 0);
    rpcrdma_call_free(call), rpcrdma_client_free(client);
    rpcrdma_node_free(state.node), rpcrdma_server_free(server), rpcrdma_options_free(options);
}

static int name_connection(void *user, rpcrdma_call *call)
{
    CHECK(!user);
    return rpcrdma_put_u64(call, rpcrdma_call_connection(call));
}

/* Each connection of a node has a number of its own, whichever core it is on, and ends by it. */
static void cores(const char *address)
{
    enum { CLIENTS = 4 };
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 1, .call = name_connection};
    rpcrdma_options *options = patient_new();
    rpcrdma_server *server;
    rpcrdma_client *clients[CLIENTS];
    rpcrdma_call *call;
    rpcrdma_node *node;
    uint64_t numbers[CLIENTS], reconnects, cores_seen = 0;
    OK(rpcrdma_options_set(options, "cores", "2"));
    OK(rpcrdma_server_start(address, &service, 1, options, &server));
    for (int i = 0; i < CLIENTS; i++) {
        OK(rpcrdma_client_connect(address, patient, &clients[i]));
        OK(rpcrdma_client_call(clients[i], NAMED[ECHO], &call));
        OK(rpcrdma_call_run(call));
        OK(rpcrdma_get_u64(call, &numbers[i]));
        rpcrdma_call_free(call);
        for (int other = 0; other < i; other++)
            CHECK(numbers[other] != numbers[i]);
        cores_seen |= 1 << (numbers[i] >> 20 & 0xfff);
    }
    CHECK(cores_seen == 3);
    OK(rpcrdma_server_node(server, &node));
    for (int i = 0; i < CLIENTS; i++) {
        OK(rpcrdma_node_close(node, numbers[i]));
        do
            OK(rpcrdma_client_reconnects(clients[i], &reconnects));
        while (reconnects == 0 && sched_yield() == 0);
        for (int other = i + 1; other < CLIENTS; other++) {
            OK(rpcrdma_client_reconnects(clients[other], &reconnects));
            CHECK(reconnects == 0);
        }
    }
    for (int i = 0; i < CLIENTS; i++)
        rpcrdma_client_free(clients[i]);
    rpcrdma_node_free(node), rpcrdma_server_free(server), rpcrdma_options_free(options);
}

/* A node whose core this thread polls, and which ends before its core. */
static void polled(const char *address)
{
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 2, .call = serve, .user = &state};
    rpcrdma_options *options = rpcrdma_options_new();
    rpcrdma_node *node;
    rpcrdma_core *core, *second;
    rpcrdma_client *client;
    OK(rpcrdma_options_set(options, "polled", "yes"));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_client_connect(address, options, &client));
    OK(rpcrdma_node_start(address, &service, 1, options, &node));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_node_take_core(node, 1, &core));
    OK(rpcrdma_node_take_core(node, 0, &core));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_node_take_core(node, 0, &second));
    CHECK(rpcrdma_core_poll(core) == 0);
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_core_poll(NULL));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_node_take_core(NULL, 0, &second));
    rpcrdma_core_free(NULL);
    rpcrdma_node_free(node);
    int polled;
    while ((polled = rpcrdma_core_poll(core)) >= 0)
        ;
    FAILS(RPCRDMA_E_SHUTTING_DOWN, polled);
    rpcrdma_core_free(core);
    rpcrdma_options_free(options);
}

/* Flavor 6 with a mechanism of this test: a credential is a number, a verifier a sum. */
struct gss {
    uint32_t next, step, seen[100], judged;
};

static uint64_t sum_of(const void *octets, size_t bytes)
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ ((const unsigned char *)octets)[i]) * 1099511628211u;
    return sum;
}

static void sign(void *user, const void *octets, size_t bytes, rpcrdma_auth *out)
{
    struct gss *gss = user;
    out->flavor = 6;
    if (octets) {
        const uint64_t sum = sum_of(octets, bytes);
        memcpy(out->body, &sum, out->bytes = sizeof(sum));
        return;
    }
    memcpy(out->body, &gss->next, out->bytes = sizeof(gss->next));
    gss->next += gss->step;
}

static void sign_wrong(void *user, const void *octets, size_t bytes, rpcrdma_auth *out)
{
    sign(user, octets, bytes, out);
    out->body[0] ^= octets != NULL;
}

static void sign_nothing(void *user, const void *octets, size_t bytes, rpcrdma_auth *out)
{
    CHECK(user && out && (octets || !bytes));
}

static void sign_too_much(void *user, const void *octets, size_t bytes, rpcrdma_auth *out)
{
    sign(user, octets, bytes, out);
    out->bytes = 401;
}

static int judge(void *user, rpcrdma_call *call)
{
    struct gss *gss = user;
    const void *credential, *verifier, *octets;
    size_t credential_bytes, verifier_bytes, bytes;
    uint32_t flavor, number, word;
    gss->judged++;
    FAILS(RPCRDMA_E_USAGE, rpcrdma_get_u32(call, &word));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_put_u32(call, 1));
    FAILS(RPCRDMA_E_USAGE, rpcrdma_call_later(call, &state.later));
    CHECK(rpcrdma_call_number(call) == ECHO && rpcrdma_call_version(call) == 1);
    OK(rpcrdma_call_credential(call, &flavor, &credential, &credential_bytes));
    CHECK(flavor == 6 && credential_bytes == sizeof(number));
    OK(rpcrdma_call_verifier(call, &flavor, &verifier, &verifier_bytes));
    OK(rpcrdma_call_signed(call, &octets, &bytes));
    CHECK(bytes == 36 && !memcmp((const char *)octets + 32, credential, credential_bytes));
    const uint64_t sum = sum_of(octets, bytes);
    if (flavor != 6 || verifier_bytes != sizeof(sum) || memcmp(verifier, &sum, sizeof(sum)))
        return 13;
    memcpy(&number, credential, sizeof(number));
    if (gss->seen[number % 100]++)
        return RPCRDMA_E_TIMED_OUT;
    char body[401] = "";
    memcpy(body, &number, sizeof(number));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_call_set_verifier(call, 6, body, sizeof(body)));
    OK(rpcrdma_call_set_verifier(call, 6, body, 399));
    return RPCRDMA_OK;
}

static int answer_whole(void *user, rpcrdma_call *call)
{
    const void *text;
    size_t bytes;
    CHECK(user);
    OK(rpcrdma_get_opaque(call, &text, &bytes));
    if (bytes == 5)
        FAILS(RPCRDMA_E_USAGE, rpcrdma_call_set_verifier(call, 6, "again", 5));
    const int error = rpcrdma_get_end(call);
    return error ? error : rpcrdma_put_opaque(call, text, bytes);
}

typedef void signs(void *user, const void *octets, size_t bytes, rpcrdma_auth *out);

static int run_signed(rpcrdma_client *client, rpcrdma_call **call, signs *how, void *user)
{
    OK(rpcrdma_client_call(client, NAMED[ECHO], call));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_call_sign(*call, NULL, user));
    OK(rpcrdma_call_sign(*call, how, user));
    OK(rpcrdma_put_opaque(*call, "hello", 5));
    return rpcrdma_call_run(*call);
}

static void signatures(void)
{
    static const uint32_t flavors[] = {0, 6};
    struct gss gss = {.next = 1, .step = 1};
    rpcrdma_service service = {.program = PROGRAM,
                               .version_low = 1,
                               .version_high = 1,
                               .call = answer_whole,
                               .user = &gss,
                               .flavors = flavors,
                               .flavors_count = 2,
                               .authenticate = judge};
    rpcrdma_server *server;
    rpcrdma_client *client;
    rpcrdma_call *call;
    const void *body;
    size_t bytes;
    uint32_t flavor, number;
    char address[100];
    snprintf(address, sizeof(address), "shm:contract-signed-%d", (int)getpid());
    OK(rpcrdma_server_start(address, &service, 1, patient, &server));
    OK(rpcrdma_client_connect(address, patient, &client));
    for (uint32_t i = 1; i < 5; i++) {
        OK(run_signed(client, &call, sign, &gss));
        OK(rpcrdma_call_verifier(call, &flavor, &body, &bytes));
        CHECK(flavor == 6 && bytes == 399 && !memcmp(body, &i, sizeof(i)));
        OK(rpcrdma_call_credential(call, &flavor, &body, &bytes));
        memcpy(&number, body, sizeof(number));
        CHECK(flavor == 6 && number == i);
        FAILS(RPCRDMA_E_USAGE, rpcrdma_call_set_verifier(call, 6, "", 0));
        OK(rpcrdma_get_opaque(call, &body, &bytes));
        CHECK(bytes == 5 && !memcmp(body, "hello", 5));
        OK(rpcrdma_get_end(call));
        rpcrdma_call_free(call);
    }
    FAILS(RPCRDMA_E_DENIED, run_signed(client, &call, sign_wrong, &gss));
    rpcrdma_call_free(call);
    CHECK(gss.judged == 5);
    /* What is no credential is not sent as one of AUTH_NONE, which the service takes. */
    FAILS(RPCRDMA_E_DENIED, run_signed(client, &call, sign_nothing, &gss));
    rpcrdma_call_free(call);
    FAILS(RPCRDMA_E_DENIED, run_signed(client, &call, sign_too_much, &gss));
    rpcrdma_call_free(call);
    /* Flavors that the service does not take are denied without it; AUTH_NONE goes to `call` alone. */
    OK(rpcrdma_client_call(client, NAMED[ECHO], &call));
    OK(rpcrdma_call_set_credential(call, 7, "cred", 4));
    OK(rpcrdma_put_opaque(call, "x", 1));
    FAILS(RPCRDMA_E_DENIED, rpcrdma_call_run(call));
    OK(rpcrdma_client_again(client, call, NAMED[ECHO]));
    OK(rpcrdma_put_opaque(call, "x", 1));
    OK(rpcrdma_call_run(call));
    OK(rpcrdma_call_verifier(call, &flavor, &body, &bytes));
    CHECK(flavor == 0 && bytes == 0);
    /* More than its arguments. */
    OK(rpcrdma_client_again(client, call, NAMED[ECHO]));
    OK(rpcrdma_put_opaque(call, "x", 1));
    OK(rpcrdma_put_u32(call, 1));
    FAILS(RPCRDMA_E_GARBAGE_ARGS, rpcrdma_call_run(call));
    rpcrdma_call_free(call);
    CHECK(gss.judged == 5);
    /* A number that came before gets no answer. */
    gss.step = 0;
    OK(run_signed(client, &call, sign, &gss));
    rpcrdma_call_free(call);
    OK(rpcrdma_client_call(client, NAMED[ECHO], &call));
    OK(rpcrdma_call_sign(call, sign, &gss));
    OK(rpcrdma_call_timeout(call, 50));
    OK(rpcrdma_put_opaque(call, "x", 1));
    FAILS(RPCRDMA_E_TIMED_OUT, rpcrdma_call_run(call));
    rpcrdma_call_free(call);
    rpcrdma_node *node;
    uint64_t discarded = 0;
    OK(rpcrdma_server_node(server, &node));
    while (discarded == 0 && sched_yield() == 0)
        OK(rpcrdma_node_metric(node, "calls_discarded", &discarded));
    CHECK(discarded == 1);
    rpcrdma_node_free(node);
    rpcrdma_client_free(client);
    rpcrdma_server_free(server);
    CHECK(gss.judged == 7);
}

int main(int count, char **words)
{
    const char *address = count > 1 ? words[1] : "shm:contract";
    rpcrdma_service service = {.program = PROGRAM,
                               .version_low = 1,
                               .version_high = 2,
                               .call = serve,
                               .connected = connected,
                               .disconnected = disconnected,
                               .user = &state};
    rpcrdma_server *server, *second;
    rpcrdma_client *client, *own;
    rpcrdma_node *node;
    uint64_t number;
    char chosen[100];
    patient = patient_new();
    nulls();
    options();
    OK(rpcrdma_server_start(address, &service, 1, patient, &server));
    CHECK(!strcmp(rpcrdma_server_address(server), address));
    FAILS(RPCRDMA_E_CONFIGURATION, rpcrdma_server_start(address, &service, 1, patient, &second));
    OK(rpcrdma_client_connect(address, patient, &client));
    CHECK(rpcrdma_client_is_connected(client) == 1);
    calls(client);
    bulk(client);
    batches(client);
    OK(rpcrdma_server_node(server, &node));
    OK(rpcrdma_node_metric(node, "calls_received", &number));
    CHECK(number > 40);
    /* The longer data of `bulk` was read and written by the server, the shorter placed. */
    OK(rpcrdma_node_metric(node, "bulk_bytes_in", &number));
    CHECK(number >= 3 * 300000);
    OK(rpcrdma_node_metric(node, "bulk_bytes_placed", &number));
    CHECK(number >= 3 * 4096);
    rpcrdma_node_free(node);
    OK(rpcrdma_client_node(client, &node));
    OK(rpcrdma_node_metric(node, "bulk_bytes_received", &number));
    CHECK(number >= 3 * 300000);
    OK(rpcrdma_node_metric(node, "calls_received", &number));
    CHECK(number == 0);
    rpcrdma_node_free(node);
    memory(address);
    signatures();
    restart(address, &service, &server, client);
    OK(rpcrdma_server_node(server, &node));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_node_metric(node, "calls_recieved", &number));
    CHECK(strstr(rpcrdma_error_text(), "did you mean calls_received"));
    FAILS(RPCRDMA_E_ARGUMENT, rpcrdma_node_metric(node, "zzz", &number));
    CHECK(!strstr(rpcrdma_error_text(), "did you mean"));
    snprintf(chosen, sizeof chosen, "%s-2", address);
    FAILS(RPCRDMA_E_TOO_LONG, rpcrdma_node_listen(node, chosen, NULL, chosen, 3));
    OK(rpcrdma_client_connect_on(node, chosen, patient, &own));
    refused(own, client);
    rpcrdma_client_free(client);
    rpcrdma_client_free(own);
    OK(rpcrdma_server_drain(server, PATIENCE_MS));
    rpcrdma_server_free(server);
    rpcrdma_node_free(node);
    polled(address);
    CHECK(state.connected == 5 && state.disconnected == 5);
    CHECK(state.closed[RPCRDMA_CLOSED_PEER] > 0);
    once(address);
    CHECK(state.connected == 7 && state.disconnected == 7);
    cores(address);
    rpcrdma_options_free(patient);
    puts("kept");
}
