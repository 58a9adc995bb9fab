/* Devices as the scheduler sees them: free, held, or out of service and why. What the driver says is the last
 * sample of the watch; the rest is our own memory of who holds what. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/polyd/sched/sched.h"
#include "daemon/polyd/supervise/devices/internal.h"
#include "kernels/base/clock.h"

/* More than a driver keeps for itself on an idle GPU: below it, memory without a visible process means
 * nothing. */
#define DIRTY_BYTES (INT64_C(1536) << 20)
#define FIT_PERCENT 90 /* a plan that fills more of an instance does not fit: the driver needs its part */

static const char *const names[] = {
    [SLOT_FREE] = "free",         [SLOT_SERVING] = "serving",   [SLOT_BUSY] = "busy",
    [SLOT_CHECKING] = "checking", [SLOT_DRAINING] = "draining", [SLOT_FOREIGN] = "foreign",
    [SLOT_DRAINED] = "drained",   [SLOT_BROKEN] = "broken",     [SLOT_STALE] = "stale",
    [SLOT_GONE] = "gone",         [SLOT_SPLIT] = "split"};

const char *slot_state_name(enum slot_state state)
{
    return names[state];
}

void slots_look(struct devices *ds)
{
    if (ds->gpu_count)
        device_watch_read(ds->watch, ds->samples, ds->gpu_count);
}

bool slot_is_gpu(const struct devices *ds, int i)
{
    return i >= ds->gpu_first && i < ds->gpu_first + ds->gpu_count;
}

static int64_t graphics_memory(const struct device_sample *p)
{
    return p->graphics_memory > 0 ? p->graphics_memory : 0;
}

/* Whether a foreign process uses the GPU. Only called for a GPU without a holder. */
static bool foreign(const struct device_sample *p, char *reason, size_t size)
{
    int64_t used = p->memory_used - graphics_memory(p);

    if (p->process_count > 0) {
        snprintf(reason, size, "%d foreign process%s (pid %d%s)", p->process_count,
                 p->process_count == 1 ? "" : "es", p->processes[0].pid, p->process_count > 1 ? ", ..." : "");
        if (p->process_count == 1)
            snprintf(reason, size, "a foreign process (pid %d)", p->processes[0].pid);
        return true;
    }
    if (p->memory_used >= 0 && used > DIRTY_BYTES) {
        snprintf(reason, size, "a process that cannot be seen from here (%.1f GB in use)",
                 1e-9 * (double)used);
        return true;
    }
    return false;
}

static enum slot_state gpu_state(const struct devices *ds, int i, char *reason, size_t size)
{
    const struct device_sample *p = &ds->samples[i - ds->gpu_first];

    if (p->broken) {
        snprintf(reason, size, "%s", p->reason);
        return SLOT_BROKEN;
    }
    if (p->stale || !p->taken_us) {
        snprintf(reason, size, "%s", p->taken_us ? p->reason : "the driver has not answered yet");
        return SLOT_STALE;
    }
    /* Its processes are polyd's, or indistinguishable: in a container they have other ids. */
    if (ds->held[i].models) {
        snprintf(reason, size, "%d loaded model%s", ds->held[i].models, ds->held[i].models == 1 ? "" : "s");
        return SLOT_SERVING;
    }
    if (p->taken_us <= ds->held[i].freed_us) {
        snprintf(reason, size, "released a moment ago");
        return SLOT_CHECKING;
    }
    return foreign(p, reason, size) ? SLOT_FOREIGN : SLOT_FREE;
}

/* The GPU that an instance is a part of, or -1. */
static int parent(const struct devices *ds, int i)
{
    for (int j = ds->gpu_first; ds->devices[i].instance >= 0 && j < ds->gpu_first + ds->gpu_count; j++)
        if (ds->devices[j].gpu == ds->devices[i].gpu && ds->devices[j].instance < 0 && !ds->devices[j].gone)
            return j;
    return -1;
}

enum slot_state slot_state(const struct devices *ds, int i, char *reason, size_t size)
{
    char none[200];
    int whole = slot_is_gpu(ds, i) ? parent(ds, i) : -1;
    bool drained = ds->held[i].drained || (whole >= 0 && ds->held[whole].drained);

    if (!reason) {
        reason = none;
        size = sizeof none;
    }
    reason[0] = '\0';
    if (drained)
        snprintf(reason, size, "%s", ds->held[ds->held[i].drained ? i : whole].drain_reason);
    if (ds->held[i].by.run)
        return drained ? SLOT_DRAINING : SLOT_BUSY;
    if (ds->devices[i].gone) {
        snprintf(reason, size, "%s",
                 ds->devices[i].instance >= 0 ? "this MIG instance does not exist any more"
                                              : "the driver lists it no longer");
        return SLOT_GONE;
    }
    if (slot_is_gpu(ds, i) && ds->devices[i].split) {
        snprintf(reason, size, "it is split into MIG instances, which are devices of their own");
        return SLOT_SPLIT;
    }
    if (drained)
        return SLOT_DRAINED;
    if (whole >= 0 && ds->samples[whole - ds->gpu_first].broken) {
        snprintf(reason, size, "%s", ds->samples[whole - ds->gpu_first].reason);
        return SLOT_BROKEN;
    }
    return slot_is_gpu(ds, i) ? gpu_state(ds, i, reason, size) : SLOT_FREE;
}

struct slot_count slots_count(const struct devices *ds, const char *kind)
{
    struct slot_count c = {0};

    for (int i = 0; i < ds->device_count; i++) {
        enum slot_state state;

        /* A GPU that is gone may come back; an instance was taken apart. */
        if (strcmp(ds->devices[i].kind, kind) != 0 || (state = slot_state(ds, i, NULL, 0)) == SLOT_SPLIT ||
            (state == SLOT_GONE && ds->devices[i].instance >= 0))
            continue;
        c.total++;
        c.free += state <= SLOT_SERVING;
        c.out += state > SLOT_CHECKING;
    }
    return c;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static int link_of(void *ctx, int a, int b)
{
    const struct devices *ds = ctx;

    return device_watch_link(ds->watch, a - ds->gpu_first, b - ds->gpu_first);
}

int64_t slots_memory(const struct devices *ds, const char *kind)
{
    int64_t most = 0;

    for (int i = 0; i < ds->device_count; i++)
        if (!strcmp(ds->devices[i].kind, kind) && !ds->devices[i].gone && ds->devices[i].memory_bytes > most)
            most = ds->devices[i].memory_bytes;
    return most;
}

int64_t slots_memory_held(const struct devices *ds, const char *kind)
{
    int64_t held = 0;

    for (int i = 0; i < ds->device_count; i++)
        if (!strcmp(ds->devices[i].kind, kind) && ds->held[i].by.run)
            held += ds->held[i].by.need_bytes;
    return held;
}

void slots_memory_reason(const struct devices *ds, const char *kind, int64_t need_bytes, char *out,
                         size_t size)
{
    snprintf(out, size, "waiting for memory: its plan needs %.2f GB; running jobs hold %.2f of %.2f GB",
             1e-9 * (double)need_bytes, 1e-9 * (double)slots_memory_held(ds, kind),
             1e-9 * (double)slots_memory(ds, kind));
}

/* An instance: the smallest that the plan fits in; without a plan the largest. */
static int pick_instance(const struct devices *ds, const bool *usable, int64_t need_bytes)
{
    int best = -1;

    for (int i = 0; i < ds->device_count; i++) {
        int64_t bytes = ds->devices[i].memory_bytes;

        if (!usable[i] || (need_bytes && need_bytes > bytes / 100 * FIT_PERCENT))
            continue;
        if (best < 0 ||
            (need_bytes ? bytes < ds->devices[best].memory_bytes : bytes > ds->devices[best].memory_bytes))
            best = i;
    }
    return best;
}

/* Those of a state up to `most`; returns how many. */
static int usable_of(const struct devices *ds, const char *kind, enum slot_state most, bool *ret)
{
    int count = 0;

    for (int i = 0; i < ds->device_count; i++) {
        ret[i] = !strcmp(ds->devices[i].kind, kind) && slot_state(ds, i, NULL, 0) <= most;
        count += ret[i];
    }
    return count;
}

/* Removes GPUs with too little memory for a plan of this size; returns how many are left. */
static int drop_small(const struct devices *ds, int64_t need_bytes, bool *usable)
{
    int left = 0;

    for (int i = 0; i < ds->device_count; i++) {
        int64_t bytes = ds->devices[i].memory_bytes;

        usable[i] = usable[i] && (!bytes || need_bytes <= bytes / 100 * FIT_PERCENT);
        left += usable[i];
    }
    return left;
}

bool slots_unfit(const struct devices *ds, const char *kind, int slots, int64_t need_bytes)
{
    bool usable[DEVICE_MAX] = {false};

    return need_bytes && !strcmp(kind, "cuda") && usable_of(ds, kind, SLOT_SERVING, usable) >= slots &&
           drop_small(ds, need_bytes, usable) < slots &&
           need_bytes <= slots_memory(ds, kind) / 100 * FIT_PERCENT;
}

int slots_pick(const struct devices *ds, const char *kind, int slots, int64_t need_bytes, int *ret)
{
    bool usable[DEVICE_MAX] = {false};
    bool gpu = !strcmp(kind, "cuda");

    if (slots > DEVICES_PICK_MAX)
        return 0;
    if (usable_of(ds, kind, SLOT_FREE, usable) < slots ||
        (gpu && need_bytes && need_bytes <= slots_memory(ds, kind) / 100 * FIT_PERCENT &&
         drop_small(ds, need_bytes, usable) < slots)) {
        usable_of(ds, kind, SLOT_SERVING, usable);
        if (gpu && need_bytes <= slots_memory(ds, kind) / 100 * FIT_PERCENT)
            drop_small(ds, need_bytes, usable);
    }
    if (!strcmp(kind, "mig")) {
        if (slots == 1)
            ret[0] = pick_instance(ds, usable, need_bytes);
        return slots == 1 && ret[0] >= 0;
    }
    return sched_pick(usable, ds->device_count, slots, gpu ? link_of : NULL, (void *)ds, ret);
}

int slots_pick_serving(const struct devices *ds)
{
    int best = -1, best_rank = 3;

    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count; i++) {
        enum slot_state state = slot_state(ds, i, NULL, 0);
        int rank = state == SLOT_SERVING || (state == SLOT_BUSY && ds->held[i].models) ? 0
                   : state == SLOT_FREE                                                ? 1
                   : state == SLOT_BUSY || state == SLOT_CHECKING                      ? 2
                                                                                       : 3;

        if (rank < best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

const char *slots_kind(const struct devices *ds, const char *device, int slots, int64_t need_bytes)
{
    int whole = 0, instances = 0, one;

    if (!strcmp(device, "cpu"))
        return "cpu";
    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count; i++)
        if (ds->devices[i].gone)
            continue;
        else if (ds->devices[i].instance >= 0)
            instances++;
        else
            whole += !ds->devices[i].split;
    if (slots != 1 || !instances)
        return "cuda";
    return !whole || (need_bytes && slots_pick(ds, "mig", 1, need_bytes, &one)) ? "mig" : "cuda";
}

/* ---- words ----------------------------------------------------------------------------------- */

static void PD_PRINTF(3, 4) add(char *out, size_t size, const char *fmt, ...)
{
    size_t len = strlen(out);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(out + len, size - len, fmt, ap);
    va_end(ap);
}

/* The first of a state with its reason, and how many there are. */
static int first_of(const struct devices *ds, const char *kind, enum slot_state state, char *reason,
                    size_t size, const char **ret_name)
{
    int count = 0;

    for (int i = 0; i < ds->device_count; i++)
        if (!strcmp(ds->devices[i].kind, kind) && slot_state(ds, i, NULL, 0) == state && !count++) {
            slot_state(ds, i, reason, size);
            *ret_name = ds->devices[i].name;
        }
    return count;
}

void slots_why_none(const struct devices *ds, char *out, size_t size)
{
    int named = 0;

    snprintf(out, size, "no GPU can be used");
    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count && named < 3; i++) {
        char reason[200];
        enum slot_state state = slot_state(ds, i, reason, sizeof reason);

        if (state == SLOT_SPLIT || (state == SLOT_GONE && ds->devices[i].instance >= 0))
            continue;
        add(out, size, "%s%s is %s%s%s%s", named++ ? ", " : ": ", ds->devices[i].name, slot_state_name(state),
            reason[0] ? " (" : "", reason, reason[0] ? ")" : "");
    }
}

void slots_reason(const struct devices *ds, const char *kind, int slots, char *out, size_t size)
{
    static const struct {
        enum slot_state state;
        const char *one, *many;
    } states[] = {{SLOT_FOREIGN, "is used by", "are used by"},
                  {SLOT_DRAINED, "is drained", "are drained"},
                  {SLOT_DRAINING, "is being drained", "are being drained"},
                  {SLOT_BROKEN, "is broken", "are broken"},
                  {SLOT_STALE, "does not answer", "do not answer"},
                  {SLOT_GONE, "is gone", "are gone"},
                  {SLOT_CHECKING, "is being checked", "are being checked"}};
    struct slot_count c = slots_count(ds, kind);
    const char *unit = !strcmp(kind, "cuda") ? "GPU" : !strcmp(kind, "mig") ? "MIG instance" : "CPU slot";
    char others[SUP_WHY_BYTES] = "";

    if (slots == 1)
        snprintf(out, size, "waiting for a %s", unit);
    else
        snprintf(out, size, "waiting for %d %ss", slots, unit);
    if (!c.total) {
        const char *why = "";

        (void)gpu_count(ds, &why);
        add(out, size, ", but this machine has none%s%s", ds->watch && why[0] ? ": " : "",
            ds->watch ? why : "");
        return;
    }
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        char reason[200] = "";
        const char *name = "", *verb;
        int count = first_of(ds, kind, states[i].state, reason, sizeof reason, &name);

        verb = count == 1 ? states[i].one : states[i].many;
        if (count && states[i].state == SLOT_FOREIGN)
            add(others, sizeof others, ", %d %s %s", count, verb, reason);
        else if (count && states[i].state == SLOT_CHECKING)
            add(others, sizeof others, ", %d %s", count, verb);
        else if (count)
            add(others, sizeof others, ", %d %s (%s: %s)", count, verb, name, reason);
    }
    if (c.free)
        add(out, size, ": %d %s free%s", c.free, c.free == 1 ? "is" : "are", others);
    else if (others[0])
        add(out, size, ": none is free%s", others);
    else
        add(out, size, ": %s in use", c.total == 1 ? "the only one is" : "all are");
}
