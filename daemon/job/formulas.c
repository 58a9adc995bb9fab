/* attention.formulas: a list of formulas, which is short for an axis of the sweep. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

static bool word_is(const json_t *v, const char *word)
{
    const char *text = json_string_value(v);

    return text && !strcmp(text, word);
}

/* Whether the list and the members next to it fit; reports. *ret_objects: some entry has other members than its text. */
static bool list_check(const json_t *doc, const json_t *list, struct job_report *report, bool *ret_objects)
{
    const json_t *attention = json_object_get(doc, "attention"), *sweep = json_object_get(doc, "sweep"),
                 *activation = json_object_get(attention, "activation"),
                 *axes = json_object_get(sweep, "axes");
    const size_t count = json_array_size(list);
    const json_t *v;
    size_t i;

    *ret_objects = false;
    if (!json_is_array(list) || count < 1 || count > JOB_MAX_AXIS_VALUES)
        job_report_error(report, "#/attention/formulas", "must be an array of 1 to %d formulas",
                         JOB_MAX_AXIS_VALUES);
    else if (json_object_get(attention, "formula"))
        job_report_error(report, "#/attention/formulas",
                         "is a list of formulas and excludes /attention/formula: set only one of them");
    else if (activation && !word_is(activation, "formula"))
        job_report_error(report, "#/attention/formulas",
                         "needs activation formula, which /attention/activation contradicts");
    else if (sweep && !json_is_null(sweep) && !json_is_object(sweep))
        job_report_error(report, "#/sweep", "must be an object, not %s", job_json_kind(sweep));
    else if (axes && !json_is_array(axes))
        job_report_error(report, "#/sweep/axes", "must be an array, not %s", job_json_kind(axes));
    if (report->error_count || report->failed)
        return false;
    json_array_foreach(list, i, v)
    {
        char place[64];

        snprintf(place, sizeof place, "#/attention/formulas/%zu", i);
        if (!json_is_string(v) && !json_is_string(json_object_get(v, "formula")))
            job_report_error(report, place,
                             "must be a formula, or an object with a formula and its params, not %s",
                             job_json_kind(v));
        *ret_objects = *ret_objects || json_is_object(v);
    }
    return !report->error_count && !report->failed;
}

/* The values of the axis: texts, or objects that are merged into attention. NULL without memory. */
static json_t *values_of(const json_t *list, bool objects)
{
    json_t *values = json_array(), *v;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        json_t *one = objects && json_is_string(v) ? json_pack("{s:O}", "formula", v) : job_json_copy(v);

        if (!one || json_array_append_new(values, one) != 0) { /* which refuses NULL */
            json_decref(values);
            return NULL;
        }
    }
    return values;
}

bool job_formulas_fold(json_t *doc, struct job_report *report, struct job_formulas *ret)
{
    json_t *attention = json_object_get(doc, "attention"), *list = json_object_get(attention, "formulas"),
           *sweep = json_object_get(doc, "sweep"), *axes, *axis, *kind = json_object_get(doc, "kind");
    json_t *values;
    bool objects;

    *ret = (struct job_formulas){.list = NULL};
    if (!list || json_is_null(list) || (kind && !word_is(kind, "train")))
        return true;
    if (!list_check(doc, list, report, &objects))
        return false;
    if (!json_is_object(sweep)) {
        sweep = json_object();
        if (!sweep || json_object_set_new(doc, "sweep", sweep) != 0)
            return false;
    }
    axes = json_object_get(sweep, "axes");
    if (!axes) {
        axes = json_array();
        if (!axes || json_object_set_new(sweep, "axes", axes) != 0)
            return false;
    }
    values = values_of(list, objects);
    axis = values ? json_pack("{s:s,s:o}", "pointer", objects ? "/attention" : "/attention/formula", "values",
                              values)
                  : NULL;
    ret->axis = json_array_size(axes);
    ret->list = json_incref(list);
    return axis && json_array_append_new(axes, axis) == 0 &&
           json_object_set_new(attention, "activation", json_string("formula")) == 0 &&
           json_object_del(attention, "formulas") == 0;
}

json_t *job_take_formulas(struct job_ctx *c, const struct job_field *f)
{
    job_ctx_error(c, f->pointer, "is read in the document itself: an axis or an override has formula");
    return NULL;
}

/* The place in the list of a pointer to its axis; the same pointer if it is another's. NULL without memory. */
static char *place_of(const struct job_formulas *f, char *pointer)
{
    char axis[48], *made = NULL;
    const char *rest;
    size_t entry, n = (size_t)snprintf(axis, sizeof axis, "#/sweep/axes/%zu", f->axis);
    int used = 0;

    if (strncmp(pointer, axis, n) != 0 || (pointer[n] && pointer[n] != '/'))
        return pointer;
    rest = pointer + n;
    if (sscanf(rest, "/values/%zu%n", &entry, &used) == 1 && used) {
        rest += used;
        if (json_is_string(json_array_get(f->list, entry)))
            rest = ""; /* the entry is the formula itself */
        if (asprintf(&made, "#/attention/formulas/%zu%s", entry, rest) < 0)
            made = NULL;
    } else {
        made = strdup("#/attention/formulas");
    }
    free(pointer);
    return made;
}

static bool places(const struct job_formulas *f, struct job_problem *list, size_t count)
{
    bool good = true;

    for (size_t i = 0; i < count; i++) {
        list[i].pointer = place_of(f, list[i].pointer);
        good = good && list[i].pointer;
    }
    return good;
}

bool job_formulas_done(struct job_formulas *f, struct job_report *report)
{
    const bool good = !f->list || (places(f, report->errors, report->error_count) &
                                   places(f, report->warnings, report->warning_count));

    json_decref(f->list);
    f->list = NULL;
    return good;
}
