/* The table of ops, and what several rules share. */
#include "kernels/ops/registry.h"

#include "kernels/graph/build.h"

static const char *const leaf_name[] = {
    [PK_OP_INPUT] = "input", [PK_OP_PARAM] = "param", [PK_OP_STATE] = "state"};

static const struct pk_rule *const table[PK_OP_COUNT] = {
    [PK_OP_RESHAPE] = &pk_rule_reshape,
    [PK_OP_PERMUTE] = &pk_rule_permute,
    [PK_OP_SLICE] = &pk_rule_slice,
    [PK_OP_BROADCAST] = &pk_rule_broadcast,
    [PK_OP_COPY] = &pk_rule_copy,
    [PK_OP_FILL] = &pk_rule_fill,
    [PK_OP_CONCAT] = &pk_rule_concat,
    [PK_OP_PAD] = &pk_rule_pad,
    [PK_OP_GATHER] = &pk_rule_gather,
    [PK_OP_SCATTER_ADD] = &pk_rule_scatter_add,
    [PK_OP_ONE_HOT] = &pk_rule_one_hot,
    [PK_OP_EXPR] = &pk_rule_expr,
    [PK_OP_SUM] = &pk_rule_sum,
    [PK_OP_MAX] = &pk_rule_max,
    [PK_OP_SUMSQ] = &pk_rule_sumsq,
    [PK_OP_MATMUL] = &pk_rule_matmul,
    [PK_OP_DROPOUT] = &pk_rule_dropout,
    [PK_OP_NORM] = &pk_rule_norm,
    [PK_OP_NORM_BWD] = &pk_rule_norm_bwd,
    [PK_OP_SOFTMAX] = &pk_rule_softmax,
    [PK_OP_SOFTMAX_BWD] = &pk_rule_softmax_bwd,
    [PK_OP_CROSS_ENTROPY] = &pk_rule_cross_entropy,
    [PK_OP_CROSS_ENTROPY_BWD] = &pk_rule_cross_entropy_bwd,
    [PK_OP_CROSS_ENTROPY_GRAD] = &pk_rule_cross_entropy_grad,
    [PK_OP_ATTENTION] = &pk_rule_attention,
    [PK_OP_ATTENTION_BWD] = &pk_rule_attention_bwd,
    [PK_OP_ATTENTION_STATS] = &pk_rule_attention_stats,
    [PK_OP_ATTENTION_STATE] = &pk_rule_attention_state,
    [PK_OP_ATTENTION_JVP] = &pk_rule_attention_jvp,
    [PK_OP_ATTENTION_BWD2] = &pk_rule_attention_bwd2,
    [PK_OP_CACHE_APPEND] = &pk_rule_cache_append,
    [PK_OP_ADAMW] = &pk_rule_adamw,
    [PK_OP_MSGDW] = &pk_rule_msgdw,
    [PK_OP_ACCUMULATE] = &pk_rule_accumulate,
    [PK_OP_ALL_REDUCE] = &pk_rule_all_reduce,
    [PK_OP_BROADCAST_RANKS] = &pk_rule_broadcast_ranks,
};

const struct pk_rule *pk_rule_of(enum pk_op op)
{
    return (unsigned)op < PK_OP_COUNT ? table[op] : NULL;
}

const char *pk_op_name(enum pk_op op)
{
    if ((unsigned)op <= PK_OP_STATE)
        return leaf_name[op];
    return (unsigned)op < PK_OP_COUNT && table[op] ? table[op]->name : "unknown";
}

int32_t pk_op_writes(enum pk_op op, const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    int32_t n = 0;

    switch (op) {
    case PK_OP_ADAMW: /* p, m, v, average, copy */
    case PK_OP_MSGDW:
        ret[n++] = 0;
        ret[n++] = 2;
        if (op == PK_OP_ADAMW)
            ret[n++] = 3;
        if (attr->optim.ema > 0)
            ret[n++] = n_in - 1 - attr->optim.copy;
        if (attr->optim.copy)
            ret[n++] = n_in - 1;
        break;
    case PK_OP_ATTENTION_STATE:
        ret[n++] = n_in - 1;
        break;
    case PK_OP_CACHE_APPEND:
    case PK_OP_ACCUMULATE:
    case PK_OP_BROADCAST_RANKS:
        ret[n++] = 0;
        break;
    default:
        break;
    }
    return n;
}

void pk_vjp_zero(struct pk_vjp *v)
{
    (void)v;
}

int32_t pk_op_writes_through(enum pk_op op, int32_t n_in, int32_t out)
{
    if (op == PK_OP_CACHE_APPEND && out == 0)
        return 0;
    return op == PK_OP_ATTENTION_STATE && out == 1 ? n_in - 1 : -1;
}

bool pk_shape_broadcast(const struct pk_shape *a, const struct pk_shape *b, struct pk_shape *ret)
{
    int32_t rank = a->rank > b->rank ? a->rank : b->rank;
    struct pk_shape out = {.rank = rank};

    for (int32_t i = 0; i < rank; i++) {
        int64_t x = i < rank - a->rank ? 1 : a->dim[i - (rank - a->rank)];
        int64_t y = i < rank - b->rank ? 1 : b->dim[i - (rank - b->rank)];

        if (x != y && x != 1 && y != 1)
            return false;
        out.dim[i] = x == 1 ? y : x;
    }
    *ret = out;
    return true;
}

struct pk_val pk_sum_to(struct pk_graph *g, struct pk_val x, struct pk_shape shape)
{
    struct pk_shape from = pk_shape_of(g, x);
    int32_t lead = from.rank - shape.rank;
    uint32_t axes = 0;

    for (int32_t i = 0; i < from.rank; i++)
        if (i < lead || (shape.dim[i - lead] == 1 && from.dim[i] != 1))
            axes |= 1u << i;
    if (axes)
        x = pk_sum(g, x, axes, true);
    return pk_reshape(g, x, shape);
}
