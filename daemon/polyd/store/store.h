/* daemon/polyd/store/store.h: the daemon's one SQLite file.
 *
 * Callers use jobs, runs, attempts, metrics and models; SQL stays inside this module. There are two kinds of
 * handle:
 *
 *   struct store          read-only, for the thread that opened it. A query is one short read transaction and
 *                         calls back once per row; what a row points to is borrowed until the callback returns.
 *   struct store_writer   the writer thread, with the only connection that writes and checkpoints. Any thread
 *                         submits a struct store_work. Its `apply` runs on the writer thread, inside the
 *                         transaction of the group, and calls the functions of tx.h (store_..._insert, _move);
 *                         its `done` runs there after the commit.
 *
 * Only the writer's queue has a lock. Times are wall-clock microseconds since 1970, 0 = not yet; times on
 * the store's own clock (store_writer_clock_us) are marked. Text pointers of rows are never NULL unless
 * stated. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/job/kind.h"
#include "daemon/job/state.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

/* ---- limits --------------------------------------------------------------------------------- */

#define STORE_KEY_MAX 255                                 /* bytes of a metric key */
#define STORE_PAGE_MAX 1000                               /* rows of one page */
#define STORE_ROLLUP_POINTS 1000                          /* points of one roll-up */
#define STORE_BUCKETS_MAX 10000                           /* buckets of one chart */
#define STORE_DIGEST_HEX 65                               /* SHA-256 in hex with its NUL */
#define STORE_IDEM_KEEP_US (INT64_C(24) * 3600 * 1000000) /* lifetime of an idempotency key */

/* ---- rows ----------------------------------------------------------------------------------- */

struct store_job {
    int64_t id;      /* never reused */
    int64_t version; /* increases with every change; the ETag */
    enum job_kind kind;
    enum job_state state;
    const char *name, *experiment;
    const char *template_name; /* "" = none */
    const char *tags;          /* JSON object */
    const char *notes;
    const char *reason;        /* reason for the state, "" = none */
    const char *register_name; /* model name to register on success, "" = none */
    const char *owner;
    int priority;
    int64_t runs;                    /* made so far */
    int64_t planned;                 /* that it will have */
    int64_t runs_ended, runs_failed; /* of the created ones; deleted failed runs do not count */
    int64_t runs_deleted;            /* of those made and ended */
    int64_t points, trials;          /* combinations of the sweep, repeats of each */
    int64_t concurrency;             /* runs at once; 0 = no cap */
    const char *metric;              /* ranks the runs */
    bool maximise;                   /* more of it is better */
    const char *sweep;               /* method and axes as in the document, JSON; "" = none */
    int64_t created_us, started_us, ended_us;
    int64_t archived_us;  /* 0 = not archived; here and below */
    const char *document; /* as submitted, JSON */
};

struct store_run {
    int64_t id;
    int64_t job_id;
    int64_t n;            /* 0.. within the job */
    int64_t point, trial; /* combination of the sweep, repeat */
    int64_t seed;
    int64_t concurrency; /* the job's limit of simultaneous runs; 0 = none */
    int64_t version;
    enum job_kind kind; /* the job's */
    enum job_run_state state;
    enum job_outcome outcome; /* meaningful when ended */
    const char *name;         /* the job's */
    const char *experiment;   /* the job's */
    const char *reason;       /* reason for waiting, or for the outcome; "" = none */
    const char *device;       /* "cpu" or "cuda"; "" = an external run, which has no slots */
    int slots, threads, priority, max_restarts;
    int attempts;                          /* started so far */
    int restarts;                          /* consecutive, without progress */
    int64_t step, total_steps;             /* -1 = unknown */
    int64_t time_limit_us, warn_before_us; /* 0 = none */
    int64_t not_before_us;                 /* store's clock: end of the back-off; 0 = none */
    int64_t clock_us;                      /* store's clock: when it was made */
    int64_t used_us;                       /* time held by ended attempts */
    int64_t created_us, started_us, ended_us;
    int64_t archived_us;                     /* itself, or with its job */
    const char *config_digest, *plan_digest; /* hex */
    /* SHA-256 in hex of the data's files (of `data_digest_of`: "contents" or "names_and_sizes") and of the
     * worker's executable, of the last attempt that reported them; "" = none did, or no file was read. */
    const char *data_digest, *data_digest_of, *program_digest;
    const char *document; /* resolved, JSON */
    const char *sweep;    /* JSON object of the swept values, "{}" = none */
    const char *tags;     /* the job's, JSON object */
};

/* Runs of one job that were computed from the same data by the same program; digests as in struct store_run.
 */
struct store_inputs {
    const char *data_digest, *data_digest_of, *program_digest;
    int64_t runs;
};

struct store_attempt {
    int64_t run_id;
    int n; /* 1.. within the run */
    enum job_attempt_state state;
    enum job_cause cause; /* meaningful when ended */
    const char *message;
    const char *devices;    /* "cpu:0,cpu:1" */
    int64_t pid, pid_start; /* of the shim; 0 = not started */
    int64_t acked_seq;
    int64_t start_step, step;
    int64_t log_bytes;
    int64_t created_us, started_us, ended_us;
    int64_t clock_us; /* store's clock: when it was made */
    uint8_t token_sha256[32];
    int exit_status; /* as waitpid gives it; -1 = unknown */
};

struct store_checkpoint {
    int64_t id, run_id;
    int attempt;
    int64_t step;
    const char *kind; /* latest, best, final */
    const char *path; /* absolute; the row has it relative to the state folder */
    int64_t bytes;
    const char *digest; /* hex */
    double value;       /* validation value that ranked it; NaN = none */
    int64_t created_us;
    int64_t deleted_us; /* 0 = still there */
};

struct store_event {
    int64_t id; /* strictly growing */
    int64_t time_us;
    const char *kind;                /* job.state, run.state, attempt.state, checkpoint, worker, model, ... */
    int64_t job_id, run_id, attempt; /* 0 = does not apply */
    const char *data;                /* JSON object */
};

struct store_series {
    const char *key;
    int64_t key_id;
    int64_t count; /* stored points, including superseded ones */
    int attempt;   /* of the latest point */
    int64_t step, time_us;
    double value;    /* latest; may be NaN */
    double min, max; /* over the finite points; NaN if there are none */
};

struct store_point {
    int64_t step, time_us;
    int attempt;
    double value;
};

/* A bucket of a chart. Its bounds are the steps of its first and last point. */
struct store_bucket {
    int index; /* 0.., index in the division of the range; empty buckets are not listed */
    int64_t first_step, last_step;
    int64_t first_us, last_us;
    double min, max, mean; /* over the finite points; NaN if there are none */
    int64_t count;         /* all points, non-finite ones included */
    int64_t nonfinite;
};

struct store_model {
    int64_t id;
    const char *name;
    const char *description;
    int64_t versions; /* highest version number; 0 = no version */
    int64_t archived_us;
    int64_t created_us;
    int64_t version; /* row version: the ETag */
};

struct store_model_version {
    int64_t model_id;
    const char *model;
    int64_t n;                     /* 1.. */
    int64_t run_id, checkpoint_id; /* 0: no run wrote it */
    const char *path, *digest;
    int64_t bytes, step;
    /* the run's resolved document, or one that describes the network; "" = only the file does */
    const char *document;
    const char *origin; /* run, upload, root, average */
    const char *source; /* details of the source, JSON; "{}" for a run */
    bool loaded;        /* should be loaded; loaded again at start */
    int64_t archived_us;
    int64_t model_version; /* of the model's row: the ETag */
    int64_t created_us;
};

/* Weights that no run wrote, to be registered. */
struct store_weights {
    const char *path; /* relative to the state folder: models/<name> */
    int64_t bytes, step;
    const char *digest;   /* hex */
    const char *origin;   /* upload, root, average */
    const char *source;   /* JSON */
    const char *document; /* resolved; "" = only the file describes the network */
};

struct store_alias {
    const char *model, *alias;
    int64_t n;
    int64_t updated_us;
};

struct store_blob {
    int64_t id, run_id;
    int attempt;
    const char *key;  /* as a metric's */
    const char *kind; /* histogram, matrix, image */
    int64_t step, time_us;
    const char *meta; /* JSON: shape, dtype, edges */
    const char *sha256;
    int64_t bytes;
};

/* ---- reading -------------------------------------------------------------------------------- */

struct store;

/* Opens an existing file read-only; it must have been migrated by a writer of this build
 * (PD_ERR_VERSION otherwise). The caller owns *ret_store. */
PD_NODISCARD enum pd_err store_open_reader(const char *path, struct store **ret_store, struct pd_why *why);
/* NULL is fine. Returns NULL. */
struct store *store_close(struct store *s);

/* From now on the store's queries fail with PD_ERR_TIMEOUT once the monotonic clock has passed until_us; 0 =
 * never.
 */
void store_reader_until(struct store *s, int64_t until_us);

/* Several queries on one snapshot. Keep it short: an open snapshot makes the log grow. */
PD_NODISCARD enum pd_err store_begin(struct store *s, struct pd_why *why);
void store_end(struct store *s);

/* The callbacks return false to stop early. */

/* Lists omit archived items by default. A run counts as archived if it or its job is, except in a list of the
 * runs of that job. */
enum store_archived { STORE_ARCHIVED_WITHOUT, STORE_ARCHIVED_ONLY, STORE_ARCHIVED_ANY };

enum store_order { STORE_ORDER_NEWEST, STORE_ORDER_OLDEST, STORE_ORDER_PRIORITY, STORE_ORDER_TURN };

struct store_job_query {
    const char *experiment; /* NULL = any */
    bool sweep;             /* only jobs of more than one run */
    int state;              /* enum job_state, or -1 = any */
    const char *name_like;  /* substring of the name, NULL = any */
    enum store_archived archived;
    enum store_order order; /* NEWEST or OLDEST, by id */
    int64_t after_id;       /* keyset: last id of the page before; 0 = first page */
    int limit;              /* 1..STORE_PAGE_MAX */
};
PD_NODISCARD enum pd_err store_job_list(struct store *s, const struct store_job_query *q,
                                        bool (*row)(void *ctx, const struct store_job *job), void *ctx,
                                        struct pd_why *why);
/* PD_ERR_NOT_FOUND if there is no such job. */
PD_NODISCARD enum pd_err store_job_get(struct store *s, int64_t id,
                                       bool (*row)(void *ctx, const struct store_job *job), void *ctx,
                                       struct pd_why *why);

/* The oldest unpaused job whose runs have not all been created. No row: there is none. */
PD_NODISCARD enum pd_err store_job_expanding(struct store *s,
                                             bool (*row)(void *ctx, const struct store_job *job), void *ctx,
                                             struct pd_why *why);

struct store_run_query {
    int64_t job_id;         /* 0 = any */
    const char *experiment; /* NULL = any */
    int state;              /* enum job_run_state, or -1 = any; STORE_RUN_ACTIVE = all but ended */
    int outcome;            /* enum job_outcome, or -1 = any */
    const char *name_like;
    const char *text;            /* substring of name, experiment, tags, swept values or id; NULL = any */
    const char *tag, *tag_value; /* the job has this tag (with this value, if not NULL); NULL = any */
    const char *group;           /* name of a group; NULL = any */
    const char *kind;            /* name of the job's kind; NULL = any */
    enum store_archived archived;
    /* PRIORITY: descending priority, then id: the queue's order without ageing. TURN: descending priority,
     * then the run's number within its job, so that every job's first run precedes all second runs. */
    enum store_order order;
    int64_t after_id;
    int limit;
};
#define STORE_RUN_ACTIVE (-2)
PD_NODISCARD enum pd_err store_run_list(struct store *s, const struct store_run_query *q,
                                        bool (*row)(void *ctx, const struct store_run *run), void *ctx,
                                        struct pd_why *why);
/* One queued run of every job that has any, at most `limit`, oldest jobs first: the job's first run whose
 * back-off has ended by `clock_us` (store's clock); if all of them wait for that, its first one. */
PD_NODISCARD enum pd_err store_run_next(struct store *s, int64_t clock_us, int limit,
                                        bool (*row)(void *ctx, const struct store_run *run), void *ctx,
                                        struct pd_why *why);

/* The position of a run in a sorted list: its value as text. */
#define STORE_PLACE_SIZE 272
struct store_run_sort {
    const char *by; /* a field of a run (id, created, started, ended, step, name, ...), a pointer into its
                       document, or a metric key: its latest value */
    bool desc;
    /* with the query's after_id: the position of the last run of the previous page; NULL = from the first */
    const char *after;
};
/* Digests of data and program that the runs of a job reported, the most frequent first, at most
 * STORE_INPUTS_MAX. */
#define STORE_INPUTS_MAX 16
PD_NODISCARD enum pd_err store_job_inputs(struct store *s, int64_t job_id,
                                          bool (*row)(void *ctx, const struct store_inputs *inputs),
                                          void *ctx, struct pd_why *why);
/* As store_run_list, ordered by value, then by id in the same direction; `order` is not looked at. Runs
 * without a value, or with NaN, come last in both directions. PD_ERR_INVALID: unknown name. */
PD_NODISCARD enum pd_err
store_run_sorted(struct store *s, const struct store_run_query *q, const struct store_run_sort *sort,
                 bool (*row)(void *ctx, const struct store_run *run, const char *place), void *ctx,
                 struct pd_why *why);
/* Whether the configuration of any external run has a value at this pointer. */
PD_NODISCARD enum pd_err store_config_has(struct store *s, const char *pointer, bool *ret,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err store_run_get(struct store *s, int64_t id,
                                       bool (*row)(void *ctx, const struct store_run *run), void *ctx,
                                       struct pd_why *why);

/* External runs that sent nothing since `before_us` (store's clock), ordered by their last message. */
PD_NODISCARD enum pd_err store_run_silent(struct store *s, int64_t before_us,
                                          bool (*row)(void *ctx, int64_t run_id), void *ctx,
                                          struct pd_why *why);

/* As store_run_pause_wanted. */
PD_NODISCARD enum pd_err store_run_to_pause(struct store *s, int64_t run_id, bool *ret, struct pd_why *why);

struct store_pace {
    int64_t start_step, started_us; /* of an attempt; started_us 0 = its worker has not connected yet */
    int64_t created_us;             /* start of its hold on the devices */
    int64_t ended_us; /* 0: still running; otherwise its time is included in the run's used_us */
};
/* PD_ERR_NOT_FOUND: the run has no attempt of this number. */
PD_NODISCARD enum pd_err store_run_pace(struct store *s, int64_t run_id, int n, struct store_pace *ret,
                                        struct pd_why *why);
struct store_best {
    int64_t step;
    double value;
};
/* The greatest or least finite value that the run itself wrote under the key, at its first occurrence;
 * PD_ERR_NOT_FOUND if it wrote none. */
PD_NODISCARD enum pd_err store_run_best(struct store *s, int64_t run_id, const char *key, bool maximise,
                                        struct store_best *ret, struct pd_why *why);

/* All attempts of the run in order; run_id 0 = all attempts not ended, of any run. */
PD_NODISCARD enum pd_err store_attempt_list(struct store *s, int64_t run_id,
                                            bool (*row)(void *ctx, const struct store_attempt *a), void *ctx,
                                            struct pd_why *why);

/* Checkpoints of the run, newest first; those deleted only if `deleted`. */
PD_NODISCARD enum pd_err store_checkpoint_list(struct store *s, int64_t run_id, bool deleted,
                                               bool (*row)(void *ctx, const struct store_checkpoint *c),
                                               void *ctx, struct pd_why *why);
PD_NODISCARD enum pd_err store_checkpoint_get(struct store *s, int64_t id,
                                              bool (*row)(void *ctx, const struct store_checkpoint *c),
                                              void *ctx, struct pd_why *why);

struct store_event_query {
    int64_t since_id;       /* only ids above */
    int64_t job_id, run_id; /* 0 = any */
    int limit;
};
/* In the order of their ids. */
PD_NODISCARD enum pd_err store_event_list(struct store *s, const struct store_event_query *q,
                                          bool (*row)(void *ctx, const struct store_event *e), void *ctx,
                                          struct pd_why *why);
/* The data (JSON) of the run's newest event of this kind, appended; PD_ERR_NOT_FOUND. */
PD_NODISCARD enum pd_err store_run_event(struct store *s, int64_t run_id, const char *kind,
                                         struct pd_buf *out, struct pd_why *why);
/* Highest event id, 0 when there is none. */
PD_NODISCARD enum pd_err store_event_last(struct store *s, int64_t *ret_id, struct pd_why *why);

#define STORE_RUN_KEYS_MAX 10000 /* maximum number of keys of a run to which clients may add */

/* The series of a run by key, with their latest values. */
PD_NODISCARD enum pd_err store_series_list(struct store *s, int64_t run_id,
                                           bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                                           struct pd_why *why);
/* At most `limit` of them after that of `after` (a key_id; 0 = from the first), in the order of key_id, which
 * is that in which the store first saw the keys. */
PD_NODISCARD enum pd_err store_series_page(struct store *s, int64_t run_id, int64_t after, int limit,
                                           bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                                           struct pd_why *why);
/* Latest value of one series; PD_ERR_NOT_FOUND when it has no point. */
PD_NODISCARD enum pd_err store_series_get(struct store *s, int64_t run_id, const char *key,
                                          bool (*row)(void *ctx, const struct store_series *m), void *ctx,
                                          struct pd_why *why);

/* Points of a series. By default the current series: for a step that several attempts reached, the latest
 * attempt's points (after a resume from a checkpoint, the earlier attempt's points beyond it are superseded). What an
 * attempt measures at or before the step that it started from (a test of the best weights) is shown unless an
 * earlier attempt's point of that step is.
 * Points logged over HTTP are attempt 0, and always shown except in a series that the worker writes: such
 * points from before polyd refused them are ignored. */
struct store_point_query {
    int64_t run_id;
    const char *key;
    int64_t from_step, to_step; /* inclusive; INT64_MIN, INT64_MAX = all */
    int attempt;                /* -1 = as described; else only this attempt, including superseded points */
    int64_t skip;               /* keyset: number of points of from_step on the previous page */
    int limit;                  /* points; 0 = no limit (export: streams) */
    /* For buckets. whole_range: they divide from_step..to_step (or from_us..to_us), not the range of the
     * series. by_time: buckets by time; earlier and later points fall into the first and last bucket. */
    bool whole_range, by_time;
    int64_t from_us, to_us;
};
/* In the order of steps. PD_OK with no row when the series does not exist. */
PD_NODISCARD enum pd_err store_point_list(struct store *s, const struct store_point_query *q,
                                          bool (*row)(void *ctx, const struct store_point *p), void *ctx,
                                          struct pd_why *why);

/* The same points in at most `buckets` buckets (1..STORE_BUCKETS_MAX): every point is in exactly one, and
 * none is left out. Long series are read from roll-ups; then bucket bounds lie between roll-ups. *ret_points
 * (may be NULL) = points represented. */
PD_NODISCARD enum pd_err store_bucket_list(struct store *s, const struct store_point_query *q, int buckets,
                                           bool (*row)(void *ctx, const struct store_bucket *b), void *ctx,
                                           int64_t *ret_points, struct pd_why *why);

PD_NODISCARD enum pd_err store_model_list(struct store *s, enum store_archived archived,
                                          bool (*row)(void *ctx, const struct store_model *m), void *ctx,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err store_model_get(struct store *s, const char *name,
                                         bool (*row)(void *ctx, const struct store_model *m), void *ctx,
                                         struct pd_why *why);
/* Versions of a model, highest first; model NULL = those of all models that should be loaded. */
PD_NODISCARD enum pd_err store_model_version_list(struct store *s, const char *model,
                                                  bool (*row)(void *ctx, const struct store_model_version *v),
                                                  void *ctx, struct pd_why *why);
/* n = 0: the highest. */
PD_NODISCARD enum pd_err store_model_version_get(struct store *s, const char *model, int64_t n,
                                                 bool (*row)(void *ctx, const struct store_model_version *v),
                                                 void *ctx, struct pd_why *why);
PD_NODISCARD enum pd_err store_alias_list(struct store *s, const char *model,
                                          bool (*row)(void *ctx, const struct store_alias *a), void *ctx,
                                          struct pd_why *why);
/* The version of an alias; PD_ERR_NOT_FOUND. */
PD_NODISCARD enum pd_err store_alias_get(struct store *s, const char *model, const char *alias,
                                         int64_t *ret_n, struct pd_why *why);

/* Blobs of one key of a run in order of step. */
struct store_blob_key {
    const char *key, *kind;
    int64_t count, first_step, last_step;
};
PD_NODISCARD enum pd_err store_blob_keys(struct store *s, int64_t run_id,
                                         bool (*row)(void *ctx, const struct store_blob_key *k), void *ctx,
                                         struct pd_why *why);
/* Steps above after_step. If several attempts wrote a step, the newest counts. */
PD_NODISCARD enum pd_err store_blob_list(struct store *s, int64_t run_id, const char *key, int64_t after_step,
                                         int limit, /* 1..STORE_PAGE_MAX */
                                         bool (*row)(void *ctx, const struct store_blob *b), void *ctx,
                                         struct pd_why *why);
/* Calls row once with blob `id` of the run, and the path of its file. PD_ERR_NOT_FOUND. */
PD_NODISCARD enum pd_err store_blob_get(struct store *s, int64_t run_id, int64_t id,
                                        void (*row)(void *ctx, const struct store_blob *b, const char *path),
                                        void *ctx, struct pd_why *why);

/* ---- sweeps, groups, comparison ------------------------------------------------------------- */

/* A run as a member of a group, with one of its series. */
struct store_sample {
    const char *label; /* label of its group; "" for points */
    int64_t run_id, job_id, point, trial, seed;
    enum job_run_state state;
    enum job_outcome outcome; /* meaningful when ended */
    const char *sweep;        /* swept values, JSON; only with BY_POINT */
    int64_t started_us;       /* of the run; 0 = not yet */
    bool has;                 /* the series exists; step and time are those of its latest point */
    int64_t step, time_us;
    double last, min, max; /* NaN where there is none */
};

enum store_by {
    STORE_BY_POINT,      /* runs of job_id in the order of point, trial */
    STORE_BY_GROUP,      /* name of a group; a run may be in several */
    STORE_BY_EXPERIMENT, /* the rest: in the order of the label, then run */
    STORE_BY_JOB,
    STORE_BY_TAG,  /* value of the job's tag `name` */
    STORE_BY_FIELD /* value of the resolved document at the pointer `name` */
};

struct store_sample_query {
    enum store_by by;
    const char *name;       /* tag or pointer; with BY_GROUP: only this group, NULL = all */
    const char *experiment; /* NULL = any */
    int64_t job_id;         /* 0 = any; BY_POINT needs it */
    int64_t from_point, to_point;
    const char *key; /* of the series; NULL = none */
    int limit;       /* most runs */
};
/* Runs without a label (no such tag or field) are left out. */
PD_NODISCARD enum pd_err store_sample_list(struct store *s, const struct store_sample_query *q,
                                           bool (*row)(void *ctx, const struct store_sample *m), void *ctx,
                                           struct pd_why *why);

/* States of the runs of a job. */
struct store_run_counts {
    int64_t state[JOB_RUN_STATE_COUNT];
    int64_t outcome[JOB_OUTCOME_COUNT];
};
PD_NODISCARD enum pd_err store_run_count(struct store *s, int64_t job_id, struct store_run_counts *ret,
                                         struct pd_why *why);

/* The jobs with one label, and the states of their runs. */
struct store_experiment {
    const char *name;          /* the label */
    const char *template_name; /* of its newest job; "" = none */
    int64_t jobs;
    int64_t created_us; /* of the first job */
    int64_t ended_us;   /* of the last job to end; 0 = not all have ended */
    struct store_run_counts runs;
};
/* By name; `after` NULL = the first page. Jobs that are archived count. */
PD_NODISCARD enum pd_err store_experiment_list(struct store *s, const char *after, int limit,
                                               bool (*row)(void *ctx, const struct store_experiment *e),
                                               void *ctx, struct pd_why *why);
/* PD_ERR_NOT_FOUND: no job carries the label. */
PD_NODISCARD enum pd_err store_experiment_get(struct store *s, const char *name,
                                              bool (*row)(void *ctx, const struct store_experiment *e),
                                              void *ctx, struct pd_why *why);

struct store_group {
    int64_t id, version; /* the ETag */
    const char *name, *description;
    int64_t runs;
    int64_t created_us;
    int64_t archived_us;
};
/* By id; after_id 0 = first page. */
PD_NODISCARD enum pd_err store_group_list(struct store *s, enum store_archived archived, int64_t after_id,
                                          int limit, bool (*row)(void *ctx, const struct store_group *g),
                                          void *ctx, struct pd_why *why);
PD_NODISCARD enum pd_err store_group_get(struct store *s, const char *name,
                                         bool (*row)(void *ctx, const struct store_group *g), void *ctx,
                                         struct pd_why *why);

/* ---- disk usage -------------------------------------------------------------------------------- */

/* Bytes of files according to the rows. */
struct store_space {
    int64_t checkpoints, logs;
    int64_t blobs;   /* files of several runs count once */
    int64_t weights; /* of versions that no run wrote; only in store_all_space */
};
PD_NODISCARD enum pd_err store_run_space(struct store *s, int64_t run_id, struct store_space *ret,
                                         struct pd_why *why);
PD_NODISCARD enum pd_err store_job_space(struct store *s, int64_t job_id, struct store_space *ret,
                                         struct pd_why *why);
/* Of all runs. *ret_deleting: number of deleted runs whose files are still being removed. */
PD_NODISCARD enum pd_err store_all_space(struct store *s, struct store_space *ret, int64_t *ret_deleting,
                                         struct pd_why *why);
/* Checkpoints and logs of the largest jobs, in descending order. */
struct store_job_size {
    int64_t job_id;
    const char *name, *experiment;
    int64_t runs, bytes, archived_us;
};
PD_NODISCARD enum pd_err store_job_sizes(struct store *s, int limit,
                                         bool (*row)(void *ctx, const struct store_job_size *j), void *ctx,
                                         struct pd_why *why);

/* Whether the run exists and neither it nor its job is deleted. */
PD_NODISCARD enum pd_err store_run_known(struct store *s, int64_t run_id, bool *ret, struct pd_why *why);
/* Whether any version refers to the file models/<name>. */
PD_NODISCARD enum pd_err store_weights_known(struct store *s, const char *name, bool *ret,
                                             struct pd_why *why);
/* Whether any run refers to the file blobs/../<sha256>. */
PD_NODISCARD enum pd_err store_blob_known(struct store *s, const char *sha256, bool *ret, struct pd_why *why);
/* Deleted runs with an id above `after` without remaining rows: their folders are removed next, then
 * store_remnant_done (tx.h) is called. */
PD_NODISCARD enum pd_err store_remnant_list(struct store *s, int64_t after,
                                            bool (*row)(void *ctx, int64_t run_id), void *ctx,
                                            struct pd_why *why);

/* Moves of states since the first day. */
struct store_tally {
    const char *kind;      /* job, run, attempt */
    const char *from, *to; /* from "" = it came to be */
    int64_t count;
};
PD_NODISCARD enum pd_err store_tally_list(struct store *s,
                                          bool (*row)(void *ctx, const struct store_tally *t), void *ctx,
                                          struct pd_why *why);

/* A device out of service. */
struct store_drain {
    const char *device, *name; /* its id; its name at that time */
    const char *reason, *who;
    int64_t time_us;
};
PD_NODISCARD enum pd_err store_drain_list(struct store *s,
                                          bool (*row)(void *ctx, const struct store_drain *d), void *ctx,
                                          struct pd_why *why);

/* Measured algorithm choices of back ends (daemon/worker/model/tuned.h), matched by key.
 */
#define STORE_TUNED_KEY 1023    /* bytes of a key */
#define STORE_TUNED_VALUE 256   /* bytes of a value */
#define STORE_TUNED_DEVICE 8192 /* records per device model; the oldest are removed */
#define STORE_TUNED_ALL 32768   /* of all */
struct store_tuned {
    const char *device; /* "NVIDIA H200": shared by all devices of this name */
    const char *driver, *library;
    const char *key;
    const void *value;
    size_t size;
    int64_t run_id;  /* that measured it; 0 = a serving worker */
    int64_t time_us; /* when */
};
/* Those of one device, driver and library, oldest first. A row beyond the limits above is returned with size
 * 0. */
PD_NODISCARD enum pd_err store_tuned_list(struct store *s, const char *device, const char *driver,
                                          const char *library,
                                          bool (*row)(void *ctx, const struct store_tuned *t), void *ctx,
                                          struct pd_why *why);
/* How many there are, by device, driver and library, in this order. */
struct store_tuned_sum {
    const char *device, *driver, *library;
    int64_t records, bytes;    /* of keys and values */
    int64_t first_us, last_us; /* measured */
    int64_t version;           /* of the device's records, the ETag: increases with every new record */
};
/* `device` NULL = all. */
PD_NODISCARD enum pd_err store_tuned_sums(struct store *s, const char *device,
                                          bool (*row)(void *ctx, const struct store_tuned_sum *t), void *ctx,
                                          struct pd_why *why);

/* A stored plan by its digest (JSON copied into `out`); PD_ERR_NOT_FOUND. */
PD_NODISCARD enum pd_err store_plan_get(struct store *s, const char *plan_digest, struct pd_buf *out,
                                        struct pd_why *why);

/* Looks up an idempotency key without writing (the writer checks again, see store_idem_claim).
 * `scope` is "POST /api/v1/jobs". PD_OK: stored; *ret_status and `response` (appended) are
 * the first answer. PD_ERR_NOT_FOUND: unknown or too old. PD_ERR_CONFLICT: same key, other body. */
PD_NODISCARD enum pd_err store_idem_get(struct store *s, const char *scope, const char *key,
                                        const uint8_t body_sha256[32], int *ret_status,
                                        struct pd_buf *response, struct pd_why *why);

/* Counts for /metrics: jobs and runs by state. The arrays have the enums' _COUNT entries. */
struct store_counts {
    int64_t jobs[JOB_STATE_COUNT];
    int64_t runs[JOB_RUN_STATE_COUNT];
    int64_t oldest_queued_us; /* creation of the longest waiting queued run; 0 = none waits */
};
PD_NODISCARD enum pd_err store_count(struct store *s, struct store_counts *ret, struct pd_why *why);

/* ---- the writer ----------------------------------------------------------------------------- */

struct store_writer;
struct store_tx; /* the group's transaction; valid only inside `apply`. Functions: tx.h */

/* Lanes, each bounded; every group commit takes at least one entry of the metrics lane. */
enum store_lane {
    STORE_LANE_COMMAND, /* submissions and commands of clients */
    STORE_LANE_WORKER,  /* state of workers */
    STORE_LANE_METRICS, /* metric batches, of workers and of clients */
    STORE_LANE_COUNT
};

struct store_work {
    enum store_lane lane;
    int rows; /* about how many rows it writes: a group takes at most 1000; 0 counts as 1 */
    bool
        keep; /* stays queued and is tried again, instead of failing, while the disk refuses, another program holds
                * the file's lock, or memory is short */
    /* Writer thread, inside the transaction. Anything but PD_OK undoes this work alone. May run again from
     * the start (the group was rolled back by another's failure), so it must only overwrite its results. */
    enum pd_err (*apply)(struct store_tx *tx, void *ctx, struct pd_why *why);
    /* Writer thread, after the commit (or its failure, or apply's). Exactly once for an accepted work. Must
     * be quick and never wait. May submit. May be NULL. */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

struct store_commit_run {
    int64_t run_id, job_id;
};

/* Changes of a commit, for streams. Called on the writer thread after each commit, before the dones. */
struct store_commit {
    int64_t last_event_id;
    bool events;                         /* new events */
    int64_t points;                      /* metric points written */
    const struct store_commit_run *runs; /* runs that got metric points; borrowed */
    int run_count;
};
#define STORE_COMMIT_RUNS 1000 /* one for each work of a commit */

struct store_writer_options {
    const char *state_dir;    /* the file is <state_dir>/polyd.db; its directory must exist */
    bool init;                /* a folder whose database is lost is emptied (moved aside), not refused */
    bool external_checkpoint; /* leave WAL checkpoints to another program (Litestream) */
    /* Called by store_writer_start, on its thread, when a migration begins and again and again while it
     * works, so that a caller waiting for the start can report progress. `what`: a sentence. May be NULL. */
    void (*busy)(void *ctx, const char *what);
    void *busy_ctx;
    int lane_limit;               /* works waiting in each lane; 0 = 4096 */
    int limits[STORE_LANE_COUNT]; /* of single lanes; 0 = lane_limit */
};

/* Locks the state directory (PD_ERR_BUSY: another daemon has it), refuses one whose runs have lost their
 * database (PD_ERR_CONFLICT; identity.h says what that is, nothing was changed), opens or creates the file,
 * refuses a newer one (PD_ERR_VERSION), migrates (after a copy of the old file with VACUUM INTO), and starts
 * the thread. */
PD_NODISCARD enum pd_err store_writer_start(const struct store_writer_options *o, struct store_writer **ret,
                                            struct pd_why *why);
/* Commits what is queued, stops, unlocks. Work handed in later is refused with PD_ERR_CLOSED. NULL is fine.
 * Returns NULL. */
struct store_writer *store_writer_stop(struct store_writer *w);

/* The file's path, for store_open_reader. Borrowed until the stop. */
const char *store_writer_path(const struct store_writer *w);
/* Now on the store's clock: it never goes back and never jumps, over restarts as well. For waits and limits;
 * times to be shown are the wall clock's. Any thread. */
int64_t store_writer_clock_us(const struct store_writer *w);
/* On the store's clock: a moment at most 10 s before the last commit of the previous daemon; 0 = there was
 * none. Any thread. */
int64_t store_writer_previous_us(const struct store_writer *w);
/* The database's identity, 32 lower-case hex digits. Borrowed until the stop. */
const char *store_writer_uuid(const struct store_writer *w);

/* Hands the work in (copied; ctx stays the caller's). PD_ERR_BUSY: the lane is full. PD_ERR_FULL, PD_ERR_IO:
 * the last commit failed so and the store refuses writes until a probe succeeds. PD_ERR_CLOSED: stopping.
 * Then `done` is not called. Any thread. */
PD_NODISCARD enum pd_err store_writer_submit(struct store_writer *w, const struct store_work *work,
                                             struct pd_why *why);
/* The same, waiting for the commit. Never from the writer thread or an HTTP thread. */
PD_NODISCARD enum pd_err store_writer_call(struct store_writer *w, const struct store_work *work,
                                           struct pd_why *why);

/* Sets or clears (NULL) the listener. Returns after a running call of the former one has ended. */
void store_writer_listen(struct store_writer *w, void (*fn)(void *ctx, const struct store_commit *c),
                         void *ctx);

/* PD_OK, or why writes are refused now (for /readyz). Any thread. */
enum pd_err store_writer_health(struct store_writer *w, struct pd_why *why);

/* Monotonic time of the writer's last sign of life (it wakes at least once a second). For the watchdog. */
int64_t store_writer_alive_us(struct store_writer *w);

struct store_stats {
    int64_t commits, rows, points, commit_us_total, commit_us_max, busy;
    int64_t wal_bytes, db_bytes;
    int queued[STORE_LANE_COUNT];
    int64_t commit_hist[12]; /* commits up to 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256 ms, and above */
};
void store_writer_stats(struct store_writer *w, struct store_stats *ret);
