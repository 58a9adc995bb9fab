/* tests/formula/gallery.h: the published formulas of the gallery as texts, and each as lines of C in complex numbers, from
 * its paper: A of a row, and by a complex step every derivative. Shares nothing with kernels/formula. */
#pragma once

#include <complex.h>
#undef I
#include <math.h>
#include <stdbool.h>

#define KEYS 1100
#define STEP 1e-30 /* of complex steps */

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

static inline z *scalar(struct row *r, const char *name)
{
    return name[0] == 'a'   ? &r->a
           : name[0] == 'b' ? &r->b
           : name[0] == 'c' ? &r->c
           : name[0] == 'g' ? &r->g
                            : &r->t;
}
