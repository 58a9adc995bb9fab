/* New keys or values written into a cache, in place. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_shape *c = &in[0].shape, *n = &in[1].shape, *p = &in[2].shape;

    (void)attr;
    (void)n_in;
    if (c->rank != 4 || n->rank != 4 || c->dim[0] != n->dim[0] || c->dim[1] != n->dim[1] ||
        c->dim[3] != n->dim[3] || n->dim[2] > c->dim[2] ||
        (in[0].dtype != in[1].dtype && !(in[0].dtype == PK_BF16 && in[1].dtype == PK_F32)))
        return pd_fail(why, PD_ERR_INVALID, "needs a cache (B, H, T, d) and new rows (B, H, n, d), n <= T");
    if (in[2].dtype != PK_I32 || p->rank != 1 || (p->dim[0] != 1 && p->dim[0] != c->dim[0]))
        return pd_fail(why, PD_ERR_INVALID, "the position must be i32 (1) or (B)");
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

static int32_t through(int32_t n_in, int32_t out)
{
    (void)n_in;
    return out == 0 ? 0 : -1;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 1 ? PK_WANT_FIRST : PK_WANT_ANY;
}

/* The rest of the cache is unchanged. */
static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->read = pk_view_bytes(&c->in[1]);
    ret->written = pk_view_count(&c->in[1]) * (double)pk_dtype_size(c->in[0].dtype);
}

const struct pk_rule pk_rule_cache_append = {.name = "cache_append",
                                             .min_in = 3,
                                             .max_in = 3,
                                             .kind = PK_KIND_MOVEMENT,
                                             .infer = infer,
                                             .writes = pk_writes_first,
                                             .through = through,
                                             .want_of = want_of,
                                             .makes = PK_MAKES_ROWS,
                                             .cost = cost};
