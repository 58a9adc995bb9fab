/* daemon/worker/train/schedule.h: the learning rate of each step. Pure functions, in double. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum train_curve { TRAIN_CURVE_COSINE, TRAIN_CURVE_LINEAR, TRAIN_CURVE_STEP, TRAIN_CURVE_CONSTANT };
/* How warm-up counts: timm starts at warmup_lr with t = 0; nanoGPT at lr / (warm + 1), so that no step is
 * spent at rate 0; before December 2024 nanoGPT started at 0. */
enum train_warm { TRAIN_WARM_TIMM, TRAIN_WARM_NANOGPT, TRAIN_WARM_NANOGPT_OLD };

struct train_schedule {
    enum train_curve curve;
    enum train_warm warm_form;
    double lr, warmup_lr, min_lr;
    double warm, total;        /* in steps, or in epochs with steps_per_unit > 1 */
    bool shifted;              /* the decay's clock starts after the warm-up: (t-w)/(T-w); else t/T */
    int64_t steps_per_unit;    /* 1: the clock is the step; else it is the epoch, constant within one */
    const int64_t *milestones; /* TRAIN_CURVE_STEP: steps; borrowed */
    size_t milestone_count;
    double factor;
};

/* The rate for step number `step`, counted from 0. */
double train_schedule_lr(const struct train_schedule *s, int64_t step);
