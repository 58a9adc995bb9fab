/* daemon/job/rules.h: what the table of fields refers to; private to this module. */
#pragma once

#include <jansson.h>

#include "daemon/job/job.h"

struct job_ctx;
struct job_field;
struct job_run;

/* Defaults that depend on other values: a new reference, or NULL where there is none
 * (reported) or no memory is left (c->nomem). */
/* clang-format off */
#define JOB_RULES(X) \
    X(null) X(required) X(arch) X(dataset) X(width) X(depth) X(heads) X(bias) X(gelu) X(gelu_1) X(image_size) X(patch) \
    X(pool) X(pos) X(context) X(norm_kind) X(norm_eps) X(alpha) X(scale_share) X(scale_param) \
    X(n_for_scale) X(n) X(c0) X(qk_norm) X(path) X(split) X(split_train) X(split_val) \
    X(data_context) X(length) X(lr) X(betas) X(weight_decay) X(warmup_steps) X(warmup_epochs) \
    X(warmup_form) X(min_lr) X(clip) X(device) X(precision) X(init) X(eval_every) X(keep_best) \
    X(keep_latest) X(threads) X(tokenizer_path) X(loader_threads) X(head_width) X(coefficient) X(batch) X(schedule) X(start) X(teacher) X(mix_group) \
    X(zero_is_padding) X(contour) X(mode)
/* clang-format on */
#define JOB_RULE_DECLARE(name) json_t *job_rule_##name(struct job_ctx *c);
JOB_RULES(JOB_RULE_DECLARE)
#undef JOB_RULE_DECLARE

/* Whether a value can have an effect, and the words of the warning when it cannot:
 * "has no effect unless attention.activation is poly". A test may look at rows below its own, because
 * warnings come once every row is resolved; only a row that refuses values (available, JOB_F_ONLY) must not.
 */
#define JOB_USES(X)                                                                                          \
    X(template, "without a template", false)                                                                 \
    X(swin, "unless model.arch is swin", job_network(g->model.arch)->windows)                                \
    X(pos,                                                                                                   \
      "with model.arch swin, whose windows have a learned bias, or pinnsformer, which reads coordinates",    \
      !job_network(g->model.arch)->windows && !equations(g))                                                 \
    X(xcit, "unless model.arch is xcit", job_network(g->model.arch)->channel_attention)                      \
    X(nystrom, "unless model.arch is nystrom", job_network(g->model.arch)->landmarks)                        \
    X(zero, "unless model.arch is nystrom; nor with pairs of texts, whose token 0 is always padding",        \
      job_network(g->model.arch)->landmarks && !info->pairs)                                                 \
    X(image, "unless the data are images", info->image)                                                      \
    X(pool, "unless the data are images or model.arch is nystrom",                                           \
      info->image || job_network(g->model.arch)->landmarks)                                                  \
    X(text, "unless the data are text", info->text && !info->symbols)                                        \
    X(listops, "unless data.dataset is listops_gen", g->data.dataset == JOB_DATASET_LISTOPS_GEN)             \
    X(pathfinder, "unless data.dataset is pathfinder_gen", g->data.dataset == JOB_DATASET_PATHFINDER_GEN)    \
    X(sequence, "unless the data are sequences", !info->image)                                               \
    X(files, "because polyd generates these data", !info->generated)                                         \
    X(mlp_act, "with model.arch pinnsformer, whose activation is w1 sin + w2 cos everywhere", !equations(g)) \
    X(gelu, "unless model.mlp_act is gelu; nor with model.arch pinnsformer",                                 \
      job_digest_gelu(r) && !equations(g))                                                                   \
    X(blocks, "with model.arch pinnsformer, which has no blocks with rates of their own", !equations(g))     \
    X(norms, "with model.arch pinnsformer, which has no norms", !equations(g))                               \
    X(poly, "unless attention.activation is poly", poly(g))                                                  \
    X(formula, "unless attention.activation is formula", formula(g))                                         \
    X(k, "unless attention.activation is poly with scale k", poly(g) && g->attention.scale == JOB_SCALE_K)   \
    X(alpha, "unless attention.activation is sigmoid, sigmoid_bias or relu", counted(g))                     \
    X(learned, "unless attention.activation is poly with scale learned", learned(g))                         \
    X(scale_lr, "unless attention.activation is poly with scale learned, or a formula with learned scalars", \
      learned(g) || formula(g))                                                                              \
    X(share, "unless attention.activation is poly with scale learned, in more than one layer or head",       \
      learned(g) && (g->model.depth > 1 || g->model.heads > 1 || equations(g)))                              \
    X(scale_decay,                                                                                           \
      "unless attention.activation is poly with scale learned, or a formula, and weights decay",             \
      (learned(g) || formula(g)) && g->train.optimizer.weight_decay > 0)                                     \
    X(n,                                                                                                     \
      "unless attention.activation is poly with scale fixed or learned, sigmoid or relu with an alpha "      \
      "above 0, sigmoid_bias, or a formula",                                                                 \
      uses_n(g))                                                                                             \
    X(n_valid, "unless model.arch is nystrom and attention.activation poly with scale fixed or learned",     \
      job_network(g->model.arch)->landmarks &&poly(g) && uses_n(g))                                          \
    X(qk_gain, "unless attention.qk_norm is on, with more than one head",                                    \
      job_config_heads_most(g) > 1 && g->attention.qk_norm)                                                  \
    X(form, "unless attention.activation is poly with a degree of 1 or 2, or sima, without dropout",         \
      has_linear_form(g))                                                                                    \
    X(logits, "with attention.qk_norm, which sets it to about 1", !g->attention.qk_norm)                     \
    X(pos_after,                                                                                             \
      "unless norm.placement is S3, S4 or S5 and model.pos is not none; nor with model.arch swin",           \
      job_digest_pos_after(r) && !job_network(g->model.arch)->windows)                                       \
    X(split_rule, "with an equation, whose points are not divided", !equations(g))                           \
    X(split, "with data.split.rule given or an equation", job_digest_split(r) && !equations(g))              \
    X(split_test, "unless data.split.rule is standard; nor with an equation",                                \
      job_digest_split_test(r) && !equations(g))                                                             \
    X(split_seed, "unless images or labelled texts are divided, or polyd draws the data",                    \
      (info->generated && !equations(g)) ||                                                                  \
          ((info->image || info->labels) && g->data.split != JOB_SPLIT_GIVEN))                               \
    X(lra,                                                                                                   \
      "unless the data set is one of the Long Range Arena, and the network a nystrom or data.context above " \
      "the limit of reference",                                                                              \
      info->lra[0] > 0 && (job_network(g->model.arch)->landmarks || may_cut(g, info)))                       \
    X(pad_crop, "unless data.augment.crop of images is pad_crop",                                            \
      info->image && g->data.augment.crop == JOB_CROP_PAD_CROP)                                              \
    X(rrc, "unless data.augment.crop of images is rrc", info->image && g->data.augment.crop == JOB_CROP_RRC) \
    X(resized, "unless images change their size or RandAugment moves their pixels",                          \
      may_resample(g, info) && info->image)                                                                  \
    X(bpe, "unless data.tokenizer is gpt2_bpe", info->text && g->data.tokenizer == JOB_TOKENIZER_GPT2_BPE)   \
    X(mix, "without mixup or cutmix",                                                                        \
      info->image && (g->data.augment.mixup > 0 || g->data.augment.cutmix > 0))                              \
    X(switch, "unless both mixup and cutmix are on",                                                         \
      info->image && g->data.augment.mixup > 0 && g->data.augment.cutmix > 0)                                \
    X(slots, "with one slot", g->resources.slots > 1)                                                        \
    X(adamw, "unless the optimizer is adamw", job_optimiser(g->train.optimizer.name)->betas)                 \
    X(momentum, "unless the optimizer is msgdw or msgd_l2", with_momentum(g))                                \
    X(dampening, "unless the optimizer is msgdw or msgd_l2; nor with nesterov and a momentum of 0",          \
      with_momentum(g) && (g->train.optimizer.momentum > 0 || !g->train.optimizer.nesterov))                 \
    X(nesterov, "unless the optimizer is msgdw or msgd_l2, with a momentum or dampening above 0",            \
      with_momentum(g) && (g->train.optimizer.momentum > 0 || g->train.optimizer.dampening > 0))             \
    X(falls, "without train.schedule.milestones: the rate does not fall",                                    \
      g->train.schedule.name != JOB_SCHEDULE_STEP || g->train.schedule.milestones.count > 0)                 \
    X(warmup, "without a warm-up", warmup(g))                                                                \
    X(warmup_lr, "unless a warm-up has the form timm: nanogpt starts at lr/(w+1)",                           \
      warmup(g) && (one_cycle(g) || g->train.schedule.warmup_form == JOB_WARMUP_TIMM))                       \
    X(warmup_form, "without a warm-up, or with one_cycle", warmup(g) && !one_cycle(g))                       \
    X(beta1, "unless the schedule is one_cycle and the optimizer adamw",                                     \
      one_cycle(g) && job_optimiser(g->train.optimizer.name)->betas)                                         \
    X(min_lr, "with a schedule that is constant or has no milestones",                                       \
      g->train.schedule.name != JOB_SCHEDULE_CONSTANT && job_use_falls(r))                                   \
    X(shifted, "unless there is a warm-up and the rate falls at each step; nor with one_cycle",              \
      warmup(g) && smooth(g) && !one_cycle(g))                                                               \
    X(per, "unless there is a warm-up or the rate falls at each step", warmup(g) || smooth(g))               \
    X(step, "unless the schedule is step", g->train.schedule.name == JOB_SCHEDULE_STEP)                      \
    X(factor, "unless the schedule is step with milestones",                                                 \
      g->train.schedule.name == JOB_SCHEDULE_STEP && g->train.schedule.milestones.count > 0)                 \
    X(depth, "in one layer, unless train.drop_path_rule is same",                                            \
      g->model.depth > 1 || g->train.drop_path_rule == JOB_DROP_PATH_SAME)                                   \
    X(drop_path, "without drop_path", g->train.drop_path > 0)                                                \
    X(fan,                                                                                                   \
      "unless train.init is xavier or trunc_xavier; nor with model.arch nystrom, whose W_Q, W_K and W_V "    \
      "are apart",                                                                                           \
      job_digest_fan(r) && !job_network(g->model.arch)->landmarks)                                           \
    X(stop, "without train.stop.patience", g->train.stop.patience > 0)                                       \
    X(ema, "without train.ema", g->train.ema > 0)                                                            \
    X(tau, "unless train.teacher.kind is soft",                                                              \
      g->train.teacher.present && g->train.teacher.kind == JOB_TEACHER_SOFT)                                 \
    X(pinn, "unless model.arch is pinnsformer", equations(g))                                                \
    X(probe, "with diagnostics.every 0 and without heatmaps",                                                \
      g->diagnostics.every > 0 || g->diagnostics.heatmaps.present)                                           \
    X(class_token, "unless images are read with model.pool cls, and diagnostics.every is not 0",             \
      info->image && g->model.pool == JOB_POOL_CLS && g->diagnostics.every > 0)                              \
    X(cpu, "unless resources.device is cpu", g->resources.device == JOB_DEVICE_CPU)                          \
    X(time_limit, "without resources.time_limit_s", g->resources.time_limit_s > 0)                           \
    X(drawn, "unless sweep.method is random or asha", r->head.method != JOB_METHOD_GRID)                     \
    X(asha, "unless sweep.method is asha", r->head.method == JOB_METHOD_ASHA)
#define JOB_USE_DECLARE(name, text, test)                                                                    \
    bool job_use_##name(const struct job_run *r);                                                            \
    extern const char job_use_##name##_text[];
JOB_USES(JOB_USE_DECLARE)
#undef JOB_USE_DECLARE

/* Tests for the trajectory digest (struct job_field, in_digest and in_earlier): what a row's own test was before it excluded
 * more, or less. */
#define JOB_DIGESTS(X)                                                                                       \
    X(always, true)                                                                                          \
    X(gelu, g->model.mlp_act == JOB_MLP_ACT_GELU)                                                            \
    X(pos, !job_network(g->model.arch)->windows)                                                             \
    X(pos_after,                                                                                             \
      g->norm.placement >= JOB_NORM_S3 && g->norm.placement <= JOB_NORM_S5 && g->model.pos != JOB_POS_NONE)  \
    X(split, g->data.split != JOB_SPLIT_GIVEN)                                                               \
    X(split_test, g->data.split == JOB_SPLIT_STANDARD)                                                       \
    X(split_seed, info->generated || ((info->image || info->labels) && g->data.split != JOB_SPLIT_GIVEN))    \
    X(fan, g->train.init == JOB_INIT_XAVIER || g->train.init == JOB_INIT_TRUNC_XAVIER)                       \
    X(qk_gain, g->attention.qk_norm && g->model.heads > 1)                                                   \
    X(lra, info->lra[0] > 0 && job_network(g->model.arch)->landmarks)                                        \
    X(resized, may_resize(g, info) && info->image)
#define JOB_DIGEST_DECLARE(name, test) bool job_digest_##name(const struct job_run *r);
JOB_DIGESTS(JOB_DIGEST_DECLARE)
#undef JOB_DIGEST_DECLARE

/* Checks of a string that only the field knows: report and return false. */
bool job_check_template(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_recipe(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_preset(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_run(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_in_state(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_path(struct job_ctx *c, const struct job_field *f, const char *text);
bool job_check_stop_metric(struct job_ctx *c, const struct job_field *f, const char *text);

/* Checks of several fields that networks of stages have: report. */
void job_check_stages(struct job_ctx *c);
/* Of a network that attends between channels; channels.c. */
void job_check_channels(struct job_ctx *c);
/* Of a network that solves a differential equation; equations.c. */
void job_check_equations(struct job_ctx *c);
/* Of one that attends through landmarks; landmarks.c. */
void job_check_landmarks(struct job_ctx *c);
