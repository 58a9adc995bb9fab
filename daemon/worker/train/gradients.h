/* daemon/worker/train/gradients.h: private to this module: distributions of a gradient's entries, for the weights of
 * attention and feed-forward, by layer and over all layers (train.h: struct train_blob; tails.h).
 *
 * The gradient is that of the training loss over one whole batch, the one that the next step trains on, without
 * dropout. Only rank 0 computes it, over the whole batch in parts. Training thread only. */
#pragma once

#include "daemon/worker/train/session.h"

struct gradients;

/* Plans the graph. `store` is borrowed until gradients_close, as `s` is. On PD_OK the caller owns *ret: NULL where the
 * document asks for no histograms. */
PD_NODISCARD enum pd_err gradients_open(const struct session *s, struct model_store *store,
                                        struct gradients **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct gradients *gradients_close(struct gradients *g);
/* Whether the document has histograms after `step` steps. */
bool gradients_due(const struct gradients *g, int64_t step);
/* Computes and reports them for the current parameters: points, and a histogram for each weight and layer. */
PD_NODISCARD enum pd_err gradients_run(struct gradients *g, int64_t step, struct pd_why *why);
