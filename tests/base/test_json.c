/* tests/base/test_json.c: the writer of JSON: commas, escapes, UTF-8, numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/json.h"

static void is(struct pd_buf *b, const char *want)
{
    assert_int_equal(pd_buf_err(b), PD_OK);
    assert_string_equal(b->data, want);
    pd_buf_done(b);
}

static void test_commas_stand_between_values_alone(void **state)
{
    struct pd_buf b;

    (void)state;
    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "text", "a");
    pd_json_kv_str(&b, "none", NULL);
    pd_json_kv_int(&b, "int", INT64_MIN);
    pd_json_kv_uint(&b, "uint", UINT64_MAX);
    pd_json_kv_bool(&b, "yes", true);
    pd_json_kv_id(&b, "id", 12);
    pd_json_key(&b, "list");
    pd_json_open(&b, '[');
    pd_json_open(&b, '[');
    pd_json_close(&b, ']');
    pd_json_open(&b, '{');
    pd_json_close(&b, '}');
    pd_json_bool(&b, false);
    pd_json_null(&b);
    pd_json_str(&b, "ends in :");
    pd_json_str(&b, "{");
    pd_json_int(&b, 0);
    pd_json_raw(&b, "{\"x\":1}");
    pd_json_raw(&b, "");
    pd_json_raw(&b, NULL);
    pd_json_strf(&b, "%d x %d", 2, 3);
    pd_json_close(&b, ']');
    pd_json_close(&b, '}');
    is(&b, "{\"text\":\"a\",\"none\":null,\"int\":-9223372036854775808,\"uint\":18446744073709551615,"
           "\"yes\":true,\"id\":\"12\",\"list\":[[],{},false,null,\"ends in :\",\"{\",0,{\"x\":1},null,null,"
           "\"2 x 3\"]}");
}

static void test_strings_are_escaped_and_always_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t len;
        const char *want;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\""},
        {"\0\n\x1f\x7f", 4, "\"\\u0000\\u000a\\u001f\\u007f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"x\xffy", 3, "\"x\xef\xbf\xbdy\""},
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                                 /* overlong */
        {"\xe0\x80\xaf", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},                 /* likewise */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},                 /* a surrogate */
        {"\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* too large */
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                                 /* cut off */
        {"\xe2\x82\xac", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                             /* and not read on */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_buf b;

        pd_buf_init(&b, 0);
        pd_json_strn(&b, cases[i].text, cases[i].len);
        is(&b, cases[i].want);
    }
}

static void num_is(double value, const char *want)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    pd_json_num(&b, value);
    is(&b, want);
}

static void test_numbers_are_short_and_read_back_as_they_were(void **state)
{
    uint64_t x = 88172645463325252u;

    (void)state;
    num_is(0.1, "0.1");
    num_is(0.1 + 0.2, "0.30000000000000004");
    num_is(3, "3");
    num_is(-0.0, "-0");
    num_is(-42, "-42");
    num_is(1e14, "100000000000000");
    num_is(1e15, "1e+15");
    num_is(5e-324, "4.94065645841247e-324");
    num_is(DBL_MAX, "1.7976931348623157e+308");
    num_is((double)NAN, "null");
    num_is(-(double)INFINITY, "null");
    for (int i = 0; i < 20000; i++) {
        struct pd_buf b;
        double value;
        float narrow;

        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(&value, &x, sizeof value);
        memcpy(&narrow, &x, sizeof narrow);
        if (!isfinite(value) || !isfinite(narrow))
            continue;
        pd_buf_init(&b, 0);
        pd_json_num(&b, value);
        assert_true(strtod(b.data, NULL) == value);
        pd_buf_done(&b);
        pd_json_num32(&b, narrow);
        assert_true(strtof(b.data, NULL) == narrow && b.len <= 16);
        pd_buf_done(&b);
    }
}

static void test_a_limit_is_told_and_long_formats_are_cut(void **state)
{
    struct pd_buf b;

    (void)state;
    pd_buf_init(&b, 8);
    pd_json_str(&b, "longer than eight");
    assert_int_not_equal(pd_buf_err(&b), PD_OK);
    pd_buf_done(&b);
    pd_buf_init(&b, 0);
    pd_json_strf(&b, "%5000d", 1);
    assert_int_equal(b.len, 4095 + 2);
    pd_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commas_stand_between_values_alone),
        cmocka_unit_test(test_strings_are_escaped_and_always_utf8),
        cmocka_unit_test(test_numbers_are_short_and_read_back_as_they_were),
        cmocka_unit_test(test_a_limit_is_told_and_long_formats_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
