/* daemon/worker/data/loader.c: threads that fill buffers ahead of the reader.
 *
 * A ring of three buffers: one in the reader's hands, two ready or being filled. Threads take pieces of the
 * oldest batch that has any left, so one batch is made by all of them. What a sample holds follows from its
 * place alone (sample.c): neither the pace nor the number of threads can change it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/set.h"
#include "kernels/base/clock.h"

#define BUFFERS 3

struct buffer {
    struct data_batch batch;
    char *memory[DATA_TENSORS_MAX]; /* of its tensors */
    uint32_t *samples;              /* of each place, as numbers within the part */
    int64_t first;                  /* position of the first within its epoch */
    int32_t taken, done;            /* samples handed to threads, and made */
};

struct worker {
    struct data_loader *loader;
    pthread_t thread;
    void *scratch;
};

struct data_loader {
    const struct data_set *set;
    enum data_split split;
    int32_t batch, piece;           /* samples; those that a thread takes at once */
    size_t bytes[DATA_TENSORS_MAX]; /* of one sample, in each tensor */
    int32_t whole, parts;           /* samples of a batch of all ranks; its parts */
    int rank, ranks;
    uint64_t seed;
    int64_t first;
    uint32_t *order; /* of the epoch `order_epoch` */
    int64_t order_epoch;
    struct buffer buffer[BUFFERS];
    struct worker *workers;
    int threads, started;
    int64_t waited_us;    /* the reader's */
    pthread_mutex_t lock; /* guards what follows, order, and the counters of buffers */
    pthread_cond_t moved;
    /* batches so far; batch i is in buffer i % BUFFERS: begun >= filled >= taken - 1 */
    uint64_t begun, filled, taken;
    bool stop;
    enum pd_err err; /* of a thread: the loader ends */
    struct pd_why why;
};

/* Place within the whole batch of sample i of ours. */
static int32_t place(const struct data_loader *l, int32_t i)
{
    int32_t piece = l->batch / l->parts;

    return i / piece * (l->whole / l->parts) + l->rank * piece + i % piece;
}

/* Which samples batch `number` holds. Lock held. */
static void begin(struct data_loader *l, int64_t number, struct buffer *b)
{
    const struct data_info *info = &l->set->info;
    const int32_t repeats = l->split == DATA_TRAIN ? l->set->options.recipe.repeats : 0;
    int64_t samples = info->count[l->split], epoch = 0;
    const int64_t per_epoch = data_epoch_samples(samples, repeats) / l->whole;

    if (l->split == DATA_TRAIN) {
        epoch = number / per_epoch;
        b->first = number % per_epoch * l->whole;
        if (l->order_epoch != epoch) {
            data_shuffle_epoch(l->order, samples, l->seed, epoch);
            l->order_epoch = epoch;
        }
    } else {
        b->first = number * l->whole;
    }
    b->batch.epoch = epoch;
    for (b->batch.used = 0; b->batch.used < l->batch; b->batch.used++) {
        int64_t at = b->first + place(l, b->batch.used);

        if (at >= samples)
            break; /* the end of the validation part */
        b->samples[b->batch.used] =
            l->split == DATA_TRAIN ? l->order[repeats > 1 ? at / repeats : at] : (uint32_t)at;
    }
    b->taken = b->done = 0;
}

static enum pd_err make(struct worker *w, struct buffer *b, int32_t from, int32_t to, struct pd_why *why)
{
    struct data_loader *l = w->loader;
    const struct data_form *form = l->set->form;
    enum pd_err err = PD_OK;

    for (int32_t i = from; i < to && err == PD_OK; i++) {
        const int32_t row = i % (l->batch / l->parts);
        void *at[DATA_TENSORS_MAX];

        for (int k = 0; k < b->batch.count; k++)
            at[k] = b->memory[k] + (size_t)i * l->bytes[k];
        if (i >= b->batch.used) /* padding of the last validation batch */
            form->none(l->set, row, at);
        else
            err = form->make(l->set, l->split, l->seed, b->batch.epoch, b->first + place(l, i), b->samples[i],
                             row, w->scratch, at, why);
    }
    return err;
}

/* A buffer with samples to make, begun if need be; NULL: there is nothing to do now. Lock held. */
static struct buffer *find_work(struct data_loader *l)
{
    for (uint64_t i = l->filled; i < l->begun; i++)
        if (l->buffer[i % BUFFERS].taken < l->batch)
            return &l->buffer[i % BUFFERS];
    /* `taken` counts the batch in the reader's hands: its buffer is not ours. */
    if (l->begun + 1 >= l->taken + BUFFERS)
        return NULL;
    begin(l, l->first + (int64_t)l->begun, &l->buffer[l->begun % BUFFERS]);
    return &l->buffer[l->begun++ % BUFFERS];
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct data_loader *l = w->loader;

    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->err == PD_OK) {
        struct buffer *b = find_work(l);
        int32_t from, to;
        struct pd_why why;
        enum pd_err err;

        if (!b) {
            pthread_cond_wait(&l->moved, &l->lock);
            continue;
        }
        from = b->taken;
        to = l->batch - from < l->piece ? l->batch : from + l->piece;
        b->taken = to;
        pthread_mutex_unlock(&l->lock);
        err = make(w, b, from, to, &why);
        pthread_mutex_lock(&l->lock);
        if (err == PD_OK) {
            b->done += to - from; /* a batch that lacks a sample never becomes whole */
        } else if (l->err == PD_OK) {
            l->err = err;
            l->why = why;
        }
        while (l->filled < l->begun && l->buffer[l->filled % BUFFERS].done == l->batch)
            l->filled++;
        pthread_cond_broadcast(&l->moved);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static enum pd_err allocate(struct data_loader *l, struct pd_why *why)
{
    const struct data_info *info = &l->set->info;
    struct data_batch form;

    data_batch_form(l->set, l->split, l->batch, &form);
    for (int k = 0; k < form.count; k++)
        l->bytes[k] =
            (size_t)(pk_shape_count(&form.tensor[k].shape) / l->batch) * pk_dtype_size(form.tensor[k].dtype);
    if (l->split == DATA_TRAIN) {
        l->order = calloc((size_t)info->count[l->split], sizeof *l->order);
        if (!l->order)
            goto nomem;
    }
    for (int i = 0; i < BUFFERS; i++) {
        struct buffer *b = &l->buffer[i];

        b->batch = form;
        b->samples = calloc((size_t)l->batch, sizeof *b->samples);
        if (!b->samples)
            goto nomem;
        for (int k = 0; k < form.count; k++) {
            b->memory[k] = calloc((size_t)l->batch, l->bytes[k]);
            if (!b->memory[k])
                goto nomem;
            b->batch.tensor[k].data = b->memory[k];
        }
    }
    l->workers = calloc((size_t)l->threads, sizeof *l->workers);
    if (!l->workers)
        goto nomem;
    for (int i = 0; i < l->threads; i++) {
        l->workers[i].loader = l;
        l->workers[i].scratch = malloc(data_sample_scratch(l->set) + 1);
        if (!l->workers[i].scratch)
            goto nomem;
    }
    return PD_OK;
nomem:
    return pd_fail(why, PD_ERR_NOMEM, "no memory for batches of %d", l->batch);
}

enum pd_err data_loader_start(const struct data_set *set, enum data_split split, int32_t batch, uint64_t seed,
                              int64_t first, int threads, struct data_loader **ret, struct pd_why *why)
{
    const struct data_share all = {.whole = batch, .parts = 1, .ranks = 1};

    return data_loader_start_share(set, split, &all, seed, first, threads, ret, why);
}

enum pd_err data_loader_start_share(const struct data_set *set, enum data_split split,
                                    const struct data_share *share, uint64_t seed, int64_t first, int threads,
                                    struct data_loader **ret, struct pd_why *why)
{
    const struct data_info *info = &set->info;
    const int32_t batch = share->ranks > 0 ? share->whole / share->ranks : 0;
    struct data_loader *l;
    enum pd_err err;

    if (!set->form->whole(set, split))
        return pd_fail(why, PD_ERR_INVALID, "the data set was opened without its samples");
    if (batch < 1 || first < 0 || threads < 1 || threads > DATA_LOADER_THREADS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "a batch needs at least one sample, and a loader 1 to %d threads",
                       DATA_LOADER_THREADS_MAX);
    if (share->parts < 1 || share->rank < 0 || share->rank >= share->ranks ||
        share->whole % (share->parts * share->ranks) || (split != DATA_TRAIN && share->parts > 1))
        return pd_fail(why, PD_ERR_INVALID, "a batch of %d does not divide into %d parts of %d ranks",
                       share->whole, share->parts, share->ranks);
    if (split == DATA_TRAIN &&
        data_epoch_samples(info->count[DATA_TRAIN], set->options.recipe.repeats) < share->whole)
        return pd_fail(why, PD_ERR_INVALID, "the training part has %lld samples, fewer than train.batch = %d",
                       (long long)info->count[DATA_TRAIN], share->whole);
    l = calloc(1, sizeof *l);
    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a loader");
    l->set = set;
    l->split = split;
    l->batch = batch;
    l->whole = share->whole;
    l->parts = share->parts;
    l->rank = share->rank;
    l->ranks = share->ranks;
    l->seed = seed;
    l->first = first;
    l->order_epoch = -1;
    l->threads = threads;
    /* Decoding is slow enough to be shared out one by one; copying is not. */
    l->piece = set->pictures ? 1 : (batch + 2 * threads - 1) / (2 * threads);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    err = allocate(l, why);
    while (err == PD_OK && l->started < threads) {
        int code = pthread_create(&l->workers[l->started].thread, NULL, work, &l->workers[l->started]);

        if (code)
            err = pd_fail_errno(why, code, "cannot start a loader's thread");
        else
            l->started++;
    }
    if (err != PD_OK) {
        data_loader_free(l);
        return err;
    }
    *ret = l;
    return PD_OK;
}

enum pd_err data_loader_next(struct data_loader *l, const struct data_batch **ret, struct pd_why *why)
{
    int64_t began = 0;
    enum pd_err err = PD_OK;

    pthread_mutex_lock(&l->lock);
    l->taken++;
    pthread_cond_broadcast(&l->moved);
    if (l->filled < l->taken)
        began = pd_clock_mono_us();
    while (l->filled < l->taken && l->err == PD_OK)
        pthread_cond_wait(&l->moved, &l->lock);
    if (began)
        l->waited_us += pd_clock_mono_us() - began;
    if (l->filled < l->taken)
        err = pd_fail(why, l->err, "%s", l->why.text);
    else
        *ret = &l->buffer[(l->taken - 1) % BUFFERS].batch;
    pthread_mutex_unlock(&l->lock);
    return err;
}

int64_t data_loader_waited_us(const struct data_loader *l)
{
    return l->waited_us;
}

struct data_loader *data_loader_free(struct data_loader *l)
{
    if (l) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->moved);
        pthread_mutex_unlock(&l->lock);
        for (int i = 0; i < l->started; i++)
            pthread_join(l->workers[i].thread, NULL);
        for (int i = 0; l->workers && i < l->threads; i++)
            free(l->workers[i].scratch);
        free(l->workers);
        for (int i = 0; i < BUFFERS; i++) {
            for (int k = 0; k < DATA_TENSORS_MAX; k++)
                free(l->buffer[i].memory[k]);
            free(l->buffer[i].samples);
        }
        free(l->order);
        pthread_cond_destroy(&l->moved);
        pthread_mutex_destroy(&l->lock);
        free(l);
    }
    return NULL;
}
