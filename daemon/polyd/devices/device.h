/* daemon/polyd/devices/device.h: the devices of this machine: CPU slots and NVIDIA GPUs.
 *
 * CPU slots are computed without I/O. GPUs come from NVML, loaded at run time: a watch (struct device_watch)
 * finds them, samples their state and rescans periodically, in its own threads, because a call into the
 * driver may hang; callers get the last sample with its age. Nothing here touches CUDA or holds a device. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/polyd/config/config.h"
#include "kernels/base/err.h"

#define DEVICE_CPU_MAX CONFIG_CPU_SLOTS_MAX
#define DEVICE_GPU_MAX 128 /* whole GPUs and MIG instances together */
#define DEVICE_MAX (DEVICE_CPU_MAX + DEVICE_GPU_MAX)
#define DEVICE_ID_BYTES 64

struct device {
    char id[DEVICE_ID_BYTES]; /* permanent id: "cpu:0", "GPU-5f1c...", "MIG-c6d4..."; stored in rows
                               */
    char name[32];            /* displayed name: "cpu:0", "cuda:0", "cuda:0.1" (its second MIG instance) */
    char kind[8];             /* "cpu"; "cuda": a whole GPU; "mig": an instance, for single-slot runs only */
    char model[128];          /* name of the processor or GPU */
    int threads;              /* of a cpu slot; 0 for a GPU */
    int64_t memory_bytes;     /* of the machine, shared by its slots; of the GPU or the instance */
    /* The rest is 0, "" or -1 for a cpu slot. */
    char pci[32];     /* "00000000:3B:00.0" */
    int major, minor; /* compute capability */
    int numa;         /* node; -1 = unknown */
    int gpu;          /* NVML's index, which is CUDA's in the order of PCI addresses; -1 = a cpu slot */
    int instance;     /* MIG instance of that GPU; -1 = none */
    bool split;       /* a GPU in MIG mode: only its instances are offered */
    bool gone;        /* the driver no longer lists it */
};

/* `slots` cpu devices of `threads` threads each (0 = the processors this process may use, shared evenly, at
 * least 1). Writes at most `most` devices; *ret_count how many. PD_ERR_INVALID if slots or threads are out of
 * range. */
PD_NODISCARD enum pd_err device_list(int slots, int threads, struct device *ret, int most, int *ret_count,
                                     struct pd_why *why);

/* Processors this process may run on, at least 1. */
int device_cpu_count(void);

/* Environment variables that restrict a worker to this device: the rank's GPU becomes CUDA device 0, and a
 * cpu slot hides all GPUs. They replace variables of the same names. */
struct device_env {
    char visible[32 + DEVICE_ID_BYTES]; /* "CUDA_VISIBLE_DEVICES=GPU-5f1c..." */
    char order[40];                     /* "CUDA_DEVICE_ORDER=PCI_BUS_ID" */
};
void device_env(const struct device *d, struct device_env *ret);

/* ---- XIDs ------------------------------------------------------------------------------------ */

/* Consequences of the driver's error numbers. */
enum device_xid {
    DEVICE_XID_NOTE,     /* unknown or harmless: counted and displayed */
    DEVICE_XID_PROGRAM,  /* an error of the program: its run fails, the GPU remains usable */
    DEVICE_XID_HARDWARE, /* the GPU takes no new run; the current run continues to its end */
    DEVICE_XID_FATAL     /* likewise, and the current run is restarted on another device */
};
enum device_xid device_xid_class(int xid);
/* "GPU memory page fault"; "" if unknown. Static. */
const char *device_xid_text(int xid);

/* ---- the watch ------------------------------------------------------------------------------- */

struct device_process {
    int pid;
    int64_t memory_bytes; /* -1 = not reported by the driver */
};

#define DEVICE_PROCESSES 16

/* Latest sample of a GPU or MIG instance. Values that the driver does not report are -1. */
struct device_sample {
    int64_t taken_us; /* monotonic, when the sample began; 0 = none yet */
    bool stale;  /* the driver has not answered for several intervals: the other values are out of date */
    bool broken; /* unusable according to the driver: off the bus, needs a reset, remapping failed */
    char reason[160]; /* reason for stale or broken; "" = neither */
    int64_t memory_used, memory_total, memory_reserved;
    int utilization, memory_utilization; /* per cent of the last moment with a kernel, or a transfer */
    int temperature_c;
    int64_t power_mw, power_limit_mw;
    int sm_clock_mhz;
    int64_t ecc_corrected, ecc_uncorrected; /* since the driver was loaded */
    int process_count;                      /* compute processes of all users */
    struct device_process processes[DEVICE_PROCESSES];
    int64_t graphics_memory; /* graphics processes, which do not compute */
    int64_t xids;            /* seen by this watch */
    int last_xid;            /* 0 = none */
    int64_t last_xid_us;     /* wall clock */
};

/* CHANGED: the list of devices changed (gone, back, new, split); it has no device. */
enum device_event_kind { DEVICE_EVENT_XID, DEVICE_EVENT_BROKEN, DEVICE_EVENT_CHANGED };
struct device_event {
    enum device_event_kind kind;
    /* index among the watch's devices; for an XID of a split GPU the instance, if the driver names it */
    int index;
    int xid;
    int64_t time_us;  /* wall clock */
    char reason[160]; /* a sentence: "XID 79: GPU has fallen off the bus" */
};

struct device_driver {
    bool loaded;
    char version[80];           /* of the driver */
    char nvml[80];              /* of the library */
    int cuda_major, cuda_minor; /* the newest CUDA that the driver runs */
    bool events;                /* XIDs are reported */
};

struct device_watch_options {
    const char *library; /* NULL = "libnvidia-ml.so.1" */
    /* NULL or "auto": those of CUDA_VISIBLE_DEVICES, else all; "all"; "none"; or a list of indices and UUIDs:
     * "0,2,GPU-5f1c" */
    const char *gpus;
    int64_t interval_us; /* between samples; 0 = 2 s */
    int64_t rescan_us;   /* interval between scans for devices; 0 = five sample intervals */
    /* a folder whose entries are the GPUs of the kernel module: when they change, NVML is reopened. NULL =
     * "/proc/driver/nvidia/gpus" */
    const char *bus;
    int64_t start_us; /* maximum wait for the driver at start; 0 = 30 s */
    /* callback: an event is queued, or the first sample after device_watch_look is available; runs on a
     * thread of the watch and must be quick; may be NULL */
    void (*changed)(void *ctx);
    void *ctx;
};

struct device_watch;

/* Loads NVML, finds the GPUs, takes a first sample and starts the threads. A missing driver, library or
 * answer is not an error: there are then no GPUs, and device_watch_why has the reason. */
PD_NODISCARD enum pd_err device_watch_start(const struct device_watch_options *o, struct device_watch **ret,
                                            struct pd_why *why);
/* Waits briefly for the threads; a thread blocked in the driver is abandoned. NULL is fine. Returns NULL.
 */
struct device_watch *device_watch_stop(struct device_watch *w);

/* Reason for having no GPUs; "" if there are some. Borrowed until the stop. */
const char *device_watch_why(const struct device_watch *w);
const struct device_driver *device_watch_driver(const struct device_watch *w);
/* Copies the devices, at most `most`; returns how many there are. Initially in order of index and instance;
 * afterwards a device's index does not change, and new devices are appended. A device that is gone remains in
 * the list and reuses its index when it returns. Any thread. */
int device_watch_devices(struct device_watch *w, struct device *ret, int most);
/* Releases the index of this device, which is gone: another device may reuse it. */
void device_watch_forget(struct device_watch *w, int index);
/* Connection of two devices, 0 (across processors) to 4 (NVLink). */
int device_watch_link(struct device_watch *w, int a, int b);

/* The last sample of each device, in the same order; at most `most`. Any thread; never waits for the driver.
 */
void device_watch_read(struct device_watch *w, struct device_sample *ret, int most);
/* Removes the oldest event from the queue; false = none. Any thread. */
bool device_watch_event(struct device_watch *w, struct device_event *ret);
/* Samples immediately, then frequently for a short time: a device was released. */
void device_watch_look(struct device_watch *w);
