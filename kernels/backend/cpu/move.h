/* kernels/backend/cpu/move.h: copies of views, used inside other ops. */
#pragma once

#include "kernels/backend/backend.h"

/* A dense copy of a view to memory that does not overlap it. */
void cpu_copy_view(struct pk_backend *b, const struct pk_view *from, void *to);
