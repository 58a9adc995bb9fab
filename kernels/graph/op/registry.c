/* The table of ops, and what several rules share. */
#include "kernels/graph/op/registry.h"

#include "kernels/graph/build.h"

#define PK_OP(OP, name) [PK_OP_##OP] = &pk_rule_##name,
static const struct pk_rule *const table[PK_OP_COUNT] = {
#include "kernels/graph/op/ops.def"
};
#undef PK_OP

const struct pk_rule *pk_rule_of(enum pk_op op)
{
    return (unsigned)op < PK_OP_COUNT ? table[op] : NULL;
}

const char *pk_op_name(enum pk_op op)
{
    const struct pk_rule *rule = pk_rule_of(op);

    return rule ? rule->name : "unknown";
}

int32_t pk_op_writes(enum pk_op op, const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    const struct pk_rule *rule = pk_rule_of(op);

    return rule && rule->writes ? rule->writes(attr, n_in, ret) : 0;
}

int32_t pk_op_writes_through(enum pk_op op, int32_t n_in, int32_t out)
{
    const struct pk_rule *rule = pk_rule_of(op);

    return rule && rule->through ? rule->through(n_in, out) : -1;
}

/* ---- what several rules share ---- */

void pk_vjp_zero(struct pk_vjp *v)
{
    (void)v;
}

int32_t pk_writes_first(const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    (void)attr;
    (void)n_in;
    ret[0] = 0;
    return 1;
}

int32_t pk_shares_first(const struct pk_attr *attr, int32_t n_in)
{
    (void)attr;
    (void)n_in;
    return 0;
}

uint64_t pk_hash_mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdu;
}

void pk_view_spread(struct pk_view *v, const struct pk_shape *to)
{
    struct pk_view out = {.data = v->data, .dtype = v->dtype, .shape = *to};
    int32_t lead = to->rank - v->shape.rank;

    for (int32_t i = 0; i < v->shape.rank; i++)
        out.stride[lead + i] = v->shape.dim[i] == to->dim[lead + i] ? v->stride[i] : 0;
    *v = out;
}

double pk_view_bytes(const struct pk_view *v)
{
    double n = (double)pk_dtype_size(v->dtype);

    for (int32_t i = 0; i < v->shape.rank; i++)
        n *= v->stride[i] || v->shape.dim[i] == 0 ? (double)v->shape.dim[i] : 1;
    return n;
}

double pk_view_count(const struct pk_view *v)
{
    return (double)pk_shape_count(&v->shape);
}

double pk_view_columns(const struct pk_view *v)
{
    return v->shape.rank ? (double)v->shape.dim[v->shape.rank - 1] : 1;
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
