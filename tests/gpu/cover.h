/* tests/gpu/cover.h: which cases the ordinary run takes on the emulated GPU, where each is slow.
 *
 * A case is taken if it launches a kernel, or has an option, that no earlier case of the program had. All are
 * taken on a real device, and with POLYD_TEST_FULL=1, which `tests/run emulated` sets. */
#pragma once

#include "kernels/backend/backend.h"

/* Whether every case is taken. */
bool cover_full(void);

/* Whether to run this call, of which data pointers are not looked at. share[o]: 1 + the input whose memory
 * output o has (NULL: none). `label`, up to its first digit, stands for what the call does not show: what a
 * test is about. */
bool cover_wants(const struct pk_backend_api *api, enum pk_math math, const struct pk_call *call,
                 const int *share, const char *label);

/* Closes what cover_wants opened; before the program ends. */
void cover_close(void);
