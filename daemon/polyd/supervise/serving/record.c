/* Who waits for a load or an unload, and the record of it in the store, with which they are answered. */
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/serving/internal.h"
#include "kernels/base/log.h"

/* ---- answers ---- */

static struct load_wait *take_waits(struct serving *s, struct load_wait **list)
{
    struct load_wait *first;

    pthread_mutex_lock(&s->lock);
    first = *list;
    *list = NULL;
    pthread_mutex_unlock(&s->lock);
    return first;
}

/* Without the lock. */
static void notify(struct load_wait *l, enum pd_err err, const struct pd_why *why)
{
    for (struct load_wait *next; l; l = next) {
        next = l->next;
        if (l->done)
            l->done(l->ctx, err, why);
        free(l);
    }
}

void model_notify_loads(struct serving *s, struct model *m, enum pd_err err, const struct pd_why *why)
{
    notify(take_waits(s, &m->loads), err, why);
}

void model_notify_unloads(struct serving *s, struct model *m, enum pd_err err, const struct pd_why *why)
{
    notify(take_waits(s, &m->unloads), err, why);
}

/* ---- records ---- */

struct loaded_op {
    struct loop_op op;
    struct loaded_op *next; /* of those not committed */
    char *model;
    int64_t version;
    bool loaded;
    struct load_wait *waits; /* answered once it is committed */
};

static enum pd_err loaded_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    const struct loaded_op *l = (const struct loaded_op *)op;

    return store_model_set_loaded(tx, l->model, l->version, l->loaded, why);
}

static void loaded_done(struct loop_op *op)
{
    struct serving *s = op->owner;
    struct loaded_op *l = (struct loaded_op *)op, **at = &s->records;
    bool deleted = op->err == PD_ERR_NOT_FOUND;
    struct model *m;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    if (op->err != PD_OK && !deleted)
        pd_log(PD_LOG_ERROR, "supervise", "model=%s version=%lld loaded=%d recorded=0 why=\"%s\"", l->model,
               (long long)l->version, l->loaded, op->why.text);
    notify(l->waits, deleted && !l->loaded ? PD_OK : op->err, &op->why);
    l->waits = NULL;
    if (!l->loaded || !deleted)
        return;
    /* deleted after its load had begun: it must not be served */
    pthread_mutex_lock(&s->lock);
    m = model_find(s, l->model, l->version);
    pthread_mutex_unlock(&s->lock);
    pd_log(PD_LOG_WARNING, "supervise", "model=%s version=%lld unloading=1 why=\"the version was deleted\"",
           l->model, (long long)l->version);
    if (m && m->state == SUP_MODEL_READY)
        model_unload(s, m);
}

static void loaded_release(struct loop_op *op)
{
    free(((struct loaded_op *)op)->model);
}

void model_write_loaded(struct serving *s, struct model *m, bool loaded)
{
    struct load_wait *waits = take_waits(s, loaded ? &m->loads : &m->unloads);
    struct loaded_op *l = calloc(1, sizeof *l);
    struct pd_why why;

    if (l)
        l->model = strdup(m->name);
    if (!l || !l->model) {
        free(l);
        pd_fail(&why, PD_ERR_NOMEM, "no memory to record what is loaded");
        notify(waits, PD_ERR_NOMEM, &why);
        return;
    }
    l->op.apply = loaded_apply;
    l->op.owner = s;
    l->op.done = loaded_done;
    l->op.release = loaded_release;
    l->version = m->version;
    l->loaded = loaded;
    l->waits = waits;
    l->next = s->records;
    s->records = l;
    loop_write(s->loop, &l->op);
}

bool model_await_record(struct serving *s, const char *model, int64_t version, bool loaded,
                        struct load_wait *wait)
{
    for (struct loaded_op *l = s->records; l; l = l->next)
        if (l->loaded == loaded && l->version == version && strcmp(l->model, model) == 0) {
            wait->next = l->waits;
            l->waits = wait;
            return true;
        }
    return false;
}

int64_t model_next_record(const struct serving *s, const char *model, int64_t after, bool loaded)
{
    int64_t found = 0;

    for (const struct loaded_op *l = s->records; l; l = l->next)
        if (l->loaded == loaded && l->version > after && (!found || l->version < found) &&
            strcmp(l->model, model) == 0)
            found = l->version;
    return found;
}

void model_answer_unrecorded(struct serving *s)
{
    struct pd_why health, why;
    enum pd_err err = s->records ? store_writer_health(loop_writer(s->loop), &health) : PD_OK;

    for (struct loaded_op *l = s->records; err != PD_OK && l; l = l->next) {
        struct load_wait *waits = l->waits;

        l->waits = NULL;
        pd_fail(&why, err, "the version is %s, but that is recorded only when the store can write: %s",
                l->loaded ? "loaded" : "unloaded", health.text);
        notify(waits, err, &why);
    }
}
