#include "daemon/worker/process/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *args_nth(int argc, char **argv, const char *name, int n)
{
    for (int i = 0; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--"))
            break;
        if (!strcmp(argv[i], name) && n-- == 0)
            return argv[i + 1];
    }
    return NULL;
}

const char *args_get(int argc, char **argv, const char *name)
{
    return args_nth(argc, argv, name, 0);
}

int64_t args_int(int argc, char **argv, const char *name, int64_t missing)
{
    const char *text = args_get(argc, argv, name);
    char *end;
    long long value;

    if (!text)
        return missing;
    errno = 0;
    value = strtoll(text, &end, 10);
    return errno || end == text || *end ? missing : value;
}
