/* Runs over data that is decoded or cut into tokens: they stop and go on bit by bit, whatever the number of
 * threads, and a second start does not do the first one's work again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/png.h"
#include "tests/train/rig.h"

static void put(const char *name, const void *bytes, size_t len)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* CIFAR-10 records: class c is bright in channel c % 3, with noise. */
static void put_cifar(const char *name, int count)
{
    uint8_t *all = malloc((size_t)count * 3073);
    uint32_t seed = 1;

    assert_non_null(all);
    for (int i = 0; i < count; i++) {
        uint8_t *r = all + i * 3073;

        r[0] = (uint8_t)(i % 3);
        for (int k = 0; k < 3072; k++) {
            seed = seed * 1664525 + 1013904223;
            r[1 + k] = (uint8_t)((k / 1024 == i % 3 ? 180 : 40) + (seed >> 27));
        }
    }
    put(name, all, (size_t)count * 3073);
    free(all);
}

static void stops_and_goes_on(const char *job, int64_t after)
{
    struct book whole = {0}, b = {0};
    struct train_outcome want, out;
    struct pd_why why = {""};

    if (run(job, &whole, NULL, 1, &want, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(want.result, TRAIN_DONE);
    clear();
    b.stop_after_calls = after;
    b.how = TRAIN_STOP_CHECKPOINT;
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_STOPPED);
    b.stop_after_calls = 0;
    if (run(job, &b, NULL, 2, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    same_points(&whole, &b);
    close_book(&whole);
    close_book(&b);
}

#define CIFAR(loaders)                                                                                       \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":1,\"heads\":2,\"patch\":8},"                \
    "\"data\":{\"dataset\":\"cifar10\",\"path\":\"box/c\",\"image_size\":24,"                                \
    "\"augment\":{\"crop\":\"rrc\",\"rrc\":{\"scale\":[0.4,1]},\"flip\":0.5,\"eval_crop\":0.875}},"          \
    "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":2,"                         \
    "\"loader_threads\":" loaders "},\"train\":{\"steps\":30,\"batch\":6,\"eval_every\":10,"                 \
    "\"optimizer\":{\"lr\":0.01}}}"

static void test_cropped_images_learn_and_stop_bit_identically(void **state)
{
    struct book one = {0}, four = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    put_cifar("c/data_batch_1.bin", 30);
    put_cifar("c/test_batch.bin", 9);
    stops_and_goes_on(CIFAR("3"), 17);
    clear();
    assert_int_equal(run(CIFAR("1"), &one, NULL, 1, &out, &why), PD_OK);
    assert_true(out.metric_val > 0.9); /* the brightest channel is easy */
    clear();
    assert_int_equal(run(CIFAR("4"), &four, NULL, 1, &out, &why), PD_OK);
    same_points(&one, &four);
    close_book(&one);
    close_book(&four);
}

#define PICTURES_OF(ranks)                                                                                   \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":1,\"heads\":2,\"patch\":8},"                \
    "\"data\":{\"dataset\":\"image_folder\",\"path\":\"box/p\",\"image_size\":8},"                           \
    "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1,\"slots\":" ranks         \
    "},\"train\":{\"steps\":4,\"batch\":4,\"eval_every\":2,\"optimizer\":{\"lr\":0.01},"                     \
    "\"checkpoint_every\":{\"steps\":2}}}"
#define PICTURES PICTURES_OF("1")

static void put_pictures(const char *class, int count)
{
    char name[100];

    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "p/%s/%s/%d.png", i % 2 ? "train" : "val", class, i);
        put(name, png_red, sizeof png_red);
    }
}

static void test_damaged_pictures_are_reported_by_name(void **state)
{
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why = {""};

    (void)state;
    put_pictures("cat", 8);
    put_pictures("golden retriever", 8);
    put("p/train/golden retriever/not one.png", "no picture", 10);
    if (run(PICTURES, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_string_equal(b.bad, "file=train/golden retriever/not one.png;");
    close_book(&b);
}

/* Each rank decodes a share of the pictures, and only rank 0 speaks. */
static void test_damaged_pictures_of_every_rank_are_reported(void **state)
{
    static const char *const damaged[] = {"train/bird/x.png", "train/cat/y.png", "val/bird/-.png",
                                          "val/cat/z.png"};
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why = {""};
    double counted = 0;
    char name[64];

    (void)state;
    put_pictures("bird", 8);
    put_pictures("cat", 8);
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "p/%s", damaged[i]);
        put(name, "no picture", 10);
    }
    if (run_ranks(2, PICTURES_OF("2"), &b, NULL, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (size_t i = 0; i < 4; i++) {
        const char *at;

        snprintf(name, sizeof name, "file=%s;", damaged[i]);
        at = strstr(b.bad, name);
        if (!at || strstr(at + 1, name))
            fail_msg("'%s' has %s %s", b.bad, at ? "twice" : "not", name);
    }
    for (size_t i = 0; i < b.count; i++)
        if (!strcmp(b.points[i].key, "data_bad"))
            counted = b.points[i].value;
    assert_true(counted == 4);
    close_book(&b);
    for (int i = 0; i < 12; i++) { /* more than ten, and of no rank more than ten */
        snprintf(name, sizeof name, "p/val/bird/more%d.png", i);
        put(name, "no picture", 10);
    }
    clear();
    others = PD_ERR_CORRUPT;
    assert_int_equal(run_ranks(2, PICTURES_OF("2"), &b, NULL, &out, &why), PD_ERR_CORRUPT);
    others = PD_OK;
    assert_non_null(strstr(why.text, "cannot be decoded"));
    close_book(&b);
}

/* A run of PICTURES that is stopped; one that goes on over changed files. */
static void stop_pictures(struct book *b)
{
    struct train_outcome out;
    struct pd_why why = {""};

    put_pictures("bird", 8);
    put_pictures("cat", 8);
    b->stop_after_calls = 6;
    b->how = TRAIN_STOP_CHECKPOINT;
    if (run(PICTURES, b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.result, TRAIN_STOPPED);
    close_book(b);
}

static void move(const char *from, const char *to)
{
    char a[128], b[128];

    snprintf(a, sizeof a, "%s/%s", folder, from);
    snprintf(b, sizeof b, "%s/%s", folder, to);
    assert_int_equal(rename(a, b), 0);
}

static void test_other_names_of_classes_are_refused(void **state)
{
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why = {""};

    (void)state;
    stop_pictures(&b);
    move("p/train/bird", "p/train/zebra"); /* class 0 becomes class 1 */
    move("p/val/bird", "p/val/zebra");
    assert_int_equal(run(PICTURES, &b, NULL, 1, &out, &why), PD_ERR_CONFLICT);
    assert_non_null(strstr(why.text, "class 0 is 'cat', but 'bird' in the checkpoint"));
    close_book(&b);
}

static int count_of(const char *text, const char *word)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        n++;
    return n;
}

static void test_changed_data_are_reported_and_the_run_goes_on(void **state)
{
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why = {""};

    (void)state;
    for (int changed = 0; changed < 2; changed++) {
        clear();
        stop_pictures(&b);
        if (changed)
            move("p/train/cat/1.png", "p/train/cat/9.png");
        if (run(PICTURES, &b, NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_non_null(strstr(b.events, "resume;"));
        assert_int_equal(count_of(b.events, "data_changed;"), changed);
        close_book(&b);
    }
}

static const char words_job[] =
    "{\"model\":{\"preset\":\"gpt_micro\",\"width\":16,\"depth\":1,\"heads\":2,\"context\":8},"
    "\"data\":{\"dataset\":\"ptb\",\"path\":\"box/"
    "ptb\",\"tokenizer\":\"words\"},\"diagnostics\":{\"every\":0},"
    "\"resources\":{\"device\":\"cpu\",\"threads\":1},"
    "\"train\":{\"steps\":30,\"batch\":4,\"eval_every\":10,\"optimizer\":{\"lr\":0.01}}}";

static void put_words(const char *more)
{
    char text[8192] = "";

    for (int i = 0; i < 60; i++)
        strcat(text, " one two three four five \n");
    strcat(text, more);
    put("ptb/ptb.train.txt", text, strlen(text));
    put("ptb/ptb.valid.txt", text, strlen(text));
}

static void test_words_stop_bit_identically_and_travel_with_the_checkpoint(void **state)
{
    struct data_st *st = NULL;
    const struct data_st_tensor *t;
    struct data_tokenizer *tokenizer = NULL;
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why;

    (void)state;
    put_words("");
    stops_and_goes_on(words_job, 15);
    assert_int_equal(run(words_job, &b, NULL, 1, &out, &why), PD_OK);
    assert_int_equal(data_st_open(out.latest_path, &st, &why), PD_OK);
    t = data_st_find(st, DATA_TOKENIZER_TENSOR);
    assert_non_null(t);
    assert_int_equal(data_tokenizer_load(t->data, t->bytes, &tokenizer, &why), PD_OK);
    assert_int_equal(data_tokenizer_kind(tokenizer), DATA_TOKENIZER_WORDS);
    assert_int_equal(data_tokenizer_vocab(tokenizer), 7);
    data_tokenizer_free(tokenizer);
    data_st_free(st);
    close_book(&b);
    /* other words, and as many: the checkpoint belongs to another trajectory */
    b = (struct book){0};
    put("ptb/ptb.train.txt", "", 0);
    put_words("");
    {
        char text[8192] = "";

        for (int i = 0; i < 60; i++)
            strcat(text, " eno two three four five \n");
        put("ptb/ptb.train.txt", text, strlen(text));
    }
    assert_int_equal(run(words_job, &b, NULL, 1, &out, &why), PD_ERR_CONFLICT);
    assert_non_null(strstr(why.text, "tokenizer"));
    close_book(&b);
}

static void test_checkpoint_of_other_data_is_refused(void **state)
{
    static const char job[] =
        "{\"model\":{\"arch\":\"gpt\",\"width\":8,\"depth\":1,\"heads\":1,\"context\":6},\"data\":{"
        "\"dataset\":\"text\","
        "\"path\":\"box/same.txt\"},\"resources\":{\"device\":\"cpu\"},\"train\":{\"steps\":3,\"batch\":2,"
        "\"optimizer\":{\"lr\":0.01},\"checkpoint_every\":{\"steps\":1}}}";
    struct train_outcome out;
    struct book b = {0};
    struct pd_why why;
    char text[600];

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 7);
    put("same.txt", text, 400);
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_OK);
    close_book(&b);
    b = (struct book){0};
    put("same.txt", text, 600); /* more of it under the same name */
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_ERR_CONFLICT);
    assert_non_null(strstr(why.text, "another configuration or data set"));
    close_book(&b);
}

static void test_missing_files_are_named(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(words_job, &b, NULL, 1, &out, &why), PD_ERR_NOT_FOUND);
    assert_non_null(strstr(why.text, "ptb"));
    close_book(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cropped_images_learn_and_stop_bit_identically, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_pictures_are_reported_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_pictures_of_every_rank_are_reported, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_names_of_classes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changed_data_are_reported_and_the_run_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_words_stop_bit_identically_and_travel_with_the_checkpoint, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_checkpoint_of_other_data_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_files_are_named, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
