/* daemon/model/spec.c: from the job document to the shape of a network, and that shape as metadata. */
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/data/data.h"
#include "daemon/data/safetensors.h"
#include "daemon/model/net.h"
#include "daemon/spec/spec.h"
#include "kernels/base/buf.h"

static enum pd_err refuse(struct pd_why *why, const char *pointer, const char *what)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED, "#%s: %s is not available in this build", pointer, what);
}

/* What the document can say but these graphs cannot yet do. */
static enum pd_err check_supported(const struct spec_config *c, struct pd_why *why)
{
    if (c->model.arch != SPEC_ARCH_VIT && c->model.arch != SPEC_ARCH_GPT)
        return refuse(why, "/model/arch", "this architecture");
    if (c->model.pos == SPEC_POS_FOURIER)
        return refuse(why, "/model/pos", "fourier");
    if (c->attention.n_valid)
        return refuse(why, "/attention/n_valid", "counting valid tokens");
    if (c->train.precision == SPEC_PRECISION_FP16)
        return refuse(why, "/train/precision", "fp16");
    return PD_OK;
}

enum pd_err model_spec_from_config(const struct spec_config *c, const struct data_info *data,
                                   struct model_spec *ret, struct pd_why *why)
{
    struct model_spec s = {0};
    enum pd_err err = check_supported(c, why);
    int64_t mlp;

    if (err != PD_OK)
        return err;
    if (c->model.width > INT32_MAX || c->model.depth > INT32_MAX || c->model.heads > INT32_MAX ||
        c->model.context > INT32_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "#/model: an extent beyond 2^31");
    s.arch = c->model.arch == SPEC_ARCH_GPT ? MODEL_GPT : MODEL_VIT;
    if ((s.arch == MODEL_GPT) != (data->kind == DATA_TOKENS))
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: a %s cannot read %s",
                       s.arch == MODEL_GPT ? "gpt" : "vit", data->kind == DATA_TOKENS ? "text" : "images");
    s.width = (int32_t)c->model.width;
    s.depth = (int32_t)c->model.depth;
    s.heads = (int32_t)c->model.heads;
    mlp = spec_config_mlp_width(c);
    if (mlp < 1 || mlp > INT32_MAX)
        return pd_fail(why, PD_ERR_INVALID, "#/model/mlp_ratio: hidden width %lld", (long long)mlp);
    s.mlp_width = (int32_t)mlp;
    s.bias = c->model.bias;
    s.gelu_tanh = c->model.gelu == SPEC_GELU_TANH;
    s.mlp_relu = c->model.mlp_act == SPEC_MLP_ACT_RELU;
    s.final_norm = c->norm.final;
    s.norm_kind = c->norm.kind == SPEC_NORM_RMS ? PK_NORM_RMS : PK_NORM_LAYER;
    s.norm_eps_mode = c->norm.eps_mode == SPEC_EPS_SUM ? PK_EPS_SUM : PK_EPS_MEAN;
    s.placement = (enum model_placement)c->norm.placement;
    s.pos_after = c->model.pos_after && model_has_input_norm(&s);
    s.qk_norm = c->attention.qk_norm;
    s.qk_per_head = s.qk_norm && c->attention.qk_gain == SPEC_QK_GAIN_PER_HEAD;
    s.norm_eps = c->norm.eps;
    s.pos = c->model.pos == SPEC_POS_LEARNED;
    if (s.arch == MODEL_VIT) {
        s.channels = data->channels;
        s.image_h = data->height;
        s.image_w = data->width;
        s.classes = data->classes;
        if (c->data.image_size[0] &&
            (c->data.image_size[0] != s.image_h || c->data.image_size[1] != s.image_w))
            return pd_fail(
                why, PD_ERR_UNSUPPORTED,
                "#/data/image_size: the images are %d x %d; resizing is not available in this build",
                s.image_h, s.image_w);
        s.patch_h = (int32_t)c->model.patch[0];
        s.patch_w = (int32_t)c->model.patch[1];
        s.pool = c->model.pool == SPEC_POOL_CLS ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
    } else {
        s.vocab = data->vocab;
        s.context = (int32_t)c->model.context;
    }
    s.degree = 1;
    s.scale_value = 1;
    s.n_for_scale = c->attention.n;
    s.share = (enum model_share)c->attention.scale_share;
    s.scale_param = (enum model_scale_param)c->attention.scale_param;
    s.scale_lr_mult = c->attention.scale_lr_mult;
    s.scale_decay = c->attention.scale_decay;
    switch (c->attention.activation) {
    case SPEC_ACTIVATION_SOFTMAX:
        s.phi = PK_PHI_SOFTMAX;
        break;
    case SPEC_ACTIVATION_POLY:
        s.phi = PK_PHI_POLY;
        s.degree = (int32_t)c->attention.degree;
        s.scale = (enum model_scale)c->attention.scale;
        s.scale_value = c->attention.c0;
        break;
    case SPEC_ACTIVATION_SIMA:
        s.phi = PK_PHI_POLY;
        s.l1_tokens = true;
        break;
    case SPEC_ACTIVATION_TAYLOR:
        s.phi = PK_PHI_TAYLOR;
        break;
    case SPEC_ACTIVATION_PERIODIC:
        s.phi = PK_PHI_PERIODIC;
        break;
    default: /* sigmoid, sigmoid_bias, relu: N^-alpha */
        s.phi = c->attention.activation == SPEC_ACTIVATION_RELU ? PK_PHI_RELU : PK_PHI_SIGMOID;
        s.scale = MODEL_SCALE_FIXED;
        s.scale_value = pow(s.n_for_scale, -c->attention.alpha);
        if (c->attention.activation == SPEC_ACTIVATION_SIGMOID_BIAS)
            s.logit_bias = -log(s.n_for_scale);
        break;
    }
    if (c->attention.n_for_scale == SPEC_N_ROW &&
        !pk_phi_normalised(s.phi)) /* N is each row's own: the number N is 1 */
        s.row_power = s.phi != PK_PHI_POLY                                             ? c->attention.alpha
                      : s.scale == MODEL_SCALE_FIXED || s.scale == MODEL_SCALE_LEARNED ? 0.5
                                                                                       : 0;
    s.form = (enum pk_form)c->attention.form;
    s.attn_dropout = c->attention.dropout;
    s.dropout = c->train.dropout;
    s.drop_path = c->train.drop_path;
    s.drop_path_same = s.drop_path > 0 && c->train.drop_path_rule == SPEC_DROP_PATH_SAME;
    s.init = (enum model_init)c->train.init;
    s.init_fused = c->train.init_fan == SPEC_INIT_FAN_FUSED;
    s.init_logit_std = isnan(c->attention.init_logit_std) ? -1 : c->attention.init_logit_std;
    s.dtype = c->train.precision == SPEC_PRECISION_FP64 ? PK_F64 : PK_F32;
    s.mixed = c->train.precision == SPEC_PRECISION_BF16;
    err = model_spec_check(&s, why);
    if (err == PD_OK)
        *ret = s;
    return err;
}

_Static_assert((int)SPEC_SCALE_LEARNED == (int)MODEL_SCALE_LEARNED &&
                   (int)SPEC_SCALE_K == (int)MODEL_SCALE_K && (int)SPEC_SCALE_FIXED == (int)MODEL_SCALE_FIXED,
               "the two enumerations go together");
_Static_assert((int)SPEC_FORM_LINEAR == (int)PK_FORM_LINEAR &&
                   (int)SPEC_FORM_QUADRATIC == (int)PK_FORM_QUADRATIC,
               "the two enumerations go together");
_Static_assert((int)SPEC_NORM_S5 == (int)MODEL_S5 && (int)SPEC_NORM_POST == (int)MODEL_POST,
               "the two enumerations go together");
_Static_assert((int)SPEC_SCALE_SHARE_GLOBAL == (int)MODEL_SHARE_GLOBAL &&
                   (int)SPEC_SCALE_PARAM_SOFTPLUS == (int)MODEL_PARAM_SOFTPLUS &&
                   (int)SPEC_INIT_TRUNC_XAVIER == (int)MODEL_INIT_TRUNC_XAVIER,
               "the two enumerations go together");

enum pd_err model_spec_check(const struct model_spec *s, struct pd_why *why)
{
    if (s->width < 1 || s->width > 65536 || s->depth < 1 || s->depth > 1024 || s->mlp_width < 1 ||
        s->mlp_width > 1048576)
        return pd_fail(why, PD_ERR_INVALID, "#/model: width %d, depth %d or hidden width %d out of range",
                       s->width, s->depth, s->mlp_width);
    if (s->heads < 1 || s->width % s->heads)
        return pd_fail(why, PD_ERR_INVALID, "#/model/heads: %d does not divide the width %d", s->heads,
                       s->width);
    if (!(s->norm_eps > 0))
        return pd_fail(why, PD_ERR_INVALID, "#/norm/eps: must be positive");
    if (!(s->dropout >= 0 && s->dropout < 1) || !(s->drop_path >= 0 && s->drop_path < 1))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/train/dropout: this and /train/drop_path, %g and %g, are not in [0, 1)", s->dropout,
                       s->drop_path);
    if (!(s->attn_dropout >= 0 && s->attn_dropout < 1))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/dropout: %g is not in [0, 1)", s->attn_dropout);
    if (!(s->row_power >= 0) || !isfinite(s->row_power) ||
        (s->row_power > 0 && (s->arch != MODEL_GPT || pk_phi_normalised(s->phi))))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/n_for_scale: row needs a causal model without softmax");
    if (s->l1_tokens && (s->arch == MODEL_GPT || s->phi != PK_PHI_POLY || s->degree != 1))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/activation: sima is linear and not causal");
    if (s->form == PK_FORM_LINEAR &&
        (s->phi != PK_PHI_POLY || s->degree > 2 || s->logit_bias != 0 || s->attn_dropout > 0))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/form: linear needs x^1 or x^2 without dropout");
    if (s->arch == MODEL_VIT) {
        if (s->channels < 1 || s->image_h < 1 || s->image_w < 1 || s->channels > 64 || s->image_h > 4096 ||
            s->image_w > 4096 || s->classes < 1 || s->classes > 1000000)
            return pd_fail(why, PD_ERR_INVALID, "#/model: images of %d x %d x %d in %d classes", s->channels,
                           s->image_h, s->image_w, s->classes);
        if (s->patch_h < 1 || s->patch_w < 1 || s->image_h % s->patch_h || s->image_w % s->patch_w)
            return pd_fail(why, PD_ERR_INVALID, "#/model/patch: %d x %d does not divide %d x %d", s->patch_h,
                           s->patch_w, s->image_h, s->image_w);
    } else if (s->vocab < 1 || s->vocab > 10000000 || s->context < 1 || s->context > 1048576) {
        return pd_fail(why, PD_ERR_INVALID, "#/model/context: %d positions, %d symbols", s->context,
                       s->vocab);
    }
    if (s->phi == PK_PHI_POLY && (s->degree < 1 || s->degree > 8))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/degree: must be 1 to 8");
    if (!isfinite(s->scale_value) ||
        (s->scale == MODEL_SCALE_LEARNED && s->scale_param != MODEL_PARAM_DIRECT && s->scale_value <= 0))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/scale: %g is no start for it", s->scale_value);
    if (s->dtype != PK_F32 && s->dtype != PK_F64)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/train/precision: parameters are f32 or f64");
    if (s->weights != PK_F32 &&
        (s->weights != PK_BF16 || s->dtype != PK_F32 || (s->arch != MODEL_GPT && !s->mixed)))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "weights of bf16 are for language models of f32, or for mixed precision");
    if (s->mixed && s->dtype != PK_F32)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/train/precision: mixed precision is for parameters of f32");
    return PD_OK;
}

/* ---- metadata: one table, both ways ---- */

enum kind { INT, BOOL, NUM };
static const struct {
    const char *key;
    enum kind kind;
    size_t at;
    bool young; /* left out where it is 0, as in files from before it */
} fields[] = {
/* clang-format off */
#define F(name, kind) {"polyd.model." #name, kind, offsetof(struct model_spec, name), false}
#define Y(name, kind) {"polyd.model." #name, kind, offsetof(struct model_spec, name), true}
    F(arch, INT),          F(width, INT),       F(depth, INT),         F(heads, INT),
    F(mlp_width, INT),     F(gelu_tanh, BOOL),  F(bias, BOOL),         F(final_norm, BOOL),
    F(norm_eps, NUM),      F(channels, INT),    F(image_h, INT),       F(image_w, INT),
    F(patch_h, INT),       F(patch_w, INT),     F(classes, INT),       F(pool, INT),
    F(vocab, INT),         F(context, INT),     F(pos, BOOL),          F(phi, INT),
    F(degree, INT),        F(scale, INT),       F(n_for_scale, NUM),   F(scale_value, NUM),
    F(logit_bias, NUM),    F(share, INT),       F(scale_param, INT),   F(scale_lr_mult, NUM),
    F(scale_decay, BOOL),  F(init, INT),        F(init_fused, BOOL),   F(init_logit_std, NUM),
    F(dtype, INT),
    Y(mlp_relu, BOOL),     Y(norm_kind, INT),   Y(norm_eps_mode, INT), Y(placement, INT),
    Y(pos_after, BOOL),    Y(qk_norm, BOOL),    Y(qk_per_head, BOOL),  Y(dropout, NUM),
    Y(drop_path, NUM),     Y(drop_path_same, BOOL), Y(l1_tokens, BOOL), Y(form, INT), Y(row_power, NUM),
    Y(attn_dropout, NUM),
#undef F
#undef Y
    /* clang-format on */
};
#define FIELDS (sizeof fields / sizeof fields[0])
_Static_assert(FIELDS <= MODEL_META_ITEMS, "room for the metadata");
_Static_assert(sizeof(enum model_arch) == sizeof(int32_t), "enumerations are read as INT");

enum pd_err model_spec_to_meta(const struct model_spec *spec, struct data_st_meta_item *items,
                               size_t *ret_count, char **ret_text, struct pd_why *why)
{
    char *text = malloc(FIELDS * 32);
    size_t count = 0;

    if (!text)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for metadata");
    for (size_t i = 0; i < FIELDS; i++) {
        const char *p = (const char *)spec + fields[i].at;
        char *to = text + 32 * i;
        int32_t n;
        double x;

        if (fields[i].kind == INT) {
            memcpy(&n, p, sizeof n);
            snprintf(to, 32, "%d", n);
        } else if (fields[i].kind == BOOL) {
            snprintf(to, 32, "%d", *(const bool *)p);
        } else {
            memcpy(&x, p, sizeof x);
            snprintf(to, 32, "%.17g", x);
        }
        if (!fields[i].young || strcmp(to, "0"))
            items[count++] = (struct data_st_meta_item){fields[i].key, to};
    }
    *ret_count = count;
    *ret_text = text;
    return PD_OK;
}

enum pd_err model_spec_from_meta(const struct data_st *st, struct model_spec *ret, struct pd_why *why)
{
    static const struct {
        const char *key;
        long top;
    } tops[] = {{"polyd.model.arch", MODEL_GPT},
                {"polyd.model.pool", MODEL_POOL_MEAN},
                {"polyd.model.phi", PK_PHI_COUNT - 1},
                {"polyd.model.form", PK_FORM_LINEAR},
                {"polyd.model.scale", MODEL_SCALE_LEARNED},
                {"polyd.model.share", MODEL_SHARE_GLOBAL},
                {"polyd.model.scale_param", MODEL_PARAM_SOFTPLUS},
                {"polyd.model.init", MODEL_INIT_TRUNC_XAVIER},
                {"polyd.model.norm_kind", PK_NORM_RMS},
                {"polyd.model.norm_eps_mode", PK_EPS_SUM},
                {"polyd.model.placement", MODEL_POST}};
    struct model_spec s = {0};
    enum pd_err err;

    for (size_t i = 0; i < FIELDS; i++) {
        const char *text = data_st_meta(st, fields[i].key);
        char *p = (char *)&s + fields[i].at, *end;
        double x;

        if (!text && fields[i].young)
            continue;
        if (!text)
            return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint does not say '%s'", fields[i].key);
        x = strtod(text, &end);
        if (end == text || *end || !isfinite(x) ||
            (fields[i].kind == INT && (x != floor(x) || x < 0 || x > INT32_MAX)) ||
            (fields[i].kind == BOOL && x != 0 && x != 1))
            return pd_fail(why, PD_ERR_CORRUPT, "'%s' is '%.40s'", fields[i].key, text);
        if (fields[i].kind == INT) {
            int32_t n = (int32_t)x;

            for (size_t k = 0; k < sizeof tops / sizeof tops[0]; k++)
                if (!strcmp(tops[k].key, fields[i].key) && n > tops[k].top)
                    return pd_fail(why, PD_ERR_CORRUPT, "'%s' is '%.40s'", fields[i].key, text);
            memcpy(p, &n, sizeof n);
        } else if (fields[i].kind == BOOL) {
            *(bool *)p = x != 0;
        } else {
            memcpy(p, &x, sizeof x);
        }
    }
    err = model_spec_check(&s, why);
    if (err == PD_OK)
        *ret = s;
    return err;
}
