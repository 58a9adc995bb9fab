/* tests/job/test_sweep.c: axes, draws, parameters of runs. */
#include <math.h>

#include "tests/job/help.h"

static struct parsed sweep_of(const char *base, const char *sweep)
{
    char *doc = with(base, "/sweep", sweep);
    struct parsed p = parse(doc);

    if (p.err != PD_OK) {
        dump(&p);
        fail_msg("%s", sweep);
    }
    free(doc);
    return p;
}

static void test_grid_runs_through_all_combinations_last_axis_fastest(void **state)
{
    struct parsed p = sweep_of(GPT, "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[8,16]},"
                                    "{\"pointer\":\"/attention\",\"values\":[{\"activation\":\"softmax\"},"
                                    "{\"activation\":\"poly\",\"degree\":2}]},{\"pointer\":\"/train/"
                                    "optimizer/lr\",\"linear\":[0.1,0.3,3]}]}");

    (void)state;
    assert_int_equal(job_run_count(p.job), 12);
    want_params(
        p.job, 0,
        "{\"/attention\":{\"activation\":\"softmax\"},\"/train/batch\":8,\"/train/optimizer/lr\":0.1}");
    want_params(
        p.job, 1,
        "{\"/attention\":{\"activation\":\"softmax\"},\"/train/batch\":8,\"/train/optimizer/lr\":0.2}");
    want_params(p.job, 3,
                "{\"/attention\":{\"activation\":\"poly\",\"degree\":2},\"/train/batch\":8,\"/train/"
                "optimizer/lr\":0.1}");
    want_params(p.job, 11,
                "{\"/attention\":{\"activation\":\"poly\",\"degree\":2},\"/train/batch\":16,\"/train/"
                "optimizer/lr\":0.3}");
    {
        json_t *run = run_json(p.job, 11);
        assert_int_equal(json_integer_value(job_json_at(run, "/train/batch")), 16);
        assert_int_equal(json_integer_value(job_json_at(run, "/attention/degree")), 2);
        assert_true(json_number_value(job_json_at(run, "/train/optimizer/lr")) == 0.3);
        assert_true(json_number_value(job_json_at(run, "/train/schedule/min_lr")) == 0.003);
        json_decref(run);
    }
    done(&p);
}

/* Both ends included, the steps between even: in the number, or in its logarithm. */
static void test_ranges_are_spread_evenly_from_end_to_end(void **state)
{
    static const struct {
        const char *axis;
        double want[7];
        int count;
    } cases[] = {
        {"\"log\":[0.001,1000,7]", {0.001, 0.01, 0.1, 1, 10, 100, 1000}, 7},
        {"\"log\":[2,32,5]", {2, 4, 8, 16, 32}, 5},
        {"\"linear\":[0.5,3,6]", {0.5, 1, 1.5, 2, 2.5, 3}, 6},
        {"\"linear\":[3,9,1]", {3}, 1},
        {"\"log\":[3,9,1]", {3}, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char sweep[160];
        struct parsed p;

        snprintf(sweep, sizeof sweep, "{\"axes\":[{\"pointer\":\"/train/optimizer/lr\",%s}]}", cases[i].axis);
        p = sweep_of(GPT, sweep);
        assert_int_equal(job_run_count(p.job), cases[i].count);
        for (int n = 0; n < cases[i].count; n++) {
            json_t *run = run_json(p.job, n);
            double got = json_number_value(job_json_at(run, "/train/optimizer/lr"));

            if (got != cases[i].want[n])
                fail_msg("%s: value %d is %.17g, not %.17g", cases[i].axis, n, got, cases[i].want[n]);
            json_decref(run);
        }
        done(&p);
    }
}

/* What ranks the runs where the document does not say. */
static void test_runs_are_ranked_by_least_validation_loss(void **state)
{
    struct parsed p = sweep_of(GPT, "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]}]}");

    (void)state;
    assert_string_equal(job_doc_head(p.job)->metric, "loss/val");
    assert_int_equal(job_doc_head(p.job)->mode, JOB_MODE_MIN);
    done(&p);
    p = want_ok(GPT);
    assert_string_equal(job_doc_head(p.job)->metric, "loss/val");
    assert_int_equal(job_doc_head(p.job)->mode, JOB_MODE_MIN);
    done(&p);
}

static void test_random_draws_are_functions_of_the_seed(void **state)
{
    static const char sweep[] = "{\"method\":\"random\",\"samples\":200,\"seed\":7,\"axes\":["
                                "{\"pointer\":\"/train/optimizer/lr\",\"loguniform\":[0.0001,1]},"
                                "{\"pointer\":\"/train/batch\",\"uniform\":[4,8]},{\"pointer\":\"/model/"
                                "bias\",\"values\":[true,false]}]}";
    struct parsed p = sweep_of(GPT, sweep), q = sweep_of(GPT, sweep);
    double log_sum = 0;
    int seen[9] = {0}, bias = 0;

    (void)state;
    assert_int_equal(job_run_count(p.job), 200);
    for (int64_t n = 199; n >= 0; n--) { /* in any order */
        char *x = params(p.job, n), *y = params(q.job, n);
        json_t *v = json_loads(x, 0, NULL);
        double lr = json_number_value(json_object_get(v, "/train/optimizer/lr"));
        int64_t batch = json_integer_value(json_object_get(v, "/train/batch"));
        assert_string_equal(x, y);
        assert_true(lr >= 0.0001 && lr <= 1);
        assert_true(batch >= 4 && batch <= 8);
        log_sum += log10(lr);
        seen[batch]++;
        bias += json_is_true(json_object_get(v, "/model/bias"));
        json_decref(v);
        free(x);
        free(y);
    }
    assert_true(fabs(log_sum / 200 + 2) < 0.35); /* the mean of log10 is -2, its standard error 0.08 */
    assert_true(seen[5] > 20 && seen[6] > 20 && seen[7] > 20 && bias > 60 && bias < 140);
    /* pinned: another version must draw the same, or stored jobs would change */
    want_params(p.job, 0,
                "{\"/model/bias\":true,\"/train/batch\":8,\"/train/optimizer/lr\":0.0273891212285}");
    done(&p);
    done(&q);
}

static void test_sweeps_refuse_what_is_wrong(void **state)
{
    static const struct {
        const char *sweep, *pointer, *what;
    } cases[] = {
        {"{}", "#/sweep/axes", "is needed"},
        {"{\"axes\":[]}", "#/sweep/axes", "1 to 8 axes"},
        {"{\"axes\":{}}", "#/sweep/axes", "1 to 8 axes"},
        {"{\"axes\":[1]}", "#/sweep/axes/0", "must be an object"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\"}]}", "#/sweep/axes/0", "needs one of values"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[]}]}", "#/sweep/axes/0/values", "1 to 1000"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[1],\"log\":[1,2,3]}]}", "#/sweep/axes/0",
         "more than one"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"value\":[1]}]}", "#/sweep/axes/0/value",
         "did you mean 'values'?"},
        {"{\"axes\":[{\"values\":[1]}]}", "#/sweep/axes/0/pointer", "must be a JSON pointer"},
        {"{\"axes\":[{\"pointer\":\"/train/bacth\",\"values\":[1]}]}", "#/sweep/axes/0/pointer",
         "did you mean 'batch'?"},
        {"{\"axes\":[{\"pointer\":\"/name\",\"values\":[\"a\"]}]}", "#/sweep/axes/0/pointer",
         "cannot be swept"},
        {"{\"axes\":[{\"pointer\":\"/attention/c0\",\"values\":[1]}]}", "#/sweep/axes/0/pointer",
         "cannot be swept"},
        {"{\"axes\":[{\"pointer\":\"/resources/threads\",\"values\":[1]}]}", "#/sweep/axes/0/pointer",
         "cannot be swept"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"log\":[0,2,3]}]}", "#/sweep/axes/0/log", "0 < lo <= hi"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"linear\":[3,2,3]}]}", "#/sweep/axes/0/linear",
         "lo <= hi"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"linear\":[1,2]}]}", "#/sweep/axes/0/linear",
         "[lo, hi, n]"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"linear\":[1,2,1001]}]}", "#/sweep/axes/0/linear",
         "from 1 to 1000"},
        {"{\"axes\":[{\"pointer\":\"/model/preset\",\"linear\":[1,2,3]}]}", "#/sweep/axes/0",
         "only a number"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"uniform\":[1,2]}]}", "#/sweep/axes/0",
         "need the method random"},
        {"{\"method\":\"random\",\"axes\":[{\"pointer\":\"/train/batch\",\"uniform\":[1,2,3]}]}",
         "#/sweep/axes/0/uniform", "[lo, hi]"},
        {"{\"axes\":[{\"pointer\":\"/train/optimizer\",\"values\":[3]}]}", "#/sweep/axes/0/values/0",
         "must be an object"},
        {"{\"axes\":[{\"pointer\":\"/train/optimizer\",\"values\":[{\"lrr\":3}]}]}",
         "#/sweep/axes/0/values/0/lrr", "did you mean 'lr'?"},
        {"{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[1]},{\"pointer\":\"/train/"
         "batch\",\"values\":[1]}]}",
         "#/sweep/axes/1/pointer", "overlaps"},
        {"{\"axes\":[{\"pointer\":\"/train\",\"values\":[{}]},{\"pointer\":\"/train/"
         "batch\",\"values\":[1]}]}",
         "#/sweep/axes/1/pointer", "overlaps"},
        {"{\"method\":\"asha\",\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[1]}]}", "#/sweep/method",
         "\"asha\" is known but not"},
        {"{\"axes\":[{\"pointer\":\"/train/seed\",\"linear\":[0,999,1000]},{\"pointer\":\"/train/"
         "batch\",\"linear\":[1,11,11]}]}",
         "#/sweep", "more than 10000 runs"},
        {"{\"axes\":[{\"pointer\":\"/sweep\",\"values\":[1]}]}", "#/sweep/axes/0/pointer", "cannot be swept"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(GPT, "/sweep", cases[i].sweep);
        want_only(doc, cases[i].pointer, cases[i].what);
        free(doc);
    }
    {
        char *doc = with(GPT, "/sweep", "{\"axes\":[{\"pointer\":\"/train/seed\",\"linear\":[0,999,1000]}]}"),
             *more;
        more = with(doc, "/trials", "11");
        want_only(more, "#/sweep", "more than 10000 runs");
        free(more);
        free(doc);
    }
}

static void test_a_sweep_warns_only_of_what_never_has_an_effect(void **state)
{
    char *doc = with(GPT, "/attention", "{\"degree\":2,\"k\":3}"), *more;
    struct parsed p;

    (void)state;
    more = with(doc, "/sweep",
                "{\"axes\":[{\"pointer\":\"/attention/activation\",\"values\":[\"softmax\",\"poly\"]}]}");
    p = parse(more);
    assert_int_equal(p.err, PD_OK);
    assert_true(told(p.report.warnings, p.report.warning_count, "#/attention/k", "has no effect"));
    assert_false(told(p.report.warnings, p.report.warning_count, "#/attention/degree", "has no effect"));
    done(&p);
    free(doc);
    free(more);
}

/* ---- attention.formulas ---- */

/* Another way to write the same axis: runs, resolved documents and digests are those of the axis. */
static void test_a_list_of_formulas_is_the_last_axis_of_the_sweep(void **state)
{
    static const char axes[] = "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[8,16]}]}";
    static const char both[] =
        "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[8,16]},{\"pointer\":\"/attention/formula\","
        "\"values\":[\"softmax(s)\",\"s^3/sqrt(n)\",\"s^3/(1+abs(s))\"]}]}";
    char *list =
             with(VIT, "/attention", "{\"formulas\":[\"softmax(s)\",\"s^3/sqrt(n)\",\"s^3/(1+abs(s))\"]}"),
         *plain = with(VIT, "/attention", "{\"activation\":\"formula\"}"),
         *short_doc = with(list, "/sweep", axes), *long_doc = with(plain, "/sweep", both);
    struct parsed p = want_ok(short_doc), q = want_ok(long_doc), alone = want_ok(list);
    struct pd_buf b;

    (void)state;
    assert_int_equal(job_run_count(p.job), 6);
    for (int64_t i = 0; i < 6; i++) {
        char *x = run_text(p.job, i), *y = run_text(q.job, i);

        assert_string_equal(x, y);
        free(x);
        free(y);
    }
    want_params(p.job, 1, "{\"/attention/formula\":\"s^3/sqrt(n)\",\"/train/batch\":8}");
    want_params(p.job, 5, "{\"/attention/formula\":\"s^3/(1+abs(s))\",\"/train/batch\":16}");
    assert_int_equal(job_run_count(alone.job), 3);
    pd_buf_init(&b, 0);
    assert_int_equal(job_document(p.job, &b, NULL), PD_OK); /* what is kept reads as the axis */
    assert_null(strstr(b.data, "formulas"));
    assert_non_null(strstr(b.data, "{\"pointer\":\"/attention/formula\",\"values\":[\"softmax(s)\""));
    pd_buf_done(&b);
    done(&p);
    done(&q);
    done(&alone);
    free(list);
    free(plain);
    free(short_doc);
    free(long_doc);
}

/* Scalars beside the list are those of all its formulas; those of an entry replace them. */
static void test_a_formula_of_a_list_takes_the_scalars_that_it_names(void **state)
{
    char *doc =
        with(VIT, "/attention",
             "{\"formulas\":[\"a*s^3\",\"softmax(s)\",{\"formula\":\"softmax(a*s)+b*s\",\"params\":{\"a\":{"
             "\"init\":2}}}],\"params\":{\"a\":{\"init\":\"1/sqrt(n)\"}}}");
    char *idle = with(VIT, "/attention", "{\"formulas\":[\"a*s^3\",\"s\"],\"params\":{\"a\":{},\"b\":{}}}");
    static const char *const inits[] = {"1/sqrt(n)", NULL, "2"};
    struct parsed p = want_ok(doc);

    (void)state;
    for (int64_t i = 0; i < 3; i++) {
        json_t *run = run_json(p.job, i), *params = job_json_at(run, "/attention/params");
        char *text = run_text(p.job, i);
        struct parsed again = want_ok(text); /* a resolved document is a job */

        assert_int_equal(json_object_size(params), inits[i] != NULL);
        if (inits[i])
            assert_string_equal(json_string_value(job_json_at(params, "/a/init")), inits[i]);
        done(&again);
        free(text);
        json_decref(run);
    }
    assert_int_equal(p.report.warning_count, 0);
    done(&p);
    p = parse(idle);
    assert_int_equal(p.err, PD_OK);
    assert_true(
        told(p.report.warnings, p.report.warning_count, "#/attention/params/b", "no formula names \"b\""));
    assert_int_equal(p.report.warning_count, 1);
    done(&p);
    free(doc);
    free(idle);
}

static void test_two_spellings_of_a_formula_are_named(void **state)
{
    static const struct {
        const char *list, *pointer, *what; /* NULL: there is no warning */
    } cases[] = {
        {"[\"s^3\",\"softmax(s)\",\"s*s*s\"]", "#/attention/formulas/2",
         "\"s*s*s\" is the same function as \"s^3\", entry 0 of the list"},
        {"[\"s^3\",{\"formula\":\"s*s*s\"},\"a*s\"]", "#/attention/formulas/1", "\"s^3\", entry 0"},
        {"[\"a*s\",{\"formula\":\"s*a\",\"params\":{\"a\":{\"init\":2}}}]", NULL, NULL},
        {"[\"s^3\",\"s^3/sqrt(n)\"]", NULL, NULL},
    };
    static const char axes[] = "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[8,16]}]}";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], *doc, *more;
        struct parsed p;

        snprintf(text, sizeof text, "{\"formulas\":%s}", cases[i].list);
        doc = with(VIT, "/attention", text);
        more = with(doc, "/sweep", axes);
        p = parse(more);
        assert_int_equal(p.err, PD_OK);
        if (cases[i].what) {
            assert_int_equal(p.report.warning_count, 2);
            assert_true(told(p.report.warnings, 2, cases[i].pointer, cases[i].what));
            assert_true(told(p.report.warnings, 2, "#/sweep", "runs are duplicates"));
        } else {
            assert_int_equal(p.report.warning_count, 0);
        }
        done(&p);
        free(doc);
        free(more);
    }
}

static void test_errors_of_a_formula_point_into_the_list(void **state)
{
    static const struct {
        const char *attention, *sweep, *pointer, *what;
    } cases[] = {
        {"{\"formulas\":[\"softmax(s)\",\"s^3/sqrt(n\"]}", NULL, "#/attention/formulas/1", "character 11"},
        {"{\"formulas\":[\"sofmax(s)\"]}", NULL, "#/attention/formulas/0", "softmax"},
        {"{\"formulas\":[\"s\",{\"formula\":\"s^(1\"}]}", NULL, "#/attention/formulas/1/formula",
         "character"},
        {"{\"formulas\":[\"s\",{\"formula\":\"a*s\",\"params\":{\"a\":{\"form\":\"exp\"}}}]}", NULL,
         "#/attention/formulas/1/params/a/form", "must be one of"},
        {"{\"formulas\":[\"s(\",{\"formula\":\"s\"}]}", NULL, "#/attention/formulas/0", "character"},
        {"{\"formulas\":[{\"formula\":\"s\",\"parms\":{}}]}", NULL, "#/attention/formulas/0/parms",
         "did you mean"},
        {"{\"formulas\":[7]}", NULL, "#/attention/formulas/0", "must be a formula"},
        {"{\"formulas\":[]}", NULL, "#/attention/formulas", "1 to 1000"},
        {"{\"formulas\":\"s\"}", NULL, "#/attention/formulas", "must be an array"},
        {"{\"formulas\":[\"s\"],\"formula\":\"s\"}", NULL, "#/attention/formulas", "/attention/formula"},
        {"{\"formulas\":[\"s\"],\"activation\":\"softmax\"}", NULL, "#/attention/formulas",
         "/attention/activation"},
        {"{\"formulas\":[\"s\"]}", "7", "#/sweep", "must be an object"},
        {"{\"formulas\":[\"s\"]}", "{\"axes\":{}}", "#/sweep/axes", "must be an array"},
        {"{\"formulas\":[\"s\"]}", "{\"axes\":[{\"pointer\":\"/attention/formula\",\"values\":[\"s\"]}]}",
         "#/attention/formulas", "overlaps"},
        {"{\"formulas\":[\"s\"]}", "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[]}]}",
         "#/sweep/axes/0/values", "1 to 1000"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(VIT, "/attention", cases[i].attention),
             *more = cases[i].sweep ? with(doc, "/sweep", cases[i].sweep) : NULL;

        want_only(more ? more : doc, cases[i].pointer, cases[i].what);
        free(more);
        free(doc);
    }
}

static void test_runs_outside_the_job_are_not_found(void **state)
{
    struct parsed p = want_ok(VIT);
    struct pd_buf b;
    struct pd_why why;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(job_run_resolve(p.job, 1, &b, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(job_run_resolve(p.job, -1, &b, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(job_run_params(p.job, 1, &b, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(b.len, 0);
    done(&p);
}

static void test_a_metric_that_no_run_writes_is_warned_of(void **state)
{
#define BY(doc_sweep)                                                                                        \
    "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]}],\"metric\":\"" doc_sweep "\"}"
    static const struct {
        const char *doc, *set, *value, *sweep, *what;
    } cases[] = {
        {VIT, "/name", "\"x\"", BY("accuracy"), "evaluations write loss/val, acc/val"},
        {VIT, "/name", "\"x\"", BY("acc/vla"), "did you mean 'acc/val'?"},
        {VIT, "/name", "\"x\"", BY("acc/val"), NULL},
        {VIT, "/name", "\"x\"", BY("ppl/val"), "no run writes"},
        {GPT, "/name", "\"x\"", BY("ppl/val"), NULL},
        {GPT, "/name", "\"x\"", BY("acc/train"), "loss/val, ppl/val"},
        {VIT, "/name", "\"x\"", BY("acc/train"), NULL},
        {VIT, "/data/augment", "{\"mixup\":0.8}", BY("acc/train"), "no run writes"},
        {VIT, "/data/augment", "{\"cutmix\":1}", BY("acc/train"), "no run writes"},
        {VIT, "/name", "\"x\"", BY("loss/val_ema"), "no run writes"},
        {VIT, "/train/ema", "0.9", BY("loss/val_ema"), NULL},
        {VIT, "/name", "\"x\"", BY("attn/fro/1/2"), NULL},
        {VIT, "/name", "\"x\"", BY("attn/fro/99"), "no run writes"},
        {VIT, "/name", "\"x\"", BY("attn/fro/1x"), "no run writes"},
        {VIT, "/diagnostics/every", "0", BY("attn/fro/1"), "no run writes"},
        {VIT, "/name", "\"x\"", BY("attn/jac_q_fro/1"), NULL},
        {VIT, "/attention/qk_norm", "true", BY("attn/jac_q_fro/1"), "no run writes"},
        {VIT, "/name", "\"x\"", BY("scale/c/1"), "no run writes"},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"learned\"}", BY("scale/c/1"), NULL},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"learned\"}", BY("scale/c/1/1"),
         "no run writes"},
        /* one combination that writes it is enough */
        {VIT, "/attention", "{\"activation\":\"poly\"}",
         "{\"axes\":[{\"pointer\":\"/attention/"
         "scale\",\"values\":[\"fixed\",\"learned\"]}],\"metric\":\"scale/c/1\"}",
         NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *a = with(cases[i].doc, cases[i].set, cases[i].value), *b = with(a, "/sweep", cases[i].sweep);

        if (cases[i].what) {
            want_warning(b, "#/sweep/metric", cases[i].what);
        } else {
            struct parsed p = want_ok(b);

            done(&p);
        }
        free(a);
        free(b);
    }
}

static void test_sweep_mode_follows_the_metric(void **state)
{
#define MODE(metric, mode)                                                                                   \
    "{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]}],\"metric\":\"" metric "\"" mode "}"
    static const struct {
        const char *sweep;
        int mode;
        const char *what; /* of the warning */
    } cases[] = {{MODE("acc/val", ""), JOB_MODE_MAX, NULL},
                 {MODE("loss/val", ""), JOB_MODE_MIN, NULL},
                 {MODE("attn/fro/1", ""), JOB_MODE_MIN, NULL},
                 {"{\"axes\":[{\"pointer\":\"/train/seed\",\"values\":[1,2]}]}", JOB_MODE_MIN, NULL},
                 {MODE("acc/val", ",\"mode\":\"max\""), JOB_MODE_MAX, NULL},
                 {MODE("attn/fro/1", ",\"mode\":\"max\""), JOB_MODE_MAX, NULL},
                 {MODE("acc/val", ",\"mode\":\"min\""), JOB_MODE_MIN,
                  "ranked by the smallest acc/val, of which more is better"},
                 {MODE("loss/val", ",\"mode\":\"max\""), JOB_MODE_MAX,
                  "ranked by the greatest loss/val, of which less is better"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(VIT, "/sweep", cases[i].sweep);
        struct parsed p;

        if (cases[i].what)
            want_warning(doc, "#/sweep/mode", cases[i].what);
        else {
            p = want_ok(doc);
            assert_int_equal(job_doc_head(p.job)->mode, cases[i].mode);
            done(&p);
        }
        free(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep_mode_follows_the_metric),
        cmocka_unit_test(test_grid_runs_through_all_combinations_last_axis_fastest),
        cmocka_unit_test(test_ranges_are_spread_evenly_from_end_to_end),
        cmocka_unit_test(test_runs_are_ranked_by_least_validation_loss),
        cmocka_unit_test(test_random_draws_are_functions_of_the_seed),
        cmocka_unit_test(test_sweeps_refuse_what_is_wrong),
        cmocka_unit_test(test_a_sweep_warns_only_of_what_never_has_an_effect),
        cmocka_unit_test(test_a_list_of_formulas_is_the_last_axis_of_the_sweep),
        cmocka_unit_test(test_a_formula_of_a_list_takes_the_scalars_that_it_names),
        cmocka_unit_test(test_two_spellings_of_a_formula_are_named),
        cmocka_unit_test(test_errors_of_a_formula_point_into_the_list),
        cmocka_unit_test(test_runs_outside_the_job_are_not_found),
        cmocka_unit_test(test_a_metric_that_no_run_writes_is_warned_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
