/* tests/job/test_nomem.c: the n-th allocation fails, for n = 1, 2, ... until nothing fails any more. Every
 * call says PD_ERR_NOMEM or succeeds; nothing leaks (AddressSanitizer's build looks) and nothing crashes. */
#include "daemon/job/metric.h"

#include "tests/job/help.h"

static long countdown = -1; /* allocations left before the one that fails; -1: none fails */
static bool once;           /* only that one, as a passing shortage; else all after it too */
static bool failed;         /* it has happened */

static bool fails(void)
{
    if (countdown < 0)
        return false;
    if (countdown == 0) {
        if (once)
            countdown = -1;
        failed = true;
        return true;
    }
    countdown--;
    return false;
}

/* The linker sends the module's calls here (--wrap). */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
char *__real_strdup(const char *text);
int __real_vasprintf(char **out, const char *fmt, va_list args);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_vasprintf(char **out, const char *fmt, va_list args);

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

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_vasprintf(char **out, const char *fmt, va_list args)
{
    return fails() ? -1 : __real_vasprintf(out, fmt, args);
}

/* jansson's own allocations fail only together with all after them: its lexer drops a byte in silence when
 * its buffer cannot grow once, and a shortened key would look like our mistake. */
static void *json_malloc_or_fail(size_t size)
{
    return once ? __real_malloc(size) : __wrap_malloc(size);
}

/* Parses, resolves and keeps; false if memory ran out somewhere. */
static bool everything(const char *text, enum pd_err want)
{
    struct job_report report;
    struct job_doc *job = NULL;
    struct job_config *g = NULL;
    struct pd_buf b;
    struct pd_why why;
    enum pd_err err;
    bool whole = true;

    job_report_init(&report);
    pd_buf_init(&b, 0);
    err = job_parse(text, strlen(text), NULL, &job, &report);
    if (err == PD_OK) {
        for (int64_t n = 0; n < job_run_count(job); n += 3) {
            b.len = 0;
            err = job_run_resolve(job, n, &b, &why);
            whole = whole && err == PD_OK;
            assert_true(err == PD_OK || err == PD_ERR_NOMEM);
            err = job_run_params(job, n, &b, &why);
            whole = whole && err == PD_OK;
            assert_true(err == PD_OK || err == PD_ERR_NOMEM);
        }
        err = job_document(job, &b, &why);
        whole = whole && err == PD_OK;
        assert_true(err == PD_OK || err == PD_ERR_NOMEM);
        err = job_config_load(text, strlen(text), &g, &why);
        whole = whole && err != PD_ERR_NOMEM && err != PD_ERR_CORRUPT;
        job_config_free(g);
    } else {
        /* jansson itself takes some failed allocations for bad syntax: refused all the same. */
        if (err != PD_ERR_NOMEM && err != want && !(err == PD_ERR_CORRUPT && failed))
            fail_msg("%s: %s", pd_err_name(err), report.error_count ? report.errors[0].detail : "");
        whole = err != PD_ERR_NOMEM && err != PD_ERR_CORRUPT;
    }
    pd_buf_done(&b);
    job_free(job);
    job_report_done(&report);
    return whole;
}

static void exhaust(const char *text, enum pd_err want)
{
    long n;

    for (int mode = 0; mode < 2; mode++) {
        once = mode == 1;
        for (n = 0;; n++) {
            bool whole;
            countdown = n;
            failed = false;
            whole = everything(text, want);
            countdown = -1;
            if (!failed) {
                assert_true(whole);
                break;
            }
        }
        assert_true(n > 50);
    }
    once = false;
}

static void test_a_job_survives_every_failing_allocation(void **state)
{
    (void)state;
    exhaust("{\"model\":{\"preset\":\"vit_micro\",\"patch\":[4,7]},\"data\":{\"dataset\":\"digits_gen\"},"
            "\"train\":{\"epochs\":1},"
            "\"tags\":{\"a\":\"b\"},\"depends_on\":[{\"job\":\"1\"}],\"overrides\":{\"/"
            "tags\":{\"c\":\"d\"},\"/train/batch\":8},"
            "\"sweep\":{\"method\":\"random\",\"samples\":3,\"axes\":[{\"pointer\":\"/train/"
            "optimizer\",\"values\":[{\"lr\":1}]},"
            "{\"pointer\":\"/train/clip_norm\",\"uniform\":[1,2]}]}}",
            PD_OK);
}

static void test_a_list_of_formulas_survives_every_failing_allocation(void **state)
{
    (void)state;
    exhaust("{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{"
            "\"epochs\":1},"
            "\"attention\":{\"formulas\":[\"a*s^3\",{\"formula\":\"s\"}],\"params\":{\"a\":{\"init\":2}}}}",
            PD_OK);
    exhaust("{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{"
            "\"epochs\":1},"
            "\"attention\":{\"formulas\":[\"a*s^3\",\"s(\"]}}",
            PD_ERR_INVALID);
}

static void test_a_wrong_job_survives_every_failing_allocation(void **state)
{
    (void)state;
    exhaust("{\"modl\":{},\"model\":{\"preset\":\"ldnt_small\"},\"data\":{\"dataset\":\"text\",\"path\":\"../"
            "x\"},\"train\":{\"batch\":\"x\"},"
            "\"attention\":{\"k\":1},\"overrides\":{\"/train/bach\":1},\"sweep\":{\"axes\":[{\"pointer\":\"/"
            "x\",\"values\":[1]}]}}",
            PD_ERR_INVALID);
}

/* At every `stride`th allocation; returns how many there are. */
static long survives(enum pd_err (*table)(struct pd_buf *, struct pd_why *), long stride)
{
    long n = 0;

    for (;; n += stride) {
        struct pd_buf b;
        enum pd_err err;
        pd_buf_init(&b, 0);
        countdown = n;
        failed = false;
        err = table(&b, NULL);
        countdown = -1;
        pd_buf_done(&b);
        assert_int_equal(err, failed ? PD_ERR_NOMEM : PD_OK);
        if (!failed)
            return n;
    }
}

static void test_the_tables_survive_every_failing_allocation(void **state)
{
    (void)state;
    assert_true(survives(job_fields_json, 101) > 1000); /* thousands of allocations, all alike */
    assert_true(survives(job_metrics_json, 7) > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_survives_every_failing_allocation),
        cmocka_unit_test(test_a_list_of_formulas_survives_every_failing_allocation),
        cmocka_unit_test(test_a_wrong_job_survives_every_failing_allocation),
        cmocka_unit_test(test_the_tables_survive_every_failing_allocation),
    };

    json_set_alloc_funcs(json_malloc_or_fail, free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
