/* kernels/graph/passes/passes.h: rewrites of a private copy of a graph before it is planned. */
#pragma once

#include "kernels/graph/build.h"

/* Runs the table of passes in order: dead code, common subexpressions, constants, epilogues, fusion of
 * elementwise chains, mixed precision. */
PD_NODISCARD enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why);
/* The second round of the table, of a copy: values are computed again instead of kept. *ret_any: whether
 * anything changed. Which of the two graphs is run is decided by their plans. */
PD_NODISCARD enum pd_err pk_passes_again(struct pk_graph *g, bool *ret_any, struct pd_why *why);

/* The name of pass i of that table, in the order in which they run; NULL behind the last. Static. */
const char *pk_passes_name(size_t i);

/* Makes the graph mixed, which differentiating and fusing are behind already: what is bf16 becomes so, and
 * casts stand where an op wants the other type. Run by pk_passes_run where the graph asks for it. The nodes
 * are numbered anew, inputs before their users. PD_ERR_UNSUPPORTED for a graph with f64 in it. */
PD_NODISCARD enum pd_err pk_passes_narrow(struct pk_graph *g, struct pd_why *why);

/* Gives the backward nodes copies of cheap forward nodes (elementwise, norms), so that the originals'
 * outputs need not be kept. */
PD_NODISCARD enum pd_err pk_passes_recompute(struct pk_graph *g, struct pd_why *why);

/* ---- fuse.c: what moves the same tensors becomes one node ---- */

/* Loss and its derivative (CROSS_ENTROPY_GRAD). Before narrowing; numbers the nodes anew. */
PD_NODISCARD enum pd_err pk_passes_loss(struct pk_graph *g, struct pd_why *why);
/* Logits of a mixed plan whose number is no multiple of 64: rows are laid out as if it were, so that the
 * three products with them are aligned. What is beyond is never read by the loss, and zero in its
 * derivative. After narrowing; numbers the nodes anew. */
PD_NODISCARD enum pd_err pk_passes_columns(struct pk_graph *g, struct pd_why *why);
/* The derivative of a norm and the sum that it goes into. */
PD_NODISCARD enum pd_err pk_passes_residual(struct pk_graph *g, struct pd_why *why);
/* A norm made once more and its derivative. After recomputing. */
PD_NODISCARD enum pd_err pk_passes_norm_again(struct pk_graph *g, struct pd_why *why);

/* Numbers the nodes by their keys. False without memory. */
PD_NODISCARD bool pk_passes_renumber(struct pk_graph *g);
