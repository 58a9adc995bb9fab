/* The text that polyd makes: its entropy from the table and from the text itself, and its parts. */
#include "tests/data/box.h"

#include <math.h>

#include "daemon/job/job.h"
#include "daemon/worker/data/sentences.h"

static struct data_options options(enum data_split_rule rule)
{
    return (struct data_options){.dataset = DATA_SET_TEXT_GEN,
                                 .rule = rule,
                                 .train_share = 0.001,
                                 .val_share = 0.0005,
                                 .train_count = 3000,
                                 .val_count = 700,
                                 .context = 16,
                                 .seed = 5};
}

/* Entropy of a sentence, and its mean length. */
struct facts {
    double nats, bytes;
};

/* By the states' visits of one sentence, summed word by word until hardly one sentence is left that goes on. */
static struct facts facts_of_table(void)
{
    double visits[DATA_SENTENCE_STATES] = {1}, left = 1;
    struct facts ret = {0, 0};

    while (left > 1e-15) {
        double next[DATA_SENTENCE_STATES] = {0};

        left = 0;
        for (int s = 0; s < DATA_SENTENCE_STATES; s++) {
            int count;
            const struct data_choice *c = data_sentence_choices(s, &count);

            for (int i = 0; i < count; i++) {
                double p = c[i].weight / 256.0;

                ret.nats -= visits[s] * p * log(p);
                if (!c[i].word)
                    continue;
                ret.bytes += visits[s] * p * (double)(strlen(c[i].word) + 1);
                next[c[i].next] += visits[s] * p;
                left += visits[s] * p;
            }
        }
        memcpy(visits, next, sizeof visits);
    }
    return ret;
}

static void test_sentence_choices_of_a_state_differ_and_fill_a_byte(void **state)
{
    (void)state;
    for (int s = 0; s < DATA_SENTENCE_STATES; s++) {
        int count, sum = 0;
        const struct data_choice *c = data_sentence_choices(s, &count);

        for (int i = 0; i < count; i++) {
            sum += c[i].weight;
            assert_in_range(c[i].next, 0, DATA_SENTENCE_STATES - 1);
            assert_true(c[i].weight > 0);
            for (int k = 0; k < i; k++)
                assert_true(!c[i].word != !c[k].word || strcmp(c[i].word, c[k].word) != 0);
        }
        assert_int_equal(sum, DATA_CHOICE_WHOLE);
    }
}

static void test_sentence_entropy_is_the_table_s(void **state)
{
    struct facts f = facts_of_table();

    (void)state;
    assert_float_equal(job_dataset_info(JOB_DATASET_TEXT_GEN)->entropy, f.nats / f.bytes, 1e-9);
}

/* What the text costs under the table: each word is looked up among those that its state may write. */
static double cost_of(const uint8_t *text, size_t len, size_t *ret_sentences)
{
    double nats = 0;
    int s = 0;

    *ret_sentences = 0;
    for (size_t at = 0; at < len;) {
        const char *word = (const char *)text + at;
        size_t n = 0;
        int count, i;
        const struct data_choice *c = data_sentence_choices(s, &count);

        while (word[n] != ' ' && word[n] != '\n')
            n++;
        for (i = 0; i < count && !(c[i].word && strlen(c[i].word) == n && !memcmp(c[i].word, word, n)); i++)
            ;
        if (i == count)
            fail_msg("byte %zu: '%.*s' is no word of state %d", at, (int)n, word, s);
        nats -= log(c[i].weight / 256.0);
        s = c[i].next;
        at += n + 1;
        if (word[n] == '\n') {
            c = data_sentence_choices(s, &count);
            for (i = 0; i < count && c[i].word; i++)
                ;
            if (i == count)
                fail_msg("byte %zu: no sentence ends in state %d", at, s);
            nats -= log(c[i].weight / 256.0);
            s = c[i].next;
            assert_int_equal(s, 0);
            ++*ret_sentences;
        }
    }
    return nats;
}

static void test_sentence_text_costs_its_entropy(void **state)
{
    enum { LEN = 8000000 };
    uint8_t *text = malloc(LEN);
    struct facts f = facts_of_table();
    size_t len = LEN, sentences;
    double nats;

    (void)state;
    assert_non_null(text);
    data_sentences_write(11, 0, text, LEN);
    /* Behind the last whole sentence stands what is left of the next. */
    while (text[len - 1] == '\n')
        len--;
    while (text[len - 1] != '\n')
        len--;
    nats = cost_of(text, len, &sentences);
    /* 160,000 sentences: five standard deviations are a part in 200 of either mean. */
    assert_float_equal((double)len / (double)sentences, f.bytes, f.bytes / 200);
    assert_float_equal(nats / (double)sentences, f.nats, f.nats / 200);
    assert_float_equal(nats / (double)len, f.nats / f.bytes, 0.001);
    free(text);
}

static void test_sentence_text_is_a_function_of_seed_and_number(void **state)
{
    static const char want[] =
        "the old small old red small red red dogs leave the dogs and like our dog and follow the dog today\n"
        "the dogs see the stone and see our children\n"
        "the kings under the stones near the old dog leave the dog and find the small old child and find the "
        "dogs today\n";
    uint8_t text[400], rest[400], more[400];
    size_t first = 0;

    (void)state;
    data_sentences_write(0, 0, text, sizeof text);
    assert_memory_equal(text, want, sizeof want - 1);
    while (text[first++] != '\n')
        ;
    data_sentences_write(0, 1, rest, sizeof rest);
    assert_memory_equal(text + first, rest, 200);
    data_sentences_write(1, 0, more, sizeof more);
    assert_memory_not_equal(text, more, 200);
    data_sentences_write((uint64_t)1 << 32, 0, more, sizeof more);
    assert_memory_not_equal(text, more, 200);
    data_sentences_write(0, (uint64_t)1 << 32, more, sizeof more);
    assert_memory_not_equal(text, more, 200);
}

/* A text of any length is the beginning of a longer one, up to the word that no longer fits. */
static void test_sentence_words_are_never_torn(void **state)
{
    uint8_t whole[300], text[301];

    (void)state;
    data_sentences_write(3, 0, whole, sizeof whole);
    for (size_t len = 0; len <= 200; len++) {
        size_t same = 0, end = len;

        text[len] = '!';
        data_sentences_write(3, 0, text, len);
        assert_int_equal(text[len], '!');
        while (same < len && text[same] == whole[same])
            same++;
        for (size_t i = same; i < len; i++)
            assert_int_equal(text[i], '\n');
        while (end > 0 && text[end - 1] == '\n')
            end--;
        if (end) /* behind a blank, or behind a whole sentence */
            assert_true(text[end - 1] == ' ' || (end < len && whole[end] == '\n'));
        assert_true(len - same < sizeof "children");
    }
}

static void want_sizes(const struct data_options *o, int64_t train, int64_t val)
{
    struct data_set *set = NULL, *headers = NULL;
    struct pd_why why = {""};

    want_open(o, &set);
    assert_int_equal(data_info(set)->tokens[0], train);
    assert_int_equal(data_info(set)->tokens[1], val);
    assert_int_equal(data_open(o, true, &headers, &why), PD_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(data_info(headers)->tokens[i], data_info(set)->tokens[i]);
        assert_int_equal(data_info(headers)->count[i], data_info(set)->count[i]);
        assert_null(headers->part[i].ids);
    }
    assert_null(headers->text);
    data_free(headers);
    data_free(set);
}

static void test_generated_text_has_the_bytes_asked_for(void **state)
{
    struct data_options o = options(DATA_SPLIT_GIVEN);

    (void)state;
    want_sizes(&o, 1000000, 100000);
    o.rule = DATA_SPLIT_COUNT;
    want_sizes(&o, 3000, 700);
    o.rule = DATA_SPLIT_FRACTION;
    want_sizes(&o, 1100, 550);
    o.scored = DATA_SCORED_TEST;
    want_sizes(&o, 1100, 550);
    o.scored = DATA_SCORED_TRAIN;
    want_sizes(&o, 1100, 1100);
}

/* Each part is a stream of its own: none begins as another does, and what is trained on does not change with what is
 * scored. */
static void test_generated_parts_are_streams_of_their_own(void **state)
{
    struct data_options o = options(DATA_SPLIT_COUNT);
    uint8_t want[3][700];

    (void)state;
    for (uint64_t part = 0; part < 3; part++)
        data_sentences_write(o.seed, part << 32, want[part], 700);
    for (int scored = DATA_SCORED_VAL; scored <= DATA_SCORED_TRAIN; scored++) {
        static const int stands[] = {[DATA_SCORED_VAL] = 1, [DATA_SCORED_TEST] = 2, [DATA_SCORED_TRAIN] = 0};
        struct data_set *set = NULL;

        o.scored = (enum data_scored)scored;
        want_open(&o, &set);
        assert_int_equal(set->part[0].width, 1);
        /* The word at the end of the shorter part gives way. */
        assert_memory_equal(set->part[0].ids, want[0], 680);
        assert_memory_equal(set->part[1].ids, want[stands[scored]], 680);
        data_free(set);
    }
}

static void test_generated_text_under_each_tokenizer(void **state)
{
    static const int32_t vocab[] = {
        [DATA_TOKENIZER_BYTES] = 256, [DATA_TOKENIZER_CHARS] = 0, [DATA_TOKENIZER_WORDS] = 44};
    struct data_options o = options(DATA_SPLIT_GIVEN);
    char seen[256] = {0};
    int characters = 2; /* blank and line end */

    (void)state;
    for (int s = 0; s < DATA_SENTENCE_STATES; s++) {
        int count;
        const struct data_choice *c = data_sentence_choices(s, &count);

        for (int i = 0; i < count; i++)
            for (const char *p = c[i].word; p && *p; p++)
                seen[(int)*p] = 1;
    }
    for (int i = 0; i < 256; i++)
        characters += seen[i];
    for (int kind = DATA_TOKENIZER_BYTES; kind <= DATA_TOKENIZER_WORDS; kind++) {
        struct data_warning warnings[DATA_WARNINGS_MAX];
        struct data_set *set = NULL, *again = NULL;
        struct data_work work;

        o.tokenizer = (enum data_tokenizer_kind)kind;
        o.cache_dir = cache_folder;
        want_open(&o, &set);
        assert_int_equal(data_info(set)->vocab, vocab[kind] ? vocab[kind] : characters);
        assert_int_equal(data_warnings(set, warnings), 0);
        want_open(&o, &again); /* from the cache */
        data_work(again, &work);
        assert_int_equal(work.cache_hits, kind == DATA_TOKENIZER_BYTES ? 0 : 2);
        want_same(set, 1, again, 2, DATA_TRAIN, 3);
        data_free(again);
        data_free(set);
    }
    o.tokenizer = DATA_TOKENIZER_GPT2_BPE;
    o.tokenizer_path = "box/bpe";
    o.roots = &box_root;
    o.root_count = 1;
    want_refused(&o, PD_ERR_NOT_FOUND, "#/data/tokenizer_path");
}

static void test_generated_text_out_of_bounds_is_refused_by_pointer(void **state)
{
    struct data_options o = options(DATA_SPLIT_COUNT);
    struct data_set *set = NULL;
    struct pd_why why = {""};

    (void)state;
    o.train_count = ((int64_t)64 << 20) - o.val_count;
    assert_int_equal(data_open(&o, true, &set, &why), PD_OK);
    assert_int_equal(data_info(set)->tokens[0], o.train_count);
    data_free(set);
    o.train_count++;
    want_refused(&o, PD_ERR_LIMIT, "#/data/split: at most 67108864 bytes");
    o.train_count = 16;
    want_refused(&o, PD_ERR_INVALID,
                 "#/data/split: the training part of 'text_gen' is shorter than data.context + 1");
    o.train_count = 0;
    want_refused(&o, PD_ERR_INVALID, "#/data/split");
    o.rule = DATA_SPLIT_FRACTION;
    o.val_share = 1;
    want_refused(&o, PD_ERR_INVALID, "#/data/split");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentence_choices_of_a_state_differ_and_fill_a_byte),
        cmocka_unit_test(test_sentence_entropy_is_the_table_s),
        cmocka_unit_test(test_sentence_text_costs_its_entropy),
        cmocka_unit_test(test_sentence_text_is_a_function_of_seed_and_number),
        cmocka_unit_test(test_sentence_words_are_never_torn),
        cmocka_unit_test_setup_teardown(test_generated_text_has_the_bytes_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generated_parts_are_streams_of_their_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generated_text_under_each_tokenizer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generated_text_out_of_bounds_is_refused_by_pointer, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
