/* Opens the plug-in for GPUs. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm/comm.h"

/* In the folder of the program, where the build puts it, or in ../lib/polyd from there, where an installation does. False: the
 * program's folder is not known. */
static bool find(char *out, size_t size)
{
    static const char *const places[] = {"comm_nccl.so", "../lib/polyd/comm_nccl.so"};
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    size_t left;
    char *slash;

    if (n <= 0)
        return false;
    out[n] = '\0';
    slash = strrchr(out, '/');
    if (!slash)
        return false;
    left = size - (size_t)(slash + 1 - out);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if ((size_t)snprintf(slash + 1, left, "%s", places[i]) < left && access(out, F_OK) == 0)
            return true;
    return (size_t)snprintf(slash + 1, left, "%s", places[0]) < left;
}

enum pd_err pk_comm_load_nccl(const char *path, const struct pk_comm_api **ret, struct pd_why *why)
{
    const struct pk_comm_api *(*entry)(void) = NULL;
    const struct pk_comm_api *api;
    char own[4096];
    void *lib, *symbol;

    if (!path) {
        if (!find(own, sizeof own))
            return pd_fail(why, PD_ERR_NOT_FOUND,
                           "cannot find the folder of the program, where comm_nccl.so would be");
        path = own;
    }
    if (access(path, R_OK) != 0)
        return pd_fail(why, PD_ERR_NOT_FOUND, "'%s' is missing: this build cannot run several ranks on GPUs",
                       path);
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "cannot open '%s': %s", path, dlerror());
    symbol = dlsym(lib, PK_COMM_ENTRY);
    if (!symbol) {
        dlclose(lib);
        return pd_fail(why, PD_ERR_VERSION, "'%s' is not a plug-in of polyd: it lacks %s", path,
                       PK_COMM_ENTRY);
    }
    memcpy(&entry, &symbol, sizeof entry); /* POSIX allows this conversion, ISO C does not define it */
    api = entry();
    if (!api || api->abi != PK_COMM_ABI) {
        unsigned abi = api ? (unsigned)api->abi : 0;

        dlclose(lib);
        return pd_fail(why, PD_ERR_VERSION,
                       "'%s' was built for version %u of the plug-in interface, this program has version %u",
                       path, abi, PK_COMM_ABI);
    }
    *ret = api; /* the library stays: its threads and handles outlive a comm */
    return PD_OK;
}
