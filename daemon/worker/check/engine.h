/* daemon/worker/check/engine.h: small graphs in double precision on the CPU back end, for statements about networks. */
#pragma once

#include "daemon/worker/check/internal.h"
#include "daemon/worker/model/model.h"
#include "kernels/graph/graph.h"

#define CHECK_ENGINE_LEAVES 256

struct check_engine {
    struct pk_graph *g;
    struct pk_backend *backend;
    struct pk_exec *exec;
    void *memory[CHECK_ENGINE_LEAVES]; /* owned memory of leaf i; NULL: owned elsewhere */
    size_t leaves;
    bool f32; /* outputs are f32, not f64 */
};

/* Opens a back end of one thread with an empty graph, which the caller builds. On success the caller calls
 * check_engine_close. False: the check has failed, nothing is open. */
bool check_engine_open(struct check *c, struct check_engine *en);
/* The same with the graph `g`, which it takes over even if it fails. */
bool check_engine_around(struct check *c, struct check_engine *en, struct pk_graph *g);
/* Plans the graph and allocates zeroed memory for every leaf. */
void check_engine_plan(struct check *c, struct check_engine *en);
/* Writes all elements of a leaf, f64 or f32, from doubles. */
void check_engine_put(struct check *c, struct check_engine *en, const char *leaf, const double *from);
void check_engine_put_ints(struct check *c, struct check_engine *en, const char *leaf, const int32_t *from);
/* The leaf's memory, borrowed until check_engine_close; the caller may read and write it. NULL after an error. */
void *check_engine_leaf(struct check *c, struct check_engine *en, const char *leaf, size_t *ret_count);
void check_engine_run(struct check *c, struct check_engine *en);
/* Reads `count` f64 or f32 elements of an output. */
void check_engine_get(struct check *c, struct check_engine *en, const char *output, double *to, size_t count);
void check_engine_close(struct check_engine *en);

/* The Jacobian (ys, xs) of output "y" (ys elements) with respect to leaf "x" (xs elements), from the graph's gradient: its
 * input "seed" has y's shape, its output "dx" is the gradient of sum(seed y). */
void check_engine_jacobian(struct check *c, struct check_engine *en, size_t ys, size_t xs, double *ret);
/* The same by central differences of "y"; "x" is f64, and `step` is relative to the largest entry of x. */
void check_engine_differences(struct check *c, struct check_engine *en, size_t ys, size_t xs, double step,
                              double *ret);
