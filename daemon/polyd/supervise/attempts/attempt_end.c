/* How an attempt ends: its cause decides what becomes of the run. The row is written first; the process may
 * leave before or after. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define EXIT_US 5000000 /* a worker whose end is recorded leaves within it */
#define BACKOFF_MAX_US (INT64_C(300) * 1000000)

struct end_op {
    struct loop_op op;
    int64_t run;
    int n;
    enum job_cause cause;
    bool counts; /* against max_restarts, if it made no progress */
    bool lasting;
    int max_restarts, exit_status;
    int64_t backoff_us, ended_us;
    char *message;
};

/* Back to the queue; or to the paused runs if it or its job still is to pause: it may have been resumed since
 * the attempt was asked to. */
static enum pd_err requeue(struct store_tx *tx, struct end_op *e, enum job_run_state state,
                           struct pd_why *why)
{
    bool pause = false;
    enum pd_err err = store_run_pause_wanted(tx, e->run, &pause, why);

    if (err == PD_OK && !(pause && state == JOB_RUN_RUNNING))
        err = store_run_move(tx, e->run, JOB_RUN_QUEUED, JOB_OUTCOME_CANCELLED, e->message ? e->message : "",
                             why);
    if (err == PD_OK && pause)
        err = store_run_move(tx, e->run, JOB_RUN_PAUSED, JOB_OUTCOME_CANCELLED, "paused", why);
    return err;
}

static enum pd_err run_end(struct store_tx *tx, struct end_op *e, enum job_outcome outcome,
                           struct pd_why *why)
{
    return store_run_move(tx, e->run, JOB_RUN_ENDED, outcome, e->message ? e->message : "", why);
}

/* Failed or lost: again from the last checkpoint, as long as restarts are left. */
static enum pd_err retry(struct store_tx *tx, struct end_op *e, enum job_run_state state, struct pd_why *why)
{
    int64_t backoff_us = e->backoff_us, now_us = store_tx_clock_us(tx);
    int restarts;
    bool progressed;
    char reason[600];
    enum pd_err err;

    if (e->lasting && e->cause == JOB_CAUSE_FAILED)
        return run_end(tx, e, JOB_OUTCOME_FAILED, why);
    err = store_attempt_progressed(tx, e->run, e->n, &progressed, why);
    if (err == PD_OK) /* not as they were at its start: a retry of the job may have renewed them */
        err = store_run_restarts(tx, e->run, &restarts, why);
    if (err != PD_OK)
        return err;
    if (progressed)
        restarts = 0;
    if (e->counts)
        restarts++;
    if (e->counts && restarts > e->max_restarts) {
        snprintf(reason, sizeof reason, "%s (attempt %d, no restarts left)",
                 e->message ? e->message : "failed", e->n);
        return store_run_move(tx, e->run, JOB_RUN_ENDED, JOB_OUTCOME_FAILED, reason, why);
    }
    for (int i = 1; i < restarts && backoff_us < BACKOFF_MAX_US; i++)
        backoff_us *= 2;
    if (backoff_us > BACKOFF_MAX_US)
        backoff_us = BACKOFF_MAX_US;
    err = store_run_set_backoff(tx, e->run, restarts, e->counts ? now_us + backoff_us : 0, why);
    return err == PD_OK ? requeue(tx, e, state, why) : err;
}

static enum pd_err end_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct end_op *e = (struct end_op *)op;
    enum job_run_state state;
    enum pd_err err;

    err = store_attempt_end_at(tx, e->run, e->n, e->ended_us ? e->ended_us : store_tx_clock_us(tx), e->cause,
                               e->message, e->exit_status, why);
    if (err == PD_ERR_CONFLICT)
        return PD_OK; /* recorded before: only the answer is missing */
    if (err == PD_OK)
        err = store_checkpoint_sweep(tx, e->run, why);
    if (err == PD_OK)
        err = store_run_state(tx, e->run, &state, why);
    if (err != PD_OK)
        return err;
    if (state != JOB_RUN_STARTING && state != JOB_RUN_RUNNING && state != JOB_RUN_CANCELLING)
        return PD_OK;
    switch (e->cause) {
    case JOB_CAUSE_DONE: /* also when a cancel came too late */
        return run_end(tx, e, JOB_OUTCOME_SUCCEEDED, why);
    case JOB_CAUSE_DIVERGED:
        return run_end(tx, e, JOB_OUTCOME_DIVERGED, why);
    default:
        break;
    }
    if (state == JOB_RUN_CANCELLING)
        return run_end(tx, e, JOB_OUTCOME_CANCELLED, why);
    switch (e->cause) {
    case JOB_CAUSE_TIME_LIMIT:
        return run_end(tx, e, JOB_OUTCOME_FAILED, why);
    case JOB_CAUSE_PAUSED:
    case JOB_CAUSE_PREEMPTED:
    case JOB_CAUSE_CANCELLED:
        return requeue(tx, e, state, why);
    default:
        return retry(tx, e, state, why);
    }
}

static void end_release(struct loop_op *op)
{
    free(((struct end_op *)op)->message);
}

void att_free_end(struct att *a)
{
    if (a->end)
        end_release(&a->end->op);
    free(a->end);
    a->end = NULL;
}

void att_write_end(struct att *a)
{
    struct end_op *e = a->end;

    if (!e || a->ingests || a->stalled)
        return;
    a->end = NULL;
    loop_write(a->attempts->loop, &e->op);
}

static void end_done(struct loop_op *op)
{
    struct attempts *s = op->owner;
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
           e->n, job_cause_name(e->cause), e->message ? "why=\"" : "", e->message ? e->message : "",
           e->message ? "\"" : "");
    a->phase = ATT_ENDED;
    a->exit_us = pd_clock_mono_us() + EXIT_US;
    if (a->conn && a->bye)
        conn_bye(a->conn, "recorded");
    if (a->proc.gone)
        att_release(s, a);
}

/* What the GPU reported explains the end better than the worker's last words. */
static void blame_device(struct att *a, enum job_cause *cause, bool *counts)
{
    char text[512];

    if (a->fault[0]) {
        att_set_message(a, a->fault);
        *cause = JOB_CAUSE_LOST;
        *counts = false;
    } else if (a->xid[0] && *cause != JOB_CAUSE_DIVERGED) {
        snprintf(text, sizeof text, "%s%s%.300s", a->xid, a->message ? "; " : "",
                 a->message ? a->message : "");
        att_set_message(a, text);
        *counts = true;
    }
}

void att_end(struct attempts *s, struct att *a, enum job_cause cause, bool counts)
{
    struct end_op *e;

    if (a->phase == ATT_ENDING || a->phase == ATT_ENDED)
        return;
    if (cause == JOB_CAUSE_LOST || cause == JOB_CAUSE_FAILED || cause == JOB_CAUSE_DIVERGED)
        blame_device(a, &cause, &counts);
    e = calloc(1, sizeof *e);
    if (!e)
        return; /* the tick comes back to it: the process is gone, the phase is not */
    if (cause == JOB_CAUSE_LOST || cause == JOB_CAUSE_FAILED) {
        pthread_mutex_lock(&s->lock);
        s->stats.requeued++;
        pthread_mutex_unlock(&s->lock);
    }
    usage_end(s, a);
    a->phase = ATT_ENDING;
    e->op.apply = end_apply;
    e->op.owner = s;
    e->op.done = end_done;
    e->op.release = end_release;
    e->op.rows = 6;
    e->run = a->run;
    e->n = a->n;
    e->cause = cause;
    e->counts = counts;
    e->lasting = a->lasting;
    e->max_restarts = a->max_restarts;
    e->exit_status = a->proc.status;
    e->backoff_us = s->o->backoff_us;
    e->ended_us = a->ended_us;
    e->message = a->message ? strdup(a->message) : NULL;
    a->end = e;
    att_write_end(a);
}

/* ---- the process is gone -------------------------------------------------------------------- */

void att_describe(struct att *a, int status, int rank)
{
    char text[128], who[32] = "the worker";

    if (a->message)
        return;
    if (rank >= 0)
        snprintf(who, sizeof who, "rank %d", rank);
    if (status < 0)
        snprintf(text, sizeof text, "%s vanished", who);
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "%s was killed by signal %d (%s)", who, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "%s left with status %d without a word", who, WEXITSTATUS(status));
    att_set_message(a, text);
}

void att_gone(void *self, unsigned events)
{
    struct att *a = self;
    struct attempts *s = a->attempts;
    char dir[WORKERS_PATH_MAX];
    int status, rank;

    (void)events;
    proc_reap(&a->proc);
    att_dir(s, a->run, a->n, dir, sizeof dir);
    status = shim_exit_status(dir, &rank);
    if (status < 0) /* the shim itself was killed: what it was to keep together may be loose */
        workers_kill_strays(s->workers);
    a->proc.status = status;
    /* What it sent before its death is still in the socket. */
    for (int i = a->rank_count - 1; i >= 0; i--) /* rank 0 last: it knows less of why another left */
        if (*att_conn_of(a, i))
            conn_read(*att_conn_of(a, i));
    if (a->phase == ATT_ENDED) {
        att_release(s, a);
        return;
    }
    if (a->phase != ATT_WORKING)
        return; /* end_done releases it */
    if (a->stopping && a->cause == JOB_CAUSE_TIME_LIMIT)
        att_set_message(a, "time limit");
    else if (!a->stopping || a->cause == JOB_CAUSE_LOST)
        att_describe(a, status, rank);
    att_end(s, a, a->stopping ? a->cause : JOB_CAUSE_LOST, !a->stopping || a->cause == JOB_CAUSE_LOST);
}
