/* `polyd-worker info`: what this worker can compute with, for the daemon (which links no kernels) and for
 * people. */
#include <sched.h>
#include <stdio.h>

#include "daemon/worker/process/worker.h"
#include "kernels/backend/load.h"
#include "kernels/base/json.h"
#include "kernels/comm/comm.h"

int worker_info_main(int argc, char **argv)
{
    const struct pk_backend_api *api;
    const struct pk_comm_api *comm;
    struct pd_why why = {""};
    struct pd_buf b;
    cpu_set_t set;
    bool cuda;
    int cpus = 1;

    (void)argc;
    (void)argv;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = CPU_COUNT(&set);
    /* As a plan opens it: without a device, so that nothing is taken from a GPU. */
    cuda = pk_backend_load("cuda", PK_LOAD_PLAN, &api, &why) == PD_OK;
    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "version", POLYD_VERSION);
    pd_json_key(&b, "backends");
    pd_json_open(&b, '[');
    pd_json_str(&b, "cpu");
    if (cuda)
        pd_json_str(&b, "cuda");
    pd_json_close(&b, ']');
    pd_json_kv_int(&b, "processors", cpus);
    pd_json_key(&b, "plugins");
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "backend_cuda", cuda ? "" : why.text);
    why.text[0] = '\0';
    pd_json_kv_str(&b, "comm_nccl", pk_comm_load_nccl(NULL, &comm, &why) == PD_OK ? "" : why.text);
    pd_json_close(&b, '}');
    pd_json_close(&b, '}');
    return worker_print(&b);
}
