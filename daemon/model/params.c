/* daemon/model/params.c: the table of parameters, their start values, and reading them from files.
 *
 * The order of the table is the order of the network, and of everything that is kept per parameter. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/data/philox.h"
#include "daemon/data/safetensors.h"
#include "daemon/model/net.h"

static void add(struct model *m, enum model_role role, struct pk_shape shape, int64_t fan_in, const char *fmt,
                ...) PD_PRINTF(5, 6);
static void add(struct model *m, enum model_role role, struct pk_shape shape, int64_t fan_in, const char *fmt,
                ...)
{
    struct model_param *p = &m->param[m->count];
    va_list args;

    assert(m->count < m->size);
    m->count++;
    va_start(args, fmt);
    vsnprintf(p->name, sizeof p->name, fmt, args);
    va_end(args);
    p->role = role;
    p->shape = shape;
    p->fan_in = fan_in;
    p->transposed = m->spec.arch == MODEL_VIT;
    p->lr_mult = 1;
    /* timm: no decay for rank <= 1, cls_token, pos_embed; nanoGPT: decay for rank >= 2, embeddings too. */
    p->decay = shape.rank >= 2 &&
               (m->spec.arch == MODEL_GPT || (role != MODEL_ROLE_CLS && role != MODEL_ROLE_EMBED));
    if (role == MODEL_ROLE_GAIN)
        p->decay = false; /* those of QKNorm may be a matrix */
    if (role == MODEL_ROLE_SCALE) {
        p->lr_mult = m->spec.scale_lr_mult;
        p->decay = m->spec.scale_decay;
    }
}

static void add_norm(struct model *m, const char *name)
{
    int64_t d = m->spec.width;

    add(m, MODEL_ROLE_GAIN, PK_SHAPE(d), 0, "%s.weight", name);
    if (m->spec.bias && m->spec.norm_kind == PK_NORM_LAYER)
        add(m, MODEL_ROLE_BIAS, PK_SHAPE(d), 0, "%s.bias", name);
}

static void add_linear(struct model *m, enum model_role role, const char *name, int64_t in, int64_t out)
{
    struct pk_shape shape = m->spec.arch == MODEL_VIT ? PK_SHAPE(out, in) : PK_SHAPE(in, out);

    add(m, role, shape, in, "%s.weight", name);
    if (m->spec.bias)
        add(m, MODEL_ROLE_BIAS, PK_SHAPE(out), in, "%s.bias", name);
}

const char *model_scale_name(const struct model_spec *s)
{
    return s->scale_param == MODEL_PARAM_DIRECT ? "attn_scale" : "attn_scale_rho";
}

bool model_has_input_norm(const struct model_spec *s)
{
    return s->placement >= MODEL_S3 && s->placement <= MODEL_S5;
}

bool model_has_mid_norm(const struct model_spec *s)
{
    return s->placement == MODEL_S4 || s->placement == MODEL_S5;
}

static void add_qk_norm(struct model *m, const char *attention)
{
    static const char *const which[] = {"q_norm", "k_norm"};
    int64_t heads = m->spec.heads, d = m->spec.width / heads;

    for (int i = 0; i < 2; i++)
        add(m, MODEL_ROLE_GAIN, m->spec.qk_per_head ? PK_SHAPE(heads, d) : PK_SHAPE(d), 0, "%s.%s.weight",
            attention, which[i]);
}

static void add_blocks(struct model *m)
{
    const struct model_spec *s = &m->spec;
    bool vit = s->arch == MODEL_VIT;
    int64_t d = s->width, hidden = s->mlp_width;
    char name[64];

#define NAMED(timm, hf)                                                                                      \
    (snprintf(name, sizeof name, vit ? "blocks.%d." timm : "transformer.h.%d." hf, i), name)
    for (int i = 0; i < s->depth; i++) {
        add_norm(m, NAMED("norm1", "ln_1"));
        add_linear(m, MODEL_ROLE_QKV, NAMED("attn.qkv", "attn.c_attn"), d, 3 * d);
        if (s->qk_norm)
            add_qk_norm(m, NAMED("attn", "attn"));
        if (s->scale == MODEL_SCALE_LEARNED && s->share != MODEL_SHARE_GLOBAL)
            add(m, MODEL_ROLE_SCALE, PK_SHAPE(s->share == MODEL_SHARE_HEAD ? s->heads : 1), 0, "%s.%s",
                NAMED("attn", "attn"), model_scale_name(s));
        add_linear(m, MODEL_ROLE_RESIDUAL, NAMED("attn.proj", "attn.c_proj"), d, d);
        if (model_has_mid_norm(s))
            add_norm(m, NAMED("mid1", "mid_1"));
        if (s->placement != MODEL_S5)
            add_norm(m, NAMED("norm2", "ln_2"));
        add_linear(m, MODEL_ROLE_LINEAR, NAMED("mlp.fc1", "mlp.c_fc"), d, hidden);
        add_linear(m, MODEL_ROLE_RESIDUAL, NAMED("mlp.fc2", "mlp.c_proj"), hidden, d);
        if (model_has_mid_norm(s))
            add_norm(m, NAMED("mid2", "mid_2"));
    }
#undef NAMED
}

static void add_all(struct model *m)
{
    const struct model_spec *s = &m->spec;
    int64_t d = s->width;

    if (s->arch == MODEL_VIT) {
        int64_t fan = (int64_t)s->channels * s->patch_h * s->patch_w;
        bool cls = s->pool == MODEL_POOL_CLS;

        if (cls)
            add(m, MODEL_ROLE_CLS, PK_SHAPE(1, 1, d), 0, "cls_token");
        if (s->pos)
            add(m, MODEL_ROLE_EMBED, PK_SHAPE(1, model_patches(s) + cls, d), 0, "pos_embed");
        add(m, MODEL_ROLE_CONV, PK_SHAPE(d, s->channels, s->patch_h, s->patch_w), fan,
            "patch_embed.proj.weight");
        if (s->bias)
            add(m, MODEL_ROLE_CONV, PK_SHAPE(d), fan, "patch_embed.proj.bias");
    } else {
        add(m, MODEL_ROLE_EMBED, PK_SHAPE(s->vocab, d), 0, "transformer.wte.weight");
        if (s->pos)
            add(m, MODEL_ROLE_EMBED, PK_SHAPE(s->context, d), 0, "transformer.wpe.weight");
    }
    if (s->scale == MODEL_SCALE_LEARNED && s->share == MODEL_SHARE_GLOBAL)
        add(m, MODEL_ROLE_SCALE, PK_SHAPE(1), 0, "%s", model_scale_name(s));
    if (model_has_input_norm(s))
        add_norm(m, s->arch == MODEL_VIT ? "norm_pre" : "transformer.ln_in");
    add_blocks(m);
    if (s->final_norm)
        add_norm(m, s->arch == MODEL_GPT        ? "transformer.ln_f"
                    : s->pool == MODEL_POOL_CLS ? "norm"
                                                : "fc_norm");
    if (s->arch == MODEL_VIT)
        add_linear(m, MODEL_ROLE_LINEAR, "head", d, s->classes);
}

enum pd_err model_new(const struct model_spec *spec, struct model **ret, struct pd_why *why)
{
    struct model *m;
    enum pd_err err = model_spec_check(spec, why);

    if (err != PD_OK)
        return err;
    m = calloc(1, sizeof *m);
    if (!m)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a model");
    m->spec = *spec;
    m->size = 20 + 20 * (size_t)spec->depth;
    m->param = calloc(m->size, sizeof *m->param);
    if (!m->param) {
        model_free(m);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a model");
    }
    add_all(m);
    *ret = m;
    return PD_OK;
}

struct model *model_free(struct model *m)
{
    if (m) {
        free(m->param);
        free(m);
    }
    return NULL;
}

const struct model_spec *model_spec(const struct model *m)
{
    return &m->spec;
}

size_t model_param_count(const struct model *m)
{
    return m->count;
}

const struct model_param *model_param(const struct model *m, size_t i)
{
    return &m->param[i];
}

int64_t model_param_elements(const struct model *m)
{
    int64_t n = 0;

    for (size_t i = 0; i < m->count; i++)
        n += pk_shape_count(&m->param[i].shape);
    return n;
}

enum pk_dtype model_param_dtype(const struct model *m, size_t i)
{
    enum model_role role = m->param[i].role;
    bool matrix = role == MODEL_ROLE_LINEAR || role == MODEL_ROLE_RESIDUAL || role == MODEL_ROLE_QKV ||
                  role == MODEL_ROLE_EMBED;

    return matrix && m->spec.weights == PK_BF16 ? PK_BF16 : m->spec.dtype;
}

size_t model_param_bytes(const struct model *m)
{
    size_t n = 0;

    for (size_t i = 0; i < m->count; i++)
        n += (size_t)pk_shape_count(&m->param[i].shape) * pk_dtype_size(model_param_dtype(m, i));
    return n;
}

int64_t model_patches(const struct model_spec *s)
{
    return (int64_t)(s->image_h / s->patch_h) * (s->image_w / s->patch_w);
}

/* ---- start values ---- */

struct source {
    uint64_t seed, index;
    uint32_t name, left;
    double value[2];
};

/* FNV-1a: parameters draw from streams of their own, so that adding one changes no other. */
static uint32_t hash(const char *text)
{
    uint32_t h = 2166136261u;

    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h;
}

static double normal(struct source *s)
{
    if (!s->left) {
        uint32_t word[4];
        double radius, angle;

        data_random(s->seed, DATA_STREAM_INIT, s->name, s->index++, word);
        radius = sqrt(-2 * log((word[0] + 0.5) * 0x1p-32 + word[1] * 0x1p-64));
        angle = 6.283185307179586 * ((word[2] + 0.5) * 0x1p-32);
        s->value[0] = radius * cos(angle);
        s->value[1] = radius * sin(angle);
        s->left = 2;
    }
    return s->value[--s->left];
}

static double uniform(struct source *s, double bound)
{
    uint32_t word[4];

    data_random(s->seed, DATA_STREAM_INIT, s->name, s->index++, word);
    return bound * (2 * (data_unit(word[0]) + data_unit(word[1]) * 0x1p-32) - 1);
}

/* N(0, std) kept within `limit` standard deviations (0: all of it). */
static double bounded(struct source *s, double std, double limit)
{
    double z;

    do
        z = normal(s);
    while (limit > 0 && fabs(z) > limit);
    return std * z;
}

static double start(const struct model *m, const struct model_param *p, struct source *src, int64_t element)
{
    const struct model_spec *s = &m->spec;
    bool normal_like = s->init == MODEL_INIT_TRUNC_NORMAL || s->init == MODEL_INIT_NORMAL;
    double std = 0.02, limit = s->init == MODEL_INIT_TRUNC_NORMAL ? 100 : 0, fan_out;

    switch (p->role) {
    case MODEL_ROLE_GAIN:
        return 1;
    case MODEL_ROLE_BIAS:
        return 0;
    case MODEL_ROLE_SCALE:
        if (s->scale_param == MODEL_PARAM_LOG)
            return log(s->scale_value);
        if (s->scale_param == MODEL_PARAM_SOFTPLUS)
            return log(expm1(s->scale_value));
        return s->scale_value;
    case MODEL_ROLE_CLS:
        return 1e-6 * normal(src); /* timm */
    case MODEL_ROLE_CONV:
        if (p->shape.rank == 1)
            return 0;
        fan_out = s->width;
        break;
    case MODEL_ROLE_EMBED:
        return bounded(src, 0.02, limit);
    case MODEL_ROLE_QKV: {
        int64_t d = s->width, column = p->transposed ? element / d : element % (3 * d);

        if (s->init_logit_std >= 0 && column < 2 * d)
            /* unit inputs give logits of variance (std^2 D)^2 */
            return bounded(src, sqrt(s->init_logit_std / (double)d), limit);
        fan_out = (double)(s->init_fused ? 3 * d : d);
        break;
    }
    case MODEL_ROLE_RESIDUAL:
        if (s->arch == MODEL_GPT && normal_like)
            std = 0.02 / sqrt(2.0 * s->depth);
        fan_out = s->width;
        break;
    default:
        fan_out = (double)(pk_shape_count(&p->shape) / p->fan_in);
        break;
    }
    if (s->init == MODEL_INIT_XAVIER)
        return uniform(src, sqrt(6 / ((double)p->fan_in + fan_out)));
    if (s->init == MODEL_INIT_TRUNC_XAVIER)
        return bounded(src, sqrt(2 / ((double)p->fan_in + fan_out)), 2);
    /* timm cuts at +-2 absolute: a hundred standard deviations. */
    return bounded(src, std, limit);
}

enum pd_err model_param_init(const struct model *m, size_t i, uint64_t seed, void *to, struct pd_why *why)
{
    const struct model_param *p = &m->param[i];
    struct source src = {.seed = seed, .name = hash(p->name)};
    int64_t n = pk_shape_count(&p->shape);

    (void)why;
    for (int64_t k = 0; k < n; k++) {
        double x = start(m, p, &src, k);

        if (m->spec.dtype == PK_F64)
            ((double *)to)[k] = x;
        else
            ((float *)to)[k] = (float)x;
    }
    return PD_OK;
}

/* ---- files ---- */

static bool has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text), k = strlen(suffix);

    return n >= k && !strcmp(text + n - k, suffix);
}

/* Which parameter a tensor's name means; m->count if none. */
static size_t find_param(const struct model *m, const char *name)
{
    char full[160], other[192];
    const char *tail;

    snprintf(full, sizeof full, "%s", name);
    tail = strstr(full, "phi_scale");
    if (tail) {
        snprintf(other, sizeof other, "%.*sattn_scale%s", (int)(tail - full), full,
                 tail + strlen("phi_scale"));
        snprintf(full, sizeof full, "%.159s", other);
    }
    for (size_t i = 0; i < m->count; i++) {
        const char *own = m->param[i].name;

        if (!strcmp(own, full) || (!strncmp(own, "transformer.", 12) && !strcmp(own + 12, full)))
            return i;
    }
    return m->count;
}

static bool ignored(const struct model *m, const char *name)
{
    if (!strncmp(name, "optim.", 6) || !strncmp(name, "ema.", 4) || !strncmp(name, "polyd.", 6))
        return true;
    return m->spec.arch == MODEL_GPT &&
           (has_suffix(name, ".attn.bias") || has_suffix(name, ".attn.masked_bias") ||
            !strcmp(name, "lm_head.weight"));
}

enum pd_err model_params_read(const struct model *m, const struct data_st *st, bool averaged,
                              enum pd_err (*fn)(void *user, size_t i, const void *data, size_t bytes,
                                                struct pd_why *why),
                              void *user, struct pd_why *why)
{
    const struct data_st_tensor **found = calloc(m->count, sizeof *found);
    char want[96], have[96];
    void *host = NULL;
    int64_t most = 0;
    enum pd_err err = PD_OK;

    if (!found)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the table of parameters");
    for (size_t k = 0; k < data_st_count(st); k++) {
        const struct data_st_tensor *t = data_st_at(st, k);
        struct pk_shape shape = {.rank = t->rank};
        const char *name = t->name + (averaged ? 4 : 0);
        size_t i;

        if (averaged ? strncmp(t->name, "ema.", 4) != 0 : ignored(m, name))
            continue;
        i = find_param(m, name);
        memcpy(shape.dim, t->dim, sizeof shape.dim);
        if (i == m->count) {
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' is no parameter of this model", t->name);
            goto out;
        }
        if (found[i]) {
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' comes twice", m->param[i].name);
            goto out;
        }
        if (!pk_shape_equal(&shape, &m->param[i].shape)) {
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' is %s, the model needs %s", t->name,
                          pk_shape_text(&shape, have, sizeof have),
                          pk_shape_text(&m->param[i].shape, want, sizeof want));
            goto out;
        }
        found[i] = t;
        if ((int64_t)t->count > most)
            most = (int64_t)t->count;
    }
    host = malloc((size_t)most * sizeof(double) + 1);
    if (!host) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a parameter");
        goto out;
    }
    for (size_t i = 0; i < m->count && err == PD_OK; i++) {
        if (!found[i]) {
            err = pd_fail(why, PD_ERR_INVALID, "the file lacks '%s%.80s'", averaged ? "ema." : "",
                          m->param[i].name);
            break;
        }
        err = m->spec.dtype == PK_F64 ? data_st_read_f64(found[i], host, found[i]->count, why)
                                      : data_st_read_f32(found[i], host, found[i]->count, why);
        if (err == PD_OK)
            err = fn(user, i, host, (size_t)found[i]->count * pk_dtype_size(m->spec.dtype), why);
    }
out:
    free(host);
    free(found);
    return err;
}
