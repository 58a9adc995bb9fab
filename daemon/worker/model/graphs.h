/* daemon/worker/model/graphs.h: private to this module: shared by the files that make graphs: graphs.c (training),
 * graph_infer.c (inference and diagnostics), graph_line.c (line searches).
 *
 * Each public function makes one graph: graph_begin, values, graph_finish. Values belong to the graph; an error of a
 * builder call stays in the graph until graph_finish reports it. */
#pragma once

#include "daemon/worker/model/net.h"

/* The sums of a task over the rows of a batch, each (1), in the order of model_loss.sum. */
struct graph_sums {
    size_t count;
    struct pk_val val[MODEL_SUMS_MAX];
};

/* Rows of a training or evaluation graph: batch times the points of the grid, for networks without a grid the batch. */
int32_t graph_trained_points(const struct model *m, int32_t batch);
int32_t graph_scored_points(const struct model *m, int32_t batch);

/* Initialises *n for a graph of `batch` samples of `tokens` positions. On PD_OK the caller calls graph_finish.
 * PD_ERR_INVALID: the model does not support these sizes; PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err graph_begin(struct net *n, const struct model *m, int32_t batch, int32_t tokens,
                                     struct pd_why *why);
/* Releases *n. On PD_OK the caller owns *ret; on failure the graph is freed. */
PD_NODISCARD enum pd_err graph_finish(struct net *n, struct pk_graph **ret, struct pd_why *why);

/* The network's input: normalised images (`ready`: the input is normalised already), or ids. */
struct pk_val graph_input(struct net *n, bool ready);
/* The network applied to its input. */
struct pk_val graph_logits(struct net *n);
/* The sums of the loss `l` over rows->logits. */
struct graph_sums graph_loss(struct net *n, const struct model_loss *l, struct model_rows *rows,
                             double smoothing);
/* The loss of training, mixing and distillation included. *ret_logits: the logits of the batch. */
struct graph_sums graph_training_loss(struct net *n, const struct model_train_options *o,
                                      struct pk_val *ret_logits);
/* Replaces the first sum by the mean loss (the first sum divided by the second), and makes all sums outputs. */
void graph_report(struct net *n, const struct model_loss *l, struct graph_sums *s);
