/* Whole runs on the CUDA back end, by the plug-in that runs on the host (tests/gpu/emu): they end near where
 * the CPU ends, and go on bit for bit after a stop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/model/arch/arch.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"
#include "kernels/backend/load.h"
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

/* ---- a step ahead of the host ---- */

/* Pictures are f32 here (erasing), so that one can be poisoned on its way. */
#define AHEAD(limit)                                                                                         \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":1,\"heads\":1,\"patch\":14,\"mlp_ratio\":"  \
    "2},"                                                                                                    \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":24,\"val\":8},"            \
    "\"augment\":{\"erasing\":0.25}},\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cuda\","      \
    "\"threads\":1},\"train\":{\"steps\":12,\"batch\":4,\"eval_every\":12,\"precision\":\"fp32\","           \
    "\"optimizer\":{\"lr\":0.01,\"betas\":[0.8,0.9]},\"nonfinite_limit\":" limit "}}"

static struct {
    const struct pk_backend_api *inner;
    uint32_t poisoned; /* bit k: the k-th batch that is sent */
    int sent, taken, pending, most_pending;
    bool label;
} ahead;

static enum pd_err poison(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    static const float nan_value = NAN;
    char *host = ahead.inner->slot_host(slot);

    if (ahead.poisoned >> ahead.sent++ & 1)
        memcpy(host + (ahead.label ? (size_t)4 * 28 * 28 * sizeof(float) : 0), &nan_value, sizeof nan_value);
    return ahead.inner->slot_send(b, slot, why);
}

static enum pd_err count_takes(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                               size_t count, struct pd_why *why)
{
    ahead.taken++;
    return ahead.inner->slot_take(b, slot, parts, count, why);
}

static enum pd_err count_later(struct pk_backend *b, int place, const void *from, size_t bytes,
                               struct pd_why *why)
{
    ahead.pending++;
    if (ahead.pending > ahead.most_pending)
        ahead.most_pending = ahead.pending;
    return ahead.inner->read_later(b, place, from, bytes, why);
}

static enum pd_err count_waits(struct pk_backend *b, int place, void *to, size_t bytes, struct pd_why *why)
{
    ahead.pending--;
    return ahead.inner->read_wait(b, place, to, bytes, why);
}

/* A run of AHEAD with poisoned batches; `late`: the host reads a step's numbers while the next one runs. */
static enum pd_err run_poisoned(const char *json, uint32_t poisoned, bool late, struct book *b,
                                struct train_outcome *out, struct pd_why *why)
{
    struct job_config *config = NULL;
    struct pk_backend_api api;
    enum pd_err err;

    memset(&ahead, 0, sizeof ahead);
    assert_int_equal(job_config_load(json, strlen(json), &config, why), PD_OK);
    assert_int_equal(train_backend(config, false, &ahead.inner, why), PD_OK);
    job_config_free(config);
    api = *ahead.inner;
    api.slot_send = poison;
    api.slot_take = count_takes;
    api.read_later = late ? count_later : NULL;
    api.read_wait = late ? count_waits : NULL;
    ahead.poisoned = poisoned & 0xffff;
    ahead.label = poisoned >> 16;
    clear();
    run_api = &api;
    err = run(json, b, NULL, 1, out, why);
    run_api = NULL;
    return err;
}

static void test_running_ahead_changes_no_bit(void **state)
{
    struct book now = {0}, late = {0};
    struct train_outcome out[2];
    struct pd_why why = {""};
    uint8_t *want, *got;
    size_t want_len, got_len;

    (void)state;
    /* batches 3, 4 and 7 are not finite: two in a row, one alone */
    if (run_poisoned(AHEAD("3"), 1u << 3 | 1u << 4 | 1u << 7, false, &now, &out[0], &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(ahead.most_pending, 0);
    read_whole(out[0].latest_path, &want, &want_len);
    if (run_poisoned(AHEAD("3"), 1u << 3 | 1u << 4 | 1u << 7, true, &late, &out[1], &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(ahead.most_pending, 2);
    assert_int_equal(ahead.pending, 0);
    read_whole(out[1].latest_path, &got, &got_len);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out[i].result, TRAIN_DONE);
        assert_int_equal(out[i].nonfinite, 3);
    }
    same_points(&now, &late);
    assert_int_equal(got_len, want_len);
    assert_memory_equal(got, want, want_len);
    free(want);
    free(got);
    close_book(&now);
    close_book(&late);
}

/* The step that may be the last one allowed is waited for: none is computed behind it. */
static void test_running_ahead_stops_at_the_same_divergence(void **state)
{
    struct book now = {0}, late = {0};
    struct train_outcome out[2];
    struct pd_why why = {""};

    (void)state;
    if (run_poisoned(AHEAD("2"), 0xffff & ~7u, false, &now, &out[0], &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(ahead.taken, 5);
    if (run_poisoned(AHEAD("2"), 0xffff & ~7u, true, &late, &out[1], &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(ahead.taken, 5);
    assert_int_equal(ahead.most_pending, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out[i].result, TRAIN_DIVERGED);
        assert_int_equal(out[i].step, 5);
    }
    same_points(&now, &late);
    close_book(&now);
    close_book(&late);
}

static void test_running_ahead_reports_a_kernel_error(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};

    (void)state;
    assert_int_equal(run_poisoned(AHEAD("2"), 1u << 16 | 1u << 3, true, &b, &out, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "is out of range"));
    assert_int_equal(out.step, 3); /* those before it count */
    close_book(&b);
}

static void test_a_device_that_runs_ahead_goes_on_bit_for_bit(void **state)
{
    (void)state;
    check_random_stops(AHEAD("3"), 2);
}

/* ---- kernels that are compiled ---- */

#define RATIONAL(device, every)                                                                              \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":16,\"depth\":2,\"heads\":1,\"patch\":14,"                \
    "\"mlp_ratio\":2},\"attention\":{\"activation\":\"formula\",\"formula\":\"s^3/(1+abs(s))\"},"            \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":24,\"val\":8}},"           \
    "\"diagnostics\":{\"every\":" every ",\"probe_batch\":2},\"resources\":{\"device\":\"" device            \
    "\",\"threads\":1},\"train\":{\"steps\":4,\"batch\":4,\"eval_every\":4,\"precision\":\"bf16\"}}"

#define PHASE(what, which) "phase:compiling kernels of formulas: " what " (" which ");"

static void start(const char *json, struct book *b)
{
    struct train_outcome out;
    struct pd_why why = {""};

    clear();
    if (run(json, b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.result, TRAIN_DONE);
}

/* Compiling is a phase of the run, and ends before its first step: one program for each part of the formula that its
 * graphs need, whatever their number of layers. */
static void test_formulas_are_compiled_before_the_first_step(void **state)
{
    struct book b = {0}, bare = {0}, cpu = {0};

    (void)state;
    setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
    start(RATIONAL("cuda", "2"), &b);
    start(RATIONAL("cuda", "0"), &bare);
    start(RATIONAL("cpu", "2"), &cpu);
    unsetenv("POLYD_NVRTC");
    assert_int_equal(strncmp(b.events,
                             PHASE("the forward pass in bf16", "1 of 2")
                                 PHASE("gradients in bf16", "2 of 2") "phase;" PHASE(
                                     "diagnostics in bf16", "1 of 1") "phase;start;compiled;inputs;",
                             strlen(b.events)),
                     0);
    assert_int_equal(strncmp(b.compiled, "kernels=5 programs=3 found=0 seconds=", 37), 0);
    assert_int_equal(strncmp(bare.compiled, "kernels=3 programs=2 found=0 seconds=", 37), 0);
    assert_null(strstr(cpu.events, "phase"));
    assert_string_equal(cpu.compiled, "");
    close_book(&b);
    close_book(&bare);
    close_book(&cpu);
}

static void test_a_formula_that_does_not_compile_ends_the_run(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};

    (void)state;
    setenv("POLYD_NVRTC", FAKE_NVRTC, 1);
    setenv("POLYD_FAKE_NVRTC_ERROR", "no such instruction", 1);
    clear();
    assert_int_equal(run(RATIONAL("cuda", "0"), &b, NULL, 1, &out, &why), PD_ERR_INVALID);
    unsetenv("POLYD_FAKE_NVRTC_ERROR");
    unsetenv("POLYD_NVRTC");
    assert_non_null(strstr(why.text, "no such instruction"));
    assert_int_equal(out.step, 0);
    assert_int_equal(b.count, 0);
    close_book(&b);
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

/* ---- a recorded step ---- */

#define LEAVES 256
#define BATCH 2

/* A training step of a Nystromformer, with memory of its own. */
struct step {
    const struct pk_backend_api *api;
    struct pk_graph *graph;
    struct pk_exec *exec;
    struct model_store *store;
    void *memory[LEAVES];
};

static struct model *small_nystrom(void)
{
    const struct model_spec spec = {.arch = &model_nystrom,
                                    .width = 16,
                                    .depth = 1,
                                    .heads = 2,
                                    .mlp_width = 16,
                                    .bias = true,
                                    .final_norm = true,
                                    .classes = 3,
                                    .norm_eps = 1e-5,
                                    .vocab = 7,
                                    .context = 32,
                                    .landmarks = 8,
                                    .conv_kernel = 5,
                                    .pinv_iterations = 6,
                                    .pos = true,
                                    .zero_pads = true,
                                    .pool = MODEL_POOL_MEAN,
                                    .init = MODEL_INIT_KAIMING,
                                    .dtype = PK_F32,
                                    .attention = {.phi = PK_PHI_SOFTMAX,
                                                  .scale_value = 1,
                                                  .n_for_scale = 32,
                                                  .scale_lr_mult = 1,
                                                  .init_logit_std = -1}};
    struct model *m = NULL;
    struct pd_why why;

    if (model_new(&spec, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    return m;
}

static void step_open(struct step *s, const struct model *m, const struct pk_backend_api *api,
                      struct pk_backend *b)
{
    const struct model_train_options o = {.loss = &task_cross_entropy,
                                          .batch = BATCH,
                                          .context = 32,
                                          .optimizer = &optim_find("adamw")->graph,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8};
    struct pd_why why = {""};

    s->api = api;
    if (model_graph_train(m, &o, false, &s->graph, &why) != PD_OK ||
        pk_exec_new(s->graph, api, b, &s->exec, &why) != PD_OK ||
        model_store_new(m, api, b, &s->store, &why) != PD_OK ||
        model_store_init(s->store, 1, &why) != PD_OK ||
        model_store_bind(s->store, s->exec, s->graph, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (size_t i = 0; i < pk_graph_leaf_count(s->graph); i++) {
        const struct pk_leaf l = pk_graph_leaf(s->graph, i);
        const float hyper[4] = {0.01f, 0.1f, 0, 0};
        char *bytes;

        if (l.kind == PK_OP_PARAM)
            continue;
        assert_true(i < LEAVES);
        bytes = calloc(1, l.bytes + sizeof hyper);
        assert_non_null(bytes);
        for (size_t k = 0; !strcmp(l.name, "input") && k < l.bytes / 4; k++)
            ((int32_t *)bytes)[k] = (int32_t)(k * 5 % 7);
        for (int32_t k = 0; !strcmp(l.name, "last") && k < BATCH; k++)
            ((int32_t *)bytes)[k] = 32 * k + 29;
        if (!strcmp(l.name, "hyper"))
            memcpy(bytes, hyper, sizeof hyper);
        s->memory[i] = api->alloc(b, l.bytes);
        assert_non_null(s->memory[i]);
        assert_int_equal(api->upload(b, s->memory[i], bytes, l.bytes, &why), PD_OK);
        assert_int_equal(pk_exec_bind(s->exec, l.name, s->memory[i], &why), PD_OK);
        free(bytes);
    }
}

static void step_close(struct step *s, struct pk_backend *b)
{
    pk_exec_free(s->exec);
    for (size_t i = 0; i < LEAVES; i++)
        if (s->memory[i])
            s->api->free(b, s->memory[i]);
    model_store_free(s->store);
    pk_graph_free(s->graph);
}

/* The pseudo-inverse and its derivatives are part of the one recording of a step, which has the bits of a step that goes
 * call by call. */
static void test_a_nystromformer_step_is_recorded_whole(void **state)
{
    const struct pk_backend_api *api = NULL;
    struct pk_backend_api plain;
    struct pk_backend *b = NULL;
    struct model *m = small_nystrom();
    struct step recorded = {0}, eager = {0};
    struct pk_exec_runs runs;
    struct pd_why why = {""};

    (void)state;
    assert_int_equal(pk_backend_load("cuda", PK_LOAD_RUN, &api, &why), PD_OK);
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    plain = *api;
    plain.capture = NULL;
    step_open(&recorded, m, api, b);
    step_open(&eager, m, &plain, b);
    for (int i = 0; i < 4; i++)
        if (pk_exec_run(recorded.exec, &why) != PD_OK || pk_exec_run(eager.exec, &why) != PD_OK)
            fail_msg("%s", why.text);
    runs = pk_exec_runs(recorded.exec);
    assert_true(runs.eager == 1 && runs.captures == 1 && runs.replays == 3 && runs.refused == 0);
    assert_int_equal(pk_exec_runs(eager.exec).eager, 4);
    assert_int_equal(api->sync(b, &why), PD_OK);
    for (size_t i = 0; i < model_trained_count(m); i++) {
        const size_t bytes = (size_t)pk_shape_count(&model_param(m, i)->shape) * sizeof(float);
        char *x = malloc(bytes), *y = malloc(bytes);

        assert_true(x && y);
        assert_int_equal(api->download(b, x, model_store_data(recorded.store, i), bytes, &why), PD_OK);
        assert_int_equal(api->download(b, y, model_store_data(eager.store, i), bytes, &why), PD_OK);
        if (memcmp(x, y, bytes) != 0)
            fail_msg("%s has other bits", model_param(m, i)->name);
        free(x);
        free(y);
    }
    step_close(&recorded, b);
    step_close(&eager, b);
    model_free(m);
    api->close(b);
}

#define NYSTROM(device)                                                                                      \
    "{\"model\":{\"preset\":\"nystrom_micro\",\"width\":16,\"depth\":1,\"heads\":1,\"mlp_ratio\":1,"         \
    "\"context\":32,\"landmarks\":8,\"conv_kernel\":5},\"attention\":{\"activation\":\"poly\",\"degree\":3," \
    "\"scale\":\"learned\"},\"data\":{\"dataset\":\"listops_gen\",\"split\":{\"train\":60,\"val\":8,"        \
    "\"test\":3}},\"diagnostics\":{\"every\":4,\"probe_batch\":2},\"resources\":{\"device\":\"" device       \
    "\",\"threads\":1},\"train\":{\"steps\":6,\"batch\":4,\"eval_every\":3,\"precision\":\"fp32\","          \
    "\"checkpoint_every\":{\"steps\":2}}}"

static void test_a_nystromformer_trains_on_a_device(void **state)
{
    struct train_outcome cpu, device;

    (void)state;
    trajectory(NYSTROM("cpu"), &cpu);
    trajectory(NYSTROM("cuda"), &device);
    near(device.loss_train, cpu.loss_train, 1e-4);
    near(device.loss_val, cpu.loss_val, 1e-4);
}

/* The line search of L-BFGS, whose points, products with the history and directions are graphs of the device: the losses of
 * the first two steps, 20 iterations apart, are the CPU's. Those iterations magnify rounding: the second loss differs by 1e-3
 * between the CPU's levels of instructions. */
static void test_an_equation_trains_on_a_device(void **state)
{
    static const char *const jobs[2] = {EQUATION("cpu", "\"activation\":\"poly\",\"degree\":3", "2", ""),
                                        EQUATION("cuda", "\"activation\":\"poly\",\"degree\":3", "2", "")};
    struct book book[2] = {{0}};
    struct train_outcome out;
    struct pd_why why = {""};

    (void)state;
    for (int i = 0; i < 2; i++) {
        if (run(jobs[i], &book[i], NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(out.result, TRAIN_DONE);
        clear();
    }
    for (int step = 1; step <= 2; step++)
        near(find(&book[1], "loss/train", step)->value, find(&book[0], "loss/train", step)->value,
             step == 1 ? 1e-5 : 5e-3);
    close_book(&book[0]);
    close_book(&book[1]);
    check_random_stops(EQUATION("cuda", "\"activation\":\"poly\",\"degree\":3", "4", ""), 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_device_ends_where_the_cpu_ends),
        T(test_a_device_goes_on_bit_for_bit_after_a_stop),
        T(test_running_ahead_changes_no_bit),
        T(test_running_ahead_stops_at_the_same_divergence),
        T(test_running_ahead_reports_a_kernel_error),
        T(test_a_device_that_runs_ahead_goes_on_bit_for_bit),
        T(test_formulas_are_compiled_before_the_first_step),
        T(test_a_formula_that_does_not_compile_ends_the_run),
        T(test_a_language_model_trains_on_a_device),
        T(test_a_nystromformer_step_is_recorded_whole),
        T(test_a_nystromformer_trains_on_a_device),
        T(test_an_equation_trains_on_a_device),
        T(test_a_plan_for_a_device_needs_none),
    };

    setenv("POLYD_CUDA_PLUGIN", EMULATED_PLUGIN, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
