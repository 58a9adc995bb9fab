/* daemon/data/pictures.c: JPEG and PNG files in folders or in a tar, one folder a class.
 *
 * Opening lists the files, sorts them by (part, class, name) in byte order, and numbers the classes of the
 * training part. A picture is decoded when it is asked for, always at the scale that data_eval_least allows,
 * so that its pixels do not depend on the crop. Sets small enough are decoded once into a cache (cache.h)
 * under a digest of all their bytes, and mapped from then on. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/data/cache.h"
#include "daemon/data/path.h"
#include "daemon/data/set.h"
#include "daemon/data/tar.h"
#include "daemon/digest/digest.h"

#define DEPTH_MAX 8                            /* folders below the set's own */
#define NAME_BYTES_MAX ((size_t)UINT32_MAX)    /* of all names together */
#define ANNOTATIONS_MAX ((size_t)256 << 20)    /* of val_annotations.txt */
#define CACHED_ENCODED_MAX ((uint64_t)1 << 30) /* sets with more bytes are decoded each time */
#define CACHED_FILES_MAX 500000                /* likewise with more files */
#define CACHE_WAIT_MS (20 * 60 * 1000)

enum part { TRAIN, VAL, TEST, WHOLE };

struct picture {
    uint64_t at;    /* tar: where its bytes lie */
    uint32_t len;   /* tar: how many */
    uint32_t name;  /* offset into names */
    uint32_t class; /* offset of the class's name in its own name, and its length */
    uint16_t class_len;
    uint8_t part;
    int32_t label;
};

/* Where one decoded picture lies in the cache; the table is the cache's tail. */
struct decoded {
    uint64_t at;
    int32_t height, width; /* 0: it could not be decoded */
    uint32_t sum, reserved;
};

struct data_pictures {
    int dir, tar;    /* one of them, or -1 */
    uint8_t *memory; /* or an archive unpacked from gzip */
    size_t memory_len;
    struct picture *items;
    size_t count, size;
    struct pd_buf names;
    struct pd_buf notes; /* val_annotations.txt */
    struct data_cache *cache;
    const uint8_t *cached; /* its body */
    const struct decoded *table;
    int32_t channels, least;
};

/* The customary constants of ImageNet. */
static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};

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

static const char *name_of(const struct data_pictures *p, const struct picture *i)
{
    return p->names.data + i->name;
}

const char *data_picture_name(const struct data_set *set, int64_t index)
{
    return name_of(set->pictures, &set->pictures->items[index]);
}

/* ---- listing ---- */

static bool is_picture(const char *name)
{
    static const char *const ends[] = {".jpg", ".jpeg", ".png"};
    const char *base = strrchr(name, '/');
    size_t n = strlen(name);

    base = base ? base + 1 : name;
    for (size_t i = 0; i < 3; i++)
        if (n > strlen(ends[i]) && !strcasecmp(name + n - strlen(ends[i]), ends[i]))
            return base[0] != '.'; /* "._x.jpg" are leavings of another system */
    return false;
}

static enum part part_named(const char *name, size_t len)
{
    static const struct {
        const char *name;
        enum part part;
    } known[] = {{"train", TRAIN}, {"val", VAL}, {"valid", VAL}, {"validation", VAL}, {"test", TEST}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == len && !memcmp(known[i].name, name, len))
            return known[i].part;
    return WHOLE;
}

/* Finds part and class in the folders of the name: below train, val or test the next folder is the class;
 * without them the nearest folder that is not "images". */
static void sort_in(struct picture *i, const char *name)
{
    const char *at = name, *slash;

    i->part = WHOLE;
    i->class_len = 0;
    while ((slash = strchr(at, '/')) != NULL) {
        size_t n = (size_t)(slash - at);
        enum part part = i->part == WHOLE ? part_named(at, n) : WHOLE;

        if (part != WHOLE) {
            i->part = (uint8_t)part;
            i->class_len = 0;
        } else if (n && n <= NAME_MAX && !(i->part != WHOLE && i->class_len) &&
                   !(n == 6 && !memcmp(at, "images", 6) && i->class_len)) {
            i->class = (uint32_t)(at - name);
            i->class_len = (uint16_t)n;
        }
        at = slash + 1;
    }
}

static enum pd_err add(struct data_pictures *p, const char *name, uint64_t at, uint64_t len,
                       struct pd_why *why)
{
    struct picture *i;

    if (!is_picture(name))
        return PD_OK;
    if (p->count >= DATA_PICTURES_MAX || p->names.len + strlen(name) + 1 > NAME_BYTES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "more than %d pictures, or too long names", DATA_PICTURES_MAX);
    if (p->count == p->size) {
        size_t size = p->size ? p->size * 2 : 1024;
        struct picture *more = realloc(p->items, size * sizeof *more);

        if (!more)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a list of %zu pictures", size);
        p->items = more;
        p->size = size;
    }
    i = &p->items[p->count++];
    *i = (struct picture){.at = at,
                          /* What is too long to be a picture is refused when it is read. */
                          .len = len > UINT32_MAX ? UINT32_MAX : (uint32_t)len,
                          .name = (uint32_t)p->names.len};
    sort_in(i, name);
    pd_buf_append(&p->names, name, strlen(name) + 1);
    return pd_buf_err(&p->names);
}

static bool is_notes(const char *name)
{
    const char *base = strrchr(name, '/');

    return !strcmp(base ? base + 1 : name, "val_annotations.txt");
}

static enum pd_err read_notes(struct data_pictures *p, const char *path, struct pd_why *why)
{
    int fd = data_open_beneath(p->dir, path, O_RDONLY | O_NONBLOCK);
    char piece[65536];
    ssize_t n = -1;

    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        pd_buf_append(&p->notes, piece, (size_t)n);
    close(fd);
    return n < 0 ? pd_fail(why, PD_ERR_IO, "cannot read '%s'", path) : pd_buf_err(&p->notes);
}

static enum pd_err list(struct data_pictures *p, const char *path, int depth, struct pd_why *why)
{
    int fd = data_open_beneath(p->dir, path, O_RDONLY | O_DIRECTORY);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;
    enum pd_err err = PD_OK;

    if (!d) {
        int saved = errno;

        if (fd >= 0)
            close(fd);
        if (saved == EXDEV || saved == ELOOP)
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads out of its folder", path);
        return pd_fail_errno(why, saved, "cannot list '%s'", path);
    }
    while (err == PD_OK && (e = readdir(d)) != NULL) {
        char name[PATH_MAX];
        int type = e->d_type;

        if (e->d_name[0] == '.')
            continue;
        if ((size_t)snprintf(name, sizeof name, "%s%s%s", path, *path ? "/" : "", e->d_name) >= sizeof name) {
            err = pd_fail(why, PD_ERR_LIMIT, "a path of more than %d bytes", PATH_MAX);
            break;
        }
        if (type == DT_UNKNOWN || type == DT_LNK) {
            struct stat s;

            if (fstatat(dirfd(d), e->d_name, &s, 0) != 0)
                continue; /* a link to nothing */
            type = S_ISDIR(s.st_mode) ? DT_DIR : S_ISREG(s.st_mode) ? DT_REG : DT_UNKNOWN;
        }
        if (type == DT_DIR && depth == DEPTH_MAX)
            err = pd_fail(why, PD_ERR_LIMIT, "'%s': more than %d folders deep", name, DEPTH_MAX);
        else if (type == DT_DIR)
            err = list(p, name, depth + 1, why);
        else if (type == DT_REG && is_notes(name))
            err = read_notes(p, name, why);
        else if (type == DT_REG)
            err = add(p, name, 0, 0, why);
    }
    closedir(d);
    return err;
}

/* ---- archives ---- */

static enum pd_err read_archive(const struct data_pictures *p, uint64_t at, void *to, size_t len,
                                struct pd_why *why)
{
    char *into = to;

    if (p->memory) {
        memcpy(to, p->memory + at, len);
        return PD_OK;
    }
    while (len) {
        ssize_t n = pread(p->tar, into, len, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? pd_fail_errno(why, errno, "cannot read the archive")
                         : pd_fail(why, PD_ERR_IO, "the archive became shorter");
        into += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return PD_OK;
}

static enum pd_err read_tar(void *user, uint64_t at, void *to, size_t len, struct pd_why *why)
{
    return read_archive(user, at, to, len, why);
}

static enum pd_err tar_entry(void *user, const char *name, uint64_t at, uint64_t len, struct pd_why *why)
{
    struct data_pictures *p = user;

    if (is_notes(name)) {
        void *to;

        if (len > ANNOTATIONS_MAX)
            return pd_fail(why, PD_ERR_LIMIT, "'%s' holds %llu bytes", name, (unsigned long long)len);
        to = pd_buf_reserve(&p->notes, (size_t)len);
        return to ? read_tar(p, at, to, (size_t)len, why) : pd_buf_err(&p->notes);
    }
    return add(p, name, at, len, why);
}

/* A gzip'd archive is unpacked into memory: its pictures are read in any order. */
static enum pd_err unpack(struct data_pictures *p, const char *path, struct pd_why *why)
{
    int fd = dup(p->tar), code = Z_OK;
    gzFile f = fd < 0 ? NULL : gzdopen(fd, "rb");
    size_t size = 0;
    enum pd_err err = PD_OK;

    if (!f) {
        if (fd >= 0)
            close(fd);
        return pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", path);
    }
    for (;;) {
        int n;

        if (p->memory_len == size) {
            uint8_t *more;

            if (size >= DATA_FILE_LIMIT) {
                err = pd_fail(why, PD_ERR_LIMIT, "'%s' holds more than %zu bytes: unpack it to a plain tar",
                              path, DATA_FILE_LIMIT);
                break;
            }
            size = size ? size * 2 : (size_t)1 << 20;
            more = realloc(p->memory, size);
            if (!more) {
                err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", path);
                break;
            }
            p->memory = more;
        }
        n = gzread(f, p->memory + p->memory_len,
                   (unsigned)(size - p->memory_len < 1u << 30 ? size - p->memory_len : 1u << 30));
        if (n < 0) {
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s': %s", path, gzerror(f, &code));
            break;
        }
        if (n == 0)
            break;
        p->memory_len += (size_t)n;
    }
    (void)gzerror(f, &code);
    if (err == PD_OK && code != Z_OK && code != Z_STREAM_END)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is cut short", path);
    gzclose(f);
    return err;
}

static enum pd_err list_tar(struct data_pictures *p, const char *path, struct pd_why *why)
{
    struct data_tar_source source = {.read = read_tar, .user = p};
    uint8_t mark[2] = {0};
    struct stat s;
    enum pd_err err = PD_OK;

    if (fstat(p->tar, &s) != 0)
        return pd_fail_errno(why, errno, "cannot stat '%s'", path);
    if (pread(p->tar, mark, 2, 0) == 2 && mark[0] == 0x1f && mark[1] == 0x8b)
        err = unpack(p, path, why);
    source.size = p->memory ? p->memory_len : (uint64_t)s.st_size;
    return err == PD_OK ? data_tar_scan(&source, tar_entry, p, why) : err;
}

/* ---- order and classes ---- */

static int compare_class(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, a_len < b_len ? a_len : b_len);

    return c ? c : (a_len > b_len) - (a_len < b_len);
}

static int by_place(const void *a, const void *b, void *names)
{
    const struct picture *x = a, *y = b;
    const char *base = names;
    int c;

    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    c = compare_class(base + x->name + x->class, x->class_len, base + y->name + y->class, y->class_len);
    return c ? c : strcmp(base + x->name, base + y->name);
}

/* Drops what belongs to no part: beside train/ and val/ only they count; test/ stands in where there is no
 * val/. */
static void keep_parts(struct data_pictures *p)
{
    size_t count[4] = {0}, kept = 0;

    for (size_t i = 0; i < p->count; i++)
        count[p->items[i].part]++;
    for (size_t i = 0; i < p->count; i++) {
        struct picture item = p->items[i];

        if (item.part == TEST && !count[VAL])
            item.part = VAL;
        if (count[TRAIN] ? item.part > VAL : item.part == TEST)
            continue;
        p->items[kept++] = item;
    }
    p->count = kept;
}

struct note {
    const char *file, *class;
    size_t file_len, class_len;
};

static int by_file(const void *a, const void *b)
{
    const struct note *x = a, *y = b;

    return compare_class(x->file, x->file_len, y->file, y->file_len);
}

/* Tiny-ImageNet's validation pictures lie in one folder; "file TAB class ..." lines tell theirs. The class is
 * kept as an offset into names, where it is appended. */
static enum pd_err apply_notes(struct data_pictures *p, struct pd_why *why)
{
    struct note *notes = NULL;
    size_t count = 0, lines = 1;
    const char *at = p->notes.data, *end = at + p->notes.len;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < p->notes.len; i++)
        lines += p->notes.data[i] == '\n';
    notes = calloc(lines, sizeof *notes);
    if (!notes)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for val_annotations.txt");
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *tab;

        stop = stop ? stop : end;
        tab = memchr(at, '\t', (size_t)(stop - at));
        if (tab && tab > at) {
            const char *next = memchr(tab + 1, '\t', (size_t)(stop - tab - 1));

            next = next ? next : stop;
            while (next > tab + 1 && next[-1] == '\r')
                next--;
            if (next > tab + 1 && next - tab - 1 <= NAME_MAX)
                notes[count++] = (struct note){at, tab + 1, (size_t)(tab - at), (size_t)(next - tab - 1)};
        }
        at = stop + 1;
    }
    qsort(notes, count, sizeof *notes, by_file);
    for (size_t i = 0; i < p->count && err == PD_OK; i++) {
        struct picture *item = &p->items[i];
        const char *name = name_of(p, item), *base = strrchr(name, '/');
        struct note key = {.file = base ? base + 1 : name}, *found;

        if (item->part != VAL || item->class_len != 6 || memcmp(name + item->class, "images", 6) != 0)
            continue;
        key.file_len = strlen(key.file);
        found = bsearch(&key, notes, count, sizeof *notes, by_file);
        if (!found) {
            err = pd_fail(why, PD_ERR_INVALID, "val_annotations.txt does not name '%.200s'", name);
        } else {
            if (p->names.len + found->class_len + 1 > NAME_BYTES_MAX) {
                err = pd_fail(why, PD_ERR_LIMIT, "too long names");
                break;
            }
            item->class = (uint32_t)(p->names.len - item->name);
            item->class_len = (uint16_t)found->class_len;
            pd_buf_append(&p->names, found->class, found->class_len);
            err = pd_buf_err(&p->names);
        }
    }
    free(notes);
    return err;
}

/* Classes are those of the training part (of all pictures, where nothing is divided), in byte order. */
static enum pd_err number_classes(struct data_set *set, int64_t given[2], struct pd_why *why)
{
    struct data_pictures *p = set->pictures;
    size_t size = 0;

    for (size_t i = 0; i < p->count; i++) {
        struct picture *item = &p->items[i];
        const char *class = name_of(p, item) + item->class;
        int32_t low = 0, high = set->info.classes;

        if (!item->class_len)
            return pd_fail(why, PD_ERR_INVALID, "'%.200s' lies in no folder that names its class",
                           name_of(p, item));
        given[item->part == VAL]++;
        if (item->part != VAL && (!high || compare_class(set->names[high - 1], strlen(set->names[high - 1]),
                                                         class, item->class_len) != 0)) {
            if (high == DATA_CLASSES_MAX)
                return pd_fail(why, PD_ERR_LIMIT, "more than %d classes", DATA_CLASSES_MAX);
            if ((size_t)high == size) {
                char **more;

                size = size ? size * 2 : 64;
                more = realloc(set->names, size * sizeof *more);
                if (!more)
                    return pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
                set->names = more;
            }
            set->names[high] = strndup(class, item->class_len);
            if (!set->names[high])
                return pd_fail(why, PD_ERR_NOMEM, "no memory for the classes");
            set->info.classes++;
            item->label = high;
            continue;
        }
        while (low < high) {
            int32_t middle = low + (high - low) / 2;
            int c = compare_class(set->names[middle], strlen(set->names[middle]), class, item->class_len);

            if (c == 0) {
                item->label = middle;
                break;
            }
            if (c < 0)
                low = middle + 1;
            else
                high = middle;
        }
        if (low >= high)
            return pd_fail(why, PD_ERR_INVALID,
                           "the class '%.*s' of '%.200s' is not one of the training part", item->class_len,
                           class, name_of(p, item));
    }
    return PD_OK;
}

/* ---- reading one ---- */

/* Its bytes; *ret_owned is NULL where they lie in memory already. */
static enum pd_err bytes_of(const struct data_pictures *p, const struct picture *item, const uint8_t **ret,
                            size_t *ret_len, uint8_t **ret_owned, struct pd_why *why)
{
    const char *name = name_of(p, item);
    uint8_t *bytes = NULL;
    size_t len = item->len, got = 0;
    struct stat s;
    int fd = -1;
    enum pd_err err = PD_OK;

    *ret_owned = NULL;
    if (p->dir >= 0) {
        fd = data_open_beneath(p->dir, name, O_RDONLY | O_NONBLOCK);
        if (fd < 0 && (errno == EXDEV || errno == ELOOP))
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads out of its folder", name);
        if (fd < 0)
            return pd_fail_errno(why, errno, "cannot open '%s'", name);
        if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
            close(fd);
            return pd_fail(why, PD_ERR_IO, "'%s' is no plain file any more", name);
        }
        len = (uint64_t)s.st_size > UINT32_MAX ? UINT32_MAX : (size_t)s.st_size;
    }
    if (len > DATA_IMAGE_BYTES_MAX) {
        err = pd_fail(why, PD_ERR_LIMIT, "a picture of %zu bytes or more", len);
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
        err = read_archive(p, item->at, bytes, len, why);
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

        if (p->dir >= 0 && fstatat(p->dir, name_of(p, &p->items[i]), &s, 0) != 0)
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
        uint64_t said;
        enum pd_err err = bytes_of(p, &p->items[i], &bytes, &len, &owned, &why);

        /* One that is too long is as good as none: it will be told when it is asked for. */
        if (err != PD_OK && err != PD_ERR_LIMIT)
            return false;
        said = len;
        digest_sha256_update(&hash, &said, sizeof said);
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
            continue; /* told when it is asked for */
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
    size_t step = p->count / 100 + 1, seen = 0;
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

static bool ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && !strcmp(name + n - m, end);
}

enum pd_err data_open_pictures(struct data_set *set, const struct data_options *o, bool headers_only,
                               struct pd_why *why)
{
    struct data_pictures *p = calloc(1, sizeof *p);
    struct data_eval_fit fit = {
        .height = o->height, .width = o->width, .crop = o->eval_crop > 0 ? o->eval_crop : 1};
    int64_t given[2] = {0};
    bool archive = o->path && (ends(o->path, ".tar") || ends(o->path, ".tar.gz") || ends(o->path, ".tgz"));
    enum pd_err err;

    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a data set");
    set->pictures = p;
    p->dir = p->tar = -1;
    pd_buf_init(&p->names, NAME_BYTES_MAX);
    pd_buf_init(&p->notes, ANNOTATIONS_MAX);
    set->info.channels = p->channels = 3;
    for (int c = 0; c < 3; c++) {
        set->info.mean[c] = mean[c];
        set->info.std[c] = deviation[c];
    }
    if (!o->height)
        return pd_fail(why, PD_ERR_INVALID, "data.image_size is needed: these pictures vary in size");
    p->least = data_eval_least(&fit);
    err = data_path_open(o->roots, o->root_count, o->path, !archive, archive ? &p->tar : &p->dir, why);
    if (err == PD_OK)
        err = archive ? list_tar(p, o->path, why) : list(p, "", 0, why);
    if (err != PD_OK)
        return err;
    keep_parts(p);
    if (!p->count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%s' holds no .jpg, .jpeg or .png files in folders of classes",
                       o->path);
    if (p->notes.len)
        err = apply_notes(p, why);
    if (err != PD_OK)
        return err;
    qsort_r(p->items, p->count, sizeof *p->items, by_place, p->names.data);
    err = number_classes(set, given, why);
    if (err == PD_OK)
        err = data_divide_images(set, o, given, given[0] && given[1], headers_only, why);
    if (err != PD_OK || headers_only)
        return err;
    set->labels = malloc(p->count * sizeof *set->labels);
    if (!set->labels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the labels");
    for (size_t i = 0; i < p->count; i++)
        set->labels[i] = p->items[i].label;
    if (o->cache_dir)
        open_cache(set, o->cache_dir);
    return PD_OK;
}
