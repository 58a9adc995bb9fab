/* tests/job/test_trajectory.c: which fields are part of the digest under which a checkpoint is continued. */
#include "tests/job/help.h"

/* False: the document is refused. *ret_idle: the field has no effect in it. */
static bool trajectory_of(const char *doc, const struct job_field *f, char out[JOB_DIGEST_SIZE],
                          bool *ret_idle)
{
    struct job_config *g = NULL;
    struct pd_why why;

    if (job_config_load(doc, strlen(doc), &g, &why) != PD_OK)
        return false;
    memcpy(out, g->trajectory, JOB_DIGEST_SIZE);
    *ret_idle = f && f->useful && !f->useful(g->owner);
    job_config_free(g);
    return true;
}

/* Documents in which most fields have an effect, between them. */
static const char *const bases[] = {
    VIT,
    GPT,
    "{\"model\":{\"preset\":\"vit_micro\",\"heads\":2,\"patch\":4},\"norm\":{\"placement\":\"S5\"},\"data\":{"
    "\"dataset\":"
    "\"mnist\",\"augment\":{\"crop\":\"pad_crop\"},\"split\":{\"rule\":\"count\",\"train\":1000,\"val\":100}}"
    ","
    "\"attention\":{\"activation\":\"poly\",\"scale\":\"learned\",\"qk_norm\":true},\"train\":{\"steps\":100,"
    "\"ema\":0.9,"
    "\"drop_path\":0.1,\"init\":\"xavier\",\"optimizer\":{\"name\":\"msgdw\"},\"schedule\":{\"name\":"
    "\"step\","
    "\"milestones\":[50],\"warmup_steps\":5,\"warmup_lr\":1e-6}}}",
    "{\"model\":{\"preset\":\"vit_micro\",\"patch\":4},\"data\":{\"dataset\":\"mnist\",\"augment\":{\"crop\":"
    "\"rrc\"}},"
    "\"attention\":{\"activation\":\"sigmoid\"},\"train\":{\"steps\":100,\"schedule\":{\"warmup_steps\":5}},"
    "\"resources\":{\"slots\":2,\"device\":\"cpu\",\"time_limit_s\":100}}",
    "{\"model\":{\"preset\":\"gpt_micro\",\"mlp_act\":\"gelu\"},\"data\":{\"dataset\":\"text\",\"path\":"
    "\"corpora/a.txt\","
    "\"tokenizer\":\"gpt2_bpe\"},\"attention\":{\"activation\":\"poly\",\"scale\":\"k\",\"k\":2,\"degree\":2}"
    ","
    "\"train\":{\"steps\":100}}",
    "{\"model\":{\"preset\":\"vit_micro\",\"patch\":4},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"steps\":"
    "100,"
    "\"start\":{\"model\":\"m:1\",\"step\":9,\"path\":\"runs/1/a.safetensors\",\"sha256\":"
    "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}}}",
};

static bool same_value(const char *a, const char *b, const char *pointer)
{
    json_t *resolved[2];
    bool same;

    for (int i = 0; i < 2; i++) {
        struct pd_buf text;

        pd_buf_init(&text, 0);
        assert_int_equal(job_config_complete(i ? b : a, strlen(i ? b : a), &text, NULL), PD_OK);
        assert_int_equal(job_json_load(text.data, text.len, &resolved[i], NULL), PD_OK);
        pd_buf_done(&text);
    }
    same = json_equal(job_json_at(resolved[0], pointer), job_json_at(resolved[1], pointer));
    json_decref(resolved[0]);
    json_decref(resolved[1]);
    return same;
}

/* Puts one value after the other into the base until one is taken and tells another run from the base's: 1
 * the digest changes, 0 it stays, -1 no value could be tried. */
static int changes(const struct job_field *f, const char *base)
{
    static const char *const values[] = {
        "true", "false",      "1",     "2",     "3",         "0.5",           "0.25",
        "7",    "[0.5,0.75]", "[2,2]", "[7,9]", "\"other\"", "\"corpora/b\"", "{\"a\":\"b\"}"};
    char before[JOB_DIGEST_SIZE], after[JOB_DIGEST_SIZE];
    size_t enums = f->names ? f->names->count : 0;
    bool idle;
    int found = -1;

    assert_true(trajectory_of(base, NULL, before, &idle));
    for (size_t i = 0; i < enums + sizeof values / sizeof *values && found < 1; i++) {
        char word[128], *doc;

        snprintf(word, sizeof word, "\"%s\"", i < enums ? f->names->names[i] : "");
        doc = with(base, f->pointer, i < enums ? word : values[i - enums]);
        if (trajectory_of(doc, f, after, &idle) && !idle && !same_value(base, doc, f->pointer))
            found = strcmp(before, after) != 0;
        free(doc);
    }
    return found;
}

/* Rows by which others are read, or from which others take their defaults. */
static bool others(const char *pointer)
{
    static const char *const names[] = {"/schema", "/model/preset", "/recipe", "/overrides",
                                        "/resources/device"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], pointer))
            return true;
    return false;
}

static void test_every_row_is_in_the_digest_unless_its_flag_says_otherwise(void **state)
{
    int in = 0, off = 0;

    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        int found = -1;

        if (f->type == JOB_T_OBJECT || f->type == JOB_T_AXES || f->flags & (JOB_F_COMPUTED | JOB_F_ONLY))
            continue;
        for (size_t b = 0; b < sizeof bases / sizeof *bases && found < 1; b++) {
            int here = changes(f, bases[b]);

            found = here > found ? here : found;
        }
        if (f->flags & JOB_F_OFF_TRAJECTORY && found == 1 && !others(f->pointer))
            fail_msg("%s changes the digest", f->pointer);
        if (!(f->flags & JOB_F_OFF_TRAJECTORY) && found == 0)
            fail_msg("%s does not change the digest", f->pointer);
        in += found == 1;
        off += found == 0;
    }
    /* Few rows can be tried in none of these documents. */
    assert_true(in >= 60);
    assert_true(off >= 15);
}

static void test_a_value_written_out_that_is_the_default_changes_nothing(void **state)
{
    char a[JOB_DIGEST_SIZE], b[JOB_DIGEST_SIZE];
    char *doc = with(VIT, "/train/label_smoothing", "0"), *more = with(doc, "/data/augment/flip", "0");
    bool idle;

    (void)state;
    assert_true(trajectory_of(VIT, NULL, a, &idle));
    assert_true(trajectory_of(more, NULL, b, &idle));
    assert_string_equal(a, b);
    free(doc);
    free(more);
}

static void test_a_value_without_effect_changes_nothing(void **state)
{
    char a[JOB_DIGEST_SIZE], b[JOB_DIGEST_SIZE];
    char *doc = with(VIT, "/attention/degree", "5"); /* of softmax */
    bool idle;

    (void)state;
    assert_true(trajectory_of(VIT, NULL, a, &idle));
    assert_true(trajectory_of(doc, NULL, b, &idle));
    assert_string_equal(a, b);
    free(doc);
}

#define PINN_OF(model, norm, data, train)                                                                    \
    "{\"model\":{\"preset\":\"pinn_micro\"" model "},\"norm\":{" norm "},"                                   \
    "\"data\":{\"dataset\":\"pde_reaction\"" data "},\"train\":{\"steps\":100" train "}}"
#define SWIN_OF(more, model)                                                                                 \
    "{" more "\"model\":{\"preset\":\"swin_micro\"" model "},\"data\":{\"dataset\":\"mnist\"},"              \
    "\"train\":{\"epochs\":1}}"
#define NYSTROM_OF(train)                                                                                    \
    "{\"model\":{\"preset\":\"nystrom_micro\"},\"data\":{\"dataset\":\"listops_gen\"},"                      \
    "\"train\":{\"steps\":100," train "}}"
#define RANDOM_OF(dataset)                                                                                   \
    "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"" dataset "\",\"augment\":{"              \
    "\"randaugment\":{},\"interpolation\":\"bilinear\"}},\"train\":{\"epochs\":1}}"

/* Digests of 2026-11-27, by an earlier version. */
struct before {
    const char *doc, *digest;
};

static void check_before(const struct before *b, bool wider)
{
    struct job_config *g = NULL;
    struct pd_why why;

    if (job_config_load(b->doc, strlen(b->doc), &g, &why) != PD_OK)
        fail_msg("%s is refused: %s", b->doc, why.text);
    if (strcmp(g->earlier_trajectory, b->digest) != 0 || !strcmp(g->trajectory, b->digest) == wider)
        fail_msg("%s: %s and %s, before %s", b->doc, g->trajectory, g->earlier_trajectory, b->digest);
    job_config_free(g);
}

/* Rows that were found to have no effect in these networks: their values stay in the digest. */
static void test_the_digest_stays_where_a_row_was_found_idle(void **state)
{
    static const struct before before[] = {
        {PINN, "fc3311471da106c6c074b1fed8a3dfcf53544be6342f33fa7e2c92f1028245b7"},
        {PAIRS, "5f3884b2df4efb07869bfd1582287f18335eb76e92bd682f1bbfb7b4e88af6a2"},
        {PINN_OF(",\"mlp_act\":\"relu\"", "", "", ""),
         "31e02e6b6c35f4c1735949ebd479980469741b3d157892c55b521662c4b0fc3b"},
        {PINN_OF("", "\"final\":false", "", ""),
         "f1518d8a3d02230c783b395853a1773a5a456ee96c40b2d01152787671a3eaf2"},
        {PINN_OF("", "\"eps_mode\":\"sum\"", "", ""),
         "4656c4d6394a80af494e19f91a67aa4dc12023acc998cf92d37d92047482fba9"},
        {PINN_OF("", "", ",\"split\":{\"rule\":\"given\"}", ""),
         "7e8e672d7a4f7f49a981e96b36f3b673dfcd163df5df5e3942587b369f84d313"},
        {PINN_OF("", "", ",\"split\":{\"test\":1}", ""),
         "368512b86991ed1567c89e2d9c9cde1c32b6329bc651b64136a85e77425e03cf"},
        {PINN_OF("", "", ",\"split_seed\":3", ""),
         "2ae3277fb21dc7555db0a23dddbf6a0b9956cd5a400569e3db41dbde416b0363"},
        {PINN_OF("", "", "", ",\"layer_decay\":0.5"),
         "1e04a88549d1c1bfe2403acaa623fbe24efa03039199fd043441d7e71954f0ad"},
        {SWIN_OF("\"norm\":{\"placement\":\"S4\"},", ",\"pos_after\":true"),
         "57a5bfe0f39c71c49c3e2b3f32e421d3886e131c96505685e519e6f68b0b0a58"},
        {NYSTROM_OF("\"init\":\"xavier\",\"init_fan\":\"fused\""),
         "fc44b1f53ae08087cf34181394e356217d82fb0a1b10218d448dad8a7cb0f835"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        check_before(&before[i], false);
}

/* Rows that were found to have an effect: the digest has them now, the earlier one has not. */
static void test_the_earlier_digest_lacks_what_was_found_to_matter(void **state)
{
    static const struct before before[] = {
        {RANDOM_OF("cifar10"), "eabd58edd8f515d1c6f3c8d4c5cccad628f81eea1f5093640dec4f05a1f83966"},
        {RANDOM_OF("digits_gen"), "2d1d09e7953641f42aac8782cd360ac231adb6e2086a92ca696c7f6eb88af0a0"},
        {"{\"model\":{\"preset\":\"gpt_micro\",\"context\":2000},\"data\":{\"dataset\":\"imdb\",\"path\":"
         "\"corpora/imdb\",\"lra_len\":\"paper\"},\"train\":{\"steps\":100}}",
         "db827ab3bdef2c50df0fd22a955f54389fb976f8e1b9fb6449c4b2c337f8454b"},
        {SWIN_OF("\"attention\":{\"qk_norm\":true,\"qk_gain\":\"per_head\"},", ",\"head_counts\":[1,2]"),
         "aa538081958d17f2ec93ca2387df075cf29025b0d1c8c16344f1e9d228ea8429"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        check_before(&before[i], true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_in_the_digest_unless_its_flag_says_otherwise),
        cmocka_unit_test(test_a_value_written_out_that_is_the_default_changes_nothing),
        cmocka_unit_test(test_a_value_without_effect_changes_nothing),
        cmocka_unit_test(test_the_digest_stays_where_a_row_was_found_idle),
        cmocka_unit_test(test_the_earlier_digest_lacks_what_was_found_to_matter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
