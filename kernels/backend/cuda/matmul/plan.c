/* Plans of products: descriptors, candidates, choosing by timing, storing the choice.
 *
 * Algorithms are chosen by timing the library's candidates at the first use of a key outside of capture, on
 * real operands and into separate memory; the host stores the choice (tuned_put), because another choice after
 * a restart would sum in another order. Algorithms with a nondeterministic order of sums are not candidates: parts
 * of a sum over K are collected in the workspace and added in order. If the host stores no choices, the library's
 * first candidate is taken, of the fused variant if it has any: it is the same after a restart. */
#include "kernels/backend/cuda/matmul/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES 8 /* of each variant */
#define TURNS 4      /* timed runs of a candidate, after one warm-up run */
#define SLOTS 1024   /* first size of the table of plans; a power of two */

/* The stored record of a choice. */
struct record {
    cublasLtMatmulAlgo_t algo;
    int64_t way;
};

struct cuda_blas {
    cublasLtHandle_t handle;
    struct cuda_lt_plan *plan;
    size_t size, count;
    char place[256]; /* GPU, driver, library: the prefix of keys of records */
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

static void plan_done(struct cuda_lt_plan *p)
{
    for (int i = 0; i < CUDA_LT_WAYS; i++)
        if (p->desc[i])
            cublasLtMatmulDescDestroy(p->desc[i]);
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

/* ---- plans ---- */

static uint64_t hash_of(const struct cuda_lt_key *k)
{
    const unsigned char *byte = (const unsigned char *)k;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ byte[i]) * 0x100000001b3u;
    return h;
}

static struct cuda_lt_plan *slot_of(struct cuda_lt_plan *plan, size_t size, const struct cuda_lt_key *k)
{
    for (size_t at = hash_of(k) & (size - 1);; at = (at + 1) & (size - 1))
        if (!plan[at].used || memcmp(&plan[at].key, k, sizeof *k) == 0)
            return &plan[at];
}

/* The plan of a key; a new one has `used` false. NULL if out of memory. */
static struct cuda_lt_plan *find(struct cuda_blas *x, const struct cuda_lt_key *k)
{
    if (x->count * 2 >= x->size) {
        struct cuda_lt_plan *more = calloc(x->size * 2, sizeof *more);

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

/* Whether an epilogue reads or writes a second matrix. */
static bool takes_aux(uint32_t epilogue)
{
    return (epilogue & 128u) != 0; /* the bit common to epilogues with AUX and to slopes */
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

static enum pd_err describe_way(struct cuda_lt_plan *p, int way, const struct cuda_lt_run *r,
                                struct pd_why *why);

static enum pd_err describe_plan(struct cuda_lt_plan *p, const struct cuda_lt_run *r, struct pd_why *why)
{
    const struct cuda_lt_key *k = &p->key;
    cudaDataType in = type_of(k->in), out = type_of(k->out);
    enum pd_err err = describe_way(p, CUDA_LT_SIMPLE, r, why);

    if (err == PD_OK && k->fused)
        err = describe_way(p, CUDA_LT_FUSED, r, why);
    if (err == PD_OK)
        err = k->tb ? layout(&p->first, in, k->k, k->n, k->ldb, k->batch, k->step_b, why)
                    : layout(&p->first, in, k->n, k->k, k->ldb, k->batch, k->step_b, why);
    if (err == PD_OK)
        err = k->ta ? layout(&p->second, in, k->m, k->k, k->lda, k->batch, k->step_a, why)
                    : layout(&p->second, in, k->k, k->m, k->lda, k->batch, k->step_a, why);
    if (err == PD_OK)
        err = layout(&p->c, out, k->n, k->m, k->ldc, k->batch, k->step_c, why);
    return err == PD_OK ? layout(&p->d, out, k->n, k->m, k->n, k->batch, k->m * k->n, why) : err;
}

/* Sets the pointers in a descriptor. The heuristic reads their alignment. */
static enum pd_err set_pointers(const struct cuda_lt_plan *p, int way, const struct cuda_lt_run *r,
                                struct pd_why *why)
{
    const uint32_t e = (uint32_t)(way == CUDA_LT_FUSED ? p->key.fused : p->key.epilogue);
    const bool adds =
        e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;

    if (adds)
        LT_TRY(cublasLtMatmulDescSetAttribute(p->desc[way], CUBLASLT_MATMUL_DESC_BIAS_POINTER, &r->sums,
                                              sizeof r->sums));
    else if (e & CUBLASLT_EPILOGUE_BIAS)
        LT_TRY(cublasLtMatmulDescSetAttribute(p->desc[way], CUBLASLT_MATMUL_DESC_BIAS_POINTER, &r->bias,
                                              sizeof r->bias));
    if (takes_aux(e))
        LT_TRY(cublasLtMatmulDescSetAttribute(p->desc[way], CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                              &r->aux, sizeof r->aux));
    return PD_OK;
}

static enum pd_err describe_way(struct cuda_lt_plan *p, int way, const struct cuda_lt_run *r,
                                struct pd_why *why)
{
    const struct cuda_lt_key *k = &p->key;
    cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)(way == CUDA_LT_FUSED ? k->fused : k->epilogue);
    cublasLtMatmulDesc_t *desc = &p->desc[way];

    LT_TRY(cublasLtMatmulDescCreate(desc, k->math ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                    CUDA_R_32F));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_TRANSA, k->tb ? &yes : &no, sizeof yes));
    LT_TRY(
        cublasLtMatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_TRANSB, k->ta ? &yes : &no, sizeof yes));
    LT_TRY(cublasLtMatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (takes_aux((uint32_t)epilogue)) {
        LT_TRY(cublasLtMatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldx,
                                              sizeof k->ldx));
        LT_TRY(cublasLtMatmulDescSetAttribute(*desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE,
                                              &k->step_x, sizeof k->step_x));
    }
    return set_pointers(p, way, r, why);
}

static cublasStatus_t start(struct pk_backend *b, const struct cuda_lt_plan *p, int way,
                            const cublasLtMatmulAlgo_t *algo, const struct cuda_lt_run *r)
{
    const float one = 1.0f, beta = p->key.residual ? 1.0f : 0.0f;

    return cublasLtMatmul(b->blas->handle, p->desc[way], &one, r->b, p->first, r->a, p->second, &beta,
                          p->key.residual ? r->c : r->d[way], p->key.residual ? p->c : p->d, r->d[way], p->d,
                          algo, r->workspace, (size_t)p->key.workspace, b->stream);
}

static enum pd_err candidates(struct pk_backend *b, const struct cuda_lt_plan *p, int way,
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
        status = cublasLtMatmulAlgoGetHeuristic(b->blas->handle, p->desc[way], p->first, p->second, p->c,
                                                p->d, pref, CANDIDATES, found, ret_count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
            status = CUBLAS_STATUS_SUCCESS; /* the library has no algorithm for this */
            *ret_count = 0;
        }
    }
    if (pref)
        cublasLtMatmulPreferenceDestroy(pref);
    for (int i = 0; i < *ret_count; i++) /* a candidate that ignores these requirements is dropped */
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > (size_t)p->key.workspace)
            found[i--] = found[--*ret_count];
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

static void record_name(struct pk_backend *b, const struct cuda_lt_key *k, char *out, size_t size)
{
    snprintf(
        out, size,
        "matmul 2|%s|%lldx%lldx%lld*%lld|ld %lld %lld %lld %lld|step %lld %lld %lld %lld|%s>%s|t%d%d c%d "
        "e%d f%d m%d|align %d %d %d %d %d %d|ws %lld",
        place(b), (long long)k->m, (long long)k->n, (long long)k->k, (long long)k->batch, (long long)k->lda,
        (long long)k->ldb, (long long)k->ldc, (long long)k->ldx, (long long)k->step_a, (long long)k->step_b,
        (long long)k->step_c, (long long)k->step_x, k->in == PK_BF16 ? "bf16" : "f32",
        k->out == PK_BF16 ? "bf16" : "f32", k->ta, k->tb, k->residual, k->epilogue, k->fused, k->math,
        k->align_a, k->align_b, k->align_c, k->align_d, k->align_bias, k->align_x, (long long)k->workspace);
}

/* A record of another library version, or a damaged one: measure again. */
static bool foreign(struct pk_backend *b, const char *name)
{
    char text[256];

    snprintf(text, sizeof text, "ignored a stored choice that cuBLASLt does not know: %.180s", name);
    if (b->host->log)
        b->host->log(b->host->user, 4, text);
    return false;
}

static bool recall(struct pk_backend *b, struct cuda_lt_plan *p)
{
    cublasLtMatmulHeuristicResult_t result;
    struct record kept;
    char name[768];
    size_t size;

    if (!b->host || !b->host->tuned_get)
        return false;
    record_name(b, &p->key, name, sizeof name);
    size = b->host->tuned_get(b->host->user, name, &kept, sizeof kept);
    if (!size)
        return false;
    if (size != sizeof kept || kept.way < 0 || kept.way >= CUDA_LT_WAYS || !p->desc[kept.way])
        return foreign(b, name);
    memset(&result, 0, sizeof result);
    if (cublasLtMatmulAlgoCheck(b->blas->handle, p->desc[kept.way], p->first, p->second, p->c, p->d,
                                &kept.algo, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > (size_t)p->key.workspace)
        return foreign(b, name);
    p->algo = kept.algo;
    p->way = (int32_t)kept.way;
    return true;
}

static bool capturing(const struct pk_backend *b)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    return cudaStreamIsCapturing(b->stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

struct candidate {
    cublasLtMatmulAlgo_t algo;
    int way;
};

/* The fastest, into memory of its own: the operands may share memory with the output. With two ways what each
 * leaves to other kernels counts too. Anything that goes wrong leaves the first choice. */
static int fastest(struct pk_backend *b, const struct cuda_lt_plan *p, const struct candidate *found,
                   int count, const struct cuda_lt_run *r, cuda_lt_rest_fn *rest, void *user)
{
    const struct cuda_lt_key *k = &p->key;
    size_t bytes = ((size_t)(k->m * k->n * k->batch) * (k->out == PK_BF16 ? 2 : 4) + 255) & ~(size_t)255;
    size_t sums = ((size_t)(k->m > k->n ? k->m : k->n) * 4 + 255) & ~(size_t)255;
    cudaEvent_t begin = NULL, end = NULL;
    struct cuda_lt_run trial = *r;
    bool both = k->fused != 0;
    char *memory = NULL;
    float best = 0.0f;
    int which = -1;

    if (cudaMalloc((void **)&memory, both ? 2 * bytes + sums : bytes) != cudaSuccess ||
        cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess)
        goto out;
    trial.d[0] = trial.d[1] = memory;
    if (both) {
        trial.sums = memory + 2 * bytes;
        if (rest &&
            r->d[0] !=
                r->d[1]) { /* the stored output: the product itself in one form, an auxiliary output in the other */
            trial.d[CUDA_LT_SIMPLE] = memory + bytes;
            trial.aux = memory + bytes;
        }
        if (set_pointers(p, CUDA_LT_FUSED, &trial, NULL) != PD_OK)
            goto out;
    }
    for (int i = 0; i < count; i++) {
        float ms = 0.0f;
        bool good = true;

        for (int turn = 0; turn < 1 + TURNS && good; turn++) {
            good = turn != 1 || cudaEventRecord(begin, b->stream) == cudaSuccess;
            good = good && start(b, p, found[i].way, &found[i].algo, &trial) == CUBLAS_STATUS_SUCCESS &&
                   (!both || rest(user, found[i].way, &trial, NULL) == PD_OK);
        }
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
    (void)cudaFree(memory);
    (void)cudaGetLastError();
    return which < 0 ? 0 : which;
}

/* The result is correct, but much slower, which is rarely intended. */
static void log_fallback(struct pk_backend *b, const struct cuda_lt_key *k)
{
    char name[768], text[896];

    if (!b->host || !b->host->log)
        return;
    record_name(b, k, name, sizeof name);
    snprintf(text, sizeof text, "library=none product=\"%s\" why=\"cuBLASLt has no algorithm for it\"", name);
    b->host->log(b->host->user, 4, text);
}

static enum pd_err choose(struct pk_backend *b, struct cuda_lt_plan *p, const struct cuda_lt_run *r,
                          cuda_lt_rest_fn *rest, void *user, struct pd_why *why)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    struct candidate all[CANDIDATES * CUDA_LT_WAYS];
    int count = 0, which = 0;

    if (recall(b, p))
        return PD_OK;
    for (int way = CUDA_LT_WAYS; way-- > 0;) { /* fused first: the choice if there are no records */
        int n = 0;
        enum pd_err err;

        if (!p->desc[way])
            continue;
        memset(found, 0, sizeof found);
        err = candidates(b, p, way, found, &n, why);
        if (err != PD_OK)
            return err;
        for (int i = 0; i < n; i++)
            all[count++] = (struct candidate){found[i].algo, way};
    }
    p->fallback = count == 0;
    if (p->fallback) {
        log_fallback(b, &p->key);
        return PD_OK;
    }
    if (count > 1 && b->host && b->host->tuned_put && !capturing(b))
        which = fastest(b, p, all, count, r, rest, user);
    p->algo = all[which].algo;
    p->way = all[which].way;
    if (b->host && b->host->tuned_put && !capturing(b)) {
        struct record keep;
        char name[768];

        memset(&keep, 0, sizeof keep);
        keep.algo = p->algo;
        keep.way = p->way;
        record_name(b, &p->key, name, sizeof name);
        b->host->tuned_put(b->host->user, name, &keep, sizeof keep);
    }
    return PD_OK;
}

enum pd_err cuda_lt_plan_of(struct pk_backend *b, const struct cuda_lt_key *k, const struct cuda_lt_run *r,
                            cuda_lt_rest_fn *rest, void *user, const struct cuda_lt_plan **ret,
                            struct pd_why *why)
{
    struct cuda_lt_plan *plan = find(b->blas, k);
    enum pd_err err;

    if (!plan)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the plan of a product");
    if (!plan->used) {
        memset(plan, 0, sizeof *plan);
        plan->key = *k;
        err = describe_plan(plan, r, why);
        if (err == PD_OK)
            err = choose(b, plan, r, rest, user, why);
        if (err != PD_OK) {
            plan_done(plan);
            return err;
        }
        plan->used = true;
        b->blas->count++;
    }
    *ret = plan;
    return PD_OK;
}

enum pd_err cuda_lt_start(struct pk_backend *b, const struct cuda_lt_plan *p, const struct cuda_lt_run *r,
                          struct pd_why *why)
{
    enum pd_err err = set_pointers(p, p->way, r, why);

    if (err == PD_OK)
        LT_TRY(start(b, p, p->way, &p->algo, r));
    return err;
}
