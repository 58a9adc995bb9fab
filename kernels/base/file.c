#include "kernels/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum pd_err pd_file_read(const char *path, size_t limit, struct pd_buf *out, struct pd_why *why)
{
    enum pd_err err = PD_OK;
    size_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open '%s'", path);
    for (;;) {
        char chunk[65536];
        ssize_t n = read(fd, chunk, sizeof chunk);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err = pd_fail_errno(why, errno, "cannot read '%s'", path);
            break;
        }
        if (n == 0)
            break;
        got += (size_t)n;
        if (got > limit) {
            err = pd_fail(why, PD_ERR_LIMIT, "'%s' has more than %zu bytes", path, limit);
            break;
        }
        pd_buf_append(out, chunk, (size_t)n);
        err = pd_buf_err(out);
        if (err != PD_OK) {
            err = pd_fail(why, err, "no memory for '%s'", path);
            break;
        }
    }
    close(fd);
    return err;
}

enum pd_err pd_file_write_all(int fd, const void *bytes, size_t len, struct pd_why *why)
{
    const char *p = bytes;

    while (len) {
        ssize_t n = write(fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pd_fail_errno(why, errno, "cannot write");
        p += n;
        len -= (size_t)n;
    }
    return PD_OK;
}

enum pd_err pd_file_sync_dir(const char *dir, struct pd_why *why)
{
    enum pd_err err = PD_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot open directory '%s'", dir);
    if (fsync(fd) != 0)
        err = pd_fail_errno(why, errno, "cannot sync directory '%s'", dir);
    close(fd);
    return err;
}

enum pd_err pd_file_replace(const char *path, const void *bytes, size_t len, int mode, struct pd_why *why)
{
    char temp[PATH_MAX];
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    enum pd_err err;
    int fd;

    if (snprintf(temp, sizeof temp, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof temp)
        return pd_fail(why, PD_ERR_LIMIT, "path '%s' is too long", path);
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1, slash ? path : ".");
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return pd_fail_errno(why, errno, "cannot create '%s'", temp);
    err = pd_file_write_all(fd, bytes, len, why);
    if (err == PD_OK && fsync(fd) != 0)
        err = pd_fail_errno(why, errno, "cannot sync '%s'", temp);
    if (close(fd) != 0 && err == PD_OK)
        err = pd_fail_errno(why, errno, "cannot close '%s'", temp);
    if (err == PD_OK && rename(temp, path) != 0)
        err = pd_fail_errno(why, errno, "cannot rename '%s'", temp);
    if (err != PD_OK) {
        unlink(temp);
        return err;
    }
    return pd_file_sync_dir(dir, why);
}

enum pd_err pd_file_make_dirs(const char *dir, struct pd_why *why)
{
    char path[PATH_MAX];
    size_t len = strlen(dir);

    if (len == 0 || len >= sizeof path)
        return pd_fail(why, PD_ERR_INVALID, "'%s' is not a directory name", dir);
    memcpy(path, dir, len + 1);
    for (char *p = path + 1;; p++) {
        char kept = *p;

        if (kept != '/' && kept != '\0')
            continue;
        *p = '\0';
        if (mkdir(path, 0750) != 0 && errno != EEXIST)
            return pd_fail_errno(why, errno, "cannot make directory '%s'", path);
        *p = kept;
        if (!kept)
            break;
    }
    return PD_OK;
}
