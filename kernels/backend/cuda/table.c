/* The table of ops, found by their names: an entry that no file of this folder defines is NULL here. So a
 * kernel joins by being there, and what is missing is refused when a graph is planned (tests/gpu names it).
 */
#include "kernels/backend/cuda/cuda.h"

#define PK_OP(OP, name)                                                                                      \
    extern __attribute__((weak, visibility("hidden"))) cuda_run_fn cuda_##name;                              \
    extern __attribute__((weak, visibility("hidden"))) cuda_workspace_fn cuda_##name##_workspace;            \
    extern __attribute__((weak, visibility("hidden"))) cuda_supports_fn cuda_##name##_supports;
#include "kernels/graph/op/ops.def"
#undef PK_OP

#define PK_OP(OP, name) [PK_OP_##OP] = {cuda_##name, cuda_##name##_workspace, cuda_##name##_supports},
const struct cuda_op cuda_ops[PK_OP_COUNT] = {
#include "kernels/graph/op/ops.def"
};
#undef PK_OP
