/* Copies past the caches: non-temporal stores of whole cache lines, which are not read first. */
#include "kernels/backend/cpu/ops.h"
#include "kernels/backend/cpu/vec.h"

void PK_FN(stream)(size_t bytes, const void *from, void *to)
{
#if CPU_AVX512
    for (size_t i = 0; i < bytes; i += sizeof(__m512i))
        _mm512_stream_si512((__m512i *)(void *)((char *)to + i),
                            _mm512_loadu_si512((const void *)((const char *)from + i)));
#elif CPU_AVX2
    for (size_t i = 0; i < bytes; i += sizeof(__m256i))
        _mm256_stream_si256((__m256i *)(void *)((char *)to + i),
                            _mm256_loadu_si256((const __m256i *)(const void *)((const char *)from + i)));
#else
    memcpy(to, from, bytes);
#endif
}
