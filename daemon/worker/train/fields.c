/* daemon/worker/train/fields.c: see fields.h. */
#include "daemon/worker/train/fields.h"

#include <stdlib.h>

#include "kernels/base/json.h"

bool fields_due(const struct session *s, int64_t step, bool last)
{
    const struct train_setup *setup = &s->setup;
    const int64_t evaluations = (setup->steps + setup->eval_every - 1) / setup->eval_every,
                  each = (evaluations + FIELDS_MOST - 2) / (FIELDS_MOST - 1);

    if (!setup->task->maps[0].key || setup->rank)
        return false;
    return last || step == setup->steps || step / setup->eval_every % each == 0;
}

static void put_axis(struct pd_buf *out, const char *key, const struct task_axis *axis)
{
    pd_json_key(out, key);
    pd_json_open(out, '{');
    pd_json_kv_str(out, "name", axis->name);
    pd_json_kv_num(out, "low", axis->low);
    pd_json_kv_num(out, "high", axis->high);
    pd_json_close(out, '}');
}

static enum pd_err send(const struct session *s, struct executable *from, const struct task_map *map,
                        struct pd_why *why)
{
    struct train_blob blob = {.kind = "matrix", .key = map->key};
    struct task_axis axis[2];
    struct pk_shape shape;
    struct pd_buf meta;
    double *wide = NULL;
    float *narrow = NULL;
    size_t count;
    enum pd_err err = PD_OK;

    if (!executable_output(from, map->output, &shape) || shape.rank != 2)
        return pd_fail(why, PD_ERR_INTERNAL, "there is no matrix '%s'", map->output);
    count = (size_t)pk_shape_count(&shape);
    pd_buf_init(&meta, 0);
    wide = calloc(count + 1, sizeof *wide);
    narrow = calloc(count + 1, sizeof *narrow);
    if (!wide || !narrow)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a matrix of %zu numbers", count);
    if (err == PD_OK)
        err = executable_read(from, map->output, wide, count, why);
    if (err != PD_OK)
        goto out;
    for (size_t i = 0; i < count; i++)
        narrow[i] = (float)wide[i];
    s->setup.task->axes(s->setup.info, axis);
    pd_json_open(&meta, '{');
    pd_json_key(&meta, "shape");
    pd_json_open(&meta, '[');
    pd_json_int(&meta, shape.dim[0]);
    pd_json_int(&meta, shape.dim[1]);
    pd_json_close(&meta, ']');
    pd_json_kv_str(&meta, "dtype", "f32");
    put_axis(&meta, "rows", &axis[0]);
    put_axis(&meta, "columns", &axis[1]);
    pd_json_close(&meta, '}');
    if (pd_buf_err(&meta) != PD_OK) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a matrix of %zu numbers", count);
        goto out;
    }
    blob.meta = meta.data;
    blob.bytes = narrow;
    blob.len = count * sizeof *narrow;
    reporter_blob(s->reporter, &blob);
out:
    pd_buf_done(&meta);
    free(wide);
    free(narrow);
    return err;
}

enum pd_err fields_send(const struct session *s, struct executable *from, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (const struct task_map *map = s->setup.task->maps; map->key && err == PD_OK; map++)
        err = send(s, from, map, why);
    return err;
}
