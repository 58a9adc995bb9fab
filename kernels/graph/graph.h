/* kernels/graph/graph.h: builds a static graph, differentiates it, plans its memory, runs it.
 *
 * A model is plain code that calls the builder; values are small handles. The first error
 * sticks to the graph (later calls return the null value and do nothing), so a model is checked
 * once, with pk_graph_check. Values that change from step to step (learning rates, positions, lengths,
 * the size of the last batch) are inputs, never attributes of nodes. A graph and its execs belong to
 * one thread at a time. The formulas of attention and norms: kernels/ATTENTION.md. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"
#include "kernels/graph/op/op.h"

struct pk_graph;

/* A value of one graph. id 0 is "no value". */
struct pk_val {
    uint32_t id;
};
#define PK_NONE ((struct pk_val){0})

/* Categories of bytes in the memory plan. */
enum pk_category {
    PK_CAT_WEIGHTS,
    PK_CAT_MASTER,
    PK_CAT_GRADIENTS,
    PK_CAT_MOMENT1,
    PK_CAT_MOMENT2,
    PK_CAT_EMA,
    PK_CAT_CACHE,
    PK_CAT_INPUTS,
    PK_CAT_ACTIVATIONS,
    PK_CAT_WORKSPACE,
    PK_CAT_COUNT
};
const char *pk_category_name(enum pk_category category); /* "weights", ...; static */

/* ---- building ---- */

/* `decomposed`: composites (norm, softmax, cross-entropy, attention) emit the primitives that define them
 * instead of fused nodes; every derivative of any order then exists. NULL without memory. */
struct pk_graph *pk_graph_new(bool decomposed);
struct pk_graph *pk_graph_free(struct pk_graph *g);
/* The first error since pk_graph_new, with the name of the op and the shapes involved. */
PD_NODISCARD enum pd_err pk_graph_check(const struct pk_graph *g, struct pd_why *why);

/* How a plan computes a graph of f32. MIXED: activations, their gradients and working copies of weights are bf16;
 * leaves, statistics, losses, gradients of parameters and outputs (pk_output) stay f32 (op.h). The default is
 * FULL; a graph that contains f64 allows no other. */
enum pk_precision { PK_PRECISION_FULL, PK_PRECISION_MIXED };
void pk_graph_precision(struct pk_graph *g, enum pk_precision precision);

/* What a plan does with cheap values that the backward part reads (elementwise nodes, norms, the activation behind a
 * matmul). SMALLER: makes two plans, keeping them and recomputing them, and takes the one with the smaller arena.
 * NEVER: keeps them; nothing is computed twice. SMALLER by default. The results are the same but for rounding. */
enum pk_recompute { PK_RECOMPUTE_SMALLER, PK_RECOMPUTE_NEVER };
void pk_graph_recompute(struct pk_graph *g, enum pk_recompute recompute);

/* Nodes emitted while it is on are never narrowed: in mixed precision they and their derivatives, also those
 * emitted later, keep the types of full precision. For coordinates (bf16 loses whole pixels beyond 256),
 * residuals of equations, pseudo-inverses. Leaves are read in f32; an input computed by a node outside may have
 * been rounded to bf16. Off by default. */
void pk_graph_exact(struct pk_graph *g, bool exact);

/* Prefix for error messages, such as "blocks.3.attn"; the text is copied. */
void pk_graph_scope(struct pk_graph *g, const char *name);

struct pk_val pk_input(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape);
struct pk_val pk_param(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape);
struct pk_val pk_state(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape,
                       enum pk_category category);

/* A table that never changes: an index, a mask, frequencies. `bytes` (dense, in row-major order) are copied;
 * an equal constant (dtype, shape and bytes) is the same value. It cannot be bound or written, and is no leaf for
 * pk_graph_leaf, pk_exec_bind and checkpoints. Each exec uploads the constants it uses when it is created,
 * counts them in PK_CAT_INPUTS, and frees them. Mixed precision does not treat it as part of the batch. */
struct pk_val pk_const(struct pk_graph *g, enum pk_dtype dtype, struct pk_shape shape, const void *bytes);

/* Declares `copy`, a STATE of bf16, as the rounded copy of `param` (f32, same shape) in mixed precision: matmuls
 * read it instead of rounding in every run, and pk_adamw and pk_msgdw update it with the parameter. A caller that
 * writes the parameter from outside fills the copy too, rounding to nearest even; several graphs may share it. No
 * effect in full precision, and where the graph writes the parameter by another op. */
void pk_working_copy(struct pk_graph *g, struct pk_val param, struct pk_val copy);

struct pk_shape pk_shape_of(const struct pk_graph *g, struct pk_val v);
enum pk_dtype pk_dtype_of(const struct pk_graph *g, struct pk_val v);

/* Views and movement: see op.h. reshape copies first if the input is not dense. */
struct pk_val pk_reshape(struct pk_graph *g, struct pk_val x, struct pk_shape shape);
struct pk_val pk_permute(struct pk_graph *g, struct pk_val x, const int32_t *axis); /* rank entries */
struct pk_val pk_transpose(struct pk_graph *g, struct pk_val x); /* swaps the last two axes */
struct pk_val pk_slice(struct pk_graph *g, struct pk_val x, int32_t axis, int64_t start, int64_t extent);
struct pk_val pk_broadcast(struct pk_graph *g, struct pk_val x, struct pk_shape shape);
struct pk_val pk_copy(struct pk_graph *g, struct pk_val x);
struct pk_val pk_cast(struct pk_graph *g, struct pk_val x, enum pk_dtype dtype);
struct pk_val pk_fill(struct pk_graph *g, enum pk_dtype dtype, struct pk_shape shape, double value);
struct pk_val pk_concat(struct pk_graph *g, int32_t axis, const struct pk_val *x, size_t count);
struct pk_val pk_gather(struct pk_graph *g, struct pk_val table, struct pk_val index);
struct pk_val pk_one_hot(struct pk_graph *g, struct pk_val index, int64_t classes, enum pk_dtype dtype);
/* How often each of 0 .. rows - 1 occurs in `index` (I32, any shape), as numbers of `dtype` (rows). f32 counts
 * up to 2^24. An index out of range is an error of the run. */
struct pk_val pk_count(struct pk_graph *g, struct pk_val index, int64_t rows, enum pk_dtype dtype);

/* Elementwise; operands broadcast. Chains are fused into one EXPR node at plan time. */
struct pk_val pk_add(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_sub(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_mul(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_div(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_max2(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_gt(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_eq(struct pk_graph *g, struct pk_val a, struct pk_val b);
struct pk_val pk_select(struct pk_graph *g, struct pk_val c, struct pk_val a, struct pk_val b);
struct pk_val pk_scale(struct pk_graph *g, struct pk_val x, double factor);
struct pk_val pk_offset(struct pk_graph *g, struct pk_val x, double addend);
struct pk_val pk_unary(struct pk_graph *g, enum pk_ex op, struct pk_val x); /* NEG .. FINITE without POW */
struct pk_val pk_power(struct pk_graph *g, struct pk_val x, int32_t p);     /* p >= 0 */
struct pk_val pk_gelu(struct pk_graph *g, struct pk_val x, bool tanh_form);
struct pk_val pk_relu(struct pk_graph *g, struct pk_val x);
/* w1 sin x + w2 cos x; w1 and w2 (1). One program, so that each derivative is one too: it reads x and computes sin and
 * cos again, where a sum of two products would keep both. */
struct pk_val pk_wave(struct pk_graph *g, struct pk_val x, struct pk_val w1, struct pk_val w2);

struct pk_val pk_sum(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep); /* axes: bit mask */
struct pk_val pk_mean(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep);
/* Its gradient is 0: for uses in which it cancels, as in softmax. */
struct pk_val pk_maximum(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep);
/* The same with a gradient, which goes to the first maximum in row-major order of the reduced axes. If
 * differentiated, it may reduce at most 2^24 elements each. */
struct pk_val pk_maximum_flow(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep);
/* Sum of the squares of all elements of all `count` tensors: (1). */
struct pk_val pk_sumsq(struct pk_graph *g, const struct pk_val *x, size_t count);
/* a (.., M, K), b (.., K, N) -> (.., M, N); leading axes broadcast. */
struct pk_val pk_matmul(struct pk_graph *g, struct pk_val a, struct pk_val b);

/* x w + bias: x (.., K). w (K, N), or (N, K) with w_transposed (timm, nn.Linear). bias (N); PK_NONE = none. */
struct pk_val pk_linear(struct pk_graph *g, struct pk_val x, struct pk_val w, bool w_transposed,
                        struct pk_val bias);

/* Convolution of images (B, H, W, Ci) with w (kh, kw, Ci, Co): -> (B, Ho, Wo, Co), op.h. */
struct pk_val pk_conv2d(struct pk_graph *g, struct pk_val x, struct pk_val w, int32_t stride, int32_t pad);
/* Each channel of x (B, H, W, C) by its own kernel, w (kh, kw, C), kh and kw odd -> (B, H, W, C), zero-padded. */
struct pk_val pk_dwconv2d(struct pk_graph *g, struct pk_val x, struct pk_val w);

/* Inverted dropout by the counter-based generator: rng I32 (3) is a graph input {seed low, seed high, step};
 * step is that of the optimiser, or of the micro-batch where several make a step. The same rng gives the same
 * mask in forward and backward, after resuming and for any number of threads. Each call in a network needs a
 * different `stream` (below 2^31). rng may be I32 (4): {.., share}, where x is one of equal shares of a batch
 * and the mask is that of the whole batch (ops.def). rng PK_NONE (evaluation) or rate 0: x itself. */
struct pk_val pk_dropout(struct pk_graph *g, struct pk_val x, struct pk_val rng, double rate,
                         uint32_t stream);
/* Stochastic depth: the same with one draw per index of the first axis. */
struct pk_val pk_drop_path(struct pk_graph *g, struct pk_val x, struct pk_val rng, double rate,
                           uint32_t stream);

struct pk_norm_spec {
    enum pk_norm_kind kind;
    enum pk_eps_mode eps_mode;
    double eps;
};
/* Norm over the last axis of x (.., D); gamma (D), beta (D) or PK_NONE. Formulas: kernels/ATTENTION.md 10. */
struct pk_val pk_norm(struct pk_graph *g, struct pk_val x, struct pk_val gamma, struct pk_val beta,
                      struct pk_norm_spec spec);
/* Softmax over the last axis. */
struct pk_val pk_softmax(struct pk_graph *g, struct pk_val x);

struct pk_loss {
    struct pk_val loss_sum; /* (1) */
    struct pk_val count;    /* (1) */
    struct pk_val correct;  /* (1) */
};
/* logits (M, C), target I32 (M); targets equal to `ignore` are skipped. Formula: CROSS_ENTROPY in ops.def. */
struct pk_loss pk_cross_entropy(struct pk_graph *g, struct pk_val logits, struct pk_val target,
                                double smoothing, int32_t ignore);

/* An activation that is a formula (kernels/formula/formula.h): its plan, copied into the graph, and its numbers. */
struct pk_formula_use {
    const struct pk_formula_plan *plan; /* NULL: no formula; the spec's phi is used */
    double n;                           /* N of the scale */
    double layer, layers;               /* index from 0, and number */
    double width;                       /* d, for pk_attention_weights; elsewhere it is that of q */
    double first_head, heads;           /* for a part of the heads by primitives; 0, 0: all heads */
};

struct pk_attention_spec {
    struct pk_formula_use formula; /* with a plan: phi, degree, scale, bias, row_power and form are ignored */
    struct pk_val scalars; /* its learned scalars (P, H), in the order of their names' leaves, or PK_NONE */
    enum pk_phi phi;
    int32_t degree;
    double tau;   /* 0 = 1/sqrt(d) */
    double scale; /* constant factor; 1 with a learned scale */
    double bias;  /* added to every logit */
    bool causal;
    double row_power; /* causal row i is divided by (i + 1)^row_power; 0 = no division */
    enum pk_form form;
    double dropout; /* rate on A; ignored without rng */
    uint32_t stream;
    struct pk_val scale_value; /* learned c (1) or (H), or PK_NONE */
    struct pk_val bias_value;  /* relative position bias (H, Nq, Nk), or PK_NONE; see pk_bias_of_table */
    struct pk_val mask;        /* U8 (B, Nk), or (W, Nq, Nk) with W dividing B, or PK_NONE */
    struct pk_val length;      /* I32 (1) or (B), or PK_NONE */
    struct pk_val rng;         /* as in pk_dropout; PK_NONE: no dropout (evaluation) */
};
/* qkv (B, N, 3, H, d) -> y (B, N, H, d). */
struct pk_val pk_attention_packed(struct pk_graph *g, struct pk_val qkv, struct pk_attention_spec spec);
/* q (B, H, Nq, d), k and v (B, H, Nk, d) -> y (B, Nq, H, d). */
struct pk_val pk_attention(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                           struct pk_attention_spec spec);
/* The same by primitives; *ret_weights (may be NULL) is A (B, H, Nq, Nk). It defines the fused op. */
struct pk_val pk_attention_decomposed(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                                      struct pk_attention_spec spec, struct pk_val *ret_weights);

/* A from logits (B, H, Nq, Nk), for attention whose logits are not q k^T; reads phi, degree, bias, scale and
 * scale_value of `spec`. A is stored in memory. */
struct pk_val pk_attention_weights(struct pk_graph *g, struct pk_val logits, struct pk_attention_spec spec);
/* The matrices between q, k and y, each (B, H, Nq, Nk), without dropout. */
struct pk_attention_matrices {
    struct pk_val logits;  /* S = tau q k^T + bias, hidden keys included */
    struct pk_val visible; /* 1 where a query sees a key, else 0; broadcasts. PK_NONE: all are visible */
    struct pk_val weights; /* A = phi(S), 0 where hidden */
};
/* By primitives, for diagnostics; all PK_NONE if the inputs do not fit (the graph keeps the error). */
struct pk_attention_matrices pk_attention_matrices(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                                   struct pk_attention_spec spec);
/* Softmax of logits over the visible keys (`visible` as above); a row without visible keys is 0. */
struct pk_val pk_softmax_visible(struct pk_graph *g, struct pk_val logits, struct pk_val visible);

/* Tangents of q, k, v, scale_value (of a formula: scalars) and bias_value; PK_NONE = zero. */
struct pk_attention_tangent {
    struct pk_val q, k, v, scale, bias;
};
/* Forward mode: the tangent of pk_attention's y -> (B, Nq, H, d), for any activation: one kernel for x^p without
 * dropout, whose derivative has kernels too; primitives otherwise. Formula: kernels/ATTENTION.md 5. */
struct pk_val pk_attention_jvp(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                               struct pk_attention_spec spec, struct pk_attention_tangent tangent);

/* QKNorm: RMSNorm of each head's rows. x (B, H, N, d), a view is fine; gain (d) shared, or (H, d). */
struct pk_val pk_qk_norm(struct pk_graph *g, struct pk_val x, struct pk_val gain, enum pk_eps_mode eps_mode,
                         double eps);
/* Part 0, 1 or 2 of packed qkv (B, N, 3, H, d) as (B, H, N, d): a view. */
struct pk_val pk_attention_part(struct pk_graph *g, struct pk_val qkv, int64_t which);
/* Relative position bias (H, Nq, Nk) from a table (T, H) and the table row of each pair, I32 (Nq, Nk). The
 * table's gradient is summed in the order of pairs. */
struct pk_val pk_bias_of_table(struct pk_graph *g, struct pk_val table, struct pk_val index);
/* SimA: x (B, H, N, d) with each column divided by the sum of its absolute values over the N tokens.
 * Attention with such q and k, degree 1, tau 1, scale 1 is l1-normalised linear attention. Not for causal
 * attention: each sum runs over all tokens. */
struct pk_val pk_l1_norm_tokens(struct pk_graph *g, struct pk_val x);

struct pk_attention_stats {
    struct pk_val fro, jac_fro, jac_q_fro, logit_std, logit_max; /* each (B, H) */
    struct pk_val broken; /* of a formula: number of non-finite entries of A or dA/dS; else PK_NONE */
};
/* x (B, Nq, D): the rows that W_Q multiplied. qkv packed, or q, k separate with v ignored. */
struct pk_attention_stats pk_attention_stats_packed(struct pk_graph *g, struct pk_val qkv, struct pk_val x,
                                                    struct pk_attention_spec spec);
struct pk_attention_stats pk_attention_stats(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                             struct pk_val x, struct pk_attention_spec spec);
/* The same for a part of the matrix, by primitives: without the first `skip` rows and columns of A, S and dA/dS.
 * A is still computed over all keys, and dA/dW_Q through the logits of all keys. q, k (B, H, N, d). A scale
 * other than 1 together with normalised rows is an error. */
struct pk_attention_stats pk_attention_stats_part(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                                  struct pk_val x, struct pk_attention_spec spec,
                                                  int64_t skip);
/* Decoding with a state of constant size instead of a cache of keys and values; x and x^2 only. q, k, v (B,
 * H, n, d) are the new tokens, state a STATE (B, H, pk_attention_features(degree, d), d) of their dtype,
 * changed in place. position I32 (1) or (B) is that of the first new token (0 clears the state first);
 * spec.length = position + the number of valid tokens among the n, so an idle slot has length = position. Equal
 * to attention over the whole sequence up to rounding; n may be a whole prompt or 1. -> y (B, n, H, d). Reads
 * phi, degree, tau, scale, scale_value, row_power and length of spec; bias, mask and dropout are refused.
 * Formula: kernels/ENGINE.md 9. */
struct pk_val pk_attention_state(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                                 struct pk_val state, struct pk_val position, struct pk_attention_spec spec);
/* Writes fresh (B, H, n, d) into the STATE cache (B, H, T, d) at position I32 (1) or (B); returns the cache. */
struct pk_val pk_cache_append(struct pk_graph *g, struct pk_val cache, struct pk_val fresh,
                              struct pk_val position);

struct pk_optim_spec {
    double beta1, beta2, eps; /* AdamW */
    bool cycled;              /* AdamW: hyper[3] is beta1, which may change from step to step */
    double momentum, dampening;
    bool nesterov;
    double weight_decay; /* this tensor's: 0 for undecayed groups */
    double lr_mult;
    bool l2;               /* msgdw: the decay goes through the momentum */
    double ema;            /* decay of the average; in (0, 1) if there is one */
    struct pk_val average; /* a state of the parameter's shape, or PK_NONE */
};
/* In place on parameter and states; hyper (4), gate (2) and formulas as in ops.def. */
void pk_adamw(struct pk_graph *g, struct pk_val p, struct pk_val grad, struct pk_val m, struct pk_val v,
              struct pk_val hyper, struct pk_val gate, struct pk_optim_spec spec);
void pk_msgdw(struct pk_graph *g, struct pk_val p, struct pk_val grad, struct pk_val m, struct pk_val hyper,
              struct pk_val gate, struct pk_optim_spec spec);
/* sum (a state) <- x if first (1) is not 0, else sum + x. */
void pk_accumulate(struct pk_graph *g, struct pk_val sum, struct pk_val x, struct pk_val first);
/* s (a parameter or state) <- decay s + (1 - decay) x if gate (1) is not 0; with decay 0, s <- x. */
void pk_blend(struct pk_graph *g, struct pk_val s, struct pk_val x, struct pk_val gate, double decay);

/* ---- differentiating ---- */

/* Reverse mode: emits nodes for d(sum(seed * y))/d(wrt[i]) into ret_grads[i]. seed PK_NONE = ones. Only
 * values on a path to a requested wrt are visited; a wrt that y does not depend on gets zeros. Rules emit only
 * graph nodes, so pk_grad may be applied to its own output. */
void pk_grad(struct pk_graph *g, struct pk_val y, struct pk_val seed, const struct pk_val *wrt, size_t count,
             struct pk_val *ret_grads);

/* Forward mode: ret_dy[i] is the tangent of y[i] for tangents dx[k] of x[k] (same shape and dtype; PK_NONE: zero);
 * zeros if y[i] depends on no x. Built from reverse mode: the gradient is linear in the seed, so its derivative with
 * respect to the seed, along dx, is the tangent. Every op between x and y needs a second derivative; the error names
 * an op without one and reports whether a decomposed graph has it. No leaf is added. Dead-code elimination removes
 * the rest of the backward part, except its sums over ranks: collectives are never eliminated. */
void pk_jvp(struct pk_graph *g, const struct pk_val *y, size_t n_y, const struct pk_val *x,
            const struct pk_val *dx, size_t n_x, struct pk_val *ret_dy);

/* ---- ranks ---- */

/* The sum of x over the ranks of the run: on all of them (root -1), or on one.
 *
 * Gradient (root -1 only): the sum of the upstream gradient over ranks. This is correct if each rank
 * differentiates its own share of the loss, the shares adding up to the loss: then the network may contain
 * statistics of the whole batch, and gradients of parameters, summed over ranks afterwards
 * (pk_all_reduce_buckets), are those of the loss. Differentiating the summed loss itself would give every gradient
 * times the number of ranks: sum losses for reports only, and differentiate the share. */
struct pk_val pk_all_reduce(struct pk_graph *g, struct pk_val x, int32_t root);
/* A PARAM or STATE takes the value that it has on rank `root`. */
void pk_broadcast_ranks(struct pk_graph *g, struct pk_val leaf, int32_t root);
/* Sums `count` values of one dtype over ranks, in few large pieces: values are laid one after another (each
 * on a boundary of 256 bytes) into buckets of about `bucket_bytes`, in the order in which they become known,
 * so that the first bucket is sent while the rest is computed. owner (may be NULL): sum i is defined on rank
 * owner[i] only; a bucket then holds values of one owner. ret_sum[i] has the shape of value[i]; ret_sum may be
 * `value` itself. */
void pk_all_reduce_buckets(struct pk_graph *g, const struct pk_val *value, const int32_t *owner, size_t count,
                           size_t bucket_bytes, struct pk_val *ret_sum);
#define PK_BUCKET_BYTES ((size_t)25 << 20)

/* ---- planning and running ---- */

/* Keeps `v` readable after a run, under `name`. */
void pk_output(struct pk_graph *g, const char *name, struct pk_val v);

struct pk_plan_report {
    size_t bytes[PK_CAT_COUNT];
    size_t arena_bytes; /* the one allocation for gradients, activations and workspace */
    size_t live_bound;  /* most bytes live at once: arena_bytes / live_bound is the planner's quality */
    size_t nodes;       /* kernels per run */
    size_t copy_bytes;  /* of bytes[PK_CAT_WEIGHTS]: working copies that are states, not in the arena */
    size_t const_bytes; /* of bytes[PK_CAT_INPUTS]: constants, in an allocation separate from the arena */
};

struct pk_exec; /* a planned graph bound to a back end */

/* Runs the passes (dead code, common subexpressions, constant folding, fusion), schedules, plans the
 * arena. The exec keeps nothing of `g`. backend NULL makes a forecast of bytes by the rules of `api`; it
 * cannot run. api NULL: the same without scratch and without the check that every call is supported. Values may
 * be computed more than once where that lowers the peak. PD_ERR_UNSUPPORTED: the back end cannot run a call. */
PD_NODISCARD enum pd_err pk_exec_new(struct pk_graph *g, const struct pk_backend_api *api,
                                     struct pk_backend *backend, struct pk_exec **ret, struct pd_why *why);
struct pk_exec *pk_exec_free(struct pk_exec *e);

/* Memory for gradients, activations and workspace, shared by several plans of one back end that never run at the
 * same time: as large as the largest of them needs, also in forecasts. Outputs of a plan are readable until
 * another plan runs or makes the arena grow. Arena and plans belong to one thread at a time. The arena lives until
 * the caller and all its plans have freed it. pk_arena_new: NULL if out of memory. */
struct pk_arena;
struct pk_arena *pk_arena_new(void);
struct pk_arena *pk_arena_free(struct pk_arena *a);
size_t pk_arena_bytes(const struct pk_arena *a);
/* pk_exec_new with `arena` instead of one of its own; NULL: the same. */
PD_NODISCARD enum pd_err pk_exec_new_in(struct pk_graph *g, const struct pk_backend_api *api,
                                        struct pk_backend *backend, struct pk_arena *arena,
                                        struct pk_exec **ret, struct pd_why *why);

void pk_exec_report(const struct pk_exec *e, struct pk_plan_report *ret);

/* A leaf that the caller binds (input, parameter or state, not constant), for binding and for checkpoints. */
struct pk_leaf {
    const char *name; /* borrowed from the graph */
    enum pk_op kind;  /* INPUT, PARAM or STATE */
    enum pk_category category;
    enum pk_dtype dtype;
    struct pk_shape shape;
    size_t bytes;
};
size_t pk_graph_leaf_count(const struct pk_graph *g);
struct pk_leaf pk_graph_leaf(const struct pk_graph *g, size_t i);

/* Binds memory of the back end (dense, leaf's bytes, 256-byte aligned) to a leaf; it stays the caller's.
 * Several execs may share it: a training graph, an evaluation graph, a probe. */
PD_NODISCARD enum pd_err pk_exec_bind(struct pk_exec *e, const char *name, void *memory, struct pd_why *why);

/* Compiles the kernels that the plan needs and that exist only as a formula's text (pk_backend_api.compile), so that no run
 * does it; needs no bound leaf. `note` may be NULL. Nothing happens on a back end without such kernels. */
PD_NODISCARD enum pd_err pk_exec_compile(struct pk_exec *e, pk_compile_note *note, void *user,
                                         struct pd_why *why);

/* One run of the whole graph. Every leaf that is used must be bound. On a back end with capture the first run
 * goes call by call, the second is recorded, and later runs replay the recording, until other memory is bound.
 * If recording fails, the exec runs call by call from then on, with the same results: the back end logs it once,
 * and pk_exec_runs counts it. With several ranks a failed recording is an error, because the other ranks may
 * replay; collectives that cannot be recorded at all run call by call on every rank. */
PD_NODISCARD enum pd_err pk_exec_run(struct pk_exec *e, struct pd_why *why);

/* How runs went since pk_exec_new. eager: call by call (the first after each binding; all while tracing or
 * poisoning, and on a back end without capture). A recorded run counts as a replay, also the first. */
struct pk_exec_runs {
    uint64_t eager, captures, replays, refused; /* refused: recordings that failed, 0 or 1 */
};
struct pk_exec_runs pk_exec_runs(const struct pk_exec *e);

/* Copies an output to host memory after a run. PD_ERR_CONFLICT: there was none, or another plan has run in the
 * arena since. */
PD_NODISCARD enum pd_err pk_exec_read(struct pk_exec *e, const char *output, void *to, size_t bytes,
                                      struct pd_why *why);
/* The same in two halves, where the back end has them (pk_backend_api.read_later): the copy is enqueued to `place` (0 or 1)
 * behind the last run; the second half waits for it, and not for runs that followed. */
PD_NODISCARD enum pd_err pk_exec_read_later(struct pk_exec *e, const char *output, int place, size_t bytes,
                                            struct pd_why *why);
PD_NODISCARD enum pd_err pk_exec_read_wait(struct pk_exec *e, int place, void *to, size_t bytes,
                                           struct pd_why *why);
/* Its place in back-end memory; borrowed until the next run. An output is a dense tensor. NULL if unknown,
 * and where pk_exec_read fails. */
const void *pk_exec_output(struct pk_exec *e, const char *output, struct pk_shape *ret_shape);

/* Calls `fn` for every kernel of the plan, in order; it must not read data pointers. backward: the kernel
 * belongs to a derivative. scope is borrowed until the callback returns. */
void pk_exec_each(const struct pk_exec *e,
                  void (*fn)(void *user, const char *scope, bool backward, const struct pk_call *call),
                  void *user);

/* Debugging: calls `fn` after every node with its name and outputs in host memory (copies, if the back end's memory
 * is not the host's), valid until the callback returns. NULL stops. */
void pk_exec_trace(struct pk_exec *e,
                   void (*fn)(void *user, const char *node, const struct pk_view *out, int n), void *user);

/* Debugging: every run begins with an arena of NaN, and a buffer is overwritten with NaN as soon as its
 * last reader has run, so that a read outside its lifetime gives NaN. Slow. */
void pk_exec_poison(struct pk_exec *e, bool on);
