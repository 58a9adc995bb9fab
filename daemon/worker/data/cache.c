/* daemon/worker/data/cache.c: see cache.h.
 *
 *   <key>.cache   header, then the body; a process that maps it holds a shared lock, which prevents its removal
 *   <key>.tmp-N   being written; its writer holds a lock on it, so one without a lock is a dead writer's
 *   <key>.lock    held while the file of this key is being made
 *   limit         the greatest sum of all files, written by polyd */
#include "daemon/worker/data/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "kernels/base/clock.h"
#include "kernels/base/buf.h"
#include "kernels/base/file.h"
#include "kernels/base/tree.h"

#define MAGIC "polyd.cache.1\n\0\0"
#define PATH_BYTES 1200

struct header {
    char magic[16];
    uint8_t key[32], sum[32];
    uint64_t body, checked; /* bytes */
    uint8_t reserved[32];
};
_Static_assert(sizeof(struct header) == 128, "the body begins at a multiple of 64");

struct data_cache {
    void *map;
    size_t len;
    int fd; /* holds the lock */
};

struct data_cache_writer {
    char path[PATH_BYTES], tmp[PATH_BYTES], dir[PATH_BYTES];
    uint8_t key[32];
    int fd, lock;
    bool locked; /* the lock is ours */
    uint64_t body;
};

static void name_of(char out[PATH_BYTES], const char *dir, const uint8_t key[32], const char *end)
{
    char hex[65];

    snprintf(out, PATH_BYTES, "%.*s/%s%.40s", PATH_BYTES - 120, dir, digest_hex(key, 32, hex), end);
}

/* ---- reading ---- */

static bool fits(const uint8_t *map, size_t len, const uint8_t key[32])
{
    struct header h;
    uint8_t sum[32];

    if (len < sizeof h)
        return false;
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, MAGIC, 16) != 0 || memcmp(h.key, key, 32) != 0 || h.body != len - sizeof h ||
        h.checked > h.body)
        return false;
    digest_sha256(map + len - h.checked, (size_t)h.checked, sum);
    return memcmp(sum, h.sum, 32) == 0;
}

enum pd_err data_cache_open(const char *dir, const uint8_t key[32], struct data_cache **ret,
                            struct pd_why *why)
{
    struct data_cache *c = NULL;
    char path[PATH_BYTES];
    struct stat s;
    void *map = MAP_FAILED;
    int fd;
    enum pd_err err;

    name_of(path, dir, key, ".cache");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    if (fstat(fd, &s) == 0 && s.st_size > 0)
        map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        err = pd_fail(why, PD_ERR_NOT_FOUND, "cannot map '%s'", path);
        goto out;
    }
    if (!fits(map, (size_t)s.st_size, key)) {
        (void)unlink(path);
        err = pd_fail(why, PD_ERR_NOT_FOUND, "'%s' is damaged and was removed", path);
        goto out;
    }
    c = malloc(sizeof *c);
    if (!c) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a cache");
        goto out;
    }
    (void)futimens(fd, NULL); /* last used: now */
    (void)flock(fd, LOCK_SH | LOCK_NB);
    *c = (struct data_cache){.map = map, .len = (size_t)s.st_size, .fd = fd};
    map = MAP_FAILED; /* moved, both */
    fd = -1;
    *ret = c;
    err = PD_OK;
out:
    if (map != MAP_FAILED)
        munmap(map, (size_t)s.st_size);
    if (fd >= 0)
        close(fd);
    return err;
}

const void *data_cache_bytes(const struct data_cache *c, size_t *ret_len)
{
    *ret_len = c->len - sizeof(struct header);
    return (const char *)c->map + sizeof(struct header);
}

struct data_cache *data_cache_close(struct data_cache *c)
{
    if (c) {
        munmap(c->map, c->len);
        close(c->fd);
        free(c);
    }
    return NULL;
}

/* ---- space ---- */

/* Removes what writers left that live no more. */
static void sweep(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;

    while (d && (e = readdir(d)) != NULL) {
        int fd;

        if (!strstr(e->d_name, ".tmp-"))
            continue;
        fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d)
        closedir(d);
}

uint64_t data_cache_limit(const char *dir)
{
    char path[PATH_BYTES];
    struct pd_buf text;
    uint64_t limit = DATA_CACHE_BYTES_MAX;
    unsigned long long bytes_max;

    snprintf(path, sizeof path, "%.*s/limit", PATH_BYTES - 120, dir);
    pd_buf_init(&text, 0);
    if (pd_file_read(path, 64, &text, NULL) == PD_OK && text.data &&
        sscanf(text.data, "%llu", &bytes_max) == 1)
        limit = bytes_max;
    pd_buf_done(&text);
    return limit;
}

/* Removes the files unused for longest until `need` more bytes fit; whether they do. */
static bool free_space(const char *dir, uint64_t need)
{
    uint64_t limit = data_cache_limit(dir), free, keep, excess = 0;
    struct statvfs disk;
    struct pd_tree held;
    int64_t freed;

    if (need > limit || statvfs(dir, &disk) != 0 || pd_folder_measure(dir, ".cache", &held, NULL) != PD_OK)
        return false;
    /* A tenth of the disk stays free: checkpoints and the store matter more. */
    free = (uint64_t)disk.f_bavail * disk.f_frsize;
    keep = (uint64_t)disk.f_blocks * disk.f_frsize / 10;
    if ((uint64_t)held.bytes + need > limit)
        excess = (uint64_t)held.bytes + need - limit;
    if (need + keep > free && need + keep - free > excess)
        excess = need + keep - free;
    return !excess ||
           (pd_folder_trim(dir, ".cache", (int64_t)excess, false, NULL, NULL, &freed, NULL) == PD_OK &&
            (uint64_t)freed >= excess);
}

/* ---- writing ---- */

static enum pd_err lock_key(struct data_cache_writer *w, int wait_ms, struct pd_why *why)
{
    int64_t until = pd_clock_mono_us() + (int64_t)wait_ms * 1000;
    char path[PATH_BYTES];

    name_of(path, w->dir, w->key, ".lock");
    w->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (w->lock < 0)
        return pd_fail_errno(why, errno, "cannot create '%s'", path);
    while (flock(w->lock, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return pd_fail_errno(why, errno, "cannot lock '%s'", path);
        if (pd_clock_mono_us() >= until)
            return pd_fail(why, PD_ERR_BUSY, "another process is still writing '%s'", w->path);
        (void)poll(NULL, 0, 20);
    }
    w->locked = true;
    return PD_OK;
}

enum pd_err data_cache_begin(const char *dir, const uint8_t key[32], uint64_t expect, int wait_ms,
                             struct data_cache_writer **ret, struct pd_why *why)
{
    struct data_cache_writer *w = calloc(1, sizeof *w);
    static const struct header nothing;
    static atomic_uint serial;
    struct stat s;
    char end[48];
    enum pd_err err;

    if (!w)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a cache");
    w->fd = w->lock = -1;
    memcpy(w->key, key, 32);
    if ((size_t)snprintf(w->dir, sizeof w->dir, "%s", dir) + 120 > sizeof w->dir) {
        err = pd_fail(why, PD_ERR_LIMIT, "the path of the cache is too long");
        goto out;
    }
    name_of(w->path, dir, key, ".cache");
    err = pd_file_make_dirs(dir, why);
    if (err == PD_OK)
        err = lock_key(w, wait_ms, why);
    if (err != PD_OK)
        goto out;
    if (stat(w->path, &s) == 0) {
        err = pd_fail(why, PD_ERR_EXISTS, "another process has finished '%s'", w->path);
        goto out;
    }
    sweep(dir);
    if (!free_space(dir, expect)) {
        err = pd_fail(why, PD_ERR_FULL, "no space for %llu bytes in '%s'", (unsigned long long)expect, dir);
        goto out;
    }
    snprintf(end, sizeof end, ".tmp-%d-%u", (int)getpid(), atomic_fetch_add(&serial, 1));
    name_of(w->tmp, dir, key, end);
    w->fd = open(w->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (w->fd < 0) {
        w->tmp[0] = 0;
        err = pd_fail_errno(why, errno, "cannot create a file in '%s'", dir);
        goto out;
    }
    (void)flock(w->fd, LOCK_EX | LOCK_NB); /* alive */
    err = pd_file_write_all(w->fd, &nothing, sizeof nothing, why);
out:
    if (err != PD_OK) {
        data_cache_abandon(w);
        return err;
    }
    *ret = w;
    return PD_OK;
}

enum pd_err data_cache_write(struct data_cache_writer *w, const void *bytes, size_t len, struct pd_why *why)
{
    enum pd_err err = pd_file_write_all(w->fd, bytes, len, why);

    if (err == PD_OK)
        w->body += len;
    return err;
}

static enum pd_err seal(struct data_cache_writer *w, uint64_t checked, struct pd_why *why)
{
    struct header h = {.body = w->body, .checked = checked};
    size_t len = sizeof h + (size_t)w->body;
    uint8_t *map = mmap(NULL, len, PROT_READ, MAP_SHARED, w->fd, 0);

    if (map == MAP_FAILED)
        return pd_fail_errno(why, errno, "cannot map '%s'", w->tmp);
    memcpy(h.magic, MAGIC, 16);
    memcpy(h.key, w->key, 32);
    digest_sha256(map + len - checked, (size_t)checked, h.sum);
    munmap(map, len);
    if (pwrite(w->fd, &h, sizeof h, 0) != (ssize_t)sizeof h || fsync(w->fd) != 0)
        return pd_fail_errno(why, errno, "cannot finish '%s'", w->tmp);
    if (rename(w->tmp, w->path) != 0)
        return pd_fail_errno(why, errno, "cannot rename '%s'", w->tmp);
    w->tmp[0] = 0;
    return pd_file_sync_dir(w->dir, why);
}

enum pd_err data_cache_commit(struct data_cache_writer *w, uint64_t checked, struct pd_why *why)
{
    enum pd_err err = checked <= w->body
                          ? seal(w, checked, why)
                          : pd_fail(why, PD_ERR_INTERNAL, "the checksum covers more bytes than were written");

    data_cache_abandon(w);
    return err;
}

struct data_cache_writer *data_cache_abandon(struct data_cache_writer *w)
{
    if (w) {
        if (w->tmp[0])
            (void)unlink(w->tmp);
        if (w->fd >= 0)
            close(w->fd);
        if (w->locked) {
            char path[PATH_BYTES];

            /* Removed while held: who waits on the old file finds the finished work after it. */
            name_of(path, w->dir, w->key, ".lock");
            (void)unlink(path);
        }
        if (w->lock >= 0)
            close(w->lock);
        free(w);
    }
    return NULL;
}
