/* tests/base/test_json_nomem.c: the n-th allocation fails, for n = 1, 2, ...: the writer goes on without a
 * crash and the buffer tells. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "kernels/base/json.h"

static long countdown = -1; /* allocations left before the one that fails; -1: none fails */
static bool failed;

static bool fails(void)
{
    if (countdown < 0)
        return false;
    failed = failed || countdown == 0;
    return countdown-- == 0;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

static void write_all(struct pd_buf *b)
{
    pd_json_open(b, '{');
    for (int i = 0; i < 200; i++) {
        pd_json_kv_str(b, "key", "a text with \"quotes\" and \xff");
        pd_json_kv_num(b, "number", 0.1 * i);
        pd_json_key(b, "list");
        pd_json_open(b, '[');
        pd_json_id(b, i);
        pd_json_strf(b, "%d", i);
        pd_json_close(b, ']');
    }
    pd_json_close(b, '}');
}

static void test_the_writer_survives_every_failing_allocation(void **state)
{
    long n = 0;

    (void)state;
    for (;; n++) {
        struct pd_buf b;
        enum pd_err err;

        pd_buf_init(&b, 0);
        countdown = n;
        failed = false;
        write_all(&b);
        countdown = -1;
        err = pd_buf_err(&b);
        pd_buf_done(&b);
        assert_int_equal(err, failed ? PD_ERR_NOMEM : PD_OK);
        if (!failed)
            break;
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_writer_survives_every_failing_allocation)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
