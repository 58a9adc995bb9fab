#include "kernels/base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"

static _Atomic int log_level = PD_LOG_INFO;

void pd_log_set_level(enum pd_log_level level)
{
    atomic_store(&log_level, (int)level);
}

static _Atomic bool omit_priority;

void pd_log_omit_priority(bool omit)
{
    atomic_store(&omit_priority, omit);
}

void pd_log(enum pd_log_level level, const char *module, const char *fmt, ...)
{
    char line[2048];
    char when[PD_CLOCK_TEXT_SIZE];
    size_t used;
    va_list ap;
    int n;

    if ((int)level > atomic_load(&log_level))
        return;
    pd_clock_format(when, sizeof when, pd_clock_wall_us());
    if (atomic_load(&omit_priority))
        n = snprintf(line, sizeof line, "%s %s%s: ", when,
                     level <= PD_LOG_ERROR     ? "error "
                     : level == PD_LOG_WARNING ? "warning "
                                               : "",
                     module);
    else
        n = snprintf(line, sizeof line, "<%d>%s %s: ", (int)level, when, module);
    used = n > 0 ? (size_t)n : 0;
    va_start(ap, fmt);
    n = vsnprintf(line + used, sizeof line - used, fmt, ap);
    va_end(ap);
    used += n > 0 ? (size_t)n : 0;
    if (used > sizeof line - 2)
        used = sizeof line - 2; /* cut short: the newline must fit */
    line[used++] = '\n';
    /* a failed write to the log cannot be reported anywhere */
    if (write(STDERR_FILENO, line, used) < 0)
        return;
}

const char *pd_log_quote(char *out, size_t size, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;

    if (size < 3) {
        if (size)
            out[0] = '\0';
        return out;
    }
    out[n++] = '"';
    /* The longest escape is four bytes; a closing quote and NUL follow. */
    for (; *text && n + 4 + 2 <= size; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            out[n++] = '\\';
            out[n++] = (char)c;
        } else if (c == '\n') {
            out[n++] = '\\';
            out[n++] = 'n';
        } else if (c < 0x20 || c == 0x7f) {
            out[n++] = '\\';
            out[n++] = 'x';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        } else {
            out[n++] = (char)c;
        }
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
