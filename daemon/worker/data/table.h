/* daemon/worker/data/table.h: private to this module: files of labelled texts, row by row. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "kernels/base/err.h"

/* One row; its bytes, behind which a NUL stands, are borrowed during the call. */
struct data_row {
    int64_t line; /* where it begins, from 1 */
    const char *label, *text;
    size_t label_len, text_len;
};

struct data_table {
    const char *name; /* of the file, for errors */
    enum job_table form;
    const char *label, *text; /* names of the columns in a header row; NULL: "label" and "text" */
    /* TSV, CSV: above 0 there is no header row, but so many columns in each; the first is the label, the last `texts`
     * (1 or 2) are the text, joined by a tab. */
    int columns, texts;
    int64_t until_us; /* as in struct data_options */
    enum pd_err (*row)(void *user, const struct data_row *row, struct pd_why *why);
    void *user;
};

/* Hands out the rows of a file's bytes in their order. A byte order mark and blank lines are passed over,
 * CRLF is taken for LF. PD_ERR_INVALID names the file, the line and what is expected; PD_ERR_TIMEOUT; what
 * `row` returns. */
PD_NODISCARD enum pd_err data_table_read(const struct data_table *table, const void *bytes, size_t len,
                                         struct pd_why *why);
