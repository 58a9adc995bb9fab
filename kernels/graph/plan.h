/* kernels/graph/plan.h: the order of the kernels and the offset of every buffer in one arena. */
#pragma once

#include "kernels/graph/build.h"

#define PK_ALIGN 256u /* bytes: every buffer begins on such a boundary */

/* A part of the arena and its lifetime. Values that share memory in place have one buffer. */
struct pk_buffer {
    size_t bytes; /* multiple of PK_ALIGN */
    size_t offset;
    uint32_t first, last; /* steps, inclusive; last UINT32_MAX: readable after the run */
    bool gradient, workspace, working;
};

struct pk_plan {
    uint32_t *order; /* node ids, n_step of them */
    uint32_t n_step;
    struct pk_buffer *buffer;
    uint32_t n_buffer;
    int32_t *of_value;              /* buffer of each root value; -1: a leaf, or nothing */
    int32_t *of_workspace;          /* by step; -1: none */
    size_t arena_bytes, live_bound; /* live_bound: most bytes live at once */
    size_t gradient_bytes, workspace_bytes, working_bytes; /* of the bytes live at that moment */
};

/* Plans the live nodes of `g`. workspace[node]: bytes of scratch that each needs (NULL: none). On PD_OK the caller
 * owns the plan's arrays (pk_plan_done). PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err pk_plan_make(const struct pk_graph *g, const size_t *workspace, struct pk_plan *ret,
                                      struct pd_why *why);
void pk_plan_done(struct pk_plan *p);

/* Whether a node is a kernel: alive, and neither leaf nor view. */
bool pk_is_kernel(const struct pk_node *n);
/* Writes into `ret` which inputs output `out` may share memory with; returns their number. At most n_in. */
int32_t pk_in_place(const struct pk_graph *g, const struct pk_node *n, int32_t out, int32_t *ret);
