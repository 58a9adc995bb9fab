/* Whole runs on the CUDA back end, by the plug-in that runs on the host (tests/gpu/emu): they end near where
 * the CPU ends, and go on bit for bit after a stop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "tests/train/rig.h"

#define VIT(device, precision, train)                                                                        \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":1,\"heads\":1,\"patch\":14,"                \
    "\"mlp_ratio\":2},\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\"},"           \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":24,\"val\":8}},"           \
    "\"diagnostics\":{\"every\":4,\"probe_batch\":2},\"resources\":{\"device\":\"" device                    \
    "\",\"threads\":1},\"train\":{\"steps\":6,\"batch\":4,\"eval_every\":3,\"precision\":\"" precision       \
    "\",\"clip_norm\":0.5,\"checkpoint_every\":{\"steps\":2}" train "}}"

static void trajectory(const char *json, struct train_outcome *out)
{
    struct book b = {0};
    struct pd_why why = {""};

    clear();
    if (run(json, &b, NULL, 1, out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out->result, TRAIN_DONE);
    assert_non_null(find(&b, "loss/train", 6));
    assert_true(isfinite(find(&b, "attn/fro/1", 4)->value));
    close_book(&b);
}

static void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance * fabs(b)))
        fail_msg("%.9g and %.9g", a, b);
}

static void test_a_device_ends_where_the_cpu_ends(void **state)
{
    struct train_outcome cpu, wide, tf32, half, parts;

    (void)state;
    trajectory(VIT("cpu", "fp32", ""), &cpu);
    trajectory(VIT("cuda", "fp32", ""), &wide);
    trajectory(VIT("cuda", "tf32", ""), &tf32);
    trajectory(VIT("cuda", "bf16", ""), &half);
    trajectory(VIT("cuda", "bf16", ",\"accumulation\":2"), &parts);
    near(wide.loss_train, cpu.loss_train, 1e-4);
    near(wide.loss_val, cpu.loss_val, 1e-4);
    near(tf32.loss_val, cpu.loss_val, 1e-2);
    near(half.loss_train, cpu.loss_train, 3e-2);
    near(half.loss_val, cpu.loss_val, 3e-2);
    near(parts.loss_val, cpu.loss_val, 3e-2);
    assert_true(wide.loss_train != tf32.loss_train && wide.loss_train != half.loss_train);
}

static void test_a_device_goes_on_bit_for_bit_after_a_stop(void **state)
{
    (void)state;
    check_random_stops(VIT("cuda", "bf16", ",\"dropout\":0.1,\"ema\":0.9"), 1);
}

#define GPT(device, precision)                                                                               \
    "{\"model\":{\"preset\":\"gpt_micro\",\"width\":16,\"depth\":1,\"heads\":1,\"context\":16},"             \
    "\"attention\":{\"activation\":\"softmax\"},"                                                            \
    "\"data\":{\"dataset\":\"text\",\"path\":\"box/t.txt\",\"tokenizer\":\"bytes\",\"split\":{\"rule\":"     \
    "\"fraction\",\"train\":0.9,\"val\":0.1}},\"diagnostics\":{\"every\":4,\"probe_batch\":1},"              \
    "\"resources\":{\"device\":\"" device "\",\"threads\":1},\"train\":{\"steps\":6,\"batch\":2,"            \
    "\"eval_every\":6,\"precision\":\"" precision "\",\"checkpoint_every\":{\"steps\":2}}}"

static void test_a_language_model_trains_on_a_device(void **state)
{
    struct train_outcome cpu, half;
    char path[256];
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/t.txt", folder);
    f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 300; i++)
        fputc("abcdefgh "[i * i % 9], f);
    fclose(f);
    trajectory(GPT("cpu", "fp32"), &cpu);
    trajectory(GPT("cuda", "bf16"), &half);
    near(half.loss_train, cpu.loss_train, 3e-2);
    near(half.loss_val, cpu.loss_val, 3e-2);
}

static void test_a_plan_for_a_device_needs_none(void **state)
{
    static const char *const jobs[2] = {VIT("cuda", "bf16", ""), VIT("cuda", "fp32", "")};
    struct pd_buf plan;

    (void)state;
    setenv("POLYD_EMU_DEVICES", "0", 1);
    for (int i = 0; i < 2; i++) {
        struct job_config *config = NULL;
        struct train_outcome out;
        struct train_dirs dirs = {.checkpoints = checkpoints, .roots = &root, .root_count = 1};
        struct train_host host = {0};
        struct pd_why why = {""};

        pd_buf_init(&plan, 0);
        assert_int_equal(job_config_load(jobs[i], strlen(jobs[i]), &config, &why), PD_OK);
        if (train_plan(config, NULL, &root, 1, NULL, 0, &plan, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_true((strstr(plan.data, "\"master\":0,") == NULL) == (i == 0));
        pd_buf_done(&plan);
        /* and running needs one */
        assert_int_equal(train_run(config, &dirs, &host, &out, &why), PD_ERR_NOT_FOUND);
        assert_non_null(strstr(why.text, "no NVIDIA GPU"));
        assert_int_equal(out.result, TRAIN_FAILED);
        job_config_free(config);
    }
    unsetenv("POLYD_EMU_DEVICES");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_device_ends_where_the_cpu_ends),
        T(test_a_device_goes_on_bit_for_bit_after_a_stop),
        T(test_a_language_model_trains_on_a_device),
        T(test_a_plan_for_a_device_needs_none),
    };

    setenv("POLYD_CUDA_PLUGIN", EMULATED_PLUGIN, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
