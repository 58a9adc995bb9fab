/* kernels/graph/passes.h: rewrites of a private copy of a graph before it is planned. */
#pragma once

#include "kernels/graph/build.h"

/* Dead code, common subexpressions, constants, epilogues, fusion of elementwise chains. */
PD_NODISCARD enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why);

/* Gives the backward nodes copies of cheap forward nodes (elementwise, norms), so that the originals'
 * outputs need not be kept. *ret_any: whether anything changed. */
PD_NODISCARD enum pd_err pk_passes_recompute(struct pk_graph *g, bool *ret_any, struct pd_why *why);
