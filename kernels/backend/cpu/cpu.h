/* kernels/backend/cpu/cpu.h: declarations shared by the files of this back end.
 *
 * Most files are compiled six times: for f32 and f64 (CPU_F64), each at three levels of instruction set
 * (portable, AVX2, AVX-512); the level is chosen when the back end is opened. PK_FN gives each copy its
 * own names. vec.h has the element type and the vectors of a copy.
 *
 * Every op divides its work into tasks by shape alone, never by the number of threads, and combines
 * partial sums in task order: results are bitwise the same for any number of threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend/backend.h"
#include "kernels/backend/cpu/gemm.h"
#include "kernels/backend/cpu/pool.h"

enum cpu_level { CPU_LEVEL_PORTABLE, CPU_LEVEL_AVX2, CPU_LEVEL_AVX512, CPU_LEVEL_COUNT };

struct pk_backend {
    const struct pk_host *host;
    struct cpu_pool *pool;
    const struct cpu_gemm *gemm;
    enum cpu_level level;
    bool half_held, half_products; /* fixed by pk_cpu_bf16_hold, not measured */
};

typedef enum pd_err cpu_run_fn(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
/* b NULL: the answer for a machine with default settings. */
typedef size_t cpu_workspace_fn(const struct pk_backend *b, const struct pk_call *c);

/* The ops of one copy (level and dtype), and functions that only tests and the start-up check call. */
struct cpu_ops {
    cpu_run_fn *run[PK_OP_COUNT];
    cpu_workspace_fn *workspace[PK_OP_COUNT]; /* NULL = none */
    /* n values through one instruction of EXPR with a single operand. */
    void (*unary)(enum pk_ex op, int arg, int64_t n, const void *x, void *y);
    /* C (M, N) = op(A) op(B) [+ C] by our own kernels, in this thread. `scratch` holds own_gemm_scratch. */
    void (*own_gemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                     const void *b, int64_t ldb, bool add, void *c, int64_t ldc, void *scratch);
    size_t (*own_gemm_scratch)(void);
    /* Multiply-adds per call of about `turns` x (independent chains); returns the number of flops done. */
    double (*fma_peak)(int64_t turns);
    /* MATMUL of two matrices of bf16 that cpu_half_takes; NULL in the copies for f64. */
    cpu_run_fn *half_matmul;
    cpu_workspace_fn *half_workspace;
    /* n numbers from bf16 and to it (to nearest, ties to even), dense. */
    void (*from_half)(int64_t n, const uint16_t *x, float *y);
    void (*to_half)(int64_t n, const float *x, uint16_t *y);
    /* Copies whole cache lines of 64 bytes to an aligned address, past the caches where the level can; a store fence has
     * to follow before another thread reads them. */
    void (*stream)(size_t bytes, const void *from, void *to);
};

extern const struct cpu_ops cpu_ops_portable_f32, cpu_ops_portable_f64;
#if defined CPU_X86_LEVELS /* only if the build has all levels (POLYD_CPU_LEVELS) */
extern const struct cpu_ops cpu_ops_avx2_f32, cpu_ops_avx2_f64;
extern const struct cpu_ops cpu_ops_avx512_f32, cpu_ops_avx512_f64;
#endif

/* Ops that move bytes without arithmetic, compiled once (move.c). */
cpu_run_fn cpu_copy, cpu_fill, cpu_concat, cpu_pad, cpu_gather, cpu_one_hot, cpu_cache_append;
/* Collectives (collective.c). */
cpu_run_fn cpu_all_reduce, cpu_broadcast_ranks;

/* Calls with some bf16 operands (widen.c): whether the call has no kernel of its own and must be widened; whether
 * widening supports it; the bytes of scratch; and running it with `fn`, the kernel for f32. */
bool cpu_widens(const struct pk_call *c);
/* Whether view i (inputs, then outputs) is the working copy written by an optimiser: always bf16. */
bool cpu_is_copy(const struct pk_call *c, int i);
bool cpu_widen_supports(const struct pk_call *c);
size_t cpu_widen_workspace(const struct cpu_ops *ops, const struct pk_backend *b, const struct pk_call *c);
enum pd_err cpu_widen(cpu_run_fn *fn, const struct cpu_ops *ops, struct pk_backend *b,
                      const struct pk_call *c, struct pd_why *why);

/* Products of bf16 (half.c). Mixed precision means the same in both: inputs of bf16, sums of f32. */
struct cpu_half {
    bool products;  /* true: by the library; false: by widen.c */
    double speedup; /* speed of a bf16 product over that of an f32 product, in one thread; 0: not measured */
    char why[200];  /* a sentence */
};
/* The choice for this process, measured at the first call, which takes some tens of milliseconds on processors with bf16
 * instructions. Static. */
const struct cpu_half *cpu_half(void);
/* Whether the value of POLYD_CPU_BF16 is valid. */
bool cpu_half_known(const char *choice);
/* Whether the library computes this call as a bf16 product: decided by types, shape and layout. */
bool cpu_half_takes(const struct pk_backend *b, const struct pk_call *c);

/* Threads of the back end; without one, those of a default configuration here. */
int cpu_threads_of(const struct pk_backend *b);

/* slot.c: entries of the table. */
void *cpu_alloc_host(struct pk_backend *b, size_t bytes);
void cpu_free_host(struct pk_backend *b, void *memory);
enum pd_err cpu_slot_new(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why);
struct pk_slot *cpu_slot_free(struct pk_backend *b, struct pk_slot *slot);
void *cpu_slot_host(struct pk_slot *slot);
enum pd_err cpu_slot_send(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
enum pd_err cpu_slot_wait(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
enum pd_err cpu_slot_take(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                          size_t count, struct pd_why *why);
enum pd_err cpu_info(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why);
enum pd_err cpu_set_math(struct pk_backend *b, enum pk_math math, struct pd_why *why);
/* The copy of ops for a level and an element type. */
const struct cpu_ops *cpu_ops_of(enum cpu_level level, bool f64);

/* Results as large as this do not stay in the caches: they are stored past them where that is possible, because an
 * ordinary store reads the line first. */
#define CPU_PAST_BYTES (8 << 20)

/* ---- small helpers ---- */

static inline int64_t cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t cpu_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t cpu_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t cpu_round_up(int64_t a, int64_t b)
{
    return cpu_div_up(a, b) * b;
}
/* Whether a matrix is dense along its rows or its columns, as the libraries require. */
static inline bool cpu_strides_fit(int64_t rows, int64_t cols, int64_t rs, int64_t cs)
{
    if (cs == 1 || cols == 1)
        return rs >= cpu_max(1, cols) || rows == 1;
    return (rs == 1 || rows == 1) && cs >= cpu_max(1, rows);
}
/* Offset, in elements, of row-major position `index` among the first `rank` axes of a view. */
static inline int64_t cpu_offset(const int64_t *dim, const int64_t *stride, int rank, int64_t index)
{
    int64_t off = 0;

    for (int i = rank - 1; i >= 0; i--) {
        off += index % dim[i] * stride[i];
        index /= dim[i];
    }
    return off;
}

/* Allocates 64-byte aligned pieces of a workspace; only adds up their sizes while base is NULL. */
struct cpu_scratch {
    char *base;
    size_t used;
};
static inline void *cpu_take(struct cpu_scratch *s, size_t bytes)
{
    size_t at = s->used;

    s->used += (bytes + 63) & ~(size_t)63;
    return s->base ? s->base + at : NULL;
}
