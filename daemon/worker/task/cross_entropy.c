#include "daemon/worker/task/task.h"

/* Targets are 0 and more, or DATA_IGNORE. */
static struct pk_val valid_of(struct pk_graph *g, struct pk_val target, enum pk_dtype dtype)
{
    return pk_gt(g, pk_cast(g, target, dtype), pk_fill(g, dtype, PK_SHAPE(1), -0.5));
}

#define CLASSES (1u << 1) /* the axis of logits (rows, classes) */

static struct pk_val log_softmax(struct pk_graph *g, struct pk_val x)
{
    x = pk_sub(g, x, pk_maximum(g, x, CLASSES, true));
    return pk_sub(g, x, pk_unary(g, PK_EX_LOG, pk_sum(g, pk_unary(g, PK_EX_EXP, x), CLASSES, true)));
}

static struct pk_val total(struct pk_graph *g, struct pk_val x)
{
    return pk_reshape(g, pk_sum(g, x, (1u << pk_shape_of(g, x).rank) - 1, true), PK_SHAPE(1));
}

/* Of mixed images: cross-entropy with share y + (1 - share) y of the partner, each y smoothed: 1 - s + s / C at
 * the class and s / C elsewhere. The loss and how many rows count; accuracy is not defined. */
static void mixed(struct pk_graph *g, const struct model_rows *rows, struct pk_val target, double smoothing,
                  struct pk_val *ret_loss, struct pk_val *ret_count)
{
    const enum pk_dtype dtype = pk_dtype_of(g, rows->logits);
    const struct pk_shape shape = pk_shape_of(g, rows->logits), each = PK_SHAPE(shape.dim[0], 1);
    const struct pk_val one = pk_fill(g, dtype, PK_SHAPE(1), 1), own = pk_reshape(g, rows->share, each),
                        rest = pk_sub(g, one, own), classes = pk_one_hot(g, target, shape.dim[1], dtype),
                        valid = pk_reshape(g, rows->valid, each);
    struct pk_val wanted, weight;

    pk_graph_exact(g, true);
    weight = pk_add(g, pk_mul(g, own, valid), pk_mul(g, rest, pk_gather(g, valid, rows->partner)));
    wanted = pk_add(g, pk_mul(g, own, classes), pk_mul(g, rest, pk_gather(g, classes, rows->partner)));
    wanted =
        pk_add(g, pk_scale(g, wanted, 1 - smoothing), pk_scale(g, weight, smoothing / (double)shape.dim[1]));
    *ret_loss = pk_scale(g, total(g, pk_mul(g, wanted, log_softmax(g, rows->logits))), -1);
    *ret_count = total(g, weight);
    pk_graph_exact(g, false);
}

static void emit(struct pk_graph *g, struct model_rows *rows, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX])
{
    const struct pk_shape count = PK_SHAPE(pk_shape_of(g, rows->logits).dim[0]);
    const struct pk_val target = pk_input(g, "target", PK_I32, count);
    const struct pk_loss loss = pk_cross_entropy(g, rows->logits, target, smoothing, DATA_IGNORE);

    rows->valid = valid_of(g, target, pk_dtype_of(g, rows->logits));
    ret[TASK_LOSS] = loss.loss_sum;
    ret[TASK_COUNT] = loss.count;
    ret[TASK_CORRECT] = loss.correct;
    if (rows->share.id)
        mixed(g, rows, target, smoothing, &ret[TASK_LOSS], &ret[TASK_COUNT]);
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
