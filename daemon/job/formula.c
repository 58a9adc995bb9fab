/* attention.formula and its learned scalars (attention.params): an activation typed as text (kernels/formula). */
#include "kernels/formula/formula.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/job/internal.h"
#include "daemon/job/rules.h"
#include "kernels/base/arena.h"

static const char *const shares[] = {"layer", "head", "global"}, *const forms[] = {"direct", "log",
                                                                                   "softplus", "sigmoid"};
static const char *const members[] = {"init", "per", "form"};

/* The scalar being read, and where errors of it point. */
struct entry {
    struct job_ctx *c;
    const struct job_field *f;
    const char *name;
};

/* "#/attention/params/a/init" */
static const char *pointer_of(const struct entry *e, const char *member, char out[128])
{
    snprintf(out, 128, "%s/%.40s%s%s", e->f->pointer, e->name, *member ? "/" : "", member);
    return out;
}

static void fail(const struct entry *e, const char *member, const char *fmt, ...) PD_PRINTF(3, 4);

static void fail(const struct entry *e, const char *member, const char *fmt, ...)
{
    char pointer[128], text[480];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    job_ctx_error(e->c, pointer_of(e, member, pointer), "%s", text);
}

static bool take_name(const struct entry *e, const char *member, const json_t *v, const char *const *names,
                      size_t n, int *ret)
{
    const char *text = json_string_value(v);
    char near[64], list[128] = "";

    *ret = 0;
    if (!v)
        return true;
    for (size_t i = 0; i < n; i++) {
        if (text && !strcmp(names[i], text)) {
            *ret = (int)i;
            return true;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
    }
    if (text)
        fail(e, member, "must be one of %s%s", list, pd_did_you_mean(near, sizeof near, text, names, n));
    else
        fail(e, member, "must be one of %s, not %s", list, job_json_kind(v));
    return false;
}

const char *job_scalar_share_fault(const struct pk_formula *init, int per)
{
    const bool global = per == JOB_SCALE_SHARE_GLOBAL;

    if (pk_formula_reads(init, PK_LEAF_HEAD) && per != JOB_SCALE_SHARE_HEAD)
        return global
                   ? "reads the head h, but per global makes one scalar of the whole model: use per head"
                   : "reads the head h, but per layer makes one scalar of all heads of a layer: use per head";
    if (pk_formula_reads(init, PK_LEAF_LAYER) && global)
        return "reads the layer l, but per global makes one scalar of the whole model: use per layer or head";
    return NULL;
}

/* A number is written as text: the formula of that number. */
static bool take_init(const struct entry *e, const json_t *v, int per, char *out, size_t size)
{
    const char *text = json_string_value(v);
    char number[40], pointer[128];
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    const char *why;
    enum pd_err err;

    if (v && json_is_number(v))
        text = job_json_number(json_number_value(v), number);
    else if (!v)
        text = "1";
    if (!text) {
        fail(e, "init", "must be a number or a formula of n, h, H, l, L and d, not %s", job_json_kind(v));
        return false;
    }
    if (!*text || strlen(text) > JOB_SCALAR_INIT || strpbrk(text, "\r\n")) {
        fail(e, "init", "must have 1 to %d bytes and no line breaks", JOB_SCALAR_INIT);
        return false;
    }
    err = pk_formula_parse(text, strlen(text), PK_FORMULA_START, false, NULL, 0, &f, &fault);
    why = err == PD_OK ? job_scalar_share_fault(f, per) : NULL;
    pk_formula_free(f);
    if (err == PD_ERR_NOMEM)
        e->c->nomem = true;
    else if (err != PD_OK)
        fail(e, "init", "character %d: %s", fault.at + 1, fault.text);
    else if (why)
        job_ctx_refuse(e->c, pointer_of(e, "init", pointer), "%s", why);
    snprintf(out, size, "%s", text);
    return err == PD_OK && !(why && !e->c->env->stored);
}

static json_t *take_scalar(const struct entry *e, const json_t *v, struct job_scalar *to)
{
    char init[JOB_SCALAR_INIT + 1], near[64];
    const char *key;
    const json_t *ignored;

    if (!json_is_object(v)) {
        fail(e, "", "must be an object with init, per and form, not %s", job_json_kind(v));
        return NULL;
    }
    if (!isalpha((unsigned char)e->name[0]) || strlen(e->name) >= PK_FORMULA_NAME ||
        e->name[strspn(e->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")]) {
        fail(e, "", "a scalar's name has 1 to %d letters, digits or \"_\" and begins with a letter",
             PK_FORMULA_NAME - 1);
        return NULL;
    }
    json_object_foreach((json_t *)v, key, ignored)
    {
        if (strcmp(key, "init") && strcmp(key, "per") && strcmp(key, "form")) {
            fail(e, "", "unknown key \"%.100s\"; the keys are init, per and form%s", key,
                 pd_did_you_mean(near, sizeof near, key, members, 3));
            return NULL;
        }
    }
    if (!take_name(e, "per", json_object_get(v, "per"), shares, 3, &to->per) ||
        !take_name(e, "form", json_object_get(v, "form"), forms, 4, &to->form) ||
        !take_init(e, json_object_get(v, "init"), to->per, init, sizeof init))
        return NULL;
    to->name = pd_arena_strdup(e->c->run->arena, e->name);
    to->init = pd_arena_strdup(e->c->run->arena, init);
    e->c->nomem = e->c->nomem || !to->name || !to->init;
    return e->c->nomem
               ? NULL
               : json_pack("{s:s,s:s,s:s}", "init", init, "per", shares[to->per], "form", forms[to->form]);
}

json_t *job_take_scalars(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    struct job_scalar *items;
    json_t *out, *value;
    const char *key;
    size_t n = 0;

    if (!json_is_object(v)) {
        job_ctx_error(c, f->pointer, "must be an object, not %s", job_json_kind(v));
        return NULL;
    }
    if (json_object_size(v) > PK_FORMULA_PARAMS) {
        job_ctx_error(c, f->pointer, "must have at most %d scalars, and has %zu", PK_FORMULA_PARAMS,
                      json_object_size(v));
        return NULL;
    }
    items = pd_arena_alloc(c->run->arena, PK_FORMULA_PARAMS * sizeof *items);
    out = json_object();
    c->nomem = c->nomem || !items || !out;
    json_object_foreach(v, key, value)
    {
        const struct entry e = {.c = c, .f = f, .name = key};
        json_t *one = c->nomem ? NULL : take_scalar(&e, value, &items[n]);

        if (!one || json_object_set_new(out, key, one)) {
            json_decref(out);
            return NULL;
        }
        n++;
    }
    if (c->nomem) {
        json_decref(out);
        return NULL;
    }
    if (job_place(c, f))
        *(struct job_scalars *)job_place(c, f) = (struct job_scalars){n, items};
    return out;
}

/* ---- the formula ---- */

enum pd_err job_formula_parse(const struct job_config *g, struct pk_formula **ret,
                              struct pk_formula_fault *fault)
{
    const struct job_attention *a = &g->attention;
    static const enum pk_formula_range ranges[] = {PK_RANGE_ANY, PK_RANGE_POSITIVE, PK_RANGE_POSITIVE,
                                                   PK_RANGE_UNIT};
    struct pk_formula_param params[PK_FORMULA_PARAMS] = {{{0}, PK_RANGE_ANY, 0}};

    for (size_t k = 0; k < a->params.count; k++) {
        snprintf(params[k].name, sizeof params[k].name, "%s", a->params.items[k].name);
        params[k].range = ranges[a->params.items[k].form];
    }
    return pk_formula_parse(a->formula, strlen(a->formula), PK_FORMULA_ACTIVATION, job_config_causal(g),
                            params, (int)a->params.count, ret, fault);
}

enum pd_err job_formula_digest(const struct job_config *g, char out[JOB_DIGEST_SIZE], struct pd_why *why)
{
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pd_buf text;
    enum pd_err err = job_formula_parse(g, &f, &fault);

    if (err != PD_OK)
        return pd_fail(why, err, "#/attention/formula: character %d: %s", fault.at + 1, fault.text);
    pd_buf_init(&text, PK_FORMULA_CANONICAL);
    pk_formula_canonical(f, &text);
    pk_formula_free(f);
    err = pd_buf_err(&text);
    if (err == PD_OK)
        digest_sha256_hex(text.data, text.len, out);
    else
        (void)pd_fail(why, err,
                      err == PD_ERR_LIMIT ? "the normal form of the formula is too long to be printed"
                                          : "no memory for the normal form of a formula");
    pd_buf_done(&text);
    return err;
}

bool job_formula_builtin(const struct job_config *g)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    double constant, alpha;
    int degree;
    bool is = false;

    if (!g->attention.formula || !g->attention.recognise)
        return false;
    if (pk_formula_parse(g->attention.formula, strlen(g->attention.formula), PK_FORMULA_ACTIVATION, false,
                         NULL, 0, &f, &fault) == PD_OK)
        is = pk_formula_builtin(f, &degree, &constant, &alpha) != NULL;
    pk_formula_free(f);
    return is;
}

/* Takes a scalar out of the run and its document. A sweep's scalars are those of all its formulas: each run has the ones
 * that its formula names. */
static void forget(struct job_ctx *c, size_t k)
{
    struct job_scalars *all = &c->g->attention.params;
    struct job_scalar *items = (struct job_scalar *)(uintptr_t)all->items;

    if (c->out)
        json_object_del(job_json_at(c->out, "/attention/params"), items[k].name);
    memmove(&items[k], &items[k + 1], (all->count - k - 1) * sizeof *items);
    all->count--;
}

/* Whether the sizes that initial values depend on have no errors. */
static bool sized(const struct job_ctx *c)
{
    static const char *const sizes[] = {"/model/preset",    "/model/width",  "/model/heads",
                                        "/model/depth",     "/model/widths", "/model/head_counts",
                                        "/model/depths",    "/model/patch",  "/model/window",
                                        "/data/image_size", "/data/dataset", "/attention/n_for_scale"};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (job_ctx_bad(c, sizes[i]))
            return false;
    return true;
}

/* Whether an initial value is one of its form. */
static bool of_form(double v, int form)
{
    return isfinite(v) && (form == JOB_SCALAR_DIRECT || v > 0) && (form != JOB_SCALAR_SIGMOID || v < 1);
}

/* Whether an initial value is one of its form in the format of parameters, wherever the run has the scalar: in every head, or in each layer as in its
 * head 0, or once as in head 0 of the first layer. */
static void check_start(struct job_ctx *c, const struct job_scalar *s)
{
    const struct job_config *g = c->g;
    double leaf[PK_LEAVES] = {0};
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    struct job_stage at;
    char pointer[96];
    const bool f64 = g->train.precision == JOB_PRECISION_FP64;
    bool good = true;
    int64_t layer = 0;
    double v = 0;
    char held[64] = "";

    if (!sized(c) ||
        pk_formula_parse(s->init, strlen(s->init), PK_FORMULA_START, false, NULL, 0, &f, &fault) != PD_OK)
        return;
    leaf[PK_LEAF_LAYERS] = (double)g->model.depth;
    for (size_t i = 0; good && job_config_stage(g, i, &at); i++) {
        const int64_t last = layer + at.blocks, heads = s->per == JOB_SCALE_SHARE_HEAD ? at.heads : 1;

        leaf[PK_LEAF_N] = at.n;
        leaf[PK_LEAF_HEADS] = (double)at.heads;
        leaf[PK_LEAF_WIDTH] = (double)at.head_dim;
        for (; good && layer < last && !(layer && s->per == JOB_SCALE_SHARE_GLOBAL); layer++)
            for (int64_t h = 0; good && h < heads; h++) {
                leaf[PK_LEAF_HEAD] = (double)h;
                leaf[PK_LEAF_LAYER] = (double)layer;
                v = pk_formula_value(f, leaf);
                good = of_form(f64 ? v : (double)(float)v, s->form);
            }
    }
    pk_formula_free(f);
    if (good)
        return;
    snprintf(pointer, sizeof pointer, "/attention/params/%s/init", s->name);
    if (of_form(v, s->form))
        snprintf(held, sizeof held, " (%g in fp32, the format of parameters)", (double)(float)v);
    job_ctx_error(c, pointer, "is %.9g%s, and %s", v, held,
                  s->form == JOB_SCALAR_DIRECT    ? "must be finite"
                  : s->form == JOB_SCALAR_SIGMOID ? "with form sigmoid must lie between 0 and 1"
                                                  : "with this form must be above 0");
}

void job_formula_check(struct job_ctx *c)
{
    const struct job_attention *a = &c->g->attention;
    const struct job_network *net = job_network(c->g->model.arch);
    const struct pk_formula_param *names;
    struct pk_formula_report *report;
    struct pk_formula_plan *plan;
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pd_why why = {.text = ""};
    int n;
    enum pd_err err;

    if (job_ctx_bad(c, "/attention/formula") || job_ctx_bad(c, "/attention/params") ||
        job_ctx_bad(c, "/model/arch"))
        return;
    if (!a->formula) {
        job_ctx_error(c, "/attention/formula", "is needed with activation formula");
        return;
    }
    if (net->channel_attention || net->landmarks || net->equations)
        job_ctx_error(
            c, "/attention/activation",
            "a formula needs attention between all tokens of an image or text, which a %s does not have",
            net->name);
    if (a->n_for_scale == JOB_N_ROW)
        job_ctx_error(c, "/attention/n_for_scale",
                      "a formula names the keys of a row itself: ni; use a number here");
    if (a->n_for_scale == JOB_N_NUMBER && a->n < 1 && !job_ctx_bad(c, "/attention/n_for_scale"))
        job_ctx_error(c, "/attention/n_for_scale",
                      "must be at least 1 with a formula, which relies on log(n) not being negative");
    err = job_formula_parse(c->g, &f, &fault);
    if (err == PD_ERR_NOMEM) {
        c->nomem = true;
        return;
    }
    if (err != PD_OK) {
        job_ctx_error(c, "/attention/formula", "character %d: %s", fault.at + 1, fault.text);
        return;
    }
    plan = malloc(sizeof *plan);
    report = malloc(sizeof *report);
    if (!plan || !report) {
        c->nomem = true;
        goto out;
    }
    n = pk_formula_params(f, &names);
    for (size_t k = 0; k < a->params.count;) {
        char pointer[96];
        bool named = false;

        for (int i = 0; i < n; i++)
            named = named || !strcmp(names[i].name, a->params.items[k].name);
        snprintf(pointer, sizeof pointer, "/attention/params/%s", a->params.items[k].name);
        if (!named && job_ctx_layer(c, "/attention/formula") == JOB_LAYER_SWEEP &&
            job_ctx_layer(c, "/attention/params") != JOB_LAYER_SWEEP) {
            job_ctx_warning(c, pointer, "no formula names \"%s\"", a->params.items[k].name);
            forget(c, k);
            continue;
        }
        if (!named)
            job_ctx_error(c, pointer, "the formula has no scalar \"%s\"", a->params.items[k].name);
        else
            check_start(c, &a->params.items[k]);
        k++;
    }
    if (pk_formula_plan(f, plan, &why) != PD_OK)
        job_ctx_error(c, "/attention/formula", "%s", why.text);
    if (!job_formula_builtin(c->g)) {
        double leaf[PK_LEAVES] = {0};

        if (!c->g->diagnostics.probe_cls && c->g->diagnostics.every >= 1)
            job_ctx_error(c, "/diagnostics/probe_cls",
                          "the row functions of a formula include all tokens: use true");
        leaf[PK_LEAF_N] = leaf[PK_LEAF_NI] = a->n;
        leaf[PK_LEAF_HEADS] = leaf[PK_LEAF_LAYERS] = 1;
        leaf[PK_LEAF_WIDTH] = (double)job_config_head_dim(c->g);
        for (int k = 0; k < PK_FORMULA_PARAMS; k++)
            leaf[PK_LEAF_PARAM + k] = names && k < n && names[k].range == PK_RANGE_UNIT ? 0.5 : 1;
        pk_formula_report(f, leaf, report);
        for (int k = 0; k < report->warnings; k++)
            job_ctx_warning(c, "/attention/formula", "character %d: %s", report->warning[k].at + 1,
                            report->warning[k].text);
    }
out:
    free(plan);
    free(report);
    pk_formula_free(f);
}
