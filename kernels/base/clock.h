/* kernels/base/clock.h: time. Deadlines use the monotonic clock, display and
 * stored stamps the wall clock; both in integer microseconds. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PD_CLOCK_TEXT_SIZE 32

int64_t pd_clock_mono_us(void);
int64_t pd_clock_wall_us(void);
/* Time since the machine booted, including suspend; unaffected by changes of the wall clock. */
int64_t pd_clock_boot_us(void);

/* RFC 3339 in UTC with milliseconds, "2026-11-20T23:50:07.123Z". `size` must be at
 * least PD_CLOCK_TEXT_SIZE. Returns `out`. */
const char *pd_clock_format(char *out, size_t size, int64_t wall_us);
