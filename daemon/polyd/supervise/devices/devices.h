/* daemon/polyd/supervise/devices/devices.h: the devices of this machine, what holds them, and which may be
 * used.
 *
 * A device is known by its place in the list, which it keeps while anything holds it. Every function locks by
 * itself. No callback runs while the lock is held; only the lock of the watch (daemon/polyd/devices) is taken
 * under it. Only the loop's thread changes who holds a device; any thread may read. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/sched/sched.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

#define DEVICES_PICK_MAX 64 /* of one run */

struct devices;
struct loop;
struct workers;

struct devices_options {
    int cpu_slots, cpu_threads;
    const char *gpus, *nvml; /* as in struct sup_options; borrowed for the start */
    int64_t sample_us, start_us;
    bool ask_worker; /* whether its back end for GPUs opens; else it is taken to */
};

/* Who uses devices. Called on the loop's thread. */
struct devices_listener {
    void *self;
    /* The device that the run holds has failed: it cannot go on (`fatal`), or else it may have made the error
     * itself. */
    void (*run_fault)(void *self, int64_t run, int attempt, const char *device, bool fatal,
                      const char *reason);
    /* Nothing computes on this device any more. */
    void (*lost)(void *self, int device, const char *name, const char *reason);
    struct devices_listener *next;
};

/* Finds the devices and reads which are drained. */
PD_NODISCARD enum pd_err devices_start(struct loop *l, struct workers *w, const struct devices_options *o,
                                       struct devices **ret, struct pd_why *why);
/* `listener` outlives the devices. Before loop_start. */
void devices_listen(struct devices *ds, struct devices_listener *listener);
/* NULL is fine. Returns NULL. */
struct devices *devices_free(struct devices *ds);

/* ---- what they are: any thread --------------------------------------------------------------- */

/* False: there is no such place. *ret_drained (may be NULL): it takes no new run. */
bool devices_get(struct devices *ds, int i, struct device *ret, bool *ret_drained);
/* sup_device_list, sup_cuda, sup_gpu_count, sup_memory and sup_fit. `ahead`: runs that wait already. */
void devices_list(struct devices *ds, void (*row)(void *ctx, const struct sup_device *d), void *ctx);
bool devices_cuda(struct devices *ds, char ret_why[SUP_WHY_BYTES]);
int devices_gpu_count(struct devices *ds, const char **ret_why, const struct device_driver **ret_driver);
int64_t devices_memory(struct devices *ds, const char *device, int slots);
PD_NODISCARD enum pd_err devices_fit(struct devices *ds, const char *device, int slots, int64_t need_bytes,
                                     int ahead, struct sup_queue_info *ret, char *devices, size_t size,
                                     struct pd_why *why);
/* Samples of these GPUs, not older than a tick of the loop. */
void devices_samples(struct devices *ds, const int *devices, int count, struct device_sample *ret);

/* ---- who gets them --------------------------------------------------------------------------- */

#define DEVICES_KINDS 3
struct devices_look {
    struct sched_kind kinds[DEVICES_KINDS];
    int known_gpus; /* whole or split, there or gone */
};
/* Takes the newest samples: what follows rests on them. */
void devices_look(struct devices *ds, struct devices_look *ret);
/* The kind of devices that a run on "cpu" or "cuda" takes: of one slot a MIG instance ("mig") where no GPU is
 * whole, or where one is free in which its plan fits. *ret_unfit: there are enough free GPUs, but too few
 * with the memory that its plan needs. */
const char *devices_kind(struct devices *ds, const char *device, int slots, int64_t need_bytes,
                         bool *ret_unfit);
/* The devices that a run of this kind would get now, at most DEVICES_PICK_MAX; 0 = it must wait. */
int devices_pick(struct devices *ds, const char *kind, int slots, int64_t need_bytes, int *ret);
/* "waiting for 2 GPUs, 1 free, 1 busy with a foreign process (pid 123)"; `short_bytes`: what its plan needs
 * of a memory that does not suffice, 0 = it does. */
void devices_reason(struct devices *ds, const char *kind, int slots, int64_t short_bytes, char *out,
                    size_t size);

struct devices_holder {
    int64_t job, run;
    int attempt;
    int64_t need_bytes; /* on each device, by its plan; 0 = unknown */
};
void devices_hold(struct devices *ds, const int *devices, int count, const struct devices_holder *holder);
void devices_release(struct devices *ds, const int *devices, int count);
/* The GPU for a model: one that serves already, else a free one, else one shared with its run. -1 = none, and
 * `none` has the reason. */
int devices_serve(struct devices *ds, char none[SUP_WHY_BYTES]);
void devices_unserve(struct devices *ds, int device);
