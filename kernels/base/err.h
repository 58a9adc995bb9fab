/* kernels/base/err.h: how functions of polyd report failure.
 *
 * A function that can fail returns enum pd_err and writes a sentence for people into
 * a struct pd_why, which the caller owns and may leave out (NULL). Results are returned
 * through ret_ parameters, written only on PD_OK. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define PD_NODISCARD __attribute__((warn_unused_result))
#define PD_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum pd_err {
    PD_OK = 0,
    PD_ERR_NOMEM,       /* allocation failed */
    PD_ERR_INVALID,     /* the caller's input is wrong */
    PD_ERR_NOT_FOUND,   /* no such thing */
    PD_ERR_EXISTS,      /* it exists already */
    PD_ERR_CONFLICT,    /* not allowed in the present state */
    PD_ERR_STALE,       /* the version named is not the present one */
    PD_ERR_IO,          /* the system refused a read or a write */
    PD_ERR_FULL,        /* no space on the device */
    PD_ERR_CORRUPT,     /* bytes do not match their digest or format */
    PD_ERR_VERSION,     /* made by a newer or unknown version */
    PD_ERR_LIMIT,       /* a named limit is exceeded */
    PD_ERR_BUSY,        /* queue full or resource taken; try again */
    PD_ERR_TIMEOUT,     /* deadline passed */
    PD_ERR_CANCELLED,   /* the caller withdrew the request */
    PD_ERR_CLOSED,      /* the peer is gone, or this process is stopping */
    PD_ERR_DENIED,      /* not permitted */
    PD_ERR_UNSUPPORTED, /* known but not available here */
    PD_ERR_INTERNAL,    /* our mistake, reported instead of aborting */
    PD_ERR_COUNT
};

/* A sentence that explains an error; always NUL-terminated. */
struct pd_why {
    char text[512];
};

/* Writes the sentence into `why` (NULL is fine) and returns `err`, so that
 * `return pd_fail(why, PD_ERR_IO, "cannot open '%s'", path);` reads as one thought. */
enum pd_err pd_fail(struct pd_why *why, enum pd_err err, const char *fmt, ...) PD_PRINTF(3, 4);

/* pd_fail for an errno value: chooses the matching pd_err (ENOSPC and EDQUOT become
 * PD_ERR_FULL, ENOENT PD_ERR_NOT_FOUND, ENOMEM PD_ERR_NOMEM, EACCES and EPERM
 * PD_ERR_DENIED, EEXIST PD_ERR_EXISTS, the rest PD_ERR_IO) and appends strerror. */
enum pd_err pd_fail_errno(struct pd_why *why, int errnum, const char *fmt, ...) PD_PRINTF(3, 4);

/* Whether a retry with the same input would fail again: the input is invalid, absent, damaged, refused or not
 * supported. False for lack of memory or space, a failing disk, a timeout, a stop and internal errors. */
bool pd_err_lasting(enum pd_err err);

/* Prefixes the sentence with a JSON pointer, "#/data/path: cannot open 'x'", unless it has one. NULL is fine. */
void pd_why_at(struct pd_why *why, const char *place);
/* Splits such a sentence: copies the pointer ("#" if there is none) and returns the rest, borrowed from `text`. */
const char *pd_why_place(const char *text, char *ret_place, size_t size);

/* A stable lower-case name such as "not_found"; "unknown" outside the enum. Static. */
const char *pd_err_name(enum pd_err err);
