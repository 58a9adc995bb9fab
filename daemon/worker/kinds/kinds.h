/* daemon/worker/kinds/kinds.h: how a worker executes each kind of job: one file per kind in this folder,
 * found by the kind's name (JOB_WORKER_KINDS, daemon/job/kind.h). */
#pragma once

#include "daemon/job/job.h"
#include "daemon/worker/data/data.h"
#include "daemon/worker/process/attempt.h"

/* Inputs of a forecast. */
struct kind_plan {
    const struct data_root *roots;
    size_t root_count;
    const char *cache;     /* as in struct train_dirs; may be NULL */
    const char *state_dir; /* base of checkpoint paths; "" if none was given */
    int64_t memory_bytes;  /* 0: any number will do */
};

struct worker_kind {
    /* One attempt, on this rank. *ret is the outcome, initially "failed". */
    void (*run)(struct attempt *a, struct job_config *config, struct role_result *ret);
    /* Appends the byte forecast, a JSON object. Errors in the document or its data name the field. NULL: the
     * kind needs no forecast. */
    enum pd_err (*plan)(struct job_config *config, const struct kind_plan *at, struct pd_buf *ret_json,
                        struct pd_why *why);
};

#define KIND_EXTERN(constant, name) extern const struct worker_kind kind_##name;
JOB_WORKER_KINDS(KIND_EXTERN) /* kind_train, kind_evaluate, ... */
#undef KIND_EXTERN

/* Static; NULL: not executed by workers. */
const struct worker_kind *kind_find(enum job_kind kind);

/* ---- host.c: for kinds that the module train executes ---- */

struct train_host;
struct train_dirs;
struct train_outcome;
struct model_tuned_store;

/* Forwards the reports of train to polyd. `a` and `store` are borrowed. */
struct train_host kind_host(struct attempt *a, struct model_tuned_store *store);
/* Data roots and cache of the assignment, in the caller's storage. */
struct kind_folders {
    struct data_root roots[LINK_ROOTS_MAX];
    char state[4096], cache[4096], checkpoints[4096];
};
struct train_dirs kind_dirs(struct attempt *a, struct kind_folders *f);
/* Reports the end of the attempt. */
void kind_conclude(struct attempt *a, enum pd_err err, const struct train_outcome *outcome,
                   const struct pd_why *why, struct role_result *ret);
