/* ALL_REDUCE, BROADCAST_RANKS by kernels/comm, concurrent with kernels.
 *
 * The side stream waits for everything enqueued so far (fork) and then runs the collective; the kernels' stream waits
 * for it (join) before the first call that reads or writes memory of a collective, and at the end of the list. In a
 * recorded step forks and joins are edges of the graph, so the overlap is recorded as well.
 *
 * A comm that does not enqueue (`local`) is called immediately, after the stream has been synchronised.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/optim.h"
#include "kernels/comm/comm.h"

#define TRAVELLING_MAX 16

struct range {
    uintptr_t from, to;
};

struct cuda_ranks {
    cudaEvent_t forked, joined;
    struct range range[2 * TRAVELLING_MAX]; /* memory of pending collectives */
    int count;
};

/* The bytes between the first and the last element of a view. */
static struct range range_of(const struct pk_view *v)
{
    uintptr_t from = (uintptr_t)v->data;
    int64_t last = 0;

    for (int32_t i = 0; i < v->shape.rank; i++)
        last += (v->shape.dim[i] - 1) * v->stride[i];
    return (struct range){from, from + (size_t)(last + 1) * pk_dtype_size(v->dtype)};
}

static bool touches(const struct cuda_ranks *r, struct range x)
{
    for (int i = 0; i < r->count; i++)
        if (x.from < r->range[i].to && r->range[i].from < x.to)
            return true;
    return false;
}

static bool is_collective(const struct pk_call *c)
{
    return c->op == PK_OP_ALL_REDUCE || c->op == PK_OP_BROADCAST_RANKS;
}

enum pd_err cuda_ranks_join(struct pk_backend *b, struct pd_why *why)
{
    struct cuda_ranks *r = b->ranks;

    if (!r || !r->count)
        return PD_OK;
    r->count = 0;
    PK_CUDA_TRY(cudaStreamWaitEvent(b->stream, r->joined, 0));
    return PD_OK;
}

enum pd_err cuda_ranks_before(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cuda_ranks *r = b->ranks;
    const uintptr_t scratch = (uintptr_t)c->workspace;
    bool wait;

    if (!r || !r->count || is_collective(c)) /* collectives are ordered by their own stream */
        return PD_OK;
    /* consecutive optimiser calls are one launch: check the memory of the later ones too */
    wait = cuda_optim_is(c->op) ||
           (c->workspace_bytes && touches(r, (struct range){scratch, scratch + c->workspace_bytes}));
    for (int32_t i = 0; i < c->n_in && !wait; i++)
        wait = touches(r, range_of(&c->in[i]));
    for (int32_t i = 0; i < c->n_out && !wait; i++)
        wait = touches(r, range_of(&c->out[i]));
    return wait ? cuda_ranks_join(b, why) : PD_OK;
}

const char *cuda_ranks_unrecordable(const struct pk_backend *b, const struct pk_call *calls, size_t count)
{
    if (!b->host || !b->host->comm || b->host->comm_api->enqueues)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (is_collective(&calls[i]))
            return "collectives through host memory cannot be part of a recorded step";
    return NULL;
}

int cuda_ranks_multiprocessors(const struct pk_backend *b)
{
    return b->host && b->host->comm && b->host->comm_api->enqueues ? PK_COMM_BLOCKS : 0;
}

void cuda_ranks_forget(struct pk_backend *b)
{
    if (b->ranks)
        b->ranks->count = 0;
}

void cuda_ranks_close(struct pk_backend *b)
{
    if (!b->ranks)
        return;
    if (b->ranks->forked)
        (void)cudaEventDestroy(b->ranks->forked);
    if (b->ranks->joined)
        (void)cudaEventDestroy(b->ranks->joined);
    free(b->ranks);
    b->ranks = NULL;
}

static enum pd_err begin(struct pk_backend *b, struct pd_why *why)
{
    struct cuda_ranks *r = b->ranks;

    if (!r) {
        r = b->ranks = calloc(1, sizeof *r);
        if (!r)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for ranks");
        PK_CUDA_TRY(cudaEventCreateWithFlags(&r->forked, cudaEventDisableTiming));
        PK_CUDA_TRY(cudaEventCreateWithFlags(&r->joined, cudaEventDisableTiming));
    }
    if (r->count + 2 > 2 * TRAVELLING_MAX) {
        enum pd_err err = cuda_ranks_join(b, why);

        if (err != PD_OK)
            return err;
    }
    PK_CUDA_TRY(cudaEventRecord(r->forked, b->stream));
    PK_CUDA_TRY(cudaStreamWaitEvent(b->side, r->forked, 0));
    return PD_OK;
}

static enum pd_err end(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    b->ranks->range[b->ranks->count++] = range_of(&c->in[0]);
    b->ranks->range[b->ranks->count++] = range_of(&c->out[0]);
    PK_CUDA_TRY(cudaEventRecord(b->ranks->joined, b->side));
    return PD_OK;
}

static enum pd_err run_collective(struct pk_backend *b, const struct pk_call *c, void *stream,
                                  struct pd_why *why)
{
    const struct pk_comm_api *api = b->host->comm_api;
    const struct pk_view *x = &c->in[0];
    const int64_t count = pk_shape_count(&x->shape);

    if (c->op == PK_OP_BROADCAST_RANKS)
        return api->broadcast(b->host->comm, x->data, count, x->dtype, c->attr->ranks.root, stream, why);
    return api->all_reduce(b->host->comm, x->data, c->out[0].data, count, x->dtype, c->attr->ranks.root,
                           stream, why);
}

static enum pd_err together(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    enum pd_err err;

    if (!b->host->comm_api->enqueues)
        return run_collective(b, c, b->stream, why);
    err = begin(b, why);
    if (err == PD_OK)
        err = run_collective(b, c, b->side, why);
    return err == PD_OK ? end(b, c, why) : err;
}

enum pd_err cuda_all_reduce(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *x = &c->in[0];

    if (b->host && b->host->comm)
        return together(b, c, why);
    if (x->data != c->out[0].data) /* one rank */
        PK_CUDA_TRY(cudaMemcpyAsync(c->out[0].data, x->data,
                                    (size_t)pk_shape_count(&x->shape) * pk_dtype_size(x->dtype),
                                    cudaMemcpyDeviceToDevice, b->stream));
    return PD_OK;
}

enum pd_err cuda_broadcast_ranks(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return b->host && b->host->comm ? together(b, c, why) : PD_OK;
}
