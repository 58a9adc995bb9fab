/* FORMULA and FORMULA_BWD on the emulated GPU (or a device, as device_formula): every formula of the gallery in bf16, TF32
 * and f32, and every option, against the reference back end, which shares no program of the backward part. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cuda/cuda.h"
#include "kernels/base/tree.h"
#include "kernels/formula/formula.h"
#include "tests/formula/gallery.h"
#include "tests/gpu/attention_case.h"
#include "tests/gpu/cover.h"
#include "tests/reference/reference.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

const struct pk_backend_api *pk_backend_entry(void);

static const struct {
    enum pk_dtype dtype;
    enum pk_math math;
} kinds[] = {{PK_BF16, PK_MATH_F32}, {PK_F32, PK_MATH_TF32}, {PK_F32, PK_MATH_F32}};

/* Formulas whose plans no formula of the gallery has: a maximum without a shift, two row functions, a scalar inside and
 * outside of a row function, a second pass with a maximum, sums that grow with other powers of the shift. */
static const char *const more[] = {
    "s/(1+rowmax(abs(s)))",        "a*s/(b+rowsum(abs(s))+rowmax(s^2))",      "a*exp(b*s)/rowsum(exp(b*s))",
    "relu(s-rowmax(s)/2)*j/(1+i)", "relu(s-rowmax(s)*a)/(1+rowsum(relu(s)))", "softmax(s)*softmax(s/2)",
    "softmax(s)*rowsum(s^2)/ni",   "exp(s)/sqrt(1+rowsum(exp(2*s)))"};

static struct pk_formula_plan *plan_of(const char *text)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula_plan *plan = calloc(1, sizeof *plan);
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct pd_why why;

    assert_non_null(plan);
    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault) != PD_OK)
        fail_msg("'%s': %s", text, fault.text);
    if (pk_formula_plan(f, plan, &why) != PD_OK)
        fail_msg("'%s': %s", text, why.text);
    pk_formula_free(f);
    return plan;
}

/* Multiples of 1/4 or 1/8: bf16 and TF32 hold them, and their products, exactly, so that a logit lies on the same side of a
 * break (of relu, of a maximum) in every type. */
static struct pk_view grid(enum pk_dtype dtype, struct pk_shape shape, int parts)
{
    static uint64_t state = 88172645463325252u;
    const int64_t n = pk_shape_count(&shape);
    double *x = calloc((size_t)n + 1, sizeof *x);
    struct pk_view v;

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        x[i] = ((double)(state >> 40) / 16777216.0 * 11 - 5.5);
        x[i] = (x[i] < 0 ? -floor(-x[i] + 0.5) : floor(x[i] + 0.5)) / parts;
    }
    v = attention_values(dtype, shape, x);
    free(x);
    return v;
}

struct option {
    const char *name;
    bool packed, causal, bias, drops, keys, windows, length, strided;
    bool far;        /* the bias keeps logits away from 0 */
    bool zero;       /* scalars of one head are 0 */
    int forth, back; /* struct attention_call.hopper, of each direction */
};

/* In doubles, on the reference: y and the row statistics. */
static void forward(const struct attention_call *c, struct pk_view *y, struct pk_view *rows)
{
    static struct pk_backend *reference;
    const struct pk_backend_api *api = reference_backend();
    struct pk_view in[16], out[2] = {*y, *rows};
    struct pk_call call = {
        .op = PK_OP_FORMULA, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = out};
    struct pd_why why;

    if (!reference)
        assert_int_equal(api->open(NULL, 0, 1, &reference, &why), PD_OK);
    for (int k = 0; k < c->n_in; k++) {
        in[k] = c->in[k];
        if (pk_dtype_is_float(in[k].dtype))
            in[k] = attention_widened(&c->in[k]);
    }
    call.workspace_bytes = api->workspace_bytes(reference, &call);
    call.workspace = calloc(1, call.workspace_bytes + 8);
    if (api->run(reference, &call, 1, &why) != PD_OK)
        fail_msg("%s: %s", c->name, why.text);
    free(call.workspace);
}

static void check_of(const char *text, const struct option *o, int kind, struct attention_shape s, bool whole)
{
    static const double words[3] = {17, -4, 3};
    const enum pk_dtype dtype = kinds[kind].dtype;
    struct pk_formula_plan *plan = plan_of(text);
    struct attention_call f = {.op = PK_OP_FORMULA, .math = kinds[kind].math}, g;
    struct pk_attention_attr *a = &f.attr.attention;
    const int b = s.b, h = s.h, nq = s.nq, nk = o->packed ? s.nq : s.nk, d = s.d;
    struct pk_view y, rows, dy;
    int n = 0, kept = plan->rows + plan->shift, scalars = -1;
    char name[200];

    for (int k = 0; k < plan->rows; k++)
        kept += plan->row[k] == PK_ROW_MAX;
    snprintf(name, sizeof name, "%s: '%s', kind %d", o->name, text, kind);
    f.name = name;
    f.attr.formula.plan = plan;
    f.attr.formula.n = n_scale;
    f.attr.formula.layer = 1;
    f.attr.formula.layers = 4;
    a->phi = PK_PHI_SIGMOID; /* of the kind ALONE */
    a->scale = 1;
    a->tau = 1 / sqrt(d);
    a->causal = o->causal;
    a->packed = o->packed;
    a->has_scale = plan->params > 0;
    a->has_bias = o->bias;
    a->has_mask = o->keys || o->windows;
    a->has_length = o->length;
    a->has_rng = o->drops;
    a->dropout = o->drops ? 0.3 : 0;
    a->stream = 5;
    if (o->packed) {
        f.in[n++] = grid(dtype, PK_SHAPE(b, nq, 3, h, d), 4);
    } else {
        f.in[n++] = grid(dtype, PK_SHAPE(b, h, nq, d), 4);
        f.in[n++] = grid(dtype, PK_SHAPE(b, h, nk, d), 4);
        f.in[n++] = grid(dtype, PK_SHAPE(b, h, nk, d), 8);
    }
    for (int k = 0; o->strided && k < n; k++)
        f.in[k] = attention_strided(&f.in[k]);
    if (plan->params) {
        double x[PK_FORMULA_PARAMS * 8];

        for (int k = 0; k < plan->params * h; k++)
            x[k] = o->zero && k % h == 1
                       ? 0
                       : 0.4142 + 0.25 * (k / h) + 0.0631 * (k % h); /* no ratio of logits */
        scalars = n;
        f.in[n++] = attention_values(PK_F32, PK_SHAPE(plan->params, h), x);
    }
    if (o->bias) {
        f.in[n] = grid(PK_F32, PK_SHAPE(h, nq, nk), 8);
        for (int64_t k = 0; o->far && k < (int64_t)h * nq * nk; k++)
            ((float *)f.in[n].data)[k] += 16;
        n++;
    }
    if (a->has_mask) {
        struct pk_view mask = o->keys ? attention_random(PK_U8, PK_SHAPE(b, nk), 0, 1)
                                      : attention_random(PK_U8, PK_SHAPE(2, nq, nk), 0, 1);

        for (int k = 0; k < (o->keys ? b : 2 * nq) * nk; k++) /* of windows, a query sees nothing */
            ((uint8_t *)mask.data)[k] = (o->keys || k / nk != 1) && (k * 7 + k / nk) % 4 != 0;
        f.in[n++] = mask;
    }
    if (o->length) {
        const double length[4] = {nk, nk > 256 ? 5 : nk - 2, nk - 1, nk - 3};

        f.in[n++] = attention_values(PK_I32, PK_SHAPE(b), length);
    }
    if (o->drops)
        f.in[n++] = attention_values(PK_I32, PK_SHAPE(3), words);
    f.n_in = n;
    f.n_out = 1 + (kept > 0);
    f.out[0] = PK_SHAPE(b, nq, h, d);
    f.out[1] = PK_SHAPE(b, h, kept, nq);
    f.wide[1] = true;
    f.tolerance = dtype == PK_BF16 ? 2e-2 : kinds[kind].math == PK_MATH_TF32 ? 4e-3 : 2e-5;
    f.floor = 0.1;
    f.hopper = o->forth;
    f.always = !whole;
    attention_call_check(&f);
    if (!whole) {
        attention_reset(NULL);
        free(plan);
        return;
    }

    y = attention_random(PK_F64, f.out[0], 0, 0);
    rows = attention_random(PK_F64, f.out[1], 0, 0);
    forward(&f, &y, &rows);
    g = f;
    g.op = PK_OP_FORMULA_BWD;
    g.hopper = o->back;
    g.always = o->far;
    dy = grid(dtype, f.out[0], 8);
    g.in[n++] = attention_values(dtype, f.out[0], y.data);
    g.in[n++] = o->strided ? attention_strided(&dy) : dy;
    if (kept)
        g.in[n++] = attention_values(PK_F32, f.out[1], rows.data);
    g.n_in = n;
    g.n_out = 0;
    g.tolerance *= 2;
    for (int k = 0; k < (o->packed ? 1 : 3); k++)
        g.out[g.n_out++] = f.in[k].shape;
    g.wide[1] = false;
    if (scalars >=
        0) { /* a sum of nq nk terms that cancel, each about as large as an entry of A times a value */
        g.wide[g.n_out] = true;
        g.yard[g.n_out] = 4 * sqrt((double)(b * nq * nk));
        g.out[g.n_out++] = f.in[scalars].shape;
    }
    if (o->bias) {
        g.wide[g.n_out] = true;
        g.out[g.n_out++] = PK_SHAPE(h, nq, nk);
    }
    attention_call_check(&g);

    g = f; /* diagnostics; logits are computed in f32 whatever the products' type is */
    g.op = PK_OP_FORMULA_STATS;
    g.attr.attention.has_rng = false;
    g.n_in = f.n_in - o->drops;
    g.in[g.n_in++] = grid(dtype, PK_SHAPE(b, nq, 5), 4);
    g.tolerance = 1e-4;
    g.floor = 1e-3;
    for (g.n_out = 0; g.n_out < 6; g.n_out++) {
        g.out[g.n_out] = PK_SHAPE(b, h);
        g.wide[g.n_out] = true;
        g.yard[g.n_out] = 0;
    }
    attention_call_check(&g);
    attention_reset(NULL);
    free(plan);
}

static void check(const char *text, const struct option *o, int kind, struct attention_shape s)
{
    check_of(text, o, kind, s, true);
}

/* Without gradients and diagnostics. */
static void check_forward(const char *text, const struct option *o, int kind, struct attention_shape s)
{
    check_of(text, o, kind, s, false);
}

/* POLYD_TEST_SHARE=K/N: of N processes that divide the cases, the K-th (from 0). Compiling takes most of the time on a
 * device, and one process compiles one program at a time. Cases that need the same programs are one unit: a formula in one
 * arithmetic, and of the kernels of sm 90 a formula with heads of one width. Each test counts on where another ends, so that
 * the first processes do not get one of each. */
#define FORMULAS (GALLERY + COUNT(more))
#define OPTION_UNITS (3 * FORMULAS)
#define SIZE_UNITS (OPTION_UNITS + 15)
#define HOPPER_SIZE_UNITS (SIZE_UNITS + 6)
#define HOPPER_OPTION_UNITS (HOPPER_SIZE_UNITS + 21)
static bool in_share(int unit)
{
    const char *share = getenv("POLYD_TEST_SHARE");
    int k = 0, n = 1;

    if (share && (sscanf(share, "%d/%d", &k, &n) != 2 || n < 1 || k < 0 || k >= n))
        fail_msg("POLYD_TEST_SHARE is K/N, not '%s'", share);
    return unit % n == k;
}

/* Distances make sense where no key is behind its query. */
static bool of_distance(const char *text)
{
    return strstr(text, "(i-j)") != NULL;
}

static void test_formula_gallery(void **state)
{
    static const struct option options[] = {{.name = "causal, packed", .causal = true, .packed = true},
                                            {.name = "whole"},
                                            {.name = "windows, causal", .causal = true, .windows = true}};

    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int m = 0; m < FORMULAS; m++) {
            const char *text = m < GALLERY ? gallery[m].text : more[m - GALLERY];

            for (int o = 0; o < COUNT(options) && in_share(3 * m + kind); o++) {
                if ((of_distance(text) && !options[o].causal) || (!cover_full() && o != (m + kind) % 3))
                    continue;
                check(text, &options[o], kind, (struct attention_shape){2, 3, 37, 37, 8});
            }
        }
}

static void test_formula_options(void **state)
{
    static const char *const texts[] = {"a*s^3/sqrt(n)", "exp(s)/(exp(b)+rowsum(exp(s)))",
                                        "relu(softmax(s) + a/ni)", "s/(1+rowmax(abs(s)))"};
    static const struct option options[] = {
        {.name = "bias", .bias = true},
        {.name = "bias, windows", .bias = true, .windows = true, .causal = true},
        {.name = "dropout, bias, packed", .drops = true, .bias = true, .packed = true, .causal = true},
        {.name = "lengths, strided", .length = true, .causal = true, .strided = true},
        {.name = "keys masked", .keys = true},
    };
    static const struct option zero = {.name = "a scalar of 0", .causal = true, .zero = true};

    (void)state;
    for (int t = 0; t < COUNT(texts); t++)
        for (int o = 0; o < COUNT(options); o++)
            for (int kind = 0; kind < 3; kind++)
                if (in_share(OPTION_UNITS + 3 * t + kind))
                    check(texts[t], &options[o], kind, (struct attention_shape){2, 3, 35, 40, 16});
    for (int kind = 0; kind < 3; kind++)
        if (in_share(OPTION_UNITS + 3 * COUNT(texts) + kind))
            check("a*s^3", &zero, kind, (struct attention_shape){1, 2, 70, 150, 64});
}

/* On both sides of strips and tiles, and heads of every division of channels. */
static void test_formula_sizes(void **state)
{
    static const int sizes[][3] = {{1, 1, 16}, {1, 70, 32}, {33, 129, 64}, {65, 64, 80}, {20, 33, 130}};
    static const struct option causal = {.name = "size", .causal = true}, whole = {.name = "size"};

    (void)state;
    for (int k = 0; k < COUNT(sizes); k++)
        for (int kind = 0; kind < 3; kind++) {
            const struct attention_shape s = {1, 2, sizes[k][0], sizes[k][1], sizes[k][2]};

            if (in_share(SIZE_UNITS + kind))
                check("exp(s)/rowsum(exp(s))", &causal, kind, s);
            if (in_share(SIZE_UNITS + 3 + kind))
                check("relu(softmax(s) + a/ni)", &whole, kind, s);
        }
}

/* Few queries over many keys, which are divided into parts: a cache of which little may be full, so that parts are empty; a mask
 * that hides whole rows of windows. */
static void test_formula_parts(void **state)
{
    static const struct option options[] = {{.name = "parts", .length = true, .causal = true},
                                            {.name = "parts, windows", .windows = true, .causal = true},
                                            {.name = "parts, dropout", .drops = true, .causal = true}};

    (void)state;
    for (int m = 0; m < FORMULAS; m++)
        for (int o = 0; o < COUNT(options); o++)
            if (in_share(3 * m + (m + o) % 3) && (cover_full() || o == m % COUNT(options) || o == 0))
                check_forward(m < GALLERY ? gallery[m].text : more[m - GALLERY], &options[o], (m + o) % 3,
                              (struct attention_shape){2, 2, o ? 3 : 1, 300, 16});
}

/* Whether an entry is a function of its logit, of numbers of the head and of scalars; whether scalars are factors of all. */
static bool alone(const char *text, bool *ret_factors)
{
    struct pk_formula_plan *p = plan_of(text);
    const bool is = !p->rows && !p->two_passes && !p->shift && !p->reads_j && !p->reads_row_position;

    *ret_factors = p->back_scalars == 0;
    free(p);
    return is;
}

static void check_hopper(const char *text, struct option o, struct attention_shape s)
{
    bool factors;

    o.forth = alone(text, &factors) ? 1 : -1;
    o.back = o.forth > 0 && factors && !(o.bias && (s.nq > 512 || s.nk > 512)) ? 1 : -1;
    check(text, &o, 0, s);
}

static void need_hopper(void)
{
    if (attention_device()->sm == 90 && attention_device()->hopper)
        return;
    print_message("skip: other kernels than those of sm 90 run here\n");
    skip();
}

/* Every formula, taken by the kernels of sm 90 or not, in every shape of their tiles. A pole at 0, where
 * rows and keys beyond the last have their logit. */
static void test_formula_hopper_sizes(void **state)
{
    static const struct attention_shape shapes[] = {
        {2, 3, 49, 49, 32},   {1, 2, 100, 130, 32}, {2, 1, 60, 60, 64},
        {1, 1, 70, 520, 64},  {1, 2, 130, 197, 64}, {1, 2, 65, 128, 64},
        {1, 1, 300, 300, 64}, {1, 2, 70, 80, 128},  {2, 2, 33, 40, 24}};
    static const char *const texts[] = {
        "s^3/sqrt(n)", "a*s^3", "s^3/(1+abs(s))", "a*b*softplus(s)*h/l", "sigmoid(s - h/2)", "softplus(b*s)"};
    int taken = 0;

    (void)state;
    need_hopper();
    for (int m = 0; m < GALLERY; m++) {
        const char *text = gallery[m].text;
        bool factors;

        if (in_share(3 * m) && alone(text, &factors)) {
            check_hopper(text, (struct option){.name = "sm 90, packed", .packed = true},
                         (struct attention_shape){1, 2, 70, 70, 16});
            taken++;
        }
    }
    for (int k = 0; k < COUNT(shapes); k++) {
        const int width = (shapes[k].d > 32) + (shapes[k].d > 64);

        for (int t = 0; t < COUNT(texts); t++) {
            if (!in_share(HOPPER_SIZE_UNITS + 3 * t + width))
                continue;
            check_hopper(texts[t], (struct option){.name = "sm 90"}, shapes[k]);
            check_hopper(texts[t], (struct option){.name = "sm 90, causal", .causal = true}, shapes[k]);
        }
        for (int causal = 0; causal < 2 && in_share(HOPPER_SIZE_UNITS + 3 * COUNT(texts) + width); causal++)
            check_hopper(
                "1/s",
                (struct option){.name = "sm 90, pole", .bias = true, .far = true, .causal = causal == 1},
                shapes[k]);
    }
    assert_true(taken >= 8 || getenv("POLYD_TEST_SHARE"));
}

static void test_formula_hopper_options(void **state)
{
    static const struct attention_shape shapes[] = {
        {2, 3, 49, 49, 32}, {2, 2, 40, 50, 64}, {2, 1, 90, 120, 64}};
    static const char *const texts[] = {"a*s^3/sqrt(n)", "sigmoid(s - log(n))",
                                        "relu(s)^2/n + a*exp(0-abs(s))"};
    static const struct option options[] = {
        {.name = "sm 90, bias", .bias = true},
        {.name = "sm 90, bias, windows", .bias = true, .windows = true},
        {.name = "sm 90, keys masked", .keys = true, .causal = true},
        {.name = "sm 90, windows", .windows = true},
        {.name = "sm 90, a scalar of 0", .zero = true},
    };

    (void)state;
    need_hopper();
    for (int t = 0; t < COUNT(texts); t++)
        for (int o = 0; o < COUNT(options); o++)
            for (int k = 0; k < COUNT(shapes); k++)
                if (in_share(HOPPER_OPTION_UNITS + 2 * t + (shapes[k].d > 32)))
                    check_hopper(texts[t], options[o], shapes[k]);
    if (!in_share(HOPPER_OPTION_UNITS + 2 * COUNT(texts)))
        return;
    /* Rows that bulk copies cannot take, and what only other kernels do. */
    check("s^3/sqrt(n)", &(struct option){.name = "sm 90, odd head", .forth = -1, .back = -1}, 0,
          (struct attention_shape){1, 2, 20, 20, 12});
    check("s^3/sqrt(n)", &(struct option){.name = "sm 90, dropout", .drops = true, .forth = -1, .back = -1},
          0, (struct attention_shape){1, 2, 20, 20, 16});
    check("s^3/sqrt(n)", &(struct option){.name = "sm 90, f32", .forth = -1, .back = -1}, 2,
          (struct attention_shape){1, 2, 20, 20, 16});
}

#ifdef FAKE_NVRTC
static void note_found(void *user, const struct pk_compiling *now)
{
    *(int *)user += now->ended ? 1 + now->found : 0;
}

/* On a device every case is compiled: what is cut off goes on where it was. The emulation compiles only if asked, by a
 * compiler that compiles nothing. */
static void test_formula_cache_is_found_in_a_later_run(void **state)
{
    char folder[] = "/tmp/polyd-formula-XXXXXX";
    struct pk_formula_plan *plan = plan_of("a*s^3");
    struct pk_attr attr = {.attention = {.packed = true, .phi = PK_PHI_SIGMOID}};
    const struct pk_view in = {.dtype = PK_F32, .shape = PK_SHAPE(2, 5, 3, 2, 32)};
    const struct pk_call call = {.op = PK_OP_FORMULA, .attr = &attr, .n_in = 1, .in = &in};

    (void)state;
    attr.formula.plan = plan;
    assert_non_null(mkdtemp(folder));
    setenv("POLYD_TEST_CACHE", folder, 1);
    setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
    for (int run = 0; run < 2; run++) {
        struct pd_why why = {""};
        int found = 0;

        attention_close();
        attention_open_without_hopper(pk_backend_entry());
        if (pk_backend_entry()->compile(attention_device(), &call, 1, note_found, &found, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(found, 1 + run);
    }
    unsetenv("POLYD_NVRTC");
    unsetenv("POLYD_TEST_CACHE");
    assert_int_equal(pd_tree_remove(folder, NULL), PD_OK);
    free(plan);
}
#endif

static int open_device(void **state)
{
    (void)state;
    attention_open(pk_backend_entry());
    return 0;
}

/* Without the kernels of sm 90: every formula by those that run on any device. */
static int open_without_hopper(void **state)
{
    (void)state;
    attention_open_without_hopper(pk_backend_entry());
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    attention_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_formula_gallery, attention_reset),
                                       cmocka_unit_test_teardown(test_formula_options, attention_reset),
                                       cmocka_unit_test_teardown(test_formula_sizes, attention_reset),
#ifdef FAKE_NVRTC
                                       cmocka_unit_test(test_formula_cache_is_found_in_a_later_run),
#endif
                                       cmocka_unit_test_teardown(test_formula_parts, attention_reset)};
    const struct CMUnitTest hopper[] = {
        cmocka_unit_test_teardown(test_formula_hopper_sizes, attention_reset),
        cmocka_unit_test_teardown(test_formula_hopper_options, attention_reset)};
    const int failed = cmocka_run_group_tests_name("gpu_formula", tests, open_without_hopper, close_device);

    return failed + cmocka_run_group_tests_name("gpu_formula_hopper", hopper, open_device, close_device);
}
