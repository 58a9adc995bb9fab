/* The caller publishes a loop under the mutex and then runs tasks itself. A thread that wakes while the loop is
 * open enters it (inside + 1) and takes task numbers from one counter; when the numbers are used up the caller
 * closes the loop and waits only for the threads inside. A thread that wakes too late finds it closed and goes
 * back to sleep, so a loop never waits for a thread that did not get a core. */
#include "kernels/backend/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#if defined __x86_64__
#include <xmmintrin.h>
#endif

#include "kernels/backend/cpu/gemm.h"

/* Turns of the watching loop before a thread sleeps: some 40 us, about what waking costs on a virtual
 * machine, and longer than the small ops between two products of a decoded token (GPT-2 124M: 18.5 ms with
 * 150 turns, 15.8 with 1000). */
#define SPIN_TURNS 1000

struct cpu_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* a loop was opened, or stop */
    pthread_cond_t done; /* the last thread inside left */
    pthread_t *thread;
    int threads; /* with the caller */
    int started;
    bool stop, open;
    int inside;
    atomic_uint generation; /* number of loops opened */
    atomic_int inside_hint; /* copy of inside, for spinning without the mutex */
    _Atomic int64_t next;
    int64_t count;
    void (*fn)(void *arg, int64_t task, int thread);
    void *arg;
};

struct starter {
    struct cpu_pool *pool;
    int index;
};

static void relax(void)
{
#if defined __x86_64__
    _mm_pause();
#endif
}

void cpu_calm_enter(struct cpu_calm *ret_was)
{
    /* Signals for faults of the thread itself are never blocked. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t all;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_BLOCK, &all, &ret_was->signals);
    ret_was->float_state = 0;
#if defined __x86_64__
    ret_was->float_state = _mm_getcsr();
    _mm_setcsr(ret_was->float_state | 0x8040u); /* FTZ | DAZ */
#endif
    cpu_gemm_one_thread();
}

void cpu_calm_leave(const struct cpu_calm *was)
{
#if defined __x86_64__
    _mm_setcsr(was->float_state);
#endif
    pthread_sigmask(SIG_SETMASK, &was->signals, NULL);
}

static void work(struct cpu_pool *p, int thread)
{
    int64_t count = p->count, task;

    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < count)
        p->fn(p->arg, task, thread);
}

static void *thread_main(void *arg)
{
    struct starter *st = arg;
    struct cpu_pool *p = st->pool;
    int index = st->index;
    struct cpu_calm was;
    unsigned seen = 0;

    free(st);
    cpu_calm_enter(&was); /* for the life of the thread */
    for (;;) {
        for (int i = 0; i < SPIN_TURNS; i++) {
            if (atomic_load_explicit(&p->generation, memory_order_relaxed) != seen)
                break;
            relax();
        }
        pthread_mutex_lock(&p->lock);
        while (!p->stop && atomic_load_explicit(&p->generation, memory_order_relaxed) == seen)
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->stop) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        seen = atomic_load_explicit(&p->generation, memory_order_relaxed);
        if (!p->open) {
            pthread_mutex_unlock(&p->lock);
            continue;
        }
        p->inside++;
        atomic_store_explicit(&p->inside_hint, p->inside, memory_order_relaxed);
        pthread_mutex_unlock(&p->lock);

        work(p, index);

        pthread_mutex_lock(&p->lock);
        p->inside--;
        atomic_store_explicit(&p->inside_hint, p->inside, memory_order_relaxed);
        if (p->inside == 0)
            pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

enum pd_err cpu_pool_new(int threads, struct cpu_pool **ret, struct pd_why *why)
{
    struct cpu_pool *p;

    if (threads < 1 || threads > 1024)
        return pd_fail(why, PD_ERR_INVALID, "%d threads: the number must be 1 to 1024", threads);
    p = calloc(1, sizeof *p);
    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a thread pool");
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->thread = calloc((size_t)threads, sizeof *p->thread);
    if (!p->thread) {
        cpu_pool_free(p);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %d threads", threads);
    }
    for (int i = 1; i < threads; i++) {
        struct starter *st = malloc(sizeof *st);
        int rc;

        if (!st) {
            cpu_pool_free(p);
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a thread");
        }
        *st = (struct starter){p, i};
        rc = pthread_create(&p->thread[p->started], NULL, thread_main, st);
        if (rc != 0) {
            free(st);
            cpu_pool_free(p);
            return pd_fail_errno(why, rc, "cannot start thread %d of the pool", i);
        }
        p->started++;
    }
    *ret = p;
    return PD_OK;
}

struct cpu_pool *cpu_pool_free(struct cpu_pool *p)
{
    if (p) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (int i = 0; i < p->started; i++)
            pthread_join(p->thread[i], NULL);
        pthread_cond_destroy(&p->done);
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
        free(p->thread);
        free(p);
    }
    return NULL;
}

struct cpu_pool *cpu_pool_single(void)
{
    static struct cpu_pool single = {.threads = 1}; /* cpu_pool_run reads nothing else of it */

    return &single;
}

int cpu_pool_threads(const struct cpu_pool *p)
{
    return p->threads;
}

void cpu_pool_run(struct cpu_pool *p, int64_t count, void (*fn)(void *arg, int64_t task, int thread),
                  void *arg)
{
    if (count <= 1 || p->threads == 1) {
        for (int64_t i = 0; i < count; i++)
            fn(arg, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    p->count = count;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->open = true;
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_relaxed);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);

    work(p, 0);

    /* The threads inside are finishing their last task: spin a little before sleeping. */
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (atomic_load_explicit(&p->inside_hint, memory_order_relaxed) == 0)
            break;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    p->open = false;
    while (p->inside > 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
