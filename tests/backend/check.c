/* rig_check for the CPU back end: every level and several numbers of threads against the reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"
#include "tests/reference/reference.h"

const char *const rig_levels[3] = {"avx512", "avx2", "portable"};

static struct {
    char key[64];
    struct pk_backend *b;
} opened[64];
static int opened_count;

struct pk_backend *rig_backend(const char *level, const char *gemm, int threads)
{
    struct pd_why why;
    char key[64];

    snprintf(key, sizeof key, "%s %s %d", level ? level : "", gemm ? gemm : "", threads);
    for (int i = 0; i < opened_count; i++)
        if (strcmp(opened[i].key, key) == 0)
            return opened[i].b;
    setenv("POLYD_CPU_LEVEL", level ? level : "", 1);
    setenv("POLYD_CPU_GEMM", gemm ? gemm : "", 1);
    assert_true(opened_count < 64);
    memcpy(opened[opened_count].key, key, sizeof key);
    if (pk_backend_cpu()->open(NULL, 0, threads, &opened[opened_count].b, &why) != PD_OK)
        opened[opened_count].b = NULL;
    return opened[opened_count++].b;
}

int rig_close_all(void **state)
{
    rig_reset(state);
    while (opened_count > 0)
        pk_backend_cpu()->close(opened[--opened_count].b);
    return 0;
}

/* Runs the case; outputs go to out[]. */
static void run(const struct rig_case *c, const struct pk_backend_api *api, struct pk_backend *b,
                struct rig_guarded *out)
{
    struct pk_view in[RIG_MAX_IN], outs[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = outs};
    struct rig_guarded work;
    struct pd_why why = {""};

    memcpy(in, c->in, sizeof in);
    for (int i = 0; i < c->n_out; i++) {
        size_t bytes = (size_t)pk_shape_count(&c->out[i]) * pk_dtype_size(c->out_dtype[i]);

        out[i] = rig_guarded_new(bytes);
        outs[i] = pk_view_dense(out[i].base + RIG_GUARD, c->out_dtype[i], c->out[i]);
        if (c->share[i]) {
            memcpy(outs[i].data, c->in[c->share[i] - 1].data, bytes);
            in[c->share[i] - 1].data = outs[i].data;
        }
    }
    if (!api->supports(b, &call))
        fail_msg("%s: not supported", c->name);
    work = rig_guarded_new(api->workspace_bytes(b, &call));
    call.workspace = work.base + RIG_GUARD;
    call.workspace_bytes = work.bytes;
    if (api->run(b, &call, 1, &why) != PD_OK)
        fail_msg("%s: %s", c->name, why.text);
    rig_guarded_check(&work, c->name, "workspace");
    free(work.base);
    for (int i = 0; i < c->n_out; i++)
        rig_guarded_check(&out[i], c->name, "output");
}

static void free_all(const struct rig_case *c, struct rig_guarded *g)
{
    for (int i = 0; i < c->n_out; i++)
        free(g[i].base);
}

void rig_check(const struct rig_case *c)
{
    const struct pk_backend_api *api = pk_backend_cpu(), *ref = reference_backend();
    static struct pk_backend *reference;
    struct rig_guarded want[RIG_MAX_OUT], first[RIG_MAX_OUT], got[RIG_MAX_OUT];
    struct pd_why why;
    char label[64];

    if (!reference)
        assert_int_equal(ref->open(NULL, 0, 1, &reference, &why), PD_OK);
    run(c, ref, reference, want);
    for (int l = 0; l < 3; l++)
        for (int gemm = 0; gemm < 2; gemm++) {
            if (gemm && c->op != PK_OP_MATMUL)
                continue;
            for (int threads = 1; threads <= 3; threads++) {
                struct pk_backend *b = rig_backend(rig_levels[l], gemm ? "own" : NULL, threads);

                if (!b) /* a level that this processor lacks */
                    continue;
                snprintf(label, sizeof label, "%s%s, %d threads", rig_levels[l], gemm ? " own" : "", threads);
                run(c, api, b, got);
                rig_compare(c, label, got, want);
                for (int o = 0; threads > 1 && o < c->n_out; o++)
                    if (memcmp(first[o].base, got[o].base, first[o].bytes + 2 * RIG_GUARD) != 0)
                        fail_msg("%s, %s, output %d: not the bits of one thread", c->name, label, o);
                if (threads == 1)
                    memcpy(first, got, sizeof first);
                else
                    free_all(c, got);
            }
            if (rig_backend(rig_levels[l], gemm ? "own" : NULL, 1))
                free_all(c, first);
        }
    free_all(c, want);
}
