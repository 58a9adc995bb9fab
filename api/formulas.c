/* POST /api/v1/formulas/check: what a formula of attention is, before a job is made of it. Nothing is kept. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/http.h"
#include "api/json.h"
#include "daemon/digest/digest.h"
#include "kernels/formula/forecast.h"
#include "kernels/formula/formula.h"

#define SAMPLES_MAX 1001
#define N_MAX 4096
#define CANONICAL_MAX ((size_t)64 * 1024) /* of the normal form as text */

/* A request, read and checked. */
struct check {
    const char *text;
    size_t length;
    struct pk_formula_param param[PK_FORMULA_PARAMS];
    double init[PK_FORMULA_PARAMS];
    int params;
    bool causal;
    double n, heads, layers, width, logit_std, from, to;
    int64_t samples;
    double leaf[PK_LEAVES];
};

/* Answers 422 with one error. `fault`: where in a formula's text, or NULL. */
static void refuse_at(struct api_req *r, const char *pointer, const char *text,
                      const struct pk_formula_fault *fault)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '[');
    api_json_open(&b, '{');
    api_json_kv_str(&b, "pointer", pointer);
    api_json_kv_str(&b, "detail", text);
    if (fault) {
        api_json_kv_int(&b, "at", fault->at);
        api_json_kv_int(&b, "length", fault->length);
    }
    api_json_close(&b, '}');
    api_json_close(&b, ']');
    if (pd_buf_err(&b) != PD_OK)
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
    else if (fault)
        api_fail_details(r, PD_ERR_INVALID, b.data, "%s, character %d: %s", pointer, fault->at + 1, text);
    else
        api_fail_details(r, PD_ERR_INVALID, b.data, "%s: %s", pointer, text);
    pd_buf_done(&b);
}

static void wrong(struct api_req *r, const char *pointer, const struct pk_formula_fault *fault)
{
    refuse_at(r, pointer, fault->text, fault);
}

static void refuse(struct api_req *r, const char *pointer, const char *text)
{
    refuse_at(r, pointer, text, NULL);
}

/* The JSON pointer (RFC 6901) of `name` below `parent`, or with `member` of a member of it. */
static void pointer_of(char *out, size_t size, const char *parent, const char *name, const char *member)
{
    size_t n = (size_t)snprintf(out, size, "%s", parent);

    for (size_t i = 0; name[i] && i < 60 && n + 8 < size; i++)
        if (name[i] == '~' || name[i] == '/') {
            out[n++] = '~';
            out[n++] = name[i] == '~' ? '0' : '1';
        } else {
            out[n++] = name[i];
        }
    snprintf(out + n, size - n, "%s", member);
}

/* An initial value: a number, or a formula of n, h, H, l, L, d. */
static bool start_value(struct api_req *r, const json_t *v, const char *pointer, const struct check *c,
                        double *ret)
{
    struct pk_formula_fault fault;
    struct pk_formula *f;
    enum pd_err err;

    if (json_is_number(v)) {
        *ret = json_number_value(v);
        return true;
    }
    if (!json_is_string(v)) {
        refuse(r, pointer, "must be a number or a formula of n, h, H, l, L and d");
        return false;
    }
    err = pk_formula_parse(json_string_value(v), json_string_length(v), PK_FORMULA_START, false, NULL, 0, &f,
                           &fault);
    if (err == PD_ERR_NOMEM)
        api_fail(r, err, "%s", fault.text);
    else if (err != PD_OK)
        wrong(r, pointer, &fault);
    if (err != PD_OK)
        return false;
    *ret = pk_formula_value(f, c->leaf);
    pk_formula_free(f);
    if (!isfinite(*ret)) {
        refuse(r, pointer, "gives no finite number");
        return false;
    }
    return true;
}

static bool read_params(struct api_req *r, const json_t *params, struct check *c)
{
    const char *name;
    json_t *p;

    if (!params)
        return true;
    if (!json_is_object(params)) {
        refuse(r, "#/params", "must be an object of learned scalars by name");
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)params, name, p)
    {
        static const char *const forms[] = {"direct", "log", "softplus", "sigmoid"};
        static const enum pk_formula_range ranges[] = {PK_RANGE_ANY, PK_RANGE_POSITIVE, PK_RANGE_POSITIVE,
                                                       PK_RANGE_UNIT};
        const json_t *form, *init;
        const char *key;
        json_t *member;
        size_t k = 0;
        char pointer[160];

        pointer_of(pointer, sizeof pointer, "#/params/", name, "");
        if (c->params == PK_FORMULA_PARAMS || strlen(name) >= PK_FORMULA_NAME) {
            refuse(r, pointer,
                   c->params == PK_FORMULA_PARAMS ? "there may be 8 learned scalars"
                                                  : "a name has at most 31 characters");
            return false;
        }
        if (!json_is_object(p)) {
            refuse(r, pointer, "must be an object with init, form and per");
            return false;
        }
        json_object_foreach(p, key, member)
        {
            if (strcmp(key, "init") && strcmp(key, "form") && strcmp(key, "per")) {
                refuse(r, pointer, "takes init, form and per only");
                return false;
            }
        }
        form = json_object_get(p, "form");
        while (k < 4 && form && (!json_is_string(form) || strcmp(json_string_value(form), forms[k])))
            k++;
        if (k == 4) {
            refuse(r, pointer, "form must be direct, log, softplus or sigmoid");
            return false;
        }
        strcpy(c->param[c->params].name, name);
        c->param[c->params].range = ranges[k];
        c->init[c->params] = ranges[k] == PK_RANGE_UNIT ? 0.5 : 1;
        init = json_object_get(p, "init");
        pointer_of(pointer, sizeof pointer, "#/params/", name, "/init");
        if (init && !start_value(r, init, pointer, c, &c->init[c->params]))
            return false;
        if ((ranges[k] != PK_RANGE_ANY && c->init[c->params] <= 0) ||
            (ranges[k] == PK_RANGE_UNIT && c->init[c->params] >= 1)) {
            refuse(r, pointer,
                   ranges[k] == PK_RANGE_UNIT ? "must lie between 0 and 1, as form sigmoid gives"
                                              : "must be above 0, as forms log and softplus give");
            return false;
        }
        c->params++;
    }
    return true;
}

static bool read_number(struct api_req *r, const json_t *body, const char *name, double low, double high,
                        bool whole, double *ret)
{
    const json_t *v = json_object_get(body, name);
    char pointer[32], text[120];

    if (!v)
        return true;
    snprintf(pointer, sizeof pointer, "#/%s", name);
    if (!json_is_number(v) || !(json_number_value(v) >= low && json_number_value(v) <= high) ||
        (whole && !json_is_integer(v))) {
        snprintf(text, sizeof text, "must be a%s number from %g to %g", whole ? " whole" : "", low, high);
        refuse(r, pointer, text);
        return false;
    }
    *ret = json_number_value(v);
    return true;
}

static bool read_request(struct api_req *r, const json_t *body, struct check *c)
{
    static const char *const known[] = {"formula", "params", "n",  "heads",   "layers",   "width",
                                        "causal",  "from",   "to", "samples", "logit_std"};
    const json_t *formula = json_object_get(body, "formula"), *causal = json_object_get(body, "causal");
    double samples = 121;
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)body, key, v)
    {
        size_t k = 0;
        char pointer[80];

        while (k < sizeof known / sizeof *known && strcmp(known[k], key))
            k++;
        pointer_of(pointer, sizeof pointer, "#/", key, "");
        if (k == sizeof known / sizeof *known) {
            refuse(r, pointer,
                   "unknown member; a check takes formula, params, n, heads, layers, width, causal, "
                   "logit_std, from, to "
                   "and samples");
            return false;
        }
    }
    if (!json_is_string(formula)) {
        refuse(r, "#/formula",
               formula ? "must be a text" : "is missing: the text of a formula, such as s^3/sqrt(n)");
        return false;
    }
    if (causal && !json_is_boolean(causal)) {
        refuse(r, "#/causal", "must be true or false");
        return false;
    }
    c->text = json_string_value(formula);
    c->length = json_string_length(formula);
    c->causal = json_is_true(causal);
    c->n = 64;
    c->heads = 1;
    c->layers = 1;
    c->width = 64;
    c->logit_std = 1;
    c->from = -6;
    c->to = 6;
    if (!read_number(r, body, "n", 1, N_MAX, true, &c->n) ||
        !read_number(r, body, "heads", 1, 4096, true, &c->heads) ||
        !read_number(r, body, "layers", 1, 4096, true, &c->layers) ||
        !read_number(r, body, "width", 1, 65536, true, &c->width) ||
        !read_number(r, body, "logit_std", 1e-6, 1e3, false, &c->logit_std) ||
        !read_number(r, body, "from", -1e6, 1e6, false, &c->from) ||
        !read_number(r, body, "to", -1e6, 1e6, false, &c->to) ||
        !read_number(r, body, "samples", 2, SAMPLES_MAX, true, &samples))
        return false;
    c->samples = (int64_t)samples;
    if (!(c->from < c->to)) {
        refuse(r, "#/to", "must be above from");
        return false;
    }
    c->leaf[PK_LEAF_N] = c->n;
    c->leaf[PK_LEAF_NI] = c->n;
    c->leaf[PK_LEAF_I] = c->n - 1;
    c->leaf[PK_LEAF_HEADS] = c->heads;
    c->leaf[PK_LEAF_LAYERS] = c->layers;
    c->leaf[PK_LEAF_WIDTH] = c->width;
    return read_params(r, json_object_get(body, "params"), c);
}

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
static void write_samples(struct pd_buf *b, struct pk_formula *f, const struct check *c)
{
    const bool row = pk_formula_row_functions(f) > 0;
    const int64_t keys = row ? (int64_t)(c->n < 64 ? c->n : 64) : 1;
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

    pd_buf_init(&t, CANONICAL_MAX);
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

    pd_buf_init(&t, CANONICAL_MAX);
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
static void write_forecast(struct pd_buf *b, struct pk_formula *f, const double *leaf, double n,
                           const struct pk_formula_forecast *x)
{
    const double factor = isfinite(x->norm) && x->norm > 0 ? sqrt(n) / x->norm : NAN;
    const int scalar = isfinite(factor) ? pk_formula_factor(f, leaf) : -1;
    const struct pk_formula_param *param;

    (void)pk_formula_params(f, &param);
    write_finite(b, "norm", x->norm);
    write_finite(b, "norm_growth", x->growth);
    api_json_kv_num(b, "ceiling", sqrt(n));
    write_finite(b, "factor_to_ceiling", factor);
    api_json_key(b, "scalar_to_ceiling");
    if (scalar >= 0) {
        api_json_open(b, '{');
        api_json_kv_str(b, "name", param[scalar].name);
        api_json_kv_num(b, "init", factor * leaf[PK_LEAF_PARAM + scalar]);
        api_json_close(b, '}');
    } else {
        api_json_null(b);
    }
    api_json_key(b, "beyond");
    api_json_open(b, '{');
    for (int bf16 = 0; bf16 < 2; bf16++) {
        api_json_key(b, bf16 ? "bf16" : "f32");
        api_json_open(b, '{');
        write_finite(b, "over", bf16 ? x->bf16_over : x->f32_over);
        write_finite(b, "under", bf16 ? x->bf16_under : x->f32_under);
        api_json_close(b, '}');
    }
    api_json_close(b, '}');
}

static void write_answer(struct pd_buf *b, struct pk_formula *f, struct check *c,
                         const struct pk_formula_plan *plan)
{
    static const char *const parities[] = {"none", "even", "odd"};
    const struct pk_formula_param *param;
    struct pk_formula_report report;
    const int params = pk_formula_params(f, &param);
    const struct pk_formula_start start = {
        .keys = (int64_t)c->n, .causal = c->causal, .logit_std = c->logit_std, .width = c->width};
    struct pk_formula_forecast forecast;
    double constant, alpha;
    char digest[DIGEST_SHA256_HEX_SIZE];
    int degree;
    const char *builtin = pk_formula_builtin(f, &degree, &constant, &alpha);
    struct pd_buf t;

    pk_formula_report(f, c->leaf, &report);
    pd_buf_init(&t, CANONICAL_MAX);
    pk_formula_canonical(f, &t);
    api_json_open(b, '{');
    api_json_kv_str(b, "formula", c->text);
    if (pd_buf_err(&t) == PD_OK) {
        api_json_kv_str(b, "canonical", t.data);
        api_json_kv_str(b, "digest", digest_sha256_hex(t.data, t.len, digest));
    } else {
        api_json_kv_null(b, "canonical");
        api_json_kv_null(b, "digest");
    }
    pd_buf_done(&t);
    pd_buf_init(&t, CANONICAL_MAX);
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
    pk_formula_forecast(f, c->leaf, &start, &forecast);
    write_forecast(b, f, c->leaf, c->n, &forecast);
    write_faults(b, "warnings", report.warning, report.warnings);
    write_samples(b, f, c);
    api_json_close(b, '}');
}

/* Every scalar's value: what params says, else 1. A name that the formula does not read is refused. */
static bool place_params(struct api_req *r, const struct pk_formula *f, struct check *c)
{
    const struct pk_formula_param *param;
    const int params = pk_formula_params(f, &param);

    for (int i = 0; i < c->params; i++) {
        char pointer[160];
        int k = 0;

        while (k < params && strcmp(param[k].name, c->param[i].name))
            k++;
        pointer_of(pointer, sizeof pointer, "#/params/", c->param[i].name, "");
        if (k == params) {
            refuse(r, pointer, "the formula does not name this scalar");
            return false;
        }
    }
    for (int k = 0; k < params; k++) {
        c->leaf[PK_LEAF_PARAM + k] = 1;
        for (int i = 0; i < c->params; i++)
            if (!strcmp(param[k].name, c->param[i].name))
                c->leaf[PK_LEAF_PARAM + k] = c->init[i];
    }
    return true;
}

void api_formula_check(struct api_req *r)
{
    json_t *body = api_body_json(r, 0);
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct check c = {.text = NULL};
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pd_why why;
    struct pd_buf b;
    enum pd_err err;

    if (!body)
        goto out;
    if (!plan) {
        api_fail(r, PD_ERR_NOMEM, "no memory for a formula");
        goto out;
    }
    if (!read_request(r, body, &c))
        goto out;
    err = pk_formula_parse(c.text, c.length, PK_FORMULA_ACTIVATION, c.causal, c.param, c.params, &f, &fault);
    if (err == PD_ERR_NOMEM)
        api_fail(r, err, "%s", fault.text);
    else if (err != PD_OK)
        wrong(r, "#/formula", &fault);
    if (err != PD_OK || !place_params(r, f, &c))
        goto out;
    err = pk_formula_plan(f, plan, &why);
    if (err != PD_OK) {
        refuse(r, "#/formula", why.text);
        goto out;
    }
    pd_buf_init(&b, 0);
    write_answer(&b, f, &c, plan);
    api_reply_json(r, 200, &b);
    pd_buf_done(&b);
out:
    pk_formula_free(f);
    free(plan);
    json_decref(body);
}
