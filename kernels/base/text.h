/* kernels/base/text.h: predicates on C strings. */
#pragma once

#include <stdbool.h>
#include <string.h>

static inline bool pd_text_ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);

    return n >= m && !strcmp(text + n - m, suffix);
}
