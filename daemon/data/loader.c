/* daemon/data/loader.c: one thread fills buffers ahead of the reader.
 *
 * Three buffers: one in the reader's hands, two ready or being filled. What batch k holds is computed from k
 * alone, so the thread's pace cannot change it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/data/philox.h"
#include "daemon/data/set.h"

#define BUFFERS 3

struct buffer {
    struct data_batch batch;
    float *images;
    int32_t *tokens, *targets;
};

struct data_loader {
    const struct data_set *set;
    enum data_split split;
    int32_t batch;
    uint64_t seed;
    int64_t next;    /* batch to fill next; the thread's */
    uint32_t *order; /* of the epoch `order_epoch`; the thread's */
    int64_t order_epoch;
    float value[256]; /* normalised value of each byte */
    struct buffer buffer[BUFFERS];
    pthread_t thread;
    bool running;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t moved;
    uint64_t filled, taken; /* batches so far; buffer of batch i is i % BUFFERS */
    bool stop;
};

static void fill_image(struct data_loader *l, int64_t epoch, int64_t position, uint32_t sample, float *to)
{
    const struct data_info *info = &l->set->info;
    const uint8_t *from = l->set->pixels + (size_t)sample * (size_t)info->height * (size_t)info->width;
    int32_t h = info->height, w = info->width, shift = l->split == DATA_TRAIN ? l->set->options.shift : 0;
    int32_t dy = 0, dx = 0;

    if (shift) {
        uint32_t word[4];

        data_random(l->seed, DATA_STREAM_AUGMENT, (uint64_t)epoch, (uint64_t)position, word);
        dy = (int32_t)data_bounded(word[0], (uint32_t)(2 * shift + 1)) - shift;
        dx = (int32_t)data_bounded(word[1], (uint32_t)(2 * shift + 1)) - shift;
    }
    for (int32_t y = 0; y < h; y++)
        for (int32_t x = 0; x < w; x++) {
            int32_t sy = y + dy, sx = x + dx;

            to[y * w + x] = l->value[sy < 0 || sy >= h || sx < 0 || sx >= w ? 0 : from[sy * w + sx]];
        }
}

static void fill_tokens(struct data_loader *l, int64_t epoch, uint32_t window, int32_t *tokens,
                        int32_t *targets)
{
    const struct data_set *set = l->set;
    int64_t context = set->info.context, last = set->info.tokens[l->split] - context - 1;
    int64_t at = (int64_t)window * context;
    const uint8_t *from;

    if (l->split == DATA_TRAIN) {
        uint32_t word[4];

        /* The grid of windows begins elsewhere in each epoch, so that no border is learned. */
        data_random(l->seed, DATA_STREAM_WINDOW, (uint64_t)epoch, 0, word);
        at += data_bounded(word[0], (uint32_t)context);
    }
    if (at > last)
        at = last;
    from = set->pixels + set->start[l->split] + at;
    for (int64_t i = 0; i < context; i++) {
        tokens[i] = from[i];
        targets[i] = from[i + 1];
    }
}

static void fill(struct data_loader *l, int64_t number, struct buffer *b)
{
    const struct data_info *info = &l->set->info;
    int64_t samples = info->count[l->split], per_epoch = samples / l->batch, epoch = 0, first;
    size_t size = (size_t)info->channels * (size_t)info->height * (size_t)info->width;
    size_t context = (size_t)info->context;

    if (l->split == DATA_TRAIN) {
        epoch = number / per_epoch;
        first = number % per_epoch * l->batch;
        if (l->order_epoch != epoch) {
            data_shuffle_epoch(l->order, samples, l->seed, epoch);
            l->order_epoch = epoch;
        }
    } else {
        first = number * l->batch;
    }
    b->batch.epoch = epoch;
    b->batch.used =
        (int32_t)(samples - first < l->batch ? (samples > first ? samples - first : 0) : l->batch);
    for (int32_t i = 0; i < l->batch; i++) {
        int64_t position = first + i;
        uint32_t sample;

        if (i >= b->batch.used) { /* padding of the last validation batch */
            if (info->kind == DATA_IMAGES) {
                memset(b->images + (size_t)i * size, 0, size * sizeof *b->images);
                b->targets[i] = DATA_IGNORE;
            } else {
                memset(b->tokens + (size_t)i * context, 0, context * sizeof *b->tokens);
                for (size_t k = 0; k < context; k++)
                    b->targets[(size_t)i * context + k] = DATA_IGNORE;
            }
            continue;
        }
        sample = l->split == DATA_TRAIN ? l->order[position] : (uint32_t)position;
        if (info->kind == DATA_IMAGES) {
            uint32_t image = l->set->pick[l->split][sample];

            fill_image(l, epoch, position, image, b->images + (size_t)i * size);
            b->targets[i] = l->set->labels[image];
        } else {
            fill_tokens(l, epoch, sample, b->tokens + (size_t)i * context, b->targets + (size_t)i * context);
        }
    }
}

static void *work(void *arg)
{
    struct data_loader *l = arg;

    for (;;) {
        struct buffer *b;

        pthread_mutex_lock(&l->lock);
        /* `taken` counts the batch in the reader's hands: its buffer is not ours. */
        while (!l->stop && l->filled + 1 >= l->taken + BUFFERS)
            pthread_cond_wait(&l->moved, &l->lock);
        if (l->stop) {
            pthread_mutex_unlock(&l->lock);
            return NULL;
        }
        b = &l->buffer[l->filled % BUFFERS];
        pthread_mutex_unlock(&l->lock);
        fill(l, l->next++, b);
        pthread_mutex_lock(&l->lock);
        l->filled++;
        pthread_cond_broadcast(&l->moved);
        pthread_mutex_unlock(&l->lock);
    }
}

enum pd_err data_loader_start(const struct data_set *set, enum data_split split, int32_t batch, uint64_t seed,
                              int64_t first, struct data_loader **ret, struct pd_why *why)
{
    const struct data_info *info = &set->info;
    size_t pixels = (size_t)batch * (size_t)info->channels * (size_t)info->height * (size_t)info->width;
    size_t tokens = (size_t)batch * (size_t)(info->kind == DATA_TOKENS ? info->context : 1);
    struct data_loader *l;
    int code;

    if (!set->pixels)
        return pd_fail(why, PD_ERR_INVALID, "the data set was opened for its headers alone");
    if (batch < 1 || first < 0)
        return pd_fail(why, PD_ERR_INVALID, "a batch holds at least one sample");
    if (split == DATA_TRAIN && info->count[DATA_TRAIN] < batch)
        return pd_fail(why, PD_ERR_INVALID, "the training part has %lld samples, fewer than train.batch = %d",
                       (long long)info->count[DATA_TRAIN], batch);
    l = calloc(1, sizeof *l);
    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a loader");
    l->set = set;
    l->split = split;
    l->batch = batch;
    l->seed = seed;
    l->next = first;
    l->order_epoch = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    for (int i = 0; i < 256; i++)
        l->value[i] = ((float)i / 255.0f - info->mean) / (info->std > 0 ? info->std : 1);
    l->order = calloc((size_t)info->count[split], sizeof *l->order);
    if (!l->order)
        goto nomem;
    for (int i = 0; i < BUFFERS; i++) {
        struct buffer *b = &l->buffer[i];

        b->targets = calloc(tokens, sizeof *b->targets);
        if (info->kind == DATA_IMAGES)
            b->images = calloc(pixels, sizeof *b->images);
        else
            b->tokens = calloc(tokens, sizeof *b->tokens);
        if (!b->targets || !(b->images || b->tokens))
            goto nomem;
        b->batch = (struct data_batch){
            .batch = batch, .images = b->images, .tokens = b->tokens, .targets = b->targets};
    }
    code = pthread_create(&l->thread, NULL, work, l);
    if (code) {
        data_loader_free(l);
        return pd_fail_errno(why, code, "cannot start the loader's thread");
    }
    l->running = true;
    *ret = l;
    return PD_OK;
nomem:
    data_loader_free(l);
    return pd_fail(why, PD_ERR_NOMEM, "no memory for batches of %d", batch);
}

enum pd_err data_loader_next(struct data_loader *l, const struct data_batch **ret, struct pd_why *why)
{
    (void)why;
    pthread_mutex_lock(&l->lock);
    l->taken++;
    pthread_cond_broadcast(&l->moved);
    while (l->filled < l->taken)
        pthread_cond_wait(&l->moved, &l->lock);
    *ret = &l->buffer[(l->taken - 1) % BUFFERS].batch;
    pthread_mutex_unlock(&l->lock);
    return PD_OK;
}

struct data_loader *data_loader_free(struct data_loader *l)
{
    if (l) {
        if (l->running) {
            pthread_mutex_lock(&l->lock);
            l->stop = true;
            pthread_cond_broadcast(&l->moved);
            pthread_mutex_unlock(&l->lock);
            pthread_join(l->thread, NULL);
        }
        for (int i = 0; i < BUFFERS; i++) {
            free(l->buffer[i].images);
            free(l->buffer[i].tokens);
            free(l->buffer[i].targets);
        }
        free(l->order);
        pthread_cond_destroy(&l->moved);
        pthread_mutex_destroy(&l->lock);
        free(l);
    }
    return NULL;
}
