/* api/experiment.h: an experiment, i.e. the jobs with one label, as a snapshot of the store.
 *
 *   experiment ── job ── row (a combination of its sweep) ── run (a seed)
 *        │         └──── series (a metric's last, least and greatest value of every run)
 *        └─── set (the jobs of one submission of a template), judged by its claims (claims.h)
 *
 * experiment_json.c writes it, report_html.c draws what experiment_json.c wrote: page, report and API show
 * the same numbers. The limits below bound all sizes; `cut` names what was left out. */
#pragma once

#include <jansson.h>

#include "api/stats.h"
#include "daemon/job/template.h"

#define EXPERIMENT_JOBS 32     /* the newest of the label */
#define EXPERIMENT_POINTS 200  /* combinations of one job */
#define EXPERIMENT_RUNS 4096   /* runs of one job */
#define EXPERIMENT_SERIES 16   /* metrics of one job */
#define EXPERIMENT_CURVES 12   /* combinations of one job that the report draws over training */
#define EXPERIMENT_BUCKETS 200 /* points of such a curve, as on the page */
#define EXPERIMENT_BYTES 8e6   /* a report of more bytes omits curves and configurations */
#define EXPERIMENT_CHANGES 16  /* changed fields that are named */
#define EXPERIMENT_CUT_SIZE 160

struct experiment_run {
    int64_t id, trial, seed, started_us, last_step, last_us;
    size_t row;
    enum job_run_state state;
    enum job_outcome outcome;
};

struct experiment_row {
    int64_t point;
    json_t *values;      /* pointer -> value; owned */
    size_t first, count; /* of the job's runs */
    struct api_tally runs;
    struct api_stat stat; /* last value of the metric that ranks the runs */
    size_t base;          /* the row to compare with; itself: none */
};

struct experiment_series {
    char key[STORE_KEY_MAX + 1];
    double *value[3]; /* by enum api_pick, then by run; NaN = none; owned */
};

struct experiment_job {
    int64_t id, created_us, started_us, ended_us, points, trials, planned;
    char *name, *notes, *template_name, *document; /* owned */
    enum job_kind kind;
    enum job_state state;
    char metric[STORE_KEY_MAX + 1];
    bool maximise;
    json_t *sweep; /* method and axes; NULL = none */
    struct experiment_row *rows;
    size_t row_count, row_capacity;
    struct experiment_run *runs;
    size_t run_count, run_capacity;
    struct experiment_series series[EXPERIMENT_SERIES]; /* the first: the metric */
    size_t series_count;
};

/* The jobs of one submission of a template. */
struct experiment_set {
    size_t first, count; /* of the experiment's jobs */
    json_t *file;        /* the template; NULL: unknown name or version; owned */
    char variant[8];
    const char *why; /* why the claims are not evaluated; NULL: they are */
};

struct experiment {
    char name[129];
    int64_t job_total, created_us, ended_us;
    struct store_run_counts counts;
    char template_name[24]; /* of the newest job */
    struct experiment_job jobs[EXPERIMENT_JOBS];
    size_t job_count; /* oldest first */
    struct experiment_set sets[EXPERIMENT_JOBS];
    size_t set_count;
    char cut[8][EXPERIMENT_CUT_SIZE];
    size_t cut_count;
    struct store *store; /* borrowed */
};

/* Within a snapshot of the caller's. PD_ERR_NOT_FOUND: no job carries the label. The caller owns *ret. */
PD_NODISCARD enum pd_err experiment_read(struct store *store, const char *name, struct experiment **ret,
                                         struct pd_why *why);
/* NULL is fine. */
void experiment_free(struct experiment *x);

/* The values of a metric for every run of the job; borrowed. PD_ERR_LIMIT: there are already
 * EXPERIMENT_SERIES series. */
PD_NODISCARD enum pd_err experiment_series_get(struct experiment *x, struct experiment_job *job,
                                               const char *key, const struct experiment_series **ret,
                                               struct pd_why *why);
/* Notes what is left out. */
void experiment_cut(struct experiment *x, const char *fmt, ...) PD_PRINTF(2, 3);

/* {"name","template","jobs","runs","created","ended"} without the closing brace. */
void experiment_head_json(struct pd_buf *b, const struct store_experiment *e);

/* The whole object. `full`: including the report's configurations, runs, curves and versions. */
PD_NODISCARD enum pd_err experiment_json(struct pd_buf *b, struct experiment *x, bool full,
                                         struct pd_why *why);

/* experiments.c: reads and writes the experiment that the path names. False: an error reply was set. */
bool experiment_answer(struct api_req *r, bool full, struct pd_buf *b);
