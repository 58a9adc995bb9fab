/* A plan as CUDA C. */
#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/rtc.h"

/* Names that the text of a program uses for its variables, and where formula.cuh has them. */
static const struct {
    enum pk_formula_leaf leaf;
    const char *from;
} leaves[] = {
    {PK_LEAF_N, "u.n"},          {PK_LEAF_NI, "r.ni"},   {PK_LEAF_I, "r.i"},      {PK_LEAF_HEAD, "u.h"},
    {PK_LEAF_HEADS, "u.H"},      {PK_LEAF_LAYER, "u.l"}, {PK_LEAF_LAYERS, "u.L"}, {PK_LEAF_WIDTH, "u.d"},
    {PK_LEAF_PI, "3.14159265f"}, {PK_LEAF_SHIFT, "r.m"}, {PK_LEAF_DA, "da"},      {PK_LEAF_D, "r.d"},
    {PK_LEAF_PARAM, "u.param"},  {PK_LEAF_ROW, "r.row"}, {PK_LEAF_ARG, "r.arg"},  {PK_LEAF_DROW, "r.drow"}};

static int members_of(enum pk_formula_leaf leaf)
{
    return leaf == PK_LEAF_PARAM                                                ? PK_FORMULA_PARAMS
           : leaf == PK_LEAF_ROW || leaf == PK_LEAF_ARG || leaf == PK_LEAF_DROW ? PK_FORMULA_ROWS
                                                                                : 1;
}

static bool reads(const struct pk_formula_program *p, int leaf)
{
    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < pk_formula_arity((enum pk_formula_op)p->code[i].op); k++)
            if (p->code[i].in[k] == PK_FORMULA_LEAF(leaf))
                return true;
    for (int k = 0; k < p->results; k++)
        if (p->result[k] == PK_FORMULA_LEAF(leaf))
            return true;
    return false;
}

bool cuda_formula_turn_fixed(const struct pk_formula_plan *plan)
{
    static const enum pk_formula_leaf known[] = {PK_LEAF_N,      PK_LEAF_HEADS, PK_LEAF_LAYER,
                                                 PK_LEAF_LAYERS, PK_LEAF_WIDTH, PK_LEAF_PI};
    bool fixed = true;

    for (int leaf = 0; leaf < PK_LEAVES; leaf++) {
        bool is_known = false;

        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is_known = is_known || leaf == (int)known[k];
        fixed = fixed && (is_known || !reads(&plan->turn, leaf));
    }
    return fixed;
}

static void print_leaves(const struct pk_formula_program *p, struct pd_buf *out)
{
    for (size_t k = 0; k < sizeof leaves / sizeof *leaves; k++)
        for (int m = 0; m < members_of(leaves[k].leaf); m++) {
            const int leaf = (int)leaves[k].leaf + m;
            const char *name = pk_formula_leaf_name((enum pk_formula_leaf)leaf);

            if (!reads(p, leaf))
                continue;
            if (name)
                pd_buf_printf(out, "const float %s = %s", name, leaves[k].from);
            else
                pd_buf_printf(out, "const float x%d = %s", leaf, leaves[k].from);
            if (members_of(leaves[k].leaf) > 1)
                pd_buf_printf(out, "[%d]", m);
            pd_buf_str(out, ";\n");
        }
}

static void print_program(const char *name, const struct pk_formula_program *p, struct pd_buf *out)
{
    pd_buf_printf(
        out,
        "static __device__ __forceinline__ void %s(const struct form_head &u, const struct form_row &r, "
        "float s, float j, float da, float *o)\n{\n(void)u, (void)r, (void)s, (void)j, (void)da, (void)o;\n",
        name);
    print_leaves(p, out);
    pk_formula_cuda(p, out);
    for (int k = 0; k < p->results; k++) {
        pd_buf_printf(out, "o[%d] = ", k);
        pk_formula_cuda_operand(p, p->result[k], out);
        pd_buf_str(out, ";\n");
    }
    pd_buf_str(out, "}\n");
}

static void print_number(const char *type, const char *name, int value, struct pd_buf *out)
{
    pd_buf_printf(
        out, "static __device__ __forceinline__ constexpr %s %s(const struct form_head &) { return %d; }\n",
        type, name, value);
}

/* power(u, 0): of F; power(u, 1 + k): of row function k. */
static void print_powers(const struct pk_formula_plan *plan, struct pd_buf *out)
{
    pd_buf_str(out,
               "static __device__ __forceinline__ constexpr float power(const struct form_head &, int k) "
               "{ return ");
    for (int k = 0; k < plan->rows; k++)
        pd_buf_printf(out, "k == %d ? %.9ef : ", 1 + k, plan->row_power[k]);
    pd_buf_printf(out, "k == 0 ? %.9ef : 0.0f; }\n", plan->value_power);
}

void cuda_formula_type(const struct pk_formula_plan *plan, struct pd_buf *out)
{
    int maxima = 0;

    for (int k = 0; k < plan->rows; k++)
        maxima |= (plan->row[k] == PK_ROW_MAX) << k;
    pd_buf_str(out, "struct form_formula {\n");
    print_number("int", "rows", plan->rows, out);
    print_number("int", "params", plan->params, out);
    print_number("bool", "two", plan->two_passes, out);
    print_number("bool", "shift", plan->shift, out);
    print_number("bool", "shift_zero", plan->shift_zero, out);
    print_powers(plan, out);
    print_number("bool", "needs_d", plan->needs_d, out);
    print_number("int", "turn_scalars", plan->turn_scalars, out);
    print_number("int", "back_scalars", plan->back_scalars, out);
    print_number("bool", "turn_fixed", cuda_formula_turn_fixed(plan), out);
    pd_buf_printf(out,
                  "static __device__ __forceinline__ constexpr bool row_max(const struct form_head &, int k) "
                  "{ return %d "
                  ">> k & 1; }\n",
                  maxima);
    print_program("exponent", &plan->exponent, out);
    print_program("value", &plan->value, out);
    print_program("sums", &plan->sums, out);
    print_program("turn", &plan->turn, out);
    print_program("before", &plan->before, out);
    print_program("turn_back", &plan->turn_back, out);
    print_program("back", &plan->back, out);
    print_program("stats", &plan->stats, out);
    pd_buf_str(out, "};\n");
}

void cuda_formula_source(const struct cuda_program *p, struct pd_buf *out)
{
    static const char *const lists[CUDA_FORMULA_PARTS] = {
        "FORM_FORWARD", "FORM_BACKWARD", "FORM_STATS", "HOPPER_FORWARD", "HOPPER_BACKWARD", "HOPPER_SCALARS"};
    const struct cuda_tiles *t = &p->tiles;

    pd_buf_printf(out, "#include \"kernels/backend/cuda/attention/%s\"\n",
                  t->columns ? "hopper_formula.cuh" : "formula_stats.cuh");
    cuda_formula_type(p->plan, out);
    pd_buf_printf(out, "typedef %s M;\ntypedef form_formula F;\nconstexpr int D = %d;\n", p->math, p->head);
    /* One block a multiprocessor at least: ptxas may then use as many registers as there are, and spills none. */
    pd_buf_str(
        out,
        "#define X(name, body) extern \"C\" __global__ void __launch_bounds__(256, 1) formula_##name(const "
        "__grid_constant__ struct att a, const __grid_constant__ struct att_deal g, const __grid_constant__ "
        "struct form_use u) { body; }\n");
    if (t->columns)
        pd_buf_printf(out,
                      "constexpr int columns = %d, keys = %d, groups = %d, stages = %d;\n"
                      "#define Y(name, threads, resident, parameters, body) extern \"C\" __global__ void "
                      "__launch_bounds__(threads, resident) formula_##name parameters { body; }\n",
                      t->columns, t->keys, t->groups, t->stages);
    pd_buf_printf(out, "%s_KERNELS(X%s)\n", lists[p->part], t->columns ? ", Y" : "");
}
