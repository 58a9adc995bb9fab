/* daemon/worker/data/sequences.h: private to this module: sequences with classes that polyd makes itself, as texts. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

struct data_sequences {
    enum data_dataset kind; /* DATA_SET_LISTOPS_GEN, DATA_SET_LISTOPS or DATA_SET_PATHFINDER_GEN */
    uint64_t seed;
    int64_t context;  /* tokens of a sequence at most; of a picture its pixels */
    int64_t shortest; /* ListOps: tokens of a sequence at least */
    int32_t depth;    /* ListOps: levels of an expression at most */
    int32_t contour;  /* Pathfinder: dashes of a curve */
};

/* The side of the picture in a sequence of so many tokens: all of it is a square, or it begins with one of 32 x 32 and is a
 * multiple of that long. 0: there is none, or it is too small or too large. */
int data_sequences_side(int64_t context);
PD_NODISCARD enum pd_err data_sequences_check(const struct data_sequences *s, struct pd_why *why);
/* What its texts are read by: words, of which id 0 is padding; or ids, the greys 0 to 255. */
PD_NODISCARD enum pd_err data_sequences_tokenizer(enum data_dataset kind, struct data_tokenizer **ret,
                                                  struct pd_why *why);
/* Sequence `number` in place of what `out` holds, and its class: a pure function of its arguments. */
PD_NODISCARD enum pd_err data_sequence_make(const struct data_sequences *s, uint64_t number,
                                            struct pd_buf *out, int *ret_class, struct pd_why *why);
/* Appends a text of the Long Range Arena's ListOps without its parentheses. PD_ERR_INVALID names a word that is no token
 * of it. */
PD_NODISCARD enum pd_err data_listops_clean(const char *text, size_t len, struct pd_buf *out,
                                            struct pd_why *why);
