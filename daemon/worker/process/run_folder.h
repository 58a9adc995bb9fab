/* daemon/worker/process/run_folder.h: ownership check of a run's folder. */
#pragma once

#include "daemon/worker/process/link.h"

/* Before rank 0 of a run writes or reads anything there: the folder's file "run-id" must name this store, run
 * and document, and is written where the folder has none. PD_ERR_CONFLICT: the folder belongs to another run,
 * or has checkpoints although this is the run's first attempt; nothing was changed. `attempt`: its number. */
PD_NODISCARD enum pd_err run_folder_claim(const struct link_assign *a, int64_t run, int attempt,
                                          struct pd_why *why);
