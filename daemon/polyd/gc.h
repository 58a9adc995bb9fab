/* daemon/polyd/gc.h: `polyd gc [--dry-run]`: files of the state folder that belong to nothing.
 *
 * Folders of runs that are not in the database, files below blobs/ that no run shows, what writes that were
 * cut off left, and cache files over the bound. Whatever belongs to a run that exists stays, and so does what
 * --init moved aside. */
#pragma once

#include <stdbool.h>

#include "daemon/polyd/config/config.h"

/* Prints a line for each thing and the sum. `dry`: removes nothing, and works beside a running daemon.
 * Returns the exit status. */
int gc(const struct config *config, bool dry);
