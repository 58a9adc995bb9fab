/* daemon/worker/train/run.c: the loop, and the parts of a run that it puts together.
 *
 *     session     the document, its data and network, the back end, the other ranks; all parts borrow it
 *     trainer     parameters and steps
 *     evaluator   what is measured of the samples that are scored; reads the trainer's parameters
 *     probe       statistics of attention; likewise
 *     maps        its matrices; likewise
 *     gradients   distributions of a gradient; likewise
 *     checkpoints what is saved and gone on from; reads and sets the trainer's tensors
 *     reporter    points, events and lines of the log, from all of them to the host
 *
 * Between two steps lies a boundary, and everything happens there in one order: points of the step,
 * evaluation, probe, maps, gradients, checkpoint, stop. A checkpoint holds the state at a boundary, so a run that goes on from
 * it meets the same steps, evaluations and probes as one that never stopped. Where a boundary only has points, the step
 * after it may already run on the device (trainer_ahead); a request to stop or to save is then met one step later. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/train/checkpoints.h"
#include "daemon/worker/train/evaluator.h"
#include "daemon/worker/train/gradients.h"
#include "daemon/worker/train/maps.h"
#include "daemon/worker/train/probe.h"
#include "daemon/worker/train/session.h"
#include "daemon/worker/train/trainer.h"
#include "kernels/base/clock.h"

struct run {
    struct session session;
    struct trainer *trainer;
    struct evaluator *evaluator;
    struct probe *probe;         /* NULL: no statistics are taken here */
    struct maps *maps;           /* NULL: no matrices are */
    struct gradients *gradients; /* NULL: no distributions are */
    struct checkpoints *checkpoints;
    bool cancelled; /* asked for within an evaluation */
    bool save_due;  /* a checkpoint was asked for while a step was in flight */
};

const char *train_result_name(enum train_result result)
{
    static const char *const names[] = {"done", "diverged", "stopped", "cancelled", "failed"};

    return result <= TRAIN_FAILED ? names[result] : "unknown";
}

void train_outcome_init(struct train_outcome *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->result = TRAIN_FAILED;
    ret->best_step = -1;
    ret->loss_train = ret->loss_val = ret->metric_val = ret->best_value = (double)NAN;
}

/* ---- the loop ---- */

static struct train_state state_of(const struct run *r)
{
    struct train_state state = {.step = 0};

    trainer_get_state(r->trainer, &state);
    evaluator_get_state(r->evaluator, &state);
    return state;
}

static enum pd_err save(struct run *r, struct pd_why *why)
{
    const struct train_state state = state_of(r);

    return checkpoints_saved(r->checkpoints) == state.step ? PD_OK
                                                           : checkpoints_save(r->checkpoints, &state, why);
}

static bool evaluates(const struct run *r, int64_t at)
{
    const struct train_setup *setup = &r->session.setup;

    return at % setup->eval_every == 0 || at == setup->steps;
}

static bool takes_maps(const struct run *r, int64_t at)
{
    const struct train_setup *setup = &r->session.setup;

    return r->maps && (at % setup->maps_every == 0 || at == setup->steps || evaluator_waited(r->evaluator));
}

static bool takes_probe(const struct run *r, int64_t at)
{
    return r->probe && at % r->session.setup.probe_every == 0;
}

/* Whether the boundary after step `at` leaves tensors alone, as far as is known before: the step after it may then be in
 * flight while it is met. */
static bool may_be_ahead(const struct run *r, int64_t at)
{
    return !r->save_due && !evaluates(r, at) && !takes_maps(r, at) && !takes_probe(r, at) &&
           !(r->gradients && gradients_due(r->gradients, at)) && !checkpoints_planned(r->checkpoints, at);
}

/* The boundary after a step (or at the start): measures, saves. `resumed`: it was met before, and what is
 * left of it is the evaluation, if that is still due. */
static enum pd_err boundary(struct run *r, bool resumed, struct pd_why *why)
{
    const int64_t at = trainer_at(r->trainer), best_before = evaluator_best_step(r->evaluator);
    enum train_stop stop = TRAIN_STOP_NONE;
    bool due = false;
    enum pd_err err = PD_OK;

    if (!resumed)
        evaluator_forget(r->evaluator);
    if (at > 0 && (resumed ? evaluator_due(r->evaluator) : evaluates(r, at))) {
        err = evaluator_run(r->evaluator, at, &stop, why);
        r->cancelled = stop == TRAIN_STOP_CANCEL;
        if (err != PD_OK || stop != TRAIN_STOP_NONE)
            return err; /* still due: a checkpoint says so */
        if (resumed)
            checkpoints_outdate(r->checkpoints); /* the file still says that the evaluation is due */
    } else if (resumed) {
        return PD_OK; /* all of this boundary was done before it was saved */
    }
    if (takes_probe(r, at))
        err = probe_run(r->probe, why);
    if (err == PD_OK && takes_maps(r, at))
        err = maps_run(r->maps, why);
    if (err == PD_OK && r->gradients && gradients_due(r->gradients, at))
        err = gradients_run(r->gradients, at, why);
    if (err == PD_OK)
        err = checkpoints_due(r->checkpoints, at, &due, why);
    due = due || (evaluator_best_step(r->evaluator) != best_before && r->session.config->train.keep_best > 0);
    r->save_due = r->save_due || due;
    if (err == PD_OK && r->save_due && !trainer_ahead(r->trainer)) {
        const struct train_state state = state_of(r);

        r->save_due = false;
        err = checkpoints_try_save(r->checkpoints, &state, why);
    }
    return err;
}

/* Scores the test part, if there is one, and the sets of data.eval with the checkpoint that validation selected. The last
 * step is saved: if this is stopped, the next attempt begins here again. */
static enum pd_err test(struct run *r, enum train_result *ret_result, struct pd_why *why)
{
    const struct train_setup *setup = &r->session.setup;
    const bool own = setup->info->count[DATA_TEST] > 0;
    enum train_stop stop = TRAIN_STOP_NONE;
    int64_t step = 0;
    enum pd_err err = PD_OK;

    if (own || setup->eval_count) {
        err = checkpoints_select(r->checkpoints, evaluator_best_step(r->evaluator), &step, why);
        if (err == PD_OK)
            err = trainer_copy(r->trainer, why);
    }
    if (err == PD_OK && own)
        err = evaluator_test(r->evaluator, NULL, step, &stop, why);
    for (size_t i = 0; err == PD_OK && stop == TRAIN_STOP_NONE && i < setup->eval_count; i++)
        err = evaluator_test(r->evaluator, &setup->eval[i], step, &stop, why);
    if (err == PD_OK)
        *ret_result = stop == TRAIN_STOP_CANCEL       ? TRAIN_CANCELLED
                      : stop == TRAIN_STOP_CHECKPOINT ? TRAIN_STOPPED
                                                      : TRAIN_DONE;
    return err;
}

/* Steps until the run ends; *ret_result is not written on failure. */
static enum pd_err loop(struct run *r, enum train_result *ret_result, struct pd_why *why)
{
    const struct train_setup *setup = &r->session.setup;
    enum pd_err err = boundary(r, checkpoints_saved(r->checkpoints) >= 0, why);
    bool done;

    while (err == PD_OK) {
        enum train_stop stop;

        err = session_stop_asked(&r->session, &stop, why);
        if (err != PD_OK)
            break;
        if (r->cancelled || stop == TRAIN_STOP_CANCEL) {
            *ret_result = TRAIN_CANCELLED;
            return PD_OK;
        }
        if (stop == TRAIN_STOP_CHECKPOINT && !trainer_ahead(r->trainer)) {
            err = save(r, why);
            if (err == PD_OK)
                *ret_result = TRAIN_STOPPED;
            return err;
        }
        if (evaluator_due(r->evaluator)) { /* the request to stop was withdrawn */
            err = boundary(r, true, why);
            continue;
        }
        if (trainer_diverged(r->trainer)) {
            *ret_result = TRAIN_DIVERGED;
            return PD_OK;
        }
        if (trainer_at(r->trainer) >= setup->steps ||
            evaluator_ends_early(r->evaluator, trainer_at(r->trainer)))
            break;
        err = trainer_step(r->trainer, stop == TRAIN_STOP_NONE && may_be_ahead(r, trainer_at(r->trainer) + 1),
                           &done, why);
        if (err == PD_OK && done)
            err = boundary(r, false, why);
        reporter_flush_due(r->session.reporter);
    }
    if (err == PD_OK)
        err = save(r, why);
    if (err == PD_OK)
        err = test(r, ret_result, why);
    if (err != PD_OK || *ret_result != TRAIN_DONE)
        return err;
    reporter_flush(r->session.reporter);
    checkpoints_finish(r->checkpoints);
    return PD_OK;
}

/* ---- opening and closing ---- */

/* What is reported once per start. */
static void announce(struct run *r)
{
    const struct session *s = &r->session;
    const struct train_setup *setup = &s->setup;
    char note[320];
    const double arena = (double)pk_arena_bytes(s->arena),
                 optimiser = (double)trainer_optimiser_bytes(r->trainer);

    reporter_log(
        s->reporter,
        "%lld parameters, %lld steps of %d, %lld training, %lld validation and %lld test samples, arena %.1f "
        "MiB, %d threads",
        (long long)model_param_elements(setup->model), (long long)setup->steps, setup->batch,
        (long long)setup->info->count[DATA_TRAIN], (long long)setup->info->count[DATA_VAL],
        (long long)setup->info->count[DATA_TEST], arena / 1048576, session_threads(s));
    reporter_compiled(s->reporter);
    reporter_inputs(s->reporter, setup->set);
    reporter_warnings(s->reporter, setup->set);
    for (size_t i = 0; i < setup->eval_count; i++)
        reporter_warnings(s->reporter, setup->eval[i].set);
    reporter_push(s->reporter, "mem/arena", arena);
    reporter_push(s->reporter, "mem/optimizer", optimiser);
    reporter_push(s->reporter, "mem/optimizer_per_parameter",
                  optimiser / (double)model_param_elements(setup->model));
    if (setup->keep_activations)
        reporter_log(s->reporter, "activations are stored: a step recomputes none of them");
    if (session_cpu_bf16(s) && train_bf16_note(s->config, s->backend, note, sizeof note))
        reporter_log(s->reporter, "%s", note);
    if (s->peak.flops > 0) {
        reporter_log(
            s->reporter, "%s: %.4g TFLOP/s in bf16 matrix products of size %lld%s; %s has %.4g TFLOP",
            s->device.name, s->peak.flops * 1e-12, (long long)s->peak.n,
            s->peak.recalled ? ", measured earlier" : "", setup->optim->searches ? "an evaluation" : "a step",
            trainer_step_flop(r->trainer) * 1e-12);
        reporter_push(s->reporter, "sys/peak_flops", s->peak.flops);
    }
    reporter_push(s->reporter, "steps_per_epoch", (double)setup->steps_per_epoch);
}

/* Parameters, states and everything that follows from the checkpoint that the run goes on from, if any. */
static enum pd_err begin(struct run *r, bool *ret_lasting, struct pd_why *why)
{
    struct train_state state = {.best_step = -1,
                                .loss_train = (double)NAN,
                                .loss_val = (double)NAN,
                                .metric_val = (double)NAN,
                                .best_value = (double)NAN,
                                .stop_best = (double)NAN,
                                .score = (double)NAN};
    enum pd_err err = checkpoints_begin(r->checkpoints, &state, ret_lasting, why);

    if (err == PD_OK)
        err = trainer_copy(r->trainer, why);
    if (err != PD_OK)
        return err;
    trainer_set_state(r->trainer, &state);
    evaluator_set_state(r->evaluator, &state);
    reporter_set_step(r->session.reporter, state.step);
    checkpoints_forget_later(r->checkpoints, state.step);
    return PD_OK;
}

static enum pd_err open_run(struct run *r, bool *ret_lasting, struct pd_why *why)
{
    const struct session *s = &r->session;
    enum pd_err err = session_open(&r->session, ret_lasting, why);

    if (err == PD_OK)
        err = trainer_open(s, &r->trainer, why);
    if (err == PD_OK)
        err = evaluator_open(s, trainer_store(r->trainer), trainer_averages(r->trainer), &r->evaluator, why);
    if (err == PD_OK)
        err = probe_open(s, trainer_store(r->trainer), &r->probe, why);
    if (err == PD_OK)
        err = maps_open(s, trainer_store(r->trainer), &r->maps, why);
    if (err == PD_OK)
        err = gradients_open(s, trainer_store(r->trainer), &r->gradients, why);
    if (err == PD_OK)
        err = checkpoints_open(s, r->trainer, &r->checkpoints, why);
    if (err == PD_OK)
        err = begin(r, ret_lasting, why);
    if (err != PD_OK)
        return err;
    announce(r);
    return trainer_start(r->trainer, why);
}

/* `reason`: why it failed, NULL if it did not. */
static void close_run(struct run *r, const char *reason)
{
    session_leave(&r->session, reason);
    checkpoints_close(r->checkpoints);
    gradients_close(r->gradients);
    maps_close(r->maps);
    probe_close(r->probe);
    evaluator_close(r->evaluator);
    trainer_close(r->trainer);
    session_close(&r->session);
}

static void summarise(const struct run *r, struct train_outcome *to)
{
    const struct train_setup *setup = &r->session.setup;
    const struct train_state state = state_of(r);

    to->step = state.step;
    to->total = setup->steps;
    to->nonfinite = state.nonfinite;
    to->loss_train = state.loss_train;
    to->loss_val = state.loss_val;
    to->metric_val = state.metric_val;
    snprintf(to->metric, sizeof to->metric, "%s", setup->task->numbers[EVALUATOR_SHOWN].key[setup->scored]);
    snprintf(to->best_metric, sizeof to->best_metric, "%s", setup->best_metric);
    to->best_value = state.best_value;
    to->best_step = state.best_step;
    checkpoints_summarise(r->checkpoints, to);
}

static enum train_stop never(void *user)
{
    (void)user;
    return TRAIN_STOP_NONE;
}

/* The callbacks of this rank: rank 0 reports for all. */
static struct train_host host_of(const struct train_host *host, int rank)
{
    struct train_host own = *host;

    if (!own.stop)
        own.stop = never;
    if (rank > 0) {
        own.metrics = NULL;
        own.event = NULL;
        own.blob = NULL;
        own.progress = NULL;
        own.phase = NULL;
        own.checkpoint_written = NULL;
        own.log = NULL;
    }
    return own;
}

enum pd_err train_run_on(struct job_config *config, const struct train_dirs *dirs,
                         const struct train_host *host, const struct pk_backend_api *api,
                         struct train_outcome *ret, struct pd_why *why)
{
    const struct train_host own = host_of(host, dirs->ranks.rank);
    struct run r = {
        .session = {
            .config = config, .dirs = dirs, .host = &own, .api = api, .began_us = pd_clock_mono_us()}};
    enum pd_err err;

    train_outcome_init(ret);
    err = open_run(&r, &ret->lasting, why);
    if (err == PD_OK) {
        err = loop(&r, &ret->result, why);
        ret->lasting = session_data_bad(&r.session, err);
        reporter_flush(r.session.reporter);
        summarise(&r, ret);
    }
    ret->gone = r.session.setup.teacher.gone;
    close_run(&r, err == PD_OK ? NULL : why ? why->text : pd_err_name(err));
    ret->seconds = (double)(pd_clock_mono_us() - r.session.began_us) * 1e-6;
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
