/* The gradient on sm 90 with blocks of one warpgroup: heads of up to 32, and up to 64 queries and keys.
 */
#include "kernels/backend/cuda/attention/hopper_bwd_builtin.cuh"

enum pd_err hopper_bwd_short(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                             struct pd_why *why)
{
    return hopper_columns(j->d) == 32 ? backward_launch_of<32, 1>(b, c, j, why)
                                      : backward_launch_of<64, 1>(b, c, j, why);
}
