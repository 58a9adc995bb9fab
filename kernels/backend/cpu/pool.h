/* kernels/backend/cpu/pool.h: a blocking pool of threads for loops over independent tasks.
 *
 * The caller works too. Tasks are handed out one by one, so a core that something else wants costs
 * only its share; which thread runs a task must not change its result. Idle threads sleep (they
 * watch for work for a few microseconds first). One loop at a time: a pool belongs to its caller. */
#pragma once

#include <stdint.h>

#include "kernels/base/err.h"

struct cpu_pool;

/* `threads` includes the caller; 1 starts none. */
PD_NODISCARD enum pd_err cpu_pool_new(int threads, struct cpu_pool **ret, struct pd_why *why);
struct cpu_pool *cpu_pool_free(struct cpu_pool *p);
int cpu_pool_threads(const struct cpu_pool *p);

/* Runs fn(arg, task, thread) for every task in 0..count-1 and returns when all are done. `thread` is in
 * 0..threads-1 and names scratch that no other running task uses. */
void cpu_pool_run(struct cpu_pool *p, int64_t count, void (*fn)(void *arg, int64_t task, int thread),
                  void *arg);

/* Treats denormal numbers as zero (FTZ, DAZ) in the calling thread and keeps the GEMM library to this
 * one thread; the result goes to cpu_float_leave. The pool's own threads are always like this. */
unsigned cpu_float_enter(void);
void cpu_float_leave(unsigned state);
