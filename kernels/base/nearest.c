#include "kernels/base/nearest.h"

#include <stdio.h>
#include <string.h>

#define LONGEST_NAME 64

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned pd_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned row[3][LONGEST_NAME + 1]; /* rows i-2, i-1, i of the usual table */
    unsigned *before = row[0], *above = row[1], *here = row[2];

    if (n > LONGEST_NAME || m > LONGEST_NAME || (n > m ? n - m : m - n) > 2)
        return 3;
    for (size_t j = 0; j <= m; j++)
        above[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *spare = before;
        here[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned d = above[j - 1] + (a[i - 1] != b[j - 1]);
            d = least(d, least(above[j], here[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = least(d, before[j - 2] + 1);
            here[j] = d;
        }
        before = above;
        above = here;
        here = spare;
    }
    return least(above[m], 3);
}

const char *pd_nearest(const char *text, const char *const *names, size_t count, unsigned *ret_distance)
{
    const char *best = NULL;
    unsigned best_distance = 3;

    for (size_t i = 0; i < count; i++) {
        unsigned d = pd_distance(text, names[i]);
        /* otherwise any two names of two letters would match */
        if (d < best_distance && d < strlen(names[i]) && d < strlen(text)) {
            best = names[i];
            best_distance = d;
        }
    }
    if (ret_distance)
        *ret_distance = best_distance;
    return best;
}

const char *pd_did_you_mean(char *out, size_t size, const char *text, const char *const *names, size_t count)
{
    const char *best = pd_nearest(text, names, count, NULL);

    out[0] = '\0';
    if (best)
        snprintf(out, size, "; did you mean '%s'?", best);
    return out;
}
