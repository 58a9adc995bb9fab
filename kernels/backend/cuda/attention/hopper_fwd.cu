/* ATTENTION on sm 90: y = c phi(tau q k^T) v, bf16 in and out, sums in f32. No maximum, no sum of rows, no
 * rescaling, nothing kept for the way back. What follows is counted, not measured; tests/bench/RESULTS.md says
 * what has run on a GPU.
 *
 * Division. A unit is 64 queries for each of `groups` warpgroups of one (batch, head); where all keys of a
 * head fit into the ring ("together", up to 448 or 512 keys) a unit is the whole head and its keys are loaded
 * once. Blocks are as many as the device holds; each takes the next unit from a counter in device memory when
 * its loads have room (hopper_schedule.h says in which order). That balances causal units, whose lengths differ,
 * and blocks that start late because NCCL occupies a multiprocessor. One block computes a unit, in an order of sums
 * that does not depend on the block. Loads run ahead across units. One thread of a further warp(group) loads:
 * the unit's number and Q into two buffers, K and V tiles into a ring of `stages`, by bulk tensor copies from
 * wherever the tensors lie (packed or not), each counted by an mbarrier; every computing warp gives a stage
 * back. What lies beyond the last key or query is loaded as zeros: v is 0 there, so phi(0) does not matter.
 *
 * Windows with a bias or masks (one tile of queries and keys) are taken in runs of one head by each block,
 * the same window of all images in turn: the bias of the head and the visible pairs of the window stay in
 * shared memory, each thread its part in the order of its registers, read without a conflict and without a
 * barrier. Blocks of all heads process the same batches at the same time: rows of neighbouring heads share
 * lines of 128 bytes in L2.
 *
 * A warpgroup: S(t+1) = Q K' and O += P(t) V are begun together; phi of S(t+1) is worked out while P(t) V
 * runs, and P, narrowed in registers, is the left operand of the next. Scales go into the last step. The
 * degree is switched on once a tile. Masks cost only where a tile needs them.
 *
 *  columns keys groups stages   registers of a tile         shared     chosen for
 *       64   96      3      4   48 S + 24 P + 32 O + 16 Q   144 KiB    more than 512 keys
 *                               of 160
 *       64  128      2      4   64 + 32 + 32 of 232         160 KiB    up to 512 keys: of these two the one
 *       64  112      2      4   56 + 28 + 32 of 232         144 KiB    that pads less
 *       64   64      1      2   three blocks an SM           48 KiB    up to 64 queries (+ 18 for runs)
 *       32   64      1      2   the same                     24 KiB    windows of Swin (+ 18)
 *       32  128      2      4   64 + 32 + 16 of 232          80 KiB
 *      128  128      2      2   64 + 32 + 64 of 232         192 KiB    heads of 72 .. 128
 *
 * Tried and left: 128 keys with three warpgroups (no padding at 1024) spills 128 bytes of 160 registers, 112
 * keys with Q in registers 228.
 *
 * Limits of a tile of 64 x 96 at d = 64, 4096 FLOP a clock and SM: tensor 192 + 192 clocks, 16 scores a
 * clock; Q stays in registers through a unit, so shared memory is read for 96 + 96 of those 384 clocks; x^3
 * takes 2 products and half a conversion (counted as 1) of the 8 FP32 slots there are for a score; a sigmoid's
 * tanh fills the MUFU (16 a clock) exactly. From L2: 24 KiB each 1152 clocks and SM with three warpgroups = 21
 * bytes a clock (32 with two: hence the choice above; about 24 is assumed of the device). Slots: of the 1152
 * clocks of three warpgroups' tiles one has 768 for what the tensor cores do not do of its own: phi about 180,
 * waits and conversions about 90. So a product is always queued, as far as counting shows.
 *
 * Windows, N = 49, d = 32: 12.3 KiB of q, k, v and y a window and head are 675 clocks of memory; three blocks
 * an SM have 2000 for a chain of about 1100. Bias and mask (9.6 and 2.4 KiB, by single words and bytes) were
 * as many bytes again from L2 and 4000 loads of bytes a window before blocks kept them.
 *
 * Predicted for x^3, d = 64, from the larger of the limits and 80 % of it reached (TFLOP/s, H200): N = 197:
 * memory 288 us against 229 us of padded tensor time at 790: 340; N = 256: 375 us of memory: 440; N = 1024:
 * keys padded to 1056; of 6 passes the last has one warpgroup's queries and takes about half of a full one's
 * time: 750 of 790: 590; N = 8192: 630. To be measured first: N = 8192 (schedule), then 197 (overlap of loads
 * across units). */
#include "kernels/backend/cuda/attention/hopper_fwd_launch.cuh"
#include "kernels/backend/cuda/attention/hopper_phi.cuh"

template <int columns, int keys, int groups, int stages>
static __global__ void __launch_bounds__(forward_shape<columns, keys, groups, stages>::threads,
                                         forward_shape<columns, keys, groups, stages>::resident)
    forward(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
            const __grid_constant__ CUtensorMap mv, const __grid_constant__ struct forward_args a)
{
    forward_block<columns, keys, groups, stages, hopper_builtin>(mq, mk, mv, a, {});
}

template <int columns, int keys, int groups, int stages>
static enum pd_err forward_launch_of(struct pk_backend *b, const struct pk_call *c,
                                     const struct hopper_job *j, struct pd_why *why)
{
    struct forward_launch l = {};
    enum pd_err err = forward_prepare<columns, keys, groups, stages>(b, c, j, &l, why);

    if (err == PD_OK)
        err = hopper_allow((const void *)forward<columns, keys, groups, stages>, l.shared, why);
    if (err != PD_OK)
        return err;
    PK_LAUNCH((forward<columns, keys, groups, stages>), dim3(l.grid), dim3(l.threads), l.shared, b->stream,
              l.maps[0], l.maps[1], l.maps[2], l.args);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

extern "C" enum pd_err cuda_attention_hopper(struct pk_backend *b, const struct pk_call *c,
                                             struct pd_why *why)
{
    struct hopper_job j;
    struct cuda_tiles t;

    if (!hopper_job_of(c, &j))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "attention: not a call for the kernels of sm 90");
    t = forward_tiles_of(&j);
#define X(columns_, keys_, groups_, stages_)                                                                 \
    if (t.columns == columns_ && t.keys == keys_)                                                            \
        return forward_launch_of<columns_, keys_, groups_, stages_>(b, c, &j, why);
    FORWARD_EACH_SHAPE(X)
#undef X
    return pd_fail(why, PD_ERR_UNSUPPORTED, "attention: no kernel for tiles of %d by %d", t.columns, t.keys);
}
