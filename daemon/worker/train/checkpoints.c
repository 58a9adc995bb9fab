/* daemon/worker/train/checkpoints.c: see checkpoints.h. */
#include "daemon/worker/train/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/train/contents.h"
#include "daemon/worker/train/retention.h"
#include "kernels/base/clock.h"

struct checkpoints {
    const struct session *session;
    struct trainer *trainer;
    struct contents *contents;
    struct retention *retention; /* NULL except on rank 0 */
    int64_t saved_step;          /* -1: nothing saved or loaded */
    int64_t saved_us;
};

enum pd_err checkpoints_open(const struct session *s, struct trainer *t, struct checkpoints **ret,
                             struct pd_why *why)
{
    struct checkpoints *c = calloc(1, sizeof *c);
    enum pd_err err;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    c->session = s;
    c->trainer = t;
    c->saved_step = -1;
    c->saved_us = s->began_us;
    err = contents_open(s, t, &c->contents, why);
    if (err == PD_OK && s->setup.rank == 0)
        err = retention_open(s, &c->retention, why);
    if (err == PD_OK)
        *ret = c;
    else
        checkpoints_close(c);
    return err;
}

struct checkpoints *checkpoints_close(struct checkpoints *c)
{
    if (!c)
        return NULL;
    contents_close(c->contents);
    retention_close(c->retention);
    free(c);
    return NULL;
}

/* Reports the file of this state. */
static void report_written(const struct checkpoints *c, const char *path, const struct train_state *state,
                           const struct train_file_info *file)
{
    const struct session *s = c->session;
    struct train_checkpoint_info info = {.path = path,
                                         .step = state->step,
                                         .bytes = file->bytes,
                                         .best = state->best_step == state->step,
                                         .metric = s->setup.best_metric,
                                         .value = state->score};

    memcpy(info.sha256, file->sha256, sizeof info.sha256);
    if (s->host->checkpoint_written)
        s->host->checkpoint_written(s->host->user, &info);
}

/* ---- the start ---- */

/* Rank 0: what was resumed from is reported if polyd has recorded another file under its name. */
static void report_unrecorded(const struct checkpoints *c, size_t n, const struct train_state *state)
{
    const struct train_dirs *dirs = c->session->dirs;
    const char *recorded = dirs->start_digests ? dirs->start_digests[n] : "";
    char hex[DIGEST_SHA256_HEX_SIZE];
    struct train_file_info file;
    struct stat st;

    if (*recorded && digest_file_hex(dirs->starts[n], hex, NULL) == PD_OK && strcmp(hex, recorded) != 0 &&
        digest_unhex(hex, file.sha256, sizeof file.sha256) && stat(dirs->starts[n], &st) == 0) {
        file.bytes = (uint64_t)st.st_size;
        report_written(c, dirs->starts[n], state, &file);
    }
}

/* Rank 0: initial values, and over them what train.start names; *ret_lasting: another attempt would find the same file. */
static enum pd_err begin(struct checkpoints *c, struct train_state *state, bool *ret_lasting,
                         struct pd_why *why)
{
    enum pd_err err = trainer_begin(c->trainer, why);

    if (err != PD_OK || !c->session->config->train.start.present)
        return err;
    err = contents_start(c->contents, state, why);
    *ret_lasting = pd_err_lasting(err);
    return err == PD_OK ? trainer_begin_averages(c->trainer, why) : err;
}

/* Rank 0: loads the first valid one of the given checkpoints, or starts from the
 * seed. */
static enum pd_err load(struct checkpoints *c, struct train_state *state, bool *ret_lasting,
                        struct pd_why *why)
{
    const struct session *s = c->session;
    struct reporter *reporter = s->reporter;
    char fields[1200];
    struct pd_why reason;

    for (size_t n = 0; n < s->dirs->start_count; n++) {
        const char *start = s->dirs->starts[n];
        enum pd_err err = contents_read(c->contents, start, true, state, &reason);

        if (err == PD_OK) {
            snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)state->step, start);
            reporter_event(reporter, "resume", fields, "resuming from a checkpoint");
            reporter_log(reporter, "resume from %s at step %lld", start, (long long)state->step);
            c->saved_step = state->step;
            retention_resumed(c->retention, state->step);
            report_unrecorded(c, n, state);
            return PD_OK;
        }
        /* A conflict may be one of data, which may be there again. */
        *ret_lasting = err == PD_ERR_VERSION;
        if (err == PD_ERR_CONFLICT || err == PD_ERR_VERSION || err == PD_ERR_NOMEM)
            return pd_fail(why, err, "%s", reason.text);
        snprintf(fields, sizeof fields, "path=%s", start);
        reporter_event(reporter, "checkpoint_fallback", fields, reason.text);
        reporter_log(reporter, "checkpoint unusable, trying an older one: %s", reason.text);
    }
    reporter_event(reporter, "start", "step=0", "initial values from the seed");
    return begin(c, state, ret_lasting, why);
}

/* Rank 0's state and tensors to all. */
static enum pd_err share(struct checkpoints *c, struct train_state *state, struct pd_why *why)
{
    const struct session *s = c->session;
    enum pd_err err = ranks_share(s->ranks, state, sizeof *state, 0, why);

    if (err == PD_OK)
        err = ranks_share(s->ranks, &c->saved_step, sizeof c->saved_step, 0, why);
    /* at the very start moments are zero everywhere; averages are not */
    if (err == PD_OK)
        err = contents_share(c->contents, c->saved_step >= 0 || s->config->train.start.optimizer, why);
    if (err == PD_OK && c->saved_step < 0 && s->setup.rank > 0)
        err = trainer_begin_averages(c->trainer, why);
    return err == PD_OK ? contents_compare(c->contents, why) : err;
}

enum pd_err checkpoints_begin(struct checkpoints *c, struct train_state *state, bool *ret_lasting,
                              struct pd_why *why)
{
    enum pd_err err;

    *ret_lasting = false;
    err = c->session->setup.rank == 0 ? load(c, state, ret_lasting, why) : PD_OK;
    return err == PD_OK ? share(c, state, why) : err;
}

void checkpoints_forget_later(struct checkpoints *c, int64_t step)
{
    if (c->retention)
        retention_forget_later(c->retention, step);
}

/* ---- saving ---- */

bool checkpoints_planned(const struct checkpoints *c, int64_t step)
{
    const int64_t every = c->session->config->train.checkpoint_every_steps;

    return every > 0 && step > 0 && step % every == 0;
}

static bool wanted(const struct checkpoints *c, int64_t step)
{
    const struct job_train *t = &c->session->config->train;
    const struct train_host *host = c->session->host;

    if (c->saved_step == step)
        return false;
    if (host->checkpoint_now && host->checkpoint_now(host->user))
        return true;
    if (t->checkpoint_every_steps > 0)
        return checkpoints_planned(c, step);
    return t->checkpoint_every_s > 0 &&
           (double)(pd_clock_mono_us() - c->saved_us) >= t->checkpoint_every_s * 1e6;
}

enum pd_err checkpoints_due(struct checkpoints *c, int64_t step, bool *ret, struct pd_why *why)
{
    int64_t due = c->session->setup.rank == 0 && wanted(c, step);
    enum pd_err err = ranks_agree(c->session->ranks, &due, why);

    *ret = due != 0;
    return err;
}

int64_t checkpoints_saved(const struct checkpoints *c)
{
    return c->saved_step;
}

void checkpoints_outdate(struct checkpoints *c)
{
    c->saved_step = -1;
}

/* Rank 0. */
static enum pd_err write_file(struct checkpoints *c, const struct train_state *state, struct pd_why *why)
{
    const struct session *s = c->session;
    struct train_file_info file;
    char path[1024];
    enum pd_err err;

    reporter_flush(s->reporter);
    retention_path(c->retention, state->step, path, sizeof path);
    err = contents_write(c->contents, path, state, &file, why);
    if (err != PD_OK)
        return err;
    retention_add(c->retention, state->step, state->score);
    report_written(c, path, state, &file);
    /* One more than asked for while training: should the newest be damaged, there is one to fall back to. */
    retention_prune(c->retention, s->config->train.keep_latest + 1, false);
    return PD_OK;
}

/* A failure to write is rank 0's, and its sentence *reason; the error *why is the ranks'. */
static enum pd_err save_together(struct checkpoints *c, const struct train_state *state,
                                 struct pd_why *reason, struct pd_why *why)
{
    const struct session *s = c->session;
    int64_t result = PD_OK;
    enum pd_err err = contents_compare(c->contents, why);

    if (err == PD_OK)
        err = contents_gather(c->contents, why);
    if (err == PD_OK && s->setup.rank == 0)
        result = write_file(c, state, reason);
    contents_ungather(c->contents);
    if (err == PD_OK)
        err = ranks_agree(s->ranks, &result, why);
    if (err != PD_OK)
        return err;
    if (result != PD_OK && s->setup.rank > 0)
        snprintf(reason->text, sizeof reason->text, "rank 0 could not write a checkpoint");
    if (result == PD_OK)
        c->saved_step = state->step;
    c->saved_us = pd_clock_mono_us();
    return (enum pd_err)result;
}

enum pd_err checkpoints_save(struct checkpoints *c, const struct train_state *state, struct pd_why *why)
{
    struct pd_why reason = {""}, broken = {""};
    enum pd_err err = save_together(c, state, &reason, &broken);

    return err == PD_OK ? PD_OK : pd_fail(why, err, "%s", broken.text[0] ? broken.text : reason.text);
}

enum pd_err checkpoints_try_save(struct checkpoints *c, const struct train_state *state, struct pd_why *why)
{
    struct pd_why reason = {""}, broken = {""};
    char fields[64];
    enum pd_err err = save_together(c, state, &reason, &broken);

    if (err == PD_OK)
        return PD_OK;
    if (broken.text[0])
        return pd_fail(why, err, "%s", broken.text);
    snprintf(fields, sizeof fields, "step=%lld", (long long)state->step);
    reporter_event(c->session->reporter, "checkpoint_failed", fields, reason.text);
    reporter_log(c->session->reporter, "checkpoint failed: %s", reason.text);
    return PD_OK;
}

/* ---- the end ---- */

/* Rank 0: reads the best file, or the newest again if there is none, whose tensors a damaged file may have changed. */
static enum pd_err read_best(struct checkpoints *c, int64_t *ret_step, struct pd_why *why)
{
    struct reporter *reporter = c->session->reporter;
    char best[1024] = "", latest[1024] = "", fields[1100];
    struct train_state state;
    struct pd_why reason = {""};
    enum pd_err err;

    retention_paths(c->retention, best, sizeof best, latest, sizeof latest);
    err = best[0] ? contents_read(c->contents, best, false, &state, &reason) : PD_OK;
    if (err != PD_OK) {
        snprintf(fields, sizeof fields, "path=%s", best);
        reporter_event(reporter, "checkpoint_fallback", fields, reason.text);
        err = contents_read(c->contents, latest, false, &state, why);
    }
    if (err == PD_OK && best[0])
        *ret_step = state.step;
    return err;
}

enum pd_err checkpoints_select(struct checkpoints *c, int64_t best_step, int64_t *ret_step,
                               struct pd_why *why)
{
    const struct session *s = c->session;
    struct pd_why reason = {""};
    int64_t step = c->saved_step, result = PD_OK;
    enum pd_err err;

    if (s->setup.rank == 0 && s->config->train.keep_best > 0 && best_step >= 0 && best_step != step)
        result = read_best(c, &step, &reason);
    err = ranks_agree(s->ranks, &result, why);
    if (err == PD_OK && result != PD_OK)
        err = pd_fail(why, (enum pd_err)result, "the best checkpoint cannot be read: %.300s",
                      s->setup.rank == 0 ? reason.text : "rank 0 failed");
    if (err == PD_OK)
        err = ranks_agree(s->ranks, &step, why);
    if (err == PD_OK && step != c->saved_step)
        err = contents_share(c->contents, true, why);
    if (err == PD_OK)
        *ret_step = step;
    return err;
}

void checkpoints_finish(struct checkpoints *c)
{
    int64_t latest = c->session->config->train.keep_latest;

    if (c->retention)
        retention_prune(c->retention, latest > 0 ? latest : 1, true);
}

void checkpoints_summarise(const struct checkpoints *c, struct train_outcome *to)
{
    if (c->retention)
        retention_paths(c->retention, to->best_path, sizeof to->best_path, to->latest_path,
                        sizeof to->latest_path);
}
