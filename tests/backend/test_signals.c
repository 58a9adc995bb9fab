/* Signals that arrive in the middle of products: they wait, and the products are those of a quiet run. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <cmocka.h>

#include "kernels/backend/backend.h"

static volatile sig_atomic_t came;

/* A handler that uses its stack, as any may. */
static void on_signal(int number)
{
    volatile char scratch[2000];

    for (size_t i = 0; i < sizeof scratch; i++)
        scratch[i] = (char)number;
    came++;
}

static struct pk_view view(float *data, int64_t rows, int64_t columns)
{
    struct pk_shape s = PK_SHAPE(rows, columns);
    struct pk_view v = {.data = data, .dtype = PK_F32, .shape = s};

    v.stride[0] = columns;
    v.stride[1] = 1;
    return v;
}

static void test_products_are_not_disturbed_by_signals(void **state)
{
    enum { M = 1568, N = 64, K = 256, SIGNALS = 300, ROUNDS_MOST = 100000 };
    const struct pk_backend_api *api = pk_backend_cpu();
    const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, was;
    struct pk_attr attr;
    struct pk_backend *b = NULL;
    struct pd_why why;
    float *memory[4];
    size_t size[4] = {M * K, K * N, M * N, M * N};

    (void)state;
    memset(&attr, 0, sizeof attr);
    assert_int_equal(api->open(NULL, 0, 2, &b, &why), PD_OK);
    for (int i = 0; i < 4; i++) {
        memory[i] = malloc(size[i] * sizeof(float));
        assert_non_null(memory[i]);
        for (size_t k = 0; k < size[i]; k++)
            memory[i][k] = (float)((k * 7 + (size_t)i) % 13) * 0.1f - 0.6f;
    }
    assert_int_equal(sigaction(SIGALRM, &action, &was), 0);
    for (int round = 0; round < ROUNDS_MOST && came < SIGNALS; round++) {
        struct pk_view in[2] = {view(memory[0], M, K), view(memory[1], K, N)},
                       out = view(memory[round ? 3 : 2], M, N);
        struct pk_call c = {.op = PK_OP_MATMUL, .attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = &out};

        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = aligned_alloc(256, c.workspace_bytes + 256 - c.workspace_bytes % 256);
        assert_non_null(c.workspace);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        free(c.workspace);
        if (round == 0) /* the first is made in peace */
            assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
        else
            assert_memory_equal(memory[3], memory[2], size[2] * sizeof(float));
    }
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &was, NULL), 0);
    assert_true(came >= SIGNALS);
    for (int i = 0; i < 4; i++)
        free(memory[i]);
    api->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_not_disturbed_by_signals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
