/* A server and a client on one thread, which polls the core itself, as a reactor of SPDK would in a poller of its own:
 *
 *   cc -o reactor reactor.c $(pkg-config --cflags --libs rpcrdma)
 */
#include <rpcrdma.h>
#include <stdio.h>
#include <stdlib.h>

#define PROGRAM 0x20000004
enum { CALLS = 10000, DEPTH = 16 };
static const rpcrdma_procedure DOUBLE = {PROGRAM, 1, 1};

static int check(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", rpcrdma_error_name(result), rpcrdma_error_text());
        exit(1);
    }
    return result;
}

/* Runs in rpcrdma_core_poll(). */
static int serve(void *user, rpcrdma_call *call)
{
    uint32_t number;
    (void)user;
    int error = rpcrdma_get_u32(call, &number);
    return error ? error : rpcrdma_put_u32(call, number * 2);
}

static void submit(rpcrdma_poller *poller, rpcrdma_call *call, uint32_t number)
{
    check(rpcrdma_put_u32(call, number));
    check(rpcrdma_poller_submit(poller, call, number));
}

int main(int count, char **words)
{
    const char *address = count > 1 ? words[1] : "shm:reactor";
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 1, .call = serve};
    rpcrdma_options *options = rpcrdma_options_new();
    rpcrdma_node *node;
    rpcrdma_core *core;
    rpcrdma_client *client;
    rpcrdma_poller *poller;
    rpcrdma_completion ended[DEPTH];
    uint32_t next = 0, done = 0;

    check(rpcrdma_options_set(options, "polled", "yes"));
    /* Nobody would poll while this thread waited. */
    check(rpcrdma_options_set(options, "wait", "no"));
    check(rpcrdma_node_start(address, &service, 1, options, &node));
    check(rpcrdma_node_take_core(node, 0, &core));
    check(rpcrdma_node_listen(node, address, NULL, NULL, 0));
    check(rpcrdma_client_connect_on(node, address, options, &client));
    check(rpcrdma_poller_new(client, DEPTH, &poller));
    for (; next < DEPTH; next++) {
        rpcrdma_call *call;
        check(rpcrdma_poller_call(poller, DOUBLE, &call));
        submit(poller, call, next);
    }
    while (done < CALLS) {
        check(rpcrdma_core_poll(core));
        int some = check(rpcrdma_poller_complete(poller, ended, DEPTH));
        for (int i = 0; i < some; i++, done++) {
            uint32_t doubled;
            check(ended[i].error);
            check(rpcrdma_get_u32(ended[i].call, &doubled));
            if (doubled != ended[i].tag * 2)
                abort();
            check(rpcrdma_poller_again(poller, ended[i].call, DOUBLE));
            next < CALLS ? submit(poller, ended[i].call, next++) : rpcrdma_call_free(ended[i].call);
        }
    }
    printf("%d calls on one thread\n", CALLS);
    rpcrdma_poller_free(poller), rpcrdma_client_free(client), rpcrdma_options_free(options);
    rpcrdma_node_free(node), rpcrdma_core_free(core);
}
