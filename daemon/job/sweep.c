/* Sweeps: axes, and the values of the n-th combination. Pure arithmetic on the document: the same
 * document makes the same runs, on any machine with the same libm. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

/* Twelve digits, so that log [0.001, 1000, 7] means 0.01 and not 0.010000000000000002. */
static double tidy(double v)
{
    char text[40];

    snprintf(text, sizeof text, "%.12g", v);
    return strtod(text, NULL);
}

/* `rest` is in fragment form. */
static void axis_error(struct job_ctx *c, size_t index, const char *rest, const char *text)
{
    struct pd_buf pointer;

    pd_buf_init(&pointer, 0);
    pd_buf_printf(&pointer, "#/sweep/axes/%zu%s", index, rest);
    if (pd_buf_err(&pointer) == PD_OK)
        job_report_error(c->report, pointer.data, "%s", text);
    else
        c->nomem = true;
    pd_buf_done(&pointer);
}

/* [lo, hi] or [lo, hi, n] with lo <= hi; reports. */
static bool read_range(struct job_ctx *c, const struct job_axis *a, const char *form, json_t *v, bool counted,
                       double *lo, double *hi, size_t *n)
{
    json_t *x = json_array_get(v, 0), *y = json_array_get(v, 1), *z = json_array_get(v, 2);
    char rest[32], sentence[128];
    bool by_log = strncmp(form, "log", 3) == 0;

    snprintf(rest, sizeof rest, "/%s", form);
    if (json_array_size(v) != (counted ? 3u : 2u) || !json_is_number(x) || !json_is_number(y)) {
        axis_error(c, a->index, rest,
                   counted ? "must be [lo, hi, n]: two numbers and how many values"
                           : "must be [lo, hi]: two numbers");
        return false;
    }
    *lo = json_number_value(x);
    *hi = json_number_value(y);
    if (*lo > *hi || (by_log && *lo <= 0)) {
        axis_error(c, a->index, rest, by_log ? "needs 0 < lo <= hi" : "needs lo <= hi");
        return false;
    }
    if (counted) {
        if (!json_is_integer(z) || json_integer_value(z) < 1 || json_integer_value(z) > JOB_MAX_AXIS_VALUES) {
            snprintf(sentence, sizeof sentence, "n must be an integer from 1 to %d", JOB_MAX_AXIS_VALUES);
            axis_error(c, a->index, rest, sentence);
            return false;
        }
        *n = (size_t)json_integer_value(z);
    }
    return true;
}

static json_t *axis_number(const struct job_axis *a, double v)
{
    return job_json_num(a->integer ? round(v) : tidy(v));
}

/* n values from lo to hi; NULL without memory. */
static json_t *spaced(const struct job_axis *a, double lo, double hi, size_t n, bool by_log)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < n; i++) {
        double t = n > 1 ? (double)i / (double)(n - 1) : 0;
        double v = by_log ? exp(log(lo) + t * (log(hi) - log(lo))) : lo + t * (hi - lo);
        if (i == n - 1 && n > 1)
            v = hi;
        if (json_array_append_new(list, axis_number(a, v)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static const char *const forms[] = {"values", "log", "linear", "uniform", "loguniform"};
enum form { FORM_VALUES, FORM_LOG, FORM_LINEAR, FORM_UNIFORM, FORM_LOGUNIFORM, FORM_COUNT };

/* Which form the axis has; FORM_COUNT after a report. */
static enum form axis_form(struct job_ctx *c, size_t index, json_t *v)
{
    enum form form = FORM_COUNT;
    const char *key;
    json_t *ignored;
    char sentence[256], near[64];

    json_object_foreach(v, key, ignored)
    {
        unsigned k = 0;
        if (strcmp(key, "pointer") == 0)
            continue;
        while (k < FORM_COUNT && strcmp(key, forms[k]) != 0)
            k++;
        if (k == FORM_COUNT) {
            struct pd_buf b;
            pd_buf_init(&b, 0);
            job_pointer_add(&b, key);
            snprintf(sentence, sizeof sentence, "unknown key%s",
                     pd_did_you_mean(near, sizeof near, key, forms, FORM_COUNT));
            if (pd_buf_err(&b) == PD_OK)
                axis_error(c, index, b.data, sentence);
            else
                c->nomem = true;
            pd_buf_done(&b);
            return FORM_COUNT;
        }
        if (form != FORM_COUNT) {
            axis_error(c, index, "", "has more than one of values, log, linear, uniform, loguniform");
            return FORM_COUNT;
        }
        form = (enum form)k;
    }
    if (form == FORM_COUNT)
        axis_error(c, index, "", "needs one of values, log, linear, uniform, loguniform");
    return form;
}

/* Whether the pointer may be swept; reports. */
static bool axis_pointer(struct job_ctx *c, struct job_axis *a, json_t *pointer)
{
    const char *p = json_string_value(pointer);
    const struct job_field *f;
    char sentence[384], parent[256];
    const char *slash;

    if (!p || p[0] != '/') {
        axis_error(c, a->index, "/pointer", "must be a JSON pointer such as \"/attention/k\"");
        return false;
    }
    a->pointer = p;
    f = job_field_find(p);
    if (f && f->flags & (JOB_F_FIXED | JOB_F_COMPUTED)) {
        axis_error(c, a->index, "/pointer", "this field cannot be swept");
        return false;
    }
    a->integer = f && f->type == JOB_T_INT;
    if (f || (job_field_below(p) && strcmp(p, "/sweep") != 0 && strcmp(p, "/resources") != 0))
        return true;
    slash = strrchr(p, '/');
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - p < 255 ? slash - p : 255), p);
    axis_error(c, a->index, "/pointer", job_keys_unknown(sentence, sizeof sentence, parent, slash + 1));
    return false;
}

/* Reads one axis; false after a report. */
static bool axis_read(struct job_ctx *c, json_t *v, struct job_axis *a, bool random)
{
    const struct job_field *f;
    enum form form;
    json_t *body, *entry;
    double lo = 0, hi = 0;
    size_t n = 0, i;
    char rest[64];

    if (!json_is_object(v)) {
        axis_error(c, a->index, "", "must be an object");
        return false;
    }
    form = axis_form(c, a->index, v);
    if (!axis_pointer(c, a, json_object_get(v, "pointer")) || form == FORM_COUNT)
        return false;
    body = json_object_get(v, forms[form]);
    f = job_field_find(a->pointer);
    if (form != FORM_VALUES &&
        !(f && (f->type == JOB_T_INT || f->type == JOB_T_NUMBER || f->type == JOB_T_ENUM_OR_NUM))) {
        axis_error(c, a->index, "", "only a number can have a range; list the values");
        return false;
    }
    switch (form) {
    case FORM_VALUES:
        if (!json_is_array(body) || json_array_size(body) < 1 ||
            json_array_size(body) > JOB_MAX_AXIS_VALUES) {
            snprintf(rest, sizeof rest, "must be an array of 1 to %d values", JOB_MAX_AXIS_VALUES);
            axis_error(c, a->index, "/values", rest);
            return false;
        }
        if (!f || f->type == JOB_T_OBJECT) {
            json_array_foreach(body, i, entry)
            {
                struct pd_buf place;
                snprintf(rest, sizeof rest, "/values/%zu", i);
                if (f && json_is_null(entry))
                    continue;
                if (!json_is_object(entry)) {
                    axis_error(c, a->index, rest, "must be an object, to be merged at the pointer");
                    return false;
                }
                pd_buf_init(&place, 0);
                pd_buf_printf(&place, "#/sweep/axes/%zu%s", a->index, rest);
                if (pd_buf_err(&place) == PD_OK)
                    job_keys_check(c, entry, a->pointer, place.data);
                else
                    c->nomem = true;
                pd_buf_done(&place);
            }
        }
        a->values = json_incref(body);
        a->from_values = true;
        return true;
    case FORM_LOG:
    case FORM_LINEAR:
        if (!read_range(c, a, forms[form], body, true, &lo, &hi, &n))
            return false;
        a->values = spaced(a, lo, hi, n, form == FORM_LOG);
        if (!a->values)
            c->nomem = true;
        return a->values != NULL;
    default:
        if (!random) {
            axis_error(c, a->index, "", "uniform and loguniform need the method random");
            return false;
        }
        a->log = form == FORM_LOGUNIFORM;
        return read_range(c, a, forms[form], body, false, &a->lo, &a->hi, NULL);
    }
}

static bool overlap(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), least = n < m ? n : m;

    return strncmp(a, b, least) == 0 && (n == m || (n < m ? b : a)[least] == '/');
}

static int64_t whole_or(json_t *v, int64_t otherwise)
{
    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

void job_sweep_parse(struct job_ctx *c, struct job_sweep *s)
{
    json_t *sweep = json_object_get(c->document, "sweep"), *axes, *v;
    const char *method = json_string_value(json_object_get(sweep, "method"));
    size_t i;

    memset(s, 0, sizeof *s);
    if (!json_is_object(sweep))
        return;
    s->random = method && strcmp(method, "random") == 0;
    /* Bad values of these two are reported with their rows; here they only must do no harm. */
    s->samples = whole_or(json_object_get(sweep, "samples"), 16);
    s->seed = whole_or(json_object_get(sweep, "seed"), 0);
    axes = json_object_get(sweep, "axes");
    if (!axes)
        return; /* the row says that it is needed */
    if (!json_is_array(axes) || json_array_size(axes) < 1 || json_array_size(axes) > JOB_MAX_AXES) {
        job_report_error(c->report, "#/sweep/axes", "must be an array of 1 to %d axes", JOB_MAX_AXES);
        return;
    }
    json_array_foreach(axes, i, v)
    {
        struct job_axis a = {.index = i};
        bool taken = axis_read(c, v, &a, s->random);
        for (size_t k = 0; taken && k < s->count; k++) {
            if (overlap(a.pointer, s->axes[k].pointer)) {
                axis_error(c, i, "/pointer", "overlaps with another axis");
                taken = false;
            }
        }
        if (taken && !json_object_get(c->override_map, a.pointer))
            s->axes[s->count++] = a;
        else
            json_decref(a.values);
    }
}

void job_sweep_done(struct job_sweep *s)
{
    for (size_t i = 0; i < s->count; i++)
        json_decref(s->axes[i].values);
    s->count = 0;
}

int64_t job_sweep_points(const struct job_sweep *s)
{
    int64_t points = 1;

    if (s->count && s->random)
        return s->samples < 1 ? 1 : s->samples > JOB_MAX_RUNS ? JOB_MAX_RUNS + 1 : s->samples;
    for (size_t i = 0; i < s->count; i++) {
        points *= (int64_t)json_array_size(s->axes[i].values); /* 10^4 x 10^3 at most */
        if (points > JOB_MAX_RUNS)
            return JOB_MAX_RUNS + 1;
    }
    return points;
}

/* SplitMix64's output function. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Uniform in [0, 1), a function of seed, combination and axis alone: run 7 can be drawn without runs 0 to 6.
 */
static double draw(int64_t seed, int64_t n, size_t axis)
{
    uint64_t x = mix(mix(mix((uint64_t)seed) ^ (uint64_t)n) ^ axis);

    return (double)(x >> 11) * 0x1p-53;
}

/* The entry of an axis' list that combination n draws. */
static size_t drawn_entry(const struct job_sweep *s, int64_t n, const struct job_axis *a)
{
    return (size_t)(draw(s->seed, n, a->index) * (double)json_array_size(a->values));
}

int64_t job_sweep_uses(const struct job_sweep *s, int64_t points, size_t index, size_t entry)
{
    int64_t uses = 0;

    for (size_t k = 0; k < s->count; k++) {
        const struct job_axis *a = &s->axes[k];
        if (a->index != index)
            continue;
        if (!s->random)
            return points / (int64_t)json_array_size(a->values);
        for (int64_t n = 0; n < points; n++)
            uses += drawn_entry(s, n, a) == entry;
    }
    return uses;
}

bool job_sweep_point(const struct job_sweep *s, int64_t n, struct job_point *ret)
{
    int64_t left = n;

    memset(ret, 0, sizeof *ret);
    for (size_t k = s->count; k-- > 0;) {
        const struct job_axis *a = &s->axes[k];
        size_t count = json_array_size(a->values);
        if (a->values) {
            if (s->random) {
                ret->entry[k] = drawn_entry(s, n, a);
            } else {
                ret->entry[k] = (size_t)(left % (int64_t)count);
                left /= (int64_t)count;
            }
            ret->values[k] = json_incref(json_array_get(a->values, ret->entry[k]));
        } else {
            double u = draw(s->seed, n, a->index);
            double v = a->log ? exp(log(a->lo) + u * (log(a->hi) - log(a->lo))) : a->lo + u * (a->hi - a->lo);
            ret->values[k] = axis_number(a, v);
        }
        if (!ret->values[k]) {
            job_point_done(s, ret);
            return false;
        }
    }
    return true;
}

void job_point_done(const struct job_sweep *s, struct job_point *p)
{
    for (size_t i = 0; i < s->count; i++)
        json_decref(p->values[i]);
    memset(p, 0, sizeof *p);
}
