/* Tokens of many bytes: texts, stop strings that begin inside one, the end of a text, padding of the
 * vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/tokenizer.h"
#include "daemon/worker/serve/serve.h"
#include "tests/serve/checkpoint.h"

static char path[64];
static struct pd_why why;

/* A model of this tokenizer, its vocabulary padded by 7. Takes `t` over. */
static struct serve *open_model(struct data_tokenizer *t)
{
    struct model_spec spec = test_gpt_spec(PK_PHI_SOFTMAX);
    struct serve_options o = {.checkpoint = path, .threads = 1, .streams_max = 2};
    struct serve *s = NULL;
    struct pd_buf saved;

    pd_buf_init(&saved, 0);
    assert_int_equal(data_tokenizer_save(t, &saved, &why), PD_OK);
    spec.vocab = data_tokenizer_vocab(t) + 7;
    test_checkpoint_write_full(path, &spec, 3, &saved, NULL);
    pd_buf_done(&saved);
    data_tokenizer_free(t);
    if (serve_open(&o, &s, &why) != PD_OK)
        fail_msg("serve_open: %s", why.text);
    return s;
}

static struct data_tokenizer *words(void)
{
    static const char text[] = "one two three four five\nsix seven eight nine ten eleven twelve\n";
    struct data_tokenizer *t = NULL;

    assert_int_equal(data_tokenizer_words_new(text, sizeof text - 1, 0, &t, &why), PD_OK);
    return t;
}

struct said {
    char text[8192];
    size_t len, tokens;
    enum serve_finish finish;
};

/* Runs a completion to its end; every token's bytes stand where it says. */
static void complete(struct serve *s, const char *prompt, const struct serve_sampling *p, struct said *ret)
{
    struct serve_stream *t = NULL;
    struct pd_buf ids;

    memset(ret, 0, sizeof *ret);
    pd_buf_init(&ids, 0);
    assert_int_equal(serve_tokenize(s, prompt, strlen(prompt), &ids, &why), PD_OK);
    if (serve_stream_open(s, (const int32_t *)(const void *)ids.data, ids.len / 4, p, &t, &why) != PD_OK)
        fail_msg("%s", why.text);
    pd_buf_done(&ids);
    while (ret->finish == SERVE_FINISH_NONE) {
        struct serve_piece piece;

        assert_int_equal(serve_stream_step(t, &piece, &why), PD_OK);
        for (size_t i = 0; i < piece.count; i++) {
            const struct serve_token *k = &piece.tokens[i];
            size_t whole;
            const char *text = serve_token_text(s, k->id, &whole);

            assert_true(k->id < serve_info(s)->outputs);
            assert_true(k->len <= whole && k->offset + k->len <= piece.len);
            assert_memory_equal(piece.text + k->offset, text, k->len);
        }
        memcpy(ret->text + ret->len, piece.text, piece.len);
        ret->len += piece.len;
        ret->tokens += piece.count;
        ret->finish = piece.finish;
    }
    serve_stream_close(t);
}

static void test_words_are_said_whole_and_padding_never(void **state)
{
    struct serve *s = open_model(words());
    struct serve_sampling p;
    static struct said said;

    (void)state;
    serve_sampling_default(&p);
    p.max_tokens = 200;
    p.temperature = 2;
    p.echo = true;
    complete(s, "one two ", &p, &said);
    assert_int_equal(said.tokens, 202);
    assert_int_equal(said.finish, SERVE_FINISH_LENGTH);
    assert_memory_equal(said.text, "one two ", 8);
    serve_close(s);
}

/* A stop string that begins in the middle of a token cuts that token; what could have become one is said. */
static void test_a_stop_string_inside_a_token(void **state)
{
    struct serve *s = open_model(words());
    struct serve_sampling p;
    static struct said all, cut;
    char *at;

    (void)state;
    serve_sampling_default(&p);
    p.max_tokens = 100;
    p.temperature = 2;
    complete(s, "one ", &p, &all);
    at = strstr(all.text, "ve ");
    assert_non_null(at); /* five, twelve */
    p.stops = 2;
    p.stop[0].bytes = "ve ";
    p.stop[0].len = 3;
    p.stop[1].bytes = "ve never";
    p.stop[1].len = 8;
    complete(s, "one ", &p, &cut);
    assert_int_equal(cut.finish, SERVE_FINISH_STOP);
    assert_int_equal(cut.len, (size_t)(at - all.text));
    assert_memory_equal(cut.text, all.text, cut.len);
    p.stops = 1;
    p.stop[0].bytes = "ve never";
    p.stop[0].len = 8;
    complete(s, "one ", &p, &cut);
    assert_int_equal(cut.finish, SERVE_FINISH_LENGTH);
    assert_int_equal(cut.len, all.len);
    assert_memory_equal(cut.text, all.text, all.len);
    serve_close(s);
}

static void test_a_character_that_is_not_in_the_vocabulary_is_refused(void **state)
{
    struct data_tokenizer *t = NULL;
    struct pd_buf ids;
    struct serve *s;
    size_t len;

    (void)state;
    assert_int_equal(data_tokenizer_chars_new("ab\xc3\xbc", 4, &t, &why), PD_OK);
    s = open_model(t);
    pd_buf_init(&ids, 0);
    assert_int_equal(serve_tokenize(s, "a\xc3\xbc", 3, &ids, &why), PD_OK);
    assert_int_equal(ids.len, 8);
    assert_int_equal(serve_tokenize(s, "xyz", 3, &ids, &why), PD_ERR_INVALID);
    assert_string_equal(serve_token_text(s, 9999, &len), "");
    assert_int_equal(len, 0);
    pd_buf_done(&ids);
    serve_close(s);
}

static void test_gpt2_ends_at_the_end_of_a_text(void **state)
{
    const char *shared = getenv("POLYD_SHARED");
    struct data_tokenizer *t = NULL;
    struct serve_sampling p;
    struct serve_bias bias;
    static struct said said;
    struct serve *s;
    char folder[512];
    int end;

    (void)state;
    snprintf(folder, sizeof folder, "%s/data/gpt2-bpe", shared ? shared : "");
    if (!shared || access(folder, R_OK) != 0) {
        skip();
        return;
    }
    assert_int_equal(data_tokenizer_bpe_open(&(struct data_root){"bpe", folder}, 1, "bpe", &t, &why), PD_OK);
    end = data_tokenizer_end(t);
    assert_int_equal(end, 50256);
    s = open_model(t);
    serve_sampling_default(&p);
    p.max_tokens = 5;
    bias = (struct serve_bias){.token = end, .bias = -100};
    p.bias = &bias;
    p.biases = 1;
    complete(s, "Hello world, this is", &p, &said);
    assert_int_equal(said.finish, SERVE_FINISH_LENGTH);
    assert_int_equal(said.tokens, 5);
    bias.bias = 100; /* now it can be nothing else */
    complete(s, "Hello world, this is", &p, &said);
    assert_int_equal(said.finish, SERVE_FINISH_STOP);
    assert_int_equal(said.len, 0);
    assert_int_equal(said.tokens, 0);
    serve_close(s);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/polyd-tokens-%d.safetensors", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_are_said_whole_and_padding_never),
        cmocka_unit_test(test_a_stop_string_inside_a_token),
        cmocka_unit_test(test_a_character_that_is_not_in_the_vocabulary_is_refused),
        cmocka_unit_test(test_gpt2_ends_at_the_end_of_a_text),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
