/* What the benchmarks of the engine share: clocks, order statistics, a profile by op. */
#pragma once

#include <stddef.h>
#include <time.h>

#include "kernels/base/err.h"
#include "kernels/graph/graph.h"

double bench_seconds(clockid_t clock);
/* Ascending. */
void bench_sort(double *times, size_t count);
/* Ends the program with the reason unless err is PD_OK. */
void bench_check(enum pd_err err, const struct pd_why *why);
/* A pk_host.log. */
void bench_log(void *user, int level, const char *text);

/* Memory aligned as tensors need; never NULL (the program ends). free() it. */
void *bench_memory(size_t bytes);
/* A dense f32 tensor of numbers in -0.5 .. 0.5, the same every time, in bench_memory. */
struct pk_view bench_numbers(struct pk_shape shape);

#define BENCH_PROFILE_ROWS 400

/* CPU time of the process by op and shape of its output: robust on a shared machine. */
struct bench_profile {
    struct {
        char name[160];
        double time;
        int count;
    } row[BENCH_PROFILE_ROWS];
    int rows;
    double last;
};

/* From now on every node that `exec` runs is counted; `p` must outlive the runs. */
void bench_profile_start(struct bench_profile *p, struct pk_exec *exec);
/* Before each run: what happened since the last node does not count. */
void bench_profile_mark(struct bench_profile *p);
/* Rows of at least 0.3 % of the time, per run. */
void bench_profile_print(struct bench_profile *p, int runs);
