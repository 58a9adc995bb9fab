/* A map in a report: cells in colour, and in words what the page says of it. Negative cells are orange, positive ones blue, the
 * strength is the share of the largest size. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/report.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))
#define WIDTH 420.0

static double at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static void cells_svg(struct pd_buf *b, const json_t *panel)
{
    const json_t *cells = json_object_get(panel, "cells"), *line, *cell;
    const size_t rows = json_array_size(cells), columns = json_array_size(json_array_get(cells, 0));
    const double low = json_number_value(json_object_get(panel, "low"));
    const double high = json_number_value(json_object_get(panel, "high")), most = fmax(fabs(low), fabs(high));
    const double size = columns ? WIDTH / (double)columns : 0;
    size_t r, c;

    if (!rows || !columns)
        return;
    pd_buf_printf(b, "<svg viewBox=\"0 0 760 %.1f\" role=\"img\" aria-label=\"Map ", size * (double)rows);
    report_text(b, TEXT(panel, "title"));
    pd_buf_str(b, "\">");
    json_array_foreach(cells, r, line) json_array_foreach(line, c, cell)
    {
        const double v = json_number_value(cell), strength = most > 0 ? fabs(v) / most : 0;

        if (strength >= 0.005)
            pd_buf_printf(b,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"dot c%d\" "
                          "opacity=\"%.2f\"/>",
                          size * (double)c, size * (double)r, size, size, v < 0, strength);
    }
    pd_buf_printf(b,
                  "<rect x=\"0\" y=\"0\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" class=\"grid\"/></svg>",
                  WIDTH, size * (double)rows);
}

/* A token as the page calls it: of pictures its row and column of patches. */
static void token(struct pd_buf *b, const json_t *meta, long long i)
{
    const json_t *grid = json_object_get(meta, "grid");
    const long long lead = (long long)json_integer_value(json_object_get(meta, "lead")), patch = i - lead;
    const long long columns = (long long)json_integer_value(json_array_get(grid, 1));

    if (columns <= 0)
        pd_buf_printf(b, "%lld", i + 1);
    else if (patch < 0)
        pd_buf_str(b, "class token");
    else
        pd_buf_printf(b, "patch %lld (row %lld, column %lld)", patch + 1, patch / columns + 1,
                      patch % columns + 1);
}

/* "x = 3.14": where row or column i of n of a solution lies. */
static void place(struct pd_buf *b, const json_t *axis, double i, double n)
{
    const double low = json_number_value(json_object_get(axis, "low"));
    const double high = json_number_value(json_object_get(axis, "high"));

    report_text(b, TEXT(axis, "name"));
    pd_buf_printf(b, " = %.6g", low + (high - low) * (n > 1 ? i / (n - 1) : 0));
}

void report_map(struct pd_buf *b, const json_t *panel)
{
    const json_t *meta = json_object_get(panel, "meta"), *largest;
    const json_t *rows = json_object_get(panel, "rows"), *columns = json_object_get(panel, "columns");
    const bool solution = json_is_object(json_object_get(meta, "rows"));

    largest = json_object_get(panel, solution ? "highest" : "largest");
    pd_buf_str(b, "<figure><figcaption>");
    report_values(b, json_object_get(panel, "values"));
    pd_buf_str(b, ": ");
    report_text(b, TEXT(panel, "title"));
    pd_buf_str(b, " at step ");
    report_num(b, json_object_get(panel, "step"));
    pd_buf_str(b, " of run ");
    report_text(b, TEXT(panel, "run_id"));
    if (json_is_integer(json_object_get(meta, "samples"))) {
        pd_buf_str(b, ", mean over ");
        report_num(b, json_object_get(meta, "samples"));
        pd_buf_str(b, " samples");
    }
    pd_buf_str(b, "</figcaption>");
    cells_svg(b, panel);
    pd_buf_str(b, "<p class=\"mut\">");
    report_num(b, rows);
    pd_buf_str(b, solution ? " times by " : " queries by ");
    report_num(b, columns);
    pd_buf_str(b, solution ? " places, from " : " keys, from ");
    report_num(b, json_object_get(panel, "low"));
    pd_buf_str(b, " to ");
    report_num(b, json_object_get(panel, "high"));
    pd_buf_printf(b, ", %.6g %% below 0; the largest %sat ",
                  100 * json_number_value(json_object_get(panel, "below_0")), solution ? "" : "by size ");
    if (solution) {
        place(b, json_object_get(meta, "columns"), at(largest, 1), json_number_value(columns));
        pd_buf_str(b, ", ");
        place(b, json_object_get(meta, "rows"), at(largest, 0), json_number_value(rows));
    } else {
        pd_buf_str(b, "query ");
        token(b, meta, (long long)at(largest, 0));
        pd_buf_str(b, ", key ");
        token(b, meta, (long long)at(largest, 1));
    }
    pd_buf_str(b, ". SHA-256 of all cells: <span style=\"overflow-wrap:anywhere\">");
    report_text(b, TEXT(panel, "sha256"));
    pd_buf_str(b, "</span></p></figure>");
}
