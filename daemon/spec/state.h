/* daemon/spec/state.h: the states of jobs, runs and attempts, and the moves allowed between them.
 *
 * One const table a level; nothing else in polyd knows which move is allowed. The numbers
 * are not stored anywhere: the store keeps names. No state here, so any thread may call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum spec_job_state {
    SPEC_JOB_QUEUED,
    SPEC_JOB_RUNNING,
    SPEC_JOB_PAUSED,
    SPEC_JOB_CANCELLING,
    SPEC_JOB_CANCELLED,
    SPEC_JOB_DONE,   /* every run ended and none failed */
    SPEC_JOB_FAILED, /* every run ended, some failed */
    SPEC_JOB_STATE_COUNT
};

enum spec_run_state {
    SPEC_RUN_QUEUED,
    SPEC_RUN_STARTING, /* devices granted, the attempt has not stepped yet */
    SPEC_RUN_RUNNING,
    SPEC_RUN_PREEMPTED, /* checkpointed for a higher priority */
    SPEC_RUN_PAUSED,
    SPEC_RUN_CANCELLING,
    SPEC_RUN_ENDED, /* carries an outcome */
    SPEC_RUN_STATE_COUNT
};

enum spec_outcome {
    SPEC_OUTCOME_SUCCEEDED,
    SPEC_OUTCOME_DIVERGED,
    SPEC_OUTCOME_FAILED,
    SPEC_OUTCOME_CANCELLED,
    SPEC_OUTCOME_LOST, /* of a run that its client carries out: nothing was heard of it for too long */
    SPEC_OUTCOME_COUNT
};

enum spec_attempt_state {
    SPEC_ATTEMPT_STARTING,
    SPEC_ATTEMPT_RUNNING,
    SPEC_ATTEMPT_CHECKPOINTING,
    SPEC_ATTEMPT_STOPPING,
    SPEC_ATTEMPT_ENDED, /* carries a cause */
    SPEC_ATTEMPT_STATE_COUNT
};

enum spec_cause {
    SPEC_CAUSE_DONE,
    SPEC_CAUSE_DIVERGED,
    SPEC_CAUSE_FAILED,
    SPEC_CAUSE_LOST,
    SPEC_CAUSE_PREEMPTED,
    SPEC_CAUSE_PAUSED,
    SPEC_CAUSE_CANCELLED,
    SPEC_CAUSE_TIME_LIMIT,
    SPEC_CAUSE_COUNT
};

/* Names as the API and the store write them ("queued"); NULL outside the enum. Static. */
const char *spec_job_state_name(enum spec_job_state s);
const char *spec_run_state_name(enum spec_run_state s);
const char *spec_attempt_state_name(enum spec_attempt_state s);
const char *spec_outcome_name(enum spec_outcome o);
const char *spec_cause_name(enum spec_cause c);

/* The inverse; false, leaving *ret alone, if `text` (not NULL) is no such name. */
bool spec_job_state_parse(const char *text, enum spec_job_state *ret);
bool spec_run_state_parse(const char *text, enum spec_run_state *ret);
bool spec_attempt_state_parse(const char *text, enum spec_attempt_state *ret);
bool spec_outcome_parse(const char *text, enum spec_outcome *ret);
bool spec_cause_parse(const char *text, enum spec_cause *ret);

/* Whether the table allows the move. A state to itself is not a move: false. */
bool spec_job_move_allowed(enum spec_job_state from, enum spec_job_state to);
bool spec_run_move_allowed(enum spec_run_state from, enum spec_run_state to);
bool spec_attempt_move_allowed(enum spec_attempt_state from, enum spec_attempt_state to);

/* Whether nothing leads out of the state but a retry, or the return of a run thought lost. */
bool spec_job_state_final(enum spec_job_state s);
bool spec_run_state_final(enum spec_run_state s);
bool spec_attempt_state_final(enum spec_attempt_state s);

/* What the move means, as job.md says it ("devices granted, attempt n+1"), for logs and events;
 * NULL for a move that is not allowed. Static. */
const char *spec_job_move_meaning(enum spec_job_state from, enum spec_job_state to);
const char *spec_run_move_meaning(enum spec_run_state from, enum spec_run_state to);
const char *spec_attempt_move_meaning(enum spec_attempt_state from, enum spec_attempt_state to);
