/* cuBLASLt on the host: D = epilogue(alpha op(A) op(B) + beta C), batched with steps, matrices by columns,
 * sums in f32; as NVIDIA's documentation says it. Every product has three algorithms: one sum over K; the
 * same under another number; four sums whose parts meet in the workspace (a reduction of type COMPUTE_TYPE,
 * which the preference may not allow). An algorithm is told from others by a mark, so that garbage is
 * refused.
 *
 * Epilogues: bias, ReLU, GELU in the tanh form; GELU with its argument as a second matrix, the slope of GELU
 * with and without the bias's gradient, and that gradient of an operand (BGRADA: of the rows of op(A),
 * BGRADB: of the columns of op(B)). ReLU's mask of bits is not there, and refused.
 *
 * What it is strict about: the second matrix's leading dimension and batch step are multiples of eight and no
 * less than the rows, its address one of sixteen (cublasLt.h at CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
 * gradients of a bias want their vector, and a single product; extents and leading dimensions that contradict
 * each other, an output type that goes with no input type, a batch of one operand only, a missing bias,
 * workspaces that are too small, operands that are aligned less than was said, and memory outside of
 * allocations (memory.cc). POLYD_EMU_LT_REFUSE=1 in the environment: the heuristic knows no algorithm, as for
 * shapes that the real one does not take; =2: none for a second matrix or a bias's gradient. */
#include "runtime.h"

#include <cublasLt.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define MARK 0x706f6c7964656d75ull
#define PARTS 4

struct cublasLtContext {
    uint64_t mark;
};
struct pk_emu_lt_desc {
    cublasComputeType_t compute;
    cublasOperation_t ta, tb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    const void *aux;
    int64_t aux_ld, aux_step;
};
struct pk_emu_lt_layout {
    cudaDataType type;
    int64_t rows, cols, ld, batch, step;
};
struct pk_emu_lt_pref {
    uint64_t workspace;
    uint32_t schemes, align[4];
};

namespace
{

size_t size_of(cudaDataType t)
{
    return t == CUDA_R_16BF ? 2 : 4;
}

float load(const void *p, cudaDataType t, int64_t i)
{
    uint32_t bits;
    float x;

    if (t == CUDA_R_32F)
        return ((const float *)p)[i];
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void store(void *p, cudaDataType t, int64_t i, float x)
{
    uint32_t bits;

    if (t == CUDA_R_32F) {
        ((float *)p)[i] = x;
        return;
    }
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        bits |= 0x00400000u;
    else
        bits += 0x7fffu + (bits >> 16 & 1u);
    ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}

/* f32 with the ten bits of fraction that TF32 has. */
float tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x0fffu + (bits >> 13 & 1u)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

bool fits(const pk_emu_lt_layout *l)
{
    return l->rows > 0 && l->cols > 0 && l->ld >= l->rows && l->batch >= 1;
}

bool has(const pk_emu_lt_desc *o, int what)
{
    return ((int)o->epilogue & what) != 0;
}

enum { AUX = 128, BGRAD = 16, OPERAND_GRAD = CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB };

/* Whether an epilogue is one of those that are here, and has what it wants. */
bool sound_epilogue(const pk_emu_lt_desc *o, const pk_emu_lt_layout *d)
{
    switch ((int)o->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        break;
    default:
        return false;
    }
    if (has(o, AUX) && (!o->aux || (uintptr_t)o->aux % 16 || o->aux_ld % 8 || o->aux_ld < d->rows ||
                        (d->batch > 1 && o->aux_step % 8)))
        return false;
    if (has(o, BGRAD | OPERAND_GRAD) && d->batch > 1)
        return false;
    return !has(o, CUBLASLT_EPILOGUE_BIAS | BGRAD | OPERAND_GRAD) || o->bias;
}

bool sound(const pk_emu_lt_desc *o, const pk_emu_lt_layout *a, const pk_emu_lt_layout *b,
           const pk_emu_lt_layout *c, const pk_emu_lt_layout *d)
{
    int64_t m = o->ta ? a->cols : a->rows, k = o->ta ? a->rows : a->cols;
    bool types =
        a->type == b->type && c->type == d->type && (d->type == CUDA_R_32F || a->type == CUDA_R_16BF);

    return types && fits(a) && fits(b) && fits(c) && fits(d) && (o->tb ? b->cols : b->rows) == k &&
           (o->tb ? b->rows : b->cols) == d->cols && m == d->rows && c->rows == d->rows &&
           c->cols == d->cols && a->batch == d->batch && b->batch == d->batch && c->batch == d->batch &&
           (a->type == CUDA_R_32F || o->compute == CUBLAS_COMPUTE_32F) && sound_epilogue(o, d);
}

size_t workspace_of(uint64_t id, const pk_emu_lt_layout *d)
{
    return id == 2 ? (size_t)(d->rows * d->cols * d->batch) * PARTS * sizeof(float) : 0;
}

float finish(cublasLtEpilogue_t e, float x)
{
    if (e & CUBLASLT_EPILOGUE_RELU)
        return x > 0 ? x : x != x ? x : 0;
    if (e & CUBLASLT_EPILOGUE_GELU)
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    return x;
}

float gelu_slope(float x)
{
    float t = tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x));

    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);
}

/* op(X) as dense floats, row-major (rows, cols). */
void read_matrix(std::vector<float> &to, const void *from, const pk_emu_lt_layout &l, bool transposed,
                 int64_t z, bool narrow)
{
    int64_t rows = transposed ? l.cols : l.rows, cols = transposed ? l.rows : l.cols;

    to.resize((size_t)(rows * cols));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float x = load(from, l.type, z * l.step + (transposed ? j + i * l.ld : i + j * l.ld));

            to[(size_t)(i * cols + j)] = narrow ? tf32(x) : x;
        }
}

void product(pk_emu_lt_desc o, float alpha, const void *A, pk_emu_lt_layout a, const void *B,
             pk_emu_lt_layout b, float beta, const void *C, pk_emu_lt_layout c, void *D, pk_emu_lt_layout d,
             uint64_t id, float *workspace)
{
    int64_t m = d.rows, n = d.cols, k = o.ta ? a.rows : a.cols, parts = id == 2 ? PARTS : 1;
    int64_t part = (k + parts - 1) / parts;
    bool narrow = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> x, y, column((size_t)m), sums;

    for (int64_t z = 0; z < d.batch; z++) {
        /* op(A) by columns and op(B) by columns: both are walked along memory */
        read_matrix(x, A, a, !o.ta, z, narrow); /* (k, m) */
        read_matrix(y, B, b, !o.tb, z, narrow); /* (n, k) */
        if (has(&o, BGRAD))
            sums.assign((size_t)m, 0.0f);
        for (int64_t i = 0; has(&o, CUBLASLT_EPILOGUE_BGRADA) && i < m; i++) {
            float sum = 0;

            for (int64_t l = 0; l < k; l++)
                sum += x[(size_t)(l * m + i)];
            store((void *)(uintptr_t)o.bias, d.type, i, sum);
        }
        for (int64_t j = 0; has(&o, CUBLASLT_EPILOGUE_BGRADB) && j < n; j++) {
            float sum = 0;

            for (int64_t l = 0; l < k; l++)
                sum += y[(size_t)(j * k + l)];
            store((void *)(uintptr_t)o.bias, d.type, j, sum);
        }
        for (int64_t j = 0; j < n; j++) {
            for (int64_t s = 0; s < parts; s++) {
                float *to = parts > 1 ? workspace + ((z * parts + s) * n + j) * m : column.data();

                for (int64_t i = 0; i < m; i++)
                    to[i] = 0;
                for (int64_t l = s * part; l < k && l < (s + 1) * part; l++)
                    for (int64_t i = 0; i < m; i++)
                        to[i] += x[(size_t)(l * m + i)] * y[(size_t)(j * k + l)];
            }
            for (int64_t i = 0; i < m; i++) {
                float v = parts > 1 ? 0 : column[(size_t)i];

                for (int64_t s = 0; parts > 1 && s < parts; s++)
                    v += workspace[((z * parts + s) * n + j) * m + i];
                v *= alpha;
                if (beta != 0)
                    v += beta * load(C, c.type, z * c.step + i + j * c.ld);
                if (o.epilogue & CUBLASLT_EPILOGUE_BIAS)
                    v += load(o.bias, d.type, i);
                if (has(&o, AUX) && has(&o, CUBLASLT_EPILOGUE_GELU))
                    store((void *)(uintptr_t)o.aux, d.type, z * o.aux_step + i + j * o.aux_ld, v);
                else if (has(&o, AUX))
                    v *= gelu_slope(load(o.aux, d.type, z * o.aux_step + i + j * o.aux_ld));
                if (has(&o, BGRAD))
                    sums[(size_t)i] += v;
                store(D, d.type, z * d.step + i + j * d.ld, finish(o.epilogue, v));
            }
        }
        for (int64_t i = 0; has(&o, BGRAD) && i < m; i++)
            store((void *)(uintptr_t)o.bias, d.type, i, sums[(size_t)i]);
    }
}

/* Bytes from the first to the last element of a stack of matrices. */
size_t span_of(const pk_emu_lt_layout *l)
{
    return (size_t)((l->batch - 1) * l->step + (l->cols - 1) * l->ld + l->rows) * size_of(l->type);
}

bool device(const void *p, size_t bytes)
{
    bool inside = false;

    return pk_emu_kind_of(p, bytes, &inside) == PK_EMU_DEVICE && inside;
}

} // namespace

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext{MARK};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *desc = new pk_emu_lt_desc{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                               nullptr, nullptr,     0,           0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
                                              const void *buf, size_t size)
{
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        if (size != sizeof(int32_t))
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(attr == CUBLASLT_MATMUL_DESC_TRANSA ? &desc->ta : &desc->tb, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        if (size != sizeof(uint32_t))
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&desc->epilogue, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        if (size != sizeof(void *))
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&desc->bias, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        if (size != sizeof(void *))
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&desc->aux, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
        if (size != sizeof(int64_t))
            return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(attr == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD ? &desc->aux_ld : &desc->aux_step, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    *layout = new pk_emu_lt_layout{type, (int64_t)rows, (int64_t)cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attr, const void *buf,
                                                size_t size)
{
    int32_t count;

    if (attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof count) {
        memcpy(&count, buf, size);
        layout->batch = count;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == sizeof layout->step) {
        memcpy(&layout->step, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    *pref = new pk_emu_lt_pref{0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t size)
{
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && size == sizeof pref->workspace) {
        memcpy(&pref->workspace, buf, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    if (size != sizeof(uint32_t))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&pref->schemes, buf, size);
    else
        memcpy(&pref->align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int requested,
                                              cublasLtMatmulHeuristicResult_t *results, int *returned)
{
    const char *refuse = getenv("POLYD_EMU_LT_REFUSE");
    const cublasLtMatrixLayout_t l[4] = {a, b, c, d};

    *returned = 0;
    if (!handle || handle->mark != MARK)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!sound(desc, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuse && (*refuse == '1' || (*refuse == '2' && has(desc, AUX | BGRAD | OPERAND_GRAD))))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) /* an element at least */
        if (pref->align[i] < size_of(l[i]->type))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint64_t id = 0; id < 3 && *returned < requested; id++) {
        cublasLtMatmulHeuristicResult_t *r = &results[*returned];

        if (workspace_of(id, d) > pref->workspace ||
            (id == 2 && !(pref->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)))
            continue;
        memset(r, 0, sizeof *r);
        r->algo.data[0] = MARK;
        r->algo.data[1] = id;
        r->workspaceSize = workspace_of(id, d);
        (*returned)++;
    }
    return *returned ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    if (!handle || algo->data[0] != MARK || algo->data[1] > 2 || !sound(desc, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(result, 0, sizeof *result);
    result->algo = *algo;
    result->workspaceSize = workspace_of(algo->data[1], d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceSizeInBytes,
                              cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    float al, be;
    uint64_t id;

    if (!handle || !algo || algo->data[0] != MARK || algo->data[1] > 2 || !sound(desc, a, b, c, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&al, alpha, sizeof al);
    memcpy(&be, beta, sizeof be);
    id = algo->data[1];
    if (workspace_of(id, d) > workspaceSizeInBytes ||
        (C == D && (c->ld != d->ld || (d->batch > 1 && c->step != d->step))) || !device(A, span_of(a)) ||
        !device(B, span_of(b)) || !device(D, span_of(d)) || (be != 0 && !device(C, span_of(c))) ||
        (workspace_of(id, d) && !device(workspace, workspace_of(id, d))) ||
        (has(desc, CUBLASLT_EPILOGUE_BIAS | BGRAD | OPERAND_GRAD) &&
         !device(desc->bias,
                 (size_t)(has(desc, CUBLASLT_EPILOGUE_BGRADB) ? d->cols : d->rows) * size_of(d->type))) ||
        (has(desc, AUX) && !device(desc->aux, (size_t)((d->batch - 1) * desc->aux_step +
                                                       (d->cols - 1) * desc->aux_ld + d->rows) *
                                                  size_of(d->type))))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (pk_emu_noted("cublasLtMatmul", (uint64_t)a->type << 48 | (uint64_t)d->type << 40 |
                                           (uint64_t)desc->ta << 36 | (uint64_t)desc->tb << 32 |
                                           (uint64_t)(be != 0) << 31 | (uint64_t)desc->epilogue))
        return CUBLAS_STATUS_SUCCESS;
    {
        pk_emu_lt_desc o = *desc;
        pk_emu_lt_layout la = *a, lb = *b, lc = *c, ld = *d;

        return pk_emu_enqueue(
                   stream, [=] { product(o, al, A, la, B, lb, be, C, lc, D, ld, id, (float *)workspace); }) ==
                       cudaSuccess
                   ? CUBLAS_STATUS_SUCCESS
                   : CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

} // extern "C"
