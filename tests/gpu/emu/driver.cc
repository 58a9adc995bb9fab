/* The driver's functions that hosts ask the runtime for. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <string.h>

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                        unsigned long long flags,
                                                        enum cudaDriverEntryPointQueryResult *status)
{
    const bool found = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;

    if (version < 12000 || flags != cudaEnableDefault)
        return cudaErrorInvalidValue;
    *function = found ? (void *)pk_emu_tensor_map_encode : nullptr;
    if (status)
        *status = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
