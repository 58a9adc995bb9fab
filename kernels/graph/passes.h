/* kernels/graph/passes.h: rewrites of a private copy of a graph before it is planned. */
#pragma once

#include "kernels/graph/build.h"

/* Dead code, common subexpressions, constants, epilogues, fusion of elementwise chains. */
PD_NODISCARD enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why);

/* Makes the graph mixed, which differentiating and fusing are behind already: what is bf16 becomes so, and
 * casts stand where an op wants the other type. Run by pk_passes_run where the graph asks for it. The nodes
 * are numbered anew, inputs before their users. PD_ERR_UNSUPPORTED for a graph with f64 in it. */
PD_NODISCARD enum pd_err pk_passes_narrow(struct pk_graph *g, struct pd_why *why);

/* Gives the backward nodes copies of cheap forward nodes (elementwise, norms), so that the originals'
 * outputs need not be kept. *ret_any: whether anything changed. */
PD_NODISCARD enum pd_err pk_passes_recompute(struct pk_graph *g, bool *ret_any, struct pd_why *why);
