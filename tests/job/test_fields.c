/* tests/job/test_fields.c: every row of the table, one by one: default, type, range, values, availability.
 */
#include <math.h>

#include "tests/job/help.h"

/* The value at the pointer of the resolved base document, as canonical text; the caller frees it. */
static char *resolved_at(const char *text, const char *pointer)
{
    struct parsed p = parse(text);
    struct pd_buf b;
    json_t *run;

    if (p.err != PD_OK) {
        dump(&p);
        fail_msg("%s", text);
    }
    run = run_json(p.job, 0);
    pd_buf_init(&b, 0);
    if (!job_json_at(run, pointer))
        fail_msg("the resolved document lacks %s", pointer);
    job_json_write(job_json_at(run, pointer), &b);
    json_decref(run);
    done(&p);
    return pd_buf_take(&b);
}

/* Keys that live inside an object that is null by default, inside the sweep, that become an axis of it, or that training has
 * not. */
static bool nested(const struct job_field *f)
{
    if (f->type == JOB_T_FORMULAS ||
        !job_kind_has(JOB_KIND_TRAIN, f->pointer + 1, strcspn(f->pointer + 1, "/")))
        return true;
    for (size_t i = 0; i < job_field_count; i++) {
        size_t n = strlen(job_fields[i].pointer);
        if (job_fields[i].type == JOB_T_OBJECT && strncmp(f->pointer, job_fields[i].pointer, n) == 0 &&
            f->pointer[n] == '/')
            return true;
    }
    return false;
}

/* A document that is valid and in which the field is present. */
static char *base_for(const struct job_field *f)
{
    if (strncmp(f->pointer, "/sweep/", 7) == 0)
        return with(VIT, "/sweep", "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1]}]}");
    if (strncmp(f->pointer, "/train/teacher/", 15) == 0)
        return with(VIT, "/train/teacher", TEACHER);
    if (strncmp(f->pointer, "/evaluate/", 10) == 0)
        return strdup(EVALUATE);
    if (strcmp(f->pointer, "/check") == 0 || strcmp(f->pointer, "/params") == 0)
        return strdup(CHECK);
    if (nested(f)) {
        char parent[128];
        snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(f->pointer, '/') - f->pointer), f->pointer);
        return with(VIT, parent, "{}");
    }
    return strdup(VIT);
}

static bool numeric(const struct job_field *f)
{
    return f->type == JOB_T_INT || f->type == JOB_T_NUMBER || f->type == JOB_T_INT_PAIR ||
           f->type == JOB_T_ENUM_OR_NUM;
}

static void pointer_text(const struct job_field *f, char *out, size_t size)
{
    snprintf(out, size, "#%s", f->pointer);
}

static void test_rows_are_well_formed(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        assert_int_equal(f->pointer[0], '/');
        assert_true(!strchr(f->pointer, '~') && !strchr(f->pointer, '%'));
        assert_true((f->def != NULL) != (f->rule != NULL));
        assert_true((f->rule != NULL) == (f->rule_text != NULL));
        assert_true((f->useful != NULL) == (f->useful_text != NULL));
        assert_true(f->meaning && *f->meaning && f->reference);
        assert_true((f->names != NULL) == (f->type == JOB_T_ENUM || f->type == JOB_T_ENUM_OR_NUM ||
                                           f->type == JOB_T_ENUMS || f->type == JOB_T_SETS));
        assert_true(f->min <= f->max);
        assert_ptr_equal(job_field_find(f->pointer), f);
        if (f->names)
            assert_true(f->available == 0 || f->available >> f->names->count == 0);
    }
    assert_null(job_field_find("/nothing"));
}

static void test_every_key_is_in_a_resolved_document_and_no_other(void **state)
{
    struct parsed p = want_ok(VIT);
    json_t *run = run_json(p.job, 0);
    size_t leaves = 0;

    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        if (nested(f))
            assert_null(job_json_at(run, f->pointer));
        else if (!job_json_at(run, f->pointer))
            fail_msg("%s is missing", f->pointer);
        else
            leaves++;
    }
    assert_int_equal(json_integer_value(job_json_at(run, "/schema")), JOB_SCHEMA);
    assert_true(leaves > 120);
    json_decref(run);
    done(&p);
}

static void test_defaults_are_those_of_the_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        struct pd_buf want;
        json_t *d;
        char *got;
        if (!f->def || nested(f) || f->group != JOB_GROUP_NONE || strcmp(f->pointer, "/model/preset") == 0)
            continue;
        d = json_loads(f->def, JSON_DECODE_ANY, NULL);
        if (!d)
            fail_msg("%s: the default %s is no JSON", f->pointer, f->def);
        pd_buf_init(&want, 0);
        job_json_write(d, &want);
        got = resolved_at(VIT, f->pointer);
        if (strcmp(got, want.data) != 0)
            fail_msg("%s: %s instead of %s", f->pointer, got, want.data);
        free(got);
        pd_buf_done(&want);
        json_decref(d);
    }
}

static void test_defaults_by_rule(void **state)
{
    static const struct {
        const char *doc, *set, *value, *pointer, *want;
    } cases[] = {
        {VIT, NULL, NULL, "/train/optimizer/lr", "0.001"},
        {VIT, "/train/optimizer/name", "\"msgdw\"", "/train/optimizer/lr", "0.3"},
        {VIT, "/train/optimizer/name", "\"msgdw\"", "/train/optimizer/weight_decay", "0.0001"},
        {VIT, NULL, NULL, "/train/optimizer/weight_decay", "0.05"},
        {GPT, NULL, NULL, "/train/optimizer/weight_decay", "0.1"},
        {VIT, NULL, NULL, "/train/optimizer/betas", "[0.9,0.999]"},
        {GPT, NULL, NULL, "/train/optimizer/betas", "[0.9,0.95]"},
        {VIT, NULL, NULL, "/train/clip_norm", "null"},
        {GPT, NULL, NULL, "/train/clip_norm", "1"},
        {VIT, NULL, NULL, "/train/init", "\"trunc_normal\""},
        {GPT, NULL, NULL, "/train/init", "\"normal\""},
        {VIT, NULL, NULL, "/model/gelu", "\"exact\""},
        {VIT, NULL, NULL, "/data/split_seed", "0"},
        {VIT, NULL, NULL, "/norm/eps", "0.000001"},
        {GPT, NULL, NULL, "/norm/eps", "0.00001"},
        {VIT, NULL, NULL, "/model/patch", "4"},
        {VIT, NULL, NULL, "/data/image_size", "28"},
        {VIT, NULL, NULL, "/model/pool", "\"mean\""},
        {VIT, "/model/preset", "\"vit_micro\"", "/model/width", "64"},
        {VIT, NULL, NULL, "/model/context", "null"},
        {GPT, NULL, NULL, "/model/context", "128"},
        {GPT, "/model/preset", "\"gpt_nano\"", "/model/context", "256"},
        {GPT, "/model/preset", "\"gpt2\"", "/model/context", "1024"},
        {GPT, "/model/preset", "\"gpt2\"", "/model/bias", "true"},
        {GPT, NULL, NULL, "/model/bias", "false"},
        {GPT, "/model/context", "64", "/data/context", "64"},
        {GPT, NULL, NULL, "/model/patch", "null"},
        {VIT, NULL, NULL, "/data/path", "\"mnist\""},
        {VIT, "/data/dataset", "\"digits_gen\"", "/data/path", "null"},
        {TEXT_GEN, NULL, NULL, "/data/path", "null"},
        {TEXT_GEN, NULL, NULL, "/data/split/rule", "\"standard\""},
        {TEXT_GEN, NULL, NULL, "/data/split/train", "null"},
        {TEXT_GEN, NULL, NULL, "/data/split_seed", "0"},
        {VIT, NULL, NULL, "/data/split/rule", "\"standard\""},
        {GPT, NULL, NULL, "/data/split/rule", "\"standard\""},
        {GPT, NULL, NULL, "/data/split/train", "null"},
        {GPT, NULL, NULL, "/data/split/test", "null"},
        {GPT, "/data/split/train", "0.8", "/data/split/val", "null"},
        {GPT, "/schema", "2", "/data/split/rule", "\"fraction\""},
        {GPT, "/schema", "2", "/data/split/train", "0.9"},
        {GPT, "/schema", "2", "/data/split/val", "0.1"},
        {VIT, "/schema", "2", "/data/split/rule", "\"given\""},
        {VIT, NULL, NULL, "/attention/n_for_scale", "\"patches\""},
        {GPT, NULL, NULL, "/attention/n_for_scale", "\"context\""},
        {VIT, NULL, NULL, "/attention/n", "49"},
        {VIT, NULL, NULL, "/attention/c0", "1"},
        {VIT, "/attention", "{\"activation\":\"poly\"}", "/attention/c0", "0.14285714285714285"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"none\"}", "/attention/c0", "1"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"k\",\"k\":4}", "/attention/c0", "0.25"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":196}", "/attention/n", "196"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":0.5}", "/attention/n", "0.5"},
        {VIT, "/attention", "{\"activation\":\"formula\",\"formula\":\"log(n)^0.5*s\",\"n_for_scale\":1}",
         "/attention/n", "1"},
        {VIT, "/data/image_size", "[28,40]", "/attention/n", "56"},
        {GPT, "/data/context", "64", "/attention/n", "128"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":196}", "/attention/n_for_scale", "196"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"keys\"}", "/attention/n", "49"},
        {VIT, "/model/pool", "\"cls\"", "/attention/n", "49"},
        {GPT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"keys\"}", "/attention/n", "128"},
        {GPT, "/attention", "{\"activation\":\"poly\",\"n_for_scale\":\"row\"}", "/attention/n", "1"},
        {VIT, NULL, NULL, "/attention/scale_param", "\"direct\""},
        {VIT, "/train/optimizer/name", "\"msgdw\"", "/attention/scale_param", "\"log\""},
        {VIT, NULL, NULL, "/attention/scale_share", "\"layer\""},
        {VIT, NULL, NULL, "/attention/qk_norm", "false"},
        {VIT, NULL, NULL, "/norm/kind", "\"layer\""},
        {GPT, NULL, NULL, "/train/schedule/warmup_steps", "5"},
        {GPT, NULL, NULL, "/train/schedule/warmup_epochs", "null"},
        {VIT, NULL, NULL, "/train/schedule/warmup_steps", "null"},
        {VIT, "/train/epochs", "4", "/train/schedule/warmup_epochs", "0.2"},
        {VIT, "/train/schedule/warmup_steps", "7", "/train/schedule/warmup_epochs", "null"},
        {VIT, NULL, NULL, "/train/schedule/min_lr", "0.00001"},
        {VIT, "/train/optimizer/lr", "1", "/train/schedule/min_lr", "0.01"},
        {GPT, NULL, NULL, "/train/eval_every", "5"},
        {GPT, "/train/steps", "3", "/train/eval_every", "1"},
        {VIT, NULL, NULL, "/train/eval_every", "null"},
        {VIT, NULL, NULL, "/train/checkpoint_every/seconds", "600"},
        {VIT, "/train/checkpoint_every/steps", "9", "/train/checkpoint_every/seconds", "null"},
        {VIT, NULL, NULL, "/resources/device", "\"cpu\""},
        {VIT, NULL, NULL, "/resources/threads", "1"},
        {VIT, NULL, NULL, "/train/precision", "\"fp32\""},
        {VIT, NULL, NULL, "/train/keep/best", "1"},
        {VIT, "/model/patch", "[4,7]", "/model/patch", "[4,7]"},
        {VIT, "/model/patch", "[7,7]", "/model/patch", "7"},
        {VIT, "/model/patch", "[4,7]", "/attention/n", "28"},
        {VIT, NULL, NULL, "/train/schedule/warmup_form", "\"nanogpt\""},
        {VIT, "/train/schedule/warmup_lr", "0.000001", "/train/schedule/warmup_form", "\"timm\""},
        {VIT, "/attention/activation", "\"sigmoid\"", "/attention/alpha", "0.5"},
        {VIT, "/attention/activation", "\"sigmoid_bias\"", "/attention/alpha", "0"},
        {VIT, "/attention/activation", "\"relu\"", "/attention/alpha", "1"},
        {VIT, "/norm/placement", "\"S2\"", "/norm/kind", "\"rms\""},
        {VIT, "/norm/placement", "\"S5\"", "/norm/kind", "\"rms\""},
        {VIT, "/norm/placement", "\"post\"", "/norm/kind", "\"layer\""},
        {VIT, "/norm/placement", "\"S5\"", "/attention/qk_norm", "true"},
        {VIT, "/norm/placement", "\"S3\"", "/attention/scale_share", "\"layer\""},
        {VIT, "/norm/placement", "\"S4\"", "/attention/scale_share", "\"head\""},
        {VIT, "/resources/device", "\"cuda\"", "/train/precision", "\"bf16\""},
        {GPT, "/data/split", "{}", "/data/split/rule", "\"standard\""},
        {VIT, "/model/pool", "\"cls\"", "/attention/n_for_scale", "\"patches\""},
        {GPT, "/data/tokenizer", "\"gpt2_bpe\"", "/data/tokenizer_path", "\"corpora/gpt2-bpe\""},
        {GPT, NULL, NULL, "/data/tokenizer_path", "null"},
        {VIT, "/sweep", "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1]}]}", "/train/seed", "1"},
        {VIT, "/train/seed", "5.0", "/train/seed", "5"},
        {VIT, "/train/clip_norm", "null", "/train/clip_norm", "null"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = cases[i].set ? with(cases[i].doc, cases[i].set, cases[i].value) : strdup(cases[i].doc);
        char *got = resolved_at(doc, cases[i].pointer);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s\n  %s: %s instead of %s", doc, cases[i].pointer, got, cases[i].want);
        free(got);
        free(doc);
    }
}

/* Problems at the field's own place, of any kind; none if `count` is 0. */
static bool error_at(const char *doc, const char *pointer, const char *what)
{
    struct parsed p = parse(doc);
    bool found = told(p.report.errors, p.report.error_count, pointer, what);

    done(&p);
    return found;
}

static void test_wrong_types_are_refused_everywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        char pointer[128], *base = base_for(f), *doc;
        const char *wrong =
            f->type == JOB_T_BOOL || numeric(f) || f->type == JOB_T_NUMBER_PAIR ? "\"1\"" : "1";
        if (f->type == JOB_T_ENUM_OR_NUM)
            wrong = "true";
        pointer_text(f, pointer, sizeof pointer);
        if (!(f->flags & JOB_F_COMPUTED)) {
            doc = with(base, f->pointer, wrong);
            if (!error_at(doc, pointer, "must be"))
                fail_msg("%s takes %s", f->pointer, wrong);
            free(doc);
            if (!(f->flags & JOB_F_NULLABLE) && f->type != JOB_T_AXES && f->type != JOB_T_OVERRIDES) {
                doc = with(base, f->pointer, "null");
                if (!error_at(doc, pointer, "must not be null"))
                    fail_msg("%s takes null", f->pointer);
                free(doc);
            }
        }
        free(base);
    }
}

/* The number as JSON, from its own writer. */
static void expect_range(const struct job_field *f, const char *base, double v, bool inside)
{
    char text[48], pointer[128], *doc;

    pointer_text(f, pointer, sizeof pointer);
    doc = with(base, f->pointer, job_json_number(v, text));
    if (error_at(doc, pointer, "must be at least") || error_at(doc, pointer, "must be greater than")) {
        if (inside)
            fail_msg("%s refuses %s", f->pointer, text);
    } else if (!inside) {
        fail_msg("%s takes %s", f->pointer, text);
    }
    free(doc);
}

static void test_every_range_is_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        char *base;
        bool whole = f->type == JOB_T_INT || f->type == JOB_T_INT_PAIR;
        double step;
        if (!numeric(f) || f->flags & JOB_F_COMPUTED)
            continue;
        base = base_for(f);
        if (isfinite(f->min)) {
            step = whole ? 1 : fabs(f->min) > 0 ? fabs(f->min) * 1e-6 : 1e-9;
            expect_range(f, base, f->min, !(f->flags & JOB_F_MIN_OPEN));
            expect_range(f, base, f->min - step, false);
            expect_range(f, base, f->min + step, f->min + step <= f->max);
        }
        if (isfinite(f->max)) {
            step = whole ? 1 : fabs(f->max) * 1e-6;
            expect_range(f, base, f->max, !(f->flags & JOB_F_MAX_OPEN));
            if (f->max < JOB_MAX_SEED) /* beyond 2^53 no whole number is read at all */
                expect_range(f, base, f->max + step, false);
        }
        if (f->type == JOB_T_INT) {
            char pointer[128], *doc = with(base, f->pointer, "1.5");
            pointer_text(f, pointer, sizeof pointer);
            if (!error_at(doc, pointer, "must be an integer"))
                fail_msg("%s takes 1.5", f->pointer);
            free(doc);
        }
        free(base);
    }
}

static void test_every_name_is_taken_or_refused_by_name(void **state)
{
    char pointer[128], value[64], want[128];

    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        char *base;
        if (f->type != JOB_T_ENUM && f->type != JOB_T_ENUM_OR_NUM)
            continue;
        base = base_for(f);
        pointer_text(f, pointer, sizeof pointer);
        for (unsigned k = 0; k < f->names->count - (f->type == JOB_T_ENUM_OR_NUM); k++) {
            struct parsed p;
            bool runs = job_field_runs(f, k), refused, idle;
            char *doc;
            snprintf(value, sizeof value, "\"%s\"", f->names->names[k]);
            snprintf(want, sizeof want, "\"%s\" is known but not available in this version",
                     f->names->names[k]);
            doc = with(base, f->pointer, value);
            p = parse(doc);
            refused = told(p.report.errors, p.report.error_count, pointer, want);
            idle = told(p.report.warnings, p.report.warning_count, pointer, "has no effect") || f->useful;
            if (told(p.report.errors, p.report.error_count, pointer, "must be one of"))
                fail_msg("%s does not know %s", f->pointer, value);
            if (runs && refused)
                fail_msg("%s refuses %s", f->pointer, value);
            if (!runs && !refused && !idle)
                fail_msg("%s lets %s pass", f->pointer, value);
            done(&p);
            free(doc);
        }
        if (f->type == JOB_T_ENUM) {
            char *doc;
            snprintf(value, sizeof value, "\"%sx\"", f->names->names[0]);
            doc = with(base, f->pointer, value);
            if (!error_at(doc, pointer, "must be one of"))
                fail_msg("%s takes %s", f->pointer, value);
            if (strlen(f->names->names[0]) > 1 && !error_at(doc, pointer, f->names->names[0]))
                fail_msg("%s has no suggestion for %s", f->pointer, value);
            free(doc);
        }
        free(base);
    }
}

/* Each row of which only the default runs refuses another value, naming the field, or says that it has no
 * effect: nothing is ignored in silence. */
static void test_what_is_not_available_is_marked_so(void **state)
{
    static const char *const pointers[] = {"/depends_on"};
    struct pd_buf b;
    json_t *all, *field;
    size_t i, seen = 0;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(job_fields_json(&b, NULL), PD_OK);
    all = json_loadb(b.data, b.len, 0, NULL);
    json_array_foreach(json_object_get(all, "fields"), i, field)
    {
        const char *pointer = json_string_value(json_object_get(field, "pointer"));

        for (size_t k = 0; k < sizeof pointers / sizeof *pointers; k++) {
            if (strcmp(pointers[k], pointer) != 0)
                continue;
            seen++;
            if (!json_is_true(json_object_get(field, "only_default")) ||
                json_array_size(json_object_get(field, "available")))
                fail_msg("%s looks available", pointer);
        }
    }
    assert_int_equal(seen, sizeof pointers / sizeof *pointers);
    json_decref(all);
    pd_buf_done(&b);
}

static void test_what_is_not_available_is_never_ignored(void **state)
{
    static const struct {
        const char *pointer, *value;
    } others[] = {
        {"/model/pos_after", "true"},
        {"/norm/final", "false"},
        {"/attention/scale_decay", "true"},
        {"/attention/scale_lr_mult", "2"},
        {"/attention/qk_norm", "true"},
        {"/attention/init_logit_std", "0.5"},
        {"/data/augment/flip", "0.5"},
        {"/data/augment/eval_crop", "0.875"},
        {"/train/accumulation", "2"},
        {"/train/drop_path", "0.1"},
        {"/train/dropout", "0.1"},
        {"/train/deterministic", "false"},
        {"/train/ema", "0.999"},
        {"/train/keep/experiment", "1"},
        {"/resources/slots", "2"},
        {"/resources/memory_bytes", "1000000"},
    };
    char pointer[128];

    (void)state;
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        struct parsed p;
        char *doc;
        size_t k = 0;
        if (!(f->flags & JOB_F_ONLY))
            continue;
        while (k < sizeof others / sizeof *others && strcmp(others[k].pointer, f->pointer) != 0)
            k++;
        if (k == sizeof others / sizeof *others)
            fail_msg("this test knows no other value for %s", f->pointer);
        pointer_text(f, pointer, sizeof pointer);
        doc = with(VIT, f->pointer, others[k].value);
        p = parse(doc);
        if (!told(p.report.errors, p.report.error_count, pointer, "known but not available") &&
            !told(p.report.warnings, p.report.warning_count, pointer, "has no effect")) {
            dump(&p);
            fail_msg("%s = %s passes", f->pointer, others[k].value);
        }
        done(&p);
        free(doc);
    }
}

static void test_strings_keep_their_lengths(void **state)
{
    static const struct {
        const char *pointer;
        size_t most;
    } cases[] = {{"/name", 200}, {"/experiment", 128}, {"/register", 128}, {"/notes", 65536}};
    char *text = malloc(70000);

    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t n = cases[i].most; n <= cases[i].most + 1; n++) {
            struct parsed p;
            char *doc;
            text[0] = '"';
            memset(text + 1, 'a', n);
            strcpy(text + 1 + n, "\"");
            doc = with(VIT, cases[i].pointer, text);
            p = parse(doc);
            assert_int_equal(p.err == PD_OK, n == cases[i].most);
            done(&p);
            free(doc);
        }
    }
    free(text);
    want_only(
        "{\"experiment\":\"a/"
        "b\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
        "#/experiment", "letters, digits");
    want_only("{\"name\":\"\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},"
              "\"train\":{\"epochs\":1}}",
              "#/name", "1 to 200 bytes");
}

static void test_every_preset_resolves_or_is_refused_by_name(void **state)
{
    const struct job_preset *preset;
    int arch;

    (void)state;
    for (size_t i = 0; (preset = job_preset_at(i, &arch)); i++) {
        const char *base = job_network(arch)->reads == JOB_READS_TEXT ? GPT : VIT;
        char value[64], *doc, *more;
        struct parsed p;
        snprintf(value, sizeof value, "\"%s\"", preset->name);
        doc = with(base, "/model/preset", value);
        if (job_network(arch)->equations) {
            more = strdup("{\"model\":{},\"data\":{\"dataset\":\"pde_wave\"},\"train\":{\"steps\":1}}");
            free(doc);
            doc = more;
            more = with(doc, "/model/preset", value);
        } else if (job_network(arch)->stages ||
                   job_network(arch)->channel_attention) /* sizes are halved again and again */
            more = with(doc, "/data/image_size", "224");
        else
            more = job_network(arch)->landmarks ? with(doc, "/data/dataset", "\"listops_gen\"")
                   : preset->patch              ? with(doc, "/model/patch", "7")
                                                : strdup(doc);
        p = parse(more);
        if (p.err != PD_OK &&
            !told(p.report.errors, p.report.error_count, "#/model/preset", "known but not available") &&
            !(job_network(arch)->distils &&
              told(p.report.errors, p.report.error_count, "#/train/teacher", "is needed"))) {
            dump(&p);
            fail_msg("%s", preset->name);
        }
        done(&p);
        free(more);
        free(doc);
    }
    want_error(
        "{\"model\":{\"preset\":\"maskrcnn_micro\"}}", "#/model/preset",
        "\"maskrcnn_micro\" sets /model/arch: \"maskrcnn\" is known but not available in this version");
    want_error("{\"model\":{\"preset\":\"vit_mikro\"}}", "#/model/preset", "did you mean 'vit_micro'?");
    want_error("{\"recipe\":\"deit_c\"}", "#/recipe", "did you mean 'deit_b'?");
    want_error("{\"template\":\"E01\"}", "#/template", "\"E01\" stands for whole jobs");
    want_error("{\"template\":\"theory/T20\"}", "#/template", "stands for whole jobs");
    want_error("{\"template\":\"E19\"}", "#/template", "unknown template");
    want_error("{\"template\":\"theory/T0\"}", "#/template", "unknown template");
    want_error("{\"template\":\"E1\"}", "#/template", "unknown template");
    want_error("{\"params\":{\"a\":1}}", "#/params", "is for jobs of kind check");
}

static void test_description_holds_every_field(void **state)
{
    struct pd_buf b;
    json_t *top, *list;
    size_t presets = 0;
    int arch;

    (void)state;
    while (job_preset_at(presets, &arch))
        presets++;
    pd_buf_init(&b, 0);
    assert_int_equal(job_fields_json(&b, NULL), PD_OK);
    top = json_loads(b.data, 0, NULL);
    assert_non_null(top);
    list = json_object_get(top, "fields");
    assert_int_equal(json_array_size(list), job_field_count);
    for (size_t i = 0; i < job_field_count; i++) {
        json_t *o = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(o, "pointer")), job_fields[i].pointer);
        assert_non_null(json_object_get(o, "default"));
        assert_non_null(json_object_get(o, "type"));
        assert_non_null(json_object_get(o, "meaning"));
    }
    assert_int_equal(json_array_size(json_object_get(top, "presets")), presets);
    assert_int_equal(json_array_size(json_object_get(top, "datasets")), job_dataset_count);
    json_decref(top);
    b.len = 0;
    assert_int_equal(job_fields_text(&b, NULL), PD_OK);
    for (char *line = strtok(b.data, "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) > 110)
            fail_msg("too long: %s", line);
    }
    pd_buf_done(&b);
}

static void test_datasets_and_names_agree(void **state)
{
    (void)state;
    assert_int_equal(job_dataset_count, job_names_dataset.count);
    for (size_t i = 0; i < job_dataset_count; i++) {
        const struct job_dataset_info *d = job_dataset_info((enum job_dataset)i);
        const struct job_field *f = job_field_find("/data/dataset");
        assert_string_equal(d->name, job_names_dataset.names[i]);
        assert_int_equal(d->available, job_field_runs(f, (unsigned)i));
    }
    assert_null(job_dataset_info((enum job_dataset)job_dataset_count));
    assert_null(job_dataset_info((enum job_dataset) - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_well_formed),
        cmocka_unit_test(test_every_key_is_in_a_resolved_document_and_no_other),
        cmocka_unit_test(test_defaults_are_those_of_the_table),
        cmocka_unit_test(test_defaults_by_rule),
        cmocka_unit_test(test_wrong_types_are_refused_everywhere),
        cmocka_unit_test(test_every_range_is_kept),
        cmocka_unit_test(test_every_name_is_taken_or_refused_by_name),
        cmocka_unit_test(test_what_is_not_available_is_marked_so),
        cmocka_unit_test(test_what_is_not_available_is_never_ignored),
        cmocka_unit_test(test_strings_keep_their_lengths),
        cmocka_unit_test(test_every_preset_resolves_or_is_refused_by_name),
        cmocka_unit_test(test_description_holds_every_field),
        cmocka_unit_test(test_datasets_and_names_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
