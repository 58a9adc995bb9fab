/* daemon/job/claim.h: what an experiment is expected to show, as statements that the runs decide. A variant of a
 * template (template.h) lists them:
 *
 *   {"says": a sentence, "is": W, "metric": key, "arm": S, "against": S or a number,
 *    "margin": m >= 0 (0), "value": "last" | "min" | "max" of each run's series ("last"),
 *    "relative": the difference divided by the size of `against` (false),
 *    "distance": the sides are distances of two combinations (false)}
 *   S: one combination, or two: the first less the second
 *   combination: {"job": its number in the variant (0), "point": {pointer: value}}
 *             or {"job", "best": [{pointer: value}, ..]}: of those, the best by its mean
 *
 * or, of how the best value of a swept field grows with the number of tokens N:
 *
 *   {"says", "is": W, "metric", "slope": {"job" (0), "axis": pointer}, "against": number, "margin", "value"}
 *
 * where d = b - against, of the line log(best value) = a + b log N (api/panel.h), judged by its bootstrap interval.
 *
 *   W            the claim, of d = arm - against, seed by seed
 *   greater      d > m
 *   less         d < -m
 *   not_less     d >= -m
 *   not_greater  d <= m
 *   within       -m <= d <= m
 *
 * A point names some axes of the sweep, or all; it must fit one combination. Who judges: api/claims.h. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

#define JOB_CLAIM_POINTS 16 /* most of one "best" */

enum job_claim_is {
    JOB_CLAIM_GREATER,
    JOB_CLAIM_LESS,
    JOB_CLAIM_NOT_LESS,
    JOB_CLAIM_NOT_GREATER,
    JOB_CLAIM_WITHIN,
    JOB_CLAIM_IS_COUNT
};
enum job_claim_value { JOB_CLAIM_LAST, JOB_CLAIM_MIN, JOB_CLAIM_MAX, JOB_CLAIM_VALUE_COUNT };

struct job_claim_term {
    size_t job;
    bool best;
    size_t count;
    const json_t *point[JOB_CLAIM_POINTS];
};
struct job_claim_side {
    size_t count; /* of terms: 1 or 2; 0 = a number */
    struct job_claim_term term[2];
    double number;
};
struct job_claim {
    const char *sentence, *metric;
    enum job_claim_is is;
    enum job_claim_value value;
    double margin;
    bool relative, distance;
    struct job_claim_side arm, against;
    const char *slope_axis; /* NULL = the claim compares combinations */
    size_t slope_job;
};

/* Reads one statement; texts and points are borrowed from `json`. PD_ERR_INVALID: `why` names the member. */
PD_NODISCARD enum pd_err job_claim_read(const json_t *json, struct job_claim *ret, struct pd_why *why);
const char *job_claim_is_name(enum job_claim_is is);
const char *job_claim_value_name(enum job_claim_value value);

/* Do the values of a combination have all that the point names? Numbers may differ by rounding. */
bool job_claim_fits(const json_t *point, const json_t *values);

/* The leaf of a combination at `pointer`: a swept value, or a member of a swept object; borrowed; NULL: it is not set. */
const json_t *job_claim_leaf(const json_t *values, const char *pointer);

/* Does a combination have all settings of one of the alternatives that a target or a picture of a template names? Settings are
 * leaves. NULL alternatives: every combination does. */
bool job_claim_matches(const json_t *alternatives, const json_t *values);
