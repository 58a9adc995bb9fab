/* daemon/polyd/supervise/devices/internal.h: private to the module. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/polyd/supervise/devices/devices.h"
#include "daemon/polyd/supervise/loop/loop.h"

struct devices {
    struct loop *loop;
    struct workers *workers;
    struct loop_member member;
    struct devices_listener *listeners;
    char no_cuda[400];          /* why workers cannot compute on GPUs; "" = they can. Const after the start */
    struct device_watch *watch; /* NULL = no search for GPUs. Const after the start */
    int gpu_first;              /* index of the first GPU in the list. Const after the start */
    int drains_writing;         /* of ours: in memory, their rows on their way. Loop's thread */
    struct news {
        struct loop_post post;
        struct devices *devices;
        _Atomic bool posted;
    } news;

    pthread_mutex_t lock; /* guards the rest. The loop's thread alone writes it, except samples */
    struct device devices[DEVICE_MAX];
    struct {
        struct devices_holder by; /* run 0 = none */
        int models;               /* served there */
        int64_t freed_us;         /* monotonic: given back then; a GPU is used again after a look at it */
        bool drained;
        char drain_reason[160], drained_by[64];
        int64_t drained_us; /* wall clock */
    } held[DEVICE_MAX];
    int device_count;
    int gpu_count;                                /* in the order of the watch */
    struct device_sample samples[DEVICE_GPU_MAX]; /* as of the last slots_look */
};

/* ---- slot.c: which devices may be used, and why the others may not. Lock held, all of it. ---- */

enum slot_state {
    SLOT_FREE,
    SLOT_SERVING, /* models are loaded there; a run may join them, where no device is free */
    SLOT_BUSY,
    SLOT_CHECKING, /* given back; its GPU was not looked at since */
    /* Out of service, for a time that is not known. */
    SLOT_DRAINING, /* a run holds it, and no other will */
    SLOT_FOREIGN,
    SLOT_DRAINED,
    SLOT_BROKEN,
    SLOT_STALE,
    SLOT_GONE,
    SLOT_SPLIT /* never offered: its instances are */
};
bool slot_is_gpu(const struct devices *ds, int i);
/* Takes the newest samples; the states below rest on them. */
void slots_look(struct devices *ds);
/* `reason` (may be NULL): why it is not free or busy, without its name; "": none. */
enum slot_state slot_state(const struct devices *ds, int i, char *reason, size_t size);
const char *slot_state_name(enum slot_state state);
/* Counts of a kind: all but split ones; free ones; those out of service. */
struct slot_count {
    int total, free, out;
};
struct slot_count slots_count(const struct devices *ds, const char *kind);
/* Bytes that the slots of a kind share ("cpu"), or that the largest device has. 0 = unknown. */
int64_t slots_memory(const struct devices *ds, const char *kind);
/* Bytes of what its slots share that plans of runs at work need. */
int64_t slots_memory_held(const struct devices *ds, const char *kind);
void slots_memory_reason(const struct devices *ds, const char *kind, int64_t need_bytes, char *out,
                         size_t size);
/* See devices_kind, devices_pick, devices_reason, devices_serve. */
const char *slots_kind(const struct devices *ds, const char *device, int slots, int64_t need_bytes);
bool slots_unfit(const struct devices *ds, const char *kind, int slots, int64_t need_bytes);
int slots_pick(const struct devices *ds, const char *kind, int slots, int64_t need_bytes, int *ret);
void slots_reason(const struct devices *ds, const char *kind, int slots, char *out, size_t size);
int slots_pick_serving(const struct devices *ds);
/* Why no model finds one: "no GPU can be used: cuda:0 is broken (it has fallen off the bus)". */
void slots_why_none(const struct devices *ds, char *out, size_t size);

/* ---- gpu.c: GPUs: found, watched, drained ----------------------------------------------------- */

/* Adds the GPUs to the devices and reads which are drained. */
enum pd_err gpu_start(struct devices *ds, const struct devices_options *o, struct pd_why *why);
/* Faults reported by the driver since then. */
void gpu_tick(void *devices, int64_t now_us);
/* Reads which devices are drained: an operator may have changed it. */
void gpu_commands(void *devices);
/* GPUs and instances that are there; *ret_why (static): why there are none. Lock held. */
int gpu_count(const struct devices *ds, const char **ret_why);
/* Why jobs on GPUs are refused now; "" = they are not. Lock held. */
void gpu_why_none(const struct devices *ds, char *out, size_t size);
