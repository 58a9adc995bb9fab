/* tests/job/test_job.c: documents as people write them, idempotence, digests, binding. */
#include <math.h>

#include "daemon/job/internal.h"
#include "tests/job/help.h"

/* ---- The examples of the specification ---- */

static const char example_1[] =
    "{\"name\":\"mnist "
    "cubic\",\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\",\"degree\":3,"
    "\"scale\":"
    "\"learned\"},\"data\":{\"dataset\":\"mnist\",\"split\":{\"rule\":\"count\",\"train\":4000,\"val\":1000},"
    "\"augment\":{\"crop\":"
    "\"pad_crop\",\"pad_crop\":{\"shift\":2}}},\"train\":{\"epochs\":4,\"batch\":64,\"optimizer\":{\"name\":"
    "\"adamw\",\"lr\":0.001}},"
    "\"resources\":{\"device\":\"cpu\",\"threads\":2,\"time_limit_s\":600},\"register\":\"mnist-cubic\"}";
static const char example_2[] = "{\"name\":\"k "
                                "sweep\",\"experiment\":\"E01\",\"model\":{\"preset\":\"vit_micro\","
                                "\"patch\":4},\"attention\":{\"activation\":"
                                "\"poly\",\"scale\":\"k\",\"init_logit_std\":0.6},\"data\":{\"dataset\":"
                                "\"mnist\"},\"train\":{\"epochs\":2},\"trials\":3,\"sweep\":"
                                "{\"method\":\"grid\",\"axes\":[{\"pointer\":\"/attention/"
                                "k\",\"log\":[0.001,1000,7]}],\"metric\":\"acc/val\",\"mode\":\"max\","
                                "\"concurrency\":2}}";
static const char example_3[] = "{\"name\":\"bytes\",\"model\":{\"preset\":\"gpt_micro\"},\"attention\":{"
                                "\"activation\":\"poly\",\"scale\":\"fixed\","
                                "\"n_for_scale\":\"context\"},\"data\":{\"dataset\":\"text\",\"path\":"
                                "\"corpora/tinyshakespeare/input.txt\",\"tokenizer\":\"bytes\","
                                "\"split\":{\"rule\":\"fraction\",\"train\":0.9,\"val\":0.1}},\"train\":{"
                                "\"steps\":1500,\"batch\":16,\"clip_norm\":1.0,\"optimizer\":"
                                "{\"lr\":0.001},\"schedule\":{\"warmup_steps\":100}},\"diagnostics\":{"
                                "\"every\":50,\"heatmaps\":{\"layers\":[2,4],\"heads\":[1],"
                                "\"every\":500}}}";

/* As the worker reads the first run of a job. */
static enum pd_err config_of(const struct job_doc *job, struct job_config **ret, struct pd_why *why)
{
    struct pd_buf json;
    enum pd_err err;

    pd_buf_init(&json, 0);
    err = job_run_resolve(job, 0, &json, why);
    if (err == PD_OK)
        err = job_config_load(json.data, json.len, ret, why);
    pd_buf_done(&json);
    return err;
}

static void test_example_1_as_a_configuration(void **state)
{
    struct parsed p = want_ok(example_1);
    const struct job_head *h = job_doc_head(p.job);
    struct job_config *g = NULL;
    struct pd_why why;

    (void)state;
    assert_string_equal(h->name, "mnist cubic");
    assert_string_equal(h->experiment, "default");
    assert_string_equal(h->register_name, "mnist-cubic");
    assert_int_equal(h->run_count, 1);
    assert_int_equal(h->trials, 1);
    assert_false(h->sweep);
    assert_string_equal(h->metric, "loss/val");
    assert_int_equal(h->mode, JOB_MODE_MIN);
    assert_int_equal(h->resources.time_limit_s, 600);
    assert_int_equal(h->resources.threads, 2);
    assert_int_equal(config_of(p.job, &g, &why), PD_OK);
    assert_string_equal(job_arch_name(g->model.arch), "vit");
    assert_int_equal(g->model.width, 64);
    assert_int_equal(g->model.depth, 4);
    assert_int_equal(g->model.heads, 2);
    assert_int_equal(g->model.patch[0], 4);
    assert_int_equal(g->model.pool, JOB_POOL_MEAN);
    assert_true(g->model.bias);
    assert_int_equal(g->attention.activation, JOB_ACTIVATION_POLY);
    assert_int_equal(g->attention.scale, JOB_SCALE_LEARNED);
    assert_int_equal(g->attention.degree, 3);
    assert_true(g->attention.n == 49 && g->attention.c0 == 1.0 / 7);
    assert_true(isnan(g->attention.k) && isnan(g->attention.init_logit_std) && isnan(g->train.clip_norm));
    assert_int_equal(g->data.split, JOB_SPLIT_COUNT);
    assert_true(g->data.split_train == 4000 && g->data.split_val == 1000);
    assert_int_equal(g->data.augment.crop, JOB_CROP_PAD_CROP);
    assert_int_equal(g->data.augment.pad_crop_shift, 2);
    assert_string_equal(g->data.path, "mnist");
    assert_int_equal(g->train.epochs, 4);
    assert_int_equal(g->train.steps, 0);
    assert_int_equal(g->train.schedule.warmup_steps, -1);
    assert_true(g->train.schedule.warmup_epochs == 0.2);
    assert_int_equal(g->train.eval_every, 0);
    assert_int_equal(g->train.checkpoint_every_steps, 0);
    assert_true(g->train.checkpoint_every_s == 600);
    assert_false(g->diagnostics.heatmaps.present);
    assert_int_equal(g->resources.device, JOB_DEVICE_CPU);
    assert_int_equal(job_config_mlp_width(g), 256);
    assert_int_equal(job_config_head_dim(g), 32);
    assert_int_equal(job_config_patches(g), 49);
    assert_int_equal(job_config_keys(g), 49);
    assert_int_equal(job_config_bind(g, 4000, &why), PD_OK);
    assert_int_equal(g->bound.steps_per_epoch, 62);
    assert_int_equal(g->bound.steps, 248);
    assert_int_equal(g->bound.warmup_steps, 12);
    assert_int_equal(g->bound.eval_every, 12);
    assert_int_equal(g->bound.micro_batch, 64);
    job_config_free(g);
    done(&p);
}

static void test_tokens_are_those_that_the_scale_grows_with(void **state)
{
    static const struct {
        const char *model, *data, *length;
        int tokens;
    } cases[] = {
        {"\"preset\":\"vit_micro\",\"patch\":2", "\"dataset\":\"mnist\"", "\"epochs\":1", 196},
        {"\"preset\":\"vit_micro\",\"patch\":4", "\"dataset\":\"mnist\"", "\"epochs\":1", 49},
        {"\"preset\":\"vit_micro\",\"patch\":4,\"pool\":\"cls\"", "\"dataset\":\"mnist\"", "\"epochs\":1",
         49},
        {"\"preset\":\"vit_micro\",\"patch\":[7,14]", "\"dataset\":\"mnist\"", "\"epochs\":1", 8},
        {"\"preset\":\"gpt_micro\",\"context\":64", "\"dataset\":\"text_gen\"", "\"steps\":9", 64},
        {"\"preset\":\"gpt_micro\",\"context\":64", "\"dataset\":\"text_gen\",\"context\":16", "\"steps\":9",
         16},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        struct job_config *g = NULL;
        struct pd_why why;
        struct parsed p;

        snprintf(text, sizeof text, "{\"model\":{%s},\"data\":{%s},\"train\":{%s}}", cases[i].model,
                 cases[i].data, cases[i].length);
        p = want_ok(text);
        assert_int_equal(config_of(p.job, &g, &why), PD_OK);
        assert_int_equal(job_config_tokens(g), cases[i].tokens);
        /* A network whose attention stays within windows: 7 x 7 patches, or squares of the shorter side. */
        for (g->model.arch = 0; strcmp(job_arch_name(g->model.arch), "swin") != 0;)
            g->model.arch++;
        g->model.window = 7;
        if (job_config_patches(g)) {
            const int64_t rows = g->data.image_size[0] / g->model.patch[0];
            const int64_t columns = g->data.image_size[1] / g->model.patch[1];
            const int64_t side = rows < columns ? rows : columns;

            assert_int_equal(job_config_tokens(g), side < 7 ? side * side : 49);
        } else {
            assert_int_equal(job_config_tokens(g), cases[i].tokens);
        }
        job_config_free(g);
        done(&p);
    }
}

static void test_example_2_makes_21_runs(void **state)
{
    struct parsed p;
    const struct job_head *h;
    struct pd_buf b;
    static const char *const ks[] = {"0.001", "0.01", "0.1", "1", "10", "100", "1000"};

    (void)state;
    p = want_ok(example_2);
    h = job_doc_head(p.job);
    assert_int_equal(h->points, 7);
    assert_int_equal(h->run_count, 21);
    assert_true(h->sweep);
    assert_int_equal(h->method, JOB_METHOD_GRID);
    assert_string_equal(h->metric, "acc/val");
    assert_int_equal(h->mode, JOB_MODE_MAX);
    assert_int_equal(h->concurrency, 2);
    pd_buf_init(&b, 0);
    for (int64_t n = 0; n < 21; n++) {
        json_t *run = run_json(p.job, n);
        char want[64];
        b.len = 0;
        assert_int_equal(job_run_params(p.job, n, &b, NULL), PD_OK);
        snprintf(want, sizeof want, "{\"/attention/k\":%s}", ks[n / 3]);
        assert_string_equal(b.data, want);
        assert_int_equal(job_run_trial(p.job, n), n % 3);
        assert_int_equal(job_run_seed(p.job, n), n % 3);
        assert_int_equal(json_integer_value(job_json_at(run, "/train/seed")), n % 3);
        assert_int_equal(json_integer_value(job_json_at(run, "/trials")), 1);
        assert_true(json_is_null(job_json_at(run, "/sweep")));
        json_decref(run);
    }
    pd_buf_done(&b);
    done(&p);
}

static void test_example_3_resolves(void **state)
{
    struct parsed p;
    struct job_config *g = NULL;

    (void)state;
    p = want_ok(example_3);
    assert_int_equal(config_of(p.job, &g, NULL), PD_OK);
    assert_string_equal(job_arch_name(g->model.arch), "gpt");
    assert_false(g->model.bias);
    assert_true(g->attention.n == 128);
    assert_int_equal(g->data.context, 128);
    assert_int_equal(g->model.patch[0], 0);
    assert_int_equal(job_config_patches(g), 0);
    assert_int_equal(job_config_keys(g), 128);
    assert_true(g->diagnostics.heatmaps.present);
    assert_int_equal(g->diagnostics.heatmaps.layers.count, 2);
    assert_int_equal(g->diagnostics.heatmaps.layers.items[1], 4);
    assert_int_equal(g->diagnostics.heatmaps.heads.count, 1);
    assert_int_equal(g->diagnostics.heatmaps.every, 500);
    assert_true(g->train.clip_norm == 1);
    assert_int_equal(job_config_bind(g, 7842, NULL), PD_OK);
    assert_int_equal(g->bound.steps, 1500);
    assert_int_equal(g->bound.warmup_steps, 100);
    assert_int_equal(g->bound.eval_every, 75);
    job_config_free(g);
    done(&p);
}

/* ---- What comes out goes in again ---- */

static void same_again(const char *text)
{
    struct parsed p = parse(text), q;

    if (p.err != PD_OK) {
        dump(&p);
        fail_msg("%s", text);
    }
    for (int64_t n = 0; n<job_run_count(p.job); n += job_run_count(p.job)> 40 ? 7 : 1) {
        char *once = run_text(p.job, n), *twice;
        char a[JOB_DIGEST_SIZE], b[JOB_DIGEST_SIZE];
        q = parse(once);
        if (q.err != PD_OK) {
            dump(&q);
            fail_msg("the resolved document is no valid job: %s", once);
        }
        twice = run_text(q.job, 0);
        assert_string_equal(once, twice);
        assert_int_equal(job_config_digest(once, strlen(once), a, NULL), PD_OK);
        assert_int_equal(job_config_digest(twice, strlen(twice), b, NULL), PD_OK);
        assert_string_equal(a, b);
        free(once);
        free(twice);
        done(&q);
    }
    done(&p);
}

static void test_a_resolved_document_resolves_to_itself(void **state)
{
    static const char *const more[][3] = {
        {VIT, "/train/optimizer", "{\"name\":\"msgdw\",\"lr\":0.3333333333333333,\"nesterov\":true}"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":123.456}"},
        {VIT, "/model/patch", "[7,14]"},
        {VIT, "/tags", "{\"a\":\"b\",\"\\u00e4\":\"\\u0001\"}"},
        {VIT, "/depends_on", "[{\"job\":\"12\"},{\"job\":\"13\",\"when\":\"afternotok\"}]"},
        {VIT, "/train/schedule", "{\"warmup_epochs\":0.3,\"shifted\":false,\"name\":\"constant\"}"},
        {VIT, "/train/checkpoint_every", "{\"steps\":7}"},
        {VIT, "/data/dataset", "\"digits_gen\""},
        {VIT, "/attention", "{\"activation\":\"softmax\",\"k\":3,\"degree\":2}"},
        {GPT, "/notes", "\"\\\"quotes\\\" and \\\\ and \\u20ac\""},
        {GPT, "/data/context", "64"},
        {GPT, "/overrides", "{\"/train/batch\":32,\"/train/schedule\":{\"warmup_steps\":3}}"},
        {GPT, "/trials", "5"},
    };

    (void)state;
    same_again(example_1);
    same_again(example_2);
    same_again(example_3);
    same_again(VIT);
    same_again(GPT);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char *doc = with(more[i][0], more[i][1], more[i][2]);
        same_again(doc);
        free(doc);
    }
}

/* The text kept with a job makes the same runs in another environment. */
static void test_the_kept_document_makes_the_same_runs_anywhere(void **state)
{
    static const struct job_env here = {.threads = 3, .keep_best = 2, .keep_latest = 5},
                                there = {.threads = 9, .keep_best = 7, .keep_latest = 8};
    char *doc = with(example_2, "/overrides", "{\"/train/batch\":32}");
    char *more;
    struct parsed p, q;
    struct pd_buf b;

    (void)state;
    more = with(doc, "/resources", "{\"device\":\"auto\"}");
    p = parse_env(more, &here);
    assert_int_equal(p.err, PD_OK);
    pd_buf_init(&b, 0);
    assert_int_equal(job_document(p.job, &b, NULL), PD_OK);
    assert_null(strstr(b.data, "overrides"));
    q = parse_env(b.data, &there);
    assert_int_equal(q.err, PD_OK);
    assert_int_equal(job_run_count(q.job), 21);
    for (int64_t n = 0; n < 21; n++) {
        char *x = run_text(p.job, n), *y = run_text(q.job, n);
        assert_string_equal(x, y);
        assert_non_null(strstr(x, "\"threads\":3"));
        assert_non_null(strstr(x, "\"best\":2"));
        assert_non_null(strstr(x, "\"latest\":5"));
        free(x);
        free(y);
    }
    /* And it is its own kept document. */
    {
        struct pd_buf c;
        pd_buf_init(&c, 0);
        assert_int_equal(job_document(q.job, &c, NULL), PD_OK);
        assert_string_equal(b.data, c.data);
        pd_buf_done(&c);
    }
    pd_buf_done(&b);
    done(&p);
    done(&q);
    free(doc);
    free(more);
}

static void test_an_override_on_a_swept_pointer_removes_the_axis(void **state)
{
    char *doc = with(example_2, "/overrides", "{\"/attention/k\":5}");
    struct parsed p = want_ok(doc);
    json_t *run = run_json(p.job, 2);
    struct pd_buf b;

    (void)state;
    assert_int_equal(job_run_count(p.job), 3); /* the trials */
    assert_int_equal(json_integer_value(job_json_at(run, "/attention/k")), 5);
    assert_int_equal(json_integer_value(job_json_at(run, "/train/seed")), 2);
    want_params(p.job, 2, "{}");
    pd_buf_init(&b, 0);
    assert_int_equal(job_document(p.job, &b, NULL), PD_OK);
    same_again(b.data);
    assert_non_null(strstr(b.data, "\"sweep\":null"));
    pd_buf_done(&b);
    json_decref(run);
    done(&p);
    free(doc);
}

/* ---- Workers ---- */

static void test_config_load_takes_one_run(void **state)
{
    struct job_config *g = NULL;
    struct pd_why why;
    static const char odd[] = "{\"model\":{\"preset\":\"pinn_micro\"},\"data\":{\"dataset\":\"pde_wave\","
                              "\"context\":3,\"pde\":{\"test_grid\":"
                              "[9,2]}},\"train\":{\"steps\":2}}";
    struct parsed p = want_ok(example_1);
    char *text = run_text(p.job, 0);

    (void)state;
    assert_int_equal(job_config_load(text, strlen(text), &g, &why), PD_OK);
    assert_string_equal(g->name, "mnist cubic");
    assert_int_equal(g->resources.threads, 2);
    g = job_config_free(g);
    assert_null(g);
    assert_int_equal(job_config_load(example_2, strlen(example_2), &g, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "21 runs"));
    assert_int_equal(job_config_load("{", 1, &g, &why), PD_ERR_CORRUPT);
    assert_int_equal(job_config_load("{\"x\":1}", 7, &g, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "#/x: unknown key"));
    assert_null(g);
    /* What a later version refuses of a new document does not end the runs of an old one. */
    assert_int_equal(job_config_load(odd, strlen(odd), &g, &why), PD_OK);
    assert_int_equal(g->data.context, 3);
    g = job_config_free(g);
    assert_null(job_config_free(NULL));
    assert_null(job_free(NULL));
    free(text);
    done(&p);
}

static void test_bind_refuses_what_the_data_cannot_carry(void **state)
{
    struct parsed p = want_ok(example_1);
    struct job_config *g = NULL;
    struct pd_why why;

    (void)state;
    assert_int_equal(config_of(p.job, &g, &why), PD_OK);
    assert_int_equal(job_config_bind(g, 63, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "less than one batch of 64"));
    assert_int_equal(g->bound.steps, 0);
    assert_int_equal(job_config_bind(g, 64, &why), PD_OK);
    assert_int_equal(g->bound.steps, 4);
    assert_int_equal(g->bound.eval_every, 1);
    g->train.schedule.warmup_steps = 5;
    assert_int_equal(job_config_bind(g, 64, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "warm-up of 5 steps"));
    g->train.epochs = 1000000000;
    g->train.schedule.warmup_steps = 0;
    assert_int_equal(job_config_bind(g, 64 * 100000, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "too many"));
    job_config_free(g);
    done(&p);
}

static void test_plan_digest_ignores_what_does_not_change_the_plan(void **state)
{
    static const struct {
        const char *pointer, *value;
        bool same;
    } cases[] = {
        {"/name", "\"other\"", true},
        {"/experiment", "\"other\"", true},
        {"/tags", "{\"a\":\"b\"}", true},
        {"/notes", "\"n\"", true},
        {"/train/seed", "9", true},
        {"/train/optimizer/lr", "0.5", true},
        {"/train/schedule/warmup_epochs", "0.5", true},
        {"/train/schedule/name", "\"constant\"", true},
        {"/data/path", "\"elsewhere\"", false}, /* what lies there tells sizes that the document does not */
        {"/resources/priority", "-3", true},
        {"/resources/time_limit_s", "5", true},
        {"/depends_on", "[{\"job\":\"1\"}]", true},
        {"/register", "\"m\"", true},
        {"/data/split_seed", "9", true},
        {"/model/gelu", "\"tanh\"", false},
        {"/model/width", "32", false},
        {"/train/batch", "32", false},
        {"/attention/activation", "\"poly\"", false},
        {"/resources/threads", "2", false},
        {"/train/optimizer/name", "\"msgdw\"", false},
    };
    struct parsed p = want_ok(VIT);
    char *base = run_text(p.job, 0), want[JOB_DIGEST_SIZE], got[JOB_DIGEST_SIZE], config[JOB_DIGEST_SIZE],
         other[JOB_DIGEST_SIZE];

    (void)state;
    assert_int_equal(job_plan_digest(base, strlen(base), "f", want, NULL), PD_OK);
    assert_int_equal(job_config_digest(base, strlen(base), config, NULL), PD_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(VIT, cases[i].pointer, cases[i].value), *text;
        struct parsed q = parse(doc);
        if (q.err != PD_OK)
            dump(&q);
        assert_int_equal(q.err, PD_OK);
        text = run_text(q.job, 0);
        assert_int_equal(job_plan_digest(text, strlen(text), "f", got, NULL), PD_OK);
        if ((strcmp(want, got) == 0) != cases[i].same)
            fail_msg("%s: the plan's digest should be %s", cases[i].pointer,
                     cases[i].same ? "the same" : "another");
        assert_int_equal(job_config_digest(text, strlen(text), other, NULL), PD_OK);
        assert_string_not_equal(config, other);
        free(text);
        free(doc);
        done(&q);
    }
    free(base);
    done(&p);
}

/* The digest of one resolved document, pinned: if it changes, so do the stored digests of every job; then
 * this line changes with a word about why. Last: data.contour. */
static void test_config_digest_is_pinned(void **state)
{
    struct parsed p = want_ok(example_1);
    char *text = run_text(p.job, 0), digest[JOB_DIGEST_SIZE];

    (void)state;
    assert_int_equal(job_config_digest(text, strlen(text), digest, NULL), PD_OK);
    assert_string_equal(digest, "7bb3ac464657617bf55f8d198e9e296bd7266af20885c510e90a6ed9e9b0c255");
    free(text);
    done(&p);
}

/* A formula runs on a GPU, whether it is a built-in activation or not. */
static void test_a_formula_runs_on_a_gpu(void **state)
{
    struct parsed p;

    (void)state;
    p = want_ok(
        "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"formula\",\"formula\":\"s^3/"
        "(1+abs(s))\"},"
        "\"data\":{\"dataset\":\"digits_gen\"},\"train\":{\"steps\":1},\"resources\":{\"device\":\"cuda\"}}");
    done(&p);
    p = want_ok(
        "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"formula\",\"formula\":\"s^3/"
        "sqrt(n)\"},"
        "\"data\":{\"dataset\":\"digits_gen\"},\"train\":{\"steps\":1},\"resources\":{\"device\":\"cuda\"}}");
    done(&p);
}

/* 14 short names, each sin + cos of the one before: a hundred operations whose text is long. */
static void test_a_normal_form_that_is_too_long_to_print_has_no_digest(void **state)
{
    char text[2048], digest[JOB_DIGEST_SIZE];
    size_t n = 0;
    const char *before = "s";
    char name[4];
    struct pd_why why = {.text = ""};

    (void)state;
    for (int names = 4; names <= 14; names += 10) {
        struct parsed p;

        before = "s";
        n = (size_t)snprintf(
            text, sizeof text,
            "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"formula\","
            "\"formula\":\"");
        for (int k = 0; k < names; k++) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%c1=sin(%s)+cos(%s);", 'a' + k, before, before);
            snprintf(name, sizeof name, "%c1", 'a' + k);
            before = name;
        }
        snprintf(text + n, sizeof text - n,
                 "%s\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{\"steps\":1}}", before);
        p = want_ok(text);
        assert_int_equal(job_formula_digest(&job_first(p.job)->config, digest, &why),
                         names == 4 ? PD_OK : PD_ERR_LIMIT);
        assert_true(names == 4 ? strlen(digest) == 64 : strstr(why.text, "too long") != NULL);
        done(&p);
    }
}

/* ---- Schedules that do nothing sensible ---- */

static void test_a_schedule_that_does_nothing_sensible_is_warned_of(void **state)
{
    static const struct {
        const char *doc, *pointer, *value, *at, *what;
    } odd[] = {
        {VIT, "/train/schedule", "{\"name\":\"step\"}", "#/train/schedule/name",
         "without train.schedule.milestones"},
        {VIT, "/train/schedule/min_lr", "10", "#/train/schedule/min_lr",
         "is above train.optimizer.lr, 0.001"},
        {GPT, "/train/eval_every", "101", "#/train/eval_every", "longer than the run of 100 steps"},
        {GPT, "/train/schedule", "{\"name\":\"step\",\"milestones\":[100,200]}",
         "#/train/schedule/milestones", "not before the end of the run of 100 steps"},
    };
    static const struct {
        const char *doc, *pointer, *value;
    } fine[] = {
        {VIT, "/train/schedule/min_lr", "0.001"},
        {VIT, "/train/schedule", "{\"name\":\"constant\"}"},
        {GPT, "/train/eval_every", "100"},
        {VIT, "/train/eval_every", "1000"}, /* a length in epochs: who knows the data knows */
        {GPT, "/train/schedule", "{\"name\":\"step\",\"milestones\":[99,200]}"},
    };
    struct parsed p;

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *doc = with(odd[i].doc, odd[i].pointer, odd[i].value);

        want_warning(doc, odd[i].at, odd[i].what);
        free(doc);
    }
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        char *doc = with(fine[i].doc, fine[i].pointer, fine[i].value);

        p = want_ok(doc);
        done(&p);
        free(doc);
    }
}

/* The document as a run, judged with a training set of so many images. */
static struct parsed judged(const char *pointer, const char *value, int64_t samples)
{
    struct parsed out = {.job = NULL}, p;
    char *doc = with(VIT, pointer, value), *text;

    p = want_ok(doc);
    text = run_text(p.job, 0);
    job_report_init(&out.report);
    assert_int_equal(job_run_judge(text, strlen(text), samples, &out.report, NULL), PD_OK);
    free(text);
    done(&p);
    free(doc);
    return out;
}

static void test_a_run_is_judged_by_the_size_of_its_data(void **state)
{
    /* 640 images are 10 steps of 64. */
    struct parsed p = judged("/train", "{\"epochs\":3,\"schedule\":{\"warmup_steps\":500}}", 640);

    (void)state;
    assert_int_equal(p.report.error_count, 1);
    assert_true(
        told(p.report.errors, 1, "#/train/schedule/warmup_steps", "500 steps is longer than the run of 30"));
    done(&p);
    p = judged("/train", "{\"epochs\":3,\"schedule\":{\"warmup_steps\":30}}", 640);
    assert_int_equal(p.report.error_count + p.report.warning_count, 0);
    done(&p);
    p = judged("/train", "{\"epochs\":null,\"steps\":3,\"schedule\":{\"warmup_epochs\":1}}", 640);
    assert_int_equal(p.report.error_count, 1);
    assert_true(
        told(p.report.errors, 1, "#/train/schedule/warmup_epochs", "10 steps is longer than the run of 3"));
    done(&p);
    p = judged("/train/batch", "641", 640);
    assert_int_equal(p.report.error_count, 1);
    assert_true(told(p.report.errors, 1, "#/train/batch", "less than one batch of 641"));
    done(&p);
    p = judged("/train", "{\"epochs\":2,\"eval_every\":1000}", 640);
    assert_int_equal(p.report.error_count, 0);
    assert_int_equal(p.report.warning_count, 1);
    assert_true(told(p.report.warnings, 1, "#/train/eval_every", "longer than the run of 20 steps"));
    done(&p);
}

/* ---- Fuzzing's entry, fed with mutated examples ---- */

static void test_fuzz_entry_keeps_its_invariants(void **state)
{
    static const char *const seeds[] = {example_1, example_2, example_3, VIT, GPT};
    uint64_t x = 20261121;

    (void)state;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        job_fuzz((const uint8_t *)seeds[i], strlen(seeds[i]));
    for (int round = 0; round < 3000; round++) {
        const char *seed = seeds[round % (sizeof seeds / sizeof *seeds)];
        size_t n = strlen(seed);
        char *text = malloc(n);
        assert_non_null(text);
        memcpy(text, seed, n);
        for (int k = 0; k < 1 + round % 3; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            text[(x >> 33) % n] = "0123456789\"{}[]:,-.eEntf/~ aklmp"[x >> 20 & 31];
        }
        job_fuzz((const uint8_t *)text, n);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example_1_as_a_configuration),
        cmocka_unit_test(test_tokens_are_those_that_the_scale_grows_with),
        cmocka_unit_test(test_example_2_makes_21_runs),
        cmocka_unit_test(test_example_3_resolves),
        cmocka_unit_test(test_a_resolved_document_resolves_to_itself),
        cmocka_unit_test(test_the_kept_document_makes_the_same_runs_anywhere),
        cmocka_unit_test(test_an_override_on_a_swept_pointer_removes_the_axis),
        cmocka_unit_test(test_config_load_takes_one_run),
        cmocka_unit_test(test_bind_refuses_what_the_data_cannot_carry),
        cmocka_unit_test(test_plan_digest_ignores_what_does_not_change_the_plan),
        cmocka_unit_test(test_config_digest_is_pinned),
        cmocka_unit_test(test_a_formula_runs_on_a_gpu),
        cmocka_unit_test(test_a_normal_form_that_is_too_long_to_print_has_no_digest),
        cmocka_unit_test(test_a_schedule_that_does_nothing_sensible_is_warned_of),
        cmocka_unit_test(test_a_run_is_judged_by_the_size_of_its_data),
        cmocka_unit_test(test_fuzz_entry_keeps_its_invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
