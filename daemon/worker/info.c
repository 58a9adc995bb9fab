/* `polyd-worker info`: what this worker can compute with, for the daemon (which links no kernels) and for
 * people. */
#include <sched.h>
#include <stdio.h>

#include "daemon/worker/worker.h"
#include "kernels/backend/load.h"
#include "kernels/comm/comm.h"

/* A sentence of ours or the linker's, inside quotes. */
static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++)
        putchar(*text == '"' || *text == '\\' ? '\'' : (unsigned char)*text < ' ' ? ' ' : *text);
    putchar('"');
}

int worker_info_main(int argc, char **argv)
{
    const struct pk_backend_api *api;
    const struct pk_comm_api *comm;
    struct pd_why why = {""};
    cpu_set_t set;
    bool cuda;
    int cpus = 1;

    (void)argc;
    (void)argv;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = CPU_COUNT(&set);
    /* As a plan opens it: without a device, so that nothing is taken from a GPU. */
    cuda = pk_backend_load("cuda", PK_LOAD_PLAN, &api, &why) == PD_OK;
    printf("{\"version\":\"" POLYD_VERSION
           "\",\"backends\":[\"cpu\"%s],\"processors\":%d,\"plugins\":{\"backend_cuda\":",
           cuda ? ",\"cuda\"" : "", cpus);
    print_text(cuda ? "" : why.text);
    why.text[0] = '\0';
    printf(",\"comm_nccl\":");
    print_text(pk_comm_load_nccl(NULL, &comm, &why) == PD_OK ? "" : why.text);
    printf("}}\n");
    return 0;
}
