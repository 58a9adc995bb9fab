#include <sched.h>
#include <stdio.h>

#include "daemon/worker/worker.h"

int worker_info_main(int argc, char **argv)
{
    cpu_set_t set;
    int cpus = 1;

    (void)argc;
    (void)argv;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = CPU_COUNT(&set);
    printf("{\"version\":\"" POLYD_VERSION "\",\"backends\":[\"cpu\"],\"processors\":%d}\n", cpus);
    return 0;
}
