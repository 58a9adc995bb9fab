/* api/report.h: an experiment's report as one HTML page without scripts, drawn from the JSON of
 * experiment_json.c alone, so that it has the same numbers. It is self-contained: it opens without polyd and
 * can be printed. */
#pragma once

#include <jansson.h>

#include "kernels/base/buf.h"

/* The Content-Security-Policy of a report: nothing is loaded, nothing runs, styles are in the page. */
#define REPORT_SECURITY_POLICY                                                                               \
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

/* report_html.c: the page of a whole experiment_json (`full`); appended. Fails only if out of memory. */
void report_html(struct pd_buf *b, const json_t *experiment);

/* Text with & < > " ' as entities. */
void report_text(struct pd_buf *b, const char *text);
/* Six significant digits; empty if there is no number. */
void report_num(struct pd_buf *b, const json_t *value);
/* Swept values as text: "patch 4, scale fixed". */
void report_values(struct pd_buf *b, const json_t *values);

#define REPORT_CHART_ROWS 60 /* combinations in one figure of means */

/* report_chart.c: SVG. Means with error bars, one line per combination of the table. */
void report_chart_means(struct pd_buf *b, const json_t *job);
/* Means of lines [{"data": [{"x", "mean"}]}] against x, on a logarithmic scale where they are positive and far apart. False: there is
 * no number, nothing is written. */
bool report_chart_lines(struct pd_buf *b, const char *what, const char *x_title, const json_t *lines);

/* report_check.c: the result of one run of kind check ({"run_id", "result"} with rows and plots). */
void report_check(struct pd_buf *b, const json_t *check);

#define REPORT_CHART_PANELS 24 /* pictures of one analysis */

/* report_chart.c: one panel of a sweep's analysis: means with error bars along the axis, the usable range
 * shaded, a line at the best value, and a dashed line at the root of N if the axis is k. */
void report_chart_panel(struct pd_buf *b, const json_t *analysis, const json_t *panel);
/* report_sweep.c: the analysis of a sweep (api/analysis.h): pictures of its panels, their best values and
 * usable ranges, the growth of the best value with the number of tokens. */
void report_sweep(struct pd_buf *b, const json_t *analysis);

/* report_target.c: the paper's tables with the numbers of a submission. */
void report_targets(struct pd_buf *b, const json_t *submission);

/* report_picture.c: the paper's figures, drawn from what the runs of a submission stored, each with its numbers. */
void report_pictures(struct pd_buf *b, const json_t *submission);
/* report_map.c: a map of attention or of a solution ("form": "map"). */
void report_map(struct pd_buf *b, const json_t *panel);
