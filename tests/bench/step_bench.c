/* step_bench: time and memory of whole training steps on one back end.
 *
 *   step_bench [--model NAME] [--phi softmax|poly] [--device cpu|cuda] [--precision fp32|tf32|bf16|fp64]
 *              [--steps N] [--threads N] [--batch N] [--parts N] [--turns] [--profile]
 *              [--keep] [--roofline PARTS] [--dump FILE]
 *
 * vit: ViT-Tiny, image 64, patch 4, batch 32. gpt: 6 x 384 x 6, T 256, batch 8, vocabulary 50257 (gpt1k:
 * 1024). deit_ti, vit_s16, vit_b16: image 224, patch 16, batch 256. gpt2: 124M, T 1024, batch 16, vocabulary
 * 50304. tiny: 4 x 64 x 2, image 28, patch 7, batch 64, where starting kernels is what takes the time. swin_t,
 * xcit_s12: image 224, batch 8, without stochastic depth. pinn: the PINNsformer of 453,561 parameters on 51 x 51 points
 * of the convection equation; pinn_micro: 33,641, on 21 x 21; pinn_tiny: on 5 x 5, to try programs. nystrom: the Nystromformer of the Long Range Arena on ListOps,
 * 2000 tokens padded to 2048, 128 landmarks, six steps of the pseudo-inverse, batch 32, dropout 0.1; nystrom1k and
 * nystrom4k: half and twice as long.
 *
 * One step is forward, backward, clipping (gpt) and AdamW, of --parts batches one after the other; of a PINNsformer one evaluation
 * of loss and gradient, as its line search asks for it. Prints one
 * line: the median wall time of a step, from its start to the end of its last kernel, the 10 % and 90 %
 * points, CPU time per step, its products and attention as counted (gflop), the peak resident size of the process, how much of that came beyond what the process
 * held before the model and beyond weights, gradients and moments (extra_mb) and, of a GPU, the bytes that came into
 * use after it was opened (others on the GPU would be counted in; `first_s` is from the start of the program
 * to the end of its first step). `eager` counts the timed runs of graphs that went call by call, although the
 * device can record them.
 *
 * --turns: says "ready" and then runs as many steps as each line of standard input says, answering with their
 * seconds, so that another program can take turns on the same device. The line comes at the end of input.
 * --profile prints the CPU time by op.
 * --keep keeps every activation; otherwise cheap ones are computed again where that makes the plan smaller.
 * --dump runs no step: it writes initial weights, input, target, loss and every gradient, without dropout, to FILE
 * (safetensors), for a peer to be held to. fp64 is for this alone: it shows that a peer computes the same function, where f32 also has
 * rounding.
 *
 * --roofline runs nothing and needs no device: it counts what a step of PARTS batches moves and computes, and
 * its time at the speeds of an H200 (kernels/graph/roofline.h). PARTS above 1 is a step in parts, as a job of
 * more samples than fit at once takes it. --device none there: without any back end's scratch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/train/optim/search.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"
#include "kernels/backend/load.h"
#include "kernels/graph/roofline.h"
#include "tests/bench/bench.h"

#define STEPS_MOST 100000

struct bench {
    const char *model, *phi, *device, *precision, *dump;
    int steps, threads, batch, parts, roofline;
    bool turns, profile, keep;
    struct model_spec spec;
    struct model_train_options train;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    /* The step, or one part and the end of the step. */
    struct pk_exec *exec[2];
    struct bench_leaves leaves;
    double *times;
    int count;
};

static void refuse(const char *what, const char *value)
{
    fprintf(stderr, "step_bench: %s '%s'\n", what, value);
    exit(2);
}

static void arguments(struct bench *b, int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        int *number;
    } all[] = {
        {"--model", &b->model, NULL},       {"--phi", &b->phi, NULL},
        {"--device", &b->device, NULL},     {"--precision", &b->precision, NULL},
        {"--steps", NULL, &b->steps},       {"--threads", NULL, &b->threads},
        {"--batch", NULL, &b->batch},       {"--parts", NULL, &b->parts},
        {"--roofline", NULL, &b->roofline}, {"--dump", &b->dump, NULL},
    };

    for (int i = 1; i < argc; i++) {
        size_t k = 0;

        if (strcmp(argv[i], "--profile") == 0) {
            b->profile = true;
            continue;
        }
        if (strcmp(argv[i], "--keep") == 0) {
            b->keep = true;
            continue;
        }
        if (strcmp(argv[i], "--turns") == 0) {
            b->turns = true;
            continue;
        }
        while (k < sizeof all / sizeof all[0] && strcmp(all[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof all / sizeof all[0] || i + 1 == argc)
            refuse("what is", argv[i]);
        i++;
        if (all[k].text)
            *all[k].text = argv[i];
        else
            *all[k].number = atoi(argv[i]);
    }
    if (b->steps < 1 || b->steps > STEPS_MOST || b->threads < 1 || b->batch < 0 || b->parts < 1)
        refuse("steps, threads and parts are 1 or more, not those of", argv[0]);
    if (strcmp(b->precision, "fp32") && strcmp(b->precision, "tf32") && strcmp(b->precision, "bf16") &&
        (strcmp(b->precision, "fp64") || !b->dump))
        refuse("no precision", b->precision);
}

static void vision(struct bench *b, int width, int depth, int heads, int image, int patch, int classes,
                   int batch)
{
    struct model_spec *s = &b->spec;

    s->arch = &model_vit;
    s->width = width, s->depth = depth, s->heads = heads, s->mlp_width = 4 * width, s->norm_eps = 1e-6;
    s->channels = 3, s->image_h = s->image_w = image, s->patch_h = s->patch_w = patch;
    s->classes = classes;
    s->pixels = MODEL_PIXELS_BYTES; /* as jobs feed them */
    for (int c = 0; c < 3; c++)
        s->mean[c] = 0.5f, s->std[c] = 0.25f;
    s->pool = MODEL_POOL_CLS;
    s->attention.n_for_scale = (image / patch) * (image / patch);
    b->train.batch = b->batch ? b->batch : batch;
}

static void swin_t(struct bench *b)
{
    static const int32_t depth[] = {2, 2, 6, 2}, heads[] = {3, 6, 12, 24};
    struct model_spec *s = &b->spec;

    vision(b, 96, 12, 3, 224, 4, 1000, 8);
    s->arch = &model_swin;
    s->pool = MODEL_POOL_MEAN;
    s->norm_eps = 1e-5;
    s->window = 7;
    for (int i = 0; i < 4; i++) {
        s->stage_depth[i] = depth[i];
        s->stage_heads[i] = heads[i];
    }
    s->attention.n_for_scale = 49;
}

static void xcit_s12(struct bench *b)
{
    struct model_spec *s = &b->spec;

    vision(b, 384, 12, 8, 224, 16, 1000, 8);
    s->arch = &model_xcit;
    s->pos = true;
    s->layerscale = 1;
    s->class_depth = 2;
}

static void equation(struct bench *b, int width, int hidden, int head, int edge)
{
    struct model_spec *s = &b->spec;

    s->arch = &model_pinnsformer;
    s->width = width, s->depth = 1, s->heads = 2, s->mlp_width = hidden, s->head_width = head,
    s->norm_eps = 1e-6;
    s->equation = DATA_EQUATION_CONVECTION;
    s->coefficient = 50;
    s->context = 5;
    s->step = 1e-4;
    for (int i = 0; i < 2; i++)
        s->grid[i] = s->test_grid[i] = edge;
    s->init = MODEL_INIT_XAVIER;
    s->attention.n_for_scale = edge;
    b->train.batch = 1;
    b->train.loss = task_equation.loss;
    b->train.line_rows = 1; /* no history: it is no part of an evaluation */
    b->train.line_numbers = LBFGS_NUMBERS;
}

/* Points of the grid, as daemon/worker/data/points.c makes them. */
static void fill_points(struct bench *b)
{
    const struct model_spec *s = &b->spec;
    const size_t count = (size_t)s->grid[0] * (size_t)s->grid[1] * (size_t)s->context;
    float *x = bench_memory(count * sizeof *x), *t = bench_memory(count * sizeof *t);

    for (size_t i = 0; i < count; i++) {
        const size_t at = i / (size_t)s->context;

        x[i] = (float)(data_equation_width((enum data_equation)s->equation) *
                       (double)(at % (size_t)s->grid[1]) / (s->grid[1] - 1));
        t[i] = (float)((double)(at / (size_t)s->grid[1]) / (s->grid[0] - 1) +
                       (double)(i % (size_t)s->context) * s->step);
    }
    bench_leaves_put(&b->leaves, "x", x, count * sizeof *x);
    bench_leaves_put(&b->leaves, "t", t, count * sizeof *t);
    free(x);
    free(t);
}

/* Copies the weights to the vector at which loss and gradient are taken. */
static void load_line(struct bench *b, const struct model *model, struct model_store *store)
{
    struct pk_graph *graph = NULL;
    struct pk_exec *exec = NULL;
    struct pd_why why;

    bench_check(model_graph_line_load(model, &b->train, &graph, &why), &why);
    bench_check(pk_exec_new(graph, b->api, b->backend, &exec, &why), &why);
    bench_check(model_store_bind(store, exec, graph, &why), &why);
    bench_leaves_bind(&b->leaves, exec, graph);
    bench_check(pk_exec_run(exec, &why), &why);
    pk_exec_free(exec);
    pk_graph_free(graph);
}

static void language(struct bench *b, int width, int depth, int heads, int vocab, int context, int batch)
{
    struct model_spec *s = &b->spec;

    s->arch = &model_gpt;
    s->width = width, s->depth = depth, s->heads = heads, s->mlp_width = 4 * width, s->norm_eps = 1e-5;
    s->vocab = vocab, s->context = context;
    s->pos = true;
    s->init = MODEL_INIT_NORMAL;
    s->attention.n_for_scale = context;
    b->train.batch = b->batch ? b->batch : batch;
    b->train.context = context;
    b->train.clip_norm = 1;
}

static void sequences(struct bench *b, int context)
{
    struct model_spec *s = &b->spec;

    s->arch = &model_nystrom;
    s->width = 64, s->depth = 2, s->heads = 2, s->mlp_width = 128, s->norm_eps = 1e-5;
    s->vocab = 32, s->classes = 10, s->context = context;
    s->pos = true;
    s->pool = MODEL_POOL_MEAN;
    s->landmarks = 128, s->conv_kernel = 35, s->pinv_iterations = 6;
    s->zero_pads = true;
    s->init = MODEL_INIT_KAIMING;
    s->dropout = b->dump ? 0 : 0.1;
    s->attention.n_for_scale = context;
    b->train.batch = b->batch ? b->batch : 32;
    b->train.context = context;
}

static void choose(struct bench *b)
{
    if (strcmp(b->model, "vit") == 0)
        vision(b, 192, 12, 3, 64, 4, 200, 32);
    else if (strcmp(b->model, "tiny") == 0)
        vision(b, 64, 4, 2, 28, 7, 10, 64);
    else if (strcmp(b->model, "deit_ti") == 0)
        vision(b, 192, 12, 3, 224, 16, 1000, 256);
    else if (strcmp(b->model, "vit_s16") == 0)
        vision(b, 384, 12, 6, 224, 16, 1000, 256);
    else if (strcmp(b->model, "vit_b16") == 0)
        vision(b, 768, 12, 12, 224, 16, 1000, 256);
    else if (strcmp(b->model, "swin_t") == 0)
        swin_t(b);
    else if (strcmp(b->model, "xcit_s12") == 0)
        xcit_s12(b);
    else if (strcmp(b->model, "pinn") == 0)
        equation(b, 32, 256, 512, 51);
    else if (strcmp(b->model, "pinn_micro") == 0)
        equation(b, 16, 64, 128, 21);
    else if (strcmp(b->model, "pinn_tiny") == 0)
        equation(b, 8, 8, 8, 5);
    else if (strcmp(b->model, "nystrom") == 0)
        sequences(b, 2048);
    else if (strcmp(b->model, "nystrom1k") == 0)
        sequences(b, 1024);
    else if (strcmp(b->model, "nystrom4k") == 0)
        sequences(b, 4096);
    else if (strcmp(b->model, "gpt") == 0)
        language(b, 384, 6, 6, 50257, 256, 8);
    else if (strcmp(b->model, "gpt1k") == 0)
        language(b, 384, 6, 6, 1024, 256, 8);
    else if (strcmp(b->model, "gpt2") == 0) {
        language(b, 768, 12, 12, 50304, 1024, 16);
        b->spec.gelu_tanh = true; /* as the preset and GPT-2's own code have it */
    } else
        refuse("no model", b->model);
    if (strcmp(b->phi, "softmax") == 0) {
        b->spec.attention.phi = PK_PHI_SOFTMAX;
    } else if (strcmp(b->phi, "poly") == 0) {
        b->spec.attention.phi = PK_PHI_POLY;
        b->spec.attention.degree = 3;
        b->spec.attention.scale = MODEL_SCALE_FIXED;
        b->spec.attention.scale_value = 1.0 / sqrt((double)b->spec.attention.n_for_scale);
    } else {
        refuse("no phi", b->phi);
    }
    b->spec.class_attention = b->spec.attention;
}

/* The same numbers every time. */
static void fill(struct bench *b)
{
    struct bench_leaves *l = &b->leaves;
    const float hyper[4] = {1e-4f, 0.1f, 0.05f, 0};
    const double hyper64[4] = {1e-4, 0.1, 0.05, 0};
    const int64_t context = b->spec.context;

    if (b->train.line_rows) {
        fill_points(b);
        return;
    }
    if (bench_leaves_find(l, "hyper"))
        bench_leaves_put(l, "hyper", b->spec.dtype == PK_F64 ? (const void *)hyper64 : hyper,
                         4 * pk_dtype_size(b->spec.dtype));
    for (int i = 0; i < l->count; i++) {
        const bool input = strcmp(l->leaf[i].name, "input") == 0, last = strcmp(l->leaf[i].name, "last") == 0,
                   target = strcmp(l->leaf[i].name, "target") == 0, pixels = l->leaf[i].dtype == PK_U8;
        const int values = input || !b->spec.classes ? b->spec.vocab : b->spec.classes;
        int32_t *host;

        if (!input && !target && !last)
            continue;
        host = bench_memory(l->leaf[i].bytes);
        for (size_t k = 0; last && k < l->leaf[i].bytes / sizeof *host; k++)
            host[k] = (int32_t)((int64_t)k * context + context * 125 / 128 - 1); /* 2000 of 2048 */
        for (size_t k = 0; pixels && k < l->leaf[i].bytes; k++)
            ((uint8_t *)host)[k] = (uint8_t)(k * k * 37 + k / 251);
        for (size_t k = 0; !pixels && !last && k < l->leaf[i].bytes / sizeof *host; k++)
            host[k] = (int32_t)((uint64_t)k * 7919 % (uint64_t)values);
        bench_leaves_put(l, l->leaf[i].name, host, l->leaf[i].bytes);
        free(host);
    }
}

static void one_step(struct bench *b)
{
    struct pd_why why;

    if (b->parts == 1) {
        bench_check(pk_exec_run(b->exec[0], &why), &why);
    } else {
        for (int i = 0; i < b->parts; i++) {
            float first = i == 0;

            /* The input is a leaf, so the recording stays the same; the copy of 4 bytes is what a worker's
             * step does too. */
            bench_leaves_put(&b->leaves, "first", &first, sizeof first);
            bench_check(pk_exec_run(b->exec[0], &why), &why);
        }
        bench_check(pk_exec_run(b->exec[1], &why), &why);
    }
    bench_check(b->api->sync(b->backend, &why), &why);
}

/* So far, of all graphs. */
static uint64_t eager_runs(const struct bench *b)
{
    return pk_exec_runs(b->exec[0]).eager + (b->parts > 1 ? pk_exec_runs(b->exec[1]).eager : 0);
}

static double timed_step(struct bench *b)
{
    double t0 = bench_seconds(CLOCK_MONOTONIC);

    one_step(b);
    t0 = bench_seconds(CLOCK_MONOTONIC) - t0;
    if (b->count < STEPS_MOST)
        b->times[b->count++] = t0;
    return t0;
}

static void take_turns(struct bench *b)
{
    char line[64];

    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int i = atoi(line); i > 0; i--)
            printf("%.6f ", timed_step(b));
        printf("\n");
        fflush(stdout);
    }
}

static void count(const struct model *model, const struct model_train_options *train,
                  const struct pk_backend_api *api, bool mixed, bool keep, int parts)
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

        bench_check(parts > 1          ? make[i](model, train, &graph, &why)
                    : train->line_rows ? model_graph_line(model, train, &graph, &why)
                                       : model_graph_train(model, train, false, &graph, &why),
                    &why);
        pk_graph_precision(graph, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
        pk_graph_recompute(graph, keep ? PK_RECOMPUTE_NEVER : PK_RECOMPUTE_SMALLER);
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

struct dumped {
    struct data_st_tensor tensor[2 * BENCH_LEAVES];
    char name[2 * BENCH_LEAVES][96];
    size_t count;
};

static void dump_tensor(struct dumped *d, const char *prefix, const char *name, enum data_st_dtype dtype,
                        const struct pk_shape *shape, const void *data)
{
    struct data_st_tensor *t = &d->tensor[d->count];

    if (d->count == 2 * BENCH_LEAVES)
        refuse("too many tensors:", name);
    snprintf(d->name[d->count], sizeof d->name[0], "%s%s", prefix, name);
    *t = (struct data_st_tensor){
        .name = d->name[d->count++], .dtype = dtype, .rank = shape->rank, .data = data};
    for (int i = 0; i < shape->rank; i++)
        t->dim[i] = shape->dim[i];
    t->bytes = (uint64_t)pk_shape_count(shape) * data_st_dtype_size(dtype);
}

/* Loss and gradients of the initial weights, on the CPU, in the spec's type. */
static void dump(struct bench *b, const struct model *model)
{
    static struct dumped d;
    static double loss; /* of the spec's type */
    const size_t size = pk_dtype_size(b->spec.dtype);
    const enum data_st_dtype number = b->spec.dtype == PK_F64 ? DATA_ST_F64 : DATA_ST_F32;
    const struct model_spec *s = model_spec(model);
    const bool tokens = model_reads_tokens(s);
    const struct pk_shape one = PK_SHAPE(1), rows = PK_SHAPE(b->train.batch),
                          input = tokens ? PK_SHAPE(b->train.batch, s->context)
                                         : PK_SHAPE(b->train.batch, s->channels, s->image_h, s->image_w);
    struct model_store *store = NULL;
    struct pk_graph *graph = NULL;
    struct pk_exec *exec = NULL;
    struct pd_buf header;
    struct pd_why why;
    FILE *f;

    bench_check(model_graph_train(model, &b->train, true, &graph, &why), &why);
    bench_check(model_store_new(model, b->api, b->backend, &store, &why), &why);
    bench_check(model_store_init(store, 1, &why), &why);
    bench_check(pk_exec_new(graph, b->api, b->backend, &exec, &why), &why);
    bench_check(model_store_bind(store, exec, graph, &why), &why);
    bench_leaves_bind(&b->leaves, exec, graph);
    fill(b);
    bench_check(pk_exec_run(exec, &why), &why);
    bench_check(pk_exec_read(exec, "loss", &loss, size, &why), &why);
    dump_tensor(&d, "", "loss", number, &one, &loss);
    dump_tensor(&d, "", "target", DATA_ST_I32, &rows, bench_leaves_find(&b->leaves, "target"));
    for (size_t i = 0; i < model_trained_count(model); i++) {
        const struct model_param *p = model_param(model, i);
        const size_t bytes = (size_t)pk_shape_count(&p->shape) * size;
        void *grad = bench_memory(bytes);
        char name[96];

        snprintf(name, sizeof name, "grad/%s", p->name);
        bench_check(pk_exec_read(exec, name, grad, bytes, &why), &why);
        dump_tensor(&d, "param/", p->name, number, &p->shape, model_store_data(store, i));
        dump_tensor(&d, "grad/", p->name, number, &p->shape, grad);
    }
    dump_tensor(&d, "", "input", tokens ? DATA_ST_I32 : DATA_ST_U8, &input,
                bench_leaves_find(&b->leaves, "input"));
    if (tokens)
        dump_tensor(&d, "", "last", DATA_ST_I32, &rows, bench_leaves_find(&b->leaves, "last"));
    pd_buf_init(&header, 0);
    bench_check(data_st_header(d.tensor, d.count, NULL, 0, &header, &why), &why);
    f = fopen(b->dump, "wb");
    if (!f || fwrite(header.data, 1, header.len, f) != header.len)
        refuse("cannot write", b->dump);
    for (size_t i = 0; i < d.count; i++)
        if (fwrite(d.tensor[i].data, 1, d.tensor[i].bytes, f) != d.tensor[i].bytes)
            refuse("cannot write", b->dump);
    if (fclose(f) != 0)
        refuse("cannot write", b->dump);
    printf("%s: %zu tensors\n", b->dump, d.count);
}

static double resident_peak_mb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

int main(int argc, char **argv)
{
    static struct bench b = {.model = "vit",
                             .phi = "softmax",
                             .device = "cpu",
                             .precision = "fp32",
                             .steps = 7,
                             .threads = 2,
                             .parts = 1,
                             .spec = {.dtype = PK_F32,
                                      .bias = true,
                                      .final_norm = true,
                                      .init = MODEL_INIT_TRUNC_NORMAL,
                                      .attention.init_logit_std = -1,
                                      .attention.scale_value = 1,
                                      .attention.scale_lr_mult = 1},
                             .train = {.loss = &task_cross_entropy,
                                       .optimizer = &optim_adamw.graph,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1}};
    static struct bench_profile prof;
    const struct pk_peaks peaks = PK_PEAKS_H200; /* the FLOP do not depend on them */
    struct pk_plan_report report[2] = {{{0}, 0, 0, 0, 0, 0}};
    struct pk_roofline line = {0};
    struct pk_graph *graph[2] = {NULL, NULL};
    struct model *model = NULL;
    struct model_store *store = NULL;
    struct pk_backend_info info;
    double began = bench_seconds(CLOCK_MONOTONIC), first, cpu, used, before, extra;
    uint64_t eager;
    struct pd_why why;
    int graphs;

    arguments(&b, argc, argv);
    graphs = b.parts > 1 ? 2 : 1;
    choose(&b);
    if (strcmp(b.precision, "fp64") == 0)
        b.spec.dtype = PK_F64;
    b.spec.mixed = b.train.copies = strcmp(b.precision, "bf16") == 0; /* as daemon/worker/train does */
    bench_check(model_new(&b.spec, &model, &why), &why);
    if (b.roofline > 0) {
        b.api = pk_backend_cpu();
        if (strcmp(b.device, "none") == 0)
            b.api = NULL;
        else if (strcmp(b.device, "cpu") != 0)
            bench_check(pk_backend_load(b.device, PK_LOAD_PLAN, &b.api, &why), &why);
        count(model, &b.train, b.api, strcmp(b.precision, "bf16") == 0, b.keep, b.roofline);
        model_free(model);
        return 0;
    }
    bench_open(b.device, b.threads, &b.api, &b.backend);
    if (b.dump) {
        if (b.spec.arch == &model_gpt || b.train.line_rows || strcmp(b.device, "cpu") != 0 || b.spec.mixed)
            refuse("--dump is for classifiers, cpu and fp32 or fp64, not", b.model);
        b.leaves.api = b.api;
        b.leaves.backend = b.backend;
        dump(&b, model);
        return 0;
    }
    before = resident_peak_mb();
    used = bench_device_bytes(b.api, b.backend);
    if (b.train.line_rows) {
        if (b.parts > 1 || b.spec.mixed || b.spec.dtype != PK_F32)
            refuse("a PINNsformer is measured in fp32 and without --parts, not as", b.model);
        bench_check(model_graph_line(model, &b.train, &graph[0], &why), &why);
    } else if (b.parts == 1) {
        bench_check(model_graph_train(model, &b.train, false, &graph[0], &why), &why);
    } else {
        bench_check(model_graph_part(model, &b.train, &graph[0], &why), &why);
        bench_check(model_graph_apply(model, &b.train, &graph[1], &why), &why);
    }
    if (strcmp(b.precision, "tf32") == 0)
        bench_check(b.api->set_math(b.backend, PK_MATH_TF32, &why), &why);
    bench_check(model_store_new(model, b.api, b.backend, &store, &why), &why);
    bench_check(model_store_init(store, 1, &why), &why);
    b.leaves.api = b.api;
    b.leaves.backend = b.backend;
    for (int i = 0; i < graphs; i++) {
        if (strcmp(b.precision, "bf16") == 0)
            pk_graph_precision(graph[i], PK_PRECISION_MIXED);
        if (b.keep)
            pk_graph_recompute(graph[i], PK_RECOMPUTE_NEVER);
        bench_check(pk_exec_new(graph[i], b.api, b.backend, &b.exec[i], &why), &why);
        pk_exec_report(b.exec[i], &report[i]);
        pk_roofline_add(&line, b.exec[i], &peaks, i == 0 ? b.parts : 1);
        bench_check(model_store_bind(store, b.exec[i], graph[i], &why), &why);
        bench_leaves_bind(&b.leaves, b.exec[i], graph[i]);
    }
    for (size_t i = 0; i < model_param_count(model); i++) {
        char name[80];

        model_copy_name(model, i, name, sizeof name);
        if (bench_leaves_find(&b.leaves, name))
            bench_check(model_store_round(store, i, bench_leaves_find(&b.leaves, name), &why), &why);
    }
    fill(&b);
    if (b.train.line_rows)
        load_line(&b, model, store);
    one_step(&b);
    first = bench_seconds(CLOCK_MONOTONIC) - began;
    for (int i = 0; i < 2; i++) /* the first run warmed up, the second may record, the third replays */
        one_step(&b);
    used = bench_device_bytes(b.api, b.backend) - used;
    b.times = bench_memory(STEPS_MOST * sizeof *b.times);
    if (b.profile)
        bench_profile_start(&prof, b.exec[0]);
    eager = eager_runs(&b);
    cpu = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);
    if (b.turns)
        take_turns(&b);
    else
        for (int i = 0; i < b.steps; i++) {
            bench_profile_mark(&prof);
            timed_step(&b);
        }
    if (b.count == 0)
        refuse("no step was asked for by", argv[0]);
    cpu = (bench_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / b.count;
    if (b.profile)
        bench_profile_print(&prof, b.count);
    bench_sort(b.times, (size_t)b.count);
    extra = resident_peak_mb() - before - 16.0 * (double)model_param_elements(model) / 1048576;
    bench_check(b.api->info(b.backend, &info, &why), &why);
    printf("model=%s phi=%s device=%s precision=%s threads=%d batch=%d parts=%d steps=%d median_s=%.6f "
           "p10_s=%.6f p90_s=%.6f cpu_s=%.6f first_s=%.3f peak_rss_mb=%.0f extra_mb=%.0f arena_mb=%.0f "
           "live_bound_mb=%.0f "
           "nodes=%zu gflop=%.6g device_mb=%.0f eager=%llu choices=%zu name=\"%s\"\n",
           b.model, b.phi, b.device, b.precision, b.threads, b.train.batch, b.parts, b.count,
           b.times[b.count / 2], b.times[b.count / 10], b.times[b.count * 9 / 10], cpu, first,
           resident_peak_mb(), extra, (double)(report[0].arena_bytes + report[1].arena_bytes) / 1048576,
           (double)fmax((double)report[0].live_bound, (double)report[1].live_bound) / 1048576,
           report[0].nodes + report[1].nodes, line.total.flop * 1e-9, used / 1048576,
           b.api->capture ? (unsigned long long)(eager_runs(&b) - eager) : 0, bench_choices(), info.name);
    free(b.times);
    bench_leaves_done(&b.leaves);
    for (int i = 0; i < graphs; i++) {
        pk_exec_free(b.exec[i]);
        pk_graph_free(graph[i]);
    }
    model_store_free(store);
    model_free(model);
    b.api->close(b.backend);
    return 0;
}
