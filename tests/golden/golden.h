/* tests/golden/golden.h: what the cases of the golden runner share.
 *
 * The runner opens every .safetensors file under the folders it is given, reads `group` from its config and
 * calls that group's function, which computes and compares. A group that is neither known nor on the list of
 * architectures to come is a failure, as is a case that compared nothing. To add a group: a function here, a
 * row in golden.c's table, a file of its own. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/data/safetensors.h"
#include "kernels/backend/backend.h"

struct gold {
    const char *path;
    struct data_st *st;
    json_t *config;
    const struct pk_backend_api *api;
    struct pk_backend *backend; /* 2 threads */
    int compared, failed;
    const char *to_come; /* set by a group: what this case still lacks; it then counts as skipped */
    double worst;        /* largest error in units of its tolerance */
    void *memory[512];   /* freed after the case */
    int memories;
};

/* Zeroed memory, freed after the case. */
void *gold_alloc(struct gold *g, size_t bytes);

/* From the config; the default where the key is absent or null. */
double gold_number(const struct gold *g, const char *key, double otherwise);
bool gold_flag(const struct gold *g, const char *key);
const char *gold_text(const struct gold *g, const char *key); /* "" if absent */

bool gold_has(const struct gold *g, const char *tensor);
/* The tensor as numbers; a missing one fails the case and gives NULL. `ret_shape` may be NULL. */
const double *gold_tensor(struct gold *g, const char *tensor, struct pk_shape *ret_shape);
/* The tensor as a dense view of f32 or f64; data NULL if missing. */
struct pk_view gold_view(struct gold *g, const char *tensor, enum pk_dtype dtype);
/* A zeroed dense view. */
struct pk_view gold_zeros(struct gold *g, enum pk_dtype dtype, struct pk_shape shape);

/* Fails the case with a sentence. */
void gold_fail(struct gold *g, const char *fmt, ...) PD_PRINTF(2, 3);

/* The tolerance of a comparison in f32: `rtol`, or in TF32 (GOLDEN_MATH=tf32) what the file has measured of
 * bf16 if that is more. TF32 drops what is below 2^-10 of a factor, bf16 rounds to 2^-8: a quarter of the
 * error, times the 4 that tests/golden/README.md 9 multiplies measurements by. */
double gold_rtol(const struct gold *g, double rtol);
/* max |got - want| <= rtol max(max |want|, floor), else a failure that names the tensor. `want` names a
 * tensor; got is a dense f32 or f64 view of as many elements. A positive `yardstick` replaces max |want|. */
void gold_compare(struct gold *g, const char *label, const struct pk_view *got, const char *want, double rtol,
                  double floor, double yardstick);
/* The same against numbers. */
void gold_compare_values(struct gold *g, const char *label, const struct pk_view *got, const double *want,
                         double rtol, double floor, double yardstick);

/* Runs one call with workspace; a failure fails the case. */
bool gold_run(struct gold *g, enum pk_op op, const struct pk_attr *attr, const struct pk_view *in, int n_in,
              const struct pk_view *out, int n_out);

/* ---- groups ---- */
void gold_attention(struct gold *g);
void gold_diagnostics(struct gold *g);
void gold_expectations(struct gold *g); /* its cases theory_* and note_* */
void gold_norms(struct gold *g);
void gold_blocks(struct gold *g);
void gold_models(struct gold *g);
void gold_optim(struct gold *g);
void gold_train(struct gold *g);
void gold_augment(struct gold *g);
void gold_swin(struct gold *g);
void gold_xcit(struct gold *g);
void gold_deit(struct gold *g);
void gold_pinn(struct gold *g);
void gold_nystrom(struct gold *g);
