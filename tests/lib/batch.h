/* tests/lib/batch.h: the tensors of a batch by their C type. */
#pragma once

#include <stddef.h>

#include "daemon/worker/data/data.h"

static inline const void *batch_of(const struct data_batch *b, const char *name, enum pk_dtype dtype)
{
    const struct data_tensor *t = data_batch_find(b, name);

    return t && t->dtype == dtype ? t->data : NULL;
}

static inline const uint8_t *images_of(const struct data_batch *b)
{
    return batch_of(b, "input", PK_U8);
}

static inline const int32_t *tokens_of(const struct data_batch *b)
{
    return batch_of(b, "input", PK_I32);
}

static inline const int32_t *targets_of(const struct data_batch *b)
{
    return batch_of(b, "target", PK_I32);
}
