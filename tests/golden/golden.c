/* golden [DIR ...]: checks the vectors in these folders, or in $POLYD_SHARED/golden. Names every tensor out
 * of tolerance; exits 1 on a failure, 77 when there is nothing to check. GOLDEN_MATH=bf16: in mixed precision
 * (bf16.h); =tf32, of golden_cuda: products of f32 in TF32. */
#include "tests/golden/golden.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/golden/bf16.h"

/* golden_cuda is the same program for the CUDA back end (emulated, or with POLYD_TEST_GPU=1 the real one):
 * cases in f32 go there, those in f64 stay on the CPU. Without folders it takes the small cases. */
#ifdef GOLDEN_ON_CUDA
#include "tests/gpu/bridge.h"
#define NAME "golden_cuda"
#define BACKEND gpu_bridge()
static const char *const usual[] = {"/golden/attention",   "/golden/norms",   "/golden/optim",
                                    "/golden/diagnostics", "/golden/blocks",  "/golden/models",
                                    "/golden/swin",        "/golden/deit",    "/golden/xcit",
                                    "/golden/pinn",        "/golden/nystrom", NULL};
/* What the table of tolerances in bf16.c is for. */
static const char *const usual_bf16[] = {"/golden/attention", "/golden/blocks", "/golden/models", NULL};
#else
#define NAME "golden"
#define BACKEND pk_backend_cpu()
static const char *const usual[] = {"/golden", NULL};
static const char *const usual_bf16[] = {"/golden/attention", "/golden/blocks", "/golden/models",
                                         "/golden/train", NULL};
#endif

static const struct {
    const char *group;
    void (*run)(struct gold *g);
} groups[] = {
    {"attention", gold_attention}, {"diagnostics", gold_diagnostics},
    {"norms", gold_norms},         {"blocks", gold_blocks},
    {"models", gold_models},       {"optim", gold_optim},
    {"train", gold_train},         {"augment", gold_augment},
    {"swin", gold_swin},           {"xcit", gold_xcit},
    {"deit", gold_deit},           {"pinn", gold_pinn},
    {"nystrom", gold_nystrom},
};

/* Groups whose architectures a later version brings: counted as skipped, by name. */
static const char *const to_come[] = {"detection"};

static int passed, failed, skipped;

void *gold_alloc(struct gold *g, size_t bytes)
{
    size_t size = (bytes + 255) / 256 * 256 + 256;
    void *p = g->memories < (int)(sizeof g->memory / sizeof *g->memory) ? aligned_alloc(256, size) : NULL;

    if (!p) {
        fprintf(stderr, "golden: no memory\n");
        exit(1);
    }
    g->memory[g->memories++] = p;
    return memset(p, 0, size);
}

double gold_number(const struct gold *g, const char *key, double otherwise)
{
    const json_t *v = json_object_get(g->config, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

bool gold_flag(const struct gold *g, const char *key)
{
    return json_is_true(json_object_get(g->config, key));
}

const char *gold_text(const struct gold *g, const char *key)
{
    const char *t = json_string_value(json_object_get(g->config, key));

    return t ? t : "";
}

/* The largest error that the file has measured of an emulation of bf16; 0 if there is none. */
static double measured(const struct gold *g)
{
    const json_t *all = json_object_get(g->config, "normalised_error_bf16_emulated"), *one;
    double most = json_is_number(all) ? json_number_value(all) : 0;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)all, key, one) most = fmax(most, json_number_value(one));
    return most;
}

double gold_rtol(const struct gold *g, double rtol)
{
    if (strcmp(gold_math(), "tf32") != 0)
        return rtol;
    /* Nobody measured zeros for queries: tests/golden/README.md 10, x^4 to x^6. */
    return fmax(rtol, strstr(gold_text(g, "case"), "zeroq") ? 2.1e-2 : measured(g));
}

void gold_fail(struct gold *g, const char *fmt, ...)
{
    va_list ap;

    printf("  %s: ", g->path);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    g->failed++;
}

bool gold_has(const struct gold *g, const char *tensor)
{
    return data_st_find(g->st, tensor) != NULL;
}

const double *gold_tensor(struct gold *g, const char *tensor, struct pk_shape *ret_shape)
{
    const struct data_st_tensor *t = data_st_find(g->st, tensor);
    struct pd_why why;
    double *to;

    if (!t) {
        gold_fail(g, "no tensor '%s'", tensor);
        return NULL;
    }
    if (ret_shape) {
        ret_shape->rank = t->rank;
        for (int i = 0; i < t->rank; i++)
            ret_shape->dim[i] = t->dim[i];
    }
    to = gold_alloc(g, t->count * sizeof *to);
    if (data_st_read_f64(t, to, t->count, &why) != PD_OK) {
        gold_fail(g, "tensor '%s': %s", tensor, why.text);
        return NULL;
    }
    return to;
}

struct pk_view gold_zeros(struct gold *g, enum pk_dtype dtype, struct pk_shape shape)
{
    return pk_view_dense(gold_alloc(g, (size_t)pk_shape_count(&shape) * pk_dtype_size(dtype)), dtype, shape);
}

struct pk_view gold_view(struct gold *g, const char *tensor, enum pk_dtype dtype)
{
    struct pk_shape shape = {0};
    const double *from = gold_tensor(g, tensor, &shape);
    struct pk_view v;

    if (!from)
        return (struct pk_view){.dtype = dtype};
    v = gold_zeros(g, dtype, shape);
    for (int64_t i = 0; i < pk_shape_count(&shape); i++)
        if (dtype == PK_F64)
            ((double *)v.data)[i] = from[i];
        else
            ((float *)v.data)[i] = (float)from[i];
    return v;
}

void gold_compare_values(struct gold *g, const char *label, const struct pk_view *got, const double *want,
                         double rtol, double floor, double yardstick)
{
    int64_t n = pk_shape_count(&got->shape), at = 0;
    double scale = 0, worst = 0, tolerance;

    if (!want)
        return;
    for (int64_t i = 0; i < n; i++) {
        double v =
            got->dtype == PK_F64 ? ((const double *)got->data)[i] : (double)((const float *)got->data)[i];
        double e = fabs(v - want[i]);

        scale = fmax(scale, fabs(want[i]));
        if (!(e <= worst)) { /* a NaN sticks */
            worst = isnan(e) ? INFINITY : e;
            at = i;
        }
    }
    g->compared++;
    tolerance =
        (got->dtype == PK_F64 ? rtol : gold_rtol(g, rtol)) * fmax(yardstick > 0 ? yardstick : scale, floor);
    g->worst = fmax(g->worst, tolerance > 0 ? worst / tolerance : worst > 0 ? INFINITY : 0);
    if (!(worst <= tolerance))
        gold_fail(g, "%s (%s): off by %.3g at %lld, allowed %.3g", label, pk_dtype_name(got->dtype), worst,
                  (long long)at, tolerance);
}

void gold_compare(struct gold *g, const char *label, const struct pk_view *got, const char *want, double rtol,
                  double floor, double yardstick)
{
    struct pk_shape shape = {0};
    const double *values = gold_tensor(g, want, &shape);

    if (values && pk_shape_count(&shape) != pk_shape_count(&got->shape))
        gold_fail(g, "%s has %lld elements, tensor '%s' %lld", label, (long long)pk_shape_count(&got->shape),
                  want, (long long)pk_shape_count(&shape));
    else
        gold_compare_values(g, label, got, values, rtol, floor, yardstick);
}

bool gold_run(struct gold *g, enum pk_op op, const struct pk_attr *attr, const struct pk_view *in, int n_in,
              const struct pk_view *out, int n_out)
{
    struct pk_call c = {.op = op, .attr = attr, .n_in = n_in, .n_out = n_out, .in = in, .out = out};
    struct pd_why why;

    for (int i = 0; i < n_in; i++)
        if (!in[i].data)
            return false; /* the missing tensor was reported */
    if (!g->api->supports(g->backend, &c)) {
        gold_fail(g, "op %d is not supported", (int)op);
        return false;
    }
    c.workspace_bytes = g->api->workspace_bytes(g->backend, &c);
    c.workspace = gold_alloc(g, c.workspace_bytes);
    if (g->api->run(g->backend, &c, 1, &why) != PD_OK) {
        gold_fail(g, "op %d: %s", (int)op, why.text);
        return false;
    }
    return true;
}

static bool known_to_come(const char *group)
{
    for (size_t i = 0; i < sizeof to_come / sizeof to_come[0]; i++)
        if (strcmp(to_come[i], group) == 0)
            return true;
    return false;
}

static const char *folder_of(const char *path, char *out, size_t size)
{
    const char *end = strrchr(path, '/'), *start = end;

    if (!end)
        return "";
    while (start > path && start[-1] != '/')
        start--;
    snprintf(out, size, "%.*s", (int)(end - start), start);
    return out;
}

static void run_file(const char *path, const struct pk_backend_api *api, struct pk_backend *backend)
{
    struct gold g = {.path = path, .api = api, .backend = backend};
    struct pd_why why;
    const char *config;
    size_t i = 0;

    if (data_st_open(path, &g.st, &why) != PD_OK) {
        gold_fail(&g, "%s", why.text);
        failed++;
        return;
    }
    config = data_st_meta(g.st, "config");
    g.config = config ? json_loads(config, 0, NULL) : NULL;
    if (!g.config) {
        gold_fail(&g, "no config");
    } else {
        const char *group = gold_text(&g, "group");
        char folder[256];

        if (!*group) /* the architectures' files are sorted by folder alone */
            group = folder_of(path, folder, sizeof folder);
        while (i < sizeof groups / sizeof groups[0] && strcmp(groups[i].group, group) != 0)
            i++;
        if (i < sizeof groups / sizeof groups[0]) {
            groups[i].run(&g);
            if (g.to_come) {
                printf("skip %s: %s to come\n", path, g.to_come);
                skipped++;
                goto out;
            }
            if (g.compared == 0 && g.failed == 0)
                gold_fail(&g, "nothing was compared");
        } else if (known_to_come(group)) {
            printf("skip %s: group '%s' is to come\n", path, group);
            skipped++;
            goto out;
        } else {
            gold_fail(&g, "unknown group '%s'", group);
        }
    }
    if (g.failed)
        failed++;
    else
        passed++;
    if (g.failed || getenv("GOLDEN_VERBOSE"))
        printf("%s %s: %d tensors, worst error %.2g of its tolerance\n", g.failed ? "FAIL" : "ok", path,
               g.compared, g.worst);
out:
    json_decref(g.config);
    data_st_free(g.st);
    for (int k = 0; k < g.memories; k++)
        free(g.memory[k]);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Every .safetensors file below the folder, in order of names. */
static void walk(const char *folder, const struct pk_backend_api *api, struct pk_backend *backend)
{
    DIR *d = opendir(folder);
    const struct dirent *e;
    char **names = NULL;
    size_t count = 0;

    if (!d) {
        printf("FAIL %s: cannot be read\n", folder);
        failed++;
        return;
    }
    while ((e = readdir(d)) != NULL) {
        char **more;

        if (e->d_name[0] == '.')
            continue;
        more = realloc(names, (count + 1) * sizeof *names);
        if (!more || !(more[count] = strdup(e->d_name))) {
            fprintf(stderr, "golden: no memory\n");
            exit(1);
        }
        names = more;
        count++;
    }
    closedir(d);
    if (count)
        qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(names[i]);
        char path[4096];
        struct stat st;

        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            walk(path, api, backend);
        else if (len > 12 && strcmp(names[i] + len - 12, ".safetensors") == 0)
            run_file(path, api, backend);
        free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    const struct pk_backend_api *api = BACKEND;
    const char *shared = getenv("POLYD_SHARED");
    const char *const *folders = gold_bf16() ? usual_bf16 : usual;
    struct pk_backend *backend = NULL;
    struct pd_why why;
    char path[4096];

    if (argc < 2 && (!shared || !*shared)) {
        printf("skip: POLYD_SHARED is not set and no folder is named\n");
        return 77;
    }
    if (api->open(NULL, 0, 2, &backend, &why) != PD_OK) {
        printf("FAIL %s\n", why.text);
        return 1;
    }
    for (int i = 0; argc < 2 && folders[i]; i++) {
        snprintf(path, sizeof path, "%s%s", shared, folders[i]);
        walk(path, api, backend);
    }
    for (int i = 1; i < argc; i++)
        walk(argv[i], api, backend);
    api->close(backend);
#ifdef GOLDEN_ON_CUDA
    {
        size_t device, cpu;

        gpu_bridge_counts(&device, &cpu);
        printf("%zu calls ran on cuda, %zu in f64 on the CPU\n", device, cpu);
    }
#endif
    printf(NAME ": %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (failed || passed + skipped == 0)
        return 1;
    return passed ? 0 : 77;
}
