/* daemon/worker/process/worker.h: polyd-worker's roles. The main program chooses one by its first argument.
 *
 *   polyd-worker shim ...     parent of an attempt: own session, subreaper, lock of the attempt's directory
 *   polyd-worker train ...    one attempt of a run (daemon/worker/kinds; the assignment comes over the wire)
 *   polyd-worker serve ...    one loaded model version
 *   polyd-worker plan         reads a resolved job on standard input, prints its bytes by category as JSON
 *   polyd-worker data         prints what the data roots hold, as JSON
 *   polyd-worker weights ...  reads files of weights for the daemon, prints JSON
 *   polyd-worker info         prints build, back ends and thread count as JSON
 *   polyd-worker digit S D    draws the digit D by the seed S, as JSON
 *
 * Threads: the role runs on the main thread; the link (link.h) has a thread of its own. The train role gets a
 * struct train_host (daemon/worker/train/train.h), the serve role a struct serve_host
 * (daemon/wire/serve_host.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/base/err.h"

#define WORKER_TOKEN_FD 3 /* the token arrives on this inherited descriptor */

/* Each takes the arguments after the role's name and returns the exit status. */
int worker_shim_main(int argc, char **argv);
int worker_train_main(int argc, char **argv);
int worker_serve_main(int argc, char **argv);
int worker_plan_main(int argc, char **argv);
int worker_data_main(int argc, char **argv);
int worker_weights_main(int argc, char **argv);
int worker_info_main(int argc, char **argv);
int worker_digit_main(int argc, char **argv);

struct pd_buf;

/* Prints the line to standard output and frees it; returns the exit status. */
int worker_print(struct pd_buf *b);

/* The daemon's state directory; false if it cannot be determined. */
bool worker_state_dir(const char *socket_path, char *out, size_t size);
/* The folder for preprocessed data, next to the socket in the state directory; false if it cannot be
 * determined. */
bool worker_cache_dir(const char *socket_path, char *out, size_t size);
