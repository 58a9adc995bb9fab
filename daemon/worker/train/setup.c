/* daemon/worker/train/setup.c: from the document to data, network, optimiser and schedule. */
#include "daemon/worker/train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/digest/digest.h"
#include "daemon/job/metric.h"
#include "daemon/worker/train/optim/search.h"
#include "kernels/backend/load.h"
#include "kernels/base/text.h"
#include "kernels/comm/comm.h"

#define EVAL_BATCH_MOST 128

static enum pd_err refuse(struct pd_why *why, const char *pointer)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED, "#%s: this value is not available in this build", pointer);
}

enum pd_err train_backend(const struct job_config *c, bool plan, const struct pk_backend_api **ret,
                          struct pd_why *why)
{
    if (c->resources.device == JOB_DEVICE_CUDA)
        return pk_backend_load("cuda", plan ? PK_LOAD_PLAN : PK_LOAD_RUN, ret, why);
    *ret = pk_backend_cpu();
    return PD_OK;
}

bool train_bf16_note(const struct job_config *c, const struct pk_backend *b, char *ret, size_t cap)
{
    char why[200];
    bool products;

    if (c->resources.device == JOB_DEVICE_CUDA || c->train.precision != JOB_PRECISION_BF16)
        return false;
    products = b ? pk_cpu_bf16_of(b, why, sizeof why) : pk_cpu_bf16(why, sizeof why);
    snprintf(ret, cap, "bf16 on this CPU uses %s: %s",
             products ? "matrix products of bf16 with sums in f32"
                      : "the reference implementation, which is slower than fp32",
             why);
    return true;
}

static enum pd_err check_supported(const struct job_config *c, struct pd_why *why)
{
    enum data_dataset form;

    if (!data_form(c->data.dataset, &form))
        return refuse(why, "/data/dataset");
    if (!optim_find(job_optimiser_name(c->train.optimizer.name)))
        return refuse(why, "/train/optimizer/name");
    return PD_OK;
}

_Static_assert(JOB_REPEATS_MULTIPLE == DATA_REPEATS_MULTIPLE, "both count the same epoch");
_Static_assert((int)JOB_TOKENIZER_GPT2_BPE == (int)DATA_TOKENIZER_GPT2_BPE &&
                   (int)JOB_CROP_RRC == (int)DATA_CROP_RRC &&
                   (int)JOB_INTERPOLATION_BILINEAR == (int)DATA_FILTER_BILINEAR &&
                   (int)JOB_SCORED_TRAIN == (int)DATA_SCORED_TRAIN,
               "the enumerations of the document and of the module data agree");

/* Lets the sentence about a data set point at the entry of data.eval that names it. */
static enum pd_err at_entry(struct pd_why *why, enum pd_err err, size_t index)
{
    char place[64], text[400] = "";

    if (why && err != PD_ERR_NOMEM)
        snprintf(text, sizeof text, "%s", pd_why_place(why->text, place, sizeof place));
    return err == PD_ERR_NOMEM ? err : pd_fail(why, err, "#/data/eval/%zu: %s", index, text);
}

/* Opens the sets of data.eval, as options of the run's own set say but for what each entry names. */
static enum pd_err open_evals(struct train_setup *s, const struct job_config *c,
                              const struct data_options *own, bool headers_only, struct pd_why *why)
{
    const struct job_eval_sets *sets = &c->data.eval;
    enum pd_err err = PD_OK;

    if (sets->count > TRAIN_EVAL_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "#/data/eval: at most %d data sets", TRAIN_EVAL_MAX);
    for (size_t i = 0; i < sets->count && err == PD_OK; i++) {
        struct data_options o = *own;

        o.path = sets->items[i].path;
        o.rule = DATA_SPLIT_STANDARD;
        memset(o.amount, 0, sizeof o.amount);
        o.tokens = s->info->tokenizer;
        s->eval[i].name = sets->items[i].name;
        err = data_form(sets->items[i].dataset, &o.dataset)
                  ? data_open(&o, headers_only, &s->eval[i].set, why)
                  : pd_fail(why, PD_ERR_UNSUPPORTED, "this data set is not available in this build");
        if (err != PD_OK)
            err = at_entry(why, err, i);
        s->eval_count += err == PD_OK;
    }
    return err;
}

static enum pd_err open_data(struct train_setup *s, const struct job_config *c, const struct data_root *roots,
                             size_t root_count, const char *cache, bool headers_only, struct pd_why *why)
{
    const struct job_augment *a = &c->data.augment;
    struct data_options o = {
        .path = c->data.path,
        .roots = roots,
        .root_count = root_count,
        .seed = (uint64_t)job_config_split_seed(c),
        .context = (int32_t)c->data.context,
        .depth = (int32_t)c->data.depth,
        .min_tokens = (int32_t)c->data.min_tokens,
        .contour = (int32_t)c->data.contour,
        .most = c->data.lra_len == JOB_LRA_LEN_REFERENCE
                    ? (int32_t)job_dataset_info((enum job_dataset)c->data.dataset)->cut
                    : 0,
        .tokenizer = (enum data_tokenizer_kind)c->data.tokenizer,
        .tokenizer_path = c->data.tokenizer_path,
        .height = (int32_t)c->data.image_size[0],
        .width = (int32_t)c->data.image_size[1],
        .crop = (enum data_crop)a->crop,
        .shift = a->crop == JOB_CROP_PAD_CROP ? (int32_t)a->pad_crop_shift : 0,
        .rrc_scale = {a->rrc_scale[0], a->rrc_scale[1]},
        .rrc_ratio = {a->rrc_ratio[0], a->rrc_ratio[1]},
        .flip = a->flip,
        .recipe = {.ra_n = a->randaugment.present ? (int32_t)a->randaugment.n : 0,
                   .ra_m = a->randaugment.m,
                   .ra_std = a->randaugment.std,
                   .ra_increasing = a->randaugment.inc,
                   .mixup = a->mixup,
                   .cutmix = a->cutmix,
                   .mix_prob = a->mix_prob,
                   .switch_prob = a->switch_prob,
                   .mix_group = (int32_t)a->mix_group,
                   .erasing = a->erasing,
                   .repeats = (int32_t)a->repeats},
        .eval_crop = a->eval_crop,
        .filter = (enum data_filter)a->interpolation,
        .equation = model_equation(c),
        .coefficient = c->data.coefficient,
        .grid = {(int32_t)c->data.grid[0], (int32_t)c->data.grid[1]},
        .test_grid = {(int32_t)c->data.test_grid[0], (int32_t)c->data.test_grid[1]},
        .step = c->data.pde_step,
        .cache_dir = cache,
        .scored = (enum data_scored)c->evaluate.split,
    };
    const int rule = o.equation ? JOB_SPLIT_GIVEN : c->data.split; /* amounts of an equation are unchecked */
    enum pd_err err;

    if (!data_form(c->data.dataset, &o.dataset))
        return refuse(why, "/data/dataset");
    if (rule == JOB_SPLIT_FRACTION) {
        o.rule = DATA_SPLIT_FRACTION;
        o.train_share = c->data.split_train;
        o.val_share = c->data.split_val;
    } else if (rule == JOB_SPLIT_COUNT) {
        o.rule = DATA_SPLIT_COUNT;
        o.train_count = (int64_t)c->data.split_train;
        o.val_count = (int64_t)c->data.split_val;
    }
    if (rule == JOB_SPLIT_STANDARD) {
        o.rule = DATA_SPLIT_STANDARD;
        o.amount[DATA_TRAIN] = isnan(c->data.split_train) ? 0 : c->data.split_train;
        o.amount[DATA_VAL] = isnan(c->data.split_val) ? 0 : c->data.split_val;
        o.amount[DATA_TEST] = isnan(c->data.split_test) ? 0 : c->data.split_test;
        o.val_is_test = job_dataset_info((enum job_dataset)c->data.dataset)->val_is_test;
    }
    s->scored = o.scored;
    err = data_open(&o, headers_only, &s->set, why);
    if (err == PD_OK)
        s->info = data_info(s->set);
    return err == PD_OK ? open_evals(s, c, &o, headers_only, why) : err;
}

/* What the run is to learn follows from its data set. */
static enum pd_err set_task(struct train_setup *s, const struct job_config *c, struct pd_why *why)
{
    const char *name = job_config_task(c)->name;
    enum pd_err err;

    s->task = task_find(name);
    if (!s->task)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/data/dataset: task %s is not available in this build",
                       name);
    s->best_metric = job_config_best_metric(c, &s->maximise);
    err = task_number(s->task, s->best_metric, &s->best_number, why);
    s->stop.metric = c->train.stop.metric ? c->train.stop.metric : s->best_metric;
    s->stop.averaged = pd_text_ends(s->stop.metric, "_ema");
    s->stop.maximise = job_metric_find(s->stop.metric)->better == JOB_METRIC_MORE;
    if (err == PD_OK)
        err = task_number(s->task, s->stop.metric, &s->stop.number, why);
    return err == PD_OK ? task_check(s->task, s->set, why) : err;
}

#define ONE_CYCLE_RISE 25 /* from its first rate to its peak: PyTorch's div_factor */

static void set_schedule(struct train_setup *s, const struct job_config *c)
{
    const struct job_sched *from = &c->train.schedule;
    struct train_schedule *to = &s->schedule;

    *to = (struct train_schedule){
        .curve = from->name == JOB_SCHEDULE_LINEAR      ? TRAIN_CURVE_LINEAR
                 : from->name == JOB_SCHEDULE_STEP      ? TRAIN_CURVE_STEP
                 : from->name == JOB_SCHEDULE_CONSTANT  ? TRAIN_CURVE_CONSTANT
                 : from->name == JOB_SCHEDULE_ONE_CYCLE ? TRAIN_CURVE_ONE_CYCLE
                                                        : TRAIN_CURVE_COSINE,
        .warm_form = from->warmup_form == JOB_WARMUP_TIMM ? TRAIN_WARM_TIMM : TRAIN_WARM_NANOGPT,
        .lr = c->train.optimizer.lr,
        .warmup_lr = from->warmup_lr,
        .min_lr = from->min_lr,
        .warm = (double)c->bound.warmup_steps,
        .total = (double)c->bound.steps,
        .shifted = from->shifted,
        .steps_per_unit = 1,
        .milestones = from->milestones.items,
        .milestone_count = from->milestones.count,
        .factor = from->factor,
        .beta1 = {from->beta1[0], from->beta1[1]},
    };
    if (to->curve == TRAIN_CURVE_ONE_CYCLE && !(to->warmup_lr > 0))
        to->warmup_lr = to->lr / ONE_CYCLE_RISE;
    if (from->per == JOB_PER_EPOCH && c->bound.steps_per_epoch > 1) {
        to->steps_per_unit = c->bound.steps_per_epoch;
        to->warm /= (double)to->steps_per_unit;
        to->total /= (double)to->steps_per_unit;
    }
}

int64_t train_histogram_step(const struct train_setup *s, size_t i)
{
    return llround(s->histogram_at[i] * (double)s->steps);
}

static enum pd_err set_histograms(struct train_setup *s, const struct job_histograms *h, struct pd_why *why)
{
    if (!h->present)
        return PD_OK;
    s->histogram_at = h->at.items;
    s->histogram_count = h->at.count;
    s->histogram_weights = h->tensors.count ? 0 : (1u << MODEL_WEIGHTS) - 1;
    for (size_t i = 0; i < h->tensors.count; i++) {
        const enum model_weight w = model_weight_find(h->tensors.items[i]);

        if (w == MODEL_WEIGHTS)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/diagnostics/histograms/tensors: unknown weight '%.40s'; the weights are w_q, "
                           "w_k, w_v, w_o, w_1 and w_2",
                           h->tensors.items[i]);
        s->histogram_weights |= 1u << w;
    }
    return PD_OK;
}

static void set_diagnostics(struct train_setup *s, const struct job_config *c)
{
    const struct job_heatmaps *maps = &c->diagnostics.heatmaps;

    s->probe_batch = (int32_t)c->diagnostics.probe_batch;
    if (s->probe_batch > s->info->count[DATA_VAL])
        s->probe_batch = (int32_t)s->info->count[DATA_VAL];
    s->probe_every = c->diagnostics.every;
    s->probe_lead = c->diagnostics.probe_cls;
    if (!maps->present)
        return;
    s->maps_every = maps->every;
    s->maps = (struct model_maps){.layers = maps->layers.items,
                                  .layer_count = maps->layers.count,
                                  .heads = maps->heads.items,
                                  .head_count = maps->heads.count,
                                  .times = 1 + (c->bound.steps + maps->every - 1) / maps->every};
}

static void set_options(struct train_setup *s, const struct job_config *c)
{
    const struct job_optim *o = &c->train.optimizer;

    s->optim = optim_find(job_optimiser_name(o->name));
    s->options = (struct model_train_options){
        .context = s->context,
        .shift = c->train.pinn_derivative == JOB_PINN_JVP_SHIFT,
        .label_smoothing = c->train.label_smoothing,
        .clip_norm = isnan(c->train.clip_norm) ? 0 : c->train.clip_norm,
        .optimizer = &s->optim->graph,
        .beta1 = o->betas[0],
        .beta2 = o->betas[1],
        .cycled = c->train.schedule.name == JOB_SCHEDULE_ONE_CYCLE,
        .eps = o->eps,
        .momentum = o->momentum,
        .dampening = o->dampening,
        .nesterov = o->nesterov,
        .weight_decay = o->weight_decay,
        .ema = isnan(c->train.ema) ? 0 : c->train.ema,
        .rank = s->rank,
        .ranks = s->ranks,
        .zero = c->train.zero > 0 && s->ranks > 1,
        .copies = true,
        /* ranks agree at every boundary, which waits for the step anyway */
        .ahead = c->resources.device == JOB_DEVICE_CUDA && s->ranks == 1 && !s->optim->searches,
        .line_rows = s->optim->searches ? LBFGS_ROWS : 0,
        .line_numbers = LBFGS_NUMBERS,
    };
}

/* `st`: the checkpoint of an evaluation, whose parameters expect pixels as it normalised them; else NULL. */
static enum pd_err make_model(struct train_setup *s, const struct job_config *c, const struct data_st *st,
                              struct pd_why *why)
{
    struct model_spec spec;
    enum pd_err err = model_spec_from_config(c, s->info, &spec, why);

    if (err == PD_OK && st && !model_spec_normalisation(st, &spec))
        err = pd_fail(why, PD_ERR_CORRUPT, "the checkpoint has an invalid mean or deviation");
    if (err == PD_OK)
        err = model_new(&spec, &s->model, why);
    if (err == PD_OK)
        model_layer_decay(s->model, c->train.layer_decay);
    if (err == PD_OK && c->train.freeze)
        err = model_freeze(s->model, c->train.freeze, why);
    return err == PD_OK ? set_task(s, c, why) : err;
}

enum pd_err train_setup_classes(const struct data_info *d, const struct data_st *st, const char *field,
                                const char *whose, struct pd_why *why)
{
    const char *at = data_st_meta(st, "polyd.data.classes");

    for (int32_t i = 0; at && d->class_names && i < d->classes; i++) {
        size_t len = strcspn(at, "\n");

        if (strlen(d->class_names[i]) != len || memcmp(d->class_names[i], at, len) != 0)
            return pd_fail(why, PD_ERR_INVALID, "#%s: class %d is '%.80s', but '%.*s' in %s", field, i,
                           d->class_names[i], (int)(len < 80 ? len : 80), at, whose);
        at += len + (at[len] == '\n');
    }
    return PD_OK;
}

enum pd_err train_setup_init(struct train_setup *s, struct job_config *c, const struct data_root *roots,
                             size_t root_count, const char *cache, const char *state_dir, int rank,
                             bool headers_only, struct pd_why *why)
{
    enum pd_err err;

    memset(s, 0, sizeof *s);
    err = check_supported(c, why);
    if (err == PD_OK)
        err = open_data(s, c, roots, root_count, cache, headers_only, why);
    if (err == PD_OK)
        err = job_config_bind(c, s->info->count[DATA_TRAIN], why);
    if (err == PD_OK)
        err = make_model(s, c, NULL, why);
    if (err != PD_OK)
        return err;
    s->loader_threads = (int)c->resources.loader_threads;
    s->batch = (int32_t)c->train.batch;
    s->parts = c->train.accumulation;
    if (s->parts < 1 || s->batch % s->parts)
        return pd_fail(why, PD_ERR_INVALID, "#/train/accumulation: %lld does not divide the batch of %d",
                       (long long)s->parts, s->batch);
    s->rank = rank;
    s->ranks = c->resources.slots > 1 ? (int)c->resources.slots : 1;
    if (c->resources.slots > PK_COMM_RANKS_MAX)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/resources/slots: at most %d ranks in this build",
                       PK_COMM_RANKS_MAX);
    if (s->batch % (s->parts * s->ranks))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/resources/slots: %d ranks do not divide each of the %lld parts of a batch of %d",
                       s->ranks, (long long)s->parts, s->batch);
    s->context = s->info->context;
    set_diagnostics(s, c);
    err = set_histograms(s, &c->diagnostics.histograms, why);
    if (err != PD_OK)
        return err;
    s->steps = c->bound.steps;
    s->steps_per_epoch = c->bound.steps_per_epoch;
    s->eval_every = c->bound.eval_every > 0 ? c->bound.eval_every : s->steps;
    s->judge_averages = c->train.ema > 0 && c->train.ema_serve;
    set_schedule(s, c);
    set_options(s, c);
    s->options.loss = s->task->loss;
    if (job_config_patches(c)) {
        s->options.ready = c->data.augment.erasing > 0;
        s->options.mix_group =
            c->data.augment.mixup > 0 || c->data.augment.cutmix > 0 ? (int32_t)c->data.augment.mix_group : 0;
    }
    if (c->train.teacher.present) {
        err = teacher_init(&s->teacher, c, state_dir, s->info, s->task, model_spec(s->model), why);
        if (err == PD_OK)
            err = train_setup_classes(s->info, s->teacher.st, "/train/teacher/model", c->train.teacher.model,
                                      why);
        if (err != PD_OK)
            return err;
        s->options.distil = &s->teacher.distil;
    }
    train_setup_divide(s, s->parts);
    return train_digest_set(s, c, why);
}

/* ---- an evaluation ---- */

static enum pd_err check_tokenizer(const struct data_tokenizer *t, const struct data_st *st,
                                   struct pd_why *why)
{
    const struct data_st_tensor *has = data_st_find(st, DATA_TOKENIZER_TENSOR);
    struct pd_buf own;
    enum pd_err err = PD_OK;

    pd_buf_init(&own, 0);
    if (t && data_tokenizer_kind(t) != DATA_TOKENIZER_BYTES)
        err = data_tokenizer_save(t, &own, why);
    if (err == PD_OK &&
        (own.len != (has ? has->bytes : 0) || (has && memcmp(has->data, own.data, own.len) != 0)))
        err = pd_fail(why, PD_ERR_INVALID,
                      "#/data/tokenizer: the tokenizer made from this text differs from the checkpoint's");
    pd_buf_done(&own);
    return err;
}

/* Whether the data are of the kind that the checkpoint was trained on. */
static enum pd_err check_fits(const struct data_info *d, const struct data_st *st, struct pd_why *why)
{
    struct model_spec spec;
    enum pd_err err = model_spec_from_meta(st, &spec, why);

    if (err != PD_OK)
        return err;
    if (d->channels != spec.channels)
        return pd_fail(why, PD_ERR_INVALID,
                       "#/data/dataset: the pictures have %d channels, the checkpoint reads %d", d->channels,
                       spec.channels);
    if (d->classes != spec.classes)
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: it has %d classes, the checkpoint %d",
                       d->classes, spec.classes);
    err = train_setup_classes(d, st, "/data/path", "the checkpoint", why);
    return err == PD_OK ? check_tokenizer(d->tokenizer, st, why) : err;
}

enum pd_err train_setup_score(struct train_setup *s, const struct job_config *c, const struct data_st *st,
                              const struct data_root *roots, size_t root_count, const char *cache,
                              bool headers_only, struct pd_why *why)
{
    enum pd_err err;

    memset(s, 0, sizeof *s);
    err = open_data(s, c, roots, root_count, cache, headers_only, why);
    if (err == PD_OK)
        err = check_fits(s->info, st, why);
    if (err == PD_OK)
        err = make_model(s, c, st, why);
    if (err == PD_OK)
        err = train_digest_function(s, st, why);
    if (err != PD_OK)
        return err;
    s->loader_threads = (int)c->resources.loader_threads;
    s->context = s->info->context;
    s->batch = (int32_t)c->train.batch;
    s->ranks = 1;
    train_setup_divide(s, c->train.accumulation);
    return PD_OK;
}

bool train_better(const struct train_setup *s, double a, double b)
{
    if (isnan(a))
        return false;
    return isnan(b) || (s->maximise ? a > b : a < b);
}

void train_setup_divide(struct train_setup *s, int64_t parts)
{
    s->parts = parts;
    s->options.batch = (int32_t)(s->batch / (parts * s->ranks));
    if (s->options.mix_group && s->options.batch % s->options.mix_group)
        s->options.mix_group =
            s->options.batch; /* a forecast of smaller parts: their groups are smaller too */
    s->eval_batch = s->options.batch < EVAL_BATCH_MOST ? s->options.batch : EVAL_BATCH_MOST;
}

void train_setup_done(struct train_setup *s)
{
    teacher_done(&s->teacher);
    s->model = model_free(s->model);
    while (s->eval_count)
        data_free(s->eval[--s->eval_count].set);
    s->set = data_free(s->set);
}
