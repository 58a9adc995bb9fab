/* A served model answers what the evaluation graph answers, and gives all its memory back. */
#include <math.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/serve/serve.h"
#include "kernels/base/file.h"
#include "tests/serve/checkpoint.h"

#define PIXELS (2 * 12 * 12)

static char dir[64], vit_path[96], even_path[96], gpt_path[96], poly_path[96], landmark_path[96];
static struct pd_why why;

static struct serve *open_model(const char *path, uint32_t streams)
{
    struct serve_options o = {.checkpoint = path, .threads = 2, .batch_max = 8, .streams_max = streams};
    struct serve *s = NULL;

    if (serve_open(&o, &s, &why) != PD_OK)
        fail_msg("serve_open: %s", why.text);
    return s;
}

/* ---- classifier ---- */

static void fill_pixels(uint8_t *bytes, size_t n)
{
    uint32_t x = 12345;

    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
}

/* Serving and evaluation of the same batch size give the same bits. */
static void test_classify_equals_the_evaluation_graph(void **state)
{
    static const int counts[] = {1, 2, 4, 8};
    uint8_t bytes[8 * PIXELS];
    float input[8 * PIXELS], logits[8 * 10], probabilities[8 * 10];
    int64_t classes[8];
    struct serve *s = open_model(vit_path, 1);

    (void)state;
    fill_pixels(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        input[i] = i / (PIXELS / 2) % 2 ? ((float)bytes[i] / 255.0f - 0.75f) / 0.125f
                                        : ((float)bytes[i] / 255.0f - 0.25f) / 0.5f;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int n = counts[c];
        struct serve_samples part = {.data = bytes, .bytes = true, .count = n};
        struct serve_scores scores = {logits, probabilities, classes};
        float *want = test_eval_logits(vit_path, input, n, 0);

        assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
        assert_memory_equal(logits, want, (size_t)n * 10 * sizeof(float));
        for (int r = 0; r < n; r++) {
            double sum = 0;
            int best = 0;

            for (int k = 0; k < 10; k++) {
                sum += (double)probabilities[r * 10 + k];
                best = want[r * 10 + k] > want[r * 10 + best] ? k : best;
            }
            assert_true(fabs(sum - 1) < 1e-5);
            assert_int_equal(classes[r], best);
        }
        free(want);
    }
    serve_close(s);
}

/* Many requests of one and of many images, beyond the largest batch: the same answers in the same order. */
static void test_classify_parts_and_remainders(void **state)
{
    uint8_t bytes[19 * PIXELS];
    float floats[19 * PIXELS], once[19 * 10], parts_logits[19 * 10];
    struct serve_samples parts[3] = {{.data = bytes, .bytes = true, .count = 1},
                                     {.data = floats + PIXELS, .count = 17},
                                     {.data = bytes + 18 * PIXELS, .bytes = true, .count = 1}};
    struct serve_scores scores = {.logits = parts_logits};
    struct serve *s = open_model(vit_path, 1);

    (void)state;
    fill_pixels(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        floats[i] = (float)bytes[i] / 255.0f;
    for (int i = 0; i < 19; i++) {
        struct serve_samples one = {.data = bytes + i * PIXELS, .bytes = true, .count = 1};
        struct serve_scores row = {.logits = once + i * 10};

        assert_int_equal(serve_classify(s, &one, 1, &row, &why), PD_OK);
    }
    assert_int_equal(serve_classify(s, parts, 3, &scores, &why), PD_OK);
    for (int i = 0; i < 190; i++)
        assert_true(fabsf(once[i] - parts_logits[i]) <= 1e-4f * (1 + fabsf(once[i])));
    /* Scale matters: a picture that differs gives other logits (the test would notice constant outputs). */
    assert_true(fabsf(once[0] - once[10]) > 1e-4f);
    serve_close(s);
}

static void test_classify_takes_the_first_of_equal_classes(void **state)
{
    uint8_t bytes[PIXELS];
    float logits[10], probabilities[10];
    int64_t class = -1;
    struct serve_samples part = {.data = bytes, .bytes = true, .count = 1};
    struct serve_scores scores = {logits, probabilities, &class};
    struct serve *s = open_model(even_path, 1);

    (void)state;
    fill_pixels(bytes, sizeof bytes);
    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
    assert_int_equal(class, 0);
    for (int k = 0; k < 10; k++)
        assert_true(logits[k] == 0 && fabsf(probabilities[k] - 0.1f) < 1e-6f);
    serve_close(s);
}

static void test_classify_refuses_a_pixel_that_is_no_number(void **state)
{
    float input[PIXELS] = {0};
    struct serve_samples part = {.data = input, .count = 1};
    struct serve_scores scores = {0};
    struct serve *s = open_model(vit_path, 1);

    (void)state;
    input[PIXELS - 1] = INFINITY;
    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_ERR_INVALID);
    input[PIXELS - 1] = NAN;
    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_ERR_INVALID);
    input[PIXELS - 1] = 1.4f;
    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
    input[PIXELS - 1] = 2;
    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_ERR_INVALID);
    serve_close(s);
}

#define TEXTS 5
#define TEXT_INTS 17 /* the length, then the ids */

static void score_texts(struct serve *s, const int32_t *texts, int64_t count, float *ret)
{
    struct serve_samples part = {.data = texts, .count = count};
    struct serve_scores scores = {.logits = ret};

    assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
}

/* A pseudo-inverse that starts from a value of the batch: neither texts of other requests nor the rows that fill up a batch
 * may change an answer. */
static void test_classify_of_a_start_over_the_batch_sees_its_own_request_only(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        const bool pairs = c / 2;
        struct model_spec spec = c % 2 ? test_landmark_spec(PK_PHI_SOFTMAX, MODEL_PINV_GLOBAL_COLSUM, pairs)
                                       : test_landmark_spec(PK_PHI_POLY, MODEL_PINV_GLOBAL_ABS, pairs);
        struct serve_options exact = {.checkpoint = landmark_path, .threads = 2, .batch_max = 3};
        int32_t texts[TEXTS * TEXT_INTS] = {0};
        float alone[TEXTS * 3], together[TEXTS * 3];
        uint8_t ids[TEXTS * (TEXT_INTS - 1)];
        struct serve_samples parts[3] = {
            {.data = texts, .count = 1},
            {.data = texts + TEXT_INTS, .count = 3},
            {.data = texts + 4 * TEXT_INTS, .count = 1},
        };
        struct serve_scores scores = {.logits = together};
        struct serve *s, *tight = NULL;

        test_checkpoint_write(landmark_path, &spec, 3);
        s = open_model(landmark_path, 1);
        assert_int_equal(serve_open(&exact, &tight, &why), PD_OK);
        assert_int_equal(serve_text_ints(s), TEXT_INTS);
        fill_pixels(ids, sizeof ids);
        for (int i = 0; i < TEXTS; i++) {
            /* those of the middle request are short: a text of padding has larger sums than they */
            const int length = i > 0 && i < 4 && !pairs ? 1 : TEXT_INTS - 1;

            texts[i * TEXT_INTS] = length;
            for (int k = 0; k < length; k++)
                texts[i * TEXT_INTS + 1 + k] = ids[i * (TEXT_INTS - 1) + k] | 1;
        }
        score_texts(tight, texts, 1, alone); /* batches of 1, 3 and 1 rows: no padding */
        score_texts(tight, texts + TEXT_INTS, 3, alone + 3);
        score_texts(tight, texts + 4 * TEXT_INTS, 1, alone + 4 * 3);
        assert_int_equal(serve_classify(s, parts, 3, &scores, &why), PD_OK); /* 3 texts in a batch of 4 */
        for (int i = 0; i < TEXTS * 3; i++)
            if (!(fabsf(alone[i] - together[i]) <= 1e-5f * (1 + fabsf(alone[i]))))
                fail_msg("case %d, text %d, class %d: %g alone, %g with others", c, i / 3, i % 3,
                         (double)alone[i], (double)together[i]);
        serve_close(tight);
        serve_close(s);
    }
}

static void test_kinds_do_not_mix(void **state)
{
    struct serve *vit = open_model(vit_path, 1), *gpt = open_model(gpt_path, 1);
    struct serve_samples part = {0};
    struct serve_scores scores = {0};
    struct serve_sampling p;
    struct serve_stream *t = NULL;
    struct pd_buf out;

    (void)state;
    pd_buf_init(&out, 0);
    serve_sampling_default(&p);
    assert_int_equal(serve_classify(gpt, &part, 0, &scores, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(serve_stream_open(vit, NULL, 0, &p, &t, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(serve_tokenize(vit, "a", 1, &out, &why), PD_ERR_UNSUPPORTED);
    assert_ptr_equal(serve_info(vit)->kind, &serve_kind_classify);
    assert_ptr_equal(serve_info(gpt)->kind, &serve_kind_language);
    assert_int_equal(serve_info(gpt)->step, 7);
    serve_close(vit);
    serve_close(gpt);
}

/* ---- language model ---- */

/* A whole completion, collected. */
struct text {
    char bytes[4096];
    size_t len;
    struct serve_token tokens[2048];
    size_t count;
    enum serve_finish finish;
    size_t steps;
};

static void add(struct text *x, const struct serve_piece *piece)
{
    for (size_t i = 0; i < piece->count; i++) {
        x->tokens[x->count] = piece->tokens[i];
        x->tokens[x->count++].offset += (uint32_t)x->len;
    }
    memcpy(x->bytes + x->len, piece->text, piece->len);
    x->len += piece->len;
    x->finish = piece->finish;
    x->steps++;
}

static struct serve_stream *start(struct serve *s, const char *prompt, const struct serve_sampling *p)
{
    struct serve_stream *t = NULL;
    struct pd_buf ids;

    pd_buf_init(&ids, 0);
    assert_int_equal(serve_tokenize(s, prompt, strlen(prompt), &ids, &why), PD_OK);
    if (serve_stream_open(s, (const int32_t *)(const void *)ids.data, ids.len / 4, p, &t, &why) != PD_OK)
        fail_msg("serve_stream_open: %s", why.text);
    pd_buf_done(&ids);
    return t;
}

static void complete(struct serve *s, const char *prompt, const struct serve_sampling *p, struct text *x)
{
    struct serve_stream *t = start(s, prompt, p);
    struct serve_piece piece;

    memset(x, 0, sizeof *x);
    while (x->finish == SERVE_FINISH_NONE) {
        if (serve_stream_step(t, &piece, &why) != PD_OK)
            fail_msg("serve_stream_step: %s", why.text);
        add(x, &piece);
    }
    assert_int_equal(serve_stream_step(t, &piece, &why), PD_ERR_CONFLICT);
    serve_stream_close(t);
}

static struct serve_sampling greedy(int32_t max_tokens)
{
    struct serve_sampling p;

    serve_sampling_default(&p);
    p.temperature = 0;
    p.max_tokens = max_tokens;
    return p;
}

static int32_t argmax(const float *row)
{
    int32_t best = 0;

    for (int32_t i = 1; i < 256; i++)
        best = row[i] > row[best] ? i : best;
    return best;
}

/* The cached path against the whole sequence at once, token by token and log-probability by log-probability.
 */
static void check_decode(const char *path)
{
    static const char prompt[] =
        "First Citizen:\nBefore we"; /* 24 bytes: a padded chunk of 64 does not fit */
    static struct text x;
    struct serve *s = open_model(path, 2);
    struct serve_sampling p = greedy(9);
    int32_t sequence[33];
    size_t n = strlen(prompt);
    float *logits;

    p.echo = true;
    p.logprobs = 2;
    complete(s, prompt, &p, &x);
    assert_int_equal(x.count, n + 9);
    assert_int_equal(x.finish, SERVE_FINISH_LENGTH);
    assert_memory_equal(x.bytes, prompt, n);
    for (size_t i = 0; i < x.count; i++)
        sequence[i] = x.tokens[i].id;
    logits = test_eval_logits(path, sequence, 1, 32);
    for (size_t i = 0; i < x.count; i++) {
        const struct serve_token *k = &x.tokens[i];
        const float *row = logits + (i - 1) * 256;
        double sum = 0, want;

        assert_int_equal(k->prompt, i < n);
        assert_int_equal(k->scored, i > 0);
        assert_int_equal((unsigned char)x.bytes[k->offset], k->id);
        if (i == 0)
            continue;
        for (int c = 0; c < 256; c++)
            sum += exp((double)row[c] - (double)row[argmax(row)]);
        want = (double)row[k->id] - (double)row[argmax(row)] - log(sum);
        assert_true(fabs((double)k->logprob - want) < 2e-4 * (1 + fabs(want)));
        assert_int_equal(k->tops, 2);
        assert_int_equal(k->top[0].id, argmax(row));
        assert_true(k->top[0].logprob >= k->top[1].logprob);
        if (i >= n)
            assert_int_equal(k->id, argmax(row));
    }
    free(logits);
    /* The prompt read in one chunk gives the same continuation. */
    p.echo = false;
    p.logprobs = -1;
    {
        static struct text y;

        complete(s, prompt, &p, &y);
        assert_int_equal(y.len, 9);
        assert_memory_equal(y.bytes, x.bytes + n, 9);
    }
    serve_close(s);
}

static void test_decode_with_cache_equals_the_full_forward_softmax(void **state)
{
    (void)state;
    check_decode(gpt_path);
}

static void test_decode_with_cache_equals_the_full_forward_cubic(void **state)
{
    (void)state;
    check_decode(poly_path);
}

static void test_decode_goes_on_beyond_the_context(void **state)
{
    static struct text x, y;
    struct serve *s = open_model(gpt_path, 1);
    struct serve_sampling p = greedy(100);
    int32_t tail[32];
    float *logits;

    (void)state;
    complete(s, "abc", &p, &x);
    assert_int_equal(x.len, 100);
    complete(s, "abc", &p, &y);
    assert_memory_equal(x.bytes, y.bytes, 100);
    /* 3 + 29 fill the context; the next token is made from the last 16 of the then 33 tokens (base 17). */
    memset(tail, 0, sizeof tail);
    for (int i = 0; i < 16; i++)
        tail[i] = (unsigned char)x.bytes[17 - 3 + i];
    logits = test_eval_logits(gpt_path, tail, 1, 32);
    assert_int_equal((unsigned char)x.bytes[30], argmax(logits + 15 * 256));
    free(logits);
    serve_close(s);
}

static void test_sampling_is_deterministic_by_seed(void **state)
{
    static struct text x, y, z;
    struct serve *s = open_model(gpt_path, 1);
    struct serve_sampling p;

    (void)state;
    serve_sampling_default(&p);
    p.max_tokens = 40;
    p.seed = 11;
    complete(s, "seed", &p, &x);
    complete(s, "seed", &p, &y);
    p.seed = 12;
    complete(s, "seed", &p, &z);
    assert_int_equal(x.len, 40);
    assert_memory_equal(x.bytes, y.bytes, 40);
    assert_memory_not_equal(x.bytes, z.bytes, 40);
    /* Nearly no temperature, or nearly no mass, is greedy. */
    p = greedy(20);
    complete(s, "seed", &p, &x);
    p.temperature = 1e-6;
    complete(s, "seed", &p, &y);
    assert_memory_equal(x.bytes, y.bytes, 20);
    p.temperature = 2;
    p.top_p = 0;
    complete(s, "seed", &p, &y);
    assert_memory_equal(x.bytes, y.bytes, 20);
    serve_close(s);
}

/* Streams interleaved in any way give the bytes they give alone, and one that leaves disturbs nobody. */
static void test_streams_do_not_see_each_other(void **state)
{
    static struct text alone[4], mixed[4];
    static const char *const prompts[] = {"one", "two two", "", "a prompt that is rather longer"};
    struct serve *s = open_model(gpt_path, 5);
    struct serve_stream *t[4], *leaver;
    struct serve_sampling p;
    struct serve_piece piece;
    int open = 4;

    (void)state;
    serve_sampling_default(&p);
    p.max_tokens = 50;
    for (int i = 0; i < 4; i++) {
        p.seed = (uint64_t)i;
        complete(s, prompts[i], &p, &alone[i]);
    }
    memset(mixed, 0, sizeof mixed);
    leaver = start(s, "leaver", &p);
    for (int i = 0; i < 4; i++) {
        p.seed = (uint64_t)i;
        t[i] = start(s, prompts[i], &p);
    }
    for (int round = 0; open; round++) {
        if (round < 7)
            assert_int_equal(serve_stream_step(leaver, &piece, &why), PD_OK);
        if (round == 7)
            leaver = serve_stream_close(leaver);
        for (int i = 0; i < 4; i++) {
            for (int k = 0; t[i] && k <= i; k++) { /* uneven on purpose */
                assert_int_equal(serve_stream_step(t[i], &piece, &why), PD_OK);
                add(&mixed[i], &piece);
                if (mixed[i].finish != SERVE_FINISH_NONE) {
                    t[i] = serve_stream_close(t[i]);
                    open--;
                }
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(mixed[i].len, 50);
        assert_memory_equal(mixed[i].bytes, alone[i].bytes, 50);
    }
    serve_close(s);
}

static void test_stop_strings_end_the_text(void **state)
{
    static struct text all, cut;
    struct serve *s = open_model(gpt_path, 1);
    struct serve_sampling p = greedy(30);
    size_t at;

    (void)state;
    p.temperature = 1;
    p.seed = 5;
    complete(s, "stop", &p, &all);
    assert_int_equal(all.finish, SERVE_FINISH_LENGTH);
    /* Three bytes that came one after the other, across three tokens. */
    p.stops = 1;
    p.stop[0].bytes = all.bytes + 10;
    p.stop[0].len = 3;
    complete(s, "stop", &p, &cut);
    for (at = 0; memcmp(all.bytes + at, all.bytes + 10, 3) != 0; at++)
        ;
    assert_int_equal(cut.finish, SERVE_FINISH_STOP);
    assert_int_equal(cut.len, at);
    assert_memory_equal(cut.bytes, all.bytes, at);
    assert_int_equal(cut.count, at);
    /* One that never comes changes nothing, though its first byte does come and is held back a while. */
    p.stops = 2;
    p.stop[1].bytes = (char[]){all.bytes[29], (char)(all.bytes[0] + 1), 0};
    p.stop[1].len = 3;
    p.stop[0] = p.stop[1];
    complete(s, "stop", &p, &cut);
    assert_int_equal(cut.finish, SERVE_FINISH_LENGTH);
    assert_int_equal(cut.len, 30);
    assert_memory_equal(cut.bytes, all.bytes, 30);
    /* A stop string in the prompt does not count. */
    p.stops = 1;
    p.stop[0].bytes = "stop";
    p.stop[0].len = 4;
    p.echo = true;
    complete(s, "stop", &p, &cut);
    assert_int_equal(cut.len, 34);
    assert_memory_equal(cut.bytes, "stop", 4);
    assert_memory_equal(cut.bytes + 4, all.bytes, 30);
    serve_close(s);
}

static void test_bias_and_penalties_change_the_choice(void **state)
{
    static struct text x;
    struct serve *s = open_model(gpt_path, 1);
    struct serve_sampling p = greedy(20);
    struct serve_bias bias[] = {{.token = 'Q', .bias = 100}};
    bool seen[256] = {false};

    (void)state;
    p.bias = bias;
    p.biases = 1;
    complete(s, "x", &p, &x);
    for (size_t i = 0; i < x.len; i++)
        assert_int_equal(x.bytes[i], 'Q');
    /* The log-probability stays the model's own. */
    p.logprobs = 0;
    complete(s, "x", &p, &x);
    assert_true(x.tokens[0].scored && x.tokens[0].logprob < -0.01f && x.tokens[0].tops == 0);
    /* Greedy text of a random model soon repeats; the strongest penalties drive it on. */
    p = greedy(20);
    p.presence_penalty = 2;
    p.frequency_penalty = 2;
    complete(s, "x", &p, &x);
    size_t different = 0;
    for (size_t i = 0; i < x.len; i++) {
        different += !seen[(unsigned char)x.bytes[i]];
        seen[(unsigned char)x.bytes[i]] = true;
    }
    memset(seen, 0, sizeof seen);
    p.presence_penalty = p.frequency_penalty = 0;
    complete(s, "x", &p, &x);
    size_t plain = 0;
    for (size_t i = 0; i < x.len; i++) {
        plain += !seen[(unsigned char)x.bytes[i]];
        seen[(unsigned char)x.bytes[i]] = true;
    }
    assert_true(different >= plain);
    serve_close(s);
}

static void test_echo_without_generation(void **state)
{
    static struct text x;
    struct serve *s = open_model(gpt_path, 1);
    struct serve_sampling p = greedy(0);

    (void)state;
    p.echo = true;
    complete(s, "only the prompt", &p, &x);
    assert_int_equal(x.len, 15);
    assert_int_equal(x.steps, 1);
    p.logprobs = 5;
    complete(s, "only the prompt", &p, &x);
    assert_int_equal(x.len, 15);
    assert_int_equal(x.count, 15);
    assert_false(x.tokens[0].scored);
    for (int i = 1; i < 15; i++)
        assert_true(x.tokens[i].scored && x.tokens[i].tops == 5);
    complete(s, "o", &p, &x);
    assert_int_equal(x.len, 1);
    serve_close(s);
}

static void test_stream_open_refuses(void **state)
{
    struct serve *s = open_model(gpt_path, 2);
    struct serve_sampling p = greedy(4);
    struct serve_stream *a = start(s, "a", &p), *b = start(s, "b", &p), *c = NULL;
    int32_t ids[33] = {0};

    (void)state;
    assert_int_equal(serve_stream_open(s, ids, 1, &p, &c, &why), PD_ERR_BUSY);
    a = serve_stream_close(a);
    assert_int_equal(serve_stream_open(s, ids, 33, &p, &c, &why), PD_ERR_LIMIT);
    assert_non_null(strstr(why.text, "33"));
    ids[1] = 256;
    assert_int_equal(serve_stream_open(s, ids, 2, &p, &c, &why), PD_ERR_INVALID);
    ids[1] = -1;
    assert_int_equal(serve_stream_open(s, ids, 2, &p, &c, &why), PD_ERR_INVALID);
    p.top_p = 2;
    assert_int_equal(serve_stream_open(s, ids, 1, &p, &c, &why), PD_ERR_INVALID);
    p.top_p = 1;
    ids[1] = 0;
    assert_int_equal(serve_stream_open(s, ids, 32, &p, &c, &why), PD_OK);
    (void)b; /* open streams are closed with the model */
    serve_close(s);
}

/* ---- opening and closing ---- */

static void test_open_refuses_a_damaged_checkpoint(void **state)
{
    struct serve_options o = {.checkpoint = NULL, .threads = 1};
    struct serve *s = NULL;
    struct pd_buf file;
    char bad[96], hex[DIGEST_SHA256_HEX_SIZE], other[DIGEST_SHA256_HEX_SIZE];

    (void)state;
    snprintf(bad, sizeof bad, "%s/bad.safetensors", dir);
    pd_buf_init(&file, 0);
    assert_int_equal(pd_file_read(gpt_path, SIZE_MAX, &file, &why), PD_OK);
    digest_sha256_hex(file.data, file.len, hex);
    o.checkpoint = gpt_path;
    o.digest = hex;
    assert_int_equal(serve_open(&o, &s, &why), PD_OK);
    s = serve_close(s);
    /* One bit of one weight: only the digest can know. */
    file.data[file.len - 100] ^= 1;
    assert_int_equal(pd_file_replace(bad, file.data, file.len, 0600, &why), PD_OK);
    o.checkpoint = bad;
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_CORRUPT);
    assert_non_null(strstr(why.text, hex));
    o.digest = digest_sha256_hex(file.data, file.len, other);
    assert_int_equal(serve_open(&o, &s, &why), PD_OK);
    s = serve_close(s);
    /* The file carries a digest of itself, for when nobody knows better. */
    o.digest = NULL;
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_CORRUPT);
    /* Cut short, header spoilt, no file. */
    assert_int_equal(pd_file_replace(bad, file.data, file.len - 1, 0600, &why), PD_OK);
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_CORRUPT);
    file.data[9] = '?';
    assert_int_equal(pd_file_replace(bad, file.data, file.len, 0600, &why), PD_OK);
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_CORRUPT);
    assert_int_equal(pd_file_replace(bad, "", 0, 0600, &why), PD_OK);
    assert_int_not_equal(serve_open(&o, &s, &why), PD_OK);
    unlink(bad);
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_NOT_FOUND);
    o.checkpoint = gpt_path;
    o.threads = 0;
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_INVALID);
    assert_null(s);
    pd_buf_done(&file);
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &pages, &resident), 2);
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void one_life(int i)
{
    static struct text x;
    struct serve_options bad = {.checkpoint = vit_path, .threads = 2, .digest = "00"};
    struct serve *s = open_model(i % 2 ? gpt_path : vit_path, 4), *none = NULL;
    struct serve_sampling p = greedy(3);
    uint8_t bytes[3 * PIXELS] = {0};
    struct serve_samples part = {.data = bytes, .bytes = true, .count = 3};
    struct serve_scores scores = {0};
    struct serve_memory m;

    if (i % 2) {
        complete(s, "life", &p, &x);
        start(s, "left open", &p);
        serve_memory(s, &m);
        assert_true(m.cache_bytes >= 2 * 2 * 32 * 32 * sizeof(float));
    } else {
        assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
        serve_memory(s, &m);
        assert_int_equal(m.cache_bytes, 0);
    }
    assert_true(m.weights_bytes > 0 && m.arena_bytes > 0 && m.inputs_bytes > 0);
    serve_close(s);
    assert_int_equal(serve_open(&bad, &none, &why), PD_ERR_CORRUPT); /* a failing load leaks nothing either */
}

/* A budget that does not hold the model refuses it with the numbers, at whatever size it runs out. */
static void test_open_refuses_what_does_not_fit(void **state)
{
    const char *const paths[] = {vit_path, gpt_path};

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct serve_options o = {.checkpoint = paths[i], .threads = 1};
        struct serve *s = NULL;
        struct serve_memory m;

        assert_int_equal(serve_open(&o, &s, &why), PD_OK);
        serve_memory(s, &m);
        s = serve_close(s);
        assert_true(m.most_bytes >= m.weights_bytes + m.arena_bytes);
        o.memory_max = m.most_bytes;
        assert_int_equal(serve_open(&o, &s, &why), PD_OK);
        s = serve_close(s);
        for (uint64_t most = 1; most < m.most_bytes; most = most * 3 / 2 + 1) {
            o.memory_max = most;
            assert_int_equal(serve_open(&o, &s, &why), PD_ERR_LIMIT);
            assert_null(s);
            assert_non_null(strstr(why.text, "serve.memory_bytes"));
        }
        o.memory_max = m.most_bytes - 1;
        assert_int_equal(serve_open(&o, &s, &why), PD_ERR_LIMIT);
    }
}

static void test_fifty_lives_leave_nothing_behind(void **state)
{
    const char *lives = getenv("POLYD_SERVE_LIVES"); /* 1000 for the long form */
    size_t before, after, heap_before, heap_after;

    (void)state;
    for (int i = 0; i < 10; i++)
        one_life(i);
    malloc_trim(0);
    before = resident_bytes();
    heap_before = mallinfo2().uordblks;
    for (int i = 0; i < (lives ? atoi(lives) : 50); i++)
        one_life(i);
    malloc_trim(0);
    heap_after = mallinfo2().uordblks;
    after = resident_bytes();
    print_message("heap %zu -> %zu, resident %zu -> %zu KiB\n", heap_before, heap_after, before >> 10,
                  after >> 10);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(heap_after <= heap_before + (64u << 10));
    assert_true(after <= before + (512u << 10));
#endif
}

static int setup(void **state)
{
    struct model_spec spec;

    (void)state;
    snprintf(dir, sizeof dir, "/tmp/polyd-serve-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(vit_path, sizeof vit_path, "%s/vit.safetensors", dir);
    snprintf(even_path, sizeof even_path, "%s/even.safetensors", dir);
    snprintf(gpt_path, sizeof gpt_path, "%s/gpt.safetensors", dir);
    snprintf(poly_path, sizeof poly_path, "%s/poly.safetensors", dir);
    snprintf(landmark_path, sizeof landmark_path, "%s/landmarks.safetensors", dir);
    spec = test_vit_spec(PK_PHI_POLY);
    test_checkpoint_write(vit_path, &spec, 1);
    test_checkpoint_write(even_path, &spec, 0);
    spec = test_gpt_spec(PK_PHI_SOFTMAX);
    test_checkpoint_write(gpt_path, &spec, 2);
    spec = test_gpt_spec(PK_PHI_POLY);
    test_checkpoint_write(poly_path, &spec, 3);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(vit_path);
    unlink(even_path);
    unlink(gpt_path);
    unlink(poly_path);
    unlink(landmark_path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify_equals_the_evaluation_graph),
        cmocka_unit_test(test_classify_parts_and_remainders),
        cmocka_unit_test(test_classify_takes_the_first_of_equal_classes),
        cmocka_unit_test(test_classify_refuses_a_pixel_that_is_no_number),
        cmocka_unit_test(test_classify_of_a_start_over_the_batch_sees_its_own_request_only),
        cmocka_unit_test(test_kinds_do_not_mix),
        cmocka_unit_test(test_decode_with_cache_equals_the_full_forward_softmax),
        cmocka_unit_test(test_decode_with_cache_equals_the_full_forward_cubic),
        cmocka_unit_test(test_decode_goes_on_beyond_the_context),
        cmocka_unit_test(test_sampling_is_deterministic_by_seed),
        cmocka_unit_test(test_streams_do_not_see_each_other),
        cmocka_unit_test(test_stop_strings_end_the_text),
        cmocka_unit_test(test_bias_and_penalties_change_the_choice),
        cmocka_unit_test(test_echo_without_generation),
        cmocka_unit_test(test_stream_open_refuses),
        cmocka_unit_test(test_open_refuses_a_damaged_checkpoint),
        cmocka_unit_test(test_open_refuses_what_does_not_fit),
        cmocka_unit_test(test_fifty_lives_leave_nothing_behind),
    };

    return cmocka_run_group_tests_name("serve", tests, setup, teardown);
}
