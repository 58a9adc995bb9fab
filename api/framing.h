/* api/framing.h: detects ambiguous request framing. If two readers disagree about where a request ends, a
 * proxy can be made to pass a request that it never saw (request smuggling). Ambiguous requests are refused
 * with 400, and the connection is closed.
 *
 * Pure functions of the parsed request: no I/O, no library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* One header line as parsed by the library. */
struct api_field {
    const char *name, *value;
    size_t name_len, value_len;
};

/* Strings; the query, which may be NULL, without its question mark. */
struct api_request_line {
    const char *method, *path, *query, *version;
};

/* NULL if request line and header fields are unambiguous; otherwise a sentence for the client. Names are
 * tokens, no value has a control character, fields that may occur once do not repeat, and a body has a length
 * or is chunked. */
const char *api_framing_fault(const struct api_request_line *line, const struct api_field *fields,
                              size_t count);

/* Positions of the header's parts in the library's buffer. */
struct api_head_layout {
    const char *method, *target, *version; /* NUL-terminated, but for the target */
    size_t target_len;
    size_t head_bytes; /* from the method to the end of the empty line */
};

/* Whether exactly one blank or CRLF separates consecutive parts. libmicrohttpd 0.9.75 takes a
 * bare LF for CRLF, joins folded lines and ends a line at a zero byte, without a trace in the strings; but it
 * parses in place, so the distances between the strings show it (but for some zero bytes at a line's end).
 * The head_bytes from `method` on must be readable; other addresses are only compared. */
bool api_framing_adjacent(const struct api_head_layout *head, const struct api_field *fields, size_t count);
