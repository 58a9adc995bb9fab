/* daemon/worker/train/executable.h: private to this module: a planned graph with the memory of its inputs and
 * states, and access to inputs and outputs.
 *
 * Every part of a run owns the executables that it runs; others may borrow one to look up its leaves. Belongs
 * to the training thread. */
#pragma once

#include "daemon/worker/data/data.h"
#include "daemon/worker/model/model.h"

/* Written by executable.c alone. The owner runs `exec`; leaves are looked up with the functions below. */
struct executable {
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct pk_graph *graph;
    struct pk_exec *exec;
    void **memory; /* per leaf; NULL where another owns it: parameters, shared states */
    size_t leaves;
    bool wide; /* outputs are f64 instead of f32 */
};

/* Where an executable is planned; all of it is borrowed and outlives the executable. */
struct executable_place {
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    const struct model_store *store;   /* of its parameters; NULL: it has none */
    const struct model_store *teacher; /* of its states "teacher/..."; NULL: it has none */
    struct pk_arena *arena;            /* NULL: one of its own */
    const struct executable *with; /* a state that this one has under the same name is shared; may be NULL */
    bool wide;
};

/* Plans `graph`, allocates its inputs and states (zeroed) and binds everything. Owns `graph` from here on,
 * whatever the result; the caller calls executable_done in every case. */
PD_NODISCARD enum pd_err executable_init(struct executable *e, struct pk_graph *graph,
                                         const struct executable_place *place, struct pd_why *why);
/* Zeroed storage is fine. */
void executable_done(struct executable *e);

/* Leaf i and its memory (NULL where another owns it); false past the last. */
bool executable_leaf(const struct executable *e, size_t i, struct pk_leaf *ret, void **ret_memory);
/* The same by name; false if there is none. */
bool executable_find(const struct executable *e, const char *name, struct pk_leaf *ret, void **ret_memory);
/* The memory of an input or state; NULL if there is none of that name. */
void *executable_memory(const struct executable *e, const char *name);

/* ---- inputs: setting one that the graph does not have is not an error ---- */

/* Part `part` of a batch, as large as the inputs are; f32 is widened where the graph computes in f64. */
PD_NODISCARD enum pd_err executable_feed_batch(struct executable *e, const struct data_batch *b, int64_t part,
                                               struct pd_why *why);
#define EXECUTABLE_NUMBERS_MAX 8
/* `count` numbers, all that the input holds, in its dtype: f32 or f64. */
PD_NODISCARD enum pd_err executable_feed_numbers(struct executable *e, const char *name, const double *x,
                                                 size_t count, struct pd_why *why);
/* The generator of this draw's noise; the rank is read where ranks draw for a whole batch. */
PD_NODISCARD enum pd_err executable_feed_rng(struct executable *e, uint64_t seed, uint32_t draw, int rank,
                                             struct pd_why *why);

/* Shape of an output of the last run; false: there is none of that name, or the graph has not run. */
bool executable_output(struct executable *e, const char *name, struct pk_shape *ret_shape);
/* Reads `count` numbers of an output as double. */
PD_NODISCARD enum pd_err executable_read(struct executable *e, const char *name, double *to, size_t count,
                                         struct pd_why *why);
/* The same in two halves, on a back end that has them: the copy is enqueued to `place` (0 or 1); the second half waits for
 * it and not for later runs. At most EXECUTABLE_LATER_MAX numbers. */
#define EXECUTABLE_LATER_MAX 24
PD_NODISCARD enum pd_err executable_read_later(struct executable *e, const char *name, int place,
                                               size_t count, struct pd_why *why);
PD_NODISCARD enum pd_err executable_read_wait(struct executable *e, int place, double *to, size_t count,
                                              struct pd_why *why);
