/* daemon/worker/train/preview.c: what a run will measure at its first step: the probe's statistics and the logits of each
 * layer before any step, by the code that reports them in a run, and the time of a step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/maps.h"
#include "daemon/worker/train/probe.h"
#include "daemon/worker/train/start.h"
#include "daemon/worker/train/trainer.h"
#include "daemon/worker/data/safetensors.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"

#define LAYERS_MAX 256
#define LONG_STEP_US 2000000 /* from here on the first step is timed, though it meets cold caches */

/* Of one attention module; NaN: not reported. */
struct layer {
    double norm, logit_std, logit_max, broken;
    double reach; /* of head 1: its bins go from -reach to reach */
    double counts[MODEL_MAP_BINS];
    bool has_counts;
};

struct preview {
    struct layer *layer;
    size_t layers; /* that reported something */
};

/* Which layer a key "<base>/<layer><tail>" is of, from 0; -1: the key is another. */
static long layer_of(const char *key, const char *base, const char *tail)
{
    const size_t n = strlen(base);
    char *end;
    long layer;

    if (strncmp(key, base, n) || key[n] != '/')
        return -1;
    layer = strtol(key + n + 1, &end, 10);
    return strcmp(end, tail) || layer < 1 || layer > LAYERS_MAX ? -1 : layer - 1;
}

static void metrics(void *user, const struct train_point *points, size_t count)
{
    struct preview *p = user;

    for (size_t i = 0; i < count; i++) {
        const struct {
            const char *base, *tail;
            size_t offset;
        } known[] = {{"attn/fro", "", offsetof(struct layer, norm)},
                     {"logit/std", "", offsetof(struct layer, logit_std)},
                     {"logit/max", "", offsetof(struct layer, logit_max)},
                     {"logit/max", "/1", offsetof(struct layer, reach)},
                     {"formula_broken", "", offsetof(struct layer, broken)}};

        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            const long l = layer_of(points[i].key, known[k].base, known[k].tail);

            if (l < 0)
                continue;
            *(double *)(void *)((char *)&p->layer[l] + known[k].offset) = points[i].value;
            if ((size_t)l >= p->layers)
                p->layers = (size_t)l + 1;
        }
    }
}

static void blob(void *user, const struct train_blob *b)
{
    struct preview *p = user;
    const long l = layer_of(b->key, "logit/histogram", "/1");

    if (l < 0 || b->len != sizeof p->layer->counts)
        return;
    memcpy(p->layer[l].counts, b->bytes, b->len);
    p->layer[l].has_counts = true;
}

static void no_event(void *user, const char *kind, const char *text, const char *fields)
{
    (void)user;
    (void)kind;
    (void)text;
    (void)fields;
}

static void no_progress(void *user, int64_t step, int64_t total)
{
    (void)user;
    (void)step;
    (void)total;
}

static void no_log(void *user, const char *line)
{
    (void)user;
    (void)line;
}

static enum train_stop no_stop(void *user)
{
    (void)user;
    return TRAIN_STOP_NONE;
}

static bool no_checkpoint(void *user)
{
    (void)user;
    return false;
}

/* The document with a probe, one head's logits of each layer, one rank, and the CPU. */
static void prepare(struct job_config *c)
{
    static const int64_t first = 1;

    c->resources.device = JOB_DEVICE_CPU;
    c->resources.slots = 1;
    c->diagnostics.every = 1;
    c->diagnostics.heatmaps =
        (struct job_heatmaps){.present = true, .every = 1000000000, .heads = {.items = &first, .count = 1}};
    c->diagnostics.histograms.present = false;
}

/* Two steps; the time of the second, or of a long first one. */
static enum pd_err time_step(struct trainer *t, double *ret_s, struct pd_why *why)
{
    enum pd_err err = PD_OK;
    bool done;

    for (int k = 0; k < 2 && err == PD_OK; k++) {
        const int64_t began_us = pd_clock_mono_us();

        err = trainer_step(t, false, &done, why);
        *ret_s = 1e-6 * (double)(pd_clock_mono_us() - began_us);
        if (*ret_s > 1e-6 * LONG_STEP_US)
            break;
    }
    return err;
}

static void put_finite(struct pd_buf *b, const char *key, double v)
{
    pd_json_key(b, key);
    if (isfinite(v))
        pd_json_num(b, v);
    else
        pd_json_null(b);
}

static void put(const struct preview *p, const struct session *s, double step_s, struct pd_buf *b)
{
    pd_json_open(b, '{');
    pd_json_kv_int(b, "samples", s->setup.probe_batch);
    pd_json_kv_int(b, "seed", s->config->train.seed);
    put_finite(b, "step_s", step_s);
    pd_json_kv_int(b, "threads", session_threads(s));
    pd_json_key(b, "layers");
    pd_json_open(b, '[');
    for (size_t l = 0; l < p->layers; l++) {
        const struct layer *one = &p->layer[l];

        pd_json_open(b, '{');
        put_finite(b, "norm", one->norm);
        put_finite(b, "logit_std", one->logit_std);
        put_finite(b, "logit_max", one->logit_max);
        put_finite(b, "broken", one->broken);
        pd_json_key(b, "logits");
        if (one->has_counts && one->reach > 0) {
            pd_json_open(b, '{');
            pd_json_kv_num(b, "low", -one->reach);
            pd_json_kv_num(b, "high", one->reach);
            pd_json_key(b, "counts");
            pd_json_open(b, '[');
            for (int k = 0; k < MODEL_MAP_BINS; k++)
                pd_json_num(b, one->counts[k]);
            pd_json_close(b, ']');
            pd_json_close(b, '}');
        } else {
            pd_json_null(b);
        }
        pd_json_close(b, '}');
    }
    pd_json_close(b, ']');
    pd_json_close(b, '}');
}

/* The weights of train.start in place of the seed's, where the document names some. */
static enum pd_err begin(const struct session *s, struct trainer *t, struct pd_why *why)
{
    struct data_st *st = NULL;
    enum pd_err err = trainer_begin(t, why);

    if (err == PD_OK && s->config->train.start.present) {
        err = start_open(s, &st, why);
        if (err == PD_OK)
            err = start_params(s, trainer_store(t), st, NULL, why);
        data_st_free(st);
    }
    if (err == PD_OK)
        err = trainer_copy(t, why);
    return err;
}

enum pd_err train_preview(struct job_config *config, const char *state_dir, const struct data_root *roots,
                          size_t root_count, const char *cache, struct pd_buf *ret_json, struct pd_why *why)
{
    const struct train_dirs dirs = {
        .checkpoints = "", .roots = roots, .root_count = root_count, .state = state_dir, .cache = cache};
    struct preview p = {.layer = calloc(LAYERS_MAX, sizeof *p.layer)};
    const struct train_host host = {.user = &p,
                                    .metrics = metrics,
                                    .event = no_event,
                                    .progress = no_progress,
                                    .blob = blob,
                                    .log = no_log,
                                    .stop = no_stop,
                                    .checkpoint_now = no_checkpoint};
    struct session s = {.config = config, .dirs = &dirs, .host = &host, .began_us = pd_clock_mono_us()};
    struct trainer *trainer = NULL;
    struct probe *probe = NULL;
    struct maps *maps = NULL;
    double step_s = NAN;
    bool lasting;
    enum pd_err err = p.layer ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a preview");

    for (size_t l = 0; p.layer && l < LAYERS_MAX; l++)
        p.layer[l].norm = p.layer[l].logit_std = p.layer[l].logit_max = p.layer[l].broken = NAN;
    prepare(config);
    if (err == PD_OK)
        err = train_backend(config, false, &s.api, why);
    if (err == PD_OK)
        err = session_open(&s, &lasting, why);
    if (err == PD_OK)
        err = trainer_open(&s, &trainer, why);
    if (err == PD_OK)
        err = begin(&s, trainer, why);
    if (err == PD_OK)
        err = probe_open(&s, trainer_store(trainer), &probe, why);
    if (err == PD_OK && probe)
        err = probe_run(probe, why);
    /* A network may have no matrices that can be stored: the statistics are enough then. */
    if (err == PD_OK && maps_open(&s, trainer_store(trainer), &maps, NULL) == PD_OK && maps)
        err = maps_run(maps, why);
    if (err == PD_OK)
        reporter_send(s.reporter);
    if (err == PD_OK)
        err = trainer_start(trainer, why);
    if (err == PD_OK)
        err = time_step(trainer, &step_s, why);
    if (err == PD_OK) {
        put(&p, &s, step_s, ret_json);
        err = pd_buf_err(ret_json);
    }
    maps_close(maps);
    probe_close(probe);
    trainer_close(trainer);
    session_close(&s);
    free(p.layer);
    return err;
}
