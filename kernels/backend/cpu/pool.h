/* kernels/backend/cpu/pool.h: a blocking pool of threads for loops over independent tasks.
 *
 * The caller's thread runs tasks too. Tasks are handed out one by one, so a core that other programs use
 * costs only its share; which thread runs a task must not change its result. Idle threads spin for some
 * tens of microseconds, then sleep. One loop at a time: a pool belongs to its caller. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct cpu_pool;

/* `threads` includes the caller; 1 starts none. */
PD_NODISCARD enum pd_err cpu_pool_new(int threads, struct cpu_pool **ret, struct pd_why *why);
struct cpu_pool *cpu_pool_free(struct cpu_pool *p);
/* A pool of the caller's thread alone, which any number of threads may use at a time. Lives as long as the process. */
struct cpu_pool *cpu_pool_single(void);
int cpu_pool_threads(const struct cpu_pool *p);

/* Runs fn(arg, task, thread) for every task in 0..count-1 and returns when all are done. `thread` is in
 * 0..threads-1 and names scratch that no other running task uses. */
void cpu_pool_run(struct cpu_pool *p, int64_t count, void (*fn)(void *arg, int64_t task, int thread),
                  void *arg);

/* The state of a computing thread: denormal numbers are zero (FTZ, DAZ), the GEMM library uses this thread only, and
 * signals are blocked and stay pending: oneDNN 2.6's sgemm keeps values below the stack pointer, so a handler on the
 * thread's stack makes it crash (one on an alternate stack does not). The pool's threads are always in this state; a
 * caller's thread is restored afterwards. */
struct cpu_calm {
    unsigned float_state;
    sigset_t signals;
};
void cpu_calm_enter(struct cpu_calm *ret_was);
void cpu_calm_leave(const struct cpu_calm *was);
