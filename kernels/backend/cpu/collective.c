/* ALL_REDUCE and BROADCAST_RANKS by kernels/comm, on host memory, in the caller's thread. */
#include <string.h>

#include "kernels/backend/cpu/cpu.h"
#include "kernels/comm/comm.h"

/* Both or neither. */
static const struct pk_comm_api *comm_of(const struct pk_backend *b)
{
    return b->host && b->host->comm ? b->host->comm_api : NULL;
}

enum pd_err cpu_all_reduce(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_comm_api *comm = comm_of(b);
    const struct pk_view *x = &c->in[0], *y = &c->out[0];
    int64_t count = pk_shape_count(&x->shape);

    if (!comm) { /* one rank */
        if (x->data != y->data)
            memcpy(y->data, x->data, (size_t)count * pk_dtype_size(x->dtype));
        return PD_OK;
    }
    return comm->all_reduce(b->host->comm, x->data, y->data, count, x->dtype, c->attr->ranks.root, NULL, why);
}

enum pd_err cpu_broadcast_ranks(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_comm_api *comm = comm_of(b);
    const struct pk_view *x = &c->in[0];

    return comm ? comm->broadcast(b->host->comm, x->data, pk_shape_count(&x->shape), x->dtype,
                                  c->attr->ranks.root, NULL, why)
                : PD_OK;
}
