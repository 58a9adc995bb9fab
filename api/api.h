/* api/api.h: polyd's HTTP front end (libmicrohttpd inside; included nowhere else).
 *
 * Two loops and a few threads that read the store run the handlers. They never wait for a commit or for a
 * worker: a handler submits the operation, suspends its connection and is called again when the result is
 * available. One more thread detects suspended clients that disconnect, and sends the keep-alive comments of
 * streams.
 *
 * Order of life: open the store and its writer, start the supervisor, api_start; to
 * stop, api_stop first (it answers or aborts every open request), then the others, and api_free last: until
 * the supervisor and the writer have stopped, they may still complete operations of abandoned requests. */
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
    /* addresses, limits, web directory, host and origin lists; outlives the api */
    const struct config *config;
    struct store_writer *writer; /* executes all writes; outlives the api */
    struct sup *sup;             /* inference, model loading, queue; outlives the api */
};

/* Binds, listens and serves. On PD_OK the caller owns *ret_api. PD_ERR_IO if the address is in use or not of
 * this machine. `deps` is copied; the objects that it points to are borrowed until api_free. */
PD_NODISCARD enum pd_err api_start(const struct api_deps *deps, struct api **ret_api, struct pd_why *why);

/* The bound TCP port (useful if port 0 was requested). */
uint16_t api_port(const struct api *api);

/* Replaces the configuration by a reloaded one (config_renew): its data roots and [keep] apply to later
 * submissions. It must outlive the api. One thread only. */
void api_reconfigure(struct api *api, const struct config *config);

/* From now on refuses new requests with 503 (streams and running requests continue). Any thread. */
void api_drain(struct api *api);

/* Resumes every suspended connection, ends the streams and closes the socket: no handler runs
 * afterwards. NULL is fine. Call it once, before the supervisor and the writer stop. */
void api_stop(struct api *api);

/* Frees all. NULL is fine. Always returns NULL. Call it after api_stop, and after the supervisor and
 * the writer have stopped. */
struct api *api_free(struct api *api);

/* Writes the route table, one "METHOD path operationId" per line (`polyd routes`). */
void api_routes_print(FILE *out);
