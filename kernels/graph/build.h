/* kernels/graph/build.h: the inner representation of a graph, for the ops' rules and the passes. */
#pragma once

#include <stdarg.h>

#include "kernels/base/arena.h"
#include "kernels/graph/graph.h"
#include "kernels/graph/op/rule.h"

/* One value. A view shares its root's memory. */
struct pk_value {
    enum pk_dtype dtype;
    struct pk_shape shape;
    int64_t stride[PK_MAX_RANK]; /* in elements of the root */
    int64_t offset;              /* in elements of the root */
    uint32_t root;               /* the value whose memory this is; itself if not a view */
    uint32_t node;               /* the node that computes it */
    uint32_t out;                /* index among that node's outputs */
    bool gradient;               /* counted as PK_CAT_GRADIENTS */
    bool working;                /* the bf16 copy of a parameter: counted as PK_CAT_WEIGHTS */
};

struct pk_node {
    enum pk_op op;
    int32_t n_in, n_out;
    uint32_t *in; /* values */
    uint32_t out; /* the first of n_out consecutive values */
    struct pk_attr *attr;
    const char *scope;
    bool backward; /* emitted while differentiating */
    bool exact;    /* never narrowed */
    bool dead;
    uint64_t key;  /* position in the order of building; passes insert between two keys */
    uint64_t born; /* the key when the node was built: decides which version of a leaf it reads */
};

struct pk_leaf_info {
    const char *name;
    enum pk_op kind;
    enum pk_category category;
    uint32_t value;
    uint32_t copy; /* of a parameter: the value of its working copy; 0: none */
};

struct pk_out_info {
    const char *name;
    uint32_t value;
};

/* For tests and debugging; copies of a graph have them too. */
struct pk_passes_options {
    uint32_t off; /* bit i: pass i of pk_passes_name is not run */
    /* Called after every pass that was run, with the numbers of live nodes. */
    void (*trace)(void *user, const char *pass, uint32_t nodes_before, uint32_t nodes_after);
    void *user;
};

struct pk_graph {
    bool decomposed;
    struct pk_passes_options passes;
    enum pk_precision precision;
    enum pk_recompute recompute;
    enum pd_err err; /* sticky */
    struct pd_why why;
    struct pd_arena *arena; /* names, attributes, input lists */
    const char *scope;
    bool backward; /* nodes now emitted belong to a derivative */
    bool exact;    /* nodes now emitted are never narrowed */
    /* Index 0 of both is unused: id 0 is "no value". */
    struct pk_value *value;
    struct pk_node *node;
    uint32_t n_value, n_node, cap_value, cap_node;
    struct pk_leaf_info *leaf;
    struct pk_out_info *output;
    size_t n_leaf, cap_leaf, n_output, cap_output;
};

#define PK_KEY_STEP 16u /* between keys of neighbours, so that passes can insert nodes */

/* Records the first error; returns PK_NONE so that rules can return it. */
struct pk_val pk_graph_fail(struct pk_graph *g, enum pd_err err, const char *fmt, ...) PD_PRINTF(3, 4);

/* Adds a node. Checks with the op's rule, writes its n_out values (at most PK_MAX_OUT) into ret_out
 * (PK_NONE each after an error; may be NULL for ops without). Returns the first, or PK_NONE. */
struct pk_val pk_emit(struct pk_graph *g, enum pk_op op, const struct pk_attr *attr, const struct pk_val *in,
                      int32_t n_in, struct pk_val *ret_out);

/* A view of all of `x`, to differentiate with respect to it alone: two aliases of `x` have separate gradients. */
struct pk_val pk_alias(struct pk_graph *g, struct pk_val x);

/* Zeroed attributes: attributes are compared bytewise, so padding must not vary. */
struct pk_attr pk_attr_zero(void);

/* Whether a value is dense row-major, at any offset in its root. */
bool pk_value_is_dense(const struct pk_value *v);
/* Strides of `v` viewed with another shape of the same count. False: that needs a copy. */
bool pk_value_reshape(const struct pk_value *v, const struct pk_shape *shape, int64_t *ret_stride);

/* Writes root, strides and offset of the view `v` of `x`; v->shape is set already. False: a RESHAPE of `x`
 * needs a copy. */
bool pk_lay_view(enum pk_op op, const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v);
/* Gives `node`, made by a pass, the position of node `like`: its version of leaves, scope, part of the graph and
 * precision. */
void pk_node_belongs(struct pk_graph *g, uint32_t node, uint32_t like);
/* A copy of node `like` with inputs `in` and new outputs, for passes. 0 after an error. */
uint32_t pk_node_copy(struct pk_graph *g, uint32_t like, const uint32_t *in);

/* The same with attributes `attr` (copied), n_in inputs, and one more output, of the type of value `also`. */
uint32_t pk_node_more(struct pk_graph *g, uint32_t like, const struct pk_attr *attr, const uint32_t *in,
                      int32_t n_in, uint32_t also);

/* Several outputs at once: d(sum_k seed_k . y_k)/d wrt. Entries of y or seed may be PK_NONE; an unreached
 * wrt gives PK_NONE. */
void pk_grad_many(struct pk_graph *g, const struct pk_val *y, const struct pk_val *seed, size_t n_y,
                  const struct pk_val *wrt, size_t n_wrt, struct pk_val *ret_grads);

/* An EXPR node of one program with n inputs, which broadcast. */
struct pk_val pk_expr_emit(struct pk_graph *g, const struct pk_expr *program, const struct pk_val *x,
                           int32_t n);

/* The definitions of the fused ops by primitives. */
struct pk_val pk_norm_decomposed(struct pk_graph *g, struct pk_val x, struct pk_val gamma, struct pk_val beta,
                                 struct pk_norm_spec spec);
struct pk_val pk_softmax_decomposed(struct pk_graph *g, struct pk_val x);
/* f(s) of the activation's row in phi.h; `degree` is that of powers. */
struct pk_val pk_phi_decomposed(struct pk_graph *g, enum pk_phi phi, int32_t degree, struct pk_val s);
struct pk_loss pk_cross_entropy_decomposed(struct pk_graph *g, struct pk_val logits, struct pk_val target,
                                           double smoothing, int32_t ignore);
/* Sets the attributes of FORMULA that come from `use`. */
void pk_formula_attr_set(struct pk_attr *a, const struct pk_formula_use *use);
/* A of logits s (B, H, Nq, Nk) by primitives, 0 where `see` is 0 (PK_NONE: all keys are visible). */
struct pk_val pk_formula_weights(struct pk_graph *g, const struct pk_attention_spec *spec, struct pk_val s,
                                 struct pk_val see);
/* Part i of (B, N, 3, H, d) as (B, H, N, d). */
struct pk_val pk_unpack_qkv(struct pk_graph *g, struct pk_val qkv, int64_t i);
/* (n) of 0, 1, .. n-1; exact to 2^24, in f64 to 2^53 */
struct pk_val pk_iota(struct pk_graph *g, enum pk_dtype dtype, int64_t n);

/* A deep copy that shares nothing with `g`; NULL without memory. */
struct pk_graph *pk_graph_clone(const struct pk_graph *g);
/* Makes room for one more entry (zeroed) in a growing array; false if out of memory. */
bool pk_grow(void **array, size_t size, size_t count, size_t *cap);
