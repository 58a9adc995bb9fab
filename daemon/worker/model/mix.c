/* daemon/worker/model/mix.c: mixup and cutmix of a batch, as part of the graph. */
#include <stdlib.h>

#include "daemon/worker/model/net.h"

/* Row i of a group of g is mixed with row g - 1 - i. I32 (B). */
static struct pk_val partners(struct net *n, int32_t group)
{
    int32_t *index = malloc((size_t)n->batch * sizeof *index);
    struct pk_val v;

    n->failed |= !index;
    if (!index)
        return PK_NONE;
    for (int32_t i = 0; i < n->batch; i++)
        index[i] = i - i % group + group - 1 - i % group;
    v = pk_const(n->g, PK_I32, PK_SHAPE(n->batch), index);
    free(index);
    return v;
}

/* The middles of `count` pixels, as `shape` says. */
static struct pk_val middles(struct net *n, int64_t count, struct pk_shape shape)
{
    const enum pk_dtype dtype = n->m->spec.dtype;
    const size_t size = pk_dtype_size(dtype);
    char *bytes = malloc((size_t)count * size);
    struct pk_val v;

    n->failed |= !bytes;
    if (!bytes)
        return PK_NONE;
    for (int64_t i = 0; i < count; i++)
        if (dtype == PK_F64)
            ((double *)(void *)bytes)[i] = (double)i + 0.5;
        else
            ((float *)(void *)bytes)[i] = (float)i + 0.5f;
    v = pk_const(n->g, dtype, shape, bytes);
    free(bytes);
    return v;
}

static struct pk_val column(struct net *n, struct pk_val mix, int which)
{
    return pk_reshape(n->g, pk_slice(n->g, mix, 1, which, 1), PK_SHAPE(n->batch, 1, 1, 1));
}

struct pk_val net_mix(struct net *n, struct pk_val images, int32_t group, struct model_rows *rows)
{
    const struct pk_shape shape = pk_shape_of(n->g, images);
    const int64_t pixels = shape.dim[1] * shape.dim[2] * shape.dim[3];
    struct pk_val mix, down, across, inside, weight, other, one;

    pk_graph_scope(n->g, "mix");
    mix = pk_input(n->g, "mix", n->m->spec.dtype, PK_SHAPE(n->batch, MODEL_MIXES));
    rows->share = pk_reshape(n->g, pk_slice(n->g, mix, 1, MODEL_MIX_SHARE, 1), PK_SHAPE(n->batch));
    rows->partner = partners(n, group);
    pk_graph_exact(n->g, true); /* places of pixels are no numbers to be rounded */
    down = middles(n, shape.dim[2], PK_SHAPE(1, 1, shape.dim[2], 1));
    across = middles(n, shape.dim[3], PK_SHAPE(1, 1, 1, shape.dim[3]));
    inside = pk_mul(n->g, pk_gt(n->g, down, column(n, mix, MODEL_MIX_TOP)),
                    pk_gt(n->g, column(n, mix, MODEL_MIX_BOTTOM), down));
    inside = pk_mul(n->g, inside,
                    pk_mul(n->g, pk_gt(n->g, across, column(n, mix, MODEL_MIX_LEFT)),
                           pk_gt(n->g, column(n, mix, MODEL_MIX_RIGHT), across)));
    weight = pk_mul(n->g, inside, column(n, mix, MODEL_MIX_WEIGHT));
    one = pk_fill(n->g, n->m->spec.dtype, PK_SHAPE(1), 1);
    other = pk_gather(n->g, pk_reshape(n->g, images, PK_SHAPE(n->batch, pixels)), rows->partner);
    images = pk_add(n->g, pk_mul(n->g, images, pk_sub(n->g, one, weight)),
                    pk_mul(n->g, pk_reshape(n->g, other, shape), weight));
    pk_graph_exact(n->g, false);
    return images;
}
