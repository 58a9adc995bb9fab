/* Which units a gang gets. Finding the best k of n units is hard in general. Machines have at most a few
 * dozen units in a few groups, and a set that grows from each unit by its best-connected neighbour finds the
 * groups. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/sched/sched.h"

#define UNITS_MAX 256

static int sum_to(const int *set, int count, int unit, int (*link)(void *ctx, int a, int b), void *ctx)
{
    int sum = 0;

    for (int i = 0; i < count; i++)
        sum += link(ctx, set[i], unit);
    return sum;
}

/* Sum over the set's pairs, the weakest pair first: one far unit slows a ring more than several middling
 * ones. */
static int grow(const bool *usable, int units, int first, int wanted, int (*link)(void *ctx, int a, int b),
                void *ctx, int *set)
{
    bool taken[UNITS_MAX] = {false};
    int count = 1, total = 0, weakest = INT_MAX;

    set[0] = first;
    taken[first] = true;
    while (count < wanted) {
        int best = -1, best_sum = -1;

        for (int i = 0; i < units; i++) {
            int sum;

            if (!usable[i] || taken[i])
                continue;
            sum = sum_to(set, count, i, link, ctx);
            if (sum > best_sum) {
                best = i;
                best_sum = sum;
            }
        }
        for (int i = 0; i < count; i++) {
            int one = link(ctx, set[i], best);

            weakest = one < weakest ? one : weakest;
        }
        total += best_sum;
        taken[best] = true;
        set[count++] = best;
    }
    return weakest * 65536 + total;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static int loneliest(const bool *usable, int units, int (*link)(void *ctx, int a, int b), void *ctx)
{
    int best = -1, best_sum = INT_MAX;

    for (int i = 0; i < units; i++) {
        int sum = 0;

        for (int j = 0; usable[i] && j < units; j++)
            if (j != i && usable[j])
                sum += link(ctx, i, j);
        if (usable[i] && sum < best_sum) {
            best = i;
            best_sum = sum;
        }
    }
    return best;
}

int sched_pick(const bool *usable, int units, int wanted, int (*link)(void *ctx, int a, int b), void *ctx,
               int *ret)
{
    int set[UNITS_MAX], best_score = -1, count = 0;

    if (units > UNITS_MAX)
        units = UNITS_MAX;
    for (int i = 0; i < units; i++)
        count += usable[i];
    if (wanted < 1 || count < wanted)
        return 0;
    if (!link || count == wanted) {
        count = 0;
        for (int i = 0; i < units && count < wanted; i++)
            if (usable[i])
                ret[count++] = i;
        return wanted;
    }
    if (wanted == 1) {
        ret[0] = loneliest(usable, units, link, ctx);
        return 1;
    }
    for (int i = 0; i < units; i++) {
        int score;

        if (!usable[i])
            continue;
        score = grow(usable, units, i, wanted, link, ctx, set);
        if (score > best_score) {
            best_score = score;
            memcpy(ret, set, (size_t)wanted * sizeof *ret);
        }
    }
    qsort(ret, (size_t)wanted, sizeof *ret, compare);
    return wanted;
}
