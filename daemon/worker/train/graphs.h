/* daemon/worker/train/graphs.h: private to this module: the list of the graphs of a run, used for opening a
 * run, for the forecast of its memory and for the roofline of its step. */
#pragma once

#include "daemon/worker/train/setup.h"

/* What a graph is for; a run has at most one for each. */
enum train_graph_use {
    TRAIN_GRAPH_PART,      /* adds up the gradient of a part of the batch, where a step has several */
    TRAIN_GRAPH_UPDATE,    /* ends a step: its states are the optimiser's */
    TRAIN_GRAPH_LINE_PAIR, /* of an optimiser that searches along lines, whose UPDATE is a point of the line */
    TRAIN_GRAPH_LINE_DIRECT,
    TRAIN_GRAPH_LINE_MOVE,
    TRAIN_GRAPH_LINE_LOAD,
    TRAIN_GRAPH_EVAL,
    TRAIN_GRAPH_PROBE,    /* the statistics of attention */
    TRAIN_GRAPH_MAPS,     /* its matrices */
    TRAIN_GRAPH_GRADIENT, /* a gradient to look at */
    TRAIN_GRAPHS
};

struct train_graph {
    enum train_graph_use use;
    const char *name; /* for people; static */
    int64_t times;    /* that a step runs it; 0: it runs between steps */
    /* The caller owns *ret. */
    enum pd_err (*build)(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why);
};

/* Fills `list` and returns how many there are. A PART comes before its UPDATE. */
size_t train_graphs(const struct train_setup *s, struct train_graph list[TRAIN_GRAPHS]);
/* False: the run has none for this use. */
bool train_graph_find(const struct train_setup *s, enum train_graph_use use, struct train_graph *ret);
