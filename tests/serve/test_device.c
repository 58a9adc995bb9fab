/* Serving on the CUDA back end, by the plug-in that runs on the host (tests/gpu/emu): what the CPU answers in
 * f32, but for the rounding of bf16; and nothing stays behind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/serve/serve.h"
#include "kernels/backend/load.h"
#include "tests/serve/checkpoint.h"

#define PIXELS (2 * 12 * 12)

static char dir[64], path[96];
static struct pd_why why;

static struct serve *open_on(bool cuda)
{
    struct serve_options o = {
        .checkpoint = path, .threads = 1, .batch_max = 2, .streams_max = 2, .cuda = cuda, .tuned = dir};
    struct serve *s = NULL;

    if (serve_open(&o, &s, &why) != PD_OK)
        fail_msg("serve_open: %s", why.text);
    return s;
}

static size_t free_on_device(void)
{
    const struct pk_backend_api *api;
    struct pk_backend *b = NULL;
    struct pk_backend_info info;

    assert_int_equal(pk_backend_load("cuda", PK_LOAD_RUN, &api, &why), PD_OK);
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    assert_int_equal(api->info(b, &info, &why), PD_OK);
    api->close(b);
    return info.memory_free;
}

static void test_a_device_classifies_as_the_cpu_does(void **state)
{
    struct model_spec spec = test_vit_spec(PK_PHI_POLY);
    uint8_t bytes[3 * PIXELS];
    float logits[2][3 * 10], p[3 * 10], most = 0;
    int64_t classes[3];
    struct serve_samples part = {.data = bytes, .bytes = true, .count = 3};
    size_t before, after;

    (void)state;
    test_checkpoint_write(path, &spec, 1);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    before = free_on_device();
    for (int cuda = 0; cuda < 2; cuda++) {
        struct serve *s = open_on(cuda);
        struct serve_scores scores = {logits[cuda], p, classes};
        struct serve_memory memory;

        assert_string_equal(serve_info(s)->platform, cuda ? "polyd_cuda" : "polyd_cpu");
        for (int turn = 0; turn < 3; turn++) /* one by one, recorded, replayed */
            assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
        serve_memory(s, &memory);
        if (cuda)
            assert_true(free_on_device() < before);
        serve_close(s);
    }
    after = free_on_device();
    assert_int_equal(before, after); /* unloading gives everything back */
    for (int i = 0; i < 30; i++)
        most = fabsf(logits[0][i]) > most ? fabsf(logits[0][i]) : most;
    for (int i = 0; i < 30; i++)
        if (!(fabsf(logits[0][i] - logits[1][i]) < 0.05f * most))
            fail_msg("logit %d: %g on the CPU, %g on the device", i, (double)logits[0][i],
                     (double)logits[1][i]);
}

/* A solution at points is f32 on both. */
static void test_a_device_solves_as_the_cpu_does(void **state)
{
    const struct model_spec spec = {.arch = &model_pinnsformer,
                                    .width = 8,
                                    .depth = 1,
                                    .heads = 2,
                                    .mlp_width = 16,
                                    .head_width = 16,
                                    .bias = true,
                                    .norm_eps = 1e-6,
                                    .equation = DATA_EQUATION_CONVECTION,
                                    .coefficient = 1.5,
                                    .context = 5,
                                    .step = 0.01,
                                    .grid = {3, 4},
                                    .test_grid = {3, 4},
                                    .attention.phi = PK_PHI_SOFTMAX,
                                    .attention.n_for_scale = 5,
                                    .attention.scale_value = 1,
                                    .attention.scale_lr_mult = 1,
                                    .attention.init_logit_std = -1,
                                    .dtype = PK_F32};
    float points[7][2], u[2][7], most = 0;
    struct serve_samples part = {.data = points, .count = 7};

    (void)state;
    test_checkpoint_write(path, &spec, 1);
    for (int i = 0; i < 7; i++) {
        points[i][0] = (float)i * 0.9f;
        points[i][1] = (float)i / 7;
    }
    for (int cuda = 0; cuda < 2; cuda++) {
        struct serve *s = open_on(cuda);
        struct serve_scores scores = {.logits = u[cuda]};

        assert_ptr_equal(serve_info(s)->kind, &serve_kind_field);
        assert_int_equal(serve_classify(s, &part, 1, &scores, &why), PD_OK);
        serve_close(s);
    }
    for (int i = 0; i < 7; i++)
        most = fabsf(u[0][i]) > most ? fabsf(u[0][i]) : most;
    assert_true(most > 0 && fabsf(u[0][0] - u[0][6]) > 1e-3f * most);
    for (int i = 0; i < 7; i++)
        if (!(fabsf(u[0][i] - u[1][i]) < 1e-4f * most))
            fail_msg("point %d: %g on the CPU, %g on the device", i, (double)u[0][i], (double)u[1][i]);
}

/* Scores a text by reading it and generates a little; log-probabilities of the reading. */
static size_t read_text(bool cuda, float *logprob)
{
    static const char prompt[] = "abcabcab";
    struct serve *s = open_on(cuda);
    struct serve_sampling p;
    struct serve_stream *t = NULL;
    struct serve_piece piece;
    struct pd_buf ids;
    size_t n = 0;

    serve_sampling_default(&p);
    p.temperature = 0;
    p.max_tokens = 3;
    p.echo = true;
    p.logprobs = 1;
    pd_buf_init(&ids, 0);
    assert_int_equal(serve_tokenize(s, prompt, strlen(prompt), &ids, &why), PD_OK);
    assert_int_equal(serve_stream_open(s, (const int32_t *)(const void *)ids.data, ids.len / 4, &p, &t, &why),
                     PD_OK);
    do {
        if (serve_stream_step(t, &piece, &why) != PD_OK)
            fail_msg("serve_stream_step: %s", why.text);
        for (size_t i = 0; i < piece.count; i++)
            if (piece.tokens[i].scored && piece.tokens[i].prompt)
                logprob[n++] = piece.tokens[i].logprob;
    } while (piece.finish == SERVE_FINISH_NONE);
    assert_int_equal(piece.finish, SERVE_FINISH_LENGTH);
    serve_stream_close(t);
    serve_close(s);
    pd_buf_done(&ids);
    return n;
}

static void test_a_device_reads_and_writes_text(void **state)
{
    static const enum pk_phi kinds[2] = {PK_PHI_SOFTMAX, PK_PHI_POLY};

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct model_spec spec = test_gpt_spec(kinds[k]);
        float cpu[64], device[64];
        size_t n;

        test_checkpoint_write(path, &spec, 2);
        n = read_text(false, cpu);
        assert_int_equal(n, 7);
        assert_int_equal(read_text(true, device), n);
        for (size_t i = 0; i < n; i++)
            if (!(fabsf(cpu[i] - device[i]) < 0.15f + 0.03f * fabsf(cpu[i])))
                fail_msg("token %zu: %g on the CPU, %g on the device", i, (double)cpu[i], (double)device[i]);
    }
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/polyd-serve-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    char command[160];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_device_classifies_as_the_cpu_does, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_device_solves_as_the_cpu_does, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_device_reads_and_writes_text, setup, teardown),
    };

    setenv("POLYD_CUDA_PLUGIN", EMULATED_PLUGIN, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
