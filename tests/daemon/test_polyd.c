/* polyd as systemd and a person at a terminal see it: READY, WATCHDOG, RELOADING, STOPPING; commands and
 * their exit status. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "tests/lib/schema4.h"

struct fixture {
    char dir[64], state_flag[96];
    int fd;
    pid_t pid;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    strcpy(f->dir, "/tmp/polyd-main-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->state_flag, sizeof f->state_flag, "--state.dir=%s/state", f->dir);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/notify", f->dir);
    f->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&addr, sizeof addr), 0);
    setenv("NOTIFY_SOCKET", addr.sun_path, 1);
    setenv("WATCHDOG_USEC", "400000", 1);
    unsetenv("WATCHDOG_PID");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    if (f->pid > 0) {
        kill(f->pid, SIGKILL);
        waitpid(f->pid, NULL, 0);
    }
    close(f->fd);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static pid_t spawn(struct fixture *f, int out_fd, const char *more, const char *more2)
{
    pid_t pid = fork();

    if (pid == 0) {
        const char *argv[] = {"polyd", f->state_flag, "--server.port=0", more, more2, NULL};
        int null_fd = open("/dev/null", O_WRONLY);

        dup2(out_fd >= 0 ? out_fd : null_fd, STDOUT_FILENO);
        dup2(out_fd >= 0 ? out_fd : null_fd, STDERR_FILENO);
        execv(POLYD_PATH, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return pid;
}

/* Waits for a datagram that begins so; others are skipped. */
static void expect(struct fixture *f, const char *begin)
{
    int64_t end_us = pd_clock_mono_us() + 30000000;

    while (pd_clock_mono_us() < end_us) {
        struct pollfd p = {.fd = f->fd, .events = POLLIN};
        char text[600];
        ssize_t n;

        if (poll(&p, 1, 500) != 1)
            continue;
        n = recv(f->fd, text, sizeof text - 1, 0);
        assert_true(n > 0);
        text[n] = '\0';
        if (!strncmp(text, begin, strlen(begin)))
            return;
    }
    fail_msg("no %s came", begin);
}

static int wait_status(struct fixture *f)
{
    int status;

    assert_int_equal(waitpid(f->pid, &status, 0), f->pid);
    f->pid = 0;
    return status;
}

static void test_polyd_tells_systemd_of_its_life(void **state)
{
    struct fixture *f = *state;

    f->pid = spawn(f, -1, NULL, NULL);
    expect(f, "READY=1");
    expect(f, "WATCHDOG=1");
    expect(f, "WATCHDOG=1");
    kill(f->pid, SIGHUP);
    expect(f, "RELOADING=1\nMONOTONIC_USEC=");
    expect(f, "READY=1");
    kill(f->pid, SIGTERM);
    expect(f, "STOPPING=1");
    assert_int_equal(wait_status(f), 0);
}

/* The rest of a command: what it prints (both streams), and its exit status. */
static int run(struct fixture *f, const char *more, const char *more2, struct pd_buf *out)
{
    char piece[4096];
    int fd[2], status;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(fd), 0);
    pid = spawn(f, fd[1], more, more2);
    close(fd[1]);
    while ((n = read(fd[0], piece, sizeof piece)) > 0)
        pd_buf_append(out, piece, (size_t)n);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect_run(struct fixture *f, const char *more, const char *more2, int status, const char *said)
{
    struct pd_buf out;
    int got;

    pd_buf_init(&out, 0);
    got = run(f, more, more2, &out);
    if (got != status || !out.data || !strstr(out.data, said))
        fail_msg("polyd %s %s: status %d, said: %s", more, more2 ? more2 : "", got,
                 out.data ? out.data : "nothing");
    pd_buf_done(&out);
}

static void test_polyd_commands(void **state)
{
    struct fixture *f = *state;

    expect_run(f, "--version", NULL, 0, "polyd ");
    expect_run(f, "--help", NULL, 0, "--server.port");
    expect_run(f, "--check-config", NULL, 0, "configuration is fine");
    expect_run(f, "--check-config", "--server.prot=1", 2, "server.port"); /* names the nearest */
    expect_run(f, "dance", NULL, 2, "no command 'dance'");
    expect_run(f, "routes", NULL, 0, "POST /api/v1/jobs ");
    expect_run(f, "verify", NULL, 1, "polyd verify: "); /* there is nothing yet */
    f->pid = spawn(f, -1, NULL, NULL);
    expect(f, "READY=1");
    expect_run(f, "verify", NULL, 0, ": 0 problems"); /* beside the running daemon */
    expect_run(f, "--log.level=info", NULL, 1, "another polyd uses the state directory");
    kill(f->pid, SIGINT);
    assert_int_equal(wait_status(f), 0);
}

static void test_polyd_starts_again_after_being_killed(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 3; i++) {
        f->pid = spawn(f, -1, NULL, NULL);
        expect(f, "READY=1");
        kill(f->pid, SIGKILL);
        assert_true(WIFSIGNALED(wait_status(f)));
    }
    f->pid = spawn(f, -1, NULL, NULL);
    expect(f, "READY=1");
    kill(f->pid, SIGTERM);
    assert_int_equal(wait_status(f), 0);
}

static void shell(const char *fmt, const char *dir)
{
    char command[512];

    snprintf(command, sizeof command, fmt, dir, dir, dir, dir, dir);
    assert_int_equal(system(command), 0);
}

static void start_and_stop(struct fixture *f, const char *flag)
{
    f->pid = spawn(f, -1, flag, NULL);
    expect(f, "READY=1");
    kill(f->pid, SIGTERM);
    assert_int_equal(wait_status(f), 0);
}

/* Nothing in the folder but 0700 for folders and 0600 for files and sockets. */
static void expect_private(struct fixture *f)
{
    shell("test -z \"$(find %s/state ! -type l \\( -type d ! -perm 700 -o ! -type d ! -perm 600 \\) | tee "
          "/dev/stderr)\"",
          f->dir);
}

static void test_polyd_keeps_its_state_folder_private(void **state)
{
    struct fixture *f = *state;

    umask(0);
    start_and_stop(f, NULL);
    expect_private(f); /* made by polyd */
    shell("cd %s/state && chmod 755 . && mkdir -p runs/1/checkpoints && chmod -R a+rX . && touch "
          "runs/1/run-id &&"
          "ln -s /etc/hostname link",
          f->dir);
    start_and_stop(f, NULL);
    expect_private(f); /* made by somebody else, files of an older polyd */
    shell("test \"$(stat -L -c %%a %s/state/link)\" != 600", f->dir);
    shell("chmod 644 %s/state/polyd.db %s/state/runs/1/run-id", f->dir);
    start_and_stop(f, NULL);
    expect_private(f);
    umask(022);
}

static void test_polyd_asks_systemd_for_time_while_it_starts(void **state)
{
    struct fixture *f = *state;
    char path[128], sql[2048];
    sqlite3 *db;

    start_and_stop(f, NULL);
    snprintf(path, sizeof path, "%s/state/polyd.db", f->dir);
    snprintf(sql, sizeof sql, SCHEMA4_SQL, f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    shell("rm %s/state/store-id", f->dir);
    f->pid = spawn(f, -1, NULL, NULL);
    expect(f, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=bringing the database");
    expect(f, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=adopting earlier attempts");
    expect(f, "READY=1");
    kill(f->pid, SIGTERM);
    assert_int_equal(wait_status(f), 0);
}

static void test_polyd_refuses_a_folder_that_lost_its_database(void **state)
{
    struct fixture *f = *state;
    char advice[192];

    start_and_stop(f, NULL);
    shell("cd %s/state && mkdir -p runs/1/checkpoints && echo weights > "
          "runs/1/checkpoints/step-1.safetensors &&"
          "cp polyd.db ../kept.db && rm polyd.db",
          f->dir);
    expect_run(f, "--log.level=info", NULL, 78, "polyd.db is missing");
    /* The whole command: a shell has no STATE_DIRECTORY, so its default is another folder. */
    snprintf(advice, sizeof advice, "run once: polyd --state-dir='%s/state' --init (moves the old runs to",
             f->dir);
    expect_run(f, "--log.level=info", NULL, 78, advice);
    shell(": > %s/state/polyd.db", f->dir);
    expect_run(f, "--log.level=info", NULL, 78, "polyd.db is empty");
    shell("cp %s/kept.db %s/state/polyd.db", f->dir); /* put back: it starts as if nothing had been */
    start_and_stop(f, NULL);
    shell("mv %s/state %s/other", f->dir);
    start_and_stop(f, NULL);
    shell("cp %s/state/polyd.db %s/other/polyd.db && rm -r %s/state && mv %s/other %s/state", f->dir);
    expect_run(f, "--log.level=info", NULL, 78, "polyd.db belongs to another folder");
    expect_run(f, "--init", "verify", 2, "'verify' is a command of its own");
    shell("mv %s/state/store-id %s/ && echo torn > %s/state/store-id", f->dir);
    expect_run(f, "--log.level=info", NULL, 78, advice);
    shell("mv %s/store-id %s/state/", f->dir);
    expect_run(f, "verify", NULL, 1, "the marker store-id names database ");
    start_and_stop(f, "--init");
    shell("grep -q weights %s/state/old-*/runs/1/checkpoints/step-1.safetensors && "
          "cmp -s %s/kept.db %s/state/polyd.db; test $? = 1",
          f->dir);
    start_and_stop(f, "--init"); /* of no effect on a sound folder */
    shell("test $(ls -d %s/state/old-* | wc -l) = 1", f->dir);
    expect_run(f, "verify", NULL, 0, ": 0 problems");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_polyd_tells_systemd_of_its_life),
        TEST(test_polyd_commands),
        TEST(test_polyd_starts_again_after_being_killed),
        TEST(test_polyd_keeps_its_state_folder_private),
        TEST(test_polyd_asks_systemd_for_time_while_it_starts),
        TEST(test_polyd_refuses_a_folder_that_lost_its_database),
    };

    return cmocka_run_group_tests_name("polyd", tests, NULL, NULL);
}
