/* Whole runs of tiny jobs: outcomes, checkpoints, and that stopping changes nothing. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "kernels/base/file.h"
#include "kernels/graph/roofline.h"
#include "tests/train/rig.h"

/* ---- tests ---- */

static void test_run_says_everything_it_promises(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct data_st *st = NULL;
    struct train_state saved;
    struct model_spec spec;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 0, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_DONE);
    assert_int_equal(out.step, 24);
    assert_int_equal(out.total, 24);
    assert_int_equal(b.progress, 24);
    assert_true(isfinite(out.loss_train) && isfinite(out.loss_val));
    assert_string_equal(out.metric, "acc/val");
    for (int64_t s = 1; s <= 24; s++) {
        static const char *const every_step[] = {"loss/train", "acc/train", "lr", "grad/norm"};

        for (size_t i = 0; i < 4; i++)
            assert_non_null(find(&b, every_step[i], s));
        assert_true((find(&b, "loss/val", s) != NULL) == (s % 7 == 0 || s == 24));
        assert_true((find(&b, "attn/fro/2/1", s) != NULL) == (s % 5 == 0));
    }
    for (int l = 1; l <= 2; l++)
        for (int h = 0; h <= 2; h++) {
            static const char *const keys[] = {"attn/fro",  "attn/jac_fro", "attn/jac_q_fro",
                                               "logit/std", "logit/max",    "scale/c"};

            for (size_t i = 0; i < 6; i++) {
                char key[40];

                snprintf(key, sizeof key, h ? "%s/%d/%d" : "%s/%d", keys[i], l, h);
                assert_non_null(find(&b, key, 0));
                assert_non_null(find(&b, key, 20));
                assert_true(isfinite(find(&b, key, 20)->value));
            }
        }
    assert_true(fabs(find(&b, "scale/c/1", 0)->value - 0.25) < 1e-7); /* 16 patches */
    assert_true(find(&b, "scale/c/1/1", 20)->value != find(&b, "scale/c/1/1", 0)->value);
    assert_true(fabs(find(&b, "lr", 1)->value - 0.01 / 5) < 1e-9);
    /* retention: the newest and the best, at most two files; the newest proves itself and says its network */
    assert_in_range(files(), 1, 2);
    assert_int_equal(train_checkpoint_open(out.latest_path, &st, &saved, &why), PD_OK);
    assert_int_equal(saved.step, 24);
    assert_int_equal(model_spec_from_meta(st, &spec, &why), PD_OK);
    assert_int_equal(spec.width, 8);
    assert_int_equal(spec.attention.share, MODEL_SHARE_HEAD);
    assert_true(spec.attention.n_for_scale == 16);
    assert_string_equal(data_st_meta(st, "polyd.data.mean"), "0.130700007");
    assert_non_null(data_st_find(st, "blocks.1.attn.attn_scale"));
    assert_non_null(data_st_find(st, "optim.v.blocks.1.attn.attn_scale"));
    data_st_free(st);
    assert_int_equal(train_checkpoint_open(out.best_path, &st, &saved, &why), PD_OK);
    assert_true(saved.score == out.best_value);
    assert_int_equal(saved.step, out.best_step);
    data_st_free(st);
    close_book(&b);
}

static void test_resume_is_bit_identical_at_random_stops(void **state)
{
    (void)state;
    check_random_stops(DIGITS(PLAIN), 6);
}

static void test_killed_run_goes_on_from_its_last_checkpoint(void **state)
{
    struct book whole = {0}, b = {0};
    struct train_outcome out, want;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &whole, NULL, 2, &want, &why), PD_OK);
    clear();
    b.stop_after_calls = 15; /* as good as a kill: nothing is written after it */
    b.how = TRAIN_STOP_CANCEL;
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_CANCELLED);
    assert_true(out.step < 24);
    close_book(&b);
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_non_null(strstr(b.events, "resume;"));
    assert_int_equal(out.result, TRAIN_DONE);
    assert_memory_equal(&out.loss_train, &want.loss_train, sizeof(double));
    assert_memory_equal(&out.best_value, &want.best_value, sizeof(double));
    close_book(&b);
    close_book(&whole);
}

static int64_t saved_step(const char *path, bool *ret_eval_due)
{
    struct data_st *st = NULL;
    struct train_state saved = {.step = -1};
    struct pd_why why;

    if (train_checkpoint_open(path, &st, &saved, &why) != PD_OK)
        fail_msg("%s", why.text);
    data_st_free(st);
    *ret_eval_due = saved.eval_due;
    return saved.step;
}

/* A run that is stopped within an evaluation saves its step, and again after the evaluation. If it is killed before polyd
 * hears of the second file, the next attempt reports it. */
static void test_file_that_was_written_again_unheard_is_reported(void **state)
{
    struct book first = {.stop_after_calls = 7, .how = TRAIN_STOP_CHECKPOINT}, killed = {.lost = true}, next;
    char path[1024], before[DIGEST_SHA256_HEX_SIZE], hex[DIGEST_SHA256_HEX_SIZE];
    struct train_outcome out;
    struct pd_why why;
    bool due;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &first, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_STOPPED);
    snprintf(path, sizeof path, "%s", first.last_path);
    assert_int_equal(saved_step(path, &due), 7);
    assert_true(due);
    snprintf(before, sizeof before, "%s", recorded_digest(path));
    killed.stop_after_calls = 3; /* those of the evaluation */
    killed.how = TRAIN_STOP_CANCEL;
    assert_int_equal(run(DIGITS(PLAIN), &killed, path, 2, &out, &why), PD_OK);
    assert_int_equal(saved_step(path, &due), 7);
    assert_true(!due && killed.written == 1);
    assert_string_equal(recorded_digest(path), before);
    for (int i = 0; i < 2; i++) { /* once: then polyd knows */
        next = (struct book){.stop_after_calls = 1, .how = TRAIN_STOP_CANCEL};
        assert_int_equal(run(DIGITS(PLAIN), &next, path, 2, &out, &why), PD_OK);
        assert_non_null(strstr(next.events, "resume;"));
        assert_int_equal(next.written, i ? 0 : 1);
        assert_int_equal(digest_file_hex(path, hex, &why), PD_OK);
        assert_string_equal(recorded_digest(path), hex);
        assert_string_not_equal(hex, before);
        close_book(&next);
    }
    close_book(&first);
    close_book(&killed);
}

static void test_corrupt_checkpoint_falls_back_and_says_so(void **state)
{
    struct book whole = {0}, b = {0};
    struct train_outcome out, want;
    char newest[1024];
    struct pd_why why;
    FILE *f;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &whole, NULL, 2, &want, &why), PD_OK);
    clear();
    b.stop_after_calls = 20;
    b.how = TRAIN_STOP_CHECKPOINT;
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_STOPPED);
    snprintf(newest, sizeof newest, "%s", out.latest_path);
    assert_in_range(files(), 2, 3);
    f = fopen(newest, "r+b");
    assert_non_null(f);
    fseek(f, -100, SEEK_END);
    assert_int_equal(fputc(fgetc(f) ^ 1, f) != EOF, 1); /* after a read the next byte is written */
    fclose(f);
    {
        struct data_st *st = NULL;
        struct train_state s;

        assert_int_equal(train_checkpoint_open(newest, &st, &s, &why), PD_ERR_CORRUPT);
    }
    close_book(&b);
    assert_int_equal(run(DIGITS(PLAIN), &b, newest, 2, &out, &why), PD_OK);
    assert_non_null(strstr(b.events, "checkpoint_fallback;"));
    assert_non_null(strstr(b.events, "resume;"));
    assert_int_equal(out.result, TRAIN_DONE);
    assert_memory_equal(&out.loss_train, &want.loss_train, sizeof(double));
    close_book(&b);
    close_book(&whole);
}

static void test_run_goes_on_from_named_checkpoints_only(void **state)
{
    struct book whole = {0}, b = {.from_seed = true};
    struct train_outcome out, want;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &whole, NULL, 2, &want, &why), PD_OK);
    /* The folder holds the end of the same document's run: nobody named it. */
    assert_true(files() > 0);
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_non_null(strstr(b.events, "start;"));
    assert_null(strstr(b.events, "resume;"));
    assert_int_equal(b.count, whole.count); /* every point is computed anew */
    assert_memory_equal(&out.loss_train, &want.loss_train, sizeof(double));
    close_book(&b);
    close_book(&whole);
}

/* Steps of the files in the run's folder, as "6 24 ". */
static const char *checkpoint_steps(void)
{
    static char text[200];
    int64_t steps[32];
    struct dirent *e;
    size_t n = 0;
    DIR *d = opendir(checkpoints);

    assert_non_null(d);
    while ((e = readdir(d)))
        if (train_checkpoint_step(e->d_name) >= 0)
            steps[n++] = train_checkpoint_step(e->d_name);
    closedir(d);
    text[0] = '\0';
    for (int64_t s = 0; s < 1000; s++)
        for (size_t i = 0; i < n; i++)
            if (steps[i] == s)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%lld ", (long long)s);
    return text;
}

#define KEEPS_ONE                                                                                            \
    "\"steps\":24,\"batch\":8,\"eval_every\":100,\"checkpoint_every\":{\"steps\":3},\"keep\":{\"latest\":1," \
    "\"best\":0}"

static void test_newest_recorded_checkpoint_is_not_removed(void **state)
{
    struct book b = {.unrecorded = 7, .stop_after_calls = 14, .how = TRAIN_STOP_CANCEL};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS(KEEPS_ONE), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_CANCELLED);
    assert_true(out.step > 12);                                /* more than two were written since */
    assert_int_equal(strncmp(checkpoint_steps(), "6 ", 2), 0); /* what the next attempt would receive */
    assert_int_equal(b.waits, 0);
    close_book(&b);
    clear();
    b = (struct book){.unrecorded = 7};
    assert_int_equal(run(DIGITS(KEEPS_ONE), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(b.waits, 1); /* at the end, before the others go */
    assert_string_equal(checkpoint_steps(), "24 ");
    close_book(&b);
}

static void test_checkpoint_of_another_course_refused(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(run(DIGITS(PLAIN ",\"seed\":1"), &b, NULL, 2, &out, &why), PD_ERR_CONFLICT);
    assert_int_equal(out.result, TRAIN_FAILED);
    close_book(&b);
}

static void test_flipped_bits_of_a_checkpoint_are_found(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;
    uint8_t *bytes;
    size_t len;
    char path[256];

    (void)state;
    assert_int_equal(run(DIGITS("\"steps\":2,\"batch\":8"), &b, NULL, 2, &out, &why), PD_OK);
    read_whole(out.latest_path, &bytes, &len);
    snprintf(path, sizeof path, "%s/flipped", folder);
    for (size_t at = 0; at < len; at += at < 4096 ? 37 : 1501) {
        struct data_st *st = NULL;
        struct train_state s;
        FILE *f = fopen(path, "wb");

        bytes[at] ^= 4;
        assert_int_equal(fwrite(bytes, 1, len, f), len);
        fclose(f);
        bytes[at] ^= 4;
        if (train_checkpoint_open(path, &st, &s, &why) == PD_OK)
            fail_msg("a flipped bit of byte %zu was not noticed", at);
    }
    free(bytes);
    close_book(&b);
}

static void test_full_disk_fails_checkpoints_not_steps(void **state)
{
    struct rlimit old, tight;
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;
    enum pd_err err;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = old;
    tight.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    err = run(DIGITS(PLAIN), &b, NULL, 2, &out, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err == PD_OK, 0); /* the last checkpoint is the result */
    assert_int_equal(out.result, TRAIN_FAILED);
    assert_int_equal(out.step, 24); /* the steps were made all the same */
    assert_non_null(strstr(b.events, "checkpoint_failed;"));
    assert_int_equal(b.written, 0);
    assert_int_equal(files(), 0); /* no temporary file is left */
    close_book(&b);
    /* and once there is room again the run is finished */
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_DONE);
    close_book(&b);
}

#define DIVERGING(diagnostics)                                                                               \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":4},"                 \
    "\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"none\",\"init_logit_std\":20},"         \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":10}},"          \
    "\"diagnostics\":{\"every\":10" diagnostics "},\"resources\":{\"device\":\"cpu\"},"                      \
    "\"train\":{\"steps\":200,\"batch\":8,\"nonfinite_limit\":4,"                                            \
    "\"optimizer\":{\"name\":\"msgdw\",\"lr\":1e30},\"schedule\":{\"warmup_steps\":0}}}"

static void test_raw_cube_with_huge_rate_diverges(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIVERGING(""), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_DIVERGED);
    assert_int_equal(out.nonfinite, 4);
    assert_true(out.step < 200);
    assert_non_null(strstr(b.events, "nonfinite;"));
    assert_non_null(find(&b, "nonfinite", out.step));
    close_book(&b);
}

/* Histograms after each of the first steps, of gradients whose entries are NaN. */
static void test_histograms_of_a_gradient_that_is_not_finite(void **state)
{
    static const char *const keys[] = {"grad/kurtosis/w_q", "grad/hill/w_q", "grad/ratio/w_q",
                                       "grad/top_share/w_q", "grad/layer_ratio/w_q"};
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(
        run(DIVERGING(",\"histograms\":{\"at\":[0,0.005,0.01,0.015,0.02,0.025]}"), &b, NULL, 2, &out, &why),
        PD_OK);
    assert_int_equal(out.result, TRAIN_DIVERGED);
    assert_in_range(out.step, 4, 5); /* the last of them has histograms */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_non_null(find(&b, keys[i], 0));
        assert_null(find(&b, keys[i], out.step));
    }
    close_book(&b);
}

static void test_checkpoint_on_request(void **state)
{
    struct book b = {.want_checkpoint = 3};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(DIGITS("\"steps\":5,\"batch\":8,\"eval_every\":100"), &b, NULL, 2, &out, &why),
                     PD_OK);
    assert_int_equal(out.result, TRAIN_DONE);
    assert_true(b.written >= 2);
    close_book(&b);
}

static void test_text_learns_and_stops_bit_identically(void **state)
{
    static const char job[] =
        "{\"model\":{\"preset\":\"gpt_micro\",\"width\":16,\"depth\":2,\"heads\":2,\"context\":16},"
        "\"attention\":{\"activation\":\"softmax\"},"
        "\"data\":{\"dataset\":\"text\",\"path\":\"box/"
        "t.txt\",\"split\":{\"rule\":\"fraction\",\"train\":0.8,\"val\":0.2}},"
        "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1},"
        "\"train\":{\"steps\":60,\"batch\":4,\"eval_every\":20,\"optimizer\":{\"lr\":0.01}}}";
    struct book whole = {0}, b = {0};
    struct train_outcome out, want;
    char path[128];
    struct pd_why why;
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/t.txt", folder);
    f = fopen(path, "w");
    for (int i = 0; i < 200; i++)
        fputs("abcdefgh ", f);
    fclose(f);
    assert_int_equal(run(job, &whole, NULL, 1, &want, &why), PD_OK);
    assert_int_equal(want.result, TRAIN_DONE);
    assert_true(find(&whole, "loss/train", 1)->value > 5.3); /* ln 256 = 5.545 */
    assert_true(want.loss_val < 2.0);
    assert_string_equal(want.best_metric, "loss/val");
    assert_true(fabs(want.metric_val - exp(want.loss_val)) < 1e-9);
    clear();
    b.stop_after_calls = 31;
    b.how = TRAIN_STOP_CHECKPOINT;
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_STOPPED);
    b.stop_after_calls = 0;
    assert_int_equal(run(job, &b, NULL, 2, &out, &why), PD_OK);
    same_points(&whole, &b);
    close_book(&whole);
    close_book(&b);
}

static void test_plan_forecasts_bytes_and_steps(void **state)
{
    struct job_config *config = NULL;
    struct book b = {0};
    struct train_outcome out;
    struct pd_buf json;
    struct pd_why why;
    struct stat s;
    const char *text;
    long long forecast;

    (void)state;
    assert_int_equal(job_config_load(DIGITS(PLAIN), strlen(DIGITS(PLAIN)), &config, &why), PD_OK);
    pd_buf_init(&json, 0);
    assert_int_equal(train_plan(config, NULL, &root, 1, NULL, 0, &json, &why), PD_OK);
    assert_non_null(
        strstr(json.data, "\"steps\":24,\"steps_per_epoch\":5,\"train_samples\":40,\"val_samples\":11"));
    assert_non_null(strstr(json.data, "\"n_for_scale\":16"));
    text = strstr(json.data, "\"checkpoint_bytes\":");
    assert_non_null(text);
    forecast = strtoll(text + strlen("\"checkpoint_bytes\":"), NULL, 10);
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(stat(out.latest_path, &s), 0);
    assert_in_range(s.st_size, forecast, forecast + 65536); /* and its header */
    job_config_free(config);
    pd_buf_done(&json);
    close_book(&b);
}

/* The optimiser reads g, m, v and p and writes the last three: 28 bytes a parameter, and 4 for the norm. */
static int64_t number(const struct pd_buf *b, const char *name)
{
    const char *at = strstr(b->data, name);

    return at ? strtoll(at + strlen(name), NULL, 10) : -1;
}

/* The plan that does not fit names an accumulation with which the plan says what it is said to say. */
static void test_a_plan_too_large_names_an_accumulation(void **state)
{
    static const char form[] = "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},"
                               "\"train\":{\"steps\":2,\"batch\":96,\"accumulation\":%d},\"resources\":{"
                               "\"device\":\"cpu\"}}";
    int64_t total[97] = {0}, said, parts;

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int n = 1; n <= 96; n++) {
            struct job_config *config = NULL;
            struct pd_buf plan;
            struct pd_why why = {""};
            char job[300];

            if (96 % n || (round && n > 1))
                continue;
            snprintf(job, sizeof job, form, n);
            assert_int_equal(job_config_load(job, strlen(job), &config, &why), PD_OK);
            pd_buf_init(&plan, 0);
            /* of 2, 4, 8, ... the first that needs no more than 12 does */
            if (train_plan(config, NULL, NULL, 0, NULL, round ? total[12] : 0, &plan, &why) != PD_OK)
                fail_msg("%s", why.text);
            if (!round) {
                total[n] = number(&plan, "\"total_bytes\":");
                assert_null(strstr(plan.data, "accumulated"));
            } else {
                parts = number(&plan, "\"accumulated\":{\"accumulation\":");
                said = number(&plan, "\"accumulation\":16,\"total_bytes\":");
                assert_int_equal(parts, 16);
                assert_int_equal(said, total[16]);
                assert_true(total[8] > total[12] && total[16] < total[12]);
            }
            job_config_free(config);
            pd_buf_done(&plan);
        }
}

#define MIXING(more, accumulation)                                                                           \
    "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\",\"augment\":{\"mixup\":0."   \
    "8" more "}},\"train\":{\"steps\":2,\"batch\":96,\"accumulation\":" accumulation                         \
    "},\"resources\":{\"device\":\"cpu\"}}"

/* The number of parts that the plan names if there are `memory` bytes; ret_total: what the document itself needs. */
static int64_t parts_named(const char *json, int64_t memory, int64_t *ret_total)
{
    struct job_config *config = NULL;
    struct pd_buf plan;
    struct pd_why why = {""};
    int64_t parts;

    if (job_config_load(json, strlen(json), &config, &why) != PD_OK)
        fail_msg("%s", why.text);
    pd_buf_init(&plan, 0);
    assert_int_equal(train_plan(config, NULL, NULL, 0, NULL, memory, &plan, &why), PD_OK);
    *ret_total = number(&plan, "\"total_bytes\":");
    parts = number(&plan, "\"accumulated\":{\"accumulation\":");
    job_config_free(config);
    pd_buf_done(&plan);
    return parts;
}

/* Parts of 3 images have no partners, and parts of 8 no groups of 12. */
static void test_an_accumulation_that_is_named_is_accepted(void **state)
{
    int64_t sixteen, total;

    (void)state;
    assert_int_equal(parts_named(MIXING("", "16"), 0, &sixteen), -1);
    assert_int_equal(parts_named(MIXING("", "1"), sixteen, &total), 16);
    assert_int_equal(parts_named(MIXING("", "1"), sixteen - 1, &total), 48);
    assert_int_equal(parts_named(MIXING("", "1"), 1, &total), 48);
    (void)parts_named(MIXING("", "48"), 0, &total);
    assert_int_equal(parts_named(MIXING(",\"mix_group\":12", "2"), 1, &total), 8);
    (void)parts_named(MIXING(",\"mix_group\":12", "8"), 0, &total);
}

static void test_a_step_is_counted(void **state)
{
    const struct pk_peaks peaks = {1e15, 1e12};
    struct job_config *config = NULL;
    struct pd_buf plan, text;
    struct pd_why why;
    const char *line;
    double parameters, kernels, read, written;

    (void)state;
    assert_int_equal(job_config_load(DIGITS(PLAIN), strlen(DIGITS(PLAIN)), &config, &why), PD_OK);
    pd_buf_init(&plan, 0);
    pd_buf_init(&text, 0);
    assert_int_equal(train_plan(config, NULL, &root, 1, NULL, 0, &plan, &why), PD_OK);
    assert_int_equal(train_count(config, NULL, &root, 1, NULL, 0, &peaks, &text, &why), PD_OK);
    assert_non_null(strstr(text.data, "counted, not measured: at 1000 TFLOP/s and 1.00 TB/s"));
    line = strstr(plan.data, "\"parameters\":");
    assert_non_null(line);
    parameters = strtod(line + strlen("\"parameters\":"), NULL);
    line = strstr(text.data, "\noptimiser");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " optimiser forward %lf %lf %lf", &kernels, &read, &written), 3);
    read = read * 1e9 - 24 * (kernels - 1); /* hyper and gate, of each but the norm */
    assert_true(fabs(read / parameters - 20) < 0.01 && fabs(written * 1e9 / parameters - 12) < 0.01);
    job_config_free(config);
    pd_buf_done(&plan);
    pd_buf_done(&text);
}

/* 1e12 multiplications and additions of a step, of products and attention. */
static double counted(const char *json)
{
    const struct pk_peaks peaks = {1e15, 1e12};
    struct job_config *config = NULL;
    struct pd_buf text;
    struct pd_why why;
    const char *line;
    double kernels, read, written, tflop;

    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    pd_buf_init(&text, 0);
    assert_int_equal(train_count(config, NULL, &root, 1, NULL, 0, &peaks, &text, &why), PD_OK);
    line = strstr(text.data, "\ntotal");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " total %lf %lf %lf %lf", &kernels, &read, &written, &tflop), 4);
    job_config_free(config);
    pd_buf_done(&text);
    return tflop;
}

static void test_the_parts_of_a_step_multiply_what_the_whole_does(void **state)
{
    const double whole = counted(DIGITS(PLAIN)), parts = counted(DIGITS(PLAIN ",\"accumulation\":4"));

    (void)state;
    assert_true(whole > 0 && fabs(parts - whole) < 1e-3 * whole);
}

static void test_missing_data_fails_with_the_reason(void **state)
{
    static const char job[] =
        "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\",\"path\":\"box/none\"},"
        "\"resources\":{\"device\":\"cpu\"},\"train\":{\"steps\":1}}";
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(job, &b, NULL, 1, &out, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(out.result, TRAIN_FAILED);
    assert_non_null(strstr(why.text, "box/none"));
    close_book(&b);
}

static void test_examples_are_jobs_of_this_build(void **state)
{
    static const char *const names[] = {"mnist-softmax", "mnist-cubic-fixed", "mnist-cubic-learned",
                                        "shakespeare-softmax", "shakespeare-cubic-fixed"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct job_config *config = NULL;
        struct pd_buf json;
        struct pd_why why;
        char path[512];

        snprintf(path, sizeof path, EXAMPLES "/%s.json", names[i]);
        pd_buf_init(&json, 0);
        assert_int_equal(pd_file_read(path, JOB_MAX_BYTES, &json, &why), PD_OK);
        if (job_config_load(json.data, json.len, &config, &why) != PD_OK)
            fail_msg("%s: %s", names[i], why.text);
        job_config_free(config);
        pd_buf_done(&json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_run_says_everything_it_promises),
        T(test_resume_is_bit_identical_at_random_stops),
        T(test_killed_run_goes_on_from_its_last_checkpoint),
        T(test_file_that_was_written_again_unheard_is_reported),
        T(test_corrupt_checkpoint_falls_back_and_says_so),
        T(test_run_goes_on_from_named_checkpoints_only),
        T(test_newest_recorded_checkpoint_is_not_removed),
        T(test_checkpoint_of_another_course_refused),
        T(test_flipped_bits_of_a_checkpoint_are_found),
        T(test_full_disk_fails_checkpoints_not_steps),
        T(test_raw_cube_with_huge_rate_diverges),
        T(test_histograms_of_a_gradient_that_is_not_finite),
        T(test_checkpoint_on_request),
        T(test_text_learns_and_stops_bit_identically),
        T(test_plan_forecasts_bytes_and_steps),
        T(test_a_plan_too_large_names_an_accumulation),
        T(test_an_accumulation_that_is_named_is_accepted),
        T(test_a_step_is_counted),
        T(test_the_parts_of_a_step_multiply_what_the_whole_does),
        T(test_missing_data_fails_with_the_reason),
        T(test_examples_are_jobs_of_this_build),
#undef T
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
