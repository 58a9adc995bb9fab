/* daemon/worker/model/model.h: networks, their parameters and the graphs over them.
 *
 * A model_spec holds the hyperparameters of a network; a model adds the table of its parameters. One model yields
 * several graphs over the same parameters (bound by name, see pk_exec_bind): training (loss, gradients and optimiser in
 * one graph), evaluation, probe (norms of attention), inference for classifiers, prefill and decode for language
 * models. Parameters have the names and layouts of timm (ViT) and Hugging Face GPT-2 (GPT), see
 * tests/golden/README.md. Extensions: `<attention>.attn_scale` [1] or [heads], a learned scale; with scale_param log
 * or softplus the stored number is rho (`attn_scale_rho`), c = exp(rho) or log(1 + exp(rho)); scale_share
 * global has one `attn_scale` for the whole model; `<attention>.q_norm.weight`, `k_norm`; InputNorm
 * `norm_pre` or `transformer.ln_in`; MidNorm `mid1`, `mid2` or `mid_1`, `mid_2`. Mean pooling follows timm:
 * no cls_token, pos_embed [1,n,D], the norm after the mean is `fc_norm`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/model/arch/networks.h"
#include "kernels/backend/backend.h"
#include "kernels/base/err.h"
#include "kernels/formula/formula.h"
#include "kernels/graph/graph.h"

struct job_config;
struct data_info;
struct data_st;
struct data_st_meta_item;
struct data_st_tensor;

/* A network: daemon/worker/model/arch. */
struct model_arch;
#define MODEL_EXTERN(name) extern const struct model_arch model_##name;
MODEL_NETWORKS(MODEL_EXTERN) /* model_vit, model_gpt, ... */
#undef MODEL_EXTERN

enum model_pool { MODEL_POOL_CLS, MODEL_POOL_MEAN };
enum model_scale { MODEL_SCALE_NONE, MODEL_SCALE_FIXED, MODEL_SCALE_K, MODEL_SCALE_LEARNED };
enum model_share { MODEL_SHARE_LAYER, MODEL_SHARE_HEAD, MODEL_SHARE_GLOBAL };
enum model_scale_param { MODEL_PARAM_DIRECT, MODEL_PARAM_LOG, MODEL_PARAM_SOFTPLUS };
/* Placement of the norms in a block (kernels/ATTENTION.md 10); POST is x = P(x + f(x)), for comparison. */
enum model_placement { MODEL_S1, MODEL_S2, MODEL_S3, MODEL_S4, MODEL_S5, MODEL_POST };
/* Form of the input images: normalised, bytes, or numbers in 0..1. The graph normalises the last two to
 * (byte / 255 - mean) / std of the channel. */
enum model_pixels { MODEL_PIXELS_READY, MODEL_PIXELS_BYTES, MODEL_PIXELS_UNIT };
enum model_init {
    MODEL_INIT_TRUNC_NORMAL,
    MODEL_INIT_NORMAL,
    MODEL_INIT_XAVIER,
    MODEL_INIT_TRUNC_XAVIER,
    MODEL_INIT_KAIMING /* uniform within 1 / sqrt(fan in): PyTorch's default of linear layers */
};
/* Start of the iteration for the pseudo-inverse of landmark attention: the transpose of F divided by the product of the
 * largest absolute column sum and row sum, of each matrix (MATRIX_ABS) or over the batch (GLOBAL_ABS); or divided by the
 * largest signed column sum over the batch (GLOBAL_COLSUM), for matrices whose rows are probabilities. */
enum model_pinv { MODEL_PINV_MATRIX_ABS, MODEL_PINV_GLOBAL_ABS, MODEL_PINV_GLOBAL_COLSUM };
/* The activation of the three matrices of landmark attention: phi with one factor for all; phi for the outer two and
 * softmax for the middle one; phi with a factor for each. */
enum model_apply { MODEL_APPLY_ALL, MODEL_APPLY_F1F3, MODEL_APPLY_SEPARATE };

#define MODEL_SCALAR_INIT 256 /* bytes of an initial value, with the NUL */

/* A learned scalar of a formula: how modules and heads share it, the trained quantity, and its initial value as a formula
 * of n, h, H, l, L, d. */
enum model_scalar_form { MODEL_SCALAR_DIRECT, MODEL_SCALAR_LOG, MODEL_SCALAR_SOFTPLUS, MODEL_SCALAR_SIGMOID };
struct model_scalar {
    char name[PK_FORMULA_NAME];
    enum model_share share;
    enum model_scalar_form form;
    char init[MODEL_SCALAR_INIT];
};

/* An activation given as a formula (kernels/formula/formula.h); text "": phi is used instead. */
struct model_formula {
    char text[PK_FORMULA_TEXT + 1]; /* as typed */
    /* the scalars described by the document; others have the defaults of daemon/job/JOB.md */
    int32_t scalars;
    struct model_scalar scalar[PK_FORMULA_PARAMS];
};

/* One attention module: phi, its scale, and the treatment of queries and keys. With a formula only n_for_scale,
 * scale_lr_mult, scale_decay, dropout and the norm of queries and keys are used. */
struct model_attention {
    struct model_formula
        formula; /* with a text: of what follows n_for_scale, scale_lr_mult, scale_decay, dropout and
                                     the norm of queries and keys count */
    enum pk_phi phi;
    int32_t degree;
    enum model_scale scale;
    double n_for_scale; /* N of the scale, resolved */
    double scale_value; /* constant c, or initial value c0 of a learned scale */
    bool l1_tokens;     /* SimA: q and k divided by their l1 norms over tokens; phi is poly of degree 1 */
    enum pk_form form;  /* order of the products */
    double row_power;   /* causal attention: rows are divided by their length to this power */
    double valid_power; /* c of a sequence is multiplied by (N / its tokens without padding) to this power */
    double dropout;     /* of the weights */
    double logit_bias;  /* added to the logits before phi (sigmoid_bias: -ln n) */
    enum model_share share;
    enum model_scale_param scale_param;
    double scale_lr_mult;
    bool scale_decay;
    bool qk_norm;          /* RMSNorm of each head's queries and keys */
    bool qk_per_head;      /* its gains are [heads, d], not [d] */
    double init_logit_std; /* deviation of initial logits, set by the initial W_Q and W_K; < 0: not set */
};

/* The N of an attention module in networks whose modules differ in their number of keys: that of the spec, the keys of a
 * window, or the patches of the stage's grid. */
enum model_count { MODEL_COUNT_SPEC, MODEL_COUNT_WINDOW, MODEL_COUNT_GRID };

#define MODEL_PIXEL_CHANNELS 4 /* most channels that a graph normalises */
#define MODEL_STAGES_MAX 8

struct model_spec {
    const struct model_arch *arch;
    int32_t width, depth, heads, mlp_width;
    bool mlp_relu;  /* ReLU instead of GELU */
    bool gelu_tanh; /* the tanh approximation of GELU (Hugging Face's gelu_new); else the exact GELU */
    bool bias;      /* of linear layers and LayerNorms; RMSNorm has none */
    bool final_norm;
    int32_t classes; /* of images or of whole texts; 0: the network predicts the next token */
    enum pk_norm_kind norm_kind;
    enum pk_eps_mode norm_eps_mode;
    double norm_eps;
    enum model_placement placement;
    bool pos_after; /* with an InputNorm: the position embedding is added after it */
    /* ViT */
    int32_t channels, image_h, image_w, patch_h, patch_w;
    /* chosen by the caller that provides the input; like mean and std not stored in checkpoints */
    enum model_pixels pixels;
    float mean[MODEL_PIXEL_CHANNELS], std[MODEL_PIXEL_CHANNELS];
    enum model_pool pool;
    /* Swin: blocks and heads of each stage, then 0; each stage is twice as wide as the previous one. width, heads,
     * mlp_width and attention are those of the first stage; depth counts all blocks. */
    int32_t stage_depth[MODEL_STAGES_MAX], stage_heads[MODEL_STAGES_MAX];
    int32_t window; /* side in patches */
    enum model_count count;
    /* The scale of a module is N^-count_power of its own N, with scale k the first stage's times the ratio of these powers;
     * 0: the same for all modules. */
    double count_power;
    /* XCiT */
    struct model_attention class_attention; /* of the class layers; `attention` is between channels */
    int32_t class_depth;                    /* number of class layers */
    double layerscale;                      /* initial value of LayerScale; 0: no LayerScale */
    bool class_norm_alone;                  /* the second norm of a class layer covers the class row only */
    bool decay_temperature;                 /* weight decay of the temperatures */
    /* PINNsformer: u(x, t) of an equation, at the points of sequences of `context` points each */
    int32_t equation; /* enum data_equation; 0: none */
    int32_t head_width;
    int32_t grid[2], test_grid[2]; /* points along t, along x; of training, of evaluation */
    double coefficient;            /* beta, rho or c */
    double step;                   /* difference in t between points of a sequence */
    /* Nystromformer */
    int32_t landmarks, conv_kernel, pinv_iterations;
    enum model_pinv pinv_start;
    enum model_apply apply;
    bool zero_pads; /* id 0 is padding at every position */
    bool pairs;     /* a sample is two sequences of at most context / 2 tokens, padded with id 0 */
    /* GPT */
    int32_t vocab, context;
    bool pos;                         /* learned position embedding; XCiT: projected Fourier features */
    struct model_attention attention; /* of every module */
    /* noise of training: rates in [0, 1) */
    double dropout;      /* after embeddings and projections */
    double drop_path;    /* stochastic depth: rate of the last block */
    bool drop_path_same; /* the same rate for every block; else it grows linearly from 0 in the first block */
    /* initial values */
    enum model_init init;
    bool init_fused;     /* Xavier: the fan of W_qkv counts its 3D outputs */
    enum pk_dtype dtype; /* PK_F32, or PK_F64 for reference computations */
    /* Storage of matrices and embeddings in a model that only serves: PK_BF16 halves the memory that decoding reads;
     * arithmetic is f32. Classifiers support it only if `mixed`. PK_F32 (0): dtype. Not stored in checkpoints. */
    enum pk_dtype weights;
    /* Graphs are planned in mixed precision (pk_graph_precision): bf16 activations and caches, f32 parameters and
     * results. Chosen at run time, not stored in checkpoints. */
    bool mixed;
};

/* Derives the spec from a resolved document and the sizes of the data. PD_ERR_UNSUPPORTED: this build cannot do it; the
 * sentence begins with the JSON pointer of the field. */
PD_NODISCARD enum pd_err model_spec_from_config(const struct job_config *config, const struct data_info *data,
                                                struct model_spec *ret, struct pd_why *why);
/* Takes mean and deviation of the spec's channels, at most MODEL_PIXEL_CHANNELS, from the metadata of a checkpoint; 0 and
 * 1 if they are missing. A network without channels is left as it is. False: they are not numbers for these channels, or a
 * deviation is not positive. */
PD_NODISCARD bool model_spec_normalisation(const struct data_st *st, struct model_spec *spec);
/* Checks ranges and divisibility. PD_ERR_INVALID. */
PD_NODISCARD enum pd_err model_spec_check(const struct model_spec *spec, struct pd_why *why);

/* Writes the spec as metadata of a checkpoint ("polyd.model.phi" = "poly", ...), at most MODEL_META_ITEMS items.
 * numbers: writes enumerations as numbers, as checkpoints before 2026-11; model_spec_from_meta reads both forms. The
 * values point into *ret_text, which the caller frees with free. */
#define MODEL_META_ITEMS 116
PD_NODISCARD enum pd_err model_spec_to_meta(const struct model_spec *spec, bool numbers,
                                            struct data_st_meta_item *items, size_t *ret_count,
                                            char **ret_text, struct pd_why *why);
PD_NODISCARD enum pd_err model_spec_from_meta(const struct data_st *st, struct model_spec *ret,
                                              struct pd_why *why);
/* The metadata key of the first setting in which two specs compute different functions of their parameters; NULL: none.
 * Settings that only training or evaluation reads (dropout, how to draw weights, the grids of an equation) are not
 * compared. */
const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b);

enum model_role {
    MODEL_ROLE_MATRIX,
    MODEL_ROLE_EMBED, /* embeddings of tokens and positions, class token */
    MODEL_ROLE_CONV,  /* patch embedding: weight and bias */
    MODEL_ROLE_BIAS,
    MODEL_ROLE_GAIN,
    MODEL_ROLE_BUFFER, /* updated by training but not by the optimiser: a running mean */
    MODEL_ROLE_SCALE   /* learned scale of attention, or its stored parameter rho */
};

/* A distribution: the constant a; normal with standard deviation a, truncated at `limit` deviations (0: not truncated);
 * uniform in [-a, a]. */
struct model_draw {
    enum { MODEL_DRAW_VALUE, MODEL_DRAW_NORMAL, MODEL_DRAW_UNIFORM } kind;
    double a, limit;
};

/* Distributions of the initial values: `first` for the first `outputs` outputs of a matrix (0: none), `rest` for the
 * others. */
struct model_start {
    int64_t outputs;
    struct model_draw first, rest;
    double *list; /* all initial values, owned by the model; NULL: drawn as above */
};

/* Weights of attention and feed-forward layers that experiments compare (DNT paper, figure 1). Networks store W_Q, W_K
 * and W_V as one parameter, in this order. */
enum model_weight {
    MODEL_WEIGHT_Q,
    MODEL_WEIGHT_K,
    MODEL_WEIGHT_V,
    MODEL_WEIGHT_O,
    MODEL_WEIGHT_1,
    MODEL_WEIGHT_2,
    MODEL_WEIGHTS,
    MODEL_WEIGHT_QKV = MODEL_WEIGHTS, /* W_Q | W_K | W_V */
    MODEL_WEIGHT_OTHER
};
/* "w_q", "w_k", ..., "w_2"; static. */
const char *model_weight_name(enum model_weight w);
/* MODEL_WEIGHTS: no weight has that name. */
enum model_weight model_weight_find(const char *name);

struct model_param {
    char name[64];
    struct pk_shape shape;
    enum model_role role;
    bool transposed; /* stored [out, in] (timm); else [in, out] */
    bool factor;     /* operand of matrix products; a mixed plan uses a bf16 copy */
    bool narrow;     /* stored in bf16 if the spec's `weights` is PK_BF16 */
    bool decay;      /* has weight decay */
    double lr_mult;
    bool frozen; /* not trained (model_freeze) */
    bool whole;  /* a count: files have it as I64, those before 2026-12 as a parameter; it is not averaged */
    enum model_weight weight;
    int layer; /* index of its block, from 0; -1: not in a block */
    struct model_start start;
};

struct model;

/* Declares the parameters of a network. The caller owns *ret. PD_ERR_INVALID: model_spec_check fails. */
PD_NODISCARD enum pd_err model_new(const struct model_spec *spec, struct model **ret, struct pd_why *why);
struct model *model_free(struct model *m);
/* Borrowed until model_free. */
const struct model_spec *model_spec(const struct model *m);
/* Freezes the parameters whose names begin with one of the comma-separated prefixes `names` (blanks around a prefix are
 * ignored). Must precede the making of graphs. PD_ERR_INVALID: a prefix matches no parameter, or all parameters would be
 * frozen. */
PD_NODISCARD enum pd_err model_freeze(struct model *m, const char *names, struct pd_why *why);
/* Applies timm's layer-wise decay to the learning rates: multiplies by decay^(blocks + 1 - layer). Block i is layer i + 1;
 * parameters declared before the first block are layer 0, those after the last block are layer blocks + 1. */
void model_layer_decay(struct model *m, double decay);
/* Whether `name` begins with one of the prefixes `names`, see model_freeze; false if `names` is NULL. */
bool model_name_listed(const char *names, const char *name);

/* The table of parameters: trained parameters in the order of the network, then frozen parameters and buffers. */
size_t model_param_count(const struct model *m);
size_t model_trained_count(const struct model *m); /* those that the optimiser changes */
const struct model_param *model_param(const struct model *m, size_t i);
int64_t model_param_elements(const struct model *m); /* of all parameters without buffers */
/* The dtype of parameter i in back-end memory: the model's dtype, or its spec's `weights`. */
enum pk_dtype model_param_dtype(const struct model *m, size_t i);
size_t model_param_bytes(const struct model *m); /* of all entries of the table in back-end memory */

/* The number of attention modules. Indices follow the order of the forward pass; outputs of a probe number them from 1. */
size_t model_attention_count(const struct model *m);
/* Scalar k (in the order of the plan) of the formula of attention module i: its name, its form, and the index of its
 * parameter, whose shape is [1] or [heads]. False: the module has no such scalar. */
bool model_formula_scalar(const struct model *m, size_t i, size_t k, const char **ret_name,
                          enum model_scalar_form *ret_form, size_t *ret_param);
/* The path of module i as in the names of its parameters: "blocks.3.attn". Borrowed until model_free. */
const char *model_attention_path(const struct model *m, size_t i);
/* Attention matrices of module i for one sample and head: its number of windows; 1 without windows. */
int64_t model_attention_windows(const struct model *m, size_t i);
/* Whether the Jacobian by W_Q has the closed form that a probe computes: the logits are x W_Q K^T, without a norm in
 * between. */
bool model_attention_has_jac_q(const struct model *m, size_t i);
/* Whether a probe of full-length sequences has the residual of the module's pseudo-inverse. */
bool model_attention_has_inverse(const struct model *m, size_t i);
/* The settings of module i, borrowed until model_free. *ret_scale: the index of its learned scale's parameter;
 * model_param_count: it has none. */
const struct model_attention *model_attention_at(const struct model *m, size_t i, int32_t *ret_heads,
                                                 size_t *ret_scale);
/* Whether the network reads tokens. */
bool model_reads_tokens(const struct model_spec *s);
/* Whether it reads points: inputs "x" and "t" (points, k), logits u. A network that reads neither reads images. */
bool model_reads_points(const struct model_spec *s);
/* Whether it generates tokens one after the other; a network that reads tokens and does not decode has classes. */
bool model_decodes(const struct model_spec *s);
/* The number of ids that a text may contain: the vocabulary without a class token. */
int32_t model_text_ids(const struct model_spec *s);
/* The equation of the document's data set. */
enum data_equation model_equation(const struct job_config *c);

/* Writes the initial values of parameter i, dense, to host memory of the model's dtype. They depend on the seed and the
 * parameter's name only. */
PD_NODISCARD enum pd_err model_param_init(const struct model *m, size_t i, uint64_t seed, void *to,
                                          struct pd_why *why);
/* Reads every parameter from a file and calls fn with host memory of the model's dtype. Names are exact, or Hugging Face
 * names without `transformer.`; `phi_scale` is read as `attn_scale`. Mask buffers, a tied lm_head.weight and the tensors
 * `optim.` and `ema.` are skipped; any other unknown or missing tensor is an error. averaged: reads the `ema.` tensors
 * instead. An error of fn ends the call and is returned. */
PD_NODISCARD enum pd_err model_params_read(const struct model *m, const struct data_st *st, bool averaged,
                                           enum pd_err (*fn)(void *user, size_t i, const void *data,
                                                             size_t bytes, struct pd_why *why),
                                           void *user, struct pd_why *why);

/* ---- files of other programs ---- */

/* Role of a file's tensor, by its exact name or by a name that public files use for it. */
enum model_tensor {
    MODEL_TENSOR_UNKNOWN,
    MODEL_TENSOR_PARAM,   /* parameter *ret_i */
    MODEL_TENSOR_REPEATS, /* a tied head, which must equal parameter *ret_i */
    MODEL_TENSOR_IGNORED  /* not a parameter: a mask, an optimiser's state */
};
enum model_tensor model_tensor_of(const struct model *m, const char *name, size_t *ret_i);

#define MODEL_TENSOR_NAME 192 /* bytes for a tensor's name */
/* A tensor that occurs only in public files with the network's alternative names (timm's of Swin and XCiT differ from the
 * authors'); static. NULL: the network has one set of names. */
const char *model_respelt_marker(const struct model_spec *s);
/* Part `at` of `of` equal parts along axis 0. */
#define MODEL_PARTS_MAX 3
struct model_part {
    int at, of;
};
#define MODEL_WHOLE ((struct model_part){0, 1})
/* Translates an alternative name to the network's own name, and returns which part of that tensor it names; other names
 * are copied. */
struct model_part model_respelt_name(const struct model_spec *s, const char *name,
                                     char out[MODEL_TENSOR_NAME]);

/* Derives the spec of a document without its data set: classes, channels and vocabulary come from the extents of the
 * tensors that `find` returns (NULL: no tensor has that name). mean, std: normalisation of the channels; NULL: the
 * default (data_normalisation). */
PD_NODISCARD enum pd_err
model_spec_from_tensors(const struct job_config *config, const float *mean, const float *std,
                        const struct data_st_tensor *(*find)(void *user, const char *name), void *user,
                        struct model_spec *ret, struct pd_why *why);

/* ---- graphs; each function returns a checked graph that the caller owns ---- */

/* The in-place update of one parameter; the states are in the order of the optimiser's table. */
#define MODEL_STATES_MAX 2
struct model_update {
    struct pk_val param, grad, state[MODEL_STATES_MAX];
    struct pk_val hyper, gate;
    struct pk_optim_spec spec;
};

/* An optimiser as a training graph uses it; daemon/worker/train/optim defines them. */
struct model_optimiser {
    const char *name; /* as in the document and in checkpoints */
    int states;       /* states of each parameter */
    struct {
        const char *prefix; /* prefix of the state's name, such as "m/" */
        enum pk_category category;
    } state[MODEL_STATES_MAX];
    void (*update)(struct pk_graph *g, const struct model_update *u);
};

/* The rows that a loss is computed over. */
struct model_rows {
    struct pk_val logits;
    /* Mixed images: row i has target i with weight share[i] and target partner[i] (I32) with weight 1 - share[i], both
     * of shape (rows). PK_NONE: row i has target i only. */
    struct pk_val share, partner;
    /* Networks that read points: the inputs "x" and "t" (points, k); u (points, k) may be differentiated by them. */
    struct pk_val x, t;
    const struct model_spec *spec;
    /* derivatives are tangents of a shift of the whole sequence; else gradients of the sum over the sequence */
    bool shift;
    /* (rows) of the model's dtype: 1 for rows that count, else 0; set by the loss */
    struct pk_val valid;
};

/* Columns of the input "mix" (batch, MODEL_MIXES), one row per image: the weight of its own label, and the weight of the
 * partner's pixels inside a rectangle (rows top to bottom - 1, columns left to right - 1). Mixup (arXiv:1710.09412) has
 * weight 1 - share for all pixels, cutmix (arXiv:1905.04899) weight 1 inside a smaller rectangle. */
enum {
    MODEL_MIX_SHARE,
    MODEL_MIX_WEIGHT,
    MODEL_MIX_TOP,
    MODEL_MIX_BOTTOM,
    MODEL_MIX_LEFT,
    MODEL_MIX_RIGHT,
    MODEL_MIXES
};

/* The loss and metrics of a task (daemon/worker/task): sums over the rows of the logits (arch.h), with the inputs that the
 * task declares. The mean loss is the first sum divided by the second. */
#define MODEL_SUMS_MAX 8
struct model_loss {
    const char *sum[MODEL_SUMS_MAX + 1]; /* names of the sums, static, NULL-terminated */
    /* Emits the sums, each (1), in the order of the names. */
    void (*emit)(struct pk_graph *g, struct model_rows *rows, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX]);
    /* The same for an evaluation of `batch` samples, with further outputs for the task; NULL: `emit` is used. */
    void (*emit_eval)(struct pk_graph *g, const struct model_spec *spec, struct pk_val logits, int32_t batch,
                      struct pk_val ret[MODEL_SUMS_MAX]);
};

/* Distillation (arXiv:2012.12877): the distillation head of a network learns the teacher's outputs for the same images;
 * alpha is the weight of this term in the loss. hard: cross-entropy with the class of the teacher's largest logit. soft:
 * tau^2 times the mean over classes of P_t (log P_t - log P_s), P = softmax(logits / tau). */
struct model_distil {
    /* of the student's dtype; NULL: the input "teacher" (batch, classes) has the teacher's logits */
    const struct model *teacher;
    bool soft;
    double alpha, tau;
};
/* Writes the name of the state that holds parameter i of a teacher; the caller binds it (model_store_bind_teacher). */
void model_teacher_name(const struct model *teacher, size_t i, char *out, size_t size);
/* Whether a leaf of a graph is such a state. */
bool model_teacher_named(const char *leaf);
/* The number of sums. */
size_t model_loss_sums(const struct model_loss *l);
/* Most numbers of a step's output "report". */
#define MODEL_REPORT_MAX (MODEL_SUMS_MAX + 5)

struct model_train_options {
    const struct model_loss *loss;
    const struct model_distil *distil; /* NULL: no teacher */
    /* Images are mixed within groups of this many, image i with image mix_group - 1 - i of its group; input "mix". It
     * divides `batch`. 0: images are not mixed. */
    int32_t mix_group;
    /* Input images are normalised, of the model's dtype, whatever the spec's `pixels` says. */
    bool ready;
    int32_t batch;
    int32_t context; /* GPT: sequence length of training, <= spec.context */
    bool shift;      /* of points: see model_rows */
    double label_smoothing;
    double clip_norm; /* 0 = none */
    const struct model_optimiser *optimizer;
    double beta1, beta2, eps;
    bool cycled; /* AdamW: beta1 is an input of each step, hyper[3] */
    double momentum, dampening;
    bool nesterov;
    double weight_decay;
    double ema; /* decay of the averaged weights; 0: no averages */
    /* optimisers with a line search: pairs of the history plus one; else 0 */
    int32_t line_rows;
    int32_t line_numbers; /* and further numbers of their state */
    /* Data-parallel training on `ranks` ranks (0 or 1: one process). `batch` is this rank's share. Gradients, counts and
     * losses are summed over all ranks; "rng" is I32 (4) with the rank as last element, so that dropout masks equal those
     * of the whole batch. */
    int32_t rank, ranks;
    bool zero; /* ZeRO-1: the owner of a parameter alone stores its moments and broadcasts its new value */
    /* In mixed precision, without `zero`: matrices have working copies in bf16, the states "half/<param>"
     * (model_copy_name). Updates write them and the next step reads them (pk_working_copy). A caller that sets parameters
     * fills the copies (model_store_round). The graphs `part` and `apply` share them. */
    bool copies;
    /* A step may be enqueued before the host knows whether the previous step was applied: "hyper" is (2, 4), row 1 if it
     * was applied, row 0 if not; the state MODEL_APPLIED (1) selects the row on the device. */
    bool ahead;
};
#define MODEL_APPLIED "applied_last"

/* The rank that stores the moments of parameter i under ZeRO-1. Whole tensors, the largest first, go to the rank with the
 * fewest elements. A pure function. */
int32_t model_param_owner(const struct model *m, size_t i, int32_t ranks);

/* Makes the graph of a training step: loss, gradients and update.
 *
 * Inputs: "input" (images (B, C, H, W) in the form of the spec's `pixels`, or tokens I32 (B, T)); "last" for texts with
 * classes (arch.h); the inputs of the loss; "hyper" (4) as in op.h, with `ahead` (2, 4); with noise "rng" I32 (3), see
 * pk_dropout.
 * States: those of the optimiser ("m/<param>"); with ema "ema/<param>", also for buffers; the caller sets them to the
 * initial values.
 * Outputs, of the model's dtype: "loss" (1), the first sum of the loss divided by the second; the other sums by name;
 * "grad_norm"; "applied" (1: the step was applied; 0: loss or gradient is not finite and no parameter or buffer has
 * changed); "report" (sums + 2): all of these in this order, for one read.
 * grads: no optimiser; the outputs are "grad/<param>", "logits" and "next/<buffer>" (the buffer's next value) instead,
 * with a distillation head also "logits/own" and "logits/distilled". */
PD_NODISCARD enum pd_err model_graph_train(const struct model *m, const struct model_train_options *o,
                                           bool grads, struct pk_graph **ret, struct pd_why *why);
/* Gradient accumulation: the same step in parts, for batches larger than memory; o->batch is the batch of one part.
 * `part` adds its gradient to the states "sum/<param>" and the sums of the loss to "sum/loss"; a non-zero input "first"
 * (1) resets them, for the first part of a step. Buffers accumulate in the states "next/<buffer>" and are updated with
 * the step. `apply` takes the step; its outputs and other states are those of model_graph_train. The result equals the
 * step of the whole batch up to the order of sums and the noise, which each part draws separately. */
PD_NODISCARD enum pd_err model_graph_part(const struct model *m, const struct model_train_options *o,
                                          struct pk_graph **ret, struct pd_why *why);
PD_NODISCARD enum pd_err model_graph_apply(const struct model *m, const struct model_train_options *o,
                                           struct pk_graph **ret, struct pd_why *why);
/* ---- optimisers with a line search (daemon/worker/train/optim/lbfgs.c) ----
 *
 * All trained parameters form one vector x. These graphs share the states "line/x", "line/g" (the last gradient) and, with
 * the prefix MODEL_LINE_SAVED, d (the direction), g (the gradient that d was computed from), s and y (o->line_rows
 * pairs). */
#define MODEL_LINE_SAVED "lbfgs/"
#define MODEL_LINE_NUMBERS                                                                                   \
    MODEL_LINE_SAVED "numbers"     /* F64 (line_numbers): a state that only the host reads */
#define MODEL_LINE_ALONG "along"   /* input (1): t */
#define MODEL_LINE_ROW "row"       /* input I32 (1) */
#define MODEL_LINE_SHARES "shares" /* input (1, 2 rows + 1): coefficients of s, of y, of the last gradient */
int64_t model_line_length(const struct model *m); /* of the vectors, including padding between parameters */
/* Elements of "report" after the sums of the loss. */
enum {
    MODEL_LINE_NORM,    /* 2-norm of the gradient */
    MODEL_LINE_FINITE,  /* 1: loss and gradient are finite */
    MODEL_LINE_SLOPE,   /* gradient . d */
    MODEL_LINE_LARGEST, /* max norm of the gradient */
    MODEL_LINE_SUM,     /* 1-norm of the gradient */
    MODEL_LINE_NUMBERS_OF_POINT
};
/* Loss and gradient at x + t d. Inputs: those of model_graph_train without "hyper", and t. Changes no parameter. */
PD_NODISCARD enum pd_err model_graph_line(const struct model *m, const struct model_train_options *o,
                                          struct pk_graph **ret, struct pd_why *why);
/* Sets row `row` of s to t d, and of y to the last gradient minus g. Output "products" (2 rows, 3): inner products of
 * every row of s, then of y, with the new y, the last gradient and the new s. */
PD_NODISCARD enum pd_err model_graph_line_pair(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
/* Sets d to the linear combination of the rows of s and y and of the last gradient with the coefficients "shares", and g
 * to the last gradient. Output "direction" (2): d . gradient, max norm of d. */
PD_NODISCARD enum pd_err model_graph_line_direct(const struct model *m, const struct model_train_options *o,
                                                 struct pk_graph **ret, struct pd_why *why);
/* `move` sets the parameters to x + t d; `load` sets x to the parameters. */
PD_NODISCARD enum pd_err model_graph_line_move(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
PD_NODISCARD enum pd_err model_graph_line_load(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
/* The gradient of the training loss for diagnostics, without noise and mixing. Inputs: those of model_graph_part without
 * "rng". States: "sum/<param>" and "sum/loss", which a non-zero "first" resets. o->batch is the batch of one part; of the
 * other options only loss, label_smoothing, distil, ready and context are used. Buffers are read as in evaluation. */
PD_NODISCARD enum pd_err model_graph_gradient(const struct model *m, const struct model_train_options *o,
                                              struct pk_graph **ret, struct pd_why *why);
/* Block 0 with its InputNorm alone: inputs "h" (B, N, D) and "gy" (B, N, D); outputs "y", "dh", "grad/<param>". */
PD_NODISCARD enum pd_err model_graph_block(const struct model *m, int32_t batch, int32_t tokens, bool causal,
                                           struct pk_graph **ret, struct pd_why *why);
/* Evaluation. Inputs: "input", "last" for texts with classes, and those of the loss. Outputs: "logits", and the sums of
 * the loss, each (1), by name. */
PD_NODISCARD enum pd_err model_graph_eval(const struct model *m, const struct model_loss *loss, int32_t batch,
                                          int32_t context, struct pk_graph **ret, struct pd_why *why);
/* The attention matrices selected for heat maps: layers (attention modules) and heads, both from 1; an empty list: all.
 * The lists are borrowed. */
struct model_maps {
    const int64_t *layers, *heads;
    size_t layer_count, head_count;
    int64_t times; /* runs of the graph; bounds the memory stored for all of them */
};
/* Whether layer `layer` and head `head` (from 1) are selected. */
bool model_maps_has(const struct model_maps *maps, int64_t layer, int64_t head);
#define MODEL_MAP_BINS 64           /* bins of a histogram of logits */
#define MODEL_MAP_TOKENS 1024       /* largest extent of a matrix */
#define MODEL_MAP_BYTES (1ll << 30) /* bytes of all matrices of a run, as f32 */
#define MODEL_MAP_HEADS 100000      /* heads times pictures of a run */
#define MODEL_MAP_COUNT 16777216    /* logits of one head over the batch; f32 counts exactly up to here */
/* Heat maps. Inputs: "input", and "last" for texts with classes. Outputs for each selected layer l and head h, over all
 * samples of the batch, in the model's dtype:
 *   "map/<l>/<h>" (N, N)      mean of A, queries by keys
 *   "abs/<l>/<h>" (N, N)      mean of |A|
 *   "softmax/<l>/<h>" (N, N)  mean of the softmax of the same logits over the same keys; absent if A is softmax
 *   "reach/<l>/<h>" (1)       the largest |logit| of a visible key, r
 *   "logits/<l>/<h>" (MODEL_MAP_BINS + 1)  counts of visible logits in equal bins from -r to r; last: hidden
 *   "entropy/<l>/<h>" (1)     mean over rows of the entropy of |A| divided by its sum, in nats
 *   "rank/<l>/<h>" (1)        mean over samples of (sum s^2)^2 / sum s^4, s the singular values of A
 * PD_ERR_INVALID: the network has no such layer or head, or the matrices are too large; the sentence begins with a pointer
 * into /diagnostics. */
PD_NODISCARD enum pd_err model_graph_maps(const struct model *m, const struct model_maps *maps, int32_t batch,
                                          int32_t context, struct pk_graph **ret, struct pd_why *why);
/* The grid of patches of a picture; `lead` tokens that are not patches precede them. rows is 0 if the network reads
 * tokens. */
struct model_grid {
    int32_t rows, columns, lead;
};
/* Meaning of the rows (queries) and columns (keys) of an attention matrix. */
enum model_axis {
    MODEL_AXIS_TOKENS,    /* tokens of the picture, of a window of it, or of the sequence */
    MODEL_AXIS_CLASS,     /* one query, the class token; the keys are all tokens */
    MODEL_AXIS_CHANNELS,  /* channels of a head */
    MODEL_AXIS_LANDMARKS, /* means of tokens */
};
enum model_axis model_attention_axis(const struct model *m, size_t i);
/* Whether attention is causal: a token does not attend to later ones. */
bool model_is_causal(const struct model *m);
struct model_grid model_grid(const struct model *m);
/* Number of blocks whose activations a probe reports. */
size_t model_block_count(const struct model *m);
/* Probe. Input "input"; outputs "fro/<l>", "jac_fro/<l>", "jac_q_fro/<l>", "logit_std/<l>", "logit_max/<l>", each (B, H),
 * l from 1, and "act_rms/<b>" (1) for each block b from 1: the root mean square of its output. With qk_norm jac_q_fro is
 * not the Jacobian by W_Q and must not be shown: it treats the normalised queries as outputs of W_Q. For landmark
 * attention the statistics are those of the matrix F between landmarks, and "residual/<l>" (1) is |F F+ F - F| / |F| over
 * the batch for its pseudo-inverse F+. lead = false excludes tokens that are not patches (model_grid) from A, S and
 * dA/dS. */
PD_NODISCARD enum pd_err model_graph_probe(const struct model *m, int32_t batch, int32_t context, bool lead,
                                           struct pk_graph **ret, struct pd_why *why);
/* Inference without decoding. Images: input "input" (B, C, H, W) in the form of the spec's `pixels`; texts: "input"
 * (B, context) and "last"; output "logits" (B, classes). Networks that read points: inputs "x" and "t" (B, context),
 * output "logits" (B, 1), u at the first point of each sequence. */
PD_NODISCARD enum pd_err model_graph_classify(const struct model *m, int32_t batch, int32_t context,
                                              struct pk_graph **ret, struct pd_why *why);
/* Language model with key/value cache: `count` new tokens per sequence (prefill: a bucket; decode: 1).
 * Inputs: "input" I32 (B, count); "pos" I32 (B, count): position of each token, 0..context-1; "position" I32 (B): that of
 * the first token; "length" I32 (B): position + count; "pick" I32 (B): the flat row b * count + i whose logits are
 * output. States "cache_k/<l>", "cache_v/<l>" (B, heads, cache, d; bf16 if mixed), l from 0, shared by all buckets of the
 * same B and cache. Output "logits" (B, vocab). A prompt shorter than its bucket is padded on the right with any valid id
 * and position; the padding's cache entries lie beyond the prompt, no real row attends to them, and decoding overwrites
 * them. The caller ensures position + count <= cache; otherwise the run fails with PD_ERR_INVALID. */
PD_NODISCARD enum pd_err model_graph_decode(const struct model *m, int32_t batch, int32_t count,
                                            int32_t cache, struct pk_graph **ret, struct pd_why *why);

/* Whether a language model can decode with a state of constant size: attention x or x^2 without a bias on logits. */
bool model_has_state(const struct model_spec *s);
/* model_graph_decode (cache 0: model_graph_decode_state) for scoring a given text: one sequence of `count` tokens with the
 * logits of all rows: "pick" I32 (count), "logits" (count, vocab). */
PD_NODISCARD enum pd_err model_graph_score(const struct model *m, int32_t count, int32_t cache,
                                           struct pk_graph **ret, struct pd_why *why);

/* model_graph_decode with such a state instead of a cache (pk_attention_state): the first length - position of the count
 * tokens update the state, the others change nothing; position 0 resets it. States "state/<l>" (B, heads,
 * pk_attention_features(degree, d), d), l from 0, shared by all buckets of the same B. The length is not bounded by a
 * cache; positions of a model with position embeddings stay below its context. */
PD_NODISCARD enum pd_err model_graph_decode_state(const struct model *m, int32_t batch, int32_t count,
                                                  struct pk_graph **ret, struct pd_why *why);

/* ---- parameters in back-end memory ---- */

/* Zeroed back-end memory for every parameter, bound to execs by name. The caller owns *ret. */
struct model_store;
PD_NODISCARD enum pd_err model_store_new(const struct model *m, const struct pk_backend_api *api,
                                         struct pk_backend *backend, struct model_store **ret,
                                         struct pd_why *why);
struct model_store *model_store_free(struct model_store *s);
PD_NODISCARD enum pd_err model_store_init(struct model_store *s, uint64_t seed, struct pd_why *why);
PD_NODISCARD enum pd_err model_store_read(struct model_store *s, const struct data_st *st,
                                          struct pd_why *why);
/* Sets parameter i to a tensor with as many elements. */
PD_NODISCARD enum pd_err model_store_set(struct model_store *s, size_t i, const struct data_st_tensor *t,
                                         struct pd_why *why);
/* model_store_read for the averaged weights (`ema.` tensors) of a run with train.ema. */
PD_NODISCARD enum pd_err model_store_read_averages(struct model_store *s, const struct data_st *st,
                                                   struct pd_why *why);
/* model_store_read for serving: reads the averaged weights if the metadata `polyd.serve` is "ema". */
PD_NODISCARD enum pd_err model_store_read_served(struct model_store *s, const struct data_st *st,
                                                 struct pd_why *why);
/* Binds the parameters of this store, a teacher's, to the teacher states of the graph. */
PD_NODISCARD enum pd_err model_store_bind_teacher(const struct model_store *s, struct pk_exec *exec,
                                                  const struct pk_graph *graph, struct pd_why *why);
/* Binds the parameters that occur in the graph. */
PD_NODISCARD enum pd_err model_store_bind(const struct model_store *s, struct pk_exec *exec,
                                          const struct pk_graph *graph, struct pd_why *why);
void *model_store_data(const struct model_store *s, size_t i); /* back-end memory */
/* Writes the name of the state that holds the working copy of parameter i, whether a graph has it or not. */
void model_copy_name(const struct model *m, size_t i, char *out, size_t size);
/* Writes the f32 parameter i to the back-end memory `copy`, rounded to bf16 (to nearest, ties to even). Synchronises with
 * the back end. */
PD_NODISCARD enum pd_err model_store_round(const struct model_store *s, size_t i, void *copy,
                                           struct pd_why *why);
