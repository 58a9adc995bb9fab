/* daemon/worker/data/path.h: private to this module: opening below a directory. */
#pragma once

/* Opens `path` below the directory `dir`, never outside it: descriptor or -1 with errno (EXDEV: it leads
 * out). */
int data_open_beneath(int dir, const char *path, int flags);
/* The same without openat2; refuses every symbolic link. Public for its test. */
int data_walk_beneath(int dir, const char *path, int flags);
