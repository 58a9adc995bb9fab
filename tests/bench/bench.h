/* What the benchmarks of the engine share: clocks, order statistics, a profile by op. */
#pragma once

#include <stddef.h>
#include <time.h>

#include "kernels/base/err.h"
#include "kernels/graph/graph.h"

double bench_seconds(clockid_t clock);
/* Ascending. */
void bench_sort(double *times, size_t count);
/* Ends the program with the reason unless err is PD_OK. */
void bench_check(enum pd_err err, const struct pd_why *why);
/* A pk_host.log. */
void bench_log(void *user, int level, const char *text);

/* Memory aligned as tensors need; never NULL (the program ends). free() it. */
void *bench_memory(size_t bytes);
/* A dense f32 tensor of numbers in -0.5 .. 0.5, the same every time, in bench_memory. */
struct pk_view bench_numbers(struct pk_shape shape);

/* Opens a back end: "cpu", or a plug-in by its name. Ends the program with the reason if it cannot. As in a job, the back end
 * measures its choices, the algorithms of products for one, during the first steps; they last until the program ends. */
void bench_open(const char *device, int threads, const struct pk_backend_api **ret_api,
                struct pk_backend **ret_backend);
/* How many choices it has recorded. */
size_t bench_choices(void);
/* Bytes in use on the device, 0 where there is none. What others use is counted, so take differences. */
double bench_device_bytes(const struct pk_backend_api *api, struct pk_backend *backend);

/* Fills memory of a back end with numbers near N(0, 1), the same every time. dtype f32 or bf16. */
void bench_noise(const struct pk_backend_api *api, struct pk_backend *backend, void *to, enum pk_dtype dtype,
                 size_t bytes);

/* Memory of a back end for the leaves of several graphs: one name is one memory. Zeroed. */
#define BENCH_LEAVES 2048
struct bench_leaves {
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    struct {
        char name[96];
        enum pk_dtype dtype;
        void *memory;
        size_t bytes;
    } leaf[BENCH_LEAVES];
    int count;
};
/* Binds every input and state of the graph; parameters are bound elsewhere (model_store_bind). */
void bench_leaves_bind(struct bench_leaves *l, struct pk_exec *exec, const struct pk_graph *graph);
/* Memory of a leaf, NULL if no graph bound so far has it; and host numbers into it. */
void *bench_leaves_find(const struct bench_leaves *l, const char *name);
/* Numbers near N(0, 1) into every leaf whose name begins so. */
void bench_leaves_noise(const struct bench_leaves *l, const char *prefix);
void bench_leaves_put(struct bench_leaves *l, const char *name, const void *from, size_t bytes);
void bench_leaves_done(struct bench_leaves *l);

#define BENCH_PROFILE_ROWS 400

/* CPU time of the process by op and shape of its output: robust on a shared machine. */
struct bench_profile {
    struct {
        char name[160];
        double time;
        int count;
    } row[BENCH_PROFILE_ROWS];
    int rows;
    double last;
};

/* From now on every node that `exec` runs is counted; `p` must outlive the runs. */
void bench_profile_start(struct bench_profile *p, struct pk_exec *exec);
/* Before each run: what happened since the last node does not count. */
void bench_profile_mark(struct bench_profile *p);
/* Rows of at least 0.3 % of the time, per run. */
void bench_profile_print(struct bench_profile *p, int runs);
