/* tests/golden/rig.h: what the cases of whole graphs share: numbers of a file as doubles, and a planned graph
 * with memory for its leaves. */
#pragma once

#include <stdbool.h>

#include "kernels/graph/graph.h"
#include "tests/golden/golden.h"

/* A case being run for a struct gold. */
struct golden {
    struct gold *g;
    const char *file;
    const struct data_st *st;
    const json_t *config;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    int compared, failed; /* tensors */
    double worst;         /* largest error in units of its tolerance */
    void *owned;          /* list of memory freed with the case */
};

/* Config; the default where absent or null. */
double golden_num(const struct golden *c, const char *key, double other);
bool golden_flag(const struct golden *c, const char *key, bool other);
const char *golden_text(const struct golden *c, const char *key, const char *other);

/* Counts a failure with a sentence. */
void golden_fail(struct golden *c, const char *fmt, ...) PD_PRINTF(2, 3);

/* A tensor as double (floats or integers), owned by the case; fails the case and returns NULL if missing.
 * fmt makes the name. */
double *golden_tensor(struct golden *c, size_t *ret_count, const char *fmt, ...) PD_PRINTF(3, 4);
const struct data_st_tensor *golden_find(const struct golden *c, const char *fmt, ...) PD_PRINTF(2, 3);

/* max|got - want| <= rtol * max(max|want|, floor), else a failure naming the tensor. */
void golden_close(struct golden *c, const char *tensor, const double *got, const double *want, size_t count,
                  double rtol, double floor);
/* |got - want| <= tolerance. */
void golden_near(struct golden *c, const char *what, double got, double want, double tolerance);

/* A planned graph with memory for all its leaves, zeroed. */
struct golden_rig;
/* Takes the graph. NULL (and a failure) if it cannot be planned. */
struct golden_rig *golden_rig_new(struct golden *c, struct pk_graph *g);
struct golden_rig *golden_rig_free(struct golden_rig *r);
/* Numbers into a leaf, converted to its type. */
void golden_rig_put(struct golden_rig *r, const char *leaf, const double *from, size_t count);
bool golden_rig_run(struct golden_rig *r);
/* An output, or (name of a leaf) the memory of a parameter or state; owned by the case. NULL on failure. */
double *golden_rig_output(struct golden_rig *r, const char *name, size_t *ret_count);
double *golden_rig_leaf(struct golden_rig *r, const char *name, size_t *ret_count);

/* Runs one case for the runner: false from fn means that the case is unknown, which fails it. */
void golden_case(struct gold *g, bool (*fn)(struct golden *c));
