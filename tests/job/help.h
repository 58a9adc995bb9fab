/* tests/job/help.h: shared by the tests of this module. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/internal.h"

/* As the daemon has completed it. */
#define TEACHER                                                                                              \
    "{\"model\":\"t:1\",\"path\":\"runs/1/checkpoints/a\",\"sha256\":"                                       \
    "\"0123456789012345678901234567890123456789012345678901234567890123\"}"
#define VIT "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"
#define WAVE                                                                                                 \
    "{\"model\":{\"preset\":\"pinn_micro\"},\"attention\":{\"activation\":\"poly\"},\"data\":{\"dataset\":"  \
    "\"pde_wave\"},\"train\":{\"steps\":2}}"
/* Complete: as the daemon makes it of a document that names a checkpoint. */
#define EVALUATE                                                                                             \
    "{\"kind\":\"evaluate\",\"evaluate\":{\"run\":\"12\",\"step\":30,\"path\":\"runs/12/checkpoints/"        \
    "a.safetensors\","                                                                                       \
    "\"sha256\":\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"},"                      \
    "\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"
#define CHECK "{\"kind\":\"check\",\"check\":\"T4\"}"
#define GPT                                                                                                  \
    "{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"text\",\"path\":\"corpora/"               \
    "a.txt\"},\"train\":{\"steps\":100}}"
#define PINN                                                                                                 \
    "{\"model\":{\"preset\":\"pinn_micro\"},\"data\":{\"dataset\":\"pde_reaction\"},\"train\":{\"steps\":"   \
    "100}}"
#define PAIRS                                                                                                \
    "{\"model\":{\"preset\":\"nystrom_micro\"},\"data\":{\"dataset\":\"text_pairs\",\"path\":\"corpora/"     \
    "b\"},"                                                                                                  \
    "\"train\":{\"steps\":100}}"
#define TEXT_GEN                                                                                             \
    "{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"text_gen\"},\"train\":{\"steps\":100}}"

struct parsed {
    struct job_report report;
    struct job_doc *job;
    enum pd_err err;
};

static inline struct parsed parse_env(const char *text, const struct job_env *env)
{
    struct parsed p = {.job = NULL};

    job_report_init(&p.report);
    p.err = job_parse(text, strlen(text), env, &p.job, &p.report);
    assert_true((p.err == PD_OK) == (p.job != NULL));
    assert_true((p.err == PD_OK) == (p.report.error_count == 0));
    return p;
}

static inline struct parsed parse(const char *text)
{
    return parse_env(text, NULL);
}

static inline void done(struct parsed *p)
{
    p->job = job_free(p->job);
    job_report_done(&p->report);
}

/* Whether the list holds this pointer with a detail that contains `what`. */
static inline bool told(const struct job_problem *list, size_t count, const char *pointer, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].pointer, pointer) == 0 && strstr(list[i].detail, what))
            return true;
    }
    return false;
}

static inline void dump(const struct parsed *p)
{
    for (size_t i = 0; i < p->report.error_count; i++)
        print_message("  error   %s: %s\n", p->report.errors[i].pointer, p->report.errors[i].detail);
    for (size_t i = 0; i < p->report.warning_count; i++)
        print_message("  warning %s: %s\n", p->report.warnings[i].pointer, p->report.warnings[i].detail);
}

static inline void want_error(const char *text, const char *pointer, const char *what)
{
    struct parsed p = parse(text);

    if (!told(p.report.errors, p.report.error_count, pointer, what)) {
        dump(&p);
        fail_msg("%s\n  lacks the error %s: %s", text, pointer, what);
    }
    done(&p);
}

/* Exactly this one error. */
static inline void want_only(const char *text, const char *pointer, const char *what)
{
    struct parsed p = parse(text);

    if (p.report.error_count != 1 || !told(p.report.errors, p.report.error_count, pointer, what)) {
        dump(&p);
        fail_msg("%s\n  should have the one error %s: %s", text, pointer, what);
    }
    done(&p);
}

static inline void want_warning(const char *text, const char *pointer, const char *what)
{
    struct parsed p = parse(text);

    if (p.err != PD_OK || !told(p.report.warnings, p.report.warning_count, pointer, what)) {
        dump(&p);
        fail_msg("%s\n  lacks the warning %s: %s", text, pointer, what);
    }
    done(&p);
}

/* Parses without errors, and without warnings but for that of a split in which test files may validate. */
static inline struct parsed want_ok(const char *text)
{
    struct parsed p = parse(text);
    const bool split = told(p.report.warnings, p.report.warning_count, "#/data/split/rule",
                            "standard separates training, validation and test");

    if (p.err != PD_OK || p.report.warning_count > split) {
        dump(&p);
        fail_msg("%s\n  should be fine", text);
    }
    return p;
}

/* Run n as text; the caller frees it. */
static inline char *run_text(const struct job_doc *job, int64_t n)
{
    struct pd_buf b;
    struct pd_why why;

    pd_buf_init(&b, 0);
    if (job_run_resolve(job, n, &b, &why) != PD_OK)
        fail_msg("run %lld: %s", (long long)n, why.text);
    return pd_buf_take(&b);
}

static inline json_t *run_json(const struct job_doc *job, int64_t n)
{
    char *text = run_text(job, n);
    json_t *v = json_loads(text, 0, NULL);

    free(text);
    assert_non_null(v);
    return v;
}

/* The document with the value (JSON text) set at the pointer; the caller frees it. */
static inline char *with(const char *text, const char *pointer, const char *value)
{
    json_t *doc = json_loads(text, 0, NULL), *v = json_loads(value, JSON_DECODE_ANY, NULL);
    char *out;

    assert_non_null(doc);
    assert_non_null(v);
    assert_true(job_json_put(doc, pointer, v));
    out = json_dumps(doc, 0);
    json_decref(doc);
    return out;
}

static inline char *params(const struct job_doc *job, int64_t n)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    assert_int_equal(job_run_params(job, n, &b, NULL), PD_OK);
    return pd_buf_take(&b);
}

static inline void want_params(const struct job_doc *job, int64_t n, const char *want)
{
    char *got = params(job, n);

    assert_string_equal(got, want);
    free(got);
}
