/* EXPR: a postfix program, run block by block.
 *
 * A block of BLOCK elements stays in the first-level cache; each instruction is one vector loop over it.
 * A dense input is read in place, the last instruction writes directly to the output, and constants
 * stay scalars, so that the common short programs (add, gelu, dgelu times a gradient) are single passes.
 * Blocks of bf16 are converted on the way in and on the way out: the program itself runs in f32. */
#include "kernels/backend/cpu/matmul_half.h"
#include "kernels/backend/cpu/ops.h"

#define BLOCK 1024
#define TASK (16 * BLOCK)
#define PAIRS 4

/* A value on the stack: memory, or one number for all elements. */
struct value {
    const real *p; /* NULL: constant */
    real constant;
};

struct input {
    const char *data;
    enum pk_dtype dtype;
    int rank; /* of the axes after merging */
    int64_t dim[PK_MAX_RANK], stride[PK_MAX_RANK];
    bool dense, constant;
};

struct job {
    const struct pk_expr *e;
    int64_t count;
    int n_in;
    struct input in[PK_EXPR_INPUTS];
    void *out; /* real, or bf16 if `half` */
    bool half;
    /* sin and cos of one value: k + 1 where the first of them stands, -(k + 1) where the other does */
    int8_t pair[PK_EXPR_MAX];
};

#define UNARY_LOOP(f)                                                                                        \
    do {                                                                                                     \
        int64_t i_ = 0;                                                                                      \
        for (; i_ + W <= n; i_ += W) {                                                                       \
            vec a = vld(x + i_);                                                                             \
            vst(y + i_, f);                                                                                  \
        }                                                                                                    \
        if (i_ < n) {                                                                                        \
            vec a = vldn(x + i_, n - i_);                                                                    \
            vstn(y + i_, f, n - i_);                                                                         \
        }                                                                                                    \
    } while (0)

#define POWER_LOOP(k)                                                                                        \
    case k:                                                                                                  \
        UNARY_LOOP(vpow(a, k));                                                                              \
        break

void PK_FN(unary)(enum pk_ex op, int arg, int64_t n, const void *x_, void *y_)
{
    const real *x = x_;
    real *y = y_;

    switch (op) {
    case PK_EX_NEG:
        UNARY_LOOP(-a);
        break;
    case PK_EX_ABS:
        UNARY_LOOP(vabs(a));
        break;
    case PK_EX_EXP:
        UNARY_LOOP(vexp(a));
        break;
    case PK_EX_LOG:
        UNARY_LOOP(vlog(a));
        break;
    case PK_EX_SQRT:
        UNARY_LOOP(vsqrt(a));
        break;
    case PK_EX_RSQRT:
        UNARY_LOOP(1 / vsqrt(a));
        break;
    case PK_EX_RECIP:
        UNARY_LOOP(1 / a);
        break;
    case PK_EX_TANH:
        UNARY_LOOP(vtanh(a));
        break;
    case PK_EX_ERF:
        UNARY_LOOP(verf(a));
        break;
    case PK_EX_SIGMOID:
        UNARY_LOOP(vsigmoid(a));
        break;
    case PK_EX_SIN:
        UNARY_LOOP(vsin(a));
        break;
    case PK_EX_COS:
        UNARY_LOOP(vcos(a));
        break;
    case PK_EX_POW:
        switch (arg) {
            POWER_LOOP(0);
            POWER_LOOP(1);
            POWER_LOOP(2);
            POWER_LOOP(3);
            POWER_LOOP(4);
            POWER_LOOP(5);
        default:
            UNARY_LOOP(vpow(a, arg));
        }
        break;
    case PK_EX_GELU:
        UNARY_LOOP(vgelu(a));
        break;
    case PK_EX_DGELU:
        UNARY_LOOP(vdgelu(a));
        break;
    case PK_EX_GELU_TANH:
        UNARY_LOOP(vgelu_tanh(a));
        break;
    case PK_EX_DGELU_TANH:
        UNARY_LOOP(vdgelu_tanh(a));
        break;
    case PK_EX_FINITE:
        UNARY_LOOP(vsel(a - a == 0, vset(1), vzero()));
        break;
    default:
        break;
    }
}

#define BINARY_LOOP(f)                                                                                       \
    do {                                                                                                     \
        if (!a_.p) {                                                                                         \
            const vec a = vset(a_.constant);                                                                 \
            for (i_ = 0; i_ + W <= n; i_ += W) {                                                             \
                vec b = vld(b_.p + i_);                                                                      \
                vst(y + i_, f);                                                                              \
            }                                                                                                \
            if (i_ < n) {                                                                                    \
                vec b = vldn(b_.p + i_, n - i_);                                                             \
                vstn(y + i_, f, n - i_);                                                                     \
            }                                                                                                \
        } else if (!b_.p) {                                                                                  \
            const vec b = vset(b_.constant);                                                                 \
            for (i_ = 0; i_ + W <= n; i_ += W) {                                                             \
                vec a = vld(a_.p + i_);                                                                      \
                vst(y + i_, f);                                                                              \
            }                                                                                                \
            if (i_ < n) {                                                                                    \
                vec a = vldn(a_.p + i_, n - i_);                                                             \
                vstn(y + i_, f, n - i_);                                                                     \
            }                                                                                                \
        } else {                                                                                             \
            for (i_ = 0; i_ + W <= n; i_ += W) {                                                             \
                vec a = vld(a_.p + i_), b = vld(b_.p + i_);                                                  \
                vst(y + i_, f);                                                                              \
            }                                                                                                \
            if (i_ < n) {                                                                                    \
                vec a = vldn(a_.p + i_, n - i_), b = vldn(b_.p + i_, n - i_);                                \
                vstn(y + i_, f, n - i_);                                                                     \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

static void binary(enum pk_ex op, int64_t n, struct value a_, struct value b_, real *y)
{
    const vec one = vset(1);
    int64_t i_;

    switch (op) {
    case PK_EX_ADD:
        BINARY_LOOP(a + b);
        break;
    case PK_EX_SUB:
        BINARY_LOOP(a - b);
        break;
    case PK_EX_MUL:
        BINARY_LOOP(a * b);
        break;
    case PK_EX_DIV:
        BINARY_LOOP(a / b);
        break;
    /* A NaN in either operand propagates: a diverged run must not look healthy. */
    case PK_EX_MAX:
        BINARY_LOOP(vsel((a > b) | (a != a), a, b));
        break;
    case PK_EX_MIN:
        BINARY_LOOP(vsel((a < b) | (a != a), a, b));
        break;
    case PK_EX_GT:
        BINARY_LOOP(vsel(a > b, one, vzero()));
        break;
    case PK_EX_EQ:
        BINARY_LOOP(vsel(a == b, one, vzero()));
        break;
    default:
        break;
    }
}

/* a, b, c: a where c != 0, else b. */
static void select_block(int64_t n, const struct value *v, real *y)
{
    int64_t i = 0;

    for (; i + W <= n; i += W) {
        vec a = v[0].p ? vld(v[0].p + i) : vset(v[0].constant),
            b = v[1].p ? vld(v[1].p + i) : vset(v[1].constant);
        vec c = v[2].p ? vld(v[2].p + i) : vset(v[2].constant);

        vst(y + i, vsel(c != 0, a, b));
    }
    for (; i < n; i++)
        y[i] = (v[2].p ? v[2].p[i] : v[2].constant) != 0 ? v[0].p ? v[0].p[i] : v[0].constant
               : v[1].p                                  ? v[1].p[i]
                                                         : v[1].constant;
}

static void splat(real *y, int64_t n, real v)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = v;
}

/* n numbers of bf16, next to each other. Only the copy for f32 is ever given any. */
static void load_half(int64_t n, const void *from, real *to)
{
#if CPU_F64
    (void)n, (void)from, (void)to;
#else
    PK_FN(from_half)(n, from, to);
#endif
}

static void store_half(int64_t n, const real *from, void *to)
{
#if CPU_F64
    (void)n, (void)from, (void)to;
#else
    PK_FN(to_half)(n, from, to);
#endif
}

static real element(const struct input *in, int64_t off)
{
    real wide = 0;

    switch (in->dtype) {
    case PK_I32:
        return (real)((const int32_t *)(const void *)in->data)[off];
    case PK_U8:
        return (real)((const uint8_t *)in->data)[off];
    case PK_BF16:
        load_half(1, (const uint16_t *)(const void *)in->data + off, &wide);
        return wide;
    default:
        return ((const real *)(const void *)in->data)[off];
    }
}

/* Elements at .. at+n-1 of a strided input, as dense numbers. */
static void fetch(const struct input *in, int64_t at, int64_t n, real *to)
{
    int64_t index[PK_MAX_RANK], rest = at, off = 0;
    int last = in->rank - 1;

    for (int i = last; i >= 0; i--) {
        index[i] = rest % in->dim[i];
        rest /= in->dim[i];
        off += index[i] * in->stride[i];
    }
    while (n > 0) {
        int64_t run = cpu_min(n, in->dim[last] - index[last]), stride = in->stride[last];

        if (in->dtype == REAL_DTYPE && stride == 1)
            memcpy(to, (const real *)(const void *)in->data + off, (size_t)run * sizeof(real));
        else if (in->dtype == PK_BF16 && stride == 1)
            load_half(run, (const uint16_t *)(const void *)in->data + off, to);
        else if (stride == 0)
            splat(to, run, element(in, off));
        else if (in->dtype == REAL_DTYPE)
            for (int64_t i = 0; i < run; i++)
                to[i] = ((const real *)(const void *)in->data)[off + i * stride];
        else
            for (int64_t i = 0; i < run; i++)
                to[i] = element(in, off + i * stride);
        to += run;
        n -= run;
        off += run * stride;
        index[last] += run;
        for (int i = last; i > 0 && index[i] == in->dim[i]; i--) {
            index[i] = 0;
            off += in->stride[i - 1] - in->dim[i] * in->stride[i];
            index[i - 1]++;
        }
    }
}

static int operands(enum pk_ex op)
{
    switch (op) {
    case PK_EX_IN:
    case PK_EX_CONST:
    case PK_EX_DUP:
        return 0;
    case PK_EX_ADD:
    case PK_EX_SUB:
    case PK_EX_MUL:
    case PK_EX_DIV:
    case PK_EX_MAX:
    case PK_EX_MIN:
    case PK_EX_GT:
    case PK_EX_EQ:
        return 2;
    case PK_EX_SELECT:
        return 3;
    default:
        return 1;
    }
}

/* sin and cos of one value share the reduction of the argument: the first instruction computes both, and the other
 * takes its result from there. */
static void find_pairs(struct job *j)
{
    const struct pk_expr *e = j->e;
    int stack[PK_EXPR_STACK], of[PK_EXPR_MAX]; /* numbers of values: inputs first, then instructions */
    int sp = 0, pairs = 0;

    for (int i = 0; i < e->count; i++) {
        const enum pk_ex op = (enum pk_ex)e->code[i].op;

        if (op == PK_EX_IN) {
            stack[sp++] = e->code[i].arg;
            continue;
        }
        if (op == PK_EX_DUP) {
            stack[sp] = stack[sp - 1 - e->code[i].arg];
            sp++;
            continue;
        }
        sp -= operands(op);
        if (op == PK_EX_SIN || op == PK_EX_COS) {
            of[i] = stack[sp];
            for (int k = 0; k < i && pairs < PAIRS && !j->pair[i]; k++)
                if (e->code[k].op == (op == PK_EX_SIN ? PK_EX_COS : PK_EX_SIN) && of[k] == of[i] &&
                    !j->pair[k]) {
                    j->pair[k] = (int8_t)++pairs;
                    j->pair[i] = (int8_t)-pairs;
                }
        }
        stack[sp++] = PK_EXPR_INPUTS + i;
    }
}

static void sin_and_cos(int64_t n, const real *x, real *to_sin, real *to_cos)
{
    vec s, c;
    int64_t i = 0;

    for (; i + W <= n; i += W) {
        vsincos(vld(x + i), &s, &c);
        vst(to_sin + i, s);
        vst(to_cos + i, c);
    }
    if (i < n) {
        vsincos(vldn(x + i, n - i), &s, &c);
        vstn(to_sin + i, s, n - i);
        vstn(to_cos + i, c, n - i);
    }
}

/* Elements at .. at+n-1 into out. */
static void run_block(const struct job *j, int64_t at, int64_t n, real (*buffer)[BLOCK], real (*other)[BLOCK],
                      real *out)
{
    struct value stack[PK_EXPR_STACK];
    const struct pk_expr *e = j->e;
    int sp = 0;

    for (int i = 0; i < e->count; i++) {
        enum pk_ex op = (enum pk_ex)e->code[i].op;
        int arg = e->code[i].arg;
        bool last = i == e->count - 1;

        switch (op) {
        case PK_EX_IN: {
            const struct input *in = &j->in[arg];

            if (in->constant) {
                stack[sp] = (struct value){NULL, element(in, 0)};
            } else if (in->dense) {
                stack[sp] = (struct value){(const real *)(const void *)in->data + at, 0};
            } else {
                fetch(in, at, n, buffer[sp]);
                stack[sp] = (struct value){buffer[sp], 0};
            }
            sp++;
            break;
        }
        case PK_EX_CONST:
            stack[sp++] = (struct value){NULL, (real)e->code[i].imm};
            break;
        case PK_EX_DUP:
            /* May point into a lower slot's buffer: that is rewritten only by the instruction that also
             * consumes this copy, element by element. */
            stack[sp] = stack[sp - 1 - arg];
            sp++;
            break;
        case PK_EX_SELECT: {
            real *to = last ? out : buffer[sp - 3];
            const struct value *v = &stack[sp - 3]; /* a, b, c: c != 0 ? a : b */

            select_block(n, v, to);
            stack[sp - 3] = (struct value){to, 0};
            sp -= 2;
            break;
        }
        default: {
            real *to = last ? out : buffer[sp - operands(op)];

            if (operands(op) == 2) {
                if (!stack[sp - 2].p && !stack[sp - 1].p) {
                    splat(buffer[sp - 2], n, stack[sp - 2].constant);
                    stack[sp - 2].p = buffer[sp - 2];
                }
                binary(op, n, stack[sp - 2], stack[sp - 1], to);
                stack[sp - 2] = (struct value){to, 0};
                sp--;
                break;
            }
            if (j->pair[i] < 0) {
                stack[sp - 1] = (struct value){other[-j->pair[i] - 1], 0};
                break;
            }
            if (!stack[sp - 1].p) {
                splat(buffer[sp - 1], n, stack[sp - 1].constant);
                stack[sp - 1].p = buffer[sp - 1];
            }
            if (j->pair[i] > 0 && op == PK_EX_SIN)
                sin_and_cos(n, stack[sp - 1].p, to, other[j->pair[i] - 1]);
            else if (j->pair[i] > 0)
                sin_and_cos(n, stack[sp - 1].p, other[j->pair[i] - 1], to);
            else
                PK_FN(unary)(op, arg, n, stack[sp - 1].p, to);
            stack[sp - 1] = (struct value){to, 0};
            break;
        }
        }
    }
    /* A program may end with a push. */
    if (stack[sp - 1].p && stack[sp - 1].p != out)
        memmove(out, stack[sp - 1].p, (size_t)n * sizeof(real));
    else if (!stack[sp - 1].p)
        splat(out, n, stack[sp - 1].constant);
}

static void task(void *arg, int64_t number, int thread)
{
    const struct job *j = arg;
    int64_t end = cpu_min(j->count, (number + 1) * TASK);
    real buffer[PK_EXPR_STACK][BLOCK] __attribute__((aligned(64))),
        other[PAIRS][BLOCK] __attribute__((aligned(64))), result[BLOCK] __attribute__((aligned(64)));

    (void)thread;
    for (int64_t at = number * TASK; at < end; at += BLOCK) {
        const int64_t n = cpu_min(BLOCK, end - at);

        if (!j->half) {
            run_block(j, at, n, buffer, other, (real *)j->out + at);
            continue;
        }
        run_block(j, at, n, buffer, other, result);
        store_half(n, result, (uint16_t *)j->out + at);
    }
}

enum pd_err PK_FN(expr)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    struct job j = {.e = c->attr->expr, .n_in = c->n_in, .out = o->data, .half = o->dtype == PK_BF16};

    (void)why;
    j.count = 1;
    for (int i = 0; i < o->shape.rank; i++)
        j.count *= o->shape.dim[i];
    for (int k = 0; k < c->n_in; k++) {
        const struct pk_view *v = &c->in[k];
        struct input *in = &j.in[k];
        int64_t expect = 1;
        int shift = o->shape.rank - v->shape.rank;

        in->data = v->data;
        in->dtype = v->dtype;
        in->dense = v->dtype == REAL_DTYPE;
        in->constant = true;
        /* Merge axes that continue each other, from the last to the first. */
        for (int i = o->shape.rank - 1; i >= 0; i--) {
            int64_t d = o->shape.dim[i];
            int64_t st = i < shift || v->shape.dim[i - shift] == 1 ? 0 : v->stride[i - shift];

            if (d == 1)
                continue;
            in->constant = in->constant && st == 0;
            in->dense = in->dense && st == expect;
            expect *= d;
            if (in->rank > 0 && st == in->dim[in->rank - 1] * in->stride[in->rank - 1])
                in->dim[in->rank - 1] *= d;
            else {
                in->dim[in->rank] = d;
                in->stride[in->rank++] = st;
            }
        }
        if (in->rank == 0) {
            in->dim[0] = 1;
            in->rank = 1;
        }
        for (int i = 0; i < in->rank / 2; i++) { /* last axis last */
            int64_t t = in->dim[i];

            in->dim[i] = in->dim[in->rank - 1 - i];
            in->dim[in->rank - 1 - i] = t;
            t = in->stride[i];
            in->stride[i] = in->stride[in->rank - 1 - i];
            in->stride[in->rank - 1 - i] = t;
        }
    }
    find_pairs(&j);
    cpu_pool_run(b->pool, cpu_div_up(j.count, TASK), task, &j);
    return PD_OK;
}
