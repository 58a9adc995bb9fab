#include "tests/devices/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

void machine_write(const char *text)
{
    char fresh[80];
    FILE *f;

    snprintf(fresh, sizeof fresh, "%s.new", path);
    f = fopen(fresh, "we");
    if (!f || fputs(text, f) < 0 || fclose(f) || rename(fresh, path))
        abort();
}

/* One name for the whole program: a thread that the last test left inside the driver may still ask for it. */
void machine_begin(const char *text)
{
    if (!path[0]) {
        int fd;

        snprintf(path, sizeof path, "/tmp/polyd-nvml.XXXXXX");
        fd = mkstemp(path);
        if (fd < 0)
            abort();
        close(fd);
        setenv("POLYD_FAKE_NVML", path, 1);
    }
    machine_write(text);
}

void machine_end(void)
{
    unlink(path);
}

const char *machine_of(int count, const char *further)
{
    static char text[65536];
    size_t len = (size_t)snprintf(text, sizeof text, "driver 580.65.06\n");

    for (int i = 0; i < count; i++)
        len += (size_t)snprintf(
            text + len, sizeof text - len,
            "gpu %d uuid=GPU-%02d name=\"NVIDIA H200\" bus=00000000:%02X:00.0 total=150000000000 "
            "used=600000000 "
            "reserved=600000000 util=0 memutil=0 temp=31 power=75000 limit=700000 clock=1980 major=9 minor=0 "
            "ecc=0,0 remap_failed=0 mig=0%s%s\n",
            i, i, 16 + i, further[0] ? " " : "", further);
    return text;
}
