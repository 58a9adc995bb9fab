#include "daemon/polyd/doctor.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/config/config.h"
#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/answer.h"

extern char **environ;

/* ---- the driver and its GPUs ----------------------------------------------------------------- */

static void gpu_print(const struct device *d, const struct device_sample *p)
{
    printf("%-13s %s, %.1f GB (%.1f in use), compute capability %d.%d, %s%s%s%s\n", d->name, d->model,
           1e-9 * (double)d->memory_bytes, p->memory_used > 0 ? 1e-9 * (double)p->memory_used : 0.0, d->major,
           d->minor, d->id, d->split ? ", split into MIG instances" : "", p->broken ? ", BROKEN: " : "",
           p->broken ? p->reason : "");
    for (int i = 0; i < p->process_count && i < DEVICE_PROCESSES; i++)
        printf("              process %d computes there\n", p->processes[i].pid);
}

/* `out`: why no job can get a GPU; "" if one can. Nonzero with a sentence in `why` if the GPUs could not be
 * checked. */
static int gpus_print(const struct config *config, char *out, size_t size, struct pd_why *why)
{
    struct device_watch_options o = {.library = config->devices.nvml, .gpus = "all"};
    struct device_sample *samples = calloc(DEVICE_GPU_MAX, sizeof *samples);
    const struct device_driver *driver;
    struct device_watch *watch = NULL;
    struct device *devices = calloc(DEVICE_GPU_MAX, sizeof *devices);
    int count, usable = 0;

    if (!samples || !devices) {
        free(samples);
        free(devices);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the GPUs");
    }
    if (device_watch_start(&o, &watch, why) != PD_OK) {
        free(samples);
        free(devices);
        return 1;
    }
    driver = device_watch_driver(watch);
    count = device_watch_devices(watch, devices, DEVICE_GPU_MAX);
    device_watch_read(watch, samples, DEVICE_GPU_MAX);
    if (driver->loaded)
        printf("driver        %s, up to CUDA %d.%d, NVML %s%s\n", driver->version, driver->cuda_major,
               driver->cuda_minor, driver->nvml, driver->events ? "" : ", reports no errors by event");
    if (!count)
        printf("GPUs          none: %s\n", device_watch_why(watch));
    for (int i = 0; i < count; i++) {
        gpu_print(&devices[i], &samples[i]);
        usable += !devices[i].split && !samples[i].broken;
    }
    out[0] = '\0';
    if (!count)
        snprintf(out, size, "this node has no NVIDIA GPU");
    else if (!usable)
        snprintf(out, size, "no GPU of this node can be used");
    if (!config->devices.gpus.count || !strcmp(config->devices.gpus.items[0], "none"))
        snprintf(out, size, "they are turned off (devices.gpus = none)");
    device_watch_stop(watch);
    free(samples);
    free(devices);
    return 0;
}

/* ---- measured choices ------------------------------------------------------------------------ */

static bool sum_print(void *ctx, const struct store_tuned_sum *s)
{
    time_t at = (time_t)(s->last_us / 1000000);
    struct tm tm;
    char day[32] = "";

    (void)ctx;
    if (gmtime_r(&at, &tm))
        strftime(day, sizeof day, "%Y-%m-%d", &tm);
    printf("measured      %lld choices for %s (driver %s, %s), the last on %s\n", (long long)s->records,
           s->device, s->driver, s->library, day);
    return true;
}

/* What the store keeps, where there is one. */
static void tuned_print(const struct config *config)
{
    struct store *store = NULL;
    struct pd_why why = {""};
    char path[4096];

    if ((size_t)snprintf(path, sizeof path, "%s/polyd.db", config->state.dir) >= sizeof path ||
        access(path, F_OK))
        return; /* no daemon has run here yet */
    if (store_open_reader(path, &store, &why) != PD_OK ||
        store_tuned_sums(store, NULL, sum_print, NULL, &why) != PD_OK)
        printf("measured      unknown: %s\n", why.text);
    store_close(store);
}

/* ---- the worker ------------------------------------------------------------------------------ */

/* Runs `polyd-worker info`; its answer, or false with a sentence. */
static bool ask(const char *program, struct answer_info *ret, struct pd_why *why)
{
    char out[8192];
    char *argv[] = {(char *)"polyd-worker", (char *)"info", NULL};
    posix_spawn_file_actions_t actions;
    int pipe_fds[2], rc, status = 0;
    size_t have = 0;
    ssize_t n;
    pid_t pid;

    if (pipe(pipe_fds)) {
        (void)pd_fail_errno(why, errno, "cannot make a pipe");
        return false;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, pipe_fds[0]);
    posix_spawn_file_actions_addclose(&actions, pipe_fds[1]);
    rc = posix_spawn(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[1]);
    while (!rc && have < sizeof out && (n = read(pipe_fds[0], out + have, sizeof out - have)) > 0)
        have += (size_t)n;
    close(pipe_fds[0]);
    if (rc) {
        (void)pd_fail_errno(why, rc, "%s cannot be started", program);
        return false;
    }
    if (waitpid(pid, &status, 0) != pid || status || !have) {
        (void)pd_fail(why, PD_ERR_IO, "%s has failed", program);
        return false;
    }
    if (!answer_info_read(out, have, ret)) {
        (void)pd_fail(why, PD_ERR_CORRUPT, "%s does not report its back ends", program);
        return false;
    }
    return true;
}

static void plugin_print(const char *name, const char *why_not)
{
    printf("%-13s %s\n", name, *why_not ? why_not : "opens");
}

int doctor(const struct config *config)
{
    struct answer_info info;
    char no_gpu[256];
    struct pd_why why = {""};

    printf("processors    %d\n", device_cpu_count());
    fflush(stdout);
    if (gpus_print(config, no_gpu, sizeof no_gpu, &why)) {
        fprintf(stderr, "polyd doctor: %s\n", why.text);
        return 1;
    }
    tuned_print(config);
    fflush(stdout); /* what the worker says comes after it */
    if (!ask(config->worker.path, &info, &why)) {
        printf("worker        %s\njobs          none can run: the worker is part of polyd, see worker.path\n",
               why.text);
        return 1;
    }
    printf("worker        %s, %s\n", info.version, config->worker.path);
    plugin_print("backend_cuda", info.backend_cuda);
    plugin_print("comm_nccl", info.comm_nccl);
    printf("jobs          run on the CPU");
    if (no_gpu[0])
        printf("; device cuda is refused: %s\n", no_gpu);
    else if (info.backend_cuda[0])
        printf("; device cuda is refused: backend_cuda does not open\n");
    else
        printf(" and on GPUs%s\n", info.comm_nccl[0] ? ", on one each: comm_nccl does not open" : "");
    return 0;
}
