/* Each task (daemon/worker/task), by name, and the metric that ranks its evaluations and checkpoints. */
#include <string.h>

#include "daemon/job/job.h"

static const struct job_task tasks[] = {
    {.name = "classify", .best = "acc/val", .best_averaged = "acc/val_ema", .classes = true},
    {.name = "classify_text", .best = "acc/val", .best_averaged = "acc/val_ema", .classes = true},
    {.name = "equation", .best = "rmae/val", .best_averaged = "rmae/val_ema"},
    {.name = "language", .best = "loss/val", .best_averaged = "loss/val_ema"},
};
/* Of data sets that no task of this build is for. */
static const struct job_task none = {.name = "none", .best = "loss/val", .best_averaged = "loss/val_ema"};

const struct job_task *job_config_task(const struct job_config *g)
{
    const char *name = job_dataset_info((enum job_dataset)g->data.dataset)->task;

    for (size_t i = 0; name && i < sizeof tasks / sizeof *tasks; i++)
        if (!strcmp(tasks[i].name, name))
            return &tasks[i];
    return &none;
}
