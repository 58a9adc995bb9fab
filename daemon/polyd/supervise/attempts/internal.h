/* daemon/polyd/supervise/attempts/internal.h: private to the module. */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/attempts/attempts.h"
#include "daemon/polyd/supervise/devices/devices.h"
#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/plans/plans.h"
#include "daemon/polyd/supervise/workers/conn.h"
#include "daemon/polyd/supervise/workers/proc.h"
#include "daemon/polyd/supervise/workers/tuned.h"
#include "daemon/polyd/supervise/workers/workers.h"

#define SERVED_MAX 256 /* jobs whose last start is remembered */
#define STARTS_MAX 8   /* checkpoints named to a worker: the newest, and those for when it is damaged */

/* One of the other ranks of a gang; rank 0 is the attempt's own conn. */
struct att_rank {
    struct conn *conn;
    int64_t heard_us;
    bool bye; /* sent its bye: silence is not a hang */
};

/* Samples of the device of a rank since the last point was written. */
struct att_usage {
    int64_t taken_us; /* the sample that was counted last */
    int samples, utilizations, powers;
    double utilization, power_mw; /* sums */
    int64_t memory, temperature;  /* maximum; -1 = not reported */
};

enum att_phase {
    ATT_INSERTING, /* the row is being written */
    ATT_WORKING,   /* a process exists */
    ATT_ENDING,    /* the end is being written */
    ATT_ENDED      /* written; waits for the process to leave */
};

struct att {
    struct loop_source source;
    struct attempts *attempts;
    struct att *next;
    int64_t run, job;
    int n;
    enum att_phase phase;
    int devices[DEVICES_PICK_MAX];
    char kind[8]; /* of the devices */
    int device_count;
    int threads;
    char device_text[DEVICES_PICK_MAX * (DEVICE_ID_BYTES + 1)]; /* their ids, "cpu:0,cpu:1"; index = rank */
    uint8_t token[WIRE_TOKEN_BYTES];
    uint8_t token_sha256[32];
    struct att_start {
        char *path;
        int64_t step;
        char digest[STORE_DIGEST_HEX];
    } starts[STARTS_MAX]; /* the checkpoints that it may resume from, newest first */
    int start_count;
    int64_t start_step;
    char plan_digest[80];
    int64_t need_bytes; /* by its plan, of each device; 0 = unknown */
    char *document;     /* resolved, owned */
    int max_restarts;

    struct proc proc;
    struct conn *conn;
    int rank_count;                          /* processes, one a device; >= 1 */
    struct att_rank ranks[DEVICES_PICK_MAX]; /* from 1 on */
    uint8_t comm_id[256];                    /* of rank 0, for the others (WIRE_RENDEZVOUS) */
    size_t comm_id_len;
    int64_t rank_failed_us; /* a rank reported it: the others end soon; 0 = none */
    int64_t acked;          /* committed */
    bool row_running;       /* attempt and run rows were moved to running (or the move is on its way) */
    bool attempt_running;
    bool stopping; /* asked to stop; `cause` has the reason */
    enum job_cause cause;
    int64_t kill_us;  /* monotonic; 0 = none */
    bool killed;      /* hard kill sent once */
    int64_t heard_us; /* time of the last frame, or start of the wait for the first */
    int64_t begun_us; /* monotonic */
    int64_t limit_us; /* boot time at which the run's time limit ends; 0 = none */
    int64_t warn_us;
    bool warned;
    char *message;    /* for the end */
    char fault[200];  /* its GPU has failed, so the end is not the run's fault; "" = no */
    char xid[200];    /* its GPU reported a program error, most likely of this worker; "" = none */
    int64_t xid_us;   /* monotonic */
    int64_t xid_step; /* the step at that time: a later step clears the error */
    bool bye;         /* came over this connection: answer when recorded */
    bool lasting;     /* it failed because of its document, data or checkpoint: no further attempt */
    bool never_started;
    int64_t ended_us;       /* store's clock: found dead at the start, it ended then; 0 = it ends now */
    int64_t exit_us;        /* when a lingering process is killed after its bye */
    struct ingest *stalled; /* waits for space in the writer's queue */
    int ingests;            /* data frames that the writer has, not committed */
    struct end_op *end;     /* waits for them: the end counts what they hold, and is seen after them */
    struct att_usage usage[DEVICES_PICK_MAX];
    int64_t usage_us; /* monotonic: when the next points are due; 0 = not determined yet */

    /* attempts.lock guards these, and `next`, `run` and `n`, where other threads look: */
    int64_t step, total, updated_us, log_bytes;
    bool checkpointing;
    char between_steps[WIRE_PHASE_MAX + 1]; /* sup_progress.phase */
    int64_t step_written, log_written;
    int64_t write_us; /* when progress was last written */
};

struct queue_note {
    int64_t run;
    struct sup_queue_info info;
};

struct attempts {
    struct loop *loop;
    struct workers *workers;
    struct devices *devices;
    struct plans *plans;
    const struct sup_options *o;
    char *train_role;
    struct loop_member member;
    struct workers_member workers_member;
    struct devices_listener listener;
    struct {
        int64_t job, us; /* store's clock */
    } served[SERVED_MAX];
    int64_t wake_us;  /* a back-off ends */
    int64_t since_us; /* store's clock: when this daemon began to listen */

    pthread_mutex_t lock; /* guards the rest, and of an attempt what is marked */
    struct queue_note *notes;
    int note_count;
    struct att *atts; /* the loop's thread alone writes it */
    struct sup_stats stats;
};

/* attempt.c */
/* An attempt at the run, in the list, without a process; NULL without memory. */
struct att *att_new(struct attempts *s, int64_t run);
/* Marks its devices as held by it. */
void att_hold(struct attempts *s, struct att *a);
/* The end in memory: devices are free, the run may be looked at again. Frees it. */
void att_release(struct attempts *s, struct att *a);
/* The reason of the end; "" or NULL: none. Copied. */
void att_set_message(struct att *a, const char *text);
/* Time limit and warning from the run's row, if it has a limit. `begun_us`: start of the attempt, boot time.
 */
void att_set_limit(struct att *a, const struct store_run *run, int64_t begun_us);
void att_write_process(struct attempts *s, const struct att *a);
void att_write_progress(struct attempts *s, struct att *a);
struct att_move {
    bool attempt_running, run_running, stopping;
};
void att_write_move(struct attempts *s, const struct att *a, struct att_move what);
void att_dir(const struct attempts *s, int64_t run, int n, char *out, size_t size);
void att_start_run(struct attempts *s, const struct store_run *run, const int *devices, int count);
struct att *att_find(struct attempts *s, int64_t run, int n);
/* Chooses the checkpoints from which its worker may resume. */
enum pd_err att_choose_starts(struct attempts *s, struct att *a, struct pd_why *why);
bool att_hello(void *attempts, struct conn *c, const struct conn_hello *h);
/* Connection state of a rank; NULL for ranks that the attempt does not have. */
struct conn **att_conn_of(struct att *a, int rank);
/* Bytes arrived, or the peer closed: restarts the silence timer of this rank. */
void att_heard(struct att *a, int rank, int64_t now_us);
bool att_knows(void *attempts, const char *mark);
struct att *att_free(struct att *a);

/* attempt_end.c */
/* Writes the end; `counts`: against max_restarts. Only the first call has an effect. */
void att_end(struct attempts *s, struct att *a, enum job_cause cause, bool counts);
/* Submits the end that att_end made, once no data frame of the attempt waits for its commit. */
void att_write_end(struct att *a);
void att_free_end(struct att *a);
void att_gone(void *self, unsigned events);
/* A message from the status that waitpid gave, unless there is one. rank -1: there is one worker. */
void att_describe(struct att *a, int status, int rank);

/* attempt_stop.c */
void att_tick(struct attempts *s, int64_t now_us);
/* See struct devices_listener. */
void att_device_fault(void *attempts, int64_t run, int n, const char *device, bool fatal, const char *reason);
/* Looks at cancelling runs and paused jobs. */
void att_commands(struct attempts *s);
void att_stop_all(struct attempts *s);
/* Repeats the request to stop after each reconnection. */
void att_send_stop(struct attempts *s, struct att *a);

/* ingest.c */
void att_data(struct attempts *s, struct conn *c, struct att *a, const struct wire_header *h,
              const uint8_t *p);
/* True if the stalled frame was sent. */
bool att_unstall(struct att *a);
struct ingest *ingest_free(struct ingest *i);

/* silence.c */
/* Marks external runs that have been silent for too long as lost. */
void silence_look(struct attempts *s);

/* queue.c */
void queue_cycle(struct attempts *s);

/* usage.c: GPU usage of runs, as series "system/gpu.<rank>/...". */
void usage_tick(struct attempts *s, int64_t now_us);
/* The attempt ends: writes the last samples. */
void usage_end(struct attempts *s, struct att *a);
