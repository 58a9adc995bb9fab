/* polyd-worker digit SEED DIGIT: one picture of the generated digits, for who wants to ask a served model
 * something that no training has seen (deploy/quickstart does). */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/data/data.h"
#include "daemon/worker/worker.h"

enum { PIXELS = 28 * 28 };

/* The number that is the whole of `text`, at most `high`. */
static bool parse(const char *text, uint64_t high, uint64_t *ret)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *ret <= high;
}

int worker_digit_main(int argc, char **argv)
{
    uint8_t pixels[PIXELS];
    uint64_t seed, digit;

    if (argc != 2 || !parse(argv[0], UINT64_MAX, &seed) || !parse(argv[1], 9, &digit)) {
        fprintf(stderr, "polyd-worker digit: wants a seed and a digit from 0 to 9\n");
        return 2;
    }
    data_digit_draw(seed, 0, (int)digit, pixels);
    printf("{\"seed\":%" PRIu64 ",\"digit\":%" PRIu64 ",\"height\":28,\"width\":28,\"pixels\":[", seed,
           digit);
    for (size_t i = 0; i < PIXELS; i++)
        printf(i ? ",%d" : "%d", pixels[i]);
    printf("]}\n");
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
