/* api/oip.h: the Open Inference Protocol's requests and replies, JSON and binary, as functions of bytes.
 *
 * All sizes are checked before tensors are allocated: they are products with overflow checks and must match
 * the received bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/wire/wire.h"
#include "kernels/base/buf.h"

#define API_OIP_OUTPUTS_MAX 32

struct api_oip_output {
    char name[WIRE_NAME_MAX + 1];
    bool binary;
};

struct api_oip_request {
    char *id; /* NULL = none; owned */
    uint32_t count;
    struct wire_tensor *tensors; /* owned; data in the body (binary) or in `data` */
    void *data;                  /* owned */
    bool outputs_given;          /* else all outputs */
    uint32_t output_count;
    struct api_oip_output outputs[API_OIP_OUTPUTS_MAX];
    bool binary_all;    /* binary for outputs without a setting of their own */
    int64_t timeout_us; /* 0 = not given */
};

/* Bytes of one element; 0 for BYTES (variable), -1 for an unknown name. */
int api_oip_dtype_size(const char *dtype);

/* product(shape) * size with overflow checks; false if it does not fit size_t or a dimension is negative. */
bool api_oip_bytes(const int64_t *shape, uint32_t rank, size_t size, size_t *ret);

/* Whether the `len` bytes are `count` elements, each a uint32 LE length followed by that many bytes. */
bool api_oip_bytes_valid(const uint8_t *bytes, size_t len, uint64_t count);

/* `header_len`: bytes of the JSON part (Inference-Header-Content-Length), or -1: the body is JSON as a whole.
 * On PD_OK the caller frees with api_oip_request_done; tensors may point into `body`. PD_ERR_CORRUPT: not
 * JSON; PD_ERR_INVALID, PD_ERR_LIMIT: `why` names the input. */
PD_NODISCARD enum pd_err api_oip_parse(const char *body, size_t len, int64_t header_len,
                                       struct api_oip_request *ret, struct pd_why *why);
/* The request equivalent to a body that is an image: input 'image', BYTES [1], all outputs. */
PD_NODISCARD enum pd_err api_oip_picture(const char *body, size_t len, struct api_oip_request *ret,
                                         struct pd_why *why);
void api_oip_request_done(struct api_oip_request *q);

/* The worker's parameters for this request: {"outputs":[names]} or {}; appended. */
void api_oip_params(const struct api_oip_request *q, struct pd_buf *out);

/* Writes the reply. `parameters`: a JSON object, or "": none. *ret_header_len = bytes of the JSON part if
 * some output is binary (then raw tensors follow), else 0. PD_ERR_INVALID: a requested output is missing;
 * PD_ERR_INTERNAL: a number that JSON cannot represent, or FP16/BF16 requested in JSON. */
PD_NODISCARD enum pd_err api_oip_reply(const struct api_oip_request *q, const char *model, int64_t version,
                                       const char *parameters, const struct wire_tensor *tensors,
                                       uint32_t count, struct pd_buf *out, size_t *ret_header_len,
                                       struct pd_why *why);

/* Parses arbitrary bytes both ways; for the fuzzer. */
void api_oip_fuzz(const uint8_t *bytes, size_t len);
