/* Questions to short-lived workers: `polyd-worker plan`, `data` and `weights`, their input and output in memory
 * files, so that only their end is awaited. A few of each kind are answered at once, the others wait in order.
 * Answers are kept by digest; who asks for a new one replaces the kept one. Of one digest one worker runs at a time, and its
 * answer is that of all who waited when it began: a page that asks while someone types starts no crowd of them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/answer.h"
#include "daemon/polyd/supervise/devices/devices.h"
#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/plans/plans.h"
#include "daemon/polyd/supervise/workers/proc.h"
#include "daemon/polyd/supervise/workers/workers.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define PLANS_MAX 256 /* asked for and not answered */
#define SECOND_US INT64_C(1000000)

enum ask { ASK_PLAN, ASK_START, ASK_LIST, ASK_WEIGHTS, ASK_COUNT };

static const struct {
    const char *role, *doing, *answer, *takes; /* words of sentences */
    size_t bytes;                              /* most of an answer */
    int at_once;                               /* kinds do not wait for each other */
    int64_t limit_us;                          /* then its process is killed */
} asks[ASK_COUNT] = {
    [ASK_PLAN] = {"plan", "planning", "plan", "a plan", (size_t)1 << 20, 4, 120 * SECOND_US},
    [ASK_START] = {"plan", "trying", "start", "measuring the start", (size_t)1 << 20, 1, 60 * SECOND_US},
    [ASK_LIST] = {"data", "listing", "list", "listing the data roots", (size_t)16 << 20, 2, 10 * SECOND_US},
    /* as long as a disk needs to read and write the largest upload */
    [ASK_WEIGHTS] = {"weights", "weights", "answer", "reading the weights", (size_t)16 << 20, 2,
                     1800 * SECOND_US},
};

struct plan {
    struct loop_source source;
    struct plans *plans;
    struct plan *next;
    struct proc proc;
    bool started; /* it has a process */
    enum ask ask; /* LIST: `document` is the path or empty, `only` a root or empty */
    char only[72];
    char *args[SUP_WEIGHTS_ARGS]; /* WEIGHTS: what follows the role */
    size_t arg_count;
    char device[8];
    int slots;
    int out_fd, err_fd;
    char digest[80];
    bool refresh;        /* a kept answer does not do */
    struct plan *with;   /* started, of the same digest: a good answer of it is this one's as well */
    int64_t deadline_us; /* of the process */
    bool late;           /* killed because it passed */
    int64_t patience_us, impatient_us; /* of the caller, and when it ends; 0 = none */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why,
                 const char *plan); /* NULL: already notified */
    void *ctx;
    char *document;
    size_t len;
};

/* What a plan says, remembered for the next cycle. */
#define MEMOS 64
struct plan_memo {
    char digest[80];
    int64_t bytes;
};

struct plans {
    struct loop *loop;
    struct workers *workers;
    struct devices *devices;
    struct loop_member member;
    struct workers_member workers_member;
    struct plan *plans;
    struct plan_memo memos[MEMOS];

    pthread_mutex_t lock;
    int waiting; /* lock: asked for and not answered */
};

struct posted {
    struct loop_post post;
    struct plan *plan;
};

static struct plan *plan_free(struct plan *p)
{
    if (p) {
        proc_close(&p->proc);
        if (p->out_fd >= 0)
            close(p->out_fd);
        if (p->err_fd >= 0)
            close(p->err_fd);
        for (size_t i = 0; i < p->arg_count; i++)
            free(p->args[i]);
        free(p->document);
        free(p);
    }
    return NULL;
}

static void plan_start(struct plans *s, struct plan *p);

static bool same_question(const struct plan *p, const struct plan *q)
{
    return p != q && p->ask == q->ask && p->digest[0] && !strcmp(p->digest, q->digest);
}

static bool is_running(const struct plans *s, const struct plan *p)
{
    for (const struct plan *q = s->plans; q; q = q->next)
        if (q->started && same_question(p, q))
            return true;
    return false;
}

/* The oldest waiting one of its kind that may start, if the limit allows one more. */
static void start_next(struct plans *s, enum ask ask)
{
    struct plan *oldest = NULL;
    int running = 0;

    for (struct plan *p = s->plans; p; p = p->next) {
        if (p->ask != ask)
            continue;
        running += p->started;
        if (!p->started && !is_running(s, p))
            oldest = p; /* the newest is the first */
    }
    if (oldest && running < asks[ask].at_once)
        plan_start(s, oldest);
}

static void plan_leave(struct plans *s, struct plan *p, enum pd_err err, const struct pd_why *why,
                       const char *json)
{
    for (struct plan **at = &s->plans; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_lock(&s->lock);
    s->waiting--;
    pthread_mutex_unlock(&s->lock);
    if (p->done)
        p->done(p->ctx, err, why, json);
    plan_free(p);
}

static void plan_over(struct plans *s, struct plan *p, enum pd_err err, const struct pd_why *why,
                      const char *json)
{
    const enum ask ask = p->ask;

    for (struct plan *q = s->plans, *next; q; q = next) {
        next = q->next;
        if (q->with != p)
            continue;
        q->with = NULL;
        if (err == PD_OK) /* an error may be of what is not in the digest */
            plan_leave(s, q, err, why, json);
    }
    plan_leave(s, p, err, why, json);
    start_next(s, ask);
}

static void read_back(int fd, struct pd_buf *out)
{
    char piece[16384];
    off_t at = 0;
    ssize_t n;

    while ((n = pread(fd, piece, sizeof piece, at)) > 0) {
        pd_buf_append(out, piece, (size_t)n);
        at += n;
    }
}

struct keep_op {
    struct loop_op op;
    char digest[80];
    char *json;
};

static enum pd_err keep_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct keep_op *k = (struct keep_op *)op;

    return store_plan_put(tx, k->digest, k->json, why);
}

static void keep_release(struct loop_op *op)
{
    free(((struct keep_op *)op)->json);
}

static struct plan_memo *memo_of(struct plans *s, const char *digest)
{
    return &s->memos[(digest[0] ? (unsigned)digest[0] * 31 + (unsigned)digest[1] : 0) % MEMOS];
}

static void keep(struct plans *s, const char *digest, const char *json)
{
    struct keep_op *k = calloc(1, sizeof *k);
    struct plan_memo *memo = memo_of(s, digest);

    if (!strcmp(memo->digest, digest))
        memo->bytes = answer_plan_bytes(json, strlen(json));
    if (!k)
        return;
    k->op.apply = keep_apply;
    k->op.release = keep_release;
    snprintf(k->digest, sizeof k->digest, "%s", digest);
    k->json = strdup(json);
    if (!k->json)
        free(k);
    else
        loop_write(s->loop, &k->op);
}

static void plan_gone(void *self, unsigned events)
{
    struct plan *p = self;
    struct plans *s = p->plans;
    struct pd_buf out;
    struct pd_why why = {""};
    enum pd_err err = PD_OK;

    (void)events;
    proc_reap(&p->proc);
    pd_buf_init(&out, asks[p->ask].bytes);
    if (p->proc.status == 0) {
        read_back(p->out_fd, &out);
        if (pd_buf_err(&out) != PD_OK || !out.len)
            err = pd_fail(&why, PD_ERR_INTERNAL, "the worker returned no %s", asks[p->ask].answer);
        else if (p->digest[0])
            keep(s, p->digest, out.data);
    } else {
        /* Its last line says what is wrong; a signal says what is wrong with us. */
        read_back(p->err_fd, &out);
        while (out.len && (out.data[out.len - 1] == '\n' || out.data[out.len - 1] == ' '))
            out.data[--out.len] = '\0';
        if (p->late)
            err = pd_fail(&why, PD_ERR_TIMEOUT, "%s takes longer than %lld s, so its worker was stopped",
                          asks[p->ask].takes, (long long)(asks[p->ask].limit_us / SECOND_US));
        else if (p->proc.status > 0 && p->proc.status < 256)
            err = pd_fail(&why, PD_ERR_INTERNAL, "the %s worker was killed by signal %d", asks[p->ask].doing,
                          p->proc.status);
        else {
            const char *line = out.data ? strrchr(out.data, '\n') : NULL;

            err = pd_fail(&why,
                          p->proc.status >> 8 == WIRE_PLAN_INVALID ? PD_ERR_INVALID
                          : p->proc.status >> 8 == WIRE_PLAN_FULL  ? PD_ERR_FULL
                                                                   : PD_ERR_IO,
                          "%.400s",
                          line       ? line + 1
                          : out.data ? out.data
                                     : "its worker gave no reason");
        }
    }
    plan_over(s, p, err, &why, err == PD_OK ? out.data : NULL);
    pd_buf_done(&out);
}

static void tick(void *self, int64_t now_us)
{
    struct plans *s = self;

    for (struct plan *p = s->plans; p; p = p->next) {
        if (p->done && p->impatient_us && now_us > p->impatient_us) {
            struct pd_why why;
            enum pd_err err = pd_fail(&why, PD_ERR_TIMEOUT, "%s takes longer than %lld s", asks[p->ask].takes,
                                      (long long)(p->patience_us / SECOND_US));
            void (*done)(void *, enum pd_err, const struct pd_why *, const char *) = p->done;

            p->done = NULL;
            done(p->ctx, err, &why, NULL);
        }
        if (p->started && (loop_stopping(s->loop) || now_us > p->deadline_us)) {
            p->late = !loop_stopping(s->loop);
            proc_signal(&p->proc, SIGKILL);
        }
    }
}

static void plan_start(struct plans *s, struct plan *p)
{
    char *argv[2 * 64 + 10 + SUP_WEIGHTS_ARGS], *roots[64], *cache = NULL, memory[32];
    struct pd_buf kept;
    struct pd_why why = {""};
    char mark[WORKERS_PATH_MAX + 64];
    int in_fd = -1, argc = 0, root_count = 0, given_count;
    const struct sup_data_root *given = workers_roots(s->workers, &given_count);
    enum pd_err err = PD_OK;

    if (loop_stopping(s->loop)) {
        err = pd_fail(&why, PD_ERR_CLOSED, "polyd is stopping");
        plan_over(s, p, err, &why, NULL);
        return;
    }
    p->started = true;
    pd_buf_init(&kept, asks[p->ask].bytes);
    if (p->digest[0] && !p->refresh &&
        store_plan_get(loop_reader(s->loop), p->digest, &kept, &why) == PD_OK) {
        plan_over(s, p, PD_OK, &why, kept.data);
        pd_buf_done(&kept);
        return;
    }
    pd_buf_done(&kept);
    for (struct plan *q = s->plans; q; q = q->next)
        if (same_question(p, q))
            q->with = p;
    in_fd = memfd_create("job", MFD_CLOEXEC);
    p->out_fd = memfd_create("plan", MFD_CLOEXEC);
    p->err_fd = memfd_create("errors", MFD_CLOEXEC);
    if (in_fd < 0 || p->out_fd < 0 || p->err_fd < 0)
        err = pd_fail_errno(&why, errno, "cannot make a memory file");
    if (err == PD_OK)
        err = pd_file_write_all(in_fd, p->document, p->len, &why);
    if (err == PD_OK && lseek(in_fd, 0, SEEK_SET) < 0)
        err = pd_fail_errno(&why, errno, "cannot rewind a memory file");
    argv[argc++] = (char *)"polyd-worker";
    argv[argc++] = (char *)asks[p->ask].role;
    for (size_t i = 0; i < p->arg_count; i++)
        argv[argc++] = p->args[i];
    for (int i = 0; err == PD_OK && i < given_count && i < 64; i++) {
        if (p->only[0] && strcmp(p->only, given[i].name) != 0)
            continue;
        if (asprintf(&roots[root_count], "%s=%s", given[i].name, given[i].path) < 0) {
            err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a plan");
            break;
        }
        argv[argc++] = (char *)"--root";
        argv[argc++] = roots[root_count++];
    }
    if (err == PD_OK && asprintf(&cache, "%s/cache", workers_state_dir(s->workers)) < 0) {
        cache = NULL;
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a plan");
    }
    if (p->ask == ASK_LIST && p->len) {
        argv[argc++] = (char *)"--path";
        argv[argc++] = p->document;
    } else if (p->ask == ASK_PLAN || p->ask == ASK_START) {
        if (p->ask == ASK_START)
            argv[argc++] = (char *)"--start";
        argv[argc++] = (char *)"--cache";
        argv[argc++] = cache;
        argv[argc++] = (char *)"--state";
        argv[argc++] = (char *)workers_state_dir(s->workers);
        snprintf(memory, sizeof memory, "%lld", (long long)devices_memory(s->devices, p->device, p->slots));
        argv[argc++] = (char *)"--memory";
        argv[argc++] = memory;
    }
    argv[argc] = NULL;
    snprintf(mark, sizeof mark, "%s:plan", workers_state_dir(s->workers));
    if (err == PD_OK)
        err = proc_spawn(s->workers, argv, NULL, 0, in_fd, p->out_fd, p->err_fd, mark, NULL, &p->proc, &why);
    for (int i = 0; i < root_count; i++)
        free(roots[i]);
    free(cache);
    if (in_fd >= 0)
        close(in_fd);
    if (err != PD_OK) {
        plan_over(s, p, err, &why, NULL);
        return;
    }
    p->deadline_us = pd_clock_mono_us() + asks[p->ask].limit_us;
    loop_watch(s->loop, &p->source, p->proc.fd, EPOLLIN);
}

static void plan_begin(struct loop_post *post)
{
    struct plan *p = ((struct posted *)post)->plan;
    struct plans *s = p->plans;

    free(post);
    p->impatient_us = p->patience_us ? pd_clock_mono_us() + p->patience_us : 0;
    p->next = s->plans;
    s->plans = p;
    start_next(s, p->ask);
}

/* A copy of `document`; NULL without memory. */
static struct plan *plan_new(struct plans *s, const char *document, size_t len)
{
    struct plan *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->source = (struct loop_source){.ready = plan_gone, .self = p};
    p->plans = s;
    p->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
    p->out_fd = p->err_fd = -1;
    p->document = malloc(len + 1);
    if (!p->document)
        return plan_free(p);
    memcpy(p->document, document, len);
    p->document[len] = '\0';
    p->len = len;
    return p;
}

/* Takes the plan (NULL: there was no memory for it). */
static enum pd_err plan_post(struct plans *s, struct plan *p, struct pd_why *why)
{
    struct posted *pp = calloc(1, sizeof *pp);
    bool busy, stopping;

    if (!p || !pp) {
        plan_free(p);
        free(pp);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a plan");
    }
    pthread_mutex_lock(&s->lock);
    stopping = loop_stopping(s->loop);
    busy = s->waiting >= PLANS_MAX;
    if (!busy && !stopping)
        s->waiting++;
    pthread_mutex_unlock(&s->lock);
    if (busy || stopping) {
        plan_free(p);
        free(pp);
        return stopping ? pd_fail(why, PD_ERR_CLOSED, "polyd is stopping")
                        : pd_fail(why, PD_ERR_BUSY, "%d plans are in progress already", PLANS_MAX);
    }
    pp->post.fn = plan_begin;
    pp->plan = p;
    loop_post(s->loop, &pp->post);
    return PD_OK;
}

enum pd_err plans_ask(struct plans *s, const struct sup_planning *asked, struct pd_why *why)
{
    struct plan *p = plan_new(s, asked->document, asked->len);

    if (p) {
        p->slots = asked->slots;
        snprintf(p->device, sizeof p->device, "%s", asked->device);
        p->patience_us = asked->patience_us;
        p->done = asked->done;
        p->ctx = asked->ctx;
        p->ask = asked->start ? ASK_START : ASK_PLAN;
        p->refresh = asked->refresh;
        /* A start is of a seed and takes a time of this moment: it is measured each time. */
        if (asked->plan_digest && !asked->start)
            snprintf(p->digest, sizeof p->digest, "%s", asked->plan_digest);
    }
    return plan_post(s, p, why);
}

enum pd_err plans_list_data(struct plans *s, const struct sup_listing *asked, struct pd_why *why)
{
    struct plan *p = plan_new(s, asked->path ? asked->path : "", asked->path ? strlen(asked->path) : 0);

    if (p) {
        p->ask = ASK_LIST;
        snprintf(p->only, sizeof p->only, "%s", asked->root ? asked->root : "");
        p->patience_us = asks[ASK_LIST].limit_us;
        p->done = asked->done;
        p->ctx = asked->ctx;
    }
    return plan_post(s, p, why);
}

enum pd_err plans_weights(struct plans *s, const struct sup_weights *asked, struct pd_why *why)
{
    struct plan *p =
        plan_new(s, asked->document ? asked->document : "", asked->document ? strlen(asked->document) : 0);

    for (size_t i = 0; p && i < SUP_WEIGHTS_ARGS && asked->args[i]; i++) {
        p->args[i] = strdup(asked->args[i]);
        if (!p->args[i])
            p = plan_free(p);
        else
            p->arg_count++;
    }
    if (p) {
        p->ask = ASK_WEIGHTS;
        p->done = asked->done;
        p->ctx = asked->ctx;
        snprintf(p->digest, sizeof p->digest, "%s", asked->digest ? asked->digest : "");
    }
    return plan_post(s, p, why);
}

/* Runs of a sweep mostly share a plan. */
int64_t plans_bytes(struct plans *s, const char *digest)
{
    struct plan_memo *memo = memo_of(s, digest);
    struct pd_buf plan;
    struct pd_why why;
    int64_t bytes = 0;

    if (digest[0] && !strcmp(memo->digest, digest))
        return memo->bytes;
    pd_buf_init(&plan, 1 << 20);
    if (store_plan_get(loop_reader(s->loop), digest, &plan, &why) == PD_OK && plan.data)
        bytes = answer_plan_bytes(plan.data, plan.len);
    pd_buf_done(&plan);
    if (bytes > 0) { /* one that is not there yet may come */
        snprintf(memo->digest, sizeof memo->digest, "%s", digest);
        memo->bytes = bytes;
    }
    return bytes;
}

/* ---- start and stop -------------------------------------------------------------------------- */

static bool idle(void *self)
{
    return !((const struct plans *)self)->plans;
}

static bool knows(void *self, const char *mark)
{
    return !strcmp(mark, "plan") && !idle(self);
}

enum pd_err plans_new(struct loop *l, struct workers *w, struct devices *devices, struct plans **ret,
                      struct pd_why *why)
{
    struct plans *s = calloc(1, sizeof *s);

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    *s = (struct plans){.loop = l,
                        .workers = w,
                        .devices = devices,
                        .member = {.self = s, .tick = tick, .idle = idle},
                        .workers_member = {.self = s, .knows = knows}};
    pthread_mutex_init(&s->lock, NULL);
    loop_join(l, &s->member);
    workers_join(w, &s->workers_member);
    *ret = s;
    return PD_OK;
}

struct plans *plans_free(struct plans *s)
{
    if (!s)
        return NULL;
    while (s->plans) {
        struct plan *p = s->plans;
        struct pd_why why = {"polyd is stopping"};

        s->plans = p->next;
        proc_signal(&p->proc, SIGKILL);
        if (p->done)
            p->done(p->ctx, PD_ERR_CLOSED, &why, NULL);
        plan_free(p);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}
