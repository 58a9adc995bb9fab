/* api/analysis.h: analysis of a sweep along one of its axes, as JSON, for GET /jobs/{id}/sweep/analysis.
 * api/panel.h defines the statistics. */
#pragma once

#include "api/panel.h"
#include "api/stats.h"
#include "daemon/job/job.h"

/* Limits on what a client can request. A job has at most JOB_MAX_RUNS runs, each in one point; there are
 * API_PANEL_RESAMPLES resamples. */
#define API_ANALYSIS_LEAVES 32 /* swept fields, members of swept objects counted individually */
#define API_ANALYSIS_PANELS 256
#define API_ANALYSIS_POINTER 256 /* maximum bytes of a field's pointer */

enum api_analysis_mode { API_ANALYSIS_MODE_OWN, API_ANALYSIS_MODE_MIN, API_ANALYSIS_MODE_MAX };

/* {0}: the latest values of the job's own metric along the last numeric axis, with a panel for each
 * combination of the other axes. */
struct api_analysis_query {
    struct api_choice choice;        /* of one key at most */
    enum api_analysis_mode mode;     /* OWN: that of the metric */
    char axis[API_ANALYSIS_POINTER]; /* "" = the last numeric axis */
    bool by_named;                   /* panels are made by `by` alone */
    char by[API_ANALYSIS_LEAVES][API_ANALYSIS_POINTER];
    int by_count;
};

/* Appends the answer as one JSON object. PD_ERR_NOT_FOUND: there is no such job. PD_ERR_INVALID or
 * PD_ERR_LIMIT: the query does not fit the sweep; *ret_field (may be NULL) then names the invalid field.
 * Reads the job and its runs in two queries; call it within a snapshot for a consistent view. */
PD_NODISCARD enum pd_err api_analysis_json(struct store *store, int64_t job,
                                           const struct api_analysis_query *query, struct pd_buf *b,
                                           const char **ret_field, struct pd_why *why);

/* Only the slope of the best values against the number of tokens, from the same analysis; *ret_why (static;
 * NULL: there is a slope) is the reason why there is no single slope: no axis sets that number, or there are
 * several lines. */
PD_NODISCARD enum pd_err api_analysis_slope(struct store *store, int64_t job,
                                            const struct api_analysis_query *query, struct api_slope *ret,
                                            const char **ret_why, struct pd_why *why);

/* The number of tokens that a run's network attends over, by its document; 0: unknown, or the run is gone. */
PD_NODISCARD enum pd_err api_run_tokens(struct store *store, int64_t run, int64_t *ret_tokens,
                                        struct pd_why *why);
