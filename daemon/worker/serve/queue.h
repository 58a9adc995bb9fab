/* daemon/worker/serve/queue.h: queue of requests for the model: bounded, first in first out, with deadlines.
 *
 * Bounded twice, by number and by cost (prompt tokens plus tokens asked for, or images), so that few large
 * requests count as much as many small ones. A request larger than the whole cost bound is accepted only by
 * an empty queue. One thread uses it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct serve_queue;

/* At most `count_max` requests (>= 1) of together `cost_max` (0 = not bounded). On PD_OK the caller owns
 * *ret. */
PD_NODISCARD enum pd_err serve_queue_new(uint32_t count_max, uint64_t cost_max, struct serve_queue **ret);
/* Items are borrowed pointers and are not freed. Returns NULL. */
struct serve_queue *serve_queue_free(struct serve_queue *q);

/* PD_ERR_BUSY if a bound would be exceeded; `deadline_us` is a pd_clock_mono_us value, 0 = none. */
PD_NODISCARD enum pd_err serve_queue_push(struct serve_queue *q, void *item, uint64_t cost,
                                          int64_t deadline_us);
/* Removes and returns the oldest item; NULL if empty. */
void *serve_queue_pop(struct serve_queue *q);
/* Returns the oldest item without removing it; NULL if empty. */
void *serve_queue_peek(const struct serve_queue *q);

/* Removes and returns the oldest item whose deadline is at or before `now_us`, or for which `gone(user, item)` (may be
 * NULL) returns true; NULL if there is none. Call until NULL. *ret_late (may be NULL): the deadline has passed. */
void *serve_queue_drop(struct serve_queue *q, int64_t now_us, bool (*gone)(void *user, void *item),
                       void *user, bool *ret_late);

/* The earliest deadline; 0: no item has one. */
int64_t serve_queue_next_deadline(const struct serve_queue *q);
uint32_t serve_queue_count(const struct serve_queue *q);
uint64_t serve_queue_cost(const struct serve_queue *q);
