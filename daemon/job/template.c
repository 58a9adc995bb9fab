#include "daemon/job/template.h"

#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"

static const struct {
    const char *name;
    const unsigned char *text;
    const size_t *len;
} templates[] = {
#define ROW(name) {#name, job_template_##name, &job_template_##name##_len},
    JOB_TEMPLATES(ROW)
#undef ROW
};
#define COUNT (sizeof templates / sizeof *templates)

size_t job_template_count(void)
{
    return COUNT;
}

const char *job_template_name(size_t i)
{
    return templates[i].name;
}

size_t job_template_find(const char *name)
{
    size_t i = 0;

    if (!strncmp(name, "theory/T", 8))
        name += 7;
    while (i < COUNT && strcmp(templates[i].name, name) != 0)
        i++;
    return i;
}

const char *job_template_text(size_t i, size_t *ret_len)
{
    *ret_len = *templates[i].len;
    return (const char *)templates[i].text;
}

static json_t *load(size_t i)
{
    return json_loadb((const char *)templates[i].text, *templates[i].len, 0, NULL);
}

enum pd_err job_templates_json(struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *all = json_object(), *list = json_array();
    bool good = all && list;

    for (size_t i = 0; i < COUNT && good; i++) {
        json_t *file = load(i), *variant;
        const char *key;

        json_object_foreach(json_object_get(file, "variants"), key, variant)
        {
            json_t *jobs = json_object_get(variant, "jobs");

            good =
                good && (!jobs || json_object_set_new(variant, "jobs",
                                                      json_integer((json_int_t)json_array_size(jobs))) == 0);
        }
        good = good && json_array_append_new(list, file) == 0;
    }
    good = good && json_object_set(all, "templates", list) == 0;
    if (good)
        job_json_write(all, ret_json);
    json_decref(list);
    json_decref(all);
    return good && pd_buf_err(ret_json) == PD_OK ? PD_OK
                                                 : pd_fail(why, PD_ERR_NOMEM, "no memory for the list");
}

/* ---- a request as documents ---- */

/* The variant that the request asks for; NULL: the report says why not, or there is no memory. */
static json_t *variant_of(json_t *file, const json_t *request, const char *name, const char **ret_variant,
                          struct job_report *report)
{
    json_t *wanted = json_object_get(request, "variant"), *v;
    const char *refused;

    *ret_variant = wanted ? json_string_value(wanted) : "small";
    v = *ret_variant ? json_object_get(json_object_get(file, "variants"), *ret_variant) : NULL;
    refused = json_string_value(json_object_get(v, "refused"));
    if (!v)
        job_report_error(report, "#/variant", "must be \"small\" or \"paper\"");
    else if (refused)
        job_report_error(report, "#/template", "%s in its variant \"%s\" cannot run yet: %s", name,
                         *ret_variant, refused);
    return v && !refused ? v : NULL;
}

/* Removes the members of the template that the request replaces. */
static void drop_replaced(json_t *doc, const json_t *request)
{
    json_t *model = json_object_get(request, "model"), *train = json_object_get(request, "train");
    json_t *here = json_object_get(doc, "train");

    if (json_object_get(model, "preset"))
        json_object_del(doc, "model");
    if (json_is_string(json_object_get(request, "recipe")))
        json_object_del(doc, "train");
    else if (json_object_get(train, "steps"))
        json_object_del(here, "epochs");
    else if (json_object_get(train, "epochs"))
        json_object_del(here, "steps");
}

/* Replaces the alternatives of the document's data by the first that is there. False: no memory. */
static bool choose_data(json_t *doc, const json_t *request, const struct job_template_places *places)
{
    json_t *data = json_object_get(doc, "data"), *any = json_incref(json_object_get(data, "any")), *one;
    bool named = json_object_get(json_object_get(request, "data"), "dataset") != NULL, good = true;
    size_t i;

    if (any)
        json_object_del(data, "any");
    json_array_foreach(any, i, one)
    {
        const char *place = json_string_value(json_object_get(one, "path"));
        char path[256];

        if (named || (place && !(places && places->find(places->user, place, path, sizeof path))))
            continue;
        good = job_json_merge(data, one) &&
               (!place || json_object_set_new(data, "path", json_string(path)) == 0);
        break;
    }
    json_decref(any);
    return good;
}

/* Says in a tag which data the document uses. */
static bool tag_data(json_t *doc)
{
    const json_t *dataset = json_object_get(json_object_get(doc, "data"), "dataset");

    return !json_is_string(dataset) ||
           job_json_put(doc, "/tags/data", json_string(json_string_value(dataset)));
}

/* One document of the template with the request's members on top; a new reference. */
static json_t *document_of(json_t *job, json_t *request, const struct job_template_places *places,
                           const char *name, const char *variant)
{
    json_t *doc = job_json_copy(job), *own = job_json_copy(request);
    bool good = doc && own;

    if (good) {
        drop_replaced(doc, own);
        json_object_del(own, "template");
        json_object_del(own, "variant");
        good = choose_data(doc, own, places) && job_json_put(doc, "/experiment", json_string(name)) &&
               job_json_put(doc, "/tags/template", json_string(name)) &&
               job_json_put(doc, "/tags/variant", json_string(variant)) && job_json_merge(doc, own) &&
               tag_data(doc);
    }
    json_decref(own);
    if (good)
        return doc;
    json_decref(doc);
    return NULL;
}

static enum pd_err expand(json_t *request, size_t at, const struct job_template_places *places,
                          struct job_template_docs *ret, struct job_report *report)
{
    const char *name = templates[at].name, *word = NULL;
    json_t *file = load(at), *v, *jobs;
    enum pd_err err = PD_OK;

    if (!file)
        return PD_ERR_NOMEM;
    v = variant_of(file, request, name, &word, report);
    jobs = json_object_get(v, "jobs");
    if (!v)
        err = PD_ERR_INVALID;
    for (size_t i = 0; err == PD_OK && i < json_array_size(jobs) && i < JOB_TEMPLATE_JOBS; i++) {
        json_t *doc = document_of(json_array_get(jobs, i), request, places, name, word);
        const char *experiment = json_string_value(json_object_get(doc, "experiment"));

        if (!doc) {
            err = PD_ERR_NOMEM;
            break;
        }
        snprintf(ret->experiment, sizeof ret->experiment, "%s", experiment ? experiment : "");
        job_json_write(doc, &ret->json[ret->count]);
        err = pd_buf_err(&ret->json[ret->count++]);
        json_decref(doc);
    }
    if (err == PD_OK)
        snprintf(ret->name, sizeof ret->name, "%s %s %lld", name, word,
                 (long long)json_integer_value(json_object_get(file, "version")));
    json_decref(file);
    return err;
}

enum pd_err job_template_fold(const char *json, size_t len, const struct job_template_places *places,
                              struct job_template_docs *ret, struct job_report *report)
{
    json_t *request = NULL, *named;
    const char *name;
    enum pd_err err;

    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < JOB_TEMPLATE_JOBS; i++)
        pd_buf_init(&ret->json[i], JOB_MAX_BYTES);
    err = job_json_load(json, len, &request, NULL);
    if (err != PD_OK)
        return err == PD_ERR_NOMEM ? err : PD_OK;
    named = json_object_get(request, "template");
    name = json_string_value(named);
    if (!name) {
        /* another type is the table's affair */
    } else if (job_template_find(name) == COUNT) {
        job_report_error(report, "#/template",
                         "unknown template; there are E01 to E18 and T1 to T20 (GET /api/v1/templates)");
        err = PD_ERR_INVALID;
    } else {
        err = expand(request, job_template_find(name), places, ret, report);
    }
    json_decref(request);
    if (err != PD_OK)
        ret->count = 0;
    return report->failed ? PD_ERR_NOMEM : err;
}

void job_template_docs_done(struct job_template_docs *docs)
{
    for (size_t i = 0; i < JOB_TEMPLATE_JOBS; i++)
        pd_buf_done(&docs->json[i]);
}
