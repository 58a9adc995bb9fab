/* kernels/backend/cuda/attention/formula_interpreted.cuh: the activation F of formula.cuh in the emulation. */
#pragma once

#include "kernels/backend/cuda/attention/formula.cuh"
#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/formula/formula.h"

/* A plan as formula.cuh wants it, computed in doubles. */
struct form_interpreted {
    static const struct pk_formula_plan *plan(const struct form_head &u)
    {
        return (const struct pk_formula_plan *)u.plan;
    }
    static int rows(const struct form_head &u)
    {
        return plan(u)->rows;
    }
    static int params(const struct form_head &u)
    {
        return plan(u)->params;
    }
    static bool two(const struct form_head &u)
    {
        return plan(u)->two_passes;
    }
    static bool shift(const struct form_head &u)
    {
        return plan(u)->shift;
    }
    static bool shift_zero(const struct form_head &u)
    {
        return plan(u)->shift_zero;
    }
    static float power(const struct form_head &u, int k)
    {
        return (float)(k ? plan(u)->row_power[k - 1] : plan(u)->value_power);
    }
    static bool needs_d(const struct form_head &u)
    {
        return plan(u)->needs_d;
    }
    static int turn_scalars(const struct form_head &u)
    {
        return plan(u)->turn_scalars;
    }
    static int back_scalars(const struct form_head &u)
    {
        return plan(u)->back_scalars;
    }
    static bool turn_fixed(const struct form_head &u)
    {
        return cuda_formula_turn_fixed(plan(u));
    }
    static bool row_max(const struct form_head &u, int k)
    {
        return plan(u)->row[k] == PK_ROW_MAX;
    }
    static void run(const struct pk_formula_program *p, const struct form_head &u, const struct form_row &r,
                    float s, float j, float da, float *o)
    {
        double leaf[PK_LEAVES] = {}, result[PK_FORMULA_RESULTS];

        leaf[PK_LEAF_S] = (double)s;
        leaf[PK_LEAF_N] = (double)u.n;
        leaf[PK_LEAF_NI] = (double)r.ni;
        leaf[PK_LEAF_I] = (double)r.i;
        leaf[PK_LEAF_J] = (double)j;
        leaf[PK_LEAF_HEAD] = (double)u.h;
        leaf[PK_LEAF_HEADS] = (double)u.H;
        leaf[PK_LEAF_LAYER] = (double)u.l;
        leaf[PK_LEAF_LAYERS] = (double)u.L;
        leaf[PK_LEAF_WIDTH] = (double)u.d;
        leaf[PK_LEAF_SHIFT] = (double)r.m;
        leaf[PK_LEAF_DA] = (double)da;
        leaf[PK_LEAF_D] = (double)r.d;
        for (int k = 0; k < FORM_PARAMS; k++)
            leaf[PK_LEAF_PARAM + k] = (double)u.param[k];
        for (int k = 0; k < FORM_ROWS; k++) {
            leaf[PK_LEAF_ROW + k] = (double)r.row[k];
            leaf[PK_LEAF_ARG + k] = (double)r.arg[k];
            leaf[PK_LEAF_DROW + k] = (double)r.drow[k];
        }
        pk_formula_run(p, leaf, result);
        for (int k = 0; k < p->results; k++)
            o[k] = (float)result[k];
    }
#define PROGRAM(name)                                                                                        \
    static void name(const struct form_head &u, const struct form_row &r, float s, float j, float da,        \
                     float *o)                                                                               \
    {                                                                                                        \
        run(&plan(u)->name, u, r, s, j, da, o);                                                              \
    }
    PROGRAM(exponent)
    PROGRAM(value)
    PROGRAM(sums)
    PROGRAM(turn)
    PROGRAM(before)
    PROGRAM(turn_back)
    PROGRAM(back)
    PROGRAM(stats)
#undef PROGRAM
};
