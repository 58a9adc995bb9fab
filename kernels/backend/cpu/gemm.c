#include "kernels/backend/cpu/gemm.h"

#include <dlfcn.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void cpu_gemm_one_thread(void)
{
    omp_set_num_threads(1);
}

static bool onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                         const float *b, int64_t ldb, bool add, float *c, int64_t ldc)
{
    return dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, add ? 1.0f : 0.0f, c,
                      ldc) == dnnl_success;
}

/* ---- products of bf16 ----
 *
 * dnnl_sgemm has no bf16 counterpart, so each shape needs a primitive. The library's scratch memory belongs to the
 * thread that created a primitive, so each thread has a table of its own; a shape that hashes to an entry in use
 * replaces it. Creating a primitive again is cheap, because the library caches compiled code. */

#define HALF_TABLE 512 /* entries; a power of two */

struct half_shape {
    int64_t m, n, k, lda, ldb, ldc, ta, tb;
};

struct half_entry {
    struct half_shape shape;
    dnnl_primitive_t product; /* NULL: empty */
    dnnl_memory_t a, b, c;
};

struct half_table {
    dnnl_stream_t stream;
    struct half_entry entry[HALF_TABLE];
};

static dnnl_engine_t half_engine; /* one for the process */
static pthread_key_t half_key;
static bool half_ready;

static void entry_done(struct half_entry *e)
{
    if (e->product)
        dnnl_primitive_destroy(e->product);
    if (e->a)
        dnnl_memory_destroy(e->a);
    if (e->b)
        dnnl_memory_destroy(e->b);
    if (e->c)
        dnnl_memory_destroy(e->c);
    memset(e, 0, sizeof *e);
}

static void table_free(void *table)
{
    struct half_table *t = table;

    for (size_t i = 0; i < HALF_TABLE; i++)
        entry_done(&t->entry[i]);
    if (t->stream)
        dnnl_stream_destroy(t->stream);
    free(t);
}

static void half_open(void)
{
    half_ready = dnnl_engine_create(&half_engine, dnnl_cpu, 0) == dnnl_success &&
                 pthread_key_create(&half_key, table_free) == 0;
}

/* Of this thread; NULL: no memory. */
static struct half_table *half_table(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct half_table *t;

    pthread_once(&once, half_open);
    if (!half_ready)
        return NULL;
    t = pthread_getspecific(half_key);
    if (t)
        return t;
    t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    if (dnnl_stream_create(&t->stream, half_engine, dnnl_stream_default_flags) != dnnl_success ||
        pthread_setspecific(half_key, t) != 0) {
        table_free(t);
        return NULL;
    }
    return t;
}

/* The differences between versions 2 and 3 of the library: memory descriptors, and creating primitives from them. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t half_layout;

static bool layout_init(half_layout *d, int64_t rows, int64_t cols, int64_t rs, int64_t cs,
                        dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {rs, cs};

    return dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides) == dnnl_success;
}

static void layout_done(half_layout *d)
{
    if (*d)
        dnnl_memory_desc_destroy(*d);
}

static bool layout_memory(half_layout *d, dnnl_memory_t *ret)
{
    return dnnl_memory_create(ret, *d, half_engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool product_describe(half_layout d[3], dnnl_primitive_desc_t *ret)
{
    return dnnl_matmul_primitive_desc_create(ret, half_engine, d[0], d[1], NULL, d[2], NULL) == dnnl_success;
}
#else
typedef dnnl_memory_desc_t half_layout;

static bool layout_init(half_layout *d, int64_t rows, int64_t cols, int64_t rs, int64_t cs,
                        dnnl_data_type_t type)
{
    dnnl_dims_t dims = {rows, cols}, strides = {rs, cs};

    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides) == dnnl_success;
}

static void layout_done(half_layout *d)
{
    (void)d; /* holds nothing */
}

static bool layout_memory(half_layout *d, dnnl_memory_t *ret)
{
    return dnnl_memory_create(ret, d, half_engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool product_describe(half_layout d[3], dnnl_primitive_desc_t *ret)
{
    dnnl_matmul_desc_t op;

    return dnnl_matmul_desc_init(&op, &d[0], &d[1], NULL, &d[2]) == dnnl_success &&
           dnnl_primitive_desc_create(ret, &op, NULL, half_engine, NULL) == dnnl_success;
}
#endif

static bool entry_make(struct half_entry *e, const struct half_shape *s)
{
    half_layout d[3];
    dnnl_primitive_desc_t desc = NULL;
    const char *kind = NULL;
    bool ok;

    memset(d, 0, sizeof d);
    entry_done(e);
    ok = layout_init(&d[0], s->m, s->k, s->ta ? 1 : s->lda, s->ta ? s->lda : 1, dnnl_bf16) &&
         layout_init(&d[1], s->k, s->n, s->tb ? 1 : s->ldb, s->tb ? s->ldb : 1, dnnl_bf16) &&
         layout_init(&d[2], s->m, s->n, s->ldc, 1, dnnl_f32) && product_describe(d, &desc);
    /* Its own reference implementation is a hundred times slower. */
    ok = ok && dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&kind) == dnnl_success &&
         strncmp(kind, "ref", 3) != 0 && layout_memory(&d[0], &e->a) && layout_memory(&d[1], &e->b) &&
         layout_memory(&d[2], &e->c) && dnnl_primitive_create(&e->product, desc) == dnnl_success;
    if (desc)
        dnnl_primitive_desc_destroy(desc);
    for (int i = 0; i < 3; i++)
        layout_done(&d[i]);
    if (ok)
        e->shape = *s;
    else
        entry_done(e);
    return ok;
}

bool cpu_gemm_half(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda,
                   const uint16_t *b, int64_t ldb, float *c, int64_t ldc)
{
    const struct half_shape s = {m, n, k, lda, ldb, ldc, ta, tb};
    struct half_table *t = half_table();
    struct half_entry *e;
    uint64_t hash = 0;

    if (!t)
        return false;
    for (size_t i = 0; i < sizeof s / sizeof s.m; i++)
        hash = (hash ^ (uint64_t)(&s.m)[i]) * 0x9e3779b97f4a7c15u;
    e = &t->entry[hash >> 40 & (HALF_TABLE - 1)];
    if ((!e->product || memcmp(&e->shape, &s, sizeof s) != 0) && !entry_make(e, &s))
        return false;
    {
        const dnnl_exec_arg_t arg[] = {{DNNL_ARG_SRC, e->a}, {DNNL_ARG_WEIGHTS, e->b}, {DNNL_ARG_DST, e->c}};

        return dnnl_memory_set_data_handle(e->a, (void *)(uintptr_t)a) == dnnl_success &&
               dnnl_memory_set_data_handle(e->b, (void *)(uintptr_t)b) == dnnl_success &&
               dnnl_memory_set_data_handle(e->c, c) == dnnl_success &&
               dnnl_primitive_execute(e->product, t->stream, 3, arg) == dnnl_success &&
               dnnl_stream_wait(t->stream) == dnnl_success;
    }
}

/* The few names of CBLAS that we use; the header would bind us to a library at link time. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
static void (*blas_sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                          float *, int);
static void (*blas_dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int,
                          double, double *, int);

static bool openblas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                           const float *b, int64_t ldb, bool add, float *c, int64_t ldc)
{
    blas_sgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0f, a,
               (int)lda, b, (int)ldb, add ? 1.0f : 0.0f, c, (int)ldc);
    return true;
}

static bool openblas_dgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                           const double *b, int64_t ldb, bool add, double *c, int64_t ldc)
{
    blas_dgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0, a,
               (int)lda, b, (int)ldb, add ? 1.0 : 0.0, c, (int)ldc);
    return true;
}

static bool openblas_found;

static void openblas_open(void)
{
    /* The serial build has no thread setting; the others obey the environment variables read at load. */
    static const char *const names[] = {
        "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0",
        "libopenblas.so.0",
    };
    void (*set_threads)(int);
    void *lib = NULL;

#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        setenv("OPENBLAS_CORETYPE", "HASWELL", 0);
#endif
    for (size_t i = 0; !lib && i < sizeof names / sizeof names[0]; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    *(void **)&blas_sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)&blas_dgemm = dlsym(lib, "cblas_dgemm");
    *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
    if (set_threads)
        set_threads(1);
    openblas_found = blas_sgemm && blas_dgemm;
}

const struct cpu_gemm *cpu_gemm_choose(const char *choice)
{
    static const struct cpu_gemm onednn = {"onednn", onednn_sgemm, NULL};
    static const struct cpu_gemm openblas = {"openblas", openblas_sgemm, openblas_dgemm};
    static const struct cpu_gemm own = {"own", NULL, NULL};
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (!choice || !*choice || strcmp(choice, "onednn") == 0)
        return &onednn;
    if (strcmp(choice, "own") == 0)
        return &own;
    if (strcmp(choice, "openblas") == 0) {
        pthread_once(&once, openblas_open);
        return openblas_found ? &openblas : NULL;
    }
    return NULL;
}
