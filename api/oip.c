#include "api/oip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "api/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors cross the wire as they lie in memory");

enum kind { KIND_BOOL, KIND_SIGNED, KIND_UNSIGNED, KIND_HALF, KIND_FLOAT, KIND_BYTES };

struct dtype {
    const char *name;
    int size;
    enum kind kind;
};

static const struct dtype dtypes[] = {
    {"BOOL", 1, KIND_BOOL},       {"UINT8", 1, KIND_UNSIGNED},  {"UINT16", 2, KIND_UNSIGNED},
    {"UINT32", 4, KIND_UNSIGNED}, {"UINT64", 8, KIND_UNSIGNED}, {"INT8", 1, KIND_SIGNED},
    {"INT16", 2, KIND_SIGNED},    {"INT32", 4, KIND_SIGNED},    {"INT64", 8, KIND_SIGNED},
    {"FP16", 2, KIND_HALF},       {"BF16", 2, KIND_HALF},       {"FP32", 4, KIND_FLOAT},
    {"FP64", 8, KIND_FLOAT},      {"BYTES", 0, KIND_BYTES},
};

static const struct dtype *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

int api_oip_dtype_size(const char *dtype)
{
    const struct dtype *d = dtype_find(dtype);

    return d ? d->size : -1;
}

bool api_oip_bytes(const int64_t *shape, uint32_t rank, size_t size, size_t *ret)
{
    size_t total = size;
    bool empty = false;

    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return false;
        empty = empty || shape[i] == 0;
    }
    for (uint32_t i = 0; i < rank && !empty; i++)
        if (__builtin_mul_overflow(total, (size_t)shape[i], &total))
            return false;
    *ret = empty ? 0 : total;
    return true;
}

bool api_oip_bytes_valid(const uint8_t *bytes, size_t len, uint64_t count)
{
    while (count--) {
        uint32_t n;

        if (len < 4)
            return false;
        memcpy(&n, bytes, 4);
        if (n > len - 4)
            return false;
        bytes += 4 + n;
        len -= 4 + (size_t)n;
    }
    return len == 0;
}

/* ---- request ---------------------------------------------------------------------------------- */

/* How many leaves the nested arrays have. */
static bool count_leaves(const json_t *data, int depth, size_t *count)
{
    size_t i;
    json_t *item;

    if (!json_is_array(data)) {
        (*count)++;
        return true;
    }
    if (depth > (int)WIRE_RANK_MAX)
        return false;
    json_array_foreach(data, i, item) if (!count_leaves(item, depth + 1, count)) return false;
    return true;
}

/* Bytes that the leaves of a BYTES input need, and how many there are; false at the first that is no text. */
static bool bytes_needed(const json_t *data, size_t *total, size_t *count)
{
    size_t i;
    json_t *item;

    if (json_is_array(data)) {
        json_array_foreach(data, i, item) if (!bytes_needed(item, total, count)) return false;
        return true;
    }
    if (!json_is_string(data))
        return false;
    (*count)++;
    *total += 4 + json_string_length(data);
    return true;
}

static bool put_leaf(const json_t *leaf, const struct dtype *d, uint8_t **at)
{
    switch (d->kind) {
    case KIND_BOOL:
        if (!json_is_boolean(leaf) && !(json_is_integer(leaf) && (json_integer_value(leaf) | 1) == 1))
            return false;
        **at = json_is_boolean(leaf) ? json_is_true(leaf) : json_integer_value(leaf) != 0;
        break;
    case KIND_SIGNED: {
        json_int_t value = json_integer_value(leaf);
        json_int_t high = (json_int_t)(UINT64_MAX >> (65 - d->size * 8));

        if (!json_is_integer(leaf) || value > high || value < -high - 1)
            return false;
        memcpy(*at, &value, (size_t)d->size);
        break;
    }
    case KIND_UNSIGNED: {
        json_int_t value = json_integer_value(leaf);

        if (!json_is_integer(leaf) || value < 0 || (uint64_t)value > UINT64_MAX >> (64 - d->size * 8))
            return false;
        memcpy(*at, &value, (size_t)d->size);
        break;
    }
    case KIND_FLOAT: {
        double value = json_number_value(leaf);
        float single = (float)value;

        if (!json_is_number(leaf) || (d->size == 4 && !isfinite(single)))
            return false;
        if (d->size == 4)
            memcpy(*at, &single, 4);
        else
            memcpy(*at, &value, 8);
        break;
    }
    case KIND_BYTES: {
        uint32_t n = (uint32_t)json_string_length(leaf);

        memcpy(*at, &n, 4);
        memcpy(*at + 4, json_string_value(leaf), n);
        *at += 4 + n;
        return true;
    }
    case KIND_HALF:
        return false;
    }
    *at += d->size;
    return true;
}

static bool put_leaves(const json_t *data, const struct dtype *d, uint8_t **at)
{
    size_t i;
    json_t *item;

    if (!json_is_array(data))
        return put_leaf(data, d, at);
    json_array_foreach(data, i, item) if (!put_leaves(item, d, at)) return false;
    return true;
}

/* Name, datatype, shape and the number of bytes; nothing is allocated yet. `json_data` gets the member data.
 */
static enum pd_err read_input(const json_t *input, uint32_t index, bool binary_body, struct wire_tensor *t,
                              const json_t **ret_data, struct pd_why *why)
{
    const json_t *shape = json_object_get(input, "shape"), *data = json_object_get(input, "data");
    const json_t *params = json_object_get(input, "parameters"), *size_member, *param_value;
    const char *name = json_string_value(json_object_get(input, "name"));
    const char *datatype = json_string_value(json_object_get(input, "datatype"));
    const char *param_name;
    const struct dtype *d;
    size_t count, elements, bytes = 0;

    if (!json_is_object(input) || !name || !*name || strlen(name) > WIRE_NAME_MAX)
        return pd_fail(why, PD_ERR_INVALID, "input %u needs a name of 1 to %d bytes", index, WIRE_NAME_MAX);
    if (!datatype || !(d = dtype_find(datatype)))
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': datatype is missing or unknown", name);
    if (!json_is_array(shape) || json_array_size(shape) > WIRE_RANK_MAX)
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': shape must be an array of at most %d numbers",
                       name, WIRE_RANK_MAX);
    strcpy(t->name, name);
    strcpy(t->dtype, datatype);
    t->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(shape, i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return pd_fail(why, PD_ERR_INVALID, "input '%.100s': shape must be a list of sizes", name);
        t->shape[i] = json_integer_value(dim);
    }
    if (!api_oip_bytes(t->shape, t->rank, 1, &elements) ||
        !api_oip_bytes(t->shape, t->rank, d->size ? (size_t)d->size : 1, &bytes))
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': the shape overflows", name);
    if (params && !json_is_object(params))
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': parameters must be an object", name);
    json_object_foreach((json_t *)(uintptr_t)params, param_name,
                        param_value) if (strcmp(param_name, "binary_data_size") !=
                                         0) return pd_fail(why, PD_ERR_INVALID,
                                                           "input '%.100s': unknown parameter '%.60s'", name,
                                                           param_name);
    size_member = json_object_get(params, "binary_data_size");
    if (size_member) {
        json_int_t n = json_integer_value(size_member);

        if (!binary_body)
            return pd_fail(why, PD_ERR_INVALID,
                           "input '%.100s': binary_data_size without Inference-Header-Content-Length", name);
        if (data)
            return pd_fail(why, PD_ERR_INVALID, "input '%.100s' has both data and binary_data_size", name);
        if (!json_is_integer(size_member) || n < 0)
            return pd_fail(why, PD_ERR_INVALID, "input '%.100s': binary_data_size must be a number of bytes",
                           name);
        if (d->size && (size_t)n != bytes)
            return pd_fail(why, PD_ERR_INVALID,
                           "input '%.100s': binary_data_size is %lld, its shape needs %zu", name,
                           (long long)n, bytes);
        if (!d->size && (size_t)n / 4 < elements)
            return pd_fail(why, PD_ERR_INVALID, "input '%.100s': %lld bytes cannot hold %zu elements", name,
                           (long long)n, elements);
        t->bytes = (size_t)n;
        *ret_data = NULL;
        return PD_OK;
    }
    if (!json_is_array(data) && (d->size || !json_is_string(data)))
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s' needs data, an array%s", name,
                       d->size ? "" : ", or one text");
    if (d->kind == KIND_HALF)
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': %s can only be sent as binary data", name,
                       d->name);
    count = 0;
    if (!count_leaves(data, 0, &count) || count != elements)
        return pd_fail(why, PD_ERR_INVALID, "input '%.100s': data has %zu elements, its shape needs %zu",
                       name, count, elements);
    if (!d->size) {
        bytes = count = 0;
        if (!bytes_needed(data, &bytes, &count))
            return pd_fail(why, PD_ERR_INVALID, "input '%.100s': element %zu of BYTES is not a text", name,
                           count);
    }
    t->bytes = bytes;
    *ret_data = data;
    return PD_OK;
}

static enum pd_err read_outputs(const json_t *outputs, struct api_oip_request *q, struct pd_why *why)
{
    size_t i;
    json_t *item;

    if (!outputs)
        return PD_OK;
    if (!json_is_array(outputs) || json_array_size(outputs) > API_OIP_OUTPUTS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "outputs must be an array of at most %d", API_OIP_OUTPUTS_MAX);
    q->outputs_given = json_array_size(outputs) > 0;
    json_array_foreach(outputs, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name")), *key;
        json_t *params = json_object_get(item, "parameters"), *value;
        struct api_oip_output *o = &q->outputs[q->output_count];

        if (!name || !*name || strlen(name) > WIRE_NAME_MAX)
            return pd_fail(why, PD_ERR_INVALID, "output %zu needs a name of 1 to %d bytes", i, WIRE_NAME_MAX);
        for (uint32_t k = 0; k < q->output_count; k++)
            if (strcmp(q->outputs[k].name, name) == 0)
                return pd_fail(why, PD_ERR_INVALID, "output '%.100s' is requested twice", name);
        if (params && !json_is_object(params))
            return pd_fail(why, PD_ERR_INVALID, "output '%.100s': parameters must be an object", name);
        strcpy(o->name, name);
        o->binary = q->binary_all;
        json_object_foreach(params, key, value)
        {
            if (strcmp(key, "binary_data") != 0)
                return pd_fail(why, PD_ERR_INVALID, "output '%.100s': unknown parameter '%.60s'", name, key);
            if (!json_is_boolean(value))
                return pd_fail(why, PD_ERR_INVALID, "output '%.100s': binary_data must be true or false",
                               name);
            o->binary = json_is_true(value);
        }
        q->output_count++;
    }
    return PD_OK;
}

static enum pd_err read_params(json_t *params, struct api_oip_request *q, struct pd_why *why)
{
    const char *key;
    json_t *value;

    if (params && !json_is_object(params))
        return pd_fail(why, PD_ERR_INVALID, "parameters must be an object");
    json_object_foreach(params, key, value)
    {
        if (strcmp(key, "binary_data_output") == 0) {
            if (!json_is_boolean(value))
                return pd_fail(why, PD_ERR_INVALID, "binary_data_output must be true or false");
            q->binary_all = json_is_true(value);
        } else if (strcmp(key, "timeout") == 0) {
            if (!json_is_integer(value) || json_integer_value(value) < 1 ||
                json_integer_value(value) > INT64_C(3600000000))
                return pd_fail(why, PD_ERR_INVALID, "timeout must be 1 to 3600000000 microseconds");
            q->timeout_us = json_integer_value(value);
        } else {
            return pd_fail(why, PD_ERR_INVALID,
                           "unknown parameter '%.60s' (timeout and binary_data_output are known)", key);
        }
    }
    return PD_OK;
}

enum pd_err api_oip_parse(const char *body, size_t len, int64_t header_len, struct api_oip_request *ret,
                          struct pd_why *why)
{
    size_t json_len = header_len >= 0 ? (size_t)header_len : len, binary = 0, allocated = 0, at;
    const json_t *data[WIRE_TENSORS_MAX] = {NULL};
    struct api_oip_request q = {.count = 0};
    json_t *root = NULL, *inputs, *id;
    json_error_t error;
    uint8_t *out;
    enum pd_err err;

    if (json_len > len)
        return pd_fail(why, PD_ERR_INVALID, "Inference-Header-Content-Length is %zu, the body has %zu bytes",
                       json_len, len);
    root = json_loadb(body ? body : "", json_len, JSON_REJECT_DUPLICATES, &error);
    if (!root && api_json_no_memory(&error))
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the request");
    if (!root)
        return pd_fail(why, PD_ERR_CORRUPT, "the request is not JSON: %.200s (line %d)",
                       api_json_fault(&error), error.line);
    inputs = json_object_get(root, "inputs");
    id = json_object_get(root, "id");
    if (!json_is_object(root) || !json_is_array(inputs) || json_array_size(inputs) > WIRE_TENSORS_MAX ||
        json_array_size(inputs) == 0) {
        err = pd_fail(why, PD_ERR_INVALID, "the request needs inputs, an array of 1 to %d", WIRE_TENSORS_MAX);
        goto out;
    }
    if (id && (!json_is_string(id) || json_string_length(id) > 256)) {
        err = pd_fail(why, PD_ERR_INVALID, "id must be a text of at most 256 bytes");
        goto out;
    }
    err = read_params(json_object_get(root, "parameters"), &q, why);
    if (err == PD_OK)
        err = read_outputs(json_object_get(root, "outputs"), &q, why);
    if (err != PD_OK)
        goto out;
    q.tensors = calloc(json_array_size(inputs), sizeof *q.tensors);
    if (!q.tensors) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the request");
        goto out;
    }
    for (q.count = 0; q.count < json_array_size(inputs); q.count++) {
        struct wire_tensor *t = &q.tensors[q.count];

        err = read_input(json_array_get(inputs, q.count), q.count, header_len >= 0, t, &data[q.count], why);
        if (err != PD_OK)
            goto out;
        for (uint32_t k = 0; k < q.count; k++) {
            if (strcmp(q.tensors[k].name, t->name) == 0) {
                err = pd_fail(why, PD_ERR_INVALID, "input '%.100s' is there twice", t->name);
                goto out;
            }
        }
        if (__builtin_add_overflow(data[q.count] ? allocated : binary, t->bytes,
                                   data[q.count] ? &allocated : &binary)) {
            err = pd_fail(why, PD_ERR_INVALID, "the inputs' sizes overflow");
            goto out;
        }
    }
    if (binary != len - json_len) {
        err = pd_fail(why, PD_ERR_INVALID, "the binary inputs need %zu bytes, %zu follow the JSON", binary,
                      len - json_len);
        goto out;
    }
    q.data = malloc(allocated ? allocated : 1);
    if (!q.data || (id && !(q.id = strdup(json_string_value(id))))) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the request");
        goto out;
    }
    out = q.data;
    at = json_len;
    for (uint32_t i = 0; i < q.count; i++) {
        struct wire_tensor *t = &q.tensors[i];
        const struct dtype *d = dtype_find(t->dtype);

        if (data[i]) {
            t->data = out;
            if (!put_leaves(data[i], d, &out)) {
                err =
                    pd_fail(why, PD_ERR_INVALID, "input '%.100s': an element is not a %s", t->name, t->dtype);
                goto out;
            }
            continue;
        }
        t->data = body + at;
        at += t->bytes;
        if (d->kind == KIND_BYTES) {
            size_t elements;

            if (!api_oip_bytes(t->shape, t->rank, 1, &elements) ||
                !api_oip_bytes_valid(t->data, t->bytes, elements)) {
                err = pd_fail(why, PD_ERR_INVALID, "input '%.100s': the elements' lengths do not add up",
                              t->name);
                goto out;
            }
        }
        for (size_t k = 0; d->kind == KIND_BOOL && k < t->bytes; k++) {
            if (((const uint8_t *)t->data)[k] > 1) {
                err = pd_fail(why, PD_ERR_INVALID, "input '%.100s': a BOOL is neither 0 nor 1", t->name);
                goto out;
            }
        }
    }
    *ret = q;
    q = (struct api_oip_request){.count = 0}; /* moved to the caller */
out:
    api_oip_request_done(&q);
    json_decref(root);
    return err;
}

enum pd_err api_oip_picture(const char *body, size_t len, struct api_oip_request *ret, struct pd_why *why)
{
    struct api_oip_request q = {.count = 1};
    uint32_t n = (uint32_t)len;
    uint8_t *data;

    if (len == 0 || len > UINT32_MAX)
        return pd_fail(why, PD_ERR_INVALID, "the body has no picture");
    q.tensors = calloc(1, sizeof *q.tensors);
    q.data = data = malloc(4 + len);
    if (!q.tensors || !data) {
        api_oip_request_done(&q);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a picture of %zu bytes", len);
    }
    memcpy(data, &n, 4);
    memcpy(data + 4, body, len);
    q.tensors[0] = (struct wire_tensor){
        .name = "image", .dtype = "BYTES", .rank = 1, .shape = {1}, .data = data, .bytes = 4 + len};
    *ret = q;
    return PD_OK;
}

void api_oip_request_done(struct api_oip_request *q)
{
    free(q->id);
    free(q->tensors);
    free(q->data);
    q->id = NULL;
    q->tensors = NULL;
    q->data = NULL;
}

void api_oip_params(const struct api_oip_request *q, struct pd_buf *out)
{
    api_json_open(out, '{');
    if (q->outputs_given) {
        api_json_key(out, "outputs");
        api_json_open(out, '[');
        for (uint32_t i = 0; i < q->output_count; i++)
            api_json_str(out, q->outputs[i].name);
        api_json_close(out, ']');
    }
    api_json_close(out, '}');
}

/* ---- reply ------------------------------------------------------------------------------------ */

static bool json_element(struct pd_buf *b, const struct dtype *d, const uint8_t *at)
{
    switch (d->kind) {
    case KIND_BOOL:
        api_json_bool(b, *at != 0);
        return true;
    case KIND_SIGNED: {
        int64_t value = 0;

        memcpy(&value, at, (size_t)d->size);
        /* Sign-extend from the element's width. */
        value = (int64_t)((uint64_t)value << (64 - d->size * 8)) >> (64 - d->size * 8);
        api_json_int(b, value);
        return true;
    }
    case KIND_UNSIGNED: {
        uint64_t value = 0;

        memcpy(&value, at, (size_t)d->size);
        api_json_uint(b, value);
        return true;
    }
    case KIND_FLOAT: {
        float single;
        double value;

        if (d->size == 4) {
            memcpy(&single, at, 4);
            if (!isfinite(single))
                return false;
            api_json_num32(b, single);
        } else {
            memcpy(&value, at, 8);
            if (!isfinite(value))
                return false;
            api_json_num(b, value);
        }
        return true;
    }
    case KIND_HALF:
    case KIND_BYTES:
        break;
    }
    return false;
}

static enum pd_err json_data(struct pd_buf *b, const struct wire_tensor *t, const struct dtype *d,
                             struct pd_why *why)
{
    const uint8_t *at = t->data, *end = at + t->bytes;

    api_json_key(b, "data");
    api_json_open(b, '[');
    if (d->kind == KIND_HALF)
        return pd_fail(why, PD_ERR_INTERNAL, "output '%.100s' is %s: ask for it as binary data", t->name,
                       t->dtype);
    while (at < end) {
        if (d->kind == KIND_BYTES) {
            uint32_t n;

            memcpy(&n, at, 4);
            api_json_strn(b, (const char *)at + 4, n);
            at += 4 + n;
        } else {
            if (!json_element(b, d, at))
                return pd_fail(why, PD_ERR_INTERNAL,
                               "output '%.100s' has a NaN or an infinity, which JSON cannot represent: "
                               "request binary data",
                               t->name);
            at += d->size;
        }
    }
    api_json_close(b, ']');
    return PD_OK;
}

static bool tensor_sound(const struct wire_tensor *t, const struct dtype *d)
{
    size_t elements, bytes;

    if (!d || !api_oip_bytes(t->shape, t->rank, 1, &elements))
        return false;
    if (d->kind == KIND_BYTES)
        return api_oip_bytes_valid(t->data, t->bytes, elements);
    return api_oip_bytes(t->shape, t->rank, (size_t)d->size, &bytes) && bytes == t->bytes;
}

enum pd_err api_oip_reply(const struct api_oip_request *q, const char *model, int64_t version,
                          const char *parameters, const struct wire_tensor *tensors, uint32_t count,
                          struct pd_buf *out, size_t *ret_header_len, struct pd_why *why)
{
    uint32_t n = q->outputs_given ? q->output_count : count;
    const struct wire_tensor *chosen[WIRE_TENSORS_MAX];
    bool binary[WIRE_TENSORS_MAX], any = false;
    size_t before = out->len;
    enum pd_err err = PD_OK;

    for (uint32_t i = 0; i < n; i++) {
        chosen[i] = q->outputs_given ? NULL : &tensors[i];
        for (uint32_t k = 0; k < count && !chosen[i]; k++)
            if (strcmp(tensors[k].name, q->outputs[i].name) == 0)
                chosen[i] = &tensors[k];
        if (!chosen[i])
            return pd_fail(why, PD_ERR_INVALID, "the model has no output '%.100s'", q->outputs[i].name);
        if (!tensor_sound(chosen[i], dtype_find(chosen[i]->dtype)))
            return pd_fail(why, PD_ERR_INTERNAL, "the worker's output '%.100s' does not fit its shape",
                           chosen[i]->name);
        binary[i] = q->outputs_given ? q->outputs[i].binary : q->binary_all;
        any = any || binary[i];
    }
    api_json_open(out, '{');
    api_json_kv_str(out, "model_name", model);
    api_json_kv_id(out, "model_version", version);
    if (q->id)
        api_json_kv_str(out, "id", q->id);
    if (*parameters) {
        api_json_key(out, "parameters");
        api_json_raw(out, parameters);
    }
    api_json_key(out, "outputs");
    api_json_open(out, '[');
    for (uint32_t i = 0; i < n && err == PD_OK; i++) {
        const struct wire_tensor *t = chosen[i];

        api_json_open(out, '{');
        api_json_kv_str(out, "name", t->name);
        api_json_key(out, "shape");
        api_json_open(out, '[');
        for (uint32_t k = 0; k < t->rank; k++)
            api_json_int(out, t->shape[k]);
        api_json_close(out, ']');
        api_json_kv_str(out, "datatype", t->dtype);
        if (binary[i]) {
            api_json_key(out, "parameters");
            api_json_open(out, '{');
            api_json_kv_int(out, "binary_data_size", (int64_t)t->bytes);
            api_json_close(out, '}');
        } else {
            err = json_data(out, t, dtype_find(t->dtype), why);
        }
        api_json_close(out, '}');
    }
    api_json_close(out, ']');
    api_json_close(out, '}');
    if (err != PD_OK)
        return err;
    *ret_header_len = any ? out->len - before : 0;
    for (uint32_t i = 0; i < n; i++)
        if (binary[i])
            pd_buf_append(out, chosen[i]->data, chosen[i]->bytes);
    return PD_OK;
}

void api_oip_fuzz(const uint8_t *bytes, size_t len)
{
    for (int whole = 0; whole < 2; whole++) {
        /* The first two bytes choose where the JSON ends. */
        int64_t header = whole || len < 2 ? -1 : (int64_t)(bytes[0] | bytes[1] << 8);
        size_t skip = header < 0 ? 0 : 2, header_len;
        struct api_oip_request q;
        struct pd_buf b;

        if (api_oip_parse((const char *)bytes + skip, len - skip, header, &q, NULL) != PD_OK)
            continue;
        pd_buf_init(&b, 0);
        api_oip_params(&q, &b);
        b.len = 0;
        /* What was read can be written again. */
        if (api_oip_reply(&q, "m", 1, "", q.tensors, q.count, &b, &header_len, NULL) == PD_OK &&
            header_len > b.len)
            abort();
        pd_buf_done(&b);
        api_oip_request_done(&q);
    }
}
