/* Pictures as clients have them, JPEG or PNG: to the bytes that the network reads, by the very transform of
 * validation. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/serve/internal.h"

static bool is_picture(const uint8_t *bytes, size_t len)
{
    return (len >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0) ||
           (len >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0);
}

static int sextet(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;

    if (at)
        return (int)(at - digits);
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* A JSON text cannot hold bytes, so a picture may come as base64 (RFC 4648, either alphabet, padded or not),
 * also behind "data:image/png;base64,". *ret_len is 0 if it is no such text. */
static enum pd_err from_base64(const char *text, size_t len, uint8_t **ret, size_t *ret_len,
                               struct pd_why *why)
{
    const char *comma =
        len > 5 && memcmp(text, "data:", 5) == 0 ? memchr(text, ',', len < 100 ? len : 100) : NULL;
    uint32_t bits = 0;
    size_t n = 0, digits = 0;
    uint8_t *out;

    *ret_len = 0;
    if (comma) {
        len -= (size_t)(comma + 1 - text);
        text = comma + 1;
    }
    while (len && text[len - 1] == '=')
        len--;
    out = malloc(len / 4 * 3 + 3);
    if (!out)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a picture of %zu digits", len);
    for (size_t i = 0; i < len; i++) {
        int six = sextet(text[i]);

        if (isspace((unsigned char)text[i]))
            continue;
        if (six < 0) {
            free(out);
            return PD_OK;
        }
        bits = bits << 6 | (uint32_t)six;
        digits++;
        if (digits % 4 != 1)
            out[n++] = (uint8_t)(bits >> (8 - digits % 4 * 2) % 8);
    }
    *ret = out;
    *ret_len = n;
    return PD_OK;
}

bool serve_pictures(const struct serve *s)
{
    return s->info.kind == &serve_kind_classify && (s->fit.channels == 1 || s->fit.channels == 3);
}

enum pd_err serve_picture_read(const struct serve *s, const void *bytes, size_t len, uint8_t *to,
                               struct pd_why *why)
{
    struct pd_why inner = {""};
    uint8_t *decoded = NULL;
    int32_t height, width;
    enum pd_err err = PD_OK;

    if (!serve_pictures(s))
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "this model cannot read pictures: it has neither 1 nor 3 channels");
    if (!is_picture(bytes, len)) {
        err = from_base64(bytes, len, &decoded, &len, why);
        if (err != PD_OK)
            return err;
        if (!is_picture(decoded, len)) {
            err = pd_fail(why, PD_ERR_INVALID, "the data are neither JPEG or PNG nor base64 of one");
            goto out;
        }
        bytes = decoded;
    }
    err = data_image_size(bytes, len, &height, &width, &inner);
    if (err == PD_OK && (int64_t)height * width > SERVE_PIXELS_MAX)
        err = pd_fail(&inner, PD_ERR_LIMIT, "the picture has %d x %d pixels; at most %d million are read",
                      width, height, SERVE_PIXELS_MAX / 1000000);
    if (err == PD_OK)
        err = data_image_read_eval(bytes, len, &s->fit, to, &inner);
    /* Whatever is wrong with it came from the client. */
    if (err != PD_OK)
        err =
            pd_fail(why, err == PD_ERR_NOMEM || err == PD_ERR_LIMIT ? err : PD_ERR_INVALID, "%s", inner.text);
out:
    free(decoded);
    return err;
}
