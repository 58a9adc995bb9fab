/* daemon/worker/train/score.c: an evaluation by itself: a checkpoint, the samples that are asked for, and the
 * code that evaluates during training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/train/evaluator.h"
#include "daemon/worker/train/session.h"

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
                       "the checkpoint of run %s at step %lld has the digest %.12s, not %.12s", e->run,
                       (long long)e->step, hex, e->sha256);
    }
    *ret = st;
    return PD_OK;
}

struct score {
    struct session session;
    struct model_store *store;
    struct evaluator *evaluator;
    bool averages;          /* the checkpoint has averaged weights */
    int64_t batches, total; /* scored so far, and of all passes */
};

static void count_batch(void *user)
{
    struct score *s = user;

    reporter_progress(s->session.reporter, ++s->batches, s->total);
}

/* The file decides, not the document: the mean of several checkpoints has the document of a run with averages, and none. */
static bool has_averages(const struct data_st *st)
{
    for (size_t i = 0; i < data_st_count(st); i++)
        if (!strncmp(data_st_at(st, i)->name, "ema.", 4))
            return true;
    return false;
}

static int64_t batches_of(const struct score *score)
{
    const struct session *s = &score->session;
    const int64_t batch = s->setup.eval_batch;
    int64_t once = (s->setup.info->count[DATA_VAL] + batch - 1) / batch;

    for (size_t i = 0; i < s->setup.eval_count; i++)
        once += (data_info(s->setup.eval[i].set)->count[DATA_VAL] + batch - 1) / batch;
    return once * (score->averages ? 2 : 1);
}

static enum pd_err open_score(struct score *s, const struct data_st *st, bool *ret_lasting,
                              struct pd_why *why)
{
    struct session *session = &s->session;
    enum pd_err err = session_open_score(session, st, ret_lasting, why);

    if (err == PD_OK)
        err = model_store_new(session->setup.model, session->api, session->backend, &s->store, why);
    if (err == PD_OK)
        err = evaluator_open(session, s->store, NULL, &s->evaluator, why);
    if (err != PD_OK)
        return err;
    s->averages = has_averages(st);
    s->total = batches_of(s);
    evaluator_watch(s->evaluator, count_batch, s);
    reporter_set_step(session->reporter, session->config->evaluate.step);
    reporter_compiled(session->reporter);
    reporter_inputs(session->reporter, session->setup.set);
    reporter_warnings(session->reporter, session->setup.set);
    return PD_OK;
}

static void close_score(struct score *s)
{
    evaluator_close(s->evaluator);
    model_store_free(s->store);
    session_close(&s->session);
}

/* The samples that the document asks for, then the sets of data.eval. */
static enum pd_err score_all(struct score *s, bool averaged, enum train_stop *ret_stop, struct pd_why *why)
{
    const struct train_setup *setup = &s->session.setup;
    struct evaluator_numbers found;
    enum pd_err err = evaluator_score(s->evaluator, setup->set, DATA_VAL, &found, ret_stop, why);

    if (err == PD_OK && *ret_stop == TRAIN_STOP_NONE)
        err = evaluator_push(s->evaluator, NULL, setup->scored, &found, averaged, why);
    for (size_t i = 0; i < setup->eval_count && err == PD_OK && *ret_stop == TRAIN_STOP_NONE; i++) {
        err = evaluator_score(s->evaluator, setup->eval[i].set, DATA_VAL, &found, ret_stop, why);
        if (err == PD_OK && *ret_stop == TRAIN_STOP_NONE)
            err = evaluator_push(s->evaluator, &setup->eval[i], DATA_SCORED_TEST, &found, averaged, why);
    }
    return err;
}

/* The weights, then their averages where the checkpoint has some. Hands the points over when all are there:
 * an evaluation that was stopped leaves none. */
static enum pd_err score(struct score *s, const struct data_st *st, enum train_stop *ret_stop,
                         struct pd_why *why)
{
    const struct job_config *config = s->session.config;
    enum pd_err err = PD_OK;

    reporter_log(s->session.reporter, "scoring %lld samples with the checkpoint of run %s at step %lld",
                 (long long)s->session.setup.info->count[DATA_VAL], config->evaluate.run,
                 (long long)config->evaluate.step);
    *ret_stop = TRAIN_STOP_NONE;
    for (int averaged = 0; averaged <= s->averages; averaged++) {
        err = averaged ? model_store_read_averages(s->store, st, why) : model_store_read(s->store, st, why);
        if (err == PD_OK)
            err = score_all(s, averaged, ret_stop, why);
        if (err != PD_OK || *ret_stop != TRAIN_STOP_NONE)
            return err;
    }
    reporter_log_points(s->session.reporter);
    reporter_send(s->session.reporter);
    return PD_OK;
}

enum pd_err train_score(struct job_config *config, const struct train_dirs *dirs, const char *state_dir,
                        const struct train_host *host, struct train_outcome *ret, struct pd_why *why)
{
    struct score s = {.session = {.config = config, .dirs = dirs, .host = host}};
    struct data_st *st = NULL;
    enum train_stop stop;
    enum pd_err err;

    train_outcome_init(ret);
    err = train_score_open(config, state_dir, &st, why);
    ret->lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = train_backend(config, false, &s.session.api, why);
    if (err == PD_OK)
        err = open_score(&s, st, &ret->lasting, why);
    if (err == PD_OK) {
        ret->total = s.total;
        err = score(&s, st, &stop, why);
        ret->lasting = session_data_bad(&s.session, err);
    }
    ret->step = s.batches;
    if (err == PD_OK)
        ret->result = stop == TRAIN_STOP_NONE     ? TRAIN_DONE
                      : stop == TRAIN_STOP_CANCEL ? TRAIN_CANCELLED
                                                  : TRAIN_STOPPED;
    close_score(&s);
    data_st_free(st);
    return err;
}
