/* The builder's functions: each emits one node, or a few. */
#include "kernels/graph/build.h"

#include <math.h>
#include <string.h>

struct pk_val pk_reshape(struct pk_graph *g, struct pk_val x, struct pk_shape shape)
{
    struct pk_attr a = pk_attr_zero();
    int64_t stride[PK_MAX_RANK];
    struct pk_shape from = pk_shape_of(g, x);

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (x.id && pk_shape_equal(&from, &shape))
        return x;
    a.shape = shape;
    if (x.id && x.id < g->n_value && pk_shape_count(&from) == pk_shape_count(&shape) &&
        !pk_value_reshape(&g->value[x.id], &shape, stride))
        x = pk_copy(g, x);
    return pk_emit(g, PK_OP_RESHAPE, &a, &x, 1, NULL);
}

struct pk_val pk_permute(struct pk_graph *g, struct pk_val x, const int32_t *axis)
{
    struct pk_attr a = pk_attr_zero();
    int32_t rank = pk_shape_of(g, x).rank;

    for (int32_t i = 0; i < rank; i++)
        a.permute.axis[i] = axis[i];
    return pk_emit(g, PK_OP_PERMUTE, &a, &x, 1, NULL);
}

struct pk_val pk_transpose(struct pk_graph *g, struct pk_val x)
{
    int32_t axis[PK_MAX_RANK];
    int32_t rank = pk_shape_of(g, x).rank;

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (rank < 2)
        return pk_graph_fail(g, PD_ERR_INVALID, "transpose needs at least two axes");
    for (int32_t i = 0; i < rank; i++)
        axis[i] = i;
    axis[rank - 1] = rank - 2;
    axis[rank - 2] = rank - 1;
    return pk_permute(g, x, axis);
}

struct pk_val pk_slice(struct pk_graph *g, struct pk_val x, int32_t axis, int64_t start, int64_t extent)
{
    struct pk_attr a = pk_attr_zero();

    a.slice.axis = axis;
    a.slice.start = start;
    a.slice.extent = extent;
    return pk_emit(g, PK_OP_SLICE, &a, &x, 1, NULL);
}

struct pk_val pk_broadcast(struct pk_graph *g, struct pk_val x, struct pk_shape shape)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_shape from = pk_shape_of(g, x);

    if (g && g->err == PD_OK && x.id && pk_shape_equal(&from, &shape))
        return x;
    a.shape = shape;
    return pk_emit(g, PK_OP_BROADCAST, &a, &x, 1, NULL);
}

struct pk_val pk_copy(struct pk_graph *g, struct pk_val x)
{
    struct pk_attr a = pk_attr_zero();

    a.copy.dtype = pk_dtype_of(g, x);
    return pk_emit(g, PK_OP_COPY, &a, &x, 1, NULL);
}

struct pk_val pk_cast(struct pk_graph *g, struct pk_val x, enum pk_dtype dtype)
{
    struct pk_attr a = pk_attr_zero();

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (x.id && pk_dtype_of(g, x) == dtype)
        return x;
    a.copy.dtype = dtype;
    return pk_emit(g, PK_OP_COPY, &a, &x, 1, NULL);
}

struct pk_val pk_fill(struct pk_graph *g, enum pk_dtype dtype, struct pk_shape shape, double value)
{
    struct pk_attr a = pk_attr_zero();

    a.shape = shape;
    a.fill.dtype = dtype;
    a.fill.value = value;
    return pk_emit(g, PK_OP_FILL, &a, NULL, 0, NULL);
}

struct pk_val pk_concat(struct pk_graph *g, int32_t axis, const struct pk_val *x, size_t count)
{
    struct pk_attr a = pk_attr_zero();

    a.concat.axis = axis;
    if (count > INT32_MAX)
        return pk_graph_fail(g, PD_ERR_LIMIT, "concat of %zu tensors", count);
    return pk_emit(g, PK_OP_CONCAT, &a, x, (int32_t)count, NULL);
}

struct pk_val pk_gather(struct pk_graph *g, struct pk_val table, struct pk_val index)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {table, index};

    if (g && table.id && table.id < g->n_value && !pk_value_is_dense(&g->value[table.id]))
        in[0] = pk_copy(g, table);
    return pk_emit(g, PK_OP_GATHER, &a, in, 2, NULL);
}

struct pk_val pk_one_hot(struct pk_graph *g, struct pk_val index, int64_t classes, enum pk_dtype dtype)
{
    struct pk_attr a = pk_attr_zero();

    a.one_hot.classes = classes;
    a.one_hot.dtype = dtype;
    return pk_emit(g, PK_OP_ONE_HOT, &a, &index, 1, NULL);
}

struct pk_val pk_count(struct pk_graph *g, struct pk_val index, int64_t rows, enum pk_dtype dtype)
{
    const struct pk_shape shape = pk_shape_of(g, index);
    const int64_t n = pk_shape_count(&shape);
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {pk_reshape(g, index, PK_SHAPE(n)), pk_fill(g, dtype, PK_SHAPE(n, 1), 1)};

    a.scatter_add.rows = rows;
    return pk_reshape(g, pk_emit(g, PK_OP_SCATTER_ADD, &a, in, 2, NULL), PK_SHAPE(rows));
}

struct pk_val pk_expr_emit(struct pk_graph *g, const struct pk_expr *program, const struct pk_val *x,
                           int32_t n)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_expr copy = *program;

    a.expr = &copy; /* pk_emit keeps its own */
    return pk_emit(g, PK_OP_EXPR, &a, x, n, NULL);
}

static struct pk_val apply(struct pk_graph *g, enum pk_ex op, int arg, const struct pk_val *x, int n)
{
    struct pk_expr p = {.count = n + 1};

    for (int i = 0; i < n; i++) {
        p.code[i].op = PK_EX_IN;
        p.code[i].arg = (uint8_t)i;
    }
    p.code[n].op = (uint8_t)op;
    p.code[n].arg = (uint8_t)arg;
    return pk_expr_emit(g, &p, x, n);
}

static struct pk_val binary(struct pk_graph *g, enum pk_ex op, struct pk_val a, struct pk_val b)
{
    struct pk_val in[2] = {a, b};

    return apply(g, op, 0, in, 2);
}

struct pk_val pk_add(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_ADD, a, b);
}

struct pk_val pk_sub(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_SUB, a, b);
}

struct pk_val pk_mul(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_MUL, a, b);
}

struct pk_val pk_div(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_DIV, a, b);
}

struct pk_val pk_max2(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_MAX, a, b);
}

struct pk_val pk_gt(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_GT, a, b);
}

struct pk_val pk_eq(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    return binary(g, PK_EX_EQ, a, b);
}

struct pk_val pk_select(struct pk_graph *g, struct pk_val c, struct pk_val a, struct pk_val b)
{
    struct pk_val in[3] = {a, b, c}; /* c on top of the stack */

    return apply(g, PK_EX_SELECT, 0, in, 3);
}

static struct pk_val with_const(struct pk_graph *g, enum pk_ex op, struct pk_val x, double value)
{
    struct pk_expr p = {.count = 3};

    p.code[0].op = PK_EX_IN;
    p.code[1].op = PK_EX_CONST;
    p.code[1].imm = value;
    p.code[2].op = (uint8_t)op;
    return pk_expr_emit(g, &p, &x, 1);
}

struct pk_val pk_scale(struct pk_graph *g, struct pk_val x, double factor)
{
    return with_const(g, PK_EX_MUL, x, factor);
}

struct pk_val pk_offset(struct pk_graph *g, struct pk_val x, double addend)
{
    return with_const(g, PK_EX_ADD, x, addend);
}

struct pk_val pk_unary(struct pk_graph *g, enum pk_ex op, struct pk_val x)
{
    if (op < PK_EX_NEG || op > PK_EX_FINITE || op == PK_EX_POW)
        return pk_graph_fail(g, PD_ERR_INVALID, "instruction %d does not take one operand", (int)op);
    return apply(g, op, 0, &x, 1);
}

struct pk_val pk_wave(struct pk_graph *g, struct pk_val x, struct pk_val w1, struct pk_val w2)
{
    static const struct pk_expr program = {.count = 9,
                                           .code = {{.op = PK_EX_IN, .arg = 1},
                                                    {.op = PK_EX_IN, .arg = 0},
                                                    {.op = PK_EX_SIN},
                                                    {.op = PK_EX_MUL},
                                                    {.op = PK_EX_IN, .arg = 2},
                                                    {.op = PK_EX_IN, .arg = 0},
                                                    {.op = PK_EX_COS},
                                                    {.op = PK_EX_MUL},
                                                    {.op = PK_EX_ADD}}};
    const struct pk_val in[] = {x, w1, w2};

    return pk_expr_emit(g, &program, in, 3);
}

struct pk_val pk_power(struct pk_graph *g, struct pk_val x, int32_t p)
{
    if (p < 0 || p > UINT8_MAX)
        return pk_graph_fail(g, PD_ERR_INVALID, "power %d: only 0 to 255", p);
    return apply(g, PK_EX_POW, p, &x, 1);
}

struct pk_val pk_gelu(struct pk_graph *g, struct pk_val x, bool tanh_form)
{
    return apply(g, tanh_form ? PK_EX_GELU_TANH : PK_EX_GELU, 0, &x, 1);
}

struct pk_val pk_relu(struct pk_graph *g, struct pk_val x)
{
    return with_const(g, PK_EX_MAX, x, 0);
}

struct pk_val pk_sum(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep)
{
    struct pk_attr a = pk_attr_zero();

    if (g && g->err == PD_OK && x.id && axes == 0)
        return x;
    a.reduce.axes = axes;
    a.reduce.keep = keep;
    return pk_emit(g, PK_OP_SUM, &a, &x, 1, NULL);
}

struct pk_val pk_mean(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep)
{
    struct pk_shape s = pk_shape_of(g, x);
    int64_t n = 1;

    for (int32_t i = 0; i < s.rank; i++)
        if (axes & (1u << i))
            n *= s.dim[i];
    return pk_scale(g, pk_sum(g, x, axes, keep), n ? 1.0 / (double)n : NAN);
}

static struct pk_val maximum(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep, bool flow)
{
    struct pk_attr a = pk_attr_zero();

    a.reduce.axes = axes;
    a.reduce.keep = keep;
    a.reduce.flow = flow;
    return pk_emit(g, PK_OP_MAX, &a, &x, 1, NULL);
}

struct pk_val pk_maximum(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep)
{
    return maximum(g, x, axes, keep, false);
}

struct pk_val pk_maximum_flow(struct pk_graph *g, struct pk_val x, uint32_t axes, bool keep)
{
    return maximum(g, x, axes, keep, true);
}

struct pk_val pk_sumsq(struct pk_graph *g, const struct pk_val *x, size_t count)
{
    struct pk_attr a = pk_attr_zero();

    if (count > INT32_MAX)
        return pk_graph_fail(g, PD_ERR_LIMIT, "sumsq of %zu tensors", count);
    return pk_emit(g, PK_OP_SUMSQ, &a, x, (int32_t)count, NULL);
}

struct pk_val pk_matmul(struct pk_graph *g, struct pk_val a, struct pk_val b)
{
    struct pk_attr attr = pk_attr_zero();
    struct pk_val in[2] = {a, b};

    return pk_emit(g, PK_OP_MATMUL, &attr, in, 2, NULL);
}

struct pk_val pk_linear(struct pk_graph *g, struct pk_val x, struct pk_val w, bool w_transposed,
                        struct pk_val bias)
{
    struct pk_val y;

    if (pk_shape_of(g, w).rank != 2 && g && g->err == PD_OK && w.id)
        return pk_graph_fail(g, PD_ERR_INVALID, "linear needs a weight matrix");
    y = pk_matmul(g, x, w_transposed ? pk_transpose(g, w) : w);
    return bias.id ? pk_add(g, y, bias) : y;
}

static struct pk_val drop(struct pk_graph *g, struct pk_val x, struct pk_val rng, double rate,
                          uint32_t stream, bool samples)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {x, rng};

    if (!rng.id || rate == 0.0)
        return x;
    a.dropout.rate = rate;
    a.dropout.stream = stream;
    a.dropout.samples = samples;
    return pk_emit(g, PK_OP_DROPOUT, &a, in, 2, NULL);
}

struct pk_val pk_dropout(struct pk_graph *g, struct pk_val x, struct pk_val rng, double rate, uint32_t stream)
{
    return drop(g, x, rng, rate, stream, false);
}

struct pk_val pk_drop_path(struct pk_graph *g, struct pk_val x, struct pk_val rng, double rate,
                           uint32_t stream)
{
    return drop(g, x, rng, rate, stream, true);
}

struct pk_val pk_norm(struct pk_graph *g, struct pk_val x, struct pk_val gamma, struct pk_val beta,
                      struct pk_norm_spec spec)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[3] = {x, gamma, beta};

    if (g && g->decomposed)
        return pk_norm_decomposed(g, x, gamma, beta, spec);
    a.norm.kind = spec.kind;
    a.norm.eps_mode = spec.eps_mode;
    a.norm.eps = spec.eps;
    a.norm.has_beta = beta.id != 0;
    return pk_emit(g, PK_OP_NORM, &a, in, beta.id ? 3 : 2, NULL);
}

struct pk_val pk_softmax(struct pk_graph *g, struct pk_val x)
{
    struct pk_attr a = pk_attr_zero();

    if (g && g->decomposed)
        return pk_softmax_decomposed(g, x);
    return pk_emit(g, PK_OP_SOFTMAX, &a, &x, 1, NULL);
}

struct pk_loss pk_cross_entropy(struct pk_graph *g, struct pk_val logits, struct pk_val target,
                                double smoothing, int32_t ignore)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {logits, target}, out[PK_MAX_OUT];

    if (g && g->decomposed)
        return pk_cross_entropy_decomposed(g, logits, target, smoothing, ignore);
    a.cross_entropy.smoothing = smoothing;
    a.cross_entropy.ignore = ignore;
    pk_emit(g, PK_OP_CROSS_ENTROPY, &a, in, 2, out);
    return (struct pk_loss){out[0], out[1], out[2]};
}

/* Inputs and attributes of a fused attention; `in` holds ATTENTION_IN values. */
#define ATTENTION_IN 9
static int32_t attention_inputs(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                                bool packed, const struct pk_attention_spec *spec, struct pk_attr *a,
                                struct pk_val *in)
{
    struct pk_shape s = pk_shape_of(g, q);
    double d = s.rank > 0 ? (double)s.dim[s.rank - 1] : 1.0;
    int32_t n = 0;

    const bool formula = spec->formula.plan != NULL;
    const struct pk_val scale = formula ? spec->scalars : spec->scale_value;

    *a = pk_attr_zero();
    if (formula) {
        pk_formula_attr_set(a, &spec->formula);
    } else {
        a->attention.phi = spec->phi;
        a->attention.degree = spec->degree;
        a->attention.scale = spec->scale;
        a->attention.bias = spec->bias;
        a->attention.form = spec->form;
        a->attention.row_power = spec->row_power;
    }
    a->attention.tau = spec->tau != 0.0 ? spec->tau : 1.0 / sqrt(d);
    a->attention.causal = spec->causal;
    a->attention.packed = packed;
    a->attention.has_scale = scale.id != 0;
    a->attention.has_bias = spec->bias_value.id != 0;
    a->attention.has_mask = spec->mask.id != 0;
    a->attention.has_length = spec->length.id != 0;
    if (spec->rng.id && spec->dropout != 0.0) {
        a->attention.has_rng = true;
        a->attention.dropout = spec->dropout;
        a->attention.stream = spec->stream;
    }
    in[n++] = q;
    if (!packed) {
        in[n++] = k;
        in[n++] = v;
    }
    if (scale.id)
        in[n++] = scale;
    if (spec->bias_value.id)
        in[n++] = spec->bias_value;
    if (spec->mask.id)
        in[n++] = spec->mask;
    if (spec->length.id)
        in[n++] = spec->length;
    if (a->attention.has_rng)
        in[n++] = spec->rng;
    return n;
}

struct pk_val pk_unpack_qkv(struct pk_graph *g, struct pk_val qkv, int64_t i)
{
    static const int32_t order[4] = {0, 2, 1, 3};
    struct pk_shape s = pk_shape_of(g, qkv);

    return pk_permute(
        g, pk_reshape(g, pk_slice(g, qkv, 2, i, 1), PK_SHAPE(s.dim[0], s.dim[1], s.dim[3], s.dim[4])), order);
}

static bool packed_ok(struct pk_graph *g, struct pk_val qkv)
{
    struct pk_shape s = pk_shape_of(g, qkv);

    if (!g || g->err != PD_OK)
        return false;
    if (s.rank == 5 && s.dim[2] == 3)
        return true;
    pk_graph_fail(g, PD_ERR_INVALID, "packed attention needs (B, N, 3, H, d)");
    return false;
}

struct pk_val pk_attention_part(struct pk_graph *g, struct pk_val qkv, int64_t which)
{
    return packed_ok(g, qkv) ? pk_unpack_qkv(g, qkv, which) : PK_NONE;
}

struct pk_val pk_qk_norm(struct pk_graph *g, struct pk_val x, struct pk_val gain, enum pk_eps_mode eps_mode,
                         double eps)
{
    struct pk_norm_spec spec = {PK_NORM_RMS, eps_mode, eps};
    struct pk_shape s = pk_shape_of(g, x), gs = pk_shape_of(g, gain);
    struct pk_val one;

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (s.rank != 4 || (gs.rank != 1 && gs.rank != 2) || gs.dim[gs.rank - 1] != s.dim[3] ||
        (gs.rank == 2 && gs.dim[0] != s.dim[1]))
        return pk_graph_fail(g, PD_ERR_INVALID, "qk_norm needs (B, H, N, d) and gains (d) or (H, d)");
    if (gs.rank == 1)
        return pk_norm(g, x, gain, PK_NONE, spec);
    one = pk_fill(g, pk_dtype_of(g, x), PK_SHAPE(s.dim[3]), 1.0);
    return pk_mul(g, pk_norm(g, x, one, PK_NONE, spec), pk_reshape(g, gain, PK_SHAPE(s.dim[1], 1, s.dim[3])));
}

struct pk_val pk_bias_of_table(struct pk_graph *g, struct pk_val table, struct pk_val index)
{
    static const int32_t order[3] = {2, 0, 1};

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (pk_shape_of(g, table).rank != 2 || pk_shape_of(g, index).rank != 2)
        return pk_graph_fail(g, PD_ERR_INVALID,
                             "a relative position bias needs a table (T, H) and an index (Nq, Nk)");
    return pk_permute(g, pk_gather(g, table, index), order);
}

struct pk_val pk_l1_norm_tokens(struct pk_graph *g, struct pk_val x)
{
    if (g && g->err == PD_OK && pk_shape_of(g, x).rank != 4)
        return pk_graph_fail(g, PD_ERR_INVALID, "the l1 norm over tokens needs (B, H, N, d)");
    /* A column of zeros stays zero. */
    return pk_div(g, x, pk_offset(g, pk_sum(g, pk_unary(g, PK_EX_ABS, x), 1u << 2, true), 1e-20));
}

struct pk_val pk_attention_packed(struct pk_graph *g, struct pk_val qkv, struct pk_attention_spec spec)
{
    struct pk_attr a;
    struct pk_val in[ATTENTION_IN];
    int32_t n;

    if (!packed_ok(g, qkv))
        return PK_NONE;
    if (g->decomposed)
        return pk_attention_decomposed(g, pk_unpack_qkv(g, qkv, 0), pk_unpack_qkv(g, qkv, 1),
                                       pk_unpack_qkv(g, qkv, 2), spec, NULL);
    n = attention_inputs(g, qkv, PK_NONE, PK_NONE, true, &spec, &a, in);
    return pk_emit(g, spec.formula.plan ? PK_OP_FORMULA : PK_OP_ATTENTION, &a, in, n, NULL);
}

struct pk_val pk_attention(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                           struct pk_attention_spec spec)
{
    struct pk_attr a;
    struct pk_val in[ATTENTION_IN];
    int32_t n;

    if (g && g->decomposed)
        return pk_attention_decomposed(g, q, k, v, spec, NULL);
    n = attention_inputs(g, q, k, v, false, &spec, &a, in);
    return pk_emit(g, spec.formula.plan ? PK_OP_FORMULA : PK_OP_ATTENTION, &a, in, n, NULL);
}

struct pk_val pk_attention_jvp(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                               struct pk_attention_spec spec, struct pk_attention_tangent tangent)
{
    struct pk_val in[ATTENTION_IN + 5], like[5] = {q, k, v}, t[5] = {tangent.q, tangent.k, tangent.v}, y, dy;
    const bool drops = spec.rng.id && spec.dropout != 0.0;
    struct pk_val *scale = spec.formula.plan ? &spec.scalars : &spec.scale_value;
    struct pk_attr a;
    int32_t n, wrt = 3;

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (scale->id) {
        like[wrt] = *scale;
        t[wrt++] = tangent.scale;
    }
    if (spec.bias_value.id) {
        like[wrt] = spec.bias_value;
        t[wrt++] = tangent.bias;
    }
    for (int32_t i = 0; i < wrt; i++)
        if (!t[i].id)
            t[i] = pk_fill(g, pk_dtype_of(g, like[i]), pk_shape_of(g, like[i]), 0.0);
    if (!g->decomposed && !spec.formula.plan && pk_phi_power(spec.phi) && !drops) {
        n = attention_inputs(g, q, k, v, false, &spec, &a, in);
        for (int32_t i = 0; i < wrt; i++)
            in[n++] = t[i];
        return pk_emit(g, PK_OP_ATTENTION_JVP, &a, in, n, NULL);
    }
    for (int32_t i = 0; i < wrt; i++)
        like[i] = pk_alias(g, like[i]);
    if (scale->id)
        *scale = like[3];
    if (spec.bias_value.id)
        spec.bias_value = like[wrt - 1];
    y = pk_attention_decomposed(g, like[0], like[1], like[2], spec, NULL);
    pk_jvp(g, &y, 1, like, t, (size_t)wrt, &dy);
    return dy;
}

static struct pk_attention_stats stats(struct pk_graph *g, struct pk_attr *a, struct pk_val *in, int32_t n,
                                       struct pk_val x, bool formula)
{
    struct pk_val out[PK_MAX_OUT];

    in[n++] = x;
    pk_emit(g, formula ? PK_OP_FORMULA_STATS : PK_OP_ATTENTION_STATS, a, in, n, out);
    return (struct pk_attention_stats){out[0], out[1], out[2], out[3], out[4], formula ? out[5] : PK_NONE};
}

struct pk_attention_stats pk_attention_stats_packed(struct pk_graph *g, struct pk_val qkv, struct pk_val x,
                                                    struct pk_attention_spec spec)
{
    struct pk_attr a;
    struct pk_val in[ATTENTION_IN];
    int32_t n = attention_inputs(g, qkv, PK_NONE, PK_NONE, true, &spec, &a, in);

    return stats(g, &a, in, n, x, spec.formula.plan != NULL);
}

struct pk_attention_stats pk_attention_stats(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                             struct pk_val x, struct pk_attention_spec spec)
{
    struct pk_attr a;
    struct pk_val in[ATTENTION_IN];
    int32_t n = attention_inputs(g, q, k, k, false, &spec, &a, in); /* v is not read */

    return stats(g, &a, in, n, x, spec.formula.plan != NULL);
}

/* An op may write a PARAM, a STATE, or the result of another write to one; not a view or a computed value. */
static bool writable(struct pk_graph *g, struct pk_val v, const char *who)
{
    if (!g || g->err != PD_OK)
        return false;
    if (v.id && v.id < g->n_value) {
        const struct pk_value *x = &g->value[v.id];
        const struct pk_node *n = &g->node[x->node];
        const struct pk_rule *rule = pk_rule_of(n->op);

        if (rule->leaf && !rule->fed && !rule->fixed)
            return true;
        /* written in place by an earlier op */
        if (pk_op_writes_through(n->op, n->n_in, (int32_t)x->out) >= 0)
            return true;
    }
    pk_graph_fail(g, PD_ERR_INVALID, "%s writes into a param or state; this value is neither", who);
    return false;
}

struct pk_val pk_cache_append(struct pk_graph *g, struct pk_val cache, struct pk_val fresh,
                              struct pk_val position)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[3] = {cache, fresh, position};

    if (!writable(g, cache, "cache_append"))
        return PK_NONE;
    return pk_emit(g, PK_OP_CACHE_APPEND, &a, in, 3, NULL);
}

struct pk_val pk_attention_state(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                                 struct pk_val state, struct pk_val position, struct pk_attention_spec spec)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[7] = {q, k, v};
    struct pk_shape s = pk_shape_of(g, q);
    int32_t n = 3;

    if (!writable(g, state, "attention_state"))
        return PK_NONE;
    if (spec.formula.plan)
        return pk_graph_fail(g, PD_ERR_UNSUPPORTED, "a formula has no state of constant size");
    if (spec.bias_value.id || spec.mask.id || spec.bias != 0.0 || (spec.rng.id && spec.dropout != 0.0))
        return pk_graph_fail(g, PD_ERR_UNSUPPORTED, "attention_state has no bias, mask or dropout");
    a.attention.phi = spec.phi;
    a.attention.degree = spec.degree;
    a.attention.tau = spec.tau != 0.0 ? spec.tau : 1.0 / sqrt(s.rank > 0 ? (double)s.dim[s.rank - 1] : 1.0);
    a.attention.scale = spec.scale;
    a.attention.row_power = spec.row_power;
    a.attention.causal = true;
    a.attention.has_length = true;
    a.attention.has_scale = spec.scale_value.id != 0;
    if (spec.scale_value.id)
        in[n++] = spec.scale_value;
    in[n++] = spec.length;
    in[n++] = position;
    in[n++] = state;
    return pk_emit(g, PK_OP_ATTENTION_STATE, &a, in, n, NULL);
}

static struct pk_attr optim_attr(const struct pk_optim_spec *s)
{
    struct pk_attr a = pk_attr_zero();

    a.optim.beta1 = s->beta1;
    a.optim.beta2 = s->beta2;
    a.optim.cycled = s->cycled;
    a.optim.eps = s->eps;
    a.optim.weight_decay = s->weight_decay;
    a.optim.lr_mult = s->lr_mult;
    a.optim.momentum = s->momentum;
    a.optim.dampening = s->dampening;
    a.optim.nesterov = s->nesterov;
    a.optim.l2 = s->l2;
    a.optim.ema = s->average.id ? s->ema : 0;
    return a;
}

void pk_working_copy(struct pk_graph *g, struct pk_val param, struct pk_val copy)
{
    const struct pk_rule *of_p, *of_c;
    const struct pk_value *p, *c;

    if (!g || g->err != PD_OK)
        return;
    if (!param.id || !copy.id || param.id >= g->n_value || copy.id >= g->n_value) {
        pk_graph_fail(g, PD_ERR_INVALID, "working copy: parameter or copy is no value of this graph");
        return;
    }
    p = &g->value[param.id];
    c = &g->value[copy.id];
    of_p = pk_rule_of(g->node[p->node].op);
    of_c = pk_rule_of(g->node[c->node].op);
    if (!of_p->trained || p->dtype != PK_F32 || !of_c->leaf || of_c->fed || of_c->trained || of_c->fixed ||
        c->dtype != PK_BF16 || !pk_shape_equal(&p->shape, &c->shape)) {
        pk_graph_fail(g, PD_ERR_INVALID,
                      "working copy: needs a parameter of f32 and a state of bf16 of its shape");
        return;
    }
    for (size_t i = 0; i < g->n_leaf; i++)
        if (g->leaf[i].value == param.id)
            g->leaf[i].copy = copy.id;
}

void pk_adamw(struct pk_graph *g, struct pk_val p, struct pk_val grad, struct pk_val m, struct pk_val v,
              struct pk_val hyper, struct pk_val gate, struct pk_optim_spec spec)
{
    struct pk_attr a = optim_attr(&spec);
    struct pk_val in[7] = {p, grad, m, v, hyper, gate, spec.average};

    if (writable(g, p, "adamw") && writable(g, m, "adamw") && writable(g, v, "adamw") &&
        (!spec.average.id || writable(g, spec.average, "adamw")))
        pk_emit(g, PK_OP_ADAMW, &a, in, 6 + (a.optim.ema > 0), NULL);
}

void pk_msgdw(struct pk_graph *g, struct pk_val p, struct pk_val grad, struct pk_val m, struct pk_val hyper,
              struct pk_val gate, struct pk_optim_spec spec)
{
    struct pk_attr a = optim_attr(&spec);
    struct pk_val in[6] = {p, grad, m, hyper, gate, spec.average};

    if (writable(g, p, "msgdw") && writable(g, m, "msgdw") &&
        (!spec.average.id || writable(g, spec.average, "msgdw")))
        pk_emit(g, PK_OP_MSGDW, &a, in, 5 + (a.optim.ema > 0), NULL);
}

void pk_accumulate(struct pk_graph *g, struct pk_val sum, struct pk_val x, struct pk_val first)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[3] = {sum, x, first};

    if (writable(g, sum, "accumulate"))
        pk_emit(g, PK_OP_ACCUMULATE, &a, in, 3, NULL);
}

void pk_blend(struct pk_graph *g, struct pk_val s, struct pk_val x, struct pk_val gate, double decay)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[3] = {s, x, gate};

    a.optim.ema = decay;
    if (writable(g, s, "blend"))
        pk_emit(g, PK_OP_BLEND, &a, in, 3, NULL);
}

struct pk_val pk_all_reduce(struct pk_graph *g, struct pk_val x, int32_t root)
{
    struct pk_attr a = pk_attr_zero();

    if (!g || g->err != PD_OK || !x.id)
        return PK_NONE;
    if (!pk_value_is_dense(&g->value[x.id]))
        x = pk_copy(g, x);
    a.ranks.root = root;
    return pk_emit(g, PK_OP_ALL_REDUCE, &a, &x, 1, NULL);
}

void pk_broadcast_ranks(struct pk_graph *g, struct pk_val leaf, int32_t root)
{
    struct pk_attr a = pk_attr_zero();

    a.ranks.root = root;
    if (writable(g, leaf, "broadcast_ranks"))
        pk_emit(g, PK_OP_BROADCAST_RANKS, &a, &leaf, 1, NULL);
}
