/* A formula as a client types it: read, printed, read again, derived, compiled, analysed. */
#include <stdint.h>
#include <stdlib.h>

#include "kernels/formula/formula.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pk_formula *f = NULL, *again = NULL;
    struct pk_formula_fault fault;
    struct pk_formula_report report;
    struct pk_formula_plan *plan;
    double leaf[PK_LEAVES] = {0};
    struct pd_buf b;
    enum pd_err err =
        pk_formula_parse((const char *)data, size, size % 5 ? PK_FORMULA_ACTIVATION : PK_FORMULA_START,
                         size % 2, NULL, 0, &f, &fault);

    if (err != PD_OK) {
        if (!fault.text[0] || fault.at < 0 || fault.length < 1 || (size_t)fault.at > size)
            abort();
        return 0;
    }
    pd_buf_init(&b, 1 << 16);
    pk_formula_canonical(f, &b);
    if (pd_buf_err(&b) == PD_OK) {
        err = pk_formula_parse(b.data, b.len, size % 5 ? PK_FORMULA_ACTIVATION : PK_FORMULA_START, size % 2,
                               NULL, 0, &again, &fault);
        if (err != PD_OK && err != PD_ERR_LIMIT) /* without its short names it may be too long */
            abort();
        pk_formula_free(again);
    }
    pd_buf_done(&b);
    if (size % 5) {
        plan = malloc(sizeof *plan);
        if (plan && pk_formula_plan(f, plan, NULL) == PD_OK &&
            (plan->back.count > PK_FORMULA_CODE || plan->back.results < 2))
            abort();
        free(plan);
        leaf[PK_LEAF_N] = 4;
        pk_formula_report(f, leaf, &report);
    }
    pk_formula_free(f);
    return 0;
}
