/* daemon/worker/train/run.h: private to this room: one run while it runs.
 *
 * run.c is the loop; report.c, stage.c, keep.c and measure.c are its hands. All of it belongs to the training
 * thread. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/model/peak.h"
#include "daemon/worker/model/tuned.h"
#include "daemon/worker/train/setup.h"
#include "kernels/comm/comm.h"

#define TRAIN_POINTS_MAX 1000                   /* points of one report */
#define TRAIN_CHECKPOINTS_MAX 256               /* files kept account of in the run's directory */
#define TRAIN_STATS 5                           /* numbers that a probe takes per layer and head */
enum { TRAIN_NUMBER_LOSS, TRAIN_NUMBER_SHOWN }; /* of a task's numbers: what a checkpoint's state holds */

/* A planned graph with the memory of its inputs and states. */
struct stage {
    struct pk_graph *graph;
    struct pk_exec *exec;
    void **memory; /* per leaf; NULL where it is not ours (parameters) */
    size_t leaves;
};

struct kept {
    int64_t step;
    double score;  /* NaN: not measured at that step */
    bool recorded; /* a later attempt may be told to go on from it */
};

/* Meetings of the ranks outside a step: a piece of memory that all get from one. */
struct share {
    struct stage stage; /* built when it is first needed */
    size_t bytes;
};

struct run {
    struct job_config *config;
    const struct train_dirs *dirs;
    const struct train_host *host;
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct train_setup setup;
    struct pk_host lent; /* to the back end */
    struct model_tuned *tuned;
    struct model_peak peak; /* of the device; flops 0 on a CPU */
    double step_flop;       /* of products and attention, of this rank */
    struct pk_comm_host staging;
    struct share *shares;   /* two of each rank: small, large */
    struct data_st *loaded; /* rank 0: the checkpoint, until all have its contents */
    int64_t comm_waited_us; /* at the last flush */
    struct model_store *store;
    struct stage train, eval, probe;
    struct stage part;              /* of a step, where there are several */
    int64_t parts, part_done;       /* parts of a step; of those, how many have been added up */
    const struct data_batch *batch; /* of the step in progress, or NULL */
    struct pk_slot *slot[2];        /* in turn; NULL: batches are uploaded */
    int slot_at;                    /* of the step in progress */
    bool slot_sent;                 /* the other one has the next batch */
    struct data_batch slot_batch;   /* what r->batch is then: the host does not look into it */
    struct {
        const char *name; /* of the input */
        size_t offset;
    } slot_part[DATA_TENSORS_MAX];
    size_t slot_parts;
    void **averages; /* per parameter, or NULL where none are kept */
    struct data_loader *loader;
    struct train_state state;
    struct train_tensor *tensors; /* what a checkpoint holds */
    char (*names)[80];
    size_t tensor_count;
    struct data_st_meta_item meta[MODEL_META_ITEMS + 24];
    size_t meta_count;
    char *meta_text, *class_text, own_text[24][64];
    struct pd_buf tokenizer; /* serialised, for checkpoints */
    size_t own_count;
    struct kept kept[TRAIN_CHECKPOINTS_MAX]; /* ascending steps */
    size_t kept_count;
    int64_t saved_step; /* -1: nothing saved or loaded */
    int64_t saved_us;
    struct train_point points[TRAIN_POINTS_MAX];
    size_t point_count;
    int64_t flushed_us, logged_us;
    int64_t used_us, used_at_us; /* processor time of the process, and when it was looked at */
    double busy_us;              /* spent in steps since the last flush */
    int64_t busy_steps;
    int64_t waited_us; /* for batches, at the last flush */
    int64_t bad;       /* pictures that could not be decoded, as last said */
    char (*keys)[40];  /* per layer: TRAIN_STATS + 1 names, each for the mean and for every head */
    double *numbers;   /* scratch for outputs and learned scales */
    bool cancelled;
    void (*scored)(struct run *r); /* after each batch of an evaluation; NULL: the host is not told */
    int64_t scored_batches;
    struct train_outcome *out;
};

/* ---- run.c ---- */

/* Opens the back end, with its measured choices; its math mode is not set. r->setup is made. */
PD_NODISCARD enum pd_err train_open_backend(struct run *r, struct pk_backend_info *ret_device,
                                            struct pd_why *why);
PD_NODISCARD enum pd_err train_set_math(struct run *r, struct pd_why *why);
/* Releases all of the run but its own memory. `reason`: why it failed, NULL if it did not. */
void train_close(struct run *r, const char *reason);
void train_outcome_init(struct train_outcome *ret);

/* ---- report.c ---- */

/* An event for the host; fields are "key=value" pairs. */
void train_say(struct run *r, const char *kind, const char *fields, const char *text);
/* A line for the attempt's log. */
void train_note(struct run *r, const char *fmt, ...) PD_PRINTF(2, 3);
/* Adds a point of the current step; `key` lives as long as the run. */
void train_push(struct run *r, const char *key, double value);
/* Hands all points to the host, with the means of the steps since the last time. */
void train_flush(struct run *r);

/* Names, once, what the data hold that is not read. */
void train_say_warnings(struct run *r);
/* Tells of pictures that could not be decoded since the last time. */
void train_say_bad(struct run *r);

/* ---- stage.c ---- */

/* Plans s->graph, allocates its inputs and states (zeroed), binds everything. A state that `with` (may be
 * NULL) has under the same name is shared with it. */
PD_NODISCARD enum pd_err train_stage_init(struct run *r, struct stage *s, const struct stage *with,
                                          struct pd_why *why);
/* The memory of an input or state; NULL if there is none of that name. */
void *train_stage_memory(const struct stage *s, const char *name);
void train_stage_done(struct run *r, struct stage *s);
PD_NODISCARD enum pd_err train_feed_hyper(struct run *r, const double hyper[4], struct pd_why *why);
/* The generator of this step's noise; nothing where the network has none. */
PD_NODISCARD enum pd_err train_feed_rng(struct run *r, struct stage *s, uint64_t seed, uint32_t draw,
                                        struct pd_why *why);
/* A number to an input of one element. */
PD_NODISCARD enum pd_err train_feed_number(struct run *r, struct stage *s, const char *name, double x,
                                           struct pd_why *why);
/* Part `part` of a batch, as large as the stage takes. */
PD_NODISCARD enum pd_err train_feed_batch(struct run *r, struct stage *s, const struct data_batch *b,
                                          int64_t part, struct pd_why *why);
/* Sets r->batch to the next one. Where the back end's memory is not the host's, batches travel through slots:
 * train_send_next, called while a step runs, sends the next one off beside it; what it cannot do (the loader
 * fails) is found by the call that needs the batch. */
PD_NODISCARD enum pd_err train_next_batch(struct run *r, struct pd_why *why);
void train_send_next(struct run *r);
/* Before the loader is started; and undoing it, while the back end is open. */
PD_NODISCARD enum pd_err train_slots_open(struct run *r, struct pd_why *why);
void train_slots_close(struct run *r);
/* Reads `count` numbers of an output as double. */
PD_NODISCARD enum pd_err train_number(struct run *r, struct stage *s, const char *name, double *to,
                                      size_t count, struct pd_why *why);

/* ---- ranks.c: nothing of it does anything where there is one rank ---- */

/* Meets the other ranks. The back end is open. */
PD_NODISCARD enum pd_err train_ranks_open(struct run *r, struct pd_why *why);
/* Unless all went well (NULL) the others are told; what is enqueued for them ends. */
void train_ranks_leave(struct run *r, const char *reason);
/* When every recorded step is gone that sums over ranks. */
void train_ranks_close(struct run *r);
/* Host memory of rank `root`, on all. */
PD_NODISCARD enum pd_err train_ranks_share(struct run *r, void *memory, size_t bytes, int root,
                                           struct pd_why *why);
/* What rank 0 thinks of it. */
PD_NODISCARD enum pd_err train_ranks_agree(struct run *r, int64_t *x, struct pd_why *why);
/* Sums of all ranks' numbers, at most TASK_SUMS_MAX, in the order of ranks: the same bits everywhere. */
PD_NODISCARD enum pd_err train_ranks_sum(struct run *r, double *x, size_t count, struct pd_why *why);
/* After rank 0 has loaded or begun: its state, parameters and moments go to all, and their digests are
 * compared. */
PD_NODISCARD enum pd_err train_ranks_start(struct run *r, struct pd_why *why);
/* Whether every rank has rank 0's parameters, to the bit: asked at the start and at every checkpoint. */
PD_NODISCARD enum pd_err train_ranks_compare(struct run *r, struct pd_why *why);
/* Before a checkpoint: moments that another rank keeps come to rank 0, as st.data of their tensors; _forget
 * frees them. */
PD_NODISCARD enum pd_err train_ranks_gather(struct run *r, struct pd_why *why);
void train_ranks_forget(struct run *r);
/* Whether to stop: rank 0's answer, everywhere. */
PD_NODISCARD enum pd_err train_stop_asked(struct run *r, enum train_stop *ret, struct pd_why *why);

/* ---- keep.c ---- */

/* Lists what a checkpoint holds; the graphs are there already. */
PD_NODISCARD enum pd_err train_keep_prepare(struct run *r, struct pd_why *why);
/* Loads the wanted or newest good checkpoint, or starts from the seed. */
PD_NODISCARD enum pd_err train_load(struct run *r, struct pd_why *why);
/* Forgets checkpoints of steps that this run has not reached again: it will write them anew. */
void train_forget_later(struct run *r);
PD_NODISCARD enum pd_err train_save(struct run *r, struct pd_why *why);
/* A checkpoint that may fail without ending the run: it is said, and tried again when the next is due. What
 * fails here is the ranks' agreement. */
PD_NODISCARD enum pd_err train_try_save(struct run *r, struct pd_why *why);
/* The averages begin where the weights do. */
PD_NODISCARD enum pd_err train_start_averages(struct run *r, struct pd_why *why);
/* Removes what retention does not keep: the newest `latest`, and of the scored ones the `best`. */
void train_prune(struct run *r, int64_t latest, bool last);
/* Whether score a is better than b; a NaN is never better. */
bool train_better(const struct run *r, double a, double b);
void train_checkpoint_path(struct run *r, int64_t step, char *out, size_t size);

/* ---- measure.c ---- */

/* The task's numbers over the samples that are scored, with the parameters that the evaluation reads now.
 * *ret_abandoned: a stop was asked for. */
PD_NODISCARD enum pd_err train_score_set(struct run *r, double number[TASK_NUMBERS_MAX], bool *ret_abandoned,
                                         struct pd_why *why);
/* Adds them as points. */
void train_push_numbers(struct run *r, const double *number, bool averaged);

/* The whole validation set, and once more with the averaged weights where there are any. *ret_abandoned: a
 * stop was asked for, nothing was recorded. */
PD_NODISCARD enum pd_err train_evaluate(struct run *r, bool *ret_abandoned, struct pd_why *why);
PD_NODISCARD enum pd_err train_probe_prepare(struct run *r, struct pd_why *why);
PD_NODISCARD enum pd_err train_probe(struct run *r, struct pd_why *why);
