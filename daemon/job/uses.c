/* Whether a value of the document can have an effect: the tests of JOB_USES (rules.h). */
#include "daemon/job/rules.h"

#include "daemon/job/internal.h"

static bool poly(const struct job_config *g)
{
    return g->attention.activation == JOB_ACTIVATION_POLY;
}

static bool formula(const struct job_config *g)
{
    return g->attention.activation == JOB_ACTIVATION_FORMULA;
}

static bool learned(const struct job_config *g)
{
    return poly(g) && g->attention.scale == JOB_SCALE_LEARNED;
}

/* Activations with a factor n^-alpha. */
static bool counted(const struct job_config *g)
{
    return job_activation_counted(g->attention.activation);
}

static bool uses_n(const struct job_config *g)
{
    if (formula(g))
        return true;
    if (poly(g))
        return g->attention.scale == JOB_SCALE_FIXED || g->attention.scale == JOB_SCALE_LEARNED;
    return counted(g) && (g->attention.alpha > 0 || g->attention.activation == JOB_ACTIVATION_SIGMOID_BIAS);
}

static bool has_linear_form(const struct job_config *g)
{
    return ((poly(g) && g->attention.degree <= 2) || g->attention.activation == JOB_ACTIVATION_SIMA) &&
           !(g->attention.dropout > 0);
}

/* False where every image already has the size that the network reads. */
static bool may_resize(const struct job_config *g, const struct job_dataset_info *info)
{
    const struct job_data *d = &g->data;

    /* Files of the others may hold other sizes than the usual one. */
    if (!info->generated && d->dataset != JOB_DATASET_CIFAR10)
        return true;
    return d->augment.crop == JOB_CROP_RRC || d->augment.eval_crop < 1 || d->image_size[0] != info->side[0] ||
           d->image_size[1] != info->side[1];
}

/* False where every image also keeps its pixels in their places. */
static bool may_resample(const struct job_config *g, const struct job_dataset_info *info)
{
    return g->data.augment.randaugment.present /* it rotates, shears and shifts */ || may_resize(g, info);
}

/* Longer texts are cut to the lengths of the authors' preprocessing, whatever the network. */
static bool may_cut(const struct job_config *g, const struct job_dataset_info *info)
{
    return info->cut > 0 && g->data.context / (info->pairs ? 2 : 1) > info->cut;
}

static bool with_momentum(const struct job_config *g)
{
    return job_optimiser(g->train.optimizer.name)->momentum;
}

static bool warmup(const struct job_config *g)
{
    return g->train.schedule.warmup_steps > 0 || g->train.schedule.warmup_epochs > 0;
}

/* Schedules that change the rate at each step, or epoch. */
static bool smooth(const struct job_config *g)
{
    return g->train.schedule.name != JOB_SCHEDULE_CONSTANT && g->train.schedule.name != JOB_SCHEDULE_STEP;
}

static bool one_cycle(const struct job_config *g)
{
    return g->train.schedule.name == JOB_SCHEDULE_ONE_CYCLE;
}

static bool equations(const struct job_config *g)
{
    return job_network(g->model.arch)->equations;
}

#define TEST_DEFINE(function, test)                                                                          \
    bool function(const struct job_run *r)                                                                   \
    {                                                                                                        \
        const struct job_config *g = &r->config;                                                             \
        const struct job_dataset_info *info = job_dataset_info((enum job_dataset)g->data.dataset);           \
                                                                                                             \
        (void)g;                                                                                             \
        (void)info;                                                                                          \
        return test;                                                                                         \
    }
#define JOB_USE_DEFINE(name, words, test)                                                                    \
    const char job_use_##name##_text[] = words;                                                              \
    TEST_DEFINE(job_use_##name, test)
JOB_USES(JOB_USE_DEFINE)

#define JOB_DIGEST_DEFINE(name, test) TEST_DEFINE(job_digest_##name, test)
JOB_DIGESTS(JOB_DIGEST_DEFINE)
