/* daemon/train/plan.c: how many bytes a run will need, found by planning its graphs without memory. */
#include <stdlib.h>
#include <string.h>

#include "daemon/spec/spec.h"
#include "daemon/train/setup.h"
#include "kernels/graph/roofline.h"

static enum pd_err plan_graph(struct pk_graph *g, const struct pk_backend_api *api,
                              struct pk_plan_report *ret, struct pd_why *why)
{
    struct pk_exec *e = NULL;
    enum pd_err err = pk_exec_new(g, api, NULL, &e, why);

    if (err == PD_OK)
        pk_exec_report(e, ret);
    pk_exec_free(e);
    pk_graph_free(g);
    return err;
}

static void put_warnings(const struct data_set *set, struct pd_buf *b)
{
    struct data_warning w[DATA_WARNINGS_MAX];
    size_t n = data_warnings(set, w);

    for (size_t i = 0; i < n; i++) {
        pd_buf_printf(b, "%s{\"pointer\":\"%s\",\"detail\":", i ? "," : "", w[i].pointer);
        spec_json_string(w[i].text, strlen(w[i].text), b);
        pd_buf_str(b, "}");
    }
}

/* What one division of the batch needs. */
struct forecast {
    struct pk_plan_report step; /* the graph that runs most, with the optimiser's states */
    size_t inputs, arenas, saved, total;
};

enum { STEP, EVAL, PROBE, PART, GRAPHS };

static enum pd_err plan_graphs(const struct train_setup *s, const struct spec_config *config,
                               const struct pk_backend_api *api, struct pk_plan_report report[GRAPHS],
                               struct pd_why *why)
{
    struct pk_graph *g = NULL;
    enum pd_err err = s->parts > 1 ? model_graph_apply(s->model, &s->options, &g, why)
                                   : model_graph_train(s->model, &s->options, false, &g, why);

    if (err == PD_OK)
        err = plan_graph(g, api, &report[STEP], why);
    if (err == PD_OK && s->parts > 1) {
        err = model_graph_part(s->model, &s->options, &g, why);
        if (err == PD_OK)
            err = plan_graph(g, api, &report[PART], why);
    }
    if (err == PD_OK)
        err = model_graph_eval(s->model, s->eval_batch, s->context, &g, why);
    if (err == PD_OK)
        err = plan_graph(g, api, &report[EVAL], why);
    if (err == PD_OK && config->diagnostics.every > 0) {
        err = model_graph_probe(s->model, s->probe_batch, s->context, &g, why);
        if (err == PD_OK)
            err = plan_graph(g, api, &report[PROBE], why);
    }
    return err;
}

static enum pd_err forecast(const struct train_setup *s, const struct spec_config *config,
                            const struct pk_backend_api *api, struct forecast *ret, struct pd_why *why)
{
    struct pk_plan_report report[GRAPHS] = {{{0}, 0, 0, 0, 0}};
    size_t masters, sums = 0;
    enum pd_err err = plan_graphs(s, config, api, report, why);

    if (err != PD_OK)
        return err;
    memset(ret, 0, sizeof *ret);
    for (int i = 0; i < GRAPHS; i++) {
        ret->inputs += report[i].bytes[PK_CAT_INPUTS];
        ret->arenas += report[i].arena_bytes;
    }
    if (s->parts > 1) { /* the part that is run most is what is shown; the optimiser's states are not its */
        static const enum pk_category step[] = {PK_CAT_MOMENT1, PK_CAT_MOMENT2, PK_CAT_EMA};

        sums = report[STEP].bytes[PK_CAT_GRADIENTS];
        for (size_t i = 0; i < sizeof step / sizeof step[0]; i++)
            report[PART].bytes[step[i]] = report[STEP].bytes[step[i]];
        report[STEP] = report[PART];
    }
    /* in mixed precision the parameters are the masters, and the weights their working copies: states that
     * the updates write, or buffers of the arena */
    masters = report[STEP].bytes[model_spec(s->model)->mixed ? PK_CAT_MASTER : PK_CAT_WEIGHTS];
    ret->saved = masters + report[STEP].bytes[PK_CAT_MOMENT1] + report[STEP].bytes[PK_CAT_MOMENT2] +
                 report[STEP].bytes[PK_CAT_EMA];
    ret->total = ret->saved + report[STEP].copy_bytes + sums + ret->inputs + ret->arenas;
    if (s->options.zero) /* a file holds the moments of all ranks */
        ret->saved = report[STEP].bytes[PK_CAT_EMA] + masters * (s->options.optimizer == MODEL_ADAMW ? 3 : 2);
    ret->step = report[STEP];
    return PD_OK;
}

/* The plan with more accumulation: the first of some that fits, else the last. */
static enum pd_err put_accumulated(struct train_setup *s, const struct spec_config *config,
                                   const struct pk_backend_api *api, int64_t memory_bytes, struct pd_buf *b,
                                   struct pd_why *why)
{
    int64_t each = s->batch / s->ranks, before = s->parts, found = 0;
    struct forecast f = {.total = 0};
    enum pd_err err = PD_OK;

    for (int64_t n = before + 1; n <= each && n <= 4096 && err == PD_OK; n++) {
        if (each % n || (n < 2 * before && n < each))
            continue;
        train_setup_divide(s, n);
        err = forecast(s, config, api, &f, why);
        before = found = n;
        if ((int64_t)f.total <= memory_bytes)
            break;
    }
    if (err == PD_OK && found)
        pd_buf_printf(b, ",\"accumulated\":{\"accumulation\":%lld,\"total_bytes\":%zu}", (long long)found,
                      f.total);
    return err;
}

enum pd_err train_plan(struct spec_config *config, const struct data_root *roots, size_t root_count,
                       const char *cache, int64_t memory_bytes, struct pd_buf *ret_json, struct pd_why *why)
{
    struct train_setup s;
    struct forecast f;
    const struct pk_backend_api *api = NULL;
    const struct model_spec *spec;
    enum pd_err err = train_setup_init(&s, config, roots, root_count, cache, 0, true, why);

    if (err == PD_OK)
        err = train_backend(config, true, &api, why);
    if (err == PD_OK)
        err = forecast(&s, config, api, &f, why);
    if (err != PD_OK)
        goto out;
    spec = model_spec(s.model);
    pd_buf_str(ret_json, "{\"bytes\":{");
    for (int c = 0; c < PK_CAT_COUNT; c++)
        pd_buf_printf(ret_json, "%s\"%s\":%zu", c ? "," : "", pk_category_name((enum pk_category)c),
                      c == PK_CAT_INPUTS ? f.inputs : f.step.bytes[c]);
    pd_buf_printf(ret_json,
                  "},\"arena_bytes\":%zu,\"arenas_bytes\":%zu,\"total_bytes\":%zu,\"checkpoint_bytes\":%zu,"
                  "\"parameters\":%lld,\"steps\":%lld,\"steps_per_epoch\":%lld,\"train_samples\":%lld,"
                  "\"val_samples\":%lld,\"n_for_scale\":%.17g,\"scale\":%.17g,\"warnings\":[",
                  f.step.arena_bytes, f.arenas, f.total, f.saved, (long long)model_param_elements(s.model),
                  (long long)s.steps, (long long)s.steps_per_epoch, (long long)s.info->count[DATA_TRAIN],
                  (long long)s.info->count[DATA_VAL], spec->n_for_scale, spec->scale_value);
    put_warnings(s.set, ret_json);
    pd_buf_str(ret_json, "]");
    if (memory_bytes && (int64_t)f.total > memory_bytes)
        err = put_accumulated(&s, config, api, memory_bytes, ret_json, why);
    pd_buf_str(ret_json, "}");
    if (err == PD_OK)
        err = pd_buf_err(ret_json);
out:
    train_setup_done(&s);
    return err;
}

#define LINES 40 /* of a graph: the longest nodes */

static enum pd_err count_graph(struct pk_graph *g, const struct pk_backend_api *api,
                               const struct pk_peaks *peaks, double times, const char *name,
                               struct pk_roofline *sum, struct pd_buf *to, struct pd_why *why)
{
    struct pk_exec *e = NULL;
    enum pd_err err = pk_exec_new(g, api, NULL, &e, why);

    if (err == PD_OK) {
        pd_buf_printf(to, "%s, %.0f times a step\n", name, times);
        err = pk_roofline_nodes(e, peaks, times, LINES, to, why);
        pk_roofline_add(sum, e, peaks, times);
    }
    pk_exec_free(e);
    pk_graph_free(g);
    return err;
}

enum pd_err train_count(struct spec_config *config, const struct data_root *roots, size_t root_count,
                        const char *cache, const struct pk_peaks *peaks, struct pd_buf *ret_text,
                        struct pd_why *why)
{
    struct pk_roofline sum = {0};
    struct train_setup s;
    struct pk_graph *g = NULL;
    const struct pk_backend_api *api = NULL;
    enum pd_err err = train_setup_init(&s, config, roots, root_count, cache, 0, true, why);

    if (err == PD_OK)
        err = train_backend(config, true, &api, why);
    if (err == PD_OK && s.parts > 1) {
        err = model_graph_part(s.model, &s.options, &g, why);
        if (err == PD_OK)
            err = count_graph(g, api, peaks, (double)s.parts, "a part of the batch", &sum, ret_text, why);
        if (err == PD_OK)
            err = model_graph_apply(s.model, &s.options, &g, why);
        if (err == PD_OK)
            err = count_graph(g, api, peaks, 1, "the optimiser's step", &sum, ret_text, why);
    } else if (err == PD_OK) {
        err = model_graph_train(s.model, &s.options, false, &g, why);
        if (err == PD_OK)
            err = count_graph(g, api, peaks, 1, "the whole step", &sum, ret_text, why);
    }
    if (err == PD_OK) {
        pk_roofline_text(&sum, peaks, ret_text);
        err = pd_buf_err(ret_text);
    }
    train_setup_done(&s);
    return err;
}
