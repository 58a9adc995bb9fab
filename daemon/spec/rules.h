/* daemon/spec/rules.h: what the table of fields refers to; not for other rooms. */
#pragma once

#include <jansson.h>

#include "daemon/spec/spec.h"

struct spec_ctx;
struct spec_field;

/* Defaults that depend on other values: a new reference, or NULL where there is none
 * (reported) or no memory is left (c->nomem). */
/* clang-format off */
#define SPEC_RULES(X) \
    X(null) X(required) X(arch) X(dataset) X(width) X(depth) X(heads) X(bias) X(image_size) X(patch) \
    X(pool) X(context) X(norm_kind) X(norm_eps) X(alpha) X(scale_share) X(scale_param) \
    X(n_for_scale) X(n) X(c0) X(qk_norm) X(path) X(split) X(split_train) X(split_val) \
    X(data_context) X(length) X(lr) X(betas) X(weight_decay) X(warmup_steps) X(warmup_epochs) \
    X(warmup_form) X(min_lr) X(clip) X(device) X(precision) X(init) X(eval_every) X(keep_best) \
    X(keep_latest) X(threads) X(tokenizer_path) X(loader_threads)
/* clang-format on */
#define SPEC_RULE_DECLARE(name) json_t *spec_rule_##name(struct spec_ctx *c);
SPEC_RULES(SPEC_RULE_DECLARE)
#undef SPEC_RULE_DECLARE

/* Whether a value can have an effect, and the words of the warning when it cannot:
 * "has no effect unless attention.activation is poly". */
#define SPEC_USES(X)                                                                                         \
    X(template, "without a template", false)                                                                 \
    X(swin, "unless model.arch is swin", g->model.arch == SPEC_ARCH_SWIN)                                    \
    X(xcit, "unless model.arch is xcit",                                                                     \
      g->model.arch == SPEC_ARCH_XCIT || g->model.arch == SPEC_ARCH_MASKRCNN)                                \
    X(nystrom, "unless model.arch is nystrom", g->model.arch == SPEC_ARCH_NYSTROM)                           \
    X(image, "unless the data are images", spec_dataset_info((enum spec_dataset)g->data.dataset)->image)     \
    X(text, "unless the data are text", spec_dataset_info((enum spec_dataset)g->data.dataset)->text)         \
    X(sequence, "unless the data are sequences",                                                             \
      !spec_dataset_info((enum spec_dataset)g->data.dataset)->image)                                         \
    X(poly, "unless attention.activation is poly", g->attention.activation == SPEC_ACTIVATION_POLY)          \
    X(k, "unless attention.activation is poly with scale k",                                                 \
      g->attention.activation == SPEC_ACTIVATION_POLY && g->attention.scale == SPEC_SCALE_K)                 \
    X(alpha, "unless attention.activation is sigmoid, sigmoid_bias or relu",                                 \
      g->attention.activation == SPEC_ACTIVATION_SIGMOID ||                                                  \
          g->attention.activation == SPEC_ACTIVATION_RELU ||                                                 \
          g->attention.activation == SPEC_ACTIVATION_SIGMOID_BIAS)                                           \
    X(learned, "unless attention.activation is poly with scale learned",                                     \
      g->attention.activation == SPEC_ACTIVATION_POLY && g->attention.scale == SPEC_SCALE_LEARNED)           \
    X(n, "unless attention.scale is fixed or learned",                                                       \
      g->attention.activation != SPEC_ACTIVATION_SOFTMAX &&                                                  \
          (g->attention.activation != SPEC_ACTIVATION_POLY || g->attention.scale == SPEC_SCALE_FIXED ||      \
           g->attention.scale == SPEC_SCALE_LEARNED))                                                        \
    X(qk_norm, "without attention.qk_norm", g->attention.qk_norm)                                            \
    X(logits, "with attention.qk_norm, which sets it to about 1", !g->attention.qk_norm)                     \
    X(input_norm, "unless norm.placement is S3, S4 or S5",                                                   \
      g->norm.placement >= SPEC_NORM_S3 && g->norm.placement <= SPEC_NORM_S5)                                \
    X(split, "with data.split.rule given", g->data.split != SPEC_SPLIT_GIVEN)                                \
    X(lra, "unless the data set is one of the Long Range Arena",                                             \
      g->data.dataset == SPEC_DATASET_LISTOPS || g->data.dataset == SPEC_DATASET_IMDB ||                     \
          g->data.dataset == SPEC_DATASET_AAN || g->data.dataset == SPEC_DATASET_LRA_IMAGE)                  \
    X(pad_crop, "unless data.augment.crop is pad_crop", g->data.augment.crop == SPEC_CROP_PAD_CROP)          \
    X(rrc, "unless data.augment.crop is rrc", g->data.augment.crop == SPEC_CROP_RRC)                         \
    X(bpe, "unless data.tokenizer is gpt2_bpe",                                                              \
      spec_dataset_info((enum spec_dataset)g->data.dataset)->text &&                                         \
          g->data.tokenizer == SPEC_TOKENIZER_GPT2_BPE)                                                      \
    X(mix, "without mixup or cutmix", g->data.augment.mixup > 0 || g->data.augment.cutmix > 0)               \
    X(adamw, "unless the optimizer is adamw", g->train.optimizer.name == SPEC_OPTIMIZER_ADAMW)               \
    X(momentum, "unless the optimizer is msgdw or msgd_l2",                                                  \
      g->train.optimizer.name == SPEC_OPTIMIZER_MSGDW || g->train.optimizer.name == SPEC_OPTIMIZER_MSGD_L2)  \
    X(min_lr, "with a schedule that is constant or falls in steps",                                          \
      g->train.schedule.name != SPEC_SCHEDULE_CONSTANT && g->train.schedule.name != SPEC_SCHEDULE_STEP)      \
    X(step, "unless the schedule is step", g->train.schedule.name == SPEC_SCHEDULE_STEP)                     \
    X(drop_path, "without drop_path", g->train.drop_path > 0)                                                \
    X(xavier, "unless train.init is xavier or trunc_xavier",                                                 \
      g->train.init == SPEC_INIT_XAVIER || g->train.init == SPEC_INIT_TRUNC_XAVIER)                          \
    X(ema, "without train.ema", g->train.ema > 0)                                                            \
    X(pinn, "unless model.arch is pinnsformer", g->model.arch == SPEC_ARCH_PINNSFORMER)                      \
    X(time_limit, "without resources.time_limit_s", g->resources.time_limit_s > 0)
#define SPEC_USE_DECLARE(name, text, test) bool spec_use_##name(const struct spec_config *g);
SPEC_USES(SPEC_USE_DECLARE)
#undef SPEC_USE_DECLARE

/* The words, for the table. */
extern const char spec_use_template_text[], spec_use_swin_text[], spec_use_xcit_text[],
    spec_use_nystrom_text[], spec_use_image_text[], spec_use_text_text[], spec_use_sequence_text[],
    spec_use_poly_text[], spec_use_k_text[], spec_use_alpha_text[], spec_use_learned_text[],
    spec_use_n_text[], spec_use_qk_norm_text[], spec_use_input_norm_text[], spec_use_logits_text[],
    spec_use_split_text[], spec_use_lra_text[], spec_use_pad_crop_text[], spec_use_rrc_text[],
    spec_use_bpe_text[], spec_use_mix_text[], spec_use_adamw_text[], spec_use_momentum_text[],
    spec_use_min_lr_text[], spec_use_step_text[], spec_use_drop_path_text[], spec_use_xavier_text[],
    spec_use_pinn_text[], spec_use_ema_text[], spec_use_time_limit_text[];

/* Checks of a string that only the field knows: report and return false. */
bool spec_check_template(struct spec_ctx *c, const struct spec_field *f, const char *text);
bool spec_check_recipe(struct spec_ctx *c, const struct spec_field *f, const char *text);
bool spec_check_preset(struct spec_ctx *c, const struct spec_field *f, const char *text);
bool spec_check_path(struct spec_ctx *c, const struct spec_field *f, const char *text);
