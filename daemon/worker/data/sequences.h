/* daemon/worker/data/sequences.h: private to this module: generated sequences with classes (ListOps, Pathfinder), as
 * texts. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

struct data_sequences {
    enum data_dataset kind; /* DATA_SET_LISTOPS_GEN, DATA_SET_LISTOPS or DATA_SET_PATHFINDER_GEN */
    uint64_t seed;
    int64_t context;  /* most tokens of a sequence; Pathfinder: pixels of the picture */
    int64_t shortest; /* ListOps: fewest tokens of a sequence */
    int32_t depth;    /* ListOps: most levels of an expression */
    int32_t contour;  /* Pathfinder: dashes of a curve */
};

/* Side of the picture in a sequence of `context` tokens: its square root, or 32 if `context` is a multiple of 1024 but no
 * square (the picture then comes first). 0: neither, or the side is out of range. */
int data_sequences_side(int64_t context);
/* PD_ERR_INVALID: sizes that no sequence can have; the sentence names the field. */
PD_NODISCARD enum pd_err data_sequences_check(const struct data_sequences *s, struct pd_why *why);
/* Makes the tokenizer of a kind: words with id 0 for padding (ListOps), or ids 0 to 255, the grey values (Pathfinder).
 * The caller owns *ret. */
PD_NODISCARD enum pd_err data_sequences_tokenizer(enum data_dataset kind, struct data_tokenizer **ret,
                                                  struct pd_why *why);
/* Replaces the content of `out` by sequence `number`, and returns its class. A pure function of its arguments. */
PD_NODISCARD enum pd_err data_sequence_make(const struct data_sequences *s, uint64_t number,
                                            struct pd_buf *out, int *ret_class, struct pd_why *why);
