/* daemon/model/block.c: what networks are made of: linear layers, norms, attention, the block in its
 * placements (dnt.md 3). */
#include <stdio.h>
#include <string.h>

#include "daemon/model/net.h"

/* Whether products read this parameter, so that a mixed plan computes with a copy of it in bf16. */
static bool is_factor(const struct model *m, const struct model_param *p)
{
    switch (p->role) {
    case MODEL_ROLE_LINEAR:
    case MODEL_ROLE_RESIDUAL:
    case MODEL_ROLE_QKV:
        return true;
    case MODEL_ROLE_CONV:
        return p->shape.rank > 1;
    case MODEL_ROLE_EMBED: /* the head is tied to it */
        return m->spec.arch == MODEL_GPT && !strcmp(p->name, "transformer.wte.weight");
    default:
        return false;
    }
}

static void add_param(struct net *n, size_t i)
{
    const struct model_param *p = &n->m->param[i];
    char half[80];

    n->param[i] = pk_param(n->g, p->name, model_param_dtype(n->m, i), p->shape);
    if (!n->copies || !is_factor(n->m, p))
        return;
    model_copy_name(n->m, i, half, sizeof half);
    pk_working_copy(n->g, n->param[i], pk_state(n->g, half, PK_BF16, p->shape, PK_CAT_WEIGHTS));
}

struct pk_val net_param(struct net *n, const char *name)
{
    for (size_t i = 0; i < n->m->count; i++)
        if (!strcmp(n->m->param[i].name, name)) {
            if (!n->param[i].id)
                add_param(n, i);
            return n->param[i];
        }
    return PK_NONE;
}

/* Places of noise; each draws from a stream of its own. The numbers are kept for good: a run goes on from its
 * checkpoint with the same draws. */
enum { AT_WEIGHTS, AT_PROJECTION, AT_PATH1, AT_HIDDEN, AT_OUTPUT, AT_PATH2, PLACES = 8 };
#define EMBEDDING 0u

static uint32_t stream(int layer, int place)
{
    return 1 + (uint32_t)layer * PLACES + (uint32_t)place;
}

/* The parameter of that name with a suffix, PK_NONE where the model has none (biases). */
static struct pk_val part(struct net *n, const char *name, const char *suffix)
{
    char full[112];

    snprintf(full, sizeof full, "%s.%s", name, suffix);
    return net_param(n, full);
}

struct pk_val net_norm(struct net *n, struct pk_val x, const char *name)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_norm_spec spec = {.kind = s->norm_kind, .eps_mode = s->norm_eps_mode, .eps = s->norm_eps};

    return pk_norm(n->g, x, part(n, name, "weight"), part(n, name, "bias"), spec);
}

struct pk_val net_linear(struct net *n, struct pk_val x, const char *name)
{
    return pk_linear(n->g, x, part(n, name, "weight"), n->m->spec.arch == MODEL_VIT, part(n, name, "bias"));
}

/* QKNorm of x (B, n, H, d): always RMSNorm over d, whatever the other norms are (dnt.md 2). */
static struct pk_val qk_norm(struct net *n, struct pk_val x, const char *name)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_norm_spec spec = {.kind = PK_NORM_RMS, .eps_mode = s->norm_eps_mode, .eps = s->norm_eps};
    struct pk_val gain = part(n, name, "weight");

    if (!s->qk_per_head)
        return pk_norm(n->g, x, gain, PK_NONE, spec);
    x = pk_norm(n->g, x, pk_fill(n->g, s->dtype, PK_SHAPE(s->width / s->heads), 1), PK_NONE, spec);
    return pk_mul(n->g, x, gain); /* (H, d) */
}

enum { Q, K, V };

/* (B, n, 3, H, d) -> part Q, K or V of it as (B, H, n, d), normalised where the model wants that. */
static struct pk_val head_part(struct net *n, struct pk_val qkv, int64_t which, const char *attention)
{
    static const int32_t order[] = {0, 2, 1, 3};
    int64_t heads = n->m->spec.heads, d = n->m->spec.width / heads;
    struct pk_val x = pk_slice(n->g, qkv, 2, which, 1);

    x = pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens, heads, d));
    if (n->m->spec.qk_norm && which != V) {
        char name[80];

        snprintf(name, sizeof name, "%s.%s", attention, which == Q ? "q_norm" : "k_norm");
        x = qk_norm(n, x, name);
    }
    x = pk_permute(n->g, x, order);
    return n->m->spec.l1_tokens && which != V ? pk_l1_norm_tokens(n->g, x) : x;
}

static struct pk_val learned_scale(struct net *n, const char *attention)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_val rho = s->share == MODEL_SHARE_GLOBAL ? net_param(n, model_scale_name(s))
                                                       : part(n, attention, model_scale_name(s));

    if (s->scale_param == MODEL_PARAM_LOG)
        return pk_unary(n->g, PK_EX_EXP, rho);
    if (s->scale_param == MODEL_PARAM_SOFTPLUS)
        return pk_unary(n->g, PK_EX_LOG, pk_offset(n->g, pk_unary(n->g, PK_EX_EXP, rho), 1));
    return rho;
}

static struct pk_val attention(struct net *n, struct pk_val h, int layer, const char *qkv_name,
                               const char *name)
{
    const struct model_spec *s = &n->m->spec;
    int64_t heads = s->heads, d = s->width / heads;
    struct pk_val qkv = pk_reshape(n->g, net_linear(n, h, qkv_name),
                                   PK_SHAPE(n->batch, n->tokens, 3, heads, d)),
                  q, k, v, y;
    struct pk_attention_spec spec = {
        .phi = s->phi,
        .degree = s->degree,
        .scale = s->scale == MODEL_SCALE_LEARNED ? 1 : s->scale_value,
        .bias = s->logit_bias,
        .causal = n->causal,
        .tau = s->l1_tokens ? 1 : 0,
        .row_power = s->row_power,
        .form = s->form,
        .dropout = s->attn_dropout,
        .stream = stream(layer, AT_WEIGHTS),
        .rng = n->rng,
    };

    if (s->scale == MODEL_SCALE_LEARNED)
        spec.scale_value = learned_scale(n, name);
    if (!s->qk_norm && !s->l1_tokens && !n->decode) {
        if (n->stats)
            n->stats[layer] = pk_attention_stats_packed(n->g, qkv, h, spec);
        y = pk_attention_packed(n->g, qkv, spec);
        return pk_reshape(n->g, y, PK_SHAPE(n->batch, n->tokens, s->width));
    }
    q = head_part(n, qkv, Q, name);
    k = head_part(n, qkv, K, name);
    v = head_part(n, qkv, V, name);
    if (n->stats)
        n->stats[layer] = pk_attention_stats(n->g, q, k, h, spec);
    if (n->decode && !n->cache) {
        struct pk_shape shape = PK_SHAPE(n->batch, heads, pk_attention_features(s->degree, d), d);
        char text[32];

        snprintf(text, sizeof text, "state/%d", layer);
        spec.length = n->length;
        y = pk_attention_state(n->g, q, k, v, pk_state(n->g, text, s->dtype, shape, PK_CAT_CACHE),
                               n->position, spec);
        return pk_reshape(n->g, y, PK_SHAPE(n->batch, n->tokens, s->width));
    }
    if (n->decode) {
        struct pk_shape shape = PK_SHAPE(n->batch, heads, n->cache, d);
        char text[32];
        struct pk_val cache;

        snprintf(text, sizeof text, "cache_k/%d", layer);
        cache = pk_state(n->g, text, s->mixed ? PK_BF16 : s->dtype, shape, PK_CAT_CACHE);
        k = pk_cache_append(n->g, cache, k, n->position);
        snprintf(text, sizeof text, "cache_v/%d", layer);
        cache = pk_state(n->g, text, s->mixed ? PK_BF16 : s->dtype, shape, PK_CAT_CACHE);
        v = pk_cache_append(n->g, cache, v, n->position);
        spec.length = n->length;
        spec.form = PK_FORM_AUTO; /* against a cache there is no other order than the square */
    }
    y = pk_attention(n->g, q, k, v, spec);
    return pk_reshape(n->g, y, PK_SHAPE(n->batch, n->tokens, s->width));
}

/* Name of a part of a block: by timm, or by GPT-2's layout. */
struct named {
    const struct net *n;
    int layer;
    char text[80];
};

static const char *name_of(struct named *to, const char *timm, const char *hf)
{
    bool vit = to->n->m->spec.arch == MODEL_VIT;

    snprintf(to->text, sizeof to->text, "%s.%d.%s", vit ? "blocks" : "transformer.h", to->layer,
             vit ? timm : hf);
    return to->text;
}

bool model_has_noise(const struct model_spec *s)
{
    return s->dropout > 0 || s->drop_path > 0 || s->attn_dropout > 0;
}

static struct pk_val drop(struct net *n, struct pk_val x, int layer, int place)
{
    return pk_dropout(n->g, x, n->rng, n->m->spec.dropout, stream(layer, place));
}

static struct pk_val drop_path(struct net *n, struct pk_val x, int layer, int place)
{
    const struct model_spec *s = &n->m->spec;
    double share = s->drop_path_same ? 1 : s->depth > 1 ? (double)layer / (s->depth - 1) : 0;

    return pk_drop_path(n->g, x, n->rng, s->drop_path * share, stream(layer, place));
}

struct pk_val net_embedding_dropout(struct net *n, struct pk_val x)
{
    return pk_dropout(n->g, x, n->rng, n->m->spec.dropout, EMBEDDING);
}

static struct pk_val self_attention(struct net *n, struct pk_val x, int layer)
{
    struct named a = {n, layer, ""}, b = a;

    x = attention(n, x, layer, name_of(&a, "attn.qkv", "attn.c_attn"), name_of(&b, "attn", "attn"));
    return drop(n, net_linear(n, x, name_of(&a, "attn.proj", "attn.c_proj")), layer, AT_PROJECTION);
}

static struct pk_val feed_forward(struct net *n, struct pk_val x, int layer)
{
    const struct model_spec *s = &n->m->spec;
    struct named a = {n, layer, ""};

    x = net_linear(n, x, name_of(&a, "mlp.fc1", "mlp.c_fc"));
    x = s->mlp_relu ? pk_relu(n->g, x) : pk_gelu(n->g, x, s->gelu_tanh);
    if (s->arch == MODEL_VIT) /* timm drops here as well, GPT-2 does not */
        x = drop(n, x, layer, AT_HIDDEN);
    return drop(n, net_linear(n, x, name_of(&a, "mlp.fc2", "mlp.c_proj")), layer, AT_OUTPUT);
}

struct pk_val net_block(struct net *n, struct pk_val x, int layer)
{
    const enum model_placement at = n->m->spec.placement;
    struct named a = {n, layer, ""};
    struct pk_val h;

    pk_graph_scope(n->g, name_of(&a, "attn", "attn"));
    h = at == MODEL_POST ? x : net_norm(n, x, name_of(&a, "norm1", "ln_1"));
    h = self_attention(n, h, layer);
    if (model_has_mid_norm(&n->m->spec))
        h = net_norm(n, h, name_of(&a, "mid1", "mid_1"));
    x = pk_add(n->g, x, drop_path(n, h, layer, AT_PATH1));
    if (at == MODEL_POST)
        x = net_norm(n, x, name_of(&a, "norm1", "ln_1"));
    pk_graph_scope(n->g, name_of(&a, "mlp", "mlp"));
    h = at == MODEL_POST || at == MODEL_S5 ? x : net_norm(n, x, name_of(&a, "norm2", "ln_2"));
    h = feed_forward(n, h, layer);
    if (model_has_mid_norm(&n->m->spec))
        h = net_norm(n, h, name_of(&a, "mid2", "mid_2"));
    x = pk_add(n->g, x, drop_path(n, h, layer, AT_PATH2));
    return at == MODEL_POST ? net_norm(n, x, name_of(&a, "norm2", "ln_2")) : x;
}

struct pk_val net_input_norm(struct net *n, struct pk_val x)
{
    const struct model_spec *s = &n->m->spec;

    pk_graph_scope(n->g, "input_norm");
    return model_has_input_norm(s) ? net_norm(n, x, s->arch == MODEL_VIT ? "norm_pre" : "transformer.ln_in")
                                   : x;
}
