/* daemon/worker/data/pairs.h: private to this module: pairs of pieces of documents, as texts with a tab between. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

struct data_pairs {
    const uint8_t *text; /* all documents, one after the other; borrowed */
    const int64_t *ends; /* of each document; borrowed */
    uint32_t *usable;    /* room for `count` numbers of documents; the caller's */
    size_t count;        /* documents; after data_pairs_check those that are used */
    uint64_t seed;
    int64_t length; /* bytes of a piece */
};

/* Fills `usable` with the documents that are long enough. PD_ERR_INVALID: fewer than two are. */
PD_NODISCARD enum pd_err data_pairs_check(struct data_pairs *p, struct pd_why *why);
/* Pair `number` of a part in place of what `out` holds, and its class: 1 if both are of one document. A pure function of
 * its arguments. */
int data_pair_make(const struct data_pairs *p, uint64_t number, int part, struct pd_buf *out);
