/* The size of A at the start of a run: see forecast.h. */
#include "kernels/formula/forecast.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/formula/internal.h"

#define BF16_MAX 3.3895313892515355e38
#define ROWS 48     /* that are drawn */
#define REACH 14.0  /* deviations to each side that the quadrature covers */
#define PIECES 2800 /* of that interval; even */
#define RADII 64    /* pieces of the quadrature over |q| */
#define LONG 256    /* keys from which fewer rows are drawn */
#define LEAST 6     /* rows that are drawn of a head */
#define MOST 4096   /* keys of a row that is drawn */

/* What is summed over pairs, each with its weight. */
struct sums {
    double pairs, square, f32_over, f32_under, bf16_over, bf16_under;
};

static void add(struct sums *s, double a, double weight)
{
    const double m = fabs(a);

    s->pairs += weight;
    s->square += weight * a * a;
    s->f32_over += weight * !(m <= FLT_MAX);
    s->bf16_over += weight * !(m <= BF16_MAX);
    s->f32_under += weight * (m > 0 && m < FLT_MIN);
    s->bf16_under += weight * (m > 0 && m < FLT_MIN); /* bf16 has the exponents of f32 */
}

/* ---- one logit ---- */

/* Density of the logit over its deviation at z: normals of deviation r, where r^2 is chi-squared over d. */
static double density(double z, double d)
{
    const double least = fmax(1e-3, 1 - 8 / sqrt(2 * d)), most = 1 + 8 / sqrt(2 * d);
    double sum = 0, total = 0;

    if (!(d > 0))
        return exp(-0.5 * z * z) / sqrt(2 * M_PI);
    for (int k = 0; k <= RADII; k++) {
        /* r^(d-1) exp(-d r^2 / 2) over its largest value; the rule of trapezoids, whose ends are all but 0 */
        const double r = least + (most - least) * k / RADII, top = d > 1 ? sqrt((d - 1) / d) : least;
        const double weight = exp((d - 1) * log(r / top) - 0.5 * d * (r * r - top * top));

        total += weight;
        sum += weight * exp(-0.5 * z * z / (r * r)) / r;
    }
    return sum / total / sqrt(2 * M_PI);
}

/* A of one logit in all heads. */
static void add_heads(struct pk_formula *f, const struct pk_formula_heads *heads, double n, double s,
                      double weight, struct sums *to)
{
    double at[PK_LEAVES];

    for (int p = 0; p < heads->count; p++) {
        memcpy(at, heads->leaf[p], sizeof at);
        at[PK_LEAF_N] *= n;
        at[PK_LEAF_S] = s;
        add(to, pk_formula_value(f, at), weight / heads->count);
    }
}

/* Over measured logits, which are spread evenly within a bin: by Simpson's rule in each. `n`: factor on n. */
static void over_counts(struct pk_formula *f, const struct pk_formula_heads *heads, double n,
                        const struct pk_formula_start *start, double pairs, struct sums *to)
{
    const double width = (start->high - start->low) / start->bins;
    double total = 0;

    for (int k = 0; k < start->bins; k++)
        total += start->counts[k];
    for (int k = 0; k < start->bins && total > 0; k++)
        for (int m = 0; m < 3 && start->counts[k] > 0; m++)
            add_heads(f, heads, n, start->low + width * (k + 0.5 * m),
                      pairs * start->counts[k] / total * (m == 1 ? 4 : 1) / 6, to);
}

/* By Simpson's rule. */
static void over_logits(struct pk_formula *f, const struct pk_formula_heads *heads, double n,
                        const struct pk_formula_start *start, double pairs, struct sums *to)
{
    const double step = 2 * REACH / PIECES;

    for (int k = 0; k <= PIECES; k++) {
        const double z = -REACH + step * k, rule = k == 0 || k == PIECES ? 1 : k % 2 ? 4 : 2;
        const double weight = rule * step / 3 * density(z, start->width);

        add_heads(f, heads, n, z * start->logit_std, pairs * weight, to);
    }
}

/* ---- rows ---- */

static double uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ((double)(*state >> 11) + 0.5) / 9007199254740992.0;
}

/* A sum of uniform numbers would have no tails: Box-Muller. */
static double gauss(uint64_t *state)
{
    const double u = uniform(state), v = uniform(state);

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* One of the measured logits. */
static double drawn(const struct pk_formula_start *start, double total, uint64_t *state)
{
    double left = uniform(state) * total;
    int k = 0;

    while (k < start->bins - 1 && left >= start->counts[k])
        left -= start->counts[k++];
    return start->low +
           (start->high - start->low) / start->bins * (k + fmin(left / fmax(start->counts[k], 1e-300), 1));
}

/* |q| over its root mean square, by the cube root of Wilson and Hilferty. */
static double radius(double d, uint64_t *state)
{
    const double z = gauss(state), v = 2 / (9 * d);

    return d > 0 ? pow(fmax(1 - v + z * sqrt(v), 0), 1.5) : 1;
}

/* Rows of one head, `index` of `heads`. False: no memory. s, a: of the keys. */
static bool over_head(struct pk_formula *f, const double *leaf, double n,
                      const struct pk_formula_start *start, int index, int heads, double total, double *s,
                      double *a, uint64_t *state, struct sums *to)
{
    const int64_t all = start->keys, most = all < ROWS ? all : all > 1024 ? ROWS / 2 : ROWS;
    const int64_t rows = all < LONG ? most : most / heads < LEAST ? LEAST : most / heads;
    const int draws = all < LONG ? (8 + heads - 1) / heads : 2;
    double at[PK_LEAVES];
    bool good = true;

    memcpy(at, leaf, sizeof at);
    at[PK_LEAF_N] *= n;
    for (int64_t r = 0; r < rows && good; r++) {
        /* the rows of different heads lie between each other */
        const int64_t i = rows == all ? r : ((2 * r * heads + 2 * index + 1) * all) / (2 * rows * heads),
                      keys = start->causal ? i + 1 : all;

        at[PK_LEAF_I] = (double)i;
        for (int k = 0; k < draws && good; k++) {
            const double deviation = start->logit_std * radius(start->width, state);

            for (int64_t j = 0; j < keys; j++)
                s[j] = total > 0 ? drawn(start, total, state) : deviation * gauss(state);
            good = pk_formula_row_value(f, at, s, NULL, keys, a, NULL) == PD_OK;
            for (int64_t j = 0; j < keys && good; j++)
                add(to, a[j], (double)all / (double)rows / draws / heads);
        }
    }
    return good;
}

/* False: no memory, or too many keys. */
static bool over_rows(struct pk_formula *f, const struct pk_formula_heads *heads, double n,
                      const struct pk_formula_start *start, struct sums *to)
{
    uint64_t state = 0x9e3779b97f4a7c15ull;
    struct pd_buf space;
    double *s, total = 0;
    bool good = true;

    for (int k = 0; start->counts && k < start->bins; k++)
        total += start->counts[k];
    if (start->keys > MOST)
        return false;
    pd_buf_init(&space, 0);
    s = pd_buf_reserve(&space, (size_t)start->keys * 2 * sizeof *s);
    for (int p = 0; s && good && p < heads->count; p++)
        good = over_head(f, heads->leaf[p], n, start, p, heads->count, total, s, s + start->keys, &state, to);
    good = good && s;
    pd_buf_done(&space);
    return good;
}

/* n: factor on n. */
static bool measure(struct pk_formula *f, const struct pk_formula_heads *heads, double n,
                    const struct pk_formula_start *start, struct sums *ret)
{
    const double keys = (double)start->keys, pairs = start->causal ? 0.5 * keys * (keys + 1) : keys * keys;

    memset(ret, 0, sizeof *ret);
    if (f->nf.node[f->root].has_row || pk_formula_reads(f, PK_LEAF_J) || pk_formula_reads(f, PK_LEAF_I) ||
        pk_formula_reads(f, PK_LEAF_NI))
        return over_rows(f, heads, n, start, ret);
    if (start->counts)
        over_counts(f, heads, n, start, pairs, ret);
    else
        over_logits(f, heads, n, start, pairs, ret);
    return true;
}

void pk_formula_forecast(struct pk_formula *f, const struct pk_formula_heads *heads,
                         const struct pk_formula_start *start, struct pk_formula_forecast *ret)
{
    struct pk_formula_start half = *start;
    struct sums s, less;

    *ret = (struct pk_formula_forecast){NAN, NAN, NAN, NAN, NAN, NAN};
    if (!measure(f, heads, 1, start, &s))
        return;
    ret->norm = sqrt(s.square);
    ret->f32_over = s.f32_over / s.pairs;
    ret->f32_under = s.f32_under / s.pairs;
    ret->bf16_over = s.bf16_over / s.pairs;
    ret->bf16_under = s.bf16_under / s.pairs;
    half.keys = start->keys / 2;
    if (!half.keys)
        return;
    if (measure(f, heads, (double)half.keys / (double)start->keys, &half, &less))
        ret->growth = log(s.square / less.square) / 2 / log((double)start->keys / (double)half.keys);
}

/* Whether A of a head is proportional to scalar k. *ret_zero: A is 0. PD_ERR_NOMEM. */
static enum pd_err proportional(struct pk_formula *f, const double *leaf, int k, bool *ret, bool *ret_zero)
{
    static const double logits[] = {-1.3, -0.2, 0.4, 0.9, 2.1};
    enum { KEYS = sizeof logits / sizeof *logits };
    double at[PK_LEAVES], once[KEYS], twice[KEYS];
    enum pd_err err;

    memcpy(at, leaf, sizeof at);
    err = pk_formula_row_value(f, at, logits, NULL, KEYS, once, NULL);
    at[PK_LEAF_PARAM + k] *= 2;
    if (err == PD_OK)
        err = pk_formula_row_value(f, at, logits, NULL, KEYS, twice, NULL);
    *ret = *ret_zero = err == PD_OK;
    for (int j = 0; j < KEYS && err == PD_OK; j++) {
        *ret = *ret && fabs(twice[j] - 2 * once[j]) <= 1e-12 * fabs(twice[j]);
        *ret_zero = *ret_zero && once[j] == 0;
    }
    return err;
}

int pk_formula_factor(struct pk_formula *f, const struct pk_formula_heads *heads)
{
    for (int k = 0; k < f->n_param; k++) {
        bool is = true, zero = true;

        for (int p = 0; is && p < heads->count; p++) {
            bool none;

            if (proportional(f, heads->leaf[p], k, &is, &none) != PD_OK)
                return -1;
            zero = zero && none;
        }
        if (is && !zero)
            return k;
    }
    return -1;
}
