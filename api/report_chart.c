/* The pictures of a report, as SVG. Colours are classes of the page's style, so that they follow its theme. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/report.h"

#define WIDTH 760.0
#define LABELS 270.0 /* of the picture of means */
#define LABEL_BYTES 46
#define ROW 20.0
#define LEFT 56.0
#define RIGHT 12.0
#define TOP 10.0
#define BOTTOM 34.0
#define HEIGHT 280.0
#define COLOURS 12

struct range {
    double low, high;
    bool any;
};

static void range_add(struct range *r, double value)
{
    if (!isfinite(value))
        return;
    if (!r->any || value < r->low)
        r->low = value;
    if (!r->any || value > r->high)
        r->high = value;
    r->any = true;
}

/* Margin around the values; never empty. */
static void range_widen(struct range *r)
{
    double margin = 0.05 * (r->high - r->low);

    if (!(margin > 0))
        margin = fabs(r->high) > 0 ? 0.1 * fabs(r->high) : 1;
    r->low -= margin;
    r->high += margin;
}

/* 1, 2 or 5 times a power of ten, so that about `count` ticks fit. */
static double step_of(const struct range *r, int count)
{
    double raw = (r->high - r->low) / count, power = pow(10, floor(log10(raw))), x = raw / power;

    return power * (x <= 1 ? 1 : x <= 2 ? 2 : x <= 5 ? 5 : 10);
}

static double member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void svg_open(struct pd_buf *b, double height, const char *kind, const char *metric)
{
    pd_buf_printf(b, "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s ", WIDTH, height, kind);
    report_text(b, metric);
    pd_buf_str(b, "\">");
}

static void label(struct pd_buf *b, double x, double y, const char *anchor, const char *text)
{
    pd_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    report_text(b, text);
    pd_buf_str(b, "</text>");
}

static void x_ticks(struct pd_buf *b, const struct range *r, double left, double top, double bottom)
{
    double step = step_of(r, 6);
    char text[32];

    for (double t = ceil(r->low / step) * step; t <= r->high + 1e-9 * step; t += step) {
        double x = left + (t - r->low) / (r->high - r->low) * (WIDTH - RIGHT - left);

        pd_buf_printf(b, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x, top,
                      bottom);
        snprintf(text, sizeof text, "%.4g", fabs(t) < 1e-9 * step ? 0 : t);
        label(b, x, bottom + 14, "middle", text);
    }
}

/* The label of a combination, cut so that it fits. */
static void row_label(struct pd_buf *b, const json_t *row, double y)
{
    struct pd_buf text;
    char cut[LABEL_BYTES + 8];
    size_t n;

    pd_buf_init(&text, 0);
    pd_buf_printf(&text, "%lld: ", (long long)json_integer_value(json_object_get(row, "point")));
    report_values(&text, json_object_get(row, "values"));
    if (text.failed) {
        b->failed = true;
    } else {
        /* Already escaped: the cut may not fall into an entity or a sequence of UTF-8. */
        n = text.len < LABEL_BYTES ? text.len : LABEL_BYTES;
        while (text.len > LABEL_BYTES && n > 0 && ((text.data[n] & 0xC0) == 0x80))
            n--;
        for (size_t i = n; text.len > LABEL_BYTES && i > 0 && n - i < 6; i--)
            if (text.data[i - 1] == '&') {
                n = i - 1;
                break;
            }
        snprintf(cut, sizeof cut, "%.*s%s", (int)n, text.data, text.len > n ? "…" : "");
        pd_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", LABELS - 8, y + 4);
        pd_buf_str(b, cut);
        pd_buf_str(b, "</text>");
    }
    pd_buf_done(&text);
}

void report_chart_means(struct pd_buf *b, const json_t *job)
{
    const json_t *table = json_object_get(job, "table"), *row;
    size_t i, count = json_array_size(table);
    struct range r = {0};
    double bottom;

    if (count > REPORT_CHART_ROWS)
        count = REPORT_CHART_ROWS;
    for (i = 0; i < count; i++) {
        const json_t *s = json_object_get(json_array_get(table, i), "statistic");
        double mean = member(s, "mean"), sd = member(s, "sd");

        range_add(&r, mean - (isfinite(sd) ? sd : 0));
        range_add(&r, mean + (isfinite(sd) ? sd : 0));
    }
    if (!r.any)
        return;
    range_widen(&r);
    bottom = TOP + (double)count * ROW;
    svg_open(b, bottom + BOTTOM, "Means of", json_string_value(json_object_get(job, "metric")));
    x_ticks(b, &r, LABELS, TOP, bottom);
    label(b, LABELS + (WIDTH - RIGHT - LABELS) / 2, bottom + 30, "middle",
          json_string_value(json_object_get(job, "metric")));
    for (i = 0; i < count; i++) {
        const json_t *s = json_object_get(row = json_array_get(table, i), "statistic");
        double mean = member(s, "mean"), sd = member(s, "sd"), scale, x, y = TOP + ((double)i + 0.5) * ROW;

        row_label(b, row, y);
        if (!isfinite(mean))
            continue;
        scale = (WIDTH - RIGHT - LABELS) / (r.high - r.low);
        x = LABELS + (mean - r.low) * scale;
        if (isfinite(sd))
            pd_buf_printf(b, "<line class=\"sd\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
                          x - sd * scale, x + sd * scale, y, y);
        pd_buf_printf(b, "<circle class=\"mean\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
    }
    pd_buf_str(b, "</svg>");
}

/* ---- curves ------------------------------------------------------------------------------------ */

/* `log`: the range is of logarithms. */
static void y_ticks(struct pd_buf *b, const struct range *r, double height, int count, bool log)
{
    double step = step_of(r, count);
    char text[32];

    for (double t = ceil(r->low / step) * step; t <= r->high + 1e-9 * step; t += step) {
        double y = height - BOTTOM - (t - r->low) / (r->high - r->low) * (height - BOTTOM - TOP);

        pd_buf_printf(b, "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                      WIDTH - RIGHT, y, y);
        snprintf(text, sizeof text, log ? "%.3g" : "%.4g", log ? pow(10, t) : fabs(t) < 1e-9 * step ? 0 : t);
        label(b, LEFT - 6, y + 4, "end", text);
    }
}

/* Logarithmic where all means are positive and far apart. */
static bool wide(const json_t *lines)
{
    const json_t *line, *p;
    double low = INFINITY, high = -INFINITY;
    size_t i, k;

    json_array_foreach(lines, i, line) json_array_foreach(json_object_get(line, "data"), k, p)
    {
        double mean = member(p, "mean");

        low = isfinite(mean) ? fmin(low, mean) : low;
        high = isfinite(mean) ? fmax(high, mean) : high;
    }
    return low > 0 && high > 50 * low;
}

static void line_svg(struct pd_buf *b, const struct range *x, const struct range *y, bool log,
                     const json_t *data, size_t number)
{
    const json_t *p;
    size_t k, dots = 0;
    double px = 0, py = 0;

    pd_buf_printf(b, "<polyline class=\"line c%zu\" points=\"", number % COLOURS);
    json_array_foreach(data, k, p)
    {
        double at = member(p, "x"), mean = member(p, "mean");

        if (!isfinite(at) || !isfinite(mean))
            continue;
        dots++;
        px = LEFT + (at - x->low) / (x->high - x->low) * (WIDTH - RIGHT - LEFT);
        py = HEIGHT - BOTTOM -
             ((log ? log10(mean) : mean) - y->low) / (y->high - y->low) * (HEIGHT - BOTTOM - TOP);
        pd_buf_printf(b, "%.1f,%.1f ", px, py);
    }
    pd_buf_str(b, "\"/>");
    if (dots == 1)
        pd_buf_printf(b, "<circle class=\"dot c%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", number % COLOURS, px,
                      py);
}

bool report_chart_lines(struct pd_buf *b, const char *what, const char *x_title, const json_t *lines)
{
    const bool log = wide(lines);
    const json_t *line, *p;
    struct range x = {0}, y = {0};
    size_t i, k;

    json_array_foreach(lines, i, line) json_array_foreach(json_object_get(line, "data"), k, p)
    {
        range_add(&x, member(p, "x"));
        range_add(&y, log ? log10(member(p, "mean")) : member(p, "mean"));
    }
    if (!y.any)
        return false;
    if (!(x.high > x.low))
        range_widen(&x);
    range_widen(&y);
    svg_open(b, HEIGHT, "Lines:", what);
    y_ticks(b, &y, HEIGHT, 5, log);
    x_ticks(b, &x, LEFT, TOP, HEIGHT - BOTTOM);
    label(b, LEFT + (WIDTH - RIGHT - LEFT) / 2, HEIGHT - 4, "middle", x_title);
    json_array_foreach(lines, i, line) line_svg(b, &x, &y, log, json_object_get(line, "data"), i);
    pd_buf_str(b, "</svg>");
    return true;
}

/* ---- a panel of an analysis -------------------------------------------------------------------- */

#define PANEL_HEIGHT 200.0
#define TICK_WIDTH 44.0 /* between the labels of two values */

struct across {
    struct range r; /* of the axis, as it is drawn */
    bool log;
};

static double across(const struct across *a, double x)
{
    return LEFT + ((a->log ? log10(x) : x) - a->r.low) / (a->r.high - a->r.low) * (WIDTH - RIGHT - LEFT);
}

static void upright(struct pd_buf *b, const char *class, double x)
{
    pd_buf_printf(b, "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\"/>", class, x, x, TOP,
                  PANEL_HEIGHT - BOTTOM);
}

/* What lies behind the points: usable range, best value, root of N. */
static void panel_marks(struct pd_buf *b, const struct across *a, const json_t *panel, bool root)
{
    const json_t *usable = json_object_get(panel, "usable");
    double from = member(usable, "from"), to = member(usable, "to");
    double best = member(json_object_get(panel, "best"), "x"), n = sqrt(member(panel, "tokens"));

    if (isfinite(from))
        pd_buf_printf(b, "<rect class=\"use\" x=\"%.1f\" width=\"%.1f\" y=\"%g\" height=\"%g\"/>",
                      across(a, from) - 4, across(a, to) - across(a, from) + 8, TOP,
                      PANEL_HEIGHT - BOTTOM - TOP);
    if (isfinite(best))
        upright(b, "top", across(a, best));
    if (root && isfinite(n) && log10(n) >= a->r.low && log10(n) <= a->r.high)
        upright(b, "root", across(a, n));
}

void report_chart_panel(struct pd_buf *b, const json_t *analysis, const json_t *panel)
{
    const json_t *points = json_object_get(panel, "points"), *p;
    const char *axis = json_string_value(json_object_get(analysis, "axis")), *name = strrchr(axis, '/');
    struct across a = {.log = json_is_true(json_object_get(analysis, "log"))};
    struct range y = {0};
    double last = -INFINITY;
    char text[32];
    size_t i;

    json_array_foreach(points, i, p)
    {
        const json_t *v = json_object_get(p, "value");
        double sd = member(v, "sd"), x = member(p, "x");

        range_add(&a.r, a.log ? log10(x) : x);
        range_add(&y, member(v, "mean") - (isfinite(sd) ? sd : 0));
        range_add(&y, member(v, "mean") + (isfinite(sd) ? sd : 0));
    }
    if (!y.any)
        return;
    range_widen(&a.r);
    range_widen(&y);
    svg_open(b, PANEL_HEIGHT,
             "Against the swept value:", json_string_value(json_object_get(analysis, "metric")));
    panel_marks(b, &a, panel, a.log && !strcmp(axis, "/attention/k"));
    y_ticks(b, &y, PANEL_HEIGHT, 4, false);
    json_array_foreach(points, i, p)
    {
        const json_t *v = json_object_get(p, "value");
        double mean = member(v, "mean"), sd = member(v, "sd"), x = across(&a, member(p, "x"));
        double scale = (PANEL_HEIGHT - BOTTOM - TOP) / (y.high - y.low),
               at = PANEL_HEIGHT - BOTTOM - (mean - y.low) * scale;

        snprintf(text, sizeof text, "%.4g", member(p, "x"));
        if (x - last >= TICK_WIDTH) {
            label(b, x, PANEL_HEIGHT - BOTTOM + 14, "middle", text);
            last = x;
        }
        if (!isfinite(mean))
            continue;
        if (isfinite(sd))
            pd_buf_printf(b, "<line class=\"sd\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x,
                          at - sd * scale, at + sd * scale);
        pd_buf_printf(b, "<circle class=\"dot c0\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, at);
    }
    label(b, LEFT + (WIDTH - RIGHT - LEFT) / 2, PANEL_HEIGHT - 4, "middle", name ? name + 1 : axis);
    pd_buf_str(b, "</svg>");
}
