/* daemon/worker/process/roots.h: the data roots among a role's arguments. */
#pragma once

#include "daemon/worker/data/data.h"
#include "daemon/worker/process/link.h"

/* Reads every --root NAME=PATH; the paths are borrowed from argv, the names live as long as the process.
 * Returns their number, or -1 after a sentence on standard error. */
int worker_roots(int argc, char **argv, const char *role, struct data_root ret[LINK_ROOTS_MAX]);
