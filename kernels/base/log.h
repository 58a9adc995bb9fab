/* kernels/base/log.h: one structured line per event, on standard error.
 *
 * `<6>2026-11-20T23:50:07.123Z sched: job=42 state=running why="..."`: the number is the syslog priority, read
 * by systemd and by the dashboard in the logs of attempts. Callers write the key=value pairs; values with
 * blanks are quoted (pd_log_quote). Library functions return errors; the caller that handles an error logs it,
 * once. Thread-safe: a line is one write(2). */
#pragma once

#include <stdbool.h>

#include "kernels/base/err.h"

enum pd_log_level { PD_LOG_ERROR = 3, PD_LOG_WARNING = 4, PD_LOG_INFO = 6, PD_LOG_DEBUG = 7 };

/* Lines above this level are dropped. Default PD_LOG_INFO. */
void pd_log_set_level(enum pd_log_level level);

/* Lines for people: instead of the number, the word "error" or "warning" before the sender. */
void pd_log_omit_priority(bool omit);

/* `module` is the sender, for example "store"; `fmt` the pairs, without a newline. */
void pd_log(enum pd_log_level level, const char *module, const char *fmt, ...) PD_PRINTF(3, 4);

/* Copies `text` into `out` (of `size` bytes), quoted, with control characters, quotes and
 * backslashes escaped; cut short if it does not fit. Returns `out`. */
const char *pd_log_quote(char *out, size_t size, const char *text);
