/* FORMULA_STATS: norms of A and of its Jacobians as ATTENTION_STATS (kernels/ATTENTION.md 2), for a probe batch. One task
 * per (batch, head), a query at a time. Programs are computed in the run's precision, as the run itself does, so that values
 * that leave its range are counted where they do; sums of squares in double.
 *
 * A row's Jacobian is diag g + sum_k u_k w_k', with g = dA/ds (row functions held), u_k = dA/dR_k and w_k = dx_k/ds. */
#include "kernels/backend/cpu/attention_formula.h"

struct job {
    struct formula f;
    const struct pk_view *x;
    char *scratch; /* of each thread */
    size_t scratch_bytes;
};

/* Scratch of one thread. */
struct row {
    double *k, *q;                                   /* keys (Nk, d), a query times tau */
    double *s, *a, *g;                               /* logits, A, dA/ds */
    double *u[PK_FORMULA_ROWS], *w[PK_FORMULA_ROWS]; /* each (Nk) */
    double *wk[PK_FORMULA_ROWS];                     /* sum_j w_kj k_j (d) */
    int64_t *key;                                    /* indices of the visible keys, in order */
    struct pk_formula_program one;                   /* an instruction, whose operands are leaves 0 to 2 */
};

static void row_scratch(const struct formula *f, struct row *r, struct cpu_scratch *s)
{
    const size_t n = (size_t)f->j.nk, d = (size_t)f->j.d, one = sizeof(double);

    r->k = cpu_take(s, n * d * one);
    r->q = cpu_take(s, d * one);
    r->s = cpu_take(s, n * one);
    r->a = cpu_take(s, n * one);
    r->g = cpu_take(s, n * one);
    r->key = cpu_take(s, n * sizeof *r->key);
    for (int k = 0; k < f->plan->rows; k++) {
        r->u[k] = cpu_take(s, n * one);
        r->w[k] = cpu_take(s, n * one);
        r->wk[k] = cpu_take(s, d * one);
    }
}

static void job_scratch_of(struct job *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct row r;

    row_scratch(&j->f, &r, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
}

size_t PK_FN(formula_stats_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    formula_shape(&j.f, c);
    job_scratch_of(&j, &s, cpu_threads_of(b));
    return s.used;
}

/* As pk_formula_run, but each result is rounded to the run's precision. */
static void run_rounded(struct pk_formula_program *one, const struct pk_formula_program *p,
                        const double *leaf, double *ret_results)
{
    double value[PK_FORMULA_CODE];
#define OPERAND(o)                                                                                           \
    ((o) >= 0                        ? value[o]                                                              \
     : (o) <= PK_FORMULA_CONSTANT(0) ? (double)(real)p->constant[PK_FORMULA_CONSTANT(0) - (o)]               \
     : -1 - (o) == PK_LEAF_PI        ? (double)(real)M_PI                                                    \
                                     : (double)(real)leaf[-1 - (o)])

    for (int i = 0; i < p->count; i++) {
        const int arity = pk_formula_arity((enum pk_formula_op)p->code[i].op);
        double in[3] = {0};

        for (int k = 0; k < arity; k++) {
            in[k] = OPERAND(p->code[i].in[k]);
            one->code[0].in[k] = PK_FORMULA_LEAF(k);
        }
        one->code[0].op = p->code[i].op;
        one->code[0].arg = p->code[i].arg;
        pk_formula_run(one, in, &value[i]);
        value[i] = (double)(real)value[i];
    }
    for (int k = 0; k < p->results; k++)
        ret_results[k] = OPERAND(p->result[k]);
#undef OPERAND
}

/* Row functions of n seen entries by the program and its first result; into leaf. */
static void gather_rows(const struct pk_formula_plan *p, struct row *r, int64_t n, double *leaf)
{
    double out[PK_FORMULA_RESULTS];
    const int first = p->two_passes ? 0 : 1;

    leaf[PK_LEAF_SHIFT] = p->shift_zero ? 0 : -INFINITY;
    for (int64_t e = 0; p->shift && e < n; e++) {
        leaf[PK_LEAF_S] = r->s[e];
        leaf[PK_LEAF_J] = (double)r->key[e];
        run_rounded(&r->one, &p->exponent, leaf, out);
        leaf[PK_LEAF_SHIFT] = fmax(leaf[PK_LEAF_SHIFT], out[0]);
    }
    for (int k = 0; k < p->rows; k++) {
        leaf[PK_LEAF_ROW + k] = p->row[k] == PK_ROW_SUM ? 0 : -INFINITY;
        leaf[PK_LEAF_ARG + k] = 0;
    }
    for (int64_t e = 0; p->rows && e < n; e++) {
        leaf[PK_LEAF_S] = r->s[e];
        leaf[PK_LEAF_J] = (double)r->key[e];
        run_rounded(&r->one, p->two_passes ? &p->sums : &p->value, leaf, out);
        for (int k = 0; k < p->rows; k++) {
            double *to = &leaf[PK_LEAF_ROW + k];

            if (p->row[k] == PK_ROW_SUM) {
                *to = (double)(real)(*to + out[first + k]);
            } else if (out[first + k] > *to || isnan(out[first + k])) {
                *to = out[first + k];
                leaf[PK_LEAF_ARG + k] = (double)r->key[e];
            }
        }
    }
}

static double dot(int64_t n, const double *a, const double *b)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Squares of A, of the Jacobian, and of the Jacobian times the keys, of a row of n seen entries; counts what is not
 * finite. */
static void row_norms(const struct formula *f, struct row *r, int64_t n, double *leaf, double *ret,
                      double *broken)
{
    const struct pk_formula_plan *p = f->plan;
    const int64_t d = f->j.d;
    bool zero = false;

    for (int k = 0; k < p->rows; k++) {
        zero = zero || leaf[PK_LEAF_ROW + k] == 0;
        memset(r->wk[k], 0, (size_t)d * sizeof(double));
    }
    for (int64_t e = 0; e < n; e++) {
        double out[PK_FORMULA_RESULTS];
        bool bad;

        leaf[PK_LEAF_S] = r->s[e];
        leaf[PK_LEAF_J] = (double)r->key[e];
        run_rounded(&r->one, &p->stats, leaf, out);
        bad = !isfinite(out[0]) || !isfinite(out[1]);
        if (zero && bad)
            memset(out, 0, sizeof out);
        else
            *broken += bad;
        r->a[e] = out[0];
        r->g[e] = out[1];
        ret[0] += out[0] * out[0];
        for (int k = 0; k < p->rows; k++) {
            r->u[k][e] = out[2 + 2 * k];
            r->w[k][e] = out[3 + 2 * k];
            for (int64_t c = 0; c < d; c++)
                r->wk[k][c] += r->w[k][e] * r->k[r->key[e] * d + c];
        }
    }
    ret[1] += dot(n, r->g, r->g);
    for (int k = 0; k < p->rows; k++) {
        for (int64_t e = 0; e < n; e++)
            ret[1] += 2 * r->g[e] * r->u[k][e] * r->w[k][e];
        for (int l = 0; l < p->rows; l++)
            ret[1] += dot(n, r->u[k], r->u[l]) * dot(n, r->w[k], r->w[l]);
    }
    for (int64_t e = 0; e < n; e++)
        for (int64_t c = 0; c < d; c++) {
            double x = r->g[e] * r->k[r->key[e] * d + c];

            for (int k = 0; k < p->rows; k++)
                x += r->u[k][e] * r->wk[k][c];
            ret[2] += x * x;
        }
}

static void stats_task(void *arg, int64_t task, int thread)
{
    const struct job *job = arg;
    const struct formula *f = &job->f;
    const struct attention *t = &f->j;
    struct cpu_scratch scratch = {job->scratch + (size_t)thread * job->scratch_bytes, 0};
    const int64_t b = task / t->heads, h = task % t->heads, end = keys_of(t, b), shift = shift_of(t, b),
                  d = t->d;
    const real *q = t->q.p + b * t->q.sb + h * t->q.sh, *k = t->k.p + b * t->k.sb + h * t->k.sh;
    double leaf[PK_LEAVES] = {[PK_LEAF_N] = f->attr->n,           [PK_LEAF_HEAD] = (double)h,
                              [PK_LEAF_HEADS] = (double)t->heads, [PK_LEAF_LAYER] = f->attr->layer,
                              [PK_LEAF_LAYERS] = f->attr->layers, [PK_LEAF_WIDTH] = (double)d};
    double fro = 0, jac = 0, jacq = 0, top = 0, count = 0, mean = 0, spread = 0, broken = 0, out[6];
    struct row r;

    memset(&r.one, 0, sizeof r.one);
    r.one.count = r.one.results = 1;
    row_scratch(f, &r, &scratch);
    for (int c = 0; c < f->plan->params; c++)
        leaf[PK_LEAF_PARAM + c] = scalar_of(f, c, h);
    for (int64_t i = 0; i < end; i++)
        for (int64_t c = 0; c < d; c++)
            r.k[i * d + c] = (double)k[i * t->k.sn + c * t->k.sd];
    for (int64_t i = 0; i < t->nq; i++) {
        const int64_t last = t->a->causal ? cpu_max(0, cpu_min(end, i + shift + 1)) : end;
        const real *x = (const real *)job->x->data + b * job->x->stride[0] + i * job->x->stride[1];
        const struct pk_view *m = t->mask, *bias = t->bias;
        double square[3] = {0}, norm = 0;
        int64_t n = 0;

        for (int64_t c = 0; c < d; c++)
            r.q[c] = (double)q[i * t->q.sn + c * t->q.sd] * t->a->tau;
        for (int64_t e = 0; e < last; e++) {
            double old = mean;

            if (m && !((const uint8_t *)m->data)[t->windows ? b % t->windows * m->stride[0] +
                                                                  i * m->stride[1] + e * m->stride[2]
                                                            : b * m->stride[0] + e * m->stride[1]])
                continue;
            r.key[n] = e;
            r.s[n] = dot(d, r.q, r.k + e * d);
            if (bias)
                r.s[n] +=
                    (double)((const real *)
                                 bias->data)[h * bias->stride[0] + i * bias->stride[1] + e * bias->stride[2]];
            top = fmax(top, fabs(r.s[n]));
            count++; /* Welford's running mean and spread */
            mean += (r.s[n] - old) / count;
            spread += (r.s[n] - old) * (r.s[n] - mean);
            n++;
        }
        if (n == 0)
            continue;
        leaf[PK_LEAF_I] = (double)(t->a->causal ? i + shift : i);
        leaf[PK_LEAF_NI] = (double)n;
        gather_rows(f->plan, &r, n, leaf);
        row_norms(f, &r, n, leaf, square, &broken);
        for (int64_t c = 0; c < job->x->shape.dim[2]; c++)
            norm += (double)x[c * job->x->stride[2]] * (double)x[c * job->x->stride[2]];
        fro += square[0];
        jac += square[1];
        jacq += square[2] * norm;
    }
    out[0] = sqrt(fro);
    out[1] = sqrt(fmax(0, jac));
    out[2] = sqrt(jacq * t->a->tau * t->a->tau);
    out[3] = count > 0 ? sqrt(spread / count) : 0;
    out[4] = top;
    out[5] = broken;
    for (int o = 0; o < 6; o++)
        ((real *)t->c->out[o].data)[task] = (real)out[o];
}

enum pd_err PK_FN(formula_stats)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    formula_shape(&j.f, c);
    j.x = &c->in[j.f.j.after];
    job_scratch_of(&j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j.f.j.batch * j.f.j.heads, stats_task, &j);
    return PD_OK;
}
