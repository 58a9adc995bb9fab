#include "api/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "api/server.h"

/* ---- numbers ----------------------------------------------------------------------------------- */

void api_stat_add(struct api_stat *s, double value)
{
    double delta;

    if (!isfinite(value)) {
        s->missing++;
        return;
    }
    if (!s->n || value < s->min)
        s->min = value;
    if (!s->n || value > s->max)
        s->max = value;
    s->n++;
    delta = value - s->mean;
    s->mean += delta / (double)s->n;
    s->m2 += delta * (value - s->mean);
}

double api_stat_sd(const struct api_stat *s)
{
    return s->n > 1 ? sqrt(s->m2 / (double)(s->n - 1)) : (double)NAN;
}

static void num_or_null(struct pd_buf *b, const char *key, double value, bool there)
{
    if (there)
        api_json_kv_num(b, key, value);
    else
        api_json_kv_null(b, key);
}

void api_stat_json(struct pd_buf *b, const struct api_stat *s)
{
    api_json_open(b, '{');
    api_json_kv_int(b, "n", s->n);
    api_json_kv_int(b, "missing", s->missing);
    num_or_null(b, "mean", s->mean, s->n > 0);
    num_or_null(b, "sd", api_stat_sd(s), s->n > 1);
    num_or_null(b, "min", s->min, s->n > 0);
    num_or_null(b, "max", s->max, s->n > 0);
    api_json_close(b, '}');
}

/* The continued fraction of the incomplete beta function I_x(a, 1/2), by Lentz's method. */
static double beta_fraction(double a, double x)
{
    const double b = 0.5, tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1), h;

    d = 1 / (fabs(d) < tiny ? tiny : d);
    h = d;
    for (int m = 1; m < 300; m++) {
        const double terms[] = {m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                                -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))};
        double step = 1;

        for (int i = 0; i < 2; i++) {
            d = 1 + terms[i] * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + terms[i] / c;
            c = fabs(c) < tiny ? tiny : c;
            step = c * d;
            h *= step;
        }
        if (fabs(step - 1) < 1e-14)
            break;
    }
    return h;
}

double api_student(double df)
{
    const double z = 1.959963985, z2 = z * z, n = df < 1 ? 1 : df; /* z: of the normal distribution */
    /* Cornish and Fisher's expansion in 1 / n */
    double t = z * (1 + (z2 + 1) / (4 * n) + ((5 * z2 + 16) * z2 + 3) / (96 * n * n) +
                    (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * n * n * n));
    double scale;

    if (n > 30)
        return t;
    /* 1 / B(n / 2, 1 / 2) */
    scale = tgamma((n + 1) / 2) / (tgamma(n / 2) * sqrt(acos(-1)));
    /* Newton's method on the share beyond t, which is convex: it comes from the left. */
    for (int i = 0; i < 30; i++) {
        const double x = n / (n + t * t), power = pow(x, n / 2);
        const double beyond = scale * power * sqrt(1 - x) / n * beta_fraction(n / 2, x);
        const double density = scale / sqrt(n) * power * sqrt(x), step = (beyond - 0.025) / density;

        t += step;
        if (fabs(step) < 1e-10 * t)
            break;
    }
    return t;
}

void api_interval_json(struct pd_buf *b, const struct api_stat *s)
{
    const double half = s->n > 1 ? api_student((double)(s->n - 1)) * api_stat_sd(s) / sqrt((double)s->n) : 0;

    api_json_open(b, '{');
    api_json_kv_int(b, "n", s->n);
    num_or_null(b, "mean", s->mean, s->n > 0);
    num_or_null(b, "sd", api_stat_sd(s), s->n > 1);
    num_or_null(b, "low", s->mean - half, s->n > 1);
    num_or_null(b, "high", s->mean + half, s->n > 1);
    api_json_close(b, '}');
}

void api_welch_json(struct pd_buf *b, const struct api_stat *a, const struct api_stat *other)
{
    const double difference = a->mean - other->mean;
    const bool both = a->n > 1 && other->n > 1;
    double half = 0;

    if (both) {
        const double va = a->m2 / ((double)a->n - 1) / (double)a->n;
        const double vo = other->m2 / ((double)other->n - 1) / (double)other->n;
        const double share = va + vo > 0 ? va / (va + vo) : 0.5;
        /* Welch and Satterthwaite's, by shares of the variance: squares of small ones would vanish. */
        const double df =
            1 / (share * share / ((double)a->n - 1) + (1 - share) * (1 - share) / ((double)other->n - 1));

        half = api_student(df) * sqrt(va + vo);
    }
    api_json_open(b, '{');
    num_or_null(b, "difference", difference, a->n > 0 && other->n > 0);
    num_or_null(b, "low", difference - half, both);
    num_or_null(b, "high", difference + half, both);
    api_json_key(b, "separable");
    if (both)
        api_json_bool(b, fabs(difference) > half);
    else
        api_json_null(b);
    api_json_close(b, '}');
}

void api_tally_add(struct api_tally *t, const struct store_sample *m)
{
    t->total++;
    if (m->state != JOB_RUN_ENDED)
        t->open++;
    else if (m->outcome == JOB_OUTCOME_SUCCEEDED)
        t->succeeded++;
    else if (m->outcome == JOB_OUTCOME_DIVERGED)
        t->diverged++;
    else if (m->outcome == JOB_OUTCOME_FAILED)
        t->failed++;
    else if (m->outcome == JOB_OUTCOME_CANCELLED)
        t->cancelled++;
    else
        t->lost++;
}

void api_tally_json(struct pd_buf *b, const struct api_tally *t)
{
    api_json_open(b, '{');
    api_json_kv_int(b, "total", t->total);
    api_json_kv_int(b, "open", t->open);
    api_json_kv_int(b, "succeeded", t->succeeded);
    api_json_kv_int(b, "diverged", t->diverged);
    api_json_kv_int(b, "failed", t->failed);
    api_json_kv_int(b, "cancelled", t->cancelled);
    api_json_kv_int(b, "lost", t->lost);
    api_json_close(b, '}');
}

/* ---- the choice -------------------------------------------------------------------------------- */

static const char *const pick_names[] = {"last", "min", "max"};

const char *api_pick_name(enum api_pick pick)
{
    return pick_names[pick];
}

bool api_choice_read(struct api_req *r, struct api_choice *c)
{
    char text[8];
    enum pd_err err;

    memset(c, 0, sizeof *c);
    for (;;) {
        char key[STORE_KEY_MAX + 1];

        err = api_query_get(api_query_raw(r), "metric", c->key_count, key, sizeof key);
        if (err == PD_ERR_NOT_FOUND)
            break;
        if (err != PD_OK || c->key_count == API_SAMPLE_KEYS || !key[0]) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d metric keys of 1 to %d bytes", API_SAMPLE_KEYS,
                     STORE_KEY_MAX);
            return false;
        }
        memcpy(c->keys[c->key_count++], key, sizeof key);
    }
    if (api_query(r, "value", text, sizeof text)) {
        if (!strcmp(text, "min"))
            c->pick = API_PICK_MIN;
        else if (!strcmp(text, "max"))
            c->pick = API_PICK_MAX;
        else if (strcmp(text, "last") != 0)
            api_fail(r, API_FAULT_MALFORMED, "value must be last, min or max");
    }
    c->open = api_query_flag(r, "open");
    return !api_failed(r);
}

bool api_choice_counts(const struct api_choice *c, const struct store_sample *m)
{
    return m->state == JOB_RUN_ENDED ? m->outcome == JOB_OUTCOME_SUCCEEDED : c->open;
}

double api_choice_value(const struct api_choice *c, const struct store_sample *m)
{
    return !m->has                   ? (double)NAN
           : c->pick == API_PICK_MIN ? m->min
           : c->pick == API_PICK_MAX ? m->max
                                     : m->last;
}

void api_choice_add(const struct api_choice *c, struct api_stat *s, const struct store_sample *m)
{
    if (api_choice_counts(c, m))
        api_stat_add(s, api_choice_value(c, m));
}

/* ---- curves ------------------------------------------------------------------------------------ */

static const char *const axis_names[] = {"step", "epoch", "time"};

const char *api_axis_name(enum api_axis x)
{
    return axis_names[x];
}

bool api_curve_read(struct api_req *r, struct api_curve_query *q)
{
    char text[8];

    memset(q, 0, sizeof *q);
    if (!api_query(r, "key", q->key, sizeof q->key) || !q->key[0]) {
        if (!api_failed(r))
            api_fail(r, API_FAULT_MALFORMED, "name a key: ?key=loss/val");
        return false;
    }
    if (api_query(r, "x", text, sizeof text)) {
        if (!strcmp(text, "epoch"))
            q->x = API_AXIS_EPOCH;
        else if (!strcmp(text, "time"))
            q->x = API_AXIS_TIME;
        else if (strcmp(text, "step") != 0)
            api_fail(r, API_FAULT_MALFORMED, "x must be step, epoch or time");
    }
    q->buckets = (int)api_query_int(r, "buckets", 1, 2000, 200);
    return !api_failed(r);
}

struct pace {
    double steps;  /* of an epoch; 0 = unknown */
    double epochs; /* that the document asks for; 0 = its length is given in steps */
};

/* The length of a run in epochs is in its document; the worker reports the corresponding number of steps. */
static bool pace_row(void *ctx, const struct store_run *run)
{
    struct pace *p = ctx;
    json_t *document = json_loads(run->document, 0, NULL);
    json_t *epochs = json_object_get(json_object_get(document, "train"), "epochs");

    p->epochs = json_is_number(epochs) ? json_number_value(epochs) : 0;
    if (p->epochs > 0 && run->total_steps > 0)
        p->steps = (double)run->total_steps / p->epochs;
    json_decref(document);
    return false;
}

/* One run within the buckets. */
struct align {
    const struct api_curve_query *q;
    struct api_curve_point *at; /* x holds the sum over runs until the end */
    int64_t *runs;              /* that have points in the bucket */
    int64_t origin_us;
    double steps;
};

static bool align_bucket(void *ctx, const struct store_bucket *b)
{
    struct align *a = ctx;
    struct api_curve_point *p = &a->at[b->index];
    double step = 0.5 * ((double)b->first_step + (double)b->last_step);
    double seconds = 0.5e-6 * (double)(b->first_us - a->origin_us + b->last_us - a->origin_us);

    /* What a client noted before the run began stands at its beginning. */
    p->x += a->q->x == API_AXIS_TIME    ? (seconds > 0 ? seconds : 0)
            : a->q->x == API_AXIS_EPOCH ? step / a->steps
                                        : step;
    if (b->count > b->nonfinite) {
        if (!p->across.n || b->min < p->least)
            p->least = b->min;
        if (!p->across.n || b->max > p->most)
            p->most = b->max;
        api_stat_add(&p->across, b->mean);
    }
    p->count += b->count;
    p->nonfinite += b->nonfinite;
    a->runs[b->index]++;
    return true;
}

static enum pd_err align_run(struct store *store, struct align *a, const struct api_curve_run *run,
                             double furthest, struct pd_why *why)
{
    struct store_point_query q = {.run_id = run->run_id,
                                  .key = a->q->key,
                                  .from_step = INT64_MIN,
                                  .to_step = INT64_MAX,
                                  .attempt = -1,
                                  .whole_range = true};

    if (a->q->x == API_AXIS_TIME) {
        a->origin_us = run->started_us;
        q.by_time = true;
        q.from_us = run->started_us;
        q.to_us = run->started_us + (int64_t)furthest;
    } else {
        q.from_step = 0;
        q.to_step = (int64_t)(a->q->x == API_AXIS_EPOCH ? furthest * a->steps + 0.5 : furthest);
    }
    return store_bucket_list(store, &q, a->q->buckets, align_bucket, a, NULL, why);
}

enum pd_err api_curve(struct store *store, const struct api_curve_query *q, const struct api_curve_run *runs,
                      size_t count, void (*point)(void *ctx, const struct api_curve_point *p), void *ctx,
                      struct pd_why *why)
{
    struct align a = {.q = q};
    double *steps = calloc(count + 1, sizeof *steps), furthest = 0;
    enum pd_err err = PD_OK;

    a.at = calloc((size_t)q->buckets, sizeof *a.at);
    a.runs = calloc((size_t)q->buckets, sizeof *a.runs);
    if (!steps || !a.at || !a.runs)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a curve");
    for (size_t i = 0; err == PD_OK && i < count; i++) {
        double reach = (double)runs[i].last_step;

        if (!runs[i].last_us)
            continue;
        if (q->x == API_AXIS_EPOCH) {
            struct pace pace = {0};

            err = store_run_get(store, runs[i].run_id, pace_row, &pace, why);
            if (err == PD_OK && pace.steps <= 0)
                err = pd_fail(why, PD_ERR_UNSUPPORTED,
                              pace.epochs > 0 ? "run %lld has not reported yet how many steps an epoch has"
                                              : "run %lld has no epochs: its length is given in steps",
                              (long long)runs[i].run_id);
            if (err != PD_OK)
                break;
            steps[i] = pace.steps;
            reach /= pace.steps;
        } else if (q->x == API_AXIS_TIME)
            reach = (double)(runs[i].last_us - runs[i].started_us);
        if (reach > furthest)
            furthest = reach;
    }
    for (size_t i = 0; err == PD_OK && i < count; i++) {
        a.steps = steps[i];
        if (runs[i].last_us)
            err = align_run(store, &a, &runs[i], furthest, why);
    }
    for (int i = 0; err == PD_OK && i < q->buckets; i++)
        if (a.runs[i]) {
            a.at[i].x /= (double)a.runs[i];
            point(ctx, &a.at[i]);
        }
    free(steps);
    free(a.at);
    free(a.runs);
    return err;
}

void api_curve_point_json(struct pd_buf *b, const struct api_curve_point *p)
{
    api_json_open(b, '{');
    api_json_kv_num(b, "x", p->x);
    api_json_kv_int(b, "n", p->across.n);
    num_or_null(b, "mean", p->across.mean, p->across.n > 0);
    num_or_null(b, "sd", api_stat_sd(&p->across), p->across.n > 1);
    num_or_null(b, "min", p->least, p->across.n > 0);
    num_or_null(b, "max", p->most, p->across.n > 0);
    api_json_kv_int(b, "nonfinite", p->nonfinite);
    api_json_close(b, '}');
}

/* ---- CSV --------------------------------------------------------------------------------------- */

static void csv_comma(struct pd_buf *b)
{
    if (b->len && b->data[b->len - 1] != '\n')
        pd_buf_append(b, ",", 1);
}

void api_csv_str(struct pd_buf *b, const char *text)
{
    csv_comma(b);
    if (!strpbrk(text, ",\"\r\n")) {
        pd_buf_str(b, text);
        return;
    }
    pd_buf_append(b, "\"", 1);
    for (const char *c = text; *c; c++) {
        if (*c == '"')
            pd_buf_append(b, "\"", 1);
        pd_buf_append(b, c, 1);
    }
    pd_buf_append(b, "\"", 1);
}

void api_csv_num(struct pd_buf *b, double value, bool absent)
{
    struct pd_buf number;
    size_t quoted;

    csv_comma(b);
    if (absent)
        return;
    pd_buf_init(&number, 0);
    api_json_num(&number, value);
    quoted = number.len && number.data[0] == '"';
    if (pd_buf_err(&number) == PD_OK)
        pd_buf_append(b, number.data + quoted, number.len - 2 * quoted);
    else
        b->failed = true;
    pd_buf_done(&number);
}

void api_csv_int(struct pd_buf *b, int64_t value)
{
    csv_comma(b);
    pd_buf_printf(b, "%lld", (long long)value);
}

void api_csv_line(struct pd_buf *b)
{
    pd_buf_append(b, "\n", 1);
}
