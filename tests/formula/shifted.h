/* tests/formula/shifted.h: formulas whose exponentials are shifted by multiples of their row's maximum, or computed as
 * sigmoids, and each a second time, as in gallery.h, so that no exponent is above 0. */
#pragma once

#include "tests/formula/gallery.h"

static double largest(const struct row *r, double least)
{
    for (int k = 0; k < r->n; k++)
        if (r->seen[k])
            least = fmax(least, creal(r->s[k]));
    return least;
}

/* log of the sum of exp(c s). */
static z log_sum(const struct row *r, double c)
{
    const double top = c * largest(r, -INFINITY);
    z sum = 0;

    for (int k = 0; k < r->n; k++)
        if (r->seen[k])
            sum += cexp(c * r->s[k] - top);
    return top + clog(sum);
}

/* exp(c s) / exp(shift), and its sum over the row. */
static z scaled_exp(const struct row *r, int k, double c, double shift)
{
    return cexp(c * r->s[k] - shift);
}

static z scaled_sum(const struct row *r, double c, double shift)
{
    z sum = 0;

    for (int k = 0; k < r->n; k++)
        if (r->seen[k])
            sum += scaled_exp(r, k, c, shift);
    return sum;
}

WHOLE(square_of_softmax, cexp(2 * (r->s[k] - log_sum(r, 1))))
WHOLE(root_of_softmax, cexp((r->s[k] - log_sum(r, 1)) / 2))
WHOLE(power_of_softmax, cexp(1.5 * (r->s[k] - log_sum(r, 1))))
WHOLE(two_softmaxes, cexp(1.5 * r->s[k] - log_sum(r, 1) - log_sum(r, 0.5)))
WHOLE(two_exponents, cexp(2 * r->s[k] - log_sum(r, 4) / 2))
WHOLE(thresholded, positive(cexp(2 * (r->s[k] - log_sum(r, 1))) - r->a / r->seen_keys))
WHOLE(two_terms, (scaled_exp(r, k, 1, 2 * largest(r, 0)) + scaled_exp(r, k, 2, 2 * largest(r, 0))) /
                     (exp(-2 * largest(r, 0)) + scaled_sum(r, 1, 2 * largest(r, 0)) +
                      scaled_sum(r, 2, 2 * largest(r, 0))))
WHOLE(rooted_sink, scaled_exp(r, k, 1, largest(r, 0)) /
                       csqrt(exp(-2 * largest(r, 0)) + scaled_sum(r, 2, 2 * largest(r, 0))))

/* Sums that grow with other powers of the shift than 1. */
WHOLE(weighed_softmax, cexp(r->s[k] - log_sum(r, 1)) * total(r, square) / r->seen_keys)
static z minus(const struct row *r, int k, double c)
{
    const double top = largest(r, 0);

    return cexp(r->s[k] - top) - c * exp(-top);
}
static z minus_one_square(const struct row *r, int k)
{
    return minus(r, k, 1) * minus(r, k, 1);
}
WHOLE(second_degree, minus(r, k, 1) * minus(r, k, 2) / (exp(-2 * largest(r, 0)) + total(r, minus_one_square)))
WHOLE(reciprocal, total(r, exponential) / (2 + cexp(r->s[k])) / r->seen_keys / r->seen_keys)

static z logistic(z x)
{
    return creal(x) > 0 ? 1 / (1 + cexp(-x)) : cexp(x) / (1 + cexp(x));
}
WHOLE(sigmoid_of_n, logistic(r->s[k] - log(n_scale)))
WHOLE(sigmoid_of_two, logistic(r->s[k] - log(2)))
WHOLE(sigmoid_of_scalar, logistic(r->s[k] - r->a))
WHOLE(sigmoid_of_row, logistic(r->s[k] - log(r->seen_keys)))
WHOLE(sigmoid_square, logistic(r->s[k] - log(n_scale)) * logistic(r->s[k] - log(n_scale)))
WHOLE(falling, 1.5 * logistic(log(2) - 2 * r->s[k]))

static const struct {
    const char *text;
    z (*f)(const struct row *, int);
    bool shift;
    bool bounded; /* at any logits */
} shifted[] = {
    {"softmax(s)^2", whole_square_of_softmax, true, true},
    {"sqrt(softmax(s))", whole_root_of_softmax, true, true},
    {"softmax(s)^1.5", whole_power_of_softmax, true, true},
    {"softmax(s)*softmax(s/2)", whole_two_softmaxes, true, true},
    {"exp(2*s)/sqrt(rowsum(exp(4*s)))", whole_two_exponents, true, true},
    {"relu(softmax(s)^2-a/ni)", whole_thresholded, true, true},
    {"t = exp(s)+exp(2*s); t/(1+rowsum(t))", whole_two_terms, true, true},
    {"exp(s)/sqrt(1+rowsum(exp(2*s)))", whole_rooted_sink, true, true},
    {"softmax(s)*rowsum(s^2)/ni", whole_weighed_softmax, true, true},
    {"t = exp(s); (t-1)*(t-2)/(1+rowsum((t-1)^2))", whole_second_degree, true, true},
    {"rowsum(exp(s))/(2+exp(s))/ni^2", whole_reciprocal, true, false},
    {"exp(s)/(n+exp(s))", whole_sigmoid_of_n, false, true},
    {"1/(1+n*exp(-s))", whole_sigmoid_of_n, false, true},
    {"exp(s)/(2+exp(s))", whole_sigmoid_of_two, false, true},
    {"exp(s)/(exp(a)+exp(s))", whole_sigmoid_of_scalar, false, true},
    {"exp(s)/(ni+exp(s))", whole_sigmoid_of_row, false, true},
    {"exp(2*s)/(n+exp(s))^2", whole_sigmoid_square, false, true},
    {"3/(2+exp(2*s))", whole_falling, false, true},
};
#define SHIFTED ((int)(sizeof shifted / sizeof *shifted))
