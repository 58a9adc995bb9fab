/* daemon/model/net.h: private to this room: what a model is made of. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "daemon/model/model.h"

struct model {
    struct model_spec spec;
    struct model_param *param;
    size_t count, size;
};

/* Patches of an image. */
int64_t model_patches(const struct model_spec *s);
/* Last part of a learned scale's name. */
const char *model_scale_name(const struct model_spec *s);
/* InputNorm (S3 to S5) and MidNorm (S4, S5). */
bool model_has_input_norm(const struct model_spec *s);
bool model_has_mid_norm(const struct model_spec *s);

/* ---- writing a graph ---- */

/* A graph being written: the graph, its model, and the handle of each parameter already used. */
struct net {
    struct pk_graph *g;
    const struct model *m;
    struct pk_val *param;
    bool failed; /* memory ran out while writing */
    bool copies; /* matrices have working copies */
    bool causal;
    int64_t batch, tokens;            /* B; N of attention's queries */
    struct pk_attention_stats *stats; /* per layer if asked for */
    struct pk_val rng;                /* PK_NONE: no noise */
    /* decoding */
    bool decode;
    int64_t cache; /* 0: a state of constant size instead */
    struct pk_val position, length;
};

/* PK_NONE where the model has no such parameter (biases). */
struct pk_val net_param(struct net *n, const char *name);
struct pk_val net_norm(struct net *n, struct pk_val x, const char *name);
struct pk_val net_linear(struct net *n, struct pk_val x, const char *name);
/* x (B, N, D) -> (B, N, D) through block `layer`. */
struct pk_val net_block(struct net *n, struct pk_val x, int layer);
/* InputNorm, or x itself where the placement has none. */
struct pk_val net_input_norm(struct net *n, struct pk_val x);
/* Dropout behind the embedding. */
struct pk_val net_embedding_dropout(struct net *n, struct pk_val x);
/* Whether training draws noise. */
bool model_has_noise(const struct model_spec *s);

/* ---- the optimiser part of a training graph ---- */

struct model_optim_item {
    const char *name;
    struct pk_val param, grad;
    bool decay;
    double lr_mult;
    int32_t owner; /* rank that keeps its moments; -1: all do */
};

/* Emits clipping and one update per item, with the inputs, states and outputs that model_graph_train names.
 * told (may be NULL): loss, count and correct, for the output "report". loss PK_NONE: the gate looks at the
 * gradient alone. divisor (1): the gradients of the items are so many times too large; PK_NONE: they are not.
 */
void model_emit_optimiser(struct pk_graph *g, const struct model_train_options *o, struct pk_val loss,
                          struct pk_val divisor, const struct model_optim_item *item, size_t count,
                          const struct pk_val *told);
