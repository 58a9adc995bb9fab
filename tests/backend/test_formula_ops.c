/* FORMULA, FORMULA_BWD and FORMULA_STATS on the CPU: what test_formula_kernels.c leaves out. Packed inputs, a bias, dropout,
 * windows, lengths, bf16 and statistics against the reference back end, with any number of threads to the bit; built-in
 * activations written as formulas against the built-ins; decoding token by token against the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"
#include "tests/backend/rig.h"
#include "tests/formula/gallery.h"

/* A plan that lives until rig_reset. */
static struct pk_formula_plan *plan_of(const char *text)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula_plan *plan = rig_alloc(sizeof *plan);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;

    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault) != PD_OK)
        fail_msg("'%s': %s", text, fault.text);
    assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
    pk_formula_free(f);
    return plan;
}

static int64_t kept_of(const struct pk_formula_plan *p)
{
    int64_t n = p->rows + p->shift;

    for (int k = 0; k < p->rows; k++)
        n += p->row[k] == PK_ROW_MAX;
    return n;
}

static struct pk_attr attr_of(const struct pk_formula_plan *plan, int d, bool causal)
{
    struct pk_attr a;

    memset(&a, 0, sizeof a);
    a.formula.plan = plan;
    a.formula.n = n_scale;
    a.formula.layer = 1;
    a.formula.layers = 4;
    a.attention.phi = PK_PHI_SIGMOID; /* of the kind ALONE */
    a.attention.scale = 1;
    a.attention.tau = 1 / sqrt(d);
    a.attention.causal = causal;
    a.attention.has_scale = plan->params > 0;
    return a;
}

/* What one head's scalars are: near those of the gallery. */
static struct pk_view scalars_of(enum pk_dtype dtype, const struct pk_formula_plan *plan, int n_heads)
{
    double x[PK_FORMULA_PARAMS * 8];

    for (int k = 0; k < plan->params; k++)
        for (int h = 0; h < n_heads; h++)
            x[k * n_heads + h] = 0.4 + 0.25 * k + 0.0625 * h;
    return rig_values(dtype, PK_SHAPE(plan->params, n_heads), x);
}

struct extra {
    const char *name;
    enum pk_dtype dtype;
    bool packed, causal, bias, drops, windows, length, strided;
};

/* Forward and backward against the reference. */
static void check(const char *text, const struct extra *e, int b, int h, int nq, int nk, int d)
{
    static const double words[3] = {17, -4, 3};
    const enum pk_dtype dtype = e->dtype, wide = dtype == PK_BF16 ? PK_F32 : dtype;
    const struct pk_formula_plan *plan = plan_of(text);
    const int64_t kept = kept_of(plan);
    struct rig_case f = {.op = PK_OP_FORMULA, .attr = attr_of(plan, d, e->causal)}, g;
    struct pk_view y, dy, rows, work;
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_call call;
    struct pd_why why;
    char name[200];
    int n = 0, scalars = -1;

    snprintf(name, sizeof name, "'%s', %s", text, e->name);
    f.name = name;
    f.tolerance = dtype == PK_F64 ? 1e-11 : dtype == PK_F32 ? 4e-5 : 8e-3;
    f.floor = 1e-3;
    f.attr.attention.packed = e->packed;
    f.attr.attention.has_bias = e->bias;
    f.attr.attention.has_mask = e->windows;
    f.attr.attention.has_length = e->length;
    f.attr.attention.has_rng = e->drops;
    f.attr.attention.dropout = e->drops ? 0.3 : 0;
    f.attr.attention.stream = 5;
    if (e->packed) {
        f.in[n++] = rig_random(dtype, PK_SHAPE(b, nq, 3, h, d), -1.5, 1.5);
    } else {
        f.in[n++] = rig_random(dtype, PK_SHAPE(b, h, nq, d), -1.5, 1.5);
        f.in[n++] = rig_random(dtype, PK_SHAPE(b, h, nk, d), -1.5, 1.5);
        f.in[n++] = rig_random(dtype, PK_SHAPE(b, h, nk, d), -1, 1);
    }
    for (int k = 0; e->strided && k < n; k++)
        f.in[k] = rig_strided(&f.in[k]);
    if (plan->params) {
        scalars = n;
        f.in[n++] = scalars_of(wide, plan, h);
    }
    if (e->bias)
        f.in[n++] = rig_random(dtype, PK_SHAPE(h, nq, nk), -0.5, 0.5);
    if (e->windows) {
        struct pk_view mask = rig_random(PK_U8, PK_SHAPE(2, nq, nk), 0, 1);

        for (int k = 0; k < 2 * nq * nk; k++)
            ((uint8_t *)mask.data)[k] = k / nk != 1 && (k * 7 + k / nk) % 4 != 0; /* a query sees nothing */
        f.in[n++] = mask;
    }
    if (e->length) {
        const double length[4] = {nk, nk - 2, nk - 1, nk - 3};

        f.in[n++] = rig_values(PK_I32, PK_SHAPE(b), length);
    }
    if (e->drops)
        f.in[n++] = rig_values(PK_I32, PK_SHAPE(3), words);
    f.n_in = n;
    f.n_out = 1 + (kept > 0);
    f.out[0] = PK_SHAPE(b, nq, h, d);
    f.out[1] = PK_SHAPE(b, h, kept, nq);
    f.out_dtype[0] = dtype;
    f.out_dtype[1] = wide;
    rig_check(&f);

    y = pk_view_dense(rig_alloc((size_t)(b * nq * h * d) * 8), dtype, f.out[0]);
    rows = pk_view_dense(rig_alloc((size_t)(b * h * nq) * 8 * (size_t)(kept + 1)), wide, f.out[1]);
    {
        struct pk_view out[2] = {y, rows};

        call = (struct pk_call){
            .op = f.op, .attr = &f.attr, .n_in = n, .n_out = f.n_out, .in = f.in, .out = out};
        call.workspace_bytes = api->workspace_bytes(rig_backend(NULL, NULL, 1), &call);
        work = pk_view_dense(rig_alloc(call.workspace_bytes), PK_U8, PK_SHAPE(1));
        call.workspace = work.data;
        assert_int_equal(api->run(rig_backend(NULL, NULL, 1), &call, 1, &why), PD_OK);
    }
    g = f;
    g.op = PK_OP_FORMULA_BWD;
    dy = rig_random(dtype, f.out[0], -1, 1);
    g.in[n++] = y;
    g.in[n++] = e->strided ? rig_strided(&dy) : dy;
    if (kept)
        g.in[n++] = rows;
    g.n_in = n;
    g.n_out = 0;
    g.tolerance = dtype == PK_F64 ? 1e-10 : dtype == PK_F32 ? 1e-4 : 2e-2;
    for (int k = 0; k < (e->packed ? 1 : 3); k++) {
        g.out[g.n_out] = f.in[k].shape;
        g.out_dtype[g.n_out++] = dtype;
    }
    if (scalars >= 0) { /* a sum whose terms cancel: each is of the size of a gradient of A */
        g.out[g.n_out] = f.in[scalars].shape;
        g.yard[g.n_out] = 4 * sqrt((double)(b * nq * nk));
        g.out_dtype[g.n_out++] = wide;
    }
    if (e->bias) {
        g.out[g.n_out] = PK_SHAPE(h, nq, nk);
        g.out_dtype[g.n_out++] = dtype;
    }
    rig_check(&g);
}

static bool of_distance(int m)
{
    return strstr(gallery[m].text, "(i-j)") != NULL;
}

static void test_formula_ops_match_the_reference(void **state)
{
    static const struct extra extras[] = {
        {.name = "packed and causal", .dtype = PK_F64, .packed = true, .causal = true},
        {.name = "a bias and windows", .dtype = PK_F64, .bias = true, .windows = true, .causal = true},
        {.name = "dropout and a bias, packed",
         .dtype = PK_F32,
         .packed = true,
         .bias = true,
         .drops = true,
         .causal = true},
        {.name = "lengths, strided", .dtype = PK_F64, .length = true, .causal = true, .strided = true},
        {.name = "bf16, packed", .dtype = PK_BF16, .packed = true, .causal = true},
        {.name = "bf16, whole", .dtype = PK_BF16},
    };

    (void)state;
    for (int m = 0; m < GALLERY; m++)
        for (size_t k = 0; k < sizeof extras / sizeof *extras; k++) {
            const bool packed = extras[k].packed;

            if (of_distance(m) && !extras[k].causal)
                continue;
            check(gallery[m].text, &extras[k], extras[k].windows ? 4 : 2, 2, packed ? 19 : 7,
                  packed ? 19 : 18, 6);
            rig_reset(NULL);
        }
}

/* Row functions beside those of the gallery: a maximum, several sums, both in one condition. */
static void test_formula_ops_match_the_reference_with_other_row_functions(void **state)
{
    static const char *const texts[] = {
        "s/(1+abs(rowmax(s)))",
        "exp(s-rowmax(s))*sigmoid(a*rowsum(tanh(s)))/ni",
        "where(rowsum(s) > 0, s^2/rowsum(s^2), relu(s)/n)",
        "relu(s - rowsum(s)/ni)^2/(1e-8 + rowsum(abs(s)))",
        "softplus(s)*(1 + j)/(2 + i)/rowsum(softplus(s))*(1+h/H+l/L)",
        "s*(sin(s)^17)^16/(1 + rowsum(s^2))", /* an integer power of a negative number, beyond one instruction */
    };
    static const struct extra extras[] = {
        {.name = "causal", .dtype = PK_F64, .packed = true, .causal = true},
        {.name = "windows", .dtype = PK_F64, .windows = true},
        {.name = "f32", .dtype = PK_F32},
        {.name = "bf16", .dtype = PK_BF16, .packed = true},
    };

    (void)state;
    for (size_t m = 0; m < sizeof texts / sizeof *texts; m++)
        for (size_t k = 0; k < sizeof extras / sizeof *extras; k++) {
            check(texts[m], &extras[k], 2, 2, 13, 13, 4);
            rig_reset(NULL);
        }
}

static void test_formula_stats_match_the_reference(void **state)
{
    (void)state;
    for (int m = 0; m < GALLERY; m++)
        for (int v = 0; v < 2; v++) {
            const struct pk_formula_plan *plan = plan_of(gallery[m].text);
            struct rig_case c = {.op = PK_OP_FORMULA_STATS,
                                 .attr = attr_of(plan, 5, v == 0 || of_distance(m)),
                                 .n_out = 6,
                                 .name = gallery[m].text,
                                 .tolerance = v ? 1e-10 : 5e-5};
            const enum pk_dtype dtype = v ? PK_F64 : PK_F32;
            int n = 0;

            c.attr.attention.has_mask = v;
            c.in[n++] = rig_random(dtype, PK_SHAPE(2, 2, 9, 5), -1.5, 1.5);
            c.in[n++] = rig_random(dtype, PK_SHAPE(2, 2, 11, 5), -1.5, 1.5);
            c.in[n] = c.in[n - 1];
            n++;
            if (plan->params)
                c.in[n++] = scalars_of(dtype, plan, 2);
            if (v) {
                struct pk_view mask = rig_random(PK_U8, PK_SHAPE(2, 11), 0, 1);

                for (int k = 0; k < 22; k++)
                    ((uint8_t *)mask.data)[k] = k % 5 != 3;
                c.in[n++] = mask;
            }
            c.in[n++] = rig_random(dtype, PK_SHAPE(2, 9, 7), -1, 1);
            c.n_in = n;
            for (int o = 0; o < 6; o++) {
                c.out[o] = PK_SHAPE(2, 2);
                c.out_dtype[o] = dtype;
            }
            rig_check(&c);
            rig_reset(NULL);
        }
}

/* ---- built-ins ---- */

static void run(enum pk_op op, const struct pk_attr *attr, const struct pk_view *in, int n_in,
                struct pk_view *out, int n_out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = rig_backend(NULL, NULL, 2);
    struct pk_call c = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    struct pd_why why;

    c.workspace_bytes = api->workspace_bytes(b, &c);
    c.workspace = rig_alloc(c.workspace_bytes);
    assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
}

/* Where the run computes inf / inf = NaN, and doubles have the range for both. */
static void test_formula_stats_count_what_leaves_the_range_of_the_run(void **state)
{
    static const char *const broken = "(1e15*s + 1)^4/(1 + (1e15*s)^4)", *const row =
                                                                             "s^2/rowsum((1e15*s)^4)";

    (void)state;
    for (int m = 0; m < 4; m++) {
        const enum pk_dtype dtype = m % 2 ? PK_F64 : PK_F32;
        const struct pk_attr attr = attr_of(plan_of(m < 2 ? broken : row), 5, false);
        const struct pk_view k = rig_random(dtype, PK_SHAPE(1, 2, 6, 5), 0.5, 1.5),
                             in[] = {rig_random(dtype, PK_SHAPE(1, 2, 6, 5), 0.5, 1.5), k, k,
                                     rig_random(dtype, PK_SHAPE(1, 6, 3), -1, 1)};
        struct pk_view out[6];

        for (int o = 0; o < 6; o++)
            out[o] = rig_random(dtype, PK_SHAPE(1, 2), 0, 1);
        run(PK_OP_FORMULA_STATS, &attr, in, 4, out, 6);
        for (int h = 0; h < 2; h++) {
            const double got = rig_get(out[5].data, dtype, h), norm = rig_get(out[0].data, dtype, h);

            if (m % 2   ? got != 0 || !(norm > 0 && norm < INFINITY)
                : m < 2 ? got != 36
                        : got != 0 || norm != 0)
                fail_msg("case %d, head %d: %g of 36 entries, norm %g", m, h, got, norm);
        }
        rig_reset(NULL);
    }
}

static struct pk_view empty(enum pk_dtype dtype, struct pk_shape shape)
{
    return pk_view_dense(rig_alloc((size_t)pk_shape_count(&shape) * 8 + 8), dtype, shape);
}

static void equal(const char *text, const char *what, const struct pk_view *got, const struct pk_view *want,
                  double tolerance)
{
    const int64_t n = pk_shape_count(&want->shape);
    double most = 1e-6;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(rig_get(want->data, want->dtype, i)));
    for (int64_t i = 0; i < n; i++) {
        const double a = rig_get(got->data, got->dtype, i), b = rig_get(want->data, want->dtype, i);

        if (!(fabs(a - b) <= tolerance * most))
            fail_msg("'%s': %s[%lld] is %.9g, the built-in's %.9g (of %g)", text, what, (long long)i, a, b,
                     most);
    }
}

static const struct {
    const char *text;
    enum pk_phi phi;
    int degree;
    double scale, bias; /* times n^-1/2, n^-1: see below */
} builtins[] = {
    {"softmax(s)", PK_PHI_SOFTMAX, 0, 1, 0},
    {"exp(s)/rowsum(exp(s))", PK_PHI_SOFTMAX, 0, 1, 0},
    {"s/sqrt(n)", PK_PHI_POLY, 1, 1. / 14, 0},
    {"s^2/14", PK_PHI_POLY, 2, 1. / 14, 0},
    {"s^3*n^(-0.5)", PK_PHI_POLY, 3, 1. / 14, 0},
    {"s*s*s*s/n", PK_PHI_POLY, 4, 1. / 196, 0},
    {"s^5", PK_PHI_POLY, 5, 1, 0},
    {"-s^6/7", PK_PHI_POLY, 6, -1. / 7, 0},
    {"sigmoid(s)", PK_PHI_SIGMOID, 0, 1, 0},
    {"sigmoid(s)*n^(-0.5)", PK_PHI_SIGMOID, 0, 1. / 14, 0},
    {"1/(1+exp(-s))/n", PK_PHI_SIGMOID, 0, 1. / 196, 0},
    {"sigmoid(s - log(n))", PK_PHI_SIGMOID, 0, 1, -5.278114659230517 /* log 196 */},
    {"relu(s)/n", PK_PHI_RELU, 0, 1. / 196, 0},
    {"t = 1+s+s^2/2; t/rowsum(t)", PK_PHI_TAYLOR, 0, 1, 0},
    {"t = sin(s+pi/4)^2; t/rowsum(t)", PK_PHI_PERIODIC, 0, 1, 0},
};

/* The exponentials of these logits, 245 to 296, fit into f64 and not into f32, where a row's are relative to their largest. */
static void test_formula_maximum_of_large_exponentials_is_a_number(void **state)
{
    static const char *const text = "exp(s)/(1 + rowmax(exp(s)))";
    double x[2 * 7 * 5];

    (void)state;
    for (int i = 0; i < 70; i++)
        x[i] = 10.5 + 0.01 * (i % 13) + 0.07 * (i % 11);
    {
        const struct pk_formula_plan *plan = plan_of(text);
        const struct pk_attr attr = attr_of(plan, 5, false);
        struct pk_view out[2][2];

        for (int wide = 0; wide < 2; wide++) {
            const enum pk_dtype dtype = wide ? PK_F64 : PK_F32;
            const struct pk_view v = rig_values(dtype, PK_SHAPE(1, 2, 7, 5), x), in[] = {v, v, v};

            out[wide][0] = empty(dtype, PK_SHAPE(1, 7, 2, 5));
            out[wide][1] = empty(dtype, PK_SHAPE(1, 2, kept_of(plan), 7));
            run(PK_OP_FORMULA, &attr, in, 3, out[wide], 2);
        }
        equal(text, "Y", &out[0][0], &out[1][0], 1e-3);
        rig_reset(NULL);
    }
}

static void test_formula_built_ins_as_formulas_give_what_they_give(void **state)
{
    static const int lengths[] = {1, 2, 63, 64, 65, 257};

    (void)state;
    for (size_t m = 0; m < sizeof builtins / sizeof *builtins; m++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int v = 0; v < 3; v++) {
                const enum pk_dtype dtype = v == 1 ? PK_F64 : PK_F32;
                const double tolerance = v == 1 ? 1e-11 : 2e-5;
                const int n = lengths[l], d = 8;
                const struct pk_formula_plan *plan = plan_of(builtins[m].text);
                const int64_t kept = kept_of(plan);
                struct pk_attr own = attr_of(plan, d, v > 0), attr = own;
                const bool sums = pk_phi_normalised(builtins[m].phi);
                struct pk_view in[6], y[2][2], d_qkv[2];
                int at = 1;

                memset(&attr, 0, sizeof attr);
                attr.attention = own.attention;
                attr.attention.phi = builtins[m].phi;
                attr.attention.degree = builtins[m].degree;
                attr.attention.scale = builtins[m].scale;
                attr.attention.bias = builtins[m].bias;
                own.attention.packed = attr.attention.packed = true;
                own.attention.has_mask = attr.attention.has_mask = v == 2; /* causal and padded */
                in[0] = rig_random(dtype, PK_SHAPE(2, n, 3, 2, d), -1.5, 1.5);
                if (v == 2) {
                    in[at] = rig_random(PK_U8, PK_SHAPE(2, n), 0, 1);
                    for (int k = 0; k < 2 * n; k++)
                        ((uint8_t *)in[at].data)[k] = k % 7 != 0;
                    at++;
                }
                y[0][0] = empty(dtype, PK_SHAPE(2, n, 2, d));
                y[0][1] = empty(dtype, PK_SHAPE(2, 2, n));
                y[1][0] = empty(dtype, PK_SHAPE(2, n, 2, d));
                y[1][1] = empty(dtype, PK_SHAPE(2, 2, kept, n));
                run(PK_OP_ATTENTION, &attr, in, at, y[0], 1 + sums);
                run(PK_OP_FORMULA, &own, in, at, y[1], 1 + (kept > 0));
                equal(builtins[m].text, "y", &y[1][0], &y[0][0], tolerance);
                in[at + 1] = rig_random(dtype, PK_SHAPE(2, n, 2, d), -1, 1);
                for (int k = 0; k < 2; k++) {
                    d_qkv[k] = empty(dtype, in[0].shape);
                    in[at] = y[k][0];
                    in[at + 2] = y[k][1];
                    run(k ? PK_OP_FORMULA_BWD : PK_OP_ATTENTION_BWD, k ? &own : &attr, in,
                        at + 2 + (k ? kept > 0 : sums), &d_qkv[k], 1);
                }
                equal(builtins[m].text, "dqkv", &d_qkv[1], &d_qkv[0], tolerance);
                rig_reset(NULL);
            }
}

/* x^3 with a learned scale per head. */
static void test_formula_learned_scale_has_the_built_ins_gradient(void **state)
{
    const struct pk_formula_plan *plan = plan_of("a*s^3");
    struct pk_attr own = attr_of(plan, 8, true), attr = {.attention = own.attention};
    struct pk_view in[6], y, d[2][2];

    (void)state;
    own.attention.packed = attr.attention.packed = true;
    attr.attention.phi = PK_PHI_POLY;
    attr.attention.degree = 3;
    in[0] = rig_random(PK_F64, PK_SHAPE(2, 70, 3, 3, 8), -1.5, 1.5);
    y = empty(PK_F64, PK_SHAPE(2, 70, 3, 8));
    in[3] = rig_random(PK_F64, y.shape, -1, 1);
    for (int k = 0; k < 2; k++) {
        const double scale[3] = {0.1, 0.3, -0.2};

        in[1] = rig_values(PK_F64, k ? PK_SHAPE(1, 3) : PK_SHAPE(3), scale);
        run(k ? PK_OP_FORMULA : PK_OP_ATTENTION, k ? &own : &attr, in, 2, &y, 1);
        in[2] = y;
        d[k][0] = empty(PK_F64, in[0].shape);
        d[k][1] = empty(PK_F64, in[1].shape);
        run(k ? PK_OP_FORMULA_BWD : PK_OP_ATTENTION_BWD, k ? &own : &attr, in, 4, d[k], 2);
    }
    equal("a*s^3", "dqkv", &d[1][0], &d[0][0], 1e-11);
    equal("a*s^3", "da", &d[1][1], &d[0][1], 1e-11);
}

/* ---- decoding ---- */

/* Each token against a cache of all, of which it sees those up to itself: the rows of the whole. */
static void test_formula_decoded_token_by_token_is_the_whole(void **state)
{
    (void)state;
    for (int m = 0; m < GALLERY; m++)
        for (int f64 = 0; f64 < 2; f64++) {
            const enum pk_dtype dtype = f64 ? PK_F64 : PK_F32;
            const int n = 37, h = 2, d = 6;
            const struct pk_formula_plan *plan = plan_of(gallery[m].text);
            const int64_t kept = kept_of(plan);
            struct pk_attr whole = attr_of(plan, d, true), one = whole;
            struct pk_view in[6], token[6],
                y[2] = {empty(dtype, PK_SHAPE(1, n, h, d)), empty(dtype, PK_SHAPE(1, h, kept, n))};
            struct pk_view part[2] = {empty(dtype, PK_SHAPE(1, 1, h, d)),
                                      empty(dtype, PK_SHAPE(1, h, kept, 1))},
                           want = empty(dtype, PK_SHAPE(1, 1, h, d));
            int at = 3;

            for (int k = 0; k < 3; k++)
                in[k] = rig_random(dtype, PK_SHAPE(1, h, n, d), -1.5, 1.5);
            if (plan->params)
                in[at++] = scalars_of(dtype, plan, h);
            run(PK_OP_FORMULA, &whole, in, at, y, 1 + (kept > 0));
            one.attention.has_length = true;
            memcpy(token, in, sizeof in);
            token[0].shape.dim[2] = 1;
            for (int i = 0; i < n; i++) {
                const double length[1] = {i + 1};

                token[0].data = (char *)in[0].data + (size_t)(i * d) * pk_dtype_size(dtype);
                token[at] = rig_values(PK_I32, PK_SHAPE(1), length);
                run(PK_OP_FORMULA, &one, token, at + 1, part, 1 + (kept > 0));
                for (int c = 0; c < h * d; c++)
                    rig_put(&want, c, rig_get(y[0].data, dtype, i * h * d + c));
                equal(gallery[m].text, "y", &part[0], &want, f64 ? 1e-12 : 2e-5);
            }
            rig_reset(NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_formula_ops_match_the_reference, rig_reset),
        cmocka_unit_test_teardown(test_formula_ops_match_the_reference_with_other_row_functions, rig_reset),
        cmocka_unit_test_teardown(test_formula_stats_match_the_reference, rig_reset),
        cmocka_unit_test_teardown(test_formula_stats_count_what_leaves_the_range_of_the_run, rig_reset),
        cmocka_unit_test_teardown(test_formula_maximum_of_large_exponentials_is_a_number, rig_reset),
        cmocka_unit_test_teardown(test_formula_built_ins_as_formulas_give_what_they_give, rig_reset),
        cmocka_unit_test_teardown(test_formula_learned_scale_has_the_built_ins_gradient, rig_reset),
        cmocka_unit_test_teardown(test_formula_decoded_token_by_token_is_the_whole, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
