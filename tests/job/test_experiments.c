/* tests/job/test_experiments.c: what the documents of an experiment hold constant, so that its runs compare only what
 * it asks about. */
#include "daemon/job/claim.h"
#include "daemon/job/template.h"
#include "tests/job/help.h"

/* The documents of the template as jobs; the caller frees them. */
static size_t expand(const char *name, const char *variant, struct job_doc *ret[JOB_TEMPLATE_JOBS])
{
    struct job_template_docs docs;
    struct job_report report;
    char request[160];

    snprintf(request, sizeof request, "{\"template\":\"%s\",\"variant\":\"%s\"%s}", name, variant,
             strcmp(variant, "paper") ? "" : ",\"data\":{\"path\":\"sets/of-the-paper\"}");
    job_report_init(&report);
    assert_int_equal(job_template_fold(request, strlen(request), NULL, &docs, &report), PD_OK);
    for (size_t i = 0; i < docs.count; i++)
        if (job_parse(docs.json[i].data, docs.json[i].len, NULL, &ret[i], &report) != PD_OK)
            fail_msg("%s, job %zu: %s: %s", request, i, report.errors[0].pointer, report.errors[0].detail);
    job_report_done(&report);
    job_template_docs_done(&docs);
    return docs.count;
}

/* Run n without what stands at the pointers. */
static json_t *run_without(const struct job_doc *job, int64_t n, const char *const *pointers)
{
    json_t *run = run_json(job, n);

    for (; *pointers; pointers++) {
        assert_non_null(job_json_at(run, *pointers));
        job_json_forget(run, *pointers);
    }
    return run;
}

static void test_experiments_placements_differ_in_nothing_else(void **state)
{
    /* What follows from a placement: norms of queries and keys, and scales that MidNorm does not cancel. */
    static const char *const follows[] = {"/norm/placement", "/attention/qk_norm", "/attention/scale_share",
                                          NULL};
    static const char *const variants[] = {"small", "paper"};

    (void)state;
    for (size_t v = 0; v < 2; v++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};

        assert_int_equal(expand("E15", variants[v], jobs), 2);
        for (size_t i = 0; i < 2; i++) {
            const int64_t trials = job_doc_head(jobs[i])->trials;
            json_t *first = run_without(jobs[i], 0, follows);

            assert_int_equal(job_run_count(jobs[i]), 5 * trials);
            assert_string_equal(json_string_value(job_json_at(first, "/norm/kind")), "rms");
            for (int64_t n = trials; n < 5 * trials; n += trials) {
                json_t *run = run_without(jobs[i], n, follows);

                if (!json_equal(run, first))
                    fail_msg("%s, job %zu: S%lld differs in more than its placement", variants[v], i,
                             (long long)(n / trials + 1));
                json_decref(run);
            }
            json_decref(first);
            job_free(jobs[i]);
        }
    }
}

static bool is(json_t *run, const char *pointer, const char *word)
{
    const char *text = json_string_value(job_json_at(run, pointer));

    return text && !strcmp(text, word);
}

/* A preset of the PreNorm design and one of the DNT are swept with each optimiser. */
static void test_experiments_designs_differ_in_their_norms_alone(void **state)
{
    static const char *const designs[] = {"/model/preset",      "/norm/placement",        "/norm/kind",
                                          "/attention/qk_norm", "/attention/scale_share", NULL};
    static const char *const names[] = {"E13", "E14"};

    (void)state;
    for (size_t e = 0; e < 2; e++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};
        const size_t count = expand(names[e], "paper", jobs);

        for (size_t i = 0; i < count; i++) {
            const int64_t half = job_run_count(jobs[i]) / 2;

            assert_int_equal(job_doc_head(jobs[i])->trials, 1);
            for (int64_t n = 0; n < half; n++) {
                json_t *plain = run_without(jobs[i], n, designs),
                       *dnt = run_without(jobs[i], n + half, designs);

                if (!json_equal(plain, dnt))
                    fail_msg("%s, job %zu: runs %lld and %lld differ in more than their norms", names[e], i,
                             (long long)n, (long long)(n + half));
                json_decref(plain);
                json_decref(dnt);
            }
            job_free(jobs[i]);
        }
    }
}

/* The DNT paper's table: 2000 steps of warm-up for AdamW, none for momentum SGD. */
static void test_experiments_momentum_sgd_of_text_has_no_warm_up(void **state)
{
    static const char *const names[] = {"E13", "E14", "E15"};
    int seen[2] = {0, 0};

    (void)state;
    for (size_t e = 0; e < 3; e++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};
        const size_t count = expand(names[e], "paper", jobs);

        for (size_t i = 0; i < count; i++) {
            for (int64_t n = 0; n < job_run_count(jobs[i]); n++) {
                json_t *run = run_json(jobs[i], n);
                const bool momentum = is(run, "/train/optimizer/name", "msgdw");

                if (is(run, "/data/dataset", "openwebtext")) {
                    assert_int_equal(json_integer_value(job_json_at(run, "/train/schedule/warmup_steps")),
                                     momentum ? 0 : 2000);
                    seen[momentum]++;
                }
                json_decref(run);
            }
            job_free(jobs[i]);
        }
    }
    assert_int_equal(seen[0], 2 + 4 + 4);
    assert_int_equal(seen[1], 2 + 2 + 2 + 5);
}

/* The tables of the polynomial papers are means of five trials. */
static void test_experiments_tables_have_five_trials_and_all_degrees(void **state)
{
    static const char *const names[] = {"E04", "E05", "E08", "E09", "E10", "E11"};
    static const char *const scales[] = {"fixed", "learned", "none"};

    (void)state;
    for (size_t e = 0; e < sizeof names / sizeof *names; e++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};
        const size_t count = expand(names[e], "paper", jobs);

        for (size_t i = 0; i < count; i++) {
            int found[9][3] = {{0}};

            assert_int_equal(job_doc_head(jobs[i])->trials, 5);
            for (int64_t n = 0; n < job_run_count(jobs[i]); n += 5) {
                json_t *run = run_json(jobs[i], n);

                for (int k = 0; k < 3; k++)
                    if (is(run, "/attention/activation", "poly") && is(run, "/attention/scale", scales[k]))
                        found[json_integer_value(job_json_at(run, "/attention/degree"))][k]++;
                json_decref(run);
            }
            for (int p = 1; p <= 7 && !strcmp(names[e], "E09"); p++)
                for (int k = 0; k < 3; k++)
                    assert_int_equal(found[p][k], p != 3); /* the cubic is E05 */
            job_free(jobs[i]);
        }
    }
}

/* How many combinations of the job the alternatives name. */
static size_t matching(const struct job_doc *job, const json_t *alternatives)
{
    size_t found = 0;

    for (int64_t n = 0; n < job_run_count(job); n += job_doc_head(job)->trials) {
        char *text = params(job, n);
        json_t *values = json_loads(text, 0, NULL);

        found += job_claim_matches(alternatives, values);
        json_decref(values);
        free(text);
    }
    return found;
}

static void test_experiments_rows_of_tables_find_their_runs(void **state)
{
    static const char *const names[] = {"E05", "E09", "E11", "E13", "E14"};
    size_t rows = 0;

    (void)state;
    for (size_t e = 0; e < sizeof names / sizeof *names; e++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};
        const size_t count = expand(names[e], "paper", jobs);
        size_t len, i, k, m;
        const char *text = job_template_text(job_template_find(names[e]), &len);
        json_t *file = json_loadb(text, len, 0, NULL), *target, *column, *row;

        json_array_foreach(json_object_get(file, "targets"), i, target)
            json_array_foreach(json_object_get(target, "columns"), k, column)
                json_array_foreach(json_object_get(target, "rows"), m, row)
        {
            const size_t job = (size_t)json_integer_value(json_object_get(column, "job"));

            assert_true(job < count);
            if (!matching(jobs[job], json_object_get(row, "match")))
                fail_msg("%s, job %zu: no run for the row '%s'", names[e], job,
                         json_string_value(json_object_get(row, "name")));
            rows++;
        }
        json_decref(file);
        for (i = 0; i < count; i++)
            job_free(jobs[i]);
    }
    assert_true(rows >= 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experiments_placements_differ_in_nothing_else),
        cmocka_unit_test(test_experiments_designs_differ_in_their_norms_alone),
        cmocka_unit_test(test_experiments_momentum_sgd_of_text_has_no_warm_up),
        cmocka_unit_test(test_experiments_tables_have_five_trials_and_all_degrees),
        cmocka_unit_test(test_experiments_rows_of_tables_find_their_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
