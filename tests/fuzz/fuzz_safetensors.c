/* The safetensors reader (daemon/worker/data/safetensors.h): whatever it accepts lies inside the bytes it was
 * given. And the index of a model in several files (shards.h): every file that it names lies in its folder. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void parse_index(const uint8_t *bytes, size_t len)
{
    struct data_shards_index *x = NULL;

    if (data_shards_index_parse(bytes, len, &x, NULL) != PD_OK)
        return;
    if (!data_shards_index_count(x))
        abort();
    for (size_t i = 0; i < data_shards_index_count(x); i++) {
        const char *file, *name = data_shards_index_at(x, i, &file);

        if (!name || !file || !*file || *file == '.' || strchr(file, '/'))
            abort();
    }
    data_shards_index_free(x);
}

/* The types that the reader converts: floats, and whole numbers of 32 and 64 bits. */
static bool is_number(enum data_st_dtype dtype)
{
    return dtype == DATA_ST_F64 || dtype == DATA_ST_F32 || dtype == DATA_ST_F16 || dtype == DATA_ST_BF16 ||
           dtype == DATA_ST_I64 || dtype == DATA_ST_I32;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct data_st *st = NULL;
    struct pd_why why;
    float few[64];

    parse_index(bytes, len);
    if (data_st_parse(bytes, len, &st, &why) != PD_OK)
        return 0;
    for (size_t i = 0; i < data_st_count(st); i++) {
        const struct data_st_tensor *t = data_st_at(st, i);
        const uint8_t *data = t->data;
        uint64_t count = 1;

        for (int32_t d = 0; d < t->rank; d++)
            count *= (uint64_t)t->dim[d];
        if (count != t->count || t->bytes != count * data_st_dtype_size(t->dtype))
            abort();
        if (t->bytes && (data < bytes || data > bytes + len || t->bytes > (uint64_t)(bytes + len - data)))
            abort();
        if (data_st_find(st, t->name) != t)
            abort();
        if (t->count && t->count <= 64 &&
            (data_st_read_f32(t, few, t->count, &why) == PD_OK) != is_number(t->dtype))
            abort();
    }
    for (size_t i = 0; i < data_st_meta_count(st); i++) {
        const char *value, *key = data_st_meta_at(st, i, &value);

        if (!key || !value || !data_st_meta(st, key))
            abort();
    }
    data_st_free(st);
    return 0;
}
