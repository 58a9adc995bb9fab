#include "tests/fault/rig.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "tests/fault/verify.h"

extern char **environ;

void rig_sleep_us(int64_t us)
{
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    nanosleep(&t, NULL);
}

static void find_program(char *out, size_t size, const char *name)
{
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    self[n > 0 ? n : 0] = 0;
    slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    snprintf(out, size, "%s/%s", self, name);
    if (access(out, X_OK) != 0) {
        printf("skipped: there is no %s beside this test\n", name);
        exit(77);
    }
}

/* Kills every process that has the text in its arguments; how many there were. */
static int kill_naming(const char *text)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int count = 0;

    while (proc && (e = readdir(proc))) {
        char path[300];
        struct pd_buf b;

        if (!isdigit((unsigned char)e->d_name[0]) || atoi(e->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        pd_buf_init(&b, 0);
        if (pd_file_read(path, 65536, &b, NULL) == PD_OK && b.len &&
            memmem(b.data, b.len, text, strlen(text)))
            count += kill(atoi(e->d_name), SIGKILL) == 0;
        pd_buf_done(&b);
    }
    if (proc)
        closedir(proc);
    return count;
}

/* Never returns. `end` is readable (at its end) once the harness is gone, however it went. */
static void guard(const struct rig *r, int end)
{
    char byte;

    setsid(); /* a time-out kills the harness's group */
    for (int fd = 0; fd < 256; fd++)
        if (fd != end)
            close(fd);
    while (read(end, &byte, 1) < 0 && errno == EINTR) {
    }
    /* A dying shim may still start one: again until two looks in a row find nobody. */
    for (int i = 0, quiet = 0; i < 200 && quiet < 2; i++) {
        quiet = kill_naming(r->dir) ? 0 : quiet + 1;
        rig_sleep_us(50000);
    }
    _exit(0);
}

static void guard_start(struct rig *r)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    r->guard = fork();
    if (r->guard == 0) {
        close(ends[1]);
        guard(r, ends[0]);
    }
    close(ends[0]);
    r->guard_fd = ends[1];
}

/* A port that nobody listens on, below those that the kernel gives to clients: a client that asks again and
 * again for a polyd that is down could else be given that very port, connect to itself, and keep polyd out.
 */
static uint16_t free_port(void)
{
    unsigned from = (unsigned)getpid() * 7919u;
    uint16_t port = 0;

    for (unsigned i = 0; i < 20000 && !port; i++) {
        unsigned tried = 12000 + (from + i) % 20000;
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons((uint16_t)tried)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0)
            port = (uint16_t)tried;
        if (fd >= 0)
            close(fd);
    }
    return port;
}

void rig_init(struct rig *r, const char *name)
{
    *r = (struct rig){0};
    find_program(r->polyd, sizeof r->polyd, "polyd");
    find_program(r->worker, sizeof r->worker, "polyd-worker");
    snprintf(r->dir, sizeof r->dir, "/tmp/polyd-%s-XXXXXX", name);
    r->port = free_port();
    if (!mkdtemp(r->dir) || !r->port) {
        perror("rig");
        exit(2);
    }
    snprintf(r->state, sizeof r->state, "%s/state", r->dir);
    signal(SIGPIPE, SIG_IGN);
    guard_start(r);
}

void rig_spawn(struct rig *r)
{
    char state[128], port[64], worker[600], log[128];
    const char *argv[40];
    int n = 0;

    snprintf(state, sizeof state, "--state.dir=%s", r->state);
    snprintf(port, sizeof port, "--server.port=%u", r->port);
    snprintf(worker, sizeof worker, "--worker.path=%s", r->worker);
    snprintf(log, sizeof log, "%s/polyd.log", r->dir);
    argv[n++] = r->polyd;
    argv[n++] = state;
    argv[n++] = port;
    argv[n++] = worker;
    for (int i = 0; r->args[i]; i++)
        argv[n++] = r->args[i];
    argv[n] = NULL;
    r->pid = fork();
    if (r->pid == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        if (r->preload)
            setenv("LD_PRELOAD", r->preload, 1);
        execv(r->polyd, (char **)(uintptr_t)argv);
        _exit(127);
    }
}

bool rig_ready(struct rig *r, int *ret_status)
{
    int64_t from = pd_clock_mono_us(), took;

    for (;;) {
        struct rig_reply p;
        int status;

        if (waitpid(r->pid, &status, WNOHANG) == r->pid) {
            r->pid = 0;
            if (ret_status)
                *ret_status = status;
            return false;
        }
        rig_http(r, "GET", "/readyz", NULL, NULL, &p);
        status = p.status;
        rig_reply_done(&p);
        took = pd_clock_mono_us() - from;
        if (status == 200)
            break;
        if (took > 20000000)
            return false;
        rig_sleep_us(2000);
    }
    r->restarts++;
    r->ready_us_sum += took;
    r->ready_us_max = took > r->ready_us_max ? took : r->ready_us_max;
    return true;
}

bool rig_start(struct rig *r, int *ret_status)
{
    rig_spawn(r);
    return rig_ready(r, ret_status);
}

int rig_stop(struct rig *r, int sig)
{
    int64_t from = pd_clock_mono_us();
    int status = -1;

    if (r->pid <= 0)
        return 0;
    kill(r->pid, sig);
    while (waitpid(r->pid, &status, sig == SIGKILL ? 0 : WNOHANG) != r->pid) {
        if (pd_clock_mono_us() - from > 30000000) {
            kill(r->pid, SIGKILL);
            waitpid(r->pid, &status, 0);
            status = -1;
            break;
        }
        rig_sleep_us(1000);
    }
    r->pid = 0;
    return status;
}

void rig_done(struct rig *r, bool keep)
{
    char command[128];

    rig_stop(r, SIGKILL);
    if (r->guard > 0) {
        close(r->guard_fd);
        waitpid(r->guard, NULL, 0);
        r->guard = 0;
    }
    if (keep) {
        printf("kept %s\n", r->dir);
        return;
    }
    snprintf(command, sizeof command, "rm -rf '%s'", r->dir);
    if (system(command) != 0)
        printf("cannot remove %s\n", r->dir);
}

int rig_workers(const struct rig *r, const char *role, pid_t *ret, int max)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int count = 0;

    while (proc && count < max && (e = readdir(proc))) {
        char path[300];
        struct pd_buf b;

        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        pd_buf_init(&b, 0);
        if (pd_file_read(path, 65536, &b, NULL) == PD_OK && b.len &&
            memmem(b.data, b.len, r->dir, strlen(r->dir)) && memmem(b.data, b.len, "polyd-worker", 12)) {
            /* The role is the first argument: behind the first NUL. */
            const char *arg = b.data + strlen(b.data) + 1;

            if (arg < b.data + b.len && strcmp(arg, role) == 0)
                ret[count++] = (pid_t)atoi(e->d_name);
        }
        pd_buf_done(&b);
    }
    if (proc)
        closedir(proc);
    return count;
}

bool rig_wait_alone(const struct rig *r, int timeout_ms)
{
    for (int waited = 0;; waited += 20) {
        struct pd_buf out;
        int n;

        pd_buf_init(&out, 0);
        n = verify_processes(r->state, &out);
        pd_buf_done(&out);
        if (n <= (r->pid > 0))
            return true;
        if (waited >= timeout_ms)
            return false;
        rig_sleep_us(20000);
    }
}

/* ---- HTTP ---- */

int rig_connect(const struct rig *r)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(r->port)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Joins the chunks of a chunked body in place; false if it is not whole. */
static bool join_chunks(struct pd_buf *b, size_t start)
{
    size_t from = start, to = start;

    for (;;) {
        char *end = b->data + from < b->data + b->len ? strstr(b->data + from, "\r\n") : NULL;
        unsigned long n;

        if (!end)
            return false;
        n = strtoul(b->data + from, NULL, 16);
        from = (size_t)(end + 2 - b->data);
        if (n == 0)
            break;
        if (from + n + 2 > b->len)
            return false;
        memmove(b->data + to, b->data + from, n);
        to += n;
        from += n + 2;
    }
    b->len = to;
    b->data[to] = 0;
    return true;
}

bool rig_http(const struct rig *r, const char *method, const char *path, const char *headers,
              const char *body, struct rig_reply *ret)
{
    struct pd_buf out, in;
    char chunk[8192], *head_end, *length;
    int fd = rig_connect(r);
    ssize_t n;
    bool ok = false;

    *ret = (struct rig_reply){0};
    pd_buf_init(&ret->body, 0);
    if (fd < 0)
        return false;
    pd_buf_init(&out, 0);
    pd_buf_init(&in, 0);
    pd_buf_printf(&out, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\n%s", method, path,
                  r->port, headers ? headers : "");
    if (body)
        pd_buf_printf(&out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    pd_buf_str(&out, "\r\n");
    if (body)
        pd_buf_str(&out, body);
    if (pd_file_write_all(fd, out.data, out.len, NULL) != PD_OK)
        goto out;
    while ((n = read(fd, chunk, sizeof chunk)) > 0)
        pd_buf_append(&in, chunk, (size_t)n);
    if (n < 0 || !in.data || !(head_end = strstr(in.data, "\r\n\r\n")) ||
        sscanf(in.data, "HTTP/1.1 %d", &ret->status) != 1) {
        ret->status = 0;
        goto out;
    }
    *head_end = 0;
    head_end += 4;
    length = strcasestr(in.data, "\r\nContent-Length:");
    if (length)
        ok = strtoul(length + 17, NULL, 10) == in.len - (size_t)(head_end - in.data);
    else if (strcasestr(in.data, "chunked"))
        ok = join_chunks(&in, (size_t)(head_end - in.data));
    if (ok)
        pd_buf_append(&ret->body, head_end, in.len - (size_t)(head_end - in.data));
    else
        ret->status = 0;
out:
    close(fd);
    pd_buf_done(&out);
    pd_buf_done(&in);
    return ok;
}

void rig_reply_done(struct rig_reply *p)
{
    pd_buf_done(&p->body);
}

static const char *json_value(const char *json, const char *key)
{
    char word[80];
    const char *at;

    snprintf(word, sizeof word, "\"%s\":", key);
    at = json ? strstr(json, word) : NULL;
    return at ? at + strlen(word) : NULL;
}

int64_t rig_json_int(const char *json, const char *key)
{
    const char *at = json_value(json, key);

    if (!at)
        return -1;
    if (*at == '"')
        at++;
    return isdigit((unsigned char)*at) || *at == '-' ? strtoll(at, NULL, 10) : -1;
}

bool rig_json_text(const char *json, const char *key, char *out, size_t size)
{
    const char *at = json_value(json, key);
    size_t n;

    if (!at || *at != '"')
        return false;
    n = strcspn(++at, "\"");
    if (n >= size)
        return false;
    memcpy(out, at, n);
    out[n] = 0;
    return true;
}

/* ---- the diagnostic role ---- */

void rig_fit_step(struct rig_fit *f)
{
    uint64_t z = (uint64_t)(f->step + 1) * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);
    double x, error;

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    x = (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
    error = f->a * x + f->b - (3.0 * x - 1.0);
    f->a -= 0.5 * error * x;
    f->b -= 0.5 * error;
    f->loss = error * error;
    f->step++;
}

static int count_rows(sqlite3 *db, const char *sql, int64_t bound)
{
    sqlite3_stmt *st = NULL;
    int value = -1;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(st, 1, bound);
        if (sqlite3_step(st) == SQLITE_ROW)
            value = sqlite3_column_int(st, 0);
    }
    sqlite3_finalize(st);
    return value;
}

int rig_check_points(const struct rig *r, int64_t steps)
{
    struct rig_fit f = {0}, *table = calloc((size_t)steps + 1, sizeof *table);
    sqlite3_stmt *st = NULL;
    sqlite3 *db = NULL;
    char path[128];
    int bad = 0, n;

    snprintf(path, sizeof path, "%s/polyd.db", r->state);
    if (!table || sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        return 1;
    for (int64_t s = 1; s <= steps; s++) {
        rig_fit_step(&f);
        table[s] = f;
    }
    if (sqlite3_prepare_v2(
            db,
            "SELECT m.run_id, k.name, m.attempt, m.step, m.value, m.dup FROM metric m JOIN metric_key k ON "
            "k.id = m.key_id WHERE m.attempt > 0 AND k.name IN ('loss', 'a', 'b')",
            -1, &st, NULL) != SQLITE_OK)
        bad++;
    while (st && sqlite3_step(st) == SQLITE_ROW && bad < 20) {
        const char *key = (const char *)sqlite3_column_text(st, 1);
        int64_t step = sqlite3_column_int64(st, 3);
        double want, got = sqlite3_column_double(st, 4);

        if (step < 1 || step > steps || sqlite3_column_int(st, 5) != 0) {
            printf("run %lld: %s at step %" PRId64 ", dup %d\n", sqlite3_column_int64(st, 0), key, step,
                   sqlite3_column_int(st, 5));
            bad++;
            continue;
        }
        want = *key == 'l' ? table[step].loss : *key == 'a' ? table[step].a : table[step].b;
        if (memcmp(&want, &got, sizeof want) != 0) {
            printf("run %lld attempt %lld: %s at step %" PRId64 " is %.17g, not %.17g\n",
                   sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 2), key, step, got, want);
            bad++;
        }
    }
    sqlite3_finalize(st);
    /* Whoever succeeded has been everywhere: every step of each key, in some attempt. */
    n = count_rows(
        db,
        "SELECT count(*) FROM run r WHERE r.outcome = 'succeeded' AND (SELECT count(*) FROM (SELECT DISTINCT "
        "m.key_id, m.step FROM metric m JOIN metric_key k ON k.id = m.key_id WHERE m.run_id = r.id AND "
        "m.attempt > 0 AND k.name IN ('loss', 'a', 'b'))) <> 3 * ?1",
        steps);
    if (n != 0) {
        printf("%d succeeded runs lack steps\n", n);
        bad++;
    }
    sqlite3_close(db);
    free(table);
    return bad;
}
