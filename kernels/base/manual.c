#include "kernels/base/manual.h"

#include <stdbool.h>
#include <string.h>

/* Writes one line of text. A leading point or apostrophe would be a roff command. Hyphens become minus signs, so
 * that flags can be copied from the page. */
static void escaped(struct pd_buf *b, const char *text)
{
    bool begin = true;

    for (; *text; text++) {
        if (begin && (*text == '.' || *text == '\''))
            pd_buf_str(b, "\\&");
        if (*text == '\\')
            pd_buf_str(b, "\\e");
        else if (*text == '-')
            pd_buf_str(b, "\\-");
        else
            pd_buf_append(b, text, 1);
        begin = *text == '\n';
    }
}

static void macro(struct pd_buf *b, const char *name, const char *text)
{
    pd_buf_printf(b, "%s ", name);
    escaped(b, text);
    pd_buf_str(b, "\n");
}

void pd_manual_begin(struct pd_buf *b, const char *name, int section, const char *source, const char *what)
{
    pd_buf_str(b, ".TH \"");
    escaped(b, name);
    pd_buf_printf(b, "\" %d \"\" \"", section);
    escaped(b, source);
    pd_buf_str(b, "\" \"\"\n.SH NAME\n");
    escaped(b, name);
    pd_buf_str(b, " \\- ");
    escaped(b, what);
    pd_buf_str(b, "\n");
}

void pd_manual_section(struct pd_buf *b, const char *title)
{
    macro(b, ".SH", title);
}

void pd_manual_subsection(struct pd_buf *b, const char *title)
{
    macro(b, ".SS", title);
}

void pd_manual_paragraph(struct pd_buf *b, const char *text)
{
    pd_buf_str(b, ".PP\n");
    escaped(b, text);
    pd_buf_str(b, "\n");
}

void pd_manual_entry(struct pd_buf *b, const char *term, const char *text)
{
    pd_buf_str(b, ".TP\n\\fB");
    escaped(b, term);
    pd_buf_str(b, "\\fR\n");
    escaped(b, text);
    pd_buf_str(b, "\n");
}
