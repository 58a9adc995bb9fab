/* daemon/worker/model/maps.c: what diagnostics read of a network on its way: attention matrices of chosen heads,
 * statistics of attention, activations. All of it is taken in full precision. */
#include "daemon/worker/model/arch/arch.h"

#include <stdio.h>

#define SAMPLES_AND_HEADS 3u /* axes 0 and 1 */
#define ROW (1u << 3)
#define MATRIX (ROW | 1u << 2)

bool model_maps_has(const struct model_maps *maps, int64_t layer, int64_t head)
{
    bool has_layer = maps->layer_count == 0, has_head = maps->head_count == 0;

    for (size_t i = 0; i < maps->layer_count; i++)
        has_layer = has_layer || maps->layers[i] == layer;
    for (size_t i = 0; i < maps->head_count; i++)
        has_head = has_head || maps->heads[i] == head;
    return has_layer && has_head;
}

struct model_grid model_grid(const struct model *m)
{
    const struct model_spec *s = &m->spec;

    if (model_reads_tokens(s) || s->patch_h < 1 || s->patch_w < 1)
        return (struct model_grid){0, 0, 0};
    return (struct model_grid){s->image_h / s->patch_h, s->image_w / s->patch_w,
                               s->pool != MODEL_POOL_CLS ? 0
                               : s->arch->distils        ? 2
                                                         : 1};
}

bool model_is_causal(const struct model *m)
{
    return m->spec.arch->causal;
}

enum model_axis model_attention_axis(const struct model *m, size_t i)
{
    return m->module[i].axis;
}

size_t model_block_count(const struct model *m)
{
    return m->blocks;
}

/* The part of the spec that concerns one head. */
static struct pk_attention_spec of_head(struct net *n, struct pk_attention_spec spec, int64_t head)
{
    if (spec.scale_value.id && pk_shape_of(n->g, spec.scale_value).dim[0] > 1)
        spec.scale_value = pk_slice(n->g, spec.scale_value, 0, head, 1);
    if (spec.bias_value.id)
        spec.bias_value = pk_slice(n->g, spec.bias_value, 0, head, 1);
    if (spec.scalars.id)
        spec.scalars = pk_slice(n->g, spec.scalars, 1, head, 1);
    spec.formula.first_head = (double)head;
    return spec;
}

static void put(struct net *n, const char *what, size_t layer, int64_t head, struct pk_val v)
{
    char name[48];

    snprintf(name, sizeof name, "%s/%zu/%lld", what, layer + 1, (long long)head + 1);
    pk_output(n->g, name, v);
}

static struct pk_val number(struct net *n, struct pk_val like, double x)
{
    return pk_fill(n->g, pk_dtype_of(n->g, like), PK_SHAPE(1), x);
}

/* x, and 1 where it is 0: a divisor. */
static struct pk_val not_zero(struct net *n, struct pk_val x)
{
    return pk_add(n->g, x, pk_eq(n->g, x, number(n, x, 0)));
}

/* Entropy of the rows of |A|, each over its sum; 0 log 0 = 0. */
static struct pk_val entropy(struct net *n, struct pk_val abs)
{
    struct pk_val p = pk_div(n->g, abs, not_zero(n, pk_sum(n->g, abs, ROW, true)));

    /* the addend keeps the logarithm of 0 finite, and changes no p that f64 tells from 0 */
    p = pk_mul(n->g, p, pk_unary(n->g, PK_EX_LOG, pk_offset(n->g, p, 1e-30)));
    p = pk_scale(n->g, pk_sum(n->g, p, ROW, true), -1);
    return pk_reshape(n->g, pk_mean(n->g, p, 15, false), PK_SHAPE(1));
}

/* (sum s^2)^2 / sum s^4 = ||A||_F^4 / ||A A'||_F^2, of A over its largest entry: the scale cancels. */
static struct pk_val effective_rank(struct net *n, struct pk_val a, struct pk_val abs)
{
    struct pk_val most = not_zero(n, pk_maximum(n->g, abs, MATRIX, true)), two, four;

    a = pk_div(n->g, a, most);
    two = pk_sum(n->g, pk_mul(n->g, a, a), MATRIX, true);
    a = pk_matmul(n->g, a, pk_transpose(n->g, a));
    four = pk_sum(n->g, pk_mul(n->g, a, a), MATRIX, true);
    a = pk_div(n->g, pk_mul(n->g, two, two), not_zero(n, four));
    return pk_reshape(n->g, pk_mean(n->g, a, 15, false), PK_SHAPE(1));
}

/* Counts of visible logits in equal bins from -reach to reach. */
static void histogram(struct net *n, size_t layer, int64_t head, const struct pk_attention_matrices *m)
{
    struct pk_graph *g = n->g;
    const struct pk_shape shape = pk_shape_of(g, m->logits);
    struct pk_val abs = pk_unary(g, PK_EX_ABS, m->logits), reach, at, last;

    if (m->visible.id)
        abs = pk_mul(g, abs, m->visible);
    reach = pk_maximum(g, abs, 15, true);
    at = pk_scale(g, pk_offset(g, pk_div(g, m->logits, not_zero(n, reach)), 1), MODEL_MAP_BINS / 2.0);
    last = number(n, at, MODEL_MAP_BINS - 0.5); /* the largest belongs to the last bin */
    at = pk_select(g, pk_gt(g, at, last), last, at);
    if (m->visible.id)
        at = pk_select(g, pk_broadcast(g, m->visible, shape), at, number(n, at, MODEL_MAP_BINS));
    put(n, "reach", layer, head, pk_reshape(g, reach, PK_SHAPE(1)));
    put(n, "logits", layer, head,
        pk_count(g, pk_cast(g, at, PK_I32), MODEL_MAP_BINS + 1, pk_dtype_of(g, at)));
}

static void one_map(struct net *n, size_t layer, int64_t head, struct pk_val q, struct pk_val k,
                    struct pk_attention_spec spec)
{
    struct pk_graph *g = n->g;
    const struct pk_attention_matrices m =
        pk_attention_matrices(g, pk_slice(g, q, 1, head, 1), pk_slice(g, k, 1, head, 1), spec);
    struct pk_val abs = pk_unary(g, PK_EX_ABS, m.weights);

    put(n, "map", layer, head, pk_mean(g, m.weights, SAMPLES_AND_HEADS, false));
    put(n, "abs", layer, head, pk_mean(g, abs, SAMPLES_AND_HEADS, false));
    if (!pk_phi_shifted(spec.phi))
        put(n, "softmax", layer, head,
            pk_mean(g, pk_softmax_visible(g, m.logits, m.visible), SAMPLES_AND_HEADS, false));
    put(n, "entropy", layer, head, entropy(n, abs));
    put(n, "rank", layer, head, effective_rank(n, m.weights, abs));
    histogram(n, layer, head, &m);
}

void net_maps(struct net *n, size_t at, struct pk_val q, struct pk_val k, struct pk_attention_spec spec)
{
    const struct pk_shape s = pk_shape_of(n->g, q), sk = pk_shape_of(n->g, k);

    pk_graph_exact(n->g, true);
    for (int64_t h = 0; s.rank == 4 && h < s.dim[1]; h++) {
        if (!model_maps_has(n->maps, (int64_t)at + 1, h + 1))
            continue;
        n->map_tokens = sk.dim[2] > n->map_tokens ? sk.dim[2] : n->map_tokens;
        if (s.dim[0] * s.dim[2] * sk.dim[2] > n->map_count)
            n->map_count = s.dim[0] * s.dim[2] * sk.dim[2];
        n->map_heads++;
        n->map_bytes += s.dim[2] * sk.dim[2] * 4 * (pk_phi_shifted(spec.phi) ? 1 : 2);
        spec.formula.heads = (double)s.dim[1];
        one_map(n, at, h, q, k, of_head(n, spec, h));
    }
    pk_graph_exact(n->g, false);
}

struct pk_attention_stats net_stats(struct net *n, struct pk_val q, struct pk_val k, struct pk_val x,
                                    struct pk_attention_spec spec)
{
    struct pk_attention_stats s;

    if (!n->skip)
        return pk_attention_stats(n->g, q, k, x, spec);
    n->skipped++;
    pk_graph_exact(n->g, true);
    s = pk_attention_stats_part(n->g, q, k, x, spec, n->skip);
    pk_graph_exact(n->g, false);
    return s;
}

void net_activations(struct net *n, int layer, struct pk_val x)
{
    char name[32];

    if (n->declares && n->declares->blocks <= (size_t)layer)
        n->declares->blocks = (size_t)layer + 1;
    if (!n->stats)
        return;
    snprintf(name, sizeof name, "act_rms/%d", layer + 1);
    pk_graph_exact(n->g, true);
    x = pk_mean(n->g, pk_mul(n->g, x, x), (1u << pk_shape_of(n->g, x).rank) - 1, false);
    pk_output(n->g, name, pk_reshape(n->g, pk_unary(n->g, PK_EX_SQRT, x), PK_SHAPE(1)));
    pk_graph_exact(n->g, false);
}
