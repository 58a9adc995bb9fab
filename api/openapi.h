/* api/openapi.h: openapi.yaml, compiled in (openapi_bytes.c is made from it at build). */
#pragma once

#include <stddef.h>

extern const unsigned char api_openapi_bytes[];
extern const size_t api_openapi_len;
