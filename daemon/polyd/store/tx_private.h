/* daemon/polyd/store/tx_private.h: the transaction as the module's own files see it. */
#pragma once

#include "daemon/polyd/store/db.h"
#include "daemon/polyd/store/tx.h"

struct metric_cache;

/* clock.c */
struct store_clock {
    int64_t base_us;     /* const after the start */
    int64_t previous_us; /* const after the start: value in the file at the start, 0 = a new file */
    int64_t seen_us;     /* value in the file */
};
/* After the migration. */
enum pd_err store_clock_start(struct db *d, struct store_clock *ret, struct pd_why *why);
/* Inside a transaction: writes the time down now and then. */
enum pd_err store_clock_save(struct db *d, struct store_clock *c, int64_t clock_us, struct pd_why *why);
int64_t store_clock_us(const struct store_clock *c);

struct store_tx {
    struct db *db;
    int64_t now_us;               /* wall clock, for display */
    int64_t clock_us;             /* the store's own */
    struct metric_cache *metrics; /* the writer's; see tx_metric.c */
    struct store_commit commit;   /* changes of this group */
    struct store_commit_run commit_runs[STORE_COMMIT_RUNS];
    int64_t metric_touches; /* grows when the metric cache changed */
    enum pd_err failed;     /* the whole group, PD_OK = committed */
    struct pd_why failed_why;
};

/* tx_job.c: jobs and runs as their moves see them; each move writes the row, its event and the tally. */
struct tx_job {
    enum job_kind kind;
    enum job_state state;
    int64_t version, runs, planned, ended, failed;
    int64_t deleted; /* runs that are gone; they count among `runs` and `ended` */
};
/* PD_ERR_NOT_FOUND: there is no such job. */
enum pd_err tx_job_read(struct store_tx *tx, int64_t id, struct tx_job *ret, struct pd_why *why);
/* `reason` NULL = as it is. */
enum pd_err tx_job_move(struct store_tx *tx, int64_t id, enum job_state from, enum job_state to,
                        const char *reason, struct pd_why *why);
struct tx_run {
    enum job_kind kind; /* its job's */
    enum job_run_state state;
    enum job_outcome outcome; /* meaningful when ended */
    int64_t job_id, version;
    int attempts;
};
enum pd_err tx_run_read(struct store_tx *tx, int64_t id, struct tx_run *ret, struct pd_why *why);
enum pd_err tx_run_move(struct store_tx *tx, int64_t id, const struct tx_run *r, enum job_run_state to,
                        enum job_outcome outcome, const char *reason, struct pd_why *why);
/* {"from":..,"to":..,"<extra>":..,"reason":..}; `from` NULL = it came to be. */
enum pd_err tx_move_event(struct store_tx *tx, const char *kind, int64_t job_id, int64_t run_id,
                          int64_t attempt, const char *from, const char *to, const char *extra_key,
                          const char *extra, const char *reason, struct pd_why *why);
/* PD_ERR_STALE unless the client saw this version; -1 = any. */
enum pd_err tx_check_version(const char *what, int64_t id, int64_t have, int64_t wanted, struct pd_why *why);

/* tx_clean.c: an ended run leaves every table but those of its points and events; what is left of it is
 * written down. */
enum pd_err tx_run_bury(struct store_tx *tx, int64_t run_id, const struct tx_run *r, struct pd_why *why);

/* tx_away.c: PD_ERR_CONFLICT with the version's name if one was made of a checkpoint of the run. */
enum pd_err tx_run_has_no_model(struct store_tx *tx, int64_t run_id, struct pd_why *why);

/* tx_command.c: only runs that polyd executes can wait, be paused or be repeated; else PD_ERR_CONFLICT. */
enum pd_err tx_check_carried_out(const char *what, int64_t id, enum job_kind kind, struct pd_why *why);

/* tx_metric.c: the cache of keys and open roll-ups lives with the writer. */
struct metric_cache *store_metric_cache_new(void);
struct metric_cache *store_metric_cache_free(struct metric_cache *c);
/* The writer of the run's series: *ret_there = false: none yet; *ret_attempt 0: a client. */
enum pd_err tx_series_source(struct store_tx *tx, int64_t run_id, const char *key, bool *ret_there,
                             int *ret_attempt, struct pd_why *why);
/* Writes the roll-ups and latest values that the group changed. Before the commit. */
enum pd_err store_metric_flush(struct store_tx *tx, struct pd_why *why);
/* Forgets everything: something was rolled back, memory may be ahead of the file. */
void store_metric_forget(struct metric_cache *c);

/* tx_model.c: {"model":..,"version":..,"alias":..}; n = 0, alias NULL, run_id = 0: without it. */
/* Makes the model if need be and counts one more version of it: its row and the version's number. */
enum pd_err tx_version_next(struct store_tx *tx, const char *model, int64_t *ret_id, int64_t *ret_n,
                            struct pd_why *why);
/* Marks weights that no version names any more: their files are to be removed. */
enum pd_err tx_weights_bury(struct store_tx *tx, struct pd_why *why);
/* If the job, which is done, asked for it (`register`): registers the best checkpoint of the best of its runs
 * that succeeded and have one. The best run is the one whose metric reached the least or greatest value, as
 * the job's mode says; of equals the first. */
enum pd_err tx_job_register(struct store_tx *tx, int64_t job_id, struct pd_why *why);
enum pd_err tx_model_event(struct store_tx *tx, const char *kind, const char *model, int64_t n,
                           const char *alias, int64_t run_id, struct pd_why *why);
