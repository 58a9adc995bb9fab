#include "tests/bench/rational/row.h"

#include "kernels/backend/cpu/attention.c" /* NOLINT: the kernel itself, with another row */

#include "tests/bench/rational/rational.h"

/* There is no linear order of this. */
bool PK_FN(attention_is_linear)(const struct attention *j)
{
    (void)j;
    return false;
}
size_t PK_FN(attention_linear_workspace)(struct attention *j, int threads)
{
    (void)j;
    (void)threads;
    return 0;
}
enum pd_err PK_FN(attention_linear)(struct pk_backend *b, struct attention *j)
{
    (void)b;
    (void)j;
    return PD_ERR_UNSUPPORTED;
}
enum pd_err PK_FN(attention_linear_bwd)(struct pk_backend *b, struct attention *j)
{
    return PK_FN(attention_linear)(b, j);
}

bool rational_runs(void)
{
#if CPU_AVX512
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
    return true;
#endif
}

size_t rational_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    return PK_FN(attention_workspace)(b, c);
}

enum pd_err rational_forward(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return PK_FN(attention)(b, c, why);
}
