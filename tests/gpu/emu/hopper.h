/* tests/gpu/emu/hopper.h: what the emulation's core calls of hopper.cc, which gives the instructions of sm
 * 90 (mbarrier, bulk tensor copies, wgmma) their meaning. */
#pragma once

#include <stddef.h>

/* Around every block (or cluster of them): forgets, and fails if products or copies are left that nobody
 * waited for. */
void pk_emu_hopper_begin(unsigned threads, unsigned blocks);
void pk_emu_hopper_end(void);
