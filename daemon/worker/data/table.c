/* daemon/worker/data/table.c: rows of a TSV, CSV or JSONL file with the columns `label` and `text`.
 *
 * TSV: a tab ends a column, a line end the row; nothing is quoted. CSV: RFC 4180, so a quoted field may
 * hold commas, doubled quotes and line ends. Both begin with a header row that names the columns, in any
 * order; others than the two are passed over. JSONL: an object on each line. */
#include "daemon/worker/data/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "daemon/worker/data/set.h"
#include "kernels/base/buf.h"

#define COLUMNS_MAX 10000
#define ROWS_A_LOOK 1024 /* rows between two looks at the clock */

struct reading {
    const struct data_table *table;
    const char *at, *end;
    int64_t line; /* of `at` */
    int64_t rows;
    int columns, label_column, text_column, texts;
    struct pd_buf label, text; /* of the row */
};

static enum pd_err PD_PRINTF(4, 5)
    wrong(const struct reading *r, int64_t line, struct pd_why *why, const char *fmt, ...)
{
    char sentence[360];
    va_list args;

    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    return pd_fail(why, PD_ERR_INVALID, "'%s': line %lld: %s", r->table->name, (long long)line, sentence);
}

/* Bytes of the line end at `at`; 0: there is none. */
static size_t line_end(const struct reading *r)
{
    if (r->at == r->end)
        return 0;
    if (*r->at == '\n')
        return 1;
    return *r->at == '\r' && r->end - r->at > 1 && r->at[1] == '\n' ? 2 : 0;
}

static void skip_blank_lines(struct reading *r)
{
    for (size_t n; (n = line_end(r)); r->line++)
        r->at += n;
}

/* Passes bytes of the row to the reader of the column. */
static void keep(struct pd_buf *to, const char *from, size_t len)
{
    if (to)
        pd_buf_append(to, from, len);
}

static enum pd_err take_unquoted(struct reading *r, char separator, struct pd_buf *to, struct pd_why *why)
{
    const char *from = r->at;

    for (; r->at < r->end && *r->at != separator && !line_end(r); r->at++)
        if (separator == ',' && *r->at == '"')
            return wrong(r, r->line, why,
                         "a quote inside a field that is not quoted: put the field in quotes and double it");
    keep(to, from, (size_t)(r->at - from));
    return PD_OK;
}

static enum pd_err take_quoted(struct reading *r, struct pd_buf *to, struct pd_why *why)
{
    const int64_t line = r->line;

    r->at++;
    for (;;) {
        const char *quote = memchr(r->at, '"', (size_t)(r->end - r->at));

        if (!quote)
            return wrong(r, line, why, "the quote that opens here is never closed");
        for (const char *p = r->at; (p = memchr(p, '\n', (size_t)(quote - p))); p++)
            r->line++;
        keep(to, r->at, (size_t)(quote - r->at));
        r->at = quote + 1;
        if (r->at == r->end || *r->at != '"')
            break;
        keep(to, r->at++, 1);
    }
    if (r->at < r->end && *r->at != ',' && !line_end(r))
        return wrong(r, r->line, why, "a closing quote must be followed by a comma or the end of the line");
    return PD_OK;
}

/* One column; *ret_last: it ends the row. `to` may be NULL. */
static enum pd_err take_column(struct reading *r, struct pd_buf *to, bool *ret_last, struct pd_why *why)
{
    const char separator = r->table->form == JOB_TABLE_TSV ? '\t' : ',';
    enum pd_err err = separator == ',' && r->at < r->end && *r->at == '"'
                          ? take_quoted(r, to, why)
                          : take_unquoted(r, separator, to, why);
    size_t n = line_end(r);

    *ret_last = r->at == r->end || n;
    if (n) {
        r->at += n;
        r->line++;
    } else if (r->at < r->end) {
        r->at++;
    }
    return err;
}

/* The header row: which columns are ours. */
static enum pd_err read_header(struct reading *r, struct pd_why *why)
{
    const char *const wanted[] = {r->table->label ? r->table->label : "label",
                                  r->table->text ? r->table->text : "text"};
    int *const column[] = {&r->label_column, &r->text_column};
    struct pd_buf name, names;
    const int64_t line = r->line;
    enum pd_err err = PD_OK;
    bool last = false;

    pd_buf_init(&name, 0);
    pd_buf_init(&names, 0);
    for (r->columns = 0; err == PD_OK && !last; r->columns++) {
        name.len = 0;
        err = take_column(r, &name, &last, why);
        if (err == PD_OK && r->columns == COLUMNS_MAX)
            err = wrong(r, line, why, "more than %d columns", COLUMNS_MAX);
        for (int i = 0; err == PD_OK && i < 2; i++) {
            if (name.len != strlen(wanted[i]) || memcmp(name.data, wanted[i], name.len) != 0)
                continue;
            if (*column[i] >= 0)
                err = wrong(r, line, why, "the header names the column '%s' twice", wanted[i]);
            *column[i] = r->columns;
        }
        if (names.len)
            pd_buf_str(&names, ", ");
        pd_buf_append(&names, name.data, name.len);
    }
    if (err == PD_OK && (name.failed || names.failed))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", r->table->name);
    for (int i = 0; err == PD_OK && i < 2; i++)
        if (*column[i] < 0)
            err = data_text_foreign((const uint8_t *)names.data, names.len)
                      ? wrong(r, line, why, "there is no column '%s' in the header", wanted[i])
                      : wrong(r, line, why, "there is no column '%s'; the header names %.200s", wanted[i],
                              names.data ? names.data : "none");
    pd_buf_done(&name);
    pd_buf_done(&names);
    return err;
}

/* Without a header row: what the table says. */
static enum pd_err fixed_columns(struct reading *r)
{
    r->columns = r->table->columns;
    r->texts = r->table->texts;
    r->label_column = 0;
    r->text_column = r->columns - r->texts;
    return PD_OK;
}

static enum pd_err hand_out(struct reading *r, int64_t line, struct pd_why *why)
{
    struct data_row row = {.line = line,
                           .label = r->label.data ? r->label.data : "",
                           .label_len = r->label.len,
                           .text = r->text.data ? r->text.data : "",
                           .text_len = r->text.len};
    enum pd_err err = r->rows++ % ROWS_A_LOOK ? PD_OK : data_in_time(r->table->until_us, why);

    if (err == PD_OK && (r->label.failed || r->text.failed))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", r->table->name);
    return err == PD_OK ? r->table->row(r->table->user, &row, why) : err;
}

static enum pd_err read_columns(struct reading *r, struct pd_why *why)
{
    enum pd_err err;

    skip_blank_lines(r);
    if (r->at == r->end && r->table->columns)
        return pd_fail(why, PD_ERR_INVALID, "'%s' is empty: each line has %d columns, without a header row",
                       r->table->name, r->table->columns);
    if (r->at == r->end)
        return pd_fail(why, PD_ERR_INVALID,
                       "'%s' is empty: it begins with a header row that names the columns '%s' and '%s'",
                       r->table->name, r->table->label ? r->table->label : "label",
                       r->table->text ? r->table->text : "text");
    err = r->table->columns ? fixed_columns(r) : read_header(r, why);
    for (skip_blank_lines(r); err == PD_OK && r->at < r->end; skip_blank_lines(r)) {
        const int64_t line = r->line;
        bool last = false;
        int columns = 0;

        r->label.len = r->text.len = 0;
        for (; err == PD_OK && !last; columns++) {
            const bool text = columns >= r->text_column && columns < r->text_column + r->texts;

            if (text && columns > r->text_column)
                keep(&r->text, "\t", 1);
            err = take_column(r, columns == r->label_column ? &r->label : text ? &r->text : NULL, &last, why);
        }
        if (err == PD_OK && columns != r->columns)
            err = wrong(r, line, why, "%d column%s, %s %d", columns, columns == 1 ? "" : "s",
                        r->table->columns ? "and each line has" : "the header names", r->columns);
        if (err == PD_OK)
            err = hand_out(r, line, why);
    }
    return err;
}

/* ---- JSONL ---- */

static enum pd_err take_object(struct reading *r, const char *from, size_t len, struct pd_why *why)
{
    json_error_t error;
    json_t *o = json_loadb(from, len, JSON_REJECT_DUPLICATES, &error);
    const json_t *label = json_object_get(o, "label"), *text = json_object_get(o, "text");
    enum pd_err err = PD_OK;

    if (!o && json_error_code(&error) == json_error_out_of_memory)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to read '%s'", r->table->name);
    else if (!o)
        err = wrong(r, r->line, why, "invalid JSON: %.160s (byte %d)", error.text, error.position);
    else if (!json_is_object(o))
        err = wrong(r, r->line, why, "each line must be an object with \"label\" and \"text\"");
    else if (!json_is_string(label) && !json_is_integer(label))
        err = wrong(r, r->line, why, "\"label\" %s: it must be a string or an integer",
                    label ? "has the wrong type" : "is missing");
    else if (!json_is_string(text))
        err = wrong(r, r->line, why, "\"text\" %s: it must be a string",
                    text ? "has the wrong type" : "is missing");
    if (err == PD_OK) {
        r->label.len = r->text.len = 0;
        if (json_is_integer(label))
            pd_buf_printf(&r->label, "%lld", (long long)json_integer_value(label));
        else
            pd_buf_append(&r->label, json_string_value(label), json_string_length(label));
        pd_buf_append(&r->text, json_string_value(text), json_string_length(text));
        err = hand_out(r, r->line, why);
    }
    json_decref(o);
    return err;
}

static enum pd_err read_objects(struct reading *r, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (; err == PD_OK && r->at < r->end; r->line++) {
        const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at)), *from = r->at, *to;

        to = stop ? stop : r->end;
        r->at = stop ? stop + 1 : r->end;
        while (from < to && (*from == ' ' || *from == '\t' || *from == '\r'))
            from++;
        if (from < to)
            err = take_object(r, from, (size_t)(to - from), why);
    }
    return err;
}

enum pd_err data_table_read(const struct data_table *table, const void *bytes, size_t len, struct pd_why *why)
{
    struct reading r = {.table = table,
                        .at = bytes,
                        .end = (const char *)bytes + len,
                        .line = 1,
                        .label_column = -1,
                        .text_column = -1,
                        .texts = 1};
    enum pd_err err;

    pd_buf_init(&r.label, 0);
    pd_buf_init(&r.text, 0);
    if (len >= 3 && !memcmp(r.at, "\xef\xbb\xbf", 3))
        r.at += 3;
    err = table->form == JOB_TABLE_JSONL ? read_objects(&r, why) : read_columns(&r, why);
    if (err == PD_OK && !r.rows)
        err = pd_fail(why, PD_ERR_INVALID, "'%s' holds no texts", table->name);
    pd_buf_done(&r.label);
    pd_buf_done(&r.text);
    return err;
}
