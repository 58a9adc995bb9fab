/* daemon/worker/train/session.h: private to this module: the constant state shared by all parts of a run or
 * evaluation: document and derived settings, back end, other ranks, host.
 *
 * Belongs to the training thread. */
#pragma once

#include "daemon/worker/model/peak.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/train/executable.h"
#include "daemon/worker/train/graphs.h"
#include "daemon/worker/train/ranks.h"
#include "daemon/worker/train/reporter.h"

/* Metadata of a checkpoint: "products" or "reference", how a CPU computed matrix products of bf16. */
#define SESSION_BF16 "polyd.cpu_bf16"
/* The same: "on" or "off", whether a step computed cheap activations twice where that saved memory. */
#define SESSION_RECOMPUTE "polyd.recompute"

struct session {
    /* The caller's; they outlive the session. */
    struct job_config *config;
    const struct train_dirs *dirs;
    const struct train_host *host;
    const struct pk_backend_api *api;
    int64_t began_us; /* by the monotonic clock */

    /* Written by session.c alone. */
    struct reporter *reporter;
    struct train_setup setup;
    struct model_tuned *tuned;
    struct pk_host lent; /* services passed to the back end */
    struct pk_backend *backend;
    struct pk_backend_info device;
    struct model_peak peak;      /* of the device; flops 0 on a CPU */
    struct pk_arena *arena;      /* of all graphs: one runs at a time */
    struct model_store *teacher; /* weights of the teacher; NULL: there is none */
    struct ranks *ranks;         /* NULL: one */
};

/* Whether the run computes in bf16 by the CPU back end. */
bool session_cpu_bf16(const struct session *s);
/* Both open the data, create the model, open the back end with its measured choices and set its precision; the first also
 * measures the device and waits for the other ranks. `st`: the checkpoint to score, borrowed during the call. The caller
 * sets the first group of members, zeroes the others, and calls session_close in every case. *ret_lasting: another attempt
 * would fail in the same way. */
PD_NODISCARD enum pd_err session_open(struct session *s, bool *ret_lasting, struct pd_why *why);
PD_NODISCARD enum pd_err session_open_score(struct session *s, const struct data_st *st, bool *ret_lasting,
                                            struct pd_why *why);
/* After a failure (`reason` not NULL) notifies the other ranks. Call it before waiting for the device, where
 * a collective may be blocked. */
void session_leave(const struct session *s, const char *reason);
/* Closes the session, after everything that borrows it. */
void session_close(struct session *s);

/* CPU threads of the back end. */
int session_threads(const struct session *s);
/* Plans a graph of this session on its back end, as executable_init. *e is zeroed before; the caller calls
 * executable_done in every case. `store` and `with` as in executable.h. */
PD_NODISCARD enum pd_err session_executable(const struct session *s, const struct train_graph *graph,
                                            const struct model_store *store, const struct executable *with,
                                            struct executable *e, struct pd_why *why);
/* Feeds the fixed batch of the diagnostics: the first validation samples. */
PD_NODISCARD enum pd_err session_feed_probe(const struct session *s, struct executable *e,
                                            struct pd_why *why);
/* Whether to stop: the decision of rank 0, on all ranks. */
PD_NODISCARD enum pd_err session_stop_asked(const struct session *s, enum train_stop *ret,
                                            struct pd_why *why);
/* Whether `err` means that too many images cannot be decoded, so that another attempt would fail in the same
 * way. */
bool session_data_bad(const struct session *s, enum pd_err err);
