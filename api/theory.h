/* api/theory.h: results of runs of kind check (daemon/worker/check), stored as their blob "check". */
#pragma once

#include "api/claims.h"

/* The result of a run, as JSON; the caller owns it. *ret is NULL if the run has none. */
PD_NODISCARD enum pd_err theory_read(struct store *store, int64_t run, json_t **ret, struct pd_why *why);

/* Of a job: [{"run_id", "result": ..}] of its runs that have a result. `full`: with rows and plots. */
PD_NODISCARD enum pd_err theory_results_json(struct pd_buf *b, struct store *store,
                                             const struct experiment_job *job, bool full, struct pd_why *why);

/* Of a submission whose jobs are checks: the worst of its runs' verdicts. A run without a result is open, or
 * undecided once it has ended. *ret_why: a static sentence, or NULL. */
PD_NODISCARD enum pd_err theory_verdict(struct experiment *x, const struct experiment_set *set,
                                        enum claim_verdict *ret, const char **ret_why, struct pd_why *why);
