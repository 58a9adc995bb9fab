/* daemon/worker/train/graphs.c: see graphs.h. */
#include "daemon/worker/train/graphs.h"

/* What a step computes twice, as train.recompute says; graphs that make no derivative keep nothing. */
static enum pd_err recomputing(const struct train_setup *s, enum pd_err err, struct pk_graph **ret)
{
    if (err == PD_OK)
        pk_graph_recompute(*ret, s->keep_activations ? PK_RECOMPUTE_NEVER : PK_RECOMPUTE_SMALLER);
    return err;
}

static enum pd_err part(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return recomputing(s, model_graph_part(s->model, &s->options, ret, why), ret);
}

static enum pd_err apply(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_apply(s->model, &s->options, ret, why);
}

static enum pd_err whole(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return recomputing(s, model_graph_train(s->model, &s->options, false, ret, why), ret);
}

static enum pd_err point(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return recomputing(s, model_graph_line(s->model, &s->options, ret, why), ret);
}

static enum pd_err pair(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_line_pair(s->model, &s->options, ret, why);
}

static enum pd_err direct(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_line_direct(s->model, &s->options, ret, why);
}

static enum pd_err move(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_line_move(s->model, &s->options, ret, why);
}

static enum pd_err load(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_line_load(s->model, &s->options, ret, why);
}

static enum pd_err eval(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_eval(s->model, s->task->loss, s->eval_batch, s->context, ret, why);
}

static enum pd_err probe(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_probe(s->model, s->probe_batch, s->context, s->probe_lead, ret, why);
}

static enum pd_err maps(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return model_graph_maps(s->model, &s->maps, s->probe_batch, s->context, ret, why);
}

static enum pd_err gradient(const struct train_setup *s, struct pk_graph **ret, struct pd_why *why)
{
    return recomputing(s, model_graph_gradient(s->model, &s->options, ret, why), ret);
}

size_t train_graphs(const struct train_setup *s, struct train_graph list[TRAIN_GRAPHS])
{
    size_t n = 0;

    if (s->optim && s->optim->searches) { /* an evaluation has no optimiser */
        list[n++] = (struct train_graph){TRAIN_GRAPH_UPDATE, "a point of the line", 1, point};
        list[n++] = (struct train_graph){TRAIN_GRAPH_LINE_PAIR, "a pair of the history", 0, pair};
        list[n++] = (struct train_graph){TRAIN_GRAPH_LINE_DIRECT, "the direction", 0, direct};
        list[n++] = (struct train_graph){TRAIN_GRAPH_LINE_MOVE, "a move along the line", 0, move};
        list[n++] = (struct train_graph){TRAIN_GRAPH_LINE_LOAD, "parameters as a vector", 0, load};
    } else if (s->parts > 1) {
        list[n++] = (struct train_graph){TRAIN_GRAPH_PART, "a part of the batch", s->parts, part};
        list[n++] = (struct train_graph){TRAIN_GRAPH_UPDATE, "the optimiser's step", 1, apply};
    } else {
        list[n++] = (struct train_graph){TRAIN_GRAPH_UPDATE, "the whole step", 1, whole};
    }
    list[n++] = (struct train_graph){TRAIN_GRAPH_EVAL, "the evaluation", 0, eval};
    if (s->probe_every > 0 && s->rank == 0)
        list[n++] = (struct train_graph){TRAIN_GRAPH_PROBE, "the probe", 0, probe};
    if (s->maps_every > 0 && s->rank == 0)
        list[n++] = (struct train_graph){TRAIN_GRAPH_MAPS, "attention matrices", 0, maps};
    if (s->histogram_count > 0 && s->rank == 0)
        list[n++] = (struct train_graph){TRAIN_GRAPH_GRADIENT, "distributions of gradients", 0, gradient};
    return n;
}

bool train_graph_find(const struct train_setup *s, enum train_graph_use use, struct train_graph *ret)
{
    struct train_graph list[TRAIN_GRAPHS];
    const size_t n = train_graphs(s, list);

    for (size_t i = 0; i < n; i++)
        if (list[i].use == use) {
            *ret = list[i];
            return true;
        }
    return false;
}
