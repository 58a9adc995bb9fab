/* tests/golden/network.h: the networks of models/ and train/ from the formulas of tests/golden/README.md 1,
 * 4, 5 and 7: loss, gradients, optimiser steps, all in double. Shares no code with kernels/ or daemon/; reads
 * the config alone.
 *
 * With bits 0 it must give the vectors' own losses, which proves the formulas. With bits 8 it is the
 * emulation of bf16 that tests/golden/README.md 1 describes and that loss_tol_bf16 was made from: operands
 * and results of every product are rounded to eight significant bits; sums, norms and the residual stream are
 * not, nor are the logits of attention, which kernels/ATTENTION.md 7 wants wide ("rounding S before the power
 * multiplies that error by p"). Bits 24 are f32. How far a rounded run is from the exact one is the error of
 * the format itself: the bands of models.c and train.c are made of it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct network_param {
    char name[96];
    size_t count;
    double *value, *grad;
    double *first, *second; /* the optimiser's moments; second NULL for mSGDW */
    bool decayed;
};

struct network;

/* NULL for a config that is not of a network. */
struct network *network_new(const json_t *config, int bits);
struct network *network_free(struct network *n);
/* Copies the values in. Only what is added is part of the network: biases, norms' offsets, learned scales. */
void network_add(struct network *n, const char *name, const double *value, size_t count);
size_t network_param_count(const struct network *n);
struct network_param *network_param(struct network *n, size_t i);

/* The loss of `batch` samples and its gradient, before clipping, in every param. `input`: token ids or
 * images. NAN if a parameter was missing. */
double network_gradient(struct network *n, const double *input, const double *target, size_t batch);
/* Those of the last network_gradient; valid until the next. NULL before. */
const double *network_logits(const struct network *n);
/* Clips and updates; step counts from 0. Returns the global norm before clipping. */
double network_update(struct network *n, double lr, size_t step);
/* The 2-norm of a - b. */
double network_distance(const double *a, const double *b, size_t count);
