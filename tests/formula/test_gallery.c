/* tests/formula/test_gallery.c: the published formulas of the gallery, each against its own lines of C in complex
 * numbers, from its paper: values, gradients of logits and of learned scalars (complex step), for rows of 1 to 257
 * keys with masks. What runs is the programs that a kernel runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <complex.h>
#undef I
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"

#define KEYS 257
#define STEP 1e-30

typedef double complex z;

/* A row: logits, which keys it sees, its number, scalars by name in the order a, b, c, g, t. */
struct row {
    z s[KEYS], a, b, c, g, t;
    int n, i, seen_keys;
    bool seen[KEYS];
};
static const double n_scale = 196, head = 2, heads = 3;

static z pick(const struct row *r, int k, z (*f)(const struct row *, int))
{
    return r->seen[k] ? f(r, k) : 0;
}

static z total(const struct row *r, z (*f)(const struct row *, int))
{
    z sum = 0;

    for (int k = 0; k < r->n; k++)
        sum += pick(r, k, f);
    return sum;
}

static z magnitude(z x)
{
    return creal(x) < 0 ? -x : x;
}

static z positive(z x)
{
    return creal(x) > 0 ? x : 0;
}

/* ---- each formula's numerator (of its row) ---- */

#define TERM(name, expression)                                                                               \
    static z name(const struct row *r, int k)                                                                \
    {                                                                                                        \
        const z s = r->s[k];                                                                                 \
                                                                                                             \
        (void)s;                                                                                             \
        return expression;                                                                                   \
    }
TERM(exponential, cexp(s))
TERM(cube, s *s *s / sqrt(n_scale))
TERM(learned_cube, r->a *s *s *s)
TERM(shifted_sigmoid, 1 / (1 + n_scale * cexp(-s)))
TERM(scaled_sigmoid, 1 / (1 + cexp(-s)) / sqrt(n_scale))
TERM(rectified, positive(s) / n_scale)
TERM(rectified_square, positive(s) * positive(s) / n_scale)
TERM(rational, s *s *s / (1 + magnitude(s)))
TERM(soft_rectified, clog(1 + cexp(s)) / n_scale)
TERM(second_order, 1 + s + s * s / 2)
TERM(wave, (1 + csin(2 * s)) / 2)
TERM(capped, cexp(r->c *ctanh(s / r->c)))
TERM(by_length, cexp(r->a *log(r->seen_keys) * s))
TERM(by_position, cexp(s *(1 + 0.1 * log(1 + floor(r->i / 8192.0)))))
TERM(linear_bias, cexp(s - pow(2, -8 * (head + 1) / heads) * (r->i - k)))
TERM(log_distance, cexp(s - r->a * clog(1 + r->b * (r->i - k))))
TERM(softpick_over, positive(cexp(s) - 1))
TERM(softpick_under, magnitude(cexp(s) - 1))
TERM(fourth, s *s *s *s)
TERM(decayed, s *cpow(r->g, r->i - k))
TERM(rectified_power, creal(s) > 0 ? cexp(r->t * clog(s)) : 0)
TERM(square, s *s)
TERM(itself, s)

#define WHOLE(name, expression)                                                                              \
    static z whole_##name(const struct row *r, int k)                                                        \
    {                                                                                                        \
        return expression;                                                                                   \
    }
WHOLE(softmax, exponential(r, k) / total(r, exponential))
WHOLE(taylor, second_order(r, k) / total(r, second_order))
WHOLE(periodic, wave(r, k) / total(r, wave))
WHOLE(capped, capped(r, k) / total(r, capped))
WHOLE(by_length, by_length(r, k) / total(r, by_length))
WHOLE(by_position, by_position(r, k) / total(r, by_position))
WHOLE(linear_bias, linear_bias(r, k) / total(r, linear_bias))
WHOLE(log_distance, log_distance(r, k) / total(r, log_distance))
WHOLE(plus_one, exponential(r, k) / (1 + total(r, exponential)))
WHOLE(sink, exponential(r, k) / (cexp(r->b) + total(r, exponential)))
WHOLE(softpick, softpick_over(r, k) / (1e-8 + total(r, softpick_under)))
WHOLE(fourth, fourth(r, k) / (1 + total(r, fourth)))
WHOLE(retention, decayed(r, k) / (creal(magnitude(total(r, decayed))) > 1 ? magnitude(total(r, decayed)) : 1))
WHOLE(rectified_power, rectified_power(r, k) / cexp(r->b * clog(1e-8 + total(r, rectified_power))))
WHOLE(l2, itself(r, k) / csqrt(total(r, square)))
WHOLE(normalised_square, square(r, k) / total(r, square))
WHOLE(elastic, positive(exponential(r, k) / total(r, exponential) + r->a / r->seen_keys))

static const struct {
    const char *text;
    z (*f)(const struct row *, int);
    int passes;
} gallery[] = {
    {"exp(s)/rowsum(exp(s))", whole_softmax, 1},
    {"s^3/sqrt(n)", cube, 1},
    {"a*s^3", learned_cube, 1},
    {"sigmoid(s - log(n))", shifted_sigmoid, 1},
    {"sigmoid(s)*n^(-0.5)", scaled_sigmoid, 1},
    {"relu(s)/n", rectified, 1},
    {"relu(s)^2/n", rectified_square, 1},
    {"s^3/(1+abs(s))", rational, 1},
    {"softplus(s)/n", soft_rectified, 1},
    {"t = 1+s+s^2/2; t/rowsum(t)", whole_taylor, 1},
    {"t = sin(s+pi/4)^2; t/rowsum(t)", whole_periodic, 1},
    {"softmax(c*tanh(s/c))", whole_capped, 1},
    {"softmax(a*log(ni)*s)", whole_by_length, 1},
    {"softmax(s*(1+0.1*log(1+floor(i/8192))))", whole_by_position, 1},
    {"softmax(s - 2^(-8*(h+1)/H)*(i-j))", whole_linear_bias, 1},
    {"softmax(s - a*log(1+b*(i-j)))", whole_log_distance, 1},
    {"exp(s)/(1+rowsum(exp(s)))", whole_plus_one, 1},
    {"exp(s)/(exp(b)+rowsum(exp(s)))", whole_sink, 1},
    {"relu(exp(s)-1)/(1e-8+rowsum(abs(exp(s)-1)))", whole_softpick, 1},
    {"s^4/(1+rowsum(s^4))", whole_fourth, 1},
    {"t = s*g^(i-j); t/max(abs(rowsum(t)),1)", whole_retention, 1},
    {"relu(s)^t/(1e-8+rowsum(relu(s)^t))^b", whole_rectified_power, 1},
    {"s/sqrt(rowsum(s^2))", whole_l2, 1},
    {"s^2/rowsum(s^2)", whole_normalised_square, 1},
    {"relu(softmax(s) + a/ni)", whole_elastic, 2},
};
#define GALLERY ((int)(sizeof gallery / sizeof *gallery))

static z *scalar(struct row *r, const char *name)
{
    return name[0] == 'a'   ? &r->a
           : name[0] == 'b' ? &r->b
           : name[0] == 'c' ? &r->c
           : name[0] == 'g' ? &r->g
                            : &r->t;
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gallery_matches_its_papers),
        cmocka_unit_test(test_gallery_stands_large_logits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
