/* The paper's figures in a report. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/report.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))
#define COLOURS 12

static void table_open(struct pd_buf *b, const char *const *names)
{
    pd_buf_str(b, "<div class=\"wide\" tabindex=\"0\" role=\"group\" "
                  "aria-label=\"Numbers\"><table><thead><tr>");
    for (; *names; names++) {
        const bool number = **names == '#';

        pd_buf_printf(b, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
        report_text(b, *names + number);
        pd_buf_str(b, "</th>");
    }
    pd_buf_str(b, "</tr></thead><tbody>");
}

static void table_close(struct pd_buf *b)
{
    pd_buf_str(b, "</tbody></table></div>");
}

static void cell(struct pd_buf *b, const json_t *value)
{
    pd_buf_str(b, "<td class=\"n\">");
    report_num(b, value);
    pd_buf_str(b, "</td>");
}

static void row_open(struct pd_buf *b, const json_t *line, size_t i)
{
    pd_buf_printf(b, "<tr><td><span class=\"key\" style=\"background:var(--c%zu)\"></span>", i % COLOURS);
    if (TEXT(line, "name")) {
        report_text(b, TEXT(line, "name"));
        pd_buf_str(b, ": ");
    }
    report_values(b, json_object_get(line, "values"));
    pd_buf_str(b, "</td>");
}

/* The last point of a line that has a mean; NULL: none has. */
static const json_t *end_of(const json_t *data)
{
    for (size_t i = json_array_size(data); i > 0; i--)
        if (json_is_number(json_object_get(json_array_get(data, i - 1), "mean")))
            return json_array_get(data, i - 1);
    return NULL;
}

static void curves_html(struct pd_buf *b, const json_t *panel)
{
    static const char *const columns[] = {"line",  "#ends at step",  "#mean",    "#sd",
                                          "#runs", "#paper ends at", "#best of", NULL};
    static const char *const keys[] = {"x", "mean", "sd", "n"};
    const json_t *lines = json_object_get(panel, "lines"), *line;
    size_t i;

    pd_buf_str(b, "<h4>");
    report_text(b, TEXT(panel, "title"));
    pd_buf_str(b, " (");
    report_text(b, TEXT(panel, "metric"));
    pd_buf_str(b, ")");
    if (json_is_integer(json_object_get(panel, "tokens"))) {
        pd_buf_str(b, ", N = ");
        report_num(b, json_object_get(panel, "tokens"));
    }
    pd_buf_str(b, "</h4><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Curves\">");
    report_chart_lines(b, TEXT(panel, "metric"), "step", lines);
    pd_buf_str(b, "</div>");
    table_open(b, columns);
    json_array_foreach(lines, i, line)
    {
        const json_t *end = end_of(json_object_get(line, "data"));

        row_open(b, line, i);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            cell(b, json_object_get(end, keys[k]));
        cell(b, json_object_get(line, "target"));
        cell(b, json_object_get(line, "of"));
        pd_buf_str(b, "</tr>");
    }
    table_close(b);
}

static void cells_html(struct pd_buf *b, const json_t *panel)
{
    static const char *const columns[] = {"combination", "#n", "#mean", "#sd", "#min", "#max", NULL};
    static const char *const keys[] = {"n", "mean", "sd", "min", "max"};
    const json_t *row;
    size_t i;

    pd_buf_str(b, "<h4>");
    report_text(b, TEXT(panel, "title"));
    pd_buf_str(b, " (");
    report_text(b, TEXT(panel, "metric"));
    pd_buf_str(b, ")</h4>");
    table_open(b, columns);
    json_array_foreach(json_object_get(panel, "rows"), i, row)
    {
        pd_buf_str(b, "<tr><td>");
        report_values(b, json_object_get(row, "values"));
        pd_buf_str(b, "</td>");
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            cell(b, json_object_get(json_object_get(row, "statistic"), keys[k]));
        pd_buf_str(b, "</tr>");
    }
    table_close(b);
}

/* Shares of all entries against the logarithm of their size, as lines. NULL: no memory, or there is none. */
static json_t *shares(const json_t *panel)
{
    json_t *all = json_array();
    const json_t *line, *count;
    size_t i, k;

    json_array_foreach(json_object_get(panel, "lines"), i, line)
    {
        const json_t *meta = json_object_get(line, "meta"), *counts = json_object_get(line, "counts");
        const double low = log10(json_number_value(json_object_get(meta, "lo")));
        const double high = log10(json_number_value(json_object_get(meta, "hi")));
        const double all_entries = json_number_value(json_object_get(meta, "count"));
        json_t *data = json_array();

        json_array_foreach(counts, k, count) if (json_number_value(count) > 0) json_array_append_new(
            data, json_pack("{s:f, s:f}", "x",
                            low + (high - low) * ((double)k + 0.5) / (double)json_array_size(counts), "mean",
                            json_number_value(count) / all_entries));
        json_array_append_new(all, json_pack("{s:o}", "data", data));
    }
    return all;
}

static void histograms_html(struct pd_buf *b, const json_t *panel)
{
    static const char *const columns[] = {
        "line",      "#step",       "#entries",     "#zeros", "#root mean square", "#99.9 % by median",
        "#kurtosis", "#tail index", "#largest 1 %", NULL};
    static const char *const keys[] = {"count", "zeros", "rms", "ratio", "kurtosis", "hill", "top_share"};
    const json_t *lines = json_object_get(panel, "lines"), *line;
    json_t *drawn = shares(panel);
    size_t i;

    pd_buf_str(b, "<h4>");
    report_text(b, TEXT(panel, "title"));
    pd_buf_str(b, "</h4><div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Histogram\">");
    report_chart_lines(b, TEXT(panel, "title"), "log10 of the size of an entry; share of all entries", drawn);
    pd_buf_str(b, "</div>");
    json_decref(drawn);
    table_open(b, columns);
    json_array_foreach(lines, i, line)
    {
        row_open(b, line, i);
        cell(b, json_object_get(line, "step"));
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            cell(b, json_object_get(json_object_get(line, "meta"), keys[k]));
        pd_buf_str(b, "</tr>");
    }
    table_close(b);
}

static void memory_row(struct pd_buf *b, const json_t *line, size_t i, const char *what, const char *how,
                       const json_t *value)
{
    row_open(b, line, i);
    pd_buf_str(b, "<td>");
    report_text(b, what);
    pd_buf_printf(b, ", %s</td>", how);
    cell(b, value);
    pd_buf_str(b, "</tr>");
}

static void memory_html(struct pd_buf *b, const json_t *panel)
{
    static const char *const columns[] = {"combination", "what", "#bytes", NULL};
    const json_t *line;
    const char *key;
    json_t *value;
    size_t i;

    table_open(b, columns);
    json_array_foreach(json_object_get(panel, "lines"), i, line)
    {
        json_t *sum = json_integer(0);

        json_object_foreach(json_object_get(line, "planned"), key, value) if (strcmp(key, "total") != 0)
        {
            memory_row(b, line, i, key, "planned", value);
            json_integer_set(sum, json_integer_value(sum) + json_integer_value(value));
        }
        if (json_object_size(json_object_get(line, "planned")))
            memory_row(b, line, i, "all of these", "planned", sum);
        else
            memory_row(b, line, i, "memory", "planned: not stored; a dry run of its document has it", NULL);
        json_decref(sum);
        json_object_foreach(json_object_get(line, "measured"), key, value)
            memory_row(b, line, i, key, "measured", value);
    }
    table_close(b);
}

static void panel_html(struct pd_buf *b, const json_t *panel)
{
    static const struct {
        const char *form;
        void (*html)(struct pd_buf *b, const json_t *panel);
    } forms[] = {{"curves", curves_html},
                 {"cells", cells_html},
                 {"histograms", histograms_html},
                 {"memory", memory_html},
                 {"map", report_map}};

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(TEXT(panel, "form"), forms[i].form))
            forms[i].html(b, panel);
}

static void picture_html(struct pd_buf *b, const json_t *picture)
{
    const json_t *panels = json_object_get(picture, "panels"), *each;
    const char *is = TEXT(picture, "is");
    size_t i;

    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(picture, "title"));
    pd_buf_str(b, " <span class=\"mut\">");
    report_text(b, TEXT(picture, "source"));
    pd_buf_str(b, "</span></h3><p>The paper's: ");
    report_text(b, TEXT(picture, "paper"));
    pd_buf_str(b, "</p>");
    json_array_foreach(panels, i, each) panel_html(b, each);
    if (json_array_size(panels))
        return;
    pd_buf_str(b, !strcmp(is, "sweep") ? "<p>Its panels stand below, with the job's results.</p>"
                  : !strcmp(is, "blocks")
                      ? "<p>The block follows from norm and model of the configurations below.</p>"
                      : "<p>Nothing is stored for it yet.</p>");
}

void report_pictures(struct pd_buf *b, const json_t *submission)
{
    const json_t *each;
    size_t i;

    json_array_foreach(json_object_get(submission, "pictures"), i, each) picture_html(b, each);
}
