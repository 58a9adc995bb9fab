/* daemon/worker/model/formula.c: attention whose activation is a formula: its plan, and its learned scalars as
 * parameters. `<attention>.formula_<name>` is [1] or [heads] and holds the number itself, or what form makes it of (log:
 * e^x, softplus: log(1 + e^x), sigmoid: 1 / (1 + e^-x)); a scalar of the whole model is `formula_<name>`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/arch/arch.h"
#include "kernels/formula/formula.h"

static const struct model_scalar *find(const struct model_formula *f, const char *name,
                                       struct model_scalar *other)
{
    for (int32_t k = 0; k < f->scalars; k++)
        if (!strcmp(f->scalar[k].name, name))
            return &f->scalar[k];
    *other = (struct model_scalar){.share = MODEL_SHARE_LAYER, .form = MODEL_SCALAR_DIRECT, .init = "1"};
    snprintf(other->name, sizeof other->name, "%s", name);
    return other;
}

enum pd_err model_formula_read(struct model *m, struct pd_why *why)
{
    const struct model_formula *from = &m->spec.attention.formula;
    static const enum pk_formula_range ranges[] = {PK_RANGE_ANY, PK_RANGE_POSITIVE, PK_RANGE_POSITIVE,
                                                   PK_RANGE_UNIT};
    struct pk_formula_param params[PK_FORMULA_PARAMS] = {{{0}, PK_RANGE_ANY, 0}};
    const struct pk_formula_param *names;
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    enum pd_err err;

    if (!from->text[0])
        return PD_OK;
    for (int32_t k = 0; k < from->scalars; k++) {
        snprintf(params[k].name, sizeof params[k].name, "%s", from->scalar[k].name);
        params[k].range = ranges[from->scalar[k].form];
    }
    err = pk_formula_parse(from->text, strlen(from->text), PK_FORMULA_ACTIVATION, m->spec.arch->causal,
                           params, from->scalars, &f, &fault);
    if (err != PD_OK)
        return pd_fail(why, err, "#/attention/formula: character %d: %s", fault.at + 1, fault.text);
    m->plan = malloc(sizeof *m->plan);
    if (m->plan) {
        struct pd_why cause = {.text = ""};

        m->scalars = (size_t)pk_formula_params(f, &names);
        for (size_t k = 0; k < m->scalars; k++)
            memcpy(m->scalar[k], names[k].name, sizeof m->scalar[k]);
        err = pk_formula_plan(f, m->plan, &cause);
        if (err != PD_OK)
            (void)pd_fail(why, err, "#/attention/formula: %s", cause.text);
    } else {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a formula");
    }
    pk_formula_free(f);
    return err;
}

/* The number that is trained, of the value v; NaN: v is no value of that form. */
static double trained_of(enum model_scalar_form form, double v)
{
    switch (form) {
    case MODEL_SCALAR_LOG:
        return v > 0 ? log(v) : NAN;
    case MODEL_SCALAR_SOFTPLUS:
        return v > 0 ? net_softplus_inverse(v) : NAN;
    case MODEL_SCALAR_SIGMOID:
        return v > 0 && v < 1 ? log(v / (1 - v)) : NAN;
    default:
        return v;
    }
}

/* Initial values of `count` heads' numbers (of 1: those of head 0), the caller's; NULL without memory. Notes a value that
 * the scalar's form does not allow. */
static double *starts(struct net *n, const struct model_attention *a, const struct model_scalar *s,
                      int64_t count, int32_t heads, int layer, int64_t width)
{
    double *list = malloc((size_t)count * sizeof *list), leaf[PK_LEAVES] = {0};
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    const enum pd_err err =
        pk_formula_parse(s->init, strlen(s->init), PK_FORMULA_START, false, NULL, 0, &f, &fault);
    bool good = err == PD_OK;

    if (!list || err == PD_ERR_NOMEM) {
        free(list);
        pk_formula_free(f);
        n->failed = true;
        return NULL;
    }
    leaf[PK_LEAF_N] = a->n_for_scale;
    leaf[PK_LEAF_HEADS] = heads;
    leaf[PK_LEAF_LAYER] = layer;
    leaf[PK_LEAF_LAYERS] = n->m->spec.depth;
    leaf[PK_LEAF_WIDTH] = (double)width;
    for (int64_t h = 0; h < count; h++) {
        leaf[PK_LEAF_HEAD] = (double)h;
        list[h] = f ? trained_of(s->form, pk_formula_value(f, leaf)) : NAN;
        good = good && isfinite(list[h]);
    }
    if (!good)
        snprintf(n->refused, sizeof n->refused, "%s", s->name);
    pk_formula_free(f);
    return list;
}

/* The stored number; path "": of the whole model. */
static struct pk_val number_of(struct net *n, const struct model_attention *a, const struct model_scalar *s,
                               const char *path, int64_t count, int32_t heads, int layer, int64_t width)
{
    struct net_how how = {.role = MODEL_ROLE_SCALE, .decay = a->scale_decay};
    char full[112];
    size_t i;

    snprintf(full, sizeof full, "%s%sformula_%s", path, *path ? "." : "", s->name);
    i = net_param_index(n->m, full);
    if (n->declares && i == n->m->count) {
        how.start.list = starts(n, a, s, count, heads, layer, width);
        if (!how.start.list)
            return PK_NONE;
    }
    (void)net_param(n, full, PK_SHAPE(count), &how);
    i = net_param_index(n->m, full);
    if (n->declares && i < n->m->count)
        n->declares->param[i].lr_mult = a->scale_lr_mult;
    return net_param(n, full, PK_SHAPE(count), &how);
}

void net_formula_shared(struct net *n, const struct model_attention *a)
{
    struct model_scalar other;

    for (size_t k = 0; a->formula.text[0] && k < n->m->scalars; k++) {
        const struct model_scalar *s = find(&a->formula, n->m->scalar[k], &other);

        if (s->share == MODEL_SHARE_GLOBAL)
            (void)number_of(n, a, s, "", 1, n->m->spec.heads, 0, n->m->spec.width / n->m->spec.heads);
    }
}

void net_formula(struct net *n, const struct model_attention *a, int32_t heads, const char *path, int layer,
                 int64_t width, struct pk_attention_spec *spec)
{
    struct pk_val row[PK_FORMULA_PARAMS];
    struct model_scalar other;

    if (!a->formula.text[0])
        return;
    spec->formula = (struct pk_formula_use){
        .plan = n->m->plan, .n = a->n_for_scale, .layer = layer, .layers = n->m->spec.depth};
    for (size_t k = 0; k < n->m->scalars; k++) {
        const struct model_scalar *s = find(&a->formula, n->m->scalar[k], &other);
        const bool global = s->share == MODEL_SHARE_GLOBAL;
        struct pk_val x = number_of(n, a, s, global ? "" : path, s->share == MODEL_SHARE_HEAD ? heads : 1,
                                    heads, layer, width);

        if (s->form == MODEL_SCALAR_LOG)
            x = pk_unary(n->g, PK_EX_EXP, x);
        else if (s->form == MODEL_SCALAR_SOFTPLUS)
            x = net_softplus(n->g, x);
        else if (s->form == MODEL_SCALAR_SIGMOID)
            x = pk_unary(n->g, PK_EX_SIGMOID, x);
        row[k] = pk_reshape(n->g, pk_copy(n->g, pk_broadcast(n->g, x, PK_SHAPE(heads))), PK_SHAPE(1, heads));
    }
    if (n->m->scalars)
        spec->scalars = n->m->scalars > 1 ? pk_concat(n->g, 0, row, n->m->scalars) : row[0];
}

bool model_formula_scalar(const struct model *m, size_t i, size_t k, const char **ret_name,
                          enum model_scalar_form *ret_form, size_t *ret_param)
{
    const struct model_module *u = &m->module[i];
    const struct model_formula *f = &u->attention.formula;
    const struct model_scalar *s;
    struct model_scalar other;
    char full[112];

    if (!f->text[0] || k >= m->scalars)
        return false;
    s = find(f, m->scalar[k], &other);
    snprintf(full, sizeof full, "%s%sformula_%s", s->share == MODEL_SHARE_GLOBAL ? "" : u->name,
             s->share == MODEL_SHARE_GLOBAL ? "" : ".", m->scalar[k]);
    *ret_name = m->scalar[k];
    *ret_form = s->form;
    *ret_param = net_param_index(m, full);
    return true;
}
