/* daemon/job/metric.h: the catalogue of metrics: one row for each key that polyd writes, in the order in
 * which a page shows them. The API serves it, the page takes every title, unit, sentence and direction from
 * it, and the document is checked against it. A program of a client's may log any other key. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

struct job_config;

enum job_metric_better { JOB_METRIC_NEITHER, JOB_METRIC_MORE, JOB_METRIC_LESS };
enum job_metric_writer { JOB_METRIC_WORKER, JOB_METRIC_DAEMON };
enum job_metric_group {
    JOB_METRIC_TRAINING,
    JOB_METRIC_LAYERS,
    JOB_METRIC_GPUS,
    JOB_METRIC_SYSTEM,
    JOB_METRIC_POSITIONS /* one value a position of the context, not a curve over steps */
};

struct job_metric {
    /* The key. <layer>, <head> and <position> stand for numbers from 1, <rank> for one from 0, <name> for the name of
     * a set of data.eval; what is in brackets may be absent. */
    const char *key;
    const char *title;  /* of its chart */
    const char *panel;  /* keys of one panel share a chart; NULL: one of its own */
    const char *series; /* names it among those of its panel; NULL: it is alone */
    const char
        *unit; /* share, bytes, nats, ms, watts, celsius, flop/s, samples/s, tokens/s; NULL: a number */
    enum job_metric_better better;
    enum job_metric_writer writer;
    enum job_metric_group group;
    bool exact; /* without noise: never smoothed */
    const char *text, *source;
    /* Whether runs of this configuration write it; NULL: all do. */
    bool (*written)(const struct job_config *config);
    /* The same for the keys of heads. */
    bool (*heads)(const struct job_config *config);
    /* The same for the keys of one layer, counted from 1. */
    bool (*layers)(const struct job_config *config, int64_t layer);
};

extern const struct job_metric job_metrics[];
extern const size_t job_metric_count;

/* The row that the key belongs to; NULL: none. */
const struct job_metric *job_metric_find(const char *key);

/* The catalogue as one JSON object {"metrics": [..]}; appends. */
PD_NODISCARD enum pd_err job_metrics_json(struct pd_buf *ret_json, struct pd_why *why);
