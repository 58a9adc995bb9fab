/* ATTENTION_STATE: St += F(k)' v, y = c F(tau q) St, own key included (kernels/ENGINE.md 9).
 *
 * An element of the state, feature f of channel c, sees the tokens one after the other and no other element.
 * So a thread holds EACH features of one channel in registers, goes through all tokens with them, and the
 * state is read once and written once however many tokens there are: for one token that traffic is the whole
 * cost, 2 F d elements. A block is 256 / d threads of features by d of channels, and takes its slices of
 * features in turn; what it adds to y is kept in the workspace, one row for each block of a pair, and a
 * second kernel adds these up in their order. Tokens pass through shared memory BATCH at a time.
 *
 * Counted per (b, h) and token: 4 F d FLOP; F = d or d (d + 1) / 2. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

#define EACH 8
#define BATCH 8
#define THREADS 256
#define BLOCKS 2       /* blocks for each multiprocessor that the split aims at ... */
#define MOST_ROWS 1024 /* ... as long as parts times tokens stay below, for the workspace's sake */

namespace
{
struct state_job {
    struct att a;
    void *state;
    bool narrow; /* the state is bf16 */
    const int32_t *position, *length;
    int64_t position_step, length_step;
    int32_t features, slices, parts;
};
} // namespace

__device__ __forceinline__ int state_valid(const struct state_job &j, int b, int *ret_position)
{
    *ret_position = j.position[b * j.position_step];
    return max(0, min(j.a.nq, j.length[b * j.length_step] - *ret_position));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) state_kernel(const struct state_job j, float *to)
{
    __shared__ float rows[3][BATCH][CUDA_ATTENTION_HEAD_MOST]; /* q, k, v */
    __shared__ float sums[BATCH][THREADS];
    const struct att &a = j.a;
    const int d = a.d, groups = THREADS / d, c = (int)threadIdx.x % d, group = (int)threadIdx.x / d;
    const int64_t bh = blockIdx.x / (unsigned)j.parts;
    const int part = (int)(blockIdx.x % (unsigned)j.parts), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const bool busy = group < groups;
    int position;
    const int valid = state_valid(j, b, &position);
    const T *const q = (const T *)a.q.p + b * a.q.sb + h * a.q.sh;
    const T *const k = (const T *)a.k.p + b * a.k.sb + h * a.k.sh;
    const T *const v = (const T *)a.v.p + b * a.v.sb + h * a.v.sh;
    bool first = true;

    to += (bh * j.parts + part) * a.nq * d;
    for (int slice = part; slice < j.slices && valid > 0; slice += j.parts, first = false) {
        const int f0 = (slice * groups + group) * EACH;
        const int64_t at = (bh * j.features + f0) * d + c;
        float state[EACH];
        int fa[EACH], fb[EACH];

        /* Feature f is k_a, or k_a k_b with b >= a, by a and then b. */
        if (a.degree == 1) {
            for (int e = 0; e < EACH; e++)
                fa[e] = fb[e] = min(f0 + e, d - 1);
        } else {
            int x = 0, left = min(f0, j.features - 1);

            while (left >= d - x)
                left -= d - x++;
            for (int e = 0, y = x + left; e < EACH; e++) {
                fa[e] = x;
                fb[e] = y;
                if (++y == d) {
                    x = min(x + 1, d - 1);
                    y = x;
                }
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            state[e] = 0;
            if (busy && position != 0 && f0 + e < j.features)
                state[e] = j.narrow ? pk_float(((const __nv_bfloat16 *)j.state)[at + (int64_t)e * d])
                                    : ((const float *)j.state)[at + (int64_t)e * d];
        }
        for (int i0 = 0; i0 < valid; i0 += BATCH) {
            const int n = min(BATCH, valid - i0);

            __syncthreads();
            for (int x = (int)threadIdx.x; x < n * d; x += THREADS) {
                const int i = x / d, y = x % d;

                rows[0][i][y] = pk_float(q[(i0 + i) * a.q.sn + y * a.q.sd]) * a.tau;
                rows[1][i][y] = pk_float(k[(i0 + i) * a.k.sn + y * a.k.sd]);
                rows[2][i][y] = pk_float(v[(i0 + i) * a.v.sn + y * a.v.sd]);
            }
            __syncthreads();
            for (int i = 0; i < n; i++) {
                const float value = busy ? rows[2][i][c] : 0;
                float sum = 0;

#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    float fk = rows[1][i][fa[e]], fq = rows[0][i][fa[e]];

                    if (a.degree == 2) {
                        fk *= fa[e] == fb[e] ? rows[1][i][fb[e]] : 2 * rows[1][i][fb[e]];
                        fq *= rows[0][i][fb[e]];
                    }
                    if (f0 + e < j.features) {
                        state[e] += fk * value;
                        sum += fq * state[e];
                    }
                }
                sums[i][threadIdx.x] = sum;
            }
            __syncthreads();
            for (int x = (int)threadIdx.x; x < n * d; x += THREADS) {
                const int i = x / d, y = x % d;
                float sum = first ? 0 : to[(int64_t)(i0 + i) * d + y];

                for (int g = 0; g < groups; g++)
                    sum += sums[i][g * d + y];
                to[(int64_t)(i0 + i) * d + y] = sum;
            }
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (!busy || f0 + e >= j.features)
                continue;
            if (j.narrow)
                ((__nv_bfloat16 *)j.state)[at + (int64_t)e * d] = pk_narrow<__nv_bfloat16>(state[e]);
            else
                ((float *)j.state)[at + (int64_t)e * d] = state[e];
        }
    }
}

/* y from the parts; tokens that are not valid give 0. One thread per element. */
template <typename T> static __global__ void state_sum_kernel(const struct state_job j, const float *from)
{
    const struct att &a = j.a;
    const int64_t x = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, size = (int64_t)a.nq * a.d;
    const int64_t bh = x / size;
    const int i = (int)(x % size / a.d), c = (int)(x % a.d), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    float sum = 0;
    int position;

    if (bh >= (int64_t)a.batch * a.heads)
        return;
    if (i < state_valid(j, b, &position)) {
        for (int p = 0; p < j.parts; p++)
            sum += from[(bh * j.parts + p) * size + x % size];
        sum *= att_factor(a, h);
        if (a.row_power != 0)
            sum *= powf((float)(position + i + 1), -a.row_power);
    }
    ((T *)a.y.p)[b * a.y.sb + h * a.y.sh + i * a.y.sn + c] = pk_narrow<T>(sum);
}

/* ---- host ---- */

static void read(struct state_job *j, const struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_attention_attr *x = &c->attr->attention;
    const struct pk_view *length = &c->in[3 + x->has_scale], *position = length + 1, *state = length + 2;
    int64_t parts, pairs;

    att_read(&j->a, c); /* length is where an attention has it */
    j->length = (const int32_t *)length->data;
    j->length_step = length->shape.dim[0] == 1 ? 0 : length->stride[0];
    j->position = (const int32_t *)position->data;
    j->position_step = position->shape.dim[0] == 1 ? 0 : position->stride[0];
    j->narrow = state->dtype == PK_BF16;
    j->features = (int32_t)state->shape.dim[2];
    j->slices = (int32_t)cuda_div_up(j->features, THREADS / j->a.d * EACH);
    pairs = (int64_t)j->a.batch * j->a.heads;
    parts = cuda_div_up((int64_t)att_multiprocessors(b) * BLOCKS, pairs > 0 ? pairs : 1);
    if (j->a.nq > 0 && parts > MOST_ROWS / j->a.nq)
        parts = MOST_ROWS / j->a.nq;
    j->parts = (int32_t)(parts < 1 ? 1 : parts < j->slices ? parts : j->slices);
}

extern "C" bool cuda_attention_state_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_attention_supports(b, c) && pk_view_is_dense(&c->in[c->n_in - 1]);
}

extern "C" size_t cuda_attention_state_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct state_job j;

    read(&j, b, c);
    return (size_t)j.a.batch * (size_t)j.a.heads * (size_t)j.parts * (size_t)j.a.nq * (size_t)j.a.d *
           sizeof(float);
}

template <typename T>
static enum pd_err launch(struct pk_backend *b, const struct state_job *j, float *work, struct pd_why *why)
{
    const int64_t pairs = (int64_t)j->a.batch * j->a.heads;

    PK_LAUNCH((state_kernel<T>), dim3((unsigned)(pairs * j->parts)), dim3(THREADS), 0, b->stream, *j, work);
    PK_CUDA_TRY(cudaGetLastError());
    PK_LAUNCH((state_sum_kernel<T>), dim3((unsigned)cuda_div_up(pairs * j->a.nq * j->a.d, THREADS)),
              dim3(THREADS), 0, b->stream, *j, (const float *)work);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

extern "C" enum pd_err cuda_attention_state(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct state_job j;

    read(&j, b, c);
    if (j.a.batch == 0 || j.a.heads == 0 || j.a.nq == 0)
        return PD_OK;
    j.state = c->out[1].data;
    j.a.y = att_rows_inside(&c->out[0], j.a.heads, j.a.nq, j.a.d);
    return c->in[0].dtype == PK_BF16 ? launch<__nv_bfloat16>(b, &j, (float *)c->workspace, why)
                                     : launch<float>(b, &j, (float *)c->workspace, why);
}
