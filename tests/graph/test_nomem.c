/* Fails the n-th allocation of building and planning until all succeed: an error each time, never a crash
 * and never a leak (the latter under the asan preset). And lets every array that grows move, its old place
 * overwritten: nothing reads there again. */
#include "tests/graph/rig.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "tests/graph/net.h"
#include "tests/reference/reference.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static long left = -1; /* allocations that still succeed; -1: all */
static bool moves;     /* what grows moves */

static bool refuse(void)
{
    if (left < 0)
        return false;
    if (left == 0)
        return true;
    left--;
    return false;
}

void *__wrap_malloc(size_t size)
{
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

static void *grow_elsewhere(void *p, size_t size)
{
    const size_t had = p ? malloc_usable_size(p) : 0;
    void *to = __real_malloc(size);

    if (to && p) {
        memcpy(to, p, had < size ? had : size);
        memset(p, 0xff, had);
        free(p);
    }
    return to;
}

void *__wrap_realloc(void *p, size_t size)
{
    if (moves)
        return grow_elsewhere(p, size);
    return refuse() ? NULL : __real_realloc(p, size);
}

static enum pd_err attempt(struct pk_backend *b, struct pd_why *why)
{
    const struct net n = {.batch = 2,
                          .tokens = 4,
                          .width = 8,
                          .heads = 2,
                          .depth = 2,
                          .vocabulary = 11,
                          .dtype = PK_F64,
                          .train = true,
                          .clip = true,
                          .separate = true,
                          .attention = {.phi = PK_PHI_POLY, .degree = 3, .scale = 1.0, .causal = true}};
    struct pk_graph *g = pk_graph_new(false);
    struct pk_exec *e = NULL;
    enum pd_err err;

    if (!g)
        return PD_ERR_NOMEM;
    net_build(g, &n);
    pk_output(g, "table", pk_const(g, PK_F64, PK_SHAPE(3), (const double[3]){1, 2, 3}));
    err = pk_exec_new(g, reference_backend(), b, &e, why);
    if (err == PD_OK)
        assert_non_null(e);
    else
        assert_null(e);
    pk_exec_free(e);
    pk_graph_free(g);
    return err;
}

static void test_nomem_is_an_error_at_every_allocation(void **state)
{
    struct pk_backend *b = NULL;
    struct pd_why why;
    enum pd_err err = PD_ERR_NOMEM;
    long n = 0;

    (void)state;
    assert_int_equal(reference_backend()->open(NULL, 0, 1, &b, &why), PD_OK);
    for (; err != PD_OK; n++) {
        left = n;
        err = attempt(b, &why);
        left = -1;
        if (err != PD_OK && err != PD_ERR_NOMEM)
            fail_msg("after %ld allocations: %s: %s", n, pd_err_name(err), why.text);
        assert_true(n < 20000);
    }
    print_message("%ld allocations\n", n - 1);
    assert_true(n > 30);
    reference_backend()->close(b);
}

/* The second round adds values: for each there is a number of earlier ones at which the array grows. */
static void test_passes_let_arrays_move(void **state)
{
    (void)state;
    for (int more = 0; more < 128; more++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(64, 16)), w[2], d[2], y;
        struct pd_why why = {""};
        char name[8];
        bool any;

        for (int i = 0; i < more; i++) {
            snprintf(name, sizeof name, "n%d", i);
            (void)pk_input(g, name, PK_F32, PK_SHAPE(1));
        }
        w[0] = pk_param(g, "w0", PK_F32, PK_SHAPE(16, 16));
        w[1] = pk_param(g, "w1", PK_F32, PK_SHAPE(16, 16));
        y = pk_matmul(g, pk_gelu(g, pk_matmul(g, x, w[0]), true), w[1]);
        pk_grad(g, pk_sum(g, pk_mul(g, y, y), 3, false), PK_NONE, w, 2, d);
        pk_output(g, "d0", d[0]);
        pk_output(g, "d1", d[1]);
        assert_int_equal(pk_passes_run(g, &why), PD_OK);
        moves = true;
        if (pk_passes_again(g, &any, &why) != PD_OK)
            fail_msg("%d more: %s", more, why.text);
        moves = false;
        assert_true(any);
        pk_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nomem_is_an_error_at_every_allocation),
        cmocka_unit_test(test_passes_let_arrays_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
