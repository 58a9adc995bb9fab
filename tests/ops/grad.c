#include "tests/ops/grad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A scalar that depends on every element of y with a weight of its own, and not linearly. */
struct pk_val grad_weigh(struct pk_graph *g, struct pk_val y, const char *name)
{
    struct pk_val w = pk_input(g, name, pk_dtype_of(g, y), pk_shape_of(g, y));
    int32_t rank = pk_shape_of(g, y).rank;
    struct pk_val s = pk_mul(g, y, pk_add(g, w, pk_scale(g, y, 0.25)));

    return pk_reshape(g, pk_sum(g, s, (1u << rank) - 1, false), PK_SHAPE(1));
}

/* Completes a graph whose scalar is f: gradients by `leaf`s, then differences. */
void grad_check_first(struct rig *r, struct pk_val f, const struct pk_val *leaf, const char *const *name,
                      size_t n)
{
    struct pk_val d[16];

    pk_grad(r->g, f, PK_NONE, leaf, n, d);
    pk_output(r->g, "f", f);
    for (size_t i = 0; i < n; i++) {
        char out[64];

        snprintf(out, sizeof out, "d.%s", name[i]);
        pk_output(r->g, out, d[i]);
    }
    rig_plan(r);
    for (size_t i = 0; i < n; i++)
        rig_check_gradient(r, name[i], GRAD_TOL);
}

/* The same for a scalar made of the gradients of f: the transform applied to its own output. */
void grad_check_second(struct rig *r, struct pk_val f, const struct pk_val *leaf, const char *const *name,
                       size_t n)
{
    struct pk_val d[16], sum = PK_NONE;

    pk_grad(r->g, f, PK_NONE, leaf, n, d);
    for (size_t i = 0; i < n; i++) {
        char w[64];
        struct pk_val part;

        snprintf(w, sizeof w, "w2.%s", name[i]);
        part = grad_weigh(r->g, d[i], w);
        sum = sum.id ? pk_add(r->g, sum, part) : part;
    }
    grad_check_first(r, sum, leaf, name, n);
}

void grad_check(const struct build *b, bool decomposed, bool second)
{
    struct rig *r = rig_new(decomposed);
    struct pk_val leaf[8];
    const char *name[8];
    size_t n = 0;
    struct pk_val y = b->make(r->g, leaf, name, &n);
    struct pk_val f;

    if (getenv("VERBOSE"))
        print_message("%s, %s, %s\n", b->label, decomposed ? "decomposed" : "fused",
                      second ? "second" : "first");
    if (pk_graph_check(r->g, &r->why) != PD_OK)
        fail_msg("%s: %s", b->label, r->why.text);
    f = grad_weigh(r->g, y, "w1");
    /* Leaves with special contents must exist before the plan, and be filled before the first run. */
    if (b->fill) {
        rig_plan(r);
        b->fill(r);
    }
    if (second)
        grad_check_second(r, f, leaf, name, n);
    else
        grad_check_first(r, f, leaf, name, n);
    rig_free(r);
}

/* All leaves by `step` along their tangents, "t.<name>". */
static void shift(struct rig *r, const char *const *name, size_t n, double *const *at, double step)
{
    char t[64];

    for (size_t k = 0; k < n; k++) {
        snprintf(t, sizeof t, "t.%s", name[k]);
        for (int64_t i = 0; i < rig_count(r, name[k]); i++)
            rig_put(r, name[k], i, at[k][i] + step * rig_get(r, t, i));
    }
}

void grad_check_jvp(const struct build *b, bool decomposed)
{
    const double h = 1e-6;
    struct rig *r = rig_new(decomposed);
    struct pk_val leaf[8], t[8], y, dy;
    const char *name[8];
    double *at[8], *got, *side[2];
    size_t n = 0, leaves;
    int64_t count = 0;

    y = b->make(r->g, leaf, name, &n);
    for (size_t k = 0; k < n; k++) {
        char text[64];

        snprintf(text, sizeof text, "t.%s", name[k]);
        t[k] = pk_input(r->g, text, PK_F64, pk_shape_of(r->g, leaf[k]));
    }
    leaves = pk_graph_leaf_count(r->g);
    pk_jvp(r->g, &y, 1, leaf, t, n, &dy);
    pk_output(r->g, "y", y);
    pk_output(r->g, "dy", dy);
    if (pk_graph_check(r->g, &r->why) != PD_OK)
        fail_msg("%s: %s", b->label, r->why.text);
    assert_int_equal(pk_graph_leaf_count(r->g), leaves); /* nothing more to bind */
    rig_plan(r);
    if (b->fill)
        b->fill(r);
    for (size_t k = 0; k < n; k++) {
        at[k] = calloc((size_t)rig_count(r, name[k]) + 1, sizeof *at[k]);
        assert_non_null(at[k]);
        for (int64_t i = 0; i < rig_count(r, name[k]); i++)
            at[k][i] = rig_get(r, name[k], i);
    }
    rig_run(r);
    got = rig_read(r, "dy", &count);
    for (int s = 0; s < 2; s++) {
        shift(r, name, n, at, s ? h : -h);
        rig_run(r);
        side[s] = rig_read(r, "y", &count);
    }
    for (int64_t i = 0; i < count; i++) {
        double want = (side[1][i] - side[0][i]) / (2 * h);

        if (!(fabs(got[i] - want) <= GRAD_TOL * (1 + fabs(want))))
            fail_msg("%s, %s: tangent %lld is %.12g, differences give %.12g", b->label,
                     decomposed ? "decomposed" : "fused", (long long)i, got[i], want);
    }
    for (size_t k = 0; k < n; k++)
        free(at[k]);
    free(got);
    free(side[0]);
    free(side[1]);
    rig_free(r);
}

void grad_check_fused_is_decomposed(const struct build *b)
{
    struct rig *r[2];
    size_t n = 0;

    for (int decomposed = 0; decomposed < 2; decomposed++) {
        struct pk_val leaf[8], d[8], y;
        const char *name[8];

        n = 0;
        r[decomposed] = rig_new(decomposed);
        y = b->make(r[decomposed]->g, leaf, name, &n);
        pk_grad(r[decomposed]->g, grad_weigh(r[decomposed]->g, y, "w1"), PK_NONE, leaf, n, d);
        pk_output(r[decomposed]->g, "y", y);
        for (size_t k = 0; k < n; k++) {
            char out[32];

            snprintf(out, sizeof out, "d%zu", k);
            pk_output(r[decomposed]->g, out, d[k]);
        }
        rig_plan(r[decomposed]);
        if (b->fill)
            b->fill(r[decomposed]);
        rig_run(r[decomposed]);
    }
    for (size_t k = 0; k <= n; k++) {
        char out[32] = "y";
        int64_t na, nb;
        double *x, *y;

        if (k)
            snprintf(out, sizeof out, "d%zu", k - 1);
        x = rig_read(r[0], out, &na);
        y = rig_read(r[1], out, &nb);
        assert_int_equal(na, nb);
        for (int64_t j = 0; j < na; j++)
            if (!(fabs(x[j] - y[j]) <= 1e-11 * (1.0 + fabs(x[j]))))
                fail_msg("%s: %s[%lld] is %.15g fused and %.15g decomposed", b->label, out, (long long)j,
                         x[j], y[j]);
        free(x);
        free(y);
    }
    rig_free(r[0]);
    rig_free(r[1]);
}
