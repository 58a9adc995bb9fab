/* daemon/worker/train/run.c: the loop.
 *
 * Between two steps lies a boundary, and everything happens there in one order: points of the step,
 * evaluation, probe, checkpoint, stop. A checkpoint holds the state at a boundary, so a run that goes on from
 * it meets the same steps, evaluations and probes as one that never stopped. */
#include "daemon/worker/train/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/graph/roofline.h"

#define POINTS_FLUSH 900 /* leaves room for one boundary's smaller groups */
#define FLUSH_US 500000  /* points are at most this old when they leave */

const char *train_result_name(enum train_result result)
{
    static const char *const names[] = {"done", "diverged", "stopped", "cancelled", "failed"};

    return result <= TRAIN_FAILED ? names[result] : "unknown";
}

/* Adds up the parts of a step that has several. A stop may be asked for between two: *ret_whole is false
 * then, what was added up stays, and the step can be gone on with. */
static enum pd_err add_parts(struct run *r, bool *ret_whole, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    *ret_whole = false;
    for (; r->part_done < r->parts && err == PD_OK; r->part_done++) {
        if (r->part_done > 0 && r->setup.ranks == 1 && r->host->stop(r->host->user) != TRAIN_STOP_NONE)
            return PD_OK;
        err = train_feed_batch(r, &r->part, r->batch, r->part_done, why);
        if (err == PD_OK)
            err = train_feed_number(r, &r->part, "first", r->part_done == 0, why);
        if (err == PD_OK)
            err = train_feed_rng(r, &r->part, (uint64_t)r->config->train.seed,
                                 (uint32_t)(r->state.step * r->parts + r->part_done), why);
        if (err == PD_OK)
            err = pk_exec_run(r->part.exec, why);
    }
    *ret_whole = err == PD_OK;
    return err;
}

/* Loss, gradient and update of the batch at hand. */
static enum pd_err evaluate(void *user, const double hyper[4], struct pd_why *why)
{
    struct run *r = user;
    enum pd_err err = train_feed_hyper(r, hyper, why);

    return err == PD_OK ? pk_exec_run(r->train.exec, why) : err;
}

/* One step of the optimiser; *ret_done is false if a stop was asked for in the middle. */
static enum pd_err step(struct run *r, bool *ret_done, struct pd_why *why)
{
    int64_t began = pd_clock_mono_us();
    double lr = train_schedule_lr(&r->setup.schedule, r->state.step);
    double report[5]; /* loss, count, correct, norm of the gradient, applied */
    const struct optim_closure closure = {.user = r, .evaluate = evaluate};
    bool whole = true;
    enum pd_err err = PD_OK;

    *ret_done = false;
    if (!r->batch) {
        err = train_next_batch(r, why);
        r->part_done = 0;
    }
    if (err == PD_OK && r->parts > 1) {
        err = add_parts(r, &whole, why);
    } else if (err == PD_OK) {
        err = train_feed_batch(r, &r->train, r->batch, 0, why);
        if (err == PD_OK)
            err = train_feed_rng(r, &r->train, (uint64_t)r->config->train.seed, (uint32_t)r->state.step, why);
    }
    r->busy_us += (double)(pd_clock_mono_us() - began);
    if (err != PD_OK || !whole)
        return err;
    began = pd_clock_mono_us();
    r->batch = NULL;
    err = r->setup.optim->step(&closure, &r->setup.options, r->state.applied, lr, why);
    train_send_next(r);
    if (err == PD_OK)
        err = train_number(r, &r->train, "report", report, 5, why);
    if (err != PD_OK)
        return err;
    *ret_done = true;
    r->state.step++;
    r->state.loss_train = report[0];
    r->state.score = (double)NAN;
    train_push(r, "loss/train", report[0]);
    for (const struct task_step *s = r->setup.task->steps; s->key; s++)
        train_push(r, s->key, s->of(report));
    train_push(r, "lr", lr);
    train_push(r, "grad/norm", report[3]);
    if (report[4] != 0) {
        r->state.applied++;
        r->state.consecutive = 0;
    } else {
        r->state.nonfinite++;
        r->state.consecutive++;
        train_push(r, "nonfinite", (double)r->state.nonfinite);
        if (r->state.consecutive == 1) {
            char fields[64];

            snprintf(fields, sizeof fields, "step=%lld", (long long)r->state.step);
            train_say(r, "nonfinite", fields, "loss or gradient is not finite: the step was skipped");
        }
    }
    r->busy_us += (double)(pd_clock_mono_us() - began);
    r->busy_steps++;
    train_say_bad(r);
    return PD_OK;
}

static bool wants_checkpoint(struct run *r)
{
    const struct job_train *t = &r->config->train;

    if (r->saved_step == r->state.step)
        return false;
    if (r->host->checkpoint_now && r->host->checkpoint_now(r->host->user))
        return true;
    if (t->checkpoint_every_steps > 0)
        return r->state.step > 0 && r->state.step % t->checkpoint_every_steps == 0;
    return t->checkpoint_every_s > 0 &&
           (double)(pd_clock_mono_us() - r->saved_us) >= t->checkpoint_every_s * 1e6;
}

static enum pd_err checkpoint_due(struct run *r, bool *ret, struct pd_why *why)
{
    int64_t due = r->setup.rank == 0 && wants_checkpoint(r);
    enum pd_err err = train_ranks_agree(r, &due, why);

    *ret = due != 0;
    return err;
}

/* The boundary after a step (or at the start): measures, saves. */
static enum pd_err boundary(struct run *r, bool resumed, struct pd_why *why)
{
    int64_t at = r->state.step, every = r->config->diagnostics.every;
    int64_t best_before = r->state.best_step;
    bool abandoned = false, due = false;
    enum pd_err err = PD_OK;

    if (at > 0 && (resumed ? r->state.eval_due : (at % r->setup.eval_every == 0 || at == r->setup.steps))) {
        r->state.eval_due = true;
        err = train_evaluate(r, &abandoned, why);
        if (err != PD_OK || abandoned)
            return err; /* still due: a checkpoint says so */
        r->state.eval_due = false;
        if (resumed)
            r->saved_step = -1; /* the file still says that the evaluation is due */
    } else if (resumed) {
        return PD_OK; /* all of this boundary was done before it was saved */
    }
    if (every > 0 && at % every == 0 && r->setup.rank == 0)
        err = train_probe(r, why);
    if (err == PD_OK)
        err = checkpoint_due(r, &due, why);
    if (err == PD_OK && (due || (r->state.best_step != best_before && r->config->train.keep_best > 0)))
        err = train_try_save(r, why);
    return err;
}

/* Whether as many evaluations in a row as train.stop.patience brought nothing better. */
static bool ends_early(struct run *r)
{
    const struct job_stop *stop = &r->config->train.stop;
    char text[200], fields[300];

    if (!stop->patience || r->state.stop_waited < stop->patience)
        return false;
    snprintf(text, sizeof text,
             "%s was not better than %.6g in %lld evaluations: training ended at step %lld of %lld",
             r->setup.stop.metric, r->state.stop_best, (long long)r->state.stop_waited,
             (long long)r->state.step, (long long)r->setup.steps);
    snprintf(fields, sizeof fields, "step=%lld metric=%s best=%.9g", (long long)r->state.step,
             r->setup.stop.metric, r->state.stop_best);
    train_say(r, "early_stop", fields, text);
    train_note(r, "%s", text);
    return true;
}

static enum pd_err loop(struct run *r, struct pd_why *why)
{
    int64_t limit = r->config->train.nonfinite_limit;
    bool resumed = r->saved_step >= 0, done;
    enum pd_err err = boundary(r, resumed, why);

    while (err == PD_OK) {
        enum train_stop stop;

        err = train_stop_asked(r, &stop, why);
        if (err != PD_OK)
            break;
        if (r->cancelled)
            stop = TRAIN_STOP_CANCEL;
        if (stop == TRAIN_STOP_CANCEL) {
            r->out->result = TRAIN_CANCELLED;
            return PD_OK;
        }
        if (stop == TRAIN_STOP_CHECKPOINT) {
            if (r->saved_step != r->state.step)
                err = train_save(r, why);
            if (err == PD_OK)
                r->out->result = TRAIN_STOPPED;
            return err;
        }
        if (r->state.eval_due) { /* the request to stop was withdrawn */
            err = boundary(r, true, why);
            continue;
        }
        if (r->state.consecutive >= limit) {
            r->out->result = TRAIN_DIVERGED;
            return PD_OK;
        }
        if (r->state.step >= r->setup.steps || ends_early(r))
            break;
        err = step(r, &done, why);
        if (err == PD_OK && done)
            err = boundary(r, false, why);
        if (r->point_count >= POINTS_FLUSH || pd_clock_mono_us() - r->flushed_us >= FLUSH_US)
            train_flush(r);
    }
    if (err != PD_OK)
        return err;
    if (r->saved_step != r->state.step)
        err = train_save(r, why);
    if (err == PD_OK) {
        train_flush(r);
        train_prune(r, r->config->train.keep_latest > 0 ? r->config->train.keep_latest : 1, true);
        r->out->result = TRAIN_DONE;
    }
    return err;
}

static enum pd_err find_averages(struct run *r, struct pd_why *why)
{
    size_t count = model_param_count(r->setup.model);

    if (!(r->setup.options.ema > 0))
        return PD_OK;
    r->averages = calloc(count, sizeof *r->averages);
    if (!r->averages)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for averaged weights");
    for (size_t i = 0; i < count; i++) {
        char name[80];

        snprintf(name, sizeof name, "ema/%s", model_param(r->setup.model, i)->name);
        r->averages[i] = train_stage_memory(&r->train, name);
        if (!r->averages[i])
            return pd_fail(why, PD_ERR_INTERNAL, "no average of '%s'", name);
    }
    return PD_OK;
}

/* The working copies of a mixed plan begin as the parameters do; from then on the updates write both. */
static enum pd_err round_copies(struct run *r, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < model_param_count(r->setup.model) && err == PD_OK; i++) {
        char name[80];
        void *copy;

        model_copy_name(r->setup.model, i, name, sizeof name);
        copy = train_stage_memory(&r->train, name);
        if (copy)
            err = model_store_round(r->store, i, copy, why);
    }
    return err;
}

/* What this rank multiplies in a step: every part of it, and the update. */
static void count_step(struct run *r)
{
    const struct pk_peaks any = {1, 1};
    struct pk_roofline line;

    memset(&line, 0, sizeof line);
    pk_roofline_add(&line, r->train.exec, &any, 1);
    if (r->parts > 1)
        pk_roofline_add(&line, r->part.exec, &any, (double)r->parts);
    r->step_flop = line.total.flop;
}

static void say_line(void *user, int level, const char *line)
{
    (void)level;
    train_note(user, "%s", line);
}

static int threads_of(const struct run *r)
{
    int threads = r->dirs->threads > 0 ? r->dirs->threads : (int)r->config->resources.threads;

    return threads > 0 ? threads : 1;
}

enum pd_err train_open_backend(struct run *r, struct pk_backend_info *ret_device, struct pd_why *why)
{
    enum pd_err err = model_tuned_new(r->dirs->cache, r->host->tuned, say_line, r, &r->tuned, why);

    if (err != PD_OK)
        return err;
    model_tuned_lend(r->tuned, &r->lent);
    err = r->api->open(&r->lent, 0, threads_of(r), &r->backend, why);
    if (err == PD_OK)
        err = r->api->info(r->backend, ret_device, why);
    if (err == PD_OK)
        model_tuned_meet(r->tuned, ret_device);
    return err;
}

enum pd_err train_set_math(struct run *r, struct pd_why *why)
{
    return r->api->set_math(
        r->backend, r->config->train.precision == JOB_PRECISION_TF32 ? PK_MATH_TF32 : PK_MATH_F32, why);
}

static enum pd_err open_run(struct run *r, struct pd_why *why)
{
    struct pk_plan_report report;
    struct pk_backend_info device;
    double arena = 0;
    struct data_share share;
    enum pd_err err = train_setup_init(&r->setup, r->config, r->dirs->roots, r->dirs->root_count,
                                       r->dirs->cache, r->dirs->ranks.rank, false, why);

    r->parts = r->setup.parts;
    r->out->lasting = pd_err_lasting(err);
    if (err == PD_OK)
        err = train_open_backend(r, &device, why);
    if (err == PD_OK) {
        err = model_peak_measure(r->api, r->backend, &r->lent, &r->peak, why);
        if (err == PD_ERR_NOMEM) { /* whoever has all the memory now may leave; the run itself will tell */
            train_note(r, "the matmul peak was not measured: the device's memory is full");
            err = PD_OK;
        }
    }
    if (err == PD_OK)
        err = train_set_math(r, why);
    if (err == PD_OK)
        err = train_ranks_open(r, why);
    if (err == PD_OK)
        err = model_store_new(r->setup.model, r->api, r->backend, &r->store, why);
    if (err == PD_OK)
        err = r->parts > 1
                  ? model_graph_apply(r->setup.model, &r->setup.options, &r->train.graph, why)
                  : model_graph_train(r->setup.model, &r->setup.options, false, &r->train.graph, why);
    if (err == PD_OK)
        err = train_stage_init(r, &r->train, NULL, why);
    if (err == PD_OK && r->parts > 1) {
        err = model_graph_part(r->setup.model, &r->setup.options, &r->part.graph, why);
        if (err == PD_OK)
            err = train_stage_init(r, &r->part, &r->train, why);
    }
    if (err == PD_OK)
        err = model_graph_eval(r->setup.model, r->setup.task->loss, r->setup.eval_batch, r->setup.context,
                               &r->eval.graph, why);
    if (err == PD_OK)
        err = train_stage_init(r, &r->eval, NULL, why);
    if (err == PD_OK && r->config->diagnostics.every > 0 && r->setup.rank == 0) {
        err = model_graph_probe(r->setup.model, r->setup.probe_batch, r->setup.context, &r->probe.graph, why);
        if (err == PD_OK)
            err = train_stage_init(r, &r->probe, NULL, why);
        if (err == PD_OK)
            err = train_probe_prepare(r, why);
    }
    if (err == PD_OK)
        err = find_averages(r, why);
    if (err == PD_OK)
        err = train_keep_prepare(r, why);
    if (err == PD_OK)
        err = r->setup.rank == 0 ? train_load(r, why) : PD_OK;
    if (err == PD_OK)
        err = train_ranks_start(r, why);
    if (err == PD_OK)
        err = round_copies(r, why);
    if (err != PD_OK)
        return err;
    if (r->setup.rank == 0)
        train_forget_later(r);
    pk_exec_report(r->parts > 1 ? r->part.exec : r->train.exec, &report);
    arena = (double)report.arena_bytes;
    train_note(
        r,
        "%lld parameters, %lld steps of %d, %lld training and %lld validation samples, arena %.1f MiB, %d "
        "threads",
        (long long)model_param_elements(r->setup.model), (long long)r->setup.steps, r->setup.batch,
        (long long)r->setup.info->count[DATA_TRAIN], (long long)r->setup.info->count[DATA_VAL],
        arena / 1048576, threads_of(r));
    train_say_warnings(r);
    train_push(r, "mem/arena", arena);
    count_step(r);
    if (r->peak.flops > 0) {
        train_note(r, "%s: %.4g TFLOP/s in products of %lld in bf16%s; a step has %.4g TFLOP", device.name,
                   r->peak.flops * 1e-12, (long long)r->peak.n,
                   r->peak.recalled ? ", as measured before" : "", r->step_flop * 1e-12);
        train_push(r, "sys/peak_flops", r->peak.flops);
    }
    train_push(r, "steps_per_epoch", (double)r->setup.steps_per_epoch);
    share = (struct data_share){
        .whole = r->setup.batch, .parts = (int32_t)r->parts, .rank = r->setup.rank, .ranks = r->setup.ranks};
    err = train_slots_open(r, why);
    if (err != PD_OK)
        return err;
    return data_loader_start_share(r->setup.set, DATA_TRAIN, &share, (uint64_t)r->config->train.seed,
                                   r->state.step, r->setup.loader_threads, &r->loader, why);
}

/* What was measured, where something is: a run that measures again what others have measured is slow to start
 * for no reason. */
static void say_choices(struct run *r)
{
    size_t known = 0, fresh = 0;

    if (r->tuned)
        model_tuned_count(r->tuned, &known, &fresh);
    if (known || fresh)
        train_note(r, "measured choices: %zu known before, %zu new", known, fresh);
}

void train_close(struct run *r, const char *reason)
{
    data_loader_free(r->loader);
    train_ranks_leave(r, reason); /* before anything that waits for a device on which a sum may be stuck */
    train_slots_close(r);
    data_st_free(r->loaded);
    train_stage_done(r, &r->probe);
    train_stage_done(r, &r->eval);
    train_stage_done(r, &r->part);
    train_stage_done(r, &r->train);
    train_ranks_close(r); /* after the recorded steps that hold its calls */
    model_store_free(r->store);
    if (r->backend)
        r->api->close(r->backend);
    say_choices(r);
    model_tuned_free(r->tuned);
    train_setup_done(&r->setup);
    free(r->tensors);
    free(r->names);
    free(r->meta_text);
    free(r->class_text);
    pd_buf_done(&r->tokenizer);
    free(r->keys);
    free(r->numbers);
    free(r->averages);
}

static void summarise(struct run *r)
{
    struct train_outcome *o = r->out;
    size_t best = r->kept_count;

    o->step = r->state.step;
    o->total = r->setup.steps;
    o->nonfinite = r->state.nonfinite;
    o->loss_train = r->state.loss_train;
    o->loss_val = r->state.loss_val;
    o->metric_val = r->state.metric_val;
    snprintf(o->metric, sizeof o->metric, "%s",
             r->setup.task->numbers[TRAIN_NUMBER_SHOWN].key[r->setup.scored]);
    snprintf(o->best_metric, sizeof o->best_metric, "%s", r->setup.best_metric);
    o->best_value = r->state.best_value;
    o->best_step = r->state.best_step;
    for (size_t i = 0; i < r->kept_count; i++)
        if (!isnan(r->kept[i].score) &&
            (best == r->kept_count || train_better(r, r->kept[i].score, r->kept[best].score)))
            best = i;
    if (best < r->kept_count)
        train_checkpoint_path(r, r->kept[best].step, o->best_path, sizeof o->best_path);
    if (r->kept_count)
        train_checkpoint_path(r, r->kept[r->kept_count - 1].step, o->latest_path, sizeof o->latest_path);
}

static enum train_stop never(void *user)
{
    (void)user;
    return TRAIN_STOP_NONE;
}

void train_outcome_init(struct train_outcome *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->result = TRAIN_FAILED;
    ret->best_step = -1;
    ret->loss_train = ret->loss_val = ret->metric_val = ret->best_value = (double)NAN;
}

enum pd_err train_run_on(struct job_config *config, const struct train_dirs *dirs,
                         const struct train_host *host, const struct pk_backend_api *api,
                         struct train_outcome *ret, struct pd_why *why)
{
    static const struct train_state fresh = {.best_step = -1, .stop_best = (double)NAN};
    struct train_host own = *host;
    struct run *r = calloc(1, sizeof *r);
    int64_t began = pd_clock_mono_us();
    enum pd_err err;

    train_outcome_init(ret);
    if (!r)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a run");
    if (!own.stop)
        own.stop = never;
    if (dirs->ranks.rank > 0) { /* one speaks for all */
        own.metrics = NULL;
        own.event = NULL;
        own.progress = NULL;
        own.checkpoint_written = NULL;
        own.log = NULL;
    }
    r->config = config;
    r->dirs = dirs;
    r->host = &own;
    r->api = api;
    r->out = ret;
    r->state = fresh;
    r->state.loss_train = r->state.loss_val = r->state.metric_val = (double)NAN;
    r->state.best_value = r->state.score = r->state.stop_best = (double)NAN;
    r->saved_step = -1;
    r->flushed_us = r->logged_us = r->saved_us = began;
    err = open_run(r, why);
    if (err == PD_OK) {
        err = loop(r, why);
        r->out->lasting = err == PD_ERR_CORRUPT && data_bad_count(r->setup.set) > DATA_BAD_MIN;
        train_flush(r);
        summarise(r);
    }
    train_close(r, err == PD_OK ? NULL : why ? why->text : pd_err_name(err));
    free(r);
    ret->seconds = (double)(pd_clock_mono_us() - began) * 1e-6;
    return err;
}

enum pd_err train_run(struct job_config *config, const struct train_dirs *dirs, const struct train_host *host,
                      struct train_outcome *ret, struct pd_why *why)
{
    const struct pk_backend_api *api;
    enum pd_err err = train_backend(config, false, &api, why);

    if (err == PD_OK)
        return train_run_on(config, dirs, host, api, ret, why);
    train_outcome_init(ret);
    return err;
}
