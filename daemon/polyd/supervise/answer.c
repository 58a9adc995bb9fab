#include "daemon/polyd/supervise/answer.h"

#include <stdio.h>

#include <jansson.h>

bool answer_info_read(const char *json, size_t len, struct answer_info *ret)
{
    json_t *top = json_loadb(json, len, 0, NULL);
    const char *version, *cuda, *nccl;
    bool good = top && !json_unpack(top, "{s:s,s:{s:s,s:s}}", "version", &version, "plugins", "backend_cuda",
                                    &cuda, "comm_nccl", &nccl);

    if (good) {
        snprintf(ret->version, sizeof ret->version, "%s", version);
        snprintf(ret->backend_cuda, sizeof ret->backend_cuda, "%s", cuda);
        snprintf(ret->comm_nccl, sizeof ret->comm_nccl, "%s", nccl);
    }
    json_decref(top);
    return good;
}

int64_t answer_plan_bytes(const char *json, size_t len)
{
    json_t *top = json_loadb(json, len, 0, NULL);
    json_int_t bytes = json_integer_value(json_object_get(top, "total_bytes"));

    json_decref(top);
    return bytes > 0 ? bytes : 0;
}
