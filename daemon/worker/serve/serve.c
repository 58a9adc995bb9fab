#include "daemon/worker/serve/serve.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/digest/digest.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/serve/internal.h"
#include "daemon/worker/task/task.h"
#include "daemon/job/job.h"
#include "daemon/worker/train/checkpoint.h"
#include "kernels/backend/load.h"
#include "kernels/base/log.h"

static void backend_log(void *user, int level, const char *text)
{
    (void)user;
    pd_log(level <= PD_LOG_ERROR ? PD_LOG_ERROR : (enum pd_log_level)level, "serve", "backend=\"%s\"", text);
}

enum pd_err serve_alloc(struct serve *s, size_t bytes, size_t *total, void **ret, struct pd_why *why)
{
    void *memory = s->api->alloc(s->backend, bytes ? bytes : 1);

    if (!memory)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu bytes of the model", bytes);
    *total += bytes;
    *ret = memory;
    return PD_OK;
}

enum pd_err serve_fits(struct serve *s, size_t caches, struct pd_why *why)
{
    const struct serve_memory *m = &s->memory;

    s->memory.most_bytes = m->weights_bytes + m->arena_bytes + m->inputs_bytes + caches;
    if (!s->memory_max || m->most_bytes <= s->memory_max)
        return PD_OK;
    return pd_fail(why, PD_ERR_LIMIT,
                   "the model needs at least %zu bytes (weights %zu, working memory %zu, caches %zu), of "
                   "serve.memory_bytes %llu are free",
                   m->most_bytes, m->weights_bytes, m->arena_bytes + m->inputs_bytes, caches,
                   (unsigned long long)s->memory_max);
}

enum pd_err serve_bucket_add(struct serve *s, struct pk_graph *graph, int32_t size, struct pd_why *why)
{
    struct serve_bucket *b = &s->bucket[s->buckets];
    struct pk_plan_report report;
    enum pd_err err;

    assert(s->buckets < SERVE_BUCKETS_MAX);
    *b = (struct serve_bucket){.size = size, .graph = graph};
    s->buckets++; /* serve_close frees it from here on */
    err = pk_exec_new_in(graph, s->api, s->backend, s->arena, &b->exec, why);
    if (err != PD_OK)
        return err;
    pk_exec_report(b->exec, &report);
    s->memory.arena_bytes = pk_arena_bytes(s->arena);
    s->memory.inputs_bytes += report.const_bytes;
    return model_store_bind(s->store, b->exec, graph, why);
}

/* How training read its texts. */
static void take_texts(struct serve *s, const struct job_config *c)
{
    const struct job_dataset_info *set = job_dataset_info((enum job_dataset)c->data.dataset);

    /* What training cut off is not read either. */
    if (c->data.context > 0 && c->data.context < s->info.positions)
        s->info.positions = c->data.context;
    s->most = c->data.lra_len == JOB_LRA_LEN_REFERENCE ? (size_t)set->cut : 0;
    s->cuts = !set->generated;
    s->listops = (c->data.dataset == JOB_DATASET_LISTOPS || c->data.dataset == JOB_DATASET_LISTOPS_GEN) &&
                 s->tokenizer &&
                 data_tokenizer_kind(s->tokenizer) == DATA_TOKENIZER_WORDS; /* an upload may read ids */
}

/* Only what the model's inputs and outputs depend on is taken from the document: the shape of the network
 * stands in the checkpoint itself. */
static enum pd_err check_job(struct serve *s, const struct serve_options *o, struct pd_why *why)
{
    struct job_config *config = NULL;
    enum pd_err err = PD_OK;

    s->fit.crop = 1;
    if (!o->job || !o->job_len) /* weights that came without a description */
        return PD_OK;
    err = job_config_load(o->job, o->job_len, &config, why);
    if (err != PD_OK)
        return err;
    if (s->tokenizer && config->data.tokenizer != JOB_TOKENIZER_BYTES &&
        data_tokenizer_kind(s->tokenizer) == DATA_TOKENIZER_BYTES)
        err = pd_fail(why, PD_ERR_CORRUPT,
                      "#/data/tokenizer is not bytes, but checkpoint '%s' has no tokenizer", o->checkpoint);
    take_texts(s, config);
    if (config->data.augment.eval_crop > 0)
        s->fit.crop = config->data.augment.eval_crop;
    s->fit.filter = (enum data_filter)config->data.augment.interpolation;
    job_config_free(config);
    return err;
}

/* The bytes are proved once: by the digest under which they were registered, else by the one they carry. */
static enum pd_err open_checked(const struct serve_options *o, struct data_st **ret, struct pd_why *why)
{
    struct data_st *st = NULL;
    struct train_state state;
    char hex[DIGEST_SHA256_HEX_SIZE];
    const void *bytes;
    size_t len;
    enum pd_err err;

    if (!o->digest)
        return train_checkpoint_open(o->checkpoint, ret, &state, why);
    err = data_st_open(o->checkpoint, &st, why);
    if (err != PD_OK)
        return err;
    bytes = data_st_bytes(st, &len);
    if (strcmp(digest_sha256_hex(bytes, len, hex), o->digest) != 0) {
        data_st_free(st);
        return pd_fail(why, PD_ERR_CORRUPT, "checkpoint '%s' has digest %s, expected %s", o->checkpoint, hex,
                       o->digest);
    }
    *ret = st;
    return PD_OK;
}

static const struct serve_kind *const kinds[] = {&serve_kind_classify, &serve_kind_classify_text,
                                                 &serve_kind_field, &serve_kind_language};

static const struct serve_kind *kind_of(const struct model_spec *spec)
{
    const struct task *task = task_of(spec);

    for (size_t i = 0; task && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i]->name, task->serves))
            return kinds[i];
    return NULL;
}

const char *serve_kind_name(const struct serve_kind *kind)
{
    return kind->name;
}

static enum pd_err read_checkpoint(struct serve *s, const struct serve_options *o, struct pd_why *why)
{
    struct data_st *st = NULL;
    struct model_spec spec;
    const char *step;
    enum pd_err err = open_checked(o, &st, why);

    if (err != PD_OK)
        return err;
    err = model_spec_from_meta(st, &spec, why);
    if (err == PD_OK) {
        s->info.kind = kind_of(&spec);
        if (!s->info.kind)
            err = pd_fail(why, PD_ERR_UNSUPPORTED, "this build cannot serve the task of checkpoint '%s'",
                          o->checkpoint);
    }
    spec.dtype = PK_F32; /* parameters of a run in fp64 are rounded as they are read */
    if (err == PD_OK && o->bf16_weights && s->info.kind->narrow)
        spec.weights = PK_BF16;
    /* A solution at points stays in f32, which is what it was trained in. */
    if (err == PD_OK && o->cuda && !model_reads_points(&spec)) {
        spec.mixed = true;
        spec.weights = PK_BF16; /* what products read, resident */
    }
    if (err == PD_OK && s->info.kind->shape)
        err = s->info.kind->shape(st, o->checkpoint, &spec, why);
    if (err == PD_OK)
        err = model_new(&spec, &s->model, why);
    if (err != PD_OK)
        goto out;
    s->memory.weights_bytes = model_param_bytes(s->model);
    err = s->info.kind->read(s, st, o->checkpoint, why);
    if (err == PD_OK)
        err = check_job(s, o, why);
    if (err == PD_OK)
        err = serve_fits(s, 0, why); /* before the first large allocation */
    if (err == PD_OK)
        err = model_store_new(s->model, s->api, s->backend, &s->store, why);
    if (err == PD_OK)
        err = model_store_read_served(s->store, st, why);
    if (err != PD_OK)
        goto out;
    step = data_st_meta(st, "polyd.step");
    s->info.step = step ? strtoull(step, NULL, 10) : 0;
out:
    data_st_free(st);
    return err;
}

enum pd_err serve_open(const struct serve_options *options, struct serve **ret, struct pd_why *why)
{
    struct serve *s = calloc(1, sizeof *s);
    struct pk_backend_info device;
    enum pd_err err;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a model");
    if (options->batch_max > SERVE_BATCH_MAX || options->streams_max > SERVE_STREAMS_MAX ||
        options->threads < 1) {
        err = pd_fail(why, PD_ERR_INVALID,
                      "batch_max is at most %u, streams_max at most %u, threads at least 1", SERVE_BATCH_MAX,
                      SERVE_STREAMS_MAX);
        goto out;
    }
    s->info.platform = "polyd_cpu";
    s->info.batch_max = options->batch_max ? options->batch_max : 32;
    s->info.streams_max = options->streams_max ? options->streams_max : 16;
    s->memory_max = options->memory_max;
    s->memory_kind = options->memory;
    s->api = pk_backend_cpu();
    err = model_tuned_new(options->tuned, options->store, backend_log, NULL, &s->tuned, why);
    if (err == PD_OK && options->cuda) {
        s->info.platform = "polyd_cuda";
        err = pk_backend_load("cuda", PK_LOAD_RUN, &s->api, why);
    }
    if (err == PD_OK) {
        model_tuned_lend(s->tuned, &s->host);
        err = s->api->open(&s->host, 0, options->threads, &s->backend, why);
    }
    if (err == PD_OK)
        err = s->api->info(s->backend, &device, why);
    if (err == PD_OK)
        model_tuned_recall(s->tuned, &device);
    if (err == PD_OK)
        err = read_checkpoint(s, options, why);
    if (err != PD_OK)
        goto out;
    s->arena = pk_arena_new();
    err = s->arena ? s->info.kind->open(s, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for a model");
    if (err != PD_OK)
        goto out;
    *ret = s;
    s = NULL; /* moved to the caller */
out:
    serve_close(s);
    return err;
}

struct serve *serve_close(struct serve *s)
{
    if (!s)
        return NULL;
    while (s->streams)
        serve_stream_close(s->streams);
    for (size_t i = 0; i < s->buckets; i++) {
        pk_exec_free(s->bucket[i].exec);
        pk_graph_free(s->bucket[i].graph);
    }
    pk_arena_free(s->arena);
    model_store_free(s->store);
    if (s->backend) {
        void *inputs[] = {s->input, s->pos, s->position, s->length, s->pick};

        for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
            if (inputs[i])
                s->api->free(s->backend, inputs[i]);
        }
        s->api->close(s->backend);
    }
    model_tuned_free(s->tuned);
    model_free(s->model);
    data_tokenizer_free(s->tokenizer);
    free(s->label_text);
    free(s->labels);
    free(s->staging);
    free(s->ids);
    free(s->copy);
    free(s->results);
    free(s);
    return NULL;
}

const struct serve_info *serve_info(const struct serve *s)
{
    return &s->info;
}

void serve_memory(const struct serve *s, struct serve_memory *ret)
{
    *ret = s->memory;
}
