/* Sweep analysis: the points of a job's sweep, divided into panels and ordered along one axis. */
#include "api/analysis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/panel.h"
#include "api/rows.h"
#include "daemon/job/metric.h"

static const char usable_rule[] = "no run of the point diverged, failed or ended at a value that is not "
                                  "finite, and its mean is no farther from "
                                  "the panel's best mean than a tenth of the distance between best and worst "
                                  "mean, or than one standard deviation "
                                  "of the best point's trials if that is more; the range is the longest one "
                                  "around the best point without a gap";

/* A swept field: an axis, or a member of the objects that an axis puts in. */
struct leaf {
    char pointer[API_ANALYSIS_POINTER];
    int axis;             /* its number in the sweep */
    bool numbers, others; /* what its values are; null is neither */
    bool drawn;           /* at random from a range */
    bool
        alone; /* it varies while the rest of its axis stays; a member of objects that never does makes no axis */
    bool by;    /* makes panels */
    bool sizes; /* sets the number of tokens of panels */
};

struct group {
    struct api_panel panel;
    json_t *values; /* pointer -> value of the leaves that make panels */
    char *text;     /* the same, to compare by */
    int64_t first_run, last_run;
};

struct analysis {
    const struct api_analysis_query *query;
    struct api_choice choice;
    char name[201];
    enum job_state state;
    bool maximise;
    json_t *sweep;
    struct leaf leaves[API_ANALYSIS_LEAVES];
    int leaf_count;
    const struct leaf *x; /* the axis */
    struct group *groups;
    size_t group_count, group_capacity;
    int64_t left_out; /* combinations without a number on the axis */
    /* the combination being read */
    int64_t point;
    size_t at, at_point; /* its group and point; meaningful if it is not left out */
    bool out;
    int64_t runs;
    enum pd_err err;
    const char *field;
    struct pd_why *why;
};

static void analysis_free(struct analysis *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->group_count; i++) {
        api_panel_done(&a->groups[i].panel);
        json_decref(a->groups[i].values);
        free(a->groups[i].text);
    }
    free(a->groups);
    json_decref(a->sweep);
    free(a);
}

static bool job_row(void *ctx, const struct store_job *job)
{
    struct analysis *a = ctx;

    snprintf(a->name, sizeof a->name, "%s", job->name);
    a->state = job->state;
    if (!a->choice.key_count)
        snprintf(a->choice.keys[a->choice.key_count++], sizeof a->choice.keys[0], "%s", job->metric);
    a->maximise = job->maximise;
    if (strcmp(a->choice.keys[0], job->metric) != 0) {
        const struct job_metric *metric = job_metric_find(a->choice.keys[0]);

        if (metric && metric->better != JOB_METRIC_NEITHER)
            a->maximise = metric->better == JOB_METRIC_MORE;
    }
    if (a->query->mode != API_ANALYSIS_MODE_OWN)
        a->maximise = a->query->mode == API_ANALYSIS_MODE_MAX;
    a->sweep = json_loads(*job->sweep ? job->sweep : "{}", 0, NULL);
    return false;
}

/* ---- the axes ---------------------------------------------------------------------------------- */

/* Calls back for every value below `value` that is no object, with its pointer. False: stopped, or a pointer is
 * too long. */
static bool leaves_of(const json_t *value, const char *pointer,
                      bool (*leaf)(void *ctx, const char *pointer, const json_t *value), void *ctx)
{
    const char *key;
    json_t *member;

    if (!json_is_object(value))
        return leaf(ctx, pointer, value);
    json_object_foreach((json_t *)value, key, member)
    {
        char below[API_ANALYSIS_POINTER];
        const int len = snprintf(below, sizeof below, "%s/%s", pointer, key);

        if (len < 0 || (size_t)len >= sizeof below || !leaves_of(member, below, leaf, ctx))
            return false;
    }
    return true;
}

static struct leaf *leaf_find(struct analysis *a, const char *pointer)
{
    for (int i = 0; i < a->leaf_count; i++)
        if (!strcmp(a->leaves[i].pointer, pointer))
            return &a->leaves[i];
    return NULL;
}

struct spec {
    struct analysis *a;
    int axis;
};

static bool leaf_note(void *ctx, const char *pointer, const json_t *value)
{
    const struct spec *spec = ctx;
    struct analysis *a = spec->a;
    struct leaf *leaf = leaf_find(a, pointer);

    if (!leaf) {
        if (a->leaf_count == API_ANALYSIS_LEAVES || strlen(pointer) >= sizeof leaf->pointer)
            return false;
        leaf = &a->leaves[a->leaf_count++];
        leaf->axis = spec->axis;
        memcpy(leaf->pointer, pointer, strlen(pointer) + 1);
    }
    leaf->numbers = leaf->numbers || json_is_number(value);
    leaf->others = leaf->others || !(json_is_number(value) || json_is_null(value));
    return true;
}

/* Takes the value at the pointer out of a tree; NULL: it is not there. The caller owns it. */
static json_t *take_out(json_t *tree, const char *pointer)
{
    char key[API_ANALYSIS_POINTER];
    const size_t n = strcspn(pointer + 1, "/");
    json_t *member;

    memcpy(key, pointer + 1, n);
    key[n] = 0;
    member = json_object_get(tree, key);
    if (pointer[1 + n])
        return member ? take_out(member, pointer + 1 + n) : NULL;
    json_incref(member);
    (void)json_object_del(tree, key);
    return member;
}

/* Whether two of the objects of an axis differ in that member alone; below: its pointer within them. PD_ERR_NOMEM. */
static enum pd_err find_alone(const json_t *values, const char *below, bool *ret)
{
    json_t *known = json_object(); /* the member's value, by the rest of the object */
    enum pd_err err = known ? PD_OK : PD_ERR_NOMEM;
    json_t *value;
    size_t k;

    *ret = false;
    json_array_foreach((json_t *)(uintptr_t)values, k, value)
    {
        json_t *rest = json_deep_copy(value), *x = rest ? take_out(rest, below) : NULL;
        char *text = rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
        const json_t *other = text ? json_object_get(known, text) : NULL;

        *ret = *ret || (x && other && !json_equal(x, other));
        if (!text || (x && !other && json_object_set(known, text, x) != 0))
            err = PD_ERR_NOMEM;
        free(text);
        json_decref(x);
        json_decref(rest);
        if (*ret || err != PD_OK)
            break;
    }
    json_decref(known);
    return err;
}

/* The fields that the sweep varies, from its own text: they are known before the first run is. */
static enum pd_err read_axes(struct analysis *a, struct pd_why *why)
{
    json_t *axis;
    size_t i, k;

    json_array_foreach(json_object_get(a->sweep, "axes"), i, axis)
    {
        const char *pointer = json_string_value(json_object_get(axis, "pointer"));
        const json_t *values = json_object_get(axis, "values");
        const int before = a->leaf_count;
        struct spec spec = {.a = a, .axis = (int)i};
        bool ok = pointer != NULL;
        json_t *value;

        json_array_foreach(values, k, value) ok = ok && leaves_of(value, pointer, leaf_note, &spec);
        if (ok && !values) {
            json_t *number = json_integer(0);

            ok = number && leaf_note(&spec, pointer, number);
            json_decref(number);
            if (ok && a->leaf_count > before)
                a->leaves[before].drawn =
                    json_object_get(axis, "uniform") || json_object_get(axis, "loguniform");
        }
        if (!ok)
            return pd_fail(why, PD_ERR_LIMIT, "the analysis takes at most %d swept fields of %d bytes",
                           API_ANALYSIS_LEAVES, API_ANALYSIS_POINTER - 1);
        for (int l = before; l < a->leaf_count; l++) {
            const char *below = a->leaves[l].pointer + strlen(pointer);

            a->leaves[l].alone = !*below;
            if (*below && find_alone(values, below, &a->leaves[l].alone) != PD_OK)
                return pd_fail(why, PD_ERR_NOMEM, "no memory for the axes");
        }
    }
    return PD_OK;
}

/* Every swept field, for a sentence. */
static const char *leaf_names(const struct analysis *a, char *out, size_t size)
{
    size_t len = 0;

    *out = 0;
    for (int i = 0; i < a->leaf_count && len < size; i++)
        len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "", a->leaves[i].pointer);
    return out;
}

/* Whether an analysis along it may show more than a point in each panel. */
static bool numeric(const struct leaf *leaf)
{
    return leaf->numbers && !leaf->others && leaf->alone;
}

static enum pd_err choose_axis(struct analysis *a, struct pd_why *why)
{
    const char *wanted = a->query->axis;
    bool together = false; /* some numbers vary only with others of their axis */
    char names[300];

    a->field = "axis";
    if (*wanted) {
        a->x = leaf_find(a, wanted);
        if (!a->x)
            return pd_fail(why, PD_ERR_INVALID,
                           a->leaf_count ? "axis: %.120s is not swept; swept fields: %s"
                                         : "axis: %.120s is not swept: the job has no sweep%s",
                           wanted, leaf_names(a, names, sizeof names));
    }
    for (int i = 0; !*wanted && i < a->leaf_count; i++) {
        together = together || (a->leaves[i].numbers && !a->leaves[i].others);
        if (numeric(&a->leaves[i]))
            a->x = &a->leaves[i];
    }
    if (!a->x)
        return pd_fail(why, PD_ERR_INVALID,
                       together        ? "axis: no swept field of numbers varies on its own: %s"
                       : a->leaf_count ? "axis: no swept field has only numbers: %s"
                                       : "axis: the job has no sweep%s",
                       leaf_names(a, names, sizeof names));
    if (a->x->others || !a->x->numbers)
        return pd_fail(why, PD_ERR_INVALID, "axis: the values of %s are not all numbers", a->x->pointer);
    a->field = NULL;
    return PD_OK;
}

static enum pd_err choose_panels(struct analysis *a, struct pd_why *why)
{
    char names[300];

    for (int i = 0; i < a->leaf_count; i++)
        a->leaves[i].by = !a->query->by_named && &a->leaves[i] != a->x && !a->leaves[i].drawn;
    a->field = "by";
    for (int i = 0; i < a->query->by_count; i++) {
        struct leaf *leaf = leaf_find(a, a->query->by[i]);

        if (!leaf)
            return pd_fail(why, PD_ERR_INVALID, "by: %.120s is not swept; swept fields: %s", a->query->by[i],
                           leaf_names(a, names, sizeof names));
        if (leaf == a->x)
            return pd_fail(why, PD_ERR_INVALID, "by: %s is the axis already", leaf->pointer);
        leaf->by = true;
    }
    a->field = NULL;
    return PD_OK;
}

/* ---- the points -------------------------------------------------------------------------------- */

/* Room for one more of `size` bytes. */
static bool grow(void **list, size_t count, size_t *capacity, size_t size)
{
    size_t more = *capacity ? 2 * *capacity : 8;
    void *grown;

    if (count < *capacity)
        return true;
    grown = realloc(*list, more * size);
    if (!grown)
        return false;
    *list = grown;
    *capacity = more;
    return true;
}

/* A combination's place. */
struct place {
    struct analysis *a;
    double x;
    bool has_x, failed;
    const json_t *by[API_ANALYSIS_LEAVES];
};

static bool place_leaf(void *ctx, const char *pointer, const json_t *value)
{
    struct place *p = ctx;
    const struct leaf *leaf = leaf_find(p->a, pointer);

    if (leaf == p->a->x && json_is_number(value)) {
        p->x = json_number_value(value);
        p->has_x = true;
    } else if (leaf && leaf->by)
        p->by[leaf - p->a->leaves] = value;
    return true;
}

/* The group of these values, made if need be. */
static enum pd_err find_group(struct analysis *a, const struct place *place, int64_t run, struct pd_why *why)
{
    json_t *values = json_object();
    char *text = NULL;
    void *groups = a->groups;
    enum pd_err err = values ? PD_OK : PD_ERR_NOMEM;

    for (int i = 0; err == PD_OK && i < a->leaf_count; i++)
        if (place->by[i] && json_object_set(values, a->leaves[i].pointer, (json_t *)place->by[i]) != 0)
            err = PD_ERR_NOMEM;
    if (err == PD_OK && !(text = json_dumps(values, JSON_COMPACT | JSON_REAL_PRECISION(15))))
        err = PD_ERR_NOMEM;
    for (a->at = 0; err == PD_OK && a->at < a->group_count && strcmp(a->groups[a->at].text, text) != 0;)
        a->at++;
    if (err == PD_OK && a->at == a->group_count) {
        if (a->group_count == API_ANALYSIS_PANELS) {
            a->field = "by";
            err = pd_fail(why, PD_ERR_LIMIT,
                          "by: there are more than %d panels; name fewer fields by which to divide",
                          API_ANALYSIS_PANELS);
        } else if (!grow(&groups, a->group_count, &a->group_capacity, sizeof *a->groups)) {
            err = PD_ERR_NOMEM;
        } else {
            a->groups = groups;
            a->groups[a->group_count++] =
                (struct group){.panel = {.best = -1}, .values = values, .text = text, .first_run = run};
            values = NULL; /* moved */
            text = NULL;
        }
    }
    free(text);
    json_decref(values);
    return err == PD_ERR_NOMEM ? pd_fail(why, err, "no memory for the panels") : err;
}

static enum pd_err find_point(struct analysis *a, double x, int64_t point, struct pd_why *why)
{
    struct api_panel *panel = &a->groups[a->at].panel;
    void *points = panel->points;

    for (a->at_point = 0; a->at_point < panel->count && panel->points[a->at_point].x != x;)
        a->at_point++;
    if (a->at_point == panel->count) {
        if (!grow(&points, panel->count, &panel->capacity, sizeof *panel->points))
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the points");
        panel->points = points;
        panel->points[panel->count++] = (struct api_panel_point){.x = x, .point = point};
    }
    panel->points[a->at_point].combinations++;
    return PD_OK;
}

static enum pd_err begin_point(struct analysis *a, const struct store_sample *m, struct pd_why *why)
{
    struct place place = {.a = a};
    json_t *values = json_loads(*m->sweep ? m->sweep : "{}", 0, NULL);
    enum pd_err err = PD_OK;
    const char *pointer;
    json_t *value;

    if (!values)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the points");
    json_object_foreach(values, pointer, value) if (!leaves_of(value, pointer, place_leaf, &place)) err =
        pd_fail(why, PD_ERR_LIMIT, "a swept field has more than %d bytes", API_ANALYSIS_POINTER - 1);
    a->point = m->point;
    a->out = !place.has_x;
    a->left_out += a->out;
    if (err == PD_OK && !a->out)
        err = find_group(a, &place, m->run_id, why);
    if (err == PD_OK && !a->out)
        err = find_point(a, place.x, m->point, why);
    json_decref(values);
    return err;
}

static bool read_sample(void *ctx, const struct store_sample *m)
{
    struct analysis *a = ctx;
    struct api_panel_point *at;
    double value;
    void *values;

    if (a->runs++ == JOB_MAX_RUNS)
        a->err = pd_fail(a->why, PD_ERR_LIMIT, "the analysis takes at most %d runs", JOB_MAX_RUNS);
    if (a->err == PD_OK && m->point != a->point)
        a->err = begin_point(a, m, a->why);
    if (a->err != PD_OK)
        return false;
    if (a->out)
        return true;
    a->groups[a->at].last_run = m->run_id;
    at = &a->groups[a->at].panel.points[a->at_point];
    api_tally_add(&at->runs, m);
    api_choice_add(&a->choice, &at->stat, m);
    if (!api_choice_counts(&a->choice, m) || !m->has)
        return true;
    value = api_choice_value(&a->choice, m);
    values = at->values;
    if (!isfinite(value)) {
        at->nonfinite = true;
    } else if (!grow(&values, at->count, &at->capacity, sizeof *at->values)) {
        a->err = pd_fail(a->why, PD_ERR_NOMEM, "no memory for the points");
    } else {
        at->values = values;
        at->values[at->count++] = value;
    }
    return a->err == PD_OK;
}

static int by_x(const void *a, const void *b)
{
    const struct api_panel_point *one = a, *other = b;

    return (one->x > other->x) - (one->x < other->x);
}

/* ---- tokens ------------------------------------------------------------------------------------ */

static bool tokens_row(void *ctx, const struct store_run *run)
{
    int64_t *tokens = ctx;
    struct job_config *config = NULL;

    if (job_config_load(run->document, strlen(run->document), &config, NULL) == PD_OK)
        *tokens = job_config_tokens(config);
    job_config_free(config);
    return false;
}

enum pd_err api_run_tokens(struct store *store, int64_t run, int64_t *ret_tokens, struct pd_why *why)
{
    enum pd_err err;

    *ret_tokens = 0;
    err = store_run_get(store, run, tokens_row, ret_tokens, why);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err; /* deleted meanwhile */
}

/* Those of the first and the last combination, if they agree: in a grid these two differ in every axis that makes
 * no panels. */
static enum pd_err read_tokens(struct store *store, struct group *g, struct pd_why *why)
{
    int64_t first = 0, last = 0;
    enum pd_err err = api_run_tokens(store, g->first_run, &first, why);

    if (err == PD_OK)
        err = api_run_tokens(store, g->last_run, &last, why);
    g->panel.tokens = first == last ? first : 0;
    return err;
}

/* Do the values agree in every leaf that makes panels, but for those of the axes left aside? */
static bool agree(const struct analysis *a, const struct group *one, const struct group *other, int aside)
{
    for (int i = 0; i < a->leaf_count; i++) {
        const struct leaf *leaf = &a->leaves[i];
        const json_t *v = json_object_get(one->values, leaf->pointer);
        const json_t *w = json_object_get(other->values, leaf->pointer);

        if (leaf->by && leaf->axis != aside && !(aside < 0 && leaf->sizes) && (v || w) &&
            (!v || !w || !json_equal(v, w)))
            return false;
    }
    return true;
}

/* An axis sets the number of tokens if two panels that differ in it alone differ in their tokens. */
static bool find_sizes(struct analysis *a)
{
    bool any = false;

    for (int i = 0; i < a->leaf_count; i++) {
        bool sizes = false;

        if (!a->leaves[i].by || a->leaves[i].sizes)
            continue;
        for (size_t k = 0; !sizes && k < a->group_count; k++)
            for (size_t j = 0; !sizes && j < k; j++) {
                const struct group *one = &a->groups[k], *other = &a->groups[j];

                sizes = one->panel.tokens && other->panel.tokens &&
                        one->panel.tokens != other->panel.tokens && agree(a, one, other, a->leaves[i].axis);
            }
        for (int k = i; sizes && k < a->leaf_count; k++)
            a->leaves[k].sizes = a->leaves[k].sizes || a->leaves[k].axis == a->leaves[i].axis;
        any = any || sizes;
    }
    return any;
}

/* ---- the answer -------------------------------------------------------------------------------- */

static void num_or_null(struct pd_buf *b, const char *key, double value, bool there)
{
    if (there)
        api_json_kv_num(b, key, value);
    else
        api_json_kv_null(b, key);
}

static void point_json(struct pd_buf *b, const struct api_panel_point *p)
{
    api_json_open(b, '{');
    api_json_kv_num(b, "x", p->x);
    api_json_kv_int(b, "point", p->point);
    api_json_kv_int(b, "combinations", p->combinations);
    api_json_key(b, "runs");
    api_tally_json(b, &p->runs);
    api_json_key(b, "value");
    api_stat_json(b, &p->stat);
    api_json_kv_bool(b, "usable", p->fault == API_PANEL_FINE);
    api_json_kv_str(b, "why", api_panel_fault_name(p->fault));
    api_json_close(b, '}');
}

static void best_json(struct pd_buf *b, const struct api_panel *p)
{
    const struct api_panel_point *at = &p->points[p->best < 0 ? 0 : p->best];

    if (p->best < 0) {
        api_json_null(b);
        return;
    }
    api_json_open(b, '{');
    api_json_kv_num(b, "x", at->x);
    api_json_kv_int(b, "point", at->point);
    api_json_kv_num(b, "mean", at->stat.mean);
    api_json_kv_bool(b, "at_end", p->best == 0 || p->best + 1 == (int)p->count);
    num_or_null(b, "low", p->low, p->resampled);
    num_or_null(b, "high", p->high, p->resampled);
    num_or_null(b, "share", p->share, p->resampled);
    api_json_kv_str(b, "why", p->why);
    api_json_close(b, '}');
}

static void range_json(struct pd_buf *b, const struct api_panel *p)
{
    double from, to;

    if (p->from < 0) {
        api_json_null(b);
        return;
    }
    from = p->points[p->from].x;
    to = p->points[p->to].x;
    api_json_open(b, '{');
    api_json_kv_num(b, "from", from);
    api_json_kv_num(b, "to", to);
    num_or_null(b, "decades", from > 0 ? log10(to / from) : 0, from > 0);
    api_json_kv_num(b, "limit", p->limit);
    api_json_kv_bool(b, "from_end", p->from == 0);
    api_json_kv_bool(b, "to_end", p->to + 1 == (int)p->count);
    api_json_close(b, '}');
}

static void json_text(struct pd_buf *b, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));

    if (!text)
        b->failed = true;
    api_json_kv_raw(b, key, text ? text : "null");
    free(text);
}

static void panel_json(struct pd_buf *b, const struct group *g)
{
    const struct api_panel *p = &g->panel;

    api_json_open(b, '{');
    json_text(b, "values", g->values);
    api_json_key(b, "tokens");
    if (p->tokens)
        api_json_int(b, p->tokens);
    else
        api_json_null(b);
    api_json_key(b, "points");
    api_json_open(b, '[');
    for (size_t i = 0; i < p->count; i++)
        point_json(b, &p->points[i]);
    api_json_close(b, ']');
    api_json_key(b, "best");
    best_json(b, p);
    api_json_kv_str(b, "best_why", p->best < 0 ? p->why : NULL);
    api_json_key(b, "usable");
    range_json(b, p);
    api_json_kv_str(b, "usable_why", p->range_why);
    api_json_close(b, '}');
}

/* One line through the panels that agree with `first` but for their size; *ret_count of them, by their places. */
static enum pd_err slope_fit(struct analysis *a, size_t first, size_t ret_panels[API_ANALYSIS_PANELS],
                             size_t *ret_count, struct api_slope *ret, struct pd_why *why)
{
    struct api_panel *panels[API_ANALYSIS_PANELS];
    size_t count = 0;

    for (size_t i = first; i < a->group_count; i++)
        if (agree(a, &a->groups[first], &a->groups[i], -1)) {
            ret_panels[count] = i;
            panels[count++] = &a->groups[i].panel;
        }
    *ret_count = count;
    return api_slope_fit(panels, count, ret, why);
}

static enum pd_err slope_json(struct analysis *a, struct pd_buf *b, size_t first, struct pd_why *why)
{
    size_t panels[API_ANALYSIS_PANELS], count;
    struct api_slope s;
    json_t *values = json_object();
    enum pd_err err;

    api_json_open(b, '{');
    for (int i = 0; i < a->leaf_count; i++) {
        json_t *value = json_object_get(a->groups[first].values, a->leaves[i].pointer);

        if (value && !a->leaves[i].sizes)
            (void)json_object_set(values, a->leaves[i].pointer, value);
    }
    json_text(b, "values", values);
    json_decref(values);
    err = slope_fit(a, first, panels, &count, &s, why);
    api_json_key(b, "panels");
    api_json_open(b, '[');
    for (size_t i = 0; i < count; i++)
        api_json_int(b, (int64_t)panels[i]);
    api_json_close(b, ']');
    if (err != PD_OK)
        return err;
    api_json_kv_int(b, "n", (int64_t)s.panels);
    num_or_null(b, "a", s.a, s.there);
    num_or_null(b, "b", s.b, s.there);
    api_json_kv_str(b, "why", s.why);
    num_or_null(b, "low", s.low, s.interval);
    num_or_null(b, "high", s.high, s.interval);
    api_json_kv_str(b, "interval_why", s.interval_why);
    api_json_kv_int(b, "resampled", (int64_t)s.resampled);
    api_json_close(b, '}');
    return PD_OK;
}

/* Is it the first group of a line? */
static bool begins_line(const struct analysis *a, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (agree(a, &a->groups[k], &a->groups[i], -1))
            return false;
    return true;
}

static const char no_sizes[] = "no two panels differ only in an axis that sets the number of tokens";

static enum pd_err slopes_json(struct analysis *a, struct pd_buf *b, struct pd_why *why)
{
    const bool sized = find_sizes(a);
    enum pd_err err = PD_OK;

    api_json_key(b, "slopes");
    api_json_open(b, '[');
    for (size_t i = 0; sized && err == PD_OK && i < a->group_count; i++)
        if (begins_line(a, i))
            err = slope_json(a, b, i, why);
    api_json_close(b, ']');
    api_json_kv_str(b, "slopes_why", sized ? NULL : no_sizes);
    return err;
}

static void head_json(struct pd_buf *b, int64_t job, const struct analysis *a)
{
    bool positive = true;

    for (size_t i = 0; i < a->group_count; i++)
        positive = positive && a->groups[i].panel.positive;
    api_json_kv_id(b, "job_id", job);
    api_json_kv_str(b, "name", a->name);
    api_json_kv_str(b, "state", job_state_name(a->state));
    api_json_kv_str(b, "metric", a->choice.keys[0]);
    api_json_kv_str(b, "mode", a->maximise ? "max" : "min");
    api_json_kv_str(b, "value", api_pick_name(a->choice.pick));
    api_json_key(b, "axes");
    api_json_open(b, '[');
    for (int i = 0; i < a->leaf_count; i++) {
        api_json_open(b, '{');
        api_json_kv_str(b, "pointer", a->leaves[i].pointer);
        api_json_kv_bool(b, "numeric", numeric(&a->leaves[i]));
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_kv_str(b, "axis", a->x->pointer);
    api_json_kv_bool(b, "log", positive);
    api_json_key(b, "by");
    api_json_open(b, '[');
    for (int i = 0; i < a->leaf_count; i++)
        if (a->leaves[i].by)
            api_json_str(b, a->leaves[i].pointer);
    api_json_close(b, ']');
    api_json_kv_int(b, "left_out", a->left_out);
    api_json_key(b, "bootstrap");
    api_json_open(b, '{');
    api_json_kv_str(b, "generator", "philox4x32-10");
    api_json_kv_int(b, "seed", API_PANEL_SEED);
    api_json_kv_int(b, "resamples", API_PANEL_RESAMPLES);
    api_json_kv_num(b, "level", API_PANEL_LEVEL);
    api_json_close(b, '}');
    api_json_key(b, "usable_rule");
    api_json_str(b, usable_rule);
}

/* Everything but the answer. */
static enum pd_err analyse(struct store *store, struct analysis *a, int64_t job, struct pd_why *why)
{
    struct store_sample_query q = {.by = STORE_BY_POINT,
                                   .job_id = job,
                                   .to_point = INT64_MAX,
                                   .key = a->choice.keys[0],
                                   .limit = JOB_MAX_RUNS + 1};
    enum pd_err err = store_job_get(store, job, job_row, a, why);

    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "there is no job %lld", (long long)job);
    if (err == PD_OK && !a->sweep)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the sweep");
    if (err == PD_OK)
        err = read_axes(a, why);
    if (err == PD_OK)
        err = choose_axis(a, why);
    if (err == PD_OK)
        err = choose_panels(a, why);
    if (err == PD_OK)
        err = store_sample_list(store, &q, read_sample, a, why);
    if (err == PD_OK)
        err = a->err;
    for (size_t i = 0; err == PD_OK && i < a->group_count; i++) {
        struct api_panel *p = &a->groups[i].panel;

        qsort(p->points, p->count, sizeof *p->points, by_x);
        err = api_panel_best(p, a->maximise, why);
        api_panel_usable(p, a->maximise);
        if (err == PD_OK)
            err = read_tokens(store, &a->groups[i], why);
    }
    return err;
}

static struct analysis *analysis_new(const struct api_analysis_query *query, struct pd_why *why)
{
    struct analysis *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->query = query;
    a->choice = query->choice;
    a->point = -1;
    a->why = why;
    return a;
}

enum pd_err api_analysis_json(struct store *store, int64_t job, const struct api_analysis_query *query,
                              struct pd_buf *b, const char **ret_field, struct pd_why *why)
{
    struct analysis *a = analysis_new(query, why);
    enum pd_err err;

    if (ret_field)
        *ret_field = NULL;
    if (!a)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the analysis");
    err = analyse(store, a, job, why);
    if (ret_field)
        *ret_field = a->field;
    if (err == PD_OK) {
        api_json_open(b, '{');
        head_json(b, job, a);
        api_json_key(b, "panels");
        api_json_open(b, '[');
        for (size_t i = 0; i < a->group_count; i++)
            panel_json(b, &a->groups[i]);
        api_json_close(b, ']');
        err = slopes_json(a, b, why);
        api_json_close(b, '}');
    }
    analysis_free(a);
    return err;
}

enum pd_err api_analysis_slope(struct store *store, int64_t job, const struct api_analysis_query *query,
                               struct api_slope *ret, const char **ret_why, struct pd_why *why)
{
    struct analysis *a = analysis_new(query, why);
    size_t panels[API_ANALYSIS_PANELS], count, lines = 0;
    enum pd_err err =
        a ? analyse(store, a, job, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for the analysis");

    *ret_why = NULL;
    if (err == PD_OK && !find_sizes(a)) {
        *ret_why = no_sizes;
    } else if (err == PD_OK) {
        for (size_t i = 0; i < a->group_count; i++)
            lines += begins_line(a, i);
        if (lines > 1)
            *ret_why = "a changed sweep: its best values make more than one line";
        else
            err = slope_fit(a, 0, panels, &count, ret, why);
    }
    analysis_free(a);
    return err;
}

/* Reads axis, by (repeatable; empty: one panel) and mode. False: the request has been failed. */
static bool query_read(struct api_req *r, struct api_analysis_query *q)
{
    char mode[8];

    if (!api_choice_read(r, &q->choice))
        return false;
    if (q->choice.key_count > 1)
        api_fail_param(r, API_FAULT_MALFORMED, "metric", "metric: the analysis is of one");
    if (api_query(r, "axis", q->axis, sizeof q->axis) && !q->axis[0])
        api_fail_param(r, API_FAULT_MALFORMED, "axis", "axis must be the pointer of a swept field");
    if (api_query(r, "mode", mode, sizeof mode)) {
        if (strcmp(mode, "min") != 0 && strcmp(mode, "max") != 0)
            api_fail_param(r, API_FAULT_MALFORMED, "mode", "mode must be min or max");
        q->mode = mode[1] == 'i' ? API_ANALYSIS_MODE_MIN : API_ANALYSIS_MODE_MAX;
    }
    for (int n = 0; !api_failed(r); n++) {
        char by[API_ANALYSIS_POINTER];
        const enum pd_err err = api_query_get(api_query_raw(r), "by", n, by, sizeof by);

        if (err == PD_ERR_NOT_FOUND)
            break;
        q->by_named = true;
        if (err != PD_OK || q->by_count == API_ANALYSIS_LEAVES)
            api_fail_param(r, API_FAULT_MALFORMED, "by", "by: at most %d pointers of swept fields",
                           API_ANALYSIS_LEAVES);
        else if (*by)
            memcpy(q->by[q->by_count++], by, sizeof by);
    }
    return !api_failed(r);
}

void api_sweep_analysis(struct api_req *r)
{
    static const char *const names[] = {"metric", "value", "axis", "by", "mode", "open", NULL};
    const int64_t id = api_param_id(r, 0);
    struct api_analysis_query *q = calloc(1, sizeof *q);
    struct pd_why why = {.text = ""};
    const char *field = NULL;
    struct store *store;
    struct pd_buf b;
    enum pd_err err;

    if (!q)
        api_fail(r, PD_ERR_NOMEM, "no memory for the analysis");
    if (!q || !id || api_query_refuse_others(r, names) || !query_read(r, q) || !(store = api_reader(r)))
        goto out;
    pd_buf_init(&b, 0);
    err = api_analysis_json(store, id, q, &b, &field, &why);
    if (err != PD_OK && field) {
        api_fail_param(r, err, field, "%s", why.text);
        pd_buf_done(&b);
    } else {
        api_answer(r, err, &why, &b);
    }
out:
    free(q);
}
