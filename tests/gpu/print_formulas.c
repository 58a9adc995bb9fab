/* print_formulas: the gallery as C++ types, as NVRTC gets them (cuda_formula_type), for test_formula_text.cc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cuda/attention/formula.h"
#include "tests/formula/gallery.h"

int main(void)
{
    static const struct pk_formula_param params[] = {
        {"g", PK_RANGE_UNIT, 0}, {"b", PK_RANGE_POSITIVE, 0}, {"t", PK_RANGE_POSITIVE, 0}};
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct pd_buf out;

    pd_buf_init(&out, 0);
    for (int m = 0; plan && m < GALLERY; m++) {
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;

        if (pk_formula_parse(gallery[m].text, strlen(gallery[m].text), PK_FORMULA_ACTIVATION, true, params, 3,
                             &f, &fault) != PD_OK ||
            pk_formula_plan(f, plan, NULL) != PD_OK)
            return 1;
        pd_buf_printf(&out, "namespace f%d {\n", m);
        cuda_formula_type(plan, &out);
        pd_buf_str(&out, "}\n");
        pk_formula_free(f);
    }
    pd_buf_str(&out, "#define EACH_FORMULA(X)");
    for (int m = 0; m < GALLERY; m++)
        pd_buf_printf(&out, " X(%d)", m);
    pd_buf_str(&out, "\n");
    free(plan);
    if (pd_buf_err(&out) != PD_OK || fwrite(out.data, 1, out.len, stdout) != out.len)
        return 1;
    pd_buf_done(&out);
    return 0;
}
