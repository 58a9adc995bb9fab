/* kernels/backend/cpu/ops.h: the ops of the copy being compiled; table.c gathers them. */
#pragma once

#include "kernels/backend/cpu/cpu.h"
#include "kernels/backend/cpu/move.h"
#include "kernels/backend/cpu/vec.h"

cpu_run_fn PK_FN(matmul), PK_FN(expr), PK_FN(reduce), PK_FN(sumsq), PK_FN(norm), PK_FN(norm_bwd),
    PK_FN(softmax), PK_FN(softmax_bwd), PK_FN(cross_entropy), PK_FN(cross_entropy_bwd),
    PK_FN(cross_entropy_grad), PK_FN(attention), PK_FN(attention_bwd), PK_FN(attention_stats),
    PK_FN(attention_state), PK_FN(attention_second), PK_FN(adamw), PK_FN(msgdw), PK_FN(accumulate),
    PK_FN(blend), PK_FN(scatter_add), PK_FN(dropout), PK_FN(conv2d), PK_FN(conv2d_dx), PK_FN(conv2d_dw),
    PK_FN(dwconv2d), PK_FN(dwconv2d_dw), PK_FN(formula), PK_FN(formula_bwd), PK_FN(formula_stats);
cpu_workspace_fn PK_FN(matmul_workspace), PK_FN(reduce_workspace), PK_FN(sumsq_workspace),
    PK_FN(norm_workspace), PK_FN(softmax_workspace), PK_FN(attention_workspace),
    PK_FN(attention_stats_workspace), PK_FN(attention_state_workspace), PK_FN(attention_second_workspace),
    PK_FN(optim_workspace), PK_FN(conv2d_workspace), PK_FN(dwconv2d_workspace), PK_FN(formula_workspace),
    PK_FN(formula_bwd_workspace), PK_FN(formula_stats_workspace);
void PK_FN(unary)(enum pk_ex op, int arg, int64_t n, const void *x, void *y);
void PK_FN(stream)(size_t bytes, const void *from, void *to);
