/* tests/backend/attention_rig.h: one case of attention, forward and backward, against the reference. */
#pragma once

#include "tests/backend/rig.h"

struct shape {
    int b, h, nq, nk, d;
};

struct attention_case {
    const char *name;
    struct shape shape;
    struct pk_attention_attr attr; /* tau 0: 1/sqrt(d); has_ flags are set from what follows */
    enum pk_dtype dtype;
    double spread; /* q and k lie in -spread..spread */
    const struct pk_view *mask, *length, *scale, *bias, *rng;
    bool strided;
    double tolerance;
};

/* The backward pass takes y and the sums from the back end's own rounding of them. */
void attention_check(const struct attention_case *t);
