/* The rows of phi.h by name, and as programs of EXPR. */
#include "kernels/graph/phi.h"

#include <math.h>
#include <string.h>

#include "kernels/graph/build.h"

const char *pk_phi_name(enum pk_phi phi)
{
#define ROW(constant, name, kind, f, df) #name,
    static const char *const names[] = {PK_EACH_PHI(ROW)};
#undef ROW

    return (unsigned)phi < PK_PHIS ? names[phi] : NULL;
}

enum pk_phi pk_phi_find(const char *name)
{
    int phi = 0;

    while (phi < PK_PHIS && strcmp(name, pk_phi_name((enum pk_phi)phi)))
        phi++;
    return (enum pk_phi)phi;
}

/* ---- f of a row as a postfix program: each macro emits its operands, then its instruction ---- */

static void put(struct pk_expr *p, enum pk_ex op, int32_t arg, double imm)
{
    if (p->count < PK_EXPR_MAX) {
        p->code[p->count].op = (uint8_t)op;
        p->code[p->count].arg = (uint8_t)arg;
        p->code[p->count].imm = imm;
    }
    p->count++;
}

/* clang-format off */
#define S put(p, PK_EX_IN, 0, 0)
#define NUM(x) put(p, PK_EX_CONST, 0, x)
#define ONE(a, op) (a, put(p, PK_EX_##op, 0, 0))
#define TWO(a, b, op) (a, b, put(p, PK_EX_##op, 0, 0))
#define ADD(a, b) TWO(a, b, ADD)
#define SUB(a, b) TWO(a, b, SUB)
#define MUL(a, b) TWO(a, b, MUL)
#define DIV(a, b) TWO(a, b, DIV)
#define ABS(a) ONE(a, ABS)
#define EXP(a) ONE(a, EXP)
#define TANH(a) ONE(a, TANH)
#define SIN(a) ONE(a, SIN)
#define COS(a) ONE(a, COS)
#define SIGMOID(a) ONE(a, SIGMOID)
#define MAX0(a) TWO(a, NUM(0), MAX)
#define WHERE(a, b) (b, NUM(0), TWO(a, NUM(0), GT), put(p, PK_EX_SELECT, 0, 0))
#define WAVE(a) (SIN(ADD(a, NUM(M_PI / 4))), put(p, PK_EX_DUP, 0, 0), put(p, PK_EX_MUL, 0, 0))
#define POW(a) (a, put(p, PK_EX_POW, degree, 0))
/* clang-format on */

struct pk_val pk_phi_decomposed(struct pk_graph *g, enum pk_phi phi, int32_t degree, struct pk_val s)
{
    struct pk_expr program = {0}, *const p = &program;

    if (pk_phi_power(phi) && degree > UINT8_MAX)
        return pk_graph_fail(g, PD_ERR_INVALID, "power %d: only 0 to 255", degree);
#define ROW(constant, name, kind, f, df)                                                                     \
    case constant:                                                                                           \
        f;                                                                                                   \
        break;
    switch (phi) {
        PK_EACH_PHI(ROW)
    default:
        return pk_graph_fail(g, PD_ERR_INVALID, "attention: unknown activation %d", (int)phi);
    }
#undef ROW
    if (p->count > PK_EXPR_MAX)
        return pk_graph_fail(g, PD_ERR_LIMIT, "attention: %s takes %d instructions; at most %d",
                             pk_phi_name(phi), p->count, PK_EXPR_MAX);
    return pk_expr_emit(g, p, &s, 1);
}
#include "kernels/graph/phi_end.h"
