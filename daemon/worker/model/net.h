/* daemon/worker/model/net.h: private to this module: what a model is made of. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "daemon/worker/model/model.h"

/* An attention module as the network declares it. */
struct model_module {
    char name[64]; /* path, as in the names of its parameters */
    struct model_attention attention;
    int32_t heads;
    int64_t windows; /* attention matrices of one sample and head */
    ptrdiff_t scale; /* parameter of its learned scale; -1: it has none */
    enum model_axis axis;
};

struct model {
    struct model_spec spec;
    struct model_param *param; /* buffers last, once the model is declared */
    size_t count, trained, size;
    struct model_module *module; /* in the order of the forward pass */
    size_t modules, module_size;
    size_t blocks;                /* written by net_block */
    struct pk_formula_plan *plan; /* of the spec's formula; NULL: it has none */
    size_t scalars;               /* of the formula, and their names in the order of the plan */
    char scalar[PK_FORMULA_PARAMS][PK_FORMULA_NAME];
};

/* formula.c: reads the spec's formula into m->plan; PD_OK where there is none. The error points at #/attention/formula. */
PD_NODISCARD enum pd_err model_formula_read(struct model *m, struct pd_why *why);

/* Fills the tables of parameters and modules of a new model. */
PD_NODISCARD enum pd_err model_declare(struct model *m, struct pd_why *why);
/* Of that: runs the forward function once. */
PD_NODISCARD enum pd_err model_write_once(struct model *m, struct pd_why *why);

/* InputNorm (S3 to S5) and MidNorm (S4, S5). */
bool model_has_input_norm(const struct model_spec *s);
bool model_has_mid_norm(const struct model_spec *s);

/* ---- writing a graph ---- */

/* What training makes of a buffer b: keep b + (1 - keep) x. x PK_NONE: b. */
struct net_change {
    struct pk_val x;
    double keep;
};

/* A graph being written: the graph, its model, and the handle of each parameter already used.
 *
 * A network is one forward function. It runs once to declare: every parameter that it asks for is added to
 * the model's table, with its shape and initial values, in the order of asking; that order is part of a model
 * (sums over parameters, owners under ZeRO). From then on the same function writes graphs over those
 * parameters. */
struct net {
    struct pk_graph *g;
    const struct model *m;
    struct model *declares; /* the same model while it is declared; else NULL */
    struct pk_val *param;
    int32_t ranks;             /* that train together; 0: this graph does not train */
    struct net_change *change; /* of each parameter that is a buffer; NULL: this graph does not train */
    struct pk_val x, t;        /* the inputs of a network that reads points */
    bool failed;               /* memory ran out while writing */
    bool copies;               /* matrices have working copies */
    bool causal;
    bool teacher;                     /* its parameters are states of the graph, which nothing changes */
    struct pk_val own, distilled;     /* logits of both heads, where the network has a distillation head */
    int64_t batch, tokens;            /* B; N of attention's queries */
    struct pk_attention_stats *stats; /* per attention module if asked for */
    int64_t skip;                     /* leading tokens that are left out of them */
    size_t skipped;                   /* modules in which they are */
    const struct model_maps *maps;    /* the matrices that are outputs; NULL: none */
    int64_t map_tokens, map_count;    /* of those: the widest, the most logits of one head */
    int64_t map_heads;                /* how many heads are given out */
    int64_t map_bytes;                /* all matrices together, as f32 */
    struct pk_val *residual; /* per attention module with a pseudo-inverse, where stats are asked for */
    size_t module;           /* attention modules written so far */
    struct pk_val rng;       /* PK_NONE: no noise */
    /* decoding */
    bool decode;
    int64_t cache; /* 0: a state of constant size instead */
    struct pk_val position, length;
};

/* Properties of a parameter at its declaration. */
struct net_how {
    enum model_role role;
    bool factor; /* products read it: a mixed plan computes with a bf16 copy */
    bool narrow; /* a model that only serves may hold it in bf16 */
    bool decay;
    struct model_start start;
};

/* The parameter of that name; declared first, where the model is. */
struct pk_val net_param(struct net *n, const char *name, struct pk_shape shape, const struct net_how *how);
/* A buffer: it begins as `value`, nothing is differentiated by it and no optimiser changes it. Checkpoints,
 * ranks, averages and evaluation take it for a parameter. */
struct pk_val net_buffer(struct net *n, const char *name, struct pk_shape shape, double value);
/* Training makes keep b + (1 - keep) x of that buffer, at the end of a step that is applied; elsewhere this is
 * nothing. x has its shape, flows no gradient, and is the same on all ranks (net_rank_mean). */
void net_buffer_update(struct net *n, const char *name, struct pk_val x, double keep);
/* The mean over ranks of x, of which each has its own; x itself in a graph that does not train. */
struct pk_val net_rank_mean(struct net *n, struct pk_val x);
/* Its place in the table; model_param_count: there is none of that name. */
size_t net_param_index(const struct model *m, const char *name);
/* Lists an attention module while the network is declared, when n->batch is 1. scale: the parameter of its
 * learned scale, if it has one. */
void net_module_declare(struct net *n, const char *name, const struct model_attention *a, int32_t heads,
                        size_t scale);
/* What the module declared last attends between; left out: tokens. */
void net_module_axis(struct net *n, enum model_axis axis);
/* Initial values of a matrix by the model's `init`. std: of the normal forms. */
struct model_start net_start(const struct model_spec *s, double fan_in, double fan_out, double std);
/* Bounded normal of the normal forms, whatever `init` says: embeddings. */
struct model_start net_start_normal(const struct model_spec *s, double std);
#define NET_STD 0.02 /* of the normal forms of `init` */

/* Norm over the last extent of x. */
struct pk_val net_norm(struct net *n, struct pk_val x, const char *name);
/* The parameters of that norm take their place in the table here, before it is used. */
void net_norm_declare(struct net *n, const char *name, int64_t width);
/* x (.., in) -> (.., out), with a bias where the model has them. */
struct pk_val net_linear(struct net *n, struct pk_val x, const char *name, int64_t out,
                         struct model_start start);
/* The one learned scale of a whole model (scale_share global) takes its place in the table. */
void net_shared_scale(struct net *n, const struct model_attention *a);

/* Values of pairs of tokens for an attention module; PK_NONE: it has none. */
struct net_pairs {
    struct pk_val bias; /* (H, N, N), added to the logits before phi */
    struct pk_val mask; /* U8 (W, N, N), W divides B: sample b has mask b % W; 0: the pair's weight is 0 */
};
/* Attention of x (B, N, D) with `heads` heads: W_qkv (`qkv`), normalised queries and keys where `a` wants
 * them, phi, all of it but the projection behind. `name`: the module's path; `layer`: its stream of noise.
 * pairs NULL: no bias, no mask. */
struct pk_val net_attention(struct net *n, struct pk_val x, const struct model_attention *a, int32_t heads,
                            const char *name, const char *qkv, int layer, const struct net_pairs *pairs);

/* c as a graph value, where it is learned; its place in the table goes to *ret_index. path: the module's. */
struct pk_val net_learned_scale(struct net *n, const struct model_attention *a, int32_t heads,
                                const char *path, size_t *ret_index);
/* The formula of an attention module and its learned scalars (P, heads) into `spec`, where it has one. path: the
 * module's; layer: from 0; width: of a head. */
void net_formula(struct net *n, const struct model_attention *a, int32_t heads, const char *path, int layer,
                 int64_t width, struct pk_attention_spec *spec);
/* Scalars that a whole model shares take their place in the table. */
void net_formula_shared(struct net *n, const struct model_attention *a);
/* Initial values of W_Q | W_K | W_V, of width d each. */
struct model_start net_start_qkv(const struct model_spec *s, const struct model_attention *a, int64_t d);

/* Places of noise in a layer; each draws from a stream of its own. The numbers are kept for good: a run goes on
 * from its checkpoint with the same draws. */
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
/* Dropout, and stochastic depth of a branch, at that place; x itself in a graph without noise. */
struct pk_val net_dropout(struct net *n, struct pk_val x, int layer, enum net_noise place);
struct pk_val net_drop_path(struct net *n, struct pk_val x, int layer, enum net_noise place);

/* Makes outputs of what model_graph_maps promises of attention module `at`, q (B, H, Nq, d), k (B, H, Nk, d). */
void net_maps(struct net *n, size_t at, struct pk_val q, struct pk_val k, struct pk_attention_spec spec);
/* Likewise of the probe: statistics of the module; the activations behind block `layer`. */
struct pk_attention_stats net_stats(struct net *n, struct pk_val q, struct pk_val k, struct pk_val x,
                                    struct pk_attention_spec spec);
void net_activations(struct net *n, int layer, struct pk_val x);

/* A transformer block in its placements (kernels/ATTENTION.md 10), with a network's public names. */
struct net_block {
    const char *prefix; /* "blocks": block 3 is "blocks.3" */
    const char *norm1, *attention, *qkv, *proj, *mid1, *norm2, *mlp, *fc1, *fc2, *mid2;
    bool hidden_dropout; /* dropout behind the activation as well */
    bool residual_std;   /* normal forms of `init`: projections into the residual stream begin at
                            0.02 / sqrt(2 depth) */
};
/* x (B, N, D) -> (B, N, D) through block `layer`. */
struct pk_val net_block(struct net *n, struct pk_val x, const struct net_block *b, int layer);

/* One block of a network whose blocks differ. */
struct net_place {
    int number; /* in names: "blocks.3" */
    int layer;  /* of all blocks: its streams of noise, its share of stochastic depth */
    int32_t width, heads, mlp_width;
    const struct model_attention *attention;
    /* Instead of net_attention over all tokens; `path`, `qkv`: the module's path and that of W_qkv. */
    struct pk_val (*attend)(struct net *n, struct pk_val x, const struct net_place *p, const char *path,
                            const char *qkv);
    const void *user; /* of attend */
};
struct pk_val net_block_at(struct net *n, struct pk_val x, const struct net_block *b,
                           const struct net_place *p);
/* Its two linear layers alone, named by `b`: fc1, the activation, fc2. */
struct pk_val net_feed_forward(struct net *n, struct pk_val x, const struct net_block *b,
                               const struct net_place *p);
/* Says which of the weights that experiments compare the matrix `name`.weight of block `layer` is. */
void net_mark(struct net *n, const char *name, enum model_weight weight, int layer);
/* InputNorm, or x itself where the placement has none. */
struct pk_val net_input_norm(struct net *n, struct pk_val x, const char *name);
/* Dropout behind the embedding. */
struct pk_val net_embedding_dropout(struct net *n, struct pk_val x);
/* Whether training draws noise. */
bool model_has_noise(const struct model_spec *s);

/* ---- images with the channels last (convolution.c) ---- */

/* A vector of the model: `name`.`suffix`, all of whose values begin as `value`. */
struct pk_val net_vector(struct net *n, const char *name, const char *suffix, enum model_role role,
                         struct pk_shape shape, double value);
/* x (B, H, W, C) -> (B, Ho, Wo, out) by `name`.weight (out, C, k, k), without a bias. */
struct pk_val net_convolution(struct net *n, struct pk_val x, const char *name, int64_t out, int64_t k,
                              int32_t stride, int32_t pad);
/* Each channel of x (B, H, W, C) by its own k x k kernel, `name`.weight (C, 1, k, k), plus `name`.bias. */
struct pk_val net_depthwise(struct net *n, struct pk_val x, const char *name, int64_t k);
/* BatchNorm over all axes of x but the last (arXiv:1502.03167): gains `name`.weight, offsets `name`.bias, buffers
 * `name`.running_mean, .running_var and .num_batches_tracked (applied steps). A graph that trains normalises by
 * the biased variance of the batch of all ranks and moves the buffers by a tenth, the variance unbiased; others
 * normalise by the buffers. */
struct pk_val net_batch_norm(struct net *n, struct pk_val x, const char *name);

/* ---- sequences through landmarks (landmarks.c) ---- */

struct net_nystrom_spec {
    /* phi, its factor, mask of keys; a learned factor is that of all three matrices */
    struct pk_attention_spec attention;
    int64_t landmarks; /* m, divides the tokens; as many tokens or fewer: attention itself */
    int32_t iterations;
    enum model_pinv start;
    int64_t groups; /* equal parts of the batch that know nothing of each other; 0 stands for 1 */
    enum model_apply apply;
};
struct net_nystrom {
    struct pk_val y;     /* (B, n, H, d) */
    struct pk_val q, k;  /* landmarks (B, H, m, d); PK_NONE, as what follows, where attention is itself */
    struct pk_val f2, z; /* (B, H, m, m) without the factor, and its pseudo-inverse */
};
/* Attention of q, k, v (B, n, H, d) through landmarks. Padding is 0 in q and k. */
struct net_nystrom net_nystrom(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                               const struct net_nystrom_spec *s);
/* Means of n / m rows of x (B, n, H, d) each: (B, m, H, d). */
struct pk_val net_landmarks(struct pk_graph *g, struct pk_val x, int64_t m);
/* Of f (B, H, m, m), by so many steps z = z (13 I - fz (15 I - fz (7 I - fz))) / 4, differentiated through all of them
 * and the start. */
struct pk_val net_pseudo_inverse(struct pk_graph *g, struct pk_val f, enum model_pinv start, int64_t groups,
                                 int32_t iterations);
/* (1): |f z f - f| / |f|, of all matrices together. */
struct pk_val net_inverse_residual(struct pk_graph *g, struct pk_val f, struct pk_val z);
/* Each head of x (B, n, H, d) by its kernel of w (H, 1, k, 1) along the tokens, zeros beyond the ends. */
struct pk_val net_sequence_convolution(struct pk_graph *g, struct pk_val x, struct pk_val w);

/* ---- mixed images ---- */

/* images (B, C, H, W) mixed within groups of so many, as input "mix" says; *rows gets the shares and partners
 * of their labels. */
struct pk_val net_mix(struct net *n, struct pk_val images, int32_t group, struct model_rows *rows);

/* ---- a teacher ---- */

/* (1): the sum over valid rows of what the distillation head has not learned of the teacher, whose logits of
 * the same images it computes, or reads from input "teacher". No gradient flows to the teacher. */
struct pk_val net_distil(struct net *n, const struct model_distil *d, struct pk_val images,
                         const struct model_rows *rows);

/* ---- images ---- */

/* A block with timm's names. */
extern const struct net_block net_timm_block;
/* A learned token (1, 1, D), repeated for each image: (B, 1, D). std: of its initial values. */
struct pk_val net_token(struct net *n, const char *name, double std);
/* `pos_embed` (1, count, D). */
struct pk_val net_positions(struct net *n, int64_t count);

/* images (B, C, H, W) -> (B, patches, D), row by row: a convolution whose stride is its size
 * (`patch_embed.proj`). */
struct pk_val net_patches(struct net *n, struct pk_val images);
/* What every network of images asks of its data: extents, classes, and that patches divide the image. */
PD_NODISCARD enum pd_err net_check_images(const struct model_spec *s, struct pd_why *why);
/* From the document: the size of a patch; images of another size than the data's are refused. */
PD_NODISCARD enum pd_err net_images_from_config(const struct job_config *c, struct model_spec *s,
                                                struct pd_why *why);

/* Images (.., C, H, W), bytes or numbers 0..1 as `pixels` says, to (value - mean) / std of the channel, in f32
 * and then of the spec's dtype: one place for training, validation and serving. */
struct pk_val net_normalise(struct pk_graph *g, const struct model_spec *s, struct pk_val x);

/* ---- the optimiser part of a training graph ---- */

struct model_optim_item {
    const char *name;
    struct pk_val param, grad;
    bool decay;
    double lr_mult;
    int32_t owner; /* rank that keeps its moments; -1: all do */
};

/* Emits clipping and one update per item, with the inputs, states and outputs that model_graph_train names.
 * reported (`reported_count` of them, each (1)): what the output "report" begins with; none: there is no report. loss
 * PK_NONE: the gate looks at the gradient alone. divisor (1): the gradients of the items are so many times too
 * large; PK_NONE: they are not. Returns the gate (1): 0 where the step is not applied. */
struct pk_val model_emit_optimiser(struct pk_graph *g, const struct model_train_options *o,
                                   struct pk_val loss, struct pk_val divisor,
                                   const struct model_optim_item *item, size_t count,
                                   const struct pk_val *reported, size_t reported_count);
