/* One run, field by field: look up, check, store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

static const char unavailable[] = "is known but not available in this version";

/* ---- Where a value came from ---- */

/* Whether `pointer` is `base` or lies below it; *ret_rest is what follows. */
static bool below(const char *pointer, const char *base, const char **ret_rest)
{
    size_t n = strlen(base);

    if (strncmp(pointer, base, n) != 0 || (pointer[n] && pointer[n] != '/'))
        return false;
    *ret_rest = pointer + n;
    return true;
}

/* The field at the pointer, or the one that the pointer lies in: "/attention/params/a/init". */
static size_t field_index(const char *pointer)
{
    char up[256];
    const struct job_field *f = job_field_find(pointer);

    snprintf(up, sizeof up, "%s", pointer);
    for (char *slash; !f && (slash = strrchr(up, '/')) != NULL && slash > up; f = job_field_find(up))
        *slash = 0;
    return f ? (size_t)(f - job_fields) : job_field_count;
}

enum job_layer job_ctx_layer(const struct job_ctx *c, const char *pointer)
{
    size_t i = field_index(pointer);

    return i < job_field_count ? (enum job_layer)c->layer[i] : JOB_LAYER_DOCUMENT;
}

bool job_ctx_bad(const struct job_ctx *c, const char *pointer)
{
    size_t i = field_index(pointer);

    return i < job_field_count && c->bad[i];
}

/* The place in the document that set the field, in URI-fragment form; and, where that place does not
 * name the field, words that do. An error is about one value of an axis, a warning about all of them. */
static void place_of(const struct job_ctx *c, const char *pointer, bool error, struct pd_buf *place,
                     struct pd_buf *words)
{
    const char *key, *rest;
    json_t *value;

    pd_buf_str(place, "#");
    switch (job_ctx_layer(c, pointer)) {
    case JOB_LAYER_SWEEP:
        for (size_t i = 0; i < c->sweep->count; i++) {
            const struct job_axis *a = &c->sweep->axes[i];
            if (!below(pointer, a->pointer, &rest))
                continue;
            pd_buf_printf(place, "/sweep/axes/%zu", a->index);
            if (!error && !*rest)
                pd_buf_printf(words, "%s ", pointer);
            else if (a->from_values)
                pd_buf_printf(place, "/values/%zu%s", c->point->entry[i], rest);
            return;
        }
        break;
    case JOB_LAYER_OVERRIDE:
        json_object_foreach(c->override_map, key, value)
        {
            if (!below(pointer, key, &rest) || !job_json_at(value, rest))
                continue;
            pd_buf_str(place, "/overrides");
            job_pointer_add(place, key);
            pd_buf_str(place, rest);
            return;
        }
        break;
    case JOB_LAYER_PRESET:
        pd_buf_str(place, "/model/preset");
        pd_buf_printf(words, "\"%s\" sets %s: ", c->preset->name, pointer);
        return;
    case JOB_LAYER_RECIPE:
        pd_buf_str(place, "/recipe");
        pd_buf_printf(words, "\"%s\" sets %s: ", c->recipe->name, pointer);
        return;
    default:
        break;
    }
    pd_buf_str(place, pointer);
}

static void problem(struct job_ctx *c, bool error, const char *pointer, const char *fmt, va_list args)
{
    struct pd_buf place, sentence;
    char text[2048];

    pd_buf_init(&place, 0);
    pd_buf_init(&sentence, 0);
    place_of(c, pointer, error, &place, &sentence);
    vsnprintf(text, sizeof text, fmt, args);
    pd_buf_str(&sentence, text);
    if (pd_buf_err(&place) != PD_OK || pd_buf_err(&sentence) != PD_OK)
        c->nomem = true;
    else if (error)
        job_report_error(c->report, place.data, "%s", sentence.data);
    else
        job_report_warning(c->report, place.data, "%s", sentence.data);
    pd_buf_done(&place);
    pd_buf_done(&sentence);
}

void job_ctx_error(struct job_ctx *c, const char *pointer, const char *fmt, ...)
{
    va_list args;
    size_t i = field_index(pointer);

    if (i < job_field_count)
        c->bad[i] = 1;
    c->failed = true;
    va_start(args, fmt);
    problem(c, true, pointer, fmt, args);
    va_end(args);
}

void job_ctx_refuse(struct job_ctx *c, const char *pointer, const char *fmt, ...)
{
    va_list args;
    size_t i = field_index(pointer);

    if (!c->env->stored && i < job_field_count)
        c->bad[i] = 1;
    c->failed = c->failed || !c->env->stored;
    va_start(args, fmt);
    problem(c, !c->env->stored, pointer, fmt, args);
    va_end(args);
}

void job_ctx_warning(struct job_ctx *c, const char *pointer, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem(c, false, pointer, fmt, args);
    va_end(args);
}

/* ---- Looking up ---- */

/* The value of the item that sets the field or an object around it; new reference or NULL. */
static json_t *item_value(struct job_ctx *c, const struct job_item *items, const char *pointer)
{
    const char *rest;

    for (; items && items->pointer; items++) {
        json_t *v, *found;
        if (!below(pointer, items->pointer, &rest))
            continue;
        v = job_json_literal(items->json);
        if (!v) {
            c->nomem = true;
            return NULL;
        }
        found = json_incref(job_json_at(v, rest));
        json_decref(v);
        return found;
    }
    return NULL;
}

/* The field's value in one layer; new reference or NULL. */
static json_t *layer_value(struct job_ctx *c, enum job_layer layer, const char *pointer)
{
    const char *rest;

    switch (layer) {
    case JOB_LAYER_SWEEP:
        for (size_t i = 0; c->sweep && i < c->sweep->count; i++) {
            if (below(pointer, c->sweep->axes[i].pointer, &rest))
                return json_incref(job_json_at(c->point->values[i], rest));
        }
        return NULL;
    case JOB_LAYER_OVERRIDE:
        return c->overrides ? json_incref(job_json_at(c->overrides, pointer)) : NULL;
    case JOB_LAYER_DOCUMENT:
        return json_incref(job_json_at(c->document, pointer));
    case JOB_LAYER_PRESET:
        if (!c->preset)
            return NULL;
        if (strcmp(pointer, "/model/arch") == 0)
            return json_string(job_arch_name(c->preset_arch));
        return item_value(c, c->preset->items, pointer);
    case JOB_LAYER_RECIPE:
        return c->recipe ? item_value(c, c->recipe->items, pointer) : NULL;
    default:
        return NULL;
    }
}

/* Which layer decides for a group: the highest where some member has a value. */
static int group_layer(struct job_ctx *c, enum job_group group)
{
    int decides = JOB_LAYER_DEFAULT;

    if (c->group[group] >= 0)
        return c->group[group];
    for (int layer = JOB_LAYER_SWEEP; layer > JOB_LAYER_DEFAULT && decides == JOB_LAYER_DEFAULT; layer--) {
        const char *first = NULL;
        for (size_t i = 0; i < job_field_count; i++) {
            json_t *v;
            if (job_fields[i].group != group)
                continue;
            v = layer_value(c, (enum job_layer)layer, job_fields[i].pointer);
            if (v && !json_is_null(v)) {
                decides = layer;
                c->layer[i] = (uint8_t)layer;
                if (first)
                    job_ctx_error(c, job_fields[i].pointer, "set this or %s, not both", first);
                first = job_fields[i].pointer;
            }
            json_decref(v);
        }
    }
    c->group[group] = (int8_t)decides;
    return decides;
}

/* Whether the row came after the document's schema. */
static bool later(const struct job_ctx *c, const struct job_field *f)
{
    return f->since > c->schema;
}

/* The field's value from the layers; NULL leaves it to the default. New reference. */
static json_t *lookup(struct job_ctx *c, const struct job_field *f, uint8_t *ret_layer)
{
    json_t *v = NULL;
    int layer;

    *ret_layer = JOB_LAYER_DEFAULT;
    if (f->group != JOB_GROUP_NONE) {
        layer = group_layer(c, f->group);
        if (layer == JOB_LAYER_DEFAULT)
            return NULL;
        *ret_layer = (uint8_t)layer;
        v = layer_value(c, (enum job_layer)layer, f->pointer);
        return v ? v : json_null();
    }
    for (layer = JOB_LAYER_SWEEP; layer > JOB_LAYER_DEFAULT; layer--) {
        if (later(c, f) && layer < JOB_LAYER_DOCUMENT)
            break;
        v = layer_value(c, (enum job_layer)layer, f->pointer);
        if (v) {
            *ret_layer = (uint8_t)layer;
            return v;
        }
    }
    return NULL;
}

/* ---- One field ---- */

static json_t *default_of(struct job_ctx *c, const struct job_field *f)
{
    json_t *v = later(c, f) ? f->before(c) : f->rule ? f->rule(c) : job_json_literal(f->def);

    if (!v && !f->rule)
        c->nomem = true;
    return v;
}

/* Whether the value, in its resolved form, is the default. */
static bool is_default(struct job_ctx *c, const struct job_field *f, const json_t *v)
{
    json_t *d = default_of(c, f);
    bool same = d && json_equal(d, v);

    json_decref(d);
    return same;
}

/* An entry of a list, or the value itself, that this build cannot run. */
static void check_available(struct job_ctx *c, const struct job_field *f, const json_t *v)
{
    if (json_is_null(v) && !(f->flags & JOB_F_ONLY))
        return;
    if (f->type == JOB_T_ENUM || f->type == JOB_T_ENUM_OR_NUM) {
        int i = *(int *)job_place(c, f);
        if (c->in_job && c->env->no_cuda && i == JOB_DEVICE_CUDA && !strcmp(f->pointer, "/resources/device"))
            job_ctx_error(c, f->pointer, "%s", c->env->no_cuda);
        if (job_field_runs(f, (unsigned)i))
            return;
        if (json_is_string(v))
            job_ctx_error(c, f->pointer, "\"%s\" %s", json_string_value(v), unavailable);
        else
            job_ctx_error(c, f->pointer, "a number %s", unavailable);
    } else if (f->flags & JOB_F_ONLY && !is_default(c, f, v)) {
        struct pd_buf b;
        pd_buf_init(&b, 0);
        if (f->type == JOB_T_OBJECT)
            pd_buf_str(&b, "this");
        else
            job_json_write(v, &b);
        if (pd_buf_err(&b) != PD_OK)
            c->nomem = true;
        else if (f->def)
            job_ctx_error(c, f->pointer, "%.200s %s; leave it at %s", b.data, unavailable, f->def);
        else
            job_ctx_error(c, f->pointer, "%.200s %s", b.data, unavailable);
        pd_buf_done(&b);
    }
}

static void warn_computed(struct job_ctx *c, const struct job_field *f, json_t *given, json_t *v)
{
    json_t *same = json_is_number(given) ? job_json_num(json_number_value(given)) : json_incref(given);

    if (!json_equal(same, v))
        job_ctx_warning(c, f->pointer, "is computed; the value in the document is ignored");
    json_decref(same);
}

/* Resolves field i; false if its children do not exist. */
static bool resolve_field(struct job_ctx *c, size_t i)
{
    const struct job_field *f = &job_fields[i];
    uint8_t layer;
    json_t *v = lookup(c, f, &layer), *taken = NULL, *given = NULL;
    bool children = true;

    c->layer[i] = layer;
    if (f->flags & JOB_F_COMPUTED) {
        given = v;
        v = NULL;
    } else if (v && f->rule && f->names && strcmp(f->names->names[0], "auto") == 0 && json_is_string(v) &&
               strcmp(json_string_value(v), "auto") == 0) {
        /* The device: auto asks for the rule, and a resolved run names what the rule found. */
        json_decref(v);
        v = NULL;
    }
    if (!v) {
        v = default_of(c, f);
        if (!v && !c->nomem && !c->bad[i]) {
            if (f->rule == NULL || strcmp(f->rule_text, "required") == 0)
                job_ctx_error(c, f->pointer, "is needed");
            c->bad[i] = 1;
        }
    }
    if (c->nomem || !v || c->bad[i])
        goto out;
    if (json_is_null(v)) {
        if (!(f->flags & JOB_F_NULLABLE)) {
            job_ctx_error(c, f->pointer, "must not be null");
            goto out;
        }
        job_take_null(c, f);
        taken = json_null();
        children = false;
    } else {
        taken = job_take(c, f, v);
        if (!taken) {
            if (!c->failed)
                c->nomem = true;
            c->bad[i] = 1;
            children = false;
            goto out;
        }
    }
    if (given)
        warn_computed(c, f, given, taken);
    if (f->useful && layer >= JOB_LAYER_DOCUMENT)
        c->asked[i] = json_incref(taken);
    if ((!f->useful || f->useful(c->run)) && (layer != JOB_LAYER_DEFAULT || !c->failed)) {
        /* A default follows from other values: if one of those is refused, that says enough. */
        check_available(c, f, taken);
    }
    if (c->out && f->type != JOB_T_FORMULAS) {
        json_t *put = strncmp(f->pointer, "/sweep", 6) == 0 ? json_null() : json_incref(taken);
        if (strncmp(f->pointer, "/sweep/", 7) != 0 && !job_json_put(c->out, f->pointer, put))
            c->nomem = true;
    }
out:
    json_decref(v);
    json_decref(taken);
    json_decref(given);
    return children;
}

/* Whether an axis is about this field alone: then every value is asked for, the default too. */
static bool is_axis(const struct job_ctx *c, const struct job_field *f)
{
    for (size_t i = 0; c->sweep && i < c->sweep->count; i++) {
        if (strcmp(c->sweep->axes[i].pointer, f->pointer) == 0)
            return true;
    }
    return false;
}

/* Whether the document itself can have the field, and the daemon did not take it from a checkpoint's run. */
static bool given(const struct job_ctx *c, const struct job_field *f)
{
    const struct job_kind_info *kind = job_kind_info((enum job_kind)c->g->kind);
    size_t len = strcspn(f->pointer + 1, "/");

    return job_kind_listed(kind->takes, f->pointer + 1, len) &&
           !job_kind_listed(kind->inherits, f->pointer + 1, len);
}

/* Warns of what was asked for and changes nothing: once every row is known. */
static void warn_idle(struct job_ctx *c)
{
    for (size_t i = 0; i < job_field_count && !c->nomem; i++) {
        const struct job_field *f = &job_fields[i];
        if (c->asked[i] && given(c, f) && !c->bad[i] && !f->useful(c->run) &&
            (is_axis(c, f) || !is_default(c, f, c->asked[i])))
            job_ctx_warning(c, f->pointer, "has no effect %s", f->useful_text);
    }
}

/* Whether the run's kind has the section that the field is in. The kind itself is resolved before all others.
 */
static bool belongs(const struct job_ctx *c, const struct job_field *f)
{
    return job_kind_has((enum job_kind)c->g->kind, f->pointer + 1, strcspn(f->pointer + 1, "/"));
}

/* Writes a value that each run has of its own, where its kind has the field. */
static bool put_own(struct job_ctx *c, const char *pointer, int64_t value)
{
    return !belongs(c, job_field_find(pointer)) || job_json_put(c->out, pointer, json_integer(value));
}

enum pd_err job_resolve(struct job_ctx *c)
{
    const char *skip = NULL, *rest;

    c->run = calloc(1, sizeof *c->run);
    if (!c->run)
        return PD_ERR_NOMEM;
    c->run->arena = pd_arena_new();
    if (!c->run->arena)
        return PD_ERR_NOMEM;
    c->g = &c->run->config;
    c->g->owner = c->run;
    c->run->head.trials = 1;
    c->recipe = NULL;
    c->preset = NULL;
    c->failed = false;
    memset(c->layer, 0, sizeof c->layer);
    memset(c->bad, 0, sizeof c->bad);
    memset(c->group, -1, sizeof c->group);
    for (size_t i = 0; i < job_field_count && !c->nomem; i++) {
        const struct job_field *f = &job_fields[i];
        if (skip && below(f->pointer, skip, &rest))
            continue;
        skip = NULL;
        if (!belongs(c, f))
            continue;
        if (!c->in_job && strcmp(f->pointer, "/sweep") == 0) {
            if (c->out && !job_json_put(c->out, "/sweep", json_null()))
                c->nomem = true;
            skip = f->pointer;
            continue;
        }
        if (!resolve_field(c, i) && f->type == JOB_T_OBJECT)
            skip = f->pointer;
        if (c->failed && strcmp(f->pointer, "/kind") == 0) /* what else it should have is unknown */
            return c->nomem ? PD_ERR_NOMEM : PD_ERR_INVALID;
    }
    if (!c->nomem && !c->lenient)
        job_rules_check(c);
    warn_idle(c);
    for (size_t i = 0; i < job_field_count; i++) {
        json_decref(c->asked[i]);
        c->asked[i] = NULL;
    }
    if (!c->nomem && !c->failed) {
        c->g->train.seed += c->trial;
        if (c->out && (!put_own(c, "/train/seed", c->g->train.seed) || !put_own(c, "/trials", 1) ||
                       !put_own(c, "/schema", JOB_SCHEMA)))
            c->nomem = true;
    }
    if (c->nomem || c->report->failed)
        return PD_ERR_NOMEM;
    return c->failed ? PD_ERR_INVALID : PD_OK;
}

struct job_run *job_run_free(struct job_run *run)
{
    if (run) {
        pd_arena_free(run->arena);
        free(run);
    }
    return NULL;
}
