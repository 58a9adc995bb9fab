/* The parent of an attempt where cgroups are absent. It is the leader of its own session and the reaper of
 * everything the worker leaves behind, so that even a child that forked twice stays its own. It holds the
 * lock of the attempt's directory as long as anything of the attempt lives: the lock is the attempt's
 * liveness, for a daemon that was not there when it began. It outlives the daemon.
 *
 *   SIGTERM  is passed to the worker: checkpoint and leave
 *   SIGUSR1  kills everything at once
 *
 * Should the shim itself be killed, the kernel kills the worker (PR_SET_PDEATHSIG), and polyd looks for
 * strays by the variable POLYD_ATTEMPT in their environment. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/args.h"
#include "daemon/worker/worker.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

static int open_in(const char *dir, const char *name, int flags)
{
    char path[4096];

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return -1;
    return open(path, flags | O_CLOEXEC, 0640);
}

/* Field 4 (parent) and 22 (start time) of /proc/PID/stat. */
static bool read_stat(const char *pid, long *ret_parent, unsigned long long *ret_start)
{
    char path[64], text[1024], *at;
    FILE *f;
    bool ok = false;

    if ((size_t)snprintf(path, sizeof path, "/proc/%s/stat", pid) >= sizeof path)
        return false;
    f = fopen(path, "re");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')'))) {
        char state;

        ok = sscanf(at + 1, " %c %ld", &state, ret_parent) == 2;
        for (int i = 0; i < 20 && at; i++)
            at = strchr(at + 1, ' ');
        *ret_start = at ? strtoull(at + 1, NULL, 10) : 0;
    }
    if (f)
        fclose(f);
    return ok;
}

/* Kills every child there is now; orphans of the dead ones become ours and are met in the next round. */
static void kill_children(void)
{
    DIR *proc = opendir("/proc");
    struct dirent *d;

    while (proc && (d = readdir(proc))) {
        unsigned long long start;
        long parent;

        if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && read_stat(d->d_name, &parent, &start) &&
            parent == getpid())
            kill((pid_t)atol(d->d_name), SIGKILL);
    }
    if (proc)
        closedir(proc);
}

static void kill_all(void)
{
    struct timespec pause = {.tv_nsec = 2000000};

    for (;;) {
        pid_t pid;

        kill_children();
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if (pid < 0 && errno == ECHILD)
            return;
        nanosleep(&pause, NULL);
    }
}

static pid_t start_worker(char **argv, const sigset_t *old_mask)
{
    pid_t self = getpid(), pid = fork();

    if (pid)
        return pid;
    /* The child of a process with one thread and no libraries started: safe to go on in C. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self)
        _exit(127);
    sigprocmask(SIG_SETMASK, old_mask, NULL);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static void write_exit(const char *dir, int status)
{
    char path[4096], text[64];
    struct pd_why why;
    int len = snprintf(text, sizeof text, "status=%d\n", status);

    if ((size_t)snprintf(path, sizeof path, "%s/exit", dir) >= sizeof path ||
        pd_file_replace(path, text, (size_t)len, 0640, &why) != PD_OK)
        pd_log(PD_LOG_ERROR, "shim", "exit=unwritten status=%d", status);
}

/* polyd-worker shim --dir DIR -- ROLE ARGS... */
int worker_shim_main(int argc, char **argv)
{
    const char *dir = args_get(argc, argv, "--dir");
    char **child = NULL;
    char text[64];
    unsigned long long start = 0;
    sigset_t mask, old_mask;
    int lock_fd, log_fd, status = -1, len;
    long parent;
    pid_t worker;
    bool ended = false;

    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--"))
            child = &argv[i]; /* becomes argv[0] of the worker */
    if (!dir || !child || !child[1]) {
        fprintf(stderr, "polyd-worker shim --dir DIR -- ROLE ARGUMENTS\n");
        return 2;
    }
    setsid(); /* fails only if we lead a session already */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, &old_mask);

    lock_fd = open_in(dir, "lock", O_RDWR | O_CREAT);
    if (lock_fd < 0 || flock(lock_fd, LOCK_EX | LOCK_NB)) {
        fprintf(stderr, "polyd-worker shim: cannot lock '%s': %s\n", dir, strerror(errno));
        return 1;
    }
    read_stat("self", &parent, &start);
    len = snprintf(text, sizeof text, "%ld %llu\n", (long)getpid(), start);
    if (ftruncate(lock_fd, 0) || pwrite(lock_fd, text, (size_t)len, 0) != len) {
        fprintf(stderr, "polyd-worker shim: cannot write the lock in '%s'\n", dir);
        return 1;
    }
    log_fd = open_in(dir, "log", O_WRONLY | O_CREAT | O_APPEND);
    if (log_fd < 0) {
        fprintf(stderr, "polyd-worker shim: cannot open the log in '%s': %s\n", dir, strerror(errno));
        return 1;
    }
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    close(log_fd);

    child[0] = (char *)"polyd-worker";
    worker = start_worker(child, &old_mask);
    if (worker < 0) {
        pd_log(PD_LOG_ERROR, "shim", "fork=failed why=\"%s\"", strerror(errno));
        write_exit(dir, 127 << 8);
        return 1;
    }
    close(WORKER_TOKEN_FD);
    while (!ended) {
        siginfo_t info;
        pid_t pid;
        int one;

        if (sigwaitinfo(&mask, &info) < 0)
            continue;
        if (info.si_signo == SIGTERM || info.si_signo == SIGINT)
            kill(worker, SIGTERM);
        else if (info.si_signo == SIGUSR1)
            kill_children();
        while ((pid = waitpid(-1, &one, WNOHANG)) > 0)
            if (pid == worker) {
                status = one;
                ended = true;
            }
    }
    kill_all();
    write_exit(dir, status);
    return 0;
}
