/* ATTENTION_BWD on sm 90. What follows is counted, not measured; tests/bench/RESULTS.md says what has run on a
 * GPU.
 *
 *     S' = K Q'    dP' = V dY'    P = phi(S), G = phi'(S) dP
 *     dV += P' dY    dK += G' Q    dQ += G K          factors c, p, tau at the end
 *
 * Division. A unit is one (batch, head) - with a bias, or windows of one tile, one head and a run of batches
 * - processed entirely by one block, or by a cluster of two, so that every sum has one owner and an
 * order fixed by the shape: no atomics between threads. Outer loop over keys, inner over queries: 64 keys for each of
 * `groups` warpgroups against 64 queries at a time. dK and dV stay in registers. dQ of a tile of queries is
 * summed in memory private to the threads that compute it, in the order of their registers (no exchange, no fence): in
 * shared memory up to 256 queries, else in the block's workspace, which stays in L2; there the thread sends
 * its addend and L2 adds (red.v4: one thread per address, so the order is fixed), and threads wait
 * only at the last tile of keys, which reads the sum back. Queries are processed in chunks of 256 KiB of dQ so
 * that it stays in L2; dK and dV are in the workspace between chunks, summed in the same way. One thread
 * loads K and V (2 stages), one Q and dY (2 or 4).
 *
 * Pairs. If it finishes sooner (backward_pays), two blocks of a cluster share a unit: they alternate tiles of keys,
 * each loads half of the rows of Q and dY into both (multicast), each has its own sums of dQ, joined in the
 * blocks' order at the end of a chunk. That is so if units are few or their last round is not full:
 * 192 heads of N = 8192 take 2 rounds of 132 blocks (0.73 of them busy) or 3 of 66 pairs (0.97); joining
 * costs about 1.3 tiles of keys a chunk (2 % there, 16 % at N = 1024: no pairs for many heads of that).
 *
 * Short. If one warpgroup holds a whole head (windows of Swin), a block processes a run of windows of one
 * head: the bias and the sums of its gradient stay in shared memory, each thread its part in the order of its
 * registers (16 KiB each, read and written once per run), and so do the visible pairs while the window is
 * the same: a run goes through the same window of all images first. Loads run ahead from one window
 * to the next.
 *
 * Why not a second pass for dQ: it repeats two of five products (7/5 of the tensor time). Why not partial
 * sums of dQ for each tile of keys: N / 128 copies of dQ (64 of them at N = 8192, 128 MiB a head).
 *
 * A warpgroup has scores as (keys, queries), so that P' and G' are left operands from registers, and so are K
 * and V (d = 64), which stay there for all queries. G goes to shared memory too (two buffers, one barrier of
 * the warpgroups a tile): as (queries, keys) read by columns it is the left operand of dQ, which needs all
 * keys of the tile. Two warpgroups alternate in computing dQ (d = 64), or compute half of its columns each (d = 128).
 *
 *  columns groups   registers of a tile                                 shared     chosen for
 *       64      2   32 S + 32 dP + 64 dK, dV + 32 K, V + 32 P, G of 232  224 KiB    d <= 64
 *       64      1   the same without K, V of 255                         80 KiB     up to 64 queries and keys
 *       32      1   32 + 32 + 32 + 32 of 168, two blocks an SM           48 KiB     d <= 32 (+ 34 for runs)
 *      128      2   32 + 32 + 128 + 32 of 240 (12 bytes spilled)        224 KiB    d <= 128
 *
 * Limits of a tile of 64 x 128 at d = 64: tensor 5 x 256 = 1280 clocks; shared memory 1024 (S and dP 256, dV
 * and dK 256, dQ 256, dS 128, arriving Q and dY 128); FP32 about 6 of 20 slots a score for x^3. From L2 16
 * KiB of Q and dY (12.8 bytes a clock and SM; pairs 6.4), to L2 beyond 256 queries 16 KiB of dQ (12.8),
 * beyond 1024 another 4 KiB of dK and dV (3.2): nothing of dQ comes back. About 24 a clock and SM are assumed
 * of L2 for what is read; of what it can add less is known: FlashAttention 3 sends 7.7 in its backward at 470
 * TFLOP/s, we 7.5 at 460. Short windows (N = 49, d = 32): 22 KiB of q, k, v, dy and results a window and
 * head, 1180 clocks of memory, against about 2500 of one window's chain with two blocks an SM.
 *
 * Predicted for x^3, d = 64, 80 % of the smallest limit reached (TFLOP/s, H200): N = 197: padding to 256 x
 * 256 is 1.69 of 386 us at 790: 375; N = 256: 630; N = 1024: 610 (0.97 of the blocks busy in the last round);
 * N = 8192 in pairs: 600. What the chain of one tile costs (products, phi, products, barrier, dQ) is the open
 * question: two warpgroups must hide it from each other. To be measured first: N = 1024 with and without the
 * additions to L2. */
#include "kernels/backend/cuda/attention/hopper_bwd_builtin.cuh"

/* ---- before and after ---- */

/* n^-row_power of every row. */
static __global__ void backward_factors(const __grid_constant__ struct hopper_job j, float *to, int step)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;

    if (row < step)
        to[row] = hopper_row_factor(j, row, j.nk - j.nq);
}

/* dscale: block i sums (b, h) for head i, or all where there is one scale; in an order that the shape fixes.
 */
static __global__ void backward_dscale(const float *part, int batch, int heads, bool each, float factor,
                                       float *to)
{
    __shared__ double sums[256];
    const int first = each ? blockIdx.x : 0, step = each ? heads : 1, n = each ? batch : batch * heads;
    double sum = 0.0;

    for (int i = threadIdx.x; i < n; i += 256)
        sum += (double)part[first + (int64_t)i * step];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 128; d > 0; d /= 2) {
        if ((int)threadIdx.x < d)
            sums[threadIdx.x] += sums[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        to[blockIdx.x] = (float)(sums[0] * (double)factor);
}

void hopper_bwd_factors(struct pk_backend *b, const struct hopper_job *j, int step, float *to)
{
    PK_LAUNCH(backward_factors, dim3((unsigned)cuda_div_up(step, 128)), dim3(128), 0, b->stream, *j, to,
              step);
}

void hopper_bwd_dscale(struct pk_backend *b, const struct hopper_job *j, int cluster, bool each,
                       const float *part, float *to)
{
    PK_LAUNCH(backward_dscale, dim3(each ? (unsigned)j->heads : 1u), dim3(256), 0, b->stream, part,
              j->batch * cluster, j->heads, each, j->scale * j->of_y, to);
}

size_t hopper_bwd_workspace(const struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j)
{
    const struct cuda_tiles t = backward_tiles_of(j);

#define X(columns_, groups_)                                                                                 \
    if (t.columns == columns_ && t.groups == groups_)                                                        \
        return backward_plan_of<columns_, groups_>(b, c, j).total;
    BACKWARD_EACH_SHAPE(X)
#undef X
    return 0;
}

extern "C" enum pd_err cuda_attention_hopper_bwd(struct pk_backend *b, const struct pk_call *c,
                                                 struct pd_why *why)
{
    struct hopper_job j;

    if (!hopper_job_of(c, &j))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "attention_bwd: not a call for the kernels of sm 90");
    if (backward_tiles_of(&j).groups == 1)
        return hopper_bwd_short(b, c, &j, why);
    return hopper_columns(j.d) == 64 ? backward_launch_of<64, 2>(b, c, &j, why)
                                     : backward_launch_of<128, 2>(b, c, &j, why);
}
