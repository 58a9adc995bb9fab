/* kernels/ops/op.h: the operations: what each computes, its inputs, outputs and attributes.
 *
 * This list is the contract between the graph (which builds and differentiates nodes), the
 * back ends (which run them) and the models. Views (RESHAPE .. BROADCAST) never reach a back
 * end: they only change shape and strides. Every float op works in f32 and in f64; sums are
 * taken in a fixed order, so results are bitwise equal from run to run and for any number of
 * threads. Indices and masks are I32 and U8. Shapes below: B batch, H heads, N tokens, d head
 * dimension, D width. "dense" means row-major without gaps; where it is not said, inputs may be
 * strided views. Outputs are always dense.
 *
 * The executor simplifies calls before a back end sees them: every input of EXPR arrives with the
 * output's shape (a repeated axis has stride 0), and the leading axes of MATMUL are equal in rank to the
 * output's, likewise with stride 0 - or, where all of them fold into the rows, a, residual or pre, what is
 * kept and the output arrive as matrices.
 *
 * Mixed precision: a pass after differentiation may narrow activations and the weights' working copies to
 * bf16. Back ends that run bf16 then see calls in which each float view is f32 or bf16 by itself; arithmetic,
 * statistics and sums stay f32. Never narrowed: leaves, what optimisers read and write but for the gradient,
 * rstd, mean, lse, the sums of attention, scale, bias, dscale, dbias, dgamma, dbeta, loss_sum, dloss_sum,
 * count, correct, and every output of SUMSQ, SUM, MAX, SCATTER_ADD and ATTENTION_STATS. a and b of MATMUL
 * have one type, and so have its residual, what it keeps, pre and its output (f32 or bf16; a bias that is a
 * parameter is f32, and so are sums); so have q, k, v, y, dy, dq, dk and dv of one attention, and logits and
 * dlogits. The state of ATTENTION_STATE is f32 beside q, k, v of bf16. The CPU back end computes all of this
 * by widening: slow, and the definition.
 *
 * Notation and formulas: spec attention.md (sections 1, 2, 6, 7), dnt.md 1. */
#pragma once

#include "kernels/tensor/tensor.h"

/* clang-format off: tables */
enum pk_op {
    /* Leaves: memory bound from outside, pinned. */
    PK_OP_INPUT,
    PK_OP_PARAM,
    PK_OP_STATE,
    /* Views of one input: no kernel, no memory. */
    PK_OP_RESHAPE,   /* dense input, same count */
    PK_OP_PERMUTE,   /* attr.permute.axis[i] = which input axis becomes axis i */
    PK_OP_SLICE,     /* attr.slice: axis, start, extent */
    PK_OP_BROADCAST, /* numpy rules to attr.shape; new axes in front */
    /* Movement. */
    PK_OP_COPY,        /* (x) -> dense copy of a view; also casts: attr.copy.dtype */
    PK_OP_FILL,        /* () -> attr.fill: shape, dtype, value */
    PK_OP_CONCAT,      /* (x0, x1, ...) along attr.concat.axis */
    PK_OP_PAD,         /* (x) -> zeros of attr.pad.extent along attr.pad.axis, x placed at attr.pad.start:
                          the transpose of SLICE */
    PK_OP_GATHER,      /* (table (V, D) dense, index I32 any shape S) -> (S, D). An index outside 0..V-1 is
                          an error of the run (PD_ERR_INVALID) */
    PK_OP_SCATTER_ADD, /* (index S, src (S, D) [, base (V, D)]) -> (V, D): base (or 0) plus rows of src added
                          at their index, in order of S. Output may share base's memory */
    PK_OP_ONE_HOT,     /* (index S) -> (S, attr.one_hot.classes) of attr.one_hot.dtype; out of range: zeros */
    /* Arithmetic. */
    PK_OP_EXPR,   /* (x0 .. xk) broadcast against each other -> attr.expr: a postfix program, elementwise. The
                     result is the value on top of the stack at the end; values left below it (shared
                     subexpressions, fetched with DUP) are dropped. All of one float dtype. The output may
                     share the memory of dense inputs of its own shape */
    PK_OP_SUM,    /* (x) -> sum over the axes in attr.reduce.axes (bit mask); keep: extent 1 stays */
    PK_OP_MAX,    /* likewise the maximum; no derivative (used where it cancels) */
    PK_OP_SUMSQ,  /* (x0 .. xk) -> (1): sum of squares of all elements, accumulated in double */
    PK_OP_MATMUL, /* (a (.., M, K), b (.., K, N) [, bias (N)] [, residual (.., M, N)]) -> (.., M, N):
                     act(a b + bias) + residual. Leading axes broadcast. Transposed operands are PERMUTE
                     views. b of rank 2 may be bf16 beside f32 (weights stored for inference; no derivative).
                     attr.matmul: has_bias, has_residual, act. Output may share residual's memory.
                     keeps, with an activation and no residual: a second output of the first one's type, what
                     the activation is applied to: a b + bias.
                     slope, without bias and residual: (a, b, pre (.., M, N) of the output's type) -> a b
                     times the derivative of act at pre. sums: one more output, last: OUT (N), the sum of the
                     first output over all axes but its last; of two matrices also A (M), of a over K, or B
                     (N), of b over K: what flows into a bias beside the product. None of the three has a
                     derivative: the passes make them */
    PK_OP_DROPOUT, /* (x (.., C), rng I32 (3): seed low, seed high, step; or (4): and share s, here and in
                      ATTENTION: x is the s-th of equal parts of a whole along its first axis, and its rows
                      are counted in the whole: r below stands for r + s rows) -> x m / (1 - rate), m of 0
                      and 1. m is drawn anew by whoever needs it, never stored: element (row r, column c),
                      rows being all axes but the last, is kept if word c / 16 % 4 of Philox at counter {c /
                      64 * 16 + c % 16, r, step, 0x80000000 + stream} is at least rate 2^32.
                      attr.dropout.samples: one draw for each index of the first axis, that of row r = index
                      and column 0 (stochastic depth). Linear in x: its own derivative. Output may share x's
                      memory */
    /* Normalisation over the last axis; statistics in f32 or better, variance in two passes. */
    PK_OP_NORM,          /* (x (.., D), gamma (D) [, beta (D)]) -> y, rstd (..) [, mean (..) for LayerNorm].
                            attr.norm: kind, eps, eps_mode, has_beta. LayerNorm(x) = gamma (x-mean)/sqrt(var+eps)+beta;
                            RMSNorm(x) = gamma x / sqrt(mean(x^2)+eps), or with eps on the sum of squares (dnt.md 1) */
    PK_OP_NORM_BWD,      /* (x, gamma, dy, rstd [, mean] [, beta if attr.norm.again and has_beta] [, residual
                            like x if attr.norm.has_residual]) -> dx [+ residual], dgamma [, dbeta if
                            attr.norm.has_beta] [, y if attr.norm.again: the output of NORM once more]. The
                            passes put on residual and again. dx may share residual's memory */
    PK_OP_SOFTMAX,       /* (x) -> softmax over the last axis */
    PK_OP_SOFTMAX_BWD,   /* (y, dy) -> dx = y (dy - sum(dy y)) */
    PK_OP_CROSS_ENTROPY, /* (logits (M, C), target I32 (M)) -> loss_sum (1), count (1), correct (1), lse (M).
                            loss_sum = sum over targets != ignore of (1-s)(-log p_y) + s mean_c(-log p_c);
                            count = number of those targets; correct = how many have the first largest logit
                            at y. attr.cross_entropy: smoothing s, ignore. Other targets outside 0..C-1: error
                          */
    PK_OP_CROSS_ENTROPY_BWD,  /* (logits, target, lse, dloss_sum (1)) -> dlogits; may share logits' memory */
    PK_OP_CROSS_ENTROPY_GRAD, /* (logits, target, dloss_sum (1)) -> dlogits (M, C), loss_sum, count, correct:
                                 both of the above, where dloss_sum is known beforehand.
                                 attr.cross_entropy.mean: dloss_sum is divided by count first. width > C:
                                 dlogits is (M, width), zeros beyond C. May share logits' memory, also if
                                 those are the first C columns of (M, width). The passes make it */
    /* Attention: A = phi(tau q k^T + bias) with mask after phi, y = A v (attention.md). N x N never stored.
     */
    PK_OP_ATTENTION,     /* packed: (qkv (B, N, 3, H, d)) else (q (B, H, Nq, d), k, v (B, H, Nk, d)),
                            then, as attr.attention says: scale c (1) or (H); bias (H, Nq, Nk), added to
                            tau q k^T before phi; mask U8, 1 = visible: (B, Nk) for keys, or (W, Nq, Nk) for
                            windows, batch b taking mask b % W; length I32 (1) or (B): keys at or beyond it are
                            masked, and causal row i of Nq sees keys j <= i + length - Nq; rng I32 (3) or (4) for
                            dropout on A: entry (b, h, i, j) is drawn as row (b H + h) Nq + i, column j of
                            DROPOUT
                            -> y (B, Nq, H, d) dense [, sums (B, H, Nq) where pk_phi_normalised: of softmax
                            the log of the sum of exponentials, else the sum of phi over the row].
                            causal without length: j <= i + (Nk - Nq). A fully masked row gives 0. */
    PK_OP_ATTENTION_BWD, /* (the inputs of ATTENTION, y, dy (B, Nq, H, d) [, sums]) -> packed: dqkv like qkv,
                            else dq, dk, dv like q, k, v; then dscale like scale and dbias like bias, if they
                            are there */
    PK_OP_ATTENTION_STATS, /* (the inputs of ATTENTION but v is unused, x (B, Nq, D): the rows that W_Q
                              multiplied). Dropout is not looked at
                              -> five tensors (B, H): ||A||_F; ||dA/dS||_F; ||dA/dW_Q||_F (attention.md 2);
                              standard deviation of visible logits; largest |logit| of visible ones */
    PK_OP_ATTENTION_STATE, /* (q, k, v (B, H, n, d) [, scale (1) or (H)], length I32 (1) or (B), position I32
                              (1) or (B), state STATE (B, H, F, d)) -> y (B, n, H, d), the state in place:
                              causal attention of x (F = d) or x^2 (F = d (d + 1) / 2) that remembers all
                              earlier tokens in the state alone (engine.md 9). The first length - position of
                              the n tokens count; the others leave the state as it is and give 0. Position 0
                              begins anew: what the state held is dropped. attr.attention: poly, degree, tau,
                              scale. State row of x: channel a of k, times v; of x^2: k_a k_b for b >= a, by
                              a, then b, times 2 where a < b */
    PK_OP_ATTENTION_JVP,  /* (the inputs of ATTENTION, then tangents of q, k, v (packed: of qkv), and of scale
                             and  bias if they are there) -> the tangent of y. x^p alone, without dropout */
    PK_OP_ATTENTION_BWD2, /* (the inputs of ATTENTION, dy, tangents as above) -> the derivatives of L, the sum
                             of dy times the tangent of y, by q, k, v (packed: qkv), scale and bias if they
                             are there, and dy. Where the tangents are what flows into the outputs of
                             ATTENTION_BWD, that is its derivative. x^p alone, without dropout */
    PK_OP_CACHE_APPEND, /* (cache STATE (B, H, T, d), new (B, H, n, d), position I32 (1) or (B)) -> the cache,
                           in place, with new at position .. position+n-1. Beyond T: error of the run. A cache
                           of bf16 takes f32, rounded; ATTENTION then takes k, v of bf16 beside q of f32 (no
                           derivative). In a mixed plan all are bf16 */
    /* Optimisers, in place. hyper is (4): {lr, bias correction 1 - b1^t, bias correction 1 - b2^t, first (0
       or 1)}; gate is (2): {factor on the gradient (clipping), apply (0 = leave everything unchanged)}.
       attr.optim: beta1, beta2, eps, weight_decay, lr_mult, momentum, dampening, nesterov, l2, ema, copy. */
    PK_OP_ADAMW, /* (p, g, m, v, hyper, gate [, average] [, copy]) -> p, m, v [, average] [, copy] (in place).
                    golden/README.md 7, decoupled decay first. average <- ema average + (1 - ema) p, of the
                    new p. attr.optim.copy: a STATE of bf16 beside p of f32 becomes the new p, rounded to
                    nearest even (the working copy of a mixed plan; put there by the passes) */
    PK_OP_MSGDW, /* (p, g, m, hyper, gate [, average] [, copy]) -> p, m [, average] [, copy] (in place). timm
                    SGDW: p(1-lr wd); m <- g first, else mu m + (1-dampening) g; p - lr m (nesterov: g + mu
                    m). attr.optim.l2: the decay is part of the gradient, g + wd p, and p is not shrunk */
    PK_OP_ACCUMULATE, /* (sum STATE, x, first (1)) -> the sum in place: x where first is not 0, else sum + x
                       */
    /* Ranks (data parallel; kernels/comm). Every rank runs the same of these nodes in the order in which they
       were built, whether their results are used or not. With one rank both are the identity. */
    PK_OP_ALL_REDUCE, /* (x) dense, f32, f64, bf16 or I32 -> the sum over ranks. attr.ranks.root -1: on every
                         rank; else on that rank alone, elsewhere undefined. Output may share x's memory */
    PK_OP_BROADCAST_RANKS, /* (leaf PARAM or STATE, dense) -> what rank attr.ranks.root has, in place */
    PK_OP_COUNT
};

enum pk_act { PK_ACT_NONE, PK_ACT_GELU /* x Phi(x) */, PK_ACT_GELU_TANH /* gelu_new */, PK_ACT_RELU };
enum pk_sums { PK_SUMS_NONE, PK_SUMS_OUT, PK_SUMS_A, PK_SUMS_B };
enum pk_norm_kind { PK_NORM_LAYER, PK_NORM_RMS };
enum pk_eps_mode { PK_EPS_MEAN, PK_EPS_SUM };
enum pk_phi {
    PK_PHI_SOFTMAX,
    PK_PHI_POLY,
    PK_PHI_SIGMOID,
    PK_PHI_RELU,
    PK_PHI_TAYLOR,   /* f / sum of f over the row, f = 1 + s + s^2 / 2: the exponential to second order */
    PK_PHI_PERIODIC, /* the same with f = sin(s + pi/4)^2: softmax's periodic relative */
    PK_PHI_COUNT
};
/* Whether rows of A are divided by their sum. */
static inline bool pk_phi_normalised(enum pk_phi phi)
{
    return phi == PK_PHI_SOFTMAX || phi == PK_PHI_TAYLOR || phi == PK_PHI_PERIODIC;
}

/* Order of the products of attention. LINEAR never forms q k^T: with features F(x) of degree p, <F(q), F(k)>
 * = (q k)^p, it is F(q) (F(k)' v), by chunks when causal (engine.md 8): exact but for rounding. It exists for
 * poly of degree 1 and 2 without logit bias, bias tensor, windows and dropout; causal needs Nq = Nk and no
 * length. AUTO: the back end takes what it has measured to be faster. */
enum pk_form { PK_FORM_AUTO, PK_FORM_QUADRATIC, PK_FORM_LINEAR };

/* Instructions of EXPR, on a stack of values per element. */
enum pk_ex {
    PK_EX_IN,    /* push input arg */
    PK_EX_CONST, /* push imm */
    PK_EX_DUP,   /* push the value `arg` below the top again (0 = top) */
    PK_EX_ADD,
    PK_EX_SUB,
    PK_EX_MUL,
    PK_EX_DIV,
    PK_EX_MAX,
    PK_EX_MIN,
    PK_EX_GT,     /* a > b ? 1 : 0; derivative 0 */
    PK_EX_EQ,     /* a == b ? 1 : 0; derivative 0 */
    PK_EX_SELECT, /* pops c, b, a (c on top): c != 0 ? a : b */
    PK_EX_NEG,
    PK_EX_ABS,
    PK_EX_EXP,
    PK_EX_LOG,
    PK_EX_SQRT,
    PK_EX_RSQRT,
    PK_EX_RECIP,
    PK_EX_TANH,
    PK_EX_ERF,
    PK_EX_SIGMOID,
    PK_EX_SIN,
    PK_EX_COS,
    PK_EX_POW,       /* integer power arg >= 0 by repeated multiplication; x^0 = 1 also at 0 */
    PK_EX_GELU,      /* x Phi(x) */
    PK_EX_DGELU,     /* its derivative Phi(x) + x phi(x) */
    PK_EX_GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    PK_EX_DGELU_TANH,
    PK_EX_FINITE, /* 1 if finite, else 0 */
    PK_EX_COUNT
};

#define PK_EXPR_MAX 48   /* instructions of one program: longer chains are split */
#define PK_EXPR_STACK 16 /* deepest stack */
#define PK_EXPR_INPUTS 12

struct pk_expr {
    int32_t count;
    struct {
        uint8_t op; /* enum pk_ex */
        uint8_t arg;
        double imm;
    } code[PK_EXPR_MAX];
};

struct pk_attention_attr {
    enum pk_phi phi;
    int32_t degree;   /* p >= 1, for PK_PHI_POLY */
    double tau;       /* factor on q k^T, usually 1/sqrt(d) */
    double scale;     /* constant c; multiplies phi. With a scale input: A = (scale * c_h) phi */
    double bias;      /* added to tau q k^T before phi (sigmoid_bias: -ln n); 0 otherwise */
    double row_power; /* r: row i of A is divided by n^r, n = the keys that a causal row sees without masks, i
                         + 1 + Nk - Nq (Nk: or length), at least 1. Only causal, and not where rows are
                         normalised */
    double dropout;   /* rate on A, with has_rng */
    uint32_t stream;
    enum pk_form form;
    bool causal, packed;
    bool has_scale, has_bias, has_mask, has_length, has_rng;
};

/* F of ATTENTION_STATE. */
static inline int64_t pk_attention_features(int32_t degree, int64_t d)
{
    return degree == 1 ? d : d * (d + 1) / 2;
}

/* NULL if this attention has a linear order, else why not ("needs ..."). mask_rank 0: no mask. Here, because
 * back ends take no symbols from the program. */
static inline const char *pk_attention_not_linear(const struct pk_attention_attr *a, int64_t nq, int64_t nk,
                                                  int32_t mask_rank)
{
    if (a->phi != PK_PHI_POLY || a->degree < 1 || a->degree > 2)
        return "needs x^1 or x^2";
    if (a->bias != 0.0 || a->has_bias)
        return "allows no bias on the logits";
    if (a->has_rng && a->dropout > 0.0)
        return "allows no dropout on A";
    if (mask_rank == 3)
        return "allows no mask of windows";
    if (a->causal && (a->has_length || nq != nk))
        return "is causal only for as many queries as keys, all in use";
    return NULL;
}

struct pk_attr {
    struct pk_shape shape; /* of RESHAPE, BROADCAST, FILL; rank 0 otherwise */
    union {
        struct {
            int32_t axis[PK_MAX_RANK];
        } permute;
        struct {
            int32_t axis;
            int64_t start, extent;
        } slice;
        struct {
            enum pk_dtype dtype;
        } copy;
        struct {
            enum pk_dtype dtype;
            double value;
        } fill;
        struct {
            int32_t axis;
        } concat;
        struct {
            int32_t axis;
            int64_t start, extent;
        } pad;
        struct {
            int64_t classes;
            enum pk_dtype dtype;
        } one_hot;
        struct {
            int64_t rows;
        } scatter_add;
        struct pk_expr *expr; /* owned by the graph */
        struct {
            uint32_t axes;
            bool keep;
        } reduce;
        struct {
            bool has_bias, has_residual;
            bool keeps, slope;
            enum pk_act act;
            enum pk_sums sums;
        } matmul;
        struct {
            double rate;     /* 0 <= rate < 1 */
            uint32_t stream; /* below 2^31; one of its own for each place in a network */
            bool samples;
        } dropout;
        struct {
            enum pk_norm_kind kind;
            enum pk_eps_mode eps_mode;
            double eps;
            bool has_beta;
            bool has_residual, again; /* of NORM_BWD */
        } norm;
        struct {
            double smoothing;
            int32_t ignore;
            bool mean; /* of CROSS_ENTROPY_GRAD, as is width; 0: C */
            int64_t width;
        } cross_entropy;
        struct pk_attention_attr attention;
        struct {
            double beta1, beta2, eps, weight_decay, lr_mult, momentum, dampening, ema;
            bool nesterov, l2, copy;
        } optim;
        struct {
            int32_t root;
        } ranks;
    };
};

/* clang-format on */

/* "matmul", "attention_bwd", ...; static. */
const char *pk_op_name(enum pk_op op);
