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

#include <cmocka.h>

#include "daemon/data/philox.h"
#include "daemon/train/checkpoint.h"
#include "daemon/train/setup.h"
#include "kernels/base/file.h"

#define DIGITS(train)                                                                                        \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"mlp_ratio\":2}," \
    "\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\",\"scale_share\":\"head\"},"   \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11},"           \
    "\"augment\":{\"crop\":\"pad_crop\",\"pad_crop\":{\"shift\":2}}},"                                       \
    "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"      \
    "\"train\":{" train "}}"
#define PLAIN                                                                                                \
    "\"steps\":24,\"batch\":8,\"eval_every\":7,\"optimizer\":{\"lr\":0.01},\"clip_norm\":0.5,"               \
    "\"schedule\":{\"warmup_steps\":4},\"checkpoint_every\":{\"steps\":6}"

static char folder[64], checkpoints[128];
static struct data_root root = {"box", folder};

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/polyd-train-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(checkpoints, sizeof checkpoints, "%s/run", folder);
    return 0;
}

static int teardown(void **state)
{
    char command[160];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* ---- a host that writes everything down ---- */

struct point {
    char key[40];
    int64_t step;
    double value;
};

struct book {
    struct point *points;
    size_t count;
    char events[4096];
    int written, written_best;
    char last_path[1024];
    int64_t progress;
    /* stop when this step's points have come, or inside the evaluation after it */
    int64_t stop_at;
    enum train_stop how;
    int64_t asked; /* calls of stop */
    int64_t stop_after_calls;
    int want_checkpoint;
};

static bool timing(const char *key)
{
    return !strcmp(key, "step_ms") || !strcmp(key, "samples_per_s") || !strcmp(key, "tokens_per_s") ||
           !strcmp(key, "mem/arena");
}

static void on_metrics(void *user, const struct train_point *points, size_t count)
{
    struct book *b = user;

    assert_true(count > 0 && count <= 1000);
    b->points = realloc(b->points, (b->count + count) * sizeof *b->points);
    for (size_t i = 0; i < count; i++) {
        if (timing(points[i].key)) {
            assert_true(points[i].value > 0);
            continue;
        }
        snprintf(b->points[b->count].key, sizeof b->points[0].key, "%s", points[i].key);
        b->points[b->count].step = points[i].step;
        b->points[b->count++].value = points[i].value;
    }
}

static void on_event(void *user, const char *kind, const char *text, const char *fields)
{
    struct book *b = user;
    size_t n = strlen(b->events);

    assert_non_null(text);
    assert_non_null(fields);
    snprintf(b->events + n, sizeof b->events - n, "%s;", kind);
}

static void on_progress(void *user, int64_t step, int64_t total)
{
    ((struct book *)user)->progress = step;
    assert_true(step <= total);
}

static void on_checkpoint(void *user, const struct train_checkpoint_info *info)
{
    struct book *b = user;
    struct stat s;

    b->written++;
    b->written_best += info->best;
    snprintf(b->last_path, sizeof b->last_path, "%s", info->path);
    assert_int_equal(stat(info->path, &s), 0);
    assert_int_equal(s.st_size, info->bytes);
}

static enum train_stop on_stop(void *user)
{
    struct book *b = user;

    b->asked++;
    if (b->stop_after_calls && b->asked > b->stop_after_calls)
        return b->how;
    return TRAIN_STOP_NONE;
}

static bool on_checkpoint_now(void *user)
{
    struct book *b = user;

    return b->want_checkpoint > 0 && b->want_checkpoint-- == 1;
}

static void on_log(void *user, const char *line)
{
    (void)user;
    assert_true(strlen(line) > 0);
}

static enum pd_err run(const char *json, struct book *book, const char *start, int threads,
                       struct train_outcome *out, struct pd_why *why)
{
    const struct train_host host = {.user = book,
                                    .metrics = on_metrics,
                                    .event = on_event,
                                    .progress = on_progress,
                                    .checkpoint_written = on_checkpoint,
                                    .log = on_log,
                                    .stop = on_stop,
                                    .checkpoint_now = on_checkpoint_now};
    const struct train_dirs dirs = {
        .checkpoints = checkpoints, .roots = &root, .root_count = 1, .start = start, .threads = threads};
    struct spec_config *config = NULL;
    enum pd_err err = spec_config_load(json, strlen(json), &config, why);

    if (err != PD_OK)
        fail_msg("the document is refused: %s", why->text);
    err = train_run(config, &dirs, &host, out, why);
    spec_config_free(config);
    return err;
}

static void close_book(struct book *b)
{
    free(b->points);
    memset(b, 0, sizeof *b);
}

static const struct point *find(const struct book *b, const char *key, int64_t step)
{
    for (size_t i = 0; i < b->count; i++)
        if (!strcmp(b->points[i].key, key) && b->points[i].step == step)
            return &b->points[i];
    return NULL;
}

static size_t files(void)
{
    DIR *d = opendir(checkpoints);
    struct dirent *e;
    size_t n = 0;

    assert_non_null(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void clear(void)
{
    char command[160];

    snprintf(command, sizeof command, "rm -rf '%s'", checkpoints);
    assert_int_equal(system(command), 0);
}

static void read_whole(const char *path, uint8_t **ret, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *ret_len = (size_t)ftell(f);
    rewind(f);
    *ret = malloc(*ret_len + 1);
    assert_int_equal(fread(*ret, 1, *ret_len, f), *ret_len);
    fclose(f);
}

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
    assert_int_equal(spec.share, MODEL_SHARE_HEAD);
    assert_true(spec.n_for_scale == 16);
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

/* Compares two books by key and step, in order: every value has the same bits. */
static void same_points(const struct book *a, const struct book *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct point *p = find(b, a->points[i].key, a->points[i].step);

        if (!p || memcmp(&p->value, &a->points[i].value, sizeof p->value))
            fail_msg("%s at step %lld: %a and %a", a->points[i].key, (long long)a->points[i].step,
                     a->points[i].value, p ? p->value : (double)NAN);
    }
}

static void test_resume_is_bit_identical_at_random_stops(void **state)
{
    struct book whole = {0};
    struct train_outcome out;
    uint8_t *want, *got;
    size_t want_len, got_len;
    uint64_t seed = (uint64_t)time(NULL);
    const char *fixed = getenv("POLYD_TEST_SEED");
    struct pd_why why;

    (void)state;
    if (fixed)
        seed = strtoull(fixed, NULL, 10);
    print_message("POLYD_TEST_SEED=%llu\n", (unsigned long long)seed);
    assert_int_equal(run(DIGITS(PLAIN), &whole, NULL, 1, &out, &why), PD_OK);
    read_whole(out.latest_path, &want, &want_len);
    for (int trial = 0; trial < 6; trial++) {
        struct book pieces = {0};
        int stops = 0;

        clear();
        do {
            uint32_t word[4];

            data_random(seed, DATA_STREAM_INIT, (uint64_t)trial, (uint64_t)stops++, word);
            /* stop is asked at boundaries and inside evaluations: any moment may be hit */
            pieces.asked = 0;
            pieces.stop_after_calls = 1 + data_bounded(word[0], 12);
            pieces.how = TRAIN_STOP_CHECKPOINT;
            assert_int_equal(run(DIGITS(PLAIN), &pieces, NULL, 1 + trial % 2, &out, &why), PD_OK);
            assert_true(out.result == TRAIN_STOPPED || out.result == TRAIN_DONE);
            assert_true(stops < 100);
        } while (out.result != TRAIN_DONE);
        same_points(&whole, &pieces);
        read_whole(out.latest_path, &got, &got_len);
        assert_int_equal(got_len, want_len);
        assert_memory_equal(got, want, want_len); /* parameters, moments, counts: all of it */
        free(got);
        close_book(&pieces);
    }
    free(want);
    close_book(&whole);
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

static void test_raw_cube_with_huge_rate_diverges(void **state)
{
    static const char job[] =
        "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":4},"
        "\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"none\",\"init_logit_std\":20},"
        "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":10}},"
        "\"diagnostics\":{\"every\":10},\"resources\":{\"device\":\"cpu\"},"
        "\"train\":{\"steps\":200,\"batch\":8,\"nonfinite_limit\":4,\"optimizer\":{\"name\":\"msgdw\",\"lr\":"
        "1e30},"
        "\"schedule\":{\"warmup_steps\":0}}}";
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    assert_int_equal(run(job, &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_DIVERGED);
    assert_int_equal(out.nonfinite, 4);
    assert_true(out.step < 200);
    assert_non_null(strstr(b.events, "nonfinite;"));
    assert_non_null(find(&b, "nonfinite", out.step));
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
    struct spec_config *config = NULL;
    struct book b = {0};
    struct train_outcome out;
    struct pd_buf json;
    struct pd_why why;
    struct stat s;
    const char *text;
    long long forecast;

    (void)state;
    assert_int_equal(spec_config_load(DIGITS(PLAIN), strlen(DIGITS(PLAIN)), &config, &why), PD_OK);
    pd_buf_init(&json, 0);
    assert_int_equal(train_plan(config, &root, 1, &json, &why), PD_OK);
    assert_non_null(
        strstr(json.data, "\"steps\":24,\"steps_per_epoch\":5,\"train_samples\":40,\"val_samples\":11"));
    assert_non_null(strstr(json.data, "\"n_for_scale\":16"));
    text = strstr(json.data, "\"checkpoint_bytes\":");
    assert_non_null(text);
    forecast = strtoll(text + strlen("\"checkpoint_bytes\":"), NULL, 10);
    assert_int_equal(run(DIGITS(PLAIN), &b, NULL, 2, &out, &why), PD_OK);
    assert_int_equal(stat(out.latest_path, &s), 0);
    assert_in_range(s.st_size, forecast, forecast + 65536); /* and its header */
    spec_config_free(config);
    pd_buf_done(&json);
    close_book(&b);
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
        struct spec_config *config = NULL;
        struct pd_buf json;
        struct pd_why why;
        char path[512];

        snprintf(path, sizeof path, EXAMPLES "/%s.json", names[i]);
        pd_buf_init(&json, 0);
        assert_int_equal(pd_file_read(path, SPEC_MAX_BYTES, &json, &why), PD_OK);
        if (spec_config_load(json.data, json.len, &config, &why) != PD_OK)
            fail_msg("%s: %s", names[i], why.text);
        spec_config_free(config);
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
        T(test_corrupt_checkpoint_falls_back_and_says_so),
        T(test_checkpoint_of_another_course_refused),
        T(test_flipped_bits_of_a_checkpoint_are_found),
        T(test_full_disk_fails_checkpoints_not_steps),
        T(test_raw_cube_with_huge_rate_diverges),
        T(test_checkpoint_on_request),
        T(test_text_learns_and_stops_bit_identically),
        T(test_plan_forecasts_bytes_and_steps),
        T(test_missing_data_fails_with_the_reason),
        T(test_examples_are_jobs_of_this_build),
#undef T
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
