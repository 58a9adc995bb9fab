/* What a training worker reports: metrics gathered into frames, events, checkpoints, blobs, progress. */
#include "daemon/worker/process/link_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"

void link_close_metrics(struct link *l)
{
    struct pd_buf b;

    if (!l->point_count)
        return;
    pd_buf_init(&b, 0);
    wire_begin(&b, WIRE_METRICS, 0, l->next_seq);
    for (size_t i = 0; i < l->key_count; i++)
        wire_put_text(&b, WIRE_TAG_KEY, l->keys[i]);
    wire_put_points(&b, l->points, l->point_count);
    link_submit(l, &b, false);
    pd_buf_done(&b);
    for (size_t i = 0; i < l->key_count; i++)
        free(l->keys[i]);
    memset(l->key_slot, 0, sizeof l->key_slot);
    l->key_count = l->point_count = 0;
}

static uint32_t key_index(struct link *l, const char *key)
{
    uint32_t h = 2166136261u;
    size_t at;

    for (const char *c = key; *c; c++)
        h = (h ^ (unsigned char)*c) * 16777619u;
    for (at = h % (2 * LINK_KEYS_OPEN); l->key_slot[at]; at = (at + 1) % (2 * LINK_KEYS_OPEN))
        if (!strcmp(l->keys[l->key_slot[at] - 1], key))
            return l->key_slot[at] - 1u;
    l->keys[l->key_count] = strndup(key, WIRE_NAME_MAX);
    if (!l->keys[l->key_count])
        return UINT32_MAX;
    l->key_slot[at] = (uint16_t)++l->key_count;
    return (uint32_t)l->key_count - 1;
}

void link_metric(struct link *l, const char *key, int64_t step, int64_t time_us, double value)
{
    uint32_t index;

    pthread_mutex_lock(&l->mutex);
    if (link_full(l))
        link_wait_for_space(l);
    if (l->key_count == LINK_KEYS_OPEN)
        link_close_metrics(l);
    index = key_index(l, key);
    if (index != UINT32_MAX) {
        if (!l->point_count)
            l->open_since_us = pd_clock_mono_us();
        l->points[l->point_count++] =
            (struct wire_point){.key = index, .step = step, .time_us = time_us, .value = value};
        if (l->point_count == WIRE_POINTS_MAX)
            link_close_metrics(l);
    }
    pthread_mutex_unlock(&l->mutex);
}

/* Metrics that came before go first, so that a checkpoint acknowledges its own points. */
static void begin_data(struct link *l, struct pd_buf *b, enum wire_type type)
{
    link_wait_for_space(l);
    link_close_metrics(l);
    pd_buf_init(b, 0);
    wire_begin(b, type, 0, l->next_seq);
    wire_put_u64(b, WIRE_TAG_TIME_US, (uint64_t)pd_clock_wall_us());
}

static bool may_hold_blanks(const char *pair)
{
    return !strncmp(pair, "file=", 5) || !strncmp(pair, "path=", 5);
}

void link_event(struct link *l, const char *kind, const char *text, const char *pairs)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    begin_data(l, &b, WIRE_EVENT);
    wire_put_text(&b, WIRE_TAG_KEY, kind);
    if (text)
        wire_put_text(&b, WIRE_TAG_TEXT, text);
    for (const char *at = pairs ? pairs : ""; *at;) {
        size_t len = may_hold_blanks(at) ? strlen(at) : strcspn(at, " ");

        if (len)
            wire_put_bytes(&b, WIRE_TAG_PAIR, at, len);
        at += len + (at[len] == ' ');
    }
    link_submit(l, &b, false);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

void link_checkpoint(struct link *l, const char *kind, const char *path, int64_t step, uint64_t bytes,
                     const char *digest_hex, double value)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    begin_data(l, &b, WIRE_CHECKPOINT_WRITTEN);
    wire_put_text(&b, WIRE_TAG_KIND, kind);
    wire_put_text(&b, WIRE_TAG_CHECKPOINT, path);
    wire_put_u64(&b, WIRE_TAG_STEP, (uint64_t)step);
    wire_put_u64(&b, WIRE_TAG_BYTES, bytes);
    wire_put_text(&b, WIRE_TAG_DIGEST, digest_hex);
    if (value == value)
        wire_put_f64(&b, WIRE_TAG_VALUE, value);
    l->checkpoints[l->checkpoint_count % LINK_CHECKPOINTS].step = step;
    l->checkpoints[l->checkpoint_count % LINK_CHECKPOINTS].seq = l->next_seq;
    l->checkpoint_count++;
    link_submit(l, &b, false);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

bool link_checkpoint_recorded(struct link *l, int64_t step, bool wait)
{
    uint64_t seq = UINT64_MAX;
    bool recorded;

    pthread_mutex_lock(&l->mutex);
    for (size_t i = 1; i <= l->checkpoint_count && i <= LINK_CHECKPOINTS && seq == UINT64_MAX; i++)
        if (l->checkpoints[(l->checkpoint_count - i) % LINK_CHECKPOINTS].step == step)
            seq = l->checkpoints[(l->checkpoint_count - i) % LINK_CHECKPOINTS].seq;
    while (!(recorded = seq <= l->acked) && wait && seq != UINT64_MAX && !l->stop_thread && !l->refused &&
           link_stop_asked(l) == LINK_GO_ON) {
        struct timespec soon;

        link_deadline_after(&soon, 200000); /* a stop requested by a signal does not wake a thread */
        pthread_cond_timedwait(&l->changed, &l->mutex, &soon);
    }
    pthread_mutex_unlock(&l->mutex);
    return recorded;
}

void link_blob(struct link *l, const char *kind, const char *key, int64_t step, const char *meta,
               const void *bytes, size_t len)
{
    struct pd_buf b;

    pthread_mutex_lock(&l->mutex);
    if (link_full(l)) {
        l->dropped_blobs++;
        pthread_mutex_unlock(&l->mutex);
        return;
    }
    begin_data(l, &b, WIRE_BLOB);
    wire_put_text(&b, WIRE_TAG_KIND, kind);
    wire_put_text(&b, WIRE_TAG_KEY, key);
    wire_put_u64(&b, WIRE_TAG_STEP, (uint64_t)step);
    wire_put_text(&b, WIRE_TAG_JSON, meta);
    wire_put_bytes(&b, WIRE_TAG_POINTS, bytes, len);
    link_submit(l, &b, true);
    pthread_mutex_unlock(&l->mutex);
    pd_buf_done(&b);
}

void link_progress(struct link *l, int64_t step, int64_t total, bool checkpointing)
{
    pthread_mutex_lock(&l->mutex);
    l->step = step;
    l->total = total;
    l->checkpointing = checkpointing;
    l->progress_dirty = true;
    pthread_mutex_unlock(&l->mutex);
}

void link_phase(struct link *l, const char *text)
{
    pthread_mutex_lock(&l->mutex);
    snprintf(l->phase, sizeof l->phase, "%s", text ? text : "");
    l->progress_dirty = l->phase_dirty = true;
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
}

void link_signal_stop(struct link *l)
{
    atomic_store(&l->signalled, true);
    link_wake(l);
}

enum link_stop link_stop_asked(struct link *l)
{
    int stop = atomic_load_explicit(&l->stop, memory_order_relaxed);

    if (stop == LINK_GO_ON && atomic_load_explicit(&l->signalled, memory_order_relaxed))
        return LINK_CHECKPOINT_AND_LEAVE;
    return (enum link_stop)stop;
}

bool link_checkpoint_asked(struct link *l)
{
    return atomic_exchange(&l->checkpoint_now, false);
}

void link_stats(struct link *l, struct link_stats *ret)
{
    pthread_mutex_lock(&l->mutex);
    *ret = (struct link_stats){.frames = l->next_seq - 1,
                               .acked = l->acked,
                               .dropped_blobs = l->dropped_blobs,
                               .spooled = l->spooled,
                               .reconnects = l->reconnects,
                               .memory_bytes = l->memory_bytes};
    pthread_mutex_unlock(&l->mutex);
}
