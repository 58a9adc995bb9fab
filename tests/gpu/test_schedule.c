/* How evenly attention's persistent kernels on sm 90 share their work: the time of the last block over the mean,
 * counted in tiles, for sequences and devices of many sizes. The order of units and their lengths come from
 * hopper_schedule.h, which the kernel itself calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/backend/cuda/attention/hopper_schedule.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

enum {
    HEADS = 12,
    TOKENS = 131072,
    OVERHEAD = 3 /* of a unit: Q, the first and the last product, in tiles */
};

static const int sizes[] = {197, 256, 512, 768, 1024, 1536, 2048, 4096, 8192};
static const int devices[] = {108, 114, 132, 148};

/* The block that is free first takes the next unit. Returns the longest time over the mean. */
static double shared_out(const double *length, int units, int blocks)
{
    double *busy = calloc((size_t)blocks, sizeof *busy), most = 0, sum = 0;

    assert_non_null(busy);
    for (int i = 0; i < blocks && i < units; i++)
        busy[i] = length[i];
    for (int taken = 0; hopper_unit_next(blocks, taken) < units; taken++) {
        int free_first = 0;

        for (int i = 1; i < blocks; i++)
            if (busy[i] < busy[free_first])
                free_first = i;
        busy[free_first] += length[hopper_unit_next(blocks, taken)];
    }
    for (int i = 0; i < blocks; i++) {
        most = busy[i] > most ? busy[i] : most;
        sum += busy[i];
    }
    free(busy);
    return most / (sum / blocks);
}

static int longer_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static void hold(const char *what, int n, int multiprocessors, double *length, int units)
{
    const double ratio = shared_out(length, units, multiprocessors);
    double longest_first;

    if (units >= 8 * multiprocessors) {
        if (ratio > 1.1)
            fail_msg("%s, N = %d, %d multiprocessors: the last block takes %.3f of the mean", what, n,
                     multiprocessors, ratio);
        return;
    }
    qsort(length, (size_t)units, sizeof *length, longer_first);
    longest_first = shared_out(length, units, multiprocessors);
    print_message("%s, N = %d, %d multiprocessors, %d units: %.3f of the mean (longest first: %.3f)\n", what,
                  n, multiprocessors, units, ratio, longest_first);
    assert_true(ratio <= 1.05 * longest_first);
}

/* Shapes as hopper_fwd.cu chooses them at a head dimension of 64. */
static void test_forward(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int causal = 0; causal < 2; causal++)
            for (int d = 0; d < COUNT(devices); d++) {
                const int n = sizes[i], batch = TOKENS / n, keys = n > 512 ? 96 : 128,
                          rows = n > 512 ? 192 : 128;
                const int passes = (n + rows - 1) / rows;
                const bool together = n <= 512;
                const int units = batch * HEADS * (together ? 1 : passes);
                double *length = malloc((size_t)units * sizeof *length);

                assert_non_null(length);
                for (int u = 0; u < units; u++) {
                    const int last = together ? passes : hopper_unit_pass(u, passes) + 1;

                    assert_in_range(hopper_unit_head(u, passes, together), 0, batch * HEADS - 1);
                    length[u] = 0;
                    for (int p = together ? 0 : last - 1; p < last; p++)
                        length[u] += OVERHEAD + hopper_unit_tiles(causal, n, n, (p + 1) * rows, keys);
                }
                hold(causal ? "forward, causal" : "forward", n, devices[d], length, units);
                free(length);
            }
}

/* A unit is a whole (batch, head): 64 queries against 128 keys at a time. */
static void test_backward(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int causal = 0; causal < 2; causal++)
            for (int d = 0; d < COUNT(devices); d++) {
                const int n = sizes[i], units = TOKENS / n * HEADS;
                double *length = malloc((size_t)units * sizeof *length), one = OVERHEAD;

                assert_non_null(length);
                for (int q = 0; q < n; q += 64)
                    one += hopper_unit_tiles(causal, n, n, q + 64, 128);
                for (int u = 0; u < units; u++)
                    length[u] = one;
                hold(causal ? "backward, causal" : "backward", n, devices[d], length, units);
                free(length);
            }
}

static void test_units(void **state)
{
    (void)state;
    /* Head after head, its last pass first. */
    assert_int_equal(hopper_unit_head(0, 6, false), 0);
    assert_int_equal(hopper_unit_pass(0, 6), 5);
    assert_int_equal(hopper_unit_pass(5, 6), 0);
    assert_int_equal(hopper_unit_head(6, 6, false), 1);
    assert_int_equal(hopper_unit_head(6, 6, true), 6);
    /* Tiles that are seen: all; up to the diagonal; with fewer queries than keys; none. */
    assert_int_equal(hopper_unit_tiles(false, 1024, 1024, 192, 96), 11);
    assert_int_equal(hopper_unit_tiles(true, 1024, 1024, 192, 96), 2);
    assert_int_equal(hopper_unit_tiles(true, 1024, 1024, 193, 96), 3);
    assert_int_equal(hopper_unit_tiles(true, 1024, 1024, 1152, 96), 11);
    assert_int_equal(hopper_unit_tiles(true, 100, 300, 50, 96), 3);
    assert_int_equal(hopper_unit_tiles(true, 300, 100, 192, 96), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
