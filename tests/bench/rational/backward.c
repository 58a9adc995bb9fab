#include "tests/bench/rational/row.h"

#include "kernels/backend/cpu/attention_bwd.c" /* NOLINT: the kernel itself, with another row */

#include "tests/bench/rational/rational.h"

enum pd_err rational_backward(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return PK_FN(attention_bwd)(b, c, why);
}
