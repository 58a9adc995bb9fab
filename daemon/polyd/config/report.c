/* The errors and warnings of a configuration, reported together. */
#include "daemon/polyd/config/load.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void config_report_init(struct config_report *report)
{
    memset(report, 0, sizeof *report);
}

static void problems_done(struct config_problem *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(p[i].where);
        free(p[i].what);
    }
    free(p);
}

void config_report_done(struct config_report *report)
{
    problems_done(report->errors, report->error_count);
    problems_done(report->warnings, report->warning_count);
    config_report_init(report);
}

#define MOST_PROBLEMS 200 /* the number of problems is limited */

static void problem_add(struct config_report *r, struct config_problem **list, size_t *count,
                        const char *where, const char *fmt, va_list args)
{
    struct config_problem one = {NULL, NULL}, *p;

    if (r->failed || *count >= MOST_PROBLEMS)
        return;
    if (vasprintf(&one.what, fmt, args) < 0) {
        r->failed = true;
        return;
    }
    one.where = strdup(where);
    p = one.where ? realloc(*list, (*count + 1) * sizeof *p) : NULL;
    if (!p) {
        r->failed = true;
        free(one.where);
        free(one.what);
        return;
    }
    p[(*count)++] = one;
    *list = p;
}

void PD_PRINTF(2, 3) load_error(struct load *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(l->report, &l->report->errors, &l->report->error_count, l->origin, fmt, args);
    va_end(args);
}

void PD_PRINTF(2, 3) load_warning(struct load *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(l->report, &l->report->warnings, &l->report->warning_count, l->origin, fmt, args);
    va_end(args);
}

void config_report_text(const struct config_report *report, struct pd_buf *out)
{
    for (size_t i = 0; i < report->error_count; i++)
        pd_buf_printf(out, "%s: %s\n", report->errors[i].where, report->errors[i].what);
    for (size_t i = 0; i < report->warning_count; i++)
        pd_buf_printf(out, "warning: %s: %s\n", report->warnings[i].where, report->warnings[i].what);
}
