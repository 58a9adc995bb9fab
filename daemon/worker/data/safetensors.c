/* daemon/worker/data/safetensors.c: see safetensors.h. JSON by jansson, which refuses duplicate keys and bad
 * UTF-8 for us; what remains is arithmetic, and every sum and product is checked. */
#include "daemon/worker/data/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/json.h"

struct data_st {
    const uint8_t *bytes;
    size_t len;
    bool mapped;
    json_t *header; /* owns the names and metadata */
    struct data_st_tensor *tensors;
    size_t count;
    struct data_st_meta_item *meta;
    size_t meta_count;
};

static const struct {
    const char *name;
    uint8_t size;
} dtypes[DATA_ST_DTYPE_COUNT] = {
    [DATA_ST_F64] = {"F64", 8},   [DATA_ST_F32] = {"F32", 4}, [DATA_ST_F16] = {"F16", 2},
    [DATA_ST_BF16] = {"BF16", 2}, [DATA_ST_I64] = {"I64", 8}, [DATA_ST_I32] = {"I32", 4},
    [DATA_ST_I16] = {"I16", 2},   [DATA_ST_I8] = {"I8", 1},   [DATA_ST_U8] = {"U8", 1},
    [DATA_ST_BOOL] = {"BOOL", 1},
};

size_t data_st_dtype_size(enum data_st_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *data_st_dtype_name(enum data_st_dtype dtype)
{
    return dtypes[dtype].name;
}

static int by_place(const void *a, const void *b)
{
    const struct data_st_tensor *x = a, *y = b;

    if (x->data != y->data)
        return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct data_st_meta_item *)a)->key, ((const struct data_st_meta_item *)b)->key);
}

static enum pd_err read_tensor(const char *name, json_t *j, const uint8_t *base, uint64_t size,
                               struct data_st_tensor *t, struct pd_why *why)
{
    json_t *dtype = json_object_get(j, "dtype"), *shape = json_object_get(j, "shape");
    json_t *offsets = json_object_get(j, "data_offsets");
    json_int_t begin, end;

    if (!json_is_object(j) || !json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) ||
        json_object_size(j) != 3)
        return pd_fail(why, PD_ERR_CORRUPT,
                       "safetensors: '%.80s' needs exactly dtype, shape and data_offsets", name);
    memset(t, 0, sizeof *t);
    t->name = name;
    t->dtype = DATA_ST_DTYPE_COUNT;
    for (int i = 0; i < DATA_ST_DTYPE_COUNT; i++)
        if (!strcmp(json_string_value(dtype), dtypes[i].name))
            t->dtype = (enum data_st_dtype)i;
    if (t->dtype == DATA_ST_DTYPE_COUNT)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "safetensors: '%.80s' has the unsupported type '%.20s'", name,
                       json_string_value(dtype));
    if (json_array_size(shape) > DATA_ST_RANK_LIMIT)
        return pd_fail(why, PD_ERR_LIMIT, "safetensors: '%.80s' has more than %d axes", name,
                       DATA_ST_RANK_LIMIT);
    t->rank = (int32_t)json_array_size(shape);
    t->count = 1;
    for (int32_t i = 0; i < t->rank; i++) {
        json_t *n = json_array_get(shape, (size_t)i);

        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' has an extent that is not an integer",
                           name);
        t->dim[i] = json_integer_value(n);
        if (__builtin_mul_overflow(t->count, (uint64_t)t->dim[i], &t->count))
            return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' has a shape that overflows", name);
    }
    if (__builtin_mul_overflow(t->count, (uint64_t)dtypes[t->dtype].size, &t->bytes))
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' has a shape that overflows", name);
    if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' has no pair of offsets", name);
    begin = json_integer_value(json_array_get(offsets, 0));
    end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t)end > size)
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' lies outside the file", name);
    if ((uint64_t)(end - begin) != t->bytes)
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' has %llu bytes; its shape requires %llu",
                       name, (unsigned long long)(end - begin), (unsigned long long)t->bytes);
    t->data = base + begin;
    return PD_OK;
}

static enum pd_err read_meta(struct data_st *st, json_t *j, struct pd_why *why)
{
    const char *key;
    json_t *value;

    if (!json_is_object(j))
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: __metadata__ is not an object");
    st->meta = calloc(json_object_size(j) + 1, sizeof *st->meta);
    if (!st->meta)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for metadata");
    json_object_foreach(j, key, value)
    {
        if (!json_is_string(value))
            return pd_fail(why, PD_ERR_CORRUPT, "safetensors: metadata '%.80s' is not a string", key);
        st->meta[st->meta_count++] = (struct data_st_meta_item){key, json_string_value(value)};
    }
    qsort(st->meta, st->meta_count, sizeof *st->meta, by_name);
    return PD_OK;
}

static enum pd_err parse(struct data_st *st, struct pd_why *why)
{
    uint64_t header_len = 0, size, at = 0;
    const uint8_t *base;
    json_error_t error;
    const char *name;
    json_t *value;
    enum pd_err err;

    if (st->len < 8)
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: the file is shorter than its length field");
    for (int i = 7; i >= 0; i--)
        header_len = header_len << 8 | st->bytes[i];
    if (header_len > DATA_ST_HEADER_LIMIT)
        return pd_fail(why, PD_ERR_LIMIT, "safetensors: the header of %llu bytes exceeds the limit",
                       (unsigned long long)header_len);
    if (header_len > st->len - 8)
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: the header exceeds the file");
    if (!header_len || st->bytes[8] != '{')
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: header does not begin with '{'");
    st->header = json_loadb((const char *)st->bytes + 8, (size_t)header_len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(st->header))
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: header: %.200s",
                       st->header ? "not an object" : error.text);
    if (json_object_size(st->header) > DATA_ST_TENSOR_LIMIT)
        return pd_fail(why, PD_ERR_LIMIT, "safetensors: more than %d tensors", DATA_ST_TENSOR_LIMIT);
    base = st->bytes + 8 + header_len;
    size = st->len - 8 - header_len;
    st->tensors = calloc(json_object_size(st->header) + 1, sizeof *st->tensors);
    if (!st->tensors)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu tensors", json_object_size(st->header));
    json_object_foreach(st->header, name, value)
    {
        if (!strcmp(name, "__metadata__"))
            err = read_meta(st, value, why);
        else
            err = read_tensor(name, value, base, size, &st->tensors[st->count++], why);
        if (err != PD_OK)
            return err;
    }
    qsort(st->tensors, st->count, sizeof *st->tensors, by_place);
    for (size_t i = 0; i < st->count; i++) {
        const struct data_st_tensor *t = &st->tensors[i];

        if (t->data != base + at)
            return pd_fail(why, PD_ERR_CORRUPT, "safetensors: '%.80s' %s", t->name,
                           (const uint8_t *)t->data < base + at ? "overlaps another tensor"
                                                                : "leaves a gap before it");
        at += t->bytes;
    }
    if (at != size)
        return pd_fail(why, PD_ERR_CORRUPT, "safetensors: %llu bytes after the last tensor",
                       (unsigned long long)(size - at));
    return PD_OK;
}

enum pd_err data_st_parse(const void *bytes, size_t len, struct data_st **ret, struct pd_why *why)
{
    struct data_st *st = calloc(1, sizeof *st);
    enum pd_err err;

    if (!st)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a safetensors reader");
    st->bytes = bytes;
    st->len = len;
    err = parse(st, why);
    if (err != PD_OK) {
        data_st_free(st);
        return err;
    }
    *ret = st;
    return PD_OK;
}

enum pd_err data_st_open_fd(int fd, const char *name, struct data_st **ret, struct pd_why *why)
{
    struct data_st *st = NULL;
    struct stat s;
    void *map;
    enum pd_err err;

    if (fstat(fd, &s) != 0)
        return pd_fail_errno(why, errno, "cannot stat '%s'", name);
    if (!S_ISREG(s.st_mode) || s.st_size < 8)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' is not a safetensors file", name);
    map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return pd_fail_errno(why, errno, "cannot map '%s'", name);
    err = data_st_parse(map, (size_t)s.st_size, &st, why);
    if (err != PD_OK) {
        munmap(map, (size_t)s.st_size);
        return err;
    }
    st->mapped = true; /* the reader owns the map */
    *ret = st;
    return PD_OK;
}

enum pd_err data_st_open(const char *path, struct data_st **ret, struct pd_why *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum pd_err err;

    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    err = data_st_open_fd(fd, path, ret, why);
    close(fd);
    return err;
}

struct data_st *data_st_free(struct data_st *st)
{
    if (st) {
        if (st->mapped)
            munmap((void *)st->bytes, st->len);
        json_decref(st->header);
        free(st->tensors);
        free(st->meta);
        free(st);
    }
    return NULL;
}

size_t data_st_count(const struct data_st *st)
{
    return st->count;
}

const struct data_st_tensor *data_st_at(const struct data_st *st, size_t i)
{
    return &st->tensors[i];
}

const struct data_st_tensor *data_st_find(const struct data_st *st, const char *name)
{
    for (size_t i = 0; i < st->count; i++)
        if (!strcmp(st->tensors[i].name, name))
            return &st->tensors[i];
    return NULL;
}

size_t data_st_meta_count(const struct data_st *st)
{
    return st->meta_count;
}

const char *data_st_meta_at(const struct data_st *st, size_t i, const char **ret_value)
{
    *ret_value = st->meta[i].value;
    return st->meta[i].key;
}

const char *data_st_meta(const struct data_st *st, const char *key)
{
    struct data_st_meta_item wanted = {key, NULL}, *found;

    if (!st->meta_count)
        return NULL;
    found = bsearch(&wanted, st->meta, st->meta_count, sizeof *st->meta, by_name);
    return found ? found->value : NULL;
}

const void *data_st_bytes(const struct data_st *st, size_t *ret_len)
{
    *ret_len = st->len;
    return st->bytes;
}

static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits;
    float f;

    if (exponent == 31) {
        bits = sign | 0x7f800000u | fraction << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        f = (float)fraction * 0x1p-24f; /* subnormal, exact in f32 */
        return sign ? -f : f;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* One element as double; -1 for types that are not numbers of ours. */
static bool element(const struct data_st_tensor *t, uint64_t i, double *ret)
{
    const uint8_t *p = (const uint8_t *)t->data + i * dtypes[t->dtype].size;
    int64_t whole;
    uint16_t h;
    uint32_t w;
    float f;

    switch (t->dtype) {
    case DATA_ST_F64:
        memcpy(ret, p, 8);
        return true;
    case DATA_ST_F32:
        memcpy(&f, p, 4);
        *ret = f;
        return true;
    case DATA_ST_F16:
        memcpy(&h, p, 2);
        *ret = half_to_float(h);
        return true;
    case DATA_ST_BF16:
        memcpy(&h, p, 2);
        w = (uint32_t)h << 16;
        memcpy(&f, &w, 4);
        *ret = f;
        return true;
    case DATA_ST_I64:
        memcpy(&whole, p, 8);
        *ret = (double)whole;
        return true;
    case DATA_ST_I32:
        memcpy(&w, p, 4);
        *ret = (int32_t)w;
        return true;
    default:
        return false;
    }
}

static enum pd_err readable(const struct data_st_tensor *t, uint64_t count, struct pd_why *why)
{
    double x;

    if (t->count != count)
        return pd_fail(why, PD_ERR_INVALID, "'%.80s' has %llu elements, %llu are required", t->name,
                       (unsigned long long)t->count, (unsigned long long)count);
    if (count && !element(t, 0, &x))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "'%.80s' is %s, neither floating point nor a 32- or 64-bit integer", t->name,
                       dtypes[t->dtype].name);
    return PD_OK;
}

enum pd_err data_st_read_f32(const struct data_st_tensor *t, float *to, uint64_t count, struct pd_why *why)
{
    enum pd_err err = readable(t, count, why);
    double x = 0;

    if (err != PD_OK || !count)
        return err;
    if (t->dtype == DATA_ST_F32)
        memcpy(to, t->data, (size_t)t->bytes);
    else
        for (uint64_t i = 0; i < count; i++) {
            (void)element(t, i, &x);
            to[i] = (float)x;
        }
    return PD_OK;
}

enum pd_err data_st_read_f64(const struct data_st_tensor *t, double *to, uint64_t count, struct pd_why *why)
{
    enum pd_err err = readable(t, count, why);

    for (uint64_t i = 0; err == PD_OK && i < count; i++)
        (void)element(t, i, &to[i]);
    return err;
}

/* Appends the text as a JSON string. */
/* Appends a key, or a string; false if it is not UTF-8, of which readers of the format refuse a file. */
static bool put_text(struct pd_buf *b, const char *text, void (*put)(struct pd_buf *, const char *))
{
    size_t len = strlen(text), step = 1;

    for (size_t i = 0; i < len && step; i += step)
        step = pd_utf8_step(text + i, len - i);
    put(b, text);
    return step != 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum pd_err check_names(const struct data_st_tensor *tensors, size_t count, struct pd_why *why)
{
    const char **names = calloc(count + 1, sizeof *names);
    enum pd_err err = PD_OK;

    if (!names)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu names", count);
    for (size_t i = 0; i < count; i++)
        names[i] = tensors[i].name;
    qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count && err == PD_OK; i++)
        if (!strcmp(names[i], "__metadata__") || (i && !strcmp(names[i], names[i - 1])))
            err = pd_fail(why, PD_ERR_INVALID, "safetensors: the name '%.80s' occurs twice", names[i]);
    free(names);
    return err;
}

enum pd_err data_st_header(const struct data_st_tensor *tensors, size_t count,
                           const struct data_st_meta_item *meta, size_t meta_count, struct pd_buf *ret_header,
                           struct pd_why *why)
{
    struct pd_buf b;
    uint64_t at = 0;
    uint8_t word[8];
    bool good = true;
    enum pd_err err = check_names(tensors, count, why);

    if (err != PD_OK)
        return err;
    pd_buf_init(&b, DATA_ST_HEADER_LIMIT);
    pd_json_open(&b, '{');
    if (meta_count) {
        pd_json_key(&b, "__metadata__");
        pd_json_open(&b, '{');
        for (size_t i = 0; i < meta_count; i++) {
            good &= put_text(&b, meta[i].key, pd_json_key);
            good &= put_text(&b, meta[i].value, pd_json_str);
        }
        pd_json_close(&b, '}');
    }
    for (size_t i = 0; i < count; i++) {
        const struct data_st_tensor *t = &tensors[i];
        uint64_t n = 1;

        for (int32_t k = 0; k < t->rank; k++)
            if (t->dim[k] < 0 || __builtin_mul_overflow(n, (uint64_t)t->dim[k], &n)) {
                err = pd_fail(why, PD_ERR_INVALID, "safetensors: '%.80s' has an invalid shape", t->name);
                goto out;
            }
        n *= dtypes[t->dtype].size;
        good &= put_text(&b, t->name, pd_json_key);
        pd_json_open(&b, '{');
        pd_json_kv_str(&b, "dtype", dtypes[t->dtype].name);
        pd_json_key(&b, "shape");
        pd_json_open(&b, '[');
        for (int32_t k = 0; k < t->rank; k++)
            pd_json_int(&b, t->dim[k]);
        pd_json_close(&b, ']');
        pd_json_key(&b, "data_offsets");
        pd_json_open(&b, '[');
        pd_json_uint(&b, at);
        pd_json_uint(&b, at + n);
        pd_json_close(&b, ']');
        pd_json_close(&b, '}');
        at += n;
    }
    pd_json_close(&b, '}');
    while (b.len % 8 && !b.failed)
        pd_buf_str(&b, " ");
    if (!good) {
        err = pd_fail(why, PD_ERR_INVALID, "safetensors: a name or metadata is not UTF-8");
        goto out;
    }
    err = pd_buf_err(&b);
    if (err != PD_OK) {
        (void)pd_fail(why, err, "safetensors: the header exceeds the limit");
        goto out;
    }
    for (int i = 0; i < 8; i++)
        word[i] = (uint8_t)((uint64_t)b.len >> 8 * i);
    pd_buf_append(ret_header, word, 8);
    pd_buf_append(ret_header, b.data, b.len);
    err = pd_buf_err(ret_header);
out:
    pd_buf_done(&b);
    return err;
}
