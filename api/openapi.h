/* api/openapi.h: the contract, compiled in: openapi.yaml, and the same as JSON, which the build makes. */
#pragma once

#include <stddef.h>

extern const unsigned char api_openapi_yaml_text[];
extern const size_t api_openapi_yaml_text_len;
extern const unsigned char api_openapi_json_text[];
extern const size_t api_openapi_json_text_len;
