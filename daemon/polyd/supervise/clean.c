#include "daemon/polyd/supervise/clean.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/tree.h"

#define ROWS_AT_ONCE 1000 /* of one commit: some 10 ms of the writer's time */
#define FOLDERS_AT_ONCE 4 /* of one step: a stop of polyd waits for them */
#define LOOK_S 30         /* a wake-up may have been lost */
#define AGAIN_S 1         /* a folder is in use, or the store refused */
#define CACHE_S 60        /* between two looks at the cache */
#define PATH_SIZE 4096

/* ---- one step ---------------------------------------------------------------------------------- */

struct rows_work {
    bool worked;
};

static enum pd_err rows_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_clean_rows(tx, ROWS_AT_ONCE, &((struct rows_work *)ctx)->worked, why);
}

/* The writer may apply work again after a rollback: each time from the same place. */
struct blobs_work {
    struct store_blob_pass from, to;
};

static enum pd_err blobs_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct blobs_work *w = ctx;

    w->to = w->from;
    return store_clean_blobs(tx, &w->to, why);
}

static enum pd_err weights_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_clean_weights(tx, &((struct rows_work *)ctx)->worked, why);
}

static enum pd_err done_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_remnant_done(tx, *(int64_t *)ctx, why);
}

/* Counted as one row, so that the writer does not let the step wait until it has nothing else to do. */
static enum pd_err call(const struct clean_host *h,
                        enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), void *ctx,
                        struct pd_why *why)
{
    struct store_work work = {.lane = STORE_LANE_WORKER, .rows = 1, .apply = apply, .ctx = ctx};

    return store_writer_call(h->writer, &work, why);
}

struct folders {
    int64_t run[FOLDERS_AT_ONCE];
    int count;
};

static bool note_folder(void *ctx, int64_t run_id)
{
    struct folders *f = ctx;

    f->run[f->count++] = run_id;
    return f->count < FOLDERS_AT_ONCE;
}

/* The row goes after the folder: a step that is cut off between is done again. */
static enum pd_err remove_folders(const struct clean_host *h, struct clean_pass *pass, bool *ret_worked,
                                  struct pd_why *why)
{
    struct folders f = {.count = 0};
    enum pd_err err = store_remnant_list(h->reader, pass->run, note_folder, &f, why);

    *ret_worked = f.count > 0;
    for (int i = 0; err == PD_OK && i < f.count; i++) {
        char path[PATH_SIZE];
        struct pd_why reason;

        pass->run = f.run[i];
        if (h->busy && h->busy(h->ctx, f.run[i])) {
            pass->busy++;
            continue;
        }
        snprintf(path, sizeof path, "%s/runs/%lld", h->state_dir, (long long)f.run[i]);
        if (pd_tree_remove(path, &reason) == PD_OK)
            err = call(h, done_apply, &f.run[i], why);
        else if (!pass->kept++)
            pass->why = reason;
    }
    return err;
}

/* Files first: their table stays short, however many runs a deleted job has. */
enum pd_err clean_step(const struct clean_host *h, struct clean_pass *pass, bool *ret_worked,
                       struct pd_why *why)
{
    struct blobs_work blobs = {.from = pass->blobs};
    struct rows_work rows = {false};
    enum pd_err err = call(h, blobs_apply, &blobs, why);

    *ret_worked = false;
    if (err != PD_OK)
        return err;
    pass->blobs = blobs.to;
    *ret_worked = pass->blobs.worked;
    if (*ret_worked)
        return PD_OK;
    err = call(h, rows_apply, &rows, why);
    if (err != PD_OK)
        return err;
    *ret_worked = rows.worked;
    if (rows.worked) {
        pass->blobs = (struct store_blob_pass){.worked = true}; /* there may be new files */
        return PD_OK;
    }
    err = call(h, weights_apply, &rows, why);
    if (err != PD_OK)
        return err;
    *ret_worked = rows.worked;
    if (rows.worked)
        return PD_OK;
    err = remove_folders(h, pass, ret_worked, why);
    if (err == PD_OK && !*ret_worked && pass->blobs.kept) {
        if (!pass->kept)
            pass->why = pass->blobs.why;
        pass->kept += pass->blobs.kept;
    }
    return err;
}

/* ---- uploads ----------------------------------------------------------------------------------- */

static enum pd_err clean_folder(const char *state_dir, const char *folder, struct store *reader,
                                struct pd_why *why)
{
    char path[PATH_SIZE + 300];
    const struct dirent *e;
    enum pd_err err = PD_OK;
    DIR *d;

    snprintf(path, sizeof path, "%s/%s", state_dir, folder);
    d = opendir(path);
    while (d && err == PD_OK && (e = readdir(d))) {
        bool known = false;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (reader)
            err = store_weights_known(reader, e->d_name, &known, why);
        if (err != PD_OK || known)
            continue;
        snprintf(path, sizeof path, "%.4000s/%s/%s", state_dir, folder, e->d_name);
        pd_log(PD_LOG_INFO, "supervise", "upload=unfinished file=%s removed=%d", e->d_name, !unlink(path));
    }
    if (d)
        closedir(d);
    return err;
}

enum pd_err clean_uploads(const char *state_dir, struct store *reader, struct pd_why *why)
{
    enum pd_err err = clean_folder(state_dir, "uploads", NULL, why);

    return err == PD_OK ? clean_folder(state_dir, "models", reader, why) : err;
}

/* ---- the cache --------------------------------------------------------------------------------- */

enum pd_err clean_bound(const char *state_dir, int64_t max_bytes, struct pd_why *why)
{
    char dir[PATH_SIZE], path[PATH_SIZE + 16], text[32];
    int len = snprintf(text, sizeof text, "%lld\n", (long long)max_bytes);
    enum pd_err err;

    snprintf(dir, sizeof dir, "%s/cache", state_dir);
    snprintf(path, sizeof path, "%s/limit", dir);
    err = pd_file_make_dirs(dir, why);
    return err == PD_OK ? pd_file_replace(path, text, (size_t)len, 0600, why) : err;
}

static void trim_cache(const char *state_dir, int64_t max_bytes)
{
    char dir[PATH_SIZE];
    struct pd_tree held;
    struct pd_why why = {""};
    int64_t freed = 0;
    enum pd_err err;

    snprintf(dir, sizeof dir, "%s/cache", state_dir);
    err = pd_folder_measure(dir, CLEAN_CACHE_SUFFIX, &held, &why);
    if (err == PD_OK && held.bytes > max_bytes)
        err =
            pd_folder_trim(dir, CLEAN_CACHE_SUFFIX, held.bytes - max_bytes, false, NULL, NULL, &freed, &why);
    if (err != PD_OK)
        pd_log(PD_LOG_WARNING, "supervise", "cache=untrimmed why=\"%s\"", why.text);
    else if (freed)
        pd_log(PD_LOG_INFO, "supervise", "cache=trimmed bytes=%lld freed=%lld",
               (long long)(held.bytes - freed), (long long)freed);
}

/* ---- the thread -------------------------------------------------------------------------------- */

struct cleaner {
    struct clean_host host;
    char *state_dir;
    int64_t cache_bytes;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool woken, stopping; /* mutex */
};

static bool stopping(struct cleaner *c)
{
    bool is;

    pthread_mutex_lock(&c->mutex);
    is = c->stopping;
    pthread_mutex_unlock(&c->mutex);
    return is;
}

static void wait_for_work(struct cleaner *c, int seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&c->mutex);
    while (!c->woken && !c->stopping)
        if (pthread_cond_timedwait(&c->changed, &c->mutex, &until) == ETIMEDOUT)
            break;
    c->woken = false;
    pthread_mutex_unlock(&c->mutex);
}

/* Folders of runs that are not in the database are named once, and left for `polyd gc`. */
static void name_orphans(struct cleaner *c)
{
    char path[PATH_SIZE];
    const struct dirent *e;
    int64_t orphans = 0;
    DIR *d;

    snprintf(path, sizeof path, "%s/runs", c->state_dir);
    d = opendir(path);
    while (d && !stopping(c) && (e = readdir(d))) {
        bool known = true;

        if (isdigit((unsigned char)e->d_name[0]) &&
            store_run_known(c->host.reader, atoll(e->d_name), &known, NULL) == PD_OK && !known)
            orphans++;
    }
    if (d)
        closedir(d);
    if (orphans)
        pd_log(PD_LOG_WARNING, "supervise",
               "orphans=%lld why=\"folders in runs/ without a run; polyd gc removes them\"",
               (long long)orphans);
}

/* Logged when it changes, not at every retry. */
static void log_kept(const struct clean_pass *pass, int *logged)
{
    if (pass->kept != *logged && pass->kept)
        pd_log(PD_LOG_WARNING, "supervise", "cleaning=incomplete kept=%d why=\"%s\"", pass->kept,
               pass->why.text);
    *logged = pass->kept;
}

static void *cleaner_thread(void *arg)
{
    struct cleaner *c = arg;
    struct clean_pass pass = {.run = 0};
    int64_t cache_us = 0;
    bool named = false;
    int logged = 0;

    while (!stopping(c)) {
        struct pd_why why = {""};
        bool worked = false;
        enum pd_err err = clean_step(&c->host, &pass, &worked, &why);
        int64_t now_us = pd_clock_mono_us();
        int wait_s = err != PD_OK || pass.busy ? AGAIN_S : LOOK_S;

        if (err == PD_OK && worked)
            continue;
        if (err != PD_OK && err != PD_ERR_BUSY && err != PD_ERR_CLOSED)
            pd_log(PD_LOG_ERROR, "supervise", "cleaning=stalled error=%s why=\"%s\"", pd_err_name(err),
                   why.text);
        if (err == PD_OK)
            log_kept(&pass, &logged);
        if (!named && err == PD_OK && !pass.busy && !pass.kept) {
            name_orphans(c);
            named = true;
        }
        pass = (struct clean_pass){.run = 0};
        if (!cache_us || now_us - cache_us >= CACHE_S * INT64_C(1000000)) {
            trim_cache(c->state_dir, c->cache_bytes);
            cache_us = now_us;
        }
        wait_for_work(c, wait_s);
    }
    return NULL;
}

static struct cleaner *cleaner_free(struct cleaner *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    store_close(c->host.reader);
    free(c->state_dir);
    free(c);
    return NULL;
}

enum pd_err cleaner_start(const struct cleaner_options *o, struct cleaner **ret, struct pd_why *why)
{
    struct cleaner *c = calloc(1, sizeof *c);
    pthread_condattr_t attr;
    struct pd_why reason;
    enum pd_err err;
    int rc;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to remove deleted items");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    c->cache_bytes = o->cache_bytes;
    c->state_dir = strdup(o->state_dir);
    c->host =
        (struct clean_host){.writer = o->writer, .state_dir = c->state_dir, .busy = o->busy, .ctx = o->ctx};
    err = c->state_dir ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory to remove deleted items");
    if (err == PD_OK &&
        clean_bound(c->state_dir, o->cache_bytes, &reason) != PD_OK) /* polyd starts on a full disk, too */
        pd_log(PD_LOG_WARNING, "supervise", "cache=unbounded why=\"%s\"", reason.text);
    if (err == PD_OK)
        err = store_open_reader(store_writer_path(o->writer), &c->host.reader, why);
    if (err == PD_OK && (rc = pthread_create(&c->thread, NULL, cleaner_thread, c)) != 0)
        err = pd_fail_errno(why, rc, "cannot start the thread that removes deleted items");
    if (err != PD_OK) {
        cleaner_free(c);
        return err;
    }
    *ret = c;
    return PD_OK;
}

void cleaner_wake(struct cleaner *c)
{
    pthread_mutex_lock(&c->mutex);
    c->woken = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

void cleaner_halt(struct cleaner *c)
{
    bool first;

    pthread_mutex_lock(&c->mutex);
    first = !c->stopping;
    c->stopping = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    if (first)
        pthread_join(c->thread, NULL);
}

struct cleaner *cleaner_stop(struct cleaner *c)
{
    if (c) {
        cleaner_halt(c);
        cleaner_free(c);
    }
    return NULL;
}
