/* kernels/graph/passes/rewrite.h: private to the passes: what one walk over the graph knows of it. */
#pragma once

#include "kernels/graph/build.h"

struct pk_pass {
    struct pk_graph *g;
    uint32_t *uses;  /* by root value: how many inputs of kernels, and outputs of the graph, see it */
    bool *output;    /* by value */
    uint64_t *wrote; /* by root value: when the first write was built; 0: none */
    uint32_t *many;  /* by root value: writes beyond the first */
};

/* Of the graph as it is; values that are added later are unknown to it. False without memory. pk_pass_done in
 * either case. */
bool pk_pass_init(struct pk_pass *p, struct pk_graph *g);
void pk_pass_done(struct pk_pass *p);
void pk_pass_count_uses(struct pk_pass *p);
/* Whether the inputs of `n` would be the same at the time `when`. */
bool pk_pass_inputs_keep(const struct pk_pass *p, const struct pk_node *n, uint64_t when);

/* The following return false without memory. */

/* What is cut in pieces flows back as a sum of PADs: if they fill the whole, that is a CONCAT. */
bool pk_pass_slices(struct pk_pass *p);
/* Bias, activation, slope of an activation and residual become part of the product. */
bool pk_pass_epilogues(struct pk_pass *p);
/* What is read of a product besides: the product keeps what its activation is applied to, and adds up what
 * flows into a bias. *ret_changed: nodes were added, and the graph must be simplified again. */
bool pk_pass_beside(struct pk_pass *p, bool *ret_changed);
