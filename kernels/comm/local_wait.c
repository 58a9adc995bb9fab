/* Barriers: how a rank waits for the others, and how it notices that one of them will never arrive. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/comm/local.h"

#define LOOK_US 100000 /* how often a sleeping rank checks that its peer is alive */
#define SPINS 2000     /* about 10 us: the delay of a peer that runs on its own processor */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec t = {.tv_nsec = LOOK_US * 1000};

    syscall(SYS_futex, (void *)word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool local_process(int32_t pid, uint64_t *ret_start, char *ret_state)
{
    char path[64], text[1024], *at;
    FILE *f;
    bool ok = false;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')')) && at[1] == ' ') {
        *ret_state = at[2];
        for (int i = 0; i < 20 && at; i++) /* field 22, counted from the bracket that closes the name */
            at = strchr(at + 1, ' ');
        *ret_start = at ? strtoull(at + 1, NULL, 10) : 0;
        ok = true;
    }
    if (f)
        fclose(f);
    return ok;
}

void local_abort(struct pk_comm *c, const char *reason)
{
    struct local_shared *s = c->shared;
    uint32_t none = 0;

    if (atomic_compare_exchange_strong(&s->aborted, &none, 1)) {
        snprintf(s->reason, sizeof s->reason, "rank %d: %s", c->rank, reason ? reason : "stopped");
        atomic_store(&s->aborted, 2);
    }
    for (int i = 0; i < c->ranks; i++)
        futex_wake(&s->rank[i].arrived);
}

/* This call and all later ones fail. `notify`: the other ranks do not know the reason yet. */
static enum pd_err fail(struct pk_comm *c, enum pd_err err, const char *text, bool notify, struct pd_why *why)
{
    c->err = err;
    snprintf(c->why.text, sizeof c->why.text, "%s", text);
    if (notify) {
        struct local_shared *s = c->shared;
        uint32_t none = 0;

        if (atomic_compare_exchange_strong(&s->aborted, &none, 1)) {
            snprintf(s->reason, sizeof s->reason, "%.*s", LOCAL_REASON - 1, text);
            atomic_store(&s->aborted, 2);
        }
        for (int i = 0; i < c->ranks; i++)
            futex_wake(&s->rank[i].arrived);
    }
    return pd_fail(why, err, "%s", text);
}

static bool here(const struct local_rank *r, uint32_t barrier)
{
    return (int32_t)(atomic_load_explicit(&r->arrived, memory_order_acquire) - barrier) >= 0;
}

/* Whether rank i is alive and, with `barrier`, may still reach the present barrier. */
static enum pd_err look(struct pk_comm *c, int i, bool barrier, int64_t now_us, struct pd_why *why)
{
    struct local_rank *r = &c->shared->rank[i];
    int32_t pid = atomic_load(&r->pid);
    uint64_t start = 0;
    char state = 0, text[200];

    if (atomic_load(&c->shared->aborted) == 2)
        return fail(c, PD_ERR_CLOSED, c->shared->reason, false, why);
    if (!pid)
        return PD_OK; /* not opened yet: the time limit covers it */
    if (!local_process(pid, &start, &state) || start != r->start || state == 'Z' || state == 'X') {
        if (barrier && here(r, c->barriers))
            return PD_OK;
        if (!barrier && atomic_load(&r->left))
            return PD_OK;
        snprintf(text, sizeof text, "rank %d (process %d) died", i, (int)pid);
        return fail(c, PD_ERR_CLOSED, text, true, why);
    }
    if (barrier && atomic_load(&r->left)) {
        if (here(r, c->barriers))
            return PD_OK;
        snprintf(text, sizeof text, "rank %d (process %d) has left", i, (int)pid);
        return fail(c, PD_ERR_CLOSED, text, true, why);
    }
    if (state != 'T' && state != 't') {
        c->stopped_since_us[i] = 0;
    } else if (!c->stopped_since_us[i]) {
        c->stopped_since_us[i] = now_us;
    } else if (now_us - c->stopped_since_us[i] >= c->stopped_us) {
        snprintf(text, sizeof text, "rank %d (process %d) is stopped by a signal", i, (int)pid);
        return fail(c, PD_ERR_TIMEOUT, text, true, why);
    }
    return PD_OK;
}

static void breathe(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

enum pd_err local_barrier(struct pk_comm *c, int64_t wait_us, struct pd_why *why)
{
    struct local_rank *me = &c->shared->rank[c->rank];
    int64_t began_us = 0;
    enum pd_err err = PD_OK;

    if (c->err != PD_OK)
        return pd_fail(why, c->err, "%s", c->why.text);
    c->barriers++;
    atomic_store_explicit(&me->arrived, c->barriers, memory_order_seq_cst);
    if (atomic_load_explicit(&me->sleepers, memory_order_seq_cst))
        futex_wake(&me->arrived);
    for (int i = 0; i < c->ranks && err == PD_OK; i++) {
        struct local_rank *r = &c->shared->rank[i];

        if (here(r, c->barriers))
            continue;
        if (!began_us)
            began_us = pd_clock_mono_us();
        for (int k = 0; c->spin && k < SPINS && !here(r, c->barriers); k++)
            breathe();
        while (!here(r, c->barriers) && err == PD_OK) {
            uint32_t seen;
            int64_t now_us;

            atomic_fetch_add(&r->sleepers, 1);
            seen = atomic_load(&r->arrived);
            if ((int32_t)(seen - c->barriers) < 0 && atomic_load(&c->shared->aborted) != 2)
                futex_wait(&r->arrived, seen);
            atomic_fetch_sub(&r->sleepers, 1);
            if (here(r, c->barriers))
                break;
            now_us = pd_clock_mono_us();
            err = look(c, i, true, now_us, why);
            if (err == PD_OK && now_us - began_us > wait_us && !here(r, c->barriers)) {
                char text[160];

                snprintf(text, sizeof text, "rank %d did not arrive within %.3g s", i,
                         (double)wait_us * 1e-6);
                err = fail(c, PD_ERR_TIMEOUT, text, true, why);
            }
        }
    }
    if (began_us)
        atomic_fetch_add_explicit(&c->waited_us, pd_clock_mono_us() - began_us, memory_order_relaxed);
    return err;
}

enum pd_err local_look(struct pk_comm *c, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (atomic_load(&c->shared->aborted) == 2)
        return fail(c, PD_ERR_CLOSED, c->shared->reason, false, why);
    for (int i = 0; i < c->ranks && err == PD_OK; i++)
        if (i != c->rank && !atomic_load(&c->shared->rank[i].left)) /* a rank that closed is no error */
            err = look(c, i, false, pd_clock_mono_us(), why);
    return err;
}
