/* tests/serve/checkpoint.h: writes checkpoints of small untrained models, and computes what they should
 * answer. */
#pragma once

#include "daemon/worker/model/model.h"
#include "kernels/base/buf.h"

/* A classifier of 12 x 12 images with 2 channels and 10 classes; a byte model of context 32; a classifier of 16 bytes, or
 * of pairs of 8, through 4 landmarks to 3 classes. */
struct model_spec test_vit_spec(enum pk_phi phi);
struct model_spec test_gpt_spec(enum pk_phi phi);
struct model_spec test_landmark_spec(enum pk_phi phi, enum model_pinv start, bool pairs);

/* Writes a checkpoint with random weights large enough that its outputs differ, or for seed 0 with zeros, so
 * that all outputs are equal. Pixels of two channels have the means 0.25 and 0.75 and the deviations 0.5 and
 * 0.125, those of any other count 0.25 and 0.5. Aborts on failure. */
void test_checkpoint_write(const char *path, const struct model_spec *spec, uint64_t seed);

/* The same with the serialised tokenizer and the lines of class names that training adds; NULL = none. */
void test_checkpoint_write_full(const char *path, const struct model_spec *spec, uint64_t seed,
                                const struct pd_buf *tokenizer, const char *classes);

/* Logits of the evaluation graph: input (batch, C, H, W) f32 or (batch, T) int32_t; *ret is (batch or batch
 * T, outputs), the caller frees it. `context` counts for a language model. */
float *test_eval_logits(const char *path, const void *input, int32_t batch, int32_t context);
