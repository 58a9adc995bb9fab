/* tests/gpu/emu/note.h: which kernels a call would launch, without running them. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `what` differs from kernel to kernel (of templates: from instance to instance), and for products of the
 * library by types and epilogue. */
typedef void pk_emu_note_fn(void *user, const char *name, uint64_t what);

/* While `note` is not NULL, kernels and products are told to it and never run; copies run as ever. The
 * plug-in exports it beside its entry. */
__attribute__((visibility("default"))) void pk_emu_note(pk_emu_note_fn *note, void *user);

#ifdef __cplusplus
}
#endif
