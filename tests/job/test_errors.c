/* tests/job/test_errors.c: what is wrong with a document: all of it at once, each with its pointer. */
#include "daemon/job/internal.h"
#include "tests/job/help.h"

static void test_all_errors_come_at_once_with_pointers(void **state)
{
    struct parsed p = parse(
        "{\"modl\":{},\"attention\":{\"degree\":2.5,\"degre\":3,\"k\":\"x\",\"lr\":3},\"train\":{"
        "\"optimizer\":{"
        "\"names\":\"adamw\"},\"batch\":\"64\"},\"optimizer\":{},\"overrides\":{\"/train/bach\":3},\"data\":{"
        "\"dataset\":\"mnits\"}}");
    static const char *const want[][2] = {
        {"#/modl", "unknown key; did you mean 'model'?"},
        {"#/attention/degre", "did you mean 'degree'?"},
        {"#/attention/lr", "it belongs at /train/optimizer/lr"},
        {"#/train/optimizer/names", "did you mean 'name'?"},
        {"#/optimizer", "it belongs at /train/optimizer"},
        {"#/overrides/~1train~1bach", "did you mean 'batch'?"},
        {"#/model/arch", "is needed"},
        {"#/data/dataset", "did you mean 'mnist'?"},
        {"#/attention/degree", "must be an integer"},
        {"#/attention/k", "must be a number, not a string"},
        {"#/train", "needs a length"},
        {"#/train/batch", "must be an integer, not a string"},
    };

    (void)state;
    assert_int_equal(p.err, PD_ERR_INVALID);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        if (!told(p.report.errors, p.report.error_count, want[i][0], want[i][1]))
            fail_msg("lacks %s: %s", want[i][0], want[i][1]);
    }
    assert_int_equal(p.report.error_count, sizeof want / sizeof *want);
    done(&p);
}

static bool look_at_synonym(void *ctx, const char *word, const char *pointer)
{
    char document[128], at[80], says[128];
    int *count = ctx;

    if (!job_pointer_known(pointer) && strcmp(pointer, "/train/keep") != 0)
        fail_msg("%s is meant by %s and is no field", pointer, word);
    snprintf(document, sizeof document, "{\"model\":{\"%s\":1}}", word);
    snprintf(at, sizeof at, "#/model/%s", word);
    snprintf(says, sizeof says, "unknown key; did you mean %s?", pointer);
    want_error(document, at, says);
    ++*count;
    return true;
}

/* What Keras, Hugging Face, nanoGPT and timm call it points at the field, however it is spelt. */
static void test_words_of_other_trainers_point_at_the_field(void **state)
{
    static const char *const known[][2] = {
        {"learning_rate", "/train/optimizer/lr"},
        {"learningRate", "/train/optimizer/lr"},
        {"batch_size", "/train/batch"},
        {"num_epochs", "/train/epochs"},
        {"num_train_epochs", "/train/epochs"},
        {"hidden_size", "/model/width"},
        {"num_hidden_layers", "/model/depth"},
        {"num_attention_heads", "/model/heads"},
        {"n_embd", "/model/width"},
        {"n_layer", "/model/depth"},
        {"n_head", "/model/heads"},
        {"dim", "/model/width"},
        {"layers", "/model/depth"},
        {"warmup", "/train/schedule/warmup_steps"},
        {"lr-scheduler", "/train/schedule/name"},
        {"gradient_accumulation_steps", "/train/accumulation"},
        {"max_grad_norm", "/train/clip_norm"},
        {"block_size", "/model/context"},
        {"num_workers", "/resources/loader_threads"},
        {"img_size", "/data/image_size"},
        {"seq_len", "/model/context"},
        {"max_iters", "/train/steps"},
    };
    int count = 0;

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char document[96], at[80], says[96];

        snprintf(document, sizeof document, "{\"%s\":1}", known[i][0]);
        snprintf(at, sizeof at, "#/%s", known[i][0]);
        snprintf(says, sizeof says, "did you mean %s?", known[i][1]);
        want_error(document, at, says);
    }
    (void)job_keys_synonyms(look_at_synonym, &count);
    assert_true(count > 100);
}

/* A list of what is allowed names what can run, and numbers where those are. */
static void test_lists_name_what_can_run(void **state)
{
    (void)state;
    want_error(
        "{\"attention\":{\"n_for_scale\":\"patchez\"}}", "#/attention/n_for_scale",
        "must be one of patches, keys, window, channels, context, row, or a number; did you mean 'patches'?");
    want_error("{\"resources\":{\"device\":\"gpu\"}}", "#/resources/device",
               "must be one of auto, cpu, cuda; did you mean 'cuda'?");
    want_error("{\"train\":{\"precision\":\"fp8\"}}", "#/train/precision",
               "must be one of fp32, bf16, fp64, tf32");
    want_error("{\"data\":{\"dataset\":\"mine\"}}", "#/data/dataset",
               "must be one of mnist, digits_gen, cifar10, imagenet1k, tiny_imagenet, image_folder, listops, "
               "listops_gen, "
               "imdb, aan, pathfinder_gen, lra_image, text, ptb, "
               "wikitext2, wikitext103, pg19, openwebtext, pde_convection, pde_reaction, text_labels, "
               "text_gen, pde_wave, text_pairs");
}

static void test_unknown_keys_and_suggestions(void **state)
{
    (void)state;
    want_error("{\"attenion\":{}}", "#/attenion", "did you mean 'attention'?");
    want_error("{\"sweep\":{\"axis\":[]}}", "#/sweep/axis", "did you mean 'axes'?");
    want_error("{\"train\":{\"sede\":1}}", "#/train/sede", "did you mean 'seed'?"); /* a swap */
    want_error("{\"x\":1}", "#/x", "unknown key");
    want_error("{\"train\":{\"zzzzzz\":1}}", "#/train/zzzzzz", "unknown key");
    want_error("{\"batch\":1}", "#/batch", "it belongs at /train/batch");
    want_error("{\"model\":{\"activation\":\"poly\"}}", "#/model/activation",
               "it belongs at /attention/activation");
    want_error("{\"a/b~c d\\u00e9\":1}", "#/a~1b~0c%20d%C3%A9", "unknown key");
    want_error("{\"train/batch\":1}", "#/train~1batch", "unknown key");
    want_error("{\"train\":5}", "#/train", "must be an object, not a number");
    want_error("{\"train\":null}", "#/train", "must be an object, not null");
    want_error("{\"model\":[]}", "#/model", "must be an object, not an array");
    want_error("{\"train\":{\"optimizer\":\"adamw\"}}", "#/train/optimizer",
               "must be an object, not a string");
}

static void test_malformed_and_oversized_documents(void **state)
{
    struct parsed p;
    char *big = malloc(JOB_MAX_BYTES + 2);
    static const struct {
        const char *text, *what;
    } cases[] = {{"", "not valid JSON"},
                 {"[]", "must be an object, not an array"},
                 {"null", "must be an object, not null"},
                 {"{\"name\":\"a\",\"name\":\"b\"}", "duplicate"},
                 {"{\"train\":{\"batch\":1,\"batch\":1}}", "duplicate"},
                 {"{\"tags\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", "deeper than 16"},
                 {"{", "not valid JSON"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p = parse(cases[i].text);
        assert_int_equal(p.err, PD_ERR_CORRUPT);
        assert_int_equal(p.report.error_count, 1);
        assert_true(told(p.report.errors, 1, "#", cases[i].what));
        done(&p);
    }
    assert_non_null(big);
    memset(big, ' ', JOB_MAX_BYTES + 1);
    big[JOB_MAX_BYTES + 1] = '\0';
    p = parse(big);
    assert_int_equal(p.err, PD_ERR_LIMIT);
    done(&p);
    free(big);
}

static void test_checks_of_several_fields(void **state)
{
    static const struct {
        const char *doc, *set, *value, *pointer, *what;
    } cases[] = {
        {VIT, "/model/heads", "5", "#/model/heads", "must divide the width: 64"},
        {VIT, "/model/patch", "5", "#/model/patch",
         "must divide the image: 28x28 pixels into patches of 5x5"},
        {VIT, "/model/preset", "\"vit_tiny\"", "#/model/patch", "must divide the image"},
        {VIT, "/model/preset", "\"gpt_micro\"", "#/data/dataset", "\"mnist\" is not text"},
        {GPT, "/model/preset", "\"vit_micro\"", "#/data/dataset", "\"text\" has no images"},
        {VIT, "/model/arch", "\"gpt\"", "#/model/arch", "the preset \"vit_micro\" is a vit"},
        {VIT, "/model", "{\"preset\":null}", "#/model/arch", "is needed"},
        {GPT, "/data/context", "129", "#/data/context", "at most model.context, which is 128"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"k\"}", "#/attention/k",
         "is needed with scale k"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"context\"}",
         "#/attention/n_for_scale", "no context"},
        {GPT, "/attention/form", "\"linear\"", "#/attention/form", "poly with a degree of 1 or 2"},
        {GPT, "/attention", "{\"activation\":\"poly\",\"degree\":3,\"form\":\"linear\"}", "#/attention/form",
         "poly with a degree of 1 or 2"},
        {GPT, "/attention", "{\"activation\":\"poly\",\"degree\":2,\"form\":\"linear\",\"dropout\":0.1}",
         "#/attention/form", "no dropout"},
        {VIT, "/attention", "{\"activation\":\"formula\",\"formula\":\"abs(log(n))*s\",\"n_for_scale\":0.5}",
         "#/attention/n_for_scale", "at least 1 with a formula"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"row\"}", "#/attention/n_for_scale",
         "needs causal attention"},
        {GPT, "/attention", "{\"activation\":\"sigmoid_bias\",\"n_for_scale\":\"row\"}",
         "#/attention/n_for_scale", "row is not allowed"},
        {GPT, "/attention/activation", "\"sima\"", "#/attention/activation",
         "a gpt attends to earlier tokens only"},
        {GPT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"patches\"}",
         "#/attention/n_for_scale", "no patches"},
        {PINN, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"patches\"}",
         "#/attention/n_for_scale", "a pinnsformer has no patches; use context, keys or a number"},
        {PINN, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"channels\"}",
         "#/attention/n_for_scale", "attends between tokens; use context, keys or a number"},
        {PINN, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"row\"}", "#/attention/n_for_scale",
         "needs causal attention; use context, keys or a number"},
        {VIT, "/train/steps", "5", "#/train/epochs", "not both"},
        {VIT, "/train/schedule", "{\"warmup_steps\":5,\"warmup_epochs\":1}", "#/train/schedule/warmup_epochs",
         "not both"},
        {VIT, "/train/schedule/warmup_epochs", "2", "#/train/schedule/warmup_epochs",
         "at most the length, 1 epochs"},
        {GPT, "/train/schedule/warmup_steps", "101", "#/train/schedule/warmup_steps",
         "at most the length, 100 steps"},
        {GPT, "/data/split/rule", "\"given\"", "#/data/split/rule", "has no parts"},
        {GPT, "/data/split", "{\"rule\":\"fraction\",\"train\":0.9}", "#/data/split/val",
         "is needed with the rule fraction"},
        {GPT, "/data/split", "{\"rule\":\"fraction\",\"train\":0.9,\"val\":0.2}", "#/data/split",
         "more than 1"},
        {GPT, "/data/split", "{\"rule\":\"fraction\",\"train\":9,\"val\":0.2}", "#/data/split/train",
         "less than 1"},
        {GPT, "/data/split", "{\"rule\":\"count\",\"train\":9.5,\"val\":1}", "#/data/split/train",
         "must be an integer"},
        {VIT, "/data",
         "{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":1000000,\"val\":1}}",
         "#/data/split", "at most 1000000"},
        {TEXT_GEN, "/data/split", "{\"rule\":\"count\",\"train\":67108864,\"val\":1}", "#/data/split",
         "at most 67108864 generated bytes"},
        {TEXT_GEN, "/data/tokenizer", "\"gpt2_bpe\"", "#/data/tokenizer_path",
         "must not be null with gpt2_bpe"},
        {VIT, "/data/path", "null", "#/data/path", "must not be null for \"mnist\""},
        {VIT, "/data/path", "\"/etc/passwd\"", "#/data/path", "must not be absolute"},
        {VIT, "/data/path", "\"mnist/../x\"", "#/data/path", "\"..\""},
        {VIT, "/data/path", "\"..\"", "#/data/path", "\"..\""},
        {VIT, "/data/path", "\"a//b\"", "#/data/path", "empty parts"},
        {VIT, "/data/path", "\"a/\"", "#/data/path", "end with a slash"},
        {VIT, "/data/path", "\"a\\u0007\"", "#/data/path", "control characters"},
        {GPT, "/data", "{\"dataset\":\"text\",\"path\":null}", "#/data/path", "must not be null"},
        {VIT, "/data/augment", "{\"crop\":\"pad_crop\",\"pad_crop\":{\"shift\":28}}",
         "#/data/augment/pad_crop/shift", "smaller than the image"},
        {VIT, "/depends_on", "[{\"job\":\"x\"}]", "#/depends_on", "string of digits"},
        {VIT, "/depends_on", "[{\"job\":12}]", "#/depends_on", "string of digits"},
        {VIT, "/depends_on", "[{\"job\":\"1\",\"when\":\"later\"}]", "#/depends_on",
         "afterok, afterany, afternotok"},
        {VIT, "/depends_on", "[{\"job\":\"1\",\"wen\":\"afterok\"}]", "#/depends_on", "unknown key \"wen\""},
        {VIT, "/depends_on", "[1]", "#/depends_on", "must be an object"},
        {VIT, "/tags", "{\"a\":1}", "#/tags", "must be a string"},
        {VIT, "/tags", "{\"\":\"x\"}", "#/tags", "1 to 250 bytes"},
        {VIT, "/train/optimizer/betas", "[0.9,1]", "#/train/optimizer/betas", "less than 1"},
        {VIT, "/train/optimizer/betas", "[0.9]", "#/train/optimizer/betas", "array of two numbers"},
        {VIT, "/model/patch", "[4]", "#/model/patch", "[rows, columns]"},
        {VIT, "/model/patch", "4.5", "#/model/patch", "[rows, columns]"},
        {WAVE, "/data/pde", "{\"test_grid\":[40,2]}", "#/data/pde/test_grid",
         "needs at least 3 points in x, the second number: pde_wave is 0 at both ends of x"},
        {WAVE, "/data/pde", "{\"test_grid\":2}", "#/data/pde/test_grid", "needs at least 3 points in x"},
        {WAVE, "/data/pde", "{\"step\":0}", "#/data/pde/step", "must be at least 0.000001 and at most 1"},
        {WAVE, "/data/context", "3", "#/data/context", "is 3 and model.context 5"},
        {WAVE, "/model/context", "1025", "#/model/context", "must be 1 to 1024"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(cases[i].doc, cases[i].set, cases[i].value);
        want_only(doc, cases[i].pointer, cases[i].what);
        free(doc);
    }
    {
        char *doc = with(WAVE, "/data/pde", "{\"test_grid\":[2,3],\"step\":1e-6}");
        struct parsed p = want_ok(doc);

        done(&p);
        free(doc);
    }
    want_only(
        "{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"text\"},\"train\":{\"steps\":1}}",
        "#/data/path", "is needed: a text file");
    want_only("{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"}}", "#/train",
              "needs a length");
    want_only("{\"model\":{\"preset\":\"vit_micro\"},\"train\":{\"epochs\":1}}", "#/data/dataset",
              "is needed");
    want_only("{\"model\":{\"arch\":\"vit\",\"width\":64,\"depth\":2},\"data\":{\"dataset\":\"mnist\"},"
              "\"train\":{\"epochs\":1}}",
              "#/model/heads", "is needed without a preset");
    want_only("{\"trials\":64,\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},"
              "\"train\":{\"epochs\":1,\"seed\":"
              "9007199254740930}}",
              "#/train/seed", "below 2^53");
}

/* The scored grid needs a point where the exact solution is not about 0: at ends and middle of x, convection is
 * +-sin(beta t). */
static void test_errors_need_a_solution_that_is_not_zero(void **state)
{
    static const struct {
        double beta;
        int t, x;
        bool refused;
    } cases[] = {
        {0, 9, 3, true},          {0, 9, 4, false},       {3.141592653589793, 2, 3, true},
        {3.14159, 2, 2, true},    {3.14159, 2, 4, false}, {3.141592653589793, 3, 3, false},
        {-6.2831853, 3, 3, true}, {3.14, 2, 3, false},    {50, 2, 2, false},
        {1e-5, 9, 3, true},
    };
    static const char *const evaluation =
        "{\"kind\":\"evaluate\",\"evaluate\":{\"run\":\"12\",\"step\":30,\"split\":\"%s\",\"path\":\"runs/12/"
        "checkpoints/"
        "a.safetensors\",\"sha256\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"},"
        "\"model\":{\"preset\":\"pinn_micro\"},\"train\":{\"steps\":1},\"data\":{\"dataset\":\"pde_wave\","
        "\"pde\":{\"grid\":[5,%d],\"test_grid\":[5,%d]}}}";
    char doc[600];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(doc, sizeof doc,
                 "{\"model\":{\"preset\":\"pinn_micro\"},\"train\":{\"steps\":1},\"data\":{\"dataset\":"
                 "\"pde_convection\",\"pde\":{\"coefficient\":%.17g,\"test_grid\":[%d,%d]}}}",
                 cases[i].beta, cases[i].t, cases[i].x);
        if (cases[i].refused) {
            want_only(doc, "#/data/pde/test_grid",
                      "needs at least 4 points in x, the second number: with coefficient");
        } else {
            struct parsed p = want_ok(doc);

            done(&p);
        }
    }
    /* an evaluation scores one of both grids */
    snprintf(doc, sizeof doc, evaluation, "train", 2, 3);
    want_only(doc, "#/evaluate/split", "scores data.pde.grid, which needs at least 3 points in x");
    snprintf(doc, sizeof doc, evaluation, "val", 3, 2);
    want_only(doc, "#/data/pde/test_grid", "needs at least 3 points in x");
    for (int i = 0; i < 2; i++) {
        struct parsed p;

        snprintf(doc, sizeof doc, evaluation, i ? "val" : "train", i ? 2 : 3, i ? 3 : 2);
        p = want_ok(doc);
        done(&p);
    }
}

/* A later version made these errors: stored documents get a warning, and their runs go on. */
static void test_stored_documents_are_warned_of_what_is_refused_now(void **state)
{
    static const struct {
        const char *doc, *set, *value, *pointer, *what;
    } cases[] = {
        {PINN, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"patches\"}",
         "#/attention/n_for_scale", "a pinnsformer has no patches"},
        {PINN, "/data/pde", "{\"step\":1e-30}", "#/data/pde/step", "must be at least 0.000001"},
        {PINN, "/data/pde", "{\"step\":9e-7}", "#/data/pde/step", "must be at least 0.000001"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(cases[i].doc, cases[i].set, cases[i].value);
        struct job_report report;
        struct job_doc *job = NULL;

        want_only(doc, cases[i].pointer, cases[i].what);
        job_report_init(&report);
        if (job_parse_stored(doc, strlen(doc), &job, &report) != PD_OK ||
            !told(report.warnings, report.warning_count, cases[i].pointer, cases[i].what))
            fail_msg("%s\n  should load with the warning %s: %s", doc, cases[i].pointer, cases[i].what);
        job_free(job);
        job_report_done(&report);
        free(doc);
    }
}

static void test_a_custom_shape_needs_no_preset(void **state)
{
    struct parsed p = want_ok(
        "{\"model\":{\"arch\":\"vit\",\"width\":48,\"depth\":2,\"heads\":3},\"data\":{\"dataset\":\"mnist\"},"
        "\"train\":{\"epochs\":1}}");

    (void)state;
    done(&p);
    p = want_ok("{\"model\":{\"arch\":\"gpt\",\"width\":48,\"depth\":2,\"heads\":3,\"context\":32},\"data\":{"
                "\"dataset\":\"text\","
                "\"path\":\"a/b\"},\"train\":{\"steps\":1}}");
    done(&p);
}

/* Of scalars of a formula: parameters are f32, but f64 with precision fp64. */
static void test_initial_values_are_checked_as_parameters_hold_them(void **state)
{
    static const struct {
        const char *form, *init;
        const char *what; /* NULL: accepted */
    } cases[] = {
        {"direct", "1e300", "is 1e+300 (inf in fp32, the format of parameters), and must be finite"},
        {"direct", "-4e38", "is -4e+38 (-inf in fp32"},
        {"direct", "-3e38", NULL},
        {"direct", "1e-300", NULL}, /* is 0, which a scalar may be */
        {"log", "1e-300",
         "is 1e-300 (0 in fp32, the format of parameters), and with this form must be above 0"},
        {"log", "1e-30", NULL},
        {"softplus", "1e39", "(inf in fp32"},
        {"sigmoid", "1-1/10^9",
         "is 0.999999999 (1 in fp32, the format of parameters), and with form sigmoid must"},
        {"sigmoid", "1-1/10^6", NULL},
        {"log", "0", "is 0, and with this form must be above 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f64 = 0; f64 < 2; f64++) {
            const bool refused = cases[i].what && (!f64 || !strstr(cases[i].what, "in fp32"));
            char text[400];

            snprintf(
                text, sizeof text,
                "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"resources\":{"
                "\"device\":\"cpu\"},\"train\":{\"epochs\":1,\"precision\":\"%s\"},\"attention\":{"
                "\"activation\":\"formula\",\"formula\":\"a*s\",\"params\":{\"a\":{\"init\":\"%s\",\"form\":"
                "\"%s\"}}}}",
                f64 ? "fp64" : "fp32", cases[i].init, cases[i].form);
            if (refused) {
                want_error(text, "#/attention/params/a/init", cases[i].what);
            } else {
                struct parsed p = want_ok(text);

                done(&p);
            }
        }
}

/* Rules and checks that ask for the dimension of a head run all the same. */
static void test_a_shape_without_heads_is_an_error(void **state)
{
    static const char *const cases[] = {
        "\"vit\",\"width\":8,\"depth\":1},\"attention\":{\"activation\":\"formula\",\"formula\":\"s^3/"
        "(1+abs(s))\"}",
        "\"vit\",\"width\":8,\"depth\":1},\"attention\":{\"activation\":\"formula\",\"formula\":\"a*s^3\","
        "\"params\":{"
        "\"a\":{\"init\":\"d\"}}}",
        "\"xcit\",\"width\":8,\"depth\":1},\"attention\":{\"activation\":\"poly\",\"n_for_scale\":"
        "\"channels\"}",
        "\"xcit\",\"width\":8,\"depth\":1},\"attention\":{\"activation\":\"poly\",\"n_for_scale\":\"keys\"}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];

        snprintf(text, sizeof text,
                 "{\"model\":{\"arch\":%s,\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
                 cases[i]);
        want_error(text, "#/model/heads", "is needed without a preset");
    }
}

static void test_what_has_no_effect_is_a_warning(void **state)
{
    static const struct {
        const char *doc, *set, *value, *pointer, *what;
    } cases[] = {
        {VIT, "/attention/k", "3", "#/attention/k",
         "has no effect unless attention.activation is poly with scale k"},
        {VIT, "/attention/degree", "2", "#/attention/degree",
         "has no effect unless attention.activation is poly"},
        {VIT, "/attention/alpha", "1", "#/attention/alpha", "sigmoid"},
        {VIT, "/model/window", "8", "#/model/window", "unless model.arch is swin"},
        {VIT, "/model/context", "8", "#/model/context", "unless the data are sequences"},
        {GPT, "/model/pool", "\"cls\"", "#/model/pool", "unless the data are images"},
        {GPT, "/data/augment/crop", "\"pad_crop\"", "#/data/augment/crop", "unless the data are images"},
        {VIT, "/data/tokenizer", "\"gpt2_bpe\"", "#/data/tokenizer", "unless the data are text"},
        {VIT, "/train/optimizer/momentum", "0.8", "#/train/optimizer/momentum",
         "unless the optimizer is msgdw"},
        {VIT, "/data/split", "{\"rule\":\"given\",\"train\":0.5}", "#/data/split/train",
         "with data.split.rule given"},
        {VIT, "/resources/warn_before_s", "9", "#/resources/warn_before_s", "without resources.time_limit_s"},
        {VIT, "/data", "{\"dataset\":\"digits_gen\",\"path\":\"x\"}", "#/data/path",
         "because polyd generates these data"},
        {VIT, "/attention/n", "3", "#/attention/n", "is computed"},
        {VIT, "/variant", "\"paper\"", "#/variant", "without a template"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(cases[i].doc, cases[i].set, cases[i].value);
        want_warning(doc, cases[i].pointer, cases[i].what);
        free(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_errors_come_at_once_with_pointers),
        cmocka_unit_test(test_words_of_other_trainers_point_at_the_field),
        cmocka_unit_test(test_lists_name_what_can_run),
        cmocka_unit_test(test_unknown_keys_and_suggestions),
        cmocka_unit_test(test_malformed_and_oversized_documents),
        cmocka_unit_test(test_checks_of_several_fields),
        cmocka_unit_test(test_errors_need_a_solution_that_is_not_zero),
        cmocka_unit_test(test_stored_documents_are_warned_of_what_is_refused_now),
        cmocka_unit_test(test_a_custom_shape_needs_no_preset),
        cmocka_unit_test(test_initial_values_are_checked_as_parameters_hold_them),
        cmocka_unit_test(test_a_shape_without_heads_is_an_error),
        cmocka_unit_test(test_what_has_no_effect_is_a_warning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
