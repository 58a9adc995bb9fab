/* Continuous batching: streams that come, rest and leave give, bit by bit, what each gives alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/serve/serve.h"
#include "tests/lib/worst.h"
#include "tests/serve/checkpoint.h"

#define MANY 24
#define TOKENS_MAX 200

enum { SOFTMAX, CUBIC, LINEAR, SQUARE, ENDLESS, MODELS };
static char dir[64], path[MODELS][96];
static struct pd_why why;

/* All that a completion released. */
struct said {
    size_t count;
    int32_t id[TOKENS_MAX];
    float logprob[TOKENS_MAX];
    enum serve_finish finish;
};

struct plan {
    int32_t prompt[90];
    size_t len;
    struct serve_sampling p;
    int arrives, leaves; /* rounds; leaves 0 = stays to its end */
};

static bool bf16; /* how models are opened */
static enum serve_memory_kind memory_kind;

static struct serve *open_model(int which, uint32_t streams)
{
    struct serve_options o = {.checkpoint = path[which],
                              .threads = 2,
                              .streams_max = streams,
                              .bf16_weights = bf16,
                              .memory = memory_kind};
    struct serve *s = NULL;

    if (serve_open(&o, &s, &why) != PD_OK)
        fail_msg("serve_open: %s", why.text);
    return s;
}

static void keep(struct said *to, const struct serve_piece *piece)
{
    for (size_t i = 0; i < piece->count; i++) {
        assert_true(to->count < TOKENS_MAX);
        to->id[to->count] = piece->tokens[i].id;
        to->logprob[to->count++] = piece->tokens[i].scored ? piece->tokens[i].logprob : 0;
    }
    to->finish = piece->finish;
}

static uint32_t draw(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 16;
}

static void make_plans(struct plan *plan, uint32_t seed)
{
    for (int i = 0; i < MANY; i++) {
        struct plan *p = &plan[i];

        serve_sampling_default(&p->p);
        p->len = 1 + draw(&seed) % 90;
        for (size_t k = 0; k < p->len; k++)
            p->prompt[k] = (int32_t)(draw(&seed) % 256);
        p->p.max_tokens = 1 + (int32_t)(draw(&seed) % 60);
        p->p.seed = draw(&seed);
        p->p.temperature = draw(&seed) % 4 ? 1 : 0;
        p->p.top_p = draw(&seed) % 3 ? 1 : 0.7;
        p->p.logprobs = 2;
        p->p.echo = draw(&seed) % 3 == 0;
        p->p.frequency_penalty = draw(&seed) % 2;
        p->arrives = (int)(draw(&seed) % 60);
        p->leaves = draw(&seed) % 4 ? 0 : p->arrives + 1 + (int)(draw(&seed) % 20);
    }
}

static struct serve_stream *begin(struct serve *s, const struct plan *p)
{
    struct serve_stream *t = NULL;

    if (serve_stream_open(s, p->prompt, p->len, &p->p, &t, &why) != PD_OK)
        fail_msg("%s", why.text);
    return t;
}

static void run(int which, uint32_t streams, uint32_t seed, uint32_t least_batch)
{
    static struct plan plan[MANY];
    static struct said alone[MANY], together[MANY];
    struct serve_stream *open[MANY] = {NULL};
    struct serve *s = open_model(which, streams);
    struct serve_memory before, after;
    uint32_t most = 0;
    int left = MANY, waiting[MANY], in = 0;

    make_plans(plan, seed);
    serve_memory(s, &before);
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    for (int i = 0; i < MANY; i++) {
        struct serve_stream *t = begin(s, &plan[i]);

        while (alone[i].finish == SERVE_FINISH_NONE) {
            struct serve_piece piece;

            assert_int_equal(serve_stream_step(t, &piece, &why), PD_OK);
            keep(&alone[i], &piece);
        }
        serve_stream_close(t);
        waiting[i] = 1;
    }
    for (int round = 0; left; round++) {
        struct serve_turn turn[MANY];
        int who[MANY];
        size_t n = 0;

        for (int i = 0; i < MANY; i++) {
            if (waiting[i] && round >= plan[i].arrives && in < (int)streams) {
                waiting[i] = 0;
                open[i] = begin(s, &plan[i]);
                in++;
            }
            if (open[i] && plan[i].leaves && round >= plan[i].leaves) {
                open[i] = serve_stream_close(open[i]);
                in--;
                left--;
            }
            /* Not everybody takes part in every round. */
            if (open[i] && (round + i) % 5) {
                who[n] = i;
                turn[n++].stream = open[i];
            }
        }
        serve_turns(s, turn, n);
        for (size_t k = 0; k < n; k++) {
            int i = who[k];

            assert_int_equal(turn[k].err, PD_OK);
            keep(&together[i], &turn[k].piece);
            most = turn[k].batch > most ? turn[k].batch : most;
            if (turn[k].piece.finish != SERVE_FINISH_NONE) {
                open[i] = serve_stream_close(open[i]);
                in--;
                left--;
            }
        }
    }
    assert_true(most >= least_batch);
    for (int i = 0; i < MANY; i++) {
        if (!plan[i].leaves) {
            assert_int_equal(together[i].count, alone[i].count);
            assert_int_equal(together[i].finish, alone[i].finish);
        }
        assert_true(together[i].count <= alone[i].count);
        assert_memory_equal(together[i].id, alone[i].id, together[i].count * sizeof(int32_t));
        assert_memory_equal(together[i].logprob, alone[i].logprob, together[i].count * sizeof(float));
    }
    serve_memory(s, &after);
    assert_int_equal(after.cache_bytes, before.cache_bytes);
    assert_int_equal(after.cache_bytes, 0);
    serve_close(s);
}

static void test_batch_gives_each_what_it_gives_alone_softmax(void **state)
{
    (void)state;
    run(0, 16, 1, 8);
    run(0, 3, 2, 3);
    run(0, 24, 3, 8);
}

static void test_batch_gives_each_what_it_gives_alone_cubic(void **state)
{
    (void)state;
    run(1, 16, 4, 8);
    run(1, 6, 5, 5);
    run(1, 19, 6, 8);
}

static void test_batch_gives_each_what_it_gives_alone_bf16(void **state)
{
    (void)state;
    bf16 = true;
    run(0, 16, 7, 8);
    run(1, 24, 8, 8);
    bf16 = false;
}

/* Scores of a text by weights of bf16 are near those by f32, and not the same; the matrices take half. */
static void test_bf16_weights_are_near(void **state)
{
    static struct said said[2];
    struct plan p = {.prompt = {0}, .len = 60};
    struct serve_memory memory[2];
    double most = 0;

    (void)state;
    memset(said, 0, sizeof said);
    serve_sampling_default(&p.p);
    p.p.max_tokens = 0;
    p.p.echo = true;
    p.p.logprobs = 0;
    for (int i = 0; i < 60; i++)
        p.prompt[i] = 32 + i * 37 % 90;
    for (int i = 0; i < 2; i++) {
        struct serve_stream *t;
        struct serve *s;

        bf16 = i;
        s = open_model(0, 1);
        t = begin(s, &p);
        while (said[i].finish == SERVE_FINISH_NONE) {
            struct serve_piece piece;

            assert_int_equal(serve_stream_step(t, &piece, &why), PD_OK);
            keep(&said[i], &piece);
        }
        serve_memory(s, &memory[i]);
        serve_close(s);
    }
    bf16 = false;
    assert_int_equal(said[0].count, 60);
    assert_int_equal(said[1].count, 60);
    for (int i = 0; i < 60; i++) {
        most = worse(most, fabs((double)said[0].logprob[i] - (double)said[1].logprob[i]));
    }
    assert_true(most > 0 && most < 0.1);
    assert_true((double)memory[1].weights_bytes < 0.6 * (double)memory[0].weights_bytes);
}

/* One long prompt after the other: those that decode lose one chunk a round, not the whole prompt. */
static void test_a_long_prompt_does_not_stop_the_others(void **state)
{
    struct serve *s = open_model(0, 4);
    struct plan talker = {.prompt = {'a'}, .len = 1}, reader = {.len = 90};
    struct serve_turn turn[4];
    int rounds = 0, spoke = 0;

    (void)state;
    serve_sampling_default(&talker.p);
    talker.p.max_tokens = 30;
    reader.p = talker.p;
    turn[0].stream = begin(s, &talker);
    for (int i = 1; i < 4; i++)
        turn[i].stream = begin(s, &reader);
    for (bool all = false; !all; rounds++) {
        serve_turns(s, turn, 4);
        spoke += turn[0].piece.count > 0;
        all = turn[3].piece.count > 0;
        assert_true(rounds < 20);
    }
    assert_true(rounds >= 3); /* one reader a round */
    assert_int_equal(spoke, rounds);
    for (int i = 0; i < 4; i++)
        serve_stream_close(turn[i].stream);
    serve_close(s);
}

/* What leaves a hole lets the last come nearer, so that a small graph does again; its text goes on. */
static void test_streams_move_together_when_others_leave(void **state)
{
    static struct said alone, last;
    struct serve *s = open_model(0, 16);
    struct plan p = {.prompt = {'x', 'y', 'z'}, .len = 3};
    struct serve_turn turn[16], one;
    struct serve_piece piece;

    (void)state;
    memset(&alone, 0, sizeof alone);
    memset(&last, 0, sizeof last);
    serve_sampling_default(&p.p);
    p.p.max_tokens = 40;
    p.p.logprobs = 0;
    one.stream = begin(s, &p);
    while (alone.finish == SERVE_FINISH_NONE) {
        assert_int_equal(serve_stream_step(one.stream, &piece, &why), PD_OK);
        keep(&alone, &piece);
    }
    serve_stream_close(one.stream);
    for (int i = 0; i < 16; i++)
        turn[i].stream = begin(s, &p);
    for (int round = 0; round < 22; round++) {
        serve_turns(s, turn, 16);
        keep(&last, &turn[15].piece);
    }
    assert_int_equal(turn[15].batch, 16);
    for (int i = 0; i < 15; i++)
        serve_stream_close(turn[i].stream);
    one.stream = turn[15].stream;
    while (last.finish == SERVE_FINISH_NONE) {
        serve_turns(s, &one, 1);
        assert_int_equal(one.err, PD_OK);
        assert_int_equal(one.batch, 1);
        keep(&last, &one.piece);
    }
    assert_int_equal(last.count, alone.count);
    assert_memory_equal(last.id, alone.id, alone.count * sizeof(int32_t));
    assert_memory_equal(last.logprob, alone.logprob, alone.count * sizeof(float));
    serve_close(s);
}

static void test_batch_gives_each_what_it_gives_alone_states(void **state)
{
    (void)state;
    run(LINEAR, 16, 7, 8);
    run(SQUARE, 6, 8, 5);
    run(ENDLESS, 3, 9, 3);
}

/* A completion with its log-probabilities; returns the bytes of its stream. */
static size_t said_of(int which, enum serve_memory_kind kind, const struct plan *p, struct said *ret)
{
    struct serve_stream *t;
    struct serve_memory m;
    struct serve *s;

    memory_kind = kind;
    s = open_model(which, 2);
    memory_kind = SERVE_MEMORY_AUTO;
    assert_int_equal(serve_info(s)->state, kind == SERVE_MEMORY_STATE);
    memset(ret, 0, sizeof *ret);
    t = begin(s, p);
    while (ret->finish == SERVE_FINISH_NONE) {
        struct serve_piece piece;

        assert_int_equal(serve_stream_step(t, &piece, &why), PD_OK);
        keep(ret, &piece);
        serve_memory(s, &m);
        assert_int_equal(m.cache_bytes, serve_info(s)->stream_bytes);
    }
    serve_stream_close(t);
    serve_close(s);
    return m.cache_bytes;
}

/* State and cache are two ways to the same numbers, also beyond the context, where both begin anew. */
static void test_a_state_says_what_a_cache_says(void **state)
{
    static struct said cache, constant;

    (void)state;
    for (int which = LINEAR; which <= SQUARE; which++) {
        struct plan p = {.len = 80};
        double most = 0;
        float *logits;

        serve_sampling_default(&p.p);
        for (size_t i = 0; i < p.len; i++)
            p.prompt[i] = (int32_t)(i * 7 % 256);
        p.p.temperature = 0;
        p.p.max_tokens = 60;
        p.p.logprobs = 0;
        p.p.echo = true;
        said_of(which, SERVE_MEMORY_CACHE, &p, &cache);
        said_of(which, SERVE_MEMORY_STATE, &p, &constant);
        assert_int_equal(constant.count, 140);
        assert_memory_equal(constant.id, cache.id, 140 * sizeof(int32_t));
        for (size_t i = 1; i < 140; i++)
            most = worse(most, fabs((double)constant.logprob[i] - (double)cache.logprob[i]));
        assert_true(most < 2e-3);
        assert_true(most > 0); /* they are not the same program */
        /* And both what the evaluation graph says of the prompt, which they scored by two chunks. */
        logits = test_eval_logits(path[which], p.prompt, 1, 80);
        for (size_t i = 1; i < 80; i++) {
            const float *row = logits + (i - 1) * 256;
            double top = (double)row[0], sum = 0;

            for (int k = 1; k < 256; k++)
                top = fmax(top, (double)row[k]);
            for (int k = 0; k < 256; k++)
                sum += exp((double)row[k] - top);
            assert_true(fabs((double)row[p.prompt[i]] - top - log(sum) - (double)cache.logprob[i]) < 2e-3);
        }
        free(logits);
    }
}

/* Without positions nothing ends a state: a prompt of any length, and the same memory for each. */
static void test_a_state_without_positions_has_no_end(void **state)
{
    struct serve *s = open_model(ENDLESS, 2), *cache;
    int32_t *prompt = calloc(5000, sizeof *prompt);
    struct serve_stream *t = NULL;
    struct serve_sampling p;
    struct serve_memory m;
    struct serve_piece piece = {0};
    size_t bytes = serve_info(s)->stream_bytes;

    (void)state;
    serve_sampling_default(&p);
    p.max_tokens = 300;
    assert_true(serve_info(s)->state);
    assert_int_equal(serve_stream_open(s, prompt, 5000, &p, &t, &why), PD_OK);
    while (piece.finish == SERVE_FINISH_NONE) {
        assert_int_equal(serve_stream_step(t, &piece, &why), PD_OK);
        serve_memory(s, &m);
        assert_int_equal(m.cache_bytes, bytes);
    }
    serve_stream_close(t);
    serve_close(s);
    memory_kind = SERVE_MEMORY_CACHE;
    cache = open_model(ENDLESS, 2);
    memory_kind = SERVE_MEMORY_AUTO;
    assert_int_equal(serve_stream_open(cache, prompt, 5000, &p, &t, &why), PD_ERR_LIMIT);
    serve_close(cache);
    free(prompt);
}

static void test_a_state_is_refused_where_there_is_none(void **state)
{
    struct serve_options o = {.checkpoint = path[CUBIC], .threads = 1, .memory = SERVE_MEMORY_STATE};
    struct serve *s = NULL;

    (void)state;
    assert_int_equal(serve_open(&o, &s, &why), PD_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.text, "serve.decode"));
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/polyd-batch-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    for (int i = 0; i < MODELS; i++) {
        struct model_spec spec = test_gpt_spec(i == SOFTMAX ? PK_PHI_SOFTMAX : PK_PHI_POLY);

        spec.attention.degree = i == LINEAR || i == ENDLESS ? 1 : i == SQUARE ? 2 : 3;
        spec.pos = i != ENDLESS;
        spec.context = 100; /* neither a multiple of a chunk nor of a cache line */
        snprintf(path[i], sizeof path[i], "%s/%d.safetensors", dir, i);
        test_checkpoint_write(path[i], &spec, 5);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++)
        unlink(path[i]);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_gives_each_what_it_gives_alone_softmax),
        cmocka_unit_test(test_batch_gives_each_what_it_gives_alone_cubic),
        cmocka_unit_test(test_batch_gives_each_what_it_gives_alone_states),
        cmocka_unit_test(test_a_state_says_what_a_cache_says),
        cmocka_unit_test(test_a_state_without_positions_has_no_end),
        cmocka_unit_test(test_a_state_is_refused_where_there_is_none),
        cmocka_unit_test(test_batch_gives_each_what_it_gives_alone_bf16),
        cmocka_unit_test(test_bf16_weights_are_near),
        cmocka_unit_test(test_a_long_prompt_does_not_stop_the_others),
        cmocka_unit_test(test_streams_move_together_when_others_leave),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
