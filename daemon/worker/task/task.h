/* daemon/worker/task/task.h: tasks: the inputs of a network, its loss, the metrics of an evaluation, and the
 * serving form. One file in this folder and one name in tasks.h each.
 *
 * Constant tables of functions: nothing here has state or threads. The metric that ranks checkpoints, and its
 * direction, are in the task's row of daemon/job/tasks.c, because polyd needs them too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/tasks.h"

#define TASK_NUMBERS_MAX 4
#define TASK_STEPS_MAX 4
#define TASK_MAPS_MAX 3
#define TASK_RANGES_MAX 32 /* of positions in the context */

/* Reads outputs of the evaluation graph's last run as double. */
struct task_outputs {
    void *user;
    enum pd_err (*read)(void *user, const char *name, double *to, size_t count, struct pd_why *why);
};

/* An evaluation in progress. The sums of all ranks are added before `end`. */
struct task_score {
    size_t count;
    double sum[MODEL_SUMS_MAX];
    size_t ranges; /* of `number_at`; 0: the task has none */
    double range_loss[TASK_RANGES_MAX], range_count[TASK_RANGES_MAX]; /* sums over the rows of each */
};

/* A metric of an evaluation: its keys by scored samples (enum data_scored), for the weights and the averaged
 * weights; all static. */
struct task_number {
    const char *key[3], *averaged[3];
    const char *eval, *eval_averaged; /* prefixes for sets of data.eval; the set's name follows */
};
#define TASK_NUMBER(name)                                                                                    \
    {                                                                                                        \
        .key = {[DATA_SCORED_VAL] = name "/val",                                                             \
                [DATA_SCORED_TEST] = name "/test",                                                           \
                [DATA_SCORED_TRAIN] = name "/train"},                                                        \
        .averaged = {[DATA_SCORED_VAL] = name "/val_ema",                                                    \
                     [DATA_SCORED_TEST] = name "/test_ema",                                                  \
                     [DATA_SCORED_TRAIN] = name "/train_ema"},                                               \
        .eval = name "/eval/", .eval_averaged = name "/eval_ema/",                                           \
    }

/* A metric computed from the report of a step: the mean loss, then the other sums of `loss`. */
struct task_step {
    const char *key; /* static */
    double (*of)(const double *report);
    bool unmixed; /* only while each sample has one label: not with mixup or cutmix */
};

/* Keys of an evaluation's metrics by position in the context: prefixes that end in "_at/". */
struct task_at {
    const char *key[3], *averaged[3]; /* as task_number; NULL: the task has no such numbers */
    const char *eval, *eval_averaged; /* prefixes for sets of data.eval; the set's name follows */
};

/* A matrix that an evaluation stores in addition to its metrics: an output (rows, columns) of its graph, for a single
 * sample. */
struct task_map {
    const char *key; /* of the blob; static */
    const char *output;
};

/* Meaning of the rows, or the columns, of these matrices: from the first to the last. */
struct task_axis {
    const char *name; /* static */
    double low, high;
};

struct task {
    const char *name;       /* of its row in daemon/job/tasks.c */
    const char *serves;     /* name of the serving form (daemon/worker/serve) */
    const char *data_kind;  /* "polyd.data.kind" of checkpoints */
    const char *throughput; /* metric key of units per second */
    /* Inputs of the graphs, fed from the batch's tensors of that name and dtype; the last has no name. */
    struct {
        const char *name;
        enum pk_dtype dtype;
    } inputs[DATA_TENSORS_MAX + 1];
    /* Whether networks with this spec are trained for the task. */
    bool (*fits)(const struct model_spec *spec);
    const struct model_loss *loss;
    struct task_step steps[TASK_STEPS_MAX + 1];     /* in addition to loss/train; the last has no key */
    int64_t (*units)(const struct data_info *info); /* of throughput, in one sample */

    /* The evaluator: `add` once per batch; `end` returns a value for each of `numbers`, the first of which is
     * the loss and the second the displayed metric. */
    void (*begin)(struct task_score *score, int32_t context);
    enum pd_err (*add)(struct task_score *score, const struct task_outputs *from, struct pd_why *why);
    void (*end)(const struct task_score *score, double ret[TASK_NUMBERS_MAX]);
    struct task_number numbers[TASK_NUMBERS_MAX + 1]; /* the last has no key */

    /* For tasks with a prediction at each position: writes the last position, from 1, of each range into which `begin`
     * divides `context` positions, and returns the number of ranges. NULL: no ranges. `end_at` has a value for each range. */
    size_t (*ranges)(int32_t context, int32_t ret_last[TASK_RANGES_MAX]);
    void (*end_at)(const struct task_score *score, double ret[TASK_RANGES_MAX]);
    struct task_at at;

    /* Stored matrices; the last has no key. `axes` describes their rows and columns. */
    struct task_map maps[TASK_MAPS_MAX + 1];
    void (*axes)(const struct data_info *info, struct task_axis ret[2]);
};

#define TASK_EXTERN(name) extern const struct task task_##name;
TASKS(TASK_EXTERN) /* task_classify, task_language, ... */
#undef TASK_EXTERN

/* The task of that name; static. NULL: there is none. */
const struct task *task_find(const char *name);
/* The task of networks with this spec; NULL: not in this build. */
const struct task *task_of(const struct model_spec *spec);
/* The index of the number with this key for validation samples. PD_ERR_INTERNAL: there is none. */
PD_NODISCARD enum pd_err task_number(const struct task *t, const char *key, size_t *ret, struct pd_why *why);
/* Checks that the set's batches have every input of the task. PD_ERR_UNSUPPORTED names the first missing one. */
PD_NODISCARD enum pd_err task_check(const struct task *t, const struct data_set *set, struct pd_why *why);

/* ---- cross_entropy.c: for tasks whose targets are classes or tokens ---- */

/* Cross-entropy of the logits' rows against the input "target" I32 (rows); DATA_IGNORE does not count. */
extern const struct model_loss task_cross_entropy;
/* Its sums, and those of its evaluator: loss, counted targets, correct predictions. */
enum { TASK_LOSS, TASK_COUNT, TASK_CORRECT, TASK_CROSS_ENTROPY_SUMS };
void task_cross_entropy_begin(struct task_score *score, int32_t context);
/* For tasks with classes: accuracy of a step, and {loss, accuracy} of an evaluation. */
double task_accuracy_step(const double *report);
void task_accuracy_end(const struct task_score *score, double ret[TASK_NUMBERS_MAX]);
/* Throughput is counted in samples. */
int64_t task_samples(const struct data_info *info);
PD_NODISCARD enum pd_err task_cross_entropy_add(struct task_score *score, const struct task_outputs *from,
                                                struct pd_why *why);
