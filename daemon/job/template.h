/* daemon/job/template.h: experiments by name (E01-E18, T1-T20): the documents that one
 * would write for them, to be submitted as they are or with changes. One JSON file each in templates/, compiled
 * in:
 *
 *   {"name": "E01", "version": 1, "title", "question" (two sentences), "source" (the paper's figure or table),
 *    "targets": [the paper's tables], "pictures": [the paper's figures], shown next to the measured values (both may be
 *     absent; api/openapi.yaml, TemplateTarget and TemplatePicture),
 *    "variants": {"small": V, "paper": V}}
 *   V: {"shows": what it should still show, "claims": [statements that its runs decide, see claim.h],
 *       "jobs": [documents]}, or {"refused": what is missing}
 *
 * "data" of a document may hold "any": alternatives {"dataset", "path"} in the order in which they are looked for.
 *
 * `version` goes up with every change of what the documents compute. Any thread may call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

struct job_report;

/* clang-format off */
#define JOB_TEMPLATES(X) \
    X(E01) X(E02) X(E03) X(E04) X(E05) X(E06) X(E07) X(E08) X(E09) \
    X(E10) X(E11) X(E12) X(E13) X(E14) X(E15) X(E16) X(E17) X(E18) \
    X(T1) X(T2) X(T3) X(T4) X(T5) X(T6) X(T7) X(T8) X(T9) X(T10) \
    X(T11) X(T12) X(T13) X(T14) X(T15) X(T16) X(T17) X(T18) X(T19) X(T20)
/* clang-format on */
#define JOB_TEMPLATE_EXTERN(name)                                                                            \
    extern const unsigned char job_template_##name[];                                                        \
    extern const size_t job_template_##name##_len;
JOB_TEMPLATES(JOB_TEMPLATE_EXTERN)
#undef JOB_TEMPLATE_EXTERN

size_t job_template_count(void);
/* "E01"; static. */
const char *job_template_name(size_t i);
/* By name, also "theory/T1"; job_template_count: there is none. */
size_t job_template_find(const char *name);
/* The file, *ret_len bytes of JSON; static, not ended by NUL. */
const char *job_template_text(size_t i, size_t *ret_len);

/* A JSON object appended: {"templates":[the files, of their variants {"shows" or "refused", "claims", "jobs": how many}]}.
 */
PD_NODISCARD enum pd_err job_templates_json(struct pd_buf *ret_json, struct pd_why *why);

#define JOB_TEMPLATE_JOBS 5 /* most of one variant */

/* A request that names a template, as the documents that it stands for. */
struct job_template_docs {
    char name[24]; /* "E01 small 1": template, variant, version; "" = the request names none */
    char experiment[129];
    size_t count;
    struct pd_buf json[JOB_TEMPLATE_JOBS]; /* each a document without a template */
};

/* Where data of a name lie: for a place such as "mnist" the first data root that has it, written as "<root>/mnist";
 * false: none has. */
struct job_template_places {
    void *user;
    bool (*find)(void *user, const char *place, char *ret_path, size_t size);
};

/* Makes them: what else stands in the request wins over the template's documents, member by member. A model's
 * preset replaces the template's whole model, a recipe its way of training, steps its epochs and epochs its
 * steps. The experiment is the template's name unless the request gives one. A request that is not a JSON object is
 * left to job_parse: PD_OK with count 0. `places` (may be NULL: no data root has anything) decides between the
 * alternatives of "data": {"any": [..]}, of which the first that is there is taken unless the request names a data
 * set; the tag "data" names it. PD_ERR_INVALID: the report says why; PD_ERR_NOMEM. The caller frees `ret`
 * with job_template_docs_done, also after a failure. */
PD_NODISCARD enum pd_err job_template_fold(const char *json, size_t len,
                                           const struct job_template_places *places,
                                           struct job_template_docs *ret, struct job_report *report);
void job_template_docs_done(struct job_template_docs *docs);
