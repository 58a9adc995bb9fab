/* The paper's tables with our numbers, in a report. */
#include <string.h>

#include "api/report.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))

static void head(struct pd_buf *b, const char *word, const char *more, bool number)
{
    pd_buf_printf(b, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
    report_text(b, word);
    report_text(b, more);
    pd_buf_str(b, "</th>");
}

static void row_html(struct pd_buf *b, const json_t *column, const json_t *row)
{
    static const char *const keys[] = {"paper",           "here", "sd", "here_less_paper", "paper_less_first",
                                       "here_less_first", "n",    "of"};

    pd_buf_str(b, "<tr><td>");
    report_text(b, TEXT(row, "name"));
    pd_buf_str(b, "</td><td>");
    report_text(b, TEXT(column, "name"));
    pd_buf_str(b, " <span class=\"mut\">");
    report_text(b, TEXT(column, "metric"));
    if (TEXT(row, "job_id") && json_is_integer(json_object_get(row, "point"))) {
        pd_buf_str(b, ", job ");
        report_text(b, TEXT(row, "job_id"));
        pd_buf_str(b, ", combination ");
        report_num(b, json_object_get(row, "point"));
    }
    pd_buf_str(b, "</span></td>");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        pd_buf_str(b, "<td class=\"n\">");
        report_num(b, json_object_get(row, keys[i]));
        pd_buf_str(b, "</td>");
    }
    pd_buf_str(b, "</tr>");
}

static void target_html(struct pd_buf *b, const json_t *target)
{
    const json_t *columns = json_object_get(target, "columns"), *column, *row;
    const char *unit = TEXT(target, "unit");
    const char *first = TEXT(json_array_get(json_object_get(json_array_get(columns, 0), "rows"), 0), "name");
    size_t i, k;

    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(target, "title"));
    pd_buf_str(b, "</h3><p class=\"mut\">");
    report_text(b, TEXT(target, "source"));
    pd_buf_str(b, "; here: means of the last values of the runs that succeeded");
    if (*unit) {
        pd_buf_str(b, "; in ");
        report_text(b, unit);
    }
    pd_buf_str(b,
               ". A row of several settings is the best of them by the metric that ranks the job.</p>"
               "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table><thead><tr>");
    head(b, "row", "", false);
    head(b, "column", "", false);
    head(b, "paper", "", true);
    head(b, "here", "", true);
    head(b, "sd", "", true);
    head(b, "here less paper", "", true);
    head(b, "paper less ", first, true);
    head(b, "here less ", first, true);
    head(b, "n", "", true);
    head(b, "best of", "", true);
    pd_buf_str(b, "</tr></thead><tbody>");
    json_array_foreach(columns, i, column) json_array_foreach(json_object_get(column, "rows"), k, row)
        row_html(b, column, row);
    pd_buf_str(b, "</tbody></table></div>");
}

void report_targets(struct pd_buf *b, const json_t *submission)
{
    const json_t *each;
    size_t i;

    json_array_foreach(json_object_get(submission, "targets"), i, each) target_html(b, each);
}
