/* A tokenizer as a checkpoint carries it: damaged ones are refused or hold every promise of tokenizer.h. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char text[] = "the quick\nbrown <|endoftext|> fo\xc3\xa9x \xff";
    struct data_tokenizer *t = NULL;
    struct data_ids ids = {0};
    struct pd_why why;

    if (data_tokenizer_load(bytes, len, &t, &why) != PD_OK)
        return 0;
    for (int32_t id = 0; id < data_tokenizer_vocab(t); id++) {
        size_t n = 0;

        if (!data_tokenizer_token(t, id, &n) || n > data_tokenizer_token_max(t))
            abort();
    }
    if (data_tokenizer_start(t) < 0 || data_tokenizer_start(t) >= data_tokenizer_vocab(t))
        abort();
    if (data_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &why) == PD_OK)
        for (size_t i = 0; i < ids.count; i++)
            if (ids.items[i] < 0 || ids.items[i] >= data_tokenizer_vocab(t))
                abort();
    free(ids.items);
    data_tokenizer_free(t);
    return 0;
}
