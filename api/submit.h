/* api/submit.h: the jobs of one request, between reading them (submit.c), trying them without keeping anything (dry_run.c) and
 * weighing what the planner says of them (judge.c). */
#pragma once

#include "api/checkpoint.h"
#include "api/http.h"
#include "daemon/job/job.h"
#include "daemon/job/template.h"
#include "daemon/polyd/supervise/expand.h"
#include "daemon/polyd/supervise/supervise.h"

/* A job that was read, or what is wrong with its document (job NULL). */
struct job_read {
    struct job_doc *job;
    struct job_report report;
    struct api_named named[2]; /* its checkpoint or start, its teacher */
};

/* All jobs of a request: one, or those of a template. */
struct job_request {
    size_t count;
    struct job_read part[JOB_TEMPLATE_JOBS];
    char template_name[sizeof((struct job_template_docs *)0)->name]; /* "": none */
    char experiment[sizeof((struct job_template_docs *)0)->experiment];
};

void api_job_request_done(struct job_request *q);

/* "cpu" or "cuda" */
const char *api_device_of(const struct job_head *head);

struct plan_verdict {
    int64_t need_bytes; /* of each slot; 0 = unknown */
    bool too_large;     /* for this machine: `text` says how much */
    char text[200];
};

/* What the plan (JSON) says of the run, its number of training samples above all: more errors and warnings of the report. */
PD_NODISCARD enum pd_err api_plan_judge(struct sup *sup, const struct job_head *head,
                                        const struct expand_run *run, const char *plan,
                                        struct plan_verdict *ret, struct job_report *report,
                                        struct pd_why *why);

/* Does a plan of the run depend on files, so that a kept one may be out of date? The digest of a plan has their path only. */
bool api_plan_of_files(const struct expand_run *run);

/* [{pointer, detail}] */
void api_problems_json(struct pd_buf *b, const struct job_problem *list, size_t count);

/* Answers a dry run, and takes the request over. start: formulas are tried too. */
void api_dry_run(struct api_req *r, struct job_request *q, bool start);
