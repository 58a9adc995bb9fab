/* Group norms: LayerNorm and RMSNorm with their gradients, and QKNorm composed of norm and attention.
 * tests/golden/README.md 3 and 10. */
#include <string.h>

#include "tests/golden/attention.h"
#include "tests/golden/golden.h"

static void plain_norm(struct gold *g, bool layer, enum pk_dtype dtype)
{
    bool edge = strcmp(gold_text(g, "spec"), "edge") == 0;
    double rtol = edge ? 1e-4 : 2e-6;
    struct pk_attr attr;
    struct pk_view in[5], out[3];
    struct pk_shape rows;
    int n = 2;

    memset(&attr, 0, sizeof attr);
    attr.norm.kind = layer ? PK_NORM_LAYER : PK_NORM_RMS;
    attr.norm.eps_mode = strcmp(gold_text(g, "eps_mode"), "sum") == 0 ? PK_EPS_SUM : PK_EPS_MEAN;
    attr.norm.eps = gold_number(g, "eps", 0);
    attr.norm.has_beta = gold_has(g, "beta");
    in[0] = gold_view(g, "x", dtype);
    in[1] = gold_view(g, "gamma", dtype);
    if (!in[0].data || !in[1].data)
        return;
    if (attr.norm.has_beta)
        in[n++] = gold_view(g, "beta", dtype);
    rows = in[0].shape;
    rows.rank--;
    out[0] = gold_zeros(g, dtype, in[0].shape);
    out[1] = gold_zeros(g, dtype, rows);
    out[2] = gold_zeros(g, dtype, rows);
    if (!gold_run(g, PK_OP_NORM, &attr, in, n, out, layer ? 3 : 2))
        return;
    gold_compare_best(g, "y", &out[0], "y", rtol, 0);
    in[2] = gold_view(g, "gy", dtype);
    in[3] = out[1];
    in[4] = out[2];
    out[0] = gold_zeros(g, dtype, in[0].shape);
    out[1] = gold_zeros(g, dtype, in[1].shape);
    out[2] = gold_zeros(g, dtype, in[1].shape);
    if (!gold_run(g, PK_OP_NORM_BWD, &attr, in, layer ? 5 : 4, out, attr.norm.has_beta ? 3 : 2))
        return;
    gold_compare_best(g, "dx", &out[0], "dx", rtol, 0);
    gold_compare_best(g, "dgamma", &out[1], "dgamma", rtol, 0);
    if (attr.norm.has_beta)
        gold_compare_best(g, "dbeta", &out[2], "dbeta", rtol, 0);
}

static void qknorm(struct gold *g, enum pk_dtype dtype)
{
    static const char *const gain[2] = {"q_gamma", "k_gamma"}, *const dgain[2] = {"dq_gamma", "dk_gamma"};
    static const char *const name[2] = {"q", "k"}, *const dname[2] = {"dq", "dk"};
    struct pk_attr norm, attr;
    struct pk_view x[2], gamma[2], y[2], rstd[2], in[8], fwd[2], out[4], heads, go;
    int n = 3;

    if (!gold_attention_attr(g, &attr))
        return;
    memset(&norm, 0, sizeof norm);
    norm.norm.kind = PK_NORM_RMS;
    norm.norm.eps = gold_number(g, "eps", 1e-6);
    norm.norm.eps_mode = strcmp(gold_text(g, "eps_mode"), "sum") == 0 ? PK_EPS_SUM : PK_EPS_MEAN;
    for (int i = 0; i < 2; i++) {
        struct pk_shape rows;
        struct pk_view normed[2];

        x[i] = gold_view(g, name[i], dtype);
        gamma[i] = gold_view(g, gain[i], dtype);
        if (!x[i].data || !gamma[i].data)
            return;
        rows = x[i].shape;
        rows.rank--;
        y[i] = gold_zeros(g, dtype, x[i].shape);
        rstd[i] = gold_zeros(g, dtype, rows);
        normed[0] = y[i];
        normed[1] = rstd[i];
        if (!gold_run(g, PK_OP_NORM, &norm, (struct pk_view[]){x[i], gamma[i]}, 2, normed, 2))
            return;
        in[i] = y[i];
    }
    in[2] = gold_view(g, "v", dtype);
    go = gold_view(g, "go", dtype);
    if (attr.attention.has_scale)
        in[n++] = gold_view(g, "scale", dtype);
    if (!in[2].data || !go.data)
        return;
    fwd[0] = gold_zeros(
        g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[2], in[0].shape.dim[1], in[0].shape.dim[3]));
    fwd[1] = gold_zeros(g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[1], in[0].shape.dim[2]));
    if (!gold_run(g, PK_OP_ATTENTION, &attr, in, n, fwd, attr.attention.phi == PK_PHI_SOFTMAX ? 2 : 1))
        return;
    heads = gold_swap_heads(&fwd[0]);
    heads = gold_dense(g, &heads);
    gold_compare_best(g, "o", &heads, "o", 1e-5, 0);
    for (int i = 0; i < 3; i++)
        out[i] = gold_zeros(g, dtype, in[i].shape);
    if (attr.attention.has_scale)
        out[3] = gold_zeros(g, dtype, in[3].shape);
    in[n] = fwd[0];
    in[n + 1] = gold_swap_heads(&go);
    in[n + 2] = fwd[1];
    if (!gold_run(g, PK_OP_ATTENTION_BWD, &attr, in, n + 2 + (attr.attention.phi == PK_PHI_SOFTMAX), out,
                  3 + attr.attention.has_scale))
        return;
    gold_compare_best(g, "dv", &out[2], "dv", 1e-5, 0);
    if (attr.attention.has_scale)
        gold_compare_best(g, "dscale", &out[3], "dscale", 2e-5, gold_yardstick(g, "dscale_abs.f64"));
    for (int i = 0; i < 2; i++) {
        struct pk_view back[4] = {x[i], gamma[i], out[i], rstd[i]}, grads[2];

        grads[0] = gold_zeros(g, dtype, x[i].shape);
        grads[1] = gold_zeros(g, dtype, gamma[i].shape);
        if (!gold_run(g, PK_OP_NORM_BWD, &norm, back, 4, grads, 2))
            return;
        gold_compare_best(g, dname[i], &grads[0], dname[i], 1e-5, 0);
        gold_compare_best(g, dgain[i], &grads[1], dgain[i], 1e-5, 0);
    }
}

void gold_norms(struct gold *g)
{
    const char *kind = gold_text(g, "kind");

    for (int f64 = 0; f64 < 2; f64++) {
        enum pk_dtype dtype = f64 ? PK_F64 : PK_F32;

        if (strcmp(kind, "layernorm") == 0)
            plain_norm(g, true, dtype);
        else if (strcmp(kind, "rmsnorm") == 0)
            plain_norm(g, false, dtype);
        else if (strcmp(kind, "qknorm_attention") == 0)
            qknorm(g, dtype);
        else {
            gold_fail(g, "unknown kind '%s'", kind);
            return;
        }
    }
}
