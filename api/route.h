/* api/route.h: the one table of routes, and the pure parts of reading a request line:
 * percent-decoding, query strings, matching a path with a template. No I/O, no library:
 * everything here is called by the unit tests and the fuzzer with plain bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

struct api_req;

enum api_method { API_GET, API_POST, API_PUT, API_PATCH, API_DELETE, API_METHOD_COUNT, API_METHOD_UNKNOWN };

/* Each surface has its own shape of errors: problem+json, the Open Inference Protocol's, OpenAI's. */
enum api_surface { API_SURFACE_OWN, API_SURFACE_OIP, API_SURFACE_OPENAI, API_SURFACE_PAGE };

/* Allowed types of a body. Writes with another type are refused, which also blocks HTML forms of other sites.
 */
enum api_body {
    API_BODY_NONE,
    API_BODY_JSON,
    API_BODY_JSON_OR_EMPTY,
    API_BODY_TENSORS,
    API_BODY_JSON_OR_FILE /* application/octet-stream: of any size, streamed to a file (upload.h) */
};

/* Where a handler runs. Requests with a body above API_LOOP_BODY always count as long. */
enum api_lane {
    API_LANE_LOOP,  /* on the loop: reads only memory, or one row */
    API_LANE_SHORT, /* on a thread that reads the store */
    API_LANE_LONG   /* likewise, on one of the threads for long requests */
};
#define API_LOOP_BODY ((size_t)64 * 1024)

#define API_PARAMS_MAX 4
#define API_PARAM_BYTES 256 /* a decoded path parameter, NUL included */

struct api_route {
    enum api_method method;
    const char *path;      /* template: "/api/v1/jobs/{id}" */
    const char *operation; /* the handler's C name, and the operationId of openapi.yaml */
    void (*handler)(struct api_req *);
    enum api_surface surface;
    enum api_body body;
    size_t body_limit; /* bytes; 0 = no body is read */
    enum api_lane lane;
    bool probe; /* also answered on reserved connections */
    bool query; /* the handler takes query parameters and refuses unknown ones */
};

/* The values of a template's parameters, in order, decoded. */
struct api_params {
    int count;
    char value[API_PARAMS_MAX][API_PARAM_BYTES];
};

extern const struct api_route api_routes[];
extern const size_t api_routes_count;

/* HEAD counts as GET. */
enum api_method api_method_parse(const char *method);
const char *api_method_name(enum api_method method);

/* The surface of a raw path, known before a route matches. */
enum api_surface api_surface_of(const char *path);

/* Whether the raw (still encoded) path matches the template. Fills `params` (written only on true).
 * A segment that decodes to a NUL, a broken %-sequence or too many bytes never matches. {asset} as last
 * segment takes the rest of the path, slashes included, even if empty. */
bool api_path_match(const char *tmpl, const char *path, struct api_params *params);

/* Finds the route. NULL when none fits; then *ret_allowed is the set of methods (bit 1 << method)
 * that this path would accept: 0 means 404, else 405. */
const struct api_route *api_route_find(enum api_method method, const char *path, struct api_params *params,
                                       unsigned *ret_allowed);

/* Decodes %XX (and '+' as a blank if `plus`) of in[0..len) into `out` with a NUL.
 * PD_ERR_INVALID on a broken sequence or a NUL byte, PD_ERR_LIMIT if it does not fit. */
PD_NODISCARD enum pd_err api_percent_decode(const char *in, size_t len, bool plus, char *out, size_t size);

/* The n-th (from 0) value of `name` in a raw query string ("a=1&b=2"), decoded.
 * PD_ERR_NOT_FOUND if there is none; the errors of api_percent_decode. */
PD_NODISCARD enum pd_err api_query_get(const char *query, const char *name, int n, char *out, size_t size);

/* Whether all parameters of the query are in `names` (a NULL-terminated list). If not, the first other name
 * is copied to `unknown`. */
bool api_query_known(const char *query, const char *const *names, char *unknown, size_t size);
