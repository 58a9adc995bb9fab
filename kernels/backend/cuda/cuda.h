/* kernels/backend/cuda/cuda.h: declarations shared by the files of this back end.
 *
 * Each op of kernels/backend/cpu, which is the definition, has a .cu file here. A .cu file reads top down: how the
 * work is divided, what accumulates in float; `static __global__` kernels; one launcher; one extern "C" entry
 * for the table (table.c). Entries only enqueue on b->stream: no synchronising, no allocating, no globals, so
 * that a whole step can be captured as one CUDA graph. Scratch is the call's workspace. Sums are taken in an
 * order fixed by the shape alone: results are bitwise equal from run to run; no float atomics.
 *
 * Element types: a float view is f32 or bf16, independently of the others, unless op.h says otherwise; arithmetic,
 * statistics and sums are f32. There is no f64 here (the CPU back end has it).
 *
 * The sources use only the CUDA runtime API (<cuda_runtime.h>, <cuda_bf16.h>, <cublasLt.h>) and device.cuh.
 * tests/gpu/emu implements those headers for the host: there every kernel runs, thread by thread, without a GPU,
 * and is compared with the CPU back end. device.cuh lists what the emulation requires of the sources. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend/backend.h"

struct cuda_program; /* rtc.h */
struct cuda_blas;    /* matmul.c: handle, plans and measured choices */

struct pk_backend {
    const struct pk_host *host;
    int device;          /* CUDA's ordinal in this process */
    int sm;              /* compute capability times ten: 80, 90, 100 */
    int multiprocessors; /* of the device, or fewer with POLYD_CUDA_MULTIPROCESSORS */
    bool hopper;         /* kernels for sm 90 may be used; POLYD_CUDA_HOPPER=0 disables them */
    size_t shared_most;  /* most dynamic shared memory of one block, after opting in */
    enum pk_math math;
    cudaStream_t stream;      /* every kernel of a run, in order */
    cudaStream_t side;        /* transfers and collectives concurrent with it, joined by events */
    struct cuda_ranks *ranks; /* collective.c: pending collectives; allocated when first needed */
    struct cuda_blas *blas;
    /* Device memory, two words: the first error that a kernel found {1 + enum pk_op, value}; 0 = none.
     * Kernels write it with atomicCAS on the first word; sync reads and clears it, and fails with
     * PD_ERR_INVALID. */
    uint32_t *fault, *fault_host; /* fault_host: pinned, for reading it and a step's numbers */
    /* Device memory, one word: number of units that blocks of the running kernel have taken
     * (attention/hopper_fwd.cu). Every kernel that uses it returns it to 0; kernels of `stream` run one at a time. */
    uint32_t *units_taken;
    struct cuda_pinned *pinned;   /* of alloc_host */
    bool forgetful;               /* the host stores no records: attention/order.cu stops measuring */
    struct cuda_passage *passage; /* slot.c: the staging buffer of small uploads */
    cudaEvent_t read[2];          /* recorded after the copies of read_later */
    struct cuda_rtc *rtc;         /* rtc_load.c: compiled programs of formulas */
};

typedef enum pd_err cuda_run_fn(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
/* b may be NULL: a plan without a device; the answer is that of sm 90 with 132 multiprocessors. */
typedef size_t cuda_workspace_fn(const struct pk_backend *b, const struct pk_call *c);
/* Checks beyond the general rule (no f64). */
typedef bool cuda_supports_fn(const struct pk_backend *b, const struct pk_call *c);
/* Which program NVRTC compiles for the call. Data pointers are ignored; *ret refers to the call's attributes. */
typedef void cuda_compiled_fn(const struct pk_backend *b, const struct pk_call *c, struct cuda_program *ret);

struct cuda_op {
    cuda_run_fn *run;             /* NULL = no kernel: the graph is refused when it is planned */
    cuda_workspace_fn *workspace; /* NULL = none */
    cuda_supports_fn *supports;   /* NULL = all calls that the general rule allows */
    cuda_compiled_fn *compiled;   /* NULL = its kernels are part of the plug-in */
};
extern const struct cuda_op cuda_ops[PK_OP_COUNT]; /* table.c */

/* Every op by name: a file implements op X by defining cuda_X, and cuda_X_workspace, cuda_X_supports and cuda_X_compiled
 * if needed. There is no list to edit; a test names missing ops. Leaves and views are not run. */
#define PK_OP(OP, name)                                                                                      \
    cuda_run_fn cuda_##name;                                                                                 \
    cuda_workspace_fn cuda_##name##_workspace;                                                               \
    cuda_supports_fn cuda_##name##_supports;                                                                 \
    cuda_compiled_fn cuda_##name##_compiled;
#include "kernels/graph/op/ops.def"
#undef PK_OP

/* matmul.c, for backend.c: called after b->stream exists, and before the device is closed. NULL if no file defines
 * matmul. */
enum pd_err cuda_blas_open(struct pk_backend *b, struct pd_why *why);
void cuda_blas_close(struct pk_backend *b); /* also after a failed open; leaves b->blas NULL */
void cuda_blas_version(const struct pk_backend *b, char *out, size_t size); /* "cublasLt 13.1.0" */

/* collective.c: number of multiprocessors that collectives may occupy while other kernels run; 0 with one rank. A
 * persistent kernel starts that many blocks fewer: they could only begin after all others had ended. */
int cuda_ranks_multiprocessors(const struct pk_backend *b);

/* Converts a failure of the CUDA runtime: PD_ERR_NOMEM for memory, else PD_ERR_IO. */
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
