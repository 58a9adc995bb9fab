/* kernels/graph/passes/rewrite.h: private to the passes: facts about the graph that one walk over it needs. */
#pragma once

#include "kernels/graph/build.h"

struct pk_pass {
    struct pk_graph *g;
    uint32_t *uses;  /* by root value: how many inputs of kernels, and outputs of the graph, see it */
    bool *output;    /* by value */
    uint64_t *wrote; /* by root value: when the first write was built; 0: none */
    uint32_t *many;  /* by root value: writes beyond the first */
};

/* Collects the facts of the present graph; values added later are not covered. False if memory ran out. The
 * caller calls pk_pass_done in either case. */
bool pk_pass_init(struct pk_pass *p, struct pk_graph *g);
void pk_pass_done(struct pk_pass *p);
void pk_pass_count_uses(struct pk_pass *p);
/* Whether the inputs of `n` have the same values at the time `when`. */
bool pk_pass_inputs_unchanged(const struct pk_pass *p, const struct pk_node *n, uint64_t when);

/* The following return false if memory ran out. */

/* The gradient of a tensor that was sliced is a sum of PADs. If they fill the whole, they become one CONCAT. */
bool pk_pass_slices(struct pk_pass *p);
/* Bias, activation, slope of an activation and residual become part of the matmul. */
bool pk_pass_epilogues(struct pk_pass *p);
/* Extra matmul outputs: pre-activation and bias gradient. *ret_changed: nodes were added, and the graph must be
 * simplified again. */
bool pk_pass_extra_outputs(struct pk_pass *p, bool *ret_changed);
