/* Files of labelled texts (daemon/worker/data/table.h): rows come in the order of their lines, and hold no
 * more bytes than the file. The first byte chooses the form. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/table.h"

struct seen {
    int64_t line;
    size_t left;
};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static enum pd_err take(void *user, const struct data_row *row, struct pd_why *why)
{
    struct seen *s = user;

    (void)why;
    if (row->line <= s->line || row->label_len + row->text_len > s->left || row->label[row->label_len] != 0 ||
        row->text[row->text_len] != 0)
        abort();
    s->line = row->line;
    s->left -= row->label_len + row->text_len;
    return PD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct seen seen = {.left = len};
    struct data_table table = {.name = "x", .row = take, .user = &seen};
    struct pd_why why = {""};
    enum pd_err err;

    if (!len)
        return 0;
    table.form = (enum job_table)(JOB_TABLE_TSV + bytes[0] % 3);
    err = data_table_read(&table, bytes + 1, len - 1, &why);
    if (err == PD_OK ? !seen.line : err != PD_ERR_INVALID || strncmp(why.text, "'x'", 3) != 0)
        abort();
    return 0;
}
