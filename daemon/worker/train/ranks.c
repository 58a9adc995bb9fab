/* daemon/worker/train/ranks.c: what the ranks of a run do together outside a step.
 *
 * Everything travels as nodes of small graphs, so that it goes the way of gradients: through the back end and
 * its stream. What ranks exchange within a step is in the graph of that step. */
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/train/run.h"

#define SMALL_WORDS 32           /* answers and sums */
#define LARGE_WORDS (256 * 1024) /* tensors go in pieces of this size */
#define OPEN_US (INT64_C(120) * 1000000)

static enum pd_err upload(void *user, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    struct run *r = user;

    return r->api->upload(r->backend, to, from, bytes, why);
}

static enum pd_err download(void *user, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    struct run *r = user;

    return r->api->download(r->backend, to, from, bytes, why);
}

enum pd_err train_ranks_open(struct run *r, struct pd_why *why)
{
    const struct train_ranks *g = &r->dirs->ranks;
    struct pk_comm_options o = {.id = g->id, .rank = g->rank, .ranks = g->ranks, .open_us = OPEN_US};
    struct pk_comm *comm = NULL;
    enum pd_err err;

    if ((g->ranks > 1 ? g->ranks : 1) != r->setup.ranks)
        return pd_fail(why, PD_ERR_INVALID, "/resources/slots is %d, and %d ranks have come", r->setup.ranks,
                       g->ranks > 1 ? g->ranks : 1);
    if (r->setup.ranks == 1)
        return PD_OK;
    r->shares = calloc((size_t)g->ranks * 2, sizeof *r->shares);
    if (!r->shares)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for ranks");
    r->staging.user = r;
    if (strcmp(r->api->name, "cpu") != 0) { /* buffers that the processor does not see */
        r->staging.upload = upload;
        r->staging.download = download;
    }
    err = g->comm->open(&r->staging, &o, &comm, why);
    if (err == PD_OK) {
        r->lent.comm_api = g->comm;
        r->lent.comm = comm;
    }
    return err;
}

void train_ranks_leave(struct run *r, const char *reason)
{
    if (r->lent.comm && reason)
        r->lent.comm_api->abort(r->lent.comm, reason);
}

void train_ranks_close(struct run *r)
{
    for (int i = 0; r->shares && i < 2 * r->setup.ranks; i++)
        train_stage_done(r, &r->shares[i].stage);
    free(r->shares);
    r->shares = NULL;
    if (r->lent.comm)
        r->lent.comm = r->lent.comm_api->close(r->lent.comm);
}

static enum pd_err share_of(struct run *r, bool large, int root, struct share **ret, struct pd_why *why)
{
    struct share *s = &r->shares[2 * root + large];
    int64_t words = large ? LARGE_WORDS : SMALL_WORDS;
    enum pd_err err = PD_OK;

    *ret = s;
    if (s->bytes)
        return PD_OK;
    s->stage.graph = pk_graph_new(false);
    if (!s->stage.graph)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    pk_broadcast_ranks(s->stage.graph,
                       pk_state(s->stage.graph, "piece", PK_I32, PK_SHAPE(words), PK_CAT_INPUTS), root);
    err = pk_graph_check(s->stage.graph, why);
    if (err == PD_OK)
        err = train_stage_init(r, &s->stage, NULL, why);
    if (err == PD_OK)
        s->bytes = (size_t)words * 4;
    return err;
}

enum pd_err train_ranks_share(struct run *r, void *memory, size_t bytes, int root, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t at = 0; r->setup.ranks > 1 && at < bytes && err == PD_OK;) {
        struct share *s = NULL;
        size_t n;

        err = share_of(r, bytes > SMALL_WORDS * 4, root, &s, why);
        if (err != PD_OK)
            break;
        n = bytes - at < s->bytes ? bytes - at : s->bytes;
        if (r->setup.rank == root)
            err = r->api->upload(r->backend, train_stage_memory(&s->stage, "piece"), (char *)memory + at, n,
                                 why);
        if (err == PD_OK)
            err = pk_exec_run(s->stage.exec, why);
        if (err == PD_OK && r->setup.rank != root)
            err = r->api->download(r->backend, (char *)memory + at, train_stage_memory(&s->stage, "piece"), n,
                                   why);
        at += n;
    }
    return err;
}

enum pd_err train_ranks_agree(struct run *r, int64_t *x, struct pd_why *why)
{
    return train_ranks_share(r, x, sizeof *x, 0, why);
}

enum pd_err train_ranks_sum(struct run *r, double *x, size_t count, struct pd_why *why)
{
    double sum[TASK_SUMS_MAX] = {0}, one[TASK_SUMS_MAX];
    enum pd_err err = PD_OK;

    if (r->setup.ranks == 1)
        return PD_OK;
    for (int root = 0; root < r->setup.ranks && err == PD_OK; root++) {
        memcpy(one, x, count * sizeof *x);
        err = train_ranks_share(r, one, count * sizeof *x, root, why);
        for (size_t i = 0; i < count; i++)
            sum[i] += one[i];
    }
    if (err == PD_OK)
        memcpy(x, sum, count * sizeof *x);
    return err;
}

enum pd_err train_stop_asked(struct run *r, enum train_stop *ret, struct pd_why *why)
{
    int64_t stop = r->setup.rank == 0 ? (int64_t)r->host->stop(r->host->user) : 0;
    enum pd_err err = train_ranks_agree(r, &stop, why);

    *ret = (enum train_stop)stop;
    return err;
}

/* ---- the start ---- */

/* One tensor of rank 0 to every rank that keeps it. */
static enum pd_err hand_out(struct run *r, const struct train_tensor *t, struct pd_why *why)
{
    size_t bytes = (size_t)t->st.bytes;
    void *host = malloc(bytes + 1);
    enum pd_err err = PD_OK;

    if (!host)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to share '%s'", t->st.name);
    if (r->setup.rank == 0 && t->memory) {
        err = r->api->download(r->backend, host, t->memory, bytes, why);
    } else if (r->setup.rank == 0) {
        const struct data_st_tensor *from = r->loaded ? data_st_find(r->loaded, t->st.name) : NULL;

        if (from)
            memcpy(host, from->data, bytes);
        else
            memset(host, 0, bytes); /* moments at the start */
    }
    if (err == PD_OK)
        err = train_ranks_share(r, host, bytes, 0, why);
    if (err == PD_OK && r->setup.rank > 0 && t->memory)
        err = r->api->upload(r->backend, t->memory, host, bytes, why);
    free(host);
    return err;
}

enum pd_err train_ranks_compare(struct run *r, struct pd_why *why)
{
    uint8_t mine[DIGEST_SHA256_BYTES], first[DIGEST_SHA256_BYTES];
    struct digest_sha256 digest;
    enum pd_err err = PD_OK;

    if (r->setup.ranks == 1)
        return PD_OK;
    digest_sha256_init(&digest);
    for (size_t i = 0; i < model_param_count(r->setup.model) && err == PD_OK; i++) {
        size_t bytes = (size_t)r->tensors[i].st.bytes;
        void *host = malloc(bytes + 1);

        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory to compare ranks");
        err = r->api->download(r->backend, host, r->tensors[i].memory, bytes, why);
        if (err == PD_OK)
            digest_sha256_update(&digest, host, bytes);
        free(host);
    }
    digest_sha256_final(&digest, mine);
    memcpy(first, mine, sizeof first);
    if (err == PD_OK)
        err = train_ranks_share(r, first, sizeof first, 0, why);
    if (err == PD_OK && memcmp(first, mine, sizeof mine) != 0)
        err = pd_fail(why, PD_ERR_CORRUPT, "the parameters are not those of rank 0");
    return err;
}

enum pd_err train_ranks_start(struct run *r, struct pd_why *why)
{
    enum pd_err err;

    if (r->setup.ranks == 1)
        return PD_OK;
    err = train_ranks_share(r, &r->state, sizeof r->state, 0, why);
    if (err == PD_OK)
        err = train_ranks_share(r, &r->saved_step, sizeof r->saved_step, 0, why);
    for (size_t i = 0; i < r->tensor_count && err == PD_OK; i++) {
        bool moment = i >= model_param_count(r->setup.model);

        /* at the very start moments are zero everywhere; averages are not */
        if (!r->tensors[i].st.data && (!moment || r->saved_step >= 0))
            err = hand_out(r, &r->tensors[i], why);
    }
    if (err == PD_OK && r->saved_step < 0 && r->averages && r->setup.rank > 0)
        err = train_start_averages(r, why);
    r->loaded = data_st_free(r->loaded);
    return err == PD_OK ? train_ranks_compare(r, why) : err;
}

/* ---- checkpoints ---- */

enum pd_err train_ranks_gather(struct run *r, struct pd_why *why)
{
    size_t params = model_param_count(r->setup.model);
    enum pd_err err = PD_OK;

    if (!r->setup.options.zero)
        return PD_OK;
    for (size_t i = params; i < r->tensor_count && err == PD_OK; i++) {
        struct train_tensor *t = &r->tensors[i];
        size_t bytes = (size_t)t->st.bytes;
        int owner;
        void *host;

        if (t->st.data || strncmp(t->st.name, "optim.", 6) != 0)
            continue; /* the tokenizer; averages, which all have */
        owner = model_param_owner(r->setup.model, (i - params) % params, r->setup.ranks);
        if (owner == 0)
            continue;
        host = malloc(bytes + 1);
        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory to gather '%s'", t->st.name);
        if (r->setup.rank == owner)
            err = r->api->download(r->backend, host, t->memory, bytes, why);
        if (err == PD_OK)
            err = train_ranks_share(r, host, bytes, owner, why);
        if (err == PD_OK && r->setup.rank == 0) {
            t->st.data = host;
            host = NULL; /* until train_ranks_forget */
        }
        free(host);
    }
    return err;
}

void train_ranks_forget(struct run *r)
{
    size_t params = model_param_count(r->setup.model);

    for (size_t i = params; r->setup.options.zero && i < r->tensor_count; i++) {
        struct train_tensor *t = &r->tensors[i];

        if (t->st.data && !t->memory && !strncmp(t->st.name, "optim.", 6)) {
            free((void *)(uintptr_t)t->st.data);
            t->st.data = NULL;
        }
    }
}
