/* Rows of a table by index: embeddings. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)attr;
    (void)n_in;
    if (in[0].shape.rank != 2 || in[1].dtype != PK_I32)
        return pd_fail(why, PD_ERR_INVALID, "needs a table (V, D) and an i32 index");
    if (in[1].shape.rank == PK_MAX_RANK)
        return pd_fail(why, PD_ERR_INVALID, "the index has too many axes");
    ret_out[0] = (struct pk_type){in[0].dtype, in[1].shape};
    ret_out[0].shape.dim[ret_out[0].shape.rank++] = in[0].shape.dim[1];
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {v->in[1], v->dout[0]};

    a.scatter_add.rows = pk_shape_of(v->g, v->in[0]).dim[0];
    if (v->need[0])
        v->din[0] = pk_emit(v->g, PK_OP_SCATTER_ADD, &a, in, 2, NULL);
}

/* Only the rows that the index names are read. */
static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->read = pk_view_bytes(&c->in[1]) + pk_view_count(&c->out[0]) * (double)pk_dtype_size(c->in[0].dtype);
}

const struct pk_rule pk_rule_gather = {.name = "gather",
                                       .min_in = 2,
                                       .max_in = 2,
                                       .kind = PK_KIND_EMBEDDING,
                                       .infer = infer,
                                       .vjp = vjp,
                                       .makes = PK_MAKES_ROWS,
                                       .cost = cost};
