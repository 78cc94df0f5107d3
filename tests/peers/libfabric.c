/* Round trips of messages (fi_inject, fi_recv) over the shm provider of libfabric, between two processes. */
#include "common.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

typedef struct {
    struct fid_ep *endpoint;
    struct fid_cq *received;
    struct fid_cq *sent;
    fi_addr_t address;
    message_t buffer;
} peer_t;

static void check(ssize_t status, const char *what)
{
    if (status < 0)
        fail(what, fi_strerror((int)-status));
}

static inline void post_receive(peer_t *peer)
{
    ssize_t status;
    do
        status = fi_recv(peer->endpoint, &peer->buffer, sizeof(peer->buffer), NULL, FI_ADDR_UNSPEC, NULL);
    while (status == -FI_EAGAIN);
    check(status, "fi_recv");
}

static inline void send_message(peer_t *peer, const message_t *message)
{
    ssize_t status;
    while ((status = fi_inject(peer->endpoint, message, sizeof(*message), peer->address)) == -FI_EAGAIN)
        (void)fi_cq_read(peer->sent, NULL, 0);
    check(status, "fi_inject");
}

static inline void receive_message(peer_t *peer, message_t *message)
{
    struct fi_cq_msg_entry entry;
    ssize_t status;
    while ((status = fi_cq_read(peer->received, &entry, 1)) == -FI_EAGAIN)
        ;
    check(status, "fi_cq_read");
    if (entry.len != sizeof(*message))
        fail("message", "has another length");
    *message = peer->buffer;
    post_receive(peer);
}

static void round_trip(void *context, const message_t *message, message_t *answer)
{
    send_message(context, message);
    receive_message(context, answer);
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        uint32_t version = fi_version();
        printf("%u.%u\n", FI_MAJOR(version), FI_MINOR(version));
        return 0;
    }
    side_t side = start(count, arguments);
    struct fi_info *hints = fi_allocinfo(), *info;
    if (hints == NULL)
        fail("fi_allocinfo", "no memory");
    hints->caps = FI_MSG;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("shm");
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    check(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info), "fi_getinfo");
    if (info->tx_attr->inject_size < sizeof(message_t))
        fail("fi_inject", "takes fewer bytes than a message has");

    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *addresses;
    peer_t peer = {0};
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE, .size = 128};
    check(fi_cq_open(domain, &queue, &peer.received, NULL), "fi_cq_open");
    check(fi_cq_open(domain, &queue, &peer.sent, NULL), "fi_cq_open");
    struct fi_av_attr table = {.type = FI_AV_TABLE, .count = 1};
    check(fi_av_open(domain, &table, &addresses, NULL), "fi_av_open");
    check(fi_endpoint(domain, info, &peer.endpoint, NULL), "fi_endpoint");
    check(fi_ep_bind(peer.endpoint, &addresses->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(peer.endpoint, &peer.received->fid, FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(peer.endpoint, &peer.sent->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION), "fi_ep_bind");
    check(fi_enable(peer.endpoint), "fi_enable");

    char name[512];
    size_t length = sizeof(name), their_length;
    check(fi_getname(&peer.endpoint->fid, name, &length), "fi_getname");
    void *theirs = exchange(&side, name, length, &their_length);
    if (fi_av_insert(addresses, theirs, 1, &peer.address, 0, NULL) != 1)
        fail("fi_av_insert", "does not take the address of the other process");
    free(theirs);
    post_receive(&peer);
    meet(&side);

    message_t message;
    if (side.is_ping) {
        measure(&side, round_trip, &peer);
        fill_stop(&message);
        send_message(&peer, &message);
    } else {
        do {
            receive_message(&peer, &message);
            if (!is_stop(&message))
                send_message(&peer, &message);
        } while (!is_stop(&message));
    }

    meet(&side);
    fi_close(&peer.endpoint->fid);
    fi_close(&addresses->fid);
    fi_close(&peer.sent->fid);
    fi_close(&peer.received->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return finish(&side);
}
