/* Points of a differential equation to its solution: of each point (x, t) the sequence that begins there, as in training, and u at
 * its first point. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/serve/internal.h"
#include "kernels/base/json.h"

/* Points in the smallest and in the largest graph. Matrices of few rows are multiplied in another order: a point shall get
 * the same bits alone and with others. */
#define LEAST 32
#define BATCH 256

static enum pd_err read_field(struct serve *s, const struct data_st *st, const char *path, struct pd_why *why)
{
    const struct model_spec *spec = model_spec(s->model);

    (void)st;
    (void)path;
    (void)why;
    s->info.outputs = 1;
    s->info.domain[0] = data_equation_width((enum data_equation)spec->equation);
    s->info.domain[1] = 1;
    return PD_OK;
}

static size_t sequence(const struct serve *s)
{
    return (size_t)model_spec(s->model)->context;
}

static enum pd_err open_graphs(struct serve *s, struct pd_why *why)
{
    const size_t largest = s->info.batch_max = BATCH, bytes = largest * sequence(s) * sizeof(float);
    void **inputs[] = {&s->input, &s->pos};
    enum pd_err err = PD_OK;

    s->staging = calloc(2 * largest * sequence(s), sizeof *s->staging); /* x of all points, then t */
    if (!s->staging)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a batch of %zu points", largest);
    for (int i = 0; i < 2 && err == PD_OK; i++) {
        err = serve_alloc(s, bytes, &s->memory.inputs_bytes, inputs[i], why);
        if (err == PD_OK)
            err = s->api->upload(s->backend, *inputs[i], s->staging, bytes, why);
    }
    if (err != PD_OK)
        return err;
    return serve_classes_open(s, LEAST, 1, (struct serve_input[]){{"x", s->input}, {"t", s->pos}}, 2, why);
}

static enum pd_err put_point(struct serve *s, const struct serve_samples *part, int64_t i, int64_t row,
                             struct pd_why *why)
{
    const size_t k = sequence(s), largest = s->info.batch_max;
    float *x = s->staging + (size_t)row * k, *t = x + largest * k, at[2];

    memcpy(at, (const char *)part->data + (size_t)i * sizeof at, sizeof at); /* may lie anywhere */
    if (!isfinite(at[0]) || !isfinite(at[1]))
        return pd_fail(why, PD_ERR_INVALID, "point %lld has a coordinate that is not finite",
                       (long long)(part->first + i));
    for (size_t j = 0; j < k; j++) {
        x[j] = at[0];
        t[j] = (float)((double)at[1] + (double)j * model_spec(s->model)->step);
    }
    return PD_OK;
}

static enum pd_err send_points(struct serve *s, int64_t used, int32_t size, struct pd_why *why)
{
    const size_t k = sequence(s), all = (size_t)size * k, gone = (size_t)(size - used) * k;
    float *x = s->staging, *t = x + s->info.batch_max * k;
    enum pd_err err;

    memset(x + (size_t)used * k, 0, gone * sizeof *x);
    memset(t + (size_t)used * k, 0, gone * sizeof *t);
    err = s->api->upload(s->backend, s->input, x, all * sizeof *x, why);
    return err == PD_OK ? s->api->upload(s->backend, s->pos, t, all * sizeof *t, why) : err;
}

int64_t serve_points_outside(const struct serve *s, const void *points, int64_t count, int64_t *ret_first)
{
    const float width = (float)s->info.domain[0], end = (float)s->info.domain[1];
    int64_t outside = 0;

    for (int64_t i = 0; i < count; i++) {
        float at[2];

        memcpy(at, (const char *)points + (size_t)i * sizeof at, sizeof at);
        if (at[0] >= 0 && at[0] <= width && at[1] >= 0 && at[1] <= end)
            continue;
        if (!outside++)
            *ret_first = i;
    }
    return outside;
}

static void put_range(struct pd_buf *out, const char *name, double end)
{
    pd_json_key(out, name);
    pd_json_open(out, '[');
    pd_json_int(out, 0);
    pd_json_num32(out, (float)end);
    pd_json_close(out, ']');
}

static void put_signature(const struct serve *s, struct pd_buf *out)
{
    const struct model_spec *spec = model_spec(s->model);

    pd_json_key(out, "inputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "points", "FP32", (int64_t[]){2}, 1);
    pd_json_close(out, ']');
    pd_json_key(out, "outputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "u", "FP32", NULL, 0);
    pd_json_close(out, ']');
    pd_json_kv_uint(out, "batch_max", s->info.batch_max);
    pd_json_kv_str(out, "equation", data_equation_name((enum data_equation)spec->equation));
    pd_json_kv_num(out, "coefficient", spec->coefficient);
    pd_json_key(out, "domain");
    pd_json_open(out, '{');
    put_range(out, "x", s->info.domain[0]);
    put_range(out, "t", s->info.domain[1]);
    pd_json_close(out, '}');
}

const struct serve_kind serve_kind_field = {
    .name = "field",
    .read = read_field,
    .open = open_graphs,
    .signature = put_signature,
    .put = put_point,
    .send = send_points,
};
