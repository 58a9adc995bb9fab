#include "daemon/polyd/sched/sched.h"

#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 8

struct order {
    int64_t now_us, age_us;
};

/* Since when it waits while its job has no run in progress. */
static int64_t since(const struct sched_item *a)
{
    return a->served_us > a->queued_us ? a->served_us : a->queued_us;
}

/* Whole steps: within one, the jobs take turns. */
static int64_t effective(const struct sched_item *a, const struct order *o)
{
    int64_t waited = o->now_us > since(a) ? o->now_us - since(a) : 0;

    return a->priority + (o->age_us > 0 && a->turn == 0 ? waited / o->age_us : 0);
}

/* Runs in back-off do not compete. */
static int compare(const void *left, const void *right, void *arg)
{
    const struct sched_item *a = left, *b = right;
    const struct order *o = arg;
    bool a_waits = a->not_before_us > o->now_us, b_waits = b->not_before_us > o->now_us;
    int64_t pa = effective(a, o), pb = effective(b, o);

    if (a_waits != b_waits)
        return a_waits ? 1 : -1;
    if (pa != pb)
        return pa > pb ? -1 : 1;
    if (a->turn != b->turn)
        return a->turn < b->turn ? -1 : 1;
    if (since(a) != since(b))
        return since(a) < since(b) ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int compare_job(const void *left, const void *right, void *arg)
{
    const struct sched_item *a = left, *b = right;
    const struct order *o = arg;
    bool a_waits = a->not_before_us > o->now_us, b_waits = b->not_before_us > o->now_us;

    if (a->job != b->job)
        return a->job < b->job ? -1 : 1;
    if (a_waits != b_waits)
        return a_waits ? 1 : -1;
    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Each item without a job gets a job of its own. */
static bool same_job(const struct sched_item *a, const struct sched_item *b)
{
    return a->job && a->job == b->job;
}

static void take_turns(struct sched_item *items, int count, struct order *o)
{
    qsort_r(items, (size_t)count, sizeof *items, compare_job, o);
    for (int i = 0; i < count; i++)
        items[i].turn = i && same_job(&items[i - 1], &items[i]) ? items[i - 1].turn + 1 : items[i].active;
}

/* Started in this cycle, for the caps. */
static bool under_cap(const struct sched_item *items, int at)
{
    int active = items[at].active;

    if (items[at].cap <= 0)
        return true;
    for (int i = 0; i < at; i++)
        active += items[i].start && same_job(&items[i], &items[at]);
    return active < items[at].cap;
}

static struct sched_kind *kind_of(struct sched_kind *kinds, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(kinds[i].kind, name))
            return &kinds[i];
    return NULL;
}

/* The first run that must wait holds this for its kind. */
struct reservation {
    int64_t at_us;       /* when enough slots are certainly free; SCHED_NEVER = unknown */
    int spare;           /* slots free at that moment beyond what it needs */
    int64_t spare_bytes; /* likewise memory */
    bool made;
};

/* What it takes of the memory that the slots share. */
static int64_t bytes_of(const struct sched_item *item, const struct sched_kind *k)
{
    return !k->memory ? 0 : item->bytes < k->memory ? item->bytes : k->memory;
}

static int compare_until(const void *left, const void *right)
{
    const struct sched_busy *a = left, *b = right;

    return a->until_us < b->until_us ? -1 : a->until_us > b->until_us;
}

static struct reservation reserve(const struct sched_item *item, const struct sched_kind *k,
                                  const struct sched_busy *sorted, int count)
{
    struct reservation r = {.at_us = SCHED_NEVER, .made = true};
    int64_t need = bytes_of(item, k), free_bytes = k->memory_free;
    int have = k->free;

    for (int i = 0; i < count && (have < item->slots || free_bytes < need); i++) {
        if (strcmp(sorted[i].kind, item->kind) != 0)
            continue;
        if (sorted[i].until_us == SCHED_NEVER)
            break;
        have += sorted[i].slots;
        free_bytes += sorted[i].bytes;
        r.at_us = sorted[i].until_us;
    }
    if (have < item->slots || free_bytes < need) {
        r.at_us = SCHED_NEVER;
    } else {
        r.spare = have - item->slots;
        r.spare_bytes = free_bytes - need;
    }
    return r;
}

void sched_cycle(struct sched_item *items, int count, struct sched_kind *kinds, int kind_count,
                 const struct sched_busy *busy, int busy_count, int64_t now_us, int64_t age_us)
{
    struct order o = {.now_us = now_us, .age_us = age_us};
    struct reservation reserved[KINDS_MAX] = {{0}};
    /* The runs started in this cycle hold slots too. */
    struct sched_busy *sorted = calloc((size_t)(busy_count + count) + 1, sizeof *sorted);
    int sorted_count = 0;

    if (!sorted || kind_count > KINDS_MAX) {
        /* If memory ran out, nothing starts; the next cycle tries again. */
        for (int i = 0; i < count; i++)
            items[i].start = false;
        free(sorted);
        return;
    }
    for (int i = 0; i < busy_count; i++)
        sorted[sorted_count++] = busy[i];
    qsort(sorted, (size_t)sorted_count, sizeof *sorted, compare_until);
    if (count) {
        take_turns(items, count, &o);
        qsort_r(items, (size_t)count, sizeof *items, compare, &o);
    }
    for (int i = 0; i < count; i++) {
        struct sched_item *item = &items[i];
        struct sched_kind *k = kind_of(kinds, kind_count, item->kind);
        struct reservation *r;
        int64_t need;

        item->start = item->impossible = item->blocked = item->behind = item->capped = false;
        item->short_of_memory = false;
        item->position = i + 1;
        item->wake_us = SCHED_NEVER;
        if (!k || item->slots > k->total) {
            item->impossible = true;
            continue;
        }
        if (item->not_before_us > now_us) {
            item->wake_us = item->not_before_us;
            continue;
        }
        if (!under_cap(items, i)) {
            item->capped = true; /* and it reserves nothing: it does not wait for slots */
            continue;
        }
        r = &reserved[k - kinds];
        if (item->slots > k->total - k->out || item->unfit) {
            item->blocked = true; /* and it delays no other run: the wait may take days */
            continue;
        }
        need = bytes_of(item, k);
        if (item->slots > k->free || need > k->memory_free) {
            item->short_of_memory = item->slots <= k->free;
            if (!r->made)
                *r = reserve(item, k, sorted, sorted_count);
            continue;
        }
        if (r->made) {
            bool ends_before =
                item->limit_us > 0 && r->at_us != SCHED_NEVER && now_us + item->limit_us <= r->at_us;
            bool spares = r->at_us != SCHED_NEVER && item->slots <= r->spare && need <= r->spare_bytes;

            if (!ends_before && !spares) {
                item->behind = true;
                continue;
            }
            if (!ends_before) {
                r->spare -= item->slots;
                r->spare_bytes -= need;
            }
        }
        item->start = true;
        k->free -= item->slots;
        k->memory_free -= need;
        sorted[sorted_count++] =
            (struct sched_busy){.kind = item->kind,
                                .slots = item->slots,
                                .bytes = need,
                                .until_us = item->limit_us > 0 ? now_us + item->limit_us : SCHED_NEVER};
        qsort(sorted, (size_t)sorted_count, sizeof *sorted, compare_until);
    }
    free(sorted);
}
