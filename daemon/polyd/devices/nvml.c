/* The few calls of NVML that we make, declared after NVIDIA's public description of its interface: plain C
 * functions whose names carry a version where their structs changed. Old drivers lack some of them. */
#include "daemon/polyd/devices/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvmlDevice *handle;

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
};
struct memory_info {
    unsigned long long total, free, used;
};
struct memory_info_2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct utilization {
    unsigned gpu, memory;
};
struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};
struct event_data {
    handle device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

#define EVENT_XID 8ull
#define P2P_READ 0
#define P2P_NVLINK 2
#define NO_MEMORY (~0ull) /* a process whose memory the driver does not report */
#define LOOKED_AT 64      /* processes of a GPU */
#define NO_INSTANCE 0xffffffffu

/* X(member, symbol, arguments): the first two groups must be there, the rest may be missing. */
#define NEEDED(X)                                                                                            \
    X(init, nvmlInit_v2, (void))                                                                             \
    X(shutdown, nvmlShutdown, (void))                                                                        \
    X(count, nvmlDeviceGetCount_v2, (unsigned *))                                                            \
    X(by_index, nvmlDeviceGetHandleByIndex_v2, (unsigned, handle *))                                         \
    X(name, nvmlDeviceGetName, (handle, char *, unsigned))                                                   \
    X(uuid, nvmlDeviceGetUUID, (handle, char *, unsigned))                                                   \
    X(memory, nvmlDeviceGetMemoryInfo, (handle, struct memory_info *))
#define WANTED(X)                                                                                            \
    X(driver_version, nvmlSystemGetDriverVersion, (char *, unsigned))                                        \
    X(nvml_version, nvmlSystemGetNVMLVersion, (char *, unsigned))                                            \
    X(cuda_version, nvmlSystemGetCudaDriverVersion_v2, (int *))                                              \
    X(pci, nvmlDeviceGetPciInfo_v3, (handle, struct pci_info *))                                             \
    X(capability, nvmlDeviceGetCudaComputeCapability, (handle, int *, int *))                                \
    X(memory_2, nvmlDeviceGetMemoryInfo_v2, (handle, struct memory_info_2 *))                                \
    X(utilization, nvmlDeviceGetUtilizationRates, (handle, struct utilization *))                            \
    X(temperature, nvmlDeviceGetTemperature, (handle, unsigned, unsigned *))                                 \
    X(power, nvmlDeviceGetPowerUsage, (handle, unsigned *))                                                  \
    X(power_limit, nvmlDeviceGetEnforcedPowerLimit, (handle, unsigned *))                                    \
    X(clock, nvmlDeviceGetClockInfo, (handle, unsigned, unsigned *))                                         \
    X(ecc, nvmlDeviceGetTotalEccErrors, (handle, unsigned, unsigned, unsigned long long *))                  \
    X(remapped, nvmlDeviceGetRemappedRows, (handle, unsigned *, unsigned *, unsigned *, unsigned *))         \
    X(mig_mode, nvmlDeviceGetMigMode, (handle, unsigned *, unsigned *))                                      \
    X(mig_most, nvmlDeviceGetMaxMigDeviceCount, (handle, unsigned *))                                        \
    X(mig_by_index, nvmlDeviceGetMigDeviceHandleByIndex, (handle, unsigned, handle *))                       \
    X(gpu_instance, nvmlDeviceGetGpuInstanceId, (handle, unsigned *))                                        \
    X(processes, nvmlDeviceGetComputeRunningProcesses_v3, (handle, unsigned *, struct process_info *))       \
    X(processes_2, nvmlDeviceGetComputeRunningProcesses_v2, (handle, unsigned *, struct process_info *))     \
    X(graphics, nvmlDeviceGetGraphicsRunningProcesses_v3, (handle, unsigned *, struct process_info *))       \
    X(graphics_2, nvmlDeviceGetGraphicsRunningProcesses_v2, (handle, unsigned *, struct process_info *))     \
    X(p2p, nvmlDeviceGetP2PStatus, (handle, handle, unsigned, unsigned *))                                   \
    X(ancestor, nvmlDeviceGetTopologyCommonAncestor, (handle, handle, unsigned *))                           \
    X(set_new, nvmlEventSetCreate, (void **))                                                                \
    X(set_free, nvmlEventSetFree, (void *))                                                                  \
    X(set_add, nvmlDeviceRegisterEvents, (handle, unsigned long long, void *))                               \
    X(set_wait, nvmlEventSetWait_v2, (void *, struct event_data *, unsigned))

struct nvml {
    void *library;
    const char *(*error_text)(int);
#define MEMBER(member, symbol, args) int(*member) args;
    NEEDED(MEMBER) WANTED(MEMBER)
#undef MEMBER
};

#define CALL(n, member, ...) ((n)->member ? (n)->member(__VA_ARGS__) : (int)NVML_CODE_UNSUPPORTED)

const char *nvml_text(struct nvml *n, int code)
{
    return n->error_text ? n->error_text(code) : "unknown error";
}

/* A function's address travels as an object's: POSIX says how. */
static void take(void *library, const char *symbol, void *member)
{
    void *at = dlsym(library, symbol);

    memcpy(member, &at, sizeof at);
}

struct nvml *nvml_open(const char *library, struct pd_why *why)
{
    struct nvml *n = calloc(1, sizeof *n);
    const char *missing = NULL;
    int code;

    if (!n) {
        (void)pd_fail(why, PD_ERR_NOMEM, "no memory for NVML");
        return NULL;
    }
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        const char *text = dlerror();

        (void)pd_fail(why, PD_ERR_NOT_FOUND, "%s cannot be loaded (%s): is the NVIDIA driver installed?",
                      library,
                      text && strstr(text, "No such file") ? "no such library"
                      : text                               ? text
                                                           : "unknown error");
        free(n);
        return NULL;
    }
    take(n->library, "nvmlErrorString", &n->error_text);
#define TAKE(member, symbol, args) take(n->library, #symbol, &n->member);
    NEEDED(TAKE)
    WANTED(TAKE)
#undef TAKE
#define ASK(member, symbol, args)                                                                            \
    if (!n->member)                                                                                          \
        missing = #symbol;
    NEEDED(ASK)
#undef ASK
    if (missing) {
        (void)pd_fail(why, PD_ERR_VERSION, "%s has no %s: the driver is too old", library, missing);
        free(n);
        return NULL;
    }
    code = n->init();
    if (code != NVML_CODE_OK) {
        (void)pd_fail(why, PD_ERR_IO, "NVML cannot be initialised: %s", nvml_text(n, code));
        free(n);
        return NULL;
    }
    return n;
}

struct nvml *nvml_close(struct nvml *n)
{
    if (n) {
        n->shutdown();
        free(n);
    }
    return NULL;
}

void nvml_driver(struct nvml *n, struct device_driver *ret)
{
    int cuda = 0;

    memset(ret, 0, sizeof *ret);
    ret->loaded = true;
    if (CALL(n, driver_version, ret->version, sizeof ret->version) != NVML_CODE_OK)
        ret->version[0] = '\0';
    if (CALL(n, nvml_version, ret->nvml, sizeof ret->nvml) != NVML_CODE_OK)
        ret->nvml[0] = '\0';
    if (CALL(n, cuda_version, &cuda) == NVML_CODE_OK) {
        ret->cuda_major = cuda / 1000;
        ret->cuda_minor = cuda % 1000 / 10;
    }
}

int nvml_count(struct nvml *n, int *ret)
{
    unsigned count = 0;
    int code = n->count(&count);

    *ret = (int)count;
    return code;
}

/* The kernel knows it, so the driver is not needed. */
static int numa_node(const char *pci)
{
    const char *at = pci;
    char path[96], address[32];
    size_t len = 0;
    int node = -1;
    FILE *f;

    /* NVML writes a domain of eight digits, the kernel one of four. */
    if (strlen(at) > 12 && !strncmp(at, "0000", 4))
        at += 4;
    for (; *at && len + 1 < sizeof address; at++)
        address[len++] = (char)(*at >= 'A' && *at <= 'F' ? *at - 'A' + 'a' : *at);
    address[len] = '\0';
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", address);
    f = fopen(path, "re");
    if (f && fscanf(f, "%d", &node) != 1)
        node = -1;
    if (f)
        fclose(f);
    return node;
}

int nvml_gpu(struct nvml *n, int index, void **ret_handle, struct device *ret)
{
    struct memory_info memory = {0};
    struct pci_info pci = {0};
    handle h = NULL;
    int code = n->by_index((unsigned)index, &h);

    memset(ret, 0, sizeof *ret);
    if (code == NVML_CODE_OK)
        code = n->uuid(h, ret->id, sizeof ret->id);
    if (code == NVML_CODE_OK)
        code = n->name(h, ret->model, sizeof ret->model);
    if (code != NVML_CODE_OK)
        return code;
    snprintf(ret->name, sizeof ret->name, "cuda:%d", index);
    snprintf(ret->kind, sizeof ret->kind, "cuda");
    ret->gpu = index;
    ret->instance = ret->numa = -1;
    if (n->memory(h, &memory) ==
        NVML_CODE_OK) /* in MIG mode the driver may refuse it to unprivileged users */
        ret->memory_bytes = (int64_t)memory.total;
    if (CALL(n, pci, h, &pci) == NVML_CODE_OK) {
        pci.bus_id[sizeof pci.bus_id - 1] = '\0';
        memcpy(ret->pci, pci.bus_id, sizeof ret->pci);
        ret->numa = numa_node(ret->pci);
    }
    if (CALL(n, capability, h, &ret->major, &ret->minor) != NVML_CODE_OK)
        ret->major = ret->minor = 0;
    *ret_handle = h;
    return NVML_CODE_OK;
}

int nvml_mig_most(struct nvml *n, void *gpu)
{
    unsigned now = 0, pending = 0, most = 0;

    if (CALL(n, mig_mode, gpu, &now, &pending) != NVML_CODE_OK || !now)
        return 0;
    return CALL(n, mig_most, gpu, &most) == NVML_CODE_OK && most ? (int)most : 1;
}

int nvml_mig(struct nvml *n, void *gpu, const struct device *of, int at, void **ret_handle,
             struct device *ret, unsigned *ret_gi)
{
    struct memory_info memory = {0};
    handle h = NULL;
    int code = CALL(n, mig_by_index, gpu, (unsigned)at, &h);

    if (code != NVML_CODE_OK)
        return code;
    *ret = *of;
    ret->split = false;
    code = n->uuid(h, ret->id, sizeof ret->id);
    if (code != NVML_CODE_OK)
        return code;
    if (n->name(h, ret->model, sizeof ret->model) != NVML_CODE_OK)
        memcpy(ret->model, of->model, sizeof ret->model);
    snprintf(ret->name, sizeof ret->name, "cuda:%d.%d", of->gpu, at);
    snprintf(ret->kind, sizeof ret->kind, "mig");
    ret->instance = at;
    ret->memory_bytes = n->memory(h, &memory) == NVML_CODE_OK ? (int64_t)memory.total : 0;
    if (CALL(n, gpu_instance, h, ret_gi) != NVML_CODE_OK)
        *ret_gi = NO_INSTANCE;
    *ret_handle = h;
    return NVML_CODE_OK;
}

int nvml_link(struct nvml *n, void *a, void *b)
{
    /* NVML's levels of the common ancestor, near to far: same board 0, one switch 10, several 20, host bridge
     * 30, same processor 40, across processors 50. */
    unsigned status = 1, level = 50;

    if (CALL(n, p2p, a, b, P2P_NVLINK, &status) == NVML_CODE_OK && status == 0)
        return 4;
    if (CALL(n, ancestor, a, b, &level) != NVML_CODE_OK)
        return 0;
    if (level <= 20)
        return 3;
    return level <= 30 ? 2 : level <= 40 ? 1 : 0;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Given up by the driver: every other failure only leaves a value unknown. */
static bool given_up(int code)
{
    return code == NVML_CODE_LOST || code == NVML_CODE_RESET;
}

/* Entries that the driver fills, at most LOOKED_AT; there is room for more, since the first drivers of branch
 * 535 wrote wider ones. */
struct processes {
    struct process_info list[LOOKED_AT + LOOKED_AT / 2];
};

static void sample_processes(struct nvml *n, handle h, struct device_sample *ret)
{
    struct processes p;
    unsigned count = LOOKED_AT;
    int code = CALL(n, processes, h, &count, p.list);

    if (code == NVML_CODE_UNSUPPORTED) {
        count = LOOKED_AT;
        code = CALL(n, processes_2, h, &count, p.list);
    }
    if (code != NVML_CODE_OK && code != NVML_CODE_SHORT)
        return;
    ret->process_count = (int)count; /* if there are too many, only their number is reported */
    for (unsigned i = 0; code == NVML_CODE_OK && i < count && i < DEVICE_PROCESSES; i++)
        ret->processes[i] = (struct device_process){
            .pid = (int)p.list[i].pid,
            .memory_bytes = p.list[i].memory == NO_MEMORY ? -1 : (int64_t)p.list[i].memory};
}

static void sample_graphics(struct nvml *n, handle h, struct device_sample *ret)
{
    struct processes p;
    unsigned count = LOOKED_AT;
    int code = CALL(n, graphics, h, &count, p.list);

    if (code == NVML_CODE_UNSUPPORTED) {
        count = LOOKED_AT;
        code = CALL(n, graphics_2, h, &count, p.list);
    }
    ret->graphics_memory = code == NVML_CODE_OK ? 0 : -1;
    for (unsigned i = 0; code == NVML_CODE_OK && i < count && i < LOOKED_AT; i++)
        ret->graphics_memory += p.list[i].memory == NO_MEMORY ? 0 : (int64_t)p.list[i].memory;
}

static void sample_ecc(struct nvml *n, handle h, struct device_sample *ret)
{
    unsigned long long errors;

    if (CALL(n, ecc, h, 0, 0, &errors) == NVML_CODE_OK)
        ret->ecc_corrected = (int64_t)errors;
    if (CALL(n, ecc, h, 1, 0, &errors) == NVML_CODE_OK)
        ret->ecc_uncorrected = (int64_t)errors;
}

const struct device_sample nvml_unknown = {.memory_used = -1,
                                           .memory_total = -1,
                                           .memory_reserved = -1,
                                           .utilization = -1,
                                           .memory_utilization = -1,
                                           .temperature_c = -1,
                                           .power_mw = -1,
                                           .power_limit_mw = -1,
                                           .sm_clock_mhz = -1,
                                           .ecc_corrected = -1,
                                           .ecc_uncorrected = -1,
                                           .process_count = -1,
                                           .graphics_memory = -1};

int nvml_sample(struct nvml *n, void *handle_of, bool mig, struct device_sample *ret)
{
    struct memory_info_2 memory_2 = {.version = (unsigned)sizeof memory_2 | 2u << 24};
    struct memory_info memory = {0};
    struct utilization busy = {0};
    unsigned value, corrected, uncorrected, pending, failed = 0;
    handle h = handle_of;
    int code;

    *ret = nvml_unknown;
    code = CALL(n, memory_2, h, &memory_2);
    if (code == NVML_CODE_OK) {
        ret->memory_used = (int64_t)memory_2.used;
        ret->memory_total = (int64_t)memory_2.total;
        ret->memory_reserved = (int64_t)memory_2.reserved;
    } else if (!given_up(code)) {
        code = n->memory(h, &memory);
        if (code == NVML_CODE_OK) {
            ret->memory_used = (int64_t)memory.used;
            ret->memory_total = (int64_t)memory.total;
        }
    }
    if (given_up(code)) {
        ret->broken = true;
        snprintf(ret->reason, sizeof ret->reason, "%s",
                 code == NVML_CODE_LOST ? "it has fallen off the bus" : "it needs a reset");
        return code;
    }
    if (code == NVML_CODE_NOT_FOUND || code == NVML_CODE_INVALID || code == NVML_CODE_UNINITIALIZED)
        return NVML_CODE_NOT_FOUND;
    sample_processes(n, h, ret);
    sample_graphics(n, h, ret);
    if (mig) /* the rest is the whole GPU's */
        return NVML_CODE_OK;
    if (CALL(n, utilization, h, &busy) == NVML_CODE_OK) {
        ret->utilization = (int)busy.gpu;
        ret->memory_utilization = (int)busy.memory;
    }
    if (CALL(n, temperature, h, 0, &value) == NVML_CODE_OK)
        ret->temperature_c = (int)value;
    if (CALL(n, power, h, &value) == NVML_CODE_OK)
        ret->power_mw = value;
    if (CALL(n, power_limit, h, &value) == NVML_CODE_OK)
        ret->power_limit_mw = value;
    if (CALL(n, clock, h, 1, &value) == NVML_CODE_OK)
        ret->sm_clock_mhz = (int)value;
    sample_ecc(n, h, ret);
    if (CALL(n, remapped, h, &corrected, &uncorrected, &pending, &failed) == NVML_CODE_OK && failed) {
        ret->broken = true;
        snprintf(ret->reason, sizeof ret->reason, "a row of its memory could not be remapped");
    }
    return NVML_CODE_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

void *nvml_events_new(struct nvml *n, void *const *gpus, int count)
{
    void *set = NULL;
    int taken = 0;

    if (!n->set_wait || CALL(n, set_new, &set) != NVML_CODE_OK)
        return NULL;
    for (int i = 0; i < count; i++)
        taken += CALL(n, set_add, gpus[i], EVENT_XID, set) == NVML_CODE_OK;
    if (taken || !count)
        return set;
    nvml_events_free(n, set);
    return NULL;
}

void nvml_events_free(struct nvml *n, void *set)
{
    if (set)
        (void)CALL(n, set_free, set);
}

int nvml_events_wait(struct nvml *n, void *set, unsigned timeout_ms, char *uuid, size_t size, int *ret_xid,
                     unsigned *ret_gi)
{
    struct event_data data = {.gpu_instance = NO_INSTANCE};
    int code = n->set_wait(set, &data, timeout_ms);

    if (code != NVML_CODE_OK)
        return code;
    if (data.type != EVENT_XID)
        return NVML_CODE_TIMEOUT;
    /* A lost GPU may not report its name any more; then the device of the error is unknown. */
    if (n->uuid(data.device, uuid, (unsigned)size) != NVML_CODE_OK)
        uuid[0] = '\0';
    *ret_xid = (int)data.data;
    *ret_gi = data.gpu_instance;
    return NVML_CODE_OK;
}
