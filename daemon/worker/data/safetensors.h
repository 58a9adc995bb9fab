/* daemon/worker/data/safetensors.h: reads and writes safetensors files.
 *
 * A file is an 8-byte little-endian header length, a JSON header, and little-endian row-major data. The reader rejects
 * duplicate names, sizes that do not match shape and type, ranges that overlap, leave gaps or exceed the file, and
 * shapes whose product overflows (PD_ERR_CORRUPT), unknown element types (PD_ERR_UNSUPPORTED) and files beyond the limits
 * below (PD_ERR_LIMIT). */
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
    const void *data; /* not aligned; NULL if only the header was read */
};

struct data_st;

/* Parses a file in memory, which must outlive *ret. The caller owns *ret. */
PD_NODISCARD enum pd_err data_st_parse(const void *bytes, size_t len, struct data_st **ret,
                                       struct pd_why *why);
/* Maps the file read-only and parses it. */
PD_NODISCARD enum pd_err data_st_open(const char *path, struct data_st **ret, struct pd_why *why);
/* The same for an open file; the caller keeps `fd`. `name` is for messages. */
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

/* Converts a tensor of F64, F32, F16, BF16, I64 or I32 to f32 or f64. PD_ERR_INVALID: it has not `count` elements;
 * PD_ERR_UNSUPPORTED: another element type. */
PD_NODISCARD enum pd_err data_st_read_f32(const struct data_st_tensor *t, float *to, uint64_t count,
                                          struct pd_why *why);
PD_NODISCARD enum pd_err data_st_read_f64(const struct data_st_tensor *t, double *to, uint64_t count,
                                          struct pd_why *why);

size_t data_st_dtype_size(enum data_st_dtype dtype);
const char *data_st_dtype_name(enum data_st_dtype dtype);

struct data_st_meta_item {
    const char *key, *value;
};

/* Builds the header (length field included, padded to a multiple of 8 bytes) of a file with these tensors, whose data
 * follow in this order without gaps. Names must be distinct; `data` is not read. */
PD_NODISCARD enum pd_err data_st_header(const struct data_st_tensor *tensors, size_t count,
                                        const struct data_st_meta_item *meta, size_t meta_count,
                                        struct pd_buf *ret_header, struct pd_why *why);
