/* The train role: hands the assignment to daemon/train and its reports to the link. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/model/tuned.h"
#include "daemon/spec/spec.h"
#include "daemon/train/train.h"
#include "daemon/worker/attempt.h"
#include "daemon/worker/worker.h"
#include "kernels/base/log.h"
#include "kernels/comm/comm.h"

static void on_metrics(void *user, const struct train_point *points, size_t count)
{
    struct attempt *a = user;

    for (size_t i = 0; i < count; i++)
        link_metric(a->link, points[i].key, points[i].step, points[i].wall_us, points[i].value);
}

static void on_event(void *user, const char *kind, const char *text, const char *fields)
{
    struct attempt *a = user;
    char quoted[512];

    pd_log(PD_LOG_INFO, "train", "event=%s text=%s %s", kind,
           pd_log_quote(quoted, sizeof quoted, text ? text : ""), fields ? fields : "");
    link_event(a->link, kind, text, fields);
}

static void on_progress(void *user, int64_t step, int64_t total)
{
    struct attempt *a = user;

    link_progress(a->link, step, total, false);
}

static void on_checkpoint(void *user, const struct train_checkpoint_info *info)
{
    struct attempt *a = user;
    char digest[DIGEST_SHA256_HEX_SIZE];

    link_checkpoint(a->link, info->best ? "best" : "latest", info->path, info->step, info->bytes,
                    digest_hex(info->sha256, sizeof info->sha256, digest), info->value);
}

static bool on_recorded(void *user, int64_t step, bool wait)
{
    return link_checkpoint_recorded(((struct attempt *)user)->link, step, wait);
}

static void on_log(void *user, const char *line)
{
    (void)user;
    printf("%s\n", line);
    fflush(stdout);
}

static enum train_stop on_stop(void *user)
{
    struct attempt *a = user;

    switch (link_stop_asked(a->link)) {
    case LINK_CHECKPOINT_AND_LEAVE:
        return TRAIN_STOP_CHECKPOINT;
    case LINK_LEAVE_NOW:
        return TRAIN_STOP_CANCEL;
    case LINK_GO_ON:
        break;
    }
    return TRAIN_STOP_NONE;
}

static bool on_checkpoint_now(void *user)
{
    return link_checkpoint_asked(((struct attempt *)user)->link);
}

void role_train(struct attempt *a, struct role_result *ret)
{
    const struct model_tuned_keeper keeper = attempt_tuned(a);
    const struct train_host host = {.user = a,
                                    .metrics = on_metrics,
                                    .event = on_event,
                                    .progress = on_progress,
                                    .checkpoint_written = on_checkpoint,
                                    .checkpoint_recorded = on_recorded,
                                    .log = on_log,
                                    .stop = on_stop,
                                    .checkpoint_now = on_checkpoint_now,
                                    .tuned = &keeper};
    struct data_root roots[LINK_ROOTS_MAX];
    struct train_dirs dirs = {.roots = roots,
                              .root_count = (size_t)a->assign->root_count,
                              .starts = a->assign->starts,
                              .start_count = (size_t)a->assign->start_count,
                              .threads = a->assign->threads};
    struct train_outcome outcome = {.result = TRAIN_FAILED};
    struct spec_config *config = NULL;
    struct pd_why why = {""};
    char checkpoints[4096], cache[4096];
    uint8_t id[LINK_RENDEZVOUS_MAX];
    const char *comm = getenv("POLYD_COMM");
    enum pd_err err;

    for (int i = 0; i < a->assign->root_count; i++)
        roots[i] = (struct data_root){.name = a->assign->roots[i].name, .path = a->assign->roots[i].path};
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", a->assign->run_dir);
    dirs.checkpoints = checkpoints;
    /* Beside the runs, for all of them: the same text is not cut into tokens by each. */
    if (worker_cache_dir(a->socket_path, cache, sizeof cache))
        dirs.cache = cache;
    err = spec_config_load(a->assign->job, a->assign->job_len, &config, &why);
    if (err == PD_OK && a->assign->ranks > 1) {
        dirs.ranks = (struct train_ranks){
            .rank = a->rank, .ranks = a->assign->ranks, .comm = pk_comm_local(), .id = id};
        /* POLYD_COMM=local: by way of the host, also for several ranks on one GPU, which NCCL refuses */
        if (config->resources.device == SPEC_DEVICE_CUDA && !(comm && !strcmp(comm, "local")))
            err = pk_comm_load_nccl(NULL, &dirs.ranks.comm, &why);
        if (err == PD_OK)
            err = attempt_rendezvous(a, dirs.ranks.comm, id, &why);
    }
    if (err == PD_OK)
        err = train_run(config, &dirs, &host, &outcome, &why);
    ret->step = outcome.step;
    if (err != PD_OK) {
        ret->cause = outcome.lasting || !config ? "invalid" : "failed";
        snprintf(ret->text, sizeof ret->text, "%s", why.text);
    } else
        switch (outcome.result) {
        case TRAIN_DONE:
            ret->cause = "done";
            break;
        case TRAIN_DIVERGED:
            ret->cause = "diverged";
            snprintf(ret->text, sizeof ret->text, "%lld steps were not finite", (long long)outcome.nonfinite);
            break;
        case TRAIN_STOPPED:
            ret->cause = "checkpointed";
            break;
        case TRAIN_CANCELLED:
            ret->cause = "checkpointed";
            ret->silent = link_stop_asked(a->link) == LINK_LEAVE_NOW;
            break;
        case TRAIN_FAILED:
            ret->cause = "failed";
            break;
        }
    spec_config_free(config);
}
