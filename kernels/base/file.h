/* kernels/base/file.h: whole files, read with a limit and written atomically. */
#pragma once

#include "kernels/base/buf.h"

/* Reads the file into `out` (appended). More than `limit` bytes: PD_ERR_LIMIT. */
PD_NODISCARD enum pd_err pd_file_read(const char *path, size_t limit, struct pd_buf *out, struct pd_why *why);

/* Replaces `path` by these bytes or leaves it as it was: temporary file in the same
 * directory, fsync, rename, fsync of the directory. `mode` as for open(2). */
PD_NODISCARD enum pd_err pd_file_replace(const char *path, const void *bytes, size_t len, int mode,
                                         struct pd_why *why);

/* Flushes the directory entry changes of `dir` to the device. */
PD_NODISCARD enum pd_err pd_file_sync_dir(const char *dir, struct pd_why *why);

/* Makes the directory and its missing parents, mode 0750. An existing one is fine. */
PD_NODISCARD enum pd_err pd_file_make_dirs(const char *dir, struct pd_why *why);

/* Writes all bytes to the descriptor, continuing after EINTR and short writes. */
PD_NODISCARD enum pd_err pd_file_write_all(int fd, const void *bytes, size_t len, struct pd_why *why);
