/* Attention by formulas: first and second derivatives and tangents against central differences in f64, fused and by
 * primitives; and 2,000 random formulas without row functions, whose tangent and double backward are those of trees that
 * are differentiated by themselves (tests/formula/trees.h). POLYD_SEED draws others. */
#include "tests/ops/grad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formula/formula.h"
#include "kernels/graph/build.h"
#include "tests/formula/trees.h"

#define FORMULAS 2000

/* What the cases below have typed: a graph copies the plan that it is given. */
static struct pk_formula_plan plan;
static const char *text;
static char scalar[PK_FORMULA_PARAMS][PK_FORMULA_NAME];

static struct pk_attention_spec spec_of(bool causal)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    const struct pk_formula_param *name;

    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault) != PD_OK)
        fail_msg("'%s': %s", text, fault.text);
    assert_int_equal(pk_formula_plan(f, &plan, NULL), PD_OK);
    for (int k = 0; k < pk_formula_params(f, &name); k++)
        snprintf(scalar[k], sizeof scalar[k], "%s", name[k].name);
    pk_formula_free(f);
    return (struct pk_attention_spec){.formula = {.plan = &plan, .n = 9, .layer = 1, .layers = 4},
                                      .causal = causal};
}

/* Values that the formulas are meant for; two heads. */
static void fill_scalars(struct rig *r)
{
    static const char names[] = "abcgt";
    static const double value[] = {0.4, 0.3, 1.7, 0.8, 2.5};

    for (int k = 0; k < plan.params; k++)
        for (int h = 0; h < 2; h++)
            rig_put(r, "p", k * 2 + h, value[strchr(names, scalar[k][0]) - names] + 0.05 * h);
}
static void fill_masked(struct rig *r)
{
    const double m[10] = {1, 1, 0, 1, 1, 1, 1, 1, 1, 0};

    fill_scalars(r);
    rig_set(r, "mask", m);
}
static void fill_dropped(struct rig *r)
{
    const double words[3] = {17, -4, 3};
    const double m[2 * 3 * 5] = {1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 1, 1,
                                 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0};

    fill_scalars(r);
    rig_set(r, "rng", words);
    rig_set(r, "mask", m);
}
static void fill_lengths(struct rig *r)
{
    const double l[2] = {5, 4};

    fill_scalars(r);
    rig_set(r, "length", l);
}

MAKE(make_packed)
{
    struct pk_attention_spec s = spec_of(true);
    struct pk_val qkv = P("qkv", 2, 5, 3, 2, 3);

    if (plan.params)
        s.scalars = P("p", plan.params, 2);
    return pk_attention_packed(g, qkv, s);
}
MAKE(make_masked)
{
    struct pk_attention_spec s = spec_of(true);
    struct pk_val qkv = P("qkv", 2, 5, 3, 2, 3);

    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 5));
    if (plan.params)
        s.scalars = P("p", plan.params, 2);
    return pk_attention_packed(g, qkv, s);
}
MAKE(make_dropped_windows)
{
    struct pk_attention_spec s = spec_of(false);
    struct pk_val q = P("q", 4, 2, 3, 2), k = P("k", 4, 2, 5, 2), v = P("v", 4, 2, 5, 2);

    if (plan.params)
        s.scalars = P("p", plan.params, 2);
    s.bias_value = P("bias", 2, 3, 5);
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 3, 5));
    s.rng = pk_input(g, "rng", PK_I32, PK_SHAPE(3));
    s.dropout = 0.3;
    s.stream = 5;
    return pk_attention(g, q, k, v, s);
}
MAKE(make_lengths)
{
    struct pk_attention_spec s = spec_of(true);
    struct pk_val q = P("q", 2, 2, 3, 3), k = P("k", 2, 2, 5, 3), v = P("v", 2, 2, 5, 3);

    if (plan.params)
        s.scalars = P("p", plan.params, 2);
    s.length = pk_input(g, "length", PK_I32, PK_SHAPE(2));
    return pk_attention(g, q, k, v, s);
}

static const struct build builds[] = {
    {"packed", make_packed, fill_scalars, true},
    {"masked", make_masked, fill_masked, true},
    {"windows, a bias, dropout", make_dropped_windows, fill_dropped, true},
    {"lengths", make_lengths, fill_lengths, true},
};

/* Of every kind: alone, pieces, powers, one sum, several, a shift, a maximum, two passes, positions, heads and layers. */
static const char *const texts[] = {
    "s^3/(1+abs(s))",
    "a*sigmoid(s - log(n))*(1+h/H+l/L+d/8+floor(i/2))",
    "relu(s)^t/n",
    "where(s > 0.3, softplus(s), erf(s)*sin(s))",
    "softmax(c*tanh(s/c))",
    "exp(s)/(exp(b)+rowsum(exp(s)))",
    "relu(exp(s)-1)/(1e-8+rowsum(abs(exp(s)-1)))",
    "s/sqrt(rowsum(s^2)) + s*cos(s)",
    "gelu(s)/(1+abs(rowmax(s)))",
    "relu(softmax(s) + a/ni)",
};

typedef void check_fn(const struct build *b);

static void first(const struct build *b)
{
    grad_check(b, false, false);
    grad_check(b, true, false);
}
static void second(const struct build *b)
{
    grad_check(b, false, true);
    grad_check(b, true, true);
}
static void tangent(const struct build *b)
{
    grad_check_jvp(b, false);
    grad_check_jvp(b, true);
}

static void each(check_fn *check, size_t step)
{
    size_t at = 0;

    for (size_t m = 0; m < sizeof texts / sizeof *texts; m++)
        for (size_t k = 0; k < sizeof builds / sizeof *builds; k++) {
            struct build b = builds[k];
            char label[128];

            if (at++ % step)
                continue;
            snprintf(label, sizeof label, "'%s', %s", texts[m], b.label);
            b.label = label;
            text = texts[m];
            check(&b);
        }
}

static void test_formula_grad_agrees_with_differences(void **state)
{
    (void)state;
    each(first, 1);
}
static void test_formula_second_grad_agrees_with_differences(void **state)
{
    (void)state;
    each(second, 1);
}
static void test_formula_jvp_agrees_with_differences(void **state)
{
    (void)state;
    each(tangent, 1);
}
static void test_fused_formula_equals_decomposed_formula(void **state)
{
    (void)state;
    each(grad_check_fused_is_decomposed, 1);
}

/* ---- random formulas ---- */

#define POINTS 6
#define Q 1.25

static bool close_to(double a, double b, double size)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b) + size);
}

/* One query q against keys k_j of width 1, tau = 1: s_j = q k_j, y = sum_j f(s_j) v_j. */
struct point {
    double k, v, tk, tv; /* key and value with their tangents */
    double c, e;         /* weights of dk and dv in the second loss */
    struct tree_jet f;
};

static bool drawn_points(const struct tree *t, struct point *p)
{
    const bool positive = tree_draw(3) == 0;

    tree_keys = POINTS;
    tree_i = 0;
    for (int j = 0; j < POINTS; j++) {
        struct tree_jet side;
        bool broken;

        p[j] = (struct point){.k = positive ? tree_uniform(0.2, 2) : tree_uniform(-2, 2),
                              .v = tree_uniform(-1, 1),
                              .tk = tree_uniform(-1, 1),
                              .tv = tree_uniform(-1, 1),
                              .c = tree_uniform(-1, 1),
                              .e = tree_uniform(-1, 1)};
        tree_j = j;
        tree_on_break = tree_singular = false;
        p[j].f = tree_jet_at(t, t->root, Q * p[j].k);
        broken = tree_on_break || tree_singular || !(fabs(p[j].f.v) < 1e4) || !(fabs(p[j].f.d1) < 1e4) ||
                 !(fabs(p[j].f.d2) < 1e5);
        side =
            tree_jet_at(t, t->root, Q * p[j].k + 1e-7); /* close to a break the order of rounding decides */
        if (broken || !(fabs(side.d1 - p[j].f.d1) <= 0.1))
            return false;
    }
    return true;
}

static void put_all(struct rig *r, const char *name, const struct point *p, size_t offset)
{
    for (int j = 0; j < POINTS; j++)
        rig_put(r, name, j, *(const double *)((const char *)&p[j] + offset));
}

static void compare(const char *formula, const char *what, struct rig *r, const char *output, int j,
                    double want, double size)
{
    int64_t n;
    double *x = rig_read(r, output, &n);

    if (!close_to(x[j], want, size))
        fail_msg("'%s': %s %d is %.17g, should be %.17g (of size %g)", formula, what, j, x[j], want, size);
    free(x);
}

/* A value that does not depend on the leaf has no node for its derivative: 0. */
static struct pk_val or_zero(struct pk_graph *g, struct pk_val x, struct pk_shape shape)
{
    return x.id ? x : pk_fill(g, PK_F64, shape, 0);
}

static void check_random(const struct pk_formula *f, const char *formula, const struct point *p,
                         bool decomposed)
{
    static const double tq = 0.7, dy = -1.3, u = 0.6;
    struct rig *r = rig_new(decomposed);
    const struct pk_shape one = PK_SHAPE(1, 1, 1, 1), all = PK_SHAPE(1, 1, POINTS, 1);
    struct pk_attention_spec s = {.formula = {.plan = &plan, .n = 16, .layer = 2, .layers = 4}, .tau = 1};
    const struct pk_formula_param *name;
    struct pk_val q = pk_param(r->g, "q", PK_F64, one), k = pk_param(r->g, "k", PK_F64, all),
                  v = pk_param(r->g, "v", PK_F64, all), d = pk_param(r->g, "dy", PK_F64, one),
                  tangents[3] = {pk_input(r->g, "tq", PK_F64, one), pk_input(r->g, "tk", PK_F64, all),
                                 pk_input(r->g, "tv", PK_F64, all)};
    struct pk_val weight[3] = {pk_input(r->g, "u", PK_F64, one), pk_input(r->g, "c", PK_F64, all),
                               pk_input(r->g, "e", PK_F64, all)};
    struct pk_val wrt[4] = {q, k, v, d}, y, jvp, g1[3], g2[4], loss = PK_NONE;
    double sum = 0, want_y = 0, size = 0, want_t = 0, want_dy = 0;
    const int n = pk_formula_params(f, &name);

    if (n)
        s.scalars = pk_input(r->g, "p", PK_F64, PK_SHAPE(n, 1));
    y = pk_attention(r->g, q, k, v, s);
    pk_jvp(r->g, &y, 1, wrt, tangents, 3, &jvp);
    pk_grad_many(r->g, &y, &d, 1, wrt, 3, g1);
    for (int m = 0; m < 3; m++) {
        struct pk_val part =
            pk_sum(r->g, pk_mul(r->g, or_zero(r->g, g1[m], m ? all : one), weight[m]), 15, false);

        loss = loss.id ? pk_add(r->g, loss, part) : part;
    }
    pk_grad(r->g, pk_reshape(r->g, loss, PK_SHAPE(1)), PK_NONE, wrt, 4, g2);
    pk_output(r->g, "y", y);
    pk_output(r->g, "jvp", or_zero(r->g, jvp, one));
    pk_output(r->g, "d2k", or_zero(r->g, g2[1], all));
    pk_output(r->g, "d2v", or_zero(r->g, g2[2], all));
    pk_output(r->g, "d2dy", or_zero(r->g, g2[3], one));
    rig_plan(r);
    rig_put(r, "q", 0, Q);
    rig_put(r, "tq", 0, tq);
    rig_put(r, "dy", 0, dy);
    rig_put(r, "u", 0, u);
    put_all(r, "k", p, offsetof(struct point, k));
    put_all(r, "v", p, offsetof(struct point, v));
    put_all(r, "tk", p, offsetof(struct point, tk));
    put_all(r, "tv", p, offsetof(struct point, tv));
    put_all(r, "c", p, offsetof(struct point, c));
    put_all(r, "e", p, offsetof(struct point, e));
    for (int m = 0; m < n; m++)
        rig_put(r, "p", m, name[m].name[0] == 'a' ? 0.6 : name[m].name[0] == 'p' ? 1.3 : 0.7);
    rig_run(r);
    for (int j = 0; j < POINTS; j++) {
        const struct tree_jet x = p[j].f;

        want_y += x.v * p[j].v;
        want_t += x.d1 * (tq * p[j].k + Q * p[j].tk) * p[j].v + x.v * p[j].tv;
        sum += x.d1 * p[j].v * p[j].k;
        want_dy += p[j].c * x.d1 * p[j].v * Q + p[j].e * x.v;
        size += fabs(x.v) + 4 * fabs(x.d1);
    }
    want_dy += u * sum;
    compare(formula, "y", r, "y", 0, want_y, size);
    compare(formula, "tangent", r, "jvp", 0, want_t, size);
    compare(formula, "second derivative by dy", r, "d2dy", 0, want_dy, size);
    for (int j = 0; j < POINTS; j++) {
        const struct tree_jet x = p[j].f;
        const double by_k = p[j].c * dy * x.d2 * Q * Q * p[j].v + p[j].e * dy * x.d1 * Q +
                            u * dy * p[j].v * (x.d2 * Q * p[j].k + x.d1);

        compare(formula, "second derivative by key", r, "d2k", j, by_k, 10 * (fabs(x.d1) + fabs(x.d2)));
        compare(formula, "second derivative by value", r, "d2v", j,
                p[j].c * dy * x.d1 * Q + u * dy * x.d1 * p[j].k, 4 * fabs(x.d1));
    }
    rig_free(r);
}

static void test_random_formulas_have_the_tangent_and_double_backward_of_their_trees(void **state)
{
    int checked = 0, passed_over = 0;

    (void)state;
    tree_head = 0; /* what check_random builds */
    tree_heads = tree_width = 1;
    for (int trial = 0; checked < FORMULAS && trial < 12 * FORMULAS; trial++) {
        struct tree t;
        char formula[4096];
        struct pk_formula *f = tree_formula(&t, formula, sizeof formula, false);
        struct point p[POINTS];

        if (!f)
            continue;
        if (!drawn_points(&t, p) || pk_formula_plan(f, &plan, NULL) != PD_OK)
            passed_over++;
        else
            check_random(f, formula, p, checked++ % 4 == 3);
        pk_formula_free(f);
    }
    print_message("%d formulas, %d near a break or too steep passed over\n", checked, passed_over);
    assert_int_equal(checked, FORMULAS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_grad_agrees_with_differences),
        cmocka_unit_test(test_formula_second_grad_agrees_with_differences),
        cmocka_unit_test(test_formula_jvp_agrees_with_differences),
        cmocka_unit_test(test_fused_formula_equals_decomposed_formula),
        cmocka_unit_test(test_random_formulas_have_the_tangent_and_double_backward_of_their_trees),
    };
    const char *given = getenv("POLYD_SEED");

    tree_seed = given ? strtoull(given, NULL, 10) : 20261125;
    printf("# POLYD_SEED=%llu\n", (unsigned long long)tree_seed);
    tree_seed = tree_seed * 0x9e3779b97f4a7c15ull | 1;
#ifdef TEST_ON_CPU
    rig_backend = pk_backend_cpu;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
