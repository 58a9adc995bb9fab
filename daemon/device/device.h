/* daemon/device/device.h: what this machine offers to jobs.
 *
 * Today: cpu slots, each with a number of threads. GPUs will join by NVML, loaded at run time. Pure look-ups,
 * callable from any thread. */
#pragma once

#include <stdint.h>

#include "kernels/base/err.h"

struct device {
    char name[32];   /* "cpu:0" */
    char kind[8];    /* "cpu" */
    char model[128]; /* name of the processor */
    int threads;
    int64_t memory_bytes; /* of the machine, shared by its slots */
};

/* `slots` cpu devices of `threads` threads each (0 = the processors this process may use, shared evenly, at
 * least 1). Writes at most `most` devices; *ret_count how many. PD_ERR_INVALID if slots or threads are out of
 * range. */
PD_NODISCARD enum pd_err device_list(int slots, int threads, struct device *ret, int most, int *ret_count,
                                     struct pd_why *why);

/* Processors this process may run on, at least 1. */
int device_cpu_count(void);
