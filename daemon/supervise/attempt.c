/* The life of an attempt: row, process, connection, frames, and its end. The rows are the truth: every step
 * here can be cut off by a kill of the daemon and is taken up again by att_reconcile.
 *
 *   queued run --row: attempt, starting--> process --hello--> assign --first step--> running --bye--> row:
 * ended --> exit
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define KILL_AGAIN_US 2000000 /* the shim did not obey: kill it too */
#define EXIT_US 5000000       /* a worker whose end is recorded leaves within it */
#define WRITE_US 1000000      /* progress goes to the rows this often */
#define BACKOFF_MAX_US (INT64_C(300) * 1000000)

/* ---- small things --------------------------------------------------------------------------- */

void att_dir(struct sup *s, int64_t run, int n, char *out, size_t size)
{
    snprintf(out, size, "%s/runs/%lld/attempt-%d", s->state_dir, (long long)run, n);
}

struct att *att_find(struct sup *s, int64_t run, int n)
{
    for (struct att *a = s->atts; a; a = a->next)
        if (a->run == run && a->n == n)
            return a;
    return NULL;
}

bool att_mark_live(struct sup *s, const char *mark)
{
    long long run;
    int n;
    struct att *a;

    if (sscanf(mark, "run-%lld-%d", &run, &n) != 2)
        return false;
    a = att_find(s, run, n);
    return a && !a->proc.gone;
}

struct att *att_free(struct att *a)
{
    if (a) {
        proc_close(&a->proc);
        free(a->document);
        free(a->message);
        free(a);
    }
    return NULL;
}

static struct att *att_new(struct sup *s)
{
    struct att *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->source = (struct source){.kind = SOURCE_ATT, .self = a};
    a->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    a->heard_us = a->begun_us = pd_clock_mono_us();
    a->total = -1;
    a->step_written = a->log_written = -1;
    a->cause = SPEC_CAUSE_LOST;
    pthread_mutex_lock(&s->mutex);
    a->next = s->atts;
    s->atts = a;
    pthread_mutex_unlock(&s->mutex);
    return a;
}

static void hold(struct sup *s, struct att *a)
{
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < a->device_count; i++) {
        s->held[a->devices[i]].run = a->run;
        s->held[a->devices[i]].attempt = a->n;
    }
    pthread_mutex_unlock(&s->mutex);
}

/* The end in memory: devices are free, the run may be looked at again. */
static void att_release(struct sup *s, struct att *a)
{
    if (a->conn) {
        a->conn->att = NULL;
        conn_drop(s, a->conn);
        a->conn = NULL;
    }
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < a->device_count; i++)
        s->held[a->devices[i]].run = s->held[a->devices[i]].attempt = 0;
    for (struct att **at = &s->atts; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
    att_free(a);
    s->schedule = s->commands = true;
}

static void set_message(struct att *a, const char *text)
{
    free(a->message);
    a->message = text && *text ? strdup(text) : NULL;
}

/* ---- the end -------------------------------------------------------------------------------- */

struct end_op {
    struct op op;
    int64_t run;
    int n;
    enum spec_cause cause;
    bool counts; /* against max_restarts, if it made no progress */
    int restarts, max_restarts, exit_status;
    int64_t backoff_us;
    char *message;
    bool pause; /* decided inside: the job is paused */
    enum spec_job_state job_state;
};

static bool job_state_of(void *ctx, const struct store_job *job)
{
    *(enum spec_job_state *)ctx = job->state;
    return false;
}

static enum pd_err requeue(struct store_tx *tx, struct end_op *e, enum spec_run_state state,
                           struct pd_why *why)
{
    enum pd_err err;

    if (e->cause == SPEC_CAUSE_PAUSED && state == SPEC_RUN_RUNNING)
        return store_run_move(tx, e->run, SPEC_RUN_PAUSED, SPEC_OUTCOME_CANCELLED, "paused with its job",
                              why);
    err = store_run_move(tx, e->run, SPEC_RUN_QUEUED, SPEC_OUTCOME_CANCELLED, e->message ? e->message : "",
                         why);
    if (err == PD_OK && e->cause == SPEC_CAUSE_PAUSED)
        err = store_run_move(tx, e->run, SPEC_RUN_PAUSED, SPEC_OUTCOME_CANCELLED, "paused with its job", why);
    return err;
}

/* Failed or lost: again from the last checkpoint, as long as restarts are left. */
static enum pd_err retry(struct store_tx *tx, struct end_op *e, enum spec_run_state state, struct pd_why *why)
{
    int64_t backoff_us = e->backoff_us, now_us = store_tx_now_us(tx);
    int restarts = e->restarts;
    bool progressed;
    char reason[256];
    enum pd_err err;

    err = store_attempt_progressed(tx, e->run, e->n, &progressed, why);
    if (err != PD_OK)
        return err;
    if (progressed)
        restarts = 0;
    if (e->counts)
        restarts++;
    if (e->counts && restarts > e->max_restarts) {
        snprintf(reason, sizeof reason, "%s (attempt %d, no restarts left)",
                 e->message ? e->message : "failed", e->n);
        return store_run_move(tx, e->run, SPEC_RUN_ENDED, SPEC_OUTCOME_FAILED, reason, why);
    }
    for (int i = 1; i < restarts && backoff_us < BACKOFF_MAX_US; i++)
        backoff_us *= 2;
    if (backoff_us > BACKOFF_MAX_US)
        backoff_us = BACKOFF_MAX_US;
    err = store_run_set_backoff(tx, e->run, restarts, e->counts ? now_us + backoff_us : 0, why);
    return err == PD_OK ? requeue(tx, e, state, why) : err;
}

static enum pd_err run_end(struct store_tx *tx, struct end_op *e, enum spec_outcome outcome,
                           struct pd_why *why)
{
    int64_t version;
    enum pd_err err = store_run_move(tx, e->run, SPEC_RUN_ENDED, outcome, e->message ? e->message : "", why);

    if (err == PD_OK && outcome == SPEC_OUTCOME_SUCCEEDED)
        err = store_job_register(tx, e->run, &version, why);
    return err;
}

static enum pd_err end_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct end_op *e = (struct end_op *)op;
    enum spec_run_state state;
    enum pd_err err;

    err = store_attempt_move(tx, e->run, e->n, SPEC_ATTEMPT_ENDED, e->cause, e->message, e->exit_status, why);
    if (err == PD_ERR_CONFLICT)
        return PD_OK; /* recorded before: only the answer is missing */
    if (err == PD_OK)
        err = store_checkpoint_sweep(tx, e->run, why);
    if (err == PD_OK)
        err = store_run_state(tx, e->run, &state, why);
    if (err != PD_OK)
        return err;
    if (state != SPEC_RUN_STARTING && state != SPEC_RUN_RUNNING && state != SPEC_RUN_CANCELLING)
        return PD_OK;
    switch (e->cause) {
    case SPEC_CAUSE_DONE: /* also when a cancel came too late */
        return run_end(tx, e, SPEC_OUTCOME_SUCCEEDED, why);
    case SPEC_CAUSE_DIVERGED:
        return run_end(tx, e, SPEC_OUTCOME_DIVERGED, why);
    default:
        break;
    }
    if (state == SPEC_RUN_CANCELLING)
        return run_end(tx, e, SPEC_OUTCOME_CANCELLED, why);
    switch (e->cause) {
    case SPEC_CAUSE_TIME_LIMIT:
        return run_end(tx, e, SPEC_OUTCOME_FAILED, why);
    case SPEC_CAUSE_PAUSED:
    case SPEC_CAUSE_PREEMPTED:
    case SPEC_CAUSE_CANCELLED:
        return requeue(tx, e, state, why);
    default:
        return retry(tx, e, state, why);
    }
}

static void end_release(struct op *op)
{
    free(((struct end_op *)op)->message);
}

static void end_done(struct sup *s, struct op *op)
{
    struct end_op *e = (struct end_op *)op;
    struct att *a = att_find(s, e->run, e->n);

    if (op->err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d end=unwritten error=%s why=\"%s\"",
               (long long)e->run, e->n, pd_err_name(op->err), op->why.text);
    if (!a)
        return;
    if (op->err != PD_OK) {
        /* Only a stop of the store (or a mistake of ours) comes here: the next start reconciles. */
        a->phase = ATT_ENDED;
        return;
    }
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d state=ended cause=%s %s%s%s", (long long)e->run,
           e->n, spec_cause_name(e->cause), e->message ? "why=\"" : "", e->message ? e->message : "",
           e->message ? "\"" : "");
    a->phase = ATT_ENDED;
    a->exit_us = pd_clock_mono_us() + EXIT_US;
    if (a->conn && a->bye)
        conn_bye(s, a->conn, "recorded");
    if (a->proc.gone)
        att_release(s, a);
}

static void att_end(struct sup *s, struct att *a, enum spec_cause cause, bool counts)
{
    struct end_op *e;

    if (a->phase == ATT_ENDING || a->phase == ATT_ENDED)
        return;
    e = calloc(1, sizeof *e);
    if (!e)
        return; /* the tick comes back to it: the process is gone, the phase is not */
    if (cause == SPEC_CAUSE_LOST || cause == SPEC_CAUSE_FAILED) {
        pthread_mutex_lock(&s->mutex);
        s->stats.requeued++;
        pthread_mutex_unlock(&s->mutex);
    }
    a->phase = ATT_ENDING;
    e->op.lane = STORE_LANE_WORKER;
    e->op.apply = end_apply;
    e->op.done = end_done;
    e->op.release = end_release;
    e->op.rows = 6;
    e->run = a->run;
    e->n = a->n;
    e->cause = cause;
    e->counts = counts;
    e->restarts = a->restarts;
    e->max_restarts = a->max_restarts;
    e->exit_status = a->proc.status;
    e->backoff_us = s->o.backoff_us;
    e->message = a->message ? strdup(a->message) : NULL;
    if (sup_write(s, &e->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld end=refused", (long long)a->run);
}

/* ---- the start ------------------------------------------------------------------------------ */

struct insert_op {
    struct op op;
    int64_t run;
    struct store_attempt_new row;
    char devices[SUP_ATTEMPT_DEVICES * 8];
    int n;
    struct att *att; /* stays in the list while it is ATT_INSERTING */
};

static enum pd_err insert_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct insert_op *i = (struct insert_op *)op;

    return store_attempt_insert(tx, &i->row, &i->n, why);
}

struct process_op {
    struct op op;
    int64_t run, pid, start;
    int n;
};

static enum pd_err process_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct process_op *p = (struct process_op *)op;

    return store_attempt_process(tx, p->run, p->n, p->pid, p->start, why);
}

static void write_process(struct sup *s, const struct att *a)
{
    struct process_op *p = calloc(1, sizeof *p);

    if (!p)
        return; /* the shim's lock tells a later daemon */
    p->op.lane = STORE_LANE_WORKER;
    p->op.apply = process_apply;
    p->run = a->run;
    p->n = a->n;
    p->pid = a->proc.pid;
    p->start = (int64_t)a->proc.start;
    if (sup_write(s, &p->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld process=unwritten", (long long)a->run);
}

static void spawn(struct sup *s, struct att *a)
{
    char dir[SUP_PATH_MAX], run[32], number[16], mark[SUP_PATH_MAX + 64];
    char *argv[] = {(char *)"polyd-worker",
                    (char *)"shim",
                    (char *)"--dir",
                    dir,
                    (char *)"--",
                    (char *)"train",
                    (char *)"--run",
                    run,
                    (char *)"--attempt",
                    number,
                    (char *)"--dir",
                    dir,
                    (char *)"--socket",
                    s->socket_path,
                    NULL};
    struct pd_why why;
    enum pd_err err;

    att_dir(s, a->run, a->n, dir, sizeof dir);
    snprintf(run, sizeof run, "%lld", (long long)a->run);
    snprintf(number, sizeof number, "%d", a->n);
    snprintf(mark, sizeof mark, "%s:run-%lld-%d", s->state_dir, (long long)a->run, a->n);
    err = pd_file_make_dirs(dir, &why);
    if (err == PD_OK)
        err = proc_spawn(s, argv, a->token, -1, -1, -1, mark, &a->proc, &why);
    memset(a->token, 0, sizeof a->token);
    a->phase = ATT_WORKING;
    a->heard_us = pd_clock_mono_us();
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d spawn=failed why=\"%s\"", (long long)a->run,
               a->n, why.text);
        set_message(a, why.text);
        att_end(s, a, SPEC_CAUSE_FAILED, true);
        return;
    }
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d pid=%d devices=%s start_step=%lld",
           (long long)a->run, a->n, (int)a->proc.pid, a->device_text, (long long)a->start_step);
    sup_watch(s, &a->source, a->proc.fd, EPOLLIN);
    write_process(s, a);
    pthread_mutex_lock(&s->mutex);
    s->stats.spawned++;
    pthread_mutex_unlock(&s->mutex);
    s->commands = true; /* a cancel may have come while the row was written */
}

static void insert_done(struct sup *s, struct op *op)
{
    struct insert_op *i = (struct insert_op *)op;
    struct att *a = i->att;

    if (op->err != PD_OK) {
        if (op->err != PD_ERR_CONFLICT) /* cancelled or paused meanwhile */
            pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=unwritten why=\"%s\"", (long long)i->run,
                   op->why.text);
        att_release(s, a);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    a->n = i->n;
    pthread_mutex_unlock(&s->mutex);
    hold(s, a);
    if (s->quit) { /* nothing starts any more; the next daemon sees an attempt without a process */
        a->never_started = true;
        a->phase = ATT_WORKING;
        set_message(a, "polyd was stopping");
        att_end(s, a, SPEC_CAUSE_PREEMPTED, false);
        return;
    }
    spawn(s, a);
}

struct choice {
    char path[SUP_PATH_MAX];
    int64_t step;
};

/* Newest first: the greatest step wins, and among equals the newer. */
static bool choose_checkpoint(void *ctx, const struct store_checkpoint *c)
{
    struct choice *best = ctx;

    if (c->step > best->step && strlen(c->path) < sizeof best->path && access(c->path, R_OK) == 0) {
        best->step = c->step;
        strcpy(best->path, c->path);
    }
    return true;
}

void att_start_run(struct sup *s, const struct store_run *run, const int *devices, int count)
{
    struct insert_op *op = calloc(1, sizeof *op);
    struct choice choice = {.step = 0};
    struct att *a = NULL;
    struct pd_why why = {""};
    enum pd_err err = op ? PD_OK : PD_ERR_NOMEM;
    size_t len = 0;

    if (err == PD_OK)
        err = store_checkpoint_list(s->reader, run->id, false, choose_checkpoint, &choice, &why);
    if (err == PD_OK && !(a = att_new(s)))
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for an attempt");
    if (err == PD_OK) {
        a->run = run->id;
        a->job = run->job_id;
        a->phase = ATT_INSERTING;
        a->document = strdup(run->document);
        a->restarts = run->restarts;
        a->max_restarts = run->max_restarts;
        a->start_step = choice.step;
        a->step = choice.step;
        a->total = run->total_steps;
        memcpy(a->checkpoint, choice.path, sizeof a->checkpoint);
        a->threads = run->threads > 0 ? run->threads : s->devices[devices[0]].threads;
        if (run->time_limit_us > 0) {
            a->limit_us =
                a->begun_us + (run->time_limit_us > run->used_us ? run->time_limit_us - run->used_us : 0);
            a->warn_us = run->warn_before_us > 0 ? a->limit_us - run->warn_before_us : 0;
        }
        for (int i = 0; i < count; i++) {
            a->devices[a->device_count++] = devices[i];
            len += (size_t)snprintf(a->device_text + len, sizeof a->device_text - len, "%s%s", i ? "," : "",
                                    s->devices[devices[i]].name);
        }
        if (!a->document)
            err = pd_fail(&why, PD_ERR_NOMEM, "no memory for an attempt");
    }
    if (err == PD_OK)
        err = digest_random(a->token, sizeof a->token, &why);
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=failed why=\"%s\"", (long long)run->id, why.text);
        if (a)
            att_release(s, a);
        free(op);
        return;
    }
    hold(s, a);
    digest_sha256(a->token, sizeof a->token, a->token_sha256);
    op->op.lane = STORE_LANE_WORKER;
    op->op.rows = 5;
    op->op.apply = insert_apply;
    op->op.done = insert_done;
    op->run = run->id;
    op->att = a;
    snprintf(op->devices, sizeof op->devices, "%s", a->device_text);
    op->row =
        (struct store_attempt_new){.run_id = run->id, .devices = op->devices, .start_step = a->start_step};
    memcpy(op->row.token_sha256, a->token_sha256, sizeof a->token_sha256);
    if (sup_write(s, &op->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=refused", (long long)run->id);
}

/* ---- moves of the rows while it works ------------------------------------------------------- */

struct move_op {
    struct op op;
    int64_t run;
    int n;
    bool attempt_running, run_running, stopping;
};

static enum pd_err move_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct move_op *m = (struct move_op *)op;
    enum spec_run_state state;
    enum pd_err err = PD_OK;

    /* A row that has moved on (cancelled, ended) is no failure. */
    if (m->attempt_running)
        err = store_attempt_move(tx, m->run, m->n, SPEC_ATTEMPT_RUNNING, SPEC_CAUSE_LOST, NULL, -1, why);
    if (err == PD_OK && m->stopping)
        err = store_attempt_move(tx, m->run, m->n, SPEC_ATTEMPT_STOPPING, SPEC_CAUSE_LOST, NULL, -1, why);
    if (err == PD_ERR_CONFLICT)
        err = PD_OK;
    if (err == PD_OK && m->run_running) {
        err = store_run_state(tx, m->run, &state, why);
        if (err == PD_OK && state == SPEC_RUN_STARTING)
            err = store_run_move(tx, m->run, SPEC_RUN_RUNNING, SPEC_OUTCOME_CANCELLED, NULL, why);
    }
    return err;
}

static void write_move(struct sup *s, const struct att *a, struct move_op what)
{
    struct move_op *m = calloc(1, sizeof *m);

    if (!m)
        return;
    *m = what;
    m->op.lane = STORE_LANE_WORKER;
    m->op.rows = 3;
    m->op.apply = move_apply;
    m->run = a->run;
    m->n = a->n;
    if (sup_write(s, &m->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld move=refused", (long long)a->run);
}

static void first_step(struct sup *s, struct att *a)
{
    if (!a->row_running) {
        a->row_running = true;
        write_move(s, a, (struct move_op){.run_running = true});
    }
}

struct progress_op {
    struct op op;
    int64_t run, step, total, log_bytes;
    int n;
};

static enum pd_err progress_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct progress_op *p = (struct progress_op *)op;

    return store_attempt_progress(tx, p->run, p->n, p->step, p->total, p->log_bytes, why);
}

static void write_progress(struct sup *s, struct att *a)
{
    struct progress_op *p;

    if (a->step == a->step_written && a->log_bytes == a->log_written)
        return;
    p = calloc(1, sizeof *p);
    if (!p)
        return;
    p->op.lane = STORE_LANE_WORKER;
    p->op.apply = progress_apply;
    p->op.rows = 2;
    p->run = a->run;
    p->n = a->n;
    p->step = a->step == a->step_written ? -1 : a->step;
    p->total = a->total;
    p->log_bytes = a->log_bytes;
    a->step_written = a->step;
    a->log_written = a->log_bytes;
    if (sup_write(s, &p->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld progress=refused", (long long)a->run);
}

/* ---- asking it to leave --------------------------------------------------------------------- */

static void send_stop(struct sup *s, struct att *a)
{
    size_t at;

    if (!a->conn) {
        proc_signal(&a->proc, SIGTERM);
        return;
    }
    at = wire_begin(&a->conn->out, a->cause == SPEC_CAUSE_CANCELLED ? WIRE_CANCEL : WIRE_DRAIN, 0, 0);
    wire_put_u32(&a->conn->out, WIRE_TAG_ATTEMPT, (uint32_t)a->n);
    wire_put_u64(&a->conn->out, WIRE_TAG_GRACE_US, (uint64_t)s->o.grace_us);
    if (wire_end(&a->conn->out, at) != PD_OK)
        a->conn->out.failed = true;
    conn_flush(s, a->conn);
}

static void ask_stop(struct sup *s, struct att *a, enum spec_cause cause)
{
    if (a->phase != ATT_WORKING)
        return;
    if (a->stopping) {
        if (cause == SPEC_CAUSE_CANCELLED)
            a->cause = cause;
        return;
    }
    a->stopping = true;
    a->cause = cause;
    a->kill_us = pd_clock_mono_us() + s->o.grace_us;
    write_move(s, a, (struct move_op){.stopping = true});
    send_stop(s, a);
}

void att_stop_all(struct sup *s)
{
    for (struct att *a = s->atts; a; a = a->next)
        ask_stop(s, a, SPEC_CAUSE_PREEMPTED);
}

struct cancelling {
    struct sup *s;
    int64_t lone[64]; /* cancelling runs of which no process exists */
    int count;
};

static bool cancel_row(void *ctx, const struct store_run *r)
{
    struct cancelling *c = ctx;

    for (struct att *a = c->s->atts; a; a = a->next)
        if (a->run == r->id) {
            ask_stop(c->s, a, SPEC_CAUSE_CANCELLED);
            return true;
        }
    if (c->count < 64)
        c->lone[c->count++] = r->id;
    return true;
}

struct lone_op {
    struct op op;
    int64_t run;
};

static enum pd_err lone_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    enum pd_err err =
        store_run_move(tx, ((struct lone_op *)op)->run, SPEC_RUN_ENDED, SPEC_OUTCOME_CANCELLED, "", why);

    return err == PD_ERR_CONFLICT ? PD_OK : err;
}

void att_commands(struct sup *s)
{
    struct store_run_query q = {
        .state = SPEC_RUN_CANCELLING, .outcome = -1, .order = STORE_ORDER_OLDEST, .limit = STORE_PAGE_MAX};
    struct cancelling c = {.s = s};
    struct pd_why why;
    enum pd_err err = store_run_list(s->reader, &q, cancel_row, &c, &why);

    for (int i = 0; err == PD_OK && i < c.count; i++) {
        struct lone_op *op = calloc(1, sizeof *op);

        if (!op)
            break;
        op->op.lane = STORE_LANE_WORKER;
        op->op.apply = lone_apply;
        op->run = c.lone[i];
        if (sup_write(s, &op->op) != PD_OK)
            break;
    }
    for (struct att *a = s->atts; err == PD_OK && a; a = a->next) {
        enum spec_job_state state = SPEC_JOB_RUNNING;

        if (a->phase != ATT_WORKING || a->stopping)
            continue;
        err = store_job_get(s->reader, a->job, job_state_of, &state, &why);
        if (err == PD_OK && state == SPEC_JOB_PAUSED)
            ask_stop(s, a, SPEC_CAUSE_PAUSED);
    }
    if (err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "commands=unreadable why=\"%s\"", why.text);
}

/* ---- the connection ------------------------------------------------------------------------- */

static void put_assign(struct sup *s, struct att *a, struct conn *c)
{
    char dir[SUP_PATH_MAX];
    size_t at = wire_begin(&c->out, WIRE_ASSIGN, 0, 0);

    wire_put_text(&c->out, WIRE_TAG_ROLE, s->train_role);
    wire_put_text(&c->out, WIRE_TAG_JOB, a->document);
    wire_put_text(&c->out, WIRE_TAG_DEVICE, a->device_text);
    wire_put_u32(&c->out, WIRE_TAG_THREADS, (uint32_t)a->threads);
    snprintf(dir, sizeof dir, "%s/runs/%lld", s->state_dir, (long long)a->run);
    wire_put_text(&c->out, WIRE_TAG_RUN_DIR, dir);
    if (a->checkpoint[0]) {
        wire_put_text(&c->out, WIRE_TAG_CHECKPOINT, a->checkpoint);
        wire_put_u64(&c->out, WIRE_TAG_STEP, (uint64_t)a->start_step);
    }
    wire_put_u32(&c->out, WIRE_TAG_RESTARTS, (uint32_t)(a->n - 1));
    for (int i = 0; i < s->o.root_count; i++) {
        char root[4096];

        snprintf(root, sizeof root, "%s=%s", s->roots[i].name, s->roots[i].path);
        wire_put_text(&c->out, WIRE_TAG_DATA_ROOT, root);
    }
    if (wire_end(&c->out, at) != PD_OK)
        c->out.failed = true;
}

void att_connected(struct sup *s, struct att *a, struct conn *c)
{
    a->heard_us = pd_clock_mono_us();
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d connected=1 acked=%lld", (long long)a->run, a->n,
           (long long)a->acked);
    put_assign(s, a, c);
    if (!a->attempt_running) {
        a->attempt_running = true;
        write_move(s, a, (struct move_op){.attempt_running = true});
    }
    if (a->stopping)
        send_stop(s, a);
}

/* ---- data frames ---------------------------------------------------------------------------- */

struct ingest {
    struct op op;
    struct sup *s;
    int64_t run, job, seq;
    int n;
    unsigned type;
    uint64_t conn;
    uint32_t len;
    uint8_t *payload;            /* owned copy */
    struct store_metric *points; /* owned; keys point into `keys` */
    size_t count;
    char *keys;
};

void ingest_free(struct ingest *i)
{
    if (i) {
        free(i->payload);
        free(i->points);
        free(i->keys);
        free(i);
    }
}

static void ingest_release(struct op *op)
{
    struct ingest *i = (struct ingest *)op;

    free(i->payload);
    free(i->points);
    free(i->keys);
}

static enum pd_err write_event(struct store_tx *tx, struct ingest *i, struct pd_why *why)
{
    struct wire_field f;
    struct pd_buf data;
    char kind[64], event[80], text[4096], *pair = NULL;
    size_t pos = 0;
    bool first = true, began;
    enum pd_err err = PD_OK;

    wire_get_text(i->payload, i->len, WIRE_TAG_KEY, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_TEXT, text, sizeof text);
    began = !strcmp(kind, "resume") || !strcmp(kind, "start");
    snprintf(event, sizeof event, "worker.%s", kind);
    pd_buf_init(&data, 0);
    pd_buf_str(&data, "{\"text\":");
    store_json_text(&data, text);
    pd_buf_str(&data, ",\"fields\":{");
    while (err == PD_OK && wire_next(i->payload, i->len, &pos, &f, NULL)) {
        char *cut;

        if (f.tag != WIRE_TAG_PAIR)
            continue;
        free(pair);
        pair = strndup((const char *)f.bytes, f.len);
        if (!pair)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for an event");
        else if ((cut = strchr(pair, '='))) {
            *cut = '\0';
            if (!first)
                pd_buf_str(&data, ",");
            first = false;
            store_json_text(&data, pair);
            pd_buf_str(&data, ":");
            store_json_text(&data, cut + 1);
            /* Where the worker really began decides which earlier points are ghosts. */
            if (began && !strcmp(pair, "step"))
                err = store_attempt_set_start(tx, i->run, i->n, strtoll(cut + 1, NULL, 10), why);
            if (!strcmp(kind, "checkpoint_removed") && !strcmp(pair, "path"))
                err = store_checkpoint_delete_path(tx, i->run, cut + 1, why);
        }
    }
    free(pair);
    pd_buf_str(&data, "}}");
    if (err == PD_OK && pd_buf_err(&data) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for an event");
    if (err == PD_OK)
        err = store_event_add(tx, event, i->job, i->run, i->n, data.data, NULL, why);
    pd_buf_done(&data);
    return err;
}

static enum pd_err write_checkpoint(struct store_tx *tx, const struct ingest *i, struct pd_why *why)
{
    char kind[16], path[SUP_PATH_MAX], digest[STORE_DIGEST_HEX];
    struct store_checkpoint c = {.run_id = i->run,
                                 .attempt = i->n,
                                 .step = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_STEP, 0),
                                 .bytes = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_BYTES, 0),
                                 .value = wire_get_f64(i->payload, i->len, WIRE_TAG_VALUE, (double)NAN),
                                 .kind = kind,
                                 .path = path,
                                 .digest = digest};

    wire_get_text(i->payload, i->len, WIRE_TAG_KIND, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_CHECKPOINT, path, sizeof path);
    wire_get_text(i->payload, i->len, WIRE_TAG_DIGEST, digest, sizeof digest);
    if (strcmp(kind, "best") != 0 && strcmp(kind, "final") != 0)
        strcpy(kind, "latest");
    return store_checkpoint_insert(tx, &c, NULL, why);
}

/* The file first, the row last: a row never names a file that is not there. */
static enum pd_err write_blob(struct store_tx *tx, const struct ingest *i, struct pd_why *why)
{
    char kind[32], key[STORE_KEY_MAX + 1], meta[4096], sha[STORE_DIGEST_HEX], path[SUP_PATH_MAX],
        dir[SUP_PATH_MAX];
    struct wire_field bytes;
    struct store_blob b = {.run_id = i->run,
                           .attempt = i->n,
                           .kind = kind,
                           .key = key,
                           .step = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_STEP, 0),
                           .time_us = (int64_t)wire_get_u64(i->payload, i->len, WIRE_TAG_TIME_US, 0),
                           .meta = meta,
                           .sha256 = sha};
    enum pd_err err = PD_OK;

    wire_get_text(i->payload, i->len, WIRE_TAG_KIND, kind, sizeof kind);
    wire_get_text(i->payload, i->len, WIRE_TAG_KEY, key, sizeof key);
    if (!wire_get_text(i->payload, i->len, WIRE_TAG_JSON, meta, sizeof meta))
        strcpy(meta, "{}");
    if (!wire_find(i->payload, i->len, WIRE_TAG_POINTS, &bytes))
        return pd_fail(why, PD_ERR_CORRUPT, "a blob without bytes");
    b.bytes = bytes.len;
    digest_sha256_hex(bytes.bytes, bytes.len, sha);
    snprintf(dir, sizeof dir, "%s/blobs/%.2s", i->s->state_dir, sha);
    snprintf(path, sizeof path, "%s/blobs/%.2s/%s", i->s->state_dir, sha, sha);
    if (access(path, R_OK)) {
        err = pd_file_make_dirs(dir, why);
        if (err == PD_OK)
            err = pd_file_replace(path, bytes.bytes, bytes.len, 0640, why);
    }
    return err == PD_OK ? store_blob_insert(tx, &b, why) : err;
}

static enum pd_err ingest_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct ingest *i = (struct ingest *)op;
    enum pd_err err = store_attempt_ack(tx, i->run, i->n, i->seq, why);

    if (err == PD_ERR_EXISTS)
        return PD_OK; /* a repeat after a reconnection: acknowledged again, written once */
    if (err != PD_OK)
        return err;
    switch (i->type) {
    case WIRE_METRICS:
        return store_metric_append(tx, i->run, i->n, i->points, i->count, NULL, why);
    case WIRE_EVENT:
        return write_event(tx, i, why);
    case WIRE_CHECKPOINT_WRITTEN:
        return write_checkpoint(tx, i, why);
    case WIRE_BLOB:
        return write_blob(tx, i, why);
    default:
        return PD_OK;
    }
}

static void ingest_done(struct sup *s, struct op *op)
{
    struct ingest *i = (struct ingest *)op;
    struct att *a = att_find(s, i->run, i->n);
    size_t at;

    if (op->err != PD_OK) {
        struct conn *c = conn_by_id(s, i->conn);

        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d seq=%lld frame=refused error=%s why=\"%s\"",
               (long long)i->run, i->n, (long long)i->seq, pd_err_name(op->err), op->why.text);
        if (c)
            conn_drop(s, c); /* it resends from what is committed */
        return;
    }
    if (!a)
        return;
    if (i->seq > a->acked)
        a->acked = i->seq;
    pthread_mutex_lock(&s->mutex);
    s->stats.points_in += (int64_t)i->count;
    pthread_mutex_unlock(&s->mutex);
    if (!a->conn)
        return;
    at = wire_begin(&a->conn->out, WIRE_ACK, 0, 0);
    wire_put_u64(&a->conn->out, WIRE_TAG_ACKED, (uint64_t)a->acked);
    if (wire_end(&a->conn->out, at) != PD_OK)
        a->conn->out.failed = true;
    conn_flush(s, a->conn);
}

/* Unpacks the points while we have them at hand: the writer's time is dearer. False if malformed. */
static bool unpack_points(struct ingest *i)
{
    const char *keys[WIRE_POINTS_MAX];
    struct wire_field f, points = {0};
    size_t pos = 0, key_count = 0;
    char *at = i->keys = malloc((size_t)i->len + 1);

    if (!at)
        return false;
    while (wire_next(i->payload, i->len, &pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_KEY) {
            if (key_count == WIRE_POINTS_MAX || !f.len || f.len > STORE_KEY_MAX || memchr(f.bytes, 0, f.len))
                return false;
            keys[key_count++] = at;
            memcpy(at, f.bytes, f.len);
            at[f.len] = '\0';
            at += f.len + 1;
        } else if (f.tag == WIRE_TAG_POINTS)
            points = f;
    }
    i->count = points.len / WIRE_POINT_BYTES;
    if (points.len % WIRE_POINT_BYTES || i->count > WIRE_POINTS_MAX)
        return false;
    i->points = calloc(i->count + 1, sizeof *i->points);
    if (!i->points)
        return false;
    for (size_t k = 0; k < i->count; k++) {
        struct wire_point p = wire_point_at(&points, k);

        if (p.key >= key_count)
            return false;
        i->points[k] =
            (struct store_metric){.key = keys[p.key], .step = p.step, .time_us = p.time_us, .value = p.value};
    }
    return true;
}

static void take_data(struct sup *s, struct conn *c, struct att *a, const struct wire_header *h,
                      const uint8_t *p)
{
    struct ingest *i = calloc(1, sizeof *i);
    bool ok = i != NULL;

    if (ok) {
        i->s = s;
        i->run = a->run;
        i->job = a->job;
        i->n = a->n;
        i->seq = (int64_t)h->seq;
        i->type = h->type;
        i->conn = c->id;
        i->len = h->len;
        i->payload = malloc((size_t)h->len + 1);
        ok = i->payload != NULL;
        if (ok)
            memcpy(i->payload, p, h->len);
        if (ok && h->type == WIRE_METRICS)
            ok = unpack_points(i);
    }
    if (!ok) {
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld frame=broken type=%s", (long long)a->run,
               wire_type_name(h->type));
        ingest_free(i);
        conn_drop(s, c);
        return;
    }
    i->op.lane =
        STORE_LANE_METRICS; /* all data frames of an attempt in one lane: their order is their number */
    i->op.rows = i->count ? (int)i->count : 4;
    i->op.apply = ingest_apply;
    i->op.done = ingest_done;
    i->op.release = ingest_release;
    if (sup_write(s, &i->op) == PD_ERR_BUSY)
        c->stalled = i; /* the lane is full: we stop reading, the worker buffers */
}

bool att_unstall(struct sup *s, struct conn *c)
{
    struct ingest *i = c->stalled;

    if (sup_write(s, &i->op) == PD_ERR_BUSY)
        return false;
    c->stalled = NULL;
    return true;
}

/* ---- frames --------------------------------------------------------------------------------- */

static void take_progress(struct sup *s, struct att *a, const uint8_t *p, size_t len)
{
    char state[32];

    wire_get_text(p, len, WIRE_TAG_STATE, state, sizeof state);
    pthread_mutex_lock(&s->mutex);
    a->step = (int64_t)wire_get_u64(p, len, WIRE_TAG_STEP, 0);
    a->total = (int64_t)wire_get_u64(p, len, WIRE_TAG_TOTAL, UINT64_MAX);
    a->updated_us = pd_clock_wall_us();
    a->checkpointing = !strcmp(state, "checkpointing");
    pthread_mutex_unlock(&s->mutex);
    if (a->step > a->start_step)
        first_step(s, a);
}

static void take_bye(struct sup *s, struct conn *c, struct att *a, const uint8_t *p, size_t len)
{
    char cause[32], text[512];
    int64_t step = (int64_t)wire_get_u64(p, len, WIRE_TAG_STEP, 0);

    (void)c;
    wire_get_text(p, len, WIRE_TAG_CAUSE, cause, sizeof cause);
    wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
    a->bye = true;
    if (a->phase != ATT_WORKING)
        return; /* the end is being written, and then answered */
    pthread_mutex_lock(&s->mutex);
    if (step > a->step)
        a->step = step;
    pthread_mutex_unlock(&s->mutex);
    write_progress(s, a);
    if (text[0])
        set_message(a, text);
    if (!strcmp(cause, "done"))
        att_end(s, a, SPEC_CAUSE_DONE, false);
    else if (!strcmp(cause, "diverged"))
        att_end(s, a, SPEC_CAUSE_DIVERGED, false);
    else if (!strcmp(cause, "checkpointed")) {
        if (a->stopping && a->cause == SPEC_CAUSE_TIME_LIMIT)
            set_message(a, "time limit");
        att_end(s, a, a->stopping ? a->cause : SPEC_CAUSE_PREEMPTED, false);
    } else
        att_end(s, a,
                a->stopping && a->cause == SPEC_CAUSE_CANCELLED ? SPEC_CAUSE_CANCELLED : SPEC_CAUSE_FAILED,
                true);
}

void att_frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    struct att *a = c->att;

    switch (h->type) {
    case WIRE_PROGRESS:
        take_progress(s, a, p, h->len);
        break;
    case WIRE_METRICS:
        first_step(s, a);
        take_data(s, c, a, h, p);
        break;
    case WIRE_CHECKPOINT_WRITTEN:
    case WIRE_EVENT:
    case WIRE_BLOB:
        take_data(s, c, a, h, p);
        break;
    case WIRE_LOG_OFFSET:
        pthread_mutex_lock(&s->mutex);
        a->log_bytes = (int64_t)wire_get_u64(p, h->len, WIRE_TAG_BYTES, 0);
        pthread_mutex_unlock(&s->mutex);
        break;
    case WIRE_BYE:
        take_bye(s, c, a, p, h->len);
        break;
    default:
        break; /* from a newer worker */
    }
}

/* ---- the process is gone -------------------------------------------------------------------- */

static void describe(struct att *a, int status)
{
    char text[128];

    if (a->message)
        return;
    if (status < 0)
        snprintf(text, sizeof text, "the worker vanished");
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "the worker was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "the worker left with status %d without a word", WEXITSTATUS(status));
    set_message(a, text);
}

void att_gone(struct sup *s, struct att *a)
{
    char dir[SUP_PATH_MAX];
    int status;

    proc_reap(s, &a->proc);
    att_dir(s, a->run, a->n, dir, sizeof dir);
    status = shim_exit_status(dir);
    if (status < 0) /* the shim itself was killed: what it was to keep together may be loose */
        strays_kill(s, att_mark_live);
    a->proc.status = status;
    /* What it sent before its death is still in the socket. */
    if (a->conn)
        conn_event(s, a->conn, EPOLLIN);
    if (a->phase == ATT_ENDED) {
        att_release(s, a);
        return;
    }
    if (a->phase != ATT_WORKING)
        return; /* end_done releases it */
    if (a->stopping && a->cause == SPEC_CAUSE_TIME_LIMIT)
        set_message(a, "time limit");
    else if (!a->stopping || a->cause == SPEC_CAUSE_LOST)
        describe(a, status);
    att_end(s, a, a->stopping ? a->cause : SPEC_CAUSE_LOST, !a->stopping || a->cause == SPEC_CAUSE_LOST);
}

static void hard_kill(struct sup *s, struct att *a, int64_t now_us)
{
    pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d kill=%s pid=%d", (long long)a->run, a->n,
           a->killed ? "shim" : "hard", (int)a->proc.pid);
    proc_signal(&a->proc, a->killed ? SIGKILL : SIGUSR1);
    a->killed = true;
    a->kill_us = now_us + KILL_AGAIN_US;
    pthread_mutex_lock(&s->mutex);
    s->stats.killed++;
    pthread_mutex_unlock(&s->mutex);
}

static void checkpoint_now(struct sup *s, struct att *a)
{
    size_t at;

    if (!a->conn)
        return;
    at = wire_begin(&a->conn->out, WIRE_CHECKPOINT_NOW, 0, 0);
    if (wire_end(&a->conn->out, at) != PD_OK)
        a->conn->out.failed = true;
    conn_flush(s, a->conn);
}

void att_tick(struct sup *s, int64_t now_us)
{
    struct att *next;

    for (struct att *a = s->atts; a; a = next) {
        next = a->next;
        if (a->phase == ATT_WORKING && a->proc.gone && !a->never_started) {
            att_end(s, a, SPEC_CAUSE_LOST, true); /* an earlier try had no memory */
            continue;
        }
        if (a->phase == ATT_WORKING && now_us - a->write_us >= WRITE_US) {
            write_progress(s, a);
            a->write_us = now_us;
        }
        if (a->proc.gone)
            continue;
        if (a->phase == ATT_WORKING && !a->stopping && a->warn_us && !a->warned && now_us >= a->warn_us) {
            a->warned = true;
            pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d time_limit=soon", (long long)a->run, a->n);
            checkpoint_now(s, a);
        }
        if (a->phase == ATT_WORKING && !a->stopping && a->limit_us && now_us >= a->limit_us)
            ask_stop(s, a, SPEC_CAUSE_TIME_LIMIT);
        if (a->phase == ATT_WORKING && now_us - a->heard_us > s->o.hang_us && !a->killed) {
            set_message(a, "the worker hangs: it was silent too long");
            if (!a->stopping) {
                a->stopping = true;
                a->cause = SPEC_CAUSE_LOST;
            }
            pthread_mutex_lock(&s->mutex);
            s->stats.hangs++;
            pthread_mutex_unlock(&s->mutex);
            a->kill_us = now_us;
        }
        if (a->phase == ATT_ENDED && a->exit_us && now_us >= a->exit_us && !a->kill_us)
            a->kill_us = now_us;
        if (a->kill_us && now_us >= a->kill_us)
            hard_kill(s, a, now_us);
    }
}

/* ---- after a restart of the daemon ---------------------------------------------------------- */

struct reconcile {
    struct sup *s;
    enum pd_err err;
};

static bool run_details(void *ctx, const struct store_run *r)
{
    struct att *a = ctx;

    a->job = r->job_id;
    a->document = strdup(r->document);
    a->restarts = r->restarts;
    a->max_restarts = r->max_restarts;
    a->threads = r->threads;
    a->row_running = r->state == SPEC_RUN_RUNNING || r->state == SPEC_RUN_CANCELLING;
    a->step = r->step;
    a->total = r->total_steps;
    if (r->time_limit_us > 0) {
        int64_t used_us = r->used_us + (pd_clock_wall_us() - a->begun_us);

        a->limit_us = pd_clock_mono_us() + (r->time_limit_us > used_us ? r->time_limit_us - used_us : 0);
        a->warn_us = r->warn_before_us > 0 ? a->limit_us - r->warn_before_us : 0;
    }
    return false;
}

static void take_devices(struct sup *s, struct att *a)
{
    char *names = strdup(a->device_text), *at = names, *name;

    while (at && (name = strsep(&at, ",")))
        for (int i = 0; i < s->device_count; i++)
            if (!strcmp(s->devices[i].name, name) && a->device_count < SUP_ATTEMPT_DEVICES)
                a->devices[a->device_count++] = i;
    free(names);
    if (a->device_count && !a->threads)
        a->threads = s->devices[a->devices[0]].threads;
    if (!a->threads)
        a->threads = 1;
    hold(s, a);
}

static bool reconcile_row(void *ctx, const struct store_attempt *row)
{
    struct reconcile *r = ctx;
    struct sup *s = r->s;
    struct att *a = att_new(s);
    char dir[SUP_PATH_MAX];

    if (!a) {
        r->err = PD_ERR_NOMEM;
        return false;
    }
    a->run = row->run_id;
    a->n = row->n;
    a->phase = ATT_WORKING;
    a->begun_us = row->created_us; /* wall clock, for run_details; monotonic below */
    a->acked = row->acked_seq;
    a->start_step = row->start_step;
    a->log_bytes = row->log_bytes;
    a->attempt_running = row->state != SPEC_ATTEMPT_STARTING;
    memcpy(a->token_sha256, row->token_sha256, sizeof a->token_sha256);
    snprintf(a->device_text, sizeof a->device_text, "%s", row->devices);
    att_dir(s, a->run, a->n, dir, sizeof dir);
    a->never_started = !row->pid;
    /* The row may lack the process that was started a moment before the end: the lock names it. */
    {
        pid_t pid = (pid_t)row->pid;
        uint64_t start = (uint64_t)row->pid_start;

        if (shim_alive(dir, &pid, &start) && pid > 0 && proc_adopt(pid, start, &a->proc))
            a->never_started = false;
    }
    return true;
}

enum pd_err att_reconcile(struct sup *s, struct pd_why *why)
{
    struct reconcile r = {.s = s};
    enum pd_err err = store_attempt_list(s->reader, 0, reconcile_row, &r, why);

    if (err == PD_OK)
        err = r.err;
    for (struct att *a = s->atts; err == PD_OK && a; a = a->next) {
        char dir[SUP_PATH_MAX];

        err = store_run_get(s->reader, a->run, run_details, a, why);
        if (err != PD_OK)
            break;
        a->begun_us = pd_clock_mono_us();
        take_devices(s, a);
        if (!a->proc.gone) {
            pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d adopted=1 pid=%d", (long long)a->run, a->n,
                   (int)a->proc.pid);
            sup_watch(s, &a->source, a->proc.fd, EPOLLIN);
            write_process(s, a);
            s->stats.adopted++;
            continue;
        }
        att_dir(s, a->run, a->n, dir, sizeof dir);
        a->proc.status = shim_exit_status(dir);
        if (a->never_started && a->proc.status < 0) {
            set_message(a, "polyd ended before the worker began");
            att_end(s, a, SPEC_CAUSE_LOST, false);
        } else {
            describe(a, a->proc.status);
            att_end(s, a, SPEC_CAUSE_LOST, true);
        }
    }
    return err;
}
