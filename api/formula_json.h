/* api/formula_json.h: what a formula of attention is, as JSON: of POST /api/v1/formulas/check, and of a dry run.
 *
 * Keeps nothing; any thread. */
#pragma once

#include <jansson.h>

#include "daemon/job/job.h"
#include "kernels/base/buf.h"
#include "kernels/formula/forecast.h"

#define API_FORMULA_BINS 64 /* of the logits that a start has measured */

/* Sizes of consecutive layers that are alike. */
struct api_formula_stage {
    int64_t layers, heads;
    double n, width;
};

/* A learned scalar before the run. */
struct api_formula_scalar {
    const char *name;
    const char *init; /* a formula of sizes */
    int per;          /* enum job_scale_share */
};

/* Where a formula would run. */
struct api_formula {
    /* The first is head 0 of layer 0. The others are there if they differ. */
    struct pk_formula_heads heads;
    const char *init[PK_FORMULA_PARAMS]; /* of each scalar of the formula */
    struct pk_formula_start start;
    double norm;     /* of A, as it was measured; NAN: it is forecast */
    double factor;   /* on A, which puts the norm at the ceiling; NAN: it follows from the norm */
    double from, to; /* logits of the samples */
    int64_t samples;
};

/* Sets heads and init. keys: of a row. A scalar that is not described starts at 1. */
PD_NODISCARD enum pd_err api_formula_heads(struct api_formula *c, const struct pk_formula *f,
                                           const struct api_formula_stage *stages, int stage_count,
                                           double keys, const struct api_formula_scalar *scalars,
                                           size_t scalar_count);
/* Appends the schema Formula of the contract. */
void api_formula_json(struct pd_buf *b, const char *text, struct pk_formula *f,
                      const struct pk_formula_plan *plan, const struct api_formula *at);
/* The same of the formula that a run's document names, with the sizes and initial values of its layers and heads.
 * start: what polyd-worker plan --start has measured; NULL: nothing. factor: as in struct api_formula. On an error nothing
 * was appended. */
PD_NODISCARD enum pd_err api_formula_of_job(struct pd_buf *b, const struct job_config *config,
                                            const json_t *start, double factor, struct pd_why *why);
/* The mean norm over the layers of a start; NAN: some layer has none. */
double api_formula_norm(const json_t *start);
/* The document of that run with the initial value that api_formula_of_job suggests, in *ret, which the caller frees; NULL if
 * there is no suggestion. *factor: as in struct api_formula, and NAN is replaced. */
PD_NODISCARD enum pd_err api_formula_at_ceiling(const struct job_config *config, const char *document,
                                                const json_t *start, double *factor, char **ret,
                                                struct pd_why *why);
