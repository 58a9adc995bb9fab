/* polyd-worker: the process that computes. polyd starts it with a role. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/worker/process/worker.h"
#include "kernels/base/manual.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *what;
} roles[] = {
    {"train", worker_train_main, "executes one attempt of a run: training, evaluation or check"},
    {"serve", worker_serve_main, "serves one loaded version of a model"},
    {"plan", worker_plan_main,
     "reads a resolved job from standard input and prints the memory that it needs, by category, as JSON; "
     "with "
     "--roofline also the bytes and FLOP of each kernel"},
    {"data", worker_data_main,
     "lists the data roots and the data sets that each entry can be read as, as JSON"},
    {"weights", worker_weights_main, "exports, imports and averages files of weights for the daemon"},
    {"info", worker_info_main, "prints the build, the processor and the GPUs as JSON"},
    {"digit", worker_digit_main, "SEED DIGIT: prints one of the generated digits as JSON"},
    {"shim", worker_shim_main,
     "the parent of an attempt: leads its session, holds its lock, kills its remaining processes"},
};

static const char about[] = "trains, evaluates and serves networks for polyd";

static int usage(FILE *out)
{
    fprintf(out, "polyd-worker " POLYD_VERSION ": %s\n\n", about);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        fprintf(out, "  polyd-worker %-7s %s\n", roles[i].name, roles[i].what);
    fprintf(out, "  polyd-worker --version | --help | --manual\n");
    return out == stdout ? 0 : 2;
}

static int manual(void)
{
    struct pd_buf b;
    bool ok;

    pd_buf_init(&b, 0);
    pd_manual_begin(&b, "polyd-worker", 8, "polyd " POLYD_VERSION, about);
    pd_manual_section(&b, "SYNOPSIS");
    pd_manual_paragraph(&b, "polyd-worker ROLE [argument ...]");
    pd_manual_section(&b, "DESCRIPTION");
    pd_manual_paragraph(
        &b,
        "polyd-worker computes: it trains, evaluates and serves networks on a processor or a GPU. "
        "polyd(8) starts one process for each rank of an attempt and for each loaded model, communicates "
        "with it over a socket in the state folder, and starts a new one if it dies. The roles plan, data, "
        "info and digit are also useful on the command line.");
    pd_manual_section(&b, "ROLES");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        pd_manual_entry(&b, roles[i].name, roles[i].what);
    pd_manual_section(&b, "OPTIONS");
    pd_manual_entry(&b, "--help", "print the roles and exit");
    pd_manual_entry(&b, "--manual", "print this manual page and exit");
    pd_manual_entry(&b, "--version", "print the version and exit");
    pd_manual_section(&b, "SIGNALS");
    pd_manual_entry(&b, "SIGTERM", "a training worker writes a checkpoint after the current step and exits");
    pd_manual_section(&b, "SEE ALSO");
    pd_manual_paragraph(&b, "polyd(8)");
    ok = pd_buf_err(&b) == PD_OK && fwrite(b.data, 1, b.len, stdout) == b.len;
    pd_buf_done(&b);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    umask(0077); /* files in the state folder are private to polyd's user */
    if (argc < 2)
        return usage(stderr);
    if (!strcmp(argv[1], "--help"))
        return usage(stdout);
    if (!strcmp(argv[1], "--manual"))
        return manual();
    if (!strcmp(argv[1], "--version")) {
        printf("polyd-worker " POLYD_VERSION "\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(argv[1], roles[i].name))
            return roles[i].main(argc - 2, argv + 2);
    fprintf(stderr, "polyd-worker: unknown role '%s'\n", argv[1]);
    return usage(stderr);
}
