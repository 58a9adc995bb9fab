/* daemon/worker/serve/queue.h: requests that wait for the model: bounded, first in first out, with deadlines.
 *
 * Bounded twice, by number and by cost (prompt tokens plus tokens asked for, or images), so that few huge
 * requests cannot hold what many small ones may not. A request larger than the whole cost bound is taken only
 * by an empty queue. One thread uses it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct serve_queue;

/* At most `count_max` requests (>= 1) of together `cost_max` (0 = not bounded). On PD_OK the caller owns
 * *ret. */
PD_NODISCARD enum pd_err serve_queue_new(uint32_t count_max, uint64_t cost_max, struct serve_queue **ret);
/* The queue must be empty of what its owner still needs: items are borrowed pointers. Returns NULL. */
struct serve_queue *serve_queue_free(struct serve_queue *q);

/* PD_ERR_BUSY when a bound would be passed; `deadline_us` is a pd_clock_mono_us value, 0 = none. */
PD_NODISCARD enum pd_err serve_queue_push(struct serve_queue *q, void *item, uint64_t cost,
                                          int64_t deadline_us);
/* The oldest item, taken off; NULL when empty. */
void *serve_queue_pop(struct serve_queue *q);
/* The oldest item, left in; NULL when empty. */
void *serve_queue_peek(const struct serve_queue *q);

/* Takes off the oldest item whose deadline is at or before `now_us`, or for which `gone(user, item)` says
 * true (NULL = nobody); NULL when there is none. Call until NULL. *ret_late (may be NULL): it was the
 * deadline. */
void *serve_queue_drop(struct serve_queue *q, int64_t now_us, bool (*gone)(void *user, void *item),
                       void *user, bool *ret_late);

/* The nearest deadline, 0 = none waits with one. */
int64_t serve_queue_next_deadline(const struct serve_queue *q);
uint32_t serve_queue_count(const struct serve_queue *q);
uint64_t serve_queue_cost(const struct serve_queue *q);
