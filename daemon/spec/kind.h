/* daemon/spec/kind.h: the kinds of jobs: one row each. The store keeps the names, never the numbers. */
#pragma once

#include <stdbool.h>

enum spec_kind {
    SPEC_KIND_TRAIN,    /* polyd trains a model */
    SPEC_KIND_EXTERNAL, /* a program of the client's, which reports over HTTP */
    SPEC_KIND_COUNT
};

struct spec_kind_info {
    const char *name; /* as the API and the store write it */
    /* polyd carries its runs out: they wait in the queue, get devices, and have attempts, each a worker. Runs
     * of the other kinds begin at once, and live as long as something is heard of them. */
    bool worker;
};

/* Static. */
const struct spec_kind_info *spec_kind_info(enum spec_kind kind);
/* False, leaving *ret alone, if `name` (not NULL) is no kind. */
bool spec_kind_parse(const char *name, enum spec_kind *ret);
