/* MATMUL by cuBLASLt.
 *
 * The library stores by columns. Our out (M, N) by rows is its (N, M) by columns, so it is asked for out' =
 * b' a': its first operand is our b, and a bias along N lies along its rows, where its epilogue wants it. A
 * transposed view is a matrix as it lies with the transposition said.
 *
 * What a call needs of the library (descriptors, layouts, the chosen algorithm) is made once and found again
 * by its key. Algorithms are chosen by timing the library's candidates at the first use of a key outside of
 * capture, on real operands and into memory of its own; the choice is kept by the host (tuned_put), because
 * another choice after a restart would be another order of sums. Schemes that add up in an order of chance
 * are not candidates: parts of a sum over K meet in the workspace and are added in order.
 *
 * Epilogues of the library: bias, ReLU, GELU in its tanh form - its documentation names no other, and the
 * exact one is not replaced by it - and a residual as C with beta 1, where no activation stands between. The
 * rest is done by matmul_plain.cu: an exact GELU after the product; a whole product where strides, types or
 * the library leave no other way. A bias of f32 beside an output of bf16 is rounded on the way, as the
 * library wants it of the output's type. */
#include "kernels/backend/cuda/matmul.h"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/move.h"

#define CANDIDATES 8
#define TURNS 4                           /* timed runs of a candidate, after one that is not */
#define WORKSPACE_MOST ((size_t)32 << 20) /* what NVIDIA advises for Hopper */
#define TINY 512                          /* multiplications that the library is not asked for */
#define SLOTS 1024                        /* first size of the table of plans; a power of two */

struct key { /* compared bytewise: cleared before it is filled */
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc; /* of our a, b and residual */
    int64_t step_a, step_b, step_c;
    int64_t workspace;
    int32_t in, out; /* enum pk_dtype */
    int32_t ta, tb;  /* our a, b lie transposed */
    int32_t residual, epilogue;
    int32_t math;
    int32_t align_a, align_b, align_c, align_d, align_bias;
};

struct plan {
    struct key key;
    bool used, plain; /* plain: the library has nothing for this key */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, c, d; /* of the library's operands */
    cublasLtMatmulAlgo_t algo;
};

struct cuda_blas {
    cublasLtHandle_t handle;
    struct plan *plan;
    size_t size, count;
    char place[256]; /* GPU, driver, library: how keys of records begin */
};

static enum pd_err lt_fail(struct pd_why *why, cublasStatus_t status, const char *what)
{
    return pd_fail(why, status == CUBLAS_STATUS_ALLOC_FAILED ? PD_ERR_NOMEM : PD_ERR_IO,
                   "%s: cuBLASLt error %d", what, (int)status);
}

#define LT_TRY(expr)                                                                                         \
    do {                                                                                                     \
        cublasStatus_t lt_status_ = (expr);                                                                  \
        if (lt_status_ != CUBLAS_STATUS_SUCCESS)                                                             \
            return lt_fail(why, lt_status_, #expr);                                                          \
    } while (0)

/* ---- opening ---- */

enum pd_err cuda_blas_open(struct pk_backend *b, struct pd_why *why)
{
    struct cuda_blas *x = calloc(1, sizeof *x);

    if (!x)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for products");
    b->blas = x;
    x->size = SLOTS;
    x->plan = calloc(x->size, sizeof *x->plan);
    if (!x->plan)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for products");
    LT_TRY(cublasLtCreate(&x->handle));
    return PD_OK;
}

static void plan_done(struct plan *p)
{
    if (p->desc)
        cublasLtMatmulDescDestroy(p->desc);
    if (p->first)
        cublasLtMatrixLayoutDestroy(p->first);
    if (p->second)
        cublasLtMatrixLayoutDestroy(p->second);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    if (p->d)
        cublasLtMatrixLayoutDestroy(p->d);
    memset(p, 0, sizeof *p);
}

void cuda_blas_close(struct pk_backend *b)
{
    struct cuda_blas *x = b->blas;

    if (!x)
        return;
    for (size_t i = 0; x->plan && i < x->size; i++)
        plan_done(&x->plan[i]);
    free(x->plan);
    if (x->handle)
        cublasLtDestroy(x->handle);
    free(x);
    b->blas = NULL;
}

void cuda_blas_version(const struct pk_backend *b, char *out, size_t size)
{
    size_t v = cublasLtGetVersion(); /* 130100 */

    (void)b;
    snprintf(out, size, "cublasLt %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

/* ---- a call as a product ---- */

static void operand(struct cuda_operand *o, const struct pk_view *v)
{
    int r = v->shape.rank;

    o->data = v->data;
    o->dtype = v->dtype;
    o->rs = v->stride[r - 2];
    o->cs = v->stride[r - 1];
}

static void describe(const struct pk_call *c, struct cuda_product *p)
{
    const struct pk_view *a = &c->in[0], *b = &c->in[1], *o = &c->out[0], *res = NULL;
    int r = o->shape.rank, next = 2;

    memset(p, 0, sizeof *p);
    p->m = o->shape.dim[r - 2];
    p->n = o->shape.dim[r - 1];
    p->k = a->shape.dim[a->shape.rank - 1];
    p->batch = 1;
    operand(&p->a, a);
    operand(&p->b, b);
    p->act = c->attr->matmul.act;
    p->has_bias = c->attr->matmul.has_bias;
    p->has_residual = c->attr->matmul.has_residual;
    if (p->has_bias) {
        p->bias = c->in[next].data;
        p->bias_dtype = c->in[next].dtype;
        p->bias_step = c->in[next++].stride[0];
    }
    if (p->has_residual) {
        res = &c->in[next];
        operand(&p->residual, res);
    }
    p->out = o->data;
    p->out_dtype = o->dtype;
    for (int i = 0; i < r - 2; i++) {
        int64_t d = o->shape.dim[i], sa = a->stride[i], sb = b->stride[i], sr = res ? res->stride[i] : 0;
        int32_t l = p->lead - 1;

        p->batch *= d;
        if (d == 1)
            continue;
        if (l >= 0 && p->a.step[l] == sa * d && p->b.step[l] == sb * d && p->residual.step[l] == sr * d) {
            p->dim[l] *= d;
        } else {
            l = p->lead++;
            p->dim[l] = d;
        }
        p->a.step[l] = sa;
        p->b.step[l] = sb;
        p->residual.step[l] = sr;
    }
}

/* (rows, cols) with steps rs, cs as the library can read it: dense along one axis. */
static bool lies(int64_t rows, int64_t cols, int64_t rs, int64_t cs, int32_t *ret_transposed, int64_t *ret_ld)
{
    if ((cs == 1 || cols == 1) && (rows == 1 || rs >= cols)) {
        *ret_transposed = 0;
        *ret_ld = rows == 1 ? cols : rs;
        return true;
    }
    if ((rs == 1 || rows == 1) && (cols == 1 || cs >= rows)) {
        *ret_transposed = 1;
        *ret_ld = cols == 1 ? rows : cs;
        return true;
    }
    return false;
}

static size_t library_workspace(const struct cuda_product *p)
{
    /* Room for sixteen parts of the sums, up to what the library makes use of at all. */
    size_t want = ((size_t)p->m * (size_t)p->n * (size_t)p->batch * 64 + 65535) & ~(size_t)65535;

    return want < WORKSPACE_MOST ? want : WORKSPACE_MOST;
}

/* Whether the library leaves its result in the workspace as f32: where more is to come - an exact GELU, a
 * residual behind an activation - a rounding more would be seen. */
static bool goes_wide(const struct cuda_product *p)
{
    return p->out_dtype != PK_F32 && p->act != PK_ACT_NONE && (p->act == PK_ACT_GELU || p->has_residual);
}

static enum pk_dtype library_out(const struct cuda_product *p)
{
    return goes_wide(p) ? PK_F32 : p->out_dtype;
}

static size_t wide_bytes(const struct cuda_product *p)
{
    return goes_wide(p) ? ((size_t)(p->m * p->n * p->batch) * 4 + 255) & ~(size_t)255 : 0;
}

static bool bias_is_rounded(const struct cuda_product *p)
{
    return p->has_bias && (p->bias_dtype != library_out(p) || p->bias_step != 1);
}

static size_t bias_bytes(const struct cuda_product *p)
{
    return bias_is_rounded(p) ? ((size_t)p->n * 4 + 255) & ~(size_t)255 : 0;
}

/* Which activation the library applies. */
static bool library_act(enum pk_act act)
{
    return act == PK_ACT_RELU || act == PK_ACT_GELU_TANH;
}

/* Fills the key but for alignments; false: not for the library. */
static bool key_of(const struct pk_backend *b, const struct cuda_product *p, struct key *k)
{
    bool residual = p->has_residual && p->act == PK_ACT_NONE;
    int last = p->lead - 1;

    memset(k, 0, sizeof *k);
    if (p->m * p->n * p->k * p->batch <= TINY || p->a.dtype != p->b.dtype ||
        (p->a.dtype == PK_F32 && p->out_dtype != PK_F32))
        return false;
    if (!lies(p->m, p->k, p->a.rs, p->a.cs, &k->ta, &k->lda) ||
        !lies(p->k, p->n, p->b.rs, p->b.cs, &k->tb, &k->ldb))
        return false;
    if (p->has_residual && (p->residual.dtype != p->out_dtype || (p->residual.cs != 1 && p->n != 1) ||
                            (p->m != 1 && p->residual.rs < p->n)))
        return false;
    if (p->has_residual && !residual && p->residual.data == p->out && !goes_wide(p))
        return false; /* it would be overwritten before it is added */
    k->m = p->m;
    k->n = p->n;
    k->k = p->k;
    k->batch = last >= 0 ? p->dim[last] : 1;
    if (k->batch > INT32_MAX)
        return false;
    k->ldc = residual && p->m != 1 ? p->residual.rs : p->n;
    k->step_c = p->m * p->n;
    if (last >= 0) {
        k->step_a = p->a.step[last];
        k->step_b = p->b.step[last];
        k->step_c = residual ? p->residual.step[last] : k->step_c;
    }
    k->workspace = (int64_t)library_workspace(p);
    k->in = (int32_t)p->a.dtype;
    k->out = (int32_t)library_out(p);
    k->residual = residual;
    k->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (p->act == PK_ACT_RELU)
        k->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (p->act == PK_ACT_GELU_TANH)
        k->epilogue = p->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    k->math = p->a.dtype == PK_F32 && b && b->math == PK_MATH_TF32;
    return true;
}

size_t cuda_matmul_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct cuda_product p;
    struct key k;

    describe(c, &p);
    return key_of(b, &p, &k) ? bias_bytes(&p) + wide_bytes(&p) + (size_t)k.workspace : 0;
}

bool cuda_matmul_supports(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype != PK_F32 && c->in[i].dtype != PK_BF16)
            return false;
    return c->out[0].dtype == PK_F32 || c->out[0].dtype == PK_BF16;
}

/* ---- plans ---- */

static uint64_t hash_of(const struct key *k)
{
    const unsigned char *byte = (const unsigned char *)k;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ byte[i]) * 0x100000001b3u;
    return h;
}

static struct plan *slot_of(struct plan *plan, size_t size, const struct key *k)
{
    for (size_t at = hash_of(k) & (size - 1);; at = (at + 1) & (size - 1))
        if (!plan[at].used || memcmp(&plan[at].key, k, sizeof *k) == 0)
            return &plan[at];
}

/* The plan of a key, new ones with `used` still false. NULL without memory. */
static struct plan *find(struct cuda_blas *x, const struct key *k)
{
    if (x->count * 2 >= x->size) {
        struct plan *more = calloc(x->size * 2, sizeof *more);

        if (!more)
            return NULL;
        for (size_t i = 0; i < x->size; i++)
            if (x->plan[i].used)
                *slot_of(more, x->size * 2, &x->plan[i].key) = x->plan[i];
        free(x->plan);
        x->plan = more;
        x->size *= 2;
    }
    return slot_of(x->plan, x->size, k);
}

static cudaDataType type_of(int32_t dtype)
{
    return dtype == PK_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* A matrix of the library: (rows, cols) by columns. */
static enum pd_err layout(cublasLtMatrixLayout_t *ret, cudaDataType type, int64_t rows, int64_t cols,
                          int64_t ld, int64_t batch, int64_t step, struct pd_why *why)
{
    int32_t count = (int32_t)batch;

    LT_TRY(cublasLtMatrixLayoutCreate(ret, type, (uint64_t)rows, (uint64_t)cols, ld));
    LT_TRY(cublasLtMatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    LT_TRY(cublasLtMatrixLayoutSetAttribute(*ret, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                            sizeof step));
    return PD_OK;
}

static enum pd_err describe_plan(struct plan *p, const void *bias, struct pd_why *why)
{
    const struct key *k = &p->key;
    cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    cudaDataType in = type_of(k->in), out = type_of(k->out);
    enum pd_err err;

    LT_TRY(cublasLtMatmulDescCreate(&p->desc, k->math ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                    CUDA_R_32F));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, k->tb ? &yes : &no, sizeof yes));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, k->ta ? &yes : &no, sizeof yes));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (bias)
        LT_TRY(
            cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    err = k->tb ? layout(&p->first, in, k->k, k->n, k->ldb, k->batch, k->step_b, why)
                : layout(&p->first, in, k->n, k->k, k->ldb, k->batch, k->step_b, why);
    if (err == PD_OK)
        err = k->ta ? layout(&p->second, in, k->m, k->k, k->lda, k->batch, k->step_a, why)
                    : layout(&p->second, in, k->k, k->m, k->lda, k->batch, k->step_a, why);
    if (err == PD_OK)
        err = layout(&p->c, out, k->n, k->m, k->ldc, k->batch, k->step_c, why);
    return err == PD_OK ? layout(&p->d, out, k->n, k->m, k->n, k->batch, k->m * k->n, why) : err;
}

/* One call's pointers. */
struct run {
    const void *a, *b, *c, *bias;
    void *d, *workspace;
};

static cublasStatus_t start(struct pk_backend *b, const struct plan *p, const cublasLtMatmulAlgo_t *algo,
                            const struct run *r)
{
    const float one = 1.0f, beta = p->key.residual ? 1.0f : 0.0f;

    return cublasLtMatmul(b->blas->handle, p->desc, &one, r->b, p->first, r->a, p->second, &beta,
                          p->key.residual ? r->c : r->d, p->key.residual ? p->c : p->d, r->d, p->d, algo,
                          r->workspace, (size_t)p->key.workspace, b->stream);
}

static enum pd_err candidates(struct pk_backend *b, const struct plan *p,
                              cublasLtMatmulHeuristicResult_t *found, int *ret_count, struct pd_why *why)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t bytes;
    } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)p->key.align_b},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)p->key.align_a},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->key.align_c},
                 {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->key.align_d}};
    /* none, or out of place in f32 and in order */
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t most = (uint64_t)p->key.workspace;
    cublasLtMatmulPreference_t pref = NULL;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&pref);

    *ret_count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                      sizeof most);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &schemes, sizeof schemes);
    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status =
            cublasLtMatmulPreferenceSetAttribute(pref, align[i].what, &align[i].bytes, sizeof align[i].bytes);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulAlgoGetHeuristic(b->blas->handle, p->desc, p->first, p->second, p->c, p->d,
                                                pref, CANDIDATES, found, ret_count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
            status = CUBLAS_STATUS_SUCCESS; /* it has nothing for this */
            *ret_count = 0;
        }
    }
    if (pref)
        cublasLtMatmulPreferenceDestroy(pref);
    return status == CUBLAS_STATUS_SUCCESS ? PD_OK : lt_fail(why, status, "asking for algorithms");
}

/* ---- choosing ---- */

static const char *place(struct pk_backend *b)
{
    struct pk_backend_info info;

    if (!b->blas->place[0] && cuda_info(b, &info, NULL) == PD_OK)
        snprintf(b->blas->place, sizeof b->blas->place, "%.100s|driver %.24s|%.48s", info.name, info.driver,
                 info.library);
    return b->blas->place;
}

static void record_name(struct pk_backend *b, const struct key *k, char *out, size_t size)
{
    snprintf(out, size,
             "matmul 1|%s|%lldx%lldx%lld*%lld|ld %lld %lld %lld|step %lld %lld %lld|%s>%s|t%d%d c%d e%d m%d|"
             "align %d %d %d %d %d|ws %lld",
             place(b), (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->batch,
             (long long)k->lda, (long long)k->ldb, (long long)k->ldc, (long long)k->step_a,
             (long long)k->step_b, (long long)k->step_c, k->in == PK_BF16 ? "bf16" : "f32",
             k->out == PK_BF16 ? "bf16" : "f32", k->ta, k->tb, k->residual, k->epilogue, k->math, k->align_a,
             k->align_b, k->align_c, k->align_d, k->align_bias, (long long)k->workspace);
}

static bool recall(struct pk_backend *b, struct plan *p)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algo;
    char name[640];

    if (!b->host || !b->host->tuned_get)
        return false;
    record_name(b, &p->key, name, sizeof name);
    if (b->host->tuned_get(b->host->user, name, &algo, sizeof algo) != sizeof algo)
        return false;
    memset(&result, 0, sizeof result);
    if (cublasLtMatmulAlgoCheck(b->blas->handle, p->desc, p->first, p->second, p->c, p->d, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > (size_t)p->key.workspace)
        return false; /* of another library after all */
    p->algo = algo;
    return true;
}

static bool capturing(const struct pk_backend *b)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    return cudaStreamIsCapturing(b->stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

/* The fastest, into memory of its own: the operands may share memory with the output. Anything that goes
 * wrong leaves the library's own first choice. */
static int fastest(struct pk_backend *b, const struct plan *p, const cublasLtMatmulHeuristicResult_t *found,
                   int count, const struct run *r)
{
    size_t bytes = (size_t)(p->key.m * p->key.n * p->key.batch) * (p->key.out == PK_BF16 ? 2 : 4);
    cudaEvent_t begin = NULL, end = NULL;
    struct run trial = *r;
    float best = 0.0f;
    int which = -1;

    trial.d = NULL;
    if (cudaMalloc(&trial.d, bytes) != cudaSuccess || cudaEventCreate(&begin) != cudaSuccess ||
        cudaEventCreate(&end) != cudaSuccess)
        goto out;
    for (int i = 0; i < count; i++) {
        float ms = 0.0f;
        bool good = start(b, p, &found[i].algo, &trial) == CUBLAS_STATUS_SUCCESS &&
                    cudaEventRecord(begin, b->stream) == cudaSuccess;

        for (int turn = 0; turn < TURNS && good; turn++)
            good = start(b, p, &found[i].algo, &trial) == CUBLAS_STATUS_SUCCESS;
        good = good && cudaEventRecord(end, b->stream) == cudaSuccess &&
               cudaEventSynchronize(end) == cudaSuccess &&
               cudaEventElapsedTime(&ms, begin, end) == cudaSuccess;
        if (good && (which < 0 || ms < best)) {
            which = i;
            best = ms;
        }
    }
out:
    (void)cudaStreamSynchronize(b->stream);
    if (begin)
        (void)cudaEventDestroy(begin);
    if (end)
        (void)cudaEventDestroy(end);
    (void)cudaFree(trial.d);
    (void)cudaGetLastError();
    return which < 0 ? 0 : which;
}

static enum pd_err choose(struct pk_backend *b, struct plan *p, const struct run *r, struct pd_why *why)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    char name[640];
    int count = 0, which = 0;
    enum pd_err err;

    if (recall(b, p))
        return PD_OK;
    memset(found, 0, sizeof found);
    err = candidates(b, p, found, &count, why);
    if (err != PD_OK)
        return err;
    for (int i = 0; i < count; i++) /* what does not hold its promises is no candidate */
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > (size_t)p->key.workspace)
            found[i--] = found[--count];
    p->plain = count == 0;
    if (p->plain)
        return PD_OK;
    /* Where choices are not kept the library's own first one is taken: it is the same after a restart. */
    if (count > 1 && b->host && b->host->tuned_put && !capturing(b))
        which = fastest(b, p, found, count, r);
    p->algo = found[which].algo;
    if (b->host && b->host->tuned_put && !capturing(b)) {
        record_name(b, &p->key, name, sizeof name);
        b->host->tuned_put(b->host->user, name, &p->algo, sizeof p->algo);
    }
    return PD_OK;
}

/* ---- running ---- */

/* The largest power of two, up to 256, that the address and all steps in bytes are multiples of. */
static int32_t align_of(const void *data, const int64_t *step, int32_t steps, size_t size)
{
    uintptr_t bits = (uintptr_t)data | 256u;

    for (int32_t i = 0; i < steps; i++)
        bits |= (uintptr_t)step[i] * size;
    return (int32_t)(bits & (~bits + 1));
}

static size_t size_of(enum pk_dtype t)
{
    return t == PK_BF16 ? 2 : 4;
}

/* Moves a pointer to matrix number `at` of the leading axes but the last. */
static const void *shifted(const struct cuda_product *p, const struct cuda_operand *o, int64_t at)
{
    int64_t off = 0;

    for (int32_t i = p->lead - 2; i >= 0; i--) {
        off += at % p->dim[i] * o->step[i];
        at /= p->dim[i];
    }
    return (const char *)o->data + off * (int64_t)size_of(o->dtype);
}

static enum pd_err by_library(struct pk_backend *b, const struct cuda_product *p, struct key *k,
                              const struct pk_call *c, bool *ret_plain, struct pd_why *why)
{
    size_t bias_room = bias_bytes(p), wide_room = wide_bytes(p), out_size = size_of(library_out(p));
    int64_t out_step[PK_MAX_RANK], rounds = p->batch / k->batch, each = p->m * p->n * k->batch;
    char *scratch = c->workspace, *d = wide_room ? scratch + bias_room : p->out;
    struct run r = {.bias = p->bias, .workspace = scratch + bias_room + wide_room};
    bool residual = p->has_residual && !k->residual; /* still to be added */
    bool act = !library_act(p->act) && p->act != PK_ACT_NONE;
    struct plan *plan;

    for (int32_t i = p->lead - 1, n = 0; i >= 0; i--, n++)
        out_step[i] = i == p->lead - 1 ? p->m * p->n : out_step[i + 1] * p->dim[i + 1];
    k->align_a = align_of(p->a.data, p->a.step, p->lead, size_of(p->a.dtype));
    k->align_b = align_of(p->b.data, p->b.step, p->lead, size_of(p->b.dtype));
    k->align_d = align_of(d, out_step, p->lead, out_size);
    k->align_c = k->residual ? align_of(p->residual.data, p->residual.step, p->lead, out_size) : k->align_d;
    if (p->has_bias) {
        if (bias_room) {
            struct pk_view v = {.data = (void *)(uintptr_t)p->bias,
                                .dtype = p->bias_dtype,
                                .shape = {.rank = 1, .dim = {p->n}}};
            enum pd_err err;

            v.stride[0] = p->bias_step;
            err = cuda_copy_view(b, &v, c->workspace, library_out(p), why);
            if (err != PD_OK)
                return err;
            r.bias = c->workspace;
        }
        k->align_bias = align_of(r.bias, NULL, 0, out_size);
    }
    plan = find(b->blas, k);
    if (!plan)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the plan of a product");
    for (int64_t at = 0; at < rounds; at++) {
        r.a = shifted(p, &p->a, at);
        r.b = shifted(p, &p->b, at);
        r.c = k->residual ? shifted(p, &p->residual, at) : NULL;
        r.d = d + (size_t)(at * each) * out_size;
        if (!plan->used) {
            enum pd_err err;

            memset(plan, 0, sizeof *plan);
            plan->key = *k;
            err = describe_plan(plan, r.bias, why);
            if (err == PD_OK)
                err = choose(b, plan, &r, why);
            if (err != PD_OK) {
                plan_done(plan);
                return err;
            }
            plan->used = true;
            b->blas->count++;
        }
        if (plan->plain) {
            *ret_plain = true;
            return PD_OK;
        }
        if (p->has_bias)
            LT_TRY(cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &r.bias,
                                                  sizeof r.bias));
        LT_TRY(start(b, plan, &plan->algo, &r));
    }
    return act || residual ? cuda_product_finish(b, p, d, library_out(p), act, residual, why) : PD_OK;
}

enum pd_err cuda_matmul(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cuda_product p;
    struct key k;
    bool plain = false;
    enum pd_err err;

    describe(c, &p);
    if (p.m == 0 || p.n == 0 || p.batch == 0)
        return PD_OK;
    if (!key_of(b, &p, &k))
        return cuda_product_plain(b, &p, why);
    err = by_library(b, &p, &k, c, &plain, why);
    return err == PD_OK && plain ? cuda_product_plain(b, &p, why) : err;
}
