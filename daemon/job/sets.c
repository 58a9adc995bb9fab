/* data.eval: the data sets that a language model is scored on without being trained on them.
 *
 * An entry is a data set's name, or an object {"dataset", "path", "name"}. The resolved document has the objects, with
 * the name, which tells the metrics of the sets apart, and the path, null for generated text. */
#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"
#include "daemon/job/rules.h"
#include "kernels/base/arena.h"

#define NAME_MAX_BYTES 32

/* The entry being read, and where errors of it point. */
struct entry {
    struct job_ctx *c;
    const struct job_field *f;
    size_t index;
};

static void fail(const struct entry *e, const char *member, const char *fmt, ...) PD_PRINTF(3, 4);

static void fail(const struct entry *e, const char *member, const char *fmt, ...)
{
    char pointer[64], text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(pointer, sizeof pointer, "%s/%zu%s%s", e->f->pointer, e->index, *member ? "/" : "", member);
    job_ctx_error(e->c, pointer, "%s", text);
}

/* Whether it is a text that a language model continues. */
static bool is_stream(unsigned dataset)
{
    const struct job_dataset_info *d = job_dataset_info((enum job_dataset)dataset);

    return d->task && !strcmp(d->task, "language");
}

bool job_set_runs(unsigned dataset)
{
    return job_dataset_runs(dataset) && is_stream(dataset);
}

static bool take_dataset(const struct entry *e, const json_t *v, int *ret)
{
    const char *text = json_string_value(v);
    const char *names[64];
    char list[256] = "", near[64];
    size_t n = 0, at = 0;

    for (unsigned i = 0; text && i < e->f->names->count; i++)
        if (!strcmp(e->f->names->names[i], text)) {
            *ret = (int)i;
            if (job_set_runs(i))
                return true;
            fail(e, "dataset",
                 is_stream(i) ? "\"%s\" is known but not available in this version"
                              : "\"%s\" is no text that a language model continues",
                 text);
            return false;
        }
    for (unsigned i = 0; i < e->f->names->count; i++)
        if (job_set_runs(i) && n < sizeof names / sizeof *names) {
            names[n++] = e->f->names->names[i];
            at +=
                (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", e->f->names->names[i]);
        }
    if (text)
        fail(e, "dataset", "must be one of %s%s", list, pd_did_you_mean(near, sizeof near, text, names, n));
    else
        fail(e, "dataset", "must be one of %s, not %s", list, job_json_kind(v));
    return false;
}

/* *ret: NULL for generated text. False after an error. */
static bool take_path(const struct entry *e, int dataset, const json_t *v, const char **ret)
{
    const struct job_dataset_info *d = job_dataset_info((enum job_dataset)dataset);
    const char *text = json_string_value(v);
    char pointer[64];
    struct job_field field;

    *ret = text;
    if (v && !text && !(json_is_null(v) && d->generated))
        fail(e, "path", "must be a string, not %s", job_json_kind(v));
    else if (text && d->generated)
        fail(e, "path", "\"%s\" is made by polyd and has no path", d->name);
    else if (!text && !d->generated && dataset == JOB_DATASET_TEXT)
        fail(e, "path", "is needed: a text file, as <root>/<relative>");
    else if (text && (!*text || strlen(text) > 4096))
        fail(e, "path", "must have 1 to 4096 bytes, and has %zu", strlen(text));
    else {
        *ret = text || d->generated ? text : d->name; /* the data root with the data set's name */
        snprintf(pointer, sizeof pointer, "%s/%zu/path", e->f->pointer, e->index);
        field = (struct job_field){.pointer = pointer};
        return !*ret || job_check_path(e->c, &field, *ret);
    }
    return false;
}

static bool take_name(const struct entry *e, const struct job_eval_set *before, const char *dataset,
                      const json_t *v, const char **ret)
{
    static const char word[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

    *ret = v ? json_string_value(v) : dataset;
    if (!*ret) {
        fail(e, "name", "must be a string, not %s", job_json_kind(v));
        return false;
    }
    if (!**ret || strlen(*ret) > NAME_MAX_BYTES || (*ret)[strspn(*ret, word)]) {
        fail(e, "name", "must have 1 to %d letters, digits, \".\", \"_\" or \"-\"", NAME_MAX_BYTES);
        return false;
    }
    for (size_t i = 0; i < e->index; i++)
        if (!strcmp(before[i].name, *ret)) {
            fail(e, v ? "name" : "", "\"%s\" is the name of entry %zu already; give one of them another name",
                 *ret, i);
            return false;
        }
    return true;
}

static bool take_entry(const struct entry *e, const json_t *v, struct job_eval_set *all)
{
    struct job_eval_set *to = &all[e->index];
    const json_t *dataset = json_is_object(v) ? json_object_get(v, "dataset") : v;
    const char *key;
    const json_t *ignored;

    if (!json_is_string(v) && !json_is_object(v)) {
        fail(e, "", "must be the name of a data set, or an object with dataset, path and name, not %s",
             job_json_kind(v));
        return false;
    }
    json_object_foreach((json_t *)v, key,
                        ignored) if (strcmp(key, "dataset") && strcmp(key, "path") && strcmp(key, "name"))
    {
        fail(e, "", "unknown key \"%.100s\"; there are dataset, path and name", key);
        return false;
    }
    if (!dataset) {
        fail(e, "dataset", "is needed");
        return false;
    }
    return take_dataset(e, dataset, &to->dataset) &&
           take_path(e, to->dataset, json_object_get(v, "path"), &to->path) &&
           take_name(e, all, job_dataset_info((enum job_dataset)to->dataset)->name,
                     json_object_get(v, "name"), &to->name);
}

/* Copies the strings into the run's memory; NULL without memory. */
static json_t *keep(struct job_ctx *c, struct job_eval_set *s)
{
    const char *path = s->path;

    s->name = pd_arena_strdup(c->run->arena, s->name);
    s->path = path ? pd_arena_strdup(c->run->arena, path) : NULL;
    if (!s->name || (path && !s->path))
        return NULL;
    return json_pack("{s:s,s:s,s:s?}", "dataset", job_dataset_info((enum job_dataset)s->dataset)->name,
                     "name", s->name, "path", s->path);
}

json_t *job_take_sets(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    size_t n = json_array_size(v);
    struct job_eval_set *items;
    json_t *list;

    if (!json_is_array(v)) {
        job_ctx_error(c, f->pointer, "must be an array, not %s", job_json_kind(v));
        return NULL;
    }
    if ((double)n > f->max) {
        job_ctx_error(c, f->pointer, "must have at most %.0f entries, and has %zu", f->max, n);
        return NULL;
    }
    items = pd_arena_alloc(c->run->arena, (n ? n : 1) * sizeof *items);
    list = json_array();
    c->nomem = c->nomem || !items || !list;
    for (size_t i = 0; i < n && !c->nomem; i++) {
        const struct entry e = {.c = c, .f = f, .index = i};

        if (!take_entry(&e, json_array_get(v, i), items)) {
            json_decref(list);
            return NULL;
        }
        c->nomem = json_array_append_new(list, keep(c, &items[i])) != 0;
    }
    if (c->nomem) {
        json_decref(list);
        return NULL;
    }
    if (job_place(c, f))
        *(struct job_eval_sets *)job_place(c, f) = (struct job_eval_sets){n, items};
    return list;
}
