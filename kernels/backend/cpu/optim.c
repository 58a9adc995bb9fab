/* ADAMW, MSGDW, ACCUMULATE and BLEND, in place and elementwise. Numbers that change from step to step are read from
 * tensors. */
#include "kernels/backend/cpu/ops.h"

#define TASK 16384

struct job {
    real *p, *m, *v, *average; /* average: NULL if none is kept */
    const real *g;
    uint16_t *copy; /* of p in bf16, or NULL; never in f64 */
    int64_t count;
    real lr, decay, clip, beta1, beta2, step, root2, eps, momentum, fresh, l2, renewed;
    bool first, nesterov;
};

/* The next running average of p. As a sum of two products with weights that f32 rounds, an average of a constant would
 * tend to another value. */
INLINE vec renewed(const struct job *j, vec average, vec p)
{
    return average + (p - average) * j->renewed;
}

/* The running average of what p has become, n elements (0: a whole vector). */
INLINE void average_vec(const struct job *j, int64_t i, vec p, int64_t n)
{
    if (j->average && n)
        vstn(j->average + i, renewed(j, vldn(j->average + i, n), p), n);
    else if (j->average)
        vst(j->average + i, renewed(j, vld(j->average + i), p));
}

/* Elements i .. end-1 of what p has become, rounded to nearest even; a NaN stays one. */
static void copy_part(const struct job *j, int64_t i, int64_t end)
{
#if !CPU_F64
    for (; j->copy && i < end; i++) {
        uint32_t bits;

        memcpy(&bits, j->p + i, sizeof bits);
        bits = (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
        j->copy[i] = (uint16_t)(bits >> 16);
    }
#endif
    (void)j, (void)i, (void)end;
}

static void kept_of(struct job *j, const struct pk_call *c)
{
    if (c->attr->optim.copy)
        j->copy = c->in[c->n_in - 1].data;
    if (c->attr->optim.ema > 0) {
        j->average = c->in[c->n_in - 1 - c->attr->optim.copy].data;
        j->renewed = (real)(1 - c->attr->optim.ema);
    }
}

INLINE void adamw_vec(const struct job *j, vec *p, vec g, vec *m, vec *v)
{
    g = g * j->clip;
    *p = *p * j->decay;
    *m = *m * j->beta1 + g * (1 - j->beta1);
    *v = *v * j->beta2 + g * g * (1 - j->beta2);
    *p = *p - j->step * *m / (vsqrt(*v) * j->root2 + j->eps);
}

static void adamw_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t end = cpu_min(j->count, (task + 1) * TASK), i = task * TASK, begin = i;

    (void)thread;
    for (; i + W <= end; i += W) {
        vec p = vld(j->p + i), m = vld(j->m + i), v = vld(j->v + i);

        adamw_vec(j, &p, vld(j->g + i), &m, &v);
        vst(j->p + i, p);
        vst(j->m + i, m);
        vst(j->v + i, v);
        average_vec(j, i, p, 0);
    }
    if (i < end) {
        int64_t n = end - i;
        vec p = vldn(j->p + i, n), m = vldn(j->m + i, n), v = vldn(j->v + i, n);

        adamw_vec(j, &p, vldn(j->g + i, n), &m, &v);
        vstn(j->p + i, p, n);
        vstn(j->m + i, m, n);
        vstn(j->v + i, v, n);
        average_vec(j, i, p, n);
    }
    copy_part(j, begin, end);
}

static int64_t view_count(const struct pk_view *v)
{
    int64_t n = 1;

    for (int i = 0; i < v->shape.rank; i++)
        n *= v->shape.dim[i];
    return n;
}

size_t PK_FN(optim_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return pk_view_is_dense(&c->in[1]) ? 0 : (size_t)view_count(&c->in[1]) * sizeof(real);
}

static const real *gradient_of(struct pk_backend *b, const struct pk_call *c)
{
    if (pk_view_is_dense(&c->in[1]))
        return c->in[1].data;
    cpu_copy_view(b, &c->in[1], c->workspace);
    return c->workspace;
}

static real at(const struct pk_view *v, int64_t i)
{
    return ((const real *)v->data)[i * v->stride[0]];
}

enum pd_err PK_FN(adamw)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *hyper = &c->in[4], *gate = &c->in[5];
    double lr = (double)at(hyper, 0) * c->attr->optim.lr_mult;
    struct job j = {
        .p = c->in[0].data, .m = c->in[2].data, .v = c->in[3].data, .count = view_count(&c->in[0])};

    (void)why;
    if (at(gate, 1) == 0)
        return PD_OK;
    j.g = gradient_of(b, c);
    j.clip = at(gate, 0);
    j.decay = (real)(1 - lr * c->attr->optim.weight_decay);
    j.beta1 = c->attr->optim.cycled ? at(hyper, 3) : (real)c->attr->optim.beta1;
    j.beta2 = (real)c->attr->optim.beta2;
    j.step = (real)(lr / (double)at(hyper, 1));
    j.root2 = (real)(1 / sqrt((double)at(hyper, 2)));
    j.eps = (real)c->attr->optim.eps;
    kept_of(&j, c);
    cpu_pool_run(b->pool, cpu_div_up(j.count, TASK), adamw_task, &j);
    return PD_OK;
}

INLINE void msgdw_vec(const struct job *j, vec *p, vec g, vec *m)
{
    g = g * j->clip + *p * j->l2;
    *p = *p * j->decay;
    *m = j->first ? g : *m * j->momentum + g * j->fresh;
    *p = *p - j->lr * (j->nesterov ? g + j->momentum * *m : *m);
}

static void msgdw_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t end = cpu_min(j->count, (task + 1) * TASK), i = task * TASK, begin = i;

    (void)thread;
    for (; i + W <= end; i += W) {
        vec p = vld(j->p + i), m = vld(j->m + i);

        msgdw_vec(j, &p, vld(j->g + i), &m);
        vst(j->p + i, p);
        vst(j->m + i, m);
        average_vec(j, i, p, 0);
    }
    if (i < end) {
        int64_t n = end - i;
        vec p = vldn(j->p + i, n), m = vldn(j->m + i, n);

        msgdw_vec(j, &p, vldn(j->g + i, n), &m);
        vstn(j->p + i, p, n);
        vstn(j->m + i, m, n);
        average_vec(j, i, p, n);
    }
    copy_part(j, begin, end);
}

enum pd_err PK_FN(msgdw)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *hyper = &c->in[3], *gate = &c->in[4];
    double lr = (double)at(hyper, 0) * c->attr->optim.lr_mult;
    struct job j = {.p = c->in[0].data, .m = c->in[2].data, .count = view_count(&c->in[0])};

    (void)why;
    if (at(gate, 1) == 0)
        return PD_OK;
    j.g = gradient_of(b, c);
    j.clip = at(gate, 0);
    j.lr = (real)lr;
    if (c->attr->optim.l2) {
        j.decay = 1;
        j.l2 = (real)c->attr->optim.weight_decay;
    } else {
        j.decay = (real)(1 - lr * c->attr->optim.weight_decay);
    }
    j.momentum = (real)c->attr->optim.momentum;
    j.fresh = (real)(1 - c->attr->optim.dampening);
    j.nesterov = c->attr->optim.nesterov;
    j.first = at(hyper, 3) != 0;
    kept_of(&j, c);
    cpu_pool_run(b->pool, cpu_div_up(j.count, TASK), msgdw_task, &j);
    return PD_OK;
}

static void accumulate_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t end = cpu_min(j->count, (task + 1) * TASK), i = task * TASK;

    (void)thread;
    if (j->first) {
        memcpy(j->p + i, j->g + i, (size_t)(end - i) * sizeof(real));
        return;
    }
    for (; i + W <= end; i += W)
        vst(j->p + i, vld(j->p + i) + vld(j->g + i));
    if (i < end)
        vstn(j->p + i, vldn(j->p + i, end - i) + vldn(j->g + i, end - i), end - i);
}

enum pd_err PK_FN(accumulate)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j = {.p = c->in[0].data, .count = view_count(&c->in[0])};

    (void)why;
    j.g = gradient_of(b, c);
    j.first = at(&c->in[2], 0) != 0;
    cpu_pool_run(b->pool, cpu_div_up(j.count, TASK), accumulate_task, &j);
    return PD_OK;
}

static void blend_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t end = cpu_min(j->count, (task + 1) * TASK), i = task * TASK;

    (void)thread;
    if (j->renewed == 1) {
        memcpy(j->p + i, j->g + i, (size_t)(end - i) * sizeof(real));
        return;
    }
    for (; i + W <= end; i += W)
        vst(j->p + i, renewed(j, vld(j->p + i), vld(j->g + i)));
    if (i < end)
        vstn(j->p + i, renewed(j, vldn(j->p + i, end - i), vldn(j->g + i, end - i)), end - i);
}

enum pd_err PK_FN(blend)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j = {
        .p = c->in[0].data, .count = view_count(&c->in[0]), .renewed = (real)(1 - c->attr->optim.ema)};

    (void)why;
    if (at(&c->in[2], 0) == 0)
        return PD_OK;
    j.g = gradient_of(b, c);
    cpu_pool_run(b->pool, cpu_div_up(j.count, TASK), blend_task, &j);
    return PD_OK;
}
