/* daemon/worker/model/store.c: the memory that holds a model's parameters, shared by its graphs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/net.h"

struct model_store {
    const struct model *m;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    void **data;
};

static size_t bytes_of(const struct model_store *s, size_t i)
{
    return (size_t)pk_shape_count(&s->m->param[i].shape) * pk_dtype_size(model_param_dtype(s->m, i));
}

/* To bf16, to nearest, ties to even. */
static void round_all(const void *from, uint16_t *to, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        uint32_t bits;

        memcpy(&bits, (const char *)from + 4 * k, sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000) /* a NaN stays one */
            bits |= 0x400000;
        else
            bits += 0x7fff + (bits >> 16 & 1);
        to[k] = (uint16_t)(bits >> 16);
    }
}

/* Uploads values of the model's dtype; where the parameter is held in bf16 they are rounded to nearest, ties
 * to even. */
static enum pd_err upload(struct model_store *s, size_t i, const void *host, struct pd_why *why)
{
    size_t count = (size_t)pk_shape_count(&s->m->param[i].shape);
    uint16_t *half;
    enum pd_err err;

    if (model_param_dtype(s->m, i) == s->m->spec.dtype)
        return s->api->upload(s->backend, s->data[i], host, bytes_of(s, i), why);
    half = malloc(count * sizeof *half + 1);
    if (!half)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", s->m->param[i].name);
    round_all(host, half, count);
    err = s->api->upload(s->backend, s->data[i], half, bytes_of(s, i), why);
    free(half);
    return err;
}

enum pd_err model_store_new(const struct model *m, const struct pk_backend_api *api,
                            struct pk_backend *backend, struct model_store **ret, struct pd_why *why)
{
    struct model_store *s = calloc(1, sizeof *s);
    void *zero = NULL;
    enum pd_err err = PD_OK;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for parameters");
    s->m = m;
    s->api = api;
    s->backend = backend;
    s->data = calloc(m->count, sizeof *s->data);
    if (!s->data) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for parameters");
        goto out;
    }
    for (size_t i = 0; i < m->count && err == PD_OK; i++) {
        s->data[i] = api->alloc(backend, bytes_of(s, i));
        zero = calloc(1, bytes_of(s, i));
        if (!s->data[i] || !zero)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s' (%zu bytes)", m->param[i].name,
                          bytes_of(s, i));
        else
            err = api->upload(backend, s->data[i], zero, bytes_of(s, i), why);
        free(zero);
    }
out:
    if (err == PD_OK)
        *ret = s;
    else
        model_store_free(s);
    return err;
}

struct model_store *model_store_free(struct model_store *s)
{
    if (s) {
        for (size_t i = 0; s->data && i < s->m->count; i++)
            if (s->data[i])
                s->api->free(s->backend, s->data[i]);
        free(s->data);
        free(s);
    }
    return NULL;
}

enum pd_err model_store_init(struct model_store *s, uint64_t seed, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < s->m->count && err == PD_OK; i++) {
        void *host = malloc((size_t)pk_shape_count(&s->m->param[i].shape) * pk_dtype_size(s->m->spec.dtype));

        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", s->m->param[i].name);
        err = model_param_init(s->m, i, seed, host, why);
        if (err == PD_OK)
            err = upload(s, i, host, why);
        free(host);
    }
    return err;
}

static enum pd_err put(void *user, size_t i, const void *data, size_t bytes, struct pd_why *why)
{
    (void)bytes;
    return upload(user, i, data, why);
}

enum pd_err model_store_set(struct model_store *s, size_t i, const struct data_st_tensor *t,
                            struct pd_why *why)
{
    const bool wide = s->m->spec.dtype == PK_F64;
    uint64_t count = (uint64_t)pk_shape_count(&s->m->param[i].shape);
    void *host = malloc((size_t)count * sizeof(double) + 1);
    enum pd_err err = PD_OK;

    if (!host)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", s->m->param[i].name);
    err = wide ? data_st_read_f64(t, host, count, why) : data_st_read_f32(t, host, count, why);
    if (err == PD_OK)
        err = upload(s, i, host, why);
    free(host);
    return err;
}

enum pd_err model_store_read(struct model_store *s, const struct data_st *st, struct pd_why *why)
{
    return model_params_read(s->m, st, false, put, s, why);
}

enum pd_err model_store_read_averages(struct model_store *s, const struct data_st *st, struct pd_why *why)
{
    return model_params_read(s->m, st, true, put, s, why);
}

enum pd_err model_store_read_served(struct model_store *s, const struct data_st *st, struct pd_why *why)
{
    const char *what = data_st_meta(st, "polyd.serve");

    return model_params_read(s->m, st, what && !strcmp(what, "ema"), put, s, why);
}

enum pd_err model_store_bind(const struct model_store *s, struct pk_exec *exec, const struct pk_graph *graph,
                             struct pd_why *why)
{
    size_t leaves = pk_graph_leaf_count(graph);

    for (size_t k = 0; k < leaves; k++) {
        struct pk_leaf leaf = pk_graph_leaf(graph, k);
        size_t i = 0;
        enum pd_err err;

        if (leaf.kind != PK_OP_PARAM)
            continue;
        while (i < s->m->count && strcmp(s->m->param[i].name, leaf.name))
            i++;
        if (i == s->m->count)
            return pd_fail(why, PD_ERR_INTERNAL, "the graph's parameter '%s' does not belong to the model",
                           leaf.name);
        err = pk_exec_bind(exec, leaf.name, s->data[i], why);
        if (err != PD_OK)
            return err;
    }
    return PD_OK;
}

enum pd_err model_store_bind_teacher(const struct model_store *s, struct pk_exec *exec,
                                     const struct pk_graph *graph, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < s->m->count && err == PD_OK; i++) {
        char name[80];

        model_teacher_name(s->m, i, name, sizeof name);
        for (size_t k = 0; k < pk_graph_leaf_count(graph) && err == PD_OK; k++)
            if (!strcmp(pk_graph_leaf(graph, k).name, name))
                err = pk_exec_bind(exec, name, s->data[i], why);
    }
    return err;
}

void model_copy_name(const struct model *m, size_t i, char *out, size_t size)
{
    snprintf(out, size, "half/%s", m->param[i].name);
}

enum pd_err model_store_round(const struct model_store *s, size_t i, void *copy, struct pd_why *why)
{
    size_t count = (size_t)pk_shape_count(&s->m->param[i].shape);
    float *full = malloc(count * sizeof *full + 1);
    uint16_t *half = malloc(count * sizeof *half + 1);
    enum pd_err err = PD_OK;

    assert(model_param_dtype(s->m, i) == PK_F32);
    if (!full || !half)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", s->m->param[i].name);
    if (err == PD_OK)
        err = s->api->sync(s->backend, why);
    if (err == PD_OK)
        err = s->api->download(s->backend, full, s->data[i], count * sizeof *full, why);
    if (err == PD_OK) {
        round_all(full, half, count);
        err = s->api->upload(s->backend, copy, half, count * sizeof *half, why);
    }
    free(full);
    free(half);
    return err;
}

void *model_store_data(const struct model_store *s, size_t i)
{
    return s->data[i];
}
