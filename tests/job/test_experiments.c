/* tests/job/test_experiments.c: what the documents of an experiment hold constant, so that its runs compare only what
 * it asks about. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experiments_placements_differ_in_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
