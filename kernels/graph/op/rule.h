/* kernels/graph/op/rule.h: everything that the graph knows about an op: its name, its shape rule, its
 * derivative, the leaves it writes, the input whose memory its output may reuse, its types in mixed precision, its
 * bytes and FLOP. Builder, passes, planner, executor and roofline use the rule and name no op. One file per op;
 * ops.def is the list.
 *
 * A derivative emits nodes of the same graph (a vector-Jacobian product), so it may be differentiated
 * again. */
#pragma once

#include "kernels/base/err.h"
#include "kernels/graph/graph.h"
#include "kernels/graph/op/op.h"

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
    const struct pk_val *dout; /* gradients of the outputs; PK_NONE: zero */
    const bool *need;          /* whether each input needs a gradient */
    struct pk_val *din;        /* to write: gradients of the inputs; PK_NONE at first, which means zero */
};

/* Rows of the roofline's table. */
enum pk_kind {
    PK_KIND_NONE, /* leaves and views: they never run */
    PK_KIND_MATMUL,
    PK_KIND_CONVOLUTION,
    PK_KIND_ATTENTION,
    PK_KIND_NORM,
    PK_KIND_LOSS,        /* cross-entropy, softmax */
    PK_KIND_ELEMENTWISE, /* expressions, dropout */
    PK_KIND_MOVEMENT,    /* copies, casts, fills, joining, padding */
    PK_KIND_SUM,
    PK_KIND_EMBEDDING,
    PK_KIND_OPTIMISER, /* also the norm of the gradients, and their accumulation */
    PK_KIND_RANKS,
    PK_KIND_COUNT
};

struct pk_cost {
    enum pk_kind kind;
    double read, written; /* bytes */
    double flop;          /* of matrix products only; elementwise work is not counted */
};

/* Mixed precision (passes/narrow.c): a value is live if it depends on the batch, not only on parameters or
 * statistics. The type that a node needs of an input: */
enum pk_want {
    PK_WANT_ANY,     /* f32 or bf16, unchanged */
    PK_WANT_F32,     /* f32; does not make the outputs live */
    PK_WANT_BITS,    /* unchanged; this reader is no reason to narrow it */
    PK_WANT_PASSED,  /* unchanged; narrowed for this reader if the first output is bf16 */
    PK_WANT_OUTPUT,  /* the same, and always the first output's type */
    PK_WANT_FIRST,   /* the first input's type */
    PK_WANT_FACTOR,  /* bf16 if one of the node's factors is live, else unchanged */
    PK_WANT_GROUP,   /* bf16 if one of the group is live or bf16 already, else f32 */
    PK_WANT_AS_GROUP /* the group's type, without being a member */
};

/* The type of an output: */
enum pk_makes {
    PK_MAKES_BATCH,  /* live if an input is; then bf16, unless all its readers need f32 */
    PK_MAKES_ROWS,   /* the same, and always live */
    PK_MAKES_SUMS,   /* live if an input is; f32 */
    PK_MAKES_NUMBER, /* never live: f32 */
    PK_MAKES_AS_IN,  /* live if an input is; has the first input's type */
    PK_MAKES_GROUP,  /* live if an input of the group is; has the group's type */
    PK_MAKES_TIED    /* as PK_MAKES_BATCH, with the type of the first output */
};

struct pk_value;
struct pd_arena;

struct pk_rule {
    const char *name;
    int32_t min_in, max_in; /* max -1: any number */
    enum pk_kind kind;
    bool leaf;        /* memory that no node computes: no inputs, no shape rule */
    bool fed;         /* a leaf that may be rebound for every run; with more than one element it is a batch */
    bool trained;     /* a leaf that is a parameter */
    bool fixed;       /* a leaf owned by the graph: it is neither bound nor written */
    bool elementwise; /* inputs broadcast; an output element depends on one element of each input, read before
                         it is written */
    bool cheap;       /* cheaper to recompute in the backward part than to keep */
    bool
        updates; /* an optimiser's step: input 0 is the parameter; with attr.optim.copy the last is its copy */
    bool ranks;  /* a collective: never eliminated, and run in the order of building */
    /* Checks the inputs and writes the outputs' types. */
    enum pd_err (*infer)(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why);
    /* NULL: there is no derivative and asking for one is an error. */
    void (*vjp)(struct pk_vjp *v);

    /* All of the following are optional. */

    /* Whether a node with these attributes has a zero derivative, as pk_vjp_zero. */
    bool (*stops)(const struct pk_attr *attr);

    /* For an op that changes shape and strides only: sets strides and offset of `v`, a view of `x`. On entry v has
     * its shape, x's root and offset, and strides of 0. False: a view is not possible. */
    bool (*view)(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v);
    /* For attributes that point to memory: copy that memory into the arena (false: out of memory), compare and hash
     * its contents. */
    bool (*attr_own)(struct pk_attr *attr, struct pd_arena *arena);
    bool (*attr_same)(const struct pk_attr *a, const struct pk_attr *b);
    uint64_t (*attr_hash)(const struct pk_attr *attr);

    /* Writes the indices of the inputs that are leaves written by the op, at most PK_MAX_WRITES, into `ret`. Returns
     * their number. Writes are ordered relative to reads of the leaf. */
    int32_t (*writes)(const struct pk_attr *attr, int32_t n_in, int32_t *ret);
    /* The index of the input that output `out` is, written in place; -1: the output has memory of its own. */
    int32_t (*through)(int32_t n_in, int32_t out);
    /* The index of the input whose memory the first output may reuse; -1: none. NULL: for an elementwise op any
     * input of the output's shape, else none. */
    int32_t (*shares)(const struct pk_attr *attr, int32_t n_in);
    /* That input may also be the first columns of a matrix of the output's shape. */
    bool shares_columns;

    /* Types in mixed precision: for all inputs and outputs, or by a function of the index k. */
    enum pk_want want;
    enum pk_makes makes;
    enum pk_want (*want_of)(const struct pk_attr *attr, int32_t n_in, int32_t k);
    enum pk_makes (*makes_of)(const struct pk_attr *attr, int32_t n_out, int32_t k);
    /* Sets the attribute that holds the first output's dtype. */
    void (*retype)(struct pk_attr *attr, enum pk_dtype dtype);

    /* Rewrites the views of a call to the form that op.h guarantees to back ends. */
    void (*fit)(const struct pk_attr *attr, int32_t n_in, struct pk_view *in, struct pk_view *out);
    /* Adjusts the cost, which on entry counts every input and output once. */
    void (*cost)(const struct pk_call *call, struct pk_cost *cost);
};

/* NULL for unknown ops. Static. */
const struct pk_rule *pk_rule_of(enum pk_op op);

/* The rule's `writes` (returns the number) and `through` (returns the index of the input, or -1). */
#define PK_MAX_WRITES 5
int32_t pk_op_writes(enum pk_op op, const struct pk_attr *attr, int32_t n_in, int32_t *ret);
int32_t pk_op_writes_through(enum pk_op op, int32_t n_in, int32_t out);

/* ---- for several rules ---- */

int32_t pk_writes_first(const struct pk_attr *attr, int32_t n_in, int32_t *ret);
int32_t pk_shares_first(const struct pk_attr *attr, int32_t n_in);
/* For hashes of attributes. */
uint64_t pk_hash_mix(uint64_t h, uint64_t x);
/* Broadcasts the view to the shape `to`. */
void pk_view_spread(struct pk_view *v, const struct pk_shape *to);
/* Bytes of a view, repeated axes counted once; its number of elements; its last extent. */
double pk_view_bytes(const struct pk_view *v);
double pk_view_count(const struct pk_view *v);
double pk_view_columns(const struct pk_view *v);

/* For ops whose derivative is zero (one_hot, max, fill). */
void pk_vjp_zero(struct pk_vjp *v);

/* Numpy's rule for two shapes; false if they do not fit. */
bool pk_shape_broadcast(const struct pk_shape *a, const struct pk_shape *b, struct pk_shape *ret);
/* Sums `x` over the axes along which `shape` was broadcast to its shape: the transpose of BROADCAST. */
struct pk_val pk_sum_to(struct pk_graph *g, struct pk_val x, struct pk_shape shape);
