/* daemon/polyd/supervise/workers/proc.h: processes: spawned by posix_spawn, identified by pidfd and start
 * time, never by pid alone. On the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/polyd/devices/device.h"
#include "kernels/base/err.h"

struct workers;

/* For an attempt or a model, the shim. */
struct proc {
    pid_t pid;
    uint64_t start;
    int fd;     /* pidfd; -1 = gone or none */
    bool child; /* ours to reap */
    bool gone;
    int status; /* waitpid status of the worker, -1 = unknown */
};

/* Starts the worker program with these arguments (argv[0] included), the token `copies` times on descriptor
 * 3, for as many readers. `mark`: identifies the process, "run-7-1". `device`: the only device that it sees
 * (see device_env); NULL = the GPUs that polyd sees. */
PD_NODISCARD enum pd_err proc_spawn(struct workers *w, char *const argv[], const uint8_t *token, int copies,
                                    int in_fd, int out_fd, int err_fd, const char *mark,
                                    const struct device *device, struct proc *ret, struct pd_why *why);
/* Opens a pidfd if the process is identical. */
bool proc_adopt(pid_t pid, uint64_t start, struct proc *ret);
void proc_signal(struct proc *p, int sig);
/* After its pidfd became readable: reaps, closes. */
void proc_reap(struct proc *p);
void proc_close(struct proc *p);
/* Whether the lock of this attempt's directory is held, and by which process. */
bool shim_alive(const char *dir, pid_t *ret_pid, uint64_t *ret_start);
/* Exit status recorded by the shim, -1 = none. *ret_rank (may be NULL): in a gang, its rank; else -1.
 */
int shim_exit_status(const char *dir, int *ret_rank);
/* When it was recorded, wall clock; 0 = it was not. */
int64_t shim_exit_us(const char *dir);
