/* daemon/worker/model/model.h: the networks, written on the graph builder.
 *
 * A model_spec is the shape of a network; a model adds the table of its parameters. From one model come
 * several graphs over the same parameters (bound by name, see pk_exec_bind): training (loss, gradients and
 * optimiser in one), evaluation, probe (norms of attention), inference for classifiers, prefill and decode
 * for language models. Names and layouts of parameters are those of timm (ViT) and Hugging Face GPT-2 (GPT):
 * tests/golden/README.md 6. Extensions: `<attention>.attn_scale` [1] or [heads], a learned scale; with scale_param log
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
/* kernels/ATTENTION.md 10: where the norms of a block stand; POST is x = P(x + f(x)), for comparison. */
enum model_placement { MODEL_S1, MODEL_S2, MODEL_S3, MODEL_S4, MODEL_S5, MODEL_POST };
/* How images reach the graph: normalised, as bytes, or as numbers 0..1. Of the last two it makes
 * (byte / 255 - mean) / std of the channel. */
enum model_pixels { MODEL_PIXELS_READY, MODEL_PIXELS_BYTES, MODEL_PIXELS_UNIT };
enum model_init {
    MODEL_INIT_TRUNC_NORMAL,
    MODEL_INIT_NORMAL,
    MODEL_INIT_XAVIER,
    MODEL_INIT_TRUNC_XAVIER,
    MODEL_INIT_KAIMING /* uniform within 1 / sqrt(fan in): PyTorch's default of linear layers */
};
/* What the pseudo-inverse of landmark attention starts from: F' divided by the largest absolute sum of a column times
 * that of a row, of each matrix or of all matrices of the batch; or by the largest signed sum of a column of the batch,
 * which is for rows that are probabilities. */
enum model_pinv { MODEL_PINV_MATRIX_ABS, MODEL_PINV_GLOBAL_ABS, MODEL_PINV_GLOBAL_COLSUM };
/* Which of its three matrices have the activation, and with which factors: all with one; the outer two, and softmax in
 * the middle; all with a factor of their own. */
enum model_apply { MODEL_APPLY_ALL, MODEL_APPLY_F1F3, MODEL_APPLY_SEPARATE };

#define MODEL_SCALAR_INIT 256 /* bytes of an initial value, with the NUL */

/* A learned scalar of a formula: who shares one, what is trained, its initial value as a formula of n, h, H, l, L, d. */
enum model_scalar_form { MODEL_SCALAR_DIRECT, MODEL_SCALAR_LOG, MODEL_SCALAR_SOFTPLUS, MODEL_SCALAR_SIGMOID };
struct model_scalar {
    char name[PK_FORMULA_NAME];
    enum model_share share;
    enum model_scalar_form form;
    char init[MODEL_SCALAR_INIT];
};

/* An activation that is a formula (kernels/formula/formula.h); text "": phi says it. */
struct model_formula {
    char text[PK_FORMULA_TEXT + 1]; /* as typed */
    /* those that the document describes; the others have the defaults of daemon/job/JOB.md */
    int32_t scalars;
    struct model_scalar scalar[PK_FORMULA_PARAMS];
};

/* One attention module: phi, the constant before it, what it does to queries and keys. */
struct model_attention {
    struct model_formula
        formula; /* with a text: of what follows n_for_scale, scale_lr_mult, scale_decay, dropout and
                                     the norm of queries and keys count */
    enum pk_phi phi;
    int32_t degree;
    enum model_scale scale;
    double n_for_scale; /* resolved N */
    double scale_value; /* constant c, or c0 of a learned scale */
    bool l1_tokens;     /* SimA: q and k divided by their l1 norms over tokens; phi is poly of degree 1 */
    enum pk_form form;  /* order of attention's products */
    double row_power;   /* rows of causal attention are divided by their length to this power */
    double
        valid_power; /* of each sequence c is multiplied by (N / tokens that are no padding) to this power */
    double dropout;  /* of the weights */
    double logit_bias; /* added to the logits before phi (sigmoid_bias: -ln n) */
    enum model_share share;
    enum model_scale_param scale_param;
    double scale_lr_mult;
    bool scale_decay;
    bool qk_norm;          /* RMSNorm on each head's queries and keys */
    bool qk_per_head;      /* its gains are [heads, d], not [d] */
    double init_logit_std; /* of initial logits, by the start of W_Q and W_K; < 0: not asked for */
};

/* Which number of its own N is for an attention module, where modules differ in their number of keys: that of
 * the spec, the keys of a window, or the patches of the stage's grid. */
enum model_count { MODEL_COUNT_SPEC, MODEL_COUNT_WINDOW, MODEL_COUNT_GRID };

#define MODEL_PIXEL_CHANNELS 4 /* most that a graph normalises */
#define MODEL_STAGES_MAX 8

struct model_spec {
    const struct model_arch *arch;
    int32_t width, depth, heads, mlp_width;
    bool mlp_relu;  /* relu instead of gelu */
    bool gelu_tanh; /* gelu_new of Hugging Face; else exact */
    bool bias;      /* of linears and LayerNorms; RMSNorm has none */
    bool final_norm;
    int32_t classes; /* of images, or of whole texts; 0: the next token is predicted */
    enum pk_norm_kind norm_kind;
    enum pk_eps_mode norm_eps_mode;
    double norm_eps;
    enum model_placement placement;
    bool pos_after; /* with an InputNorm: the position is added behind it */
    /* ViT */
    int32_t channels, image_h, image_w, patch_h, patch_w;
    /* not part of a checkpoint, like mean and std: chosen by the caller that provides the input */
    enum model_pixels pixels;
    float mean[MODEL_PIXEL_CHANNELS], std[MODEL_PIXEL_CHANNELS];
    enum model_pool pool;
    /* Swin: blocks and heads of each stage, 0 behind the last; each stage is twice as wide as the one before.
     * width, heads, mlp_width and attention are then those of the first stage, depth counts all blocks. */
    int32_t stage_depth[MODEL_STAGES_MAX], stage_heads[MODEL_STAGES_MAX];
    int32_t window; /* side in patches */
    enum model_count count;
    double count_power; /* a module's factor is N^-count_power of its own N; 0: the same for all */
    /* XCiT */
    struct model_attention class_attention; /* of the class layers; `attention` is that between channels */
    int32_t class_depth;                    /* class layers */
    double layerscale;                      /* initial value of LayerScale; 0: there is none */
    bool class_norm_alone;                  /* the second norm of a class layer: of the class row alone */
    bool decay_temperature;
    /* PINNsformer: u(x, t) of an equation, at the points of sequences of `context` points each */
    int32_t equation; /* enum data_equation; 0: the network solves none */
    int32_t head_width;
    int32_t grid[2], test_grid[2]; /* points of t, of x: trained on, evaluated on */
    double coefficient;            /* beta, rho or c */
    double step;                   /* in t, from a point of a sequence to the next */
    /* Nystromformer */
    int32_t landmarks, conv_kernel, pinv_iterations;
    enum model_pinv pinv_start;
    enum model_apply apply;
    bool zero_pads; /* id 0 is padding, wherever it stands */
    bool pairs;     /* a sample is two sequences, half the context each; id 0 pads them */
    /* GPT */
    int32_t vocab, context;
    bool pos;                         /* learned position embedding; of an XCiT a projected Fourier code */
    struct model_attention attention; /* of every module */
    /* noise of training: rates in [0, 1) */
    double dropout;      /* behind embeddings and projections */
    double drop_path;    /* stochastic depth of the last block */
    bool drop_path_same; /* of every block; else growing linearly from 0 in the first */
    /* start */
    enum model_init init;
    bool init_fused;     /* Xavier: the fan of W_qkv counts its 3D outputs */
    enum pk_dtype dtype; /* PK_F32; PK_F64 is the oracle */
    /* How a model that only serves holds its matrices and embeddings: PK_BF16 halves what decoding reads;
     * arithmetic stays f32. Classifiers so only if mixed. PK_F32 (0): as dtype says. Not part of a
     * checkpoint. */
    enum pk_dtype weights;
    /* Graphs are planned in mixed precision (pk_graph_precision): activations and caches bf16, parameters and
     * results f32. Not part of a checkpoint: chosen at run time. */
    bool mixed;
};

/* Derives the spec from a resolved document and the sizes of the data. What this build cannot do is refused
 * with PD_ERR_UNSUPPORTED and the JSON pointer of the field. */
PD_NODISCARD enum pd_err model_spec_from_config(const struct job_config *config, const struct data_info *data,
                                                struct model_spec *ret, struct pd_why *why);
/* Checks ranges and divisibility. */
PD_NODISCARD enum pd_err model_spec_check(const struct model_spec *spec, struct pd_why *why);

/* The spec as metadata of a checkpoint ("polyd.model.phi" = "poly", ...), and back. numbers: words as the
 * numbers that checkpoints held before 2026-11; back, both are read. Values live in *ret_text, which the
 * caller owns (free). */
#define MODEL_META_ITEMS 116
PD_NODISCARD enum pd_err model_spec_to_meta(const struct model_spec *spec, bool numbers,
                                            struct data_st_meta_item *items, size_t *ret_count,
                                            char **ret_text, struct pd_why *why);
PD_NODISCARD enum pd_err model_spec_from_meta(const struct data_st *st, struct model_spec *ret,
                                              struct pd_why *why);
/* The first setting, as metadata name it, in which two networks compute another function of their parameters; NULL:
 * there is none. What training alone reads (dropout, initial values) does not count. */
const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b);

enum model_role {
    MODEL_ROLE_MATRIX,
    MODEL_ROLE_EMBED, /* embeddings of tokens and positions, class token */
    MODEL_ROLE_CONV,  /* patch embedding: weight and bias */
    MODEL_ROLE_BIAS,
    MODEL_ROLE_GAIN,
    MODEL_ROLE_BUFFER, /* written by training, by no optimiser: a running mean */
    MODEL_ROLE_SCALE   /* learned scale of attention, or the number that it is made of */
};

/* A distribution: the value a; normal with deviation a, redrawn beyond `limit` deviations (0: never); uniform
 * in
 * [-a, a]. */
struct model_draw {
    enum { MODEL_DRAW_VALUE, MODEL_DRAW_NORMAL, MODEL_DRAW_UNIFORM } kind;
    double a, limit;
};

/* Initial values: those of the first `outputs` outputs of a matrix (0: none) by `first`, the others by
 * `rest`. */
struct model_start {
    int64_t outputs;
    struct model_draw first, rest;
    double *list; /* every value, of the model's memory; NULL: as above */
};

/* The weights of attention and feed-forward that experiments compare (DNT paper, figure 1). In parameters W_Q, W_K and
 * W_V stand together, in this order. */
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
/* "w_q", "w_k", ..., "w_2"; static. MODEL_WEIGHTS: there is none of that name. */
const char *model_weight_name(enum model_weight w);
enum model_weight model_weight_find(const char *name);

struct model_param {
    char name[64];
    struct pk_shape shape;
    enum model_role role;
    bool transposed; /* stored [out, in] (timm); else [in, out] */
    bool factor;     /* products read it: a mixed plan computes with a bf16 copy */
    bool narrow;     /* held in bf16 where the spec's `weights` says so */
    bool decay;      /* belongs to the decayed group */
    double lr_mult;
    bool frozen; /* not trained (model_freeze) */
    enum model_weight weight;
    int layer; /* of its block, from 0; -1: it belongs to none */
    struct model_start start;
};

struct model;

PD_NODISCARD enum pd_err model_new(const struct model_spec *spec, struct model **ret, struct pd_why *why);
struct model *model_free(struct model *m);
/* Borrowed until model_free. */
const struct model_spec *model_spec(const struct model *m);
/* Before any graph is made of it: parameters whose names begin with one of `names` (commas between, blanks around them
 * do not count) are not trained. PD_ERR_INVALID: one of them is the beginning of no name, or nothing is left. */
PD_NODISCARD enum pd_err model_freeze(struct model *m, const char *names, struct pd_why *why);
/* Multiplies learning rates as timm's layer-wise decay: by decay^(blocks + 1 - layer), where block i is layer i + 1, what
 * is asked for before the first block layer 0, and what comes behind the last layer blocks + 1, of rate 1. */
void model_layer_decay(struct model *m, double decay);
/* Whether the name begins with one of `names` as above; NULL: no name does. */
bool model_name_listed(const char *names, const char *name);

/* The table: first what optimisers change, in the order of the network, then frozen parameters and buffers. */
size_t model_param_count(const struct model *m);
size_t model_trained_count(const struct model *m); /* without the buffers */
const struct model_param *model_param(const struct model *m, size_t i);
int64_t model_param_elements(const struct model *m); /* of all but buffers */
/* How parameter i lies in back-end memory: the model's dtype, or its spec's `weights`. */
enum pk_dtype model_param_dtype(const struct model *m, size_t i);
size_t model_param_bytes(const struct model *m); /* of all, as they lie there */

/* Attention modules in the order of the forward pass: what a probe's outputs are numbered by, from 1. */
size_t model_attention_count(const struct model *m);
/* Its path, as in the names of its parameters: "blocks.3.attn". Borrowed until model_free. */
/* Scalar k of the formula of attention module i (in the order of their names): its name, what is trained of it, and its
 * parameter, [1] or [heads]. False: the module has no such scalar. */
bool model_formula_scalar(const struct model *m, size_t i, size_t k, const char **ret_name,
                          enum model_scalar_form *ret_form, size_t *ret_param);
const char *model_attention_path(const struct model *m, size_t i);
/* Attention matrices that it makes of one sample and head: its windows; 1 where it sees all tokens at once. */
int64_t model_attention_windows(const struct model *m, size_t i);
/* Whether the Jacobian by W_Q has the closed form that a probe computes: its logits are x W_Q K', without a norm
 * between. */
bool model_attention_has_jac_q(const struct model *m, size_t i);
/* Whether a probe of sequences as long as the context has the residual of its pseudo-inverse. */
bool model_attention_has_inverse(const struct model *m, size_t i);
/* Borrowed until model_free. *ret_scale: the parameter of its learned scale; model_param_count: it has none.
 */
const struct model_attention *model_attention_at(const struct model *m, size_t i, int32_t *ret_heads,
                                                 size_t *ret_scale);
/* Whether the network reads tokens (else images), and whether it decodes them one after the other (else it
 * has classes). */
bool model_reads_tokens(const struct model_spec *s);
/* Whether it reads points: then its inputs are "x" and "t" (points, k), and its logits u. */
bool model_reads_points(const struct model_spec *s);
bool model_decodes(const struct model_spec *s);
/* Ids that a text may hold: the vocabulary without a class token. */
int32_t model_text_ids(const struct model_spec *s);
/* The equation that the document's data set names. */
enum data_equation model_equation(const struct job_config *c);

/* Initial values of parameter i, dense, in host memory of the model's dtype: a pure function of seed and
 * name.
 */
PD_NODISCARD enum pd_err model_param_init(const struct model *m, size_t i, uint64_t seed, void *to,
                                          struct pd_why *why);
/* Reads every parameter from a file: exact names, or Hugging Face names without `transformer.`; mask buffers,
 * a tied lm_head.weight, `optim.` and `ema.` tensors are ignored, `phi_scale` is taken for `attn_scale`;
 * anything else unknown or missing is an error. averaged: of the `ema.` tensors and no others. fn receives
 * host memory of the model's dtype. */
PD_NODISCARD enum pd_err model_params_read(const struct model *m, const struct data_st *st, bool averaged,
                                           enum pd_err (*fn)(void *user, size_t i, const void *data,
                                                             size_t bytes, struct pd_why *why),
                                           void *user, struct pd_why *why);

/* ---- files of other programs ---- */

/* What a tensor of a file is to the model: by its exact name, or one that a public file may have for it. */
enum model_tensor {
    MODEL_TENSOR_UNKNOWN,
    MODEL_TENSOR_PARAM,   /* parameter *ret_i */
    MODEL_TENSOR_REPEATS, /* must hold the values of parameter *ret_i: a tied head */
    MODEL_TENSOR_IGNORED  /* no parameter: a mask, an optimiser's state */
};
enum model_tensor model_tensor_of(const struct model *m, const char *name, size_t *ret_i);

#define MODEL_TENSOR_NAME 192 /* bytes for the name of a tensor */
/* The tensor by which a public file shows that it uses the network's second spelling of names (timm has two for a
 * Swin); NULL: there is one spelling. Static. */
const char *model_respelt_marker(const struct model_spec *s);
/* Writes the network's own name of a tensor in the second spelling; other names are copied. */
void model_respelt_name(const struct model_spec *s, const char *name, char out[MODEL_TENSOR_NAME]);

/* The spec of the network that a document describes and whose tensors `find` gives (NULL: there is none of that
 * name): what data sets say otherwise, classes, channels and vocabulary, is read off their extents. mean, std: of the
 * channels, NULL = as images of so many channels are normalised by default. */
PD_NODISCARD enum pd_err
model_spec_from_tensors(const struct job_config *config, const float *mean, const float *std,
                        const struct data_st_tensor *(*find)(void *user, const char *name), void *user,
                        struct model_spec *ret, struct pd_why *why);

/* ---- graphs; each returns a checked graph that the caller owns ---- */

/* The update of one parameter, in place: its states in the order of the optimiser's table. */
#define MODEL_STATES_MAX 2
struct model_update {
    struct pk_val param, grad, state[MODEL_STATES_MAX];
    struct pk_val hyper, gate;
    struct pk_optim_spec spec;
};

/* What a training graph needs of an optimiser; daemon/worker/train/optim has them. */
struct model_optimiser {
    const char *name; /* as in the document and in checkpoints */
    int states;       /* for each parameter */
    struct {
        const char *prefix; /* of the state's name: "m/" */
        enum pk_category category;
    } state[MODEL_STATES_MAX];
    void (*update)(struct pk_graph *g, const struct model_update *u);
};

/* Rows that a loss is about. */
struct model_rows {
    struct pk_val logits;
    /* Mixed images: row i is of target i to the share (rows), and of target partner[i] (I32, rows) for the rest.
     * PK_NONE: of its own target alone. */
    struct pk_val share, partner;
    /* Of a network that reads points: inputs "x" and "t" (points, k), which u (points, k) may be differentiated by. */
    struct pk_val x, t;
    const struct model_spec *spec;
    /* derivatives are tangents of a shift of the whole sequence; else gradients of the sum over it */
    bool shift;
    /* of the model's dtype, one a row: 1 where the row counts, else 0; the loss sets it */
    struct pk_val valid;
};

/* Columns of the input "mix" (batch, MODEL_MIXES), a row for each image: the share of its own label, and how much
 * of the partner's pixels there is within a rectangle (rows top to bottom - 1, columns left to right - 1): mixup
 * (arXiv:1710.09412) takes 1 - share of all pixels, cutmix (arXiv:1905.04899) all of some. */
enum {
    MODEL_MIX_SHARE,
    MODEL_MIX_WEIGHT,
    MODEL_MIX_TOP,
    MODEL_MIX_BOTTOM,
    MODEL_MIX_LEFT,
    MODEL_MIX_RIGHT,
    MODEL_MIXES
};

/* What a task puts behind the network (daemon/worker/task): sums over rows of logits (arch.h says which),
 * with the inputs that it declares. The first is that of the loss, the second what divides it to a mean. */
#define MODEL_SUMS_MAX 8
struct model_loss {
    const char *sum[MODEL_SUMS_MAX + 1]; /* their names, static; NULL behind the last */
    /* Each (1), in the order of the names. */
    void (*emit)(struct pk_graph *g, struct model_rows *rows, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX]);
    /* Of an evaluation of `batch` samples, in place of `emit`, with more outputs for the task; NULL: `emit`. */
    void (*emit_eval)(struct pk_graph *g, const struct model_spec *spec, struct pk_val logits, int32_t batch,
                      struct pk_val ret[MODEL_SUMS_MAX]);
};

/* Distillation (arXiv:2012.12877): the head that a network has for it learns what a teacher says of the same
 * images; alpha is the share of that in the loss. hard: cross-entropy with the class of the teacher's largest
 * logit. soft: tau^2 times the mean over classes of P_t (log P_t - log P_s), P of logits / tau. */
struct model_distil {
    /* of the student's dtype; NULL: input "teacher" (batch, classes) has its logits */
    const struct model *teacher;
    bool soft;
    double alpha, tau;
};
/* The state that holds parameter i of a teacher; the caller binds it (model_store_bind_teacher). */
void model_teacher_name(const struct model *teacher, size_t i, char *out, size_t size);
bool model_teacher_named(const char *leaf);
size_t model_loss_sums(const struct model_loss *l);
/* Numbers of the output "report" of a step. */
#define MODEL_REPORT_MAX (MODEL_SUMS_MAX + 5)

struct model_train_options {
    const struct model_loss *loss;
    const struct model_distil *distil; /* NULL: there is no teacher */
    /* Images of a batch are mixed within groups of so many, each with the one at the mirrored place; input "mix".
     * It divides `batch`. 0: they are not. */
    int32_t mix_group;
    /* Images come normalised, of f32 or f64 as the model is, whatever the spec's `pixels` says. */
    bool ready;
    int32_t batch;
    int32_t context; /* GPT: sequence length of training, <= spec.context */
    bool shift;      /* of points: see model_rows */
    double label_smoothing;
    double clip_norm; /* 0 = none */
    const struct model_optimiser *optimizer;
    double beta1, beta2, eps;
    bool cycled; /* AdamW: each step has a beta1 of its own, hyper[3] */
    double momentum, dampening;
    bool nesterov;
    double weight_decay;
    double ema; /* decay of the averaged weights; 0 = none are kept */
    /* pairs of the history of an optimiser that searches along lines, and one more; else 0 */
    int32_t line_rows;
    int32_t line_numbers; /* that it stores in addition */
    /* One of several ranks that train together; ranks 0 or 1: alone. `batch` is this rank's share. Gradients,
     * counts and losses are then those of all ranks, and "rng" is I32 (4), the last the rank: masks are those
     * of the whole batch. */
    int32_t rank, ranks;
    bool zero; /* moments of a parameter are kept by its owner alone, who sends the others its new value */
    /* In mixed precision, without zero: matrices have working copies in bf16, states "half/<param>"
     * (model_copy_name), which the updates write and the next step reads (pk_working_copy). A caller that
     * sets the parameters fills them (model_store_round). Part and apply share them. */
    bool copies;
    /* A step may begin before the host knows whether the one before it was applied: "hyper" is (2, 4), row 1 for the
     * case that it was, row 0 that it was not, and the state MODEL_APPLIED (1) chooses between them on the device. */
    bool ahead;
};
#define MODEL_APPLIED "applied_last"

/* Which rank keeps the moments of parameter i with `zero`: whole tensors, the largest first, to the rank that
 * has least. Pure. */
int32_t model_param_owner(const struct model *m, size_t i, int32_t ranks);

/* Inputs: "input" (images (B,C,H,W) as the spec's `pixels` says, or tokens I32 (B,T)), of texts with classes
 * "last" (arch.h), those of the loss, "hyper" (4) as in op.h, with `ahead` (2, 4); with noise "rng" I32 (3), see pk_dropout. States:
 * those of the optimiser ("m/<param>"), with ema "ema/<param>", of buffers as well (to be set to the initial
 * values). Outputs: "loss" (1), the loss's first sum divided by its second; its other sums by name; "grad_norm";
 * "applied" (1: step taken; 0: loss or gradient not finite, nothing changed, buffers neither); "report" (sums +
 * 2): all of them in this order, to be read at once. Outputs are f32, or f64 if the spec says so. grads = true:
 * no optimiser, outputs "grad/<param>", "logits" and "next/<buffer>", what the step would make of it, instead,
 * with a distillation head also "logits/own" and "logits/distilled". */
PD_NODISCARD enum pd_err model_graph_train(const struct model *m, const struct model_train_options *o,
                                           bool grads, struct pk_graph **ret, struct pd_why *why);
/* The same step in parts, where a batch is larger than what fits: o->batch is that of one part. `part` adds
 * its gradient to the states "sum/<param>" and the loss's sums to "sum/loss"; input "first" (1), not 0 for the
 * first part of a step, starts them anew. Buffers change part by part in the states "next/<buffer>" and take
 * over what is there with the step. `apply` steps with what has come together; its outputs and other states are
 * those of model_graph_train. The result is the step of the whole batch, but for the order of sums and for
 * noise, which every part draws of its own. */
PD_NODISCARD enum pd_err model_graph_part(const struct model *m, const struct model_train_options *o,
                                          struct pk_graph **ret, struct pd_why *why);
PD_NODISCARD enum pd_err model_graph_apply(const struct model *m, const struct model_train_options *o,
                                           struct pk_graph **ret, struct pd_why *why);
/* ---- for optimisers that search along lines (daemon/worker/train/optim/lbfgs.c) ----
 *
 * All trained parameters are one vector x. These graphs share the states "line/x", "line/g" (the last gradient) and, with
 * the prefix MODEL_LINE_SAVED, d (the direction), g (the gradient that d was made of), s and y (o->line_rows pairs). */
#define MODEL_LINE_SAVED "lbfgs/"
#define MODEL_LINE_NUMBERS                                                                                   \
    MODEL_LINE_SAVED "numbers"     /* F64 (line_numbers): a state that the host alone reads */
#define MODEL_LINE_ALONG "along"   /* input (1): t */
#define MODEL_LINE_ROW "row"       /* input I32 (1) */
#define MODEL_LINE_SHARES "shares" /* input (1, 2 rows + 1): of s, of y, of the last gradient */
int64_t model_line_length(const struct model *m); /* of the vectors, with what lies between parameters */
/* What "report" holds behind the loss's sums. */
enum {
    MODEL_LINE_NORM,    /* of the gradient */
    MODEL_LINE_FINITE,  /* 1: loss and gradient are */
    MODEL_LINE_SLOPE,   /* gradient times d */
    MODEL_LINE_LARGEST, /* |entry| of the gradient */
    MODEL_LINE_SUM,     /* of all |entries| */
    MODEL_LINE_NUMBERS_OF_POINT
};
/* Loss and gradient at x + t d. Inputs as model_graph_train without "hyper", and t. Changes no parameter. */
PD_NODISCARD enum pd_err model_graph_line(const struct model *m, const struct model_train_options *o,
                                          struct pk_graph **ret, struct pd_why *why);
/* Row `row` of s becomes t d, that of y the last gradient less g. Output "products" (2 rows, 3): every row of s, then of
 * y, times the new y, the last gradient, the new s. */
PD_NODISCARD enum pd_err model_graph_line_pair(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
/* d becomes the sum of rows and of the last gradient by their shares, and g the last gradient. Output "direction" (2): d
 * times the gradient, the largest |entry| of d. */
PD_NODISCARD enum pd_err model_graph_line_direct(const struct model *m, const struct model_train_options *o,
                                                 struct pk_graph **ret, struct pd_why *why);
/* The parameters become x + t d; x becomes the parameters. */
PD_NODISCARD enum pd_err model_graph_line_move(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
PD_NODISCARD enum pd_err model_graph_line_load(const struct model *m, const struct model_train_options *o,
                                               struct pk_graph **ret, struct pd_why *why);
/* The gradient of the training loss, for diagnostics: without noise and mixed images. Inputs as model_graph_part without
 * "rng", states "sum/<param>" and "sum/loss", which "first" starts anew. o->batch is that of one part; of the other
 * options only loss, label_smoothing, distil, ready and context count. Buffers are read as in evaluation. */
PD_NODISCARD enum pd_err model_graph_gradient(const struct model *m, const struct model_train_options *o,
                                              struct pk_graph **ret, struct pd_why *why);
/* Block 0 with the InputNorm before it, alone: "h" (B, N, D), "gy" -> "y", "dh", "grad/<param>".
 */
PD_NODISCARD enum pd_err model_graph_block(const struct model *m, int32_t batch, int32_t tokens, bool causal,
                                           struct pk_graph **ret, struct pd_why *why);
/* Inputs "input", of texts with classes "last", and those of the loss; outputs "logits" and the loss's sums
 * (1 each) by name. */
PD_NODISCARD enum pd_err model_graph_eval(const struct model *m, const struct model_loss *loss, int32_t batch,
                                          int32_t context, struct pk_graph **ret, struct pd_why *why);
/* Which attention matrices are looked at: layers (attention modules) and heads, both from 1; none named: all.
 * The lists are borrowed. */
struct model_maps {
    const int64_t *layers, *heads;
    size_t layer_count, head_count;
    int64_t times; /* that the graph runs: what is stored of all of them is bounded */
};
/* Whether layer `layer` and head `head` (from 1) are among them. */
bool model_maps_has(const struct model_maps *maps, int64_t layer, int64_t head);
#define MODEL_MAP_BINS 64           /* of a histogram of logits */
#define MODEL_MAP_TOKENS 1024       /* a matrix is at most so wide */
#define MODEL_MAP_BYTES (1ll << 30) /* of all matrices of a run, as f32 */
#define MODEL_MAP_HEADS 100000      /* heads times pictures of a run */
#define MODEL_MAP_COUNT 16777216    /* logits of one head over the batch: what f32 counts exactly */
/* Input "input" (texts with classes: and "last"). For each chosen layer l and head h, over all samples of the
 * batch, in the model's dtype:
 *   "map/<l>/<h>" (N, N)      mean of A, queries by keys
 *   "abs/<l>/<h>" (N, N)      mean of |A|
 *   "softmax/<l>/<h>" (N, N)  mean of the softmax of the same logits over the same keys; not where A is that
 *   "reach/<l>/<h>" (1)       the largest |logit| of a visible key, r
 *   "logits/<l>/<h>" (MODEL_MAP_BINS + 1)  counts of visible logits in equal bins from -r to r; last: hidden
 *   "entropy/<l>/<h>" (1)     mean over rows of the entropy of |A| divided by its sum, in nats
 *   "rank/<l>/<h>" (1)        mean over samples of (sum s^2)^2 / sum s^4, s the singular values of A
 * Errors name fields of /diagnostics: a layer or head that the network does not have, matrices that are too
 * large. */
PD_NODISCARD enum pd_err model_graph_maps(const struct model *m, const struct model_maps *maps, int32_t batch,
                                          int32_t context, struct pk_graph **ret, struct pd_why *why);
/* Where tokens lie in a picture: rows and columns of patches, after `lead` tokens that are no patch. Rows is 0
 * where the network reads tokens. */
struct model_grid {
    int32_t rows, columns, lead;
};
/* What the rows (queries) and columns (keys) of an attention matrix are. */
enum model_axis {
    MODEL_AXIS_TOKENS,    /* of the picture or a window of it, of the sequence */
    MODEL_AXIS_CLASS,     /* the class token alone asks; the keys are all tokens */
    MODEL_AXIS_CHANNELS,  /* of a head */
    MODEL_AXIS_LANDMARKS, /* means of tokens */
};
enum model_axis model_attention_axis(const struct model *m, size_t i);
/* Whether tokens see none that come later. */
bool model_is_causal(const struct model *m);
struct model_grid model_grid(const struct model *m);
/* Blocks whose activations a probe tells. */
size_t model_block_count(const struct model *m);
/* Input "input"; outputs "fro/<l>", "jac_fro/<l>", "jac_q_fro/<l>", "logit_std/<l>", "logit_max/<l>" (B, H),
 * l from 1. With qk_norm jac_q_fro is that by the rows of W_Q's output behind the norm, as if x were theirs;
 * it is no Jacobian by W_Q and is not to be shown. Of attention through
 * landmarks these are of the matrix between landmarks, and "residual/<l>" (1) is that of its pseudo-inverse F+,
 * |F F+ F - F| / |F| over the batch. Also "act_rms/<b>" (1) for each block b from 1: root of the
 * mean square of its output. Without `lead`, tokens that are no patch (model_grid) are left out of A, S and
 * dA/dS. */
PD_NODISCARD enum pd_err model_graph_probe(const struct model *m, int32_t batch, int32_t context, bool lead,
                                           struct pk_graph **ret, struct pd_why *why);
/* Classifier. Input "input" (B,C,H,W) as the spec's `pixels` says, or of texts (B, context) and "last";
 * output "logits" (B, classes). Of a network that reads points: inputs "x" and "t" (B, context), output "logits" (B, 1), u at the first
 * point of each sequence. */
PD_NODISCARD enum pd_err model_graph_classify(const struct model *m, int32_t batch, int32_t context,
                                              struct pk_graph **ret, struct pd_why *why);
/* Language model with key/value cache: `count` new tokens per sequence (prefill: a bucket; decode: 1).
 * Inputs: "input" I32 (B, count); "pos" I32 (B, count): position of each token, 0..context-1; "position" I32
 * (B): of the first; "length" I32 (B): position + count; "pick" I32 (B): flat row b * count + i whose logits
 * are wanted. States "cache_k/<l>", "cache_v/<l>" (B, heads, cache, d; bf16 if mixed), l from 0, shared by
 * all buckets of the same B and cache. Output "logits" (B, vocab). A prompt shorter than its bucket is padded
 * on the right with any valid id and position: what the padding writes into the cache lies beyond the prompt,
 * is seen by no real row, and is overwritten as decoding goes on. position + count <= cache is the caller's
 * duty (else the run fails with PD_ERR_INVALID). */
PD_NODISCARD enum pd_err model_graph_decode(const struct model *m, int32_t batch, int32_t count,
                                            int32_t cache, struct pk_graph **ret, struct pd_why *why);

/* Whether a language model can decode with a state of constant size: x or x^2, no bias on logits. */
bool model_has_state(const struct model_spec *s);
/* One sequence of `count` tokens as model_graph_decode (cache 0: as model_graph_decode_state) reads it, with
 * as many rows picked: "pick" I32 (count), "logits" (count, vocab). What a given text is scored with. */
PD_NODISCARD enum pd_err model_graph_score(const struct model *m, int32_t count, int32_t cache,
                                           struct pk_graph **ret, struct pd_why *why);

/* The same as model_graph_decode with such a state instead of a cache (pk_attention_state): of the count new
 * tokens, length - position count, the others change nothing; position 0 begins anew. States "state/<l>" (B,
 * heads, pk_attention_features(degree, d), d), l from 0, shared by all buckets of the same B. There is no end
 * of the cache, but positions of a model with position embeddings stay below its context. */
PD_NODISCARD enum pd_err model_graph_decode_state(const struct model *m, int32_t batch, int32_t count,
                                                  struct pk_graph **ret, struct pd_why *why);

/* ---- parameters in back-end memory ---- */

/* Memory for every parameter, allocated from the back end and zeroed; bound to execs by name. */
struct model_store;
PD_NODISCARD enum pd_err model_store_new(const struct model *m, const struct pk_backend_api *api,
                                         struct pk_backend *backend, struct model_store **ret,
                                         struct pd_why *why);
struct model_store *model_store_free(struct model_store *s);
PD_NODISCARD enum pd_err model_store_init(struct model_store *s, uint64_t seed, struct pd_why *why);
PD_NODISCARD enum pd_err model_store_read(struct model_store *s, const struct data_st *st,
                                          struct pd_why *why);
/* Sets parameter i to a tensor of as many floats. */
PD_NODISCARD enum pd_err model_store_set(struct model_store *s, size_t i, const struct data_st_tensor *t,
                                         struct pd_why *why);
/* The same of the averaged weights, which a run with train.ema keeps. */
PD_NODISCARD enum pd_err model_store_read_averages(struct model_store *s, const struct data_st *st,
                                                   struct pd_why *why);
/* The same of what a checkpoint is to serve: its averaged weights if its metadata `polyd.serve` is "ema". */
PD_NODISCARD enum pd_err model_store_read_served(struct model_store *s, const struct data_st *st,
                                                 struct pd_why *why);
/* Binds the states of a teacher that this exec's graph has: the store holds the teacher. */
PD_NODISCARD enum pd_err model_store_bind_teacher(const struct model_store *s, struct pk_exec *exec,
                                                  const struct pk_graph *graph, struct pd_why *why);
/* Binds the parameters that this exec's graph has. */
PD_NODISCARD enum pd_err model_store_bind(const struct model_store *s, struct pk_exec *exec,
                                          const struct pk_graph *graph, struct pd_why *why);
void *model_store_data(const struct model_store *s, size_t i); /* back-end memory */
/* The state of the working copy of parameter i, whether a graph has it or not. */
void model_copy_name(const struct model *m, size_t i, char *out, size_t size);
/* Fills back-end memory with parameter i, of f32, rounded to bf16: to nearest, ties to even. Waits for what
 * runs. */
PD_NODISCARD enum pd_err model_store_round(const struct model_store *s, size_t i, void *copy,
                                           struct pd_why *why);
