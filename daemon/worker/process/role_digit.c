/* polyd-worker digit SEED DIGIT: one picture of the generated digits, for who wants to ask a served model
 * something that no training has seen (deploy/quickstart does). */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/json.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE };

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
    struct pd_buf b;

    if (argc != 2 || !parse(argv[0], UINT64_MAX, &seed) || !parse(argv[1], 9, &digit)) {
        fprintf(stderr, "polyd-worker digit: wants a seed and a digit from 0 to 9\n");
        return 2;
    }
    data_digit_draw(seed, 0, (int)digit, pixels);
    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_uint(&b, "seed", seed);
    pd_json_kv_uint(&b, "digit", digit);
    pd_json_kv_int(&b, "height", SIDE);
    pd_json_kv_int(&b, "width", SIDE);
    pd_json_key(&b, "pixels");
    pd_json_open(&b, '[');
    for (size_t i = 0; i < PIXELS; i++)
        pd_json_int(&b, pixels[i]);
    pd_json_close(&b, ']');
    pd_json_close(&b, '}');
    return worker_print(&b);
}
