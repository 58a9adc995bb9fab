#include "tests/golden/rig.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/bf16.h"

/* ---- config ---- */

double golden_num(const struct golden *c, const char *key, double other)
{
    const json_t *j = json_object_get(c->config, key);

    return json_is_number(j) ? json_number_value(j) : other;
}

bool golden_flag(const struct golden *c, const char *key, bool other)
{
    const json_t *j = json_object_get(c->config, key);

    return json_is_boolean(j) ? json_is_true(j) : other;
}

const char *golden_text(const struct golden *c, const char *key, const char *other)
{
    const json_t *j = json_object_get(c->config, key);

    return json_is_string(j) ? json_string_value(j) : other;
}

/* ---- memory of a case ---- */

struct owned {
    struct owned *next;
    double data[];
};

static double *take(struct golden *c, size_t count)
{
    struct owned *o = malloc(sizeof *o + (count + 1) * sizeof(double));

    if (!o) {
        fprintf(stderr, "golden: no memory\n");
        exit(2);
    }
    o->next = c->owned;
    c->owned = o;
    return o->data;
}

static void release(struct golden *c)
{
    for (struct owned *o = c->owned, *next; o; o = next) {
        next = o->next;
        free(o);
    }
}

/* ---- comparing ---- */

void golden_fail(struct golden *c, const char *fmt, ...)
{
    va_list args;

    c->failed++;
    printf("  %s: ", c->file);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
}

const struct data_st_tensor *golden_find(const struct golden *c, const char *fmt, ...)
{
    char name[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return data_st_find(c->st, name);
}

double *golden_tensor(struct golden *c, size_t *ret_count, const char *fmt, ...)
{
    const struct data_st_tensor *t;
    char name[256];
    va_list args;
    double *to;

    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    t = data_st_find(c->st, name);
    if (!t) {
        golden_fail(c, "the file lacks '%s'", name);
        return NULL;
    }
    to = take(c, (size_t)t->count);
    if (t->dtype == DATA_ST_I64) {
        for (uint64_t i = 0; i < t->count; i++) {
            int64_t x;

            memcpy(&x, (const char *)t->data + 8 * i, 8);
            to[i] = (double)x;
        }
    } else if (t->dtype == DATA_ST_I32) {
        for (uint64_t i = 0; i < t->count; i++) {
            int32_t x;

            memcpy(&x, (const char *)t->data + 4 * i, 4);
            to[i] = x;
        }
    } else {
        struct pd_why why;

        if (data_st_read_f64(t, to, t->count, &why) != PD_OK) {
            golden_fail(c, "%s", why.text);
            return NULL;
        }
    }
    if (ret_count)
        *ret_count = (size_t)t->count;
    return to;
}

void golden_close(struct golden *c, const char *tensor, const double *got, const double *want, size_t count,
                  double rtol, double floor)
{
    double most = 0, worst = 0, limit;
    size_t at = 0;
    bool finite = true;

    c->compared++;
    for (size_t i = 0; i < count; i++) {
        double d = fabs(got[i] - want[i]);

        most = fmax(most, fabs(want[i]));
        finite &= isfinite(got[i]) != 0;
        if (!(d <= worst)) { /* a NaN sticks */
            worst = isnan(d) ? INFINITY : d;
            at = i;
        }
    }
    limit = gold_rtol(c->g, rtol) * fmax(most, floor);
    c->worst = fmax(c->worst, limit > 0 ? worst / limit : 0);
    if (!finite || worst > limit)
        golden_fail(c, "%s: off by %.3g, allowed %.3g (element %zu of %zu: %.9g, reference %.9g)%s", tensor,
                    worst, limit, at, count, got[at], want[at], finite ? "" : "; not all finite");
}

void golden_near(struct golden *c, const char *what, double got, double want, double limit)
{
    c->compared++;
    c->worst = fmax(c->worst, limit > 0 ? fabs(got - want) / limit : 0);
    if (!(fabs(got - want) <= limit))
        golden_fail(c, "%s: %.9g, reference %.9g, allowed +-%.3g", what, got, want, limit);
}

/* ---- rig ---- */

struct golden_rig {
    struct golden *c;
    struct pk_graph *g;
    struct pk_exec *e;
    void **memory;
    size_t leaves;
};

struct golden_rig *golden_rig_new(struct golden *c, struct pk_graph *g)
{
    struct golden_rig *r = calloc(1, sizeof *r);
    struct pd_why why = {""};
    enum pd_err err;

    r->c = c;
    r->g = g;
    if (gold_bf16())
        pk_graph_precision(g, PK_PRECISION_MIXED);
    err = pk_graph_check(g, &why);
    if (err == PD_OK)
        err = pk_exec_new(g, c->api, c->backend, &r->e, &why);
    r->leaves = pk_graph_leaf_count(g);
    r->memory = calloc(r->leaves + 1, sizeof *r->memory);
    for (size_t i = 0; i < r->leaves && err == PD_OK; i++) {
        struct pk_leaf leaf = pk_graph_leaf(g, i);
        void *zero = calloc(1, leaf.bytes + 1);

        r->memory[i] = c->api->alloc(c->backend, leaf.bytes);
        err = c->api->upload(c->backend, r->memory[i], zero, leaf.bytes, &why);
        free(zero);
        if (err == PD_OK)
            err = pk_exec_bind(r->e, leaf.name, r->memory[i], &why);
    }
    if (err == PD_OK)
        return r;
    golden_fail(c, "graph: %s", why.text);
    return golden_rig_free(r);
}

struct golden_rig *golden_rig_free(struct golden_rig *r)
{
    if (r) {
        for (size_t i = 0; i < r->leaves; i++)
            if (r->memory[i])
                r->c->api->free(r->c->backend, r->memory[i]);
        free(r->memory);
        pk_exec_free(r->e);
        pk_graph_free(r->g);
        free(r);
    }
    return NULL;
}

static size_t leaf_at(struct golden_rig *r, const char *name)
{
    size_t i = 0;

    while (i < r->leaves && strcmp(pk_graph_leaf(r->g, i).name, name))
        i++;
    if (i == r->leaves)
        golden_fail(r->c, "the graph has no leaf '%s'", name);
    return i;
}

void golden_rig_put(struct golden_rig *r, const char *name, const double *from, size_t count)
{
    size_t i = leaf_at(r, name);
    struct pk_leaf leaf;
    struct pd_why why;
    void *host;

    if (i == r->leaves || !from)
        return;
    leaf = pk_graph_leaf(r->g, i);
    if (pk_shape_count(&leaf.shape) != (int64_t)count) {
        golden_fail(r->c, "'%s' has %zu numbers, the graph wants %lld", name, count,
                    (long long)pk_shape_count(&leaf.shape));
        return;
    }
    host = malloc(leaf.bytes + 1);
    for (size_t k = 0; k < count; k++)
        switch (leaf.dtype) {
        case PK_F64:
            ((double *)host)[k] = from[k];
            break;
        case PK_I32:
            ((int32_t *)host)[k] = (int32_t)from[k];
            break;
        case PK_U8:
            ((uint8_t *)host)[k] = (uint8_t)from[k];
            break;
        default:
            ((float *)host)[k] = (float)from[k];
            break;
        }
    if (r->c->api->upload(r->c->backend, r->memory[i], host, leaf.bytes, &why) != PD_OK)
        golden_fail(r->c, "'%s': %s", name, why.text);
    free(host);
}

bool golden_rig_run(struct golden_rig *r)
{
    struct pd_why why;

    if (pk_exec_run(r->e, &why) == PD_OK)
        return true;
    golden_fail(r->c, "run: %s", why.text);
    return false;
}

static double *widen(struct golden *c, const void *host, size_t bytes, size_t size, size_t *ret_count)
{
    size_t count = bytes / size;
    double *to = take(c, count);

    for (size_t k = 0; k < count; k++)
        to[k] = size == 8 ? ((const double *)host)[k] : (double)((const float *)host)[k];
    if (ret_count)
        *ret_count = count;
    return to;
}

double *golden_rig_output(struct golden_rig *r, const char *name, size_t *ret_count)
{
    struct pk_shape shape;
    struct pd_why why;
    double *to = NULL;
    size_t count;
    float *host;

    if (!pk_exec_output(r->e, name, &shape)) {
        golden_fail(r->c, "the graph has no output '%s'", name);
        return NULL;
    }
    /* Modules here compute in f32; an f64 graph is read as doubles by asking for twice the bytes. */
    count = (size_t)pk_shape_count(&shape);
    host = malloc(count * sizeof(double) + 1);
    if (pk_exec_read(r->e, name, host, count * sizeof(float), &why) == PD_OK)
        to = widen(r->c, host, count * sizeof(float), sizeof(float), ret_count);
    else if (pk_exec_read(r->e, name, host, count * sizeof(double), &why) == PD_OK)
        to = widen(r->c, host, count * sizeof(double), sizeof(double), ret_count);
    else
        golden_fail(r->c, "'%s': %s", name, why.text);
    free(host);
    return to;
}

double *golden_rig_leaf(struct golden_rig *r, const char *name, size_t *ret_count)
{
    size_t i = leaf_at(r, name);
    struct pk_leaf leaf;
    struct pd_why why;
    double *to = NULL;
    void *host;

    if (i == r->leaves)
        return NULL;
    leaf = pk_graph_leaf(r->g, i);
    host = malloc(leaf.bytes + 1);
    if (r->c->api->download(r->c->backend, host, r->memory[i], leaf.bytes, &why) == PD_OK)
        to = widen(r->c, host, leaf.bytes, pk_dtype_size(leaf.dtype), ret_count);
    else
        golden_fail(r->c, "'%s': %s", name, why.text);
    free(host);
    return to;
}

/* ---- cases ---- */

void golden_case(struct gold *g, bool (*fn)(struct golden *c))
{
    struct golden c = {
        .g = g, .file = g->path, .st = g->st, .config = g->config, .api = g->api, .backend = g->backend};

    if (!fn(&c))
        golden_fail(&c, "a case that no module knows");
    g->compared += c.compared;
    g->failed += c.failed;
    g->worst = fmax(g->worst, c.worst);
    release(&c);
}
