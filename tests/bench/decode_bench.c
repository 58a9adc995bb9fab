/* decode_bench: time of one decoded token of each sequence, GPT-2 shape.
 *
 *   decode_bench [--device cpu|cuda] [--layers N --width N --heads N --vocab N]
 *                [--phi softmax|poly|x1|x2] [--state] [--bf16] [--batch N] [--at N] [--tokens N]
 *                [--threads N] [--turns] [--profile]
 *
 * GPT-2 124M by default (12 x 768 x 12, vocabulary 50257), random weights. On the CPU f32 (--bf16: the
 * weights alone in bf16), on a GPU bf16 throughout, as it is served. phi: softmax, x^3 (poly), x, x^2; with
 * --state x and x^2 decode with a state of constant size instead of a cache of keys and values.
 *
 * Decodes from position 0 on, so the median is that of position tokens/2; with --at N every token is the
 * N-th, with a cache of N. Prints the median, the 10 % and 90 % points, of a GPU also those of a step whose
 * inputs come from the host (fed_ms), the bytes of the cache or state, and the weights read per second; on
 * the CPU beside the memory's own rate measured in the same run: the sum over an array of 512 MiB.
 *
 * --turns: says "ready" and then decodes as many tokens as each line of standard input says, answering with
 * their seconds; the line comes at the end of input. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/model.h"
#include "kernels/backend/cpu/pool.h"
#include "tests/bench/bench.h"

#define STREAM_BYTES ((size_t)512 << 20)
#define STREAM_TASKS 512
#define TOKENS_MOST 100000

static volatile float sums[STREAM_TASKS]; /* or the compiler drops the reading */

static void stream_task(void *arg, int64_t task, int thread)
{
    const float *at = (const float *)arg + (size_t)task * (STREAM_BYTES / sizeof(float) / STREAM_TASKS);
    float s[64] = {0};

    (void)thread;
    for (size_t i = 0; i < STREAM_BYTES / sizeof(float) / STREAM_TASKS; i += 64)
        for (size_t k = 0; k < 64; k++)
            s[k] += at[i + k];
    for (size_t k = 1; k < 64; k++)
        s[0] += s[k];
    sums[task] = s[0];
}

/* Bytes a second that `threads` threads read from memory: the best of five. */
static double memory_rate(const struct pk_backend_api *api, struct pk_backend *backend, int threads)
{
    struct cpu_pool *pool = NULL;
    float *data = api->alloc(backend, STREAM_BYTES);
    double best = 0;
    struct pd_why why;

    if (!data)
        return 0;
    memset(data, 1, STREAM_BYTES); /* zeros would be one page, mapped many times */
    bench_check(cpu_pool_new(threads, &pool, &why), &why);
    for (int i = 0; i < 5; i++) {
        double t0 = bench_seconds(CLOCK_MONOTONIC), rate;

        cpu_pool_run(pool, STREAM_TASKS, stream_task, data);
        rate = (double)STREAM_BYTES / (bench_seconds(CLOCK_MONOTONIC) - t0);
        best = rate > best ? rate : best;
    }
    cpu_pool_free(pool);
    api->free(backend, data);
    return best;
}

struct bench {
    const char *phi, *device;
    int tokens, threads, batch, at, layers, width, heads, vocab;
    bool state, half, turns, profile;
    struct model_spec spec;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct pk_exec *exec;
    struct bench_leaves leaves;
    int32_t *host; /* (batch) */
    double *times, *fed;
    int count;
};

static void refuse(const char *what, const char *value)
{
    fprintf(stderr, "decode_bench: %s '%s'\n", what, value);
    exit(2);
}

static void arguments(struct bench *b, int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        int *number;
        bool *flag;
    } all[] = {
        {"--phi", &b->phi, NULL, NULL},       {"--device", &b->device, NULL, NULL},
        {"--tokens", NULL, &b->tokens, NULL}, {"--threads", NULL, &b->threads, NULL},
        {"--batch", NULL, &b->batch, NULL},   {"--at", NULL, &b->at, NULL},
        {"--layers", NULL, &b->layers, NULL}, {"--width", NULL, &b->width, NULL},
        {"--heads", NULL, &b->heads, NULL},   {"--vocab", NULL, &b->vocab, NULL},
        {"--state", NULL, NULL, &b->state},   {"--bf16", NULL, NULL, &b->half},
        {"--turns", NULL, NULL, &b->turns},   {"--profile", NULL, NULL, &b->profile},
    };

    for (int i = 1; i < argc; i++) {
        size_t k = 0;

        while (k < sizeof all / sizeof all[0] && strcmp(all[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof all / sizeof all[0] || (!all[k].flag && i + 1 == argc))
            refuse("what is", argv[i]);
        if (all[k].flag)
            *all[k].flag = true;
        else if (all[k].text)
            *all[k].text = argv[++i];
        else
            *all[k].number = atoi(argv[++i]);
    }
    if (b->tokens < 1 || b->tokens > TOKENS_MOST || b->threads < 1 || b->batch < 1 || b->at < 0)
        refuse("at least one token, thread and sequence, not those of", argv[0]);
}

static void choose(struct bench *b)
{
    struct model_spec *s = &b->spec;
    bool gpu = strcmp(b->device, "cpu") != 0;

    s->width = b->width, s->depth = b->layers, s->heads = b->heads, s->mlp_width = 4 * b->width;
    s->vocab = b->vocab;
    s->context = b->at > b->tokens ? b->at : b->tokens < 1024 ? 1024 : b->tokens;
    s->attention.n_for_scale = s->context;
    if (gpu)
        s->mixed = true; /* as daemon/worker/serve does */
    if (gpu || b->half)
        s->weights = PK_BF16;
    if (strcmp(b->phi, "softmax") == 0) {
        s->attention.phi = PK_PHI_SOFTMAX;
    } else {
        s->attention.phi = PK_PHI_POLY;
        s->attention.degree = !strcmp(b->phi, "poly") ? 3
                              : !strcmp(b->phi, "x1") ? 1
                              : !strcmp(b->phi, "x2") ? 2
                                                      : 0;
        s->attention.scale = MODEL_SCALE_FIXED;
        s->attention.scale_value = 1.0 / 32;
        if (!s->attention.degree)
            refuse("no phi", b->phi);
    }
    if (b->state && !model_has_state(s))
        refuse("no state of constant size with", b->phi);
}

static void put(struct bench *b, const char *name, int first, int each)
{
    for (int k = 0; k < b->batch; k++)
        b->host[k] = first + k * each;
    if (bench_leaves_find(&b->leaves, name))
        bench_leaves_put(&b->leaves, name, b->host, (size_t)b->batch * sizeof *b->host);
}

/* The inputs of the next token; ids and positions stay within the model. */
static void feed(struct bench *b)
{
    int at = b->at ? b->at - 1 : b->count % b->tokens;

    for (int k = 0; k < b->batch; k++)
        b->host[k] = (int32_t)((int64_t)(b->count + k) * 7919 % b->spec.vocab);
    bench_leaves_put(&b->leaves, "input", b->host, (size_t)b->batch * sizeof *b->host);
    put(b, "pos", at, 0);
    put(b, "position", at, 0);
    put(b, "length", at + 1, 0);
}

static double timed_token(struct bench *b)
{
    double t0 = bench_seconds(CLOCK_MONOTONIC), t1, t2;
    struct pd_why why;

    feed(b);
    t1 = bench_seconds(CLOCK_MONOTONIC);
    bench_check(pk_exec_run(b->exec, &why), &why);
    bench_check(b->api->sync(b->backend, &why), &why);
    t2 = bench_seconds(CLOCK_MONOTONIC);
    if (b->count < TOKENS_MOST) {
        b->fed[b->count] = t2 - t0;
        b->times[b->count++] = t2 - t1;
    }
    return t2 - t1;
}

static void take_turns(struct bench *b)
{
    char line[64];

    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int i = atoi(line); i > 0; i--)
            printf("%.6f ", timed_token(b));
        printf("\n");
        fflush(stdout);
    }
}

static void print(const struct bench *b, const struct model *model)
{
    /* Every weight is read once, but of the position embedding only a row. */
    double bytes = (double)model_param_bytes(model) -
                   (double)b->spec.context * b->spec.width * (double)pk_dtype_size(b->spec.weights);
    double memory = 0, rate = 0, median = b->times[b->count / 2];
    struct pk_backend_info info;
    struct pd_why why;

    for (int i = 0; i < b->leaves.count; i++)
        if (strncmp(b->leaves.leaf[i].name, "cache_", 6) == 0 ||
            strncmp(b->leaves.leaf[i].name, "state/", 6) == 0)
            memory += (double)b->leaves.leaf[i].bytes;
    if (strcmp(b->device, "cpu") == 0)
        rate = memory_rate(b->api, b->backend, b->threads);
    bench_check(b->api->info(b->backend, &info, &why), &why);
    printf(
        "phi=%s%s device=%s weights=%s layers=%d width=%d batch=%d at=%d threads=%d tokens=%d median_ms=%.4f "
        "p10_ms=%.4f p90_ms=%.4f fed_ms=%.4f tokens_s=%.0f cache_bytes=%.0f weights_bytes=%.0f "
        "weights_gb_s=%.1f",
        b->phi, b->state ? "-state" : "", b->device, pk_dtype_name(b->spec.weights), b->spec.depth,
        b->spec.width, b->batch, b->at, b->threads, b->count, 1e3 * median, 1e3 * b->times[b->count / 10],
        1e3 * b->times[b->count * 9 / 10], 1e3 * b->fed[b->count / 2], b->batch / median, memory, bytes,
        bytes / median / 1e9);
    if (rate > 0)
        printf(" memory_gb_s=%.1f floor_ms=%.2f", rate / 1e9, 1e3 * bytes / rate);
    printf(" name=\"%s\"\n", info.name);
}

int main(int argc, char **argv)
{
    static struct bench b = {.phi = "softmax",
                             .device = "cpu",
                             .tokens = 100,
                             .threads = 2,
                             .batch = 1,
                             .layers = 12,
                             .width = 768,
                             .heads = 12,
                             .vocab = 50257,
                             .spec = {.arch = &model_gpt,
                                      .dtype = PK_F32,
                                      .bias = true,
                                      .final_norm = true,
                                      .gelu_tanh = true,
                                      .norm_eps = 1e-5,
                                      .pos = true,
                                      .init = MODEL_INIT_NORMAL,
                                      .attention.init_logit_std = -1,
                                      .attention.scale_value = 1,
                                      .attention.scale_lr_mult = 1}};
    static struct bench_profile prof;
    struct model *model = NULL;
    struct model_store *store = NULL;
    struct pk_graph *graph = NULL;
    struct pd_why why;

    arguments(&b, argc, argv);
    choose(&b);
    bench_check(model_new(&b.spec, &model, &why), &why);
    bench_open(b.device, b.threads, &b.api, &b.backend);
    if (b.state)
        bench_check(model_graph_decode_state(model, b.batch, 1, &graph, &why), &why);
    else
        bench_check(model_graph_decode(model, b.batch, 1, b.spec.context, &graph, &why), &why);
    bench_check(pk_exec_new(graph, b.api, b.backend, &b.exec, &why), &why);
    bench_check(model_store_new(model, b.api, b.backend, &store, &why), &why);
    bench_check(model_store_init(store, 1, &why), &why);
    bench_check(model_store_bind(store, b.exec, graph, &why), &why);
    b.leaves.api = b.api;
    b.leaves.backend = b.backend;
    bench_leaves_bind(&b.leaves, b.exec, graph);
    bench_leaves_noise(&b.leaves, "cache_"); /* zeros would draw less power than anybody's keys and values */
    b.host = bench_memory((size_t)b.batch * sizeof *b.host);
    b.times = bench_memory(TOKENS_MOST * sizeof *b.times);
    b.fed = bench_memory(TOKENS_MOST * sizeof *b.fed);
    put(&b, "pick", 0, 1);
    for (int i = 0; i < 3; i++) /* call by call, recorded, replayed */
        timed_token(&b);
    b.count = 0;
    if (b.profile)
        bench_profile_start(&prof, b.exec);
    if (b.turns)
        take_turns(&b);
    else
        for (int i = 0; i < b.tokens; i++) {
            bench_profile_mark(&prof);
            timed_token(&b);
        }
    if (b.count == 0)
        refuse("no token was asked for by", argv[0]);
    if (b.profile)
        bench_profile_print(&prof, b.count);
    bench_sort(b.times, (size_t)b.count);
    bench_sort(b.fed, (size_t)b.count);
    print(&b, model);
    free(b.host);
    free(b.times);
    free(b.fed);
    bench_leaves_done(&b.leaves);
    pk_exec_free(b.exec);
    pk_graph_free(graph);
    model_store_free(store);
    model_free(model);
    b.api->close(b.backend);
    return 0;
}
