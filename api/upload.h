/* api/upload.h: a body that is a file: written to the state folder piece by piece as it comes. */
#pragma once

#include "api/http.h"

/* What came, complete. Borrowed until the request ends, which removes the file. */
struct api_upload {
    char path[512];
    uint64_t bytes;
    uint8_t sha256[32];
};

/* NULL: the request's body is no file, or it is empty. */
const struct api_upload *api_upload_of(struct api_req *r);
/* A file that does not exist yet, `<state folder>/<folder>/<random>.safetensors`; makes the folder. False: the request
 * has been failed. */
bool api_upload_place(struct api_req *r, const char *folder, char *out, size_t size);
