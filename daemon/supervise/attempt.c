/* The life of an attempt: row, process, connection, frames, and its end. The rows are the truth: every step
 * here can be cut off by a kill of the daemon and is taken up again by att_reconcile (reconcile.c).
 *
 *   queued run --row: attempt, starting--> process --hello--> assign --first step--> running --bye--> row:
 * ended --> exit
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

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
        for (int i = 0; i < a->start_count; i++)
            free(a->starts[i].path);
        free(a->document);
        free(a->message);
        free(a);
    }
    return NULL;
}

struct att *att_new(struct sup *s, int64_t run)
{
    struct att *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->run = run;
    a->source = (struct source){.kind = SOURCE_ATT, .self = a};
    a->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    a->heard_us = a->begun_us = pd_clock_mono_us();
    a->rank_count = 1;
    a->total = -1;
    a->step_written = a->log_written = -1;
    a->cause = SPEC_CAUSE_LOST;
    pthread_mutex_lock(&s->mutex);
    a->next = s->atts;
    s->atts = a;
    pthread_mutex_unlock(&s->mutex);
    return a;
}

void att_hold(struct sup *s, struct att *a)
{
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < a->device_count; i++) {
        s->held[a->devices[i]].run = a->run;
        s->held[a->devices[i]].attempt = a->n;
        s->held[a->devices[i]].need_bytes = a->need_bytes;
    }
    pthread_mutex_unlock(&s->mutex);
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
void att_release(struct sup *s, struct att *a)
{
    bool look = false;

    for (int i = 0; i < a->rank_count; i++) {
        struct conn **at = att_conn_of(a, i);

        if (*at) {
            (*at)->att = NULL;
            conn_drop(s, *at);
            *at = NULL;
        }
    }
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < a->device_count; i++) {
        s->held[a->devices[i]].run = s->held[a->devices[i]].attempt = 0;
        s->held[a->devices[i]].need_bytes = 0;
        s->held[a->devices[i]].freed_us = pd_clock_mono_us();
        look = look || s->devices[a->devices[i]].gpu >= 0;
    }
    for (struct att **at = &s->atts; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
    att_free(a);
    if (look)
        device_watch_look(s->watch);
    s->schedule = s->commands = true;
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
    struct op op;
    int64_t run;
    struct store_attempt_new row;
    char devices[sizeof((struct att *)0)->device_text];
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

void att_write_process(struct sup *s, const struct att *a)
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
    char dir[SUP_PATH_MAX], run[32], number[16], ranks[16], mark[SUP_PATH_MAX + 64];
    char *worker[] = {
        (char *)"--", (char *)"train",    (char *)"--run", run, (char *)"--attempt", number, (char *)"--dir",
        dir,          (char *)"--socket", s->socket_path,  NULL};
    char *argv[6 + 2 * SUP_ATTEMPT_DEVICES + sizeof worker / sizeof *worker] = {
        (char *)"polyd-worker", (char *)"shim", (char *)"--dir", dir};
    struct device_env visible[SUP_ATTEMPT_DEVICES];
    int argc = 4;
    struct pd_why why;
    enum pd_err err;

    if (a->rank_count > 1) {
        argv[argc++] = (char *)"--ranks";
        argv[argc++] = ranks;
        snprintf(ranks, sizeof ranks, "%d", a->rank_count);
        for (int i = 0; i < a->rank_count; i++) {
            device_env(&s->devices[a->devices[i]], &visible[i]);
            argv[argc++] = (char *)"--visible";
            argv[argc++] = visible[i].visible;
        }
    }
    memcpy(&argv[argc], worker, sizeof worker);

    att_dir(s, a->run, a->n, dir, sizeof dir);
    snprintf(run, sizeof run, "%lld", (long long)a->run);
    snprintf(number, sizeof number, "%d", a->n);
    snprintf(mark, sizeof mark, "%s:run-%lld-%d", s->state_dir, (long long)a->run, a->n);
    err = pd_file_make_dirs(dir, &why);
    if (err == PD_OK)
        err = proc_spawn(s, argv, a->token, a->rank_count, -1, -1, -1, mark, &s->devices[a->devices[0]],
                         &a->proc, &why);
    memset(a->token, 0, sizeof a->token);
    a->phase = ATT_WORKING;
    for (int i = 0; i < a->rank_count; i++)
        att_heard(a, i, pd_clock_mono_us());
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "run=%lld attempt=%d spawn=failed why=\"%s\"", (long long)a->run,
               a->n, why.text);
        att_set_message(a, why.text);
        att_end(s, a, SPEC_CAUSE_FAILED, true);
        return;
    }
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d pid=%d devices=%s start_step=%lld",
           (long long)a->run, a->n, (int)a->proc.pid, a->device_text, (long long)a->start_step);
    sup_watch(s, &a->source, a->proc.fd, EPOLLIN);
    att_write_process(s, a);
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
    att_hold(s, a);
    if (s->quit) { /* nothing starts any more; the next daemon sees an attempt without a process */
        a->never_started = true;
        a->phase = ATT_WORKING;
        att_set_message(a, "polyd was stopping");
        att_end(s, a, SPEC_CAUSE_PREEMPTED, false);
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
    if (at == SUP_STARTS || c->step <= 0 || (at < a->start_count && a->starts[at].step == c->step) ||
        access(c->path, R_OK))
        return true;
    if (a->start_count == SUP_STARTS)
        free(a->starts[--a->start_count].path);
    memmove(&a->starts[at + 1], &a->starts[at], (size_t)(a->start_count - at) * sizeof *a->starts);
    a->starts[at] = (struct att_start){.path = strdup(c->path), .step = c->step};
    a->start_count++;
    return a->starts[at].path != NULL;
}

enum pd_err att_choose_starts(struct sup *s, struct att *a, struct pd_why *why)
{
    enum pd_err err = store_checkpoint_list(s->reader, a->run, false, choose_checkpoint, a, why);

    for (int i = 0; err == PD_OK && i < a->start_count; i++)
        if (!a->starts[i].path)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for an attempt");
    return err;
}

void att_start_run(struct sup *s, const struct store_run *run, const int *devices, int count)
{
    struct insert_op *op = calloc(1, sizeof *op);
    struct att *a = NULL;
    struct pd_why why = {""};
    enum pd_err err = op ? PD_OK : PD_ERR_NOMEM;
    size_t len = 0;

    if (err == PD_OK && !(a = att_new(s, run->id)))
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for an attempt");
    if (err == PD_OK)
        err = att_choose_starts(s, a, &why);
    if (err == PD_OK) {
        a->job = run->job_id;
        a->phase = ATT_INSERTING;
        a->document = strdup(run->document);
        a->restarts = run->restarts;
        a->max_restarts = run->max_restarts;
        a->start_step = a->start_count ? a->starts[0].step : 0;
        a->step = a->start_step;
        a->total = run->total_steps;
        a->threads = run->threads > 0 ? run->threads : s->devices[0].threads;
        a->need_bytes = queue_plan_bytes(s, run->plan_digest);
        att_set_limit(a, run, pd_clock_boot_us());
        for (int i = 0; i < count; i++) {
            a->devices[a->device_count++] = devices[i];
            len += (size_t)snprintf(a->device_text + len, sizeof a->device_text - len, "%s%s", i ? "," : "",
                                    s->devices[devices[i]].id);
        }
        a->rank_count = a->device_count;
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
    struct att_move what;
};

static enum pd_err move_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct move_op *m = (struct move_op *)op;
    enum spec_run_state state;
    enum pd_err err = PD_OK;

    /* A row that has moved on (cancelled, ended) is no failure. */
    if (m->what.attempt_running)
        err = store_attempt_move(tx, m->run, m->n, SPEC_ATTEMPT_RUNNING, SPEC_CAUSE_LOST, NULL, -1, why);
    if (err == PD_OK && m->what.stopping)
        err = store_attempt_move(tx, m->run, m->n, SPEC_ATTEMPT_STOPPING, SPEC_CAUSE_LOST, NULL, -1, why);
    if (err == PD_ERR_CONFLICT)
        err = PD_OK;
    if (err == PD_OK && m->what.run_running) {
        err = store_run_state(tx, m->run, &state, why);
        if (err == PD_OK && state == SPEC_RUN_STARTING)
            err = store_run_move(tx, m->run, SPEC_RUN_RUNNING, SPEC_OUTCOME_CANCELLED, NULL, why);
    }
    return err;
}

void att_write_move(struct sup *s, const struct att *a, struct att_move what)
{
    struct move_op *m = calloc(1, sizeof *m);

    if (!m)
        return;
    m->what = what;
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
        att_write_move(s, a, (struct att_move){.run_running = true});
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

void att_write_progress(struct sup *s, struct att *a)
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

/* ---- the connection ------------------------------------------------------------------------- */

/* The id of the rank-th device. */
static void device_of(const struct att *a, int rank, char *out, size_t size)
{
    const char *at = a->device_text;

    while (rank-- > 0 && strchr(at, ','))
        at = strchr(at, ',') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(at, ","), at);
}

static void put_assign(struct sup *s, struct att *a, struct conn *c)
{
    char dir[SUP_PATH_MAX], device[DEVICE_ID_BYTES + 1];
    size_t at = wire_begin(&c->out, WIRE_ASSIGN, 0, 0);

    wire_put_text(&c->out, WIRE_TAG_ROLE, s->train_role);
    wire_put_text(&c->out, WIRE_TAG_JOB, a->document);
    device_of(a, c->rank, device, sizeof device);
    wire_put_text(&c->out, WIRE_TAG_DEVICE, device);
    wire_put_u32(&c->out, WIRE_TAG_RANK, (uint32_t)c->rank);
    wire_put_u32(&c->out, WIRE_TAG_RANKS, (uint32_t)a->rank_count);
    wire_put_u32(&c->out, WIRE_TAG_THREADS, (uint32_t)a->threads);
    snprintf(dir, sizeof dir, "%s/runs/%lld", s->state_dir, (long long)a->run);
    wire_put_text(&c->out, WIRE_TAG_RUN_DIR, dir);
    wire_put_text(&c->out, WIRE_TAG_STORE, store_writer_uuid(s->writer));
    for (int i = 0; i < a->start_count; i++) /* the first, or where it is damaged the next */
        wire_put_text(&c->out, WIRE_TAG_CHECKPOINT, a->starts[i].path);
    if (a->start_count)
        wire_put_u64(&c->out, WIRE_TAG_STEP, (uint64_t)a->start_step);
    wire_put_u32(&c->out, WIRE_TAG_RESTARTS, (uint32_t)(a->n - 1));
    for (int i = 0; i < s->o.root_count; i++) {
        char root[4096];

        snprintf(root, sizeof root, "%s=%s", s->roots[i].name, s->roots[i].path);
        wire_put_text(&c->out, WIRE_TAG_DATA_ROOT, root);
    }
    if (wire_end(&c->out, at) != PD_OK)
        c->out.failed = true;
}

static void put_rendezvous(struct att *a, struct conn *c)
{
    size_t at = wire_begin(&c->out, WIRE_RENDEZVOUS, 0, 0);

    wire_put_bytes(&c->out, WIRE_TAG_COMM_ID, a->comm_id, a->comm_id_len);
    if (wire_end(&c->out, at) != PD_OK)
        c->out.failed = true;
}

void att_connected(struct sup *s, struct att *a, struct conn *c)
{
    att_heard(a, c->rank, pd_clock_mono_us());
    pd_log(PD_LOG_INFO, "supervise", "run=%lld attempt=%d rank=%d connected=1 acked=%lld", (long long)a->run,
           a->n, c->rank, (long long)a->acked);
    put_assign(s, a, c);
    if (c->rank > 0) { /* rank 0 speaks for all */
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
    att_write_progress(s, a);
    if (text[0] && !a->rank_failed_us)
        att_set_message(a, text);
    if (!strcmp(cause, "done"))
        att_end(s, a, SPEC_CAUSE_DONE, false);
    else if (!strcmp(cause, "diverged"))
        att_end(s, a, SPEC_CAUSE_DIVERGED, false);
    else if (!strcmp(cause, "checkpointed")) {
        if (a->stopping && a->cause == SPEC_CAUSE_TIME_LIMIT)
            att_set_message(a, "time limit");
        att_end(s, a, a->stopping ? a->cause : SPEC_CAUSE_PREEMPTED, false);
    } else {
        /* What an attempt before this one could read may be there again. */
        a->lasting = !strcmp(cause, "invalid") && a->start_step <= 0;
        att_end(s, a,
                a->stopping && a->cause == SPEC_CAUSE_CANCELLED ? SPEC_CAUSE_CANCELLED : SPEC_CAUSE_FAILED,
                true);
    }
}

static void take_rendezvous(struct sup *s, struct att *a, const uint8_t *p, size_t len)
{
    struct wire_field f;

    if (!wire_find(p, len, WIRE_TAG_COMM_ID, &f) || !f.len || f.len > sizeof a->comm_id)
        return;
    if (a->comm_id_len == f.len && !memcmp(a->comm_id, f.bytes, f.len))
        return; /* said again after a reconnection */
    memcpy(a->comm_id, f.bytes, f.len);
    a->comm_id_len = f.len;
    for (int i = 1; i < a->rank_count; i++)
        if (a->ranks[i].conn) {
            put_rendezvous(a, a->ranks[i].conn);
            conn_flush(s, a->ranks[i].conn);
        }
}

/* A rank other than 0 leaves. Its own reason is better than what the others make of its absence. */
static void take_rank_bye(struct sup *s, struct conn *c, struct att *a, const uint8_t *p, size_t len)
{
    char cause[32], text[512], message[600];

    wire_get_text(p, len, WIRE_TAG_CAUSE, cause, sizeof cause);
    wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
    a->ranks[c->rank].bye = true;
    if ((!strcmp(cause, "failed") || !strcmp(cause, "invalid")) && !a->rank_failed_us) {
        a->rank_failed_us = pd_clock_mono_us();
        if (strncmp(text, "rank ", 5) != 0)
            snprintf(message, sizeof message, "rank %d: %s", c->rank, text);
        else /* what it heard from another rank names that one already */
            snprintf(message, sizeof message, "%s", text);
        if (a->phase == ATT_WORKING && !a->message)
            att_set_message(a, message);
    }
    conn_bye(s, c, "recorded");
}

void att_frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    struct att *a = c->att;

    if (h->type == WIRE_TUNED_ASK) { /* every rank has a back end of its own */
        tuned_ask(s, c, p, h->len);
        return;
    }
    if (h->type == WIRE_TUNED) {
        tuned_take(s, a->run, p, h->len);
        return;
    }
    if (c->rank > 0) { /* data comes from rank 0 alone */
        if (h->type == WIRE_BYE)
            take_rank_bye(s, c, a, p, h->len);
        return;
    }
    switch (h->type) {
    case WIRE_RENDEZVOUS:
        take_rendezvous(s, a, p, h->len);
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
