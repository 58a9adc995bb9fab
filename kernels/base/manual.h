/* kernels/base/manual.h: writes a manual page, in roff with the macros of man(7), so that a program can print
 * its own from the tables behind its --help.
 *
 * Texts are UTF-8 and taken literally: roff commands in them are escaped. The buffer keeps errors (buf.h). */
#pragma once

#include "kernels/base/buf.h"

/* The head of the page and its section NAME: "polyd(8)", "polyd - `what`". `source`: program and version, for
 * the foot of the page. */
void pd_manual_begin(struct pd_buf *b, const char *name, int section, const char *source, const char *what);
/* Begins a section ("OPTIONS"). */
void pd_manual_section(struct pd_buf *b, const char *title);
/* Begins a subsection ("[server]"). */
void pd_manual_subsection(struct pd_buf *b, const char *title);
void pd_manual_paragraph(struct pd_buf *b, const char *text);
/* An entry of a list: the term in bold, `text` below it, indented. */
void pd_manual_entry(struct pd_buf *b, const char *term, const char *text);
