/* daemon/supervise/internal.h: the supervisor's own structures. Private to the room.
 *
 * Everything belongs to the supervisor's thread, except what the comment "mutex" marks: devices, queue notes,
 * models and requests are read by HTTP threads under sup.mutex. Writes to the store are asynchronous: a
 * struct op travels to the writer's thread and comes back through the post box. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "daemon/device/device.h"
#include "daemon/store/tx.h"
#include "daemon/supervise/supervise.h"

#define SUP_DEVICES_MAX DEVICE_MAX
#define SUP_CONNECTIONS_MAX 512
#define SUP_PLANS_MAX 256   /* asked for and not answered */
#define SUP_PLANS_AT_ONCE 4 /* being made */
#define SUP_SERVED_MAX 256  /* jobs whose last start is remembered */
#define SUP_ATTEMPT_DEVICES 64
#define SUP_PATH_MAX 1024
#define SUP_STARTS 8 /* checkpoints named to a worker: the newest, and those for when it is damaged */
#define SUP_PLAN_US (INT64_C(120) * 1000000)

struct conn;
struct att;
struct model;

/* What epoll gives back. */
enum source_kind { SOURCE_WAKE, SOURCE_LISTEN, SOURCE_CONN, SOURCE_ATT, SOURCE_MODEL, SOURCE_PLAN };
struct source {
    enum source_kind kind;
    void *self;
};

/* Something for the supervisor's thread to do. */
struct post {
    void (*fn)(struct sup *s, struct post *p); /* owns p */
    struct post *next;
};

/* A process: its shim for attempts and models. */
struct proc {
    pid_t pid;
    uint64_t start;
    int fd;     /* pidfd; -1 = gone or none */
    bool child; /* ours to reap */
    bool gone;
    bool watched;
    int status; /* waitpid status of the worker, -1 = unknown */
};

/* One of the other ranks of a gang; rank 0 is the attempt's own conn. */
struct att_rank {
    struct conn *conn;
    int64_t heard_us;
    bool bye; /* said goodbye: silence is no hang */
};

/* What was seen of the device of a rank since the last point was written. */
struct att_usage {
    int64_t taken_us; /* the sample that was counted last */
    int samples, utilizations, powers;
    double utilization, power_mw; /* sums */
    int64_t memory, temperature;  /* greatest; -1 = not told */
};

enum att_phase {
    ATT_INSERTING, /* the row is being written */
    ATT_WORKING,   /* a process exists */
    ATT_ENDING,    /* the end is being written */
    ATT_ENDED      /* written; waits for the process to leave */
};

struct att {
    struct source source;
    struct att *next;
    int64_t run, job;
    int n;
    enum att_phase phase;
    int devices[SUP_ATTEMPT_DEVICES];
    int device_count;
    int threads;
    char
        device_text[SUP_ATTEMPT_DEVICES * (DEVICE_ID_BYTES + 1)]; /* their ids, "cpu:0,cpu:1"; index = rank */
    uint8_t token[WIRE_TOKEN_BYTES];
    uint8_t token_sha256[32];
    bool token_known; /* the plain one: only until the process has it */
    struct att_start {
        char *path;
        int64_t step;
    } starts[SUP_STARTS]; /* the checkpoints it may go on from, newest first */
    int start_count;
    int64_t start_step;
    char plan_digest[80];
    int64_t need_bytes; /* by its plan, of each device; 0 = unknown */
    char *document;     /* resolved, owned */
    int restarts, max_restarts;

    struct proc proc;
    struct conn *conn;
    int rank_count;                             /* processes, one a device; >= 1 */
    struct att_rank ranks[SUP_ATTEMPT_DEVICES]; /* from 1 on */
    uint8_t comm_id[256];                       /* of rank 0, for the others (WIRE_RENDEZVOUS) */
    size_t comm_id_len;
    int64_t rank_failed_us; /* a rank has said so: the others leave soon; 0 = none */
    int64_t acked;          /* committed */
    bool row_running;       /* attempt and run rows were moved to running (or the move is on its way) */
    bool attempt_running;
    bool stopping; /* asked to leave; `cause` says why */
    bool stop_sent;
    enum spec_cause cause;
    int64_t kill_us;  /* monotonic; 0 = none */
    bool killed;      /* hard kill sent once */
    int64_t heard_us; /* last frame, or since when we wait for the first */
    int64_t begun_us; /* monotonic */
    int64_t limit_us; /* boot time at which the run's time limit ends; 0 = none */
    int64_t warn_us;
    bool warned;
    char *message;    /* for the end */
    char fault[200];  /* its GPU has failed: the end is not the run's own; "" = no */
    char xid[200];    /* its GPU reported an error of a program, its own most likely; "" = none */
    int64_t xid_us;   /* monotonic */
    int64_t xid_step; /* where it stood then: a later step clears it of the error */
    bool bye;         /* came over this connection: answer when recorded */
    bool lasting;     /* it failed by its document or its data: no other attempt is made */
    bool never_started;
    int64_t exit_us; /* when a lingering process is killed after its bye */
    struct att_usage usage[SUP_ATTEMPT_DEVICES];
    int64_t usage_us; /* monotonic: when the next points are due; 0 = none was looked for yet */

    /* mutex: */
    int64_t step, total, updated_us, log_bytes;
    bool checkpointing;
    int64_t step_written, log_written;
    int64_t write_us; /* when progress was last written */
};

enum conn_state { CONN_NEW, CONN_ATT, CONN_MODEL, CONN_CLOSING };

struct conn {
    struct source source;
    struct conn *next;
    int fd;
    enum conn_state state;
    struct wire_in in;
    struct pd_buf out; /* mutex for models: HTTP threads append */
    unsigned events;   /* registered with epoll */
    int64_t heard_us, beat_us, opened_us;
    unsigned version;
    pid_t peer;
    struct att *att;
    int rank; /* of att */
    struct model *model;
    struct ingest *stalled; /* waits for room in the writer's lane */
    bool dead;
    bool silent;   /* closed for that */
    int in_flight; /* ingests on the writer's thread that point here by id */
    uint64_t id;
};

struct call {
    struct call *next;
    uint64_t id;
    int64_t deadline_us; /* monotonic, 0 = none */
    void (*part)(void *ctx, const struct sup_result *r);
    void *ctx;
    bool cancelled; /* by its client */
    bool answered;
};

struct load_wait {
    struct load_wait *next;
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

/* mutex, all of it, except proc and conn's own insides. */
struct model {
    struct source source;
    struct model *next;
    char *name;
    int64_t version;
    enum sup_model_state state;
    char reason[256];
    char *signature;
    int serial; /* of the present worker: its "attempt" on the wire */
    uint8_t token[WIRE_TOKEN_BYTES];
    uint8_t token_sha256[32];
    char *document, *checkpoint, *digest;
    struct proc proc;
    struct conn *conn;
    int64_t heard_us;
    struct call *calls;
    int in_flight, waiting, running;
    int64_t requests, failures, restarts;
    struct sup_infer_stats stats;
    int64_t need_bytes; /* what the budget counts it as; of the checkpoint's size until it is ready */
    int64_t backoff_us, retry_us, kill_us, ready_us;
    int device;         /* that its worker computes on; -1 = the CPU, or no worker */
    bool wanted;        /* restart it when it dies */
    bool loading_first; /* nobody was ever served by it: a failure ends the load */
    struct load_wait *loads, *unloads;
};

struct plan {
    struct source source;
    struct plan *next;
    struct proc proc;
    bool started; /* it has a process */
    char device[8];
    int slots;
    int out_fd, err_fd;
    char digest[80];
    int64_t deadline_us;               /* of the process */
    int64_t patience_us, impatient_us; /* of the caller, and when it ends; 0 = none */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why,
                 const char *plan); /* NULL: it was told */
    void *ctx;
    char *document;
    size_t len;
};

/* What a plan says, remembered for the next cycle. */
#define SUP_PLAN_MEMOS 64
struct plan_memo {
    char digest[80];
    int64_t bytes;
};

struct queue_note {
    int64_t run;
    struct sup_queue_info info;
};

struct sup {
    struct sup_options o;
    char *state_dir, *worker_path, *train_role, *socket_path;
    struct sup_data_root *roots;
    struct store_writer *writer;
    struct store *reader;
    struct expander *expander;
    pthread_t thread;
    bool thread_started;
    int epoll_fd, wake_fd, listen_fd;
    struct source wake_source, listen_source;

    pthread_mutex_t mutex;
    struct device devices[SUP_DEVICES_MAX]; /* mutex for what follows about devices */
    struct {
        int64_t run;
        int attempt;
        int64_t need_bytes; /* of the run, by its plan; 0 = unknown */
        int models;         /* served there */
        int64_t freed_us;   /* monotonic: given back then; a GPU is used again after a look at it */
        bool drained;
        char drain_reason[160], drained_by[64];
        int64_t drained_us; /* wall clock */
    } held[SUP_DEVICES_MAX];
    int device_count;
    int gpu_first, gpu_count;                     /* the GPUs among them, in the order of the watch */
    struct device_sample samples[DEVICE_GPU_MAX]; /* as of the last slots_look */
    struct queue_note *notes;                     /* mutex */
    int note_count;
    struct att *atts;                 /* list changes under mutex */
    struct model *models;             /* mutex */
    struct post *posts, **posts_tail; /* mutex */
    struct sup_stats stats;           /* mutex */
    int plans_running;                /* mutex */
    bool stopping;                    /* mutex */

    char no_cuda[400];          /* why workers cannot compute on GPUs; "" = they can. Const after the start */
    struct device_watch *watch; /* NULL = nobody looks for GPUs */
    int drains_writing;         /* of ours: in memory, their rows on their way */
    struct post *deferred, **deferred_tail; /* writes that wait for room in the worker lane */
    struct conn *conns;
    int conn_count;
    struct plan *plans;
    struct {
        int64_t job, us; /* store's clock */
    } served[SUP_SERVED_MAX];
    struct plan_memo plan_memo[SUP_PLAN_MEMOS];
    uint64_t next_conn, next_serial;
    _Atomic uint64_t next_call;
    _Atomic int64_t alive_us;
    bool schedule;   /* look at the queue */
    bool commands;   /* look at cancelling and pausing runs */
    int64_t wake_us; /* a back-off ends */
    int64_t waits_since_us;
    int64_t since_us; /* store's clock: when this daemon began to listen */
    _Atomic int ops;  /* works on the writer's thread */
    bool quit;
};

/* supervise.c */
void sup_post(struct sup *s, struct post *p);
/* A work for the writer; `done` runs on the supervisor's thread. Takes `size` bytes of memory that begins
 * with struct op. The store keeps it queued while the disk refuses. */
struct op {
    struct post post;
    struct sup *sup;
    enum pd_err (*apply)(struct store_tx *tx, struct op *op, struct pd_why *why);
    void (*done)(struct sup *s, struct op *op); /* op is freed afterwards; NULL = nobody asks */
    void (*release)(struct op *op);             /* frees what it holds; NULL = nothing */
    enum pd_err err;
    struct pd_why why;
    enum store_lane lane;
    int rows;
};
/* PD_ERR_BUSY only for the metrics lane: then the op is still the caller's. */
enum pd_err sup_write(struct sup *s, struct op *op);
void sup_watch(struct sup *s, struct source *source, int fd, unsigned events);

/* spawn.c */
/* Starts the worker program with these arguments (argv[0] included), the token `copies` times on descriptor
 * 3, for as many readers. `device`: the one that it sees (its variables, see device_env); NULL = the GPUs
 * that we see. */
enum pd_err proc_spawn(struct sup *s, char *const argv[], const uint8_t *token, int copies, int in_fd,
                       int out_fd, int err_fd, const char *mark, const struct device *device,
                       struct proc *ret, struct pd_why *why);
/* Start time of a live process; 0 = there is none. */
uint64_t proc_start_time(pid_t pid);
/* Opens a pidfd if the process is the very one. */
bool proc_adopt(pid_t pid, uint64_t start, struct proc *ret);
void proc_signal(struct proc *p, int sig);
/* After its pidfd became readable: reaps, closes. */
void proc_reap(struct sup *s, struct proc *p);
void proc_close(struct proc *p);
/* Is the lock of this attempt's directory held? Then who holds it. */
bool shim_alive(const char *dir, pid_t *ret_pid, uint64_t *ret_start);
/* Exit status that the shim left behind, -1 = none. *ret_rank (may be NULL): of a gang, whose it is; else -1.
 */
int shim_exit_status(const char *dir, int *ret_rank);
/* Kills every process of ours that carries a mark of this state directory for which `keep` says false. */
void strays_kill(struct sup *s, bool (*keep)(struct sup *s, const char *mark));

/* attempt.c */
/* An attempt at the run, in the list, without a process; NULL without memory. */
struct att *att_new(struct sup *s, int64_t run);
/* Marks its devices as held by it. */
void att_hold(struct sup *s, struct att *a);
/* The end in memory: devices are free, the run may be looked at again. Frees it. */
void att_release(struct sup *s, struct att *a);
/* For the end; "" or NULL = nothing to say. Copied. */
void att_set_message(struct att *a, const char *text);
/* Time limit and warning from the run's row, if it has a limit. `begun_us`: start of the attempt, boot time.
 */
void att_set_limit(struct att *a, const struct store_run *run, int64_t begun_us);
void att_write_process(struct sup *s, const struct att *a);
void att_write_progress(struct sup *s, struct att *a);
struct att_move {
    bool attempt_running, run_running, stopping;
};
void att_write_move(struct sup *s, const struct att *a, struct att_move what);
void att_dir(struct sup *s, int64_t run, int n, char *out, size_t size);
void att_start_run(struct sup *s, const struct store_run *run, const int *devices, int count);
struct att *att_find(struct sup *s, int64_t run, int n);
/* Which checkpoints its worker is told to go on from. */
enum pd_err att_choose_starts(struct sup *s, struct att *a, struct pd_why *why);
void att_connected(struct sup *s, struct att *a, struct conn *c);
void att_frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p);
/* Where the connection of a rank stands; NULL for ranks that the attempt does not have. */
struct conn **att_conn_of(struct att *a, int rank);
/* Bytes came, or the other end closed: the silence of this rank begins anew. */
void att_heard(struct att *a, int rank, int64_t now_us);
bool att_mark_live(struct sup *s, const char *mark);
struct att *att_free(struct att *a);

/* attempt_end.c */
/* Writes the end; `counts`: against max_restarts. Only the first call has an effect. */
void att_end(struct sup *s, struct att *a, enum spec_cause cause, bool counts);
void att_gone(struct sup *s, struct att *a);
/* A message from the status that waitpid gave, unless there is one. rank -1: there is one worker. */
void att_describe(struct att *a, int status, int rank);

/* attempt_stop.c */
void att_tick(struct sup *s, int64_t now_us);
/* Looks at cancelling runs and paused jobs. */
void att_commands(struct sup *s);
void att_stop_all(struct sup *s);
/* Says to a worker that was asked to leave that it was: again after each reconnection. */
void att_send_stop(struct sup *s, struct att *a);

/* ingest.c */
void att_data(struct sup *s, struct conn *c, struct att *a, const struct wire_header *h, const uint8_t *p);
/* True when the stalled frame went through. */
bool att_unstall(struct sup *s, struct conn *c);
void ingest_free(struct ingest *i);

/* silence.c */
/* Runs that their clients carry out and that are not heard of any more are lost. */
void silence_look(struct sup *s);

/* reconcile.c */
enum pd_err att_reconcile(struct sup *s, struct pd_why *why);

/* queue.c */
void queue_cycle(struct sup *s);
/* What the plan of this digest says that a run needs on each device; 0 = unknown. */
int64_t queue_plan_bytes(struct sup *s, const char *digest);

/* slot.c: which devices may be used, and why the others may not. Mutex held, all of it. */
enum slot_state {
    SLOT_FREE,
    SLOT_SERVING, /* models are loaded there; a run may join them, where no device is free */
    SLOT_BUSY,
    SLOT_CHECKING, /* given back; its GPU was not looked at since */
    /* Out of service: nobody knows until when. */
    SLOT_DRAINING, /* a run holds it, and no other will */
    SLOT_FOREIGN,
    SLOT_DRAINED,
    SLOT_BROKEN,
    SLOT_STALE,
    SLOT_GONE,
    SLOT_SPLIT /* never offered: its instances are */
};
/* Takes the newest samples; the states below rest on them. */
void slots_look(struct sup *s);
/* `reason` (may be NULL): why it is not free or busy, without its name; "" = nothing to say. */
enum slot_state slot_state(const struct sup *s, int i, char *reason, size_t size);
const char *slot_state_name(enum slot_state state);
/* Counts of a kind: all but split ones; free ones; those out of service. */
struct slot_count {
    int total, free, out;
};
struct slot_count slots_count(const struct sup *s, const char *kind);
/* The kind of devices that a run on "cpu" or "cuda" takes. A run of one slot takes a MIG instance ("mig")
 * where no GPU is whole, or where one is free in which its plan fits. */
/* Bytes that the slots of a kind share ("cpu"), or that the largest device has. 0 = unknown. */
int64_t slots_memory(const struct sup *s, const char *kind);
/* Bytes of what its slots share that plans of runs at work need. */
int64_t slots_memory_held(const struct sup *s, const char *kind);
/* Why runs wait for it. */
void slots_memory_reason(const struct sup *s, const char *kind, int64_t need_bytes, char *out, size_t size);
/* Whether too few of the GPUs that are free now have so much memory, though there are enough of them. */
bool slots_unfit(const struct sup *s, const char *kind, int slots, int64_t need_bytes);
const char *slots_kind(const struct sup *s, const char *device, int slots, int64_t need_bytes);
/* The devices that a run of this kind would get now, at most SUP_ATTEMPT_DEVICES; 0 = it must wait.
 * `need_bytes`: of an instance's memory; 0 = unknown. */
int slots_pick(const struct sup *s, const char *kind, int slots, int64_t need_bytes, int *ret);
/* The device for a model: a GPU that serves already, else a free one, else one beside its run; -1 = none. */
int slots_pick_serving(const struct sup *s);
/* Why no model finds one: "no GPU can be used: cuda:0 is broken (it has fallen off the bus)". */
void slots_why_none(const struct sup *s, char *out, size_t size);
/* "waiting for 2 GPUs, 1 free, 1 busy with a foreign process (pid 123)". */
void slots_reason(const struct sup *s, const char *kind, int slots, char *out, size_t size);

/* gpu.c: GPUs and instances that are there; *ret_why (static): why there are none. Mutex held. */
int gpu_count(const struct sup *s, const char **ret_why);
/* gpu.c: Why jobs on GPUs are refused now; "" = they are not. Mutex held. */
void gpu_why_none(const struct sup *s, char *out, size_t size);
/* gpu.c: GPUs: found, watched, drained. */
/* Adds the GPUs to the devices and reads which are drained. */
enum pd_err gpu_start(struct sup *s, struct pd_why *why);
void gpu_stop(struct sup *s);
/* What the driver reported since. */
void gpu_tick(struct sup *s, int64_t now_us);
/* Reads which devices are drained: an operator may have changed it. */
void gpu_commands(struct sup *s);

/* conn.c */
void conn_accept(struct sup *s);
void conn_event(struct sup *s, struct conn *c, unsigned events);
void conn_flush(struct sup *s, struct conn *c);
void conn_bye(struct sup *s, struct conn *c, const char *cause); /* queues bye, closes when it is out */
void conn_drop(struct sup *s, struct conn *c); /* closes now; freed at the end of the turn */
void conn_tick(struct sup *s, int64_t now_us);
void conn_sweep(struct sup *s);
struct conn *conn_by_id(struct sup *s, uint64_t id);
struct pd_buf *conn_out(struct conn *c);

/* model.c */
enum pd_err model_start_all(struct sup *s, struct pd_why *why);
void model_connected(struct sup *s, struct model *m, struct conn *c);
struct model *model_by_token(struct sup *s, int serial, const uint8_t *token);
/* The sentence on a model of which no version is loaded. s->mutex is held. */
enum pd_err model_unknown(const struct sup *s, const char *name, struct pd_why *why);
void model_frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p);
void model_lost_conn(struct sup *s, struct model *m);
void model_gone(struct sup *s, struct model *m);
void model_tick(struct sup *s, int64_t now_us);
/* Workers of models on this device are killed, and started again elsewhere. */
void model_device_lost(struct sup *s, int device, const char *reason);
void model_stop_all(struct sup *s);
bool model_all_gone(struct sup *s);
bool model_mark_live(struct sup *s, const char *mark);
void model_free_all(struct sup *s);
/* Mutex held. version 0: the highest ready one. */
struct model *model_find(struct sup *s, const char *name, int64_t version);
/* On the table, not started; NULL without memory. */
struct model *model_new(struct sup *s, const struct store_model_version *v);
/* Takes it off the table and frees it. Nobody may hold it. */
void model_forget(struct sup *s, struct model *m);
void model_set_state(struct sup *s, struct model *m, enum sup_model_state state, const char *reason);
void model_tell_loads(struct sup *s, struct model *m, enum pd_err err, const struct pd_why *why);
void model_tell_unloads(struct sup *s, struct model *m, enum pd_err err, const struct pd_why *why);
/* Whether the version is wanted in memory after a restart. */
void model_write_loaded(struct sup *s, const struct model *m, bool loaded);
/* Starts its worker, or fails the loads that wait. */
void model_begin_load(struct sup *s, struct model *m);

/* infer.c */
/* Every open request gets its end. */
void model_fail_calls(struct sup *s, struct model *m, enum pd_err err, const char *text);
void model_expire_calls(struct sup *s, struct model *m, int64_t now_us);
/* A part of an answer came from the worker. */
void model_result(struct sup *s, struct model *m, uint64_t id, const uint8_t *p, size_t len);

/* tuned.c: measured choices of the workers' back ends. */
/* A worker asks for those of its device. */
void tuned_ask(struct sup *s, struct conn *c, const uint8_t *p, size_t len);
/* A worker has new ones; `run` 0 = a serving worker. */
void tuned_take(struct sup *s, int64_t run, const uint8_t *p, size_t len);

/* usage.c: what runs take of their GPUs, as series "system/gpu.<rank>/...". */
void usage_tick(struct sup *s, int64_t now_us);
/* The attempt ends: what was seen last. */
void usage_end(struct sup *s, struct att *a);

/* plan.c */
void plan_gone(struct sup *s, struct plan *p);
void plan_tick(struct sup *s, int64_t now_us);
void plan_free_all(struct sup *s);
