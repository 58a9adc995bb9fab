/* step_bench: time and memory of whole training steps on one back end.
 *
 *   step_bench [--model vit|gpt|gpt1k|vit_s16|vit_b16|gpt2] [--phi softmax|poly] [--device cpu|cuda]
 *              [--precision fp32|tf32|bf16] [--steps N] [--threads N] [--batch N] [--profile]
 *              [--roofline PARTS]
 *
 * vit: ViT-Tiny, image 64, patch 4, batch 32. gpt: 6 x 384 x 6, T 256, batch 8, vocabulary 50257 (gpt1k:
 * 1024). vit_s16, vit_b16: image 224, patch 16, batch 256. gpt2: 124M, T 1024, batch 16, vocabulary 50304.
 * One step is forward, backward, clipping (gpt) and AdamW. Prints one line: the median wall time of a step,
 * from its start to the end of its last kernel, the 10 % and 90 % points, CPU time per step, the peak
 * resident size of the process and, of a GPU, the bytes in use. --profile prints the CPU time by op.
 *
 * --roofline runs nothing and needs no device: it counts what a step of PARTS batches moves and computes, and
 * its time at the speeds of an H200 (kernels/graph/roofline.h). PARTS above 1 is a step in parts, as a job of
 * more samples than fit at once takes it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/model/model.h"
#include "kernels/backend/load.h"
#include "kernels/graph/roofline.h"
#include "tests/bench/bench.h"

/* Fills a leaf with numbers of its kind, the same every time. */
static void fill(const struct pk_backend_api *api, struct pk_backend *backend, struct pk_leaf leaf,
                 void *memory, int64_t values)
{
    unsigned char *host = calloc(1, leaf.bytes + 1);
    struct pd_why why;

    if (!host) {
        fprintf(stderr, "step_bench: no memory\n");
        exit(1);
    }
    if (strcmp(leaf.name, "hyper") == 0) {
        const float hyper[4] = {1e-4f, 0.1f, 0.05f, 0};

        memcpy(host, hyper, sizeof hyper);
    } else if (leaf.kind == PK_OP_INPUT && leaf.dtype == PK_F32) {
        for (size_t k = 0; k < leaf.bytes / sizeof(float); k++)
            ((float *)(void *)host)[k] = sinf((float)(k % 1000003) * 0.37f);
    } else if (leaf.kind == PK_OP_INPUT && leaf.dtype == PK_I32) {
        for (size_t k = 0; k < leaf.bytes / sizeof(int32_t); k++)
            ((int32_t *)(void *)host)[k] = (int32_t)(k * 7919 % (size_t)values);
    }
    bench_check(api->upload(backend, memory, host, leaf.bytes, &why), &why);
    free(host);
}

static void count(const struct model *model, const struct model_train_options *train,
                  const struct pk_backend_api *api, bool mixed, int parts)
{
    enum pd_err (*const make[2])(const struct model *, const struct model_train_options *, struct pk_graph **,
                                 struct pd_why *) = {model_graph_part, model_graph_apply};
    const struct pk_peaks peaks = PK_PEAKS_H200;
    struct pk_roofline sum = {0};
    struct pd_buf text;
    struct pd_why why;

    pd_buf_init(&text, 0);
    for (int i = 0; i < (parts > 1 ? 2 : 1); i++) {
        const double times = parts > 1 && i == 0 ? parts : 1;
        struct pk_plan_report report;
        struct pk_graph *graph = NULL;
        struct pk_exec *exec = NULL;

        bench_check(parts > 1 ? make[i](model, train, &graph, &why)
                              : model_graph_train(model, train, false, &graph, &why),
                    &why);
        pk_graph_precision(graph, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
        bench_check(pk_exec_new(graph, api, NULL, &exec, &why), &why);
        pk_exec_report(exec, &report);
        pd_buf_printf(&text, "%s: %zu kernels, arena %.0f MiB (most live at once %.0f MiB)\n",
                      parts <= 1 ? "step"
                      : i == 0   ? "part"
                                 : "apply",
                      report.nodes, (double)report.arena_bytes / 1048576,
                      (double)report.live_bound / 1048576);
        for (int c = 0; c < PK_CAT_COUNT; c++)
            if (report.bytes[c])
                pd_buf_printf(&text, "  %-12s %9.1f MiB\n", pk_category_name((enum pk_category)c),
                              (double)report.bytes[c] / 1048576);
        bench_check(pk_roofline_nodes(exec, &peaks, times, 40, &text, &why), &why);
        pk_roofline_add(&sum, exec, &peaks, times);
        pk_exec_free(exec);
        pk_graph_free(graph);
    }
    pk_roofline_text(&sum, &peaks, &text);
    fputs(text.data ? text.data : "", stdout);
    pd_buf_done(&text);
}

int main(int argc, char **argv)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    const struct pk_host host = {.log = bench_log};
    struct model_spec spec = {.dtype = PK_F32,
                              .bias = true,
                              .final_norm = true,
                              .init = MODEL_INIT_TRUNC_NORMAL,
                              .init_logit_std = -1,
                              .scale_value = 1,
                              .scale_lr_mult = 1};
    struct model_train_options train = {
        .optimizer = MODEL_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const char *model_name = "vit", *phi = "softmax", *device = "cpu", *precision = "fp32";
    struct pk_backend_info info;
    int steps = 7, threads = 2, batch = 0, parts = 0;
    bool profile = false;
    static struct bench_profile prof;
    struct pk_plan_report report;
    struct pk_backend *backend = NULL;
    struct model *model = NULL;
    struct model_store *store = NULL;
    struct pk_graph *graph = NULL;
    struct pk_exec *exec = NULL;
    double *times, cpu = 0;
    struct rusage usage;
    struct pd_why why;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--profile") == 0)
            profile = true;
        else if (i + 1 < argc && strcmp(argv[i], "--model") == 0)
            model_name = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--phi") == 0)
            phi = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--device") == 0)
            device = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--precision") == 0)
            precision = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--steps") == 0)
            steps = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0)
            batch = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--roofline") == 0)
            parts = atoi(argv[++i]);
        else {
            fprintf(stderr, "step_bench: what is '%s'?\n", argv[i]);
            return 2;
        }
    }
    if (strcmp(model_name, "vit") == 0) {
        spec.arch = MODEL_VIT;
        spec.width = 192, spec.depth = 12, spec.heads = 3, spec.mlp_width = 768, spec.norm_eps = 1e-6;
        spec.channels = 3, spec.image_h = spec.image_w = 64, spec.patch_h = spec.patch_w = 4,
        spec.classes = 200;
        spec.pool = MODEL_POOL_CLS;
        spec.n_for_scale = 256;
        train.batch = batch ? batch : 32;
    } else if (strcmp(model_name, "gpt") == 0 || strcmp(model_name, "gpt1k") == 0) {
        spec.arch = MODEL_GPT;
        spec.width = 384, spec.depth = 6, spec.heads = 6, spec.mlp_width = 1536, spec.norm_eps = 1e-5;
        spec.vocab = strcmp(model_name, "gpt") == 0 ? 50257 : 1024;
        spec.context = 256;
        spec.pos = true;
        spec.init = MODEL_INIT_NORMAL;
        spec.n_for_scale = 256;
        train.batch = batch ? batch : 8;
        train.context = 256;
        train.clip_norm = 1;
    } else if (strcmp(model_name, "vit_s16") == 0 || strcmp(model_name, "vit_b16") == 0) {
        bool base = strcmp(model_name, "vit_b16") == 0;

        spec.arch = MODEL_VIT;
        spec.width = base ? 768 : 384, spec.depth = 12, spec.heads = base ? 12 : 6;
        spec.mlp_width = 4 * spec.width, spec.norm_eps = 1e-6;
        spec.channels = 3, spec.image_h = spec.image_w = 224, spec.patch_h = spec.patch_w = 16,
        spec.classes = 1000;
        spec.pool = MODEL_POOL_CLS;
        spec.n_for_scale = 196;
        train.batch = batch ? batch : 256;
    } else if (strcmp(model_name, "gpt2") == 0) {
        spec.arch = MODEL_GPT;
        spec.width = 768, spec.depth = 12, spec.heads = 12, spec.mlp_width = 3072, spec.norm_eps = 1e-5;
        spec.vocab = 50304, spec.context = 1024;
        spec.pos = true;
        spec.init = MODEL_INIT_NORMAL;
        spec.n_for_scale = 1024;
        train.batch = batch ? batch : 16;
        train.context = 1024;
        train.clip_norm = 1;
    } else {
        fprintf(stderr, "step_bench: no model '%s'\n", model_name);
        return 2;
    }
    if (strcmp(phi, "softmax") == 0) {
        spec.phi = PK_PHI_SOFTMAX;
    } else if (strcmp(phi, "poly") == 0) {
        spec.phi = PK_PHI_POLY;
        spec.degree = 3;
        spec.scale = MODEL_SCALE_FIXED;
        spec.scale_value = 1.0 / sqrt((double)spec.n_for_scale);
    } else {
        fprintf(stderr, "step_bench: no phi '%s'\n", phi);
        return 2;
    }
    bench_check(model_new(&spec, &model, &why), &why);
    if (parts > 0) {
        if (strcmp(device, "cpu") != 0)
            bench_check(pk_backend_load(device, PK_LOAD_PLAN, &api, &why), &why);
        count(model, &train, api, strcmp(precision, "bf16") == 0, parts);
        model_free(model);
        return 0;
    }
    if (strcmp(device, "cpu") != 0)
        bench_check(pk_backend_load(device, PK_LOAD_RUN, &api, &why), &why);
    bench_check(api->open(&host, 0, threads, &backend, &why), &why);
    bench_check(model_graph_train(model, &train, false, &graph, &why), &why);
    if (strcmp(precision, "bf16") == 0) {
        pk_graph_precision(graph, PK_PRECISION_MIXED);
    } else if (strcmp(precision, "tf32") == 0) {
        bench_check(api->set_math(backend, PK_MATH_TF32, &why), &why);
    } else if (strcmp(precision, "fp32") != 0) {
        fprintf(stderr, "step_bench: no precision '%s'\n", precision);
        return 2;
    }
    bench_check(pk_exec_new(graph, api, backend, &exec, &why), &why);
    pk_exec_report(exec, &report);
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
            fprintf(stderr, "step_bench: no memory\n");
            return 1;
        }
        fill(api, backend, leaf, memory, spec.arch == MODEL_GPT ? spec.vocab : spec.classes);
        bench_check(pk_exec_bind(exec, leaf.name, memory, &why), &why);
    }
    for (int i = 0; i < 3; i++) /* the first run warms up, the second may record, the third replays */
        bench_check(pk_exec_run(exec, &why), &why);
    bench_check(api->sync(backend, &why), &why);
    times = calloc((size_t)steps, sizeof *times);
    if (!times || steps < 1)
        return 2;
    if (profile) {
        bench_profile_start(&prof, exec);
    }
    cpu = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < steps; i++) {
        double t0 = bench_seconds(CLOCK_MONOTONIC);

        bench_profile_mark(&prof);
        bench_check(pk_exec_run(exec, &why), &why);
        bench_check(api->sync(backend, &why), &why);
        times[i] = bench_seconds(CLOCK_MONOTONIC) - t0;
    }
    cpu = (bench_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / steps;
    if (profile)
        bench_profile_print(&prof, steps);
    bench_sort(times, (size_t)steps);
    getrusage(RUSAGE_SELF, &usage);
    bench_check(api->info(backend, &info, &why), &why);
    printf("model=%s phi=%s device=%s precision=%s threads=%d batch=%d steps=%d median_s=%.4f p10_s=%.4f "
           "p90_s=%.4f cpu_s=%.4f "
           "peak_rss_mb=%.0f arena_mb=%.0f live_bound_mb=%.0f nodes=%zu device_mb=%.0f name=\"%s\"\n",
           model_name, phi, device, precision, threads, train.batch, steps, times[steps / 2],
           times[steps / 10], times[steps * 9 / 10], cpu, (double)usage.ru_maxrss / 1024,
           (double)report.arena_bytes / 1048576, (double)report.live_bound / 1048576, report.nodes,
           info.sm ? (double)(info.memory_total - info.memory_free) / 1048576 : 0.0, info.name);
    free(times);
    pk_exec_free(exec);
    pk_graph_free(graph);
    model_store_free(store);
    model_free(model);
    api->close(backend);
    return 0;
}
