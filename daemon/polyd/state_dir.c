#include "daemon/polyd/state_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define OPEN_FOLDERS 16

/* nftw takes no context; the main thread alone comes here. */
static struct {
    char database[PATH_MAX];
    long changed, failed;
    int error;
} walk;

static mode_t wanted(mode_t mode)
{
    return S_ISDIR(mode) ? 0700 : 0600;
}

static void tighten(const char *path, mode_t mode)
{
    if ((mode & 07777) == wanted(mode))
        return;
    if (chmod(path, wanted(mode)) == 0)
        walk.changed++;
    else if (errno != ENOENT) {
        walk.failed++;
        walk.error = errno;
    }
}

/* Links are left alone: what they name is not ours to change. */
static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    if (ftw->level > 0 && (type == FTW_D || type == FTW_DNR || S_ISREG(st->st_mode)) && type != FTW_SL &&
        strcmp(path, walk.database) != 0)
        tighten(path, st->st_mode);
    return 0;
}

enum pd_err state_dir_open(const char *dir, struct pd_why *why)
{
    struct stat folder, database;
    bool filled;
    enum pd_err err;

    umask(0077);
    err = pd_file_make_dirs(dir, why);
    if (err != PD_OK)
        return err;
    if (stat(dir, &folder))
        return pd_fail_errno(why, errno, "cannot look at '%s'", dir);
    if (snprintf(walk.database, sizeof walk.database, "%s/polyd.db", dir) >= (int)sizeof walk.database)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    filled = lstat(walk.database, &database) == 0 && S_ISREG(database.st_mode);
    if ((folder.st_mode & 07777) == 0700 && (!filled || (database.st_mode & 07777) == 0600))
        return PD_OK;
    /* Database and folder last: should this be cut off, the next start sees that it is not done. */
    nftw(dir, visit, OPEN_FOLDERS, FTW_PHYS | FTW_MOUNT);
    if (filled)
        tighten(walk.database, database.st_mode);
    tighten(dir, folder.st_mode);
    if (walk.failed)
        pd_log(PD_LOG_WARNING, "polyd", "state=%s private=0 files=%ld why=\"others may read them: %s\"", dir,
               walk.failed, strerror(walk.error));
    else
        pd_log(PD_LOG_INFO, "polyd", "state=%s private=1 changed=%ld", dir, walk.changed);
    return PD_OK;
}
