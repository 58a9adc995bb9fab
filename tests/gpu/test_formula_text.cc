/* The text that NVRTC gets for each formula of the gallery, compiled for the host: every program against the same program run
 * in doubles, and the plan's numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/attention/formula_stats.cuh"

#include "gpu_formulas.inc"

typedef void program(const struct form_head &, const struct form_row &, float, float, float, float *);

struct text {
    int rows, params, two, shift, shift_zero, needs_d, turn_scalars, back_scalars, row_max;
    program *exponent, *value, *sums, *turn, *before, *turn_back, *back, *stats;
};

template <class F> static struct text text_of(void)
{
    const struct form_head u = {};
    int maxima = 0;

    for (int k = 0; k < FORM_ROWS; k++)
        maxima |= F::row_max(u, k) << k;
    return {F::rows(u),       F::params(u),  F::two(u),          F::shift(u),
            F::shift_zero(u), F::needs_d(u), F::turn_scalars(u), F::back_scalars(u),
            maxima,           F::exponent,   F::value,           F::sums,
            F::turn,          F::before,     F::turn_back,       F::back,
            F::stats};
}

#define X(m) text_of<f##m::form_formula>(),
static const struct text texts[] = {EACH_FORMULA(X)};
#undef X

extern "C" const char *gallery_text(int m);
extern "C" int gallery_count(void);

static float between(float lo, float hi)
{
    static uint64_t x = 88172645463325252u;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return lo + (hi - lo) * (float)((double)(x >> 11) / 9007199254740992.0);
}

static void compare(const char *text, const char *name, program *f, const struct pk_formula_program *p)
{
    for (int n = 0; n < 200; n++) {
        struct form_head u = {NULL, 196, 2, 3, 1, 4, 8, {}};
        struct form_row r = {};
        float s = between(-4, 4), j = floorf(between(0, 30)), da = between(-2, 2), got[FORM_RESULTS];
        double leaf[PK_LEAVES] = {}, want[PK_FORMULA_RESULTS];

        r.i = j + floorf(between(0, 10));
        r.ni = floorf(between(1, 40));
        r.m = between(3, 5);
        r.d = between(-2, 2);
        for (int k = 0; k < FORM_PARAMS; k++)
            u.param[k] = between(0.2f, 0.9f);
        for (int k = 0; k < FORM_ROWS; k++) {
            r.row[k] = between(1, 9);
            r.arg[k] = n % 2 ? j : j + 1;
            r.drow[k] = between(-2, 2);
        }
        leaf[PK_LEAF_S] = (double)s;
        leaf[PK_LEAF_N] = (double)u.n;
        leaf[PK_LEAF_NI] = (double)r.ni;
        leaf[PK_LEAF_I] = (double)r.i;
        leaf[PK_LEAF_J] = (double)j;
        leaf[PK_LEAF_HEAD] = (double)u.h;
        leaf[PK_LEAF_HEADS] = (double)u.H;
        leaf[PK_LEAF_LAYER] = (double)u.l;
        leaf[PK_LEAF_LAYERS] = (double)u.L;
        leaf[PK_LEAF_WIDTH] = (double)u.d;
        leaf[PK_LEAF_SHIFT] = (double)r.m;
        leaf[PK_LEAF_DA] = (double)da;
        leaf[PK_LEAF_D] = (double)r.d;
        for (int k = 0; k < FORM_PARAMS; k++)
            leaf[PK_LEAF_PARAM + k] = (double)u.param[k];
        for (int k = 0; k < FORM_ROWS; k++) {
            leaf[PK_LEAF_ROW + k] = (double)r.row[k];
            leaf[PK_LEAF_ARG + k] = (double)r.arg[k];
            leaf[PK_LEAF_DROW + k] = (double)r.drow[k];
        }
        pk_formula_run(p, leaf, want);
        f(u, r, s, j, da, got);
        for (int k = 0; k < p->results; k++)
            if (!(fabs((double)got[k] - want[k]) <= 2e-5 * (1 + fabs(want[k]))))
                fail_msg("'%s', %s, result %d: %.9g instead of %.9g (s %g)", text, name, k, (double)got[k],
                         want[k], (double)s);
    }
}

/* Relative to the value, also where it is small. The C library's exp stands in for __expf. */
static void test_softplus(void **)
{
    for (float x = -80; x < 80; x += 0.0103f) {
        const double want = log1p(exp(-fabs((double)x))) + (x > 0 ? (double)x : 0);

        if (!(fabs((double)form_softplus(x) - want) <= 2.5e-7 * want))
            fail_msg("softplus(%g) is %.9g instead of %.9g", (double)x, (double)form_softplus(x), want);
    }
    assert_true(isnan(form_softplus(NAN)));
    assert_true(form_softplus(INFINITY) == INFINITY);
    assert_true(form_softplus(-INFINITY) == 0.0f);
}

static void test_formula_text(void **state)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};

    (void)state;
    assert_int_equal(sizeof texts / sizeof *texts, gallery_count());
    for (int m = 0; m < gallery_count(); m++) {
        const char *text = gallery_text(m);
        struct pk_formula_plan *p = (struct pk_formula_plan *)malloc(sizeof *p);
        const struct text *t = &texts[m];
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;
        int maxima = 0;

        assert_int_equal(
            pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, true, params, 3, &f, &fault), PD_OK);
        assert_int_equal(pk_formula_plan(f, p, NULL), PD_OK);
        for (int k = 0; k < p->rows; k++)
            maxima |= (p->row[k] == PK_ROW_MAX) << k;
        assert_int_equal(t->rows, p->rows);
        assert_int_equal(t->params, p->params);
        assert_int_equal(t->two, p->two_passes);
        assert_int_equal(t->shift, p->shift);
        assert_int_equal(t->shift_zero, p->shift_zero);
        assert_int_equal(t->needs_d, p->needs_d);
        assert_int_equal(t->turn_scalars, p->turn_scalars);
        assert_int_equal(t->back_scalars, p->back_scalars);
        assert_int_equal(t->row_max, maxima);
        compare(text, "exponent", t->exponent, &p->exponent);
        compare(text, "value", t->value, &p->value);
        compare(text, "sums", t->sums, &p->sums);
        compare(text, "turn", t->turn, &p->turn);
        compare(text, "before", t->before, &p->before);
        compare(text, "turn_back", t->turn_back, &p->turn_back);
        compare(text, "back", t->back, &p->back);
        compare(text, "stats", t->stats, &p->stats);
        pk_formula_free(f);
        free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_softplus), cmocka_unit_test(test_formula_text)};

    return cmocka_run_group_tests_name("formula_text", tests, NULL, NULL);
}
