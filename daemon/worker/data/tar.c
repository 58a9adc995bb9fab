/* daemon/worker/data/tar.c: see tar.h. */
#include "daemon/worker/data/tar.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 512u
#define PAX_MAX (64u * 1024)

struct scan {
    const struct data_tar_source *source;
    uint64_t at;
    char name[DATA_TAR_NAME_MAX + 1]; /* of the next entry, from a long-name or pax header; "" = none */
    bool has_size;                    /* a pax header gave the next entry's size */
    uint64_t size;
    uint8_t pax[PAX_MAX + 1];
};

/* Octal, blank- or NUL-terminated, or base 256 where the first bit is set. */
static bool number(const uint8_t *p, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    size_t i = 0;

    if (p[0] & 0x80) {
        for (i = 0; i < n; i++) {
            if (v >> 56)
                return false;
            v = v << 8 | (i ? p[i] : p[i] & 0x7f);
        }
        *ret = v;
        return true;
    }
    while (i < n && p[i] == ' ')
        i++;
    if (i == n || p[i] == 0) {
        *ret = 0;
        return true;
    }
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) {
        if (v >> 60)
            return false;
        v = v << 3 | (uint64_t)(p[i] - '0');
    }
    *ret = v;
    return i == n || p[i] == 0 || p[i] == ' ';
}

static bool sum_fits(const uint8_t *h)
{
    uint64_t stored, sum = 0;
    int64_t signed_sum = 0;

    for (size_t i = 0; i < BLOCK; i++) {
        uint8_t b = i >= 148 && i < 156 ? ' ' : h[i];

        sum += b;
        signed_sum += (int8_t)b; /* what some old writers did */
    }
    return number(h + 148, 8, &stored) && (stored == sum || (int64_t)stored == signed_sum);
}

static void put_name(char *to, const char *from, size_t len)
{
    while (len >= 2 && from[0] == '.' && from[1] == '/') {
        from += 2;
        len -= 2;
    }
    while (len && from[0] == '/') {
        from++;
        len--;
    }
    if (len > DATA_TAR_NAME_MAX)
        len = 0; /* no file system holds it either: as if unnamed */
    memcpy(to, from, len);
    to[len] = 0;
}

/* Records "LEN KEY=VALUE\n". */
static bool read_pax(struct scan *s, size_t len)
{
    const uint8_t *p = s->pax, *end = p + len;

    while (p < end && *p) {
        const uint8_t *at = p, *equals, *stop;
        uint64_t n = 0;
        size_t value;

        while (at < end && *at >= '0' && *at <= '9' && n < PAX_MAX)
            n = n * 10 + (uint64_t)(*at++ - '0');
        if (at == end || *at != ' ' || n > (uint64_t)(end - p) || n < (uint64_t)(at - p) + 2)
            return false;
        stop = p + n - 1; /* the newline */
        at++;
        equals = at < stop ? memchr(at, '=', (size_t)(stop - at)) : NULL;
        if (!equals || *stop != '\n')
            return false;
        value = (size_t)(stop - equals - 1);
        if (equals - at == 4 && !memcmp(at, "path", 4)) {
            if (value > DATA_TAR_NAME_MAX || memchr(equals + 1, 0, value))
                return false;
            put_name(s->name, (const char *)equals + 1, value);
        } else if (equals - at == 4 && !memcmp(at, "size", 4)) {
            s->size = 0;
            for (const uint8_t *d = equals + 1; d < stop; d++) {
                if (*d < '0' || *d > '9' || s->size > (UINT64_MAX - 9) / 10)
                    return false;
                s->size = s->size * 10 + (uint64_t)(*d - '0');
            }
            s->has_size = value > 0;
        }
        p += n;
    }
    return true;
}

static void header_name(const uint8_t *h, char to[DATA_TAR_NAME_MAX + 1])
{
    char whole[260];
    size_t prefix = memcmp(h + 257, "ustar\0", 6) == 0 ? strnlen((const char *)h + 345, 155) : 0;
    size_t name = strnlen((const char *)h, 100), n = 0;

    if (prefix) {
        memcpy(whole, h + 345, prefix);
        whole[prefix] = '/';
        n = prefix + 1;
    }
    memcpy(whole + n, h, name);
    put_name(to, whole, n + name);
}

static enum pd_err one(struct scan *s, const uint8_t *h,
                       enum pd_err (*entry)(void *user, const char *name, uint64_t at, uint64_t len,
                                            struct pd_why *why),
                       void *user, struct pd_why *why)
{
    char name[DATA_TAR_NAME_MAX + 1];
    uint64_t len, left = s->source->size - s->at;
    uint8_t type = h[156];
    enum pd_err err = PD_OK;

    if (!sum_fits(h) || !number(h + 124, 12, &len))
        return pd_fail(why, PD_ERR_CORRUPT, "tar: no valid header at byte %llu",
                       (unsigned long long)(s->at - BLOCK));
    if (s->has_size && type != 'x' && type != 'g' && type != 'L' && type != 'K')
        len = s->size;
    if (type == '1' || type == '2' || type == '3' || type == '4' || type == '5' || type == '6')
        len = 0; /* links and devices have no bytes, whatever their size says */
    if (len > left)
        return pd_fail(why, PD_ERR_CORRUPT, "tar: an entry of %llu bytes at byte %llu exceeds the archive",
                       (unsigned long long)len, (unsigned long long)s->at);
    if (type == 'L' || type == 'x') {
        if (len > (type == 'L' ? DATA_TAR_NAME_MAX + 1 : PAX_MAX))
            return pd_fail(why, PD_ERR_CORRUPT, "tar: a name has %llu bytes, which is too long",
                           (unsigned long long)len);
        err = s->source->read(s->source->user, s->at, s->pax, (size_t)len, why);
        if (err == PD_OK && type == 'L')
            put_name(s->name, (const char *)s->pax, strnlen((const char *)s->pax, (size_t)len));
        else if (err == PD_OK && !read_pax(s, (size_t)len))
            err = pd_fail(why, PD_ERR_CORRUPT, "tar: invalid pax header at byte %llu",
                          (unsigned long long)s->at);
    } else if (type != 'g' && type != 'K') {
        if (s->name[0])
            memcpy(name, s->name, strlen(s->name) + 1);
        else
            header_name(h, name);
        s->name[0] = 0;
        s->has_size = false;
        if ((type == '0' || type == 0 || type == '7') && name[0] && name[strlen(name) - 1] != '/')
            err = entry(user, name, s->at, len, why);
        else if ((type == '1' || type == '2') && s->source->link)
            s->source->link(s->source->user, name);
    }
    s->at += len;
    /* Archives cut after their last byte are met; their padding is not missed. */
    s->at = len % BLOCK ? s->at + (BLOCK - len % BLOCK) : s->at;
    if (s->at > s->source->size)
        s->at = s->source->size;
    return err;
}

enum pd_err data_tar_scan(const struct data_tar_source *source,
                          enum pd_err (*entry)(void *user, const char *name, uint64_t at, uint64_t len,
                                               struct pd_why *why),
                          void *user, struct pd_why *why)
{
    static const uint8_t zero[BLOCK];
    struct scan s;
    uint8_t h[BLOCK];
    int zeros = 0;
    enum pd_err err = PD_OK;

    s.source = source;
    s.at = 0;
    s.name[0] = 0;
    s.has_size = false;
    if (source->size < BLOCK)
        return pd_fail(why, PD_ERR_CORRUPT, "tar: %llu bytes are not an archive",
                       (unsigned long long)source->size);
    while (err == PD_OK && zeros < 2 && source->size - s.at >= BLOCK) {
        err = source->read(source->user, s.at, h, BLOCK, why);
        if (err != PD_OK)
            break;
        s.at += BLOCK;
        if (!memcmp(h, zero, BLOCK)) {
            zeros++;
            continue;
        }
        zeros = 0;
        err = one(&s, h, entry, user, why);
    }
    if (err == PD_OK && zeros == 0 && source->size - s.at > 0)
        return pd_fail(why, PD_ERR_CORRUPT, "tar: the archive ends within a header");
    return err;
}
