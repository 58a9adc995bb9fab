/* kernels/base/tree.h: folders with all that is in them: their size, their removal, and folders of a bounded
 * size. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct pd_tree {
    int64_t bytes; /* of the files */
    int64_t files; /* and links; folders do not count */
};

/* What is at `path`, links not followed. PD_ERR_NOT_FOUND: nothing is. Files that vanish meanwhile do not
 * count. */
PD_NODISCARD enum pd_err pd_tree_measure(const char *path, struct pd_tree *ret, struct pd_why *why);

/* Removes `path` and all below it, links themselves and never what they name. Nothing there is PD_OK. After a
 * failure some of it may be gone; a second call goes on. */
PD_NODISCARD enum pd_err pd_tree_remove(const char *path, struct pd_why *why);

/* The files of one folder whose names end in `suffix`. No such folder: none. */
PD_NODISCARD enum pd_err pd_folder_measure(const char *dir, const char *suffix, struct pd_tree *ret,
                                           struct pd_why *why);

/* Removes such files, those unused for longest (by mtime) first, until at least `bytes` are freed. A file
 * that a process holds with flock(2) is in use and stays. `dry`: only counts what would go. `each` (may be
 * NULL) is called for every file. *ret_freed may be less than `bytes`. */
PD_NODISCARD enum pd_err pd_folder_trim(const char *dir, const char *suffix, int64_t bytes, bool dry,
                                        void (*each)(void *ctx, const char *name, int64_t bytes), void *ctx,
                                        int64_t *ret_freed, struct pd_why *why);
