/* Tokens to the next token: the language model. Perplexity is e to the loss. */
#include <math.h>

#include "daemon/worker/task/task.h"

static bool fits(const struct model_spec *spec)
{
    return model_decodes(spec);
}

static int64_t units(const struct data_info *info)
{
    return info->context;
}

static void end(const struct task_score *score, double ret[TASK_NUMBERS_MAX])
{
    ret[0] = score->sum[TASK_LOSS] / score->sum[TASK_COUNT];
    ret[1] = exp(ret[0]);
}

const struct task task_language = {
    .name = "language",
    .serves = "language",
    .data_kind = "tokens",
    .throughput = "tokens_per_s",
    .inputs = {{"input", PK_I32}, {"target", PK_I32}},
    .fits = fits,
    .loss = &task_cross_entropy,
    .units = units,
    .begin = task_cross_entropy_begin,
    .add = task_cross_entropy_add,
    .end = end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("ppl")},
};
