/* kernels/formula/forecast.h: the size of A at the start of a run, before there is one.
 *
 * The start's logits are those of independent tokens and weights: s_ij = q_i.k_j / sqrt(d), where q_i and k_j are
 * normal. Given q_i, the logits of its row are normal, of a deviation that is proportional to |q_i|: over all rows,
 * logit_std^2 times a chi-squared number of `width` degrees of freedom over `width`. Its tails are heavier than a normal
 * distribution's: E s^6 is 15 logit_std^6 (1 + 2/d)(1 + 4/d). Tokens of real data resemble each other, so that the norm of
 * a run differs; measured logits (polyd-worker plan --start) take their place. */
#pragma once

#include "kernels/formula/formula.h"

#define PK_FORMULA_HEADS 64 /* that a forecast takes */

struct pk_formula_start {
    int64_t keys; /* tokens: keys of a row, or of the last row where `causal` */
    bool causal;
    double logit_std; /* > 0 */
    double width;     /* d of a head; 0: the logits are normal */
    /* Measured logits, in place of the two above: counts of `bins` equal bins from low to high. NULL: there are none. */
    const double *counts;
    int bins;
    double low, high;
};

struct pk_formula_forecast {
    double
        norm; /* root of E ||A||_F^2; not finite where A is not, NaN where rows are too long or without memory */
    double
        growth; /* it grows as keys^growth: from half as many keys to `keys`, with n in proportion; NaN for 1 key */
    /* Shares of pairs whose A is larger than the largest number of a format, or is not 0 and smaller than its
     * smallest normal one. */
    double f32_over, f32_under, bf16_over, bf16_under;
};

/* The heads of the layers, or some of them that represent all: values of scalars and sizes of each, as for
 * pk_formula_value; N is the n of `keys` keys. */
struct pk_formula_heads {
    int count; /* > 0 */
    double leaf[PK_FORMULA_HEADS][PK_LEAVES];
};

/* Means over the heads: `norm` is the root of the mean square. By quadrature over the logits; a formula that reads
 * its row or its position: over rows that are drawn, always the same ones; all is NaN beyond 4096 keys. */
void pk_formula_forecast(struct pk_formula *f, const struct pk_formula_heads *heads,
                         const struct pk_formula_start *start, struct pk_formula_forecast *ret);

/* The scalar that A is proportional to in each of the heads, of k below pk_formula_params(); -1: there is none. With the
 * factor that puts ||A||_F where it is wanted, this is the scalar to multiply. */
int pk_formula_factor(struct pk_formula *f, const struct pk_formula_heads *heads);
