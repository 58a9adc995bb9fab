/* daemon/worker/train/ranks.c: see ranks.h.
 *
 * Everything travels as nodes of small graphs, so that it goes the way of gradients: through the back end and
 * its stream. */
#include "daemon/worker/train/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/task/task.h"
#include "daemon/worker/train/executable.h"
#include "kernels/comm/comm.h"

#define SMALL_WORDS 32           /* answers and sums */
#define LARGE_WORDS (256 * 1024) /* tensors go in pieces of this size */
#define OPEN_US (INT64_C(120) * 1000000)

/* A broadcast: the state "piece" of its root, on all. */
struct share {
    struct executable executable; /* built when it is first needed */
    size_t bytes;                 /* of a piece; 0: not built */
};

struct ranks {
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct pk_comm_host staging;
    const struct pk_comm_api *comm_api;
    struct pk_comm *comm;
    int rank, count;
    struct share *shares; /* two of each rank: small, large */
};

static enum pd_err upload(void *user, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    struct ranks *r = user;

    return r->api->upload(r->backend, to, from, bytes, why);
}

static enum pd_err download(void *user, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    struct ranks *r = user;

    return r->api->download(r->backend, to, from, bytes, why);
}

enum pd_err ranks_open(const struct train_ranks *group, int wanted, const struct pk_backend_api *api,
                       struct pk_backend *backend, struct ranks **ret, struct pd_why *why)
{
    const int count = group->ranks > 1 ? group->ranks : 1;
    const struct pk_comm_options o = {
        .id = group->id, .rank = group->rank, .ranks = group->ranks, .open_us = OPEN_US};
    struct ranks *r;
    enum pd_err err;

    if (count != wanted)
        return pd_fail(why, PD_ERR_INVALID, "/resources/slots is %d, but %d ranks have started", wanted,
                       count);
    *ret = NULL;
    if (count == 1)
        return PD_OK;
    r = calloc(1, sizeof *r);
    if (r)
        r->shares = calloc((size_t)count * 2, sizeof *r->shares);
    if (!r || !r->shares) {
        ranks_close(r);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for ranks");
    }
    r->api = api;
    r->backend = backend;
    r->comm_api = group->comm;
    r->rank = group->rank;
    r->count = count;
    r->staging.user = r;
    if (strcmp(api->name, "cpu") != 0) { /* buffers that the processor does not see */
        r->staging.upload = upload;
        r->staging.download = download;
    }
    err = r->comm_api->open(&r->staging, &o, &r->comm, why);
    if (err == PD_OK)
        *ret = r;
    else
        ranks_close(r);
    return err;
}

void ranks_lend(const struct ranks *r, struct pk_host *host)
{
    if (!r)
        return;
    host->comm_api = r->comm_api;
    host->comm = r->comm;
}

void ranks_leave(struct ranks *r, const char *reason)
{
    if (r)
        r->comm_api->abort(r->comm, reason);
}

struct ranks *ranks_close(struct ranks *r)
{
    if (!r)
        return NULL;
    for (int i = 0; r->shares && i < 2 * r->count; i++)
        executable_done(&r->shares[i].executable);
    free(r->shares);
    if (r->comm)
        r->comm_api->close(r->comm);
    free(r);
    return NULL;
}

static enum pd_err share_of(struct ranks *r, bool large, int root, struct share **ret, struct pd_why *why)
{
    const struct executable_place place = {.api = r->api, .backend = r->backend};
    struct share *s = &r->shares[2 * root + large];
    int64_t words = large ? LARGE_WORDS : SMALL_WORDS;
    struct pk_graph *g;
    enum pd_err err;

    *ret = s;
    if (s->bytes)
        return PD_OK;
    g = pk_graph_new(false);
    if (!g)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    pk_broadcast_ranks(g, pk_state(g, "piece", PK_I32, PK_SHAPE(words), PK_CAT_INPUTS), root);
    err = pk_graph_check(g, why);
    if (err != PD_OK) {
        pk_graph_free(g);
        return err;
    }
    err = executable_init(&s->executable, g, &place, why);
    if (err == PD_OK)
        s->bytes = (size_t)words * 4;
    return err;
}

enum pd_err ranks_share(struct ranks *r, void *memory, size_t bytes, int root, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t at = 0; r && at < bytes && err == PD_OK;) {
        struct share *s = NULL;
        void *piece;
        size_t n;

        err = share_of(r, bytes > SMALL_WORDS * 4, root, &s, why);
        if (err != PD_OK)
            break;
        n = bytes - at < s->bytes ? bytes - at : s->bytes;
        piece = executable_memory(&s->executable, "piece");
        if (r->rank == root)
            err = r->api->upload(r->backend, piece, (char *)memory + at, n, why);
        if (err == PD_OK)
            err = pk_exec_run(s->executable.exec, why);
        if (err == PD_OK && r->rank != root)
            err = r->api->download(r->backend, (char *)memory + at, piece, n, why);
        at += n;
    }
    return err;
}

enum pd_err ranks_agree(struct ranks *r, int64_t *x, struct pd_why *why)
{
    return ranks_share(r, x, sizeof *x, 0, why);
}

enum pd_err ranks_sum(struct ranks *r, double *x, size_t count, struct pd_why *why)
{
    double sum[RANKS_SUMS_MAX] = {0}, one[RANKS_SUMS_MAX];
    enum pd_err err = PD_OK;

    if (!r)
        return PD_OK;
    for (int root = 0; root < r->count && err == PD_OK; root++) {
        memcpy(one, x, count * sizeof *x);
        err = ranks_share(r, one, count * sizeof *x, root, why);
        for (size_t i = 0; i < count; i++)
            sum[i] += one[i];
    }
    if (err == PD_OK)
        memcpy(x, sum, count * sizeof *x);
    return err;
}
