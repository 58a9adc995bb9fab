/* daemon/train/run.c: the loop.
 *
 * Between two steps lies a boundary, and everything happens there in one order: points of the step,
 * evaluation, probe, checkpoint, stop. A checkpoint holds the state at a boundary, so a run that goes on from
 * it meets the same steps, evaluations and probes as one that never stopped. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/train/checkpoint.h"
#include "daemon/train/setup.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

#define POINTS_MAX 1000
#define POINTS_FLUSH 900    /* leaves room for one boundary's smaller groups */
#define FLUSH_US 500000     /* points are at most this old when they leave */
#define LOG_US 5000000      /* a line in the log at least this often */
#define CHECKPOINTS_MAX 256 /* files kept account of in the run's directory */
#define STATS 5

static const char *const stat_keys[STATS] = {"attn/fro", "attn/jac_fro", "attn/jac_q_fro", "logit/std",
                                             "logit/max"};
static const char *const stat_outputs[STATS] = {"fro", "jac_fro", "jac_q_fro", "logit_std", "logit_max"};
enum { STAT_LOGIT_MAX = 4 };

/* A planned graph with the memory of its inputs and states. */
struct stage {
    struct pk_graph *graph;
    struct pk_exec *exec;
    void **memory; /* per leaf; NULL where it is not ours (parameters) */
    size_t leaves;
};

struct kept {
    int64_t step;
    double score; /* NaN: not measured at that step */
};

struct run {
    struct spec_config *config;
    const struct train_dirs *dirs;
    const struct train_host *host;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct train_setup setup;
    struct model_store *store;
    struct stage train, eval, probe;
    struct data_loader *loader;
    struct train_state state;
    struct train_tensor *tensors; /* what a checkpoint holds */
    char (*names)[80];
    size_t tensor_count;
    struct data_st_meta_item meta[MODEL_META_ITEMS + 24];
    size_t meta_count;
    char *meta_text, own_text[24][40];
    size_t own_count;
    struct kept kept[CHECKPOINTS_MAX]; /* ascending steps */
    size_t kept_count;
    int64_t saved_step; /* -1: nothing saved or loaded */
    int64_t saved_us;
    struct train_point points[POINTS_MAX];
    size_t point_count;
    int64_t flushed_us, logged_us;
    double busy_us; /* spent in steps since the last flush */
    int64_t busy_steps;
    char (*keys)[40]; /* per layer: STATS + 1 names, each for the mean and for every head */
    double *numbers;  /* scratch for outputs and learned scales */
    bool cancelled;
    struct train_outcome *out;
};

const char *train_result_name(enum train_result result)
{
    static const char *const names[] = {"done", "diverged", "stopped", "cancelled", "failed"};

    return result <= TRAIN_FAILED ? names[result] : "unknown";
}

/* ---- saying things ---- */

static void say(struct run *r, const char *kind, const char *fields, const char *text)
{
    if (r->host->event)
        r->host->event(r->host->user, kind, text, fields);
}

static void note(struct run *r, const char *fmt, ...) PD_PRINTF(2, 3);
static void note(struct run *r, const char *fmt, ...)
{
    char line[512];
    va_list args;

    if (!r->host->log)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    r->host->log(r->host->user, line);
}

static void push(struct run *r, const char *key, double value)
{
    if (r->point_count == POINTS_MAX) {
        if (r->host->metrics)
            r->host->metrics(r->host->user, r->points, r->point_count);
        r->point_count = 0;
    }
    r->points[r->point_count++] = (struct train_point){
        .key = key, .step = r->state.step, .wall_us = pd_clock_wall_us(), .value = value};
}

static void flush(struct run *r)
{
    int64_t now = pd_clock_mono_us();

    if (r->busy_steps) {
        double per_step = r->busy_us / (double)r->busy_steps;
        int64_t units = (int64_t)r->setup.batch * (r->setup.classifier ? 1 : r->setup.context);

        push(r, "step_ms", per_step / 1000);
        push(r, r->setup.classifier ? "samples_per_s" : "tokens_per_s", (double)units * 1e6 / per_step);
        if (now - r->logged_us >= LOG_US) {
            note(r, "step %lld/%lld loss %.4f %.1f ms/step", (long long)r->state.step,
                 (long long)r->setup.steps, r->state.loss_train, per_step / 1000);
            r->logged_us = now;
        }
        r->busy_us = 0;
        r->busy_steps = 0;
    }
    if (r->point_count && r->host->metrics)
        r->host->metrics(r->host->user, r->points, r->point_count);
    r->point_count = 0;
    if (r->host->progress)
        r->host->progress(r->host->user, r->state.step, r->setup.steps);
    r->flushed_us = now;
}

/* ---- stages ---- */

static void stage_done(struct run *r, struct stage *s)
{
    for (size_t i = 0; s->memory && i < s->leaves; i++)
        if (s->memory[i])
            r->api->free(r->backend, s->memory[i]);
    free(s->memory);
    s->memory = NULL;
    s->exec = pk_exec_free(s->exec);
    s->graph = pk_graph_free(s->graph);
}

/* Plans s->graph, allocates its inputs and states (zeroed), binds everything. */
static enum pd_err stage_init(struct run *r, struct stage *s, struct pd_why *why)
{
    enum pd_err err = pk_exec_new(s->graph, r->api, r->backend, &s->exec, why);

    if (err != PD_OK)
        return err;
    s->leaves = pk_graph_leaf_count(s->graph);
    s->memory = calloc(s->leaves + 1, sizeof *s->memory);
    if (!s->memory)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    err = model_store_bind(r->store, s->exec, s->graph, why);
    for (size_t i = 0; i < s->leaves && err == PD_OK; i++) {
        struct pk_leaf leaf = pk_graph_leaf(s->graph, i);
        void *zero;

        if (leaf.kind == PK_OP_PARAM)
            continue;
        s->memory[i] = r->api->alloc(r->backend, leaf.bytes);
        zero = calloc(1, leaf.bytes + 1);
        if (!s->memory[i] || !zero)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s' (%zu bytes)", leaf.name, leaf.bytes);
        else
            err = r->api->upload(r->backend, s->memory[i], zero, leaf.bytes, why);
        free(zero);
        if (err == PD_OK)
            err = pk_exec_bind(s->exec, leaf.name, s->memory[i], why);
    }
    return err;
}

static size_t leaf_index(const struct stage *s, const char *name)
{
    for (size_t i = 0; i < s->leaves; i++)
        if (!strcmp(pk_graph_leaf(s->graph, i).name, name))
            return i;
    return s->leaves;
}

/* Copies a batch's part to an input; pictures are widened where the graph computes in f64. A leaf that the
 * graph does not have (a probe needs no target) is no error. */
static enum pd_err feed(struct run *r, struct stage *s, const char *name, const void *from,
                        struct pd_why *why)
{
    size_t i = leaf_index(s, name);
    struct pk_leaf leaf;

    if (i == s->leaves)
        return PD_OK;
    leaf = pk_graph_leaf(s->graph, i);
    if (leaf.dtype == PK_F64) {
        size_t count = leaf.bytes / sizeof(double);
        double *wide = malloc(leaf.bytes);
        enum pd_err err;

        if (!wide)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
        for (size_t k = 0; k < count; k++)
            wide[k] = ((const float *)from)[k];
        err = r->api->upload(r->backend, s->memory[i], wide, leaf.bytes, why);
        free(wide);
        return err;
    }
    return r->api->upload(r->backend, s->memory[i], from, leaf.bytes, why);
}

static enum pd_err feed_hyper(struct run *r, const double hyper[4], struct pd_why *why)
{
    size_t i = leaf_index(&r->train, "hyper");
    float narrow[4] = {(float)hyper[0], (float)hyper[1], (float)hyper[2], (float)hyper[3]};
    bool wide = model_spec(r->setup.model)->dtype == PK_F64;

    return r->api->upload(r->backend, r->train.memory[i], wide ? (const void *)hyper : narrow,
                          wide ? 4 * sizeof *hyper : sizeof narrow, why);
}

static enum pd_err feed_batch(struct run *r, struct stage *s, const struct data_batch *b, struct pd_why *why)
{
    enum pd_err err = feed(r, s, "input", r->setup.classifier ? (const void *)b->images : b->tokens, why);

    return err == PD_OK ? feed(r, s, "target", b->targets, why) : err;
}

/* Reads `count` numbers of an output as double. */
static enum pd_err number(struct run *r, struct stage *s, const char *name, double *to, size_t count,
                          struct pd_why *why)
{
    float narrow[64];
    enum pd_err err = PD_OK;

    if (model_spec(r->setup.model)->dtype == PK_F64)
        return pk_exec_read(s->exec, name, to, count * sizeof *to, why);
    if (count <= 64) {
        err = pk_exec_read(s->exec, name, narrow, count * sizeof *narrow, why);
        for (size_t i = 0; err == PD_OK && i < count; i++)
            to[i] = narrow[i];
    } else {
        float *f = malloc(count * sizeof *f);

        if (!f)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
        err = pk_exec_read(s->exec, name, f, count * sizeof *f, why);
        for (size_t i = 0; err == PD_OK && i < count; i++)
            to[i] = f[i];
        free(f);
    }
    return err;
}

/* ---- checkpoints ---- */

static enum pd_err get(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why)
{
    struct run *r = user;

    return r->api->download(r->backend, to, memory, bytes, why);
}

static void add_tensor(struct run *r, const char *prefix, const char *name, const struct pk_shape *shape,
                       void *memory)
{
    enum pk_dtype dtype = model_spec(r->setup.model)->dtype;
    struct train_tensor *t = &r->tensors[r->tensor_count];

    snprintf(r->names[r->tensor_count], sizeof r->names[0], "%s%s", prefix, name);
    t->st.name = r->names[r->tensor_count];
    t->st.dtype = dtype == PK_F64 ? DATA_ST_F64 : DATA_ST_F32;
    t->st.rank = shape->rank;
    memcpy(t->st.dim, shape->dim, sizeof t->st.dim);
    t->st.count = (uint64_t)pk_shape_count(shape);
    t->st.bytes = t->st.count * pk_dtype_size(dtype);
    t->memory = memory;
    r->tensor_count++;
}

_Static_assert(DATA_ST_RANK_LIMIT == PK_MAX_RANK, "shapes are copied whole");

static void add_meta(struct run *r, const char *key, const char *fmt, ...) PD_PRINTF(3, 4);
static void add_meta(struct run *r, const char *key, const char *fmt, ...)
{
    char *to = r->own_text[r->own_count++];
    va_list args;

    va_start(args, fmt);
    vsnprintf(to, sizeof r->own_text[0], fmt, args);
    va_end(args);
    r->meta[r->meta_count++] = (struct data_st_meta_item){key, to};
}

static enum pd_err prepare_checkpoints(struct run *r, struct pd_why *why)
{
    const struct data_info *d = r->setup.info;
    size_t params = model_param_count(r->setup.model);
    enum pd_err err;

    r->tensors = calloc(params + r->train.leaves, sizeof *r->tensors);
    r->names = calloc(params + r->train.leaves, sizeof *r->names);
    if (!r->tensors || !r->names)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    for (size_t i = 0; i < params; i++) {
        const struct model_param *p = model_param(r->setup.model, i);

        add_tensor(r, "", p->name, &p->shape, model_store_data(r->store, i));
    }
    for (size_t i = 0; i < r->train.leaves; i++) {
        struct pk_leaf leaf = pk_graph_leaf(r->train.graph, i);

        if (leaf.kind == PK_OP_STATE) /* "m/<name>" becomes "optim.m.<name>" */
            add_tensor(r, leaf.name[0] == 'm' ? "optim.m." : "optim.v.", leaf.name + 2, &leaf.shape,
                       r->train.memory[i]);
    }
    err = model_spec_to_meta(model_spec(r->setup.model), r->meta, &r->meta_count, &r->meta_text, why);
    if (err != PD_OK)
        return err;
    r->meta[r->meta_count++] = (struct data_st_meta_item){"polyd.course", r->setup.digest};
    add_meta(r, "polyd.seed", "%lld", (long long)r->config->train.seed);
    add_meta(r, "polyd.optimizer", "%s", r->setup.options.optimizer == MODEL_MSGDW ? "msgdw" : "adamw");
    add_meta(r, "polyd.best_metric", "%s", r->setup.classifier ? "acc/val" : "loss/val");
    add_meta(r, "polyd.data.kind", "%s", r->setup.classifier ? "images" : "tokens");
    add_meta(r, "polyd.data.mean", "%.9g", (double)d->mean);
    add_meta(r, "polyd.data.std", "%.9g", (double)d->std);
    return PD_OK;
}

static void checkpoint_path(struct run *r, int64_t step, char *out, size_t size)
{
    char name[TRAIN_CHECKPOINT_NAME_SIZE];

    snprintf(out, size, "%s/%s", r->dirs->checkpoints, train_checkpoint_name(name, step));
}

/* Whether a is better than b; a NaN is never better. */
static bool better(const struct run *r, double a, double b)
{
    if (isnan(a))
        return false;
    return isnan(b) || (r->setup.classifier ? a > b : a < b);
}

/* Removes what retention does not keep: the newest `latest`, and of the scored ones the `best`. */
static void prune(struct run *r, int64_t latest)
{
    bool keep[CHECKPOINTS_MAX] = {false}, chosen[CHECKPOINTS_MAX] = {false};
    size_t left = 0;

    for (size_t i = 0; i < r->kept_count; i++)
        keep[i] = (int64_t)(r->kept_count - i) <= latest;
    for (int64_t n = 0; n < r->config->train.keep_best && n < CHECKPOINTS_MAX; n++) {
        size_t best = r->kept_count;

        /* The n-th best: better than all not yet chosen; earlier wins a tie. */
        for (size_t i = 0; i < r->kept_count; i++)
            if (!chosen[i] && (best == r->kept_count ? !isnan(r->kept[i].score)
                                                     : better(r, r->kept[i].score, r->kept[best].score)))
                best = i;
        if (best == r->kept_count)
            break;
        keep[best] = chosen[best] = true;
    }
    for (size_t i = 0; i < r->kept_count; i++) {
        char path[1024], fields[1100];

        if (keep[i]) {
            r->kept[left++] = r->kept[i];
            continue;
        }
        checkpoint_path(r, r->kept[i].step, path, sizeof path);
        if (unlink(path) == 0 || errno == ENOENT) {
            snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)r->kept[i].step, path);
            say(r, "checkpoint_removed", fields, "beyond what train.keep asks for");
        } else {
            r->kept[left++] = r->kept[i];
        }
    }
    r->kept_count = left;
}

static enum pd_err save(struct run *r, struct pd_why *why)
{
    struct train_checkpoint_info info = {0};
    struct train_file_info file;
    char path[1024];
    enum pd_err err;

    flush(r);
    checkpoint_path(r, r->state.step, path, sizeof path);
    err = train_checkpoint_write(path, r->tensors, r->tensor_count, &r->state, r->meta, r->meta_count, get, r,
                                 &file, why);
    if (err != PD_OK)
        return err;
    r->saved_step = r->state.step;
    r->saved_us = pd_clock_mono_us();
    if (r->kept_count && r->kept[r->kept_count - 1].step == r->state.step)
        r->kept_count--;
    if (r->kept_count == CHECKPOINTS_MAX) {
        memmove(r->kept, r->kept + 1, (CHECKPOINTS_MAX - 1) * sizeof *r->kept);
        r->kept_count--;
    }
    r->kept[r->kept_count++] = (struct kept){r->state.step, r->state.score};
    info.path = path;
    info.step = r->state.step;
    info.bytes = file.bytes;
    memcpy(info.sha256, file.sha256, sizeof info.sha256);
    info.best = r->state.best_step == r->state.step;
    info.metric = r->setup.classifier ? "acc/val" : "loss/val";
    info.value = r->state.score;
    if (r->host->checkpoint_written)
        r->host->checkpoint_written(r->host->user, &info);
    /* One more than asked for while training: should the newest be damaged, there is one to fall back to. */
    prune(r, r->config->train.keep_latest + 1);
    return PD_OK;
}

/* A checkpoint that may fail without ending the run: it is said, and tried again when the next is due. */
static void try_save(struct run *r)
{
    struct pd_why why;
    char fields[64];

    if (save(r, &why) == PD_OK)
        return;
    snprintf(fields, sizeof fields, "step=%lld", (long long)r->state.step);
    say(r, "checkpoint_failed", fields, why.text);
    note(r, "checkpoint failed: %s", why.text);
    r->saved_us = pd_clock_mono_us();
}

static enum pd_err load_file(struct run *r, const char *path, struct pd_why *why)
{
    struct train_state state;
    struct data_st *st = NULL;
    const char *course;
    enum pd_err err = train_checkpoint_open(path, &st, &state, why);

    if (err != PD_OK)
        return err;
    course = data_st_meta(st, "polyd.course");
    if (!course || strcmp(course, r->setup.digest))
        err =
            pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run of another configuration or data set", path);
    else if (state.step > r->setup.steps)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is at step %lld of %lld", path, (long long)state.step,
                      (long long)r->setup.steps);
    for (size_t i = model_param_count(r->setup.model); i < r->tensor_count && err == PD_OK; i++) {
        const struct train_tensor *t = &r->tensors[i];
        const struct data_st_tensor *from = data_st_find(st, t->st.name);

        if (!from || from->dtype != t->st.dtype || from->bytes != t->st.bytes)
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s' lacks '%s'", path, t->st.name);
        else
            err = r->api->upload(r->backend, t->memory, from->data, (size_t)from->bytes, why);
    }
    if (err == PD_OK)
        err = model_store_read(r->store, st, why);
    data_st_free(st);
    if (err == PD_OK)
        r->state = state;
    return err;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const struct kept *)a)->step, y = ((const struct kept *)b)->step;

    return x < y ? -1 : x > y;
}

/* Lists the run's own checkpoints, oldest first, and clears temporary files that a kill left. */
static enum pd_err list_checkpoints(struct run *r, struct pd_why *why)
{
    DIR *dir;
    struct dirent *e;
    enum pd_err err = pd_file_make_dirs(r->dirs->checkpoints, why);

    if (err != PD_OK)
        return err;
    dir = opendir(r->dirs->checkpoints);
    if (!dir)
        return pd_fail_errno(why, errno, "cannot read '%s'", r->dirs->checkpoints);
    while ((e = readdir(dir))) {
        size_t n = strlen(e->d_name);
        char path[1024];

        if (n > 4 && !strncmp(e->d_name, "step-", 5) && !strcmp(e->d_name + n - 4, ".tmp") &&
            snprintf(path, sizeof path, "%s/%s", r->dirs->checkpoints, e->d_name) < (int)sizeof path) {
            (void)unlink(path);
        } else if (train_checkpoint_step(e->d_name) >= 0 && r->kept_count < CHECKPOINTS_MAX) {
            r->kept[r->kept_count++] = (struct kept){train_checkpoint_step(e->d_name), (double)NAN};
        }
    }
    closedir(dir);
    qsort(r->kept, r->kept_count, sizeof *r->kept, by_step);
    return PD_OK;
}

/* Loads the wanted or newest good checkpoint, or starts from the seed. */
static enum pd_err load(struct run *r, struct pd_why *why)
{
    char path[1024], fields[1200];
    struct pd_why reason;
    bool asked = r->dirs->start != NULL;
    enum pd_err err = list_checkpoints(r, why);
    int64_t bound = INT64_MAX;

    if (err != PD_OK)
        return err;
    for (size_t i = 0; i < r->kept_count; i++) { /* scores decide what is kept as best */
        struct train_state state;
        struct data_st *st = NULL;

        checkpoint_path(r, r->kept[i].step, path, sizeof path);
        if (train_checkpoint_open(path, &st, &state, NULL) == PD_OK)
            r->kept[i].score = state.score;
        data_st_free(st);
    }
    for (size_t left = r->kept_count;; asked = false) {
        if (asked)
            snprintf(path, sizeof path, "%s", r->dirs->start);
        else if (left)
            checkpoint_path(r, r->kept[--left].step, path, sizeof path);
        else
            break;
        if (!asked && r->kept[left].step > bound)
            continue; /* newer than the one that was asked for */
        err = load_file(r, path, &reason);
        if (err == PD_OK) {
            snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)r->state.step, path);
            say(r, "resume", fields, "going on from a checkpoint");
            note(r, "resume from %s at step %lld", path, (long long)r->state.step);
            r->saved_step = r->state.step;
            return PD_OK;
        }
        if (err == PD_ERR_CONFLICT || err == PD_ERR_VERSION || err == PD_ERR_NOMEM)
            return pd_fail(why, err, "%s", reason.text);
        snprintf(fields, sizeof fields, "path=%s", path);
        say(r, "checkpoint_fallback", fields, reason.text);
        note(r, "checkpoint unusable, trying an older one: %s", reason.text);
        if (asked) {
            const char *name = strrchr(path, '/');
            int64_t step = train_checkpoint_step(name ? name + 1 : path);

            bound = step >= 0 ? step - 1 : bound;
        }
    }
    say(r, "start", "step=0", "starting from the seed");
    return model_store_init(r->store, (uint64_t)r->config->train.seed, why);
}

/* Forgets checkpoints of steps that this course has not reached: they will be written again. */
static void forget_later(struct run *r)
{
    while (r->kept_count && r->kept[r->kept_count - 1].step > r->state.step) {
        int64_t step = r->kept[--r->kept_count].step;
        char path[1024], fields[1100];

        checkpoint_path(r, step, path, sizeof path);
        (void)unlink(path);
        snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)step, path);
        say(r, "checkpoint_removed", fields, "newer than the checkpoint that the run goes on from");
    }
}

/* ---- measuring ---- */

static enum pd_err evaluate(struct run *r, bool *ret_abandoned, struct pd_why *why)
{
    struct data_loader *l = NULL;
    const struct data_batch *b;
    double loss = 0, count = 0, correct = 0, x[3];
    bool was_best = false;
    enum pd_err err = data_loader_start(r->setup.set, DATA_VAL, r->setup.eval_batch, 0, 0, &l, why);

    *ret_abandoned = false;
    while (err == PD_OK) {
        enum train_stop stop = r->host->stop(r->host->user);

        if (stop != TRAIN_STOP_NONE) {
            *ret_abandoned = true;
            r->cancelled = stop == TRAIN_STOP_CANCEL;
            break;
        }
        err = data_loader_next(l, &b, why);
        if (err != PD_OK || !b->used)
            break;
        err = feed_batch(r, &r->eval, b, why);
        if (err == PD_OK)
            err = pk_exec_run(r->eval.exec, why);
        if (err == PD_OK)
            err = number(r, &r->eval, "loss_sum", &x[0], 1, why);
        if (err == PD_OK)
            err = number(r, &r->eval, "count", &x[1], 1, why);
        if (err == PD_OK)
            err = number(r, &r->eval, "correct", &x[2], 1, why);
        loss += x[0];
        count += x[1];
        correct += x[2];
    }
    data_loader_free(l);
    if (err != PD_OK || *ret_abandoned)
        return err;
    r->state.loss_val = loss / count;
    r->state.metric_val = r->setup.classifier ? correct / count : exp(r->state.loss_val);
    r->state.score = r->setup.classifier ? r->state.metric_val : r->state.loss_val;
    was_best = better(r, r->state.score, r->state.best_value);
    if (was_best) {
        r->state.best_value = r->state.score;
        r->state.best_step = r->state.step;
    }
    push(r, "loss/val", r->state.loss_val);
    push(r, r->setup.classifier ? "acc/val" : "ppl/val", r->state.metric_val);
    note(r, "step %lld loss/val %.4f %s %.4f%s", (long long)r->state.step, r->state.loss_val,
         r->setup.classifier ? "acc/val" : "ppl/val", r->state.metric_val, was_best ? " best" : "");
    return PD_OK;
}

static enum pd_err prepare_probe(struct run *r, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    size_t heads = (size_t)m->heads, per_layer = (STATS + 1) * (heads + 1), need;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum pd_err err;

    r->keys = calloc((size_t)m->depth * per_layer, sizeof *r->keys);
    need = (size_t)r->setup.probe_batch * heads;
    r->numbers = calloc(need > heads ? need : heads, sizeof *r->numbers);
    if (!r->keys || !r->numbers)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the probe");
    for (int32_t layer = 0; layer < m->depth; layer++)
        for (size_t k = 0; k <= STATS; k++)
            for (size_t h = 0; h <= heads; h++) {
                char *key = r->keys[(size_t)layer * per_layer + k * (heads + 1) + h];
                const char *base = k == STATS ? "scale/c" : stat_keys[k];

                if (h)
                    snprintf(key, sizeof r->keys[0], "%s/%d/%zu", base, layer + 1, h);
                else
                    snprintf(key, sizeof r->keys[0], "%s/%d", base, layer + 1);
            }
    /* The first validation samples, always the same. */
    err = data_loader_start(r->setup.set, DATA_VAL, r->setup.probe_batch, 0, 0, &l, why);
    if (err == PD_OK)
        err = data_loader_next(l, &b, why);
    if (err == PD_OK)
        err = feed_batch(r, &r->probe, b, why);
    data_loader_free(l);
    return err;
}

/* The scale(s) in force in a layer: count numbers into r->numbers. */
static enum pd_err read_scale(struct run *r, int32_t layer, size_t *ret_count, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    char prefix[64];

    *ret_count = 1;
    r->numbers[0] = m->scale_value;
    if (m->scale != MODEL_SCALE_LEARNED)
        return PD_OK;
    snprintf(prefix, sizeof prefix,
             m->arch == MODEL_VIT ? "blocks.%d.attn.attn_scale" : "transformer.h.%d.attn.attn_scale", layer);
    if (m->share == MODEL_SHARE_GLOBAL)
        snprintf(prefix, sizeof prefix, "attn_scale");
    for (size_t i = 0; i < model_param_count(r->setup.model); i++) {
        const struct model_param *p = model_param(r->setup.model, i);
        size_t count = (size_t)pk_shape_count(&p->shape);
        float narrow[65536 / 64];
        enum pd_err err;

        if (p->role != MODEL_ROLE_SCALE || strncmp(p->name, prefix, strlen(prefix)))
            continue;
        if (count > sizeof narrow / sizeof narrow[0])
            return pd_fail(why, PD_ERR_LIMIT, "more heads than the probe can show");
        if (m->dtype == PK_F64) {
            err = r->api->download(r->backend, r->numbers, model_store_data(r->store, i),
                                   count * sizeof(double), why);
        } else {
            err = r->api->download(r->backend, narrow, model_store_data(r->store, i), count * sizeof *narrow,
                                   why);
            for (size_t k = 0; k < count; k++)
                r->numbers[k] = narrow[k];
        }
        for (size_t k = 0; k < count; k++) {
            if (m->scale_param == MODEL_PARAM_LOG)
                r->numbers[k] = exp(r->numbers[k]);
            else if (m->scale_param == MODEL_PARAM_SOFTPLUS)
                r->numbers[k] = log1p(exp(r->numbers[k]));
        }
        *ret_count = count;
        return err;
    }
    return pd_fail(why, PD_ERR_INTERNAL, "no learned scale in layer %d", layer);
}

static enum pd_err probe(struct run *r, struct pd_why *why)
{
    const struct model_spec *m = model_spec(r->setup.model);
    size_t heads = (size_t)m->heads, batch = (size_t)r->setup.probe_batch,
           per_layer = (STATS + 1) * (heads + 1);
    enum pd_err err = pk_exec_run(r->probe.exec, why);

    for (int32_t layer = 0; layer < m->depth && err == PD_OK; layer++) {
        char(*keys)[40] = r->keys + (size_t)layer * per_layer;
        size_t count;

        for (size_t k = 0; k < STATS && err == PD_OK; k++) {
            double total = 0, largest = -INFINITY;
            char name[40];

            snprintf(name, sizeof name, "%s/%d", stat_outputs[k], layer + 1);
            err = number(r, &r->probe, name, r->numbers, batch * heads, why); /* (B, H) */
            for (size_t h = 0; h < heads && err == PD_OK; h++) {
                double sum = 0, most = -INFINITY, shown;

                for (size_t b = 0; b < batch; b++) {
                    sum += r->numbers[b * heads + h];
                    most = r->numbers[b * heads + h] > most || isnan(r->numbers[b * heads + h])
                               ? r->numbers[b * heads + h]
                               : most;
                }
                total += sum;
                largest = most > largest || isnan(most) ? most : largest;
                shown = k == STAT_LOGIT_MAX ? most : sum / (double)batch;
                push(r, keys[k * (heads + 1) + h + 1], shown);
            }
            if (err == PD_OK)
                push(r, keys[k * (heads + 1)],
                     k == STAT_LOGIT_MAX ? largest : total / (double)(batch * heads));
        }
        if (err == PD_OK && m->phi != PK_PHI_SOFTMAX) {
            double sum = 0;

            err = read_scale(r, layer, &count, why);
            for (size_t h = 0; h < count && err == PD_OK; h++) {
                sum += r->numbers[h];
                if (count > 1)
                    push(r, keys[STATS * (heads + 1) + h + 1], r->numbers[h]);
            }
            if (err == PD_OK)
                push(r, keys[STATS * (heads + 1)], sum / (double)count);
        }
    }
    return err;
}

/* ---- stepping ---- */

static enum pd_err step(struct run *r, struct pd_why *why)
{
    const struct model_train_options *o = &r->setup.options;
    const struct data_batch *b;
    int64_t began = pd_clock_mono_us();
    double lr = train_schedule_lr(&r->setup.schedule, r->state.step), t = (double)(r->state.applied + 1);
    double loss, count, correct, norm, applied;
    double hyper[4];
    enum pd_err err = data_loader_next(r->loader, &b, why);

    if (err == PD_OK)
        err = feed_batch(r, &r->train, b, why);
    if (err != PD_OK)
        return err;
    hyper[0] = lr;
    hyper[1] = -expm1(t * log(o->beta1)); /* 1 - beta1^t without cancellation */
    hyper[2] = -expm1(t * log(o->beta2));
    hyper[3] = r->state.applied == 0;
    if (o->optimizer == MODEL_MSGDW)
        hyper[1] = hyper[2] = 1;
    err = feed_hyper(r, hyper, why);
    if (err == PD_OK)
        err = pk_exec_run(r->train.exec, why);
    if (err == PD_OK)
        err = number(r, &r->train, "loss", &loss, 1, why);
    if (err == PD_OK)
        err = number(r, &r->train, "grad_norm", &norm, 1, why);
    if (err == PD_OK)
        err = number(r, &r->train, "applied", &applied, 1, why);
    if (err == PD_OK && r->setup.classifier)
        err = number(r, &r->train, "count", &count, 1, why);
    if (err == PD_OK && r->setup.classifier)
        err = number(r, &r->train, "correct", &correct, 1, why);
    if (err != PD_OK)
        return err;
    r->state.step++;
    r->state.loss_train = loss;
    r->state.score = (double)NAN;
    push(r, "loss/train", loss);
    if (r->setup.classifier)
        push(r, "acc/train", correct / count);
    push(r, "lr", lr);
    push(r, "grad/norm", norm);
    if (applied != 0) {
        r->state.applied++;
        r->state.consecutive = 0;
    } else {
        r->state.nonfinite++;
        r->state.consecutive++;
        push(r, "nonfinite", (double)r->state.nonfinite);
        if (r->state.consecutive == 1) {
            char fields[64];

            snprintf(fields, sizeof fields, "step=%lld", (long long)r->state.step);
            say(r, "nonfinite", fields, "loss or gradient is not finite: the step was skipped");
        }
    }
    r->busy_us += (double)(pd_clock_mono_us() - began);
    r->busy_steps++;
    return PD_OK;
}

static bool checkpoint_due(struct run *r)
{
    const struct spec_train *t = &r->config->train;

    if (r->saved_step == r->state.step)
        return false;
    if (r->host->checkpoint_now && r->host->checkpoint_now(r->host->user))
        return true;
    if (t->checkpoint_every_steps > 0)
        return r->state.step > 0 && r->state.step % t->checkpoint_every_steps == 0;
    return t->checkpoint_every_s > 0 &&
           (double)(pd_clock_mono_us() - r->saved_us) >= t->checkpoint_every_s * 1e6;
}

/* The boundary after a step (or at the start): measures, saves. */
static enum pd_err boundary(struct run *r, bool resumed, struct pd_why *why)
{
    int64_t at = r->state.step, every = r->config->diagnostics.every;
    int64_t best_before = r->state.best_step;
    bool abandoned = false;
    enum pd_err err = PD_OK;

    if (at > 0 && (resumed ? r->state.eval_due : (at % r->setup.eval_every == 0 || at == r->setup.steps))) {
        r->state.eval_due = true;
        err = evaluate(r, &abandoned, why);
        if (err != PD_OK || abandoned)
            return err; /* still due: a checkpoint says so */
        r->state.eval_due = false;
        if (resumed)
            r->saved_step = -1; /* the file still says that the evaluation is due */
    } else if (resumed) {
        return PD_OK; /* all of this boundary was done before it was saved */
    }
    if (every > 0 && at % every == 0)
        err = probe(r, why);
    if (err == PD_OK &&
        (checkpoint_due(r) || (r->state.best_step != best_before && r->config->train.keep_best > 0)))
        try_save(r);
    return err;
}

static enum pd_err loop(struct run *r, struct pd_why *why)
{
    int64_t limit = r->config->train.nonfinite_limit;
    bool resumed = r->saved_step >= 0;
    enum pd_err err = boundary(r, resumed, why);

    while (err == PD_OK) {
        enum train_stop stop = r->cancelled ? TRAIN_STOP_CANCEL : r->host->stop(r->host->user);

        if (stop == TRAIN_STOP_CANCEL) {
            r->out->result = TRAIN_CANCELLED;
            return PD_OK;
        }
        if (stop == TRAIN_STOP_CHECKPOINT) {
            if (r->saved_step != r->state.step)
                err = save(r, why);
            if (err == PD_OK)
                r->out->result = TRAIN_STOPPED;
            return err;
        }
        if (r->state.eval_due) { /* the request to stop was withdrawn */
            err = boundary(r, true, why);
            continue;
        }
        if (r->state.consecutive >= limit) {
            r->out->result = TRAIN_DIVERGED;
            return PD_OK;
        }
        if (r->state.step >= r->setup.steps)
            break;
        err = step(r, why);
        if (err == PD_OK)
            err = boundary(r, false, why);
        if (r->point_count >= POINTS_FLUSH || pd_clock_mono_us() - r->flushed_us >= FLUSH_US)
            flush(r);
    }
    if (err != PD_OK)
        return err;
    if (r->saved_step != r->state.step)
        err = save(r, why);
    if (err == PD_OK) {
        flush(r);
        prune(r, r->config->train.keep_latest > 0 ? r->config->train.keep_latest : 1);
        r->out->result = TRAIN_DONE;
    }
    return err;
}

static enum pd_err open_run(struct run *r, struct pd_why *why)
{
    int threads = r->dirs->threads > 0 ? r->dirs->threads : (int)r->config->resources.threads;
    struct pk_plan_report report;
    double arena = 0;
    enum pd_err err = train_setup_init(&r->setup, r->config, r->dirs->roots, r->dirs->root_count, false, why);

    if (err == PD_OK)
        err = r->api->open(NULL, 0, threads > 0 ? threads : 1, &r->backend, why);
    if (err == PD_OK)
        err = model_store_new(r->setup.model, r->api, r->backend, &r->store, why);
    if (err == PD_OK)
        err = model_graph_train(r->setup.model, &r->setup.options, false, &r->train.graph, why);
    if (err == PD_OK)
        err = stage_init(r, &r->train, why);
    if (err == PD_OK)
        err = model_graph_eval(r->setup.model, r->setup.eval_batch, r->setup.context, &r->eval.graph, why);
    if (err == PD_OK)
        err = stage_init(r, &r->eval, why);
    if (err == PD_OK && r->config->diagnostics.every > 0) {
        err = model_graph_probe(r->setup.model, r->setup.probe_batch, r->setup.context, &r->probe.graph, why);
        if (err == PD_OK)
            err = stage_init(r, &r->probe, why);
        if (err == PD_OK)
            err = prepare_probe(r, why);
    }
    if (err == PD_OK)
        err = prepare_checkpoints(r, why);
    if (err == PD_OK)
        err = load(r, why);
    if (err != PD_OK)
        return err;
    forget_later(r);
    pk_exec_report(r->train.exec, &report);
    arena = (double)report.arena_bytes;
    note(r,
         "%lld parameters, %lld steps of %d, %lld training and %lld validation samples, arena %.1f MiB, %d "
         "threads",
         (long long)model_param_elements(r->setup.model), (long long)r->setup.steps, r->setup.batch,
         (long long)r->setup.info->count[DATA_TRAIN], (long long)r->setup.info->count[DATA_VAL],
         arena / 1048576, threads);
    push(r, "mem/arena", arena);
    return data_loader_start(r->setup.set, DATA_TRAIN, r->setup.batch, (uint64_t)r->config->train.seed,
                             r->state.step, &r->loader, why);
}

static void close_run(struct run *r)
{
    data_loader_free(r->loader);
    stage_done(r, &r->probe);
    stage_done(r, &r->eval);
    stage_done(r, &r->train);
    model_store_free(r->store);
    if (r->backend)
        r->api->close(r->backend);
    train_setup_done(&r->setup);
    free(r->tensors);
    free(r->names);
    free(r->meta_text);
    free(r->keys);
    free(r->numbers);
}

static void summarise(struct run *r)
{
    struct train_outcome *o = r->out;
    size_t best = r->kept_count;

    o->step = r->state.step;
    o->total = r->setup.steps;
    o->nonfinite = r->state.nonfinite;
    o->loss_train = r->state.loss_train;
    o->loss_val = r->state.loss_val;
    o->metric_val = r->state.metric_val;
    snprintf(o->metric, sizeof o->metric, "%s", r->setup.classifier ? "acc/val" : "ppl/val");
    snprintf(o->best_metric, sizeof o->best_metric, "%s", r->setup.classifier ? "acc/val" : "loss/val");
    o->best_value = r->state.best_value;
    o->best_step = r->state.best_step;
    for (size_t i = 0; i < r->kept_count; i++)
        if (!isnan(r->kept[i].score) &&
            (best == r->kept_count || better(r, r->kept[i].score, r->kept[best].score)))
            best = i;
    if (best < r->kept_count)
        checkpoint_path(r, r->kept[best].step, o->best_path, sizeof o->best_path);
    if (r->kept_count)
        checkpoint_path(r, r->kept[r->kept_count - 1].step, o->latest_path, sizeof o->latest_path);
}

static enum train_stop never(void *user)
{
    (void)user;
    return TRAIN_STOP_NONE;
}

enum pd_err train_run_on(struct spec_config *config, const struct train_dirs *dirs,
                         const struct train_host *host, const struct pk_backend_api *api,
                         struct train_outcome *ret, struct pd_why *why)
{
    static const struct train_state fresh = {.best_step = -1};
    struct train_host own = *host;
    struct run *r = calloc(1, sizeof *r);
    int64_t began = pd_clock_mono_us();
    enum pd_err err;

    memset(ret, 0, sizeof *ret);
    ret->result = TRAIN_FAILED;
    ret->best_step = -1;
    ret->loss_train = ret->loss_val = ret->metric_val = ret->best_value = (double)NAN;
    if (!r)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a run");
    if (!own.stop)
        own.stop = never;
    r->config = config;
    r->dirs = dirs;
    r->host = &own;
    r->api = api;
    r->out = ret;
    r->state = fresh;
    r->state.loss_train = r->state.loss_val = r->state.metric_val = (double)NAN;
    r->state.best_value = r->state.score = (double)NAN;
    r->saved_step = -1;
    r->flushed_us = r->logged_us = r->saved_us = began;
    err = open_run(r, why);
    if (err == PD_OK) {
        err = loop(r, why);
        flush(r);
        summarise(r);
    }
    close_run(r);
    free(r);
    ret->seconds = (double)(pd_clock_mono_us() - began) * 1e-6;
    return err;
}

enum pd_err train_run(struct spec_config *config, const struct train_dirs *dirs,
                      const struct train_host *host, struct train_outcome *ret, struct pd_why *why)
{
    return train_run_on(config, dirs, host, pk_backend_cpu(), ret, why);
}
