/* The parent of an attempt where cgroups are absent. It is the leader of its own session and the reaper of
 * everything the worker leaves behind, so that even a child that forked twice stays its own. It holds the
 * lock of the attempt's directory as long as anything of the attempt lives: the lock is the attempt's
 * liveness, for a daemon that was not there when it began. It outlives the daemon.
 *
 *   SIGTERM  is passed to the worker: checkpoint and leave
 *   SIGUSR1  kills everything at once
 *
 * A gang has one shim and a worker for every rank. When one has failed or was killed, the others notice by
 * themselves and leave; should one not, within ten seconds, it is killed, except rank 0: it may have to wait
 * for polyd to tell it what happened, and polyd looks after it.
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

#include "daemon/worker/process/args.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define RANKS_MAX 64
#define PATIENCE_S 10

static int open_in(const char *dir, const char *name, int flags)
{
    char path[4096];

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return -1;
    return open(path, flags | O_CLOEXEC, 0600);
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

static pid_t start_worker(char **argv, char *visible, const sigset_t *old_mask)
{
    pid_t self = getpid(), pid = fork();

    if (pid)
        return pid;
    /* The child of a process with one thread and no libraries started: safe to go on in C. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self)
        _exit(127);
    sigprocmask(SIG_SETMASK, old_mask, NULL);
    if (visible)
        putenv(visible);
    execv("/proc/self/exe", argv);
    _exit(127);
}

/* rank: of the worker whose status it is; -1 where there is one worker. */
static void write_exit(const char *dir, int status, int rank)
{
    char path[4096], text[64];
    struct pd_why why;
    int len = rank < 0 ? snprintf(text, sizeof text, "status=%d\n", status)
                       : snprintf(text, sizeof text, "status=%d rank=%d\n", status, rank);

    if ((size_t)snprintf(path, sizeof path, "%s/exit", dir) >= sizeof path ||
        pd_file_replace(path, text, (size_t)len, 0600, &why) != PD_OK)
        pd_log(PD_LOG_ERROR, "shim", "exit=unwritten status=%d", status);
}

/* The workers, by rank. */
struct gang {
    pid_t pid[RANKS_MAX]; /* 0: has ended */
    int ranks, left;
    int status, rank; /* of the first that failed, else of rank 0 */
    bool failed;
    struct timespec patience; /* with the others, after a failure */
};

/* argv of the rank-th worker: that of the first, and which it is. */
static bool start_gang(struct gang *g, char **child, int count, char **visible, const sigset_t *old_mask)
{
    char **argv = calloc((size_t)count + 4, sizeof *argv);
    char rank[16];

    for (int i = 0; argv && i < g->ranks; i++) {
        int n = count;

        memcpy(argv, child, (size_t)count * sizeof *argv);
        if (g->ranks > 1) {
            snprintf(rank, sizeof rank, "%d", i);
            argv[n++] = (char *)"--rank";
            argv[n++] = rank;
        }
        argv[n] = NULL;
        g->pid[i] = start_worker(argv, visible[i], old_mask);
        if (g->pid[i] < 0) {
            pd_log(PD_LOG_ERROR, "shim", "fork=failed why=\"%s\"", strerror(errno));
            free(argv);
            return false;
        }
        g->left++;
    }
    free(argv);
    return argv != NULL;
}

static void has_ended(struct gang *g, pid_t pid, int status)
{
    for (int i = 0; i < g->ranks; i++) {
        if (g->pid[i] != pid)
            continue;
        g->pid[i] = 0;
        g->left--;
        if (status && !g->failed) {
            g->failed = true;
            g->status = status;
            g->rank = i;
            clock_gettime(CLOCK_MONOTONIC, &g->patience);
            g->patience.tv_sec += PATIENCE_S;
        } else if (i == 0 && !g->failed) {
            g->status = status;
        }
        /* The run is over when rank 0 has reported it. */
        if (i == 0 && !g->patience.tv_sec) {
            clock_gettime(CLOCK_MONOTONIC, &g->patience);
            g->patience.tv_sec += PATIENCE_S;
        }
    }
}

static void lose_patience(struct gang *g)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!g->patience.tv_sec || now.tv_sec < g->patience.tv_sec)
        return;
    for (int i = 1; i < g->ranks; i++)
        if (g->pid[i]) {
            pd_log(PD_LOG_WARNING, "shim", "rank=%d kill=late", i);
            kill(g->pid[i], SIGKILL);
        }
}

/* polyd-worker shim --dir DIR [--ranks N] [--visible VARIABLE=VALUE]... -- ROLE ARGS... : `visible` is put
 * into the environment of each rank in turn. */
int worker_shim_main(int argc, char **argv)
{
    const char *dir = args_get(argc, argv, "--dir");
    const struct timespec tick = {.tv_nsec = 500000000};
    struct gang g = {.status = -1};
    char *visible[RANKS_MAX] = {NULL};
    char **child = NULL;
    char text[64];
    unsigned long long start = 0;
    sigset_t mask, old_mask;
    int lock_fd, log_fd, len, count = 0;
    long parent;

    for (int i = 0; i < argc && !child; i++)
        if (!strcmp(argv[i], "--")) {
            child = &argv[i]; /* becomes argv[0] of the worker */
            count = argc - i;
        }
    g.ranks = (int)args_int(child ? (int)(child - argv) : 0, argv, "--ranks", 1);
    if (!dir || count < 2 || g.ranks < 1 || g.ranks > RANKS_MAX) {
        fprintf(stderr, "polyd-worker shim --dir DIR [--ranks N] [--visible VARIABLE=VALUE]... -- ROLE "
                        "ARGUMENTS\n");
        return 2;
    }
    for (int i = 0; i < g.ranks; i++)
        visible[i] = (char *)(uintptr_t)args_nth((int)(child - argv), argv, "--visible", i);
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
    if (!start_gang(&g, child, count, visible, &old_mask)) {
        kill_all();
        write_exit(dir, 127 << 8, -1);
        return 1;
    }
    close(WORKER_TOKEN_FD);
    while (g.left) {
        siginfo_t info;
        pid_t pid;
        int one, sig = g.ranks > 1 ? sigtimedwait(&mask, &info, &tick) : sigwaitinfo(&mask, &info);

        if (sig == SIGTERM || sig == SIGINT) {
            for (int i = 0; i < g.ranks; i++)
                if (g.pid[i])
                    kill(g.pid[i], SIGTERM);
        } else if (sig == SIGUSR1) {
            kill_children();
        }
        while ((pid = waitpid(-1, &one, WNOHANG)) > 0)
            has_ended(&g, pid, one);
        lose_patience(&g);
    }
    kill_all();
    write_exit(dir, g.status, g.ranks > 1 ? g.rank : -1);
    return 0;
}
