/* daemon/worker/model/tuned.h: what a worker lends to a back end: its log, and records of measured choices.
 *
 * A back end times the algorithms of a product once and keeps the choice by name (GPU, driver, library,
 * shape, types: kernels/backend/cuda/matmul/matmul.c). Where a daemon is, it keeps the records for all
 * workers, by way of a keeper. Without one they may stand in a file of a folder, one line each, only ever
 * added to. Of two for one name the first holds, so that a run that goes on takes what it took before.
 * Records that are lost cost the timing again, and sums perhaps in another order. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"

struct model_tuned;

/* Who keeps records for this process. The functions come on the thread that runs the back end. */
struct model_tuned_keeper {
    void *ctx;
    /* Calls `take` with each record kept for devices like this one; may wait a few seconds for them. */
    void (*recall)(void *ctx, const struct pk_backend_info *device,
                   void (*take)(void *to, const char *key, const void *value, size_t size), void *to);
    /* A new one, to be kept. Copies; does not wait. */
    void (*report)(void *ctx, const struct pk_backend_info *device, const char *key, const void *value,
                   size_t size);
};

/* With a keeper (copied), no records are read from `folder`. Else reads the records in `folder` (made if missing); a
 * line that is no record is passed over. Both NULL: none are kept, and a back end does not measure. log may
 * be NULL. */
PD_NODISCARD enum pd_err model_tuned_new(const char *folder, const struct model_tuned_keeper *keeper,
                                         void (*log)(void *user, int level, const char *line), void *user,
                                         struct model_tuned **ret, struct pd_why *why);
struct model_tuned *model_tuned_free(struct model_tuned *t);
/* Fills log, tuned_get, tuned_put, cache_dir and user of `host`; borrowed from t. */
void model_tuned_lend(struct model_tuned *t, struct pk_host *host);
/* With a keeper: once the back end is open, before it runs anything. A GPU's records are recalled; until then
 * none is known and none is reported. */
void model_tuned_meet(struct model_tuned *t, const struct pk_backend_info *device);
/* Records known before this process measured any, and those it measured. */
void model_tuned_count(const struct model_tuned *t, size_t *ret_known, size_t *ret_new);
