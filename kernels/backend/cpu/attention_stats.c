/* ATTENTION_STATS: norms of A and of its Jacobians, and the spread of the logits, for a probe batch
 * (kernels/ATTENTION.md 2). One task per (batch, head), a query at a time, sums in double. */
#include "kernels/backend/cpu/attention.h"

struct job {
    struct attention t;
    const struct pk_view *x;
    double *row_norm; /* |x_i|^2, (B, Nq) */
    char *scratch;    /* of each thread */
    size_t scratch_bytes;
};

/* Scratch of one thread. */
struct row {
    real *k, *q, *mean; /* keys (Nk, d), a query, sum_j g_j k_j */
    real *s, *f, *g;    /* logits of a query, phi and its slope; both are 0 where masked */
    double *norm;       /* |k_j|^2 */
};

static void row_scratch(const struct attention *t, struct row *r, struct cpu_scratch *s)
{
    r->k = cpu_take(s, (size_t)(t->nk * t->d) * sizeof(real));
    r->q = cpu_take(s, (size_t)t->d * sizeof(real));
    r->mean = cpu_take(s, (size_t)t->d * sizeof(real));
    r->s = cpu_take(s, (size_t)t->nk * sizeof(real));
    r->f = cpu_take(s, (size_t)t->nk * sizeof(real));
    r->g = cpu_take(s, (size_t)t->nk * sizeof(real));
    r->norm = cpu_take(s, (size_t)t->nk * sizeof(double));
}

static void job_scratch(struct job *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct row r;

    row_scratch(&j->t, &r, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
    j->row_norm = cpu_take(s, (size_t)(j->t.batch * j->t.nq) * sizeof(double));
}

size_t PK_FN(attention_stats_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    attention_shape(&j.t, c);
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

static void norm_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const real *x =
        (const real *)j->x->data + task / j->t.nq * j->x->stride[0] + task % j->t.nq * j->x->stride[1];
    double sum = 0;

    (void)thread;
    for (int64_t c = 0; c < j->x->shape.dim[2]; c++)
        sum += (double)x[c * j->x->stride[2]] * (double)x[c * j->x->stride[2]];
    j->row_norm[task] = sum;
}

/* ---- the rows of phi.h in double ---- */

static double power(double x, int p)
{
    double r = 1;

    for (int i = 0; i < p; i++)
        r *= x;
    return r;
}

/* clang-format off */
#define S s
#define V v
#define D 1.0
#define NUM(x) (double)(x)
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define ABS(a) fabs(a)
#define EXP(a) exp(a)
#define TANH(a) tanh(a)
#define SIN(a) sin(a)
#define COS(a) cos(a)
#define SIGMOID(a) (1 / (1 + exp(-(a))))
#define DSIGMOID(v) ((v) * (1 - (v)))
#define MAX0(a) ((a) > 0 ? (a) : 0)
#define WHERE(a, b) ((a) > 0 ? (b) : 0)
#define WAVE(a) ((1 + sin(2 * (a))) / 2)
#define DWAVE(a) cos(2 * (a))
#define POW(a) power(a, degree)
#define DPOW(a) (degree * power(a, degree - 1))
/* clang-format on */

/* f and its slope at one visible logit, without the factor; 1 for exponentials, which need the row's maximum first.
 */
static void phi_one(const struct pk_attention_attr *a, double s, double *ret_f, double *ret_slope)
{
    const int degree = a->degree;
    double v = 1;

    *ret_f = *ret_slope = 1;
    if (pk_phi_shifted(a->phi))
        return;
    switch (a->phi) {
#define ROW(constant, name, kind, f, df)                                                                     \
    case constant:                                                                                           \
        v = f;                                                                                               \
        *ret_slope = df;                                                                                     \
        break;
        PK_EACH_PHI(ROW)
    default:
        break;
    }
    *ret_f = v;
}
#undef ROW
#include "kernels/graph/phi_end.h"

/* Rows divided by their sum: the Jacobian is diag g - a g', with a = f / sum and g = phi' / sum (softmax: g =
 * a). Its squared norm, and that of J K. Leaves a in r->f; returns the sum of its squares. */
static double normalised_row(const struct attention *t, const struct row *r, int64_t n, double max,
                             double *ret_jac, double *ret_jacq)
{
    double sum = 0, a2 = 0, g2 = 0, ag2 = 0, jacq = 0;

    for (int64_t m = 0; m < n; m++) {
        if (pk_phi_shifted(t->a->phi))
            r->f[m] = r->g[m] = r->f[m] != 0 ? (real)exp((double)r->s[m] - max) : 0;
        sum += (double)r->f[m];
    }
    memset(r->mean, 0, (size_t)t->d * sizeof(real));
    for (int64_t m = 0; m < n; m++) {
        double a, g;

        r->f[m] = sum > 0 ? (real)((double)r->f[m] / sum) : 0;
        r->g[m] = sum > 0 ? (real)((double)r->g[m] / sum) : 0;
        a = (double)r->f[m];
        g = (double)r->g[m];
        a2 += a * a;
        g2 += g * g;
        ag2 += a * g * g;
        for (int64_t c = 0; c < t->d; c++)
            r->mean[c] += r->g[m] * r->k[m * t->d + c];
    }
    for (int64_t m = 0; m < n; m++)
        for (int64_t c = 0; c < t->d; c++) {
            double e = (double)r->g[m] * (double)r->k[m * t->d + c] - (double)r->f[m] * (double)r->mean[c];

            jacq += e * e;
        }
    *ret_jac = g2 - 2 * ag2 + a2 * g2;
    *ret_jacq = jacq;
    return a2;
}

static void stats_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct attention *t = &j->t;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t b = task / t->heads, h = task % t->heads, end = keys_of(t, b), shift = shift_of(t, b);
    const real *q = t->q.p + b * t->q.sb + h * t->q.sh, *k = t->k.p + b * t->k.sb + h * t->k.sh;
    const double factor = factor_of(t, h), tau2 = t->a->tau * t->a->tau;
    double fro = 0, jac = 0, jacq = 0, top = 0, count = 0, mean = 0, spread = 0;
    struct row r;
    real *out[5];

    row_scratch(t, &r, &scratch);
    for (int64_t i = 0; i < end; i++) {
        for (int64_t c = 0; c < t->d; c++)
            r.k[i * t->d + c] = k[i * t->k.sn + c * t->k.sd];
        r.norm[i] = 0;
        for (int64_t c = 0; c < t->d; c++)
            r.norm[i] += (double)r.k[i * t->d + c] * (double)r.k[i * t->d + c];
    }
    for (int64_t i = 0; i < t->nq; i++) {
        const uint8_t *shown = NULL;
        const struct pk_view *bias = t->bias;
        int64_t step = 0;
        int64_t n = t->a->causal ? cpu_max(0, cpu_min(end, i + shift + 1)) : end;
        double f2 = 0, row_jac = 0, row_jacq = 0, max = -INFINITY;

        if (t->windows) {
            shown =
                (const uint8_t *)t->mask->data + b % t->windows * t->mask->stride[0] + i * t->mask->stride[1];
            step = t->mask->stride[2];
        } else if (t->mask) {
            shown = (const uint8_t *)t->mask->data + b * t->mask->stride[0];
            step = t->mask->stride[1];
        }
        for (int64_t c = 0; c < t->d; c++)
            r.q[c] = q[i * t->q.sn + c * t->q.sd] * (real)t->a->tau;
        for (int64_t m = 0; m < n; m++) {
            double f = 0, slope = 0, old = mean;

            r.f[m] = r.g[m] = 0;
            if (shown && !shown[m * step])
                continue;
            r.s[m] = vdot(t->d, r.q, r.k + m * t->d) + (real)t->a->bias;
            if (bias)
                r.s[m] += ((const real *)
                               bias->data)[h * bias->stride[0] + i * bias->stride[1] + m * bias->stride[2]];
            max = fmax(max, (double)r.s[m]);
            top = fmax(top, fabs((double)r.s[m]));
            count++; /* Welford's running mean and spread */
            mean += ((double)r.s[m] - old) / count;
            spread += ((double)r.s[m] - old) * ((double)r.s[m] - mean);
            phi_one(t->a, (double)r.s[m], &f, &slope);
            r.f[m] = (real)f;
            r.g[m] = (real)slope;
            f2 += f * f;
            row_jac += slope * slope;
            row_jacq += slope * slope * r.norm[m];
        }
        if (pk_phi_normalised(t->a->phi))
            f2 = normalised_row(t, &r, n, max, &row_jac, &row_jacq);
        if (t->a->row_power != 0) {
            double by = (double)row_factor(t, b, i) * (double)row_factor(t, b, i);

            f2 *= by;
            row_jac *= by;
            row_jacq *= by;
        }
        fro += f2;
        jac += row_jac;
        jacq += row_jacq * j->row_norm[b * t->nq + i];
    }
    for (int o = 0; o < 5; o++)
        out[o] = (real *)t->c->out[o].data + task;
    *out[0] = (real)(fabs(factor) * sqrt(fro));
    *out[1] = (real)(fabs(factor) * sqrt(fmax(0, jac)));
    *out[2] = (real)(fabs(factor) * sqrt(jacq * tau2));
    *out[3] = (real)(count > 0 ? sqrt(spread / count) : 0);
    *out[4] = (real)top;
}

enum pd_err PK_FN(attention_stats)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    attention_shape(&j.t, c);
    j.x = &c->in[j.t.after];
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j.t.batch * j.t.nq, norm_task, &j);
    cpu_pool_run(b->pool, j.t.batch * j.t.heads, stats_task, &j);
    return PD_OK;
}
