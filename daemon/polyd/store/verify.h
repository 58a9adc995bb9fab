/* daemon/polyd/store/verify.h: checks a state directory, also that of a running daemon. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* Checks on one snapshot: the file's integrity and foreign keys; that every state is the fold of its events,
 * by allowed moves; that roll-ups and latest values count exactly the points; that no device was held twice
 * and the accounts add up; that every artifact exists with its size, and (read_all) its digest. Calls
 * `problem` with a sentence for each violation. PD_OK when the check could be made; *ret_problems counts what
 * it found. */
PD_NODISCARD enum pd_err store_verify(const char *state_dir, bool read_all,
                                      void (*problem)(void *ctx, const char *text), void *ctx,
                                      int64_t *ret_problems, struct pd_why *why);
