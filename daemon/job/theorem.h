/* daemon/job/theorem.h: the statements that jobs of kind check examine (T1 to T20), with the parameters of
 * each. The document names one in /check and gives parameters in /params; the worker computes it
 * (daemon/worker/check). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* clang-format off */
#define JOB_THEOREMS(X) \
    X(T1) X(T2) X(T3) X(T4) X(T5) X(T6) X(T7) X(T8) X(T9) X(T10) \
    X(T11) X(T12) X(T13) X(T14) X(T15) X(T16) X(T17) X(T18) X(T19) X(T20)
/* clang-format on */

#define JOB_THEOREM_CONSTANT(name) JOB_THEOREM_##name,
enum job_theorem { JOB_THEOREMS(JOB_THEOREM_CONSTANT) JOB_THEOREM_COUNT };
#undef JOB_THEOREM_CONSTANT

/* One parameter. A single number has `most` 0; a list has 1 to `most` entries. */
struct job_param {
    const char *name;
    bool whole; /* integers only */
    double min, max;
    size_t most;
    bool rising;     /* a list whose entries must grow */
    const char *def; /* JSON */
    const char *meaning;
};

/* "T4"; static. */
const char *job_theorem_name(enum job_theorem theorem);
/* The rows of its parameters, `seed` and `seeds` first, which every theorem has; NULL after the last. Static. */
const struct job_param *job_theorem_param(enum job_theorem theorem, size_t i);

/* A value of a resolved document. */
struct job_param_value {
    const char *name; /* static */
    size_t count;
    const double *items;
};
struct job_params {
    size_t count;
    const struct job_param_value *items;
};
/* NULL: there is none of that name. */
const struct job_param_value *job_param_find(const struct job_params *params, const char *name);
