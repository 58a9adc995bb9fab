/* tests/formula/test_gallery.c: the published formulas of the gallery, each against its own lines of C in complex
 * numbers, from its paper: values, gradients of logits and of learned scalars (complex step), for rows of 1 to 257
 * keys with masks. What runs is the programs that a kernel runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"
#include "tests/formula/gallery.h"
#include "tests/formula/shifted.h"

static uint64_t noise = 88172645463325252ull;

static double uniform(double lo, double hi)
{
    noise ^= noise << 13;
    noise ^= noise >> 7;
    noise ^= noise << 17;
    return lo + (hi - lo) * ((double)(noise >> 11) + 0.5) / 9007199254740992.0;
}

struct result {
    double a[KEYS], ds[KEYS], dp[PK_FORMULA_PARAMS];
};

/* As a kernel runs the plan: hidden keys count nowhere. */
static void run(const struct pk_formula_plan *p, double *at, const struct row *row, const double *w,
                struct result *to)
{
    double r[PK_FORMULA_RESULTS], g = 1, f[KEYS] = {0}, drow[PK_FORMULA_ROWS] = {0}, d = 0;
    int next;

    memset(to, 0, sizeof *to);
    at[PK_LEAF_SHIFT] = p->shift_zero ? 0 : -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int m = 0; m < p->rows; m++)
            at[PK_LEAF_ROW + m] = p->row[m] == PK_ROW_SUM ? 0 : -INFINITY;
        for (int k = 0; k < row->n; k++) {
            if (!row->seen[k])
                continue;
            at[PK_LEAF_S] = creal(row->s[k]);
            at[PK_LEAF_J] = k;
            if (!pass) {
                if (p->shift) {
                    pk_formula_run(&p->exponent, at, r);
                    at[PK_LEAF_SHIFT] = fmax(at[PK_LEAF_SHIFT], r[0]);
                }
                continue;
            }
            pk_formula_run(p->two_passes ? &p->sums : &p->value, at, r);
            f[k] = r[0];
            d += w[k] * r[0];
            for (int m = 0; m < p->rows; m++)
                at[PK_LEAF_ROW + m] += r[m + !p->two_passes];
        }
    }
    if (p->two_passes) {
        for (int k = 0; k < row->n; k++) {
            at[PK_LEAF_S] = creal(row->s[k]);
            at[PK_LEAF_J] = k;
            at[PK_LEAF_DA] = w[k];
            pk_formula_run(&p->before, at, r);
            for (int m = 0; m < p->rows && row->seen[k]; m++)
                drow[m] += r[m];
        }
    } else {
        pk_formula_run(&p->turn, at, r);
        g = r[0];
        at[PK_LEAF_D] = d;
        pk_formula_run(&p->turn_back, at, r);
        for (next = 0; next < p->rows; next++)
            drow[next] = r[next];
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (p->turn_scalars >> m & 1)
                to->dp[m] += r[next++];
    }
    for (int m = 0; m < p->rows; m++)
        at[PK_LEAF_DROW + m] = drow[m];
    for (int k = 0; k < row->n; k++) {
        if (!row->seen[k])
            continue;
        at[PK_LEAF_S] = creal(row->s[k]);
        at[PK_LEAF_J] = k;
        at[PK_LEAF_DA] = w[k] * g;
        pk_formula_run(&p->back, at, r);
        if (!p->two_passes)
            assert_true(fabs(f[k] - r[0]) <= 1e-13 * (1 + fabs(f[k])));
        to->a[k] = g * r[0];
        to->ds[k] = r[1];
        next = 2;
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (p->back_scalars >> m & 1)
                to->dp[m] += r[next++];
    }
}

static void draw(struct row *r, int n, int kind)
{
    memset(r, 0, sizeof *r);
    r->n = n;
    r->a = 0.4;
    r->b = 0.3;
    r->c = 1.7;
    r->g = 0.9;
    r->t = 1.5;
    r->i = kind == 1 ? n - 1 - n / 3 : n - 1;
    for (int k = 0; k < n; k++) {
        /* all keys; causal; a window of 5 keys before the query; every third key is padding */
        r->seen[k] =
            kind == 0 || (kind == 1 && k <= r->i) || (kind == 2 && k >= n - 5) || (kind == 3 && k % 3 != 2);
        r->seen_keys += r->seen[k];
        r->s[k] = uniform(-2, 2);
    }
}

static void test_gallery_matches_its_papers(void **state)
{
    static const int lengths[] = {1, 2, 63, 64, 65, 257};
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    int checked = 0;

    (void)state;
    assert_non_null(plan);
    for (int m = 0; m < GALLERY; m++) {
        static const struct pk_formula_param params[] = {
            {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;
        const struct pk_formula_param *name;
        int n_names;

        assert_int_equal(pk_formula_parse(gallery[m].text, strlen(gallery[m].text), PK_FORMULA_ACTIVATION,
                                          true, params, 3, &f, &fault),
                         PD_OK);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        assert_int_equal(plan->two_passes, gallery[m].passes == 2);
        n_names = pk_formula_params(f, &name);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (int kind = 0; kind < 4; kind++) {
                static struct row row;
                struct result got;
                double at[PK_LEAVES] = {0}, w[KEYS], size = 0, gradient = 0;

                draw(&row, lengths[l], kind);
                at[PK_LEAF_N] = n_scale;
                at[PK_LEAF_NI] = row.seen_keys;
                at[PK_LEAF_I] = row.i;
                at[PK_LEAF_HEAD] = head;
                at[PK_LEAF_HEADS] = heads;
                for (int k = 0; k < n_names; k++)
                    at[PK_LEAF_PARAM + k] = creal(*scalar(&row, name[k].name));
                for (int k = 0; k < row.n; k++)
                    w[k] = uniform(-1, 1);
                run(plan, at, &row, w, &got);
                for (int k = 0; k < row.n; k++)
                    size += fabs(creal(pick(&row, k, gallery[m].f)));
                for (int k = 0; k < row.n; k++) {
                    double want = creal(pick(&row, k, gallery[m].f));

                    if (!(fabs(got.a[k] - want) <= 1e-13 * (1 + size)))
                        fail_msg("'%s', %d keys, mask %d, key %d: %.17g, should be %.17g", gallery[m].text,
                                 row.n, kind, k, got.a[k], want);
                    checked++;
                }
                /* Of long rows some logits are moved, all scalars always. */
                for (int q = -n_names; q < row.n; q += q >= 0 && row.n > 65 ? 16 : 1) {
                    z *moved = q < 0 ? scalar(&row, name[q + n_names].name) : &row.s[q];
                    const z kept = *moved;
                    double want = 0, mine = q < 0 ? got.dp[q + n_names] : got.ds[q];

                    *moved += _Complex_I * STEP;
                    gradient = 0;
                    for (int k = 0; k < row.n; k++) {
                        double d = cimag(pick(&row, k, gallery[m].f)) / STEP;

                        want += w[k] * d;
                        gradient += fabs(d);
                    }
                    *moved = kept;
                    if (!(fabs(mine - want) <= 1e-11 * (1 + gradient + size)))
                        fail_msg("'%s', %d keys, mask %d, derivative %d: %.17g, should be %.17g",
                                 gallery[m].text, row.n, kind, q, mine, want);
                }
            }
        pk_formula_free(f);
    }
    free(plan);
    assert_true(checked > 25 * 4 * 400);
}

static void test_gallery_stands_large_logits(void **state)
{
    struct pk_formula_plan *plan = malloc(sizeof *plan);

    (void)state;
    assert_non_null(plan);
    for (int m = 0; m < GALLERY; m++) {
        static struct row row;
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;
        struct result got;
        double at[PK_LEAVES], w[KEYS];
        static const struct pk_formula_param params[] = {
            {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};

        assert_int_equal(pk_formula_parse(gallery[m].text, strlen(gallery[m].text), PK_FORMULA_ACTIVATION,
                                          true, params, 3, &f, &fault),
                         PD_OK);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        draw(&row, 16, 0);
        for (int k = 0; k < PK_LEAVES; k++)
            at[k] = 0.5;
        at[PK_LEAF_N] = at[PK_LEAF_NI] = 16;
        at[PK_LEAF_I] = 15;
        for (int k = 0; k < row.n; k++) {
            row.s[k] *= 2000; /* exp of these is infinite */
            w[k] = 1;
        }
        run(plan, at, &row, w, &got);
        for (int k = 0; k < row.n; k++)
            if (!isfinite(got.a[k]) || !isfinite(got.ds[k]))
                fail_msg("'%s' at %g: %g, slope %g", gallery[m].text, creal(row.s[k]), got.a[k], got.ds[k]);
        pk_formula_free(f);
    }
    free(plan);
}

static void test_gallery_exponents_of_one_row_are_shifted_together(void **state)
{
    static const double sizes[] = {0.5, 20, 2000};
    struct pk_formula_plan *plan = malloc(sizeof *plan);

    (void)state;
    assert_non_null(plan);
    for (int m = 0; m < SHIFTED; m++)
        for (int c = 0; c < (shifted[m].bounded ? 12 : 4); c++) {
            static struct row row;
            struct pk_formula *f = NULL;
            struct pk_formula_fault fault;
            struct result got;
            double at[PK_LEAVES] = {0}, w[KEYS], range = sizes[c / 4];

            assert_int_equal(pk_formula_parse(shifted[m].text, strlen(shifted[m].text), PK_FORMULA_ACTIVATION,
                                              false, NULL, 0, &f, &fault),
                             PD_OK);
            assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
            assert_int_equal(plan->shift, shifted[m].shift);

            draw(&row, 40, c % 4);
            row.a = 0.01; /* so that some entries are above the threshold */
            at[PK_LEAF_N] = n_scale;
            at[PK_LEAF_NI] = row.seen_keys;
            at[PK_LEAF_PARAM] = creal(row.a);
            for (int k = 0; k < row.n; k++) {
                row.s[k] *= range;
                w[k] = uniform(-1, 1);
            }
            run(plan, at, &row, w, &got);
            for (int k = 0; k < row.n; k++) {
                const double want = creal(pick(&row, k, shifted[m].f));

                if (!(fabs(got.a[k] - want) <= 1e-9 * fabs(want) + 1e-300))
                    fail_msg("'%s' at %g: %.17g, should be %.17g", shifted[m].text, creal(row.s[k]), got.a[k],
                             want);
            }
            for (int q = 0; q < row.n; q++) {
                const z kept = row.s[q];
                double want = 0, size = 0;

                row.s[q] += _Complex_I * STEP;
                for (int k = 0; k < row.n; k++) {
                    const double d = cimag(pick(&row, k, shifted[m].f)) / STEP;

                    want += w[k] * d;
                    size += fabs(d);
                }
                row.s[q] = kept;
                if (!(fabs(got.ds[q] - want) <= 1e-9 * (1 + size)))
                    fail_msg("'%s', derivative by logit %d, %g: %.17g, should be %.17g", shifted[m].text, q,
                             creal(row.s[q]), got.ds[q], want);
            }
            pk_formula_free(f);
        }
    free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gallery_matches_its_papers),
        cmocka_unit_test(test_gallery_stands_large_logits),
        cmocka_unit_test(test_gallery_exponents_of_one_row_are_shifted_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
