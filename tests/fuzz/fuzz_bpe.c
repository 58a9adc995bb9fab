/* The files of a byte-pair tokenizer, and text under it: "VOCAB \0 MERGES \0 TEXT". What is accepted encodes
 * to tokens whose bytes are the text, saves, and comes back the same. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(const struct data_tokenizer *t, const uint8_t *text, size_t len)
{
    struct data_ids ids = {0};
    struct pd_why why;
    size_t at = 0;

    if (data_tokenizer_encode(t, text, len, false, &ids, &why) == PD_OK) {
        for (size_t i = 0; i < ids.count; i++) {
            size_t n = 0;
            const char *token = data_tokenizer_token(t, ids.items[i], &n);

            if (!token || n > len - at || memcmp(text + at, token, n) != 0)
                abort();
            at += n;
        }
        if (at != len)
            abort();
    }
    free(ids.items);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const uint8_t *merges = memchr(bytes, 0, len), *text;
    struct data_tokenizer *t = NULL, *again = NULL;
    struct pd_buf saved;
    struct pd_why why;

    if (!merges)
        return 0;
    merges++;
    text = memchr(merges, 0, (size_t)(bytes + len - merges));
    if (!text)
        return 0;
    text++;
    if (data_tokenizer_bpe_new(bytes, (size_t)(merges - 1 - bytes), merges, (size_t)(text - 1 - merges), &t,
                               &why) != PD_OK)
        return 0;
    check(t, text, (size_t)(bytes + len - text));
    pd_buf_init(&saved, 0);
    if (data_tokenizer_save(t, &saved, &why) == PD_OK) {
        if (data_tokenizer_load(saved.data, saved.len, &again, &why) != PD_OK)
            abort();
        check(again, text, (size_t)(bytes + len - text));
    }
    pd_buf_done(&saved);
    data_tokenizer_free(again);
    data_tokenizer_free(t);
    return 0;
}
