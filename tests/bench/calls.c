/* The calls of against_c.rs, in C: prints the p50 of a null call and of an echo of 4 KiB, in nanoseconds. */
#include <rpcrdma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROGRAM 0x20000001
enum { CALLS = 20000, BYTES = 4096 };

static void ok(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", rpcrdma_error_name(result), rpcrdma_error_text());
        exit(1);
    }
}

static int answer(void *user, rpcrdma_call *call)
{
    const void *data;
    size_t bytes;
    (void)user;
    int error = rpcrdma_get_opaque(call, &data, &bytes);
    return error ? error : rpcrdma_put_opaque(call, data, bytes);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    int64_t one = *(const int64_t *)left, two = *(const int64_t *)right;
    return (one > two) - (one < two);
}

static int64_t p50(rpcrdma_client *client, uint32_t number)
{
    static int64_t taken[CALLS];
    static char sent[BYTES];
    rpcrdma_procedure procedure = {PROGRAM, 1, number};
    rpcrdma_call *call;
    const void *data;
    size_t bytes;
    ok(rpcrdma_client_call(client, procedure, &call));
    for (int i = 0; i < CALLS; i++) {
        int64_t begin = now();
        ok(rpcrdma_client_again(client, call, procedure));
        if (number) {
            ok(rpcrdma_put_opaque(call, sent, BYTES));
            ok(rpcrdma_call_results_max(call, BYTES + 4));
        }
        ok(rpcrdma_call_run(call));
        if (number) {
            ok(rpcrdma_get_opaque(call, &data, &bytes));
            if (bytes != BYTES)
                abort();
        }
        taken[i] = now() - begin;
    }
    rpcrdma_call_free(call);
    qsort(taken, CALLS, sizeof *taken, compare);
    return taken[CALLS / 2];
}

int main(int count, char **words)
{
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 1, .call = answer};
    rpcrdma_options *options = rpcrdma_options_new();
    rpcrdma_server *server;
    rpcrdma_client *client;
    rpcrdma_node *node;
    if (count != 2)
        return 2;
    ok(rpcrdma_options_set(options, "idle", "pause"));
    ok(rpcrdma_options_set(options, "connections_max", "4"));
    ok(rpcrdma_server_start(words[1], &service, 1, options, &server));
    ok(rpcrdma_server_node(server, &node));
    ok(rpcrdma_client_connect_on(node, words[1], options, &client));
    int64_t null = p50(client, 0), echo = p50(client, 1);
    printf("%lld %lld\n", (long long)null, (long long)echo);
    rpcrdma_client_free(client), rpcrdma_node_free(node), rpcrdma_server_free(server);
    rpcrdma_options_free(options);
}
