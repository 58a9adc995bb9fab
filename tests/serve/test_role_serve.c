/* The serve role against a scripted host: what is asked, in which order it is answered, and that nothing is
 * answered twice or forgotten. */
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
#include "daemon/worker/process/role_serve.h"
#include "kernels/base/clock.h"
#include "tests/serve/checkpoint.h"
#include "tests/serve/picture.h"

#define PIXELS (2 * 12 * 12)
#define GREY (12 * 12)
#define REQUESTS 600

static char dir[64], vit_path[96], gpt_path[96], grey_path[96];
static struct pd_why why;

/* One scripted request and what came back. */
struct ask {
    struct serve_request req;
    uint64_t at_turn;          /* handed out by the turn-th call of `next` at the earliest */
    int64_t deadline_in_us;    /* from when it is handed out: a start may take long; 0 = as in req */
    int64_t given_us, last_us; /* when it was handed out, and last answered */
    int cancel_after;          /* parts after which the client is gone; -1 = stays */
    int parts, lasts, dones;
    enum pd_err err;
    char why[256];
    char text[2048];
    size_t len;
    int32_t tokens;
    float logits[64];
    int64_t classes[8];
    char labels[8][16];
    int64_t rows;
    char json[160];
    uint64_t last_turn;
};

struct fake {
    struct serve_host host;
    struct ask *asks;
    size_t count, given;
    uint64_t turn, close_at;   /* 0 = when all are answered */
    int64_t delay_us, step_us; /* step: the model is so much slower */
    char signature[2048];
    uint32_t most_running, most_waiting;
    size_t order[REQUESTS], answered;
};

static void fake_ready(void *ctx, const char *signature, uint64_t memory_bytes)
{
    struct fake *f = ctx;

    assert_true(memory_bytes > 0);
    assert_string_equal(f->signature, "");
    snprintf(f->signature, sizeof f->signature, "%s", signature);
}

static enum pd_err fake_next(void *ctx, int timeout_ms, struct serve_request **ret)
{
    struct fake *f = ctx;
    struct ask *a;

    if (timeout_ms == 0 && (f->given == f->count || f->asks[f->given].at_turn > f->turn)) {
        f->turn++;
        usleep((useconds_t)f->step_us);
        return f->close_at && f->turn >= f->close_at ? PD_ERR_CLOSED : PD_ERR_TIMEOUT;
    }
    if (f->given == f->count && timeout_ms > 0) {
        f->turn++;
        return PD_ERR_TIMEOUT; /* nobody comes while it waits for company */
    }
    if (f->given == f->count) {
        assert_int_equal(f->answered, f->count); /* it may wait for ever only with nothing left to do */
        return PD_ERR_CLOSED;
    }
    a = &f->asks[f->given++];
    a->given_us = pd_clock_mono_us();
    if (a->deadline_in_us)
        a->req.deadline_us = a->given_us + a->deadline_in_us;
    *ret = &a->req;
    return PD_OK;
}

static bool fake_cancelled(void *ctx, const struct serve_request *req)
{
    const struct ask *a = (const struct ask *)(const void *)req;

    (void)ctx;
    return a->cancel_after >= 0 && a->parts >= a->cancel_after;
}

static void fake_reply(void *ctx, const struct serve_request *req, const struct serve_result *part)
{
    struct fake *f = ctx;
    struct ask *a = (struct ask *)(void *)(uintptr_t)req;

    assert_int_equal(a->lasts, 0);
    assert_int_equal(a->dones, 0);
    a->parts++;
    a->lasts += part->last;
    a->err = part->err;
    a->last_turn = f->turn;
    a->last_us = pd_clock_mono_us();
    if (part->last)
        f->order[f->answered++] = (size_t)(a - f->asks);
    if (part->err) {
        assert_true(part->last);
        snprintf(a->why, sizeof a->why, "%s", part->text);
        return;
    }
    for (uint32_t i = 0; i < part->count; i++) {
        const struct wire_tensor *t = &part->tensors[i];
        int64_t n = t->shape[0] * (t->rank == 2 ? t->shape[1] : 1);

        assert_true(t->rank == 1 || t->rank == 2);
        if (!strcmp(t->name, "text")) {
            assert_string_equal(t->dtype, "UINT8");
            assert_int_equal(t->bytes, n);
            memcpy(a->text + a->len, t->data, t->bytes);
            a->len += t->bytes;
        } else if (!strcmp(t->name, "tokens")) {
            assert_int_equal(t->bytes, n * 4);
            a->tokens += (int32_t)n;
        } else if (!strcmp(t->name, "logits")) {
            assert_int_equal(t->bytes, n * 4);
            memcpy(a->logits, t->data, t->bytes < sizeof a->logits ? t->bytes : sizeof a->logits);
            a->rows = t->shape[0];
        } else if (!strcmp(t->name, "class")) {
            assert_string_equal(t->dtype, "INT64");
            memcpy(a->classes, t->data, t->bytes < sizeof a->classes ? t->bytes : sizeof a->classes);
        } else if (!strcmp(t->name, "label")) {
            const char *at = t->data;

            assert_string_equal(t->dtype, "BYTES");
            for (int64_t k = 0; k < t->shape[0] && k < 8; k++) {
                uint32_t len;

                memcpy(&len, at, sizeof len);
                snprintf(a->labels[k], sizeof a->labels[k], "%.*s", (int)len, at + sizeof len);
                at += sizeof len + len;
            }
        }
    }
    if (part->json)
        snprintf(a->json, sizeof a->json, "%s", part->json);
}

static void fake_done(void *ctx, struct serve_request *req)
{
    struct ask *a = (struct ask *)(void *)req;

    (void)ctx;
    assert_int_equal(a->lasts, 1);
    a->dones++;
}

static void fake_load(void *ctx, uint32_t waiting, uint32_t running)
{
    struct fake *f = ctx;

    f->most_waiting = waiting > f->most_waiting ? waiting : f->most_waiting;
    f->most_running = running > f->most_running ? running : f->most_running;
}

static void play(struct fake *f, const char *checkpoint)
{
    f->host = (struct serve_host){.ctx = f,
                                  .model = "tiny/1",
                                  .checkpoint = checkpoint,
                                  .threads = 1,
                                  .delay_us = f->delay_us,
                                  .ready = fake_ready,
                                  .next = fake_next,
                                  .cancelled = fake_cancelled,
                                  .reply = fake_reply,
                                  .done = fake_done,
                                  .load = fake_load};
    if (serve_run(&f->host, &why) != PD_OK)
        fail_msg("serve_run: %s", why.text);
    for (size_t i = 0; i < f->given; i++) {
        assert_int_equal(f->asks[i].lasts, 1);
        assert_int_equal(f->asks[i].dones, 1);
    }
}

static struct ask ask_text(const char *prompt, const char *json)
{
    struct ask a = {.cancel_after = -1,
                    .req = {.kind = "complete", .json = json, .json_len = strlen(json), .count = 1}};
    struct wire_tensor *t = &a.req.tensors[0];

    strcpy(t->name, "prompt");
    strcpy(t->dtype, "UINT8");
    t->rank = 1;
    t->shape[0] = (int64_t)strlen(prompt);
    t->data = prompt;
    t->bytes = strlen(prompt);
    return a;
}

static struct ask ask_images(const void *data, const char *dtype, int64_t n)
{
    struct ask a = {.cancel_after = -1, .req = {.kind = "infer", .json = "{}", .json_len = 2, .count = 1}};
    struct wire_tensor *t = &a.req.tensors[0];

    strcpy(t->name, "image");
    strcpy(t->dtype, dtype);
    t->rank = 4;
    t->shape[0] = n;
    t->shape[1] = 2;
    t->shape[2] = t->shape[3] = 12;
    t->data = data;
    t->bytes = (size_t)n * PIXELS * (dtype[0] == 'U' ? 1 : 4);
    return a;
}

static void test_role_answers_a_classifier(void **state)
{
    static float pixels[4 * PIXELS];
    struct ask asks[4];
    struct fake f = {.asks = asks, .count = 4};
    float *want;

    (void)state;
    for (int i = 0; i < 4 * PIXELS; i++)
        pixels[i] = (float)((i * 7919) % 256) / 255.0f;
    asks[0] = ask_images(pixels, "FP32", 2);
    asks[1] = ask_images(pixels + 2 * PIXELS, "FP32", 1);
    asks[2] = ask_images(pixels + 3 * PIXELS, "FP32", 1);
    asks[3] = ask_images(pixels, "FP32", 1);
    asks[3].req.json = "{\"outputs\":[\"class\"]}";
    asks[3].req.json_len = strlen(asks[3].req.json);
    play(&f, vit_path);
    assert_non_null(strstr(f.signature, "\"classifier\""));
    assert_non_null(strstr(f.signature, "\"shape\":[-1,2,12,12]"));
    assert_int_equal(f.most_running, 4); /* what waited together went together */
    for (int i = 0; i < 4; i++)
        assert_int_equal(asks[i].err, PD_OK);
    assert_int_equal(asks[0].rows, 2);
    assert_int_equal(asks[3].rows, 0); /* only the class was asked for */
    assert_int_equal(asks[3].classes[0], asks[0].classes[0]);
    for (int i = 0; i < 4 * PIXELS; i++)
        pixels[i] = i / (PIXELS / 2) % 2 ? (pixels[i] - 0.75f) / 0.125f : (pixels[i] - 0.25f) / 0.5f;
    want = test_eval_logits(vit_path, pixels, 4, 0);
    for (int k = 0; k < 10; k++) {
        assert_true(fabsf(want[k] - asks[0].logits[k]) < 1e-4f * (1 + fabsf(want[k])));
        assert_true(fabsf(want[20 + k] - asks[1].logits[k]) < 1e-4f * (1 + fabsf(want[20 + k])));
        assert_true(fabsf(want[30 + k] - asks[2].logits[k]) < 1e-4f * (1 + fabsf(want[30 + k])));
    }
    free(want);
}

static void test_role_one_bad_picture_does_not_spoil_its_neighbours(void **state)
{
    static float good[PIXELS], bad[PIXELS];
    struct ask asks[3];
    struct fake f = {.asks = asks, .count = 3};

    (void)state;
    bad[5] = NAN;
    asks[0] = ask_images(good, "FP32", 1);
    asks[1] = ask_images(bad, "FP32", 1);
    asks[2] = ask_images(good, "FP32", 1);
    play(&f, vit_path);
    assert_int_equal(asks[0].err, PD_OK);
    assert_int_equal(asks[1].err, PD_ERR_INVALID);
    assert_int_equal(asks[2].err, PD_OK);
}

static void test_role_refuses_floats_off_the_scale(void **state)
{
    static float pixels[6][PIXELS];
    static const float odd[6] = {255, -1, 2.8f, 1.2f, -0.2f, INFINITY};
    struct ask asks[6];
    struct fake f = {.asks = asks, .count = 6};

    (void)state;
    for (int i = 0; i < 6; i++) {
        pixels[i][9] = odd[i];
        asks[i] = ask_images(pixels[i], "FP32", 1);
    }
    play(&f, vit_path);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(asks[i].err, PD_ERR_INVALID);
        assert_non_null(strstr(asks[i].why, "has values in 0..1"));
        assert_non_null(strstr(asks[i].why, "UINT8"));
    }
    assert_int_equal(asks[3].err, PD_OK); /* noise on an image */
    assert_int_equal(asks[4].err, PD_OK);
    assert_int_equal(asks[5].err, PD_ERR_INVALID);
    assert_non_null(strstr(asks[5].why, "not finite"));
    /* And what the client needs to know stands in the signature. */
    assert_non_null(strstr(f.signature, "\"pixels\":{\"FP32\":[0,1],\"UINT8\":[0,255]"));
    assert_non_null(strstr(f.signature, "\"mean\":[0.25,0.75],\"std\":[0.5,0.125]"));
}

static void test_role_refuses_malformed_requests(void **state)
{
    static float pixels[PIXELS];
    static const char *const words[] = {"one input",
                                        "FP32, UINT8 or BYTES",
                                        "shape",
                                        "shape",
                                        "shape",
                                        "bytes",
                                        "unknown request kind",
                                        "unknown parameter",
                                        "one input",
                                        "no output 'label'",
                                        "language model"};
    struct ask asks[11];
    struct fake f = {.asks = asks, .count = 11};

    (void)state;
    for (int i = 0; i < 11; i++)
        asks[i] = ask_images(pixels, "FP32", 1);
    strcpy(asks[0].req.tensors[0].name, "x");
    strcpy(asks[1].req.tensors[0].dtype, "FP64");
    asks[2].req.tensors[0].shape[3] = 11;
    asks[3].req.tensors[0].rank = 3;
    asks[4].req.tensors[0].shape[0] = 0;
    asks[5].req.tensors[0].bytes--;
    strcpy(asks[6].req.kind, "dream");
    asks[7].req.json = "{\"max_tokens\":1}";
    asks[7].req.json_len = strlen(asks[7].req.json);
    asks[8].req.count = 0;
    asks[9].req.json = "{\"outputs\":[\"label\"]}";
    asks[9].req.json_len = strlen(asks[9].req.json);
    strcpy(asks[10].req.kind, "complete");
    play(&f, vit_path);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(asks[i].err, PD_ERR_INVALID);
        if (!strstr(asks[i].why, words[i]))
            fail_msg("%d: '%s' lacks '%s'", i, asks[i].why, words[i]);
    }
    assert_int_equal(asks[10].err, PD_ERR_UNSUPPORTED);
}

static struct ask ask_pictures(const struct pd_buf *elements, int64_t n)
{
    struct ask a = ask_images(elements->data, "UINT8", 1);
    struct wire_tensor *t = &a.req.tensors[0];

    strcpy(t->dtype, "BYTES");
    t->rank = 1;
    t->shape[0] = n;
    t->bytes = elements->len;
    return a;
}

static void put_element(struct pd_buf *to, const void *bytes, size_t len)
{
    uint32_t n = (uint32_t)len;

    pd_buf_append(to, &n, sizeof n);
    pd_buf_append(to, bytes, len);
}

/* Pictures and pixels answer alike, in one batch; a picture that is none fails alone and is named. */
static void test_role_answers_pictures(void **state)
{
    static uint8_t pixels[3][GREY], *png[3];
    struct pd_buf two, broken, cut;
    struct ask asks[5];
    struct fake f = {.asks = asks, .count = 5};
    size_t len[3];

    (void)state;
    pd_buf_init(&two, 0);
    pd_buf_init(&broken, 0);
    pd_buf_init(&cut, 0);
    for (int p = 0; p < 3; p++) {
        for (int i = 0; i < GREY; i++)
            pixels[p][i] = (uint8_t)(i * (13 + p) + p * 50);
        test_png(pixels[p], 12, 12, 1, &png[p], &len[p]);
    }
    put_element(&two, png[0], len[0]);
    put_element(&two, png[1], len[1]);
    put_element(&broken, png[0], len[0]);
    put_element(&broken, png[2], len[2] / 2);
    pd_buf_append(&cut, two.data, two.len - 1);
    asks[0] = ask_pictures(&two, 2);
    asks[1] = ask_images(pixels[0], "UINT8", 1);
    asks[1].req.tensors[0].shape[1] = 1;
    asks[1].req.tensors[0].bytes = GREY;
    asks[2] = asks[1];
    asks[2].req.tensors[0].data = pixels[1];
    asks[3] = ask_pictures(&broken, 2);
    asks[4] = ask_pictures(&cut, 2);
    play(&f, grey_path);
    assert_non_null(strstr(f.signature, "\"labels\":[\"nil\",\"one\","));
    assert_non_null(strstr(f.signature, "\\\"nine\\\"\"]"));
    assert_int_equal(asks[0].err, PD_OK);
    assert_int_equal(asks[0].rows, 2);
    for (int p = 0; p < 2; p++) {
        static const char *const names[] = {"nil",  "one", "two",   "three", "four",
                                            "five", "six", "seven", "eight", "\"nine\""};

        assert_string_equal(asks[0].labels[p], names[asks[0].classes[p]]);
    }
    for (int p = 0; p < 2; p++) {
        assert_int_equal(asks[1 + p].err, PD_OK);
        assert_int_equal(asks[0].classes[p], asks[1 + p].classes[0]);
        for (int k = 0; k < 10; k++)
            assert_true(fabsf(asks[0].logits[p * 10 + k] - asks[1 + p].logits[k]) < 1e-4f);
    }
    assert_int_equal(asks[3].err, PD_ERR_INVALID);
    assert_non_null(strstr(asks[3].why, "input 'image', picture 1"));
    assert_int_equal(asks[4].err, PD_ERR_INVALID);
    assert_non_null(strstr(asks[4].why, "exceeds the input"));
    for (int p = 0; p < 3; p++)
        free(png[p]);
    pd_buf_done(&two);
    pd_buf_done(&broken);
    pd_buf_done(&cut);
}

/* With patience the second request comes into the first one's batch; the last one waits no longer than it. */
static void test_role_waits_for_company_as_long_as_it_may(void **state)
{
    static float pixels[PIXELS];

    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct ask asks[3];
        struct fake f = {.asks = asks, .count = 3, .delay_us = patient ? 100000 : 0};
        int64_t begun = pd_clock_mono_us();

        for (int i = 0; i < 3; i++)
            asks[i] = ask_images(pixels, "FP32", 1);
        asks[1].at_turn = 5;
        asks[2].at_turn = 1000000; /* later than any other: it comes alone */
        play(&f, vit_path);
        for (int i = 0; i < 3; i++)
            assert_int_equal(asks[i].err, PD_OK);
        assert_true(patient ? f.most_running >= 2 : f.most_running == 1);
        assert_true(!patient || pd_clock_mono_us() - begun >= 100000);
    }
}

/* A pseudo-inverse that starts from a value of the batch: requests are computed one by one, and none waits. */
static void test_role_shares_no_batch_where_its_texts_matter(void **state)
{
    static const int32_t ids[] = {3, 7, 8, 5};
    struct model_spec spec = test_landmark_spec(PK_PHI_SOFTMAX, MODEL_PINV_GLOBAL_COLSUM, false);
    struct ask asks[2];
    struct fake f = {.asks = asks, .count = 2, .delay_us = 60000000};
    char path[96];

    (void)state;
    snprintf(path, sizeof path, "%s/landmarks.safetensors", dir);
    test_checkpoint_write(path, &spec, 3);
    for (int i = 0; i < 2; i++) {
        struct wire_tensor *t = &asks[i].req.tensors[0];

        asks[i] = (struct ask){.cancel_after = -1,
                               .req = {.kind = "infer", .json = "{}", .json_len = 2, .count = 1}};
        strcpy(t->name, "tokens");
        strcpy(t->dtype, "INT32");
        t->rank = 2;
        t->shape[0] = 1;
        t->shape[1] = 4;
        t->data = ids;
        t->bytes = sizeof ids;
    }
    play(&f, path);
    unlink(path);
    assert_int_equal(asks[0].err, PD_OK);
    assert_int_equal(f.most_running, 1);
    assert_true(f.turn < 100); /* the host counts a turn for each try to wait */
    assert_memory_equal(asks[0].logits, asks[1].logits, 3 * sizeof(float));
}

static void test_role_completes_text(void **state)
{
    struct ask asks[5];
    struct fake f = {.asks = asks, .count = 5};
    int32_t ids[] = {'a', 'b'};

    (void)state;
    asks[0] = ask_text("ab", "{\"max_tokens\":20,\"seed\":3}");
    asks[1] = ask_text("ab", "{\"max_tokens\":20,\"seed\":3,\"stream\":true,\"logprobs\":2}");
    asks[2] = ask_text("ab", "{\"max_tokens\":20,\"seed\":3}");
    strcpy(asks[2].req.tensors[0].dtype, "INT32");
    asks[2].req.tensors[0].data = ids;
    asks[2].req.tensors[0].bytes = 8;
    asks[3] = ask_text("", "{\"max_tokens\":5,\"echo\":true}");
    asks[4] = ask_text("a prompt of more than thirty-two bytes", "{}");
    play(&f, gpt_path);
    assert_non_null(strstr(f.signature, "\"language\""));
    assert_int_equal(asks[0].parts, 1);
    assert_int_equal(asks[1].parts, 20);
    assert_int_equal(asks[0].len, 20);
    assert_int_equal(asks[1].tokens, 20);
    assert_memory_equal(asks[0].text, asks[1].text, 20);
    assert_memory_equal(asks[0].text, asks[2].text, 20);
    assert_string_equal(asks[1].json,
                        "{\"finish_reason\":\"length\",\"prompt_tokens\":2,\"completion_tokens\":20}");
    assert_int_equal(asks[3].len, 6);
    assert_int_equal(asks[3].text[0], '\n');
    assert_int_equal(asks[4].err, PD_ERR_LIMIT);
}

static struct ask ask_tokens(const char *kind, const char *name, const char *dtype, const void *data,
                             size_t bytes, int64_t items)
{
    struct ask a = ask_text("", "{}");
    struct wire_tensor *t = &a.req.tensors[0];

    snprintf(a.req.kind, sizeof a.req.kind, "%s", kind);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->shape[0] = items;
    t->data = data;
    t->bytes = bytes;
    return a;
}

static void test_role_turns_text_to_tokens_and_back(void **state)
{
    static const int32_t ids[] = {'o', 'k', 256};
    struct ask asks[9];
    struct fake f = {.asks = asks, .count = 9};

    (void)state;
    asks[0] = ask_tokens("tokenize", "text", "UINT8", "a prompt of more than thirty-two bytes", 38, 38);
    asks[1] = ask_tokens("detokenize", "tokens", "INT32", ids, 8, 2);
    asks[2] = ask_tokens("detokenize", "tokens", "INT32", ids, 12, 3);
    asks[3] = ask_tokens("tokenize", "text", "UINT8", "", 0, 0);
    asks[4] = ask_tokens("tokenize", "prompt", "UINT8", "a", 1, 1);
    asks[5] = ask_tokens("tokenize", "text", "INT32", ids, 4, 1);
    asks[6] = ask_tokens("detokenize", "tokens", "INT32", ids, 7, 1);
    asks[7] = ask_tokens("detokenize", "tokens", "INT32", ids, 8, 3);
    asks[8] = ask_tokens("detokenize", "tokens", "INT32", ids, 8, 2);
    asks[8].req.count = 0;
    play(&f, gpt_path);
    assert_int_equal(asks[0].tokens, 38);
    assert_memory_equal(asks[0].text, "a prompt of more than thirty-two bytes", 38);
    assert_non_null(strstr(asks[0].json, "\"positions\":"));
    assert_int_equal(asks[1].len, 2);
    assert_memory_equal(asks[1].text, "ok", 2);
    assert_int_equal(asks[2].err, PD_ERR_INVALID);
    assert_non_null(strstr(asks[2].why, "tokens[2] is 256"));
    assert_int_equal(asks[3].err, PD_OK);
    assert_int_equal(asks[3].tokens, 0);
    for (int i = 4; i < 9; i++) {
        assert_int_equal(asks[i].err, PD_ERR_INVALID);
        assert_non_null(strstr(asks[i].why, "takes one tensor"));
    }
    f = (struct fake){.asks = asks, .count = 1};
    asks[0] = ask_tokens("tokenize", "text", "UINT8", "a", 1, 1);
    play(&f, vit_path);
    assert_int_equal(asks[0].err, PD_ERR_UNSUPPORTED);
}

/* A client that leaves costs no further step, and the others' bytes stay the same. */
static void test_role_stops_for_a_client_that_left(void **state)
{
    static char alone[64];
    struct ask asks[3];
    struct fake f = {.asks = asks, .count = 1};

    (void)state;
    asks[0] = ask_text("stay", "{\"max_tokens\":40,\"seed\":1,\"stream\":true}");
    play(&f, gpt_path);
    memcpy(alone, asks[0].text, 40);
    f = (struct fake){.asks = asks, .count = 3};
    asks[0] = ask_text("leave", "{\"max_tokens\":40,\"seed\":2,\"stream\":true}");
    asks[0].cancel_after = 5;
    asks[1] = ask_text("stay", "{\"max_tokens\":40,\"seed\":1,\"stream\":true}");
    asks[2] = ask_text("gone before its turn", "{\"max_tokens\":40}");
    asks[2].cancel_after = 0;
    play(&f, gpt_path);
    assert_int_equal(asks[0].err, PD_ERR_CANCELLED);
    assert_int_equal(asks[0].parts, 6); /* five of text, then the end: no step was made for nobody */
    assert_int_equal(asks[0].len, 5);
    assert_int_equal(asks[1].err, PD_OK);
    assert_memory_equal(asks[1].text, alone, 40);
    assert_int_equal(asks[2].err, PD_ERR_CANCELLED);
    assert_int_equal(asks[2].len, 0);
}

static void test_role_keeps_deadlines(void **state)
{
    struct ask asks[3];
    struct fake f = {.asks = asks, .count = 3};

    (void)state;
    asks[0] = ask_text("late already", "{}");
    asks[0].req.deadline_us = 1;
    asks[1] = ask_text("late before its first token", "{}");
    asks[1].req.deadline_us = pd_clock_mono_us() + 1000;
    asks[1].at_turn = 2;
    asks[2] = ask_text("in time", "{\"max_tokens\":4}");
    asks[2].req.deadline_us = pd_clock_mono_us() + 600000000;
    f.step_us = 2000;
    play(&f, gpt_path);
    assert_int_equal(asks[0].err, PD_ERR_TIMEOUT);
    assert_int_equal(asks[1].err, PD_ERR_TIMEOUT);
    assert_int_equal(asks[2].err, PD_OK);
    assert_int_equal(asks[2].parts, 1);
}

/* Its parts tell the daemon that it makes progress. */
static void test_role_lets_a_completion_outlast_its_deadline(void **state)
{
    struct ask a = ask_text("long", "{\"max_tokens\":100}");
    struct fake f = {.asks = &a, .count = 1, .step_us = 10000};

    (void)state;
    a.deadline_in_us = 500000;
    play(&f, gpt_path);
    assert_int_equal(a.err, PD_OK);
    assert_int_equal(a.tokens, 100);
    assert_true(a.last_us > a.req.deadline_us);
    /* One part for each quarter of the time that it was given: at the latest after 13 tokens of 10 ms each, ... */
    assert_true(a.parts >= 7);
    /* ... but not one for each token, unless a token takes as long. */
    assert_true(a.parts <= 2 + (a.last_us - a.given_us) / (a.deadline_in_us / 8));
}

/* More streams than slots: the first come first, side by side, the rest wait in order; far too many are
 * refused. */
static void test_role_bounds_what_waits_and_serves_in_order(void **state)
{
    static struct ask asks[REQUESTS];
    struct fake f = {.asks = asks, .count = 300};
    int busy = 0;

    (void)state;
    for (int i = 0; i < 300; i++)
        asks[i] = ask_text("x", "{\"max_tokens\":3}");
    play(&f, gpt_path);
    for (int i = 0; i < 300; i++)
        busy += asks[i].err == PD_ERR_BUSY;
    assert_int_equal(busy, 300 - (int)ROLE_SERVE_QUEUE);
    assert_int_equal(f.most_running, 16);
    for (int i = 0; i < 256; i++)
        assert_int_equal(asks[i].err, PD_OK);
    /* After the refusals at once, in order of arrival. */
    for (size_t i = 44; i < 300; i++)
        assert_int_equal(f.order[i], i - 44);
    /* By cost: 65536 tokens each, so 15 of them and their prompts fill the bound. */
    f = (struct fake){.asks = asks, .count = 20, .close_at = 3};
    for (int i = 0; i < 20; i++)
        asks[i] = ask_text("x", "{\"max_tokens\":65536}");
    play(&f, gpt_path);
    busy = 0;
    for (int i = 0; i < 20; i++)
        busy += asks[i].err == PD_ERR_BUSY;
    assert_int_equal(busy, 5);
}

static void test_role_a_newcomer_does_not_wait_for_the_long_ones(void **state)
{
    struct ask asks[3];
    struct fake f = {.asks = asks, .count = 3};

    (void)state;
    asks[0] = ask_text("long", "{\"max_tokens\":300}");
    asks[1] = ask_text("long too", "{\"max_tokens\":300}");
    asks[2] = ask_text("short", "{\"max_tokens\":2}");
    asks[2].at_turn = 10;
    play(&f, gpt_path);
    assert_int_equal(f.order[0], 2);
    assert_true(asks[2].last_turn <= 13);
}

/* Requests larger than a batch are computed in slices, in turn: what comes later waits for one of them. */
static void test_role_one_image_does_not_wait_for_thousands(void **state)
{
    enum { MANY = 2000 };
    static uint8_t pixels[MANY * PIXELS];
    static struct ask asks[7];
    struct fake f = {.asks = asks, .count = 7};

    (void)state;
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 7919 % 251);
    for (int i = 0; i < 4; i++)
        asks[i] = ask_images(pixels, "UINT8", MANY);
    asks[4] = ask_images(pixels + 5 * PIXELS, "UINT8", 1);
    asks[4].at_turn = 10;
    asks[5] = ask_images(pixels, "UINT8", 1000); /* begun later, and shorter */
    asks[5].at_turn = 12;
    asks[6] = ask_images(pixels, "UINT8", MANY); /* its client leaves at once */
    asks[6].at_turn = 20;
    asks[6].cancel_after = 0;
    play(&f, vit_path);
    for (int i = 0; i < 6; i++)
        assert_int_equal(asks[i].err, PD_OK);
    assert_int_equal(asks[6].err, PD_ERR_CANCELLED);
    assert_int_equal(f.order[0], 4);
    assert_true(asks[4].last_turn <= 12);
    assert_int_equal(f.order[1], 6);
    assert_int_equal(f.order[2], 5); /* the large ones advance side by side */
    /* Slices change nothing in the numbers. */
    assert_int_equal(asks[0].rows, MANY);
    for (int k = 0; k < 10; k++)
        assert_true(fabsf(asks[0].logits[50 + k] - asks[4].logits[k]) <
                    1e-4f * (1 + fabsf(asks[4].logits[k])));
    assert_memory_equal(asks[0].logits, asks[3].logits, sizeof asks[0].logits);
    assert_memory_equal(asks[0].logits, asks[5].logits, sizeof asks[0].logits);
}

static void test_role_names_a_bad_image_of_a_large_request_by_its_number(void **state)
{
    enum { MANY = 100 };
    static float pixels[MANY * PIXELS];
    static struct ask asks[2];
    struct fake f = {.asks = asks, .count = 2};

    (void)state;
    pixels[77 * PIXELS + 3] = NAN;
    asks[0] = ask_images(pixels, "FP32", MANY);
    asks[1] = ask_images(pixels, "FP32", 70);
    play(&f, vit_path);
    assert_int_equal(asks[0].err, PD_ERR_INVALID);
    assert_non_null(strstr(asks[0].why, "image 77 "));
    assert_int_equal(asks[1].err, PD_OK);
}

static void test_role_bounds_large_requests_by_their_images(void **state)
{
    enum { MANY = 1 << 18 };
    uint8_t *pixels = calloc(MANY, PIXELS);
    static struct ask asks[7];
    struct fake f = {.asks = asks, .count = 7, .close_at = 3};

    (void)state;
    assert_non_null(pixels);
    for (int i = 0; i < 6; i++)
        asks[i] = ask_images(pixels, "UINT8", MANY);
    asks[6] = ask_images(pixels, "UINT8", 1);
    play(&f, vit_path);
    /* Four fill the bound of 2^20 images; one image is taken all the same. */
    for (int i = 0; i < 4; i++)
        assert_int_equal(asks[i].err, PD_ERR_CLOSED);
    assert_int_equal(asks[4].err, PD_ERR_BUSY);
    assert_int_equal(asks[5].err, PD_ERR_BUSY);
    assert_int_equal(asks[6].err, PD_OK);
    free(pixels);
}

static void test_role_unload_answers_what_is_open(void **state)
{
    static struct ask asks[12];
    struct fake f = {.asks = asks, .count = 12, .close_at = 5};

    (void)state;
    for (int i = 0; i < 12; i++)
        asks[i] = ask_text("x", "{\"max_tokens\":1000}");
    play(&f, gpt_path);
    for (int i = 0; i < 12; i++)
        assert_int_equal(asks[i].err, PD_ERR_CLOSED);
}

static void test_role_a_model_that_does_not_open_is_the_reason(void **state)
{
    struct fake f = {0};

    (void)state;
    f.host = (struct serve_host){
        .ctx = &f, .model = "m/1", .checkpoint = vit_path, .digest = "00", .threads = 1, .ready = fake_ready};
    assert_int_equal(serve_run(&f.host, &why), PD_ERR_CORRUPT);
    assert_string_equal(f.signature, "");
}

static int setup(void **state)
{
    struct model_spec spec = test_vit_spec(PK_PHI_SOFTMAX);

    (void)state;
    snprintf(dir, sizeof dir, "/tmp/polyd-role-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(vit_path, sizeof vit_path, "%s/vit.safetensors", dir);
    snprintf(gpt_path, sizeof gpt_path, "%s/gpt.safetensors", dir);
    test_checkpoint_write(vit_path, &spec, 1);
    spec.channels = 1;
    snprintf(grey_path, sizeof grey_path, "%s/grey.safetensors", dir);
    test_checkpoint_write_full(grey_path, &spec, 3, NULL,
                               "nil\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n\"nine\"");
    spec = test_gpt_spec(PK_PHI_POLY);
    test_checkpoint_write(gpt_path, &spec, 2);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(vit_path);
    unlink(grey_path);
    unlink(gpt_path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_role_answers_a_classifier),
        cmocka_unit_test(test_role_one_bad_picture_does_not_spoil_its_neighbours),
        cmocka_unit_test(test_role_refuses_floats_off_the_scale),
        cmocka_unit_test(test_role_refuses_malformed_requests),
        cmocka_unit_test(test_role_answers_pictures),
        cmocka_unit_test(test_role_waits_for_company_as_long_as_it_may),
        cmocka_unit_test(test_role_shares_no_batch_where_its_texts_matter),
        cmocka_unit_test(test_role_completes_text),
        cmocka_unit_test(test_role_turns_text_to_tokens_and_back),
        cmocka_unit_test(test_role_stops_for_a_client_that_left),
        cmocka_unit_test(test_role_keeps_deadlines),
        cmocka_unit_test(test_role_lets_a_completion_outlast_its_deadline),
        cmocka_unit_test(test_role_bounds_what_waits_and_serves_in_order),
        cmocka_unit_test(test_role_a_newcomer_does_not_wait_for_the_long_ones),
        cmocka_unit_test(test_role_one_image_does_not_wait_for_thousands),
        cmocka_unit_test(test_role_names_a_bad_image_of_a_large_request_by_its_number),
        cmocka_unit_test(test_role_bounds_large_requests_by_their_images),
        cmocka_unit_test(test_role_unload_answers_what_is_open),
        cmocka_unit_test(test_role_a_model_that_does_not_open_is_the_reason),
    };

    return cmocka_run_group_tests_name("role_serve", tests, setup, teardown);
}
