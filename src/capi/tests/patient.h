/* Included before the examples by library.rs: clients have as long to connect, and calls wait as long for a connection, as
 * CONNECT_TIMEOUT_MS says, if it is set; and no end loses a connection or a call because another was not run for seconds. The
 * defaults are too short for valgrind on a machine with other work. */
#include <rpcrdma.h>
#include <stdlib.h>

static inline rpcrdma_options *patient_options(void)
{
    rpcrdma_options *options = rpcrdma_options_new();
    const char *timeout_ms = getenv("CONNECT_TIMEOUT_MS");
    if (timeout_ms) {
        rpcrdma_options_set(options, "connect_timeout_ms", timeout_ms);
        rpcrdma_options_set(options, "patience_ms", timeout_ms);
    }
    rpcrdma_options_set(options, "call_timeout_ms", "300000");
    rpcrdma_options_set(options, "keep_alive_silent_ticks_max", "255");
    rpcrdma_options_set(options, "stall_timeout_ms", "600000");
    return options;
}

static inline int patient_connect(const char *address, const rpcrdma_options *given, rpcrdma_client **client)
{
    rpcrdma_options *options = given ? NULL : patient_options();
    int error = rpcrdma_client_connect(address, given ? given : options, client);
    rpcrdma_options_free(options);
    return error;
}

static inline int patient_start(const char *address, const rpcrdma_service *services, size_t count,
                                const rpcrdma_options *given, rpcrdma_server **server)
{
    rpcrdma_options *options = given ? NULL : patient_options();
    int error = rpcrdma_server_start(address, services, count, given ? given : options, server);
    rpcrdma_options_free(options);
    return error;
}

#define rpcrdma_options_new patient_options
#define rpcrdma_client_connect patient_connect
#define rpcrdma_server_start patient_start
