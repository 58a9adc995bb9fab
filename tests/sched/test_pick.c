#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/polyd/sched/sched.h"

/* Two processors with four units each; 0-1, 2-3, ... are pairs. */
static int two_by_four(void *ctx, int a, int b)
{
    (void)ctx;
    return a / 2 == b / 2 ? 4 : a / 4 == b / 4 ? 2 : 0;
}

static void choose(const char *usable, int wanted, const char *expected)
{
    bool flags[8];
    int ret[8], n;
    char text[9] = "";

    for (int i = 0; i < 8; i++)
        flags[i] = usable[i] == '1';
    n = sched_pick(flags, 8, wanted, two_by_four, NULL, ret);
    for (int i = 0; i < n; i++)
        text[i] = (char)('0' + ret[i]);
    assert_string_equal(text, expected);
}

static void test_pick_the_best_connected_set(void **state)
{
    (void)state;
    choose("11111111", 2, "01");
    choose("01111111", 2, "23");
    choose("01010011", 2, "67"); /* near ones before low numbers */
    choose("11111111", 4, "0123");
    choose("01111111", 4, "4567"); /* one processor rather than two */
    choose("01110111", 6, "123567");
    choose("11111111", 8, "01234567");
    choose("01110111", 7, ""); /* all or none */
    choose("00000000", 1, "");
}

static void test_pick_one_that_the_others_miss_least(void **state)
{
    (void)state;
    choose("11111111", 1, "0");
    choose("01111111", 1, "1"); /* whose partner is taken, so that the pairs stay whole */
    choose("00001110", 1, "6");
}

static void test_pick_without_connections_takes_the_first(void **state)
{
    bool usable[5] = {false, true, true, false, true};
    int ret[5];

    (void)state;
    assert_int_equal(sched_pick(usable, 5, 2, NULL, NULL, ret), 2);
    assert_true(ret[0] == 1 && ret[1] == 2);
    assert_int_equal(sched_pick(usable, 5, 4, NULL, NULL, ret), 0);
    assert_int_equal(sched_pick(usable, 5, 0, NULL, NULL, ret), 0);
}

static uint64_t seed = 20261121;

static int draw(int below)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)below);
}

/* Random schedules with identities on a simulated clock: units are drained and come back, gangs of all sizes
 * queue. No unit is ever in two runs, a drained one is never chosen, a gang has all its units, and nobody
 * starves: once every unit is in service again, the queue runs empty. */
static void test_pick_no_unit_twice_and_no_drained_one(void **state)
{
    enum { UNITS = 8, RUNS = 64, ROUNDS = 200 };

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct sched_item queue[RUNS];
        struct {
            int units[UNITS], count;
            int64_t until_us;
        } running[UNITS];
        int holder[UNITS] = {0}, queued = 0, active = 0, made = 0;
        bool drained[UNITS] = {false};
        int64_t now = 1;

        for (; made < RUNS || queued || active; now++) {
            struct sched_kind kind = {.kind = "cuda", .total = UNITS};
            struct sched_busy busy[UNITS];
            bool usable[UNITS];

            if (now > 100000)
                fail_msg("round %d: %d runs starve", round, queued);
            for (int i = 0; i < active;) {
                if (running[i].until_us > now) {
                    i++;
                    continue;
                }
                for (int u = 0; u < running[i].count; u++)
                    holder[running[i].units[u]] = 0;
                running[i] = running[--active];
            }
            for (int u = 0; u < UNITS; u++) {
                if (draw(40) == 0)
                    drained[u] = made < RUNS ? draw(2) : false;
                usable[u] = !holder[u] && !drained[u];
                kind.free += usable[u];
                kind.out += drained[u];
            }
            for (int i = 0; i < active; i++) {
                int back = 0;

                for (int u = 0; u < running[i].count; u++)
                    back += !drained[running[i].units[u]];
                busy[i] = (struct sched_busy){.kind = "cuda", .slots = back, .until_us = running[i].until_us};
            }
            if (made < RUNS && draw(3) == 0) {
                made++;
                queue[queued++] = (struct sched_item){.id = made,
                                                      .slots = 1 + (draw(3) ? draw(2) : draw(UNITS)),
                                                      .kind = "cuda",
                                                      .queued_us = now,
                                                      .limit_us = 1 + draw(30)};
            }
            sched_cycle(queue, queued, &kind, 1, busy, active, now, 0);
            for (int i = 0; i < queued;) {
                struct sched_item *item = &queue[i];
                int got;

                if (!item->start) {
                    i++;
                    continue;
                }
                got = sched_pick(usable, UNITS, item->slots, two_by_four, NULL, running[active].units);
                assert_int_equal(got, item->slots);
                for (int u = 0; u < got; u++) {
                    int unit = running[active].units[u];

                    assert_true(usable[unit] && !holder[unit] && !drained[unit]);
                    usable[unit] = false;
                    holder[unit] = (int)item->id;
                }
                running[active].count = got;
                running[active++].until_us = now + item->limit_us;
                queue[i] = queue[--queued];
            }
        }
    }
}

static void test_pick_a_run_that_waits_for_an_operator_holds_nobody_up(void **state)
{
    struct sched_kind kind = {.kind = "cuda", .total = 8, .free = 7, .out = 1};
    struct sched_item items[] = {{.id = 1, .slots = 8, .kind = "cuda", .priority = 9},
                                 {.id = 2, .slots = 7, .kind = "cuda"}};

    (void)state;
    sched_cycle(items, 2, &kind, 1, NULL, 0, 100, 0);
    assert_true(items[0].id == 1 && items[0].blocked && !items[0].start && !items[0].impossible);
    assert_true(items[1].start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick_the_best_connected_set),
        cmocka_unit_test(test_pick_one_that_the_others_miss_least),
        cmocka_unit_test(test_pick_without_connections_takes_the_first),
        cmocka_unit_test(test_pick_no_unit_twice_and_no_drained_one),
        cmocka_unit_test(test_pick_a_run_that_waits_for_an_operator_holds_nobody_up),
    };

    return cmocka_run_group_tests_name("pick", tests, NULL, NULL);
}
