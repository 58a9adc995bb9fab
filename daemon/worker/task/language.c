/* Tokens to the next token: the language model. Perplexity is e to the loss.
 *
 * An evaluation also sums the loss over ranges of positions in the context, so that perplexity can be shown against
 * the length of the past: position 1 is predicted from one token. */
#include <math.h>
#include <stdio.h>

#include "daemon/worker/task/task.h"

static bool fits(const struct model_spec *spec)
{
    return model_decodes(spec);
}

static int64_t units(const struct data_info *info)
{
    return info->context;
}

/* 1, 2, 3-4, 5-8, ...: the last one ends with the context. */
static size_t ranges(int32_t context, int32_t ret_last[TASK_RANGES_MAX])
{
    size_t n = 0;

    for (int64_t last = 1; n < TASK_RANGES_MAX && (n == 0 || ret_last[n - 1] < context); last *= 2)
        ret_last[n++] = last < context ? (int32_t)last : context;
    return n;
}

/* ---- the graph ---- */

/* Rows of the positions first+1 .. last of each sample, as rows one behind the other. */
static struct pk_val rows_of(struct pk_graph *g, struct pk_val x, int32_t batch, int32_t first, int32_t last)
{
    struct pk_shape shape = pk_shape_of(g, x);
    const int64_t context = shape.dim[0] / batch, width = shape.rank > 1 ? shape.dim[1] : 1, n = last - first;

    x = pk_slice(g, pk_reshape(g, x, PK_SHAPE(batch, context, width)), 1, first, n);
    return pk_reshape(g, x, shape.rank > 1 ? PK_SHAPE(batch * n, width) : PK_SHAPE(batch * n));
}

static void emit_eval(struct pk_graph *g, const struct model_spec *spec, struct pk_val logits, int32_t batch,
                      struct pk_val ret[MODEL_SUMS_MAX])
{
    const int64_t rows = pk_shape_of(g, logits).dim[0];
    struct pk_val target = pk_input(g, "target", PK_I32, PK_SHAPE(rows)), loss[TASK_RANGES_MAX],
                  count[TASK_RANGES_MAX];
    struct pk_loss whole = pk_cross_entropy(g, logits, target, 0, DATA_IGNORE);
    int32_t last[TASK_RANGES_MAX];
    const size_t n = ranges((int32_t)(rows / batch), last);

    (void)spec;
    ret[TASK_LOSS] = whole.loss_sum;
    ret[TASK_COUNT] = whole.count;
    ret[TASK_CORRECT] = whole.correct;
    for (size_t i = 0; i < n; i++) {
        const int32_t first = i ? last[i - 1] : 0;
        struct pk_loss part = pk_cross_entropy(g, rows_of(g, logits, batch, first, last[i]),
                                               rows_of(g, target, batch, first, last[i]), 0, DATA_IGNORE);

        loss[i] = part.loss_sum;
        count[i] = part.count;
    }
    pk_output(g, "range_loss", pk_concat(g, 0, loss, n));
    pk_output(g, "range_count", pk_concat(g, 0, count, n));
}

static void emit(struct pk_graph *g, struct model_rows *rows, double smoothing,
                 struct pk_val ret[MODEL_SUMS_MAX])
{
    task_cross_entropy.emit(g, rows, smoothing, ret);
}

static const struct model_loss loss = {
    .sum = {[TASK_LOSS] = "loss_sum", [TASK_COUNT] = "count", [TASK_CORRECT] = "correct"},
    .emit = emit,
    .emit_eval = emit_eval};

/* ---- its numbers ---- */

static void begin(struct task_score *score, int32_t context)
{
    int32_t last[TASK_RANGES_MAX];

    task_cross_entropy_begin(score, context);
    score->ranges = ranges(context, last);
}

static enum pd_err add(struct task_score *score, const struct task_outputs *from, struct pd_why *why)
{
    double loss_of[TASK_RANGES_MAX], count_of[TASK_RANGES_MAX];
    enum pd_err err = task_cross_entropy_add(score, from, why);

    if (err == PD_OK)
        err = from->read(from->user, "range_loss", loss_of, score->ranges, why);
    if (err == PD_OK)
        err = from->read(from->user, "range_count", count_of, score->ranges, why);
    for (size_t i = 0; err == PD_OK && i < score->ranges; i++) {
        score->range_loss[i] += loss_of[i];
        score->range_count[i] += count_of[i];
    }
    return err;
}

static void end(const struct task_score *score, double ret[TASK_NUMBERS_MAX])
{
    ret[0] = score->sum[TASK_LOSS] / score->sum[TASK_COUNT];
    ret[1] = exp(ret[0]);
}

static void end_at(const struct task_score *score, double ret[TASK_RANGES_MAX])
{
    for (size_t i = 0; i < score->ranges; i++)
        ret[i] = exp(score->range_loss[i] / score->range_count[i]);
}

const struct task task_language = {
    .name = "language",
    .serves = "language",
    .data_kind = "tokens",
    .throughput = "tokens_per_s",
    .inputs = {{"input", PK_I32}, {"target", PK_I32}},
    .fits = fits,
    .loss = &loss,
    .units = units,
    .begin = begin,
    .add = add,
    .end = end,
    .numbers = {TASK_NUMBER("loss"), TASK_NUMBER("ppl")},
    .ranges = ranges,
    .end_at = end_at,
    .at = {.key = {[DATA_SCORED_VAL] = "ppl/val_at/",
                   [DATA_SCORED_TEST] = "ppl/test_at/",
                   [DATA_SCORED_TRAIN] = "ppl/train_at/"},
           .averaged = {[DATA_SCORED_VAL] = "ppl/val_ema_at/",
                        [DATA_SCORED_TEST] = "ppl/test_ema_at/",
                        [DATA_SCORED_TRAIN] = "ppl/train_ema_at/"},
           .eval = "ppl/eval_at/",
           .eval_averaged = "ppl/eval_ema_at/"},
};
