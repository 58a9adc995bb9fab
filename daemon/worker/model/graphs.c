/* daemon/worker/model/graphs.c: the graphs around a network's forward pass. */
#include "daemon/worker/model/arch/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many points a network that reads them is given at once; of others the batch itself. */
static int32_t trained_points(const struct model *m, int32_t batch)
{
    return model_reads_points(&m->spec) ? batch * m->spec.grid[0] * m->spec.grid[1] : batch;
}

static int32_t scored_points(const struct model *m, int32_t batch)
{
    return model_reads_points(&m->spec) ? batch * m->spec.test_grid[0] * m->spec.test_grid[1] : batch;
}

static enum pd_err begin(struct net *n, const struct model *m, int32_t batch, int32_t tokens,
                         struct pd_why *why)
{
    memset(n, 0, sizeof *n);
    if (batch < 1 || (model_reads_tokens(&m->spec) && (tokens < 1 || tokens > m->spec.context)))
        return pd_fail(why, PD_ERR_INVALID,
                       "a graph for %d sequences of %d tokens, the model has %d positions", batch, tokens,
                       m->spec.context);
    n->m = m;
    n->batch = batch;
    n->tokens = model_reads_points(&m->spec) ? m->spec.context : tokens;
    n->causal = m->spec.arch->causal;
    n->g = pk_graph_new(false);
    n->param = calloc(m->count + 1, sizeof *n->param);
    if (!n->g || !n->param) {
        pk_graph_free(n->g);
        free(n->param);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    }
    pk_graph_precision(n->g, m->spec.mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
    return PD_OK;
}

/* Checks the graph and hands it over, or frees it. */
static enum pd_err finish(struct net *n, struct pk_graph **ret, struct pd_why *why)
{
    enum pd_err err =
        n->failed ? pd_fail(why, PD_ERR_NOMEM, "no memory for a graph") : pk_graph_check(n->g, why);

    free(n->param);
    free(n->change);
    free(n->stats);
    free(n->residual);
    if (err == PD_OK)
        *ret = n->g;
    else
        pk_graph_free(n->g);
    return err;
}

struct pk_val net_normalise(struct pk_graph *g, const struct model_spec *s, struct pk_val x)
{
    const struct pk_shape channel = PK_SHAPE(s->channels, 1, 1);

    pk_graph_scope(g, "normalise");
    if (s->pixels == MODEL_PIXELS_BYTES)
        x = pk_div(g, pk_cast(g, x, PK_F32), pk_fill(g, PK_F32, PK_SHAPE(1), 255));
    x = pk_div(g, pk_sub(g, x, pk_const(g, PK_F32, channel, s->mean)), pk_const(g, PK_F32, channel, s->std));
    return pk_cast(g, x, s->dtype);
}

static struct pk_val input(struct net *n, bool ready)
{
    const struct model_spec *s = &n->m->spec;
    const enum model_pixels pixels = ready ? MODEL_PIXELS_READY : s->pixels;
    const enum pk_dtype fed[] = {
        [MODEL_PIXELS_READY] = s->dtype, [MODEL_PIXELS_BYTES] = PK_U8, [MODEL_PIXELS_UNIT] = PK_F32};
    struct pk_val x;

    if (model_reads_points(s)) {
        const struct pk_shape each = PK_SHAPE(n->batch, n->tokens), one = PK_SHAPE(n->batch, n->tokens, 1);
        struct pk_val both[2];

        n->x = pk_input(n->g, "x", s->dtype, each);
        n->t = pk_input(n->g, "t", s->dtype, each);
        both[0] = pk_reshape(n->g, n->x, one);
        both[1] = pk_reshape(n->g, n->t, one);
        return pk_concat(n->g, 2, both, 2);
    }
    if (model_reads_tokens(s))
        return pk_input(n->g, "input", PK_I32, PK_SHAPE(n->batch, n->tokens));
    x = pk_input(n->g, "input", fed[pixels], PK_SHAPE(n->batch, s->channels, s->image_h, s->image_w));
    return pixels == MODEL_PIXELS_READY ? x : net_normalise(n->g, s, x);
}

static struct pk_val logits_of(struct net *n)
{
    return n->m->spec.arch->forward(n, input(n, false));
}

enum pd_err model_write_once(struct model *m, struct pd_why *why)
{
    struct net n;
    struct pk_graph *g;
    enum pd_err err = begin(&n, m, scored_points(m, 1), 1, why);

    if (err != PD_OK)
        return err;
    n.declares = m;
    pk_output(n.g, "logits", logits_of(&n));
    err = finish(&n, &g, why);
    if (err == PD_OK)
        pk_graph_free(g);
    return err;
}

/* ---- the loss ---- */

/* What a task sums up, each (1). */
struct sums {
    size_t count;
    struct pk_val val[MODEL_SUMS_MAX];
};

size_t model_loss_sums(const struct model_loss *l)
{
    size_t n = 0;

    while (l->sum[n])
        n++;
    return n;
}

static struct sums loss_of(struct net *n, const struct model_loss *l, struct model_rows *rows,
                           double smoothing)
{
    struct sums s = {.count = model_loss_sums(l)};

    rows->x = n->x;
    rows->t = n->t;
    rows->spec = &n->m->spec;
    pk_graph_scope(n->g, "loss");
    l->emit(n->g, rows, smoothing, s.val);
    return s;
}

/* Of training: with a teacher the network's own head learns the classes, the other one the teacher. */
static struct sums training_loss(struct net *n, const struct model_train_options *o,
                                 struct pk_val *ret_logits)
{
    const struct model_distil *d = o->distil;
    struct model_rows rows = {.shift = o->shift};
    struct pk_val images = input(n, o->ready);
    struct sums s;

    if (o->mix_group)
        images = net_mix(n, images, o->mix_group, &rows);
    *ret_logits = n->m->spec.arch->forward(n, images);
    rows.logits = d ? n->own : *ret_logits;
    s = loss_of(n, o->loss, &rows, o->label_smoothing);
    if (d)
        s.val[0] = pk_add(n->g, pk_scale(n->g, s.val[0], 1 - d->alpha),
                          pk_scale(n->g, net_distil(n, d, images, &rows), d->alpha));
    return s;
}

static struct pk_val join(struct net *n, const struct sums *s)
{
    return pk_concat(n->g, 0, s->val, s->count);
}

static struct sums apart(struct net *n, struct pk_val all, size_t count)
{
    struct sums s = {.count = count};

    for (size_t i = 0; i < count; i++)
        s.val[i] = pk_slice(n->g, all, 0, (int64_t)i, 1);
    return s;
}

/* Makes the first sum the mean, and all of them outputs of a step. */
static void report(struct net *n, const struct model_loss *l, struct sums *s)
{
    s->val[0] = pk_div(n->g, s->val[0], s->val[1]);
    pk_output(n->g, "loss", s->val[0]);
    for (size_t i = 1; i < s->count; i++)
        pk_output(n->g, l->sum[i], s->val[i]);
}

/* ---- a step ---- */

static void sum_gradients(struct net *n, const struct model_train_options *o, struct pk_val *grad)
{
    int32_t *owner = NULL;

    pk_graph_scope(n->g, "ranks");
    if (o->zero) {
        owner = calloc(n->m->trained + 1, sizeof *owner);
        n->failed |= !owner;
        for (size_t i = 0; owner && i < n->m->trained; i++)
            owner[i] = model_param_owner(n->m, i, o->ranks);
    }
    pk_all_reduce_buckets(n->g, grad, owner, n->m->trained, PK_BUCKET_BYTES, grad);
    free(owner);
}

static struct pk_val next_state(struct net *n, size_t i)
{
    char name[80];

    snprintf(name, sizeof name, "next/%s", n->m->param[i].name);
    return pk_state(n->g, name, n->m->spec.dtype, n->m->param[i].shape, PK_CAT_GRADIENTS);
}

/* Buffers, and their averages, where `gate` is not 0. parts: of what the parts of the step have left. */
static void write_buffers(struct net *n, const struct model_train_options *o, bool parts, struct pk_val gate)
{
    const struct model *m = n->m;

    pk_graph_scope(n->g, "buffers");
    for (size_t i = m->trained; i < m->count; i++) {
        const struct net_change c = m->param[i].frozen ? (struct net_change){.x = PK_NONE}
                                    : parts            ? (struct net_change){.x = next_state(n, i)}
                                                       : n->change[i];
        char name[80];

        if (c.x.id)
            pk_blend(n->g, n->param[i], c.x, gate, c.keep);
        if (!(o->ema > 0))
            continue;
        snprintf(name, sizeof name, "ema/%s", m->param[i].name);
        pk_blend(n->g, pk_state(n->g, name, m->spec.dtype, m->param[i].shape, PK_CAT_EMA), n->param[i], gate,
                 o->ema);
    }
}

/* What the step would make of them, as outputs. */
static void show_buffers(struct net *n)
{
    const struct model *m = n->m;

    for (size_t i = m->trained; i < m->count; i++) {
        const struct net_change c = n->change[i];
        struct pk_val x = c.x.id ? pk_scale(n->g, c.x, 1 - c.keep) : n->param[i];
        char name[80];

        if (c.x.id && c.keep > 0)
            x = pk_add(n->g, x, pk_scale(n->g, n->param[i], c.keep));
        snprintf(name, sizeof name, "next/%s", m->param[i].name);
        pk_output(n->g, name, x);
    }
}

/* The same of one part of a step: the first begins with what the buffers are. */
static void write_next(struct net *n, struct pk_val first)
{
    const struct model *m = n->m;

    for (size_t i = m->trained; i < m->count; i++) {
        struct pk_val next;

        if (m->param[i].frozen)
            continue;
        next = next_state(n, i);

        pk_blend(n->g, next, n->param[i], first, 0);
        if (n->change[i].x.id)
            pk_blend(n->g, next, n->change[i].x, pk_fill(n->g, m->spec.dtype, PK_SHAPE(1), 1),
                     n->change[i].keep);
    }
}

/* `reported`: the loss's sums, the first already its mean. `divisor`: the gradients are so many times too large. */
static void optimise(struct net *n, const struct model_train_options *o, const struct sums *reported,
                     struct pk_val divisor, const struct pk_val *grad, bool parts)
{
    struct model_optim_item *item = calloc(n->m->trained + 1, sizeof *item);
    struct pk_val gate = PK_NONE;

    n->failed |= !item;
    for (size_t i = 0; item && i < n->m->trained; i++)
        item[i] = (struct model_optim_item){
            .name = n->m->param[i].name,
            .param = n->param[i],
            .grad = grad[i],
            .decay = n->m->param[i].decay,
            .lr_mult = n->m->param[i].lr_mult,
            .owner = o->ranks > 1 && o->zero ? model_param_owner(n->m, i, o->ranks) : -1};
    if (item)
        gate = model_emit_optimiser(n->g, o, reported->val[0], divisor, item, n->m->trained, reported->val,
                                    reported->count);
    write_buffers(n, o, parts, gate);
    free(item);
}

/* Under ZeRO a parameter comes from another rank: rounding it here is less than sending it rounded as well.
 */
static bool keeps_copies(const struct model *m, const struct model_train_options *o)
{
    return o->copies && m->spec.mixed && m->spec.dtype == PK_F32 && !(o->ranks > 1 && o->zero);
}

enum pd_err model_graph_train(const struct model *m, const struct model_train_options *o, bool grads,
                              struct pk_graph **ret, struct pd_why *why)
{
    const bool ranks = o->ranks > 1 && !grads;
    struct net n;
    struct pk_val logits, local, *grad;
    struct sums loss;
    enum pd_err err = begin(&n, m, trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o) && !grads;
    grad = calloc(m->trained + 1, sizeof *grad);
    n.ranks = o->ranks;
    n.change = calloc(m->count + 1, sizeof *n.change);
    if (!grad || !n.change) {
        n.failed = true;
        goto out;
    }
    if (model_has_noise(&m->spec))
        n.rng = pk_input(n.g, "rng", PK_I32, PK_SHAPE(o->ranks > 1 ? 4 : 3));
    loss = training_loss(&n, o, &logits);
    local = loss.val[0];
    if (ranks) { /* the sums of all ranks: one collective, as soon as the loss is known */
        pk_graph_scope(n.g, "ranks");
        loss = apart(&n, pk_all_reduce(n.g, join(&n, &loss), -1), loss.count);
    }
    report(&n, o->loss, &loss);
    pk_grad(n.g, ranks ? local : loss.val[0], PK_NONE, n.param, m->trained, grad);
    if (grads) {
        pk_output(n.g, "logits", logits);
        if (n.distilled.id) {
            pk_output(n.g, "logits/own", n.own);
            pk_output(n.g, "logits/distilled", n.distilled);
        }
        for (size_t i = 0; i < m->trained; i++) {
            char name[72];

            snprintf(name, sizeof name, "grad/%s", m->param[i].name);
            pk_output(n.g, name, grad[i]);
        }
        show_buffers(&n);
    } else {
        if (ranks)
            sum_gradients(&n, o, grad);
        optimise(&n, o, &loss, ranks ? loss.val[1] : PK_NONE, grad, false);
    }
out:
    free(grad);
    return finish(&n, ret, why);
}

/* The states in which the parts of a step come together; sum[m->trained] is that of the loss's sums. */
static void sum_states(struct net *n, const struct model_loss *l, struct pk_val *sum)
{
    for (size_t i = 0; i < n->m->trained; i++) {
        char name[80];

        snprintf(name, sizeof name, "sum/%s", n->m->param[i].name);
        sum[i] = pk_state(n->g, name, n->m->spec.dtype, n->m->param[i].shape, PK_CAT_GRADIENTS);
    }
    sum[n->m->trained] =
        pk_state(n->g, "sum/loss", n->m->spec.dtype, PK_SHAPE((int64_t)model_loss_sums(l)), PK_CAT_GRADIENTS);
}

enum pd_err model_graph_part(const struct model *m, const struct model_train_options *o,
                             struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val *grad, *sum, first, logits;
    struct sums loss;
    enum pd_err err = begin(&n, m, trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o);
    grad = calloc(m->trained + 1, sizeof *grad);
    sum = calloc(m->trained + 1, sizeof *sum);
    n.ranks = o->ranks;
    n.change = calloc(m->count + 1, sizeof *n.change);
    if (!grad || !sum || !n.change) {
        n.failed = true;
        goto out;
    }
    if (model_has_noise(&m->spec))
        n.rng = pk_input(n.g, "rng", PK_I32, PK_SHAPE(o->ranks > 1 ? 4 : 3));
    loss = training_loss(&n, o, &logits);
    pk_grad(n.g, loss.val[0], PK_NONE, n.param, m->trained, grad);
    pk_graph_scope(n.g, "sum");
    first = pk_input(n.g, "first", m->spec.dtype, PK_SHAPE(1));
    sum_states(&n, o->loss, sum);
    for (size_t i = 0; i < m->trained; i++)
        pk_accumulate(n.g, sum[i], grad[i], first);
    pk_accumulate(n.g, sum[m->trained], join(&n, &loss), first);
    write_next(&n, first);
out:
    free(grad);
    free(sum);
    return finish(&n, ret, why);
}

enum pd_err model_graph_gradient(const struct model *m, const struct model_train_options *o,
                                 struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct model_rows rows = {.shift = o->shift};
    struct pk_val *grad, *sum, first;
    struct sums loss;
    enum pd_err err = begin(&n, m, trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    grad = calloc(m->trained + 1, sizeof *grad);
    sum = calloc(m->trained + 1, sizeof *sum);
    if (!grad || !sum) {
        n.failed = true;
        goto out;
    }
    rows.logits = logits_of(&n);
    loss = loss_of(&n, o->loss, &rows, o->label_smoothing);
    pk_grad(n.g, loss.val[0], PK_NONE, n.param, m->trained, grad);
    pk_graph_scope(n.g, "sum");
    first = pk_input(n.g, "first", m->spec.dtype, PK_SHAPE(1));
    sum_states(&n, o->loss, sum);
    for (size_t i = 0; i < m->trained; i++)
        pk_accumulate(n.g, sum[i], grad[i], first);
    pk_accumulate(n.g, sum[m->trained], join(&n, &loss), first);
out:
    free(grad);
    free(sum);
    return finish(&n, ret, why);
}

enum pd_err model_graph_apply(const struct model *m, const struct model_train_options *o,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val *sum, count;
    struct sums loss;
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o);
    sum = calloc(m->trained + 1, sizeof *sum);
    if (!sum) {
        n.failed = true;
        return finish(&n, ret, why);
    }
    for (size_t i = 0; i < m->count; i++)
        (void)net_param(&n, m->param[i].name, m->param[i].shape, NULL);
    sum_states(&n, o->loss, sum);
    if (o->ranks > 1) {
        sum[m->trained] = pk_all_reduce(n.g, sum[m->trained], -1);
        sum_gradients(&n, o, sum);
    }
    loss = apart(&n, sum[m->trained], model_loss_sums(o->loss));
    count = loss.val[1];
    report(&n, o->loss, &loss);
    optimise(&n, o, &loss, count, sum, true);
    free(sum);
    return finish(&n, ret, why);
}

enum pd_err model_graph_block(const struct model *m, int32_t batch, int32_t tokens, bool causal,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_shape shape = PK_SHAPE(batch, tokens, m->spec.width);
    struct pk_val *grad, *wrt, h, y;
    enum pd_err err;

    if (!m->spec.arch->first_block)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "no block of a %s stands alone", m->spec.arch->name);
    err = begin(&n, m, batch, 1, why);
    if (err != PD_OK)
        return err;
    n.tokens = tokens;
    n.causal = causal;
    grad = calloc(m->trained + 1, sizeof *grad);
    wrt = calloc(m->trained + 1, sizeof *wrt);
    if (!grad || !wrt) {
        n.failed = true;
        goto out;
    }
    h = pk_input(n.g, "h", m->spec.dtype, shape); /* a batch: mixed precision narrows it */
    y = m->spec.arch->first_block(&n, h);
    wrt[0] = h;
    memcpy(wrt + 1, n.param, m->trained * sizeof *wrt);
    for (size_t i = 0; i <= m->trained; i++) /* a block uses some of the model's parameters */
        if (!wrt[i].id)
            wrt[i] = h;
    pk_output(n.g, "y", y);
    pk_grad(n.g, y, pk_input(n.g, "gy", m->spec.dtype, shape), wrt, m->trained + 1, grad);
    pk_output(n.g, "dh", grad[0]);
    for (size_t i = 0; i < m->trained; i++) {
        char name[80];

        snprintf(name, sizeof name, "grad/%s", m->param[i].name);
        if (n.param[i].id)
            pk_output(n.g, name, grad[i + 1]);
    }
out:
    free(grad);
    free(wrt);
    return finish(&n, ret, why);
}

enum pd_err model_graph_eval(const struct model *m, const struct model_loss *l, int32_t batch,
                             int32_t context, struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct model_rows rows = {.logits = PK_NONE};
    struct sums loss;
    enum pd_err err = begin(&n, m, scored_points(m, batch), context, why);

    if (err != PD_OK)
        return err;
    rows.logits = logits_of(&n);
    if (l->emit_eval) {
        loss = (struct sums){.count = model_loss_sums(l)};
        pk_graph_scope(n.g, "loss");
        l->emit_eval(n.g, rows.logits, batch, loss.val);
    } else {
        loss = loss_of(&n, l, &rows, 0);
    }
    pk_output(n.g, "logits", rows.logits);
    for (size_t i = 0; i < loss.count; i++)
        pk_output(n.g, l->sum[i], loss.val[i]);
    return finish(&n, ret, why);
}

enum pd_err model_graph_probe(const struct model *m, int32_t batch, int32_t context, bool lead,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    enum pd_err err = begin(&n, m, scored_points(m, batch), context, why);

    if (err != PD_OK)
        return err;
    n.stats = calloc(m->modules + 1, sizeof *n.stats);
    n.residual = calloc(m->modules + 1, sizeof *n.residual);
    if (!n.stats || !n.residual) {
        free(n.stats);
        free(n.residual);
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    }
    n.skip = lead ? 0 : model_grid(m).lead;
    (void)logits_of(&n);
    if (n.skip && n.skipped < m->modules) {
        free(n.stats);
        free(n.residual);
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/diagnostics/probe_cls: in this network attention is not between tokens alone");
    }
    for (size_t i = 0; i < m->modules; i++) {
        const struct {
            const char *name;
            struct pk_val v;
        } out[] = {{"fro", n.stats[i].fro},
                   {"jac_fro", n.stats[i].jac_fro},
                   {"jac_q_fro", n.stats[i].jac_q_fro},
                   {"logit_std", n.stats[i].logit_std},
                   {"logit_max", n.stats[i].logit_max},
                   {"broken", n.stats[i].broken}};

        for (size_t k = 0; k < sizeof out / sizeof out[0]; k++) {
            char name[32];

            if (!out[k].v.id)
                continue;
            snprintf(name, sizeof name, "%s/%zu", out[k].name, i + 1);
            pk_output(n.g, name, out[k].v);
        }
        if (n.residual[i].id) {
            char name[32];

            snprintf(name, sizeof name, "residual/%zu", i + 1);
            pk_output(n.g, name, n.residual[i]);
        }
    }
    return finish(&n, ret, why);
}

/* The first layer or head of the lists that the network does not have is an error. */
static enum pd_err check_maps(const struct model *m, const struct model_maps *maps, struct pd_why *why)
{
    int64_t heads = 0;

    for (size_t i = 0; i < maps->layer_count; i++)
        if (maps->layers[i] < 1 || maps->layers[i] > (int64_t)m->modules)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/diagnostics/heatmaps/layers: there is no layer %lld; the network has %zu",
                           (long long)maps->layers[i], m->modules);
    for (size_t l = 0; l < m->modules; l++)
        if (model_maps_has(maps, (int64_t)l + 1, maps->head_count ? maps->heads[0] : 1) &&
            (!heads || m->module[l].heads < heads))
            heads = m->module[l].heads;
    for (size_t i = 0; i < maps->head_count; i++)
        if (maps->heads[i] < 1 || maps->heads[i] > heads)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/diagnostics/heatmaps/heads: there is no head %lld; a chosen layer has %lld",
                           (long long)maps->heads[i], (long long)heads);
    return m->modules ? PD_OK
                      : pd_fail(why, PD_ERR_INVALID, "#/diagnostics/heatmaps: the network has no attention");
}

enum pd_err model_graph_maps(const struct model *m, const struct model_maps *maps, int32_t batch,
                             int32_t context, struct pk_graph **ret, struct pd_why *why)
{
    const int64_t times = maps->times > 0 ? maps->times : 1;
    int64_t wanted = 0; /* heads */
    struct pk_graph *g = NULL;
    struct net n;
    enum pd_err err = check_maps(m, maps, why);

    if (err == PD_OK)
        err = begin(&n, m, scored_points(m, batch), context, why);
    if (err != PD_OK)
        return err;
    n.maps = maps;
    (void)logits_of(&n);
    err = finish(&n, &g, why);
    if (err != PD_OK)
        return err;
    for (size_t l = 0; l < m->modules; l++)
        for (int32_t h = 0; h < m->module[l].heads; h++)
            wanted += model_maps_has(maps, (int64_t)l + 1, h + 1);
    if (n.map_heads < wanted)
        err = pd_fail(why, PD_ERR_UNSUPPORTED,
                      "#/diagnostics/heatmaps: a chosen layer's attention has no matrix of queries and keys");
    else if (n.map_tokens > MODEL_MAP_TOKENS)
        err = pd_fail(why, PD_ERR_INVALID,
                      "#/diagnostics/heatmaps: matrices of %lld x %lld; at most %d tokens a side are stored",
                      (long long)n.map_tokens, (long long)n.map_tokens, MODEL_MAP_TOKENS);
    else if (n.map_bytes > MODEL_MAP_BYTES / times)
        err = pd_fail(
            why, PD_ERR_INVALID,
            "#/diagnostics/heatmaps: %lld times %.1f MiB of matrices; at most %lld MiB are stored of a "
            "run: choose fewer layers and heads, or a larger every",
            (long long)times, (double)n.map_bytes / 1048576, MODEL_MAP_BYTES >> 20);
    else if (n.map_heads > MODEL_MAP_HEADS / times)
        err =
            pd_fail(why, PD_ERR_INVALID,
                    "#/diagnostics/heatmaps: %lld heads %lld times; at most %d matrices are stored of a run",
                    (long long)n.map_heads, (long long)times, MODEL_MAP_HEADS);
    else if (n.map_count > MODEL_MAP_COUNT)
        err = pd_fail(
            why, PD_ERR_INVALID,
            "#/diagnostics/probe_batch: a head has %lld logits over the batch; heat maps count at most %d",
            (long long)n.map_count, MODEL_MAP_COUNT);
    if (err == PD_OK)
        *ret = g;
    else
        pk_graph_free(g);
    return err;
}

enum pd_err model_graph_classify(const struct model *m, int32_t batch, int32_t context, struct pk_graph **ret,
                                 struct pd_why *why)
{
    struct net n;
    enum pd_err err;

    if (model_decodes(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a language model does not classify");
    err = begin(&n, m, batch, context, why);
    if (err != PD_OK)
        return err;
    pk_output(n.g, "logits", logits_of(&n));
    return finish(&n, ret, why);
}

/* cache 0: a state of constant size. */
static enum pd_err decode_graph(const struct model *m, int32_t batch, int32_t count, int32_t cache,
                                int32_t picks, struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val in, pick, positions;
    enum pd_err err;

    if (!model_decodes(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a classifier does not decode");
    err = begin(&n, m, batch, count, why);
    if (err != PD_OK)
        return err;
    n.decode = true;
    n.cache = cache;
    in = input(&n, false);
    positions = pk_input(n.g, "pos", PK_I32, PK_SHAPE(n.batch, n.tokens));
    n.position = pk_input(n.g, "position", PK_I32, PK_SHAPE(n.batch));
    n.length = pk_input(n.g, "length", PK_I32, PK_SHAPE(n.batch));
    pick = pk_input(n.g, "pick", PK_I32, PK_SHAPE(picks));
    pk_output(n.g, "logits", m->spec.arch->decode(&n, in, positions, pick));
    return finish(&n, ret, why);
}

enum pd_err model_graph_decode(const struct model *m, int32_t batch, int32_t count, int32_t cache,
                               struct pk_graph **ret, struct pd_why *why)
{
    if (cache < count || cache < 1)
        return pd_fail(why, PD_ERR_INVALID, "a cache of %d tokens cannot take %d", cache, count);
    return decode_graph(m, batch, count, cache, batch, ret, why);
}

enum pd_err model_graph_score(const struct model *m, int32_t count, int32_t cache, struct pk_graph **ret,
                              struct pd_why *why)
{
    if (cache && cache < count)
        return pd_fail(why, PD_ERR_INVALID, "a cache of %d tokens cannot take %d", cache, count);
    if (!cache && !model_has_state(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this attention has no state of constant size");
    return decode_graph(m, 1, count, cache, count, ret, why);
}

bool model_has_state(const struct model_spec *s)
{
    const struct model_attention *a = &s->attention;

    return model_decodes(s) && !a->formula.text[0] && pk_phi_power(a->phi) && a->degree <= 2 &&
           a->logit_bias == 0;
}

enum pd_err model_graph_decode_state(const struct model *m, int32_t batch, int32_t count,
                                     struct pk_graph **ret, struct pd_why *why)
{
    if (!model_has_state(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "only a language model with x^1 or x^2 decodes with a state of constant size");
    return decode_graph(m, batch, count, 0, batch, ret, why);
}

/* ---- searching along a line: all trained parameters as one vector ---- */

/* Each parameter begins on a boundary of 256 bytes; what lies between stays 0 and changes no product. */
static int64_t line_place(const struct model *m, size_t i)
{
    const int64_t unit = 256 / (int64_t)pk_dtype_size(m->spec.dtype);
    int64_t at = 0;

    for (size_t k = 0; k < i; k++)
        at += (pk_shape_count(&m->param[k].shape) + unit - 1) / unit * unit;
    return at;
}

int64_t model_line_length(const struct model *m)
{
    return line_place(m, m->trained);
}

/* The vectors and the history, in the order of checkpoints. */
struct line {
    struct pk_val along, x, d, g, before, s, y;
};

/* States and the input of all graphs of a line, whether a graph uses them or not: the first one owns them. */
static struct line line_of(struct net *n, const struct model_train_options *o)
{
    const enum pk_dtype dtype = n->m->spec.dtype;
    const int64_t length = model_line_length(n->m);
    const struct pk_shape one = PK_SHAPE(length), rows = PK_SHAPE(1, 1, o->line_rows, length);
    struct line l = {.along = pk_input(n->g, MODEL_LINE_ALONG, dtype, PK_SHAPE(1))};

    l.x = pk_state(n->g, "line/x", dtype, one, PK_CAT_MOMENT2);
    l.g = pk_state(n->g, "line/g", dtype, one, PK_CAT_MOMENT2);
    l.d = pk_state(n->g, MODEL_LINE_SAVED "d", dtype, one, PK_CAT_MOMENT1);
    l.before = pk_state(n->g, MODEL_LINE_SAVED "g", dtype, one, PK_CAT_MOMENT1);
    l.s = pk_state(n->g, MODEL_LINE_SAVED "s", dtype, rows, PK_CAT_MOMENT1);
    l.y = pk_state(n->g, MODEL_LINE_SAVED "y", dtype, rows, PK_CAT_MOMENT1);
    (void)pk_state(n->g, MODEL_LINE_NUMBERS, PK_F64, PK_SHAPE(o->line_numbers), PK_CAT_MOMENT1);
    return l;
}

static void put(struct net *n, struct pk_val state, struct pk_val x)
{
    pk_blend(n->g, state, x, pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(1), 1), 0);
}

/* Tensors of the trained parameters' shapes as one vector. */
static struct pk_val as_vector(struct net *n, const struct pk_val *part)
{
    const struct model *m = n->m;
    struct pk_val *all = calloc(2 * m->trained + 1, sizeof *all), ret;
    size_t count = 0;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (size_t i = 0; i < m->trained; i++) {
        const int64_t length = pk_shape_count(&m->param[i].shape),
                      gap = line_place(m, i + 1) - line_place(m, i) - length;

        all[count++] = pk_reshape(n->g, part[i], PK_SHAPE(length));
        if (gap)
            all[count++] = pk_fill(n->g, m->spec.dtype, PK_SHAPE(gap), 0);
    }
    ret = pk_concat(n->g, 0, all, count);
    free(all);
    return ret;
}

static struct pk_val part_of_vector(struct net *n, struct pk_val vector, size_t i)
{
    const struct pk_shape shape = n->m->param[i].shape;

    return pk_reshape(n->g, pk_slice(n->g, vector, 0, line_place(n->m, i), pk_shape_count(&shape)), shape);
}

static struct pk_val one_number(struct net *n, struct pk_val x)
{
    return pk_reshape(n->g, x, PK_SHAPE(1));
}

static struct pk_val dot(struct net *n, struct pk_val a, struct pk_val b)
{
    return one_number(n, pk_sum(n->g, pk_mul(n->g, a, b), 1u << 0, true));
}

static struct pk_val absolute(struct net *n, struct pk_val x)
{
    return pk_max2(n->g, x, pk_scale(n->g, x, -1));
}

enum pd_err model_graph_line(const struct model *m, const struct model_train_options *o,
                             struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct line l;
    struct sums loss;
    struct pk_val *grad, logits, x, g, size, reported[MODEL_REPORT_MAX];
    enum pd_err err = begin(&n, m, trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    grad = calloc(m->trained + 1, sizeof *grad);
    if (!grad) {
        n.failed = true;
        return finish(&n, ret, why);
    }
    pk_graph_scope(n.g, "line");
    l = line_of(&n, o);
    x = pk_add(n.g, l.x, pk_mul(n.g, l.along, l.d));
    for (size_t i = 0; i < m->trained; i++)
        n.param[i] = part_of_vector(&n, x, i);
    loss = training_loss(&n, o, &logits);
    report(&n, o->loss, &loss);
    pk_grad(n.g, loss.val[0], PK_NONE, n.param, m->trained, grad);
    pk_graph_scope(n.g, "line");
    g = as_vector(&n, grad);
    free(grad);
    put(&n, l.g, g);
    memcpy(reported, loss.val, loss.count * sizeof *reported);
    size = pk_unary(n.g, PK_EX_SQRT, dot(&n, g, g));
    reported[loss.count + MODEL_LINE_NORM] = size;
    reported[loss.count + MODEL_LINE_FINITE] =
        pk_mul(n.g, pk_unary(n.g, PK_EX_FINITE, loss.val[0]), pk_unary(n.g, PK_EX_FINITE, size));
    reported[loss.count + MODEL_LINE_SLOPE] = dot(&n, g, l.d);
    reported[loss.count + MODEL_LINE_LARGEST] =
        one_number(&n, pk_maximum(n.g, absolute(&n, g), 1u << 0, true));
    reported[loss.count + MODEL_LINE_SUM] = one_number(&n, pk_sum(n.g, absolute(&n, g), 1u << 0, true));
    pk_output(n.g, "report", pk_concat(n.g, 0, reported, loss.count + MODEL_LINE_NUMBERS_OF_POINT));
    return finish(&n, ret, why);
}

enum pd_err model_graph_line_pair(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    const int64_t length = model_line_length(m);
    const struct pk_shape row = PK_SHAPE(1, 1, 1, length), rows = PK_SHAPE(o->line_rows, length);
    struct net n;
    struct line l;
    struct pk_val at, fresh[2], with[3], s, y;
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    at = pk_input(n.g, MODEL_LINE_ROW, PK_I32, PK_SHAPE(1));
    fresh[0] = pk_mul(n.g, l.along, l.d);
    fresh[1] = pk_sub(n.g, l.g, l.before);
    s = pk_reshape(n.g, pk_cache_append(n.g, l.s, pk_reshape(n.g, fresh[0], row), at), rows);
    y = pk_reshape(n.g, pk_cache_append(n.g, l.y, pk_reshape(n.g, fresh[1], row), at), rows);
    with[0] = pk_reshape(n.g, fresh[1], PK_SHAPE(1, length));
    with[1] = pk_reshape(n.g, l.g, PK_SHAPE(1, length));
    with[2] = pk_reshape(n.g, fresh[0], PK_SHAPE(1, length));
    with[0] = pk_concat(n.g, 0, with, 3); /* (3, length): y, g, s */
    pk_output(n.g, "products",
              pk_concat(n.g, 0,
                        (struct pk_val[]){pk_matmul(n.g, s, pk_transpose(n.g, with[0])),
                                          pk_matmul(n.g, y, pk_transpose(n.g, with[0]))},
                        2));
    return finish(&n, ret, why);
}

enum pd_err model_graph_line_direct(const struct model *m, const struct model_train_options *o,
                                    struct pk_graph **ret, struct pd_why *why)
{
    const int64_t length = model_line_length(m);
    const struct pk_shape rows = PK_SHAPE(o->line_rows, length), one = PK_SHAPE(length);
    struct net n;
    struct line l;
    struct pk_val c, d, reported[2];
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    c = pk_input(n.g, MODEL_LINE_SHARES, m->spec.dtype, PK_SHAPE(1, 2 * o->line_rows + 1));
    d = pk_reshape(n.g, pk_matmul(n.g, pk_slice(n.g, c, 1, 0, o->line_rows), pk_reshape(n.g, l.s, rows)),
                   one);
    d = pk_add(n.g, d,
               pk_reshape(n.g,
                          pk_matmul(n.g, pk_slice(n.g, c, 1, o->line_rows, o->line_rows),
                                    pk_reshape(n.g, l.y, rows)),
                          one));
    d = pk_add(n.g, d, pk_mul(n.g, one_number(&n, pk_slice(n.g, c, 1, 2 * o->line_rows, 1)), l.g));
    put(&n, l.d, d);
    put(&n, l.before, l.g);
    reported[0] = dot(&n, l.g, d);
    reported[1] = one_number(&n, pk_maximum(n.g, absolute(&n, d), 1u << 0, true));
    pk_output(n.g, "direction", pk_concat(n.g, 0, reported, 2));
    return finish(&n, ret, why);
}

static enum pd_err line_params(const struct model *m, const struct model_train_options *o, bool load,
                               struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct line l;
    struct pk_val x;
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    for (size_t i = 0; i < m->trained; i++)
        (void)net_param(&n, m->param[i].name, m->param[i].shape, NULL);
    if (load) {
        put(&n, l.x, as_vector(&n, n.param));
        return finish(&n, ret, why);
    }
    x = pk_add(n.g, l.x, pk_mul(n.g, l.along, l.d));
    for (size_t i = 0; i < m->trained; i++)
        put(&n, n.param[i], part_of_vector(&n, x, i));
    return finish(&n, ret, why);
}

enum pd_err model_graph_line_move(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    return line_params(m, o, false, ret, why);
}

enum pd_err model_graph_line_load(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    return line_params(m, o, true, ret, why);
}
