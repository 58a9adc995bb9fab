/* kernels/graph/phi.h: the activations of attention, one row each (formulas with their sources: kernels/ATTENTION.md
 * 1). A new one is a row here and a word of the job table (JOB_ACTIVATIONS in daemon/job/job.h). Kernels branch on a
 * row's kind, never on its name. */
#pragma once

#include <stdbool.h>

/* clang-format off */
/* How a row of A is computed:
 *
 *   ALONE        A = f(S), entry by entry
 *   HOMOGENEOUS  the same, and f(t S) = t f(S) for t > 0: a factor on the logits may be moved to A
 *   POWER        A = S^p: has a degree, second-order kernels, a linear form and a state of constant size; kernels
 *                unroll small degrees and fold the p of f' into the factor of the head
 *   SUMMED       A = f(S) / the sum of f over the row
 *   EXPONENTIAL  the same with f = e^S, after the largest logit of the row is subtracted */
enum pk_phi_kind { PK_KIND_ALONE, PK_KIND_HOMOGENEOUS, PK_KIND_POWER, PK_KIND_SUMMED, PK_KIND_EXPONENTIAL };

/* A row: constant, name (as in documents and checkpoints), kind, f(S), f'(S) D. Its macros are defined once per
 * arithmetic (phi.c: graphs; cpu/attention_phi.h: vectors; cuda/attention/phi.cuh and hopper_phi.cuh: registers;
 * the two files of statistics: doubles):
 *
 *   S, V, D             the logit; in the column of f' also f(S), and the factor that f' is multiplied by
 *   NUM(x)              a constant
 *   ADD SUB MUL DIV     (a, b)
 *   ABS EXP TANH SIN COS SIGMOID   (a)
 *   MAX0(a)             max(a, 0)
 *   WHERE(a, b)         b where a > 0, else 0
 *   DSIGMOID(v)         v (1 - v): the slope of the sigmoid where its value is v
 *   WAVE(a), DWAVE(a)   sin(a + pi/4)^2 = (1 + sin 2a) / 2; its slope, cos 2a
 *   POW(a), DPOW(a)     a^p; its slope, p a^(p - 1)
 *
 * f and f' must be finite at S = 0: kernels compute masked entries there, and multiply them by 0. */
#define PK_EACH_PHI(ROW)                                                                                     \
    ROW(PK_PHI_SOFTMAX,  softmax,  EXPONENTIAL, EXP(S),     MUL(V, D))                                       \
    ROW(PK_PHI_POLY,     poly,     POWER,       POW(S),     MUL(DPOW(S), D))                                 \
    ROW(PK_PHI_SIGMOID,  sigmoid,  ALONE,       SIGMOID(S), MUL(DSIGMOID(V), D))                             \
    ROW(PK_PHI_RELU,     relu,     HOMOGENEOUS, MAX0(S),    WHERE(S, D))                                     \
    /* 1 + s + s^2 / 2, the exponential to second order */                                                   \
    ROW(PK_PHI_TAYLOR,   taylor,   SUMMED,      ADD(ADD(NUM(1), S), MUL(MUL(S, S), NUM(0.5))),               \
                                                MUL(ADD(NUM(1), S), D))                                      \
    /* softmax's periodic relative */                                                                        \
    ROW(PK_PHI_PERIODIC, periodic, SUMMED,      WAVE(S),    MUL(DWAVE(S), D))                                \
    /* Add a row here, at the end: checkpoints written before 2026-11 hold the number of a row. */
/* clang-format on */

#define PK_NAME_PHI(constant, name, kind, f, df) constant,
enum pk_phi { PK_EACH_PHI(PK_NAME_PHI) PK_PHIS };
#undef PK_NAME_PHI

/* Inline, because back ends take no symbols from the program. ALONE for a number outside the enum. */
static inline enum pk_phi_kind pk_phi_kind_of(enum pk_phi phi)
{
#define PK_KIND_OF_PHI(constant, name, kind, f, df)                                                          \
    case constant:                                                                                           \
        return PK_KIND_##kind;
    switch (phi) {
        PK_EACH_PHI(PK_KIND_OF_PHI)
    case PK_PHIS:
        break;
    }
#undef PK_KIND_OF_PHI
    return PK_KIND_ALONE;
}
/* Whether rows of A are divided by their sum. */
static inline bool pk_phi_normalised(enum pk_phi phi)
{
    return pk_phi_kind_of(phi) >= PK_KIND_SUMMED;
}
/* Whether the largest logit of a row is subtracted first; the statistic saved per row is then the log of its sum. */
static inline bool pk_phi_shifted(enum pk_phi phi)
{
    return pk_phi_kind_of(phi) == PK_KIND_EXPONENTIAL;
}
/* Whether it is x^p and has a degree. */
static inline bool pk_phi_power(enum pk_phi phi)
{
    return pk_phi_kind_of(phi) == PK_KIND_POWER;
}

/* phi.c: the names in documents and checkpoints. For an unknown number NULL, for an unknown name PK_PHIS. */
const char *pk_phi_name(enum pk_phi phi);
enum pk_phi pk_phi_find(const char *name);
