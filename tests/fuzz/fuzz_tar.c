/* The index of a tar archive (daemon/worker/data/tar.h): whatever is told lies inside, and names are whole.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/tar.h"

struct input {
    const uint8_t *bytes;
    size_t len;
};

static void link_of(void *user, const char *name)
{
    (void)user;
    if (*name == '/' || strlen(name) > DATA_TAR_NAME_MAX)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static enum pd_err read_at(void *user, uint64_t at, void *to, size_t len, struct pd_why *why)
{
    const struct input *in = user;

    (void)why;
    if (at > in->len || len > in->len - at)
        abort();
    memcpy(to, in->bytes + at, len);
    return PD_OK;
}

static enum pd_err entry(void *user, const char *name, uint64_t at, uint64_t len, struct pd_why *why)
{
    const struct input *in = user;

    (void)why;
    if (at > in->len || len > in->len - at || !*name || *name == '/' || strlen(name) > DATA_TAR_NAME_MAX)
        abort();
    return PD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct input in = {bytes, len};
    struct data_tar_source source = {.read = read_at, .link = link_of, .user = &in, .size = len};
    struct pd_why why;

    (void)!data_tar_scan(&source, entry, &in, &why);
    return 0;
}
