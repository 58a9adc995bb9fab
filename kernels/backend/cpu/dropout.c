/* DROPOUT. A task is a run of rows; the mask of a row is drawn 64 columns at a time. */
#include "kernels/backend/cpu/ops.h"
#include "kernels/backend/cpu/random.h"

#define TASK 16384 /* elements, about */

struct job {
    const struct pk_view *x;
    struct draw d;
    real *y;
    int64_t rows, columns, per_task, sample_rows; /* 0: each element has a draw of its own */
};

static void row(const struct job *j, int64_t r)
{
    const int rank = j->x->shape.rank;
    const real *x = (const real *)j->x->data + cpu_offset(j->x->shape.dim, j->x->stride, rank - 1, r);
    const int64_t step = j->x->stride[rank - 1];
    real *y = j->y + r * j->columns;

    for (int64_t c = 0; c < j->columns; c += 64) {
        uint64_t keep = draw_columns(&j->d, (uint32_t)r, c);
        int64_t n = cpu_min(64, j->columns - c);

        for (int64_t i = 0; i < n; i++)
            y[c + i] = keep >> i & 1 ? x[(c + i) * step] * j->d.factor : 0;
    }
}

/* Rows of samples that are kept or dropped as a whole. */
static void sample_row(const struct job *j, int64_t r, int64_t sample)
{
    const int rank = j->x->shape.rank;
    const real *x = (const real *)j->x->data;
    const int64_t step = rank > 1 ? j->x->stride[rank - 1] : 0;
    const uint32_t counter[4] = {0, (uint32_t)sample + j->d.first, j->d.step, j->d.stream};
    real *y = j->y + r * j->columns;
    uint32_t word[4];

    x += rank > 1 ? cpu_offset(j->x->shape.dim, j->x->stride, rank - 1, r) : r * j->x->stride[0];
    pd_philox(j->d.key, counter, word);
    for (int64_t c = 0; c < j->columns; c++)
        y[c] = word[0] >= j->d.threshold ? x[c * step] * j->d.factor : 0;
}

static void task(void *arg, int64_t index, int thread)
{
    const struct job *j = arg;

    (void)thread;
    for (int64_t r = index * j->per_task; r < cpu_min(j->rows, (index + 1) * j->per_task); r++)
        if (j->sample_rows)
            sample_row(j, r, r / j->sample_rows);
        else
            row(j, r);
}

enum pd_err PK_FN(dropout)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *x = &c->in[0];
    const int rank = x->shape.rank;
    const bool samples = c->attr->dropout.samples;
    struct job j = {.x = x, .y = c->out[0].data};
    int64_t count = pk_shape_count(&x->shape);

    (void)why;
    if (count == 0)
        return PD_OK;
    j.columns = samples && rank == 1 ? 1 : x->shape.dim[rank - 1];
    j.rows = count / j.columns;
    j.d = draw_of(&c->in[1], c->attr->dropout.rate, c->attr->dropout.stream,
                  samples ? x->shape.dim[0] : j.rows);
    j.sample_rows = samples ? j.rows / x->shape.dim[0] : 0;
    j.per_task = cpu_max(1, TASK / j.columns);
    cpu_pool_run(b->pool, cpu_div_up(j.rows, j.per_task), task, &j);
    return PD_OK;
}
