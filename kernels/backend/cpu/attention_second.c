/* ATTENTION_JVP and ATTENTION_BWD2 of x^p (kernels/ATTENTION.md 5). With S = tau q k' + bias, T its tangent,
 * P = S^p where visible, P1 and P2 the derivatives of S^p, D = dY v', E = dY tangent(v)' and c' the tangent
 * of c:
 *
 *     tangent of A = c P1 T + c' P          tangent of y = (tangent of A) v + A tangent(v)
 *     L = sum dY (tangent of y)
 *     dL/dS = R = c (P2 T D + P1 E) + c' P1 D          dL/dT = U = c P1 D
 *     dL/dq = tau (R k + U tangent(k))    dL/dk = tau (R' q + U' tangent(q))    dL/dv = (tangent of A)' dY
 *     dL/dc = sum(P1 T D + P E)           dL/dbias = sum of R over the batch    dL/ddY = tangent of y
 *
 * This is the definition: one query and one key at a time, five products of rows and up to eight sums of rows.
 * Tasks are (batch, head), or heads if a bias has a gradient, which is summed over the batch. */
#include "kernels/backend/cpu/attention.h"

struct job {
    struct attention t;
    bool second; /* ATTENTION_BWD2 */
    struct rows dy, tq, tk, tv, oq, ok, ov, oy;
    const struct pk_view *tscale, *tbias;
    real *dbias;
    double *dscale;
    char *scratch;
    size_t scratch_bytes;
};

/* Scratch of one thread. */
struct row {
    real *k, *tk, *v, *tv, *ok, *ov; /* (Nk, d) */
    real *q, *tq, *dy, *oq, *oy;     /* (d) */
};

static void row_scratch(const struct attention *t, struct row *r, struct cpu_scratch *s)
{
    real **many[] = {&r->k, &r->tk, &r->v, &r->tv, &r->ok, &r->ov},
         **one[] = {&r->q, &r->tq, &r->dy, &r->oq, &r->oy};

    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        *many[i] = cpu_take(s, (size_t)(t->nk * t->d) * sizeof(real));
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        *one[i] = cpu_take(s, (size_t)t->d * sizeof(real));
}

static void job_scratch(struct job *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct row r;

    row_scratch(&j->t, &r, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
    j->dscale = cpu_take(s, (size_t)(j->t.batch * j->t.heads) * sizeof(double));
}

static struct rows part_of(const struct pk_view *v, int which)
{
    struct rows r = rows_of(v, 0, 3, 1, 4);

    if (r.p)
        r.p += which * v->stride[2];
    return r;
}

static void shape(struct job *j, const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const struct pk_view *at;
    int out = a->packed ? 1 : 3;

    memset(j, 0, sizeof *j);
    attention_shape(&j->t, c);
    j->second = c->op == PK_OP_ATTENTION_BWD2;
    at = &c->in[j->t.after];
    if (j->second)
        j->dy = rows_of(at++, 0, 2, 1, 3);
    if (a->packed) {
        j->tq = part_of(at, 0);
        j->tk = part_of(at, 1);
        j->tv = part_of(at++, 2);
    } else {
        j->tq = rows_of(at++, 0, 1, 2, 3);
        j->tk = rows_of(at++, 0, 1, 2, 3);
        j->tv = rows_of(at++, 0, 1, 2, 3);
    }
    if (a->has_scale)
        j->tscale = at++;
    if (a->has_bias)
        j->tbias = at++;
    if (!j->second) {
        j->oy = rows_of(&c->out[0], 0, 2, 1, 3);
        return;
    }
    if (a->packed) {
        j->oq = part_of(&c->out[0], 0);
        j->ok = part_of(&c->out[0], 1);
        j->ov = part_of(&c->out[0], 2);
    } else {
        j->oq = rows_of(&c->out[0], 0, 1, 2, 3);
        j->ok = rows_of(&c->out[1], 0, 1, 2, 3);
        j->ov = rows_of(&c->out[2], 0, 1, 2, 3);
    }
    out += a->has_scale;
    if (a->has_bias)
        j->dbias = c->out[out++].data;
    j->oy = rows_of(&c->out[out], 0, 2, 1, 3);
}

size_t PK_FN(attention_second_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    shape(&j, c);
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

static void load(const struct rows *x, int64_t b, int64_t h, int64_t i, int64_t d, real *to)
{
    const real *from = x->p + b * x->sb + h * x->sh + i * x->sn;

    for (int64_t c = 0; c < d; c++)
        to[c] = from[c * x->sd];
}

static void store(const struct rows *x, int64_t b, int64_t h, int64_t i, int64_t d, const real *from)
{
    memcpy(x->p + b * x->sb + h * x->sh + i * x->sn, from, (size_t)d * sizeof(real));
}

/* y += a x */
INLINE void add(int64_t n, real a, const real *x, real *y)
{
    int64_t c = 0;

    for (; c + W <= n; c += W)
        vst(y + c, vld(y + c) + a * vld(x + c));
    for (; c < n; c++)
        y[c] += a * x[c];
}

static void pair(const struct job *j, int64_t b, int64_t h, int thread)
{
    const struct attention *t = &j->t;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t d = t->d, end = keys_of(t, b), shift = shift_of(t, b);
    const real tau = (real)t->a->tau, p = (real)t->a->degree;
    const struct pk_view *ts = j->tscale, *m = t->mask;
    double dscale = 0;
    struct row r;

    row_scratch(t, &r, &scratch);
    for (int64_t n = 0; n < end; n++) {
        load(&t->k, b, h, n, d, r.k + n * d);
        load(&t->v, b, h, n, d, r.v + n * d);
        load(&j->tk, b, h, n, d, r.tk + n * d);
        load(&j->tv, b, h, n, d, r.tv + n * d);
    }
    memset(r.ok, 0, (size_t)(t->nk * d) * sizeof(real));
    memset(r.ov, 0, (size_t)(t->nk * d) * sizeof(real));
    for (int64_t i = 0; i < t->nq; i++) {
        const real by = t->a->row_power != 0 ? row_factor(t, b, i) : 1, c = by * (real)factor_of(t, h);
        const int64_t last = t->a->causal ? cpu_max(0, cpu_min(end, i + shift + 1)) : end;
        real tc = 0;

        if (ts)
            tc = by * (real)t->a->scale *
                 ((const real *)ts->data)[(ts->shape.dim[0] == 1 ? 0 : h) * ts->stride[0]];
        load(&t->q, b, h, i, d, r.q);
        load(&j->tq, b, h, i, d, r.tq);
        if (j->second)
            load(&j->dy, b, h, i, d, r.dy);
        memset(r.oq, 0, (size_t)d * sizeof(real));
        memset(r.oy, 0, (size_t)d * sizeof(real));
        for (int64_t n = 0; n < last; n++) {
            const real *k = r.k + n * d, *tk = r.tk + n * d, *v = r.v + n * d, *tv = r.tv + n * d;
            real s, x, p0, p1, p2 = 0, ta, dv, e, g, u;

            if (m && !((const uint8_t *)m->data)[t->windows ? b % t->windows * m->stride[0] +
                                                                  i * m->stride[1] + n * m->stride[2]
                                                            : b * m->stride[0] + n * m->stride[1]])
                continue;
            s = tau * vdot(d, r.q, k) + (real)t->a->bias;
            x = tau * (vdot(d, r.tq, k) + vdot(d, r.q, tk));
            if (t->bias) {
                const int64_t *z = t->bias->stride, *tz = j->tbias->stride;

                s += ((const real *)t->bias->data)[h * z[0] + i * z[1] + n * z[2]];
                x += ((const real *)j->tbias->data)[h * tz[0] + i * tz[1] + n * tz[2]];
            }
            p1 = 1;
            for (int32_t z = 1; z < t->a->degree; z++) {
                p2 = p1;
                p1 *= s;
            }
            p0 = p1 * s;
            p1 *= p;
            p2 *= p * (p - 1);
            ta = c * p1 * x + tc * p0;
            add(d, ta, v, r.oy);
            add(d, c * p0, tv, r.oy);
            if (!j->second)
                continue;
            dv = vdot(d, r.dy, v);
            e = vdot(d, r.dy, tv);
            g = c * (p2 * x * dv + p1 * e) + tc * p1 * dv;
            u = c * p1 * dv;
            add(d, tau * g, k, r.oq);
            add(d, tau * u, tk, r.oq);
            add(d, tau * g, r.q, r.ok + n * d);
            add(d, tau * u, r.tq, r.ok + n * d);
            add(d, ta, r.dy, r.ov + n * d);
            dscale += (double)(by * (p1 * x * dv + p0 * e));
            if (j->dbias)
                j->dbias[(h * t->nq + i) * t->nk + n] += g;
        }
        store(&j->oy, b, h, i, d, r.oy);
        if (j->second)
            store(&j->oq, b, h, i, d, r.oq);
    }
    for (int64_t n = 0; j->second && n < t->nk; n++) {
        store(&j->ok, b, h, n, d, r.ok + n * d);
        store(&j->ov, b, h, n, d, r.ov + n * d);
    }
    j->dscale[b * t->heads + h] = dscale * t->a->scale;
}

static void second_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct attention *t = &j->t;

    if (!j->dbias) {
        pair(j, task / t->heads, task % t->heads, thread);
        return;
    }
    memset(j->dbias + task * t->nq * t->nk, 0, (size_t)(t->nq * t->nk) * sizeof(real));
    for (int64_t b = 0; b < t->batch; b++)
        pair(j, b, task, thread);
}

enum pd_err PK_FN(attention_second)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j.dbias ? j.t.heads : j.t.batch * j.t.heads, second_task, &j);
    if (j.second && j.t.scale) {
        real *out = c->out[j.t.a->packed ? 1 : 3].data;
        const int64_t n = j.t.scale->shape.dim[0];

        for (int64_t i = 0; i < n; i++) {
            double total = 0;

            for (int64_t t = 0; t < j.t.batch * j.t.heads; t++)
                if (n == 1 || t % j.t.heads == i)
                    total += j.dscale[t];
            out[i] = (real)total;
        }
    }
    return PD_OK;
}
