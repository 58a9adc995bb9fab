/* daemon/worker/train/batches.h: private to this module: feeds the batches of training, one after the other,
 * to the inputs of a step.
 *
 * A loader prepares them. If the back end's memory is not the host's, batches are transferred through two
 * alternating slots, the next one while a step runs. Used by the trainer only. */
#pragma once

#include "daemon/worker/train/session.h"

struct batches;

/* Begins with the batch of step `first`. `reader`: the executable that reads a part of each, borrowed during
 * the call. On PD_OK the caller owns *ret, which borrows `s`. */
PD_NODISCARD enum pd_err batches_open(const struct session *s, const struct executable *reader, int64_t first,
                                      struct batches **ret, struct pd_why *why);
/* While the back end is open. NULL is fine; returns NULL. */
struct batches *batches_close(struct batches *b);

/* Moves on to the next batch. */
PD_NODISCARD enum pd_err batches_next(struct batches *b, struct pd_why *why);
/* Part `part` of the batch, to the inputs that `e` has. */
PD_NODISCARD enum pd_err batches_feed(struct batches *b, struct executable *e, int64_t part,
                                      struct pd_why *why);
/* Called while a step runs: sends the batch after this one. A failure is reported by batches_next. */
void batches_send_next(struct batches *b);
/* The loader of the batches, for reports of its waiting time. Borrowed until batches_close. */
const struct data_loader *batches_loader(const struct batches *b);
