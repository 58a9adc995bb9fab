/* SCATTER_ADD: rows of src added at their index, in order of the index. Tasks own strips of columns, so
 * every element is summed by one task, in the order of the index. */
#include "kernels/backend/cpu/ops.h"

struct job {
    const struct pk_call *c;
    int64_t count, d, rows, strip;
    const real *base;
    real *out;
};

static int64_t index_of(const struct job *j, int64_t i)
{
    const struct pk_view *v = &j->c->in[0];

    return ((const int32_t *)v->data)[cpu_offset(v->shape.dim, v->stride, v->shape.rank, i)];
}

static void start_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t from = task * 65536, n = cpu_min(65536, j->rows * j->d - from);

    (void)thread;
    if (!j->base)
        memset(j->out + from, 0, (size_t)n * sizeof(real));
    else if (j->base != j->out)
        memcpy(j->out + from, j->base + from, (size_t)n * sizeof(real));
}

static void add_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct pk_view *src = &j->c->in[1];
    int64_t c0 = task * j->strip, n = cpu_min(j->strip, j->d - c0), lead = src->shape.rank - 1;
    int64_t stride = src->stride[lead];

    (void)thread;
    for (int64_t i = 0; i < j->count; i++) {
        const real *from =
            (const real *)src->data + cpu_offset(src->shape.dim, src->stride, (int)lead, i) + c0 * stride;
        real *to = j->out + index_of(j, i) * j->d + c0;
        int64_t k = 0;

        if (stride == 1)
            for (; k + W <= n; k += W)
                vst(to + k, vld(to + k) + vld(from + k));
        for (; k < n; k++)
            to[k] += from[k * stride];
    }
}

enum pd_err PK_FN(scatter_add)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    struct job j = {.c = c, .count = 1, .out = o->data};

    for (int i = 0; i < c->in[0].shape.rank; i++)
        j.count *= c->in[0].shape.dim[i];
    j.rows = o->shape.dim[0];
    j.d = o->shape.dim[1];
    j.strip = cpu_max(64, cpu_round_up(cpu_div_up(j.d, 16), 16));
    for (int64_t i = 0; i < j.count; i++) {
        int64_t at = index_of(&j, i);

        if (at < 0 || at >= j.rows)
            return pd_fail(why, PD_ERR_INVALID, "index %lld (number %lld) is outside the %lld rows",
                           (long long)at, (long long)i, (long long)j.rows);
    }
    if (c->n_in > 2) {
        if (!pk_view_is_dense(&c->in[2])) {
            cpu_copy_view(b, &c->in[2], j.out);
            j.base = j.out;
        } else {
            j.base = c->in[2].data;
        }
    }
    cpu_pool_run(b->pool, cpu_div_up(j.rows * j.d, 65536), start_task, &j);
    if (j.d > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.d, j.strip), add_task, &j);
    return PD_OK;
}
