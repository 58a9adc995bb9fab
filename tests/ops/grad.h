/* tests/ops/grad.h: checks of a piece of graph: its derivatives against central differences in f64, and its
 * fused form against its decomposed one. */
#pragma once

#include "tests/graph/rig.h"

#define GRAD_TOL 2e-7

struct build {
    const char *label;
    /* Leaves into leaf/name (at most 6); returns y. */
    struct pk_val (*make)(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n);
    void (*fill)(struct rig *r); /* special contents; may be NULL */
    bool second;
};

/* First or second derivatives of a scalar made of y. */
void grad_check(const struct build *b, bool decomposed, bool second);
/* The tangent of y along tangents of all leaves (pk_jvp), against differences of y. */
void grad_check_jvp(const struct build *b, bool decomposed);
/* Values and gradients of the fused nodes against those of their definitions. */
void grad_check_fused_is_decomposed(const struct build *b);

/* A scalar that depends on every element of y with a weight of its own, and not linearly. */
struct pk_val grad_weigh(struct pk_graph *g, struct pk_val y, const char *name);
/* Completes a graph whose scalar is f: gradients by `leaf`s, then differences. */
void grad_check_first(struct rig *r, struct pk_val f, const struct pk_val *leaf, const char *const *name,
                      size_t n);

static inline struct pk_val grad_param(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n,
                                       const char *called, struct pk_shape shape)
{
    leaf[*n] = pk_param(g, called, PK_F64, shape);
    name[*n] = called;
    return leaf[(*n)++];
}

/* The same for a scalar made of the gradients of f: the transform applied to its own output. */
void grad_check_second(struct rig *r, struct pk_val f, const struct pk_val *leaf, const char *const *name,
                       size_t n);

#define MAKE(f) static struct pk_val f(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n)
#define P(called, ...) grad_param(g, leaf, name, n, called, PK_SHAPE(__VA_ARGS__))
