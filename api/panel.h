/* api/panel.h: the statistics of a sweep along one of its axes: the best value with a bootstrap interval, the
 * usable range, and the slope of the best values against the number of tokens. Pure functions of numbers.
 *
 * The bootstrap draws the trials of each point with replacement, as many as it has. Draw i of resample r at a
 * point with number p takes value number (word * n) >> 32 of its n values, where word is word i % 4 of Philox
 * 4x32-10 with the key API_PANEL_SEED and the counter {r, p, i / 4, 0}, and depends on nothing else. */
#pragma once

#include "api/stats.h"

#define API_PANEL_RESAMPLES 2000
#define API_PANEL_SEED 1
#define API_PANEL_LEVEL 0.95
#define API_PANEL_TOLERANCE 0.1 /* tolerance: fraction of the distance between the best and the worst mean */

/* Why a point is not usable. The first three also exclude it from being the best. */
enum api_panel_fault {
    API_PANEL_FINE,
    API_PANEL_EMPTY,     /* no run has a value yet */
    API_PANEL_DIVERGED,  /* a run diverged */
    API_PANEL_NONFINITE, /* a counted run ended at a non-finite value */
    API_PANEL_FAILED,    /* a run failed */
    API_PANEL_WORSE      /* beyond the tolerance */
};
const char *api_panel_fault_name(enum api_panel_fault fault); /* NULL: fine */

struct api_panel_point {
    double x;
    int64_t point; /* number of its first combination */
    /* number of combinations with this x, which differ only in axes that define no panels */
    int64_t combinations;
    struct api_tally runs;
    struct api_stat stat;
    double *values; /* finite; owned */
    size_t count, capacity;
    bool nonfinite;
    enum api_panel_fault fault; /* by api_panel_usable */
};

struct api_panel {
    struct api_panel_point *points; /* owned; ascending in x before the functions below are called */
    size_t count, capacity;
    int64_t tokens; /* 0 = unknown */

    /* by api_panel_best */
    int best;         /* index of the point; -1 = none */
    bool positive;    /* every x is */
    bool resampled;   /* the rest is there */
    uint32_t *picks;  /* the best point of each resample; owned */
    double share;     /* fraction of the resamples with the same best point */
    double low, high; /* of the interval */
    const char *why;  /* it is not; static */

    /* by api_panel_usable */
    int from, to;          /* indices; -1 = none */
    double limit;          /* the worst mean within the tolerance */
    const char *range_why; /* there is none; static */
};
void api_panel_done(struct api_panel *p);

/* Finds the best mean (of equal ones, that with the smallest x) and resamples it. */
PD_NODISCARD enum pd_err api_panel_best(struct api_panel *p, bool maximise, struct pd_why *why);
/* The range of x around the best point in which every point is usable: no run diverged, failed or ended at a
 * value that is not finite, and the mean is no farther from the best one than the tolerance: a tenth of the
 * distance between the best and the worst mean, or the deviation of the best point's trials, whichever is
 * more. */
void api_panel_usable(struct api_panel *p, bool maximise);

struct api_slope {
    bool there, interval;
    double a, b, low, high;
    size_t panels, resampled; /* panels used, and those of them that have trials to resample */
    const char *why;          /* there is none; static */
    const char *interval_why; /* why there is no interval; static */
};
/* Least squares of log x = a + b log tokens through the best points of the panels, which are used where both
 * are known; the interval is that of the panels' own resamples. */
PD_NODISCARD enum pd_err api_slope_fit(struct api_panel *const *panels, size_t count, struct api_slope *ret,
                                       struct pd_why *why);
