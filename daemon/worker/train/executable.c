/* daemon/worker/train/executable.c: see executable.h. */
#include "daemon/worker/train/executable.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void executable_done(struct executable *e)
{
    for (size_t i = 0; e->memory && i < e->leaves; i++)
        if (e->memory[i])
            e->api->free(e->backend, e->memory[i]);
    free(e->memory);
    e->memory = NULL;
    e->exec = pk_exec_free(e->exec);
    e->graph = pk_graph_free(e->graph);
}

static size_t leaf_index(const struct executable *e, const char *name)
{
    for (size_t i = 0; i < e->leaves; i++)
        if (!strcmp(pk_graph_leaf(e->graph, i).name, name))
            return i;
    return e->leaves;
}

bool executable_leaf(const struct executable *e, size_t i, struct pk_leaf *ret, void **ret_memory)
{
    if (i >= e->leaves)
        return false;
    *ret = pk_graph_leaf(e->graph, i);
    *ret_memory = e->memory[i];
    return true;
}

bool executable_find(const struct executable *e, const char *name, struct pk_leaf *ret, void **ret_memory)
{
    return executable_leaf(e, leaf_index(e, name), ret, ret_memory);
}

void *executable_memory(const struct executable *e, const char *name)
{
    size_t i = leaf_index(e, name);

    return i < e->leaves ? e->memory[i] : NULL;
}

/* Memory for leaf i, zeroed, or that of the executable which has the same state. Parameters and a teacher are
 * bound by their stores. */
static enum pd_err place_leaf(struct executable *e, size_t i, const struct executable_place *place,
                              struct pd_why *why)
{
    const struct executable *with = place->with;
    const struct pk_leaf leaf = pk_graph_leaf(e->graph, i);
    enum pd_err err;
    void *zero;

    if (leaf.kind == PK_OP_PARAM || (place->teacher && model_teacher_named(leaf.name)))
        return PD_OK;
    if (with && leaf.kind == PK_OP_STATE && executable_memory(with, leaf.name))
        return pk_exec_bind(e->exec, leaf.name, executable_memory(with, leaf.name), why);
    e->memory[i] = e->api->alloc(e->backend, leaf.bytes);
    zero = calloc(1, leaf.bytes + 1);
    if (!e->memory[i] || !zero)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s' (%zu bytes)", leaf.name, leaf.bytes);
    else
        err = e->api->upload(e->backend, e->memory[i], zero, leaf.bytes, why);
    free(zero);
    return err == PD_OK ? pk_exec_bind(e->exec, leaf.name, e->memory[i], why) : err;
}

enum pd_err executable_init(struct executable *e, struct pk_graph *graph,
                            const struct executable_place *place, struct pd_why *why)
{
    enum pd_err err;

    memset(e, 0, sizeof *e);
    e->api = place->api;
    e->backend = place->backend;
    e->wide = place->wide;
    e->graph = graph;
    err = pk_exec_new_in(graph, e->api, e->backend, place->arena, &e->exec, why);
    if (err != PD_OK)
        return err;
    e->leaves = pk_graph_leaf_count(graph);
    e->memory = calloc(e->leaves + 1, sizeof *e->memory);
    if (!e->memory)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    if (place->store)
        err = model_store_bind(place->store, e->exec, graph, why);
    if (err == PD_OK && place->teacher)
        err = model_store_bind_teacher(place->teacher, e->exec, graph, why);
    for (size_t i = 0; i < e->leaves && err == PD_OK; i++)
        err = place_leaf(e, i, place, why);
    return err;
}

/* ---- inputs ---- */

/* Copies part `part` of a tensor to the input of its name; f32 is widened where the graph computes in f64. */
static enum pd_err feed(struct executable *e, const struct data_tensor *t, int64_t part, struct pd_why *why)
{
    size_t i = leaf_index(e, t->name);
    int64_t count;
    const void *from;
    struct pk_leaf leaf;

    if (i == e->leaves)
        return PD_OK;
    leaf = pk_graph_leaf(e->graph, i);
    count = pk_shape_count(&leaf.shape);
    if ((part + 1) * count > pk_shape_count(&t->shape))
        return pd_fail(why, PD_ERR_INTERNAL, "input '%s' has %lld elements, part %lld of the batch has fewer",
                       t->name, (long long)count, (long long)part);
    from = (const char *)t->data + (size_t)(part * count) * pk_dtype_size(t->dtype);
    if (leaf.dtype == PK_F64 && t->dtype == PK_F32) {
        double *wide = malloc(leaf.bytes);
        enum pd_err err;

        if (!wide)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", t->name);
        for (int64_t k = 0; k < count; k++)
            wide[k] = ((const float *)from)[k];
        err = e->api->upload(e->backend, e->memory[i], wide, leaf.bytes, why);
        free(wide);
        return err;
    }
    if (leaf.dtype != t->dtype)
        return pd_fail(why, PD_ERR_INTERNAL, "input '%s' is %s, the batch has %s", t->name,
                       pk_dtype_name(leaf.dtype), pk_dtype_name(t->dtype));
    return e->api->upload(e->backend, e->memory[i], from, leaf.bytes, why);
}

enum pd_err executable_feed_batch(struct executable *e, const struct data_batch *b, int64_t part,
                                  struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (int i = 0; i < b->count && err == PD_OK; i++)
        err = feed(e, &b->tensor[i], part, why);
    return err;
}

enum pd_err executable_feed_numbers(struct executable *e, const char *name, const double *x, size_t count,
                                    struct pd_why *why)
{
    float narrow[EXECUTABLE_NUMBERS_MAX];
    const size_t i = leaf_index(e, name);
    struct pk_leaf leaf;
    bool wide;

    if (i == e->leaves)
        return PD_OK;
    leaf = pk_graph_leaf(e->graph, i);
    wide = leaf.dtype == PK_F64;
    assert(count <= EXECUTABLE_NUMBERS_MAX && leaf.bytes == count * (wide ? sizeof *x : sizeof *narrow));
    for (size_t k = 0; k < count; k++)
        narrow[k] = (float)x[k];
    return e->api->upload(e->backend, e->memory[i], wide ? (const void *)x : narrow, leaf.bytes, why);
}

enum pd_err executable_feed_rng(struct executable *e, uint64_t seed, uint32_t draw, int rank,
                                struct pd_why *why)
{
    const uint32_t rng[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), draw, (uint32_t)rank};
    const struct data_tensor t = {.name = "rng", .dtype = PK_I32, .shape = PK_SHAPE(4), .data = rng};

    return feed(e, &t, 0, why);
}

bool executable_output(struct executable *e, const char *name, struct pk_shape *ret_shape)
{
    return pk_exec_output(e->exec, name, ret_shape) != NULL;
}

enum pd_err executable_read(struct executable *e, const char *name, double *to, size_t count,
                            struct pd_why *why)
{
    float few[64], *narrow = few;
    enum pd_err err;

    if (e->wide)
        return pk_exec_read(e->exec, name, to, count * sizeof *to, why);
    if (count > sizeof few / sizeof *few)
        narrow = malloc(count * sizeof *narrow);
    if (!narrow)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
    err = pk_exec_read(e->exec, name, narrow, count * sizeof *narrow, why);
    for (size_t i = 0; err == PD_OK && i < count; i++)
        to[i] = narrow[i];
    if (narrow != few)
        free(narrow);
    return err;
}

enum pd_err executable_read_later(struct executable *e, const char *name, int place, size_t count,
                                  struct pd_why *why)
{
    return pk_exec_read_later(e->exec, name, place, count * (e->wide ? sizeof(double) : sizeof(float)), why);
}

enum pd_err executable_read_wait(struct executable *e, int place, double *to, size_t count,
                                 struct pd_why *why)
{
    float narrow[EXECUTABLE_LATER_MAX];
    enum pd_err err;

    assert(count <= EXECUTABLE_LATER_MAX);
    if (e->wide)
        return pk_exec_read_wait(e->exec, place, to, count * sizeof *to, why);
    err = pk_exec_read_wait(e->exec, place, narrow, count * sizeof *narrow, why);
    for (size_t i = 0; err == PD_OK && i < count; i++)
        to[i] = narrow[i];
    return err;
}
