/* device_bench: the heavy kernels of a training step alone, at the shapes of GPT-2 124M and ViT-B/16, in
 * bf16, on a back end with a device; no peer is needed.
 *
 *   device_bench [--device NAME] [--only NAME[,NAME...]] [--rounds N] [--once] [--tiny] [--list] [--out FILE]
 *
 * --only takes cases whose name begins so. --once runs each case twice and measures nothing: for a profiler.
 * --tiny: small shapes, to try this program where a device is slow. --out appends each line to a file as a
 * JSON object. The device is cuda.
 *
 * Every case is recorded once and replayed, in rounds of at least 3 ms; inputs are near N(0, 1), buffers
 * larger than the L2 cache. First the two peaks, a copy and a product of 8192; then one line a case: the
 * median of the rounds, the 10 % and 90 % points, bytes and operations as one has to count them
 * (kernels/PERFORMANCE.md 1 and 2), and the time over the floor: the larger of bytes / copy and operations /
 * product.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

#define CALLS 160
#define VIEWS 12
#define MEMORIES 700
#define ROUNDS_MOST 1000

static const struct pk_backend_api *api;
static struct pk_backend *backend;
static bool tiny, once;
static FILE *out;
static int rounds = 60;

/* One case: calls that run together. */
struct work {
    struct pk_attr attr;
    struct pk_call call[CALLS];
    struct pk_view view[CALLS][VIEWS];
    int calls;
    void *memory[MEMORIES];
    int memories;
    double bytes, flop;
};

/* ---- memory ---- */

static void *take(struct work *w, size_t bytes)
{
    void *p = api->alloc(backend, bytes);

    if (!p || w->memories == MEMORIES) {
        fprintf(stderr, "device_bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return w->memory[w->memories++] = p;
}

static struct pk_view fresh(struct work *w, enum pk_dtype dtype, struct pk_shape shape)
{
    size_t bytes = (size_t)pk_shape_count(&shape) * pk_dtype_size(dtype);
    void *p = take(w, bytes);

    bench_noise(api, backend, p, dtype, bytes);
    return pk_view_dense(p, dtype, shape);
}

static struct pk_view constant(struct work *w, const float *values, int64_t count)
{
    struct pk_view v = pk_view_dense(take(w, (size_t)count * 4), PK_F32, PK_SHAPE(count));
    struct pd_why why;

    bench_check(api->upload(backend, v.data, values, (size_t)count * 4, &why), &why);
    return v;
}

static struct pk_call *add(struct work *w, enum pk_op op, int n_in, int n_out)
{
    struct pk_call *c = &w->call[w->calls];

    *c = (struct pk_call){.op = op, .attr = &w->attr, .n_in = n_in, .n_out = n_out};
    c->in = w->view[w->calls];
    c->out = w->view[w->calls] + n_in;
    w->calls++;
    return c;
}

/* ---- cases ---- */

struct shape {
    int64_t a, b, c, d;
    int kind;
};

static void copy(struct work *w, const struct shape *s)
{
    struct pk_view *v = w->view[0];

    w->attr.copy.dtype = PK_F32;
    v[0] = fresh(w, PK_F32, PK_SHAPE(s->a));
    v[1] = fresh(w, PK_F32, PK_SHAPE(s->a));
    add(w, PK_OP_COPY, 1, 1);
    w->bytes = 8.0 * (double)s->a;
}

enum { PLAIN, BIAS, GELU, LEFT_T, RIGHT_T };
/* (a, c) x (c, b); LEFT_T: the first operand lies as (c, a): a weight's gradient; RIGHT_T: an input's. */
static void product(struct work *w, const struct shape *s)
{
    struct pk_view *v = w->view[0];
    bool bias = s->kind == BIAS || s->kind == GELU;
    int n = 2;

    w->attr.matmul.has_bias = bias;
    w->attr.matmul.act = s->kind == GELU ? PK_ACT_GELU_TANH : PK_ACT_NONE;
    v[0] = fresh(w, PK_BF16, PK_SHAPE(s->a, s->c));
    v[1] = fresh(w, PK_BF16, PK_SHAPE(s->c, s->b));
    if (s->kind == LEFT_T)
        v[0].stride[0] = 1, v[0].stride[1] = s->a;
    if (s->kind == RIGHT_T)
        v[1].stride[0] = 1, v[1].stride[1] = s->c;
    if (bias)
        v[n++] = fresh(w, PK_F32, PK_SHAPE(s->b));
    v[n] = fresh(w, s->kind == LEFT_T ? PK_F32 : PK_BF16, PK_SHAPE(s->a, s->b));
    add(w, PK_OP_MATMUL, n, 1);
    w->flop = 2.0 * (double)s->a * (double)s->b * (double)s->c;
    w->bytes = 2.0 * ((double)s->a * (double)s->c + (double)s->b * (double)s->c) +
               (s->kind == LEFT_T ? 4.0 : 2.0) * (double)s->a * (double)s->b;
}

enum { FORWARD = 0, BACKWARD = 1, CAUSAL = 2, SOFTMAX = 4, LINEAR = 8 };
/* (B, N, H, d): x^3, or by the kind softmax, or x in linear order. */
static void attention(struct work *w, const struct shape *s)
{
    struct pk_view *v = w->view[0];
    bool softmax = s->kind & SOFTMAX, backward = s->kind & BACKWARD;
    struct pk_shape qkv = PK_SHAPE(s->a, s->b, 3, s->c, s->d), one = PK_SHAPE(s->a, s->b, s->c, s->d);
    double pairs = (double)(s->a * s->c * s->d) * (double)s->b * (double)s->b;
    int n = 1;

    w->attr.attention = (struct pk_attention_attr){.phi = softmax ? PK_PHI_SOFTMAX : PK_PHI_POLY,
                                                   .degree = s->kind & LINEAR ? 1 : 3,
                                                   .tau = 1 / sqrt((double)s->d),
                                                   .scale = softmax ? 1 : 1 / sqrt((double)s->b),
                                                   .form = s->kind & LINEAR ? PK_FORM_LINEAR : PK_FORM_AUTO,
                                                   .causal = s->kind & CAUSAL,
                                                   .packed = true};
    v[0] = fresh(w, PK_BF16, qkv);
    if (backward) {
        v[n++] = fresh(w, PK_BF16, one);
        v[n++] = fresh(w, PK_BF16, one);
        if (softmax)
            v[n++] = fresh(w, PK_F32, PK_SHAPE(s->a, s->c, s->b));
        v[n] = fresh(w, PK_BF16, qkv);
        add(w, PK_OP_ATTENTION_BWD, n, 1);
    } else {
        v[1] = fresh(w, PK_BF16, one);
        if (softmax)
            v[2] = fresh(w, PK_F32, PK_SHAPE(s->a, s->c, s->b));
        add(w, PK_OP_ATTENTION, 1, 1 + softmax);
    }
    if (s->kind & LINEAR) /* q k' v by d x d: 4 N d^2 each way, and twice where chunks are squares too */
        pairs = (double)(s->a * s->b * s->c) * (double)(s->d * s->d) * 2;
    w->flop = (backward ? 10.0 : 4.0) * pairs / (s->kind & CAUSAL ? 2 : 1);
    w->bytes = (backward ? 14.0 : 8.0) * (double)(s->a * s->b * s->c * s->d);
}

enum { TOGETHER = 2 }; /* loss and derivative at once, as a step has it */
static void cross_entropy(struct work *w, const struct shape *s)
{
    struct pk_view *v = w->view[0], target = pk_view_dense(take(w, (size_t)s->a * 4), PK_I32, PK_SHAPE(s->a));
    int32_t *host = bench_memory((size_t)s->a * 4);
    const float one = 1;
    struct pd_why why;

    for (int64_t i = 0; i < s->a; i++)
        host[i] = (int32_t)(i * 7919 % s->b);
    bench_check(api->upload(backend, target.data, host, (size_t)s->a * 4, &why), &why);
    free(host);
    w->attr.cross_entropy.ignore = -100;
    v[0] = fresh(w, PK_BF16, PK_SHAPE(s->a, s->b));
    v[1] = target;
    if (s->kind == BACKWARD) {
        v[2] = fresh(w, PK_F32, PK_SHAPE(s->a));
        v[3] = constant(w, &one, 1);
        v[4] = v[0]; /* in place */
        add(w, PK_OP_CROSS_ENTROPY_BWD, 4, 1);
    } else if (s->kind == TOGETHER) {
        w->attr.cross_entropy.mean = true;
        v[2] = constant(w, &one, 1);
        v[3] = v[0]; /* in place */
        for (int i = 0; i < 3; i++)
            v[4 + i] = fresh(w, PK_F32, PK_SHAPE(1));
        add(w, PK_OP_CROSS_ENTROPY_GRAD, 3, 4);
    } else {
        for (int i = 0; i < 3; i++)
            v[2 + i] = fresh(w, PK_F32, PK_SHAPE(1));
        v[5] = fresh(w, PK_F32, PK_SHAPE(s->a));
        add(w, PK_OP_CROSS_ENTROPY, 2, 4);
    }
    w->bytes = (s->kind == FORWARD ? 2.0 : 4.0) * (double)s->a * (double)s->b;
}

static void norm(struct work *w, const struct shape *s)
{
    struct pk_view *v = w->view[0];
    struct pk_shape x = PK_SHAPE(s->a, s->b), d = PK_SHAPE(s->b), rows = PK_SHAPE(s->a);
    double n = (double)s->a * (double)s->b;

    w->attr.norm.kind = PK_NORM_LAYER;
    w->attr.norm.eps = 1e-5;
    w->attr.norm.has_beta = true;
    v[0] = fresh(w, PK_BF16, x);
    v[1] = fresh(w, PK_F32, d);
    if (s->kind != FORWARD) {
        int in = 5;

        v[2] = fresh(w, PK_BF16, x);
        v[3] = fresh(w, PK_F32, rows);
        v[4] = fresh(w, PK_F32, rows);
        w->attr.norm.has_residual = s->kind == TOGETHER;
        if (s->kind == TOGETHER)
            v[in++] = fresh(w, PK_BF16, x);
        v[in] = fresh(w, PK_BF16, x);
        v[in + 1] = fresh(w, PK_F32, d);
        v[in + 2] = fresh(w, PK_F32, d);
        add(w, PK_OP_NORM_BWD, in, 3);
    } else {
        v[2] = fresh(w, PK_F32, d);
        v[3] = fresh(w, PK_BF16, x);
        v[4] = fresh(w, PK_F32, rows);
        v[5] = fresh(w, PK_F32, rows);
        add(w, PK_OP_NORM, 3, 3);
    }
    w->bytes = (s->kind == FORWARD ? 4.0 : s->kind == BACKWARD ? 6.0 : 8.0) * n;
}

/* x -> gelu(x), or (x, dy) -> dy gelu'(x). */
static void gelu(struct work *w, const struct shape *s)
{
    static struct pk_expr program[2] = {
        {.count = 2, .code = {{PK_EX_IN, 0, 0}, {PK_EX_GELU_TANH, 0, 0}}},
        {.count = 4,
         .code = {{PK_EX_IN, 0, 0}, {PK_EX_DGELU_TANH, 0, 0}, {PK_EX_IN, 1, 0}, {PK_EX_MUL, 0, 0}}}};
    int n = s->kind == BACKWARD ? 2 : 1;

    w->attr.expr = &program[s->kind == BACKWARD];
    for (int i = 0; i <= n; i++)
        w->view[0][i] = fresh(w, PK_BF16, PK_SHAPE(s->a, s->b));
    add(w, PK_OP_EXPR, n, 1);
    w->bytes = 2.0 * (n + 1) * (double)s->a * (double)s->b;
}

static int64_t gpt2_size(int i, bool *ret_last)
{
    const int64_t d = tiny ? 16 : 768, in_front[] = {(tiny ? 64 : 50304) * d, (tiny ? 8 : 1024) * d, d, d};
    const int64_t block[] = {d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d};

    *ret_last = i == 3 + 12 * 12;
    return i < 4 ? in_front[i] : block[(i - 4) % 12];
}

enum { ADAMW, MSGDW, SUMSQ };
static void optimiser(struct work *w, const struct shape *s)
{
    const float values[] = {1e-4f, 0.1f, 0.05f, 0, 1, 1};
    struct pk_view hyper = constant(w, values, 4), gate = constant(w, values + 4, 2);
    bool last = false;
    double n = 0;

    w->attr.optim.beta1 = 0.9;
    w->attr.optim.beta2 = 0.95;
    w->attr.optim.eps = 1e-8;
    w->attr.optim.weight_decay = 0.1;
    w->attr.optim.lr_mult = 1;
    w->attr.optim.momentum = 0.9;
    for (int i = 0; !last; i++) {
        struct pk_shape shape = PK_SHAPE(gpt2_size(i, &last));
        struct pk_view *v = w->view[w->calls];
        int k = 0;

        n += (double)shape.dim[0];
        v[k++] = fresh(w, PK_F32, shape);
        v[k++] = fresh(w, PK_F32, shape);
        v[k++] = fresh(w, PK_F32, shape);
        if (s->kind == ADAMW)
            v[k++] = pk_view_dense(v[2].data, PK_F32, shape);
        v[k++] = hyper;
        v[k++] = gate;
        v[k] = v[0];
        v[k + 1] = v[2];
        if (s->kind == ADAMW) {
            float zero[64] = {0};
            struct pd_why why;

            v[3] = v[k + 2] =
                fresh(w, PK_F32, shape); /* squares: what is negative gives NaN, as fast as any */
            bench_check(api->upload(backend, v[3].data, zero, 4, &why), &why);
        }
        add(w, s->kind == ADAMW ? PK_OP_ADAMW : PK_OP_MSGDW, k, s->kind == ADAMW ? 3 : 2);
    }
    w->bytes = (s->kind == ADAMW ? 28.0 : 20.0) * n;
}

/* clang-format off: a table */
static const struct {
    const char *name;
    void (*make)(struct work *w, const struct shape *s);
    struct shape full, tiny;
} cases[] = {
    {"peak-copy", copy, {(int64_t)1 << 29, 0, 0, 0, 0}, {4096, 0, 0, 0, 0}},
    {"peak-product", product, {8192, 8192, 8192, 0, PLAIN}, {64, 64, 64, 0, PLAIN}},
    {"attention-197-fwd", attention, {1024, 197, 12, 64, FORWARD}, {1, 20, 2, 64, FORWARD}},
    {"attention-197-bwd", attention, {1024, 197, 12, 64, BACKWARD}, {1, 20, 2, 64, BACKWARD}},
    {"attention-256-fwd", attention, {1024, 256, 12, 64, FORWARD}, {1, 32, 2, 64, FORWARD}},
    {"attention-256-bwd", attention, {1024, 256, 12, 64, BACKWARD}, {1, 32, 2, 64, BACKWARD}},
    {"attention-1024-fwd", attention, {128, 1024, 12, 64, FORWARD}, {1, 65, 1, 64, FORWARD}},
    {"attention-1024-bwd", attention, {128, 1024, 12, 64, BACKWARD}, {1, 65, 1, 64, BACKWARD}},
    {"attention-1024-causal-fwd", attention, {128, 1024, 12, 64, CAUSAL}, {1, 65, 1, 64, CAUSAL}},
    {"attention-1024-causal-bwd",
     attention,
     {128, 1024, 12, 64, CAUSAL | BACKWARD},
     {1, 65, 1, 64, CAUSAL | BACKWARD}},
    {"attention-8192-fwd", attention, {16, 8192, 12, 64, FORWARD}, {1, 80, 1, 64, FORWARD}},
    {"attention-8192-bwd", attention, {16, 8192, 12, 64, BACKWARD}, {1, 80, 1, 64, BACKWARD}},
    {"attention-1024-softmax-fwd", attention, {128, 1024, 12, 64, SOFTMAX}, {1, 65, 1, 64, SOFTMAX}},
    {"attention-1024-softmax-bwd",
     attention,
     {128, 1024, 12, 64, SOFTMAX | BACKWARD},
     {1, 65, 1, 64, SOFTMAX | BACKWARD}},
    {"attention-8192-linear-fwd", attention, {16, 8192, 12, 64, LINEAR}, {1, 80, 1, 64, LINEAR}},
    {"attention-8192-linear-bwd",
     attention,
     {16, 8192, 12, 64, LINEAR | BACKWARD},
     {1, 80, 1, 64, LINEAR | BACKWARD}},
    {"cross-entropy-fwd", cross_entropy, {16384, 50304, 0, 0, FORWARD}, {8, 100, 0, 0, FORWARD}},
    {"cross-entropy-bwd", cross_entropy, {16384, 50304, 0, 0, BACKWARD}, {8, 100, 0, 0, BACKWARD}},
    {"cross-entropy-grad", cross_entropy, {16384, 50304, 0, 0, TOGETHER}, {8, 100, 0, 0, TOGETHER}},
    {"norm-fwd", norm, {131072, 768, 0, 0, FORWARD}, {9, 768, 0, 0, FORWARD}},
    {"norm-bwd", norm, {131072, 768, 0, 0, BACKWARD}, {9, 768, 0, 0, BACKWARD}},
    {"norm-bwd-residual", norm, {131072, 768, 0, 0, TOGETHER}, {9, 768, 0, 0, TOGETHER}},
    {"gelu-fwd", gelu, {65536, 3072, 0, 0, FORWARD}, {16, 64, 0, 0, FORWARD}},
    {"gelu-bwd", gelu, {65536, 3072, 0, 0, BACKWARD}, {16, 64, 0, 0, BACKWARD}},
    {"optimiser-adamw", optimiser, {0, 0, 0, 0, ADAMW}, {0, 0, 0, 0, ADAMW}},
    {"optimiser-msgdw", optimiser, {0, 0, 0, 0, MSGDW}, {0, 0, 0, 0, MSGDW}},
    {"product-qkv", product, {65536, 2304, 768, 0, BIAS}, {64, 48, 16, 0, BIAS}},
    {"product-fc1-gelu", product, {65536, 3072, 768, 0, GELU}, {64, 64, 16, 0, GELU}},
    {"product-fc2", product, {65536, 768, 3072, 0, BIAS}, {64, 16, 64, 0, BIAS}},
    {"product-fc1-dx", product, {65536, 768, 3072, 0, RIGHT_T}, {64, 16, 64, 0, RIGHT_T}},
    {"product-fc1-dw", product, {768, 3072, 65536, 0, LEFT_T}, {16, 64, 64, 0, LEFT_T}},
    {"product-logits", product, {16384, 50304, 768, 0, RIGHT_T}, {32, 100, 16, 0, RIGHT_T}},
};
/* clang-format on */

/* ---- measuring ---- */

struct peaks {
    double bytes_s, flop_s;
};

static double timed(struct pk_captured *captured, int inner)
{
    double t0 = bench_seconds(CLOCK_MONOTONIC);
    struct pd_why why;

    for (int i = 0; i < inner; i++)
        bench_check(api->replay(backend, captured, &why), &why);
    bench_check(api->sync(backend, &why), &why);
    return (bench_seconds(CLOCK_MONOTONIC) - t0) / inner;
}

static void measure(const char *name, struct work *w, struct peaks *peaks)
{
    struct pk_captured *captured = NULL;
    double *times = bench_memory(ROUNDS_MOST * sizeof *times), floor_s = 0, median;
    size_t most = 0;
    struct pd_why why;
    int inner;

    for (int i = 0; i < w->calls; i++) {
        size_t bytes = api->workspace_bytes(backend, &w->call[i]);

        if (!api->supports(backend, &w->call[i])) {
            printf("kernel=%s unsupported=1\n", name);
            free(times);
            return;
        }
        most = bytes > most ? bytes : most;
    }
    for (int i = 0; i < w->calls; i++) {
        w->call[i].workspace = i == 0 ? most ? take(w, most) : NULL : w->call[0].workspace;
        w->call[i].workspace_bytes = most;
    }
    for (int i = 0; i < (once ? 2 : 1); i++)
        bench_check(api->run(backend, w->call, (size_t)w->calls, &why), &why);
    bench_check(api->sync(backend, &why), &why);
    if (once) {
        printf("kernel=%s once=1\n", name);
        free(times);
        return;
    }
    bench_check(api->capture(backend, w->call, (size_t)w->calls, &captured, &why), &why);
    (void)timed(captured, 1);
    inner = (int)fmin(2000, ceil(3e-3 / timed(captured, tiny ? 1 : 3)));
    inner = tiny || inner < 1 ? 1 : inner;
    for (int i = 0; i < rounds; i++)
        times[i] = timed(captured, inner);
    bench_sort(times, (size_t)rounds);
    median = times[rounds / 2];
    if (strcmp(name, "peak-copy") == 0)
        peaks->bytes_s = w->bytes / median;
    if (strcmp(name, "peak-product") == 0)
        peaks->flop_s = w->flop / median;
    if (peaks->bytes_s > 0 && peaks->flop_s > 0)
        floor_s = fmax(w->bytes / peaks->bytes_s, w->flop / peaks->flop_s);
    printf(
        "kernel=%s ms=%.4f p10_ms=%.4f p90_ms=%.4f rounds=%d inner=%d gb_s=%.1f tflop_s=%.2f floor_ms=%.4f "
        "of_floor=%.3f workspace_mb=%.1f\n",
        name, 1e3 * median, 1e3 * times[rounds / 10], 1e3 * times[rounds * 9 / 10], rounds, inner,
        w->bytes / median / 1e9, w->flop / median / 1e12, 1e3 * floor_s, floor_s > 0 ? median / floor_s : 0.0,
        (double)most / 1048576);
    fflush(stdout);
    if (out) {
        fprintf(out,
                "{\"kind\": \"kernel\", \"name\": \"%s\", \"ms\": %.5f, \"p10\": %.5f, \"p90\": %.5f, "
                "\"rounds\": %d, "
                "\"gb_s\": %.1f, \"tflops\": %.2f, \"of_floor\": %.3f%s}\n",
                name, 1e3 * median, 1e3 * times[rounds / 10], 1e3 * times[rounds * 9 / 10], rounds,
                w->bytes / median / 1e9, w->flop / median / 1e12, floor_s > 0 ? median / floor_s : 0.0,
                tiny ? ", \"dry\": true" : "");
        fflush(out);
    }
    api->captured_free(backend, captured);
    free(times);
}

static bool wanted(const char *only, const char *name)
{
    size_t len;

    for (; only && *only; only += len + (only[len] == ',')) {
        len = strcspn(only, ",");
        if (len && strncmp(only, name, len) == 0)
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    const char *device = "cuda", *only = NULL, *file = NULL;
    struct peaks peaks = {0, 0};
    struct pk_backend_info info;
    bool list = false, any = false;
    struct pd_why why;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--once") == 0)
            once = true;
        else if (strcmp(argv[i], "--tiny") == 0)
            tiny = true;
        else if (strcmp(argv[i], "--list") == 0)
            list = true;
        else if (i + 1 < argc && strcmp(argv[i], "--device") == 0)
            device = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
            only = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--out") == 0)
            file = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
            rounds = atoi(argv[++i]);
        else {
            fprintf(stderr, "device_bench: what is '%s'?\n", argv[i]);
            return 2;
        }
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        any |= !only || wanted(only, cases[i].name);
        if (list)
            printf("%s\n", cases[i].name);
    }
    if (list)
        return 0;
    if (!any || rounds < 1 || rounds > ROUNDS_MOST) {
        fprintf(stderr, "device_bench: no case '%s', or not 1 to %d rounds\n", only ? only : "", ROUNDS_MOST);
        return 2;
    }
    out = file ? fopen(file, "a") : NULL;
    if (file && !out) {
        fprintf(stderr, "device_bench: cannot write '%s'\n", file);
        return 2;
    }
    bench_open(device, 2, &api, &backend);
    if (!api->capture) {
        fprintf(stderr, "device_bench: '%s' records no steps, so there is nothing to replay\n", device);
        return 2;
    }
    bench_check(api->info(backend, &info, &why), &why);
    printf("device=\"%s\" driver=\"%s\" library=\"%s\" sm=%d\n", info.name, info.driver, info.library,
           info.sm);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool peak = i < 2 && !once;
        struct work *w;

        if (only && !wanted(only, cases[i].name) && !peak)
            continue;
        w = calloc(1, sizeof *w);
        if (!w)
            return 1;
        cases[i].make(w, tiny ? &cases[i].tiny : &cases[i].full);
        measure(cases[i].name, w, &peaks);
        for (int k = 0; k < w->memories; k++)
            api->free(backend, w->memory[k]);
        free(w);
    }
    api->close(backend);
    if (out)
        fclose(out);
    return 0;
}
