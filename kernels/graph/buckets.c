/* Sums over ranks in few large buckets. Gradients become known in the reverse order of the layers. The node that
 * sums a bucket is placed where the last gradient of the bucket is computed, so that a back end can send it on a
 * second stream while the backward part goes on. */
#include <stdlib.h>

#include "kernels/graph/build.h"

#define ALIGN_BYTES 256 /* as buffers of the arena: kernels may load whole vectors */

struct entry {
    uint32_t index; /* of the value */
    uint32_t value;
    uint64_t key; /* position in the order of building */
    int32_t owner;
    int64_t at; /* offset in its bucket, in elements */
};

static int compare(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Emits one bucket of the entries e[0..n) and writes their sums. */
static void reduce(struct pk_graph *g, struct entry *const *e, size_t n, struct pk_val *sum)
{
    enum pk_dtype dtype = g->value[e[0]->value].dtype;
    int64_t align = ALIGN_BYTES / (int64_t)pk_dtype_size(dtype), total = 0;
    struct pk_val *piece = calloc(2 * n, sizeof *piece), all;
    uint32_t before = g->n_node;
    uint64_t key = 0;
    size_t pieces = 0;

    if (!piece) {
        (void)pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a bucket");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct pk_val v = {e[i]->value};
        struct pk_shape shape = pk_shape_of(g, v);
        int64_t count = pk_shape_count(&shape), pad = (align - count % align) % align;

        key = e[i]->key > key ? e[i]->key : key;
        e[i]->at = total;
        piece[pieces++] = pk_reshape(g, v, PK_SHAPE(count));
        if (pad && i + 1 < n)
            piece[pieces++] = pk_fill(g, dtype, PK_SHAPE(pad), 0);
        total += count + (i + 1 < n ? pad : 0);
    }
    all = pieces == 1 ? piece[0] : pk_concat(g, 0, piece, pieces);
    all = pk_all_reduce(g, all, e[0]->owner);
    for (size_t i = 0; i < n; i++) {
        struct pk_shape shape = pk_shape_of(g, (struct pk_val){e[i]->value});
        struct pk_val part = n == 1 ? all : pk_slice(g, all, 0, e[i]->at, pk_shape_count(&shape));

        sum[e[i]->index] = pk_reshape(g, part, shape);
    }
    free(piece);
    if (g->err != PD_OK)
        return;
    for (uint32_t i = before; i < g->n_node; i++) /* directly after the last of its values */
        g->node[i].key = key + 1;
    g->value[all.id].gradient = true;
}

void pk_all_reduce_buckets(struct pk_graph *g, const struct pk_val *value, const int32_t *owner, size_t count,
                           size_t bucket_bytes, struct pk_val *sum)
{
    struct entry *entry = calloc(count + 1, sizeof *entry), **open = calloc(count + 1, sizeof *open);
    bool *taken = calloc(count + 1, sizeof *taken);

    if (!g || g->err != PD_OK || !entry || !open || !taken) {
        if (g && g->err == PD_OK)
            (void)pk_graph_fail(g, PD_ERR_NOMEM, "no memory for buckets");
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        if (!value[i].id) {
            (void)pk_graph_fail(g, PD_ERR_INVALID, "all_reduce: value %zu is no value of this graph", i);
            goto out;
        }
        entry[i] = (struct entry){.index = (uint32_t)i,
                                  .value = value[i].id,
                                  .key = g->node[g->value[value[i].id].node].key,
                                  .owner = owner ? owner[i] : -1};
    }
    qsort(entry, count, sizeof *entry, compare);
    /* First round: a bucket of one owner and dtype is emitted as soon as it is large enough. Second round: the
     * incomplete buckets. */
    for (int last = 0; last < 2; last++)
        for (size_t i = 0; i < count; i++) {
            size_t n = 0, bytes = 0;

            if (taken[i])
                continue;
            for (size_t k = last ? i : 0; k < (last ? count : i + 1); k++) {
                struct pk_shape shape = pk_shape_of(g, (struct pk_val){entry[k].value});
                enum pk_dtype dtype = g->value[entry[k].value].dtype;

                if (taken[k] || entry[k].owner != entry[i].owner || dtype != g->value[entry[i].value].dtype)
                    continue;
                open[n++] = &entry[k];
                bytes += (size_t)pk_shape_count(&shape) * pk_dtype_size(dtype);
            }
            if (!last && bytes < bucket_bytes)
                continue;
            for (size_t k = 0; k < n; k++)
                taken[open[k] - entry] = true;
            reduce(g, open, n, sum);
            if (g->err != PD_OK)
                goto out;
        }
out:
    free(entry);
    free(open);
    free(taken);
}
