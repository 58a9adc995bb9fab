#include "daemon/polyd/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_send(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char text[512];
    va_list ap;
    size_t len;
    int fd, n;

    if (!path || (*path != '/' && *path != '@') || (len = strlen(path)) >= sizeof addr.sun_path)
        return;
    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text)
        return;
    memcpy(addr.sun_path, path, len);
    if (*path == '@')
        addr.sun_path[0] = '\0'; /* an abstract name */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* A missing listener is not an error. */
    if (sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (struct sockaddr *)&addr,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
        n = 0;
    close(fd);
}

int64_t notify_watchdog_us(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    long long value;

    if (!usec || (pid && *pid && atoll(pid) != getpid()))
        return 0;
    value = atoll(usec);
    return value > 0 ? value / 2 : 0;
}
