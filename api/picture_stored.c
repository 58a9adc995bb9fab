/* Figures of what runs stored besides series: maps of attention and of an equation's solution, histograms of gradients, and the
 * plan of a run's memory. */
#include "api/picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "kernels/base/file.h"

#define BLOB_BYTES ((size_t)16 << 20) /* one frame of a worker */
#define MAP_KEYS 24                   /* layers and heads of one figure */
#define BINS 4096

/* One blob of a run as numbers. */
struct stored {
    int64_t id, step;
    char sha256[STORE_DIGEST_HEX];
    json_t *meta;   /* owned */
    double *values; /* owned */
    size_t count, rows, columns;
    bool last; /* of several steps the last is taken, else the first */
    int listed;
    enum pd_err err;
    struct pd_why why;
};

static void stored_done(struct stored *s)
{
    json_decref(s->meta);
    free(s->values);
    *s = (struct stored){.err = PD_OK};
}

static bool choose(void *ctx, const struct store_blob *blob)
{
    struct stored *s = ctx;

    s->listed++;
    if (!s->id || s->last) {
        s->id = blob->id;
        s->step = blob->step;
    }
    return s->last;
}

static void numbers(struct stored *s, const struct pd_buf *bytes)
{
    const json_t *shape = json_object_get(s->meta, "shape");
    const char *dtype = json_string_value(json_object_get(s->meta, "dtype"));
    const bool wide = dtype && !strcmp(dtype, "f64");

    s->count = bytes->len / (wide ? sizeof(double) : sizeof(float));
    s->rows = json_array_size(shape) == 2 ? (size_t)json_integer_value(json_array_get(shape, 0)) : 1;
    s->columns = s->rows ? s->count / s->rows : 0;
    s->values = malloc((s->count + 1) * sizeof *s->values);
    if (!s->values) {
        s->err = pd_fail(&s->why, PD_ERR_NOMEM, "no memory for what a run stored");
        return;
    }
    for (size_t i = 0; i < s->count; i++) {
        float narrow;

        if (wide) {
            memcpy(&s->values[i], bytes->data + i * sizeof(double), sizeof(double));
        } else {
            memcpy(&narrow, bytes->data + i * sizeof narrow, sizeof narrow);
            s->values[i] = narrow;
        }
    }
}

static void read_file(void *ctx, const struct store_blob *blob, const char *path)
{
    struct stored *s = ctx;
    struct pd_buf bytes;

    pd_buf_init(&bytes, 0);
    snprintf(s->sha256, sizeof s->sha256, "%s", blob->sha256);
    s->meta = json_loads(blob->meta, 0, NULL);
    s->err = s->meta ? pd_file_read(path, BLOB_BYTES, &bytes, &s->why)
                     : pd_fail(&s->why, PD_ERR_NOMEM, "no memory for what a run stored");
    if (s->err == PD_OK)
        numbers(s, &bytes);
    pd_buf_done(&bytes);
}

/* The last or the first blob of a key; count 0: the run has none. The caller calls stored_done, also after a failure. */
static enum pd_err read_stored(struct experiment *x, int64_t run, const char *key, bool last,
                               struct stored *ret, struct pd_why *why)
{
    enum pd_err err;

    *ret = (struct stored){.last = last, .step = -1};
    do {
        ret->listed = 0;
        err = store_blob_list(x->store, run, key, ret->step, STORE_PAGE_MAX, choose, ret, why);
    } while (err == PD_OK && last && ret->listed == STORE_PAGE_MAX);
    if (err != PD_OK || !ret->id)
        return err;
    err = store_blob_get(x->store, run, ret->id, read_file, ret, why);
    return err == PD_OK && ret->err != PD_OK ? pd_fail(why, ret->err, "%s", ret->why.text) : err;
}

static void meta_json(struct pd_buf *b, const struct stored *s)
{
    char *text = json_dumps(s->meta, JSON_COMPACT | JSON_REAL_PRECISION(15));

    b->failed = b->failed || !text;
    api_json_kv_raw(b, "meta", text ? text : "{}");
    free(text);
}

/* ---- maps -------------------------------------------------------------------------------------- */

/* Row or column i of n evenly chosen ones of `of`, both ends included. */
static size_t chosen(size_t i, size_t n, size_t of)
{
    return n < 2 ? 0 : (size_t)lround((double)i * (double)(of - 1) / (double)(n - 1));
}

static void cells_json(struct pd_buf *b, const struct stored *s)
{
    const size_t rows = s->rows < PICTURE_CELLS ? s->rows : PICTURE_CELLS;
    const size_t columns = s->columns < PICTURE_CELLS ? s->columns : PICTURE_CELLS;

    api_json_key(b, "cells");
    api_json_open(b, '[');
    for (size_t r = 0; r < rows; r++) {
        api_json_open(b, '[');
        for (size_t c = 0; c < columns; c++)
            api_json_num32(
                b, (float)s->values[chosen(r, rows, s->rows) * s->columns + chosen(c, columns, s->columns)]);
        api_json_close(b, ']');
    }
    api_json_close(b, ']');
}

/* Row and column, from 0. */
static void cell_json(struct pd_buf *b, const char *name, const struct stored *s, size_t i)
{
    api_json_key(b, name);
    api_json_open(b, '[');
    api_json_int(b, (int64_t)(s->columns ? i / s->columns : 0));
    api_json_int(b, (int64_t)(s->columns ? i % s->columns : 0));
    api_json_close(b, ']');
}

static void map_json(struct pd_buf *b, const char *key, const struct experiment_job *job,
                     const struct experiment_row *row, const struct experiment_run *run,
                     const struct stored *s)
{
    double low = INFINITY, high = -INFINITY;
    size_t below = 0, largest = 0, highest = 0;

    for (size_t i = 0; i < s->count; i++) {
        low = fmin(low, s->values[i]);
        high = fmax(high, s->values[i]);
        below += s->values[i] < 0;
        if (fabs(s->values[i]) > fabs(s->values[largest]))
            largest = i;
        if (s->values[i] > s->values[highest])
            highest = i;
    }
    picture_place_json(b, job, row, run);
    api_json_kv_str(b, "form", "map");
    api_json_kv_str(b, "title", key);
    api_json_kv_int(b, "step", s->step);
    api_json_kv_str(b, "sha256", s->sha256);
    meta_json(b, s);
    api_json_kv_int(b, "rows", (int64_t)s->rows);
    api_json_kv_int(b, "columns", (int64_t)s->columns);
    api_json_kv_num_or_null(b, "low", s->count ? low : (double)NAN);
    api_json_kv_num_or_null(b, "high", s->count ? high : (double)NAN);
    api_json_kv_num_or_null(b, "below_0", s->count ? (double)below / (double)s->count : (double)NAN);
    cell_json(b, "largest", s, largest);
    cell_json(b, "highest", s, highest);
    cells_json(b, s);
    api_json_close(b, '}');
}

struct keys {
    char key[MAP_KEYS][STORE_KEY_MAX + 1];
    size_t count;
};

static bool take_key(void *ctx, const struct store_blob_key *k)
{
    struct keys *l = ctx;
    size_t i = 0;

    if (strncmp(k->key, "attn/map/", 9) != 0)
        return true;
    while (i < l->count && strcmp(l->key[i], k->key) != 0)
        i++;
    if (i == l->count && i < MAP_KEYS)
        strcpy(l->key[l->count++], k->key);
    return true;
}

/* The last map of each key of one run, in the order of the keys. */
static enum pd_err maps_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                             const struct experiment_row *row, const struct keys *keys, struct pd_why *why)
{
    const struct experiment_run *run = picture_run(job, row);
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < keys->count; i++) {
        struct stored s;

        if ((double)b->len > EXPERIMENT_BYTES) {
            experiment_cut(x, "of run %lld no %s", (long long)run->id, keys->key[i]);
            break;
        }
        err = read_stored(x, run->id, keys->key[i], true, &s, why);
        if (err == PD_OK && s.count)
            map_json(b, keys->key[i], job, row, run, &s);
        stored_done(&s);
    }
    return err;
}

/* ---- histograms -------------------------------------------------------------------------------- */

static enum pd_err histogram_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                                  size_t rows, const char *key, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    api_json_open(b, '{');
    api_json_kv_str(b, "form", "histograms");
    api_json_kv_str(b, "title", key);
    api_json_kv_id(b, "job_id", job->id);
    api_json_key(b, "lines");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < rows; i++) {
        const struct experiment_run *run = picture_run(job, &job->rows[i]);
        struct stored s;

        err = read_stored(x, run->id, key, false, &s, why);
        if (err == PD_OK && s.count) {
            picture_place_json(b, job, &job->rows[i], run);
            api_json_kv_int(b, "step", s.step);
            meta_json(b, &s);
            api_json_key(b, "counts");
            api_json_open(b, '[');
            for (size_t k = 0; k < s.count && k < BINS; k++)
                api_json_num(b, s.values[k]);
            api_json_close(b, ']');
            api_json_close(b, '}');
        }
        stored_done(&s);
    }
    api_json_close(b, ']');
    api_json_close(b, '}');
    return err;
}

/* ---- memory ------------------------------------------------------------------------------------ */

static bool plan_digest(void *ctx, const struct store_run *run)
{
    snprintf(ctx, STORE_DIGEST_HEX, "%s", run->plan_digest);
    return false;
}

/* The bytes of each category that the run's plan has; null: the plan is not stored. */
static enum pd_err planned_json(struct pd_buf *b, struct store *store, int64_t run, struct pd_why *why)
{
    char digest[STORE_DIGEST_HEX] = "", *text = NULL;
    json_t *plan = NULL;
    struct pd_buf stored;
    enum pd_err err = store_run_get(store, run, plan_digest, digest, why);

    pd_buf_init(&stored, 0);
    if (err == PD_OK && *digest)
        err = store_plan_get(store, digest, &stored, why);
    if (err == PD_ERR_NOT_FOUND)
        err = PD_OK;
    if (err == PD_OK && stored.len) {
        plan = json_loadb(stored.data, stored.len, 0, NULL);
        text = json_dumps(json_object_get(plan, "bytes"), JSON_COMPACT);
        b->failed = b->failed || !text;
    }
    api_json_kv_raw(b, "planned", text ? text : "null");
    free(text);
    json_decref(plan);
    pd_buf_done(&stored);
    return err;
}

static bool take_value(void *ctx, const struct store_series *s)
{
    *(double *)ctx = s->value;
    return false;
}

static enum pd_err memory_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                               size_t rows, struct pd_why *why)
{
    static const char *const keys[] = {"mem/optimizer", "mem/peak"};
    enum pd_err err = PD_OK;

    api_json_open(b, '{');
    api_json_kv_str(b, "form", "memory");
    api_json_kv_str(b, "title", job->name);
    api_json_kv_id(b, "job_id", job->id);
    api_json_key(b, "lines");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < rows; i++) {
        const struct experiment_run *run = picture_run(job, &job->rows[i]);

        picture_place_json(b, job, &job->rows[i], run);
        err = planned_json(b, x->store, run->id, why);
        api_json_key(b, "measured");
        api_json_open(b, '{');
        for (size_t k = 0; err == PD_OK && k < sizeof keys / sizeof *keys; k++) {
            double value = (double)NAN;

            err = store_series_get(x->store, run->id, keys[k], take_value, &value, why);
            if (err == PD_ERR_NOT_FOUND)
                err = PD_OK;
            api_json_kv_num_or_null(b, keys[k], value);
        }
        api_json_close(b, '}');
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_close(b, '}');
    return err;
}

enum pd_err picture_stored_json(struct pd_buf *b, struct experiment *x, const char *is,
                                const struct experiment_job *job, struct pd_why *why)
{
    static const char *const weights[] = {"w_q", "w_k", "w_v", "w_o", "w_1", "w_2"};
    static const struct keys solution = {.key = {"pde/u", "pde/exact", "pde/error"}, .count = 3};
    const size_t rows = job->row_count < PICTURE_RUNS ? job->row_count : PICTURE_RUNS;
    struct keys keys = {.count = 0};
    enum pd_err err = PD_OK;

    if (rows < job->row_count)
        experiment_cut(x, "figures of the first %zu of %zu combinations of job %lld", rows, job->row_count,
                       (long long)job->id);
    if (!strcmp(is, "memory"))
        return memory_json(b, x, job, rows, why);
    for (size_t i = 0; err == PD_OK && !strcmp(is, "maps") && i < rows; i++)
        err = store_blob_keys(x->store, picture_run(job, &job->rows[i])->id, take_key, &keys, why);
    for (size_t i = 0; err == PD_OK && strcmp(is, "gradients") != 0 && i < rows; i++)
        err = maps_json(b, x, job, &job->rows[i], !strcmp(is, "maps") ? &keys : &solution, why);
    for (size_t i = 0; err == PD_OK && !strcmp(is, "gradients") && i < sizeof weights / sizeof *weights;
         i++) {
        char key[32];

        snprintf(key, sizeof key, "grad/histogram/%s", weights[i]);
        err = histogram_json(b, x, job, rows, key, why);
    }
    return err;
}
