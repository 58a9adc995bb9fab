#include "daemon/serve/serve.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/data/safetensors.h"
#include "daemon/digest/digest.h"
#include "daemon/model/tuned.h"
#include "daemon/serve/internal.h"
#include "daemon/spec/spec.h"
#include "daemon/train/checkpoint.h"
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
                   "the model needs at least %zu bytes (weights %zu, work %zu, caches %zu), %llu are left of "
                   "serve.memory_bytes",
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
    err = pk_exec_new(graph, s->api, s->backend, &b->exec, why);
    if (err != PD_OK)
        return err;
    pk_exec_report(b->exec, &report);
    s->memory.arena_bytes += report.arena_bytes;
    return model_store_bind(s->store, b->exec, graph, why);
}

/* Only what the model's inputs and outputs depend on is taken from the document: the shape of the network
 * stands in the checkpoint itself. */
static enum pd_err check_job(struct serve *s, const struct serve_options *o, struct pd_why *why)
{
    struct spec_config *config = NULL;
    enum pd_err err = PD_OK;

    s->fit.crop = 1;
    if (!o->job)
        return PD_OK;
    err = spec_config_load(o->job, o->job_len, &config, why);
    if (err != PD_OK)
        return err;
    if (s->tokenizer && config->data.tokenizer != SPEC_TOKENIZER_BYTES &&
        data_tokenizer_kind(s->tokenizer) == DATA_TOKENIZER_BYTES)
        err = pd_fail(why, PD_ERR_CORRUPT, "#/data/tokenizer is not bytes, but checkpoint '%s' carries none",
                      o->checkpoint);
    if (config->data.augment.eval_crop > 0)
        s->fit.crop = config->data.augment.eval_crop;
    s->fit.filter = (enum data_filter)config->data.augment.interpolation;
    spec_config_free(config);
    return err;
}

/* One number for all channels, or one for each with commas between. False: not that. */
static bool meta_channels(const struct data_st *st, const char *key, float missing, int32_t channels,
                          float *ret)
{
    const char *text = data_st_meta(st, key);
    char *end;
    int32_t n = 0;

    for (int32_t c = 0; c < channels; c++)
        ret[c] = missing;
    if (!text)
        return true;
    do {
        if (n == channels)
            return false;
        ret[n] = strtof(text, &end);
        if (end == text || !isfinite(ret[n]))
            return false;
        n++;
        text = end + 1;
    } while (*end == ',');
    for (int32_t c = 1; n == 1 && c < channels; c++)
        ret[c] = ret[0];
    return *end == '\0' && (n == 1 || n == channels);
}

/* One name a line, as training wrote them. */
static enum pd_err read_labels(struct serve *s, int32_t classes, const struct data_st *st, const char *path,
                               struct pd_why *why)
{
    const char *text = data_st_meta(st, "polyd.data.classes");
    char *at;
    int32_t n = 0;

    if (!text)
        return PD_OK;
    s->label_text = strdup(text);
    s->labels = calloc((size_t)classes, sizeof *s->labels);
    if (!s->label_text || !s->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the names of %d classes", classes);
    for (at = s->label_text; at && n < classes; n++) {
        s->labels[n] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
    }
    if (at || n < classes)
        return pd_fail(why, PD_ERR_CORRUPT, "checkpoint '%s' names %s than %d classes", path,
                       at ? "more" : "fewer", classes);
    s->info.labels = s->labels;
    return PD_OK;
}

static enum pd_err read_pictures(struct serve *s, const struct model_spec *spec, const struct data_st *st,
                                 const char *path, struct pd_why *why)
{
    bool good = spec->channels <= SERVE_CHANNELS_MAX;

    if (!good)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "images of %d channels are not served", spec->channels);
    good = meta_channels(st, "polyd.data.mean", 0, spec->channels, s->mean) &&
           meta_channels(st, "polyd.data.std", 1, spec->channels, s->std);
    for (int32_t c = 0; c < spec->channels; c++)
        good = good && s->std[c] > 0;
    if (!good)
        return pd_fail(why, PD_ERR_CORRUPT, "checkpoint '%s' names a mean or deviation that is none", path);
    s->fit.channels = spec->channels;
    s->fit.height = spec->image_h;
    s->fit.width = spec->image_w;
    return read_labels(s, spec->classes, st, path, why);
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

/* A checkpoint without one was trained on bytes. */
static enum pd_err read_tokenizer(struct serve *s, const struct data_st *st, struct pd_why *why)
{
    const struct data_st_tensor *t = data_st_find(st, DATA_TOKENIZER_TENSOR);

    if (!t)
        return data_tokenizer_bytes_new(&s->tokenizer, why);
    if (t->dtype != DATA_ST_U8)
        return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint's tokenizer is no sequence of bytes");
    return data_tokenizer_load(t->data, (size_t)t->bytes, &s->tokenizer, why);
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
    if (err == PD_OK && o->bf16_weights && spec.arch == MODEL_GPT && spec.dtype == PK_F32)
        spec.weights = PK_BF16;
    if (err == PD_OK && o->cuda && spec.dtype == PK_F32) {
        spec.mixed = true;
        spec.weights = PK_BF16; /* what products read, resident */
    }
    if (err == PD_OK)
        err = model_new(&spec, &s->model, why);
    if (err != PD_OK)
        goto out;
    s->info.kind = spec.arch == MODEL_GPT ? SERVE_LANGUAGE : SERVE_CLASSIFIER;
    s->memory.weights_bytes = model_param_bytes(s->model);
    if (s->info.kind == SERVE_LANGUAGE)
        err = read_tokenizer(s, st, why);
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
    if (s->info.kind == SERVE_CLASSIFIER)
        err = read_pictures(s, &spec, st, o->checkpoint, why);
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
    err = model_tuned_new(options->tuned, options->keeper, backend_log, NULL, &s->tuned, why);
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
        model_tuned_meet(s->tuned, &device);
    if (err == PD_OK)
        err = read_checkpoint(s, options, why);
    if (err != PD_OK)
        goto out;
    err = s->info.kind == SERVE_CLASSIFIER ? serve_classifier_open(s, why) : serve_language_open(s, why);
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

/* As a JSON string; bytes that are no text become '?'. */
static void put_text(struct pd_buf *out, const char *text)
{
    pd_buf_str(out, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            pd_buf_printf(out, "\\%c", c);
        else
            pd_buf_append(out, c < 0x20 ? "?" : text, 1);
    }
    pd_buf_str(out, "\"");
}

static void put_channels(struct pd_buf *out, const char *name, const float *values, int64_t count)
{
    pd_buf_printf(out, ",\"%s\":[", name);
    for (int64_t c = 0; c < count; c++)
        pd_buf_printf(out, "%s%.7g", c ? "," : "", (double)values[c]);
    pd_buf_str(out, "]");
}

/* What the numbers of input 'image' mean, for those who make them. */
static void put_pixels(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;

    pd_buf_printf(out,
                  ",\"pixels\":{\"FP32\":[0,1],\"UINT8\":[0,255],\"order\":\"channel, row, column\","
                  "\"channels\":\"%s\"",
                  i->channels == 1   ? "grey"
                  : i->channels == 3 ? "RGB"
                                     : "the data set's");
    put_channels(out, "mean", s->mean, i->channels);
    put_channels(out, "std", s->std, i->channels);
    pd_buf_printf(out, ",\"normalised_by\":\"the model\"");
    if (serve_pictures(s))
        pd_buf_printf(
            out,
            ",\"resize\":\"JPEG and PNG alone: scaled to cover %lld x %lld divided by %.4g, the middle "
            "cut out, as in validation\"",
            (long long)i->height, (long long)i->width, s->fit.crop);
    pd_buf_str(out, "}");
}

enum pd_err serve_signature(const struct serve *s, struct pd_buf *out)
{
    const struct serve_info *i = &s->info;
    const struct serve_memory *m = &s->memory;

    pd_buf_printf(out, "{\"platform\":\"%s\",", i->platform);
    if (i->kind == SERVE_CLASSIFIER) {
        pd_buf_printf(out,
                      "\"kind\":\"classifier\",%s"
                      "\"inputs\":[{\"name\":\"image\",\"datatype\":\"FP32\",\"shape\":[-1,%lld,%lld,%lld]}],"
                      "\"outputs\":[{\"name\":\"logits\",\"datatype\":\"FP32\",\"shape\":[-1,%lld]},"
                      "{\"name\":\"probabilities\",\"datatype\":\"FP32\",\"shape\":[-1,%lld]},"
                      "{\"name\":\"class\",\"datatype\":\"INT64\",\"shape\":[-1]}%s],"
                      "\"classes\":%lld,\"batch_max\":%u",
                      serve_pictures(s) ? "\"pictures\":[\"image/jpeg\",\"image/png\"]," : "",
                      (long long)i->channels, (long long)i->height, (long long)i->width,
                      (long long)i->outputs, (long long)i->outputs,
                      i->labels ? ",{\"name\":\"label\",\"datatype\":\"BYTES\",\"shape\":[-1]}" : "",
                      (long long)i->outputs, i->batch_max);
        put_pixels(s, out);
        for (int64_t c = 0; i->labels && c < i->outputs; c++) {
            pd_buf_str(out, c ? "," : ",\"labels\":[");
            put_text(out, i->labels[c]);
        }
        if (i->labels)
            pd_buf_str(out, "]");
    } else {
        pd_buf_printf(out,
                      "\"kind\":\"language\",\"tokenizer\":\"%s\","
                      "\"inputs\":[{\"name\":\"prompt\",\"datatype\":\"UINT8\",\"shape\":[-1]}],"
                      "\"outputs\":[{\"name\":\"text\",\"datatype\":\"UINT8\",\"shape\":[-1]},"
                      "{\"name\":\"tokens\",\"datatype\":\"INT32\",\"shape\":[-1]}],"
                      "\"vocabulary\":%lld,\"context\":%lld,\"streams_max\":%u,\"weights\":\"%s\","
                      "\"decode\":\"%s\",\"stream_bytes\":%zu",
                      data_tokenizer_kind_name(data_tokenizer_kind(s->tokenizer)), (long long)i->outputs,
                      (long long)i->context, i->streams_max, pk_dtype_name(model_param_dtype(s->model, 0)),
                      i->state ? "state" : "cache", i->stream_bytes);
    }
    pd_buf_printf(out, ",\"step\":%llu,\"memory_bytes\":%zu,\"memory_most_bytes\":%zu}",
                  (unsigned long long)i->step,
                  m->weights_bytes + m->cache_bytes + m->arena_bytes + m->inputs_bytes, m->most_bytes);
    return pd_buf_err(out);
}
