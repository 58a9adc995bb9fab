/* tests/base/test_manual.c: what roff would read as a command is text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/base/manual.h"

static void test_manual_writes_a_page_and_escapes_what_roff_would_read(void **state)
{
    struct pd_buf b;

    (void)state;
    pd_buf_init(&b, 0);
    pd_manual_begin(&b, "po-lyd", 8, "polyd 1", "does it");
    pd_manual_section(&b, "OPTIONS");
    pd_manual_subsection(&b, "[a]");
    pd_manual_entry(&b, "--x.y=N", ".so /etc/passwd\n'in it: a\\fB");
    pd_manual_paragraph(&b, "end.");
    assert_int_equal(pd_buf_err(&b), PD_OK);
    assert_string_equal(b.data, ".TH \"po\\-lyd\" 8 \"\" \"polyd 1\" \"\"\n.SH NAME\npo\\-lyd \\- does it\n"
                                ".SH OPTIONS\n.SS [a]\n.TP\n\\fB\\-\\-x.y=N\\fR\n\\&.so /etc/passwd\n"
                                "\\&'in it: a\\efB\n.PP\nend.\n");
    pd_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manual_writes_a_page_and_escapes_what_roff_would_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
