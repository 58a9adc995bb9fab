/* Fails the n-th allocation of building and planning until all succeed: an error each time, never a crash
 * and never a leak (the latter under the asan preset). */
#include "tests/graph/rig.h"

#include <stdlib.h>

#include "tests/graph/net.h"
#include "tests/reference/reference.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static long left = -1; /* allocations that still succeed; -1: all */

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

void *__wrap_realloc(void *p, size_t size)
{
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nomem_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
