/* daemon/worker/serve/sample.h: from logits to a token.
 *
 * Pure functions over host memory. The random number of token i of a completion is a function of (seed, i)
 * alone, so the same request gives the same text whatever ran before or runs concurrently. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct serve_pick {
    double temperature; /* 0 = argmax */
    double top_p;       /* 0..1, applied after the next two */
    int32_t top_k;      /* number of most likely tokens; 0 = all */
    double min_p;       /* 0..1: tokens with at least this share of the largest probability */
    uint64_t seed;
    uint64_t index; /* of the token in its completion */
};

/* Scratch memory for a vocabulary of `count` tokens: 16 bytes per token. */
struct serve_sampler {
    int32_t count;
    float *weight; /* owned */
    int32_t *rank; /* owned */
};

PD_NODISCARD enum pd_err serve_sampler_init(struct serve_sampler *s, int32_t count);
void serve_sampler_done(struct serve_sampler *s);

/* The token chosen from `logits` (s->count of them), -1 when none is finite or any is NaN or +Inf. A token
 * with -Inf is never chosen. Ties go to the smaller id. */
int32_t serve_sample(struct serve_sampler *s, const float *logits, const struct serve_pick *pick);

/* logsumexp of the logits, in double; NaN if one is NaN. */
double serve_logsumexp(const float *logits, int32_t count);

/* Writes the `most` most likely tokens in descending order, ties by smaller id; returns their number (fewer only if the
 * vocabulary is smaller). */
uint32_t serve_top(const float *logits, int32_t count, uint32_t most, int32_t *ret_ids);

/* Uniform in [0, 1) with 53 bits, from (seed, index). */
double serve_uniform(uint64_t seed, uint64_t index);
