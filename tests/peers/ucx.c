/* Round trips of UCX active messages (ucp_am_send_nbx) between two processes. */
#include "common.h"

#include <ucp/api/ucp.h>

#define ACTIVE_MESSAGE 1

typedef struct {
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    message_t received;
    int is_there;
} peer_t;

static void check(ucs_status_t status, const char *what)
{
    if (status != UCS_OK)
        fail(what, ucs_status_string(status));
}

static ucs_status_t on_message(void *argument, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *parameters)
{
    (void)header;
    (void)parameters;
    peer_t *peer = argument;
    if (header_length != 0 || length != sizeof(peer->received))
        fail("active message", "has another length");
    memcpy(&peer->received, data, sizeof(peer->received));
    peer->is_there = 1;
    return UCS_OK;
}

static void wait_for(peer_t *peer, ucs_status_ptr_t request)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        fail("request", ucs_status_string(UCS_PTR_STATUS(request)));
    ucs_status_t status;
    do {
        ucp_worker_progress(peer->worker);
        status = ucp_request_check_status(request);
    } while (status == UCS_INPROGRESS);
    ucp_request_free(request);
    check(status, "request");
}

static inline void send_message(peer_t *peer, const message_t *message)
{
    static const ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    wait_for(peer, ucp_am_send_nbx(peer->endpoint, ACTIVE_MESSAGE, NULL, 0, message, sizeof(*message), &parameters));
}

static inline void receive_message(peer_t *peer)
{
    while (!peer->is_there)
        ucp_worker_progress(peer->worker);
    peer->is_there = 0;
}

static void round_trip(void *context, const message_t *message, message_t *answer)
{
    peer_t *peer = context;
    send_message(peer, message);
    receive_message(peer);
    *answer = peer->received;
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        printf("%s\n", ucp_get_version_string());
        return 0;
    }
    side_t side = start(count, arguments);
    ucp_config_t *configuration;
    check(ucp_config_read(NULL, NULL, &configuration), "ucp_config_read");
    ucp_params_t parameters = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM,
    };
    ucp_context_h context;
    check(ucp_init(&parameters, configuration, &context), "ucp_init");
    ucp_config_release(configuration);

    peer_t peer = {0};
    ucp_worker_params_t worker_parameters = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    check(ucp_worker_create(context, &worker_parameters, &peer.worker), "ucp_worker_create");
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = ACTIVE_MESSAGE,
        .cb = on_message,
        .arg = &peer,
    };
    check(ucp_worker_set_am_recv_handler(peer.worker, &handler), "ucp_worker_set_am_recv_handler");

    ucp_address_t *address;
    size_t length, their_length;
    check(ucp_worker_get_address(peer.worker, &address, &length), "ucp_worker_get_address");
    ucp_address_t *theirs = exchange(&side, address, length, &their_length);
    ucp_worker_release_address(peer.worker, address);
    ucp_ep_params_t endpoint_parameters = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = theirs,
    };
    check(ucp_ep_create(peer.worker, &endpoint_parameters, &peer.endpoint), "ucp_ep_create");
    free(theirs);
    meet(&side);

    message_t message;
    if (side.is_ping) {
        measure(&side, round_trip, &peer);
        fill_stop(&message);
        send_message(&peer, &message);
    } else {
        do {
            receive_message(&peer);
            message = peer.received;
            if (!is_stop(&message))
                send_message(&peer, &message);
        } while (!is_stop(&message));
    }

    ucp_request_param_t close_parameters = {0};
    wait_for(&peer, ucp_ep_close_nbx(peer.endpoint, &close_parameters));
    meet(&side);
    ucp_worker_destroy(peer.worker);
    ucp_cleanup(context);
    return finish(&side);
}
