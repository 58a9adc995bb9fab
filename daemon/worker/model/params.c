/* daemon/worker/model/params.c: the table of parameters, their initial values, and reading them from files.
 *
 * The order of the table is the order of the network, and of everything that is kept per parameter. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/philox.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/model/arch/arch.h"

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
    err = model_formula_read(m, why);
    if (err == PD_OK)
        err = model_declare(m, why);
    if (err == PD_OK)
        *ret = m;
    else
        model_free(m);
    return err;
}

struct model *model_free(struct model *m)
{
    if (m) {
        for (size_t i = 0; i < m->count; i++)
            free(m->param[i].start.list);
        free(m->param);
        free(m->module);
        free(m->plan);
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

size_t model_trained_count(const struct model *m)
{
    return m->trained;
}

int64_t model_param_elements(const struct model *m)
{
    int64_t n = 0;

    for (size_t i = 0; i < m->trained; i++)
        n += pk_shape_count(&m->param[i].shape);
    return n;
}

enum pk_dtype model_param_dtype(const struct model *m, size_t i)
{
    return m->param[i].narrow && m->spec.weights == PK_BF16 ? PK_BF16 : m->spec.dtype;
}

size_t model_param_bytes(const struct model *m)
{
    size_t n = 0;

    for (size_t i = 0; i < m->count; i++)
        n += (size_t)pk_shape_count(&m->param[i].shape) * pk_dtype_size(model_param_dtype(m, i));
    return n;
}

static const char *const weight_names[MODEL_WEIGHTS] = {"w_q", "w_k", "w_v", "w_o", "w_1", "w_2"};

const char *model_weight_name(enum model_weight w)
{
    return weight_names[w];
}

enum model_weight model_weight_find(const char *name)
{
    int w = 0;

    while (w < MODEL_WEIGHTS && strcmp(weight_names[w], name) != 0)
        w++;
    return (enum model_weight)w;
}

size_t model_attention_count(const struct model *m)
{
    return m->modules;
}

const struct model_attention *model_attention_at(const struct model *m, size_t i, int32_t *ret_heads,
                                                 size_t *ret_scale)
{
    const struct model_module *u = &m->module[i];

    *ret_heads = u->heads;
    *ret_scale = u->scale < 0 ? m->count : (size_t)u->scale;
    return &u->attention;
}

const char *model_attention_path(const struct model *m, size_t i)
{
    return m->module[i].name;
}

bool model_attention_has_jac_q(const struct model *m, size_t i)
{
    return !m->module[i].attention.qk_norm && m->module[i].axis != MODEL_AXIS_CHANNELS;
}

bool model_attention_has_inverse(const struct model *m, size_t i)
{
    (void)i;
    return m->spec.landmarks && m->spec.landmarks < m->spec.context / (m->spec.pairs ? 2 : 1);
}

int64_t model_attention_windows(const struct model *m, size_t i)
{
    return m->module[i].windows;
}

bool model_reads_tokens(const struct model_spec *s)
{
    return s->arch->reads == MODEL_READS_TOKENS;
}

bool model_reads_points(const struct model_spec *s)
{
    return s->arch->reads == MODEL_READS_POINTS;
}

int32_t model_text_ids(const struct model_spec *s)
{
    return s->vocab - (s->arch->class_id && s->pool == MODEL_POOL_CLS);
}

bool model_decodes(const struct model_spec *s)
{
    return s->arch->decode != NULL && !s->classes;
}

/* ---- initial values ---- */

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

static double draw(struct source *src, const struct model_draw *d)
{
    switch (d->kind) {
    case MODEL_DRAW_NORMAL:
        return bounded(src, d->a, d->limit);
    case MODEL_DRAW_UNIFORM:
        return uniform(src, d->a);
    default:
        return d->a;
    }
}

enum pd_err model_param_init(const struct model *m, size_t i, uint64_t seed, void *to, struct pd_why *why)
{
    const struct model_param *p = &m->param[i];
    struct source src = {.seed = seed, .name = hash(p->name)};
    const int64_t n = pk_shape_count(&p->shape);
    const int64_t outputs = p->shape.rank == 0 ? 1 : p->shape.dim[p->transposed ? 0 : p->shape.rank - 1];

    (void)why;
    for (int64_t k = 0; k < n; k++) {
        int64_t output = p->transposed ? k / (n / outputs) : k % outputs;
        double x = p->start.list ? p->start.list[k]
                                 : draw(&src, output < p->start.outputs ? &p->start.first : &p->start.rest);

        if (m->spec.dtype == PK_F64)
            ((double *)to)[k] = x;
        else
            ((float *)to)[k] = (float)x;
    }
    return PD_OK;
}

/* ---- files ---- */

/* Which parameter a tensor's name means; m->count if none. */
static size_t find_param(const struct model *m, const char *name)
{
    char full[160], other[192];
    const char *tail, *prefix = m->spec.arch->prefix;
    size_t skip = prefix ? strlen(prefix) : 0;

    snprintf(full, sizeof full, "%s", name);
    tail = strstr(full, "phi_scale");
    if (tail) {
        snprintf(other, sizeof other, "%.*sattn_scale%s", (int)(tail - full), full,
                 tail + strlen("phi_scale"));
        snprintf(full, sizeof full, "%.159s", other);
    }
    for (size_t i = 0; i < m->count; i++) {
        const char *own = m->param[i].name;

        if (!strcmp(own, full) || (skip && !strncmp(own, prefix, skip) && !strcmp(own + skip, full)))
            return i;
    }
    return m->count;
}

static bool ignored(const struct model *m, const char *name)
{
    const struct model_arch *arch = m->spec.arch;

    if (!strncmp(name, "optim.", 6) || !strncmp(name, "ema.", 4) || !strncmp(name, "polyd.", 6))
        return true;
    return (arch->not_parameter && arch->not_parameter(name)) ||
           (arch->repeated && !strcmp(name, arch->repeated));
}

enum model_tensor model_tensor_of(const struct model *m, const char *name, size_t *ret_i)
{
    const struct model_arch *arch = m->spec.arch;
    size_t i;

    if (arch->repeated && !strcmp(name, arch->repeated)) {
        *ret_i = find_param(m, arch->repeats);
        return *ret_i < m->count ? MODEL_TENSOR_REPEATS : MODEL_TENSOR_UNKNOWN;
    }
    if (ignored(m, name))
        return MODEL_TENSOR_IGNORED;
    i = find_param(m, name);
    if (i == m->count)
        return MODEL_TENSOR_UNKNOWN;
    *ret_i = i;
    return MODEL_TENSOR_PARAM;
}

const char *model_respelt_marker(const struct model_spec *s)
{
    return s->arch->respelt.marker;
}

struct model_part model_respelt_name(const struct model_spec *s, const char *name,
                                     char out[MODEL_TENSOR_NAME])
{
    return s->arch->respelt.own_name(name, out, MODEL_TENSOR_NAME);
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
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' is not a parameter of this model", t->name);
            goto out;
        }
        if (found[i]) {
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' occurs twice", m->param[i].name);
            goto out;
        }
        if (!pk_shape_equal(&shape, &m->param[i].shape)) {
            err = pd_fail(why, PD_ERR_INVALID, "'%.80s' has the shape %s, the model needs %s", t->name,
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
