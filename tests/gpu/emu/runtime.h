/* tests/gpu/emu/runtime.h: what the files of the emulated runtime share. */
#pragma once

#include <cuda_runtime.h>

#undef __noinline__ /* the library spells its attributes so */

#include <mutex>

/* Held by every call of the runtime: one kernel runs at a time. */
extern std::recursive_mutex pk_emu_lock;

/* Keeps `error` for cudaGetLastError, returns it. */
cudaError_t pk_emu_error(cudaError_t error);

/* ---- device.cpp ---- */

/* Whether this process came by a fork from one that had begun: nothing works here. */
bool pk_emu_forked();

/* ---- memory.cpp ---- */

enum pk_emu_kind { PK_EMU_PAGEABLE, PK_EMU_PINNED, PK_EMU_DEVICE };
/* Whose memory this is; *ret_inside tells whether all `bytes` lie in that one allocation. */
pk_emu_kind pk_emu_kind_of(const void *p, size_t bytes, bool *ret_inside);
/* Fails if p lies in an allocation that has no room for the bytes. */
void pk_emu_check_within(const void *p, size_t bytes);
/* Ends the process if the bytes around an allocation have changed. */
void pk_emu_check_guards(const char *when);

/* ---- stream.cpp ---- */

/* A call that capturing forbids spoils every capture of the program; then true. */
bool pk_emu_spoils_capture();
void pk_emu_drain_all();
cudaError_t pk_emu_enqueue(cudaStream_t stream, std::function<void()> work);
bool pk_emu_capturing(cudaStream_t stream);
/* Whether launches are noted instead of being run (note.h); then this one has been. */
bool pk_emu_noted(const char *name, uint64_t what);
