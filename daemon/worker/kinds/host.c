/* Between the module train and the link: what a run says, and where its files lie. */
#include <stdio.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/kinds/kinds.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/process/worker.h"
#include "daemon/worker/train/train.h"
#include "kernels/base/log.h"

static void on_metrics(void *user, const struct train_point *points, size_t count)
{
    struct attempt *a = user;

    for (size_t i = 0; i < count; i++)
        link_metric(a->link, points[i].key, points[i].step, points[i].wall_us, points[i].value);
}

static void on_event(void *user, const char *kind, const char *text, const char *fields)
{
    struct attempt *a = user;
    char quoted[512];

    pd_log(PD_LOG_INFO, "train", "event=%s text=%s %s", kind,
           pd_log_quote(quoted, sizeof quoted, text ? text : ""), fields ? fields : "");
    link_event(a->link, kind, text, fields);
}

static void on_blob(void *user, const struct train_blob *b)
{
    struct attempt *a = user;

    link_blob(a->link, b->kind, b->key, b->step, b->meta, b->bytes, b->len);
}

static void on_progress(void *user, int64_t step, int64_t total)
{
    struct attempt *a = user;

    link_progress(a->link, step, total, false);
}

static void on_phase(void *user, const char *text)
{
    struct attempt *a = user;

    link_phase(a->link, text);
}

static void on_checkpoint(void *user, const struct train_checkpoint_info *info)
{
    struct attempt *a = user;
    char digest[DIGEST_SHA256_HEX_SIZE];

    link_checkpoint(a->link, info->best ? "best" : "latest", info->path, info->step, info->bytes,
                    digest_hex(info->sha256, sizeof info->sha256, digest), info->value);
}

static bool on_recorded(void *user, int64_t step, bool wait)
{
    return link_checkpoint_recorded(((struct attempt *)user)->link, step, wait);
}

static void on_log(void *user, const char *line)
{
    (void)user;
    printf("%s\n", line);
    fflush(stdout);
}

static enum train_stop on_stop(void *user)
{
    struct attempt *a = user;

    switch (link_stop_asked(a->link)) {
    case LINK_CHECKPOINT_AND_LEAVE:
        return TRAIN_STOP_CHECKPOINT;
    case LINK_LEAVE_NOW:
        return TRAIN_STOP_CANCEL;
    case LINK_GO_ON:
        break;
    }
    return TRAIN_STOP_NONE;
}

static bool on_checkpoint_now(void *user)
{
    return link_checkpoint_asked(((struct attempt *)user)->link);
}

/* Of the file that runs, read once: another version under the same path does not change it. */
static const char *program_digest(void)
{
    static char hex[DIGEST_SHA256_HEX_SIZE];
    struct pd_why why;

    if (!*hex && digest_file_hex("/proc/self/exe", hex, &why) != PD_OK)
        *hex = '\0';
    return *hex ? hex : NULL;
}

struct train_host kind_host(struct attempt *a, struct model_tuned_store *store)
{
    *store = attempt_tuned(a);
    return (struct train_host){.user = a,
                               .metrics = on_metrics,
                               .event = on_event,
                               .blob = on_blob,
                               .progress = on_progress,
                               .phase = on_phase,
                               .checkpoint_written = on_checkpoint,
                               .checkpoint_recorded = on_recorded,
                               .log = on_log,
                               .stop = on_stop,
                               .checkpoint_now = on_checkpoint_now,
                               .tuned = store,
                               .program = program_digest()};
}

struct train_dirs kind_dirs(struct attempt *a, struct kind_folders *f)
{
    struct train_dirs dirs = {.roots = f->roots,
                              .root_count = (size_t)a->assign->root_count,
                              .starts = a->assign->starts,
                              .start_digests = a->assign->digests,
                              .start_count = (size_t)a->assign->start_count,
                              .threads = a->assign->threads,
                              .checkpoints = f->checkpoints};

    for (int i = 0; i < a->assign->root_count; i++)
        f->roots[i] = (struct data_root){.name = a->assign->roots[i].name, .path = a->assign->roots[i].path};
    snprintf(f->checkpoints, sizeof f->checkpoints, "%s/checkpoints", a->assign->run_dir);
    f->state[0] = '\0';
    /* Shared by all runs, so that the same text is tokenized only once. */
    if (!worker_state_dir(a->socket_path, f->state, sizeof f->state))
        return dirs;
    dirs.state = f->state;
    if (worker_cache_dir(a->socket_path, f->cache, sizeof f->cache))
        dirs.cache = f->cache;
    dirs.state = f->state[0] ? f->state : NULL;
    return dirs;
}

void kind_conclude(struct attempt *a, enum pd_err err, const struct train_outcome *outcome,
                   const struct pd_why *why, struct role_result *ret)
{
    ret->step = outcome->step;
    if (err != PD_OK) {
        ret->cause = !outcome->lasting                        ? "failed"
                     : err == PD_ERR_VERSION || outcome->gone ? "outdated"
                                                              : "invalid";
        snprintf(ret->text, sizeof ret->text, "%s", why->text);
        return;
    }
    switch (outcome->result) {
    case TRAIN_DONE:
        ret->cause = "done";
        break;
    case TRAIN_DIVERGED:
        ret->cause = "diverged";
        snprintf(ret->text, sizeof ret->text, "%lld steps were not finite", (long long)outcome->nonfinite);
        break;
    case TRAIN_STOPPED:
        ret->cause = "checkpointed";
        break;
    case TRAIN_CANCELLED:
        ret->cause = "checkpointed";
        ret->silent = link_stop_asked(a->link) == LINK_LEAVE_NOW;
        break;
    case TRAIN_FAILED:
        ret->cause = "failed";
        break;
    }
}
