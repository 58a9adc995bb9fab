/* daemon/worker/check/internal.h: what the files of this folder share: the check under way, its table and plots.
 *
 * Errors stick to the check: after the first, calls do nothing, and check_go says false. Scratch memory lives until
 * the seed ends, rows and plots until the check ends. */
#pragma once

#include <math.h>

#include "daemon/worker/check/check.h"
#include "daemon/worker/check/draw.h"
#include "daemon/worker/check/stat.h"
#include "kernels/base/arena.h"

struct check_row {
    const char *what;
    bool any_seed; /* it is about all seeds together, or about none */
    uint64_t seed;
    double value, se, expected; /* NAN: none */
    double low, high;           /* the criterion; NAN, NAN: none; -INFINITY or INFINITY: open */
};

struct check_series {
    const char *name, *form; /* points, line, bars */
    double *x, *y, *low, *high;
    size_t count, room;
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
    uint64_t seed; /* under way */
    int64_t nth;   /* of the seeds, from 0 */
    int64_t seeds;
    struct pd_arena *kept, *scratch;
    struct check_row *rows;
    size_t row_count, row_room;
    struct check_plot *plots, **plot_tail;
    struct pd_buf evidence; /* JSON strings with commas */
    bool all;               /* rows and sentences are about all seeds together */
    enum pd_err err;
    struct pd_why why;
    void *memory; /* of a theorem: what its seeds hand on to `finish` */
};

/* One statement. */
struct check_theorem {
    const char *source;  /* paper, number of the statement */
    const char *claimed; /* what the paper says */
    const char *correct; /* what is true */
    bool wrong;          /* the paper's statement is false as it stands, or its constant or proof is */
    void (*seed)(struct check *c);   /* one seed */
    void (*finish)(struct check *c); /* after the last seed; may be NULL */
};

#define CHECK_EXTERN(name) extern const struct check_theorem check_##name;
JOB_THEOREMS(CHECK_EXTERN)
#undef CHECK_EXTERN

/* ---- check.c ---- */

/* Reports that `share` (0 to 1) of this seed's work is done. False: stop, or an error before. */
bool check_go(struct check *c, double share);
void check_fail(struct check *c, enum pd_err err, const char *fmt, ...) PD_PRINTF(3, 4);
/* Of config->check.params; the job table has checked them. */
double check_param(const struct check *c, const char *name);
const double *check_list(const struct check *c, const char *name, size_t *ret_count);
/* Zeroed; NULL after an error. Until the end of the seed; kept: of the check. */
double *check_numbers(struct check *c, size_t count);
void *check_kept(struct check *c, size_t bytes);

/* ---- table.c ---- */

/* Adds a row of this seed. `low` and `high`: the criterion on the value, NAN both: none. */
void check_value(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...) PD_PRINTF(7, 8);
/* The same with the criterion low <= value/expected <= high. */
void check_ratio(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...) PD_PRINTF(7, 8);
/* The same with the criterion |value - expected| <= tolerance. */
void check_equal(struct check *c, double value, double expected, double tolerance, const char *fmt, ...)
    PD_PRINTF(5, 6);
/* A number without a criterion. */
void check_report(struct check *c, double value, double se, double expected, const char *fmt, ...)
    PD_PRINTF(5, 6);
/* The rows that follow belong to no seed. */
void check_of_all(struct check *c, bool all);
/* A sentence for people; once for all seeds: those of the first seed alone count. */
void check_say(struct check *c, const char *fmt, ...) PD_PRINTF(2, 3);
/* NULL after an error; the calls below accept NULL. Texts are copied. */
struct check_plot *check_plot(struct check *c, const char *title, const char *x, bool x_log, const char *y,
                              bool y_log);
struct check_series *check_series(struct check *c, struct check_plot *p, const char *form, const char *fmt,
                                  ...) PD_PRINTF(4, 5);
/* se > 0: with its 99 % interval. */
void check_point(struct check *c, struct check_series *s, double x, double y, double se);
/* Writes rows, plots and evidence as members of the object that is open; fills the summary. */
void check_table_json(struct check *c, struct pd_buf *b, struct check_summary *ret);
