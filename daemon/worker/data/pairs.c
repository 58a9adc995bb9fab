/* daemon/worker/data/pairs.c: pairs of pieces of documents: class 1 if both are of one document.
 *
 *   a document   |------------- 80 %: trained on -------------|- validation -|--- test ---|
 *   of a part    |  the first piece is in here  | and the second one in here  |
 *
 * Where both come from one document they do not overlap, and where they come from two they lie alike, so that places tell
 * nothing. Everything follows from (seed, number of the pair). */
#include "daemon/worker/data/pairs.h"

#include "daemon/worker/data/philox.h"

/* Where part `part` of a document begins, or ends if `end`. */
static int64_t border(const struct data_pairs *p, size_t document, int part, bool end)
{
    static const int64_t tenths[DATA_SPLITS + 1] = {0, 8, 9, 10};
    const int64_t from = document ? p->ends[document - 1] : 0, bytes = p->ends[document] - from;

    return from + bytes * tenths[part + end] / 10;
}

static bool long_enough(const struct data_pairs *p, size_t document)
{
    for (int part = 0; part < DATA_SPLITS; part++)
        if (border(p, document, part, true) - border(p, document, part, false) < 2 * p->length)
            return false;
    return true;
}

enum pd_err data_pairs_check(struct data_pairs *p, struct pd_why *why)
{
    const size_t all = p->count;

    p->count = 0;
    for (size_t i = 0; i < all; i++)
        if (long_enough(p, i))
            p->usable[p->count++] = (uint32_t)i;
    if (p->count > 1)
        return PD_OK;
    return pd_fail(why, PD_ERR_INVALID,
                   "pairs need two documents of at least %lld bytes (20 times the %lld of a passage); of %zu "
                   "documents %zu are long enough",
                   20 * (long long)p->length, (long long)p->length, all, p->count);
}

/* Appends a piece from the first or second half of the part, tabs and line ends as blanks. */
static void put_piece(const struct data_pairs *p, uint32_t document, int part, bool second, uint32_t word,
                      struct pd_buf *out)
{
    const int64_t begin = border(p, document, part, false), end = border(p, document, part, true),
                  middle = begin + (end - begin) / 2, from = second ? middle : begin,
                  range = (second ? end : middle) - from - p->length;
    const uint8_t *at =
        p->text + from + data_bounded(word, (uint32_t)(range < UINT32_MAX ? range + 1 : UINT32_MAX));

    for (int64_t i = 0; i < p->length; i++) {
        const char c = (char)(at[i] == '\t' || at[i] == '\n' || at[i] == '\r' ? ' ' : at[i]);

        pd_buf_append(out, &c, 1);
    }
}

int data_pair_make(const struct data_pairs *p, uint64_t number, int part, struct pd_buf *out)
{
    uint32_t word[8], first, second;

    for (uint32_t block = 0; block < 2; block++)
        data_random(p->seed, DATA_STREAM_SEQUENCE, block, number, word + 4 * block);
    first = second = data_bounded(word[1], (uint32_t)p->count);
    if (!data_bounded(word[0], 2)) { /* any of the others */
        second = data_bounded(word[2], (uint32_t)p->count - 1);
        second += second >= first;
    }
    out->len = 0;
    put_piece(p, p->usable[first], part, false, word[3], out);
    pd_buf_str(out, "\t");
    put_piece(p, p->usable[second], part, true, word[4], out);
    return first == second;
}
