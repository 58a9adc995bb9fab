/* safetensors: round trips, and files that want to hurt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/shards.h"

/* A file of this header and `data` bytes of 0, 1, 2, ... */
static enum pd_err parse(const char *header, size_t data, struct data_st **ret)
{
    static uint8_t file[8192];
    size_t n = strlen(header);
    struct pd_why why = {""};
    enum pd_err err;

    memset(file, 0, sizeof file);
    file[0] = (uint8_t)n;
    file[1] = (uint8_t)(n >> 8);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < data; i++)
        file[8 + n + i] = (uint8_t)i;
    err = data_st_parse(file, 8 + n + data, ret, &why);
    if (err != PD_OK)
        assert_true(why.text[0]);
    return err;
}

static void test_write_then_read_gives_the_same(void **state)
{
    const struct data_st_tensor t[] = {
        {.name = "a.weight", .dtype = DATA_ST_F32, .rank = 2, .dim = {2, 3}},
        {.name = "scalar", .dtype = DATA_ST_F64, .rank = 0},
        {.name = "empty \"quoted\"", .dtype = DATA_ST_F32, .rank = 2, .dim = {0, 4}},
        {.name = "half", .dtype = DATA_ST_F16, .rank = 1, .dim = {4}},
        {.name = "brain", .dtype = DATA_ST_BF16, .rank = 1, .dim = {1}},
    };
    const struct data_st_meta_item meta[] = {{"format", "pt"}, {"note", "line\nbreak"}};
    const float a[6] = {1, 2, 3, 4, 5, -6.5f};
    const double s = 0.1;
    const uint16_t half[4] = {0x3c00, 0xc000, 0x0001, 0x7c00}, brain = 0x3fc0;
    struct pd_buf b;
    struct data_st *st = NULL;
    float f[6];
    double d;
    struct pd_why why;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(data_st_header(t, 5, meta, 2, &b, &why), PD_OK);
    assert_int_equal(b.len % 8, 0);
    pd_buf_append(&b, a, sizeof a);
    pd_buf_append(&b, &s, sizeof s);
    pd_buf_append(&b, half, sizeof half);
    pd_buf_append(&b, &brain, sizeof brain);
    assert_int_equal(data_st_parse(b.data, b.len, &st, &why), PD_OK);
    assert_int_equal(data_st_count(st), 5);
    assert_string_equal(data_st_meta(st, "note"), "line\nbreak");
    assert_null(data_st_meta(st, "none"));
    assert_int_equal(data_st_read_f32(data_st_find(st, "a.weight"), f, 6, &why), PD_OK);
    assert_memory_equal(f, a, sizeof a);
    assert_int_equal(data_st_read_f32(data_st_find(st, "a.weight"), f, 5, &why), PD_ERR_INVALID);
    assert_int_equal(data_st_read_f64(data_st_find(st, "scalar"), &d, 1, &why), PD_OK);
    assert_true(d == 0.1);
    assert_int_equal(data_st_find(st, "empty \"quoted\"")->count, 0);
    assert_int_equal(data_st_read_f32(data_st_find(st, "half"), f, 4, &why), PD_OK);
    assert_true(f[0] == 1 && f[1] == -2 && f[2] == 0x1p-24f && f[3] > 1e38f);
    assert_int_equal(data_st_read_f32(data_st_find(st, "brain"), f, 1, &why), PD_OK);
    assert_true(f[0] == 1.5f);
    data_st_free(st);
    pd_buf_done(&b);
}

static void test_hostile_headers_refused(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        enum pd_err err;
    } cases[] = {
        {"{}", 0, PD_OK},
        {"{}", 1, PD_ERR_CORRUPT},
        {"[]", 0, PD_ERR_CORRUPT},
        {" {}", 0, PD_ERR_CORRUPT},
        {"{", 0, PD_ERR_CORRUPT},
        {"{} x", 0, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, PD_OK},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, PD_ERR_UNSUPPORTED},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, PD_ERR_CORRUPT}, /* hole */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         8, PD_ERR_CORRUPT}, /* overlap */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, PD_ERR_CORRUPT}, /* twice */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
         PD_ERR_CORRUPT},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, PD_ERR_LIMIT},
        {"{\"__metadata__\":{\"a\":1}}", 0, PD_ERR_CORRUPT},
        {"{\"__metadata__\":[]}", 0, PD_ERR_CORRUPT},
        {"{\"\\u0000\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, PD_ERR_CORRUPT},
        {"{\"a\":5}", 0, PD_ERR_CORRUPT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct data_st *st = NULL;
        enum pd_err err = parse(cases[i].header, cases[i].data, &st);

        if (err != cases[i].err)
            fail_msg("case %zu: %s, expected %s", i, pd_err_name(err), pd_err_name(cases[i].err));
        data_st_free(st);
    }
}

static void test_length_word_beyond_the_file_refused(void **state)
{
    uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, '{', '}'},
            late[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    struct data_st *st = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(data_st_parse(huge, sizeof huge, &st, &why), PD_ERR_LIMIT);
    assert_int_equal(data_st_parse(late, sizeof late, &st, &why), PD_ERR_CORRUPT);
    assert_int_equal(data_st_parse(late, 4, &st, &why), PD_ERR_CORRUPT);
    assert_int_equal(data_st_open("/nonexistent/x", &st, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(data_st_open("/tmp", &st, &why), PD_ERR_CORRUPT);
}

static void test_writer_refuses_duplicate_and_reserved_names(void **state)
{
    const struct data_st_tensor twice[] = {{.name = "a", .dtype = DATA_ST_F32},
                                           {.name = "a", .dtype = DATA_ST_F32}};
    const struct data_st_tensor reserved[] = {{.name = "__metadata__", .dtype = DATA_ST_F32}};
    const struct data_st_tensor text[] = {{.name = "\xff", .dtype = DATA_ST_F32}};
    struct pd_buf b;
    struct pd_why why;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(data_st_header(twice, 2, NULL, 0, &b, &why), PD_ERR_INVALID);
    assert_int_equal(data_st_header(reserved, 1, NULL, 0, &b, &why), PD_ERR_INVALID);
    assert_int_equal(data_st_header(text, 1, NULL, 0, &b, &why), PD_ERR_INVALID);
    assert_int_equal(b.len, 0);
    pd_buf_done(&b);
}

static void test_flipped_bytes_never_hurt(void **state)
{
    const char *good =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    char bad[256];

    (void)state;
    for (size_t i = 0; i < strlen(good); i++)
        for (int bit = 0; bit < 8; bit++) {
            struct data_st *st = NULL;

            snprintf(bad, sizeof bad, "%s", good);
            bad[i] = (char)(bad[i] ^ 1 << bit);
            (void)parse(bad, 11, &st);
            data_st_free(st);
        }
}

/* A file of one tensor with the numbers 0 and 1. */
static void put_tensor(const char *path, const char *name)
{
    static const float items[] = {0, 1};
    char header[256];
    uint64_t len = (uint64_t)snprintf(
        header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(&len, 8, 1, f), 1);
    assert_int_equal(fwrite(header, 1, len, f), len);
    assert_int_equal(fwrite(items, sizeof items, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void put_link(const char *to, const char *folder, const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(symlink(to, path), 0);
}

/* Hugging Face's cache: files of a snapshot are links to a folder of blobs beside it. */
static void test_linked_files_stay_below_the_root(void **state)
{
    static const char index[] =
        "{\"weight_map\":{\"x\":\"model-1.safetensors\",\"y\":\"model-2.safetensors\"}}";
    char folder[] = "/tmp/polyd-shards-XXXXXX", hub[64], path[128], command[256];
    const struct data_root root = {"hub", hub};
    struct data_shards *s = NULL;
    struct pd_why why;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(hub, sizeof hub, "%s/hub", folder);
    snprintf(command, sizeof command, "mkdir -p '%s/blobs' '%s/snapshots/1' '%s/snapshots/2'", hub, hub, hub);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/blobs/a", hub);
    put_tensor(path, "x");
    snprintf(path, sizeof path, "%s/blobs/b", hub);
    put_tensor(path, "y");
    snprintf(path, sizeof path, "%s/outside", folder);
    put_tensor(path, "x");
    snprintf(path, sizeof path, "%s/snapshots/1", hub);
    put_link("../../blobs/a", path, DATA_SHARDS_SINGLE);
    assert_int_equal(data_shards_open_dir(&root, 1, "hub/snapshots/1", &s, &why), PD_OK);
    assert_non_null(data_shards_find(s, "x"));
    s = data_shards_free(s);
    snprintf(path, sizeof path, "%s/blobs/c", hub);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(index, 1, sizeof index - 1, f), sizeof index - 1);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/snapshots/2", hub);
    put_link("../../blobs/c", path, DATA_SHARDS_INDEX);
    put_link("../../blobs/a", path, "model-1.safetensors");
    put_link("../../blobs/b", path, "model-2.safetensors");
    assert_int_equal(data_shards_open_dir(&root, 1, "hub/snapshots/2", &s, &why), PD_OK);
    assert_int_equal(data_shards_count(s), 2);
    s = data_shards_free(s);
    snprintf(path, sizeof path, "%s/snapshots/1/" DATA_SHARDS_SINGLE, hub);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = 0;
    assert_int_equal(data_shards_open_dir(&root, 1, "hub/snapshots/1", &s, &why), PD_ERR_NOT_FOUND);
    put_link("../../../outside", path, DATA_SHARDS_SINGLE);
    assert_int_equal(data_shards_open_dir(&root, 1, "hub/snapshots/1", &s, &why), PD_ERR_DENIED);
    assert_non_null(strstr(why.text, "leads outside"));
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void test_real_gpt2_file_reads(void **state)
{
    const char *shared = getenv("POLYD_SHARED");
    struct data_st *st = NULL;
    char path[512];
    struct pd_why why;

    (void)state;
    snprintf(path, sizeof path, "%s/data/models/tiny_gpt2/model.safetensors", shared ? shared : "");
    if (!shared || access(path, R_OK)) {
        print_message("skipped: POLYD_SHARED does not name a folder with data/models\n");
        skip();
    }
    assert_int_equal(data_st_open(path, &st, &why), PD_OK);
    assert_int_equal(data_st_find(st, "wpe.weight")->dim[0], 1024);
    assert_int_equal(data_st_find(st, "wte.weight")->dim[0], 21);
    data_st_free(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_then_read_gives_the_same),
        cmocka_unit_test(test_hostile_headers_refused),
        cmocka_unit_test(test_length_word_beyond_the_file_refused),
        cmocka_unit_test(test_writer_refuses_duplicate_and_reserved_names),
        cmocka_unit_test(test_flipped_bytes_never_hurt),
        cmocka_unit_test(test_linked_files_stay_below_the_root),
        cmocka_unit_test(test_real_gpt2_file_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
