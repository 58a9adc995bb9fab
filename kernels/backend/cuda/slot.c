/* Pinned memory, uploads, and slots: copies on the side stream while kernels run.
 *
 * For a copy from pageable memory CUDA's documentation says only that the source "might" be read before the call
 * returns, but the caller of upload may overwrite it immediately. So small uploads (a step's numbers) are staged in
 * pinned memory and do not block; large ones block until the copy is complete.
 *
 * A slot is copied from host memory to its device buffer on `side`, and from there to its destinations on `stream`.
 * Two events order the copies: a take waits for `arrived`, the next send for `taken`. The second copy, within the
 * device, costs a few microseconds per megabyte and keeps the addresses fixed that a captured step reads. */
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cuda/backend.h"

#define HALF ((size_t)64 << 10)

/* Two halves alternate: one is filled again when the copies from it are complete. */
struct cuda_passage {
    unsigned char *memory;
    cudaEvent_t left[2]; /* recorded after the last copy from a half */
    bool filled[2];
    int half;
    size_t at;
};

struct cuda_pinned { /* one allocation of alloc_host, in a list of the back end */
    struct cuda_pinned *next;
    unsigned char *memory;
    size_t bytes;
};

struct pk_slot {
    unsigned char *host, *twin;
    size_t bytes;
    cudaEvent_t arrived, taken;
    bool sent, was_taken;
};

void *cuda_alloc_host(struct pk_backend *b, size_t bytes)
{
    struct cuda_pinned *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->bytes = bytes ? (bytes + 255) & ~(size_t)255 : 256;
    if (cudaSetDevice(b->device) != cudaSuccess ||
        cudaMallocHost((void **)&p->memory, p->bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        free(p);
        return NULL;
    }
    p->next = b->pinned;
    b->pinned = p;
    return p->memory;
}

void cuda_free_host(struct pk_backend *b, void *memory)
{
    for (struct cuda_pinned **at = &b->pinned; memory && *at; at = &(*at)->next)
        if ((*at)->memory == memory) {
            struct cuda_pinned *p = *at;

            *at = p->next;
            (void)cudaSetDevice(b->device);
            (void)cudaFreeHost(p->memory);
            free(p);
            return;
        }
}

bool cuda_pinned(const struct pk_backend *b, const void *p)
{
    for (const struct cuda_pinned *at = b->pinned; at; at = at->next)
        if ((uintptr_t)p - (uintptr_t)at->memory < at->bytes)
            return true;
    return false;
}

void cuda_passage_close(struct pk_backend *b)
{
    struct cuda_passage *p = b->passage;

    if (!p)
        return;
    for (int i = 0; i < 2; i++)
        if (p->left[i])
            (void)cudaEventDestroy(p->left[i]);
    if (p->memory)
        (void)cudaFreeHost(p->memory);
    free(p);
    b->passage = NULL;
}

enum pd_err cuda_passage_open(struct pk_backend *b, struct pd_why *why)
{
    struct cuda_passage *p = b->passage = calloc(1, sizeof *p);

    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for uploads");
    PK_CUDA_TRY(cudaMallocHost((void **)&p->memory, 2 * HALF));
    for (int i = 0; i < 2; i++)
        PK_CUDA_TRY(cudaEventCreateWithFlags(&p->left[i], cudaEventDisableTiming));
    return PD_OK;
}

enum pd_err cuda_pass(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why)
{
    struct cuda_passage *p = b->passage;
    unsigned char *via;

    if (bytes > HALF || cuda_pinned(b, from)) {
        PK_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream));
        PK_CUDA_TRY(cudaStreamSynchronize(b->stream));
        return PD_OK;
    }
    if (p->at + bytes > HALF) {
        PK_CUDA_TRY(cudaEventRecord(p->left[p->half], b->stream));
        p->filled[p->half] = true;
        p->half ^= 1;
        p->at = 0;
        if (p->filled[p->half])
            PK_CUDA_TRY(cudaEventSynchronize(p->left[p->half]));
    }
    via = p->memory + (size_t)p->half * HALF + p->at;
    memcpy(via, from, bytes);
    p->at = (p->at + bytes + 255) & ~(size_t)255;
    PK_CUDA_TRY(cudaMemcpyAsync(to, via, bytes, cudaMemcpyHostToDevice, b->stream));
    return PD_OK;
}

struct pk_slot *cuda_slot_free(struct pk_backend *b, struct pk_slot *slot)
{
    if (slot) {
        (void)cudaSetDevice(b->device);
        (void)cudaStreamSynchronize(b->side);
        (void)cudaStreamSynchronize(b->stream);
        if (slot->arrived)
            (void)cudaEventDestroy(slot->arrived);
        if (slot->taken)
            (void)cudaEventDestroy(slot->taken);
        if (slot->twin)
            (void)cudaFree(slot->twin);
        cuda_free_host(b, slot->host);
        free(slot);
    }
    return NULL;
}

static enum pd_err fill_slot(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    PK_CUDA_TRY(cudaSetDevice(b->device));
    slot->host = cuda_alloc_host(b, slot->bytes);
    if (!slot->host)
        return pd_fail(why, PD_ERR_NOMEM, "no pinned memory for a slot of %zu bytes", slot->bytes);
    PK_CUDA_TRY(cudaMalloc((void **)&slot->twin, slot->bytes ? slot->bytes : 256));
    PK_CUDA_TRY(cudaEventCreateWithFlags(&slot->arrived, cudaEventDisableTiming));
    PK_CUDA_TRY(cudaEventCreateWithFlags(&slot->taken, cudaEventDisableTiming));
    return PD_OK;
}

enum pd_err cuda_slot_new(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why)
{
    struct pk_slot *slot = calloc(1, sizeof *slot);
    enum pd_err err;

    if (!slot)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a slot");
    slot->bytes = bytes;
    err = fill_slot(b, slot, why);
    if (err == PD_OK) {
        *ret = slot;
        slot = NULL; /* moved to the caller */
    }
    cuda_slot_free(b, slot);
    return err;
}

void *cuda_slot_host(struct pk_slot *slot)
{
    return slot->host;
}

enum pd_err cuda_slot_send(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    PK_CUDA_TRY(cudaSetDevice(b->device));
    if (slot->was_taken)
        PK_CUDA_TRY(cudaStreamWaitEvent(b->side, slot->taken, 0));
    if (slot->bytes)
        PK_CUDA_TRY(cudaMemcpyAsync(slot->twin, slot->host, slot->bytes, cudaMemcpyHostToDevice, b->side));
    PK_CUDA_TRY(cudaEventRecord(slot->arrived, b->side));
    slot->sent = true;
    return PD_OK;
}

enum pd_err cuda_slot_wait(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    (void)b;
    if (slot->sent)
        PK_CUDA_TRY(cudaEventSynchronize(slot->arrived));
    return PD_OK;
}

enum pd_err cuda_slot_take(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                           size_t count, struct pd_why *why)
{
    if (!slot->sent)
        return pd_fail(why, PD_ERR_CONFLICT, "slot_take before slot_send");
    for (size_t i = 0; i < count; i++)
        if (parts[i].offset > slot->bytes || parts[i].bytes > slot->bytes - parts[i].offset)
            return pd_fail(why, PD_ERR_INVALID, "part %zu lies outside its slot of %zu bytes", i,
                           slot->bytes);
    PK_CUDA_TRY(cudaSetDevice(b->device));
    PK_CUDA_TRY(cudaStreamWaitEvent(b->stream, slot->arrived, 0));
    for (size_t i = 0; i < count; i++)
        if (parts[i].bytes)
            PK_CUDA_TRY(cudaMemcpyAsync(parts[i].to, slot->twin + parts[i].offset, parts[i].bytes,
                                        cudaMemcpyDeviceToDevice, b->stream));
    PK_CUDA_TRY(cudaEventRecord(slot->taken, b->stream));
    slot->was_taken = true;
    return PD_OK;
}
