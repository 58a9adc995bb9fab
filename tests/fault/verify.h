/* tests/fault/verify.h: what must hold of any state directory, whatever was killed when
 * (daemon/RELIABILITY.md 4).
 *
 * Reads the database alone; the daemon may have died a moment ago. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/buf.h"

/* Checks and appends one line to `out` for each breach (at most 50). `ended`: nothing may still be running:
 * every attempt ended, every device free. Returns the number of breaches.
 *
 *   integrity_check and foreign_key_check are clean
 *   every job, run and attempt is the fold of its events, and each step of the fold is an allowed move
 *   event ids grow with time and none beyond the last is promised again
 *   a run has at most one live attempt; jobs count their ended and failed runs rightly
 *   no device was in two attempts at once
 *   roll-ups and latest values agree with the points
 *   every checkpoint that is not deleted exists and matches its size and digest */
int verify_state(const char *state_dir, bool ended, struct pd_buf *out);

/* Folders of the state folder that are not 0700, files and sockets that are not 0600; each appended as a
 * line. */
int verify_modes(const char *state_dir, struct pd_buf *out);

/* Processes (not zombies) whose command line or environment names the directory; each appended as a line. */
int verify_processes(const char *state_dir, struct pd_buf *out);
