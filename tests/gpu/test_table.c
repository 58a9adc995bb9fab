/* Every op that reaches a back end has a kernel here. The table's rows are found by name, so a misspelt name
 * would be silent otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/backend/cuda/cuda.h"
#include "kernels/graph/op/rule.h"

static bool is_kernel(enum pk_op op)
{
    const struct pk_rule *rule = pk_rule_of(op);

    return !rule->leaf && !rule->view;
}

/* Of several ranks; a plan that needs them is refused where they are missing. */
static bool is_collective(enum pk_op op)
{
    return pk_rule_of(op)->ranks;
}

static void test_every_op_has_a_kernel(void **state)
{
    int missing = 0;

    (void)state;
    for (int op = 0; op < PK_OP_COUNT; op++) {
        if (is_kernel((enum pk_op)op) && !cuda_ops[op].run) {
            const bool known = is_collective((enum pk_op)op);

            print_message("%sno kernel for %s\n", known ? "SKIPPED: " : "", pk_op_name((enum pk_op)op));
            missing += !known;
        }
        if (!cuda_ops[op].run && (cuda_ops[op].workspace || cuda_ops[op].supports))
            fail_msg("%s has a workspace or supports, and no kernel: is a name misspelt?",
                     pk_op_name((enum pk_op)op));
    }
    assert_int_equal(missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op_has_a_kernel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
