/* daemon/worker/model/arch/arch.h: how a network is described: one file in this folder and one line in
 * networks.h per network.
 *
 * `forward` is the only description of its parameters (see struct net). */
#pragma once

#include "daemon/worker/model/net.h"

struct job_config;

enum model_reads { MODEL_READS_IMAGES, MODEL_READS_TOKENS, MODEL_READS_POINTS };

/* An extent of a tensor that tells a size of the network. */
struct model_extent {
    const char *tensor; /* the parameter's name; NULL: the network has none */
    int axis;
};

struct model_arch {
    const char *name; /* as in /model/arch and in checkpoints */
    int number;       /* in checkpoints of before 2026-11, which held numbers; -1: in none */
    enum model_reads reads;
    bool causal;
    bool transposed; /* matrices lie as [out, in] */
    bool distils;    /* it has a distillation head: forward also sets n->own and n->distilled */
    bool
        class_id; /* with MODEL_POOL_CLS the last id of its vocabulary is the class token, which no text has */

    /* Its own part of the shape, from the document: *ret holds what data and document say to all networks.
     * NULL: it has none. */
    enum pd_err (*from_config)(const struct job_config *c, struct model_spec *ret, struct pd_why *why);
    enum pd_err (*check)(const struct model_spec *s, struct pd_why *why);

    /* images (B, C, H, W), tokens (B, T) or sequences of points (B, k, 2) -> logits, rows as cross-entropy wants
     * them: (B, classes) where the spec has classes, else (B T, vocab); of points u (B, k). Tokens with classes: also input "last" I32 (B), the row of
     * the B T that is read for each text. */
    struct pk_val (*forward)(struct net *n, struct pk_val input);
    /* Tokens (B, T) at positions (B, T) -> logits (picks, vocab) of the rows `pick`. NULL: it does not
     * decode; nor does one with classes. */
    struct pk_val (*decode)(struct net *n, struct pk_val tokens, struct pk_val positions, struct pk_val pick);
    /* InputNorm and block 0 alone, of x (B, N, D). NULL: its blocks need more than x. */
    struct pk_val (*first_block)(struct net *n, struct pk_val x);

    /* ---- files of other programs (README.md) ---- */
    const char *prefix;                      /* of names, which public files may leave out; NULL: none */
    bool (*not_parameter)(const char *name); /* tensors of public files to pass over; NULL: none */
    /* A tensor that public files may hold and that must repeat a parameter, since the network has it only once: a
     * head that is tied to the embedding. NULL: none. */
    const char *repeated, *repeats;
    /* A second spelling of public files: one that holds the tensor `marker` has all its names in it, and own_name writes
     * the network's own name for one of them into out. NULL: there is none. */
    struct {
        const char *marker;
        void (*own_name)(const char *name, char *out, size_t size);
    } respelt;
    /* What a document does not say of the network, because data say it: read off a file's tensors. */
    struct model_extent classes, channels, vocab;

    const char *block; /* beginning of a block's names, * for a number: rates decay from block to block */
};

/* NULL: there is none of that name. */
const struct model_arch *model_arch_find(const char *name);
/* Says that the data are of the kind that the network reads. */
void model_fit_data(const struct model_arch *arch, struct data_info *info);
/* By the number that old checkpoints hold. */
const struct model_arch *model_arch_numbered(int number);

/* What the document's activation is for a module that attends to `keys` keys: its own N, and the factor or bias that
 * comes of it. softmax: whatever the document says of other modules. */
PD_NODISCARD enum pd_err model_attention_of_keys(const struct job_config *c, double keys, bool softmax,
                                                 struct model_attention *ret, struct pd_why *why);
/* Ranges of a module's attention. */
PD_NODISCARD enum pd_err model_attention_check(const struct model_spec *s, const struct model_attention *a,
                                               struct pd_why *why);
