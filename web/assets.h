/* web/assets.h: the dashboard's files, compiled into the daemon.
 *
 * All of it is constant and static: any thread may read it at any time. */
#pragma once

#include <stddef.h>

/* The Content-Security-Policy that every page of ours keeps to: nothing from elsewhere,
 * no inline script or style, no frames. Send it with every text/html reply. */
#define WEB_CONTENT_SECURITY_POLICY                                                                          \
    "default-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "     \
    "object-src 'none'"

struct web_asset {
    const char *path;           /* URL path, such as "/", "/css/base.css" or "/js/app.js" */
    const char *content_type;   /* with charset where it is text */
    const char *etag;           /* strong, quoted; of the plain bytes */
    const unsigned char *bytes; /* as they are; not NUL-terminated */
    size_t length;              /* bytes */
    const unsigned char *gzip;  /* the same, gzip-compressed; NULL where that gains nothing.
                                   Send `Vary: Accept-Encoding` and a weak or suffixed tag with it. */
    size_t gzip_length;         /* bytes */
};

/* The asset served at exactly `path` (no query, already percent-decoded), or NULL. Static.
 * Pages are routed behind '#', so no other path needs to answer with index.html. */
const struct web_asset *web_asset_find(const char *path);

/* The i-th asset in order of path, or NULL past the end. Static. */
const struct web_asset *web_asset_at(size_t i);
