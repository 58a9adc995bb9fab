/* Statistics and small linear algebra. */
#include "daemon/worker/check/stat.h"

#include <math.h>
#include <string.h>

void check_stat_add(struct check_stat *s, double value)
{
    double d = value - s->mean;

    s->n++;
    s->mean += d / (double)s->n;
    s->m2 += d * (value - s->mean);
}

double check_stat_var(const struct check_stat *s)
{
    return s->n > 1 ? s->m2 / (double)(s->n - 1) : 0;
}

double check_stat_se(const struct check_stat *s)
{
    return s->n > 1 ? sqrt(check_stat_var(s) / (double)s->n) : 0;
}

double check_stat_root(const struct check_stat *s)
{
    return sqrt(s->mean);
}

double check_stat_root_se(const struct check_stat *s)
{
    return s->mean > 0 ? check_stat_se(s) / (2 * sqrt(s->mean)) : 0;
}

double check_log_slope(const double *x, const double *y, size_t n)
{
    double sx = 0, sy = 0, sxx = 0, sxy = 0;

    for (size_t i = 0; i < n; i++) {
        sx += log(x[i]) / (double)n;
        sy += log(y[i]) / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        sxx += (log(x[i]) - sx) * (log(x[i]) - sx);
        sxy += (log(x[i]) - sx) * (log(y[i]) - sy);
    }
    return sxy / sxx;
}

void check_product(double *c, const double *a, const double *b, int64_t n, int64_t k, int64_t m)
{
    memset(c, 0, (size_t)(n * m) * sizeof *c);
    for (int64_t i = 0; i < n; i++)
        for (int64_t l = 0; l < k; l++) {
            const double factor = a[i * k + l], *row = b + l * m;
            double *to = c + i * m;

            for (int64_t j = 0; j < m; j++)
                to[j] += factor * row[j];
        }
}

void check_transpose(double *b, const double *a, int64_t n, int64_t m)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            b[j * n + i] = a[i * m + j];
}

double check_dot(const double *a, const double *b, int64_t n)
{
    double part[4] = {0, 0, 0, 0};
    int64_t i = 0;

    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++)
            part[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        part[0] += a[i] * b[i];
    return (part[0] + part[1]) + (part[2] + part[3]);
}

double check_gauss_mean(double (*f)(double g, const void *user), const void *user)
{
    const double step = 1.0 / 64;
    double sum = 0;

    /* The integrand and its derivatives vanish at the ends: the error is far below 1e-12. */
    for (int i = -12 * 64; i <= 12 * 64; i++) {
        double g = i * step;

        sum += f(g, user) * exp(-0.5 * g * g);
    }
    return sum * step / 2.50662827463100050242;
}
