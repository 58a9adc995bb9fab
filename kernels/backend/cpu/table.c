/* The table of ops of one copy; an entry per op, in the order of op.h. */
#include "kernels/backend/cpu/ops.h"
#include "kernels/backend/cpu/own_gemm.h"

#define OPS_PASTE2(level, type) cpu_ops_##level##_##type
#define OPS_PASTE(level, type) OPS_PASTE2(level, type)

const struct cpu_ops
    OPS_PASTE(CPU_LEVEL_NAME, PK_TYPE_NAME) =
        {
            .run =
                {
                    [PK_OP_COPY] = cpu_copy,
                    [PK_OP_FILL] = cpu_fill,
                    [PK_OP_CONCAT] = cpu_concat,
                    [PK_OP_PAD] = cpu_pad,
                    [PK_OP_GATHER] = cpu_gather,
                    [PK_OP_SCATTER_ADD] = PK_FN(scatter_add),
                    [PK_OP_ONE_HOT] = cpu_one_hot,
                    [PK_OP_EXPR] = PK_FN(expr),
                    [PK_OP_SUM] = PK_FN(reduce),
                    [PK_OP_MAX] = PK_FN(reduce),
                    [PK_OP_SUMSQ] = PK_FN(sumsq),
                    [PK_OP_MATMUL] = PK_FN(matmul),
                    [PK_OP_DROPOUT] = PK_FN(dropout),
                    [PK_OP_NORM] = PK_FN(norm),
                    [PK_OP_NORM_BWD] = PK_FN(norm_bwd),
                    [PK_OP_SOFTMAX] = PK_FN(softmax),
                    [PK_OP_SOFTMAX_BWD] = PK_FN(softmax_bwd),
                    [PK_OP_CROSS_ENTROPY] = PK_FN(cross_entropy),
                    [PK_OP_CROSS_ENTROPY_BWD] = PK_FN(cross_entropy_bwd),
                    [PK_OP_CROSS_ENTROPY_GRAD] = PK_FN(cross_entropy_grad),
                    [PK_OP_ATTENTION] = PK_FN(attention),
                    [PK_OP_ATTENTION_BWD] = PK_FN(attention_bwd),
                    [PK_OP_ATTENTION_STATS] = PK_FN(attention_stats),
                    [PK_OP_ATTENTION_STATE] = PK_FN(attention_state),
                    [PK_OP_ATTENTION_JVP] = PK_FN(attention_second),
                    [PK_OP_ATTENTION_BWD2] = PK_FN(attention_second),
                    [PK_OP_CACHE_APPEND] = cpu_cache_append,
                    [PK_OP_ADAMW] = PK_FN(adamw),
                    [PK_OP_MSGDW] = PK_FN(msgdw),
                    [PK_OP_ACCUMULATE] = PK_FN(accumulate),
                    [PK_OP_BLEND] = PK_FN(blend),
                    [PK_OP_ALL_REDUCE] = cpu_all_reduce,
                    [PK_OP_BROADCAST_RANKS] = cpu_broadcast_ranks,
                },
            .workspace =
                {
                    [PK_OP_SUM] = PK_FN(reduce_workspace),
                    [PK_OP_MAX] = PK_FN(reduce_workspace),
                    [PK_OP_SUMSQ] = PK_FN(sumsq_workspace),
                    [PK_OP_MATMUL] = PK_FN(matmul_workspace),
                    [PK_OP_NORM] = PK_FN(norm_workspace),
                    [PK_OP_NORM_BWD] = PK_FN(norm_workspace),
                    [PK_OP_SOFTMAX] = PK_FN(softmax_workspace),
                    [PK_OP_SOFTMAX_BWD] = PK_FN(softmax_workspace),
                    [PK_OP_CROSS_ENTROPY] = PK_FN(softmax_workspace),
                    [PK_OP_CROSS_ENTROPY_BWD] = PK_FN(softmax_workspace),
                    [PK_OP_CROSS_ENTROPY_GRAD] = PK_FN(softmax_workspace),
                    [PK_OP_ATTENTION] = PK_FN(attention_workspace),
                    [PK_OP_ATTENTION_BWD] = PK_FN(attention_workspace),
                    [PK_OP_ATTENTION_STATS] = PK_FN(attention_stats_workspace),
                    [PK_OP_ATTENTION_STATE] = PK_FN(attention_state_workspace),
                    [PK_OP_ATTENTION_JVP] = PK_FN(attention_second_workspace),
                    [PK_OP_ATTENTION_BWD2] = PK_FN(attention_second_workspace),
                    [PK_OP_ADAMW] = PK_FN(optim_workspace),
                    [PK_OP_MSGDW] = PK_FN(optim_workspace),
                    [PK_OP_ACCUMULATE] = PK_FN(optim_workspace),
                    [PK_OP_BLEND] = PK_FN(optim_workspace),
                },
            .unary = PK_FN(unary),
            .own_gemm = PK_FN(own_gemm),
            .own_gemm_scratch = PK_FN(own_gemm_scratch),
            .fma_peak = PK_FN(fma_peak),
};
