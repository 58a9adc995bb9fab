/* kernel_bench [THREADS]: the heavy kernels alone, at the shapes of ViT-Tiny (batch 32) and of the GPT of
 * step_bench. CPU time of the process, the best of several turns, so that a shared machine disturbs little:
 * figures are GFLOP/s or GB/s per core. Attention counts 4 B H N^2 d forward, 10 backward, half when causal.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"
#include "tests/bench/bench.h"

#define TURNS 7

static struct pk_backend *backend;

static double best_of(enum pk_op op, const struct pk_attr *attr, const struct pk_view *in, int n_in,
                      const struct pk_view *out, int n_out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_call c = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    double best = INFINITY;
    struct pd_why why;

    c.workspace_bytes = api->workspace_bytes(backend, &c);
    c.workspace = bench_memory(c.workspace_bytes);
    for (int i = 0; i < TURNS; i++) {
        double t = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);

        if (api->run(backend, &c, 1, &why) != PD_OK) {
            fprintf(stderr, "kernel_bench: %s\n", why.text);
            exit(1);
        }
        t = bench_seconds(CLOCK_PROCESS_CPUTIME_ID) - t;
        best = t < best ? t : best;
    }
    free(c.workspace);
    return best;
}

static void matmul(const char *name, int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool bias)
{
    struct pk_attr attr = {.matmul = {.has_bias = bias}};
    struct pk_view in[3] = {bench_numbers(PK_SHAPE(m, k)), bench_numbers(PK_SHAPE(k, n)),
                            bench_numbers(PK_SHAPE(n))};
    struct pk_view out = bench_numbers(PK_SHAPE(m, n));
    double t;

    if (ta)
        in[0].stride[0] = 1, in[0].stride[1] = m;
    if (tb)
        in[1].stride[0] = 1, in[1].stride[1] = k;
    t = best_of(PK_OP_MATMUL, &attr, in, bias ? 3 : 2, &out, 1);
    printf("%-34s %6lld x %6lld x %6lld %c%c %9.2f ms %7.1f GFLOP/s\n", name, (long long)m, (long long)n,
           (long long)k, ta ? 'T' : 'N', tb ? 'T' : 'N', 1e3 * t,
           2e-9 * (double)m * (double)n * (double)k / t);
    for (int i = 0; i < 3; i++)
        free(in[i].data);
    free(out.data);
}

static void attention(const char *name, enum pk_phi phi, int64_t b, int64_t n, int64_t h, int64_t d,
                      bool causal)
{
    struct pk_attr attr = {.attention = {.phi = phi,
                                         .degree = 3,
                                         .tau = 1 / sqrt((double)d),
                                         .scale = 1 / sqrt((double)n),
                                         .causal = causal,
                                         .packed = true}};
    const bool softmax = phi == PK_PHI_SOFTMAX;
    struct pk_view in[4] = {bench_numbers(PK_SHAPE(b, n, 3, h, d))},
                   dqkv = bench_numbers(PK_SHAPE(b, n, 3, h, d));
    struct pk_view out[2] = {bench_numbers(PK_SHAPE(b, n, h, d)), bench_numbers(PK_SHAPE(b, h, n))};
    double flop = 4.0 * (double)b * (double)h * (double)n * (double)n * (double)d * (causal ? 0.5 : 1), fwd,
           bwd;

    fwd = best_of(PK_OP_ATTENTION, &attr, in, 1, out, softmax ? 2 : 1);
    in[1] = out[0];
    in[2] = bench_numbers(PK_SHAPE(b, n, h, d));
    in[3] = out[1];
    bwd = best_of(PK_OP_ATTENTION_BWD, &attr, in, softmax ? 4 : 3, &dqkv, 1);
    printf("%-34s B %lld N %lld H %lld d %lld%s: forward %7.2f ms %6.1f, backward %7.2f ms %6.1f GFLOP/s\n",
           name, (long long)b, (long long)n, (long long)h, (long long)d, causal ? " causal" : "", 1e3 * fwd,
           1e-9 * flop / fwd, 1e3 * bwd, 2.5e-9 * flop / bwd);
    for (int i = 0; i < 3; i++)
        free(in[i].data);
    free(out[1].data);
    free(dqkv.data);
}

static void unary(const char *name, enum pk_ex op, int64_t n)
{
    struct pk_expr e = {.count = 2};
    struct pk_attr attr = {.expr = &e};
    struct pk_view in = bench_numbers(PK_SHAPE(n)), out = bench_numbers(PK_SHAPE(n));
    double t;

    e.code[0].op = PK_EX_IN;
    e.code[1].op = (uint8_t)op;
    t = best_of(PK_OP_EXPR, &attr, &in, 1, &out, 1);
    printf("%-34s %lld: %7.2f ms, %5.2f ns an element, %5.1f GB/s\n", name, (long long)n, 1e3 * t,
           1e9 * t / (double)n, 8e-9 * (double)n / t);
    free(in.data);
    free(out.data);
}

/* sin, cos and w1 sin x + w2 cos x of -10 .. 10 in the cache, against the C library's functions in a loop. */
static void trig(void)
{
    enum { N = 65536 };
    static const struct {
        const char *name;
        int count;
        struct {
            uint8_t op, arg;
        } code[9];
    } all[] = {{"sin, in the cache", 2, {{PK_EX_IN, 0}, {PK_EX_SIN, 0}}},
               {"cos, in the cache", 2, {{PK_EX_IN, 0}, {PK_EX_COS, 0}}},
               {"w1 sin + w2 cos, in the cache",
                9,
                {{PK_EX_IN, 0},
                 {PK_EX_SIN, 0},
                 {PK_EX_IN, 1},
                 {PK_EX_MUL, 0},
                 {PK_EX_IN, 0},
                 {PK_EX_COS, 0},
                 {PK_EX_IN, 2},
                 {PK_EX_MUL, 0},
                 {PK_EX_ADD, 0}}}};
    struct pk_view in[3] = {bench_numbers(PK_SHAPE(N)), bench_numbers(PK_SHAPE(1)),
                            bench_numbers(PK_SHAPE(1))};
    struct pk_view out = bench_numbers(PK_SHAPE(N));
    float *x = in[0].data, *y = out.data;

    for (int i = 0; i < N; i++)
        x[i] *= 20;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        struct pk_expr e = {.count = all[k].count};
        struct pk_attr attr = {.expr = &e};
        double ours, library = INFINITY;

        for (int i = 0; i < e.count; i++) {
            e.code[i].op = all[k].code[i].op;
            e.code[i].arg = all[k].code[i].arg;
        }
        ours = best_of(PK_OP_EXPR, &attr, in, k < 2 ? 1 : 3, &out, 1);
        for (int turn = 0; turn < TURNS; turn++) {
            double t = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);

            for (int i = 0; i < N; i++)
                y[i] = k == 0 ? sinf(x[i]) : k == 1 ? cosf(x[i]) : 0.3f * sinf(x[i]) + 0.4f * cosf(x[i]);
            library = fmin(library, bench_seconds(CLOCK_PROCESS_CPUTIME_ID) - t);
        }
        printf("%-34s %.3f ns an element, C library %.3f ns: %.1f times as fast\n", all[k].name,
               1e9 * ours / N, 1e9 * library / N, library / ours);
    }
    for (int i = 0; i < 3; i++)
        free(in[i].data);
    free(out.data);
}

static void norm(int64_t rows, int64_t d)
{
    struct pk_attr attr = {.norm = {.kind = PK_NORM_LAYER, .eps = 1e-6, .has_beta = true}};
    struct pk_view in[5] = {bench_numbers(PK_SHAPE(rows, d)), bench_numbers(PK_SHAPE(d)),
                            bench_numbers(PK_SHAPE(d))};
    struct pk_view out[3] = {bench_numbers(PK_SHAPE(rows, d)), bench_numbers(PK_SHAPE(rows)),
                             bench_numbers(PK_SHAPE(rows))};
    double t = best_of(PK_OP_NORM, &attr, in, 3, out, 3), bytes = 4.0 * (double)rows * (double)d;

    printf("%-34s %lld x %lld: forward %.2f ms %.1f GB/s", "layer norm", (long long)rows, (long long)d,
           1e3 * t, 2e-9 * bytes / t);
    in[2] = out[0];
    in[3] = out[1];
    in[4] = out[2];
    out[0] = bench_numbers(PK_SHAPE(rows, d));
    out[1] = bench_numbers(PK_SHAPE(d));
    out[2] = bench_numbers(PK_SHAPE(d));
    t = best_of(PK_OP_NORM_BWD, &attr, in, 5, out, 3);
    printf(", backward %.2f ms %.1f GB/s\n", 1e3 * t, 3e-9 * bytes / t);
}

static void cross_entropy(int64_t m, int64_t n)
{
    struct pk_attr attr = {.cross_entropy = {.ignore = -100}};
    struct pk_view in[4] = {bench_numbers(PK_SHAPE(m, n)),
                            pk_view_dense(bench_memory((size_t)m * 4), PK_I32, PK_SHAPE(m))};
    struct pk_view out[4] = {bench_numbers(PK_SHAPE(1)), bench_numbers(PK_SHAPE(1)),
                             bench_numbers(PK_SHAPE(1)), bench_numbers(PK_SHAPE(m))};
    double t;

    for (int64_t i = 0; i < m; i++)
        ((int32_t *)in[1].data)[i] = (int32_t)(i * 7919 % n);
    t = best_of(PK_OP_CROSS_ENTROPY, &attr, in, 2, out, 4);
    printf("%-34s %lld x %lld: forward %.2f ms %.2f ns an element", "cross-entropy", (long long)m,
           (long long)n, 1e3 * t, 1e9 * t / (double)(m * n));
    in[2] = out[3];
    in[3] = out[0];
    t = best_of(PK_OP_CROSS_ENTROPY_BWD, &attr, in, 4, in, 1);
    printf(", backward in place %.2f ms %.2f ns\n", 1e3 * t, 1e9 * t / (double)(m * n));
}

static void host_log(void *user, int level, const char *text)
{
    (void)user;
    (void)level;
    printf("%s\n", text);
}

int main(int argc, char **argv)
{
    static const struct pk_host host = {.log = host_log};
    struct pd_why why;

    if (pk_backend_cpu()->open(&host, 0, argc > 1 ? atoi(argv[1]) : 1, &backend, &why) != PD_OK) {
        fprintf(stderr, "kernel_bench: %s\n", why.text);
        return 1;
    }
    matmul("vit fc1", 8224, 768, 192, false, true, true);
    matmul("vit fc2", 8224, 192, 768, false, true, true);
    matmul("vit dX of fc1", 8224, 192, 768, false, false, false);
    matmul("vit dW of fc1", 768, 192, 8224, true, false, false);
    matmul("vit dW of proj", 192, 192, 8224, true, false, false);
    matmul("gpt logits", 2048, 50257, 384, false, true, false);
    matmul("gpt dX of logits", 2048, 384, 50257, false, false, false);
    matmul("gpt dW of logits", 50257, 384, 2048, true, false, false);
    matmul("one token, (N, K) weights", 1, 50257, 768, false, true, false);
    matmul("one token, (K, N) weights", 1, 3072, 768, false, false, true);
    attention("softmax, vit", PK_PHI_SOFTMAX, 32, 257, 3, 64, false);
    attention("x^3, vit", PK_PHI_POLY, 32, 257, 3, 64, false);
    attention("periodic, vit", PK_PHI_PERIODIC, 32, 257, 3, 64, false);
    attention("softmax, gpt", PK_PHI_SOFTMAX, 8, 256, 6, 64, true);
    attention("x^3, gpt", PK_PHI_POLY, 8, 256, 6, 64, true);
    attention("softmax, long", PK_PHI_SOFTMAX, 1, 2048, 4, 64, true);
    attention("x^3, long", PK_PHI_POLY, 1, 2048, 4, 64, true);
    unary("gelu", PK_EX_GELU, 8224 * 768);
    unary("gelu's derivative", PK_EX_DGELU, 8224 * 768);
    unary("exp", PK_EX_EXP, 8224 * 768);
    unary("log", PK_EX_LOG, 8224 * 768);
    unary("sin", PK_EX_SIN, 8224 * 768);
    unary("cos", PK_EX_COS, 8224 * 768);
    trig();
    norm(8224, 192);
    cross_entropy(2048, 50257);
    pk_backend_cpu()->close(backend);
    return 0;
}
