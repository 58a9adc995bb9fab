/* Compressed answers (RFC 9110, 12.5.3). */
#include "api/gzip.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <zlib.h>

/* 4: JSON becomes a tenth of its size at about 60 MB a second; 9 saves another tenth of that for three times
 * the work. */
#define LEVEL 4
#define WINDOW (16 + MAX_WBITS) /* 16: with gzip's header */

static const char *blanks(const char *s)
{
    while (*s == ' ' || *s == '\t')
        s++;
    return s;
}

bool api_gzip_accepted(const char *encodings)
{
    bool any = false;

    for (const char *at = encodings; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        const char *name = blanks(at);
        size_t len = strcspn(name, " \t;,");
        const char *rest = blanks(name + len);
        bool wanted = true;

        if (*rest == ';') {
            rest = blanks(rest + 1);
            if ((*rest == 'q' || *rest == 'Q') && *blanks(rest + 1) == '=')
                wanted = strtod(blanks(blanks(rest + 1) + 1), NULL) > 0;
        }
        if (len == 4 && strncasecmp(name, "gzip", 4) == 0)
            return wanted;
        if (len == 1 && *name == '*')
            any = wanted;
    }
    return any;
}

char *api_gzip(const void *bytes, size_t len, size_t *ret_len)
{
    z_stream z = {0};
    char *out;
    uLong most;
    int end;

    if (len > 0x7fffffff || deflateInit2(&z, LEVEL, Z_DEFLATED, WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    most = deflateBound(&z, (uLong)len);
    out = malloc(most);
    if (!out) {
        deflateEnd(&z);
        return NULL;
    }
    z.next_in = (Bytef *)(uintptr_t)bytes;
    z.avail_in = (uInt)len;
    z.next_out = (Bytef *)out;
    z.avail_out = (uInt)most;
    end = deflate(&z, Z_FINISH);
    *ret_len = z.total_out;
    deflateEnd(&z);
    if (end != Z_STREAM_END || *ret_len >= len) {
        free(out);
        return NULL;
    }
    return out;
}
