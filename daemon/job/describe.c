/* Reference generated from the table: JSON for the API, text for `polyd fields`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/internal.h"

static const char *type_name(const struct job_field *f)
{
    switch (f->type) {
    case JOB_T_BOOL:
        return "boolean";
    case JOB_T_INT:
        return "integer";
    case JOB_T_NUMBER:
        return "number";
    case JOB_T_STRING:
    case JOB_T_ENUM:
        return "string";
    case JOB_T_INT_PAIR:
        return "integer or [integer, integer]";
    case JOB_T_NUMBER_PAIR:
        return "[number, number]";
    case JOB_T_ENUM_OR_NUM:
        return "string or number";
    case JOB_T_INTS:
        return "array of integers";
    case JOB_T_NUMBERS:
        return "array of numbers";
    case JOB_T_STRINGS:
    case JOB_T_ENUMS:
        return "array of strings";
    case JOB_T_OBJECT:
    case JOB_T_PARAMS:
    case JOB_T_OVERRIDES:
        return "object";
    case JOB_T_TAGS:
        return "object of strings";
    case JOB_T_SCALARS:
        return "object of objects";
    case JOB_T_SETS:
    case JOB_T_FORMULAS:
        return "array of strings or objects";
    case JOB_T_DEPENDS:
    case JOB_T_AXES:
        return "array of objects";
    }
    return "";
}

static bool has_range(const struct job_field *f)
{
    switch (f->type) {
    case JOB_T_INT:
    case JOB_T_NUMBER:
    case JOB_T_INT_PAIR:
    case JOB_T_NUMBER_PAIR:
    case JOB_T_ENUM_OR_NUM:
    case JOB_T_INTS:
    case JOB_T_NUMBERS:
        return true;
    default:
        return false;
    }
}

/* Puts a fresh value under the key; false without memory. */
static bool put(json_t *o, const char *key, json_t *v)
{
    return json_object_set_new(o, key, v) == 0;
}

static json_t *names_of(const struct job_field *f, bool available_only)
{
    json_t *list = json_array();

    for (unsigned i = 0; list && i < f->names->count; i++) {
        if (f->type == JOB_T_ENUM_OR_NUM && i + 1 == f->names->count)
            continue; /* stands for a number */
        if (available_only && (!job_field_runs(f, i) || f->flags & (JOB_F_ONLY | JOB_F_LATER)))
            continue; /* of a field that must stay at its default, none can be chosen */
        if (json_array_append_new(list, json_string(f->names->names[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *field_json(const struct job_field *f)
{
    json_t *o = json_object();
    bool ok = o && put(o, "pointer", json_string(f->pointer)) && put(o, "type", json_string(type_name(f))) &&
              put(o, "nullable", json_boolean(f->flags & JOB_F_NULLABLE)) &&
              put(o, "default", f->def ? job_json_literal(f->def) : json_null()) &&
              put(o, "meaning", json_string(f->meaning)) &&
              put(o, "sweepable", json_boolean(!(f->flags & (JOB_F_FIXED | JOB_F_COMPUTED))));

    if (ok && *f->reference)
        ok = put(o, "reference", json_string(f->reference));
    if (ok && f->rule)
        ok = put(o, "default_rule", json_string(f->rule_text));
    if (ok && f->since)
        ok = put(o, "since", json_integer(f->since)) && put(o, "default_before", json_string(f->before_text));
    if (ok && f->flags & JOB_F_COMPUTED)
        ok = put(o, "computed", json_true());
    if (ok && f->names)
        ok = put(o, "values", names_of(f, false)) && put(o, "available", names_of(f, true));
    if (ok && f->flags & (JOB_F_ONLY | JOB_F_LATER))
        ok = put(o, "only_default", json_true());
    if (ok && f->useful)
        ok = put(o, "no_effect", json_string(f->useful_text));
    if (ok && has_range(f) && isfinite(f->min))
        ok = put(o, f->flags & JOB_F_MIN_OPEN ? "exclusive_minimum" : "minimum", job_json_num(f->min));
    if (ok && has_range(f) && isfinite(f->max))
        ok = put(o, f->flags & JOB_F_MAX_OPEN ? "exclusive_maximum" : "maximum", job_json_num(f->max));
    if (ok && (f->type == JOB_T_STRING || f->type == JOB_T_STRINGS))
        ok = put(o, "min_bytes", job_json_num(f->min)) && put(o, "max_bytes", job_json_num(f->max));
    if (ok && !has_range(f) && f->max > 0 && f->type != JOB_T_STRING && f->type != JOB_T_STRINGS)
        ok = put(o, "max_entries", job_json_num(f->max));
    if (!ok) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *items_json(const struct job_item *items)
{
    json_t *o = json_object();

    for (; o && items && items->pointer; items++) {
        if (!put(o, items->pointer, job_json_literal(items->json))) {
            json_decref(o);
            return NULL;
        }
    }
    return o;
}

/* Whether this build runs the value that the items give an enumeration, as far as the items tell. */
static bool items_run(const struct job_item *items)
{
    for (; items && items->pointer; items++) {
        const struct job_field *f = job_field_find(items->pointer);
        if (!f)
            continue;
        if (f->flags & JOB_F_ONLY && (!f->def || strcmp(f->def, items->json) != 0))
            return false;
        for (unsigned i = 0; f->type == JOB_T_ENUM && i < f->names->count; i++) {
            size_t n = strlen(f->names->names[i]);
            if (strlen(items->json) == n + 2 && memcmp(items->json + 1, f->names->names[i], n) == 0 &&
                !job_field_runs(f, i))
                return false;
        }
    }
    return true;
}

static bool append(json_t *list, json_t *o)
{
    return json_array_append_new(list, o) == 0;
}

/* A comma-separated list (`takes` of struct job_kind_info) as a JSON array. */
static json_t *words_json(const char *words)
{
    json_t *list = json_array();

    for (const char *at = words; list && at && *at; at += strcspn(at, ","), at += strspn(at, ", "))
        if (json_array_append_new(list, json_stringn(at, strcspn(at, ","))) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The kinds that a document can have. */
static json_t *kinds_json(void)
{
    json_t *list = json_array();

    for (int i = 0; list && i < JOB_KIND_COUNT; i++) {
        const struct job_kind_info *k = job_kind_info((enum job_kind)i);

        if (k->worker && !append(list, json_pack("{s:s,s:s,s:b,s:o}", "name", k->name, "meaning", k->meaning,
                                                 "curves", k->curves, "takes", words_json(k->takes)))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static const char *param_type(const struct job_param *p)
{
    return p->most ? (p->whole ? "array of integers" : "array of numbers") : p->whole ? "integer" : "number";
}

static json_t *params_json(enum job_theorem theorem)
{
    json_t *list = json_array();
    const struct job_param *p;

    for (size_t i = 0; list && (p = job_theorem_param(theorem, i)); i++)
        if (!append(list, json_pack("{s:s,s:s,s:o,s:o,s:o,s:s}", "name", p->name, "type", param_type(p),
                                    "default", job_json_literal(p->def), "minimum", job_json_num(p->min),
                                    "maximum", job_json_num(p->max), "meaning", p->meaning))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The statements of jobs of kind check, with their parameters. */
static json_t *theorems_json(void)
{
    json_t *list = json_array();

    for (int i = 0; list && i < JOB_THEOREM_COUNT; i++)
        if (!append(list, json_pack("{s:s,s:o}", "name", job_theorem_name((enum job_theorem)i), "params",
                                    params_json((enum job_theorem)i)))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *schema_json(void)
{
    json_t *top = json_object(), *fields = json_array(), *presets = json_array(), *recipes = json_array(),
           *datasets = json_array();
    const struct job_preset *p;
    int arch;
    bool ok = top && fields && presets && recipes && datasets;

    for (size_t i = 0; ok && i < job_field_count; i++)
        ok = append(fields, field_json(&job_fields[i]));
    for (size_t i = 0; ok && (p = job_preset_at(i, &arch)); i++) {
        bool available = job_network_runs((unsigned)arch) && items_run(p->items);
        ok = append(presets,
                    json_pack("{s:s,s:s,s:b,s:s,s:o}", "name", p->name, "arch", job_arch_name(arch),
                              "available", available, "meaning", p->meaning, "values", items_json(p->items)));
    }
    for (size_t i = 0; ok && i < job_recipe_count; i++) {
        const struct job_recipe *r = &job_recipes[i];
        ok = append(recipes, json_pack("{s:s,s:b,s:s,s:o}", "name", r->name, "available",
                                       r->items && items_run(r->items), "meaning", r->meaning, "values",
                                       items_json(r->items)));
    }
    for (size_t i = 0; ok && i < job_dataset_count; i++) {
        const struct job_dataset_info *d = job_dataset_info((enum job_dataset)i);
        ok = append(datasets,
                    json_pack("{s:s,s:b,s:b,s:I,s:[I,I],s:I,s:s?,s:o}", "name", d->name, "available",
                              d->available, "generated", d->generated, "classes", (json_int_t)d->classes,
                              "side", (json_int_t)d->side[0], (json_int_t)d->side[1], "channels",
                              (json_int_t)d->channels, "layout", d->layout, "entropy",
                              d->entropy > 0 ? json_real(d->entropy) : json_null()));
    }
    if (ok) {
        ok = put(top, "schema", json_integer(JOB_SCHEMA)) && json_object_set(top, "fields", fields) == 0 &&
             json_object_set(top, "presets", presets) == 0 && json_object_set(top, "recipes", recipes) == 0 &&
             json_object_set(top, "datasets", datasets) == 0 && put(top, "kinds", kinds_json()) &&
             put(top, "checks", theorems_json());
    }
    json_decref(fields);
    json_decref(presets);
    json_decref(recipes);
    json_decref(datasets);
    if (!ok) {
        json_decref(top);
        return NULL;
    }
    return top;
}

enum pd_err job_fields_json(struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *top = schema_json();
    enum pd_err err;

    if (!top)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the table of fields");
    job_json_write(top, ret_json);
    json_decref(top);
    err = pd_buf_err(ret_json);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the table of fields");
}

/* ---- Text ---- */

#define COLUMNS 110

/* Words at this indentation, broken before the last column. */
static void wrap(struct pd_buf *b, size_t indent, const char *text)
{
    size_t at = 0;

    while (*text) {
        size_t n = strcspn(text, " ");
        if (!at || at + 1 + n > COLUMNS) {
            pd_buf_printf(b, "%s%*s", at ? "\n" : "", (int)indent, "");
            at = indent;
        } else {
            pd_buf_str(b, " ");
            at++;
        }
        pd_buf_append(b, text, n);
        at += n;
        text += n;
        while (*text == ' ')
            text++;
    }
    pd_buf_str(b, "\n");
}

static void field_text(struct pd_buf *b, const struct job_field *f)
{
    struct pd_buf line;
    char number[40];

    pd_buf_printf(b, "%s\n", f->pointer);
    pd_buf_init(&line, 0);
    pd_buf_printf(&line, "%s%s", type_name(f), f->flags & JOB_F_NULLABLE ? " or null" : "");
    if (has_range(f) && isfinite(f->min)) {
        pd_buf_printf(&line, ", %s %s", f->flags & JOB_F_MIN_OPEN ? "above" : "from",
                      job_json_number(f->min, number));
        if (isfinite(f->max))
            pd_buf_printf(&line, " %s %s", f->flags & JOB_F_MAX_OPEN ? "to below" : "to",
                          job_json_number(f->max, number));
    }
    pd_buf_printf(&line, "; default: %s", f->def ? f->def : f->rule_text);
    if (f->since)
        pd_buf_printf(&line, " (documents before schema %d: %s)", f->since, f->before_text);
    if (f->names) {
        pd_buf_str(&line, "; one of:");
        for (unsigned i = 0; i < f->names->count; i++)
            pd_buf_printf(&line, " %s%s", f->names->names[i], job_field_runs(f, i) ? "" : " (not available)");
    }
    if (f->flags & (JOB_F_ONLY | JOB_F_LATER))
        pd_buf_str(&line, "; only the default is available");
    if (line.failed)
        b->failed = true;
    else
        wrap(b, 4, line.data);
    line.len = 0;
    pd_buf_str(&line, f->meaning);
    if (f->useful)
        pd_buf_printf(&line, "; no effect %s", f->useful_text);
    if (line.failed)
        b->failed = true;
    else
        wrap(b, 4, line.data);
    pd_buf_done(&line);
}

static void theorem_text(struct pd_buf *b, enum job_theorem theorem)
{
    const struct job_param *p;
    char line[256], lo[40], hi[40];

    pd_buf_printf(b, "    %s\n", job_theorem_name(theorem));
    for (size_t i = 0; (p = job_theorem_param(theorem, i)); i++) {
        snprintf(line, sizeof line, "%s: %s, from %s to %s; default: %s; %s", p->name, param_type(p),
                 job_json_number(p->min, lo), job_json_number(p->max, hi), p->def, p->meaning);
        wrap(b, 8, line);
    }
}

enum pd_err job_fields_text(struct pd_buf *ret_text, struct pd_why *why)
{
    const struct job_preset *p;
    enum pd_err err;
    int arch;

    for (size_t i = 0; i < job_field_count; i++)
        field_text(ret_text, &job_fields[i]);
    pd_buf_str(ret_text, "\nPresets (model.preset)\n");
    for (size_t i = 0; (p = job_preset_at(i, &arch)); i++)
        pd_buf_printf(ret_text, "    %-20s %s%s\n", p->name, p->meaning,
                      job_network_runs((unsigned)arch) && items_run(p->items) ? "" : " (not available)");
    pd_buf_str(ret_text, "\nRecipes (recipe)\n");
    for (size_t i = 0; i < job_recipe_count; i++) {
        const struct job_recipe *r = &job_recipes[i];
        pd_buf_printf(ret_text, "    %-20s %s%s\n", r->name, r->meaning,
                      r->items && items_run(r->items) ? "" : " (not available in this build)");
    }
    pd_buf_str(ret_text, "\nKinds of jobs (kind)\n");
    for (int i = 0; i < JOB_KIND_COUNT; i++) {
        const struct job_kind_info *k = job_kind_info((enum job_kind)i);

        if (!k->worker)
            continue;
        pd_buf_printf(ret_text, "    %-20s %s; takes:\n", k->name, k->meaning);
        wrap(ret_text, 8, k->takes);
    }
    pd_buf_str(ret_text, "\nParameters of checks (check, params)\n");
    for (int i = 0; i < JOB_THEOREM_COUNT; i++)
        theorem_text(ret_text, (enum job_theorem)i);
    err = pd_buf_err(ret_text);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the table of fields");
}

bool job_pointer_known(const char *pointer)
{
    const struct job_field *f = job_field_find(pointer);

    return f && f->type != JOB_T_OBJECT;
}

char *job_default_json(const char *pointer)
{
    const struct job_field *f = job_field_find(pointer);
    json_t *value = f && f->def ? job_json_literal(f->def) : NULL;
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;

    json_decref(value);
    return text;
}
