#include "kernels/backend/load.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The driver's library; a driver is installed if it opens. */
static const char *driver_of(const char *name)
{
    return strcmp(name, "cuda") == 0 ? "libcuda.so.1" : NULL;
}

static enum pd_err ask_driver(const char *name, struct pd_why *why)
{
    const char *library = driver_of(name);
    void *handle;

    if (!library)
        return PD_OK;
    handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (!handle)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "this machine has no NVIDIA driver (%s cannot be opened); jobs run on device 'cpu'",
                       library);
    /* Not closed: the back end opens it again at once. */
    return PD_OK;
}

static bool join(char *out, size_t size, const char *folder, const char *middle, const char *name)
{
    int n = snprintf(out, size, "%s%s/backend_%s.so", folder, middle, name);

    return n > 0 && (size_t)n < size;
}

/* Writes the path of the plug-in into `out`. False: there is no such file. */
static bool find(const char *name, char *out, size_t size)
{
    const char *folder = getenv("POLYD_PLUGIN_DIR");
    char self[PATH_MAX - 128]; /* leaves room for the suffix */
    ssize_t n;
    char *slash;

    if (folder && *folder)
        return join(out, size, folder, "", name) && access(out, F_OK) == 0;
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return join(out, size, ".", "", name) && access(out, F_OK) == 0;
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    if (join(out, size, self, "", name) && access(out, F_OK) == 0)
        return true;
    if (join(out, size, self, "/../lib/polyd", name) && access(out, F_OK) == 0)
        return true;
    (void)join(out, size, self, "", name);
    return false;
}

static const char *named_file(const char *name)
{
    char variable[64];
    const char *value;

    snprintf(variable, sizeof variable, "POLYD_%s_PLUGIN", name);
    for (char *p = variable; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    value = getenv(variable);
    return value && *value ? value : NULL;
}

enum pd_err pk_backend_load(const char *name, enum pk_load purpose, const struct pk_backend_api **ret,
                            struct pd_why *why)
{
    const char *file = named_file(name);
    const struct pk_backend_api *api;
    pk_backend_entry_fn *entry;
    char path[PATH_MAX] = "";
    void *handle, *symbol;
    enum pd_err err;

    if (!file) {
        bool there = find(name, path, sizeof path);

        if (!there)
            return pd_fail(why, PD_ERR_NOT_FOUND,
                           "this polyd was built without the back end '%s' (there is no %s)", name, path);
        if (purpose == PK_LOAD_RUN) {
            err = ask_driver(name, why);
            if (err != PD_OK)
                return err;
        }
        file = path;
    } else if (access(file, F_OK) != 0) {
        return pd_fail(why, PD_ERR_NOT_FOUND, "the plug-in '%s' set in the environment does not exist", file);
    }
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return pd_fail(why, PD_ERR_IO, "the back end '%s' cannot be loaded: %s", name, dlerror());
    symbol = dlsym(handle, PK_BACKEND_ENTRY);
    if (!symbol) {
        err = pd_fail(why, PD_ERR_IO, "%s is not a back end: it has no %s", file, PK_BACKEND_ENTRY);
        goto out;
    }
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast from object to function */
    api = entry();
    if (!api) {
        err = pd_fail(why, PD_ERR_IO, "%s returned no table of functions", file);
        goto out;
    }
    if (api->abi != PK_BACKEND_ABI) {
        err = pd_fail(why, PD_ERR_VERSION,
                      "%s was built for version %u of the plug-in interface; this program has version %u",
                      file, api->abi, PK_BACKEND_ABI);
        goto out;
    }
    *ret = api;
    return PD_OK;
out:
    dlclose(handle);
    return err;
}
