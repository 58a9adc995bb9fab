/* kernels/base/arena.h: many small allocations, freed at once. Host memory only. */
#pragma once

#include <stddef.h>

struct pd_arena;

/* Returns an empty arena, owned by the caller, or NULL if out of memory. */
struct pd_arena *pd_arena_new(void);
/* Frees the arena and every allocation from it. NULL is fine. Returns NULL. */
struct pd_arena *pd_arena_free(struct pd_arena *a);
/* `size` zeroed bytes aligned for any type, or NULL. Borrowed until pd_arena_free. */
void *pd_arena_alloc(struct pd_arena *a, size_t size);
/* A copy of the text, or NULL. Borrowed until pd_arena_free. */
char *pd_arena_strdup(struct pd_arena *a, const char *text);
