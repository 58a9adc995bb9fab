/* tests/graph/rig.h: a graph on the reference back end (or another), its leaves filled with numbers. */
#pragma once

#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/graph/graph.h"

struct rig {
    struct pk_graph *g;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct pk_exec *exec;
    void *memory[4096]; /* of each leaf */
    struct pd_why why;
};

/* What rig_new runs on: the reference, unless a test's main says otherwise. */
extern const struct pk_backend_api *(*rig_backend)(void);

/* A rig with an empty graph. Everything below fails the test when something goes wrong. */
struct rig *rig_new(bool decomposed);
/* The same on another back end. */
struct rig *rig_new_on(const struct pk_backend_api *api, int threads, bool decomposed);
struct rig *rig_free(struct rig *r);
/* Plans the graph and gives every leaf memory, floats uniform in [-1, 1) from a fixed sequence per name. */
void rig_plan(struct rig *r);
void rig_run(struct rig *r);
/* Plans again (other passes, other graph growth), keeping the contents of leaves. */
void rig_replan(struct rig *r);
void *rig_leaf(struct rig *r, const char *name);
void rig_set(struct rig *r, const char *name, const double *x);
double rig_get(struct rig *r, const char *name, int64_t i);
void rig_put(struct rig *r, const char *name, int64_t i, double x);
int64_t rig_count(struct rig *r, const char *name);
/* Output as doubles, malloc'ed; *ret_n elements. */
double *rig_read(struct rig *r, const char *output, int64_t *ret_n);
double rig_scalar(struct rig *r, const char *output);
/* The next number in [-1, 1) of a fixed sequence. */
double rig_random(uint64_t *state);

/* Checks d(output "f", a scalar)/d(leaf) in output "d.<leaf>" against central differences; f64. */
void rig_check_gradient(struct rig *r, const char *leaf, double tolerance);
