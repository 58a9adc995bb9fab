/* Leaves: memory that no node computes. They have no inputs and no shape rule; pk_input, pk_param, pk_state and
 * pk_const create them. */
#include <string.h>

#include "kernels/base/arena.h"
#include "kernels/graph/op/registry.h"

const struct pk_rule pk_rule_input = {.name = "input", .leaf = true, .fed = true};
const struct pk_rule pk_rule_param = {.name = "param", .leaf = true, .trained = true};
const struct pk_rule pk_rule_state = {.name = "state", .leaf = true};

static size_t bytes_of(const struct pk_attr *attr)
{
    return (size_t)pk_shape_count(&attr->shape) * pk_dtype_size(attr->constant.dtype);
}

static bool attr_own(struct pk_attr *attr, struct pd_arena *arena)
{
    const size_t bytes = bytes_of(attr);
    void *copy = pd_arena_alloc(arena, bytes ? bytes : 1);

    if (!copy)
        return false;
    if (bytes)
        memcpy(copy, attr->constant.bytes, bytes);
    attr->constant.bytes = copy;
    return true;
}

static bool attr_same(const struct pk_attr *a, const struct pk_attr *b)
{
    return a->constant.dtype == b->constant.dtype && pk_shape_equal(&a->shape, &b->shape) &&
           (!bytes_of(a) || memcmp(a->constant.bytes, b->constant.bytes, bytes_of(a)) == 0);
}

const struct pk_rule pk_rule_const = {
    .name = "const", .leaf = true, .fixed = true, .attr_own = attr_own, .attr_same = attr_same};
