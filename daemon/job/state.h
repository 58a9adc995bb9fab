/* daemon/job/state.h: the states of jobs, runs and attempts, and the moves allowed between them.
 *
 * One const table a level; nothing else in polyd knows which move is allowed. The numbers
 * are not stored anywhere: the store keeps names. No state here, so any thread may call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum job_state {
    JOB_QUEUED,
    JOB_RUNNING,
    JOB_PAUSED,
    JOB_CANCELLING,
    JOB_CANCELLED,
    JOB_DONE,   /* every run ended and none failed */
    JOB_FAILED, /* every run ended, some failed */
    JOB_STATE_COUNT
};

enum job_run_state {
    JOB_RUN_QUEUED,
    JOB_RUN_STARTING, /* devices granted, the attempt has not stepped yet */
    JOB_RUN_RUNNING,
    JOB_RUN_PREEMPTED, /* checkpointed for a higher priority */
    JOB_RUN_PAUSED,
    JOB_RUN_CANCELLING,
    JOB_RUN_ENDED, /* carries an outcome */
    JOB_RUN_STATE_COUNT
};

enum job_outcome {
    JOB_OUTCOME_SUCCEEDED,
    JOB_OUTCOME_DIVERGED,
    JOB_OUTCOME_FAILED,
    JOB_OUTCOME_CANCELLED,
    JOB_OUTCOME_LOST, /* run of an external client that sent nothing for too long */
    JOB_OUTCOME_COUNT
};

enum job_attempt_state {
    JOB_ATTEMPT_STARTING,
    JOB_ATTEMPT_RUNNING,
    JOB_ATTEMPT_CHECKPOINTING,
    JOB_ATTEMPT_STOPPING,
    JOB_ATTEMPT_ENDED, /* carries a cause */
    JOB_ATTEMPT_STATE_COUNT
};

enum job_cause {
    JOB_CAUSE_DONE,
    JOB_CAUSE_DIVERGED,
    JOB_CAUSE_FAILED,
    JOB_CAUSE_LOST,
    JOB_CAUSE_PREEMPTED,
    JOB_CAUSE_PAUSED,
    JOB_CAUSE_CANCELLED,
    JOB_CAUSE_TIME_LIMIT,
    JOB_CAUSE_COUNT
};

/* Names as the API and the store write them ("queued"); NULL outside the enum. Static. */
const char *job_state_name(enum job_state s);
const char *job_run_state_name(enum job_run_state s);
const char *job_attempt_state_name(enum job_attempt_state s);
const char *job_outcome_name(enum job_outcome o);
const char *job_cause_name(enum job_cause c);

/* The inverse; false, leaving *ret alone, if `text` (not NULL) is no such name. */
bool job_state_parse(const char *text, enum job_state *ret);
bool job_run_state_parse(const char *text, enum job_run_state *ret);
bool job_attempt_state_parse(const char *text, enum job_attempt_state *ret);
bool job_outcome_parse(const char *text, enum job_outcome *ret);
bool job_cause_parse(const char *text, enum job_cause *ret);

/* Whether the table allows the move. A state to itself is not a move: false. */
bool job_move_allowed(enum job_state from, enum job_state to);
bool job_run_move_allowed(enum job_run_state from, enum job_run_state to);
bool job_attempt_move_allowed(enum job_attempt_state from, enum job_attempt_state to);

/* Whether nothing leads out of the state but a retry, or the return of a run thought lost. */
bool job_state_final(enum job_state s);
bool job_run_state_final(enum job_run_state s);
bool job_attempt_state_final(enum job_attempt_state s);

/* What the move means ("devices granted, attempt n+1"), for logs and events;
 * NULL for a move that is not allowed. Static. */
const char *job_move_meaning(enum job_state from, enum job_state to);
const char *job_run_move_meaning(enum job_run_state from, enum job_run_state to);
const char *job_attempt_move_meaning(enum job_attempt_state from, enum job_attempt_state to);
