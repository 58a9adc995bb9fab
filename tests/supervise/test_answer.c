/* tests/supervise/test_answer.c: what a worker answers in JSON: read whole or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/polyd/supervise/answer.h"

static void test_info_is_read_whole_or_not_at_all(void **state)
{
    static const char good[] =
        "{\"version\":\"0.1.0\",\"backends\":[\"cpu\"],\"plugins\":{\"comm_nccl\":\"\","
        "\"backend_cuda\":\"no \\\"driver\\\"\\u0021\"}}\n";
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{\"version\":\"0.1.0\"}",
        "{\"version\":1,\"plugins\":{\"backend_cuda\":\"\",\"comm_nccl\":\"\"}}",
        "{\"version\":\"0.1.0\",\"plugins\":{\"backend_cuda\":\"\"}}",
        "{\"version\":\"0.1.0\",\"plugins\":{\"backend_cuda\":\"\",\"comm_nccl\":\"\"}",
    };
    struct answer_info info = {.version = "kept"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(answer_info_read(bad[i], strlen(bad[i]), &info));
    assert_string_equal(info.version, "kept");
    assert_true(answer_info_read(good, sizeof good - 1, &info));
    assert_string_equal(info.version, "0.1.0");
    assert_string_equal(info.backend_cuda, "no \"driver\"!");
    assert_string_equal(info.comm_nccl, "");
}

static void test_bytes_of_a_plan_are_its_own_total(void **state)
{
    static const struct {
        const char *plan;
        int64_t want;
    } cases[] = {
        {"{\"total_bytes\":123}", 123},
        /* An accumulated plan of its own, and spaces, do not confuse it. */
        {"{ \"accumulated\" : {\"total_bytes\" : 5}, \"total_bytes\" : 9000000000 }", 9000000000},
        {"{\"accumulated\":{\"total_bytes\":5}}", 0},
        {"{\"total_bytes\":\"7\"}", 0},
        {"{\"total_bytes\":-7}", 0},
        {"{\"total_bytes\":12", 0},
        {"", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(answer_plan_bytes(cases[i].plan, strlen(cases[i].plan)), cases[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info_is_read_whole_or_not_at_all),
        cmocka_unit_test(test_bytes_of_a_plan_are_its_own_total),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
