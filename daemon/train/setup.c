/* daemon/train/setup.c: from the document to data, network, optimiser and schedule. */
#include "daemon/train/setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/data/safetensors.h"
#include "daemon/digest/digest.h"
#include "kernels/backend/load.h"
#include "kernels/comm/comm.h"

#define EVAL_BATCH_MOST 128

static enum pd_err refuse(struct pd_why *why, const char *pointer)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED, "#%s: this value is not available in this build", pointer);
}

/* The data sets of this build, and how each is read. */
static const struct set_kind {
    int dataset; /* enum spec_dataset */
    enum data_dataset kind;
} set_kinds[] = {
    {SPEC_DATASET_MNIST, DATA_SET_MNIST},
    {SPEC_DATASET_DIGITS_GEN, DATA_SET_DIGITS_GEN},
    {SPEC_DATASET_CIFAR10, DATA_SET_CIFAR10},
    {SPEC_DATASET_IMAGENET1K, DATA_SET_PICTURES},
    {SPEC_DATASET_TINY_IMAGENET, DATA_SET_PICTURES},
    {SPEC_DATASET_IMAGE_FOLDER, DATA_SET_PICTURES},
    {SPEC_DATASET_TEXT, DATA_SET_TEXT},
    {SPEC_DATASET_PTB, DATA_SET_TEXTS},
    {SPEC_DATASET_WIKITEXT2, DATA_SET_TEXTS},
    {SPEC_DATASET_WIKITEXT103, DATA_SET_TEXTS},
};

enum pd_err train_backend(const struct spec_config *c, bool plan, const struct pk_backend_api **ret,
                          struct pd_why *why)
{
    if (c->resources.device == SPEC_DEVICE_CUDA)
        return pk_backend_load("cuda", plan ? PK_LOAD_PLAN : PK_LOAD_RUN, ret, why);
    *ret = pk_backend_cpu();
    return PD_OK;
}

static const struct set_kind *find_set(int dataset)
{
    for (size_t i = 0; i < sizeof set_kinds / sizeof *set_kinds; i++)
        if (set_kinds[i].dataset == dataset)
            return &set_kinds[i];
    return NULL;
}

static enum pd_err check_supported(const struct spec_config *c, struct pd_why *why)
{
    const struct spec_augment *a = &c->data.augment;

    if (!find_set(c->data.dataset))
        return refuse(why, "/data/dataset");
    if (c->data.eval.count)
        return refuse(why, "/data/eval");
    if (a->randaugment.present)
        return refuse(why, "/data/augment/randaugment");
    if (a->mixup > 0)
        return refuse(why, "/data/augment/mixup");
    if (a->cutmix > 0)
        return refuse(why, "/data/augment/cutmix");
    if (a->erasing > 0)
        return refuse(why, "/data/augment/erasing");
    if (a->repeats > 1)
        return refuse(why, "/data/augment/repeats");
    if (c->train.optimizer.name == SPEC_OPTIMIZER_LBFGS)
        return refuse(why, "/train/optimizer/name");
    if (c->train.schedule.name == SPEC_SCHEDULE_ONE_CYCLE)
        return refuse(why, "/train/schedule/name");
    if (c->train.teacher.present)
        return refuse(why, "/train/teacher");
    if (!c->diagnostics.probe_cls)
        return refuse(why, "/diagnostics/probe_cls");
    if (c->diagnostics.heatmaps.present)
        return refuse(why, "/diagnostics/heatmaps");
    if (c->diagnostics.histograms.present)
        return refuse(why, "/diagnostics/histograms");
    return PD_OK;
}

_Static_assert((int)SPEC_TOKENIZER_GPT2_BPE == (int)DATA_TOKENIZER_GPT2_BPE &&
                   (int)SPEC_CROP_RRC == (int)DATA_CROP_RRC &&
                   (int)SPEC_INTERPOLATION_BILINEAR == (int)DATA_FILTER_BILINEAR,
               "the enumerations of the document and of the data room agree");

static enum pd_err open_data(struct train_setup *s, const struct spec_config *c,
                             const struct data_root *roots, size_t root_count, const char *cache,
                             bool headers_only, struct pd_why *why)
{
    const struct spec_augment *a = &c->data.augment;
    struct data_options o = {
        .dataset = find_set(c->data.dataset)->kind,
        .path = c->data.path,
        .roots = roots,
        .root_count = root_count,
        .seed = (uint64_t)spec_config_split_seed(c),
        .context = (int32_t)c->data.context,
        .tokenizer = (enum data_tokenizer_kind)c->data.tokenizer,
        .tokenizer_path = c->data.tokenizer_path,
        .height = (int32_t)c->data.image_size[0],
        .width = (int32_t)c->data.image_size[1],
        .crop = (enum data_crop)a->crop,
        .shift = a->crop == SPEC_CROP_PAD_CROP ? (int32_t)a->pad_crop_shift : 0,
        .rrc_scale = {a->rrc_scale[0], a->rrc_scale[1]},
        .rrc_ratio = {a->rrc_ratio[0], a->rrc_ratio[1]},
        .flip = a->flip,
        .eval_crop = a->eval_crop,
        .filter = (enum data_filter)a->interpolation,
        .cache_dir = cache,
    };
    enum pd_err err;

    if (c->data.split == SPEC_SPLIT_FRACTION) {
        o.rule = DATA_SPLIT_FRACTION;
        o.train_share = c->data.split_train;
        o.val_share = c->data.split_val;
    } else if (c->data.split == SPEC_SPLIT_COUNT) {
        o.rule = DATA_SPLIT_COUNT;
        o.train_count = (int64_t)c->data.split_train;
        o.val_count = (int64_t)c->data.split_val;
    }
    err = data_open(&o, headers_only, &s->set, why);
    if (err == PD_OK)
        s->info = data_info(s->set);
    return err;
}

static void set_schedule(struct train_setup *s, const struct spec_config *c)
{
    const struct spec_sched *from = &c->train.schedule;
    struct train_schedule *to = &s->schedule;

    *to = (struct train_schedule){
        .curve = from->name == SPEC_SCHEDULE_LINEAR     ? TRAIN_CURVE_LINEAR
                 : from->name == SPEC_SCHEDULE_STEP     ? TRAIN_CURVE_STEP
                 : from->name == SPEC_SCHEDULE_CONSTANT ? TRAIN_CURVE_CONSTANT
                                                        : TRAIN_CURVE_COSINE,
        .warm_form = from->warmup_form == SPEC_WARMUP_TIMM ? TRAIN_WARM_TIMM : TRAIN_WARM_NANOGPT,
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
    };
    if (from->per == SPEC_PER_EPOCH && c->bound.steps_per_epoch > 1) {
        to->steps_per_unit = c->bound.steps_per_epoch;
        to->warm /= (double)to->steps_per_unit;
        to->total /= (double)to->steps_per_unit;
    }
}

static void set_options(struct train_setup *s, const struct spec_config *c)
{
    const struct spec_optim *o = &c->train.optimizer;

    s->options = (struct model_train_options){
        .context = s->context,
        .label_smoothing = c->train.label_smoothing,
        .clip_norm = isnan(c->train.clip_norm) ? 0 : c->train.clip_norm,
        .optimizer = o->name == SPEC_OPTIMIZER_MSGDW     ? MODEL_MSGDW
                     : o->name == SPEC_OPTIMIZER_MSGD_L2 ? MODEL_MSGD_L2
                                                         : MODEL_ADAMW,
        .beta1 = o->betas[0],
        .beta2 = o->betas[1],
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
    };
}

/* What decides the course of a run; a checkpoint of another course is not continued. */
static enum pd_err set_digest(struct train_setup *s, const struct spec_config *c, struct pd_why *why)
{
    struct data_st_meta_item items[MODEL_META_ITEMS];
    const struct model_train_options *o = &s->options;
    const struct train_schedule *r = &s->schedule;
    const struct data_info *d = s->info;
    struct pd_buf b;
    char *text = NULL;
    size_t count = 0;
    enum pd_err err = model_spec_to_meta(model_spec(s->model), items, &count, &text, why);

    if (err != PD_OK)
        return err;
    pd_buf_init(&b, 0);
    for (size_t i = 0; i < count; i++)
        pd_buf_printf(&b, "%s=%s\n", items[i].key, items[i].value);
    pd_buf_printf(&b, "seed=%lld batch=%d context=%d smoothing=%a clip=%a opt=%d %a %a %a %a %a %d wd=%a\n",
                  (long long)c->train.seed, s->batch, s->context, o->label_smoothing, o->clip_norm,
                  (int)o->optimizer, o->beta1, o->beta2, o->eps, o->momentum, o->dampening, o->nesterov,
                  o->weight_decay);
    pd_buf_printf(&b, "curve=%d warm=%d lr=%a %a %a %a %a shifted=%d unit=%lld factor=%a\n", (int)r->curve,
                  (int)r->warm_form, r->lr, r->warmup_lr, r->min_lr, r->warm, r->total, r->shifted,
                  (long long)r->steps_per_unit, r->factor);
    /* What came later is said only where it is used: older checkpoints stay good. */
    if (spec_config_split_seed(c) != c->train.seed)
        pd_buf_printf(&b, "split_seed=%lld\n", (long long)spec_config_split_seed(c));
    if (s->parts > 1)
        pd_buf_printf(&b, "parts=%lld\n", (long long)s->parts);
    if (model_spec(s->model)->mixed)
        pd_buf_str(&b, "precision=bf16\n");
    if (c->train.precision == SPEC_PRECISION_TF32)
        pd_buf_str(&b, "precision=tf32\n");
    if (o->ema > 0)
        pd_buf_printf(&b, "ema=%a judge=%d\n", o->ema, s->judge_averages);
    for (size_t i = 0; i < r->milestone_count; i++)
        pd_buf_printf(&b, "at=%lld\n", (long long)r->milestones[i]);
    pd_buf_printf(&b,
                  "data=%d path=%s split=%d %lld %lld %lld %lld crop=%d %lld %a %a %a %a flip=%a filter=%d "
                  "image=%dx%dx%d classes=%d vocab=%d %d\n",
                  c->data.dataset, c->data.path ? c->data.path : "", c->data.split, (long long)d->count[0],
                  (long long)d->count[1], (long long)d->tokens[0], (long long)d->tokens[1],
                  c->data.augment.crop, (long long)c->data.augment.pad_crop_shift,
                  c->data.augment.rrc_scale[0], c->data.augment.rrc_scale[1], c->data.augment.rrc_ratio[0],
                  c->data.augment.rrc_ratio[1], c->data.augment.flip, c->data.augment.interpolation,
                  d->channels, d->height, d->width, d->classes, d->vocab, c->data.tokenizer);
    err = pd_buf_err(&b);
    if (err == PD_OK)
        (void)digest_sha256_hex(b.data, b.len, s->digest);
    else
        (void)pd_fail(why, err, "no memory for the digest of the document");
    pd_buf_done(&b);
    free(text);
    return err;
}

enum pd_err train_setup_init(struct train_setup *s, struct spec_config *c, const struct data_root *roots,
                             size_t root_count, const char *cache, int rank, bool headers_only,
                             struct pd_why *why)
{
    struct model_spec spec;
    bool maximise;
    enum pd_err err;

    memset(s, 0, sizeof *s);
    err = check_supported(c, why);
    if (err == PD_OK)
        err = open_data(s, c, roots, root_count, cache, headers_only, why);
    if (err == PD_OK)
        err = spec_config_bind(c, s->info->count[DATA_TRAIN], why);
    if (err == PD_OK)
        err = model_spec_from_config(c, s->info, &spec, why);
    if (err == PD_OK)
        err = model_new(&spec, &s->model, why);
    if (err != PD_OK)
        return err;
    s->classifier = s->info->kind == DATA_IMAGES;
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
                       "#/resources/slots: %d ranks do not divide the batch of %d in %lld parts", s->ranks,
                       s->batch, (long long)s->parts);
    s->context = s->classifier ? 0 : (int32_t)c->data.context;
    s->probe_batch = (int32_t)c->diagnostics.probe_batch;
    if (s->probe_batch > s->info->count[DATA_VAL])
        s->probe_batch = (int32_t)s->info->count[DATA_VAL];
    s->steps = c->bound.steps;
    s->steps_per_epoch = c->bound.steps_per_epoch;
    s->eval_every = c->bound.eval_every > 0 ? c->bound.eval_every : s->steps;
    s->judge_averages = c->train.ema > 0 && c->train.ema_serve;
    s->best_metric = spec_config_best_metric(c, &maximise);
    set_schedule(s, c);
    set_options(s, c);
    train_setup_divide(s, s->parts);
    return set_digest(s, c, why);
}

void train_setup_divide(struct train_setup *s, int64_t parts)
{
    s->parts = parts;
    s->options.batch = (int32_t)(s->batch / (parts * s->ranks));
    s->eval_batch = s->options.batch < EVAL_BATCH_MOST ? s->options.batch : EVAL_BATCH_MOST;
}

void train_setup_done(struct train_setup *s)
{
    s->model = model_free(s->model);
    s->set = data_free(s->set);
}
