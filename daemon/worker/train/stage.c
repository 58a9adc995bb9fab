/* daemon/worker/train/stage.c: a planned graph with its memory, and the numbers that go in and come out. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/run.h"

void train_stage_done(struct run *r, struct stage *s)
{
    for (size_t i = 0; s->memory && i < s->leaves; i++)
        if (s->memory[i])
            r->api->free(r->backend, s->memory[i]);
    free(s->memory);
    s->memory = NULL;
    s->exec = pk_exec_free(s->exec);
    s->graph = pk_graph_free(s->graph);
}

static size_t leaf_index(const struct stage *s, const char *name)
{
    for (size_t i = 0; i < s->leaves; i++)
        if (!strcmp(pk_graph_leaf(s->graph, i).name, name))
            return i;
    return s->leaves;
}

void *train_stage_memory(const struct stage *s, const char *name)
{
    size_t i = leaf_index(s, name);

    return i < s->leaves ? s->memory[i] : NULL;
}

enum pd_err train_stage_init(struct run *r, struct stage *s, const struct stage *with, struct pd_why *why)
{
    enum pd_err err = pk_exec_new(s->graph, r->api, r->backend, &s->exec, why);

    if (err != PD_OK)
        return err;
    s->leaves = pk_graph_leaf_count(s->graph);
    s->memory = calloc(s->leaves + 1, sizeof *s->memory);
    if (!s->memory)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    err = model_store_bind(r->store, s->exec, s->graph, why);
    for (size_t i = 0; i < s->leaves && err == PD_OK; i++) {
        struct pk_leaf leaf = pk_graph_leaf(s->graph, i);
        void *zero;

        if (leaf.kind == PK_OP_PARAM)
            continue;
        if (with && leaf.kind == PK_OP_STATE && train_stage_memory(with, leaf.name)) {
            err = pk_exec_bind(s->exec, leaf.name, train_stage_memory(with, leaf.name), why);
            continue;
        }
        s->memory[i] = r->api->alloc(r->backend, leaf.bytes);
        zero = calloc(1, leaf.bytes + 1);
        if (!s->memory[i] || !zero)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s' (%zu bytes)", leaf.name, leaf.bytes);
        else
            err = r->api->upload(r->backend, s->memory[i], zero, leaf.bytes, why);
        free(zero);
        if (err == PD_OK)
            err = pk_exec_bind(s->exec, leaf.name, s->memory[i], why);
    }
    return err;
}

/* Copies part `part` of a tensor to the input of its name; f32 is widened where the graph computes in f64. A
 * leaf that the graph does not have (a probe needs no target) is no error. */
static enum pd_err feed(struct run *r, struct stage *s, const struct data_tensor *t, int64_t part,
                        struct pd_why *why)
{
    size_t i = leaf_index(s, t->name);
    int64_t count;
    const void *from;
    struct pk_leaf leaf;

    if (i == s->leaves)
        return PD_OK;
    leaf = pk_graph_leaf(s->graph, i);
    count = pk_shape_count(&leaf.shape);
    if ((part + 1) * count > pk_shape_count(&t->shape))
        return pd_fail(why, PD_ERR_INTERNAL, "input '%s' has %lld elements, part %lld of the batch has less",
                       t->name, (long long)count, (long long)part);
    from = (const char *)t->data + (size_t)(part * count) * pk_dtype_size(t->dtype);
    if (leaf.dtype == PK_F64 && t->dtype == PK_F32) {
        double *wide = malloc(leaf.bytes);
        enum pd_err err;

        if (!wide)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", t->name);
        for (int64_t k = 0; k < count; k++)
            wide[k] = ((const float *)from)[k];
        err = r->api->upload(r->backend, s->memory[i], wide, leaf.bytes, why);
        free(wide);
        return err;
    }
    if (leaf.dtype != t->dtype)
        return pd_fail(why, PD_ERR_INTERNAL, "input '%s' is %s, the batch has %s", t->name,
                       pk_dtype_name(leaf.dtype), pk_dtype_name(t->dtype));
    return r->api->upload(r->backend, s->memory[i], from, leaf.bytes, why);
}

enum pd_err train_feed_hyper(struct run *r, const double hyper[4], struct pd_why *why)
{
    size_t i = leaf_index(&r->train, "hyper");
    float narrow[4] = {(float)hyper[0], (float)hyper[1], (float)hyper[2], (float)hyper[3]};
    bool wide = model_spec(r->setup.model)->dtype == PK_F64;

    return r->api->upload(r->backend, r->train.memory[i], wide ? (const void *)hyper : narrow,
                          wide ? 4 * sizeof *hyper : sizeof narrow, why);
}

enum pd_err train_feed_rng(struct run *r, struct stage *s, uint64_t seed, uint32_t draw, struct pd_why *why)
{
    /* the last is read where ranks draw for a whole batch */
    const uint32_t rng[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), draw, (uint32_t)r->setup.rank};
    const struct data_tensor t = {.name = "rng", .dtype = PK_I32, .shape = PK_SHAPE(4), .data = rng};

    return feed(r, s, &t, 0, why);
}

enum pd_err train_feed_number(struct run *r, struct stage *s, const char *name, double x, struct pd_why *why)
{
    const float narrow = (float)x;
    const struct data_tensor t = {.name = name, .dtype = PK_F32, .shape = PK_SHAPE(1), .data = &narrow};

    return feed(r, s, &t, 0, why);
}

/* Piece `part` of the slot of the step in progress, to the inputs that the stage has. */
static enum pd_err take_slot(struct run *r, struct stage *s, int64_t part, struct pd_why *why)
{
    struct pk_take take[DATA_TENSORS_MAX];
    size_t n = 0;

    for (size_t k = 0; k < r->slot_parts; k++) {
        size_t i = leaf_index(s, r->slot_part[k].name), bytes;

        if (i == s->leaves)
            continue;
        bytes = pk_graph_leaf(s->graph, i).bytes;
        take[n++] = (struct pk_take){
            .to = s->memory[i], .offset = r->slot_part[k].offset + (size_t)part * bytes, .bytes = bytes};
    }
    return r->api->slot_take(r->backend, r->slot[r->slot_at], take, n, why);
}

enum pd_err train_feed_batch(struct run *r, struct stage *s, const struct data_batch *b, int64_t part,
                             struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (b == &r->slot_batch)
        return take_slot(r, s, part, why);
    for (int i = 0; i < b->count && err == PD_OK; i++)
        err = feed(r, s, &b->tensor[i], part, why);
    return err;
}

/* ---- batches that travel beside a step ---- */

static size_t tensor_bytes(const struct data_tensor *t)
{
    return (size_t)pk_shape_count(&t->shape) * pk_dtype_size(t->dtype);
}

enum pd_err train_slots_open(struct run *r, struct pd_why *why)
{
    const struct stage *s = r->parts > 1 ? &r->part : &r->train;
    struct data_batch form;
    size_t bytes = 0;
    enum pd_err err = PD_OK;

    if (r->api->host_memory)
        return PD_OK;
    data_batch_form(r->setup.set, r->setup.batch / r->setup.ranks, &form);
    for (int k = 0; k < form.count; k++) {
        const struct data_tensor *t = &form.tensor[k];
        size_t i = leaf_index(s, t->name);

        if (i == s->leaves)
            continue;
        if (pk_graph_leaf(s->graph, i).bytes * (size_t)r->parts != tensor_bytes(t))
            return pd_fail(why, PD_ERR_INTERNAL, "input '%s' is not the batch's tensor of that name",
                           t->name);
        bytes = (bytes + 255) & ~(size_t)255;
        r->slot_part[r->slot_parts].name = t->name;
        r->slot_part[r->slot_parts++].offset = bytes;
        bytes += tensor_bytes(t);
    }
    for (int i = 0; i < 2 && err == PD_OK; i++)
        err = r->api->slot_new(r->backend, bytes, &r->slot[i], why);
    return err;
}

void train_slots_close(struct run *r)
{
    for (int i = 0; i < 2; i++)
        if (r->slot[i])
            r->slot[i] = r->api->slot_free(r->backend, r->slot[i]);
}

/* The next batch into the slot that is not in use, and off. */
static enum pd_err send(struct run *r, struct pd_why *why)
{
    struct pk_slot *slot = r->slot[!r->slot_at];
    const struct data_batch *b;
    char *to = r->api->slot_host(slot);
    enum pd_err err = data_loader_next(r->loader, &b, why);

    if (err == PD_OK)
        err = r->api->slot_wait(r->backend, slot, why);
    if (err != PD_OK)
        return err;
    for (size_t k = 0; k < r->slot_parts; k++) {
        const struct data_tensor *t = data_batch_find(b, r->slot_part[k].name);

        memcpy(to + r->slot_part[k].offset, t->data, tensor_bytes(t));
    }
    err = r->api->slot_send(r->backend, slot, why);
    r->slot_sent = err == PD_OK;
    return err;
}

enum pd_err train_next_batch(struct run *r, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (!r->slot[0])
        return data_loader_next(r->loader, &r->batch, why);
    if (!r->slot_sent)
        err = send(r, why);
    if (err != PD_OK)
        return err;
    r->slot_at = !r->slot_at;
    r->slot_sent = false;
    r->batch = &r->slot_batch;
    return PD_OK;
}

void train_send_next(struct run *r)
{
    struct pd_why why;

    if (r->slot[0] && !r->slot_sent && r->state.step + 1 < r->setup.steps)
        (void)send(r, &why);
}

/* Reads `count` numbers of an output as double. */
enum pd_err train_number(struct run *r, struct stage *s, const char *name, double *to, size_t count,
                         struct pd_why *why)
{
    float narrow[64];
    enum pd_err err = PD_OK;

    if (model_spec(r->setup.model)->dtype == PK_F64)
        return pk_exec_read(s->exec, name, to, count * sizeof *to, why);
    if (count <= 64) {
        err = pk_exec_read(s->exec, name, narrow, count * sizeof *narrow, why);
        for (size_t i = 0; err == PD_OK && i < count; i++)
            to[i] = narrow[i];
    } else {
        float *f = malloc(count * sizeof *f);

        if (!f)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
        err = pk_exec_read(s->exec, name, f, count * sizeof *f, why);
        for (size_t i = 0; err == PD_OK && i < count; i++)
            to[i] = f[i];
        free(f);
    }
    return err;
}
