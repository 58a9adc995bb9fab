/* tests/gpu/attention_case.h: one case of attention on a back end for GPUs, forward and backward, against
 * plain loops in double (tests/reference) of the same inputs. */
#pragma once

#include "kernels/backend/backend.h"

struct attention_shape {
    int b, h, nq, nk, d;
};

enum attention_mask { MASK_NONE, MASK_KEYS, MASK_WINDOWS };
enum attention_scale { SCALE_NONE, SCALE_LAYER, SCALE_ZERO, SCALE_HEADS };

struct attention_case {
    const char *name;
    struct attention_shape shape;
    struct pk_attention_attr attr; /* tau 0: 1/sqrt(d); has_ flags are set from what follows */
    enum pk_dtype dtype;           /* f32 or bf16 */
    enum pk_math math;             /* of f32 */
    double spread;                 /* q and k lie in -spread..spread; 0: all zeros */
    enum attention_mask mask;
    enum attention_scale scale;
    bool bias, length, dropout;
    bool strided; /* q, k, v, dy with gaps and axes in reverse order */
    bool swapped; /* q, k, v, dy with tokens and heads stored the other way round and gaps between rows */
    bool forward; /* nothing else: decoding */
    bool hopper;  /* the kernels of sm 90 must be the ones that run */
    double loose; /* times the usual tolerance; 0 = 1 */
};

/* Opens the back end under test. POLYD_TEST_CACHE names a folder for compiled formulas, in which a later run finds them. */
void attention_open(const struct pk_backend_api *api);
/* The same with POLYD_CUDA_HOPPER=0, which stays set until attention_close restores what the environment had. */
void attention_open_without_hopper(const struct pk_backend_api *api);
/* Borrowed until attention_close. */
struct pk_backend *attention_device(void);
void attention_close(void);

/* Fails the cmocka test at the first difference. y is held against sum_j |A_ij| |v_jc| (kernels/ENGINE.md
 * 10), every gradient against its largest element, that of a scale, which is one sum of all, against the root
 * of the squares of its terms. Everything runs twice, in outputs filled with NaN, and must give the same
 * bits; the guards around outputs and workspace must be whole. */
void attention_check(const struct attention_case *t);

/* For calls of other ops: uploads the inputs (dense or not), runs on the back end under test and on the
 * reference (in double), compares output o relative to its largest element and `floor`. share[o]: 1 + the
 * input whose memory output o has. */
struct attention_call {
    const char *name;
    enum pk_op op;
    struct pk_attr attr;
    int n_in, n_out;
    struct pk_view in[16]; /* host memory */
    struct pk_shape out[6];
    bool wide[6]; /* f32 whatever the inputs are; else the dtype of the first, or of the one shared */
    int share[6];
    double tolerance, floor;
    double
        yard[6]; /* > 0: what an error of output o is relative to, if that is more than its largest element */
    enum pk_math math;
    int hopper; /* of FORMULA and FORMULA_BWD: > 0: the kernels of sm 90 must be the ones that run, < 0: others */
    bool always; /* checked in the ordinary run even where it covers nothing new (cover.h) */
};
void attention_call_check(const struct attention_call *c);

/* Host tensors, freed by attention_reset. */
struct pk_view attention_random(enum pk_dtype dtype, struct pk_shape shape, double lo, double hi);
struct pk_view attention_values(enum pk_dtype dtype, struct pk_shape shape, const double *values);
struct pk_view attention_strided(const struct pk_view *v);
/* The same numbers in double. */
struct pk_view attention_widened(const struct pk_view *v);
int attention_reset(void **state);
