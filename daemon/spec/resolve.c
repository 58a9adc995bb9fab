/* One run, field by field: look up, check, store. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/internal.h"

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

static size_t field_index(const char *pointer)
{
    const struct spec_field *f = spec_field_find(pointer);

    return f ? (size_t)(f - spec_fields) : spec_field_count;
}

enum spec_layer spec_ctx_layer(const struct spec_ctx *c, const char *pointer)
{
    size_t i = field_index(pointer);

    return i < spec_field_count ? (enum spec_layer)c->layer[i] : SPEC_LAYER_DOCUMENT;
}

bool spec_ctx_bad(const struct spec_ctx *c, const char *pointer)
{
    size_t i = field_index(pointer);

    return i < spec_field_count && c->bad[i];
}

/* The place in the document that set the field, in URI-fragment form; and, where that place does not
 * name the field, words that do. An error is about one value of an axis, a warning about all of them. */
static void place_of(const struct spec_ctx *c, const char *pointer, bool error, struct pd_buf *place,
                     struct pd_buf *words)
{
    const char *key, *rest;
    json_t *value;

    pd_buf_str(place, "#");
    switch (spec_ctx_layer(c, pointer)) {
    case SPEC_LAYER_SWEEP:
        for (size_t i = 0; i < c->sweep->count; i++) {
            const struct spec_axis *a = &c->sweep->axes[i];
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
    case SPEC_LAYER_OVERRIDE:
        json_object_foreach(c->override_map, key, value)
        {
            if (!below(pointer, key, &rest) || !spec_json_at(value, rest))
                continue;
            pd_buf_str(place, "/overrides");
            spec_pointer_add(place, key);
            pd_buf_str(place, rest);
            return;
        }
        break;
    case SPEC_LAYER_PRESET:
        pd_buf_str(place, "/model/preset");
        pd_buf_printf(words, "\"%s\" sets %s: ", c->preset->name, pointer);
        return;
    case SPEC_LAYER_RECIPE:
        pd_buf_str(place, "/recipe");
        pd_buf_printf(words, "\"%s\" sets %s: ", c->recipe->name, pointer);
        return;
    default:
        break;
    }
    pd_buf_str(place, pointer);
}

static void problem(struct spec_ctx *c, bool error, const char *pointer, const char *fmt, va_list args)
{
    struct pd_buf place, said;
    char text[2048];

    pd_buf_init(&place, 0);
    pd_buf_init(&said, 0);
    place_of(c, pointer, error, &place, &said);
    vsnprintf(text, sizeof text, fmt, args);
    pd_buf_str(&said, text);
    if (pd_buf_err(&place) != PD_OK || pd_buf_err(&said) != PD_OK)
        c->nomem = true;
    else if (error)
        spec_report_error(c->report, place.data, "%s", said.data);
    else
        spec_report_warning(c->report, place.data, "%s", said.data);
    pd_buf_done(&place);
    pd_buf_done(&said);
}

void spec_ctx_error(struct spec_ctx *c, const char *pointer, const char *fmt, ...)
{
    va_list args;
    size_t i = field_index(pointer);

    if (i < spec_field_count)
        c->bad[i] = 1;
    c->failed = true;
    va_start(args, fmt);
    problem(c, true, pointer, fmt, args);
    va_end(args);
}

void spec_ctx_warning(struct spec_ctx *c, const char *pointer, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    problem(c, false, pointer, fmt, args);
    va_end(args);
}

/* ---- Looking up ---- */

/* The value of the item that sets the field or an object around it; new reference or NULL. */
static json_t *item_value(struct spec_ctx *c, const struct spec_item *items, const char *pointer)
{
    const char *rest;

    for (; items && items->pointer; items++) {
        json_t *v, *found;
        if (!below(pointer, items->pointer, &rest))
            continue;
        v = spec_json_literal(items->json);
        if (!v) {
            c->nomem = true;
            return NULL;
        }
        found = json_incref(spec_json_at(v, rest));
        json_decref(v);
        return found;
    }
    return NULL;
}

/* The field's value in one layer; new reference or NULL. */
static json_t *layer_value(struct spec_ctx *c, enum spec_layer layer, const char *pointer)
{
    const char *rest;

    switch (layer) {
    case SPEC_LAYER_SWEEP:
        for (size_t i = 0; c->sweep && i < c->sweep->count; i++) {
            if (below(pointer, c->sweep->axes[i].pointer, &rest))
                return json_incref(spec_json_at(c->point->values[i], rest));
        }
        return NULL;
    case SPEC_LAYER_OVERRIDE:
        return c->overrides ? json_incref(spec_json_at(c->overrides, pointer)) : NULL;
    case SPEC_LAYER_DOCUMENT:
        return json_incref(spec_json_at(c->document, pointer));
    case SPEC_LAYER_PRESET:
        if (!c->preset)
            return NULL;
        if (strcmp(pointer, "/model/arch") == 0)
            return json_string(spec_names_arch.names[c->preset->arch]);
        return item_value(c, c->preset->items, pointer);
    case SPEC_LAYER_RECIPE:
        return c->recipe ? item_value(c, c->recipe->items, pointer) : NULL;
    default:
        return NULL;
    }
}

/* Which layer decides for a group: the highest where some member has a value. */
static int group_layer(struct spec_ctx *c, enum spec_group group)
{
    int decides = SPEC_LAYER_DEFAULT;

    if (c->group[group] >= 0)
        return c->group[group];
    for (int layer = SPEC_LAYER_SWEEP; layer > SPEC_LAYER_DEFAULT && decides == SPEC_LAYER_DEFAULT; layer--) {
        const char *first = NULL;
        for (size_t i = 0; i < spec_field_count; i++) {
            json_t *v;
            if (spec_fields[i].group != group)
                continue;
            v = layer_value(c, (enum spec_layer)layer, spec_fields[i].pointer);
            if (v && !json_is_null(v)) {
                decides = layer;
                c->layer[i] = (uint8_t)layer;
                if (first)
                    spec_ctx_error(c, spec_fields[i].pointer, "give this or %s, not both", first);
                first = spec_fields[i].pointer;
            }
            json_decref(v);
        }
    }
    c->group[group] = (int8_t)decides;
    return decides;
}

/* Whether the row came after the document's schema. */
static bool later(const struct spec_ctx *c, const struct spec_field *f)
{
    return f->since > c->schema;
}

/* The field's value from the layers; NULL leaves it to the default. New reference. */
static json_t *lookup(struct spec_ctx *c, const struct spec_field *f, uint8_t *ret_layer)
{
    json_t *v = NULL;
    int layer;

    *ret_layer = SPEC_LAYER_DEFAULT;
    if (f->group != SPEC_GROUP_NONE) {
        layer = group_layer(c, f->group);
        if (layer == SPEC_LAYER_DEFAULT)
            return NULL;
        *ret_layer = (uint8_t)layer;
        v = layer_value(c, (enum spec_layer)layer, f->pointer);
        return v ? v : json_null();
    }
    for (layer = SPEC_LAYER_SWEEP; layer > SPEC_LAYER_DEFAULT; layer--) {
        if (later(c, f) && layer < SPEC_LAYER_DOCUMENT)
            break;
        v = layer_value(c, (enum spec_layer)layer, f->pointer);
        if (v) {
            *ret_layer = (uint8_t)layer;
            return v;
        }
    }
    return NULL;
}

/* ---- Checking and storing. Each returns the value as the resolved document has it (a new
 * reference), or NULL after an error. ---- */

static void *place(struct spec_ctx *c, const struct spec_field *f)
{
    return f->offset == SPEC_NO_OFFSET ? NULL : (char *)c->run + f->offset;
}

static json_t *wrong(struct spec_ctx *c, const struct spec_field *f, const char *want, const json_t *got)
{
    spec_ctx_error(c, f->pointer, "must be %s, not %s", want, spec_json_kind(got));
    return NULL;
}

/* Whether the number lies in the row's range; reports. */
static bool in_range(struct spec_ctx *c, const struct spec_field *f, double v)
{
    bool low = f->flags & SPEC_F_MIN_OPEN ? v > f->min : v >= f->min;
    bool high = f->flags & SPEC_F_MAX_OPEN ? v < f->max : v <= f->max;
    char lo[40], hi[40];

    if (low && high)
        return true;
    spec_json_number(f->min, lo);
    if (isinf(f->max))
        spec_ctx_error(c, f->pointer, "must be %s %s",
                       f->flags & SPEC_F_MIN_OPEN ? "greater than" : "at least", lo);
    else
        spec_ctx_error(c, f->pointer, "must be %s %s and %s %s",
                       f->flags & SPEC_F_MIN_OPEN ? "greater than" : "at least", lo,
                       f->flags & SPEC_F_MAX_OPEN ? "less than" : "at most", spec_json_number(f->max, hi));
    return false;
}

/* A whole number: 3 and 3.0 are the same to JSON. */
static bool whole(const json_t *v, int64_t *ret)
{
    double d;

    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v))
        return false;
    d = json_real_value(v);
    if (d != floor(d) || fabs(d) > SPEC_MAX_SEED)
        return false;
    *ret = (int64_t)d;
    return true;
}

static json_t *take_int(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    int64_t i;

    if (!json_is_number(v))
        return wrong(c, f, "an integer", v);
    if (!whole(v, &i)) {
        spec_ctx_error(c, f->pointer, "must be an integer");
        return NULL;
    }
    if (!in_range(c, f, (double)i))
        return NULL;
    if (place(c, f))
        *(int64_t *)place(c, f) = i;
    return json_integer(i);
}

static json_t *take_number(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    double d = json_number_value(v);

    if (!json_is_number(v))
        return wrong(c, f, "a number", v);
    if (!in_range(c, f, d))
        return NULL;
    if (place(c, f))
        *(double *)place(c, f) = d;
    return spec_json_num(d);
}

static json_t *take_string(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    char *copy;

    if (!text)
        return wrong(c, f, "a string", v);
    if ((double)n < f->min || (double)n > f->max) {
        spec_ctx_error(c, f->pointer, "must have %.0f to %.0f bytes, and has %zu", f->min, f->max, n);
        return NULL;
    }
    if (f->flags & SPEC_F_WORD &&
        text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")]) {
        spec_ctx_error(c, f->pointer, "may hold letters, digits, \".\", \"_\" and \"-\" only");
        return NULL;
    }
    if (f->check && !f->check(c, f, text))
        return NULL;
    if (place(c, f)) {
        copy = pd_arena_strdup(c->run->arena, text);
        if (!copy) {
            c->nomem = true;
            return NULL;
        }
        *(const char **)place(c, f) = copy;
    }
    return json_incref(v);
}

/* The index of a name in the row's list; -1 after a report. */
static int enum_index(struct spec_ctx *c, const struct spec_field *f, json_t *v, unsigned count)
{
    const char *text = json_string_value(v);
    char list[1024], near[64];
    size_t at = 0;

    if (!text) {
        wrong(c, f, "a string", v);
        return -1;
    }
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(f->names->names[i], text) == 0)
            return (int)i;
    }
    list[0] = '\0';
    for (unsigned i = 0; i < count && at < sizeof list - 64; i++)
        if (!f->available || f->available >> i & 1)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", f->names->names[i]);
    spec_ctx_error(c, f->pointer, "must be one of %s%s%s", list,
                   f->type == SPEC_T_ENUM_OR_NUM ? ", or a number" : "",
                   pd_did_you_mean(near, sizeof near, text, f->names->names, count));
    return -1;
}

static json_t *take_enum(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    int i = enum_index(c, f, v, f->names->count);

    if (i < 0)
        return NULL;
    if (place(c, f))
        *(int *)place(c, f) = i;
    return json_incref(v);
}

/* n_for_scale, the one row of this type: the number goes to attention.n. */
static json_t *take_enum_or_number(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    double d = json_number_value(v);
    int i;

    if (json_is_number(v)) {
        if (!in_range(c, f, d))
            return NULL;
        c->g->attention.n_for_scale = SPEC_N_NUMBER;
        c->g->attention.n = d;
        return spec_json_num(d);
    }
    if (!json_is_string(v))
        return wrong(c, f, "a string or a number", v);
    i = enum_index(c, f, v, f->names->count - 1);
    if (i < 0)
        return NULL;
    c->g->attention.n_for_scale = i;
    return json_incref(v);
}

static json_t *take_int_pair(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    int64_t *to = place(c, f), pair[2];

    if (json_is_array(v) && json_array_size(v) == 2 && whole(json_array_get(v, 0), &pair[0]) &&
        whole(json_array_get(v, 1), &pair[1])) {
        if (!in_range(c, f, (double)pair[0]) || !in_range(c, f, (double)pair[1]))
            return NULL;
    } else if (whole(v, &pair[0])) {
        if (!in_range(c, f, (double)pair[0]))
            return NULL;
        pair[1] = pair[0];
    } else {
        spec_ctx_error(c, f->pointer, "must be an integer, or two of them as [rows, columns]");
        return NULL;
    }
    to[0] = pair[0];
    to[1] = pair[1];
    return pair[0] == pair[1] ? json_integer(pair[0]) : json_pack("[I,I]", pair[0], pair[1]);
}

static json_t *take_number_pair(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    double *to = place(c, f);
    json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);

    if (json_array_size(v) != 2 || !json_is_number(a) || !json_is_number(b)) {
        spec_ctx_error(c, f->pointer, "must be an array of two numbers");
        return NULL;
    }
    if (!in_range(c, f, json_number_value(a)) || !in_range(c, f, json_number_value(b)))
        return NULL;
    to[0] = json_number_value(a);
    to[1] = json_number_value(b);
    return json_pack("[o,o]", spec_json_num(to[0]), spec_json_num(to[1]));
}

#define SPEC_MAX_LIST 1024

/* All four kinds of lists: entries are checked with the row's range or names. */
static json_t *take_list(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    size_t n = json_array_size(v), most = f->type == SPEC_T_ENUMS ? (size_t)f->max : SPEC_MAX_LIST;
    size_t width = f->type == SPEC_T_STRINGS ? sizeof(char *) : 8;
    json_t *list;
    void *items;

    if (!json_is_array(v))
        return wrong(c, f, "an array", v);
    if (n > most) {
        spec_ctx_error(c, f->pointer, "must have at most %zu entries, and has %zu", most, n);
        return NULL;
    }
    list = json_array();
    items = pd_arena_alloc(c->run->arena, n ? n * width : 1);
    if (!list || !items)
        goto nomem;
    for (size_t i = 0; i < n; i++) {
        json_t *e = json_array_get(v, i), *keep = NULL;
        int64_t whole_value = 0;
        if (f->type == SPEC_T_INTS) {
            if (!whole(e, &whole_value)) {
                spec_ctx_error(c, f->pointer, "entry %zu must be an integer", i);
                goto bad;
            }
            if (!in_range(c, f, (double)whole_value))
                goto bad;
            ((int64_t *)items)[i] = whole_value;
            keep = json_integer(whole_value);
        } else if (f->type == SPEC_T_ENUMS) {
            int index = enum_index(c, f, e, f->names->count);
            if (index < 0)
                goto bad;
            ((int64_t *)items)[i] = index;
            keep = json_incref(e);
        } else if (f->type == SPEC_T_NUMBERS) {
            if (!json_is_number(e)) {
                spec_ctx_error(c, f->pointer, "entry %zu must be a number", i);
                goto bad;
            }
            if (!in_range(c, f, json_number_value(e)))
                goto bad;
            ((double *)items)[i] = json_number_value(e);
            keep = spec_json_num(json_number_value(e));
        } else {
            if (!json_is_string(e) || json_string_length(e) < f->min || json_string_length(e) > f->max) {
                spec_ctx_error(c, f->pointer, "entry %zu must be a string of %.0f to %.0f bytes", i, f->min,
                               f->max);
                goto bad;
            }
            ((char **)items)[i] = pd_arena_strdup(c->run->arena, json_string_value(e));
            keep = ((char **)items)[i] ? json_incref(e) : NULL;
        }
        if (!keep || json_array_append_new(list, keep) != 0)
            goto nomem;
    }
    /* The four list structs are alike: a count and a pointer. */
    if (place(c, f))
        *(struct spec_ints *)place(c, f) = (struct spec_ints){n, items};
    return list;
nomem:
    c->nomem = true;
bad:
    json_decref(list);
    return NULL;
}

static json_t *take_tags(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    struct spec_tag *tags;
    const char *key;
    json_t *value;
    size_t n = json_object_size(v), i = 0;

    if (!json_is_object(v))
        return wrong(c, f, "an object of strings", v);
    if ((double)n > f->max) {
        spec_ctx_error(c, f->pointer, "at most %.0f tags, and there are %zu", f->max, n);
        return NULL;
    }
    tags = pd_arena_alloc(c->run->arena, (n ? n : 1) * sizeof *tags);
    if (!tags)
        goto nomem;
    json_object_foreach(v, key, value)
    {
        if (!*key || strlen(key) > 250) {
            spec_ctx_error(c, f->pointer, "a tag's key has 1 to 250 bytes");
            return NULL;
        }
        if (!json_is_string(value) || json_string_length(value) > 5000) {
            spec_ctx_error(c, f->pointer, "the tag \"%.100s\" must be a string of at most 5000 bytes", key);
            return NULL;
        }
        tags[i].key = pd_arena_strdup(c->run->arena, key);
        tags[i].value = pd_arena_strdup(c->run->arena, json_string_value(value));
        if (!tags[i].key || !tags[i].value)
            goto nomem;
        i++;
    }
    c->run->head.tags = tags;
    c->run->head.tag_count = n;
    return json_incref(v);
nomem:
    c->nomem = true;
    return NULL;
}

static json_t *take_params(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    if (!json_is_object(v))
        return wrong(c, f, "an object", v);
    if (json_object_size(v) > 0) {
        spec_ctx_error(c, f->pointer, "unknown parameters: no template is named");
        return NULL;
    }
    return json_incref(v);
}

static json_t *take_depends(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    static const char *const whens[] = {"afterok", "afterany", "afternotok"};
    struct spec_dependency *list;
    json_t *out, *e;
    size_t n = json_array_size(v), i;

    if (!json_is_array(v))
        return wrong(c, f, "an array", v);
    if ((double)n > f->max) {
        spec_ctx_error(c, f->pointer, "at most %.0f jobs, and there are %zu", f->max, n);
        return NULL;
    }
    list = pd_arena_alloc(c->run->arena, (n ? n : 1) * sizeof *list);
    out = json_array();
    if (!list || !out)
        goto nomem;
    json_array_foreach(v, i, e)
    {
        json_t *job = json_object_get(e, "job"), *when = json_object_get(e, "when");
        const char *id = json_string_value(job), *key;
        json_t *ignored;
        unsigned k = 0;
        if (!json_is_object(e)) {
            spec_ctx_error(c, f->pointer, "entry %zu must be an object, not %s", i, spec_json_kind(e));
            goto bad;
        }
        json_object_foreach(e, key, ignored)
        {
            if (strcmp(key, "job") != 0 && strcmp(key, "when") != 0) {
                spec_ctx_error(c, f->pointer, "entry %zu: unknown key \"%.100s\"; there are job and when", i,
                               key);
                goto bad;
            }
        }
        if (!id || !*id || strlen(id) > 19 || id[strspn(id, "0123456789")]) {
            spec_ctx_error(c, f->pointer, "entry %zu: job must be a job's id as a string of digits", i);
            goto bad;
        }
        if (when) {
            while (k < 3 && (!json_is_string(when) || strcmp(json_string_value(when), whens[k]) != 0))
                k++;
            if (k == 3) {
                spec_ctx_error(c, f->pointer, "entry %zu: when must be one of afterok, afterany, afternotok",
                               i);
                goto bad;
            }
        }
        list[i].job = pd_arena_strdup(c->run->arena, id);
        list[i].when = (int)k;
        if (!list[i].job ||
            json_array_append_new(out, json_pack("{s:s,s:s}", "job", id, "when", whens[k])) != 0)
            goto nomem;
    }
    c->run->head.depends_on = list;
    c->run->head.depends_on_count = n;
    return out;
nomem:
    c->nomem = true;
bad:
    json_decref(out);
    return NULL;
}

static json_t *take(struct spec_ctx *c, const struct spec_field *f, json_t *v)
{
    switch (f->type) {
    case SPEC_T_BOOL:
        if (!json_is_boolean(v))
            return wrong(c, f, "true or false", v);
        if (place(c, f))
            *(bool *)place(c, f) = json_is_true(v);
        return json_incref(v);
    case SPEC_T_INT:
        return take_int(c, f, v);
    case SPEC_T_NUMBER:
        return take_number(c, f, v);
    case SPEC_T_STRING:
        return take_string(c, f, v);
    case SPEC_T_ENUM:
        return take_enum(c, f, v);
    case SPEC_T_ENUM_OR_NUM:
        return take_enum_or_number(c, f, v);
    case SPEC_T_INT_PAIR:
        return take_int_pair(c, f, v);
    case SPEC_T_NUMBER_PAIR:
        return take_number_pair(c, f, v);
    case SPEC_T_INTS:
    case SPEC_T_NUMBERS:
    case SPEC_T_STRINGS:
    case SPEC_T_ENUMS:
        return take_list(c, f, v);
    case SPEC_T_OBJECT:
        if (!json_is_object(v))
            return wrong(c, f, f->flags & SPEC_F_NULLABLE ? "an object or null" : "an object", v);
        *(bool *)place(c, f) = true;
        return json_object();
    case SPEC_T_TAGS:
        return take_tags(c, f, v);
    case SPEC_T_PARAMS:
        return take_params(c, f, v);
    case SPEC_T_DEPENDS:
        return take_depends(c, f, v);
    case SPEC_T_OVERRIDES: /* read by job.c; a resolved run has none left */
        return json_object();
    case SPEC_T_AXES: /* read by sweep.c */
        return json_array();
    }
    return NULL;
}

/* What null leaves in the struct. */
static void take_null(struct spec_ctx *c, const struct spec_field *f)
{
    if (!place(c, f))
        return;
    if (f->type == SPEC_T_NUMBER)
        *(double *)place(c, f) = NAN;
    else if (f->type == SPEC_T_INT && f->min == 0)
        *(int64_t *)place(c, f) = -1; /* 0 is a value of its own: warmup_steps */
    /* The rest was zeroed: 0, NULL, false, an empty list, {0, 0}. */
}

/* ---- One field ---- */

static json_t *default_of(struct spec_ctx *c, const struct spec_field *f)
{
    json_t *v = later(c, f) ? f->before(c) : f->rule ? f->rule(c) : spec_json_literal(f->def);

    if (!v && !f->rule)
        c->nomem = true;
    return v;
}

/* Whether the value, in its resolved form, is the default. */
static bool is_default(struct spec_ctx *c, const struct spec_field *f, const json_t *v)
{
    json_t *d = default_of(c, f);
    bool same = d && json_equal(d, v);

    json_decref(d);
    return same;
}

/* An entry of a list, or the value itself, that this build cannot run. */
static void check_available(struct spec_ctx *c, const struct spec_field *f, const json_t *v)
{
    if (json_is_null(v) && !(f->flags & SPEC_F_ONLY))
        return;
    if (f->type == SPEC_T_ENUM || f->type == SPEC_T_ENUM_OR_NUM) {
        int i = *(int *)place(c, f);
        if (c->in_job && c->env->no_cuda && i == SPEC_DEVICE_CUDA && !strcmp(f->pointer, "/resources/device"))
            spec_ctx_error(c, f->pointer, "%s", c->env->no_cuda);
        if (!f->available || f->available >> i & 1)
            return;
        if (json_is_string(v))
            spec_ctx_error(c, f->pointer, "\"%s\" %s", json_string_value(v), unavailable);
        else
            spec_ctx_error(c, f->pointer, "a number %s", unavailable);
    } else if (f->flags & SPEC_F_ONLY && !is_default(c, f, v)) {
        struct pd_buf b;
        pd_buf_init(&b, 0);
        if (f->type == SPEC_T_OBJECT)
            pd_buf_str(&b, "this");
        else
            spec_json_write(v, &b);
        if (pd_buf_err(&b) != PD_OK)
            c->nomem = true;
        else if (f->def)
            spec_ctx_error(c, f->pointer, "%.200s %s; leave it at %s", b.data, unavailable, f->def);
        else
            spec_ctx_error(c, f->pointer, "%.200s %s", b.data, unavailable);
        pd_buf_done(&b);
    }
}

static void warn_computed(struct spec_ctx *c, const struct spec_field *f, json_t *given, json_t *v)
{
    json_t *same = json_is_number(given) ? spec_json_num(json_number_value(given)) : json_incref(given);

    if (!json_equal(same, v))
        spec_ctx_warning(c, f->pointer, "is computed; the given value is replaced");
    json_decref(same);
}

/* Resolves field i; false if its children do not exist. */
static bool resolve_field(struct spec_ctx *c, size_t i)
{
    const struct spec_field *f = &spec_fields[i];
    uint8_t layer;
    json_t *v = lookup(c, f, &layer), *taken = NULL, *given = NULL;
    bool children = true;

    c->layer[i] = layer;
    if (f->flags & SPEC_F_COMPUTED) {
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
            if (f->rule == NULL || strcmp(f->rule_text, "to be named") == 0)
                spec_ctx_error(c, f->pointer, "is needed");
            c->bad[i] = 1;
        }
    }
    if (c->nomem || !v || c->bad[i])
        goto out;
    if (json_is_null(v)) {
        if (!(f->flags & SPEC_F_NULLABLE)) {
            spec_ctx_error(c, f->pointer, "must not be null");
            goto out;
        }
        take_null(c, f);
        taken = json_null();
        children = false;
    } else {
        taken = take(c, f, v);
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
    if (f->useful && layer >= SPEC_LAYER_DOCUMENT)
        c->asked[i] = json_incref(taken);
    if ((!f->useful || f->useful(c->run)) && (layer != SPEC_LAYER_DEFAULT || !c->failed)) {
        /* A default follows from other values: if one of those is refused, that says enough. */
        check_available(c, f, taken);
    }
    if (c->out) {
        json_t *put = strncmp(f->pointer, "/sweep", 6) == 0 ? json_null() : json_incref(taken);
        if (strncmp(f->pointer, "/sweep/", 7) != 0 && !spec_json_put(c->out, f->pointer, put))
            c->nomem = true;
    }
out:
    json_decref(v);
    json_decref(taken);
    json_decref(given);
    return children;
}

/* Whether an axis is about this field alone: then every value is asked for, the default too. */
static bool is_axis(const struct spec_ctx *c, const struct spec_field *f)
{
    for (size_t i = 0; c->sweep && i < c->sweep->count; i++) {
        if (strcmp(c->sweep->axes[i].pointer, f->pointer) == 0)
            return true;
    }
    return false;
}

/* Warns of what was asked for and changes nothing: once every row is known. */
static void warn_idle(struct spec_ctx *c)
{
    for (size_t i = 0; i < spec_field_count && !c->nomem; i++) {
        const struct spec_field *f = &spec_fields[i];
        if (c->asked[i] && !c->bad[i] && !f->useful(c->run) &&
            (is_axis(c, f) || !is_default(c, f, c->asked[i])))
            spec_ctx_warning(c, f->pointer, "has no effect %s", f->useful_text);
    }
}

enum pd_err spec_resolve(struct spec_ctx *c)
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
    c->recipe = NULL;
    c->preset = NULL;
    c->failed = false;
    memset(c->layer, 0, sizeof c->layer);
    memset(c->bad, 0, sizeof c->bad);
    memset(c->group, -1, sizeof c->group);
    for (size_t i = 0; i < spec_field_count && !c->nomem; i++) {
        const struct spec_field *f = &spec_fields[i];
        if (skip && below(f->pointer, skip, &rest))
            continue;
        skip = NULL;
        if (!c->in_job && strcmp(f->pointer, "/sweep") == 0) {
            if (c->out && !spec_json_put(c->out, "/sweep", json_null()))
                c->nomem = true;
            skip = f->pointer;
            continue;
        }
        if (!resolve_field(c, i) && f->type == SPEC_T_OBJECT)
            skip = f->pointer;
    }
    if (!c->nomem && !c->lenient)
        spec_rules_check(c);
    warn_idle(c);
    for (size_t i = 0; i < spec_field_count; i++) {
        json_decref(c->asked[i]);
        c->asked[i] = NULL;
    }
    if (!c->nomem && !c->failed) {
        c->g->train.seed += c->trial;
        if (c->out && (!spec_json_put(c->out, "/train/seed", json_integer(c->g->train.seed)) ||
                       !spec_json_put(c->out, "/trials", json_integer(1)) ||
                       !spec_json_put(c->out, "/schema", json_integer(SPEC_SCHEMA))))
            c->nomem = true;
    }
    if (c->nomem || c->report->failed)
        return PD_ERR_NOMEM;
    return c->failed ? PD_ERR_INVALID : PD_OK;
}

struct spec_run *spec_run_free(struct spec_run *run)
{
    if (run) {
        pd_arena_free(run->arena);
        free(run);
    }
    return NULL;
}
