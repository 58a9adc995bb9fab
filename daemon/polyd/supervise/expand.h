/* daemon/polyd/supervise/expand.h: runs of jobs, made from their documents.
 *
 * The first runs of a job are made in the transaction that accepts it. The rest of a large sweep follows bit
 * by bit, by one thread that may wait for the writer: ten thousand rows at once would hold up everyone. What
 * is left to do stands in the rows (job.runs < job.planned), so a restart goes on where the last commit was.
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
/* Starts the thread. `made` is called on it after each commit that brought runs (NULL = nobody asks). */
PD_NODISCARD enum pd_err expander_start(struct store_writer *w, void (*made)(void *ctx), void *ctx,
                                        struct expander **ret, struct pd_why *why);
/* A job may be waiting. Any thread. */
void expander_wake(struct expander *e);
/* Ends the thread after the commit under way. It may still be woken: that does nothing. */
void expander_halt(struct expander *e);
/* Halts and frees. NULL is fine. Returns NULL. */
struct expander *expander_stop(struct expander *e);
