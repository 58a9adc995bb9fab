#include "api/server.h"

#include <stdlib.h>
#include <string.h>

/* One text "a,b,c" of a list. */
static void join(struct pd_buf *b, struct config_list list)
{
    for (size_t i = 0; i < list.count; i++) {
        if (i)
            pd_buf_append(b, ",", 1);
        pd_buf_str(b, list.items[i]);
    }
    pd_buf_append(b, "", 1);
}

enum pd_err api_settings_read(const struct config *config, struct api_settings *ret, char **ret_owned,
                              struct pd_why *why)
{
    struct pd_buf b;
    size_t origins;

    pd_buf_init(&b, 0);
    join(&b, config->server.allowed_hosts);
    origins = b.len;
    join(&b, config->server.allowed_origins);
    if (pd_buf_err(&b) != PD_OK) {
        pd_buf_done(&b);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server's settings");
    }
    *ret_owned = pd_buf_take(&b);
    *ret = (struct api_settings){
        .allow = {.hosts = *ret_owned, .origins = *ret_owned + origins, .bind = config->server.listen},
        .bind = config->server.listen,
        .port = (uint16_t)config->server.port,
        .threads = (int)config->server.threads,
        .web_dir = config->web.dir,
        .connections = (int)config->server.max_connections,
        .connections_per_ip = (int)config->server.max_connections_per_address,
        .idle_timeout_s = 60,
        .header_timeout_s = 10,
        .body_timeout_s = 120,
        .connections_reserved = (int)config->server.reserved_connections,
        .body_grace_s = 5,
        .body_rate = config->server.min_body_rate,
        .body_max = (size_t)config->server.max_body_bytes,
        .upload_max = (size_t)config->server.max_upload_bytes,
        .readers = (int)config->server.readers,
        .read_timeout_us = config->server.read_timeout_ms * 1000,
        .sse_clients = (int)config->limits.sse_clients,
        .jobs = config->limits.jobs,
        .infer_queue = (int)config->serve.queue * 4, /* over all models; each model's own queue is shorter */
        .infer_timeout_us = config->serve.timeout_ms * 1000,
        .wait_timeout_us = 5000000,
    };
    return PD_OK;
}
