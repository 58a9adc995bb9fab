/* The state directory is where the daemon's socket lies. What workers computed from data once is kept there. */
#include <stdio.h>
#include <string.h>

#include "daemon/worker/process/worker.h"

bool worker_state_dir(const char *socket_path, char *out, size_t size)
{
    const char *slash = socket_path ? strrchr(socket_path, '/') : NULL;

    if (!slash || slash == socket_path)
        return false;
    return (size_t)snprintf(out, size, "%.*s", (int)(slash - socket_path), socket_path) < size;
}

bool worker_cache_dir(const char *socket_path, char *out, size_t size)
{
    char state[4096];

    return worker_state_dir(socket_path, state, sizeof state) &&
           (size_t)snprintf(out, size, "%s/cache", state) < size;
}
