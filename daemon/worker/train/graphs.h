/* daemon/worker/train/graphs.h: private to this module: the list of the graphs of a run, used for opening a
 * run, for the forecast of its memory and for the roofline of its step. */
#pragma once

#include "daemon/worker/train/setup.h"

/* The purpose of a graph; a run has at most one graph for each. */
enum train_graph_use {
    TRAIN_GRAPH_PART,      /* accumulates the gradient of one of several parts of the batch */
    TRAIN_GRAPH_UPDATE,    /* completes a step: its states are the optimiser's */
    TRAIN_GRAPH_LINE_PAIR, /* optimiser with a line search, whose UPDATE evaluates a point of the line */
    TRAIN_GRAPH_LINE_DIRECT,
    TRAIN_GRAPH_LINE_MOVE,
    TRAIN_GRAPH_LINE_LOAD,
    TRAIN_GRAPH_EVAL,
    TRAIN_GRAPH_PROBE,    /* statistics of attention */
    TRAIN_GRAPH_MAPS,     /* attention matrices */
    TRAIN_GRAPH_GRADIENT, /* a gradient for diagnostics */
    TRAIN_GRAPHS
};

struct train_graph {
    enum train_graph_use use;
    const char *name; /* displayed name; static */
    int64_t times;    /* runs per step; 0: it runs between steps */
    /* The caller owns *ret. */
    enum pd_err (*build)(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why);
};

/* Fills `list` and returns the number of graphs. A PART precedes its UPDATE. */
size_t train_graphs(const struct train_setup *s, struct train_graph list[TRAIN_GRAPHS]);
/* False: the run has no graph for this purpose. */
bool train_graph_find(const struct train_setup *s, enum train_graph_use use, struct train_graph *ret);
