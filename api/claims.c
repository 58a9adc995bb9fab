#include "api/claims.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/analysis.h"
#include "api/json.h"
#include "api/theory.h"
#include "daemon/job/claim.h"
#include "daemon/job/metric.h"

const char *claim_verdict_name(enum claim_verdict verdict)
{
    static const char *const names[] = {"holds", "reported", "open", "undecided", "fails"};

    return names[verdict];
}

/* ---- numbers with divergence ------------------------------------------------------------------- */

/* A finite number, or an infinity of the sign `inf`; `lost`: infinities that cancel. */
struct wide {
    double x;
    int inf;
    bool lost;
};

static struct wide minus(struct wide a, struct wide b)
{
    return (struct wide){
        .x = a.x - b.x, .inf = a.inf ? a.inf : -b.inf, .lost = a.lost || b.lost || (a.inf && a.inf == b.inf)};
}

/* ---- one claim --------------------------------------------------------------------------------- */

enum got { GOT_VALUE, GOT_OPEN, GOT_NOTHING };

/* A combination of a claim, found in a job. */
struct place {
    struct experiment_job *job;
    const struct experiment_row *row; /* NULL: the job has none such */
    const struct experiment_series *series;
    bool chosen; /* as the best of several */
};

struct judged {
    struct job_claim claim;
    struct place place[4]; /* of the arm, then of the other side */
    size_t arm_count, count;
    int better; /* 1: more of the metric is; -1: less; 0: neither */
    struct api_stat difference;
    struct api_slope slope;        /* where the claim is of one */
    const char *slope_why;         /* there is none */
    int64_t slope_job;             /* 0 = the submission has no such job */
    int64_t seeds[64], seed_count; /* whose differences count, diverged ones included */
    int64_t up, down;              /* differences that are infinite */
    int64_t diverged[2];           /* seeds that diverged in a place of the side */
    int64_t open, without, clash;  /* seeds not ended; without a result; diverged on both sides */
    const char *missing;           /* what the runs do not have */
    bool waits;                    /* for runs that are not made, or not all there to choose from */
    enum claim_verdict verdict;
    char why[200]; /* "" = the interval says it */
};

static int direction(const struct job_claim *c, const struct experiment_job *job)
{
    const struct job_metric *metric = job_metric_find(c->metric);

    if (!strcmp(job->metric, c->metric))
        return job->maximise ? 1 : -1;
    return !metric || metric->better == JOB_METRIC_NEITHER ? 0 : metric->better == JOB_METRIC_MORE ? 1 : -1;
}

static double value_of(const struct judged *j, const struct place *p, size_t run)
{
    static const enum api_pick picks[] = {
        [JOB_CLAIM_LAST] = API_PICK_LAST, [JOB_CLAIM_MIN] = API_PICK_MIN, [JOB_CLAIM_MAX] = API_PICK_MAX};

    return p->series->value[picks[j->claim.value]][run];
}

static const struct experiment_row *row_of(const struct experiment_job *job, const json_t *point)
{
    const struct experiment_row *found = NULL;

    for (size_t i = 0; i < job->row_count; i++)
        if (job_claim_fits(point, job->rows[i].values)) {
            if (found)
                return NULL; /* a changed sweep: it is not one combination any more */
            found = &job->rows[i];
        }
    return found;
}

/* Is `a` better than `b`? A combination with a run that diverged is worse than any without. */
static bool row_better(const struct judged *j, const struct place *p, const struct experiment_row *a,
                       const struct experiment_row *b)
{
    const struct experiment_row *row[2] = {a, b};
    struct api_stat stat[2] = {{0}, {0}};

    for (int i = 0; i < 2; i++)
        for (size_t k = row[i]->first; k < row[i]->first + row[i]->count; k++)
            if (p->job->runs[k].state == JOB_RUN_ENDED && p->job->runs[k].outcome == JOB_OUTCOME_SUCCEEDED)
                api_stat_add(&stat[i], value_of(j, p, k));
    if (!a->runs.diverged != !b->runs.diverged)
        return !a->runs.diverged;
    if (!stat[0].n || !stat[1].n)
        return stat[0].n > 0;
    return j->better * stat[0].mean > j->better * stat[1].mean;
}

static enum pd_err find_place(struct judged *j, struct experiment *x, const struct experiment_set *set,
                              const struct job_claim_term *term, struct pd_why *why)
{
    struct place *p = &j->place[j->count++];
    enum pd_err err;

    *p = (struct place){.chosen = term->best};
    if (term->job >= set->count) {
        j->missing = "the submission has no such job";
        return PD_OK;
    }
    p->job = &x->jobs[set->first + term->job];
    if (!j->better)
        j->better = direction(&j->claim, p->job);
    err = experiment_series_get(x, p->job, j->claim.metric, &p->series, why);
    for (size_t i = 0; err == PD_OK && i < term->count; i++) {
        const struct experiment_row *row = row_of(p->job, term->point[i]);

        if (!row) {
            if (job_state_final(p->job->state) || (int64_t)p->job->run_count >= p->job->planned)
                j->missing = "its sweep does not have the combination";
            else
                j->waits = true; /* its runs are still being made */
            p->row = NULL;
            return err;
        }
        j->waits = j->waits || (term->best && row->runs.open > 0); /* chosen once all have ended */
        if (!p->row || row_better(j, p, row, p->row))
            p->row = row;
    }
    return err;
}

static const struct experiment_run *run_of(const struct place *p, int64_t seed, size_t *ret_at)
{
    for (size_t i = p->row->first; i < p->row->first + p->row->count; i++)
        if (p->job->runs[i].seed == seed) {
            *ret_at = i;
            return &p->job->runs[i];
        }
    return NULL;
}

static enum got read_place(const struct judged *j, const struct place *p, int64_t seed, struct wide *ret)
{
    size_t at;
    const struct experiment_run *run = run_of(p, seed, &at);

    *ret = (struct wide){.x = 0};
    if (!run)
        return job_state_final(p->job->state) ? GOT_NOTHING : GOT_OPEN;
    if (run->state != JOB_RUN_ENDED)
        return GOT_OPEN;
    if (run->outcome == JOB_OUTCOME_DIVERGED && j->better) {
        ret->inf = -j->better;
        return GOT_VALUE;
    }
    ret->x = value_of(j, p, at);
    return run->outcome == JOB_OUTCOME_SUCCEEDED && isfinite(ret->x) ? GOT_VALUE : GOT_NOTHING;
}

/* The difference of one seed. */
static void add_seed(struct judged *j, int64_t seed)
{
    struct wide value[4], side[2] = {{0}, {.x = j->claim.against.number}}, d;
    bool open = false, nothing = false, diverged[2] = {false, false};

    for (size_t i = 0; i < j->count; i++) {
        enum got got = read_place(j, &j->place[i], seed, &value[i]);

        open = open || got == GOT_OPEN;
        nothing = nothing || got == GOT_NOTHING;
        diverged[i >= j->arm_count] = diverged[i >= j->arm_count] || value[i].inf;
    }
    j->diverged[0] += diverged[0];
    j->diverged[1] += diverged[1];
    if (open || nothing) {
        j->open += open;
        j->without += !open;
        return;
    }
    for (size_t s = 0, at = 0; s < 2; s++) {
        size_t terms = s ? j->count - j->arm_count : j->arm_count;

        if (terms)
            side[s] = terms == 2 ? minus(value[at], value[at + 1]) : value[at];
        if (terms && j->claim.distance)
            side[s] = (struct wide){.x = fabs(side[s].x), .inf = side[s].inf ? 1 : 0, .lost = side[s].lost};
        at += terms;
    }
    d = minus(side[0], side[1]);
    if (j->claim.relative && !d.inf)
        d.x /= fabs(side[1].x);
    if (d.lost || (!d.inf && !isfinite(d.x))) {
        j->clash++;
        return;
    }
    if (j->seed_count < (int64_t)(sizeof j->seeds / sizeof *j->seeds))
        j->seeds[j->seed_count] = seed;
    j->seed_count++;
    if (d.inf)
        *(d.inf > 0 ? &j->up : &j->down) += 1;
    else
        api_stat_add(&j->difference, d.x);
}

/* Where the interval from `low` to `high` lies. */
static enum claim_verdict decide(const struct job_claim *c, double low, double high)
{
    const double m = c->margin;
    bool holds = false, fails = false;

    switch (c->is) {
    case JOB_CLAIM_GREATER:
        holds = low > m;
        fails = high < m;
        break;
    case JOB_CLAIM_LESS:
        holds = high < -m;
        fails = low > -m;
        break;
    case JOB_CLAIM_NOT_LESS:
        holds = low >= -m;
        fails = high < -m;
        break;
    case JOB_CLAIM_NOT_GREATER:
        holds = high <= m;
        fails = low > m;
        break;
    case JOB_CLAIM_WITHIN:
        holds = low >= -m && high <= m;
        fails = low > m || high < -m;
        break;
    case JOB_CLAIM_IS_COUNT:
        break;
    }
    return holds ? CLAIM_HOLDS : fails ? CLAIM_FAILS : CLAIM_UNDECIDED;
}

/* By Student's interval. Seeds that diverged stretch it to infinity on their side. */
static enum claim_verdict decide_paired(const struct judged *j)
{
    const struct api_stat *s = &j->difference;
    const double half = s->n > 1 ? api_student(s->n - 1) * api_stat_sd(s) / sqrt((double)s->n) : 0;

    return decide(&j->claim,
                  j->down ? -INFINITY
                  : s->n  ? s->mean - half
                          : INFINITY,
                  j->up  ? INFINITY
                  : s->n ? s->mean + half
                         : -INFINITY);
}

static void conclude(struct judged *j)
{
    int64_t infinite = j->up + j->down;

    j->verdict = CLAIM_UNDECIDED;
    if (j->open || j->waits) {
        j->verdict = CLAIM_OPEN;
        snprintf(j->why, sizeof j->why, "%s", "runs of it have not ended");
    } else if (j->missing) {
        snprintf(j->why, sizeof j->why, "%s", j->missing);
    } else if (!j->seed_count && !j->clash) {
        j->verdict = CLAIM_OPEN;
        snprintf(j->why, sizeof j->why, "%s", "no seed has a result");
    } else if (j->without) {
        snprintf(j->why, sizeof j->why,
                 "%lld of the seeds have no result, and none may be left out afterwards",
                 (long long)j->without);
    } else if (j->clash) {
        snprintf(j->why, sizeof j->why,
                 "%lld of the seeds diverged on both sides, or have no finite difference",
                 (long long)j->clash);
    } else if (j->seed_count < 2) {
        snprintf(j->why, sizeof j->why, "%s", "one seed gives no interval; run it with more trials");
    } else if (infinite && j->difference.n == 1) {
        snprintf(j->why, sizeof j->why, "%s", "only one seed did not diverge, and one gives no interval");
    } else {
        j->verdict = decide_paired(j);
        if (infinite)
            snprintf(j->why, sizeof j->why,
                     "a run that diverged counts as worse than any finite value: %lld of the seeds",
                     (long long)infinite);
    }
}

/* Every planned run counts here, too. */
static void count_runs(struct judged *j, const struct experiment_job *job)
{
    int64_t ended = 0;

    for (size_t i = 0; i < job->row_count; i++) {
        const struct api_tally *t = &job->rows[i].runs;

        j->open += t->open;
        j->without += t->failed + t->cancelled + t->lost;
        j->diverged[0] += t->diverged;
        ended += t->succeeded + t->diverged;
    }
    if (job->planned > (int64_t)job->run_count)
        *(job_state_final(job->state) ? &j->without : &j->open) += job->planned - (int64_t)job->run_count;
    for (size_t i = 0; i < job->run_count; i++) { /* its seeds, each once */
        int64_t k = 0, n = j->seed_count < 64 ? j->seed_count : 64;

        while (k < n && j->seeds[k] != job->runs[i].seed)
            k++;
        if (k == n && n < 64)
            j->seeds[j->seed_count++] = job->runs[i].seed;
    }
    if (!ended)
        j->seed_count = 0;
}

static enum pd_err judge_slope(struct judged *j, struct experiment *x, const struct experiment_set *set,
                               struct pd_why *why)
{
    static const enum api_pick picks[] = {
        [JOB_CLAIM_LAST] = API_PICK_LAST, [JOB_CLAIM_MIN] = API_PICK_MIN, [JOB_CLAIM_MAX] = API_PICK_MAX};
    struct api_analysis_query *q = calloc(1, sizeof *q);
    const struct api_slope *s = &j->slope;
    enum pd_err err = PD_OK;

    if (!q)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the claims");
    snprintf(q->choice.keys[q->choice.key_count++], sizeof q->choice.keys[0], "%s", j->claim.metric);
    q->choice.pick = picks[j->claim.value];
    snprintf(q->axis, sizeof q->axis, "%s", j->claim.slope_axis);
    if (j->claim.slope_job >= set->count) {
        j->slope_why = "the submission has no such job";
    } else {
        const struct experiment_job *job = &x->jobs[set->first + j->claim.slope_job];

        j->slope_job = job->id;
        count_runs(j, job);
        err = api_analysis_slope(x->store, job->id, q, &j->slope, &j->slope_why, why);
        if (err == PD_ERR_INVALID || err == PD_ERR_LIMIT) { /* a changed sweep */
            j->slope_why = "its sweep does not have the axis, or is beyond what is analysed";
            err = PD_OK;
        }
    }
    free(q);
    if (!j->slope_why)
        j->slope_why = s->why;
    j->verdict = CLAIM_UNDECIDED;
    if (j->open || !j->seed_count) {
        j->verdict = CLAIM_OPEN;
        snprintf(j->why, sizeof j->why, "%s", j->open ? "runs of it have not ended" : "no run has a result");
    } else if (j->without > 0) {
        snprintf(j->why, sizeof j->why,
                 "%lld of the runs have no result, and none may be left out afterwards",
                 (long long)j->without);
    } else if (j->slope_why || !s->interval) {
        snprintf(j->why, sizeof j->why, "%s", j->slope_why ? j->slope_why : s->interval_why);
    } else {
        j->verdict = decide(&j->claim, s->low - j->claim.against.number, s->high - j->claim.against.number);
    }
    return err;
}

static enum pd_err judge(struct judged *j, struct experiment *x, const struct experiment_set *set,
                         struct pd_why *why)
{
    const struct job_claim_side *sides[] = {&j->claim.arm, &j->claim.against};
    enum pd_err err = PD_OK;
    bool rows = true;

    if (j->claim.slope_axis)
        return judge_slope(j, x, set, why);
    for (size_t s = 0; s < 2; s++) {
        for (size_t t = 0; err == PD_OK && t < sides[s]->count; t++)
            err = find_place(j, x, set, &sides[s]->term[t], why);
        if (!s)
            j->arm_count = j->count;
    }
    for (size_t i = 0; i < j->count; i++)
        rows = rows && j->place[i].row;
    if (err == PD_OK && rows && !j->missing) {
        const struct place *first = &j->place[0];

        for (size_t i = first->row->first; i < first->row->first + first->row->count; i++)
            add_seed(j, first->job->runs[i].seed);
        /* Those that were deleted, or are not made yet. */
        for (int64_t i = (int64_t)first->row->count; i < first->job->trials; i++)
            *(job_state_final(first->job->state) ? &j->without : &j->open) += 1;
    }
    conclude(j);
    return err;
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static void place_json(struct pd_buf *b, const struct judged *j, const struct place *p)
{
    struct api_stat stat = {0};

    api_json_open(b, '{');
    if (p->job)
        api_json_kv_id(b, "job_id", p->job->id);
    else
        api_json_kv_null(b, "job_id");
    if (p->row) {
        char *values = json_dumps(p->row->values, JSON_COMPACT | JSON_REAL_PRECISION(15));

        for (size_t i = p->row->first; i < p->row->first + p->row->count; i++)
            if (p->job->runs[i].state == JOB_RUN_ENDED && p->job->runs[i].outcome == JOB_OUTCOME_SUCCEEDED)
                api_stat_add(&stat, value_of(j, p, i));
        api_json_kv_int(b, "point", p->row->point);
        api_json_kv_raw(b, "values", values ? values : "{}");
        free(values);
    } else {
        api_json_kv_null(b, "point");
        api_json_kv_raw(b, "values", "{}");
    }
    api_json_kv_bool(b, "chosen", p->chosen);
    api_json_key(b, "statistic");
    api_stat_json(b, &stat);
    api_json_close(b, '}');
}

static void num_or_null(struct pd_buf *b, const char *key, bool there, double value)
{
    if (there)
        api_json_kv_num(b, key, value);
    else
        api_json_kv_null(b, key);
}

/* The exponent, and how far it is from what it is compared with. */
static void slope_json(struct pd_buf *b, const struct judged *j)
{
    const struct api_slope *s = &j->slope;
    const double bound = j->claim.against.number;
    const bool there = !j->slope_why && s->there, interval = there && s->interval;

    api_json_key(b, "slope");
    if (!j->claim.slope_axis) {
        api_json_null(b);
        return;
    }
    api_json_open(b, '{');
    if (j->slope_job)
        api_json_kv_id(b, "job_id", j->slope_job);
    else
        api_json_kv_null(b, "job_id");
    api_json_kv_str(b, "axis", j->claim.slope_axis);
    num_or_null(b, "b", there, s->b);
    num_or_null(b, "low", interval, s->low);
    num_or_null(b, "high", interval, s->high);
    api_json_close(b, '}');
    api_json_key(b, "difference");
    api_json_open(b, '{');
    api_json_kv_int(b, "n", there ? (int64_t)s->panels : 0);
    num_or_null(b, "mean", there, s->b - bound);
    api_json_kv_null(b, "sd");
    num_or_null(b, "low", interval, s->low - bound);
    num_or_null(b, "high", interval, s->high - bound);
    api_json_close(b, '}');
}

static void claim_json(struct pd_buf *b, const struct judged *j)
{
    const struct job_claim *c = &j->claim;

    api_json_open(b, '{');
    api_json_kv_str(b, "says", c->sentence);
    api_json_kv_str(b, "verdict", claim_verdict_name(j->verdict));
    api_json_kv_str(b, "why", j->why[0] ? j->why : NULL);
    api_json_kv_str(b, "metric", c->metric);
    api_json_kv_str(b, "value", job_claim_value_name(c->value));
    api_json_kv_str(b, "is", job_claim_is_name(c->is));
    api_json_kv_num(b, "margin", c->margin);
    api_json_kv_bool(b, "relative", c->relative);
    api_json_kv_bool(b, "distance", c->distance);
    for (size_t s = 0; s < 2; s++) {
        api_json_key(b, s ? "against" : "arm");
        api_json_open(b, '[');
        for (size_t i = s ? j->arm_count : 0; i < (s ? j->count : j->arm_count); i++)
            place_json(b, j, &j->place[i]);
        api_json_close(b, ']');
    }
    if (c->against.count)
        api_json_kv_null(b, "bound");
    else
        api_json_kv_num(b, "bound", c->against.number);
    slope_json(b, j);
    if (!c->slope_axis) {
        api_json_key(b, "difference");
        api_interval_json(b, &j->difference);
    }
    api_json_key(b, "seeds");
    api_json_open(b, '[');
    for (int64_t i = 0; i < j->seed_count && i < (int64_t)(sizeof j->seeds / sizeof *j->seeds); i++)
        api_json_int(b, j->seeds[i]);
    api_json_close(b, ']');
    api_json_key(b, "diverged");
    api_json_open(b, '{');
    api_json_kv_int(b, "arm", j->diverged[0]);
    api_json_kv_int(b, "against", j->diverged[1]);
    api_json_close(b, '}');
    api_json_kv_int(b, "open", j->open);
    api_json_kv_int(b, "without_result", j->without);
    api_json_close(b, '}');
}

/* The same members where the jobs are checks, which judge themselves. */
static enum pd_err checks_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                               enum claim_verdict *ret_verdict, struct pd_why *why)
{
    const char *reason;
    enum pd_err err = theory_verdict(x, set, ret_verdict, &reason, why);

    api_json_kv_str(b, "verdict", claim_verdict_name(*ret_verdict));
    api_json_kv_str(b, "why", reason);
    api_json_kv_raw(b, "claims", "[]");
    return err;
}

enum pd_err claims_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                        enum claim_verdict *ret_verdict, bool *ret_counts, struct pd_why *why)
{
    const json_t *variant = json_object_get(json_object_get(set->file, "variants"), set->variant), *claim;
    const json_t *claims = set->why ? NULL : json_object_get(variant, "claims");
    enum claim_verdict worst = CLAIM_HOLDS;
    bool seen = false;
    struct pd_buf list;
    enum pd_err err = PD_OK;
    size_t i;

    if (!set->why && job_kind_has(x->jobs[set->first].kind, "check", 5)) {
        *ret_counts = true;
        return checks_json(b, x, set, ret_verdict, why);
    }
    pd_buf_init(&list, 0);
    api_json_open(&list, '[');
    json_array_foreach(claims, i, claim)
    {
        struct judged j = {.better = 0};

        err = job_claim_read(claim, &j.claim, why);
        if (err == PD_OK)
            err = judge(&j, x, set, why);
        if (err != PD_OK)
            break;
        claim_json(&list, &j);
        worst = j.verdict > worst ? j.verdict : worst;
        seen = seen || j.seed_count || j.open || j.waits || j.clash;
    }
    api_json_close(&list, ']');
    api_json_kv_str(b, "verdict", json_array_size(claims) ? claim_verdict_name(worst) : NULL);
    api_json_kv_str(b, "why",
                    set->why                  ? set->why
                    : json_array_size(claims) ? NULL
                    : claims                  ? "no statement of it can be judged by its runs"
                                              : "this variant has no claims");
    api_json_kv_raw(b, "claims", err == PD_OK && pd_buf_err(&list) == PD_OK ? list.data : "[]");
    if (err == PD_OK)
        err = pd_buf_err(&list);
    pd_buf_done(&list);
    *ret_verdict = worst;
    *ret_counts = seen && json_array_size(claims) > 0;
    return err;
}
