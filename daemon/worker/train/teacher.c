/* daemon/worker/train/teacher.c: see teacher.h. */
#include "daemon/worker/train/teacher.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/safetensors.h"

static const char field[] = "#/train/teacher/model";

static enum pd_err open_file(struct teacher *t, const struct job_teacher *c, const char *state_dir,
                             struct pd_why *why)
{
    struct pd_why reason = {""};
    char path[4096], hex[DIGEST_SHA256_HEX_SIZE];
    const void *bytes;
    size_t len;
    enum pd_err err;

    if (snprintf(path, sizeof path, "%s/%s", state_dir, c->path) >= (int)sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "%s: the path of its checkpoint is too long", field);
    err = data_st_open(path, &t->st, &reason);
    t->gone = err == PD_ERR_NOT_FOUND;
    if (err != PD_OK)
        return pd_fail(why, err, "%s: the checkpoint of %s cannot be read: %.300s", field, c->model,
                       reason.text);
    bytes = data_st_bytes(t->st, &len);
    if (strcmp(digest_sha256_hex(bytes, len, hex), c->sha256) != 0)
        return pd_fail(why, PD_ERR_CORRUPT, "%s: the checkpoint of %s has the digest %.12s, not %.12s", field,
                       c->model, hex, c->sha256);
    return PD_OK;
}

/* One number of a list such as "0.485,0.456,0.406"; NAN: it has fewer. */
static double number_at(const char *list, int which)
{
    char *end;

    for (; list && which-- > 0; list++) {
        list = strchr(list, ',');
        if (!list)
            return (double)NAN;
    }
    if (!list)
        return (double)NAN;
    const double x = strtod(list, &end);

    return end == list ? (double)NAN : x;
}

static enum pd_err check_pixels(const struct teacher *t, const char *model, const struct data_info *d,
                                struct pd_why *why)
{
    const char *mean = data_st_meta(t->st, "polyd.data.mean"), *std = data_st_meta(t->st, "polyd.data.std");

    for (int i = 0; i < d->channels && i < 3; i++)
        if (!(fabs(number_at(mean, i) - (double)d->mean[i]) < 1e-6) ||
            !(fabs(number_at(std, i) - (double)d->std[i]) < 1e-6))
            return pd_fail(
                why, PD_ERR_INVALID,
                "%s: %s reads pixels with means %s and deviations %s, the data have %g and %g in channel %d",
                field, model, mean ? mean : "none", std ? std : "none", (double)d->mean[i], (double)d->std[i],
                i + 1);
    return PD_OK;
}

static enum pd_err check_fits(const struct teacher *t, const char *model, const struct model_spec *s,
                              const struct data_info *d, const struct task *task, struct pd_why *why)
{
    if (!task->fits(s))
        return pd_fail(why, PD_ERR_INVALID, "%s: %s reads text; the teacher must read pictures", field,
                       model);
    if (s->classes != d->classes)
        return pd_fail(why, PD_ERR_INVALID, "%s: %s has %d classes, the data have %d", field, model,
                       s->classes, d->classes);
    if (s->channels != d->channels)
        return pd_fail(why, PD_ERR_INVALID, "%s: %s reads %d channels, the data have %d", field, model,
                       s->channels, d->channels);
    if (s->image_h != d->height || s->image_w != d->width)
        return pd_fail(why, PD_ERR_INVALID, "%s: %s reads images of %d x %d, the job's are %d x %d", field,
                       model, s->image_h, s->image_w, d->height, d->width);
    return check_pixels(t, model, d, why);
}

enum pd_err teacher_init(struct teacher *t, const struct job_config *config, const char *state_dir,
                         const struct data_info *data, const struct task *task,
                         const struct model_spec *student, struct pd_why *why)
{
    const struct job_teacher *c = &config->train.teacher;
    struct model_spec spec;
    enum pd_err err = open_file(t, c, state_dir ? state_dir : "", why);

    if (err == PD_OK)
        err = model_spec_from_meta(t->st, &spec, why);
    if (err == PD_OK)
        err = check_fits(t, c->model, &spec, data, task, why);
    if (err != PD_OK)
        return err;
    spec.dtype = student->dtype;
    spec.mixed = student->mixed;
    spec.weights = student->mixed ? PK_BF16 : PK_F32;
    err = model_new(&spec, &t->model, why);
    t->distil = (struct model_distil){
        .teacher = t->model, .soft = c->kind == JOB_TEACHER_SOFT, .alpha = c->alpha, .tau = c->tau};
    return err;
}

void teacher_done(struct teacher *t)
{
    t->model = model_free(t->model);
    t->st = data_st_free(t->st);
}

enum pd_err teacher_load(const struct teacher *t, const struct pk_backend_api *api,
                         struct pk_backend *backend, struct model_store **ret, struct pd_why *why)
{
    struct model_store *s = NULL;
    enum pd_err err = model_store_new(t->model, api, backend, &s, why);

    if (err == PD_OK)
        err = model_store_read_served(s, t->st, why);
    if (err == PD_OK)
        *ret = s;
    else
        model_store_free(s);
    return err;
}
