/* daemon/worker/train/trainer.c: see trainer.h. */
#include "daemon/worker/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/batches.h"
#include "daemon/worker/train/line.h"
#include "kernels/base/clock.h"
#include "kernels/graph/roofline.h"

struct trainer {
    const struct session *session;
    struct model_store *store;
    struct executable update; /* ends a step */
    struct executable part;   /* of a step, where there are several */
    double step_flop;         /* with a line: of an evaluation, of which a step has many */
    void **averages;          /* per parameter, or NULL where none are kept */
    struct batches *batches;
    struct line *line; /* of an optimiser that searches along lines; else NULL */
    bool begun;        /* the step to be enqueued has its batch */
    int64_t part_done; /* of that step: parts added up */
    /* Steps enqueued whose numbers were not read: at most two, and only while trainer_step runs; else at most one. */
    int64_t in_flight;
    double lr[2]; /* of step k at k % 2 */
    /* of a run's state (struct train_state) */
    int64_t step, applied, applied_before, nonfinite, consecutive;
    double loss;
};

/* ---- opening ---- */

static enum pd_err open_executables(struct trainer *t, struct pd_why *why)
{
    const struct session *s = t->session;
    const struct pk_peaks any = {1, 1};
    struct pk_roofline line;
    struct train_graph update, part;
    enum pd_err err = PD_OK;
    bool parts;

    if (!train_graph_find(&s->setup, TRAIN_GRAPH_UPDATE, &update))
        return pd_fail(why, PD_ERR_INTERNAL, "the run has no step");
    parts = train_graph_find(&s->setup, TRAIN_GRAPH_PART, &part);
    err = session_executable(s, &update, t->store, NULL, &t->update, why);
    if (err == PD_OK && parts)
        err = session_executable(s, &part, t->store, &t->update, &t->part, why);
    if (err == PD_OK && s->setup.optim->searches)
        err = line_open(s, t->store, &t->update, &t->line, why);
    if (err != PD_OK)
        return err;
    memset(&line, 0, sizeof line);
    pk_roofline_add(&line, t->update.exec, &any, (double)update.times);
    if (parts)
        pk_roofline_add(&line, t->part.exec, &any, (double)part.times);
    t->step_flop = line.total.flop;
    return PD_OK;
}

static enum pd_err find_averages(struct trainer *t, struct pd_why *why)
{
    const struct train_setup *setup = &t->session->setup;
    size_t count = model_param_count(setup->model);

    if (!(setup->options.ema > 0))
        return PD_OK;
    t->averages = calloc(count, sizeof *t->averages);
    if (!t->averages)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for averaged weights");
    for (size_t i = 0; i < count; i++) {
        char name[80];

        snprintf(name, sizeof name, "ema/%s", model_param(setup->model, i)->name);
        t->averages[i] = executable_memory(&t->update, name);
        if (!t->averages[i])
            return pd_fail(why, PD_ERR_INTERNAL, "'%s' has no average", name);
    }
    return PD_OK;
}

enum pd_err trainer_open(const struct session *s, struct trainer **ret, struct pd_why *why)
{
    struct trainer *t = calloc(1, sizeof *t);
    enum pd_err err;

    if (!t)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a trainer");
    t->session = s;
    t->loss = (double)NAN;
    err = model_store_new(s->setup.model, s->api, s->backend, &t->store, why);
    if (err == PD_OK)
        err = open_executables(t, why);
    if (err == PD_OK)
        err = find_averages(t, why);
    if (err == PD_OK)
        *ret = t;
    else
        trainer_close(t);
    return err;
}

struct trainer *trainer_close(struct trainer *t)
{
    if (!t)
        return NULL;
    batches_close(t->batches);
    line_close(t->line);
    executable_done(&t->part);
    executable_done(&t->update);
    model_store_free(t->store);
    free(t->averages);
    free(t);
    return NULL;
}

enum pd_err trainer_begin_averages(struct trainer *t, struct pd_why *why)
{
    const struct session *s = t->session;
    enum pk_dtype dtype = model_spec(s->setup.model)->dtype;
    enum pd_err err = PD_OK;

    for (size_t i = 0; t->averages && i < model_param_count(s->setup.model) && err == PD_OK; i++) {
        size_t bytes = (size_t)pk_shape_count(&model_param(s->setup.model, i)->shape) * pk_dtype_size(dtype);
        void *host = malloc(bytes);

        if (!host)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for averaged weights");
        err = s->api->download(s->backend, host, model_store_data(t->store, i), bytes, why);
        if (err == PD_OK)
            err = s->api->upload(s->backend, t->averages[i], host, bytes, why);
        free(host);
    }
    return err;
}

enum pd_err trainer_begin(struct trainer *t, struct pd_why *why)
{
    enum pd_err err = model_store_init(t->store, (uint64_t)t->session->config->train.seed, why);

    return err == PD_OK ? trainer_begin_averages(t, why) : err;
}

void trainer_set_state(struct trainer *t, const struct train_state *from)
{
    t->step = from->step;
    t->applied = from->applied;
    t->applied_before = from->applied_before;
    t->nonfinite = from->nonfinite;
    t->consecutive = from->consecutive;
    t->loss = from->loss_train;
}

void trainer_get_state(const struct trainer *t, struct train_state *to)
{
    to->step = t->step;
    to->applied = t->applied;
    to->applied_before = t->applied_before;
    to->nonfinite = t->nonfinite;
    to->consecutive = t->consecutive;
    to->loss_train = t->loss;
}

/* The working copies of a mixed plan begin as the parameters do; from then on the updates write both. */
enum pd_err trainer_copy(struct trainer *t, struct pd_why *why)
{
    const struct model *model = t->session->setup.model;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_param_count(model) && err == PD_OK; i++) {
        char name[80];
        void *copy;

        model_copy_name(model, i, name, sizeof name);
        copy = executable_memory(&t->update, name);
        if (copy)
            err = model_store_round(t->store, i, copy, why);
    }
    return err;
}

enum pd_err trainer_start(struct trainer *t, struct pd_why *why)
{
    const struct session *s = t->session;
    const struct train_setup *setup = &s->setup;
    enum pd_err err = batches_open(s, setup->parts > 1 ? &t->part : &t->update, t->step, &t->batches, why);

    if (err != PD_OK)
        return err;
    reporter_measure(s->reporter,
                     &(struct reporter_meter){.steps = setup->steps,
                                              .units = setup->batch * setup->task->units(setup->info),
                                              .throughput = setup->task->throughput,
                                              .peak_flops = s->peak.flops,
                                              .loader = batches_loader(t->batches),
                                              .comm_api = s->lent.comm_api,
                                              .comm = s->lent.comm});
    return PD_OK;
}

/* ---- a step ---- */

/* Adds up the parts of step `at`, which has several. A stop may be asked for between two: *ret_whole is false
 * then, what was added up stays, and the step can be gone on with. */
static enum pd_err add_parts(struct trainer *t, int64_t at, bool *ret_whole, struct pd_why *why)
{
    const struct session *s = t->session;
    const int64_t parts = s->setup.parts;
    enum pd_err err = PD_OK;

    *ret_whole = false;
    for (; t->part_done < parts && err == PD_OK; t->part_done++) {
        const double first = t->part_done == 0;

        if (t->part_done > 0 && s->setup.ranks == 1 && s->host->stop(s->host->user) != TRAIN_STOP_NONE)
            return PD_OK;
        err = batches_feed(t->batches, &t->part, t->part_done, why);
        if (err == PD_OK)
            err = executable_feed_numbers(&t->part, "first", &first, 1, why);
        if (err == PD_OK)
            err = executable_feed_rng(&t->part, (uint64_t)s->config->train.seed,
                                      (uint32_t)(at * parts + t->part_done), s->setup.rank, why);
        if (err == PD_OK)
            err = pk_exec_run(t->part.exec, why);
    }
    *ret_whole = err == PD_OK;
    return err;
}

/* The batch of step `at` to the inputs that read it. */
static enum pd_err feed(struct trainer *t, int64_t at, bool *ret_whole, struct pd_why *why)
{
    const struct session *s = t->session;
    enum pd_err err = PD_OK;

    *ret_whole = true;
    if (!t->begun) {
        err = batches_next(t->batches, why);
        t->begun = err == PD_OK;
        t->part_done = 0;
    }
    if (err == PD_OK && s->setup.parts > 1)
        return add_parts(t, at, ret_whole, why);
    if (err == PD_OK)
        err = batches_feed(t->batches, &t->update, 0, why);
    if (err == PD_OK)
        err = executable_feed_rng(&t->update, (uint64_t)s->config->train.seed, (uint32_t)at, s->setup.rank,
                                  why);
    return err;
}

/* The optimiser's numbers for step `at`, to the input that reads them. Where a step is in flight, one row for each
 * outcome of it; the device takes the one that fits. */
static enum pd_err feed_hyper(struct trainer *t, int64_t at, struct pd_why *why)
{
    const struct session *s = t->session;
    const int64_t applied = t->applied_before + t->applied;
    struct model_train_options now = s->setup.options;
    double hyper[2 * 4];

    if (now.cycled)
        now.beta1 = train_schedule_beta1(&s->setup.schedule, at);
    for (int row = 0; row <= now.ahead; row++)
        s->setup.optim->hyper(&now, applied + (row && t->in_flight), t->lr[at % 2], hyper + 4 * row);
    return executable_feed_numbers(&t->update, "hyper", hyper, now.ahead ? 8 : 4, why);
}

/* Counts a step and reports its numbers: the loss's `sums`, norm of the gradient, applied. */
static void finish(struct trainer *t, const double *report, size_t sums, double lr)
{
    struct reporter *reporter = t->session->reporter;

    t->step++;
    t->loss = report[0];
    reporter_set_step(reporter, t->step);
    reporter_push(reporter, "loss/train", report[0]);
    for (const struct task_step *s = t->session->setup.task->steps; s->key; s++)
        if (!(s->unmixed && t->session->setup.options.mix_group))
            reporter_push(reporter, s->key, s->of(report));
    reporter_push(reporter, "lr", lr);
    reporter_push(reporter, "grad/norm", report[sums]);
    if (report[sums + 1] != 0) {
        t->applied++;
        t->consecutive = 0;
        return;
    }
    t->nonfinite++;
    t->consecutive++;
    reporter_push(reporter, "nonfinite", (double)t->nonfinite);
    if (t->consecutive == 1) {
        char fields[64];

        snprintf(fields, sizeof fields, "step=%lld", (long long)t->step);
        reporter_event(reporter, "nonfinite", fields, "loss or gradient is not finite: the step was skipped");
    }
}

/* Reports once that the line search changes nothing any more: two steps later, when it is certain. */
static void stalled(struct trainer *t, const struct lbfgs_outcome *o)
{
    static const struct {
        const char *reason;
        bool rounding; /* may be the cause */
    } ends[] = {
        [LBFGS_END_MOVED] = {"its steps are lost in rounding", true},
        [LBFGS_END_GRADIENT] = {"no entry of the gradient exceeds 1e-7", false},
        [LBFGS_END_SLOPE] = {"the direction promises to lower the loss by less than 1e-9", true},
        [LBFGS_END_SEARCH] = {"it finds no lower point", true},
        [LBFGS_END_INFINITE] =
            {"no point that it tries has a finite loss; a lower train.optimizer.lr may help", false},
    };
    const bool wide = t->session->config->train.precision == JOB_PRECISION_FP64;
    char fields[64], text[256];

    if (o->same != 3)
        return;
    snprintf(fields, sizeof fields, "step=%lld", (long long)t->step - 1);
    snprintf(text, sizeof text, "the line search changes nothing from step %lld on: %s%s",
             (long long)t->step - 1, ends[o->end].reason,
             wide || !ends[o->end].rounding
                 ? ""
                 : " (in fp32 rounding hides small gains; train.precision fp64, on a CPU, resolves them)");
    reporter_event(t->session->reporter, "stalled", fields, text);
}

/* A step of an optimiser that searches along lines, with the batch at hand; report: as finish reads it. */
static enum pd_err search(struct trainer *t, double report[MODEL_REPORT_MAX], double *ret_flop,
                          struct pd_why *why)
{
    struct reporter *reporter = t->session->reporter;
    struct lbfgs_outcome outcome;
    enum pd_err err = line_step(t->line, t->step == 0, t->lr[t->step % 2], report, &outcome, why);

    if (err != PD_OK)
        return err;
    reporter_set_step(reporter, t->step + 1); /* as finish will */
    if (outcome.infinite) {
        t->nonfinite += outcome.infinite;
        reporter_push(reporter, "nonfinite", (double)t->nonfinite);
    }
    stalled(t, &outcome);
    reporter_push(reporter, "evaluations", outcome.evaluations);
    *ret_flop = outcome.evaluations * t->step_flop;
    return PD_OK;
}

/* The step after those in flight: its batch and numbers, and the graph. The next batch is transferred with it. *ret_whole as in
 * add_parts; a search along lines is enqueued by its own function. */
static enum pd_err enqueue(struct trainer *t, bool *ret_whole, struct pd_why *why)
{
    const struct train_setup *setup = &t->session->setup;
    const int64_t at = t->step + t->in_flight;
    enum pd_err err = feed(t, at, ret_whole, why);

    if (err != PD_OK || !*ret_whole)
        return err;
    t->begun = false;
    t->lr[at % 2] = train_schedule_lr(&setup->schedule, at);
    if (t->line)
        return PD_OK;
    err = feed_hyper(t, at, why);
    if (err == PD_OK)
        err = pk_exec_run(t->update.exec, why);
    if (err == PD_OK && setup->options.ahead && t->session->api->read_later)
        err = executable_read_later(&t->update, "report", (int)(at % 2),
                                    model_loss_sums(setup->task->loss) + 2, why);
    t->in_flight += err == PD_OK;
    if (at + 1 < setup->steps)
        batches_send_next(t->batches);
    return err;
}

/* The numbers of the oldest step in flight. */
static enum pd_err collect(struct trainer *t, double report[MODEL_REPORT_MAX], struct pd_why *why)
{
    const struct train_setup *setup = &t->session->setup;
    const size_t count = model_loss_sums(setup->task->loss) + 2;

    t->in_flight--;
    if (setup->options.ahead && t->session->api->read_wait)
        return executable_read_wait(&t->update, (int)(t->step % 2), report, count, why);
    return executable_read(&t->update, "report", report, count, why);
}

/* Whether the next step may be enqueued before the numbers of this one are read. If these could end the run, it may not. */
static bool may_go_ahead(const struct trainer *t)
{
    const struct session *s = t->session;

    return s->setup.options.ahead && s->api->read_later && t->step + 1 < s->setup.steps &&
           t->consecutive + 1 < s->config->train.nonfinite_limit;
}

enum pd_err trainer_step(struct trainer *t, bool ahead, bool *ret_done, struct pd_why *why)
{
    const struct session *s = t->session;
    const int64_t began = pd_clock_mono_us();
    double report[MODEL_REPORT_MAX], flop = t->step_flop;
    bool whole = true;
    enum pd_err err = t->in_flight ? PD_OK : enqueue(t, &whole, why), next = PD_OK;

    *ret_done = false;
    if (err != PD_OK || !whole) {
        reporter_busy(s->reporter, pd_clock_mono_us() - began);
        return err;
    }
    if (ahead && may_go_ahead(t))
        next = enqueue(t, &whole, why);
    if (t->line) {
        err = search(t, report, &flop, why);
        if (t->step + 1 < s->setup.steps)
            batches_send_next(t->batches);
    } else {
        err = collect(t, report, next == PD_OK ? why : NULL);
    }
    if (err != PD_OK)
        return err;
    *ret_done = true;
    finish(t, report, model_loss_sums(s->setup.task->loss), t->lr[t->step % 2]);
    reporter_step(s->reporter, pd_clock_mono_us() - began, flop, t->loss);
    reporter_bad(s->reporter, s->setup.set);
    return next;
}

bool trainer_ahead(const struct trainer *t)
{
    return t->in_flight > 0;
}

/* ---- what others read ---- */

void trainer_watch(struct trainer *t,
                   void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                   void *user)
{
    if (t->line)
        line_watch(t->line, seen, user);
}

int64_t trainer_at(const struct trainer *t)
{
    return t->step;
}

bool trainer_diverged(const struct trainer *t)
{
    return t->consecutive >= t->session->config->train.nonfinite_limit;
}

size_t trainer_optimiser_bytes(const struct trainer *t)
{
    struct pk_leaf leaf;
    void *memory;
    size_t sum = 0;

    for (size_t i = 0; executable_leaf(&t->update, i, &leaf, &memory); i++)
        if (memory && (leaf.category == PK_CAT_MOMENT1 || leaf.category == PK_CAT_MOMENT2))
            sum += leaf.bytes;
    return sum;
}

double trainer_step_flop(const struct trainer *t)
{
    return t->step_flop;
}

struct model_store *trainer_store(const struct trainer *t)
{
    return t->store;
}

void *const *trainer_averages(const struct trainer *t)
{
    return t->averages;
}

const struct executable *trainer_states(const struct trainer *t)
{
    return &t->update;
}
