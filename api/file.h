/* api/file.h: replies with the bytes of a file, sent in pieces. */
#pragma once

#include "api/http.h"

struct api_file_part {
    uint64_t offset, bytes; /* of the file */
};

/* `head` in memory, then parts of a file. */
struct api_file {
    int fd;     /* owned; -1 = none */
    char *head; /* owned; NULL without one */
    size_t head_bytes;
    struct api_file_part *parts; /* owned */
    size_t part_count;
    uint64_t bytes; /* of head and parts */
};

/* NULL is fine. */
void api_file_done(struct api_file *f);

/* Answers with the file, of which `sha256` (hex) is the digest of all bytes: 200 or 206 as Range and If-Range
 * say, 304 as If-None-Match says, 416 for a range outside. `name`: file name of the download. Takes ownership
 * of the contents of *f, also on failure; *f is empty afterwards. */
void api_reply_file(struct api_req *r, struct api_file *f, const char *sha256, const char *name);
