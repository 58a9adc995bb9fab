/* Texts with classes: what is read of each form of file, which texts and classes a part has, what a batch
 * holds, and what is said of a file that is wrong. */
#include "tests/data/box.h"

#define CONTEXT 6

static struct data_options options(const char *path)
{
    return (struct data_options){.dataset = DATA_SET_LABELLED,
                                 .path = path,
                                 .roots = &box_root,
                                 .root_count = 1,
                                 .rule = DATA_SPLIT_FRACTION,
                                 .train_share = 0.5,
                                 .val_share = 0.5,
                                 .context = CONTEXT};
}

static struct data_options folder_options(const char *path)
{
    struct data_options o = options(path);

    o.rule = DATA_SPLIT_GIVEN;
    return o;
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text), false);
}

/* A part as one line: each text and its class's name, in the order of the part: "ab=x cd=y". Of training,
 * which the loader shuffles, one batch sorted by text. */
struct listed {
    char item[64][32];
    int count;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static const char *list(const struct data_set *set, enum data_split split)
{
    static char line[2048];
    const struct data_info *info = data_info(set);
    const int32_t count = (int32_t)info->count[split];
    struct listed all = {.count = 0};
    const struct data_batch *b;
    struct data_loader *l = NULL;
    struct pd_why why = {""};
    size_t len = 0;

    assert_in_range(count, 1, 64);
    assert_int_equal(data_loader_start(set, split, count, 1, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->used, count);
    for (int32_t i = 0; i < count; i++) {
        const int32_t *ids = tokens_of(b) + i * CONTEXT;
        int32_t last = ((const int32_t *)batch_of(b, "last", PK_I32))[i] - i * CONTEXT;
        char text[CONTEXT * 8 + 1];
        size_t n = 0;

        assert_in_range(last, 0, CONTEXT - 1);
        for (int32_t k = 0; k <= last; k++) {
            size_t bytes;
            const char *token = data_tokenizer_token(info->tokenizer, ids[k], &bytes);

            assert_true(n + bytes < sizeof text);
            memcpy(text + n, token, bytes);
            n += bytes;
        }
        text[n] = 0;
        for (int32_t k = last + 1; k < CONTEXT; k++)
            assert_int_equal(ids[k], 0); /* padding */
        snprintf(all.item[all.count++], sizeof all.item[0], "%s=%s", text,
                 info->class_names[targets_of(b)[i]]);
    }
    data_loader_free(l);
    if (split == DATA_TRAIN)
        qsort(all.item, (size_t)all.count, sizeof all.item[0], by_text);
    line[0] = 0;
    for (int i = 0; i < all.count; i++)
        len += (size_t)snprintf(line + len, sizeof line - len, "%s%s", i ? "|" : "", all.item[i]);
    return line;
}

static void want_parts(const struct data_options *o, const char *train, const char *val)
{
    struct data_set *set = NULL;

    want_open(o, &set);
    assert_string_equal(list(set, DATA_TRAIN), train);
    assert_string_equal(list(set, DATA_VAL), val);
    data_free(set);
}

static const char *classes_of(const struct data_set *set)
{
    static char line[256];
    size_t len = 0;

    for (int32_t c = 0; c < data_info(set)->classes; c++)
        len += (size_t)snprintf(line + len, sizeof line - len, "%s%s", c ? "," : "",
                                data_info(set)->class_names[c]);
    return line;
}

/* ---- the three forms ---- */

static void test_labelled_tsv_reads_two_columns_of_any(void **state)
{
    struct data_options o = folder_options("box/tsv");

    (void)state;
    put_text("tsv/train.tsv", "\xef\xbb\xbfid\ttext\tlabel\r\n1\tab\tx\r\n2\t\"c\ty\r\n\r\n3\t\tx");
    put_text("tsv/val.tsv", "text\tlabel\nef\ty\n");
    want_parts(&o, "\"c=y|=x|ab=x", "ef=y");
}

static void test_labelled_csv_follows_rfc_4180(void **state)
{
    struct data_options o = folder_options("box/csv");

    (void)state;
    put_text("csv/train.csv", "\"label\",text,more\r\n"
                              "x,\"a,b\",1\r\n"
                              "y,\"c\"\"d\",\"2\"\r\n"
                              "\"x\",\"e\nf\",\r\n"
                              "\"y,z\",\"\",\r\n");
    put_text("csv/validation.csv", "text,label\n g ,x");
    want_parts(&o, "=y,z|a,b=x|c\"d=y|e\nf=x", " g =x");
}

static void test_labelled_jsonl_takes_strings_and_whole_numbers(void **state)
{
    struct data_options o = folder_options("box/jsonl");

    (void)state;
    put_text("jsonl/train.jsonl", "{\"text\": \"ab\", \"label\": 2, \"more\": [1]}\n"
                                  "\n"
                                  "  {\"label\": \"10\", \"text\": \"c\\n\\u00e9\"}\r\n"
                                  "{\"label\": -1, \"text\": \"\"}\n");
    put_text("jsonl/valid.jsonl", "{\"label\": 10, \"text\": \"ef\"}");
    want_parts(&o, "=-1|ab=2|c\n\xc3\xa9=10", "ef=10");
}

static void test_labelled_gzip_is_the_same(void **state)
{
    static const char text[] = "label\ttext\nx\tab\ny\tcd\nx\tef\ny\tgh\nx\tij\ny\tkl\nx\tmn\ny\top\n";
    struct data_options plain = options("box/z/plain.tsv"), zipped = options("box/z/packed.tsv.gz");
    struct data_set *a = NULL, *b = NULL;

    (void)state;
    put_text("z/plain.tsv", text);
    put("z/packed.tsv.gz", text, sizeof text - 1, true);
    want_open(&plain, &a);
    want_open(&zipped, &b);
    for (int split = 0; split < 2; split++) {
        char want[64];

        snprintf(want, sizeof want, "%s", list(a, (enum data_split)split));
        assert_string_equal(list(b, (enum data_split)split), want);
    }
    data_free(a);
    data_free(b);
}

/* ---- classes ---- */

static void test_labelled_classes_are_sorted_as_numbers_where_all_are(void **state)
{
    struct data_options o = folder_options("box/sort");
    struct data_set *set = NULL;

    (void)state;
    put_text("sort/train.tsv", "label\ttext\n10\ta\n9\tb\n-3\tc\n007\td\n");
    put_text("sort/valid.tsv", "label\ttext\n9\ta\n");
    want_open(&o, &set);
    assert_string_equal(classes_of(set), "-3,007,9,10");
    data_free(set);
    /* One that is no number makes all of them words. */
    put_text("sort/train.tsv", "label\ttext\n10\ta\n9\tb\n-3\tc\n1.5\td\n");
    want_open(&o, &set);
    assert_string_equal(classes_of(set), "-3,1.5,10,9");
    data_free(set);
}

static void test_labelled_classes_are_those_that_are_trained_on(void **state)
{
    struct data_options o = folder_options("box/foreign");

    (void)state;
    put_text("foreign/train.tsv", "label\ttext\ny\ta\nx\tb\n");
    put_text("foreign/valid.tsv", "label\ttext\nx\ta\n\nnew\tb\n");
    want_refused(&o, PD_ERR_INVALID,
                 "#/data/path: 'valid.tsv': line 4: no text of the training part has the label 'new'");
    put_text("foreign/valid.tsv", "label\ttext\nx\ta\n");
    put_text("foreign/test.tsv", "label\ttext\nx\ta\nother\tb\n");
    o.scored = DATA_SCORED_TEST;
    want_refused(&o, PD_ERR_INVALID,
                 "'test.tsv': line 3: no text of the training part has the label 'other'");
    /* Of one file it is the texts that the split took, not the file. */
    o = options("box/foreign/one.tsv");
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = o.val_count = 2;
    put_text("foreign/one.tsv", "label\ttext\na\t1\nb\t2\nc\t3\nd\t4\n");
    want_refused(&o, PD_ERR_INVALID, "no text of the training part has the label");
    put_text("foreign/train.tsv", "label\ttext\ny\ta\ny\tb\n");
    o = folder_options("box/foreign");
    want_refused(&o, PD_ERR_INVALID,
                 "all 2 texts of the training part have the label 'y'; two classes are needed");
}

/* ---- parts ---- */

static void test_labelled_one_file_is_shuffled_and_divided(void **state)
{
    struct data_options o = options("box/many.csv");
    struct data_set *set = NULL;
    char text[512] = "label,text\n", train[256], seen[256], rest[256];
    size_t len = strlen(text);

    (void)state;
    for (int i = 0; i < 20; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, "%c,t%02d\n", "ab"[i % 2], i);
    put_text("many.csv", text);
    o.train_share = 0.5;
    o.val_share = 0.2;
    want_open(&o, &set);
    snprintf(train, sizeof train, "%s", list(set, DATA_TRAIN));
    snprintf(seen, sizeof seen, "%s", list(set, DATA_VAL));
    data_free(set);
    o.scored = DATA_SCORED_TEST;
    want_open(&o, &set);
    assert_int_equal(data_info(set)->count[DATA_VAL], 6);
    snprintf(rest, sizeof rest, "%s", list(set, DATA_VAL));
    data_free(set);
    for (int i = 0; i < 20; i++) { /* each text in one part, with the label of its row */
        char item[8];

        snprintf(item, sizeof item, "t%02d=%c", i, "ab"[i % 2]);
        assert_int_equal(!!strstr(train, item) + !!strstr(seen, item) + !!strstr(rest, item), 1);
    }
    assert_null(strstr(train, "t00=a|t01=b|t02=a|t03=b|t04=a|t05=b")); /* not the file's order */
    o.scored = DATA_SCORED_VAL;
    o.seed = 1;
    want_open(&o, &set);
    assert_string_not_equal(list(set, DATA_VAL), seen);
    data_free(set);
    o.rule = DATA_SPLIT_GIVEN;
    want_refused(&o, PD_ERR_INVALID, "#/data/split/rule: 'box/many.csv' has no validation part of its own");
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 15;
    o.val_count = 6;
    want_refused(&o, PD_ERR_INVALID, "#/data/split/val: 6 samples are requested, only 5 exist");
}

static void test_labelled_test_stands_in_for_validation_and_is_scored_by_itself(void **state)
{
    struct data_options o = folder_options("box/parts");
    struct data_set *set = NULL;

    (void)state;
    put_text("parts/train.tsv", "label\ttext\nx\ta\ny\tb\n");
    o.scored = DATA_SCORED_TEST;
    want_refused(&o, PD_ERR_INVALID, "#/split: 'box/parts' has no test file; set val or train");
    put_text("parts/test.csv", "label,text\nx,c\n");
    o.scored = DATA_SCORED_VAL;
    want_parts(&o, "a=x|b=y", "c=x");
    put_text("parts/val.jsonl", "{\"label\": \"y\", \"text\": \"d\"}\n");
    want_parts(&o, "a=x|b=y", "d=y");
    o.scored = DATA_SCORED_TEST;
    want_parts(&o, "a=x|b=y", "c=x");
    o.scored = DATA_SCORED_TRAIN;
    want_open(&o, &set);
    assert_string_equal(list(set, DATA_VAL), "a=x|b=y");
    data_free(set);
}

/* ---- tokens and batches ---- */

static void test_labelled_long_texts_keep_their_first_tokens_and_are_counted(void **state)
{
    struct data_options o = folder_options("box/long");
    struct data_set *set = NULL;
    struct data_warning w[DATA_WARNINGS_MAX];
    struct pd_why why = {""};

    (void)state;
    put_text("long/train.tsv", "label\ttext\nx\tabcdef\ny\tabcdefg\nx\t\n");
    put_text("long/valid.tsv", "label\ttext\ny\t12345678\n");
    want_parts(&o, "=x|abcdef=x|abcdef=y", "123456=y");
    for (int headers = 0; headers < 2; headers++) {
        assert_int_equal(data_open(&o, headers, &set, &why), PD_OK);
        assert_int_equal(data_info(set)->tokens[0], 12);
        assert_int_equal(data_info(set)->tokens[1], 6);
        assert_int_equal(data_warnings(set, w), 1);
        assert_string_equal(w[0].kind, "cut_texts");
        assert_string_equal(w[0].pointer, "#/data/context");
        assert_string_equal(w[0].fields, "texts=2");
        assert_string_equal(w[0].text, "2 of 4 texts have more than 6 tokens: of these the first 6 are read");
        data_free(set);
    }
    /* Headers alone tell all sizes, and give no samples. */
    assert_int_equal(data_open(&o, true, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->classes, 2);
    assert_int_equal(data_info(set)->vocab, 256);
    {
        struct data_loader *l = NULL;

        assert_int_equal(data_loader_start(set, DATA_VAL, 1, 0, 0, 1, &l, &why), PD_ERR_INVALID);
    }
    data_free(set);
}

/* Rows count within what one graph reads: a part of the batch of one rank. */
static void test_labelled_rows_are_those_of_a_part_of_a_ranks_batch(void **state)
{
    const struct data_share share = {.whole = 8, .parts = 2, .rank = 1, .ranks = 2};
    struct data_options o = folder_options("box/rows");
    struct data_set *set = NULL;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    struct pd_why why = {""};
    char text[256] = "label\ttext\n";

    (void)state;
    for (int i = 0; i < 8; i++)
        snprintf(text + strlen(text), 32, "%c\t%.*s\n", "xy"[i % 2], 1 + i % 3, "abc");
    put_text("rows/train.tsv", text);
    put_text("rows/valid.tsv", "label\ttext\nx\tab\n");
    want_open(&o, &set);
    assert_int_equal(data_loader_start_share(set, DATA_TRAIN, &share, 1, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    assert_int_equal(b->batch, 4);
    for (int i = 0; i < 4; i++) {
        int32_t last = ((const int32_t *)batch_of(b, "last", PK_I32))[i], length = 0;

        while (length < CONTEXT && tokens_of(b)[i * CONTEXT + length])
            length++;
        assert_int_equal(last, i % 2 * CONTEXT + length - 1);
    }
    data_loader_free(l);
    /* The validation batch's empty places name a row of their own, and do not count. */
    assert_int_equal(data_loader_start(set, DATA_VAL, 3, 0, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(((const int32_t *)batch_of(b, "last", PK_I32))[i], i * CONTEXT);
        assert_int_equal(targets_of(b)[i], DATA_IGNORE);
    }
    data_loader_free(l);
    data_free(set);
}

static void test_labelled_vocabularies_are_of_the_training_texts(void **state)
{
    struct data_options o = folder_options("box/words");
    struct data_set *set = NULL;
    struct data_ids ids = {0};
    struct pd_why why = {""};

    (void)state;
    put_text("words/train.tsv", "label\ttext\nx\ta b\ny\tc a\n");
    put_text("words/valid.tsv", "label\ttext\nx\ta d\n");
    o.tokenizer = DATA_TOKENIZER_WORDS;
    want_open(
        &o,
        &set); /* a, and once each \n <unk> b c: the last word of a text and the first of the next are two */
    assert_int_equal(data_info(set)->vocab, 5);
    assert_int_equal(data_tokenizer_encode(data_info(set)->tokenizer, "b c d", 5, false, &ids, &why), PD_OK);
    assert_int_equal(ids.count, 3);
    free(ids.items);
    assert_string_equal(list(set, DATA_VAL), "a <unk> =x");
    data_free(set);
    o.tokenizer = DATA_TOKENIZER_CHARS;
    want_refused(
        &o, PD_ERR_INVALID,
        "#/data/tokenizer: 'valid.tsv': line 2: the character 'd' was not in the text of the vocabulary");
    put_text("words/valid.tsv", "label\ttext\nx\tcb\n");
    want_open(&o, &set);
    assert_int_equal(data_info(set)->vocab, 4); /* " abc" */
    data_free(set);
}

/* ---- what is wrong ---- */

static void want_wrong(const char *name, const char *text, size_t len, const char *says)
{
    char path[64];
    struct data_options o;

    snprintf(path, sizeof path, "box/bad/%s", name);
    put(path + 4, text, len, false);
    o = options(path);
    want_refused(&o, PD_ERR_INVALID, says);
}

static void test_labelled_files_that_are_wrong_are_named_with_the_line(void **state)
{
    static const struct {
        const char *name, *text, *says;
    } bad[] = {
        {"a.tsv", "", "#/data/path: 'box/bad/a.tsv' is empty: it begins with a header row"},
        {"a.tsv", "\n \n", "line 2: there is no column 'label'"},
        {"a.tsv", "label\ttext\n", "'box/bad/a.tsv' holds no texts"},
        {"a.tsv", "label\tTEXT\nx\ta\n", "line 1: there is no column 'text'; the header names label, TEXT"},
        {"a.csv", "text,id\na,1\n", "line 1: there is no column 'label'; the header names text, id"},
        {"a.csv", "text,label,text\na,1,b\n", "line 1: the header names the column 'text' twice"},
        {"a.tsv", "label\ttext\tid\nx\ta\t1\ny\tb\n", "line 3: 2 columns, the header names 3"},
        {"a.tsv", "label\ttext\nx\n", "line 2: 1 column, the header names 2"},
        {"a.csv", "label,text\nx,a,b\n", "line 2: 3 columns, the header names 2"},
        {"a.csv", "label,text\nx,\"a\nb\nc\n", "line 2: the quote that opens here is never closed"},
        {"a.csv", "label,text\nx,\"a\nb\"c\n", "line 3: a closing quote must be followed by a comma"},
        {"a.csv", "label,text\nx,a\ny,b\"c\n", "line 3: a quote inside a field that is not quoted"},
        {"a.csv", "label,text\n\"x\ny\",\"a\"\n", "line 2: the label holds a control character"},
        {"a.tsv", "label\ttext\nx\ta\n\tb\n", "line 3: the label is empty"},
        {"a.tsv", "label\ttext\nx\xff\ta\n", "line 2: the label is not UTF-8"},
        {"a.tsv", "la\xff\ttext\nx\ta\n", "line 1: there is no column 'label' in the header"},
        {"a.jsonl", "", "'box/bad/a.jsonl' holds no texts"},
        {"a.jsonl", "{\"label\": 1, \"text\": \"a\"}\n{\"label\": 1,\n", "line 2: invalid JSON: "},
        {"a.jsonl", "\n[1]\n", "line 2: each line must be an object with \"label\" and \"text\""},
        {"a.jsonl", "{\"text\": \"a\"}\n", "line 1: \"label\" is missing: it must be a string or an integer"},
        {"a.jsonl", "{\"label\": 1.5, \"text\": \"a\"}\n",
         "line 1: \"label\" has the wrong type: it must be"},
        {"a.jsonl", "{\"label\": true, \"text\": \"a\"}\n",
         "line 1: \"label\" has the wrong type: it must be"},
        {"a.jsonl", "{\"label\": 1}\n", "line 1: \"text\" is missing: it must be a string"},
        {"a.jsonl", "{\"label\": 1, \"text\": 2}\n",
         "line 1: \"text\" has the wrong type: it must be a string"},
        {"a.jsonl", "{\"label\": 1, \"label\": 2, \"text\": \"a\"}\n", "line 1: invalid JSON: "},
        {"a.jsonl", "{\"label\": \"\\u0001\", \"text\": \"a\"}\n",
         "line 1: the label holds a control character"},
        {"a.tsv", "BZh9, packed", "is compressed with bzip2, which polyd does not read: decompress it"},
    };
    struct data_options o = folder_options("box/bad");
    char label[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        want_wrong(bad[i].name, bad[i].text, strlen(bad[i].text), bad[i].says);
    snprintf(label, sizeof label, "label\ttext\n%0201d\ta\n", 0);
    want_wrong("a.tsv", label, strlen(label), "line 2: the label has more than 200 bytes");
    want_refused(&o, PD_ERR_NOT_FOUND, "'box/bad' has no train.tsv, train.csv or train.jsonl");
    put_text("bad/texts.txt", "label\ttext\n");
    o.path = "box/bad/texts.txt";
    want_refused(&o, PD_ERR_INVALID, "'box/bad/texts.txt' is neither a folder nor a .tsv");
    o.path = "box/bad/absent.tsv";
    want_refused(&o, PD_ERR_NOT_FOUND, "cannot open 'box/bad/absent.tsv'");
}

static void test_labelled_more_classes_than_the_limit_are_refused(void **state)
{
    struct data_options o = options("box/classes.tsv");
    size_t size = (size_t)(DATA_CLASSES_MAX + 1) * 12 + 64, len;
    char *text = malloc(size);

    (void)state;
    assert_non_null(text);
    len = (size_t)snprintf(text, size, "label\ttext\n");
    for (int i = 0; i <= DATA_CLASSES_MAX; i++)
        len += (size_t)snprintf(text + len, size - len, "%d\ta\n", i);
    put("classes.tsv", text, len, false);
    want_refused(&o, PD_ERR_LIMIT, "'box/classes.tsv': line 100002: more than 100000 different labels");
    free(text);
}

/* A list of what there is does not read a table of gigabytes. */
static void test_labelled_long_files_are_not_read_for_a_list(void **state)
{
    struct data_options o = options("box/huge.tsv");
    struct data_set *set = NULL;
    struct pd_why why = {""};
    char path[128];

    (void)state;
    put_text("huge.tsv", "label\ttext\nx\ta\ny\tb\n");
    snprintf(path, sizeof path, "%s/huge.tsv", folder);
    assert_int_equal(truncate(path, (off_t)DATA_COUNTED_BYTES_MAX + 1), 0);
    o.until_us = INT64_MAX;
    assert_int_equal(data_open(&o, true, &set, &why), PD_ERR_TIMEOUT);
    o.until_us = 0;
    assert_int_equal(data_open(&o, true, &set, &why), PD_ERR_INVALID); /* read: its last row is zeros */
    assert_int_equal(unlink(path), 0);
}

/* Good files cut at every byte and with every byte changed: read or refused, never more. */
static void test_labelled_damaged_files_are_read_or_refused(void **state)
{
    static const struct {
        const char *name, *text;
    } good[] = {
        {"box/cut/a.tsv", "label\ttext\tid\r\nx\tab\t1\r\ny\tcd\t2\r\n"},
        {"box/cut/a.csv", "label,text\r\nx,\"a\"\"b\"\r\n\"y\",\"c\nd\"\r\n"},
        {"box/cut/a.jsonl", "{\"label\": \"x\", \"text\": \"a\\u00e9\"}\n{\"label\": 2, \"text\": \"b\"}\n"},
    };
    static const char with[] = {0, '\n', '"', ',', '\t', '{', (char)0xff};

    (void)state;
    for (size_t g = 0; g < sizeof good / sizeof *good; g++) {
        struct data_options o = options(good[g].name);
        size_t len = strlen(good[g].text);

        for (size_t k = 0; k < len * (1 + sizeof with); k++) {
            struct data_set *set = NULL;
            struct pd_why why = {""};
            size_t at = k / (1 + sizeof with), how = k % (1 + sizeof with);
            char *text = strdup(good[g].text);
            enum pd_err err;

            assert_non_null(text);
            if (how)
                text[at] = with[how - 1];
            put(good[g].name + 4, text, how ? len : at, false);
            err = data_open(&o, false, &set, &why);
            assert_true(err == PD_OK || err == PD_ERR_INVALID);
            assert_true(err == PD_OK || !strncmp(why.text, "#/", 2));
            data_free(set);
            free(text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labelled_tsv_reads_two_columns_of_any),
        cmocka_unit_test(test_labelled_csv_follows_rfc_4180),
        cmocka_unit_test(test_labelled_jsonl_takes_strings_and_whole_numbers),
        cmocka_unit_test(test_labelled_gzip_is_the_same),
        cmocka_unit_test(test_labelled_classes_are_sorted_as_numbers_where_all_are),
        cmocka_unit_test(test_labelled_classes_are_those_that_are_trained_on),
        cmocka_unit_test(test_labelled_one_file_is_shuffled_and_divided),
        cmocka_unit_test(test_labelled_test_stands_in_for_validation_and_is_scored_by_itself),
        cmocka_unit_test(test_labelled_long_texts_keep_their_first_tokens_and_are_counted),
        cmocka_unit_test(test_labelled_rows_are_those_of_a_part_of_a_ranks_batch),
        cmocka_unit_test(test_labelled_vocabularies_are_of_the_training_texts),
        cmocka_unit_test(test_labelled_files_that_are_wrong_are_named_with_the_line),
        cmocka_unit_test(test_labelled_more_classes_than_the_limit_are_refused),
        cmocka_unit_test(test_labelled_long_files_are_not_read_for_a_list),
        cmocka_unit_test(test_labelled_damaged_files_are_read_or_refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
