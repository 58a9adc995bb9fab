#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

void job_report_init(struct job_report *report)
{
    memset(report, 0, sizeof *report);
}

static void problems_done(struct job_problem *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(p[i].pointer);
        free(p[i].detail);
    }
    free(p);
}

void job_report_done(struct job_report *report)
{
    problems_done(report->errors, report->error_count);
    problems_done(report->warnings, report->warning_count);
    job_report_init(report);
}

/* Sets *failed if memory runs out. Duplicates are reported once. */
static void problem_add(struct job_report *r, struct job_problem **list, size_t *count, const char *pointer,
                        const char *fmt, va_list args)
{
    struct job_problem *p, one = {NULL, NULL};

    if (r->failed)
        return;
    if (vasprintf(&one.detail, fmt, args) < 0) {
        r->failed = true;
        return;
    }
    for (size_t i = 0; i < *count; i++) {
        if (strcmp((*list)[i].pointer, pointer) == 0 && strcmp((*list)[i].detail, one.detail) == 0) {
            free(one.detail);
            return;
        }
    }
    if (*count >= JOB_MAX_PROBLEMS) {
        r->truncated = true;
        free(one.detail);
        return;
    }
    one.pointer = strdup(pointer);
    p = one.pointer ? realloc(*list, (*count + 1) * sizeof *p) : NULL;
    if (!p) {
        r->failed = true;
        free(one.pointer);
        free(one.detail);
        return;
    }
    p[(*count)++] = one;
    *list = p;
}

void job_report_error(struct job_report *r, const char *pointer, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(r, &r->errors, &r->error_count, pointer, fmt, args);
    va_end(args);
}

void job_report_warning(struct job_report *r, const char *pointer, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem_add(r, &r->warnings, &r->warning_count, pointer, fmt, args);
    va_end(args);
}

void job_pointer_add(struct pd_buf *b, const char *key)
{
    pd_buf_str(b, "/");
    for (const unsigned char *p = (const unsigned char *)key; *p; p++) {
        if (*p == '~')
            pd_buf_str(b, "~0");
        else if (*p == '/')
            pd_buf_str(b, "~1");
        else if ((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                 strchr("-._!$&'()*+,;=:@?", *p))
            pd_buf_append(b, p, 1);
        else
            pd_buf_printf(b, "%%%02X", *p);
    }
}
