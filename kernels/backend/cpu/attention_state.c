/* ATTENTION_STATE: St += F(k)' v, y = c F(tau q) St, own key included (kernels/ENGINE.md 9).
 *
 * Few tokens are processed one by one, in a single pass over the state: it is read and written once per token,
 * which is the cost of decoding. A prompt goes in chunks of TILE tokens as in attention_linear.c, with
 * products on the state in place. Tasks are (batch, head). */
#include "kernels/backend/cpu/attention_features.h"

#define ONE_BY_ONE 4 /* tokens; more go by chunks */

struct job {
    struct attention t;
    const struct pk_view *position, *state;
    char *scratch;
    size_t scratch_bytes;
    bool chunks;
};

/* Scratch of one thread. */
struct chunk {
    real *kr, *vr, *qr, *acc; /* (TILE, ld); of one token: rows */
    real *qt, *f, *s, *panel;
};

static void take(const struct job *j, struct chunk *k, struct cpu_scratch *s)
{
    const struct attention *t = &j->t;
    const int64_t n = j->chunks ? TILE : 1;
    const size_t rows = (size_t)(n * t->ld + W) * sizeof(real), square = (size_t)(TILE * TILE) * sizeof(real);

    memset(k, 0, sizeof *k);
    k->kr = cpu_take(s, rows);
    k->vr = cpu_take(s, rows);
    k->qr = cpu_take(s, rows);
    k->acc = cpu_take(s, rows);
    if (!j->chunks)
        return;
    k->qt = cpu_take(s, (size_t)(t->ld * TILE) * sizeof(real));
    k->f = cpu_take(s, square);
    k->s = cpu_take(s, square);
    if (t->ld > 2 * TILE)
        k->panel = cpu_take(s, (size_t)(cpu_round_up(TILE, MR) * t->d) * sizeof(real));
}

static void shape(struct job *j, const struct pk_call *c)
{
    memset(j, 0, sizeof *j);
    attention_shape(&j->t, c);
    j->position = &c->in[j->t.after];
    j->state = &c->in[j->t.after + 1];
    /* A product writes whole vectors, so d must be a multiple of the vector length. */
    j->chunks = j->t.nq > ONE_BY_ONE && j->t.d % W == 0;
}

static void take_job(struct job *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct chunk k;

    take(j, &k, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
}

size_t PK_FN(attention_state_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    shape(&j, c);
    take_job(&j, &s, cpu_threads_of(b));
    return s.used;
}

static int64_t number(const struct pk_view *v, int64_t b)
{
    return ((const int32_t *)v->data)[(v->shape.dim[0] == 1 ? 0 : b) * v->stride[0]];
}

static const real *row_at(const struct rows *x, int64_t b, int64_t h, int64_t i)
{
    return x->p + b * x->sb + h * x->sh + i * x->sn;
}

/* One row of the state: += key v; y += query times it. */
INLINE void state_row(int64_t d, real key, real query, const real *v, real *state, real *y)
{
    int64_t c = 0;

    for (; c + W <= d; c += W) {
        vec s = vld(state + c) + key * vld(v + c);

        vst(state + c, s);
        vst(y + c, vld(y + c) + query * s);
    }
    for (; c < d; c++) {
        state[c] += key * v[c];
        y[c] += query * state[c];
    }
}

static void one_token(const struct job *j, const struct chunk *k, real *state)
{
    const int64_t d = j->t.d;

    memset(k->acc, 0, (size_t)d * sizeof(real));
    if (j->t.a->degree == 1) {
        for (int64_t a = 0; a < d; a++)
            state_row(d, k->kr[a], k->qr[a], k->vr, state + a * d, k->acc);
        return;
    }
    for (int64_t a = 0; a < d; a++)
        for (int64_t b = a; b < d; b++, state += d)
            state_row(d, (a == b ? 1 : 2) * k->kr[a] * k->kr[b], k->qr[a] * k->qr[b], k->vr, state, k->acc);
}

static void one_chunk(const struct job *j, const struct chunk *k, int64_t b, int64_t h, int64_t i0, int64_t n,
                      real *state)
{
    const struct attention *t = &j->t;
    const real *q = row_at(&t->q, b, h, i0);

    memset(k->acc, 0, (size_t)(n * t->ld) * sizeof(real));
    apply(t, k->f, false, n, k->qr, state, t->d, k->acc);
    load_transposed(n, t->d, q, t->q.sn, t->q.sd, (real)t->a->tau, k->qt);
    if (k->panel)
        micro_pack(n, t->d, k->kr, t->ld, 1, k->panel);
    product_keys(t, n, n, k->kr, k->panel, k->qt, k->s);
    square_forward(t, n, k->s);
    product_queries(t, n, n, k->s, k->vr, k->acc);
    accumulate(t, k->f, true, n, k->kr, k->vr, state, t->d);
}

static void state_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct attention *t = &j->t;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t b = task / t->heads, h = task % t->heads, size = j->state->shape.dim[2] * t->d;
    const int64_t position = number(j->position, b),
                  valid = cpu_max(0, cpu_min(t->nq, number(t->length, b) - position));
    const real factor = (real)factor_of(t, h), tau = (real)t->a->tau;
    real *state = (real *)j->state->data + task * size, *y = t->y.p + b * t->y.sb + h * t->y.sh;
    const int64_t step = j->chunks ? TILE : 1;
    struct chunk k;

    take(j, &k, &scratch);
    memset(k.qr, 0, (size_t)(step * t->ld + W) * sizeof(real));
    memset(k.kr, 0, (size_t)(step * t->ld + W) * sizeof(real));
    if (position == 0 && valid > 0)
        memset(state, 0, (size_t)size * sizeof(real));
    for (int64_t i = 0; i < valid; i += step) {
        int64_t n = cpu_min(step, valid - i);

        load_rows(n, t->d, t->ld, row_at(&t->q, b, h, i), t->q.sn, t->q.sd, tau, k.qr);
        load_rows(n, t->d, t->ld, row_at(&t->k, b, h, i), t->k.sn, t->k.sd, 1, k.kr);
        load_rows(n, t->d, t->ld, row_at(&t->v, b, h, i), t->v.sn, t->v.sd, 1, k.vr);
        if (j->chunks)
            one_chunk(j, &k, b, h, i, n, state);
        else
            one_token(j, &k, state);
        for (int64_t r = 0; t->a->row_power != 0 && r < n; r++)
            for (int64_t c = 0; c < t->d; c++)
                k.acc[r * t->ld + c] *= (real)pow((double)(position + i + r + 1), -t->a->row_power);
        store_rows(n, t->d, t->ld, k.acc, factor, NULL, y + i * t->y.sn, t->y.sn);
    }
    for (int64_t i = valid; i < t->nq; i++)
        memset(y + i * t->y.sn, 0, (size_t)t->d * sizeof(real));
}

enum pd_err PK_FN(attention_state)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    shape(&j, c);
    take_job(&j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j.t.batch * j.t.heads, state_task, &j);
    return PD_OK;
}
