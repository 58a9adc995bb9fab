/* kernels/graph/op/op.h: the attributes of the ops. ops.def lists the ops with inputs, outputs and formulas; their
 * numbers are generated from it.
 *
 * Both are the contract between the graph (which builds and differentiates nodes), the
 * back ends (which run them) and the models. Views (RESHAPE .. BROADCAST) never reach a back
 * end: they only change shape and strides. Every float op works in f32 and in f64; sums are
 * taken in a fixed order, so results are bitwise equal from run to run and for any number of
 * threads. Indices and masks are I32 and U8. Shapes below: B batch, H heads, N tokens, d head
 * dimension, D width. "dense" means row-major without gaps; inputs that are not called dense may be
 * strided views. Outputs are always dense.
 *
 * The executor simplifies calls before a back end receives them: every input of EXPR has the output's shape (a
 * repeated axis has stride 0), and a and b of MATMUL have the leading axes of the output, likewise with stride 0.
 * If all leading axes fold into the rows, then a, residual or pre, and the outputs are matrices.
 *
 * Mixed precision: a pass after differentiation may narrow activations and the weights' working copies to
 * bf16. In the calls of such a plan each float view is f32 or bf16, independently of the others; arithmetic,
 * statistics and sums stay f32. Never narrowed: leaves, inputs and outputs of optimisers except the gradient,
 * rstd, mean, lse, the sums of attention, scale, bias, dscale, dbias, dgamma, dbeta, loss_sum, dloss_sum,
 * count, correct, every output of SUMSQ, SUM, MAX, SCATTER_ADD and ATTENTION_STATS, and every value that a node of
 * an exact region reads or writes (pk_graph_exact). One type each have: a and b of MATMUL; its residual, pre, saved
 * pre-activation and output (a bias that is a parameter is f32, and so are sums); q, k, v, y, dy, dq, dk and dv of
 * one attention; logits and dlogits. The state of ATTENTION_STATE is f32 even if q, k, v are bf16. The CPU back end
 * computes all of this by widening: slow, and the definition.
 *
 * Notation and formulas: kernels/ATTENTION.md (sections 1, 2, 6, 7, 10). */
#pragma once

#include "kernels/graph/phi.h"
#include "kernels/graph/tensor.h"

/* clang-format off: tables */
#define PK_OP(OP, name) PK_OP_##OP,
enum pk_op {
#include "kernels/graph/op/ops.def"
    PK_OP_COUNT
};
#undef PK_OP

enum pk_act { PK_ACT_NONE, PK_ACT_GELU /* x Phi(x) */, PK_ACT_GELU_TANH /* gelu_new */, PK_ACT_RELU };
enum pk_sums { PK_SUMS_NONE, PK_SUMS_OUT, PK_SUMS_A, PK_SUMS_B };
enum pk_norm_kind { PK_NORM_LAYER, PK_NORM_RMS };
enum pk_eps_mode { PK_EPS_MEAN, PK_EPS_SUM };

/* Order of the products of attention. LINEAR never forms q k^T: with features F(x) of degree p, <F(q), F(k)>
 * = (q k)^p, it is F(q) (F(k)' v), by chunks when causal (kernels/ENGINE.md 8): exact up to rounding. It
 * exists for poly of degree 1 and 2 without logit bias, bias tensor, windows and dropout; causal needs Nq =
 * Nk and no length. AUTO: the back end takes the form that it has measured to be faster. */
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

#define PK_CONV_STRIDE_MAX 8 /* of CONV2D */

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
    int32_t degree;   /* p >= 1, of powers (pk_phi_power) */
    double tau;       /* factor on q k^T, usually 1/sqrt(d) */
    double scale;     /* constant c; multiplies phi. With a scale input: A = (scale * c_h) phi */
    double bias;      /* added to tau q k^T before phi (sigmoid_bias: -ln n); 0 otherwise */
    double row_power; /* r: row i of A is divided by n^r, n = max(1, i + 1 + Nk - Nq), with `length` in place
                         of Nk if there is one: the keys that a causal row sees without masks. Only for
                         causal rows that are not normalised */
    double dropout;   /* rate on A, with has_rng */
    uint32_t stream;
    enum pk_form form;
    bool causal, packed;
    bool has_scale, has_bias, has_mask, has_length, has_rng;
};

struct pk_formula_plan; /* kernels/formula/formula.h */

/* Of `attention` the fields tau, dropout, stream, causal, packed and has_ are used (has_scale: scalars are an input);
 * its phi is of the kind ALONE for every formula. */
struct pk_formula_attr {
    struct pk_attention_attr attention; /* stays first: kernels read it as attr.attention too */
    const struct pk_formula_plan *plan; /* owned by the graph */
    double n;                           /* N of the scale */
    double layer, layers;
};

/* Number of features F of ATTENTION_STATE. */
static inline int64_t pk_attention_features(int32_t degree, int64_t d)
{
    return degree == 1 ? d : d * (d + 1) / 2;
}

/* NULL if this attention has a linear form, else why not ("needs ..."). mask_rank 0: no mask. Inline, because back
 * ends take no symbols from the program. */
static inline const char *pk_attention_not_linear(const struct pk_attention_attr *a, int64_t nq, int64_t nk,
                                                  int32_t mask_rank)
{
    if (!pk_phi_power(a->phi) || a->degree < 1 || a->degree > 2)
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
    struct pk_shape shape; /* of RESHAPE, BROADCAST, FILL, CONST; rank 0 otherwise */
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
            enum pk_dtype dtype;
            const void *bytes; /* owned by the graph */
        } constant;
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
            bool flow; /* MAX: has a derivative */
        } reduce;
        struct {
            bool has_bias, has_residual;
            bool keeps, slope;
            enum pk_act act;
            enum pk_sums sums;
        } matmul;
        struct {
            double rate;     /* 0 <= rate < 1 */
            uint32_t stream; /* below 2^31; different for each dropout of a network */
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
            bool mean;     /* CROSS_ENTROPY_GRAD */
            int64_t width; /* CROSS_ENTROPY_GRAD; 0: C */
        } cross_entropy;
        struct pk_attention_attr attention;
        struct pk_formula_attr formula;
        struct {
            double beta1, beta2, eps, weight_decay, lr_mult, momentum, dampening, ema;
            bool nesterov, l2, copy, cycled;
        } optim;
        struct {
            int32_t root;
        } ranks;
        struct {
            int32_t stride, pad; /* of both axes; DWCONV2D: stride 1, padded to the same size */
            int64_t extent[2];   /* of CONV2D_DX: H and W of x; of the derivatives by the kernel: kh and kw */
            bool flip;           /* of DWCONV2D */
        } conv;
    };
};

/* clang-format on */

/* "matmul", "attention_bwd", ...; static. */
const char *pk_op_name(enum pk_op op);
