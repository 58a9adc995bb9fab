/* daemon/worker/train/measure.c: what is measured between steps: the validation set, and the probe batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/run.h"

static const char *const stat_keys[TRAIN_STATS] = {"attn/fro", "attn/jac_fro", "attn/jac_q_fro", "logit/std",
                                                   "logit/max"};
static const char *const stat_outputs[TRAIN_STATS] = {"fro", "jac_fro", "jac_q_fro", "logit_std",
                                                      "logit_max"};
enum { STAT_JAC_Q = 2, STAT_LOGIT_MAX = 4 };

static enum pd_err read_output(void *user, const char *name, double *to, size_t count, struct pd_why *why)
{
    struct run *r = user;

    return train_number(r, &r->eval, name, to, count, why);
}

enum pd_err train_score_set(struct run *r, double number[TASK_NUMBERS_MAX], bool *ret_abandoned,
                            struct pd_why *why)
{
    const struct task *task = r->setup.task;
    const struct task_outputs outputs = {.user = r, .read = read_output};
    struct task_score sums;
    const struct data_share share = {.whole = r->setup.eval_batch * r->setup.ranks,
                                     .parts = 1,
                                     .rank = r->setup.rank,
                                     .ranks = r->setup.ranks};
    int64_t left = (r->setup.info->count[DATA_VAL] + share.whole - 1) / share.whole;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err =
        data_loader_start_share(r->setup.set, DATA_VAL, &share, 0, 0, r->setup.loader_threads, &l, why);

    *ret_abandoned = false;
    task->begin(&sums);
    for (; err == PD_OK; left--) {
        enum train_stop stop;

        err = train_stop_asked(r, &stop, why);
        if (err == PD_OK && stop != TRAIN_STOP_NONE) {
            *ret_abandoned = true;
            r->cancelled = stop == TRAIN_STOP_CANCEL;
            break;
        }
        if (err != PD_OK || left <= 0)
            break;
        err = data_loader_next(l, &b, why);
        if (err == PD_OK)
            err = train_feed_batch(r, &r->eval, b, 0, why);
        if (err == PD_OK)
            err = pk_exec_run(r->eval.exec, why);
        if (err == PD_OK)
            err = task->add(&sums, &outputs, why);
        if (err == PD_OK && r->scored)
            r->scored(r);
    }
    data_loader_free(l);
    train_say_bad(r);
    if (err == PD_OK && !*ret_abandoned)
        err = train_ranks_sum(r, sums.sum, sums.count, why);
    if (err == PD_OK && !*ret_abandoned)
        task->end(&sums, number);
    return err;
}

void train_push_numbers(struct run *r, const double *number, bool averaged)
{
    const struct task_number *named = r->setup.task->numbers;

    for (size_t i = 0; named[i].key[0]; i++)
        train_push(r, (averaged ? named[i].averaged : named[i].key)[r->setup.scored], number[i]);
}

/* Lets the evaluation read the averaged weights, or the weights themselves again. */
static enum pd_err look_at(struct run *r, bool averaged, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_param_count(r->setup.model) && err == PD_OK; i++)
        err = pk_exec_bind(r->eval.exec, model_param(r->setup.model, i)->name,
                           averaged ? r->averages[i] : model_store_data(r->store, i), why);
    return err;
}

/* Counts evaluations in a row without a better value (train.stop). A value that is no number is none. */
static void count_patience(struct run *r, double value)
{
    double best = r->state.stop_best, gain = r->setup.stop.maximise ? value - best : best - value;

    if (isnan(best) ? !isnan(value) : gain > r->config->train.stop.min_change) {
        r->state.stop_best = value;
        r->state.stop_waited = 0;
    } else {
        r->state.stop_waited++;
    }
}

enum pd_err train_evaluate(struct run *r, bool *ret_abandoned, struct pd_why *why)
{
    const struct task_number *named = r->setup.task->numbers;
    double number[TASK_NUMBERS_MAX], average[TASK_NUMBERS_MAX];
    char text[200] = "";
    size_t len = 0;
    bool was_best = false;
    enum pd_err err = train_score_set(r, number, ret_abandoned, why);

    if (err == PD_OK && !*ret_abandoned && r->averages) {
        enum pd_err back;

        err = look_at(r, true, why);
        if (err == PD_OK)
            err = train_score_set(r, average, ret_abandoned, why);
        back = look_at(r, false, why);
        err = err == PD_OK ? back : err;
    }
    if (err != PD_OK || *ret_abandoned)
        return err;
    r->state.loss_val = number[TRAIN_NUMBER_LOSS];
    r->state.metric_val = number[TRAIN_NUMBER_SHOWN];
    r->state.score = (r->setup.judge_averages ? average : number)[r->setup.best_number];
    was_best = train_better(r, r->state.score, r->state.best_value);
    if (was_best) {
        r->state.best_value = r->state.score;
        r->state.best_step = r->state.step;
    }
    count_patience(r, (r->setup.stop.averaged ? average : number)[r->setup.stop.number]);
    train_push_numbers(r, number, false);
    if (r->averages)
        train_push_numbers(r, average, true);
    for (size_t i = 0; named[i].key[0] && len < sizeof text; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, " %s %.4f", named[i].key[r->setup.scored],
                                number[i]);
    train_note(r, "step %lld%s%s", (long long)r->state.step, text, was_best ? " best" : "");
    return PD_OK;
}

/* Of all attention modules. */
static size_t most_heads(const struct run *r)
{
    int32_t most = 1, heads;
    size_t scale;

    for (size_t i = 0; i < model_attention_count(r->setup.model); i++) {
        (void)model_attention_at(r->setup.model, i, &heads, &scale);
        most = heads > most ? heads : most;
    }
    return (size_t)most;
}

enum pd_err train_probe_prepare(struct run *r, struct pd_why *why)
{
    const size_t modules = model_attention_count(r->setup.model), heads = most_heads(r),
                 per_layer = (TRAIN_STATS + 1) * (heads + 1);
    size_t need;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err;

    r->keys = calloc(modules * per_layer + 1, sizeof *r->keys); /* a network may have no attention */
    need = (size_t)r->setup.probe_batch * heads;
    r->numbers = calloc(need > heads ? need : heads, sizeof *r->numbers);
    if (!r->keys || !r->numbers)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the probe");
    for (size_t layer = 0; layer < modules; layer++)
        for (size_t k = 0; k <= TRAIN_STATS; k++)
            for (size_t h = 0; h <= heads; h++) {
                char *key = r->keys[layer * per_layer + k * (heads + 1) + h];
                const char *base = k == TRAIN_STATS ? "scale/c" : stat_keys[k];

                if (h)
                    snprintf(key, sizeof r->keys[0], "%s/%zu/%zu", base, layer + 1, h);
                else
                    snprintf(key, sizeof r->keys[0], "%s/%zu", base, layer + 1);
            }
    /* The first validation samples, always the same. */
    err = data_loader_start(r->setup.set, DATA_VAL, r->setup.probe_batch, 0, 0, 1, &l, why);
    if (err == PD_OK)
        err = data_loader_next(l, &b, why);
    if (err == PD_OK)
        err = train_feed_batch(r, &r->probe, b, 0, why);
    data_loader_free(l);
    return err;
}

/* The scale(s) in force in attention module `layer`: count numbers into r->numbers. */
static enum pd_err read_scale(struct run *r, size_t layer, size_t *ret_count, struct pd_why *why)
{
    const bool wide = model_spec(r->setup.model)->dtype == PK_F64;
    int32_t heads;
    size_t i, count;
    const struct model_attention *a = model_attention_at(r->setup.model, layer, &heads, &i);
    enum pd_err err;

    *ret_count = 1;
    r->numbers[0] = a->scale_value;
    if (i == model_param_count(r->setup.model))
        return PD_OK;
    count =
        (size_t)pk_shape_count(&model_param(r->setup.model, i)->shape); /* 1 or heads: r->numbers has room */
    err = r->api->download(r->backend, r->numbers, model_store_data(r->store, i),
                           count * (wide ? sizeof(double) : sizeof(float)), why);
    for (size_t k = count; !wide && k-- > 0;) { /* from the last: in place */
        float narrow;

        memcpy(&narrow, (const char *)r->numbers + k * sizeof narrow, sizeof narrow);
        r->numbers[k] = narrow;
    }
    for (size_t k = 0; k < count; k++) {
        if (a->scale_param == MODEL_PARAM_LOG)
            r->numbers[k] = exp(r->numbers[k]);
        else if (a->scale_param == MODEL_PARAM_SOFTPLUS)
            r->numbers[k] = log1p(exp(r->numbers[k]));
    }
    *ret_count = count;
    return err;
}

enum pd_err train_probe(struct run *r, struct pd_why *why)
{
    const size_t modules = model_attention_count(r->setup.model), batch = (size_t)r->setup.probe_batch,
                 per_layer = (TRAIN_STATS + 1) * (most_heads(r) + 1), row = most_heads(r) + 1;
    enum pd_err err = pk_exec_run(r->probe.exec, why);

    for (size_t layer = 0; layer < modules && err == PD_OK; layer++) {
        char(*keys)[40] = r->keys + layer * per_layer;
        int32_t own;
        size_t count;
        const struct model_attention *a = model_attention_at(r->setup.model, layer, &own, &count);
        const size_t heads = (size_t)own;

        for (size_t k = 0; k < TRAIN_STATS && err == PD_OK; k++) {
            double total = 0, largest = -INFINITY;
            char name[40];

            if (k == STAT_JAC_Q && a->qk_norm)
                continue; /* W_Q acts through a norm: the closed form does not hold */
            snprintf(name, sizeof name, "%s/%zu", stat_outputs[k], layer + 1);
            err = train_number(r, &r->probe, name, r->numbers, batch * heads, why); /* (B, H) */
            for (size_t h = 0; h < heads && err == PD_OK; h++) {
                double sum = 0, most = -INFINITY, shown;

                for (size_t b = 0; b < batch; b++) {
                    sum += r->numbers[b * heads + h];
                    most = r->numbers[b * heads + h] > most || isnan(r->numbers[b * heads + h])
                               ? r->numbers[b * heads + h]
                               : most;
                }
                total += sum;
                largest = most > largest || isnan(most) ? most : largest;
                shown = k == STAT_LOGIT_MAX ? most : sum / (double)batch;
                train_push(r, keys[k * row + h + 1], shown);
            }
            if (err == PD_OK)
                train_push(r, keys[k * row], k == STAT_LOGIT_MAX ? largest : total / (double)(batch * heads));
        }
        if (err == PD_OK && !pk_phi_shifted(a->phi)) {
            double sum = 0;

            err = read_scale(r, layer, &count, why);
            for (size_t h = 0; h < count && err == PD_OK; h++) {
                sum += r->numbers[h];
                if (count > 1)
                    train_push(r, keys[TRAIN_STATS * row + h + 1], r->numbers[h]);
            }
            if (err == PD_OK)
                train_push(r, keys[TRAIN_STATS * row], sum / (double)count);
        }
    }
    return err;
}
