/* api/yaml.h: the part of YAML that openapi.yaml is written in, turned into JSON.
 *
 * Block mappings and sequences by indentation, flow {..} and [..] within one line, plain, 'single' and
 * "double" quoted scalars, comments. No anchors, tags, block scalars or several documents: those are
 * PD_ERR_UNSUPPORTED. Plain true, false, null, ~ and numbers are what they look like; everything else is a
 * string. */
#pragma once

#include "kernels/base/buf.h"

/* Appends the JSON to `out`. PD_ERR_INVALID names the line. */
PD_NODISCARD enum pd_err api_yaml_to_json(const char *yaml, size_t len, struct pd_buf *out,
                                          struct pd_why *why);
