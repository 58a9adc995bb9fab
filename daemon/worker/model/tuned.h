/* daemon/worker/model/tuned.h: services of a worker to a back end: logging, and records of measured choices.
 *
 * A back end times the algorithms of a matrix product once and records its choice under a key (GPU, driver, library, shape,
 * types: kernels/backend/cuda/matmul/matmul.c). With a daemon the records of all workers are in the daemon's store, reached
 * through struct model_tuned_store. Without one they may be lines of a file that is only appended to. Of two records with
 * one key the first is used, so that a resumed run makes the same choices. If records are lost, the back end measures
 * again, and the order of sums may change. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"

struct model_tuned;

/* Access to the store of records. The functions are called on the thread that runs the back end. */
struct model_tuned_store {
    void *ctx;
    /* Calls `take` with each record for devices of this kind; may wait a few seconds for them. */
    void (*recall)(void *ctx, const struct pk_backend_info *device,
                   void (*take)(void *to, const char *key, const void *value, size_t size), void *to);
    /* Stores a new record. Copies its arguments; does not wait. */
    void (*report)(void *ctx, const struct pk_backend_info *device, const char *key, const void *value,
                   size_t size);
};

/* Opens the records: those of `store` (copied), else those in `folder` (created if missing; malformed lines are skipped).
 * Both NULL: nothing is recorded, and back ends do not measure. log may be NULL. The caller owns *ret. */
PD_NODISCARD enum pd_err model_tuned_new(const char *folder, const struct model_tuned_store *store,
                                         void (*log)(void *user, int level, const char *line), void *user,
                                         struct model_tuned **ret, struct pd_why *why);
struct model_tuned *model_tuned_free(struct model_tuned *t);
/* Fills log, tuned_get, tuned_put, cache_dir and user of `host`; borrowed from t. */
void model_tuned_lend(struct model_tuned *t, struct pk_host *host);
/* Reads a GPU's records from the store. To be called after the back end has been opened and before it runs anything;
 * until then no record is known and none is reported. No effect without a store. */
void model_tuned_recall(struct model_tuned *t, const struct pk_backend_info *device);
/* Counts the records read and the records measured by this process. */
void model_tuned_count(const struct model_tuned *t, size_t *ret_known, size_t *ret_new);
