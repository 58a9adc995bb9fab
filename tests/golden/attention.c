/* Group attention: forward and backward of the fused op in f32 and f64, separate and packed, and A itself by
 * an identity for V where the head dimension allows. tests/golden/README.md 2 and 10. */
#include <stdio.h>
#include <string.h>

#include "kernels/formula/formula.h"
#include "tests/golden/golden.h"
#include "tests/golden/attention.h"
#include "tests/golden/bf16.h"

/* Below this a result is compared as if it were this large. */
#define FLOOR 1e-6

bool gold_attention_attr(struct gold *g, struct pk_attr *ret)
{
    struct pk_attention_attr *a = &ret->attention;
    const char *activation = gold_text(g, "activation");
    double n = gold_number(g, "n_for_scale", 1), alpha = gold_number(g, "alpha", 0);

    memset(ret, 0, sizeof *ret);
    a->tau = 1 / sqrt(gold_number(g, "d", 1));
    a->scale = gold_number(g, "scale_value", 1);
    a->causal = gold_flag(g, "causal");
    a->bias = gold_number(g, "logit_bias", 0);
    if (strcmp(activation, "softmax") == 0) {
        a->phi = PK_PHI_SOFTMAX;
    } else if (strcmp(activation, "poly") == 0) {
        a->phi = PK_PHI_POLY;
        a->degree = (int32_t)gold_number(g, "p", 0);
    } else if (strcmp(activation, "sigmoid") == 0) {
        a->phi = PK_PHI_SIGMOID;
        a->scale *= pow(n, -alpha);
    } else if (strcmp(activation, "relu") == 0) {
        a->phi = PK_PHI_RELU;
        a->scale *= pow(n, -gold_number(g, "alpha", 1));
    } else {
        gold_fail(g, "unknown activation '%s'", activation);
        return false;
    }
    a->has_scale = gold_has(g, "scale");
    return true;
}

double gold_attention_rtol(const struct gold *g, const struct pk_attention_attr *a, bool gradient)
{
    const char *name = gold_text(g, "case");

    if (strstr(name, "biglogits") || strstr(name, "zeroq"))
        return 1e-4;
    if (a->phi == PK_PHI_POLY)
        return 2e-5;
    return a->phi == PK_PHI_RELU && !gradient ? 5e-6 : 1e-5;
}

double gold_yardstick(struct gold *g, const char *tensor)
{
    const double *v;
    struct pk_shape s = {0};
    double most = 0;

    if (!gold_has(g, tensor))
        return 0;
    v = gold_tensor(g, tensor, &s);
    for (int64_t i = 0; v && i < pk_shape_count(&s); i++)
        most = fmax(most, fabs(v[i]));
    return most;
}

/* One key's softmax is 1 whatever its logit: dq and dk are differences of two equal numbers, sums of dy v,
 * and exactly 0 in one order of sums alone. What they are held against then: the largest such sum of
 * magnitudes, times tau and the largest of q and k. Else 0. */
static double one_key(struct gold *g, const struct pk_attention_attr *a)
{
    struct pk_shape s = {0};
    double most = 0, row = 0;
    const double *v, *go;

    if (a->phi != PK_PHI_SOFTMAX || gold_number(g, "Nk", 0) != 1 || gold_number(g, "Nq", 0) != 1)
        return 0;
    v = gold_tensor(g, "v", &s);
    go = gold_tensor(g, "go", &s);
    for (int64_t i = 0; v && go && i < pk_shape_count(&s); i++) {
        row = (i % s.dim[3] ? row : 0) + fabs(go[i] * v[i]);
        most = fmax(most, row);
    }
    return a->tau * most * fmax(gold_yardstick(g, "q"), gold_yardstick(g, "k"));
}

/* A view of (B, H, N, d) as (B, N, H, d) and back. */
struct pk_view gold_swap_heads(const struct pk_view *v)
{
    struct pk_view s = *v;

    s.shape.dim[1] = v->shape.dim[2];
    s.shape.dim[2] = v->shape.dim[1];
    s.stride[1] = v->stride[2];
    s.stride[2] = v->stride[1];
    return s;
}

/* Dense copy by the COPY op. */
struct pk_view gold_dense(struct gold *g, const struct pk_view *v)
{
    struct pk_attr attr = {.copy = {v->dtype}};
    struct pk_view out = gold_zeros(g, v->dtype, v->shape);

    gold_run(g, PK_OP_COPY, &attr, v, 1, &out, 1);
    return out;
}

/* Compares with the exact tensor where there is one, else with the stored float. */
void gold_compare_best(struct gold *g, const char *label, const struct pk_view *got, const char *want,
                       double rtol, double yardstick)
{
    char exact[64];

    snprintf(exact, sizeof exact, "%s.f64", want);
    if (gold_has(g, exact))
        gold_compare(g, label, got, exact, got->dtype == PK_F64 ? 1e-10 : rtol, FLOOR, yardstick);
    else /* an f64 result differs from the stored float by its rounding */
        gold_compare(g, label, got, want, got->dtype == PK_F64 ? 2e-7 : rtol, FLOOR, yardstick);
}

static void separate(struct gold *g, const struct pk_attr *attr, enum pk_dtype dtype)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct pk_view in[8], out[4], fwd[2], heads, go;
    double rtol = gold_attention_rtol(g, a, false), grad = gold_attention_rtol(g, a, true);
    int n = 3;

    in[0] = gold_view(g, "q", dtype);
    in[1] = gold_view(g, "k", dtype);
    in[2] = gold_view(g, "v", dtype);
    go = gold_view(g, "go", dtype);
    if (a->has_scale)
        in[n++] = gold_view(g, "scale", dtype);
    if (!in[0].data || !in[1].data || !in[2].data || !go.data)
        return;
    fwd[0] = gold_zeros(
        g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[2], in[0].shape.dim[1], in[0].shape.dim[3]));
    fwd[1] = gold_zeros(g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[1], in[0].shape.dim[2]));
    if (!gold_run(g, PK_OP_ATTENTION, attr, in, n, fwd, a->phi == PK_PHI_SOFTMAX ? 2 : 1))
        return;
    heads = gold_swap_heads(&fwd[0]);
    heads = gold_dense(g, &heads);
    gold_compare_best(g, "o", &heads, "o", rtol, 0);
    for (int i = 0; i < 3; i++)
        out[i] = gold_zeros(g, dtype, in[i].shape);
    if (a->has_scale)
        out[3] = gold_zeros(g, dtype, in[3].shape);
    in[n] = fwd[0];
    in[n + 1] = gold_swap_heads(&go); /* strided on purpose */
    in[n + 2] = fwd[1];
    if (!gold_run(g, PK_OP_ATTENTION_BWD, attr, in, n + 2 + (a->phi == PK_PHI_SOFTMAX), out,
                  3 + a->has_scale))
        return;
    gold_compare_best(g, "dq", &out[0], "dq", grad, one_key(g, a));
    gold_compare_best(g, "dk", &out[1], "dk", grad, one_key(g, a));
    gold_compare_best(g, "dv", &out[2], "dv", rtol, 0);
    if (a->has_scale)
        gold_compare_best(g, "dscale", &out[3], "dscale", grad, gold_yardstick(g, "dscale_abs.f64"));
}

/* q, k, v as one tensor (B, N, 3, H, d), as models hold them. */
static void packed(struct gold *g, const struct pk_attr *plain, enum pk_dtype dtype)
{
    struct pk_attr attr = *plain, concat = {.concat = {2}};
    const struct pk_attention_attr *a = &attr.attention;
    struct pk_view part[3], in[5], fwd[2], out[2], heads, go;
    double rtol = gold_attention_rtol(g, a, false), grad = gold_attention_rtol(g, a, true);
    static const char *const name[3] = {"q", "k", "v"}, *const dname[3] = {"dq", "dk", "dv"};
    int64_t b, h, t, d;
    int n = 1;

    for (int i = 0; i < 3; i++) {
        part[i] = gold_view(g, name[i], dtype);
        if (!part[i].data)
            return;
    }
    b = part[0].shape.dim[0], h = part[0].shape.dim[1], t = part[0].shape.dim[2], d = part[0].shape.dim[3];
    if (part[1].shape.dim[2] != t)
        return;
    attr.attention.packed = true;
    for (int i = 0; i < 3; i++) { /* (B, H, N, d) as (B, N, 1, H, d) */
        part[i].shape = PK_SHAPE(b, t, 1, h, d);
        part[i].stride[0] = h * t * d, part[i].stride[1] = d, part[i].stride[2] = 0,
        part[i].stride[3] = t * d;
        part[i].stride[4] = 1;
    }
    in[0] = gold_zeros(g, dtype, PK_SHAPE(b, t, 3, h, d));
    gold_run(g, PK_OP_CONCAT, &concat, part, 3, in, 1);
    if (a->has_scale)
        in[n++] = gold_view(g, "scale", dtype);
    fwd[0] = gold_zeros(g, dtype, PK_SHAPE(b, t, h, d));
    fwd[1] = gold_zeros(g, dtype, PK_SHAPE(b, h, t));
    if (!gold_run(g, PK_OP_ATTENTION, &attr, in, n, fwd, a->phi == PK_PHI_SOFTMAX ? 2 : 1))
        return;
    heads = gold_swap_heads(&fwd[0]);
    heads = gold_dense(g, &heads);
    gold_compare_best(g, "packed o", &heads, "o", rtol, 0);
    go = gold_view(g, "go", dtype);
    go = gold_swap_heads(&go);
    in[n] = fwd[0];
    in[n + 1] = gold_dense(g, &go);
    in[n + 2] = fwd[1];
    out[0] = gold_zeros(g, dtype, in[0].shape);
    if (a->has_scale)
        out[1] = gold_zeros(g, dtype, in[1].shape);
    if (!gold_run(g, PK_OP_ATTENTION_BWD, &attr, in, n + 2 + (a->phi == PK_PHI_SOFTMAX), out,
                  1 + a->has_scale))
        return;
    for (int i = 0; i < 3; i++) {
        struct pk_view v = out[0];
        char label[16];

        v.data = (char *)v.data + (size_t)(i * h * d) * pk_dtype_size(dtype);
        v.shape = PK_SHAPE(b, h, t, d);
        v.stride[0] = t * 3 * h * d, v.stride[1] = d, v.stride[2] = 3 * h * d, v.stride[3] = 1;
        v = gold_dense(g, &v);
        snprintf(label, sizeof label, "packed %s", dname[i]);
        gold_compare_best(g, label, &v, dname[i], i == 2 ? rtol : grad, i == 2 ? 0 : one_key(g, a));
    }
    if (a->has_scale)
        gold_compare_best(g, "packed dscale", &out[1], "dscale", grad, gold_yardstick(g, "dscale_abs.f64"));
}

/* With the first Nk unit vectors for V, y is A. */
static void weights(struct gold *g, const struct pk_attr *attr, enum pk_dtype dtype)
{
    struct pk_view in[4], out[2], a;
    int64_t nk, d;
    int n = 3;

    if (!gold_has(g, "attn"))
        return;
    in[0] = gold_view(g, "q", dtype);
    in[1] = gold_view(g, "k", dtype);
    if (!in[0].data || !in[1].data)
        return;
    nk = in[1].shape.dim[2], d = in[1].shape.dim[3];
    if (nk > d)
        return;
    in[2] = gold_zeros(g, dtype, in[1].shape);
    for (int64_t i = 0; i < pk_shape_count(&in[1].shape); i++) {
        double one = i / d % nk == i % d;

        if (dtype == PK_F64)
            ((double *)in[2].data)[i] = one;
        else
            ((float *)in[2].data)[i] = (float)one;
    }
    if (attr->attention.has_scale)
        in[n++] = gold_view(g, "scale", dtype);
    out[0] = gold_zeros(g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[2], in[0].shape.dim[1], d));
    out[1] = gold_zeros(g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[1], in[0].shape.dim[2]));
    if (!gold_run(g, PK_OP_ATTENTION, attr, in, n, out, attr->attention.phi == PK_PHI_SOFTMAX ? 2 : 1))
        return;
    a = gold_swap_heads(&out[0]);
    a.shape.dim[3] = nk;
    a = gold_dense(g, &a);
    gold_compare_best(g, "attn", &a, "attn", gold_attention_rtol(g, &attr->attention, false), 0);
}

/* The activation as someone types it. */
static void typed(struct gold *g, const struct pk_attention_attr *a, char *text, size_t size)
{
    const double alpha = gold_number(g, "alpha", a->phi == PK_PHI_RELU ? 1 : 0);
    const char *factor = a->has_scale ? "a*" : "";

    if (a->phi == PK_PHI_SOFTMAX)
        snprintf(text, size, "softmax(s)");
    else if (a->phi == PK_PHI_POLY)
        snprintf(text, size, "%ss^%d*%.17g", factor, (int)a->degree, a->scale);
    else if (a->phi == PK_PHI_RELU)
        snprintf(text, size, "%srelu(s)*n^(-%g)", factor, alpha);
    else if (a->bias != 0)
        snprintf(text, size, "%ssigmoid(s - log(n))*n^(-%g)", factor, alpha);
    else
        snprintf(text, size, "%ssigmoid(s)*n^(-%g)", factor, alpha);
}

/* The same by FORMULA and FORMULA_BWD. */
static void by_formula(struct gold *g, const struct pk_attr *attr, enum pk_dtype dtype)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct pk_formula_plan *plan = gold_alloc(g, sizeof *plan);
    struct pk_view in[8], out[4], fwd[2], heads, go;
    double rtol = gold_attention_rtol(g, a, false), grad = gold_attention_rtol(g, a, true);
    struct pk_attr by = {.formula = {.plan = plan, .n = gold_number(g, "n_for_scale", 1), .layers = 1}};
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pd_why why = {{0}};
    char text[128];
    int64_t kept;
    int n = 3;

    typed(g, a, text, sizeof text);
    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, a->causal, NULL, 0, &f, &fault) !=
            PD_OK ||
        pk_formula_plan(f, plan, &why) != PD_OK) {
        gold_fail(g, "'%s': %s%s", text, fault.text, why.text);
        pk_formula_free(f);
        return;
    }
    pk_formula_free(f);
    kept = plan->rows + plan->shift;
    by.attention.phi = PK_PHI_SIGMOID; /* of the kind ALONE */
    by.attention.tau = a->tau;
    by.attention.scale = 1;
    by.attention.causal = a->causal;
    by.attention.has_scale = a->has_scale;
    in[0] = gold_view(g, "q", dtype);
    in[1] = gold_view(g, "k", dtype);
    in[2] = gold_view(g, "v", dtype);
    go = gold_view(g, "go", dtype);
    if (!in[0].data || !in[1].data || !in[2].data || !go.data)
        return;
    if (a->has_scale) { /* one per layer: the same for every head, and its gradient is their sum */
        in[n] = gold_view(g, "scale", dtype);
        in[n].stride[1] = in[n].shape.dim[0] == 1 ? 0 : 1;
        in[n].shape = PK_SHAPE(1, in[0].shape.dim[1]);
        n++;
    }
    fwd[0] = gold_zeros(
        g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[2], in[0].shape.dim[1], in[0].shape.dim[3]));
    fwd[1] = gold_zeros(g, dtype, PK_SHAPE(in[0].shape.dim[0], in[0].shape.dim[1], kept, in[0].shape.dim[2]));
    if (!gold_run(g, PK_OP_FORMULA, &by, in, n, fwd, 1 + (kept > 0)))
        return;
    heads = gold_swap_heads(&fwd[0]);
    heads = gold_dense(g, &heads);
    gold_compare_best(g, "formula o", &heads, "o", rtol, 0);
    for (int i = 0; i < n; i++)
        out[i] = gold_zeros(g, dtype, in[i].shape);
    in[n] = fwd[0];
    in[n + 1] = gold_swap_heads(&go);
    in[n + 2] = fwd[1];
    if (!gold_run(g, PK_OP_FORMULA_BWD, &by, in, n + 2 + (kept > 0), out, n))
        return;
    gold_compare_best(g, "formula dq", &out[0], "dq", grad, one_key(g, a));
    gold_compare_best(g, "formula dk", &out[1], "dk", grad, one_key(g, a));
    gold_compare_best(g, "formula dv", &out[2], "dv", rtol, 0);
    if (a->has_scale) {
        struct pk_view whole = gold_view(g, "scale", dtype);

        for (int64_t h = 1; whole.shape.dim[0] == 1 && h < out[3].shape.dim[1]; h++)
            if (dtype == PK_F64)
                ((double *)out[3].data)[0] += ((double *)out[3].data)[h];
            else
                ((float *)out[3].data)[0] += ((float *)out[3].data)[h];
        out[3].shape = whole.shape;
        gold_compare_best(g, "formula dscale", &out[3], "dscale", grad, gold_yardstick(g, "dscale_abs.f64"));
    }
}

void gold_attention(struct gold *g)
{
    struct pk_attr attr;

    if (!gold_attention_attr(g, &attr))
        return;
    if (!strcmp(gold_math(), "tf32") && strstr(gold_text(g, "case"), "biglogits")) {
        g->to_come = "TF32 drops more of logits of several hundred than an exponential can bear: a band";
        return;
    }
    if (gold_bf16()) {
        separate(g, &attr, PK_F64); /* what the numbers in bf16 are held against */
        gold_attention_bf16(g, &attr);
        return;
    }
    for (int f64 = 0; f64 < 2; f64++) {
        separate(g, &attr, f64 ? PK_F64 : PK_F32);
        packed(g, &attr, f64 ? PK_F64 : PK_F32);
        weights(g, &attr, f64 ? PK_F64 : PK_F32);
        if (!strcmp(g->api->name, "cpu")) /* formulas have kernels there alone */
            by_formula(g, &attr, f64 ? PK_F64 : PK_F32);
    }
    if (pk_attention_not_linear(&attr.attention, (int64_t)gold_number(g, "Nq", 0),
                                (int64_t)gold_number(g, "Nk", 0), 0))
        return;
    attr.attention.form = PK_FORM_LINEAR; /* x and x^2 again, in the other order */
    for (int f64 = 0; f64 < 2; f64++) {
        separate(g, &attr, f64 ? PK_F64 : PK_F32);
        packed(g, &attr, f64 ? PK_F64 : PK_F32);
    }
}
