/* libfailmalloc.so, preloaded into polyd: the n-th allocation fails while the test says so.
 *
 * The test and the library share a page of the file that POLYD_FAILMALLOC names. Children do not inherit the
 * library. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fault/failmalloc.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static struct failmalloc *_Atomic page;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("POLYD_FAILMALLOC");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at;

    unsetenv("LD_PRELOAD");
    if (fd < 0)
        return;
    at = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        atomic_store(&page, at);
}

static int fails(void)
{
    struct failmalloc *p = atomic_load_explicit(&page, memory_order_relaxed);

    if (!p || !atomic_load_explicit(&p->armed, memory_order_relaxed) || atomic_fetch_sub(&p->left, 1) != 1)
        return 0;
    atomic_fetch_add(&p->failed, 1);
    return 1;
}

/* Interposing is this file's whole purpose: nothing declares these here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    return fails() ? NULL : __libc_realloc(p, size);
}
