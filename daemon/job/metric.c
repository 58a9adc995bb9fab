/* Reading the catalogue of metrics: which row a key belongs to, and which keys a run writes. */
#include "daemon/job/metric.h"

#include <string.h>

#include "daemon/job/internal.h"
#include "kernels/base/text.h"

#define CLASS_LAYERS 2 /* of an xcit (model/arch/xcit.c) */

/* What the numbers of a key are. */
struct place {
    long layer, head; /* 0: the key has none */
    const char *name; /* of a set of data.eval, in the key; NULL likewise */
    size_t name_len;
};

/* A number without sign or leading zeros; moves *at behind it. */
static bool take_number(const char **at, long low, long *ret)
{
    const char *p = *at;
    long n = 0;

    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (n > 10000000)
            return false;
        n = n * 10 + (*p - '0');
    }
    *at = p;
    *ret = n;
    return n >= low;
}

static bool match(const char *pattern, const char *key, struct place *ret)
{
    long rank, position;

    while (*pattern) {
        if (*pattern == '[') { /* the rest may be absent */
            if (!*key)
                return true;
            pattern++;
        } else if (*pattern == ']') {
            pattern++;
        } else if (!strncmp(pattern, "<name>", 6)) {
            ret->name = key;
            ret->name_len = strcspn(key, "/");
            key += ret->name_len;
            pattern += 6;
            if (!ret->name_len)
                return false;
        } else if (!strncmp(pattern, "<position>", 10)) {
            if (!take_number(&key, 1, &position))
                return false;
            pattern += 10;
        } else if (*pattern == '<') {
            bool is_rank = !strncmp(pattern, "<rank>", 6), is_layer = !strncmp(pattern, "<layer>", 7);

            if (!take_number(&key, is_rank ? 0 : 1, is_rank ? &rank : is_layer ? &ret->layer : &ret->head))
                return false;
            pattern = strchr(pattern, '>') + 1;
        } else if (*pattern++ != *key++) {
            return false;
        }
    }
    return !*key;
}

static const struct job_metric *find(const char *key, struct place *ret)
{
    for (size_t i = 0; i < job_metric_count; i++) {
        *ret = (struct place){0};
        if (match(job_metrics[i].key, key, ret))
            return &job_metrics[i];
    }
    return NULL;
}

const struct job_metric *job_metric_find(const char *key)
{
    struct place place;

    return find(key, &place);
}

/* Whether data.eval has the set that the key names, if it names one. */
static bool has_set(const struct job_config *g, const struct place *p)
{
    const struct job_eval_sets *sets = &g->data.eval;

    for (size_t i = 0; p->name && i < sets->count; i++)
        if (strlen(sets->items[i].name) == p->name_len && !memcmp(sets->items[i].name, p->name, p->name_len))
            return true;
    return !p->name;
}

/* Layers with attention: an encoder and a decoder of so many each, where there are two stacks; behind those that
 * attend between channels, the ones of the class token. */
static int64_t layers_of(const struct job_config *g)
{
    const struct job_network *network = job_network(g->model.arch);

    if (network->equations)
        return 2 * g->model.depth;
    return g->model.depth + (network->channel_attention ? CLASS_LAYERS : 0);
}

/* Heads of a layer, counted from 1: those of its stage, where there are stages. */
static int64_t heads_of(const struct job_config *g, int64_t layer)
{
    const struct job_ints *depths = &g->model.depths, *counts = &g->model.head_counts;
    size_t stage = 0;

    if (!job_network(g->model.arch)->stages)
        return g->model.heads;
    while (stage < depths->count && layer > depths->items[stage])
        layer -= depths->items[stage++];
    return stage < counts->count ? counts->items[stage] : 0;
}

bool job_metric_known(const struct job_config *g, const char *key)
{
    struct place place;
    const struct job_metric *m = find(key, &place);

    return m && m->writer == JOB_METRIC_WORKER && (!m->written || m->written(g)) && has_set(g, &place) &&
           place.layer <= layers_of(g) && (!place.layer || !m->layers || m->layers(g, place.layer)) &&
           (!place.head || (m->heads(g) && place.head <= heads_of(g, place.layer)));
}

bool job_config_writes(const struct job_config *g, const char *key)
{
    const struct job_metric *m = job_metric_find(key);

    return job_metric_known(g, key) || (m && m->writer == JOB_METRIC_DAEMON);
}

const char *job_config_best_metric(const struct job_config *g, bool *ret_maximise)
{
    const struct job_task *task = job_config_task(g);
    bool averages = g->train.ema > 0 && g->train.ema_serve;
    const char *key = averages ? task->best_averaged : task->best;

    *ret_maximise = job_metric_find(key)->better == JOB_METRIC_MORE;
    return key;
}

/* Of a key such as ppl/test_at/64 the part is what stands between its slashes. */
bool job_metric_tested(const char *key)
{
    static const char *const parts[] = {"/test", "/test_ema", "/test_at", "/test_ema_at",
                                        "/eval", "/eval_ema", "/eval_at", "/eval_ema_at"};
    const char *part = strchr(key, '/');
    size_t len = part ? 1 + strcspn(part + 1, "/") : 0;

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i]) == len && !memcmp(parts[i], part, len))
            return true;
    return false;
}

bool job_metric_scored(const struct job_config *g, const char *key)
{
    return (pd_text_ends(key, "/val") || pd_text_ends(key, "/val_ema")) && job_metric_known(g, key);
}

const char *job_metrics_scored(const struct job_config *g, char *out, size_t size)
{
    size_t n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < job_metric_count && n < size; i++)
        if (job_metric_scored(g, job_metrics[i].key))
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", job_metrics[i].key);
    return out;
}

void job_metric_warn(struct job_report *report, const struct job_config *g, const char *key)
{
    const char *keys[64];
    char near[64], scored[128];
    size_t n = 0;

    for (size_t i = 0; i < job_metric_count && n < sizeof keys / sizeof *keys; i++)
        if (job_metric_known(g, job_metrics[i].key)) /* a key as it stands: without numbers or names */
            keys[n++] = job_metrics[i].key;
    job_report_warning(report, "#/sweep/metric",
                       "no run writes \"%.100s\", so it cannot rank the runs%s; evaluations write %s", key,
                       pd_did_you_mean(near, sizeof near, key, keys, n),
                       job_metrics_scored(g, scored, sizeof scored));
}

void job_metric_warn_mode(struct job_report *report, const char *key, int mode)
{
    const struct job_metric *m = job_metric_find(key);
    const bool most = mode == JOB_MODE_MAX;

    if (m && m->better == (most ? JOB_METRIC_LESS : JOB_METRIC_MORE))
        job_report_warning(report, "#/sweep/mode",
                           "the runs are ranked by the %s %.100s, of which %s is better",
                           most ? "greatest" : "smallest", key, most ? "less" : "more");
}

static json_t *metric_json(const struct job_metric *m)
{
    static const char *const better[] = {
        [JOB_METRIC_NEITHER] = "neither", [JOB_METRIC_MORE] = "more", [JOB_METRIC_LESS] = "less"};
    static const char *const writer[] = {[JOB_METRIC_WORKER] = "worker", [JOB_METRIC_DAEMON] = "daemon"};
    static const char *const group[] = {[JOB_METRIC_TRAINING] = "training",
                                        [JOB_METRIC_LAYERS] = "layers",
                                        [JOB_METRIC_GPUS] = "gpus",
                                        [JOB_METRIC_SYSTEM] = "system",
                                        [JOB_METRIC_POSITIONS] = "positions"};

    return json_pack("{s:s,s:s,s:s?,s:s?,s:s?,s:s,s:s,s:s,s:b,s:s,s:s}", "key", m->key, "title", m->title,
                     "panel", m->panel, "series", m->series, "unit", m->unit, "better", better[m->better],
                     "writer", writer[m->writer], "group", group[m->group], "exact", m->exact, "text",
                     m->text, "source", m->source);
}

enum pd_err job_metrics_json(struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *top = json_object(), *list = json_array();
    bool ok = top && list && json_object_set(top, "metrics", list) == 0;
    enum pd_err err = PD_ERR_NOMEM;

    for (size_t i = 0; ok && i < job_metric_count; i++)
        ok = json_array_append_new(list, metric_json(&job_metrics[i])) == 0;
    if (ok) {
        job_json_write(top, ret_json);
        err = pd_buf_err(ret_json);
    }
    json_decref(list);
    json_decref(top);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the catalogue of metrics");
}
