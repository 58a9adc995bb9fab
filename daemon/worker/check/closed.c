/* The closed forms, term by term. */
#include "daemon/worker/check/closed.h"

#include <math.h>

double check_odd_factorial(int p)
{
    double product = 1;

    for (int k = 1; k <= p; k++)
        product *= 2 * k - 1;
    return product;
}

double check_double_factorial(int p)
{
    double product = 1;

    for (int k = p; k > 1; k -= 2)
        product *= k;
    return product;
}

double check_rising(int p, double m)
{
    double product = 1;

    for (int k = 0; k < p; k++)
        product *= m + 2 * k;
    return product;
}

/* Pairs i != j have independent |x_i|, |x_j|; pairs i = j share one. */
static double pairs(const struct check_shape *s, int p)
{
    double one = check_rising(p, s->width);

    return s->n * (s->n - 1) * one * one + s->n * check_rising(2 * p, s->width);
}

double check_radius_moment(double m, double r)
{
    return exp(r / 2 * log(2 / m) + lgamma((m + r) / 2) - lgamma(m / 2));
}

/* As for pairs: i != j, and i = j. */
double check_logit_moment(const struct check_shape *s, double r)
{
    const double one = check_radius_moment(s->width, r);

    return check_radius_moment(s->head, r) *
           ((1 - 1 / s->n) * one * one + check_radius_moment(s->width, 2 * r) / s->n);
}

double check_power_square(const struct check_shape *s, int p)
{
    return pow(s->head, -p) * check_odd_factorial(p) * check_rising(p, s->head) *
           pow(s->sigma_x * s->sigma_t, 4 * p) * pairs(s, p);
}

double check_power_leading(const struct check_shape *s, int p)
{
    return s->n * sqrt(check_odd_factorial(p)) * pow(s->width, p) * pow(s->sigma_x * s->sigma_t, 2 * p);
}

double check_gradient_square(const struct check_shape *s, int p)
{
    return p * p * check_odd_factorial(p - 1) * check_rising(p, s->head) * pow(s->sigma_t, 4 * p - 2) *
           pow(s->sigma_x, 4 * p) * pairs(s, p);
}
