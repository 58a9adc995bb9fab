/* daemon/worker/train/retention.c: see retention.h. */
#include "daemon/worker/train/retention.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/train/checkpoint.h"
#include "kernels/base/file.h"

#define FILES_MAX 256 /* that are accounted for */

struct kept {
    int64_t step;
    double score;  /* NaN: not measured at that step */
    bool recorded; /* a later attempt may resume from it */
};

struct retention {
    const struct session *session;
    struct kept kept[FILES_MAX]; /* ascending steps */
    size_t count;
};

void retention_path(const struct retention *r, int64_t step, char *out, size_t size)
{
    char name[TRAIN_CHECKPOINT_NAME_SIZE];

    snprintf(out, size, "%s/%s", r->session->dirs->checkpoints, train_checkpoint_name(name, step));
}

/* ---- opening ---- */

static int by_step(const void *a, const void *b)
{
    int64_t x = ((const struct kept *)a)->step, y = ((const struct kept *)b)->step;

    return x < y ? -1 : x > y;
}

/* Oldest first. */
static enum pd_err list_files(struct retention *r, struct pd_why *why)
{
    const char *folder = r->session->dirs->checkpoints;
    DIR *dir;
    struct dirent *e;
    enum pd_err err = pd_file_make_dirs(folder, why);

    if (err != PD_OK)
        return err;
    dir = opendir(folder);
    if (!dir)
        return pd_fail_errno(why, errno, "cannot read '%s'", folder);
    while ((e = readdir(dir))) {
        size_t n = strlen(e->d_name);
        char path[1024];

        if (n > 4 && !strncmp(e->d_name, "step-", 5) && !strcmp(e->d_name + n - 4, ".tmp") &&
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path) {
            (void)unlink(path);
        } else if (train_checkpoint_step(e->d_name) >= 0 && r->count < FILES_MAX) {
            r->kept[r->count++] =
                (struct kept){.step = train_checkpoint_step(e->d_name), .score = (double)NAN};
        }
    }
    closedir(dir);
    qsort(r->kept, r->count, sizeof *r->kept, by_step);
    return PD_OK;
}

/* They decide what is kept as best. */
static void read_scores(struct retention *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct train_state state;
        struct data_st *st = NULL;
        char path[1024];

        retention_path(r, r->kept[i].step, path, sizeof path);
        if (train_checkpoint_open(path, &st, &state, NULL) == PD_OK)
            r->kept[i].score = state.score;
        data_st_free(st);
    }
}

enum pd_err retention_open(const struct session *s, struct retention **ret, struct pd_why *why)
{
    struct retention *r = calloc(1, sizeof *r);
    enum pd_err err;

    if (!r)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for checkpoints");
    r->session = s;
    err = list_files(r, why);
    if (err != PD_OK) {
        retention_close(r);
        return err;
    }
    read_scores(r);
    *ret = r;
    return PD_OK;
}

struct retention *retention_close(struct retention *r)
{
    free(r);
    return NULL;
}

/* ---- what is kept ---- */

void retention_resumed(struct retention *r, int64_t step)
{
    for (size_t i = 0; i < r->count; i++)
        r->kept[i].recorded = r->kept[i].step == step;
}

static void report_removed(const struct retention *r, int64_t step, const char *path, const char *reason)
{
    char fields[1100];

    snprintf(fields, sizeof fields, "step=%lld path=%s", (long long)step, path);
    reporter_event(r->session->reporter, "checkpoint_removed", fields, reason);
}

void retention_forget_later(struct retention *r, int64_t step)
{
    while (r->count && r->kept[r->count - 1].step > step) {
        int64_t later = r->kept[--r->count].step;
        char path[1024];

        retention_path(r, later, path, sizeof path);
        (void)unlink(path);
        report_removed(r, later, path, "newer than the checkpoint that the run goes on from");
    }
}

void retention_add(struct retention *r, int64_t step, double score)
{
    if (r->count && r->kept[r->count - 1].step == step)
        r->count--;
    if (r->count == FILES_MAX) {
        memmove(r->kept, r->kept + 1, (FILES_MAX - 1) * sizeof *r->kept);
        r->count--;
    }
    r->kept[r->count++] = (struct kept){.step = step, .score = score};
}

/* The newest checkpoint from which a later attempt could go on; count = none. */
static size_t newest_recorded(struct retention *r, bool wait)
{
    const struct train_host *host = r->session->host;

    for (size_t i = r->count; i-- > 0; wait = false) {
        struct kept *k = &r->kept[i];

        k->recorded =
            k->recorded || !host->checkpoint_recorded || host->checkpoint_recorded(host->user, k->step, wait);
        if (k->recorded)
            return i;
    }
    return r->count;
}

/* The best that is not chosen: an earlier one wins a tie. count = none. */
static size_t best_of(const struct retention *r, const bool *chosen)
{
    const struct train_setup *setup = &r->session->setup;
    size_t best = r->count;

    for (size_t i = 0; i < r->count; i++)
        if (!(chosen && chosen[i]) &&
            (best == r->count ? !isnan(r->kept[i].score)
                              : train_better(setup, r->kept[i].score, r->kept[best].score)))
            best = i;
    return best;
}

void retention_prune(struct retention *r, int64_t latest, bool last)
{
    bool keep[FILES_MAX] = {false}, chosen[FILES_MAX] = {false};
    size_t left = 0, recorded = newest_recorded(r, last);

    for (size_t i = 0; i < r->count; i++)
        keep[i] = (int64_t)(r->count - i) <= latest || i == recorded;
    for (int64_t n = 0; n < r->session->config->train.keep_best && n < FILES_MAX; n++) {
        size_t best = best_of(r, chosen);

        if (best == r->count)
            break;
        keep[best] = chosen[best] = true;
    }
    for (size_t i = 0; i < r->count; i++) {
        char path[1024];

        if (keep[i]) {
            r->kept[left++] = r->kept[i];
            continue;
        }
        retention_path(r, r->kept[i].step, path, sizeof path);
        if (unlink(path) == 0 || errno == ENOENT)
            report_removed(r, r->kept[i].step, path, "exceeds train.keep");
        else
            r->kept[left++] = r->kept[i];
    }
    r->count = left;
}

void retention_paths(const struct retention *r, char *ret_best, size_t best_size, char *ret_latest,
                     size_t latest_size)
{
    size_t best = best_of(r, NULL);

    if (best < r->count)
        retention_path(r, r->kept[best].step, ret_best, best_size);
    if (r->count)
        retention_path(r, r->kept[r->count - 1].step, ret_latest, latest_size);
}
