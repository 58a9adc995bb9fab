/* daemon/polyd/supervise/clean.h: removes rows and files left by deletions, and keeps the workers' cache within
 * its bound.
 *
 * What is left to do stands in the store's rows (tx_clean.c): the runs of deleted jobs, the points of deleted
 * runs, their folders. One thread does it in short steps and may wait for the writer and for the disk; `polyd
 * gc` calls the same step while no daemon runs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/err.h"

#define CLEAN_CACHE_SUFFIX ".cache"

struct clean_host {
    struct store_writer *writer;
    struct store *reader; /* of the calling thread */
    const char *state_dir;
    /* Does a process still use the folder of this run? NULL: none does. */
    bool (*busy)(void *ctx, int64_t run_id);
    void *ctx;
};

/* One pass over all that is left, in steps. Zeros: at its beginning. */
struct clean_pass {
    struct store_blob_pass blobs;
    int64_t run;       /* the last folder that was looked at */
    int busy, kept;    /* folders in use; folders and files that could not be removed */
    struct pd_why why; /* of the first of the latter */
};
/* One short step. *ret_worked = false: the pass is over; `busy` and `kept` count the rest. */
PD_NODISCARD enum pd_err clean_step(const struct clean_host *h, struct clean_pass *pass, bool *ret_worked,
                                    struct pd_why *why);

/* What an earlier daemon left of uploads: everything below uploads/, and files below models/ that no version
 * names. While nothing is uploaded and no worker of the daemon lives. */
PD_NODISCARD enum pd_err clean_uploads(const char *state_dir, struct store *reader, struct pd_why *why);

/* Writes the bound into the cache folder, where the workers look it up. Makes the folder if need be. */
PD_NODISCARD enum pd_err clean_bound(const char *state_dir, int64_t max_bytes, struct pd_why *why);

struct cleaner;
struct cleaner_options {
    struct store_writer *writer;
    const char *state_dir; /* copied */
    int64_t cache_bytes;   /* bound of the cache */
    bool (*busy)(void *ctx, int64_t run_id);
    void *ctx;
};
PD_NODISCARD enum pd_err cleaner_start(const struct cleaner_options *o, struct cleaner **ret,
                                       struct pd_why *why);
/* Something was deleted. Any thread. */
void cleaner_wake(struct cleaner *c);
/* Ends the thread after the step under way. It may still be woken: that does nothing. */
void cleaner_halt(struct cleaner *c);
/* Halts and frees. NULL is fine. Returns NULL. */
struct cleaner *cleaner_stop(struct cleaner *c);
