/* Loading and unloading of versions, asked for by other threads. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/serving/internal.h"
#include "kernels/base/clock.h"

#define UNLOAD_US 10000000 /* then it is killed */

void model_unload(struct serving *s, struct model *m)
{
    size_t at;

    pthread_mutex_lock(&s->lock);
    m->wanted = false;
    pthread_mutex_unlock(&s->lock);
    model_set_state(s, m, SUP_MODEL_UNLOADING, "");
    m->kill_us = pd_clock_mono_us() + UNLOAD_US;
    if (m->proc.gone) { /* between two restarts, or a failed load */
        model_fail_calls(s, m, PD_ERR_CLOSED, "the model was unloaded");
        model_notify_loads(s, m, PD_ERR_CLOSED, &(struct pd_why){"the model was unloaded"});
        model_set_state(s, m, SUP_MODEL_UNAVAILABLE, ""); /* before anyone who waited looks */
        model_write_loaded(s, m, false);
        model_forget(s, m);
        return;
    }
    if (!m->conn) {
        proc_signal(&m->proc, SIGTERM);
        return;
    }
    model_send(s, m, true); /* what was accepted is answered */
    if (!m->conn)
        return;
    at = wire_begin(conn_out(m->conn), WIRE_UNLOAD, 0, 0);
    conn_end(m->conn, at);
    conn_flush(m->conn);
}

struct load_post {
    struct loop_post post;
    struct serving *s;
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
    struct serving *s;
    struct model *m;
};

static bool new_from_row(void *ctx, const struct store_model_version *v)
{
    struct version_copy *copy = ctx;

    pthread_mutex_lock(&copy->s->lock);
    copy->m = model_find(copy->s, v->model, v->n);
    pthread_mutex_unlock(&copy->s->lock);
    /* A load that failed is remembered; its model may have been deleted, and its name and number given again.
     */
    if (copy->m && copy->m->state == SUP_MODEL_UNAVAILABLE && copy->m->proc.gone &&
        (strcmp(copy->m->digest, v->digest) != 0 || strcmp(copy->m->checkpoint, v->path) != 0)) {
        model_forget(copy->s, copy->m);
        copy->m = NULL;
    }
    if (!copy->m)
        copy->m = model_new(copy->s, v);
    return false;
}

static void load_begin(struct loop_post *post)
{
    struct load_post *l = (struct load_post *)post;
    struct serving *s = l->s;
    struct version_copy copy = {.s = s};
    struct pd_why why = {""};
    enum pd_err err = loop_stopping(s->loop) ? pd_fail(&why, PD_ERR_CLOSED, "polyd is stopping")
                                             : store_model_version_get(loop_reader(s->loop), l->model,
                                                                       l->version, new_from_row, &copy, &why);

    if (err == PD_OK && !copy.m)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a model");
    if (err == PD_OK && copy.m->state == SUP_MODEL_UNLOADING)
        err = pd_fail(&why, PD_ERR_CONFLICT, "the model is being unloaded");
    if (err == PD_OK && copy.m->state == SUP_MODEL_READY &&
        model_await_record(s, copy.m->name, copy.m->version, true, l->wait))
        l->wait = NULL;
    if (err != PD_OK || copy.m->state == SUP_MODEL_READY) {
        load_end(l, err, &why);
        return;
    }
    pthread_mutex_lock(&s->lock);
    l->wait->next = copy.m->loads;
    copy.m->loads = l->wait;
    pthread_mutex_unlock(&s->lock);
    l->wait = NULL;
    free(l->model);
    free(l);
    if (copy.m->state == SUP_MODEL_UNAVAILABLE) {
        copy.m->loading_first = true;
        model_begin_load(s, copy.m);
    } else if (copy.m->proc.gone && copy.m->retry_us > pd_clock_mono_us())
        copy.m->retry_us = pd_clock_mono_us(); /* the pause between restarts ends */
}

/* Several versions at once: the last one that is gone answers, with the first error of any. */
struct unload_group {
    int left;
    enum pd_err err;
    struct pd_why why;
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

static void group_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct unload_group *g = ctx;

    if (g->err == PD_OK && err != PD_OK) {
        g->err = err;
        g->why = *why;
    }
    if (--g->left)
        return;
    if (g->done)
        g->done(g->ctx, g->err, &g->why);
    free(g);
}

/* A wait of one version; NULL without memory: that version's end is not waited for. */
static struct load_wait *group_wait(struct unload_group *g)
{
    struct load_wait *wait = calloc(1, sizeof *wait);

    if (wait) {
        *wait = (struct load_wait){.done = group_done, .ctx = g};
        g->left++;
    }
    return wait;
}

static void unload_begin(struct loop_post *post)
{
    struct load_post *l = (struct load_post *)post;
    struct serving *s = l->s;
    struct unload_group *g = calloc(1, sizeof *g);
    struct pd_why why = {""};
    struct model *next;
    enum pd_err err = g ? PD_ERR_NOT_FOUND : PD_ERR_NOMEM;

    pd_fail(&why, err, g ? "model '%s' is not loaded" : "no memory to unload '%s'", l->model);
    if (g) /* one for ourselves, so that it lives until all are on their way */
        *g = (struct unload_group){.left = 1, .done = l->wait->done, .ctx = l->wait->ctx};
    /* those that are gone already, which a restart would still load */
    for (int64_t n = 0; g && (n = model_next_record(s, l->model, n, false));)
        if (!l->version || n == l->version) {
            struct load_wait *wait = group_wait(g);

            if (wait)
                (void)model_await_record(s, l->model, n, false, wait);
            err = PD_OK;
        }
    for (struct model *m = s->models; g && m; m = next) {
        struct load_wait *wait;

        next = m->next;
        if (strcmp(m->name, l->model) != 0 || (l->version && m->version != l->version))
            continue;
        wait = group_wait(g);
        if (wait) {
            pthread_mutex_lock(&s->lock);
            wait->next = m->unloads;
            m->unloads = wait;
            pthread_mutex_unlock(&s->lock);
        }
        err = PD_OK;
        if (m->state != SUP_MODEL_UNLOADING)
            model_unload(s, m);
    }
    if (err == PD_OK)
        why.text[0] = '\0';
    if (g)
        group_done(g, err, &why);
    else if (l->wait->done)
        l->wait->done(l->wait->ctx, err, &why);
    free(l->wait);
    free(l->model);
    free(l);
}

static enum pd_err post_load(struct serving *s, void (*fn)(struct loop_post *p), const char *model,
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
    l->s = s;
    l->model = name;
    l->version = version;
    l->wait = wait;
    loop_post(s->loop, &l->post);
    return PD_OK;
}

enum pd_err serving_load(struct serving *s, const char *model, int64_t version,
                         void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                         struct pd_why *why)
{
    return post_load(s, load_begin, model, version, done, ctx, why);
}

enum pd_err serving_unload(struct serving *s, const char *model, int64_t version,
                           void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                           struct pd_why *why)
{
    return post_load(s, unload_begin, model, version, done, ctx, why);
}
