/* EXPR: a postfix program, one kernel for a whole chain.
 *
 * Bytes: every input once and the output once; values between the instructions stay on the chip.
 *
 * Before the launch the program is rewritten into steps of a machine with one accumulator and numbered slots
 * (inputs and saved intermediate values), and passed in the kernel's parameters, which are constant
 * memory: the switch over its steps is uniform for all threads. A thread takes two packs of four elements, a
 * block's width of packs apart, loads those of the first three inputs before it uses any, and stores
 * them into its own slots in shared memory, where a step finds its operand by number; the accumulator is in
 * registers. A step then costs about as much as its arithmetic, and chains of a dozen steps
 * still run at memory bandwidth. Slots are private to their thread: there is no barrier. */
#include "kernels/backend/cuda/view.cuh"

#define PACKS 2       /* of a thread */
#define FIRST 3       /* inputs loaded before any is used */
#define STEPS_MAX 100 /* no program of PK_EXPR_MAX instructions needs more */
#define SLOTS_MAX (PK_EXPR_INPUTS + PK_EXPR_STACK + 1)
#define SHARED_MOST (48 * 1024)

/* Beyond the instructions of enum pk_ex. */
enum { STEP_LOAD = PK_EX_COUNT, STEP_SAVE };
enum operand { OPERAND_NONE, OPERAND_SLOT, OPERAND_NUMBER };

namespace
{
/* acc <- acc op operand (reversed: operand op acc); SELECT: acc != 0 ? slot `arg` : slot `slot`. */
struct step {
    uint8_t op, slot, arg;
    uint8_t operand : 4, reversed : 4;
    float number;
};
} // namespace

enum how {
    HOW_SINGLE, /* one number for all elements */
    HOW_PACK,   /* packs lie dense and aligned */
    HOW_REPEAT, /* each pack is one number */
    HOW_EACH,   /* every element by itself */
};

namespace
{
struct input {
    const void *data;
    uint8_t dtype, how;
    struct cuda_walk w;
};

struct job {
    int64_t count;
    void *out;
    bool bf16, packs;
    int32_t n_in, n_step;
    int32_t work; /* a slot for element-wise steps */
    struct step step[STEPS_MAX];
    struct input in[PK_EXPR_INPUTS];
};
} // namespace
static_assert(sizeof(struct job) <= 4096, "kernel parameters");

/* ---- the machine's program ---- */

/* What an entry of the postfix stack is. */
enum kind { KIND_ACC, KIND_SLOT, KIND_NUMBER };
namespace
{
struct value {
    enum kind kind;
    int slot;
    float number;
};

struct writer {
    struct job *j;
    struct value stack[PK_EXPR_STACK];
    int depth, slots;
    int used[SLOTS_MAX]; /* how many entries stand for a slot */
    bool full;
};
} // namespace

static void emit(struct writer *w, int op, enum operand operand, int slot, float number, bool reversed,
                 int arg)
{
    struct step *s;

    if (w->j->n_step == STEPS_MAX) {
        w->full = true;
        return;
    }
    s = &w->j->step[w->j->n_step++];
    s->op = (uint8_t)op;
    s->slot = (uint8_t)slot;
    s->arg = (uint8_t)arg;
    s->operand = operand;
    s->reversed = reversed;
    s->number = number;
}

/* The accumulator's value into a slot of its own; all entries that stand for it follow. */
static void spill(struct writer *w)
{
    int slot = -1;

    for (int i = 0; i < w->depth; i++) {
        if (w->stack[i].kind != KIND_ACC)
            continue;
        if (slot < 0) {
            for (slot = w->j->n_in; slot < SLOTS_MAX && w->used[slot]; slot++)
                ;
            if (slot == SLOTS_MAX) {
                w->full = true;
                return;
            }
            if (slot >= w->slots)
                w->slots = slot + 1;
            emit(w, STEP_SAVE, OPERAND_NONE, slot, 0, false, 0);
        }
        w->stack[i].kind = KIND_SLOT;
        w->stack[i].slot = slot;
        w->used[slot]++;
    }
}

static void push(struct writer *w, struct value v)
{
    if (v.kind == KIND_SLOT)
        w->used[v.slot]++;
    w->stack[w->depth++] = v;
}

static struct value pop(struct writer *w)
{
    struct value v = w->stack[--w->depth];

    if (v.kind == KIND_SLOT)
        w->used[v.slot]--;
    return v;
}

static void push_acc(struct writer *w)
{
    struct value v = {KIND_ACC, 0, 0};

    push(w, v);
}

/* v into the accumulator. Other entries that stand for what is in it are saved first; v keeps its slot. */
static void load(struct writer *w, struct value v)
{
    if (v.kind == KIND_SLOT)
        w->used[v.slot]++;
    spill(w);
    if (v.kind == KIND_SLOT)
        w->used[v.slot]--;
    if (v.kind != KIND_ACC)
        emit(w, STEP_LOAD, v.kind == KIND_SLOT ? OPERAND_SLOT : OPERAND_NUMBER, v.slot, v.number, false, 0);
}

/* The entry `below` the top as a slot, where it stays. */
static int as_slot(struct writer *w, int below)
{
    struct value *v = &w->stack[w->depth - 1 - below];

    if (v->kind == KIND_NUMBER) {
        load(w, *v);
        v->kind = KIND_ACC;
    }
    if (v->kind == KIND_ACC)
        spill(w);
    return v->slot;
}

static void binary(struct writer *w, enum pk_ex op)
{
    struct value b = pop(w), a = pop(w), operand = b;
    bool reversed = false;

    if (a.kind == KIND_ACC && b.kind == KIND_ACC) { /* x op x: one of them out of a slot */
        push(w, a);
        push(w, b);
        spill(w);
        operand = pop(w);
        pop(w); /* the accumulator still holds it */
    } else if (b.kind == KIND_ACC) {
        operand = a;
        reversed = true;
    }
    if (operand.kind == KIND_SLOT)
        w->used[operand.slot]++;
    if (a.kind == KIND_ACC || reversed)
        spill(w); /* entries further down may stand for the accumulator as well */
    else
        load(w, a);
    if (operand.kind == KIND_SLOT)
        w->used[operand.slot]--;
    emit(w, op, operand.kind == KIND_SLOT ? OPERAND_SLOT : OPERAND_NUMBER, operand.slot, operand.number,
         reversed, 0);
    push_acc(w);
}

static void instruction(struct writer *w, enum pk_ex op, int arg, float number)
{
    struct value v = {KIND_NUMBER, arg, number};

    switch (op) {
    case PK_EX_IN:
        v.kind = KIND_SLOT;
        push(w, v);
        break;
    case PK_EX_CONST:
        push(w, v);
        break;
    case PK_EX_DUP:
        push(w, w->stack[w->depth - 1 - arg]);
        break;
    case PK_EX_ADD:
    case PK_EX_SUB:
    case PK_EX_MUL:
    case PK_EX_DIV:
    case PK_EX_MAX:
    case PK_EX_MIN:
    case PK_EX_GT:
    case PK_EX_EQ:
        binary(w, op);
        break;
    case PK_EX_SELECT: { /* a, b, c: c != 0 ? a : b */
        const int yes = as_slot(w, 2), no = as_slot(w, 1);

        v = pop(w);
        load(w, v);
        pop(w);
        pop(w);
        emit(w, op, OPERAND_SLOT, no, 0, false, yes);
        push_acc(w);
        break;
    }
    default: /* one operand */
        v = pop(w);
        load(w, v);
        emit(w, op, OPERAND_NONE, 0, 0, false, arg);
        push_acc(w);
    }
}

static bool is_seldom(int op)
{
    return op == PK_EX_LOG || op == PK_EX_SIN || op == PK_EX_COS || op == PK_EX_ERF || op == PK_EX_TANH ||
           op == PK_EX_POW;
}

/* Slots that the machine needs; 0 if the program does not fit. */
static int translate(struct job *j, const struct pk_expr *e)
{
    struct writer w;
    struct value top;

    memset(&w, 0, sizeof w);
    w.j = j;
    w.slots = j->n_in;
    for (int i = 0; i < j->n_in; i++)
        w.used[i] = 1; /* never given away */
    for (int i = 0; i < e->count; i++)
        instruction(&w, (enum pk_ex)e->code[i].op, e->code[i].arg, (float)e->code[i].imm);
    top = pop(&w);
    load(&w, top);
    j->work = w.slots;
    for (int i = 0; i < j->n_step; i++)
        if (is_seldom(j->step[i].op)) {
            w.slots++;
            break;
        }
    return w.full ? 0 : w.slots < 1 ? 1 : w.slots;
}

/* ---- the machine ---- */

#define EACH(body)                                                                                           \
    do {                                                                                                     \
        _Pragma("unroll") for (int p = 0; p < PACKS; p++) _Pragma("unroll") for (int i = 0; i < 4; i++)      \
        {                                                                                                    \
            const float a = acc[p][i], b = operand[p][i];                                                    \
                                                                                                             \
            (void)a;                                                                                         \
            (void)b;                                                                                         \
            acc[p][i] = (body);                                                                              \
        }                                                                                                    \
    } while (0)

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Long and rare steps, in a loop over the elements so that the code has one copy. */
__device__ __forceinline__ float seldom(int op, int arg, float x)
{
    float r = 1;

    switch (op) {
    case PK_EX_LOG:
        return logf(x);
    case PK_EX_SIN:
        return sinf(x);
    case PK_EX_COS:
        return cosf(x);
    case PK_EX_ERF:
        return erff(x);
    case PK_EX_TANH:
        return tanhf(x);
    default: /* POW */
        for (; arg > 0; arg /= 2) {
            if (arg % 2)
                r *= x;
            x *= x;
        }
        return r;
    }
}

__device__ __forceinline__ float normal_cdf(float x)
{
    return 0.5f * (1.0f + erff(x * 0.70710678118654752440f));
}

/* 2 u of gelu_tanh = x (1 + tanh u) / 2 = x sigmoid(2 u), and 2 u' */
__device__ __forceinline__ float tanh_argument(float x)
{
    return x * (1.5957691216057308f + 0.07135481282781554f * x * x);
}
__device__ __forceinline__ float tanh_slope(float x)
{
    return 1.5957691216057308f + 0.21406443848344663f * x * x;
}

__device__ __forceinline__ float gelu_tanh_slope(float x)
{
    const float y = sigmoid(tanh_argument(x));

    return y + x * y * (1.0f - y) * tanh_slope(x);
}

/* Slots of this thread: pack p of slot s is mine[(s PACKS + p) width]. */
__device__ __forceinline__ void run(const struct step s, int work, float (&acc)[PACKS][4], cuda_quad *mine,
                                    int width)
{
    float operand[PACKS][4];

#pragma unroll
    for (int p = 0; p < PACKS; p++)
        if (s.operand == OPERAND_SLOT)
            pk_load4(mine + (s.slot * PACKS + p) * width, false, 0, operand[p]);
        else
            for (int i = 0; i < 4; i++)
                operand[p][i] = s.number;
    if (s.reversed)
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float t = acc[p][i];

                acc[p][i] = operand[p][i];
                operand[p][i] = t;
            }
    switch (s.op) {
    case STEP_LOAD:
        EACH(b);
        break;
    case STEP_SAVE:
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            pk_store4(mine + (s.slot * PACKS + p) * width, false, 0, acc[p]);
        break;
    case PK_EX_ADD:
        EACH(a + b);
        break;
    case PK_EX_SUB:
        EACH(a - b);
        break;
    case PK_EX_MUL:
        EACH(a * b);
        break;
    case PK_EX_DIV:
        EACH(a / b);
        break;
    /* A NaN in either operand propagates. */
    case PK_EX_MAX:
        EACH(a > b || a != a ? a : b);
        break;
    case PK_EX_MIN:
        EACH(a < b || a != a ? a : b);
        break;
    case PK_EX_GT:
        EACH(a > b ? 1.0f : 0.0f);
        break;
    case PK_EX_EQ:
        EACH(a == b ? 1.0f : 0.0f);
        break;
    case PK_EX_SELECT:
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            float yes[4];

            pk_load4(mine + (s.arg * PACKS + p) * width, false, 0, yes);
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[p][i] = acc[p][i] != 0 ? yes[i] : operand[p][i];
        }
        break;
    case PK_EX_NEG:
        EACH(-a);
        break;
    case PK_EX_ABS:
        EACH(fabsf(a));
        break;
    case PK_EX_EXP:
        EACH(expf(a));
        break;
    case PK_EX_SQRT:
        EACH(sqrtf(a));
        break;
    case PK_EX_RSQRT:
        EACH(1.0f / sqrtf(a));
        break;
    case PK_EX_RECIP:
        EACH(1.0f / a);
        break;
    case PK_EX_SIGMOID:
        EACH(sigmoid(a));
        break;
    case PK_EX_GELU:
        EACH(a * normal_cdf(a));
        break;
    case PK_EX_DGELU:
        EACH(normal_cdf(a) + a * 0.39894228040143267794f * expf(-0.5f * a * a));
        break;
    case PK_EX_GELU_TANH:
        EACH(a * sigmoid(tanh_argument(a)));
        break;
    case PK_EX_DGELU_TANH:
        EACH(gelu_tanh_slope(a));
        break;
    case PK_EX_FINITE:
        EACH(a - a == 0 ? 1.0f : 0.0f);
        break;
    default:
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            pk_store4(mine + (work * PACKS + p) * width, false, 0, acc[p]);
#pragma unroll 1
        for (int e = 0; e < 4 * PACKS; e++) {
            float *x = (float *)(mine + (work * PACKS + e / 4) * width) + e % 4;

            *x = seldom(s.op, s.arg, *x);
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            pk_load4(mine + (work * PACKS + p) * width, false, 0, acc[p]);
    }
}

/* What a pack of an input is made of, before it is looked at. */
__device__ __forceinline__ void ask(const struct input &in, int64_t at, cuda_quad *ret)
{
    const int64_t offset = pk_walk_at(in.w, at);

    if (in.dtype == PK_F32) {
        *ret = *(const cuda_quad *)((const float *)in.data + offset);
    } else {
        const cuda_half h = *(const cuda_half *)((const uint16_t *)in.data + offset);

        ret->w[0] = h.w[0];
        ret->w[1] = h.w[1];
    }
}
__device__ __forceinline__ void answer(const struct input &in, const cuda_quad &q, float v[4])
{
    if (in.dtype == PK_F32) {
        for (int i = 0; i < 4; i++)
            v[i] = pk_bits_float(q.w[i]);
    } else {
        v[0] = pk_bits_float(q.w[0] << 16);
        v[1] = pk_bits_float(q.w[0] & 0xffff0000u);
        v[2] = pk_bits_float(q.w[1] << 16);
        v[3] = pk_bits_float(q.w[1] & 0xffff0000u);
    }
}

/* A pack of any input, n of its elements being there. */
__device__ __forceinline__ void fetch(const struct input &in, int64_t at, int64_t n, float v[4])
{
    if (in.how == HOW_SINGLE || in.how == HOW_REPEAT) {
        v[0] = v[1] = v[2] = v[3] =
            pk_element(in.data, in.dtype, in.how == HOW_SINGLE ? 0 : pk_walk_at(in.w, at));
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = i < n ? pk_element(in.data, in.dtype, pk_walk_at(in.w, at + i)) : 0;
}

static __global__ void __launch_bounds__(256, 4) expr_kernel(const struct job j)
{
    PK_SHARED(cuda_quad, shared);
    cuda_quad *const mine = shared + threadIdx.x;
    const int width = (int)blockDim.x;
    const int64_t first = ((int64_t)blockIdx.x * PACKS * width + threadIdx.x) * 4;
    float acc[PACKS][4];
    cuda_quad raw[FIRST][PACKS];

#pragma unroll
    for (int k = 0; k < FIRST; k++)
        if (k < j.n_in && j.in[k].how == HOW_PACK)
#pragma unroll
            for (int p = 0; p < PACKS; p++)
                if (first + 4 * p * width + 4 <= j.count)
                    ask(j.in[k], first + 4 * p * width, &raw[k][p]);
#pragma unroll
    for (int k = 0; k < FIRST; k++)
        if (k < j.n_in)
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                const int64_t at = first + 4 * p * width;
                float v[4] = {0, 0, 0, 0};

                if (j.in[k].how == HOW_PACK && at + 4 <= j.count)
                    answer(j.in[k], raw[k][p], v);
                else if (at < j.count)
                    fetch(j.in[k], at, j.count - at, v);
                pk_store4(mine + (k * PACKS + p) * width, false, 0, v);
            }
    for (int k = FIRST; k < j.n_in; k++)
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const int64_t at = first + 4 * p * width;
            float v[4] = {0, 0, 0, 0};

            if (j.in[k].how == HOW_PACK && at + 4 <= j.count) {
                cuda_quad q;

                ask(j.in[k], at, &q);
                answer(j.in[k], q, v);
            } else if (at < j.count) {
                fetch(j.in[k], at, j.count - at, v);
            }
            pk_store4(mine + (k * PACKS + p) * width, false, 0, v);
        }
#pragma unroll
    for (int p = 0; p < PACKS; p++)
        for (int i = 0; i < 4; i++)
            acc[p][i] = 0;
    for (int i = 0; i < j.n_step; i++)
        run(j.step[i], j.work, acc, mine, width);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int64_t at = first + 4 * p * width;

        if (at < j.count)
            pk_row_store(j.out, j.bf16, j.packs, at, 0, (int)(j.count - at < 4 ? j.count - at : 4), acc[p]);
    }
}

enum pd_err cuda_expr(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    struct job j;
    int slots, threads = 256;
    size_t shared;

    memset(&j, 0, sizeof j);
    j.count = cuda_count(&o->shape);
    if (j.count == 0)
        return PD_OK;
    j.out = o->data;
    j.bf16 = o->dtype == PK_BF16;
    j.packs = cuda_aligned(o->data, cuda_pack_bytes(o->dtype));
    j.n_in = c->n_in;
    for (int k = 0; k < c->n_in; k++) {
        const struct pk_view *v = &c->in[k];
        const int shift = o->shape.rank - v->shape.rank;
        struct input *in = &j.in[k];
        struct cuda_pair w;
        bool single = true;

        cuda_walk_open(&w);
        for (int i = 0; i < o->shape.rank; i++) {
            const int64_t stride = i < shift || v->shape.dim[i - shift] == 1 ? 0 : v->stride[i - shift];

            cuda_walk_add(&w, o->shape.dim[i], stride, stride);
            single = single && (stride == 0 || o->shape.dim[i] == 1);
        }
        in->data = v->data;
        in->dtype = (uint8_t)v->dtype;
        in->how = HOW_EACH;
        if (single)
            in->how = HOW_SINGLE;
        else if (w.stride[w.rank - 1] == 0 && w.dim[w.rank - 1] % 4 == 0)
            in->how = HOW_REPEAT;
        else if (cuda_float(v->dtype) && cuda_aligned(v->data, cuda_pack_bytes(v->dtype)) &&
                 ((w.rank == 1 && w.stride[0] == 1) || cuda_walk_unit(&w, 4)))
            in->how = HOW_PACK;
        cuda_walk_close(&w, 1);
        in->w = w;
    }
    slots = translate(&j, c->attr->expr);
    if (slots == 0)
        return pd_fail(why, PD_ERR_INTERNAL, "an elementwise program of %d instructions needs more slots than the kernel has",
                       (int)c->attr->expr->count);
    while (threads > 32 && (size_t)slots * PACKS * threads * sizeof(cuda_quad) > SHARED_MOST)
        threads /= 2;
    shared = (size_t)slots * PACKS * threads * sizeof(cuda_quad);
    PK_LAUNCH(expr_kernel, (unsigned)cuda_div_up(j.count, (int64_t)4 * PACKS * threads), threads, shared,
              b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
