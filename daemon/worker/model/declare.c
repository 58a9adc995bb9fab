/* daemon/worker/model/declare.c: parameters and attention modules, as the forward pass of a network declares
 * them or looks them up; initial values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"

/* Adds a parameter to the table of the model that is being declared. */
static const struct model_param *declare(struct net *n, const char *name, struct pk_shape shape,
                                         const struct net_how *how)
{
    struct model *m = n->declares;
    struct model_param *p;

    if (m->count == m->size) {
        size_t size = 2 * m->size + 32;
        struct model_param *param = realloc(m->param, size * sizeof *param);
        struct pk_val *val = param ? realloc(n->param, size * sizeof *val) : NULL;

        if (param)
            m->param = param;
        if (val) {
            memset(val + m->size, 0, (size - m->size) * sizeof *val);
            n->param = val;
        }
        if (!param || !val) {
            n->failed = true;
            return NULL;
        }
        m->size = size;
    }
    p = &m->param[m->count++];
    assert(strlen(name) < sizeof p->name);
    *p = (struct model_param){.shape = shape,
                              .role = how->role,
                              .transposed = m->spec.arch->transposed,
                              .factor = how->factor,
                              .narrow = how->narrow,
                              .whole = how->whole,
                              .decay = how->decay,
                              .lr_mult = 1,
                              .weight = MODEL_WEIGHT_OTHER,
                              .layer = -1,
                              .start = how->start};
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

size_t net_param_index(const struct model *m, const char *name)
{
    size_t i = 0;

    while (i < m->count && strcmp(m->param[i].name, name) != 0)
        i++;
    return i;
}

static void add_param(struct net *n, size_t i)
{
    const struct model_param *p = &n->m->param[i];
    char half[80];

    if (n->teacher) {
        model_teacher_name(n->m, i, half, sizeof half);
        n->param[i] = pk_state(n->g, half, model_param_dtype(n->m, i), p->shape, PK_CAT_INPUTS);
        return;
    }
    n->param[i] = pk_param(n->g, p->name, model_param_dtype(n->m, i), p->shape);
    if (!n->copies || !p->factor || p->frozen) /* no update would write the copy */
        return;
    model_copy_name(n->m, i, half, sizeof half);
    pk_working_copy(n->g, n->param[i], pk_state(n->g, half, PK_BF16, p->shape, PK_CAT_WEIGHTS));
}

struct pk_val net_param(struct net *n, const char *name, struct pk_shape shape, const struct net_how *how)
{
    size_t i = net_param_index(n->m, name);

    if (i == n->m->count && (!n->declares || !declare(n, name, shape, how)))
        return PK_NONE;
    assert(pk_shape_equal(&n->m->param[i].shape, &shape));
    if (!n->param[i].id)
        add_param(n, i);
    return n->param[i];
}

struct pk_val net_buffer(struct net *n, const char *name, struct pk_shape shape, double value)
{
    const struct net_how how = {.role = MODEL_ROLE_BUFFER,
                                .start = {.rest = {.kind = MODEL_DRAW_VALUE, .a = value}}};

    return net_param(n, name, shape, &how);
}

struct pk_val net_count(struct net *n, const char *name)
{
    const struct net_how how = {
        .role = MODEL_ROLE_BUFFER, .whole = true, .start = {.rest = {.kind = MODEL_DRAW_VALUE}}};

    return net_param(n, name, (struct pk_shape){.rank = 0}, &how);
}

void net_buffer_update(struct net *n, const char *name, struct pk_val x, double decay)
{
    const size_t i = net_param_index(n->m, name);

    assert(i < n->m->count && n->m->param[i].role == MODEL_ROLE_BUFFER);
    if (n->change)
        n->change[i] = (struct net_change){x, decay};
}

bool net_frozen(const struct net *n, const char *name)
{
    const size_t i = net_param_index(n->m, name);

    return i < n->m->count && n->m->param[i].frozen;
}

struct pk_val net_rank_mean(struct net *n, struct pk_val x)
{
    return n->ranks > 1 ? pk_scale(n->g, pk_all_reduce(n->g, x, -1), 1.0 / n->ranks) : x;
}

/* What is trained, then the rest: each in the order of asking. */
static enum pd_err trained_first(struct model *m, struct pd_why *why)
{
    struct model_param *param = calloc(m->count + 1, sizeof *param);
    size_t *place = calloc(m->count + 1, sizeof *place), at = 0;

    if (!param || !place) {
        free(param);
        free(place);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the table of parameters");
    }
    for (int buffers = 0; buffers < 2; buffers++) {
        for (size_t i = 0; i < m->count; i++)
            if ((m->param[i].role == MODEL_ROLE_BUFFER || m->param[i].frozen) == buffers) {
                place[i] = at;
                param[at++] = m->param[i];
            }
        m->trained = buffers ? m->trained : at;
    }
    for (size_t i = 0; i < m->modules; i++)
        if (m->module[i].scale >= 0)
            m->module[i].scale = (ptrdiff_t)place[m->module[i].scale];
    free(m->param);
    free(place);
    m->param = param;
    m->size = m->count + 1;
    return PD_OK;
}

enum pd_err model_declare(struct model *m, struct pd_why *why)
{
    enum pd_err err = model_write_once(m, why);

    return err == PD_OK ? trained_first(m, why) : err;
}

/* ---- what fine-tuning says of parameters ---- */

/* The next name of a list with commas; false behind the last. */
static bool next_name(const char **at, const char **ret, size_t *ret_len)
{
    const char *p = *at + strspn(*at, ", "), *end = p + strcspn(p, ",");

    *at = end;
    *ret = p;
    while (end > p && end[-1] == ' ')
        end--;
    *ret_len = (size_t)(end - p);
    return end > p;
}

bool model_name_listed(const char *names, const char *name)
{
    const char *one;
    size_t len;

    while (names && next_name(&names, &one, &len))
        if (!strncmp(name, one, len))
            return true;
    return false;
}

enum pd_err model_freeze(struct model *m, const char *names, struct pd_why *why)
{
    const char *at = names, *one;
    size_t len;
    enum pd_err err;

    while (at && next_name(&at, &one, &len)) {
        bool found = false;

        for (size_t i = 0; i < m->count; i++)
            if (!strncmp(m->param[i].name, one, len))
                found = m->param[i].frozen = true;
        if (!found)
            return pd_fail(why, PD_ERR_INVALID, "#/train/freeze: no parameter's name begins with '%.*s'",
                           (int)len, one);
    }
    err = trained_first(m, why);
    if (err == PD_OK && !m->trained)
        err = pd_fail(why, PD_ERR_INVALID, "#/train/freeze: all parameters are frozen");
    return err;
}

/* The length of the beginning of `name` that `pattern` describes, in which * stands for digits; 0: it does not fit. */
static size_t block_len(const char *pattern, const char *name)
{
    const char *at = name;

    for (; *pattern; pattern++) {
        size_t digits = strspn(at, "0123456789");

        if (*pattern == '*' ? !digits : *at != *pattern)
            return 0;
        at += *pattern == '*' ? digits : 1;
    }
    return *at == '.' ? (size_t)(at - name) : 0;
}

void model_layer_decay(struct model *m, double decay)
{
    const char *pattern = m->spec.arch->block, *last = NULL;
    size_t blocks = 0, last_len = 0, last_block = 0;

    if (decay == 1 || !pattern)
        return;
    for (int pass = 0; pass < 2; pass++) { /* how many blocks there are, then what each parameter is */
        size_t seen = 0;

        last = NULL;
        for (size_t i = 0; i < m->count; i++) {
            const char *name = m->param[i].name;
            size_t len = block_len(pattern, name);

            if (m->param[i].role == MODEL_ROLE_BUFFER) /* these follow all trained parameters */
                continue;
            if (len && !(last && last_len == len && !strncmp(last, name, len))) {
                last = name;
                last_len = len;
                seen++;
            }
            if (len && !pass)
                last_block = i;
            if (pass)
                m->param[i].lr_mult *=
                    pow(decay, (double)(blocks + 1 - (i > last_block ? blocks + 1 : seen)));
        }
        blocks = seen;
    }
}

static double limit_of(const struct model_spec *s)
{
    return s->init == MODEL_INIT_TRUNC_NORMAL ? 100 : 0; /* timm cuts at +-2 absolute: a hundred deviations */
}

struct model_start net_start_normal(const struct model_spec *s, double std)
{
    return (struct model_start){.rest = {MODEL_DRAW_NORMAL, std, limit_of(s)}};
}

struct model_start net_start(const struct model_spec *s, double fan_in, double fan_out, double std)
{
    if (s->init == MODEL_INIT_XAVIER)
        return (struct model_start){.rest = {MODEL_DRAW_UNIFORM, sqrt(6 / (fan_in + fan_out)), 0}};
    if (s->init == MODEL_INIT_TRUNC_XAVIER)
        return (struct model_start){.rest = {MODEL_DRAW_NORMAL, sqrt(2 / (fan_in + fan_out)), 2}};
    if (s->init == MODEL_INIT_KAIMING)
        return (struct model_start){.rest = {MODEL_DRAW_UNIFORM, 1 / sqrt(fan_in), 0}};
    return net_start_normal(s, std);
}

void net_module_declare(struct net *n, const char *name, const struct model_attention *a, int32_t heads,
                        size_t scale)
{
    struct model *m = n->declares;
    struct model_module *to;

    if (!m)
        return;
    if (m->modules == m->module_size) {
        size_t size = 2 * m->module_size + 16;
        struct model_module *module = realloc(m->module, size * sizeof *module);

        n->failed |= !module;
        if (!module)
            return;
        m->module = module;
        m->module_size = size;
    }
    to = &m->module[m->modules++];
    *to = (struct model_module){.attention = *a,
                                .heads = heads,
                                .windows = n->batch,
                                .scale = a->scale == MODEL_SCALE_LEARNED ? (ptrdiff_t)scale : -1};
    snprintf(to->name, sizeof to->name, "%s", name);
}

void net_module_axis(struct net *n, enum model_axis axis)
{
    if (n->declares && n->declares->modules)
        n->declares->module[n->declares->modules - 1].axis = axis;
}
