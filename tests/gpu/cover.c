#include "tests/gpu/cover.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"
#include "tests/gpu/emu/note.h"

#define MOST_SEEN 65536 /* a power of two */

static const struct pk_backend_api *api;
static struct pk_backend *probe; /* a device of its own: choices that are measured and kept stay apart */
static uint64_t seen[MOST_SEEN]; /* by hash; 0: free */
static size_t seen_count;

bool cover_full(void)
{
    const char *real = getenv("POLYD_TEST_GPU");

    return getenv("POLYD_TEST_FULL") != NULL || (real && strcmp(real, "1") == 0);
}

/* ---- what was seen ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

/* Notes one thing; whether it is new. */
static bool add(uint64_t thing)
{
    size_t at;

    thing = thing ? thing : 1;
    for (at = thing & (MOST_SEEN - 1); seen[at]; at = (at + 1) & (MOST_SEEN - 1))
        if (seen[at] == thing)
            return false;
    assert_true(++seen_count < MOST_SEEN / 2);
    seen[at] = thing;
    return true;
}

struct noting {
    uint64_t op;
    bool any; /* something was new */
};

static void note_launch(void *user, const char *name, uint64_t what)
{
    struct noting *n = user;

    (void)name;
    n->any |= add(mix(mix(1, n->op), what));
}

/* One option of an op and its value. */
static void option(struct noting *n, int which, int64_t value)
{
    n->any |= add(mix(mix(mix(2, n->op), (uint64_t)which), (uint64_t)value));
}

static void attention_options(struct noting *n, const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const int first = a->packed ? 1 : 3;
    const int64_t words[] = {a->causal,
                             a->packed,
                             a->has_scale,
                             a->has_bias,
                             a->has_mask,
                             a->has_length,
                             a->has_rng && a->dropout > 0,
                             a->bias != 0,
                             a->row_power != 0,
                             a->form,
                             a->has_scale ? c->in[first].shape.dim[0] > 1 : 2,
                             a->has_mask ? c->in[first + a->has_scale + a->has_bias].shape.rank : 0};

    option(n, 0, (int64_t)a->phi << 32 | a->degree);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) { /* with each activation, and in each type */
        option(n, 100 + (int)i, words[i] << 8 | (int64_t)a->phi);
        option(n, 200 + (int)i, words[i] << 8 | (int64_t)c->in[0].dtype);
    }
}

static void options(struct noting *n, const struct pk_call *c)
{
    const struct pk_attr *a = c->attr;

    switch (c->op) {
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_BWD:
    case PK_OP_ATTENTION_STATS:
    case PK_OP_ATTENTION_STATE:
    case PK_OP_ATTENTION_JVP:
    case PK_OP_ATTENTION_BWD2:
        attention_options(n, c);
        break;
    case PK_OP_FORMULA:
    case PK_OP_FORMULA_BWD:
    case PK_OP_FORMULA_STATS: { /* every formula once in each type */
        const unsigned char *plan = (const unsigned char *)a->formula.plan;
        uint64_t h = 0;

        for (size_t i = 0; i < sizeof *a->formula.plan; i++)
            h = mix(h, plan[i]);
        option(n, 0, (int64_t)(h << 4 | c->in[0].dtype));
        attention_options(n, c);
        break;
    }
    case PK_OP_CONCAT:
        option(n, 0, a->concat.axis);
        break;
    case PK_OP_PAD:
        option(n, 0, a->pad.axis);
        break;
    case PK_OP_EXPR:
        for (int i = 0; i < a->expr->count; i++)
            option(n, 0, a->expr->code[i].op);
        break;
    case PK_OP_SUM:
    case PK_OP_MAX:
        option(n, 0, (int64_t)a->reduce.axes << 1 | a->reduce.keep);
        break;
    case PK_OP_MATMUL:
        option(n, 0, a->matmul.has_bias);
        option(n, 1, a->matmul.has_residual);
        option(n, 2, a->matmul.keeps);
        option(n, 3, (int64_t)a->matmul.slope << 8 | (int64_t)a->matmul.act);
        option(n, 4, a->matmul.sums);
        break;
    case PK_OP_DROPOUT:
        option(n, 0, a->dropout.samples);
        option(n, 1, a->dropout.rate > 0);
        break;
    case PK_OP_NORM:
    case PK_OP_NORM_BWD:
        option(n, 0, (int64_t)a->norm.kind << 8 | (int64_t)a->norm.eps_mode);
        option(n, 1, a->norm.has_beta);
        option(n, 2, a->norm.has_residual);
        option(n, 3, a->norm.again);
        break;
    case PK_OP_CROSS_ENTROPY:
    case PK_OP_CROSS_ENTROPY_BWD:
    case PK_OP_CROSS_ENTROPY_GRAD:
        option(n, 0, a->cross_entropy.smoothing > 0);
        option(n, 1, a->cross_entropy.mean);
        option(n, 2, a->cross_entropy.width > 0);
        break;
    case PK_OP_ADAMW:
    case PK_OP_MSGDW:
    case PK_OP_ACCUMULATE:
    case PK_OP_BLEND:
        option(n, 0, a->optim.weight_decay > 0);
        option(n, 1, a->optim.momentum > 0);
        option(n, 2, a->optim.dampening > 0);
        option(n, 3, a->optim.nesterov);
        option(n, 4, a->optim.l2);
        option(n, 5, a->optim.copy);
        option(n, 6, a->optim.ema > 0);
        break;
    case PK_OP_CONV2D:
    case PK_OP_CONV2D_DX:
    case PK_OP_CONV2D_DW:
        option(n, 0, a->conv.stride);
        option(n, 1, a->conv.pad);
        break;
    case PK_OP_DWCONV2D:
        option(n, 0, a->conv.flip);
        break;
    default:
        break;
    }
}

/* Extents that kernels divide work by: none, one, on either side of a tile, whole tiles, others. */
static int extent_class(int64_t n)
{
    return n < 2 ? (int)n : n % 64 == 0 ? 2 : n % 64 == 1 ? 3 : n % 64 == 63 ? 4 : 5;
}

/* ---- a trial without running anything ---- */

/* The emulation's pk_emu_note: of this program, or of the plug-in that it has opened. */
extern void pk_emu_note(pk_emu_note_fn *note, void *user) __attribute__((weak));

static void set_note(pk_emu_note_fn *note, void *user)
{
    static void (*found)(pk_emu_note_fn *, void *);

    if (!found)
        found = pk_emu_note;
    if (!found) {
        void *plugin = dlopen(getenv("POLYD_CUDA_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
        void *symbol = plugin ? dlsym(plugin, "pk_emu_note") : NULL;

        assert_non_null(symbol);
        memcpy(&found, &symbol, sizeof found);
        dlclose(plugin); /* the program keeps it open */
    }
    found(note, user);
}

static size_t bytes_of(const struct pk_view *v)
{
    int64_t last = 0;

    if (pk_shape_count(&v->shape) == 0)
        return 1;
    for (int i = 0; i < v->shape.rank; i++)
        last += (v->shape.dim[i] - 1) * v->stride[i];
    return (size_t)(last + 1) * pk_dtype_size(v->dtype);
}

/* What the call would launch. Whether it was refused: then it is for the test to say so. */
static bool try(const struct pk_call *call, enum pk_math math, const int *share, struct noting *n)
{
    struct pk_view view[64];
    struct pk_call c = *call;
    struct pd_why why;
    bool refused = true;

    assert_true(c.n_in + c.n_out <= 64);
    for (int i = 0; i < c.n_in + c.n_out; i++) {
        const int of = i >= c.n_in && share ? share[i - c.n_in] : 0;

        view[i] = i < c.n_in ? call->in[i] : call->out[i - c.n_in];
        view[i].data = of ? view[of - 1].data : api->alloc(probe, bytes_of(&view[i]));
        assert_non_null(view[i].data);
    }
    c.in = view;
    c.out = view + c.n_in;
    assert_int_equal(api->set_math(probe, math, &why), PD_OK);
    set_note(note_launch, n);
    if (api->supports(probe, &c)) {
        c.workspace_bytes = api->workspace_bytes(probe, &c);
        c.workspace = api->alloc(probe, c.workspace_bytes ? c.workspace_bytes : 1);
        assert_non_null(c.workspace);
        refused = api->run(probe, &c, 1, &why) != PD_OK;
        api->sync(probe, &why);
        api->free(probe, c.workspace);
    }
    set_note(NULL, NULL);
    for (int i = 0; i < c.n_in + c.n_out; i++)
        if (i < c.n_in || !share || !share[i - c.n_in])
            api->free(probe, view[i].data);
    return refused;
}

bool cover_wants(const struct pk_backend_api *under_test, enum pk_math math, const struct pk_call *call,
                 const int *share, const char *label)
{
    struct noting n = {.op = mix(mix(7, (uint64_t)call->op), (uint64_t)math)};
    uint64_t h = mix(3, n.op);
    struct pd_why why;
    bool refused;

    if (cover_full())
        return true;
    if (!probe) {
        api = under_test;
        assert_int_equal(api->open(NULL, 0, 1, &probe, &why), PD_OK);
    }
    for (const char *p = label; *p && (*p < '0' || *p > '9'); p++)
        h = mix(h, (uint64_t)(unsigned char)*p);
    n.any |= add(h);
    options(&n, call);
    for (int i = 0; i < call->n_in + call->n_out; i++) {
        const struct pk_view *v = i < call->n_in ? &call->in[i] : &call->out[i - call->n_in];

        option(&n, 1000 + i, (int64_t)v->dtype << 8 | pk_view_is_dense(v) << 4 | v->shape.rank);
        for (int k = 0; k < v->shape.rank && k < 2; k++)
            option(&n, 3000 + 2 * i + k, extent_class(v->shape.dim[v->shape.rank - 1 - k]));
        if (i >= call->n_in && share)
            option(&n, 2000 + i, share[i - call->n_in]);
    }
    refused = try(call, math, share, &n);
    return n.any || refused;
}

void cover_close(void)
{
    if (probe)
        probe = api->close(probe);
}
