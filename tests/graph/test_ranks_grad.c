/* Gradients through a sum over ranks: a few processes, each with a share of the loss; what each gets for its
 * own x is how the sum of all shares changes with it, by differences in f64. */
#include <math.h>

#include "kernels/graph/graph.h"
#include "tests/comm/ranks.h"

#define N 5

struct end { /* one rank's */
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct pk_exec *exec;
    struct pk_comm *comm;
    double *x, *w;
};

/* The share of this rank: sum of w y^2 + x y, with y = the sum over ranks of x^2 w, and its mean's. */
static struct pk_graph *share_of(void)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_param(g, "x", PK_F64, PK_SHAPE(N)), w = pk_input(g, "w", PK_F64, PK_SHAPE(N)), y,
                  mean;
    struct pk_val f, d;

    y = pk_all_reduce(g, pk_mul(g, pk_mul(g, x, x), w), -1);
    mean = pk_scale(g, pk_all_reduce(g, pk_sum(g, x, 1, true), -1), 0.1);
    f = pk_add(g, pk_mul(g, w, pk_mul(g, y, y)), pk_mul(g, pk_sub(g, x, mean), y));
    f = pk_reshape(g, pk_sum(g, f, 1, false), PK_SHAPE(1));
    pk_grad(g, f, PK_NONE, &x, 1, &d);
    pk_output(g, "f", f);
    pk_output(g, "d", d);
    return g;
}

/* The loss of all ranks, as it is now. */
static enum pd_err loss(struct end *e, double *ret, struct pd_why *why)
{
    enum pd_err err = pk_exec_run(e->exec, why);

    if (err == PD_OK)
        err = pk_exec_read(e->exec, "f", ret, sizeof *ret, why);
    return err == PD_OK ? pk_comm_local()->all_reduce(e->comm, ret, ret, 1, PK_F64, -1, NULL, why) : err;
}

static int differences(int rank, int ranks, const void *id)
{
    const struct pk_comm_api *comm = pk_comm_local();
    const struct pk_comm_options o = {.id = id, .rank = rank, .ranks = ranks};
    struct end e = {.api = pk_backend_cpu()};
    struct pk_host host = {.comm_api = comm};
    struct pk_graph *g = share_of();
    struct pd_why why = {""};
    double d[N];

    RANK_CHECK(comm->open(NULL, &o, &e.comm, &why) == PD_OK);
    host.comm = e.comm;
    RANK_CHECK(e.api->open(&host, 0, 1, &e.backend, &why) == PD_OK);
    RANK_CHECK(pk_exec_new(g, e.api, e.backend, &e.exec, &why) == PD_OK);
    e.x = e.api->alloc(e.backend, N * sizeof(double));
    e.w = e.api->alloc(e.backend, N * sizeof(double));
    RANK_CHECK(e.x && e.w);
    for (int i = 0; i < N; i++) {
        e.x[i] = 0.3 + 0.2 * i - 0.45 * rank;
        e.w[i] = 0.7 - 0.25 * i + 0.6 * rank;
    }
    RANK_CHECK(pk_exec_bind(e.exec, "x", e.x, &why) == PD_OK &&
               pk_exec_bind(e.exec, "w", e.w, &why) == PD_OK);
    RANK_CHECK(pk_exec_run(e.exec, &why) == PD_OK);
    RANK_CHECK(pk_exec_read(e.exec, "d", d, sizeof d, &why) == PD_OK);
    for (int whose = 0; whose < ranks; whose++)
        for (int i = 0; i < N; i++) { /* one number of one rank; all ranks run */
            const double h = 1e-5, x = e.x[i];
            double up, down, want;

            e.x[i] = whose == rank ? x + h : x;
            RANK_CHECK(loss(&e, &up, &why) == PD_OK);
            e.x[i] = whose == rank ? x - h : x;
            RANK_CHECK(loss(&e, &down, &why) == PD_OK);
            e.x[i] = x;
            want = (up - down) / (2 * h);
            if (whose == rank && !(fabs(d[i] - want) <= 1e-7 * (1 + fabs(want)))) {
                fprintf(stderr, "rank %d: d / d x[%d] is %.12g, differences give %.12g\n", rank, i, d[i],
                        want);
                return 1;
            }
        }
    pk_exec_free(e.exec);
    pk_graph_free(g);
    e.api->free(e.backend, e.x);
    e.api->free(e.backend, e.w);
    e.api->close(e.backend);
    comm->close(e.comm);
    return 0;
}

static void test_ranks_gradient_goes_through_their_sum(void **state)
{
    pid_t pid[3];

    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        run_ranks(ranks, differences, pid);
        join_ranks(ranks, pid, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_gradient_goes_through_their_sum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
