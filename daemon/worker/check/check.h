/* daemon/worker/check/check.h: examines the statements T1 to T20 of the theory, and says of each what holds.
 *
 * All arithmetic is double precision on one thread. Random numbers are Philox draws: a function of the seed and of
 * what is drawn, so a check that is repeated gives the same bits. A check runs once for each seed; a criterion must
 * hold for every seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* reported: the check asserts nothing, it has numbers only. */
enum check_verdict { CHECK_HOLDS, CHECK_FAILS, CHECK_REPORTED };
const char *check_verdict_name(enum check_verdict verdict); /* "holds"; static */

/* Who runs a check. Both may be NULL. */
struct check_host {
    void *user;
    bool (*stop)(void *user); /* asked often; true ends the check */
    void (*progress)(void *user, int64_t done, int64_t total);
};

struct check_summary {
    enum check_verdict verdict;
    int64_t rows, judged, failed; /* rows of the table; with a criterion; of those, outside of it */
};

#define CHECK_JSON_BYTES ((size_t)2 << 20) /* most that a result may take */

/* Examines config->check, and appends the result as one JSON object:
 *   {"check": "T4", "source", "claimed", "correct", "wrong": whether the paper's statement is,
 *    "verdict", "evidence": [sentences], "seeds": [..],
 *    "rows": [{"what", "seed": null or a seed, "value", "se", "low", "high": the 99 % interval, "expected",
 *              "accept_low", "accept_high": the criterion, "pass": true, false, or null: no criterion}],
 *    "plots": [{"title", "x": {"title", "log"}, "y": {"title", "log"},
 *               "series": [{"name", "form": "points", "line" or "bars", "x": [..], "y": [..], "low": [..],
 *                           "high": [..]}]}]}
 * Numbers that are not finite are null, and so are absent ones.
 * PD_ERR_CANCELLED: stopped; PD_ERR_NOMEM, PD_ERR_LIMIT; PD_ERR_INVALID: parameters that do not fit each other, the
 * sentence names one by its pointer. */
PD_NODISCARD enum pd_err check_run(const struct job_config *config, const struct check_host *host,
                                   struct check_summary *ret, struct pd_buf *ret_json, struct pd_why *why);
