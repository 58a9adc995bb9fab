/* daemon/worker/data/cache.h: private to this module: what was computed from data once, kept as files to map.
 *
 * A key is the SHA-256 of everything that the content follows from. A file appears under its name only whole
 * (temporary file, fsync, rename) and is checked when it is opened; one that does not fit its key is
 * removed and counts as absent. Two workers may use one folder at once: a lock for each key keeps them from
 * doing the same work twice, and a mapped file that the other removes stays readable. The folder's size is
 * bounded: the files unused for longest go first, those in use stay. Nothing here ever fails a run: without a
 * cache the work is done again. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_CACHE_BYTES_MAX ((uint64_t)16 << 30) /* of all files of a folder that names no limit */

/* What the folder says itself (its file `limit`, written by polyd), else the above. */
uint64_t data_cache_limit(const char *dir);

struct data_cache;        /* an open file, mapped read-only */
struct data_cache_writer; /* one being made */

/* Opens the file of the key: PD_ERR_NOT_FOUND if there is none (any more). The caller owns *ret. */
PD_NODISCARD enum pd_err data_cache_open(const char *dir, const uint8_t key[32], struct data_cache **ret,
                                         struct pd_why *why);
const void *data_cache_bytes(const struct data_cache *c, size_t *ret_len);
struct data_cache *data_cache_close(struct data_cache *c);

/* Begins the file of the key, after waiting (at most `wait_ms`) for another process that makes the same one:
 * PD_ERR_EXISTS when that one has come to be meanwhile, to be opened. Removes what dead writers left.
 * `expect` is about how many bytes will come: PD_ERR_FULL when the folder or the disk has no room for them.
 */
PD_NODISCARD enum pd_err data_cache_begin(const char *dir, const uint8_t key[32], uint64_t expect,
                                          int wait_ms, struct data_cache_writer **ret, struct pd_why *why);
PD_NODISCARD enum pd_err data_cache_write(struct data_cache_writer *w, const void *bytes, size_t len,
                                          struct pd_why *why);
/* Closes the file under its name. The last `checked` bytes are summed when it is opened (the rest has sums of
 * its own inside them). The writer is freed whatever the result. */
PD_NODISCARD enum pd_err data_cache_commit(struct data_cache_writer *w, uint64_t checked, struct pd_why *why);
/* Drops it. NULL is fine. */
struct data_cache_writer *data_cache_abandon(struct data_cache_writer *w);
