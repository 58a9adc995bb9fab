/* daemon/worker/train/evaluator.c: see evaluator.h. */
#include "daemon/worker/train/evaluator.h"

#include "daemon/worker/train/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(MODEL_SUMS_MAX <= RANKS_SUMS_MAX && TASK_RANGES_MAX <= RANKS_SUMS_MAX,
               "the sums of an evaluation can be added up over ranks");

struct evaluator {
    const struct session *session;
    struct model_store *store;
    void *const *averages;
    struct executable executable;
    void (*scored)(void *user); /* after each batch; may be NULL */
    void *user;
    /* of a run's state (struct train_state) */
    bool due;
    double loss, shown, score, best_value, stop_best;
    int64_t best_step, stop_waited;
};

enum pd_err evaluator_open(const struct session *s, struct model_store *store, void *const *averages,
                           struct evaluator **ret, struct pd_why *why)
{
    struct evaluator *e = calloc(1, sizeof *e);
    struct train_graph graph;
    enum pd_err err;

    if (!e)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for an evaluator");
    e->session = s;
    e->store = store;
    e->averages = averages;
    e->loss = e->shown = e->score = e->best_value = e->stop_best = (double)NAN;
    e->best_step = -1;
    if (train_graph_find(&s->setup, TRAIN_GRAPH_EVAL, &graph))
        err = session_executable(s, &graph, store, NULL, &e->executable, why);
    else
        err = pd_fail(why, PD_ERR_INTERNAL, "the run has no evaluation");
    if (err == PD_OK)
        *ret = e;
    else
        evaluator_close(e);
    return err;
}

struct evaluator *evaluator_close(struct evaluator *e)
{
    if (e)
        executable_done(&e->executable);
    free(e);
    return NULL;
}

void evaluator_watch(struct evaluator *e, void (*scored)(void *user), void *user)
{
    e->scored = scored;
    e->user = user;
}

/* ---- one pass over the samples ---- */

static enum pd_err read_output(void *user, const char *name, double *to, size_t count, struct pd_why *why)
{
    struct evaluator *e = user;

    return executable_read(&e->executable, name, to, count, why);
}

static enum pd_err sum_ranks(struct evaluator *e, struct task_score *sums, struct pd_why *why)
{
    struct ranks *ranks = e->session->ranks;
    enum pd_err err = ranks_sum(ranks, sums->sum, sums->count, why);

    if (err == PD_OK && sums->ranges)
        err = ranks_sum(ranks, sums->range_loss, sums->ranges, why);
    if (err == PD_OK && sums->ranges)
        err = ranks_sum(ranks, sums->range_count, sums->ranges, why);
    return err;
}

/* Lets all ranks know which pictures any of them could not decode, so that rank 0 reports them and the limit is that of
 * the run. */
static enum pd_err share_bad(const struct session *s, struct pd_why *why)
{
    const struct data_set *set = s->setup.set;
    const size_t size = s->ranks ? data_bad_size(set) : 0;
    double fresh = size ? (double)data_bad_fresh(set) : 0;
    void *found = NULL;
    enum pd_err err = size ? ranks_sum(s->ranks, &fresh, 1, why) : PD_OK;

    if (err != PD_OK || !(fresh > 0))
        return err;
    found = malloc(size);
    if (!found)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the pictures that cannot be decoded");
    for (int rank = 0; rank < s->setup.ranks && err == PD_OK; rank++) {
        if (rank == s->setup.rank)
            data_bad_save(set, found);
        err = ranks_share(s->ranks, found, size, rank, why);
        if (err == PD_OK && rank != s->setup.rank)
            data_bad_merge(set, found);
    }
    free(found);
    return err == PD_OK ? data_bad_check(set, why) : err;
}

enum pd_err evaluator_score(struct evaluator *e, const struct data_set *set, enum data_split part,
                            struct evaluator_numbers *ret, enum train_stop *ret_stop, struct pd_why *why)
{
    const struct session *s = e->session;
    const struct train_setup *setup = &s->setup;
    const struct task *task = setup->task;
    const struct task_outputs outputs = {.user = e, .read = read_output};
    struct task_score sums;
    const struct data_share share = {
        .whole = setup->eval_batch * setup->ranks, .parts = 1, .rank = setup->rank, .ranks = setup->ranks};
    int64_t left = (data_info(set)->count[part] + share.whole - 1) / share.whole;
    struct data_loader *l = NULL;
    const struct data_batch *b;
    enum train_stop stop = TRAIN_STOP_NONE;
    enum pd_err err = data_loader_start_share(set, part, &share, 0, 0, setup->loader_threads, &l, why);

    task->begin(&sums, setup->context);
    for (; err == PD_OK; left--) {
        err = session_stop_asked(s, &stop, why);
        if (err != PD_OK || stop != TRAIN_STOP_NONE || left <= 0)
            break;
        err = data_loader_next(l, &b, why);
        if (err == PD_OK)
            err = executable_feed_batch(&e->executable, b, 0, why);
        if (err == PD_OK)
            err = pk_exec_run(e->executable.exec, why);
        if (err == PD_OK)
            err = task->add(&sums, &outputs, why);
        if (err == PD_OK && e->scored)
            e->scored(e->user);
    }
    data_loader_free(l);
    if (err == PD_OK && stop == TRAIN_STOP_NONE)
        err = share_bad(s, why);
    reporter_bad(s->reporter, setup->set);
    if (err == PD_OK && stop == TRAIN_STOP_NONE)
        err = sum_ranks(e, &sums, why);
    if (err != PD_OK)
        return err;
    if (stop == TRAIN_STOP_NONE) {
        task->end(&sums, ret->number);
        if (task->ranges)
            task->end_at(&sums, ret->at);
    }
    *ret_stop = stop;
    return PD_OK;
}

static enum pd_err push_key(const struct evaluator *e, const char *key, double value, struct pd_why *why)
{
    if (!key)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the name of a metric");
    reporter_push(e->session->reporter, key, value);
    return PD_OK;
}

/* The numbers by position: a point for each range, named by its last position. */
static enum pd_err push_ranges(const struct evaluator *e, const char *key, const char *name, const double *at,
                               struct pd_why *why)
{
    int32_t last[TASK_RANGES_MAX];
    const size_t n = e->session->setup.task->ranges(e->session->setup.context, last);
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < n && err == PD_OK; i++)
        err =
            push_key(e, reporter_key(e->session->reporter, "%s%s%s%d", key, name, *name ? "/" : "", last[i]),
                     at[i], why);
    return err;
}

enum pd_err evaluator_push(const struct evaluator *e, const struct train_eval *set, enum data_scored scored,
                           const struct evaluator_numbers *numbers, bool averaged, struct pd_why *why)
{
    const struct task *task = e->session->setup.task;
    const struct task_number *n = task->numbers;
    const struct task_at *at = &task->at;
    enum pd_err err = PD_OK;

    for (size_t i = 0; n[i].key[0] && err == PD_OK; i++)
        err = push_key(e,
                       set ? reporter_key(e->session->reporter, "%s%s",
                                          averaged ? n[i].eval_averaged : n[i].eval, set->name)
                           : (averaged ? n[i].averaged : n[i].key)[scored],
                       numbers->number[i], why);
    if (err != PD_OK || !task->ranges)
        return err;
    if (set)
        return push_ranges(e, averaged ? at->eval_averaged : at->eval, set->name, numbers->at, why);
    return push_ranges(e, (averaged ? at->averaged : at->key)[scored], "", numbers->at, why);
}

/* ---- the evaluations of a run ---- */

void evaluator_set_state(struct evaluator *e, const struct train_state *from)
{
    e->due = from->eval_due;
    e->loss = from->loss_val;
    e->shown = from->metric_val;
    e->score = from->score;
    e->best_value = from->best_value;
    e->best_step = from->best_step;
    e->stop_best = from->stop_best;
    e->stop_waited = from->stop_waited;
}

void evaluator_get_state(const struct evaluator *e, struct train_state *to)
{
    to->eval_due = e->due;
    to->loss_val = e->loss;
    to->metric_val = e->shown;
    to->score = e->score;
    to->best_value = e->best_value;
    to->best_step = e->best_step;
    to->stop_best = e->stop_best;
    to->stop_waited = e->stop_waited;
}

void evaluator_forget(struct evaluator *e)
{
    e->score = (double)NAN;
}

/* Lets the evaluation read the averaged weights, or the weights themselves again. */
static enum pd_err look_at(struct evaluator *e, bool averaged, struct pd_why *why)
{
    const struct model *model = e->session->setup.model;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_param_count(model) && err == PD_OK; i++)
        err = pk_exec_bind(e->executable.exec, model_param(model, i)->name,
                           averaged ? e->averages[i] : model_store_data(e->store, i), why);
    return err;
}

/* Counts evaluations in a row without a better value (train.stop). A value that is no number is none. */
static void count_patience(struct evaluator *e, double value)
{
    double best = e->stop_best, gain = e->session->setup.stop.maximise ? value - best : best - value;

    if (isnan(best) ? !isnan(value) : gain > e->session->config->train.stop.min_change) {
        e->stop_best = value;
        e->stop_waited = 0;
    } else {
        e->stop_waited++;
    }
}

/* Adds the points, and writes the numbers of the weights as words. */
static enum pd_err push(const struct evaluator *e, const struct train_eval *set, enum data_scored scored,
                        const struct evaluator_numbers *found, const struct evaluator_numbers *average,
                        char text[200], struct pd_why *why)
{
    const struct task_number *named = e->session->setup.task->numbers;
    size_t len = 0;
    enum pd_err err = evaluator_push(e, set, scored, found, false, why);

    if (err == PD_OK && e->averages)
        err = evaluator_push(e, set, scored, average, true, why);
    text[0] = 0;
    for (size_t i = 0; named[i].key[0] && len < 200; i++) {
        char number[40] = "NaN"; /* as the API writes it, of either sign */

        if (!isnan(found->number[i]))
            snprintf(number, sizeof number, "%.4f", found->number[i]);
        len += (size_t)snprintf(text + len, 200 - len, " %s%s %s", set ? named[i].eval : named[i].key[scored],
                                set ? set->name : "", number);
    }
    return err;
}

/* What an evaluation of step `step` found: `average` is read where averages are kept. */
static enum pd_err record(struct evaluator *e, int64_t step, const struct evaluator_numbers *found,
                          const struct evaluator_numbers *average, struct pd_why *why)
{
    const struct train_setup *setup = &e->session->setup;
    const struct evaluator_numbers *judged = setup->judge_averages ? average : found;
    char text[200];
    bool was_best;
    enum pd_err err = push(e, NULL, setup->scored, found, average, text, why);

    if (err != PD_OK)
        return err;
    e->loss = found->number[EVALUATOR_LOSS];
    e->shown = found->number[EVALUATOR_SHOWN];
    /* Accuracy is a number even of outputs that are none: only a finite loss has a score. */
    e->score = isfinite(judged->number[EVALUATOR_LOSS]) && isfinite(judged->number[setup->best_number])
                   ? judged->number[setup->best_number]
                   : (double)NAN;
    was_best = train_better(setup, e->score, e->best_value);
    if (was_best) {
        e->best_value = e->score;
        e->best_step = step;
    }
    count_patience(e, (setup->stop.averaged ? average : found)->number[setup->stop.number]);
    reporter_log(e->session->reporter, "step %lld%s%s", (long long)step, text, was_best ? " best" : "");
    return PD_OK;
}

/* A pass with the averages, where they are kept, then one with the weights, whose matrices are in the graph's outputs
 * afterwards. */
static enum pd_err score(struct evaluator *e, const struct data_set *set, enum data_split part,
                         struct evaluator_numbers *found, struct evaluator_numbers *average,
                         enum train_stop *ret_stop, struct pd_why *why)
{
    enum pd_err err = PD_OK, back;

    *ret_stop = TRAIN_STOP_NONE;
    if (e->averages) {
        err = look_at(e, true, why);
        if (err == PD_OK)
            err = evaluator_score(e, set, part, average, ret_stop, why);
        back = look_at(e, false, why);
        err = err == PD_OK ? back : err;
    }
    return err == PD_OK && *ret_stop == TRAIN_STOP_NONE ? evaluator_score(e, set, part, found, ret_stop, why)
                                                        : err;
}

enum pd_err evaluator_run(struct evaluator *e, int64_t step, enum train_stop *ret_stop, struct pd_why *why)
{
    struct evaluator_numbers found, average = {.number = {0}};
    enum train_stop stop = TRAIN_STOP_NONE;
    enum pd_err err;

    e->due = true;
    err = score(e, e->session->setup.set, DATA_VAL, &found, &average, &stop, why);
    if (err != PD_OK)
        return err;
    *ret_stop = stop;
    if (stop != TRAIN_STOP_NONE)
        return PD_OK;
    err = record(e, step, &found, &average, why);
    if (err == PD_OK && fields_due(e->session, step, evaluator_waited(e)))
        err = fields_send(e->session, &e->executable, why);
    e->due = err != PD_OK;
    return err;
}

enum pd_err evaluator_test(struct evaluator *e, const struct train_eval *set, int64_t step,
                           enum train_stop *ret_stop, struct pd_why *why)
{
    struct reporter *reporter = e->session->reporter;
    const struct data_set *data = set ? set->set : e->session->setup.set;
    const enum data_split part = set ? DATA_VAL : DATA_TEST; /* of a set that is only scored */
    struct evaluator_numbers found, average = {.number = {0}};
    char text[200], line[300], fields[200];
    enum pd_err err = score(e, data, part, &found, &average, ret_stop, why);

    if (err != PD_OK || *ret_stop != TRAIN_STOP_NONE)
        return err;
    reporter_set_step(reporter, step);
    err = push(e, set, DATA_SCORED_TEST, &found, &average, text, why);
    if (err != PD_OK)
        return err;
    snprintf(line, sizeof line, "%s%s, scored once with the checkpoint of step %lld:%s",
             set ? "the zero-shot text " : "the test part", set ? set->name : "", (long long)step, text);
    snprintf(fields, sizeof fields, "step=%lld samples=%lld%s%s%s%s", (long long)step,
             (long long)data_info(data)->count[part], set ? " set=" : "", set ? set->name : "",
             set ? " data=" : "", set ? data_info(data)->digest : "");
    reporter_event(reporter, "tested", fields, line);
    reporter_log(reporter, "%s", line);
    return PD_OK;
}

bool evaluator_due(const struct evaluator *e)
{
    return e->due;
}

int64_t evaluator_best_step(const struct evaluator *e)
{
    return e->best_step;
}

bool evaluator_waited(const struct evaluator *e)
{
    const struct job_stop *stop = &e->session->config->train.stop;

    return stop->patience && e->stop_waited >= stop->patience;
}

bool evaluator_ends_early(struct evaluator *e, int64_t step)
{
    const struct session *s = e->session;
    char text[200], fields[300];

    if (!evaluator_waited(e))
        return false;
    snprintf(text, sizeof text,
             "%s was not better than %.6g in %lld evaluations: training ended at step %lld of %lld",
             s->setup.stop.metric, e->stop_best, (long long)e->stop_waited, (long long)step,
             (long long)s->setup.steps);
    snprintf(fields, sizeof fields, "step=%lld metric=%s best=%.9g", (long long)step, s->setup.stop.metric,
             e->stop_best);
    reporter_event(s->reporter, "early_stop", fields, text);
    reporter_log(s->reporter, "%s", text);
    return true;
}
