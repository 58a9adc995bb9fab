#include "daemon/job/claim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const is_names[JOB_CLAIM_IS_COUNT] = {"greater", "less", "not_less", "not_greater",
                                                         "within"};
static const char *const value_names[JOB_CLAIM_VALUE_COUNT] = {"last", "min", "max"};

const char *job_claim_is_name(enum job_claim_is is)
{
    return is_names[is];
}

const char *job_claim_value_name(enum job_claim_value value)
{
    return value_names[value];
}

/* The place of a word in a list; `count`: it is not there. */
static size_t word_of(const json_t *value, const char *const *words, size_t count)
{
    size_t i = 0;

    while (i < count && (!json_is_string(value) || strcmp(json_string_value(value), words[i]) != 0))
        i++;
    return i;
}

static bool take_point(struct job_claim_term *t, const json_t *point)
{
    if (!json_is_object(point) || t->count == JOB_CLAIM_POINTS)
        return false;
    t->point[t->count++] = point;
    return true;
}

static bool read_term(const json_t *json, struct job_claim_term *ret)
{
    const json_t *job = json_object_get(json, "job"), *point = json_object_get(json, "point");
    const json_t *best = json_object_get(json, "best"), *each;
    size_t i;

    *ret = (struct job_claim_term){.job = (size_t)json_integer_value(job), .best = best != NULL};
    if (!json_is_object(json) || (job && (!json_is_integer(job) || json_integer_value(job) < 0)) ||
        !point == !best || json_object_size(json) != 1 + (job != NULL))
        return false;
    if (point)
        return take_point(ret, point);
    json_array_foreach(best, i, each) if (!take_point(ret, each)) return false;
    return ret->count > 0;
}

static bool read_side(const json_t *json, bool number_ok, struct job_claim_side *ret)
{
    *ret = (struct job_claim_side){.number = json_number_value(json)};
    if (json_is_number(json))
        return number_ok;
    if (json_is_array(json)) {
        ret->count = 2;
        return json_array_size(json) == 2 && read_term(json_array_get(json, 0), &ret->term[0]) &&
               read_term(json_array_get(json, 1), &ret->term[1]);
    }
    ret->count = 1;
    return read_term(json, &ret->term[0]);
}

/* How the best value of an axis grows: it has no arm, and is compared with a number. */
static bool read_slope(const json_t *slope, const json_t *claim, struct job_claim *ret)
{
    const json_t *job = json_object_get(slope, "job");

    ret->slope_axis = json_string_value(json_object_get(slope, "axis"));
    ret->slope_job = (size_t)json_integer_value(job);
    return ret->slope_axis && *ret->slope_axis == '/' && json_object_size(slope) == 1 + (job != NULL) &&
           (!job || (json_is_integer(job) && json_integer_value(job) >= 0)) &&
           !json_object_get(claim, "arm") && !ret->relative && !ret->distance;
}

static bool read_flag(const json_t *json, bool *ret)
{
    *ret = json_is_true(json);
    return !json || json_is_boolean(json);
}

enum pd_err job_claim_read(const json_t *json, struct job_claim *ret, struct pd_why *why)
{
    static const char *const known[] = {"says",  "is",       "metric",   "arm",   "against", "margin",
                                        "value", "relative", "distance", "slope", NULL};
    const json_t *slope = json_object_get(json, "slope"), *margin = json_object_get(json, "margin"),
                 *value = json_object_get(json, "value");
    struct job_claim c = {
        .sentence = json_string_value(json_object_get(json, "says")),
        .metric = json_string_value(json_object_get(json, "metric")),
        .is = (enum job_claim_is)word_of(json_object_get(json, "is"), is_names, JOB_CLAIM_IS_COUNT),
        .margin = json_number_value(margin)};
    const char *key, *wrong = NULL;
    json_t *unused;

    json_object_foreach((json_t *)json, key, unused)
    {
        size_t i = 0;

        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return pd_fail(why, PD_ERR_INVALID, "a claim has no member '%.60s'", key);
    }
    c.value =
        value ? (enum job_claim_value)word_of(value, value_names, JOB_CLAIM_VALUE_COUNT) : JOB_CLAIM_LAST;
    if (!c.sentence || !*c.sentence)
        wrong = "says";
    else if (c.is == JOB_CLAIM_IS_COUNT)
        wrong = "is";
    else if (!c.metric || !*c.metric)
        wrong = "metric";
    else if (c.value == JOB_CLAIM_VALUE_COUNT)
        wrong = "value";
    else if ((margin && !json_is_number(margin)) || !(c.margin >= 0))
        wrong = "margin";
    else if (!read_flag(json_object_get(json, "relative"), &c.relative))
        wrong = "relative";
    else if (!read_flag(json_object_get(json, "distance"), &c.distance))
        wrong = "distance";
    else if (slope && !read_slope(slope, json, &c))
        wrong = "slope";
    else if (slope)
        wrong = read_side(json_object_get(json, "against"), true, &c.against) && !c.against.count ? NULL
                                                                                                  : "against";
    else if (!read_side(json_object_get(json, "arm"), false, &c.arm) || (c.distance && c.arm.count != 2))
        wrong = "arm";
    else if (!read_side(json_object_get(json, "against"), true, &c.against) ||
             (c.distance && c.against.count == 1) || (c.against.count && c.against.count != c.arm.count))
        wrong = "against";
    if (wrong)
        return pd_fail(why, PD_ERR_INVALID, "a claim's %s is missing or wrong", wrong);
    *ret = c;
    return PD_OK;
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);

        return fabs(x - y) <= 1e-9 * fmax(fabs(x), fabs(y));
    }
    return json_equal(a, b);
}

bool job_claim_fits(const json_t *point, const json_t *values)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)point, key,
                        value) if (!same(value, json_object_get(values, key))) return false;
    return true;
}

const json_t *job_claim_leaf(const json_t *values, const char *pointer)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)values, key, value)
    {
        const size_t len = strlen(key);

        if (strncmp(pointer, key, len) != 0 || (pointer[len] && pointer[len] != '/'))
            continue;
        if (!pointer[len])
            return json_is_object(value) ? NULL : value;
        for (const char *at = pointer + len; value && *at;) {
            char name[64];
            const size_t n = strcspn(++at, "/");

            snprintf(name, sizeof name, "%.*s", (int)n, at);
            value = json_object_get(value, name);
            at += n;
        }
        return json_is_object(value) ? NULL : value;
    }
    return NULL;
}

bool job_claim_matches(const json_t *alternatives, const json_t *values)
{
    const json_t *one;
    const char *key;
    json_t *value;
    size_t i;

    json_array_foreach(alternatives, i, one)
    {
        bool all = true;

        json_object_foreach((json_t *)one, key, value) all = all && same(value, job_claim_leaf(values, key));
        if (all)
            return true;
    }
    return !alternatives;
}
