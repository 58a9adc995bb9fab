#include "tests/gpu/bridge.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/backend/load.h"

#define MOST 64 /* views of one call */

struct pk_backend {
    const struct pk_backend_api *api;
    struct pk_backend *device, *cpu;
};

struct region { /* bytes of the host that a call touches, without gaps between its views */
    uintptr_t low, high;
    unsigned char *memory, *on_device;
    bool written;
};

static size_t device_calls, cpu_calls;

void gpu_bridge_counts(size_t *ret_device, size_t *ret_cpu)
{
    *ret_device = device_calls;
    *ret_cpu = cpu_calls;
}

static struct pk_backend *bridge_close(struct pk_backend *b)
{
    if (b) {
        if (b->device)
            b->api->close(b->device);
        if (b->cpu)
            pk_backend_cpu()->close(b->cpu);
        free(b);
    }
    return NULL;
}

static enum pd_err bridge_open(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                               struct pd_why *why)
{
    const char *real = getenv("POLYD_TEST_GPU"), *math = getenv("GOLDEN_MATH");
    struct pk_backend *b = calloc(1, sizeof *b);
    enum pd_err err;

    if (!b)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a bridge");
    if (!real || strcmp(real, "1") != 0)
        setenv("POLYD_CUDA_PLUGIN", EMULATED_PLUGIN, 0);
    err = pk_backend_load("cuda", PK_LOAD_RUN, &b->api, why);
    if (err == PD_OK)
        err = b->api->open(host, device, threads, &b->device, why);
    if (err == PD_OK && math && strcmp(math, "tf32") == 0)
        err = b->api->set_math(b->device, PK_MATH_TF32, why);
    if (err == PD_OK)
        err = pk_backend_cpu()->open(host, 0, threads, &b->cpu, why);
    if (err == PD_OK) {
        *ret = b;
        b = NULL; /* moved to the caller */
    }
    bridge_close(b);
    return err;
}

static bool is_f64(const struct pk_call *c)
{
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i].dtype == PK_F64)
            return true;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i].dtype == PK_F64)
            return true;
    return false;
}

static bool bridge_supports(struct pk_backend *b, const struct pk_call *c)
{
    return is_f64(c) ? pk_backend_cpu()->supports(b ? b->cpu : NULL, c) : b->api->supports(b->device, c);
}

static size_t bridge_workspace(struct pk_backend *b, const struct pk_call *c)
{
    return is_f64(c) ? pk_backend_cpu()->workspace_bytes(b->cpu, c) : b->api->workspace_bytes(b->device, c);
}

static void *bridge_alloc(struct pk_backend *b, size_t bytes)
{
    return pk_backend_cpu()->alloc(b->cpu, bytes);
}

static void bridge_free(struct pk_backend *b, void *memory)
{
    pk_backend_cpu()->free(b->cpu, memory);
}

static enum pd_err bridge_move(struct pk_backend *b, void *to, const void *from, size_t bytes,
                               struct pd_why *why)
{
    (void)b;
    (void)why;
    memcpy(to, from, bytes);
    return PD_OK;
}

static size_t span_of(const struct pk_view *v)
{
    size_t n = 1;

    for (int i = 0; i < v->shape.rank; i++) {
        if (v->shape.dim[i] == 0)
            return 0;
        n += (size_t)((v->shape.dim[i] - 1) * v->stride[i]);
    }
    return n * pk_dtype_size(v->dtype);
}

/* Adds a view's bytes; what overlaps becomes one region, so that views of one memory stay views of one
 * memory. */
static int add(struct region *r, int n, const struct pk_view *v, bool written)
{
    struct region mine = {(uintptr_t)v->data, (uintptr_t)v->data + span_of(v), NULL, NULL, written};

    if (mine.low == mine.high)
        return n;
    for (int i = 0; i < n;)
        if (r[i].low < mine.high && mine.low < r[i].high) {
            mine.low = r[i].low < mine.low ? r[i].low : mine.low;
            mine.high = r[i].high > mine.high ? r[i].high : mine.high;
            mine.written = mine.written || r[i].written;
            r[i] = r[--n];
        } else {
            i++;
        }
    r[n] = mine;
    return n + 1;
}

static void place(const struct region *r, int n, struct pk_view *v)
{
    for (int i = 0; i < n; i++)
        if ((uintptr_t)v->data >= r[i].low && (uintptr_t)v->data < r[i].high) {
            v->data = r[i].on_device + ((uintptr_t)v->data - r[i].low);
            return;
        }
    v->data = NULL;
}

static enum pd_err run_one(struct pk_backend *b, const struct pk_call *call, struct pd_why *why)
{
    struct pk_view in[MOST], out[MOST];
    struct region r[2 * MOST];
    struct pk_call c = *call;
    enum pd_err err = PD_OK;
    int n = 0;

    if (call->n_in > MOST || call->n_out > MOST)
        return pd_fail(why, PD_ERR_LIMIT, "a bridge carries %d views at most", MOST);
    for (int i = 0; i < call->n_in; i++)
        n = add(r, n, &call->in[i], false);
    for (int i = 0; i < call->n_out; i++)
        n = add(r, n, &call->out[i], true);
    for (int i = 0; i < n && err == PD_OK; i++) {
        size_t bytes = r[i].high - r[i].low;

        r[i].memory = b->api->alloc(b->device, bytes + r[i].low % 256);
        if (!r[i].memory) {
            err = pd_fail(why, PD_ERR_NOMEM, "no memory on the device");
            break;
        }
        r[i].on_device = r[i].memory + r[i].low % 256; /* as well aligned as on the host, no better */
        err = b->api->upload(b->device, r[i].on_device, (const void *)r[i].low, bytes, why);
    }
    c.workspace = b->api->alloc(b->device, call->workspace_bytes);
    c.in = in;
    c.out = out;
    for (int i = 0; i < call->n_in; i++) {
        in[i] = call->in[i];
        place(r, n, &in[i]);
    }
    for (int i = 0; i < call->n_out; i++) {
        out[i] = call->out[i];
        place(r, n, &out[i]);
    }
    if (err == PD_OK)
        err = b->api->run(b->device, &c, 1, why);
    if (err == PD_OK)
        err = b->api->sync(b->device, why);
    for (int i = 0; i < n && err == PD_OK; i++)
        if (r[i].written)
            err = b->api->download(b->device, (void *)r[i].low, r[i].on_device, r[i].high - r[i].low, why);
    for (int i = 0; i < n; i++)
        b->api->free(b->device, r[i].memory);
    b->api->free(b->device, c.workspace);
    return err;
}

static enum pd_err bridge_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                              struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < count && err == PD_OK; i++)
        if (is_f64(&calls[i])) {
            cpu_calls++;
            err = pk_backend_cpu()->run(b->cpu, &calls[i], 1, why);
        } else {
            device_calls++;
            err = run_one(b, &calls[i], why);
        }
    return err;
}

static enum pd_err bridge_sync(struct pk_backend *b, struct pd_why *why)
{
    (void)b;
    (void)why;
    return PD_OK;
}

const struct pk_backend_api *gpu_bridge(void)
{
    static const struct pk_backend_api api = {
        .abi = PK_BACKEND_ABI,
        .name = "cuda",
        .open = bridge_open,
        .close = bridge_close,
        .supports = bridge_supports,
        .workspace_bytes = bridge_workspace,
        .alloc = bridge_alloc,
        .free = bridge_free,
        .upload = bridge_move,
        .download = bridge_move,
        .run = bridge_run,
        .sync = bridge_sync,
        .host_memory = true,
    };

    return &api;
}
