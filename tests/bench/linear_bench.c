/* linear_bench [THREADS]: attention of x and x^2 in square and in linear order, d = 64, for growing N: time
 * per token of forward and backward, and from which N on the linear order is faster. CPU time of the process,
 * the best of several turns, both orders in turn; the last column is what the back end chooses by itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"
#include "tests/bench/bench.h"

#define TURNS 5
#define D 64

static struct pk_backend *backend;

static double once(struct pk_call *c)
{
    struct pd_why why;
    double t = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);

    if (pk_backend_cpu()->run(backend, c, 1, &why) != PD_OK) {
        fprintf(stderr, "linear_bench: %s\n", why.text);
        exit(1);
    }
    return bench_seconds(CLOCK_PROCESS_CPUTIME_ID) - t;
}

/* Best seconds of forms AUTO, QUADRATIC, LINEAR, forward and backward. */
static void measure(int p, int64_t n, bool causal, double best[3][2])
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_view in[3] = {bench_numbers(PK_SHAPE(1, n, 3, 4, D))}, y = bench_numbers(PK_SHAPE(1, n, 4, D));
    struct pk_view dqkv = bench_numbers(PK_SHAPE(1, n, 3, 4, D));
    struct pk_attr attr[3];
    struct pk_call c[3][2];

    in[1] = y;
    in[2] = bench_numbers(PK_SHAPE(1, n, 4, D));
    for (int f = 0; f < 3; f++) {
        memset(&attr[f], 0, sizeof attr[f]);
        attr[f].attention = (struct pk_attention_attr){.phi = PK_PHI_POLY,
                                                       .degree = p,
                                                       .tau = 0.125,
                                                       .scale = 1 / sqrt((double)n),
                                                       .causal = causal,
                                                       .packed = true,
                                                       .form = (enum pk_form)f};
        c[f][0] = (struct pk_call){
            .op = PK_OP_ATTENTION, .attr = &attr[f], .n_in = 1, .n_out = 1, .in = in, .out = &y};
        c[f][1] = (struct pk_call){
            .op = PK_OP_ATTENTION_BWD, .attr = &attr[f], .n_in = 3, .n_out = 1, .in = in, .out = &dqkv};
        for (int d = 0; d < 2; d++) {
            c[f][d].workspace_bytes = api->workspace_bytes(backend, &c[f][d]);
            c[f][d].workspace = bench_memory(c[f][d].workspace_bytes);
            best[f][d] = INFINITY;
        }
    }
    for (int turn = 0; turn < TURNS; turn++)
        for (int f = 0; f < 3; f++)
            for (int d = 0; d < 2; d++)
                best[f][d] = fmin(best[f][d], once(&c[f][d]));
    for (int f = 0; f < 3; f++)
        for (int d = 0; d < 2; d++)
            free(c[f][d].workspace);
    free(in[0].data);
    free(in[2].data);
    free(y.data);
    free(dqkv.data);
}

static void series(int p, bool causal, int64_t from, int64_t to)
{
    double was[2] = {0, 0}, cross[2] = {NAN, NAN};
    int64_t before = 0;

    printf("x^%d%s, d %d, 4 heads: us a token and head\n", p, causal ? ", causal" : "", D);
    for (int64_t i = 0, n = from; n <= to; n = ++i % 2 ? n * 3 / 2 : n / 3 * 4) {
        double best[3][2], per = 1e6 / (4.0 * (double)n);

        measure(p, n, causal, best);
        printf("  N %6lld: forward square %7.3f linear %7.3f auto %7.3f; backward %7.3f %7.3f %7.3f\n",
               (long long)n, per * best[1][0], per * best[2][0], per * best[0][0], per * best[1][1],
               per * best[2][1], per * best[0][1]);
        for (int d = 0; d < 2; d++) {
            double gain = best[1][d] / best[2][d];

            if (isnan(cross[d]) && gain >= 1)
                cross[d] = before && was[d] < 1
                               ? (double)before + (double)(n - before) * (1 - was[d]) / (gain - was[d])
                               : (double)n;
            was[d] = gain;
        }
        before = n;
    }
    printf("  the linear order wins from N of about %.0f forward, %.0f backward\n", cross[0], cross[1]);
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
        fprintf(stderr, "linear_bench: %s\n", why.text);
        return 1;
    }
    series(1, false, 32, 1024);
    series(1, true, 32, 1024);
    series(2, false, 512, 8192);
    series(2, true, 1024, 16384);
    pk_backend_cpu()->close(backend);
    return 0;
}
