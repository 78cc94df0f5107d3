/* A store of 4 KiB blocks and its client, with data in registered memory both ways:
 *
 *   cc -o block_store block_store.c $(pkg-config --cflags --libs rpcrdma)
 */
#include <rpcrdma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM 0x20000002
enum { BLOCKS = 1000, BLOCK_BYTES = 4096 };
static const rpcrdma_procedure WRITE = {PROGRAM, 1, 1}, READ = {PROGRAM, 1, 2};

static void check(int result)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", rpcrdma_error_name(result), rpcrdma_error_text());
        exit(1);
    }
}

/* The service of a node with one core: nothing else touches the blocks. */
static int serve(void *blocks, rpcrdma_call *call)
{
    uint64_t number;
    const void *data;
    size_t bytes;
    if (rpcrdma_get_u64(call, &number) || number >= BLOCKS)
        return RPCRDMA_E_GARBAGE_ARGS;
    char *block = (char *)blocks + number * BLOCK_BYTES;
    if (rpcrdma_call_number(call) == READ.number)
        return rpcrdma_put_bulk_copy(call, block, BLOCK_BYTES);
    /* The data is where RDMA put it. rpcrdma_take_bulk() would keep that memory without a copy. */
    if (rpcrdma_get_bulk(call, &data, &bytes) || bytes != BLOCK_BYTES)
        return RPCRDMA_E_GARBAGE_ARGS;
    memcpy(block, data, bytes);
    return RPCRDMA_OK;
}

int main(int count, char **words)
{
    const char *address = count > 1 ? words[1] : "shm:blocks";
    rpcrdma_server *server;
    rpcrdma_client *client;
    rpcrdma_buffer *buffer;
    rpcrdma_call *call;
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 1, .call = serve};
    char data[BLOCK_BYTES];
    const void *came;
    size_t bytes;

    service.user = calloc(BLOCKS, BLOCK_BYTES);
    check(rpcrdma_server_start(address, &service, 1, NULL, &server));
    check(rpcrdma_client_connect(address, NULL, &client));
    check(rpcrdma_client_call(client, WRITE, &call));
    for (uint64_t number = 0; number < BLOCKS; number++) {
        memset(data, (int)(number % 251), sizeof data);
        /* Registered memory: it is sent from where it is. rpcrdma_put_bulk_copy() sends from any memory. */
        check(rpcrdma_client_buffer(client, sizeof data, 10000, &buffer));
        check(rpcrdma_buffer_write(buffer, data, sizeof data));
        check(rpcrdma_client_again(client, call, WRITE));
        check(rpcrdma_put_u64(call, number));
        check(rpcrdma_put_bulk(call, buffer));
        check(rpcrdma_call_run(call));

        check(rpcrdma_client_again(client, call, READ));
        check(rpcrdma_put_u64(call, number));
        check(rpcrdma_call_expect_bulk(call, sizeof data));
        check(rpcrdma_call_run(call));
        check(rpcrdma_get_bulk(call, &came, &bytes));
        if (bytes != sizeof data || memcmp(came, data, bytes))
            abort();
    }
    printf("%d blocks are what was written\n", BLOCKS);
    rpcrdma_call_free(call);
    rpcrdma_client_free(client);
    rpcrdma_server_free(server);
    free(service.user);
}
