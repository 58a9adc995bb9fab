/* Ranks of one host through shared memory.
 *
 * A small operation needs one barrier: each rank writes its numbers into its own cell, and after the barrier
 * reads all cells. Two sets of cells alternate, so no rank overwrites a cell that another one still reads.
 * A large operation goes in chunks with two barriers each:
 *
 *   each rank writes its chunk | barrier | each sums its slice of all chunks, in the order of ranks | barrier |
 *   each reads the whole sum */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/comm/local.h"

#define OPEN_US (INT64_C(120) * 1000000)
#define WAIT_US (INT64_C(600) * 1000000)
#define STOPPED_US (INT64_C(5) * 1000000)
#define CHUNK_BYTES ((size_t)2 << 20)

enum kind { KIND_REDUCE = 1, KIND_SCATTER, KIND_GATHER, KIND_BROADCAST, KIND_BARRIER };

/* Names a memfd of the process that made it. */
struct id {
    uint8_t nonce[16];
    int32_t pid, fd;
    uint64_t start;
};
_Static_assert(sizeof(struct id) <= PK_COMM_ID_MAX, "an id fits");

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Layout: header; 2 x ranks cells; (ranks + 1) chunks, the last of them for sums. */
static size_t cells_at(void)
{
    return round_up(sizeof(struct local_shared), 4096);
}

static size_t chunks_at(int ranks)
{
    return cells_at() + (size_t)2 * (size_t)ranks * LOCAL_SMALL;
}

static size_t total_bytes(int ranks, size_t chunk)
{
    return chunks_at(ranks) + ((size_t)ranks + 1) * chunk;
}

static char *cell(const struct pk_comm *c, int rank)
{
    return (char *)c->shared + cells_at() +
           ((c->operations & 1) * (size_t)c->ranks + (size_t)rank) * LOCAL_SMALL;
}

static char *chunk(const struct pk_comm *c, int rank)
{
    return (char *)c->shared + chunks_at(c->ranks) + (size_t)rank * c->chunk_bytes;
}

/* ---- opening ---- */

static enum pd_err make_id(void *out, struct pd_why *why)
{
    struct id id = {.pid = (int32_t)getpid()};
    struct local_shared *s;
    char state;
    enum pd_err err = PD_OK;

    if (getrandom(id.nonce, sizeof id.nonce, 0) != (ssize_t)sizeof id.nonce ||
        !local_process(id.pid, &id.start, &state))
        return pd_fail(why, PD_ERR_IO,
                       "cannot make an id for the ranks: /proc or random numbers are missing");
    id.fd = memfd_create("polyd-ranks", MFD_CLOEXEC);
    if (id.fd < 0)
        return pd_fail_errno(why, errno, "cannot make memory for the ranks to share");
    if (ftruncate(id.fd, (off_t)cells_at()))
        err = pd_fail_errno(why, errno, "cannot make memory for the ranks to share");
    s = err == PD_OK ? mmap(NULL, cells_at(), PROT_READ | PROT_WRITE, MAP_SHARED, id.fd, 0) : MAP_FAILED;
    if (err == PD_OK && s == MAP_FAILED)
        err = pd_fail_errno(why, errno, "cannot map the memory of the ranks");
    if (err != PD_OK) {
        close(id.fd);
        return err;
    }
    memcpy(s->nonce, id.nonce, sizeof id.nonce);
    s->magic = LOCAL_MAGIC;
    munmap(s, cells_at());
    memset(out, 0, sizeof(struct id));
    memcpy(out, &id, sizeof id);
    return PD_OK;
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 1000000};

    nanosleep(&t, NULL);
}

/* Maps the header; the first rank lays the memory out, the others wait for it; then maps all of it. */
static enum pd_err attach(struct pk_comm *c, const struct id *id, size_t chunk_bytes, int64_t until_us,
                          struct pd_why *why)
{
    struct local_shared *s;
    char path[64];
    uint32_t none = 0;
    uint64_t start = 0;
    char state;
    int fd;
    enum pd_err err = PD_OK;

    if (!local_process(id->pid, &start, &state) || start != id->start)
        return pd_fail(why, PD_ERR_CLOSED, "the process that created the ranks' shared memory (%d) has ended",
                       (int)id->pid);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)id->pid, (int)id->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open the ranks' memory of process %d", (int)id->pid);
    s = mmap(NULL, cells_at(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) {
        err = pd_fail_errno(why, errno, "cannot map the memory of the ranks");
        goto out;
    }
    if (s->magic != LOCAL_MAGIC || memcmp(s->nonce, id->nonce, sizeof s->nonce) != 0)
        err = pd_fail(why, PD_ERR_STALE, "the id does not refer to shared memory of ranks");
    if (err == PD_OK && atomic_compare_exchange_strong(&s->state, &none, 1)) {
        s->ranks = c->ranks;
        s->chunk_bytes = chunk_bytes;
        s->total_bytes = total_bytes(c->ranks, chunk_bytes);
        if (ftruncate(fd, (off_t)s->total_bytes))
            err = pd_fail_errno(why, errno, "cannot make memory for %d ranks", c->ranks);
        else
            atomic_store(&s->state, 2);
    }
    while (err == PD_OK && atomic_load(&s->state) != 2) {
        if (pd_clock_mono_us() > until_us)
            err = pd_fail(why, PD_ERR_TIMEOUT, "the ranks' shared memory was not initialised in time");
        else
            nap();
    }
    if (err == PD_OK && s->ranks != c->ranks)
        err = pd_fail(why, PD_ERR_INVALID, "this rank expects %d ranks, another rank %d", c->ranks,
                      (int)s->ranks);
    if (err == PD_OK) {
        size_t total = (size_t)s->total_bytes;
        void *all = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (all == MAP_FAILED) {
            err = pd_fail_errno(why, errno, "cannot map the memory of the ranks");
        } else {
            c->shared = all;
            c->mapped = total;
            c->chunk_bytes = (size_t)s->chunk_bytes;
        }
    }
    munmap(s, cells_at());
out:
    close(fd);
    return err;
}

static struct pk_comm *local_close(struct pk_comm *c)
{
    if (c) {
        if (c->shared) {
            atomic_store(&c->shared->rank[c->rank].left, 1);
            munmap(c->shared, c->mapped);
        }
        free(c);
    }
    return NULL;
}

static enum pd_err local_open(const struct pk_comm_host *host, const struct pk_comm_options *o,
                              struct pk_comm **ret, struct pd_why *why)
{
    const int64_t open_us = o->open_us > 0 ? o->open_us : OPEN_US;
    struct local_rank *me;
    struct pk_comm *c;
    struct id id;
    int32_t none = 0;
    char state;
    enum pd_err err;

    if (o->ranks < 1 || o->ranks > PK_COMM_RANKS_MAX || o->rank < 0 || o->rank >= o->ranks)
        return pd_fail(why, PD_ERR_INVALID, "rank %d of %d; the number of ranks must be 1 to %d", o->rank,
                       o->ranks, PK_COMM_RANKS_MAX);
    c = calloc(1, sizeof *c);
    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a rank");
    memcpy(&id, o->id, sizeof id);
    c->host = host;
    c->rank = o->rank;
    c->ranks = o->ranks;
    c->wait_us = o->wait_us > 0 ? o->wait_us : WAIT_US;
    c->stopped_us = o->stopped_us > 0 ? o->stopped_us : STOPPED_US;
    c->spin = sysconf(_SC_NPROCESSORS_ONLN) >= o->ranks;
    err = attach(c, &id, round_up(o->chunk_bytes ? o->chunk_bytes : CHUNK_BYTES, 4096),
                 pd_clock_mono_us() + open_us, why);
    if (err != PD_OK)
        goto out;
    me = &c->shared->rank[c->rank];
    if (atomic_load(&me->pid)) {
        err = pd_fail(why, PD_ERR_EXISTS, "another process is rank %d already", c->rank);
        munmap(c->shared, c->mapped);
        c->shared = NULL; /* the rank belongs to the other process */
        goto out;
    }
    if (!local_process((int32_t)getpid(), &me->start, &state) ||
        !atomic_compare_exchange_strong(&me->pid, &none, (int32_t)getpid())) {
        err = pd_fail(why, PD_ERR_EXISTS,
                      "rank %d cannot register: another process has that rank, or /proc is missing", c->rank);
        goto out;
    }
    err = local_barrier(c, open_us, why);
    if (c->rank == 0 && id.pid == (int32_t)getpid())
        close(id.fd); /* all have mapped it, or never will */
    if (err != PD_OK)
        goto out;
    *ret = c;
    c = NULL; /* moved to the caller */
out:
    local_close(c);
    return err;
}

/* ---- operations ---- */

static enum pd_err take(struct pk_comm *c, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    if (c->host && c->host->download)
        return c->host->download(c->host->user, to, from, bytes, why);
    memcpy(to, from, bytes);
    return PD_OK;
}

static enum pd_err give(struct pk_comm *c, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    if (c->host && c->host->upload)
        return c->host->upload(c->host->user, to, from, bytes, why);
    memcpy(to, from, bytes);
    return PD_OK;
}

/* A rank that fails aborts, so that the others do not wait for it. */
static enum pd_err give_up(struct pk_comm *c, enum pd_err err, struct pd_why *why)
{
    if (err != PD_OK && c->err == PD_OK) {
        c->err = err;
        snprintf(c->why.text, sizeof c->why.text, "%s", why ? why->text : pd_err_name(err));
        local_abort(c, c->why.text);
    }
    return err;
}

/* Starts an operation. Its first barrier (first_barrier) also compares the operations of all ranks. */
static void post(struct pk_comm *c, enum kind kind, enum pk_dtype dtype, int root, int64_t count)
{
    c->operations++;
    c->shared->rank[c->rank].post[c->operations & 1] =
        (struct local_post){.kind = (int32_t)kind, .dtype = (int32_t)dtype, .root = root, .count = count};
}

static enum pd_err first_barrier(struct pk_comm *c, struct pd_why *why)
{
    enum pd_err err = local_barrier(c, c->wait_us, why);
    const struct local_post *mine = &c->shared->rank[c->rank].post[c->operations & 1];

    for (int i = 0; i < c->ranks && err == PD_OK; i++) {
        const struct local_post *p = &c->shared->rank[i].post[c->operations & 1];

        if (p->kind != mine->kind || p->dtype != mine->dtype || p->root != mine->root ||
            p->count != mine->count)
            err = pd_fail(
                why, PD_ERR_INTERNAL,
                "the ranks disagree: rank %d does operation %d of %lld, rank %d operation %d of %lld",
                c->rank, (int)mine->kind, (long long)mine->count, i, (int)p->kind, (long long)p->count);
    }
    return err;
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);                     /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16); /* to nearest, ties to even */
}

/* to[i] = the sum of all ranks' numbers at base + rank x stride bytes, in the order of ranks. */
static void sum(void *to, const char *base, size_t stride, int ranks, int64_t count, enum pk_dtype dtype)
{
    enum { BLOCK = 256 };

    switch (dtype) {
    case PK_F32:
        memcpy(to, base, (size_t)count * sizeof(float));
        for (int r = 1; r < ranks; r++) {
            const float *x = (const float *)(base + (size_t)r * stride);
            float *y = to;

            for (int64_t i = 0; i < count; i++)
                y[i] += x[i];
        }
        break;
    case PK_F64:
        memcpy(to, base, (size_t)count * sizeof(double));
        for (int r = 1; r < ranks; r++) {
            const double *x = (const double *)(base + (size_t)r * stride);
            double *y = to;

            for (int64_t i = 0; i < count; i++)
                y[i] += x[i];
        }
        break;
    case PK_I32:
        memcpy(to, base, (size_t)count * sizeof(int32_t));
        for (int r = 1; r < ranks; r++) {
            const uint32_t *x = (const uint32_t *)(base + (size_t)r * stride); /* wraps */
            uint32_t *y = to;

            for (int64_t i = 0; i < count; i++)
                y[i] += x[i];
        }
        break;
    default:
        for (int64_t at = 0; at < count; at += BLOCK) {
            int64_t n = count - at < BLOCK ? count - at : BLOCK;
            float wide[BLOCK] = {0};

            for (int r = 0; r < ranks; r++) {
                const uint16_t *x = (const uint16_t *)(base + (size_t)r * stride) + at;

                for (int64_t i = 0; i < n; i++)
                    wide[i] += from_bf16(x[i]);
            }
            for (int64_t i = 0; i < n; i++)
                ((uint16_t *)to)[at + i] = to_bf16(wide[i]);
        }
        break;
    }
}

static enum pd_err check_call(struct pk_comm *c, int64_t count, enum pk_dtype dtype, int root,
                              struct pd_why *why)
{
    if (c->err != PD_OK)
        return pd_fail(why, c->err, "%s", c->why.text);
    if (count < 0 || root >= c->ranks || dtype == PK_U8 || (unsigned)dtype >= PK_DTYPE_COUNT)
        return pd_fail(why, PD_ERR_INVALID, "%lld of %s with root %d among %d ranks", (long long)count,
                       pk_dtype_name(dtype), root, c->ranks);
    return PD_OK;
}

/* Numbers of one chunk such that every rank's slice begins on a cache line of its own. */
static int64_t numbers_of(size_t bytes, size_t size)
{
    return (int64_t)(bytes / size);
}

static enum pd_err reduce_small(struct pk_comm *c, const void *from, void *to, int64_t count,
                                enum pk_dtype dtype, int root, struct pd_why *why)
{
    char out[LOCAL_SMALL];
    size_t bytes = (size_t)count * pk_dtype_size(dtype);
    enum pd_err err = take(c, cell(c, c->rank), from, bytes, why);

    if (err == PD_OK)
        err = first_barrier(c, why);
    if (err != PD_OK || (root >= 0 && root != c->rank))
        return err;
    sum(out, cell(c, 0), LOCAL_SMALL, c->ranks, count, dtype);
    return give(c, to, out, bytes, why);
}

static enum pd_err all_reduce(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, int root, void *stream, struct pd_why *why)
{
    enum pd_err err = check_call(c, count, dtype, root, why);
    const size_t size = err == PD_OK ? pk_dtype_size(dtype) : 1;
    const int64_t most = numbers_of(c->chunk_bytes, size), line = (int64_t)(64 / size);
    char *sums = chunk(c, c->ranks);

    (void)stream;
    if (err != PD_OK)
        return err;
    post(c, KIND_REDUCE, dtype, root, count);
    if ((size_t)count * size <= LOCAL_SMALL)
        return give_up(c, reduce_small(c, from, to, count, dtype, root, why), why);
    for (int64_t at = 0; at < count && err == PD_OK; at += most) {
        int64_t n = count - at < most ? count - at : most;
        int64_t share = ((n + c->ranks - 1) / c->ranks + line - 1) / line * line;
        int64_t first = share * c->rank < n ? share * c->rank : n,
                end = first + share < n ? first + share : n;

        err = take(c, chunk(c, c->rank), (const char *)from + (size_t)at * size, (size_t)n * size, why);
        if (err == PD_OK)
            err = at ? local_barrier(c, c->wait_us, why) : first_barrier(c, why);
        if (err == PD_OK && end > first)
            sum(sums + (size_t)first * size, chunk(c, 0) + (size_t)first * size, c->chunk_bytes, c->ranks,
                end - first, dtype);
        if (err == PD_OK)
            err = local_barrier(c, c->wait_us, why);
        if (err == PD_OK && (root < 0 || root == c->rank))
            err = give(c, (char *)to + (size_t)at * size, sums, (size_t)n * size, why);
    }
    return give_up(c, err, why);
}

static enum pd_err reduce_scatter(struct pk_comm *c, const void *from, void *to, int64_t count,
                                  enum pk_dtype dtype, void *stream, struct pd_why *why)
{
    enum pd_err err = check_call(c, count, dtype, -1, why);
    const size_t size = err == PD_OK ? pk_dtype_size(dtype) : 1;
    const int64_t most = numbers_of(c->chunk_bytes / (size_t)c->ranks, size);

    (void)stream;
    if (err != PD_OK)
        return err;
    post(c, KIND_SCATTER, dtype, -1, count);
    for (int64_t at = 0; err == PD_OK && (at < count || at == 0); at += most) {
        int64_t n = count - at < most ? count - at : most;
        size_t bytes = (size_t)n * size, row = (size_t)most * size;
        char *sums = chunk(c, c->ranks) + (size_t)c->rank * row;

        for (int r = 0; r < c->ranks && err == PD_OK; r++)
            err = take(c, chunk(c, c->rank) + (size_t)r * row,
                       (const char *)from + ((size_t)r * (size_t)count + (size_t)at) * size, bytes, why);
        if (err == PD_OK)
            err = at ? local_barrier(c, c->wait_us, why) : first_barrier(c, why);
        if (err != PD_OK)
            break;
        sum(sums, chunk(c, 0) + (size_t)c->rank * row, c->chunk_bytes, c->ranks, n, dtype);
        err = local_barrier(c, c->wait_us, why);
        /* After the barrier: `to` may lie in `from`, which no other rank reads any more. */
        if (err == PD_OK)
            err = give(c, (char *)to + (size_t)at * size, sums, bytes, why);
    }
    return give_up(c, err, why);
}

static enum pd_err all_gather(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, void *stream, struct pd_why *why)
{
    enum pd_err err = check_call(c, count, dtype, -1, why);
    const size_t size = err == PD_OK ? pk_dtype_size(dtype) : 1;
    const int64_t most = numbers_of(c->chunk_bytes, size);

    (void)stream;
    if (err != PD_OK)
        return err;
    post(c, KIND_GATHER, dtype, -1, count);
    for (int64_t at = 0; err == PD_OK && (at < count || at == 0); at += most) {
        size_t bytes = (size_t)(count - at < most ? count - at : most) * size;

        err = take(c, chunk(c, c->rank), (const char *)from + (size_t)at * size, bytes, why);
        if (err == PD_OK)
            err = at ? local_barrier(c, c->wait_us, why) : first_barrier(c, why);
        for (int r = 0; r < c->ranks && err == PD_OK; r++)
            err = give(c, (char *)to + ((size_t)r * (size_t)count + (size_t)at) * size, chunk(c, r), bytes,
                       why);
        if (err == PD_OK)
            err = local_barrier(c, c->wait_us, why);
    }
    return give_up(c, err, why);
}

static enum pd_err broadcast(struct pk_comm *c, void *memory, int64_t count, enum pk_dtype dtype, int root,
                             void *stream, struct pd_why *why)
{
    enum pd_err err = check_call(c, count, dtype, root, why);
    const size_t size = err == PD_OK ? pk_dtype_size(dtype) : 1, bytes = (size_t)count * size;

    (void)stream;
    if (err != PD_OK)
        return err;
    if (root < 0)
        return pd_fail(why, PD_ERR_INVALID, "a broadcast needs a root rank");
    post(c, KIND_BROADCAST, dtype, root, count);
    if (bytes <= LOCAL_SMALL) {
        if (c->rank == root)
            err = take(c, cell(c, root), memory, bytes, why);
        if (err == PD_OK)
            err = first_barrier(c, why);
        if (err == PD_OK && c->rank != root)
            err = give(c, memory, cell(c, root), bytes, why);
        return give_up(c, err, why);
    }
    for (size_t at = 0; at < bytes && err == PD_OK; at += c->chunk_bytes) {
        size_t n = bytes - at < c->chunk_bytes ? bytes - at : c->chunk_bytes;

        if (c->rank == root)
            err = take(c, chunk(c, root), (char *)memory + at, n, why);
        if (err == PD_OK)
            err = at ? local_barrier(c, c->wait_us, why) : first_barrier(c, why);
        if (err == PD_OK && c->rank != root)
            err = give(c, (char *)memory + at, chunk(c, root), n, why);
        if (err == PD_OK)
            err = local_barrier(c, c->wait_us, why);
    }
    return give_up(c, err, why);
}

static enum pd_err barrier(struct pk_comm *c, void *stream, struct pd_why *why)
{
    (void)stream;
    if (c->err != PD_OK)
        return pd_fail(why, c->err, "%s", c->why.text);
    post(c, KIND_BARRIER, PK_I32, -1, 0);
    return give_up(c, first_barrier(c, why), why);
}

static enum pd_err check(struct pk_comm *c, struct pd_why *why)
{
    if (c->err != PD_OK)
        return pd_fail(why, c->err, "%s", c->why.text);
    return local_look(c, why);
}

static int64_t waited_us(const struct pk_comm *c)
{
    return atomic_load_explicit(&c->waited_us, memory_order_relaxed);
}

const struct pk_comm_api *pk_comm_local(void)
{
    static const struct pk_comm_api api = {
        .abi = PK_COMM_ABI,
        .name = "local",
        .id_bytes = sizeof(struct id),
        .enqueues = false,
        .make_id = make_id,
        .open = local_open,
        .close = local_close,
        .abort = local_abort,
        .all_reduce = all_reduce,
        .reduce_scatter = reduce_scatter,
        .all_gather = all_gather,
        .broadcast = broadcast,
        .barrier = barrier,
        .check = check,
        .waited_us = waited_us,
    };

    return &api;
}
