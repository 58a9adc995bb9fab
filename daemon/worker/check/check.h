/* daemon/worker/check/check.h: tests the statements T1 to T20 of the theory numerically, with a verdict for each.
 *
 * All arithmetic is double precision on one thread, unless a theorem's file states otherwise. Random numbers come from
 * Philox and depend on the seed and the quantity drawn only, so a repeated check gives identical bits. A check runs once
 * for each seed; a criterion must hold for every seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* CHECK_REPORTED: the check has values but no criterion. */
enum check_verdict { CHECK_HOLDS, CHECK_FAILS, CHECK_REPORTED };
const char *check_verdict_name(enum check_verdict verdict); /* "holds"; static */

/* Callbacks of the caller. Both may be NULL. */
struct check_host {
    void *user;
    bool (*stop)(void *user); /* called often; true cancels the check */
    void (*progress)(void *user, int64_t done, int64_t total);
};

struct check_summary {
    enum check_verdict verdict;
    int64_t rows, judged,
        failed; /* rows of the table; rows with a criterion; of these, rows that violate it */
};

#define CHECK_JSON_BYTES ((size_t)2 << 20) /* largest size of a result */

/* Runs the check config->check and appends the result to ret_json as one JSON object:
 *   {"check": "T4", "source", "claimed", "correct", "wrong": whether the paper's statement is,
 *    "verdict", "evidence": [sentences], "seeds": [..],
 *    "rows": [{"what", "seed": null or a seed, "value", "se", "low", "high": the 99 % interval, "expected",
 *              "accept_low", "accept_high": the criterion, "pass": true, false, or null: no criterion}],
 *    "plots": [{"title", "x": {"title", "log"}, "y": {"title", "log"},
 *               "series": [{"name", "form": "points", "line" or "bars", "x": [..], "y": [..], "low": [..],
 *                           "high": [..]}]}]}
 * Numbers that are not finite are null, and so are absent ones.
 * PD_ERR_CANCELLED: `stop` returned true. PD_ERR_LIMIT: the result exceeds CHECK_JSON_BYTES. PD_ERR_INVALID: parameters
 * contradict each other; the sentence begins with the pointer of one. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err check_run(const struct job_config *config, const struct check_host *host,
                                   struct check_summary *ret, struct pd_buf *ret_json, struct pd_why *why);
