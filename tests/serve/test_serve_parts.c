/* The parts of daemon/worker/serve that need no model: queue, parameters, sampling, stop strings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/serve/params.h"
#include "daemon/worker/serve/queue.h"
#include "daemon/worker/serve/sample.h"
#include "daemon/worker/serve/stop.h"

/* ---- queue ---- */

static int items[8];

static void test_queue_is_first_in_first_out(void **state)
{
    struct serve_queue *q = NULL;

    (void)state;
    assert_int_equal(serve_queue_new(3, 0, &q), PD_OK);
    assert_null(serve_queue_pop(q));
    assert_null(serve_queue_peek(q));
    for (int i = 0; i < 3; i++)
        assert_int_equal(serve_queue_push(q, &items[i], 1, 0), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[3], 1, 0), PD_ERR_BUSY);
    assert_ptr_equal(serve_queue_peek(q), &items[0]);
    assert_ptr_equal(serve_queue_pop(q), &items[0]);
    assert_int_equal(serve_queue_push(q, &items[3], 1, 0), PD_OK);
    for (int i = 1; i < 4; i++)
        assert_ptr_equal(serve_queue_pop(q), &items[i]);
    assert_int_equal(serve_queue_count(q), 0);
    assert_int_equal(serve_queue_cost(q), 0);
    serve_queue_free(q);
}

static void test_queue_bounds_the_cost(void **state)
{
    struct serve_queue *q = NULL;

    (void)state;
    assert_int_equal(serve_queue_new(8, 100, &q), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[0], 60, 0), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[1], 41, 0), PD_ERR_BUSY);
    assert_int_equal(serve_queue_push(q, &items[1], 40, 0), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[2], UINT64_MAX, 0), PD_ERR_BUSY);
    serve_queue_pop(q);
    serve_queue_pop(q);
    /* One that is larger than the bound is better served alone than never. */
    assert_int_equal(serve_queue_push(q, &items[2], 1000, 0), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[3], 1, 0), PD_ERR_BUSY);
    serve_queue_pop(q);
    serve_queue_free(q);
}

static bool is_item(void *user, void *item)
{
    return item == user;
}

static void test_queue_drops_the_late_and_the_gone(void **state)
{
    struct serve_queue *q = NULL;
    bool late = false;

    (void)state;
    assert_int_equal(serve_queue_new(8, 0, &q), PD_OK);
    assert_int_equal(serve_queue_next_deadline(q), 0);
    assert_int_equal(serve_queue_push(q, &items[0], 1, 0), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[1], 2, 500), PD_OK);
    assert_int_equal(serve_queue_push(q, &items[2], 3, 300), PD_OK);
    assert_int_equal(serve_queue_next_deadline(q), 300);
    assert_null(serve_queue_drop(q, 299, NULL, NULL, &late));
    assert_ptr_equal(serve_queue_drop(q, 300, NULL, NULL, &late), &items[2]);
    assert_true(late);
    assert_ptr_equal(serve_queue_drop(q, 300, is_item, &items[0], &late), &items[0]);
    assert_false(late);
    assert_int_equal(serve_queue_cost(q), 2);
    assert_ptr_equal(serve_queue_pop(q), &items[1]);
    serve_queue_free(q);
}

/* ---- sampling ---- */

static int32_t draw(struct serve_sampler *s, const float *logits, double temperature, double top_p,
                    uint64_t seed, uint64_t index)
{
    struct serve_pick pick = {.temperature = temperature, .top_p = top_p, .seed = seed, .index = index};

    return serve_sample(s, logits, &pick);
}

static void test_sample_at_temperature_zero_is_the_first_largest(void **state)
{
    static const float logits[] = {0.5f, 2.0f, -1.0f, 2.0f};
    struct serve_sampler s;

    (void)state;
    assert_int_equal(serve_sampler_init(&s, 4), PD_OK);
    for (uint64_t i = 0; i < 50; i++)
        assert_int_equal(draw(&s, logits, 0, 1, i, i), 1);
    serve_sampler_done(&s);
}

static void test_sample_follows_the_probabilities(void **state)
{
    /* probabilities 0.1, 0.2, 0.3, 0.4 */
    const float logits[] = {logf(0.1f), logf(0.2f), logf(0.3f), logf(0.4f)};
    int seen[4] = {0};
    const int n = 40000;
    struct serve_sampler s;

    (void)state;
    assert_int_equal(serve_sampler_init(&s, 4), PD_OK);
    for (int i = 0; i < n; i++)
        seen[draw(&s, logits, 1, 1, 7, (uint64_t)i)]++;
    for (int k = 0; k < 4; k++) {
        double p = 0.1 * (k + 1), sd = sqrt(p * (1 - p) / n);

        assert_true(fabs((double)seen[k] / n - p) < 5 * sd);
    }
    /* A low temperature sharpens: p^(1/t), so at t = 1/2 the squares 1, 4, 9, 16 of 30. */
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < n; i++)
        seen[draw(&s, logits, 0.5, 1, 8, (uint64_t)i)]++;
    assert_true(fabs((double)seen[3] / n - 16.0 / 30) < 0.0125);
    assert_true(fabs((double)seen[0] / n - 1.0 / 30) < 0.0045);
    serve_sampler_done(&s);
}

static void test_sample_is_a_function_of_seed_and_index(void **state)
{
    float logits[256];
    struct serve_sampler s;
    int same = 0;

    (void)state;
    for (int i = 0; i < 256; i++)
        logits[i] = (float)((i * 37) % 101) / 50.0f;
    assert_int_equal(serve_sampler_init(&s, 256), PD_OK);
    for (uint64_t i = 0; i < 200; i++) {
        int32_t a = draw(&s, logits, 1, 0.9, 42, i);

        assert_int_equal(a, draw(&s, logits, 1, 0.9, 42, i));
        same += a == draw(&s, logits, 1, 0.9, 43, i);
    }
    assert_true(same < 20); /* another seed, another text */
    serve_sampler_done(&s);
}

static void test_sample_top_p_keeps_the_fewest_that_reach_it(void **state)
{
    const float logits[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    const int n = 40000;
    struct serve_sampler s;
    bool seen[4] = {false};
    int first = 0;

    (void)state;
    assert_int_equal(serve_sampler_init(&s, 4), PD_OK);
    for (uint64_t i = 0; i < 500; i++)
        seen[draw(&s, logits, 1, 0.65, 3, i)] = true; /* 0.4 + 0.3 >= 0.65 */
    assert_true(seen[1] && seen[3]);
    assert_false(seen[0] || seen[2]);
    for (int i = 0; i < n; i++)
        first += draw(&s, logits, 1, 0.65, 4, (uint64_t)i) == 1;
    assert_true(fabs((double)first / n - 4.0 / 7) < 0.0125); /* what is left shares all of the probability */
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(&s, logits, 1, 0.0, 3, i), 1); /* the likeliest always counts */
        assert_int_equal(draw(&s, logits, 2, 1e-9, 3, i), 1);
    }
    /* Just below one: everything whose mass is needed, and never a fault of rounding. */
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < 2000; i++)
        seen[draw(&s, logits, 1, 1 - 1e-16, 3, i)] = true;
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
    serve_sampler_done(&s);
}

static void test_sample_refuses_what_is_no_distribution(void **state)
{
    const float nan[] = {0, NAN, 1}, inf[] = {0, INFINITY, 1}, none[] = {-INFINITY, -INFINITY, -INFINITY},
                one[] = {-INFINITY, 3, -INFINITY};
    struct serve_sampler s;

    (void)state;
    assert_int_equal(serve_sampler_init(&s, 3), PD_OK);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(draw(&s, nan, t, 1, 0, 0), -1);
        assert_int_equal(draw(&s, inf, t, 1, 0, 0), -1);
        assert_int_equal(draw(&s, none, t, 1, 0, 0), -1);
        assert_int_equal(draw(&s, one, t, 0.5, 0, 0), 1);
    }
    serve_sampler_done(&s);
}

static void test_uniform_covers_the_unit_interval(void **state)
{
    double sum = 0, least = 1, most = 0;

    (void)state;
    for (uint64_t i = 0; i < 10000; i++) {
        double u = serve_uniform(1, i);

        assert_true(u >= 0 && u < 1);
        sum += u;
        least = u < least ? u : least;
        most = u > most ? u : most;
    }
    assert_true(fabs(sum / 10000 - 0.5) < 0.015);
    assert_true(least < 0.002 && most > 0.998);
}

static void test_top_is_sorted_and_breaks_ties_by_id(void **state)
{
    static const float logits[] = {1, 5, 3, 5, 4, -2};
    int32_t ids[5];

    (void)state;
    assert_int_equal(serve_top(logits, 6, 5, ids), 5);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 4);
    assert_int_equal(ids[3], 2);
    assert_int_equal(ids[4], 0);
    assert_int_equal(serve_top(logits, 2, 5, ids), 2);
    assert_int_equal(ids[0], 1);
    assert_int_equal(serve_top(logits, 6, 0, ids), 0);
}

static void test_logsumexp_does_not_overflow(void **state)
{
    static const float logits[] = {1000, 1000}, low[] = {-1e30f, -1e30f};

    (void)state;
    assert_true(fabs(serve_logsumexp(logits, 2) - (1000 + log(2))) < 1e-9);
    assert_true(isfinite(serve_logsumexp(low, 2)));
}

/* ---- stop strings ---- */

static struct serve_stops stops_of(const char *a, const char *b)
{
    struct serve_stops s = {0};
    const char *text[] = {a, b};

    for (int i = 0; i < 2 && text[i]; i++) {
        s.len[i] = strlen(text[i]);
        memcpy(s.bytes[i], text[i], s.len[i]);
        s.count++;
    }
    return s;
}

static void test_stops_hold_back_what_may_become_one(void **state)
{
    struct serve_stops s = stops_of("END", NULL);
    size_t keep;

    (void)state;
    assert_false(serve_stops_scan(&s, "abc", 3, &keep));
    assert_int_equal(keep, 3);
    assert_false(serve_stops_scan(&s, "abE", 3, &keep));
    assert_int_equal(keep, 2);
    assert_false(serve_stops_scan(&s, "abEN", 4, &keep));
    assert_int_equal(keep, 2);
    assert_true(serve_stops_scan(&s, "abEND", 5, &keep));
    assert_int_equal(keep, 2);
    assert_false(serve_stops_scan(&s, "abENE", 5, &keep));
    assert_int_equal(keep, 4);
    assert_true(serve_stops_scan(&s, "ENEND", 5, &keep));
    assert_int_equal(keep, 2);
    assert_false(serve_stops_scan(&s, "", 0, &keep));
    assert_int_equal(keep, 0);
}

static void test_stops_repeating_prefix_is_found(void **state)
{
    struct serve_stops s = stops_of("aab", NULL);
    size_t keep;

    (void)state;
    assert_false(serve_stops_scan(&s, "aa", 2, &keep));
    assert_int_equal(keep, 0);
    assert_false(serve_stops_scan(&s, "aaa", 3, &keep));
    assert_int_equal(keep, 1);
    assert_true(serve_stops_scan(&s, "aaab", 4, &keep));
    assert_int_equal(keep, 1);
}

static void test_stops_the_one_complete_first_wins(void **state)
{
    struct serve_stops s = stops_of("abcd", "b");
    size_t keep;

    (void)state;
    assert_false(serve_stops_scan(&s, "xa", 2, &keep));
    assert_int_equal(keep, 1);
    assert_true(serve_stops_scan(&s, "xab", 3, &keep));
    assert_int_equal(keep, 2);
}

static void test_stops_none_releases_all(void **state)
{
    struct serve_stops s = {0};
    size_t keep;

    (void)state;
    assert_false(serve_stops_scan(&s, "anything", 8, &keep));
    assert_int_equal(keep, 8);
}

/* ---- parameters ---- */

static struct serve_params params;
static struct pd_why why;

static enum pd_err complete(const char *json)
{
    why.text[0] = 0;
    return serve_params_complete(json, strlen(json), &params, &why);
}

static void test_params_empty_object_gives_the_defaults(void **state)
{
    (void)state;
    assert_int_equal(complete(" {} "), PD_OK);
    assert_int_equal(params.sampling.max_tokens, 16);
    assert_true(params.sampling.temperature == 1 && params.sampling.top_p == 1);
    assert_int_equal(params.sampling.logprobs, -1);
    assert_false(params.stream || params.sampling.echo);
    assert_int_equal(params.sampling.stops, 0);
}

static void test_params_every_member_is_read(void **state)
{
    (void)state;
    assert_int_equal(
        complete("{\"max_tokens\":200,\"temperature\":0.25,\"top_p\":5e-1,\"presence_penalty\":-1,"
                 "\"frequency_penalty\":1.5,\"seed\":18446744073709551615,\"logprobs\":5,"
                 "\"echo\":true,\"stop\":[\"\\n\\n\",\"\\u00e9\\ud83d\\ude00\"],"
                 "\"logit_bias\":{\"65\":-100,\"0\":2.5},\"stream\":true}"),
        PD_OK);
    assert_int_equal(params.sampling.max_tokens, 200);
    assert_true(params.sampling.temperature == 0.25 && params.sampling.top_p == 0.5);
    assert_true(params.sampling.presence_penalty == -1 && params.sampling.frequency_penalty == 1.5);
    assert_true(params.sampling.seed == UINT64_MAX);
    assert_int_equal(params.sampling.logprobs, 5);
    assert_true(params.sampling.echo && params.stream);
    assert_int_equal(params.sampling.stops, 2);
    assert_int_equal(params.sampling.stop[0].len, 2);
    assert_memory_equal(params.sampling.stop[0].bytes, "\n\n", 2);
    assert_int_equal(params.sampling.stop[1].len, 6);
    assert_memory_equal(params.sampling.stop[1].bytes, "\xc3\xa9\xf0\x9f\x98\x80", 6);
    assert_int_equal(params.sampling.biases, 2);
    assert_int_equal(params.sampling.bias[0].token, 65);
    assert_true(params.sampling.bias[0].bias == -100 && params.sampling.bias[1].bias == 2.5f);
    assert_int_equal(complete("{\"stop\":\"x\",\"logprobs\":null,\"seed\":-1}"), PD_OK);
    assert_int_equal(params.sampling.stops, 1);
    assert_int_equal(params.sampling.logprobs, -1);
    assert_true(params.sampling.seed == UINT64_MAX);
    assert_int_equal(complete("{\"stop\":null,\"logit_bias\":null}"), PD_OK);
    assert_int_equal(complete("{\"stop\":[],\"logit_bias\":{}}"), PD_OK);
    assert_int_equal(params.sampling.stops, 0);
}

static void test_params_wrong_values_are_refused_by_name(void **state)
{
    static const char *const bad[] = {
        "{\"max_tokens\":-1}",
        "{\"max_tokens\":65537}",
        "{\"max_tokens\":1.5}",
        "{\"max_tokens\":\"5\"}",
        "{\"max_tokens\":1e99}",
        "{\"temperature\":2.01}",
        "{\"temperature\":-0.1}",
        "{\"temperature\":null}",
        "{\"temperature\":NaN}",
        "{\"top_p\":1.1}",
        "{\"presence_penalty\":3}",
        "{\"top_k\":-1}",
        "{\"top_k\":1.5}",
        "{\"min_p\":1.01}",
        "{\"repetition_penalty\":0}",
        "{\"frequency_penalty\":-3}",
        "{\"seed\":1.5}",
        "{\"logprobs\":6}",
        "{\"logprobs\":true}",
        "{\"echo\":1}",
        "{\"stop\":\"\"}",
        "{\"stop\":[\"\"]}",
        "{\"stop\":7}",
        "{\"stop\":[\"a\" \"b\"]}",
        "{\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}",
        "{\"stop\":\"\\ud800\"}",
        "{\"stop\":\"\\udc00\"}",
        "{\"stop\":\"\\q\"}",
        "{\"stop\":\"\\u12g4\"}",
        "{\"logit_bias\":{\"a\":1}}",
        "{\"logit_bias\":{\"\":1}}",
        "{\"logit_bias\":{\"1\":101}}",
        "{\"logit_bias\":[]}",
        "{\"logit_bias\":{\"-1\":1}}",
        "{\"stream\":\"yes\"}",
        "{\"echo\":true,\"echo\":true}",
        "{\"n\":2}",
        "{\"max_tokens\":01}",
        "{\"max_tokens\":1.}",
        "{\"max_tokens\":1e}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char name[32] = "";
        const char *from = bad[i] + 2;

        memcpy(name, from, strcspn(from, "\""));
        assert_int_equal(complete(bad[i]), PD_ERR_INVALID);
        assert_non_null(strstr(why.text, name));
    }
}

static void test_params_what_is_no_object_is_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "{",
                                      "{\"a\"",
                                      "{\"echo\"}",
                                      "{\"echo\":true",
                                      "{\"echo\":true,}",
                                      "{\"echo\":true} x",
                                      "{echo:true}",
                                      "{\"echo\":true]",
                                      "null",
                                      "{\"\x01\":1}"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(complete(bad[i]), PD_ERR_CORRUPT);
    /* A NUL is a byte like any other, not an end. */
    assert_int_equal(serve_params_complete("{}\0", 3, &params, &why), PD_ERR_CORRUPT);
}

static void test_params_infer_chooses_outputs(void **state)
{
    static const char both[] = "{\"outputs\":[\"class\",\"logits\"]}";
    static const char *const bad[] = {"{\"outputs\":[]}", "{\"outputs\":[\"x\"]}", "{\"outputs\":\"class\"}",
                                      "{\"max_tokens\":1}"};

    (void)state;
    assert_int_equal(serve_params_infer("{}", 2, &params, &why), PD_OK);
    assert_int_equal(params.outputs, SERVE_OUT_ALL);
    assert_int_equal(serve_params_infer(both, sizeof both - 1, &params, &why), PD_OK);
    assert_int_equal(params.outputs, SERVE_OUT_CLASS | SERVE_OUT_LOGITS);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(serve_params_infer(bad[i], strlen(bad[i]), &params, &why), PD_ERR_INVALID);
}

static void test_sampling_check_names_the_value(void **state)
{
    struct serve_sampling p;

    (void)state;
    serve_sampling_default(&p);
    assert_int_equal(serve_sampling_check(&p, 256, &why), PD_OK);
    p.max_tokens = 0;
    assert_int_equal(serve_sampling_check(&p, 256, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "max_tokens"));
    p.echo = true;
    assert_int_equal(serve_sampling_check(&p, 256, &why), PD_OK);
    p.temperature = NAN;
    assert_int_equal(serve_sampling_check(&p, 256, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "temperature"));
    p.temperature = 1;
    p.bias = &(struct serve_bias){.token = 256};
    p.biases = 1;
    assert_int_equal(serve_sampling_check(&p, 256, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "256"));
    assert_int_equal(serve_sampling_check(&p, 257, &why), PD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_is_first_in_first_out),
        cmocka_unit_test(test_queue_bounds_the_cost),
        cmocka_unit_test(test_queue_drops_the_late_and_the_gone),
        cmocka_unit_test(test_sample_at_temperature_zero_is_the_first_largest),
        cmocka_unit_test(test_sample_follows_the_probabilities),
        cmocka_unit_test(test_sample_is_a_function_of_seed_and_index),
        cmocka_unit_test(test_sample_top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(test_sample_refuses_what_is_no_distribution),
        cmocka_unit_test(test_uniform_covers_the_unit_interval),
        cmocka_unit_test(test_top_is_sorted_and_breaks_ties_by_id),
        cmocka_unit_test(test_logsumexp_does_not_overflow),
        cmocka_unit_test(test_stops_hold_back_what_may_become_one),
        cmocka_unit_test(test_stops_repeating_prefix_is_found),
        cmocka_unit_test(test_stops_the_one_complete_first_wins),
        cmocka_unit_test(test_stops_none_releases_all),
        cmocka_unit_test(test_params_empty_object_gives_the_defaults),
        cmocka_unit_test(test_params_every_member_is_read),
        cmocka_unit_test(test_params_wrong_values_are_refused_by_name),
        cmocka_unit_test(test_params_what_is_no_object_is_refused),
        cmocka_unit_test(test_params_infer_chooses_outputs),
        cmocka_unit_test(test_sampling_check_names_the_value),
    };

    return cmocka_run_group_tests_name("serve_parts", tests, NULL, NULL);
}
