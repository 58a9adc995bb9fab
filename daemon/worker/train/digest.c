/* daemon/worker/train/digest.c: what a checkpoint must have in common with the run that goes on from it. */
#include "daemon/digest/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/train/setup.h"

/* The digest that checkpoints of before 2026-11 carry as polyd.course, over fields listed by hand. It is
 * still computed so that runs stopped before then go on; do not add to it. */
static enum pd_err set_old_trajectory(struct train_setup *s, const struct job_config *c, struct pd_why *why)
{
    struct data_st_meta_item items[MODEL_META_ITEMS];
    const struct model_train_options *o = &s->options;
    const struct train_schedule *r = &s->schedule;
    const struct data_info *d = s->info;
    struct pd_buf b;
    char *text = NULL;
    size_t count = 0;
    enum pd_err err = model_spec_to_meta(model_spec(s->model), true, items, &count, &text, why);

    if (err != PD_OK)
        return err;
    pd_buf_init(&b, 0);
    for (size_t i = 0; i < count; i++)
        pd_buf_printf(&b, "%s=%s\n", items[i].key, items[i].value);
    pd_buf_printf(&b, "seed=%lld batch=%d context=%d smoothing=%a clip=%a opt=%d %a %a %a %a %a %d wd=%a\n",
                  (long long)c->train.seed, s->batch, s->context, o->label_smoothing, o->clip_norm,
                  s->optim->number, o->beta1, o->beta2, o->eps, o->momentum, o->dampening, o->nesterov,
                  o->weight_decay);
    pd_buf_printf(&b, "curve=%d warm=%d lr=%a %a %a %a %a shifted=%d unit=%lld factor=%a\n", (int)r->curve,
                  (int)r->warm_form, r->lr, r->warmup_lr, r->min_lr, r->warm, r->total, r->shifted,
                  (long long)r->steps_per_unit, r->factor);
    /* Newer fields enter only if they have an effect, so older checkpoints remain valid. */
    if (job_config_split_seed(c) != c->train.seed)
        pd_buf_printf(&b, "split_seed=%lld\n", (long long)job_config_split_seed(c));
    if (s->parts > 1)
        pd_buf_printf(&b, "parts=%lld\n", (long long)s->parts);
    if (model_spec(s->model)->mixed)
        pd_buf_str(&b, "precision=bf16\n");
    if (c->train.precision == JOB_PRECISION_TF32)
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
        (void)digest_sha256_hex(b.data, b.len, s->old_trajectory);
    else
        (void)pd_fail(why, err, "no memory for the digest of the document");
    pd_buf_done(&b);
    free(text);
    return err;
}

/* What the document decides, and what the data hold. */
static enum pd_err set_trajectory(const struct train_setup *s, const char *document,
                                  char ret[TRAIN_DIGEST_SIZE], struct pd_why *why)
{
    const struct data_info *d = s->info;
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    pd_buf_printf(&b, "%s\nsamples=%lld,%lld tokens=%lld,%lld image=%dx%dx%d classes=%d vocab=%d\n", document,
                  (long long)d->count[0], (long long)d->count[1], (long long)d->tokens[0],
                  (long long)d->tokens[1], d->channels, d->height, d->width, d->classes, d->vocab);
    err = pd_buf_err(&b);
    if (err == PD_OK)
        (void)digest_sha256_hex(b.data, b.len, ret);
    else
        (void)pd_fail(why, err, "no memory for the digest of the trajectory");
    pd_buf_done(&b);
    return err;
}

/* A search along lines keeps differences of one loss's gradients, by the place of each parameter in one vector. */
static void set_search(struct train_setup *s, const struct job_config *c)
{
    const struct job_data *d = &c->data;
    uint8_t digest[DIGEST_SHA256_BYTES];
    struct digest_sha256 names;

    if (!s->optim || !s->optim->searches)
        return;
    snprintf(s->search_loss, sizeof s->search_loss,
             "%s, coefficient %.17g, step %.17g, grid %lld x %lld, derivatives by %s",
             job_dataset_info(d->dataset)->name, d->coefficient, d->pde_step, (long long)d->grid[0],
             (long long)d->grid[1], c->train.pinn_derivative == JOB_PINN_JVP_SHIFT ? "jvp_shift" : "vjp_sum");
    digest_sha256_init(&names);
    for (size_t i = 0; i < model_trained_count(s->model); i++) {
        const char *name = model_param(s->model, i)->name;

        digest_sha256_update(&names, name, strlen(name) + 1);
    }
    digest_sha256_final(&names, digest);
    digest_hex(digest, sizeof digest, s->search_params);
}

enum pd_err train_digest_set(struct train_setup *s, const struct job_config *c, struct pd_why *why)
{
    enum pd_err err = set_trajectory(s, c->trajectory, s->trajectory, why);

    set_search(s, c);

    if (err == PD_OK)
        err = set_trajectory(s, c->earlier_trajectory, s->earlier_trajectory, why);
    return err == PD_OK ? set_old_trajectory(s, c, why) : err;
}

bool train_digest_fits(const struct train_setup *s, const struct data_st *st)
{
    const char *trajectory = data_st_meta(st, "polyd.trajectory"),
               *old_trajectory = data_st_meta(st, "polyd.course");

    if (trajectory)
        return !strcmp(trajectory, s->trajectory) || !strcmp(trajectory, s->earlier_trajectory);
    return old_trajectory && !strcmp(old_trajectory, s->old_trajectory);
}

/* A learned scale is a parameter: what it began with is not part of the function. */
static void forget_initial(struct model_attention *a, const struct model_attention *own)
{
    if (own->scale == MODEL_SCALE_LEARNED)
        a->scale_value = own->scale_value;
}

/* *ret_key: a setting that makes the checkpoint's function another one; NULL: there is none. */
static enum pd_err function_differs(const struct train_setup *s, const struct data_st *st,
                                    const char **ret_key, struct pd_why *why)
{
    const struct model_spec *own = model_spec(s->model);
    struct model_spec spec;
    enum pd_err err = model_spec_from_meta(st, &spec, why);

    if (err != PD_OK)
        return err;
    if (!spec.attention.formula.text[0] &&
        spec.attention.valid_power == 0) /* else N is in the factor alone */
        spec.attention.n_for_scale = own->attention.n_for_scale;
    forget_initial(&spec.attention, &own->attention);
    forget_initial(&spec.class_attention, &own->class_attention);
    *ret_key = model_spec_differs(&spec, own);
    return PD_OK;
}

enum pd_err train_digest_function(const struct train_setup *s, const struct data_st *st, struct pd_why *why)
{
    const char *key = NULL;
    enum pd_err err = function_differs(s, st, &key, why);

    return key ? pd_fail(
                     why, PD_ERR_VERSION,
                     "another version wrote the checkpoint: its '%s' is not what this version makes of the "
                     "run's document",
                     key)
               : err;
}

enum pd_err train_digest_search(const struct train_setup *s, const struct data_st *st, struct pd_why *why)
{
    const char *loss = data_st_meta(st, TRAIN_SEARCH_LOSS), *params = data_st_meta(st, TRAIN_SEARCH_PARAMS),
               *key = NULL, *const pointer = "#/train/start/optimizer";
    enum pd_err err = function_differs(s, st, &key, why);

    if (err != PD_OK)
        return err;
    if (!loss || !params)
        return pd_fail(why, PD_ERR_INVALID,
                       "%s: the file does not say of which loss its state of %s is; use false", pointer,
                       s->optim->graph.name);
    if (strcmp(loss, s->search_loss) != 0)
        return pd_fail(why, PD_ERR_INVALID,
                       "%s: the file's state of %s is of another loss (%s) than this run's (%s); use false",
                       pointer, s->optim->graph.name, loss, s->search_loss);
    if (key)
        return pd_fail(
            why, PD_ERR_INVALID,
            "%s: the file's state of %s is of another network: its '%s' is not that of this run; use false",
            pointer, s->optim->graph.name, key);
    if (strcmp(params, s->search_params) != 0)
        return pd_fail(why, PD_ERR_INVALID,
                       "%s: the file's state of %s is of other trained parameters (train.freeze); use false",
                       pointer, s->optim->graph.name);
    return PD_OK;
}
