/* api/claims.h: judges the claims of a template (daemon/job/claim.h) by the runs of one submission of it.
 *
 * Every planned seed counts: a claim is open while one of its runs is, and undecided where a run has no result
 * (failed, cancelled, lost, deleted). A run that diverged is worse than any finite value; where the metric has no
 * better side, it has no value at all.
 *
 *   holds      the 95 % interval of the mean difference, or of the slope, lies on the claimed side
 *   fails      it lies wholly on the other side
 *   undecided  it spans the claim, or there are too few seeds for an interval
 *   open       runs still go on, or none has a result yet
 *
 * Jobs of kind check bring a verdict of their own (theory.h): holds, fails, or
 *   reported   it has numbers only, and asserts nothing */
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

/* Of a submission: the members "verdict" (the worst of its claims; null where there is none), "why" and "claims"
 * of an open object. *ret_counts: it has a verdict, and a run of it has a result or is going on. */
PD_NODISCARD enum pd_err claims_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                                     enum claim_verdict *ret_verdict, bool *ret_counts, struct pd_why *why);
