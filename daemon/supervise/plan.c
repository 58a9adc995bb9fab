/* Byte forecasts: `polyd-worker plan` beside us, its input and output in memory files, so that only its end
 * is awaited. A few are made at once, the others wait in order. Answers are kept by plan_digest. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define PLAN_BYTES ((size_t)1 << 20)

struct plan_post {
    struct post post;
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
        free(p->document);
        free(p);
    }
    return NULL;
}

void plan_free_all(struct sup *s)
{
    while (s->plans) {
        struct plan *p = s->plans;
        struct pd_why why = {"polyd is stopping"};

        s->plans = p->next;
        proc_signal(&p->proc, SIGKILL);
        if (p->done)
            p->done(p->ctx, PD_ERR_CLOSED, &why, NULL);
        plan_free(p);
    }
}

static void plan_start(struct sup *s, struct plan *p);

/* The oldest that waits, if there is room for one. */
static void start_next(struct sup *s)
{
    struct plan *oldest = NULL;
    int running = 0;

    for (struct plan *p = s->plans; p; p = p->next) {
        running += p->started;
        if (!p->started)
            oldest = p; /* the newest is the first */
    }
    if (oldest && running < SUP_PLANS_AT_ONCE)
        plan_start(s, oldest);
}

static void plan_over(struct sup *s, struct plan *p, enum pd_err err, const struct pd_why *why,
                      const char *json)
{
    for (struct plan **at = &s->plans; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    pthread_mutex_lock(&s->mutex);
    s->plans_running--;
    pthread_mutex_unlock(&s->mutex);
    if (p->done)
        p->done(p->ctx, err, why, json);
    plan_free(p);
    start_next(s);
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
    struct op op;
    char digest[80];
    char *json;
};

static enum pd_err keep_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct keep_op *k = (struct keep_op *)op;

    return store_plan_put(tx, k->digest, k->json, why);
}

static void keep_release(struct op *op)
{
    free(((struct keep_op *)op)->json);
}

static void keep(struct sup *s, const char *digest, const char *json)
{
    struct keep_op *k = calloc(1, sizeof *k);

    if (!k)
        return;
    k->op.lane = STORE_LANE_WORKER;
    k->op.apply = keep_apply;
    k->op.release = keep_release;
    snprintf(k->digest, sizeof k->digest, "%s", digest);
    k->json = strdup(json);
    if (!k->json)
        free(k);
    else if (sup_write(s, &k->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "plan=unkept");
}

void plan_gone(struct sup *s, struct plan *p)
{
    struct pd_buf out;
    struct pd_why why = {""};
    enum pd_err err = PD_OK;

    proc_reap(s, &p->proc);
    pd_buf_init(&out, PLAN_BYTES);
    if (p->proc.status == 0) {
        read_back(p->out_fd, &out);
        if (pd_buf_err(&out) != PD_OK || !out.len)
            err = pd_fail(&why, PD_ERR_INTERNAL, "the worker printed no plan");
        else if (p->digest[0])
            keep(s, p->digest, out.data);
    } else {
        /* Its last line says what is wrong; a signal says what is wrong with us. */
        read_back(p->err_fd, &out);
        while (out.len && (out.data[out.len - 1] == '\n' || out.data[out.len - 1] == ' '))
            out.data[--out.len] = '\0';
        if (p->proc.status > 0 && p->proc.status < 256)
            err =
                pd_fail(&why, PD_ERR_INTERNAL, "the planning worker was killed by signal %d", p->proc.status);
        else {
            const char *line = out.data ? strrchr(out.data, '\n') : NULL;

            err =
                pd_fail(&why, p->proc.status >> 8 == WIRE_PLAN_INVALID ? PD_ERR_INVALID : PD_ERR_IO, "%.400s",
                        line       ? line + 1
                        : out.data ? out.data
                                   : "no plan can be made");
        }
    }
    plan_over(s, p, err, &why, err == PD_OK ? out.data : NULL);
    pd_buf_done(&out);
}

void plan_tick(struct sup *s, int64_t now_us)
{
    for (struct plan *p = s->plans; p; p = p->next) {
        if (p->done && p->impatient_us && now_us > p->impatient_us) {
            struct pd_why why;
            enum pd_err err = pd_fail(&why, PD_ERR_TIMEOUT, "a plan takes longer than %lld s",
                                      (long long)(p->patience_us / 1000000));
            void (*done)(void *, enum pd_err, const struct pd_why *, const char *) = p->done;

            p->done = NULL;
            done(p->ctx, err, &why, NULL);
        }
        if (p->started && (s->quit || now_us > p->deadline_us))
            proc_signal(&p->proc, SIGKILL);
    }
}

static void plan_start(struct sup *s, struct plan *p)
{
    char *argv[2 * 64 + 7], *roots[64], *cache = NULL, memory[32];
    struct pd_buf kept;
    struct pd_why why = {""};
    char mark[SUP_PATH_MAX + 64];
    int in_fd = -1, argc = 0, root_count = 0;
    enum pd_err err = PD_OK;

    if (s->quit) {
        err = pd_fail(&why, PD_ERR_CLOSED, "polyd is stopping");
        plan_over(s, p, err, &why, NULL);
        return;
    }
    p->started = true;
    pd_buf_init(&kept, PLAN_BYTES);
    if (p->digest[0] && store_plan_get(s->reader, p->digest, &kept, &why) == PD_OK) {
        plan_over(s, p, PD_OK, &why, kept.data);
        pd_buf_done(&kept);
        return;
    }
    pd_buf_done(&kept);
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
    argv[argc++] = (char *)"plan";
    for (int i = 0; err == PD_OK && i < s->o.root_count && i < 64; i++) {
        if (asprintf(&roots[root_count], "%s=%s", s->roots[i].name, s->roots[i].path) < 0) {
            err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a plan");
            break;
        }
        argv[argc++] = (char *)"--root";
        argv[argc++] = roots[root_count++];
    }
    if (err == PD_OK && asprintf(&cache, "%s/cache", s->state_dir) < 0) {
        cache = NULL;
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a plan");
    }
    argv[argc++] = (char *)"--cache";
    argv[argc++] = cache;
    snprintf(memory, sizeof memory, "%lld", (long long)sup_memory(s, p->device, p->slots));
    argv[argc++] = (char *)"--memory";
    argv[argc++] = memory;
    argv[argc] = NULL;
    snprintf(mark, sizeof mark, "%s:plan", s->state_dir);
    if (err == PD_OK)
        err = proc_spawn(s, argv, NULL, 0, in_fd, p->out_fd, p->err_fd, mark, NULL, &p->proc, &why);
    for (int i = 0; i < root_count; i++)
        free(roots[i]);
    free(cache);
    if (in_fd >= 0)
        close(in_fd);
    if (err != PD_OK) {
        plan_over(s, p, err, &why, NULL);
        return;
    }
    p->deadline_us = pd_clock_mono_us() + SUP_PLAN_US;
    sup_watch(s, &p->source, p->proc.fd, EPOLLIN);
}

static void plan_begin(struct sup *s, struct post *post)
{
    struct plan *p = ((struct plan_post *)post)->plan;

    free(post);
    p->impatient_us = p->patience_us ? pd_clock_mono_us() + p->patience_us : 0;
    p->next = s->plans;
    s->plans = p;
    start_next(s);
}

enum pd_err sup_plan(struct sup *s, const struct sup_planning *asked, struct pd_why *why)
{
    struct plan_post *pp = calloc(1, sizeof *pp);
    struct plan *p = calloc(1, sizeof *p);
    bool busy, stopping;

    if (p) {
        p->source = (struct source){.kind = SOURCE_PLAN, .self = p};
        p->proc = (struct proc){.fd = -1, .gone = true, .status = -1};
        p->out_fd = p->err_fd = -1;
        p->document = malloc(asked->len + 1);
        p->len = asked->len;
        p->slots = asked->slots;
        snprintf(p->device, sizeof p->device, "%s", asked->device);
        p->patience_us = asked->patience_us;
        p->done = asked->done;
        p->ctx = asked->ctx;
        snprintf(p->digest, sizeof p->digest, "%s", asked->plan_digest ? asked->plan_digest : "");
    }
    if (!p || !pp || !p->document) {
        plan_free(p);
        free(pp);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a plan");
    }
    memcpy(p->document, asked->document, asked->len);
    p->document[asked->len] = '\0';
    pthread_mutex_lock(&s->mutex);
    stopping = s->stopping;
    busy = s->plans_running >= SUP_PLANS_MAX;
    if (!busy && !stopping)
        s->plans_running++;
    pthread_mutex_unlock(&s->mutex);
    if (busy || stopping) {
        plan_free(p);
        free(pp);
        return stopping ? pd_fail(why, PD_ERR_CLOSED, "polyd is stopping")
                        : pd_fail(why, PD_ERR_BUSY, "%d plans are waited for already", SUP_PLANS_MAX);
    }
    pp->post.fn = plan_begin;
    pp->plan = p;
    sup_post(s, &pp->post);
    return PD_OK;
}
