/* daemon/worker/model/net.h: private to this module: the representation of a model, and the layers that networks are
 * built from. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "daemon/worker/model/model.h"

/* An attention module declared by the network. */
struct model_module {
    char name[64]; /* path, as in the names of its parameters */
    struct model_attention attention;
    int32_t heads;
    int64_t windows; /* attention matrices of one sample and head */
    ptrdiff_t scale; /* index of its learned scale's parameter; -1: it has none */
    enum model_axis axis;
};

struct model {
    struct model_spec spec;
    struct model_param *param; /* trained parameters first, after model_declare */
    size_t count, trained, size;
    struct model_module *module; /* in the order of the forward pass */
    size_t modules, module_size;
    size_t blocks;                                   /* counted by net_block */
    struct pk_formula_plan *plan;                    /* of the spec's formula; NULL: no formula */
    size_t scalars;                                  /* scalars of the formula */
    char scalar[PK_FORMULA_PARAMS][PK_FORMULA_NAME]; /* their names in the order of the plan */
};

/* formula.c: parses the spec's formula into m->plan; PD_OK without a formula. The sentence of an error begins with
 * #/attention/formula. */
PD_NODISCARD enum pd_err model_formula_read(struct model *m, struct pd_why *why);

/* Fills the tables of parameters and modules of a new model. */
PD_NODISCARD enum pd_err model_declare(struct model *m, struct pd_why *why);
/* The part of model_declare that runs the forward function once. */
PD_NODISCARD enum pd_err model_write_once(struct model *m, struct pd_why *why);

/* InputNorm (S3 to S5) and MidNorm (S4, S5). */
bool model_has_input_norm(const struct model_spec *s);
bool model_has_mid_norm(const struct model_spec *s);

/* ---- writing a graph ---- */

/* Update of a buffer b by a training step: b = decay b + (1 - decay) x. x PK_NONE: unchanged. */
struct net_change {
    struct pk_val x;
    double decay;
};

/* A graph under construction: the graph, its model, and the handle of each parameter already used.
 *
 * A network is one forward function. Its first run declares the model: every parameter that it requests is added to the
 * table with shape and initial values, in the order of the requests, which defines the model (order of sums over
 * parameters, owners under ZeRO-1). Later runs of the same function write graphs over these parameters. */
struct net {
    struct pk_graph *g;
    const struct model *m;
    struct model *declares; /* the same model while it is declared, else NULL */
    struct pk_val *param;
    int32_t ranks;                 /* ranks that train together; 0: this graph does not train */
    struct net_change *change;     /* update of each buffer; NULL: this graph does not train */
    struct pk_val x, t;            /* the inputs of a network that reads points */
    bool failed;                   /* out of memory */
    char refused[PK_FORMULA_NAME]; /* a formula's scalar without a valid initial value; "": none */
    bool copies;                   /* matrices have working copies */
    bool causal;
    bool teacher;                     /* a teacher: its parameters are constant states of the graph */
    struct pk_val own, distilled;     /* logits of both heads of a network with a distillation head */
    int64_t batch, tokens;            /* B; N, the number of queries */
    struct pk_attention_stats *stats; /* of each attention module, in a probe; else NULL */
    int64_t skip;                     /* leading tokens excluded from the statistics */
    size_t skipped;                   /* modules with excluded tokens */
    const struct model_maps *maps;    /* matrices to output; NULL: none */
    int64_t map_tokens, map_count;    /* of these: largest extent, most logits of one head */
    int64_t map_heads;                /* number of heads output */
    int64_t map_bytes;                /* size of all matrices as f32 */
    struct pk_val *residual;          /* of each attention module with a pseudo-inverse, in a probe */
    size_t module;                    /* attention modules written so far */
    struct pk_val rng;                /* PK_NONE: no noise */
    /* decoding */
    bool decode;
    int64_t cache; /* 0: a state of constant size instead of a cache */
    struct pk_val position, length;
};

/* Properties of a parameter, at its declaration. */
struct net_how {
    enum model_role role;
    bool factor; /* operand of matrix products; a mixed plan uses a bf16 copy */
    bool narrow; /* may be stored in bf16 in a model that only serves */
    bool whole;  /* a count, see struct model_param */
    bool decay;
    struct model_start start;
};

/* Returns the parameter of that name; declares it first while the model is declared. */
struct pk_val net_param(struct net *n, const char *name, struct pk_shape shape, const struct net_how *how);
/* Returns a buffer, initially `value` everywhere. It has no gradient and no optimiser changes it; checkpoints, ranks,
 * averages and evaluation treat it as a parameter. */
struct pk_val net_buffer(struct net *n, const char *name, struct pk_shape shape, double value);
/* Returns a buffer that counts from 0: a scalar. */
struct pk_val net_count(struct net *n, const char *name);
/* Sets the buffer b to decay b + (1 - decay) x at the end of an applied training step; no effect in other graphs. x has
 * the buffer's shape, no gradient, and equal values on all ranks (net_rank_mean). */
void net_buffer_update(struct net *n, const char *name, struct pk_val x, double decay);
/* Whether training leaves the parameter or buffer of that name as it is (model_freeze). */
bool net_frozen(const struct net *n, const char *name);
/* The mean over ranks of x; x itself in a graph that does not train. */
struct pk_val net_rank_mean(struct net *n, struct pk_val x);
/* Index of the parameter in the table; model_param_count: there is none of that name. */
size_t net_param_index(const struct model *m, const char *name);
/* Adds an attention module to the table while the network is declared (n->batch is 1). scale: the index of its learned
 * scale's parameter, if it has one. */
void net_module_declare(struct net *n, const char *name, const struct model_attention *a, int32_t heads,
                        size_t scale);
/* Sets the axis of the module declared last; the default is tokens. */
void net_module_axis(struct net *n, enum model_axis axis);
/* Initial values of a matrix by the model's `init`. std: standard deviation of the normal forms. */
struct model_start net_start(const struct model_spec *s, double fan_in, double fan_out, double std);
/* Truncated normal initial values for embeddings, whatever the model's `init`. */
struct model_start net_start_normal(const struct model_spec *s, double std);
#define NET_STD 0.02 /* standard deviation of the normal forms of `init` */

/* Norm over the last axis of x. */
struct pk_val net_norm(struct net *n, struct pk_val x, const char *name);
/* Adds the parameters of a norm to the table before the norm is used. */
void net_norm_declare(struct net *n, const char *name, int64_t width);
/* Linear layer: x (.., in) -> (.., out), with a bias if the model has biases. */
struct pk_val net_linear(struct net *n, struct pk_val x, const char *name, int64_t out,
                         struct model_start start);
/* Adds the learned scale of the whole model (scale_share global) to the table. */
void net_shared_scale(struct net *n, const struct model_attention *a);

/* Bias and mask of pairs of tokens in an attention module; PK_NONE: none. */
struct net_pairs {
    struct pk_val bias; /* (H, N, N), added to the logits before phi */
    struct pk_val mask; /* U8 (W, N, N), W divides B: sample b has mask b % W; 0: the pair's weight is 0 */
};
/* Attention of x (B, N, D) with `heads` heads, without the output projection: W_qkv (`qkv`), normalised queries and keys
 * if `a` has them, phi. `name`: the module's path; `layer`: its stream of noise. pairs NULL: no bias, no mask. */
struct pk_val net_attention(struct net *n, struct pk_val x, const struct model_attention *a, int32_t heads,
                            const char *name, const char *qkv, int layer, const struct net_pairs *pairs);

/* log(1 + e^x), of any finite x without overflow, of very negative x with a full mantissa. */
struct pk_val net_softplus(struct pk_graph *g, struct pk_val x);
/* The x of v > 0. */
double net_softplus_inverse(double v);
/* The learned scale c as a graph value. *ret_index: the index of its parameter. path: the module's path. */
struct pk_val net_learned_scale(struct net *n, const struct model_attention *a, int32_t heads,
                                const char *path, size_t *ret_index);
/* Writes the formula of an attention module, if it has one, and its learned scalars (P, heads) to `spec`. path: the
 * module's path; layer: from 0; width: of a head. */
void net_formula(struct net *n, const struct model_attention *a, int32_t heads, const char *path, int layer,
                 int64_t width, struct pk_attention_spec *spec);
/* Adds the scalars shared by the whole model to the table. */
void net_formula_shared(struct net *n, const struct model_attention *a);
/* Initial values of W_Q | W_K | W_V, each of width d. */
struct model_start net_start_qkv(const struct model_spec *s, const struct model_attention *a, int64_t d);

/* Positions of noise in a layer; each has a stream of its own. The numbers never change, so that a run resumed from a
 * checkpoint draws the same noise. */
enum net_noise {
    NET_AT_WEIGHTS,
    NET_AT_PROJECTION,
    NET_AT_PATH1,
    NET_AT_HIDDEN,
    NET_AT_OUTPUT,
    NET_AT_PATH2,
    NET_AT_PATH3,
    NET_NOISES = 8
};
uint32_t net_stream(int layer, enum net_noise place);
/* Dropout of x, and stochastic depth of a branch, with the stream of that position; x itself in a graph without noise. */
struct pk_val net_dropout(struct net *n, struct pk_val x, int layer, enum net_noise place);
struct pk_val net_drop_path(struct net *n, struct pk_val x, int layer, enum net_noise place);

/* Adds the outputs of model_graph_maps for attention module `at`; q (B, H, Nq, d), k (B, H, Nk, d). */
void net_maps(struct net *n, size_t at, struct pk_val q, struct pk_val k, struct pk_attention_spec spec);
/* Adds the outputs of model_graph_probe: the statistics of a module; the activations after block `layer`. */
struct pk_attention_stats net_stats(struct net *n, struct pk_val q, struct pk_val k, struct pk_val x,
                                    struct pk_attention_spec spec);
void net_activations(struct net *n, int layer, struct pk_val x);

/* The public names of a transformer block, whose norms are placed by the spec (kernels/ATTENTION.md 10). */
struct net_block {
    const char *prefix; /* "blocks": block 3 is "blocks.3" */
    const char *norm1, *attention, *qkv, *proj, *mid1, *norm2, *mlp, *fc1, *fc2, *mid2;
    bool hidden_dropout; /* dropout also after the activation */
    bool residual_std;   /* normal forms of `init`: projections into the residual stream have deviation
                            0.02 / sqrt(2 depth) */
};
/* x (B, N, D) -> (B, N, D) through block `layer`. */
struct pk_val net_block(struct net *n, struct pk_val x, const struct net_block *b, int layer);

/* One block of a network whose blocks differ. */
struct net_place {
    int number; /* in names: "blocks.3" */
    int layer;  /* index among all blocks; selects streams of noise and the rate of stochastic depth */
    int32_t width, heads, mlp_width;
    const struct model_attention *attention;
    /* Replaces net_attention over all tokens; NULL: not replaced. `path`, `qkv`: paths of the module and of W_qkv. */
    struct pk_val (*attend)(struct net *n, struct pk_val x, const struct net_place *p, const char *path,
                            const char *qkv);
    const void *user; /* data of attend */
};
struct pk_val net_block_at(struct net *n, struct pk_val x, const struct net_block *b,
                           const struct net_place *p);
/* The feed-forward network alone, with the names in `b`: fc1, the activation, fc2. */
struct pk_val net_feed_forward(struct net *n, struct pk_val x, const struct net_block *b,
                               const struct net_place *p);
/* Marks `name`.weight of block `layer` as one of the weights that experiments compare. */
void net_mark(struct net *n, const char *name, enum model_weight weight, int layer);
/* InputNorm; x itself if the placement has none. */
struct pk_val net_input_norm(struct net *n, struct pk_val x, const char *name);
/* Dropout after the embedding. */
struct pk_val net_embedding_dropout(struct net *n, struct pk_val x);
/* Whether training draws noise. */
bool model_has_noise(const struct model_spec *s);

/* ---- images with the channels last (convolution.c) ---- */

/* Returns the parameter `name`.`suffix`, initially `value` everywhere. */
struct pk_val net_vector(struct net *n, const char *name, const char *suffix, enum model_role role,
                         struct pk_shape shape, double value);
/* Convolution without a bias: x (B, H, W, C) -> (B, Ho, Wo, out) by `name`.weight (out, C, k, k). */
struct pk_val net_convolution(struct net *n, struct pk_val x, const char *name, int64_t out, int64_t k,
                              int32_t stride, int32_t pad);
/* Depthwise convolution of x (B, H, W, C) by `name`.weight (C, 1, k, k), plus `name`.bias. */
struct pk_val net_depthwise(struct net *n, struct pk_val x, const char *name, int64_t k);
/* BatchNorm over all axes of x but the last (arXiv:1502.03167): gain `name`.weight, offset `name`.bias, buffers
 * `name`.running_mean, .running_var and .num_batches_tracked (applied steps). A training graph normalises by the biased
 * variance of the batch over all ranks, and updates the buffers with momentum 0.1 and the unbiased variance; one with a
 * frozen running_mean or running_var, and other graphs, normalise by the buffers. */
struct pk_val net_batch_norm(struct net *n, struct pk_val x, const char *name);

/* ---- landmark attention (landmarks.c; Nystromformer, arXiv:2102.03902) ---- */

struct net_nystrom_spec {
    /* phi, its scale, mask of keys; a learned scale is that of all three matrices */
    struct pk_attention_spec attention;
    int64_t landmarks; /* m, divides the number of tokens n; m >= n: exact attention */
    int32_t iterations;
    enum model_pinv start;
    int64_t groups; /* independent equal parts of the batch; 0: 1 */
    enum model_apply apply;
};
struct net_nystrom {
    struct pk_val y;     /* (B, n, H, d) */
    struct pk_val q, k;  /* landmarks (B, H, m, d); PK_NONE, like f2 and z, for exact attention */
    struct pk_val f2, z; /* (B, H, m, m) without the scale, and its pseudo-inverse */
};
/* Landmark attention of q, k, v (B, n, H, d). Padding rows of q and k are 0. */
struct net_nystrom net_nystrom(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                               const struct net_nystrom_spec *s);
/* Means of n / m consecutive rows of x (B, n, H, d): (B, m, H, d). */
struct pk_val net_landmarks(struct pk_graph *g, struct pk_val x, int64_t m);
/* Pseudo-inverse of f (B, H, m, m) by `iterations` steps z = z (13 I - fz (15 I - fz (7 I - fz))) / 4. The gradient flows
 * through all steps and the initial z. */
struct pk_val net_pseudo_inverse(struct pk_graph *g, struct pk_val f, enum model_pinv start, int64_t groups,
                                 int32_t iterations);
/* (1): |f z f - f| / |f|, Frobenius norms over all matrices. */
struct pk_val net_inverse_residual(struct pk_graph *g, struct pk_val f, struct pk_val z);
/* Convolution of each head of x (B, n, H, d) along the tokens with its kernel of w (H, 1, k, 1), zero padding. */
struct pk_val net_sequence_convolution(struct pk_graph *g, struct pk_val x, struct pk_val w);

/* ---- mixed images ---- */

/* Mixes images (B, C, H, W) within groups of `group` by the input "mix"; writes the weights and partners of the labels to
 * *rows. */
struct pk_val net_mix(struct net *n, struct pk_val images, int32_t group, struct model_rows *rows);

/* ---- a teacher ---- */

/* The distillation loss, (1), summed over valid rows. The teacher's logits are computed from the same images, or read
 * from the input "teacher". No gradient flows to the teacher. */
struct pk_val net_distil(struct net *n, const struct model_distil *d, struct pk_val images,
                         const struct model_rows *rows);

/* ---- images ---- */

/* A block with timm's names. */
extern const struct net_block net_timm_block;
/* A learned token (1, 1, D), repeated for each image: (B, 1, D). std: deviation of its initial values. */
struct pk_val net_token(struct net *n, const char *name, double std);
/* `pos_embed` (1, count, D). */
struct pk_val net_positions(struct net *n, int64_t count);

/* Patch embedding: images (B, C, H, W) -> (B, patches, D), row by row; a convolution with stride equal to the kernel size
 * (`patch_embed.proj`). */
struct pk_val net_patches(struct net *n, struct pk_val images);
/* Checks what every network of images requires: extents, classes, patches that divide the image. PD_ERR_INVALID. */
PD_NODISCARD enum pd_err net_check_images(const struct model_spec *s, struct pd_why *why);
/* Reads the patch size from the document. PD_ERR_INVALID: the document's image size differs from that of the data. */
PD_NODISCARD enum pd_err net_images_from_config(const struct job_config *c, struct model_spec *s,
                                                struct pd_why *why);

/* Normalises images (.., C, H, W), bytes or numbers in 0..1 by the spec's `pixels`, to (value - mean) / std of the channel
 * in f32, converted to the spec's dtype. Training, validation and serving share it. */
struct pk_val net_normalise(struct pk_graph *g, const struct model_spec *s, struct pk_val x);

/* ---- the optimiser part of a training graph ---- */

struct model_optim_item {
    const char *name;
    struct pk_val param, grad;
    bool decay;
    double lr_mult;
    int32_t owner; /* rank that stores its moments; -1: all ranks */
};

/* Emits clipping and one update per item, with the inputs, states and outputs of model_graph_train. reported:
 * `reported_count` values, each (1), that begin the output "report"; none: there is no report. loss PK_NONE: the gate
 * tests the gradient only. divisor (1): divides the gradients of the items; PK_NONE: 1. Returns the gate (1): 0 if the
 * step is not applied. */
struct pk_val model_emit_optimiser(struct pk_graph *g, const struct model_train_options *o,
                                   struct pk_val loss, struct pk_val divisor,
                                   const struct model_optim_item *item, size_t count,
                                   const struct pk_val *reported, size_t reported_count);
