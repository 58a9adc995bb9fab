#include "daemon/polyd/devices/device.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 256

int device_cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return 1;
}

static void cpu_model(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[512];

    snprintf(out, size, "processor");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(out, size, "%s", value);
        break;
    }
    if (f)
        fclose(f);
}

enum pd_err device_list(int slots, int threads, struct device *ret, int most, int *ret_count,
                        struct pd_why *why)
{
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    char model[128];

    if (slots < 1 || slots > most)
        return pd_fail(why, PD_ERR_INVALID, "the number of cpu slots is %d; it must be 1 to %d", slots, most);
    if (threads < 0 || threads > THREADS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "the number of threads per slot is %d; it must be 0 to %d",
                       threads, THREADS_MAX);
    if (!threads)
        threads = device_cpu_count() / slots;
    if (threads < 1)
        threads = 1;
    cpu_model(model, sizeof model);
    for (int i = 0; i < slots; i++) {
        struct device *d = &ret[i];

        memset(d, 0, sizeof *d);
        snprintf(d->id, sizeof d->id, "cpu:%d", i);
        snprintf(d->name, sizeof d->name, "cpu:%d", i);
        d->numa = d->gpu = d->instance = -1;
        snprintf(d->kind, sizeof d->kind, "cpu");
        snprintf(d->model, sizeof d->model, "%s", model);
        d->threads = threads;
        d->memory_bytes = pages > 0 && page > 0 ? pages * page : 0;
    }
    *ret_count = slots;
    return PD_OK;
}

void device_env(const struct device *d, struct device_env *ret)
{
    snprintf(ret->visible, sizeof ret->visible, "CUDA_VISIBLE_DEVICES=%s", d->gpu >= 0 ? d->id : "");
    snprintf(ret->order, sizeof ret->order, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
}
