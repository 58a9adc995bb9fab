/* Kind evaluate: scores one checkpoint. A stop leaves nothing, and the next attempt starts again. */
#include "daemon/worker/kinds/kinds.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/train/train.h"

static void run(struct attempt *a, struct job_config *config, struct role_result *ret)
{
    struct model_tuned_store store;
    struct kind_folders folders;
    const struct train_host host = kind_host(a, &store);
    const struct train_dirs dirs = kind_dirs(a, &folders);
    struct train_outcome outcome = {.result = TRAIN_FAILED};
    struct pd_why why = {""};
    enum pd_err err = train_score(config, &dirs, folders.state, &host, &outcome, &why);

    kind_conclude(a, err, &outcome, &why, ret);
}

static enum pd_err plan(struct job_config *config, const struct kind_plan *at, struct pd_buf *ret_json,
                        struct pd_why *why)
{
    return train_score_plan(config, at->state_dir, at->roots, at->root_count, at->cache, ret_json, why);
}

const struct worker_kind kind_evaluate = {.run = run, .plan = plan};
