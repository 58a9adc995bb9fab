/* What all workers have in common. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/polyd/supervise/workers/internal.h"

static void roots_free(struct sup_data_root *roots, int count)
{
    for (int i = 0; i < count && roots; i++) {
        free((char *)roots[i].name);
        free((char *)roots[i].path);
    }
    free(roots);
}

static struct sup_data_root *roots_copy(const struct sup_data_root *from, int count)
{
    struct sup_data_root *roots = calloc((size_t)count + 1, sizeof *roots);
    bool whole = roots != NULL;

    for (int i = 0; i < count && whole; i++) {
        roots[i].name = strdup(from[i].name);
        roots[i].path = strdup(from[i].path);
        whole = roots[i].name && roots[i].path;
    }
    if (!whole) {
        roots_free(roots, count);
        return NULL;
    }
    return roots;
}

enum pd_err workers_new(struct loop *l, const struct workers_options *o, struct workers **ret,
                        struct pd_why *why)
{
    struct workers *w = calloc(1, sizeof *w);
    enum pd_err err = PD_OK;
    char real[4096];

    if (!w)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    w->loop = l;
    w->listen_fd = -1;
    w->members_tail = &w->members;
    if (!realpath(o->state_dir, real))
        err = pd_fail_errno(why, errno, "cannot find the state directory '%s'", o->state_dir);
    else if (strlen(real) > WORKERS_PATH_MAX - 128)
        err = pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    else if (!(w->state_dir = strdup(real)) || !(w->worker_path = strdup(o->worker_path)) ||
             !(w->roots = roots_copy(o->roots, o->root_count)))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    else if (asprintf(&w->socket_path, "%s/worker.sock", w->state_dir) < 0) {
        w->socket_path = NULL;
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    } else if (access(w->worker_path, X_OK))
        err = pd_fail_errno(why, errno, "the worker program '%s' cannot be run", w->worker_path);
    if (err != PD_OK) {
        workers_free(w);
        return err;
    }
    w->root_count = o->root_count;
    w->listen_source = (struct loop_source){.ready = conn_accept, .self = w};
    w->member = (struct loop_member){.self = w, .tick = conn_tick, .turn_end = conn_sweep};
    loop_join(l, &w->member);
    *ret = w;
    return PD_OK;
}

void workers_join(struct workers *w, struct workers_member *m)
{
    m->next = NULL;
    *w->members_tail = m;
    w->members_tail = &m->next;
}

enum pd_err workers_listen(struct workers *w, struct pd_why *why)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    mode_t mask;
    int rc;

    if (strlen(w->socket_path) >= sizeof addr.sun_path)
        return pd_fail(why, PD_ERR_LIMIT, "the path '%s' exceeds the %zu bytes of a socket's name",
                       w->socket_path, sizeof addr.sun_path - 1);
    strcpy(addr.sun_path, w->socket_path);
    w->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (w->listen_fd < 0)
        return pd_fail_errno(why, errno, "cannot make a socket");
    unlink(w->socket_path); /* of a daemon that was killed: we hold the lock of the directory */
    mask = umask(0177);
    rc = bind(w->listen_fd, (struct sockaddr *)&addr, sizeof addr);
    umask(mask);
    if (rc || listen(w->listen_fd, 128))
        return pd_fail_errno(why, errno, "cannot listen on '%s'", w->socket_path);
    loop_watch(w->loop, &w->listen_source, w->listen_fd, EPOLLIN);
    return PD_OK;
}

void workers_close(struct workers *w)
{
    conn_close_all(w);
    if (w->listen_fd >= 0) {
        close(w->listen_fd);
        unlink(w->socket_path);
    }
    w->listen_fd = -1;
}

struct workers *workers_free(struct workers *w)
{
    if (!w)
        return NULL;
    workers_close(w);
    roots_free(w->roots, w->root_count);
    free(w->state_dir);
    free(w->worker_path);
    free(w->socket_path);
    free(w);
    return NULL;
}

const char *workers_state_dir(const struct workers *w)
{
    return w->state_dir;
}

const char *workers_socket(const struct workers *w)
{
    return w->socket_path;
}

/* ---- data roots ------------------------------------------------------------------------------ */

const struct sup_data_root *workers_roots(const struct workers *w, int *ret_count)
{
    *ret_count = w->root_count;
    return w->roots;
}

struct roots_post {
    struct loop_post post;
    struct workers *workers;
    struct sup_data_root *roots;
    int count;
};

static void take_roots(struct loop_post *post)
{
    struct roots_post *p = (struct roots_post *)post;
    struct workers *w = p->workers;

    roots_free(w->roots, w->root_count);
    w->roots = p->roots;
    w->root_count = p->count;
    free(p);
}

enum pd_err workers_set_roots(struct workers *w, const struct sup_data_root *roots, int count,
                              struct pd_why *why)
{
    struct roots_post *p = calloc(1, sizeof *p);

    if (p)
        p->roots = roots_copy(roots, count);
    if (!p || !p->roots) {
        free(p);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the data roots");
    }
    p->post.fn = take_roots;
    p->workers = w;
    p->count = count;
    loop_post(w->loop, &p->post);
    return PD_OK;
}

void workers_stats(const struct workers *w, struct sup_stats *ret)
{
    ret->frames_in += w->frames_in;
    ret->killed += w->killed;
    ret->connections += w->connections;
}
