/* api/check.h: the checks that keep foreign web pages away from a loopback service:
 * Host, Origin and Content-Type, as plain functions of text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "api/route.h"

/* A comma-separated list of hosts ("polyd.example, 10.0.0.5:7070") or of origins. */
struct api_allow {
    const char *hosts;   /* further Host values accepted; NULL or "" = none */
    const char *origins; /* further Origin values accepted; NULL or "" = none */
    const char *bind;    /* the listen address as configured; accepted as Host too unless a wildcard */
};

/* Splits "name", "name:port", "1.2.3.4:port", "[::1]:port" into a lower-case name and a port
 * (-1 = absent). False if it is not of that form. */
bool api_host_split(const char *host, char *name, size_t size, int *ret_port);

/* The Host header (NULL = absent) against localhost, 127.0.0.0/8, [::1], the bound address and the
 * configured names. Defeats DNS rebinding: a foreign page's host name is never on the list. */
bool api_host_ok(const struct api_allow *allow, const char *host);

/* The Origin header, present on the request: same origin as `host` (http or https), or configured. "null" is
 * not. */
bool api_origin_ok(const struct api_allow *allow, const char *origin, const char *host);

/* Whether the media type (ignoring parameters and case) is allowed for this kind of body. `type` may be NULL.
 */
bool api_content_type_ok(enum api_body body, const char *type);

/* Whether the media type equals this one ("application/json"). Parameters are ignored. */
bool api_media_type_is(const char *type, const char *wanted);

/* Whether an If-Match or If-None-Match list contains the strong tag "\"<version>\"", or "*"? Weak tags
 * count only if `weak` (If-None-Match compares weakly). */
bool api_etag_match(const char *list, const char *tag, bool weak);

/* An Idempotency-Key: a structured-field string ("abc") or a bare token; 1-255 printable
 * characters. Copies the content to `out`; false for any other form. */
bool api_idempotency_key(const char *header, char *out, size_t size);
