/* What a formula of attention is, as JSON: see formula_json.h. */
#include "api/formula_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "daemon/digest/digest.h"

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
        if (pk_formula_row_value(f, c->leaf, s, NULL, keys, a, slope) != PD_OK)
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

/* The size of A, and the number that puts it at softmax's ceiling. */
static void write_forecast(struct pd_buf *b, struct pk_formula *f, const struct api_formula *c)
{
    const double ceiling = sqrt((double)c->start.keys);
    struct pk_formula_forecast x;
    const struct pk_formula_param *param;
    double norm, factor, init = NAN;
    int scalar;

    pk_formula_forecast(f, c->leaf, &c->start, &x);
    norm = isfinite(c->norm) ? c->norm : x.norm;
    factor = isfinite(norm) && norm > 0 ? ceiling / norm : NAN;
    scalar = isfinite(factor) ? pk_formula_factor(f, c->leaf) : -1;
    (void)pk_formula_params(f, &param);
    if (scalar >= 0) {
        init = factor * c->leaf[PK_LEAF_PARAM + scalar];
        if (param[scalar].range == PK_RANGE_UNIT && !(init < 1))
            scalar = -1;
    }
    write_finite(b, "norm", norm);
    api_json_kv_str(b, "norm_from", isfinite(c->norm) ? "start" : c->start.counts ? "logits" : "deviation");
    write_finite(b, "norm_growth", x.growth);
    api_json_kv_num(b, "ceiling", ceiling);
    write_finite(b, "factor_to_ceiling", factor);
    api_json_key(b, "scalar_to_ceiling");
    if (scalar >= 0) {
        api_json_open(b, '{');
        api_json_kv_str(b, "name", param[scalar].name);
        api_json_kv_num(b, "init", init);
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

    pk_formula_report(f, c->leaf, &report);
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
        api_json_kv_num(b, "value", c->leaf[PK_LEAF_PARAM + k]);
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

/* What the start of the run shows: its norm, mean over layers, and the logits of the first. */
static void take_start(struct api_formula *c, const json_t *start, double counts[API_FORMULA_BINS])
{
    const json_t *layers = json_object_get(start, "layers"), *first = json_array_get(layers, 0),
                 *logits = json_object_get(first, "logits"), *list = json_object_get(logits, "counts");
    double sum = 0;

    for (size_t k = 0; k < json_array_size(layers); k++) {
        const json_t *norm = json_object_get(json_array_get(layers, k), "norm");

        sum += json_is_number(norm) ? json_number_value(norm) : NAN;
    }
    if (json_array_size(layers))
        c->norm = sum / (double)json_array_size(layers);
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

/* The value of each scalar in the first head of the first layer. */
static void take_scalars(struct api_formula *c, const struct pk_formula *f, const struct job_scalars *scalars)
{
    const struct pk_formula_param *param;
    const int params = pk_formula_params(f, &param);

    for (int k = 0; k < params; k++) {
        const char *init = "1";
        struct pk_formula_fault fault;
        struct pk_formula *g = NULL;

        for (size_t i = 0; i < scalars->count; i++)
            if (!strcmp(scalars->items[i].name, param[k].name))
                init = scalars->items[i].init;
        if (pk_formula_parse(init, strlen(init), PK_FORMULA_START, false, NULL, 0, &g, &fault) == PD_OK)
            c->leaf[PK_LEAF_PARAM + k] = pk_formula_value(g, c->leaf);
        pk_formula_free(g);
    }
}

enum pd_err api_formula_of_job(struct pd_buf *b, const struct job_config *g, const json_t *start,
                               struct pd_why *why)
{
    const struct job_attention *a = &g->attention;
    const double keys = (double)job_config_keys(g);
    double counts[API_FORMULA_BINS];
    struct api_formula c = {.norm = NAN, .from = -6, .to = 6, .samples = 241};
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    enum pd_err err =
        plan ? job_formula_parse(g, &f, &fault) : pd_fail(why, PD_ERR_NOMEM, "no memory for a formula");

    if (err == PD_OK)
        err = pk_formula_plan(f, plan, why);
    else if (plan)
        (void)pd_fail(why, err, "%s", fault.text);
    if (err != PD_OK)
        goto out;
    c.leaf[PK_LEAF_N] = a->n;
    c.leaf[PK_LEAF_NI] = keys;
    c.leaf[PK_LEAF_I] = keys - 1;
    c.leaf[PK_LEAF_HEADS] = (double)(g->model.heads > 0 ? g->model.heads : 1);
    c.leaf[PK_LEAF_LAYERS] = (double)(g->model.depth > 0 ? g->model.depth : 1);
    c.leaf[PK_LEAF_WIDTH] = (double)job_config_head_dim(g);
    c.start = (struct pk_formula_start){.keys = (int64_t)keys,
                                        .causal = job_config_causal(g),
                                        .logit_std = 1,
                                        .width = (double)job_config_head_dim(g)};
    take_scalars(&c, f, &a->params);
    take_start(&c, start, counts);
    if (c.start.counts) { /* the samples lie where the logits do */
        const double reach = 1.25 * fmax(fabs(c.start.low), fabs(c.start.high));

        c.from = reach > 0 ? -reach : c.from;
        c.to = reach > 0 ? reach : c.to;
    }
    api_formula_json(b, a->formula, f, plan, &c);
out:
    pk_formula_free(f);
    free(plan);
    return err;
}
