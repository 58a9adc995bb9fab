/* daemon/worker/serve/params.h: the parameters of a request, read from one JSON object (README.md lists
 * them).
 *
 * The daemon's api writes that object, so the parser is small: no numbers beyond double, no nesting beyond
 * the known members. It still validates every byte, and refuses unknown, repeated and out-of-range members by
 * name. */
#pragma once

#include "daemon/worker/serve/serve.h"

#define SERVE_OUT_LOGITS 1u
#define SERVE_OUT_PROBABILITIES 2u
#define SERVE_OUT_CLASS 4u
#define SERVE_OUT_LABEL 8u /* the name of the class, where the model has names */
#define SERVE_OUT_ALL 15u

struct serve_params {
    struct serve_sampling sampling; /* its stops and bias point into this object: do not copy it */
    bool stream;
    unsigned outputs; /* SERVE_OUT_*: the requested outputs */
    char stop_bytes[SERVE_STOPS_MAX][SERVE_STOP_BYTES_MAX];
    struct serve_bias bias[SERVE_BIAS_MAX];
};

/* Parameters of a request of kind "complete". PD_ERR_CORRUPT: not a JSON object; PD_ERR_INVALID: a member is
 * unknown, given twice, or out of range. */
PD_NODISCARD enum pd_err serve_params_complete(const char *json, size_t len, struct serve_params *ret,
                                               struct pd_why *why);

/* The same for a field, whose only output is u. */
PD_NODISCARD enum pd_err serve_params_field(const char *json, size_t len, struct serve_params *ret,
                                            struct pd_why *why);
/* Parameters of a request of kind "infer". */
PD_NODISCARD enum pd_err serve_params_infer(const char *json, size_t len, struct serve_params *ret,
                                            struct pd_why *why);
