/* daemon/worker/model/spec.c: from the job document to the shape of a network, and that shape as metadata. */
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/arch/arch.h"
#include "kernels/formula/formula.h"
#include "daemon/job/job.h"
#include "kernels/base/buf.h"

static enum pd_err refuse(struct pd_why *why, const char *pointer, const char *what)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED, "#%s: %s is not available in this build", pointer, what);
}

/* What the document can say but these graphs cannot yet do. */
static enum pd_err check_supported(const struct job_config *c, struct pd_why *why)
{
    if (!model_arch_find(job_arch_name(c->model.arch)))
        return refuse(why, "/model/arch", "this network");
    if (c->train.precision == JOB_PRECISION_FP16)
        return refuse(why, "/train/precision", "fp16");
    return PD_OK;
}

/* Words that are a row of phi.h with an option. Any other word is the row of its name. */
static const struct {
    enum job_activation word;
    const char *row;
    bool l1_tokens, biased;
} variants[] = {{JOB_ACTIVATION_SIMA, "poly", .l1_tokens = true},
                {JOB_ACTIVATION_SIGMOID_BIAS, "sigmoid", .biased = true}};

/* The built-in that the document's formula is, with its numbers as pk_formula_builtin; NULL: none, or it shall not be
 * recognised. With learned scalars no built-in is recognised, and the text may need what they can be. */
static const char *recognise(const struct job_config *c, int *ret_degree, double *ret_constant,
                             double *ret_alpha)
{
    const struct job_attention *from = &c->attention;
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    const char *name = NULL;

    if (from->formula && from->recognise &&
        pk_formula_parse(from->formula, strlen(from->formula), PK_FORMULA_ACTIVATION, false, NULL, 0, &f,
                         &fault) == PD_OK)
        name = pk_formula_builtin(f, ret_degree, ret_constant, ret_alpha);
    pk_formula_free(f);
    return name;
}

double model_formula_power(const struct job_config *c)
{
    double constant, alpha;
    int degree;

    return c->attention.activation == JOB_ACTIVATION_FORMULA && recognise(c, &degree, &constant, &alpha)
               ? alpha
               : 0;
}

/* A formula, or the built-in that it is: then the name of that, else NULL. */
static enum pd_err take_formula(const struct job_config *c, struct model_attention *a,
                                const char **ret_builtin, struct pd_why *why)
{
    const struct job_attention *from = &c->attention;
    double constant, alpha;
    int degree;

    if (!from->formula)
        return pd_fail(why, PD_ERR_INVALID, "#/attention/formula: is required with the activation formula");
    *ret_builtin = recognise(c, &degree, &constant, &alpha);
    if (*ret_builtin) {
        a->degree = degree ? degree : 1;
        a->scale = MODEL_SCALE_K;
        a->scale_value = constant * pow(a->n_for_scale, -alpha);
        return PD_OK;
    }
    snprintf(a->formula.text, sizeof a->formula.text, "%s", from->formula);
    a->formula.scalars = (int32_t)from->params.count;
    for (size_t k = 0; k < from->params.count; k++) {
        struct model_scalar *to = &a->formula.scalar[k];
        const struct job_scalar *s = &from->params.items[k];

        snprintf(to->name, sizeof to->name, "%s", s->name);
        snprintf(to->init, sizeof to->init, "%s", s->init);
        to->share = (enum model_share)s->per;
        to->form = (enum model_scalar_form)s->form;
    }
    return PD_OK;
}

/* The activation and its factor, where N is known. */
static enum pd_err take_activation(const struct job_config *c, struct model_attention *a, struct pd_why *why)
{
    const char *row = job_activation_name(c->attention.activation);
    const bool counted = job_activation_counted(c->attention.activation);

    if (c->attention.activation == JOB_ACTIVATION_FORMULA) {
        enum pd_err err = take_formula(c, a, &row, why);

        if (err != PD_OK)
            return err;
        a->phi = pk_phi_find(!row                          ? "sigmoid"
                             : strcmp(row, "sigmoid_bias") ? row
                                                           : "sigmoid"); /* a row without sums */
        if (row && !strcmp(row, "sigmoid_bias"))
            a->logit_bias = log(1 / a->n_for_scale);
        return PD_OK;
    }
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        if (variants[i].word == (enum job_activation)c->attention.activation) {
            row = variants[i].row;
            a->l1_tokens = variants[i].l1_tokens;
            if (variants[i].biased)
                a->logit_bias = -log(a->n_for_scale);
        }
    a->phi = row ? pk_phi_find(row) : PK_PHIS;
    if (a->phi == PK_PHIS)
        return refuse(why, "/attention/activation", "this activation");
    if (pk_phi_power(a->phi) && !a->l1_tokens) {
        a->degree = (int32_t)c->attention.degree;
        a->scale = (enum model_scale)c->attention.scale;
        a->scale_value = c->attention.c0;
    } else if (counted) {
        a->scale = MODEL_SCALE_FIXED;
        a->scale_value = pow(a->n_for_scale, -c->attention.alpha);
    }
    /* N is each row's own: the number N is 1. */
    if (c->attention.n_for_scale == JOB_N_ROW && !pk_phi_normalised(a->phi)) {
        if (counted)
            a->row_power = c->attention.alpha;
        else if (a->scale == MODEL_SCALE_FIXED || a->scale == MODEL_SCALE_LEARNED)
            a->row_power = 0.5;
    }
    return PD_OK;
}

static enum pd_err attention_from_config(const struct job_config *c, struct model_attention *ret,
                                         struct pd_why *why)
{
    *ret = (struct model_attention){
        .degree = 1,
        .scale_value = 1,
        .n_for_scale = c->attention.n,
        .share = (enum model_share)c->attention.scale_share,
        .scale_param = (enum model_scale_param)c->attention.scale_param,
        .scale_lr_mult = c->attention.scale_lr_mult,
        .scale_decay = c->attention.scale_decay,
        .form = (enum pk_form)c->attention.form,
        .dropout = c->attention.dropout,
        .qk_norm = c->attention.qk_norm,
        .qk_per_head = c->attention.qk_norm && c->attention.qk_gain == JOB_QK_GAIN_PER_HEAD,
        .init_logit_std = isnan(c->attention.init_logit_std) ? -1 : c->attention.init_logit_std,
    };
    return take_activation(c, ret, why);
}

enum pd_err model_attention_of_keys(const struct job_config *c, double keys, bool softmax,
                                    struct model_attention *ret, struct pd_why *why)
{
    struct job_config own = *c;
    enum pd_err err;

    own.attention.n = keys;
    if (softmax)
        own.attention.activation = JOB_ACTIVATION_SOFTMAX;
    err = attention_from_config(&own, ret, why);
    if (err == PD_OK && pk_phi_power(ret->phi) &&
        (ret->scale == MODEL_SCALE_FIXED || ret->scale == MODEL_SCALE_LEARNED))
        ret->scale_value = 1 / sqrt(keys);
    return err;
}

/* What all networks have. */
static enum pd_err common_from_config(const struct job_config *c, struct model_spec *s, struct pd_why *why)
{
    int64_t mlp = job_config_mlp_width(c);

    if (c->model.width > INT32_MAX || c->model.depth > INT32_MAX || c->model.heads > INT32_MAX ||
        c->model.context > INT32_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "#/model: an extent exceeds 2^31");
    if (mlp < 1 || mlp > INT32_MAX)
        return pd_fail(why, PD_ERR_INVALID, "#/model/mlp_ratio: hidden width %lld is out of range",
                       (long long)mlp);
    s->width = (int32_t)c->model.width;
    s->depth = (int32_t)c->model.depth;
    s->heads = (int32_t)c->model.heads;
    s->mlp_width = (int32_t)mlp;
    s->bias = c->model.bias;
    s->gelu_tanh = c->model.gelu == JOB_GELU_TANH;
    s->mlp_relu = c->model.mlp_act == JOB_MLP_ACT_RELU;
    s->final_norm = c->norm.final;
    s->norm_kind = c->norm.kind == JOB_NORM_RMS ? PK_NORM_RMS : PK_NORM_LAYER;
    s->norm_eps_mode = c->norm.eps_mode == JOB_EPS_SUM ? PK_EPS_SUM : PK_EPS_MEAN;
    s->placement = (enum model_placement)c->norm.placement;
    s->pos_after = c->model.pos_after && model_has_input_norm(s);
    s->norm_eps = c->norm.eps;
    s->pos = c->model.pos == JOB_POS_LEARNED;
    s->dropout = c->train.dropout;
    s->drop_path = c->train.drop_path;
    s->drop_path_same = s->drop_path > 0 && c->train.drop_path_rule == JOB_DROP_PATH_SAME;
    s->init = (enum model_init)c->train.init;
    s->init_fused = c->train.init_fan == JOB_INIT_FAN_FUSED;
    s->dtype = c->train.precision == JOB_PRECISION_FP64 ? PK_F64 : PK_F32;
    s->mixed = c->train.precision == JOB_PRECISION_BF16;
    return attention_from_config(c, &s->attention, why);
}

enum data_equation model_equation(const struct job_config *c)
{
    switch (c->data.dataset) {
    case JOB_DATASET_PDE_CONVECTION:
        return DATA_EQUATION_CONVECTION;
    case JOB_DATASET_PDE_REACTION:
        return DATA_EQUATION_REACTION;
    case JOB_DATASET_PDE_WAVE:
        return DATA_EQUATION_WAVE;
    default:
        return DATA_EQUATION_NONE;
    }
}

static enum data_kind kind_of(const struct model_arch *arch)
{
    return arch->reads == MODEL_READS_TOKENS   ? DATA_TOKENS
           : arch->reads == MODEL_READS_POINTS ? DATA_POINTS
                                               : DATA_IMAGES;
}

void model_fit_data(const struct model_arch *arch, struct data_info *info)
{
    info->kind = kind_of(arch);
}

/* What the network reads, and how many classes there are. Images come as bytes, the graph normalises them. */
static void take_data(const struct data_info *data, struct model_spec *s)
{
    s->classes = data->classes;
    s->vocab = data->vocab;
    if (data->kind == DATA_POINTS) {
        s->equation = (int32_t)data->equation;
        s->coefficient = data->coefficient;
        s->step = data->step;
        s->context = data->context;
        memcpy(s->grid, data->grid, sizeof s->grid);
        memcpy(s->test_grid, data->test_grid, sizeof s->test_grid);
    }
    if (data->kind != DATA_IMAGES)
        return;
    s->channels = data->channels;
    s->image_h = data->height;
    s->image_w = data->width;
    s->pixels = MODEL_PIXELS_BYTES;
    for (size_t k = 0; k < sizeof data->mean / sizeof *data->mean; k++) { /* more channels have no data set */
        s->mean[k] = data->mean[k];
        s->std[k] = data->std[k];
    }
}

enum pd_err model_spec_from_config(const struct job_config *c, const struct data_info *data,
                                   struct model_spec *ret, struct pd_why *why)
{
    struct model_spec s = {0};
    enum pd_err err = check_supported(c, why);

    if (err != PD_OK)
        return err;
    s.arch = model_arch_find(job_arch_name(c->model.arch));
    if (kind_of(s.arch) != data->kind)
        return pd_fail(why, PD_ERR_INVALID, "#/data/dataset: a %s cannot read %s", s.arch->name,
                       data->kind == DATA_TOKENS   ? "text"
                       : data->kind == DATA_POINTS ? "points of an equation"
                                                   : "images");
    take_data(data, &s);
    err = common_from_config(c, &s, why);
    if (err == PD_OK && s.arch->from_config)
        err = s.arch->from_config(c, &s, why);
    if (err == PD_OK)
        err = model_spec_check(&s, why);
    if (err == PD_OK)
        *ret = s;
    return err;
}

_Static_assert((int)JOB_SCALE_LEARNED == (int)MODEL_SCALE_LEARNED && (int)JOB_SCALE_K == (int)MODEL_SCALE_K &&
                   (int)JOB_SCALE_FIXED == (int)MODEL_SCALE_FIXED,
               "the two enumerations go together");
_Static_assert((int)JOB_FORM_LINEAR == (int)PK_FORM_LINEAR &&
                   (int)JOB_FORM_QUADRATIC == (int)PK_FORM_QUADRATIC,
               "the two enumerations go together");
_Static_assert((int)JOB_NORM_S5 == (int)MODEL_S5 && (int)JOB_NORM_POST == (int)MODEL_POST,
               "the two enumerations go together");
_Static_assert((int)JOB_SCALE_SHARE_GLOBAL == (int)MODEL_SHARE_GLOBAL &&
                   (int)JOB_SCALE_PARAM_SOFTPLUS == (int)MODEL_PARAM_SOFTPLUS &&
                   (int)JOB_INIT_KAIMING == (int)MODEL_INIT_KAIMING &&
                   (int)JOB_PINV_GLOBAL_COLSUM == (int)MODEL_PINV_GLOBAL_COLSUM &&
                   (int)JOB_NYSTROM_APPLY_SEPARATE == (int)MODEL_APPLY_SEPARATE,
               "the two enumerations go together");

enum pd_err model_attention_check(const struct model_spec *s, const struct model_attention *a,
                                  struct pd_why *why)
{
    const bool causal = s->arch->causal;

    if (!(a->dropout >= 0 && a->dropout < 1))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/dropout: %g is not in [0, 1)", a->dropout);
    if (!(a->row_power >= 0) || !isfinite(a->row_power) ||
        (a->row_power > 0 && (!causal || pk_phi_normalised(a->phi))))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/attention/n_for_scale: row needs a causal model without softmax");
    if (a->l1_tokens && (causal || !pk_phi_power(a->phi) || a->degree != 1))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/activation: sima is linear and not causal");
    if (a->form == PK_FORM_LINEAR &&
        (!pk_phi_power(a->phi) || a->degree > 2 || a->logit_bias != 0 || a->dropout > 0))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/form: linear needs x^1 or x^2 without dropout");
    if (pk_phi_power(a->phi) && (a->degree < 1 || a->degree > 8))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/degree: must be 1 to 8");
    if (!isfinite(a->scale_value) ||
        (a->scale == MODEL_SCALE_LEARNED && a->scale_param != MODEL_PARAM_DIRECT && a->scale_value <= 0))
        return pd_fail(why, PD_ERR_INVALID, "#/attention/scale: %g is not a valid initial value",
                       a->scale_value);
    return PD_OK;
}

static enum pd_err check_precision(const struct model_spec *s, struct pd_why *why)
{
    if (s->dtype != PK_F32 && s->dtype != PK_F64)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "#/train/precision: parameters are f32 or f64");
    if (s->weights != PK_F32 &&
        (s->weights != PK_BF16 || s->dtype != PK_F32 || (!model_decodes(s) && !s->mixed)))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "bf16 weights require a language model of f32, or mixed precision");
    if (s->mixed && s->dtype != PK_F32)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/train/precision: mixed precision requires parameters of f32");
    return PD_OK;
}

enum pd_err model_spec_check(const struct model_spec *s, struct pd_why *why)
{
    enum pd_err err;

    if (!s->arch)
        return pd_fail(why, PD_ERR_INVALID, "#/model/arch: must be a network");
    if (s->width < 1 || s->width > 65536 || s->depth < 1 || s->depth > 1024 || s->mlp_width < 1 ||
        s->mlp_width > 1048576)
        return pd_fail(why, PD_ERR_INVALID, "#/model: width %d, depth %d or hidden width %d out of range",
                       s->width, s->depth, s->mlp_width);
    if (s->heads < 1 || s->width % s->heads)
        return pd_fail(why, PD_ERR_INVALID, "#/model/heads: %d does not divide the width %d", s->heads,
                       s->width);
    if (s->pixels != MODEL_PIXELS_READY && s->channels > MODEL_PIXEL_CHANNELS)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/data: images of %d channels cannot be normalised; at most %d are supported",
                       s->channels, MODEL_PIXEL_CHANNELS);
    if (!(s->norm_eps > 0))
        return pd_fail(why, PD_ERR_INVALID, "#/norm/eps: must be positive");
    if (!(s->dropout >= 0 && s->dropout < 1) || !(s->drop_path >= 0 && s->drop_path < 1))
        return pd_fail(why, PD_ERR_INVALID,
                       "#/train/dropout: dropout and drop_path must be in [0, 1), not %g and %g", s->dropout,
                       s->drop_path);
    err = s->arch->check(s, why);
    if (err == PD_OK)
        err = model_attention_check(s, &s->attention, why);
    return err == PD_OK ? check_precision(s, why) : err;
}

/* ---- metadata: one table, both ways ---- */

enum kind { INT, BOOL, NUM, WORD, ARCH, STAGES, TEXT, SCALARS };
static const struct {
    const char *key;
    enum kind kind;
    bool young; /* left out where it is 0, as in files from before it */
    size_t at;
    const char *words; /* of a WORD: the names of its values in the order of the enumeration */
} fields[] = {
/* clang-format off */
#define OLD(kind, name)        {"polyd.model." #name, kind, false, offsetof(struct model_spec, name), NULL}
#define NEW(kind, name)        {"polyd.model." #name, kind, true, offsetof(struct model_spec, name), NULL}
#define OLD_WORD(name, words)  {"polyd.model." #name, WORD, false, offsetof(struct model_spec, name), words}
#define NEW_WORD(name, words)  {"polyd.model." #name, WORD, true, offsetof(struct model_spec, name), words}
#define AT(kind, young, name, words)                                                                            \
    {"polyd.model." #name, kind, young, offsetof(struct model_spec, attention.name), words}
#define CLASS(kind, name, words)                                                                                \
    {"polyd.model.class." #name, kind, true, offsetof(struct model_spec, class_attention.name), words}
#define ROW(constant, name, kind, f, df) #name " "
    OLD(ARCH, arch),                       OLD(INT, width),              OLD(INT, depth),
    OLD(INT, heads),                       OLD(INT, mlp_width),          OLD(BOOL, gelu_tanh),
    OLD(BOOL, bias),                       OLD(BOOL, final_norm),        OLD(NUM, norm_eps),
    OLD(INT, channels),                    OLD(INT, image_h),            OLD(INT, image_w),
    OLD(INT, patch_h),                     OLD(INT, patch_w),            OLD(INT, classes),
    OLD_WORD(pool, "cls mean"),            OLD(INT, vocab),              OLD(INT, context),
    OLD(BOOL, pos),
    AT(WORD, false, phi, PK_EACH_PHI(ROW)),                             AT(INT, false, degree, NULL),
    AT(WORD, false, scale, "none fixed k learned"),                      AT(NUM, false, n_for_scale, NULL),
    AT(NUM, false, scale_value, NULL),     AT(NUM, false, logit_bias, NULL),
    AT(WORD, false, share, "layer head global"),
    AT(WORD, false, scale_param, "direct log softplus"),
    AT(NUM, false, scale_lr_mult, NULL),   AT(BOOL, false, scale_decay, NULL),
    OLD_WORD(init, "trunc_normal normal xavier trunc_xavier kaiming"),           OLD(BOOL, init_fused),
    AT(NUM, false, init_logit_std, NULL),  OLD_WORD(dtype, "f32 f64"),
    NEW(BOOL, mlp_relu),                   NEW_WORD(norm_kind, "layer rms"),
    NEW_WORD(norm_eps_mode, "mean sum"),   NEW_WORD(placement, "s1 s2 s3 s4 s5 post"),
    NEW(BOOL, pos_after),                  AT(BOOL, true, qk_norm, NULL), AT(BOOL, true, qk_per_head, NULL),
    NEW(NUM, dropout),                     NEW(NUM, drop_path),          NEW(BOOL, drop_path_same),
    AT(BOOL, true, l1_tokens, NULL),       AT(WORD, true, form, "auto quadratic linear"),
    AT(NUM, true, row_power, NULL),        AT(NUM, true, valid_power, NULL),
    NEW(STAGES, stage_depth),              NEW(STAGES, stage_heads),     NEW(INT, window),
    NEW_WORD(count, "spec window grid"),   NEW(NUM, count_power),
    {"polyd.model.attn_dropout", NUM, true, offsetof(struct model_spec, attention.dropout), NULL},
    NEW(INT, class_depth),                 NEW(NUM, layerscale),         NEW(BOOL, class_norm_alone),
    NEW(BOOL, decay_temperature),
    NEW_WORD(equation, "none " DATA_EQUATION_NAMES),                     NEW(INT, head_width),
    NEW(INT, grid[0]),                     NEW(INT, grid[1]),            NEW(INT, test_grid[0]),
    NEW(INT, test_grid[1]),                NEW(NUM, coefficient),        NEW(NUM, step),
    CLASS(WORD, phi, PK_EACH_PHI(ROW)),    CLASS(INT, degree, NULL),     CLASS(WORD, scale, "none fixed k learned"),
    CLASS(NUM, n_for_scale, NULL),         CLASS(NUM, scale_value, NULL), CLASS(NUM, logit_bias, NULL),
    CLASS(WORD, share, "layer head global"), CLASS(WORD, scale_param, "direct log softplus"),
    CLASS(NUM, scale_lr_mult, NULL),       CLASS(BOOL, scale_decay, NULL), CLASS(NUM, dropout, NULL),
    CLASS(NUM, init_logit_std, NULL),
    NEW(INT, landmarks),                   NEW(INT, conv_kernel),        NEW(INT, pinv_iterations),
    NEW_WORD(pinv_start, "matrix_abs global_abs global_colsum"),         NEW_WORD(apply, "all f1f3 separate"),
    NEW(BOOL, zero_pads),                  NEW(BOOL, pairs),
    {"polyd.model.formula", TEXT, true, offsetof(struct model_spec, attention.formula), NULL},
    {"polyd.model.formula_scalars", SCALARS, true, offsetof(struct model_spec, attention.formula), NULL},
#undef CLASS
#undef ROW
#undef OLD
#undef NEW
#undef OLD_WORD
#undef NEW_WORD
#undef AT
    /* clang-format on */
};
#define FIELDS (sizeof fields / sizeof fields[0])
_Static_assert(FIELDS <= MODEL_META_ITEMS, "room for the metadata");
_Static_assert(sizeof(enum model_pool) == sizeof(int32_t), "enumerations are read as INT");

#define VALUE_SIZE 64

/* Word number n of a list with blanks between; "" beyond its end. */
static void word_at(const char *words, int32_t n, char out[VALUE_SIZE])
{
    while (n-- > 0 && words)
        words = strchr(words, ' ') ? strchr(words, ' ') + 1 : NULL;
    snprintf(out, VALUE_SIZE, "%.*s", words ? (int)strcspn(words, " ") : 0, words ? words : "");
}

/* The number of a word, -1 if it is none of them. */
static int32_t word_find(const char *words, const char *text)
{
    char word[VALUE_SIZE];

    for (int32_t n = 0; word_at(words, n, word), word[0]; n++)
        if (!strcmp(word, text))
            return n;
    return -1;
}

/* "2 2 6 2"; "0" where there are none. Extents of a checked spec fit: eight of at most six digits. */
static void write_stages(const char *p, char to[VALUE_SIZE])
{
    size_t used = 0;
    int32_t n;

    snprintf(to, VALUE_SIZE, "0");
    for (size_t i = 0; i < MODEL_STAGES_MAX; i++) {
        memcpy(&n, p + i * sizeof n, sizeof n);
        if (n && used < VALUE_SIZE)
            used += (size_t)snprintf(to + used, VALUE_SIZE - used, "%s%d", i ? " " : "", n);
    }
}

static bool read_stages(char *p, const char *text)
{
    char *end;

    for (size_t i = 0; i < MODEL_STAGES_MAX && *text; i++, text = end + (*end == ' ')) {
        const long n = strtol(text, &end, 10);
        const int32_t value = (int32_t)n;

        if (end == text || (*end && *end != ' ') || n < 1 || n > 65536)
            return false;
        memcpy(p + i * sizeof value, &value, sizeof value);
    }
    return !*text;
}

/* "a head log 1/sqrt(n)", a line each. */
static const char scalar_shares[] = "layer head global", scalar_forms[] = "direct log softplus sigmoid";
#define LONG_SIZE (PK_FORMULA_TEXT + 1 + PK_FORMULA_PARAMS * (MODEL_SCALAR_INIT + PK_FORMULA_NAME + 32))

static void write_scalars(const struct model_formula *f, char *to)
{
    char share[VALUE_SIZE], form[VALUE_SIZE];
    size_t used = 0;

    *to = '\0';
    for (int32_t k = 0; k < f->scalars; k++) {
        word_at(scalar_shares, (int32_t)f->scalar[k].share, share);
        word_at(scalar_forms, (int32_t)f->scalar[k].form, form);
        used += (size_t)snprintf(to + used, LONG_SIZE - used, "%s%s %s %s %s", k ? "\n" : "",
                                 f->scalar[k].name, share, form, f->scalar[k].init);
    }
}

static bool read_scalars(struct model_formula *f, const char *text)
{
    for (f->scalars = 0; *text; text += *text == '\n') {
        const size_t line = strcspn(text, "\n");
        struct model_scalar *s = &f->scalar[f->scalars];
        char share[VALUE_SIZE], form[VALUE_SIZE];
        int at = 0, n_share, n_form;

        if (f->scalars == PK_FORMULA_PARAMS ||
            sscanf(text, "%31[a-zA-Z0-9_] %63[a-z] %63[a-z] %n", s->name, share, form, &at) != 3 || !at ||
            (size_t)at > line || line - (size_t)at >= sizeof s->init)
            return false;
        n_share = word_find(scalar_shares, share);
        n_form = word_find(scalar_forms, form);
        if (n_share < 0 || n_form < 0)
            return false;
        s->share = (enum model_share)n_share;
        s->form = (enum model_scalar_form)n_form;
        snprintf(s->init, sizeof s->init, "%.*s", (int)(line - (size_t)at), text + at);
        f->scalars++;
        text += line;
    }
    return true;
}

/* Whether the field's value may be longer than VALUE_SIZE. */
static bool is_long(size_t i)
{
    return fields[i].kind == TEXT || fields[i].kind == SCALARS;
}

/* to: VALUE_SIZE bytes, or LONG_SIZE */
static void write_field(const struct model_spec *s, size_t i, bool numbers, char *to)
{
    const char *p = (const char *)s + fields[i].at;
    int32_t n;
    double x;

    switch (fields[i].kind) {
    case TEXT:
        snprintf(to, LONG_SIZE, "%s", ((const struct model_formula *)p)->text);
        break;
    case SCALARS:
        write_scalars((const struct model_formula *)p, to);
        break;
    case INT:
    case WORD:
        memcpy(&n, p, sizeof n);
        if (fields[i].kind == WORD && !numbers)
            word_at(fields[i].words, n, to);
        else
            snprintf(to, VALUE_SIZE, "%d", n);
        break;
    case BOOL:
        snprintf(to, VALUE_SIZE, "%d", *(const bool *)p);
        break;
    case STAGES:
        write_stages(p, to);
        break;
    case NUM:
        memcpy(&x, p, sizeof x);
        snprintf(to, VALUE_SIZE, "%.17g", x);
        break;
    case ARCH:
        if (numbers)
            snprintf(to, VALUE_SIZE, "%d", s->arch->number);
        else
            snprintf(to, VALUE_SIZE, "%s", s->arch->name);
        break;
    }
}

static bool is_zero(const struct model_spec *s, size_t i)
{
    char text[LONG_SIZE];

    write_field(s, i, true, text);
    return is_long(i) ? !text[0] : !strcmp(text, "0");
}

enum pd_err model_spec_to_meta(const struct model_spec *spec, bool numbers, struct data_st_meta_item *items,
                               size_t *ret_count, char **ret_text, struct pd_why *why)
{
    char *text = malloc(FIELDS * VALUE_SIZE + 2 * LONG_SIZE), *at = text;
    size_t count = 0;

    if (!text)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for metadata");
    for (size_t i = 0; i < FIELDS; i++) {
        char *to = at;

        if (fields[i].young && is_zero(spec, i))
            continue;
        write_field(spec, i, numbers, to);
        at += is_long(i) ? LONG_SIZE : VALUE_SIZE;
        items[count++] = (struct data_st_meta_item){fields[i].key, to};
    }
    *ret_count = count;
    *ret_text = text;
    return PD_OK;
}

/* Files of before 2026-11 hold the numbers of words. */
static bool read_field(struct model_spec *s, size_t i, const char *text)
{
    char *p = (char *)s + fields[i].at, *end, word[VALUE_SIZE];
    const double x = strtod(text, &end);
    const bool number = end != text && !*end && isfinite(x);
    const bool whole = number && x == floor(x) && x >= 0 && x <= INT32_MAX;
    int32_t n = whole ? (int32_t)x : -1;

    switch (fields[i].kind) {
    case TEXT:
        if (strlen(text) > PK_FORMULA_TEXT)
            return false;
        snprintf(((struct model_formula *)p)->text, PK_FORMULA_TEXT + 1, "%s", text);
        return true;
    case SCALARS:
        return read_scalars((struct model_formula *)p, text);
    case ARCH:
        s->arch = whole ? model_arch_numbered(n) : model_arch_find(text);
        return s->arch;
    case WORD:
        if (!whole)
            n = word_find(fields[i].words, text);
        else if (word_at(fields[i].words, n, word), !word[0])
            n = -1;
        break;
    case BOOL:
        if (x != 0 && x != 1)
            return false;
        *(bool *)p = x != 0;
        return number;
    case NUM:
        memcpy(p, &x, sizeof x);
        return number;
    case STAGES:
        return read_stages(p, text);
    case INT:
        break;
    }
    memcpy(p, &n, sizeof n);
    return n >= 0;
}

enum pd_err model_spec_from_meta(const struct data_st *st, struct model_spec *ret, struct pd_why *why)
{
    struct model_spec s = {0};
    enum pd_err err;

    for (size_t i = 0; i < FIELDS; i++) {
        const char *text = data_st_meta(st, fields[i].key);

        if (!text && fields[i].young)
            continue;
        if (!text)
            return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint lacks '%s'", fields[i].key);
        if (!read_field(&s, i, text))
            return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint's '%s' has the invalid value '%.40s'",
                           fields[i].key, text);
    }
    err = model_spec_check(&s, why);
    if (err == PD_OK)
        *ret = s;
    return err;
}

/* One number for all channels, or one for each with commas between. False: not that. */
static bool meta_channels(const struct data_st *st, const char *key, float missing, int32_t channels,
                          float *ret)
{
    const char *text = data_st_meta(st, key);
    char *end;
    int32_t n = 0;

    for (int32_t c = 0; c < channels; c++)
        ret[c] = missing;
    if (!text)
        return true;
    do {
        if (n == channels)
            return false;
        ret[n] = strtof(text, &end);
        if (end == text || !isfinite(ret[n]))
            return false;
        n++;
        text = end + 1;
    } while (*end == ',');
    for (int32_t c = 1; n == 1 && c < channels; c++)
        ret[c] = ret[0];
    return *end == '\0' && (n == 1 || n == channels);
}

bool model_spec_normalisation(const struct data_st *st, struct model_spec *spec)
{
    bool good = !spec->channels || (meta_channels(st, "polyd.data.mean", 0, spec->channels, spec->mean) &&
                                    meta_channels(st, "polyd.data.std", 1, spec->channels, spec->std));

    for (int32_t c = 0; c < spec->channels; c++)
        good = good && spec->std[c] > 0;
    return good;
}

/* What training or evaluation alone reads, and the order of computing: two files that differ in it hold the same
 * function. */
static bool is_of_function(const char *key)
{
    static const char *const others[] = {"init",         "init_fused",   "init_logit_std",   "scale_lr_mult",
                                         "scale_decay",  "dropout",      "drop_path",        "drop_path_same",
                                         "attn_dropout", "form",         "grid[0]",          "grid[1]",
                                         "test_grid[0]", "test_grid[1]", "decay_temperature"};
    const char *name = strrchr(key, '.') + 1;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return false;
    return true;
}

const char *model_spec_differs(const struct model_spec *a, const struct model_spec *b)
{
    for (size_t i = 0; i < FIELDS; i++) {
        char x[LONG_SIZE], y[LONG_SIZE];

        write_field(a, i, false, x);
        write_field(b, i, false, y);
        if (is_of_function(fields[i].key) && strcmp(x, y) != 0)
            return fields[i].key;
    }
    return NULL;
}
