/* An NVML without a GPU, for tests: the library libnvidia-ml.so.1 whose machine is described by the file that
 * POLYD_FAKE_NVML names. Every call reads it again, so a test changes the machine by writing the file (whole,
 * by rename). One thing per line; a word in quotes may hold spaces:
 *
 *   driver 580.65.06                     version of the driver
 *   init 9                               nvmlInit answers this code
 *   gpu 0 uuid=GPU-00 name="NVIDIA H200" bus=00000000:18:00.0 total=150000000000 used=600000000
 *       reserved=... util=97 memutil=40 temp=61 power=512000 limit=700000 clock=1980 major=9 minor=0
 *       ecc=3,1 (corrected, uncorrected) remap_failed=1 mig=1 proc=4711:2000000000 (repeated)
 *       draws=300000000 (memory of programs that draw)
 *       code=15 (every sample answers it) hang=5000 (milliseconds, while the file says so)     -- on one line
 *   instance 0 1 uuid=MIG-01 name="..." gi=3 total=... used=... proc=...     MIG instance 1 of GPU 0
 *   link 0 1 nvlink | switch | bridge | node | far
 *   freeze                               the GPUs stay those of nvmlInit, as in a real session: one that is
 *                                        taken away is lost
 *   xid 1 0 79 [3]                       event number 1: GPU 0, XID 79 [instance gi]; each number is reported
 *                                        once per process
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, SHORT = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };
enum { GPUS = 80, PARTS = 8, PROCESSES = 80, LINE = 4096 };

/* The same shapes as the real library's, as daemon/polyd/devices/nvml.c declares them. */
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

/* A handle: which GPU, which part of it (-1 = the whole). */
struct unit {
    int gpu, part;
};
struct event_data {
    struct unit *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static struct unit units[GPUS][PARTS + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_units(void)
{
    for (int i = 0; i < GPUS; i++)
        for (int j = 0; j <= PARTS; j++)
            units[i][j] = (struct unit){.gpu = i, .part = j - 1};
}

/* GPUs when the session began, and whether the machine is frozen now. */
static int session_gpus;

static FILE *machine(void)
{
    const char *path = getenv("POLYD_FAKE_NVML");

    return path ? fopen(path, "re") : NULL;
}

/* The line that describes a unit, or false. */
static int line_of(const struct unit *u, char *line)
{
    FILE *f = machine();
    int gpu, part, found = 0;

    while (f && !found && fgets(line, LINE, f))
        found = u->part < 0
                    ? sscanf(line, "gpu %d", &gpu) == 1 && gpu == u->gpu
                    : sscanf(line, "instance %d %d", &gpu, &part) == 2 && gpu == u->gpu && part == u->part;
    if (f)
        fclose(f);
    return found;
}

/* The value of the n-th `key` in the line. */
static int value(const char *line, const char *key, int n, char *out, size_t size)
{
    size_t len = strlen(key);

    for (const char *at = line; (at = strstr(at, key)); at += len) {
        const char *from = at + len + 1, *to;

        if (at == line || at[-1] != ' ' || at[len] != '=' || n--)
            continue;
        to = *from == '"' ? strchr(++from, '"') : from + strcspn(from, " \n");
        snprintf(out, size, "%.*s", (int)(to ? to - from : 0), from);
        return 1;
    }
    return 0;
}

/* Lines of GPUs; *ret_frozen: the machine says so. */
static int count_gpus(int *ret_frozen)
{
    char line[LINE];
    FILE *f = machine();
    int gpu, count = 0;

    *ret_frozen = 0;
    while (f && fgets(line, sizeof line, f)) {
        count += sscanf(line, "gpu %d", &gpu) == 1;
        *ret_frozen = *ret_frozen || !strncmp(line, "freeze", 6);
    }
    if (f)
        fclose(f);
    return count;
}

/* 0 = the unit has such a value; a number that hangs or refuses does so first. */
static int number(const struct unit *u, const char *key, unsigned long long *ret)
{
    char line[LINE], text[64];
    int frozen;

    if (!line_of(u, line)) {
        (void)count_gpus(&frozen);
        return u->part >= 0 ? NOT_FOUND : frozen ? LOST : UNKNOWN;
    }
    while (value(line, "hang", 0, text, sizeof text)) { /* as long as the file says so, at most so many ms */
        struct timespec pause = {.tv_nsec = 20000000};
        static _Atomic long slept;

        nanosleep(&pause, NULL);
        slept += 20;
        if (slept > atol(text) || !line_of(u, line))
            break;
    }
    if (value(line, "code", 0, text, sizeof text))
        return atoi(text);
    if (!value(line, key, 0, text, sizeof text))
        return NOT_SUPPORTED;
    *ret = strtoull(text, NULL, 10);
    return OK;
}

static int number32(const struct unit *u, const char *key, unsigned *ret)
{
    unsigned long long n = 0;
    int code = number(u, key, &n);

    if (code == OK)
        *ret = (unsigned)n;
    return code;
}

static int text_of(const struct unit *u, const char *key, char *out, unsigned size)
{
    char line[LINE];

    return line_of(u, line) && value(line, key, 0, out, size) ? OK : UNKNOWN;
}

#define PUBLIC __attribute__((visibility("default")))
#define DECLARE(name, args)                                                                                  \
    PUBLIC int name args;                                                                                    \
    int name args

DECLARE(nvmlInit_v2, (void))
{
    char line[LINE];
    FILE *f = machine();
    int code = OK, frozen;

    pthread_once(&once, make_units);
    if (!f)
        return UNKNOWN;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "init %d", &code) == 1)
            break;
    fclose(f);
    session_gpus = count_gpus(&frozen);
    return code;
}

DECLARE(nvmlShutdown, (void))
{
    return OK;
}

PUBLIC const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code)
{
    return code == 9    ? "Driver Not Loaded"
           : code == 15 ? "GPU is lost"
           : code == 3  ? "Not Supported"
                        : "Unknown Error";
}

DECLARE(nvmlSystemGetDriverVersion, (char *out, unsigned size))
{
    char line[LINE], version[80] = "";
    FILE *f = machine();

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "driver %79s", version) == 1)
            break;
    if (f)
        fclose(f);
    snprintf(out, size, "%s", version);
    return *version ? OK : UNKNOWN;
}

DECLARE(nvmlSystemGetNVMLVersion, (char *out, unsigned size))
{
    snprintf(out, size, "13.fake");
    return OK;
}

DECLARE(nvmlSystemGetCudaDriverVersion_v2, (int *out))
{
    *out = 13000;
    return OK;
}

DECLARE(nvmlDeviceGetCount_v2, (unsigned *out))
{
    int frozen, count = count_gpus(&frozen);

    *out = (unsigned)(frozen ? session_gpus : count);
    return OK;
}

DECLARE(nvmlDeviceGetHandleByIndex_v2, (unsigned index, struct unit **out))
{
    char line[LINE];
    int frozen;

    (void)count_gpus(&frozen);
    if (index >= GPUS || (frozen && index >= (unsigned)session_gpus))
        return NOT_FOUND;
    if (!line_of(&units[index][0], line))
        return frozen ? LOST : NOT_FOUND;
    *out = &units[index][0];
    return OK;
}

DECLARE(nvmlDeviceGetName, (struct unit * u, char *out, unsigned size))
{
    return text_of(u, "name", out, size);
}

DECLARE(nvmlDeviceGetUUID, (struct unit * u, char *out, unsigned size))
{
    return text_of(u, "uuid", out, size);
}

DECLARE(nvmlDeviceGetPciInfo_v3, (struct unit * u, struct pci_info *out))
{
    memset(out, 0, sizeof *out);
    return text_of(u, "bus", out->bus_id, sizeof out->bus_id);
}

DECLARE(nvmlDeviceGetCudaComputeCapability, (struct unit * u, int *major, int *minor))
{
    unsigned a, b;
    int code = number32(u, "major", &a);

    if (code == OK)
        code = number32(u, "minor", &b);
    if (code == OK) {
        *major = (int)a;
        *minor = (int)b;
    }
    return code;
}

DECLARE(nvmlDeviceGetMemoryInfo, (struct unit * u, struct memory_info *out))
{
    int code = number(u, "total", &out->total);

    if (code == OK)
        code = number(u, "used", &out->used);
    out->free = out->total - out->used;
    return code;
}

DECLARE(nvmlDeviceGetMemoryInfo_v2, (struct unit * u, struct memory_info_2 *out))
{
    struct memory_info one;
    unsigned long long reserved = 0;
    int code = out->version == (sizeof *out | 2u << 24) ? nvmlDeviceGetMemoryInfo(u, &one) : 2;

    if (code == OK)
        code = number(u, "reserved", &reserved);
    if (code == OK) {
        out->total = one.total;
        out->used = one.used;
        out->free = one.free;
        out->reserved = reserved;
    }
    return code;
}

DECLARE(nvmlDeviceGetUtilizationRates, (struct unit * u, struct utilization *out))
{
    int code = number32(u, "util", &out->gpu);

    return code == OK ? number32(u, "memutil", &out->memory) : code;
}

DECLARE(nvmlDeviceGetTemperature, (struct unit * u, unsigned sensor, unsigned *out))
{
    return sensor ? NOT_SUPPORTED : number32(u, "temp", out);
}

DECLARE(nvmlDeviceGetPowerUsage, (struct unit * u, unsigned *out))
{
    return number32(u, "power", out);
}

DECLARE(nvmlDeviceGetEnforcedPowerLimit, (struct unit * u, unsigned *out))
{
    return number32(u, "limit", out);
}

DECLARE(nvmlDeviceGetClockInfo, (struct unit * u, unsigned which, unsigned *out))
{
    return which == 1 ? number32(u, "clock", out) : NOT_SUPPORTED;
}

DECLARE(nvmlDeviceGetTotalEccErrors,
        (struct unit * u, unsigned type, unsigned counter, unsigned long long *out))
{
    char line[LINE], text[64];
    unsigned long long corrected, uncorrected;

    if (counter || !line_of(u, line) || !value(line, "ecc", 0, text, sizeof text) ||
        sscanf(text, "%llu,%llu", &corrected, &uncorrected) != 2)
        return NOT_SUPPORTED;
    *out = type ? uncorrected : corrected;
    return OK;
}

DECLARE(nvmlDeviceGetRemappedRows,
        (struct unit * u, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed))
{
    *corrected = *uncorrected = *pending = 0;
    return number32(u, "remap_failed", failed);
}

DECLARE(nvmlDeviceGetMigMode, (struct unit * u, unsigned *now, unsigned *pending))
{
    *pending = 0;
    return number32(u, "mig", now);
}

DECLARE(nvmlDeviceGetMaxMigDeviceCount, (struct unit * u, unsigned *out))
{
    (void)u;
    *out = PARTS - 1;
    return OK;
}

DECLARE(nvmlDeviceGetMigDeviceHandleByIndex, (struct unit * u, unsigned at, struct unit **out))
{
    char line[LINE];

    if (at >= PARTS || !line_of(&units[u->gpu][at + 1], line))
        return NOT_FOUND;
    *out = &units[u->gpu][at + 1];
    return OK;
}

DECLARE(nvmlDeviceGetGpuInstanceId, (struct unit * u, unsigned *out))
{
    return number32(u, "gi", out);
}

DECLARE(nvmlDeviceGetComputeRunningProcesses_v3, (struct unit * u, unsigned *count, struct process_info *out))
{
    unsigned room = *count, n = 0;
    char line[LINE], text[64];

    if (!line_of(u, line))
        return UNKNOWN;
    while (value(line, "proc", (int)n, text, sizeof text)) {
        char *colon = strchr(text, ':');

        if (n < room)
            out[n] = (struct process_info){.pid = (unsigned)atol(text),
                                           .memory = colon ? strtoull(colon + 1, NULL, 10) : ~0ull};
        n++;
    }
    *count = n;
    return n > room ? SHORT : OK;
}

DECLARE(nvmlDeviceGetGraphicsRunningProcesses_v3,
        (struct unit * u, unsigned *count, struct process_info *out))
{
    char line[LINE], text[64];

    if (!line_of(u, line) || !value(line, "draws", 0, text, sizeof text))
        return NOT_SUPPORTED;
    *out = (struct process_info){.pid = 1, .memory = strtoull(text, NULL, 10)};
    *count = 1;
    return OK;
}

static int link_level(const struct unit *a, const struct unit *b)
{
    static const char *const names[] = {"nvlink", "switch", "bridge", "node", "far"};
    char line[LINE], name[16];
    FILE *f = machine();
    int x, y, found = 4;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "link %d %d %15s", &x, &y, name) == 3 &&
            ((x == a->gpu && y == b->gpu) || (x == b->gpu && y == a->gpu)))
            for (int i = 0; i < 5; i++)
                if (!strcmp(name, names[i]))
                    found = i;
    if (f)
        fclose(f);
    return found;
}

DECLARE(nvmlDeviceGetP2PStatus, (struct unit * a, struct unit *b, unsigned what, unsigned *out))
{
    *out = what == 2 && link_level(a, b) == 0 ? 0 : 1;
    return OK;
}

DECLARE(nvmlDeviceGetTopologyCommonAncestor, (struct unit * a, struct unit *b, unsigned *out))
{
    static const unsigned levels[] = {10, 10, 30, 40, 50};

    *out = levels[link_level(a, b)];
    return OK;
}

/* ---- events: the sets are one; each number of an event is told once a process ---------------- */

DECLARE(nvmlEventSetCreate, (void **out))
{
    *out =
        calloc(1, sizeof(int)); /* memory of its own: a wait in a set that was freed is seen by sanitizers */
    return *out ? OK : UNKNOWN;
}

DECLARE(nvmlEventSetFree, (void *set))
{
    free(set);
    return OK;
}

DECLARE(nvmlDeviceRegisterEvents, (struct unit * u, unsigned long long types, void *set))
{
    (void)set;
    return u->part < 0 && types == 8 ? OK : NOT_SUPPORTED;
}

DECLARE(nvmlEventSetWait_v2, (void *set, struct event_data *out, unsigned timeout_ms))
{
    static _Atomic int told;
    struct timespec pause = {.tv_nsec = 10000000};

    for (unsigned waited = 0;; waited += 10) {
        char line[LINE];
        FILE *f = machine();
        int number_of, gpu, xid, gi;

        ++*(int *)set;

        while (f && fgets(line, sizeof line, f)) {
            int n = sscanf(line, "xid %d %d %d %d", &number_of, &gpu, &xid, &gi);

            if (n < 3 || number_of <= told || gpu < 0 || gpu >= GPUS)
                continue;
            told = number_of;
            *out = (struct event_data){.device = &units[gpu][0],
                                       .type = 8,
                                       .data = (unsigned long long)xid,
                                       .gpu_instance = n == 4 ? (unsigned)gi : 0xffffffffu};
            fclose(f);
            return OK;
        }
        if (f)
            fclose(f);
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
