/* Makes, starts and stops the modules below this folder, and passes on the functions of supervise.h. */
#include "daemon/polyd/supervise/supervise.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/attempts/attempts.h"
#include "daemon/polyd/supervise/clean.h"
#include "daemon/polyd/supervise/devices/devices.h"
#include "daemon/polyd/supervise/expand.h"
#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/plans/plans.h"
#include "daemon/polyd/supervise/serving/serving.h"
#include "daemon/polyd/supervise/workers/workers.h"

#define STOP_US 20000000 /* serving workers and open writes get so long at a stop */

struct sup {
    struct sup_options o; /* with defaults; what it points to is borrowed for the start */
    struct loop *loop;
    struct workers *workers;
    struct devices *devices;
    struct plans *plans;
    struct attempts *attempts;
    struct serving *serving;
    struct expander *expander;
    struct cleaner *cleaner;
};

/* ---- start and stop ------------------------------------------------------------------------- */

static struct sup *sup_free(struct sup *s)
{
    s->expander = expander_stop(s->expander);
    s->cleaner = cleaner_stop(s->cleaner);
    if (s->workers)
        workers_close(s->workers);
    s->serving = serving_free(s->serving);
    s->attempts = attempts_free(s->attempts);
    s->plans = plans_free(s->plans);
    s->devices = devices_free(s->devices);
    s->workers = workers_free(s->workers);
    s->loop = loop_free(s->loop);
    free(s);
    return NULL;
}

static void set_options(struct sup *s, const struct sup_options *o)
{
    s->o = *o;
    if (s->o.grace_us <= 0)
        s->o.grace_us = 30 * INT64_C(1000000);
    if (s->o.backoff_us <= 0)
        s->o.backoff_us = 1000000;
    if (s->o.hang_us <= 0)
        s->o.hang_us = WIRE_HANG_US;
    if (s->o.silence_us <= 0)
        s->o.silence_us = 600 * INT64_C(1000000);
    if (s->o.cache_bytes <= 0)
        s->o.cache_bytes = INT64_C(16) << 30;
    if (s->o.infer_queue <= 0)
        s->o.infer_queue = 256;
}

/* The order of the modules is that of the loop's calls. */
static enum pd_err make_modules(struct sup *s, struct store_writer *writer, struct pd_why *why)
{
    const struct sup_options *o = &s->o;
    struct workers_options workers = {.state_dir = o->state_dir,
                                      .worker_path = o->worker_path,
                                      .roots = o->roots,
                                      .root_count = o->root_count};
    struct devices_options devices = {.cpu_slots = o->cpu_slots,
                                      .cpu_threads = o->cpu_threads,
                                      .gpus = o->gpus,
                                      .nvml = o->nvml,
                                      .sample_us = o->gpu_sample_us,
                                      .start_us = o->gpu_start_us,
                                      /* the diagnostic role computes nothing */
                                      .ask_worker = !o->train_role || strcmp(o->train_role, "selftest") != 0};
    enum pd_err err = loop_new(writer, &s->loop, why);

    if (err == PD_OK)
        err = workers_new(s->loop, &workers, &s->workers, why);
    if (err == PD_OK)
        err = devices_start(s->loop, s->workers, &devices, &s->devices, why);
    if (err == PD_OK)
        err = plans_new(s->loop, s->workers, s->devices, &s->plans, why);
    if (err == PD_OK)
        err = attempts_new(s->loop, s->workers, s->devices, s->plans, o, &s->attempts, why);
    if (err == PD_OK)
        err = serving_new(s->loop, s->workers, s->devices, o, &s->serving, why);
    return err;
}

/* Takes up what ran before. */
static enum pd_err take_up(struct sup *s, struct pd_why *why)
{
    enum pd_err err = attempts_start(s->attempts, why);

    if (err != PD_OK)
        return err;
    workers_kill_strays(s->workers);
    err = clean_uploads(workers_state_dir(s->workers), loop_reader(s->loop), why);
    if (err == PD_OK)
        err = workers_listen(s->workers, why);
    return err == PD_OK ? serving_start(s->serving, why) : err;
}

static void made_runs(void *ctx)
{
    loop_notify(((struct sup *)ctx)->loop);
}

static bool run_is_busy(void *ctx, int64_t run_id)
{
    return attempts_hold_folder(((struct sup *)ctx)->attempts, run_id);
}

static enum pd_err start_cleaner(struct sup *s, struct pd_why *why)
{
    struct cleaner_options o = {.writer = loop_writer(s->loop),
                                .state_dir = workers_state_dir(s->workers),
                                .cache_bytes = s->o.cache_bytes,
                                .busy = run_is_busy,
                                .ctx = s};

    return cleaner_start(&o, &s->cleaner, why);
}

enum pd_err sup_start(const struct sup_options *o, struct store_writer *w, struct sup **ret,
                      struct pd_why *why)
{
    struct sup *s = calloc(1, sizeof *s);
    enum pd_err err;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    set_options(s, o);
    err = make_modules(s, w, why);
    if (err == PD_OK)
        err = take_up(s, why);
    if (err == PD_OK)
        err = expander_start(w, made_runs, s, &s->expander, why);
    if (err == PD_OK)
        err = start_cleaner(s, why);
    if (err == PD_OK)
        err = loop_start(s->loop, why);
    if (err != PD_OK) {
        sup_stop(s);
        return err;
    }
    *ret = s;
    return PD_OK;
}

struct sup *sup_stop(struct sup *s)
{
    if (!s)
        return NULL;
    if (s->expander) /* they notify the loop */
        expander_halt(s->expander);
    if (s->cleaner)
        cleaner_halt(s->cleaner);
    if (s->loop && !loop_stop(s->loop, STOP_US + (s->o.drain_on_stop ? s->o.grace_us : 0)))
        return NULL; /* leak it rather than crash when the store gives the write back */
    return sup_free(s);
}

void sup_notify(struct sup *s)
{
    expander_wake(s->expander);
    cleaner_wake(s->cleaner);
    loop_notify(s->loop);
}

int64_t sup_alive_us(struct sup *s)
{
    return loop_alive_us(s->loop);
}

/* ---- what the API shows --------------------------------------------------------------------- */

void sup_device_list(struct sup *s, void (*row)(void *ctx, const struct sup_device *d), void *ctx)
{
    devices_list(s->devices, row, ctx);
}

bool sup_cuda(struct sup *s, char ret_why[SUP_WHY_BYTES])
{
    return devices_cuda(s->devices, ret_why);
}

int sup_gpu_count(struct sup *s, const char **ret_why, const struct device_driver **ret_driver)
{
    return devices_gpu_count(s->devices, ret_why, ret_driver);
}

bool sup_queue_get(struct sup *s, int64_t run_id, struct sup_queue_info *ret)
{
    return attempts_queue_get(s->attempts, run_id, ret);
}

enum pd_err sup_set_roots(struct sup *s, const struct sup_data_root *roots, int count, struct pd_why *why)
{
    return workers_set_roots(s->workers, roots, count, why);
}

int64_t sup_memory(struct sup *s, const char *device, int slots)
{
    return devices_memory(s->devices, device, slots);
}

enum pd_err sup_fit(struct sup *s, const char *device, int slots, int64_t need_bytes,
                    struct sup_queue_info *ret, char *devices, size_t size, struct pd_why *why)
{
    return devices_fit(s->devices, device, slots, need_bytes, attempts_waiting(s->attempts), ret, devices,
                       size, why);
}

bool sup_progress_get(struct sup *s, int64_t run_id, struct sup_progress *ret)
{
    return attempts_progress(s->attempts, run_id, ret);
}

void sup_log_path(struct sup *s, int64_t run_id, int attempt, char *out, size_t size)
{
    attempts_log_path(s->attempts, run_id, attempt, out, size);
}

void sup_stats(struct sup *s, struct sup_stats *ret)
{
    attempts_stats(s->attempts, ret);
    workers_stats(s->workers, ret);
}

/* ---- plans ----------------------------------------------------------------------------------- */

enum pd_err sup_plan(struct sup *s, const struct sup_planning *asked, struct pd_why *why)
{
    return plans_ask(s->plans, asked, why);
}

enum pd_err sup_data_list(struct sup *s, const struct sup_listing *asked, struct pd_why *why)
{
    return plans_list_data(s->plans, asked, why);
}

enum pd_err sup_weights_ask(struct sup *s, const struct sup_weights *asked, struct pd_why *why)
{
    return plans_weights(s->plans, asked, why);
}

/* ---- models ---------------------------------------------------------------------------------- */

void sup_model_list(struct sup *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx)
{
    serving_list(s->serving, row, ctx);
}

enum pd_err sup_model_get(struct sup *s, const char *model, int64_t version,
                          void (*row)(void *ctx, const struct sup_model_info *m), void *ctx,
                          struct pd_why *why)
{
    return serving_get(s->serving, model, version, row, ctx, why);
}

enum pd_err sup_model_load(struct sup *s, const char *model, int64_t version,
                           void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                           struct pd_why *why)
{
    return serving_load(s->serving, model, version, done, ctx, why);
}

enum pd_err sup_model_unload(struct sup *s, const char *model, int64_t version,
                             void (*done)(void *ctx, enum pd_err err, const struct pd_why *why), void *ctx,
                             struct pd_why *why)
{
    return serving_unload(s->serving, model, version, done, ctx, why);
}

enum pd_err sup_infer(struct sup *s, const struct sup_infer *req, uint64_t *ret_id, struct pd_why *why)
{
    return serving_infer(s->serving, req, ret_id, why);
}

void sup_infer_cancel(struct sup *s, uint64_t id)
{
    serving_cancel(s->serving, id);
}
