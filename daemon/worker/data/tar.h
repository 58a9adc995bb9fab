/* daemon/worker/data/tar.h: private to this module: the index of a tar archive.
 *
 * Understands ustar, GNU long names and base-256 sizes, and pax headers (path, size). Only regular files are
 * reported; links, folders and devices are skipped. Nothing is ever unpacked to disk. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_TAR_NAME_MAX 4096

struct data_tar_source {
    /* Copies `len` bytes from `at`; both lie within `size`. */
    enum pd_err (*read)(void *user, uint64_t at, void *to, size_t len, struct pd_why *why);
    void *user;
    uint64_t size;
};

/* Calls `entry` for each regular file in order, with its name (no leading "./" or "/"), and where its bytes
 * lie, inside the archive. Ends at the two zero blocks or the archive's end. PD_ERR_CORRUPT: a header whose
 * sum is wrong, or a file that runs past the end. An error of `entry` ends the scan. */
PD_NODISCARD enum pd_err data_tar_scan(const struct data_tar_source *source,
                                       enum pd_err (*entry)(void *user, const char *name, uint64_t at,
                                                            uint64_t len, struct pd_why *why),
                                       void *user, struct pd_why *why);
