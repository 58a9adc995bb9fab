#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/polyd/sched/sched.h"

static const struct sched_item *find(const struct sched_item *items, int n, int64_t id)
{
    for (int i = 0; i < n; i++)
        if (items[i].id == id)
            return &items[i];
    fail();
    return NULL;
}

static void test_sched_priority_then_arrival(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 1, .kind = "cpu"},
                                 {.id = 2, .slots = 1, .kind = "cpu", .priority = 5},
                                 {.id = 3, .slots = 1, .kind = "cpu", .priority = 5}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 2, .free = 2}};

    (void)state;
    sched_cycle(items, 3, kinds, 1, NULL, 0, 100, 0);
    assert_true(items[0].id == 2 && items[0].start && items[0].position == 1);
    assert_true(items[1].id == 3 && items[1].start);
    assert_true(items[2].id == 1 && !items[2].start && items[2].position == 3);
    assert_int_equal(kinds[0].free, 0);
}

static void test_sched_waiting_raises_priority(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 1, .kind = "cpu", .queued_us = 0},
                                 {.id = 2, .slots = 1, .kind = "cpu", .queued_us = 900, .priority = 5}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 1, .free = 1}};

    (void)state;
    sched_cycle(items, 2, kinds, 1, NULL, 0, 1000, 100); /* 10 steps against 5 + 1 */
    assert_true(items[0].id == 1 && items[0].start);
}

static void test_sched_back_off_waits_and_wakes(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 1, .kind = "cpu", .priority = 9, .not_before_us = 500},
                                 {.id = 2, .slots = 1, .kind = "cpu"}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 1, .free = 1}};

    (void)state;
    sched_cycle(items, 2, kinds, 1, NULL, 0, 100, 0);
    assert_true(find(items, 2, 2)->start);
    assert_false(find(items, 2, 1)->start);
    assert_int_equal(find(items, 2, 1)->wake_us, 500);
}

static void test_sched_impossible_is_said(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 3, .kind = "cpu"}, {.id = 2, .slots = 1, .kind = "cuda"}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 2, .free = 2}};

    (void)state;
    sched_cycle(items, 2, kinds, 1, NULL, 0, 0, 0);
    assert_true(items[0].impossible && items[1].impossible);
}

static void test_sched_backfill_only_without_delay_of_the_first(void **state)
{
    struct sched_busy busy[] = {{.kind = "cpu", .slots = 1, .until_us = 1000}};
    struct sched_item items[] = {{.id = 1, .slots = 2, .kind = "cpu", .priority = 1},
                                 {.id = 2, .slots = 1, .kind = "cpu", .limit_us = 2000},
                                 {.id = 3, .slots = 1, .kind = "cpu"},
                                 {.id = 4, .slots = 1, .kind = "cpu", .limit_us = 900}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 2, .free = 1}};

    (void)state;
    sched_cycle(items, 4, kinds, 1, busy, 1, 100, 0);
    assert_false(find(items, 4, 1)->start);
    assert_true(find(items, 4, 2)->behind);
    assert_true(find(items, 4, 3)->behind);
    assert_true(find(items, 4, 4)->start);
}

static void test_sched_jobs_take_turns(void **state)
{
    struct sched_item items[12];
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 4, .free = 4}};

    (void)state;
    /* Job 1: ten runs that came first; jobs 2 and 3: one each. */
    for (int i = 0; i < 10; i++)
        items[i] = (struct sched_item){.id = i + 1, .job = 1, .slots = 1, .kind = "cpu", .queued_us = 1};
    items[10] = (struct sched_item){.id = 11, .job = 2, .slots = 1, .kind = "cpu", .queued_us = 50};
    items[11] = (struct sched_item){.id = 12, .job = 3, .slots = 1, .kind = "cpu", .queued_us = 60};
    sched_cycle(items, 12, kinds, 1, NULL, 0, 100, 0);
    assert_true(items[0].id == 1 && items[1].id == 11 && items[2].id == 12 && items[3].id == 2);
    assert_true(items[3].start && !items[4].start);
    assert_int_equal(items[4].turn, 2);
}

/* With one run of the sweep at work, a single free slot goes to whoever has none, however long the sweep
 * waits. */
static void test_sched_a_served_job_does_not_age(void **state)
{
    struct sched_item items[] = {
        {.id = 1, .job = 1, .active = 1, .slots = 1, .kind = "cpu", .queued_us = 0},
        {.id = 2, .job = 2, .slots = 1, .kind = "cpu", .queued_us = 99000},
    };
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 2, .free = 1}};

    (void)state;
    sched_cycle(items, 2, kinds, 1, NULL, 0, 100000, 100);
    assert_true(find(items, 2, 2)->start);
    assert_false(find(items, 2, 1)->start);
    /* Once none of its runs is at work, its age counts again. */
    items[0].active = items[1].active = 0;
    kinds[0].free = 1;
    sched_cycle(items, 2, kinds, 1, NULL, 0, 100000, 100);
    assert_true(find(items, 2, 1)->start);
}

/* One slot: two sweeps and a newcomer alternate, whoever came first. */
static void test_sched_one_slot_is_shared_in_time(void **state)
{
    int64_t served[4] = {0};
    int started[4] = {0};

    (void)state;
    for (int64_t now = 1000; now < 1300; now += 10) {
        struct sched_item items[] = {
            {.id = now + 1, .job = 1, .served_us = served[1], .slots = 1, .kind = "cpu", .queued_us = 1},
            {.id = now + 2, .job = 1, .served_us = served[1], .slots = 1, .kind = "cpu", .queued_us = 1},
            {.id = now + 3, .job = 2, .served_us = served[2], .slots = 1, .kind = "cpu", .queued_us = 2},
            {.id = now + 4, .job = 3, .served_us = served[3], .slots = 1, .kind = "cpu", .queued_us = 999},
        };
        struct sched_kind kinds[] = {{.kind = "cpu", .total = 1, .free = 1}};

        sched_cycle(items, 4, kinds, 1, NULL, 0, now, 0);
        assert_true(items[0].start);
        started[items[0].job]++;
        served[items[0].job] = now;
    }
    assert_int_equal(started[1], 10);
    assert_int_equal(started[2], 10);
    assert_int_equal(started[3], 10);
}

static void test_sched_cap_of_a_job_holds_and_reserves_nothing(void **state)
{
    struct sched_item items[] = {
        {.id = 1, .job = 1, .active = 1, .cap = 2, .slots = 1, .kind = "cpu", .priority = 9},
        {.id = 2, .job = 1, .active = 1, .cap = 2, .slots = 1, .kind = "cpu", .priority = 9},
        {.id = 3, .job = 1, .active = 1, .cap = 2, .slots = 4, .kind = "cpu", .priority = 9},
        {.id = 4, .job = 2, .slots = 1, .kind = "cpu"},
    };
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 4, .free = 3}};

    (void)state;
    sched_cycle(items, 4, kinds, 1, NULL, 0, 100, 0);
    assert_true(find(items, 4, 1)->start);
    assert_true(find(items, 4, 2)->capped && !find(items, 4, 2)->start);
    assert_true(find(items, 4, 3)->capped);
    assert_true(find(items, 4, 4)->start);
}

static uint64_t seed = 20261120;

static uint32_t draw(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % below);
}

/* Random schedules on a simulated clock: slots are never over-committed, and a gang behind an endless
 * stream of single-slot runs starts within the longest running limit. */
static void test_sched_no_overcommit_and_no_starvation(void **state)
{
    enum { SLOTS = 8, ROUNDS = 300, LIMIT = 50 };

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct sched_item queue[64];
        struct sched_busy busy[64];
        int queued = 0, running = 0, gang_started_at = -1;
        int64_t id = 1;

        for (int64_t now = 1; now < 400 && gang_started_at < 0; now++) {
            struct sched_kind kinds[] = {{.kind = "cpu", .total = SLOTS, .free = SLOTS}};
            int used = 0;

            for (int i = 0; i < running;)
                if (busy[i].until_us <= now)
                    busy[i] = busy[--running];
                else
                    used += busy[i++].slots;
            kinds[0].free = SLOTS - used;
            assert_true(kinds[0].free >= 0);
            while (queued < 20)
                queue[queued++] = (struct sched_item){
                    .id = id++, .slots = 1, .kind = "cpu", .queued_us = now, .limit_us = 1 + draw(LIMIT)};
            if (now == 20)
                queue[queued++] = (struct sched_item){.id = 1000000,
                                                      .slots = SLOTS,
                                                      .kind = "cpu",
                                                      .priority = 1,
                                                      .queued_us = now,
                                                      .limit_us = 10};
            sched_cycle(queue, queued, kinds, 1, busy, running, now, 0);
            assert_true(kinds[0].free >= 0);
            for (int i = 0; i < queued;) {
                if (!queue[i].start) {
                    i++;
                    continue;
                }
                if (queue[i].id == 1000000)
                    gang_started_at = (int)now;
                busy[running++] = (struct sched_busy){
                    .kind = "cpu", .slots = queue[i].slots, .until_us = now + queue[i].limit_us};
                queue[i] = queue[--queued];
            }
        }
        if (gang_started_at < 0 || gang_started_at > 20 + LIMIT + 1)
            fail_msg("round %d: the gang started at %d", round, gang_started_at);
    }
}

/* Slots of one kind share 100 bytes. */
static void test_sched_memory_is_shared_by_the_slots(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 1, .kind = "cpu", .priority = 9, .bytes = 60},
                                 {.id = 2, .slots = 1, .kind = "cpu", .priority = 8, .bytes = 60},
                                 {.id = 3, .slots = 1, .kind = "cpu", .priority = 7, .bytes = 10},
                                 {.id = 4, .slots = 1, .kind = "cpu", .priority = 6}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 4, .free = 4, .memory = 100, .memory_free = 100}};

    (void)state;
    sched_cycle(items, 4, kinds, 1, NULL, 0, 0, 0);
    assert_true(find(items, 4, 1)->start);
    assert_true(!find(items, 4, 2)->start && find(items, 4, 2)->short_of_memory);
    /* when the first ends is not known: nobody overtakes the second, whose turn may come any moment */
    assert_true(!find(items, 4, 3)->start && find(items, 4, 3)->behind);
    assert_true(find(items, 4, 4)->behind);
    assert_int_equal(kinds[0].memory_free, 40);
}

static void test_sched_memory_backfills_what_ends_before_or_leaves_room(void **state)
{
    struct sched_item items[] = {
        {.id = 1, .slots = 1, .kind = "cpu", .priority = 9, .bytes = 70},
        {.id = 2, .slots = 1, .kind = "cpu", .priority = 8, .bytes = 40, .limit_us = 90},
        {.id = 3, .slots = 1, .kind = "cpu", .priority = 7, .bytes = 40, .limit_us = 900},
        {.id = 4, .slots = 1, .kind = "cpu", .priority = 6, .bytes = 10},
        {.id = 5, .slots = 1, .kind = "cpu", .priority = 5, .bytes = 25}};
    struct sched_busy busy[] = {{.kind = "cpu", .slots = 1, .until_us = 1000, .bytes = 50}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 8, .free = 7, .memory = 100, .memory_free = 50}};

    (void)state;
    sched_cycle(items, 5, kinds, 1, busy, 1, 900, 0);
    assert_true(find(items, 5, 1)->short_of_memory); /* at 1000 it gets 70, and 30 are left */
    assert_true(find(items, 5, 2)->start);           /* it ends at 990 */
    assert_true(find(items, 5, 3)->short_of_memory); /* 10 are free now */
    assert_true(find(items, 5, 4)->start);           /* 20 of the 30 are left */
    assert_false(find(items, 5, 5)->start);
    assert_int_equal(kinds[0].memory_free, 0);
}

static void test_sched_what_needs_all_memory_runs_alone_and_what_is_not_shared_is_not_counted(void **state)
{
    struct sched_item items[] = {{.id = 1, .slots = 1, .kind = "cpu", .priority = 9, .bytes = 500},
                                 {.id = 2, .slots = 1, .kind = "cuda", .priority = 8, .bytes = 500},
                                 {.id = 3, .slots = 1, .kind = "cuda", .priority = 7, .bytes = 500},
                                 {.id = 4, .slots = 1, .kind = "cuda", .priority = 6, .unfit = true},
                                 {.id = 5, .slots = 1, .kind = "cuda", .priority = 5}};
    struct sched_kind kinds[] = {{.kind = "cpu", .total = 2, .free = 2, .memory = 100, .memory_free = 100},
                                 {.kind = "cuda", .total = 4, .free = 4}};

    (void)state;
    sched_cycle(items, 5, kinds, 2, NULL, 0, 0, 0);
    assert_true(find(items, 5, 1)->start);
    assert_int_equal(kinds[0].memory_free, 0);
    assert_true(find(items, 5, 2)->start && find(items, 5, 3)->start);
    assert_true(find(items, 5, 4)->blocked && !find(items, 5, 4)->start);
    assert_true(find(items, 5, 5)->start); /* it holds nobody up */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_priority_then_arrival),
        cmocka_unit_test(test_sched_waiting_raises_priority),
        cmocka_unit_test(test_sched_back_off_waits_and_wakes),
        cmocka_unit_test(test_sched_impossible_is_said),
        cmocka_unit_test(test_sched_backfill_only_without_delay_of_the_first),
        cmocka_unit_test(test_sched_jobs_take_turns),
        cmocka_unit_test(test_sched_a_served_job_does_not_age),
        cmocka_unit_test(test_sched_one_slot_is_shared_in_time),
        cmocka_unit_test(test_sched_cap_of_a_job_holds_and_reserves_nothing),
        cmocka_unit_test(test_sched_no_overcommit_and_no_starvation),
        cmocka_unit_test(test_sched_memory_is_shared_by_the_slots),
        cmocka_unit_test(test_sched_memory_backfills_what_ends_before_or_leaves_room),
        cmocka_unit_test(test_sched_what_needs_all_memory_runs_alone_and_what_is_not_shared_is_not_counted),
    };

    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
