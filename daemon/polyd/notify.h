/* daemon/polyd/notify.h: systemd's notify protocol, without its library. Main thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sends "VAR=VALUE" lines to $NOTIFY_SOCKET; no effect if it is unset. */
void notify_send(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Interval of watchdog messages ($WATCHDOG_USEC / 2, if $WATCHDOG_PID is this process); 0 = none. */
int64_t notify_watchdog_us(void);
