/* daemon/worker/model/graphs.c: the graphs of training around a network's forward pass, and what all graphs share. */
#include "daemon/worker/model/graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"

int32_t graph_trained_points(const struct model *m, int32_t batch)
{
    return model_reads_points(&m->spec) ? batch * m->spec.grid[0] * m->spec.grid[1] : batch;
}

int32_t graph_scored_points(const struct model *m, int32_t batch)
{
    return model_reads_points(&m->spec) ? batch * m->spec.test_grid[0] * m->spec.test_grid[1] : batch;
}

enum pd_err graph_begin(struct net *n, const struct model *m, int32_t batch, int32_t tokens,
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

enum pd_err graph_finish(struct net *n, struct pk_graph **ret, struct pd_why *why)
{
    enum pd_err err;

    if (n->failed)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    else if (n->refused[0])
        err =
            pd_fail(why, PD_ERR_INVALID,
                    "#/attention/params/%s/init: must give a value that the scalar's form allows in each of "
                    "its heads and layers",
                    n->refused);
    else
        err = pk_graph_check(n->g, why);
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

struct pk_val graph_input(struct net *n, bool ready)
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

struct pk_val graph_logits(struct net *n)
{
    return n->m->spec.arch->forward(n, graph_input(n, false));
}

enum pd_err model_write_once(struct model *m, struct pd_why *why)
{
    struct net n;
    struct pk_graph *g;
    enum pd_err err = graph_begin(&n, m, graph_scored_points(m, 1), 1, why);

    if (err != PD_OK)
        return err;
    n.declares = m;
    pk_output(n.g, "logits", graph_logits(&n));
    err = graph_finish(&n, &g, why);
    if (err == PD_OK)
        pk_graph_free(g);
    return err;
}

/* ---- the loss ---- */

size_t model_loss_sums(const struct model_loss *l)
{
    size_t n = 0;

    while (l->sum[n])
        n++;
    return n;
}

struct graph_sums graph_loss(struct net *n, const struct model_loss *l, struct model_rows *rows,
                             double smoothing)
{
    struct graph_sums s = {.count = model_loss_sums(l)};

    rows->x = n->x;
    rows->t = n->t;
    rows->spec = &n->m->spec;
    pk_graph_scope(n->g, "loss");
    l->emit(n->g, rows, smoothing, s.val);
    return s;
}

/* Of training: with a teacher the network's own head learns the classes, the other one the teacher. */
struct graph_sums graph_training_loss(struct net *n, const struct model_train_options *o,
                                      struct pk_val *ret_logits)
{
    const struct model_distil *d = o->distil;
    struct model_rows rows = {.shift = o->shift};
    struct pk_val images = graph_input(n, o->ready);
    struct graph_sums s;

    if (o->mix_group)
        images = net_mix(n, images, o->mix_group, &rows);
    *ret_logits = n->m->spec.arch->forward(n, images);
    rows.logits = d ? n->own : *ret_logits;
    s = graph_loss(n, o->loss, &rows, o->label_smoothing);
    if (d)
        s.val[0] = pk_add(n->g, pk_scale(n->g, s.val[0], 1 - d->alpha),
                          pk_scale(n->g, net_distil(n, d, images, &rows), d->alpha));
    return s;
}

static struct pk_val join(struct net *n, const struct graph_sums *s)
{
    return pk_concat(n->g, 0, s->val, s->count);
}

static struct graph_sums apart(struct net *n, struct pk_val all, size_t count)
{
    struct graph_sums s = {.count = count};

    for (size_t i = 0; i < count; i++)
        s.val[i] = pk_slice(n->g, all, 0, (int64_t)i, 1);
    return s;
}

void graph_report(struct net *n, const struct model_loss *l, struct graph_sums *s)
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

/* Buffers, and their averages (of a count itself), where `gate` is not 0. parts: of what the parts of the step have left. */
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
            pk_blend(n->g, n->param[i], c.x, gate, c.decay);
        if (!(o->ema > 0))
            continue;
        snprintf(name, sizeof name, "ema/%s", m->param[i].name);
        pk_blend(n->g, pk_state(n->g, name, m->spec.dtype, m->param[i].shape, PK_CAT_EMA), n->param[i], gate,
                 m->param[i].whole ? 0 : o->ema);
    }
}

/* What the step would make of them, as outputs. */
static void show_buffers(struct net *n)
{
    const struct model *m = n->m;

    for (size_t i = m->trained; i < m->count; i++) {
        const struct net_change c = n->change[i];
        struct pk_val x = c.x.id ? pk_scale(n->g, c.x, 1 - c.decay) : n->param[i];
        char name[80];

        if (c.x.id && c.decay > 0)
            x = pk_add(n->g, x, pk_scale(n->g, n->param[i], c.decay));
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
                     n->change[i].decay);
    }
}

/* `reported`: the loss's sums, the first already its mean. `divisor`: the gradients are so many times too large. */
static void optimise(struct net *n, const struct model_train_options *o, const struct graph_sums *reported,
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
static bool has_copies(const struct model *m, const struct model_train_options *o)
{
    return o->copies && m->spec.mixed && m->spec.dtype == PK_F32 && !(o->ranks > 1 && o->zero);
}

enum pd_err model_graph_train(const struct model *m, const struct model_train_options *o, bool grads,
                              struct pk_graph **ret, struct pd_why *why)
{
    const bool ranks = o->ranks > 1 && !grads;
    struct net n;
    struct pk_val logits, local, *grad;
    struct graph_sums loss;
    enum pd_err err = graph_begin(&n, m, graph_trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = has_copies(m, o) && !grads;
    grad = calloc(m->trained + 1, sizeof *grad);
    n.ranks = o->ranks;
    n.change = calloc(m->count + 1, sizeof *n.change);
    if (!grad || !n.change) {
        n.failed = true;
        goto out;
    }
    if (model_has_noise(&m->spec))
        n.rng = pk_input(n.g, "rng", PK_I32, PK_SHAPE(o->ranks > 1 ? 4 : 3));
    loss = graph_training_loss(&n, o, &logits);
    local = loss.val[0];
    if (ranks) { /* the sums of all ranks: one collective, as soon as the loss is known */
        pk_graph_scope(n.g, "ranks");
        loss = apart(&n, pk_all_reduce(n.g, join(&n, &loss), -1), loss.count);
    }
    graph_report(&n, o->loss, &loss);
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
    return graph_finish(&n, ret, why);
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
    struct graph_sums loss;
    enum pd_err err = graph_begin(&n, m, graph_trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = has_copies(m, o);
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
    loss = graph_training_loss(&n, o, &logits);
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
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_gradient(const struct model *m, const struct model_train_options *o,
                                 struct pk_graph **ret, struct pd_why *why)
{
    struct model_train_options unmixed = *o;
    struct net n;
    struct pk_val *grad, *sum, first, logits;
    struct graph_sums loss;
    enum pd_err err = graph_begin(&n, m, graph_trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    grad = calloc(m->trained + 1, sizeof *grad);
    sum = calloc(m->trained + 1, sizeof *sum);
    if (!grad || !sum) {
        n.failed = true;
        goto out;
    }
    unmixed.mix_group = 0;
    loss = graph_training_loss(&n, &unmixed, &logits);
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
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_apply(const struct model *m, const struct model_train_options *o,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val *sum, count;
    struct graph_sums loss;
    enum pd_err err = graph_begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    n.copies = has_copies(m, o);
    sum = calloc(m->trained + 1, sizeof *sum);
    if (!sum) {
        n.failed = true;
        return graph_finish(&n, ret, why);
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
    graph_report(&n, o->loss, &loss);
    optimise(&n, o, &loss, count, sum, true);
    free(sum);
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_block(const struct model *m, int32_t batch, int32_t tokens, bool causal,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_shape shape = PK_SHAPE(batch, tokens, m->spec.width);
    struct pk_val *grad, *wrt, h, y;
    enum pd_err err;

    if (!m->spec.arch->first_block)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a block of a %s cannot be computed alone",
                       m->spec.arch->name);
    err = graph_begin(&n, m, batch, 1, why);
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
    return graph_finish(&n, ret, why);
}
