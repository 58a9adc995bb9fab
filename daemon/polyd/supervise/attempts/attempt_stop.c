/* Why a working attempt is asked to leave, and what happens when it does not: cancel, pause, time limit,
 * hang. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define KILL_AGAIN_US 2000000 /* the shim did not obey: kill it too */
#define GANG_US 10000000      /* ranks leave within it when one has failed */
#define WRITE_US 1000000      /* progress goes to the rows this often */

void att_send_stop(struct attempts *s, struct att *a)
{
    size_t at;

    if (!a->conn) {
        proc_signal(&a->proc, SIGTERM);
        return;
    }
    at = wire_begin(conn_out(a->conn), a->cause == JOB_CAUSE_CANCELLED ? WIRE_CANCEL : WIRE_DRAIN, 0, 0);
    wire_put_u32(conn_out(a->conn), WIRE_TAG_ATTEMPT, (uint32_t)a->n);
    wire_put_u64(conn_out(a->conn), WIRE_TAG_GRACE_US, (uint64_t)s->o->grace_us);
    conn_end(a->conn, at);
    conn_flush(a->conn);
}

static void ask_stop(struct attempts *s, struct att *a, enum job_cause cause)
{
    if (a->phase != ATT_WORKING)
        return;
    if (a->stopping) {
        if (cause == JOB_CAUSE_CANCELLED)
            a->cause = cause;
        return;
    }
    a->stopping = true;
    a->cause = cause;
    a->kill_us = pd_clock_mono_us() + s->o->grace_us;
    att_write_move(s, a, (struct att_move){.stopping = true});
    att_send_stop(s, a);
}

void att_stop_all(struct attempts *s)
{
    for (struct att *a = s->atts; a; a = a->next)
        ask_stop(s, a, JOB_CAUSE_PREEMPTED);
}

struct cancelling {
    struct attempts *s;
    int64_t lone[64]; /* cancelling runs of which no process exists */
    int count;
};

static bool cancel_row(void *ctx, const struct store_run *r)
{
    struct cancelling *c = ctx;

    for (struct att *a = c->s->atts; a; a = a->next)
        if (a->run == r->id) {
            ask_stop(c->s, a, JOB_CAUSE_CANCELLED);
            return true;
        }
    if (c->count < 64)
        c->lone[c->count++] = r->id;
    return true;
}

struct lone_op {
    struct loop_op op;
    int64_t run;
};

static enum pd_err lone_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    enum pd_err err =
        store_run_move(tx, ((struct lone_op *)op)->run, JOB_RUN_ENDED, JOB_OUTCOME_CANCELLED, "", why);

    return err == PD_ERR_CONFLICT ? PD_OK : err;
}

void att_commands(struct attempts *s)
{
    struct store_run_query q = {
        .state = JOB_RUN_CANCELLING, .outcome = -1, .order = STORE_ORDER_OLDEST, .limit = STORE_PAGE_MAX};
    struct cancelling c = {.s = s};
    struct pd_why why;
    enum pd_err err = store_run_list(loop_reader(s->loop), &q, cancel_row, &c, &why);

    for (int i = 0; err == PD_OK && i < c.count; i++) {
        struct lone_op *op = calloc(1, sizeof *op);

        if (!op)
            break;
        op->op.apply = lone_apply;
        op->run = c.lone[i];
        loop_write(s->loop, &op->op);
    }
    for (struct att *a = s->atts; err == PD_OK && a; a = a->next) {
        bool pause = false;

        if (a->phase != ATT_WORKING || a->stopping)
            continue;
        err = store_run_to_pause(loop_reader(s->loop), a->run, &pause, &why);
        if (err == PD_OK && pause)
            ask_stop(s, a, JOB_CAUSE_PAUSED);
    }
    if (err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "commands=unreadable why=\"%s\"", why.text);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static void hard_kill(struct attempts *s, struct att *a, int64_t now_us)
{
    pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d kill=%s pid=%d", (long long)a->run, a->n,
           a->killed ? "shim" : "hard", (int)a->proc.pid);
    proc_signal(&a->proc, a->killed ? SIGKILL : SIGUSR1);
    a->killed = true;
    a->kill_us = now_us + KILL_AGAIN_US;
    pthread_mutex_lock(&s->lock);
    s->stats.killed++;
    pthread_mutex_unlock(&s->lock);
}

/* Silent too long. */
static void hangs(struct attempts *s, struct att *a, int rank, int64_t now_us)
{
    char text[96] = "the worker hangs: it was silent too long";

    if (a->rank_count > 1)
        snprintf(text, sizeof text, "rank %d hangs: it was silent too long", rank);
    att_set_message(a, text);
    if (!a->stopping) {
        a->stopping = true;
        a->cause = JOB_CAUSE_LOST;
    }
    pthread_mutex_lock(&s->lock);
    s->stats.hangs++;
    pthread_mutex_unlock(&s->lock);
    a->kill_us = now_us;
}

static void look_after_ranks(struct attempts *s, struct att *a, int64_t now_us)
{
    for (int i = 1; i < a->rank_count; i++)
        if (!a->ranks[i].bye && now_us - a->ranks[i].heard_us > s->o->hang_us && !a->killed) {
            hangs(s, a, i, now_us);
            return;
        }
    /* Rank 0 should have detected and reported it. */
    if (a->rank_failed_us && now_us - a->rank_failed_us > GANG_US && !a->killed && !a->kill_us) {
        if (!a->stopping) {
            a->stopping = true;
            a->cause = JOB_CAUSE_LOST;
        }
        a->kill_us = now_us;
    }
}

static void checkpoint_now(struct att *a)
{
    size_t at;

    at = wire_begin(conn_out(a->conn), WIRE_CHECKPOINT_NOW, 0, 0);
    conn_end(a->conn, at);
    conn_flush(a->conn);
}

/* ---- faults of its devices ------------------------------------------------------------------- */

/* The device has failed: the worker cannot even be asked to leave. */
static void lose(struct att *a, const char *device, const char *reason)
{
    if (a->fault[0])
        return;
    snprintf(a->fault, sizeof a->fault, "%s: %s", device, reason);
    pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d device=%s fault=\"%s\"", (long long)a->run, a->n,
           device, reason);
    if (!a->stopping) {
        a->stopping = true;
        a->cause = JOB_CAUSE_LOST;
    }
    a->kill_us = pd_clock_mono_us();
}

void att_device_fault(void *self, int64_t run, int n, const char *device, bool fatal, const char *reason)
{
    struct att *a = att_find(self, run, n);

    if (!a || a->phase != ATT_WORKING)
        return;
    if (fatal)
        lose(a, device, reason);
    else if (!a->stopping) { /* an error of a program: of this one, unless it goes on */
        snprintf(a->xid, sizeof a->xid, "%s reported %s", device, reason);
        a->xid_us = pd_clock_mono_us();
        a->xid_step = a->step;
    }
}

static void judge_suspect(struct attempts *s, struct att *a, int64_t now_us)
{
    if (!a->xid[0] || a->stopping)
        return;
    if (a->step > a->xid_step)
        a->xid[0] = '\0'; /* it goes on: the error was not its own */
    else if (now_us - a->xid_us > s->o->grace_us) {
        a->stopping = true;
        a->cause = JOB_CAUSE_FAILED;
        a->kill_us = now_us;
    }
}

/* ---- the tick -------------------------------------------------------------------------------- */

void att_tick(struct attempts *s, int64_t now_us)
{
    int64_t boot_us =
        pd_clock_boot_us(); /* a time limit counts the time that the machine sleeps, a hang does not */
    struct att *next;

    for (struct att *a = s->atts; a; a = next) {
        next = a->next;
        if (a->phase == ATT_WORKING && a->proc.gone && !a->never_started) {
            att_end(s, a, JOB_CAUSE_LOST, true); /* an earlier try had no memory */
            continue;
        }
        if (a->phase == ATT_WORKING)
            judge_suspect(s, a, now_us);
        if (a->phase == ATT_WORKING && now_us - a->write_us >= WRITE_US) {
            att_write_progress(s, a);
            a->write_us = now_us;
        }
        if (a->proc.gone)
            continue;
        /* Without a connection the warning waits for one. */
        if (a->phase == ATT_WORKING && !a->stopping && a->conn && a->warn_us && !a->warned &&
            boot_us >= a->warn_us) {
            a->warned = true;
            pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d time_limit=soon", (long long)a->run, a->n);
            checkpoint_now(a);
        }
        if (a->phase == ATT_WORKING && !a->stopping && a->limit_us && boot_us >= a->limit_us)
            ask_stop(s, a, JOB_CAUSE_TIME_LIMIT);
        if (a->phase == ATT_WORKING && now_us - a->heard_us > s->o->hang_us && !a->killed)
            hangs(s, a, 0, now_us);
        else if (a->phase == ATT_WORKING)
            look_after_ranks(s, a, now_us);
        if (a->phase == ATT_ENDED && a->exit_us && now_us >= a->exit_us && !a->kill_us)
            a->kill_us = now_us;
        if (a->kill_us && now_us >= a->kill_us)
            hard_kill(s, a, now_us);
    }
}
