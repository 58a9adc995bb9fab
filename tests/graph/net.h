/* tests/graph/net.h: a transformer-shaped training graph for the planner's tests. */
#pragma once

#include "kernels/graph/graph.h"

struct net {
    int64_t batch, tokens, width, heads, depth, vocabulary;
    enum pk_dtype dtype;
    bool train;    /* gradients and AdamW, else logits only */
    bool clip;     /* a global norm: all gradients live at once */
    bool separate; /* q, k, v as slices instead of packed */
    bool copies;   /* matrices have working copies, "half.<name>" */
    bool gelu_tanh;
    struct pk_attention_spec attention;
};

/* Leaves "tokens", "targets", "hyper", "gate" and parameters; outputs "loss", "logits". */
void net_build(struct pk_graph *g, const struct net *n);
