/* What a file of weights says about itself: the part of a resolved document that describes a network and how data
 * reach it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

/* No path, seed, length or rate: those belong to a run. */
static const char *const kept[] = {"/data/dataset",           "/data/image_size",
                                   "/data/context",           "/data/lra_len",
                                   "/data/tokenizer",         "/data/zero_is_padding",
                                   "/data/augment/eval_crop", "/data/augment/interpolation",
                                   "/train/precision",        "/schema"};

/* NULL: there is no such data set. */
static const struct job_dataset_info *dataset_of(const char *name)
{
    for (unsigned i = 0; name && i < job_names_dataset.count; i++)
        if (!strcmp(job_names_dataset.names[i], name))
            return job_dataset_info((enum job_dataset)i);
    return NULL;
}

static bool keep(json_t *to, json_t *from, const char *pointer)
{
    json_t *v = job_json_at(from, pointer), *copy;

    if (!v)
        return true;
    copy = job_json_copy(v);
    return copy && job_json_put(to, pointer, copy);
}

enum pd_err job_weights_document(const char *json, size_t len, struct pd_buf *ret_json, struct pd_why *why)
{
    static const char *const sections[] = {"/model", "/attention", "/norm"};
    const struct job_dataset_info *set;
    json_t *doc = NULL, *to = json_object();
    enum pd_err err = job_json_load(json, len, &doc, why);
    bool ok = err == PD_OK && to;

    for (size_t i = 0; ok && i < sizeof sections / sizeof *sections; i++)
        ok = keep(to, doc, sections[i]);
    for (size_t i = 0; ok && i < sizeof kept / sizeof *kept; i++)
        ok = keep(to, doc, kept[i]);
    set = dataset_of(json_string_value(job_json_at(doc, "/data/dataset")));
    if (ok && set && set->equation > 0)
        ok = keep(to, doc, "/data/pde");
    if (ok)
        job_json_write(to, ret_json);
    if (err == PD_OK && (!ok || pd_buf_err(ret_json) != PD_OK))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the description of the network");
    json_decref(to);
    json_decref(doc);
    return err;
}

/* ---- what a request or a file says of a network, made complete ---- */

/* The members that a description may have. */
static bool member_known(const char *key)
{
    static const char *const known[] = {"preset", "model",  "attention", "norm", "data",
                                        "train",  "schema", "mean",      "std",  "classes"};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i], key))
            return true;
    return false;
}

/* The described network; NULL where none is named, which job_parse reports. */
static const struct job_network *network_of(const json_t *model)
{
    const char *arch = json_string_value(json_object_get(model, "arch")),
               *preset = json_string_value(json_object_get(model, "preset"));
    const struct job_preset *p;
    int network = -1;

    for (unsigned i = 0; arch && i < job_names_arch.count; i++)
        if (!strcmp(job_names_arch.names[i], arch))
            network = (int)i;
    for (size_t i = 0; preset && network < 0; i++) {
        int of;

        p = job_preset_at(i, &of);
        if (!p)
            break;
        if (!strcmp(p->name, preset))
            network = of;
    }
    return network >= 0 ? job_network(network) : NULL;
}

/* No data set stands for every equation: the network of each computes another function. Returns the first. */
static const char *equation_missing(const char *network, struct job_report *report)
{
    const char *first = NULL;
    struct pd_buf names;

    pd_buf_init(&names, 0);
    for (unsigned i = 0; i < job_names_dataset.count; i++)
        if (job_dataset_info((enum job_dataset)i)->equation > 0) {
            pd_buf_printf(&names, "%s%s", first ? ", " : "", job_names_dataset.names[i]);
            first = first ? first : job_names_dataset.names[i];
        }
    job_report_error(report, "#/data/dataset",
                     "is needed: the equation that the %s solves. Set data.dataset of description, next to "
                     "preset or model, to one of %s",
                     network, pd_buf_err(&names) == PD_OK ? names.data : "");
    pd_buf_done(&names);
    return first;
}

/* Data of which no sample is read: without a data set named, those that polyd makes itself. */
static bool put_data(json_t *doc, const char *tokenizer, struct job_report *report)
{
    const struct job_dataset_info *set;
    json_t *data = json_object_get(doc, "data");
    const struct job_network *net = network_of(json_object_get(doc, "model"));
    const bool text = net && net->reads == JOB_READS_TEXT, classes = net && net->landmarks;
    const bool named = json_object_get(data, "dataset") != NULL;
    char path[80];
    bool ok = true;

    if (!json_is_object(data)) {
        data = json_object();
        ok = data && json_object_set_new(doc, "data", data) == 0;
    }
    if (ok && !named && net && net->equations)
        ok = json_object_set_new(data, "dataset", json_string(equation_missing(net->name, report))) == 0;
    else if (ok && !named)
        ok = json_object_set_new(data, "dataset",
                                 json_string(!text       ? "digits_gen"
                                             : classes   ? (tokenizer ? "text_labels" : "listops_gen")
                                             : tokenizer ? "text"
                                                         : "text_gen")) == 0;
    if (ok && tokenizer)
        ok = json_object_set_new(data, "tokenizer", json_string("gpt2_bpe")) == 0 &&
             json_object_set_new(data, "tokenizer_path", json_string(tokenizer)) == 0;
    set = dataset_of(json_string_value(json_object_get(data, "dataset")));
    if (ok && !json_object_get(data, "path") && json_is_string(json_object_get(data, "dataset")) &&
        !(set && set->generated)) {
        snprintf(path, sizeof path, "unknown/%.60s", json_string_value(json_object_get(data, "dataset")));
        ok = json_object_set_new(data, "path", json_string(path)) == 0;
    }
    return ok;
}

/* A network that learns from a teacher is refused without one; none is opened here. */
static bool put_teacher(json_t *doc)
{
    const struct job_network *net = network_of(json_object_get(doc, "model"));
    char digest[65];

    if (!net || !net->distils)
        return true;
    memset(digest, '0', 64);
    digest[64] = '\0';
    return json_object_set_new(
               json_object_get(doc, "train"), "teacher",
               json_pack("{s:s,s:s,s:s}", "model", "unknown@1", "path", "unknown", "sha256", digest)) == 0;
}

/* The document of a job that would train this network. */
static json_t *job_of(const json_t *description, const char *tokenizer, struct job_report *report)
{
    static const char *const sections[] = {"schema", "model", "attention", "norm", "data"};
    json_t *doc = json_pack("{s:s,s:{s:i},s:{s:s}}", "name", "weights", "train", "epochs", 1, "resources",
                            "device", "cpu"),
           *copy, *precision = json_object_get(json_object_get(description, "train"), "precision"),
           *preset = json_object_get(description, "preset"), *model;
    bool ok = doc != NULL;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)description, key, value) if (!member_known(key))
    {
        char place[160];

        snprintf(place, sizeof place, "#/%.100s", key);
        job_report_error(report, place,
                         "is not a member of a network's description; the members are preset, model, "
                         "attention, norm, data, mean, std and classes");
    }
    for (size_t i = 0; ok && i < sizeof sections / sizeof *sections; i++) {
        value = json_object_get(description, sections[i]);
        copy = value ? job_json_copy(value) : NULL;
        ok = !value || (copy && json_object_set_new(doc, sections[i], copy) == 0);
    }
    if (ok && precision)
        ok = json_object_set(json_object_get(doc, "train"), "precision", precision) == 0;
    model = json_object_get(doc, "model");
    if (ok && !model) {
        model = json_object();
        ok = model && json_object_set_new(doc, "model", model) == 0;
    }
    if (ok && preset && json_is_object(model))
        ok = json_object_set(model, "preset", preset) == 0;
    if (ok && json_is_object(model))
        ok = put_data(doc, tokenizer, report) && put_teacher(doc);
    if (ok)
        return doc;
    json_decref(doc);
    return NULL;
}

static void take_channels(const json_t *description, const char *key, bool positive, float ret[3],
                          int *ret_count, struct job_report *report)
{
    const json_t *list = json_object_get(description, key);
    char place[32];
    size_t n = json_array_size(list);
    bool good = !list || (json_is_array(list) && n >= 1 && n <= 3);

    *ret_count = 0;
    for (size_t i = 0; good && i < n; i++) {
        const json_t *v = json_array_get(list, i);

        good = json_is_number(v) && (!positive || json_number_value(v) > 0);
        ret[i] = (float)json_number_value(v);
    }
    snprintf(place, sizeof place, "#/%s", key);
    if (!good)
        job_report_error(report, place, "must be a list of one to three %snumbers, one per channel",
                         positive ? "positive " : "");
    else
        *ret_count = (int)n;
}

static bool take_classes(const json_t *description, struct pd_buf *names, int64_t *ret_count,
                         struct job_report *report)
{
    const json_t *list = json_object_get(description, "classes");
    bool good = !list || (json_is_array(list) && json_array_size(list) > 0);

    *ret_count = (int64_t)json_array_size(list);
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        good = name && *name && !strchr(name, '\n');
        if (good)
            pd_buf_printf(names, "%s%s", i ? "\n" : "", name);
    }
    if (!good)
        job_report_error(report, "#/classes", "must be a list of names, one per class, without line breaks");
    return pd_buf_err(names) == PD_OK;
}

enum pd_err job_weights_read(const char *json, size_t len, const char *tokenizer, struct job_weights *ret,
                             struct job_report *report)
{
    const struct job_env env = {.threads = 1, .keep_best = -1, .keep_latest = -1};
    json_t *description = NULL, *doc = NULL;
    struct job_doc *job = NULL;
    struct pd_why why = {""};
    char *text = NULL;
    enum pd_err err = job_json_load(json, len, &description, &why);

    memset(ret, 0, sizeof *ret);
    pd_buf_init(&ret->document, 0);
    pd_buf_init(&ret->class_names, 0);
    if (err != PD_OK || !json_is_object(description)) {
        if (err == PD_ERR_NOMEM)
            goto out;
        job_report_error(report, "#", "%s", err == PD_OK ? "must be an object" : why.text);
        err = PD_ERR_INVALID;
        goto out;
    }
    doc = job_of(description, tokenizer, report);
    take_channels(description, "mean", false, ret->mean, &ret->mean_count, report);
    take_channels(description, "std", true, ret->std, &ret->std_count, report);
    if (!doc || !take_classes(description, &ret->class_names, &ret->classes, report)) {
        err = PD_ERR_NOMEM;
        goto out;
    }
    if (ret->mean_count != ret->std_count && !report->error_count)
        job_report_error(report, "#/std", "requires mean, with the same number of channels");
    text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(17));
    err = text ? job_parse(text, strlen(text), &env, &job, report) : PD_ERR_NOMEM;
    if (err == PD_OK)
        err = report->error_count ? PD_ERR_INVALID : job_run_resolve(job, 0, &ret->document, &why);
out:
    job_free(job);
    free(text);
    json_decref(doc);
    json_decref(description);
    if (err != PD_OK)
        job_weights_done(ret);
    return err;
}

void job_weights_done(struct job_weights *w)
{
    pd_buf_done(&w->document);
    pd_buf_done(&w->class_names);
}
