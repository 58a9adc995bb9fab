/* The life of an attempt: row, process, connection, frames, and its end. The rows are the truth: every step
 * here can be cut off by a kill of the daemon and is taken up again by attempts_start (reconcile.c).
 *
 *   queued run
 *       | row of the attempt: starting
 *       v
 *   process ---hello---> assign ---first step---> running ---bye---> row: ended ---> exit
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

/* ---- small things --------------------------------------------------------------------------- */

void att_dir(const struct attempts *s, int64_t run, int n, char *out, size_t size)
{
    snprintf(out, size, "%s/runs/%lld/attempt-%d", workers_state_dir(s->workers), (long long)run, n);
}

struct att *att_find(struct attempts *s, int64_t run, int n)
{
    for (struct att *a = s->atts; a; a = a->next)
        if (a->run == run && a->n == n)
            return a;
    return NULL;
}

bool att_knows(void *self, const char *mark)
{
    struct attempts *s = self;
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
        for (int i = 0; i < a->start_count; i++)
            free(a->starts[i].path);
        ingest_free(a->stalled);
        att_free_end(a);
        free(a->document);
        free(a->message);
        free(a);
    }
    return NULL;
}

struct att *att_new(struct attempts *s, int64_t run)
{
    struct att *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->run = run;
    a->source = (struct loop_source){.ready = att_gone, .self = a};
    a->attempts = s;
    a->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    a->heard_us = a->begun_us = pd_clock_mono_us();
    a->rank_count = 1;
    a->total = -1;
    a->step_written = a->log_written = -1;
    a->cause = JOB_CAUSE_LOST;
    pthread_mutex_lock(&s->lock);
    a->next = s->atts;
    s->atts = a;
    pthread_mutex_unlock(&s->lock);
    return a;
}

void att_hold(struct attempts *s, struct att *a)
{
    struct devices_holder holder = {
        .job = a->job, .run = a->run, .attempt = a->n, .need_bytes = a->need_bytes};

    devices_hold(s->devices, a->devices, a->device_count, &holder);
}

struct conn **att_conn_of(struct att *a, int rank)
{
    if (rank == 0)
        return &a->conn;
    return rank > 0 && rank < a->rank_count ? &a->ranks[rank].conn : NULL;
}

void att_heard(struct att *a, int rank, int64_t now_us)
{
    if (rank == 0)
        a->heard_us = now_us;
    else
        a->ranks[rank].heard_us = now_us;
}

/* The end in memory: devices are free, the run may be looked at again. */
void att_release(struct attempts *s, struct att *a)
{
    for (int i = 0; i < a->rank_count; i++) {
        struct conn **at = att_conn_of(a, i);

        if (*at)
            conn_discard(*at);
        *at = NULL;
    }
    pthread_mutex_lock(&s->lock);
    for (struct att **at = &s->atts; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    devices_release(s->devices, a->devices, a->device_count);
    att_free(a);
    loop_schedule(s->loop);
    loop_commands(s->loop);
}

void att_set_limit(struct att *a, const struct store_run *run, int64_t begun_us)
{
    int64_t left_us = run->time_limit_us > run->used_us ? run->time_limit_us - run->used_us : 0;
    int64_t before_us = run->warn_before_us;

    if (run->time_limit_us <= 0)
        return;
    /* Where less is left than the warning is to come before, it would come at the start and save nothing. */
    if (before_us > left_us / 2)
        before_us = left_us / 2;
    a->limit_us = begun_us + left_us;
    a->warn_us = before_us > 0 ? a->limit_us - before_us : 0;
}

void att_set_message(struct att *a, const char *text)
{
    free(a->message);
    a->message = text && *text ? strdup(text) : NULL;
}

/* ---- the start ------------------------------------------------------------------------------ */

struct insert_op {
    struct loop_op op;
    int64_t run;
    struct store_attempt_new row;
    char devices[sizeof((struct att *)0)->device_text];
    int n;
    struct att *att; /* stays in the list while it is ATT_INSERTING */
};

static enum pd_err insert_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct insert_op *i = (struct insert_op *)op;

    return store_attempt_insert(tx, &i->row, &i->n, why);
}

struct process_op {
    struct loop_op op;
    int64_t run, pid, start;
    int n;
};

static enum pd_err process_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct process_op *p = (struct process_op *)op;

    return store_attempt_process(tx, p->run, p->n, p->pid, p->start, why);
}

void att_write_process(struct attempts *s, const struct att *a)
{
    struct process_op *p = calloc(1, sizeof *p);

    if (!p)
        return; /* the shim's lock tells a later daemon */
    p->op.apply = process_apply;
    p->run = a->run;
    p->n = a->n;
    p->pid = a->proc.pid;
    p->start = (int64_t)a->proc.start;
    loop_write(s->loop, &p->op);
}

static void spawn(struct attempts *s, struct att *a)
{
    char dir[WORKERS_PATH_MAX], run[32], number[16], ranks[16], mark[WORKERS_PATH_MAX + 64];
    char *worker[] = {(char *)"--",
                      (char *)"train",
                      (char *)"--run",
                      run,
                      (char *)"--attempt",
                      number,
                      (char *)"--dir",
                      dir,
                      (char *)"--socket",
                      (char *)workers_socket(s->workers),
                      NULL};
    char *argv[6 + 2 * DEVICES_PICK_MAX + sizeof worker / sizeof *worker] = {
        (char *)"polyd-worker", (char *)"shim", (char *)"--dir", dir};
    struct device_env visible[DEVICES_PICK_MAX];
    struct device device;
    int argc = 4;
    struct pd_why why;
    enum pd_err err;

    if (a->rank_count > 1) {
        argv[argc++] = (char *)"--ranks";
        argv[argc++] = ranks;
        snprintf(ranks, sizeof ranks, "%d", a->rank_count);
        for (int i = 0; i < a->rank_count; i++) {
            devices_get(s->devices, a->devices[i], &device, NULL);
            device_env(&device, &visible[i]);
            argv[argc++] = (char *)"--visible";
            argv[argc++] = visible[i].visible;
        }
    }
    memcpy(&argv[argc], worker, sizeof worker);

    att_dir(s, a->run, a->n, dir, sizeof dir);
    snprintf(run, sizeof run, "%lld", (long long)a->run);
    snprintf(number, sizeof number, "%d", a->n);
    snprintf(mark, sizeof mark, "%s:run-%lld-%d", workers_state_dir(s->workers), (long long)a->run, a->n);
    devices_get(s->devices, a->devices[0], &device, NULL);
    err = pd_file_make_dirs(dir, &why);
    if (err == PD_OK)
        err =
            proc_spawn(s->workers, argv, a->token, a->rank_count, -1, -1, -1, mark, &device, &a->proc, &why);
    memset(a->token, 0, sizeof a->token);
    a->phase = ATT_WORKING;
    for (int i = 0; i < a->rank_count; i++)
        att_heard(a, i, pd_clock_mono_us());
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d spawn=failed why=\"%s\"", (long long)a->run,
               a->n, why.text);
        att_set_message(a, why.text);
        att_end(s, a, JOB_CAUSE_FAILED, true);
        return;
    }
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d pid=%d devices=%s start_step=%lld",
           (long long)a->run, a->n, (int)a->proc.pid, a->device_text, (long long)a->start_step);
    loop_watch(s->loop, &a->source, a->proc.fd, EPOLLIN);
    att_write_process(s, a);
    pthread_mutex_lock(&s->lock);
    s->stats.spawned++;
    pthread_mutex_unlock(&s->lock);
    loop_commands(s->loop); /* a cancel may have come while the row was written */
}

static void insert_done(struct loop_op *op)
{
    struct attempts *s = op->owner;
    struct insert_op *i = (struct insert_op *)op;
    struct att *a = i->att;

    if (op->err != PD_OK) {
        if (op->err != PD_ERR_CONFLICT) /* cancelled or paused meanwhile */
            pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=unwritten why=\"%s\"", (long long)i->run,
                   op->why.text);
        att_release(s, a);
        return;
    }
    pthread_mutex_lock(&s->lock);
    a->n = i->n;
    pthread_mutex_unlock(&s->lock);
    att_hold(s, a);
    /* At a stop nothing starts any more; the next daemon sees an attempt without a process. */
    if (loop_stopping(s->loop)) {
        a->never_started = true;
        a->phase = ATT_WORKING;
        att_set_message(a, "polyd was stopping");
        att_end(s, a, JOB_CAUSE_PREEMPTED, false);
        return;
    }
    spawn(s, a);
}

/* Rows come newest first. The greatest steps are kept, in falling order; of a step the newest row. */
static bool choose_checkpoint(void *ctx, const struct store_checkpoint *c)
{
    struct att *a = ctx;
    int at = 0;

    while (at < a->start_count && a->starts[at].step > c->step)
        at++;
    if (at == STARTS_MAX || c->step <= 0 || (at < a->start_count && a->starts[at].step == c->step) ||
        access(c->path, R_OK))
        return true;
    if (a->start_count == STARTS_MAX)
        free(a->starts[--a->start_count].path);
    memmove(&a->starts[at + 1], &a->starts[at], (size_t)(a->start_count - at) * sizeof *a->starts);
    a->starts[at] = (struct att_start){.path = strdup(c->path), .step = c->step};
    snprintf(a->starts[at].digest, sizeof a->starts[at].digest, "%s", c->digest);
    a->start_count++;
    return a->starts[at].path != NULL;
}

enum pd_err att_choose_starts(struct attempts *s, struct att *a, struct pd_why *why)
{
    enum pd_err err = store_checkpoint_list(loop_reader(s->loop), a->run, false, choose_checkpoint, a, why);

    for (int i = 0; err == PD_OK && i < a->start_count; i++)
        if (!a->starts[i].path)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for an attempt");
    return err;
}

void att_start_run(struct attempts *s, const struct store_run *run, const int *devices, int count)
{
    struct insert_op *op = calloc(1, sizeof *op);
    struct att *a = NULL;
    struct pd_why why = {""};
    enum pd_err err = op ? PD_OK : PD_ERR_NOMEM;
    struct device device;
    size_t len = 0;

    if (err == PD_OK && !(a = att_new(s, run->id)))
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for an attempt");
    if (err == PD_OK)
        err = att_choose_starts(s, a, &why);
    if (err == PD_OK) {
        a->job = run->job_id;
        a->phase = ATT_INSERTING;
        a->document = strdup(run->document);
        a->max_restarts = run->max_restarts;
        a->start_step = a->start_count ? a->starts[0].step : 0;
        a->step = a->start_step;
        a->total = run->total_steps;
        devices_get(s->devices, 0, &device, NULL);
        a->threads = run->threads > 0 ? run->threads : device.threads;
        a->need_bytes = plans_bytes(s->plans, run->plan_digest);
        att_set_limit(a, run, pd_clock_boot_us());
        for (int i = 0; i < count; i++) {
            devices_get(s->devices, devices[i], &device, NULL);
            a->devices[a->device_count++] = devices[i];
            len += (size_t)snprintf(a->device_text + len, sizeof a->device_text - len, "%s%s", i ? "," : "",
                                    device.id);
        }
        a->rank_count = a->device_count;
        memcpy(a->kind, device.kind, sizeof a->kind);
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
    att_hold(s, a);
    digest_sha256(a->token, sizeof a->token, a->token_sha256);
    op->op.rows = 5;
    op->op.apply = insert_apply;
    op->op.owner = s;
    op->op.done = insert_done;
    op->run = run->id;
    op->att = a;
    snprintf(op->devices, sizeof op->devices, "%s", a->device_text);
    op->row =
        (struct store_attempt_new){.run_id = run->id, .devices = op->devices, .start_step = a->start_step};
    memcpy(op->row.token_sha256, a->token_sha256, sizeof a->token_sha256);
    loop_write(s->loop, &op->op);
}

/* ---- moves of the rows while it works ------------------------------------------------------- */

struct move_op {
    struct loop_op op;
    int64_t run;
    int n;
    struct att_move what;
};

static enum pd_err move_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct move_op *m = (struct move_op *)op;
    enum job_run_state state;
    enum pd_err err = PD_OK;

    /* A row that has moved on (cancelled, ended) is no failure. */
    if (m->what.attempt_running)
        err = store_attempt_move(tx, m->run, m->n, JOB_ATTEMPT_RUNNING, JOB_CAUSE_LOST, NULL, -1, why);
    if (err == PD_OK && m->what.stopping)
        err = store_attempt_move(tx, m->run, m->n, JOB_ATTEMPT_STOPPING, JOB_CAUSE_LOST, NULL, -1, why);
    if (err == PD_ERR_CONFLICT)
        err = PD_OK;
    if (err == PD_OK && m->what.run_running) {
        err = store_run_state(tx, m->run, &state, why);
        if (err == PD_OK && state == JOB_RUN_STARTING)
            err = store_run_move(tx, m->run, JOB_RUN_RUNNING, JOB_OUTCOME_CANCELLED, NULL, why);
    }
    return err;
}

void att_write_move(struct attempts *s, const struct att *a, struct att_move what)
{
    struct move_op *m = calloc(1, sizeof *m);

    if (!m)
        return;
    m->what = what;
    m->op.rows = 3;
    m->op.apply = move_apply;
    m->run = a->run;
    m->n = a->n;
    loop_write(s->loop, &m->op);
}

static void first_step(struct attempts *s, struct att *a)
{
    if (!a->row_running) {
        a->row_running = true;
        att_write_move(s, a, (struct att_move){.run_running = true});
    }
}

struct progress_op {
    struct loop_op op;
    int64_t run, step, total, log_bytes;
    int n;
};

static enum pd_err progress_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct progress_op *p = (struct progress_op *)op;

    return store_attempt_progress(tx, p->run, p->n, p->step, p->total, p->log_bytes, why);
}

void att_write_progress(struct attempts *s, struct att *a)
{
    struct progress_op *p;

    if (a->step == a->step_written && a->log_bytes == a->log_written)
        return;
    p = calloc(1, sizeof *p);
    if (!p)
        return;
    p->op.apply = progress_apply;
    p->op.rows = 2;
    p->run = a->run;
    p->n = a->n;
    p->step = a->step == a->step_written ? -1 : a->step;
    p->total = a->total;
    p->log_bytes = a->log_bytes;
    a->step_written = a->step;
    a->log_written = a->log_bytes;
    loop_write(s->loop, &p->op);
}

/* ---- the connection ------------------------------------------------------------------------- */

/* The id of the rank-th device. */
static void device_of(const struct att *a, int rank, char *out, size_t size)
{
    const char *at = a->device_text;

    while (rank-- > 0 && strchr(at, ','))
        at = strchr(at, ',') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

static void put_assign(struct attempts *s, struct att *a, struct conn *c)
{
    char dir[WORKERS_PATH_MAX], device[DEVICE_ID_BYTES + 1];
    int root_count;
    const struct sup_data_root *roots = workers_roots(s->workers, &root_count);
    size_t at = wire_begin(conn_out(c), WIRE_ASSIGN, 0, 0);

    wire_put_text(conn_out(c), WIRE_TAG_ROLE, s->train_role);
    wire_put_text(conn_out(c), WIRE_TAG_JOB, a->document);
    device_of(a, conn_rank(c), device, sizeof device);
    wire_put_text(conn_out(c), WIRE_TAG_DEVICE, device);
    wire_put_u32(conn_out(c), WIRE_TAG_RANK, (uint32_t)conn_rank(c));
    wire_put_u32(conn_out(c), WIRE_TAG_RANKS, (uint32_t)a->rank_count);
    wire_put_u32(conn_out(c), WIRE_TAG_THREADS, (uint32_t)a->threads);
    snprintf(dir, sizeof dir, "%s/runs/%lld", workers_state_dir(s->workers), (long long)a->run);
    wire_put_text(conn_out(c), WIRE_TAG_RUN_DIR, dir);
    wire_put_text(conn_out(c), WIRE_TAG_STORE, store_writer_uuid(loop_writer(s->loop)));
    for (int i = 0; i < a->start_count; i++) { /* the first, or where it is damaged the next */
        wire_put_text(conn_out(c), WIRE_TAG_CHECKPOINT, a->starts[i].path);
        wire_put_text(conn_out(c), WIRE_TAG_DIGEST, a->starts[i].digest);
    }
    if (a->start_count)
        wire_put_u64(conn_out(c), WIRE_TAG_STEP, (uint64_t)a->start_step);
    wire_put_u32(conn_out(c), WIRE_TAG_RESTARTS, (uint32_t)(a->n - 1));
    for (int i = 0; i < root_count; i++) {
        char root[4096];

        snprintf(root, sizeof root, "%s=%s", roots[i].name, roots[i].path);
        wire_put_text(conn_out(c), WIRE_TAG_DATA_ROOT, root);
    }
    conn_end(c, at);
}

static void put_rendezvous(struct att *a, struct conn *c)
{
    size_t at = wire_begin(conn_out(c), WIRE_RENDEZVOUS, 0, 0);

    wire_put_bytes(conn_out(c), WIRE_TAG_COMM_ID, a->comm_id, a->comm_id_len);
    conn_end(c, at);
}

static void connected(struct attempts *s, struct att *a, struct conn *c)
{
    att_heard(a, conn_rank(c), pd_clock_mono_us());
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d rank=%d connected=1 acked=%lld", (long long)a->run,
           a->n, conn_rank(c), (long long)a->acked);
    put_assign(s, a, c);
    if (conn_rank(c) > 0) { /* rank 0 speaks for all */
        if (a->comm_id_len)
            put_rendezvous(a, c);
        return;
    }
    if (!a->attempt_running) {
        a->attempt_running = true;
        att_write_move(s, a, (struct att_move){.attempt_running = true});
    }
    if (a->stopping)
        att_send_stop(s, a);
}

/* ---- frames --------------------------------------------------------------------------------- */

static void take_progress(struct attempts *s, struct att *a, const uint8_t *p, size_t len)
{
    char state[32];

    wire_get_text(p, len, WIRE_TAG_STATE, state, sizeof state);
    pthread_mutex_lock(&s->lock);
    a->step = (int64_t)wire_get_u64(p, len, WIRE_TAG_STEP, 0);
    a->total = (int64_t)wire_get_u64(p, len, WIRE_TAG_TOTAL, UINT64_MAX);
    a->updated_us = pd_clock_wall_us();
    a->checkpointing = !strcmp(state, "checkpointing");
    wire_get_text(p, len, WIRE_TAG_PHASE, a->between_steps, sizeof a->between_steps);
    pthread_mutex_unlock(&s->lock);
    if (a->step > a->start_step)
        first_step(s, a);
}

static void take_bye(struct attempts *s, struct conn *c, struct att *a, const uint8_t *p, size_t len)
{
    char cause[32], text[512];
    int64_t step = (int64_t)wire_get_u64(p, len, WIRE_TAG_STEP, 0);

    (void)c;
    wire_get_text(p, len, WIRE_TAG_CAUSE, cause, sizeof cause);
    wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
    a->bye = true;
    if (a->phase != ATT_WORKING)
        return; /* the end is being written, and then answered */
    pthread_mutex_lock(&s->lock);
    if (step > a->step)
        a->step = step;
    pthread_mutex_unlock(&s->lock);
    att_write_progress(s, a);
    if (text[0] && !a->rank_failed_us)
        att_set_message(a, text);
    if (!strcmp(cause, "done"))
        att_end(s, a, JOB_CAUSE_DONE, false);
    else if (!strcmp(cause, "diverged"))
        att_end(s, a, JOB_CAUSE_DIVERGED, false);
    else if (!strcmp(cause, "checkpointed")) {
        if (a->stopping && a->cause == JOB_CAUSE_TIME_LIMIT)
            att_set_message(a, "time limit");
        att_end(s, a, a->stopping ? a->cause : JOB_CAUSE_PREEMPTED, false);
    } else {
        /* What an attempt before this one could read may be there again. */
        a->lasting = (!strcmp(cause, "invalid") && a->start_step <= 0) || !strcmp(cause, "outdated");
        att_end(s, a, a->stopping && a->cause == JOB_CAUSE_CANCELLED ? JOB_CAUSE_CANCELLED : JOB_CAUSE_FAILED,
                true);
    }
}

static void take_rendezvous(struct att *a, const uint8_t *p, size_t len)
{
    struct wire_field f;

    if (!wire_find(p, len, WIRE_TAG_COMM_ID, &f) || !f.len || f.len > sizeof a->comm_id)
        return;
    if (a->comm_id_len == f.len && !memcmp(a->comm_id, f.bytes, f.len))
        return; /* repeated after a reconnection */
    memcpy(a->comm_id, f.bytes, f.len);
    a->comm_id_len = f.len;
    for (int i = 1; i < a->rank_count; i++)
        if (a->ranks[i].conn) {
            put_rendezvous(a, a->ranks[i].conn);
            conn_flush(a->ranks[i].conn);
        }
}

/* A rank other than 0 leaves. Its own reason is better than what the others make of its absence. */
static void take_rank_bye(struct conn *c, struct att *a, const uint8_t *p, size_t len)
{
    char cause[32], text[512], message[600];

    wire_get_text(p, len, WIRE_TAG_CAUSE, cause, sizeof cause);
    wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
    a->ranks[conn_rank(c)].bye = true;
    if ((!strcmp(cause, "failed") || !strcmp(cause, "invalid") || !strcmp(cause, "outdated")) &&
        !a->rank_failed_us) {
        a->rank_failed_us = pd_clock_mono_us();
        if (strncmp(text, "rank ", 5) != 0)
            snprintf(message, sizeof message, "rank %d: %s", conn_rank(c), text);
        else /* a sentence from another rank has its number already */
            snprintf(message, sizeof message, "%s", text);
        if (a->phase == ATT_WORKING && !a->message)
            att_set_message(a, message);
    }
    conn_bye(c, "recorded");
}

static void take_frame(void *self, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    struct att *a = self;
    struct attempts *s = a->attempts;

    if (h->type == WIRE_TUNED_ASK) { /* every rank has a back end of its own */
        tuned_ask(s->loop, c, p, h->len);
        return;
    }
    if (h->type == WIRE_TUNED) {
        tuned_take(s->loop, a->run, p, h->len);
        return;
    }
    if (conn_rank(c) > 0) { /* data comes from rank 0 alone */
        if (h->type == WIRE_BYE)
            take_rank_bye(c, a, p, h->len);
        return;
    }
    switch (h->type) {
    case WIRE_RENDEZVOUS:
        take_rendezvous(a, p, h->len);
        break;
    case WIRE_PROGRESS:
        take_progress(s, a, p, h->len);
        break;
    case WIRE_METRICS:
        first_step(s, a);
        att_data(s, c, a, h, p);
        break;
    case WIRE_CHECKPOINT_WRITTEN:
    case WIRE_EVENT:
    case WIRE_BLOB:
        att_data(s, c, a, h, p);
        break;
    case WIRE_LOG_OFFSET:
        pthread_mutex_lock(&s->lock);
        a->log_bytes = (int64_t)wire_get_u64(p, h->len, WIRE_TAG_BYTES, 0);
        pthread_mutex_unlock(&s->lock);
        break;
    case WIRE_BYE:
        take_bye(s, c, a, p, h->len);
        break;
    default:
        break; /* from a newer worker */
    }
}

/* ---- whose connection it is ------------------------------------------------------------------ */

static void heard(void *self, struct conn *c, int64_t now_us)
{
    att_heard(self, conn_rank(c), now_us);
}

static void closed(void *self, struct conn *c, bool silent)
{
    struct att *a = self;
    int rank = conn_rank(c);

    *att_conn_of(a, rank) = NULL;
    if (!rank) {
        a->stalled = ingest_free(a->stalled);
        att_write_end(a);
    }
    if (!silent) /* a worker that hangs does not get the silence twice: to the close, and from it */
        att_heard(a, rank, pd_clock_mono_us());
}

static bool resume(void *self, struct conn *c)
{
    (void)c;
    return att_unstall(self);
}

bool att_hello(void *self, struct conn *c, const struct conn_hello *h)
{
    static const struct conn_owner owner = {
        .frame = take_frame, .heard = heard, .closed = closed, .resume = resume};
    struct attempts *s = self;
    uint8_t hash[32];
    struct conn **place;
    struct att *a;

    if (!h->run)
        return false;
    a = att_find(s, h->run, h->attempt);
    digest_sha256(h->token, WIRE_TOKEN_BYTES, hash);
    place = a ? att_conn_of(a, h->rank) : NULL;
    if (!place || a->phase == ATT_ENDED || !digest_equal(hash, a->token_sha256, sizeof hash)) {
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d hello=refused pid=%d", (long long)h->run,
               h->attempt, (int)conn_peer(c));
        return false;
    }
    if (*place && conn_peer(*place) != conn_peer(c))
        return false; /* already connected: a double start must not write twice */
    if (*place)       /* the same process came again: its old connection is dead and we had not noticed */
        conn_drop(*place);
    conn_welcome(c, h->rank ? 0 : (uint64_t)a->acked, &owner, a);
    *place = c;
    connected(s, a, c);
    return true;
}
