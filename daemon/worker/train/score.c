/* daemon/worker/train/score.c: an evaluation by itself: a checkpoint, the samples that are asked for, and the
 * code that evaluates during training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/train/run.h"

enum pd_err train_score_open(const struct job_config *c, const char *state_dir, struct data_st **ret,
                             struct pd_why *why)
{
    const struct job_evaluate *e = &c->evaluate;
    struct data_st *st = NULL;
    struct pd_why reason = {""};
    char path[4096], hex[DIGEST_SHA256_HEX_SIZE];
    const void *bytes;
    size_t len;
    enum pd_err err;

    if (snprintf(path, sizeof path, "%s/%s", state_dir, e->path) >= (int)sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "the path of the checkpoint is too long");
    err = data_st_open(path, &st, &reason);
    if (err != PD_OK)
        return pd_fail(why, err, "the checkpoint of run %s at step %lld cannot be read: %.300s", e->run,
                       (long long)e->step, reason.text);
    bytes = data_st_bytes(st, &len);
    if (strcmp(digest_sha256_hex(bytes, len, hex), e->sha256) != 0) {
        data_st_free(st);
        return pd_fail(why, PD_ERR_CORRUPT,
                       "the checkpoint of run %s at step %lld is another file: %.12s, not %.12s", e->run,
                       (long long)e->step, hex, e->sha256);
    }
    *ret = st;
    return PD_OK;
}

static void tell(struct run *r)
{
    r->scored_batches++;
    if (r->host->progress)
        r->host->progress(r->host->user, r->scored_batches, r->setup.steps);
}

/* Batches of all passes. */
static int64_t batches_of(const struct run *r)
{
    int64_t once = (r->setup.info->count[DATA_VAL] + r->setup.eval_batch - 1) / r->setup.eval_batch;

    return once * (r->config->train.ema > 0 ? 2 : 1);
}

static enum pd_err open_score(struct run *r, const struct data_st *st, struct pd_why *why)
{
    struct pk_backend_info device;
    enum pd_err err = train_setup_score(&r->setup, r->config, st, r->dirs->roots, r->dirs->root_count,
                                        r->dirs->cache, false, why);

    r->out->lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = train_open_backend(r, &device, why);
    if (err == PD_OK)
        err = train_set_math(r, why);
    if (err == PD_OK)
        err = model_store_new(r->setup.model, r->api, r->backend, &r->store, why);
    if (err == PD_OK)
        err = model_graph_eval(r->setup.model, r->setup.task->loss, r->setup.eval_batch, r->setup.context,
                               &r->eval.graph, why);
    if (err == PD_OK)
        err = train_stage_init(r, &r->eval, NULL, why);
    if (err != PD_OK)
        return err;
    r->setup.steps = r->out->total = batches_of(r);
    train_say_warnings(r);
    return PD_OK;
}

/* The weights, then their averages where the checkpoint holds some. */
static enum pd_err score(struct run *r, const struct data_st *st, bool *ret_abandoned, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    *ret_abandoned = false;
    for (int averaged = 0; averaged <= (r->config->train.ema > 0) && err == PD_OK && !*ret_abandoned;
         averaged++) {
        double number[TASK_NUMBERS_MAX];

        err = averaged ? model_store_read_averages(r->store, st, why) : model_store_read(r->store, st, why);
        if (err == PD_OK)
            err = train_score_set(r, number, ret_abandoned, why);
        if (err == PD_OK && !*ret_abandoned)
            train_push_numbers(r, number, averaged);
    }
    return err;
}

/* Hands the points over when all are there: an evaluation that was stopped leaves none. */
static void finish(struct run *r)
{
    for (size_t i = 0; i < r->point_count; i++)
        train_note(r, "%s %.6g", r->points[i].key, r->points[i].value);
    if (r->host->metrics)
        r->host->metrics(r->host->user, r->points, r->point_count);
    r->out->result = TRAIN_DONE;
}

enum pd_err train_score(struct job_config *config, const struct train_dirs *dirs, const char *state_dir,
                        const struct train_host *host, struct train_outcome *ret, struct pd_why *why)
{
    struct run *r = calloc(1, sizeof *r);
    struct data_st *st = NULL;
    bool abandoned = false;
    enum pd_err err;

    train_outcome_init(ret);
    if (!r)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for an evaluation");
    r->config = config;
    r->dirs = dirs;
    r->host = host;
    r->out = ret;
    r->scored = tell;
    r->state.step = config->evaluate.step; /* of the points */
    err = train_score_open(config, state_dir, &st, why);
    ret->lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = train_backend(config, false, &r->api, why);
    if (err == PD_OK)
        err = open_score(r, st, why);
    if (err == PD_OK) {
        train_note(r, "scoring %lld samples with the checkpoint of run %s at step %lld",
                   (long long)r->setup.info->count[DATA_VAL], config->evaluate.run, (long long)r->state.step);
        err = score(r, st, &abandoned, why);
        ret->lasting = err == PD_ERR_CORRUPT && data_bad_count(r->setup.set) > DATA_BAD_MIN;
    }
    ret->step = r->scored_batches;
    if (err == PD_OK && abandoned)
        ret->result = r->cancelled ? TRAIN_CANCELLED : TRAIN_STOPPED;
    else if (err == PD_OK)
        finish(r);
    train_close(r, err == PD_OK ? NULL : why ? why->text : pd_err_name(err));
    data_st_free(st);
    free(r);
    return err;
}
