/* daemon/worker/train/tails.c: see tails.h. */
#include "daemon/worker/train/tails.h"

#include <math.h>
#include <string.h>

/* Reorders x so that x[k] is what it would be if x were sorted, with nothing greater before it and nothing less
 * behind it. Hoare's selection; the pivot is the median of three. */
static double select_at(double *x, int64_t count, int64_t k)
{
    int64_t low = 0, high = count - 1;

    while (low < high) {
        const double a = x[low], b = x[low + (high - low) / 2], c = x[high];
        const double pivot = fmax(fmin(a, b), fmin(fmax(a, b), c));
        int64_t i = low, j = high;

        while (i <= j) {
            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i <= j) {
                const double swap = x[i];

                x[i++] = x[j];
                x[j--] = swap;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return x[k];
}

static void count_bins(const double *size, int64_t count, struct tails *t)
{
    for (int64_t i = 0; i < count; i++) {
        const double at = floor((log10(size[i]) - TAILS_LOW) * TAILS_DECADE);

        if (size[i] == 0)
            t->zeros++;
        else if (at < 0)
            t->below++;
        else if (at < TAILS_BINS)
            t->bin[(int)at]++;
        else /* NaN too: no comparison with it is true */
            t->above++;
    }
}

static int64_t place(double q, int64_t count)
{
    int64_t k = (int64_t)ceil(q * (double)count) - 1;

    return k < 0 ? 0 : k;
}

void tails_of(double *g, int64_t count, struct tails *t)
{
    const int64_t top = count / 100 > 1 ? count / 100 : 1;
    double mean = 0, two = 0, four = 0, squares = 0, high = 0, logs = 0, median, far;

    memset(t, 0, sizeof *t);
    t->count = count;
    for (int64_t i = 0; i < count; i++)
        mean += g[i];
    mean /= (double)count;
    for (int64_t i = 0; i < count; i++) {
        const double d = (g[i] - mean) * (g[i] - mean);

        two += d;
        four += d * d;
        squares += g[i] * g[i];
        g[i] = fabs(g[i]);
    }
    t->rms = sqrt(squares / (double)count);
    t->kurtosis = two > 0 ? (double)count * four / (two * two) : (double)NAN;
    count_bins(g, count, t);
    t->hill = t->ratio = t->share = (double)NAN;
    if (!isfinite(squares)) /* NaN has no place in an order */
        return;
    median = select_at(g, count, place(0.5, count));
    far = select_at(g, count, place(0.999, count));
    t->ratio = median > 0 ? far / median : (double)NAN;
    if (top < count) {
        const double under = select_at(g, count, count - top - 1);

        for (int64_t i = count - top; i < count; i++) {
            high += g[i] * g[i];
            logs += under > 0 ? log(g[i] / under) : 0;
        }
        t->share = squares > 0 ? high / squares : (double)NAN;
        t->hill = logs > 0 ? (double)top / logs : (double)NAN;
    }
}
