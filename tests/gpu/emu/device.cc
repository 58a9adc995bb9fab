/* The device there is: by POLYD_EMU_SM (80, 90, 100; default 90) and POLYD_EMU_DEVICES (default 1). */
#include "tests/gpu/emu/runtime.h"

#include <cstdlib>
#include <unistd.h>

#include "tests/gpu/emu/block.h"

namespace
{

thread_local int current;

int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text && *text ? atoi(text) : otherwise;
}

int sm()
{
    return number("POLYD_EMU_SM", 90);
}

size_t shared_optin()
{
    return sm() >= 90 ? PK_EMU_SHARED_MOST : sm() == 80 ? (size_t)163 << 10 : (size_t)99 << 10;
}

} // namespace

/* What was begun before a fork is of no use to the child, as the driver has it. */
bool pk_emu_forked()
{
    static const pid_t first = getpid();

    return getpid() != first;
}

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    default:
        return "cudaError";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInitializationError:
        return "initialization error";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
        return "capturing stream has unjoined work";
    case cudaErrorCapturedEvent:
        return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorStreamCaptureImplicit:
        return "operation would make the legacy stream depend on a capturing blocking stream";
    default:
        return "unknown error";
    }
}

cudaError_t cudaGetDeviceCount(int *count)
{
    int driver;

    *count = 0;
    if (pk_emu_forked())
        return pk_emu_error(cudaErrorInitializationError);
    cudaDriverGetVersion(&driver);
    if (driver / 1000 < CUDART_VERSION / 1000)
        return pk_emu_error(cudaErrorInsufficientDriver);
    *count = number("POLYD_EMU_DEVICES", 1);
    return *count > 0 ? cudaSuccess : pk_emu_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (pk_emu_forked())
        return pk_emu_error(cudaErrorInitializationError);
    if (device < 0 || device >= number("POLYD_EMU_DEVICES", 1))
        return pk_emu_error(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    size_t free_bytes;

    if (device < 0 || device >= number("POLYD_EMU_DEVICES", 1))
        return pk_emu_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "Emulated GPU sm_%d", sm());
    memcpy(prop->uuid.bytes, "polyd emulator", 15);
    prop->uuid.bytes[15] = (char)device;
    cudaMemGetInfo(&free_bytes, &prop->totalGlobalMem);
    prop->sharedMemPerBlock = (size_t)48 << 10;
    prop->sharedMemPerBlockOptin = shared_optin();
    prop->sharedMemPerMultiprocessor = shared_optin() + 1024;
    prop->regsPerBlock = 65536;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->maxGridSize[0] = 0x7fffffff;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->major = sm() / 10;
    prop->minor = sm() % 10;
    /* Few, so that kernels which size their grid by it still have several rounds in small tests. */
    prop->multiProcessorCount = 4;
    prop->l2CacheSize = 50 << 20;
    prop->asyncEngineCount = 3;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);

    if (error != cudaSuccess)
        return error;
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    default:
        return pk_emu_error(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = number("POLYD_EMU_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

} // extern "C"
