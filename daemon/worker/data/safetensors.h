/* daemon/worker/data/safetensors.h: the safetensors file format, read strictly and written canonically.
 *
 * 8 bytes little-endian header length, a JSON header, raw little-endian row-major data. The reader refuses a
 * header beyond its limit, duplicate names, unknown element types, sizes that do not match shape and type,
 * ranges that overlap, leave holes or run past the end, and arithmetic that would overflow. */
#pragma once

#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

#define DATA_ST_HEADER_LIMIT ((size_t)64 << 20)
#define DATA_ST_TENSOR_LIMIT 65536
#define DATA_ST_RANK_LIMIT 8

enum data_st_dtype {
    DATA_ST_F64,
    DATA_ST_F32,
    DATA_ST_F16,
    DATA_ST_BF16,
    DATA_ST_I64,
    DATA_ST_I32,
    DATA_ST_I16,
    DATA_ST_I8,
    DATA_ST_U8,
    DATA_ST_BOOL,
    DATA_ST_DTYPE_COUNT
};

struct data_st_tensor {
    const char *name;
    enum data_st_dtype dtype;
    int32_t rank;
    int64_t dim[DATA_ST_RANK_LIMIT];
    uint64_t count; /* elements */
    uint64_t bytes;
    const void *data; /* not aligned; NULL if the file was opened for its header alone */
};

struct data_st;

/* Reads from memory, which must outlive the reader. */
PD_NODISCARD enum pd_err data_st_parse(const void *bytes, size_t len, struct data_st **ret,
                                       struct pd_why *why);
/* Maps the file read-only. */
PD_NODISCARD enum pd_err data_st_open(const char *path, struct data_st **ret, struct pd_why *why);
/* The same of an open file; `fd` stays the caller's. `name` is for messages. */
PD_NODISCARD enum pd_err data_st_open_fd(int fd, const char *name, struct data_st **ret, struct pd_why *why);
struct data_st *data_st_free(struct data_st *st);

/* All of these are borrowed until data_st_free. */
size_t data_st_count(const struct data_st *st);
const struct data_st_tensor *data_st_at(const struct data_st *st, size_t i); /* in order of their data */
const struct data_st_tensor *data_st_find(const struct data_st *st, const char *name); /* or NULL */
const char *data_st_meta(const struct data_st *st, const char *key);                   /* or NULL */
size_t data_st_meta_count(const struct data_st *st);
const char *data_st_meta_at(const struct data_st *st, size_t i, const char **ret_value);
const void *data_st_bytes(const struct data_st *st, size_t *ret_len); /* the whole file */

/* Copies a tensor as f32 or f64, from F64, F32, F16, BF16, or from I64 and I32 (counts of steps). `count` must match.
 */
PD_NODISCARD enum pd_err data_st_read_f32(const struct data_st_tensor *t, float *to, uint64_t count,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err data_st_read_f64(const struct data_st_tensor *t, double *to, uint64_t count,
                                          struct pd_why *why);

size_t data_st_dtype_size(enum data_st_dtype dtype);
const char *data_st_dtype_name(enum data_st_dtype dtype);

struct data_st_meta_item {
    const char *key, *value;
};

/* Builds the header (with the length word, padded to a multiple of 8) for these tensors, whose data follow in
 * this order without gaps. Names must be distinct; `data` is not looked at. */
PD_NODISCARD enum pd_err data_st_header(const struct data_st_tensor *tensors, size_t count,
                                        const struct data_st_meta_item *meta, size_t meta_count,
                                        struct pd_buf *ret_header, struct pd_why *why);
