/* api/stats.h: statistics over runs, and the rows of sweeps and groups.
 *
 * Only successful runs are averaged (and, on request, runs in progress); diverged, failed and cancelled runs
 * are counted separately and never enter a mean. */
#pragma once

#include "api/http.h"
#include "daemon/polyd/store/store.h"

#define API_SAMPLE_KEYS 16 /* metrics of one table */

/* Welford's sums. */
struct api_stat {
    int64_t n;
    double mean, m2, min, max;
    int64_t missing; /* counted runs without a finite value */
};
void api_stat_add(struct api_stat *s, double value);
/* Sample standard deviation (n - 1); NaN for fewer than two values. */
double api_stat_sd(const struct api_stat *s);
/* {"n","missing","mean","sd","min","max"}; null if there are too few values. */
void api_stat_json(struct pd_buf *b, const struct api_stat *s);
/* The 97.5 % quantile of Student's t distribution with df >= 1 degrees of freedom, which need not be whole,
 * to 1e-5. */
double api_student(double df);
/* {"n","mean","sd","low","high"}: the mean and its 95 % interval for normal values, mean -+ t sd / sqrt(n);
 * null if there are too few. */
void api_interval_json(struct pd_buf *b, const struct api_stat *s);
/* {"difference","low","high","separable"}: mean of a minus mean of b, with its 95 % interval for normally
 * distributed values of unequal variance (Welch). separable: the interval excludes 0. null if there are too
 * few values. */
void api_welch_json(struct pd_buf *b, const struct api_stat *a, const struct api_stat *other);

/* States of the runs of a row. */
struct api_tally {
    int64_t total, open, succeeded, diverged, failed, cancelled, lost;
};
void api_tally_add(struct api_tally *t, const struct store_sample *m);
void api_tally_json(struct pd_buf *b, const struct api_tally *t);

/* Which value of a series represents its run, and which runs count. */
enum api_pick { API_PICK_LAST, API_PICK_MIN, API_PICK_MAX };
struct api_choice {
    char keys[API_SAMPLE_KEYS][STORE_KEY_MAX + 1];
    int key_count;
    enum api_pick pick;
    bool open;
};
/* Reads metric (repeatable), value and open. False: an error reply was set. */
bool api_choice_read(struct api_req *r, struct api_choice *c);
/* Its name: last, min, max. */
const char *api_pick_name(enum api_pick pick);
/* Does this run count? */
bool api_choice_counts(const struct api_choice *c, const struct store_sample *m);
double api_choice_value(const struct api_choice *c, const struct store_sample *m);
/* Adds the run's value, or counts it as missing; a run that does not count changes nothing. */
void api_choice_add(const struct api_choice *c, struct api_stat *s, const struct store_sample *m);

/* ---- curves ------------------------------------------------------------------------------------ */

#define API_CURVE_RUNS 4096 /* runs behind one curve */

enum api_axis { API_AXIS_STEP, API_AXIS_EPOCH, API_AXIS_TIME };

/* Parameters of a request for curves: key, x, buckets. */
struct api_curve_query {
    char key[STORE_KEY_MAX + 1];
    enum api_axis x;
    int buckets;
};
bool api_curve_read(struct api_req *r, struct api_curve_query *q);
const char *api_axis_name(enum api_axis x);

struct api_curve_run {
    int64_t run_id, started_us;
    int64_t last_step, last_us; /* of the series; last_us 0 = it has no point */
};
struct api_curve_point {
    double x;
    struct api_stat across; /* of the runs' means */
    double least, most;     /* of all points */
    int64_t count, nonfinite;
};
/* Aligns the runs on x and calls back for each bucket that holds a point. Buckets divide the range from 0 to
 * the last point of any run. PD_ERR_UNSUPPORTED: epochs are requested, but the length of a run is in steps.
 */
PD_NODISCARD enum pd_err api_curve(struct store *store, const struct api_curve_query *q,
                                   const struct api_curve_run *runs, size_t count,
                                   void (*point)(void *ctx, const struct api_curve_point *p), void *ctx,
                                   struct pd_why *why);
/* {"x","n","mean","sd","min","max","nonfinite"} */
void api_curve_point_json(struct pd_buf *b, const struct api_curve_point *p);

/* ---- CSV --------------------------------------------------------------------------------------- */

/* Puts a comma first unless it begins a line (RFC 4180). */
void api_csv_str(struct pd_buf *b, const char *text);
/* NaN and infinities as in JSON, without quotes; `absent` leaves the cell empty. */
void api_csv_num(struct pd_buf *b, double value, bool absent);
void api_csv_int(struct pd_buf *b, int64_t value);
void api_csv_line(struct pd_buf *b);
