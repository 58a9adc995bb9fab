/* Kind train: hands the assignment to the module train. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/kinds/kinds.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/train/train.h"
#include "kernels/comm/comm.h"

static void run(struct attempt *a, struct job_config *config, struct role_result *ret)
{
    struct model_tuned_store store;
    struct kind_folders folders;
    const struct train_host host = kind_host(a, &store);
    struct train_dirs dirs = kind_dirs(a, &folders);
    struct train_outcome outcome = {.result = TRAIN_FAILED};
    struct pd_why why = {""};
    uint8_t id[LINK_RENDEZVOUS_MAX];
    const char *comm = getenv("POLYD_COMM");
    enum pd_err err = PD_OK;

    if (a->assign->ranks > 1) {
        dirs.ranks = (struct train_ranks){
            .rank = a->rank, .ranks = a->assign->ranks, .comm = pk_comm_local(), .id = id};
        /* POLYD_COMM=local: by way of the host, also for several ranks on one GPU, which NCCL refuses */
        if (config->resources.device == JOB_DEVICE_CUDA && !(comm && !strcmp(comm, "local")))
            err = pk_comm_load_nccl(NULL, &dirs.ranks.comm, &why);
        if (err == PD_OK)
            err = attempt_rendezvous(a, dirs.ranks.comm, id, &why);
    }
    if (err == PD_OK)
        err = train_run(config, &dirs, &host, &outcome, &why);
    kind_conclude(a, err, &outcome, &why, ret);
}

static enum pd_err plan(struct job_config *config, const struct kind_plan *at, struct pd_buf *ret_json,
                        struct pd_why *why)
{
    return train_plan(config, at->state_dir, at->roots, at->root_count, at->cache, at->memory_bytes, ret_json,
                      why);
}

const struct worker_kind kind_train = {.run = run, .plan = plan};
