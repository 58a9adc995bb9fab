/* daemon/worker/train/displacement.c: see maps.h. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/train/maps.h"

void maps_displacement(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns,
                       double *to)
{
    const int64_t wide = 2 * columns - 1, count = (2 * rows - 1) * wide;

    memset(to, 0, (size_t)count * sizeof *to);
    for (int64_t i = 0; i < rows * columns; i++)
        for (int64_t j = 0; j < rows * columns; j++) {
            const int64_t down = j / columns - i / columns, right = j % columns - i % columns;

            to[(down + rows - 1) * wide + right + columns - 1] += matrix[(lead + i) * n + lead + j];
        }
    for (int64_t at = 0; at < count; at++) {
        const int64_t down = llabs(at / wide - (rows - 1)), right = llabs(at % wide - (columns - 1));

        to[at] /= (double)((rows - down) * (columns - right));
    }
}

static double over(double sum, int64_t count, double all, int64_t pairs)
{
    return count && all > 0 ? sum / (double)count / (all / (double)pairs) : 1;
}

void maps_same(const double *matrix, int64_t n, int64_t lead, int64_t rows, int64_t columns, double *ret_row,
               double *ret_column)
{
    const int64_t patches = rows * columns;
    double row = 0, column = 0, all = 0;

    for (int64_t i = 0; i < patches; i++)
        for (int64_t j = 0; j < patches; j++) {
            const double x = i == j ? 0 : matrix[(lead + i) * n + lead + j];

            all += x;
            row += i / columns == j / columns ? x : 0;
            column += i % columns == j % columns ? x : 0;
        }
    *ret_row = over(row, patches * (columns - 1), all, patches * (patches - 1));
    *ret_column = over(column, patches * (rows - 1), all, patches * (patches - 1));
}
