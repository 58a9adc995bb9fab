/* What a check has found, in a report: sentences, plots as SVG, table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/report.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))
#define WIDTH 760.0
#define HEIGHT 300.0
#define LEFT 70.0
#define RIGHT 12.0
#define TOP 10.0
#define BOTTOM 40.0
#define COLOURS 12
#define TICKS 6

/* ---- plots ------------------------------------------------------------------------------------- */

struct axis {
    bool log, any;
    double low, high; /* of what is drawn: logarithms where log */
};

static bool shown(const struct axis *a, const json_t *v, double *ret)
{
    double x = json_number_value(v);

    if (!json_is_number(v) || (a->log && !(x > 0)))
        return false;
    *ret = a->log ? log10(x) : x;
    return true;
}

static void include(struct axis *a, const json_t *v)
{
    double x;

    if (!shown(a, v, &x))
        return;
    a->low = a->any ? fmin(a->low, x) : x;
    a->high = a->any ? fmax(a->high, x) : x;
    a->any = true;
}

static void widen(struct axis *a, double share)
{
    double margin = share * (a->high - a->low);

    if (!(a->high - a->low > 1e-12 * fabs(a->high)))
        margin = a->log || !(fabs(a->high) > 0) ? 0.5 : 0.1 * fabs(a->high);
    a->low -= margin;
    a->high += margin;
}

static double px(const struct axis *a, double x)
{
    return LEFT + (x - a->low) / (a->high - a->low) * (WIDTH - LEFT - RIGHT);
}

static double py(const struct axis *a, double y)
{
    return HEIGHT - BOTTOM - (y - a->low) / (a->high - a->low) * (HEIGHT - TOP - BOTTOM);
}

/* Where axis a has its i-th mark; false behind the last. Linear: 1, 2 or 5 times a power of ten apart. Logarithmic: decades, or 1, 2
 * and 5 of each where there are few. */
static bool tick(const struct axis *a, int i, double *ret)
{
    static const double parts[] = {0, 0.30102999566398120, 0.69897000433601880}; /* log10 of 1, 2, 5 */
    const double span = a->high - a->low;
    double step = span / TICKS, size = pow(10, floor(log10(step)));

    if (a->log && span < 3) {
        int first = 0;

        while (floor(a->low) + first / 3 + parts[first % 3] < a->low)
            first++;
        *ret = floor(a->low) + (first + i) / 3 + parts[(first + i) % 3];
        return *ret <= a->high;
    }
    step = step / size > 5 ? 10 * size : step / size > 2 ? 5 * size : step / size > 1 ? 2 * size : size;
    if (a->log && step < 1)
        step = 1;
    *ret = (ceil(a->low / step) + i) * step;
    return *ret <= a->high;
}

static void axes_svg(struct pd_buf *b, const struct axis *x, const struct axis *y, const json_t *plot)
{
    double at;

    for (int i = 0; tick(y, i, &at); i++)
        pd_buf_printf(b,
                      "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
                      "text-anchor=\"end\">%.4g</text>",
                      LEFT, py(y, at), WIDTH - RIGHT, LEFT - 6, py(y, at) + 4, y->log ? pow(10, at) : at);
    for (int i = 0; tick(x, i, &at); i++)
        pd_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.4g</text>", px(x, at),
                      HEIGHT - BOTTOM + 15, x->log ? pow(10, at) : at);
    pd_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2,
                  HEIGHT - 6);
    report_text(b, TEXT(json_object_get(plot, "x"), "title"));
    pd_buf_str(b, "</text>");
}

static void series_svg(struct pd_buf *b, const struct axis *x, const struct axis *y, const json_t *s,
                       size_t number)
{
    const json_t *xs = json_object_get(s, "x"), *ys = json_object_get(s, "y"), *low, *high;
    const bool line = !strcmp(TEXT(s, "form"), "line"), bars = !strcmp(TEXT(s, "form"), "bars");
    const size_t n = json_array_size(xs);
    double at, to, end;
    bool open = false;

    low = json_object_get(s, "low");
    high = json_object_get(s, "high");
    if (line)
        pd_buf_printf(b, "<path class=\"line c%zu\" d=\"", number % COLOURS);
    for (size_t i = 0; i < n; i++) {
        if (!shown(x, json_array_get(xs, i), &at) || !shown(y, json_array_get(ys, i), &to)) {
            open = false;
            continue;
        }
        if (line) {
            pd_buf_printf(b, "%c%.1f %.1f", open ? 'L' : 'M', px(x, at), py(y, to));
            open = true;
            continue;
        }
        if (bars)
            pd_buf_printf(b,
                          "<rect class=\"dot c%zu\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>",
                          number % COLOURS, px(x, at) - 0.4 * (WIDTH - LEFT - RIGHT) / (double)n, py(y, to),
                          0.8 * (WIDTH - LEFT - RIGHT) / (double)n, HEIGHT - BOTTOM - py(y, to));
        else
            pd_buf_printf(b, "<circle class=\"dot c%zu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                          number % COLOURS, px(x, at), py(y, to));
        if (shown(y, json_array_get(low, i), &to) && shown(y, json_array_get(high, i), &end))
            pd_buf_printf(b, "<path class=\"line c%zu\" d=\"M%.1f %.1fV%.1f\"/>", number % COLOURS, px(x, at),
                          py(y, to), py(y, end));
    }
    if (line)
        pd_buf_str(b, "\"/>");
}

static void plot_html(struct pd_buf *b, const json_t *plot)
{
    struct axis x = {.log = json_is_true(json_object_get(json_object_get(plot, "x"), "log"))},
                y = {.log = json_is_true(json_object_get(json_object_get(plot, "y"), "log"))};
    const json_t *series = json_object_get(plot, "series"), *s, *v;
    size_t i, k;

    json_array_foreach(series, i, s)
    {
        json_array_foreach(json_object_get(s, "x"), k, v) include(&x, v);
        json_array_foreach(json_object_get(s, "y"), k, v) include(&y, v);
        if (!strcmp(TEXT(s, "form"), "bars") && !y.log)
            y.low = fmin(y.low, 0);
    }
    if (!x.any || !y.any)
        return;
    widen(&x, 0.03);
    widen(&y, 0.05);
    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(plot, "title"));
    pd_buf_printf(b,
                  "</h3><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Plot\"><svg "
                  "viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"",
                  WIDTH, HEIGHT);
    report_text(b, TEXT(plot, "title"));
    pd_buf_str(b, "\">");
    axes_svg(b, &x, &y, plot);
    json_array_foreach(series, i, s) series_svg(b, &x, &y, s, i);
    pd_buf_str(b, "</svg></div><p class=\"mut\">");
    report_text(b, TEXT(json_object_get(plot, "y"), "title"));
    pd_buf_printf(b, "%s: ", y.log ? " (log)" : "");
    json_array_foreach(series, i, s)
    {
        pd_buf_printf(b, "<span><span class=\"key\" style=\"background:var(--c%zu)\"></span>", i % COLOURS);
        report_text(b, TEXT(s, "name"));
        pd_buf_str(b, "</span> ");
    }
    pd_buf_str(b, "</p>");
}

/* ---- sentences and table ----------------------------------------------------------------------- */

static void paragraph(struct pd_buf *b, const char *word, const char *text)
{
    pd_buf_printf(b, "<p><b>%s:</b> ", word);
    report_text(b, text);
    pd_buf_str(b, "</p>");
}

static void cells(struct pd_buf *b, const json_t *row)
{
    static const char *const keys[] = {"seed", "value",    "se",         "low",
                                       "high", "expected", "accept_low", "accept_high"};
    const json_t *pass = json_object_get(row, "pass");
    const char *word = json_is_true(pass) ? "holds" : json_is_false(pass) ? "fails" : "";

    pd_buf_str(b, "<tr><td>");
    report_text(b, TEXT(row, "what"));
    pd_buf_str(b, "</td>");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        pd_buf_str(b, "<td class=\"n\">");
        report_num(b, json_object_get(row, keys[i]));
        pd_buf_str(b, "</td>");
    }
    pd_buf_printf(b, "<td class=\"v %s\">%s</td></tr>", word, word);
}

void report_check(struct pd_buf *b, const json_t *check)
{
    static const char *const heads[] = {"value",    "standard error", "99 % from", "to",
                                        "expected", "accepted from",  "to"};
    const json_t *r = json_object_get(check, "result"), *each;
    size_t i;

    pd_buf_str(b, "<h3>Run ");
    report_text(b, TEXT(check, "run_id"));
    pd_buf_printf(b, ": <span class=\"v %s\">%s</span></h3>", TEXT(r, "verdict"), TEXT(r, "verdict"));
    paragraph(b, "Source", TEXT(r, "source"));
    paragraph(b, "Claimed", TEXT(r, "claimed"));
    paragraph(b, json_is_true(json_object_get(r, "wrong")) ? "Correct" : "In full", TEXT(r, "correct"));
    json_array_foreach(json_object_get(r, "evidence"), i, each) paragraph(b, "Seen", json_string_value(each));
    json_array_foreach(json_object_get(r, "plots"), i, each) plot_html(b, each);
    pd_buf_str(b, "<div class=\"wide\" tabindex=\"0\" role=\"group\" "
                  "aria-label=\"Table\"><table><thead><tr><th scope=\"col\">number</th><th scope=\"col\" "
                  "class=\"n\">seed</th>");
    for (i = 0; i < sizeof heads / sizeof *heads; i++)
        pd_buf_printf(b, "<th scope=\"col\" class=\"n\">%s</th>", heads[i]);
    pd_buf_str(b, "<th scope=\"col\">criterion</th></tr></thead><tbody>");
    json_array_foreach(json_object_get(r, "rows"), i, each) cells(b, each);
    pd_buf_str(b, "</tbody></table></div>");
}
