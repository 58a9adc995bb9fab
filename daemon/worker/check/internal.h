/* daemon/worker/check/internal.h: private to this folder: a running check, its table and plots.
 *
 * A check stores its first error; later calls do nothing, and check_go returns false. Scratch memory is freed after each
 * seed, rows and plots after the check. */
#pragma once

#include <math.h>

#include "daemon/worker/check/check.h"
#include "daemon/worker/check/draw.h"
#include "daemon/worker/check/stat.h"
#include "kernels/base/arena.h"

struct check_row {
    const char *what;
    bool any_seed; /* the row covers all seeds, or depends on none */
    uint64_t seed;
    double value, se, expected; /* NAN: none */
    double low, high; /* bounds of the criterion; both NAN: none; -INFINITY or INFINITY: one-sided */
};

struct check_series {
    const char *name, *form; /* points, line, bars */
    double *x, *y, *low, *high;
    size_t count, capacity;
    struct check_series *next;
};

struct check_plot {
    const char *title, *x, *y;
    bool x_log, y_log;
    struct check_series *series, **tail;
    struct check_plot *next;
};

struct check {
    const struct job_config *config;
    const struct check_host *host;
    const struct check_theorem *theorem;
    uint64_t seed; /* the current one */
    int64_t nth;   /* its index, from 0 */
    int64_t seeds;
    struct pd_arena *arena, *scratch; /* freed with the check, after each seed */
    struct check_row *rows;
    size_t row_count, row_capacity;
    struct check_plot *plots, **plot_tail;
    struct pd_buf evidence; /* JSON strings, comma-separated */
    bool all;               /* new rows and sentences cover all seeds */
    enum pd_err err;
    struct pd_why why;
    void *memory; /* a theorem's data from its seeds for `finish` */
};

/* One statement of a paper. */
struct check_theorem {
    const char *source;              /* paper and number of the statement */
    const char *claimed;             /* the paper's statement */
    const char *correct;             /* the correct statement */
    bool wrong;                      /* the paper's statement, its constant or its proof is wrong */
    void (*seed)(struct check *c);   /* one seed */
    void (*finish)(struct check *c); /* after the last seed; may be NULL */
};

#define CHECK_EXTERN(name) extern const struct check_theorem check_##name;
JOB_THEOREMS(CHECK_EXTERN)
#undef CHECK_EXTERN

/* ---- check.c ---- */

/* Reports progress: `share` (0 to 1) of the current seed is done. False: the check was cancelled or has failed. */
bool check_go(struct check *c, double share);
void check_fail(struct check *c, enum pd_err err, const char *fmt, ...) PD_PRINTF(3, 4);
/* Values of config->check.params, which the job table has validated. */
double check_param(const struct check *c, const char *name);
const double *check_list(const struct check *c, const char *name, size_t *ret_count);
/* Zeroed memory until the end of the seed; NULL after an error. */
double *check_numbers(struct check *c, size_t count);
/* Zeroed memory until the end of the check; NULL after an error. */
void *check_alloc(struct check *c, size_t bytes);

/* ---- table.c ---- */

/* Adds a row for the current seed with the criterion low <= value <= high; both NAN: no criterion. */
void check_value(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...) PD_PRINTF(7, 8);
/* The same with the criterion low <= value/expected <= high. */
void check_ratio(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...) PD_PRINTF(7, 8);
/* The same with the criterion |value - expected| <= tolerance. */
void check_equal(struct check *c, double value, double expected, double tolerance, const char *fmt, ...)
    PD_PRINTF(5, 6);
/* Adds a row without a criterion. */
void check_report(struct check *c, double value, double se, double expected, const char *fmt, ...)
    PD_PRINTF(5, 6);
/* true: the following rows and sentences cover all seeds. */
void check_of_all(struct check *c, bool all);
/* Adds a sentence to the evidence. Sentences of seeds after the first are ignored. */
void check_evidence(struct check *c, const char *fmt, ...) PD_PRINTF(2, 3);
/* Adds a plot; texts are copied. NULL after an error; the functions below accept NULL. */
struct check_plot *check_plot(struct check *c, const char *title, const char *x, bool x_log, const char *y,
                              bool y_log);
struct check_series *check_series(struct check *c, struct check_plot *p, const char *form, const char *fmt,
                                  ...) PD_PRINTF(4, 5);
/* Adds a point; se > 0: with its 99 % interval. */
void check_point(struct check *c, struct check_series *s, double x, double y, double se);
/* Writes rows, plots and evidence as members of the current JSON object; fills the summary. */
void check_table_json(struct check *c, struct pd_buf *b, struct check_summary *ret);
