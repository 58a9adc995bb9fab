/* Checks of strings, and checks that concern several fields. */
#include "daemon/job/rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"
#include "daemon/job/template.h"

/* ---- Checks of strings ---- */

bool job_check_run(struct job_ctx *c, const struct job_field *f, const char *text)
{
    if (strspn(text, "0123456789") == strlen(text))
        return true;
    job_ctx_error(c, f->pointer, "must be the id of a run: digits only");
    return false;
}

bool job_check_in_state(struct job_ctx *c, const struct job_field *f, const char *text)
{
    if (text[0] != '/' && !strstr(text, ".."))
        return true;
    job_ctx_error(c, f->pointer, "must be a path below the state folder");
    return false;
}

/* Where jobs are submitted the template has become its documents before they are read. */
bool job_check_template(struct job_ctx *c, const struct job_field *f, const char *text)
{
    if (job_template_find(text) < job_template_count())
        job_ctx_error(c, f->pointer,
                      "the template \"%s\" stands for whole jobs, but this is the document of a single job",
                      text);
    else
        job_ctx_error(c, f->pointer, "unknown template; there are E01 to E18 and T1 to T20");
    return false;
}

bool job_check_recipe(struct job_ctx *c, const struct job_field *f, const char *text)
{
    const char *names[64];
    char near[64];
    size_t count = 0;

    for (size_t i = 0; i < job_recipe_count; i++) {
        if (strcmp(job_recipes[i].name, text) == 0) {
            if (job_recipes[i].items) {
                c->recipe = &job_recipes[i];
                return true;
            }
            job_ctx_error(c, f->pointer, "\"%s\" is known but not available in this version", text);
            return false;
        }
        names[count++] = job_recipes[i].name;
    }
    job_ctx_error(c, f->pointer, "unknown recipe%s", pd_did_you_mean(near, sizeof near, text, names, count));
    return false;
}

bool job_check_preset(struct job_ctx *c, const struct job_field *f, const char *text)
{
    const struct job_preset *p;
    const char *names[64];
    char near[64];
    size_t count = 0;
    int arch;

    for (size_t i = 0; (p = job_preset_at(i, &arch)); i++) {
        if (strcmp(p->name, text) == 0) {
            c->preset = p;
            c->preset_arch = arch;
            return true;
        }
        if (count < sizeof names / sizeof *names)
            names[count++] = p->name;
    }
    job_ctx_error(c, f->pointer, "unknown preset%s", pd_did_you_mean(near, sizeof near, text, names, count));
    return false;
}

bool job_check_stop_metric(struct job_ctx *c, const struct job_field *f, const char *text)
{
    char scored[128];

    if (job_metric_scored(c->g, text))
        return true;
    job_ctx_error(c, f->pointer, "must be a metric of this job's evaluations: %s",
                  job_metrics_scored(c->g, scored, sizeof scored));
    return false;
}

bool job_check_path(struct job_ctx *c, const struct job_field *f, const char *text)
{
    size_t root = strcspn(text, "/");

    if (text[0] == '/') {
        job_ctx_error(c, f->pointer,
                      "must not be absolute: write <root>/<relative>, where root is a data root of "
                      "the daemon's configuration");
        return false;
    }
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "/");
        if ((n == 2 && p[0] == '.' && p[1] == '.') || (n == 1 && p[0] == '.') || n == 0) {
            job_ctx_error(c, f->pointer, "must not contain empty parts, \".\" or \"..\"");
            return false;
        }
        p += n;
        if (*p == '/' && !*++p) {
            job_ctx_error(c, f->pointer, "must not end with a slash");
            return false;
        }
    }
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f) {
            job_ctx_error(c, f->pointer, "must not contain control characters");
            return false;
        }
    }
    if (!c->check_roots)
        return true;
    for (size_t i = 0; i < c->env->root_count; i++) {
        if (strlen(c->env->roots[i]) == root && memcmp(c->env->roots[i], text, root) == 0)
            return true;
    }
    job_ctx_error(c, f->pointer,
                  "no data root named '%.*s' is configured; add it to [data], or set data.path", (int)root,
                  text);
    return false;
}

/* ---- Checks that concern several fields ---- */

static bool ok(const struct job_ctx *c, const char *a, const char *b)
{
    return !job_ctx_bad(c, a) && (!b || !job_ctx_bad(c, b));
}

static void check_model(struct job_ctx *c)
{
    const struct job_model *m = &c->g->model;
    const struct job_data *d = &c->g->data;
    const struct job_dataset_info *info = job_ctx_dataset(c);
    const struct job_network *net = job_ctx_network(c);

    if (c->preset && ok(c, "/model/arch", NULL) && c->preset_arch != m->arch) {
        job_ctx_error(c, "/model/arch", "the preset \"%s\" is a %s; omit arch, or the preset",
                      c->preset->name, job_arch_name(c->preset_arch));
        return;
    }
    if (!ok(c, "/model/arch", "/data/dataset") || !ok(c, "/model/preset", NULL))
        return;
    if (!net->stages && ok(c, "/model/heads", "/model/width") && m->width % m->heads != 0)
        job_ctx_error(c, "/model/heads", "must divide the width: %lld is not a multiple of %lld",
                      (long long)m->width, (long long)m->heads);
    if (net->reads == JOB_READS_IMAGES && !info->image) {
        job_ctx_error(c, "/data/dataset", "\"%s\" has no images, which a %s needs", info->name, net->name);
        return;
    }
    if (net->reads == JOB_READS_TEXT && !info->text) {
        job_ctx_error(c, "/data/dataset", "\"%s\" is not text, which a %s needs", info->name, net->name);
        return;
    }
    if (net->equations != (info->equation > 0)) {
        job_ctx_error(c, "/data/dataset",
                      net->equations
                          ? "\"%s\" is not an equation, which a %s needs"
                          : "\"%s\" is an equation, which a %s cannot solve: set model.arch to pinnsformer",
                      info->name, net->name);
        return;
    }
    if (info->image && ok(c, "/data/image_size", "/model/patch")) {
        if (!d->image_size[0]) {
            job_ctx_error(c, "/data/image_size", "must not be null for images");
        } else if (!m->patch[0]) {
            job_ctx_error(c, "/model/patch", "must not be null for images");
        } else if (d->image_size[0] % m->patch[0] != 0 || d->image_size[1] % m->patch[1] != 0) {
            job_ctx_error(c, "/model/patch",
                          "must divide the image: %lldx%lld pixels into patches of %lldx%lld",
                          (long long)d->image_size[0], (long long)d->image_size[1], (long long)m->patch[0],
                          (long long)m->patch[1]);
        }
    }
    if (info->image && net->stages)
        job_check_stages(c);
    job_check_channels(c);
    job_check_equations(c);
    job_check_landmarks(c);
    if (!info->image && ok(c, "/model/context", "/data/context")) {
        if (m->context < 1)
            job_ctx_error(c, "/model/context", "must not be null for sequences");
        else if (d->context < 1)
            job_ctx_error(c, "/data/context", "must not be null for sequences");
        else if (d->context > m->context)
            job_ctx_error(c, "/data/context", "must be at most model.context, which is %lld",
                          (long long)m->context);
    }
}

static void check_attention(struct job_ctx *c)
{
    const struct job_attention *a = &c->g->attention;
    const struct job_network *net = job_ctx_network(c);
    const char *others =
        net->reads == JOB_READS_IMAGES ? "patches, keys or a number" : "context, keys or a number";

    if (job_use_k(c->run) && ok(c, "/attention/k", "/attention/scale") && isnan(a->k))
        job_ctx_error(c, "/attention/k", "is needed with scale k");
    if (job_use_n(c->run) && ok(c, "/attention/n_for_scale", "/model/arch")) {
        if (a->n_for_scale == JOB_N_PATCHES && net->reads != JOB_READS_IMAGES)
            job_ctx_refuse(c, "/attention/n_for_scale", "a %s has no patches; use %s", net->name, others);
        if (a->n_for_scale == JOB_N_WINDOW && !net->windows)
            job_ctx_error(c, "/attention/n_for_scale", "a %s has no windows; use keys or a number",
                          net->name);
        if (a->n_for_scale == JOB_N_CHANNELS && !net->channel_attention)
            job_ctx_error(c, "/attention/n_for_scale", "a %s attends between tokens; use %s", net->name,
                          others);
        if (a->n_for_scale == JOB_N_ROW && !net->causal)
            job_ctx_error(c, "/attention/n_for_scale", "row needs causal attention; use %s", others);
        if (a->n_for_scale == JOB_N_ROW && a->activation == JOB_ACTIVATION_SIGMOID_BIAS)
            job_ctx_error(c, "/attention/n_for_scale",
                          "sigmoid_bias has a single bias for all rows, so row is not allowed");
        if (a->n_for_scale == JOB_N_CONTEXT && net->reads == JOB_READS_IMAGES)
            job_ctx_error(c, "/attention/n_for_scale", "a %s has no context; use %s", net->name, others);
    }
    if (ok(c, "/train/precision", "/resources/device")) {
        bool cuda = c->g->resources.device == JOB_DEVICE_CUDA;

        if (c->g->train.precision == JOB_PRECISION_FP64 && cuda)
            job_ctx_error(c, "/train/precision", "fp64 is available on device cpu only");
        if (c->g->train.precision == JOB_PRECISION_TF32 && !cuda)
            job_ctx_error(c, "/train/precision", "tf32 is available on device cuda only");
    }
    if (c->g->train.precision == JOB_PRECISION_FP16 && a->activation == JOB_ACTIVATION_POLY &&
        a->degree > 3 && !a->qk_norm)
        job_ctx_error(c, "/attention/degree", "must be at most 3 in fp16 without qk_norm");
    if (a->activation == JOB_ACTIVATION_FORMULA)
        job_formula_check(c);
    if (a->activation == JOB_ACTIVATION_SIMA && net->causal)
        job_ctx_error(c, "/attention/activation",
                      "sima divides by sums over all tokens, but a %s attends to earlier tokens only",
                      net->name);
    if (a->form == JOB_FORM_LINEAR && (a->activation != JOB_ACTIVATION_POLY || a->degree > 2))
        job_ctx_error(c, "/attention/form", "linear needs activation poly with a degree of 1 or 2");
    else if (a->form == JOB_FORM_LINEAR && net->windows)
        job_ctx_error(c, "/attention/form",
                      "linear allows no bias on the logits, and a %s adds relative positions to them; use "
                      "auto or quadratic",
                      net->name);
    if (a->form == JOB_FORM_LINEAR && a->dropout > 0)
        job_ctx_error(c, "/attention/form", "linear allows no dropout on the attention matrix");
}

/* Shares of one whole, or counts, as each says itself. */
static void check_standard(struct job_ctx *c)
{
    static const char *const pointers[] = {"/data/split/train", "/data/split/val", "/data/split/test"};
    const double amounts[] = {c->g->data.split_train, c->g->data.split_val, c->g->data.split_test};
    const struct job_dataset_info *info = job_ctx_dataset(c);
    double shares = 0, counts = 0;

    for (int i = 0; i < 3; i++) {
        if (isnan(amounts[i]) || !ok(c, pointers[i], NULL))
            continue;
        if (amounts[i] < 1 && info->generated)
            job_ctx_error(c, pointers[i], "must be a count: generated data have no total size");
        else if (amounts[i] >= 1 && (amounts[i] != floor(amounts[i]) || amounts[i] > 1e12))
            job_ctx_error(c, pointers[i], "must be a fraction below 1, or an integer count");
        *(amounts[i] < 1 ? &shares : &counts) += amounts[i];
    }
    if (job_ctx_one_file(c) && shares > 1 + 1e-9)
        job_ctx_error(c, "/data/split", "train, val and test together are more than 1");
    else if (info->generated && counts > (double)info->most)
        job_ctx_error(c, "/data/split", "at most %lld generated %s", (long long)info->most,
                      info->text && !info->labels ? "bytes" : "samples");
}

/* A warning: jobs of earlier versions may say so. */
static void warn_split(struct job_ctx *c)
{
    const int rule = c->g->data.split;

    if (!ok(c, "/data/split/rule", "/data/dataset") || rule == JOB_SPLIT_STANDARD ||
        !job_use_split_rule(c->run))
        return;
    if (rule != JOB_SPLIT_GIVEN) {
        if (job_ctx_dataset(c)->image && !job_ctx_dataset(c)->generated)
            job_ctx_warning(c, "/data/split/rule",
                            "with %s the data set's test files may be %s; standard separates training, "
                            "validation and test",
                            rule == JOB_SPLIT_COUNT ? "count" : "fraction",
                            rule == JOB_SPLIT_COUNT ? "the validation part, and so select the best checkpoint"
                                                    : "part of the training and validation data");
        return;
    }
    if (job_ctx_dataset(c)->generated)
        job_ctx_warning(c, "/data/split/rule",
                        "given has no test part; standard has one, scored once with the selected checkpoint");
    else
        job_ctx_warning(c, "/data/split/rule",
                        "with given the data set's test files may be the validation part, and so select the "
                        "best checkpoint; standard separates training, validation and test");
}

static void check_split(struct job_ctx *c)
{
    const struct job_data *d = &c->g->data;
    double train = d->split_train, val = d->split_val;

    if (!ok(c, "/data/split/rule", "/data/split/train") || !ok(c, "/data/split/val", "/data/dataset") ||
        !job_use_split_rule(c->run))
        return;
    if (d->split == JOB_SPLIT_GIVEN) {
        if (job_ctx_one_file(c))
            job_ctx_error(c, "/data/split/rule",
                          "a single text file has no parts; use standard, fraction or count");
        return;
    }
    if (d->split == JOB_SPLIT_STANDARD) {
        check_standard(c);
        return;
    }
    if (isnan(train) || isnan(val)) {
        job_ctx_error(c, isnan(train) ? "/data/split/train" : "/data/split/val", "is needed with the rule %s",
                      d->split == JOB_SPLIT_COUNT ? "count" : "fraction");
    } else if (d->split == JOB_SPLIT_FRACTION) {
        /* A sum such as 0.9 + 0.1 may exceed 1 by a rounding error. */
        if (train >= 1)
            job_ctx_error(c, "/data/split/train", "must be less than 1 as a fraction");
        else if (val >= 1)
            job_ctx_error(c, "/data/split/val", "must be less than 1 as a fraction");
        else if (train + val > 1 + 1e-9)
            job_ctx_error(c, "/data/split", "train and val together are more than 1");
    } else {
        const struct job_dataset_info *info = job_ctx_dataset(c);
        if (train != floor(train) || train > 1e12)
            job_ctx_error(c, "/data/split/train", "must be an integer count");
        else if (val != floor(val) || val > 1e12)
            job_ctx_error(c, "/data/split/val", "must be an integer count");
        else if (info->generated && train + val > (double)info->most)
            job_ctx_error(c, "/data/split", "at most %lld generated %s", (long long)info->most,
                          info->text && !info->labels ? "bytes" : "samples");
    }
}

static void check_data(struct job_ctx *c)
{
    const struct job_data *d = &c->g->data;
    const struct job_dataset_info *info = job_ctx_dataset(c);

    if (!ok(c, "/data/dataset", "/data/path"))
        return;
    if (d->eval.count && (!info->task || strcmp(info->task, "language")))
        job_ctx_error(c, "/data/eval", "is for language models, and \"%s\" is not a text to train one on",
                      info->name);
    if (!info->generated && !d->path)
        job_ctx_error(c, "/data/path", "must not be null for \"%s\"", info->name);
    if (d->dataset == JOB_DATASET_LISTOPS_GEN && ok(c, "/data/min_tokens", "/data/context") &&
        d->min_tokens > d->context)
        job_ctx_error(c, "/data/min_tokens", "must be at most data.context, which is %lld",
                      (long long)d->context);
    if (d->augment.crop == JOB_CROP_PAD_CROP && ok(c, "/data/augment/pad_crop/shift", "/data/image_size") &&
        info->image &&
        (d->augment.pad_crop_shift >= d->image_size[0] || d->augment.pad_crop_shift >= d->image_size[1]))
        job_ctx_error(c, "/data/augment/pad_crop/shift", "must be smaller than the image");
    if (info->text && d->tokenizer == JOB_TOKENIZER_GPT2_BPE && !d->tokenizer_path &&
        ok(c, "/data/tokenizer", "/data/tokenizer_path"))
        job_ctx_error(c, "/data/tokenizer_path", "must not be null with gpt2_bpe");
    if (d->augment.rrc_scale[0] > d->augment.rrc_scale[1])
        job_ctx_error(c, "/data/augment/rrc/scale", "the first must not be greater than the second");
    if (d->augment.rrc_ratio[0] > d->augment.rrc_ratio[1])
        job_ctx_error(c, "/data/augment/rrc/ratio", "the first must not be greater than the second");
}

bool job_rules_beyond(const struct job_config *g, int64_t steps, bool evals, char *out, size_t size)
{
    const struct job_ints *m = &g->train.schedule.milestones;

    if (evals && g->train.eval_every > steps)
        snprintf(out, size, "is longer than the run of %lld steps: it is evaluated only at its end",
                 (long long)steps);
    else if (!evals && g->train.schedule.name == JOB_SCHEDULE_STEP && m->count > 0 && m->items[0] >= steps)
        snprintf(out, size,
                 "are not before the end of the run of %lld steps: the learning rate is never reduced",
                 (long long)steps);
    else
        return false;
    return true;
}

/* Warnings, not errors: jobs of earlier versions may hold these values. */
static void warn_schedule(struct job_ctx *c)
{
    const struct job_train *t = &c->g->train;
    char sentence[128];

    if (ok(c, "/train/schedule/min_lr", "/train/optimizer/lr") && job_use_min_lr(c->run) &&
        t->schedule.min_lr > t->optimizer.lr)
        job_ctx_warning(c, "/train/schedule/min_lr",
                        "is above train.optimizer.lr, %.6g: the learning rate rises during the warm-up",
                        t->optimizer.lr);
    if (t->steps < 1 || !ok(c, "/train/steps", NULL))
        return;
    if (ok(c, "/train/eval_every", NULL) && job_rules_beyond(c->g, t->steps, true, sentence, sizeof sentence))
        job_ctx_warning(c, "/train/eval_every", "%s", sentence);
    if (ok(c, "/train/schedule/milestones", NULL) &&
        job_rules_beyond(c->g, t->steps, false, sentence, sizeof sentence))
        job_ctx_warning(c, "/train/schedule/milestones", "%s", sentence);
}

static void check_mixing(struct job_ctx *c)
{
    const int64_t group = c->g->data.augment.mix_group, part = job_part_of_batch(c->g);

    if (!job_use_mix(c->run) || !ok(c, "/data/augment/mix_group", "/train/batch") ||
        !ok(c, "/train/accumulation", "/resources/slots"))
        return;
    if (job_ctx_layer(c, "/data/augment/mix_group") == JOB_LAYER_DEFAULT && (part < 2 || part % 2))
        job_ctx_error(
            c, "/train/batch",
            "must give each slot an even number of images in a micro-batch, so that mixup and cutmix "
            "have a partner for each: it gives %lld; use a multiple of 2 x slots x accumulation, "
            "%lld",
            (long long)part, (long long)(2 * c->g->resources.slots * c->g->train.accumulation));
    else if (group < 2 || group % 2)
        job_ctx_error(c, "/data/augment/mix_group",
                      "must be even, so that each image has a partner: it is %lld, of %lld images per slot "
                      "and micro-batch",
                      (long long)group, (long long)part);
    else if (part % group)
        job_ctx_error(c, "/data/augment/mix_group",
                      "must divide the micro-batch of a slot: groups of %lld do not divide %lld images "
                      "(batch %lld over %lld slots in %lld micro-batches)",
                      (long long)group, (long long)part, (long long)c->g->train.batch,
                      (long long)c->g->resources.slots, (long long)c->g->train.accumulation);
}

/* BatchNorm normalises each channel over the images of a micro-batch, of all slots, and their patches. */
static void check_batch_norm(struct job_ctx *c)
{
    const struct job_train *t = &c->g->train;
    const int64_t images = t->accumulation > 0 ? t->batch / t->accumulation : 0,
                  patches = job_config_patches(c->g);

    if (!job_ctx_network(c)->channel_attention || !ok(c, "/model/arch", "/model/patch") ||
        !ok(c, "/data/image_size", "/data/dataset") || !ok(c, "/train/batch", "/train/accumulation"))
        return;
    if (images == 1 && patches == 1)
        job_ctx_refuse(c, "/train/batch",
                       "leaves one image of one patch in a micro-batch: the BatchNorm of a %s would subtract "
                       "each value from itself; raise train.batch to at least 2 x accumulation, %lld, or use "
                       "a smaller patch",
                       job_ctx_network(c)->name, (long long)(2 * t->accumulation));
}

static void check_teacher(struct job_ctx *c)
{
    const struct job_network *net = job_ctx_network(c);

    if (!ok(c, "/model/arch", "/train/teacher"))
        return;
    if (net->distils && !c->g->train.teacher.present)
        job_ctx_error(c, "/train/teacher",
                      "is needed by a %s, whose distillation head learns from the teacher only; without a "
                      "teacher use a vit with model.pool cls",
                      net->name);
    if (!net->distils && c->g->train.teacher.present)
        job_ctx_error(c, "/train/teacher", JOB_NO_DISTILLATION, net->name);
    if (net->distils && c->g->model.pool != JOB_POOL_CLS && ok(c, "/model/pool", NULL))
        job_ctx_error(c, "/model/pool", "must be cls: the heads of a %s read its two tokens", net->name);
}

static void check_train(struct job_ctx *c)
{
    const struct job_train *t = &c->g->train;
    const struct job_sched *s = &t->schedule;
    int64_t parts = c->g->resources.slots * t->accumulation;

    if (ok(c, "/train/batch", "/train/accumulation") && ok(c, "/resources/slots", NULL) && parts > 0 &&
        t->batch % parts != 0)
        job_ctx_error(c, "/train/batch", "must be a multiple of slots x accumulation, %lld",
                      (long long)parts);
    if (ok(c, "/train/schedule/warmup_steps", "/train/steps") && t->steps > 0 && s->warmup_steps > t->steps)
        job_ctx_error(c, "/train/schedule/warmup_steps", "must be at most the length, %lld steps",
                      (long long)t->steps);
    if (ok(c, "/train/schedule/warmup_epochs", "/train/epochs") && t->epochs > 0 &&
        s->warmup_epochs > (double)t->epochs)
        job_ctx_error(c, "/train/schedule/warmup_epochs", "must be at most the length, %lld epochs",
                      (long long)t->epochs);
    if (ok(c, "/train/seed", "/trials") && t->seed + (c->run->head.trials - 1) > (int64_t)JOB_MAX_SEED)
        job_ctx_error(c, "/train/seed", "seed + trials must stay below 2^53");
    for (size_t i = 1; i < s->milestones.count; i++) {
        if (s->milestones.items[i] <= s->milestones.items[i - 1]) {
            job_ctx_error(c, "/train/schedule/milestones", "must grow");
            break;
        }
    }
}

void job_rules_check(struct job_ctx *c)
{
    const enum job_kind kind = (enum job_kind)c->g->kind;

    if (!job_kind_info(kind)->ranks && c->g->resources.slots > 1)
        job_ctx_error(c, "/resources/slots", "must be 1: a job of kind %s runs on one device",
                      job_kind_info(kind)->name);
    if (job_kind_info(kind)->cpu && c->g->resources.device == JOB_DEVICE_CUDA)
        job_ctx_error(c, "/resources/device", "must be cpu or auto: a job of kind %s computes on the CPU",
                      job_kind_info(kind)->name);
    if (job_kind_has(kind, "model", 5)) {
        check_model(c);
        check_attention(c);
        check_split(c);
        check_data(c);
    }
    if (job_kind_listed(job_kind_info(kind)->takes, "train", 5)) {
        check_train(c);
        check_teacher(c);
        check_mixing(c);
        check_batch_norm(c);
        warn_schedule(c);
        warn_split(c);
    }
}
