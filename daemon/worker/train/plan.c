/* daemon/worker/train/plan.c: how many bytes a run will need, found by planning its graphs without memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/train/graphs.h"
#include "kernels/base/json.h"
#include "kernels/graph/roofline.h"

/* Plans without memory or device. The caller frees both, whatever the result. */
static enum pd_err plan(const struct train_setup *s, const struct train_graph *graph,
                        const struct pk_backend_api *api, struct pk_arena *arena, struct pk_graph **ret_graph,
                        struct pk_exec **ret, struct pd_why *why)
{
    enum pd_err err = graph->build(s, ret_graph, why);

    return err == PD_OK ? pk_exec_new_in(*ret_graph, api, NULL, arena, ret, why) : err;
}

static enum pd_err plan_graph(const struct train_setup *s, const struct train_graph *graph,
                              const struct pk_backend_api *api, struct pk_arena *arena,
                              struct pk_plan_report *ret, struct pd_why *why)
{
    struct pk_graph *g = NULL;
    struct pk_exec *e = NULL;
    enum pd_err err = plan(s, graph, api, arena, &g, &e, why);

    if (err == PD_OK)
        pk_exec_report(e, ret);
    pk_exec_free(e);
    pk_graph_free(g);
    return err;
}

/* `entry`: of data.eval; NULL: of the run's own set. */
static void put_warnings(const struct data_set *set, const char *entry, struct pd_buf *b)
{
    struct data_warning w[DATA_WARNINGS_MAX];
    size_t n = data_warnings(set, w);

    for (size_t i = 0; i < n; i++) {
        pd_json_open(b, '{');
        pd_json_kv_str(b, "pointer", entry ? entry : w[i].pointer);
        pd_json_kv_str(b, "detail", w[i].text);
        pd_json_close(b, '}');
    }
}

/* What one division of the batch needs. */
struct forecast {
    struct pk_plan_report step; /* the graph that runs most, with the optimiser's states */
    size_t inputs, arena, saved, total;
};

/* States of the optimiser: those that a checkpoint holds, or all. */
static size_t states_of(const struct train_setup *s, const struct pk_plan_report *step, bool saved)
{
    static const enum pk_category moments[] = {PK_CAT_MOMENT1, PK_CAT_MOMENT2};
    const struct model_optimiser *o = &s->optim->graph;
    size_t bytes = step->bytes[PK_CAT_EMA];

    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; i++) {
        bool in_file = false;

        for (int k = 0; k < o->states; k++)
            in_file = in_file || o->state[k].category == moments[i];
        if (in_file || !saved)
            bytes += step->bytes[moments[i]];
    }
    return bytes;
}

static enum pd_err forecast(const struct train_setup *s, const struct pk_backend_api *api,
                            struct forecast *ret, struct pd_why *why)
{
    struct train_graph list[TRAIN_GRAPHS];
    const size_t count = train_graphs(s, list);
    struct pk_plan_report report[TRAIN_GRAPHS] = {{{0}, 0, 0, 0, 0, 0}}; /* by use */
    struct pk_plan_report *step = &report[TRAIN_GRAPH_UPDATE];
    struct pk_arena *arena = pk_arena_new();
    size_t masters, sums = 0;
    enum pd_err err = arena ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a plan");

    for (size_t i = 0; i < count && err == PD_OK; i++)
        err = plan_graph(s, &list[i], api, arena, &report[list[i].use], why);
    if (err != PD_OK)
        goto out;
    memset(ret, 0, sizeof *ret);
    ret->arena = pk_arena_bytes(arena);
    for (int i = 0; i < TRAIN_GRAPHS; i++)
        ret->inputs += report[i].bytes[PK_CAT_INPUTS];
    if (s->parts > 1) { /* the part that is run most is what is shown; the optimiser's states are not its */
        static const enum pk_category kept[] = {PK_CAT_MOMENT1, PK_CAT_MOMENT2, PK_CAT_EMA};

        sums = step->bytes[PK_CAT_GRADIENTS];
        for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
            report[TRAIN_GRAPH_PART].bytes[kept[i]] = step->bytes[kept[i]];
        *step = report[TRAIN_GRAPH_PART];
    }
    if (s->optim->searches) /* the graph of a point reads the parameters as one vector */
        step->bytes[PK_CAT_WEIGHTS] =
            (size_t)model_param_elements(s->model) * pk_dtype_size(model_spec(s->model)->dtype);
    /* in mixed precision the parameters are the masters, and the weights their working copies: states that
     * the updates write, or buffers of the arena */
    masters = step->bytes[model_spec(s->model)->mixed ? PK_CAT_MASTER : PK_CAT_WEIGHTS];
    ret->saved = masters + states_of(s, step, true);
    if (s->histogram_count > 0) /* sums of a gradient of their own */
        sums += masters;
    ret->total = masters + states_of(s, step, false) + step->copy_bytes + sums + ret->inputs + ret->arena;
    if (s->options.zero) /* a file holds the moments of all ranks */
        ret->saved = step->bytes[PK_CAT_EMA] + masters + optim_state_bytes(s->optim, masters);
    ret->step = *step;
out:
    pk_arena_free(arena);
    return err;
}

enum pd_err train_recompute_choose(struct train_setup *s, const struct job_config *c,
                                   const struct pk_backend_api *api, int64_t memory_bytes, struct pd_why *why)
{
    struct forecast f;
    enum pd_err err;

    s->keep_activations = c->train.recompute == JOB_RECOMPUTE_OFF;
    if (c->train.recompute != JOB_RECOMPUTE_AUTO || c->resources.device != JOB_DEVICE_CUDA ||
        memory_bytes <= 0)
        return PD_OK;
    s->keep_activations = true;
    err = forecast(s, api, &f, why);
    s->keep_activations = err == PD_OK && (int64_t)f.total <= memory_bytes / 100 * TRAIN_KEEP_PERCENT;
    return err;
}

/* What divides every part of a batch that the checks of documents accept (job: data.augment.mix_group): groups of mixed
 * images are even, or of the size that the document names. One that equals the part is taken for the default. */
static int64_t part_unit(const struct train_setup *s)
{
    const int64_t group = s->options.mix_group;

    return !group ? 1 : group == s->options.batch ? 2 : group;
}

/* The plan with more accumulation: the first of some that fits, else the last. */
static enum pd_err put_accumulated(struct train_setup *s, const struct pk_backend_api *api,
                                   int64_t memory_bytes, struct pd_buf *b, struct pd_why *why)
{
    const int64_t each = s->batch / s->ranks, unit = part_unit(s), most = each / unit;
    int64_t before = s->parts, found = 0;
    struct forecast f = {.total = 0};
    enum pd_err err = PD_OK;

    for (int64_t n = before + 1; n <= most && n <= 4096 && err == PD_OK; n++) {
        if (each % (n * unit) || (n < 2 * before && n < most))
            continue;
        train_setup_divide(s, n);
        err = forecast(s, api, &f, why);
        before = found = n;
        if ((int64_t)f.total <= memory_bytes)
            break;
    }
    if (err == PD_OK && found) {
        pd_json_key(b, "accumulated");
        pd_json_open(b, '{');
        pd_json_kv_int(b, "accumulation", found);
        pd_json_kv_uint(b, "total_bytes", f.total);
        pd_json_close(b, '}');
    }
    return err;
}

static void put_bytes(const struct train_setup *s, const struct job_config *config, const struct forecast *f,
                      struct pd_buf *b)
{
    char note[320];

    pd_json_key(b, "bytes");
    pd_json_open(b, '{');
    for (int c = 0; c < PK_CAT_COUNT; c++)
        pd_json_kv_uint(b, pk_category_name((enum pk_category)c),
                        c == PK_CAT_INPUTS ? f->inputs : f->step.bytes[c]);
    pd_json_close(b, '}');
    pd_json_kv_uint(b, "arena_bytes", f->arena);
    pd_json_kv_uint(b, "total_bytes", f->total);
    pd_json_kv_int(b, "parameters", model_param_elements(s->model));
    pd_json_key(b, "warnings");
    pd_json_open(b, '[');
    put_warnings(s->set, NULL, b);
    for (size_t i = 0; i < s->eval_count; i++) {
        char entry[40];

        snprintf(entry, sizeof entry, "#/data/eval/%zu", i);
        put_warnings(s->eval[i].set, entry, b);
    }
    if (train_bf16_note(config, NULL, note, sizeof note)) {
        pd_json_open(b, '{');
        pd_json_kv_str(b, "pointer", "#/train/precision");
        pd_json_kv_str(b, "detail", note);
        pd_json_close(b, '}');
    }
    pd_json_close(b, ']');
}

static void put_forecast(const struct train_setup *s, const struct job_config *config,
                         const struct forecast *f, struct pd_buf *b)
{
    const struct model_spec *spec = model_spec(s->model);

    put_bytes(s, config, f, b);
    pd_json_kv_uint(b, "checkpoint_bytes", f->saved);
    pd_json_kv_int(b, "steps", s->steps);
    pd_json_kv_int(b, "steps_per_epoch", s->steps_per_epoch);
    pd_json_kv_int(b, "train_samples", s->info->count[DATA_TRAIN]);
    pd_json_kv_int(b, "val_samples", s->info->count[DATA_VAL]);
    pd_json_kv_int(b, "test_samples", s->info->count[DATA_TEST]);
    pd_json_kv_bool(b, "recompute", !s->keep_activations);
    pd_json_kv_num(b, "n_for_scale", spec->attention.n_for_scale);
    pd_json_kv_num(b, "scale", spec->attention.scale_value);
}

enum pd_err train_plan(struct job_config *config, const char *state_dir, const struct data_root *roots,
                       size_t root_count, const char *cache, int64_t memory_bytes, struct pd_buf *ret_json,
                       struct pd_why *why)
{
    struct train_setup s;
    struct forecast f;
    const struct pk_backend_api *api = NULL;
    enum pd_err err = train_setup_init(&s, config, roots, root_count, cache, state_dir, 0, true, why);

    if (err == PD_OK)
        err = train_backend(config, true, &api, why);
    if (err == PD_OK)
        err = train_recompute_choose(&s, config, api, memory_bytes, why);
    if (err == PD_OK)
        err = forecast(&s, api, &f, why);
    if (err != PD_OK)
        goto out;
    pd_json_open(ret_json, '{');
    put_forecast(&s, config, &f, ret_json);
    if (memory_bytes && (int64_t)f.total > memory_bytes)
        err = put_accumulated(&s, api, memory_bytes, ret_json, why);
    pd_json_close(ret_json, '}');
    if (err == PD_OK)
        err = pd_buf_err(ret_json);
out:
    train_setup_done(&s);
    return err;
}

enum pd_err train_score_plan(struct job_config *config, const char *state_dir, const struct data_root *roots,
                             size_t root_count, const char *cache, struct pd_buf *ret_json,
                             struct pd_why *why)
{
    const char *place = config->evaluate.model ? "#/model" : "#/checkpoint";
    const struct pk_backend_api *api = NULL;
    struct train_setup s = {.set = NULL};
    struct data_st *st = NULL;
    struct train_graph graph;
    struct pk_plan_report report;
    struct forecast f = {.total = 0};
    enum pd_err err = train_score_open(config, state_dir, &st, why);

    if (pd_err_lasting(err))
        pd_why_at(why, place);
    if (err == PD_OK)
        err = train_setup_score(&s, config, st, roots, root_count, cache, true, why);
    if (err == PD_ERR_VERSION)
        pd_why_at(why, place);
    if (err == PD_OK)
        err = train_backend(config, true, &api, why);
    if (err == PD_OK)
        err = train_graph_find(&s, TRAIN_GRAPH_EVAL, &graph)
                  ? plan_graph(&s, &graph, api, NULL, &report, why)
                  : pd_fail(why, PD_ERR_INTERNAL, "there is nothing to evaluate");
    if (err == PD_OK) {
        f.step = report;
        f.inputs = report.bytes[PK_CAT_INPUTS];
        f.arena = report.arena_bytes;
        f.total =
            report.bytes[model_spec(s.model)->mixed ? PK_CAT_MASTER : PK_CAT_WEIGHTS] + f.inputs + f.arena;
        pd_json_open(ret_json, '{');
        put_bytes(&s, config, &f, ret_json);
        pd_json_kv_int(ret_json, "scored_samples", s.info->count[DATA_VAL]);
        pd_json_close(ret_json, '}');
        err = pd_buf_err(ret_json);
    }
    train_setup_done(&s);
    data_st_free(st);
    return err;
}

#define LINES 40 /* of a graph: the longest nodes */

static enum pd_err count_graph(const struct train_setup *s, const struct train_graph *graph,
                               const struct pk_backend_api *api, const struct pk_peaks *peaks,
                               struct pk_roofline *sum, struct pd_buf *to, struct pd_why *why)
{
    const double times = (double)graph->times;
    struct pk_graph *g = NULL;
    struct pk_exec *e = NULL;
    enum pd_err err = plan(s, graph, api, NULL, &g, &e, why);

    if (err == PD_OK) {
        pd_buf_printf(to, "%s, %.0f times a step\n", graph->name, times);
        err = pk_roofline_nodes(e, peaks, times, LINES, to, why);
        pk_roofline_add(sum, e, peaks, times);
    }
    pk_exec_free(e);
    pk_graph_free(g);
    return err;
}

enum pd_err train_count(struct job_config *config, const char *state_dir, const struct data_root *roots,
                        size_t root_count, const char *cache, int64_t memory_bytes,
                        const struct pk_peaks *peaks, struct pd_buf *ret_text, struct pd_why *why)
{
    struct pk_roofline sum = {0};
    struct train_setup s;
    struct train_graph list[TRAIN_GRAPHS];
    size_t count = 0;
    const struct pk_backend_api *api = NULL;
    enum pd_err err = train_setup_init(&s, config, roots, root_count, cache, state_dir, 0, true, why);

    if (err == PD_OK)
        err = train_backend(config, true, &api, why);
    if (err == PD_OK)
        err = train_recompute_choose(&s, config, api, memory_bytes, why);
    if (err == PD_OK)
        count = train_graphs(&s, list);
    for (size_t i = 0; i < count && err == PD_OK; i++)
        if (list[i].times > 0)
            err = count_graph(&s, &list[i], api, peaks, &sum, ret_text, why);
    if (err == PD_OK) {
        pk_roofline_text(&sum, peaks, ret_text);
        err = pd_buf_err(ret_text);
    }
    train_setup_done(&s);
    return err;
}
