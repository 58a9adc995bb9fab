/* kernels/backend/cuda/rtc.h: kernels that are compiled while a run is set up, by NVRTC. The library is opened at run time
 * (libnvrtc.so.13, then .12): polyd neither links nor ships it. It is given polyd's own device headers, which are part of
 * this plug-in, and no include path.
 *
 * Compiled code is kept in a folder, one file each, found by everything that it depends on: source, headers, options and the
 * version of NVRTC. A damaged file is compiled again. */
#pragma once

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/base/buf.h"

#define CUDA_RTC_LIMIT_MS 60000            /* of one compilation in a run */
#define CUDA_RTC_CACHE_BYTES (256ll << 20) /* of the folder */

/* "13.0"; PD_ERR_UNSUPPORTED if there is no NVRTC, with a sentence. */
enum pd_err cuda_rtc_version(char *out, size_t size, struct pd_why *why);

/* Compiles `source` for compute capability sm (90: sm_90a): a cubin, or PTX of the newest architecture that this NVRTC knows
 * if the device is newer. folder: of the cache, NULL: none. Waits at most limit_ms for NVRTC, which cannot be interrupted:
 * after that it ends in a thread of its own, and its result is dropped. Appends to *out; *ret_cached (may be NULL) says
 * whether it was found. PD_ERR_UNSUPPORTED: no NVRTC; PD_ERR_TIMEOUT: the limit; PD_ERR_INVALID: the compiler's log is in
 * `why`. */
enum pd_err cuda_rtc_compile(const char *source, int sm, const char *folder, int64_t limit_ms,
                             struct pd_buf *out, bool *ret_cached, struct pd_why *why);

/* The kernels of one op for one formula, compiled together (attention/formula.h). */
struct cuda_program {
    const struct pk_formula_plan *plan; /* borrowed */
    const char *math;                   /* a type of math.cuh, static */
    int head;                           /* channels of a block: 64 or 128 */
    enum cuda_formula_part part;
    struct cuda_tiles tiles; /* of kernels for sm 90 */
};

/* The kernel `name` of a program, as an argument of cudaLaunchKernel, valid while b is open. Compiles and loads the program
 * at its first call, if cuda_compile has not. */
enum pd_err cuda_rtc_kernel(struct pk_backend *b, const struct cuda_program *p, const char *name,
                            const void **ret, struct pd_why *why);
/* pk_backend_api.compile. The emulation interprets formulas: there it compiles only if POLYD_NVRTC names a library, and loads
 * nothing. */
enum pd_err cuda_compile(struct pk_backend *b, const struct pk_call *calls, size_t count,
                         pk_compile_note *note, void *user, struct pd_why *why);
void cuda_rtc_close(struct pk_backend *b);

#ifdef __cplusplus
}
#endif
