#include "daemon/worker/process/attempt.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/process/args.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/log.h"
#include "kernels/comm/comm.h"

#define ASSIGN_MS 120000 /* polyd may be restarting */

/* For the signal handler: the one link of this process. */
static struct link *signal_link;

static void on_term(int sig)
{
    int saved = errno;

    (void)sig;
    link_signal_stop(signal_link);
    errno = saved;
}

static bool read_token(uint8_t token[WIRE_TOKEN_BYTES])
{
    size_t have = 0;

    while (have < WIRE_TOKEN_BYTES) {
        ssize_t n = read(WORKER_TOKEN_FD, token + have, WIRE_TOKEN_BYTES - have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    close(WORKER_TOKEN_FD);
    return true;
}

static enum pd_err begin(int argc, char **argv, bool serving, struct attempt *ret, struct pd_why *why)
{
    struct link_options o = {.socket_path = args_get(argc, argv, "--socket"),
                             .run = args_int(argc, argv, "--run", 0),
                             .attempt = (int)args_int(argc, argv, "--attempt", 0),
                             .rank = (int)args_int(argc, argv, "--rank", 0),
                             .mortal = serving};
    struct sigaction action = {.sa_handler = on_term, .sa_flags = SA_RESTART};
    char spool[4096], log[4096];
    enum pd_err err;

    ret->dir = args_get(argc, argv, "--dir");
    ret->socket_path = o.socket_path;
    ret->run = o.run;
    ret->number = o.attempt;
    ret->rank = o.rank;
    if (!o.socket_path || !ret->dir || o.attempt < 1 || (!serving && o.run < 1))
        return pd_fail(why, PD_ERR_INVALID, "required: --socket PATH --dir DIR --run N --attempt N");
    if ((size_t)snprintf(spool, sizeof spool, "%s/spool", ret->dir) >= sizeof spool ||
        (size_t)snprintf(log, sizeof log, "%s/log", ret->dir) >= sizeof log)
        return pd_fail(why, PD_ERR_LIMIT, "the directory's name is too long");
    if (!serving && o.rank == 0) { /* who has no data spools none, and one watches the log */
        o.spool_path = spool;
        o.log_path = log;
    }
    o.memory_bytes = (size_t)args_int(argc, argv, "--ring-bytes", 0);
    if (!read_token(o.token))
        return pd_fail(why, PD_ERR_DENIED, "no token was received on descriptor %d", WORKER_TOKEN_FD);
    err = link_start(&o, &ret->link, why);
    if (err != PD_OK)
        return err;
    signal_link = ret->link;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a full disk is an error, not a death */
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    return link_assigned(ret->link, ASSIGN_MS, &ret->assign, why);
}

enum pd_err attempt_begin(int argc, char **argv, bool serving, struct attempt *ret)
{
    struct pd_why why;
    enum pd_err err;

    memset(ret, 0, sizeof *ret);
    err = begin(argc, argv, serving, ret, &why);
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "worker", "start=failed error=%s why=\"%s\"", pd_err_name(err), why.text);
        attempt_end(ret);
    }
    return err;
}

void attempt_end(struct attempt *a)
{
    if (a->link) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
    }
    a->link = link_stop(a->link);
}

enum pd_err attempt_rendezvous(struct attempt *a, const struct pk_comm_api *comm, void *out,
                               struct pd_why *why)
{
    size_t len = 0;
    enum pd_err err;

    if (comm->id_bytes > LINK_RENDEZVOUS_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "the id of '%s' has %zu bytes, which is too long", comm->name,
                       comm->id_bytes);
    if (a->rank == 0) {
        err = comm->make_id(out, why);
        if (err == PD_OK)
            link_rendezvous_send(a->link, out, comm->id_bytes);
        return err;
    }
    err = link_rendezvous_wait(a->link, ASSIGN_MS, out, &len, why);
    if (err == PD_OK && len != comm->id_bytes)
        err = pd_fail(why, PD_ERR_VERSION, "rank 0 sent an id of %zu bytes, '%s' needs %zu", len, comm->name,
                      comm->id_bytes);
    return err;
}
