/* The threads of a block as fibers of one host thread.
 *
 * A thread runs until it must wait for others; then the next one runs, first of its own warp. A kernel
 * without barriers never switches: one fiber runs all its threads, one after the other. A rendezvous (warp
 * instruction, barrier) is completed by whoever comes last. When no thread can go on, deferred copies land,
 * and when there are none, the block is stuck: that is said with names, and the process ends. POLYD_EMU_ORDER
 * (forward, reverse, random) chooses which thread is next: a kernel that lacks a barrier then gives other
 * results.
 *
 * The blocks of a cluster run together, as so many threads more: each block's begin at a multiple of 128.
 * Other blocks run one after the other. */
#include "tests/gpu/emu/block.h"

#include <cstdarg>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/emu/fiber.h"
#include "tests/gpu/emu/runtime.h"

pk_emu_place pk_emu_here;

/* hopper.cc: instructions of sm 90, where that file is. */
__attribute__((weak)) void pk_emu_hopper_begin(unsigned threads, unsigned blocks);
__attribute__((weak)) void pk_emu_hopper_end(void);

extern "C" {
extern char __start_pk_emu_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_pk_emu_shared[] __attribute__((weak, visibility("hidden")));
}

namespace
{

constexpr unsigned MAX_THREADS = 1024, WARPS = MAX_THREADS / 32, BARRIERS = 16, GATHERINGS = 4;
constexpr unsigned BLOCKS = PK_EMU_CLUSTER_MOST;
constexpr size_t SHARED_STEP = (PK_EMU_SHARED_MOST + 4095) / 4096 * 4096 + 8192; /* from block to block */
constexpr size_t SHARED_GUARD = 1024;
constexpr unsigned char GUARD_BYTE = 0xa5;

struct gathering { /* lanes of a warp, or of a warpgroup, that wait for each other */
    bool active;
    unsigned mask;
    unsigned arrived; /* lanes; of a warpgroup: how many */
    const char *what;
    void *mine[128];
    unsigned thread[128];
    void (*act)(void *const *lane, void *arg);
    void *arg;
};

struct barrier {
    unsigned count, arrived; /* count 0: everyone */
    int sum, result;
    unsigned waiting[WARPS];
};

struct copy_async {
    void *to;
    const void *from;
    unsigned bytes, valid, group;
};

struct deferred {
    void (*act)(void *);
    std::unique_ptr<char[]> arg;
};

struct thread_state {
    pk_fiber *fiber; /* while started and not returned */
    const char *what;
    bool (*done)(void *);
    void *done_arg;
    bool may_give_up; /* returns from its wait when nothing can go on */
    std::vector<copy_async> copies;
    unsigned groups;
    uint3 place;
    unsigned rank; /* of its block in the cluster */
};

enum class order { forward, reverse, random };

struct block_state {
    const char *kernel;
    void (*run)(const void *args);
    const void *args;
    unsigned threads, live_count; /* of the cluster; `step` of a block */
    unsigned step, blocks, in_block[BLOCKS];
    uint3 first; /* the cluster's first block */
    unsigned live[WARPS], ready[WARPS], fresh[WARPS], polling[WARPS];
    unsigned warp_ready; /* warps with ready or fresh threads */
    gathering gather[WARPS][GATHERINGS];
    unsigned gatherings[WARPS]; /* of which active */
    gathering group[WARPS / 4];
    barrier bar[BLOCKS][BARRIERS], cluster_bar;
    std::deque<deferred> late;
    order how;
    uint64_t seed;
};

block_state B;
thread_state T[MAX_THREADS];
unsigned now; /* the running thread */
pk_fiber *running, *home;
/* Never taken down: stacks live as long as the program, and are not leaks. */
std::vector<pk_fiber *> &idle = *new std::vector<pk_fiber *>;
bool in_block;

unsigned char
    *shared_memory; /* of a cluster's first block; before each a page of guard, after it SHARED_GUARD */
size_t shared_bytes;

unsigned char *shared_of(unsigned rank)
{
    return shared_memory + rank * SHARED_STEP;
}

uint3 place_of(unsigned t)
{
    const dim3 &d = pk_emu_here.block_dim;

    return {t % d.x, t / d.x % d.y, t / (d.x * d.y)};
}

unsigned pick_bit(unsigned set, unsigned after)
{
    unsigned turned;

    switch (B.how) {
    case order::forward: /* the next above, then from the bottom */
        turned = after < 31 ? set & ~((2u << after) - 1) : 0;
        return (unsigned)__builtin_ctz(turned ? turned : set);
    case order::reverse:
        turned = set & ((1u << after) - 1);
        return 31u - (unsigned)__builtin_clz(turned ? turned : set);
    default: {
        B.seed = B.seed * 6364136223846793005u + 1442695040888963407u;
        unsigned skip = (unsigned)(B.seed >> 33) % (unsigned)__builtin_popcount(set);

        while (skip--)
            set &= set - 1;
        return (unsigned)__builtin_ctz(set);
    }
    }
}

void note_warp(unsigned w)
{
    if (B.ready[w] | B.fresh[w])
        B.warp_ready |= 1u << w;
    else
        B.warp_ready &= ~(1u << w);
}

void wake(unsigned t)
{
    B.ready[t / 32] |= 1u << t % 32;
    B.warp_ready |= 1u << t / 32;
}

[[noreturn]] void stuck()
{
    std::string text;
    const char *last = nullptr;
    int lines = 0;

    for (unsigned t = 0; t < B.threads && lines < 12; t++) {
        char line[160];

        if (!(B.live[t / 32] >> t % 32 & 1u) || T[t].what == last)
            continue;
        last = T[t].what;
        snprintf(line, sizeof line, "\n  from thread %u on: at %s", t, last ? last : "(running)");
        text += line;
        lines++;
    }
    pk_emu_fail("no thread can go on:%s", text.c_str());
}

/* Wakes the first thread that may give up its wait. */
bool give_up()
{
    for (unsigned t = 0; t < B.threads; t++)
        if (B.polling[t / 32] >> t % 32 & 1u && T[t].may_give_up) {
            B.polling[t / 32] &= ~(1u << t % 32);
            wake(t);
            return true;
        }
    return false;
}

/* The thread to run next; false when the block is done. */
bool pick(unsigned *ret)
{
    for (;;) {
        unsigned w = now / 32;

        if (B.warp_ready) {
            if (!(B.warp_ready >> w & 1u)) {
                unsigned after = w;

                w = pick_bit(B.warp_ready, after);
                *ret = w * 32 + pick_bit(B.ready[w] | B.fresh[w], B.how == order::reverse ? 0 : 31);
            } else {
                *ret = w * 32 + pick_bit(B.ready[w] | B.fresh[w], now % 32);
            }
            return true;
        }
        if (B.live_count == 0)
            return false;
        bool any = false;
        for (unsigned i = 0; i < (B.threads + 31) / 32; i++)
            for (unsigned set = B.polling[i]; set; set &= set - 1) {
                unsigned t = i * 32 + (unsigned)__builtin_ctz(set);

                if (T[t].done(T[t].done_arg)) {
                    B.polling[i] &= ~(1u << t % 32);
                    wake(t);
                    any = true;
                }
            }
        if (any)
            continue;
        if (B.late.empty() && give_up())
            continue;
        if (B.late.empty())
            stuck();
        deferred d = std::move(B.late.front());
        B.late.pop_front();
        d.act(d.arg.get());
    }
}

void enter(unsigned t)
{
    unsigned bit = 1u << t % 32, w = t / 32;

    B.ready[w] &= ~bit;
    B.fresh[w] &= ~bit;
    note_warp(w);
    now = t;
    pk_emu_here.thread = T[t].place;
    pk_emu_here.block = {B.first.x + T[t].rank, B.first.y, B.first.z};
}

void go(pk_fiber *to)
{
    pk_fiber *from = running;

    if (from == to)
        return;
    running = to;
    pk_fiber_switch(from, to);
}

void fiber_main(void *);

/* The fiber that thread t continues on, started if need be. */
pk_fiber *fiber_of(unsigned t)
{
    if (!T[t].fiber) {
        if (idle.empty())
            idle.push_back(pk_fiber_new(fiber_main));
        T[t].fiber = idle.back();
        idle.pop_back();
    }
    return T[t].fiber;
}

/* Leaves the running thread until somebody wakes it. */
void sleep_at(const char *what)
{
    unsigned me = now, next;

    T[me].what = what;
    if (!pick(&next))
        stuck();
    enter(next);
    if (next != me)
        go(fiber_of(next));
    T[me].what = nullptr;
}

void land(thread_state *s, unsigned groups_done)
{
    size_t keep = 0;

    for (const copy_async &c : s->copies) {
        if (c.group >= groups_done) {
            s->copies[keep++] = c;
            continue;
        }
        if (c.valid)
            memcpy(c.to, c.from, c.valid);
        if (c.valid < c.bytes)
            memset((char *)c.to + c.valid, 0, c.bytes - c.valid);
    }
    s->copies.resize(keep);
}

bool gathering_full(const gathering *m, unsigned w)
{
    return m->active && (m->arrived & B.live[w]) == (m->mask & B.live[w]);
}

void gathering_end(gathering *m, unsigned w)
{
    m->active = false;
    B.gatherings[w]--;
    for (unsigned absent = ~m->arrived; absent; absent &= absent - 1)
        m->mine[__builtin_ctz(absent)] = nullptr; /* of an earlier gathering */
    if (m->act)
        m->act(m->mine, m->arg);
    B.ready[w] |= m->arrived & B.live[w];
    note_warp(w);
}

void barrier_end(barrier *b)
{
    b->result = b->sum;
    b->sum = 0;
    b->arrived = 0;
    b->count = 0;
    for (unsigned w = 0; w < WARPS; w++)
        if (b->waiting[w]) {
            B.ready[w] |= b->waiting[w];
            b->waiting[w] = 0;
            note_warp(w);
        }
}

bool barrier_full(const barrier *b, unsigned all)
{
    return b->arrived && b->arrived >= (b->count ? b->count : all);
}

/* Others may have waited for nobody but us. */
void thread_end()
{
    unsigned w = now / 32;

    B.live[w] &= ~(1u << now % 32);
    B.live_count--;
    B.in_block[T[now].rank]--;
    land(&T[now], UINT32_MAX);
    T[now].fiber = nullptr;
    for (int i = 0; i < (int)GATHERINGS; i++)
        if (gathering_full(&B.gather[w][i], w))
            gathering_end(&B.gather[w][i], w);
    barrier *b = &B.bar[T[now].rank][0];
    if (b->count == 0 && barrier_full(b, B.in_block[T[now].rank]))
        barrier_end(b);
    if (barrier_full(&B.cluster_bar, B.live_count))
        barrier_end(&B.cluster_bar);
}

/* A fiber runs fresh threads one after the other until none is left, then rests. */
void fiber_main(void *)
{
    pk_fiber_entered();
    for (;;) {
        unsigned next;

        B.run(B.args);
        thread_end();
        if (!pick(&next)) {
            idle.push_back(running);
            go(home);
            continue; /* woken in another block: `now` is ours */
        }
        enter(next);
        if (T[next].fiber) {
            idle.push_back(running);
            go(T[next].fiber);
        } else {
            T[next].fiber = running;
        }
    }
}

void fill_shared(size_t bytes) __attribute__((no_sanitize_address));
void fill_shared(size_t bytes)
{
    for (unsigned rank = 0; rank < B.blocks; rank++)
        memset(shared_of(rank), 0xff, bytes);
    if (__start_pk_emu_shared)
        for (char *p = __start_pk_emu_shared; p < __stop_pk_emu_shared; p++)
            *p = (char)0xff;
}

} // namespace

void pk_emu_fail(const char *format, ...)
{
    va_list ap;

    fprintf(stderr, "cuda emulation: ");
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    if (in_block)
        fprintf(stderr, "\n  in kernel %s, block (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u)", B.kernel,
                blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x,
                blockDim.y, blockDim.z);
    fprintf(stderr, "\n");
    fflush(stderr);
    abort();
}

unsigned pk_emu_thread(void)
{
    return now;
}

unsigned pk_emu_threads(void)
{
    return B.threads;
}

unsigned pk_emu_rank(void)
{
    return T[now].rank;
}

unsigned pk_emu_blocks(void)
{
    return B.blocks;
}

void pk_emu_warp(unsigned mask, const char *what, void *mine, void (*act)(void *const *lane, void *arg),
                 void *arg)
{
    unsigned w = now / 32, lane = now % 32, bit = 1u << lane;
    gathering *m = nullptr;

    if (B.gatherings[w] == 1 && B.gather[w][0].active && B.gather[w][0].mask == mask)
        m = &B.gather[w][0]; /* as nearly always */
    if (!(mask & bit))
        pk_emu_fail("%s: lane %u is not in its own mask %08x", what, lane, mask);
    for (unsigned i = 0; !m && B.gatherings[w] && i < GATHERINGS; i++) {
        gathering *a = &B.gather[w][i];

        if (a->active && a->mask == mask)
            m = a;
        else if (a->active && (a->mask & mask & B.live[w]))
            pk_emu_fail("warp %u has diverged: lane %u is at %s (mask %08x), others at %s (mask %08x)", w,
                        lane, what, mask, a->what, a->mask);
    }
    for (unsigned i = 0; !m && i < GATHERINGS; i++)
        if (!B.gather[w][i].active) {
            m = &B.gather[w][i];
            m->active = true;
            B.gatherings[w]++;
            m->mask = mask;
            m->arrived = 0;
            m->what = what;
        }
    if (!m)
        pk_emu_fail("%s: more than %u groups of lanes wait in warp %u", what, GATHERINGS, w);
    if (m->what != what && strcmp(m->what, what) != 0)
        pk_emu_fail("warp %u has diverged: lane %u is at %s, others at %s", w, lane, what, m->what);
    m->mine[lane] = mine;
    m->arrived |= bit;
    m->act = act;
    m->arg = arg;
    if (gathering_full(m, w)) {
        gathering_end(m, w);
        B.ready[w] &= ~bit; /* that is us: we go on */
        note_warp(w);
    } else {
        sleep_at(what);
    }
}

void pk_emu_warpgroup(const char *what, void *mine, void (*act)(void *const *lane, void *arg), void *arg)
{
    unsigned g = now / 128;
    gathering *m = &B.group[g];

    if (!m->active) {
        m->active = true;
        m->arrived = 0;
        m->what = what;
    }
    if (m->what != what && strcmp(m->what, what) != 0)
        pk_emu_fail("warpgroup %u has diverged: thread %u is at %s, others at %s", g, now, what, m->what);
    m->mine[now % 128] = mine;
    m->arrived++;
    if (m->arrived == 128) {
        m->active = false;
        if (act)
            act(m->mine, arg);
        memset(m->mine, 0, sizeof m->mine);
        for (unsigned w = g * 4; w < g * 4 + 4; w++) {
            B.ready[w] = ~0u;
            if (w == now / 32)
                B.ready[w] &= ~(1u << now % 32);
            note_warp(w);
        }
    } else {
        sleep_at(what);
    }
}

static const char *barrier_name(unsigned id)
{
    static char name[BARRIERS][24];

    if (id == 0)
        return "__syncthreads";
    snprintf(name[id], sizeof name[id], "barrier %u", id);
    return name[id];
}

static barrier *barrier_come(unsigned id, unsigned count)
{
    barrier *b;

    if (id >= BARRIERS)
        pk_emu_fail("barrier %u: there are %u", id, BARRIERS);
    if (count % 32)
        pk_emu_fail("barrier %u: %u threads are no whole warps", id, count);
    b = &B.bar[T[now].rank][id];
    if (b->arrived && b->count != count)
        pk_emu_fail("barrier %u: awaits %u threads, and this one says %u", id, b->count, count);
    b->count = count;
    b->arrived++;
    return b;
}

void pk_emu_barrier(unsigned id, unsigned count)
{
    barrier *b = barrier_come(id, count);

    if (barrier_full(b, B.in_block[T[now].rank])) {
        barrier_end(b);
        return;
    }
    b->waiting[now / 32] |= 1u << now % 32;
    sleep_at(barrier_name(id));
}

void pk_emu_barrier_arrive(unsigned id, unsigned count)
{
    barrier *b = barrier_come(id, count);

    if (barrier_full(b, B.in_block[T[now].rank]))
        barrier_end(b);
}

void pk_emu_cluster_barrier(void)
{
    barrier *b = &B.cluster_bar;

    b->arrived++;
    if (barrier_full(b, B.live_count)) {
        barrier_end(b);
        return;
    }
    b->waiting[now / 32] |= 1u << now % 32;
    sleep_at("barrier.cluster");
}

int pk_emu_syncthreads_count(int predicate)
{
    barrier *b = &B.bar[T[now].rank][0];

    b->sum += predicate != 0;
    pk_emu_barrier(0, 0);
    return b->result;
}

bool pk_emu_wait(const char *what, bool (*done)(void *arg), void *arg, bool may_give_up)
{
    if (done(arg))
        return true;
    T[now].done = done;
    T[now].done_arg = arg;
    T[now].may_give_up = may_give_up;
    B.polling[now / 32] |= 1u << now % 32;
    sleep_at(what);
    return done(arg);
}

void pk_emu_defer(void (*act)(void *arg), const void *arg, size_t arg_bytes)
{
    deferred d = {act, std::unique_ptr<char[]>(new char[arg_bytes])};

    memcpy(d.arg.get(), arg, arg_bytes);
    B.late.push_back(std::move(d));
}

void pk_emu_cp_async(void *to, const void *from, unsigned bytes, unsigned valid)
{
    thread_state *s = &T[now];

    if (bytes != 4 && bytes != 8 && bytes != 16)
        pk_emu_fail("cp.async: of %u bytes", bytes);
    if (valid > bytes)
        pk_emu_fail("cp.async: %u valid bytes of %u", valid, bytes);
    if ((uintptr_t)to % bytes || (valid && (uintptr_t)from % bytes))
        pk_emu_fail("cp.async: from %p to %p, not aligned to %u bytes", from, to, bytes);
    if (valid)
        pk_emu_check_global(from, valid, "cp.async");
    pk_emu_check(to, bytes, bytes);
    s->copies.push_back({to, from, bytes, valid, s->groups});
}

void pk_emu_cp_commit(void)
{
    T[now].groups++;
}

void pk_emu_cp_wait(unsigned groups_left)
{
    thread_state *s = &T[now];

    if (s->groups > groups_left)
        land(s, s->groups - groups_left);
}

void pk_emu_check(const void *p, size_t bytes, size_t alignment)
{
    const unsigned char *at = (const unsigned char *)p;

    if ((uintptr_t)p % alignment)
        pk_emu_fail("%p is not aligned to %zu bytes", p, alignment);
    if (at >= shared_memory && at < shared_of(BLOCKS)) {
        const unsigned char *mine = shared_of(T[now].rank);

        if (at < mine || at + bytes > mine + shared_bytes)
            pk_emu_fail("%zu bytes at %td are not in the block's %zu bytes of shared memory", bytes,
                        at - mine, shared_bytes);
        return;
    }
    pk_emu_check_within(p, bytes);
}

uint32_t pk_emu_shared_address(const void *p)
{
    const unsigned char *mine = shared_of(T[now].rank);
    size_t at = (size_t)((const unsigned char *)p - mine);

    if ((const unsigned char *)p < mine || at > shared_bytes)
        pk_emu_fail("%p is not in this block's %zu bytes of dynamic shared memory", p, shared_bytes);
    return 1024u + (uint32_t)at;
}

void *pk_emu_cluster_pointer(unsigned rank, uint32_t address, size_t bytes)
{
    if (rank >= B.blocks)
        pk_emu_fail("block %u of a cluster of %u", rank, B.blocks);
    if (B.in_block[rank] == 0)
        pk_emu_fail("shared memory of block %u of the cluster, which has left", rank);
    if (address < 1024 || address - 1024 > shared_bytes || bytes > shared_bytes - (address - 1024))
        pk_emu_fail("%zu bytes at shared address %u are outside the block's %zu bytes (from 1024)", bytes,
                    address, shared_bytes);
    return shared_of(rank) + (address - 1024);
}

void *pk_emu_shared_pointer(uint32_t address, size_t bytes)
{
    return pk_emu_cluster_pointer(T[now].rank, address, bytes);
}

void *pk_emu_dynamic_shared()
{
    return shared_of(T[now].rank);
}

unsigned __activemask()
{
    return B.live[now / 32];
}

/* ---- a whole launch ---- */

static void run_cluster(unsigned threads)
{
    unsigned next = 0;

    memset(B.live, 0, sizeof B.live);
    B.step = B.blocks > 1 ? (threads + 127) / 128 * 128 : threads;
    B.threads = B.step * B.blocks;
    for (unsigned rank = 0; rank < B.blocks; rank++) {
        B.in_block[rank] = threads;
        for (unsigned t = 0; t < threads; t++)
            B.live[(rank * B.step + t) / 32] |= 1u << (rank * B.step + t) % 32;
    }
    memcpy(B.fresh, B.live, sizeof B.fresh);
    memset(B.ready, 0, sizeof B.ready);
    memset(B.polling, 0, sizeof B.polling);
    memset(B.bar, 0, sizeof B.bar);
    memset(&B.cluster_bar, 0, sizeof B.cluster_bar);
    B.warp_ready = 0;
    for (unsigned w = 0; w < WARPS; w++)
        note_warp(w);
    B.live_count = threads * B.blocks;
    B.late.clear();
    for (unsigned t = 0; t < B.threads; t++) {
        T[t].fiber = nullptr;
        T[t].what = nullptr;
        T[t].copies.clear();
        T[t].groups = 0;
        T[t].rank = t / B.step;
        T[t].place = place_of(t % B.step);
    }
    if (pk_emu_hopper_begin)
        pk_emu_hopper_begin(B.threads, B.blocks);
    next = B.how == order::reverse ? (B.blocks - 1) * B.step + threads - 1 : 0;
    enter(next);
    go(fiber_of(next));
    /* Engines finish what was asked of them, even if nobody waited. */
    while (!B.late.empty()) {
        deferred d = std::move(B.late.front());

        B.late.pop_front();
        d.act(d.arg.get());
    }
    if (pk_emu_hopper_end)
        pk_emu_hopper_end();
    for (unsigned rank = 0; rank < B.blocks; rank++)
        for (size_t i = 0; i < SHARED_GUARD; i++)
            if (shared_of(rank)[shared_bytes + i] != GUARD_BYTE)
                pk_emu_fail("wrote %zu bytes beyond the %zu bytes of dynamic shared memory", i + 1,
                            shared_bytes);
}

void pk_emu_run_kernel(const char *name, unsigned cluster, dim3 grid, dim3 block, size_t shared,
                       void (*run)(const void *args), const void *args)
{
    const char *how = getenv("POLYD_EMU_ORDER");
    const unsigned threads = block.x * block.y * block.z;

    if (!home) {
        home = pk_fiber_home();
        running = home;
        shared_memory = (unsigned char *)mmap(nullptr, SHARED_STEP * BLOCKS, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (shared_memory == MAP_FAILED)
            pk_emu_fail("no memory for a block's shared memory");
        for (unsigned rank = 0; rank < BLOCKS; rank++)
            mprotect(shared_of(rank), 4096, PROT_NONE);
        shared_memory += 4096;
    }
    B.kernel = name;
    B.run = run;
    B.args = args;
    B.blocks = cluster;
    B.how = !how || !*how || strcmp(how, "forward") == 0 ? order::forward
            : strcmp(how, "reverse") == 0                ? order::reverse
                                                         : order::random;
    B.seed = 1;
    shared_bytes = shared;
    for (unsigned rank = 0; rank < cluster; rank++)
        memset(shared_of(rank) + shared, GUARD_BYTE, SHARED_GUARD);
    pk_emu_here.block_dim = block;
    pk_emu_here.grid_dim = grid;
    memset(B.gather, 0, sizeof B.gather);
    memset(B.gatherings, 0, sizeof B.gatherings);
    memset(B.group, 0, sizeof B.group);
    in_block = true;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x += cluster) {
                B.first = {x, y, z};
                fill_shared(shared);
                run_cluster(threads);
            }
    in_block = false;
}
