/* daemon/train/measure.c: what is measured between steps: the validation set, and the probe batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/train/run.h"

static const char *const stat_keys[TRAIN_STATS] = {"attn/fro", "attn/jac_fro", "attn/jac_q_fro", "logit/std",
                                                   "logit/max"};
static const char *const stat_outputs[TRAIN_STATS] = {"fro", "jac_fro", "jac_q_fro", "logit_std",
                                                      "logit_max"};
enum { STAT_JAC_Q = 2, STAT_LOGIT_MAX = 4 };

/* Sums over the validation set: {loss, count, correct}. */
static enum pd_err score(struct run *r, double sum[3], bool *ret_abandoned, struct pd_why *why)
{
    static const char *const names[3] = {"loss_sum", "count", "correct"};
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
    sum[0] = sum[1] = sum[2] = 0;
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
        for (int i = 0; i < 3 && err == PD_OK; i++) {
            double x = 0;

            err = train_number(r, &r->eval, names[i], &x, 1, why);
            sum[i] += x;
        }
    }
    data_loader_free(l);
    train_say_bad(r);
    if (err == PD_OK && !*ret_abandoned)
        err = train_ranks_sum(r, sum, 3, why);
    return err;
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

enum pd_err train_evaluate(struct run *r, bool *ret_abandoned, struct pd_why *why)
{
    const bool classifier = r->setup.classifier;
    double sum[3], average[3];
    const double *judged;
    bool was_best = false;
    enum pd_err err = score(r, sum, ret_abandoned, why);

    if (err == PD_OK && !*ret_abandoned && r->averages) {
        enum pd_err back;

        err = look_at(r, true, why);
        if (err == PD_OK)
            err = score(r, average, ret_abandoned, why);
        back = look_at(r, false, why);
        err = err == PD_OK ? back : err;
    }
    if (err != PD_OK || *ret_abandoned)
        return err;
    r->state.loss_val = sum[0] / sum[1];
    r->state.metric_val = classifier ? sum[2] / sum[1] : exp(r->state.loss_val);
    judged = r->setup.judge_averages ? average : sum;
    r->state.score = classifier ? judged[2] / judged[1] : judged[0] / judged[1];
    was_best = train_better(r, r->state.score, r->state.best_value);
    if (was_best) {
        r->state.best_value = r->state.score;
        r->state.best_step = r->state.step;
    }
    train_push(r, "loss/val", r->state.loss_val);
    train_push(r, classifier ? "acc/val" : "ppl/val", r->state.metric_val);
    if (r->averages) {
        double loss = average[0] / average[1];

        train_push(r, "loss/val_ema", loss);
        train_push(r, classifier ? "acc/val_ema" : "ppl/val_ema",
                   classifier ? average[2] / average[1] : exp(loss));
    }
    train_note(r, "step %lld loss/val %.4f %s %.4f%s", (long long)r->state.step, r->state.loss_val,
               classifier ? "acc/val" : "ppl/val", r->state.metric_val, was_best ? " best" : "");
    return PD_OK;
}

enum pd_err train_probe_prepare(struct run *r, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    size_t heads = (size_t)m->heads, per_layer = (TRAIN_STATS + 1) * (heads + 1), need;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err;

    r->keys = calloc((size_t)m->depth * per_layer, sizeof *r->keys);
    need = (size_t)r->setup.probe_batch * heads;
    r->numbers = calloc(need > heads ? need : heads, sizeof *r->numbers);
    if (!r->keys || !r->numbers)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the probe");
    for (int32_t layer = 0; layer < m->depth; layer++)
        for (size_t k = 0; k <= TRAIN_STATS; k++)
            for (size_t h = 0; h <= heads; h++) {
                char *key = r->keys[(size_t)layer * per_layer + k * (heads + 1) + h];
                const char *base = k == TRAIN_STATS ? "scale/c" : stat_keys[k];

                if (h)
                    snprintf(key, sizeof r->keys[0], "%s/%d/%zu", base, layer + 1, h);
                else
                    snprintf(key, sizeof r->keys[0], "%s/%d", base, layer + 1);
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

/* The scale(s) in force in a layer: count numbers into r->numbers. */
static enum pd_err read_scale(struct run *r, int32_t layer, size_t *ret_count, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    char prefix[64];

    *ret_count = 1;
    r->numbers[0] = m->scale_value;
    if (m->scale != MODEL_SCALE_LEARNED)
        return PD_OK;
    snprintf(prefix, sizeof prefix,
             m->arch == MODEL_VIT ? "blocks.%d.attn.attn_scale" : "transformer.h.%d.attn.attn_scale", layer);
    if (m->share == MODEL_SHARE_GLOBAL)
        snprintf(prefix, sizeof prefix, "attn_scale");
    for (size_t i = 0; i < model_param_count(r->setup.model); i++) {
        const struct model_param *p = model_param(r->setup.model, i);
        size_t count = (size_t)pk_shape_count(&p->shape);
        float narrow[65536 / 64];
        enum pd_err err;

        if (p->role != MODEL_ROLE_SCALE || strncmp(p->name, prefix, strlen(prefix)))
            continue;
        if (count > sizeof narrow / sizeof narrow[0])
            return pd_fail(why, PD_ERR_LIMIT, "more heads than the probe can show");
        if (m->dtype == PK_F64) {
            err = r->api->download(r->backend, r->numbers, model_store_data(r->store, i),
                                   count * sizeof(double), why);
        } else {
            err = r->api->download(r->backend, narrow, model_store_data(r->store, i), count * sizeof *narrow,
                                   why);
            for (size_t k = 0; k < count; k++)
                r->numbers[k] = narrow[k];
        }
        for (size_t k = 0; k < count; k++) {
            if (m->scale_param == MODEL_PARAM_LOG)
                r->numbers[k] = exp(r->numbers[k]);
            else if (m->scale_param == MODEL_PARAM_SOFTPLUS)
                r->numbers[k] = log1p(exp(r->numbers[k]));
        }
        *ret_count = count;
        return err;
    }
    return pd_fail(why, PD_ERR_INTERNAL, "no learned scale in layer %d", layer);
}

enum pd_err train_probe(struct run *r, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    size_t heads = (size_t)m->heads, batch = (size_t)r->setup.probe_batch,
           per_layer = (TRAIN_STATS + 1) * (heads + 1);
    enum pd_err err = pk_exec_run(r->probe.exec, why);

    for (int32_t layer = 0; layer < m->depth && err == PD_OK; layer++) {
        char(*keys)[40] = r->keys + (size_t)layer * per_layer;
        size_t count;

        for (size_t k = 0; k < TRAIN_STATS && err == PD_OK; k++) {
            double total = 0, largest = -INFINITY;
            char name[40];

            if (k == STAT_JAC_Q && m->qk_norm)
                continue; /* W_Q acts through a norm: the closed form does not hold */
            snprintf(name, sizeof name, "%s/%d", stat_outputs[k], layer + 1);
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
                train_push(r, keys[k * (heads + 1) + h + 1], shown);
            }
            if (err == PD_OK)
                train_push(r, keys[k * (heads + 1)],
                           k == STAT_LOGIT_MAX ? largest : total / (double)(batch * heads));
        }
        if (err == PD_OK && m->phi != PK_PHI_SOFTMAX) {
            double sum = 0;

            err = read_scale(r, layer, &count, why);
            for (size_t h = 0; h < count && err == PD_OK; h++) {
                sum += r->numbers[h];
                if (count > 1)
                    train_push(r, keys[TRAIN_STATS * (heads + 1) + h + 1], r->numbers[h]);
            }
            if (err == PD_OK)
                train_push(r, keys[TRAIN_STATS * (heads + 1)], sum / (double)count);
        }
    }
    return err;
}
