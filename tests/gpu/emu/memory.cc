/* Memory of the device is memory of the host, between red zones. Fresh memory is NaN. Under AddressSanitizer
 * the red zones are poisoned, so the first touch is reported; otherwise they are looked at when memory is
 * freed and when the host waits. */
#include "tests/gpu/emu/runtime.h"

#include <cstdlib>
#include <map>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace
{

constexpr size_t ZONE = 512;
constexpr unsigned char ZONE_BYTE = 0xa5;

struct allocation {
    size_t bytes;
    unsigned char *base;
    bool device;
};

/* Never taken down: who forgets device memory at the end of a program loses none of the host. */
std::map<uintptr_t, allocation> &all = *new std::map<uintptr_t, allocation>;
size_t in_use;

size_t capacity()
{
    const char *text = getenv("POLYD_EMU_MEMORY");
    char *end;
    unsigned long long n = text ? strtoull(text, &end, 10) : 0;

    return n ? (size_t)n : (size_t)8 << 30;
}

#if !defined __SANITIZE_ADDRESS__
bool intact(const unsigned char *p)
{
    for (size_t i = 0; i < ZONE; i++)
        if (p[i] != ZONE_BYTE)
            return false;
    return true;
}
#endif

size_t rounded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7; /* AddressSanitizer poisons from a multiple of 8 */
}

void check(uintptr_t at, const allocation &a, const char *when)
{
#if !defined __SANITIZE_ADDRESS__
    if (!intact((unsigned char *)at - ZONE))
        pk_emu_fail("memory before an allocation of %zu bytes was written (seen at %s)", a.bytes, when);
    if (!intact((unsigned char *)at + a.bytes))
        pk_emu_fail("memory after an allocation of %zu bytes was written (seen at %s)", a.bytes, when);
#else
    (void)at;
    (void)a;
    (void)when;
#endif
}

void *take(size_t bytes, bool device)
{
    unsigned char *base = (unsigned char *)aligned_alloc(512, (rounded(bytes) + 3 * ZONE) / 512 * 512);
    unsigned char *p;

    if (!base)
        return nullptr;
    p = base + ZONE;
    memset(base, ZONE_BYTE, ZONE);
    memset(p, 0xff, bytes);
    memset(p + bytes, ZONE_BYTE, ZONE);
#if defined __SANITIZE_ADDRESS__
    __asan_poison_memory_region(base, ZONE);
    __asan_poison_memory_region(p + rounded(bytes), ZONE);
#endif
    all[(uintptr_t)p] = {bytes, base, device};
    if (device)
        in_use += bytes;
    return p;
}

bool give(void *p, bool device, const char *when)
{
    auto it = all.find((uintptr_t)p);

    if (it == all.end() || it->second.device != device)
        return false;
    check(it->first, it->second, when);
    if (device)
        in_use -= it->second.bytes;
#if defined __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(it->second.base, rounded(it->second.bytes) + 2 * ZONE);
#endif
    free(it->second.base);
    all.erase(it);
    return true;
}

cudaError_t memcpy_checked(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    bool to_in, from_in;
    pk_emu_kind to_kind = pk_emu_kind_of(to, bytes, &to_in),
                from_kind = pk_emu_kind_of(from, bytes, &from_in);

    if (!bytes)
        return cudaSuccess;
    if (!to_in || !from_in)
        return cudaErrorInvalidValue;
    if (kind == cudaMemcpyDefault)
        return cudaSuccess;
    if ((to_kind == PK_EMU_DEVICE) != (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
        (from_kind == PK_EMU_DEVICE) != (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

} // namespace

pk_emu_kind pk_emu_kind_of(const void *p, size_t bytes, bool *ret_inside)
{
    auto it = all.upper_bound((uintptr_t)p);

    *ret_inside = true;
    if (it == all.begin())
        return PK_EMU_PAGEABLE;
    --it;
    if ((uintptr_t)p >= it->first + it->second.bytes + (it->second.bytes == 0))
        return PK_EMU_PAGEABLE;
    *ret_inside = (uintptr_t)p + bytes <= it->first + it->second.bytes;
    return it->second.device ? PK_EMU_DEVICE : PK_EMU_PINNED;
}

void pk_emu_check_within(const void *p, size_t bytes)
{
    bool inside;

    (void)pk_emu_kind_of(p, bytes, &inside);
    if (!inside)
        pk_emu_fail("%zu bytes at %p run out of their allocation", bytes, p);
}

void pk_emu_check_guards(const char *when)
{
    for (const auto &a : all)
        check(a.first, a.second, when);
}

void pk_emu_check_global(const void *p, size_t bytes, const char *what)
{
    bool inside;

    if (bytes && (pk_emu_kind_of(p, bytes, &inside) == PK_EMU_PAGEABLE || !inside))
        pk_emu_fail("%s: %zu bytes at %p are not within memory of the device", what, bytes, p);
}

extern "C" {

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (pk_emu_forked())
        return pk_emu_error(cudaErrorInitializationError);
    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    if (!ptr)
        return pk_emu_error(cudaErrorInvalidValue);
    *ptr = nullptr;
    if (!bytes)
        return cudaSuccess;
    if (bytes > capacity() - std::min(capacity(), in_use))
        return pk_emu_error(cudaErrorMemoryAllocation);
    *ptr = take(bytes, true);
    return *ptr ? cudaSuccess : pk_emu_error(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *ptr)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    if (!ptr)
        return cudaSuccess;
    pk_emu_drain_all();
    return give(ptr, true, "cudaFree") ? cudaSuccess : pk_emu_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureUnsupported);
    *ptr = bytes ? take(bytes, false) : nullptr;
    return *ptr || !bytes ? cudaSuccess : pk_emu_error(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes)
{
    return cudaHostAlloc(ptr, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *ptr)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (!ptr)
        return cudaSuccess;
    pk_emu_drain_all();
    return give(ptr, false, "cudaFreeHost") ? cudaSuccess : pk_emu_error(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    *total_bytes = capacity();
    *free_bytes = capacity() - std::min(capacity(), in_use);
    return cudaSuccess;
}

/* Host memory is read when its turn comes, pageable memory too: of that the documents promise only that the
 * call "might" wait. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    cudaError_t error = memcpy_checked(to, from, bytes, kind);

    if (error != cudaSuccess)
        return pk_emu_error(error);
    return pk_emu_enqueue(stream, [to, from, bytes] { memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    cudaError_t error = cudaSuccess;

    if (width > to_pitch || width > from_pitch)
        return pk_emu_error(cudaErrorInvalidValue);
    if (height)
        error = memcpy_checked(to, from, width, kind);
    if (error == cudaSuccess && height)
        error = memcpy_checked((char *)to + to_pitch * (height - 1),
                               (const char *)from + from_pitch * (height - 1), width, kind);
    if (error != cudaSuccess)
        return pk_emu_error(error);
    return pk_emu_enqueue(stream, [=] {
        for (size_t i = 0; i < height; i++)
            memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    cudaError_t error;

    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureImplicit);
    error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);
    bool inside;

    if (bytes && (pk_emu_kind_of(ptr, bytes, &inside) != PK_EMU_DEVICE || !inside))
        return pk_emu_error(cudaErrorInvalidValue);
    return pk_emu_enqueue(stream, [ptr, value, bytes] { memset(ptr, value, bytes); });
}

cudaError_t cudaMemset(void *ptr, int value, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> hold(pk_emu_lock);

    if (pk_emu_spoils_capture())
        return pk_emu_error(cudaErrorStreamCaptureImplicit);
    return cudaMemsetAsync(ptr, value, bytes, nullptr);
}

} // extern "C"
