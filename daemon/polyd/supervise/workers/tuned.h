/* daemon/polyd/supervise/workers/tuned.h: measured choices of the workers' back ends. On the loop's thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct conn;
struct loop;

/* A worker asks for those of its device. */
void tuned_ask(struct loop *l, struct conn *c, const uint8_t *p, size_t len);
/* A worker has new ones; `run` 0 = a serving worker. */
void tuned_take(struct loop *l, int64_t run, const uint8_t *p, size_t len);
