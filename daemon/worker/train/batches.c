/* daemon/worker/train/batches.c: see batches.h. */
#include "daemon/worker/train/batches.h"

#include <stdlib.h>
#include <string.h>

struct batches {
    const struct session *session;
    struct data_loader *loader;
    const struct data_batch *at; /* of the step in progress, where it is uploaded */
    struct pk_slot *slot[2];     /* in turn; NULL: batches are uploaded */
    int in_use;                  /* slot of the step in progress */
    bool sent;                   /* the other one has the next batch */
    struct {
        const char *name; /* of the input */
        size_t offset;
    } piece[DATA_TENSORS_MAX]; /* of a slot */
    size_t piece_count;
};

static size_t tensor_bytes(const struct data_tensor *t)
{
    return (size_t)pk_shape_count(&t->shape) * pk_dtype_size(t->dtype);
}

static enum pd_err open_slots(struct batches *b, const struct executable *reader, struct pd_why *why)
{
    const struct train_setup *setup = &b->session->setup;
    const struct pk_backend_api *api = b->session->api;
    struct data_batch form;
    size_t bytes = 0;
    enum pd_err err = PD_OK;

    if (api->host_memory)
        return PD_OK;
    data_batch_form(setup->set, DATA_TRAIN, setup->batch / setup->ranks, &form);
    for (int k = 0; k < form.count; k++) {
        const struct data_tensor *t = &form.tensor[k];
        struct pk_leaf leaf;
        void *memory;

        if (!executable_find(reader, t->name, &leaf, &memory))
            continue;
        if (leaf.bytes * (size_t)setup->parts != tensor_bytes(t))
            return pd_fail(why, PD_ERR_INTERNAL, "input '%s' is not the batch's tensor of that name",
                           t->name);
        bytes = (bytes + 255) & ~(size_t)255;
        b->piece[b->piece_count].name = t->name;
        b->piece[b->piece_count++].offset = bytes;
        bytes += tensor_bytes(t);
    }
    for (int i = 0; i < 2 && err == PD_OK; i++)
        err = api->slot_new(b->session->backend, bytes, &b->slot[i], why);
    return err;
}

enum pd_err batches_open(const struct session *s, const struct executable *reader, int64_t first,
                         struct batches **ret, struct pd_why *why)
{
    const struct train_setup *setup = &s->setup;
    const struct data_share share = {
        .whole = setup->batch, .parts = (int32_t)setup->parts, .rank = setup->rank, .ranks = setup->ranks};
    struct batches *b = calloc(1, sizeof *b);
    enum pd_err err;

    if (!b)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for batches");
    b->session = s;
    err = open_slots(b, reader, why);
    if (err == PD_OK)
        err = data_loader_start_share(setup->set, DATA_TRAIN, &share, (uint64_t)s->config->train.seed, first,
                                      setup->loader_threads, &b->loader, why);
    if (err == PD_OK)
        *ret = b;
    else
        batches_close(b);
    return err;
}

struct batches *batches_close(struct batches *b)
{
    if (!b)
        return NULL;
    data_loader_free(b->loader);
    for (int i = 0; i < 2; i++)
        if (b->slot[i])
            b->session->api->slot_free(b->session->backend, b->slot[i]);
    free(b);
    return NULL;
}

/* The next batch into the slot that is not in use, and off. */
static enum pd_err send(struct batches *b, struct pd_why *why)
{
    const struct session *s = b->session;
    struct pk_slot *slot = b->slot[!b->in_use];
    const struct data_batch *from;
    char *to = s->api->slot_host(slot);
    enum pd_err err = data_loader_next(b->loader, &from, why);

    if (err == PD_OK)
        err = s->api->slot_wait(s->backend, slot, why);
    if (err != PD_OK)
        return err;
    for (size_t k = 0; k < b->piece_count; k++) {
        const struct data_tensor *t = data_batch_find(from, b->piece[k].name);

        memcpy(to + b->piece[k].offset, t->data, tensor_bytes(t));
    }
    err = s->api->slot_send(s->backend, slot, why);
    b->sent = err == PD_OK;
    return err;
}

enum pd_err batches_next(struct batches *b, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (!b->slot[0])
        return data_loader_next(b->loader, &b->at, why);
    if (!b->sent)
        err = send(b, why);
    if (err != PD_OK)
        return err;
    b->in_use = !b->in_use;
    b->sent = false;
    return PD_OK;
}

/* Part `part` of the slot in use, to the inputs that `e` has. */
static enum pd_err take_slot(struct batches *b, struct executable *e, int64_t part, struct pd_why *why)
{
    struct pk_take take[DATA_TENSORS_MAX];
    size_t n = 0;

    for (size_t k = 0; k < b->piece_count; k++) {
        struct pk_leaf leaf;
        void *memory;

        if (executable_find(e, b->piece[k].name, &leaf, &memory))
            take[n++] = (struct pk_take){
                .to = memory, .offset = b->piece[k].offset + (size_t)part * leaf.bytes, .bytes = leaf.bytes};
    }
    return b->session->api->slot_take(b->session->backend, b->slot[b->in_use], take, n, why);
}

enum pd_err batches_feed(struct batches *b, struct executable *e, int64_t part, struct pd_why *why)
{
    return b->slot[0] ? take_slot(b, e, part, why) : executable_feed_batch(e, b->at, part, why);
}

void batches_send_next(struct batches *b)
{
    struct pd_why why;

    if (b->slot[0] && !b->sent)
        (void)send(b, &why);
}

const struct data_loader *batches_loader(const struct batches *b)
{
    return b->loader;
}
