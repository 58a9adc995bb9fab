/* daemon/worker/train/contents.c: see contents.h. */
#include "daemon/worker/train/contents.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/exchange.h"
#include "daemon/worker/train/start.h"

#define DATA_DIGEST "polyd.data.digest"
#define OWN_ITEMS 24 /* of the metadata, whose text is kept here */

struct contents {
    const struct session *session;
    struct trainer *trainer;
    struct train_tensor *tensors; /* parameters first, in the model's order */
    char (*names)[80];
    size_t tensor_count, tensor_capacity;
    struct data_st_meta_item meta[MODEL_META_ITEMS + OWN_ITEMS];
    size_t meta_count;
    char own_text[OWN_ITEMS][64];
    size_t own_count;
    char *spec_text, *class_text;
    char formula_digest[JOB_DIGEST_SIZE];
    struct pd_buf tokenizer; /* serialised */
    struct data_st *loaded;  /* rank 0: the checkpoint, until all ranks have what it holds */
};

/* ---- the list ---- */

_Static_assert(DATA_ST_RANK_LIMIT == PK_MAX_RANK, "shapes are copied whole");

/* Whether the parameter of that name is a count. */
static bool is_whole(const struct model *m, const char *name)
{
    size_t i;

    return model_tensor_of(m, name, &i) == MODEL_TENSOR_PARAM && model_param(m, i)->whole;
}

static void add_tensor(struct contents *c, const char *prefix, const char *name, const struct pk_shape *shape,
                       enum pk_dtype dtype, void *memory)
{
    struct train_tensor *t = &c->tensors[c->tensor_count];

    assert(c->tensor_count < c->tensor_capacity);
    snprintf(c->names[c->tensor_count], sizeof c->names[0], "%s%s", prefix, name);
    t->st.name = c->names[c->tensor_count];
    t->st.dtype = dtype == PK_F64 ? DATA_ST_F64 : DATA_ST_F32;
    t->st.rank = shape->rank;
    memcpy(t->st.dim, shape->dim, sizeof t->st.dim);
    t->st.count = (uint64_t)pk_shape_count(shape);
    t->st.bytes = t->st.count * pk_dtype_size(dtype);
    t->memory = memory;
    t->whole = is_whole(c->session->setup.model, name);
    c->tensor_count++;
}

/* What is saved of the states; sums of gradients live within a step. */
struct saved {
    const char *state, *prefix; /* of names in the graph, and in a file */
    size_t count;               /* of the model's parameters: moments are of those that are trained */
};

static size_t saved_states(const struct train_setup *setup, struct saved list[MODEL_STATES_MAX + 1])
{
    const struct optim *o = setup->optim;
    size_t n = 0;

    for (; n < (size_t)o->graph.states; n++)
        list[n] = (struct saved){o->graph.state[n].prefix, o->saved[n], model_trained_count(setup->model)};
    if (setup->options.ema > 0)
        list[n++] = (struct saved){"ema/", "ema.", model_param_count(setup->model)};
    return n;
}

/* All moments, whichever rank keeps them: every rank has the same list. */
static void add_states_of_ranks(struct contents *c, const struct saved *saved, size_t count)
{
    const struct model *model = c->session->setup.model;

    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < saved[k].count; i++) {
            const struct model_param *p = model_param(model, i);
            char name[80];

            snprintf(name, sizeof name, "%s%s", saved[k].state, p->name);
            add_tensor(c, saved[k].prefix, p->name, &p->shape, model_spec(model)->dtype,
                       executable_memory(trainer_states(c->trainer), name));
        }
}

static void add_states(struct contents *c, const struct saved *saved, size_t count)
{
    struct pk_leaf leaf;
    void *memory;

    for (size_t i = 0; executable_leaf(trainer_states(c->trainer), i, &leaf, &memory); i++)
        for (size_t k = 0; leaf.kind == PK_OP_STATE && k < count; k++)
            if (!strncmp(leaf.name, saved[k].state, strlen(saved[k].state)))
                add_tensor(c, saved[k].prefix, leaf.name + strlen(saved[k].state), &leaf.shape, leaf.dtype,
                           memory);
}

/* A language model needs its tokenizer wherever it is served: checkpoints carry it, unless it is the bytes.
 */
static enum pd_err add_tokenizer(struct contents *c, struct pd_why *why)
{
    const struct data_tokenizer *t = c->session->setup.info->tokenizer;
    struct train_tensor *to = &c->tensors[c->tensor_count];
    enum pd_err err;

    if (!t || data_tokenizer_kind(t) == DATA_TOKENIZER_BYTES)
        return PD_OK;
    assert(c->tensor_count < c->tensor_capacity);
    err = data_tokenizer_save(t, &c->tokenizer, why);
    if (err != PD_OK)
        return err;
    to->st = (struct data_st_tensor){.name = DATA_TOKENIZER_TENSOR,
                                     .dtype = DATA_ST_U8,
                                     .rank = 1,
                                     .dim = {(int64_t)c->tokenizer.len},
                                     .count = c->tokenizer.len,
                                     .bytes = c->tokenizer.len,
                                     .data = c->tokenizer.data};
    c->tensor_count++;
    return PD_OK;
}

static enum pd_err list_tensors(struct contents *c, struct pd_why *why)
{
    const struct train_setup *setup = &c->session->setup;
    const size_t params = model_param_count(setup->model);
    struct saved saved[MODEL_STATES_MAX + 1];
    const size_t saved_count = saved_states(setup, saved);

    c->tensor_capacity =
        (1 + saved_count) * params + 8; /* few of a whole vector, however few the parameters */
    c->tensors = calloc(c->tensor_capacity, sizeof *c->tensors);
    c->names = calloc(c->tensor_capacity, sizeof *c->names);
    if (!c->tensors || !c->names)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    for (size_t i = 0; i < params; i++) {
        const struct model_param *p = model_param(setup->model, i);

        add_tensor(c, "", p->name, &p->shape, model_spec(setup->model)->dtype,
                   model_store_data(trainer_store(c->trainer), i));
    }
    if (setup->options.zero)
        add_states_of_ranks(c, saved, saved_count);
    else
        add_states(c, saved, saved_count);
    return add_tokenizer(c, why);
}

/* ---- the metadata ---- */

static void add_meta(struct contents *c, const char *key, const char *fmt, ...) PD_PRINTF(3, 4);
static void add_meta(struct contents *c, const char *key, const char *fmt, ...)
{
    char *to = c->own_text[c->own_count++];
    va_list args;

    va_start(args, fmt);
    vsnprintf(to, sizeof c->own_text[0], fmt, args);
    va_end(args);
    c->meta[c->meta_count++] = (struct data_st_meta_item){key, to};
}

/* Names of the classes, a line each. */
static enum pd_err add_classes(struct contents *c, struct pd_why *why)
{
    const struct data_info *d = c->session->setup.info;
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
    c->class_text = pd_buf_take(&text);
    c->meta[c->meta_count++] = (struct data_st_meta_item){"polyd.data.classes", c->class_text};
    return PD_OK;
}

/* The formula of the document as it was typed, a built-in too, and the SHA-256 of its normal form unless that is too long. */
static enum pd_err add_formula(struct contents *c, struct pd_why *why)
{
    const struct job_config *config = c->session->config;
    enum pd_err err;

    if (config->attention.activation != JOB_ACTIVATION_FORMULA)
        return PD_OK;
    c->meta[c->meta_count++] = (struct data_st_meta_item){"polyd.formula", config->attention.formula};
    err = job_formula_digest(config, c->formula_digest, why);
    if (err == PD_OK)
        c->meta[c->meta_count++] = (struct data_st_meta_item){"polyd.formula_sha256", c->formula_digest};
    return err == PD_ERR_LIMIT ? PD_OK : err;
}

static enum pd_err list_meta(struct contents *c, struct pd_why *why)
{
    const struct session *s = c->session;
    const struct train_setup *setup = &s->setup;
    const struct data_info *d = setup->info;
    char note[200];
    enum pd_err err =
        model_spec_to_meta(model_spec(setup->model), false, c->meta, &c->meta_count, &c->spec_text, why);

    if (err != PD_OK)
        return err;
    c->meta[c->meta_count++] = (struct data_st_meta_item){"polyd.trajectory", setup->trajectory};
    add_meta(c, "polyd.seed", "%lld", (long long)s->config->train.seed);
    add_meta(c, "polyd.optimizer", "%s", setup->optim->graph.name);
    if (setup->optim->searches) {
        c->meta[c->meta_count++] = (struct data_st_meta_item){TRAIN_SEARCH_LOSS, setup->search_loss};
        c->meta[c->meta_count++] = (struct data_st_meta_item){TRAIN_SEARCH_PARAMS, setup->search_params};
    }
    add_meta(c, "polyd.best_metric", "%s", setup->best_metric);
    if (setup->judge_averages)
        add_meta(c, "polyd.serve", "ema");
    if (session_cpu_bf16(s))
        add_meta(c, SESSION_BF16, "%s",
                 pk_cpu_bf16_of(s->backend, note, sizeof note) ? "products" : "reference");
    add_meta(c, SESSION_RECOMPUTE, "%s", setup->keep_activations ? "off" : "on");
    add_meta(c, "polyd.data.kind", "%s", setup->task->data_kind);
    add_meta(c, "polyd.data.mean", d->channels == 3 ? "%.9g,%.9g,%.9g" : "%.9g", (double)d->mean[0],
             (double)d->mean[1], (double)d->mean[2]);
    add_meta(c, "polyd.data.std", d->channels == 3 ? "%.9g,%.9g,%.9g" : "%.9g", (double)d->std[0],
             (double)d->std[1], (double)d->std[2]);
    if (d->digest[0])
        c->meta[c->meta_count++] = (struct data_st_meta_item){DATA_DIGEST, d->digest};
    err = add_formula(c, why);
    return err == PD_OK ? add_classes(c, why) : err;
}

enum pd_err contents_open(const struct session *s, struct trainer *t, struct contents **ret,
                          struct pd_why *why)
{
    struct contents *c = calloc(1, sizeof *c);
    enum pd_err err;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    c->session = s;
    c->trainer = t;
    err = list_tensors(c, why);
    if (err == PD_OK)
        err = list_meta(c, why);
    if (err == PD_OK)
        *ret = c;
    else
        contents_close(c);
    return err;
}

struct contents *contents_close(struct contents *c)
{
    if (!c)
        return NULL;
    data_st_free(c->loaded);
    free(c->tensors);
    free(c->names);
    free(c->spec_text);
    free(c->class_text);
    pd_buf_done(&c->tokenizer);
    free(c);
    return NULL;
}

/* ---- files ---- */

static enum pd_err get(void *user, void *to, const void *memory, size_t bytes, struct pd_why *why)
{
    const struct session *s = ((struct contents *)user)->session;

    return s->api->download(s->backend, to, memory, bytes, why);
}

enum pd_err contents_write(struct contents *c, const char *path, const struct train_state *state,
                           struct train_file_info *ret, struct pd_why *why)
{
    return train_checkpoint_write(path, c->tensors, c->tensor_count, state, c->meta, c->meta_count, get, c,
                                  ret, why);
}

/* A count, I64 or as files before 2026-12 have it. */
static enum pd_err read_whole(struct contents *c, const struct data_st_tensor *from,
                              const struct train_tensor *t, struct pd_why *why)
{
    void *host = malloc((size_t)t->st.bytes + 1);
    enum pd_err err;

    if (!host)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", t->st.name);
    err = t->st.dtype == DATA_ST_F64 ? data_st_read_f64(from, host, from->count, why)
                                     : data_st_read_f32(from, host, from->count, why);
    if (err == PD_OK)
        err = c->session->api->upload(c->session->backend, t->memory, host, (size_t)t->st.bytes, why);
    free(host);
    return err;
}

/* A tensor behind the parameters. */
static enum pd_err read_tensor(struct contents *c, const char *path, const struct data_st *st,
                               const struct train_tensor *t, struct pd_why *why)
{
    const struct data_st_tensor *from = data_st_find(st, t->st.name);

    if (t->st
            .data) { /* the tokenizer, which the data set has already: with another it would be another run */
        if (!from || from->bytes != t->st.bytes || memcmp(from->data, t->st.data, t->st.bytes) != 0)
            return pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run with another tokenizer", path);
        return PD_OK;
    }
    if (t->whole && from && from->count == t->st.count)
        return read_whole(c, from, t, why);
    if (!from || from->dtype != t->st.dtype || from->bytes != t->st.bytes)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' lacks '%s'", path, t->st.name);
    if (!t->memory) /* another rank keeps it */
        return PD_OK;
    return c->session->api->upload(c->session->backend, t->memory, from->data, (size_t)from->bytes, why);
}

/* Of checkpoints from before 2026-12 the data are not known. */
static void compare_data(struct contents *c, const struct data_st *st)
{
    const char *before = data_st_meta(st, DATA_DIGEST), *now = c->session->setup.info->digest;
    char fields[200];

    if (!before || !*now || !strcmp(before, now))
        return;
    snprintf(fields, sizeof fields, "data=%s before=%.64s", now, before);
    reporter_event(c->session->reporter, "data_changed", fields,
                   "the data's files are not those that the checkpoint was trained on");
    reporter_log(c->session->reporter, "the data changed: the checkpoint was trained on %.12s", before);
}

enum pd_err contents_read(struct contents *c, const char *path, bool resumes, struct train_state *ret,
                          struct pd_why *why)
{
    const struct train_setup *setup = &c->session->setup;
    struct train_state state;
    struct data_st *st = NULL;
    struct pd_why reason = {""};
    enum pd_err err = train_checkpoint_open(path, &st, &state, why);

    if (err != PD_OK)
        return err;
    if (!train_digest_fits(setup, st))
        err = pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run with another configuration or data set",
                      path);
    else if (train_setup_classes(setup->info, st, "/data/path", "the checkpoint", &reason) != PD_OK)
        err =
            pd_fail(why, PD_ERR_CONFLICT, "'%s' belongs to a run with other classes: %s", path, reason.text);
    else
        err = train_digest_function(setup, st, why);
    if (err == PD_OK && state.step > setup->steps)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is at step %lld, the run has %lld steps", path,
                      (long long)state.step, (long long)setup->steps);
    for (size_t i = model_param_count(setup->model); i < c->tensor_count && err == PD_OK; i++)
        err = read_tensor(c, path, st, &c->tensors[i], why);
    if (err == PD_OK)
        err = model_store_read(trainer_store(c->trainer), st, why);
    if (err == PD_OK) {
        *ret = state;
        if (resumes)
            compare_data(c, st);
        if (setup->ranks > 1) {
            c->loaded = st;
            st = NULL; /* kept until contents_share */
        }
    }
    data_st_free(st);
    return err;
}

/* An optimiser's state of the whole vector of parameters needs all of them from the file, and the loss that it is of. */
static enum pd_err check_whole(const struct train_setup *setup, const struct data_st *st, const bool *taken,
                               struct pd_why *why)
{
    if (!setup->optim->searches)
        return PD_OK;
    for (size_t i = 0; i < model_trained_count(setup->model); i++)
        if (!taken[i])
            return pd_fail(
                why, PD_ERR_INVALID,
                "#/train/start/optimizer: the state of %s is one of all parameters, and '%.80s' does not "
                "begin from the file",
                setup->optim->graph.name, model_param(setup->model, i)->name);
    return train_digest_search(setup, st, why);
}

/* A state of the optimiser. It stays zero if its parameter does not begin from the file or has none there. */
static enum pd_err start_state(struct contents *c, struct train_tensor *t, const char *param,
                               const struct data_st *st, const bool *taken, struct pd_why *why)
{
    const struct session *s = c->session;
    const struct data_st_tensor *from = data_st_find(st, t->st.name);
    size_t i;

    t->fresh = model_tensor_of(s->setup.model, param, &i) == MODEL_TENSOR_PARAM && (!from || !taken[i]);
    if (t->fresh)
        return PD_OK;
    if (!from || from->dtype != t->st.dtype || from->bytes != t->st.bytes)
        return pd_fail(
            why, PD_ERR_INVALID,
            "#/train/start/optimizer: the file does not have '%.80s' in the type and size of this run",
            t->st.name);
    if (!t->memory) /* another rank keeps it */
        return PD_OK;
    return s->api->upload(s->backend, t->memory, from->data, (size_t)from->bytes, why);
}

static enum pd_err start_optimiser(struct contents *c, const struct data_st *st, const bool *taken,
                                   int64_t *ret_applied, struct pd_why *why)
{
    const struct train_setup *setup = &c->session->setup;
    enum pd_err err = start_states(c->session, st, ret_applied, why);

    if (err == PD_OK)
        err = check_whole(setup, st, taken, why);
    for (size_t i = model_param_count(setup->model); err == PD_OK && i < c->tensor_count; i++)
        for (int k = 0; err == PD_OK && k < setup->optim->graph.states; k++) {
            struct train_tensor *t = &c->tensors[i];
            const size_t n = strlen(setup->optim->saved[k]);

            if (!strncmp(t->st.name, setup->optim->saved[k], n))
                err = start_state(c, t, t->st.name + n, st, taken, why);
        }
    return err;
}

enum pd_err contents_start(struct contents *c, struct train_state *ret, struct pd_why *why)
{
    const struct session *s = c->session;
    bool *taken = calloc(model_param_count(s->setup.model) + 1, sizeof *taken);
    struct data_st *st = NULL;
    enum pd_err err =
        taken ? start_open(s, &st, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for the table of parameters");

    if (err == PD_OK)
        err = start_params(s, trainer_store(c->trainer), st, taken, why);
    if (err == PD_OK && s->config->train.start.optimizer)
        err = start_optimiser(c, st, taken, &ret->applied_before, why);
    if (err == PD_OK && s->setup.ranks > 1 && s->config->train.start.optimizer) {
        c->loaded = st;
        st = NULL; /* kept until contents_share */
    }
    data_st_free(st);
    free(taken);
    return err;
}

/* ---- several ranks ---- */

enum pd_err contents_share(struct contents *c, bool all, struct pd_why *why)
{
    const struct session *s = c->session;
    enum pd_err err = exchange_share(s, c->tensors, all ? c->tensor_count : model_param_count(s->setup.model),
                                     c->loaded, why);

    c->loaded = data_st_free(c->loaded);
    return err;
}

enum pd_err contents_compare(const struct contents *c, struct pd_why *why)
{
    return exchange_compare(c->session, c->tensors, model_param_count(c->session->setup.model), why);
}

enum pd_err contents_gather(struct contents *c, struct pd_why *why)
{
    return exchange_gather(c->session, c->tensors, c->tensor_count, why);
}

void contents_ungather(struct contents *c)
{
    exchange_ungather(c->session, c->tensors, c->tensor_count);
}
