/* Processes: started fresh by posix_spawn, known by pidfd and start time, never by pid alone. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/polyd/supervise/workers/internal.h"
#include "daemon/polyd/supervise/workers/proc.h"
#include "daemon/wire/wire.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

extern char **environ;

/* Start time of a live process; 0 = there is none. */
static uint64_t start_time(pid_t pid)
{
    char path[64], text[1024], *at;
    uint64_t start = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')'))) {
        /* Field 22, counted from the bracket that closes the name; a zombie does not count as alive. */
        bool zombie = at[1] == ' ' && at[2] == 'Z';

        for (int i = 0; i < 20 && at; i++)
            at = strchr(at + 1, ' ');
        if (at && !zombie)
            start = strtoull(at + 1, NULL, 10);
    }
    if (f)
        fclose(f);
    return start;
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The environment with our mark instead of an older one, and the device's variables, if there is one. */
static char **marked_environment(const char *mark, struct device_env *device)
{
    size_t n = 0, kept = 0;
    char **env;

    while (environ[n])
        n++;
    env = malloc((n + 4) * sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!starts(environ[i], "POLYD_MARK=") && !starts(environ[i], "NOTIFY_SOCKET=") &&
            !starts(environ[i], "WATCHDOG_") && !starts(environ[i], "LISTEN_") &&
            !(device &&
              (starts(environ[i], "CUDA_VISIBLE_DEVICES=") || starts(environ[i], "CUDA_DEVICE_ORDER="))))
            env[kept++] = environ[i];
    if (device) {
        env[kept++] = device->visible;
        env[kept++] = device->order;
    }
    if (asprintf(&env[kept], "POLYD_MARK=%s", mark) < 0) {
        free(env);
        return NULL;
    }
    env[kept + 1] = NULL;
    return env;
}

static void free_environment(char **env)
{
    if (env) {
        size_t n = 0;

        while (env[n])
            n++;
        free(env[n - 1]); /* the mark; the rest is environ's */
        free(env);
    }
}

enum pd_err proc_spawn(struct workers *w, char *const argv[], const uint8_t *token, int copies, int in_fd,
                       int out_fd, int err_fd, const char *mark, const struct device *device,
                       struct proc *ret, struct pd_why *why)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    int token_pipe[2] = {-1, -1}, rc;
    struct device_env visible;
    char **env;
    sigset_t none, all;
    pid_t pid;

    if (device)
        device_env(device, &visible);
    env = marked_environment(mark, device ? &visible : NULL);
    if (!env)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for an environment");
    if (token) {
        if (pipe2(token_pipe, O_CLOEXEC)) {
            free_environment(env);
            return pd_fail_errno(why, errno, "cannot make a pipe");
        }
        for (int i = 0; i < copies; i++) /* far less than a pipe holds */
            if (write(token_pipe[1], token, WIRE_TOKEN_BYTES) != WIRE_TOKEN_BYTES) {
                close(token_pipe[0]);
                close(token_pipe[1]);
                free_environment(env);
                return pd_fail(why, PD_ERR_IO, "cannot write the token");
            }
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    if (in_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, in_fd, STDIN_FILENO);
    else
        posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (out_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    if (err_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
    if (token)
        posix_spawn_file_actions_adddup2(&actions, token_pipe[0], 3);
    rc = posix_spawn(&pid, w->worker_path, &actions, &attr, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    free_environment(env);
    if (token) {
        close(token_pipe[0]);
        close(token_pipe[1]);
    }
    if (rc)
        return pd_fail_errno(why, rc, "cannot start '%s'", w->worker_path);
    *ret = (struct proc){
        .pid = pid, .start = start_time(pid), .fd = pidfd_open(pid, 0), .child = true, .status = -1};
    if (ret->fd < 0) {
        enum pd_err err = pd_fail_errno(why, errno, "cannot watch process %d", (int)pid);

        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        return err;
    }
    return PD_OK;
}

bool proc_adopt(pid_t pid, uint64_t start, struct proc *ret)
{
    int fd = pidfd_open(pid, 0);

    if (fd < 0)
        return false;
    if (!start || start_time(pid) != start) { /* the number went to another */
        close(fd);
        return false;
    }
    *ret = (struct proc){.pid = pid, .start = start, .fd = fd, .status = -1};
    return true;
}

void proc_signal(struct proc *p, int sig)
{
    if (p->fd >= 0 && !p->gone)
        pidfd_send_signal(p->fd, sig, NULL, 0);
}

void proc_close(struct proc *p)
{
    if (p->fd >= 0)
        close(p->fd); /* leaves epoll by itself: there is no other reference */
    p->fd = -1;
}

void proc_reap(struct proc *p)
{
    siginfo_t info = {0};

    if (p->child && waitid(P_PIDFD, (id_t)p->fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid)
        p->status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
    p->gone = true;
    proc_close(p);
}

bool shim_alive(const char *dir, pid_t *ret_pid, uint64_t *ret_start)
{
    char path[WORKERS_PATH_MAX + 16], text[64] = "";
    unsigned long long start = 0;
    long pid = 0;
    bool held;
    int fd;

    snprintf(path, sizeof path, "%s/lock", dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (held) {
        ssize_t n = pread(fd, text, sizeof text - 1, 0);

        if (n > 0 && sscanf(text, "%ld %llu", &pid, &start) == 2) {
            *ret_pid = (pid_t)pid;
            *ret_start = start;
        } else
            *ret_pid = 0;
    }
    close(fd);
    return held;
}

int shim_exit_status(const char *dir, int *ret_rank)
{
    char path[WORKERS_PATH_MAX + 16];
    struct pd_buf text;
    struct pd_why why;
    int status = -1, rank = -1, found;

    snprintf(path, sizeof path, "%s/exit", dir);
    pd_buf_init(&text, 0);
    if (pd_file_read(path, 256, &text, &why) == PD_OK && text.data) {
        found = sscanf(text.data, "status=%d rank=%d", &status, &rank);
        if (found < 1)
            status = -1;
        if (found < 2)
            rank = -1;
    }
    pd_buf_done(&text);
    if (ret_rank)
        *ret_rank = rank;
    return status;
}

int64_t shim_exit_us(const char *dir)
{
    char path[WORKERS_PATH_MAX + 16];
    struct stat st;

    snprintf(path, sizeof path, "%s/exit", dir);
    return stat(path, &st) ? 0 : st.st_mtim.tv_sec * INT64_C(1000000) + st.st_mtim.tv_nsec / 1000;
}

/* The mark of a process of ours, or false. */
static bool read_mark(const char *pid, char *out, size_t size)
{
    char path[300];
    struct pd_buf text;
    struct pd_why why;
    struct stat st;
    bool found = false;

    snprintf(path, sizeof path, "/proc/%s", pid);
    if (stat(path, &st) || st.st_uid != geteuid())
        return false;
    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    pd_buf_init(&text, 0);
    if (pd_file_read(path, 1 << 20, &text, &why) == PD_OK)
        for (size_t at = 0; at < text.len && !found; at += strlen(text.data + at) + 1)
            if (!strncmp(text.data + at, "POLYD_MARK=", 11) && strlen(text.data + at + 11) < size) {
                strcpy(out, text.data + at + 11);
                found = true;
            }
    pd_buf_done(&text);
    return found;
}

static bool known(const struct workers *w, const char *mark)
{
    for (const struct workers_member *m = w->members; m; m = m->next)
        if (m->knows && m->knows(m->self, mark))
            return true;
    return false;
}

void workers_kill_strays(struct workers *w)
{
    size_t prefix = strlen(w->state_dir);
    DIR *proc = opendir("/proc");
    struct dirent *d;

    while (proc && (d = readdir(proc))) {
        char mark[WORKERS_PATH_MAX + 64];

        if (d->d_name[0] < '1' || d->d_name[0] > '9' || !read_mark(d->d_name, mark, sizeof mark))
            continue;
        /* "<state_dir>:<what>": another daemon's workers are none of our business. */
        if (strncmp(mark, w->state_dir, prefix) != 0 || mark[prefix] != ':' || known(w, mark + prefix + 1))
            continue;
        pd_log(PD_LOG_WARNING, "supervise", "stray=%s mark=%s killed=1", d->d_name, mark + prefix + 1);
        kill((pid_t)atol(d->d_name), SIGKILL);
        w->killed++;
    }
    if (proc)
        closedir(proc);
}
