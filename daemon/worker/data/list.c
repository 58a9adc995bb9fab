/* daemon/worker/data/list.c: which pictures a folder or an archive holds, and the class of each.
 *
 * They are sorted by (part, class, name) in byte order: a folder and an archive of it give the same set. */
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

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/pictures.h"
#include "daemon/worker/data/tar.h"
#include "kernels/base/text.h"

#define DEPTH_MAX 8 /* folders below the set's own */

bool data_archive_named(const char *name)
{
    return pd_text_ends(name, ".tar") || pd_text_ends(name, ".tar.gz") || pd_text_ends(name, ".tgz");
}

/* ---- listing ---- */

bool data_picture_named(const char *name)
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

/* A picture of a kind that is not read, which a user may expect to be. */
static bool is_unread_picture(const char *name)
{
    static const char *const ends[] = {".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".jp2"};
    const char *base = strrchr(name, '/'), *dot = strrchr(name, '.');

    base = base ? base + 1 : name;
    for (size_t i = 0; dot && base[0] != '.' && i < sizeof ends / sizeof *ends; i++)
        if (!strcasecmp(dot, ends[i]))
            return true;
    return false;
}

static void pass_over(struct data_passed *p, const char *name)
{
    if (!p->count++)
        snprintf(p->name, sizeof p->name, "%.255s", name);
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

bool data_part_folder_named(const char *name)
{
    return part_named(name, strlen(name)) != WHOLE;
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
    enum pd_err err = data_in_time(p->until_us, why);

    if (err != PD_OK)
        return err;
    if (is_unread_picture(name))
        pass_over(&p->unread, name);
    if (!data_picture_named(name))
        return PD_OK;
    if (p->count >= DATA_PICTURES_MAX || p->names.len + strlen(name) + 1 > DATA_NAME_BYTES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "there are more than %d pictures, or their names are too long",
                       DATA_PICTURES_MAX);
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
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", path);
        return pd_fail_errno(why, saved, "cannot list '%s'", path);
    }
    while (err == PD_OK && (e = readdir(d)) != NULL) {
        char name[PATH_MAX];
        int type = e->d_type;

        if (e->d_name[0] == '.')
            continue;
        if ((size_t)snprintf(name, sizeof name, "%s%s%s", path, *path ? "/" : "", e->d_name) >= sizeof name) {
            err = pd_fail(why, PD_ERR_LIMIT, "a path has more than %d bytes", PATH_MAX);
            break;
        }
        if (type == DT_UNKNOWN || type == DT_LNK) {
            struct stat s;

            if (fstatat(dirfd(d), e->d_name, &s, 0) != 0)
                continue; /* a link to nothing */
            type = S_ISDIR(s.st_mode) ? DT_DIR : S_ISREG(s.st_mode) ? DT_REG : DT_UNKNOWN;
        }
        if (type == DT_DIR && depth == DEPTH_MAX)
            err = pd_fail(why, PD_ERR_LIMIT, "'%s' is nested more than %d folders deep", name, DEPTH_MAX);
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

enum pd_err data_pictures_pread(const struct data_pictures *p, uint64_t at, void *to, size_t len,
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
                         : pd_fail(why, PD_ERR_IO, "the archive was truncated while it was read");
        into += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return PD_OK;
}

static enum pd_err read_tar(void *user, uint64_t at, void *to, size_t len, struct pd_why *why)
{
    return data_pictures_pread(user, at, to, len, why);
}

/* Whether a file or one of its folders is hidden: in a folder it would not be listed. */
static bool is_hidden(const char *name)
{
    return name[0] == '.' || strstr(name, "/.");
}

static void tar_link(void *user, const char *name)
{
    struct data_pictures *p = user;

    if (data_picture_named(name) && !is_hidden(name))
        pass_over(&p->links, name);
}

static enum pd_err tar_entry(void *user, const char *name, uint64_t at, uint64_t len, struct pd_why *why)
{
    struct data_pictures *p = user;

    if (is_hidden(name))
        return PD_OK;
    if (is_notes(name)) {
        void *to;

        if (len > DATA_NOTES_MAX)
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
                err = pd_fail(
                    why, PD_ERR_LIMIT,
                    "'%s' has more than %zu bytes after decompression: store it as an uncompressed tar", path,
                    DATA_FILE_LIMIT);
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
        err = data_in_time(p->until_us, why);
        if (err != PD_OK)
            break;
        p->memory_len += (size_t)n;
    }
    (void)gzerror(f, &code);
    if (err == PD_OK && code != Z_OK && code != Z_STREAM_END)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is truncated", path);
    gzclose(f);
    return err;
}

static enum pd_err list_tar(struct data_pictures *p, const char *path, struct pd_why *why)
{
    struct data_tar_source source = {.read = read_tar, .link = tar_link, .user = p};
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
    if (!c)
        c = strcmp(base + x->name, base + y->name);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

/* An archive to which a file was appended again has it twice: the last is the one that unpacking leaves. */
static void keep_last(struct data_pictures *p)
{
    size_t kept = 0;

    for (size_t i = 0; i < p->count; i++)
        if (i + 1 == p->count ||
            strcmp(data_picture_text(p, &p->items[i]), data_picture_text(p, &p->items[i + 1])) != 0)
            p->items[kept++] = p->items[i];
    p->count = kept;
}

/* Removes files that belong to no part: if train/ and val/ exist, only they count; test/ replaces a missing
 * val/, or where it is asked for. */
static enum pd_err keep_parts(struct data_pictures *p, const char *path, struct pd_why *why)
{
    size_t count[4] = {0}, kept = 0;

    for (size_t i = 0; i < p->count; i++)
        count[p->items[i].part]++;
    if (p->test && count[TRAIN] && !count[TEST])
        return pd_fail(why, PD_ERR_INVALID, "#/split: '%s' has no folder 'test'; set val or train", path);
    for (size_t i = 0; i < p->count; i++) {
        struct picture item = p->items[i];

        if (p->standard) {
            if (count[TRAIN] ? item.part == WHOLE || (item.part == TEST && p->val_is_test)
                             : item.part == TEST)
                continue;
            p->items[kept++] = item;
            continue;
        }
        if (p->test && count[TRAIN] && (item.part == TEST || item.part == VAL))
            item.part = item.part == TEST ? VAL : TEST;
        else if (item.part == TEST && !count[VAL])
            item.part = VAL;
        if (count[TRAIN] ? item.part > VAL : item.part == TEST)
            continue;
        p->items[kept++] = item;
    }
    p->count = kept;
    return PD_OK;
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
        const char *name = data_picture_text(p, item), *base = strrchr(name, '/');
        struct note key = {.file = base ? base + 1 : name}, *found;

        if (item->part != VAL || item->class_len != 6 || memcmp(name + item->class, "images", 6) != 0)
            continue;
        key.file_len = strlen(key.file);
        found = bsearch(&key, notes, count, sizeof *notes, by_file);
        if (!found) {
            err = pd_fail(why, PD_ERR_INVALID, "val_annotations.txt does not name '%.200s'", name);
        } else {
            if (p->names.len + found->class_len + 1 > DATA_NAME_BYTES_MAX) {
                err = pd_fail(why, PD_ERR_LIMIT, "the names are too long");
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

static enum data_split part_of(const struct data_pictures *p, const struct picture *item)
{
    if (item->part == VAL)
        return p->standard && p->val_is_test ? DATA_TEST : DATA_VAL;
    return item->part == TEST ? DATA_TEST : DATA_TRAIN;
}

/* Classes are those of the training part (of all pictures, where nothing is divided), in byte order. */
enum pd_err data_pictures_classes(struct data_set *set, int64_t given[DATA_SPLITS], struct pd_why *why)
{
    struct data_pictures *p = set->pictures;
    size_t size = 0;

    for (size_t i = 0; i < p->count; i++) {
        struct picture *item = &p->items[i];
        const char *class = data_picture_text(p, item) + item->class;
        int32_t low = 0, high = set->info.classes;

        if (!item->class_len)
            return pd_fail(why, PD_ERR_INVALID, "'%.200s' is not in a folder with the name of its class",
                           data_picture_text(p, item));
        given[part_of(p, item)]++;
        if (part_of(p, item) == DATA_TRAIN &&
            (!high || compare_class(set->names[high - 1], strlen(set->names[high - 1]), class,
                                    item->class_len) != 0)) {
            const char *odd = data_class_odd(class, item->class_len);

            if (odd)
                return pd_fail(why, PD_ERR_INVALID, "the folder of '%.200s' is no name of a class: it %s",
                               data_picture_text(p, item), odd);
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
                           class, data_picture_text(p, item));
    }
    return PD_OK;
}

enum pd_err data_pictures_list(struct data_pictures *p, const char *path, struct pd_why *why)
{
    enum pd_err err = p->tar >= 0 ? list_tar(p, path, why) : list(p, "", 0, why);

    if (err == PD_OK)
        err = keep_parts(p, path, why);
    if (err != PD_OK)
        return err;
    if (!p->count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%s' has no .jpg, .jpeg or .png files in folders of classes",
                       path);
    if (p->notes.len)
        err = apply_notes(p, why);
    if (err != PD_OK)
        return err;
    qsort_r(p->items, p->count, sizeof *p->items, by_place, p->names.data);
    keep_last(p);
    return PD_OK;
}
