/* Serving workers: one process for each loaded version. HTTP threads put a request straight into the
 * connection (under sup.mutex), so that only the way back passes the supervisor's thread. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define RESTART_MIN_US 500000
#define RESTART_MAX_US 60000000
#define STEADY_US 30000000 /* served so long: the next crash starts at the shortest pause again */
#define UNLOAD_US 10000000 /* then it is killed */
#define LOAD_US 300000000  /* a load that takes longer has failed */

static const char *const state_names[] = {"UNAVAILABLE", "LOADING", "READY", "UNLOADING"};

const char *sup_model_state_name(enum sup_model_state state)
{
    return state_names[state];
}

/* ---- the table ------------------------------------------------------------------------------ */

/* Mutex held. version 0: the highest ready one. */
static struct model *find(struct sup *s, const char *name, int64_t version)
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

struct model *model_by_token(struct sup *s, int serial, const uint8_t *token)
{
    uint8_t hash[32];

    digest_sha256(token, WIRE_TOKEN_BYTES, hash);
    for (struct model *m = s->models; m; m = m->next)
        if (m->serial == serial && !m->conn && !m->proc.gone &&
            digest_equal(hash, m->token_sha256, sizeof hash))
            return m;
    return NULL;
}

bool model_mark_live(struct sup *s, const char *mark)
{
    int serial;

    if (!strcmp(mark, "plan"))
        return s->plans != NULL;
    if (sscanf(mark, "serve-%d", &serial) != 1)
        return false;
    for (struct model *m = s->models; m; m = m->next)
        if (m->serial == serial && !m->proc.gone)
            return true;
    return false;
}

static void serve_dir(struct sup *s, int serial, char *out, size_t size)
{
    snprintf(out, size, "%s/serve/%d", s->state_dir, serial);
}

/* The directory of a worker that is gone: lock, log, exit. */
static void remove_dir(const char *dir)
{
    static const char *const names[] = {"lock", "log", "exit"};
    char path[2 * SUP_PATH_MAX];

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

/* ---- telling those who wait ----------------------------------------------------------------- */

static void tell_loads(struct sup *s, struct model *m, enum pd_err err, const struct pd_why *why)
{
    struct load_wait *l, *next;

    pthread_mutex_lock(&s->mutex);
    l = m->loads;
    m->loads = NULL;
    pthread_mutex_unlock(&s->mutex);
    for (; l; l = next) {
        next = l->next;
        if (l->done)
            l->done(l->ctx, err, why);
        free(l);
    }
}

static void tell_unloads(struct sup *s, struct model *m, enum pd_err err, const struct pd_why *why)
{
    struct load_wait *l, *next;

    pthread_mutex_lock(&s->mutex);
    l = m->unloads;
    m->unloads = NULL;
    pthread_mutex_unlock(&s->mutex);
    for (; l; l = next) {
        next = l->next;
        if (l->done)
            l->done(l->ctx, err, why);
        free(l);
    }
}

static void end_call(struct model *m, struct call *c, enum pd_err err, const char *text)
{
    struct sup_result r = {
        .err = err, .text = text, .json = "", .last = true, .model = m->name, .version = m->version};

    c->part(c->ctx, &r);
    free(c);
}

/* Every open request gets its end. */
static void fail_calls(struct sup *s, struct model *m, enum pd_err err, const char *text)
{
    struct call *c, *next;

    pthread_mutex_lock(&s->mutex);
    c = m->calls;
    m->calls = NULL;
    for (struct call *each = c; each; each = each->next)
        m->failures++;
    m->in_flight = m->waiting = m->running = 0;
    pthread_mutex_unlock(&s->mutex);
    for (; c; c = next) {
        next = c->next;
        end_call(m, c, c->cancelled ? PD_ERR_CANCELLED : err, text);
    }
}

static void set_state(struct sup *s, struct model *m, enum sup_model_state state, const char *reason)
{
    pthread_mutex_lock(&s->mutex);
    m->state = state;
    snprintf(m->reason, sizeof m->reason, "%s", reason);
    pthread_mutex_unlock(&s->mutex);
    pd_log(PD_LOG_INFO, "supervise", "model=%s version=%lld state=%s %s%s%s", m->name, (long long)m->version,
           state_names[state], *reason ? "why=\"" : "", reason, *reason ? "\"" : "");
}

/* Takes it off the table. Nobody may hold it. */
static void forget(struct sup *s, struct model *m)
{
    pthread_mutex_lock(&s->mutex);
    for (struct model **at = &s->models; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
    model_free(m);
}

struct loaded_op {
    struct op op;
    char *model;
    int64_t version;
    bool loaded;
};

static enum pd_err loaded_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct loaded_op *l = (struct loaded_op *)op;

    return store_model_set_loaded(tx, l->model, l->version, l->loaded, why);
}

static void loaded_release(struct op *op)
{
    free(((struct loaded_op *)op)->model);
}

static void write_loaded(struct sup *s, const struct model *m, bool loaded)
{
    struct loaded_op *l = calloc(1, sizeof *l);

    if (!l)
        return;
    l->op.lane = STORE_LANE_WORKER;
    l->op.apply = loaded_apply;
    l->op.release = loaded_release;
    l->model = strdup(m->name);
    l->version = m->version;
    l->loaded = loaded;
    if (!l->model)
        free(l);
    else if (sup_write(s, &l->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "model=%s loaded=unwritten", m->name);
}

/* ---- the process ---------------------------------------------------------------------------- */

static enum pd_err start_worker(struct sup *s, struct model *m, struct pd_why *why)
{
    char dir[SUP_PATH_MAX], serial[16], mark[SUP_PATH_MAX + 64];
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
                    s->socket_path,
                    NULL};
    struct proc proc;
    enum pd_err err;

    pthread_mutex_lock(&s->mutex);
    m->serial = (int)(++s->next_serial & 0x7fffffff);
    pthread_mutex_unlock(&s->mutex);
    snprintf(serial, sizeof serial, "%d", m->serial);
    snprintf(mark, sizeof mark, "%s:serve-%d", s->state_dir, m->serial);
    serve_dir(s, m->serial, dir, sizeof dir);
    err = pd_file_make_dirs(dir, why);
    if (err == PD_OK)
        err = digest_random(m->token, sizeof m->token, why);
    if (err != PD_OK)
        return err;
    digest_sha256(m->token, sizeof m->token, m->token_sha256);
    err = proc_spawn(s, argv, m->token, -1, -1, -1, mark, &proc, why);
    memset(m->token, 0, sizeof m->token);
    if (err != PD_OK)
        return err;
    m->proc = proc;
    m->heard_us = pd_clock_mono_us();
    m->ready_us = m->kill_us = m->retry_us = 0;
    sup_watch(s, &m->source, m->proc.fd, EPOLLIN);
    return PD_OK;
}

static void begin_load(struct sup *s, struct model *m)
{
    struct pd_why why;
    enum pd_err err;

    set_state(s, m, SUP_MODEL_LOADING, "");
    err = start_worker(s, m, &why);
    if (err != PD_OK) {
        set_state(s, m, SUP_MODEL_UNAVAILABLE, why.text);
        m->wanted = false;
        tell_loads(s, m, err, &why);
    }
}

void model_connected(struct sup *s, struct model *m, struct conn *c)
{
    size_t at;

    pthread_mutex_lock(&s->mutex);
    m->conn = c;
    at = wire_begin(&c->out, WIRE_ASSIGN, 0, 0);
    wire_put_text(&c->out, WIRE_TAG_ROLE, "serve");
    wire_put_text(&c->out, WIRE_TAG_JOB, m->document);
    wire_put_text(&c->out, WIRE_TAG_CHECKPOINT, m->checkpoint);
    wire_put_text(&c->out, WIRE_TAG_DIGEST, m->digest);
    {
        char name[600];

        snprintf(name, sizeof name, "%s/%lld", m->name, (long long)m->version);
        wire_put_text(&c->out, WIRE_TAG_MODEL, name);
    }
    wire_put_u32(&c->out, WIRE_TAG_THREADS,
                 (uint32_t)(s->o.serve_threads > 0 ? s->o.serve_threads : s->devices[0].threads));
    if (wire_end(&c->out, at) != PD_OK)
        c->out.failed = true;
    pthread_mutex_unlock(&s->mutex);
}

/* The connection is closed; m->conn is NULL already. A serving worker leaves then by itself. */
void model_lost_conn(struct sup *s, struct model *m)
{
    fail_calls(s, m, PD_ERR_CLOSED, "the model's worker is gone");
    pthread_mutex_lock(&s->mutex);
    if (m->state == SUP_MODEL_READY) {
        m->state = SUP_MODEL_LOADING;
        snprintf(m->reason, sizeof m->reason, "its worker is being restarted");
    }
    pthread_mutex_unlock(&s->mutex);
    if (!m->proc.gone)
        m->kill_us = pd_clock_mono_us() + 3000000;
}

static void describe(const struct model *m, int status, struct pd_why *why)
{
    if (m->reason[0])
        snprintf(why->text, sizeof why->text, "%s", m->reason);
    else if (status >= 0 && WIFSIGNALED(status))
        snprintf(why->text, sizeof why->text, "its worker was killed by signal %d", WTERMSIG(status));
    else
        snprintf(why->text, sizeof why->text, "its worker left with status %d",
                 status >= 0 ? WEXITSTATUS(status) : -1);
}

void model_gone(struct sup *s, struct model *m)
{
    char dir[SUP_PATH_MAX];
    int64_t now_us = pd_clock_mono_us();
    struct pd_why why = {""};
    int status;

    proc_reap(s, &m->proc);
    if (m->conn) /* its last words may be in the socket */
        conn_event(s, m->conn, EPOLLIN);
    if (m->conn)
        conn_drop(s, m->conn);
    serve_dir(s, m->serial, dir, sizeof dir);
    status = shim_exit_status(dir);
    if (status < 0)
        strays_kill(s, model_mark_live);
    describe(m, status, &why);
    remove_dir(dir);
    fail_calls(s, m, PD_ERR_CLOSED, "the model's worker is gone");
    if (m->state == SUP_MODEL_UNLOADING || s->quit) {
        struct pd_why none = {""};

        tell_loads(s, m, PD_ERR_CLOSED, &(struct pd_why){"the model was unloaded"});
        set_state(s, m, SUP_MODEL_UNAVAILABLE, ""); /* before anyone who waited looks */
        tell_unloads(s, m, PD_OK, &none);
        if (!s->quit)
            write_loaded(s, m, false);
        pd_log(PD_LOG_INFO, "supervise", "model=%s version=%lld unloaded=1", m->name, (long long)m->version);
        forget(s, m);
        return;
    }
    if (m->loading_first) {
        /* It never served: the load has failed, and would fail again. */
        m->wanted = false;
        set_state(s, m, SUP_MODEL_UNAVAILABLE, why.text);
        tell_loads(s, m, PD_ERR_UNSUPPORTED, &why);
        return;
    }
    m->backoff_us = m->ready_us && now_us - m->ready_us > STEADY_US ? RESTART_MIN_US
                    : m->backoff_us                                 ? m->backoff_us * 2
                                                                    : RESTART_MIN_US;
    if (m->backoff_us > RESTART_MAX_US)
        m->backoff_us = RESTART_MAX_US;
    m->retry_us = now_us + m->backoff_us;
    pthread_mutex_lock(&s->mutex);
    m->restarts++;
    pthread_mutex_unlock(&s->mutex);
    set_state(s, m, SUP_MODEL_LOADING, why.text);
}

/* ---- frames --------------------------------------------------------------------------------- */

static void take_ready(struct sup *s, struct model *m, const uint8_t *p, size_t len)
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
    pthread_mutex_lock(&s->mutex);
    free(m->signature);
    m->signature = signature;
    pthread_mutex_unlock(&s->mutex);
    m->ready_us = pd_clock_mono_us();
    set_state(s, m, SUP_MODEL_READY, "");
    if (m->loading_first)
        write_loaded(s, m, true);
    m->loading_first = false;
    m->wanted = true;
    tell_loads(s, m, PD_OK, &none);
}

static void take_result(struct sup *s, struct model *m, uint64_t id, const uint8_t *p, size_t len)
{
    struct wire_tensor tensors[WIRE_TENSORS_MAX];
    struct sup_result r = {.json = "", .tensors = tensors, .model = m->name, .version = m->version};
    struct call *c;
    struct wire_field f;
    struct pd_why why;
    char text[512], *json = NULL;
    size_t pos = 0;

    r.last = wire_get_u32(p, len, WIRE_TAG_LAST, 0) != 0;
    r.err = (enum pd_err)wire_get_u32(p, len, WIRE_TAG_ERROR, PD_OK);
    if (r.err != PD_OK) {
        if (r.err >= PD_ERR_COUNT)
            r.err = PD_ERR_INTERNAL;
        wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
        r.text = text;
        r.last = true;
    }
    while (wire_next(p, len, &pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_JSON && !json) {
            json = strndup((const char *)f.bytes, f.len);
            r.json = json ? json : "";
            r.json_len = json ? f.len : 0;
        } else if (f.tag == WIRE_TAG_TENSOR && r.count < WIRE_TENSORS_MAX &&
                   wire_get_tensor(&f, &tensors[r.count], &why) == PD_OK)
            r.count++;
    }
    pthread_mutex_lock(&s->mutex);
    for (c = m->calls; c && c->id != id; c = c->next) {
    }
    if (c && r.last) {
        for (struct call **at = &m->calls; *at; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
        m->in_flight--;
        if (r.err != PD_OK && !c->cancelled)
            m->failures++;
    }
    pthread_mutex_unlock(&s->mutex);
    if (c) { /* else: timed out or given up before */
        c->part(c->ctx, &r);
        if (r.last)
            free(c);
    }
    free(json);
}

void model_frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    struct model *m = c->model;

    m->heard_us = pd_clock_mono_us();
    switch (h->type) {
    case WIRE_READY:
        take_ready(s, m, p, h->len);
        break;
    case WIRE_INFER_RESULT:
        take_result(s, m, h->seq, p, h->len);
        break;
    case WIRE_PROGRESS:
        pthread_mutex_lock(&s->mutex);
        m->running = (int)wire_get_u64(p, h->len, WIRE_TAG_STEP, 0);
        m->waiting = (int)wire_get_u64(p, h->len, WIRE_TAG_TOTAL, 0);
        pthread_mutex_unlock(&s->mutex);
        break;
    case WIRE_BYE: {
        char text[256], cause[32];
        size_t at;

        wire_get_text(p, h->len, WIRE_TAG_TEXT, text, sizeof text);
        wire_get_text(p, h->len, WIRE_TAG_CAUSE, cause, sizeof cause);
        pthread_mutex_lock(&s->mutex);
        if (!strcmp(cause, "failed"))
            snprintf(m->reason, sizeof m->reason, "%s", text);
        at = wire_begin(&c->out, WIRE_BYE, 0, 0);
        wire_put_text(&c->out, WIRE_TAG_CAUSE, "recorded");
        if (wire_end(&c->out, at) != PD_OK)
            c->out.failed = true;
        pthread_mutex_unlock(&s->mutex);
        break;
    }
    default:
        break;
    }
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Mutex held. */
static void put_cancel(struct model *m, uint64_t id)
{
    size_t at;

    if (!m->conn)
        return;
    at = wire_begin(&m->conn->out, WIRE_CANCEL, 0, 0);
    wire_put_u64(&m->conn->out, WIRE_TAG_REQUEST, id);
    if (wire_end(&m->conn->out, at) != PD_OK)
        m->conn->out.failed = true;
}

static void expire_calls(struct sup *s, struct model *m, int64_t now_us)
{
    struct call *late = NULL, *next;

    pthread_mutex_lock(&s->mutex);
    for (struct call **at = &m->calls; *at;) {
        struct call *c = *at;

        if (!c->deadline_us || now_us < c->deadline_us) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->next = late;
        late = c;
        m->in_flight--;
        m->failures++;
        put_cancel(m, c->id);
    }
    pthread_mutex_unlock(&s->mutex);
    for (; late; late = next) {
        next = late->next;
        end_call(m, late, PD_ERR_TIMEOUT, "the deadline passed");
    }
}

static void unload(struct sup *s, struct model *m)
{
    size_t at;

    set_state(s, m, SUP_MODEL_UNLOADING, "");
    m->wanted = false;
    m->kill_us = pd_clock_mono_us() + UNLOAD_US;
    if (m->proc.gone) { /* between two restarts, or a failed load */
        struct pd_why none = {""};

        fail_calls(s, m, PD_ERR_CLOSED, "the model was unloaded");
        tell_loads(s, m, PD_ERR_CLOSED, &(struct pd_why){"the model was unloaded"});
        set_state(s, m, SUP_MODEL_UNAVAILABLE, ""); /* before anyone who waited looks */
        tell_unloads(s, m, PD_OK, &none);
        write_loaded(s, m, false);
        forget(s, m);
        return;
    }
    if (!m->conn) {
        proc_signal(&m->proc, SIGTERM);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    at = wire_begin(&m->conn->out, WIRE_UNLOAD, 0, 0);
    if (wire_end(&m->conn->out, at) != PD_OK)
        m->conn->out.failed = true;
    pthread_mutex_unlock(&s->mutex);
    conn_flush(s, m->conn);
}

void model_tick(struct sup *s, int64_t now_us)
{
    struct model *next;

    for (struct model *m = s->models; m; m = next) {
        next = m->next;
        expire_calls(s, m, now_us);
        if (m->retry_us && now_us >= m->retry_us && m->proc.gone && !s->quit) {
            struct pd_why why;

            m->retry_us = 0;
            if (start_worker(s, m, &why) != PD_OK) {
                pd_log(PD_LOG_ERROR, "supervise", "model=%s restart=failed why=\"%s\"", m->name, why.text);
                m->retry_us = now_us + RESTART_MAX_US;
            }
        }
        if (m->proc.gone)
            continue;
        if (!m->kill_us && now_us - m->heard_us > s->o.hang_us && m->state == SUP_MODEL_READY)
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

static struct model *model_new(struct sup *s, const struct store_model_version *v)
{
    struct model *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->source = (struct source){.kind = SOURCE_MODEL, .self = m};
    m->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    m->name = strdup(v->model);
    m->version = v->n;
    m->document = strdup(v->document);
    m->checkpoint = strdup(v->path);
    m->digest = strdup(v->digest);
    m->loading_first = true;
    if (!m->name || !m->document || !m->checkpoint || !m->digest)
        return model_free(m);
    pthread_mutex_lock(&s->mutex);
    m->next = s->models;
    s->models = m;
    pthread_mutex_unlock(&s->mutex);
    return m;
}

static bool start_one(void *ctx, const struct store_model_version *v)
{
    struct sup *s = ctx;

    if (!model_new(s, v))
        pd_log(PD_LOG_ERROR, "supervise", "model=%s load=no_memory", v->model);
    return true;
}

enum pd_err model_start_all(struct sup *s, struct pd_why *why)
{
    char path[SUP_PATH_MAX];
    struct dirent *d;
    enum pd_err err;
    DIR *dir;

    /* What workers of an earlier daemon left: they are gone, the scan for strays saw to it. */
    snprintf(path, sizeof path, "%s/serve", s->state_dir);
    dir = opendir(path);
    while (dir && (d = readdir(dir)))
        if (d->d_name[0] != '.') {
            char one[SUP_PATH_MAX + 300];

            snprintf(one, sizeof one, "%s/%s", path, d->d_name);
            remove_dir(one);
        }
    if (dir)
        closedir(dir);
    err = store_model_version_list(s->reader, NULL, start_one, s, why);
    if (err != PD_OK)
        return err;
    for (struct model *m = s->models; m; m = m->next)
        begin_load(s, m);
    return PD_OK;
}

void model_stop_all(struct sup *s)
{
    struct model *next;

    for (struct model *m = s->models; m; m = next) {
        size_t at;

        next = m->next;
        m->wanted = false;
        m->kill_us = pd_clock_mono_us() + 5000000;
        if (m->conn) {
            pthread_mutex_lock(&s->mutex);
            at = wire_begin(&m->conn->out, WIRE_UNLOAD, 0, 0);
            if (wire_end(&m->conn->out, at) != PD_OK)
                m->conn->out.failed = true;
            pthread_mutex_unlock(&s->mutex);
            conn_flush(s, m->conn);
        } else
            proc_signal(&m->proc, SIGTERM);
    }
}

bool model_all_gone(struct sup *s)
{
    for (struct model *m = s->models; m; m = m->next)
        if (!m->proc.gone)
            return false;
    return true;
}

void model_free_all(struct sup *s)
{
    while (s->models) {
        struct model *m = s->models;
        struct pd_why why = {"polyd is stopping"};

        proc_signal(&m->proc, SIGUSR1); /* only after the patience of a stop has ended */
        fail_calls(s, m, PD_ERR_CLOSED, why.text);
        tell_loads(s, m, PD_ERR_CLOSED, &why);
        tell_unloads(s, m, PD_ERR_CLOSED, &why);
        s->models = m->next;
        model_free(m);
    }
}

/* ---- from other threads --------------------------------------------------------------------- */

static void fill_info(const struct model *m, struct sup_model_info *out)
{
    *out = (struct sup_model_info){.model = m->name,
                                   .version = m->version,
                                   .state = m->state,
                                   .reason = m->reason,
                                   .signature = m->signature ? m->signature : "",
                                   .in_flight = m->in_flight,
                                   .waiting = m->waiting,
                                   .running = m->running,
                                   .requests = m->requests,
                                   .failures = m->failures,
                                   .restarts = m->restarts};
    if (m->conn) {
        char path[64];
        long long size, resident;
        FILE *f;

        snprintf(path, sizeof path, "/proc/%d/statm", (int)m->conn->peer);
        f = fopen(path, "re");
        if (f && fscanf(f, "%lld %lld", &size, &resident) == 2)
            out->memory_bytes = resident * sysconf(_SC_PAGESIZE);
        if (f)
            fclose(f);
    }
}

void sup_model_list(struct sup *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx)
{
    pthread_mutex_lock(&s->mutex);
    for (struct model *m = s->models; m; m = m->next) {
        struct sup_model_info info;

        fill_info(m, &info);
        row(ctx, &info);
    }
    pthread_mutex_unlock(&s->mutex);
}

enum pd_err sup_model_get(struct sup *s, const char *model, int64_t version,
                          void (*row)(void *ctx, const struct sup_model_info *m), void *ctx,
                          struct pd_why *why)
{
    struct model *m;
    enum pd_err err = PD_OK;

    pthread_mutex_lock(&s->mutex);
    m = find(s, model, version);
    if (m) {
        struct sup_model_info info;

        fill_info(m, &info);
        row(ctx, &info);
    } else
        err = pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded", model);
    pthread_mutex_unlock(&s->mutex);
    return err;
}

struct load_post {
    struct post post;
    char *model;
    int64_t version;
    struct load_wait *wait;
};

static void load_end(struct load_post *l, enum pd_err err, const struct pd_why *why)
{
    if (l->wait) {
        if (l->wait->done)
            l->wait->done(l->wait->ctx, err, why);
        free(l->wait);
    }
    free(l->model);
    free(l);
}

struct version_copy {
    struct sup *s;
    struct model *m;
};

static bool new_from_row(void *ctx, const struct store_model_version *v)
{
    struct version_copy *copy = ctx;

    pthread_mutex_lock(&copy->s->mutex);
    copy->m = find(copy->s, v->model, v->n);
    pthread_mutex_unlock(&copy->s->mutex);
    if (!copy->m)
        copy->m = model_new(copy->s, v);
    return false;
}

static void load_begin(struct sup *s, struct post *post)
{
    struct load_post *l = (struct load_post *)post;
    struct version_copy copy = {.s = s};
    struct pd_why why = {""};
    enum pd_err err =
        s->quit ? pd_fail(&why, PD_ERR_CLOSED, "polyd is stopping")
                : store_model_version_get(s->reader, l->model, l->version, new_from_row, &copy, &why);

    if (err == PD_OK && !copy.m)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a model");
    if (err == PD_OK && copy.m->state == SUP_MODEL_UNLOADING)
        err = pd_fail(&why, PD_ERR_CONFLICT, "the model is being unloaded");
    if (err != PD_OK || copy.m->state == SUP_MODEL_READY) {
        load_end(l, err, &why);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    l->wait->next = copy.m->loads;
    copy.m->loads = l->wait;
    pthread_mutex_unlock(&s->mutex);
    l->wait = NULL;
    free(l->model);
    free(l);
    if (copy.m->state == SUP_MODEL_UNAVAILABLE) {
        copy.m->loading_first = true;
        begin_load(s, copy.m);
    }
}

/* Several versions at once: the last one that is gone answers. */
struct unload_group {
    int left;
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

static void group_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct unload_group *g = ctx;

    if (--g->left)
        return;
    if (g->done)
        g->done(g->ctx, err, why);
    free(g);
}

static void unload_begin(struct sup *s, struct post *post)
{
    struct load_post *l = (struct load_post *)post;
    struct unload_group *g = calloc(1, sizeof *g);
    struct pd_why why = {""};
    struct model *next;
    enum pd_err err = g ? PD_ERR_NOT_FOUND : PD_ERR_NOMEM;

    pd_fail(&why, err, g ? "model '%s' is not loaded" : "no memory to unload '%s'", l->model);
    if (g) /* one for ourselves, so that it lives until all are on their way */
        *g = (struct unload_group){.left = 1, .done = l->wait->done, .ctx = l->wait->ctx};
    for (struct model *m = s->models; g && m; m = next) {
        struct load_wait *wait;

        next = m->next;
        if (strcmp(m->name, l->model) != 0 || (l->version && m->version != l->version))
            continue;
        wait = calloc(1, sizeof *wait);
        if (wait) {
            *wait = (struct load_wait){.done = group_done, .ctx = g};
            g->left++;
            pthread_mutex_lock(&s->mutex);
            wait->next = m->unloads;
            m->unloads = wait;
            pthread_mutex_unlock(&s->mutex);
        }
        err = PD_OK;
        why.text[0] = '\0';
        if (m->state != SUP_MODEL_UNLOADING)
            unload(s, m);
    }
    if (g)
        group_done(g, err, &why);
    else if (l->wait->done)
        l->wait->done(l->wait->ctx, err, &why);
    free(l->wait);
    free(l->model);
    free(l);
}

static enum pd_err post_load(struct sup *s, void (*fn)(struct sup *s, struct post *p), const char *model,
                             int64_t version,
                             void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                             struct pd_why *why)
{
    struct load_post *l = calloc(1, sizeof *l);
    struct load_wait *wait = calloc(1, sizeof *wait);
    char *name = strdup(model);

    if (!l || !wait || !name) {
        free(l);
        free(wait);
        free(name);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a model");
    }
    *wait = (struct load_wait){.done = done, .ctx = ctx};
    l->post.fn = fn;
    l->model = name;
    l->version = version;
    l->wait = wait;
    sup_post(s, &l->post);
    return PD_OK;
}

enum pd_err sup_model_load(struct sup *s, const char *model, int64_t version,
                           void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                           struct pd_why *why)
{
    return post_load(s, load_begin, model, version, done, ctx, why);
}

enum pd_err sup_model_unload(struct sup *s, const char *model, int64_t version,
                             void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                             struct pd_why *why)
{
    return post_load(s, unload_begin, model, version, done, ctx, why);
}

/* Mutex held: sends what it can now; the supervisor's thread does the rest when the socket has room. */
static void push(struct sup *s, struct conn *c)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = &c->source};
    struct pd_why why;

    if (c->out.failed || wire_out_write(&c->out, c->fd, &why) != PD_OK)
        return; /* the thread meets the same failure and closes */
    if (c->out.len && c->events != e.events) {
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
        c->events = e.events;
    }
}

enum pd_err sup_infer(struct sup *s, const struct sup_infer *req, uint64_t *ret_id, struct pd_why *why)
{
    struct call *c = calloc(1, sizeof *c);
    struct model *m;
    enum pd_err err = PD_OK;
    size_t at;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a request");
    *c = (struct call){.id = atomic_fetch_add(&s->next_call, 1),
                       .deadline_us = req->deadline_us > 0 ? pd_clock_mono_us() + req->deadline_us : 0,
                       .part = req->part,
                       .ctx = req->ctx};
    pthread_mutex_lock(&s->mutex);
    m = find(s, req->model, req->version);
    if (!m) {
        /* Say "try again" while a version of it is on its way. */
        for (struct model *other = s->models; other && !m; other = other->next)
            if (!strcmp(other->name, req->model) && other->state == SUP_MODEL_LOADING)
                m = other;
        err = m ? pd_fail(why, PD_ERR_CLOSED, "model '%s' is loading", req->model)
                : pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded", req->model);
    } else if (m->state != SUP_MODEL_READY || !m->conn || s->stopping)
        err = m->state == SUP_MODEL_UNAVAILABLE
                  ? pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded: %s", req->model, m->reason)
                  : pd_fail(why, PD_ERR_CLOSED, "model '%s' is %s", req->model,
                            m->state == SUP_MODEL_UNLOADING ? "being unloaded" : "loading");
    else if (m->in_flight >= s->o.infer_queue)
        err = pd_fail(why, PD_ERR_BUSY, "model '%s' has %d requests waiting", req->model, m->in_flight);
    else {
        struct pd_buf *b = &m->conn->out;

        at = wire_begin(b, WIRE_INFER, 0, c->id);
        wire_put_text(b, WIRE_TAG_KIND, req->kind);
        if (req->deadline_us > 0)
            wire_put_u64(b, WIRE_TAG_DEADLINE_US, (uint64_t)req->deadline_us);
        if (req->json)
            wire_put_bytes(b, WIRE_TAG_JSON, req->json, req->json_len);
        for (uint32_t i = 0; i < req->count; i++)
            wire_put_tensor(b, &req->tensors[i]);
        err = wire_end(b, at);
        if (err != PD_OK)
            err = pd_fail(why, err, "the request exceeds %u bytes", WIRE_PAYLOAD_MAX);
        else {
            c->next = m->calls;
            m->calls = c;
            m->in_flight++;
            m->requests++;
            *ret_id = c->id;
            c = NULL; /* moved */
            push(s, m->conn);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    free(c);
    return err;
}

void sup_infer_cancel(struct sup *s, uint64_t id)
{
    pthread_mutex_lock(&s->mutex);
    for (struct model *m = s->models; m; m = m->next)
        for (struct call *c = m->calls; c; c = c->next)
            if (c->id == id && !c->cancelled) {
                c->cancelled = true;
                put_cancel(m, id);
                if (m->conn)
                    push(s, m->conn);
            }
    pthread_mutex_unlock(&s->mutex);
}
