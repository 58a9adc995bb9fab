/* The matmul peak of a device, by its own back end: products as large as fit are run in a row, and the clock
 * is looked at before and after. The numbers multiplied are random ones of both signs: zeros would draw less
 * power and so run at higher clocks. */
#include "daemon/worker/model/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"

#define LARGE 8192   /* past every effect of size */
#define SMALL 256    /* what a first look takes */
#define SLOW_US 1000 /* a first look that takes longer is the measurement */
#define ROUND_US 10000
#define RUNS_MOST 100
#define ROUNDS 3
#define CHUNK ((size_t)1 << 20) /* bytes of random numbers, repeated */

struct record { /* kept by name: plain numbers */
    double flops;
    int64_t n;
};

struct square {
    const struct pk_backend_api *api;
    struct pk_backend *b;
    struct pk_attr attr;
    struct pk_view in[2], out;
    struct pk_call call;
    void *memory[3];
};

static void square_done(struct square *s)
{
    for (int i = 0; i < 3; i++)
        if (s->memory[i])
            s->api->free(s->b, s->memory[i]);
    if (s->call.workspace)
        s->api->free(s->b, s->call.workspace);
}

static enum pd_err fill(struct square *s, void *to, size_t bytes, uint64_t *seed, struct pd_why *why)
{
    uint16_t *chunk = malloc(CHUNK);
    enum pd_err err = PD_OK;

    if (!chunk)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to measure the matmul peak");
    for (size_t i = 0; i < CHUNK / 2; i++) { /* +-(1 .. 2) */
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        chunk[i] = (uint16_t)(0x3f80u | (*seed >> 40 & 0x7fu) | (*seed >> 32 & 0x8000u));
    }
    for (size_t at = 0; at < bytes && err == PD_OK; at += CHUNK)
        err = s->api->upload(s->b, (char *)to + at, chunk, bytes - at < CHUNK ? bytes - at : CHUNK, why);
    free(chunk);
    return err;
}

/* PD_ERR_NOMEM if it does not fit the device. The caller calls square_done whatever the result. */
static enum pd_err square_init(struct square *s, const struct pk_backend_api *api, struct pk_backend *b,
                               int64_t n, struct pd_why *why)
{
    const size_t bytes = (size_t)n * (size_t)n * 2;
    uint64_t seed = 1;
    enum pd_err err = PD_OK;

    memset(s, 0, sizeof *s);
    s->api = api;
    s->b = b;
    for (int i = 0; i < 3; i++) {
        s->memory[i] = api->alloc(b, bytes);
        if (!s->memory[i])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for matrices of %lld", (long long)n);
    }
    s->in[0] = pk_view_dense(s->memory[0], PK_BF16, PK_SHAPE(n, n));
    s->in[1] = pk_view_dense(s->memory[1], PK_BF16, PK_SHAPE(n, n));
    s->out = pk_view_dense(s->memory[2], PK_BF16, PK_SHAPE(n, n));
    s->call = (struct pk_call){
        .op = PK_OP_MATMUL, .attr = &s->attr, .n_in = 2, .n_out = 1, .in = s->in, .out = &s->out};
    s->call.workspace_bytes = api->workspace_bytes(b, &s->call);
    if (s->call.workspace_bytes) {
        s->call.workspace = api->alloc(b, s->call.workspace_bytes);
        if (!s->call.workspace)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a product of %lld", (long long)n);
    }
    for (int i = 0; i < 2 && err == PD_OK; i++)
        err = fill(s, s->memory[i], bytes, &seed, why);
    return err;
}

/* `runs` products in a row. */
static enum pd_err time_runs(struct square *s, int64_t runs, int64_t *ret_us, struct pd_why *why)
{
    int64_t begin = pd_clock_mono_us();
    enum pd_err err = PD_OK;

    for (int64_t i = 0; i < runs && err == PD_OK; i++)
        err = s->api->run(s->b, &s->call, 1, why);
    if (err == PD_OK)
        err = s->api->sync(s->b, why);
    *ret_us = pd_clock_mono_us() - begin;
    if (*ret_us < 1)
        *ret_us = 1;
    return err;
}

/* Microseconds of one product; the first, in which the back end chooses, does not count. */
static enum pd_err time_square(const struct pk_backend_api *api, struct pk_backend *b, int64_t n,
                               double *ret_us, struct pd_why *why)
{
    struct square s;
    int64_t us = 0, runs;
    double best = 0;
    enum pd_err err = square_init(&s, api, b, n, why);

    if (err == PD_OK)
        err = time_runs(&s, 1, &us, why);
    if (err == PD_OK)
        err = time_runs(&s, 1, &us, why);
    runs = us ? ROUND_US / us : 0;
    runs = runs < 1 ? 1 : runs > RUNS_MOST ? RUNS_MOST : runs;
    for (int i = 0; i < (us > ROUND_US ? 1 : ROUNDS) && err == PD_OK; i++) {
        err = time_runs(&s, runs, &us, why);
        if (i == 0 || (double)us / (double)runs < best)
            best = (double)us / (double)runs;
    }
    square_done(&s);
    *ret_us = best;
    return err;
}

enum pd_err model_peak_measure(const struct pk_backend_api *api, struct pk_backend *backend,
                               const struct pk_host *host, struct model_peak *ret, struct pd_why *why)
{
    struct pk_backend_info info;
    struct record kept;
    char key[256];
    int64_t n = SMALL;
    double us = 0;
    enum pd_err err = api->info(backend, &info, why);

    memset(ret, 0, sizeof *ret);
    if (err != PD_OK || info.sm == 0)
        return err;
    snprintf(key, sizeof key, "peak 1|%.100s|driver %.24s|%.48s|bf16", info.name, info.driver, info.library);
    if (host && host->tuned_get && host->tuned_get(host->user, key, &kept, sizeof kept) == sizeof kept &&
        kept.flops > 0 && kept.n > 0) {
        *ret = (struct model_peak){kept.flops, kept.n, true};
        return PD_OK;
    }
    err = time_square(api, backend, n, &us, why);
    if (err == PD_OK && us < SLOW_US) {
        err = PD_ERR_NOMEM;
        for (n = LARGE; n > SMALL && err == PD_ERR_NOMEM; n /= 2) {
            err = time_square(api, backend, n, &us, why);
            if (err != PD_ERR_NOMEM)
                break;
        }
        if (err == PD_ERR_NOMEM) { /* what fitted at first */
            n = SMALL;
            err = time_square(api, backend, n, &us, why);
        }
    }
    if (err != PD_OK)
        return err;
    memset(&kept, 0, sizeof kept);
    kept.flops = 2 * (double)n * (double)n * (double)n / (us * 1e-6);
    kept.n = n;
    if (host && host->tuned_put)
        host->tuned_put(host->user, key, &kept, sizeof kept);
    *ret = (struct model_peak){kept.flops, kept.n, false};
    return PD_OK;
}
