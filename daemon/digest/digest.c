#include "daemon/digest/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

_Static_assert(sizeof(struct sha256_ctx) <= sizeof(struct digest_sha256),
               "digest.h keeps room for nettle's state");
_Static_assert(DIGEST_SHA256_BYTES == SHA256_DIGEST_SIZE, "SHA-256 has 32 bytes");

static struct sha256_ctx *ctx_of(struct digest_sha256 *d)
{
    return (struct sha256_ctx *)(void *)d->state;
}

void digest_sha256_init(struct digest_sha256 *d)
{
    sha256_init(ctx_of(d));
}

void digest_sha256_update(struct digest_sha256 *d, const void *bytes, size_t len)
{
    if (len)
        sha256_update(ctx_of(d), len, bytes);
}

void digest_sha256_final(struct digest_sha256 *d, uint8_t out[DIGEST_SHA256_BYTES])
{
    sha256_digest(ctx_of(d), DIGEST_SHA256_BYTES, out);
}

void digest_sha256(const void *bytes, size_t len, uint8_t out[DIGEST_SHA256_BYTES])
{
    struct digest_sha256 d;

    digest_sha256_init(&d);
    digest_sha256_update(&d, bytes, len);
    digest_sha256_final(&d, out);
}

const char *digest_sha256_hex(const void *bytes, size_t len, char out[DIGEST_SHA256_HEX_SIZE])
{
    uint8_t raw[DIGEST_SHA256_BYTES];

    digest_sha256(bytes, len, raw);
    return digest_hex(raw, sizeof raw, out);
}

enum pd_err digest_file_hex(const char *path, char out[DIGEST_SHA256_HEX_SIZE], struct pd_why *why)
{
    struct digest_sha256 d;
    uint8_t raw[DIGEST_SHA256_BYTES];
    unsigned char piece[65536];
    enum pd_err err = PD_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    digest_sha256_init(&d);
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0)
            break;
        if (n < 0) {
            if (errno == EINTR)
                continue;
            err = pd_fail_errno(why, errno, "cannot read '%s'", path);
            goto out;
        }
        digest_sha256_update(&d, piece, (size_t)n);
    }
    digest_sha256_final(&d, raw);
    digest_hex(raw, sizeof raw, out);
out:
    close(fd);
    return err;
}

void digest_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
                        uint8_t out[DIGEST_SHA256_BYTES])
{
    struct hmac_sha256_ctx ctx;

    hmac_sha256_set_key(&ctx, key_len, key);
    if (len)
        hmac_sha256_update(&ctx, len, bytes);
    hmac_sha256_digest(&ctx, DIGEST_SHA256_BYTES, out);
}

const char *digest_hex(const void *bytes, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = bytes;

    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[b[i] >> 4];
        out[2 * i + 1] = digits[b[i] & 15];
    }
    out[2 * len] = '\0';
    return out;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool digest_unhex(const char *text, void *out, size_t size)
{
    uint8_t *b = out;

    if (strlen(text) != 2 * size)
        return false;
    for (size_t i = 0; i < 2 * size; i++) {
        if (hex_value(text[i]) < 0)
            return false;
    }
    for (size_t i = 0; i < size; i++)
        b[i] = (uint8_t)(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
    return true;
}

static const char url_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const char *digest_base64url(const void *bytes, size_t len, char *out)
{
    const uint8_t *b = bytes;
    char *o = out;

    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t group =
            (uint32_t)b[i] << 16 | (n > 1 ? (uint32_t)b[i + 1] << 8 : 0) | (n > 2 ? b[i + 2] : 0);
        for (size_t k = 0; k <= n; k++)
            *o++ = url_digits[group >> (18 - 6 * k) & 63];
    }
    *o = '\0';
    return out;
}

static int url_value(char c)
{
    const char *at = c ? strchr(url_digits, c) : NULL;
    return at ? (int)(at - url_digits) : -1;
}

enum pd_err digest_base64url_decode(const char *text, size_t text_len, void *out, size_t size,
                                    size_t *ret_len)
{
    uint8_t *b = out;
    size_t len = text_len / 4 * 3 + (text_len % 4 ? text_len % 4 - 1 : 0);

    if (text_len % 4 == 1)
        return PD_ERR_INVALID;
    if (len > size)
        return PD_ERR_LIMIT;
    for (size_t i = 0; i < text_len; i++) {
        if (url_value(text[i]) < 0)
            return PD_ERR_INVALID;
    }
    for (size_t i = 0, at = 0; i < text_len; i += 4) {
        size_t n = text_len - i < 4 ? text_len - i : 4;
        uint32_t group = 0;
        for (size_t k = 0; k < n; k++)
            group |= (uint32_t)url_value(text[i + k]) << (18 - 6 * k);
        for (size_t k = 0; k + 1 < n; k++)
            b[at++] = (uint8_t)(group >> (16 - 8 * k));
        /* Unused bits must be zero, or two texts would decode to the same bytes. */
        if (n < 4 && (group & (0xffffffu >> (8 * (n - 1)))))
            return PD_ERR_INVALID;
    }
    *ret_len = len;
    return PD_OK;
}

const char *digest_base64(const void *bytes, size_t len, char *out)
{
    size_t n;

    digest_base64url(bytes, len, out);
    n = strlen(out);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == '-' ? '+' : out[i] == '_' ? '/' : out[i];
    while (n % 4)
        out[n++] = '=';
    out[n] = '\0';
    return out;
}

bool digest_unbase64(const char *text, size_t text_len, void *out, size_t size)
{
    char url[128];
    uint8_t bytes[96];
    size_t len = DIGEST_BASE64URL_SIZE(size) - 1, got;

    if (size > sizeof bytes || text_len != DIGEST_BASE64_SIZE(size) - 1)
        return false;
    for (size_t i = 0; i < text_len; i++) {
        if ((text[i] == '=') != (i >= len) || text[i] == '-' || text[i] == '_')
            return false;
        url[i] = text[i] == '+' ? '-' : text[i] == '/' ? '_' : text[i];
    }
    if (digest_base64url_decode(url, len, bytes, sizeof bytes, &got) != PD_OK || got != size)
        return false;
    memcpy(out, bytes, size);
    return true;
}

enum pd_err digest_random(void *out, size_t len, struct pd_why *why)
{
    unsigned char *b = out;

    while (len) {
        ssize_t n = getrandom(b, len, 0);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return pd_fail_errno(why, errno, "the kernel returns no random bytes");
        }
        b += n;
        len -= (size_t)n;
    }
    return PD_OK;
}

enum pd_err digest_token(char out[DIGEST_TOKEN_TEXT_SIZE], struct pd_why *why)
{
    uint8_t raw[DIGEST_TOKEN_BYTES];
    enum pd_err err = digest_random(raw, sizeof raw, why);

    if (err != PD_OK)
        return err;
    digest_base64url(raw, sizeof raw, out);
    explicit_bzero(raw, sizeof raw);
    return PD_OK;
}

bool digest_equal(const void *a, const void *b, size_t len)
{
    return memeql_sec(a, b, len) != 0;
}
