/* comm_nccl.so: ranks on GPUs through NCCL. It takes no symbol from the program that opens it.
 *
 * Calls only enqueue on the stream they are given, so a step with them can be recorded. NCCL does not notice
 * that a process of this host died in the middle of a call. A watchdog does: five times a second it asks
 * `local`, which keeps the processes of the ranks and the reason of the first abort, and asks NCCL for its own
 * errors. On any error it aborts the communicator, which ends the kernels on the GPU. ncclCommDestroy is never
 * called, because it waits for ranks that may be gone. Even an abort returns only after the
 * recorded steps that hold calls of the communicator are destroyed (NCCL counts them), and the thread that
 * destroys them may wait for our lock; therefore a separate thread calls the abort.
 *
 * Compiled, and tested against a stand-in for the library; not yet run on GPUs. */
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/clock.h"
#include "kernels/comm/comm.h"

#define OPEN_US (INT64_C(120) * 1000000)
#define LOOK_US 200000
#define CLOSE_US 2000000 /* longest wait of close for an abort, which otherwise ends with the process */

struct id {
    ncclUniqueId nccl;
    uint8_t local[PK_COMM_ID_MAX - sizeof(ncclUniqueId)]; /* of the shared-memory back end */
};
_Static_assert(sizeof(struct id) <= PK_COMM_ID_MAX, "an id fits");

struct pk_comm {
    const struct pk_comm_host *host;
    void *local; /* struct pk_comm of the shared-memory back end: processes and reasons */
    ncclComm_t nccl;
    int rank, ranks;
    pthread_mutex_t lock;    /* nccl, err, why; and local, but for its barrier */
    pthread_t watchdog, end; /* `end`: inside ncclCommAbort */
    bool watching, ending;
    _Atomic bool stop;
    enum pd_err err; /* sticky */
    struct pd_why why;
};

static const struct pk_comm_api *local_api(void)
{
    return pk_comm_local();
}

static void nap(int64_t us)
{
    const struct timespec t = {.tv_nsec = us * 1000};

    nanosleep(&t, NULL);
}

static enum pd_err nccl_fail(struct pd_why *why, ncclResult_t result, const char *what)
{
    return pd_fail(why, result == ncclRemoteError ? PD_ERR_CLOSED : PD_ERR_IO, "nccl: %s: %s", what,
                   ncclGetErrorString(result));
}

static enum pd_err make_id(void *out, struct pd_why *why)
{
    struct id id;
    ncclResult_t result;

    memset(&id, 0, sizeof id);
    if (local_api()->id_bytes > sizeof id.local)
        return pd_fail(why, PD_ERR_LIMIT, "two ids do not fit into the buffer");
    result = ncclGetUniqueId(&id.nccl);
    if (result != ncclSuccess)
        return nccl_fail(why, result, "making an id");
    memcpy(out, &id, sizeof id);
    return local_api()->make_id((char *)out + offsetof(struct id, local), why);
}

static void *end_of(void *nccl)
{
    (void)ncclCommAbort(nccl);
    return NULL;
}

/* What runs on the GPU stops soon. Lock held, or no other thread exists. */
static void end(struct pk_comm *c)
{
    if (!c->nccl)
        return;
    c->ending = pthread_create(&c->end, NULL, end_of, c->nccl) == 0;
    if (!c->ending)
        (void)ncclCommAbort(c->nccl);
    c->nccl = NULL;
}

/* Ends the communicator: the first reason is kept, the other ranks are notified, what runs on the GPU stops.
 * Lock held. */
static void give_up(struct pk_comm *c, enum pd_err err, const char *text, bool notify)
{
    if (c->err == PD_OK) {
        c->err = err;
        snprintf(c->why.text, sizeof c->why.text, "%s", text);
        if (c->host && c->host->log)
            c->host->log(c->host->user, 4, text);
    }
    if (notify)
        local_api()->abort(c->local, text);
    end(c);
}

/* Asynchronous errors. Lock held. */
static void look(struct pk_comm *c)
{
    ncclResult_t result = ncclSuccess;
    struct pd_why why = {""};
    enum pd_err err = local_api()->check(c->local, &why);

    if (err != PD_OK) {
        give_up(c, err, why.text, false);
        return;
    }
    if (c->nccl && ncclCommGetAsyncError(c->nccl, &result) == ncclSuccess && result != ncclSuccess &&
        result != ncclInProgress) {
        err = nccl_fail(&why, result, "a collective");
        give_up(c, err, why.text, true);
    }
}

static void *watch(void *arg)
{
    struct pk_comm *c = arg;

    while (!atomic_load(&c->stop)) {
        nap(LOOK_US);
        pthread_mutex_lock(&c->lock);
        if (c->err == PD_OK && !atomic_load(&c->stop))
            look(c);
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

static struct pk_comm *nccl_close(struct pk_comm *c)
{
    if (c) {
        atomic_store(&c->stop, true);
        if (c->watching)
            pthread_join(c->watchdog, NULL);
        end(c);
        for (int64_t until = pd_clock_mono_us() + CLOSE_US; c->ending; nap(1000)) {
            if (pthread_tryjoin_np(c->end, NULL) != EBUSY)
                c->ending = false;
            else if (pd_clock_mono_us() > until && pthread_detach(c->end) == 0)
                break;
        }
        local_api()->close(c->local);
        pthread_mutex_destroy(&c->lock);
        free(c);
    }
    return NULL;
}

/* Waits for the end of a non-blocking call. Lock held. */
static enum pd_err settle(struct pk_comm *c, ncclResult_t result, const char *what, int64_t until_us,
                          struct pd_why *why)
{
    struct pd_why own = {""};
    enum pd_err err;

    while (result == ncclInProgress) {
        err = local_api()->check(c->local, &own);
        if (err != PD_OK) {
            give_up(c, err, own.text, false);
            return pd_fail(why, err, "%s", c->why.text);
        }
        if (pd_clock_mono_us() > until_us) {
            err = pd_fail(&own, PD_ERR_TIMEOUT, "nccl: %s timed out", what);
            give_up(c, err, own.text, true);
            return pd_fail(why, err, "%s", c->why.text);
        }
        nap(500);
        if (ncclCommGetAsyncError(c->nccl, &result) != ncclSuccess)
            result = ncclInternalError;
    }
    if (result == ncclSuccess)
        return PD_OK;
    err = nccl_fail(&own, result, what);
    give_up(c, err, own.text, true);
    return pd_fail(why, err, "%s", c->why.text);
}

static enum pd_err nccl_open(const struct pk_comm_host *host, const struct pk_comm_options *o,
                             struct pk_comm **ret, struct pd_why *why)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct pk_comm_options first = *o;
    struct pk_comm *c = calloc(1, sizeof *c), *local = NULL;
    const int64_t until_us = pd_clock_mono_us() + (o->open_us > 0 ? o->open_us : OPEN_US);
    struct id id;
    ncclResult_t result;
    enum pd_err err;
    int code;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a rank");
    memcpy(&id, o->id, sizeof id);
    c->host = host;
    c->rank = o->rank;
    c->ranks = o->ranks;
    pthread_mutex_init(&c->lock, NULL);
    first.id = id.local;
    err = local_api()->open(NULL, &first, &local, why);
    c->local = local;
    if (err != PD_OK)
        goto out;
    config.blocking = 0;
    config.maxCTAs = PK_COMM_BLOCKS;
    pthread_mutex_lock(&c->lock);
    /* On the device that the back end has chosen for this thread. */
    result = ncclCommInitRankConfig(&c->nccl, o->ranks, id.nccl, o->rank, &config);
    err = settle(c, result, "connecting to the other ranks", until_us, why);
    pthread_mutex_unlock(&c->lock);
    if (err != PD_OK)
        goto out;
    code = pthread_create(&c->watchdog, NULL, watch, c);
    c->watching = code == 0;
    if (code) {
        err = pd_fail_errno(why, code, "cannot start the watchdog of the ranks");
        goto out;
    }
    *ret = c;
    c = NULL; /* moved to the caller */
out:
    nccl_close(c);
    return err;
}

static void nccl_abort(struct pk_comm *c, const char *reason)
{
    pthread_mutex_lock(&c->lock);
    give_up(c, PD_ERR_CANCELLED, reason ? reason : "stopped", true);
    pthread_mutex_unlock(&c->lock);
}

/* ---- calls ---- */

static enum pd_err type_of(enum pk_dtype dtype, ncclDataType_t *ret, struct pd_why *why)
{
    switch (dtype) {
    case PK_F32:
        *ret = ncclFloat32;
        return PD_OK;
    case PK_F64:
        *ret = ncclFloat64;
        return PD_OK;
    case PK_BF16:
        *ret = ncclBfloat16;
        return PD_OK;
    case PK_I32:
        *ret = ncclInt32;
        return PD_OK;
    default:
        return pd_fail(why, PD_ERR_INVALID, "%s cannot be sent between ranks", pk_dtype_name(dtype));
    }
}

/* Takes the lock if the call may go ahead. */
static enum pd_err enter(struct pk_comm *c, int64_t count, enum pk_dtype dtype, int root, ncclDataType_t *ret,
                         struct pd_why *why)
{
    enum pd_err err = type_of(dtype, ret, why);

    if (err == PD_OK && (count < 0 || root >= c->ranks))
        err = pd_fail(why, PD_ERR_INVALID, "cannot send %lld elements to rank %d of %d", (long long)count,
                      root, c->ranks);
    if (err != PD_OK)
        return err;
    pthread_mutex_lock(&c->lock);
    if (c->err != PD_OK) {
        err = pd_fail(why, c->err, "%s", c->why.text);
        pthread_mutex_unlock(&c->lock);
    }
    return err;
}

static enum pd_err leave(struct pk_comm *c, ncclResult_t result, const char *what, struct pd_why *why)
{
    enum pd_err err = settle(c, result, what, pd_clock_mono_us() + OPEN_US, why);

    pthread_mutex_unlock(&c->lock);
    return err;
}

static enum pd_err all_reduce(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, int root, void *stream, struct pd_why *why)
{
    ncclDataType_t type;
    enum pd_err err = enter(c, count, dtype, root, &type, why);

    if (err != PD_OK)
        return err;
    if (root < 0)
        return leave(c, ncclAllReduce(from, to, (size_t)count, type, ncclSum, c->nccl, stream), "all_reduce",
                     why);
    return leave(c, ncclReduce(from, to, (size_t)count, type, ncclSum, root, c->nccl, stream), "reduce", why);
}

static enum pd_err reduce_scatter(struct pk_comm *c, const void *from, void *to, int64_t count,
                                  enum pk_dtype dtype, void *stream, struct pd_why *why)
{
    ncclDataType_t type;
    enum pd_err err = enter(c, count, dtype, -1, &type, why);

    return err == PD_OK ? leave(c, ncclReduceScatter(from, to, (size_t)count, type, ncclSum, c->nccl, stream),
                                "reduce_scatter", why)
                        : err;
}

static enum pd_err all_gather(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, void *stream, struct pd_why *why)
{
    ncclDataType_t type;
    enum pd_err err = enter(c, count, dtype, -1, &type, why);

    return err == PD_OK
               ? leave(c, ncclAllGather(from, to, (size_t)count, type, c->nccl, stream), "all_gather", why)
               : err;
}

static enum pd_err broadcast(struct pk_comm *c, void *memory, int64_t count, enum pk_dtype dtype, int root,
                             void *stream, struct pd_why *why)
{
    ncclDataType_t type;
    enum pd_err err = root < 0 ? pd_fail(why, PD_ERR_INVALID, "a broadcast needs a root rank")
                               : enter(c, count, dtype, root, &type, why);

    return err == PD_OK ? leave(c, ncclBroadcast(memory, memory, (size_t)count, type, root, c->nccl, stream),
                                "broadcast", why)
                        : err;
}

/* Of the processes; does not wait for enqueued work. */
static enum pd_err barrier(struct pk_comm *c, void *stream, struct pd_why *why)
{
    struct pd_why own = {""};
    enum pd_err err;

    (void)stream;
    pthread_mutex_lock(&c->lock); /* local's barrier itself checks that the other ranks are alive */
    err = c->err != PD_OK ? c->err : local_api()->barrier(c->local, NULL, &own);
    if (err != PD_OK)
        give_up(c, err, own.text, true);
    if (err != PD_OK)
        (void)pd_fail(why, err, "%s", c->why.text);
    pthread_mutex_unlock(&c->lock);
    return err;
}

static enum pd_err check(struct pk_comm *c, struct pd_why *why)
{
    enum pd_err err;

    pthread_mutex_lock(&c->lock);
    if (c->err == PD_OK)
        look(c);
    err = c->err == PD_OK ? PD_OK : pd_fail(why, c->err, "%s", c->why.text);
    pthread_mutex_unlock(&c->lock);
    return err;
}

static int64_t waited_us(const struct pk_comm *c)
{
    (void)c; /* the waiting happens on the GPU and is not measured */
    return -1;
}

__attribute__((visibility("default"))) const struct pk_comm_api *pk_comm_entry(void);

const struct pk_comm_api *pk_comm_entry(void)
{
    static const struct pk_comm_api api = {
        .abi = PK_COMM_ABI,
        .name = "nccl",
        .id_bytes = sizeof(struct id),
        .enqueues = true,
        .make_id = make_id,
        .open = nccl_open,
        .close = nccl_close,
        .abort = nccl_abort,
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
