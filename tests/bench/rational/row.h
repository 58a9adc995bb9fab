/* tests/bench/rational/row.h: what attention.c and attention_bwd.c read instead of phi.h's rows. The row that is called
 * sigmoid is s^3 / (1 + |s|), with the slope s^2 / (1 + |s|) (3 - |s| / (1 + |s|)). */
#pragma once

#include "kernels/backend/cpu/vec.h"
#include "kernels/graph/phi.h"

#undef CPU_LEVEL_NAME
#define CPU_LEVEL_NAME rational
#undef PK_EACH_PHI
#define OVER(a) DIV(NUM(1), ADD(NUM(1), ABS(a)))
#define PK_EACH_PHI(ROW)                                                                                     \
    ROW(PK_PHI_SIGMOID, sigmoid, ALONE, MUL(MUL(MUL(S, S), OVER(S)), S),                                     \
        MUL(MUL(MUL(MUL(S, S), OVER(S)), SUB(NUM(3), MUL(ABS(S), OVER(S)))), D))
