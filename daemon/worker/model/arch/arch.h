/* daemon/worker/model/arch/arch.h: the description of a network. Each network is one file in this folder and one word in
 * networks.h.
 *
 * `forward` is the only description of its parameters (see struct net). */
#pragma once

#include "daemon/worker/model/net.h"

struct job_config;

enum model_reads { MODEL_READS_IMAGES, MODEL_READS_TOKENS, MODEL_READS_POINTS };

/* The extent of a tensor that equals a size of the network. */
struct model_extent {
    const char *tensor; /* the parameter's name; NULL: no tensor has this size */
    int axis;
};

struct model_arch {
    const char *name; /* as in /model/arch and in checkpoints */
    int number;       /* its number in checkpoints before 2026-11; -1: none */
    enum model_reads reads;
    bool causal;
    bool transposed; /* matrices are stored as [out, in] */
    bool distils;    /* it has a distillation head: forward also sets n->own and n->distilled */
    bool
        class_id; /* with MODEL_POOL_CLS the last id of the vocabulary is the class token, which no text contains */

    /* Reads the network's own settings from the document into *ret, whose common members are set. NULL: it has none. */
    enum pd_err (*from_config)(const struct job_config *c, struct model_spec *ret, struct pd_why *why);
    enum pd_err (*check)(const struct model_spec *s, struct pd_why *why);

    /* The forward pass: images (B, C, H, W), tokens (B, T) or sequences of points (B, k, 2) -> logits: (B, classes) if the
     * spec has classes, else (B T, vocab); for points u (B, k). Tokens with classes have a further input "last" I32 (B):
     * the row among the B T whose output is classified. */
    struct pk_val (*forward)(struct net *n, struct pk_val input);
    /* Decoding: tokens (B, T) at positions (B, T) -> logits (picks, vocab) of the rows `pick`. NULL: the network does not
     * decode. A network with classes never decodes. */
    struct pk_val (*decode)(struct net *n, struct pk_val tokens, struct pk_val positions, struct pk_val pick);
    /* InputNorm and block 0 of x (B, N, D). NULL: its blocks have further inputs. */
    struct pk_val (*first_block)(struct net *n, struct pk_val x);

    /* ---- files of other programs (README.md) ---- */
    const char *prefix;                      /* prefix of names that public files may omit; NULL: none */
    bool (*not_parameter)(const char *name); /* whether to skip a tensor of public files; NULL: never */
    /* The tensor `repeated` of public files must equal the parameter `repeats`: a head tied to the embedding. NULL:
     * none. */
    const char *repeated, *repeats;
    /* Alternative names in public files: a file with the tensor `marker` uses them, and own_name writes the network's own
     * name for one of them to out. It returns which part of the network's own tensor the named one is. NULL: none. */
    struct {
        const char *marker;
        struct model_part (*own_name)(const char *name, char *out, size_t size);
    } respelt;
    /* Sizes that a job takes from its data, and an import from the tensors of a file. */
    struct model_extent classes, channels, vocab;

    const char
        *block; /* prefix of a block's names, * for its number; for layer-wise decay of learning rates */
};

/* The network of that name; static. NULL: there is none. */
const struct model_arch *model_arch_find(const char *name);
/* Sets the kind of *info to the one that the network reads. */
void model_fit_data(const struct model_arch *arch, struct data_info *info);
/* The network with that number in old checkpoints; NULL: there is none. */
const struct model_arch *model_arch_numbered(int number);

/* The settings of a module that attends to `keys` keys: the document's activation with the module's own N, and the scale
 * or bias derived from it. softmax: use softmax instead of the document's activation. */
PD_NODISCARD enum pd_err model_attention_of_keys(const struct job_config *c, double keys, bool softmax,
                                                 struct model_attention *ret, struct pd_why *why);
/* alpha of the factor c N^-alpha of a formula that runs as a built-in; 0: it has no such factor. */
double model_formula_power(const struct job_config *c);
/* Checks the ranges of a module's settings. PD_ERR_INVALID. */
PD_NODISCARD enum pd_err model_attention_check(const struct model_spec *s, const struct model_attention *a,
                                               struct pd_why *why);
