/* api/api.h: polyd's HTTP front end (libmicrohttpd inside; included nowhere else).
 *
 * Two loops and a few threads that read the store run the handlers. They never wait for a commit or for a
 * worker: a handler hands the work over, suspends its connection and is called again when the answer is
 * there. One more thread watches suspended clients for their departure and sends the streams' keep-alive
 * comments.
 *
 * Order of life: open the store and its writer, start the supervisor, api_start; to
 * stop, api_stop first (it answers or breaks every open request), then the others, and
 * api_free last: until the supervisor and the writer have stopped, they may still complete
 * work whose request was given up. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/base/err.h"

struct config;
struct store_writer;
struct sup;
struct api;

struct api_deps {
    const struct config
        *config; /* addresses, limits, web directory, host and origin lists; outlives the api */
    struct store_writer *writer; /* takes every write; outlives the api */
    struct sup *sup;             /* inference, model loading, queue; outlives the api */
};

/* Binds, listens and serves. On PD_OK the caller owns *ret_api. PD_ERR_IO when the address
 * is taken or not ours. `deps` is copied; what it points at is borrowed until api_free. */
PD_NODISCARD enum pd_err api_start(const struct api_deps *deps, struct api **ret_api, struct pd_why *why);

/* The TCP port that is really bound (of use when port 0 was asked for). */
uint16_t api_port(const struct api *api);

/* What was read anew (config_renew): data roots and [keep] of it hold for submissions from now on. Lives as
 * long as the first. One thread. */
void api_reconfigure(struct api *api, const struct config *config);

/* Refuses new requests with 503 from now on (streams and running requests go on). Any thread. */
void api_drain(struct api *api);

/* Resumes every suspended connection, ends the streams and closes the socket: no handler runs
 * afterwards. NULL is fine. Call it once, before the supervisor and the writer stop. */
void api_stop(struct api *api);

/* Frees all. NULL is fine. Always returns NULL. Call it after api_stop, and after the supervisor and
 * the writer have stopped. */
struct api *api_free(struct api *api);

/* Writes the route table, one "METHOD path operationId" a line (`polyd routes`). */
void api_routes_print(FILE *out);
