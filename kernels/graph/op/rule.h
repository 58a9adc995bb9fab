/* kernels/graph/op/rule.h: everything that the graph knows about an op: its name, its shape rule, its
 * derivative, what it writes, whose memory its output may take, its types in mixed precision, its bytes and
 * FLOP. Builder, passes, planner, executor and roofline ask the rule and name no op. One op a file; ops.def
 * is the list.
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
    const struct pk_val *dout; /* PK_NONE: nothing flows into this output */
    const bool *need;          /* which inputs want a gradient */
    struct pk_val *din;        /* to write; PK_NONE stays for zero */
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
    PK_KIND_OPTIMISER, /* and its norm of gradients, and what adds them up */
    PK_KIND_RANKS,
    PK_KIND_COUNT
};

struct pk_cost {
    enum pk_kind kind;
    double read, written; /* bytes */
    double flop;          /* of products alone: what is done to elements on the way is not counted */
};

/* Mixed precision (passes/narrow.c): a value is live if it belongs to the batch, and not to parameters or
 * statistics alone. The type of an input: */
enum pk_want {
    PK_WANT_ANY,     /* as it comes */
    PK_WANT_F32,     /* f32; whether it is live does not matter to what the node makes */
    PK_WANT_BITS,    /* as it comes, but nothing is narrowed for this reader */
    PK_WANT_PASSED,  /* as it comes, and narrowed for this reader if the first output is bf16 */
    PK_WANT_OUTPUT,  /* the same, and always of the first output's type */
    PK_WANT_FIRST,   /* of the first input's type */
    PK_WANT_FACTOR,  /* bf16 if one of the node's factors is live, else as it comes */
    PK_WANT_GROUP,   /* bf16 if one of the group is live or bf16 already, else f32 */
    PK_WANT_AS_GROUP /* the same, without being of the group */
};

/* The type of an output: */
enum pk_makes {
    PK_MAKES_BATCH,  /* live if an input is; then bf16, unless all of its readers want more */
    PK_MAKES_ROWS,   /* the same, and always live */
    PK_MAKES_SUMS,   /* live if an input is; f32 */
    PK_MAKES_NUMBER, /* never live: f32 */
    PK_MAKES_AS_IN,  /* live if an input is; of the first input's type */
    PK_MAKES_GROUP,  /* live if an input of the group is; of the group's type */
    PK_MAKES_TIED    /* as PK_MAKES_BATCH, and of one type with the first output */
};

struct pk_value;
struct pd_arena;

struct pk_rule {
    const char *name;
    int32_t min_in, max_in; /* max -1: any number */
    enum pk_kind kind;
    bool leaf;        /* memory that no node makes: no inputs, no shape rule */
    bool fed;         /* a leaf that every run may bind anew; of more than one element it is a batch */
    bool trained;     /* a leaf that is a parameter */
    bool fixed;       /* a leaf that the graph holds: nothing is bound to it and nothing writes it */
    bool elementwise; /* inputs broadcast; an element of the output is one of each input, read before it is
                         written */
    bool cheap;       /* sooner made again in the backward part than kept */
    bool updates; /* an optimiser's step: input 0 is the parameter, attr.optim.copy its working copy, last */
    bool ranks;   /* all ranks take part: it runs even if nobody reads it, and in the order of building */
    /* Checks the inputs and writes the outputs' types; fixes defaults in nothing. */
    enum pd_err (*infer)(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why);
    /* NULL: there is no derivative and asking for one is an error. */
    void (*vjp)(struct pk_vjp *v);

    /* What follows may be left out: then the op has nothing of the kind. */

    /* Whether nothing flows through a node with these attributes: vjp is then as pk_vjp_zero. */
    bool (*stops)(const struct pk_attr *attr);

    /* An op that changes shape and strides only: strides and offset of `v` over `x`; v has its shape, x's
     * root and offset, and strides of 0. False: `x` cannot be seen so. */
    bool (*view)(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v);
    /* Attributes that point to memory: puts a copy of that into the arena (false: no memory), compares,
     * hashes. */
    bool (*attr_own)(struct pk_attr *attr, struct pd_arena *arena);
    bool (*attr_same)(const struct pk_attr *a, const struct pk_attr *b);
    uint64_t (*attr_hash)(const struct pk_attr *attr);

    /* The leaves that it writes, in order relative to their readers: their places among the inputs, at most
     * PK_MAX_WRITES, into `ret`. Returns how many. */
    int32_t (*writes)(const struct pk_attr *attr, int32_t n_in, int32_t *ret);
    /* The input whose memory an output is, after the op has written it; -1: an output of its own. */
    int32_t (*through)(int32_t n_in, int32_t out);
    /* The input whose memory the first output may take; -1: none. NULL: of an elementwise op any of the
     * output's shape, else none. */
    int32_t (*shares)(const struct pk_attr *attr, int32_t n_in);
    /* That input may also be the first columns of a matrix like the output. */
    bool shares_columns;

    /* Types in mixed precision: of all inputs and outputs, or where they differ of each. */
    enum pk_want want;
    enum pk_makes makes;
    enum pk_want (*want_of)(const struct pk_attr *attr, int32_t n_in, int32_t k);
    enum pk_makes (*makes_of)(const struct pk_attr *attr, int32_t n_out, int32_t k);
    /* Attributes that name the first output's type. */
    void (*retype)(struct pk_attr *attr, enum pk_dtype dtype);

    /* Rewrites the views of a call as op.h promises them to back ends. */
    void (*fit)(const struct pk_attr *attr, int32_t n_in, struct pk_view *in, struct pk_view *out);
    /* Corrects the count of a call that reads every input and writes every output once. */
    void (*cost)(const struct pk_call *call, struct pk_cost *cost);
};

/* NULL for unknown ops. Static. */
const struct pk_rule *pk_rule_of(enum pk_op op);

/* The rule's `writes` and `through`: how many, at most PK_MAX_WRITES; the input, or -1. */
#define PK_MAX_WRITES 5
int32_t pk_op_writes(enum pk_op op, const struct pk_attr *attr, int32_t n_in, int32_t *ret);
int32_t pk_op_writes_through(enum pk_op op, int32_t n_in, int32_t out);

/* ---- for several rules ---- */

int32_t pk_writes_first(const struct pk_attr *attr, int32_t n_in, int32_t *ret);
int32_t pk_shares_first(const struct pk_attr *attr, int32_t n_in);
/* For hashes of attributes. */
uint64_t pk_hash_mix(uint64_t h, uint64_t x);
/* Repeats axes so that the view has the shape `to`. */
void pk_view_spread(struct pk_view *v, const struct pk_shape *to);
/* Bytes that a view shows, axes that are repeated once; its elements; its last extent. */
double pk_view_bytes(const struct pk_view *v);
double pk_view_count(const struct pk_view *v);
double pk_view_columns(const struct pk_view *v);

/* For ops whose outputs do not depend differentiably on anything (one_hot, max, fill). */
void pk_vjp_zero(struct pk_vjp *v);

/* Numpy's rule for two shapes; false if they do not fit. */
bool pk_shape_broadcast(const struct pk_shape *a, const struct pk_shape *b, struct pk_shape *ret);
/* Sums `x` over the axes that were repeated to make it from `shape`, so that it has that shape. */
struct pk_val pk_sum_to(struct pk_graph *g, struct pk_val x, struct pk_shape shape);
