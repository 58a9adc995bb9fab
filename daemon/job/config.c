/* What follows from a configuration: sizes, and its numbers once the size of the data is known. */
#include <math.h>
#include <stdio.h>

#include "daemon/job/internal.h"

int64_t job_config_mlp_width(const struct job_config *config)
{
    return llround(config->model.mlp_ratio * (double)config->model.width);
}

int64_t job_config_head_dim(const struct job_config *config)
{
    return config->model.heads > 0 ? config->model.width / config->model.heads : 0;
}

int64_t job_config_split_seed(const struct job_config *config)
{
    return config->data.split_seed >= 0 ? config->data.split_seed : config->train.seed;
}

int64_t job_config_patches(const struct job_config *config)
{
    const struct job_model *m = &config->model;

    if (!m->patch[0] || !m->patch[1])
        return 0;
    return config->data.image_size[0] / m->patch[0] * (config->data.image_size[1] / m->patch[1]);
}

/* Tokens that one pass of the encoder reads: of a pair, those of one text. */
static int64_t length_of(const struct job_config *config)
{
    return config->data.context / (job_dataset_info((enum job_dataset)config->data.dataset)->pairs ? 2 : 1);
}

int64_t job_config_keys(const struct job_config *config)
{
    int64_t patches = job_config_patches(config), window = job_config_window(config);

    if (window)
        return window;
    if (job_network(config->model.arch)->channel_attention)
        return job_config_head_dim(config);
    if (patches)
        return patches + (config->model.pool == JOB_POOL_CLS) + job_network(config->model.arch)->distils;
    return length_of(config);
}

int64_t job_config_tokens(const struct job_config *config)
{
    const int64_t patches = job_config_patches(config), window = job_config_window(config);

    return window ? window : patches ? patches : length_of(config);
}

bool job_config_causal(const struct job_config *config)
{
    return job_network(config->model.arch)->causal;
}

enum pd_err job_config_bind(struct job_config *config, int64_t train_samples, struct pd_why *why)
{
    const struct job_train *t = &config->train;
    struct job_bound b = {.train_samples = train_samples};
    const bool repeats = config->data.augment.repeats > 1 && job_config_patches(config);

    if (repeats && train_samples < JOB_REPEATS_MULTIPLE)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/data/augment/repeats: needs at least %d training images, and there are %lld: use 1",
                       JOB_REPEATS_MULTIPLE, (long long)train_samples);
    if (repeats) /* an epoch is a multiple, whatever is left over */
        train_samples -= train_samples % JOB_REPEATS_MULTIPLE;
    if (train_samples < t->batch)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/train/batch: the training set has %lld samples, less than one batch of %lld: "
                       "reduce train.batch",
                       (long long)train_samples, (long long)t->batch);
    b.steps_per_epoch = train_samples / t->batch;
    b.steps = t->steps;
    if (!b.steps) {
        if (t->epochs > (int64_t)1e12 / b.steps_per_epoch)
            return pd_fail(why, PD_ERR_INVALID, "#/train/epochs: %lld epochs of %lld steps are too many",
                           (long long)t->epochs, (long long)b.steps_per_epoch);
        b.steps = t->epochs * b.steps_per_epoch;
    }
    b.warmup_steps = t->schedule.warmup_steps;
    if (b.warmup_steps < 0) {
        double steps = t->schedule.warmup_epochs * (double)b.steps_per_epoch;
        b.warmup_steps = steps > 9e15 ? INT64_MAX : llround(steps);
    }
    if (b.warmup_steps > b.steps)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/train/schedule/warmup_%s: the warm-up of %lld steps is longer than the run of %lld",
                       t->schedule.warmup_steps >= 0 ? "steps" : "epochs", (long long)b.warmup_steps,
                       (long long)b.steps);
    b.eval_every = t->eval_every ? t->eval_every : b.steps / 20 > 1 ? b.steps / 20 : 1;
    b.micro_batch = t->batch / (t->accumulation * config->resources.slots);
    config->bound = b;
    return PD_OK;
}

enum pd_err job_run_judge(const char *json, size_t len, int64_t train_samples, struct job_report *report,
                          struct pd_why *why)
{
    struct job_config *g = NULL;
    struct pd_why bad = {""};
    char sentence[128], place[64];
    enum pd_err err = job_config_load(json, len, &g, why);

    if (err != PD_OK)
        return err;
    if (job_config_bind(g, train_samples, &bad) != PD_OK) {
        const char *detail = pd_why_place(bad.text, place, sizeof place);

        job_report_error(report, place, "%s", detail);
    } else {
        if (job_rules_beyond(g, g->bound.steps, true, sentence, sizeof sentence))
            job_report_warning(report, "#/train/eval_every", "%s", sentence);
        if (job_rules_beyond(g, g->bound.steps, false, sentence, sizeof sentence))
            job_report_warning(report, "#/train/schedule/milestones", "%s", sentence);
    }
    job_config_free(g);
    return report->failed ? pd_fail(why, PD_ERR_NOMEM, "out of memory checking the run") : PD_OK;
}

#define WORD(constant, word, counted) {#word, counted},
static const struct {
    const char *word;
    bool counted;
} activations[] = {JOB_ACTIVATIONS(WORD)};
#undef WORD

const char *job_activation_name(int activation)
{
    return (unsigned)activation < JOB_ACTIVATION_COUNT ? activations[activation].word : NULL;
}

bool job_activation_counted(int activation)
{
    return (unsigned)activation < JOB_ACTIVATION_COUNT && activations[activation].counted;
}
