/* What comes in bodies: batches of points, tensors, completions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/completion.h"
#include "api/http.h"
#include "api/ingest.h"
#include "api/json.h"
#include "api/oip.h"

/* ---- metric batches --------------------------------------------------------------------------- */

static enum pd_err batch(const char *json, struct api_batch *b, char pointer[64])
{
    struct pd_why why;
    /* The exact length, so that the sanitizer sees a read past the end. */
    size_t len = strlen(json);
    char *copy = malloc(len ? len : 1);
    enum pd_err err;

    memcpy(copy, json, len);
    err = api_batch_parse(copy, len, 111, b, pointer, 64, &why);
    free(copy);
    return err;
}

static void test_batch_reads_every_form(void **state)
{
    struct api_batch b;
    char pointer[64];

    (void)state;
    assert_int_equal(
        batch("{ \"points\" : [ {\"key\":\"loss\",\"step\":1,\"value\":0.25},\n"
              "{\"value\":\"NaN\",\"step\":-2,\"key\":\"loss\",\"time\":\"2026-11-20T23:50:07.123Z\"},"
              "{\"key\":\"a\\u00e9\\ud83d\\ude00\\n\",\"step\":123456789012345678,\"value\":-1.5e-3,\"time\":"
              "1700000000.5},"
              "{\"key\":\"x\",\"step\":0,\"value\":\"-Infinity\"}] }",
              &b, pointer),
        PD_OK);
    assert_int_equal(b.count, 4);
    assert_string_equal(b.points[0].key, "loss");
    assert_ptr_equal(b.points[0].key, b.points[1].key); /* not copied twice */
    assert_int_equal(b.points[0].time_us, 111);
    assert_true(b.points[0].value == 0.25);
    assert_true(isnan(b.points[1].value));
    assert_int_equal(b.points[1].step, -2);
    assert_int_equal(b.points[1].time_us, INT64_C(1795218607123000));
    assert_string_equal(b.points[2].key, "a\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_int_equal(b.points[2].step, INT64_C(123456789012345678));
    assert_true(b.points[2].value == -1.5e-3);
    assert_int_equal(b.points[2].time_us, INT64_C(1700000000500000));
    assert_true(isinf(b.points[3].value));
    api_batch_done(&b);
    assert_int_equal(batch("{\"points\":[]}", &b, pointer), PD_OK);
    assert_int_equal(b.count, 0);
    api_batch_done(&b);
}

static void test_batch_names_what_is_wrong(void **state)
{
    static const struct {
        const char *json;
        enum pd_err err;
        const char *pointer;
    } cases[] = {
        {"", PD_ERR_CORRUPT, NULL},
        {"[]", PD_ERR_INVALID, "#"},
        {"{}", PD_ERR_INVALID, "#"},
        {"{\"points\":[]", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[]}x", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[],\"points\":[]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[],\"more\":1}", PD_ERR_INVALID, "#/more"},
        {"{\"pts\":[]}", PD_ERR_INVALID, "#/pts"},
        {"{\"points\":3}", PD_ERR_INVALID, "#/points"},
        {"{\"points\":[3]}", PD_ERR_INVALID, "#/points/0"},
        {"{\"points\":[{}]}", PD_ERR_INVALID, "#/points/0"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1},{\"key\":\"a\",\"step\":1.5,\"value\":1}]}",
         PD_ERR_INVALID, "#/points/1/step"},
        {"{\"points\":[{\"key\":\"a\",\"step\":\"1\",\"value\":1}]}", PD_ERR_INVALID, "#/points/0/step"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1e3,\"value\":1}]}", PD_ERR_INVALID, "#/points/0/step"},
        {"{\"points\":[{\"key\":\"\",\"step\":1,\"value\":1}]}", PD_ERR_INVALID, "#/points/0/key"},
        {"{\"points\":[{\"key\":1,\"step\":1,\"value\":1}]}", PD_ERR_INVALID, "#/points/0/key"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":null}]}", PD_ERR_INVALID, "#/points/0/value"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":\"nan\"}]}", PD_ERR_INVALID, "#/points/0/value"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1e999}]}", PD_ERR_INVALID, "#/points/0/value"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1,\"time\":\"yesterday\"}]}", PD_ERR_INVALID,
         "#/points/0/time"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1,\"time\":-1}]}", PD_ERR_INVALID,
         "#/points/0/time"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1,\"unit\":\"s\"}]}", PD_ERR_INVALID,
         "#/points/0/unit"},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1,\"step\":2}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\",\"step\":01,\"value\":1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1.}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":+1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\\u0000\",\"step\":1,\"value\":1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\\ud800\",\"step\":1,\"value\":1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"\xff\",\"step\":1,\"value\":1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\n\",\"step\":1,\"value\":1}]}", PD_ERR_CORRUPT, NULL},
        {"{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":1},]}", PD_ERR_INVALID, "#/points/1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_batch b;
        char pointer[64];

        if (batch(cases[i].json, &b, pointer) != cases[i].err)
            fail_msg("case %zu: %s", i, cases[i].json);
        if (cases[i].pointer)
            assert_string_equal(pointer, cases[i].pointer);
    }
}

static void test_batch_numbers_equal_strtod(void **state)
{
    static const char *const numbers[] = {"0",
                                          "-0",
                                          "1",
                                          "0.1",
                                          "123456.789",
                                          "9007199254740993",
                                          "1e22",
                                          "1e23",
                                          "2.2250738585072014e-308",
                                          "5e-324",
                                          "1.7976931348623157e308",
                                          "0.000000000000000000000000000012345",
                                          "123456789012345678901234567890",
                                          "4.35",
                                          "8.5e-22",
                                          "1E5",
                                          "1e+5",
                                          "0e0",
                                          "3.141592653589793238462643"};
    char json[200], pointer[64];

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct api_batch b;
        double wanted = strtod(numbers[i], NULL);

        snprintf(json, sizeof json, "{\"points\":[{\"key\":\"a\",\"step\":1,\"value\":%s}]}", numbers[i]);
        assert_int_equal(batch(json, &b, pointer), PD_OK);
        assert_memory_equal(&b.points[0].value, &wanted, sizeof wanted);
        api_batch_done(&b);
    }
}

static void test_time_forms(void **state)
{
    int64_t us;

    (void)state;
    assert_true(api_parse_time("1970-01-01T00:00:00Z", 20, &us));
    assert_int_equal(us, 0);
    assert_true(api_parse_time("2024-02-29T12:00:00.000001Z", 27, &us));
    assert_int_equal(us, INT64_C(1709208000000001));
    assert_true(api_parse_time("2000-12-31T23:59:59Z", 20, &us));
    assert_int_equal(us, INT64_C(978307199000000));
    assert_false(api_parse_time("2023-02-29T12:00:00Z", 20, &us));
    assert_false(api_parse_time("2100-02-29T12:00:00Z", 20, &us));
    assert_false(api_parse_time("2024-13-01T12:00:00Z", 20, &us));
    assert_false(api_parse_time("2024-01-01T24:00:00Z", 20, &us));
    assert_false(api_parse_time("2024-01-01T12:00:00", 19, &us));
    assert_false(api_parse_time("2024-01-01T12:00:00+01:00", 25, &us));
    assert_false(api_parse_time("2024-01-01T12:00:00.Z", 21, &us));
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static enum pd_err oip(const char *json, const void *raw, size_t raw_len, struct api_oip_request *q,
                       struct pd_why *why, char **ret_body)
{
    size_t n = strlen(json);
    char *body = malloc(n + raw_len + 1);
    enum pd_err err;

    memcpy(body, json, n);
    memcpy(body + n, raw ? raw : "", raw_len);
    err = api_oip_parse(body, n + raw_len, raw ? (int64_t)n : -1, q, why);
    if (err == PD_OK)
        *ret_body = body;
    else
        free(body);
    return err;
}

static void test_oip_json_and_binary_give_the_same_tensor(void **state)
{
    static const float values[4] = {1, 2.5f, -3, 4};
    struct api_oip_request q;
    struct pd_why why;
    char *body;

    (void)state;
    assert_int_equal(oip("{\"id\":\"42\",\"inputs\":[{\"name\":\"x\",\"shape\":[2,2],\"datatype\":\"FP32\","
                         "\"data\":[[1,2.5],[-3,4]]}]}",
                         NULL, 0, &q, &why, &body),
                     PD_OK);
    assert_string_equal(q.id, "42");
    assert_int_equal(q.tensors[0].bytes, 16);
    assert_memory_equal(q.tensors[0].data, values, 16);
    api_oip_request_done(&q);
    free(body);
    assert_int_equal(
        oip("{\"inputs\":[{\"name\":\"x\",\"shape\":[2,2],\"datatype\":\"FP32\",\"data\":[1,2.5,-3,4]},"
            "{\"name\":\"y\",\"shape\":[2,2],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":16}}]"
            "}",
            values, 16, &q, &why, &body),
        PD_OK);
    assert_memory_equal(q.tensors[1].data, values, 16);
    assert_ptr_equal(
        (const char *)q.tensors[1].data + 16,
        body +
            strlen(
                "{\"inputs\":[{\"name\":\"x\",\"shape\":[2,2],\"datatype\":\"FP32\",\"data\":[1,2.5,-3,4]},"
                "{\"name\":\"y\",\"shape\":[2,2],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":"
                "16}}]}") +
            16);
    api_oip_request_done(&q);
    free(body);
}

static void test_oip_every_datatype(void **state)
{
    static const char *const names[] = {"BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8",
                                        "INT16", "INT32", "INT64",  "FP32",   "FP64"};
    static const int sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8};
    char json[300];
    struct api_oip_request q;
    struct pd_why why;
    char *body;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pd_buf b;
        size_t header;

        snprintf(json, sizeof json,
                 "{\"inputs\":[{\"name\":\"x\",\"shape\":[3],\"datatype\":\"%s\",\"data\":[%s]}]}", names[i],
                 i == 0   ? "true,false,true"
                 : i >= 5 ? "1,-1,100"
                          : "1,0,255");
        assert_int_equal(oip(json, NULL, 0, &q, &why, &body), PD_OK);
        assert_int_equal(q.tensors[0].bytes, 3 * sizes[i]);
        pd_buf_init(&b, 0);
        assert_int_equal(api_oip_reply(&q, "m", 1, "", q.tensors, 1, &b, &header, &why), PD_OK);
        assert_int_equal(header, 0);
        assert_non_null(strstr(b.data, i == 0 ? "[true,false,true]" : i >= 5 ? "[1,-1,100]" : "[1,0,255]"));
        pd_buf_done(&b);
        api_oip_request_done(&q);
        free(body);
    }
    assert_int_equal(
        oip("{\"inputs\":[{\"name\":\"x\",\"shape\":[2],\"datatype\":\"BYTES\",\"data\":[\"ab\",\"\"]}]}",
            NULL, 0, &q, &why, &body),
        PD_OK);
    assert_int_equal(q.tensors[0].bytes, 10);
    assert_memory_equal(q.tensors[0].data, "\2\0\0\0ab\0\0\0\0", 10);
    api_oip_request_done(&q);
    free(body);
    /* One text for an array of one. */
    assert_int_equal(
        oip("{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"BYTES\",\"data\":\"ab\"}]}", NULL, 0,
            &q, &why, &body),
        PD_OK);
    assert_int_equal(q.tensors[0].bytes, 6);
    assert_memory_equal(q.tensors[0].data, "\2\0\0\0ab", 6);
    api_oip_request_done(&q);
    free(body);
}

static void test_oip_refuses_before_it_allocates(void **state)
{
#define IN(rest) "{\"inputs\":[{\"name\":\"x\"," rest "}]}"
    static const struct {
        const char *json;
        size_t raw;
        const char *says;
    } cases[] = {
        {"{", 0, "not JSON"},
        {"{\"inputs\":[],\"inputs\":[]}", 0, "not JSON"},
        {"[]", 0, "inputs"},
        {"{}", 0, "inputs"},
        {"{\"inputs\":[]}", 0, "inputs"},
        {"{\"inputs\":[3]}", 0, "name"},
        {IN("\"shape\":[1],\"datatype\":\"FP128\",\"data\":[1]"), 0, "datatype"},
        {IN("\"shape\":[-1],\"datatype\":\"FP32\",\"data\":[1]"), 0, "must be a list of sizes"},
        {IN("\"shape\":[1.5],\"datatype\":\"FP32\",\"data\":[1]"), 0, "must be a list of sizes"},
        {IN("\"shape\":[1,1,1,1,1,1,1,1,1],\"datatype\":\"FP32\",\"data\":[1]"), 0, "at most"},
        {IN("\"shape\":[4294967296,4294967296],\"datatype\":\"FP32\",\"data\":[1]"), 0, "overflow"},
        {IN("\"shape\":[9223372036854775807,2],\"datatype\":\"FP64\",\"data\":[1]"), 0, "overflow"},
        {IN("\"shape\":[1000000000000],\"datatype\":\"UINT8\",\"data\":[1]"), 0, "has 1 elements"},
        {IN("\"shape\":[2],\"datatype\":\"FP32\",\"data\":[1]"), 0, "has 1 elements"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"data\":[\"1\"]"), 0, "not a FP32"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1e39]"), 0, "not a FP32"},
        {IN("\"shape\":[1],\"datatype\":\"INT8\",\"data\":[128]"), 0, "not a INT8"},
        {IN("\"shape\":[1],\"datatype\":\"INT8\",\"data\":[-129]"), 0, "not a INT8"},
        {IN("\"shape\":[1],\"datatype\":\"UINT8\",\"data\":[-1]"), 0, "not a UINT8"},
        {IN("\"shape\":[1],\"datatype\":\"UINT8\",\"data\":[256]"), 0, "not a UINT8"},
        {IN("\"shape\":[1],\"datatype\":\"INT32\",\"data\":[1.5]"), 0, "not a INT32"},
        {IN("\"shape\":[1],\"datatype\":\"BOOL\",\"data\":[2]"), 0, "not a BOOL"},
        {IN("\"shape\":[1],\"datatype\":\"FP16\",\"data\":[1]"), 0, "only be sent as binary"},
        {IN("\"shape\":[1],\"datatype\":\"BF16\",\"data\":[1]"), 0, "only be sent as binary"},
        {IN("\"shape\":[1],\"datatype\":\"BYTES\",\"data\":[1]"), 0, "element 0 of BYTES is not a text"},
        {IN("\"shape\":[2,2],\"datatype\":\"BYTES\",\"data\":[[\"a\",\"b\"],[\"c\",null]]"), 0,
         "element 3 of BYTES is not a text"},
        {IN("\"shape\":[1],\"datatype\":\"BYTES\",\"data\":{}"), 0, "needs data, an array, or one text"},
        {IN("\"shape\":[2],\"datatype\":\"BYTES\",\"data\":\"a\""), 0, "has 1 elements"},
        {IN("\"shape\":[1],\"datatype\":\"UINT8\",\"data\":\"a\""), 0, "needs data, an array"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\""), 0, "needs data"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4}"), 0,
         "without Inference-Header"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4}"), 5, "5 follow"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":5}"), 5, "needs 4"},
        {IN("\"shape\":[2],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":4}"), 4, "needs 8"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1],\"parameters\":{\"binary_data_size\":4}"), 4,
         "both"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":-4}"), 4,
         "number of bytes"},
        {IN("\"shape\":[1],\"datatype\":\"BYTES\",\"parameters\":{\"binary_data_size\":4}"), 4,
         "do not add up"},
        {IN("\"shape\":[1],\"datatype\":\"BOOL\",\"parameters\":{\"binary_data_size\":1}"), 1,
         "neither 0 nor 1"},
        {IN("\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1],\"parameters\":{\"x\":1}"), 0,
         "unknown parameter"},
        {"{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]},{\"name\":\"x\","
         "\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}]}",
         0, "twice"},
        {"{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}],\"outputs\":3}", 0,
         "outputs"},
        {"{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}],\"outputs\":[{"
         "\"name\":\"a\"},{\"name\":\"a\"}]}",
         0, "twice"},
        {"{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}],\"parameters\":{"
         "\"sequence_id\":1}}",
         0, "unknown parameter"},
        {"{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}],\"parameters\":{"
         "\"timeout\":0}}",
         0, "timeout"},
    };
#undef IN

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct api_oip_request q;
        struct pd_why why = {.text = ""};
        char *body, raw[16];

        memset(raw, 7, sizeof raw);
        if (oip(cases[i].json, cases[i].raw ? raw : NULL, cases[i].raw, &q, &why, &body) == PD_OK ||
            !strstr(why.text, cases[i].says))
            fail_msg("case %zu: %s: %s", i, cases[i].json, why.text);
    }
    {
        struct api_oip_request q;
        struct pd_why why;

        assert_int_equal(api_oip_parse("{}", 2, 3, &q, &why), PD_ERR_INVALID);
    }
}

static void test_oip_reply_selects_and_mixes(void **state)
{
    static const float good[2] = {0.5f, 2}, bad[1] = {INFINITY};
    struct wire_tensor t[2] = {
        {.name = "a", .dtype = "FP32", .rank = 1, .shape = {2}, .data = good, .bytes = 8},
        {.name = "b", .dtype = "FP32", .rank = 1, .shape = {1}, .data = bad, .bytes = 4}};
    struct api_oip_request q;
    struct pd_why why;
    struct pd_buf b;
    size_t header;
    char *body;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(oip("{\"inputs\":[{\"name\":\"x\",\"shape\":[0],\"datatype\":\"FP32\",\"data\":[]}],"
                         "\"parameters\":{\"binary_data_output\":true},\"outputs\":[{\"name\":\"b\"},{"
                         "\"name\":\"a\",\"parameters\":{\"binary_data\":false}}]}",
                         NULL, 0, &q, &why, &body),
                     PD_OK);
    assert_int_equal(api_oip_reply(&q, "m", 3, "", t, 2, &b, &header, &why), PD_OK);
    assert_int_equal(header + 4, b.len);
    assert_memory_equal(b.data + header, bad, 4);
    b.data[header] = '\0';
    assert_string_equal(
        b.data,
        "{\"model_name\":\"m\",\"model_version\":\"3\",\"outputs\":[{\"name\":\"b\",\"shape\":[1],"
        "\"datatype\":\"FP32\",\"parameters\":{"
        "\"binary_data_size\":4}},{\"name\":\"a\",\"shape\":[2],\"datatype\":\"FP32\",\"data\":[0.5,2]}]}");
    pd_buf_done(&b);
    /* JSON cannot carry an infinity. */
    q.outputs[0].binary = false;
    assert_int_equal(api_oip_reply(&q, "m", 3, "", t, 2, &b, &header, &why), PD_ERR_INTERNAL);
    pd_buf_done(&b);
    assert_int_equal(api_oip_reply(&q, "m", 3, "", t, 1, &b, &header, &why), PD_ERR_INVALID);
    pd_buf_done(&b);
    t[0].bytes = 7; /* a worker that lies */
    q.outputs[0].binary = true;
    assert_int_equal(api_oip_reply(&q, "m", 3, "", t, 2, &b, &header, &why), PD_ERR_INTERNAL);
    pd_buf_done(&b);
    api_oip_request_done(&q);
    free(body);
}

/* ---- completions ------------------------------------------------------------------------------ */

static enum pd_err completion(const char *json, struct api_completion *c, char param[64], struct pd_why *why)
{
    json_t *root = json_loads(json, 0, NULL);
    enum pd_err err;

    assert_non_null(root);
    err = api_completion_parse(root, c, param, why);
    json_decref(root);
    return err;
}

static void test_completion_reads_all_prompt_forms(void **state)
{
    struct api_completion c;
    struct pd_why why;
    struct pd_buf b;
    char param[64];

    (void)state;
    assert_int_equal(completion("{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":5,\"seed\":7,\"stop\":"
                                "\"x\",\"n\":2,\"top_p\":null,\"foo\":1}",
                                &c, param, &why),
                     PD_OK);
    assert_int_equal(c.prompts, 1);
    assert_int_equal(c.n, 2);
    assert_non_null(strstr(c.warnings.data, "'foo'"));
    pd_buf_init(&b, 0);
    api_completion_params(&c, 1, &b);
    assert_string_equal(b.data, "{\"max_tokens\":5,\"stop\":[\"x\"],\"seed\":8,\"stream\":false}");
    pd_buf_done(&b);
    api_completion_done(&c);
    assert_int_equal(completion("{\"model\":\"m\",\"prompt\":[\"abcde\",\"b\"]}", &c, param, &why), PD_OK);
    assert_int_equal(c.prompts, 2);
    assert_int_equal(c.prompt[0].count, 5);
    assert_int_equal(c.prompt[1].offset % 4, 0);
    assert_memory_equal(c.prompt_bytes.data + c.prompt[1].offset, "b", 1);
    pd_buf_init(&b, 0);
    api_completion_params(&c, 1, &b);
    assert_string_equal(b.data, "{\"seed\":0,\"stream\":false}");
    pd_buf_done(&b);
    api_completion_done(&c);
    assert_int_equal(completion("{\"model\":\"m\",\"prompt\":[1,2,3]}", &c, param, &why), PD_OK);
    assert_int_equal(c.prompts, 1);
    assert_true(c.prompt[0].tokens);
    assert_memory_equal(c.prompt_bytes.data, "\1\0\0\0\2\0\0\0\3\0\0\0", 12);
    api_completion_done(&c);
    assert_int_equal(completion("{\"model\":\"m\",\"prompt\":[[1],[2,3]],\"stream\":true,\"stream_options\":{"
                                "\"include_usage\":true}}",
                                &c, param, &why),
                     PD_OK);
    assert_int_equal(c.prompts, 2);
    assert_int_equal(c.prompt[1].count, 2);
    assert_true(c.include_usage);
    api_completion_done(&c);
}

static void test_completion_names_the_member_at_fault(void **state)
{
    static const struct {
        const char *rest, *param;
    } cases[] = {
        {"\"prompt\":3", "prompt"},
        {"\"prompt\":[]", "prompt"},
        {"\"prompt\":[\"a\",1]", "prompt"},
        {"\"prompt\":[1,\"a\"]", "prompt"},
        {"\"prompt\":[-1]", "prompt"},
        {"\"prompt\":\"a\",\"max_tokens\":-1", "max_tokens"},
        {"\"prompt\":\"a\",\"max_tokens\":1.5", "max_tokens"},
        {"\"prompt\":\"a\",\"temperature\":3", "temperature"},
        {"\"prompt\":\"a\",\"top_p\":0", "top_p"},
        {"\"prompt\":\"a\",\"n\":0", "n"},
        {"\"prompt\":\"a\",\"n\":9", "n"},
        {"\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":8", "n"},
        {"\"prompt\":\"a\",\"stream\":1", "stream"},
        {"\"prompt\":\"a\",\"stream_options\":{\"x\":1}", "stream_options"},
        {"\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"prompt\":\"a\",\"logprobs\":6", "logprobs"},
        {"\"prompt\":\"a\",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop"},
        {"\"prompt\":\"a\",\"stop\":[\"\"]", "stop"},
        {"\"prompt\":\"a\",\"presence_penalty\":3", "presence_penalty"},
        {"\"prompt\":\"a\",\"top_k\":-1", "top_k"},
        {"\"prompt\":\"a\",\"min_p\":2", "min_p"},
        {"\"prompt\":\"a\",\"repetition_penalty\":0", "repetition_penalty"},
        {"\"prompt\":\"a\",\"best_of\":2", "best_of"},
        {"\"prompt\":\"a\",\"logit_bias\":{\"x\":1}", "logit_bias"},
        {"\"prompt\":\"a\",\"logit_bias\":{\"1\":101}", "logit_bias"},
        {"\"prompt\":\"a\",\"seed\":\"1\"", "seed"},
        {"\"prompt\":\"a\",\"suffix\":\"x\"", "suffix"},
        {"\"max_tokens\":1", "prompt"},
    };
    struct api_completion c;
    struct pd_why why;
    char param[64], json[300];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(json, sizeof json, "{\"model\":\"m\",%s}", cases[i].rest);
        if (completion(json, &c, param, &why) == PD_OK)
            fail_msg("accepted: %s", json);
        assert_string_equal(param, cases[i].param);
    }
    assert_int_equal(completion("{\"prompt\":\"a\"}", &c, param, &why), PD_ERR_INVALID);
    assert_string_equal(param, "model");
}

static void test_generate_refuses_unknown_parameters(void **state)
{
    struct api_completion c;
    struct pd_why why;
    char param[64];
    json_t *root =
        json_loads("{\"text_input\":\"a\",\"max_tokens\":3,\"parameters\":{\"temperature\":0}}", 0, NULL);

    (void)state;
    assert_int_equal(api_generate_parse(root, &c, param, &why), PD_OK);
    assert_string_equal(c.params.data, "{\"max_tokens\":3,\"temperature\":0");
    api_completion_done(&c);
    json_object_set_new(root, "n", json_integer(2));
    assert_int_equal(api_generate_parse(root, &c, param, &why), PD_ERR_INVALID);
    json_object_del(root, "n");
    json_object_set_new(root, "temperature", json_integer(1));
    assert_int_equal(api_generate_parse(root, &c, param, &why), PD_ERR_INVALID);
    json_decref(root);
    root = json_loads("{\"parameters\":{}}", 0, NULL);
    assert_int_equal(api_generate_parse(root, &c, param, &why), PD_ERR_INVALID);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_reads_every_form),
        cmocka_unit_test(test_batch_names_what_is_wrong),
        cmocka_unit_test(test_batch_numbers_equal_strtod),
        cmocka_unit_test(test_time_forms),
        cmocka_unit_test(test_oip_json_and_binary_give_the_same_tensor),
        cmocka_unit_test(test_oip_every_datatype),
        cmocka_unit_test(test_oip_refuses_before_it_allocates),
        cmocka_unit_test(test_oip_reply_selects_and_mixes),
        cmocka_unit_test(test_completion_reads_all_prompt_forms),
        cmocka_unit_test(test_completion_names_the_member_at_fault),
        cmocka_unit_test(test_generate_refuses_unknown_parameters),
    };

    return cmocka_run_group_tests_name("api_bodies", tests, NULL, NULL);
}
