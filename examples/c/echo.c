/* The smallest server and client in C: `echo`, or each by itself with `echo serve ADDRESS` and
 * `echo call ADDRESS TEXT`, where ADDRESS is shm:NAME or rdma:HOST:PORT.
 *
 *   cc -o echo echo.c $(pkg-config --cflags --libs rpcrdma)
 */
#include <rpcrdma.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM 0x20000001
static const rpcrdma_procedure ECHO = {PROGRAM, 1, 1};

/* Answers a call. It runs on the library's thread, and must not wait there. */
static int answer(void *user, rpcrdma_call *call)
{
    const void *text;
    size_t bytes;
    (void)user; /* That of the service. */
    if (rpcrdma_call_number(call) != ECHO.number)
        return RPCRDMA_E_PROCEDURE_UNAVAILABLE;
    int error = rpcrdma_get_opaque(call, &text, &bytes);
    return error ? error : rpcrdma_put_opaque(call, text, bytes);
}

static int serve(const char *address, rpcrdma_server **server)
{
    rpcrdma_service service = {.program = PROGRAM, .version_low = 1, .version_high = 1, .call = answer};
    rpcrdma_options *options = rpcrdma_options_new();
    /* Any client that reaches the RDMA device; docs/security.md has how clients prove a key. */
    rpcrdma_options_set(options, "authentication", "none");
    int error = rpcrdma_server_start(address, &service, 1, options, server);
    rpcrdma_options_free(options);
    return error;
}

static int call(const char *address, const char *text)
{
    rpcrdma_client *client = NULL;
    rpcrdma_call *call = NULL;
    const void *results;
    size_t bytes;
    int error = rpcrdma_client_connect(address, NULL, &client);
    if (!error)
        error = rpcrdma_client_call(client, ECHO, &call);
    if (!error) {
        rpcrdma_put_opaque(call, text, strlen(text));
        error = rpcrdma_call_run(call);
    }
    if (!error)
        error = rpcrdma_get_opaque(call, &results, &bytes);
    if (!error)
        printf("%.*s\n", (int)bytes, (const char *)results);
    rpcrdma_call_free(call);
    rpcrdma_client_free(client);
    return error;
}

int main(int count, char **words)
{
    rpcrdma_server *server = NULL;
    int error;
    if (count == 4 && !strcmp(words[1], "call")) {
        error = call(words[2], words[3]);
    } else {
        int stays = count == 3 && !strcmp(words[1], "serve");
        error = serve(stays ? words[2] : "shm:echo", &server);
        if (!error && stays) {
            printf("listening on %s\n", rpcrdma_server_address(server));
            fflush(stdout);
            pause();
        } else if (!error) {
            error = call("shm:echo", "hello");
        }
    }
    if (error)
        fprintf(stderr, "%s: %s\n", rpcrdma_error_name(error), rpcrdma_error_text());
    rpcrdma_server_free(server);
    return error != 0;
}
