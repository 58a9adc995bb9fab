/* tests/backend/rig.h: runs one call on the CPU back end at every level and several numbers of threads, and
 * compares it with the reference back end: within a tolerance, bitwise between threads and between runs,
 * with guard bytes around every output and the workspace (check.c). tests/gpu has another rig_check: the CUDA
 * back end against the CPU, so that the same cases test both. */
#pragma once

#include "kernels/backend/backend.h"

#define RIG_MAX_IN 12
#define RIG_MAX_OUT 6

struct rig_case {
    enum pk_op op;
    struct pk_attr attr;
    int32_t n_in, n_out;
    struct pk_view in[RIG_MAX_IN];
    struct pk_shape out[RIG_MAX_OUT];
    enum pk_dtype out_dtype[RIG_MAX_OUT];
    int share[RIG_MAX_OUT]; /* 1 + the input whose (dense) memory the output shares; 0 = none */
    /* |got - want| <= tolerance * max(|want|, floor), the maximum being over the tensor. 0 = by dtype. */
    double tolerance, floor;
    double yard[RIG_MAX_OUT]; /* a floor of one output's own: what was added up for it, where sums cancel; or
                                 0 */
    bool f32_only; /* so large that rounding to bf16 on the way decides: not for tests of narrowed graphs */
    const char *name; /* for messages */
};

/* Fails the cmocka test at the first difference. */
void rig_check(const struct rig_case *c);

/* Numbers in lo..hi, the same for the same seed. Memory is freed by rig_reset. */
struct pk_view rig_random(enum pk_dtype dtype, struct pk_shape shape, double lo, double hi);
struct pk_view rig_values(enum pk_dtype dtype, struct pk_shape shape, const double *values);
/* The same values with gaps and with the axes stored in reverse order. */
struct pk_view rig_strided(const struct pk_view *v);
/* A view with its last two axes swapped. */
struct pk_view rig_transposed(struct pk_view v);
void *rig_alloc(size_t bytes);
int rig_reset(void **state); /* a cmocka teardown */

/* Memory filled with 0xff (as a float: NaN) between guard bytes: base + RIG_GUARD is the tensor. */
#define RIG_GUARD 256
struct rig_guarded {
    unsigned char *base; /* freed by the caller */
    size_t bytes;
};
struct rig_guarded rig_guarded_new(size_t bytes);
void rig_guarded_check(const struct rig_guarded *g, const char *name, const char *what);
/* Element i of dense data. */
double rig_get(const void *data, enum pk_dtype dtype, int64_t i);
void rig_put(struct pk_view *v, int64_t i, double x);
/* Fails at an output that is beyond the case's tolerance. */
void rig_compare(const struct rig_case *c, const char *label, const struct rig_guarded *got,
                 const struct rig_guarded *want);

/* A back end of the given level ("avx512", ...; NULL = best) and library (NULL = default), opened once. NULL
 * if this processor or system lacks it. */
struct pk_backend *rig_backend(const char *level, const char *gemm, int threads);
int rig_close_all(void **state);
extern const char *const rig_levels[3];
