/* Where workers keep what they computed from data once: a folder of the state directory, which is where the
 * daemon's socket lies. */
#include <stdio.h>
#include <string.h>

#include "daemon/worker/worker.h"

bool worker_cache_dir(const char *socket_path, char *out, size_t size)
{
    const char *slash = socket_path ? strrchr(socket_path, '/') : NULL;

    if (!slash || slash == socket_path)
        return false;
    return (size_t)snprintf(out, size, "%.*s/cache", (int)(slash - socket_path), socket_path) < size;
}
