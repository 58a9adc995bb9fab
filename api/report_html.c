/* A report as one HTML page. Every text of a user's goes through report_text. */
#include "api/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))
/* Scrolls by the keyboard, too. */
#define SCROLLS(what) "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"" what "\">"
#define WIDE SCROLLS("Table") "<table>"
#define COUNT(tree, key) (long long)json_integer_value(json_object_get(tree, key))

static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#1b1f24;--mut:#59636e;--line:#d1d9e0;--bg:#fff;--good:#1a7f37;--bad:#b42318;"
    "--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a6568a;--c4:#8a6d00;--c5:#3a86c8;--c6:#5b5bd6;--c7:#7a4b2a;"
    "--c8:#444;--c9:#b5179e;--c10:#2b7a78;--c11:#c1121f}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--mut:#9aa4af;--line:#3d444d;--bg:#0d1117;--good:#"
    "57c76b;"
    "--bad:#ff7b72;--c0:#56b4e9;--c1:#ff8c42;--c2:#2fd6a6;--c3:#e59bcb;--c4:#e6c229;--c5:#8cc8ff;--c6:#"
    "a5a5ff;"
    "--c7:#d8a47f;--c8:#bbb;--c9:#ff7bea;--c10:#6fd1cc;--c11:#ff6b6b}}"
    "*{box-sizing:border-box}body{font:15px/1.5 "
    "system-ui,sans-serif;color:var(--ink);background:var(--bg);margin:0 "
    "auto;max-width:60rem;padding:1.5rem}h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.2rem;margin:2rem "
    "0 .5rem}"
    "h3{font-size:1rem;margin:1.2rem 0 "
    ".3rem}.mut{color:var(--mut)}.wide{overflow-x:auto}table{border-collapse:collapse;"
    "font-size:.85rem;width:100%}th,td{border-bottom:1px solid var(--line);padding:.25rem "
    ".5rem;text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;"
    "white-space:"
    "nowrap}th{font-weight:600}.v{font-weight:600}.v.holds{color:var(--good)}.v.fails{color:var(--bad)}"
    "dl{display:grid;grid-template-columns:max-content "
    "1fr;gap:.15rem 1rem;margin:.5rem "
    "0}dt{color:var(--mut)}dd{margin:0;overflow-wrap:anywhere}pre{font-size:.75rem;"
    "white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);padding:.6rem;columns:15rem}"
    "svg{width:100%;min-width:34rem;height:auto;font-size:11px;margin:.4rem 0}svg "
    "text{fill:var(--ink)}.grid{stroke:var(--line)}"
    ".sd{stroke:var(--c0);stroke-width:2}.mean{fill:var(--c0)}.line{fill:none;stroke-width:1.8}"
    ".use{fill:var(--line);opacity:.45}.top{stroke:var(--c1);stroke-width:1.5}.root{stroke:var(--mut);stroke-"
    "dasharray:4 "
    "3}figure{margin:.6rem 0}figcaption{font-size:.85rem}"
    ".key{display:inline-block;width:1.1em;height:.25em;vertical-align:middle;margin-right:.4em}"
    "@media "
    "print{@page{size:A4;margin:14mm}body{max-width:none;padding:0;font-size:10pt}.wide{overflow:visible}"
    "table{font-size:7.5pt}th,td{padding:.1rem "
    ".25rem}thead{display:table-header-group}tr,svg,figure{break-inside:avoid}"
    "h2,h3{break-after:avoid}pre{font-size:6.5pt;columns:3}svg{min-width:0}}";

/* ---- texts and numbers ------------------------------------------------------------------------- */

void report_text(struct pd_buf *b, const char *text)
{
    for (; text && *text; text++) {
        size_t plain = strcspn(text, "&<>\"'");

        pd_buf_append(b, text, plain);
        text += plain;
        if (!*text)
            break;
        pd_buf_str(b, *text == '&'   ? "&amp;"
                      : *text == '<' ? "&lt;"
                      : *text == '>' ? "&gt;"
                      : *text == '"' ? "&quot;"
                                     : "&#39;");
    }
}

void report_num(struct pd_buf *b, const json_t *value)
{
    if (json_is_integer(value))
        pd_buf_printf(b, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        pd_buf_printf(b, "%.6g", json_real_value(value));
    else if (json_is_string(value)) /* NaN and the infinities */
        report_text(b, json_string_value(value));
}

static void value_text(struct pd_buf *b, const json_t *value)
{
    char *text;

    if (json_is_number(value) || json_is_string(value)) {
        report_num(b, value);
        return;
    }
    text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    if (!text)
        b->failed = true;
    report_text(b, text);
    free(text);
}

void report_values(struct pd_buf *b, const json_t *values)
{
    const char *pointer, *key, *separator = "";
    json_t *value, *inner;

    if (!json_object_size(values))
        pd_buf_str(b, "all runs");
    json_object_foreach((json_t *)values, pointer, value)
    {
        if (json_is_object(value)) {
            json_object_foreach(value, key, inner)
            {
                pd_buf_str(b, separator);
                report_text(b, key);
                pd_buf_str(b, " ");
                value_text(b, inner);
                separator = ", ";
            }
        } else {
            const char *name = strrchr(pointer, '/');

            pd_buf_str(b, separator);
            report_text(b, name ? name + 1 : pointer);
            pd_buf_str(b, " ");
            value_text(b, value);
        }
        separator = ", ";
    }
}

static void element(struct pd_buf *b, const char *tag, const char *text)
{
    pd_buf_printf(b, "<%s>", tag);
    report_text(b, text);
    pd_buf_printf(b, "</%s>", tag);
}

static void cell(struct pd_buf *b, const json_t *value)
{
    pd_buf_str(b, "<td class=\"n\">");
    report_num(b, value);
    pd_buf_str(b, "</td>");
}

static void term(struct pd_buf *b, const char *name, const char *text)
{
    element(b, "dt", name);
    element(b, "dd", text && *text ? text : "not recorded");
}

static void heads(struct pd_buf *b, const char *const *names)
{
    pd_buf_str(b, "<thead><tr>");
    for (; *names; names++) {
        bool number = **names == '#';

        pd_buf_printf(b, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
        report_text(b, *names + number);
        pd_buf_str(b, "</th>");
    }
    pd_buf_str(b, "</tr></thead>");
}

/* ---- verdicts ---------------------------------------------------------------------------------- */

static void tally(struct pd_buf *b, const json_t *runs)
{
    static const char *const words[] = {"succeeded", "open", "diverged", "failed", "cancelled", "lost"};

    pd_buf_printf(b, "%lld run%s", COUNT(runs, "total"), COUNT(runs, "total") == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (COUNT(runs, words[i]))
            pd_buf_printf(b, ", %lld %s", COUNT(runs, words[i]), words[i]);
}

static void statistic_cells(struct pd_buf *b, const json_t *s)
{
    static const char *const keys[] = {"n", "mean", "sd", "min", "max"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        cell(b, json_object_get(s, keys[i]));
}

static void side_rows(struct pd_buf *b, const json_t *claim, const char *key)
{
    const json_t *place;
    size_t i;

    json_array_foreach(json_object_get(claim, key), i, place)
    {
        pd_buf_printf(b, "<tr><td class=\"mut\">%s%s</td><td>", strcmp(key, "arm") != 0 ? "against" : "this",
                      i ? ", less" : "");
        report_values(b, json_object_get(place, "values"));
        if (json_is_true(json_object_get(place, "chosen")))
            pd_buf_str(b, " (the best of those named, by its mean)");
        pd_buf_printf(b, " <span class=\"mut\">job ");
        report_text(b, TEXT(place, "job_id"));
        pd_buf_str(b, ", combination ");
        report_num(b, json_object_get(place, "point"));
        pd_buf_str(b, "</span></td>");
        statistic_cells(b, json_object_get(place, "statistic"));
        pd_buf_str(b, "</tr>");
    }
}

static void claim_html(struct pd_buf *b, const json_t *claim)
{
    static const char *const columns[] = {"side", "combination", "#n", "#mean", "#sd", "#min", "#max", NULL};
    static const char *const keys[] = {"n", "mean", "sd", "low", "high"};
    static const char *const names[] = {"n ", ", mean ", ", sd ", ", 95 % interval ", " to "};
    static const char *const slope_keys[] = {"b", "low", "high"};
    static const char *const slope_names[] = {"", ", 95 % interval of the bootstrap ", " to "};
    const json_t *slope = json_object_get(claim, "slope");
    const json_t *d = json_object_get(claim, "difference"), *seed, *bound = json_object_get(claim, "bound");
    const char *verdict = TEXT(claim, "verdict");
    size_t i;

    if (!json_is_object(slope))
        slope = NULL;

    pd_buf_printf(b, "<h3><span class=\"v %s\">%s</span>: ", verdict, verdict);
    report_text(b, TEXT(claim, "says"));
    pd_buf_str(b, "</h3><p>Claimed of ");
    report_text(b, TEXT(claim, "metric"));
    pd_buf_str(b, ", each run's ");
    report_text(b, TEXT(claim, "value"));
    pd_buf_str(b, " value");
    if (slope) {
        pd_buf_str(b, ", the exponent by which the best ");
        report_text(b, TEXT(slope, "axis"));
        pd_buf_str(b, " grows with the number of tokens");
    }
    pd_buf_str(b, ": ");
    report_text(b, TEXT(claim, "is"));
    pd_buf_str(b, ", margin ");
    report_num(b, json_object_get(claim, "margin"));
    if (json_is_number(bound)) {
        pd_buf_str(b, ", against the number ");
        report_num(b, bound);
    }
    if (json_is_true(json_object_get(claim, "relative")))
        pd_buf_str(b, ", relative to the compared value");
    if (json_is_true(json_object_get(claim, "distance")))
        pd_buf_str(b, ", of distances");
    if (slope) {
        pd_buf_str(b, ". Exponent: ");
        for (i = 0; i < 3; i++) {
            pd_buf_str(b, slope_names[i]);
            report_num(b, json_object_get(slope, slope_keys[i]));
        }
    }
    pd_buf_str(b, slope ? ". Less the number: " : ". Difference seed by seed: ");
    for (i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!json_is_null(json_object_get(d, keys[i]))) {
            pd_buf_str(b, names[i]);
            report_num(b, json_object_get(d, keys[i]));
        }
    if (!slope && COUNT(d, "n") < (long long)json_array_size(json_object_get(claim, "seeds")))
        pd_buf_str(b, " (of the finite ones alone)");
    pd_buf_str(b, "; seeds ");
    json_array_foreach(json_object_get(claim, "seeds"), i, seed)
    {
        pd_buf_str(b, i ? ", " : "");
        report_num(b, seed);
    }
    if (!i)
        pd_buf_str(b, "none");
    pd_buf_printf(b, "; diverged: %lld of this, %lld of the other; not ended %lld; without a result %lld.",
                  COUNT(json_object_get(claim, "diverged"), "arm"),
                  COUNT(json_object_get(claim, "diverged"), "against"), COUNT(claim, "open"),
                  COUNT(claim, "without_result"));
    if (TEXT(claim, "why")) {
        pd_buf_str(b, " <b>Why: ");
        report_text(b, TEXT(claim, "why"));
        pd_buf_str(b, ".</b>");
    }
    pd_buf_str(b, "</p>");
    if (slope)
        return;
    pd_buf_str(b, WIDE);
    heads(b, columns);
    pd_buf_str(b, "<tbody>");
    side_rows(b, claim, "arm");
    side_rows(b, claim, "against");
    pd_buf_str(b, "</tbody></table></div>");
}

static void submission_html(struct pd_buf *b, const json_t *set)
{
    const json_t *changed = json_object_get(set, "changed"), *jobs = json_object_get(set, "jobs"), *each;
    const char *verdict = TEXT(set, "verdict");
    size_t i;

    pd_buf_str(b, "<h2>Verdict of ");
    report_text(b, TEXT(set, "template"));
    pd_buf_str(b, ", job");
    json_array_foreach(jobs, i, each)
    {
        pd_buf_str(b, i ? ", " : " ");
        report_text(b, json_string_value(each));
    }
    if (verdict)
        pd_buf_printf(b, ": <span class=\"v %s\">%s</span>", verdict, verdict);
    pd_buf_str(b, "</h2>");
    if (TEXT(set, "shows")) {
        pd_buf_str(b, "<p><b>Expected:</b> ");
        report_text(b, TEXT(set, "shows"));
        pd_buf_str(b, ".</p>");
    }
    if (TEXT(set, "why")) {
        pd_buf_str(b, "<p>Not judged: ");
        report_text(b, TEXT(set, "why"));
        pd_buf_str(b, ".</p>");
    }
    if (json_array_size(changed)) {
        pd_buf_str(b, "<p><b>Changed from the template:</b> ");
        json_array_foreach(changed, i, each)
        {
            pd_buf_str(b, i ? ", " : "");
            report_text(b, json_string_value(each));
        }
        pd_buf_str(b, ".</p>");
    }
    json_array_foreach(json_object_get(set, "claims"), i, each) claim_html(b, each);
    report_targets(b, set);
    report_pictures(b, set);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

static void row_head(struct pd_buf *b, const json_t *row)
{
    pd_buf_str(b, "<tr>");
    cell(b, json_object_get(row, "point"));
    pd_buf_str(b, "<td>");
    report_values(b, json_object_get(row, "values"));
    pd_buf_str(b, "</td>");
}

static void table_html(struct pd_buf *b, const json_t *job)
{
    static const char *const columns[] = {"#no.", "combination", "runs", "#n",       "#mean",
                                          "#sd",  "#min",        "#max", "#missing", NULL};
    const json_t *row;
    size_t i;

    pd_buf_str(b, WIDE);
    heads(b, columns);
    pd_buf_str(b, "<tbody>");
    json_array_foreach(json_object_get(job, "table"), i, row)
    {
        row_head(b, row);
        pd_buf_str(b, "<td>");
        tally(b, json_object_get(row, "runs"));
        pd_buf_str(b, "</td>");
        statistic_cells(b, json_object_get(row, "statistic"));
        cell(b, json_object_get(json_object_get(row, "statistic"), "missing"));
        pd_buf_str(b, "</tr>");
    }
    pd_buf_str(b, "</tbody></table></div>");
}

/* The scores of the test part. */
static void tested_html(struct pd_buf *b, const json_t *job)
{
    static const char *const columns[] = {"#no.", "combination", "#n",       "#mean", "#sd",
                                          "#min", "#max",        "#missing", NULL};
    const json_t *row;
    size_t i;

    if (!TEXT(job, "test_metric"))
        return;
    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(job, "test_metric"));
    pd_buf_str(b, ", scored once at the end of each run that succeeded, with the checkpoint that validation "
                  "selected</h3>" WIDE);
    heads(b, columns);
    pd_buf_str(b, "<tbody>");
    json_array_foreach(json_object_get(job, "table"), i, row)
    {
        row_head(b, row);
        statistic_cells(b, json_object_get(row, "test"));
        cell(b, json_object_get(json_object_get(row, "test"), "missing"));
        pd_buf_str(b, "</tr>");
    }
    pd_buf_str(b, "</tbody></table></div>");
}

/* A table of its own: both together are wider than paper. */
static void paired_html(struct pd_buf *b, const json_t *job)
{
    static const char *const columns[] = {"#no.", "combination", "#less no.", "#n", "#mean",
                                          "#sd",  "#low",        "#high",     NULL};
    static const char *const keys[] = {"n", "mean", "sd", "low", "high"};
    const json_t *row;
    size_t i, shown = 0;

    json_array_foreach(json_object_get(job, "table"), i, row)
    {
        const json_t *p = json_object_get(row, "paired"), *d = json_object_get(p, "difference");

        if (!d)
            continue;
        if (!shown++) {
            pd_buf_str(b, "<h3>Differences seed by seed, with the 95 % interval of their mean</h3>" WIDE);
            heads(b, columns);
            pd_buf_str(b, "<tbody>");
        }
        row_head(b, row);
        cell(b, json_object_get(p, "against"));
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            cell(b, json_object_get(d, keys[k]));
        pd_buf_str(b, "</tr>");
    }
    if (shown)
        pd_buf_str(b, "</tbody></table></div>");
}

static void runs_html(struct pd_buf *b, const json_t *job)
{
    const char *columns[] = {"#run", "#combination", "#trial", "#seed", "state", NULL, NULL};
    const char *metric = TEXT(job, "metric");
    char value[320];
    const json_t *run;
    size_t i;

    /* By the metric's key, which says the part of the data; a check has none. */
    snprintf(value, sizeof value, "#%s",
             metric && *metric && strcmp(TEXT(job, "kind"), "check") ? metric : "value");
    columns[5] = value;

    pd_buf_str(b, "<h3>Runs</h3>" WIDE);
    heads(b, columns);
    pd_buf_str(b, "<tbody>");
    json_array_foreach(json_object_get(job, "run_list"), i, run)
    {
        pd_buf_str(b, "<tr><td class=\"n\">");
        report_text(b, TEXT(run, "run_id"));
        pd_buf_str(b, "</td>");
        cell(b, json_object_get(run, "point"));
        cell(b, json_object_get(run, "trial"));
        cell(b, json_object_get(run, "seed"));
        element(b, "td", TEXT(run, "outcome") ? TEXT(run, "outcome") : TEXT(run, "state"));
        cell(b, json_object_get(run, "value"));
        pd_buf_str(b, "</tr>");
    }
    pd_buf_str(b, "</tbody></table></div>");
}

static void curves_html(struct pd_buf *b, const json_t *job)
{
    const json_t *curve;
    size_t i;
    bool drawn;

    pd_buf_str(b, SCROLLS("Curves"));
    drawn = report_chart_lines(b, TEXT(job, "metric"), "step", json_object_get(job, "curves"));
    pd_buf_str(b, "</div>");
    if (!drawn)
        return;
    pd_buf_str(b, "<p class=\"mut\">Means over the seeds that succeeded, by combination: ");
    json_array_foreach(json_object_get(job, "curves"), i, curve)
    {
        pd_buf_printf(b, "<span><span class=\"key\" style=\"background:var(--c%zu)\"></span>", i % 12);
        report_num(b, json_object_get(curve, "point"));
        pd_buf_str(b, "</span> ");
    }
    pd_buf_str(b, "</p>");
}

/* The digests of what the job's runs were computed from. */
static void inputs_html(struct pd_buf *b, const json_t *job)
{
    const json_t *list = json_object_get(job, "inputs"), *each;
    size_t i;

    pd_buf_str(b, "<p>Job ");
    report_text(b, TEXT(job, "id"));
    if (!json_array_size(list)) {
        pd_buf_str(b, ": digests of data and program are not recorded.</p>");
        return;
    }
    pd_buf_str(b, json_array_size(list) > 1 ? ": <b>not all runs had the same data and program.</b></p>"
                                            : "</p>");
    json_array_foreach(list, i, each)
    {
        pd_buf_printf(b, "<dl><dt>Runs</dt><dd>%lld</dd>", COUNT(each, "runs"));
        pd_buf_str(b, "<dt>SHA-256 of the data</dt><dd>");
        report_text(b, TEXT(each, "data_digest") ? TEXT(each, "data_digest")
                                                 : "none: polyd generates the data from the document");
        if (TEXT(each, "data_digest_of"))
            pd_buf_str(b, strcmp(TEXT(each, "data_digest_of"), "contents") ? " (of names and sizes)"
                                                                           : " (of contents)");
        pd_buf_str(b, "</dd>");
        term(b, "SHA-256 of the program that trained", TEXT(each, "program_digest"));
        pd_buf_str(b, "</dl>");
    }
}

static void configuration_html(struct pd_buf *b, const json_t *job)
{
    const json_t *c = json_object_get(job, "configuration");
    char *text = json_is_object(c)
                     ? json_dumps(json_object_get(c, "document"), JSON_INDENT(1) | JSON_REAL_PRECISION(15))
                     : NULL;

    pd_buf_str(b, "<h3>Configuration</h3>");
    if (!text) {
        b->failed = b->failed || json_is_object(c);
        pd_buf_str(b, "<p>Left out.</p>");
        return;
    }
    pd_buf_str(b, "<p class=\"mut\">Resolved, of run ");
    report_text(b, TEXT(c, "run_id"));
    pd_buf_str(
        b, ", every field with its value. The other runs differ in the swept values and the seed.</p><dl>");
    term(b, "Digest of it", TEXT(c, "config_digest"));
    term(b, "Device", TEXT(c, "device"));
    pd_buf_str(b, "</dl><pre>");
    report_text(b, text);
    pd_buf_str(b, "</pre>");
    free(text);
}

/* What the runs trained: means, differences, curves. */
static void training_html(struct pd_buf *b, const json_t *job)
{
    pd_buf_str(b, "<h3>");
    report_text(b, TEXT(job, "metric"));
    pd_buf_str(b, ", the last value of each run that succeeded</h3>");
    pd_buf_str(b, SCROLLS("Means"));
    report_chart_means(b, job);
    pd_buf_str(b, "</div>");
    table_html(b, job);
    tested_html(b, job);
    paired_html(b, job);
    report_sweep(b, json_object_get(job, "analysis"));
    curves_html(b, job);
}

static void job_html(struct pd_buf *b, const json_t *job)
{
    const bool check = !strcmp(TEXT(job, "kind"), "check");
    const json_t *each;
    size_t i;

    pd_buf_str(b, "<section><h2>Job ");
    report_text(b, TEXT(job, "id"));
    pd_buf_str(b, ": ");
    report_text(b, TEXT(job, "name"));
    pd_buf_str(b, "</h2><dl>");
    term(b, "State", TEXT(job, "state"));
    term(b, "Template", TEXT(job, "template") ? TEXT(job, "template") : "none");
    element(b, "dt", "Runs");
    pd_buf_str(b, "<dd>");
    tally(b, json_object_get(job, "runs"));
    pd_buf_printf(b, "; planned %lld: %lld combinations, %lld trials each</dd>", COUNT(job, "planned"),
                  COUNT(job, "points"), COUNT(job, "trials"));
    if (!check) {
        term(b, "Metric", TEXT(job, "metric"));
        term(b, "Better", !strcmp(TEXT(job, "mode"), "max") ? "more of it" : "less of it");
    }
    term(b, "Created", TEXT(job, "created"));
    term(b, "Started", TEXT(job, "started") ? TEXT(job, "started") : "not yet");
    term(b, "Ended", TEXT(job, "ended") ? TEXT(job, "ended") : "not yet");
    if (TEXT(job, "notes") && *TEXT(job, "notes"))
        term(b, "Notes", TEXT(job, "notes"));
    pd_buf_str(b, "</dl>");
    if (!check)
        training_html(b, job);
    json_array_foreach(json_object_get(job, "checks"), i, each) report_check(b, each);
    runs_html(b, job);
    configuration_html(b, job);
    pd_buf_str(b, "</section>");
}

/* ---- the page ---------------------------------------------------------------------------------- */

static void variant_html(struct pd_buf *b, const json_t *question, const char *name, const char *word)
{
    const json_t *variant = json_object_get(json_object_get(question, "variants"), name);
    const char *shows = TEXT(variant, "shows"), *refused = TEXT(variant, "refused");

    if (!shows && !refused)
        return;
    pd_buf_printf(b, "<p class=\"mut\">%s%s: ", word, refused ? ", refused" : ", to be seen");
    report_text(b, shows ? shows : refused);
    pd_buf_str(b, ".</p>");
}

static void question_html(struct pd_buf *b, const json_t *x)
{
    const json_t *q = json_object_get(x, "question");
    const char *verdict = TEXT(x, "verdict");

    pd_buf_str(b, "<h1>");
    report_text(b, TEXT(x, "name"));
    if (TEXT(q, "title")) {
        pd_buf_str(b, " · ");
        report_text(b, TEXT(q, "title"));
    }
    pd_buf_str(b, "</h1>");
    if (json_is_object(q)) {
        element(b, "p", TEXT(q, "question"));
        pd_buf_str(b, "<p class=\"mut\">Source: ");
        report_text(b, TEXT(q, "source"));
        pd_buf_printf(b, ". Template ");
        report_text(b, TEXT(q, "name"));
        pd_buf_printf(b, ", version %lld.</p>", COUNT(q, "version"));
        variant_html(b, q, "small", "Small");
        variant_html(b, q, "paper", "At the paper's size");
    }
    pd_buf_str(b, "<p><b>Seen:</b> ");
    if (verdict)
        pd_buf_printf(b, "<span class=\"v %s\">%s</span>", verdict, verdict);
    else
        pd_buf_str(b, "no verdict: nothing of it is judged, or no run has a result");
    pd_buf_printf(b, ". %lld job%s; ", COUNT(x, "jobs"), COUNT(x, "jobs") == 1 ? "" : "s");
    tally(b, json_object_get(x, "runs"));
    pd_buf_str(b, ".</p>");
}

static void rules_html(struct pd_buf *b, const json_t *x)
{
    const json_t *cut = json_object_get(x, "cut"), *each;
    size_t i;

    pd_buf_str(
        b,
        "<h2>How to read it</h2><p>A claim holds if the 95 % interval of the mean difference, seed by seed "
        "(Student's t), or of an exponent (bootstrap), lies on the claimed side; it fails if the interval "
        "lies wholly on the other side; it "
        "is "
        "undecided if the interval spans the claim, and open while runs go on. Every planned seed counts: "
        "with a "
        "seed that has no result a claim stays undecided. A run that diverged is worse than any finite "
        "value. "
        "Each claim is judged by itself at 95 %; the verdict of a submission is the worst of its claims, "
        "that of the "
        "experiment the worst of its submissions. Tables average runs that succeeded only. Numbers have six "
        "digits; ?format=json has them all.</p>");
    if (json_array_size(cut)) {
        pd_buf_str(b, "<p><b>This report is cut.</b> It holds: ");
        json_array_foreach(cut, i, each)
        {
            pd_buf_str(b, i ? "; " : "");
            report_text(b, json_string_value(each));
        }
        pd_buf_str(b, ".</p>");
    }
    pd_buf_str(b, "<h2>Versions and digests</h2><dl>");
    term(b, "Report made", TEXT(x, "made"));
    term(b, "By polyd", TEXT(x, "polyd"));
    pd_buf_str(b, "</dl>");
    json_array_foreach(json_object_get(x, "job_list"), i, each) inputs_html(b, each);
}

void report_html(struct pd_buf *b, const json_t *x)
{
    const json_t *each;
    size_t i;

    pd_buf_str(b, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta "
                  "http-equiv=\"Content-Security-Policy\" content=\"" REPORT_SECURITY_POLICY
                  "\"><meta name=\"viewport\" content=\"width=device-width\"><title>");
    report_text(b, TEXT(x, "name"));
    pd_buf_str(b, " · polyd report</title><style>");
    pd_buf_str(b, style);
    for (int c = 0; c < 12; c++)
        pd_buf_printf(b, ".line.c%d{stroke:var(--c%d)}.dot.c%d{fill:var(--c%d)}", c, c, c, c);
    pd_buf_str(b, "</style></head><body><main>");
    question_html(b, x);
    json_array_foreach(json_object_get(x, "submissions"), i, each) submission_html(b, each);
    json_array_foreach(json_object_get(x, "job_list"), i, each) job_html(b, each);
    rules_html(b, x);
    pd_buf_str(b, "</main></body></html>\n");
}
