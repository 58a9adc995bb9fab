/* api/analysis.h: analysis of a sweep against one of its axes, as JSON. GET /jobs/{id}/sweep/analysis answers with
 * it. api/panel.h defines the statistics. */
#pragma once

#include "api/panel.h"
#include "api/stats.h"
#include "daemon/job/job.h"

/* Limits with names: what a client can grow. A job has JOB_MAX_RUNS runs at most, and each counts in one point;
 * resamples are API_PANEL_RESAMPLES. */
#define API_ANALYSIS_LEAVES 32 /* swept fields, those within swept objects counted one by one */
#define API_ANALYSIS_PANELS 256
#define API_ANALYSIS_POINTER 256 /* bytes of a field's pointer */

enum api_analysis_mode { API_ANALYSIS_MODE_OWN, API_ANALYSIS_MODE_MIN, API_ANALYSIS_MODE_MAX };

/* {0}: the job's own metric, its latest values, against the last axis of numbers, a panel for each combination of
 * the other axes. */
struct api_analysis_query {
    struct api_choice choice;        /* of one key at most */
    enum api_analysis_mode mode;     /* OWN: that of the metric */
    char axis[API_ANALYSIS_POINTER]; /* "" = the last one of numbers */
    bool by_named;                   /* panels are made by `by` alone */
    char by[API_ANALYSIS_LEAVES][API_ANALYSIS_POINTER];
    int by_count;
};

/* Appends the answer as one JSON object. PD_ERR_NOT_FOUND: there is no such job. PD_ERR_INVALID or
 * PD_ERR_LIMIT: the query does not fit the sweep; *ret_field (may be NULL) then names the field at fault. Reads
 * the job and its runs in two queries: within a snapshot of the caller's they are of one moment. */
PD_NODISCARD enum pd_err api_analysis_json(struct store *store, int64_t job,
                                           const struct api_analysis_query *query, struct pd_buf *b,
                                           const char **ret_field, struct pd_why *why);

/* Of the same analysis the slope of the best values against the number of tokens alone; *ret_why (static; NULL: there is one) names why there is not one
 * slope: no axis sets that number, or there are several lines. */
PD_NODISCARD enum pd_err api_analysis_slope(struct store *store, int64_t job,
                                            const struct api_analysis_query *query, struct api_slope *ret,
                                            const char **ret_why, struct pd_why *why);

/* The number of tokens that a run's network attends over, by its document; 0: unknown, or the run is gone. */
PD_NODISCARD enum pd_err api_run_tokens(struct store *store, int64_t run, int64_t *ret_tokens,
                                        struct pd_why *why);
