/* The table of results, the plots and the sentences of a check, as they are made and as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/check/internal.h"
#include "kernels/base/json.h"

static const char *kept_text(struct check *c, const char *fmt, va_list args)
{
    char text[512];
    char *copy;

    vsnprintf(text, sizeof text, fmt, args);
    copy = c->err == PD_OK ? pd_arena_strdup(c->arena, text) : NULL;
    if (!copy)
        check_fail(c, PD_ERR_NOMEM, "no memory for the table");
    return copy;
}

void check_of_all(struct check *c, bool all)
{
    c->all = all;
}

static void add(struct check *c, struct check_row row, const char *fmt, va_list args)
{
    if (c->row_count == c->row_capacity) {
        size_t capacity = c->row_capacity ? 2 * c->row_capacity : 64;
        struct check_row *grown = realloc(c->rows, capacity * sizeof *grown);

        if (!grown) {
            check_fail(c, PD_ERR_NOMEM, "no memory for the table");
            return;
        }
        c->rows = grown;
        c->row_capacity = capacity;
    }
    row.what = kept_text(c, fmt, args);
    row.any_seed = c->all;
    row.seed = c->seed;
    if (row.what)
        c->rows[c->row_count++] = row;
}

void check_value(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(c, (struct check_row){.value = value, .se = se, .expected = expected, .low = low, .high = high}, fmt,
        args);
    va_end(args);
}

void check_ratio(struct check *c, double value, double se, double expected, double low, double high,
                 const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(c,
        (struct check_row){
            .value = value, .se = se, .expected = expected, .low = low * expected, .high = high * expected},
        fmt, args);
    va_end(args);
}

void check_equal(struct check *c, double value, double expected, double tolerance, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(c,
        (struct check_row){.value = value,
                           .se = NAN,
                           .expected = expected,
                           .low = expected - tolerance,
                           .high = expected + tolerance},
        fmt, args);
    va_end(args);
}

void check_report(struct check *c, double value, double se, double expected, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add(c, (struct check_row){.value = value, .se = se, .expected = expected, .low = NAN, .high = NAN}, fmt,
        args);
    va_end(args);
}

void check_evidence(struct check *c, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    if (c->nth > 0 && !c->all)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pd_json_str(&c->evidence, text);
}

/* ---- plots ---- */

static const char *copied(struct check *c, const char *text)
{
    char *copy = c->err == PD_OK ? pd_arena_strdup(c->arena, text) : NULL;

    if (!copy)
        check_fail(c, PD_ERR_NOMEM, "no memory for a plot");
    return copy;
}

struct check_plot *check_plot(struct check *c, const char *title, const char *x, bool x_log, const char *y,
                              bool y_log)
{
    struct check_plot *p = check_alloc(c, sizeof *p);

    if (!p)
        return NULL;
    *p = (struct check_plot){
        .title = copied(c, title), .x = copied(c, x), .y = copied(c, y), .x_log = x_log, .y_log = y_log};
    p->tail = &p->series;
    *c->plot_tail = p;
    c->plot_tail = &p->next;
    return p;
}

struct check_series *check_series(struct check *c, struct check_plot *p, const char *form, const char *fmt,
                                  ...)
{
    struct check_series *s = p ? check_alloc(c, sizeof *s) : NULL;
    va_list args;

    if (!s)
        return NULL;
    va_start(args, fmt);
    *s = (struct check_series){.form = form, .name = kept_text(c, fmt, args)};
    va_end(args);
    *p->tail = s;
    p->tail = &s->next;
    return s;
}

void check_point(struct check *c, struct check_series *s, double x, double y, double se)
{
    if (!s)
        return;
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 16;
        double *fresh = check_alloc(c, 4 * capacity * sizeof *fresh),
               **part[] = {&s->x, &s->y, &s->low, &s->high};

        if (!fresh)
            return;
        for (size_t k = 0; k < 4; k++) {
            if (s->count)
                memcpy(fresh + k * capacity, *part[k], s->count * sizeof *fresh);
            *part[k] = fresh + k * capacity;
        }
        s->capacity = capacity;
    }
    s->x[s->count] = x;
    s->y[s->count] = y;
    s->low[s->count] = se > 0 ? y - CHECK_Z99 * se : NAN;
    s->high[s->count] = se > 0 ? y + CHECK_Z99 * se : NAN;
    s->count++;
}

/* ---- as JSON ---- */

static bool judged(const struct check_row *r)
{
    return !isnan(r->low) || !isnan(r->high);
}

static bool passes(const struct check_row *r)
{
    return isfinite(r->value) && r->value >= r->low && r->value <= r->high;
}

static void row_json(struct pd_buf *b, const struct check_row *r)
{
    const bool has = r->se > 0;

    pd_json_open(b, '{');
    pd_json_kv_str(b, "what", r->what);
    pd_json_key(b, "seed");
    if (r->any_seed)
        pd_json_null(b);
    else
        pd_json_uint(b, r->seed);
    pd_json_kv_num(b, "value", r->value);
    pd_json_kv_num(b, "se", has ? r->se : NAN);
    pd_json_kv_num(b, "low", has ? r->value - CHECK_Z99 * r->se : NAN);
    pd_json_kv_num(b, "high", has ? r->value + CHECK_Z99 * r->se : NAN);
    pd_json_kv_num(b, "expected", r->expected);
    pd_json_kv_num(b, "accept_low", r->low);
    pd_json_kv_num(b, "accept_high", r->high);
    pd_json_key(b, "pass");
    if (judged(r))
        pd_json_bool(b, passes(r));
    else
        pd_json_null(b);
    pd_json_close(b, '}');
}

static void numbers_json(struct pd_buf *b, const char *key, const double *x, size_t n)
{
    pd_json_key(b, key);
    pd_json_open(b, '[');
    for (size_t i = 0; i < n; i++)
        pd_json_num(b, x[i]);
    pd_json_close(b, ']');
}

static void axis_json(struct pd_buf *b, const char *key, const char *title, bool is_log)
{
    pd_json_key(b, key);
    pd_json_open(b, '{');
    pd_json_kv_str(b, "title", title);
    pd_json_kv_bool(b, "log", is_log);
    pd_json_close(b, '}');
}

static void plot_json(struct pd_buf *b, const struct check_plot *p)
{
    pd_json_open(b, '{');
    pd_json_kv_str(b, "title", p->title);
    axis_json(b, "x", p->x, p->x_log);
    axis_json(b, "y", p->y, p->y_log);
    pd_json_key(b, "series");
    pd_json_open(b, '[');
    for (const struct check_series *s = p->series; s; s = s->next) {
        pd_json_open(b, '{');
        pd_json_kv_str(b, "name", s->name);
        pd_json_kv_str(b, "form", s->form);
        numbers_json(b, "x", s->x, s->count);
        numbers_json(b, "y", s->y, s->count);
        numbers_json(b, "low", s->low, s->count);
        numbers_json(b, "high", s->high, s->count);
        pd_json_close(b, '}');
    }
    pd_json_close(b, ']');
    pd_json_close(b, '}');
}

const char *check_verdict_name(enum check_verdict verdict)
{
    static const char *const names[] = {
        [CHECK_HOLDS] = "holds", [CHECK_FAILS] = "fails", [CHECK_REPORTED] = "reported"};

    return names[verdict];
}

void check_table_json(struct check *c, struct pd_buf *b, struct check_summary *ret)
{
    struct check_summary s = {.rows = (int64_t)c->row_count};

    for (size_t i = 0; i < c->row_count; i++) {
        s.judged += judged(&c->rows[i]);
        s.failed += judged(&c->rows[i]) && !passes(&c->rows[i]);
    }
    s.verdict = s.failed ? CHECK_FAILS : s.judged ? CHECK_HOLDS : CHECK_REPORTED;
    pd_json_kv_str(b, "verdict", check_verdict_name(s.verdict));
    pd_json_key(b, "evidence");
    pd_json_open(b, '[');
    pd_buf_append(b, c->evidence.data ? c->evidence.data : "", c->evidence.len);
    pd_json_close(b, ']');
    b->failed = b->failed || c->evidence.failed;
    pd_json_key(b, "rows");
    pd_json_open(b, '[');
    for (size_t i = 0; i < c->row_count; i++)
        row_json(b, &c->rows[i]);
    pd_json_close(b, ']');
    pd_json_key(b, "plots");
    pd_json_open(b, '[');
    for (const struct check_plot *p = c->plots; p; p = p->next)
        plot_json(b, p);
    pd_json_close(b, ']');
    *ret = s;
}
