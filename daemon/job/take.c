/* One value: checked against the row of its field, and stored in the run. Each function returns the value as
 * the resolved document has it (a new reference), or NULL after an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"

void *job_place(struct job_ctx *c, const struct job_field *f)
{
    return f->offset == JOB_NO_OFFSET ? NULL : (char *)c->run + f->offset;
}

static json_t *wrong(struct job_ctx *c, const struct job_field *f, const char *want, const json_t *got)
{
    job_ctx_error(c, f->pointer, "must be %s, not %s", want, job_json_kind(got));
    return NULL;
}

/* Whether the number lies in the row's range; reports. */
static bool in_range(struct job_ctx *c, const struct job_field *f, double v)
{
    bool low = f->flags & JOB_F_MIN_OPEN ? v > f->min : v >= f->min;
    bool high = f->flags & JOB_F_MAX_OPEN ? v < f->max : v <= f->max;
    char lo[40], hi[40];

    if (low && high)
        return true;
    job_json_number(f->min, lo);
    if (high && v > 0 && f->flags & JOB_F_MIN_RAISED) {
        job_ctx_refuse(c, f->pointer, "must be at least %s", lo);
        return c->env->stored;
    }
    if (isinf(f->max))
        job_ctx_error(c, f->pointer, "must be %s %s", f->flags & JOB_F_MIN_OPEN ? "greater than" : "at least",
                      lo);
    else
        job_ctx_error(c, f->pointer, "must be %s %s and %s %s",
                      f->flags & JOB_F_MIN_OPEN ? "greater than" : "at least", lo,
                      f->flags & JOB_F_MAX_OPEN ? "less than" : "at most", job_json_number(f->max, hi));
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
    if (d != floor(d) || fabs(d) > JOB_MAX_SEED)
        return false;
    *ret = (int64_t)d;
    return true;
}

static json_t *take_int(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    int64_t i;

    if (!json_is_number(v))
        return wrong(c, f, "an integer", v);
    if (!whole(v, &i)) {
        job_ctx_error(c, f->pointer, "must be an integer");
        return NULL;
    }
    if (!in_range(c, f, (double)i))
        return NULL;
    if (job_place(c, f))
        *(int64_t *)job_place(c, f) = i;
    return json_integer(i);
}

static json_t *take_number(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    double d = json_number_value(v);

    if (!json_is_number(v))
        return wrong(c, f, "a number", v);
    if (!in_range(c, f, d))
        return NULL;
    if (job_place(c, f))
        *(double *)job_place(c, f) = d;
    return job_json_num(d);
}

static json_t *take_string(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    char *copy;

    if (!text)
        return wrong(c, f, "a string", v);
    if ((double)n < f->min || (double)n > f->max) {
        job_ctx_error(c, f->pointer, "must have %.0f to %.0f bytes, and has %zu", f->min, f->max, n);
        return NULL;
    }
    if (f->flags & JOB_F_NAME &&
        text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")]) {
        job_ctx_error(c, f->pointer, "may contain only letters, digits, \".\", \"_\" and \"-\"");
        return NULL;
    }
    if (f->check && !f->check(c, f, text))
        return NULL;
    if (job_place(c, f)) {
        copy = pd_arena_strdup(c->run->arena, text);
        if (!copy) {
            c->nomem = true;
            return NULL;
        }
        *(const char **)job_place(c, f) = copy;
    }
    return json_incref(v);
}

/* The index of a name in the row's list; -1 after a report. */
static int enum_index(struct job_ctx *c, const struct job_field *f, json_t *v, unsigned count)
{
    const char *text = json_string_value(v), *meant;
    char list[1024], near[64];
    size_t at = 0;

    if (!text) {
        wrong(c, f, "a string", v);
        return -1;
    }
    meant = strcmp(text, "gpu") ? text : "cuda"; /* whose nearest name would be cpu */
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(f->names->names[i], text) == 0)
            return (int)i;
    }
    list[0] = '\0';
    for (unsigned i = 0; i < count && at < sizeof list - 64; i++)
        if (job_field_runs(f, i))
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", f->names->names[i]);
    job_ctx_error(c, f->pointer, "must be one of %s%s%s", list,
                  f->type == JOB_T_ENUM_OR_NUM ? ", or a number" : "",
                  pd_did_you_mean(near, sizeof near, meant, f->names->names, count));
    return -1;
}

static json_t *take_enum(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    int i = enum_index(c, f, v, f->names->count);

    if (i < 0)
        return NULL;
    if (job_place(c, f))
        *(int *)job_place(c, f) = i;
    return json_incref(v);
}

/* n_for_scale, the one row of this type: the number goes to attention.n. */
static json_t *take_enum_or_number(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    double d = json_number_value(v);
    int i;

    if (json_is_number(v)) {
        if (!in_range(c, f, d))
            return NULL;
        c->g->attention.n_for_scale = JOB_N_NUMBER;
        c->g->attention.n = d;
        return job_json_num(d);
    }
    if (!json_is_string(v))
        return wrong(c, f, "a string or a number", v);
    i = enum_index(c, f, v, f->names->count - 1);
    if (i < 0)
        return NULL;
    c->g->attention.n_for_scale = i;
    return json_incref(v);
}

static json_t *take_int_pair(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    int64_t *to = job_place(c, f), pair[2];

    if (json_is_array(v) && json_array_size(v) == 2 && whole(json_array_get(v, 0), &pair[0]) &&
        whole(json_array_get(v, 1), &pair[1])) {
        if (!in_range(c, f, (double)pair[0]) || !in_range(c, f, (double)pair[1]))
            return NULL;
    } else if (whole(v, &pair[0])) {
        if (!in_range(c, f, (double)pair[0]))
            return NULL;
        pair[1] = pair[0];
    } else {
        job_ctx_error(c, f->pointer, "must be an integer, or two of them as [rows, columns]");
        return NULL;
    }
    to[0] = pair[0];
    to[1] = pair[1];
    return pair[0] == pair[1] ? json_integer(pair[0]) : json_pack("[I,I]", pair[0], pair[1]);
}

static json_t *take_number_pair(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    double *to = job_place(c, f);
    json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);

    if (json_array_size(v) != 2 || !json_is_number(a) || !json_is_number(b)) {
        job_ctx_error(c, f->pointer, "must be an array of two numbers");
        return NULL;
    }
    if (!in_range(c, f, json_number_value(a)) || !in_range(c, f, json_number_value(b)))
        return NULL;
    to[0] = json_number_value(a);
    to[1] = json_number_value(b);
    return json_pack("[o,o]", job_json_num(to[0]), job_json_num(to[1]));
}

#define JOB_MAX_LIST 1024

/* All four kinds of lists: entries are checked with the row's range or names. */
static json_t *take_list(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    size_t n = json_array_size(v), most = f->type == JOB_T_ENUMS ? (size_t)f->max : JOB_MAX_LIST;
    size_t width = f->type == JOB_T_STRINGS ? sizeof(char *) : 8;
    json_t *list;
    void *items;

    if (!json_is_array(v))
        return wrong(c, f, "an array", v);
    if (n > most) {
        job_ctx_error(c, f->pointer, "must have at most %zu entries, and has %zu", most, n);
        return NULL;
    }
    list = json_array();
    items = pd_arena_alloc(c->run->arena, n ? n * width : 1);
    if (!list || !items)
        goto nomem;
    for (size_t i = 0; i < n; i++) {
        json_t *e = json_array_get(v, i), *keep = NULL;
        int64_t whole_value = 0;
        if (f->type == JOB_T_INTS) {
            if (!whole(e, &whole_value)) {
                job_ctx_error(c, f->pointer, "entry %zu must be an integer", i);
                goto bad;
            }
            if (!in_range(c, f, (double)whole_value))
                goto bad;
            ((int64_t *)items)[i] = whole_value;
            keep = json_integer(whole_value);
        } else if (f->type == JOB_T_ENUMS) {
            int index = enum_index(c, f, e, f->names->count);
            if (index < 0)
                goto bad;
            ((int64_t *)items)[i] = index;
            keep = json_incref(e);
        } else if (f->type == JOB_T_NUMBERS) {
            if (!json_is_number(e)) {
                job_ctx_error(c, f->pointer, "entry %zu must be a number", i);
                goto bad;
            }
            if (!in_range(c, f, json_number_value(e)))
                goto bad;
            ((double *)items)[i] = json_number_value(e);
            keep = job_json_num(json_number_value(e));
        } else {
            if (!json_is_string(e) || json_string_length(e) < f->min || json_string_length(e) > f->max) {
                job_ctx_error(c, f->pointer, "entry %zu must be a string of %.0f to %.0f bytes", i, f->min,
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
    if (job_place(c, f))
        *(struct job_ints *)job_place(c, f) = (struct job_ints){n, items};
    return list;
nomem:
    c->nomem = true;
bad:
    json_decref(list);
    return NULL;
}

static json_t *take_tags(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    struct job_tag *tags;
    const char *key;
    json_t *value;
    size_t n = json_object_size(v), i = 0;

    if (!json_is_object(v))
        return wrong(c, f, "an object of strings", v);
    if ((double)n > f->max) {
        job_ctx_error(c, f->pointer, "at most %.0f tags are allowed, and there are %zu", f->max, n);
        return NULL;
    }
    tags = pd_arena_alloc(c->run->arena, (n ? n : 1) * sizeof *tags);
    if (!tags)
        goto nomem;
    json_object_foreach(v, key, value)
    {
        if (!*key || strlen(key) > 250) {
            job_ctx_error(c, f->pointer, "a tag's key has 1 to 250 bytes");
            return NULL;
        }
        if (!json_is_string(value) || json_string_length(value) > 5000) {
            job_ctx_error(c, f->pointer, "the tag \"%.100s\" must be a string of at most 5000 bytes", key);
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

/* The value of one parameter of a theorem, checked against its row; NULL after a report. */
static json_t *take_param(struct job_ctx *c, const struct job_param *p, json_t *v,
                          struct job_param_value *ret)
{
    size_t n = p->most ? json_array_size(v) : 1;
    char pointer[64], lo[40], hi[40];
    json_t *list = NULL, *keep = NULL;
    double *items;

    snprintf(pointer, sizeof pointer, "/params/%s", p->name);
    if (p->most && (!json_is_array(v) || n < 1 || n > p->most)) {
        job_ctx_error(c, pointer, "must be an array of 1 to %zu numbers", p->most);
        return NULL;
    }
    items = pd_arena_alloc(c->run->arena, n * sizeof *items);
    list = json_array();
    if (!items || !list)
        goto nomem;
    for (size_t i = 0; i < n; i++) {
        json_t *e = p->most ? json_array_get(v, i) : v;
        double d = json_number_value(e);
        int64_t integer;

        if (!json_is_number(e) || (p->whole && !whole(e, &integer))) {
            job_ctx_error(c, pointer, "must be %s%s, not %s", p->most ? "an array of " : "",
                          p->whole ? (p->most ? "integers" : "an integer")
                                   : (p->most ? "numbers" : "a number"),
                          json_is_number(e) ? "a fraction" : job_json_kind(e));
            goto bad;
        }
        if (!(d >= p->min && d <= p->max)) {
            job_ctx_error(c, pointer, "must be at least %s and at most %s", job_json_number(p->min, lo),
                          job_json_number(p->max, hi));
            goto bad;
        }
        if (p->rising && i && d <= items[i - 1]) {
            job_ctx_error(c, pointer, "must be strictly increasing");
            goto bad;
        }
        items[i] = d;
        keep = p->whole ? json_integer((json_int_t)d) : job_json_num(d);
        if (!keep || json_array_append_new(list, keep) != 0)
            goto nomem;
    }
    *ret = (struct job_param_value){.name = p->name, .count = n, .items = items};
    if (p->most)
        return list;
    keep = json_incref(json_array_get(list, 0));
    json_decref(list);
    return keep;
nomem:
    c->nomem = true;
bad:
    json_decref(list);
    return NULL;
}

static json_t *take_params(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    const bool check = job_kind_has((enum job_kind)c->g->kind, "check", 5);
    const enum job_theorem theorem = (enum job_theorem)c->g->check.theorem;
    const struct job_param *p;
    const char *key, *names[32];
    char near[64], pointer[128];
    size_t count = 0;
    json_t *out, *ignored;
    struct job_param_value *values;

    if (!json_is_object(v))
        return wrong(c, f, "an object", v);
    if (!check && json_object_size(v) > 0) {
        job_ctx_error(c, f->pointer, "is for jobs of kind check; this job has kind train");
        return NULL;
    }
    if (!check || job_ctx_bad(c, "/check")) /* whose parameters they are is not known */
        return json_incref(v);
    while ((p = job_theorem_param(theorem, count)) && count < sizeof names / sizeof *names)
        names[count++] = p->name;
    json_object_foreach(v, key, ignored)
    {
        size_t i = 0;

        while (i < count && strcmp(names[i], key) != 0)
            i++;
        if (i == count) {
            snprintf(pointer, sizeof pointer, "/params/%.100s", key);
            job_ctx_error(c, pointer, "%s has no such parameter%s", job_theorem_name(theorem),
                          pd_did_you_mean(near, sizeof near, key, names, count));
        }
    }
    out = json_object();
    values = pd_arena_alloc(c->run->arena, count * sizeof *values);
    c->nomem = c->nomem || !out || !values;
    for (size_t i = 0; i < count && !c->nomem; i++) {
        json_t *given = json_object_get(v, names[i]), *taken;

        p = job_theorem_param(theorem, i);
        given = given ? json_incref(given) : job_json_literal(p->def);
        taken = given ? take_param(c, p, given, &values[i]) : NULL;
        c->nomem = c->nomem || !given || (taken && json_object_set_new(out, p->name, taken) != 0);
        json_decref(given);
    }
    if (c->nomem || c->failed) {
        json_decref(out);
        return NULL;
    }
    *(struct job_params *)job_place(c, f) = (struct job_params){count, values};
    return out;
}

static json_t *take_depends(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    static const char *const whens[] = {"afterok", "afterany", "afternotok"};
    struct job_dependency *list;
    json_t *out, *e;
    size_t n = json_array_size(v), i;

    if (!json_is_array(v))
        return wrong(c, f, "an array", v);
    if ((double)n > f->max) {
        job_ctx_error(c, f->pointer, "at most %.0f jobs are allowed, and there are %zu", f->max, n);
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
            job_ctx_error(c, f->pointer, "entry %zu must be an object, not %s", i, job_json_kind(e));
            goto bad;
        }
        json_object_foreach(e, key, ignored)
        {
            if (strcmp(key, "job") != 0 && strcmp(key, "when") != 0) {
                job_ctx_error(c, f->pointer, "entry %zu: unknown key \"%.100s\"; the keys are job and when",
                              i, key);
                goto bad;
            }
        }
        if (!id || !*id || strlen(id) > 19 || id[strspn(id, "0123456789")]) {
            job_ctx_error(c, f->pointer, "entry %zu: job must be a job's id as a string of digits", i);
            goto bad;
        }
        if (when) {
            while (k < 3 && (!json_is_string(when) || strcmp(json_string_value(when), whens[k]) != 0))
                k++;
            if (k == 3) {
                job_ctx_error(c, f->pointer, "entry %zu: when must be one of afterok, afterany, afternotok",
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

json_t *job_take(struct job_ctx *c, const struct job_field *f, json_t *v)
{
    switch (f->type) {
    case JOB_T_BOOL:
        if (!json_is_boolean(v))
            return wrong(c, f, "true or false", v);
        if (job_place(c, f))
            *(bool *)job_place(c, f) = json_is_true(v);
        return json_incref(v);
    case JOB_T_INT:
        return take_int(c, f, v);
    case JOB_T_NUMBER:
        return take_number(c, f, v);
    case JOB_T_STRING:
        return take_string(c, f, v);
    case JOB_T_ENUM:
        return take_enum(c, f, v);
    case JOB_T_ENUM_OR_NUM:
        return take_enum_or_number(c, f, v);
    case JOB_T_INT_PAIR:
        return take_int_pair(c, f, v);
    case JOB_T_NUMBER_PAIR:
        return take_number_pair(c, f, v);
    case JOB_T_INTS:
    case JOB_T_NUMBERS:
    case JOB_T_STRINGS:
    case JOB_T_ENUMS:
        return take_list(c, f, v);
    case JOB_T_OBJECT:
        if (!json_is_object(v))
            return wrong(c, f, f->flags & JOB_F_NULLABLE ? "an object or null" : "an object", v);
        *(bool *)job_place(c, f) = true;
        return json_object();
    case JOB_T_TAGS:
        return take_tags(c, f, v);
    case JOB_T_PARAMS:
        return take_params(c, f, v);
    case JOB_T_DEPENDS:
        return take_depends(c, f, v);
    case JOB_T_SCALARS:
        return job_take_scalars(c, f, v);
    case JOB_T_SETS:
        return job_take_sets(c, f, v);
    case JOB_T_OVERRIDES: /* read by job.c; a resolved run has none left */
        return json_object();
    case JOB_T_AXES: /* read by sweep.c */
        return json_array();
    case JOB_T_FORMULAS:
        return job_take_formulas(c, f);
    }
    return NULL;
}

/* What null leaves in the struct. */
void job_take_null(struct job_ctx *c, const struct job_field *f)
{
    if (!job_place(c, f))
        return;
    if (f->type == JOB_T_NUMBER)
        *(double *)job_place(c, f) = NAN;
    else if (f->type == JOB_T_INT && f->min == 0)
        *(int64_t *)job_place(c, f) = -1; /* 0 is a value of its own: warmup_steps */
    /* The rest was zeroed: 0, NULL, false, an empty list, {0, 0}. */
}
