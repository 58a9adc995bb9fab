/* Exact rational numbers, which fall back to doubles where 64 bits are too few. */
#include "kernels/formula/internal.h"

#include <math.h>

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t t = a % b;

        a = b;
        b = t;
    }
    return a < 0 ? -a : a;
}

struct num num_inexact(double v)
{
    return (struct num){v, 0, 0};
}

struct num num_of(int64_t p, int64_t q)
{
    int64_t g;

    if (q == 0 || p == INT64_MIN || q == INT64_MIN)
        return num_inexact((double)p / (double)q);
    g = gcd(p, q);
    if (q < 0)
        g = -g;
    p /= g;
    q /= g;
    return (struct num){(double)p / (double)q, p, q};
}

struct num num_add(struct num a, struct num b)
{
    int64_t x, y, p, q;

    if (!a.q || !b.q || __builtin_mul_overflow(a.p, b.q, &x) || __builtin_mul_overflow(b.p, a.q, &y) ||
        __builtin_add_overflow(x, y, &p) || __builtin_mul_overflow(a.q, b.q, &q))
        return num_inexact(a.v + b.v);
    return num_of(p, q);
}

struct num num_mul(struct num a, struct num b)
{
    int64_t p, q;

    if (!a.q || !b.q)
        return num_inexact(a.v * b.v);
    /* Cancel across first: it keeps 2^62/3 * 3/2^62 exact. */
    {
        struct num x = num_of(a.p, b.q), y = num_of(b.p, a.q);

        if (!x.q || !y.q || __builtin_mul_overflow(x.p, y.p, &p) || __builtin_mul_overflow(x.q, y.q, &q))
            return num_inexact(a.v * b.v);
    }
    return num_of(p, q);
}

struct num num_neg(struct num a)
{
    return a.q ? num_of(-a.p, a.q) : num_inexact(-a.v);
}

struct num num_inv(struct num a)
{
    return a.q && a.p ? num_of(a.q, a.p) : num_inexact(1 / a.v);
}

struct num num_power(struct num a, int64_t e)
{
    struct num r = num_of(1, 1), b = e < 0 ? num_inv(a) : a;

    if (e > 4096 || e < -4096)
        return num_inexact(pow(a.v, (double)e));
    for (e = e < 0 ? -e : e; e; e >>= 1) {
        if (e & 1)
            r = num_mul(r, b);
        if (e > 1)
            b = num_mul(b, b);
    }
    return r;
}

bool num_read(const char *text, int length, struct num *ret)
{
    int64_t digits = 0, places = 0, e = 0;
    int count = 0, significant = 0, i = 0; /* digits without zeros at either end */
    bool point = false;
    struct num r;

    for (; i < length && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            point = true;
            continue;
        }
        if (__builtin_mul_overflow(digits, 10, &digits) ||
            __builtin_add_overflow(digits, text[i] - '0', &digits))
            return false;
        places += point;
        count += digits > 0;
        if (text[i] != '0')
            significant = count;
    }
    if (significant > 15 && (point || i < length))
        return false;
    for (int k = i + 1; k < length; k++)
        if (text[k] >= '0' && text[k] <= '9' && e < 100000)
            e = e * 10 + (text[k] - '0');
    if (i < length && text[i + 1] == '-')
        e = -e;
    r = num_mul(num_of(digits, 1), num_power(num_of(10, 1), e - places));
    if (r.q)
        *ret = r;
    return r.q;
}

bool num_is(struct num a, int64_t value)
{
    return a.q ? a.q == 1 && a.p == value : a.v == (double)value;
}

bool num_integer(struct num a)
{
    return a.q == 1;
}

bool num_equal(struct num a, struct num b)
{
    return a.q && b.q ? a.p == b.p && a.q == b.q : a.v == b.v || (isnan(a.v) && isnan(b.v));
}

bool num_usable(struct num a)
{
    return isfinite(a.v) && a.v != 0;
}

int num_compare(struct num a, struct num b)
{
    if (num_equal(a, b))
        return 0;
    if (a.v != b.v)
        return a.v < b.v ? -1 : 1;
    return a.p * (b.q != 0) < b.p ? -1 : 1; /* exact numbers of one double */
}
