/* What a formula of attention is, as JSON: see formula_json.h. */
#include "api/formula_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "daemon/digest/digest.h"

#define STAGES 8 /* of a network */

static void write_faults(struct pd_buf *b, const char *key, const struct pk_formula_fault *f, int n)
{
    api_json_key(b, key);
    api_json_open(b, '[');
    for (int k = 0; k < n; k++) {
        api_json_open(b, '{');
        api_json_kv_int(b, "at", f[k].at);
        api_json_kv_int(b, "length", f[k].length);
        api_json_kv_str(b, "text", f[k].text);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
}

/* A of one entry whose logit moves; with row functions the other keys of the row have logit 0. */
static void write_samples(struct pd_buf *b, struct pk_formula *f, const struct api_formula *c)
{
    const bool row = pk_formula_row_functions(f) > 0;
    const int64_t keys = row ? c->start.keys < 64 ? c->start.keys : 64 : 1;
    double s[64] = {0}, a[64], slope[64];
    struct pd_buf column[3];

    for (int k = 0; k < 3; k++) {
        pd_buf_init(&column[k], 0);
        api_json_open(&column[k], '[');
    }
    for (int64_t k = 0; k < c->samples; k++) {
        s[0] = c->from + (c->to - c->from) * (double)k / (double)(c->samples - 1);
        if (pk_formula_row_value(f, c->heads.leaf[0], s, NULL, keys, a, slope) != PD_OK)
            a[0] = slope[0] = NAN;
        api_json_num(&column[0], s[0]);
        for (int m = 1; m < 3; m++)
            if (isfinite(m == 1 ? a[0] : slope[0]))
                api_json_num(&column[m], m == 1 ? a[0] : slope[0]);
            else
                api_json_null(&column[m]);
    }
    api_json_key(b, "samples");
    api_json_open(b, '{');
    for (int k = 0; k < 3; k++) {
        static const char *const names[] = {"s", "value", "slope"};

        api_json_close(&column[k], ']');
        if (pd_buf_err(&column[k]) != PD_OK)
            b->failed = true;
        api_json_kv_raw(b, names[k], column[k].data);
        pd_buf_done(&column[k]);
    }
    api_json_close(b, '}');
}

static void write_finite(struct pd_buf *b, const char *key, double v)
{
    if (isfinite(v))
        api_json_kv_num(b, key, v);
    else
        api_json_kv_null(b, key);
}

static void write_text(struct pd_buf *b, const char *key, const struct pk_formula *f,
                       void (*print)(const struct pk_formula *, struct pd_buf *))
{
    struct pd_buf t;

    pd_buf_init(&t, PK_FORMULA_CANONICAL);
    print(f, &t);
    if (pd_buf_err(&t) == PD_OK)
        api_json_kv_str(b, key, t.data);
    else
        api_json_kv_null(b, key);
    pd_buf_done(&t);
}

/* PyTorch's FlexAttention, or why not. */
static void write_flex(struct pd_buf *b, struct pk_formula *f)
{
    struct pd_why why = {.text = ""};
    struct pd_buf t;

    pd_buf_init(&t, PK_FORMULA_CANONICAL);
    if (pk_formula_flex(f, &t, &why) == PD_OK) {
        api_json_kv_str(b, "flex", t.data);
        api_json_kv_null(b, "flex_why");
    } else {
        api_json_kv_null(b, "flex");
        api_json_kv_str(b, "flex_why", why.text[0] ? why.text : "the text would be too long");
    }
    pd_buf_done(&t);
}

/* ---- heads ---- */

/* Which of `all` is number k of `count`, evenly from the first to the last. */
static int64_t spread(int64_t k, int64_t count, int64_t all)
{
    return count < 2 ? 0 : (k * (all - 1) + (count - 1) / 2) / (count - 1);
}

/* The sizes of a head of a layer, counted over all stages. */
static void sizes_of(const struct api_formula_stage *stage, int count, int64_t layer, double keys,
                     double leaf[PK_LEAVES])
{
    int64_t layers = 0, first = 0;
    int at = 0;

    for (int i = 0; i < count; i++)
        layers += stage[i].layers;
    while (at < count - 1 && layer >= first + stage[at].layers)
        first += stage[at++].layers;
    memset(leaf, 0, PK_LEAVES * sizeof *leaf);
    leaf[PK_LEAF_N] = stage[at].n;
    leaf[PK_LEAF_NI] = keys;
    leaf[PK_LEAF_I] = keys - 1;
    leaf[PK_LEAF_HEADS] = (double)stage[at].heads;
    leaf[PK_LEAF_LAYER] = (double)layer;
    leaf[PK_LEAF_LAYERS] = (double)layers;
    leaf[PK_LEAF_WIDTH] = stage[at].width;
}

/* The initial value of a scalar that the head of `leaf` shares with others. */
static double shared(const struct pk_formula *init, int per, const double *first, const double *leaf)
{
    double at[PK_LEAVES];

    memcpy(at, per == JOB_SCALE_SHARE_GLOBAL ? first : leaf, sizeof at);
    at[PK_LEAF_HEAD] = per == JOB_SCALE_SHARE_HEAD ? leaf[PK_LEAF_HEAD] : 0;
    return pk_formula_value(init, at);
}

/* Adds heads evenly spaced over heads and layers. */
static void add_heads(struct api_formula *c, const struct api_formula_stage *stage, int count, double keys,
                      bool by_head, bool by_layer, struct pk_formula *const *init, const int *per, int params)
{
    const int64_t side = by_head && by_layer ? 8 : PK_FORMULA_HEADS;
    int64_t layers = 0, some;
    double first[PK_LEAVES];

    for (int i = 0; i < count; i++)
        layers += stage[i].layers;
    sizes_of(stage, count, 0, keys, first);
    some = !by_layer ? 1 : layers < side ? layers : side;
    c->heads.count = 0;
    for (int64_t l = 0; l < some; l++) {
        double leaf[PK_LEAVES];
        int64_t heads, here;

        sizes_of(stage, count, spread(l, some, layers), keys, leaf);
        heads = (int64_t)leaf[PK_LEAF_HEADS];
        here = !by_head ? 1 : heads < PK_FORMULA_HEADS / some ? heads : PK_FORMULA_HEADS / some;
        for (int64_t h = 0; h < here; h++) {
            double *to = c->heads.leaf[c->heads.count++];

            leaf[PK_LEAF_HEAD] = (double)spread(h, here, heads);
            memcpy(to, leaf, sizeof leaf);
            for (int k = 0; k < params; k++)
                to[PK_LEAF_PARAM + k] = shared(init[k], per[k], first, leaf);
        }
    }
}

enum pd_err api_formula_heads(struct api_formula *c, const struct pk_formula *f,
                              const struct api_formula_stage *stages, int stage_count, double keys,
                              const struct api_formula_scalar *scalars, size_t scalar_count)
{
    const struct pk_formula_param *param;
    const int params = pk_formula_params(f, &param);
    bool by_head = pk_formula_reads(f, PK_LEAF_HEAD),
         by_layer = stage_count > 1 || pk_formula_reads(f, PK_LEAF_LAYER);
    struct pk_formula *init[PK_FORMULA_PARAMS] = {NULL};
    int per[PK_FORMULA_PARAMS] = {0};
    enum pd_err err = PD_OK;

    for (int k = 0; k < params && err == PD_OK; k++) {
        struct pk_formula_fault fault;

        c->init[k] = "1";
        per[k] = JOB_SCALE_SHARE_LAYER;
        for (size_t i = 0; i < scalar_count; i++)
            if (!strcmp(scalars[i].name, param[k].name)) {
                c->init[k] = scalars[i].init;
                per[k] = scalars[i].per;
            }
        err = pk_formula_parse(c->init[k], strlen(c->init[k]), PK_FORMULA_START, false, NULL, 0, &init[k],
                               &fault);
        by_head = by_head || (err == PD_OK && pk_formula_reads(init[k], PK_LEAF_HEAD));
        by_layer = by_layer || (err == PD_OK && pk_formula_reads(init[k], PK_LEAF_LAYER));
    }
    if (err == PD_OK)
        add_heads(c, stages, stage_count, keys, by_head, by_layer, init, per, params);
    for (int k = 0; k < params; k++)
        pk_formula_free(init[k]);
    return err;
}

/* ---- the size of A ---- */

/* Whether the scalar has one initial value, wherever it is. */
static bool same_everywhere(const struct pk_formula_heads *heads, int scalar)
{
    bool same = true;

    for (int p = 1; p < heads->count; p++)
        same = same && heads->leaf[p][PK_LEAF_PARAM + scalar] == heads->leaf[0][PK_LEAF_PARAM + scalar];
    return same;
}

/* The text of an initial value `factor` times as large; returns its length. One factor is enough: 3*(2*(h)) is 6*(h). */
static int scaled(char *out, size_t size, double factor, const char *init)
{
    char text[JOB_SCALAR_INIT + 1], *end;
    size_t n = (size_t)snprintf(text, sizeof text, "%s", init), names; /* before the value: "t = h + 1; " */
    double before;
    int depth = 0;

    while (n && strchr("; ", text[n - 1]))
        text[--n] = 0;
    end = strrchr(text, ';');
    names = end ? (size_t)(end + 1 - text) : 0;
    names += strspn(text + names, " ");
    init = text + names;
    before = strtod(init, &end);

    if (end > init && strspn(init, "0123456789.eE+-") == (size_t)(end - init) && !strncmp(end, "*(", 2)) {
        const char *c = end + 1;

        do
            depth += *c == '(' ? 1 : *c == ')' ? -1 : 0;
        while (depth && *++c);
        if (*c && !c[1] && isfinite(factor * before))
            return snprintf(out, size, "%.*s%.6g%s", (int)names, text, factor * before, end);
    }
    return snprintf(out, size, "%.*s%.6g*(%s)", (int)names, text, factor, init);
}

/* An initial value. */
struct suggestion {
    int scalar; /* of the formula's; below 0: there is none */
    bool text;  /* it differs between heads or layers, and init has its formula */
    double number;
    char init[JOB_SCALAR_INIT + 1];
};

/* The scalar that A is proportional to at an initial value `factor` times as large. */
static void suggest(struct pk_formula *f, const struct api_formula *c, double factor, struct suggestion *ret)
{
    const struct pk_formula_param *param;
    const int k = isfinite(factor) ? pk_formula_factor(f, &c->heads) : -1;
    bool fits = k >= 0;

    ret->scalar = -1;
    (void)pk_formula_params(f, &param);
    for (int p = 0; fits && p < c->heads.count; p++) {
        const double v = factor * c->heads.leaf[p][PK_LEAF_PARAM + k];

        fits = isfinite((double)(float)v) && (param[k].range != PK_RANGE_UNIT || (float)v < 1);
    }
    if (!fits)
        return;
    ret->number = factor * c->heads.leaf[0][PK_LEAF_PARAM + k];
    ret->text = !same_everywhere(&c->heads, k);
    if (!ret->text || (size_t)scaled(ret->init, sizeof ret->init, factor, c->init[k]) < sizeof ret->init)
        ret->scalar = k;
}

/* The factor on A that puts its norm at softmax's ceiling. */
static double factor_of(const struct api_formula *c, double norm)
{
    if (isfinite(c->factor))
        return c->factor;
    return isfinite(norm) && norm > 0 ? sqrt((double)c->start.keys) / norm : NAN;
}

/* The size of A, and the number that puts it at softmax's ceiling. */
static void write_forecast(struct pd_buf *b, struct pk_formula *f, const struct api_formula *c)
{
    struct pk_formula_forecast x;
    const struct pk_formula_param *param;
    struct suggestion to;
    double norm;

    pk_formula_forecast(f, &c->heads, &c->start, &x);
    norm = isfinite(c->norm) ? c->norm : x.norm;
    suggest(f, c, factor_of(c, norm), &to);
    (void)pk_formula_params(f, &param);
    write_finite(b, "norm", norm);
    api_json_kv_str(b, "norm_from", isfinite(c->norm) ? "start" : c->start.counts ? "logits" : "deviation");
    write_finite(b, "norm_growth", x.growth);
    api_json_kv_num(b, "ceiling", sqrt((double)c->start.keys));
    write_finite(b, "factor_to_ceiling", factor_of(c, norm));
    api_json_key(b, "scalar_to_ceiling");
    if (to.scalar >= 0) {
        api_json_open(b, '{');
        api_json_kv_str(b, "name", param[to.scalar].name);
        if (to.text)
            api_json_kv_str(b, "init", to.init);
        else
            api_json_kv_num(b, "init", to.number);
        api_json_close(b, '}');
    } else {
        api_json_null(b);
    }
    api_json_key(b, "beyond");
    api_json_open(b, '{');
    for (int bf16 = 0; bf16 < 2; bf16++) {
        api_json_key(b, bf16 ? "bf16" : "f32");
        api_json_open(b, '{');
        write_finite(b, "over", bf16 ? x.bf16_over : x.f32_over);
        write_finite(b, "under", bf16 ? x.bf16_under : x.f32_under);
        api_json_close(b, '}');
    }
    api_json_close(b, '}');
}

void api_formula_json(struct pd_buf *b, const char *text, struct pk_formula *f,
                      const struct pk_formula_plan *plan, const struct api_formula *c)
{
    static const char *const parities[] = {"none", "even", "odd"};
    const struct pk_formula_param *param;
    struct pk_formula_report report;
    const int params = pk_formula_params(f, &param);
    double constant, alpha;
    char digest[DIGEST_SHA256_HEX_SIZE];
    int degree;
    const char *builtin = pk_formula_builtin(f, &degree, &constant, &alpha);
    struct pd_buf t;

    pk_formula_report(f, c->heads.leaf[0], &report);
    pd_buf_init(&t, PK_FORMULA_CANONICAL);
    pk_formula_canonical(f, &t);
    api_json_open(b, '{');
    api_json_kv_str(b, "formula", text);
    if (pd_buf_err(&t) == PD_OK) {
        api_json_kv_str(b, "canonical", t.data);
        api_json_kv_str(b, "digest", digest_sha256_hex(t.data, t.len, digest));
    } else {
        api_json_kv_null(b, "canonical");
        api_json_kv_null(b, "digest");
    }
    pd_buf_done(&t);
    pd_buf_init(&t, PK_FORMULA_CANONICAL);
    if (pk_formula_slope_text(f, PK_LEAF_S, 1, &t) == PD_OK)
        api_json_kv_str(b, "slope", t.data);
    else
        api_json_kv_null(b, "slope");
    pd_buf_done(&t);
    write_text(b, "latex", f, pk_formula_latex);
    write_text(b, "torch", f, pk_formula_torch);
    write_flex(b, f);
    api_json_key(b, "params");
    api_json_open(b, '[');
    for (int k = 0; k < params; k++) {
        api_json_open(b, '{');
        api_json_kv_str(b, "name", param[k].name);
        api_json_kv_int(b, "at", param[k].at);
        api_json_kv_num(b, "value", c->heads.leaf[0][PK_LEAF_PARAM + k]);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_key(b, "builtin");
    if (builtin) {
        api_json_open(b, '{');
        api_json_kv_str(b, "activation", builtin);
        api_json_kv_int(b, "degree", degree);
        api_json_kv_num(b, "constant", constant);
        api_json_kv_num(b, "alpha", alpha);
        api_json_close(b, '}');
    } else {
        api_json_null(b);
    }
    api_json_kv_int(b, "row_functions", pk_formula_row_functions(f));
    api_json_kv_int(b, "passes", plan->two_passes ? 2 : 1);
    api_json_key(b, "operations");
    api_json_open(b, '{');
    api_json_kv_int(b, "forward",
                    plan->value.count - plan->value.per_row +
                        (plan->two_passes ? plan->sums.count - plan->sums.per_row : 0));
    api_json_kv_int(b, "backward", plan->back.count - plan->back.per_row);
    api_json_close(b, '}');
    write_finite(b, "at_zero", report.at_zero);
    api_json_kv_str(b, "parity", parities[report.parity]);
    write_finite(b, "lowest", report.lo);
    write_finite(b, "highest", report.hi);
    api_json_kv_str(b, "sign",
                    report.lo >= 0   ? "never negative"
                    : report.hi <= 0 ? "never positive"
                                     : "either");
    api_json_kv_bool(b, "may_fail", report.may_fail);
    api_json_key(b, "growth");
    if (isnan(report.growth))
        api_json_null(b);
    else
        api_json_num(b, report.growth);
    write_forecast(b, f, c);
    write_faults(b, "warnings", report.warning, report.warnings);
    write_samples(b, f, c);
    api_json_close(b, '}');
}

/* ---- of a job ---- */

double api_formula_norm(const json_t *start)
{
    const json_t *layers = json_object_get(start, "layers");
    double sum = 0;

    for (size_t k = 0; k < json_array_size(layers); k++) {
        const json_t *norm = json_object_get(json_array_get(layers, k), "norm");

        sum += json_is_number(norm) ? json_number_value(norm) : NAN;
    }
    return json_array_size(layers) ? sum / (double)json_array_size(layers) : NAN;
}

/* What the start of the run shows: its norm, and the logits of the first layer. */
static void take_start(struct api_formula *c, const json_t *start, double counts[API_FORMULA_BINS])
{
    const json_t *layers = json_object_get(start, "layers"), *first = json_array_get(layers, 0),
                 *logits = json_object_get(first, "logits"), *list = json_object_get(logits, "counts");

    c->norm = api_formula_norm(start);
    if (json_number_value(json_object_get(first, "logit_std")) > 0)
        c->start.logit_std = json_number_value(json_object_get(first, "logit_std"));
    if (json_array_size(list) < 1 || json_array_size(list) > API_FORMULA_BINS)
        return;
    for (size_t k = 0; k < json_array_size(list); k++)
        counts[k] = json_number_value(json_array_get(list, k));
    c->start.counts = counts;
    c->start.bins = (int)json_array_size(list);
    c->start.low = json_number_value(json_object_get(logits, "low"));
    c->start.high = json_number_value(json_object_get(logits, "high"));
}

/* The heads of the run's network. */
static enum pd_err take_heads(struct api_formula *c, const struct pk_formula *f, const struct job_config *g,
                              struct pd_why *why)
{
    const struct job_scalars *described = &g->attention.params;
    struct api_formula_scalar scalars[PK_FORMULA_PARAMS];
    struct api_formula_stage stages[STAGES];
    struct job_stage at;
    int count = 0;
    enum pd_err err;

    for (size_t k = 0; k < described->count; k++)
        scalars[k] = (struct api_formula_scalar){described->items[k].name, described->items[k].init,
                                                 described->items[k].per};
    for (; count < STAGES && job_config_stage(g, (size_t)count, &at); count++)
        stages[count] = (struct api_formula_stage){.layers = at.blocks > 0 ? at.blocks : 1,
                                                   .heads = at.heads > 0 ? at.heads : 1,
                                                   .n = at.n,
                                                   .width = (double)at.head_dim};
    err = api_formula_heads(c, f, stages, count, (double)job_config_keys(g), scalars, described->count);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "the initial values of a formula cannot be read");
}

/* A run's formula, which the caller frees, and where it runs. */
static enum pd_err open_job(const struct job_config *g, const json_t *start, double factor,
                            struct api_formula *c, double counts[API_FORMULA_BINS], struct pk_formula **ret,
                            struct pd_why *why)
{
    struct pk_formula_fault fault;
    enum pd_err err = job_formula_parse(g, ret, &fault);

    if (err != PD_OK)
        return pd_fail(why, err, "%s", fault.text);
    *c = (struct api_formula){.norm = NAN, .factor = factor, .from = -6, .to = 6, .samples = 241};
    c->start = (struct pk_formula_start){.keys = job_config_keys(g),
                                         .causal = job_config_causal(g),
                                         .logit_std = 1,
                                         .width = (double)job_config_head_dim(g)};
    err = take_heads(c, *ret, g, why);
    take_start(c, start, counts);
    if (c->start.counts) { /* the samples lie where the logits do */
        const double reach = 1.25 * fmax(fabs(c->start.low), fabs(c->start.high));

        c->from = reach > 0 ? -reach : c->from;
        c->to = reach > 0 ? reach : c->to;
    }
    return err;
}

enum pd_err api_formula_of_job(struct pd_buf *b, const struct job_config *g, const json_t *start,
                               double factor, struct pd_why *why)
{
    double counts[API_FORMULA_BINS];
    struct api_formula c;
    struct pk_formula *f = NULL;
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    enum pd_err err = plan ? open_job(g, start, factor, &c, counts, &f, why)
                           : pd_fail(why, PD_ERR_NOMEM, "no memory for a formula");

    if (err == PD_OK)
        err = pk_formula_plan(f, plan, why);
    if (err == PD_OK)
        api_formula_json(b, g->attention.formula, f, plan, &c);
    pk_formula_free(f);
    free(plan);
    return err;
}

/* Sets the initial value of a scalar in a document; false without memory. */
static bool place_init(json_t *document, const char *name, const struct suggestion *to)
{
    json_t *params = json_object_get(json_object_get(document, "attention"), "params"),
           *scalar = json_object_get(params, name);

    if (!scalar) {
        scalar = json_object();
        if (json_object_set_new(params, name, scalar) != 0)
            return false;
    }
    return json_object_set_new(scalar, "init", to->text ? json_string(to->init) : json_real(to->number)) == 0;
}

enum pd_err api_formula_at_ceiling(const struct job_config *g, const char *document, const json_t *start,
                                   double *factor, char **ret, struct pd_why *why)
{
    double counts[API_FORMULA_BINS];
    struct api_formula c;
    struct pk_formula *f = NULL;
    const struct pk_formula_param *param;
    struct suggestion to = {.scalar = -1};
    enum pd_err err = open_job(g, start, *factor, &c, counts, &f, why);

    *ret = NULL;
    if (err == PD_OK) {
        *factor = factor_of(&c, c.norm);
        suggest(f, &c, *factor, &to);
        (void)pk_formula_params(f, &param);
    }
    if (to.scalar >= 0) {
        json_t *changed = json_loads(document, 0, NULL);

        if (place_init(changed, param[to.scalar].name, &to))
            *ret = json_dumps(changed, JSON_COMPACT);
        json_decref(changed);
        if (!*ret)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for a document");
    }
    pk_formula_free(f);
    return err;
}
