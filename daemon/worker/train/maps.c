/* daemon/worker/train/maps.c: see maps.h. */
#include "daemon/worker/train/maps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/json.h"

struct key {
    char text[64];
};

enum { ENTROPY, RANK, NEGATIVE, SAME_ROW, SAME_COLUMN, NUMBERS };
static const char *const number_keys[NUMBERS] = {"attn/entropy", "attn/rank", "attn/negative",
                                                 "attn/same_row", "attn/same_column"};

struct maps {
    const struct session *session;
    struct executable executable;
    size_t heads;     /* of all attention modules, the most */
    struct key *keys; /* per number and layer: the mean, then every head */
    double *numbers;  /* scratch, MODEL_MAP_TOKENS squared */
    float *narrow;    /* likewise */
    struct pd_buf meta;
};

/* Key of a number of a layer and head, both from 0; head -1: the mean over chosen heads. */
static struct key *key_of(const struct maps *m, int number, size_t layer, ptrdiff_t head)
{
    return m->keys + ((layer * NUMBERS + (size_t)number) * (m->heads + 1)) + head + 1;
}

static enum pd_err allocate(struct maps *m, struct pd_why *why)
{
    const struct model *model = m->session->setup.model;
    const size_t layers = model_attention_count(model);

    for (size_t l = 0; l < layers; l++) {
        int32_t heads;
        size_t scale;

        (void)model_attention_at(model, l, &heads, &scale);
        m->heads = (size_t)heads > m->heads ? (size_t)heads : m->heads;
    }
    m->keys = calloc(layers * NUMBERS * (m->heads + 1), sizeof *m->keys);
    m->numbers = calloc((size_t)MODEL_MAP_TOKENS * MODEL_MAP_TOKENS, sizeof *m->numbers);
    m->narrow = calloc((size_t)MODEL_MAP_TOKENS * MODEL_MAP_TOKENS, sizeof *m->narrow);
    if (!m->keys || !m->numbers || !m->narrow)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for attention matrices");
    for (size_t l = 0; l < layers; l++)
        for (int k = 0; k < NUMBERS; k++) {
            snprintf(key_of(m, k, l, -1)->text, sizeof m->keys->text, "%s/%zu", number_keys[k], l + 1);
            for (size_t h = 0; h < m->heads; h++)
                snprintf(key_of(m, k, l, (ptrdiff_t)h)->text, sizeof m->keys->text, "%s/%zu/%zu",
                         number_keys[k], l + 1, h + 1);
        }
    return PD_OK;
}

enum pd_err maps_open(const struct session *s, struct model_store *store, struct maps **ret,
                      struct pd_why *why)
{
    struct train_graph graph;
    struct maps *m;
    enum pd_err err;

    *ret = NULL;
    if (!train_graph_find(&s->setup, TRAIN_GRAPH_MAPS, &graph))
        return PD_OK;
    m = calloc(1, sizeof *m);
    if (!m)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for attention matrices");
    m->session = s;
    pd_buf_init(&m->meta, 0);
    err = session_executable(s, &graph, store, NULL, &m->executable, why);
    if (err == PD_OK)
        err = allocate(m, why);
    if (err == PD_OK)
        err = session_feed_probe(s, &m->executable, why);
    if (err == PD_OK)
        *ret = m;
    else
        maps_close(m);
    return err;
}

struct maps *maps_close(struct maps *m)
{
    if (!m)
        return NULL;
    executable_done(&m->executable);
    pd_buf_done(&m->meta);
    free(m->keys);
    free(m->numbers);
    free(m->narrow);
    free(m);
    return NULL;
}

/* Begins the meta of a blob: its shape and dtype. */
static void begin_meta(struct maps *m, const int64_t *dim, int rank, const char *dtype)
{
    pd_buf_done(&m->meta);
    pd_buf_init(&m->meta, 0);
    pd_json_open(&m->meta, '{');
    pd_json_key(&m->meta, "shape");
    pd_json_open(&m->meta, '[');
    for (int i = 0; i < rank; i++)
        pd_json_int(&m->meta, dim[i]);
    pd_json_close(&m->meta, ']');
    pd_json_kv_str(&m->meta, "dtype", dtype);
}

static enum pd_err hand_over(struct maps *m, const char *kind, const char *what, size_t layer, size_t head,
                             const void *bytes, size_t len, struct pd_why *why)
{
    struct train_blob blob = {.kind = kind, .bytes = bytes, .len = len};
    char key[64];

    pd_json_close(&m->meta, '}');
    if (pd_buf_err(&m->meta) != PD_OK)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for attention matrices");
    snprintf(key, sizeof key, "%s/%zu/%zu", what, layer + 1, head + 1);
    blob.key = key;
    blob.meta = m->meta.data;
    reporter_blob(m->session->reporter, &blob);
    return PD_OK;
}

static size_t narrowed(struct maps *m, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        m->narrow[i] = (float)m->numbers[i];
    return (size_t)count * sizeof *m->narrow;
}

/* The name of an output of a head; false: the graph has none. */
static bool find_output(struct maps *m, const char *what, size_t layer, size_t head, char (*ret_name)[48],
                        struct pk_shape *ret_shape)
{
    snprintf(*ret_name, sizeof *ret_name, "%s/%zu/%zu", what, layer + 1, head + 1);
    return executable_output(&m->executable, *ret_name, ret_shape);
}

/* An output into m->numbers; *ret_shape has its shape. */
static enum pd_err read_output(struct maps *m, const char *what, size_t layer, size_t head,
                               struct pk_shape *ret_shape, struct pd_why *why)
{
    char name[48];

    if (!find_output(m, what, layer, head, &name, ret_shape))
        return pd_fail(why, PD_ERR_INTERNAL, "there is no output '%s'", name);
    return executable_read(&m->executable, name, m->numbers, (size_t)pk_shape_count(ret_shape), why);
}

/* Words of the meta for matrices that are not between tokens. */
static const char *const between[] = {
    [MODEL_AXIS_CLASS] = "class", [MODEL_AXIS_CHANNELS] = "channels", [MODEL_AXIS_LANDMARKS] = "landmarks"};

static enum model_axis axis_of(const struct maps *m, size_t layer)
{
    return model_attention_axis(m->session->setup.model, layer);
}

/* Where the n tokens of a matrix lie: all patches of a picture, or a square window of them. False: in a row. */
static bool find_grid(const struct maps *m, int64_t n, struct model_grid *ret)
{
    const struct model_grid all = model_grid(m->session->setup.model);
    const int32_t side = (int32_t)lround(sqrt((double)n));

    *ret = all;
    if (all.rows && n == all.lead + (int64_t)all.rows * all.columns)
        return true;
    *ret = (struct model_grid){.rows = side, .columns = side};
    return all.rows && (int64_t)side * side == n;
}

static void put_pair(struct maps *m, const char *name, int64_t a, int64_t b)
{
    pd_json_key(&m->meta, name);
    pd_json_open(&m->meta, '[');
    pd_json_int(&m->meta, a);
    pd_json_int(&m->meta, b);
    pd_json_close(&m->meta, ']');
}

/* Share of entries below 0. */
static double negative(const double *x, int64_t count)
{
    int64_t below = 0;

    for (int64_t i = 0; i < count; i++)
        below += x[i] < 0;
    return (double)below / (double)count;
}

/* *ret_negative: share of entries below 0; may be NULL. */
static enum pd_err put_matrix(struct maps *m, const char *output, const char *key, size_t layer, size_t head,
                              double *ret_negative, struct pd_why *why)
{
    const enum model_axis axis = axis_of(m, layer);
    struct model_grid grid;
    struct pk_shape shape;
    enum pd_err err = read_output(m, output, layer, head, &shape, why);
    size_t bytes;

    if (err != PD_OK)
        return err;
    if (ret_negative)
        *ret_negative = negative(m->numbers, pk_shape_count(&shape));
    bytes = narrowed(m, pk_shape_count(&shape));
    begin_meta(m, shape.dim, 2, "f32");
    pd_json_kv_int(&m->meta, "samples", m->session->setup.probe_batch);
    pd_json_kv_bool(&m->meta, "causal", model_is_causal(m->session->setup.model));
    if (axis != MODEL_AXIS_TOKENS)
        pd_json_kv_str(&m->meta, "between", between[axis]);
    if ((axis == MODEL_AXIS_TOKENS || axis == MODEL_AXIS_CLASS) && find_grid(m, shape.dim[1], &grid)) {
        put_pair(m, "grid", grid.rows, grid.columns);
        pd_json_kv_int(&m->meta, "lead", grid.lead);
    }
    return hand_over(m, "matrix", key, layer, head, m->narrow, bytes, why);
}

/* Sets number[SAME_ROW] and number[SAME_COLUMN] where tokens are patches of a picture. */
static enum pd_err put_displacement(struct maps *m, size_t layer, size_t head, double number[NUMBERS],
                                    struct pd_why *why)
{
    struct model_grid grid;
    struct pk_shape shape;
    enum pd_err err = read_output(m, "abs", layer, head, &shape, why);
    int64_t lead = 0, rows = 1, columns = shape.dim[1], dim[2];
    double *profile;
    size_t bytes;

    if (err != PD_OK)
        return err;
    if (find_grid(m, shape.dim[0], &grid)) {
        lead = grid.lead;
        rows = grid.rows;
        columns = grid.columns;
        maps_same(m->numbers, shape.dim[1], lead, rows, columns, &number[SAME_ROW], &number[SAME_COLUMN]);
    }
    dim[0] = 2 * rows - 1;
    dim[1] = 2 * columns - 1;
    profile = calloc((size_t)(dim[0] * dim[1]), sizeof *profile);
    if (!profile)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a displacement profile");
    maps_displacement(m->numbers, shape.dim[1], lead, rows, columns, profile);
    memcpy(m->numbers, profile, (size_t)(dim[0] * dim[1]) * sizeof *profile);
    free(profile);
    bytes = narrowed(m, dim[0] * dim[1]);
    begin_meta(m, dim, 2, "f32");
    put_pair(m, "from", 1 - rows, 1 - columns);
    pd_json_kv_bool(&m->meta, "causal", model_is_causal(m->session->setup.model));
    return hand_over(m, "matrix", "attn/displacement", layer, head, m->narrow, bytes, why);
}

static enum pd_err put_histogram(struct maps *m, size_t layer, size_t head, struct pd_why *why)
{
    const int64_t bins = MODEL_MAP_BINS;
    struct pk_shape shape;
    enum pd_err err = read_output(m, "reach", layer, head, &shape, why);
    const double reach = m->numbers[0];

    if (err == PD_OK)
        err = read_output(m, "logits", layer, head, &shape, why);
    if (err != PD_OK)
        return err;
    begin_meta(m, &bins, 1, "f64");
    pd_json_kv_num(&m->meta, "lo", -reach);
    pd_json_kv_num(&m->meta, "hi", reach);
    return hand_over(m, "histogram", "logit/histogram", layer, head, m->numbers, /* without the hidden */
                     (size_t)bins * sizeof *m->numbers, why);
}

/* Adds the head's numbers to `sum`; those that it does not have are NaN. */
static enum pd_err one_head(struct maps *m, size_t layer, size_t head, double sum[NUMBERS],
                            struct pd_why *why)
{
    double number[NUMBERS];
    struct pk_shape shape;
    char name[48];
    enum pd_err err = read_output(m, "entropy", layer, head, &shape, why);

    for (int k = 0; k < NUMBERS; k++)
        number[k] = (double)NAN;
    number[ENTROPY] = m->numbers[0];
    if (err == PD_OK)
        err = read_output(m, "rank", layer, head, &shape, why);
    number[RANK] = m->numbers[0];
    if (err == PD_OK)
        err = put_matrix(m, "map", "attn/map", layer, head, &number[NEGATIVE], why);
    if (err == PD_OK && find_output(m, "softmax", layer, head, &name, &shape))
        err = put_matrix(m, "softmax", "attn/softmax", layer, head, NULL, why);
    if (err == PD_OK && axis_of(m, layer) == MODEL_AXIS_TOKENS)
        err = put_displacement(m, layer, head, number, why);
    if (err == PD_OK)
        err = put_histogram(m, layer, head, why);
    for (int k = 0; k < NUMBERS && err == PD_OK; k++) {
        sum[k] += number[k];
        if (!isnan(number[k]))
            reporter_push(m->session->reporter, key_of(m, k, layer, (ptrdiff_t)head)->text, number[k]);
    }
    return err;
}

enum pd_err maps_run(struct maps *m, struct pd_why *why)
{
    const struct train_setup *setup = &m->session->setup;
    enum pd_err err = pk_exec_run(m->executable.exec, why);

    for (size_t l = 0; l < model_attention_count(setup->model) && err == PD_OK; l++) {
        double sum[NUMBERS] = {0};
        int32_t heads, chosen = 0;
        size_t scale;

        (void)model_attention_at(setup->model, l, &heads, &scale);
        for (int32_t h = 0; h < heads && err == PD_OK; h++)
            if (model_maps_has(&setup->maps, (int64_t)l + 1, h + 1)) {
                err = one_head(m, l, (size_t)h, sum, why);
                chosen++;
            }
        for (int k = 0; k < NUMBERS && err == PD_OK && chosen; k++)
            if (!isnan(sum[k]))
                reporter_push(m->session->reporter, key_of(m, k, l, -1)->text, sum[k] / chosen);
    }
    return err;
}
