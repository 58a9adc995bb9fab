/* Which calls of attention the kernels of sm 90 run, and the structs they receive. */
#include <math.h>
#include <string.h>

#include "kernels/backend/cuda/attention/hopper_host.cuh"
#include "kernels/backend/cuda/attention/hopper_phi.cuh"

#define HOPPER_SHARED ((size_t)227 << 10) /* of a block of sm 90 */

static const struct pk_view *input(const struct pk_call *c, int n)
{
    return &c->in[n];
}

/* Whether rows suit bulk copies: contiguous columns, other strides multiples of 16 bytes. */
static bool loadable(const struct pk_view *v, int b, int h, int n, int d)
{
    const int axis[3] = {b, h, n};

    if (v->dtype != PK_BF16 || (v->stride[d] != 1 && v->shape.dim[d] != 1))
        return false;
    for (int i = 0; i < 3; i++)
        if (v->shape.dim[axis[i]] > 1 &&
            (v->stride[axis[i]] <= 0 || v->stride[axis[i]] % 8 || v->stride[axis[i]] >= (int64_t)1 << 38))
            return false;
    return true;
}

bool hopper_job_of(const struct pk_call *c, struct hopper_job *ret)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const bool formula = c->op == PK_OP_FORMULA || c->op == PK_OP_FORMULA_BWD;
    const bool backward = c->op == PK_OP_ATTENTION_BWD || c->op == PK_OP_FORMULA_BWD;
    const enum pk_phi_kind kind = formula ? PK_KIND_ALONE : pk_phi_kind_of(a->phi);
    struct hopper_job j = {};
    int64_t batch, heads, nq, nk, d;
    int at = a->packed ? 1 : 3;

    if (a->packed) {
        const struct pk_view *x = input(c, 0);

        batch = x->shape.dim[0];
        nq = nk = x->shape.dim[1];
        heads = x->shape.dim[3];
        d = x->shape.dim[4];
        if (!loadable(x, 0, 3, 1, 4) || x->stride[2] % 8)
            return false;
    } else {
        batch = c->in[0].shape.dim[0];
        heads = c->in[0].shape.dim[1];
        nq = c->in[0].shape.dim[2];
        nk = c->in[1].shape.dim[2];
        d = c->in[0].shape.dim[3];
        for (int i = 0; i < 3; i++)
            if (!loadable(input(c, i), 0, 1, 2, 3))
                return false;
    }
    if (d % 8 || d < 8 || d > 128 || batch < 1 || heads < 1 || nq < 1 || nk < 1 || nq > 1 << 24 ||
        nk > 1 << 24 || batch > 1 << 24 || heads > 1 << 16 || batch * heads > 1 << 24)
        return false;
    if (formula)
        j.phi = 0;
    else if (kind == PK_KIND_POWER && a->degree >= 1 && a->degree <= HOPPER_POWERS)
        j.phi = a->degree;
    else if (kind == PK_KIND_ALONE)
        j.phi = a->bias < -1.0 ? HOPPER_FINE(a->phi) : HOPPER_ROW(a->phi);
    else if (kind == PK_KIND_HOMOGENEOUS)
        j.phi = HOPPER_ROW(a->phi);
    else
        return false;
    j.homogeneous = kind != PK_KIND_ALONE;
    if ((!formula && a->form == PK_FORM_LINEAR) || a->has_length || (a->has_rng && a->dropout > 0.0))
        return false;
    j.batch = (int)batch;
    j.heads = (int)heads;
    j.nq = (int)nq;
    j.nk = (int)nk;
    j.d = (int)d;
    j.causal = a->causal;
    j.tau = (float)a->tau;
    /* The factor, the bias and the powers of ATTENTION are a formula's own business, and so are its scalars. */
    j.add = formula ? 0.0f : (float)a->bias;
    j.row_power = formula ? 0.0f : (float)a->row_power;
    j.scale = formula ? 1.0f : (float)a->scale;
    j.learns = a->has_scale && !formula;
    at += a->has_scale && formula;
    if (j.learns) {
        const struct pk_view *v = input(c, at++);

        if (v->dtype != PK_F32)
            return false;
        j.learned = (const float *)v->data;
        j.learned_step = v->shape.dim[0] == 1 ? 0 : v->stride[0];
    }
    if (a->has_bias) {
        const struct pk_view *v = input(c, at++);

        if (v->dtype != PK_F32)
            return false;
        j.bias = (const float *)v->data;
        j.bias_h = v->stride[0];
        j.bias_q = v->stride[1];
        j.bias_k = v->stride[2];
    }
    if (a->has_mask) {
        const struct pk_view *v = input(c, at++);
        const bool windows = v->shape.rank == 3;

        j.mask = (const uint8_t *)v->data;
        j.mask_b = v->stride[0];
        j.mask_q = windows ? v->stride[1] : 0;
        j.mask_k = v->stride[windows ? 2 : 1];
        j.windows = windows ? (int)v->shape.dim[0] : 0;
    }
    at += a->has_rng;
    if (backward && a->has_bias && (nq > HOPPER_BIASED || nk > HOPPER_BIASED))
        return false;
    if (backward && (!loadable(input(c, at + 1), 0, 2, 1, 3)))
        return false;
    j.affine =
        a->has_bias || (j.homogeneous && a->bias != 0.0) || (kind == PK_KIND_HOMOGENEOUS && a->tau <= 0.0);
    j.of_y = !j.homogeneous || j.affine    ? 1.0f
             : kind == PK_KIND_HOMOGENEOUS ? (float)a->tau
                                           : (float)pow(a->tau, a->degree);
    j.of_d =
        kind != PK_KIND_POWER ? 1.0f : (float)(a->degree * (j.affine ? 1.0 : pow(a->tau, a->degree - 1)));
    *ret = j;
    return true;
}

struct hopper_rows hopper_rows_of(const struct pk_call *c, const struct hopper_job *j, int which)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const int after = (a->packed ? 1 : 3) + a->has_scale + a->has_bias + a->has_mask + a->has_rng;
    const int64_t h = j->heads, d = j->d, n = which == 4 ? j->nq : j->nk;
    const struct pk_view *v;

    if (which == 7)
        return (struct hopper_rows){(__nv_bfloat16 *)c->out[0].data, j->nq * h * d, d, h * d};
    if (which == 3) {
        v = &c->in[after + 1];
        return (struct hopper_rows){(__nv_bfloat16 *)v->data, v->stride[0], v->stride[2], v->stride[1]};
    }
    if (which > 3 && a->packed)
        return (struct hopper_rows){(__nv_bfloat16 *)c->out[0].data + (which - 4) * h * d, 3 * n * h * d, d,
                                    3 * h * d};
    if (which > 3)
        return (struct hopper_rows){(__nv_bfloat16 *)c->out[which - 4].data, h * n * d, n * d, d};
    v = &c->in[a->packed ? 0 : which];
    if (a->packed)
        return (struct hopper_rows){(__nv_bfloat16 *)v->data + which * v->stride[2], v->stride[0],
                                    v->stride[3], v->stride[1]};
    return (struct hopper_rows){(__nv_bfloat16 *)v->data, v->stride[0], v->stride[1], v->stride[2]};
}

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                           const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                           CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's, through the runtime: the plug-in is not linked with libcuda. */
static enum pd_err encoder(encode_fn **ret, struct pd_why *why)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *f = NULL;

    PK_CUDA_TRY(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !f)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "the driver has no cuTensorMapEncodeTiled (12.0)");
    *ret = (encode_fn *)f;
    return PD_OK;
}

enum pd_err hopper_map(const struct hopper_job *j, const struct hopper_rows *r, int n, int columns, int rows,
                       CUtensorMap *ret, struct pd_why *why)
{
    const cuuint32_t width = (cuuint32_t)(columns < 64 ? columns : 64);
    const cuuint64_t dims[4] = {(cuuint64_t)j->d, (cuuint64_t)n, (cuuint64_t)j->heads, (cuuint64_t)j->batch};
    /* An axis of one element may have any stride; the driver wants a sound one. */
    const cuuint64_t strides[3] = {(cuuint64_t)(n > 1 ? r->sn * 2 : 16),
                                   (cuuint64_t)(j->heads > 1 ? r->sh * 2 : 16),
                                   (cuuint64_t)(j->batch > 1 ? r->sb * 2 : 16)};
    const cuuint32_t box[4] = {width, (cuuint32_t)rows, 1, 1}, ones[4] = {1, 1, 1, 1};
    encode_fn *encode = NULL;
    CUresult result;
    enum pd_err err = encoder(&encode, why);

    if (err != PD_OK)
        return err;
    if ((uintptr_t)r->p % 16)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "attention: rows that are not 16-byte aligned");
    result = encode(ret, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, r->p, dims, strides, box, ones,
                    CU_TENSOR_MAP_INTERLEAVE_NONE,
                    width == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return pd_fail(why, PD_ERR_IO, "attention: the driver refuses a map of (%d, %d, %d, %d) (error %d)",
                       j->batch, j->heads, n, j->d, (int)result);
    return PD_OK;
}

enum pd_err hopper_allow(const void *kernel, size_t shared, struct pd_why *why)
{
    if (shared > HOPPER_SHARED)
        return pd_fail(why, PD_ERR_LIMIT, "attention: %zu bytes of shared memory", shared);
    /* The maximum, not the need of this call: the limit belongs to the kernel, and a recorded call that needs
     * more may still be launched. No L1: blocks that share a multiprocessor need its shared memory. */
    PK_CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)HOPPER_SHARED));
    PK_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    return PD_OK;
}

extern "C" bool cuda_attention_hopper_supports(const struct pk_backend *b, const struct pk_call *c)
{
    struct hopper_job j;

#ifdef POLYD_CUDA_ARCHS
    if (!strstr(POLYD_CUDA_ARCHS, "90a"))
        return false;
#endif
    return (!b || (b->sm == 90 && b->hopper)) && (c->op == PK_OP_ATTENTION || c->op == PK_OP_ATTENTION_BWD) &&
           hopper_job_of(c, &j);
}

extern "C" size_t cuda_attention_hopper_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct hopper_job j;

    if (c->op != PK_OP_ATTENTION_BWD || !hopper_job_of(c, &j))
        return 0;
    return hopper_bwd_workspace(b, c, &j);
}
