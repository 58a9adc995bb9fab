#include "daemon/job/kind.h"

#include <string.h>

#define HEAD "name, experiment, tags, notes, depends_on"

static const struct job_kind_info kinds[JOB_KIND_COUNT] = {
    [JOB_KIND_TRAIN] =
        {.name = "train",
         .worker = true,
         .ranks = true,
         .curves = true,
         .meaning = "trains a model",
         .takes = HEAD ", template, variant, params, recipe, overrides, trials, register, model, data, norm, "
                       "attention, train, diagnostics, resources, sweep"},
    [JOB_KIND_EVALUATE] = {.name = "evaluate",
                           .worker = true,
                           .meaning = "evaluates one checkpoint or model version on a data set",
                           .takes = HEAD ", model, run, checkpoint, split, data, resources",
                           .inherits = "evaluate, model, norm, attention, train"},
    [JOB_KIND_SELFTEST] = {.name = "selftest",
                           .worker = true,
                           .ranks = true,
                           .curves = true,
                           .meaning = "fits a line to generated points, to test queue, worker and store",
                           .takes = HEAD ", resources"},
    [JOB_KIND_CHECK] = {.name = "check",
                        .worker = true,
                        .cpu = true,
                        .meaning = "verifies a statement of the theory, T1 to T20, in double precision",
                        .takes = HEAD ", check, params, resources"},
    [JOB_KIND_EXTERNAL] = {.name = "external",
                           .curves = true,
                           .meaning = "your own program, which reports over HTTP"},
};

const struct job_kind_info *job_kind_info(enum job_kind kind)
{
    return &kinds[kind];
}

bool job_kind_parse(const char *name, enum job_kind *ret)
{
    for (int i = 0; i < JOB_KIND_COUNT; i++)
        if (!strcmp(kinds[i].name, name)) {
            *ret = (enum job_kind)i;
            return true;
        }
    return false;
}

bool job_kind_listed(const char *words, const char *name, size_t len)
{
    for (const char *at = words; at && *at; at += strcspn(at, ","), at += strspn(at, ", "))
        if (strcspn(at, ",") == len && !memcmp(at, name, len))
            return true;
    return false;
}

bool job_kind_has(enum job_kind kind, const char *name, size_t len)
{
    static const char always[] = "schema, kind";

    return job_kind_listed(always, name, len) || job_kind_listed(kinds[kind].takes, name, len) ||
           job_kind_listed(kinds[kind].inherits, name, len);
}
