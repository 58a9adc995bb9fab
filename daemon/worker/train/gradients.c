/* daemon/worker/train/gradients.c: see gradients.h. */
#include "daemon/worker/train/gradients.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/tails.h"
#include "kernels/base/json.h"

/* Statistics that are points, of all layers together. */
enum { KURTOSIS, HILL, RATIO, SHARE, SPREAD, NUMBERS };
static const char *const number_keys[NUMBERS] = {"grad/kurtosis", "grad/hill", "grad/ratio", "grad/top_share",
                                                 "grad/layer_ratio"};

struct key {
    char text[48];
};

struct gradients {
    const struct session *session;
    struct executable executable;
    struct key keys[MODEL_WEIGHTS][NUMBERS];
    double *pool; /* entries of one weight in all layers; NULL until it is known how many there are */
    char *host;   /* a parameter's gradient as it was downloaded */
    struct pd_buf meta;
};

/* ---- opening ---- */

/* Entries of weight w in parameter i: all of it, or a third. */
static int64_t entries_of(const struct model_param *p, enum model_weight w)
{
    const int64_t all = pk_shape_count(&p->shape);

    if (p->weight == w)
        return all;
    return p->weight == MODEL_WEIGHT_QKV && w <= MODEL_WEIGHT_V ? all / 3 : 0;
}

static enum pd_err allocate(struct gradients *g, struct pd_why *why)
{
    const struct model *m = g->session->setup.model;
    const size_t size = pk_dtype_size(model_spec(m)->dtype);
    int64_t most = 0, largest = 0;

    for (int w = 0; w < MODEL_WEIGHTS; w++) {
        int64_t sum = 0;

        for (size_t i = 0; i < model_trained_count(m); i++) {
            sum += entries_of(model_param(m, i), (enum model_weight)w);
            if (pk_shape_count(&model_param(m, i)->shape) > largest)
                largest = pk_shape_count(&model_param(m, i)->shape);
        }
        most = sum > most ? sum : most;
        for (int k = 0; k < NUMBERS; k++)
            snprintf(g->keys[w][k].text, sizeof g->keys[w][k].text, "%s/%s", number_keys[k],
                     model_weight_name((enum model_weight)w));
    }
    if (!most)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/diagnostics/histograms: the network has none of these weights");
    g->pool = malloc((size_t)most * sizeof *g->pool);
    g->host = malloc((size_t)largest * size);
    return g->pool && g->host ? PD_OK
                              : pd_fail(why, PD_ERR_NOMEM, "no memory for distributions of gradients");
}

enum pd_err gradients_open(const struct session *s, struct model_store *store, struct gradients **ret,
                           struct pd_why *why)
{
    struct train_graph graph;
    struct gradients *g;
    enum pd_err err;

    *ret = NULL;
    if (!train_graph_find(&s->setup, TRAIN_GRAPH_GRADIENT, &graph))
        return PD_OK;
    g = calloc(1, sizeof *g);
    if (!g)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for distributions of gradients");
    g->session = s;
    pd_buf_init(&g->meta, 0);
    err = session_executable(s, &graph, store, NULL, &g->executable, why);
    if (err == PD_OK)
        err = allocate(g, why);
    if (err == PD_OK)
        *ret = g;
    else
        gradients_close(g);
    return err;
}

struct gradients *gradients_close(struct gradients *g)
{
    if (!g)
        return NULL;
    executable_done(&g->executable);
    pd_buf_done(&g->meta);
    free(g->pool);
    free(g->host);
    free(g);
    return NULL;
}

bool gradients_due(const struct gradients *g, int64_t step)
{
    const struct train_setup *setup = &g->session->setup;

    for (size_t i = 0; i < setup->histogram_count; i++)
        if (train_histogram_step(setup, i) == step)
            return true;
    return false;
}

/* ---- a gradient ---- */

/* Adds up the gradient of the batch's loss in the states, part by part. */
static enum pd_err add_up(struct gradients *g, int64_t step, struct pd_why *why)
{
    const struct session *s = g->session;
    const struct train_setup *setup = &s->setup;
    const int64_t parts = setup->batch / setup->options.batch;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err = data_loader_start(setup->set, DATA_TRAIN, setup->batch, (uint64_t)s->config->train.seed,
                                        step, 1, &l, why);

    if (err == PD_OK)
        err = data_loader_next(l, &b, why);
    for (int64_t part = 0; part < parts && err == PD_OK; part++) {
        const double first = part == 0;

        err = executable_feed_batch(&g->executable, b, part, why);
        if (err == PD_OK)
            err = executable_feed_numbers(&g->executable, "first", &first, 1, why);
        if (err == PD_OK)
            err = pk_exec_run(g->executable.exec, why);
    }
    data_loader_free(l);
    return err;
}

/* Targets of the batch: what the sums are divided by. */
static enum pd_err read_count(struct gradients *g, double *ret, struct pd_why *why)
{
    const bool wide = model_spec(g->session->setup.model)->dtype == PK_F64;
    double wides[MODEL_SUMS_MAX];
    float narrows[MODEL_SUMS_MAX];
    const size_t sums = model_loss_sums(g->session->setup.task->loss);
    enum pd_err err = g->session->api->download(g->session->backend, wide ? (void *)wides : (void *)narrows,
                                                executable_memory(&g->executable, "sum/loss"),
                                                sums * (wide ? sizeof *wides : sizeof *narrows), why);

    if (err == PD_OK)
        *ret = wide ? wides[1] : (double)narrows[1];
    return err;
}

/* Entry i of a downloaded gradient. */
static double entry(const struct gradients *g, int64_t i)
{
    return model_spec(g->session->setup.model)->dtype == PK_F64 ? ((const double *)g->host)[i]
                                                                : (double)((const float *)g->host)[i];
}

/* Appends weight w's entries of parameter i, over `by`, to `to`. Of W_Q | W_K | W_V a third: rows where matrices are
 * stored [out, in], else columns. */
static enum pd_err take(struct gradients *g, size_t i, enum model_weight w, double by, double *to,
                        struct pd_why *why)
{
    const struct session *s = g->session;
    const struct model_param *p = model_param(s->setup.model, i);
    const int64_t all = pk_shape_count(&p->shape), count = entries_of(p, w);
    const int64_t columns = p->shape.dim[p->shape.rank - 1], third = (int64_t)w - MODEL_WEIGHT_Q;
    char name[80];
    enum pd_err err;
    int64_t n = 0;

    snprintf(name, sizeof name, "sum/%s", p->name);
    err = s->api->download(s->backend, g->host, executable_memory(&g->executable, name),
                           (size_t)all * pk_dtype_size(model_spec(s->setup.model)->dtype), why);
    if (err != PD_OK)
        return err;
    if (count == all || p->transposed) {
        const int64_t from = count == all ? 0 : third * count;

        for (int64_t k = 0; k < count; k++)
            to[k] = entry(g, from + k) / by;
        return PD_OK;
    }
    for (int64_t row = 0; row < all / columns; row++)
        for (int64_t c = third * columns / 3; c < (third + 1) * columns / 3; c++)
            to[n++] = entry(g, row * columns + c) / by;
    return PD_OK;
}

/* ---- handing over ---- */

static void put_number(struct gradients *g, const char *name, double x)
{
    pd_json_key(&g->meta, name);
    if (isfinite(x))
        pd_json_num(&g->meta, x);
    else
        pd_json_null(&g->meta);
}

/* layer -1: all together. */
static enum pd_err hand_over(struct gradients *g, enum model_weight w, int layer, const struct tails *t,
                             struct pd_why *why)
{
    struct train_blob blob = {.kind = "histogram", .bytes = t->bin, .len = sizeof t->bin};
    char key[48];

    if (layer < 0)
        snprintf(key, sizeof key, "grad/histogram/%s", model_weight_name(w));
    else
        snprintf(key, sizeof key, "grad/histogram/%s/%d", model_weight_name(w), layer + 1);
    pd_buf_done(&g->meta);
    pd_buf_init(&g->meta, 0);
    pd_json_open(&g->meta, '{');
    pd_json_key(&g->meta, "shape");
    pd_json_open(&g->meta, '[');
    pd_json_int(&g->meta, TAILS_BINS);
    pd_json_close(&g->meta, ']');
    pd_json_kv_str(&g->meta, "dtype", "f64");
    pd_json_kv_bool(&g->meta, "log", true);
    pd_json_kv_num(&g->meta, "lo", pow(10, TAILS_LOW));
    pd_json_kv_num(&g->meta, "hi", pow(10, TAILS_HIGH));
    pd_json_kv_int(&g->meta, "count", t->count);
    pd_json_kv_int(&g->meta, "zeros", t->zeros);
    pd_json_kv_int(&g->meta, "below", t->below);
    pd_json_kv_int(&g->meta, "above", t->above);
    put_number(g, "rms", t->rms);
    put_number(g, "kurtosis", t->kurtosis);
    put_number(g, "hill", t->hill);
    put_number(g, "ratio", t->ratio);
    put_number(g, "top_share", t->share);
    pd_json_close(&g->meta, '}');
    if (pd_buf_err(&g->meta) != PD_OK)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a histogram");
    blob.key = key;
    blob.meta = g->meta.data;
    reporter_blob(g->session->reporter, &blob);
    return PD_OK;
}

/* One weight: of every layer, then of all. */
static enum pd_err one_weight(struct gradients *g, enum model_weight w, double by, struct pd_why *why)
{
    const struct model *m = g->session->setup.model;
    struct reporter *reporter = g->session->reporter;
    double least = HUGE_VAL, most = 0;
    int64_t n = 0;
    struct tails t;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_trained_count(m) && err == PD_OK; i++) {
        const struct model_param *p = model_param(m, i);
        const int64_t count = entries_of(p, w);

        if (!count)
            continue;
        err = take(g, i, w, by, g->pool + n, why);
        if (err == PD_OK) {
            tails_of(g->pool + n, count, &t);
            err = hand_over(g, w, p->layer, &t, why);
        }
        if (err == PD_OK) /* the statistics reorder what they are given and drop its signs */
            err = take(g, i, w, by, g->pool + n, why);
        n += count;
        least = t.rms < least ? t.rms : least;
        most = t.rms > most ? t.rms : most;
    }
    if (err != PD_OK || !n)
        return err;
    tails_of(g->pool, n, &t);
    err = hand_over(g, w, -1, &t, why);
    if (err == PD_OK) {
        const double number[NUMBERS] = {[KURTOSIS] = t.kurtosis,
                                        [HILL] = t.hill,
                                        [RATIO] = t.ratio,
                                        [SHARE] = t.share,
                                        [SPREAD] = isfinite(t.rms) && least > 0 ? most / least : (double)NAN};

        for (int k = 0; k < NUMBERS; k++)
            if (isfinite(number[k]))
                reporter_push(reporter, g->keys[w][k].text, number[k]);
    }
    return err;
}

enum pd_err gradients_run(struct gradients *g, int64_t step, struct pd_why *why)
{
    const struct train_setup *setup = &g->session->setup;
    double count = 1;
    enum pd_err err = add_up(g, step, why);

    if (err == PD_OK)
        err = read_count(g, &count, why);
    for (int w = 0; w < MODEL_WEIGHTS && err == PD_OK; w++)
        if (setup->histogram_weights & 1u << w)
            err = one_weight(g, (enum model_weight)w, count, why);
    return err;
}
