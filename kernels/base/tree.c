#include "kernels/base/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/text.h"

#define DEPTH_MAX 64 /* a descriptor each */

static bool is_dot(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* The folder `name` in `at`, opened for reading; NULL with errno. */
static DIR *open_dir(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d && fd >= 0)
        close(fd);
    return d;
}

/* ---- measure ---- */

static enum pd_err measure(int at, const char *name, int depth, struct pd_tree *ret, struct pd_why *why)
{
    const struct dirent *e;
    enum pd_err err = PD_OK;
    struct stat st;
    DIR *d;

    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW))
        return pd_fail_errno(why, errno, "cannot inspect '%s'", name);
    if (!S_ISDIR(st.st_mode)) {
        ret->bytes += S_ISREG(st.st_mode) ? st.st_size : 0;
        ret->files++;
        return PD_OK;
    }
    if (depth == DEPTH_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "'%s' lies more than %d folders deep", name, DEPTH_MAX);
    d = open_dir(at, name);
    if (!d)
        return pd_fail_errno(why, errno, "cannot read the folder '%s'", name);
    while (err == PD_OK && (e = readdir(d))) {
        if (is_dot(e->d_name))
            continue;
        err = measure(dirfd(d), e->d_name, depth + 1, ret, why);
        if (err == PD_ERR_NOT_FOUND)
            err = PD_OK;
    }
    closedir(d);
    return err;
}

enum pd_err pd_tree_measure(const char *path, struct pd_tree *ret, struct pd_why *why)
{
    *ret = (struct pd_tree){0};
    return measure(AT_FDCWD, path, 0, ret, why);
}

/* ---- remove ---- */

static enum pd_err remove_at(int at, const char *name, int depth, struct pd_why *why)
{
    const struct dirent *e;
    enum pd_err err = PD_OK;
    DIR *d;

    if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
        return PD_OK;
    if (errno != EISDIR && errno != EPERM)
        return pd_fail_errno(why, errno, "cannot remove '%s'", name);
    if (depth == DEPTH_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "'%s' lies more than %d folders deep", name, DEPTH_MAX);
    d = open_dir(at, name);
    if (!d)
        return errno == ENOENT ? PD_OK : pd_fail_errno(why, errno, "cannot remove '%s'", name);
    while (err == PD_OK && (e = readdir(d)))
        if (!is_dot(e->d_name))
            err = remove_at(dirfd(d), e->d_name, depth + 1, why);
    closedir(d);
    if (err == PD_OK && unlinkat(at, name, AT_REMOVEDIR) && errno != ENOENT)
        err = pd_fail_errno(why, errno, "cannot remove the folder '%s'", name);
    return err;
}

enum pd_err pd_tree_remove(const char *path, struct pd_why *why)
{
    return remove_at(AT_FDCWD, path, 0, why);
}

/* ---- folders of a bounded size ---- */

struct file {
    char *name;
    struct timespec used;
    int64_t bytes;
};

struct list {
    struct file *items;
    size_t count, size;
};

static void list_done(struct list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->items[i].name);
    free(l->items);
}

static bool list_add(struct list *l, const char *name, const struct stat *st)
{
    if (l->count == l->size) {
        size_t size = l->size ? 2 * l->size : 32;
        struct file *items = realloc(l->items, size * sizeof *items);

        if (!items)
            return false;
        l->items = items;
        l->size = size;
    }
    l->items[l->count] = (struct file){.name = strdup(name), .used = st->st_mtim, .bytes = st->st_size};
    return l->items[l->count++].name != NULL;
}

/* *ret_dir NULL: there is no such folder. */
static enum pd_err list_files(const char *dir, const char *suffix, DIR **ret_dir, struct list *ret,
                              struct pd_why *why)
{
    DIR *d = open_dir(AT_FDCWD, dir);
    const struct dirent *e;
    enum pd_err err = PD_OK;
    struct stat st;

    *ret_dir = NULL;
    if (!d)
        return errno == ENOENT ? PD_OK : pd_fail_errno(why, errno, "cannot read the folder '%s'", dir);
    while (err == PD_OK && (e = readdir(d)))
        if (pd_text_ends(e->d_name, suffix) && fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode) && !list_add(ret, e->d_name, &st))
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the names of files");
    if (err == PD_OK)
        *ret_dir = d;
    else
        closedir(d);
    return err;
}

static int by_use(const void *a, const void *b)
{
    const struct file *x = a, *y = b;

    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

enum pd_err pd_folder_measure(const char *dir, const char *suffix, struct pd_tree *ret, struct pd_why *why)
{
    struct list l = {0};
    DIR *d;
    enum pd_err err = list_files(dir, suffix, &d, &l, why);

    *ret = (struct pd_tree){.files = (int64_t)l.count};
    for (size_t i = 0; i < l.count; i++)
        ret->bytes += l.items[i].bytes;
    list_done(&l);
    if (d)
        closedir(d);
    return err;
}

/* Removes the file unless a process holds its lock. */
static bool take(int dir, const char *name, bool dry)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool gone = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && (dry || unlinkat(dir, name, 0) == 0);

    if (fd >= 0)
        close(fd);
    return gone;
}

enum pd_err pd_folder_trim(const char *dir, const char *suffix, int64_t bytes, bool dry,
                           void (*each)(void *ctx, const char *name, int64_t bytes), void *ctx,
                           int64_t *ret_freed, struct pd_why *why)
{
    struct list l = {0};
    DIR *d;
    enum pd_err err = list_files(dir, suffix, &d, &l, why);

    *ret_freed = 0;
    if (l.count)
        qsort(l.items, l.count, sizeof *l.items, by_use);
    for (size_t i = 0; err == PD_OK && i < l.count && *ret_freed < bytes; i++) {
        if (!take(dirfd(d), l.items[i].name, dry))
            continue;
        *ret_freed += l.items[i].bytes;
        if (each)
            each(ctx, l.items[i].name, l.items[i].bytes);
    }
    list_done(&l);
    if (d)
        closedir(d);
    return err;
}
