#include "daemon/job/state.h"

#include <string.h>

/* Each level is a square of sentences: a cell that is not NULL is an allowed move, and says why. */

static const char *const job_names[JOB_STATE_COUNT] = {
    [JOB_QUEUED] = "queued",         [JOB_RUNNING] = "running",     [JOB_PAUSED] = "paused",
    [JOB_CANCELLING] = "cancelling", [JOB_CANCELLED] = "cancelled", [JOB_DONE] = "done",
    [JOB_FAILED] = "failed",
};

static const char *const job_moves[JOB_STATE_COUNT][JOB_STATE_COUNT] = {
    [JOB_QUEUED] =
        {
            [JOB_RUNNING] = "first run starts",
            [JOB_PAUSED] = "pause",
            [JOB_CANCELLING] = "cancel, or a dependency cannot be met",
        },
    [JOB_RUNNING] =
        {
            [JOB_PAUSED] = "pause",
            [JOB_CANCELLING] = "cancel",
            [JOB_DONE] = "all runs ended, none failed",
            [JOB_FAILED] = "all runs ended, some failed",
        },
    [JOB_PAUSED] =
        {
            [JOB_QUEUED] = "resume",
            [JOB_CANCELLING] = "cancel, or a dependency cannot be met",
        },
    [JOB_CANCELLING] = {[JOB_CANCELLED] = "all runs ended"},
    [JOB_FAILED] =
        {
            [JOB_QUEUED] = "retry",
            [JOB_RUNNING] = "its lost run has sent something again",
        },
};

static const char *const run_names[JOB_RUN_STATE_COUNT] = {
    [JOB_RUN_QUEUED] = "queued",       [JOB_RUN_STARTING] = "starting", [JOB_RUN_RUNNING] = "running",
    [JOB_RUN_PREEMPTED] = "preempted", [JOB_RUN_PAUSED] = "paused",     [JOB_RUN_CANCELLING] = "cancelling",
    [JOB_RUN_ENDED] = "ended",
};

static const char *const run_moves[JOB_RUN_STATE_COUNT][JOB_RUN_STATE_COUNT] = {
    [JOB_RUN_QUEUED] =
        {
            [JOB_RUN_STARTING] = "devices granted, attempt n+1",
            [JOB_RUN_PAUSED] = "pause",
            [JOB_RUN_CANCELLING] = "cancel",
            [JOB_RUN_ENDED] = "failed: no longer fits this machine",
        },
    [JOB_RUN_STARTING] =
        {
            [JOB_RUN_RUNNING] = "first step",
            [JOB_RUN_QUEUED] = "attempt lost or failed, restarts left",
            [JOB_RUN_PREEMPTED] = "checkpointed for a higher priority",
            [JOB_RUN_CANCELLING] = "cancel",
            [JOB_RUN_ENDED] = "succeeded, diverged or failed",
        },
    [JOB_RUN_RUNNING] =
        {
            [JOB_RUN_QUEUED] = "attempt lost or failed, restarts left",
            [JOB_RUN_PREEMPTED] = "checkpointed for a higher priority",
            [JOB_RUN_PAUSED] = "pause, or asha waits at a rung",
            [JOB_RUN_CANCELLING] = "cancel",
            [JOB_RUN_ENDED] = "succeeded, diverged or failed",
        },
    [JOB_RUN_PREEMPTED] =
        {
            [JOB_RUN_STARTING] = "devices granted, attempt n+1",
            [JOB_RUN_PAUSED] = "pause",
            [JOB_RUN_CANCELLING] = "cancel",
        },
    [JOB_RUN_PAUSED] =
        {
            [JOB_RUN_QUEUED] = "resume, promotion",
            [JOB_RUN_CANCELLING] = "cancel",
            [JOB_RUN_ENDED] = "succeeded: not promoted by asha",
        },
    [JOB_RUN_CANCELLING] = {[JOB_RUN_ENDED] = "cancelled, or its own outcome if that came first"},
    [JOB_RUN_ENDED] =
        {
            [JOB_RUN_QUEUED] = "retry of one that failed",
            [JOB_RUN_RUNNING] = "lost, but has sent something again",
        },
};

static const char *const attempt_names[JOB_ATTEMPT_STATE_COUNT] = {
    [JOB_ATTEMPT_STARTING] = "starting",
    [JOB_ATTEMPT_RUNNING] = "running",
    [JOB_ATTEMPT_CHECKPOINTING] = "checkpointing",
    [JOB_ATTEMPT_STOPPING] = "stopping",
    [JOB_ATTEMPT_ENDED] = "ended",
};

static const char stop_cause[] = "cancel, drain or SIGTERM";
static const char end_cause[] = "worker reported its end, or the process is gone";

static const char *const attempt_moves[JOB_ATTEMPT_STATE_COUNT][JOB_ATTEMPT_STATE_COUNT] = {
    [JOB_ATTEMPT_STARTING] =
        {
            [JOB_ATTEMPT_RUNNING] = "hello and assign",
            [JOB_ATTEMPT_STOPPING] = stop_cause,
            [JOB_ATTEMPT_ENDED] = end_cause,
        },
    [JOB_ATTEMPT_RUNNING] =
        {
            [JOB_ATTEMPT_CHECKPOINTING] = "interval or checkpoint-now",
            [JOB_ATTEMPT_STOPPING] = stop_cause,
            [JOB_ATTEMPT_ENDED] = end_cause,
        },
    [JOB_ATTEMPT_CHECKPOINTING] =
        {
            [JOB_ATTEMPT_RUNNING] = "written",
            [JOB_ATTEMPT_STOPPING] = stop_cause,
            [JOB_ATTEMPT_ENDED] = end_cause,
        },
    [JOB_ATTEMPT_STOPPING] = {[JOB_ATTEMPT_ENDED] = end_cause},
};

static const char *const outcome_names[JOB_OUTCOME_COUNT] = {
    [JOB_OUTCOME_SUCCEEDED] = "succeeded", [JOB_OUTCOME_DIVERGED] = "diverged",
    [JOB_OUTCOME_FAILED] = "failed",       [JOB_OUTCOME_CANCELLED] = "cancelled",
    [JOB_OUTCOME_LOST] = "lost",
};

static const char *const cause_names[JOB_CAUSE_COUNT] = {
    [JOB_CAUSE_DONE] = "done",           [JOB_CAUSE_DIVERGED] = "diverged",     [JOB_CAUSE_FAILED] = "failed",
    [JOB_CAUSE_LOST] = "lost",           [JOB_CAUSE_PREEMPTED] = "preempted",   [JOB_CAUSE_PAUSED] = "paused",
    [JOB_CAUSE_CANCELLED] = "cancelled", [JOB_CAUSE_TIME_LIMIT] = "time_limit",
};

static const char *name_at(const char *const *names, unsigned count, unsigned i)
{
    return i < count ? names[i] : NULL;
}

/* The index of the name, or -1. */
static int name_find(const char *const *names, unsigned count, const char *text)
{
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0)
            return (int)i;
    }
    return -1;
}

/* One set of functions a level, all alike. */
#define NAMES(fn, type, names, count)                                                                        \
    const char *fn##_name(type v)                                                                            \
    {                                                                                                        \
        return name_at(names, count, (unsigned)v);                                                           \
    }                                                                                                        \
    bool fn##_parse(const char *text, type *ret)                                                             \
    {                                                                                                        \
        int i = name_find(names, count, text);                                                               \
        if (i < 0)                                                                                           \
            return false;                                                                                    \
        *ret = (type)i;                                                                                      \
        return true;                                                                                         \
    }

#define MOVES(level, type, moves, count)                                                                     \
    const char *level##_move_meaning(type from, type to)                                                     \
    {                                                                                                        \
        return (unsigned)from < count && (unsigned)to < count ? moves[from][to] : NULL;                      \
    }                                                                                                        \
    bool level##_move_allowed(type from, type to)                                                            \
    {                                                                                                        \
        return level##_move_meaning(from, to) != NULL;                                                       \
    }

NAMES(job_state, enum job_state, job_names, JOB_STATE_COUNT)
NAMES(job_run_state, enum job_run_state, run_names, JOB_RUN_STATE_COUNT)
NAMES(job_attempt_state, enum job_attempt_state, attempt_names, JOB_ATTEMPT_STATE_COUNT)
NAMES(job_outcome, enum job_outcome, outcome_names, JOB_OUTCOME_COUNT)
NAMES(job_cause, enum job_cause, cause_names, JOB_CAUSE_COUNT)

MOVES(job, enum job_state, job_moves, JOB_STATE_COUNT)
MOVES(job_run, enum job_run_state, run_moves, JOB_RUN_STATE_COUNT)
MOVES(job_attempt, enum job_attempt_state, attempt_moves, JOB_ATTEMPT_STATE_COUNT)

bool job_state_final(enum job_state s)
{
    return s == JOB_CANCELLED || s == JOB_DONE || s == JOB_FAILED;
}

bool job_run_state_final(enum job_run_state s)
{
    return s == JOB_RUN_ENDED;
}

bool job_attempt_state_final(enum job_attempt_state s)
{
    return s == JOB_ATTEMPT_ENDED;
}
