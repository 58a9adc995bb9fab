/* daemon/worker/data/path.h: private to this module: opens files that must lie below a directory. */
#pragma once

/* Opens `path` relative to the directory `dir`. Returns a descriptor that the caller closes, or -1 with errno; EXDEV: the
 * path leads outside `dir`. */
int data_open_beneath(int dir, const char *path, int flags);
/* The same on kernels without openat2; refuses every symbolic link. Public for its test. */
int data_walk_beneath(int dir, const char *path, int flags);
