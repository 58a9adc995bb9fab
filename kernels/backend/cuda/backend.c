/* The table of the CUDA back end: opening a device, memory, running, errors found by kernels. Capture is in
 * capture.c, slots are in slot.c.
 *
 * There are two streams: `stream` has every kernel in order, `side` has concurrent copies and collectives. Both
 * are non-blocking: they do not synchronise with the legacy default stream. */
#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/rtc.h"
#include "kernels/backend/cuda/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_BYTES 256 /* of the buffer for kernel errors, on the device and on the host */
#define READ_AT 64      /* behind the error on the host: numbers that cuda_read and cuda_read_later bring */
#define SM_LEAST 80     /* bf16 products and cp.async begin there */

/* NULL if no file defines matmul. */
extern __attribute__((weak, visibility("hidden"))) enum pd_err cuda_blas_open(struct pk_backend *b,
                                                                              struct pd_why *why);
extern __attribute__((weak, visibility("hidden"))) void cuda_blas_close(struct pk_backend *b);
extern __attribute__((weak, visibility("hidden"))) void cuda_blas_version(const struct pk_backend *b,
                                                                          char *out, size_t size);

#define PK_OP(OP, name) [PK_OP_##OP] = #name,
static const char *const op_name[PK_OP_COUNT] = {
#include "kernels/graph/op/ops.def"
};
#undef PK_OP

static const char *name_of(uint32_t op)
{
    return op < PK_OP_COUNT ? op_name[op] : "an op";
}

enum pd_err cuda_fail(struct pd_why *why, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* reported here; clears it, so that it is not reported again */
    return pd_fail(why, error == cudaErrorMemoryAllocation ? PD_ERR_NOMEM : PD_ERR_IO, "%s: %s", what,
                   cudaGetErrorString(error));
}

static enum pd_err count_devices(int *ret, struct pd_why *why)
{
    cudaError_t error = cudaGetDeviceCount(ret);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0;

    if (error == cudaSuccess && *ret > 0)
        return PD_OK;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    if (error == cudaErrorInsufficientDriver && !driver)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "this machine has no NVIDIA driver (libcuda.so.1 cannot be opened)");
    if (error == cudaErrorInsufficientDriver)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "the NVIDIA driver is too old: it supports CUDA %d.%d and this build needs %d.%d",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice || error == cudaSuccess)
        return pd_fail(why, PD_ERR_NOT_FOUND, "no NVIDIA GPU is visible to this process%s%s",
                       visible ? ", CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
    return cuda_fail(why, error, "asking for GPUs");
}

static struct pk_backend *cuda_close(struct pk_backend *b)
{
    if (b) {
        (void)cudaSetDevice(b->device);
        if (b->stream)
            (void)cudaStreamSynchronize(b->stream);
        if (b->side)
            (void)cudaStreamSynchronize(b->side);
        if (b->blas && cuda_blas_close)
            cuda_blas_close(b);
        if (b->fault)
            (void)cudaFree(b->fault);
        if (b->fault_host)
            (void)cudaFreeHost(b->fault_host);
        for (int i = 0; i < 2; i++)
            if (b->read[i])
                (void)cudaEventDestroy(b->read[i]);
        cuda_rtc_close(b);
        cuda_passage_close(b);
        if (b->stream)
            (void)cudaStreamDestroy(b->stream);
        cuda_ranks_close(b);
        if (b->side)
            (void)cudaStreamDestroy(b->side);
        (void)cudaGetLastError();
        free(b);
    }
    return NULL;
}

static void log_opened(const struct pk_backend *b)
{
    struct pk_backend_info info;
    char text[480];

    if (!b->host || !b->host->log || cuda_info((struct pk_backend *)b, &info, NULL) != PD_OK)
        return;
    snprintf(text, sizeof text,
             "device=%d name=\"%s\" uuid=%s sm=%d multiprocessors=%d memory_mib=%zu free_mib=%zu driver=%s "
             "library=\"%s\"",
             b->device, info.name, info.uuid, info.sm, info.multiprocessors, info.memory_total >> 20,
             info.memory_free >> 20, info.driver, info.library);
    b->host->log(b->host->user, 6, text);
}

/* The device's number, or the smaller POLYD_CUDA_MULTIPROCESSORS. */
static int multiprocessors_of(int all)
{
    const char *text = getenv("POLYD_CUDA_MULTIPROCESSORS");
    const long most = text ? strtol(text, NULL, 10) : 0;

    return most > 0 && most < all ? (int)most : all;
}

static enum pd_err open_on(struct pk_backend *b, struct pd_why *why)
{
    const char *hopper = getenv("POLYD_CUDA_HOPPER");
    struct cudaDeviceProp prop;
    enum pd_err err;
    int count = 0;

    err = count_devices(&count, why);
    if (err != PD_OK)
        return err;
    if (b->device < 0 || b->device >= count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "there is no GPU %d: this process sees %d", b->device, count);
    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaGetDeviceProperties(&prop, b->device));
    b->sm = prop.major * 10 + prop.minor;
    b->multiprocessors = multiprocessors_of(prop.multiProcessorCount);
    b->hopper = !(hopper && strcmp(hopper, "0") == 0);
    b->shared_most = prop.sharedMemPerBlockOptin;
    if (b->sm < SM_LEAST)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d, and polyd needs %d.%d or newer", b->device,
                       prop.name, prop.major, prop.minor, SM_LEAST / 10, SM_LEAST % 10);
    err = cuda_probe(why);
    if (err != PD_OK)
        return err;
    PK_CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    PK_CUDA_TRY(cudaStreamCreateWithFlags(&b->side, cudaStreamNonBlocking));
    PK_CUDA_TRY(cudaMalloc((void **)&b->fault, FAULT_BYTES));
    /* one block of synchronous reads, two of read_later */
    PK_CUDA_TRY(cudaMallocHost((void **)&b->fault_host, (size_t)3 * FAULT_BYTES));
    for (int i = 0; i < 2; i++)
        PK_CUDA_TRY(cudaEventCreateWithFlags(&b->read[i], cudaEventDisableTiming));
    PK_CUDA_TRY(cudaMemsetAsync(b->fault, 0, FAULT_BYTES, b->stream));
    b->units_taken = b->fault + 32; /* a cache line of its own */
    err = cuda_passage_open(b, why);
    if (err != PD_OK)
        return err;
    if (cuda_blas_open) {
        err = cuda_blas_open(b, why);
        if (err != PD_OK)
            return err;
    }
    PK_CUDA_TRY(cudaStreamSynchronize(b->stream));
    return PD_OK;
}

static enum pd_err cuda_open(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                             struct pd_why *why)
{
    struct pk_backend *b = calloc(1, sizeof *b);
    enum pd_err err;

    (void)threads; /* of the CPU */
    if (!b)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the cuda back end");
    b->host = host;
    b->device = device;
    b->math = PK_MATH_F32;
    err = open_on(b, why);
    if (err == PD_OK) {
        log_opened(b);
        *ret = b;
        b = NULL; /* moved to the caller */
    }
    cuda_close(b);
    return err;
}

static const struct cuda_op *op_of(const struct pk_call *c)
{
    return (unsigned)c->op < PK_OP_COUNT && cuda_ops[c->op].run ? &cuda_ops[c->op] : NULL;
}

static bool cuda_supports(struct pk_backend *b, const struct pk_call *c)
{
    const struct cuda_op *op = op_of(c);

    if (!op)
        return false;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype == PK_F64)
            return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i].dtype == PK_F64)
            return false;
    return !op->supports || op->supports(b, c);
}

static size_t cuda_workspace_bytes(struct pk_backend *b, const struct pk_call *c)
{
    const struct cuda_op *op = op_of(c);

    return op && op->workspace ? (op->workspace(b, c) + 255) & ~(size_t)255 : 0;
}

static void *cuda_alloc(struct pk_backend *b, size_t bytes)
{
    void *p = NULL;

    if (cudaSetDevice(b->device) != cudaSuccess || cudaMalloc(&p, bytes ? bytes : 256) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return p;
}

static void cuda_free(struct pk_backend *b, void *memory)
{
    (void)cudaSetDevice(b->device);
    (void)cudaFree(memory);
}

static enum pd_err cuda_upload(struct pk_backend *b, void *to, const void *from, size_t bytes,
                               struct pd_why *why)
{
    if (!bytes)
        return PD_OK;
    PK_CUDA_TRY(cudaSetDevice(b->device));
    return cuda_pass(b, to, from, bytes, why);
}

static enum pd_err cuda_download(struct pk_backend *b, void *to, const void *from, size_t bytes,
                                 struct pd_why *why)
{
    if (!bytes)
        return PD_OK;
    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, b->stream));
    PK_CUDA_TRY(cudaStreamSynchronize(b->stream));
    return PD_OK;
}

enum pd_err cuda_enqueue(struct pk_backend *b, const struct pk_call *calls, size_t count, struct pd_why *why)
{
    size_t begun = 0; /* earlier calls are enqueued already */

    for (size_t i = 0; i < count; i++) {
        const struct pk_call *c = &calls[i];
        const struct cuda_op *op = op_of(c);
        size_t need, together;
        enum pd_err err;

        if (!op)
            return pd_fail(why, PD_ERR_UNSUPPORTED, "the cuda back end has no kernel for %s", name_of(c->op));
        need = cuda_workspace_bytes(b, c);
        if (c->workspace_bytes < need)
            return pd_fail(why, PD_ERR_INTERNAL, "%s was given %zu bytes of workspace and needs %zu",
                           name_of(c->op), c->workspace_bytes, need);
        if (i < begun)
            continue;
        err = cuda_ranks_before(b, c, why);
        if (err != PD_OK)
            return err;
        together = cuda_optim_together(c, count - i);
        err = together > 1 ? cuda_optim_run(b, c, together, why) : op->run(b, c, why);
        if (err != PD_OK)
            return err;
        begun = i + (together > 1 ? together : 1);
    }
    return cuda_ranks_join(b, why);
}

static enum pd_err cuda_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                            struct pd_why *why)
{
    PK_CUDA_TRY(cudaSetDevice(b->device));
    return cuda_enqueue(b, calls, count, why);
}

/* Enqueues a copy of the first error that a kernel reported to `host`. */
static enum pd_err send_fault(struct pk_backend *b, uint32_t *host, struct pd_why *why)
{
    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaMemcpyAsync(host, b->fault, 2 * sizeof *b->fault, cudaMemcpyDeviceToHost, b->stream));
    return PD_OK;
}

/* Turns that error into ours, after the copy has completed. */
static enum pd_err report_fault(struct pk_backend *b, const uint32_t *host, struct pd_why *why)
{
    uint32_t op;
    int32_t value;

    if (!host[0])
        return PD_OK;
    op = host[0] - 1;
    value = (int32_t)host[1];
    PK_CUDA_TRY(cudaMemsetAsync(b->fault, 0, 2 * sizeof *b->fault, b->stream));
    return pd_fail(why, PD_ERR_INVALID, "%s: index %d is out of range", name_of(op), value);
}

static enum pd_err cuda_sync(struct pk_backend *b, struct pd_why *why)
{
    enum pd_err err = send_fault(b, b->fault_host, why);

    if (err != PD_OK)
        return err;
    PK_CUDA_TRY(cudaStreamSynchronize(b->stream));
    PK_CUDA_TRY(cudaStreamSynchronize(b->side));
    return report_fault(b, b->fault_host, why);
}

/* Copies the kernels' error and the numbers through pinned memory and waits once, for the kernels' stream. The upload of
 * the next batch on the other stream continues; collectives were joined at the end of the run. */
static enum pd_err cuda_read(struct pk_backend *b, void *to, const void *from, size_t bytes,
                             struct pd_why *why)
{
    unsigned char *numbers = (unsigned char *)b->fault_host + READ_AT;
    enum pd_err err = send_fault(b, b->fault_host, why);

    if (err != PD_OK)
        return err;
    PK_CUDA_TRY(cudaMemcpyAsync(bytes <= FAULT_BYTES - READ_AT ? numbers : to, from, bytes,
                                cudaMemcpyDeviceToHost, b->stream));
    PK_CUDA_TRY(cudaStreamSynchronize(b->stream));
    if (bytes <= FAULT_BYTES - READ_AT)
        memcpy(to, numbers, bytes);
    return report_fault(b, b->fault_host, why);
}

static_assert(PK_READ_LATER_MOST <= FAULT_BYTES - READ_AT, "a place holds the error and the numbers");

static uint32_t *place_of(const struct pk_backend *b, int place)
{
    return b->fault_host + (size_t)(1 + place) * FAULT_BYTES / sizeof *b->fault_host;
}

static enum pd_err cuda_read_later(struct pk_backend *b, int place, const void *from, size_t bytes,
                                   struct pd_why *why)
{
    uint32_t *host = place_of(b, place);
    enum pd_err err;

    if (bytes > PK_READ_LATER_MOST)
        return pd_fail(why, PD_ERR_INVALID, "read_later takes at most %d bytes, not %zu", PK_READ_LATER_MOST,
                       bytes);
    err = send_fault(b, host, why);
    if (err != PD_OK)
        return err;
    PK_CUDA_TRY(
        cudaMemcpyAsync((unsigned char *)host + READ_AT, from, bytes, cudaMemcpyDeviceToHost, b->stream));
    PK_CUDA_TRY(cudaEventRecord(b->read[place], b->stream));
    return PD_OK;
}

static enum pd_err cuda_read_wait(struct pk_backend *b, int place, void *to, size_t bytes, struct pd_why *why)
{
    const uint32_t *host = place_of(b, place);

    PK_CUDA_TRY(cudaEventSynchronize(b->read[place]));
    memcpy(to, (const unsigned char *)host + READ_AT, bytes);
    return report_fault(b, host, why);
}

enum pd_err cuda_info(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why)
{
    struct cudaDeviceProp prop;
    size_t at = 0;
    int driver = 0;

    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaGetDeviceProperties(&prop, b->device));
    PK_CUDA_TRY(cudaDriverGetVersion(&driver));
    memset(ret, 0, sizeof *ret);
    PK_CUDA_TRY(cudaMemGetInfo(&ret->memory_free, &ret->memory_total));
    snprintf(ret->name, sizeof ret->name, "%.100s", prop.name);
    at = (size_t)snprintf(ret->uuid, sizeof ret->uuid, "GPU");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(ret->uuid + at, sizeof ret->uuid - at, "%s%02x",
                               i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                               (unsigned)(unsigned char)prop.uuid.bytes[i]);
    snprintf(ret->driver, sizeof ret->driver, "%d.%d", driver / 1000, driver % 1000 / 10);
    if (b->blas && cuda_blas_version)
        cuda_blas_version(b, ret->library, sizeof ret->library);
    ret->sm = b->sm;
    ret->multiprocessors = b->multiprocessors;
    return PD_OK;
}

static void *cuda_stream(struct pk_backend *b)
{
    return b->stream;
}

static enum pd_err cuda_set_math(struct pk_backend *b, enum pk_math math, struct pd_why *why)
{
    (void)why;
    b->math = math;
    return PD_OK;
}

__attribute__((visibility("default"))) const struct pk_backend_api *pk_backend_entry(void);

const struct pk_backend_api *pk_backend_entry(void)
{
    static const struct pk_backend_api api = {
        .abi = PK_BACKEND_ABI,
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .supports = cuda_supports,
        .workspace_bytes = cuda_workspace_bytes,
        .alloc = cuda_alloc,
        .free = cuda_free,
        .upload = cuda_upload,
        .download = cuda_download,
        .run = cuda_run,
        .sync = cuda_sync,
        .host_memory = false,
        .capture = cuda_capture,
        .replay = cuda_replay,
        .captured_free = cuda_captured_free,
        .alloc_host = cuda_alloc_host,
        .free_host = cuda_free_host,
        .slot_new = cuda_slot_new,
        .slot_free = cuda_slot_free,
        .slot_host = cuda_slot_host,
        .slot_send = cuda_slot_send,
        .slot_wait = cuda_slot_wait,
        .slot_take = cuda_slot_take,
        .info = cuda_info,
        .set_math = cuda_set_math,
        .stream = cuda_stream,
        .read = cuda_read,
        .read_later = cuda_read_later,
        .read_wait = cuda_read_wait,
        .compile = cuda_compile,
    };

    return &api;
}
