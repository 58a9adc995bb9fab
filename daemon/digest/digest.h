/* daemon/digest/digest.h: digests, tokens and their encodings; the one place that includes nettle.
 *
 * Nothing here keeps state between calls and nothing logs: every function may be called from
 * any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DIGEST_SHA256_BYTES 32
#define DIGEST_SHA256_HEX_SIZE 65 /* 64 digits and the NUL */
#define DIGEST_TOKEN_BYTES 32     /* 256 bits */
#define DIGEST_TOKEN_TEXT_SIZE 44 /* 43 characters of base64 url and the NUL */

/* A running SHA-256, for files too large to hold. The caller owns the storage; there is
 * nothing to release. */
struct digest_sha256 {
    _Alignas(16) unsigned char state[160];
};

void digest_sha256_init(struct digest_sha256 *d);
void digest_sha256_update(struct digest_sha256 *d, const void *bytes, size_t len);
/* Writes the digest and resets the state. */
void digest_sha256_final(struct digest_sha256 *d, uint8_t out[DIGEST_SHA256_BYTES]);

void digest_sha256(const void *bytes, size_t len, uint8_t out[DIGEST_SHA256_BYTES]);
/* The digest in lower-case hexadecimal, NUL-terminated. Returns `out`. */
const char *digest_sha256_hex(const void *bytes, size_t len, char out[DIGEST_SHA256_HEX_SIZE]);
/* Digest of a whole file, read in pieces. PD_ERR_NOT_FOUND, PD_ERR_IO, ... as pd_fail_errno. */
PD_NODISCARD enum pd_err digest_file_hex(const char *path, char out[DIGEST_SHA256_HEX_SIZE],
                                         struct pd_why *why);

void digest_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
                        uint8_t out[DIGEST_SHA256_BYTES]);

/* Lower-case digits and a NUL: `out` holds 2 * len + 1 bytes. Returns `out`. */
const char *digest_hex(const void *bytes, size_t len, char *out);
/* Exactly `size` bytes from 2 * size digits of either case; false for anything else. */
bool digest_unhex(const char *text, void *out, size_t size);

/* Bytes that digest_base64url writes for `len` bytes, the NUL included. */
#define DIGEST_BASE64URL_SIZE(len) (((len) / 3 * 4) + ((len) % 3 ? (len) % 3 + 1 : 0) + 1)

/* RFC 4648 section 5 without padding; `out` holds DIGEST_BASE64URL_SIZE(len) bytes. Returns `out`. */
const char *digest_base64url(const void *bytes, size_t len, char *out);
/* The inverse. Refuses (PD_ERR_INVALID) padding, foreign characters, unused bits that are not zero, and
 * (PD_ERR_LIMIT) more than `size` bytes, so that the encoding of a value is unique. */
PD_NODISCARD enum pd_err digest_base64url_decode(const char *text, size_t text_len, void *out, size_t size,
                                                 size_t *ret_len);

/* RFC 4648 section 4 with padding; `out` holds DIGEST_BASE64_SIZE(len) bytes. Returns `out`. */
#define DIGEST_BASE64_SIZE(len) (((len) + 2) / 3 * 4 + 1)
const char *digest_base64(const void *bytes, size_t len, char *out);
/* The inverse: exactly `size` bytes, at most 96; false for anything else. */
bool digest_unbase64(const char *text, size_t text_len, void *out, size_t size);

/* Random bytes from the kernel; waits until its pool is initialised. */
PD_NODISCARD enum pd_err digest_random(void *out, size_t len, struct pd_why *why);
/* A fresh 256-bit token as base64 url text. */
PD_NODISCARD enum pd_err digest_token(char out[DIGEST_TOKEN_TEXT_SIZE], struct pd_why *why);

/* Whether the bytes are equal; takes constant time for a given `len`. */
bool digest_equal(const void *a, const void *b, size_t len);
