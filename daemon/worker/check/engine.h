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
    void *memory[CHECK_ENGINE_LEAVES]; /* of leaf i; NULL: another's */
    size_t leaves;
    bool f32; /* outputs are f32, not f64 */
};

/* A back end of one thread with an empty graph, which the caller writes. False: the check has failed; nothing is open.
 * Otherwise the caller calls check_engine_close. */
bool check_engine_open(struct check *c, struct check_engine *en);
/* The same around a graph that is taken over, also after a failure. */
bool check_engine_around(struct check *c, struct check_engine *en, struct pk_graph *g);
/* Plans the graph, and gives every leaf zeroed memory. */
void check_engine_plan(struct check *c, struct check_engine *en);
/* Writes all of a leaf: its f64 or f32 elements from doubles. */
void check_engine_put(struct check *c, struct check_engine *en, const char *leaf, const double *from);
void check_engine_put_ints(struct check *c, struct check_engine *en, const char *leaf, const int32_t *from);
/* The leaf's elements in memory that the caller may read and write; NULL after an error. */
void *check_engine_leaf(struct check *c, struct check_engine *en, const char *leaf, size_t *ret_count);
void check_engine_run(struct check *c, struct check_engine *en);
/* Reads `count` f64 or f32 elements of an output. */
void check_engine_get(struct check *c, struct check_engine *en, const char *output, double *to, size_t count);
void check_engine_close(struct check_engine *en);

/* The Jacobian of output "y" (ys elements) by leaf "x" (xs elements) as the graph computes it: input "seed" of y's shape,
 * output "dx" the gradient of sum(seed y). ret (ys, xs). */
void check_engine_jacobian(struct check *c, struct check_engine *en, size_t ys, size_t xs, double *ret);
/* The same by central differences of "y", whose leaf "x" is f64; `step` relative to the largest entry of x. */
void check_engine_differences(struct check *c, struct check_engine *en, size_t ys, size_t xs, double step,
                              double *ret);
