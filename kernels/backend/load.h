/* kernels/backend/load.h: opens a back end that is a plug-in (backend_cuda.so).
 *
 * The file is searched in POLYD_PLUGIN_DIR if that is set, else in the folder of the running program, else in
 * ../lib/polyd from there. POLYD_CUDA_PLUGIN (POLYD_<NAME>_PLUGIN) names the file itself, without the check for a
 * driver: for packagers who install it elsewhere, and for tests, whose plug-in needs no driver. An opened plug-in
 * is never closed: the libraries that it loads do not survive that. */
#pragma once

#include "kernels/backend/backend.h"

enum pk_load {
    PK_LOAD_RUN,  /* a device will be opened: fails here if there is no driver */
    PK_LOAD_PLAN, /* only supports and workspace_bytes will be called, without a device: no driver is needed */
};

/* `name` is "cuda". On PD_OK *ret is static. PD_ERR_UNSUPPORTED: no driver. PD_ERR_NOT_FOUND: polyd was built
 * without this back end, or the file is gone. PD_ERR_VERSION: built for another version of the table.
 * PD_ERR_IO: the file exists but does not load (a library that it needs is missing), or is not a back end. */
PD_NODISCARD enum pd_err pk_backend_load(const char *name, enum pk_load purpose,
                                         const struct pk_backend_api **ret, struct pd_why *why);
