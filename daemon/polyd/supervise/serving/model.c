/* Serving workers: one process for each loaded version, started again when it dies. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/supervise/serving/internal.h"
#include "daemon/polyd/supervise/workers/tuned.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/nearest.h"

#define RESTART_MIN_US 500000
#define RESTART_MAX_US 60000000
#define STEADY_US 30000000 /* served so long: the next crash starts at the shortest pause again */
#define LOAD_US 300000000  /* a load that takes longer has failed */

static const char *const state_names[] = {"UNAVAILABLE", "LOADING", "READY", "UNLOADING"};

const char *sup_model_state_name(enum sup_model_state state)
{
    return state_names[state];
}

/* ---- the table ------------------------------------------------------------------------------ */

/* Lock held. version 0: the highest ready one. */
struct model *model_find(struct serving *s, const char *name, int64_t version)
{
    struct model *best = NULL;

    for (struct model *m = s->models; m; m = m->next) {
        if (strcmp(m->name, name) != 0)
            continue;
        if (version ? m->version == version
                    : m->state == SUP_MODEL_READY && (!best || m->version > best->version))
            best = m;
    }
    return best;
}

static struct model *by_token(struct serving *s, int serial, const uint8_t *token)
{
    uint8_t hash[32];

    digest_sha256(token, WIRE_TOKEN_BYTES, hash);
    for (struct model *m = s->models; m; m = m->next)
        if (m->serial == serial && !m->conn && !m->proc.gone &&
            digest_equal(hash, m->token_sha256, sizeof hash))
            return m;
    return NULL;
}

static bool knows(void *self, const char *mark)
{
    struct serving *s = self;
    int serial;

    if (sscanf(mark, "serve-%d", &serial) != 1)
        return false;
    for (struct model *m = s->models; m; m = m->next)
        if (m->serial == serial && !m->proc.gone)
            return true;
    return false;
}

static void serve_dir(struct serving *s, int serial, char *out, size_t size)
{
    snprintf(out, size, "%s/serve/%d", workers_state_dir(s->workers), serial);
}

/* The directory of a worker that is gone: lock, log, exit. */
static void remove_dir(const char *dir)
{
    static const char *const names[] = {"lock", "log", "exit"};
    char path[2 * WORKERS_PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static struct model *model_free(struct model *m)
{
    if (m) {
        proc_close(&m->proc);
        free(m->name);
        free(m->signature);
        free(m->document);
        free(m->checkpoint);
        free(m->digest);
        free(m);
    }
    return NULL;
}

/* ---- state ---- */

void model_set_state(struct serving *s, struct model *m, enum sup_model_state state, const char *reason)
{
    pthread_mutex_lock(&s->lock);
    m->state = state;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
    pthread_mutex_unlock(&s->lock);
    pd_log(PD_LOG_INFO, "supervise", "model=%s version=%lld state=%s %s%s%s", m->name, (long long)m->version,
           state_names[state], *reason ? "why=\"" : "", reason, *reason ? "\"" : "");
}

void model_forget(struct serving *s, struct model *m)
{
    pthread_mutex_lock(&s->lock);
    for (struct model **at = &s->models; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    model_free(m);
}

/* ---- the process ---------------------------------------------------------------------------- */

/* What the other versions leave of the budget. */
static enum pd_err budget_left(struct serving *s, const struct model *m, int64_t *ret, struct pd_why *why)
{
    int64_t used = 0;
    int models = 0;

    *ret = 0;
    if (!s->o->serve_memory)
        return PD_OK;
    for (const struct model *other = s->models; other; other = other->next)
        if (other != m && !other->proc.gone && other->serial) {
            used += other->need_bytes;
            models++;
        }
    *ret = s->o->serve_memory - used;
    if (*ret > 0)
        return PD_OK;
    return pd_fail(why, PD_ERR_LIMIT,
                   "%d loaded versions use %lld of serve.memory_bytes = %lld: unload one first", models,
                   (long long)used, (long long)s->o->serve_memory);
}

/* Within a limit one version loads at a time: only when it is ready, its memory is known. */
static bool must_wait(const struct serving *s)
{
    for (const struct model *m = s->models; s->o->serve_memory && m; m = m->next)
        if (!m->proc.gone && !m->ready_us)
            return true;
    return false;
}

/* Models share a GPU with each other, and with a run where there is no other: their memory is small compared
 * with it. */
static enum pd_err take_gpu(struct serving *s, struct model *m, struct pd_why *why)
{
    char none[SUP_WHY_BYTES];

    m->device = devices_serve(s->devices, none);
    return m->device >= 0 ? PD_OK : pd_fail(why, PD_ERR_UNSUPPORTED, "serve.device is cuda, but %s", none);
}

static void give_gpu_back(struct serving *s, struct model *m)
{
    if (m->device < 0)
        return;
    devices_unserve(s->devices, m->device);
    m->device = -1;
    loop_schedule(s->loop);
}

static enum pd_err start_worker(struct serving *s, struct model *m, struct pd_why *why)
{
    static const char *const decode[] = {"auto", "cache", "state"};
    char dir[WORKERS_PATH_MAX], serial[16], mark[WORKERS_PATH_MAX + 64], memory[24], delay[24];
    char *argv[] = {(char *)"polyd-worker",
                    (char *)"shim",
                    (char *)"--dir",
                    dir,
                    (char *)"--",
                    (char *)"serve",
                    (char *)"--attempt",
                    serial,
                    (char *)"--dir",
                    dir,
                    (char *)"--socket",
                    (char *)workers_socket(s->workers),
                    (char *)"--weights",
                    (char *)(s->o->serve_bf16 ? "bf16" : "f32"),
                    (char *)"--device",
                    (char *)(s->o->serve_cuda ? "cuda" : "cpu"),
                    (char *)"--decode",
                    (char *)decode[s->o->serve_decode],
                    (char *)"--delay-us",
                    delay,
                    (char *)"--memory",
                    memory,
                    NULL};
    struct device device;
    struct proc proc;
    int64_t left;
    enum pd_err err = budget_left(s, m, &left, why);

    if (err == PD_OK && s->o->serve_cuda)
        err = take_gpu(s, m, why);
    if (err != PD_OK)
        return err;
    snprintf(memory, sizeof memory, "%lld", (long long)left);
    snprintf(delay, sizeof delay, "%lld", (long long)s->o->serve_delay_us);
    pthread_mutex_lock(&s->lock);
    m->serial = (int)(++s->last_serial & 0x7fffffff);
    pthread_mutex_unlock(&s->lock);
    snprintf(serial, sizeof serial, "%d", m->serial);
    snprintf(mark, sizeof mark, "%s:serve-%d", workers_state_dir(s->workers), m->serial);
    serve_dir(s, m->serial, dir, sizeof dir);
    err = pd_file_make_dirs(dir, why);
    if (err == PD_OK)
        err = digest_random(m->token, sizeof m->token, why);
    if (err == PD_OK) {
        digest_sha256(m->token, sizeof m->token, m->token_sha256);
        devices_get(s->devices, m->device >= 0 ? m->device : 0, &device, NULL);
        err = proc_spawn(s->workers, argv, m->token, 1, -1, -1, -1, mark, &device, &proc, why);
    }
    memset(m->token, 0, sizeof m->token);
    if (err != PD_OK) {
        give_gpu_back(s, m);
        return err;
    }
    m->proc = proc;
    m->heard_us = pd_clock_mono_us();
    m->ready_us = m->kill_us = 0;
    m->reported = m->limited = false;
    loop_watch(s->loop, &m->source, m->proc.fd, EPOLLIN);
    return PD_OK;
}

static void start_or_fail(struct serving *s, struct model *m)
{
    struct pd_why why = {""};
    enum pd_err err;

    m->retry_us = 0;
    err = start_worker(s, m, &why);
    if (err == PD_OK)
        return;
    m->limited = err == PD_ERR_LIMIT;
    if (!m->loading_first) {
        pd_log(PD_LOG_ERROR, "supervise", "model=%s restart=failed why=\"%s\"", m->name, why.text);
        m->retry_us = pd_clock_mono_us() + RESTART_MAX_US;
    }
    model_set_state(s, m, m->loading_first ? SUP_MODEL_UNAVAILABLE : SUP_MODEL_LOADING, why.text);
    model_notify_loads(s, m, err, &why);
}

void model_begin_load(struct serving *s, struct model *m)
{
    model_set_state(s, m, SUP_MODEL_LOADING, "");
    if (must_wait(s))
        m->retry_us = pd_clock_mono_us();
    else
        start_or_fail(s, m);
}

/* Versions that should be loaded and did not fit, once another one has left. */
static void load_limited(struct serving *s)
{
    for (struct model *m = s->models; m; m = m->next)
        if (m->limited && m->wanted && m->state == SUP_MODEL_UNAVAILABLE)
            model_begin_load(s, m);
}

static void connected(struct serving *s, struct model *m, struct conn *c)
{
    struct device cpu;
    int threads = s->o->serve_threads;
    size_t at;

    if (threads <= 0) {
        devices_get(s->devices, 0, &cpu, NULL);
        threads = cpu.threads;
    }
    m->conn = c;
    at = wire_begin(conn_out(c), WIRE_ASSIGN, 0, 0);
    wire_put_text(conn_out(c), WIRE_TAG_ROLE, "serve");
    wire_put_text(conn_out(c), WIRE_TAG_JOB, m->document);
    wire_put_text(conn_out(c), WIRE_TAG_CHECKPOINT, m->checkpoint);
    wire_put_text(conn_out(c), WIRE_TAG_DIGEST, m->digest);
    {
        char name[600];

        snprintf(name, sizeof name, "%s/%lld", m->name, (long long)m->version);
        wire_put_text(conn_out(c), WIRE_TAG_MODEL, name);
    }
    wire_put_u32(conn_out(c), WIRE_TAG_THREADS, (uint32_t)threads);
    conn_end(c, at);
    pthread_mutex_lock(&s->lock);
    m->peer = conn_peer(c);
    pthread_mutex_unlock(&s->lock);
}

static void describe(const struct model *m, int status, struct pd_why *why)
{
    if (m->reported)
        snprintf(why->text, sizeof why->text, "%s", m->reason);
    else if (status >= 0 && WIFSIGNALED(status))
        snprintf(why->text, sizeof why->text, "its worker was killed by signal %d", WTERMSIG(status));
    else
        snprintf(why->text, sizeof why->text, "its worker left with status %d",
                 status >= 0 ? WEXITSTATUS(status) : -1);
}

static void model_gone(void *self, unsigned events)
{
    struct model *m = self;
    struct serving *s = m->serving;
    char dir[WORKERS_PATH_MAX];
    int64_t now_us = pd_clock_mono_us();
    struct pd_why why = {""};
    int status;

    (void)events;
    proc_reap(&m->proc);
    give_gpu_back(s, m);
    if (m->conn) /* its last words may be in the socket */
        conn_read(m->conn);
    if (m->conn)
        conn_drop(m->conn);
    serve_dir(s, m->serial, dir, sizeof dir);
    status = shim_exit_status(dir, NULL);
    if (status < 0)
        workers_kill_strays(s->workers);
    describe(m, status, &why);
    remove_dir(dir);
    model_fail_calls(s, m, PD_ERR_CLOSED, "the model's worker is gone");
    if (m->state == SUP_MODEL_UNLOADING || loop_stopping(s->loop)) {
        bool asked = m->state == SUP_MODEL_UNLOADING;

        model_notify_loads(s, m, PD_ERR_CLOSED, &(struct pd_why){"the model was unloaded"});
        model_set_state(s, m, SUP_MODEL_UNAVAILABLE, ""); /* before anyone who waited looks */
        if (asked)
            model_write_loaded(s, m, false);
        pd_log(PD_LOG_INFO, "supervise", "model=%s version=%lld unloaded=1", m->name, (long long)m->version);
        model_forget(s, m);
        if (!loop_stopping(s->loop))
            load_limited(s);
        return;
    }
    if (m->loading_first) {
        /* It never served: the load has failed, and would fail again. */
        model_set_state(s, m, SUP_MODEL_UNAVAILABLE, why.text);
        model_notify_loads(s, m, m->limited ? PD_ERR_LIMIT : PD_ERR_UNSUPPORTED, &why);
        return;
    }
    m->backoff_us = m->ready_us && now_us - m->ready_us > STEADY_US ? RESTART_MIN_US
                    : m->backoff_us                                 ? m->backoff_us * 2
                                                                    : RESTART_MIN_US;
    if (m->backoff_us > RESTART_MAX_US)
        m->backoff_us = RESTART_MAX_US;
    m->retry_us = now_us + m->backoff_us;
    pthread_mutex_lock(&s->lock);
    m->restarts++;
    pthread_mutex_unlock(&s->lock);
    model_set_state(s, m, SUP_MODEL_LOADING, why.text);
    if (!m->ready_us) /* the restart has failed; a load that waits for one still to come goes on waiting */
        model_notify_loads(s, m, m->limited ? PD_ERR_LIMIT : PD_ERR_CLOSED, &why);
}

/* ---- frames --------------------------------------------------------------------------------- */

static void take_ready(struct serving *s, struct model *m, const uint8_t *p, size_t len)
{
    struct pd_why none = {""};
    struct wire_field f;
    char *signature = NULL;

    if (wire_find(p, len, WIRE_TAG_JSON, &f))
        signature = strndup((const char *)f.bytes, f.len);
    if (m->state != SUP_MODEL_LOADING || !signature) {
        free(signature);
        return;
    }
    pthread_mutex_lock(&s->lock);
    free(m->signature);
    m->signature = signature;
    m->need_bytes = (int64_t)wire_get_u64(p, len, WIRE_TAG_MEMORY, 0);
    m->wanted = true;
    pthread_mutex_unlock(&s->lock);
    m->ready_us = pd_clock_mono_us();
    model_set_state(s, m, SUP_MODEL_READY, "");
    if (m->loading_first)
        model_write_loaded(s, m, true);
    else
        model_notify_loads(s, m, PD_OK, &none);
    m->loading_first = false;
}

static void take_frame(void *self, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    struct model *m = self;
    struct serving *s = m->serving;

    switch (h->type) {
    case WIRE_READY:
        take_ready(s, m, p, h->len);
        break;
    case WIRE_TUNED_ASK:
        tuned_ask(s->loop, c, p, h->len);
        break;
    case WIRE_TUNED:
        tuned_take(s->loop, 0, p, h->len);
        break;
    case WIRE_INFER_RESULT:
        model_result(s, m, h->seq, p, h->len);
        break;
    case WIRE_PROGRESS:
        pthread_mutex_lock(&s->lock);
        m->running = (int)wire_get_u64(p, h->len, WIRE_TAG_STEP, 0);
        m->waiting = (int)wire_get_u64(p, h->len, WIRE_TAG_TOTAL, 0);
        pthread_mutex_unlock(&s->lock);
        break;
    case WIRE_BYE: {
        char text[256], cause[32];
        size_t at;

        wire_get_text(p, h->len, WIRE_TAG_TEXT, text, sizeof text);
        wire_get_text(p, h->len, WIRE_TAG_CAUSE, cause, sizeof cause);
        if (!strcmp(cause, "failed") || !strcmp(cause, "limit")) {
            m->reported = true;
            m->limited = !strcmp(cause, "limit");
            pthread_mutex_lock(&s->lock);
            snprintf(m->reason, sizeof m->reason, "%s", text);
            pthread_mutex_unlock(&s->lock);
        }
        at = wire_begin(conn_out(c), WIRE_BYE, 0, 0);
        wire_put_text(conn_out(c), WIRE_TAG_CAUSE, "recorded");
        conn_end(c, at);
        break;
    }
    default:
        break;
    }
}

/* The connection is closed. A serving worker leaves then by itself. */
static void closed(void *self, struct conn *c, bool silent)
{
    struct model *m = self;
    struct serving *s = m->serving;

    (void)c;
    (void)silent;
    m->conn = NULL;
    pthread_mutex_lock(&s->lock);
    m->peer = 0; /* from here on nothing enters the inbox */
    pthread_mutex_unlock(&s->lock);
    model_fail_calls(s, m, PD_ERR_CLOSED, "the model's worker is gone");
    pthread_mutex_lock(&s->lock);
    if (m->state == SUP_MODEL_READY) {
        m->state = SUP_MODEL_LOADING;
        snprintf(m->reason, sizeof m->reason, "its worker is being restarted");
    }
    pthread_mutex_unlock(&s->lock);
    if (!m->proc.gone)
        m->kill_us = pd_clock_mono_us() + 3000000;
}

static void heard(void *self, struct conn *c, int64_t now_us)
{
    (void)c;
    ((struct model *)self)->heard_us = now_us;
}

static void drained(void *self, struct conn *c)
{
    struct model *m = self;

    (void)c;
    model_send(m->serving, m, false);
}

static bool hello(void *self, struct conn *c, const struct conn_hello *h)
{
    static const struct conn_owner owner = {
        .frame = take_frame, .heard = heard, .closed = closed, .drained = drained};
    struct serving *s = self;
    struct model *m = h->run ? NULL : by_token(s, h->attempt, h->token);

    if (!m)
        return false;
    conn_welcome(c, 0, &owner, m);
    connected(s, m, c);
    return true;
}

static void device_lost(void *self, int device, const char *name, const char *reason)
{
    struct serving *s = self;

    for (struct model *m = s->models; m; m = m->next) {
        if (m->device != device || m->proc.gone)
            continue;
        pd_log(PD_LOG_WARNING, "supervise", "model=%s version=%lld device=%s fault=\"%s\"", m->name,
               (long long)m->version, name, reason);
        if (!m->kill_us)
            m->kill_us = pd_clock_mono_us();
    }
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Starts the workers that are due, the one that has waited longest first. */
static void start_due(struct serving *s, int64_t now_us)
{
    while (!must_wait(s)) {
        struct model *first = NULL;

        for (struct model *m = s->models; m; m = m->next)
            if (m->retry_us && now_us >= m->retry_us && m->proc.gone &&
                (!first || m->retry_us < first->retry_us))
                first = m;
        if (!first)
            return;
        start_or_fail(s, first);
    }
}

static void tick(void *self, int64_t now_us)
{
    struct serving *s = self;
    struct model *next;

    if (!loop_stopping(s->loop))
        start_due(s, now_us);
    model_answer_unrecorded(s);
    for (struct model *m = s->models; m; m = next) {
        next = m->next;
        model_expire_calls(s, m, now_us);
        if (m->proc.gone)
            continue;
        if (!m->kill_us && now_us - m->heard_us > s->o->hang_us && m->state == SUP_MODEL_READY)
            m->kill_us = now_us;
        if (!m->kill_us && m->state == SUP_MODEL_LOADING && now_us - m->heard_us > LOAD_US)
            m->kill_us = now_us;
        if (m->kill_us && now_us >= m->kill_us) {
            pd_log(PD_LOG_WARNING, "supervise", "model=%s version=%lld kill=hard", m->name,
                   (long long)m->version);
            proc_signal(&m->proc, SIGUSR1);
            m->kill_us = now_us + 2000000;
        }
    }
}

/* ---- start and stop ------------------------------------------------------------------------- */

struct model *model_new(struct serving *s, const struct store_model_version *v)
{
    struct model *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->source = (struct loop_source){.ready = model_gone, .self = m};
    m->serving = s;
    m->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    m->name = strdup(v->model);
    m->version = v->n;
    m->document = strdup(v->document);
    m->checkpoint = strdup(v->path);
    m->digest = strdup(v->digest);
    m->loading_first = true;
    m->device = -1;
    m->need_bytes = v->bytes;
    m->inbox_tail = &m->inbox;
    if (!m->name || !m->document || !m->checkpoint || !m->digest)
        return model_free(m);
    pthread_mutex_lock(&s->lock);
    m->next = s->models;
    s->models = m;
    pthread_mutex_unlock(&s->lock);
    return m;
}

static bool start_one(void *ctx, const struct store_model_version *v)
{
    struct serving *s = ctx;
    struct model *m = model_new(s, v);

    if (m)
        m->wanted = true;
    else
        pd_log(PD_LOG_ERROR, "supervise", "model=%s load=no_memory", v->model);
    return true;
}

enum pd_err serving_start(struct serving *s, struct pd_why *why)
{
    char path[WORKERS_PATH_MAX];
    struct dirent *d;
    enum pd_err err;
    DIR *dir;

    /* What workers of an earlier daemon left: they are gone, the scan for strays saw to it. */
    snprintf(path, sizeof path, "%s/serve", workers_state_dir(s->workers));
    dir = opendir(path);
    while (dir && (d = readdir(dir)))
        if (d->d_name[0] != '.') {
            char one[WORKERS_PATH_MAX + 300];

            snprintf(one, sizeof one, "%s/%s", path, d->d_name);
            remove_dir(one);
        }
    if (dir)
        closedir(dir);
    err = store_model_version_list(loop_reader(s->loop), NULL, start_one, s, why);
    if (err != PD_OK)
        return err;
    for (struct model *m = s->models; m; m = m->next)
        model_begin_load(s, m);
    return PD_OK;
}

static void stop(void *self)
{
    struct serving *s = self;
    struct model *next;

    for (struct model *m = s->models; m; m = next) {
        size_t at;

        next = m->next;
        m->kill_us = pd_clock_mono_us() + 5000000;
        model_send(s, m, true);
        if (m->conn) {
            at = wire_begin(conn_out(m->conn), WIRE_UNLOAD, 0, 0);
            conn_end(m->conn, at);
            conn_flush(m->conn);
        } else
            proc_signal(&m->proc, SIGTERM);
    }
}

static bool idle(void *self)
{
    const struct serving *s = self;

    for (const struct model *m = s->models; m; m = m->next)
        if (!m->proc.gone)
            return false;
    return true;
}

enum pd_err serving_new(struct loop *l, struct workers *w, struct devices *devices,
                        const struct sup_options *o, struct serving **ret, struct pd_why *why)
{
    struct serving *s = calloc(1, sizeof *s);

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    *s = (struct serving){.loop = l,
                          .workers = w,
                          .devices = devices,
                          .o = o,
                          .member = {.self = s, .tick = tick, .stop = stop, .idle = idle},
                          .workers_member = {.self = s, .hello = hello, .knows = knows},
                          .listener = {.self = s, .lost = device_lost},
                          /* not that of a worker left over */
                          .last_serial = (uint64_t)(pd_clock_wall_us() & 0x3fffffff) + 1,
                          .next_call = 1,
                          .inbox.serving = s};
    pthread_mutex_init(&s->lock, NULL);
    loop_join(l, &s->member);
    workers_join(w, &s->workers_member);
    devices_listen(devices, &s->listener);
    *ret = s;
    return PD_OK;
}

struct serving *serving_free(struct serving *s)
{
    if (!s)
        return NULL;
    while (s->models) {
        struct model *m = s->models;
        struct pd_why why = {"polyd is stopping"};

        proc_signal(&m->proc, SIGUSR1); /* only after the patience of a stop has ended */
        model_fail_calls(s, m, PD_ERR_CLOSED, why.text);
        model_notify_loads(s, m, PD_ERR_CLOSED, &why);
        model_notify_unloads(s, m, PD_ERR_CLOSED, &why);
        s->models = m->next;
        model_free(m);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

/* ---- from other threads --------------------------------------------------------------------- */

static void fill_info(const struct model *m, struct sup_model_info *out)
{
    *out = (struct sup_model_info){.model = m->name,
                                   .version = m->version,
                                   .state = m->state,
                                   .wanted = m->wanted,
                                   .reason = m->reason,
                                   .signature = m->signature ? m->signature : "",
                                   .in_flight = m->in_flight,
                                   .waiting = m->waiting,
                                   .running = m->running,
                                   .requests = m->requests,
                                   .failures = m->failures,
                                   .restarts = m->restarts,
                                   .need_bytes = m->state == SUP_MODEL_READY ? m->need_bytes : 0,
                                   .stats = &m->stats};
    if (m->peer) {
        char path[64];
        long long size, resident;
        FILE *f;

        snprintf(path, sizeof path, "/proc/%d/statm", (int)m->peer);
        f = fopen(path, "re");
        if (f && fscanf(f, "%lld %lld", &size, &resident) == 2)
            out->memory_bytes = resident * sysconf(_SC_PAGESIZE);
        if (f)
            fclose(f);
    }
}

void serving_list(struct serving *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx)
{
    pthread_mutex_lock(&s->lock);
    for (struct model *m = s->models; m; m = m->next) {
        struct sup_model_info info;

        fill_info(m, &info);
        row(ctx, &info);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The loaded versions of a model, as "2, 1"; returns how many. */
static int list_versions(const struct serving *s, const char *name, char *out, size_t size)
{
    int count = 0, len = 0;

    out[0] = '\0';
    for (const struct model *m = s->models; m && (size_t)len < size; m = m->next)
        if (m->state == SUP_MODEL_READY && !strcmp(m->name, name))
            len +=
                snprintf(out + len, size - (size_t)len, "%s%lld", count++ ? ", " : "", (long long)m->version);
    return count;
}

enum pd_err model_unknown(const struct serving *s, const char *name, int64_t version, struct pd_why *why)
{
    const char *names[64] = {NULL}, *near = NULL;
    size_t count = 0, n = strlen(name);
    char versions[64];

    if (version && list_versions(s, name, versions, sizeof versions))
        return pd_fail(why, PD_ERR_NOT_FOUND,
                       "model '%.128s' has no loaded version %lld; loaded: %s; POST "
                       "/api/v1/models/NAME/versions/N/load loads a version",
                       name, (long long)version, versions);
    for (const struct model *m = s->models; m && count < 64; m = m->next)
        if (m->state == SUP_MODEL_READY && strcmp(m->name, name) != 0)
            names[count++] = m->name;
    near = pd_nearest(name, names, count, NULL);
    for (size_t i = 0; i < count && !near && n; i++)
        if (!strncmp(names[i], name, n))
            near = names[i];
    return pd_fail(why, PD_ERR_NOT_FOUND,
                   "model '%.128s' is not loaded%s%s%s; GET /api/v1/models lists the models, and POST "
                   "/api/v1/models/NAME/versions/N/load loads it",
                   name, near ? "; did you mean '" : "", near ? near : "", near ? "', which is?" : "");
}

enum pd_err serving_get(struct serving *s, const char *model, int64_t version,
                        void (*row)(void *ctx, const struct sup_model_info *m), void *ctx, struct pd_why *why)
{
    struct model *m;
    enum pd_err err = PD_OK;

    pthread_mutex_lock(&s->lock);
    m = model_find(s, model, version);
    if (m) {
        struct sup_model_info info;

        fill_info(m, &info);
        row(ctx, &info);
    } else
        err = model_unknown(s, model, version, why);
    pthread_mutex_unlock(&s->lock);
    return err;
}
