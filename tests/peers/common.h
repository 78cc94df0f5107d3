/*
 * What the C programs of the peers share: two processes, cores, clock, payload, result.
 *
 * A program is called as: PROGRAM CORE_PING CORE_PONG WARM_UP_MS MEASURE_MS
 * It prints one line: p50_ns=N round_trips=N elapsed_ns=N
 */
#ifndef PEERS_COMMON_H
#define PEERS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#define WORDS 8
#define BUCKETS (1u << 24)

typedef struct {
    uint64_t words[WORDS];
} message_t;

static inline __attribute__((noreturn)) void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

static inline uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The cheapest clock: its unit is found by comparing with now_ns over the whole run. */
static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return now_ns();
#endif
}

static inline void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        fail("sched_setaffinity", strerror(errno));
}

/* Other bytes in each message, none of them zero. */
static inline void fill(message_t *message, uint64_t serial)
{
    for (unsigned i = 0; i < WORDS; i++)
        message->words[i] = (serial * 0x9e3779b97f4a7c15u + i) | 0x0101010101010101u;
}

/* A message that ends the other side. */
static inline void fill_stop(message_t *message)
{
    memset(message, 0, sizeof(*message));
}

static inline int is_stop(const message_t *message)
{
    return message->words[0] == 0;
}

typedef struct {
    int is_ping;
    int core;
    uint64_t warm_up_ns;
    uint64_t measure_ns;
    int other; /* a socket to the other process, for setting up */
    pid_t child;
} side_t;

/* Starts the second process. Both return, each on its own core and with its own side. */
static inline side_t start(int count, char **arguments)
{
    if (count != 5)
        fail(arguments[0], "usage: CORE_PING CORE_PONG WARM_UP_MS MEASURE_MS");
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
        fail("socketpair", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        fail("fork", strerror(errno));
    if (child == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        fail("prctl", strerror(errno));
    side_t side = {
        .is_ping = child != 0,
        .core = atoi(arguments[child != 0 ? 1 : 2]),
        .warm_up_ns = strtoull(arguments[3], NULL, 10) * 1000000u,
        .measure_ns = strtoull(arguments[4], NULL, 10) * 1000000u,
        .other = sockets[child != 0 ? 0 : 1],
        .child = child,
    };
    close(sockets[child != 0 ? 1 : 0]);
    pin(side.core);
    return side;
}

static inline void tell(int socket, const void *bytes, size_t length)
{
    if (send(socket, bytes, length, MSG_NOSIGNAL) != (ssize_t)length)
        fail("the other process", "does not take what is needed to connect");
}

static inline void hear(int socket, void *bytes, size_t length)
{
    if (recv(socket, bytes, length, MSG_WAITALL) != (ssize_t)length)
        fail("the other process", "ended before it was connected");
}

/* Sends a block of bytes with its length, and gets that of the other side. */
static inline void *exchange(const side_t *side, const void *mine, size_t length, size_t *their_length)
{
    uint64_t size = length;
    tell(side->other, &size, sizeof(size));
    tell(side->other, mine, length);
    hear(side->other, &size, sizeof(size));
    if (size == 0 || size > 65536)
        fail("the other process", "sent an address of an odd length");
    void *theirs = malloc(size);
    if (theirs == NULL)
        fail("malloc", "no memory");
    hear(side->other, theirs, size);
    *their_length = size;
    return theirs;
}

/* Both come here before one goes on. */
static inline void meet(const side_t *side)
{
    char byte = 1;
    tell(side->other, &byte, 1);
    hear(side->other, &byte, 1);
}

/* One round trip: sends the message, and polls until the answer is in ANSWER. */
typedef void round_trip_t(void *context, const message_t *message, message_t *answer);

/* Measures round trips until the time is over, and prints the result. */
static inline __attribute__((always_inline)) void measure(const side_t *side, round_trip_t *round_trip,
                                                          void *context)
{
    uint32_t *histogram = calloc(BUCKETS, sizeof(*histogram));
    if (histogram == NULL)
        fail("calloc", "no memory");
    uint64_t serial = 0;
    message_t message, answer;
    uint64_t warm_until = now_ns() + side->warm_up_ns;
    uint64_t first_ns = 0, last_ns = 0, first_tick = 0, last_tick = 0, count = 0;
    for (int measured = 0; measured < 2; measured++) {
        uint64_t until = measured ? now_ns() + side->measure_ns : warm_until;
        first_ns = now_ns();
        first_tick = ticks();
        last_tick = first_tick;
        count = 0;
        /* The clock of the system is read seldom. */
        do {
            for (int i = 0; i < 64; i++) {
                fill(&message, ++serial);
                round_trip(context, &message, &answer);
                if (memcmp(&message, &answer, sizeof(message)) != 0)
                    fail("payload", "did not come back as it was sent");
                uint64_t tick = ticks();
                uint64_t took = tick - last_tick;
                last_tick = tick;
                if (measured)
                    histogram[took < BUCKETS ? took : BUCKETS - 1]++;
            }
            count += 64;
            last_ns = now_ns();
        } while (last_ns < until);
    }
    uint64_t seen = 0, median = 0;
    while (seen <= count / 2)
        seen += histogram[median++];
    double ns_per_tick = (double)(last_ns - first_ns) / (double)(last_tick - first_tick);
    printf("p50_ns=%.0f round_trips=%llu elapsed_ns=%llu\n", (double)(median - 1) * ns_per_tick,
           (unsigned long long)count, (unsigned long long)(last_ns - first_ns));
    free(histogram);
}

/* Waits for the second process, whose failure is ours. */
static inline int finish(const side_t *side)
{
    if (!side->is_ping)
        return 0;
    int status = 0;
    if (waitpid(side->child, &status, 0) != side->child || status != 0)
        fail("the second process", "failed");
    return 0;
}

#endif
