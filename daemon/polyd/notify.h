/* daemon/polyd/notify.h: systemd's notify protocol, without its library. Main thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sends "VAR=VALUE" lines to $NOTIFY_SOCKET; does nothing where there is none. */
void notify_send(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* How often the watchdog wants to hear from us ($WATCHDOG_USEC / 2, if $WATCHDOG_PID is ours); 0 = never. */
int64_t notify_watchdog_us(void);
