/* step_bench: time and memory of whole training steps on the CPU back end.
 *
 *   step_bench [--model vit|gpt|gpt1k] [--phi softmax|poly] [--steps N] [--threads N] [--batch N] [--profile]
 *
 * vit: ViT-Tiny, image 64, patch 4, batch 32. gpt: 6 x 384 x 6, T 256, batch 8, vocabulary 50257 (gpt1k:
 * 1024). One step is forward, backward, clipping (gpt) and AdamW in f32. Prints one line: the median wall
 * time, the 10 % and 90 % points, CPU time per step, and the peak resident size of the process. --profile
 * prints the CPU time by op. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/model/model.h"
#include "kernels/base/log.h"

static double seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void check(enum pd_err err, const struct pd_why *why)
{
    if (err != PD_OK) {
        fprintf(stderr, "step_bench: %s\n", why->text);
        exit(1);
    }
}

static void host_log(void *user, int level, const char *text)
{
    (void)user;
    pd_log((enum pd_log_level)level, "cpu", "%s", text);
}

/* ---- profile ---- */

#define ROWS 400

struct profile {
    struct {
        char name[160];
        double time;
        int count;
    } row[ROWS];
    int rows;
    double last;
    bool full;
};

/* "blocks.3.attn/matmul#17" counts as "matmul" with the shape of its output. */
static void traced(void *user, const char *node, const struct pk_view *out, int n)
{
    struct profile *p = user;
    double now = seconds(CLOCK_PROCESS_CPUTIME_ID); /* robust on a shared machine */
    const char *slash = strrchr(node, '/'), *op = slash ? slash + 1 : node;
    char name[160], shape[96] = "";
    int i = 0;

    if (n > 0)
        pk_shape_text(&out[0].shape, shape, sizeof shape);
    snprintf(name, sizeof name, "%.*s %s", (int)strcspn(op, "#"), op, shape);
    while (i < p->rows && strcmp(p->row[i].name, name) != 0)
        i++;
    if (i == p->rows && p->rows < ROWS)
        memcpy(p->row[p->rows++].name, name, sizeof name);
    if (i < ROWS) {
        p->row[i].time += now - p->last;
        p->row[i].count++;
    }
    p->last = seconds(CLOCK_PROCESS_CPUTIME_ID);
}

static void profile_print(struct profile *p, int steps)
{
    double total = 0;

    for (int i = 0; i < p->rows; i++)
        total += p->row[i].time;
    for (;;) {
        int best = -1;

        for (int i = 0; i < p->rows; i++)
            if (p->row[i].time > 0 && (best < 0 || p->row[i].time > p->row[best].time))
                best = i;
        if (best < 0 || p->row[best].time < 0.003 * total)
            break;
        printf("%8.2f ms %5.1f %% %5d x  %s\n", 1e3 * p->row[best].time / steps,
               100 * p->row[best].time / total, p->row[best].count / steps, p->row[best].name);
        p->row[best].time = 0;
    }
    printf("%8.2f ms in all\n", 1e3 * total / steps);
}

int main(int argc, char **argv)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    const struct pk_host host = {.log = host_log};
    struct model_spec spec = {.dtype = PK_F32,
                              .bias = true,
                              .final_norm = true,
                              .init = MODEL_INIT_TRUNC_NORMAL,
                              .init_logit_std = -1,
                              .scale_value = 1,
                              .scale_lr_mult = 1};
    struct model_train_options train = {
        .optimizer = MODEL_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const char *model_name = "vit", *phi = "softmax";
    int steps = 7, threads = 2, batch = 0;
    bool profile = false;
    static struct profile prof;
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
        else if (i + 1 < argc && strcmp(argv[i], "--steps") == 0)
            steps = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--batch") == 0)
            batch = atoi(argv[++i]);
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
        spec.scale_value = 1.0 / 16;
    } else {
        fprintf(stderr, "step_bench: no phi '%s'\n", phi);
        return 2;
    }
    check(model_new(&spec, &model, &why), &why);
    check(api->open(&host, 0, threads, &backend, &why), &why);
    check(model_graph_train(model, &train, false, &graph, &why), &why);
    check(pk_exec_new(graph, api, backend, &exec, &why), &why);
    pk_exec_report(exec, &report);
    check(model_store_new(model, api, backend, &store, &why), &why);
    check(model_store_init(store, 1, &why), &why);
    check(model_store_bind(store, exec, graph, &why), &why);
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
        memset(memory, 0, leaf.bytes);
        if (strcmp(leaf.name, "hyper") == 0) {
            const float hyper[4] = {1e-4f, 0.1f, 0.05f, 0};

            memcpy(memory, hyper, sizeof hyper);
        } else if (leaf.kind == PK_OP_INPUT && leaf.dtype == PK_F32) {
            for (size_t k = 0; k < leaf.bytes / sizeof(float); k++)
                ((float *)memory)[k] = sinf((float)k * 0.37f);
        } else if (leaf.kind == PK_OP_INPUT && leaf.dtype == PK_I32) {
            for (size_t k = 0; k < leaf.bytes / sizeof(int32_t); k++)
                ((int32_t *)memory)[k] =
                    (int32_t)(k * 7919 % (size_t)(spec.arch == MODEL_GPT ? spec.vocab : spec.classes));
        }
        check(pk_exec_bind(exec, leaf.name, memory, &why), &why);
    }
    check(pk_exec_run(exec, &why), &why); /* warm */
    times = calloc((size_t)steps, sizeof *times);
    if (!times || steps < 1)
        return 2;
    if (profile) {
        prof.last = seconds(CLOCK_PROCESS_CPUTIME_ID);
        pk_exec_trace(exec, traced, &prof);
    }
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < steps; i++) {
        double t0 = seconds(CLOCK_MONOTONIC);

        prof.last = seconds(CLOCK_PROCESS_CPUTIME_ID);
        check(pk_exec_run(exec, &why), &why);
        times[i] = seconds(CLOCK_MONOTONIC) - t0;
    }
    cpu = (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / steps;
    if (profile)
        profile_print(&prof, steps);
    qsort(times, (size_t)steps, sizeof *times, ascending);
    getrusage(RUSAGE_SELF, &usage);
    printf("model=%s phi=%s threads=%d batch=%d steps=%d median_s=%.4f p10_s=%.4f p90_s=%.4f cpu_s=%.4f "
           "peak_rss_mb=%.0f arena_mb=%.0f live_bound_mb=%.0f nodes=%zu\n",
           model_name, phi, threads, train.batch, steps, times[steps / 2], times[steps / 10],
           times[steps * 9 / 10], cpu, (double)usage.ru_maxrss / 1024, (double)report.arena_bytes / 1048576,
           (double)report.live_bound / 1048576, report.nodes);
    free(times);
    pk_exec_free(exec);
    pk_graph_free(graph);
    model_store_free(store);
    model_free(model);
    api->close(backend);
    return 0;
}
