/* daemon/polyd/devices/nvml.h: the parts of NVML that polyd uses, loaded at run time. Private to the module.
 *
 * Calls go to the driver and may hang: only the watch's threads make them. A function that the library lacks
 * returns NVML_CODE_UNSUPPORTED. */
#pragma once

#include "daemon/polyd/devices/device.h"

/* NVML's own numbers. */
enum nvml_code {
    NVML_CODE_OK = 0,
    NVML_CODE_UNINITIALIZED = 1,
    NVML_CODE_INVALID = 2,
    NVML_CODE_UNSUPPORTED = 3,
    NVML_CODE_NOT_FOUND = 6,
    NVML_CODE_SHORT = 7,
    NVML_CODE_TIMEOUT = 10,
    NVML_CODE_LOST = 15,
    NVML_CODE_RESET = 16,
    NVML_CODE_UNKNOWN = 999
};

struct nvml;

/* Loads the library and initialises it. NULL with a sentence in `why`. */
struct nvml *nvml_open(const char *library, struct pd_why *why);
/* Shuts it down; the library stays loaded, since a thread may still be inside. NULL is fine. Returns NULL. */
struct nvml *nvml_close(struct nvml *n);
void nvml_driver(struct nvml *n, struct device_driver *ret);
const char *nvml_text(struct nvml *n, int code);

int nvml_count(struct nvml *n, int *ret);
/* The GPU's handle and facts; `why` names the call that failed. */
int nvml_gpu(struct nvml *n, int index, void **ret_handle, struct device *ret);
/* Maximum number of MIG instances of a GPU, 0 = not in MIG mode. */
int nvml_mig_most(struct nvml *n, void *gpu);
/* One of them; NVML_CODE_NOT_FOUND where there is none. `d` is filled from its GPU's. *ret_gi: instance
 * number as events name it. */
int nvml_mig(struct nvml *n, void *gpu, const struct device *of, int at, void **ret_handle,
             struct device *ret, unsigned *ret_gi);
/* 0 to 4, see device_watch_link. */
int nvml_link(struct nvml *n, void *a, void *b);

/* A sample without values. */
extern const struct device_sample nvml_unknown;
/* All members of device_sample except taken_us, stale and the XIDs. NVML_CODE_NOT_FOUND: the device of the
 * handle is gone. Any other failure: the device is unusable. */
int nvml_sample(struct nvml *n, void *handle, bool mig, struct device_sample *ret);

/* An event set with every handle's XIDs in it; NULL if the driver has none. */
void *nvml_events_new(struct nvml *n, void *const *gpus, int count);
/* No thread may be waiting in it. NULL is fine. */
void nvml_events_free(struct nvml *n, void *set);
/* Waits for the next XID; NVML_CODE_TIMEOUT = none. `uuid`: of the whole GPU, "" = unknown; *ret_gi: the MIG
 * instance's number, where the driver says it. */
int nvml_events_wait(struct nvml *n, void *set, unsigned timeout_ms, char *uuid, size_t size, int *ret_xid,
                     unsigned *ret_gi);
