/* daemon/polyd/store/tx.h: operations for a store_work inside the transaction. All run on the writer thread.
 *
 * Every move of a state goes through store_job_move, store_run_move or store_attempt_move: they check the
 * table of allowed moves (PD_ERR_CONFLICT), write the row and its event, and keep the job in step with its
 * runs. */
#pragma once

#include "daemon/polyd/store/store.h"
#include "kernels/base/buf.h"

/* The transaction's time stamp, wall clock. */
int64_t store_tx_now_us(struct store_tx *tx);
/* The same moment on the store's clock. */
int64_t store_tx_clock_us(struct store_tx *tx);

/* ---- jobs and runs -------------------------------------------------------------------------- */

struct store_job_new {
    enum job_kind kind;
    const char *name, *experiment, *template_name, *tags, *notes, *register_name,
        *owner;           /* NULL = "" ("{}" for tags) */
    const char *document; /* as submitted */
    int priority;
    int64_t planned, points, trials; /* 0 = 1 */
    int64_t concurrency;             /* 0 = no cap */
    const char *metric;              /* NULL = "loss/val" */
    bool maximise;
    const char *sweep; /* NULL = "" */
};
PD_NODISCARD enum pd_err store_job_insert(struct store_tx *tx, const struct store_job_new *job,
                                          int64_t *ret_id, struct pd_why *why);

struct store_run_new {
    const char *document;                    /* resolved, JSON */
    const char *config_digest, *plan_digest; /* hex */
    const char *sweep;                       /* NULL = "{}" */
    const char *device;                      /* "cpu", "cuda" */
    int slots, threads, priority, max_restarts;
    int64_t total_steps;                   /* -1 = unknown */
    int64_t time_limit_us, warn_before_us; /* 0 = none */
    int64_t point, trial, seed;
};
/* Adds the next run of the job: queued, or, for an external run, running. */
PD_NODISCARD enum pd_err store_run_insert(struct store_tx *tx, int64_t job_id,
                                          const struct store_run_new *run, int64_t *ret_id,
                                          struct pd_why *why);

/* The number of the next run to be made of a job that is still being expanded, and the priority it gets.
 * PD_ERR_CONFLICT: all are created, or the job is paused, cancelled or has ended. */
PD_NODISCARD enum pd_err store_job_next_run(struct store_tx *tx, int64_t job_id, int64_t *ret_n,
                                            int *ret_priority, struct pd_why *why);

/* `version`: the version the client saw (If-Match), or -1 = any. A mismatch is PD_ERR_STALE. */
PD_NODISCARD enum pd_err store_job_cancel(struct store_tx *tx, int64_t job_id, int64_t version,
                                          const char *reason, struct pd_why *why);
PD_NODISCARD enum pd_err store_job_pause(struct store_tx *tx, int64_t job_id, int64_t version,
                                         struct pd_why *why);
PD_NODISCARD enum pd_err store_job_resume(struct store_tx *tx, int64_t job_id, int64_t version,
                                          struct pd_why *why);

/* Queues its failed runs again under their numbers; they continue from their last checkpoints as new
 * attempts. Runs in back-off may start immediately. All get their full number of restarts again.
 * A failed run whose time limit is used up, or of which a model version was made, stays as it is.
 * PD_ERR_CONFLICT: the job is done or cancelled, or all failed runs stay. */
PD_NODISCARD enum pd_err store_job_retry(struct store_tx *tx, int64_t job_id, int64_t version,
                                         struct pd_why *why);

/* NULL leaves a member as it is. */
struct store_job_patch {
    const char *name, *tags, *notes;
    const int *priority;
};
PD_NODISCARD enum pd_err store_job_update(struct store_tx *tx, int64_t job_id, int64_t version,
                                          const struct store_job_patch *patch, int64_t *ret_version,
                                          struct pd_why *why);

/* One run of a job: cancel (graceful; a run not started ends at once). */
PD_NODISCARD enum pd_err store_run_cancel(struct store_tx *tx, int64_t run_id, int64_t version,
                                          const char *reason, struct pd_why *why);

/* Commands for one run, as for jobs. For a job with one run, the command applies to the job.
 * PD_ERR_CONFLICT with a sentence in any other state. */
PD_NODISCARD enum pd_err store_run_pause(struct store_tx *tx, int64_t run_id, int64_t version,
                                         struct pd_why *why);
PD_NODISCARD enum pd_err store_run_resume(struct store_tx *tx, int64_t run_id, int64_t version,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err store_run_retry(struct store_tx *tx, int64_t run_id, int64_t version,
                                         struct pd_why *why);
/* Whether the run is paused, or will be when its worker has ended: itself or with its job. */
PD_NODISCARD enum pd_err store_run_pause_wanted(struct store_tx *tx, int64_t run_id, bool *ret,
                                                struct pd_why *why);

/* The moves of the tables in daemon/job/state.h. `outcome` counts only towards ended. */
PD_NODISCARD enum pd_err store_run_move(struct store_tx *tx, int64_t run_id, enum job_run_state to,
                                        enum job_outcome outcome, const char *reason, struct pd_why *why);
PD_NODISCARD enum pd_err store_run_state(struct store_tx *tx, int64_t run_id, enum job_run_state *ret,
                                         struct pd_why *why);

/* ---- external runs --------------------------------------------------------------------------- */

/* Records a message of the run's client, at `step` (-1 = none given). A lost run continues. No effect on a
 * run with another outcome, or on a run that polyd executes: *ret_external is false.
 */
PD_NODISCARD enum pd_err store_run_heard(struct store_tx *tx, int64_t run_id, int64_t step,
                                         bool *ret_external, struct pd_why *why);
/* Heartbeat; PD_ERR_CONFLICT for a run that has ended or is being cancelled, and for one that polyd executes.
 */
PD_NODISCARD enum pd_err store_run_beat(struct store_tx *tx, int64_t run_id, struct pd_why *why);
/* Sets the outcome reported by its client. Repeating the outcome is not an error; another one is
 * PD_ERR_CONFLICT, unless the run was lost. */
PD_NODISCARD enum pd_err store_run_finish(struct store_tx *tx, int64_t run_id, int64_t version,
                                          enum job_outcome outcome, const char *reason, struct pd_why *why);
/* Ends a run as lost, unless it sent something after `before_us` (store's clock). */
PD_NODISCARD enum pd_err store_run_lost(struct store_tx *tx, int64_t run_id, int64_t before_us,
                                        const char *reason, struct pd_why *why);

/* ---- attempts (the supervisor's) ------------------------------------------------------------ */

struct store_attempt_new {
    int64_t run_id;
    const char *devices;
    uint8_t token_sha256[32];
    int64_t start_step; /* of the checkpoint it starts from; 0 = from scratch */
};
/* Moves the run to starting and adds attempt n + 1. */
PD_NODISCARD enum pd_err store_attempt_insert(struct store_tx *tx, const struct store_attempt_new *a,
                                              int *ret_n, struct pd_why *why);
PD_NODISCARD enum pd_err store_attempt_process(struct store_tx *tx, int64_t run_id, int n, int64_t pid,
                                               int64_t pid_start, struct pd_why *why);
PD_NODISCARD enum pd_err store_attempt_move(struct store_tx *tx, int64_t run_id, int n,
                                            enum job_attempt_state to, enum job_cause cause,
                                            const char *message, int exit_status, struct pd_why *why);
/* The same for an attempt that ended earlier: at `clock_us` (store's clock), but not before it was made. */
PD_NODISCARD enum pd_err store_attempt_end_at(struct store_tx *tx, int64_t run_id, int n, int64_t clock_us,
                                              enum job_cause cause, const char *message, int exit_status,
                                              struct pd_why *why);
/* Progress: no event; step and total of run and attempt, log bytes. -1 = leave. */
PD_NODISCARD enum pd_err store_attempt_progress(struct store_tx *tx, int64_t run_id, int n, int64_t step,
                                                int64_t total, int64_t log_bytes, struct pd_why *why);
/* Accepts data frame `seq`: PD_OK and acked_seq = seq; PD_ERR_EXISTS: seen before, write nothing;
 * PD_ERR_CONFLICT: a gap. */
PD_NODISCARD enum pd_err store_attempt_ack(struct store_tx *tx, int64_t run_id, int n, int64_t seq,
                                           struct pd_why *why);
/* The step at which the attempt actually resumed (a damaged checkpoint makes it use an earlier one). */
PD_NODISCARD enum pd_err store_attempt_set_start(struct store_tx *tx, int64_t run_id, int n, int64_t step,
                                                 struct pd_why *why);
/* Digests of the run's data and program, in hex; "" if there is none. */
PD_NODISCARD enum pd_err store_run_inputs(struct store_tx *tx, int64_t run_id, const char *data,
                                          const char *data_of, const char *program, struct pd_why *why);
/* Whether the attempt wrote a checkpoint. */
PD_NODISCARD enum pd_err store_attempt_progressed(struct store_tx *tx, int64_t run_id, int n, bool *ret,
                                                  struct pd_why *why);
PD_NODISCARD enum pd_err store_run_set_reason(struct store_tx *tx, int64_t run_id, const char *reason,
                                              struct pd_why *why);
/* Attempts that failed since the last progress or retry. */
PD_NODISCARD enum pd_err store_run_restarts(struct store_tx *tx, int64_t run_id, int *ret,
                                            struct pd_why *why);
/* Back-off after a failure: counters and the earliest time of the next attempt. */
PD_NODISCARD enum pd_err store_run_set_backoff(struct store_tx *tx, int64_t run_id, int restarts,
                                               int64_t not_before_us, struct pd_why *why);

/* ---- metrics -------------------------------------------------------------------------------- */

struct store_metric {
    const char *key; /* 1..STORE_KEY_MAX bytes */
    int64_t step, time_us;
    double value;
};
/* Writes the points with their roll-ups and latest values. `attempt` 0 = logged over HTTP. The run must exist
 * (PD_ERR_NOT_FOUND). An identical point again is ignored; another value at the same key, step and
 * time is stored in addition. *ret_new (may be NULL) = number of new points. */
PD_NODISCARD enum pd_err store_metric_append(struct store_tx *tx, int64_t run_id, int attempt,
                                             const struct store_metric *points, size_t count,
                                             int64_t *ret_new, struct pd_why *why);

/* Whether a client may log these points. PD_ERR_CONFLICT if one has a key that the run's own worker writes or
 * has written; *ret_index is the first such point. */
PD_NODISCARD enum pd_err store_metric_check_client(struct store_tx *tx, int64_t run_id,
                                                   const struct store_metric *points, size_t count,
                                                   size_t *ret_index, struct pd_why *why);

/* ---- events, checkpoints, blobs ------------------------------------------------------------- */

/* `data` is a JSON object. *ret_id may be NULL. */
PD_NODISCARD enum pd_err store_event_add(struct store_tx *tx, const char *kind, int64_t job_id,
                                         int64_t run_id, int64_t attempt, const char *data, int64_t *ret_id,
                                         struct pd_why *why);

/* id, created_us, deleted_us are ignored. *ret_id may be NULL. An earlier checkpoint of the run with this path
 * is gone: the file was replaced. */
PD_NODISCARD enum pd_err store_checkpoint_insert(struct store_tx *tx, const struct store_checkpoint *c,
                                                 int64_t *ret_id, struct pd_why *why);
PD_NODISCARD enum pd_err store_checkpoint_delete(struct store_tx *tx, int64_t id, struct pd_why *why);
/* The worker removed this file (retention); unknown paths are fine. */
PD_NODISCARD enum pd_err store_checkpoint_delete_path(struct store_tx *tx, int64_t run_id, const char *path,
                                                      struct pd_why *why);
/* Marks the run's checkpoints whose file is missing: its worker removed them and died before reporting it. */
PD_NODISCARD enum pd_err store_checkpoint_sweep(struct store_tx *tx, int64_t run_id, struct pd_why *why);
PD_NODISCARD enum pd_err store_blob_insert(struct store_tx *tx, const struct store_blob *b,
                                           struct pd_why *why);

/* ---- models --------------------------------------------------------------------------------- */

/* Registers a checkpoint as the next version of the model (made if absent), with an event. */
PD_NODISCARD enum pd_err store_model_register(struct store_tx *tx, const char *model, int64_t checkpoint_id,
                                              int64_t *ret_n, struct pd_why *why);
/* The same for weights that no run wrote: the registry then owns the file. */
PD_NODISCARD enum pd_err store_weights_register(struct store_tx *tx, const char *model,
                                                const struct store_weights *w, int64_t *ret_n,
                                                struct pd_why *why);
/* Removes some files of weights whose version was deleted. *ret_worked = false: there are none. */
PD_NODISCARD enum pd_err store_clean_weights(struct store_tx *tx, bool *ret_worked, struct pd_why *why);
/* The best checkpoint of the run (else its newest), for `register`. PD_ERR_NOT_FOUND if it has none. */
PD_NODISCARD enum pd_err store_checkpoint_choose(struct store_tx *tx, int64_t run_id, int64_t *ret_id,
                                                 struct pd_why *why);
PD_NODISCARD enum pd_err store_model_set_loaded(struct store_tx *tx, const char *model, int64_t n,
                                                bool loaded, struct pd_why *why);
/* Checks that the model's row still has the version (ETag) that the client saw: PD_ERR_STALE; -1 = any. */
PD_NODISCARD enum pd_err store_model_check(struct store_tx *tx, const char *model, int64_t version,
                                           struct pd_why *why);
/* Checks that the version exists and that its file has the digest: PD_ERR_NOT_FOUND. */
PD_NODISCARD enum pd_err store_version_check(struct store_tx *tx, const char *model, int64_t n,
                                             const char *digest, struct pd_why *why);
/* n = 0 removes the alias. */
PD_NODISCARD enum pd_err store_alias_set(struct store_tx *tx, const char *model, const char *alias, int64_t n,
                                         struct pd_why *why);

/* ---- groups --------------------------------------------------------------------------------- */

/* A new, empty group. PD_ERR_EXISTS: the name is taken. */
PD_NODISCARD enum pd_err store_group_insert(struct store_tx *tx, const char *name, const char *description,
                                            struct pd_why *why);
struct store_group_patch {
    const char *description; /* NULL = as it is */
    const int64_t *add, *drop;
    size_t add_count, drop_count;
};
/* Adding a member again or removing a non-member is not an error. PD_ERR_NOT_FOUND: no such group. PD_ERR_INVALID:
 * no such run; *ret_index is its index in `add`. */
PD_NODISCARD enum pd_err store_group_update(struct store_tx *tx, const char *name, int64_t version,
                                            const struct store_group_patch *patch, size_t *ret_index,
                                            struct pd_why *why);
PD_NODISCARD enum pd_err store_group_delete(struct store_tx *tx, const char *name, int64_t version,
                                            struct pd_why *why);

PD_NODISCARD enum pd_err store_group_archive(struct store_tx *tx, const char *name, int64_t version,
                                             bool archive, struct pd_why *why);

/* ---- archive and delete ---------------------------------------------------------------------- */

/* Lists omit archived items. PD_ERR_CONFLICT: it has not ended. A retry restores it. If the job has one run,
 * the whole job is archived, and deleted below. */
PD_NODISCARD enum pd_err store_job_archive(struct store_tx *tx, int64_t job_id, int64_t version, bool archive,
                                           struct pd_why *why);
PD_NODISCARD enum pd_err store_run_archive(struct store_tx *tx, int64_t run_id, int64_t version, bool archive,
                                           struct pd_why *why);
/* n = 0: the model itself. PD_ERR_CONFLICT: it, or one of its versions, is loaded. */
PD_NODISCARD enum pd_err store_model_archive(struct store_tx *tx, const char *model, int64_t n,
                                             int64_t version, bool archive, struct pd_why *why);

/* Invisible to all readers after the commit; store_clean_rows then removes the rows, and the files follow.
 * The job is deleted with its last run, if it has ended. PD_ERR_CONFLICT: it has not ended, or a model
 * version was made of it; the sentence names which. An event and a line of the audit log remain. */
PD_NODISCARD enum pd_err store_job_delete(struct store_tx *tx, int64_t job_id, int64_t version,
                                          const char *who, struct pd_why *why);
PD_NODISCARD enum pd_err store_run_delete(struct store_tx *tx, int64_t run_id, int64_t version,
                                          const char *who, struct pd_why *why);
/* n = 0: the model with all versions and aliases. Checkpoints stay with their runs. PD_ERR_CONFLICT: a
 * version is loaded, or the only one asked for has an alias, or the document of a run or job that has not ended names
 * it (teacher, start, evaluation); the sentence says which. Version numbers are not reused while the model
 * exists. */
PD_NODISCARD enum pd_err store_model_delete(struct store_tx *tx, const char *model, int64_t n,
                                            int64_t version, const char *who, struct pd_why *why);

/* Removes about `rows` remaining rows of deleted objects; *ret_worked = false: there were none. */
PD_NODISCARD enum pd_err store_clean_rows(struct store_tx *tx, int rows, bool *ret_worked,
                                          struct pd_why *why);
/* A pass over the files that only deleted runs refer to. Zeros: at its beginning. */
struct store_blob_pass {
    char after[STORE_DIGEST_HEX]; /* the last file processed */
    bool worked;                  /* the last call found files */
    int kept;                     /* files that could not be removed; the next pass retries them */
    struct pd_why why;            /* of the first of them */
};
/* Removes some of these files. */
PD_NODISCARD enum pd_err store_clean_blobs(struct store_tx *tx, struct store_blob_pass *pass,
                                           struct pd_why *why);
/* The folder of a deleted run has been removed. */
PD_NODISCARD enum pd_err store_remnant_done(struct store_tx *tx, int64_t run_id, struct pd_why *why);

/* A heartbeat (store_run_beat) of a run whose client sends a piece of its log. *ret_bytes: the log so far. */
PD_NODISCARD enum pd_err store_run_log_begin(struct store_tx *tx, int64_t run_id, int64_t *ret_bytes,
                                             struct pd_why *why);
/* Sets the size of the log that its client sent. */
PD_NODISCARD enum pd_err store_run_logged(struct store_tx *tx, int64_t run_id, int64_t bytes,
                                          struct pd_why *why);

/* ---- the rest ------------------------------------------------------------------------------- */

/* The secret of this name; created from `fresh` if there is none. */
PD_NODISCARD enum pd_err store_secret(struct store_tx *tx, const char *name, const uint8_t fresh[32],
                                      uint8_t ret[32], struct pd_why *why);

PD_NODISCARD enum pd_err store_plan_put(struct store_tx *tx, const char *plan_digest, const char *plan,
                                        struct pd_why *why);

/* Idempotency: call claim first in `apply`. PD_OK: new; write, then store_idem_finish with the answer's
 * status and body in the same apply. PD_ERR_EXISTS: it was answered; *ret_status and `response` (appended)
 * are the first answer: return PD_OK from apply without writing. PD_ERR_CONFLICT: same key, other body. */
PD_NODISCARD enum pd_err store_idem_claim(struct store_tx *tx, const char *scope, const char *key,
                                          const uint8_t body_sha256[32], int *ret_status,
                                          struct pd_buf *response, struct pd_why *why);
PD_NODISCARD enum pd_err store_idem_finish(struct store_tx *tx, const char *scope, const char *key,
                                           int status, const void *response, size_t len, struct pd_why *why);

/* Takes a device out of service, with an event and a line in the audit log. If it already is out of service,
 * the first reason remains: PD_OK, and nothing is written. d->time_us is ignored. */
PD_NODISCARD enum pd_err store_device_drain(struct store_tx *tx, const struct store_drain *d,
                                            struct pd_why *why);
/* Brings it back; `reason` and `who` of this move. PD_OK if it is in service. */
PD_NODISCARD enum pd_err store_device_undrain(struct store_tx *tx, const struct store_drain *d,
                                              struct pd_why *why);

/* Stores a measured choice, unless there is one with the same device, driver, library and key: the first
 * remains, so that a resumed run uses the same algorithm. PD_ERR_INVALID: beyond the limits of store.h.
 * time_us is ignored. *ret_new may be NULL. */
PD_NODISCARD enum pd_err store_tuned_add(struct store_tx *tx, const struct store_tuned *t, bool *ret_new,
                                         struct pd_why *why);
/* After additions: removes the oldest beyond the limits. *ret_gone (may be NULL) = how many. */
PD_NODISCARD enum pd_err store_tuned_trim(struct store_tx *tx, const char *device, int64_t *ret_gone,
                                          struct pd_why *why);
/* Deletes all choices of a device, with a line in the audit log. `version` as the client saw it, -1 = any:
 * PD_ERR_STALE. PD_ERR_NOT_FOUND: there are none. */
PD_NODISCARD enum pd_err store_tuned_drop(struct store_tx *tx, const char *device, int64_t version,
                                          const char *who, struct pd_why *why);

/* Appends to the audit log. before and after are JSON or NULL. */
PD_NODISCARD enum pd_err store_audit(struct store_tx *tx, const char *who, const char *what,
                                     const char *target, const char *before, const char *after,
                                     struct pd_why *why);
