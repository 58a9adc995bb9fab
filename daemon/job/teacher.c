/* A document that learns from a registered model, made complete: the version that a name means when the job is
 * accepted, and its file. The complete form is taken as well, so that what a run was resolved to can be sent
 * again. */
#include <string.h>

#include "daemon/job/internal.h"

/* Of the document; NULL: it has none, or no JSON. The caller drops *ret_doc. */
static json_t *teacher_of(const char *json, size_t len, json_t **ret_doc)
{
    json_t *v;

    if (job_json_load(json, len, ret_doc, NULL) != PD_OK)
        return NULL;
    v = json_object_get(json_object_get(*ret_doc, "train"), "teacher");
    return json_is_object(v) ? v : NULL;
}

/* Of a document that says it: NULL if it does not, or is wrong there. */
static const struct job_network *network_of(const json_t *doc)
{
    const json_t *model = json_object_get(doc, "model");
    const char *arch = json_string_value(json_object_get(model, "arch")),
               *preset = json_string_value(json_object_get(model, "preset"));
    const struct job_preset *p;
    int of;

    for (unsigned i = 0; arch && i < job_field_find("/model/arch")->names->count; i++)
        if (!strcmp(arch, job_arch_name((int)i)))
            return job_network((int)i);
    for (size_t i = 0; preset && (p = job_preset_at(i, &of)); i++)
        if (!strcmp(preset, p->name))
            return job_network(of);
    return NULL;
}

enum pd_err job_teacher_wanted(const char *json, size_t len, struct job_wanted *ret,
                               struct job_report *report)
{
    json_t *doc = NULL, *teacher = teacher_of(json, len, &doc);
    const char *model = json_string_value(json_object_get(teacher, "model")),
               *sha256 = json_string_value(json_object_get(teacher, "sha256"));
    const struct job_network *net = network_of(doc);
    size_t before = report->error_count;

    memset(ret, 0, sizeof *ret);
    if (teacher && net && !net->distils) /* whichever model it names */
        job_report_error(report, "#/train/teacher", JOB_NO_DISTILLATION, net->name);
    else if (model && *model && strlen(model) >= sizeof ret->model)
        job_report_error(report, "#/train/teacher/model",
                         "must be a version of a model, such as \"mnist:3\", \"mnist\" or \"mnist:prod\"");
    else if (model && *model) { /* whatever else it may be is for job_parse to refuse */
        ret->present = true;
        strcpy(ret->model, model);
        if (sha256 && strlen(sha256) + 1 == sizeof ret->sha256)
            strcpy(ret->sha256, sha256);
    }
    json_decref(doc);
    return report->failed ? PD_ERR_NOMEM : report->error_count > before ? PD_ERR_INVALID : PD_OK;
}

enum pd_err job_teacher_fold(const char *json, size_t len, const struct job_found *found,
                             struct pd_buf *ret_json)
{
    json_t *doc = NULL, *teacher = teacher_of(json, len, &doc);
    bool good = teacher && json_object_set_new(teacher, "model", json_string(found->model)) == 0 &&
                json_object_set_new(teacher, "path", json_string(found->path)) == 0 &&
                json_object_set_new(teacher, "sha256", json_string(found->sha256)) == 0;

    if (good)
        job_json_write(doc, ret_json);
    json_decref(doc);
    return good && pd_buf_err(ret_json) == PD_OK ? PD_OK : PD_ERR_NOMEM;
}
