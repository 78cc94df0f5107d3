// A software RDMA device that behaves as a NIC does with its library in rdma-core: as-card preloads this into programs of
// the project. They look rdma-core's functions up with dlvsym, so that a lookup can be answered with a function of ours,
// and the operations of each context are replaced when the devices are listed. Nothing of the programs is built for it.
//
// It takes away, and invents nothing: limits are the smaller of both devices'. The device keeps its vendor's number, by which
// the project knows the peculiarities of soft-RoCE and software iWARP.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What a window of the card does.
enum windows {
    WORK,
    // The driver does not report type 2B.
    UNREPORTED,
    // The driver reports it; the library allocates none.
    NOT_ALLOCATED,
};

struct card {
    const char *name;
    // By these the project finds its profile.
    const char *driver, *part;
    enum windows windows;
    // Whether Send With Invalidate is reported and taken.
    bool invalidates;
    // Of a queue pair. libibverbs has one limit of segments, the smaller of those of Sends and Receives.
    int inline_bytes, segments, read_segments, reads, works;
    // Of a shared receive queue; 0 if there are none.
    int shared_segments;
};

// From the libraries in rdma-core 65 and the drivers of Linux 7.2; where they ask the firmware, from the profiles
// (tuning/profiles). The iWARP cards, cxgb4, erdma and irdma-x722, need software iWARP.
static const struct card cards[] = {
    // name, driver, part, windows, invalidates, inline, segments, of Reads, Reads, works, of shared queues
    {"mlx4", "mlx4_core", "15b3:1003", WORK, true, 512, 32, 30, 16, 16351, 31},
    {"mlx5", "mlx5_core", "15b3:101d", WORK, true, 512, 30, 30, 16, 32768, 31},
    {"mlx5-connectx7", "mlx5_core", "15b3:1021", WORK, true, 512, 30, 30, 16, 32768, 31},
    // Static work queue entries.
    {"bnxt_re", "bnxt_en", "14e4:16d7", NOT_ALLOCATED, true, 96, 6, 6, 126, 32768, 6},
    {"hns", "hns3", "19e5:a222", NOT_ALLOCATED, true, 32, 7, 7, 128, 32768, 7},
    {"ionic", "ionic", "1dd8:1002", WORK, true, 480, 8, 8, 16, 65535, 0},
    // E810, which is generation 2. Windows of type 2B and shared receive queues came with generation 3.
    {"irdma", "ice", "8086:1592", UNREPORTED, true, 101, 13, 13, 8, 8127, 0},
    {"irdma-gen3", "idpf", "8086:1452", WORK, true, 216, 14, 14, 8, 8127, 14},
    {"irdma-x722", "i40e", "8086:37d0", UNREPORTED, true, 48, 3, 1, 127, 2048, 0},
    {"mana", "mana", "1414:00ba", UNREPORTED, false, 0, 15, 15, 16, 16384, 0},
    {"qedr", "qede", "1077:8070", UNREPORTED, true, 256, 4, 4, 32, 32767, 4},
    // T5; T6 has shared receive queues.
    {"cxgb4", "cxgb4", "1425:5411", UNREPORTED, true, 280, 4, 1, 32, 8192, 0},
    // Its Sends have six segments and its Receives one.
    {"erdma", "erdma", "1ded:107f", UNREPORTED, true, 96, 1, 1, 128, 8192, 0},
};

static const struct card *card;

__attribute__((constructor)) static void choose(void) {
    const char *wanted = getenv("AS_CARD");
    for (size_t at = 0; at < sizeof cards / sizeof *cards; at++)
        if (wanted && strcmp(cards[at].name, wanted) == 0) card = &cards[at];
    if (card) return;
    fprintf(stderr, "as-card: there is no card %s; there are:", wanted ? wanted : "(AS_CARD is not set)");
    for (size_t at = 0; at < sizeof cards / sizeof *cards; at++) fprintf(stderr, " %s", cards[at].name);
    fprintf(stderr, "\n");
    _exit(2);
}

// --- The operations of a context -----------------------------------------------------------------

// The operations that were replaced, of each context.
static struct {
    struct ibv_context *context;
    struct ibv_context_ops ops;
} replaced[8];

static struct ibv_context_ops *ops_of(struct ibv_context *context) {
    size_t at = 0;
    while (replaced[at].context != context) at++;
    return &replaced[at].ops;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    if (card->windows == WORK) return ops_of(pd->context)->alloc_mw(pd, type);
    errno = EOPNOTSUPP;
    return NULL;
}

static bool takes(const struct ibv_send_wr *work) {
    size_t bytes = 0;
    for (int at = 0; at < work->num_sge; at++) bytes += work->sg_list[at].length;
    if (work->send_flags & IBV_SEND_INLINE) return bytes <= (size_t)card->inline_bytes;
    switch (work->opcode) {
        case IBV_WR_BIND_MW:
        case IBV_WR_LOCAL_INV:
            return card->windows == WORK;
        case IBV_WR_SEND_WITH_INV:
            return card->invalidates && work->num_sge <= card->segments;
        case IBV_WR_RDMA_READ:
            return work->num_sge <= card->read_segments;
        default:
            return work->num_sge <= card->segments;
    }
}

// As the libraries do, it posts what is before the first work request that it refuses.
static int post_send(struct ibv_qp *pair, struct ibv_send_wr *first, struct ibv_send_wr **bad) {
    int (*post)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **) = ops_of(pair->context)->post_send;
    struct ibv_send_wr *last = NULL, *work = first;
    while (work && takes(work)) last = work, work = work->next;
    if (!work) return post(pair, first, bad);
    if (last) {
        last->next = NULL;
        int status = post(pair, first, bad);
        last->next = work;
        if (status) return status;
    }
    *bad = work;
    return EINVAL;
}

static struct ibv_context **(*real_get_devices)(int *);
static struct ibv_context **get_devices(int *count) {
    struct ibv_context **list = real_get_devices(count);
    for (int at = 0; list && list[at]; at++) {
        size_t place = 0;
        while (replaced[place].context && replaced[place].context != list[at]) place++;
        if (replaced[place].context) continue;
        replaced[place].context = list[at];
        replaced[place].ops = list[at]->ops;
        list[at]->ops.alloc_mw = alloc_mw;
        list[at]->ops.post_send = post_send;
    }
    return list;
}

// --- Functions of libibverbs ---------------------------------------------------------------------

static void cut(int *value, int limit) {
    if (*value > limit) *value = limit;
}

static int (*real_query_device)(struct ibv_context *, struct ibv_device_attr *);
static int query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    int status = real_query_device(context, attributes);
    if (status) return status;
    attributes->device_cap_flags &= ~(IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS);
    if (card->windows != UNREPORTED) attributes->device_cap_flags |= IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    if (card->invalidates) attributes->device_cap_flags |= IBV_DEVICE_MEM_MGT_EXTENSIONS;
    cut(&attributes->max_sge, card->segments);
    cut(&attributes->max_sge_rd, card->read_segments);
    cut(&attributes->max_qp_rd_atom, card->reads);
    cut(&attributes->max_qp_init_rd_atom, card->reads);
    cut(&attributes->max_qp_wr, card->works);
    cut(&attributes->max_srq_sge, card->shared_segments);
    if (!card->shared_segments) attributes->max_srq = attributes->max_srq_wr = 0;
    return 0;
}

static struct ibv_qp *(*real_create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    const struct ibv_qp_cap *cap = &attributes->cap;
    bool fits = cap->max_send_sge <= (unsigned)card->segments && cap->max_send_wr <= (unsigned)card->works &&
                cap->max_inline_data <= (unsigned)card->inline_bytes;
    if (!attributes->srq)
        fits = fits && cap->max_recv_sge <= (unsigned)card->segments && cap->max_recv_wr <= (unsigned)card->works;
    if (fits) return real_create_qp(pd, attributes);
    errno = EINVAL;
    return NULL;
}

static struct ibv_srq *(*real_create_srq)(struct ibv_pd *, struct ibv_srq_init_attr *);
static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes) {
    if (card->shared_segments && attributes->attr.max_sge <= (unsigned)card->shared_segments)
        return real_create_srq(pd, attributes);
    errno = card->shared_segments ? EINVAL : EOPNOTSUPP;
    return NULL;
}

static const struct {
    const char *name;
    void *ours;
    void **real;
} functions[] = {
    {"rdma_get_devices", get_devices, (void **)&real_get_devices},
    {"ibv_query_device", query_device, (void **)&real_query_device},
    {"ibv_create_qp", create_qp, (void **)&real_create_qp},
    {"ibv_create_srq", create_srq, (void **)&real_create_srq},
};

void *dlvsym(void *library, const char *name, const char *version) {
    void *(*real)(void *, const char *, const char *) = dlsym(RTLD_NEXT, "dlvsym");
    void *found = real(library, name, version);
    for (size_t at = 0; found && at < sizeof functions / sizeof *functions; at++)
        if (strcmp(functions[at].name, name) == 0) {
            *functions[at].real = found;
            return functions[at].ours;
        }
    return found;
}

// A program that has the libraries and looked nothing up used them as they are.
__attribute__((destructor)) static void require_lookups(void) {
    if (real_get_devices || !dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD)) return;
    fprintf(stderr, "as-card: this program links rdma-core, and its device was no card\n");
    _exit(2);
}

// --- What the kernel says of the PCI function ----------------------------------------------------

// The part of the path behind the device's folder, or null.
static const char *of_function(const char *path) {
    static const char class[] = "/sys/class/infiniband/";
    if (strncmp(path, class, sizeof class - 1) != 0) return NULL;
    const char *rest = strchr(path + sizeof class - 1, '/');
    return rest && strncmp(rest, "/device/", 8) == 0 ? rest + 8 : NULL;
}

ssize_t readlink(const char *path, char *to, size_t size) {
    ssize_t (*real)(const char *, char *, size_t) = dlsym(RTLD_NEXT, "readlink");
    const char *file = of_function(path);
    if (!file || strcmp(file, "driver") != 0) return real(path, to, size);
    int length = snprintf(to, size, "../drivers/%s", card->driver);
    return (size_t)length < size ? length : (ssize_t)size;
}

int open64(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    const char *file = of_function(path);
    bool vendor = file && strcmp(file, "vendor") == 0;
    if (!vendor && (!file || strcmp(file, "device") != 0)) return real(path, flags, mode);
    int made = memfd_create("as-card", MFD_CLOEXEC);
    dprintf(made, "0x%.4s\n", card->part + (vendor ? 0 : 5));
    lseek(made, 0, SEEK_SET);
    return made;
}
