/* daemon/worker/data/idx.c: MNIST's IDX files, plain or gzip'd.
 *
 * zlib's gz layer reads both, and checks the CRC when it comes to the trailer: therefore one byte more than
 * promised is asked for at the end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/set.h"

static const char *const train_stems[] = {"train", "train10k", NULL};
static const char *const test_stems[] = {"t10k", "t2k", "test", NULL};
static const char *const forms[] = {"%s-%s-idx%d-ubyte", "%s-%s-idx%d-ubyte.gz", "%s-%s.idx%d-ubyte",
                                    "%s-%s.idx%d-ubyte.gz", NULL};

/* The n-th name under which the file may lie; false beyond the last. */
static bool file_name(const char *const *stems, const char *what, int axes, size_t n, char name[64])
{
    size_t stem = 0, form = 0;

    for (; n && stems[stem]; n--)
        if (!forms[++form]) {
            form = 0;
            stem++;
        }
    if (!stems[stem])
        return false;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, 64, forms[form], stems[stem], what, axes);
#pragma GCC diagnostic pop
    return true;
}

bool data_idx_named(const char *name)
{
    char known[64];

    for (int i = 0; i < 4; i++)
        for (size_t n = 0; file_name(i % 2 ? test_stems : train_stems, i / 2 ? "labels" : "images",
                                     i / 2 ? 1 : 3, n, known);
             n++)
            if (!strcmp(name, known))
                return true;
    return false;
}

static enum pd_err open_idx(int dir, const char *const *stems, const char *what, int axes, gzFile *ret,
                            char name[64], struct pd_why *why)
{
    for (size_t n = 0; file_name(stems, what, axes, n, name); n++) {
        struct stat s;
        int fd = data_open_beneath(dir, name, O_RDONLY | O_NONBLOCK);

        if (fd < 0) {
            if (errno == ENOENT)
                continue;
            if (errno == EXDEV || errno == ELOOP)
                return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", name);
            return pd_fail_errno(why, errno, "cannot open '%s'", name);
        }
        if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
            close(fd);
            return pd_fail(why, PD_ERR_INVALID, "'%s' is not a regular file", name);
        }
        *ret = gzdopen(fd, "rb");
        if (!*ret) {
            close(fd);
            return pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", name);
        }
        return PD_OK;
    }
    (void)file_name(stems, what, axes, 0, name);
    return pd_fail(why, PD_ERR_NOT_FOUND, "%s is missing, and so is %s.gz", name, name);
}

static enum pd_err pull(gzFile f, const char *name, void *to, size_t len, struct pd_why *why)
{
    uint8_t *p = to;

    while (len) {
        int n = gzread(f, p, (unsigned)(len < 1u << 30 ? len : 1u << 30));
        int code;

        if (n < 0)
            return pd_fail(why, PD_ERR_CORRUPT, "'%s': %s", name, gzerror(f, &code));
        if (n == 0)
            return pd_fail(why, PD_ERR_CORRUPT, "'%s' ends early", name);
        p += n;
        len -= (size_t)n;
    }
    return PD_OK;
}

static enum pd_err finish(gzFile f, const char *name, struct pd_why *why)
{
    uint8_t more;
    int n = gzread(f, &more, 1), code;

    if (n < 0)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s': %s", name, gzerror(f, &code));
    if (n > 0)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' has more bytes than its header announces", name);
    (void)gzerror(f, &code);
    if (code != Z_OK && code != Z_STREAM_END)
        return pd_fail(why, PD_ERR_CORRUPT, "'%s' is truncated", name);
    return PD_OK;
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static enum pd_err read_one(struct data_set *set, int dir, bool training, int axes, bool headers_only,
                            uint8_t **ret_bytes, uint32_t extent[3], struct pd_why *why)
{
    const char *what = axes == 3 ? "images" : "labels";
    uint8_t head[16];
    uint8_t *bytes = NULL;
    uint64_t total = 1;
    gzFile f = NULL;
    char name[64];
    enum pd_err err;

    err = open_idx(dir, training ? train_stems : test_stems, what, axes, &f, name, why);
    if (err != PD_OK)
        return err;
    err = pull(f, name, head, 4 + 4 * (size_t)axes, why);
    if (err != PD_OK)
        goto out;
    if (head[0] || head[1] || head[2] != 8 || head[3] != axes) {
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' is not an IDX file of bytes with %d axes", name, axes);
        goto out;
    }
    for (int i = 0; i < axes; i++) {
        extent[i] = big_endian(head + 4 + 4 * i);
        if (!extent[i] || (i && extent[i] > 2048)) {
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s' has an invalid extent of %u", name, extent[i]);
            goto out;
        }
        total *= extent[i]; /* below 2^32 2^11 2^11 */
    }
    if (total > DATA_FILE_LIMIT) {
        err = pd_fail(why, PD_ERR_LIMIT, "'%s' would hold %llu bytes", name, (unsigned long long)total);
        goto out;
    }
    if (headers_only)
        goto out;
    bytes = malloc((size_t)total);
    if (!bytes) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", name);
        goto out;
    }
    err = pull(f, name, bytes, (size_t)total, why);
    if (err == PD_OK)
        err = finish(f, name, why);
    if (err != PD_OK)
        goto out;
    data_note_file(set, name, head, 4 + 4 * (size_t)axes, bytes, (size_t)total);
    *ret_bytes = bytes;
    bytes = NULL; /* moved to the caller */
out:
    free(bytes);
    gzclose(f);
    return err;
}

enum pd_err data_idx_read(struct data_set *set, int dir, bool training, bool headers_only,
                          struct data_idx *ret, struct pd_why *why)
{
    struct data_idx x = {0};
    uint32_t extent[3], labels[3];
    enum pd_err err;

    err = read_one(set, dir, training, 3, headers_only, &x.pixels, extent, why);
    if (err == PD_OK) {
        err = read_one(set, dir, training, 1, headers_only, &x.labels, labels, why);
        err = err == PD_ERR_NOT_FOUND ? PD_ERR_CORRUPT
                                      : err; /* images without labels are half a part, not none */
    }
    if (err == PD_OK && labels[0] != extent[0])
        err = pd_fail(why, PD_ERR_CORRUPT, "there are %u images but %u labels", extent[0], labels[0]);
    for (uint32_t i = 0; err == PD_OK && !headers_only && i < extent[0]; i++)
        if (x.labels[i] > 9)
            err = pd_fail(why, PD_ERR_CORRUPT, "label %u is %u, not a digit", i, x.labels[i]);
    if (err != PD_OK) {
        free(x.pixels);
        free(x.labels);
        return err;
    }
    x.count = extent[0];
    x.height = (int32_t)extent[1];
    x.width = (int32_t)extent[2];
    *ret = x;
    return PD_OK;
}
