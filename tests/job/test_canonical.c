/* tests/job/test_canonical.c: RFC 8785's own vectors, and the limits of reading. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/digest/digest.h"
#include "daemon/job/internal.h"

static void test_numbers_of_rfc_8785_appendix_b(void **state)
{
    static const struct {
        uint64_t bits;
        const char *text;
    } cases[] = {
        {0x0000000000000000, "0"},
        {0x8000000000000000, "0"},
        {0x0000000000000001, "5e-324"},
        {0x8000000000000001, "-5e-324"},
        {0x7fefffffffffffff, "1.7976931348623157e+308"},
        {0xffefffffffffffff, "-1.7976931348623157e+308"},
        {0x4340000000000000, "9007199254740992"},
        {0xc340000000000000, "-9007199254740992"},
        {0x4430000000000000, "295147905179352830000"},
        {0x44b52d02c7e14af5, "9.999999999999997e+22"},
        {0x44b52d02c7e14af6, "1e+23"},
        {0x44b52d02c7e14af7, "1.0000000000000001e+23"},
        {0x444b1ae4d6e2ef4e, "999999999999999700000"},
        {0x444b1ae4d6e2ef4f, "999999999999999900000"},
        {0x444b1ae4d6e2ef50, "1e+21"},
        {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
        {0x3eb0c6f7a0b5ed8d, "0.000001"},
        {0x41b3de4355555553, "333333333.3333332"},
        {0x41b3de4355555554, "333333333.33333325"},
        {0x41b3de4355555555, "333333333.3333333"},
        {0x41b3de4355555556, "333333333.3333334"},
        {0x41b3de4355555557, "333333333.33333343"},
        {0xbecbf647612f3696, "-0.0000033333333333333333"},
        {0x43143ff3c1cb0959, "1424953923781206.2"},
        /* beyond the RFC: small and large exponents, powers of two whose nearest decimal misses */
        {0x0010000000000000, "2.2250738585072014e-308"},
        {0x000fffffffffffff, "2.225073858507201e-308"},
        {0x3fb999999999999a, "0.1"},
        {0x3f1a36e2eb1c432d, "0.0001"},
        {0x3ff0000000000000, "1"},
        {0x4059000000000000, "100"},
        {0x0060000000000000, "7.120236347223045e-307"},
        {0x7e70000000000000, "1.0715086071862673e+301"},
    };
    char text[40];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double v;
        memcpy(&v, &cases[i].bits, sizeof v);
        assert_string_equal(job_json_number(v, text), cases[i].text);
        assert_true(strtod(text, NULL) == v);
    }
}

static void test_random_doubles_read_back(void **state)
{
    uint64_t x = 88172645463325252u;
    char text[40];

    (void)state;
    for (int i = 0; i < 200000; i++) {
        double v;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if ((x >> 52 & 0x7ff) == 0x7ff)
            continue;
        memcpy(&v, &x, sizeof v);
        assert_true(strtod(job_json_number(v, text), NULL) == v);
        assert_true(strlen(text) < 32);
    }
}

static void canonical(const char *in, const char *want)
{
    struct pd_buf b;
    struct pd_why why;

    pd_buf_init(&b, 0);
    if (job_canonical(in, strlen(in), &b, &why) != PD_OK)
        fail_msg("%s: %s", in, why.text);
    assert_string_equal(b.data, want);
    pd_buf_done(&b);
}

static void test_rfc_8785_examples(void **state)
{
    (void)state;
    canonical("{\n  \"numbers\": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],\n"
              "  \"string\": \"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\n"
              "  \"literals\": [null, true, false]\n}",
              "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],"
              "\"string\":\"\xe2\x82\xac$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}");
    /* Keys sort by UTF-16 code units: U+1F600 (a surrogate pair) before U+FB33. */
    canonical("{\"\\u20ac\":\"Euro Sign\",\"\\r\":\"Carriage Return\",\"\\ufb33\":\"Hebrew Letter Dalet With "
              "Dagesh\","
              "\"1\":\"One\",\"\\ud83d\\ude00\":\"Emoji: Grinning Face\",\"\\u0080\":\"Control\","
              "\"\\u00f6\":\"Latin Small Letter O With Diaeresis\"}",
              "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\xc2\x80\":\"Control\",\"\xc3\xb6\":\"Latin "
              "Small Letter O With "
              "Diaeresis\",\"\xe2\x82\xac\":\"Euro Sign\",\"\xf0\x9f\x98\x80\":\"Emoji: Grinning "
              "Face\",\"\xef\xac\xb3\":\"Hebrew "
              "Letter Dalet With Dagesh\"}");
    canonical("[]", "[]");
    canonical("{ }", "{}");
    canonical("-0.0", "0");
    canonical("\"\\b\\f\\t\\u001f\\u007f\"", "\"\\b\\f\\t\\u001f\x7f\"");
}

static void test_many_keys_are_sorted(void **state)
{
    struct pd_buf in, want;

    (void)state;
    pd_buf_init(&in, 0);
    pd_buf_init(&want, 0);
    for (int i = 0; i < 100; i++) {
        pd_buf_printf(&in, "%s\"k%02d\":%d", i ? "," : "{", 99 - i, 99 - i);
        pd_buf_printf(&want, "%s\"k%02d\":%d", i ? "," : "{", i, i);
    }
    pd_buf_str(&in, "}");
    pd_buf_str(&want, "}");
    canonical(in.data, want.data);
    pd_buf_done(&in);
    pd_buf_done(&want);
}

static enum pd_err load(const char *text, size_t len, struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = job_json_load(text, len, &v, why);

    json_decref(v);
    return err;
}

static void test_limits_of_reading(void **state)
{
    char deep[64] = "", *big = malloc(JOB_MAX_BYTES + 2);
    struct pd_why why;

    (void)state;
    assert_non_null(big);
    for (int depth = 16; depth <= 17; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        assert_int_equal(load(deep, (size_t)depth * 2, &why), depth == 16 ? PD_OK : PD_ERR_CORRUPT);
    }
    assert_non_null(strstr(why.text, "deeper than 16"));
    memset(big, ' ', JOB_MAX_BYTES + 1);
    big[0] = '1';
    assert_int_equal(load(big, JOB_MAX_BYTES, &why), PD_OK);
    assert_int_equal(load(big, JOB_MAX_BYTES + 1, &why), PD_ERR_LIMIT);
    memset(big, 'a', JOB_MAX_STRING + 3);
    big[0] = big[JOB_MAX_STRING + 1] = '"';
    assert_int_equal(load(big, JOB_MAX_STRING + 2, &why), PD_OK);
    big[JOB_MAX_STRING + 1] = 'a';
    big[JOB_MAX_STRING + 2] = '"';
    assert_int_equal(load(big, JOB_MAX_STRING + 3, &why), PD_ERR_CORRUPT);
    memset(big, '[', 100000); /* far beyond any stack of a careless parser */
    assert_int_equal(load(big, 100000, &why), PD_ERR_CORRUPT);
    free(big);
}

static void test_malformed_texts_are_refused(void **state)
{
    static const char *const cases[] = {"",
                                        "{",
                                        "{\"a\":1,}",
                                        "{\"a\":1,\"a\":2}",
                                        "nul",
                                        "{a:1}",
                                        "1 2",
                                        "\"\xff\"",
                                        "{\"\\u0000\":1}",
                                        "[NaN]",
                                        "[Infinity]",
                                        "[01]",
                                        "1e999",
                                        "'a'",
                                        "99999999999999999999999"};
    struct pd_why why;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (load(cases[i], strlen(cases[i]), &why) != PD_ERR_CORRUPT)
            fail_msg("accepted: %s", cases[i]);
    }
    assert_int_equal(load("{\"a\":1,\n \"a\":2}", 15, &why), PD_ERR_CORRUPT);
    assert_non_null(strstr(why.text, "duplicate"));
    assert_non_null(strstr(why.text, "line 2"));
}

static void test_digests_are_of_the_canonical_form(void **state)
{
    static const char named[] = "{\"name\":\"x\",\"train\":{\"seed\":1,\"batch\":2}}";
    char a[JOB_DIGEST_SIZE], b[JOB_DIGEST_SIZE], want[DIGEST_SHA256_HEX_SIZE];

    (void)state;
    assert_int_equal(job_config_digest("{\"b\":1.0, \"a\":[]}", 17, a, NULL), PD_OK);
    digest_sha256_hex("{\"a\":[],\"b\":1}", 14, want);
    assert_string_equal(a, want);
    assert_int_equal(job_config_digest("{", 1, a, NULL), PD_ERR_CORRUPT);
    assert_int_equal(job_plan_digest("[]", 2, "x", a, NULL), PD_ERR_CORRUPT);
    /* What does not change the plan does not change its digest; facts do. */
    assert_int_equal(job_plan_digest(named, strlen(named), "x", a, NULL), PD_OK);
    assert_int_equal(job_plan_digest("{\"train\":{\"batch\":2}}", 21, "x", b, NULL), PD_OK);
    assert_string_equal(a, b);
    assert_int_equal(job_plan_digest("{\"train\":{\"batch\":2}}", 21, "y", b, NULL), PD_OK);
    assert_string_not_equal(a, b);
    assert_int_equal(job_plan_digest("{\"train\":{\"batch\":3}}", 21, "x", b, NULL), PD_OK);
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_of_rfc_8785_appendix_b),
        cmocka_unit_test(test_random_doubles_read_back),
        cmocka_unit_test(test_rfc_8785_examples),
        cmocka_unit_test(test_many_keys_are_sorted),
        cmocka_unit_test(test_limits_of_reading),
        cmocka_unit_test(test_malformed_texts_are_refused),
        cmocka_unit_test(test_digests_are_of_the_canonical_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
