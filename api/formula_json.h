/* api/formula_json.h: what a formula of attention is, as JSON: of POST /api/v1/formulas/check, and of a dry run.
 *
 * Keeps nothing; any thread. */
#pragma once

#include <jansson.h>

#include "daemon/job/job.h"
#include "kernels/base/buf.h"
#include "kernels/formula/forecast.h"

#define API_FORMULA_BINS 64 /* of the logits that a start has measured */

/* Where a formula would run. */
struct api_formula {
    double leaf[PK_LEAVES]; /* sizes and the initial values of scalars, as for pk_formula_value */
    struct pk_formula_start start;
    double norm;     /* of A, as it was measured; NAN: it is forecast */
    double from, to; /* logits of the samples */
    int64_t samples;
};

/* Appends the schema Formula of the contract. */
void api_formula_json(struct pd_buf *b, const char *text, struct pk_formula *f,
                      const struct pk_formula_plan *plan, const struct api_formula *at);
/* The same of the formula that a run's document names, with the sizes and initial values of its first layer and head.
 * start: what polyd-worker plan --start has measured; NULL: nothing. On an error nothing was appended. */
PD_NODISCARD enum pd_err api_formula_of_job(struct pd_buf *b, const struct job_config *config,
                                            const json_t *start, struct pd_why *why);
