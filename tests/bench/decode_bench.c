/* decode_bench: time of one decoded token of each sequence, GPT-2 shape, on the CPU back end.
 *
 *   decode_bench [--layers N --width N --heads N] [--phi softmax|poly] [--bf16] [--batch N] [--tokens N]
 * [--threads N]
 * [--profile]
 *
 * GPT-2 124M by default (12 x 768 x 12, vocabulary 50257, context 1024), random weights, f32 (--bf16: the
 * weights alone in bf16). Decodes from position 0 on, so the median is that of position tokens/2. Prints the
 * median, the 10 % and 90 % points, and the weights read per second, beside the memory's own rate measured in
 * the same run: the sum over an array of 512 MiB. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/model.h"
#include "kernels/backend/cpu/pool.h"
#include "tests/bench/bench.h"

#define STREAM_BYTES ((size_t)512 << 20)
#define STREAM_TASKS 512

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

int main(int argc, char **argv)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    const struct pk_host host = {.log = bench_log};
    struct model_spec spec = {.arch = MODEL_GPT,
                              .dtype = PK_F32,
                              .bias = true,
                              .final_norm = true,
                              .gelu_tanh = true,
                              .norm_eps = 1e-5,
                              .width = 768,
                              .depth = 12,
                              .heads = 12,
                              .vocab = 50257,
                              .context = 1024,
                              .pos = true,
                              .init = MODEL_INIT_NORMAL,
                              .init_logit_std = -1,
                              .n_for_scale = 1024,
                              .scale_value = 1,
                              .scale_lr_mult = 1};
    const char *phi = "softmax";
    int tokens = 100, threads = 2, batch = 1;
    static const char *const names[] = {"input", "pos", "position", "length", "pick"};
    int32_t *inputs[5] = {NULL};
    bool profile = false;
    static struct bench_profile prof;
    struct pk_backend *backend = NULL;
    struct model *model = NULL;
    struct model_store *store = NULL;
    struct pk_graph *graph = NULL;
    struct pk_exec *exec = NULL;
    double *times, bytes, rate;
    struct pd_why why;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--profile") == 0)
            profile = true;
        else if (strcmp(argv[i], "--bf16") == 0)
            spec.weights = PK_BF16;
        else if (i + 1 < argc && strcmp(argv[i], "--layers") == 0)
            spec.depth = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--width") == 0)
            spec.width = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--heads") == 0)
            spec.heads = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--phi") == 0)
            phi = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--tokens") == 0)
            tokens = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0)
            batch = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[++i]);
        else {
            fprintf(stderr, "decode_bench: what is '%s'?\n", argv[i]);
            return 2;
        }
    }
    spec.mlp_width = 4 * spec.width;
    if (strcmp(phi, "softmax") == 0) {
        spec.phi = PK_PHI_SOFTMAX;
    } else if (strcmp(phi, "poly") == 0) {
        spec.phi = PK_PHI_POLY;
        spec.degree = 3;
        spec.scale = MODEL_SCALE_FIXED;
        spec.scale_value = 1.0 / 32;
    } else {
        fprintf(stderr, "decode_bench: no phi '%s'\n", phi);
        return 2;
    }
    if (tokens < 1 || tokens > spec.context || threads < 1 || batch < 1) {
        fprintf(stderr, "decode_bench: 1 to %d tokens on 1 thread or more, 1 sequence or more\n",
                spec.context);
        return 2;
    }
    bench_check(model_new(&spec, &model, &why), &why);
    bench_check(api->open(&host, 0, threads, &backend, &why), &why);
    bench_check(model_graph_decode(model, batch, 1, spec.context, &graph, &why), &why);
    bench_check(pk_exec_new(graph, api, backend, &exec, &why), &why);
    bench_check(model_store_new(model, api, backend, &store, &why), &why);
    bench_check(model_store_init(store, 1, &why), &why);
    bench_check(model_store_bind(store, exec, graph, &why), &why);
    for (size_t i = 0; i < pk_graph_leaf_count(graph); i++) {
        struct pk_leaf leaf = pk_graph_leaf(graph, i);
        void *memory;

        if (leaf.kind == PK_OP_PARAM)
            continue;
        memory = api->alloc(backend, leaf.bytes);
        if (!memory) {
            fprintf(stderr, "decode_bench: no memory\n");
            return 1;
        }
        memset(memory, 0, leaf.bytes);
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if (strcmp(leaf.name, names[k]) == 0)
                inputs[k] = memory;
        bench_check(pk_exec_bind(exec, leaf.name, memory, &why), &why);
    }
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        if (!inputs[k]) {
            fprintf(stderr, "decode_bench: the graph has no input '%s'\n", names[k]);
            return 1;
        }
    }
    for (int k = 0; k < batch; k++) {
        inputs[3][k] = 1;
        inputs[4][k] = k;
    }
    bench_check(pk_exec_run(exec, &why), &why); /* warm */
    times = calloc((size_t)tokens, sizeof *times);
    if (!times)
        return 1;
    if (profile)
        bench_profile_start(&prof, exec);
    for (int i = 0; i < tokens; i++) {
        double t0 = bench_seconds(CLOCK_MONOTONIC);

        for (int k = 0; k < batch; k++) {
            inputs[0][k] = (int32_t)((int64_t)(i + k) * 7919 % spec.vocab);
            inputs[1][k] = inputs[2][k] = i;
            inputs[3][k] = i + 1;
        }
        bench_profile_mark(&prof);
        bench_check(pk_exec_run(exec, &why), &why);
        times[i] = bench_seconds(CLOCK_MONOTONIC) - t0;
    }
    if (profile)
        bench_profile_print(&prof, tokens);
    bench_sort(times, (size_t)tokens);
    /* Every weight is read once, but of the two embeddings only a row. */
    bytes = (double)model_param_bytes(model) -
            (double)spec.context * spec.width * (double)pk_dtype_size(spec.weights);
    rate = memory_rate(api, backend, threads);
    printf("phi=%s weights=%s layers=%d width=%d batch=%d threads=%d tokens=%d median_ms=%.2f p10_ms=%.2f "
           "p90_ms=%.2f "
           "weights_gb_s=%.1f memory_gb_s=%.1f floor_ms=%.2f\n",
           phi, pk_dtype_name(spec.weights), spec.depth, spec.width, batch, threads, tokens,
           1e3 * times[tokens / 2], 1e3 * times[tokens / 10], 1e3 * times[tokens * 9 / 10],
           bytes / times[tokens / 2] / 1e9, rate / 1e9, 1e3 * bytes / rate);
    free(times);
    pk_exec_free(exec);
    pk_graph_free(graph);
    model_store_free(store);
    model_free(model);
    api->close(backend);
    return 0;
}
