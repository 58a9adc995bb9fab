/* daemon/worker/data/pairs.h: private to this module: classified pairs of passages of documents, each pair one text with
 * a tab between the passages. */
#pragma once

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"

struct data_pairs {
    const uint8_t *text; /* all documents, one after the other; borrowed */
    const int64_t *ends; /* offset of the end of each document in `text`; borrowed */
    uint32_t *usable;    /* memory for `count` indices of documents; owned by the caller */
    size_t count;        /* documents; data_pairs_check reduces it to the usable ones */
    uint64_t seed;
    int64_t length; /* bytes of a passage */
};

/* Fills `usable` with the indices of the documents that are long enough. PD_ERR_INVALID: there are fewer than two. */
PD_NODISCARD enum pd_err data_pairs_check(struct data_pairs *p, struct pd_why *why);
/* Replaces the content of `out` by pair `number` of a part, and returns its class: 1 if both passages come from one
 * document, else 0. A pure function of its arguments. */
int data_pair_make(const struct data_pairs *p, uint64_t number, int part, struct pd_buf *out);
