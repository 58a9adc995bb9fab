#include "daemon/polyd/supervise/expand.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/log.h"

#define CHUNK 50  /* runs of one commit: some 20 ms of the writer's time */
#define AGAIN_S 1 /* after a refusal by the writer */
#define LOOK_S 30 /* a wake-up may have been lost for lack of memory */

/* ---- one run ----------------------------------------------------------------------------------- */

/* The plan's facts must be those that the supervisor's planner sees: build and device. */
enum pd_err expand_run_make(const struct job_doc *job, int64_t n, struct expand_run *ret, struct pd_why *why)
{
    const struct job_head *head = job_doc_head(job);
    char facts[96];
    enum pd_err err;

    memset(ret, 0, sizeof *ret);
    ret->trial = job_run_trial(job, n);
    ret->point = n / head->trials;
    ret->seed = job_run_seed(job, n);
    pd_buf_init(&ret->document, 0);
    pd_buf_init(&ret->sweep, 0);
    err = job_run_resolve(job, n, &ret->document, why);
    if (err == PD_OK)
        err = job_run_params(job, n, &ret->sweep, why);
    if (err == PD_OK)
        err = pd_buf_err(&ret->document);
    if (err == PD_OK)
        err = pd_buf_err(&ret->sweep);
    if (err == PD_OK)
        err = job_config_digest(ret->document.data, ret->document.len, ret->config_digest, why);
    snprintf(facts, sizeof facts, "build=%s device=%s", POLYD_VERSION,
             head->resources.device == JOB_DEVICE_CUDA ? "cuda" : "cpu");
    if (err == PD_OK)
        err = job_plan_digest(ret->document.data, ret->document.len, facts, ret->plan_digest, why);
    if (err != PD_OK)
        expand_run_done(ret);
    return err;
}

void expand_run_done(struct expand_run *run)
{
    pd_buf_done(&run->document);
    pd_buf_done(&run->sweep);
}

enum pd_err expand_run_insert(struct store_tx *tx, const struct job_head *head, int64_t job_id, int priority,
                              const struct expand_run *run, int64_t *ret_id, struct pd_why *why)
{
    const struct job_resources *res = &head->resources;
    struct store_run_new row = {
        .document = run->document.data,
        .config_digest = run->config_digest,
        .plan_digest = run->plan_digest,
        .sweep = run->sweep.data,
        .device = res->device == JOB_DEVICE_CUDA ? "cuda" : "cpu",
        .slots = (int)res->slots,
        .threads = (int)res->threads,
        .priority = priority,
        .max_restarts = (int)res->max_restarts,
        .total_steps = -1,
        .time_limit_us = res->time_limit_s * 1000000,
        .warn_before_us = res->warn_before_s * 1000000,
        .point = run->point,
        .trial = run->trial,
        .seed = run->seed,
    };
    int64_t id;

    return store_run_insert(tx, job_id, &row, ret_id ? ret_id : &id, why);
}

/* ---- the thread -------------------------------------------------------------------------------- */

struct expander {
    struct store_writer *writer;
    struct store *reader;
    void (*made)(void *ctx);
    void *ctx;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool woken, stopping; /* mutex */
};

/* What one commit brings. */
struct chunk {
    const struct job_doc *job;
    int64_t job_id, first;
    int count;
    struct expand_run runs[CHUNK];
};

/* Resolved for the numbers first.. as they were when the job was read: if someone made runs meanwhile, or the
 * job was paused or cancelled, nothing is written and the job is looked at again. */
static enum pd_err chunk_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct chunk *c = ctx;
    int64_t next;
    int priority;
    enum pd_err err = store_job_next_run(tx, c->job_id, &next, &priority, why);

    if (err == PD_OK && next != c->first)
        err = pd_fail(why, PD_ERR_CONFLICT, "run %lld exists already", (long long)c->first);
    for (int i = 0; err == PD_OK && i < c->count; i++)
        err = expand_run_insert(tx, job_doc_head(c->job), c->job_id, priority, &c->runs[i], NULL, why);
    return err;
}

/* A document that was accepted and makes no runs any more: an older build kept it. */
struct give_up {
    int64_t job_id;
    char reason[400];
};

static enum pd_err give_up_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct give_up *g = ctx;
    enum pd_err err = store_job_cancel(tx, g->job_id, -1, g->reason, why);

    return err == PD_ERR_CONFLICT ? PD_OK : err; /* over already */
}

static enum pd_err call(struct expander *e, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                        void *ctx, int rows, struct pd_why *why)
{
    struct store_work work = {.lane = STORE_LANE_WORKER, .rows = rows, .apply = apply, .ctx = ctx};

    return store_writer_call(e->writer, &work, why);
}

static bool stopping(struct expander *e)
{
    bool is;

    pthread_mutex_lock(&e->mutex);
    is = e->stopping;
    pthread_mutex_unlock(&e->mutex);
    return is;
}

/* One commit's worth of runs from number `first` on. */
static enum pd_err make_chunk(struct expander *e, const struct job_doc *job, int64_t job_id, int64_t first,
                              int *ret_count, struct pd_why *why)
{
    struct chunk *c = calloc(1, sizeof *c);
    enum pd_err err = c ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory to expand a job");

    if (c) {
        c->job = job;
        c->job_id = job_id;
        c->first = first;
    }
    while (err == PD_OK && c->count < CHUNK && first + c->count < job_run_count(job)) {
        err = expand_run_make(job, first + c->count, &c->runs[c->count], why);
        if (err == PD_OK)
            c->count++;
    }
    if (err == PD_OK)
        err = call(e, chunk_apply, c, c->count + 1, why);
    for (int i = 0; c && i < c->count; i++)
        expand_run_done(&c->runs[i]);
    *ret_count = c ? c->count : 0;
    free(c);
    return err;
}

struct pending {
    int64_t job_id, runs;
    char *document;
};

static bool take_job(void *ctx, const struct store_job *job)
{
    struct pending *p = ctx;

    p->job_id = job->id;
    p->runs = job->runs;
    p->document = strdup(job->document);
    return false;
}

static enum pd_err give_up(struct expander *e, int64_t job_id, const char *text, struct pd_why *why)
{
    struct give_up g = {.job_id = job_id};

    snprintf(g.reason, sizeof g.reason, "the rest of its runs cannot be made: %.300s", text);
    pd_log(PD_LOG_ERROR, "supervise", "job=%lld expansion=failed why=\"%s\"", (long long)job_id, g.reason);
    return call(e, give_up_apply, &g, 8, why);
}

/* Makes the runs of one job. PD_ERR_NOT_FOUND: there is none to do. */
static enum pd_err expand_one(struct expander *e, struct pd_why *why)
{
    struct pending p = {0};
    struct job_report report;
    struct job_doc *job = NULL;
    enum pd_err err = store_job_expanding(e->reader, take_job, &p, why);

    if (err == PD_OK && !p.job_id)
        return PD_ERR_NOT_FOUND;
    if (err == PD_OK && !p.document)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to expand a job");
    if (err != PD_OK)
        return err;
    job_report_init(&report);
    err = job_parse_stored(p.document, strlen(p.document), &job, &report);
    if (err != PD_OK && err != PD_ERR_NOMEM)
        err = give_up(e, p.job_id, report.error_count ? report.errors[0].detail : pd_err_name(err), why);
    job_report_done(&report);
    while (err == PD_OK && job && p.runs < job_run_count(job) && !stopping(e)) {
        int count = 0;

        err = make_chunk(e, job, p.job_id, p.runs, &count, why);
        p.runs += count;
        if (err == PD_OK && e->made)
            e->made(e->ctx);
        if (err == PD_ERR_INVALID)
            err = give_up(e, p.job_id, why->text, why);
    }
    job_free(job);
    free(p.document);
    return err == PD_ERR_CONFLICT ? PD_OK : err; /* paused, cancelled: the rows say what is next */
}

static void wait_for_work(struct expander *e, int seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&e->mutex);
    while (!e->woken && !e->stopping)
        if (pthread_cond_timedwait(&e->changed, &e->mutex, &until) == ETIMEDOUT)
            break;
    e->woken = false;
    pthread_mutex_unlock(&e->mutex);
}

static void *expander_thread(void *arg)
{
    struct expander *e = arg;

    while (!stopping(e)) {
        struct pd_why why = {""};
        enum pd_err err = expand_one(e, &why);

        if (err == PD_OK)
            continue;
        if (err != PD_ERR_NOT_FOUND && err != PD_ERR_BUSY && err != PD_ERR_CLOSED)
            pd_log(PD_LOG_ERROR, "supervise", "expansion=stalled error=%s why=\"%s\"", pd_err_name(err),
                   why.text);
        wait_for_work(e, err == PD_ERR_NOT_FOUND ? LOOK_S : AGAIN_S);
    }
    return NULL;
}

enum pd_err expander_start(struct store_writer *w, void (*made)(void *ctx), void *ctx, struct expander **ret,
                           struct pd_why *why)
{
    struct expander *e = calloc(1, sizeof *e);
    pthread_condattr_t attr;
    enum pd_err err;
    int rc;

    if (!e)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the expansion of jobs");
    e->writer = w;
    e->made = made;
    e->ctx = ctx;
    err = store_open_reader(store_writer_path(w), &e->reader, why);
    if (err != PD_OK) {
        free(e);
        return err;
    }
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = pthread_create(&e->thread, NULL, expander_thread, e);
    if (rc) {
        err = pd_fail_errno(why, rc, "cannot start the expansion of jobs");
        pthread_cond_destroy(&e->changed);
        pthread_mutex_destroy(&e->mutex);
        store_close(e->reader);
        free(e);
        return err;
    }
    *ret = e;
    return PD_OK;
}

void expander_wake(struct expander *e)
{
    pthread_mutex_lock(&e->mutex);
    e->woken = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
}

void expander_halt(struct expander *e)
{
    bool first;

    pthread_mutex_lock(&e->mutex);
    first = !e->stopping;
    e->stopping = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    if (first)
        pthread_join(e->thread, NULL);
}

struct expander *expander_stop(struct expander *e)
{
    if (e) {
        expander_halt(e);
        pthread_cond_destroy(&e->changed);
        pthread_mutex_destroy(&e->mutex);
        store_close(e->reader);
        free(e);
    }
    return NULL;
}
