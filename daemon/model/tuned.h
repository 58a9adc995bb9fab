/* daemon/model/tuned.h: what a worker lends to a back end: its log, and records of measured choices.
 *
 * A back end times the algorithms of a product once and keeps the choice by name (GPU, driver, library,
 * shape, types: kernels/backend/cuda/matmul.c). Records stand in one file of a folder that all workers share,
 * one line each, only ever added to; of two for one name the first holds, so that a run that goes on takes
 * what it took before. A file that is lost costs the timing again, and sums perhaps in another order. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"

struct model_tuned;

/* Reads the records in `folder` (made if missing); a line that is no record is passed over. folder NULL: none
 * are kept, and a back end does not measure. log may be NULL. */
PD_NODISCARD enum pd_err model_tuned_new(const char *folder,
                                         void (*log)(void *user, int level, const char *line), void *user,
                                         struct model_tuned **ret, struct pd_why *why);
struct model_tuned *model_tuned_free(struct model_tuned *t);
/* Fills log, tuned_get, tuned_put and user of `host`; borrowed from t. */
void model_tuned_lend(struct model_tuned *t, struct pk_host *host);
