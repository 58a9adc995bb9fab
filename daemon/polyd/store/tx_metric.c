/* Points, roll-ups and latest values. A hash table on the writer's side holds the key ids and, for each
 * series written lately (run, key, attempt), its open roll-up and its run's latest value, so that a point
 * costs one insert. The table is written out at the end of each group (store_metric_flush): roll-ups are in
 * the transaction of their points. It is a cache: forgotten as a whole when anything is rolled back or it
 * grows too large, and read back from the file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/store/tx_private.h"

#define SERIES_SLOTS 32768u /* power of two */
#define SERIES_MAX (SERIES_SLOTS / 2)
#define KEY_SLOTS 16384u
#define KEY_MAX_CACHED (KEY_SLOTS / 2)

struct fold {
    int64_t count, nonfinite;
    int64_t first_step, last_step, first_us, last_us;
    double min, max, sum; /* min > max: no finite point */
};

struct series {
    int64_t run_id, key_id; /* key_id 0 = free */
    int attempt;
    int64_t chunk; /* number of the open roll-up */
    struct fold fold;
    bool dirty;
};

/* Latest value of (run, key): one for all attempts. */
struct latest {
    int64_t run_id, key_id;
    int attempt;
    int64_t step, ts_us, count;
    double value, min, max; /* min > max: none */
    bool dirty, fresh;      /* fresh: its first row has not been written yet */
};

struct key {
    char *name;
    int64_t id;
};

struct metric_cache {
    struct series series[SERIES_SLOTS];
    struct latest latest[SERIES_SLOTS];
    struct key keys[KEY_SLOTS];
    unsigned series_count, latest_count, key_count;
    unsigned dirty_series[SERIES_SLOTS], dirty_latest[SERIES_SLOTS];
    unsigned dirty_series_count, dirty_latest_count;
};

struct metric_cache *store_metric_cache_new(void)
{
    return calloc(1, sizeof(struct metric_cache));
}

static void forget_keys(struct metric_cache *c)
{
    for (unsigned i = 0; i < KEY_SLOTS; i++)
        free(c->keys[i].name);
    memset(c->keys, 0, sizeof c->keys);
    c->key_count = 0;
}

void store_metric_forget(struct metric_cache *c)
{
    memset(c->series, 0, sizeof c->series);
    memset(c->latest, 0, sizeof c->latest);
    c->series_count = c->latest_count = c->dirty_series_count = c->dirty_latest_count = 0;
    forget_keys(c); /* a key may have been made by what is rolled back */
}

struct metric_cache *store_metric_cache_free(struct metric_cache *c)
{
    if (c) {
        forget_keys(c);
        free(c);
    }
    return NULL;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a ^= b * UINT64_C(0x9E3779B97F4A7C15);
    a ^= a >> 29;
    a *= UINT64_C(0xBF58476D1CE4E5B9);
    return a ^ (a >> 32);
}

static enum pd_err key_id(struct store_tx *tx, const char *name, int64_t *ret, struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    uint64_t h = UINT64_C(14695981039346656037);
    size_t len = strlen(name);
    unsigned at;
    enum pd_err err;
    int64_t id;

    if (!len || len > STORE_KEY_MAX)
        return pd_fail(why, PD_ERR_INVALID, "a metric key has 1 to %d bytes", STORE_KEY_MAX);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)name[i]) * UINT64_C(1099511628211);
    for (at = (unsigned)(h ^ (h >> 32)) % KEY_SLOTS; c->keys[at].name; at = (at + 1) % KEY_SLOTS)
        if (!strcmp(c->keys[at].name, name)) {
            *ret = c->keys[at].id;
            return PD_OK;
        }
    err = db_int(tx->db, &id, why, "SELECT id FROM metric_key WHERE name = ?1", "t", name);
    if (err == PD_ERR_NOT_FOUND) {
        err = db_run(tx->db, why, "INSERT INTO metric_key (name) VALUES (?1)", "t", name);
        id = sqlite3_last_insert_rowid(tx->db->db);
        /* Undoing it must also undo the cache. */
        tx->metric_touches++;
    }
    if (err != PD_OK)
        return err;
    *ret = id;
    if (c->key_count >= KEY_MAX_CACHED) {
        forget_keys(c);
        at = (unsigned)(h ^ (h >> 32)) % KEY_SLOTS;
    }
    c->keys[at].name = strdup(name);
    if (c->keys[at].name) {
        c->keys[at].id = id;
        c->key_count++;
    }
    return PD_OK;
}

static void fold_clear(struct fold *f)
{
    *f = (struct fold){.min = INFINITY, .max = -INFINITY};
}

static enum pd_err series_find(struct store_tx *tx, int64_t run_id, int64_t key, int attempt,
                               struct series **ret, struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    unsigned at = (unsigned)mix(mix((uint64_t)run_id, (uint64_t)key), (uint64_t)attempt) % SERIES_SLOTS;
    sqlite3_stmt *st;
    struct series *s;
    enum pd_err err;

    for (; c->series[at].key_id; at = (at + 1) % SERIES_SLOTS) {
        s = &c->series[at];
        if (s->run_id == run_id && s->key_id == key && s->attempt == attempt) {
            *ret = s;
            return PD_OK;
        }
    }
    s = &c->series[at];
    err = db_bind(
        tx->db, &st, why,
        "SELECT chunk, count, nonfinite, first_step, last_step, first_us, last_us, min, max, sum FROM "
        "metric_rollup WHERE run_id = ?1 AND key_id = ?2 AND attempt = ?3 ORDER BY chunk DESC LIMIT 1",
        "iii", run_id, key, (int64_t)attempt);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK && err != PD_ERR_NOT_FOUND)
        return err;
    *s = (struct series){.run_id = run_id, .key_id = key, .attempt = attempt};
    fold_clear(&s->fold);
    if (err == PD_OK) {
        s->chunk = sqlite3_column_int64(st, 0);
        s->fold = (struct fold){
            .count = sqlite3_column_int64(st, 1),
            .nonfinite = sqlite3_column_int64(st, 2),
            .first_step = sqlite3_column_int64(st, 3),
            .last_step = sqlite3_column_int64(st, 4),
            .first_us = sqlite3_column_int64(st, 5),
            .last_us = sqlite3_column_int64(st, 6),
            .min = db_real(st, 7),
            .max = db_real(st, 8),
            .sum = sqlite3_column_double(st, 9),
        };
        if (isnan(s->fold.min)) {
            s->fold.min = INFINITY;
            s->fold.max = -INFINITY;
        }
        db_done(st);
    }
    c->series_count++;
    *ret = s;
    return PD_OK;
}

static enum pd_err latest_find(struct store_tx *tx, int64_t run_id, int64_t key, struct latest **ret,
                               struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    unsigned at = (unsigned)mix((uint64_t)run_id, (uint64_t)key) % SERIES_SLOTS;
    sqlite3_stmt *st;
    struct latest *l;
    enum pd_err err;

    for (; c->latest[at].key_id; at = (at + 1) % SERIES_SLOTS) {
        l = &c->latest[at];
        if (l->run_id == run_id && l->key_id == key) {
            *ret = l;
            return PD_OK;
        }
    }
    l = &c->latest[at];
    err = db_bind(
        tx->db, &st, why,
        "SELECT attempt, step, ts_us, value, count, min, max FROM metric_latest WHERE run_id = ?1 AND "
        "key_id = ?2",
        "ii", run_id, key);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK && err != PD_ERR_NOT_FOUND)
        return err;
    *l = (struct latest){
        .run_id = run_id, .key_id = key, .step = INT64_MIN, .min = INFINITY, .max = -INFINITY};
    l->fresh = err != PD_OK;
    if (err == PD_OK) {
        l->attempt = sqlite3_column_int(st, 0);
        l->step = sqlite3_column_int64(st, 1);
        l->ts_us = sqlite3_column_int64(st, 2);
        l->value = db_real(st, 3);
        l->count = sqlite3_column_int64(st, 4);
        l->min = db_real(st, 5);
        l->max = db_real(st, 6);
        if (isnan(l->min)) {
            l->min = INFINITY;
            l->max = -INFINITY;
        }
        db_done(st);
    }
    c->latest_count++;
    *ret = l;
    return PD_OK;
}

static enum pd_err series_write(struct store_tx *tx, struct series *s, struct pd_why *why)
{
    const struct fold *f = &s->fold;
    bool none = f->min > f->max;
    enum pd_err err;

    err = db_run(
        tx->db, why,
        "INSERT INTO metric_rollup (run_id, key_id, attempt, chunk, count, nonfinite, first_step, last_step, "
        "first_us, last_us, min, max, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) "
        "ON CONFLICT (run_id, key_id, attempt, chunk) DO UPDATE SET count = excluded.count, nonfinite = "
        "excluded.nonfinite, first_step = excluded.first_step, last_step = excluded.last_step, first_us = "
        "excluded.first_us, last_us = excluded.last_us, min = excluded.min, max = excluded.max, sum = "
        "excluded.sum",
        "iiiiiiiiiiddd", s->run_id, s->key_id, (int64_t)s->attempt, s->chunk, f->count, f->nonfinite,
        f->first_step, f->last_step, f->first_us, f->last_us, none ? (double)NAN : f->min,
        none ? (double)NAN : f->max, isnan(f->sum) ? 0.0 : f->sum);
    s->dirty = false;
    return err;
}

static enum pd_err latest_write(struct store_tx *tx, struct latest *l, struct pd_why *why)
{
    bool none = l->min > l->max;

    l->dirty = l->fresh = false;
    return db_run(
        tx->db, why,
        "INSERT INTO metric_latest (run_id, key_id, attempt, step, ts_us, value, count, min, max) VALUES "
        "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (run_id, key_id) DO UPDATE SET attempt = "
        "excluded.attempt, step = excluded.step, ts_us = excluded.ts_us, value = excluded.value, count = "
        "excluded.count, min = excluded.min, max = excluded.max",
        "iiiiididd", l->run_id, l->key_id, (int64_t)l->attempt, l->step, l->ts_us, l->value, l->count,
        none ? (double)NAN : l->min, none ? (double)NAN : l->max);
}

enum pd_err store_metric_flush(struct store_tx *tx, struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    enum pd_err err = PD_OK;

    for (unsigned i = 0; err == PD_OK && i < c->dirty_series_count; i++)
        if (c->series[c->dirty_series[i]].dirty)
            err = series_write(tx, &c->series[c->dirty_series[i]], why);
    for (unsigned i = 0; err == PD_OK && i < c->dirty_latest_count; i++)
        if (c->latest[c->dirty_latest[i]].dirty)
            err = latest_write(tx, &c->latest[c->dirty_latest[i]], why);
    c->dirty_series_count = c->dirty_latest_count = 0;
    return err;
}

/* Inserts one point unless the identical one is there. *ret_new says whether it was. */
static enum pd_err point_insert(struct store_tx *tx, int64_t run_id, int64_t key, int attempt,
                                const struct store_metric *p, bool *ret_new, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;
    int64_t dup = 0;

    err = db_run(tx->db, why, "INSERT INTO metric VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6) ON CONFLICT DO NOTHING",
                 "iiiiid", run_id, key, (int64_t)attempt, p->step, p->time_us, p->value);
    if (err != PD_OK)
        return err;
    *ret_new = sqlite3_changes(tx->db->db) == 1;
    if (*ret_new)
        return PD_OK;
    err = db_bind(
        tx->db, &st, why,
        "SELECT dup, value FROM metric WHERE run_id = ?1 AND key_id = ?2 AND attempt = ?3 AND step = ?4 AND "
        "ts_us = ?5 ORDER BY dup",
        "iiiii", run_id, key, (int64_t)attempt, p->step, p->time_us);
    while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK) {
        double there = db_real(st, 1);

        if (there == p->value || (isnan(there) && isnan(p->value))) {
            db_done(st);
            return PD_OK; /* a safe repeat */
        }
        dup = sqlite3_column_int64(st, 0) + 1;
    }
    if (err != PD_ERR_NOT_FOUND)
        return err;
    *ret_new = true;
    return db_run(tx->db, why, "INSERT INTO metric VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", "iiiiiid", run_id,
                  key, (int64_t)attempt, p->step, p->time_us, dup, p->value);
}

static enum pd_err series_add(struct store_tx *tx, struct series *s, const struct store_metric *p,
                              struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    struct fold *f = &s->fold;

    if (f->count >= STORE_ROLLUP_POINTS) {
        if (s->dirty) {
            enum pd_err err = series_write(tx, s, why);

            if (err != PD_OK)
                return err;
        }
        s->chunk++;
        fold_clear(f);
    }
    if (!f->count || p->step < f->first_step)
        f->first_step = p->step;
    if (!f->count || p->step > f->last_step)
        f->last_step = p->step;
    if (!f->count || p->time_us < f->first_us)
        f->first_us = p->time_us;
    if (!f->count || p->time_us > f->last_us)
        f->last_us = p->time_us;
    f->count++;
    if (isfinite(p->value)) {
        if (p->value < f->min)
            f->min = p->value;
        if (p->value > f->max)
            f->max = p->value;
        f->sum += p->value;
    } else
        f->nonfinite++;
    if (!s->dirty) {
        s->dirty = true;
        if (c->dirty_series_count == SERIES_SLOTS) { /* the list has entries of series written in between */
            enum pd_err err = store_metric_flush(tx, why);

            if (err != PD_OK)
                return err;
        }
        c->dirty_series[c->dirty_series_count++] = (unsigned)(s - c->series);
    }
    return PD_OK;
}

/* Latest = of the latest attempt, then the greatest step, then time. Attempt 0 is a client: never later than
 * a worker. */
static bool later(const struct latest *l, int attempt, const struct store_metric *p)
{
    if (!l->count)
        return true;
    if (attempt != l->attempt)
        return attempt > l->attempt;
    if (p->step != l->step)
        return p->step > l->step;
    return p->time_us >= l->ts_us;
}

static void latest_add(struct store_tx *tx, struct latest *l, int attempt, const struct store_metric *p)
{
    struct metric_cache *c = tx->metrics;
    bool counts = attempt || !l->attempt;

    if (attempt && !l->attempt) { /* points that a client logged under the worker's key are ignored */
        l->min = INFINITY;
        l->max = -INFINITY;
    }
    if (later(l, attempt, p)) {
        l->attempt = attempt;
        l->step = p->step;
        l->ts_us = p->time_us;
        l->value = p->value;
    }
    l->count++;
    if (counts && isfinite(p->value)) {
        if (p->value < l->min)
            l->min = p->value;
        if (p->value > l->max)
            l->max = p->value;
    }
    if (!l->dirty) {
        l->dirty = true;
        c->dirty_latest[c->dirty_latest_count++] = (unsigned)(l - c->latest);
    }
}

enum pd_err tx_series_source(struct store_tx *tx, int64_t run_id, const char *key, bool *ret_there,
                             int *ret_attempt, struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    struct latest *l = NULL;
    int64_t id;
    enum pd_err err = key_id(tx, key, &id, why);

    if (err == PD_OK && c->latest_count >= SERIES_MAX) {
        err = store_metric_flush(tx, why);
        store_metric_forget(c);
    }
    if (err == PD_OK)
        err = latest_find(tx, run_id, id, &l, why);
    if (err != PD_OK)
        return err;
    *ret_there = l->count > 0;
    *ret_attempt = l->attempt;
    return PD_OK;
}

/* How many keys the run has, those of this transaction among them. */
static enum pd_err run_keys(struct store_tx *tx, int64_t run_id, int64_t *ret, struct pd_why *why)
{
    const struct metric_cache *c = tx->metrics;
    enum pd_err err =
        db_int(tx->db, ret, why, "SELECT count(*) FROM metric_latest WHERE run_id = ?1", "i", run_id);

    for (unsigned i = 0; err == PD_OK && i < c->dirty_latest_count; i++) {
        const struct latest *l = &c->latest[c->dirty_latest[i]];

        *ret += l->dirty && l->fresh && l->run_id == run_id;
    }
    return err;
}

static void note_run(struct store_tx *tx, int64_t run_id, int64_t job_id)
{
    for (int i = tx->commit.run_count - 1; i >= 0; i--)
        if (tx->commit_runs[i].run_id == run_id)
            return;
    if (tx->commit.run_count < STORE_COMMIT_RUNS)
        tx->commit_runs[tx->commit.run_count++] =
            (struct store_commit_run){.run_id = run_id, .job_id = job_id};
}

enum pd_err store_metric_append(struct store_tx *tx, int64_t run_id, int attempt,
                                const struct store_metric *points, size_t count, int64_t *ret_new,
                                struct pd_why *why)
{
    struct metric_cache *c = tx->metrics;
    const char *key_name = NULL;
    struct series *s = NULL;
    struct latest *l = NULL;
    int64_t news = 0, key = 0, job_id, keys = -1;
    enum pd_err err;

    err = db_int(tx->db, &job_id, why,
                 "SELECT j.id FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE r.id = ?1",
                 "i", run_id);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no run %lld", (long long)run_id);
    if (err != PD_OK)
        return err;
    for (size_t i = 0; i < count; i++) {
        size_t len = strnlen(points[i].key, STORE_KEY_MAX + 1);

        if (!len || len > STORE_KEY_MAX)
            return pd_fail(why, PD_ERR_INVALID, "a metric key has 1 to %d bytes", STORE_KEY_MAX);
    }
    for (size_t i = 0; err == PD_OK && i < count; i++) {
        const struct store_metric *p = &points[i];
        bool is_new;

        if (c->series_count >= SERIES_MAX || c->latest_count >= SERIES_MAX) {
            err = store_metric_flush(tx, why);
            if (err != PD_OK)
                break;
            store_metric_forget(c);
            s = NULL;
        }
        if (!s || (p->key != key_name && strcmp(p->key, key_name) != 0)) {
            err = key_id(tx, p->key, &key, why);
            if (err == PD_OK)
                err = series_find(tx, run_id, key, attempt, &s, why);
            if (err == PD_OK)
                err = latest_find(tx, run_id, key, &l, why);
            if (err == PD_OK && !attempt && l->fresh && !l->count) {
                if (keys < 0)
                    err = run_keys(tx, run_id, &keys, why);
                if (err == PD_OK && keys++ >= STORE_RUN_KEYS_MAX)
                    err = pd_fail(why, PD_ERR_LIMIT,
                                  "run %lld has %d metric keys, which is the limit; '%s' would exceed it. "
                                  "Use steps instead of keys for values that vary",
                                  (long long)run_id, STORE_RUN_KEYS_MAX, p->key);
            }
            if (err != PD_OK)
                break;
            key_name = p->key;
        }
        err = point_insert(tx, run_id, key, attempt, p, &is_new, why);
        if (err != PD_OK)
            break;
        tx->metric_touches++;
        if (is_new) {
            news++;
            err = series_add(tx, s, p, why);
            latest_add(tx, l, attempt, p);
        }
    }
    if (err != PD_OK)
        return err;
    if (news) {
        tx->commit.points += news;
        note_run(tx, run_id, job_id);
    }
    if (ret_new)
        *ret_new = news;
    return PD_OK;
}
