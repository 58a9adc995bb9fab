/* daemon/polyd/devices/device.h: what this machine offers to jobs: CPU slots and NVIDIA GPUs.
 *
 * CPU slots are a pure look-up. GPUs come from NVML, loaded at run time: a watch (struct device_watch) finds
 * them, samples their state and looks now and then whether they are still the same, all in threads of its
 * own, because a call into the driver may hang; whoever asks gets the last sample with its age. Nothing here
 * touches CUDA or holds a device. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DEVICE_CPU_MAX 64
#define DEVICE_GPU_MAX 128 /* whole GPUs and MIG instances together */
#define DEVICE_MAX (DEVICE_CPU_MAX + DEVICE_GPU_MAX)
#define DEVICE_ID_BYTES 64

struct device {
    char id[DEVICE_ID_BYTES]; /* the same for good: "cpu:0", "GPU-5f1c...", "MIG-c6d4..."; rows hold this one
                               */
    char name[32];            /* for people: "cpu:0", "cuda:0", "cuda:0.1" (its second MIG instance) */
    char kind[8];             /* "cpu"; "cuda": a whole GPU; "mig": an instance, for runs of one slot only */
    char model[128];          /* name of the processor or GPU */
    int threads;              /* of a cpu slot; 0 for a GPU */
    int64_t memory_bytes;     /* of the machine, shared by its slots; of the GPU or the instance */
    /* The rest is 0, "" or -1 for a cpu slot. */
    char pci[32];     /* "00000000:3B:00.0" */
    int major, minor; /* compute capability */
    int numa;         /* node; -1 = unknown */
    int gpu;          /* NVML's index, which is CUDA's in the order of PCI addresses; -1 = a cpu slot */
    int instance;     /* MIG instance of that GPU; -1 = none */
    bool split;       /* a GPU in MIG mode: its instances are offered, not itself */
    bool gone;        /* it was there, and the driver lists it no longer */
};

/* `slots` cpu devices of `threads` threads each (0 = the processors this process may use, shared evenly, at
 * least 1). Writes at most `most` devices; *ret_count how many. PD_ERR_INVALID if slots or threads are out of
 * range. */
PD_NODISCARD enum pd_err device_list(int slots, int threads, struct device *ret, int most, int *ret_count,
                                     struct pd_why *why);

/* Processors this process may run on, at least 1. */
int device_cpu_count(void);

/* The variables by which a worker sees this device and no other: the rank's GPU is its CUDA device 0, and a
 * cpu slot shows it none. They replace those of the same names in its environment. */
struct device_env {
    char visible[32 + DEVICE_ID_BYTES]; /* "CUDA_VISIBLE_DEVICES=GPU-5f1c..." */
    char order[40];                     /* "CUDA_DEVICE_ORDER=PCI_BUS_ID" */
};
void device_env(const struct device *d, struct device_env *ret);

/* ---- XIDs ------------------------------------------------------------------------------------ */

/* What the driver's error numbers mean for us. */
enum device_xid {
    DEVICE_XID_NOTE,     /* unknown or harmless: counted and shown */
    DEVICE_XID_PROGRAM,  /* an error of the program: its run fails, the GPU is fine */
    DEVICE_XID_HARDWARE, /* the GPU takes no new run; what runs goes on to its end */
    DEVICE_XID_FATAL     /* likewise, and what runs cannot go on: it starts again elsewhere */
};
enum device_xid device_xid_class(int xid);
/* "GPU memory page fault"; "" if we have no words for it. Static. */
const char *device_xid_text(int xid);

/* ---- the watch ------------------------------------------------------------------------------- */

struct device_process {
    int pid;
    int64_t memory_bytes; /* -1 = the driver does not say */
};

#define DEVICE_PROCESSES 16

/* The state of a GPU or MIG instance a moment ago. What it cannot say is -1. */
struct device_sample {
    int64_t taken_us; /* monotonic, when the sample began; 0 = none yet */
    bool stale;       /* the driver has not answered for several intervals: all else is old */
    bool broken;      /* the driver has given it up: off the bus, needs a reset, remapping failed */
    char reason[160]; /* why it is stale or broken; "" = neither */
    int64_t memory_used, memory_total, memory_reserved;
    int utilization, memory_utilization; /* per cent of the last moment with a kernel, or a transfer */
    int temperature_c;
    int64_t power_mw, power_limit_mw;
    int sm_clock_mhz;
    int64_t ecc_corrected, ecc_uncorrected; /* since the driver was loaded */
    int process_count;                      /* compute processes, of anyone; all of them */
    struct device_process processes[DEVICE_PROCESSES];
    int64_t graphics_memory; /* of programs that draw, which compute nothing */
    int64_t xids;            /* seen by this watch */
    int last_xid;            /* 0 = none */
    int64_t last_xid_us;     /* wall clock */
};

/* CHANGED: the list of devices is another one (gone, back, new, split); it names none. */
enum device_event_kind { DEVICE_EVENT_XID, DEVICE_EVENT_BROKEN, DEVICE_EVENT_CHANGED };
struct device_event {
    enum device_event_kind kind;
    int index; /* among the watch's devices; an XID of a split GPU names the instance if the driver does */
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
    const char *gpus; /* NULL or "auto": those of CUDA_VISIBLE_DEVICES, else all; "all"; "none"; or a list of
                         indices and UUIDs: "0,2,GPU-5f1c" */
    int64_t interval_us; /* between samples; 0 = 2 s */
    int64_t rescan_us;   /* between looks at which devices there are; 0 = five intervals */
    const char *bus; /* a folder whose entries are the GPUs that the kernel's module drives: when they change,
                        NVML is opened anew. NULL = "/proc/driver/nvidia/gpus" */
    int64_t start_us;           /* how long the start waits for the driver; 0 = 30 s */
    void (*changed)(void *ctx); /* an event waits, or a first sample after device_watch_look came; from a
                                   thread of the watch, must be quick; NULL = nobody asks */
    void *ctx;
};

struct device_watch;

/* Loads NVML, finds the GPUs, takes a first sample and starts the threads. No driver, no library or a driver
 * that does not answer is no failure: then there are no GPUs and device_watch_why says why. */
PD_NODISCARD enum pd_err device_watch_start(const struct device_watch_options *o, struct device_watch **ret,
                                            struct pd_why *why);
/* Waits a moment for the threads; a thread that the driver holds is left behind. NULL is fine. Returns NULL.
 */
struct device_watch *device_watch_stop(struct device_watch *w);

/* Why there are no GPUs; "" if there are. Borrowed until the stop. */
const char *device_watch_why(const struct device_watch *w);
const struct device_driver *device_watch_driver(const struct device_watch *w);
/* Copies the devices, at most `most`; returns how many there are. At the start in order of index and
 * instance; from then on a device keeps its place, and what comes later stands behind. One that is gone stays
 * in the list, and has its place again when it comes back. Any thread. */
int device_watch_devices(struct device_watch *w, struct device *ret, int most);
/* Nobody needs the place of this device, which is gone: another may get it. */
void device_watch_forget(struct device_watch *w, int index);
/* How well two of them are connected, 0 (across processors) to 4 (NVLink). */
int device_watch_link(struct device_watch *w, int a, int b);

/* The last sample of each, in the same order; at most `most`. Any thread; never waits for the driver. */
void device_watch_read(struct device_watch *w, struct device_sample *ret, int most);
/* Takes the oldest event; false = none. Any thread. */
bool device_watch_event(struct device_watch *w, struct device_event *ret);
/* Samples now, and often for a moment: a device was given back. */
void device_watch_look(struct device_watch *w);
