/* Series as charts want them. What a reader sees of a run that was resumed is a list of segments: attempt k
 * shows the steps after its start checkpoint up to the start of the next one that went back; later points of it
 * are ghosts. Points over HTTP (attempt 0) are a segment without bounds. Points of an attempt at or before its start (a test
 * of the best weights, an evaluation that the attempt before left undone) are shown in addition to the segments where no
 * earlier attempt shows that step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/store/db.h"

struct segment {
    int64_t attempt, lo, hi; /* steps, inclusive; never empty */
};

struct segments {
    struct segment *at; /* owned */
    size_t count;
};

/* Is the series the worker's? Then points that a client logged to it, of before polyd refused them, are not
 * shown. */
static enum pd_err worker_writes(struct store *s, int64_t run_id, int64_t key, bool *ret, struct pd_why *why)
{
    int64_t attempt = 0;
    enum pd_err err =
        db_int(&s->db, &attempt, why, "SELECT attempt FROM metric_latest WHERE run_id = ?1 AND key_id = ?2",
               "ii", run_id, key);

    *ret = attempt > 0;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

/* Segments of the query, already cut to [from_step, to_step]; attempt 0 comes first if it can have points. */
static enum pd_err segments_of(struct store *s, const struct store_point_query *q, int64_t key,
                               struct segments *ret, struct pd_why *why)
{
    bool worker = false;
    struct segment *list = NULL;
    size_t count = 0, capacity = 0, kept = 0;
    int64_t bound = INT64_MAX;
    sqlite3_stmt *st;
    enum pd_err err;

    if (q->attempt >= 0) {
        list = malloc(sizeof *list);
        if (!list)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a query");
        list[0] = (struct segment){.attempt = q->attempt, .lo = q->from_step, .hi = q->to_step};
        *ret = (struct segments){.at = list, .count = q->from_step <= q->to_step};
        return PD_OK;
    }
    /* From the last attempt to the first: `bound` is the least start among the later ones. */
    err = worker_writes(s, q->run_id, key, &worker, why);
    if (err == PD_OK)
        err = db_bind(&s->db, &st, why, "SELECT n, start_step FROM attempt WHERE run_id = ?1 ORDER BY n DESC",
                      "i", q->run_id);
    while (err == PD_OK) {
        int64_t start = 0;

        err = db_step(&s->db, st, why);
        if (err != PD_OK && err != PD_ERR_NOT_FOUND)
            break;
        if (count == capacity) {
            struct segment *more = realloc(list, (capacity = capacity ? 2 * capacity : 8) * sizeof *list);

            if (!more) {
                if (err == PD_OK)
                    db_done(st);
                err = pd_fail(why, PD_ERR_NOMEM, "no memory for a query");
                break;
            }
            list = more;
        }
        if (err == PD_ERR_NOT_FOUND) {
            if (!worker)
                list[count++] = (struct segment){.attempt = 0, .lo = INT64_MIN, .hi = INT64_MAX};
            break;
        }
        start = sqlite3_column_int64(st, 1);
        list[count++] = (struct segment){
            .attempt = sqlite3_column_int64(st, 0), .lo = start > 0 ? start + 1 : INT64_MIN, .hi = bound};
        if (start <= 0)
            bound = INT64_MIN; /* started again: everything before is a ghost */
        else if (start < bound)
            bound = start;
    }
    if (err != PD_ERR_NOT_FOUND) {
        free(list);
        return err;
    }
    for (size_t i = 0; i < count / 2; i++) {
        struct segment swap = list[i];

        list[i] = list[count - 1 - i];
        list[count - 1 - i] = swap;
    }
    for (size_t i = 0; i < count; i++) {
        struct segment g = list[i];

        if (g.hi == INT64_MIN)
            continue;
        g.lo = g.lo > q->from_step ? g.lo : q->from_step;
        g.hi = g.hi < q->to_step ? g.hi : q->to_step;
        if (g.lo <= g.hi)
            list[kept++] = g;
    }
    *ret = (struct segments){.at = list, .count = kept};
    return PD_OK;
}

/* id 0 = no such key. */
static enum pd_err key_of(struct store *s, const char *name, int64_t *ret, struct pd_why *why)
{
    enum pd_err err = db_int(&s->db, ret, why, "SELECT id FROM metric_key WHERE name = ?1", "t", name);

    if (err == PD_ERR_NOT_FOUND) {
        *ret = 0;
        return PD_OK;
    }
    return err;
}

/* Points of attempts at or before their own start, in the order of steps: a few, since training goes on behind
 * it. */
struct late {
    struct store_point *at; /* owned */
    size_t count, next;
};

/* Does a later attempt than `n` start before `step`, or from scratch? */
#define GHOST(n, step)                                                                                       \
    "EXISTS (SELECT 1 FROM attempt b WHERE b.run_id = ?1 AND b.n > " n                                       \
    " AND (b.start_step <= 0 OR b.start_step < " step "))"

static enum pd_err late_of(struct store *s, const struct store_point_query *q, int64_t key, struct late *ret,
                           struct pd_why *why)
{
    struct late list = {0};
    size_t capacity = 0;
    sqlite3_stmt *st;
    enum pd_err err;

    *ret = list;
    if (q->attempt >= 0)
        return PD_OK; /* its segment has them */
    err = db_bind(
        &s->db, &st, why,
        "SELECT m.attempt, m.step, m.ts_us, m.value FROM attempt a CROSS JOIN metric m ON m.run_id = ?1 AND "
        "m.key_id = ?2 AND m.attempt = a.n AND m.step BETWEEN ?3 AND min(a.start_step, ?4) WHERE a.run_id = "
        "?1 AND a.start_step > 0 AND NOT " GHOST(
            "a.n", "m.step") " AND NOT EXISTS (SELECT 1 FROM attempt e CROSS JOIN metric o ON o.run_id = ?1 "
                             "AND o.key_id = ?2 AND o.attempt = e.n AND o.step = m.step WHERE e.run_id = ?1 "
                             "AND e.n < a.n AND NOT " GHOST("e.n", "m.step") ") ORDER BY m.step, m.attempt, "
                                                                             "m.ts_us, m.dup",
        "iiii", q->run_id, key, q->from_step, q->to_step);
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        if (list.count == capacity) {
            struct store_point *more =
                realloc(list.at, (capacity = capacity ? 2 * capacity : 8) * sizeof *more);

            if (!more) {
                db_done(st);
                err = pd_fail(why, PD_ERR_NOMEM, "no memory for a query");
                break;
            }
            list.at = more;
        }
        list.at[list.count++] = (struct store_point){.attempt = sqlite3_column_int(st, 0),
                                                     .step = sqlite3_column_int64(st, 1),
                                                     .time_us = sqlite3_column_int64(st, 2),
                                                     .value = db_real(st, 3)};
    }
    if (err != PD_ERR_NOT_FOUND) {
        free(list.at);
        return err;
    }
    *ret = list;
    return PD_OK;
}

/* ---- points --------------------------------------------------------------------------------- */

/* Walks segments [next, end) one after the other. Two walks may be open at once, hence two statements. */
struct walk {
    struct store *s;
    const struct segments *segments;
    size_t next, end;
    int64_t run_id, key;
    bool second;
    sqlite3_stmt *st; /* NULL between segments */
    struct store_point point;
};

#define POINTS "SELECT step, ts_us, value FROM metric WHERE run_id = ?1 AND key_id = ?2 AND attempt = ?3 AND "

/* The next point in `point`, or PD_ERR_NOT_FOUND. */
static enum pd_err walk_next(struct walk *w, struct pd_why *why)
{
    for (;;) {
        const struct segment *g;
        enum pd_err err;

        if (w->st) {
            err = db_step(&w->s->db, w->st, why);
            if (err == PD_OK) {
                w->point.step = sqlite3_column_int64(w->st, 0);
                w->point.time_us = sqlite3_column_int64(w->st, 1);
                w->point.value = db_real(w->st, 2);
                return PD_OK;
            }
            w->st = NULL;
            if (err != PD_ERR_NOT_FOUND)
                return err;
        }
        if (w->next >= w->end)
            return PD_ERR_NOT_FOUND;
        g = &w->segments->at[w->next++];
        w->point.attempt = (int)g->attempt;
        if (w->second)
            err = db_bind(&w->s->db, &w->st, why, POINTS "step BETWEEN ?4 AND ?5 ORDER BY step, ts_us, dup",
                          "iiiii", w->run_id, w->key, g->attempt, g->lo, g->hi);
        else
            err =
                db_bind(&w->s->db, &w->st, why, POINTS "step >= ?4 AND step <= ?5 ORDER BY step, ts_us, dup",
                        "iiiii", w->run_id, w->key, g->attempt, g->lo, g->hi);
        if (err != PD_OK) {
            w->st = NULL;
            return err;
        }
    }
}

static void walk_end(struct walk *w)
{
    if (w->st)
        db_done(w->st);
    w->st = NULL;
}

enum pd_err store_point_list(struct store *s, const struct store_point_query *q,
                             bool (*row)(void *ctx, const struct store_point *p), void *ctx,
                             struct pd_why *why)
{
    struct segments segments = {0};
    struct walk a = {.s = s}, b = {.s = s, .second = true};
    struct late late = {0};
    enum pd_err a_err = PD_OK, b_err = PD_OK, err;
    int64_t skip = q->skip, key;
    int sent = 0;

    err = key_of(s, q->key, &key, why);
    if (err != PD_OK || !key)
        return err;
    err = segments_of(s, q, key, &segments, why);
    if (err == PD_OK)
        err = late_of(s, q, key, &late, why);
    if (err != PD_OK) {
        free(segments.at);
        return err;
    }
    a.segments = b.segments = &segments;
    a.run_id = b.run_id = q->run_id;
    a.key = b.key = key;
    /* a: what came over HTTP; b: the attempts, whose segments follow each other. */
    a.end = segments.count && segments.at[0].attempt == 0 ? 1 : 0;
    b.next = a.end;
    b.end = segments.count;
    a_err = walk_next(&a, why);
    b_err = walk_next(&b, why);
    while (a_err == PD_OK || b_err == PD_OK || late.next < late.count) {
        bool take_a = a_err == PD_OK && (b_err != PD_OK || a.point.step <= b.point.step);
        const struct store_point *p = take_a ? &a.point : b_err == PD_OK ? &b.point : NULL;
        bool take_late = late.next < late.count && (!p || late.at[late.next].step < p->step);

        if (take_late)
            p = &late.at[late.next];
        if (p->step == q->from_step && skip > 0)
            skip--;
        else {
            if (!row(ctx, p) || (q->limit && ++sent >= q->limit))
                break;
        }
        if (take_late)
            late.next++;
        else if (take_a)
            a_err = walk_next(&a, why);
        else
            b_err = walk_next(&b, why);
    }
    walk_end(&a);
    walk_end(&b);
    free(segments.at);
    free(late.at);
    if (a_err != PD_OK && a_err != PD_ERR_NOT_FOUND)
        return a_err;
    return b_err == PD_ERR_NOT_FOUND ? PD_OK : b_err;
}

/* ---- buckets -------------------------------------------------------------------------------- */

struct chart {
    struct store_bucket *at; /* count 0 = empty; mean holds the sum */
    int n;
    bool by_time;
    int64_t lo, hi; /* steps (or microseconds) that the buckets divide */
};

static struct store_bucket *bucket_of(struct chart *c, int64_t step, int64_t time_us)
{
    /* Doubles: a span of steps may exceed 64 bits of integer times n. */
    double width = (double)c->hi - (double)c->lo + 1;
    int i = (int)(((double)(c->by_time ? time_us : step) - (double)c->lo) / width * c->n);

    return &c->at[i < 0 ? 0 : i >= c->n ? c->n - 1 : i];
}

static void bucket_add(struct store_bucket *b, int64_t first_step, int64_t last_step, int64_t first_us,
                       int64_t last_us, double min, double max, double sum, int64_t count, int64_t nonfinite)
{
    if (!b->count || first_step < b->first_step) {
        b->first_step = first_step;
        b->first_us = first_us;
    }
    if (!b->count || last_step >= b->last_step) {
        b->last_step = last_step;
        b->last_us = last_us;
    }
    if (count > nonfinite) {
        bool first = b->count == b->nonfinite;

        if (first || min < b->min)
            b->min = min;
        if (first || max > b->max)
            b->max = max;
        b->mean += sum;
    }
    b->count += count;
    b->nonfinite += nonfinite;
}

static void add_point(struct chart *c, const struct store_point *p)
{
    bucket_add(bucket_of(c, p->step, p->time_us), p->step, p->step, p->time_us, p->time_us, p->value,
               p->value, p->value, 1, !isfinite(p->value));
}

static enum pd_err add_points(struct store *s, struct chart *c, const struct store_point_query *q,
                              int64_t key, const struct segment *g, int64_t lo, int64_t hi,
                              struct pd_why *why)
{
    struct segment one = {.attempt = g->attempt, .lo = lo, .hi = hi};
    struct segments list = {.at = &one, .count = 1};
    struct walk w = {.s = s, .segments = &list, .end = 1, .run_id = q->run_id, .key = key};
    enum pd_err err;

    while ((err = walk_next(&w, why)) == PD_OK)
        add_point(c, &w.point);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

struct rollup {
    int64_t count, nonfinite, first_step, last_step, first_us, last_us;
    double min, max, sum;
};

struct rollups {
    struct rollup *at;
    size_t count;
    bool ordered; /* each begins after the one before has ended: a step range cuts at most two */
};

static enum pd_err rollups_of(struct store *s, const struct store_point_query *q, int64_t key,
                              const struct segment *g, struct rollups *ret, struct pd_why *why)
{
    size_t capacity = 0;
    sqlite3_stmt *st;
    enum pd_err err;

    *ret = (struct rollups){.ordered = true};
    err = db_bind(
        &s->db, &st, why,
        "SELECT count, nonfinite, first_step, last_step, first_us, last_us, min, max, sum FROM metric_rollup "
        "WHERE run_id = ?1 AND key_id = ?2 AND attempt = ?3 AND last_step >= ?4 AND first_step <= ?5 ORDER "
        "BY "
        "chunk",
        "iiiii", q->run_id, key, g->attempt, g->lo, g->hi);
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct rollup *r;

        if (ret->count == capacity) {
            struct rollup *more = realloc(ret->at, (capacity = capacity ? 2 * capacity : 64) * sizeof *more);

            if (!more) {
                db_done(st);
                err = pd_fail(why, PD_ERR_NOMEM, "no memory for a query");
                break;
            }
            ret->at = more;
        }
        r = &ret->at[ret->count++];
        *r = (struct rollup){
            .count = sqlite3_column_int64(st, 0),
            .nonfinite = sqlite3_column_int64(st, 1),
            .first_step = sqlite3_column_int64(st, 2),
            .last_step = sqlite3_column_int64(st, 3),
            .first_us = sqlite3_column_int64(st, 4),
            .last_us = sqlite3_column_int64(st, 5),
            .min = db_real(st, 6),
            .max = db_real(st, 7),
            .sum = sqlite3_column_double(st, 8),
        };
        if (ret->count > 1 && r->first_step <= r[-1].last_step)
            ret->ordered = false;
    }
    if (err != PD_ERR_NOT_FOUND) {
        free(ret->at);
        *ret = (struct rollups){0};
        return err;
    }
    return PD_OK;
}

static enum pd_err add_rollups(struct store *s, struct chart *c, const struct store_point_query *q,
                               int64_t key, const struct segment *g, const struct rollups *list,
                               struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < list->count; i++) {
        const struct rollup *r = &list->at[i];

        if (r->first_step >= g->lo && r->last_step <= g->hi)
            bucket_add(bucket_of(c, r->first_step, r->first_us), r->first_step, r->last_step, r->first_us,
                       r->last_us, r->min, r->max, r->sum, r->count, r->nonfinite);
        else /* cut by the range: its own points */
            err = add_points(s, c, q, key, g, r->first_step > g->lo ? r->first_step : g->lo,
                             r->last_step < g->hi ? r->last_step : g->hi, why);
    }
    return err;
}

static enum pd_err fill(struct store *s, struct chart *c, const struct store_point_query *q, int64_t key,
                        const struct segments *segments, struct rollups *lists, const struct late *late,
                        struct pd_why *why)
{
    int64_t total = 0;
    enum pd_err err = PD_OK;
    bool any = false;

    for (size_t i = 0; err == PD_OK && i < segments->count; i++) {
        const struct segment *g = &segments->at[i];

        err = rollups_of(s, q, key, g, &lists[i], why);
        for (size_t k = 0; k < lists[i].count; k++) {
            const struct rollup *r = &lists[i].at[k];
            int64_t lo = r->first_step > g->lo ? r->first_step : g->lo;
            int64_t hi = r->last_step < g->hi ? r->last_step : g->hi;

            total += r->count;
            if (c->by_time) {
                lo = r->first_us;
                hi = r->last_us;
            }
            c->lo = any && c->lo < lo ? c->lo : lo;
            c->hi = any && c->hi > hi ? c->hi : hi;
            any = true;
        }
    }
    for (size_t i = 0; i < late->count; i++) {
        int64_t at = c->by_time ? late->at[i].time_us : late->at[i].step;

        c->lo = any && c->lo < at ? c->lo : at;
        c->hi = any && c->hi > at ? c->hi : at;
        any = true;
    }
    if (q->whole_range) {
        c->lo = c->by_time ? q->from_us : q->from_step;
        c->hi = c->by_time ? q->to_us : q->to_step;
    }
    for (size_t i = 0; err == PD_OK && i < segments->count; i++) {
        const struct segment *g = &segments->at[i];

        if (!lists[i].count)
            continue;
        if (total / c->n >= STORE_ROLLUP_POINTS && lists[i].ordered)
            err = add_rollups(s, c, q, key, g, &lists[i], why);
        else
            err = add_points(s, c, q, key, g, g->lo, g->hi, why);
    }
    for (size_t i = 0; err == PD_OK && i < late->count; i++)
        add_point(c, &late->at[i]);
    return err;
}

enum pd_err store_bucket_list(struct store *s, const struct store_point_query *q, int buckets,
                              bool (*row)(void *ctx, const struct store_bucket *b), void *ctx,
                              int64_t *ret_points, struct pd_why *why)
{
    struct chart c = {.n = buckets, .by_time = q->by_time};
    struct segments segments = {0};
    struct rollups *lists = NULL;
    struct late late = {0};
    int64_t key, points = 0;
    enum pd_err err;
    bool own = false;

    if (buckets < 1 || buckets > STORE_BUCKETS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "a chart must have 1 to %d buckets", STORE_BUCKETS_MAX);
    /* Roll-ups and points must be of one moment. */
    if (sqlite3_get_autocommit(s->db.db)) {
        err = store_begin(s, why);
        if (err != PD_OK)
            return err;
        own = true;
    }
    err = key_of(s, q->key, &key, why);
    if (err == PD_OK && key)
        err = segments_of(s, q, key, &segments, why);
    if (err == PD_OK && key)
        err = late_of(s, q, key, &late, why);
    if (err == PD_OK && (segments.count || late.count)) {
        c.at = calloc((size_t)buckets, sizeof *c.at);
        lists = calloc(segments.count + 1, sizeof *lists); /* there may be only late points */
        if (!c.at || !lists)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for a chart");
        else
            err = fill(s, &c, q, key, &segments, lists, &late, why);
    }
    if (own)
        store_end(s); /* before the callbacks: a slow reader must not pin the log */
    for (int i = 0; err == PD_OK && c.at && i < buckets; i++) {
        struct store_bucket *b = &c.at[i];

        if (!b->count)
            continue;
        b->index = i;
        points += b->count;
        if (b->count > b->nonfinite)
            b->mean /= (double)(b->count - b->nonfinite);
        else
            b->min = b->max = b->mean = (double)NAN;
        if (!row(ctx, b))
            break;
    }
    if (err == PD_OK && ret_points)
        *ret_points = points;
    for (size_t i = 0; lists && i < segments.count; i++)
        free(lists[i].at);
    free(lists);
    free(segments.at);
    free(late.at);
    free(c.at);
    return err;
}

/* ---- latest values -------------------------------------------------------------------------- */

#define SERIES_LIST                                                                                          \
    "SELECT k.name, l.count, l.attempt, l.step, l.ts_us, l.value, l.min, l.max, l.key_id FROM "              \
    "metric_latest l JOIN "                                                                                  \
    "metric_key "                                                                                            \
    "k ON k.id = l.key_id WHERE l.run_id = ?1 "

static void read_series(sqlite3_stmt *st, struct store_series *ret)
{
    *ret = (struct store_series){
        .key = db_text(st, 0),
        .count = sqlite3_column_int64(st, 1),
        .attempt = sqlite3_column_int(st, 2),
        .step = sqlite3_column_int64(st, 3),
        .time_us = sqlite3_column_int64(st, 4),
        .value = db_real(st, 5),
        .min = db_real(st, 6),
        .max = db_real(st, 7),
        .key_id = sqlite3_column_int64(st, 8),
    };
}

/* Gives the rows of a bound statement; err: of its binding. */
static enum pd_err give_series(struct store *s, enum pd_err err, sqlite3_stmt *st,
                               bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                               struct pd_why *why)
{
    struct store_series m;

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        read_series(st, &m);
        if (!row(ctx, &m)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_series_list(struct store *s, int64_t run_id,
                              bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                              struct pd_why *why)
{
    sqlite3_stmt *st = NULL;
    enum pd_err err = db_bind(&s->db, &st, why, SERIES_LIST "ORDER BY k.name", "i", run_id);

    return give_series(s, err, st, row, ctx, why);
}

enum pd_err store_series_page(struct store *s, int64_t run_id, int64_t after, int limit,
                              bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                              struct pd_why *why)
{
    sqlite3_stmt *st = NULL;
    enum pd_err err = db_bind(&s->db, &st, why, SERIES_LIST "AND l.key_id > ?2 ORDER BY l.key_id LIMIT ?3",
                              "iii", run_id, after, (int64_t)limit);

    return give_series(s, err, st, row, ctx, why);
}

enum pd_err store_series_get(struct store *s, int64_t run_id, const char *key,
                             bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                             struct pd_why *why)
{
    struct store_series m;
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why, SERIES_LIST "AND k.name = ?2", "it", run_id, key);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "run %lld has no metric '%s'", (long long)run_id, key);
    if (err != PD_OK)
        return err;
    read_series(st, &m);
    row(ctx, &m);
    db_done(st);
    return PD_OK;
}
