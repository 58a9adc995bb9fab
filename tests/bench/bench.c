#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/load.h"
#include "kernels/base/log.h"

double bench_seconds(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void bench_check(enum pd_err err, const struct pd_why *why)
{
    if (err != PD_OK) {
        fprintf(stderr, "%s\n", why->text);
        exit(1);
    }
}

void bench_log(void *user, int level, const char *text)
{
    (void)user;
    pd_log((enum pd_log_level)level, "cpu", "%s", text);
}

void bench_sort(double *times, size_t count)
{
    qsort(times, count, sizeof *times, ascending);
}

void *bench_memory(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);

    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return p;
}

struct pk_view bench_numbers(struct pk_shape shape)
{
    int64_t n = pk_shape_count(&shape);
    float *p = bench_memory((size_t)n * sizeof *p);

    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(i * 7919 % 1000) * 1e-3f - 0.5f;
    return pk_view_dense(p, PK_F32, shape);
}

/* Choices that a back end has measured, until the program ends. */
static struct {
    char *key;
    unsigned char value[128];
    size_t size;
} * records;
static size_t record_count;

static size_t record_get(void *user, const char *key, void *value, size_t size)
{
    (void)user;
    for (size_t i = 0; i < record_count; i++)
        if (strcmp(records[i].key, key) == 0) {
            const size_t n = records[i].size < size ? records[i].size : size;

            memcpy(value, records[i].value, n);
            return n;
        }
    return 0;
}

static void record_put(void *user, const char *key, const void *value, size_t size)
{
    void *more = realloc(records, (record_count + 1) * sizeof *records);
    char *name = strdup(key);

    (void)user;
    if (!more || !name || size > sizeof records->value) {
        fprintf(stderr, "no memory for '%s', %zu bytes\n", key, size);
        exit(1);
    }
    records = more;
    records[record_count].key = name;
    records[record_count].size = size;
    memcpy(records[record_count++].value, value, size);
}

size_t bench_choices(void)
{
    return record_count;
}

void bench_open(const char *device, int threads, const struct pk_backend_api **ret_api,
                struct pk_backend **ret_backend)
{
    static const struct pk_host host = {.log = bench_log, .tuned_get = record_get, .tuned_put = record_put};
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pd_why why = {""};

    if (strcmp(device, "cpu") != 0)
        bench_check(pk_backend_load(device, PK_LOAD_RUN, &api, &why), &why);
    bench_check(api->open(&host, 0, threads, ret_backend, &why), &why);
    *ret_api = api;
}

double bench_device_bytes(const struct pk_backend_api *api, struct pk_backend *backend)
{
    struct pk_backend_info info;
    struct pd_why why = {""};

    bench_check(api->info(backend, &info, &why), &why);
    return info.sm ? (double)(info.memory_total - info.memory_free) : 0;
}

/* Host memory that is written over and over into larger memory of a back end. */
#define BLOCK ((size_t)1 << 24)

static void spread(const struct pk_backend_api *api, struct pk_backend *backend, void *to, const void *block,
                   size_t bytes)
{
    struct pd_why why = {""};

    for (size_t at = 0; at < bytes; at += BLOCK)
        bench_check(
            api->upload(backend, (char *)to + at, block, bytes - at < BLOCK ? bytes - at : BLOCK, &why),
            &why);
}

void bench_noise(const struct pk_backend_api *api, struct pk_backend *backend, void *to, enum pk_dtype dtype,
                 size_t bytes)
{
    static uint16_t *half;
    static float *full;
    uint64_t seed = 1;

    if (!half) {
        half = bench_memory(BLOCK);
        full = bench_memory(BLOCK);
        for (size_t i = 0; i < BLOCK / 2; i++) {
            uint32_t bits;
            double x = 0;
            float f;

            seed = seed * 6364136223846793005u + 1442695040888963407u;
            for (int part = 0; part < 64; part += 8) /* eight uniform numbers, whose variance is 8 / 12 */
                x += (double)(seed >> part & 255) / 256 - 0.498;
            f = (float)(x * 1.22);
            memcpy(&bits, &f, 4);
            half[i] = (uint16_t)(bits >> 16);
            if (i < BLOCK / 4)
                full[i] = f;
        }
    }
    spread(api, backend, to, dtype == PK_BF16 ? (const void *)half : full, bytes);
}

void bench_leaves_noise(const struct bench_leaves *l, const char *prefix)
{
    for (int i = 0; i < l->count; i++)
        if (strncmp(l->leaf[i].name, prefix, strlen(prefix)) == 0)
            bench_noise(l->api, l->backend, l->leaf[i].memory, l->leaf[i].dtype, l->leaf[i].bytes);
}

void *bench_leaves_find(const struct bench_leaves *l, const char *name)
{
    for (int i = 0; i < l->count; i++)
        if (strcmp(l->leaf[i].name, name) == 0)
            return l->leaf[i].memory;
    return NULL;
}

void bench_leaves_put(struct bench_leaves *l, const char *name, const void *from, size_t bytes)
{
    struct pd_why why = {""};
    void *to = bench_leaves_find(l, name);

    if (!to) {
        fprintf(stderr, "no graph has a leaf '%s'\n", name);
        exit(1);
    }
    bench_check(l->api->upload(l->backend, to, from, bytes, &why), &why);
}

void bench_leaves_bind(struct bench_leaves *l, struct pk_exec *exec, const struct pk_graph *graph)
{
    struct pd_why why = {""};

    for (size_t i = 0; i < pk_graph_leaf_count(graph); i++) {
        struct pk_leaf leaf = pk_graph_leaf(graph, i);
        void *memory = leaf.kind == PK_OP_PARAM ? NULL : bench_leaves_find(l, leaf.name);

        if (leaf.kind == PK_OP_PARAM)
            continue;
        if (!memory) {
            void *zero = calloc(1, BLOCK);

            memory = l->api->alloc(l->backend, leaf.bytes);
            if (!zero || !memory || l->count == BENCH_LEAVES) {
                fprintf(stderr, "no memory for '%s', %zu bytes\n", leaf.name, leaf.bytes);
                exit(1);
            }
            spread(l->api, l->backend, memory, zero, leaf.bytes);
            free(zero);
            l->leaf[l->count].dtype = leaf.dtype;
            snprintf(l->leaf[l->count].name, sizeof l->leaf[0].name, "%s", leaf.name);
            l->leaf[l->count].memory = memory;
            l->leaf[l->count++].bytes = leaf.bytes;
        }
        bench_check(pk_exec_bind(exec, leaf.name, memory, &why), &why);
    }
}

void bench_leaves_done(struct bench_leaves *l)
{
    for (int i = 0; i < l->count; i++)
        l->api->free(l->backend, l->leaf[i].memory);
    l->count = 0;
}

/* "blocks.3.attn/matmul#17" counts as "matmul" with the shape of its output. */
static void traced(void *user, const char *node, const struct pk_view *out, int n)
{
    struct bench_profile *p = user;
    double now = bench_seconds(CLOCK_PROCESS_CPUTIME_ID); /* robust on a shared machine */
    const char *slash = strrchr(node, '/'), *op = slash ? slash + 1 : node;
    char name[160], shape[96] = "";
    int i = 0;

    if (n > 0)
        pk_shape_text(&out[0].shape, shape, sizeof shape);
    snprintf(name, sizeof name, "%.*s %s", (int)strcspn(op, "#"), op, shape);
    while (i < p->rows && strcmp(p->row[i].name, name) != 0)
        i++;
    if (i == p->rows && p->rows < BENCH_PROFILE_ROWS)
        memcpy(p->row[p->rows++].name, name, sizeof name);
    if (i < BENCH_PROFILE_ROWS) {
        p->row[i].time += now - p->last;
        p->row[i].count++;
    }
    p->last = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void bench_profile_start(struct bench_profile *p, struct pk_exec *exec)
{
    bench_profile_mark(p);
    pk_exec_trace(exec, traced, p);
}

void bench_profile_mark(struct bench_profile *p)
{
    p->last = bench_seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void bench_profile_print(struct bench_profile *p, int runs)
{
    double total = 0;

    for (int i = 0; i < p->rows; i++)
        total += p->row[i].time;
    for (;;) {
        int best = -1;

        for (int i = 0; i < p->rows; i++)
            if (p->row[i].time > 0 && (best < 0 || p->row[i].time > p->row[best].time))
                best = i;
        if (best < 0 || p->row[best].time < 0.003 * total)
            break;
        printf("%8.2f ms %5.1f %% %5d x  %s\n", 1e3 * p->row[best].time / runs,
               100 * p->row[best].time / total, p->row[best].count / runs, p->row[best].name);
        p->row[best].time = 0;
    }
    printf("%8.2f ms in all\n", 1e3 * total / runs);
}
