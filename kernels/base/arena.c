#include "kernels/base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK 65536 /* bytes of one malloc, which serves many allocations */

struct block {
    struct block *next;
    size_t used;
    size_t size;
    alignas(max_align_t) unsigned char bytes[];
};

struct pd_arena {
    struct block *head;
};

struct pd_arena *pd_arena_new(void)
{
    return calloc(1, sizeof(struct pd_arena));
}

struct pd_arena *pd_arena_free(struct pd_arena *a)
{
    if (a) {
        while (a->head) {
            struct block *next = a->head->next;

            free(a->head);
            a->head = next;
        }
        free(a);
    }
    return NULL;
}

void *pd_arena_alloc(struct pd_arena *a, size_t size)
{
    const size_t align = alignof(max_align_t);
    struct block *b = a->head;
    void *at;

    if (size > SIZE_MAX - sizeof *b - align)
        return NULL;
    size = (size + align - 1) / align * align;
    if (!b || b->size - b->used < size) {
        size_t want = size > ARENA_BLOCK ? size : ARENA_BLOCK;

        b = calloc(1, sizeof *b + want);
        if (!b)
            return NULL;
        b->size = want;
        b->next = a->head;
        a->head = b;
    }
    at = b->bytes + b->used;
    b->used += size;
    return at;
}

char *pd_arena_strdup(struct pd_arena *a, const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = pd_arena_alloc(a, len);

    return copy ? memcpy(copy, text, len) : NULL;
}
