/* kernels/backend/load.h: opens a back end that is a plug-in (backend_cuda.so).
 *
 * The file is looked for in POLYD_PLUGIN_DIR if that is set, else beside the running program, else in
 * ../lib/polyd from there. POLYD_CUDA_PLUGIN (POLYD_<NAME>_PLUGIN) names the file itself: for packagers who
 * keep it elsewhere, and for tests, which open a back end that needs no driver so; with it the driver is not
 * asked for first. Once opened, a plug-in stays until the program ends: libraries below it do not survive
 * being closed. */
#pragma once

#include "kernels/backend/backend.h"

enum pk_load {
    PK_LOAD_RUN,  /* a device will be opened: without a driver it is refused here, in a clear sentence */
    PK_LOAD_PLAN, /* only supports and workspace_bytes will be asked, without a device: no driver is needed */
};

/* `name` is "cuda". On PD_OK *ret is static. PD_ERR_UNSUPPORTED: no driver. PD_ERR_NOT_FOUND: polyd was built
 * without this back end, or the file is gone. PD_ERR_VERSION: built for another version of the table.
 * PD_ERR_IO: it is there and does not load (a library that it needs is missing), or is not a back end. */
PD_NODISCARD enum pd_err pk_backend_load(const char *name, enum pk_load purpose,
                                         const struct pk_backend_api **ret, struct pd_why *why);
