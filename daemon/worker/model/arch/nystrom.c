/* Nystromformer (arXiv:2102.03902) with the names and layouts of its authors' code for the Long Range Arena.
 *
 * A sequence has one class. What is no padding says the mask: id 0 is padding (zero_pads), and what stands behind the
 * last token. Q, K and V of padding are 0; a landmark is the mean of its n / m rows with padding counted as zeros. The
 * head reads the mean over all positions, padding included, or the row of a class token in front, id vocab - 1. Of
 * pairs, both sequences go through one encoder, and the head reads [a, b, a b, a - b]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"

struct named {
    char text[96];
};

static const char *name_of(struct named *to, int layer, const char *part)
{
    snprintf(to->text, sizeof to->text, "model.transformer_%d.%s", layer, part);
    return to->text;
}

static struct pk_val linear(struct net *n, struct pk_val x, const char *name, int64_t out)
{
    const struct pk_shape s = pk_shape_of(n->g, x);
    const double in = s.rank ? (double)s.dim[s.rank - 1] : 1;

    return net_linear(n, x, name, out, net_start(&n->m->spec, in, (double)out, NET_STD));
}

static struct pk_val table(struct net *n, const char *name, int64_t rows)
{
    const struct net_how how = {.role = MODEL_ROLE_EMBED,
                                .narrow = true,
                                .decay = true,
                                .start = net_start_normal(&n->m->spec, NET_STD)};

    return net_param(n, name, PK_SHAPE(rows, n->m->spec.width), &how);
}

/* ---- tokens and mask ---- */

/* 0, step, 2 step, ...: `count` numbers. */
static struct pk_val progression(struct net *n, int64_t count, double step)
{
    const bool wide = n->m->spec.dtype == PK_F64;
    void *all = calloc((size_t)count, sizeof(double));
    struct pk_val x;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t i = 0; i < count; i++) {
        if (wide)
            ((double *)all)[i] = step * (double)i;
        else
            ((float *)all)[i] = (float)(step * (double)i);
    }
    x = pk_const(n->g, wide ? PK_F64 : PK_F32, PK_SHAPE(count), all);
    free(all);
    return x;
}

static struct pk_val number(struct net *n, double value)
{
    return pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(1), value);
}

/* 1 where a token is no padding, else 0: (B, N). */
static struct pk_val mask_of(struct net *n, struct pk_val tokens)
{
    const struct model_spec *s = &n->m->spec;
    const struct pk_val one = number(n, 1);
    struct pk_val mask = PK_NONE, last;

    pk_graph_exact(n->g, true); /* places beyond 256 are no bf16 */
    if (!s->pairs) {
        last = pk_cast(n->g, pk_input(n->g, "last", PK_I32, PK_SHAPE(n->batch)), s->dtype);
        last = pk_sub(n->g, last, progression(n, n->batch, (double)n->tokens)); /* within its own row */
        last = pk_reshape(n->g, last, PK_SHAPE(n->batch, 1));
        mask = pk_sub(n->g, one, pk_gt(n->g, progression(n, n->tokens, 1), last));
    }
    if (s->zero_pads || s->pairs) {
        const struct pk_val shown =
            pk_sub(n->g, one, pk_eq(n->g, pk_cast(n->g, tokens, s->dtype), number(n, 0)));

        mask = mask.id ? pk_mul(n->g, mask, shown) : shown;
    }
    pk_graph_exact(n->g, false);
    return mask;
}

/* Puts x (B, 1) in front of y (B, N), whose last column is dropped. */
static struct pk_val in_front(struct net *n, struct pk_val x, struct pk_val y)
{
    const struct pk_val both[2] = {x, n->tokens > 1 ? pk_slice(n->g, y, 1, 0, n->tokens - 1) : PK_NONE};

    return both[1].id ? pk_concat(n->g, 1, both, 2) : x;
}

static struct pk_val class_tokens(struct net *n)
{
    int32_t *all = calloc((size_t)n->batch, sizeof *all);
    struct pk_val x;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (int64_t i = 0; i < n->batch; i++)
        all[i] = n->m->spec.vocab - 1;
    x = pk_const(n->g, PK_I32, PK_SHAPE(n->batch, 1), all);
    free(all);
    return x;
}

/* ---- attention ---- */

/* x (B, N, D) by W (D, D), 0 where the mask (B, N, 1) is, as (B, N, H, d). */
static struct pk_val project(struct net *n, struct pk_val x, struct pk_val mask, int layer, const char *part,
                             enum model_weight weight)
{
    const struct model_spec *s = &n->m->spec;
    struct named a;

    x = linear(n, x, name_of(&a, layer, part), s->width);
    net_mark(n, a.text, weight, layer);
    return pk_reshape(n->g, pk_mul(n->g, x, mask),
                      PK_SHAPE(n->batch, n->tokens, s->heads, s->width / s->heads));
}

static struct pk_val kernel(struct net *n, int layer)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_how how = {.role = MODEL_ROLE_CONV,
                                .decay = true,
                                .start = net_start(s, s->conv_kernel, s->conv_kernel, NET_STD)};
    struct named a;

    return net_param(n, name_of(&a, layer, "mha.attn.conv.weight"), PK_SHAPE(s->heads, 1, s->conv_kernel, 1),
                     &how);
}

/* A factor of each matrix: what c1 c3 / c2 makes of y. *ret_index: the parameter of the first; *ret_middle: c2. */
static struct pk_val separate_factors(struct net *n, struct pk_val y, const char *path, size_t *ret_index,
                                      struct pk_val *ret_middle)
{
    const struct model_attention *a = &n->m->spec.attention;
    struct pk_val c[3];

    for (int i = 0; i < 3; i++) {
        char full[112];
        size_t index = 0;

        snprintf(full, sizeof full, "%s.F%d", path, i + 1);
        c[i] = net_learned_scale(n, a, n->m->spec.heads, full, i ? &index : ret_index);
        if (i == 1)
            *ret_middle = c[i];
        c[i] = pk_reshape(n->g, c[i], PK_SHAPE(pk_shape_of(n->g, c[i]).dim[0], 1));
    }
    pk_graph_exact(n->g, true);
    c[0] = pk_div(n->g, pk_mul(n->g, c[0], c[2]), c[1]);
    pk_graph_exact(n->g, false);
    return pk_mul(n->g, y, c[0]);
}

/* Of pairs, what belongs to the first sequences: the probe tells of these. */
static struct pk_val firsts(struct net *n, struct pk_val x)
{
    return n->m->spec.pairs && n->batch > 1 && x.id ? pk_slice(n->g, x, 0, 0, n->batch / 2) : x;
}

/* Diagnostics of a module: of F2 and the landmarks, or of attention itself. */
static void diagnose(struct net *n, size_t at, const struct net_nystrom *r, struct pk_val x, struct pk_val q,
                     struct pk_val k, struct pk_attention_spec spec)
{
    static const int32_t order[] = {0, 2, 1, 3};
    const struct model_spec *s = &n->m->spec;

    if (!r->f2.id) {
        spec.mask = firsts(n, spec.mask);
        q = firsts(n, pk_permute(n->g, q, order));
        k = firsts(n, pk_permute(n->g, k, order));
        if (n->maps)
            net_maps(n, at, q, k, spec);
        if (n->stats)
            n->stats[at] = pk_attention_stats(n->g, q, k, firsts(n, x), spec);
        return;
    }
    if (s->apply == MODEL_APPLY_F1F3)
        spec = (struct pk_attention_spec){.phi = pk_phi_find("softmax"), .scale = 1};
    spec.mask = PK_NONE;
    if (n->maps)
        net_maps(n, at, firsts(n, r->q), firsts(n, r->k), spec);
    if (!n->stats)
        return;
    x = net_landmarks(n->g, pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, 1, s->width)), s->landmarks);
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, s->landmarks, s->width));
    n->stats[at] = pk_attention_stats(n->g, firsts(n, r->q), firsts(n, r->k), firsts(n, x), spec);
    pk_graph_exact(n->g, true);
    n->residual[at] = net_inverse_residual(n->g, r->f2, r->z);
    pk_graph_exact(n->g, false);
}

/* The factor of q, (B, 1), with which the three matrices of each sequence, of degree p in q, get the factor (n / valid
 * tokens) to the power `valid_power`; PK_NONE: 1. */
static struct pk_val for_valid_tokens(struct net *n, struct pk_val mask)
{
    const struct model_attention *a = &n->m->spec.attention;
    struct pk_val count;

    if (a->valid_power <= 0)
        return PK_NONE;
    pk_graph_exact(n->g, true);
    count = pk_max2(n->g, pk_sum(n->g, mask, 1u << 1, true), number(n, 1));
    count = pk_unary(n->g, PK_EX_LOG, pk_div(n->g, number(n, a->n_for_scale), count));
    count = pk_unary(n->g, PK_EX_EXP, pk_scale(n->g, count, a->valid_power / a->degree));
    pk_graph_exact(n->g, false);
    return count;
}

static struct pk_val attention(struct net *n, struct pk_val x, struct pk_val mask, int layer)
{
    const struct model_spec *s = &n->m->spec;
    const struct model_attention *a = &s->attention;
    const struct pk_val wide = pk_reshape(n->g, mask, PK_SHAPE(n->batch, n->tokens, 1));
    const bool learned = a->scale == MODEL_SCALE_LEARNED, apart = s->apply == MODEL_APPLY_SEPARATE;
    struct net_nystrom_spec how = {.landmarks = s->landmarks,
                                   .iterations = s->pinv_iterations,
                                   .start = s->pinv_start,
                                   .groups = s->pairs && n->batch > 1 ? 2 : 1,
                                   .apply = s->apply};
    struct named path;
    size_t scale = 0, at = n->module++;
    struct pk_val q = project(n, x, wide, layer, "mha.W_q", MODEL_WEIGHT_Q),
                  k = project(n, x, wide, layer, "mha.W_k", MODEL_WEIGHT_K),
                  v = project(n, x, wide, layer, "mha.W_v", MODEL_WEIGHT_V);
    struct net_nystrom r;
    struct pk_val factor;

    factor = for_valid_tokens(n, mask);
    if (factor.id)
        q = pk_mul(n->g, q, pk_reshape(n->g, factor, PK_SHAPE(n->batch, 1, 1, 1)));
    name_of(&path, layer, "mha.attn");
    how.attention = (struct pk_attention_spec){.phi = a->phi,
                                               .degree = a->degree,
                                               .scale = learned ? 1 : a->scale_value,
                                               .bias = a->logit_bias,
                                               .form = a->form,
                                               .mask = pk_cast(n->g, mask, PK_U8)};
    if (learned && !apart)
        how.attention.scale_value = net_learned_scale(n, a, s->heads, path.text, &scale);
    r = net_nystrom(n->g, q, k, v, &how);
    if (learned && apart)
        r.y = separate_factors(n, r.y, path.text, &scale, &how.attention.scale_value);
    net_module_declare(n, path.text, a, s->heads, scale);
    if ((s->pairs ? s->context / 2 : s->context) > s->landmarks)
        net_module_axis(n, MODEL_AXIS_LANDMARKS);
    if (n->stats || n->maps) {
        struct pk_val rows = pk_mul(n->g, x, wide);

        if (factor.id) /* W_Q multiplies x, and the factor that product */
            rows = pk_mul(n->g, rows, pk_reshape(n->g, factor, PK_SHAPE(n->batch, 1, 1)));
        diagnose(n, at, &r, rows, q, k, how.attention);
    }
    x = pk_add(n->g, r.y, net_sequence_convolution(n->g, v, kernel(n, layer)));
    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, s->width));
    x = linear(n, x, name_of(&path, layer, "mha.ff"), s->width);
    net_mark(n, path.text, MODEL_WEIGHT_O, layer);
    return net_dropout(n, x, layer, NET_AT_PROJECTION);
}

static struct pk_val feed_forward(struct net *n, struct pk_val x, int layer)
{
    const struct model_spec *s = &n->m->spec;
    struct named a;

    x = linear(n, x, name_of(&a, layer, "mlpblock.0"), s->mlp_width);
    net_mark(n, a.text, MODEL_WEIGHT_1, layer);
    x = net_dropout(n, s->mlp_relu ? pk_relu(n->g, x) : pk_gelu(n->g, x, s->gelu_tanh), layer, NET_AT_HIDDEN);
    x = linear(n, x, name_of(&a, layer, "mlpblock.3"), s->width);
    net_mark(n, a.text, MODEL_WEIGHT_2, layer);
    return net_dropout(n, x, layer, NET_AT_OUTPUT);
}

static struct pk_val layer_of(struct net *n, struct pk_val x, struct pk_val mask, int layer)
{
    struct named a;
    struct pk_val h;

    pk_graph_scope(n->g, name_of(&a, layer, "mha"));
    h = attention(n, net_norm(n, x, name_of(&a, layer, "norm1")), mask, layer);
    x = pk_add(n->g, x, net_drop_path(n, h, layer, NET_AT_PATH1));
    pk_graph_scope(n->g, name_of(&a, layer, "mlpblock"));
    h = feed_forward(n, net_norm(n, x, name_of(&a, layer, "norm2")), layer);
    x = pk_add(n->g, x, net_drop_path(n, h, layer, NET_AT_PATH2));
    net_activations(n, layer, x);
    return x;
}

/* ---- the network ---- */

/* tokens (B, N) -> (B, D) */
static struct pk_val encode(struct net *n, struct pk_val tokens)
{
    const struct model_spec *s = &n->m->spec;
    const bool front = s->pool == MODEL_POOL_CLS;
    struct pk_val mask = mask_of(n, tokens), x, where;

    if (front) {
        tokens = in_front(n, class_tokens(n), tokens);
        mask = in_front(n, pk_fill(n->g, s->dtype, PK_SHAPE(n->batch, 1), 1), mask);
    }
    pk_graph_scope(n->g, "model.embeddings");
    x = pk_cast(n->g, pk_gather(n->g, table(n, "model.embeddings.word_embeddings.weight", s->vocab), tokens),
                s->dtype);
    if (s->pos) {
        where =
            table(n, "model.embeddings.position_embeddings.weight", s->pairs ? s->context / 2 : s->context);
        x = pk_add(n->g, x, pk_cast(n->g, pk_slice(n->g, where, 0, 0, n->tokens), s->dtype));
    }
    net_shared_scale(n, &s->attention);
    x = net_embedding_dropout(n, x);
    for (int i = 0; i < s->depth; i++)
        x = layer_of(n, x, mask, i);
    pk_graph_scope(n->g, "head");
    if (s->final_norm)
        x = net_norm(n, x, "model.norm");
    x = pk_mul(n->g, x, pk_reshape(n->g, mask, PK_SHAPE(n->batch, n->tokens, 1)));
    return front ? pk_reshape(n->g, pk_slice(n->g, x, 1, 0, 1), PK_SHAPE(n->batch, s->width))
                 : pk_mean(n->g, x, 1u << 1, false);
}

static struct pk_val forward(struct net *n, struct pk_val tokens)
{
    const struct model_spec *s = &n->m->spec;
    static const int32_t swap[] = {1, 0, 2};
    const int64_t batch = n->batch, count = n->tokens;
    struct pk_val x;

    if (s->pairs) {
        n->tokens = count > 1 ? count / 2 : count; /* declaring, there is one token */
        n->batch = count > 1 ? 2 * batch : batch;
        if (count > 1) { /* all first sequences, then all second ones */
            tokens = pk_permute(n->g, pk_reshape(n->g, tokens, PK_SHAPE(batch, 2, n->tokens)), swap);
            tokens = pk_reshape(n->g, pk_copy(n->g, tokens), PK_SHAPE(n->batch, n->tokens));
        }
    }
    x = encode(n, tokens);
    if (s->pairs) {
        struct pk_val part[4];

        part[0] = pk_slice(n->g, x, 0, 0, batch);
        part[1] = n->batch > batch ? pk_slice(n->g, x, 0, batch, batch) : part[0];
        part[2] = pk_mul(n->g, part[0], part[1]);
        part[3] = pk_sub(n->g, part[0], part[1]);
        x = pk_concat(n->g, 1, part, 4);
        n->batch = batch;
        n->tokens = count;
    }
    x = pk_relu(n->g, linear(n, x, "seq_classifer.mlpblock.0", s->mlp_width));
    return linear(n, x, "seq_classifer.mlpblock.2", s->classes);
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    (void)why;
    s->context = (int32_t)c->model.context;
    s->landmarks = (int32_t)c->model.landmarks;
    s->conv_kernel = (int32_t)c->model.conv_kernel;
    s->pinv_iterations = (int32_t)c->model.pinv_iterations;
    s->pinv_start = (enum model_pinv)c->model.pinv_start;
    s->apply = (enum model_apply)c->attention.nystrom_apply;
    s->zero_pads = c->data.zero_is_padding;
    if (c->attention.n_valid && pk_phi_power(s->attention.phi) &&
        (s->attention.scale == MODEL_SCALE_FIXED || s->attention.scale == MODEL_SCALE_LEARNED))
        s->attention.valid_power = 0.5;
    s->pool = c->model.pool == JOB_POOL_CLS ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
    s->vocab += s->pool == MODEL_POOL_CLS;
    s->pairs = job_dataset_info((enum job_dataset)c->data.dataset)->pairs;
    return PD_OK;
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    const struct model_attention *a = &s->attention;
    const int32_t length = s->pairs ? s->context / 2 : s->context;

    if (s->classes < 1 || s->classes > 1000000)
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: sequences in %d classes", s->classes);
    if (s->vocab < 1)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model: the size of the vocabulary is unknown: there is no tokenizer, and no tensor "
                       "model.embeddings.word_embeddings.weight");
    if (s->vocab > 10000000 || length < 1 || length > 1048576 || (s->pairs && s->context % 2))
        return pd_fail(why, PD_ERR_INVALID, "#/model/context: %d positions, %d symbols", s->context,
                       s->vocab);
    if (s->landmarks < 1 || (length > s->landmarks && length % s->landmarks))
        return pd_fail(why, PD_ERR_INVALID, "#/model/landmarks: %d do not divide sequences of %d tokens",
                       s->landmarks, length);
    if (s->conv_kernel < 1 || s->conv_kernel > 1023 || s->conv_kernel % 2 == 0)
        return pd_fail(why, PD_ERR_INVALID, "#/model/conv_kernel: %d is not odd", s->conv_kernel);
    if (s->pinv_iterations < 1 || s->pinv_iterations > 64)
        return pd_fail(why, PD_ERR_INVALID, "#/model/pinv_iterations: %d; must be 1 to 64",
                       s->pinv_iterations);
    if (s->pinv_start == MODEL_PINV_GLOBAL_COLSUM && !pk_phi_shifted(a->phi) && s->apply != MODEL_APPLY_F1F3)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/model/pinv_start: global_colsum needs rows of probabilities, as softmax has them");
    if (s->placement != MODEL_S1)
        return pd_fail(why, PD_ERR_INVALID, "#/norm/placement: a nystrom supports only S1");
    if (!(a->valid_power >= 0) || !isfinite(a->valid_power) ||
        (a->valid_power > 0 && (!pk_phi_power(a->phi) || s->apply == MODEL_APPLY_F1F3)))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/n_valid: needs a power of the logits in all three matrices");
    if (a->qk_norm || a->l1_tokens)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "%s: a nystrom has no norms on queries and keys",
                       a->qk_norm ? "#/attention/qk_norm" : "#/attention/activation");
    if (a->dropout > 0)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/dropout: landmark attention does not support dropout of its weights");
    if (a->init_logit_std >= 0)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/attention/init_logit_std: a nystrom does not support it");
    if (s->apply == MODEL_APPLY_SEPARATE && a->share == MODEL_SHARE_GLOBAL && a->scale == MODEL_SCALE_LEARNED)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/scale_share: separate scales belong to a layer or to its heads; global "
                       "is not possible");
    return PD_OK;
}

const struct model_arch model_nystrom = {
    .name = "nystrom",
    .number = -1,
    .reads = MODEL_READS_TOKENS,
    .transposed = true,
    .class_id = true,
    .from_config = from_config,
    .check = check,
    .forward = forward,
    .classes = {"seq_classifer.mlpblock.2.weight", 0},
    .vocab = {"model.embeddings.word_embeddings.weight", 0},
    .block = "model.transformer_*",
};
