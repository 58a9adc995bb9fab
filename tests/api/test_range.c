/* The Range header: what RFC 9110 says of each form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/range.h"

static const struct {
    const char *header;
    uint64_t size;
    enum api_range is;
    uint64_t first, count;
} cases[] = {
    {"bytes=0-0", 10, API_RANGE_PART, 0, 1},
    {"bytes=0-9", 10, API_RANGE_PART, 0, 10},
    {"BYTES=2-4", 10, API_RANGE_PART, 2, 3},
    {"bytes= 2-4 ", 10, API_RANGE_PART, 2, 3},
    {"bytes=2-", 10, API_RANGE_PART, 2, 8},
    {"bytes=9-400", 10, API_RANGE_PART, 9, 1},
    {"bytes=0-18446744073709551615", 10, API_RANGE_PART, 0, 10},
    {"bytes=-1", 10, API_RANGE_PART, 9, 1},
    {"bytes=-10", 10, API_RANGE_PART, 0, 10},
    {"bytes=-11", 10, API_RANGE_PART, 0, 10},
    {"bytes=10-", 10, API_RANGE_OUTSIDE, 0, 0},
    {"bytes=10-11", 10, API_RANGE_OUTSIDE, 0, 0},
    {"bytes=-0", 10, API_RANGE_OUTSIDE, 0, 0},
    {"bytes=0-", 0, API_RANGE_OUTSIDE, 0, 0},
    {"bytes=-1", 0, API_RANGE_OUTSIDE, 0, 0},
    {NULL, 10, API_RANGE_WHOLE, 0, 0},
    {"", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=-", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=3", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=4-3", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=1-2,3-4", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=1-2x", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=+1-2", 10, API_RANGE_WHOLE, 0, 0},
    {"bytes=18446744073709551616-", 10, API_RANGE_WHOLE, 0, 0},
    {"items=0-1", 10, API_RANGE_WHOLE, 0, 0},
};

static void test_range_each_form_is_read_as_the_rfc_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t first = 77, count = 77;
        enum api_range is = api_range_parse(cases[i].header, cases[i].size, &first, &count);

        if (is != cases[i].is)
            fail_msg("'%s' of %d bytes is %d, not %d", cases[i].header ? cases[i].header : "(none)",
                     (int)cases[i].size, (int)is, (int)cases[i].is);
        if (is != API_RANGE_PART)
            assert_true(first == 77 && count == 77);
        else if (first != cases[i].first || count != cases[i].count)
            fail_msg("'%s' gives %llu bytes from %llu", cases[i].header, (unsigned long long)count,
                     (unsigned long long)first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range_each_form_is_read_as_the_rfc_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
