/* Texts as tokens and their caches; the cache itself under two writers, dead ones and damage. */
#include "tests/data/box.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "daemon/worker/data/cache.h"
#include "kernels/base/file.h"

static const char poem[] =
    "the caf\xc3\xa9 by the sea\nthe sea by the caf\xc3\xa9\nnobody there but the sea\n";

enum { BYTES = 66 }; /* of the poem in the two parts: shares are rounded down */

static struct data_options options(enum data_tokenizer_kind tokenizer)
{
    return (struct data_options){.dataset = DATA_SET_TEXT,
                                 .path = "box/t.txt",
                                 .roots = &box_root,
                                 .root_count = 1,
                                 .context = 1,
                                 .tokenizer = tokenizer,
                                 .tokenizer_path = "box/bpe",
                                 .rule = DATA_SPLIT_FRACTION,
                                 .train_share = 0.6,
                                 .val_share = 0.4,
                                 .cache_dir = cache_folder};
}

/* Every byte is a token, and "th" and "the" are merged. */
static void put_bpe(void)
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
    pd_buf_str(&b, ",\"th\":256,\"the\":257,\"<|endoftext|>\":258}");
    put("bpe/vocab.json", b.data, b.len, false);
    put("bpe/merges.txt", "#version: 0.2\nt h\nth e\n", 23, false);
    pd_buf_done(&b);
}

static void test_each_tokenizer_cuts_once(void **state)
{
    static const int32_t vocab[] = {256, 17, 7, 259};

    (void)state;
    put("t.txt", poem, sizeof poem - 1, false);
    put_bpe();
    for (int k = 0; k < 4; k++) {
        struct data_options o = options((enum data_tokenizer_kind)k), plain = o;
        struct data_set *first = NULL, *second = NULL, *without = NULL, *headers = NULL;
        struct data_work work;
        struct pd_why why;

        plain.cache_dir = NULL;
        want_open(&o, &first);
        data_work(first, &work);
        assert_int_equal(work.cache_misses, k ? 2 : 0);
        assert_int_equal(work.tokenised_bytes, k ? BYTES : 0);
        want_open(&o, &second);
        data_work(second, &work);
        assert_int_equal(work.tokenised_bytes, 0); /* nothing was cut again */
        assert_int_equal(work.cache_hits, k ? 2 : 0);
        want_open(&plain, &without);
        want_same(first, 1, second, 2, DATA_TRAIN, 6);
        want_same(first, 1, without, 3, DATA_TRAIN, 6);
        want_same(second, 1, without, 1, DATA_VAL, 1);
        assert_int_equal(data_info(first)->vocab, vocab[k]);
        assert_int_equal(data_tokenizer_kind(data_info(first)->tokenizer), k);
        assert_int_equal(data_open(&o, true, &headers, &why), PD_OK);
        assert_int_equal(data_info(headers)->tokens[0], data_info(first)->tokens[0]);
        assert_int_equal(data_info(headers)->count[1], data_info(first)->count[1]);
        data_free(headers);
        data_free(first);
        data_free(second);
        data_free(without);
    }
}

static void test_no_character_is_torn(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_CHARS);
    struct data_set *set = NULL;

    (void)state;
    put("t.txt", poem, sizeof poem - 1, false);
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 8; /* between the two bytes of the e with its accent */
    o.val_count = 35;  /* likewise */
    want_open(&o, &set);
    assert_int_equal(data_info(set)->tokens[0], 7);
    assert_int_equal(data_info(set)->tokens[1], 34);
    data_free(set);
}

static void test_folder_of_parts(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_WORDS);
    struct data_set *set = NULL;

    (void)state;
    o.dataset = DATA_SET_TEXTS;
    o.path = "box/ptb";
    o.rule = DATA_SPLIT_GIVEN;
    put("ptb/other.txt", "x", 1, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "ptb.train.txt");
    put("ptb/ptb.train.txt", " a b c \n a b \n", 14, false);
    want_refused(&o, PD_ERR_INVALID, "no validation part");
    put("ptb/ptb.valid.txt", " a z b \n c \n", 12, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->tokens[0], 7);
    assert_int_equal(data_info(set)->tokens[1], 6);
    assert_int_equal(data_info(set)->vocab, 5);
    data_free(set);
}

/* A part that is the beginning of a file of its own. */
static void test_no_character_of_a_shortened_file_is_torn(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_CHARS);
    struct data_set *set = NULL;
    char accents[203] = "";

    (void)state;
    for (int i = 0; i < 101; i++)
        strcat(accents, "\xc3\xa9");
    o.dataset = DATA_SET_TEXTS;
    o.path = "box/ptb";
    o.rule = DATA_SPLIT_STANDARD;
    o.amount[DATA_VAL] = 101; /* between the two bytes of the 51st */
    o.amount[DATA_TEST] = 4;
    put("ptb/train.txt", accents, strlen(accents), false);
    put("ptb/valid.txt", accents, strlen(accents), false);
    put("ptb/test.txt", "abc\xc3\xa9z", 6, false);
    want_open(&o, &set);
    assert_int_equal(data_info(set)->tokens[DATA_TRAIN], 101);
    assert_int_equal(data_info(set)->tokens[DATA_VAL], 50);
    assert_int_equal(data_info(set)->tokens[DATA_TEST], 3);
    data_free(set);
}

static void test_counts_stay_within_the_file_of_their_part(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_BYTES);
    struct data_set *set = NULL;
    char train[1000], val[200];

    (void)state;
    memset(train, 't', sizeof train);
    memset(val, 'v', sizeof val);
    o.dataset = DATA_SET_TEXTS;
    o.path = "box/ptb";
    o.rule = DATA_SPLIT_COUNT;
    o.train_count = 1050;
    o.val_count = 100;
    put("ptb/train.txt", train, sizeof train, false);
    put("ptb/valid.txt", val, sizeof val, false);
    want_refused(&o, PD_ERR_INVALID, "#/data/split/train: 1050 bytes are requested, the training part");
    o.train_count = 900;
    o.val_count = 201;
    want_refused(&o, PD_ERR_INVALID, "#/data/split/val: 201 bytes are requested, the validation part");
    o.train_count = 1000;
    o.val_count = 200;
    want_open(&o, &set);
    assert_memory_equal(set->part[DATA_TRAIN].ids, train, sizeof train);
    assert_memory_equal(set->part[DATA_VAL].ids, val, sizeof val);
    data_free(set);
}

/* Of the files that a folder may hold, each part takes its own, by whatever name it has. */
static void test_each_part_of_a_folder_is_its_own_file(void **state)
{
    static const char *const names[][2] = {{"train.txt", "valid.txt"},
                                           {"ptb.train.txt", "ptb.valid.txt"},
                                           {"wiki.train.tokens", "wiki.valid.tokens"},
                                           {"train.txt", "val.txt"},
                                           {"train.txt", "validation.txt"}};

    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct data_options o = options(DATA_TOKENIZER_BYTES);
        struct data_set *set = NULL;
        char path[64], at[64];

        snprintf(path, sizeof path, "box/parts%zu", k);
        o.dataset = DATA_SET_TEXTS;
        o.path = path;
        o.rule = DATA_SPLIT_GIVEN;
        snprintf(at, sizeof at, "parts%zu/%s", k, names[k][0]);
        put(at, "training", 8, false);
        snprintf(at, sizeof at, "parts%zu/%s", k, names[k][1]);
        put(at, "held out", 8, false);
        snprintf(at, sizeof at, "parts%zu/%s", k, "test.txt");
        put(at, "not read", 8, false);
        want_open(&o, &set);
        for (int part = 0; part < 2; part++) {
            assert_int_equal(set->part[part].count, 8);
            assert_memory_equal(set->part[part].ids, part ? "held out" : "training", 8);
        }
        data_free(set);
        o.scored = DATA_SCORED_TEST;
        want_open(&o, &set);
        assert_memory_equal(set->part[0].ids, "training", 8);
        assert_int_equal(set->part[1].count, 8);
        assert_memory_equal(set->part[1].ids, "not read", 8);
        data_free(set);
        o.scored = DATA_SCORED_TRAIN;
        want_open(&o, &set);
        assert_memory_equal(set->part[1].ids, "training", 8);
        data_free(set);
    }
}

/* A text has no test part but what its split leaves. */
static void test_a_text_that_is_left_is_the_test_part(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_BYTES);
    struct data_set *set = NULL;

    (void)state;
    put("left.txt", "0123456789abcdefghij", 20, false);
    o.path = "box/left.txt";
    o.rule = DATA_SPLIT_FRACTION;
    o.train_share = 0.5;
    o.val_share = 0.25;
    o.scored = DATA_SCORED_TEST;
    want_open(&o, &set);
    assert_int_equal(set->part[1].count, 5);
    assert_memory_equal(set->part[1].ids, "fghij", 5);
    data_free(set);
    o.val_share = 0.5;
    want_refused(&o, PD_ERR_INVALID, "#/split");
}

static void test_tokenizer_files_are_wanted_and_stay_inside(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_GPT2_BPE);
    char from[128];

    (void)state;
    put("t.txt", poem, sizeof poem - 1, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "bpe");
    put("bpe/merges.txt", "a b\n", 4, false);
    want_refused(&o, PD_ERR_NOT_FOUND, "neither encoder.json nor vocab.json");
    snprintf(from, sizeof from, "%s/bpe/vocab.json", folder);
    assert_int_equal(symlink("/etc/passwd", from), 0);
    want_refused(&o, PD_ERR_DENIED, "leads outside");
    assert_int_equal(unlink(from), 0);
    put("blobs/a", "{\"a\":0}", 7, false);
    assert_int_equal(symlink("../blobs/a", from), 0);
    want_refused(&o, PD_ERR_CORRUPT, "merges, line 1"); /* the link was followed */
    assert_int_equal(unlink(from), 0);
    put("bpe/vocab.json", "{\"a\":0}", 7, false);
    want_refused(&o, PD_ERR_CORRUPT, "merges, line 1");
    o.tokenizer_path = "box/../etc";
    want_refused(&o, PD_ERR_DENIED, "..");
}

static void test_damaged_tokens_are_cut_anew(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_WORDS);
    struct data_set *set = NULL;
    struct data_work work;
    char pattern[128];
    glob_t found;

    (void)state;
    put("t.txt", poem, sizeof poem - 1, false);
    want_open(&o, &set);
    set = data_free(set);
    snprintf(pattern, sizeof pattern, "%s/*.cache", cache_folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 2);
    for (int i = 0; i < 2; i++) {
        int fd = open(found.gl_pathv[i], O_RDWR);

        assert_true(fd >= 0);
        if (i)
            assert_int_equal(ftruncate(fd, 100), 0);
        else
            assert_int_equal(pwrite(fd, "\xff\xff", 2, 130), 2);
        close(fd);
    }
    globfree(&found);
    want_open(&o, &set);
    data_work(set, &work);
    assert_int_equal(work.tokenised_bytes, BYTES);
    data_free(set);
}

/* ---- gzip'd, and what is no text ---- */

static void test_gzipped_text_gives_the_tokens_of_the_plain_one(void **state)
{
    char *text = malloc(400000);
    size_t len = 0;

    (void)state;
    assert_non_null(text);
    put_bpe();
    /* long enough for several pieces of memory, packed in two members, as gzip -c a; gzip -c b >> makes it */
    for (int i = 0; len < 390000; i++)
        len += (size_t)sprintf(text + len, "the %d caf\xc3\xa9 by the sea\n", i * 7919);
    put("t.txt", text, len, false);
    put("z.txt", text, len, true);
    put("half.gz", text, len / 2, true);
    put("rest.gz", text + len / 2, len - len / 2, true);
    {
        char command[512];

        snprintf(command, sizeof command, "cd '%s' && cat half.gz rest.gz > two.txt.gz", folder);
        assert_int_equal(system(command), 0);
    }
    for (int k = 0; k < 4; k++)
        for (int form = 0; form < 2; form++) {
            struct data_options o = options((enum data_tokenizer_kind)k), zipped = o;
            struct data_set *plain = NULL, *packed = NULL, *headers = NULL;
            struct data_warning said[DATA_WARNINGS_MAX];
            struct pd_why why;

            zipped.path = form ? "box/two.txt.gz" : "box/z.txt"; /* the bytes tell, not the name */
            want_open(&o, &plain);
            want_open(&zipped, &packed);
            for (int part = 0; part < 2; part++) {
                assert_int_equal(plain->part[part].count, packed->part[part].count);
                assert_memory_equal(plain->part[part].ids, packed->part[part].ids,
                                    (size_t)plain->part[part].count * (size_t)plain->part[part].width);
            }
            assert_int_equal(data_open(&zipped, true, &headers, &why), PD_OK);
            assert_int_equal(data_info(headers)->tokens[0], data_info(plain)->tokens[0]);
            assert_int_equal(data_info(headers)->tokens[1], data_info(plain)->tokens[1]);
            assert_int_equal(data_warnings(packed, said), 0);
            data_free(headers);
            data_free(plain);
            data_free(packed);
        }
    free(text);
}

static void test_gzipped_parts_stand_in_for_plain_ones(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_BYTES);
    struct data_set *set = NULL;

    (void)state;
    o.dataset = DATA_SET_TEXTS;
    o.path = "box/parts";
    o.rule = DATA_SPLIT_GIVEN;
    put("parts/wiki.train.tokens.gz", "training", 8, true);
    put("parts/wiki.valid.tokens", "held out", 8, false);
    want_open(&o, &set);
    assert_memory_equal(set->part[0].ids, "training", 8);
    assert_memory_equal(set->part[1].ids, "held out", 8);
    data_free(set);
}

static void test_damaged_gzip_is_refused_and_a_bomb_bounded(void **state)
{
    struct data_options o = options(DATA_TOKENIZER_BYTES);
    struct pd_why why = {""};
    struct data_set *set = NULL;
    char path[128], command[256];
    struct stat s;

    (void)state;
    o.path = "box/t.gz";
    put("t.gz", poem, sizeof poem - 1, true);
    snprintf(path, sizeof path, "%s/t.gz", folder);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(truncate(path, s.st_size - 6), 0);
    want_refused(&o, PD_ERR_CORRUPT, "truncated");
    {
        FILE *f;

        put("t.gz", poem, sizeof poem - 1, true);
        f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, 30, SEEK_SET), 0);
        assert_int_equal(fwrite("\xff\xff\xff\xff", 1, 4, f), 4);
        assert_int_equal(fclose(f), 0);
    }
    want_refused(&o, PD_ERR_CORRUPT, "cannot be decompressed");
    /* 4.2 GiB of zeros in as many members of a file of 4 MB: counted in a small buffer, then refused */
    snprintf(command, sizeof command,
             "cd '%s' && head -c 67108864 /dev/zero | gzip > one && for i in $(seq 68); do cat one; done > "
             "bomb.gz",
             folder);
    assert_int_equal(system(command), 0);
    o.path = "box/bomb.gz";
    assert_int_equal(data_open(&o, true, &set, &why), PD_ERR_LIMIT);
    assert_non_null(strstr(why.text, "after decompression"));
}

static void test_what_is_no_text_is_said(void **state)
{
    static const struct {
        const char *head, *want;
        int kind;
    } odd[] = {{"\x28\xb5\x2f\xfd", "zstd", DATA_TOKENIZER_BYTES}, {"PK\3\4", "zip", DATA_TOKENIZER_BYTES}};
    struct data_warning said[DATA_WARNINGS_MAX];
    uint8_t noise[1000];
    struct data_set *set = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        struct data_options o = options((enum data_tokenizer_kind)odd[i].kind);
        char file[64];

        o.cache_dir = NULL;
        snprintf(file, sizeof file, "%s and so on, long enough for two parts", odd[i].head);
        put("t.txt", file, strlen(file), false);
        want_open(&o, &set);
        assert_int_equal(data_warnings(set, said), 1);
        assert_string_equal(said[0].kind, "packed_text");
        assert_string_equal(said[0].pointer, "#/data/path");
        assert_non_null(strstr(said[0].text, odd[i].want));
        set = data_free(set);
    }
    /* of 1000 bytes 10 are one in a hundred, which may be; 11 are more */
    for (int foreign = 10; foreign < 12; foreign++)
        for (int k = 0; k < 3; k++) {
            struct data_options o = options((enum data_tokenizer_kind)k);
            size_t want = foreign > 10 && k != DATA_TOKENIZER_BYTES;

            for (size_t i = 0; i < sizeof noise; i++)
                noise[i] = i % 10 == 9 ? ' ' : 'a';
            for (int i = 0; i < foreign; i++)
                noise[i * 89] = i % 2 ? 0xff : 0xc3; /* no byte of any sequence, or the head of none */
            memcpy(noise + 990, "\xe2\x82\xac caf\xc3\xa9", 9); /* these are text */
            put("t.txt", noise, sizeof noise, false);
            want_open(&o, &set);
            assert_int_equal(data_warnings(set, said), want);
            if (want) {
                assert_string_equal(said[0].kind, "not_utf8");
                assert_string_equal(said[0].fields, "bytes=11");
                assert_non_null(strstr(said[0].text, "1.1 %"));
            }
            set = data_free(set);
        }
}

/* ---- the cache itself ---- */

static const uint8_t key[32] = {1, 2, 3};

static void test_cache_appears_whole_and_proves_itself(void **state)
{
    struct data_cache_writer *w = NULL;
    struct data_cache *c = NULL;
    struct pd_why why;
    const char *bytes;
    size_t len = 0;

    (void)state;
    assert_int_equal(data_cache_open(cache_folder, key, &c, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(data_cache_begin(cache_folder, key, 6, 0, &w, &why), PD_OK);
    assert_int_equal(data_cache_write(w, "abc", 3, &why), PD_OK);
    assert_int_equal(data_cache_open(cache_folder, key, &c, &why), PD_ERR_NOT_FOUND); /* not yet */
    assert_int_equal(data_cache_write(w, "def", 3, &why), PD_OK);
    assert_int_equal(data_cache_commit(w, 6, &why), PD_OK);
    assert_int_equal(data_cache_open(cache_folder, key, &c, &why), PD_OK);
    bytes = data_cache_bytes(c, &len);
    assert_int_equal(len, 6);
    assert_memory_equal(bytes, "abcdef", 6);
    /* who comes later finds it made */
    assert_int_equal(data_cache_begin(cache_folder, key, 6, 0, &w, &why), PD_ERR_EXISTS);
    data_cache_close(c);
    /* under another key it is nothing */
    {
        uint8_t other[32] = {9};
        char from[256], to[256];

        snprintf(from, sizeof from,
                 "%s/0102030000000000000000000000000000000000000000000000000000000000.cache", cache_folder);
        snprintf(to, sizeof to, "%s/0900000000000000000000000000000000000000000000000000000000000000.cache",
                 cache_folder);
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(data_cache_open(cache_folder, other, &c, &why), PD_ERR_NOT_FOUND);
        assert_int_equal(access(to, F_OK), -1); /* removed */
    }
    assert_int_equal(data_cache_begin(cache_folder, key, DATA_CACHE_BYTES_MAX + 1, 0, &w, &why), PD_ERR_FULL);
}

/* A file of so many bytes under a key that begins with `first`. */
static enum pd_err cache_file(uint8_t first, size_t bytes, struct pd_why *why)
{
    uint8_t own[32] = {first};
    char *body = calloc(1, bytes);
    struct data_cache_writer *w = NULL;
    enum pd_err err = data_cache_begin(cache_folder, own, bytes, 0, &w, why);

    if (err == PD_OK)
        err = data_cache_write(w, body, bytes, why);
    if (err == PD_OK)
        err = data_cache_commit(w, bytes, why);
    free(body);
    return err;
}

static bool cached(uint8_t first, struct data_cache **ret)
{
    uint8_t own[32] = {first};
    struct data_cache *c = NULL;
    bool is = data_cache_open(cache_folder, own, &c, NULL) == PD_OK;

    if (ret)
        *ret = c;
    else
        data_cache_close(c);
    return is;
}

static void test_the_cache_keeps_to_the_bound_that_its_folder_names(void **state)
{
    struct data_cache *held = NULL;
    struct pd_why why;
    char path[256];

    (void)state;
    snprintf(path, sizeof path, "%s/limit", cache_folder);
    assert_int_equal(pd_file_make_dirs(cache_folder, &why), PD_OK);
    assert_int_equal(pd_file_replace(path, "4000\n", 5, 0600, &why), PD_OK);
    assert_int_equal(data_cache_limit(cache_folder), 4000);
    assert_int_equal(cache_file(0x11, 4001, &why), PD_ERR_FULL);
    assert_int_equal(cache_file(0x11, 1000, &why), PD_OK);
    assert_true(cached(0x11, &held)); /* unused for longest from here on, but in use */
    assert_int_equal(cache_file(0x12, 1000, &why), PD_OK);
    assert_int_equal(cache_file(0x13, 1000, &why), PD_OK);
    assert_int_equal(cache_file(0x14, 1000, &why), PD_OK);
    assert_false(cached(0x12, NULL));
    assert_true(cached(0x11, NULL) && cached(0x13, NULL) && cached(0x14, NULL));
    assert_int_equal(cache_file(0x15, 3500, &why), PD_ERR_FULL); /* what is in use leaves no room */
    data_cache_close(held);
    assert_int_equal(cache_file(0x15, 3500, &why), PD_OK);
    assert_false(cached(0x11, NULL));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(data_cache_limit(cache_folder), DATA_CACHE_BYTES_MAX);
}

static void test_two_writers_do_the_work_once(void **state)
{
    struct data_cache_writer *w = NULL, *late = NULL;
    struct pd_why why;
    int go[2], ready[2], status;
    pid_t child;
    char c;

    (void)state;
    /* The child is made before the lock, which a fork would share. */
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (child == 0) {
        struct data_cache_writer *mine = NULL;

        (void)!read(go[0], &c, 1);
        (void)!write(ready[1], "x", 1);
        _exit(data_cache_begin(cache_folder, key, 3, 20000, &mine, &why) == PD_ERR_EXISTS ? 0 : 1);
    }
    assert_int_equal(data_cache_begin(cache_folder, key, 3, 0, &w, &why), PD_OK);
    assert_int_equal(data_cache_begin(cache_folder, key, 3, 30, &late, &why), PD_ERR_BUSY);
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(data_cache_write(w, "abc", 3, &why), PD_OK);
    assert_int_equal(data_cache_commit(w, 3, &why), PD_OK);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (int i = 0; i < 2; i++) {
        close(go[i]);
        close(ready[i]);
    }
}

static void test_what_dead_writers_left_is_removed(void **state)
{
    struct data_cache_writer *w = NULL, *other = NULL;
    const uint8_t second[32] = {7};
    char dead[128], pattern[128];
    struct pd_why why;
    glob_t found;

    (void)state;
    put("kept/feed.tmp-1-0", "half", 4, false);
    snprintf(dead, sizeof dead, "%s/feed.tmp-1-0", cache_folder);
    assert_int_equal(data_cache_begin(cache_folder, key, 3, 0, &w, &why), PD_OK);
    assert_int_equal(access(dead, F_OK), -1);
    assert_int_equal(data_cache_begin(cache_folder, second, 3, 0, &other, &why), PD_OK);
    snprintf(pattern, sizeof pattern, "%s/*.tmp-*", cache_folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 2); /* the living keep theirs */
    globfree(&found);
    data_cache_abandon(w);
    data_cache_abandon(other);
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_each_tokenizer_cuts_once),
        T(test_no_character_is_torn),
        T(test_no_character_of_a_shortened_file_is_torn),
        T(test_counts_stay_within_the_file_of_their_part),
        T(test_folder_of_parts),
        T(test_a_text_that_is_left_is_the_test_part),
        T(test_each_part_of_a_folder_is_its_own_file),
        T(test_tokenizer_files_are_wanted_and_stay_inside),
        T(test_damaged_tokens_are_cut_anew),
        T(test_gzipped_text_gives_the_tokens_of_the_plain_one),
        T(test_gzipped_parts_stand_in_for_plain_ones),
        T(test_damaged_gzip_is_refused_and_a_bomb_bounded),
        T(test_what_is_no_text_is_said),
        T(test_cache_appears_whole_and_proves_itself),
        T(test_the_cache_keeps_to_the_bound_that_its_folder_names),
        T(test_two_writers_do_the_work_once),
        T(test_what_dead_writers_left_is_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
