/* polyd-worker: the process that computes. polyd starts it; people rarely do. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/worker/process/worker.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *what;
} roles[] = {
    {"train", worker_train_main, "one attempt of a run"},
    {"serve", worker_serve_main, "one loaded model version"},
    {"plan", worker_plan_main,
     "reads a resolved job on standard input, prints its bytes by category as JSON; --roofline: what its "
     "steps move"},
    {"data", worker_data_main, "prints what the data roots hold and how it can be read, as JSON"},
    {"weights", worker_weights_main, "reads files of weights for the daemon"},
    {"info", worker_info_main, "prints build and processors as JSON"},
    {"digit", worker_digit_main, "SEED DIGIT: draws one of the generated digits, as JSON"},
    {"shim", worker_shim_main, "parent of an attempt: own session, lock, clean-up"},
};

static int usage(FILE *out)
{
    fprintf(out, "polyd-worker " POLYD_VERSION ": started by polyd, one process for each task\n\n");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        fprintf(out, "  polyd-worker %-7s %s\n", roles[i].name, roles[i].what);
    fprintf(out, "  polyd-worker --version\n");
    return out == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
    umask(0077); /* what it writes lies in the state folder */
    if (argc < 2)
        return usage(stderr);
    if (!strcmp(argv[1], "--help"))
        return usage(stdout);
    if (!strcmp(argv[1], "--version")) {
        printf("polyd-worker " POLYD_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(argv[1], roles[i].name))
            return roles[i].main(argc - 2, argv + 2);
    fprintf(stderr, "polyd-worker: no role '%s'\n", argv[1]);
    return usage(stderr);
}
