/* kernels/base/tree.h: measures and removes folder trees, and trims a folder to a size. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct pd_tree {
    int64_t bytes; /* sum over the files */
    int64_t files; /* files and links, without folders */
};

/* Measures the tree at `path`; links are not followed. PD_ERR_NOT_FOUND: `path` does not exist. Files that
 * vanish meanwhile are not counted. */
PD_NODISCARD enum pd_err pd_tree_measure(const char *path, struct pd_tree *ret, struct pd_why *why);

/* Removes `path` and everything below it; links are removed, not followed. A missing path is PD_OK. After a
 * failure part of the tree may be gone; a second call continues. */
PD_NODISCARD enum pd_err pd_tree_remove(const char *path, struct pd_why *why);

/* Measures the files of one folder whose names end in `suffix`. A missing folder counts as empty. */
PD_NODISCARD enum pd_err pd_folder_measure(const char *dir, const char *suffix, struct pd_tree *ret,
                                           struct pd_why *why);

/* Removes such files, oldest mtime first, until at least `bytes` are freed. A file that a process has locked
 * with flock(2) is in use and stays. `dry`: counts without removing. `each` (may be NULL) is called for every
 * file removed. *ret_freed may be less than `bytes`. */
PD_NODISCARD enum pd_err pd_folder_trim(const char *dir, const char *suffix, int64_t bytes, bool dry,
                                        void (*each)(void *ctx, const char *name, int64_t bytes), void *ctx,
                                        int64_t *ret_freed, struct pd_why *why);
