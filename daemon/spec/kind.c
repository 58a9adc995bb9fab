#include "daemon/spec/kind.h"

#include <string.h>

static const struct spec_kind_info kinds[SPEC_KIND_COUNT] = {
    [SPEC_KIND_TRAIN] = {.name = "train", .worker = true},
    [SPEC_KIND_EXTERNAL] = {.name = "external", .worker = false},
};

const struct spec_kind_info *spec_kind_info(enum spec_kind kind)
{
    return &kinds[kind];
}

bool spec_kind_parse(const char *name, enum spec_kind *ret)
{
    for (int i = 0; i < SPEC_KIND_COUNT; i++)
        if (!strcmp(kinds[i].name, name)) {
            *ret = (enum spec_kind)i;
            return true;
        }
    return false;
}
