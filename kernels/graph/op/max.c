/* The maximum over axes. It has a derivative only with attr.reduce.flow: in most uses the derivative cancels. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    if (attr->reduce.axes)
        for (int32_t i = 0; i < in[0].shape.rank; i++)
            if ((attr->reduce.axes & (1u << i)) && in[0].shape.dim[i] == 0)
                return pd_fail(why, PD_ERR_INVALID, "the maximum of no elements is undefined");
    return pk_rule_sum.infer(attr, in, n_in, ret_out, ret_n_out, why);
}

static bool stops(const struct pk_attr *attr)
{
    return !attr->reduce.flow;
}

#define PLACES_MOST 16777216 /* f32 is exact for whole numbers up to here */

/* The gradient goes to the first maximum: the smallest index along the reduced axes, in row-major order, at which x
 * equals the result. Indices are exact: bf16 would round them. They are found in the forward part, because an x that
 * the backward part recomputes may differ from the result in the last bit. */
static void vjp(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    const bool exact = g->exact, backward = g->backward;
    const enum pk_dtype dtype = pk_dtype_of(g, v->in[0]);
    struct pk_shape whole = pk_shape_of(g, v->in[0]), kept = whole, reduced = whole;
    struct pk_val top, place, least, at, first;

    if (!v->attr->reduce.flow)
        return;
    for (int32_t i = 0; i < whole.rank; i++)
        (v->attr->reduce.axes & (1u << i) ? &kept : &reduced)->dim[i] = 1;
    if (pk_shape_count(&reduced) > PLACES_MOST) {
        pk_graph_fail(g, PD_ERR_LIMIT, "max: no derivative over more than %d elements", PLACES_MOST);
        return;
    }
    g->exact = true;
    g->backward = false;
    top = pk_reshape(g, v->out[0], kept);
    place = pk_reshape(g, pk_iota(g, dtype, pk_shape_count(&reduced)), reduced);
    place = pk_scale(g, place, -1.0);
    least = pk_fill(g, dtype, PK_SHAPE(1), -(double)pk_shape_count(&reduced));
    at = pk_select(g, pk_eq(g, v->in[0], top), place, least);
    first = pk_maximum(g, at, v->attr->reduce.axes, true);
    g->exact = exact;
    g->backward = backward;
    v->din[0] = pk_select(g, pk_eq(g, place, first), pk_reshape(g, v->dout[0], kept),
                          pk_fill(g, dtype, PK_SHAPE(1), 0.0));
}

const struct pk_rule pk_rule_max = {.name = "max",
                                    .min_in = 1,
                                    .max_in = 1,
                                    .kind = PK_KIND_SUM,
                                    .infer = infer,
                                    .vjp = vjp,
                                    .stops = stops,
                                    .makes = PK_MAKES_SUMS};
