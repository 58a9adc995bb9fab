/* daemon/worker/data/path.c: opening what lies under a root and nothing else.
 *
 * openat2 with RESOLVE_BENEATH lets the kernel guarantee it. Where the call is missing (old kernels, some
 * sandboxes) the path is walked one component at a time, and symbolic links are refused altogether: stricter,
 * never laxer. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/path.h"

#define RACES_MAX 10000

/* EAGAIN: something was renamed anywhere while the kernel followed a `..`, so that it does not know whether the path
 * stays beneath. */
static int openat2_beneath(int dir, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd, races = 0;

    do
        fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
    while (fd < 0 && errno == EAGAIN && races++ < RACES_MAX);
    return fd;
}

int data_walk_beneath(int dir, const char *path, int flags)
{
    int at = dir, next;
    char part[256];

    for (;;) {
        size_t n = strcspn(path, "/");
        bool last;

        if (n >= sizeof part) {
            errno = ENAMETOOLONG;
            next = -1;
            break;
        }
        memcpy(part, path, n);
        part[n] = 0;
        path += n;
        path += strspn(path, "/");
        last = !*path;
        if (!strcmp(part, "..")) {
            errno = EXDEV;
            next = -1;
            break;
        }
        next = openat(at, n ? part : ".", O_NOFOLLOW | (last ? flags : O_PATH | O_DIRECTORY | O_CLOEXEC));
        /* O_PATH opens a link itself; O_DIRECTORY then refuses it with ENOTDIR: say what it is. */
        if (next < 0 && (errno == ELOOP || errno == ENOTDIR)) {
            struct stat s;

            if (fstatat(at, n ? part : ".", &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode))
                errno = EXDEV;
        }
        if (next < 0 || last)
            break;
        if (at != dir)
            close(at);
        at = next;
    }
    if (at != dir) {
        int saved = errno;

        close(at);
        errno = saved;
    }
    return next;
}

int data_open_beneath(int dir, const char *path, int flags)
{
    static atomic_bool missing;
    int fd;

    if (!*path)
        path = ".";
    flags |= O_CLOEXEC;
    if (!atomic_load(&missing)) {
        fd = openat2_beneath(dir, path, flags);
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL))
            return fd;
        /* EPERM: a seccomp filter that does not know the call. */
        atomic_store(&missing, true);
    }
    return data_walk_beneath(dir, path, flags);
}

enum pd_err data_path_open(const struct data_root *roots, size_t count, const char *path, bool directory,
                           int *ret_fd, struct pd_why *why)
{
    const struct data_root *root = NULL;
    const char *rest;
    struct stat s;
    size_t n;
    int dir, fd, saved;

    if (!path)
        return pd_fail(why, PD_ERR_INVALID, "#/data/path: is missing");
    n = strcspn(path, "/");
    for (size_t i = 0; i < count && !root; i++)
        if (strlen(roots[i].name) == n && !memcmp(roots[i].name, path, n))
            root = &roots[i];
    if (!root)
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%.*s' is not a configured data root", (int)n, path);
    rest = path + n;
    rest += strspn(rest, "/");
    for (const char *p = rest; *p; p += strcspn(p, "/"), p += strspn(p, "/"))
        if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
            return pd_fail(why, PD_ERR_DENIED, "'%s' holds '..'", path);
    dir = open(root->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        /* Not the caller's mistake: what is to be mounted there may come yet. */
        return pd_fail(why, PD_ERR_IO, "the data root '%s' (%s) cannot be opened: %s", root->name, root->path,
                       strerror(errno));
    /* O_NONBLOCK: opening a pipe must not block; it is refused below. */
    fd = data_open_beneath(dir, rest, directory ? O_RDONLY | O_DIRECTORY : O_RDONLY | O_NONBLOCK);
    saved = errno;
    close(dir);
    if (fd < 0) {
        if (saved == EXDEV || saved == ELOOP)
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its data root", path);
        if (saved == ENOTDIR && directory)
            return pd_fail(why, PD_ERR_INVALID, "'%s' is a file: set the path of its folder", path);
        return pd_fail_errno(why, saved, "cannot open '%s'", path);
    }
    if (fstat(fd, &s) != 0 || (directory ? !S_ISDIR(s.st_mode) : !S_ISREG(s.st_mode))) {
        close(fd);
        return pd_fail(why, PD_ERR_INVALID, "'%s' is %s", path,
                       directory            ? "not a folder"
                       : S_ISDIR(s.st_mode) ? "a folder: set the path of a file in it"
                                            : "not a regular file");
    }
    *ret_fd = fd;
    return PD_OK;
}

enum pd_err data_path_open_in(const struct data_root *roots, size_t count, const char *folder,
                              const char *name, int *ret_fd, struct pd_why *why)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "'%.200s' is too long", folder);
    return data_path_open(roots, count, path, false, ret_fd, why);
}
