/* tests/gpu/hopper_parts.h: what the tests of sm 90's single instructions share: exact numbers, tensor maps. C++, for
 * nvcc on a device and for g++ on the emulation. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "kernels/backend/cuda/ptx_hopper.cuh"

extern "C" {
#include <cmocka.h>
}

/* Small multiples of 1/4: products and their sums are exact. */
static inline std::vector<float> numbers(int n, unsigned seed)
{
    std::vector<float> x((size_t)n);

    for (float &v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = (float)((int)(seed >> 20) % 17 - 8) / 4;
    }
    return x;
}

static inline __nv_bfloat16 *on_device(const std::vector<float> &x)
{
    std::vector<__nv_bfloat16> narrow(x.size());
    void *p = nullptr;

    for (size_t i = 0; i < x.size(); i++)
        narrow[i] = __float2bfloat16_rn(x[i]);
    assert_int_equal(cudaMalloc(&p, x.size() * 2), cudaSuccess);
    assert_int_equal(cudaMemcpy(p, narrow.data(), x.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
    return (__nv_bfloat16 *)p;
}

/* What makes tensor maps: the driver's function, or the emulation's. */
typedef CUresult parts_encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);
static inline parts_encode_fn *parts_encode(void)
{
#ifdef PK_CUDA_EMULATED
    return pk_emu_tensor_map_encode;
#else
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *f = NULL;

    assert_int_equal(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found),
        cudaSuccess);
    assert_int_equal(found, cudaDriverEntryPointSuccess);
    return (parts_encode_fn *)f;
#endif
}

/* A tensor (planes, rows, columns) for boxes of (rows of the box, width columns). Elements from one plane, and from
 * one row, to the next. */
static inline CUtensorMap map_of_strided(void *p, int planes, int rows, int columns, int plane_step,
                                         int row_step, int box_rows, int width)
{
    const cuuint64_t dims[4] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)planes, 1};
    const cuuint64_t strides[3] = {(cuuint64_t)row_step * 2, (cuuint64_t)plane_step * 2,
                                   (cuuint64_t)(rows * columns * planes) * 2};
    const cuuint32_t box[4] = {(cuuint32_t)width, (cuuint32_t)box_rows, 1, 1}, ones[4] = {1, 1, 1, 1};
    CUtensorMap m;

    assert_int_equal(parts_encode()(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, p, dims, strides, box, ones,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE,
                                    width == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                    : width == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                  : CU_TENSOR_MAP_SWIZZLE_32B,
                                    CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                     CUDA_SUCCESS);
    return m;
}
static inline CUtensorMap map_of(void *p, int planes, int rows, int columns, int box_rows, int width)
{
    return map_of_strided(p, planes, rows, columns, rows * columns, columns, box_rows, width);
}
