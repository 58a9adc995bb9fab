/* The parts of api that are functions of bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/check.h"
#include "api/cursor.h"
#include "api/framing.h"
#include "api/http.h"
#include "api/json.h"
#include "api/route.h"

/* ---- paths ------------------------------------------------------------------------------------ */

static void test_path_match_takes_and_decodes_parameters(void **state)
{
    struct api_params p;

    (void)state;
    assert_true(api_path_match("/api/v1/jobs/{id}", "/api/v1/jobs/42", &p));
    assert_int_equal(p.count, 1);
    assert_string_equal(p.value[0], "42");
    assert_true(
        api_path_match("/v2/models/{m}/versions/{v}/infer", "/v2/models/a%20b/versions/%31/infer", &p));
    assert_string_equal(p.value[0], "a b");
    assert_string_equal(p.value[1], "1");
    /* An encoded slash stays inside its segment. */
    assert_true(api_path_match("/x/{a}/y", "/x/a%2Fb/y", &p));
    assert_string_equal(p.value[0], "a/b");
    assert_true(api_path_match("/{asset}", "/js/app.js", &p));
    assert_string_equal(p.value[0], "js/app.js");
    assert_true(api_path_match("/{asset}", "/", &p));
    assert_string_equal(p.value[0], "");
}

static void test_path_match_refuses_what_does_not_fit(void **state)
{
    static const char *const paths[] = {"/api/v1/jobs",
                                        "/api/v1/jobs/",
                                        "/api/v1/jobs/1/",
                                        "/api/v1/jobs/1/x",
                                        "/api/v1/jobs/%",
                                        "/api/v1/jobs/%4",
                                        "/api/v1/jobs/%zz",
                                        "/api/v1/jobs/%00",
                                        "/API/v1/jobs/1",
                                        "//api/v1/jobs/1",
                                        "",
                                        "api/v1/jobs/1"};
    struct api_params p = {.count = 7};
    char long_path[400] = "/api/v1/jobs/";

    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        assert_false(api_path_match("/api/v1/jobs/{id}", paths[i], &p));
    memset(long_path + 13, 'a', 300);
    assert_false(api_path_match("/api/v1/jobs/{id}", long_path, &p));
    assert_int_equal(p.count, 7); /* untouched */
}

static void test_query_get_decodes_and_repeats(void **state)
{
    const char *q = "a=1&b=x%2Fy+z&a=2&&c&d=%&e=%00";
    char out[16];

    (void)state;
    assert_int_equal(api_query_get(q, "a", 0, out, sizeof out), PD_OK);
    assert_string_equal(out, "1");
    assert_int_equal(api_query_get(q, "a", 1, out, sizeof out), PD_OK);
    assert_string_equal(out, "2");
    assert_int_equal(api_query_get(q, "a", 2, out, sizeof out), PD_ERR_NOT_FOUND);
    assert_int_equal(api_query_get(q, "b", 0, out, sizeof out), PD_OK);
    assert_string_equal(out, "x/y z");
    assert_int_equal(api_query_get(q, "c", 0, out, sizeof out), PD_OK);
    assert_string_equal(out, "");
    assert_int_equal(api_query_get(q, "d", 0, out, sizeof out), PD_ERR_INVALID);
    assert_int_equal(api_query_get(q, "e", 0, out, sizeof out), PD_ERR_INVALID);
    assert_int_equal(api_query_get(q, "b", 0, out, 4), PD_ERR_LIMIT);
    assert_int_equal(api_query_get(NULL, "a", 0, out, sizeof out), PD_ERR_NOT_FOUND);
}

static void test_query_known_names_the_first_stranger(void **state)
{
    static const char *const names[] = {"a", "b", NULL};
    char unknown[8];

    (void)state;
    assert_true(api_query_known("a=1&b=2", names, unknown, sizeof unknown));
    assert_true(api_query_known(NULL, names, unknown, sizeof unknown));
    assert_false(api_query_known("a=1&strangers=2", names, unknown, sizeof unknown));
    assert_string_equal(unknown, "strange");
    assert_false(api_query_known("%=1", names, unknown, sizeof unknown));
}

/* ---- checks ----------------------------------------------------------------------------------- */

static void test_host_only_our_names(void **state)
{
    struct api_allow allow = {.hosts = "polyd.example, box:7070", .bind = "10.0.0.5"};
    static const char *const good[] = {"localhost",          "localhost:7070", "LOCALHOST:1",
                                       "localhost.:80",      "127.0.0.1:7070", "127.8.9.10",
                                       "[::1]:7070",         "[::1]",          "polyd.example",
                                       "polyd.example:9999", "box:7070",       "10.0.0.5:7070"};
    static const char *const bad[] = {"",
                                      "evil.example",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil.example",
                                      "box",
                                      "box:7071",
                                      "10.0.0.6",
                                      "[::2]",
                                      "[::1",
                                      "localhost:",
                                      "localhost:0",
                                      "localhost:70700",
                                      "localhost:x",
                                      "user@localhost",
                                      "localhost/x",
                                      "1270.0.1",
                                      "0.0.0.0"};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(api_host_ok(&allow, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(api_host_ok(&allow, bad[i]));
    assert_false(api_host_ok(&allow, NULL));
    allow.bind = "0.0.0.0";
    assert_false(api_host_ok(&allow, "0.0.0.0"));
}

static void test_origin_same_or_configured(void **state)
{
    struct api_allow allow = {.origins = "https://lab.example"};

    (void)state;
    assert_true(api_origin_ok(&allow, "http://localhost:7070", "localhost:7070"));
    assert_true(api_origin_ok(&allow, "http://localhost", "localhost:80"));
    assert_true(api_origin_ok(&allow, "https://[::1]:7070", "[::1]:7070"));
    assert_true(api_origin_ok(&allow, "https://lab.example", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "http://localhost:7071", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "http://127.0.0.1:7070", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "null", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "file://", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "http://evil.example", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "http://localhost:7070/", "localhost:7070"));
    assert_false(api_origin_ok(&allow, "", "localhost:7070"));
}

static void test_content_type_refuses_what_forms_send(void **state)
{
    (void)state;
    assert_true(api_content_type_ok(API_BODY_JSON, "application/json"));
    assert_true(api_content_type_ok(API_BODY_JSON, "Application/JSON; charset=utf-8"));
    assert_false(api_content_type_ok(API_BODY_JSON, NULL));
    assert_false(api_content_type_ok(API_BODY_JSON, "text/plain"));
    assert_false(api_content_type_ok(API_BODY_JSON, "application/x-www-form-urlencoded"));
    assert_false(api_content_type_ok(API_BODY_JSON, "multipart/form-data; boundary=x"));
    assert_false(api_content_type_ok(API_BODY_JSON, "application/jsonx"));
    assert_false(api_content_type_ok(API_BODY_JSON, "application/octet-stream"));
    assert_true(api_content_type_ok(API_BODY_TENSORS, "application/octet-stream"));
    assert_true(api_content_type_ok(API_BODY_TENSORS, "image/png"));
    assert_true(api_content_type_ok(API_BODY_TENSORS, "image/jpeg; name=x"));
    assert_false(api_content_type_ok(API_BODY_TENSORS, "image/webp"));
    assert_false(api_content_type_ok(API_BODY_JSON_OR_EMPTY, "text/plain"));
    assert_false(api_content_type_ok(API_BODY_NONE, "text/plain"));
}

static void test_etag_lists(void **state)
{
    (void)state;
    assert_true(api_etag_match("\"3\"", "\"3\"", false));
    assert_true(api_etag_match("\"1\", \"3\"", "\"3\"", false));
    assert_true(api_etag_match("*", "\"3\"", false));
    assert_true(api_etag_match("W/\"3\"", "\"3\"", true));
    assert_false(api_etag_match("W/\"3\"", "\"3\"", false));
    assert_false(api_etag_match("\"33\"", "\"3\"", true));
    assert_false(api_etag_match("", "\"3\"", true));
}

static void test_idempotency_key_forms(void **state)
{
    char out[256], long_key[300];

    (void)state;
    assert_true(api_idempotency_key("\"abc def\"", out, sizeof out));
    assert_string_equal(out, "abc def");
    assert_true(api_idempotency_key("8e03978e-40d5-43dd-bc93-6894a57f9324", out, sizeof out));
    assert_true(api_idempotency_key("\"a\\\"b\"", out, sizeof out));
    assert_string_equal(out, "a\"b");
    assert_false(api_idempotency_key("", out, sizeof out));
    assert_false(api_idempotency_key("\"\"", out, sizeof out));
    assert_false(api_idempotency_key("a b", out, sizeof out));
    assert_false(api_idempotency_key("a\tb", out, sizeof out));
    assert_false(api_idempotency_key("\"a\"b\"", out, sizeof out));
    memset(long_key, 'x', 299);
    long_key[299] = '\0';
    assert_false(api_idempotency_key(long_key, out, sizeof out));
    long_key[255] = '\0';
    assert_true(api_idempotency_key(long_key, out, sizeof out));
}

/* ---- JSON ------------------------------------------------------------------------------------- */

static void test_json_writer_commas_and_escapes(void **state)
{
    struct pd_buf b;

    (void)state;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "a\"", "x\n\x01\\ \xc3\xa9 \xff");
    api_json_key(&b, "n");
    api_json_open(&b, '[');
    api_json_num(&b, 0.1);
    api_json_num(&b, NAN);
    api_json_num(&b, -INFINITY);
    api_json_num(&b, 3);
    api_json_num(&b, -0.0);
    api_json_num(&b, 1e300);
    api_json_num32(&b, 0.1f);
    api_json_int(&b, INT64_MIN);
    api_json_close(&b, ']');
    api_json_kv_id(&b, "id", 7);
    api_json_kv_raw(&b, "raw", "{\"x\":1}");
    api_json_kv_null(&b, "z");
    api_json_close(&b, '}');
    assert_string_equal(b.data, "{\"a\\\"\":\"x\\u000a\\u0001\\\\ \xc3\xa9 "
                                "\xef\xbf\xbd\",\"n\":[0.1,\"NaN\",\"-Infinity\",3,-0,1e+300,0.1,"
                                "-9223372036854775808],\"id\":\"7\",\"raw\":{\"x\":1},\"z\":null}");
    pd_buf_done(&b);
}

static void test_json_numbers_read_back(void **state)
{
    uint64_t seed = 12345;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct pd_buf b;
        double value;

        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memcpy(&value, &seed, sizeof value);
        if (!isfinite(value))
            continue;
        pd_buf_init(&b, 0);
        api_json_num(&b, value);
        assert_true(strtod(b.data, NULL) == value);
        pd_buf_done(&b);
    }
}

static void test_utf8_complete_holds_back_only_beginnings(void **state)
{
    (void)state;
    assert_int_equal(api_utf8_complete("abc", 3), 3);
    assert_int_equal(api_utf8_complete("a\xc3", 2), 1);
    assert_int_equal(api_utf8_complete("a\xe2\x82", 3), 1);
    assert_int_equal(api_utf8_complete("a\xe2\x82\xac", 4), 4);
    assert_int_equal(api_utf8_complete("\xf0\x9f\x98", 3), 0);
    assert_int_equal(api_utf8_complete("\xf0", 1), 0);
    assert_int_equal(api_utf8_complete("\xe0", 1), 0);
    assert_int_equal(api_utf8_complete("\xf4\x8f\xbf", 3), 0);
    assert_int_equal(api_utf8_complete("\xff", 1), 1);     /* never valid */
    assert_int_equal(api_utf8_complete("\xe2\x28", 2), 2); /* never valid */
    assert_int_equal(api_utf8_complete("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(api_utf8_complete("\xed\xa0", 2), 2); /* surrogate */
    assert_int_equal(api_utf8_complete(NULL, 0), 0);
}

static void test_parse_id(void **state)
{
    int64_t id = 5;

    (void)state;
    assert_true(api_parse_id("9223372036854775806", &id));
    assert_int_equal(id, INT64_MAX - 1);
    assert_false(api_parse_id("9223372036854775808", &id));
    assert_false(api_parse_id("0", &id));
    assert_false(api_parse_id("-1", &id));
    assert_false(api_parse_id("01", &id));
    assert_false(api_parse_id("1x", &id));
    assert_false(api_parse_id(" 1", &id));
    assert_false(api_parse_id("", &id));
}

static void test_fault_bodies_of_each_surface(void **state)
{
    struct pd_buf b;
    const char *type;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(api_fault_body(&b, API_SURFACE_OIP, PD_ERR_INVALID, "no", NULL, NULL, &type), 400);
    assert_string_equal(b.data, "{\"error\":\"no\"}");
    assert_string_equal(type, "application/json");
    pd_buf_done(&b);
    assert_int_equal(api_fault_body(&b, API_SURFACE_OPENAI, PD_ERR_NOT_FOUND, "no", NULL, "model", &type),
                     404);
    assert_string_equal(b.data, "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"param\":"
                                "\"model\",\"code\":\"not_found\"}}");
    pd_buf_done(&b);
    assert_int_equal(api_fault_body(&b, API_SURFACE_OWN, PD_ERR_INVALID, "no",
                                    "[{\"pointer\":\"#/a\",\"detail\":\"d\"}]", NULL, &type),
                     422);
    assert_string_equal(type, "application/problem+json");
    assert_non_null(strstr(b.data, "\"status\":422"));
    assert_non_null(strstr(b.data, "\"error\":{\"code\":\"invalid\",\"message\":\"no\"}"));
    assert_non_null(strstr(b.data, "\"errors\":[{\"pointer\":\"#/a\",\"detail\":\"d\"}]"));
    pd_buf_done(&b);
    for (int i = 1; i < API_FAULT_COUNT; i++) {
        assert_true(api_fault_row(i)->status >= 400);
        assert_true(api_fault_row(i)->compat_status >= 400);
        assert_string_not_equal(api_status_title(api_fault_row(i)->status), "Error");
    }
}

/* ---- cursors ---------------------------------------------------------------------------------- */

static void test_cursor_refuses_other_lists_keys_and_changes(void **state)
{
    uint8_t key[32] = {1}, other[32] = {2};
    char text[API_CURSOR_TEXT];
    int64_t id = 0;

    (void)state;
    api_cursor_write(key, "jobs 0", 123456789, text);
    assert_true(api_cursor_read(key, "jobs 0", text, &id));
    assert_int_equal(id, 123456789);
    assert_false(api_cursor_read(key, "jobs 1", text, &id));
    assert_false(api_cursor_read(other, "jobs 0", text, &id));
    for (size_t i = 0; text[i]; i++) {
        char c = text[i];

        text[i] = c == 'A' ? 'B' : 'A';
        assert_false(api_cursor_read(key, "jobs 0", text, &id));
        text[i] = c;
    }
    assert_false(api_cursor_read(key, "jobs 0", "", &id));
    assert_false(api_cursor_read(key, "jobs 0", "....", &id));
}

/* ---- framing ---------------------------------------------------------------------------------- */

#define FIELD(n, v)                                                                                          \
    {                                                                                                        \
        n, v, sizeof(n) - 1, sizeof(v) - 1                                                                   \
    }

static void test_framing_says_what_is_twice(void **state)
{
    const struct api_request_line line = {.method = "POST", .path = "/a", .version = "HTTP/1.1"};
    const struct api_field good[] = {FIELD("Host", "a"), FIELD("Content-Length", "2"), FIELD("Accept", "x"),
                                     FIELD("accept", "y")};
    const struct api_field lengths[] = {FIELD("Host", "a"), FIELD("Content-Length", "2"),
                                        FIELD("content-length", "2")};
    const struct api_field both[] = {FIELD("Host", "a"), FIELD("Content-Length", "2"),
                                     FIELD("Transfer-Encoding", "chunked")};
    const struct api_field hosts[] = {FIELD("Host", "a"), FIELD("HOST", "a")};

    (void)state;
    assert_null(api_framing_fault(&line, good, 4));
    assert_string_equal(api_framing_fault(&line, lengths, 3), "the request has two Content-Length headers");
    assert_string_equal(api_framing_fault(&line, both, 3),
                        "the request has both a Content-Length and a Transfer-Encoding");
    assert_string_equal(api_framing_fault(&line, hosts, 2), "the request has two Host headers");
    assert_string_equal(api_framing_fault(&line, hosts, 0), "the request has no Host header");
}

static void test_framing_sees_lines_that_were_joined(void **state)
{
    /* As the library leaves it: CRLF are zeros. */
    char text[] = "GET\0/a\0HTTP/1.1\0\0Host\0 a\0\0B\0c\0\0\0\0";
    struct api_head_layout head = {.method = text,
                                   .target = text + 4,
                                   .version = text + 7,
                                   .target_len = 2,
                                   .head_bytes = sizeof text - 1};
    struct api_field f[] = {{text + 17, text + 23, 4, 1}, {text + 26, text + 28, 1, 1}};

    (void)state;
    assert_true(api_framing_adjacent(&head, f, 2));
    assert_false(api_framing_adjacent(&head, f, 1));
    head.head_bytes--; /* the last line ended in a bare LF */
    assert_false(api_framing_adjacent(&head, f, 2));
    head.head_bytes++;
    f[0].value_len = 2; /* a line that ended one byte too early for CRLF */
    assert_false(api_framing_adjacent(&head, f, 2));
    f[0].value_len = 1;
    f[0].name = "Host"; /* moved elsewhere, as folding does */
    assert_false(api_framing_adjacent(&head, f, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_framing_says_what_is_twice),
        cmocka_unit_test(test_framing_sees_lines_that_were_joined),
        cmocka_unit_test(test_path_match_takes_and_decodes_parameters),
        cmocka_unit_test(test_path_match_refuses_what_does_not_fit),
        cmocka_unit_test(test_query_get_decodes_and_repeats),
        cmocka_unit_test(test_query_known_names_the_first_stranger),
        cmocka_unit_test(test_host_only_our_names),
        cmocka_unit_test(test_origin_same_or_configured),
        cmocka_unit_test(test_content_type_refuses_what_forms_send),
        cmocka_unit_test(test_etag_lists),
        cmocka_unit_test(test_idempotency_key_forms),
        cmocka_unit_test(test_json_writer_commas_and_escapes),
        cmocka_unit_test(test_json_numbers_read_back),
        cmocka_unit_test(test_utf8_complete_holds_back_only_beginnings),
        cmocka_unit_test(test_parse_id),
        cmocka_unit_test(test_fault_bodies_of_each_surface),
        cmocka_unit_test(test_cursor_refuses_other_lists_keys_and_changes),
    };

    return cmocka_run_group_tests_name("api_text", tests, NULL, NULL);
}
