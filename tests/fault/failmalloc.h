/* tests/fault/failmalloc.h: the page that a test shares with libfailmalloc.so. */
#pragma once

#include <stdatomic.h>

struct failmalloc {
    atomic_long armed;  /* 1 = count */
    atomic_long left;   /* the allocation that takes it to 0 fails */
    atomic_long failed; /* so many did */
};
