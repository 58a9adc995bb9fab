/* tests/lib/jump.h: clocks that a test sets. Included by the test's one source: its clock_gettime stands in
 * front of libc's, for everything that is linked into the program. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* added to the wall clock, to boot time, to the monotonic clock */
static _Atomic int64_t jump_wall_us, jump_boot_us, jump_mono_us;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
int clock_gettime(clockid_t id, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, id, ts);
    int64_t us = id == CLOCK_REALTIME    ? atomic_load(&jump_wall_us)
                 : id == CLOCK_BOOTTIME  ? atomic_load(&jump_boot_us)
                 : id == CLOCK_MONOTONIC ? atomic_load(&jump_mono_us)
                                         : 0;
    int64_t ns = ts->tv_nsec + us % 1000000 * 1000;

    ts->tv_sec += us / 1000000;
    if (ns < 0) {
        ns += 1000000000;
        ts->tv_sec--;
    } else if (ns >= 1000000000) {
        ns -= 1000000000;
        ts->tv_sec++;
    }
    ts->tv_nsec = ns;
    return rc;
}
#pragma GCC diagnostic pop

#define JUMP_HOUR_US (INT64_C(3600) * 1000000)
