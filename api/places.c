/* Places for connections. The bound is for all together. When it is met, a new client replaces the connection
 * that has been idle longest or, if none is idle, the one whose body arrives most slowly. A request that is
 * being answered keeps its place. If all are being answered, a few more connections are accepted that serve
 * probes only, so that a server under load can still be examined.
 *
 * A connection that is cut off is shut down here and closed by its own loop. It does not count from then on.
 */
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "api/internal.h"
#include "kernels/base/clock.h"

#define NEW_US 2000000  /* how long a connection counts as new, and a body as just begun */
#define YOUNG_US 500000 /* in a crowd: so long the rest of a request may be on its way */

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET6)
        return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                      &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
           ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

static void cut_off(struct api *api, struct conn *c)
{
    shutdown(c->fd, SHUT_RDWR); /* its loop sees it and closes */
    atomic_store(&c->deadline_us, 0);
    if (!c->leaving)
        api->conn_count--;
    c->leaving = true;
}

/* Bytes a second of a body that has come for a while. */
static double body_rate(const struct conn *c, int64_t now_us)
{
    return (double)atomic_load(&c->body_bytes) / (1e-6 * (double)(now_us - atomic_load(&c->since_us) + 1));
}

/* Whose place a new client gets; NULL: all are being answered. Of connections that may be closed the oldest
 * kind goes first: idle for NEW_US, the slowest body of that age, then the same two from YOUNG_US on, and
 * only then those whose request may just be arriving. */
static struct conn *least_active(const struct api *api, int64_t now_us)
{
    static const int64_t least_age_us[] = {NEW_US, YOUNG_US, 0};
    struct conn *idle = NULL, *slow[3] = {NULL};
    double slowest[3] = {0};
    int64_t idle_since = INT64_MAX;

    for (struct conn *c = api->conns; c; c = c->next) {
        int phase = atomic_load(&c->phase);
        int64_t since = atomic_load(&c->since_us);

        if (c->leaving)
            continue;
        if (phase == CONN_IDLE && since < idle_since) {
            idle = c;
            idle_since = since;
        } else if (phase == CONN_BODY) {
            double rate = body_rate(c, now_us);

            for (int i = 0; i < 3; i++)
                if (now_us - since >= least_age_us[i] && (!slow[i] || rate < slowest[i])) {
                    slow[i] = c;
                    slowest[i] = rate;
                }
        }
    }
    for (int i = 0; i < 3; i++) {
        if (idle && now_us - idle_since >= least_age_us[i])
            return idle;
        if (slow[i])
            return slow[i];
    }
    return NULL;
}

/* The place found by this loop for the connection that it will add next. */
static _Thread_local struct {
    bool taken, spare;
} found_place;

bool api_place_find(struct api *api, const struct sockaddr *address)
{
    struct conn *victim = NULL;
    int found = 0;
    bool may;

    pthread_mutex_lock(&api->lock);
    if (api->set.connections_per_ip)
        for (const struct conn *c = api->conns; c; c = c->next)
            found += !c->leaving && same_host((const struct sockaddr *)&c->address, address);
    may = !api->set.connections_per_ip || found < api->set.connections_per_ip;
    if (may && api->conn_count >= api->set.connections)
        victim = least_active(api, pd_clock_mono_us());
    if (victim) {
        cut_off(api, victim);
        atomic_fetch_add(&api->counters.conns_replaced, 1);
    }
    may = may && api->conn_count < api->set.connections + api->set.connections_reserved;
    if (found_place.taken) /* libmicrohttpd had no memory for the one before */
        api->conn_count--;
    found_place.taken = may;
    found_place.spare = api->conn_count >= api->set.connections;
    api->conn_count += may;
    pthread_mutex_unlock(&api->lock);
    if (!may)
        atomic_fetch_add(&api->counters.conns_refused, 1);
    return may;
}

void api_conn_enter(struct conn *c, enum conn_phase phase, int64_t now_us)
{
    atomic_store(&c->since_us, now_us);
    atomic_store(&c->phase, phase);
}

void api_conn_add(struct api *api, struct conn *c)
{
    pthread_mutex_lock(&api->lock);
    c->next = api->conns;
    if (c->next)
        c->next->prev = c;
    api->conns = c;
    c->spare = found_place.spare;
    found_place.taken = false; /* counted already */
    pthread_mutex_unlock(&api->lock);
}

void api_conn_remove(struct api *api, struct conn *c)
{
    pthread_mutex_lock(&api->lock);
    if (c->prev)
        c->prev->next = c->next;
    else
        api->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    if (!c->leaving)
        api->conn_count--;
    api_unwatch_fd(api, c->fd);
    pthread_mutex_unlock(&api->lock);
}

static bool too_slow(const struct api *api, const struct conn *c, int64_t now_us)
{
    int64_t us;

    if (!api->set.body_rate || atomic_load(&c->phase) != CONN_BODY)
        return false;
    us = now_us - atomic_load(&c->since_us) - (int64_t)api->set.body_grace_s * 1000000;
    return us > 0 && (double)atomic_load(&c->body_bytes) < 1e-6 * (double)us * (double)api->set.body_rate;
}

void api_conns_tick_locked(struct api *api, int64_t now_us)
{
    for (struct conn *c = api->conns; c; c = c->next) {
        int64_t deadline = atomic_load(&c->deadline_us);
        bool slow = too_slow(api, c, now_us);

        if (c->leaving || !(slow || (deadline && now_us > deadline)))
            continue;
        cut_off(api, c);
        if (slow)
            atomic_fetch_add(&api->counters.conns_slow, 1);
    }
}

int api_connection_count(struct api *api)
{
    int n;

    pthread_mutex_lock(&api->lock);
    n = api->conn_count;
    pthread_mutex_unlock(&api->lock);
    return n;
}
