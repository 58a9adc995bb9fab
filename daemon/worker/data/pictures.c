/* daemon/worker/data/pictures.c: JPEG and PNG files in folders or in a tar file, one folder per class.
 * list.c lists them.
 *
 * A picture is decoded when it is asked for, always at the scale that data_eval_least allows, so that its
 * pixels do not depend on the crop. Sets small enough are decoded once into a cache (cache.h) under a digest
 * of all their bytes, and mapped from then on. */
#include "daemon/worker/data/pictures.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/worker/data/path.h"
#include "daemon/digest/digest.h"

#define CACHED_ENCODED_MAX ((uint64_t)1 << 30) /* sets with more bytes are decoded each time */
#define CACHED_FILES_MAX 500000                /* likewise with more files */
#define SAMPLED 100                            /* pictures looked at for what holds of all */
#define CACHE_WAIT_MS (20 * 60 * 1000)

struct data_pictures *data_pictures_free(struct data_pictures *p)
{
    if (p) {
        if (p->dir >= 0)
            close(p->dir);
        if (p->tar >= 0)
            close(p->tar);
        data_cache_close(p->cache);
        pd_buf_done(&p->names);
        pd_buf_done(&p->notes);
        free(p->memory);
        free(p->items);
        free(p);
    }
    return NULL;
}

const char *data_picture_name(const struct data_set *set, int64_t index)
{
    return data_picture_text(set->pictures, &set->pictures->items[index]);
}

/* ---- reading one ---- */

/* Its bytes; *ret_owned is NULL where they lie in memory already. */
static enum pd_err bytes_of(const struct data_pictures *p, const struct picture *item, const uint8_t **ret,
                            size_t *ret_len, uint8_t **ret_owned, struct pd_why *why)
{
    const char *name = data_picture_text(p, item);
    uint8_t *bytes = NULL;
    size_t len = item->len, got = 0;
    struct stat s;
    int fd = -1;
    enum pd_err err = PD_OK;

    *ret_owned = NULL;
    if (p->dir >= 0) {
        fd = data_open_beneath(p->dir, name, O_RDONLY | O_NONBLOCK);
        if (fd < 0 && (errno == EXDEV || errno == ELOOP))
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", name);
        if (fd < 0)
            return pd_fail_errno(why, errno, "cannot open '%s'", name);
        if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
            close(fd);
            return pd_fail(why, PD_ERR_IO, "'%s' is no longer a regular file", name);
        }
        len = (uint64_t)s.st_size > UINT32_MAX ? UINT32_MAX : (size_t)s.st_size;
    }
    if (len > DATA_IMAGE_BYTES_MAX) {
        err = pd_fail(why, PD_ERR_LIMIT, "the picture has %zu bytes or more", len);
        goto out;
    }
    if (p->memory) {
        *ret = p->memory + item->at;
        *ret_len = len;
        return PD_OK;
    }
    bytes = malloc(len ? len : 1);
    if (!bytes) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
        goto out;
    }
    if (p->dir < 0)
        err = data_pictures_pread(p, item->at, bytes, len, why);
    while (p->dir >= 0 && got < len) {
        ssize_t n = read(fd, bytes + got, len - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err = pd_fail_errno(why, errno, "cannot read '%s'", name);
            goto out;
        }
        if (n == 0) { /* it became shorter: as truncated as any */
            len = got;
            break;
        }
        got += (size_t)n;
    }
    if (err == PD_OK) {
        *ret = *ret_owned = bytes;
        *ret_len = len;
        bytes = NULL; /* moved */
    }
out:
    free(bytes);
    if (fd >= 0)
        close(fd);
    return err;
}

static enum pd_err decode(const struct data_pictures *p, const struct picture *item, struct data_image *ret,
                          struct pd_why *why)
{
    const uint8_t *bytes = NULL;
    uint8_t *owned = NULL;
    size_t len = 0;
    enum pd_err err = bytes_of(p, item, &bytes, &len, &owned, why);

    if (err == PD_OK)
        err = data_image_decode(bytes, len, p->channels, p->least, ret, why);
    free(owned);
    return err;
}

static uint32_t sum_of(const uint8_t *pixels, size_t len)
{
    return (uint32_t)crc32_z(0, pixels, len);
}

enum pd_err data_picture_get(const struct data_set *set, int64_t index, struct data_image *ret,
                             bool *ret_owned, struct pd_why *why)
{
    const struct data_pictures *p = set->pictures;
    enum pd_err err;

    *ret_owned = false;
    if (p->table && p->table[index].height) {
        const struct decoded *d = &p->table[index];
        size_t len = (size_t)d->height * (size_t)d->width * (size_t)p->channels;
        union {
            const uint8_t *in;
            uint8_t *out; /* only read from */
        } pixels = {.in = p->cached + d->at};

        /* Damage on the disk is no reason to fail: the original is still there. */
        if (sum_of(pixels.in, len) == d->sum) {
            *ret = (struct data_image){
                .pixels = pixels.out, .height = d->height, .width = d->width, .channels = p->channels};
            return PD_OK;
        }
    }
    err = decode(p, &p->items[index], ret, why);
    *ret_owned = err == PD_OK;
    return err;
}

/* ---- the cache ---- */

/* Whether the set is small enough to be decoded once; *ret_key is the digest of all that its pixels follow
 * from, the bytes of every picture included. */
static bool key_of(struct data_pictures *p, uint8_t ret_key[32], uint64_t *ret_encoded)
{
    struct digest_sha256 hash;
    struct pd_why why;
    uint64_t sum = 0;
    char head[96];

    if (p->count > CACHED_FILES_MAX)
        return false;
    for (size_t i = 0; i < p->count; i++) {
        struct stat s;

        if (p->dir >= 0 && fstatat(p->dir, data_picture_text(p, &p->items[i]), &s, 0) != 0)
            return false;
        sum += p->dir >= 0 ? (uint64_t)s.st_size : p->items[i].len;
        if (sum > CACHED_ENCODED_MAX)
            return false;
    }
    digest_sha256_init(&hash);
    digest_sha256_update(
        &hash, head,
        (size_t)snprintf(head, sizeof head, "pictures 1 %d %d %zu\n", p->channels, p->least, p->count));
    for (size_t i = 0; i < p->count; i++) {
        const uint8_t *bytes = NULL;
        uint8_t *owned = NULL;
        size_t len = 0;
        uint64_t size;
        enum pd_err err = bytes_of(p, &p->items[i], &bytes, &len, &owned, &why);

        /* A file that is too long counts as unreadable; reading it reports the error. */
        if (err != PD_OK && err != PD_ERR_LIMIT)
            return false;
        size = len;
        digest_sha256_update(&hash, &size, sizeof size);
        digest_sha256_update(&hash, bytes, len);
        free(owned);
    }
    digest_sha256_final(&hash, ret_key);
    *ret_encoded = sum;
    return true;
}

static bool use_cache(struct data_pictures *p, struct data_cache *c)
{
    size_t len, table = p->count * sizeof *p->table;
    const uint8_t *body = data_cache_bytes(c, &len);
    const struct decoded *d;

    if (len < table || (len - table) % 8)
        return false;
    d = (const void *)(body + (len - table));
    for (size_t i = 0; i < p->count; i++) {
        uint64_t size = (uint64_t)d[i].height * (uint64_t)d[i].width * (uint64_t)p->channels;

        if (d[i].height < 0 || d[i].width < 0 || (d[i].height && size > len - table) ||
            (d[i].height && d[i].at > len - table - size))
            return false;
    }
    p->cache = c;
    p->cached = body;
    p->table = d;
    return true;
}

static enum pd_err fill(struct data_set *set, struct data_cache_writer *w, struct decoded *table,
                        struct pd_why *why)
{
    static const uint8_t zeros[8];
    struct data_pictures *p = set->pictures;
    uint64_t at = 0;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < p->count && err == PD_OK; i++) {
        struct data_image image = {0};
        struct pd_why reason;
        size_t len;

        if (decode(p, &p->items[i], &image, &reason) != PD_OK)
            continue; /* reported when it is read */
        set->work.decoded_pictures++;
        len = (size_t)image.height * (size_t)image.width * (size_t)image.channels;
        table[i] = (struct decoded){
            .at = at, .height = image.height, .width = image.width, .sum = sum_of(image.pixels, len)};
        err = data_cache_write(w, image.pixels, len, why);
        data_image_done(&image);
        at += len;
    }
    if (err == PD_OK && at % 8)
        err = data_cache_write(w, zeros, 8 - at % 8, why);
    return err == PD_OK ? data_cache_write(w, table, p->count * sizeof *table, why) : err;
}

/* About how many bytes the pixels will take, from the headers of a hundred pictures. */
static uint64_t guess(const struct data_pictures *p)
{
    size_t step = p->count / SAMPLED + 1, seen = 0;
    uint64_t sum = 0;

    for (size_t i = 0; i < p->count; i += step) {
        const uint8_t *bytes = NULL;
        uint8_t *owned = NULL;
        size_t len = 0;
        int32_t h, w;
        struct pd_why why;

        if (bytes_of(p, &p->items[i], &bytes, &len, &owned, &why) == PD_OK &&
            data_image_size(bytes, len, &h, &w, &why) == PD_OK) {
            int32_t shorter = h < w ? h : w, part = 1;

            while (part < 8 && p->least > 0 && (shorter + 2 * part - 1) / (2 * part) >= p->least)
                part *= 2;
            sum += (uint64_t)(h / part + 1) * (uint64_t)(w / part + 1) * (uint64_t)p->channels;
            seen++;
        }
        free(owned);
    }
    return seen ? sum / seen * p->count : 0;
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* From the headers of some hundred pictures. */
static void find_median(struct data_set *set)
{
    const struct data_pictures *p = set->pictures;
    int32_t height[SAMPLED + 1], width[SAMPLED + 1];
    size_t step = p->count / SAMPLED + 1, seen = 0;

    for (size_t i = 0; i < p->count && seen <= SAMPLED; i += step) {
        const uint8_t *bytes = NULL;
        uint8_t *owned = NULL;
        size_t len = 0;
        struct pd_why why;

        if (bytes_of(p, &p->items[i], &bytes, &len, &owned, &why) == PD_OK &&
            data_image_size(bytes, len, &height[seen], &width[seen], &why) == PD_OK)
            seen++;
        free(owned);
    }
    if (!seen)
        return;
    qsort(height, seen, sizeof *height, by_number);
    qsort(width, seen, sizeof *width, by_number);
    set->median_height = height[seen / 2];
    set->median_width = width[seen / 2];
}

/* A set of at most this many decoded bytes is kept: one set must not push out all others. */
#define CACHED_DECODED_MAX (DATA_CACHE_BYTES_MAX / 2)

static void open_cache(struct data_set *set, const char *dir)
{
    struct data_pictures *p = set->pictures;
    struct data_cache_writer *w = NULL;
    struct data_cache *c = NULL;
    struct decoded *table = NULL;
    uint64_t encoded = 0, decoded;
    uint8_t key[32];
    struct pd_why why;
    enum pd_err err;

    if (!key_of(p, key, &encoded))
        return;
    err = data_cache_open(dir, key, &c, &why);
    if (err == PD_OK) {
        set->work.cache_hits++;
    } else {
        set->work.cache_misses++;
        decoded = guess(p);
        if (!decoded || decoded > CACHED_DECODED_MAX)
            return;
        err = data_cache_begin(dir, key, decoded, CACHE_WAIT_MS, &w, &why);
        if (err == PD_OK) {
            table = calloc(p->count, sizeof *table);
            err = table ? fill(set, w, table, &why) : PD_ERR_NOMEM;
            if (err == PD_OK)
                err = data_cache_commit(w, p->count * sizeof *table, &why);
            else
                data_cache_abandon(w);
            free(table);
        }
        if (err == PD_OK || err == PD_ERR_EXISTS)
            err = data_cache_open(dir, key, &c, &why);
    }
    if (err == PD_OK && !use_cache(p, c))
        data_cache_close(c);
}

/* ---- opening ---- */

static void note(struct data_set *set, const struct picture *i)
{
    const char *name = data_picture_text(set->pictures, i);
    struct stat s;
    uint64_t size = i->len;

    if (set->pictures->dir >= 0)
        size = fstatat(set->pictures->dir, name, &s, 0) == 0 ? (uint64_t)s.st_size : 0;
    data_note_name(set, name, size);
}

enum pd_err data_open_pictures(struct data_set *set, const struct data_options *o, bool headers_only,
                               struct pd_why *why)
{
    struct data_pictures *p = calloc(1, sizeof *p);
    struct data_eval_fit fit = {
        .height = o->height, .width = o->width, .crop = o->eval_crop > 0 ? o->eval_crop : 1};
    int64_t given[DATA_SPLITS] = {0};
    bool archive = o->path && data_archive_named(o->path);
    enum pd_err err;

    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a data set");
    set->pictures = p;
    p->until_us = o->until_us;
    p->standard = o->rule == DATA_SPLIT_STANDARD;
    p->val_is_test = o->val_is_test;
    p->test = !p->standard && o->scored == DATA_SCORED_TEST && o->rule != DATA_SPLIT_FRACTION;
    p->dir = p->tar = -1;
    pd_buf_init(&p->names, DATA_NAME_BYTES_MAX);
    pd_buf_init(&p->notes, DATA_NOTES_MAX);
    set->info.channels = p->channels = 3;
    data_normalisation(3, set->info.mean, set->info.std);
    if (!o->height)
        return pd_fail(why, PD_ERR_INVALID, "#/data/image_size: is required: these pictures vary in size");
    p->least = data_eval_least(&fit);
    err = data_path_open(o->roots, o->root_count, o->path, !archive, archive ? &p->tar : &p->dir, why);
    if (err == PD_OK)
        err = data_pictures_list(p, o->path, why);
    if (err == PD_OK)
        err = data_pictures_classes(set, given, why);
    if (err == PD_OK)
        err = data_divide_samples(set, o, given, headers_only, why);
    if (err == PD_OK)
        find_median(set);
    if (err != PD_OK || headers_only)
        return err;
    set->labels = malloc(p->count * sizeof *set->labels);
    if (!set->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the labels");
    for (size_t i = 0; i < p->count; i++) {
        set->labels[i] = p->items[i].label;
        note(set, &p->items[i]);
    }
    if (p->notes.len)
        data_note_file(set, "val_annotations.txt", p->notes.data, p->notes.len, NULL, 0);
    if (o->cache_dir)
        open_cache(set, o->cache_dir);
    return PD_OK;
}
