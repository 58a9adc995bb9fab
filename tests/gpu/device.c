#include "tests/gpu/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/load.h"

static const struct pk_backend_api *api;
static struct pk_backend *device;
static bool missing[PK_OP_COUNT];

static void say(void *user, int level, const char *text)
{
    (void)user;
    (void)level;
    print_message("%s\n", text);
}

static const struct pk_host host = {.log = say};

bool gpu_is_emulated(void)
{
    const char *real = getenv("POLYD_TEST_GPU");

    return !real || strcmp(real, "1") != 0;
}

const struct pk_backend_api *gpu_api(void)
{
    struct pd_why why = {""};

    if (api)
        return api;
    if (gpu_is_emulated())
        setenv("POLYD_CUDA_PLUGIN", EMULATED_PLUGIN, 0);
    if (pk_backend_load("cuda", PK_LOAD_RUN, &api, &why) != PD_OK)
        fail_msg("%s", why.text);
    return api;
}

struct pk_backend *gpu_device(void)
{
    struct pd_why why = {""};

    if (!device && gpu_api()->open(&host, 0, 1, &device, &why) != PD_OK)
        fail_msg("%s", why.text);
    return device;
}

int gpu_close(void **state)
{
    (void)state;
    if (device)
        device = api->close(device);
    gpu_report_missing();
    return 0;
}

void gpu_note_missing(enum pk_op op)
{
    missing[op] = true;
}

void gpu_report_missing(void)
{
    for (int op = 0; op < PK_OP_COUNT; op++)
        if (missing[op])
            print_message("SKIPPED: the back end has no kernel for %s\n", pk_op_name((enum pk_op)op));
}
