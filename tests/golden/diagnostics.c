/* Group diagnostics: norms of A and of its Jacobians by the op that probes use. tests/golden/README.md 8.
 * Logits that a case gives directly are q against unit vectors for k. The Monte-Carlo tables of the theorems
 * and of the note on sigmoid are expectations, not one case's values: they are to come with the experiments
 * that draw them. */
#include <math.h>
#include <string.h>

#include "tests/golden/attention.h"
#include "tests/golden/golden.h"

static void compare(struct gold *g, const char *name, const struct pk_view *got)
{
    gold_compare(g, name, got, name, got->dtype == PK_F64 ? 1e-10 : 5e-6, 1e-6, 0);
}

/* (B, N, H d) as (B, H, N, d). */
static struct pk_view by_head(const struct pk_view *v, int64_t heads)
{
    int64_t b = v->shape.dim[0], n = v->shape.dim[1], width = v->shape.dim[2], d = width / heads;
    struct pk_view s = pk_view_dense(v->data, v->dtype, PK_SHAPE(b, heads, n, d));

    s.stride[0] = n * width;
    s.stride[1] = d;
    s.stride[2] = width;
    return s;
}

static void of_weights(struct gold *g, enum pk_dtype dtype)
{
    const int64_t heads = (int64_t)gold_number(g, "H", 1);
    struct pk_attr attr, product;
    struct pk_view x = gold_view(g, "x", dtype), in[5], out[5];
    int n = 3;

    if (!x.data || !gold_attention_attr(g, &attr))
        return;
    memset(&product, 0, sizeof product);
    for (int i = 0; i < 2; i++) {
        struct pk_view w = gold_view(g, i ? "wk" : "wq", dtype), y;

        if (!w.data)
            return;
        y = gold_zeros(g, dtype, PK_SHAPE(x.shape.dim[0], x.shape.dim[1], w.shape.dim[1]));
        for (int64_t b = 0; b < x.shape.dim[0];
             b++) { /* a matrix at a time: calls come without leading axes */
            size_t size = pk_dtype_size(dtype);
            struct pk_view pair[2] = {x, w}, to = y;

            pair[0] = pk_view_dense((char *)x.data + (size_t)(b * x.stride[0]) * size, dtype,
                                    PK_SHAPE(x.shape.dim[1], x.shape.dim[2]));
            to = pk_view_dense((char *)y.data + (size_t)(b * y.stride[0]) * size, dtype,
                               PK_SHAPE(y.shape.dim[1], y.shape.dim[2]));
            if (!gold_run(g, PK_OP_MATMUL, &product, pair, 2, &to, 1))
                return;
        }
        in[i] = by_head(&y, heads);
    }
    in[2] = in[1]; /* v: not looked at */
    if (attr.attention.has_scale)
        in[n++] = gold_view(g, "scale", dtype);
    in[n++] = x;
    for (int i = 0; i < 5; i++)
        out[i] = gold_zeros(g, dtype, PK_SHAPE(x.shape.dim[0], heads));
    if (!gold_run(g, PK_OP_ATTENTION_STATS, &attr, in, n, out, 5))
        return;
    compare(g, "attn_fro.f64", &out[0]);
    compare(g, "jac_fro.f64", &out[1]);
    compare(g, "jacq_fro.f64", &out[2]);
}

static void of_logits(struct gold *g, enum pk_dtype dtype)
{
    struct pk_attr attr;
    struct pk_view in[4], out[5], s = gold_view(g, "logits", dtype);
    double paper = gold_number(g, "bound_jac_fro_paper", 0), tight = gold_number(g, "bound_jac_fro_tight", 0);
    int64_t b, n;

    if (!s.data)
        return;
    b = s.shape.dim[0];
    n = s.shape.dim[1];
    memset(&attr, 0, sizeof attr);
    attr.attention = (struct pk_attention_attr){.phi = PK_PHI_SOFTMAX, .tau = 1, .scale = 1};
    in[0] = pk_view_dense(s.data, dtype, PK_SHAPE(b, 1, n, n));
    in[1] = gold_zeros(g, dtype, in[0].shape);
    for (int64_t i = 0; i < b * n; i++) {
        if (dtype == PK_F64)
            ((double *)in[1].data)[i * n + i % n] = 1;
        else
            ((float *)in[1].data)[i * n + i % n] = 1;
    }
    in[2] = in[1];
    in[3] = gold_zeros(g, dtype, PK_SHAPE(b, n, 1));
    for (int i = 0; i < 5; i++)
        out[i] = gold_zeros(g, dtype, PK_SHAPE(b, 1));
    if (!gold_run(g, PK_OP_ATTENTION_STATS, &attr, in, 4, out, 5))
        return;
    compare(g, "attn_fro.f64", &out[0]);
    compare(g, "jac_fro.f64", &out[1]);
    for (int64_t i = 0; i < b; i++) {
        double fro = dtype == PK_F64 ? ((double *)out[0].data)[i] : (double)((float *)out[0].data)[i];
        double jac = dtype == PK_F64 ? ((double *)out[1].data)[i] : (double)((float *)out[1].data)[i];

        if (fro > gold_number(g, "bound_attn_fro", 0) * (1 + 1e-6) || jac > tight * (1 + 1e-6) || jac > paper)
            gold_fail(g, "row %d breaks a bound: |A| %g, |J| %g", (int)i, fro, jac);
    }
}

void gold_diagnostics(struct gold *g)
{
    const char *name = gold_text(g, "case");

    if (strncmp(name, "theory_", 7) == 0 || strncmp(name, "note_", 5) == 0) {
        gold_expectations(g);
        return;
    }
    for (int f64 = 0; f64 < 2; f64++) {
        enum pk_dtype dtype = f64 ? PK_F64 : PK_F32;

        if (gold_has(g, "logits"))
            of_logits(g, dtype);
        else
            of_weights(g, dtype);
    }
}
