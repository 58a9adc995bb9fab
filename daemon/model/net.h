/* daemon/model/net.h: private to this room: what a model is made of. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "daemon/model/model.h"

struct model {
    struct model_spec spec;
    struct model_param *param;
    size_t count, size;
};

/* Patches of an image. */
int64_t model_patches(const struct model_spec *s);
/* Last part of a learned scale's name. */
const char *model_scale_name(const struct model_spec *s);
