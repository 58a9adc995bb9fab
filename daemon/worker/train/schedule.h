/* daemon/worker/train/schedule.h: the learning rate of each step. Pure functions, in double. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ONE_CYCLE (arXiv:1708.07120, as PyTorch's OneCycleLR counts it with linear annealing): warmup_lr at step 0, lr at step
 * warm - 1, min_lr at step total - 1, in straight lines; warm_form and shifted are not read. */
enum train_curve {
    TRAIN_CURVE_COSINE,
    TRAIN_CURVE_LINEAR,
    TRAIN_CURVE_STEP,
    TRAIN_CURVE_CONSTANT,
    TRAIN_CURVE_ONE_CYCLE
};
/* Form of the warm-up: timm starts at warmup_lr with t = 0; nanoGPT at lr / (warm + 1), so that no step has
 * rate 0; before December 2024 nanoGPT started at 0. */
enum train_warm { TRAIN_WARM_TIMM, TRAIN_WARM_NANOGPT, TRAIN_WARM_NANOGPT_OLD };

struct train_schedule {
    enum train_curve curve;
    enum train_warm warm_form;
    double lr, warmup_lr, min_lr;
    double warm, total;        /* in steps, or in epochs with steps_per_unit > 1 */
    bool shifted;              /* the decay counts from the end of the warm-up: (t-w)/(T-w); else t/T */
    int64_t steps_per_unit;    /* 1: the rate depends on the step; else on the epoch, constant within one */
    const int64_t *milestones; /* TRAIN_CURVE_STEP: steps; borrowed */
    size_t milestone_count;
    double factor;
    double beta1[2]; /* TRAIN_CURVE_ONE_CYCLE: at both ends, at the peak */
};

/* The rate for step number `step`, counted from 0. */
double train_schedule_lr(const struct train_schedule *s, int64_t step);
/* AdamW's first beta for that step; the curve must be TRAIN_CURVE_ONE_CYCLE. */
double train_schedule_beta1(const struct train_schedule *s, int64_t step);
