/* Folders of text files, a document each; and texts that are cut by another set's tokenizer and only scored. */
#include "tests/data/box.h"

#include "daemon/worker/data/tokens.h"

static struct data_options options(enum data_tokenizer_kind tokenizer, const char *path)
{
    return (struct data_options){.dataset = DATA_SET_DOCUMENTS,
                                 .path = path,
                                 .roots = &box_root,
                                 .root_count = 1,
                                 .context = 1,
                                 .tokenizer = tokenizer,
                                 .tokenizer_path = "box/bpe",
                                 .rule = DATA_SPLIT_STANDARD,
                                 .cache_dir = cache_folder};
}

/* Every byte is a token; `end`: 256 ends a document. */
static void put_bpe(bool end)
{
    struct pd_buf b;
    int next = 256;

    pd_buf_init(&b, 0);
    pd_buf_str(&b, "{");
    for (int i = 0; i < 256; i++) {
        bool plain = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;

        pd_buf_printf(&b, "%s\"\\u%04x\":%d", i ? "," : "", plain ? i : next, i);
        next += !plain;
    }
    pd_buf_str(&b, end ? ",\"<|endoftext|>\":256}" : "}");
    put("bpe/vocab.json", b.data, b.len, false);
    put("bpe/merges.txt", "#version: 0.2\n", 14, false);
    pd_buf_done(&b);
}

static int32_t id_at(const struct data_ids_view *v, int64_t i)
{
    return v->width == 1   ? ((const uint8_t *)v->ids)[i]
           : v->width == 2 ? ((const uint16_t *)v->ids)[i]
                           : ((const int32_t *)v->ids)[i];
}

/* The tokens of a part: '|' stands for the end of a document. */
static void want_part(const struct data_set *set, enum data_split part, const char *want)
{
    const struct data_ids_view *v = &set->part[part];
    char got[200] = "";

    assert_true(v->count < (int64_t)sizeof got);
    for (int64_t i = 0; i < v->count; i++)
        got[i] = id_at(v, i) == 256 ? '|' : (char)id_at(v, i);
    assert_string_equal(got, want);
}

static void test_documents_come_in_the_order_of_their_paths(void **state)
{
    struct data_set *set = NULL;
    struct data_options o = options(DATA_TOKENIZER_GPT2_BPE, "box/web"), bytes = o;
    struct data_warning w[DATA_WARNINGS_MAX];

    (void)state;
    put_bpe(true);
    put("web/b.txt", "two", 3, false);
    put("web/a/z.txt.gz", "one", 3, true);
    put("web/a.txt", "nil", 3, false); /* '.' comes before '/' */
    put("web/c/d/e.txt", "<|endoftext|>", 13, false);
    put("web/notes.html", "not read", 8, false);
    put("web/.hidden.txt", "not read", 8, false);
    o.amount[DATA_VAL] = 16;
    for (int cached = 0; cached < 2; cached++) {
        want_open(&o, &set);
        want_part(set, DATA_TRAIN, "nil|one|");
        want_part(set, DATA_VAL, "two|<|endoftext|>|"); /* what a text says is no token of its own */
        assert_int_equal(set->work.cache_hits, cached ? 2 : 0);
        assert_int_equal(data_warnings(set, w), 1);
        assert_string_equal(w[0].kind, "unread_files");
        assert_non_null(strstr(w[0].text, "1 files are not read"));
        assert_non_null(strstr(w[0].text, "notes.html"));
        set = data_free(set);
    }
    bytes.tokenizer = DATA_TOKENIZER_BYTES;
    bytes.amount[DATA_VAL] = 14;
    want_open(&bytes, &set);
    want_part(set, DATA_TRAIN, "nil\none\ntwo\n");
    want_part(set, DATA_VAL, "<|endoftext|>\n");
    data_free(set);
}

/* Other ends are other tokens, though the text is the same. */
static void test_documents_of_one_text_are_cached_apart(void **state)
{
    struct data_set *set = NULL;
    struct data_options o = options(DATA_TOKENIZER_GPT2_BPE, "box/web");

    (void)state;
    put_bpe(true);
    put("web/train/1.txt", "ab", 2, false);
    put("web/train/2.txt", "cd", 2, false);
    put("web/val/1.txt", "efg", 3, false);
    want_open(&o, &set);
    want_part(set, DATA_TRAIN, "ab|cd|");
    data_free(set);
    put("web/train/1.txt", "abc", 3, false);
    put("web/train/2.txt", "d", 1, false);
    set = NULL;
    want_open(&o, &set);
    want_part(set, DATA_TRAIN, "abc|d|");
    data_free(set);
}

static void test_documents_have_the_parts_that_their_folders_name(void **state)
{
    static const char *const names[] = {"validation", "valid", "val"};

    (void)state;
    for (int i = 2; i >= 0; i--) { /* each before the last wins over those after it */
        struct data_set *set = NULL;
        struct data_options o = options(DATA_TOKENIZER_BYTES, "box/books");
        char name[64], text[8];

        put("books/train/1.txt", "train", 5, false);
        put("books/test/1.txt", "test", 4, false);
        put("books/stray.txt", "not read", 8, false);
        snprintf(name, sizeof name, "books/%s/1.txt", names[i]);
        snprintf(text, sizeof text, "val %d", i);
        put(name, text, strlen(text), false);
        snprintf(text, sizeof text, "val %d\n", i);
        want_open(&o, &set);
        want_part(set, DATA_TRAIN, "train\n");
        want_part(set, DATA_VAL, text);
        want_part(set, DATA_TEST, "test\n");
        set = data_free(set);
        o.rule = DATA_SPLIT_GIVEN;
        want_open(&o, &set);
        assert_int_equal(data_info(set)->count[DATA_TEST], 0);
        set = data_free(set);
        o.scored = DATA_SCORED_TEST;
        want_open(&o, &set);
        want_part(set, DATA_VAL, "test\n");
        data_free(set);
    }
}

/* Of a folder of its own a part takes whole documents too. */
static void test_documents_of_a_shortened_part_are_whole(void **state)
{
    struct data_set *set = NULL;
    struct data_options o = options(DATA_TOKENIZER_BYTES, "box/books");

    (void)state;
    put("books/train/1.txt", "train", 5, false);
    put("books/val/1.txt", "one", 3, false);
    put("books/val/2.txt", "two", 3, false);
    put("books/test/1.txt", "first", 5, false);
    put("books/test/2.txt", "second", 6, false);
    o.amount[DATA_VAL] = 6;
    o.amount[DATA_TEST] = 12;
    want_open(&o, &set);
    want_part(set, DATA_TRAIN, "train\n");
    want_part(set, DATA_VAL, "one\n");
    want_part(set, DATA_TEST, "first\n");
    set = data_free(set);
    o.amount[DATA_VAL] = 8;
    o.amount[DATA_TEST] = 13;
    want_open(&o, &set);
    want_part(set, DATA_VAL, "one\ntwo\n");
    want_part(set, DATA_TEST, "first\nsecond\n");
    data_free(set);
}

static void test_documents_sizes_are_those_of_a_dry_run(void **state)
{
    (void)state;
    put_bpe(true);
    put("web/a.txt.gz", "some words\nand more", 19, true);
    put("web/b.txt", "others", 6, false);
    put("web/c.txt", "few", 3, false);
    for (int kind = 0; kind < 4; kind++) {
        struct data_options o = options((enum data_tokenizer_kind)kind, "box/web");
        struct data_set *set = NULL, *headers = NULL;
        struct pd_why why;

        o.amount[DATA_VAL] = 0.3;
        want_open(&o, &set);
        assert_int_equal(data_open(&o, true, &headers, &why), PD_OK);
        for (int part = 0; part < 2; part++)
            assert_int_equal(data_info(headers)->tokens[part], data_info(set)->tokens[part]);
        data_free(set);
        data_free(headers);
    }
}

static void test_documents_that_cannot_be_read_are_named(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_GPT2_BPE, "box/web");
    char path[200];

    (void)state;
    put_bpe(true);
    put("web/one.html", "x", 1, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/web' has no text: no file name ends in .txt or .txt.gz");
    put("web/valid/1.txt", "some text", 9, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/web' has no folder 'train'");
    put("web/train/1.html", "x", 1, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/web/train' has no text");
    put("web/train/bad.txt.gz", "\x1f\x8b\x08 this is no gzip", 19, false);
    want_refused(&o, PD_ERR_CORRUPT, "'train/bad.txt.gz' cannot be decompressed");
    put("web/train/bad.txt.gz", "some text", 9, false); /* the name alone does not say how it is packed */
    snprintf(path, sizeof path, "%s/web/train/out.txt", folder);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    want_refused(&o, PD_ERR_DENIED, "'train/out.txt' leads outside");
    assert_int_equal(unlink(path), 0);
    put("web/train/1/2/3/4/5/6/7/8/9/deep.txt", "x", 1, false);
    want_refused(&o, PD_ERR_LIMIT, "nested more than 8 folders deep");
    o = options(DATA_TOKENIZER_GPT2_BPE, "box/plain");
    put("plain/1.txt", "some text", 9, false);
    put("plain/2.txt", "some text", 9, false);
    put_bpe(false);
    want_refused(&o, PD_ERR_INVALID, "#/data/tokenizer_path: the vocabulary lacks <|endoftext|>");
}

/* ---- sets that are only scored ---- */

static void test_scored_sets_are_cut_by_the_tokenizer_that_is_lent(void **state)
{
    struct data_set *own = NULL, *set = NULL;
    struct data_options o = options(DATA_TOKENIZER_WORDS, "box/t.txt");

    (void)state;
    o.dataset = DATA_SET_TEXT;
    put("t.txt", "a b a\nc a b\nb a\nc c\n", 20, false);
    o.amount[DATA_VAL] = 8;
    put("other.txt", "b z a\n", 6, false);
    put("parts/test.txt", "c a\n", 4, false);
    want_open(&o, &own);
    o.tokens = data_info(own)->tokenizer;
    o.path = "box/other.txt";
    want_open(&o, &set);
    assert_ptr_equal(data_info(set)->tokenizer, o.tokens);
    assert_int_equal(set->part[DATA_VAL].count, 4); /* all of it: b, <unk>, a and the end of the line */
    assert_int_equal(id_at(&set->part[DATA_VAL], 1), o.tokens->unknown);
    assert_int_equal(id_at(&set->part[DATA_VAL], 3), o.tokens->end);
    assert_int_equal(data_info(set)->count[DATA_TRAIN], 0);
    assert_int_equal(data_info(set)->count[DATA_TEST], 0);
    set = data_free(set);
    o.dataset = DATA_SET_TEXTS; /* its test part alone: nothing else is wanted */
    o.path = "box/parts";
    want_open(&o, &set);
    assert_int_equal(set->part[DATA_VAL].count, 3);
    set = data_free(set);
    o.path = "box/bpe";
    put_bpe(true);
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/bpe' has no test.txt, ptb.test.txt or wiki.test.tokens");
    o.dataset = DATA_SET_TEXT_GEN;
    o.path = NULL;
    o.amount[DATA_TRAIN] = 2000;
    want_open(&o, &set);
    assert_int_equal(data_info(set)->count[DATA_TRAIN], 0);
    assert_true(data_info(set)->count[DATA_VAL] > 10000);
    data_free(set);
    data_free(own); /* the tokenizer is still its own */
}

static void test_scored_documents_are_those_of_the_test_part(void **state)
{
    struct data_set *own = NULL, *set = NULL;
    struct data_options o = options(DATA_TOKENIZER_GPT2_BPE, "box/books");

    (void)state;
    put_bpe(true);
    put("books/train/1.txt", "train", 5, false);
    put("books/valid/1.txt", "valid", 5, false);
    want_open(&o, &own);
    o.tokens = data_info(own)->tokenizer;
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/books' has no folder 'test'");
    put("books/test/1.txt", "test", 4, false);
    want_open(&o, &set);
    want_part(set, DATA_VAL, "test|");
    set = data_free(set);
    put("web/1.txt", "one", 3, false);
    put("web/2.txt", "two", 3, false);
    o.path = "box/web";
    want_open(&o, &set);
    want_part(set, DATA_VAL, "one|two|");
    data_free(set);
    data_free(own);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_documents_come_in_the_order_of_their_paths),
        T(test_documents_of_one_text_are_cached_apart),
        T(test_documents_have_the_parts_that_their_folders_name),
        T(test_documents_of_a_shortened_part_are_whole),
        T(test_documents_sizes_are_those_of_a_dry_run),
        T(test_documents_that_cannot_be_read_are_named),
        T(test_scored_sets_are_cut_by_the_tokenizer_that_is_lent),
        T(test_scored_documents_are_those_of_the_test_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
