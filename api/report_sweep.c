/* The analysis of a sweep in a report: panels, best values, usable ranges, and how the best value grows. */
#include <string.h>

#include "api/report.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))

/* "; no best value: why" */
static void reason(struct pd_buf *b, const char *what, const char *why)
{
    if (!why)
        return;
    pd_buf_printf(b, "; %s: ", what);
    report_text(b, why);
}

static void cell(struct pd_buf *b, const json_t *object, const char *key)
{
    pd_buf_str(b, "<td class=\"n\">");
    report_num(b, json_object_get(object, key));
    pd_buf_str(b, "</td>");
}

static void panel_row(struct pd_buf *b, const json_t *panel)
{
    static const char *const of_best[] = {"x", "mean", "low", "high", "share"};
    static const char *const of_range[] = {"from", "to", "decades", "limit"};
    const json_t *best = json_object_get(panel, "best"), *usable = json_object_get(panel, "usable");

    pd_buf_str(b, "<tr><td>");
    report_values(b, json_object_get(panel, "values"));
    if (json_is_true(json_object_get(best, "at_end")))
        pd_buf_str(b, "; best at the end of the grid");
    reason(b, "no best value", TEXT(panel, "best_why"));
    reason(b, "no interval", TEXT(best, "why"));
    reason(b, "no usable range", TEXT(panel, "usable_why"));
    pd_buf_str(b, "</td>");
    cell(b, panel, "tokens");
    for (size_t i = 0; i < sizeof of_best / sizeof *of_best; i++)
        cell(b, best, of_best[i]);
    for (size_t i = 0; i < sizeof of_range / sizeof *of_range; i++)
        cell(b, usable, of_range[i]);
    pd_buf_str(b, "</tr>");
}

static void slope_line(struct pd_buf *b, const json_t *slope, const char *name)
{
    pd_buf_str(b, "<p>");
    if (json_object_size(json_object_get(slope, "values"))) {
        report_values(b, json_object_get(slope, "values"));
        pd_buf_str(b, ": ");
    }
    if (TEXT(slope, "why")) {
        pd_buf_str(b, "no slope: ");
        report_text(b, TEXT(slope, "why"));
        pd_buf_str(b, ".</p>");
        return;
    }
    pd_buf_str(b, "the best ");
    report_text(b, name);
    pd_buf_str(b, " is exp(");
    report_num(b, json_object_get(slope, "a"));
    pd_buf_str(b, ") times N to the power of <b>");
    report_num(b, json_object_get(slope, "b"));
    pd_buf_str(b, "</b>");
    if (TEXT(slope, "interval_why")) {
        reason(b, "no interval", TEXT(slope, "interval_why"));
    } else {
        pd_buf_str(b, " (95 % interval ");
        report_num(b, json_object_get(slope, "low"));
        pd_buf_str(b, " to ");
        report_num(b, json_object_get(slope, "high"));
        pd_buf_str(b, ")");
    }
    pd_buf_str(b, ", over ");
    report_num(b, json_object_get(slope, "n"));
    pd_buf_str(b, " panels, ");
    report_num(b, json_object_get(slope, "resampled"));
    pd_buf_str(b, " of which vary from resample to resample.</p>");
}

static void pictures(struct pd_buf *b, const json_t *analysis)
{
    const json_t *panels = json_object_get(analysis, "panels"), *panel;
    size_t i;

    json_array_foreach(panels, i, panel)
    {
        if (i == REPORT_CHART_PANELS) {
            pd_buf_printf(b, "<p class=\"mut\">Drawn: the first %d of %zu panels.</p>", REPORT_CHART_PANELS,
                          json_array_size(panels));
            break;
        }
        pd_buf_str(b, "<figure><figcaption>");
        report_values(b, json_object_get(panel, "values"));
        if (json_is_integer(json_object_get(panel, "tokens"))) {
            pd_buf_str(b, ", N = ");
            report_num(b, json_object_get(panel, "tokens"));
        }
        pd_buf_str(b, "</figcaption><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Panel\">");
        report_chart_panel(b, analysis, panel);
        pd_buf_str(b, "</div></figure>");
    }
}

void report_sweep(struct pd_buf *b, const json_t *analysis)
{
    static const char *const columns[] = {"N",     "best", "mean", "low",     "high",
                                          "share", "from", "to",   "decades", "limit"};
    const char *axis = TEXT(analysis, "axis"), *name = axis ? strrchr(axis, '/') : NULL;
    const json_t *each;
    size_t i;

    if (!name)
        return;
    name++;
    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(analysis, "metric"));
    pd_buf_str(b, " against ");
    report_text(b, name);
    pd_buf_str(b, ", a panel for each combination of the other axes</h3>");
    pictures(b, analysis);
    pd_buf_str(b, "<p class=\"mut\">Shaded: the usable range. Line: the best value. Dashed: the root of N, "
                  "where k is swept. "
                  "low, high and share are of the bootstrap (");
    report_num(b, json_object_get(json_object_get(analysis, "bootstrap"), "resamples"));
    pd_buf_str(b, " resamples of the trials). Usable: ");
    report_text(b, TEXT(analysis, "usable_rule"));
    pd_buf_str(
        b,
        ".</p><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Best values and usable ranges\">"
        "<table><thead><tr><th scope=\"col\">panel</th>");
    for (i = 0; i < sizeof columns / sizeof *columns; i++)
        pd_buf_printf(b, "<th scope=\"col\" class=\"n\">%s</th>", columns[i]);
    pd_buf_str(b, "</tr></thead><tbody>");
    json_array_foreach(json_object_get(analysis, "panels"), i, each) panel_row(b, each);
    pd_buf_str(b, "</tbody></table></div>");
    json_array_foreach(json_object_get(analysis, "slopes"), i, each) slope_line(b, each, name);
}
