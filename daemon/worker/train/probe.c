/* daemon/worker/train/probe.c: see probe.h. */
#include "daemon/worker/train/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESIDUAL_WARNED 1e-2 /* of a pseudo-inverse */
#define STATS 5              /* numbers of a layer and head, read from the graph */
static const char *const stat_keys[STATS] = {"attn/fro", "attn/jac_fro", "attn/jac_q_fro", "logit/std",
                                             "logit/max"};
static const char *const stat_outputs[STATS] = {"fro", "jac_fro", "jac_q_fro", "logit_std", "logit_max"};
enum { STAT_JAC_Q = 2, STAT_LOGIT_MAX = 4 };

struct key {
    char text[64];
};

struct probe {
    const struct session *session;
    struct model_store *store;
    struct executable executable;
    size_t heads;     /* of all attention modules, the most */
    size_t windows;   /* attention matrices of one sample and head, the most */
    struct key *keys; /* per layer: STATS + 1 names, each for the mean and for every head */
    struct key
        *formula; /* per layer: names of a formula's scalars, for the mean and every head, and of `broken` */
    struct key *blocks;    /* names of the activations, per block */
    struct key *residuals; /* names of the residuals of pseudo-inverses, per layer */
    bool warned;           /* that one is large */
    double *numbers;       /* scratch for outputs and learned scales */
};

static size_t most_heads(const struct model *model)
{
    int32_t most = 1, heads;
    size_t scale;

    for (size_t i = 0; i < model_attention_count(model); i++) {
        (void)model_attention_at(model, i, &heads, &scale);
        most = heads > most ? heads : most;
    }
    return (size_t)most;
}

static size_t most_windows(const struct model *model)
{
    int64_t most = 1;

    for (size_t i = 0; i < model_attention_count(model); i++)
        most = model_attention_windows(model, i) > most ? model_attention_windows(model, i) : most;
    return (size_t)most;
}

/* Names of statistic k of a layer (STATS: its scale): the mean, then every head. */
static struct key *keys_of(const struct probe *p, size_t layer, size_t k)
{
    return p->keys + (layer * (STATS + 1) + k) * (p->heads + 1);
}

static enum pd_err make_keys(struct probe *p, struct pd_why *why)
{
    const size_t modules = model_attention_count(p->session->setup.model);

    /* a network may have no attention */
    p->keys = calloc(modules * (STATS + 1) * (p->heads + 1) + 1, sizeof *p->keys);
    p->numbers =
        calloc((size_t)p->session->setup.probe_batch * p->windows * p->heads + p->heads, sizeof *p->numbers);
    p->blocks = calloc(model_block_count(p->session->setup.model) + 1, sizeof *p->blocks);
    p->residuals = calloc(modules + 1, sizeof *p->residuals);
    p->formula = calloc(modules * (PK_FORMULA_PARAMS * (p->heads + 1) + 1) + 1, sizeof *p->formula);
    if (!p->keys || !p->numbers || !p->blocks || !p->residuals || !p->formula)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the probe");
    for (size_t b = 0; b < model_block_count(p->session->setup.model); b++)
        snprintf(p->blocks[b].text, sizeof p->blocks[b].text, "act/rms/%zu", b + 1);
    for (size_t layer = 0; layer < modules; layer++)
        snprintf(p->residuals[layer].text, sizeof p->residuals[layer].text, "nystrom/residual/%zu",
                 layer + 1);
    for (size_t layer = 0; layer < modules; layer++)
        for (size_t k = 0; k <= STATS; k++)
            for (size_t h = 0; h <= p->heads; h++) {
                struct key *key = keys_of(p, layer, k) + h;
                const char *base = k == STATS ? "scale/c" : stat_keys[k];

                if (h)
                    snprintf(key->text, sizeof key->text, "%s/%zu/%zu", base, layer + 1, h);
                else
                    snprintf(key->text, sizeof key->text, "%s/%zu", base, layer + 1);
            }
    return PD_OK;
}

enum pd_err probe_open(const struct session *s, struct model_store *store, struct probe **ret,
                       struct pd_why *why)
{
    struct train_graph graph;
    struct probe *p;
    enum pd_err err;

    *ret = NULL;
    if (!train_graph_find(&s->setup, TRAIN_GRAPH_PROBE, &graph))
        return PD_OK;
    p = calloc(1, sizeof *p);
    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the probe");
    p->session = s;
    p->store = store;
    p->heads = most_heads(s->setup.model);
    p->windows = most_windows(s->setup.model);
    err = session_executable(s, &graph, store, NULL, &p->executable, why);
    if (err == PD_OK)
        err = make_keys(p, why);
    if (err == PD_OK)
        err = session_feed_probe(s, &p->executable, why);
    if (err == PD_OK)
        *ret = p;
    else
        probe_close(p);
    return err;
}

struct probe *probe_close(struct probe *p)
{
    if (!p)
        return NULL;
    executable_done(&p->executable);
    free(p->keys);
    free(p->formula);
    free(p->blocks);
    free(p->residuals);
    free(p->numbers);
    free(p);
    return NULL;
}

/* The numbers of parameter i, 1 or one of each head, into p->numbers. */
static enum pd_err read_numbers(struct probe *p, size_t i, size_t *ret_count, struct pd_why *why)
{
    const struct session *s = p->session;
    const struct model *model = s->setup.model;
    const bool wide = model_spec(model)->dtype == PK_F64;
    size_t count;
    enum pd_err err;

    count = (size_t)pk_shape_count(&model_param(model, i)->shape); /* 1 or heads: p->numbers has room */
    err = s->api->download(s->backend, p->numbers, model_store_data(p->store, i),
                           count * (wide ? sizeof(double) : sizeof(float)), why);
    for (size_t k = count; !wide && k-- > 0;) { /* from the last: in place */
        float narrow;

        memcpy(&narrow, (const char *)p->numbers + k * sizeof narrow, sizeof narrow);
        p->numbers[k] = narrow;
    }
    *ret_count = count;
    return err;
}

static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

/* The scale(s) in force in attention module `layer`: count numbers into p->numbers. */
static enum pd_err read_scale(struct probe *p, size_t layer, size_t *ret_count, struct pd_why *why)
{
    const struct model *model = p->session->setup.model;
    int32_t heads;
    size_t i, count;
    const struct model_attention *a = model_attention_at(model, layer, &heads, &i);
    enum pd_err err;

    *ret_count = 1;
    p->numbers[0] = a->scale_value;
    if (i == model_param_count(model))
        return PD_OK;
    err = read_numbers(p, i, &count, why);
    for (size_t k = 0; err == PD_OK && k < count; k++) {
        if (a->scale_param == MODEL_PARAM_LOG)
            p->numbers[k] = exp(p->numbers[k]);
        else if (a->scale_param == MODEL_PARAM_SOFTPLUS)
            p->numbers[k] = softplus(p->numbers[k]);
    }
    *ret_count = count;
    return err;
}

/* Statistic k of a layer with `heads` heads: means over the batch and the windows of each sample, of each head
 * and of all, or the largest. */
static enum pd_err push_stat(struct probe *p, size_t layer, size_t k, size_t heads, struct pd_why *why)
{
    struct reporter *reporter = p->session->reporter;
    const size_t batch = (size_t)p->session->setup.probe_batch *
                         (size_t)model_attention_windows(p->session->setup.model, layer);
    const struct key *keys = keys_of(p, layer, k);
    char name[40];
    double total = 0, largest = -INFINITY;
    enum pd_err err;

    snprintf(name, sizeof name, "%s/%zu", stat_outputs[k], layer + 1);
    err = executable_read(&p->executable, name, p->numbers, batch * heads, why); /* (B, H) */
    if (err != PD_OK)
        return err;
    for (size_t h = 0; h < heads; h++) {
        double sum = 0, most = -INFINITY, shown;

        for (size_t b = 0; b < batch; b++) {
            sum += p->numbers[b * heads + h];
            most = p->numbers[b * heads + h] > most || isnan(p->numbers[b * heads + h])
                       ? p->numbers[b * heads + h]
                       : most;
        }
        total += sum;
        largest = most > largest || isnan(most) ? most : largest;
        shown = k == STAT_LOGIT_MAX ? most : sum / (double)batch;
        reporter_push(reporter, keys[h + 1].text, shown);
    }
    reporter_push(reporter, keys[0].text, k == STAT_LOGIT_MAX ? largest : total / (double)(batch * heads));
    return PD_OK;
}

static enum pd_err push_scale(struct probe *p, size_t layer, struct pd_why *why)
{
    struct reporter *reporter = p->session->reporter;
    const struct key *keys = keys_of(p, layer, STATS);
    size_t count;
    double sum = 0;
    enum pd_err err = read_scale(p, layer, &count, why);

    if (err != PD_OK)
        return err;
    for (size_t h = 0; h < count; h++) {
        sum += p->numbers[h];
        if (count > 1)
            reporter_push(reporter, keys[h + 1].text, p->numbers[h]);
    }
    reporter_push(reporter, keys[0].text, sum / (double)count);
    return PD_OK;
}

/* How far F F+ F is from F, F the matrix between landmarks. Beyond RESIDUAL_WARNED the run says so, once. */
static enum pd_err push_residual(struct probe *p, size_t layer, struct pd_why *why)
{
    char name[40], fields[64], text[256];
    double residual;
    enum pd_err err;

    snprintf(name, sizeof name, "residual/%zu", layer + 1);
    err = executable_read(&p->executable, name, &residual, 1, why);
    if (err != PD_OK)
        return err;
    reporter_push(p->session->reporter, p->residuals[layer].text, residual);
    if (p->warned || residual <= RESIDUAL_WARNED)
        return PD_OK;
    p->warned = true;
    snprintf(fields, sizeof fields, "layer=%zu residual=%.3g", layer + 1, residual);
    snprintf(text, sizeof text,
             "the pseudo-inverse of layer %zu has a residual of %.3g, more than %g: a run with more "
             "model.pinv_iterations would come closer",
             layer + 1, residual, RESIDUAL_WARNED);
    reporter_event(p->session->reporter, "large_residual", fields, text);
    return PD_OK;
}

/* Learned scalars of a formula, and how many entries of A are not finite. */
static enum pd_err push_formula(struct probe *p, size_t layer, size_t heads, struct pd_why *why)
{
    const struct model *model = p->session->setup.model;
    const size_t batch =
        (size_t)p->session->setup.probe_batch * (size_t)model_attention_windows(model, layer);
    struct key *keys =
        p->formula + layer * (PK_FORMULA_PARAMS * (p->heads + 1) + 1); /* a reporter keeps the pointer */
    enum model_scalar_form form;
    const char *name;
    char output[40];
    size_t param, count;
    double broken = 0;
    enum pd_err err = PD_OK;

    for (size_t k = 0; err == PD_OK && model_formula_scalar(model, layer, k, &name, &form, &param); k++) {
        struct key *of = keys + 1 + k * (p->heads + 1);
        double sum = 0;

        err = read_numbers(p, param, &count, why);
        for (size_t h = 0; err == PD_OK && h < count; h++) {
            double *x = &p->numbers[h];

            *x = form == MODEL_SCALAR_LOG        ? exp(*x)
                 : form == MODEL_SCALAR_SOFTPLUS ? softplus(*x)
                 : form == MODEL_SCALAR_SIGMOID  ? 1 / (1 + exp(-*x))
                                                 : *x;
            sum += *x;
            snprintf(of[h + 1].text, sizeof of->text, "formula/%s/%zu/%zu", name, layer + 1, h + 1);
            if (count > 1)
                reporter_push(p->session->reporter, of[h + 1].text, *x);
        }
        snprintf(of->text, sizeof of->text, "formula/%s/%zu", name, layer + 1);
        if (err == PD_OK)
            reporter_push(p->session->reporter, of->text, sum / (double)count);
    }
    if (err != PD_OK)
        return err;
    snprintf(output, sizeof output, "broken/%zu", layer + 1);
    err = executable_read(&p->executable, output, p->numbers, batch * heads, why);
    for (size_t k = 0; err == PD_OK && k < batch * heads; k++)
        broken += p->numbers[k];
    snprintf(keys->text, sizeof keys->text, "formula_broken/%zu", layer + 1);
    if (err == PD_OK)
        reporter_push(p->session->reporter, keys->text, broken);
    return err;
}

static enum pd_err push_activations(struct probe *p, size_t block, struct pd_why *why)
{
    char name[40];
    double rms;
    enum pd_err err;

    snprintf(name, sizeof name, "act_rms/%zu", block + 1);
    err = executable_read(&p->executable, name, &rms, 1, why);
    if (err == PD_OK)
        reporter_push(p->session->reporter, p->blocks[block].text, rms);
    return err;
}

enum pd_err probe_run(struct probe *p, struct pd_why *why)
{
    const struct model *model = p->session->setup.model;
    enum pd_err err = pk_exec_run(p->executable.exec, why);

    for (size_t layer = 0; layer < model_attention_count(model) && err == PD_OK; layer++) {
        int32_t heads;
        size_t scale;
        const struct model_attention *a = model_attention_at(model, layer, &heads, &scale);

        for (size_t k = 0; k < STATS && err == PD_OK; k++)
            if (k != STAT_JAC_Q || model_attention_has_jac_q(model, layer))
                err = push_stat(p, layer, k, (size_t)heads, why);
        if (err == PD_OK && a->formula.text[0])
            err = push_formula(p, layer, (size_t)heads, why);
        else if (err == PD_OK && !pk_phi_shifted(a->phi))
            err = push_scale(p, layer, why);
        if (err == PD_OK && model_attention_has_inverse(model, layer))
            err = push_residual(p, layer, why);
    }
    for (size_t b = 0; b < model_block_count(model) && err == PD_OK; b++)
        err = push_activations(p, b, why);
    return err;
}
