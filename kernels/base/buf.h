/* kernels/base/buf.h: a growing byte buffer.
 *
 * The first failure is sticky: later appends do nothing, and pd_buf_err reports it, so a
 * writer checks once, at the end. The bytes are NUL-terminated whenever
 * `data` is not NULL (the NUL is not counted in `len`). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct pd_buf {
    char *data;   /* owned; NULL while empty */
    size_t len;   /* bytes in use */
    size_t size;  /* bytes allocated */
    size_t limit; /* most bytes allowed; 0 = no limit */
    bool failed;
};

void pd_buf_init(struct pd_buf *b, size_t limit); /* limit in bytes; 0 = none */
/* Frees the bytes; `b` may be used again. */
void pd_buf_done(struct pd_buf *b);

void pd_buf_append(struct pd_buf *b, const void *bytes, size_t len);
void pd_buf_str(struct pd_buf *b, const char *text);
void pd_buf_printf(struct pd_buf *b, const char *fmt, ...) PD_PRINTF(2, 3);
/* Appends `len` bytes for the caller to write and returns them; NULL on failure. Borrowed until the next call. */
void *pd_buf_reserve(struct pd_buf *b, size_t len);
/* Removes the first `len` bytes (all, if fewer are there). */
void pd_buf_consume(struct pd_buf *b, size_t len);
/* Hands the bytes to the caller, who frees them; the buffer is empty afterwards. NULL
 * if it failed or holds nothing. */
char *pd_buf_take(struct pd_buf *b);
/* PD_OK, or PD_ERR_NOMEM, or PD_ERR_LIMIT if the limit stopped it. */
PD_NODISCARD enum pd_err pd_buf_err(const struct pd_buf *b);
