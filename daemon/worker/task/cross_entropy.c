#include "daemon/worker/task/task.h"

static void emit(struct pk_graph *g, struct pk_val logits, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX])
{
    struct pk_shape rows = PK_SHAPE(pk_shape_of(g, logits).dim[0]);
    struct pk_loss loss =
        pk_cross_entropy(g, logits, pk_input(g, "target", PK_I32, rows), smoothing, DATA_IGNORE);

    ret[TASK_LOSS] = loss.loss_sum;
    ret[TASK_COUNT] = loss.count;
    ret[TASK_CORRECT] = loss.correct;
}

const struct model_loss task_cross_entropy = {
    .sum = {[TASK_LOSS] = "loss_sum", [TASK_COUNT] = "count", [TASK_CORRECT] = "correct"}, .emit = emit};

void task_cross_entropy_begin(struct task_score *score, int32_t context)
{
    (void)context;
    *score = (struct task_score){.count = TASK_CROSS_ENTROPY_SUMS};
}

enum pd_err task_cross_entropy_add(struct task_score *score, const struct task_outputs *from,
                                   struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (int i = 0; i < TASK_CROSS_ENTROPY_SUMS && err == PD_OK; i++) {
        double x = 0;

        err = from->read(from->user, task_cross_entropy.sum[i], &x, 1, why);
        score->sum[i] += x;
    }
    return err;
}

double task_accuracy_step(const double *report)
{
    return report[TASK_CORRECT] / report[TASK_COUNT];
}

void task_accuracy_end(const struct task_score *score, double ret[TASK_NUMBERS_MAX])
{
    const double *sum = score->sum;

    ret[0] = sum[TASK_LOSS] / sum[TASK_COUNT];
    ret[1] = sum[TASK_CORRECT] / sum[TASK_COUNT];
}

int64_t task_samples(const struct data_info *info)
{
    (void)info;
    return 1;
}
