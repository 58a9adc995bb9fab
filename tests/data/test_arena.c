/* The data sets of the Long Range Arena: what is read of their files, and which tokens a batch then holds. */
#include "tests/data/box.h"

#include <fcntl.h>

#include "daemon/worker/data/pairs.h"
#include "daemon/worker/data/sequences.h"
#include "tests/lib/png.h"

static struct data_options options(enum data_dataset dataset, const char *path, int32_t context)
{
    return (struct data_options){.dataset = dataset,
                                 .path = path,
                                 .roots = &box_root,
                                 .root_count = 1,
                                 .rule = DATA_SPLIT_STANDARD,
                                 .context = context};
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text), false);
}

/* The first sample of the part in file order: its tokens (`count` of them) and class. */
static int first_of(struct data_set *set, enum data_split split, int32_t *tokens, int32_t count)
{
    const struct data_batch *b;
    struct data_loader *l = NULL;
    struct pd_why why;
    int class;

    assert_int_equal(data_loader_start(set, split, 1, 1, 0, 1, &l, &why), PD_OK);
    assert_int_equal(data_loader_next(l, &b, &why), PD_OK);
    memcpy(tokens, tokens_of(b), (size_t)count * sizeof *tokens);
    class = targets_of(b)[0];
    data_loader_free(l);
    return class;
}

static void want_refusal(const struct data_options *o, const char *what)
{
    struct data_set *set = NULL;
    struct pd_why why = {""};

    assert_int_not_equal(data_open(o, false, &set, &why), PD_OK);
    if (!strstr(why.text, what))
        fail_msg("'%s' does not say '%s'", why.text, what);
}

static void test_arena_listops_leaves_parentheses_out(void **state)
{
    struct data_options o = options(DATA_SET_LISTOPS, "box/ops", 8);
    struct data_set *set = NULL;
    int32_t tokens[8];

    (void)state;
    put_text("ops/basic_train.tsv", "Source\tTarget\n( ( ( [MAX 4 ) 9 ) ] )\t9\n( ( ( [SM 1 ) 2 ) ] )\t3\n");
    put_text("ops/basic_val.tsv", "Source\tTarget\n( ( ( [MED 0 ) 9 ) ( ( [MIN 3 ) ] ) ] )\t3\n");
    put_text("ops/basic_test.tsv", "Source\tTarget\n( ( [MIN 3 ) ] )\t3\n");
    want_open(&o, &set);
    assert_int_equal(data_info(set)->count[DATA_TRAIN], 2);
    assert_int_equal(data_info(set)->count[DATA_VAL], 1);
    assert_int_equal(data_info(set)->count[DATA_TEST], 1);
    assert_string_equal(data_info(set)->class_names[first_of(set, DATA_VAL, tokens, 8)], "3");
    /* [MED 0 9 [MIN 3 ] ] and padding: 1 to 5 are [MIN [MAX [MED [SM ], digits begin at 6 */
    assert_memory_equal(tokens, ((int32_t[]){3, 6, 15, 1, 9, 5, 5, 0}), sizeof tokens);
    data_free(set);
    set = NULL;
    o.most = 3; /* as many as a preparation keeps */
    want_open(&o, &set);
    (void)first_of(set, DATA_VAL, tokens, 8);
    assert_memory_equal(tokens, ((int32_t[]){3, 6, 15, 0, 0, 0, 0, 0}), sizeof tokens);
    data_free(set);
    put_text("ops/basic_val.tsv", "Source\tTarget\n( [MEAN 0 ) ] )\t3\n");
    want_refusal(&o, "'basic_val.tsv': line 2: '[MEAN' is not a token of ListOps");
}

static void test_arena_imdb_has_no_header_and_bytes_from_1(void **state)
{
    const struct data_options o = options(DATA_SET_IMDB, "box/imdb", 4);
    struct data_set *set = NULL;
    int32_t tokens[4];

    (void)state;
    put_text("imdb/train.tsv", "1\t7_9\tgood\n0\t8_1\tbad\n");
    put_text("imdb/valid.tsv", "0\t9_2\tno\n");
    put_text("imdb/test.tsv", "1\t9_7\tyes, yes\n");
    want_open(&o, &set);
    assert_int_equal(data_info(set)->vocab, 257);
    assert_int_equal(first_of(set, DATA_VAL, tokens, 4), 0);
    assert_memory_equal(tokens, ((int32_t[]){'n' + 1, 'o' + 1, 0, 0}), sizeof tokens);
    data_free(set);
    put_text("imdb/test.tsv", "1\tno id\n");
    want_refusal(&o, "'test.tsv': line 1: 2 columns, and each line has 3");
    put_text("imdb/test.tsv", "\n");
    want_refusal(&o, "'test.tsv' is empty: each line has 3 columns, without a header row");
}

static void test_arena_aan_has_a_text_in_each_half(void **state)
{
    struct data_options o = options(DATA_SET_AAN, "box/aan", 8);
    struct data_set *set = NULL;
    int32_t tokens[8];

    (void)state;
    put_text("aan/new_aan_pairs.train.tsv", "1\ta\tb\tx\ty\n0\ta\tc\tx\tz\n");
    put_text("aan/new_aan_pairs.eval.tsv", "1\ta\tb\tac\tbdfhj\n");
    put_text("aan/new_aan_pairs.test.tsv", "0\ta\tb\t\tq\n");
    want_open(&o, &set);
    assert_true(data_info(set)->pairs);
    assert_int_equal(first_of(set, DATA_VAL, tokens, 8), 1);
    assert_memory_equal(tokens, ((int32_t[]){'a' + 1, 'c' + 1, 0, 0, 'b' + 1, 'd' + 1, 'f' + 1, 'h' + 1}),
                        sizeof tokens);
    data_free(set);
    o.context = 7;
    want_refusal(&o, "#/data/context: 7 tokens cannot be divided into two sequences");
}

static void test_arena_greys_are_rounded(void **state)
{
    struct data_options o = options(DATA_SET_GREYS, "box/greys", 1024);
    static uint8_t records[20 * 3073];
    static int32_t tokens[1024];
    struct data_set *set = NULL;

    (void)state;
    for (int r = 0; r < 20; r++) {
        records[r * 3073] = (uint8_t)(r % 10);
        for (int k = 0; k < 3072; k++) /* alike in all, so that the first of any order is known */
            records[r * 3073 + 1 + k] = (uint8_t)(k * 31 + k / 7);
    }
    put("greys/data_batch_1.bin", records, sizeof records, false);
    o.amount[DATA_VAL] = 4;
    want_open(&o, &set);
    assert_int_equal(data_info(set)->vocab, 256);
    assert_int_equal(data_info(set)->classes, 10);
    (void)first_of(set, DATA_VAL, tokens, 1024);
    for (int k = 0; k < 1024; k++) {
        const double r = records[1 + k], g = records[1025 + k], b = records[2049 + k];

        assert_int_equal(tokens[k], (int)(0.2989 * r + 0.5870 * g + 0.1140 * b + 0.5));
    }
    data_free(set);
}

static void test_arena_greys_report_what_the_pictures_lack(void **state)
{
    struct data_options o = options(DATA_SET_GREYS, "box/shapes", 1024);
    static uint8_t records[20 * 3073];
    struct data_set *set = NULL;
    struct data_warning w[DATA_WARNINGS_MAX];
    char name[256], reason[256];

    (void)state;
    put("few/data_batch_1.bin", records, sizeof records, false);
    o.path = "box/few";
    o.amount[DATA_VAL] = 60;
    want_refusal(&o, "#/data/split/val: 60 samples are requested, only 20 exist");
    o.path = "box/shapes";
    o.amount[DATA_VAL] = 0;
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "shapes/%s/%s/%d.png", i % 2 ? "train" : "val", i / 2 % 2 ? "a" : "b", i);
        put(name, png_red, sizeof png_red, false);
    }
    put("shapes/train/a/broken.png", "no picture", 10, false);
    put("shapes/train/a/other.webp", "x", 1, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->classes, 2);
    assert_int_equal(data_bad_count(set), 1);
    assert_true(data_bad_next(set, name, reason));
    assert_string_equal(name, "train/a/broken.png");
    assert_int_equal(data_warnings(set, w), 1);
    assert_string_equal(w[0].kind, "unread_pictures");
    assert_non_null(strstr(w[0].text, "train/a/other.webp"));
    data_free(set);
}

/* Documents of one letter each tell which a piece is of. */
static void test_arena_pairs_are_of_one_document_or_of_two(void **state)
{
    enum { DOCUMENTS = 3, BYTES = 400, PIECE = 10 };
    static uint8_t text[DOCUMENTS * BYTES];
    static const int64_t ends[DOCUMENTS] = {BYTES, 2 * BYTES, 3 * BYTES};
    uint32_t usable[DOCUMENTS];
    struct data_pairs p = {text, ends, usable, DOCUMENTS, 5, PIECE};
    int same = 0, of[DOCUMENTS] = {0};
    struct pd_buf out;
    struct pd_why why;

    (void)state;
    for (int i = 0; i < DOCUMENTS * BYTES; i++)
        text[i] = (uint8_t)('a' + i / BYTES);
    assert_int_equal(data_pairs_check(&p, &why), PD_OK);
    pd_buf_init(&out, 0);
    for (uint64_t i = 0; i < 600; i++) {
        const int class = data_pair_make(&p, i, DATA_TEST, &out);

        assert_int_equal(out.len, 2 * PIECE + 1);
        assert_int_equal(out.data[PIECE], '\t');
        assert_int_equal(class, out.data[0] == out.data[PIECE + 1]);
        same += class;
        of[out.data[0] - 'a']++;
    }
    assert_in_range(same, 250, 350);
    for (int d = 0; d < DOCUMENTS; d++)
        assert_in_range(of[d], 150, 250);
    for (int i = 0; i < BYTES;
         i++) /* now a letter tells the place: a part's pieces stay in it, and do not overlap */
        text[i] = (uint8_t)(i < 320 ? 'x' : i < 360 ? 'y' : 'z');
    p.ends = (int64_t[]){BYTES, BYTES + 1, BYTES + 2};
    p.count = DOCUMENTS;
    assert_int_equal(data_pairs_check(&p, &why), PD_ERR_INVALID);
    assert_non_null(strstr(
        why.text, "two documents of at least 200 bytes (20 times the 10 of a passage); of 3 documents 1"));
    p.ends = ends;
    p.count = DOCUMENTS;
    assert_int_equal(data_pairs_check(&p, &why), PD_OK);
    for (uint64_t i = 0; i < 200; i++)
        for (int part = 0; part < DATA_SPLITS; part++) {
            (void)data_pair_make(&p, i, part, &out);
            for (int k = 0; k < PIECE && out.data[0] >= 'x'; k++)
                assert_int_equal(out.data[k], "xyz"[part]);
        }
    pd_buf_done(&out);
}

/* The folder of pairs is one of documents: it may be as large, and its digest has the paths below it. */
static void test_arena_pairs_are_read_as_documents(void **state)
{
    struct data_options o = options(DATA_SET_PAIRS, "box/shelves", 8);
    struct data_set *set = calloc(1, sizeof *set);
    static char text[2000];
    struct pd_why why;
    char from[128], to[128], before[65];
    int64_t at = (int64_t)DATA_FILE_LIMIT;

    (void)state;
    assert_non_null(set);
    memset(text, 'a', sizeof text);
    put("shelves/a/1.txt", text, sizeof text, false);
    memset(text, 'b', sizeof text);
    put("shelves/b/1.txt", text, sizeof text, false);
    for (int pairs = 0; pairs < 2; pairs++) {
        int fd;

        snprintf(from, sizeof from, "%s/shelves/b/1.txt", folder);
        fd = open(from, O_RDONLY);
        assert_true(fd >= 0);
        set->options.dataset = pairs ? DATA_SET_PAIRS : DATA_SET_TEXTS;
        assert_int_equal(data_text_append(set, fd, "b/1.txt", true, &at, &why), pairs ? PD_OK : PD_ERR_LIMIT);
    }
    assert_true(at == (int64_t)(DATA_FILE_LIMIT + sizeof text));
    free(set);
    set = NULL;
    want_open(&o, &set);
    snprintf(before, sizeof before, "%s", data_info(set)->digest);
    set = data_free(set);
    snprintf(from, sizeof from, "%s/shelves/b", folder);
    snprintf(to, sizeof to, "%s/shelves/c", folder);
    assert_int_equal(rename(from, to), 0);
    want_open(&o, &set);
    assert_int_equal(strlen(before), 64);
    assert_string_not_equal(data_info(set)->digest, before);
    data_free(set);
}

/* A training part of one pair has one class, and the others may have both. */
static void test_arena_pairs_have_two_classes(void **state)
{
    struct data_options o = options(DATA_SET_PAIRS, "box/books", 8);
    static char text[2000];
    int32_t tokens[8];

    (void)state;
    memset(text, 'a', sizeof text);
    put("books/a.txt", text, sizeof text, false);
    memset(text, 'b', sizeof text);
    put("books/b.txt", text, sizeof text, false);
    o.amount[DATA_TRAIN] = o.amount[DATA_VAL] = o.amount[DATA_TEST] = 1;
    for (o.seed = 0; o.seed < 10; o.seed++) {
        struct data_set *set = NULL;
        int class;

        want_open(&o, &set);
        assert_int_equal(data_info(set)->classes, 2);
        class = first_of(set, DATA_VAL, tokens, 8);
        assert_int_equal(class, tokens[0] == tokens[4]);
        data_free(set);
    }
}

static void test_arena_paths_of_other_lengths_are_padded(void **state)
{
    const struct data_sequences s = {
        .kind = DATA_SET_PATHFINDER_GEN, .seed = 3, .context = 2048, .contour = 12};
    struct pd_buf text;
    struct pd_why why;
    int class, blanks = 0;

    (void)state;
    pd_buf_init(&text, 0);
    assert_int_equal(data_sequences_side(2048), 32);
    assert_int_equal(data_sequence_make(&s, 0, &text, &class, &why), PD_OK);
    for (size_t i = 0; i < text.len; i++)
        blanks += text.data[i] == ' ';
    assert_int_equal(blanks, 1023);
    pd_buf_done(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_listops_leaves_parentheses_out),
        cmocka_unit_test(test_arena_imdb_has_no_header_and_bytes_from_1),
        cmocka_unit_test(test_arena_aan_has_a_text_in_each_half),
        cmocka_unit_test(test_arena_greys_are_rounded),
        cmocka_unit_test(test_arena_greys_report_what_the_pictures_lack),
        cmocka_unit_test(test_arena_pairs_are_of_one_document_or_of_two),
        cmocka_unit_test(test_arena_pairs_are_read_as_documents),
        cmocka_unit_test(test_arena_pairs_have_two_classes),
        cmocka_unit_test(test_arena_paths_of_other_lengths_are_padded),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
