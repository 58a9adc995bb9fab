/* daemon/worker/data/textfile.c: the bytes of a text file, plain or gzip'd, and what is odd about them.
 *
 * gzip is recognised by its first bytes, not by the name. zlib checks the CRC at the end of each member. What
 * comes out is bounded as a plain file is (DATA_FILE_LIMIT), and memory grows only as bytes come. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/worker/data/set.h"
#include "daemon/worker/data/tokens.h"

#define PIECE ((size_t)1 << 18)
#define HEAD ((size_t)1 << 16) /* bytes by which text is distinguished from other files */

static const struct packing {
    const char *name;
    size_t len;
    const char *bytes;
} packings[] = {
    {"gzip", 3, "\x1f\x8b\x08"},
    {"xz", 6,
     "\xfd"
     "7zXZ\0"},
    {"zstd", 4, "\x28\xb5\x2f\xfd"},
    {"bzip2", 4, "BZh9"},
    {"zip", 4, "PK\3\4"},
};

/* How the file is packed, by its first bytes; NULL: it is not, or in a way that is not known. */
static const char *packing_of(int fd)
{
    char head[8];
    ssize_t n = pread(fd, head, sizeof head, 0);

    for (size_t i = 0; i < sizeof packings / sizeof *packings; i++)
        if (n >= (ssize_t)packings[i].len && !memcmp(head, packings[i].bytes, packings[i].len))
            return packings[i].name;
    return NULL;
}

bool data_of_documents(const struct data_set *set)
{
    return set->options.dataset == DATA_SET_DOCUMENTS || set->options.dataset == DATA_SET_PAIRS;
}

static size_t limit_of(const struct data_set *set)
{
    return data_of_documents(set) ? DATA_FOLDER_LIMIT : DATA_FILE_LIMIT;
}

enum pd_err data_text_reserve(struct data_set *set, size_t len, const char *name, struct pd_why *why)
{
    size_t capacity = len + 1;
    uint8_t *more;

    if (set->text && capacity <= set->text_size)
        return PD_OK;
    /* One file wants what it holds; of a folder's files many follow. */
    if (data_of_documents(set) && capacity < set->text_size + set->text_size / 2)
        capacity = set->text_size + set->text_size / 2;
    more = realloc(set->text, capacity);
    if (!more)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
    set->text = more;
    set->text_size = capacity;
    return PD_OK;
}

static enum pd_err read_uncompressed(struct data_set *set, int fd, const char *name, int64_t size, int64_t at,
                                     struct pd_why *why)
{
    enum pd_err err = data_text_reserve(set, (size_t)(at + size), name, why);

    for (int64_t got = 0; err == PD_OK && got < size;) {
        ssize_t n = read(fd, set->text + at + got, (size_t)(size - got));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? pd_fail_errno(why, errno, "cannot read '%s'", name)
                         : pd_fail(why, PD_ERR_IO, "'%s' was truncated while it was read", name);
        got += n;
    }
    return err;
}

/* Unpacks to the end. size_only: through a small buffer. Takes the descriptor over. */
static enum pd_err read_gzip(struct data_set *set, int fd, const char *name, bool size_only, int64_t *at,
                             struct pd_why *why)
{
    size_t capacity = 0; /* beyond *at */
    uint8_t *piece = size_only ? malloc(PIECE) : NULL;
    gzFile f = gzdopen(fd, "rb");
    int64_t whole = *at;
    enum pd_err err = PD_OK;
    int n, code;

    if (!f) {
        close(fd);
        free(piece);
        return pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
    }
    if (size_only && !piece)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
    (void)gzbuffer(f, PIECE);
    while (err == PD_OK) {
        if (!size_only && !capacity) {
            capacity = (size_t)whole / 2 + PIECE;
            err = data_text_reserve(set, (size_t)whole + capacity, name, why);
            if (err != PD_OK)
                break;
        }
        n = gzread(f, size_only ? piece : set->text + whole,
                   (unsigned)(size_only || capacity > PIECE ? PIECE : capacity));
        if (n < 0) {
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s' cannot be decompressed: %s", name, gzerror(f, &code));
            break;
        }
        if (n == 0) {
            (void)gzerror(f, &code);
            if (code != Z_OK && code != Z_STREAM_END)
                err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is truncated", name);
            break;
        }
        whole += n;
        capacity -= size_only ? 0 : (size_t)n;
        err = data_in_time(set->options.until_us, why);
        if (err != PD_OK)
            break;
        if (whole > (int64_t)limit_of(set))
            err = pd_fail(why, PD_ERR_LIMIT, "'%s' has more than %zu bytes after decompression", name,
                          limit_of(set));
    }
    gzclose(f);
    free(piece);
    if (err == PD_OK)
        *at = whole;
    return err;
}

static enum pd_err append(struct data_set *set, int fd, const char *name, bool size_only, int64_t *at,
                          struct pd_why *why)
{
    const char *packing;
    struct stat s;
    enum pd_err err = PD_OK;

    if (fstat(fd, &s) != 0) {
        err = pd_fail_errno(why, errno, "cannot stat '%s'", name);
        goto out;
    }
    if (!S_ISREG(s.st_mode)) {
        err = pd_fail(why, PD_ERR_INVALID, "'%s' is not a regular file", name);
        goto out;
    }
    packing = packing_of(fd);
    if (packing && !strcmp(packing, "gzip"))
        return read_gzip(set, fd, name, size_only, at, why);
    set->text_packing = packing ? packing : set->text_packing;
    if ((uint64_t)s.st_size + (uint64_t)*at > limit_of(set))
        err = pd_fail(why, PD_ERR_LIMIT, "'%s' has %lld bytes; the limit is %zu", name, (long long)s.st_size,
                      limit_of(set));
    else if (!size_only)
        err = read_uncompressed(set, fd, name, s.st_size, *at, why);
    if (err == PD_OK)
        *at += s.st_size;
out:
    close(fd);
    return err;
}

enum pd_err data_text_append(struct data_set *set, int fd, const char *name, bool size_only, int64_t *at,
                             struct pd_why *why)
{
    const int64_t before = *at;
    enum pd_err err = append(set, fd, name, size_only, at, why);

    if (err == PD_OK && !size_only)
        data_note_file(set, name, set->text + before, (size_t)(*at - before), NULL, 0);
    return err;
}

bool data_text_begins(int fd, const char **ret_packing)
{
    const char *packing = packing_of(fd);
    bool gzip = packing && !strcmp(packing, "gzip");
    uint8_t *head = malloc(HEAD);
    size_t len = 0;
    gzFile f;
    int own, n;

    *ret_packing = gzip ? NULL : packing;
    own = !packing || gzip ? dup(fd) : -1;
    f = head && own >= 0 && lseek(own, 0, SEEK_SET) == 0 ? gzdopen(own, "rb") : NULL;
    if (!f && own >= 0)
        close(own);
    while (f && len < HEAD && (n = gzread(f, head + len, (unsigned)(HEAD - len))) > 0)
        len += (size_t)n;
    if (f)
        gzclose(f);
    if (len && memchr(head, 0, len))
        len = 0;
    /* The last character may be cut: three bytes. */
    if (len && (double)data_text_foreign(head, len) > DATA_FOREIGN_SHARE * (double)len + 3)
        len = 0;
    free(head);
    return len > 0;
}

int64_t data_text_foreign(const uint8_t *text, size_t len)
{
    int64_t foreign = 0;
    uint64_t word;

    for (size_t i = 0; i < len;) {
        size_t n;

        if (len - i >= 8) { /* mostly ASCII, mostly long */
            memcpy(&word, text + i, 8);
            if (!(word & UINT64_C(0x8080808080808080))) {
                i += 8;
                continue;
            }
        }
        n = data_utf8_sequence(text + i, len - i);
        foreign += !n;
        i += n ? n : 1;
    }
    return foreign;
}

const char *data_class_odd(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return "holds a control character";
    return data_text_foreign((const uint8_t *)name, len) ? "is not UTF-8" : NULL;
}
