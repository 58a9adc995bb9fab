/* POST /api/v1/formulas/check: what a formula of attention is, before a job is made of it. Nothing is kept. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/formula_json.h"
#include "api/handlers.h"
#include "api/http.h"
#include "api/json.h"
#include "kernels/formula/formula.h"

#define SAMPLES_MAX 1001
#define N_MAX 4096
#define BINS_MAX 1024 /* of measured logits */

/* A request, read and checked. */
struct check {
    const char *text;
    size_t length;
    struct pk_formula_param param[PK_FORMULA_PARAMS];
    struct api_formula_scalar scalar[PK_FORMULA_PARAMS]; /* as param */
    char number[PK_FORMULA_PARAMS][32];                  /* initial values that are numbers, as text */
    int params;
    double n, keys, heads, layers;
    struct api_formula at;
    double counts[BINS_MAX];
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

/* An initial value: a number, or a formula of n, h, H, l, L, d. number: for the text of the former. */
static bool start_text(struct api_req *r, const json_t *v, const char *pointer, char number[32],
                       struct api_formula_scalar *to)
{
    struct pk_formula_fault fault;
    struct pk_formula *f;
    const char *why;
    enum pd_err err;

    if (!json_is_number(v) && !json_is_string(v)) {
        refuse(r, pointer, "must be a number or a formula of n, h, H, l, L and d");
        return false;
    }
    snprintf(number, 32, "%.17g", json_number_value(v));
    to->init = json_is_string(v) ? json_string_value(v) : number;
    err = pk_formula_parse(to->init, strlen(to->init), PK_FORMULA_START, false, NULL, 0, &f, &fault);
    if (err == PD_ERR_NOMEM)
        api_fail(r, err, "%s", fault.text);
    else if (err != PD_OK)
        wrong(r, pointer, &fault);
    if (err != PD_OK)
        return false;
    why = job_scalar_share_fault(f, to->per);
    if (why)
        refuse(r, pointer, why);
    pk_formula_free(f);
    return !why;
}

/* The place of v's text in a list of n, or n. */
static size_t word_of(const json_t *v, const char *const *words, size_t n)
{
    size_t k = 0;

    while (k < n && v && (!json_is_string(v) || strcmp(json_string_value(v), words[k])))
        k++;
    return k;
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
        static const char *const shares[] = {"layer", "head", "global"}; /* enum job_scale_share */
        const json_t *init;
        const char *key;
        json_t *member;
        size_t k, per;
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
        k = word_of(json_object_get(p, "form"), forms, 4);
        per = word_of(json_object_get(p, "per"), shares, 3);
        if (k == 4 || per == 3) {
            refuse(r, pointer,
                   k == 4 ? "form must be direct, log, softplus or sigmoid"
                          : "per must be layer, head or global");
            return false;
        }
        strcpy(c->param[c->params].name, name);
        c->param[c->params].range = ranges[k];
        c->scalar[c->params] = (struct api_formula_scalar){
            .name = name, .init = ranges[k] == PK_RANGE_UNIT ? "0.5" : "1", .per = (int)per};
        init = json_object_get(p, "init");
        pointer_of(pointer, sizeof pointer, "#/params/", name, "/init");
        if (init && !start_text(r, init, pointer, c->number[c->params], &c->scalar[c->params]))
            return false;
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

/* Measured logits: {low, high, counts}, as polyd-worker plan --start has them. */
static bool read_logits(struct api_req *r, const json_t *v, struct check *c)
{
    const json_t *low = json_object_get(v, "low"), *high = json_object_get(v, "high"),
                 *counts = json_object_get(v, "counts");
    const size_t bins = json_array_size(counts);
    double sum = 0;

    if (!v || json_is_null(v))
        return true;
    for (size_t k = 0; k < bins && bins <= BINS_MAX; k++) {
        const double x = json_number_value(json_array_get(counts, k));

        c->counts[k] = x;
        sum += json_is_number(json_array_get(counts, k)) && x >= 0 ? x : NAN;
    }
    if (!json_is_number(low) || !json_is_number(high) ||
        !(json_number_value(low) < json_number_value(high)) || bins > BINS_MAX || !(sum > 0)) {
        refuse(r, "#/logits", "must be an object with low below high and 1 to 1024 counts, not all 0");
        return false;
    }
    c->at.start.counts = c->counts;
    c->at.start.bins = (int)bins;
    c->at.start.low = json_number_value(low);
    c->at.start.high = json_number_value(high);
    return true;
}

static bool read_request(struct api_req *r, const json_t *body, struct check *c)
{
    static const char *const known[] = {"formula", "params", "n",  "keys",    "heads",     "layers", "width",
                                        "causal",  "from",   "to", "samples", "logit_std", "logits"};
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
                   "unknown member; a check takes formula, params, n, keys, heads, layers, width, causal, "
                   "logit_std, logits, from, to and samples");
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
    c->n = 64;
    c->heads = 1;
    c->layers = 1;
    c->at = (struct api_formula){.start = {.causal = json_is_true(causal), .width = 64, .logit_std = 1},
                                 .norm = NAN,
                                 .factor = NAN,
                                 .from = -6,
                                 .to = 6};
    if (!read_number(r, body, "n", 1, N_MAX, true, &c->n) ||
        !read_number(r, body, "heads", 1, 4096, true, &c->heads) ||
        !read_number(r, body, "layers", 1, 4096, true, &c->layers) ||
        !read_number(r, body, "width", 1, 65536, true, &c->at.start.width) ||
        !read_number(r, body, "logit_std", 1e-6, 1e3, false, &c->at.start.logit_std) ||
        !read_number(r, body, "from", -1e6, 1e6, false, &c->at.from) ||
        !read_number(r, body, "to", -1e6, 1e6, false, &c->at.to) ||
        !read_number(r, body, "samples", 2, SAMPLES_MAX, true, &samples))
        return false;
    c->keys = c->n;
    if (!read_number(r, body, "keys", 1, N_MAX, true, &c->keys) ||
        !read_logits(r, json_object_get(body, "logits"), c))
        return false;
    c->at.start.keys = (int64_t)c->keys;
    c->at.samples = (int64_t)samples;
    if (!(c->at.from < c->at.to)) {
        refuse(r, "#/to", "must be above from");
        return false;
    }
    return read_params(r, json_object_get(body, "params"), c);
}

/* Whether the values of a scalar are of its form in all heads. */
static bool value_good(struct api_req *r, const char *pointer, enum pk_formula_range range, int scalar,
                       const struct pk_formula_heads *heads)
{
    for (int p = 0; p < heads->count; p++) {
        const double v = heads->leaf[p][PK_LEAF_PARAM + scalar];

        if (!isfinite(v)) {
            refuse(r, pointer, "gives no finite number");
            return false;
        }
        if ((range != PK_RANGE_ANY && v <= 0) || (range == PK_RANGE_UNIT && v >= 1)) {
            refuse(r, pointer,
                   range == PK_RANGE_UNIT ? "must lie between 0 and 1, as form sigmoid gives"
                                          : "must be above 0, as forms log and softplus give");
            return false;
        }
    }
    return true;
}

/* Every scalar's values: what params says, else 1. A name that the formula does not read is refused. */
static bool place_params(struct api_req *r, const struct pk_formula *f, struct check *c)
{
    const struct api_formula_stage stage = {(int64_t)c->layers, (int64_t)c->heads, c->n, c->at.start.width};
    const struct pk_formula_param *param;
    const int params = pk_formula_params(f, &param);
    const enum pd_err err = api_formula_heads(&c->at, f, &stage, 1, c->keys, c->scalar, (size_t)c->params);

    if (err != PD_OK) {
        api_fail(r, err, "the initial values cannot be read");
        return false;
    }
    for (int i = 0; i < c->params; i++) {
        char pointer[160];
        int k = 0;

        while (k < params && strcmp(param[k].name, c->param[i].name))
            k++;
        pointer_of(pointer, sizeof pointer, "#/params/", c->param[i].name, k == params ? "" : "/init");
        if (k == params)
            refuse(r, pointer, "the formula has no scalar of this name");
        if (k == params || !value_good(r, pointer, c->param[i].range, k, &c->at.heads))
            return false;
    }
    return true;
}

void api_formula_check(struct api_req *r)
{
    json_t *body = api_body_json(r, 0);
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct check *c = calloc(1, sizeof *c);
    struct pk_formula_fault fault;
    struct pk_formula *f = NULL;
    struct pd_why why;
    struct pd_buf b;
    enum pd_err err;

    if (!body)
        goto out;
    if (!plan || !c) {
        api_fail(r, PD_ERR_NOMEM, "no memory for a formula");
        goto out;
    }
    if (!read_request(r, body, c))
        goto out;
    err = pk_formula_parse(c->text, c->length, PK_FORMULA_ACTIVATION, c->at.start.causal, c->param, c->params,
                           &f, &fault);
    if (err == PD_ERR_NOMEM)
        api_fail(r, err, "%s", fault.text);
    else if (err != PD_OK)
        wrong(r, "#/formula", &fault);
    if (err != PD_OK || !place_params(r, f, c))
        goto out;
    err = pk_formula_plan(f, plan, &why);
    if (err != PD_OK) {
        refuse(r, "#/formula", why.text);
        goto out;
    }
    pd_buf_init(&b, 0);
    api_formula_json(&b, c->text, f, plan, &c->at);
    api_reply_json(r, 200, &b);
    pd_buf_done(&b);
out:
    pk_formula_free(f);
    free(plan);
    free(c);
    json_decref(body);
}
