/* api/framing.h: where does a request end? Two readers of the same bytes must agree, or a proxy can be made
 * to pass a request that it never saw. What is ambiguous is refused with 400, and the connection is closed.
 *
 * Plain functions of what the HTTP library has parsed: no I/O, no library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* One line of a request's head, as the library cut it out. */
struct api_field {
    const char *name, *value;
    size_t name_len, value_len;
};

/* Strings; the query, which may be NULL, without its question mark. */
struct api_request_line {
    const char *method, *path, *query, *version;
};

/* NULL if line and fields can be read in one way only; otherwise a sentence for the client. Names are tokens,
 * no value has a control character, fields that may stand once stand once, and a body has a length or is
 * chunked. */
const char *api_framing_fault(const struct api_request_line *line, const struct api_field *fields,
                              size_t count);

/* Where the parts of a head lie in the library's buffer. */
struct api_head_layout {
    const char *method, *target, *version; /* NUL-terminated, but for the target */
    size_t target_len;
    size_t head_bytes; /* from the method to the end of the empty line */
};

/* Do the parts follow each other with exactly one blank or CRLF between them? libmicrohttpd 0.9.75 takes a
 * bare LF for CRLF, joins folded lines and ends a line at a zero byte, without a trace in the strings; but it
 * parses in place, so the distances between the strings show it (but for some zero bytes at a line's end).
 * The head_bytes from `method` on must be readable; other addresses are only compared. */
bool api_framing_adjacent(const struct api_head_layout *head, const struct api_field *fields, size_t count);
