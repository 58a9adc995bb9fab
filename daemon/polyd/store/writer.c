/* The writer thread. Invariants:
 *   - only this thread uses the writing connection, and only it checkpoints;
 *   - `done` of an accepted work is called exactly once, after its fate is on disk;
 *   - a group begins as soon as the one before is committed: there is no fixed wait;
 *   - a group takes commands, then worker state, then metrics, at most GROUP_ROWS rows, but always at least
 *     one metric batch if one waits, so no lane starves.
 * When the disk refuses (full, I/O error), the store is unhealthy: client commands are refused at once,
 * works with `keep` stay queued, and the group is tried again every PROBE_US. Those works also stay queued when
 * another program holds the file's lock, or memory is short. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/store/identity.h"
#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define GROUP_ROWS 1000
#define GROUP_WORKS STORE_COMMIT_RUNS
#define LANE_LIMIT 4096
#define PROBE_US 1000000
#define WAKE_NS 1000000000L
#define WAL_RESTART_BYTES (INT64_C(128) << 20) /* a log so long is cut even if commits must wait */
#define LOCK_WAIT_US 5000000                   /* for the lock of a daemon that is dead already */
#define IDEM_SWEEP_US (INT64_C(600) * 1000000)

struct lane {
    struct store_work *ring;
    int head, count;
    int limit; /* works accepted */
    int size;  /* of the ring: room for a group that comes back after a failure */
};

struct store_writer {
    pthread_t thread;
    bool thread_started;
    int lock_fd;
    char *path;
    char uuid[STORE_UUID_SIZE];
    bool external_checkpoint;
    struct db db;
    struct metric_cache *metrics;
    struct store_clock clock;

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t wake;
    struct lane lane[STORE_LANE_COUNT];
    bool stopping;
    enum pd_err health;
    struct pd_why health_why;
    struct store_stats stats;

    pthread_mutex_t listen_mutex; /* held while the listener runs */
    void (*listener)(void *ctx, const struct store_commit *c);
    void *listener_ctx;

    _Atomic int64_t alive_us;

    /* the thread's own */
    struct store_work group[GROUP_WORKS];
    enum pd_err result[GROUP_WORKS];
    struct pd_why why[GROUP_WORKS];
    int64_t idem_swept_us;
};

static bool is_disk_error(enum pd_err err)
{
    return err == PD_ERR_FULL || err == PD_ERR_IO || err == PD_ERR_CORRUPT;
}

/* Whether the same group may succeed later. */
static bool passes(enum pd_err err)
{
    return is_disk_error(err) || err == PD_ERR_BUSY || err == PD_ERR_NOMEM;
}

/* ---- lanes (mutex held) --------------------------------------------------------------------- */

static void lane_push(struct lane *l, const struct store_work *work)
{
    l->ring[(l->head + l->count++) % l->size] = *work;
}

/* Back to the front: order within a lane is kept. */
static void lane_unpop(struct lane *l, const struct store_work *work)
{
    l->head = (l->head + l->size - 1) % l->size;
    l->ring[l->head] = *work;
    l->count++;
}

static struct store_work lane_pop(struct lane *l)
{
    struct store_work work = l->ring[l->head];

    l->head = (l->head + 1) % l->size;
    l->count--;
    return work;
}

static int take_group(struct store_writer *w)
{
    int n = 0, rows = 0;

    for (int i = 0; i < STORE_LANE_COUNT; i++) {
        struct lane *l = &w->lane[i];
        /* The last place belongs to a metric batch. */
        int most = i == STORE_LANE_METRICS ? GROUP_WORKS : GROUP_WORKS - 1;
        bool first = i == STORE_LANE_METRICS;

        while (l->count && n < most) {
            int more = l->ring[l->head].rows > 0 ? l->ring[l->head].rows : 1;

            if (rows && rows + more > GROUP_ROWS && !first)
                break;
            w->group[n++] = lane_pop(l);
            rows += more;
            first = false;
        }
    }
    return n;
}

/* ---- a group -------------------------------------------------------------------------------- */

static enum pd_err apply_one(struct store_writer *w, struct store_tx *tx, struct store_work *work,
                             struct pd_why *why)
{
    struct store_commit before = tx->commit;
    enum pd_err err = db_run(&w->db, why, "SAVEPOINT work", "");

    if (err != PD_OK)
        return err;
    err = work->apply(tx, work->ctx, why);
    if (err == PD_OK)
        return db_run(&w->db, why, "RELEASE work", "");
    tx->commit = before;
    if (!sqlite3_get_autocommit(w->db.db)) {
        struct pd_why ignored;

        if (db_run(&w->db, &ignored, "ROLLBACK TO work", "") != PD_OK ||
            db_run(&w->db, &ignored, "RELEASE work", "") != PD_OK)
            sqlite3_exec(w->db.db, "ROLLBACK", NULL, NULL, NULL);
    }
    return err;
}

/* After the disk refused, while the queues are empty: whether it accepts a page again. */
static enum pd_err probe(struct store_writer *w, struct store_tx *tx, struct pd_why *why)
{
    return db_run(&w->db, why,
                  "INSERT INTO plan (digest, plan, created_us) VALUES ('probe', hex(zeroblob(4096)), ?1) "
                  "ON CONFLICT (digest) DO UPDATE SET created_us = excluded.created_us",
                  "i", tx->now_us);
}

/* Applies and commits works 0..n-1; fills result and why. n = 0: only a probe. */
static void run_group(struct store_writer *w, int n, struct store_tx *tx)
{
    enum pd_err err;
    struct pd_why why;

    for (int i = 0; i < n; i++) {
        w->result[i] = PD_OK;
        w->why[i].text[0] = '\0';
    }
again:
    why.text[0] = '\0';
    *tx = (struct store_tx){.db = &w->db,
                            .now_us = pd_clock_wall_us(),
                            .clock_us = store_clock_us(&w->clock),
                            .metrics = w->metrics};
    tx->commit.runs = tx->commit_runs;
    err = db_run(&w->db, &why, "BEGIN IMMEDIATE", "");
    if (err == PD_OK && !n)
        err = probe(w, tx, &why);
    for (int i = 0; err == PD_OK && i < n; i++) {
        int64_t points = tx->metric_touches;

        if (w->result[i] != PD_OK)
            continue; /* failed in the round before */
        w->result[i] = apply_one(w, tx, &w->group[i], &w->why[i]);
        if (w->result[i] == PD_OK)
            continue;
        if (sqlite3_get_autocommit(w->db.db) || is_disk_error(w->result[i])) {
            /* The whole transaction is gone or cannot be trusted: nothing of the group stands. */
            err = w->result[i];
            why = w->why[i];
        } else if (points != tx->metric_touches) {
            /* The savepoint undid its points, but the roll-ups in memory include them together with those of
             * earlier works: begin again without it. Rare: metrics are checked before they are written. */
            store_metric_forget(w->metrics);
            sqlite3_exec(w->db.db, "ROLLBACK", NULL, NULL, NULL);
            goto again;
        }
    }
    if (err == PD_OK)
        err = store_metric_flush(tx, &why);
    if (err == PD_OK && w->idem_swept_us + IDEM_SWEEP_US < tx->clock_us) {
        err = db_run(&w->db, &why, "DELETE FROM idempotency WHERE created_us < ?1", "i",
                     tx->clock_us - STORE_IDEM_KEEP_US);
        w->idem_swept_us = tx->clock_us;
    }
    if (err == PD_OK)
        err = store_clock_save(&w->db, &w->clock, tx->clock_us, &why);
    if (err == PD_OK)
        err = db_run(&w->db, &why, "COMMIT", "");
    if (err != PD_OK) {
        if (!sqlite3_get_autocommit(w->db.db))
            sqlite3_exec(w->db.db, "ROLLBACK", NULL, NULL, NULL);
        store_metric_forget(w->metrics);
        for (int i = 0; i < n; i++) {
            w->result[i] = err;
            w->why[i] = why;
        }
        memset(&tx->commit, 0, sizeof tx->commit);
        tx->failed = err;
        tx->failed_why = why;
    }
}

static int64_t file_bytes(const char *path, const char *suffix)
{
    char name[4096];
    struct stat st;

    if ((size_t)snprintf(name, sizeof name, "%s%s", path, suffix) >= sizeof name || stat(name, &st))
        return 0;
    return st.st_size;
}

static void note_commit(struct store_writer *w, const struct store_tx *tx, int n, int64_t us)
{
    int bin = 0;

    for (int64_t edge = 250; bin < 11 && us > edge; edge *= 2)
        bin++;
    w->stats.commits++;
    w->stats.points += tx->commit.points;
    w->stats.rows += n;
    w->stats.commit_us_total += us;
    if (us > w->stats.commit_us_max)
        w->stats.commit_us_max = us;
    w->stats.commit_hist[bin]++;
}

/* One group from the lanes to the callbacks. The mutex is not held. False: it is to be tried again, later. */
static bool turn(struct store_writer *w, int n, bool last_chance)
{
    struct store_tx tx;
    int64_t begin_us = pd_clock_mono_us(), end_us;
    enum pd_err group = PD_OK;
    struct pd_why group_why = {""};

    run_group(w, n, &tx);
    end_us = pd_clock_mono_us();
    if (is_disk_error(tx.failed)) {
        group = tx.failed;
        group_why = tx.failed_why;
    }
    if (group == PD_OK) {
        pthread_mutex_lock(&w->listen_mutex);
        if (w->listener && (tx.commit.events || tx.commit.points))
            w->listener(w->listener_ctx, &tx.commit);
        pthread_mutex_unlock(&w->listen_mutex);
    }

    pthread_mutex_lock(&w->mutex);
    if (tx.failed == PD_OK)
        note_commit(w, &tx, n, end_us - begin_us);
    if (group != w->health) {
        if (group == PD_OK)
            pd_log(PD_LOG_INFO, "store", "health=ok");
        else
            pd_log(PD_LOG_ERROR, "store", "health=%s why=\"%s\"", pd_err_name(group), group_why.text);
    }
    w->health = group;
    w->health_why = group_why;
    /* From the last to the first, so that each lane gets its works back in order. */
    if (passes(tx.failed) && !last_chance)
        for (int i = n - 1; i >= 0; i--)
            if (w->group[i].keep) {
                lane_unpop(&w->lane[w->group[i].lane], &w->group[i]);
                w->group[i].apply = NULL; /* moved back */
            }
    pthread_mutex_unlock(&w->mutex);

    for (int i = 0; i < n; i++)
        if (w->group[i].apply && w->group[i].done)
            w->group[i].done(w->group[i].ctx, w->result[i], &w->why[i]);
    return !passes(tx.failed);
}

static int waiting(const struct store_writer *w)
{
    int n = 0;

    for (int i = 0; i < STORE_LANE_COUNT; i++)
        n += w->lane[i].count;
    return n;
}

static void wait_ns(struct store_writer *w, int64_t ns)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (until.tv_nsec + ns) / 1000000000L;
    until.tv_nsec = (until.tv_nsec + ns) % 1000000000L;
    pthread_cond_timedwait(&w->wake, &w->mutex, &until);
}

/* A quiet moment: bring the log into the file, so that it stays short. */
static void idle_checkpoint(struct store_writer *w, bool force)
{
    if (!w->external_checkpoint)
        sqlite3_wal_checkpoint_v2(w->db.db, NULL,
                                  force ? SQLITE_CHECKPOINT_RESTART : SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

static void *writer_thread(void *arg)
{
    struct store_writer *w = arg;
    bool dirty = false;
    int64_t wal_checked_us = 0;

    pthread_mutex_lock(&w->mutex);
    for (;;) {
        bool last_chance = w->stopping;
        int64_t now_us = pd_clock_mono_us();
        bool done;
        int n;

        atomic_store(&w->alive_us, now_us);
        if (now_us - wal_checked_us > PROBE_US) {
            int64_t wal, db;

            pthread_mutex_unlock(&w->mutex);
            wal = file_bytes(w->path, "-wal");
            db = file_bytes(w->path, "");
            if (wal > WAL_RESTART_BYTES)
                idle_checkpoint(w, true);
            pthread_mutex_lock(&w->mutex);
            w->stats.wal_bytes = wal;
            w->stats.db_bytes = db;
            wal_checked_us = now_us;
        }
        if (!waiting(w)) {
            if (w->stopping)
                break;
            wait_ns(w, WAKE_NS);
            if (!waiting(w) && !w->stopping && w->health != PD_OK) {
                pthread_mutex_unlock(&w->mutex);
                (void)turn(w, 0, false);
                pthread_mutex_lock(&w->mutex);
            } else if (!waiting(w) && !w->stopping && dirty) {
                pthread_mutex_unlock(&w->mutex);
                idle_checkpoint(w, false);
                dirty = false;
                pthread_mutex_lock(&w->mutex);
            }
            continue;
        }
        n = take_group(w);
        pthread_mutex_unlock(&w->mutex);
        done = turn(w, n, last_chance);
        dirty = true;
        pthread_mutex_lock(&w->mutex);
        /* What was kept is tried again, but not in a busy loop. */
        if (!done && !w->stopping)
            wait_ns(w, PROBE_US * 1000);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------- */

/* Field 22 of /proc/PID/stat; 0 = no such process, or one that is dead already. */
static unsigned long long start_time(const char *pid)
{
    char path[64], text[1024], *at = NULL;
    unsigned long long start = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    f = fopen(path, "re");
    if (f && fgets(text, sizeof text, f))
        at = strrchr(text, ')');
    if (at && at[1] == ' ' && at[2] != 'Z') {
        for (int i = 0; i < 20 && at; i++)
            at = strchr(at + 1, ' ');
        start = at ? strtoull(at + 1, NULL, 10) : 0;
    }
    if (f)
        fclose(f);
    return start;
}

static bool owner_lives(int fd)
{
    char text[64] = "", pid[24];
    unsigned long long start;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);

    if (n <= 0 || sscanf(text, "%23[0-9] %llu", pid, &start) != 2)
        return false; /* being taken at this moment, or never: the wait decides */
    return start && start_time(pid) == start;
}

static enum pd_err lock_dir(struct store_writer *w, const char *dir, struct pd_why *why)
{
    char path[4096], text[64];
    int64_t end_us = pd_clock_mono_us() + LOCK_WAIT_US;
    int len;

    if ((size_t)snprintf(path, sizeof path, "%s/lock", dir) >= sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    w->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (w->lock_fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    while (flock(w->lock_fd, LOCK_EX | LOCK_NB)) {
        struct timespec pause = {.tv_nsec = 20000000};

        if (errno != EWOULDBLOCK)
            return pd_fail_errno(why, errno, "cannot lock '%s'", path);
        /* One that was killed while it started a worker leaves the lock with that child until its exec: a
         * moment, but a restart is quick. The name in the file tells it from a live daemon. */
        if (owner_lives(w->lock_fd) || pd_clock_mono_us() > end_us)
            return pd_fail(why, PD_ERR_BUSY, "another polyd uses the state directory '%s'", dir);
        nanosleep(&pause, NULL);
    }
    len = snprintf(text, sizeof text, "%ld %llu\n", (long)getpid(), start_time("self"));
    if (ftruncate(w->lock_fd, 0) || pwrite(w->lock_fd, text, (size_t)len, 0) != len)
        return pd_fail_errno(why, errno, "cannot write '%s'", path);
    return PD_OK;
}

static struct store_writer *writer_free(struct store_writer *w)
{
    if (!w)
        return NULL;
    store_metric_cache_free(w->metrics);
    db_close(&w->db);
    for (int i = 0; i < STORE_LANE_COUNT; i++)
        free(w->lane[i].ring);
    if (w->lock_fd >= 0)
        close(w->lock_fd);
    pthread_mutex_destroy(&w->mutex);
    pthread_mutex_destroy(&w->listen_mutex);
    pthread_cond_destroy(&w->wake);
    free(w->path);
    free(w);
    return NULL;
}

static enum pd_err writer_init(struct store_writer *w, const struct store_writer_options *o,
                               struct pd_why *why)
{
    pthread_condattr_t attr;
    char backup[4096];
    enum pd_err err;

    w->lock_fd = -1;
    w->external_checkpoint = o->external_checkpoint;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_mutex_init(&w->listen_mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    atomic_store(&w->alive_us, pd_clock_mono_us());

    if (asprintf(&w->path, "%s/polyd.db", o->state_dir) < 0) {
        w->path = NULL;
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a path");
    }
    for (int i = 0; i < STORE_LANE_COUNT; i++) {
        struct lane *l = &w->lane[i];

        l->limit = o->limits[i] > 0 ? o->limits[i] : o->lane_limit > 0 ? o->lane_limit : LANE_LIMIT;
        l->size = l->limit + GROUP_WORKS;
        l->ring = calloc((size_t)l->size, sizeof *l->ring);
        if (!w->lane[i].ring)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the writer's lanes");
    }
    w->metrics = store_metric_cache_new();
    if (!w->metrics)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the metric cache");
    err = lock_dir(w, o->state_dir, why);
    if (err == PD_OK)
        err = store_identity_admit(o->state_dir, o->init, why);
    if (err != PD_OK)
        return err;
    err = db_open(&w->db, w->path, true, why);
    if (err != PD_OK)
        return err;
    if ((size_t)snprintf(backup, sizeof backup, "%s.before-migration", w->path) >= sizeof backup)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    err = store_migrate(&w->db, backup, (struct store_busy){o->busy, o->busy_ctx}, why);
    if (err == PD_OK)
        err = store_clock_start(&w->db, &w->clock, why);
    if (err == PD_OK)
        err = store_identity_settle(&w->db, o->state_dir, w->external_checkpoint, w->uuid, why);
    if (err != PD_OK)
        return err;
    if (w->external_checkpoint)
        err = db_exec(&w->db, "PRAGMA wal_autocheckpoint = 0", why);
    return err;
}

enum pd_err store_writer_start(const struct store_writer_options *o, struct store_writer **ret,
                               struct pd_why *why)
{
    struct store_writer *w = calloc(1, sizeof *w);
    enum pd_err err;
    int rc;

    if (!w)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the store writer");
    err = writer_init(w, o, why);
    if (err != PD_OK) {
        writer_free(w);
        return err;
    }
    pd_log(PD_LOG_INFO, "store", "path=%s schema=%d sqlite=%s source=\"%s\"", w->path, store_schema_version(),
           sqlite3_libversion(), sqlite3_sourceid());
    rc = pthread_create(&w->thread, NULL, writer_thread, w);
    if (rc) {
        writer_free(w);
        return pd_fail_errno(why, rc, "cannot start the store writer");
    }
    w->thread_started = true;
    *ret = w;
    return PD_OK;
}

struct store_writer *store_writer_stop(struct store_writer *w)
{
    if (!w)
        return NULL;
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    return writer_free(w);
}

const char *store_writer_path(const struct store_writer *w)
{
    return w->path;
}

int64_t store_writer_clock_us(const struct store_writer *w)
{
    return store_clock_us(&w->clock);
}

int64_t store_writer_previous_us(const struct store_writer *w)
{
    return w->clock.previous_us;
}

const char *store_writer_uuid(const struct store_writer *w)
{
    return w->uuid;
}

/* ---- handing work in ------------------------------------------------------------------------ */

enum pd_err store_writer_submit(struct store_writer *w, const struct store_work *work, struct pd_why *why)
{
    struct lane *l = &w->lane[work->lane];
    enum pd_err err = PD_OK;

    pthread_mutex_lock(&w->mutex);
    if (w->stopping)
        err = pd_fail(why, PD_ERR_CLOSED, "the store is stopping");
    else if (w->health != PD_OK && !work->keep)
        err = pd_fail(why, w->health, "the store cannot write: %s", w->health_why.text);
    else if (l->count >= l->limit) {
        w->stats.busy++;
        err = pd_fail(why, PD_ERR_BUSY, "the store's queue is full");
    } else {
        bool was_idle = !waiting(w);

        lane_push(l, work);
        if (was_idle)
            pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->mutex);
    return err;
}

struct call {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool over;
    enum pd_err err;
    struct pd_why why;
    const struct store_work *work;
};

static enum pd_err call_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct call *c = ctx;

    return c->work->apply(tx, c->work->ctx, why);
}

static void call_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct call *c = ctx;

    if (c->work->done)
        c->work->done(c->work->ctx, err, why);
    pthread_mutex_lock(&c->mutex);
    c->over = true;
    c->err = err;
    c->why = *why;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mutex);
}

enum pd_err store_writer_call(struct store_writer *w, const struct store_work *work, struct pd_why *why)
{
    struct call c = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .work = work};
    struct store_work outer = *work;
    enum pd_err err;

    outer.apply = call_apply;
    outer.done = call_done;
    outer.ctx = &c;
    err = store_writer_submit(w, &outer, why);
    if (err == PD_OK) {
        pthread_mutex_lock(&c.mutex);
        while (!c.over)
            pthread_cond_wait(&c.cond, &c.mutex);
        pthread_mutex_unlock(&c.mutex);
        err = c.err;
        if (err != PD_OK && why)
            *why = c.why;
    }
    pthread_mutex_destroy(&c.mutex);
    pthread_cond_destroy(&c.cond);
    return err;
}

void store_writer_listen(struct store_writer *w, void (*fn)(void *ctx, const struct store_commit *c),
                         void *ctx)
{
    pthread_mutex_lock(&w->listen_mutex);
    w->listener = fn;
    w->listener_ctx = ctx;
    pthread_mutex_unlock(&w->listen_mutex);
}

enum pd_err store_writer_health(struct store_writer *w, struct pd_why *why)
{
    enum pd_err err;

    pthread_mutex_lock(&w->mutex);
    err = w->health;
    if (err != PD_OK && why)
        *why = w->health_why;
    pthread_mutex_unlock(&w->mutex);
    return err;
}

int64_t store_writer_alive_us(struct store_writer *w)
{
    return atomic_load(&w->alive_us);
}

void store_writer_stats(struct store_writer *w, struct store_stats *ret)
{
    pthread_mutex_lock(&w->mutex);
    *ret = w->stats;
    for (int i = 0; i < STORE_LANE_COUNT; i++)
        ret->queued[i] = w->lane[i].count;
    pthread_mutex_unlock(&w->mutex);
}
