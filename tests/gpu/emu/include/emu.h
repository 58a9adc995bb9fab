/* tests/gpu/emu/include/emu.h: the hooks by which warp-wide and asynchronous instructions are given their
 * meaning on the host (ptx.cuh's and ptx_hopper.cuh's emulated halves). Device code of the emulation only.
 *
 * One block runs at a time, its threads as fibers of one host thread: a fiber runs until it waits for others,
 * so nothing here needs a lock, and memory of one thread's stack may be read by whoever acts for the group.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Ends the process with `text`, the kernel's name, the block and the thread. For what hardware would fault
 * on or leave undefined: misaligned addresses, wrong descriptors, out of bounds. */
[[noreturn]] void pk_emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Number of this thread, and how many there are: in the block, or in a cluster of several (each block's begin
 * at a multiple of 128). */
unsigned pk_emu_thread(void);
unsigned pk_emu_threads(void);
/* Of this thread's block in its cluster, and how many blocks that has (1: none was asked for). */
unsigned pk_emu_rank(void);
unsigned pk_emu_blocks(void);

/* A rendezvous of the lanes of this warp that `mask` names (threads that have returned or never were do not
 * count). Each gives a pointer, usually to a struct on its own stack, filled in; the last to come runs
 * act(lane, arg) with lane[i] the pointer of lane i or NULL; then all go on. `what` names the instruction:
 * all lanes must come to the same one, else the emulation fails with both names. So a whole mma.sync is
 * computed once, by the last lane, and its results written into the lanes' structs. */
void pk_emu_warp(unsigned mask, const char *what, void *mine, void (*act)(void *const *lane, void *arg),
                 void *arg);
/* The same for the 128 threads of this thread's warpgroup (4 consecutive warps, the first a multiple of 4).
 */
void pk_emu_warpgroup(const char *what, void *mine, void (*act)(void *const *lane, void *arg), void *arg);

/* bar.sync id, count; count 0 = all threads of the block that have not returned. And bar.arrive. */
void pk_emu_barrier(unsigned id, unsigned count);
void pk_emu_barrier_arrive(unsigned id, unsigned count);
/* barrier.cluster: all threads of the cluster that have not returned. */
void pk_emu_cluster_barrier(void);

/* Waits until done(arg): asked again whenever nobody else can go on or has done something. When no thread can
 * go on, the oldest deferred copy lands (below), one at a time; when there is none left, that is a deadlock
 * and the emulation fails, naming `what`; a wait that may give up returns false instead. */
bool pk_emu_wait(const char *what, bool (*done)(void *arg), void *arg, bool may_give_up);

/* Defers act(copy of the arg_bytes at arg) as the engine for asynchronous copies does: it runs not before
 * every thread waits. Whoever reads the destination without waiting sees what was there before. For bulk
 * tensor copies, which land by themselves and count on an mbarrier. */
void pk_emu_defer(void (*act)(void *arg), const void *arg, size_t arg_bytes);

/* cp.async: copies of one thread, in groups. Bytes 4, 8 or 16; from NULL writes zeros; the first `valid`
 * bytes are copied, the others zeroed. They land in pk_emu_cp_wait and nowhere earlier. Both ends are checked
 * for alignment when it is called. */
void pk_emu_cp_async(void *to, const void *from, unsigned bytes, unsigned valid);
void pk_emu_cp_commit(void);
void pk_emu_cp_wait(unsigned groups_left);

/* Shared memory has 32-bit addresses on the device. Dynamic shared memory begins at 1024 (so that 0 stays
 * invalid); a pointer outside dynamic shared memory fails, so that asm must not be used on static __shared__
 * with the emulation. */
uint32_t pk_emu_shared_address(const void *p);
/* The bytes behind a shared address; fails unless [address, address + bytes) is the block's. */
void *pk_emu_shared_pointer(uint32_t address, size_t bytes);
/* The same address in another block of the cluster; fails once that block has left. */
void *pk_emu_cluster_pointer(unsigned rank, uint32_t address, size_t bytes);

/* Fails unless the memory lies in one allocation of the device (or in pinned host memory). */
void pk_emu_check_global(const void *p, size_t bytes, const char *what);

/* Fails unless p is a multiple of `alignment` and the bytes lie in memory that a kernel may touch, as far as
 * that is known: dynamic shared memory or memory of the device with room for them, or else static shared
 * memory. */
void pk_emu_check(const void *p, size_t bytes, size_t alignment);

/* By the names that ptx.cuh uses. */
static inline void emu_warp(void (*run)(void **lanes), void *mine)
{
    pk_emu_warp(
        0xffffffffu, "an instruction of the whole warp", mine,
        [](void *const *lane, void *arg) { ((void (*)(void **))arg)((void **)lane); }, (void *)run);
}
static inline void emu_copy_async(void *to, const void *from, unsigned bytes, unsigned read)
{
    pk_emu_cp_async(to, from, bytes, read);
}
static inline void emu_copy_commit(void)
{
    pk_emu_cp_commit();
}
static inline void emu_copy_wait(unsigned pending)
{
    pk_emu_cp_wait(pending);
}
static inline void emu_check(const void *p, size_t bytes, size_t alignment)
{
    pk_emu_check(p, bytes, alignment);
}
