/* Defaults that depend on other values. */
#include "daemon/job/rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"
#include "daemon/job/metric.h"
#include "daemon/job/template.h"

static json_t *made(struct job_ctx *c, json_t *v)
{
    if (!v)
        c->nomem = true;
    return v;
}

static json_t *number(struct job_ctx *c, double v)
{
    return made(c, job_json_num(v));
}

static json_t *word(struct job_ctx *c, const char *text)
{
    return made(c, json_string(text));
}

const struct job_dataset_info *job_ctx_dataset(const struct job_ctx *c)
{
    return job_dataset_info((enum job_dataset)c->g->data.dataset);
}

const struct job_network *job_ctx_network(const struct job_ctx *c)
{
    return job_network(c->g->model.arch);
}

json_t *job_rule_null(struct job_ctx *c)
{
    (void)c;
    return json_null();
}

static json_t *missing(struct job_ctx *c, const char *pointer, const char *what)
{
    job_ctx_error(c, pointer, "%s", what);
    return NULL;
}

/* ---- Head and model ---- */

json_t *job_rule_required(struct job_ctx *c)
{
    (void)c; /* resolve.c names the field */
    return NULL;
}

json_t *job_rule_mode(struct job_ctx *c)
{
    const char *key = c->run->head.metric;
    const struct job_metric *m = key ? job_metric_find(key) : NULL;

    return word(c, m && m->better == JOB_METRIC_MORE ? "max" : "min");
}

json_t *job_rule_arch(struct job_ctx *c)
{
    if (job_ctx_bad(c, "/model/preset"))
        return NULL;
    return missing(c, "/model/arch",
                   "is needed: set model.preset, or model.arch with width, depth and heads");
}

json_t *job_rule_dataset(struct job_ctx *c)
{
    return missing(c, "/data/dataset", "is needed: the name of a data set");
}

static json_t *shape(struct job_ctx *c, const char *pointer)
{
    /* Where the architecture is in doubt, or takes arrays instead, there is nothing to ask for. */
    if (job_ctx_bad(c, "/model/arch") || job_ctx_bad(c, "/model/preset"))
        return NULL;
    return missing(c, pointer, "is needed without a preset");
}

/* Of a network of stages: from its list; 1 where that is missing, which job_check_stages reports. */
static json_t *first(struct job_ctx *c, const struct job_ints *list)
{
    return made(c, json_integer(list->count ? list->items[0] : 1));
}

json_t *job_rule_width(struct job_ctx *c)
{
    return job_ctx_network(c)->stages ? first(c, &c->g->model.widths) : shape(c, "/model/width");
}

json_t *job_rule_depth(struct job_ctx *c)
{
    const struct job_ints *depths = &c->g->model.depths;
    int64_t sum = 0;

    if (!job_ctx_network(c)->stages)
        return shape(c, "/model/depth");
    for (size_t i = 0; i < depths->count; i++)
        sum += depths->items[i];
    return made(c, json_integer(sum ? sum : 1));
}

json_t *job_rule_heads(struct job_ctx *c)
{
    return job_ctx_network(c)->stages ? first(c, &c->g->model.head_counts) : shape(c, "/model/heads");
}

json_t *job_rule_head_width(struct job_ctx *c)
{
    const double wide = 16 * (double)c->g->model.width;

    return number(c, !job_ctx_network(c)->equations || wide < 1 ? 1 : wide < 16384 ? wide : 16384);
}

json_t *job_rule_coefficient(struct job_ctx *c)
{
    const double own = job_ctx_dataset(c)->equation;

    return number(c, own > 0 ? own : 1);
}

/* A sample of an equation is its whole grid. */
json_t *job_rule_batch(struct job_ctx *c)
{
    return number(c, job_ctx_dataset(c)->equation > 0 ? 1 : 64);
}

json_t *job_rule_bias(struct job_ctx *c)
{
    (void)c;
    return json_true();
}

/* What published code computes: GPT-2 approximates, the other presets do not. */
json_t *job_rule_gelu(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->gelu_tanh && !c->preset ? "tanh" : "exact");
}

/* Before schema 2 the form followed the biases of a gpt: Hugging Face has biases and gelu_new, nanoGPT
 * neither. */
json_t *job_rule_gelu_1(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->gelu_tanh && c->g->model.bias ? "tanh" : "exact");
}

json_t *job_rule_pool(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->channel_attention || job_ctx_network(c)->distils ? "cls" : "mean");
}

json_t *job_rule_pos(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->channel_attention ? "fourier" : "learned");
}

json_t *job_rule_context(struct job_ctx *c)
{
    if (job_ctx_dataset(c)->image)
        return json_null();
    if (job_ctx_dataset(c)->lra[0] && job_ctx_network(c)->landmarks)
        return number(c, (double)job_ctx_dataset(c)->lra[c->g->data.lra_len == JOB_LRA_LEN_PAPER]);
    return number(c, job_ctx_dataset(c)->equation > 0 ? 5 : 256);
}

static json_t *pair(struct job_ctx *c, int64_t rows, int64_t columns)
{
    return rows == columns ? number(c, (double)rows) : made(c, json_pack("[I,I]", rows, columns));
}

json_t *job_rule_image_size(struct job_ctx *c)
{
    const struct job_dataset_info *d = job_ctx_dataset(c);

    if (!d->image || !d->side[0])
        return json_null();
    return pair(c, d->side[0], d->side[1]);
}

/* The largest divisor of the side that is at most side/7; at least 1. */
static int64_t micro_patch(int64_t side)
{
    int64_t p = side / 7;

    while (p > 1 && side % p != 0)
        p--;
    return p > 1 ? p : 1;
}

json_t *job_rule_patch(struct job_ctx *c)
{
    const int64_t *side = c->g->data.image_size;

    if (!job_ctx_dataset(c)->image || !side[0])
        return json_null();
    if (c->preset && c->preset->patch) {
        int p = side[0] == 64 && side[1] == 64 ? c->preset->patch_at_64 : c->preset->patch;
        return number(c, p);
    }
    return pair(c, micro_patch(side[0]), micro_patch(side[1]));
}

/* ---- Norm and attention ---- */

static bool beyond_s1(const struct job_ctx *c)
{
    return c->g->norm.placement >= JOB_NORM_S2 && c->g->norm.placement <= JOB_NORM_S5;
}

json_t *job_rule_norm_kind(struct job_ctx *c)
{
    return word(c, beyond_s1(c) ? "rms" : "layer");
}

json_t *job_rule_norm_eps(struct job_ctx *c)
{
    return number(c, job_ctx_network(c)->norm_eps);
}

json_t *job_rule_qk_norm(struct job_ctx *c)
{
    return made(c, json_boolean(beyond_s1(c)));
}

json_t *job_rule_alpha(struct job_ctx *c)
{
    switch (c->g->attention.activation) {
    case JOB_ACTIVATION_RELU:
        return number(c, 1);
    case JOB_ACTIVATION_SIGMOID_BIAS:
        return number(c, 0);
    default:
        return number(c, 0.5);
    }
}

json_t *job_rule_scale_share(struct job_ctx *c)
{
    /* MidNorm cancels what all heads share. */
    return word(c, c->g->norm.placement == JOB_NORM_S4 || c->g->norm.placement == JOB_NORM_S5 ? "head"
                                                                                              : "layer");
}

json_t *job_rule_scale_param(struct job_ctx *c)
{
    return word(c, job_optimiser(c->g->train.optimizer.name)->scale_param);
}

json_t *job_rule_n_for_scale(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->n_for_scale);
}

/* Called only once model and data are known to fit; what they could be is checked here already,
 * because a rule may run before. */
json_t *job_rule_n(struct job_ctx *c)
{
    double n = 0;

    switch (c->g->attention.n_for_scale) {
    case JOB_N_PATCHES:
        n = (double)job_config_patches(c->g);
        break;
    case JOB_N_KEYS:
        n = (double)job_config_keys(c->g);
        break;
    case JOB_N_WINDOW:
        n = (double)job_config_window(c->g);
        break;
    case JOB_N_CHANNELS:
        n = (double)job_config_head_dim(c->g);
        break;
    case JOB_N_CONTEXT:
        n = (double)(c->g->model.context / (job_ctx_dataset(c)->pairs ? 2 : 1));
        break;
    case JOB_N_NUMBER:
        n = c->g->attention.n;
        break;
    default:
        break;
    }
    return number(c, n >= 1 || c->g->attention.n_for_scale == JOB_N_NUMBER ? n : 1);
}

json_t *job_rule_c0(struct job_ctx *c)
{
    const struct job_attention *a = &c->g->attention;
    double v = 1;

    if (a->activation == JOB_ACTIVATION_POLY) {
        if (a->scale == JOB_SCALE_FIXED || a->scale == JOB_SCALE_LEARNED)
            v = 1 / sqrt(a->n);
        else if (a->scale == JOB_SCALE_K && a->k > 0)
            v = 1 / a->k;
    }
    return number(c, isfinite(v) ? v : 1);
}

/* ---- Data ---- */

bool job_ctx_one_file(const struct job_ctx *c)
{
    const struct job_data *d = &c->g->data;

    return d->dataset == JOB_DATASET_TEXT ||
           (job_ctx_dataset(c)->labels && d->path && job_table_of(d->path) != JOB_TABLE_NONE);
}

json_t *job_rule_path(struct job_ctx *c)
{
    const struct job_dataset_info *d = job_ctx_dataset(c);

    if (d->generated || job_ctx_bad(c, "/data/dataset"))
        return json_null();
    if (c->g->data.dataset == JOB_DATASET_TEXT)
        return missing(c, "/data/path", "is needed: a text file, as <root>/<relative>");
    if (d->labels)
        return missing(c, "/data/path",
                       "is needed: a file of labelled texts or a folder of such files, as <root>/<relative>");
    return word(c, d->name);
}

json_t *job_rule_split(struct job_ctx *c)
{
    return word(c, job_ctx_one_file(c) ? "fraction" : "given");
}

static json_t *split_part(struct job_ctx *c, double v)
{
    if (c->g->data.split == JOB_SPLIT_FRACTION && job_ctx_one_file(c) &&
        job_ctx_layer(c, "/data/split/rule") == JOB_LAYER_DEFAULT)
        return number(c, v);
    return json_null();
}

json_t *job_rule_split_train(struct job_ctx *c)
{
    return split_part(c, 0.9);
}

json_t *job_rule_split_val(struct job_ctx *c)
{
    /* What a given training part leaves over, to 12 digits so that 1 - 0.9 is 0.1. */
    if (c->g->data.split_train > 0 && c->g->data.split_train < 1)
        return split_part(c, round((1 - c->g->data.split_train) * 1e12) / 1e12);
    return split_part(c, 0.1);
}

/* In the folder of the data, under the name of the published folder. */
json_t *job_rule_tokenizer_path(struct job_ctx *c)
{
    const struct job_data *d = &c->g->data;
    char path[300];
    int root;

    if (!job_ctx_dataset(c)->text || d->tokenizer != JOB_TOKENIZER_GPT2_BPE || !d->path)
        return json_null();
    root = (int)strcspn(d->path, "/");
    if (root > 255)
        return missing(c, "/data/tokenizer_path", "is needed: the folder with the tokenizer's files");
    snprintf(path, sizeof path, "%.*s/gpt2-bpe", root, d->path);
    return word(c, path);
}

json_t *job_rule_loader_threads(struct job_ctx *c)
{
    switch (c->g->data.dataset) {
    case JOB_DATASET_IMAGENET1K:
    case JOB_DATASET_TINY_IMAGENET:
    case JOB_DATASET_IMAGE_FOLDER:
        return number(c, 2);
    default:
        return number(c, 1);
    }
}

json_t *job_rule_data_context(struct job_ctx *c)
{
    return c->g->model.context > 0 ? number(c, (double)c->g->model.context) : json_null();
}

/* ---- Training ---- */

json_t *job_rule_length(struct job_ctx *c)
{
    return missing(c, "/train", "needs a length: steps or epochs");
}

json_t *job_rule_lr(struct job_ctx *c)
{
    return number(c, job_optimiser(c->g->train.optimizer.name)->lr);
}

json_t *job_rule_betas(struct job_ctx *c)
{
    return made(c, json_pack("[f,f]", 0.9, job_ctx_network(c)->beta2));
}

json_t *job_rule_weight_decay(struct job_ctx *c)
{
    const double own = job_optimiser(c->g->train.optimizer.name)->weight_decay;

    return number(c, own < 0 ? job_ctx_network(c)->weight_decay : own);
}

/* A rate that falls, or rises first, would shorten the steps of a line search. */
static bool searches(const struct job_ctx *c)
{
    return job_optimiser(c->g->train.optimizer.name)->searches;
}

json_t *job_rule_schedule(struct job_ctx *c)
{
    return word(c, searches(c) ? "constant" : "cosine");
}

/* Of the two warm-up keys the default falls on the one that goes with the length. */
json_t *job_rule_warmup_steps(struct job_ctx *c)
{
    if (c->g->train.steps > 0 && searches(c))
        return number(c, 0);
    return c->g->train.steps > 0 ? number(c, round(0.05 * (double)c->g->train.steps)) : json_null();
}

json_t *job_rule_warmup_epochs(struct job_ctx *c)
{
    if (!(c->g->train.steps > 0) && searches(c))
        return number(c, 0);
    return c->g->train.steps > 0 ? json_null() : number(c, (double)c->g->train.epochs * 5 / 100);
}

json_t *job_rule_warmup_form(struct job_ctx *c)
{
    return word(c, c->g->train.schedule.warmup_lr > 0 ? "timm" : "nanogpt");
}

static bool one_cycle(const struct job_ctx *c)
{
    return c->g->train.schedule.name == JOB_SCHEDULE_ONE_CYCLE;
}

/* Of one_cycle PyTorch's: div_factor 25, and from there its final_div_factor 10000. */
json_t *job_rule_min_lr(struct job_ctx *c)
{
    return number(c, c->g->train.optimizer.lr / (one_cycle(c) ? 250000 : 100));
}

json_t *job_rule_clip(struct job_ctx *c)
{
    return job_ctx_network(c)->clip_norm > 0 ? number(c, job_ctx_network(c)->clip_norm) : json_null();
}

json_t *job_rule_init(struct job_ctx *c)
{
    return word(c, job_ctx_network(c)->init);
}

json_t *job_rule_eval_every(struct job_ctx *c)
{
    int64_t steps = c->g->train.steps;

    return steps > 0 ? number(c, steps / 20 > 1 ? (double)(steps / 20) : 1) : json_null();
}

json_t *job_rule_keep_best(struct job_ctx *c)
{
    return number(c, c->env->keep_best >= 0 ? (double)c->env->keep_best : 1);
}

json_t *job_rule_keep_latest(struct job_ctx *c)
{
    return number(c, c->env->keep_latest >= 0 ? (double)c->env->keep_latest : 1);
}

/* Where a job is submitted its daemon finds the file (job_start_fold). */
json_t *job_rule_start(struct job_ctx *c)
{
    if (!job_ctx_bad(c, "/train/start"))
        job_ctx_error(c, "/train/start",
                      "is filled in by polyd when a job is submitted with train.start.model, or with "
                      "train.start.run and train.start.checkpoint");
    return NULL;
}

/* Where a job is submitted its daemon finds the version (job_teacher_fold). */
json_t *job_rule_teacher(struct job_ctx *c)
{
    if (!job_ctx_bad(c, "/train/teacher/model") && !job_ctx_bad(c, "/train/teacher/path"))
        job_ctx_error(c, "/train/teacher/model",
                      "is filled in by polyd when a job is submitted with train.teacher; overrides and axes "
                      "cannot set a teacher");
    return NULL;
}

int64_t job_part_of_batch(const struct job_config *g)
{
    const int64_t parts = g->resources.slots * g->train.accumulation;

    return parts > 0 ? g->train.batch / parts : 0;
}

json_t *job_rule_contour(struct job_ctx *c)
{
    const int64_t whole = llround(sqrt((double)c->g->data.context)),
                  side = whole * whole == c->g->data.context ? whole : 32;

    return number(c, (double)(side > 16 ? side / 4 + 4 : 4));
}

json_t *job_rule_zero_is_padding(struct job_ctx *c)
{
    json_t *v = json_boolean(c->g->data.dataset != JOB_DATASET_TEXT_LABELS);

    c->nomem = c->nomem || !v;
    return v;
}

json_t *job_rule_mix_group(struct job_ctx *c)
{
    const int64_t part = job_part_of_batch(c->g);

    return job_use_mix(c->run) && part > 1 ? number(c, (double)part) : json_null();
}

/* ---- Resources ---- */

json_t *job_rule_device(struct job_ctx *c)
{
    return word(c, c->env->cuda && !job_kind_info((enum job_kind)c->g->kind)->cpu ? "cuda" : "cpu");
}

json_t *job_rule_precision(struct job_ctx *c)
{
    if (job_ctx_network(c)->equations)
        return word(c, "fp32");
    return word(c, c->g->resources.device == JOB_DEVICE_CUDA ? "bf16" : "fp32");
}

json_t *job_rule_threads(struct job_ctx *c)
{
    return number(c, c->env->threads >= 1 ? (double)c->env->threads : 1);
}
