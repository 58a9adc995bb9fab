/* daemon/worker/model/graph_infer.c: the graphs that only read a network: evaluation, probes, heat maps, serving. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/worker/model/arch/arch.h"
#include "daemon/worker/model/graphs.h"

enum pd_err model_graph_eval(const struct model *m, const struct model_loss *l, int32_t batch,
                             int32_t context, struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct model_rows rows = {.logits = PK_NONE};
    struct graph_sums loss;
    enum pd_err err = graph_begin(&n, m, graph_scored_points(m, batch), context, why);

    if (err != PD_OK)
        return err;
    rows.logits = graph_logits(&n);
    if (l->emit_eval) {
        loss = (struct graph_sums){.count = model_loss_sums(l)};
        pk_graph_scope(n.g, "loss");
        l->emit_eval(n.g, &m->spec, rows.logits, batch, loss.val);
    } else {
        loss = graph_loss(&n, l, &rows, 0);
    }
    pk_output(n.g, "logits", rows.logits);
    for (size_t i = 0; i < loss.count; i++)
        pk_output(n.g, l->sum[i], loss.val[i]);
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_probe(const struct model *m, int32_t batch, int32_t context, bool lead,
                              struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    enum pd_err err = graph_begin(&n, m, graph_scored_points(m, batch), context, why);

    if (err != PD_OK)
        return err;
    n.stats = calloc(m->modules + 1, sizeof *n.stats);
    n.residual = calloc(m->modules + 1, sizeof *n.residual);
    if (!n.stats || !n.residual) {
        free(n.stats);
        free(n.residual);
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    }
    n.skip = lead ? 0 : model_grid(m).lead;
    (void)graph_logits(&n);
    if (n.skip && n.skipped < m->modules) {
        free(n.stats);
        free(n.residual);
        free(n.param);
        pk_graph_free(n.g);
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/diagnostics/probe_cls: the attention of this network is not only between tokens");
    }
    for (size_t i = 0; i < m->modules; i++) {
        const struct {
            const char *name;
            struct pk_val v;
        } out[] = {{"fro", n.stats[i].fro},
                   {"jac_fro", n.stats[i].jac_fro},
                   {"jac_q_fro", n.stats[i].jac_q_fro},
                   {"logit_std", n.stats[i].logit_std},
                   {"logit_max", n.stats[i].logit_max},
                   {"broken", n.stats[i].broken}};

        for (size_t k = 0; k < sizeof out / sizeof out[0]; k++) {
            char name[32];

            if (!out[k].v.id)
                continue;
            snprintf(name, sizeof name, "%s/%zu", out[k].name, i + 1);
            pk_output(n.g, name, out[k].v);
        }
        if (n.residual[i].id) {
            char name[32];

            snprintf(name, sizeof name, "residual/%zu", i + 1);
            pk_output(n.g, name, n.residual[i]);
        }
    }
    return graph_finish(&n, ret, why);
}

/* The first layer or head of the lists that the network does not have is an error. */
static enum pd_err check_maps(const struct model *m, const struct model_maps *maps, struct pd_why *why)
{
    int64_t heads = 0;

    for (size_t i = 0; i < maps->layer_count; i++)
        if (maps->layers[i] < 1 || maps->layers[i] > (int64_t)m->modules)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/diagnostics/heatmaps/layers: there is no layer %lld; the network has %zu",
                           (long long)maps->layers[i], m->modules);
    for (size_t l = 0; l < m->modules; l++)
        if (model_maps_has(maps, (int64_t)l + 1, maps->head_count ? maps->heads[0] : 1) &&
            (!heads || m->module[l].heads < heads))
            heads = m->module[l].heads;
    for (size_t i = 0; i < maps->head_count; i++)
        if (maps->heads[i] < 1 || maps->heads[i] > heads)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/diagnostics/heatmaps/heads: there is no head %lld; a selected layer has %lld",
                           (long long)maps->heads[i], (long long)heads);
    return m->modules ? PD_OK
                      : pd_fail(why, PD_ERR_INVALID, "#/diagnostics/heatmaps: the network has no attention");
}

enum pd_err model_graph_maps(const struct model *m, const struct model_maps *maps, int32_t batch,
                             int32_t context, struct pk_graph **ret, struct pd_why *why)
{
    const int64_t times = maps->times > 0 ? maps->times : 1;
    int64_t wanted = 0; /* heads */
    struct pk_graph *g = NULL;
    struct net n;
    enum pd_err err = check_maps(m, maps, why);

    if (err == PD_OK)
        err = graph_begin(&n, m, graph_scored_points(m, batch), context, why);
    if (err != PD_OK)
        return err;
    n.maps = maps;
    (void)graph_logits(&n);
    err = graph_finish(&n, &g, why);
    if (err != PD_OK)
        return err;
    for (size_t l = 0; l < m->modules; l++)
        for (int32_t h = 0; h < m->module[l].heads; h++)
            wanted += model_maps_has(maps, (int64_t)l + 1, h + 1);
    if (n.map_heads < wanted)
        err = pd_fail(
            why, PD_ERR_UNSUPPORTED,
            "#/diagnostics/heatmaps: the attention of a selected layer has no matrix of queries and keys");
    else if (n.map_tokens > MODEL_MAP_TOKENS)
        err =
            pd_fail(why, PD_ERR_INVALID,
                    "#/diagnostics/heatmaps: matrices of %lld x %lld; at most %d tokens per side are stored",
                    (long long)n.map_tokens, (long long)n.map_tokens, MODEL_MAP_TOKENS);
    else if (n.map_bytes > MODEL_MAP_BYTES / times)
        err = pd_fail(why, PD_ERR_INVALID,
                      "#/diagnostics/heatmaps: %lld times %.1f MiB of matrices; at most %lld MiB are stored "
                      "for a run: select fewer layers and heads, or a larger every",
                      (long long)times, (double)n.map_bytes / 1048576, MODEL_MAP_BYTES >> 20);
    else if (n.map_heads > MODEL_MAP_HEADS / times)
        err =
            pd_fail(why, PD_ERR_INVALID,
                    "#/diagnostics/heatmaps: %lld heads %lld times; at most %d matrices are stored for a run",
                    (long long)n.map_heads, (long long)times, MODEL_MAP_HEADS);
    else if (n.map_count > MODEL_MAP_COUNT)
        err = pd_fail(
            why, PD_ERR_INVALID,
            "#/diagnostics/probe_batch: a head has %lld logits over the batch; heat maps count at most %d",
            (long long)n.map_count, MODEL_MAP_COUNT);
    if (err == PD_OK)
        *ret = g;
    else
        pk_graph_free(g);
    return err;
}

enum pd_err model_graph_classify(const struct model *m, int32_t batch, int32_t context, struct pk_graph **ret,
                                 struct pd_why *why)
{
    struct net n;
    struct pk_val logits;
    enum pd_err err;

    if (model_decodes(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a language model does not classify");
    err = graph_begin(&n, m, batch, context, why);
    if (err != PD_OK)
        return err;
    logits = graph_logits(&n);
    if (model_reads_points(&m->spec)) /* u at the first point of each sequence */
        logits = pk_slice(n.g, logits, 1, 0, 1);
    pk_output(n.g, "logits", logits);
    return graph_finish(&n, ret, why);
}

/* cache 0: a state of constant size. */
static enum pd_err decode_graph(const struct model *m, int32_t batch, int32_t count, int32_t cache,
                                int32_t picks, struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct pk_val in, pick, positions;
    enum pd_err err;

    if (!model_decodes(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a classifier does not decode");
    err = graph_begin(&n, m, batch, count, why);
    if (err != PD_OK)
        return err;
    n.decode = true;
    n.cache = cache;
    in = graph_input(&n, false);
    positions = pk_input(n.g, "pos", PK_I32, PK_SHAPE(n.batch, n.tokens));
    n.position = pk_input(n.g, "position", PK_I32, PK_SHAPE(n.batch));
    n.length = pk_input(n.g, "length", PK_I32, PK_SHAPE(n.batch));
    pick = pk_input(n.g, "pick", PK_I32, PK_SHAPE(picks));
    pk_output(n.g, "logits", m->spec.arch->decode(&n, in, positions, pick));
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_decode(const struct model *m, int32_t batch, int32_t count, int32_t cache,
                               struct pk_graph **ret, struct pd_why *why)
{
    if (cache < count || cache < 1)
        return pd_fail(why, PD_ERR_INVALID, "a cache of %d tokens cannot hold %d new tokens", cache, count);
    return decode_graph(m, batch, count, cache, batch, ret, why);
}

enum pd_err model_graph_score(const struct model *m, int32_t count, int32_t cache, struct pk_graph **ret,
                              struct pd_why *why)
{
    if (cache && cache < count)
        return pd_fail(why, PD_ERR_INVALID, "a cache of %d tokens cannot hold %d new tokens", cache, count);
    if (!cache && !model_has_state(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this attention has no state of constant size");
    return decode_graph(m, 1, count, cache, count, ret, why);
}

bool model_has_state(const struct model_spec *s)
{
    const struct model_attention *a = &s->attention;

    return model_decodes(s) && !a->formula.text[0] && pk_phi_power(a->phi) && a->degree <= 2 &&
           a->logit_bias == 0;
}

enum pd_err model_graph_decode_state(const struct model *m, int32_t batch, int32_t count,
                                     struct pk_graph **ret, struct pd_why *why)
{
    if (!model_has_state(&m->spec))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "only a language model with x^1 or x^2 decodes with a state of constant size");
    return decode_graph(m, batch, count, 0, batch, ret, why);
}
