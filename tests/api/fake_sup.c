/* A supervisor without workers, for the tests of api: the functions of supervise.h with answers that the test
 * chooses by the names of models. One thread sends the answers, as the real one does.
 *
 *   lm...         a language model: a fixed text with characters of 1 to 4 bytes, one byte per token
 *   pic...        takes "image" BYTES [1]; y is its length and first three bytes
 *   other names   a classifier with input "x" FP32 [-1,4] and outputs "y" (the same numbers) and "class"
 *   ...-slow      20 ms per token, or 300 ms per inference
 *   ...-never     no answer to an inference before the client cancels
 *   ...-full      PD_ERR_BUSY
 *   ...-loading   PD_ERR_CLOSED
 *   ...-deaf      no answer before sup_stop, even if the client cancels; then the whole answer, like the last
 *                 result of a worker that was already on its way
 *   ...-broken    loading fails
 *   ...-nan       y holds a NaN
 *   ...-dies      PD_ERR_CLOSED in the middle */
#include "tests/api/fake_sup.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

#define JOBS_MAX 256
#define MODELS_MAX 64

static const char said[] = "Gr\xc3\xbc\xc3\x9f"
                           "e, \xe2\x98\x83 \xf0\x9f\x98\x80! ";

struct job {
    bool used, cancelled, load;
    uint64_t id;
    int64_t due_us, until_us;
    char model[160];
    int64_t version;
    /* infer */
    bool complete;
    int token, tokens, logprobs;
    bool stream;
    float data[64];
    int64_t shape[8];
    uint32_t rank;
    size_t bytes;
    int64_t prompt;
    void (*part)(void *ctx, const struct sup_result *r);
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

struct model {
    char name[160];
    int64_t version;
    enum sup_model_state state;
    int64_t requests;
    struct sup_infer_stats stats; /* every request: a batch of one, and 2 ms of work */
};

const double sup_hist_seconds[SUP_HIST_BOUNDS] = {0.001, 0.01}, sup_hist_batch[SUP_HIST_BOUNDS] = {1, 2};

struct sup {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool stop;
    uint64_t next;
    struct job jobs[JOBS_MAX];
    struct model models[MODELS_MAX];
    char log_dir[512];
    int64_t notified;
};

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static void send_infer(struct job *j)
{
    int64_t classes[16] = {0};
    struct wire_tensor t[2] = {
        {.name = "y", .dtype = "FP32", .rank = j->rank, .data = j->data, .bytes = j->bytes},
        {.name = "class", .dtype = "INT64", .rank = 1, .shape = {j->shape[0]}, .data = classes}};
    struct sup_result r = {
        .json = "", .count = 2, .tensors = t, .last = true, .model = j->model, .version = 1};

    memcpy(t[0].shape, j->shape, sizeof j->shape);
    t[1].bytes = 8 * (size_t)j->shape[0];
    if (has(j->model, "-nan"))
        j->data[0] = NAN;
    j->part(j->ctx, &r);
}

static void send_tokens(struct job *j, int from, int to, bool last)
{
    uint8_t text[4096];
    int32_t ids[4096], lengths[4096], tops[4096];
    float values[4096], top_values[4096];
    char json[160];
    int64_t k = to - from;
    struct wire_tensor t[8] = {
        {.name = "text", .dtype = "UINT8", .rank = 1, .shape = {k}, .data = text, .bytes = (size_t)k},
        {.name = "tokens", .dtype = "INT32", .rank = 1, .shape = {k}, .data = ids, .bytes = 4 * (size_t)k},
        {.name = "lengths",
         .dtype = "INT32",
         .rank = 1,
         .shape = {k},
         .data = lengths,
         .bytes = 4 * (size_t)k},
        {.name = "logprobs",
         .dtype = "FP32",
         .rank = 1,
         .shape = {k},
         .data = values,
         .bytes = 4 * (size_t)k},
        {.name = "top_tokens",
         .dtype = "INT32",
         .rank = 2,
         .shape = {k, 1},
         .data = tops,
         .bytes = 4 * (size_t)k},
        {.name = "top_logprobs",
         .dtype = "FP32",
         .rank = 2,
         .shape = {k, 1},
         .data = top_values,
         .bytes = 4 * (size_t)k},
        {.name = "top_text", .dtype = "UINT8", .rank = 1, .shape = {k}, .data = text, .bytes = (size_t)k},
        {.name = "top_lengths",
         .dtype = "INT32",
         .rank = 2,
         .shape = {k, 1},
         .data = lengths,
         .bytes = 4 * (size_t)k}};
    struct sup_result r = {.json = "",
                           .count = j->logprobs < 0    ? 3
                                    : j->logprobs == 0 ? 4
                                                       : 8,
                           .tensors = t,
                           .last = last,
                           .model = j->model,
                           .version = 1};

    for (int i = from; i < to; i++) {
        text[i - from] = (uint8_t)said[(size_t)i % (sizeof said - 1)];
        ids[i - from] = tops[i - from] = text[i - from];
        lengths[i - from] = 1;
        values[i - from] = i == 0 ? NAN : -0.5f;
        top_values[i - from] = -0.5f;
    }
    if (last) {
        snprintf(json, sizeof json,
                 "{\"finish_reason\":\"length\",\"prompt_tokens\":%lld,\"completion_tokens\":%d}",
                 (long long)j->prompt, j->tokens);
        r.json = json;
        r.json_len = strlen(json);
    }
    j->part(j->ctx, &r);
}

static void send_error(struct job *j, enum pd_err err, const char *text)
{
    struct sup_result r = {
        .err = err, .text = text, .json = "", .last = true, .model = j->model, .version = 1};

    j->part(j->ctx, &r);
}

/* One step of a job, without the lock; true when it is over. */
static bool step(struct job *j, int64_t now)
{
    struct pd_why why = {.text = "the checkpoint is broken"};

    if (j->load) {
        j->done(j->ctx, has(j->model, "-broken") ? PD_ERR_CORRUPT : PD_OK,
                has(j->model, "-broken") ? &why : NULL);
        return true;
    }
    if (j->cancelled) {
        printf("cancelled %s after %d\n", j->model, j->token);
        fflush(stdout);
        send_error(j, PD_ERR_CANCELLED, "cancelled");
        return true;
    }
    if (j->until_us && now > j->until_us) {
        send_error(j, PD_ERR_TIMEOUT, "the deadline passed");
        return true;
    }
    if (!j->complete) {
        send_infer(j);
        return true;
    }
    if (has(j->model, "-dies") && j->token == 5) {
        send_error(j, PD_ERR_CLOSED, "the worker died");
        return true;
    }
    if (!j->stream && !has(j->model, "-slow") && !has(j->model, "-dies")) {
        send_tokens(j, 0, j->tokens, true);
        return true;
    }
    if (j->stream) {
        send_tokens(j, j->token, j->token + (j->token < j->tokens), j->token + 1 >= j->tokens);
    } else if (j->token + 1 >= j->tokens) {
        send_tokens(j, 0, j->tokens, true);
    }
    j->token++;
    j->due_us = now + (has(j->model, "-slow") ? 20000 : 0);
    return j->token >= j->tokens;
}

static void *answer(void *arg)
{
    struct sup *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        int64_t now = pd_clock_mono_us(), next = now + 50000;

        for (int i = 0; i < JOBS_MAX; i++) {
            struct job *j = &s->jobs[i];
            bool over;

            if (!j->used || (!j->load && has(j->model, "-deaf")))
                continue;
            if (j->due_us > now && !j->cancelled) {
                if (j->due_us < next)
                    next = j->due_us;
                continue;
            }
            pthread_mutex_unlock(&s->lock);
            over = step(j, now);
            pthread_mutex_lock(&s->lock);
            if (over)
                j->used = false;
            next = now;
        }
        if (next > now) {
            struct timespec at = {.tv_sec = next / 1000000, .tv_nsec = next % 1000000 * 1000};

            pthread_cond_timedwait(&s->wake, &s->lock, &at);
        }
    }
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->jobs[i];
        struct pd_why why = {.text = "stopping"};

        if (!j->used)
            continue;
        pthread_mutex_unlock(&s->lock);
        if (j->load)
            j->done(j->ctx, PD_ERR_CLOSED, &why);
        else if (has(j->model, "-deaf") && j->complete)
            send_tokens(j, 0, j->tokens, true);
        else if (has(j->model, "-deaf"))
            send_infer(j);
        else
            send_error(j, PD_ERR_CLOSED, "stopping");
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

struct sup *fake_sup_new(const char *log_dir)
{
    struct sup *s = calloc(1, sizeof *s);
    pthread_condattr_t attr;

    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    snprintf(s->log_dir, sizeof s->log_dir, "%s", log_dir);
    if (pthread_create(&s->thread, NULL, answer, s) != 0) {
        free(s);
        return NULL;
    }
    return s;
}

struct sup *sup_stop(struct sup *s)
{
    if (!s)
        return NULL;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

void sup_notify(struct sup *s)
{
    pthread_mutex_lock(&s->lock);
    s->notified++;
    pthread_mutex_unlock(&s->lock);
}

int64_t sup_alive_us(struct sup *s)
{
    (void)s;
    return pd_clock_mono_us();
}

void sup_device_list(struct sup *s, void (*row)(void *ctx, const struct sup_device *d), void *ctx)
{
    struct sup_device free_one = {.id = "cpu:0",
                                  .name = "cpu:0",
                                  .kind = "cpu",
                                  .model = "Test \"CPU\"",
                                  .threads = 2,
                                  .memory_bytes = 1 << 30,
                                  .state = "free"};
    struct sup_device busy = {.id = "cpu:1",
                              .name = "cpu:1",
                              .kind = "cpu",
                              .model = "Test",
                              .threads = 2,
                              .run_id = 3,
                              .attempt = 1,
                              .state = "busy"};

    (void)s;
    row(ctx, &free_one);
    row(ctx, &busy);
}

bool sup_cuda(struct sup *s, char ret_why[SUP_WHY_BYTES])
{
    (void)s;
    strcpy(ret_why, "this node has no NVIDIA GPU: the test has none");
    return false;
}

int sup_gpu_count(struct sup *s, const char **ret_why, const struct device_driver **ret_driver)
{
    static const struct device_driver none;

    (void)s;
    if (ret_why)
        *ret_why = "the test has none";
    if (ret_driver)
        *ret_driver = &none;
    return 0;
}

bool sup_queue_get(struct sup *s, int64_t run_id, struct sup_queue_info *ret)
{
    (void)s;
    ret->position = (int)run_id;
    snprintf(ret->reason, sizeof ret->reason, "waiting for a CPU slot: all are in use");
    return true;
}

enum pd_err sup_fit(struct sup *s, const char *device, int slots, int64_t need_bytes,
                    struct sup_queue_info *ret, char *devices, size_t size, struct pd_why *why)
{
    (void)s;
    (void)device;
    snprintf(devices, size, "cpu:0");
    (void)need_bytes;
    if (slots > 2)
        return pd_fail(why, PD_ERR_LIMIT, "there are 2 cpu slots");
    ret->position = 1;
    snprintf(ret->reason, sizeof ret->reason, "waiting for %d CPU slots", slots);
    return PD_OK;
}

int64_t sup_memory(struct sup *s, const char *device, int slots)
{
    (void)s;
    (void)device;
    (void)slots;
    return 0;
}

bool sup_progress_get(struct sup *s, int64_t run_id, struct sup_progress *ret)
{
    (void)s;
    (void)run_id;
    *ret = (struct sup_progress){.step = 17,
                                 .total = 100,
                                 .updated_us = pd_clock_wall_us(),
                                 .phase = "compiling kernels of formulas: gradients in bf16 (2 of 2)"};
    return true;
}

void sup_log_path(struct sup *s, int64_t run_id, int attempt, char *out, size_t size)
{
    snprintf(out, size, "%s/run-%lld-%d.log", s->log_dir, (long long)run_id, attempt);
}

void sup_stats(struct sup *s, struct sup_stats *ret)
{
    (void)s;
    memset(ret, 0, sizeof *ret);
}

enum pd_err sup_plan(struct sup *s, const struct sup_planning *asked, struct pd_why *why)
{
    struct pd_why refused = {.text = "#/data/path: the planner refused"},
                  late = {.text = "a plan takes long"};

    (void)s;
    (void)why;
    /* At once, on the caller's thread: the hardest order for the caller. */
    if (memmem(asked->document, asked->len, "unplannable", 11))
        asked->done(asked->ctx, PD_ERR_INVALID, &refused, NULL);
    else if (memmem(asked->document, asked->len, "planned late", 12))
        asked->done(asked->ctx, PD_ERR_TIMEOUT, &late, NULL);
    else
        asked->done(asked->ctx, PD_OK, NULL, "{\"device_bytes\":1234}");
    return PD_OK;
}

enum pd_err sup_data_list(struct sup *s, const struct sup_listing *asked, struct pd_why *why)
{
    (void)s;
    (void)asked;
    return pd_fail(why, PD_ERR_UNSUPPORTED, "the test has no worker to list data");
}

enum pd_err sup_weights_ask(struct sup *s, const struct sup_weights *asked, struct pd_why *why)
{
    const char *to = NULL, *from = NULL;
    char path[1024], *text;
    struct pd_buf document;
    json_t *answer;
    enum pd_err err;
    FILE *f;

    for (int i = 0; asked->args[i]; i++) {
        if (strcmp(asked->args[i], "--to") == 0)
            to = asked->args[i + 1];
        if (strcmp(asked->args[i], "--path") == 0)
            from = asked->args[i + 1];
    }
    f = to && from ? fopen(to, "w") : NULL;
    if (!f)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "the test has no worker for this command");
    fputs("weights", f);
    fclose(f);
    /* The file that the request names is the document of the network, if it exists. */
    snprintf(path, sizeof path, "%s/%s", s->log_dir, from);
    pd_buf_init(&document, 0);
    err = pd_file_read(path, 1 << 20, &document, why);
    answer = json_pack("{s:s,s:i,s:i,s:s}", "sha256",
                       "9ac24b0ce2c06a9bb6bbfb6c4d0e4e83f6ec8a4f9f8df54a42e1d6b1c7f6d3a2", "bytes", 7, "step",
                       0, "document", err == PD_OK ? document.data : "");
    text = answer ? json_dumps(answer, 0) : NULL;
    json_decref(answer);
    pd_buf_done(&document);
    if (!text)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the answer");
    asked->done(asked->ctx, PD_OK, NULL, text);
    free(text);
    return PD_OK;
}

/* ---- models ----------------------------------------------------------------------------------- */

const char *sup_model_state_name(enum sup_model_state state)
{
    static const char *const names[] = {"UNAVAILABLE", "LOADING", "READY", "UNLOADING"};

    return names[state];
}

static struct model *find(struct sup *s, const char *name, int64_t version)
{
    struct model *found = NULL;

    for (int i = 0; i < MODELS_MAX; i++)
        if (strcmp(s->models[i].name, name) == 0 && (version == 0 || s->models[i].version == version) &&
            (!found || s->models[i].version > found->version))
            found = &s->models[i];
    return found;
}

static void info(const struct model *m, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx)
{
    struct sup_model_info i = {
        .model = m->name,
        .version = m->version,
        .state = m->state,
        .wanted = m->state == SUP_MODEL_READY,
        .reason = "",
        .signature = strncmp(m->name, "lm", 2) == 0
                         ? "{\"platform\":\"polyd_cpu\",\"kind\":\"language\",\"inputs\":[],\"outputs\":[],"
                           "\"context\":128,\"vocabulary\":256}"
                         : "{\"platform\":\"polyd_cpu\",\"kind\":\"classifier\",\"inputs\":[{\"name\":\"x\","
                           "\"datatype\":\"FP32\",\"shape\":[-1,4]}],"
                           "\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[-1,4]},{\"name\":"
                           "\"class\",\"datatype\":\"INT64\",\"shape\":[-1]}],"
                           "\"batch_max\":16}",
        .requests = m->requests,
        .stats = &m->stats,
    };

    row(ctx, &i);
}

void sup_model_list(struct sup *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < MODELS_MAX; i++)
        if (s->models[i].name[0])
            info(&s->models[i], row, ctx);
    pthread_mutex_unlock(&s->lock);
}

enum pd_err sup_model_get(struct sup *s, const char *model, int64_t version,
                          void (*row)(void *ctx, const struct sup_model_info *m), void *ctx,
                          struct pd_why *why)
{
    struct model *m;

    pthread_mutex_lock(&s->lock);
    m = find(s, model, version);
    if (m)
        info(m, row, ctx);
    pthread_mutex_unlock(&s->lock);
    return m ? PD_OK : pd_fail(why, PD_ERR_NOT_FOUND, "'%s' is not loaded", model);
}

static struct job *job_new(struct sup *s)
{
    for (int i = 0; i < JOBS_MAX; i++) {
        if (!s->jobs[i].used) {
            memset(&s->jobs[i], 0, sizeof s->jobs[i]);
            s->jobs[i].used = true;
            s->jobs[i].id = ++s->next;
            pthread_cond_signal(&s->wake);
            return &s->jobs[i];
        }
    }
    return NULL;
}

static void nobody_waits(void *ctx, enum pd_err err, const struct pd_why *why)
{
    (void)ctx;
    (void)err;
    (void)why;
}

static enum pd_err move(struct sup *s, const char *model, int64_t version, bool load,
                        void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                        struct pd_why *why)
{
    struct model *m;
    struct job *j;

    pthread_mutex_lock(&s->lock);
    m = find(s, model, version);
    if (!load && !m) {
        pthread_mutex_unlock(&s->lock);
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%s' is not loaded", model);
    }
    if (!m)
        for (int i = 0; i < MODELS_MAX && !m; i++)
            if (!s->models[i].name[0])
                m = &s->models[i];
    j = job_new(s);
    if (!m || !j) {
        pthread_mutex_unlock(&s->lock);
        return pd_fail(why, PD_ERR_BUSY, "the fake is full");
    }
    snprintf(m->name, sizeof m->name, "%s", model);
    m->version = version ? version : 1;
    m->state = load && !has(model, "-broken") ? SUP_MODEL_READY : SUP_MODEL_UNAVAILABLE;
    if (!load)
        m->name[0] = '\0';
    snprintf(j->model, sizeof j->model, "%s", model);
    j->load = true;
    j->done = done ? done : nobody_waits;
    j->ctx = ctx;
    j->due_us = pd_clock_mono_us() + (has(model, "-slow") ? 300000 : 0);
    pthread_mutex_unlock(&s->lock);
    return PD_OK;
}

enum pd_err sup_model_load(struct sup *s, const char *model, int64_t version,
                           void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                           struct pd_why *why)
{
    return move(s, model, version, true, done, ctx, why);
}

enum pd_err sup_model_unload(struct sup *s, const char *model, int64_t version,
                             void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                             struct pd_why *why)
{
    return move(s, model, version, false, done, ctx, why);
}

enum pd_err sup_infer(struct sup *s, const struct sup_infer *req, uint64_t *ret_id, struct pd_why *why)
{
    json_t *params = json_loadb(req->json, req->json_len, 0, NULL), *member;
    struct model *m;
    struct job *j;
    enum pd_err err = PD_OK;

    pthread_mutex_lock(&s->lock);
    m = find(s, req->model, req->version);
    if (!params)
        err = pd_fail(why, PD_ERR_INTERNAL, "the parameters are not JSON: %.200s", req->json);
    else if (!m)
        err = pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded", req->model);
    else if (has(req->model, "-full")) {
        err = pd_fail(why, PD_ERR_BUSY, "256 requests are waiting");
        m->stats.rejected++;
    } else if (has(req->model, "-loading"))
        err = pd_fail(why, PD_ERR_CLOSED, "model '%s' is loading", req->model);
    else if (strcmp(req->kind, "infer") != 0 && strcmp(req->kind, "complete") != 0)
        err = pd_fail(why, PD_ERR_UNSUPPORTED, "these models have no tokenizer");
    else if (strncmp(req->model, "pic", 3) == 0) {
        if (strcmp(req->tensors[0].dtype, "BYTES") != 0 || req->tensors[0].bytes < 7)
            err = pd_fail(why, PD_ERR_INVALID, "input 'image' must be BYTES [1]");
    } else if (strcmp(req->kind, "infer") == 0 &&
               (req->tensors[0].bytes > sizeof j->data || strcmp(req->tensors[0].dtype, "FP32") != 0))
        err = pd_fail(why, PD_ERR_INVALID, "input 'x' must be FP32 [-1,4]");
    j = err == PD_OK ? job_new(s) : NULL;
    if (err == PD_OK && !j)
        err = pd_fail(why, PD_ERR_BUSY, "the fake is full");
    if (err == PD_OK) {
        m->requests++;
        m->stats.batch.count[0]++;
        m->stats.batch.sum++;
        m->stats.compute.count[1]++;
        m->stats.compute.sum += 0.002;
        *ret_id = j->id;
        snprintf(j->model, sizeof j->model, "%s", req->model);
        j->part = req->part;
        j->ctx = req->ctx;
        j->complete = strcmp(req->kind, "complete") == 0;
        j->until_us = req->deadline_us ? pd_clock_mono_us() + req->deadline_us : 0;
        if (j->complete) {
            member = json_object_get(params, "max_tokens");
            j->tokens = member ? (int)json_integer_value(member) : 16;
            member = json_object_get(params, "logprobs");
            j->logprobs = member ? (int)json_integer_value(member) : -1;
            j->stream = json_is_true(json_object_get(params, "stream"));
            j->prompt = req->tensors[0].shape[0];
        } else if (strncmp(req->model, "pic", 3) == 0) {
            const uint8_t *bytes = req->tensors[0].data;
            uint32_t n;

            memcpy(&n, bytes, 4);
            j->data[0] = (float)n;
            for (int i = 1; i < 4; i++)
                j->data[i] = bytes[3 + i];
            j->bytes = 4 * sizeof j->data[0];
            j->rank = 2;
            j->shape[0] = 1;
            j->shape[1] = 4;
        } else {
            memcpy(j->data, req->tensors[0].data, req->tensors[0].bytes);
            j->bytes = req->tensors[0].bytes;
            j->rank = req->tensors[0].rank;
            memcpy(j->shape, req->tensors[0].shape, sizeof j->shape);
            j->due_us = has(req->model, "-never")
                            ? INT64_MAX
                            : pd_clock_mono_us() + (has(req->model, "-slow") ? 300000 : 0);
        }
    }
    pthread_mutex_unlock(&s->lock);
    json_decref(params);
    return err;
}

void sup_infer_cancel(struct sup *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < JOBS_MAX; i++)
        if (s->jobs[i].used && s->jobs[i].id == id)
            s->jobs[i].cancelled = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}
