/* Whole texts to classes, each by the network's output at its last token. */
#include "daemon/worker/task/task.h"

static bool fits(const struct model_spec *spec)
{
    return model_reads_tokens(spec) && !model_decodes(spec);
}

const struct task task_classify_text = {
    .name = "classify_text",
    .serves = "text_classifier",
    .data_kind = "labelled_texts",
    .throughput = "samples_per_s",
    .inputs = {{"input", PK_I32}, {"last", PK_I32}, {"target", PK_I32}},
    .fits = fits,
    .loss = &task_cross_entropy,
    .steps = {{"acc/train", task_accuracy_step, .unmixed = true}},
    .units = task_samples,
    .begin = task_cross_entropy_begin,
    .add = task_cross_entropy_add,
    .end = task_accuracy_end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("acc")},
};
