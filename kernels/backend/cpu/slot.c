/* Slots and pinned memory on a back end without a separate device: a slot's host memory is also its device buffer, and
 * sending does nothing. So callers need only one code path to feed a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend/cpu/cpu.h"

struct pk_slot {
    unsigned char *memory;
    size_t bytes;
    bool sent;
};

void *cpu_alloc_host(struct pk_backend *b, size_t bytes)
{
    (void)b;
    return aligned_alloc(256, bytes ? (bytes + 255) & ~(size_t)255 : 256);
}

void cpu_free_host(struct pk_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

struct pk_slot *cpu_slot_free(struct pk_backend *b, struct pk_slot *slot)
{
    if (slot) {
        cpu_free_host(b, slot->memory);
        free(slot);
    }
    return NULL;
}

enum pd_err cpu_slot_new(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why)
{
    struct pk_slot *slot = calloc(1, sizeof *slot);

    if (slot)
        slot->memory = cpu_alloc_host(b, bytes);
    if (!slot || !slot->memory) {
        cpu_slot_free(b, slot);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a slot of %zu bytes", bytes);
    }
    slot->bytes = bytes;
    *ret = slot;
    return PD_OK;
}

void *cpu_slot_host(struct pk_slot *slot)
{
    return slot->memory;
}

enum pd_err cpu_slot_send(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    (void)b;
    (void)why;
    slot->sent = true;
    return PD_OK;
}

enum pd_err cpu_slot_wait(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why)
{
    (void)b;
    (void)slot;
    (void)why;
    return PD_OK;
}

enum pd_err cpu_slot_take(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                          size_t count, struct pd_why *why)
{
    (void)b;
    if (!slot->sent)
        return pd_fail(why, PD_ERR_CONFLICT, "slot_take before slot_send");
    for (size_t i = 0; i < count; i++) {
        if (parts[i].offset > slot->bytes || parts[i].bytes > slot->bytes - parts[i].offset)
            return pd_fail(why, PD_ERR_INVALID, "part %zu lies outside its slot of %zu bytes", i,
                           slot->bytes);
        memcpy(parts[i].to, slot->memory + parts[i].offset, parts[i].bytes);
    }
    return PD_OK;
}

enum pd_err cpu_info(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why)
{
    long pages = sysconf(_SC_PHYS_PAGES), avail = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    (void)why;
    *ret = (struct pk_backend_info){.name = "cpu"};
    snprintf(ret->library, sizeof ret->library, "%s", b->gemm->name);
    if (pages > 0 && avail > 0 && size > 0) {
        ret->memory_total = (size_t)pages * (size_t)size;
        ret->memory_free = (size_t)avail * (size_t)size;
    }
    return PD_OK;
}

enum pd_err cpu_set_math(struct pk_backend *b, enum pk_math math, struct pd_why *why)
{
    (void)b;
    if (math != PK_MATH_F32)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "the cpu back end has no tf32");
    return PD_OK;
}
