/* daemon/worker/train/keep.c: which checkpoints a run writes, keeps, and goes on from. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/train/run.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

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

/* A language model needs its tokenizer wherever it is served: checkpoints carry it, unless it is the bytes.
 */
static enum pd_err keep_tokenizer(struct run *r, struct pd_why *why)
{
    const struct data_tokenizer *t = r->setup.info->tokenizer;
    struct train_tensor *to = &r->tensors[r->tensor_count];
    enum pd_err err;

    if (!t || data_tokenizer_kind(t) == DATA_TOKENIZER_BYTES)
        return PD_OK;
    err = data_tokenizer_save(t, &r->tokenizer, why);
    if (err != PD_OK)
        return err;
    to->st = (struct data_st_tensor){.name = DATA_TOKENIZER_TENSOR,
                                     .dtype = DATA_ST_U8,
                                     .rank = 1,
                                     .dim = {(int64_t)r->tokenizer.len},
                                     .count = r->tokenizer.len,
                                     .bytes = r->tokenizer.len,
                                     .data = r->tokenizer.data};
    r->tensor_count++;
    return PD_OK;
}

/* Names of the classes, a line each. */
static enum pd_err keep_classes(struct run *r, struct pd_why *why)
{
    const struct data_info *d = r->setup.info;
    struct pd_buf text;

    if (!d->class_names)
        return PD_OK;
    pd_buf_init(&text, 0);
    for (int32_t i = 0; i < d->classes; i++)
        pd_buf_printf(&text, "%s%s", i ? "\n" : "", d->class_names[i]);
    if (pd_buf_err(&text) != PD_OK) {
        pd_buf_done(&text);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    }
    r->class_text = pd_buf_take(&text);
    r->meta[r->meta_count++] = (struct data_st_meta_item){"polyd.data.classes", r->class_text};
    return PD_OK;
}

enum pd_err train_keep_prepare(struct run *r, struct pd_why *why)
{
    /* what is saved of the states; sums of gradients live within a step */
    struct {
        const char *state, *prefix;
    } kinds[MODEL_STATES_MAX + 1];
    const struct optim *o = r->setup.optim;
    size_t kind_count = 0;
    const struct data_info *d = r->setup.info;
    size_t params = model_param_count(r->setup.model);
    enum pd_err err;

    r->tensors = calloc((MODEL_STATES_MAX + 2) * params + r->train.leaves + 1, sizeof *r->tensors);
    r->names = calloc((MODEL_STATES_MAX + 2) * params + r->train.leaves + 1, sizeof *r->names);
    if (!r->tensors || !r->names)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    for (; kind_count < (size_t)o->graph.states; kind_count++) {
        kinds[kind_count].state = o->graph.state[kind_count].prefix;
        kinds[kind_count].prefix = o->saved[kind_count];
    }
    if (r->setup.options.ema > 0) {
        kinds[kind_count].state = "ema/";
        kinds[kind_count++].prefix = "ema.";
    }
    for (size_t i = 0; i < params; i++) {
        const struct model_param *p = model_param(r->setup.model, i);

        add_tensor(r, "", p->name, &p->shape, model_store_data(r->store, i));
    }
    if (r->setup.options.zero) { /* all moments, whoever keeps them: every rank has the same list */
        for (size_t k = 0; k < kind_count; k++)
            for (size_t i = 0; i < params; i++) {
                const struct model_param *p = model_param(r->setup.model, i);
                char name[80];

                snprintf(name, sizeof name, "%s%s", kinds[k].state, p->name);
                add_tensor(r, kinds[k].prefix, p->name, &p->shape, train_stage_memory(&r->train, name));
            }
    } else {
        for (size_t i = 0; i < r->train.leaves; i++) {
            struct pk_leaf leaf = pk_graph_leaf(r->train.graph, i);

            for (size_t k = 0; leaf.kind == PK_OP_STATE && k < kind_count; k++)
                if (!strncmp(leaf.name, kinds[k].state, strlen(kinds[k].state)))
                    add_tensor(r, kinds[k].prefix, leaf.name + strlen(kinds[k].state), &leaf.shape,
                               r->train.memory[i]);
        }
    }
    err = keep_tokenizer(r, why);
    if (err != PD_OK)
        return err;
    err = model_spec_to_meta(model_spec(r->setup.model), false, r->meta, &r->meta_count, &r->meta_text, why);
    if (err != PD_OK)
        return err;
    r->meta[r->meta_count++] = (struct data_st_meta_item){"polyd.trajectory", r->setup.trajectory};
    add_meta(r, "polyd.seed", "%lld", (long long)r->config->train.seed);
    add_meta(r, "polyd.optimizer", "%s", o->graph.name);
    add_meta(r, "polyd.best_metric", "%s", r->setup.best_metric);
    if (r->setup.judge_averages)
        add_meta(r, "polyd.serve", "ema");
    add_meta(r, "polyd.data.kind", "%s", r->setup.task->data_kind);
    add_meta(r, "polyd.data.mean", d->channels == 3 ? "%.9g,%.9g,%.9g" : "%.9g", (double)d->mean[0],
             (double)d->mean[1], (double)d->mean[2]);
    add_meta(r, "polyd.data.std", d->channels == 3 ? "%.9g,%.9g,%.9g" : "%.9g", (double)d->std[0],
             (double)d->std[1], (double)d->std[2]);
    return keep_classes(r, why);
}

void train_checkpoint_path(struct run *r, int64_t step, char *out, size_t size)
{
    char name[TRAIN_CHECKPOINT_NAME_SIZE];

    snprintf(out, size, "%s/%s", r->dirs->checkpoints, train_checkpoint_name(name, step));
}

/* Whether a is better than b; a NaN is never better. */
bool train_better(const struct run *r, double a, double b)
{
    if (isnan(a))
        return false;
    return isnan(b) || (r->setup.maximise ? a > b : a < b);
}

/* The newest checkpoint from which a later attempt could go on; kept_count = none. */
static size_t newest_recorded(struct run *r, bool wait)
{
    for (size_t i = r->kept_count; i-- > 0; wait = false) {
        struct kept *k = &r->kept[i];

        k->recorded = k->recorded || !r->host->checkpoint_recorded ||
                      r->host->checkpoint_recorded(r->host->user, k->step, wait);
        if (k->recorded)
            return i;
    }
    return r->kept_count;
}

/* Removes what retention does not keep: the newest `latest`, of the scored ones the `best`, and the newest
 * that is recorded: a kill at this moment loses no more than what follows it. `last`: nothing is written
 * after this. */
void train_prune(struct run *r, int64_t latest, bool last)
{
    bool keep[TRAIN_CHECKPOINTS_MAX] = {false}, chosen[TRAIN_CHECKPOINTS_MAX] = {false};
    size_t left = 0, recorded = newest_recorded(r, last);

    for (size_t i = 0; i < r->kept_count; i++)
        keep[i] = (int64_t)(r->kept_count - i) <= latest || i == recorded;
    for (int64_t n = 0; n < r->config->train.keep_best && n < TRAIN_CHECKPOINTS_MAX; n++) {
        size_t best = r->kept_count;

        /* The n-th best: better than all not yet chosen; earlier wins a tie. */
        for (size_t i = 0; i < r->kept_count; i++)
            if (!chosen[i] &&
                (best == r->kept_count ? !isnan(r->kept[i].score)
                                       : train_better(r, r->kept[i].score, r->kept[best].score)))
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
        train_checkpoint_path(r, r->kept[i].step, path, sizeof path);
        if (unlink(path) == 0 || errno == ENOENT) {
            snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)r->kept[i].step, path);
            train_say(r, "checkpoint_removed", fields, "beyond what train.keep asks for");
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

    train_flush(r);
    train_checkpoint_path(r, r->state.step, path, sizeof path);
    err = train_checkpoint_write(path, r->tensors, r->tensor_count, &r->state, r->meta, r->meta_count, get, r,
                                 &file, why);
    if (err != PD_OK)
        return err;
    if (r->kept_count && r->kept[r->kept_count - 1].step == r->state.step)
        r->kept_count--;
    if (r->kept_count == TRAIN_CHECKPOINTS_MAX) {
        memmove(r->kept, r->kept + 1, (TRAIN_CHECKPOINTS_MAX - 1) * sizeof *r->kept);
        r->kept_count--;
    }
    r->kept[r->kept_count++] = (struct kept){.step = r->state.step, .score = r->state.score};
    info.path = path;
    info.step = r->state.step;
    info.bytes = file.bytes;
    memcpy(info.sha256, file.sha256, sizeof info.sha256);
    info.best = r->state.best_step == r->state.step;
    info.metric = r->setup.best_metric;
    info.value = r->state.score;
    if (r->host->checkpoint_written)
        r->host->checkpoint_written(r->host->user, &info);
    /* One more than asked for while training: should the newest be damaged, there is one to fall back to. */
    train_prune(r, r->config->train.keep_latest + 1, false);
    return PD_OK;
}

/* *ret_written: a failure to write is rank 0's; the error is the ranks'. */
static enum pd_err save_together(struct run *r, bool *ret_written, struct pd_why *reason, struct pd_why *why)
{
    int64_t result = PD_OK;
    enum pd_err err = train_ranks_compare(r, why);

    if (err == PD_OK)
        err = train_ranks_gather(r, why);
    *ret_written = false;
    if (err == PD_OK && r->setup.rank == 0)
        result = save(r, reason);
    train_ranks_forget(r);
    if (err == PD_OK)
        err = train_ranks_agree(r, &result, why);
    if (err != PD_OK)
        return err;
    *ret_written = result == PD_OK;
    if (!*ret_written && r->setup.rank > 0)
        snprintf(reason->text, sizeof reason->text, "rank 0 could not write a checkpoint");
    if (*ret_written)
        r->saved_step = r->state.step;
    r->saved_us = pd_clock_mono_us();
    return *ret_written ? PD_OK : (enum pd_err)result;
}

enum pd_err train_save(struct run *r, struct pd_why *why)
{
    struct pd_why reason = {""}, broken = {""};
    bool written;
    enum pd_err err = save_together(r, &written, &reason, &broken);

    return err == PD_OK ? PD_OK : pd_fail(why, err, "%s", broken.text[0] ? broken.text : reason.text);
}

/* A checkpoint that may fail without ending the run: it is said, and tried again when the next is due. */
enum pd_err train_try_save(struct run *r, struct pd_why *broken)
{
    struct pd_why why = {""};
    char fields[64];
    bool written;
    struct pd_why ranks = {""};
    enum pd_err err = save_together(r, &written, &why, &ranks);

    if (err == PD_OK)
        return PD_OK;
    if (ranks.text[0])
        return pd_fail(broken, err, "%s", ranks.text);
    snprintf(fields, sizeof fields, "step=%lld", (long long)r->state.step);
    train_say(r, "checkpoint_failed", fields, why.text);
    train_note(r, "checkpoint failed: %s", why.text);
    return PD_OK;
}

static enum pd_err load_file(struct run *r, const char *path, struct pd_why *why)
{
    struct train_state state;
    struct data_st *st = NULL;
    enum pd_err err = train_checkpoint_open(path, &st, &state, why);

    if (err != PD_OK)
        return err;
    if (!train_digest_fits(&r->setup, st))
        err =
            pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run of another configuration or data set", path);
    else if (state.step > r->setup.steps)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is at step %lld of %lld", path, (long long)state.step,
                      (long long)r->setup.steps);
    for (size_t i = model_param_count(r->setup.model); i < r->tensor_count && err == PD_OK; i++) {
        const struct train_tensor *t = &r->tensors[i];
        const struct data_st_tensor *from = data_st_find(st, t->st.name);

        if (t->st
                .data) { /* the tokenizer: the data set has it already; with another one the run would not be the same */
            if (!from || from->bytes != t->st.bytes || memcmp(from->data, t->st.data, t->st.bytes) != 0)
                err = pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run with another tokenizer", path);
            continue;
        }
        if (!from || from->dtype != t->st.dtype || from->bytes != t->st.bytes)
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s' lacks '%s'", path, t->st.name);
        else if (t->memory) /* else another rank keeps it */
            err = r->api->upload(r->backend, t->memory, from->data, (size_t)from->bytes, why);
    }
    if (err == PD_OK)
        err = model_store_read(r->store, st, why);
    if (err == PD_OK) {
        r->state = state;
        if (r->setup.ranks > 1) {
            r->loaded = st;
            st = NULL; /* kept until the others have it */
        }
    }
    data_st_free(st);
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
        } else if (train_checkpoint_step(e->d_name) >= 0 && r->kept_count < TRAIN_CHECKPOINTS_MAX) {
            r->kept[r->kept_count++] =
                (struct kept){.step = train_checkpoint_step(e->d_name), .score = (double)NAN};
        }
    }
    closedir(dir);
    qsort(r->kept, r->kept_count, sizeof *r->kept, by_step);
    return PD_OK;
}

/* The averages begin where the weights do. */
enum pd_err train_start_averages(struct run *r, struct pd_why *why)
{
    enum pk_dtype dtype = model_spec(r->setup.model)->dtype;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_param_count(r->setup.model) && err == PD_OK; i++) {
        size_t bytes = (size_t)pk_shape_count(&model_param(r->setup.model, i)->shape) * pk_dtype_size(dtype);
        void *host = malloc(bytes);

        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for averaged weights");
        err = r->api->download(r->backend, host, model_store_data(r->store, i), bytes, why);
        if (err == PD_OK)
            err = r->api->upload(r->backend, r->averages[i], host, bytes, why);
        free(host);
    }
    return err;
}

/* Loads the first good one of the checkpoints that the run is told to go on from, or starts from the seed. */
enum pd_err train_load(struct run *r, struct pd_why *why)
{
    char path[1024], fields[1200];
    struct pd_why reason;
    enum pd_err err = list_checkpoints(r, why);

    if (err != PD_OK)
        return err;
    for (size_t i = 0; i < r->kept_count; i++) { /* scores decide what is kept as best */
        struct train_state state;
        struct data_st *st = NULL;

        train_checkpoint_path(r, r->kept[i].step, path, sizeof path);
        if (train_checkpoint_open(path, &st, &state, NULL) == PD_OK)
            r->kept[i].score = state.score;
        data_st_free(st);
    }
    for (size_t n = 0; n < r->dirs->start_count; n++) {
        const char *start = r->dirs->starts[n];

        err = load_file(r, start, &reason);
        if (err == PD_OK) {
            snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)r->state.step, start);
            train_say(r, "resume", fields, "going on from a checkpoint");
            train_note(r, "resume from %s at step %lld", start, (long long)r->state.step);
            r->saved_step = r->state.step;
            for (size_t i = 0; i < r->kept_count; i++)
                r->kept[i].recorded = r->kept[i].step == r->state.step;
            return PD_OK;
        }
        if (err == PD_ERR_CONFLICT || err == PD_ERR_VERSION || err == PD_ERR_NOMEM)
            return pd_fail(why, err, "%s", reason.text);
        snprintf(fields, sizeof fields, "path=%s", start);
        train_say(r, "checkpoint_fallback", fields, reason.text);
        train_note(r, "checkpoint unusable, trying an older one: %s", reason.text);
    }
    train_say(r, "start", "step=0", "starting from the seed");
    err = model_store_init(r->store, (uint64_t)r->config->train.seed, why);
    return err == PD_OK && r->averages ? train_start_averages(r, why) : err;
}

/* Forgets checkpoints of steps that this run has not reached again. */
void train_forget_later(struct run *r)
{
    while (r->kept_count && r->kept[r->kept_count - 1].step > r->state.step) {
        int64_t step = r->kept[--r->kept_count].step;
        char path[1024], fields[1100];

        train_checkpoint_path(r, step, path, sizeof path);
        (void)unlink(path);
        snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)step, path);
        train_say(r, "checkpoint_removed", fields, "newer than the checkpoint that the run goes on from");
    }
}
