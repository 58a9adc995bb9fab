/* api/upload.h: a request body that is a file, streamed to the state folder. */
#pragma once

#include "api/http.h"

/* The complete file. Borrowed until the request ends, which removes the file. */
struct api_upload {
    char path[512];
    uint64_t bytes;
    uint8_t sha256[32];
};

/* NULL: the body is not a file, or it is empty. */
const struct api_upload *api_upload_of(struct api_req *r);
/* Path of a new file, `<state folder>/<folder>/<random>.safetensors`; creates the folder. False: an error
 * reply was set. */
bool api_upload_place(struct api_req *r, const char *folder, char *out, size_t size);
