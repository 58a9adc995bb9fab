/* kernels/backend/cuda/cuda.h: what the files of this back end share.
 *
 * One .cu beside each op of kernels/backend/cpu, which is the definition. A .cu file reads top down: how the
 * work is divided, what accumulates in float; `static __global__` kernels; one launcher; one extern "C" entry
 * for the table (table.c). Entries only enqueue on b->stream: no synchronising, no allocating, no globals, so
 * that a whole step can be captured as one CUDA graph. Scratch is the call's workspace. Sums are taken in an
 * order fixed by the shape alone: results are bitwise equal from run to run; no float atomics.
 *
 * Element types: a float view is f32 or bf16, each view by itself, unless op.h says otherwise; arithmetic,
 * statistics and sums are f32. There is no f64 here (the oracle is the CPU's).
 *
 * The sources know only the CUDA runtime API (<cuda_runtime.h>, <cuda_bf16.h>, <cublasLt.h>) and device.cuh.
 * tests/gpu/emu holds another implementation of those headers for the host: there every kernel runs, thread
 * by thread, without a GPU, and is compared with the CPU back end. What it needs of the sources stands in
 * device.cuh. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "kernels/backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How matmul treats f32 operands. */
enum cuda_math { CUDA_MATH_F32, CUDA_MATH_TF32 };

struct cuda_blas; /* matmul.c: handle, plans and measured choices */

struct pk_backend {
    const struct pk_host *host;
    int device;           /* ordinal as CUDA shows it to this process */
    int sm;               /* compute capability times ten: 80, 90, 100 */
    int multiprocessors;
    size_t shared_most;   /* most dynamic shared memory of one block, after opting in */
    enum cuda_math math;
    cudaStream_t stream;  /* every kernel of a run, in order */
    cudaStream_t side;    /* transfers and collectives beside it, joined by events */
    struct cuda_blas *blas;
    /* Device memory, two words: the first error that a kernel found {1 + enum pk_op, value}; 0 = none. Kernels
     * write it with atomicCAS on the first word; sync reads and clears it, and fails with PD_ERR_INVALID. */
    uint32_t *fault;
};

typedef enum pd_err cuda_run_fn(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
/* b may be NULL: a plan without a device; the answer is that of sm 90 with 132 multiprocessors. */
typedef size_t cuda_workspace_fn(const struct pk_backend *b, const struct pk_call *c);
/* For what the general rule (f32, bf16) does not say already; NULL in the table = always. */
typedef bool cuda_supports_fn(const struct pk_backend *b, const struct pk_call *c);

struct cuda_op {
    cuda_run_fn *run;
    cuda_workspace_fn *workspace; /* NULL = none */
    cuda_supports_fn *supports;   /* NULL = whatever the general rule allows */
};
extern const struct cuda_op cuda_ops[PK_OP_COUNT]; /* table.c */

/* Failure of a call of the runtime, as an error of polyd: PD_ERR_NOMEM for memory, else PD_ERR_IO. */
enum pd_err cuda_fail(struct pd_why *why, cudaError_t error, const char *what);

/* Leaves the enclosing function with an error. Needs `why` in scope. */
#define PK_CUDA_TRY(expr)                                                                                    \
    do {                                                                                                     \
        cudaError_t pk_cuda_error_ = (expr);                                                                 \
        if (pk_cuda_error_ != cudaSuccess)                                                                   \
            return cuda_fail(why, pk_cuda_error_, #expr);                                                    \
    } while (0)

static inline int64_t cuda_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#ifdef __cplusplus
}
#endif
