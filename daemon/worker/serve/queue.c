#include "daemon/worker/serve/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A plain array kept in order of arrival: the bound is small (hundreds), and taking from the front moves
 * a few kilobytes at most. */
struct entry {
    void *item;
    uint64_t cost;
    int64_t deadline_us;
};

struct serve_queue {
    uint32_t count, count_max;
    uint64_t cost, cost_max;
    struct entry entries[];
};

enum pd_err serve_queue_new(uint32_t count_max, uint64_t cost_max, struct serve_queue **ret)
{
    struct serve_queue *q;

    assert(count_max >= 1);
    q = calloc(1, sizeof *q + count_max * sizeof q->entries[0]);
    if (!q)
        return PD_ERR_NOMEM;
    q->count_max = count_max;
    q->cost_max = cost_max;
    *ret = q;
    return PD_OK;
}

struct serve_queue *serve_queue_free(struct serve_queue *q)
{
    free(q);
    return NULL;
}

enum pd_err serve_queue_push(struct serve_queue *q, void *item, uint64_t cost, int64_t deadline_us)
{
    uint64_t sum;

    assert(item);
    if (q->count == q->count_max)
        return PD_ERR_BUSY;
    if (__builtin_add_overflow(q->cost, cost, &sum))
        return PD_ERR_BUSY;
    if (q->cost_max && sum > q->cost_max && q->count > 0)
        return PD_ERR_BUSY;
    q->entries[q->count++] = (struct entry){.item = item, .cost = cost, .deadline_us = deadline_us};
    q->cost = sum;
    return PD_OK;
}

static void *take(struct serve_queue *q, uint32_t i)
{
    void *item = q->entries[i].item;

    q->cost -= q->entries[i].cost;
    q->count--;
    memmove(&q->entries[i], &q->entries[i + 1], (q->count - i) * sizeof q->entries[0]);
    return item;
}

void *serve_queue_pop(struct serve_queue *q)
{
    return q->count ? take(q, 0) : NULL;
}

void *serve_queue_peek(const struct serve_queue *q)
{
    return q->count ? q->entries[0].item : NULL;
}

void *serve_queue_drop(struct serve_queue *q, int64_t now_us, bool (*gone)(void *user, void *item),
                       void *user, bool *ret_late)
{
    for (uint32_t i = 0; i < q->count; i++) {
        const struct entry *e = &q->entries[i];
        bool late = e->deadline_us && e->deadline_us <= now_us;

        if (!late && !(gone && gone(user, e->item)))
            continue;
        if (ret_late)
            *ret_late = late;
        return take(q, i);
    }
    return NULL;
}

int64_t serve_queue_next_deadline(const struct serve_queue *q)
{
    int64_t least = 0;

    for (uint32_t i = 0; i < q->count; i++) {
        int64_t d = q->entries[i].deadline_us;

        if (d && (!least || d < least))
            least = d;
    }
    return least;
}

uint32_t serve_queue_count(const struct serve_queue *q)
{
    return q->count;
}

uint64_t serve_queue_cost(const struct serve_queue *q)
{
    return q->cost;
}
