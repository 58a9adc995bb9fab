/* Tokenizers: published counts and ids, round trips of any bytes, what is refused. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/data/tokens.h"
#include "kernels/base/file.h"

/* Six bytes, three merges: "low", "er", "lower" is two tokens. */
static const char vocab[] =
    "{\"l\":0,\"o\":1,\"w\":2,\"e\":3,\"r\":4,\"\\u0120\":5,\"lo\":6,\"low\":7,\"er\":8,"
    "\"<|endoftext|>\":9,\"!\":10,\"\\u00e9\":11}";
static const char merges[] = "#version: 0.2\nl o\nlo w\ne r\n";

static struct data_tokenizer *toy(void)
{
    struct data_tokenizer *t = NULL;
    struct pd_why why = {""};

    if (data_tokenizer_bpe_new(vocab, strlen(vocab), merges, strlen(merges), &t, &why) != PD_OK)
        fail_msg("%s", why.text);
    return t;
}

static void want_ids(const struct data_tokenizer *t, const char *text, bool special, const int32_t *want,
                     size_t count)
{
    struct data_ids ids = {0};
    struct pd_why why = {""};

    if (data_tokenizer_encode(t, text, strlen(text), special, &ids, &why) != PD_OK)
        fail_msg("%s: %s", text, why.text);
    assert_int_equal(ids.count, count);
    if (count)
        assert_memory_equal(ids.items, want, count * sizeof *want);
    free(ids.items);
}
#define IDS(t, text, special, ...)                                                                           \
    do {                                                                                                     \
        const int32_t list_[] = {__VA_ARGS__};                                                               \
        want_ids(t, text, special, list_, sizeof list_ / sizeof *list_);                                     \
    } while (0)

/* The tokens' bytes, joined, are the text. */
static void want_round(const struct data_tokenizer *t, const void *text, size_t len)
{
    struct data_ids ids = {0};
    struct pd_buf back;
    struct pd_why why = {""};

    pd_buf_init(&back, 0);
    if (data_tokenizer_encode(t, text, len, false, &ids, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (size_t i = 0; i < ids.count; i++) {
        size_t n = 0;
        const char *bytes = data_tokenizer_token(t, ids.items[i], &n);

        assert_non_null(bytes);
        pd_buf_append(&back, bytes, n);
    }
    assert_int_equal(back.len, len);
    if (len)
        assert_memory_equal(back.data, text, len);
    pd_buf_done(&back);
    free(ids.items);
}

static void test_bytes_are_their_own_ids(void **state)
{
    struct data_tokenizer *t = NULL;
    uint8_t all[256];
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    assert_int_equal(data_tokenizer_bytes_new(&t, &why), PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 256);
    assert_int_equal(data_tokenizer_end(t), -1);
    assert_int_equal(data_tokenizer_start(t), '\n');
    IDS(t, "Az", true, 'A', 'z');
    want_round(t, all, sizeof all);
    data_tokenizer_free(t);
}

static void test_chars_in_code_point_order(void **state)
{
    struct data_tokenizer *t = NULL;
    struct pd_why why;
    struct data_ids ids = {0};
    size_t n = 0;

    (void)state;
    assert_int_equal(data_tokenizer_chars_new("b\xc3\xa9"
                                              "a\xe2\x82\xac"
                                              "a\xff",
                                              9, &t, &why),
                     PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 5); /* a b e-acute euro and the stray byte */
    IDS(t, "ab\xc3\xa9\xe2\x82\xac", false, 0, 1, 2, 3);
    assert_memory_equal(data_tokenizer_token(t, 3, &n), "\xe2\x82\xac", 3);
    assert_int_equal(n, 3);
    assert_int_equal(data_tokenizer_encode(t, "z", 1, false, &ids, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "'z'"));
    assert_null(data_tokenizer_token(t, 5, &n));
    assert_null(data_tokenizer_token(t, -1, &n));
    free(ids.items);
    data_tokenizer_free(t);
    assert_int_equal(data_tokenizer_chars_new("", 0, &t, &why), PD_ERR_INVALID);
}

static void test_words_by_frequency_with_line_ends(void **state)
{
    struct data_tokenizer *t = NULL;
    struct pd_why why;
    size_t n = 0;

    (void)state;
    assert_int_equal(data_tokenizer_words_new(" the cat the dog \n the end \n", 28, 0, &t, &why), PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 6); /* the <eos> cat dog end <unk> */
    assert_int_equal(data_tokenizer_end(t), 1);
    IDS(t, " the cat \n", false, 0, 3, 1); /* <unk> and cat tie: bytes decide */
    IDS(t, "bird", false, 2);
    assert_memory_equal(data_tokenizer_token(t, 0, &n), "the ", 4);
    assert_memory_equal(data_tokenizer_token(t, 1, &n), "\n", 1);
    data_tokenizer_free(t);
    assert_int_equal(data_tokenizer_words_new("a a a b b c", 11, 3, &t, &why), PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 3);
    IDS(t, "a b c", false, 0, 2, 2); /* the line's end and the unknown word always have a place */
    data_tokenizer_free(t);
    assert_int_equal(data_tokenizer_words_new("a", 1, 1, &t, &why), PD_ERR_INVALID);
}

static void test_pairs_merge_by_rank_and_specials_stand_apart(void **state)
{
    struct data_tokenizer *t = toy();
    struct data_ids ids = {0};
    struct pd_why why;
    char many[4000];

    (void)state;
    assert_int_equal(data_tokenizer_end(t), 9);
    assert_int_equal(data_tokenizer_start(t), 9);
    assert_int_equal(data_tokenizer_token_max(t), 13);
    IDS(t, "lower", false, 7, 8);
    IDS(t, " lower", false, 5, 7, 8);
    IDS(t, "low!er", false, 7, 10, 8);
    IDS(t, "olo", false, 1, 6);
    IDS(t, "low<|endoftext|>er", true, 7, 9, 8);
    assert_int_equal(data_tokenizer_encode(t, "low<|endoftext|>", 16, false, &ids, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "0x3c")); /* '<' as ordinary text has no token in this toy */
    ids.count = 0;
    assert_int_equal(data_tokenizer_encode(t, "\xe9", 1, false, &ids, &why),
                     PD_OK); /* a byte that is no UTF-8 */
    assert_int_equal(ids.items[0], 11);
    /* long pieces go another way to the same end */
    for (int i = 0; i < 4000; i++)
        many[i] = "lower"[i % 5];
    ids.count = 0;
    assert_int_equal(data_tokenizer_encode(t, many, 4000, false, &ids, &why), PD_OK);
    assert_int_equal(ids.count, 1600);
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.items[i], i % 2 ? 8 : 7);
    free(ids.items);
    data_tokenizer_free(t);
}

static void test_broken_vocabularies_are_refused(void **state)
{
    static const struct {
        const char *vocab, *merges, *says;
    } cases[] = {
        {"[1]", "", "not a JSON object"},
        {"{\"a\":0", "", "not a JSON object"},
        {"{}", "", "0 tokens"},
        {"{\"a\":1}", "", "must have the ids 0 to 0"},
        {"{\"a\":0,\"b\":0}", "", "each once"},
        {"{\"a\":0,\"a\":1}", "", "not a JSON object"},
        {"{\"a\":\"0\"}", "", "must have the ids 0 to 0"},
        {"{\"a\":0,\"b\":1}", "#version: 0.2\na\n", "line 2"},
        {"{\"a\":0,\"b\":1}", "a b c\n", "line 1"},
        {"{\"a\":0,\"b\":1}", "a b\n", "not in the vocabulary"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "a b\na b\n", "has the same result as an earlier merge"},
        {"{\"a\":0,\"b\":1,\"ab\":2,\"abb\":3}", "ab b\na b\n",
         "neither a byte nor the result of an earlier merge"},
    };
    struct data_tokenizer *t = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pd_why why = {""};
        enum pd_err err = data_tokenizer_bpe_new(cases[i].vocab, strlen(cases[i].vocab), cases[i].merges,
                                                 strlen(cases[i].merges), &t, &why);

        if (err != PD_ERR_CORRUPT || !strstr(why.text, cases[i].says))
            fail_msg("case %zu: %s (%s)", i, pd_err_name(err), why.text);
    }
}

static void test_saved_tokenizers_come_back_and_damage_is_found(void **state)
{
    struct data_tokenizer *made[4] = {NULL, NULL, NULL, toy()}, *t = NULL;
    static const char text[] = "low er lower\nlow ";
    struct pd_why why;

    (void)state;
    assert_int_equal(data_tokenizer_bytes_new(&made[0], &why), PD_OK);
    assert_int_equal(data_tokenizer_chars_new(text, strlen(text), &made[1], &why), PD_OK);
    assert_int_equal(data_tokenizer_words_new(text, strlen(text), 0, &made[2], &why), PD_OK);
    for (int k = 0; k < 4; k++) {
        struct data_ids a = {0}, b = {0};
        struct pd_buf saved;

        pd_buf_init(&saved, 0);
        assert_int_equal(data_tokenizer_save(made[k], &saved, &why), PD_OK);
        assert_int_equal(data_tokenizer_load(saved.data, saved.len, &t, &why), PD_OK);
        assert_int_equal(data_tokenizer_kind(t), k);
        if (k < 3) {
            assert_int_equal(data_tokenizer_encode(made[k], text, strlen(text), true, &a, &why), PD_OK);
            assert_int_equal(data_tokenizer_encode(t, text, strlen(text), true, &b, &why), PD_OK);
            assert_int_equal(a.count, b.count);
            assert_memory_equal(a.items, b.items, a.count * sizeof *a.items);
        } else {
            IDS(t, "lower", false, 7, 8);
        }
        free(a.items);
        free(b.items);
        a = (struct data_ids){0};
        data_tokenizer_free(t);
        for (size_t len = 0; len < saved.len; len++)
            assert_int_equal(data_tokenizer_load(saved.data, len, &t, &why), PD_ERR_CORRUPT);
        for (size_t at = 0; at < saved.len; at++) { /* refused, or a tokenizer that holds its promises */
            saved.data[at] ^= 0x41;
            if (data_tokenizer_load(saved.data, saved.len, &t, &why) == PD_OK) {
                size_t n;

                for (int32_t id = 0; id < data_tokenizer_vocab(t); id++)
                    assert_non_null(data_tokenizer_token(t, id, &n));
                if (data_tokenizer_encode(t, text, strlen(text), true, &a, &why) == PD_OK)
                    assert_true(a.count <= strlen(text));
                free(a.items);
                a = (struct data_ids){0};
                t = data_tokenizer_free(t);
            }
            saved.data[at] ^= 0x41;
        }
        pd_buf_done(&saved);
        data_tokenizer_free(made[k]);
    }
}

static void test_unfinished_utf8_is_held_back(void **state)
{
    static const struct {
        const char *bytes;
        size_t want;
    } cases[] = {{"", 0},
                 {"a", 0},
                 {"\xc3", 1},
                 {"a\xe2\x82", 2},
                 {"\xe2\x82\xac", 0},
                 {"\xf0\x9f\x98", 3},
                 {"\xf0\x9f\x98\x80", 0},
                 {"\xf0", 1},
                 {"\xe0", 1},
                 {"\xed", 1},
                 {"\xed\xa0", 0}, /* a surrogate: can never be whole */
                 {"\xe0\x80", 0}, /* overlong */
                 {"\xf4\x90", 0}, /* beyond the last code point */
                 {"\xff", 0},
                 {"\x80", 0},
                 {"\xc3\xa9\x80", 0},
                 {"x\xf4\x8f\xbf", 3}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (data_utf8_unfinished(cases[i].bytes, strlen(cases[i].bytes)) != cases[i].want)
            fail_msg("case %zu: %zu", i, data_utf8_unfinished(cases[i].bytes, strlen(cases[i].bytes)));
}

/* ---- GPT-2's own files ---- */

static const char *shared(const char *name, char out[4096])
{
    const char *root = getenv("POLYD_SHARED");

    if (!root || !*root)
        skip();
    snprintf(out, 4096, "%s/data/%s", root, name);
    return out;
}

static struct data_tokenizer *gpt2(void)
{
    struct data_tokenizer *t = NULL;
    struct pd_why why = {""};
    char path[4096];
    const struct data_root root = {"bpe", shared("gpt2-bpe", path)};

    if (data_tokenizer_bpe_open(&root, 1, "bpe", &t, &why) != PD_OK)
        fail_msg("%s", why.text);
    return t;
}

static size_t count_of(const struct data_tokenizer *t, const char *name, size_t from, size_t most,
                       int32_t first[8])
{
    struct data_ids ids = {0};
    struct pd_buf text;
    struct pd_why why = {""};
    struct timespec a, b;
    char path[4096];
    size_t n;

    pd_buf_init(&text, 0);
    assert_int_equal(pd_file_read(shared(name, path), 64u << 20, &text, &why), PD_OK);
    n = text.len - from < most ? text.len - from : most;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_int_equal(data_tokenizer_encode(t, text.data + from, n, false, &ids, &why), PD_OK);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    if (getenv("TOKENIZER_VERBOSE"))
        printf("%s: %zu bytes, %zu tokens, %.1f MB/s\n", name, n, ids.count,
               (double)n / 1e6 / ((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9));
    if (first)
        memcpy(first, ids.items, 8 * sizeof *first);
    want_round(t, text.data + from, n < 200000 ? n : 200000);
    n = ids.count;
    free(ids.items);
    pd_buf_done(&text);
    return n;
}

static void test_gpt2_counts_as_published(void **state)
{
    static const int32_t wiki[8] = {220, 198, 796, 8074, 20272, 9106, 3876, 385};
    struct data_tokenizer *t = gpt2();
    const size_t all = (size_t)1 << 30;
    int32_t first[8];

    (void)state;
    assert_int_equal(data_tokenizer_vocab(t), 50257);
    assert_int_equal(data_tokenizer_end(t), 50256);
    IDS(t, "Hello world", false, 15496, 995);
    IDS(t, "Hello, I'm a language model,", false, 15496, 11, 314, 1101, 257, 3303, 2746, 11);
    IDS(t, "<|endoftext|>", true, 50256);
    IDS(t, "<|endoftext|>", false, 27, 91, 437, 1659, 5239, 91, 29);
    assert_int_equal(count_of(t, "tinyshakespeare/input.txt", 0, 1003854, NULL), 301966);
    assert_int_equal(count_of(t, "tinyshakespeare/input.txt", 1003854, all, NULL), 36059);
    assert_int_equal(count_of(t, "wikitext-2/valid.txt", 0, all, first), 258659);
    assert_memory_equal(first, wiki, sizeof wiki);
    assert_int_equal(count_of(t, "ptb/ptb.train.txt", 0, all, NULL), 1174722);
    assert_int_equal(count_of(t, "ptb/ptb.valid.txt", 0, all, NULL), 92830);
    assert_int_equal(count_of(t, "books/war-and-peace-pg2600.txt", 0, all, NULL), 921558);
    assert_int_equal(count_of(t, "books/moby-dick-pg2701.txt", 0, all, NULL), 354289);
    data_tokenizer_free(t);
}

static void test_gpt2_takes_any_bytes(void **state)
{
    static const char mixed[] =
        "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x81 1\xc2\xbd \xf0\x9f\x98\x80\xff\xfe x\xc3  \n\t y"
        "'s 't\xe2\x80\x89z \xc2\x85 \xe1\xa0\x8e end   ";
    struct data_tokenizer *t = gpt2();
    uint32_t seed = 7;
    uint8_t noise[5000];

    (void)state;
    want_round(t, mixed, sizeof mixed - 1);
    for (size_t i = 0; i < sizeof noise; i++) {
        seed = seed * 1664525 + 1013904223;
        noise[i] = (uint8_t)(seed >> 24);
    }
    want_round(t, noise, sizeof noise);
    memset(noise, 'a', sizeof noise); /* one long piece */
    want_round(t, noise, sizeof noise);
    memset(noise, ' ', sizeof noise);
    want_round(t, noise, sizeof noise);
    data_tokenizer_free(t);
}

static void test_ptb_words_as_published(void **state)
{
    struct data_tokenizer *t = NULL;
    struct pd_buf text;
    struct pd_why why;
    char path[4096];

    (void)state;
    pd_buf_init(&text, 0);
    assert_int_equal(pd_file_read(shared("ptb/ptb.train.txt", path), 64u << 20, &text, &why), PD_OK);
    assert_int_equal(data_tokenizer_words_new(text.data, text.len, 0, &t, &why), PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 10000);
    {
        struct data_ids ids = {0};

        assert_int_equal(data_tokenizer_encode(t, text.data, text.len, false, &ids, &why), PD_OK);
        assert_int_equal(ids.count, 929589);
        ids.count = 0;
        pd_buf_done(&text);
        assert_int_equal(pd_file_read(shared("ptb/ptb.valid.txt", path), 64u << 20, &text, &why), PD_OK);
        assert_int_equal(data_tokenizer_encode(t, text.data, text.len, false, &ids, &why), PD_OK);
        assert_int_equal(ids.count, 73760);
        free(ids.items);
    }
    pd_buf_done(&text);
    data_tokenizer_free(t);
}

static void test_ids_are_text_of_numbers_and_survive_saving(void **state)
{
    struct data_tokenizer *t = NULL, *back = NULL;
    struct data_ids ids = {0};
    struct pd_why why;
    struct pd_buf saved;
    size_t len;

    (void)state;
    pd_buf_init(&saved, 0);
    assert_int_equal(data_tokenizer_ids_new(120, &t, &why), PD_OK);
    assert_int_equal(data_tokenizer_vocab(t), 120);
    assert_string_equal(data_tokenizer_kind_name(data_tokenizer_kind(t)), "ids");
    IDS(t, "3 17\n119 ", true, 3, 17, 119);
    IDS(t, "007", true, 7);
    assert_memory_equal(data_tokenizer_token(t, 17, &len), "17 ", 3);
    assert_int_equal(len, 3);
    static const char *const bad[] = {"120", "-1", "1,2", "two", "3x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(data_tokenizer_encode(t, bad[i], strlen(bad[i]), true, &ids, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "is not in the vocabulary, whose ids are 0 to 119"));
    assert_int_equal(data_tokenizer_save(t, &saved, &why), PD_OK);
    assert_int_equal(data_tokenizer_load(saved.data, saved.len, &back, &why), PD_OK);
    IDS(back, "3 17", true, 3, 17);
    data_tokenizer_free(back);
    saved.data[20 + 4 * 120 + 1] = '7'; /* "0 " becomes "07" */
    assert_int_equal(data_tokenizer_load(saved.data, saved.len, &back, &why), PD_ERR_CORRUPT);
    assert_int_equal(data_tokenizer_ids_new(0, &back, &why), PD_ERR_NOMEM);
    free(ids.items);
    pd_buf_done(&saved);
    data_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_their_own_ids),
        cmocka_unit_test(test_chars_in_code_point_order),
        cmocka_unit_test(test_words_by_frequency_with_line_ends),
        cmocka_unit_test(test_pairs_merge_by_rank_and_specials_stand_apart),
        cmocka_unit_test(test_broken_vocabularies_are_refused),
        cmocka_unit_test(test_saved_tokenizers_come_back_and_damage_is_found),
        cmocka_unit_test(test_unfinished_utf8_is_held_back),
        cmocka_unit_test(test_gpt2_counts_as_published),
        cmocka_unit_test(test_gpt2_takes_any_bytes),
        cmocka_unit_test(test_ptb_words_as_published),
        cmocka_unit_test(test_ids_are_text_of_numbers_and_survive_saving),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
