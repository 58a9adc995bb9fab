/* api/claims.h: evaluates the claims of a template (daemon/job/claim.h) on the runs of one submission.
 *
 * Every planned seed counts: a claim is open while one of its runs is, and undecided where a run has no
 * result (failed, cancelled, lost, deleted). A run that diverged is worse than any finite value; if the
 * metric has no better direction, it counts as no value.
 *
 *   holds      the 95 % interval of the mean difference, or of the slope, lies on the claimed side
 *   fails      it lies entirely on the other side
 *   undecided  it contains the bound, or there are too few seeds for an interval
 *   open       runs are in progress, or none has a result yet
 *
 * Jobs of kind check bring a verdict of their own (theory.h): holds, fails, or
 *   reported   it has numbers but no criterion */
#pragma once

#include "api/experiment.h"

enum claim_verdict {
    CLAIM_HOLDS,
    CLAIM_REPORTED,
    CLAIM_OPEN,
    CLAIM_UNDECIDED,
    CLAIM_FAILS
}; /* from best to worst */
const char *claim_verdict_name(enum claim_verdict verdict);

/* Writes the members "verdict" (the worst of the submission's claims; null if there is none), "why" and
 * "claims" into an open object. *ret_counts: there is a verdict, and a run has a result or is in progress. */
PD_NODISCARD enum pd_err claims_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                                     enum claim_verdict *ret_verdict, bool *ret_counts, struct pd_why *why);
