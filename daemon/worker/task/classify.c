/* Images to classes: the classifier. Accuracies are fractions, 0..1. */
#include "daemon/worker/task/task.h"

static bool fits(const struct model_spec *spec)
{
    return !model_reads_tokens(spec) && !model_reads_points(spec);
}

const struct task task_classify = {
    .name = "classify",
    .serves = "classifier",
    .data_kind = "images",
    .throughput = "samples_per_s",
    .inputs = {{"input", PK_U8}, {"target", PK_I32}},
    .fits = fits,
    .loss = &task_cross_entropy,
    .steps = {{"acc/train", task_accuracy_step, .unmixed = true}},
    .units = task_samples,
    .begin = task_cross_entropy_begin,
    .add = task_cross_entropy_add,
    .end = task_accuracy_end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("acc")},
};
