/* daemon/polyd/gc.h: `polyd gc [--dry-run]`: removes files of the state folder that no record refers to.
 *
 * These are folders of runs that are not in the database, files below blobs/ that no run refers to, leftovers
 * of interrupted writes, and cache files beyond the limit. Files of existing runs are not removed, nor those
 * that --init moved. */
#pragma once

#include <stdbool.h>

#include "daemon/polyd/config/config.h"

/* Prints a line for each thing and the sum. `dry`: removes nothing, and works while a daemon runs.
 * Returns the exit status. */
int gc(const struct config *config, bool dry);
