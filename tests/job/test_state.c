/* tests/job/test_state.c: the tables of moves, written out a second time here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/state.h"

/* Every allowed move, "from to"; what is absent must be refused. */
static const char *const job_moves[] = {
    "queued running",    "queued paused",      "running paused",    "paused queued",
    "queued cancelling", "running cancelling", "paused cancelling", "cancelling cancelled",
    "running done",      "running failed",     "failed queued",     "failed running",
};
static const char *const run_moves[] = {
    "queued starting",     "preempted starting", "starting running",     "starting queued",
    "running queued",      "starting preempted", "running preempted",    "queued paused",
    "running paused",      "preempted paused",   "paused queued",        "queued cancelling",
    "starting cancelling", "running cancelling", "preempted cancelling", "paused cancelling",
    "cancelling ended",    "starting ended",     "running ended",        "queued ended",
    "paused ended",        "ended queued",       "ended running",
};
static const char *const attempt_moves[] = {
    "starting running",    "running checkpointing",  "checkpointing running", "starting stopping",
    "running stopping",    "checkpointing stopping", "starting ended",        "running ended",
    "checkpointing ended", "stopping ended",
};

static int listed(const char *const *list, size_t count, const char *from, const char *to)
{
    char pair[64];

    snprintf(pair, sizeof pair, "%s %s", from, to);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i], pair) == 0)
            return 1;
    }
    return 0;
}

/* In these only a retry, or the return of a run thought lost, changes anything. */
static const char *const final_states[] = {"done", "failed", "cancelled", "ended"};

static int is_final(const char *state)
{
    for (size_t i = 0; i < sizeof final_states / sizeof *final_states; i++) {
        if (strcmp(final_states[i], state) == 0)
            return 1;
    }
    return 0;
}

#define CHECK_LEVEL(level, type, count, list)                                                                \
    for (int a = 0; a < (count); a++) {                                                                      \
        for (int b = 0; b < (count); b++) {                                                                  \
            const char *from = level##_state_name((type)a), *to = level##_state_name((type)b);               \
            int want = listed(list, sizeof(list) / sizeof *(list), from, to);                                \
            if (want != level##_move_allowed((type)a, (type)b))                                              \
                fail_msg("%s to %s: should be %s", from, to, want ? "allowed" : "refused");                  \
            assert_true(want == (level##_move_meaning((type)a, (type)b) != NULL));                           \
            moves += want;                                                                                   \
        }                                                                                                    \
        assert_true(level##_state_final((type)a) == is_final(level##_state_name((type)a)));                  \
    }                                                                                                        \
    assert_int_equal(moves, sizeof(list) / sizeof *(list));                                                  \
    assert_false(level##_move_allowed((type)0, (type)(count)));                                              \
    assert_false(level##_move_allowed((type)(count), (type)0));                                              \
    assert_false(level##_move_allowed((type)-1, (type)0));

static void test_job_moves_are_those_of_the_specification(void **state)
{
    size_t moves = 0;
    (void)state;
    CHECK_LEVEL(job, enum job_state, JOB_STATE_COUNT, job_moves)
}

static void test_run_moves_are_those_of_the_specification(void **state)
{
    size_t moves = 0;
    (void)state;
    CHECK_LEVEL(job_run, enum job_run_state, JOB_RUN_STATE_COUNT, run_moves)
}

static void test_attempt_moves_are_those_of_the_specification(void **state)
{
    size_t moves = 0;
    (void)state;
    CHECK_LEVEL(job_attempt, enum job_attempt_state, JOB_ATTEMPT_STATE_COUNT, attempt_moves)
}

#define CHECK_NAMES(fn, type, count)                                                                         \
    for (int i = 0; i < (count); i++) {                                                                      \
        type back = (type)((i + 1) % (count));                                                               \
        assert_non_null(fn##_name((type)i));                                                                 \
        assert_true(fn##_parse(fn##_name((type)i), &back));                                                  \
        assert_int_equal(back, i);                                                                           \
        assert_false(fn##_parse("nonsense", &back));                                                         \
        assert_false(fn##_parse("", &back));                                                                 \
        assert_int_equal(back, i);                                                                           \
    }                                                                                                        \
    assert_null(fn##_name((type)(count)));                                                                   \
    assert_null(fn##_name((type)-1));

static void test_names_round_trip_and_others_are_refused(void **state)
{
    (void)state;
    CHECK_NAMES(job_state, enum job_state, JOB_STATE_COUNT)
    CHECK_NAMES(job_run_state, enum job_run_state, JOB_RUN_STATE_COUNT)
    CHECK_NAMES(job_attempt_state, enum job_attempt_state, JOB_ATTEMPT_STATE_COUNT)
    CHECK_NAMES(job_outcome, enum job_outcome, JOB_OUTCOME_COUNT)
    CHECK_NAMES(job_cause, enum job_cause, JOB_CAUSE_COUNT)
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_moves_are_those_of_the_specification),
        cmocka_unit_test(test_run_moves_are_those_of_the_specification),
        cmocka_unit_test(test_attempt_moves_are_those_of_the_specification),
        cmocka_unit_test(test_names_round_trip_and_others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
