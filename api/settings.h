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
    int header_timeout_s;     /* from the start of the connection to the end of a request's header */
    int body_timeout_s;       /* from the header to the end of the body */
    int connections_reserved; /* beyond `connections`, for probes and /metrics */
    int body_grace_s;         /* of a body, before body_rate applies */
    int64_t body_rate;        /* minimum bytes per second of a body; 0 = no limit */
    size_t body_max;          /* bytes: upper bound for the limits of all routes */
    size_t upload_max;        /* maximum bytes of an upload */
    int readers;              /* threads for handlers that read the store or a large body */
    int64_t read_timeout_us;  /* maximum wait for such a thread, and maximum duration of the reads */
    int sse_clients;          /* event streams at once */
    int64_t jobs;             /* jobs that have not ended; more are refused */
    int infer_queue;          /* inference requests waiting or running at once */
    int64_t infer_timeout_us; /* for requests without a deadline */
    int64_t wait_timeout_us;  /* how long api_stop waits for pending writes */
};
