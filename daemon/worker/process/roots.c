#include "daemon/worker/process/roots.h"

#include <stdio.h>
#include <string.h>

#include "daemon/worker/process/args.h"

int worker_roots(int argc, char **argv, const char *role, struct data_root ret[LINK_ROOTS_MAX])
{
    static char names[LINK_ROOTS_MAX][256];
    const char *text;
    int count = 0;

    while (count < LINK_ROOTS_MAX && (text = args_nth(argc, argv, "--root", count))) {
        const char *cut = strchr(text, '=');

        if (!cut || (size_t)(cut - text) >= sizeof names[0]) {
            fprintf(stderr, "polyd-worker %s: '--root %s' is not NAME=PATH\n", role, text);
            return -1;
        }
        memcpy(names[count], text, (size_t)(cut - text));
        names[count][cut - text] = '\0';
        ret[count] = (struct data_root){.name = names[count], .path = cut + 1};
        count++;
    }
    return count;
}
