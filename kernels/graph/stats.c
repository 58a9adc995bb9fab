/* Statistics of a part of the attention matrix, by primitives (kernels/ATTENTION.md 2). The fused op
 * ATTENTION_STATS takes the whole. */
#include "kernels/graph/build.h"

#include <math.h>

#define ROW (1u << 3)
#define MATRIX (ROW | 1u << 2)

/* x (B, H, N, N) without its first `skip` rows and columns. */
static struct pk_val rest(struct pk_graph *g, struct pk_val x, int64_t skip)
{
    const struct pk_shape s = pk_shape_of(g, x);

    x = pk_slice(g, x, 2, skip, s.dim[2] - skip);
    return pk_slice(g, x, 3, skip, s.dim[3] - skip);
}

static struct pk_val square(struct pk_graph *g, struct pk_val x)
{
    return pk_mul(g, x, x);
}

/* (B, H, 1, 1) or (B, H, n, 1) to (B, H). */
static struct pk_val total(struct pk_graph *g, struct pk_val x)
{
    return pk_sum(g, x, MATRIX, false);
}

static struct pk_val root(struct pk_graph *g, struct pk_val x)
{
    return pk_unary(g, PK_EX_SQRT, pk_max2(g, x, pk_fill(g, pk_dtype_of(g, x), PK_SHAPE(1), 0)));
}

/* dA_ij / dS_ij; for rows that are divided by their sum, with the sum held fixed. */
static struct pk_val slopes(struct pk_graph *g, const struct pk_attention_matrices *m,
                            const struct pk_attention_spec *spec)
{
    struct pk_val f, slope, zero, z;

    if (pk_phi_shifted(spec->phi))
        return m->weights; /* of the exponential */
    if (!pk_phi_normalised(spec->phi)) {
        pk_grad(g, m->weights, PK_NONE, &m->logits, 1, &slope);
        return slope;
    }
    f = pk_phi_decomposed(g, spec->phi, spec->degree, m->logits);
    if (m->visible.id)
        f = pk_mul(g, f, m->visible);
    pk_grad(g, f, PK_NONE, &m->logits, 1, &slope);
    zero = pk_fill(g, pk_dtype_of(g, f), PK_SHAPE(1), 0);
    z = pk_sum(g, f, ROW, true);
    return pk_div(g, slope, pk_add(g, z, pk_eq(g, z, zero)));
}

struct pk_attention_stats pk_attention_stats_part(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                                  struct pk_val x, struct pk_attention_spec spec,
                                                  int64_t skip)
{
    const struct pk_attention_stats none = {PK_NONE, PK_NONE, PK_NONE, PK_NONE, PK_NONE, PK_NONE};
    const struct pk_shape s = pk_shape_of(g, q), sx = pk_shape_of(g, x);
    const enum pk_dtype dtype = pk_dtype_of(g, q);
    const bool normalised = pk_phi_normalised(spec.phi);
    struct pk_attention_matrices m = pk_attention_matrices(g, q, k, spec);
    struct pk_val slope, a, d, jac, jac_q, k2, x2, see, z, count, mean;
    double tau;

    if (!m.weights.id)
        return none;
    if (skip < 0 || s.dim[2] != pk_shape_of(g, k).dim[2] || skip >= s.dim[2] || sx.rank != 3) {
        pk_graph_fail(g, PD_ERR_INVALID, "attention statistics cannot leave out %lld of %lld tokens",
                      (long long)skip, (long long)s.dim[2]);
        return none;
    }
    if (spec.formula.plan) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED,
                      "attention statistics of a part of the matrix are not available for a formula");
        return none;
    }
    if (normalised && (spec.scale != 1.0 || spec.scale_value.id)) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED,
                      "attention statistics of a part of the matrix are not available for normalised rows "
                      "with a scale");
        return none;
    }
    tau = spec.tau != 0.0 ? spec.tau : 1.0 / sqrt((double)s.dim[3]);
    slope = slopes(g, &m, &spec);
    a = rest(g, m.weights, skip);
    d = rest(g, slope, skip);
    jac = pk_sum(g, square(g, d), ROW, true);
    k2 = pk_reshape(g, pk_sum(g, square(g, k), ROW, true), PK_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2]));
    k2 = pk_slice(g, k2, 3, skip, s.dim[2] - skip);
    jac_q = pk_sum(g, pk_mul(g, square(g, d), k2), ROW, true);
    if (normalised) { /* J = diag d - a d' */
        struct pk_val mu = pk_matmul(g, slope, k), cross = pk_matmul(g, mu, pk_transpose(g, k));
        struct pk_val a2 = pk_sum(g, square(g, a), ROW, true), mu2 = pk_sum(g, square(g, mu), ROW, true);

        mu2 = pk_slice(g, mu2, 2, skip, s.dim[2] - skip);
        jac = pk_add(g, jac, pk_scale(g, pk_sum(g, pk_mul(g, a, square(g, d)), ROW, true), -2));
        jac = pk_add(g, jac, pk_mul(g, a2, pk_sum(g, square(g, d), ROW, true)));
        cross = pk_mul(g, pk_mul(g, a, d), rest(g, cross, skip));
        jac_q = pk_add(g, jac_q, pk_scale(g, pk_sum(g, cross, ROW, true), -2));
        jac_q = pk_add(g, jac_q, pk_mul(g, a2, mu2));
    }
    x2 = pk_reshape(g, pk_sum(g, square(g, x), 1u << 2, true), PK_SHAPE(s.dim[0], 1, s.dim[2], 1));
    jac_q = pk_mul(g, jac_q, pk_slice(g, x2, 2, skip, s.dim[2] - skip));
    see = m.visible.id ? m.visible : pk_fill(g, dtype, PK_SHAPE(1), 1);
    see = rest(g, pk_broadcast(g, see, pk_shape_of(g, m.logits)), skip);
    z = rest(g, m.logits, skip);
    count = pk_sum(g, see, MATRIX, true);
    count = pk_add(g, count, pk_eq(g, count, pk_fill(g, dtype, PK_SHAPE(1), 0)));
    mean = pk_div(g, pk_sum(g, pk_mul(g, z, see), MATRIX, true), count);
    return (struct pk_attention_stats){
        .fro = root(g, total(g, square(g, a))),
        .jac_fro = root(g, total(g, jac)),
        .jac_q_fro = pk_scale(g, root(g, total(g, jac_q)), tau),
        .logit_std = root(g, total(g, pk_div(g, pk_mul(g, square(g, pk_sub(g, z, mean)), see), count))),
        .logit_max = pk_maximum(g, pk_mul(g, pk_unary(g, PK_EX_ABS, z), see), MATRIX, false)};
}
