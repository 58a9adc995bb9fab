/* Forms of training beside the plain one: each goes on bit for bit after a stop, and does what it says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/train/rig.h"

/* The deep one: DNT's S5 under momentum, with all noise. */
#define JOB(model, attention, train)                                                                         \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"mlp_ratio\":"    \
    "2" model "},"                                                                                           \
    "\"attention\":{" attention "},"                                                                         \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"          \
    "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"      \
    "\"train\":{\"steps\":24,\"batch\":8,\"eval_every\":7,\"checkpoint_every\":{\"steps\":6}" train "}}"

static void test_noise_of_a_step_is_the_same_after_a_stop(void **state)
{
    (void)state;
    check_random_stops(JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"",
                           ",\"dropout\":0.2,\"drop_path\":0.3,\"optimizer\":{\"lr\":0.01}"),
                       3);
}

/* Noise changes the loss in training; the scores of a network do not depend on it. */
static void test_noise_is_of_training_alone(void **state)
{
    static const char *const jobs[] = {
        JOB("", "", ",\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"dropout\":0.4,\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"drop_path\":0.5,\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"drop_path\":0.5,\"drop_path_rule\":\"same\",\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"dropout\":0.4,\"seed\":0,\"optimizer\":{\"lr\":1e-12}"),
    };
    struct book b[5] = {{0}};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 5; i++) {
        clear();
        assert_int_equal(run(jobs[i], &b[i], NULL, 2, &out, &why), PD_OK);
        assert_true(fabs(find(&b[i], "loss/val", 7)->value - find(&b[0], "loss/val", 7)->value) < 1e-6);
        assert_true(find(&b[i], "attn/fro/1", 0)->value == find(&b[0], "attn/fro/1", 0)->value);
        for (int k = 0; k < i; k++)
            if (!(k == 1 && i == 4))
                assert_true(find(&b[i], "loss/train", 3)->value != find(&b[k], "loss/train", 3)->value);
    }
    assert_true(find(&b[4], "loss/train", 3)->value == find(&b[1], "loss/train", 3)->value);
    for (int i = 0; i < 5; i++)
        close_book(&b[i]);
}

static void test_deeply_normalised_network_runs_under_momentum(void **state)
{
    (void)state;
    check_random_stops(
        "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"pos_after\":"
        "true},"
        "\"norm\":{\"placement\":\"S5\"},\"attention\":{\"activation\":\"poly\",\"scale\":\"learned\"},"
        "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"
        "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"
        "\"train\":{\"steps\":24,\"batch\":8,\"eval_every\":7,\"optimizer\":{\"name\":\"msgdw\"}}}",
        2);
}

/* Every form that a document can ask for trains: a few steps, finite, and the loss moves. */
static void test_every_form_of_the_network_trains(void **state)
{
#define FORM(model, norm, attention, train)                                                                  \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2" model "},\"norm\":{" norm     \
    "},"                                                                                                     \
    "\"attention\":{" attention "},\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\","      \
    "\"train\":40,\"val\":11}},\"diagnostics\":{\"every\":3,\"probe_batch\":2},\"resources\":{\"device\":"   \
    "\"cpu\","                                                                                               \
    "\"threads\":1},\"train\":{\"steps\":4,\"batch\":8,\"eval_every\":4" train "}}"
    static const char *const jobs[] = {
        FORM(",\"patch\":[7,4],\"pool\":\"cls\"", "", "", ""),
        FORM(",\"patch\":[14,2],\"mlp_act\":\"relu\",\"bias\":false", "\"placement\":\"post\"", "", ""),
        FORM(",\"patch\":7", "\"placement\":\"S2\",\"kind\":\"layer\"", "\"qk_gain\":\"per_head\"", ""),
        FORM(",\"patch\":7,\"pos\":\"none\"", "\"placement\":\"S3\",\"eps_mode\":\"sum\",\"eps\":1e-4", "",
             ",\"schedule\":{\"name\":\"linear\",\"warmup_form\":\"timm\",\"warmup_steps\":2}"),
        FORM(",\"patch\":7,\"pos_after\":true", "\"placement\":\"S4\",\"final\":false",
             "\"activation\":\"poly\",\"scale\":\"learned\"",
             ",\"schedule\":{\"name\":\"step\",\"milestones\":[2,3]},\"optimizer\":{\"name\":\"msgd_l2\","
             "\"nesterov\":true,\"lr\":0.01}"),
        FORM(",\"patch\":7", "\"kind\":\"rms\"", "\"qk_norm\":true,\"dropout\":0.2",
             ",\"schedule\":{\"name\":\"constant\"},\"init\":\"xavier\",\"init_fan\":\"fused\""),
    };

    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct book b = {0};
        struct train_outcome out;
        struct pd_why why;

        clear();
        if (run(jobs[i], &b, NULL, 1, &out, &why) != PD_OK)
            fail_msg("form %zu: %s", i, why.text);
        assert_int_equal(out.result, TRAIN_DONE);
        assert_true(isfinite(out.loss_train) && isfinite(out.loss_val) && out.nonfinite == 0);
        assert_true(find(&b, "loss/train", 1)->value != out.loss_train);
        assert_true(isfinite(find(&b, "attn/fro/2", 3)->value));
        assert_true((find(&b, "attn/jac_q_fro/2", 3) == NULL) == (i >= 2)); /* with QKNorm it is none */
        close_book(&b);
    }
#undef FORM
}

static void test_steps_in_parts_go_on_after_a_stop(void **state)
{
    (void)state;
    /* a stop is asked for between parts, too */
    check_random_stops(JOB("", "", ",\"accumulation\":4,\"dropout\":0.1,\"clip_norm\":0.5"), 3);
}

static void test_averages_go_on_after_a_stop(void **state)
{
    (void)state;
    check_random_stops(JOB("", "", ",\"ema\":0.9,\"accumulation\":2,\"optimizer\":{\"name\":\"msgd_l2\"}"),
                       3);
}

static void test_an_early_end_is_the_same_after_a_stop(void **state)
{
    static const char job[] =
        DIGITS("\"steps\":60,\"batch\":8,\"eval_every\":1,\"optimizer\":{\"lr\":0.1},"
               "\"schedule\":{\"name\":\"constant\"},\"stop\":{\"metric\":\"loss/val\",\"patience\":6}");
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    if (run(job, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(out.result, TRAIN_DONE);
    assert_true(out.step > 6 && out.step < 60);
    assert_non_null(strstr(b.events, "early_stop;"));
    close_book(&b);
    clear();
    check_random_stops(job, 4);
}

/* Matrices after step 0 and after the last, which is no multiple of the interval. */
static void test_an_early_end_has_the_matrices_of_a_last_step(void **state)
{
    static const char job[] =
        "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7},"
        "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"
        "\"diagnostics\":{\"every\":0,\"heatmaps\":{\"every\":100}},\"resources\":{\"device\":\"cpu\"},"
        "\"train\":{\"steps\":24,\"batch\":8,\"eval_every\":3,\"stop\":{\"patience\":2,\"min_change\":9}}}";
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    if (run(job, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_non_null(strstr(b.events, "early_stop;"));
    assert_int_equal(out.step, 9);
    for (int64_t step = 0; step <= 24; step++)
        assert_true((find(&b, "attn/entropy/2", step) != NULL) == (step == 0 || step == 9));
    close_book(&b);
}

/* Activations of bf16 go on bit for bit as well, and end near where f32 does. */
static void test_bf16_goes_on_after_a_stop_and_ends_near_f32(void **state)
{
    static const char *const jobs[2] = {
        JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"", ",\"precision\":\"fp32\""),
        JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"", ",\"precision\":\"bf16\""),
    };
    struct train_outcome out[2];
    struct pd_why why;

    (void)state;
    check_random_stops(JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"",
                           ",\"precision\":\"bf16\",\"accumulation\":2,\"dropout\":0.1,\"clip_norm\":0.5"),
                       2);
    for (int i = 0; i < 2; i++) {
        struct book b = {0};

        clear();
        assert_int_equal(run(jobs[i], &b, NULL, 2, &out[i], &why), PD_OK);
        assert_int_equal(out[i].result, TRAIN_DONE);
        close_book(&b);
    }
    assert_true(out[0].loss_train != out[1].loss_train);
    assert_true(fabs(out[0].loss_train - out[1].loss_train) < 0.02 * out[0].loss_train);
    assert_true(fabs(out[0].loss_val - out[1].loss_val) < 0.02 * out[0].loss_val);
}

/* ---- products of bf16 on the CPU: what was measured when a run began holds to its end ---- */

static bool measured_products;

static enum pd_err open_as_measured(const struct pk_host *host, int device, int threads,
                                    struct pk_backend **ret, struct pd_why *why)
{
    enum pd_err err = pk_backend_cpu()->open(host, device, threads, ret, why);

    return err == PD_OK ? pk_cpu_bf16_hold(*ret, measured_products, why) : err;
}

static void test_bf16_goes_on_as_it_began(void **state)
{
    static const char job[] =
        JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"", ",\"precision\":\"bf16\"");
    struct pk_backend_api cpu = *pk_backend_cpu();
    struct pk_backend *b = NULL;
    struct train_outcome out;
    struct pd_why why = {""};
    bool both;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &b, &why), PD_OK);
    both = pk_cpu_bf16_hold(b, true, &why) == PD_OK; /* else there is the reference alone */
    pk_backend_cpu()->close(b);
    cpu.open = open_as_measured;
    run_api = &cpu;
    for (int began = 0; began < 1 + both; began++) {
        struct book whole = {0}, first = {.stop_after_calls = 9, .how = TRAIN_STOP_CHECKPOINT}, second = {0};
        size_t want_bytes, got_bytes;
        uint8_t *want, *got;
        char path[1024];

        clear();
        measured_products = began;
        assert_int_equal(run(job, &whole, NULL, 2, &out, &why), PD_OK);
        read_whole(whole.last_path, &want, &want_bytes);
        clear();
        assert_int_equal(run(job, &first, NULL, 2, &out, &why), PD_OK);
        assert_int_not_equal(out.result, TRAIN_DONE);
        snprintf(path, sizeof path, "%s", first.last_path);
        measured_products = both && !began; /* a busier machine would say so now */
        if (run(job, &second, path, 2, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(out.result, TRAIN_DONE);
        /* Weights in f32 show what the loss of working copies in bf16 may hide. */
        read_whole(second.last_path, &got, &got_bytes);
        assert_int_equal(got_bytes, want_bytes);
        assert_memory_equal(got, want, want_bytes);
        free(want);
        free(got);
        close_book(&whole);
        close_book(&first);
        close_book(&second);
    }
    run_api = NULL;
}

/* ---- train.recompute ---- */

static size_t device_bytes; /* what the device says that it has */

static enum pd_err info_of_a_device(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why)
{
    enum pd_err err = pk_backend_cpu()->info(b, ret, why);

    ret->memory_total = device_bytes;
    return err;
}

#define KEEPS(device, train)                                                                                 \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":32,\"depth\":3,\"heads\":2,\"patch\":7},"                \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":4}},"           \
    "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"" device "\",\"threads\":1},"                 \
    "\"train\":{\"steps\":4,\"batch\":20,\"eval_every\":4,\"precision\":\"fp32\","                           \
    "\"checkpoint_every\":{\"steps\":2}" train "}}"

/* Runs to the end; the bytes of the arena, and what the last checkpoint says. */
static double arena_of(const char *job, struct book *b, const char *start, bool *ret_stored)
{
    struct train_outcome out;
    struct pd_why why = {""};
    struct data_st *st = NULL;
    const char *how;

    if (run(job, b, start, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    if (data_st_open(b->last_path, &st, &why) != PD_OK)
        fail_msg("%s", why.text);
    how = data_st_meta(st, "polyd.recompute");
    assert_non_null(how);
    *ret_stored = strcmp(how, "off") == 0;
    assert_true(*ret_stored || strcmp(how, "on") == 0);
    data_st_free(st);
    return b->arena;
}

static int64_t forecast_of(const char *job, int64_t memory_bytes, const char *key)
{
    struct job_config *config = NULL;
    struct pd_buf plan;
    struct pd_why why = {""};
    int64_t value;

    assert_int_equal(job_config_load(job, strlen(job), &config, &why), PD_OK);
    pd_buf_init(&plan, 0);
    if (train_plan(config, NULL, &root, 1, NULL, memory_bytes, &plan, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_non_null(strstr(plan.data, key));
    value = strtoll(strstr(plan.data, key) + strlen(key), NULL, 10);
    pd_buf_done(&plan);
    job_config_free(config);
    return value;
}

/* Of two arenas; a forecast knows no number of threads, on which scratch depends. */
static bool is_about(double arena, double want)
{
    return fabs(arena - want) < 0.05 * want;
}

/* ---- the forecast against what a run takes ---- */

static struct {
    struct {
        void *at;
        size_t bytes;
    } block[4096];
    size_t now, most;
} taken;

static void *counted_alloc(struct pk_backend *b, size_t bytes)
{
    void *at = pk_backend_cpu()->alloc(b, bytes);
    size_t i = 0;

    while (at && taken.block[i].at)
        assert_true(++i < sizeof taken.block / sizeof *taken.block);
    if (!at)
        return NULL;
    taken.block[i].at = at;
    taken.block[i].bytes = bytes;
    taken.now += bytes;
    taken.most = taken.now > taken.most ? taken.now : taken.most;
    return at;
}

static void counted_free(struct pk_backend *b, void *at)
{
    for (size_t i = 0; at && i < sizeof taken.block / sizeof *taken.block; i++)
        if (taken.block[i].at == at) {
            taken.block[i].at = NULL;
            taken.now -= taken.block[i].bytes;
            break;
        }
    pk_backend_cpu()->free(b, at);
}

#define SIZED(model, train)                                                                                  \
    "{\"model\":{" model                                                                                     \
    "},\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":64,"                     \
    "\"val\":8}},\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1},"            \
    "\"train\":{\"steps\":2,\"batch\":32,\"eval_every\":2" train "}}"

/* What the back end was asked for at most, evaluation and checkpoints included, is at most 3 % off the forecast. */
static void test_forecast_is_what_a_run_takes(void **state)
{
    static const char *const jobs[] = {
        SIZED("\"preset\":\"swin_micro\"", ""),
        SIZED("\"preset\":\"swin_micro\"", ",\"recompute\":\"off\""),
        SIZED("\"preset\":\"xcit_micro\"", ""),
        SIZED("\"preset\":\"xcit_micro\"", ",\"ema\":0.9,\"accumulation\":2"),
    };
    struct pk_backend_api api = *pk_backend_cpu();

    (void)state;
    api.alloc = counted_alloc;
    api.free = counted_free;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const double forecast = (double)forecast_of(jobs[i], 0, "\"total_bytes\":");
        struct train_outcome out;
        struct pd_why why = {""};
        struct book b = {0};

        clear();
        memset(&taken, 0, sizeof taken);
        run_api = &api;
        if (run(jobs[i], &b, NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        run_api = NULL;
        if (!(fabs((double)taken.most - forecast) <= 0.03 * forecast))
            fail_msg("job %zu: %zu bytes taken, %.0f forecast", i, taken.most, forecast);
        close_book(&b);
    }
}

static void test_activations_are_kept_where_asked_for_or_where_they_fit(void **state)
{
    static const struct {
        const char *job;
        bool kept[2]; /* on a device with room for all, and on a small one */
    } cases[] = {
        {KEEPS("cuda", ""), {true, false}},
        {KEEPS("cuda", ",\"recompute\":\"off\""), {true, true}},
        {KEEPS("cuda", ",\"recompute\":\"on\""), {false, false}},
        {KEEPS("cpu", ""), {false, false}}, /* whose memory other runs share */
        {KEEPS("cpu", ",\"recompute\":\"off\""), {true, true}},
    };
    struct pk_backend_api cpu = *pk_backend_cpu();
    const double off = (double)forecast_of(KEEPS("cpu", ",\"recompute\":\"off\""), 0, "\"arena_bytes\":"),
                 on = (double)forecast_of(KEEPS("cpu", ",\"recompute\":\"on\""), 0, "\"arena_bytes\":");
    const size_t total = (size_t)forecast_of(KEEPS("cpu", ",\"recompute\":\"off\""), 0, "\"total_bytes\":");
    struct book first = {.stop_after_calls = 3, .how = TRAIN_STOP_CHECKPOINT}, b;
    char path[1024];
    double loss[2] = {0}, arena;
    bool kept;

    (void)state;
    assert_true(on < 0.9 * off);
    cpu.info = info_of_a_device;
    run_api = &cpu;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int small = 0; small < 2; small++) {
            b = (struct book){0};
            clear();
            device_bytes =
                (total + 1) * 100 / TRAIN_KEEP_PERCENT + 200; /* 85 % of it is just enough, or just not */
            device_bytes -= small ? 600 : 0;
            arena = arena_of(cases[i].job, &b, NULL, &kept);
            if (!is_about(arena, cases[i].kept[small] ? off : on))
                fail_msg("case %zu, small %d: an arena of %.0f; kept %.0f, computed again %.0f", i, small,
                         arena, off, on);
            assert_int_equal(kept, cases[i].kept[small]);
            loss[small] = find(&b, "loss/train", 4)->value;
            if (small) /* the same numbers, but for rounding */
                assert_true(fabs(loss[1] - loss[0]) <= 1e-5 * fabs(loss[0]));
            close_book(&b);
        }
    /* A run that goes on does as it began, unless its document says otherwise. */
    clear();
    device_bytes = 2 * total;
    (void)arena_of(cases[0].job, &first, NULL, &kept);
    assert_true(kept && !find(&first, "loss/train", 4));
    snprintf(path, sizeof path, "%s", first.last_path);
    close_book(&first);
    device_bytes = 1000;
    b = (struct book){0};
    assert_true(is_about(arena_of(cases[0].job, &b, path, &kept), off) && kept);
    close_book(&b);
    b = (struct book){0};
    assert_true(is_about(arena_of(cases[2].job, &b, path, &kept), on) && !kept);
    close_book(&b);
    run_api = NULL;
}

/* A step in parts is that of the whole batch, but for the order of its sums; f64 shows nothing else. */
static void test_parts_make_the_step_of_the_whole_batch(void **state)
{
    static const char *const jobs[2][3] = {
        {JOB("", "", ",\"precision\":\"fp64\",\"clip_norm\":0.5,\"label_smoothing\":0.1"),
         JOB("", "", ",\"precision\":\"fp64\",\"clip_norm\":0.5,\"label_smoothing\":0.1,\"accumulation\":2"),
         JOB("", "", ",\"precision\":\"fp64\",\"clip_norm\":0.5,\"label_smoothing\":0.1,\"accumulation\":8")},
        {JOB("", "", ",\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05}"),
         JOB("", "", ",\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05},\"accumulation\":2"),
         JOB("", "", ",\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05},\"accumulation\":8")}};
    static const char *const keys[] = {"loss/train", "acc/train", "grad/norm", "lr"};

    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        struct book b[3] = {{0}};
        struct train_outcome out;
        struct pd_why why;

        for (int i = 0; i < 3; i++) {
            clear();
            assert_int_equal(run(jobs[f32][i], &b[i], NULL, 2, &out, &why), PD_OK);
            for (int64_t s = 1; s <= 24; s++)
                for (int k = 0; k < 4; k++) {
                    double want = find(&b[0], keys[k], s)->value, got = find(&b[i], keys[k], s)->value;

                    if (!(fabs(got - want) <= (f32 ? 2e-4 : 1e-10) * fmax(1, fabs(want))))
                        fail_msg("%s at step %lld: %.12g in parts, %.12g whole", keys[k], (long long)s, got,
                                 want);
                }
        }
        for (int i = 0; i < 3; i++)
            close_book(&b[i]);
    }
}

static double element(const char *path, const char *tensor, size_t at)
{
    struct data_st *st = NULL;
    struct train_state saved;
    struct pd_why why;
    double x[64];

    if (train_checkpoint_open(path, &st, &saved, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_non_null(data_st_find(st, tensor));
    assert_int_equal(data_st_read_f64(data_st_find(st, tensor), x, data_st_find(st, tensor)->count, &why),
                     PD_OK);
    data_st_free(st);
    return x[at];
}

/* e <- d e + (1 - d) w after every step, from the initial values on; scored apart from the weights. */
static void test_averages_are_those_of_the_weights(void **state)
{
    static const char *const job =
        "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":1,\"heads\":2,\"patch\":7},"
        "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"
        "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1},"
        "\"train\":{\"steps\":5,\"batch\":8,\"eval_every\":5,\"ema\":0.75,\"precision\":\"fp64\","
        "\"keep\":{\"latest\":50},\"checkpoint_every\":{\"steps\":1},\"optimizer\":{\"lr\":0.1},"
        "\"schedule\":{\"name\":\"constant\",\"warmup_steps\":0}}}";
    static const char tensor[] = "fc_norm.weight";
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;
    double average = 1; /* gains start from 1 */
    char path[256], name[TRAIN_CHECKPOINT_NAME_SIZE];

    (void)state;
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_OK);
    for (int64_t step = 1; step <= 5; step++) {
        snprintf(path, sizeof path, "%s/%s", checkpoints, train_checkpoint_name(name, step));
        average = 0.75 * average + 0.25 * element(path, tensor, 3);
        assert_true(fabs(element(path, "ema.fc_norm.weight", 3) - average) < 1e-14);
    }
    assert_true(fabs(average - element(path, tensor, 3)) > 1e-3);
    assert_non_null(find(&b, "loss/val_ema", 5));
    assert_non_null(find(&b, "acc/val_ema", 5));
    assert_true(find(&b, "loss/val_ema", 5)->value != find(&b, "loss/val", 5)->value);
    close_book(&b);
}

struct served {
    double gain;
    size_t index;
};

static enum pd_err note_gain(void *user, size_t i, const void *data, size_t bytes, struct pd_why *why)
{
    struct served *s = user;

    (void)bytes;
    (void)why;
    if (i == s->index)
        s->gain = ((const float *)data)[3];
    return PD_OK;
}

static void test_averages_are_judged_and_served_where_asked_for(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct data_st *st = NULL;
    struct train_state saved;
    struct model_spec spec;
    struct model *m = NULL;
    struct served seen = {0};
    struct pd_why why;

    (void)state;
    assert_int_equal(run(JOB("", "", ",\"ema\":0.8,\"ema_serve\":true,\"optimizer\":{\"lr\":0.05}"), &b, NULL,
                         2, &out, &why),
                     PD_OK);
    assert_string_equal(out.best_metric, "acc/val_ema");
    assert_true(out.best_value == find(&b, "acc/val_ema", out.best_step)->value);
    assert_int_equal(train_checkpoint_open(out.latest_path, &st, &saved, &why), PD_OK);
    assert_string_equal(data_st_meta(st, "polyd.serve"), "ema");
    assert_int_equal(model_spec_from_meta(st, &spec, &why), PD_OK);
    assert_int_equal(model_new(&spec, &m, &why), PD_OK);
    while (strcmp(model_param(m, seen.index)->name, "fc_norm.weight"))
        seen.index++;
    assert_int_equal(model_params_read(m, st, false, note_gain, &seen, &why), PD_OK);
    assert_true(seen.gain == element(out.latest_path, "fc_norm.weight", 3));
    assert_int_equal(model_params_read(m, st, true, note_gain, &seen, &why), PD_OK);
    assert_true(seen.gain == element(out.latest_path, "ema.fc_norm.weight", 3));
    assert_true(seen.gain != element(out.latest_path, "fc_norm.weight", 3));
    data_st_free(st);
    close_book(&b);
    /* a checkpoint without averages has none to serve, and says which is missing first */
    clear();
    assert_int_equal(run(JOB("", "", ""), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(train_checkpoint_open(out.latest_path, &st, &saved, &why), PD_OK);
    assert_int_equal(model_params_read(m, st, true, note_gain, &seen, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "lacks 'ema."));
    data_st_free(st);
    model_free(m);
    close_book(&b);
}

static long long planned(const char *json, const char *key)
{
    struct job_config *config = NULL;
    struct pd_buf b;
    struct pd_why why;
    const char *at;
    long long n;

    pd_buf_init(&b, 0);
    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    if (train_plan(config, NULL, NULL, 0, NULL, 0, &b, &why) != PD_OK)
        fail_msg("%s", why.text);
    pd_buf_str(&b, "");
    at = strstr(b.data, key);
    assert_non_null(at);
    n = atoll(at + strlen(key));
    pd_buf_done(&b);
    job_config_free(config);
    return n;
}

static void test_forecast_counts_averages_and_parts(void **state)
{
    static const char plain[] = JOB("", "", ""), ema[] = JOB("", "", ",\"ema\":0.9"),
                      parts[] = JOB("", "", ",\"accumulation\":8");
    long long weights = planned(plain, "\"weights\":");

    (void)state;
    assert_int_equal(planned(plain, "\"ema\":"), 0);
    assert_int_equal(planned(ema, "\"ema\":"), weights);
    assert_int_equal(planned(ema, "\"checkpoint_bytes\":"), 4 * weights);
    assert_int_equal(planned(ema, "\"total_bytes\":") - planned(plain, "\"total_bytes\":"), weights);
    assert_int_equal(planned(parts, "\"moment1\":"), weights);
    assert_true(planned(parts, "\"gradients\":") >= weights);
    assert_true(planned(parts, "\"arena_bytes\":") < planned(plain, "\"arena_bytes\":"));
}

/* A search reads the parameters as a vector; of its vectors a file holds those that the next step needs. */
static void test_forecast_of_a_line_search(void **state)
{
    static const char job[] = EQUATION("cpu", "\"activation\":\"poly\"", "3", "");
    static const char drawn[] = "{\"histograms\":{\"at\":[1]},\"every\":3}";
    const int64_t parameters = planned(job, "\"parameters\":"), saved = planned(job, "\"checkpoint_bytes\":"),
                  total = planned(job, "\"total_bytes\":"), arena = planned(job, "\"arena_bytes\":"),
                  states = planned(job, "\"moment1\":") + planned(job, "\"moment2\":");
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;
    uint8_t *file;
    uint64_t header = 0;
    size_t len;
    char other[1024], *at;

    (void)state;
    assert_int_equal(planned(job, "\"weights\":"), 4 * parameters);
    assert_true(total >= 4 * parameters + states + arena + planned(job, "\"inputs\":"));
    if (run(job, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    read_whole(out.latest_path, &file, &len);
    for (int i = 0; i < 8; i++) /* its length begins the file */
        header |= (uint64_t)file[i] << 8 * i;
    assert_int_equal(len - 8 - header, saved);
    free(file);
    close_book(&b);
    /* the gradient of histograms is one more vector of the parameters */
    snprintf(other, sizeof other, "%s", job);
    at = strstr(other, "{\"every\":3}");
    snprintf(at, sizeof other - (size_t)(at - other), "%s%s", drawn,
             strstr(job, "{\"every\":3}") + strlen("{\"every\":3}"));
    assert_true(planned(other, "\"total_bytes\":") - planned(other, "\"arena_bytes\":") -
                    planned(other, "\"inputs\":") ==
                total - arena - planned(job, "\"inputs\":") + 4 * parameters);
}

/* The file holds masters and the moments of all ranks, whatever a step computes in and whoever keeps them. */
static void test_forecast_of_a_checkpoint_is_the_same_in_any_precision(void **state)
{
    static const char plain[] = JOB("", "", "");
    long long bytes = planned(plain, "\"checkpoint_bytes\":");

    (void)state;
    for (int i = 0; i < 4; i++) {
        char job[1024], *at;

        snprintf(job, sizeof job, "%s", plain);
        at = strstr(job, "\"threads\":2");
        snprintf(at, sizeof job - (size_t)(at - job), "\"threads\":2,\"slots\":2%s",
                 strstr(plain, "\"threads\":2") + strlen("\"threads\":2"));
        at = strstr(job, "\"batch\":8");
        snprintf(at, sizeof job - (size_t)(at - job), "\"batch\":8,\"zero\":%d,\"precision\":\"%s\"%s", i % 2,
                 i / 2 ? "bf16" : "fp32", strstr(plain, "\"batch\":8") + strlen("\"batch\":8"));
        assert_int_equal(planned(job, "\"checkpoint_bytes\":"), bytes);
    }
}

/* What ZeRO-1 is for: of the moments a rank keeps a share. */
static void test_forecast_of_a_share_of_the_moments(void **state)
{
#define TWO(more)                                                                                            \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7},\"data\":{"       \
    "\"dataset\":"                                                                                           \
    "\"digits_gen\"},\"resources\":{\"device\":\"cpu\",\"slots\":2},\"train\":{\"steps\":1,\"batch\":8" more \
    "}}"
    long long whole = planned(TWO(""), "\"moment1\":"), share = planned(TWO(",\"zero\":1"), "\"moment1\":");

    (void)state;
    assert_int_equal(whole, planned(TWO(""), "\"weights\":"));
    assert_true(share > 0 && share < whole * 2 / 3);
#undef TWO
}

/* ---- a step that is skipped ---- */

enum { POISONED = 3, IMAGES = 8 * 784 /* bytes of a batch */, BIAS = 10 * sizeof(float) }; /* from 1 */

static struct {
    const struct pk_backend_api *inner;
    int batches, hypers;
    float hyper[24][4];
    float *bias, kept; /* of the head, in back-end memory: the first tensor of its size */
} spied;

static bool lit(const uint8_t *images)
{
    for (int i = 0; i < IMAGES; i++)
        if (images[i])
            return true;
    return false; /* the zeros before the first batch */
}

/* Records the numbers that the optimiser gets, and sets a parameter to NaN while one batch is computed. */
static enum pd_err spy(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    if (bytes == sizeof spied.hyper[0] && *(const float *)from > 0)
        memcpy(spied.hyper[spied.hypers++], from, bytes);
    if (bytes == BIAS && !spied.bias)
        spied.bias = to;
    if (bytes == IMAGES && lit(from)) {
        spied.batches++;
        if (spied.batches == POISONED) {
            spied.kept = *spied.bias;
            *spied.bias = (float)NAN;
        } else if (spied.batches == POISONED + 1) {
            *spied.bias = spied.kept;
        }
    }
    return spied.inner->upload(b, to, from, bytes, why);
}

/* The corrections of AdamW's moments count the updates, not the steps; the rate goes on with the steps. */
static void test_a_skipped_step_does_not_count_for_the_moments(void **state)
{
    struct pk_backend_api api = *pk_backend_cpu();
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};

    (void)state;
    spied.inner = pk_backend_cpu();
    api.upload = spy;
    run_api = &api;
    if (run("{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":1,\"heads\":2,\"patch\":7},\"data\":{"
            "\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":80,\"val\":8}},"
            "\"diagnostics\":{"
            "\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1},\"train\":{\"steps\":6,\"batch\":"
            "8,"
            "\"eval_every\":100,\"optimizer\":{\"lr\":0.01,\"betas\":[0.8,0.97]},\"schedule\":{\"name\":"
            "\"linear\","
            "\"warmup_steps\":0,\"min_lr\":0}}}",
            &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    run_api = NULL;
    assert_int_equal(out.nonfinite, 1);
    assert_int_equal(spied.hypers, 6);
    for (int step = 0; step < 6; step++) {
        int updates = step + 1 - (step >= POISONED);

        assert_true(fabs(spied.hyper[step][0] - 0.01 * (6 - step) / 6) < 1e-8);
        assert_true(fabs(spied.hyper[step][1] - (1 - pow(0.8, updates))) < 1e-6);
        assert_true(fabs(spied.hyper[step][2] - (1 - pow(0.97, updates))) < 1e-6);
        assert_true((find(&b, "nonfinite", step + 1) != NULL) == (step + 1 == POISONED));
    }
    close_book(&b);
}

/* Seconds between checkpoints are seconds: of a run that is over sooner there is the last one alone. */
static void test_no_checkpoint_before_its_seconds_are_over(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};

    (void)state;
    if (run(DIGITS("\"steps\":600,\"batch\":8,\"eval_every\":100,\"checkpoint_every\":{\"seconds\":20},"
                   "\"keep\":{"
                   "\"best\":0}"),
            &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_true(out.seconds > 0.06 && out.seconds < 20); /* or it says nothing */
    assert_int_equal(b.written, 1);
    close_book(&b);
}

/* With the decay in the gradient the momentum carries it on; decoupled it does not. */
static void test_l2_is_not_decoupled_decay(void **state)
{
    static const char *const jobs[3] = {
        JOB("", "", ",\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05,\"weight_decay\":0}"),
        JOB("", "", ",\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05,\"weight_decay\":0.2}"),
        JOB("", "", ",\"optimizer\":{\"name\":\"msgd_l2\",\"lr\":0.05,\"weight_decay\":0.2}")};
    double loss[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct book b = {0};
        struct train_outcome out;
        struct pd_why why;

        clear();
        assert_int_equal(run(jobs[i], &b, NULL, 2, &out, &why), PD_OK);
        /* before the first update they are one */
        loss[i] = find(&b, "loss/train", 24)->value;
        if (i)
            assert_true(find(&b, "loss/train", 1)->value > 0);
        close_book(&b);
    }
    assert_true(loss[0] != loss[1] && loss[1] != loss[2] && loss[0] != loss[2]);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_noise_of_a_step_is_the_same_after_a_stop),
        T(test_noise_is_of_training_alone),
        T(test_deeply_normalised_network_runs_under_momentum),
        T(test_every_form_of_the_network_trains),
        T(test_steps_in_parts_go_on_after_a_stop),
        T(test_averages_go_on_after_a_stop),
        T(test_an_early_end_is_the_same_after_a_stop),
        T(test_an_early_end_has_the_matrices_of_a_last_step),
        T(test_bf16_goes_on_after_a_stop_and_ends_near_f32),
        T(test_bf16_goes_on_as_it_began),
        T(test_activations_are_kept_where_asked_for_or_where_they_fit),
        T(test_parts_make_the_step_of_the_whole_batch),
        T(test_averages_are_those_of_the_weights),
        T(test_averages_are_judged_and_served_where_asked_for),
        T(test_forecast_is_what_a_run_takes),
        T(test_forecast_counts_averages_and_parts),
        T(test_forecast_of_a_line_search),
        T(test_forecast_of_a_checkpoint_is_the_same_in_any_precision),
        T(test_forecast_of_a_share_of_the_moments),
        T(test_a_skipped_step_does_not_count_for_the_moments),
        T(test_no_checkpoint_before_its_seconds_are_over),
        T(test_l2_is_not_decoupled_decay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
