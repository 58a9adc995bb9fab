/* One draw of X, Q and K, and its norms. */
#include "daemon/worker/check/norms.h"

#include <math.h>
#include <string.h>

#include "daemon/worker/check/stat.h"

size_t check_rig_size(const struct check_shape *s)
{
    size_t n = (size_t)s->n, width = (size_t)s->width, d = (size_t)s->head;

    return n * width + width * d + 3 * n * d + 4 * n;
}

void check_rig_init(struct check_rig *r, const struct check_shape *s, double *memory)
{
    size_t n = (size_t)s->n, width = (size_t)s->width, d = (size_t)s->head;

    r->shape = *s;
    r->x = memory;
    r->w = r->x + n * width;
    r->q = r->w + width * d;
    r->k = r->q + n * d;
    r->kt = r->k + n * d;
    r->x2 = r->kt + n * d;
    r->k2 = r->x2 + n;
    r->row = r->k2 + n;
    r->power = r->row + n;
}

void check_rig_draw(struct check_rig *r, struct check_draws *d)
{
    const struct check_shape *s = &r->shape;
    const int64_t n = (int64_t)s->n, width = (int64_t)s->width, head = (int64_t)s->head;

    check_normals(d, s->sigma_x, r->x, (size_t)(n * width));
    check_normals(d, s->sigma_t, r->w, (size_t)(width * head));
    check_product(r->q, r->x, r->w, n, width, head);
    check_normals(d, s->sigma_t, r->w, (size_t)(width * head));
    check_product(r->k, r->x, r->w, n, width, head);
    check_transpose(r->kt, r->k, n, head);
    for (int64_t i = 0; i < n; i++) {
        r->x2[i] = check_dot(r->x + i * width, r->x + i * width, width);
        r->k2[i] = check_dot(r->k + i * head, r->k + i * head, head);
    }
}

void check_rig_row(struct check_rig *r, long long i)
{
    const int64_t n = (int64_t)r->shape.n, head = (int64_t)r->shape.head;

    check_product(r->row, r->q + i * head, r->kt, 1, head, n);
}

void check_rig_norms(struct check_rig *r, int powers, double *ret_power, double *ret_gradient)
{
    const int64_t n = (int64_t)r->shape.n;

    memset(ret_power, 0, (size_t)powers * sizeof *ret_power);
    if (ret_gradient)
        memset(ret_gradient, 0, (size_t)powers * sizeof *ret_gradient);
    for (int64_t i = 0; i < n; i++) {
        check_rig_row(r, i);
        for (int64_t j = 0; j < n; j++) {
            r->row[j] *= r->row[j];
            r->power[j] = 1; /* z^(2p-2) */
        }
        for (int p = 1; p <= powers; p++) {
            /* d z_ij^p / dQ = p z_ij^(p-1) x_i k_j^T */
            if (ret_gradient)
                ret_gradient[p - 1] += p * p * r->x2[i] * check_dot(r->power, r->k2, n);
            ret_power[p - 1] += check_dot(r->power, r->row, n);
            for (int64_t j = 0; p < powers && j < n; j++)
                r->power[j] *= r->row[j];
        }
    }
    for (int p = 1; p <= powers; p++)
        ret_power[p - 1] *= pow(r->shape.head, -p);
}

void check_rig_matrix_norms(struct check_rig *r, int powers, double *ret, double *scratch)
{
    const int64_t n = (int64_t)r->shape.n, d = (int64_t)r->shape.head;
    double *step = scratch, *w = step + d * d, *qq = w + d * d, *kk = qq + d * d, *left = kk + d * d;

    /* M = q k^T / sqrt d has rank d: M^p = q (k^T q / sqrt d)^(p-1) k^T / sqrt d, so that products of d x d matrices
     * give its norm: ||M^p||^2 = tr(kk w^T qq w) / d, w = (k^T q / sqrt d)^(p-1). */
    for (int64_t a = 0; a < d; a++)
        for (int64_t b = 0; b < d; b++) {
            double sum_kq = 0, sum_qq = 0;

            for (int64_t i = 0; i < n; i++) {
                sum_kq += r->k[i * d + a] * r->q[i * d + b];
                sum_qq += r->q[i * d + a] * r->q[i * d + b];
            }
            step[a * d + b] = sum_kq / sqrt((double)d);
            qq[a * d + b] = sum_qq;
            kk[a * d + b] = check_dot(r->kt + a * n, r->kt + b * n, n);
            w[a * d + b] = a == b;
        }
    for (int p = 1; p <= powers; p++) {
        double sum = 0;

        check_product(left, qq, w, d, d, d); /* qq w */
        for (int64_t a = 0; a < d; a++)
            for (int64_t b = 0; b < d; b++) {
                double inner = 0; /* (w^T qq w)_ab */

                for (int64_t e = 0; e < d; e++)
                    inner += w[e * d + a] * left[e * d + b];
                sum += kk[b * d + a] * inner;
            }
        ret[p - 1] = sum / (double)d;
        check_product(left, w, step, d, d, d);
        memcpy(w, left, (size_t)(d * d) * sizeof *w);
    }
}

void check_rig_softmax(struct check_rig *r, double *ret_norm, double *ret_jacobian)
{
    const int64_t n = (int64_t)r->shape.n;
    const double tau = 1 / sqrt(r->shape.head);
    double norm = 0, jacobian = 0;

    for (int64_t i = 0; i < n; i++) {
        double most = -INFINITY, sum = 0, s = 0, cubes = 0;

        check_rig_row(r, i);
        for (int64_t j = 0; j < n; j++)
            most = fmax(most, tau * r->row[j]);
        for (int64_t j = 0; j < n; j++)
            sum += r->row[j] = exp(tau * r->row[j] - most);
        for (int64_t j = 0; j < n; j++) {
            double f = r->row[j] / sum;

            s += f * f;
            cubes += f * f * f;
        }
        norm += s;
        jacobian += s - 2 * cubes + s * s;
    }
    *ret_norm = sqrt(norm);
    *ret_jacobian = sqrt(jacobian);
}
