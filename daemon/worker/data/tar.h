/* daemon/worker/data/tar.h: private to this module: lists the files of a tar archive.
 *
 * Reads ustar, GNU long names and base-256 sizes, and pax headers (path, size). Only regular files are read;
 * links are named, folders and devices are skipped. Nothing is extracted to disk. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_TAR_NAME_MAX 4096

struct data_tar_source {
    /* Copies `len` bytes at offset `at` to `to`; at + len <= size. */
    enum pd_err (*read)(void *user, uint64_t at, void *to, size_t len, struct pd_why *why);
    /* Called with the name of each hard or symbolic link, which has no bytes of its own. NULL: not called. */
    void (*link)(void *user, const char *name);
    void *user; /* of both */
    uint64_t size;
};

/* Calls `entry` for each regular file in order, with its name (no leading "./" or "/") and the offset and number of its
 * bytes. Ends at two zero blocks or at the end of the archive. PD_ERR_CORRUPT: a header has a wrong checksum, or a
 * file exceeds the archive. An error of `entry` ends the scan and is returned. */
PD_NODISCARD enum pd_err data_tar_scan(const struct data_tar_source *source,
                                       enum pd_err (*entry)(void *user, const char *name, uint64_t at,
                                                            uint64_t len, struct pd_why *why),
                                       void *user, struct pd_why *why);
