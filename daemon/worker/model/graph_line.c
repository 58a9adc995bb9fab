/* daemon/worker/model/graph_line.c: the graphs of a search along a line, all trained parameters as one vector. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/graphs.h"

/* Each parameter begins on a boundary of 256 bytes; what lies between stays 0 and changes no product. */
static int64_t line_place(const struct model *m, size_t i)
{
    const int64_t unit = 256 / (int64_t)pk_dtype_size(m->spec.dtype);
    int64_t at = 0;

    for (size_t k = 0; k < i; k++)
        at += (pk_shape_count(&m->param[k].shape) + unit - 1) / unit * unit;
    return at;
}

int64_t model_line_length(const struct model *m)
{
    return line_place(m, m->trained);
}

/* The vectors and the history, in the order of checkpoints. */
struct line {
    struct pk_val along, x, d, g, before, s, y;
};

/* States and the input of all graphs of a line, whether a graph uses them or not: the first one owns them. */
static struct line line_of(struct net *n, const struct model_train_options *o)
{
    const enum pk_dtype dtype = n->m->spec.dtype;
    const int64_t length = model_line_length(n->m);
    const struct pk_shape one = PK_SHAPE(length), rows = PK_SHAPE(1, 1, o->line_rows, length);
    struct line l = {.along = pk_input(n->g, MODEL_LINE_ALONG, dtype, PK_SHAPE(1))};

    l.x = pk_state(n->g, "line/x", dtype, one, PK_CAT_MOMENT2);
    l.g = pk_state(n->g, "line/g", dtype, one, PK_CAT_MOMENT2);
    l.d = pk_state(n->g, MODEL_LINE_SAVED "d", dtype, one, PK_CAT_MOMENT1);
    l.before = pk_state(n->g, MODEL_LINE_SAVED "g", dtype, one, PK_CAT_MOMENT1);
    l.s = pk_state(n->g, MODEL_LINE_SAVED "s", dtype, rows, PK_CAT_MOMENT1);
    l.y = pk_state(n->g, MODEL_LINE_SAVED "y", dtype, rows, PK_CAT_MOMENT1);
    (void)pk_state(n->g, MODEL_LINE_NUMBERS, PK_F64, PK_SHAPE(o->line_numbers), PK_CAT_MOMENT1);
    return l;
}

static void put(struct net *n, struct pk_val state, struct pk_val x)
{
    pk_blend(n->g, state, x, pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(1), 1), 0);
}

/* Tensors of the trained parameters' shapes as one vector. */
static struct pk_val as_vector(struct net *n, const struct pk_val *part)
{
    const struct model *m = n->m;
    struct pk_val *all = calloc(2 * m->trained + 1, sizeof *all), ret;
    size_t count = 0;

    if (!all) {
        n->failed = true;
        return PK_NONE;
    }
    for (size_t i = 0; i < m->trained; i++) {
        const int64_t length = pk_shape_count(&m->param[i].shape),
                      gap = line_place(m, i + 1) - line_place(m, i) - length;

        all[count++] = pk_reshape(n->g, part[i], PK_SHAPE(length));
        if (gap)
            all[count++] = pk_fill(n->g, m->spec.dtype, PK_SHAPE(gap), 0);
    }
    ret = pk_concat(n->g, 0, all, count);
    free(all);
    return ret;
}

static struct pk_val part_of_vector(struct net *n, struct pk_val vector, size_t i)
{
    const struct pk_shape shape = n->m->param[i].shape;

    return pk_reshape(n->g, pk_slice(n->g, vector, 0, line_place(n->m, i), pk_shape_count(&shape)), shape);
}

static struct pk_val one_number(struct net *n, struct pk_val x)
{
    return pk_reshape(n->g, x, PK_SHAPE(1));
}

static struct pk_val dot(struct net *n, struct pk_val a, struct pk_val b)
{
    return one_number(n, pk_sum(n->g, pk_mul(n->g, a, b), 1u << 0, true));
}

static struct pk_val absolute(struct net *n, struct pk_val x)
{
    return pk_max2(n->g, x, pk_scale(n->g, x, -1));
}

enum pd_err model_graph_line(const struct model *m, const struct model_train_options *o,
                             struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct line l;
    struct graph_sums loss;
    struct pk_val *grad, logits, x, g, size, reported[MODEL_REPORT_MAX];
    enum pd_err err = graph_begin(&n, m, graph_trained_points(m, o->batch), o->context, why);

    if (err != PD_OK)
        return err;
    grad = calloc(m->trained + 1, sizeof *grad);
    if (!grad) {
        n.failed = true;
        return graph_finish(&n, ret, why);
    }
    pk_graph_scope(n.g, "line");
    l = line_of(&n, o);
    x = pk_add(n.g, l.x, pk_mul(n.g, l.along, l.d));
    for (size_t i = 0; i < m->trained; i++)
        n.param[i] = part_of_vector(&n, x, i);
    loss = graph_training_loss(&n, o, &logits);
    graph_report(&n, o->loss, &loss);
    pk_grad(n.g, loss.val[0], PK_NONE, n.param, m->trained, grad);
    pk_graph_scope(n.g, "line");
    g = as_vector(&n, grad);
    free(grad);
    put(&n, l.g, g);
    memcpy(reported, loss.val, loss.count * sizeof *reported);
    size = pk_unary(n.g, PK_EX_SQRT, dot(&n, g, g));
    reported[loss.count + MODEL_LINE_NORM] = size;
    reported[loss.count + MODEL_LINE_FINITE] =
        pk_mul(n.g, pk_unary(n.g, PK_EX_FINITE, loss.val[0]), pk_unary(n.g, PK_EX_FINITE, size));
    reported[loss.count + MODEL_LINE_SLOPE] = dot(&n, g, l.d);
    reported[loss.count + MODEL_LINE_LARGEST] =
        one_number(&n, pk_maximum(n.g, absolute(&n, g), 1u << 0, true));
    reported[loss.count + MODEL_LINE_SUM] = one_number(&n, pk_sum(n.g, absolute(&n, g), 1u << 0, true));
    pk_output(n.g, "report", pk_concat(n.g, 0, reported, loss.count + MODEL_LINE_NUMBERS_OF_POINT));
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_line_pair(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    const int64_t length = model_line_length(m);
    const struct pk_shape row = PK_SHAPE(1, 1, 1, length), rows = PK_SHAPE(o->line_rows, length);
    struct net n;
    struct line l;
    struct pk_val at, fresh[2], with[3], s, y;
    enum pd_err err = graph_begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    at = pk_input(n.g, MODEL_LINE_ROW, PK_I32, PK_SHAPE(1));
    fresh[0] = pk_mul(n.g, l.along, l.d);
    fresh[1] = pk_sub(n.g, l.g, l.before);
    s = pk_reshape(n.g, pk_cache_append(n.g, l.s, pk_reshape(n.g, fresh[0], row), at), rows);
    y = pk_reshape(n.g, pk_cache_append(n.g, l.y, pk_reshape(n.g, fresh[1], row), at), rows);
    with[0] = pk_reshape(n.g, fresh[1], PK_SHAPE(1, length));
    with[1] = pk_reshape(n.g, l.g, PK_SHAPE(1, length));
    with[2] = pk_reshape(n.g, fresh[0], PK_SHAPE(1, length));
    with[0] = pk_concat(n.g, 0, with, 3); /* (3, length): y, g, s */
    pk_output(n.g, "products",
              pk_concat(n.g, 0,
                        (struct pk_val[]){pk_matmul(n.g, s, pk_transpose(n.g, with[0])),
                                          pk_matmul(n.g, y, pk_transpose(n.g, with[0]))},
                        2));
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_line_direct(const struct model *m, const struct model_train_options *o,
                                    struct pk_graph **ret, struct pd_why *why)
{
    const int64_t length = model_line_length(m);
    const struct pk_shape rows = PK_SHAPE(o->line_rows, length), one = PK_SHAPE(length);
    struct net n;
    struct line l;
    struct pk_val c, d, reported[2];
    enum pd_err err = graph_begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    c = pk_input(n.g, MODEL_LINE_SHARES, m->spec.dtype, PK_SHAPE(1, 2 * o->line_rows + 1));
    d = pk_reshape(n.g, pk_matmul(n.g, pk_slice(n.g, c, 1, 0, o->line_rows), pk_reshape(n.g, l.s, rows)),
                   one);
    d = pk_add(n.g, d,
               pk_reshape(n.g,
                          pk_matmul(n.g, pk_slice(n.g, c, 1, o->line_rows, o->line_rows),
                                    pk_reshape(n.g, l.y, rows)),
                          one));
    d = pk_add(n.g, d, pk_mul(n.g, one_number(&n, pk_slice(n.g, c, 1, 2 * o->line_rows, 1)), l.g));
    put(&n, l.d, d);
    put(&n, l.before, l.g);
    reported[0] = dot(&n, l.g, d);
    reported[1] = one_number(&n, pk_maximum(n.g, absolute(&n, d), 1u << 0, true));
    pk_output(n.g, "direction", pk_concat(n.g, 0, reported, 2));
    return graph_finish(&n, ret, why);
}

static enum pd_err line_params(const struct model *m, const struct model_train_options *o, bool load,
                               struct pk_graph **ret, struct pd_why *why)
{
    struct net n;
    struct line l;
    struct pk_val x;
    enum pd_err err = graph_begin(&n, m, 1, 1, why);

    if (err != PD_OK)
        return err;
    l = line_of(&n, o);
    for (size_t i = 0; i < m->trained; i++)
        (void)net_param(&n, m->param[i].name, m->param[i].shape, NULL);
    if (load) {
        put(&n, l.x, as_vector(&n, n.param));
        return graph_finish(&n, ret, why);
    }
    x = pk_add(n.g, l.x, pk_mul(n.g, l.along, l.d));
    for (size_t i = 0; i < m->trained; i++)
        put(&n, n.param[i], part_of_vector(&n, x, i));
    return graph_finish(&n, ret, why);
}

enum pd_err model_graph_line_move(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    return line_params(m, o, false, ret, why);
}

enum pd_err model_graph_line_load(const struct model *m, const struct model_train_options *o,
                                  struct pk_graph **ret, struct pd_why *why)
{
    return line_params(m, o, true, ret, why);
}
