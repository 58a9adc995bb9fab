#include "api/cursor.h"

#include <stdio.h>
#include <string.h>

#include "daemon/digest/digest.h"

#define MAC_BYTES 16

static void mac(const uint8_t key[32], const char *kind, const uint8_t id[8],
                uint8_t out[DIGEST_SHA256_BYTES])
{
    uint8_t bytes[8 + 64];
    size_t n = strlen(kind);

    if (n > 64)
        n = 64;
    memcpy(bytes, id, 8);
    memcpy(bytes + 8, kind, n);
    digest_hmac_sha256(key, 32, bytes, 8 + n, out);
}

const char *api_cursor_write(const uint8_t key[32], const char *kind, int64_t id, char out[API_CURSOR_TEXT])
{
    uint8_t bytes[8 + MAC_BYTES], full[DIGEST_SHA256_BYTES];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)id >> (8 * i));
    mac(key, kind, bytes, full);
    memcpy(bytes + 8, full, MAC_BYTES);
    return digest_base64url(bytes, sizeof bytes, out);
}

bool api_cursor_read(const uint8_t key[32], const char *kind, const char *text, int64_t *ret_id)
{
    uint8_t bytes[8 + MAC_BYTES], full[DIGEST_SHA256_BYTES];
    uint64_t id = 0;
    size_t len;

    if (digest_base64url_decode(text, strlen(text), bytes, sizeof bytes, &len) != PD_OK ||
        len != sizeof bytes)
        return false;
    mac(key, kind, bytes, full);
    if (!digest_equal(full, bytes + 8, MAC_BYTES))
        return false;
    for (int i = 0; i < 8; i++)
        id |= (uint64_t)bytes[i] << (8 * i);
    *ret_id = (int64_t)id;
    return true;
}

/* The kind that a place in a sorted list has. */
static void kind_at(const char *kind, const char *place, char out[DIGEST_SHA256_HEX_SIZE])
{
    char text[1024];
    int n = snprintf(text, sizeof text, "%s\n%s", kind, place);

    digest_sha256_hex(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, out);
}

void api_cursor_write_at(const uint8_t key[32], const char *kind, int64_t id, const char *place,
                         char out[API_CURSOR_AT_TEXT])
{
    char sum[DIGEST_SHA256_HEX_SIZE];
    size_t n;

    kind_at(kind, place, sum);
    api_cursor_write(key, sum, id, out);
    n = strlen(out);
    out[n++] = '.';
    digest_base64url(place, strlen(place), out + n);
}

bool api_cursor_read_at(const uint8_t key[32], const char *kind, const char *text, int64_t *ret_id,
                        char *place, size_t size)
{
    const char *dot = strchr(text, '.');
    char head[API_CURSOR_TEXT], sum[DIGEST_SHA256_HEX_SIZE];
    size_t len;

    if (!dot || (size_t)(dot - text) >= sizeof head ||
        digest_base64url_decode(dot + 1, strlen(dot + 1), place, size - 1, &len) != PD_OK)
        return false;
    memcpy(head, text, (size_t)(dot - text));
    head[dot - text] = '\0';
    place[len] = '\0';
    kind_at(kind, place, sum);
    return api_cursor_read(key, sum, head, ret_id);
}
