/* PINNsformer (arXiv:2307.11833) with the names and layouts of its authors' code: u at the k points of a sequence
 * (x, t), (x, t + step), ... An encoder attends within the sequence; the decoder asks by the same embedding again and
 * reads the encoder's output. There are no norms: before each branch stands the activation w1 sin + w2 cos, whose two
 * scalars are trained at each place. */
#include <limits.h>
#include <stdio.h>

#include "daemon/job/job.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/model/arch/arch.h"

#define BIAS_START 0.01 /* of all linear layers but the packed projection, which begins at 0 */

struct named {
    char text[128];
};

static const char *name_of(struct named *to, const char *path, const char *part)
{
    snprintf(to->text, sizeof to->text, "%.90s.%.30s", path, part);
    return to->text;
}

/* Says which of the weights that experiments compare this is. */
static void mark(struct net *n, const char *name, enum model_weight weight, int layer)
{
    const size_t i = net_param_index(n->m, name);

    if (!n->declares || i == n->m->count)
        return;
    n->declares->param[i].weight = weight;
    n->declares->param[i].layer = layer;
}

/* w1 sin x + w2 cos x, with `path`.w1 and `path`.w2. */
static struct pk_val wave(struct net *n, struct pk_val x, const char *path)
{
    struct pk_val w1 = net_vector(n, path, "w1", MODEL_ROLE_GAIN, PK_SHAPE(1), 1),
                  w2 = net_vector(n, path, "w2", MODEL_ROLE_GAIN, PK_SHAPE(1), 1);

    return pk_wave(n->g, x, w1, w2);
}

/* x (.., in) -> (.., out) by `path`.weight (out, in) and `path`.bias. */
static struct pk_val linear(struct net *n, struct pk_val x, const char *path, int64_t out,
                            enum model_weight weight, int layer)
{
    const struct pk_shape shape = pk_shape_of(n->g, x);
    const int64_t in = shape.rank ? shape.dim[shape.rank - 1] : 0;
    const struct net_how how = {.role = MODEL_ROLE_MATRIX,
                                .factor = true,
                                .decay = true,
                                .start = net_start(&n->m->spec, (double)in, (double)out, NET_STD)};
    struct named a;
    struct pk_val w = net_param(n, name_of(&a, path, "weight"), PK_SHAPE(out, in), &how);

    mark(n, a.text, weight, layer);
    return pk_linear(n->g, x, w, true,
                     net_vector(n, path, "bias", MODEL_ROLE_BIAS, PK_SHAPE(out), BIAS_START));
}

/* Three linear layers with a wave behind the first two: `path`.0 to `path`.4. */
static struct pk_val three(struct net *n, struct pk_val x, const char *path, int64_t hidden, int64_t out,
                           int layer)
{
    struct named a;

    x = linear(n, x, name_of(&a, path, "0"), hidden, layer < 0 ? MODEL_WEIGHT_OTHER : MODEL_WEIGHT_1, layer);
    x = wave(n, x, name_of(&a, path, "1"));
    x = linear(n, x, name_of(&a, path, "2"), hidden, MODEL_WEIGHT_OTHER, layer);
    x = wave(n, x, name_of(&a, path, "3"));
    return linear(n, x, name_of(&a, path, "4"), out, layer < 0 ? MODEL_WEIGHT_OTHER : MODEL_WEIGHT_2, layer);
}

/* ---- attention ---- */

/* Rows first, first + 1, ... of W_Q | W_K | W_V, `parts` of them, applied to x (B, N, D): (B, N, parts, H, d). */
static struct pk_val project(struct net *n, struct pk_val x, struct pk_val w, struct pk_val b, int first,
                             int parts)
{
    const struct model_spec *s = &n->m->spec;
    const int64_t d = s->width;

    w = pk_slice(n->g, w, 0, first * d, parts * d);
    b = pk_slice(n->g, b, 0, first * d, parts * d);
    return pk_reshape(n->g, pk_linear(n->g, x, w, true, b),
                      PK_SHAPE(n->batch, n->tokens, parts, s->heads, d / s->heads));
}

static struct pk_val part_of(struct net *n, struct pk_val x, int which)
{
    static const int32_t order[] = {0, 2, 1, 3};
    const struct model_spec *s = &n->m->spec;

    x = pk_reshape(n->g, pk_slice(n->g, x, 2, which, 1),
                   PK_SHAPE(n->batch, n->tokens, s->heads, s->width / s->heads));
    return pk_permute(n->g, x, order); /* (B, H, N, d) */
}

/* Queries of x (B, N, D), keys and values of `from`: (B, N, D) with the projection behind. */
static struct pk_val attention(struct net *n, struct pk_val x, struct pk_val from, const char *path,
                               int layer)
{
    const struct model_spec *s = &n->m->spec;
    const struct model_attention *a = &s->attention;
    const int64_t d = s->width;
    const struct net_how how = {
        .role = MODEL_ROLE_MATRIX, .factor = true, .decay = true, .start = net_start_qkv(s, a, d)};
    const bool self = x.id == from.id;
    struct pk_attention_spec spec = {.phi = a->phi,
                                     .degree = a->degree,
                                     .scale = a->scale == MODEL_SCALE_LEARNED ? 1 : a->scale_value,
                                     .bias = a->logit_bias,
                                     .form = PK_FORM_QUADRATIC};
    const size_t at = n->module++;
    struct pk_val w, b, q, k, v, all;
    struct named text;
    size_t scale = 0;

    w = net_param(n, name_of(&text, path, "in_proj_weight"), PK_SHAPE(3 * d, d), &how);
    mark(n, text.text, MODEL_WEIGHT_QKV, layer);
    b = net_vector(n, path, "in_proj_bias", MODEL_ROLE_BIAS, PK_SHAPE(3 * d), 0);
    if (a->scale == MODEL_SCALE_LEARNED)
        spec.scale_value = net_learned_scale(n, a, s->heads, path, &scale);
    net_module_declare(n, path, a, s->heads, scale);
    all = self ? project(n, x, w, b, 0, 3) : project(n, from, w, b, 1, 2);
    q = self ? part_of(n, all, 0) : part_of(n, project(n, x, w, b, 0, 1), 0);
    k = part_of(n, all, self ? 1 : 0);
    v = part_of(n, all, self ? 2 : 1);
    if (n->stats)
        n->stats[at] = net_stats(n, q, k, x, spec);
    if (n->maps)
        net_maps(n, at, q, k, spec);
    x = pk_reshape(n->g, pk_attention(n->g, q, k, v, spec), PK_SHAPE(n->batch, n->tokens, d));
    return linear(n, x, name_of(&text, path, "out_proj"), d, MODEL_WEIGHT_O, layer);
}

/* One layer of a stack; `from` PK_NONE: it attends to its own input. `block`: of all layers. */
static struct pk_val layer_of(struct net *n, struct pk_val x, struct pk_val from, const char *stack,
                              int layer, int block)
{
    const struct model_spec *s = &n->m->spec;
    char path[48];
    struct named a;
    struct pk_val y;

    snprintf(path, sizeof path, "%s.layers.%d", stack, layer);
    pk_graph_scope(n->g, path);
    y = wave(n, x, name_of(&a, path, "act1"));
    x = pk_add(n->g, x, attention(n, y, from.id ? from : y, name_of(&a, path, "attn"), block));
    y = wave(n, x, name_of(&a, path, "act2"));
    x = pk_add(n->g, x, three(n, y, name_of(&a, path, "ff.linear"), s->mlp_width, s->width, block));
    net_activations(n, block, x);
    return x;
}

/* points (B, k, 2) -> u (B, k) */
static struct pk_val forward(struct net *n, struct pk_val points)
{
    const struct model_spec *s = &n->m->spec;
    struct pk_val x, e, embedded;

    pk_graph_exact(n->g, true);
    pk_graph_scope(n->g, "linear_emb");
    embedded = linear(n, points, "linear_emb", s->width, MODEL_WEIGHT_OTHER, -1);
    e = embedded;
    for (int i = 0; i < s->depth; i++)
        e = layer_of(n, e, PK_NONE, "encoder", i, i);
    e = wave(n, e, "encoder.act");
    x = embedded;
    for (int i = 0; i < s->depth; i++)
        x = layer_of(n, x, e, "decoder", i, s->depth + i);
    x = wave(n, x, "decoder.act");
    pk_graph_scope(n->g, "linear_out");
    x = three(n, x, "linear_out", s->head_width, 1, -1);
    pk_graph_exact(n->g, false);
    return pk_reshape(n->g, x, PK_SHAPE(n->batch, n->tokens));
}

static enum pd_err from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    if (c->model.head_width > INT32_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "#/model/head_width: exceeds 2^31");
    s->head_width = (int32_t)c->model.head_width;
    return PD_OK;
}

static enum pd_err check(const struct model_spec *s, struct pd_why *why)
{
    if (s->equation <= DATA_EQUATION_NONE || s->equation >= DATA_EQUATIONS)
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: must be an equation");
    if (s->head_width < 1 || s->head_width > 1048576)
        return pd_fail(why, PD_ERR_INVALID, "#/model/head_width: %d is out of range", s->head_width);
    if (s->context < 1 || s->context > 1024)
        return pd_fail(why, PD_ERR_INVALID, "#/model/context: a sequence has 1 to 1024 points, not %d",
                       s->context);
    for (int i = 0; i < 2; i++)
        if (s->grid[i] < 2 || s->grid[i] > DATA_GRID_MAX || s->test_grid[i] < 2 ||
            s->test_grid[i] > DATA_GRID_MAX)
            return pd_fail(why, PD_ERR_INVALID, "#/data/pde: a grid has 2 to %d points along each axis",
                           DATA_GRID_MAX);
    if (!s->bias)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/model/bias: a pinnsformer always has biases");
    if (s->mixed)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/train/precision: derivatives of a solution need fp32 or fp64");
    return PD_OK;
}

const struct model_arch model_pinnsformer = {
    .name = "pinnsformer",
    .number = -1,
    .reads = MODEL_READS_POINTS,
    .transposed = true,
    .from_config = from_config,
    .check = check,
    .forward = forward,
};
