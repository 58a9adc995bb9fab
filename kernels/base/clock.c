#include "kernels/base/clock.h"

#include <stdio.h>
#include <time.h>

static int64_t now_us(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t pd_clock_mono_us(void)
{
    return now_us(CLOCK_MONOTONIC);
}

int64_t pd_clock_wall_us(void)
{
    return now_us(CLOCK_REALTIME);
}

int64_t pd_clock_boot_us(void)
{
    return now_us(CLOCK_BOOTTIME);
}

const char *pd_clock_format(char *out, size_t size, int64_t wall_us)
{
    int64_t micros = wall_us % 1000000;
    time_t secs = (time_t)(wall_us / 1000000);
    struct tm tm;
    size_t n;

    if (micros < 0) {
        micros += 1000000;
        secs -= 1;
    }
    gmtime_r(&secs, &tm);
    n = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, size - n, ".%03dZ", (int)(micros / 1000));
    return out;
}
