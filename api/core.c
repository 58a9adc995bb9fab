/* What the handlers share: readers by thread, the news of commits, the contract as JSON, counters. */
#include "api/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define CHANGED_RUNS 1024     /* runs remembered as changed; the one changed longest ago is forgotten first */
#define JOBS_COUNT_US 1000000 /* how old the count of open jobs may be */
#define POINTS_WAKE_US 500000 /* streams are notified of new points at most this often */

struct changed {
    int64_t run, job;
    uint64_t seq;
};

struct api_core {
    struct api *api;
    char *path; /* of the store's file */
    int64_t started_us;
    uint8_t cursor_key[API_CURSOR_KEY_BYTES];
    atomic_int infer;
    _Atomic int64_t last_event; /* -1 = not known yet */
    pthread_mutex_t lock;       /* guards what follows */
    uint64_t seq;
    int changed_count;
    struct changed changed[CHANGED_RUNS];
    int64_t points_wake_us;
    int64_t jobs, jobs_us; /* not ended, when counted; monotonic, 0 = never */
};

/* ---- counters --------------------------------------------------------------------------------- */

const int64_t api_duration_bounds[API_DURATIONS] = {100,    500,    1000,    5000,     20000,
                                                    100000, 500000, 2000000, 10000000, 60000000};
const int api_codes[API_CODES] = {0,   200, 201, 204, 206, 304, 400, 403, 404, 405, 409, 412,
                                  413, 415, 416, 422, 424, 428, 429, 500, 501, 502, 503, 504};

void api_count_request(struct api_counters *c, const struct api_route *route, int status, int64_t us)
{
    size_t row = route ? (size_t)(route - api_routes) : API_ROUTES_MAX;
    int column = 0, bucket = 0;

    for (int i = 1; i < API_CODES; i++)
        if (api_codes[i] == status)
            column = i;
    while (bucket < API_DURATIONS && us > api_duration_bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&c->requests[row][column], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->duration[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->duration_us, (unsigned long long)us, memory_order_relaxed);
}

/* ---- readers ---------------------------------------------------------------------------------- */

static pthread_key_t reader_key;
static pthread_once_t reader_once = PTHREAD_ONCE_INIT;

static void reader_close(void *reader)
{
    store_close(reader);
}

static void reader_key_make(void)
{
    /* Without a key there is no reader: api_reader then fails each request that needs one. */
    if (pthread_key_create(&reader_key, reader_close) != 0)
        pd_log(PD_LOG_ERROR, "api", "why=\"no thread key left\"");
}

struct store *api_reader_of(struct api *api, struct pd_why *why)
{
    struct store *reader;

    pthread_once(&reader_once, reader_key_make);
    reader = pthread_getspecific(reader_key);
    if (reader) {
        store_reader_until(reader, api_pool_read_until_us());
        return reader;
    }
    if (store_open_reader(api_core_of(api)->path, &reader, why) != PD_OK)
        return NULL;
    if (pthread_setspecific(reader_key, reader) != 0) {
        store_close(reader);
        pd_fail(why, PD_ERR_NOMEM, "no memory for a reader");
        return NULL;
    }
    store_reader_until(reader, api_pool_read_until_us());
    return reader;
}

struct store *api_reader(struct api_req *r)
{
    struct pd_why why = {.text = ""};
    struct store *reader = api_reader_of(api_of(r), &why);

    if (!reader)
        api_fail(r, PD_ERR_IO, "cannot read the store: %.300s", why.text);
    return reader;
}

/* ---- news ------------------------------------------------------------------------------------- */

/* Moves the run to the end: `changed` is in the order of seq. */
static void run_changed(struct api_core *core, const struct store_commit_run *r)
{
    int at = 0;

    while (at < core->changed_count && core->changed[at].run != r->run_id)
        at++;
    if (at == CHANGED_RUNS)
        at = 0;
    else if (at == core->changed_count)
        core->changed_count++;
    memmove(&core->changed[at], &core->changed[at + 1],
            (size_t)(core->changed_count - at - 1) * sizeof core->changed[0]);
    core->changed[core->changed_count - 1] =
        (struct changed){.run = r->run_id, .job = r->job_id, .seq = ++core->seq};
}

static void committed(void *ctx, const struct store_commit *c)
{
    struct api_core *core = ctx;
    bool wake = c->events;

    if (c->events)
        atomic_store(&core->last_event, c->last_event_id);
    if (c->points > 0) {
        int64_t now = pd_clock_mono_us();

        pthread_mutex_lock(&core->lock);
        for (int i = 0; i < c->run_count; i++)
            run_changed(core, &c->runs[i]);
        if (now - core->points_wake_us >= POINTS_WAKE_US) {
            core->points_wake_us = now;
            wake = true;
        }
        pthread_mutex_unlock(&core->lock);
    }
    if (wake)
        api_streams_wake(core->api);
}

int64_t api_core_last_event(struct api_core *core)
{
    return atomic_load(&core->last_event);
}

uint64_t api_core_change_seq(struct api_core *core)
{
    uint64_t seq;

    pthread_mutex_lock(&core->lock);
    seq = core->seq;
    pthread_mutex_unlock(&core->lock);
    return seq;
}

int api_core_changed_runs(struct api_core *core, uint64_t *seq, int64_t job, int64_t run, int64_t *out,
                          int most)
{
    int n = 0;

    pthread_mutex_lock(&core->lock);
    for (int i = 0; i < core->changed_count && n < most; i++) {
        const struct changed *c = &core->changed[i];

        if (c->seq <= *seq)
            continue;
        *seq = c->seq;
        if ((!job || c->job == job) && (!run || c->run == run))
            out[n++] = c->run;
    }
    if (n < most)
        *seq = core->seq;
    pthread_mutex_unlock(&core->lock);
    return n;
}

/* ---- open jobs -------------------------------------------------------------------------------- */

enum pd_err api_core_job_reserve(struct api_core *core, struct store *store, int64_t most, bool *ret_fits,
                                 struct pd_why *why)
{
    int64_t now = pd_clock_mono_us(), fresh = -1;
    bool stale;

    pthread_mutex_lock(&core->lock);
    stale = core->jobs_us == 0 || now - core->jobs_us > JOBS_COUNT_US;
    pthread_mutex_unlock(&core->lock);
    if (stale) {
        struct store_counts counts;
        enum pd_err err = store_count(store, &counts, why);

        if (err != PD_OK)
            return err;
        fresh = 0;
        for (int i = 0; i < JOB_STATE_COUNT; i++)
            if (!job_state_final((enum job_state)i))
                fresh += counts.jobs[i];
    }
    pthread_mutex_lock(&core->lock);
    if (fresh >= 0) {
        core->jobs = fresh;
        core->jobs_us = now;
    }
    *ret_fits = core->jobs < most;
    core->jobs += *ret_fits;
    pthread_mutex_unlock(&core->lock);
    return PD_OK;
}

/* ---- inference places ------------------------------------------------------------------------- */

bool api_core_infer_enter(struct api_core *core, int most)
{
    if (atomic_fetch_add(&core->infer, 1) < most)
        return true;
    atomic_fetch_sub(&core->infer, 1);
    return false;
}

void api_core_infer_leave(struct api_core *core)
{
    atomic_fetch_sub(&core->infer, 1);
}

int api_core_infer_count(struct api_core *core)
{
    return atomic_load(&core->infer);
}

/* ---- life ------------------------------------------------------------------------------------- */

struct secret {
    uint8_t fresh[API_CURSOR_KEY_BYTES], key[API_CURSOR_KEY_BYTES];
};

static enum pd_err secret_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct secret *s = ctx;

    return store_secret(tx, "cursor", s->fresh, s->key, why);
}

/* The key that signs page cursors is kept by the store: a page that a client holds is good after a restart. A
 * store that refuses writes just now must not keep the server from starting: then the key is of this start.
 */
static enum pd_err cursor_key(struct api_core *core, struct store_writer *writer, struct pd_why *why)
{
    struct secret s;
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1, .apply = secret_apply, .ctx = &s};
    enum pd_err err = digest_random(s.fresh, sizeof s.fresh, why);

    if (err != PD_OK)
        return err;
    err = store_writer_call(writer, &work, why);
    if (err != PD_OK)
        pd_log(PD_LOG_WARNING, "api", "cursor_key=unwritten error=%s why=\"%s\"", pd_err_name(err),
               why->text);
    memcpy(core->cursor_key, err == PD_OK ? s.key : s.fresh, sizeof core->cursor_key);
    return PD_OK;
}

enum pd_err api_core_new(struct api *api, struct api_core **ret, struct pd_why *why)
{
    const struct api_deps *deps = api_deps_of(api);
    struct api_core *core = calloc(1, sizeof *core);
    enum pd_err err;

    if (!core)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
    pthread_mutex_init(&core->lock, NULL);
    core->api = api;
    atomic_init(&core->last_event, -1);
    core->started_us = pd_clock_wall_us();
    core->path = strdup(store_writer_path(deps->writer));
    if (!core->path) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
        goto out;
    }
    err = cursor_key(core, deps->writer, why);
    if (err != PD_OK)
        goto out;
    store_writer_listen(deps->writer, committed, core);
    *ret = core;
    core = NULL; /* moved to the caller */
out:
    if (core)
        core->api = NULL;
    api_core_free(core);
    return err;
}

void api_core_stop(struct api_core *core)
{
    if (core && core->api)
        store_writer_listen(api_deps_of(core->api)->writer, NULL, NULL);
}

struct api_core *api_core_free(struct api_core *core)
{
    if (core) {
        pthread_mutex_destroy(&core->lock);
        free(core->path);
        free(core);
    }
    return NULL;
}

int64_t api_core_started_us(const struct api_core *core)
{
    return core->started_us;
}

const uint8_t *api_core_cursor_key(const struct api_core *core)
{
    return core->cursor_key;
}
