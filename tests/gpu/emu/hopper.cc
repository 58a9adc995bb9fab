/* The instructions of sm 90 on the host: see hopper.h; the functions are those that ptx_hopper.cuh declares.
 *
 * Written from the text of the PTX ISA (mbarrier; cp.async.bulk.tensor; wgmma: register fragments, matrix
 * descriptors, canonical layouts, fence, commit, wait) and of cuTensorMapEncodeTiled, not from what the
 * kernels do with them. Stricter than the hardware where a mistake would otherwise go unseen:
 *
 * - The destination of a bulk copy holds NaN from its start until it lands; it lands only when every thread
 *   waits, and counts on its barrier then.
 * - The accumulators of a product hold a pattern of NaN from its start until the wait that covers it;
 *   touching them before is found at that wait. Operands in shared memory must be the same at the wait as
 *   at the start.
 * - The first product after a wait needs wgmma.fence.
 * - Products read shared memory through a second copy of it, which bulk copies and fence.proxy.async bring up
 *   to date: bytes that ordinary stores wrote without that fence are found when a product reads them.
 * - A barrier that is not initialised, or not published before a copy uses it, is a failure; so are reserved
 *   bits of descriptors, misaligned addresses, bytes beyond the block's memory.
 * - Barriers of another block of the cluster may be used only after a barrier of the cluster that came after
 *   their initialisation, and while that block has not left.
 *
 * - A block has the registers that it is launched with: of 65536 an equal share for each thread, in eights. A warpgroup
 *   that wants more (setmaxnreg) waits until others have given up as many.
 *
 * Not seen: a left operand in registers that is changed while the product runs; a fence.proxy.async missing in one
 * thread while another thread's came later.
 *
 * Where the documents leave a doubt, test_hopper_parts.cu asks a device; an H200 (2026-11-28) agreed in each:
 * 1. An operand's address is start + offsets, and the swizzle exchanges bits of that sum (so that a start in
 *    the middle of a row of a swizzled tile means the columns from there on).
 * 2. By columns (MN-major) with a swizzle: the leading offset goes from one block of columns to the next, the
 *    stride offset from 8 rows of K to the next 8.
 * 3. Strides of a tensor map need not grow with the dimension (heads are closer together than tokens).
 * 4. A box may be wider than the tensor (head dimensions 48, 80, 96 in blocks of 64): the rest is filled with
 *    0 and counted in the bytes.
 * 5. Dynamic shared memory begins at a multiple of 1024 where it is declared so and there is no static one:
 *    tiles and their swizzle count on it.
 * 6. A copy to several blocks of a cluster writes the same offsets in each and counts on the barrier at the
 *    same offset in each; its bytes may be counted before that block's own thread has said how many it expects.
 * Order and rounding of the sums inside a product differ: here 16 exact products are summed in double and rounded
 * once per instruction; the hardware keeps fewer bits. */
#include "hopper.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

namespace
{

const uint32_t poison = 0x7fffdeadu; /* a NaN nobody computes */

uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}
float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- state of the running block ---- */

struct range {
    uint32_t at, bytes;
    uint64_t digest;
};

struct product {
    long group; /* of every thread of the warpgroup alike */
    std::vector<range> reads;
};

struct accumulator {
    float *d;
    int n;
    long group;
    float value[128];
};

struct thread {
    long group; /* that products join now */
    bool fenced;
    std::vector<accumulator> pending;
    int registers;
};

struct group {
    std::vector<product> running;
};

struct memory {                /* of a block */
    std::vector<uint8_t> seen; /* shared memory as products see it, from address 0 */
    uint32_t end;              /* one beyond the highest address named so far */
    bool fence_since, unpublished;
    bool known;  /* its barriers, to the cluster */
    int unowned; /* registers that its threads have given up */
};

std::vector<thread> threads;
std::vector<group> groups;
std::vector<memory> memories;
long copies;

thread *self(void)
{
    return &threads[pk_emu_thread()];
}

memory *mine(void)
{
    return &memories[pk_emu_rank()];
}

/* ---- shared memory as products see it ---- */

void grow(unsigned rank, uint32_t end)
{
    memory *m = &memories[rank];

    if (end <= m->end)
        return;
    m->seen.resize(end);
    memcpy(m->seen.data() + m->end, pk_emu_cluster_pointer(rank, m->end, end - m->end), end - m->end);
    m->end = end;
}

void refresh(unsigned rank, uint32_t at, uint32_t bytes)
{
    grow(rank, at + bytes);
    memcpy(memories[rank].seen.data() + at, pk_emu_cluster_pointer(rank, at, bytes), bytes);
}

const uint8_t *read_operand(uint32_t at, uint32_t bytes)
{
    const uint8_t *now = (const uint8_t *)pk_emu_shared_pointer(at, bytes);
    memory *m = mine();

    grow(pk_emu_rank(), at + bytes);
    if (memcmp(now, m->seen.data() + at, bytes) != 0) {
        if (!m->fence_since)
            pk_emu_fail("wgmma: shared memory at %u was written by ordinary stores without fence.proxy.async",
                        at);
        refresh(pk_emu_rank(), 1024, m->end - 1024);
        m->fence_since = false;
    }
    return now;
}

uint64_t digest_of(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < n; i += 16) { /* operands are read in chunks of 16 */
        uint64_t a, b;

        memcpy(&a, p + i, 8);
        memcpy(&b, p + i + 8, 8);
        h = ((h ^ a) * 0x100000001b3ull) ^ (h >> 29);
        h = ((h ^ b) * 0x100000001b3ull) ^ (h >> 31);
    }
    return h;
}

uint32_t swizzled(uint32_t address, unsigned span)
{
    switch (span) {
    case 128:
        return address ^ ((address >> 7 & 7u) << 4);
    case 64:
        return address ^ ((address >> 7 & 3u) << 4);
    case 32:
        return address ^ ((address >> 7 & 1u) << 4);
    default:
        return address;
    }
}

/* ---- barriers: phase 1 | arrivals expected 12 | still missing 12 | bytes still missing 22 | mark 16 ---- */

const uint64_t mark = 0xba44;

struct barrier {
    unsigned phase, expected, missing;
    long bytes;
};

barrier barrier_read(const uint64_t *bar)
{
    const uint64_t v = *bar;
    barrier b;

    if (v >> 48 != mark)
        pk_emu_fail("mbarrier at %p is not initialised", (const void *)bar);
    b.phase = v & 1;
    b.expected = v >> 1 & 0xfff;
    b.missing = v >> 13 & 0xfff;
    b.bytes = (long)(v >> 25 & 0x3fffff) - (1l << 21);
    return b;
}

void barrier_write(uint64_t *bar, barrier b)
{
    if (b.missing == 0 && b.bytes == 0) {
        b.phase ^= 1;
        b.missing = b.expected;
    }
    if (b.bytes >= 1l << 20 || b.bytes <= -(1l << 20))
        pk_emu_fail("mbarrier: its count of bytes is out of range");
    *bar = b.phase | (uint64_t)b.expected << 1 | (uint64_t)b.missing << 13 |
           (uint64_t)(b.bytes + (1l << 21)) << 25 | mark << 48;
}

struct waiter {
    const uint64_t *bar;
    uint32_t parity;
};

bool phase_over(void *arg)
{
    const waiter *w = (const waiter *)arg;

    return barrier_read(w->bar).phase != w->parity;
}

/* ---- maps of tensors ---- */

struct map {
    uint64_t magic;
    uint8_t *address;
    uint64_t stride[4];
    uint32_t dim[5];
    uint16_t box[5];
    uint8_t rank, element, span;
};
static_assert(sizeof(map) <= sizeof(CUtensorMap), "fits");
const uint64_t map_magic = 0x70616d726f736e65ull;

struct copy {
    map m;
    unsigned blocks; /* of the cluster, a bit each */
    uint32_t at, bar;
    int c[5];
    uint32_t bytes;
};

void land_in(const copy *c, unsigned rank)
{
    uint8_t *const base = (uint8_t *)pk_emu_cluster_pointer(rank, c->at, c->bytes);
    uint64_t *const bar = (uint64_t *)pk_emu_cluster_pointer(rank, c->bar, 8);
    const map *m = &c->m;
    const uint32_t row_bytes = (uint32_t)m->box[0] * m->element;
    uint64_t rows = 1;
    barrier b;

    for (int i = 1; i < m->rank; i++)
        rows *= m->box[i];
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t rest = r, offset = 0;
        bool inside = true;

        for (int i = 1; i < m->rank; i++) {
            const int64_t x = c->c[i] + (int64_t)(rest % m->box[i]);

            rest /= m->box[i];
            if (x < 0 || x >= (int64_t)m->dim[i])
                inside = false;
            else
                offset += (uint64_t)x * m->stride[i - 1];
        }
        for (uint32_t x = 0; x < row_bytes; x += m->element) {
            const uint32_t at = (uint32_t)(r * row_bytes + x);
            uint8_t *to = base + (swizzled(c->at + at, m->span) - c->at);
            const int64_t column = c->c[0] + (int64_t)(x / m->element);

            if (!inside || column < 0 || column >= (int64_t)m->dim[0]) {
                memset(to, 0, m->element);
            } else {
                const uint8_t *from = m->address + offset + (uint64_t)column * m->element;

                if (x == 0 || column == 0)
                    pk_emu_check_global(from, m->element, "bulk copy");
                memcpy(to, from, m->element);
            }
        }
    }
    refresh(rank, c->at, c->bytes);
    b = barrier_read(bar);
    b.bytes -= (long)c->bytes;
    barrier_write(bar, b);
}

void land(void *arg)
{
    const copy *c = (const copy *)arg;

    for (unsigned rank = 0; c->blocks >> rank; rank++)
        if (c->blocks >> rank & 1u)
            land_in(c, rank);
    copies--;
}

/* ---- products ---- */

struct operand {
    uint32_t start, leading, stride;
    unsigned span;
};

operand decode(uint64_t d)
{
    static const unsigned spans[4] = {16, 128, 64, 32};
    operand o;

    if (d >> 14 & 3 || d >> 30 & 3 || d >> 46 & 7 || d >> 52 & 0x3ff)
        pk_emu_fail("wgmma: reserved bits of the descriptor %016llx", (unsigned long long)d);
    if (d >> 49 & 7)
        pk_emu_fail("wgmma: a base offset is not emulated");
    o.start = (uint32_t)(d & 0x3fff) << 4;
    o.leading = (uint32_t)(d >> 16 & 0x3fff) << 4;
    o.stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    o.span = spans[d >> 62];
    return o;
}

/* One element of a core matrix: row mn, depth k. 16 exact bytes of a chunk lie together, by whichever. */
uint32_t place(const operand *o, bool by_columns, int mn, int k)
{
    uint32_t at = o->start;

    if (!by_columns && o->span == 16)
        at += (uint32_t)(mn / 8) * o->stride + (uint32_t)(k / 8) * o->leading +
              (uint32_t)(mn % 8 * 16 + k % 8 * 2);
    else if (!by_columns)
        at += (uint32_t)(mn / 8) * o->stride + (uint32_t)(mn % 8) * o->span + (uint32_t)k * 2;
    else if (o->span == 16)
        at += (uint32_t)(mn / 8) * o->stride + (uint32_t)(k / 8) * o->leading +
              (uint32_t)(k % 8 * 16 + mn % 8 * 2);
    else {
        const int width = (int)o->span / 2;

        at += (uint32_t)(mn / width) * o->leading + (uint32_t)(mn % width * 2) +
              (uint32_t)(k / 8) * o->stride + (uint32_t)(k % 8) * o->span;
    }
    return swizzled(at, o->span);
}

/* Reads (extent, 16) into x[k][mn]. */
void read_matrix(product *p, uint64_t descriptor, bool by_columns, int extent, float *x)
{
    const operand o = decode(descriptor);

    for (int outer = 0; outer < (by_columns ? 16 : extent); outer++)
        for (int chunk = 0; chunk < (by_columns ? extent : 16); chunk += 8) {
            const int mn = by_columns ? chunk : outer, k = by_columns ? outer : chunk;
            const uint32_t at = place(&o, by_columns, mn, k);
            const uint8_t *from = read_operand(at, 16);

            p->reads.push_back({at, 16, digest_of(from, 16)});
            for (int i = 0; i < 8; i++) {
                uint16_t half;

                memcpy(&half, from + 2 * i, 2);
                x[(by_columns ? k : k + i) * extent + (by_columns ? mn + i : mn)] =
                    float_of((uint32_t)half << 16);
            }
        }
}

struct issue {
    float *d;
    uint32_t a[4];
    bool in_registers;
    int columns;
    uint64_t a_operand, b_operand;
    bool add, a_by_columns, b_by_columns;
    unsigned thread;
};

float *pending_of(thread *t, float *d, int n, bool add)
{
    for (accumulator &p : t->pending)
        if (p.d == d) {
            if (p.n != n)
                pk_emu_fail("wgmma: products of two shapes share an accumulator");
            p.group = t->group;
            return p.value;
        } else if (d < p.d + p.n && p.d < d + n) {
            pk_emu_fail("wgmma: accumulators overlap");
        }
    t->pending.push_back({d, n, t->group, {}});
    for (int i = 0; i < n; i++) {
        if (add && bits_of(d[i]) == poison)
            pk_emu_fail("wgmma: an accumulator that another product has not given back");
        t->pending.back().value[i] = d[i];
        d[i] = float_of(poison);
    }
    return t->pending.back().value;
}

void multiply(void *const *lanes, void *)
{
    static float a[16 * 64], b[16 * 256];
    const issue *first = (const issue *)lanes[0];
    const int columns = first->columns;
    product p;

    for (int l = 0; l < 128; l++) {
        const issue *i = (const issue *)lanes[l];

        if (!i)
            pk_emu_fail("wgmma: not all 128 threads of the warpgroup are there");
        if (i->columns != columns || i->b_operand != first->b_operand || i->a_operand != first->a_operand ||
            i->add != first->add || i->in_registers != first->in_registers ||
            threads[i->thread].group != threads[first->thread].group)
            pk_emu_fail("wgmma: threads %u and %u disagree", first->thread, i->thread);
        if (!threads[i->thread].fenced)
            pk_emu_fail("wgmma without wgmma.fence after the last wait (thread %u)", i->thread);
        for (int r = 0; i->in_registers && r < 4; r++)
            for (int e = 0; e < 2; e++) {
                const int row = l / 32 * 16 + l % 32 / 4 + r % 2 * 8, k = l % 4 * 2 + e + r / 2 * 8;

                a[k * 64 + row] = float_of((i->a[r] >> 16 * e & 0xffffu) << 16);
            }
    }
    p.group = threads[first->thread].group;
    if (!first->in_registers)
        read_matrix(&p, first->a_operand, first->a_by_columns, 64, a);
    read_matrix(&p, first->b_operand, first->b_by_columns, columns, b);
    for (int l = 0; l < 128; l++) {
        const issue *i = (const issue *)lanes[l];
        float *d = pending_of(&threads[i->thread], i->d, columns / 2, i->add);

        for (int n = 0; n < columns / 2; n++) {
            const int row = l / 32 * 16 + l % 32 / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + l % 4 * 2 + n % 2;
            double sum = i->add ? (double)d[n] : 0.0;

            for (int k = 0; k < 16; k++)
                sum += (double)a[k * 64 + row] * (double)b[k * columns + column];
            d[n] = (float)sum;
        }
    }
    groups[first->thread / 128].running.push_back(std::move(p));
}

} // namespace

void pk_emu_hopper_begin(unsigned n, unsigned blocks)
{
    /* As many as a kernel of one block a multiprocessor is compiled for. */
    const int registers = (int)std::min(256u, 65536u / (n / blocks) / 8 * 8);

    threads.assign(n, thread{0, false, {}, registers});
    groups.assign((n + 127) / 128, group{});
    memories.assign(blocks, memory{std::vector<uint8_t>(1024, 0), 1024, false, false, false, 0});
    copies = 0;
}

void pk_emu_hopper_end(void)
{
    for (const thread &t : threads)
        if (!t.pending.empty())
            pk_emu_fail("a thread left while a product of its own was running");
    if (copies > 0)
        pk_emu_fail("the block left while %ld bulk copies were under way", copies);
}

uint32_t emu_shared_address(const void *p)
{
    return pk_emu_shared_address(p);
}

void emu_barrier_init(uint64_t *bar, uint32_t arrivals)
{
    if (pk_emu_shared_address(bar) % 8 || arrivals == 0 || arrivals > 0xfff)
        pk_emu_fail("mbarrier.init: misaligned, or %u arrivals", arrivals);
    mine()->unpublished = true;
    mine()->known = false;
    *bar = (uint64_t)arrivals << 1 | (uint64_t)arrivals << 13 | (uint64_t)(1l << 21) << 25 | mark << 48;
}

void emu_barrier_publish(void)
{
    mine()->unpublished = false;
}

void emu_barrier_arrive(uint64_t *bar, uint32_t bytes)
{
    barrier b = barrier_read(bar);

    if (b.missing == 0)
        pk_emu_fail("mbarrier: more arrivals than it was initialised for");
    b.bytes += bytes;
    b.missing--;
    barrier_write(bar, b);
}

void emu_cluster_sync(void)
{
    pk_emu_cluster_barrier();
    for (memory &m : memories)
        m.known = !m.unpublished;
}

/* The barrier at the same place in another block. */
static uint64_t *barrier_at(uint64_t *bar, unsigned rank)
{
    uint64_t *there = (uint64_t *)pk_emu_cluster_pointer(rank, pk_emu_shared_address(bar), 8);

    if (rank != pk_emu_rank() && !memories[rank].known)
        pk_emu_fail("mbarrier of block %u: no barrier of the cluster since it was initialised", rank);
    return there;
}

void emu_barrier_arrive_at(uint64_t *bar, unsigned rank)
{
    uint64_t *there = barrier_at(bar, rank);
    barrier b = barrier_read(there);

    if (b.missing == 0)
        pk_emu_fail("mbarrier: more arrivals than it was initialised for");
    b.missing--;
    barrier_write(there, b);
}

bool emu_barrier_try(uint64_t *bar, uint32_t parity, bool limited)
{
    waiter w = {bar, parity};

    if (parity > 1)
        pk_emu_fail("mbarrier: parity %u", parity);
    return phase_over(&w) || pk_emu_wait("mbarrier.try_wait", phase_over, &w, limited);
}

void emu_named_barrier(int id, int n)
{
    if (id < 1 || id > 15 || n % 32)
        pk_emu_fail("bar.sync %d, %d", id, n);
    pk_emu_barrier((unsigned)id, (unsigned)n);
}

void emu_bulk_load(void *to, const CUtensorMap *m, uint64_t *bar, const int *coordinates, int rank,
                   unsigned blocks)
{
    copy c;

    memcpy(&c.m, m, sizeof c.m);
    if ((uintptr_t)m % 64 || c.m.magic != map_magic)
        pk_emu_fail("bulk copy: no map of a tensor, or not 64-aligned");
    if (c.m.rank != rank)
        pk_emu_fail("bulk copy: %d coordinates for a map of rank %d", rank, c.m.rank);
    if (mine()->unpublished)
        pk_emu_fail("bulk copy: its barrier was not published (fence.mbarrier_init)");
    c.blocks = blocks ? blocks : 1u << pk_emu_rank();
    if (c.blocks >> pk_emu_blocks())
        pk_emu_fail("bulk copy: to blocks %x of a cluster of %u", blocks, pk_emu_blocks());
    c.at = pk_emu_shared_address(to);
    if (c.at % (c.m.span ? 8u * c.m.span : 128u))
        pk_emu_fail("bulk copy: destination %u is not aligned to the swizzle's pattern", c.at);
    c.bar = pk_emu_shared_address(bar);
    c.bytes = c.m.element;
    for (int i = 0; i < rank; i++) {
        c.c[i] = coordinates[i];
        c.bytes *= c.m.box[i];
    }
    for (unsigned r = 0; r < pk_emu_blocks(); r++)
        if (c.blocks >> r & 1u) {
            barrier_read(barrier_at(bar, r));
            memset(pk_emu_cluster_pointer(r, c.at, c.bytes), 0xff, c.bytes);
            refresh(r, c.at, c.bytes);
        }
    copies++;
    pk_emu_defer(land, &c, sizeof c);
}

void emu_fence_async(void)
{
    mine()->fence_since = true;
}

void emu_wgmma_fence(void)
{
    self()->fenced = true;
}

void emu_wgmma_commit(void)
{
    self()->group++;
}

void emu_wgmma_wait(int left)
{
    thread *t = self();
    const long until = t->group - left;
    std::vector<product> &running = groups[pk_emu_thread() / 128].running;

    for (size_t i = 0; i < running.size();) {
        if (running[i].group >= until) {
            i++;
            continue;
        }
        for (const range &r : running[i].reads)
            if (digest_of((const uint8_t *)pk_emu_shared_pointer(r.at, r.bytes), r.bytes) != r.digest)
                pk_emu_fail("wgmma: its operand at %u changed while it ran", r.at);
        running.erase(running.begin() + (long)i);
    }
    for (size_t i = 0; i < t->pending.size();) {
        accumulator *p = &t->pending[i];

        if (p->group >= until) {
            i++;
            continue;
        }
        for (int n = 0; n < p->n; n++) {
            if (bits_of(p->d[n]) != poison)
                pk_emu_fail("wgmma: register %d of an accumulator was written while the product ran", n);
            p->d[n] = p->value[n];
        }
        t->pending.erase(t->pending.begin() + (long)i);
    }
    t->fenced = false;
}

void emu_wgmma(float *d, int columns, const uint32_t *a, uint64_t a_operand, uint64_t b_operand, bool add,
               bool a_by_columns, bool b_by_columns)
{
    issue i = {d,         {},  a != NULL,    columns,      a_operand,
               b_operand, add, a_by_columns, b_by_columns, pk_emu_thread()};

    if (columns % 8 || columns < 8 || columns > 256)
        pk_emu_fail("wgmma: %d columns", columns);
    if (a)
        memcpy(i.a, a, sizeof i.a);
    pk_emu_warpgroup("wgmma.mma_async", &i, multiply, NULL);
}

void emu_set_registers(int registers, bool more)
{
    struct want {
        memory *of;
        int registers;
    } w = {mine(), registers - self()->registers};

    if (registers % 8 || registers < 24 || registers > 256 || (more ? w.registers < 0 : w.registers > 0))
        pk_emu_fail("setmaxnreg: %d, from %d", registers, self()->registers);
    pk_emu_warpgroup("setmaxnreg", nullptr, nullptr, nullptr);
    while (!pk_emu_wait(
        "setmaxnreg.inc", [](void *arg) { return ((want *)arg)->of->unowned >= ((want *)arg)->registers; },
        &w, false))
        ;
    w.of->unowned -= w.registers;
    self()->registers = registers;
}

float emu_tanh(float x)
{
    /* 11 bits of the result are right. */
    return float_of((bits_of(tanhf(x)) + 0x800u) & ~0xfffu);
}

extern "C" CUresult pk_emu_tensor_map_encode(CUtensorMap *ret, CUtensorMapDataType type, cuuint32_t rank,
                                             void *address, const cuuint64_t *dims, const cuuint64_t *strides,
                                             const cuuint32_t *box, const cuuint32_t *element_strides,
                                             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    static const uint8_t spans[4] = {0, 32, 64, 128};
    map m = {};

    m.magic = map_magic;
    m.address = (uint8_t *)address;
    m.rank = (uint8_t)rank;
    m.element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
    m.span = spans[swizzle];
    if (rank < 1 || rank > 5 || (uintptr_t)address % 16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (uintptr_t)ret % 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (dims[i] < 1 || dims[i] > 1ull << 32 || box[i] < 1 || box[i] > 256 || element_strides[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (i > 0 && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40 || strides[i - 1] == 0))
            return CUDA_ERROR_INVALID_VALUE;
        m.dim[i] = (uint32_t)dims[i];
        m.box[i] = (uint16_t)box[i];
        if (i > 0)
            m.stride[i - 1] = strides[i - 1];
    }
    if (box[0] * m.element % 16)
        return CUDA_ERROR_INVALID_VALUE;
    /* A narrower box under a swizzle is allowed by the driver; how its rows then lie is not written down. */
    if (m.span && box[0] * m.element != m.span)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(ret->opaque, &m, sizeof m);
    return CUDA_SUCCESS;
}
