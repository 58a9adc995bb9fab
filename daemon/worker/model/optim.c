/* daemon/worker/model/optim.c: clipping by the global norm, and the updates, as part of the graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/model/net.h"

int32_t model_param_owner(const struct model *m, size_t i, int32_t ranks)
{
    int64_t load[64] = {0};
    int32_t owner = 0;

    if (ranks < 2)
        return 0;
    if (ranks > 64)
        return (int32_t)(i % (size_t)ranks);
    /* Largest first, the earlier of equals first: parameter i goes when all before it have gone. */
    for (int64_t size = INT64_MAX;;) {
        int64_t next = -1;

        for (size_t k = 0; k < m->trained; k++) {
            int64_t n = pk_shape_count(&m->param[k].shape);

            if (n < size && n > next)
                next = n;
        }
        assert(next >= 0);
        size = next;
        for (size_t k = 0; k < m->trained; k++) {
            if (pk_shape_count(&m->param[k].shape) != size)
                continue;
            owner = 0;
            for (int32_t r = 1; r < ranks; r++)
                if (load[r] < load[owner])
                    owner = r;
            if (k == i)
                return owner;
            load[owner] += size;
        }
    }
}

/* clip factor and whether to apply: (2) */
static struct pk_val gate_of(struct pk_graph *g, const struct model_train_options *o, struct pk_val loss,
                             struct pk_val divisor, struct pk_val length, enum pk_dtype dtype,
                             const struct pk_val *reported, size_t reported_count)
{
    struct pk_val one = pk_fill(g, dtype, PK_SHAPE(1), 1), gate[2] = {one, PK_NONE};

    if (o->clip_norm > 0) {
        struct pk_val ratio =
            pk_div(g, pk_fill(g, dtype, PK_SHAPE(1), o->clip_norm), pk_offset(g, length, 1e-6));

        gate[0] = pk_select(g, pk_gt(g, ratio, one), one, ratio);
    }
    if (divisor.id)
        gate[0] = pk_div(g, gate[0], divisor);
    /* A step whose loss or gradient is not finite leaves everything as it is. */
    gate[1] = pk_unary(g, PK_EX_FINITE, length);
    if (loss.id)
        gate[1] = pk_mul(g, pk_unary(g, PK_EX_FINITE, loss), gate[1]);
    pk_output(g, "applied", gate[1]);
    if (reported_count) { /* the report of a step, read in one transfer */
        struct pk_val all[MODEL_REPORT_MAX];

        assert(reported_count <= MODEL_SUMS_MAX);
        memcpy(all, reported, reported_count * sizeof *all);
        all[reported_count] = length;
        all[reported_count + 1] = gate[1];
        pk_output(g, "report", pk_concat(g, 0, all, reported_count + 2));
    }
    return pk_concat(g, 0, gate, 2);
}

/* The numbers of the step; *last, with `ahead`, whether the step before was applied. */
static struct pk_val hyper_of(struct pk_graph *g, const struct model_train_options *o, enum pk_dtype dtype,
                              struct pk_val *last)
{
    const struct pk_shape row = PK_SHAPE(4);
    struct pk_val both;

    *last = PK_NONE;
    if (!o->ahead)
        return pk_input(g, "hyper", dtype, row);
    both = pk_input(g, "hyper", dtype, PK_SHAPE(2, 4));
    *last = pk_state(g, MODEL_APPLIED, dtype, PK_SHAPE(1), PK_CAT_INPUTS);
    return pk_select(g, *last, pk_reshape(g, pk_slice(g, both, 0, 1, 1), row),
                     pk_reshape(g, pk_slice(g, both, 0, 0, 1), row));
}

struct pk_val model_emit_optimiser(struct pk_graph *g, const struct model_train_options *o,
                                   struct pk_val loss, struct pk_val divisor,
                                   const struct model_optim_item *item, size_t count,
                                   const struct pk_val *reported, size_t reported_count)
{
    enum pk_dtype dtype = pk_dtype_of(g, item[0].param);
    struct pk_val last, hyper = hyper_of(g, o, dtype, &last), length, gate;
    struct pk_val *grad = calloc(count, sizeof *grad), *average = calloc(count, sizeof *average);
    size_t own = 0;

    if (!grad || !average) {
        free(grad);
        free(average);
        return pk_sumsq(g, NULL, 0); /* an error that sticks to the graph */
    }
    for (size_t i = 0; i < count; i++)
        if (item[i].owner < 0 || item[i].owner == o->rank)
            grad[own++] = item[i].grad;
    pk_graph_scope(g, "optimiser");
    length = own ? pk_sumsq(g, grad, own) : pk_fill(g, dtype, PK_SHAPE(1), 0);
    if (item[0].owner >= 0) /* every rank knows the squares of its own */
        length = pk_all_reduce(g, length, -1);
    length = pk_unary(g, PK_EX_SQRT, length);
    free(grad);
    if (divisor.id)
        length = pk_div(g, length, divisor);
    pk_output(g, "grad_norm", length);
    gate = gate_of(g, o, loss, divisor, length, dtype, reported, reported_count);
    for (size_t i = 0; i < count; i++) {
        struct pk_shape shape = pk_shape_of(g, item[i].param);
        struct pk_optim_spec spec = {.beta1 = o->beta1,
                                     .beta2 = o->beta2,
                                     .cycled = o->cycled,
                                     .eps = o->eps,
                                     .momentum = o->momentum,
                                     .dampening = o->dampening,
                                     .nesterov = o->nesterov,
                                     .weight_decay = item[i].decay ? o->weight_decay : 0,
                                     .lr_mult = item[i].lr_mult,
                                     .ema = o->ema};
        struct model_update u = {.param = item[i].param, .grad = item[i].grad, .hyper = hyper, .gate = gate};
        char name[80];

        if (o->ema > 0) {
            snprintf(name, sizeof name, "ema/%s", item[i].name);
            spec.average = average[i] = pk_state(g, name, dtype, shape, PK_CAT_EMA);
        }
        if (item[i].owner >= 0 && item[i].owner != o->rank)
            continue;
        for (int k = 0; k < o->optimizer->states; k++) {
            snprintf(name, sizeof name, "%s%s", o->optimizer->state[k].prefix, item[i].name);
            u.state[k] = pk_state(g, name, dtype, shape, o->optimizer->state[k].category);
        }
        u.spec = spec;
        o->optimizer->update(g, &u);
    }
    /* What came of it, from owner to everyone. */
    for (size_t i = 0; i < count; i++)
        if (item[i].owner >= 0) {
            pk_broadcast_ranks(g, item[i].param, item[i].owner);
            if (o->ema > 0)
                pk_broadcast_ranks(g, average[i], item[i].owner);
        }
    free(average);
    if (last.id)
        pk_blend(g, last, pk_slice(g, gate, 0, 1, 1), pk_fill(g, dtype, PK_SHAPE(1), 1), 0);
    return pk_slice(g, gate, 0, 1, 1);
}
