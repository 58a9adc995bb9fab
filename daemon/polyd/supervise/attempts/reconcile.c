/* After a restart of the daemon: every attempt whose row has not ended is adopted, requeued or failed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

/* Progress of a long start is logged. */
static void busy(struct attempts *s)
{
    if (s->o->busy)
        s->o->busy(s->o->busy_ctx, "adopting earlier attempts");
}

struct reconcile {
    struct attempts *s;
    enum pd_err err;
};

static bool run_details(void *ctx, const struct store_run *r)
{
    struct att *a = ctx;

    a->job = r->job_id;
    a->document = strdup(r->document);
    a->max_restarts = r->max_restarts;
    a->threads = r->threads;
    a->row_running = r->state == JOB_RUN_RUNNING || r->state == JOB_RUN_CANCELLING;
    a->step = r->step;
    a->total = r->total_steps;
    snprintf(a->plan_digest, sizeof a->plan_digest, "%s", r->plan_digest);
    att_set_limit(a, r, a->begun_us);
    return false;
}

static void take_devices(struct attempts *s, struct att *a)
{
    char *names = strdup(a->device_text), *at = names, *name;
    struct device device;

    while (at && (name = strsep(&at, ",")))
        for (int i = 0; devices_get(s->devices, i, &device, NULL); i++)
            if (!strcmp(device.id, name) && a->device_count < DEVICES_PICK_MAX) {
                a->devices[a->device_count++] = i;
                memcpy(a->kind, device.kind, sizeof a->kind);
            }
    free(names);
    /* A rank for each that is named, whether its device is still there or not. */
    for (const char *c = a->device_text; *c; c++)
        if (*c == ',' && a->rank_count < DEVICES_PICK_MAX)
            a->ranks[a->rank_count++].heard_us = pd_clock_mono_us();
    a->need_bytes = plans_bytes(s->plans, a->plan_digest);
    if (a->device_count && !a->threads && devices_get(s->devices, 0, &device, NULL))
        a->threads = device.threads;
    if (!a->threads)
        a->threads = 1;
    att_hold(s, a);
}

/* The last moment at which a dead attempt is known to have lived, on the store's clock. The time while the
 * machine or the container was off is not the run's. */
static int64_t last_moment(struct attempts *s, const char *dir)
{
    int64_t at_us = store_writer_previous_us(loop_writer(s->loop)), exit_us = shim_exit_us(dir);

    if (exit_us)
        exit_us += store_writer_clock_us(loop_writer(s->loop)) - pd_clock_wall_us();
    return exit_us > at_us ? exit_us : at_us;
}

static bool reconcile_row(void *ctx, const struct store_attempt *row)
{
    struct reconcile *r = ctx;
    struct attempts *s = r->s;
    struct att *a = att_new(s, row->run_id);
    char dir[WORKERS_PATH_MAX];

    busy(s);
    if (!a) {
        r->err = PD_ERR_NOMEM;
        return false;
    }
    a->n = row->n;
    a->phase = ATT_WORKING;
    /* Boot time, for run_details; monotonic below. Negative, if the machine was started since. */
    a->begun_us = pd_clock_boot_us() - (store_writer_clock_us(loop_writer(s->loop)) - row->clock_us);
    a->acked = row->acked_seq;
    a->start_step = row->start_step;
    a->log_bytes = row->log_bytes;
    a->attempt_running = row->state != JOB_ATTEMPT_STARTING;
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
    if (a->proc.gone)
        a->ended_us = last_moment(s, dir);
    return true;
}

enum pd_err attempts_start(struct attempts *s, struct pd_why *why)
{
    struct reconcile r = {.s = s};
    enum pd_err err;

    busy(s);
    err = store_attempt_list(loop_reader(s->loop), 0, reconcile_row, &r, why);
    if (err == PD_OK)
        err = r.err;
    for (struct att *a = s->atts; err == PD_OK && a; a = a->next) {
        char dir[WORKERS_PATH_MAX];
        int rank;

        busy(s);
        err = store_run_get(loop_reader(s->loop), a->run, run_details, a, why);
        if (err == PD_OK) /* its worker may not have been assigned anything yet */
            err = att_choose_starts(s, a, why);
        if (err != PD_OK)
            break;
        a->begun_us = pd_clock_mono_us();
        take_devices(s, a);
        if (!a->proc.gone) {
            pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d adopted=1 pid=%d", (long long)a->run, a->n,
                   (int)a->proc.pid);
            loop_watch(s->loop, &a->source, a->proc.fd, EPOLLIN);
            att_write_process(s, a);
            s->stats.adopted++;
            continue;
        }
        att_dir(s, a->run, a->n, dir, sizeof dir);
        a->proc.status = shim_exit_status(dir, &rank);
        if (a->never_started && a->proc.status < 0) {
            att_set_message(a, "polyd ended before the worker began");
            att_end(s, a, JOB_CAUSE_LOST, false);
        } else {
            att_describe(a, a->proc.status, rank);
            att_end(s, a, JOB_CAUSE_LOST, true);
        }
    }
    return err;
}
