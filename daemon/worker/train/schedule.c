#include "daemon/worker/train/schedule.h"

#include <math.h>

/* The clock of the curve at a step: steps, or whole epochs. */
static double clock_of(const struct train_schedule *s, int64_t step)
{
    return (double)(s->steps_per_unit > 1 ? step / s->steps_per_unit : step);
}

/* From `begin` to `peak` at warm - 1, then to `end` at total - 1. */
static double cycle(const struct train_schedule *s, int64_t step, double begin, double peak, double end)
{
    const double t = clock_of(s, step), top = s->warm - 1, last = s->total - 1;

    if (t <= top)
        return top > 0 ? begin + (peak - begin) * (t / top) : peak;
    return t < last ? peak + (end - peak) * ((t - top) / (last - top)) : end;
}

double train_schedule_beta1(const struct train_schedule *s, int64_t step)
{
    return cycle(s, step, s->beta1[0], s->beta1[1], s->beta1[0]);
}

/* tests/golden/README.md 7: nanoGPT's and timm's forms. */
double train_schedule_lr(const struct train_schedule *s, int64_t step)
{
    double t = clock_of(s, step), at, span;

    if (s->curve == TRAIN_CURVE_ONE_CYCLE)
        return cycle(s, step, s->warmup_lr, s->lr, s->min_lr);
    if (t < s->warm)
        switch (s->warm_form) {
        case TRAIN_WARM_TIMM:
            return s->warmup_lr + t * ((s->lr - s->warmup_lr) / s->warm);
        case TRAIN_WARM_NANOGPT:
            return s->lr * (t + 1) / (s->warm + 1);
        case TRAIN_WARM_NANOGPT_OLD:
            return s->lr * t / s->warm;
        }
    if (s->curve == TRAIN_CURVE_CONSTANT)
        return s->lr;
    if (s->curve == TRAIN_CURVE_STEP) {
        double lr = s->lr;

        for (size_t i = 0; i < s->milestone_count; i++)
            if (step >= s->milestones[i])
                lr *= s->factor;
        return lr > s->min_lr ? lr : s->min_lr;
    }
    at = s->shifted ? t - s->warm : t;
    span = s->shifted ? s->total - s->warm : s->total;
    if (at >= span)
        return s->min_lr;
    if (s->curve == TRAIN_CURVE_LINEAR)
        return s->lr + (s->min_lr - s->lr) * (at / span);
    return s->min_lr + 0.5 * (s->lr - s->min_lr) * (1 + cos(3.14159265358979323846 * at / span));
}
