/* The table of ops by name, as weak symbols: an op that no file of this folder defines is NULL here, and a graph that
 * contains it is refused when it is planned (a test in tests/gpu names missing ops).
 */
#include "kernels/backend/cuda/cuda.h"

#define PK_OP(OP, name)                                                                                      \
    extern __attribute__((weak, visibility("hidden"))) cuda_run_fn cuda_##name;                              \
    extern __attribute__((weak, visibility("hidden"))) cuda_workspace_fn cuda_##name##_workspace;            \
    extern __attribute__((weak, visibility("hidden"))) cuda_supports_fn cuda_##name##_supports;              \
    extern __attribute__((weak, visibility("hidden"))) cuda_compiled_fn cuda_##name##_compiled;
#include "kernels/graph/op/ops.def"
#undef PK_OP

#define PK_OP(OP, name)                                                                                      \
    [PK_OP_##OP] = {cuda_##name, cuda_##name##_workspace, cuda_##name##_supports, cuda_##name##_compiled},
const struct cuda_op cuda_ops[PK_OP_COUNT] = {
#include "kernels/graph/op/ops.def"
};
#undef PK_OP
