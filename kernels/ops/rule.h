/* kernels/ops/rule.h: what the graph knows about an op: its name, its shape rule, its derivative.
 *
 * A derivative emits nodes of the same graph (a vector-Jacobian product), so it may be differentiated
 * again. One op a file; registry.c is the table. */
#pragma once

#include "kernels/base/err.h"
#include "kernels/graph/graph.h"
#include "kernels/ops/op.h"

#define PK_MAX_OUT 6 /* no op has more outputs */

struct pk_type {
    enum pk_dtype dtype;
    struct pk_shape shape;
};

/* A request for the derivative of one node. */
struct pk_vjp {
    struct pk_graph *g;
    const struct pk_attr *attr;
    int32_t n_in, n_out;
    const struct pk_val *in;
    const struct pk_val *out;
    const struct pk_val *dout; /* PK_NONE: nothing flows into this output */
    const bool *need;          /* which inputs want a gradient */
    struct pk_val *din;        /* to write; PK_NONE stays for zero */
};

struct pk_rule {
    const char *name;
    int32_t min_in, max_in; /* max -1: any number */
    bool view;              /* changes shape and strides only */
    bool in_place;          /* writes into leaves; order relative to their readers is kept */
    bool ranks; /* all ranks take part: it runs even if nobody reads it, and in the order of building */
    /* Checks the inputs and writes the outputs' types; fixes defaults in nothing. */
    enum pd_err (*infer)(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why);
    /* NULL: there is no derivative and asking for one is an error. */
    void (*vjp)(struct pk_vjp *v);
};

/* The rule of an op; NULL for leaves and unknown ops. Static. */
const struct pk_rule *pk_rule_of(enum pk_op op);

/* The leaves that a node writes, as places among its inputs: how many, at most PK_MAX_WRITES. */
#define PK_MAX_WRITES 5
int32_t pk_op_writes(enum pk_op op, const struct pk_attr *attr, int32_t n_in, int32_t *ret);
/* The input whose memory an output is, after the op has written it; -1: an output of its own. */
int32_t pk_op_writes_through(enum pk_op op, int32_t n_in, int32_t out);

/* For ops whose outputs do not depend differentiably on anything (one_hot, max, fill). */
void pk_vjp_zero(struct pk_vjp *v);

/* Numpy's rule for two shapes; false if they do not fit. */
bool pk_shape_broadcast(const struct pk_shape *a, const struct pk_shape *b, struct pk_shape *ret);
/* Sums `x` over the axes that were repeated to make it from `shape`, so that it has that shape. */
struct pk_val pk_sum_to(struct pk_graph *g, struct pk_val x, struct pk_shape shape);
