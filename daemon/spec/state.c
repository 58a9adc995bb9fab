#include "daemon/spec/state.h"

#include <string.h>

/* Each level is a square of sentences: a cell that is not NULL is an allowed move, and says why. */

static const char *const job_names[SPEC_JOB_STATE_COUNT] = {
    [SPEC_JOB_QUEUED] = "queued",         [SPEC_JOB_RUNNING] = "running",     [SPEC_JOB_PAUSED] = "paused",
    [SPEC_JOB_CANCELLING] = "cancelling", [SPEC_JOB_CANCELLED] = "cancelled", [SPEC_JOB_DONE] = "done",
    [SPEC_JOB_FAILED] = "failed",
};

static const char *const job_moves[SPEC_JOB_STATE_COUNT][SPEC_JOB_STATE_COUNT] = {
    [SPEC_JOB_QUEUED] =
        {
            [SPEC_JOB_RUNNING] = "first run starts",
            [SPEC_JOB_PAUSED] = "pause",
            [SPEC_JOB_CANCELLING] = "cancel, or a dependency cannot be met",
        },
    [SPEC_JOB_RUNNING] =
        {
            [SPEC_JOB_PAUSED] = "pause",
            [SPEC_JOB_CANCELLING] = "cancel",
            [SPEC_JOB_DONE] = "all runs ended, none failed",
            [SPEC_JOB_FAILED] = "all runs ended, some failed",
        },
    [SPEC_JOB_PAUSED] =
        {
            [SPEC_JOB_QUEUED] = "resume",
            [SPEC_JOB_CANCELLING] = "cancel, or a dependency cannot be met",
        },
    [SPEC_JOB_CANCELLING] = {[SPEC_JOB_CANCELLED] = "all runs ended"},
    [SPEC_JOB_FAILED] =
        {
            [SPEC_JOB_QUEUED] = "retry",
            [SPEC_JOB_RUNNING] = "its run, thought lost, is heard of again",
        },
};

static const char *const run_names[SPEC_RUN_STATE_COUNT] = {
    [SPEC_RUN_QUEUED] = "queued",   [SPEC_RUN_STARTING] = "starting",
    [SPEC_RUN_RUNNING] = "running", [SPEC_RUN_PREEMPTED] = "preempted",
    [SPEC_RUN_PAUSED] = "paused",   [SPEC_RUN_CANCELLING] = "cancelling",
    [SPEC_RUN_ENDED] = "ended",
};

static const char *const run_moves[SPEC_RUN_STATE_COUNT][SPEC_RUN_STATE_COUNT] = {
    [SPEC_RUN_QUEUED] =
        {
            [SPEC_RUN_STARTING] = "devices granted, attempt n+1",
            [SPEC_RUN_PAUSED] = "pause",
            [SPEC_RUN_CANCELLING] = "cancel",
            [SPEC_RUN_ENDED] = "failed: can never fit any more",
        },
    [SPEC_RUN_STARTING] =
        {
            [SPEC_RUN_RUNNING] = "first step",
            [SPEC_RUN_QUEUED] = "attempt lost or failed, restarts left",
            [SPEC_RUN_PREEMPTED] = "checkpointed for a higher priority",
            [SPEC_RUN_CANCELLING] = "cancel",
            [SPEC_RUN_ENDED] = "succeeded, diverged or failed",
        },
    [SPEC_RUN_RUNNING] =
        {
            [SPEC_RUN_QUEUED] = "attempt lost or failed, restarts left",
            [SPEC_RUN_PREEMPTED] = "checkpointed for a higher priority",
            [SPEC_RUN_PAUSED] = "pause, or asha waits at a rung",
            [SPEC_RUN_CANCELLING] = "cancel",
            [SPEC_RUN_ENDED] = "succeeded, diverged or failed",
        },
    [SPEC_RUN_PREEMPTED] =
        {
            [SPEC_RUN_STARTING] = "devices granted, attempt n+1",
            [SPEC_RUN_PAUSED] = "pause",
            [SPEC_RUN_CANCELLING] = "cancel",
        },
    [SPEC_RUN_PAUSED] =
        {
            [SPEC_RUN_QUEUED] = "resume, promotion",
            [SPEC_RUN_CANCELLING] = "cancel",
            [SPEC_RUN_ENDED] = "succeeded: not promoted by asha",
        },
    [SPEC_RUN_CANCELLING] = {[SPEC_RUN_ENDED] = "cancelled, or its own outcome if that came first"},
    [SPEC_RUN_ENDED] =
        {
            [SPEC_RUN_QUEUED] = "retry of one that failed",
            [SPEC_RUN_RUNNING] = "thought lost, it is heard of again",
        },
};

static const char *const attempt_names[SPEC_ATTEMPT_STATE_COUNT] = {
    [SPEC_ATTEMPT_STARTING] = "starting",
    [SPEC_ATTEMPT_RUNNING] = "running",
    [SPEC_ATTEMPT_CHECKPOINTING] = "checkpointing",
    [SPEC_ATTEMPT_STOPPING] = "stopping",
    [SPEC_ATTEMPT_ENDED] = "ended",
};

static const char stop_said[] = "cancel, drain or SIGTERM";
static const char gone_said[] = "bye, or the process is gone";

static const char *const attempt_moves[SPEC_ATTEMPT_STATE_COUNT][SPEC_ATTEMPT_STATE_COUNT] = {
    [SPEC_ATTEMPT_STARTING] =
        {
            [SPEC_ATTEMPT_RUNNING] = "hello and assign",
            [SPEC_ATTEMPT_STOPPING] = stop_said,
            [SPEC_ATTEMPT_ENDED] = gone_said,
        },
    [SPEC_ATTEMPT_RUNNING] =
        {
            [SPEC_ATTEMPT_CHECKPOINTING] = "interval or checkpoint-now",
            [SPEC_ATTEMPT_STOPPING] = stop_said,
            [SPEC_ATTEMPT_ENDED] = gone_said,
        },
    [SPEC_ATTEMPT_CHECKPOINTING] =
        {
            [SPEC_ATTEMPT_RUNNING] = "written",
            [SPEC_ATTEMPT_STOPPING] = stop_said,
            [SPEC_ATTEMPT_ENDED] = gone_said,
        },
    [SPEC_ATTEMPT_STOPPING] = {[SPEC_ATTEMPT_ENDED] = gone_said},
};

static const char *const outcome_names[SPEC_OUTCOME_COUNT] = {
    [SPEC_OUTCOME_SUCCEEDED] = "succeeded", [SPEC_OUTCOME_DIVERGED] = "diverged",
    [SPEC_OUTCOME_FAILED] = "failed",       [SPEC_OUTCOME_CANCELLED] = "cancelled",
    [SPEC_OUTCOME_LOST] = "lost",
};

static const char *const cause_names[SPEC_CAUSE_COUNT] = {
    [SPEC_CAUSE_DONE] = "done",           [SPEC_CAUSE_DIVERGED] = "diverged",
    [SPEC_CAUSE_FAILED] = "failed",       [SPEC_CAUSE_LOST] = "lost",
    [SPEC_CAUSE_PREEMPTED] = "preempted", [SPEC_CAUSE_PAUSED] = "paused",
    [SPEC_CAUSE_CANCELLED] = "cancelled", [SPEC_CAUSE_TIME_LIMIT] = "time_limit",
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
    const char *spec_##level##_move_meaning(type from, type to)                                              \
    {                                                                                                        \
        return (unsigned)from < count && (unsigned)to < count ? moves[from][to] : NULL;                      \
    }                                                                                                        \
    bool spec_##level##_move_allowed(type from, type to)                                                     \
    {                                                                                                        \
        return spec_##level##_move_meaning(from, to) != NULL;                                                \
    }

NAMES(spec_job_state, enum spec_job_state, job_names, SPEC_JOB_STATE_COUNT)
NAMES(spec_run_state, enum spec_run_state, run_names, SPEC_RUN_STATE_COUNT)
NAMES(spec_attempt_state, enum spec_attempt_state, attempt_names, SPEC_ATTEMPT_STATE_COUNT)
NAMES(spec_outcome, enum spec_outcome, outcome_names, SPEC_OUTCOME_COUNT)
NAMES(spec_cause, enum spec_cause, cause_names, SPEC_CAUSE_COUNT)

MOVES(job, enum spec_job_state, job_moves, SPEC_JOB_STATE_COUNT)
MOVES(run, enum spec_run_state, run_moves, SPEC_RUN_STATE_COUNT)
MOVES(attempt, enum spec_attempt_state, attempt_moves, SPEC_ATTEMPT_STATE_COUNT)

bool spec_job_state_final(enum spec_job_state s)
{
    return s == SPEC_JOB_CANCELLED || s == SPEC_JOB_DONE || s == SPEC_JOB_FAILED;
}

bool spec_run_state_final(enum spec_run_state s)
{
    return s == SPEC_RUN_ENDED;
}

bool spec_attempt_state_final(enum spec_attempt_state s)
{
    return s == SPEC_ATTEMPT_ENDED;
}
