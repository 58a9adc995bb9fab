/* api/stats.h: statistics over runs, and the rows of sweeps and groups.
 *
 * Only runs that succeeded are averaged (and, if asked for, those still open): what diverged, failed or was
 * cancelled is counted and shown beside the mean, never in it. */
#pragma once

#include "api/http.h"
#include "daemon/polyd/store/store.h"

#define API_SAMPLE_KEYS 16 /* metrics of one table */

/* Welford's sums. */
struct api_stat {
    int64_t n;
    double mean, m2, min, max;
    int64_t missing; /* runs that should have a value and have none, or one that is not finite */
};
void api_stat_add(struct api_stat *s, double value);
/* Deviation of the sample (n - 1); NaN below two values. */
double api_stat_sd(const struct api_stat *s);
/* {"n","missing","mean","sd","min","max"}; null where there are too few values. */
void api_stat_json(struct pd_buf *b, const struct api_stat *s);
/* The 97.5 % quantile of Student's t distribution with df >= 1 degrees of freedom, which need not be whole, to
 * 1e-5. */
double api_student(double df);
/* {"n","mean","sd","low","high"}: the mean and its 95 % interval for normal values, mean -+ t sd / sqrt(n); null
 * where there are too few. */
void api_interval_json(struct pd_buf *b, const struct api_stat *s);
/* {"difference","low","high","separable"}: mean of a less mean of b, and its 95 % interval for normal values of
 * unequal spread (Welch). separable: the interval leaves out 0. null where there are too few values. */
void api_welch_json(struct pd_buf *b, const struct api_stat *a, const struct api_stat *other);

/* How the runs of a row stand. */
struct api_tally {
    int64_t total, open, succeeded, diverged, failed, cancelled, lost;
};
void api_tally_add(struct api_tally *t, const struct store_sample *m);
void api_tally_json(struct pd_buf *b, const struct api_tally *t);

/* Which value of a series stands for its run, and which runs count. */
enum api_pick { API_PICK_LAST, API_PICK_MIN, API_PICK_MAX };
struct api_choice {
    char keys[API_SAMPLE_KEYS][STORE_KEY_MAX + 1];
    int key_count;
    enum api_pick pick;
    bool open;
};
/* Reads metric (repeatable), value and open. False: the request has been failed. */
bool api_choice_read(struct api_req *r, struct api_choice *c);
/* The word for it: last, min, max. */
const char *api_pick_name(enum api_pick pick);
/* Does this run count? */
bool api_choice_counts(const struct api_choice *c, const struct store_sample *m);
double api_choice_value(const struct api_choice *c, const struct store_sample *m);
/* Adds the run's value, or counts it as missing; a run that does not count changes nothing. */
void api_choice_add(const struct api_choice *c, struct api_stat *s, const struct store_sample *m);

/* ---- curves ------------------------------------------------------------------------------------ */

#define API_CURVE_RUNS 4096 /* runs behind one curve */

enum api_axis { API_AXIS_STEP, API_AXIS_EPOCH, API_AXIS_TIME };

/* What a request says of curves: key, x, buckets. */
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
/* Aligns the runs on x and calls back for each bucket that holds a point. Buckets divide 0..the furthest
 * point of any of the runs. PD_ERR_UNSUPPORTED: epochs are asked for and a run is measured in steps. */
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
