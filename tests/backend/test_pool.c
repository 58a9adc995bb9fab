/* The pool: every task once, one thread a scratch, loops of any size, no waiting for a thread without a core.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cpu/pool.h"

struct loop {
    _Atomic int done[5000];
    atomic_int busy[8]; /* a task runs with this thread number */
    int plain[5000];    /* written without atomics: the pool orders it */
};

static void task(void *arg, int64_t number, int thread)
{
    struct loop *l = arg;

    assert_int_equal(atomic_fetch_add(&l->busy[thread], 1), 0);
    atomic_fetch_add(&l->done[number], 1);
    l->plain[number]++;
    atomic_fetch_sub(&l->busy[thread], 1);
}

static void test_every_task_runs_once(void **state)
{
    static struct loop l;

    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        struct cpu_pool *p = NULL;

        memset(&l, 0, sizeof l);
        assert_int_equal(cpu_pool_new(threads, &p, NULL), PD_OK);
        assert_int_equal(cpu_pool_threads(p), threads);
        for (int turn = 0; turn < 300; turn++) {
            int64_t count = turn % 7 == 0 ? 0 : turn % 5 == 0 ? 1 : turn * 3;

            for (int64_t i = 0; i < count; i++)
                l.plain[i] = 0;
            cpu_pool_run(p, count, task, &l);
            for (int64_t i = 0; i < count; i++)
                assert_int_equal(l.plain[i], 1);
        }
        assert_null(cpu_pool_free(p));
    }
    assert_null(cpu_pool_free(NULL));
}

static void test_bad_counts_are_refused(void **state)
{
    struct cpu_pool *p = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(cpu_pool_new(0, &p, &why), PD_ERR_INVALID);
    assert_int_equal(cpu_pool_new(100000, &p, &why), PD_ERR_INVALID);
    assert_null(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_runs_once),
        cmocka_unit_test(test_bad_counts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
