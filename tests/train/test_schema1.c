/* tests/train/test_schema1.c: what was trained before schema 2 goes on as it began; what came with schema 2
 * decides the trajectory of a run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/serve/serve.h"
#include "tests/lib/batch.h"
#include "tests/lib/text.h"
#include "tests/train/rig.h"

/* The document with one piece of its text replaced; the caller frees it. */
static char *replaced(const char *json, const char *old, const char *new)
{
    const char *at = strstr(json, old);
    char *out = malloc(strlen(json) + strlen(new) + 1);

    assert_non_null(at);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - json), json, new, at + strlen(old));
    return out;
}

/* Lays the data and the checkpoint into the test's folder. */
static void lay_out(const char *name)
{
    char command[1024];

    clear();
    snprintf(command, sizeof command,
             "mkdir -p '%s' && cp " SCHEMA1 "/%s.safetensors '%s/step-000000000002.safetensors' && "
             "cp " SCHEMA1 "/text.txt '%s'",
             checkpoints, name, checkpoints, folder);
    assert_int_equal(system(command), 0);
}

static void goes_on(const char *name, const char *json, double loss_train, double loss_val)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    lay_out(name);
    if (run(json, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s: %s", name, why.text);
    assert_string_equal(b.events, "resume;inputs;");
    assert_int_equal(out.result, TRAIN_DONE);
    assert_null(find(&b, "loss/train", 2));
    /* another machine multiplies in another order */
    if (!(fabs(out.loss_train - loss_train) <= 2e-5 && fabs(out.loss_val - loss_val) <= 2e-5))
        fail_msg("%s: loss/train %.6f, loss/val %.6f", name, out.loss_train, out.loss_val);
    close_book(&b);
}

static void refused(const char *name, const char *json)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    lay_out(name);
    if (run(json, &b, NULL, 1, &out, &why) == PD_OK || !strstr(why.text, "another"))
        fail_msg("%s goes on: %s", json, why.text);
    close_book(&b);
}

static void test_runs_of_schema_1_go_on_as_they_began(void **state)
{
    char *digits = text_of(SCHEMA1, "digits.json"), *text = text_of(SCHEMA1, "text.json"), *other;

    (void)state;
    goes_on("digits", digits, 2.309945, 2.265920);
    goes_on("text", text, 2.927921, 2.643473);
    /* As documents of schema 2 they would be others: the split is that of seed 0, and a gpt with biases may
     * have the exact form. */
    other = replaced(digits, "\"schema\":1", "\"schema\":2");
    refused("digits", other);
    free(other);
    other = replaced(digits, "\"split\":", "\"split_seed\":5,\"split\":");
    goes_on("digits", other, 2.309945, 2.265920);
    free(other);
    other = replaced(text, "\"mlp_act\":", "\"gelu\":\"exact\",\"mlp_act\":");
    refused("text", other);
    free(other);
    other = replaced(text, "\"mlp_act\":", "\"gelu\":\"tanh\",\"mlp_act\":");
    goes_on("text", other, 2.927921, 2.643473);
    free(other);
    free(digits);
    free(text);
}

static void test_checkpoints_of_schema_1_are_served(void **state)
{
    static const char *const names[] = {"digits", "text"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[512];
        struct serve_options o = {.checkpoint = path, .threads = 1, .batch_max = 2, .streams_max = 1};
        struct serve *s = NULL;
        struct data_st *st = NULL;
        struct model_spec spec;
        struct pd_why why;

        snprintf(path, sizeof path, SCHEMA1 "/%s.safetensors", names[i]);
        if (serve_open(&o, &s, &why) != PD_OK || data_st_open(path, &st, &why) != PD_OK ||
            model_spec_from_meta(st, &spec, &why) != PD_OK)
            fail_msg("%s: %s", names[i], why.text);
        assert_int_equal(spec.gelu_tanh, i == 1);
        data_st_free(st);
        serve_close(s);
    }
}

/* ---- a checkpoint whose network this version makes otherwise ---- */

/* Replaces a piece of the checkpoint's metadata by one as long and puts the digest right. */
static void alter(const char *path, const char *old, const char *new)
{
    static const char key[] = "\"polyd.sha256\":\"";
    char hex[65];
    uint8_t *bytes;
    size_t len;
    char *at;
    FILE *f;

    read_whole(path, &bytes, &len);
    at = memmem(bytes, len, old, strlen(old));
    assert_non_null(at);
    memcpy(at, new, strlen(new));
    at = (char *)memmem(bytes, len, key, strlen(key)) + strlen(key);
    memset(at, '0', 64);
    digest_sha256_hex(bytes, len, hex);
    memcpy(at, hex, 64);
    f = fopen(path, "w");
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    fclose(f);
    free(bytes);
}

/* The plan of an evaluation names the field, so that the submission is refused. */
static void check_planned(const char *json, const char *path, const char *refusal)
{
    struct job_config *config = NULL;
    char hex[DIGEST_SHA256_HEX_SIZE];
    struct pd_buf plan;
    struct pd_why why = {""};
    uint8_t *bytes;
    size_t len;
    enum pd_err err;

    read_whole(path, &bytes, &len);
    digest_sha256_hex(bytes, len, hex);
    free(bytes);
    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    config->evaluate = (struct job_evaluate){
        .run = "1", .path = path + strlen(folder) + 1, .sha256 = hex, .split = config->evaluate.split};
    pd_buf_init(&plan, 0);
    err = train_score_plan(config, folder, &root, 1, NULL, &plan, &why);
    if (err != (refusal ? PD_ERR_VERSION : PD_OK) ||
        (refusal && (strncmp(why.text, "#/checkpoint: ", 14) != 0 || !strstr(why.text, refusal))))
        fail_msg("planned: %s", why.text);
    pd_buf_done(&plan);
    job_config_free(config);
}

/* Evaluates the checkpoint and resumes from it, the newest of the folder. refusal: part of the sentence; NULL: neither is
 * refused. */
static void check_taken(const char *json, const char *path, const char *what, const char *refusal)
{
    struct job_config *config = NULL;
    struct train_outcome out;
    struct train_setup s;
    struct data_st *st = NULL;
    struct book b = {0};
    struct pd_why why = {""};
    enum pd_err err;

    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    assert_int_equal(data_st_open(path, &st, &why), PD_OK);
    err = train_setup_score(&s, config, st, &root, 1, NULL, false, &why);
    if (err != (refusal ? PD_ERR_VERSION : PD_OK) || (refusal && !strstr(why.text, refusal)))
        fail_msg("%s is scored: %s", what, why.text);
    train_setup_done(&s);
    data_st_free(st);
    job_config_free(config);
    check_planned(json, path, refusal);
    err = run(json, &b, NULL, 1, &out, &why);
    if (err != (refusal ? PD_ERR_VERSION : PD_OK) || (refusal && !strstr(why.text, refusal)))
        fail_msg("%s goes on: %s", what, why.text);
    assert_int_equal(out.lasting, refusal != NULL);
    if (!refusal)
        assert_string_equal(b.events, "resume;inputs;");
    close_book(&b);
}

static void check_altered(const char *old, const char *new, const char *refusal)
{
    char *json = text_of(SCHEMA1, "digits.json"), path[512];

    lay_out("digits");
    snprintf(path, sizeof path, "%s/step-000000000002.safetensors", checkpoints);
    alter(path, old, new);
    check_taken(json, path, new, refusal);
    free(json);
}

static void test_a_checkpoint_of_another_function_is_refused(void **state)
{
    (void)state;
    check_altered("model.degree\":\"3", "model.degree\":\"3", NULL);
    check_altered("model.degree\":\"3", "model.degree\":\"5", "polyd.model.degree");
    /* N is in the factor alone */
    check_altered("n_for_scale\":\"4", "n_for_scale\":\"9", NULL);
}

/* One step on digits. */
#define ONE_STEP(model, attention, data)                                                                     \
    "{\"model\":{" model "},\"attention\":{" attention "},"                                                  \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":8,\"val\":4}" data "},"    \
    "\"diagnostics\":{\"every\":0},\"resources\":{\"device\":\"cpu\",\"threads\":1},"                        \
    "\"train\":{\"steps\":1,\"batch\":2,\"eval_every\":1}}"

static void train(const char *json, char path[1024])
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};

    clear();
    if (run(json, &b, NULL, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    snprintf(path, 1024, "%s", b.last_path);
    close_book(&b);
}

static void check_scale(const char *json, const char *old, const char *new, const char *refusal)
{
    char path[1024];

    train(json, path);
    alter(path, old, new);
    check_taken(json, path, json, refusal);
}

/* N of pairs of texts became that of one text, so a learned scale begins with another value. */
static void test_a_learned_scale_may_have_begun_elsewhere(void **state)
{
#define SCALED(model, patch, scale)                                                                          \
    ONE_STEP("\"preset\":\"" model "\",\"width\":8,\"depth\":1,\"heads\":2,\"patch\":" patch,                \
             "\"activation\":\"poly\",\"scale\":\"" scale "\"", "")
    (void)state;
    check_scale(SCALED("vit_micro", "14", "learned"), "model.scale_value\":\"0.5",
                "model.scale_value\":\"0.7", NULL);
    check_scale(SCALED("vit_micro", "14", "fixed"), "model.scale_value\":\"0.5", "model.scale_value\":\"0.7",
                "polyd.model.scale_value");
    /* 1/sqrt(50) with the class token */
    check_scale(SCALED("xcit_micro", "4", "learned"), "class.scale_value\":\"0.14",
                "class.scale_value\":\"0.25", NULL);
    check_scale(SCALED("xcit_micro", "4", "fixed"), "class.scale_value\":\"0.14",
                "class.scale_value\":\"0.25", "polyd.model.class.scale_value");
#undef SCALED
}

/* Earlier versions had the first stage's factor in all blocks, and no count_power of a formula. */
static void check_stages(const char *json, bool equal)
{
    struct data_st *st = NULL;
    char path[1024];

    train(json, path);
    assert_int_equal(data_st_open(path, &st, NULL), PD_OK);
    assert_int_equal(data_st_meta(st, "polyd.model.count_power") == NULL, equal);
    data_st_free(st);
    if (!equal)
        alter(path, "model.count_power\"", "model.count_other\"");
    check_taken(json, path, json, equal ? NULL : "polyd.model.count_power");
}

static void test_a_formula_of_equal_stages_is_the_function_that_it_was(void **state)
{
#define FORMULA_SWIN(window)                                                                                 \
    ONE_STEP("\"preset\":\"swin_micro\",\"widths\":[8,16],\"depths\":[1,1],\"head_counts\":[1,2],"           \
             "\"window\":" window,                                                                           \
             "\"activation\":\"formula\",\"formula\":\"s^3/sqrt(n)\"", "")
    (void)state;
    check_stages(FORMULA_SWIN("7"), true);   /* 49 patches a window, of 14 x 14 and of 7 x 7 */
    check_stages(FORMULA_SWIN("14"), false); /* 196 and 49 */
#undef FORMULA_SWIN
}

/* RandAugment reads the interpolation, which was found later. */
static void test_a_digest_without_what_was_found_to_matter_fits(void **state)
{
    static const char json[] =
        ONE_STEP("\"preset\":\"vit_micro\",\"width\":8,\"depth\":1,\"heads\":1,\"patch\":14", "",
                 ",\"augment\":{\"randaugment\":{},\"interpolation\":\"bilinear\"}");
    struct job_config *config = NULL;
    struct train_setup s;
    struct pd_why why;
    struct train_outcome out;
    struct book b = {0};
    char path[1024], other[TRAIN_DIGEST_SIZE];

    (void)state;
    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    assert_int_equal(train_setup_init(&s, config, &root, 1, NULL, NULL, 0, false, &why), PD_OK);
    assert_string_not_equal(s.trajectory, s.earlier_trajectory);
    train(json, path);
    alter(path, s.trajectory, s.earlier_trajectory);
    check_taken(json, path, json, NULL);
    memset(other, 'a', sizeof other - 1);
    other[sizeof other - 1] = '\0';
    alter(path, s.earlier_trajectory, other);
    assert_int_equal(run(json, &b, NULL, 1, &out, &why), PD_ERR_CONFLICT);
    close_book(&b);
    train_setup_done(&s);
    job_config_free(config);
}

/* ---- data.split_seed ---- */

#define DRAWN(trial, more)                                                                                   \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":1,\"heads\":1,\"patch\":14},"                \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":24}" more "},"  \
    "\"resources\":{\"device\":\"cpu\"},\"train\":{\"steps\":2,\"batch\":8,\"seed\":" trial "}}"

struct pictures {
    char digest[TRAIN_DIGEST_SIZE];
    float sum[2];   /* of the pixels of both parts, each picture weighed by its place */
    float order[8]; /* of the first training batch */
};

static struct pictures pictures_of(const char *json)
{
    struct pictures p = {.digest = ""};
    struct job_config *config = NULL;
    struct train_setup s;
    struct pd_why why;

    assert_int_equal(job_config_load(json, strlen(json), &config, &why), PD_OK);
    if (train_setup_init(&s, config, &root, 1, NULL, NULL, 0, false, &why) != PD_OK)
        fail_msg("%s", why.text);
    memcpy(p.digest, s.old_trajectory, sizeof p.digest);
    for (int split = 0; split < 2; split++) {
        const struct data_batch *batch;
        struct data_loader *l = NULL;

        /* of training pictures an epoch in the order of seed 0, whatever the run's own is */
        assert_int_equal(data_loader_start(s.set, split, 8, 0, 0, 1, &l, &why), PD_OK);
        for (int k = 0; k < (split ? 3 : 5); k++) {
            assert_int_equal(data_loader_next(l, &batch, &why), PD_OK);
            assert_int_equal(batch->used, 8);
            for (int i = 0; i < 8 * 784; i++)
                p.sum[split] += images_of(batch)[i] * (float)(1 + k * 8 + i / 784);
        }
        data_loader_free(l);
    }
    {
        const struct data_batch *batch;
        struct data_loader *l = NULL;

        assert_int_equal(
            data_loader_start(s.set, DATA_TRAIN, 8, (uint64_t)config->train.seed, 0, 1, &l, &why), PD_OK);
        assert_int_equal(data_loader_next(l, &batch, &why), PD_OK);
        for (int i = 0; i < 8 * 784; i++)
            p.order[i / 784] += images_of(batch)[i];
        data_loader_free(l);
    }
    train_setup_done(&s);
    job_config_free(config);
    return p;
}

static bool same_data(const struct pictures *a, const struct pictures *b)
{
    return !memcmp(a->sum, b->sum, sizeof a->sum);
}

static void test_trials_share_their_data_unless_asked(void **state)
{
    struct pictures first = pictures_of(DRAWN("5", "")), second = pictures_of(DRAWN("6", "")),
                    asked = pictures_of(DRAWN("6", ",\"split_seed\":null")),
                    alike = pictures_of(DRAWN("6", ",\"split_seed\":6")),
                    other = pictures_of(DRAWN("5", ",\"split_seed\":1"));

    (void)state;
    assert_true(same_data(&first, &second));
    assert_memory_not_equal(first.order, second.order, sizeof first.order); /* which follows the trial */
    assert_false(same_data(&second, &asked));
    assert_true(same_data(&asked, &alike));
    assert_false(same_data(&first, &other));
    assert_string_not_equal(first.digest, second.digest);
    assert_string_not_equal(second.digest, asked.digest);
    assert_string_equal(asked.digest, alike.digest); /* two ways to say the same */
    assert_string_not_equal(first.digest, other.digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_runs_of_schema_1_go_on_as_they_began, setup, teardown),
        cmocka_unit_test(test_checkpoints_of_schema_1_are_served),
        cmocka_unit_test_setup_teardown(test_a_checkpoint_of_another_function_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_learned_scale_may_have_begun_elsewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_formula_of_equal_stages_is_the_function_that_it_was, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_digest_without_what_was_found_to_matter_fits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_trials_share_their_data_unless_asked, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
