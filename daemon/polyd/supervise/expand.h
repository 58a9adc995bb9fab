/* daemon/polyd/supervise/expand.h: runs of jobs, made from their documents.
 *
 * The first runs of a job are made in the transaction that accepts it. One thread, which may wait for the
 * writer, creates the rest of a large sweep in small steps, because ten thousand rows at once would block
 * other writes. The remaining runs follow from the rows (job.runs < job.planned), so a restart continues
 * after the last commit.
 */
#pragma once

#include "daemon/job/job.h"
#include "daemon/polyd/store/tx.h"

/* One run, resolved. */
struct expand_run {
    int64_t point, trial, seed;
    struct pd_buf document, sweep; /* JSON */
    char config_digest[JOB_DIGEST_SIZE], plan_digest[JOB_DIGEST_SIZE];
};

/* Resolves run n; pure. On PD_OK the caller owns what `ret` holds. */
PD_NODISCARD enum pd_err expand_run_make(const struct job_doc *job, int64_t n, struct expand_run *ret,
                                         struct pd_why *why);
void expand_run_done(struct expand_run *run);
/* Adds it to the job. ret_id (may be NULL): the run's number. */
PD_NODISCARD enum pd_err expand_run_insert(struct store_tx *tx, const struct job_head *head, int64_t job_id,
                                           int priority, const struct expand_run *run, int64_t *ret_id,
                                           struct pd_why *why);

struct expander;
/* Starts the thread. `made` (may be NULL) is called on it after each commit that created runs. */
PD_NODISCARD enum pd_err expander_start(struct store_writer *w, void (*made)(void *ctx), void *ctx,
                                        struct expander **ret, struct pd_why *why);
/* A job may be waiting. Any thread. */
void expander_wake(struct expander *e);
/* Ends the thread after the current commit. Waking it afterwards has no effect. */
void expander_halt(struct expander *e);
/* Halts and frees. NULL is fine. Returns NULL. */
struct expander *expander_stop(struct expander *e);
