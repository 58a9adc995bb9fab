/* daemon/worker/data/table.h: private to this module: reads tables of labelled texts (TSV, CSV, JSON lines) row by row. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/job/job.h"
#include "kernels/base/err.h"

/* One row. The strings are NUL-terminated and borrowed for the duration of the call. */
struct data_row {
    int64_t line; /* its first line, from 1 */
    const char *label, *text;
    size_t label_len, text_len;
};

struct data_table {
    const char *name; /* of the file, for errors */
    enum job_table form;
    const char *label, *text; /* names of the columns in a header row; NULL: "label" and "text" */
    /* TSV, CSV: above 0, the table has no header row and this many columns: the first is the label, the last `texts` (1
     * or 2) are the text, joined by a tab. */
    int columns, texts;
    int64_t until_us; /* deadline, as in struct data_options */
    enum pd_err (*row)(void *user, const struct data_row *row, struct pd_why *why);
    void *user;
};

/* Calls table->row for each row of the file's bytes in order. A byte order mark and blank lines are skipped, CRLF counts
 * as LF. PD_ERR_INVALID: the sentence names the file, the line and what is expected. PD_ERR_TIMEOUT: the deadline has
 * passed. An error of `row` ends the call and is returned. */
PD_NODISCARD enum pd_err data_table_read(const struct data_table *table, const void *bytes, size_t len,
                                         struct pd_why *why);
