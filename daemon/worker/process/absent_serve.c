/* A build without the module `serve`: the role reports that it is missing. */
#include <stdio.h>

#include "daemon/worker/process/worker.h"

int worker_serve_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "this build of polyd-worker cannot serve\n");
    return 1;
}
