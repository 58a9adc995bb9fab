/* daemon/worker/model/block.c: what networks are made of: linear layers, norms, attention, the block in its
 * placements (kernels/ATTENTION.md 10). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"

bool model_has_input_norm(const struct model_spec *s)
{
    return s->placement >= MODEL_S3 && s->placement <= MODEL_S5;
}

bool model_has_mid_norm(const struct model_spec *s)
{
    return s->placement == MODEL_S4 || s->placement == MODEL_S5;
}

#define EMBEDDING 0u /* the stream behind embeddings */

uint32_t net_stream(int layer, enum net_noise place)
{
    return 1 + (uint32_t)layer * NET_NOISES + (uint32_t)place;
}

struct pk_val net_vector(struct net *n, const char *name, const char *suffix, enum model_role role,
                         struct pk_shape shape, double value)
{
    const struct net_how how = {.role = role, .start = {.rest = {MODEL_DRAW_VALUE, value, 0}}};
    char full[112];

    snprintf(full, sizeof full, "%s.%s", name, suffix);
    return net_param(n, full, shape, &how);
}

/* A gain or bias, named by what it belongs to and a suffix. */
static struct pk_val vector(struct net *n, const char *name, const char *suffix, enum model_role role,
                            struct pk_shape shape)
{
    return net_vector(n, name, suffix, role, shape, role == MODEL_ROLE_GAIN ? 1 : 0);
}

static struct pk_val norm_gain(struct net *n, const char *name, int64_t width)
{
    return vector(n, name, "weight", MODEL_ROLE_GAIN, PK_SHAPE(width));
}

static struct pk_val norm_bias(struct net *n, const char *name, int64_t width)
{
    const struct model_spec *s = &n->m->spec;

    return s->bias && s->norm_kind == PK_NORM_LAYER
               ? vector(n, name, "bias", MODEL_ROLE_BIAS, PK_SHAPE(width))
               : PK_NONE;
}

void net_norm_declare(struct net *n, const char *name, int64_t width)
{
    if (!n->declares)
        return;
    (void)norm_gain(n, name, width);
    (void)norm_bias(n, name, width);
}

static int64_t last_extent(struct net *n, struct pk_val x)
{
    struct pk_shape shape = pk_shape_of(n->g, x);

    return shape.rank ? shape.dim[shape.rank - 1] : 0;
}

struct pk_val net_norm(struct net *n, struct pk_val x, const char *name)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_norm_spec spec = {.kind = s->norm_kind, .eps_mode = s->norm_eps_mode, .eps = s->norm_eps};
    int64_t width = last_extent(n, x);
    struct pk_val gain = norm_gain(n, name, width);

    return pk_norm(n->g, x, gain, norm_bias(n, name, width), spec);
}

struct pk_val net_linear(struct net *n, struct pk_val x, const char *name, int64_t out,
                         struct model_start start)
{
    const struct net_how how = {
        .role = MODEL_ROLE_MATRIX, .factor = true, .narrow = true, .decay = true, .start = start};
    const bool transposed = n->m->spec.arch->transposed;
    int64_t in = last_extent(n, x);
    char full[112];
    struct pk_val w, b = PK_NONE;

    snprintf(full, sizeof full, "%s.weight", name);
    w = net_param(n, full, transposed ? PK_SHAPE(out, in) : PK_SHAPE(in, out), &how);
    if (n->m->spec.bias)
        b = vector(n, name, "bias", MODEL_ROLE_BIAS, PK_SHAPE(out));
    return pk_linear(n->g, x, w, transposed, b);
}

/* QKNorm of x (B, n, H, d): always RMSNorm over d, whatever the other norms are. */
static struct pk_val qk_norm(struct net *n, struct pk_val x, bool per_head, struct pk_val gain)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_norm_spec spec = {.kind = PK_NORM_RMS, .eps_mode = s->norm_eps_mode, .eps = s->norm_eps};

    if (!per_head)
        return pk_norm(n->g, x, gain, PK_NONE, spec);
    x = pk_norm(n->g, x, pk_fill(n->g, s->dtype, PK_SHAPE(last_extent(n, x)), 1), PK_NONE, spec);
    return pk_mul(n->g, x, gain); /* (H, d) */
}

enum { Q, K, V };

/* Parameters of a module. */
struct module {
    const struct model_attention *a;
    int64_t heads, d;
    struct pk_val gain[2]; /* of queries and keys; PK_NONE: not normalised */
};

/* (B, n, 3, H, d) -> part Q, K or V of it as (B, H, n, d), normalised where the module wants that. */
static struct pk_val head_part(struct net *n, const struct module *u, struct pk_val qkv, int64_t which)
{
    static const int32_t order[] = {0, 2, 1, 3};
    struct pk_val x = pk_slice(n->g, qkv, 2, which, 1);

    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, u->heads, u->d));
    if (u->a->qk_norm && which != V)
        x = qk_norm(n, x, u->a->qk_per_head, u->gain[which]);
    x = pk_permute(n->g, x, order);
    return u->a->l1_tokens && which != V ? pk_l1_norm_tokens(n->g, x) : x;
}

/* Selections choose the arguments too: a branch that is not taken has a derivative of 0, and not of 0 times infinity. */
struct pk_val net_softplus(struct pk_graph *g, struct pk_val x)
{
    enum { TERMS = 14 }; /* of the series of log(1 + e) up to e^-3, enough for f64 */
    const enum pk_dtype dtype = pk_dtype_of(g, x);
    struct pk_val zero = pk_fill(g, dtype, PK_SHAPE(1), 0);
    struct pk_val large = pk_gt(g, x, pk_fill(g, dtype, PK_SHAPE(1), 40)); /* e^-40 is below half an ulp */
    struct pk_val small = pk_gt(g, pk_fill(g, dtype, PK_SHAPE(1), -3), x);
    struct pk_val e = pk_unary(g, PK_EX_EXP, pk_select(g, large, zero, x)), y = pk_select(g, small, e, zero);
    struct pk_val series = pk_scale(g, y, 1.0 / TERMS);

    for (int k = TERMS - 1; k > 0; k--) /* y/1 - y^2/2 + y^3/3 - ... */
        series = pk_mul(g, y, pk_offset(g, pk_scale(g, series, -1), 1.0 / k));
    return pk_select(g, large, x, pk_select(g, small, series, pk_unary(g, PK_EX_LOG, pk_offset(g, e, 1))));
}

double net_softplus_inverse(double v)
{
    return v + log(-expm1(-v));
}

/* The stored number of a learned scale; `path` "": of the whole model. */
static struct pk_val scale_number(struct net *n, const struct model_attention *a, const char *path,
                                  int64_t count, size_t *ret_index)
{
    const bool direct = a->scale_param == MODEL_PARAM_DIRECT;
    const struct net_how how = {
        .role = MODEL_ROLE_SCALE,
        .decay = a->scale_decay,
        .start = {.rest = {MODEL_DRAW_VALUE,
                           direct                              ? a->scale_value
                           : a->scale_param == MODEL_PARAM_LOG ? log(a->scale_value)
                                                               : net_softplus_inverse(a->scale_value),
                           0}}};
    const bool young = n->declares != NULL;
    char full[112];
    struct pk_val rho;

    snprintf(full, sizeof full, "%s%sattn_scale%s", path, *path ? "." : "", direct ? "" : "_rho");
    rho = net_param(n, full, PK_SHAPE(count), &how);
    *ret_index = net_param_index(n->m, full);
    if (young && *ret_index < n->m->count)
        n->declares->param[*ret_index].lr_mult = a->scale_lr_mult;
    return rho;
}

void net_shared_scale(struct net *n, const struct model_attention *a)
{
    size_t index;

    net_formula_shared(n, a);
    if (a->scale == MODEL_SCALE_LEARNED && a->share == MODEL_SHARE_GLOBAL)
        (void)scale_number(n, a, "", 1, &index);
}

struct pk_val net_learned_scale(struct net *n, const struct model_attention *a, int32_t heads,
                                const char *path, size_t *ret_index)
{
    struct pk_val rho = a->share == MODEL_SHARE_GLOBAL
                            ? scale_number(n, a, "", 1, ret_index)
                            : scale_number(n, a, path, a->share == MODEL_SHARE_HEAD ? heads : 1, ret_index);

    if (a->scale_param == MODEL_PARAM_LOG)
        return pk_unary(n->g, PK_EX_EXP, rho);
    if (a->scale_param == MODEL_PARAM_SOFTPLUS)
        return net_softplus(n->g, rho);
    return rho;
}

/* W_Q | W_K | W_V: the start of W_Q and W_K may be that which gives the logits a deviation. */
struct model_start net_start_qkv(const struct model_spec *s, const struct model_attention *a, int64_t d)
{
    struct model_start start = net_start(s, (double)d, (double)(s->init_fused ? 3 * d : d), NET_STD);

    if (a->init_logit_std >= 0) {
        start.outputs = 2 * d;
        /* unit inputs give logits of variance (std^2 D)^2 */
        start.first = net_start_normal(s, sqrt(a->init_logit_std / (double)d)).rest;
    }
    return start;
}

/* Against a cache of keys and values, or with a state of constant size. */
static struct pk_val decode(struct net *n, const struct module *u, struct pk_val q, struct pk_val k,
                            struct pk_val v, struct pk_attention_spec spec, int layer)
{
    const struct model_spec *s = &n->m->spec;
    const enum pk_dtype dtype = s->mixed ? PK_BF16 : s->dtype;
    char text[32];

    spec.length = n->length;
    if (!n->cache) {
        struct pk_shape shape = PK_SHAPE(n->batch, u->heads, pk_attention_features(u->a->degree, u->d), u->d);

        snprintf(text, sizeof text, "state/%d", layer);
        return pk_attention_state(n->g, q, k, v, pk_state(n->g, text, s->dtype, shape, PK_CAT_CACHE),
                                  n->position, spec);
    }
    for (int i = 0; i < 2; i++) {
        struct pk_shape shape = PK_SHAPE(n->batch, u->heads, n->cache, u->d);
        struct pk_val *part = i ? &v : &k, cache;

        snprintf(text, sizeof text, "cache_%c/%d", i ? 'v' : 'k', layer);
        cache = pk_state(n->g, text, dtype, shape, PK_CAT_CACHE);
        *part = pk_cache_append(n->g, cache, *part, n->position);
    }
    spec.form = PK_FORM_AUTO; /* against a cache there is no other order than the square */
    return pk_attention(n->g, q, k, v, spec);
}

struct pk_val net_attention(struct net *n, struct pk_val x, const struct model_attention *a, int32_t heads,
                            const char *name, const char *qkv_name, int layer, const struct net_pairs *pairs)
{
    const struct model_spec *s = &n->m->spec;
    const int64_t width = last_extent(n, x);
    struct module u = {.a = a, .heads = heads, .d = width / heads};
    struct pk_val qkv = net_linear(n, x, qkv_name, 3 * width, net_start_qkv(s, a, width)), q, k, v, y;
    size_t scale = 0, at = n->module++;
    struct pk_attention_spec spec = {
        .phi = a->phi,
        .degree = a->degree,
        .scale = a->scale == MODEL_SCALE_LEARNED ? 1 : a->scale_value,
        .bias = a->logit_bias,
        .causal = n->causal,
        .tau = a->l1_tokens ? 1 : 0,
        .row_power = a->row_power,
        .form = a->form,
        .dropout = a->dropout,
        .stream = net_stream(layer, NET_AT_WEIGHTS),
        .rng = n->rng,
        .bias_value = pairs ? pairs->bias : PK_NONE,
        .mask = pairs ? pairs->mask : PK_NONE,
    };

    for (int i = 0; a->qk_norm && i < 2; i++) {
        char full[80];

        snprintf(full, sizeof full, "%s.%c_norm", name, i ? 'k' : 'q');
        u.gain[i] =
            vector(n, full, "weight", MODEL_ROLE_GAIN, a->qk_per_head ? PK_SHAPE(heads, u.d) : PK_SHAPE(u.d));
    }
    qkv = pk_reshape(n->g, qkv, PK_SHAPE(n->batch, n->tokens, 3, heads, u.d));
    if (a->scale == MODEL_SCALE_LEARNED)
        spec.scale_value = net_learned_scale(n, a, heads, name, &scale);
    net_formula(n, a, heads, name, layer, u.d, &spec);
    net_module_declare(n, name, a, heads, scale);
    if (!a->qk_norm && !a->l1_tokens && !n->decode) {
        if (n->stats && !n->skip)
            n->stats[at] = pk_attention_stats_packed(n->g, qkv, x, spec);
        else if (n->stats)
            n->stats[at] = net_stats(n, head_part(n, &u, qkv, Q), head_part(n, &u, qkv, K), x, spec);
        if (n->maps)
            net_maps(n, at, head_part(n, &u, qkv, Q), head_part(n, &u, qkv, K), spec);
        y = pk_attention_packed(n->g, qkv, spec);
    } else {
        q = head_part(n, &u, qkv, Q);
        k = head_part(n, &u, qkv, K);
        v = head_part(n, &u, qkv, V);
        if (n->stats)
            n->stats[at] = net_stats(n, q, k, x, spec);
        if (n->maps)
            net_maps(n, at, q, k, spec);
        y = n->decode ? decode(n, &u, q, k, v, spec, layer) : pk_attention(n->g, q, k, v, spec);
    }
    return pk_reshape(n->g, y, PK_SHAPE(n->batch, n->tokens, width));
}

bool model_has_noise(const struct model_spec *s)
{
    return s->dropout > 0 || s->drop_path > 0 || s->attention.dropout > 0;
}

struct pk_val net_dropout(struct net *n, struct pk_val x, int layer, enum net_noise place)
{
    return pk_dropout(n->g, x, n->rng, n->m->spec.dropout, net_stream(layer, place));
}

struct pk_val net_drop_path(struct net *n, struct pk_val x, int layer, enum net_noise place)
{
    const struct model_spec *s = &n->m->spec;
    double share = s->drop_path_same ? 1 : s->depth > 1 ? (double)layer / (s->depth - 1) : 0;

    return pk_drop_path(n->g, x, n->rng, s->drop_path * share, net_stream(layer, place));
}

struct pk_val net_embedding_dropout(struct net *n, struct pk_val x)
{
    return pk_dropout(n->g, x, n->rng, n->m->spec.dropout, EMBEDDING);
}

/* The name of a part of block `layer`. */
struct named {
    char text[80];
};

static const char *name_of(struct named *to, const struct net_block *b, int layer, const char *part)
{
    snprintf(to->text, sizeof to->text, "%s.%d.%s", b->prefix, layer, part);
    return to->text;
}

/* A projection into the residual stream. */
static struct model_start start_residual(const struct model_spec *s, const struct net_block *b, int64_t in,
                                         int64_t out)
{
    return net_start(s, (double)in, (double)out, b->residual_std ? NET_STD / sqrt(2.0 * s->depth) : NET_STD);
}

void net_mark(struct net *n, const char *name, enum model_weight weight, int layer)
{
    char full[112];
    size_t i;

    if (!n->declares)
        return;
    snprintf(full, sizeof full, "%s.weight", name);
    i = net_param_index(n->m, full);
    if (i == n->m->count)
        return;
    n->declares->param[i].weight = weight;
    n->declares->param[i].layer = layer;
}

static struct pk_val self_attention(struct net *n, struct pk_val x, const struct net_block *b,
                                    const struct net_place *p)
{
    const struct model_spec *s = &n->m->spec;
    struct named qkv, name;

    (void)name_of(&name, b, p->number, b->attention);
    (void)name_of(&qkv, b, p->number, b->qkv);
    x = p->attend ? p->attend(n, x, p, name.text, qkv.text)
                  : net_attention(n, x, p->attention, p->heads, name.text, qkv.text, p->layer, NULL);
    net_mark(n, qkv.text, MODEL_WEIGHT_QKV, p->layer);
    x = net_linear(n, x, name_of(&name, b, p->number, b->proj), p->width,
                   start_residual(s, b, p->width, p->width));
    net_mark(n, name.text, MODEL_WEIGHT_O, p->layer);
    return net_dropout(n, x, p->layer, NET_AT_PROJECTION);
}

struct pk_val net_feed_forward(struct net *n, struct pk_val x, const struct net_block *b,
                               const struct net_place *p)
{
    const struct model_spec *s = &n->m->spec;
    struct named name;

    x = net_linear(n, x, name_of(&name, b, p->number, b->fc1), p->mlp_width,
                   net_start(s, p->width, p->mlp_width, NET_STD));
    net_mark(n, name.text, MODEL_WEIGHT_1, p->layer);
    x = s->mlp_relu ? pk_relu(n->g, x) : pk_gelu(n->g, x, s->gelu_tanh);
    if (b->hidden_dropout)
        x = net_dropout(n, x, p->layer, NET_AT_HIDDEN);
    x = net_linear(n, x, name_of(&name, b, p->number, b->fc2), p->width,
                   start_residual(s, b, p->mlp_width, p->width));
    net_mark(n, name.text, MODEL_WEIGHT_2, p->layer);
    return net_dropout(n, x, p->layer, NET_AT_OUTPUT);
}

struct pk_val net_block(struct net *n, struct pk_val x, const struct net_block *b, int layer)
{
    const struct model_spec *s = &n->m->spec;
    const struct net_place p = {.number = layer,
                                .layer = layer,
                                .width = s->width,
                                .heads = s->heads,
                                .mlp_width = s->mlp_width,
                                .attention = &s->attention};

    return net_block_at(n, x, b, &p);
}

struct pk_val net_block_at(struct net *n, struct pk_val x, const struct net_block *b,
                           const struct net_place *p)
{
    const enum model_placement at = n->m->spec.placement;
    const int64_t width = p->width;
    const int number = p->number, layer = p->layer;
    struct named a;
    struct pk_val h = x;

    pk_graph_scope(n->g, name_of(&a, b, number, b->attention));
    net_norm_declare(n, name_of(&a, b, number, b->norm1), width);
    if (at != MODEL_POST)
        h = net_norm(n, x, name_of(&a, b, number, b->norm1));
    h = self_attention(n, h, b, p);
    if (model_has_mid_norm(&n->m->spec))
        h = net_norm(n, h, name_of(&a, b, number, b->mid1));
    x = pk_add(n->g, x, net_drop_path(n, h, layer, NET_AT_PATH1));
    if (at == MODEL_POST)
        x = net_norm(n, x, name_of(&a, b, number, b->norm1));
    pk_graph_scope(n->g, name_of(&a, b, number, b->mlp));
    if (at != MODEL_S5)
        net_norm_declare(n, name_of(&a, b, number, b->norm2), width);
    h = at == MODEL_POST || at == MODEL_S5 ? x : net_norm(n, x, name_of(&a, b, number, b->norm2));
    h = net_feed_forward(n, h, b, p);
    if (model_has_mid_norm(&n->m->spec))
        h = net_norm(n, h, name_of(&a, b, number, b->mid2));
    x = pk_add(n->g, x, net_drop_path(n, h, layer, NET_AT_PATH2));
    if (at == MODEL_POST)
        x = net_norm(n, x, name_of(&a, b, number, b->norm2));
    net_activations(n, layer, x);
    return x;
}

struct pk_val net_input_norm(struct net *n, struct pk_val x, const char *name)
{
    pk_graph_scope(n->g, "input_norm");
    return model_has_input_norm(&n->m->spec) ? net_norm(n, x, name) : x;
}
