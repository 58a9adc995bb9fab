/* The n-th allocation fails, for n = 1, 2, 3, ..., in every parser and writer of api: each says PD_ERR_NOMEM
 * or manages without, none crashes, and nothing is left behind (the count of live allocations returns to what
 * it was).
 *
 * This program's own malloc stands in front of glibc's, so jansson's allocations count too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/completion.h"
#include "api/http.h"
#include "api/ingest.h"
#include "api/oip.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);

static long left, live; /* allocations until the failing one, 0 = none fails; blocks that exist */

static bool fails(void)
{
    return left && --left == 0;
}

void *malloc(size_t size)
{
    void *p = fails() ? NULL : __libc_malloc(size);

    live += p != NULL;
    return p;
}

void *calloc(size_t n, size_t size)
{
    void *p = fails() ? NULL : __libc_calloc(n, size);

    live += p != NULL;
    return p;
}

void *realloc(void *p, size_t size)
{
    void *q = fails() ? NULL : __libc_realloc(p, size);

    live += !p && q;
    return q;
}

void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}

static enum pd_err oip_once(void);

/* Runs `once` with each allocation failing in turn until one run meets no failure. */
static void each_fails(enum pd_err (*once)(void))
{
    for (long n = 1; n < 10000; n++) {
        long before = live;
        enum pd_err err;
        bool untouched;

        left = n;
        err = once();
        untouched = left > 0;
        left = 0;
        assert_int_equal(live, before);
        /* jansson cannot always tell a failed allocation in its lexer from a bad token. */
        if (err != PD_OK && err != PD_ERR_NOMEM && !(err == PD_ERR_CORRUPT && once == oip_once))
            fail_msg("allocation %ld: %s", n, pd_err_name(err));
        if (untouched) {
            assert_int_equal(err, PD_OK);
            return;
        }
    }
    fail();
}

static enum pd_err batch_once(void)
{
    static const char json[] = "{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1}]}";
    struct api_batch b;
    char pointer[64];
    enum pd_err err = api_batch_parse(json, sizeof json - 1, 1, &b, pointer, sizeof pointer, NULL);

    if (err == PD_OK)
        api_batch_done(&b);
    return err;
}

static enum pd_err oip_once(void)
{
    static const char json[] =
        "{\"id\":\"1\",\"inputs\":[{\"name\":\"x\",\"shape\":[2],\"datatype\":\"FP32\",\"data\":[1,2]},"
        "{\"name\":\"y\",\"shape\":[1],\"datatype\":\"BYTES\",\"data\":[\"abc\"]}],\"outputs\":[{\"name\":"
        "\"x\"}]}";
    struct api_oip_request q;
    struct pd_buf b;
    size_t header;
    enum pd_err err = api_oip_parse(json, sizeof json - 1, -1, &q, NULL);

    if (err != PD_OK)
        return err;
    pd_buf_init(&b, 0);
    err = api_oip_reply(&q, "m", 1, "", q.tensors, q.count, &b, &header, NULL);
    if (err == PD_OK)
        err = pd_buf_err(&b);
    pd_buf_done(&b);
    api_oip_request_done(&q);
    return err;
}

static json_t *completion_json;

static enum pd_err completion_once(void)
{
    struct api_completion c;
    struct pd_buf b;
    char param[64];
    enum pd_err err = api_completion_parse(completion_json, &c, param, NULL);

    if (err != PD_OK)
        return err;
    pd_buf_init(&b, 0);
    api_completion_params(&c, 0, &b);
    api_token_text(&b, "\xff", 1);
    err = pd_buf_err(&b);
    pd_buf_done(&b);
    api_completion_done(&c);
    return err;
}

static enum pd_err fault_once(void)
{
    struct pd_buf b;
    const char *type;
    enum pd_err err;

    pd_buf_init(&b, 0);
    (void)api_fault_body(&b, API_SURFACE_OWN, PD_ERR_INVALID, "no", NULL, "x", &type);
    err = pd_buf_err(&b);
    pd_buf_done(&b);
    return err;
}

static void test_batch_survives_each_failure(void **state)
{
    (void)state;
    each_fails(batch_once);
}

static void test_oip_survives_each_failure(void **state)
{
    (void)state;
    each_fails(oip_once);
}

static void test_completion_survives_each_failure(void **state)
{
    (void)state;
    completion_json =
        json_loads("{\"model\":\"m\",\"prompt\":[\"abc\",\"d\"],\"stop\":[\"x\"],\"logit_bias\":{\"1\":2},"
                   "\"foo\":1,\"temperature\":0.5,\"echo\":true}",
                   0, NULL);
    assert_non_null(completion_json);
    each_fails(completion_once);
    json_decref(completion_json);
}

static void test_fault_survives_each_failure(void **state)
{
    (void)state;
    each_fails(fault_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_survives_each_failure),
        cmocka_unit_test(test_oip_survives_each_failure),
        cmocka_unit_test(test_completion_survives_each_failure),
        cmocka_unit_test(test_fault_survives_each_failure),
    };

    return cmocka_run_group_tests_name("api_text_nomem", tests, NULL, NULL);
}
