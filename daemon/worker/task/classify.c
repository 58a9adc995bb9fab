/* Images to classes: the classifier. Accuracies are fractions, 0..1. */
#include "daemon/worker/task/task.h"

static bool fits(const struct model_spec *spec)
{
    return !model_decodes(spec);
}

static double step_accuracy(const double *report)
{
    return report[TASK_CORRECT] / report[TASK_COUNT];
}

static int64_t units(const struct data_info *info)
{
    (void)info;
    return 1;
}

static void end(const struct task_score *score, double ret[TASK_NUMBERS_MAX])
{
    const double *sum = score->sum;

    ret[0] = sum[TASK_LOSS] / sum[TASK_COUNT];
    ret[1] = sum[TASK_CORRECT] / sum[TASK_COUNT];
}

const struct task task_classify = {
    .name = "classify",
    .serves = "classifier",
    .data_kind = "images",
    .throughput = "samples_per_s",
    .inputs = {{"input", PK_F32}, {"target", PK_I32}},
    .fits = fits,
    .loss = &task_cross_entropy,
    .steps = {{"acc/train", step_accuracy}},
    .units = units,
    .begin = task_cross_entropy_begin,
    .add = task_cross_entropy_add,
    .end = end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("acc")},
};
