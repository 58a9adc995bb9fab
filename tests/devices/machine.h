/* tests/devices/machine.h: the machine that fake_nvml.c shows, written by a test. */
#pragma once

/* Makes POLYD_FAKE_NVML name a fresh file and writes the machine into it. Call it before any thread starts.
 */
void machine_begin(const char *text);
/* Another machine, from this moment on. */
void machine_write(const char *text);
/* Removes the file. */
void machine_end(void);
/* A machine of `count` GPUs "GPU-00", "GPU-01"..., each with its line's further words. Static, overwritten.
 */
const char *machine_of(int count, const char *further);
