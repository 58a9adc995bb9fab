/* kernels/graph/passes/passes.h: rewrites of a private copy of a graph before it is planned. */
#pragma once

#include "kernels/graph/build.h"

/* Runs the table of passes in order (kernels/ENGINE.md 3). */
PD_NODISCARD enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why);
/* The second round, on a copy of the graph: cheap values are recomputed in the backward part instead of kept.
 * *ret_any: whether anything changed. The executor runs the graph whose plan needs less memory. */
PD_NODISCARD enum pd_err pk_passes_again(struct pk_graph *g, bool *ret_any, struct pd_why *why);

/* The name of pass i of that table, in the order in which they run; NULL after the last. Static. */
const char *pk_passes_name(size_t i);

/* Mixed-precision pass: lowers eligible values to bf16 and inserts casts. Runs after differentiation and fusion,
 * as part of pk_passes_run if the graph is of mixed precision. Renumbers the nodes, inputs before their users.
 * PD_ERR_UNSUPPORTED for a graph that contains f64. */
PD_NODISCARD enum pd_err pk_passes_narrow(struct pk_graph *g, struct pd_why *why);

/* Copies cheap forward nodes (elementwise, norms) for the backward part, so that the outputs of the originals
 * need not be kept. */
PD_NODISCARD enum pd_err pk_passes_recompute(struct pk_graph *g, struct pd_why *why);

/* ---- fuse.c: nodes that read or write the same tensors become one ---- */

/* Fuses the loss with its derivative (CROSS_ENTROPY_GRAD). Runs before narrowing; renumbers the nodes. */
PD_NODISCARD enum pd_err pk_passes_loss(struct pk_graph *g, struct pd_why *why);
/* Pads the rows of the logits of a mixed plan to a multiple of 64, so that the three products with them are
 * aligned. The loss never reads the padding, and its derivative is zero there. Runs after narrowing; renumbers
 * the nodes. */
PD_NODISCARD enum pd_err pk_passes_columns(struct pk_graph *g, struct pd_why *why);
/* Fuses the derivative of a norm with the sum that it is added to. */
PD_NODISCARD enum pd_err pk_passes_residual(struct pk_graph *g, struct pd_why *why);
/* Fuses a recomputed norm with its derivative. Runs after recomputing. */
PD_NODISCARD enum pd_err pk_passes_norm_again(struct pk_graph *g, struct pd_why *why);

/* Renumbers the nodes by their keys. False if memory ran out. */
PD_NODISCARD bool pk_passes_renumber(struct pk_graph *g);
