#include "daemon/worker/train/schedule.h"

#include <math.h>

/* tests/golden/README.md 7: nanoGPT's and timm's forms. */
double train_schedule_lr(const struct train_schedule *s, int64_t step)
{
    double t = (double)(s->steps_per_unit > 1 ? step / s->steps_per_unit : step), at, span;

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
