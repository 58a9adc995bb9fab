/* What must hold of any bytes taken for a job document (tests/fuzz). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

/* Aborts with a sentence. */
static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "job_fuzz: %s\n", what);
    abort();
}

static void fuzz_run(const struct job_doc *job, int64_t n)
{
    struct pd_buf once, twice;
    struct job_report report;
    struct job_doc *again = NULL;
    char a[JOB_DIGEST_SIZE], b[JOB_DIGEST_SIZE];

    pd_buf_init(&once, 0);
    pd_buf_init(&twice, 0);
    job_report_init(&report);
    must(job_run_resolve(job, n, &once, NULL) == PD_OK, "a run of an accepted job does not resolve");
    must(job_parse(once.data, once.len, NULL, &again, &report) == PD_OK, "a resolved run is no valid job");
    must(job_run_count(again) == 1, "a resolved run is not one run");
    must(job_run_resolve(again, 0, &twice, NULL) == PD_OK, "a resolved run does not resolve");
    must(once.len == twice.len && memcmp(once.data, twice.data, once.len) == 0,
         "resolving twice changes the run");
    must(job_config_digest(once.data, once.len, a, NULL) == PD_OK &&
             job_config_digest(twice.data, twice.len, b, NULL) == PD_OK && strcmp(a, b) == 0,
         "the digest is not stable");
    job_free(again);
    job_report_done(&report);
    pd_buf_done(&once);
    pd_buf_done(&twice);
}

void job_fuzz(const uint8_t *bytes, size_t len)
{
    struct job_report report;
    struct job_doc *job = NULL, *kept = NULL;
    struct pd_buf document;
    enum pd_err err;

    job_report_init(&report);
    pd_buf_init(&document, 0);
    err = job_parse((const char *)bytes, len, NULL, &job, &report);
    must(err == PD_OK || err == PD_ERR_NOMEM || report.error_count > 0, "a refusal without a reason");
    must(err != PD_OK || report.error_count == 0, "an accepted job with errors");
    if (err == PD_OK) {
        fuzz_run(job, 0);
        fuzz_run(job, job_run_count(job) - 1);
        must(job_document(job, &document, NULL) == PD_OK, "an accepted job has no document");
        must(job_parse(document.data, document.len, NULL, &kept, &report) == PD_OK,
             "a job's document is no valid job");
        must(job_run_count(kept) == job_run_count(job), "a job's document has other runs");
        fuzz_run(kept, job_run_count(kept) - 1);
    }
    job_free(kept);
    job_free(job);
    job_report_done(&report);
    pd_buf_done(&document);
}
