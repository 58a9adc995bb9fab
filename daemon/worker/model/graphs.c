/* daemon/worker/model/graphs.c: the graphs around a network's forward pass. */
#include "daemon/worker/model/arch/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    n->tokens = tokens;
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
    free(n->stats);
    if (err == PD_OK)
        *ret = n->g;
    else
        pk_graph_free(n->g);
    return err;
}

static struct pk_val input(struct net *n)
{
    const struct model_spec *s = &n->m->spec;

    if (model_reads_tokens(s))
        return pk_input(n->g, "input", PK_I32, PK_SHAPE(n->batch, n->tokens));
    return pk_input(n->g, "input", s->dtype, PK_SHAPE(n->batch, s->channels, s->image_h, s->image_w));
}

static struct pk_val logits_of(struct net *n)
{
    return n->m->spec.arch->forward(n, input(n));
}

enum pd_err model_declare(struct model *m, struct pd_why *why)
{
    struct net n;
    struct pk_graph *g;
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    n.declares = m;
    pk_output(n.g, "logits", logits_of(&n));
    err = finish(&n, &g, why);
    if (err == PD_OK)
        pk_graph_free(g);
    return err;
}

static struct pk_loss loss_of(struct net *n, const struct model_loss *l, struct pk_val logits,
                              double smoothing)
{
    pk_graph_scope(n->g, "loss");
    return l->emit(n->g, logits, smoothing);
}

/* The sums of all ranks: one meeting, as early as the loss is known. */
static void sum_loss(struct net *n, struct pk_loss *loss)
{
    struct pk_val all[3] = {loss->loss_sum, loss->count, loss->correct}, sum;

    pk_graph_scope(n->g, "ranks");
    sum = pk_all_reduce(n->g, pk_concat(n->g, 0, all, 3), -1);
    loss->loss_sum = pk_slice(n->g, sum, 0, 0, 1);
    loss->count = pk_slice(n->g, sum, 0, 1, 1);
    loss->correct = pk_slice(n->g, sum, 0, 2, 1);
}

static void sum_gradients(struct net *n, const struct model_train_options *o, struct pk_val *grad)
{
    int32_t *owner = NULL;

    pk_graph_scope(n->g, "ranks");
    if (o->zero) {
        owner = calloc(n->m->count, sizeof *owner);
        n->failed |= !owner;
        for (size_t i = 0; owner && i < n->m->count; i++)
            owner[i] = model_param_owner(n->m, i, o->ranks);
    }
    pk_all_reduce_buckets(n->g, grad, owner, n->m->count, PK_BUCKET_BYTES, grad);
    free(owner);
}

static void optimise(struct net *n, const struct model_train_options *o, struct pk_val loss,
                     struct pk_val divisor, const struct pk_val *grad, const struct pk_val *told)
{
    struct model_optim_item *item = calloc(n->m->count, sizeof *item);

    n->failed |= !item;
    for (size_t i = 0; item && i < n->m->count; i++)
        item[i] = (struct model_optim_item){
            .name = n->m->param[i].name,
            .param = n->param[i],
            .grad = grad[i],
            .decay = n->m->param[i].decay,
            .lr_mult = n->m->param[i].lr_mult,
            .owner = o->ranks > 1 && o->zero ? model_param_owner(n->m, i, o->ranks) : -1};
    if (item)
        model_emit_optimiser(n->g, o, loss, divisor, item, n->m->count, told);
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
    struct pk_val logits, mean, local, *grad;
    struct pk_loss loss;
    enum pd_err err = begin(&n, m, o->batch, o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o) && !grads;
    grad = calloc(m->count, sizeof *grad);
    if (!grad) {
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    }
    if (model_has_noise(&m->spec))
        n.rng = pk_input(n.g, "rng", PK_I32, PK_SHAPE(o->ranks > 1 ? 4 : 3));
    logits = logits_of(&n);
    loss = loss_of(&n, o->loss, logits, o->label_smoothing);
    local = loss.loss_sum;
    if (ranks)
        sum_loss(&n, &loss);
    mean = pk_div(n.g, loss.loss_sum, loss.count);
    pk_output(n.g, "loss", mean);
    pk_output(n.g, "count", loss.count);
    pk_output(n.g, "correct", loss.correct);
    pk_grad(n.g, ranks ? local : mean, PK_NONE, n.param, m->count, grad);
    if (grads) {
        pk_output(n.g, "logits", logits);
        for (size_t i = 0; i < m->count; i++) {
            char name[72];

            snprintf(name, sizeof name, "grad/%s", m->param[i].name);
            pk_output(n.g, name, grad[i]);
        }
    } else {
        if (ranks)
            sum_gradients(&n, o, grad);
        optimise(&n, o, mean, ranks ? loss.count : PK_NONE, grad,
                 (struct pk_val[3]){mean, loss.count, loss.correct});
    }
    free(grad);
    return finish(&n, ret, why);
}

/* The states in which the parts of a step come together; sum[m->count] is that of the loss. */
static void sums(struct net *n, struct pk_val *sum)
{
    for (size_t i = 0; i < n->m->count; i++) {
        char name[80];

        snprintf(name, sizeof name, "sum/%s", n->m->param[i].name);
        sum[i] = pk_state(n->g, name, n->m->spec.dtype, n->m->param[i].shape, PK_CAT_GRADIENTS);
    }
    sum[n->m->count] = pk_state(n->g, "sum/loss", n->m->spec.dtype, PK_SHAPE(3), PK_CAT_GRADIENTS);
}

enum pd_err model_graph_part(const struct model *m, const struct model_train_options *o,
                             struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val *grad, *sum, first, all[3];
    struct pk_loss loss;
    enum pd_err err = begin(&n, m, o->batch, o->context, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o);
    grad = calloc(m->count, sizeof *grad);
    sum = calloc(m->count + 1, sizeof *sum);
    if (!grad || !sum) {
        n.failed = true;
        goto out;
    }
    if (model_has_noise(&m->spec))
        n.rng = pk_input(n.g, "rng", PK_I32, PK_SHAPE(o->ranks > 1 ? 4 : 3));
    loss = loss_of(&n, o->loss, logits_of(&n), o->label_smoothing);
    pk_grad(n.g, loss.loss_sum, PK_NONE, n.param, m->count, grad);
    pk_graph_scope(n.g, "sum");
    first = pk_input(n.g, "first", m->spec.dtype, PK_SHAPE(1));
    sums(&n, sum);
    for (size_t i = 0; i < m->count; i++)
        pk_accumulate(n.g, sum[i], grad[i], first);
    all[0] = loss.loss_sum;
    all[1] = loss.count;
    all[2] = loss.correct;
    pk_accumulate(n.g, sum[m->count], pk_concat(n.g, 0, all, 3), first);
out:
    free(grad);
    free(sum);
    return finish(&n, ret, why);
}

enum pd_err model_graph_apply(const struct model *m, const struct model_train_options *o,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val *sum, count, correct, mean;
    enum pd_err err = begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    n.copies = keeps_copies(m, o);
    sum = calloc(m->count + 1, sizeof *sum);
    if (!sum) {
        n.failed = true;
        return finish(&n, ret, why);
    }
    for (size_t i = 0; i < m->count; i++)
        (void)net_param(&n, m->param[i].name, m->param[i].shape, NULL);
    sums(&n, sum);
    if (o->ranks > 1) {
        sum[m->count] = pk_all_reduce(n.g, sum[m->count], -1);
        sum_gradients(&n, o, sum);
    }
    count = pk_slice(n.g, sum[m->count], 0, 1, 1);
    mean = pk_div(n.g, pk_slice(n.g, sum[m->count], 0, 0, 1), count);
    pk_output(n.g, "loss", mean);
    pk_output(n.g, "count", count);
    correct = pk_slice(n.g, sum[m->count], 0, 2, 1);
    pk_output(n.g, "correct", correct);
    optimise(&n, o, mean, count, sum, (struct pk_val[3]){mean, count, correct});
    free(sum);
    return finish(&n, ret, why);
}

enum pd_err model_graph_block(const struct model *m, int32_t batch, int32_t tokens, bool causal,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_shape shape = PK_SHAPE(batch, tokens, m->spec.width);
    struct pk_val *grad, *wrt, h, y;
    enum pd_err err = begin(&n, m, batch, 1, why);

    if (err != PD_OK)
        return err;
    n.tokens = tokens;
    n.causal = causal;
    grad = calloc(m->count + 1, sizeof *grad);
    wrt = calloc(m->count + 1, sizeof *wrt);
    if (!grad || !wrt) {
        n.failed = true;
        goto out;
    }
    h = pk_input(n.g, "h", m->spec.dtype, shape); /* a batch: mixed precision narrows it */
    y = m->spec.arch->first_block(&n, h);
    wrt[0] = h;
    memcpy(wrt + 1, n.param, m->count * sizeof *wrt);
    for (size_t i = 0; i <= m->count; i++) /* a block uses some of the model's parameters */
        if (!wrt[i].id)
            wrt[i] = h;
    pk_output(n.g, "y", y);
    pk_grad(n.g, y, pk_input(n.g, "gy", m->spec.dtype, shape), wrt, m->count + 1, grad);
    pk_output(n.g, "dh", grad[0]);
    for (size_t i = 0; i < m->count; i++) {
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
    struct pk_val logits;
    struct pk_loss loss;
    enum pd_err err = begin(&n, m, batch, context, why);

    if (err != PD_OK)
        return err;
    logits = logits_of(&n);
    loss = loss_of(&n, l, logits, 0);
    pk_output(n.g, "logits", logits);
    pk_output(n.g, "loss_sum", loss.loss_sum);
    pk_output(n.g, "count", loss.count);
    pk_output(n.g, "correct", loss.correct);
    return finish(&n, ret, why);
}

enum pd_err model_graph_probe(const struct model *m, int32_t batch, int32_t context, struct pk_graph **ret,
                              struct pd_why *why)
{
    struct net n;
    enum pd_err err = begin(&n, m, batch, context, why);

    if (err != PD_OK)
        return err;
    n.stats = calloc(m->modules + 1, sizeof *n.stats);
    if (!n.stats) {
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    }
    (void)logits_of(&n);
    for (size_t i = 0; i < m->modules; i++) {
        const struct {
            const char *name;
            struct pk_val v;
        } out[] = {{"fro", n.stats[i].fro},
                   {"jac_fro", n.stats[i].jac_fro},
                   {"jac_q_fro", n.stats[i].jac_q_fro},
                   {"logit_std", n.stats[i].logit_std},
                   {"logit_max", n.stats[i].logit_max}};

        for (size_t k = 0; k < sizeof out / sizeof out[0]; k++) {
            char name[32];

            snprintf(name, sizeof name, "%s/%zu", out[k].name, i + 1);
            pk_output(n.g, name, out[k].v);
        }
    }
    return finish(&n, ret, why);
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
    in = input(&n);
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

    return model_decodes(s) && pk_phi_power(a->phi) && a->degree <= 2 && a->logit_bias == 0;
}

enum pd_err model_graph_decode_state(const struct model *m, int32_t batch, int32_t count,
                                     struct pk_graph **ret, struct pd_why *why)
{
    if (!model_has_state(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "only a language model with x^1 or x^2 decodes with a state of constant size");
    return decode_graph(m, batch, count, 0, batch, ret, why);
}
