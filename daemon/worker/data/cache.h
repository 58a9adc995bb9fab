/* daemon/worker/data/cache.h: private to this module: a cache of derived data (decoded pictures, token ids) in files
 * that workers map.
 *
 * A key is the SHA-256 of every input of the computation. A file gets its final name only when it is complete
 * (temporary file, fsync, rename) and is verified when it is opened; a file that does not match its key is removed and
 * counts as absent. Several workers may share a folder: a lock per key prevents duplicate work, and a mapped file
 * stays readable after another worker has removed it. The folder's size is bounded; the least recently used files are
 * removed first, files in use are not removed. A failure of the cache never fails a run: the data are computed again. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_CACHE_BYTES_MAX ((uint64_t)16 << 30) /* default bound of a folder, in bytes */

/* The bound in the folder's file `limit`, which polyd writes; DATA_CACHE_BYTES_MAX without one. */
uint64_t data_cache_limit(const char *dir);

struct data_cache;        /* an open file, mapped read-only */
struct data_cache_writer; /* a file being written */

/* Opens the file of the key. PD_ERR_NOT_FOUND: there is none, or it was removed. The caller owns *ret. */
PD_NODISCARD enum pd_err data_cache_open(const char *dir, const uint8_t key[32], struct data_cache **ret,
                                         struct pd_why *why);
const void *data_cache_bytes(const struct data_cache *c, size_t *ret_len);
struct data_cache *data_cache_close(struct data_cache *c);

/* Starts the file of the key, after waiting at most `wait_ms` for another process that writes the same one.
 * PD_ERR_EXISTS: that process has finished it, open it instead. PD_ERR_FULL: the folder's bound or the disk has no
 * space for about `expect` bytes. Removes the temporary files of dead writers. */
PD_NODISCARD enum pd_err data_cache_begin(const char *dir, const uint8_t key[32], uint64_t expect,
                                          int wait_ms, struct data_cache_writer **ret, struct pd_why *why);
PD_NODISCARD enum pd_err data_cache_write(struct data_cache_writer *w, const void *bytes, size_t len,
                                          struct pd_why *why);
/* Renames the file to its final name and closes it. The last `checked` bytes have a checksum that data_cache_open
 * verifies; they hold the checksums of the rest. The writer is freed whatever the result. */
PD_NODISCARD enum pd_err data_cache_commit(struct data_cache_writer *w, uint64_t checked, struct pd_why *why);
/* Discards the unfinished file. Accepts NULL. */
struct data_cache_writer *data_cache_abandon(struct data_cache_writer *w);
