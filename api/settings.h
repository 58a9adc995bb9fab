/* api/settings.h: the values that the HTTP layer takes from the configuration, read once at start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/check.h"

struct api_settings {
    struct api_allow allow;
    const char *bind;         /* address */
    uint16_t port;            /* 0 = any free one */
    int threads;              /* that answer HTTP */
    const char *web_dir;      /* files of the page from this directory; NULL = the embedded ones */
    int connections;          /* most at once */
    int connections_per_ip;   /* 0 = no limit */
    int idle_timeout_s;       /* of a connection without traffic */
    int header_timeout_s;     /* from the connection's first moment to the end of a request's header */
    int body_timeout_s;       /* from the header to the end of the body */
    int connections_reserved; /* beyond `connections`, for probes and /metrics */
    int body_grace_s;         /* of a body, before body_rate counts */
    int64_t body_rate;        /* bytes a second that a body must bring; 0 = any */
    size_t body_max;          /* bytes: no route takes more, whatever its own limit */
    size_t upload_max;        /* bytes of a body that is a file */
    int readers;              /* threads for handlers that read the store or a large body */
    int64_t read_timeout_us;  /* of a request that waits for such a thread, and again of its reads */
    int sse_clients;          /* event streams at once */
    int64_t jobs;             /* jobs that have not ended; more are refused */
    int infer_queue;          /* inference requests waiting or running at once */
    int64_t infer_timeout_us; /* when the request names none */
    int64_t wait_timeout_us;  /* how long api_stop waits for writes in flight */
};
