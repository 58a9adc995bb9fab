/* A piece of the body is written by a thread of the pool while its connection is suspended: no loop waits for the disk,
 * a client is read no faster than the disk takes it, and an upload costs the memory of its connection alone. */
#include "api/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/internal.h"
#include "daemon/digest/digest.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

#define UPLOADS_MAX 16 /* at once */

struct api_uploading {
    struct api_upload done;
    struct digest_sha256 hash;
    int fd;
    /* The piece that a thread of the pool writes, or has written; in libmicrohttpd's buffer. */
    const char *piece;
    size_t piece_bytes;
    bool written;
};

bool api_upload_place(struct api_req *r, const char *folder, char *out, size_t size)
{
    uint8_t random[16];
    char name[2 * sizeof random + 1], dir[400];
    struct pd_why why = {.text = ""};
    enum pd_err err;

    snprintf(dir, sizeof dir, "%.300s/%s", api_config(r->api)->state.dir, folder);
    err = pd_file_make_dirs(dir, &why);
    if (err == PD_OK)
        err = digest_random(random, sizeof random, &why);
    if (err == PD_OK &&
        snprintf(out, size, "%s/%s.safetensors", dir, digest_hex(random, sizeof random, name)) >= (int)size)
        err = pd_fail(&why, PD_ERR_LIMIT, "the state folder's name is too long");
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    return err == PD_OK;
}

bool api_upload_begin(struct api_req *r)
{
    struct api *api = r->api;

    if (atomic_fetch_add(&api->uploads, 1) >= UPLOADS_MAX) {
        atomic_fetch_sub(&api->uploads, 1);
        api_fail(r, PD_ERR_BUSY, "%d uploads are under way", UPLOADS_MAX);
        return false;
    }
    r->upload = calloc(1, sizeof *r->upload);
    if (!r->upload) {
        atomic_fetch_sub(&api->uploads, 1);
        api_fail(r, PD_ERR_NOMEM, "no memory for the upload");
        return false;
    }
    r->upload->fd = -1;
    digest_sha256_init(&r->upload->hash);
    return true;
}

void api_upload_free(struct api_req *r)
{
    struct api_uploading *u = r->upload;

    if (!u)
        return;
    atomic_fetch_sub(&r->api->uploads, 1);
    if (u->fd >= 0) {
        close(u->fd);
        (void)unlink(u->done.path);
    }
    free(u);
    r->upload = NULL;
}

static enum pd_err create(struct api_req *r, struct api_uploading *u, struct pd_why *why)
{
    if (u->fd >= 0)
        return PD_OK;
    if (!api_upload_place(r, "uploads", u->done.path, sizeof u->done.path))
        return PD_ERR_IO;
    u->fd = open(u->done.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return u->fd >= 0 ? PD_OK : pd_fail_errno(why, errno, "cannot create a file for the upload");
}

/* On a thread of the pool. */
static void write_piece(struct api_req *r)
{
    struct api_uploading *u = r->upload;
    struct pd_why why = {.text = ""};
    enum pd_err err = create(r, u, &why);

    if (err == PD_OK)
        err = pd_file_write_all(u->fd, u->piece, u->piece_bytes, &why);
    if (err == PD_OK) {
        digest_sha256_update(&u->hash, u->piece, u->piece_bytes);
        u->done.bytes += u->piece_bytes;
    } else if (!api_failed(r)) {
        api_fail(r, err, "the upload cannot be stored: %s", why.text);
    }
    u->written = true;
}

enum MHD_Result api_upload_take(struct api_req *r, const char *bytes, size_t *size)
{
    struct api_uploading *u = r->upload;

    if (u->written) { /* it was kept or refused; `size` may be more by now */
        *size -= u->piece_bytes;
        u->written = false;
        return MHD_YES;
    }
    if (u->done.bytes + *size > r->api->set.upload_max) {
        api_fail(r, API_FAULT_BODY_TOO_LARGE, "an upload has at most %llu bytes (server.max_upload_bytes)",
                 (unsigned long long)r->api->set.upload_max);
        *size = 0;
        return MHD_YES;
    }
    u->piece = bytes;
    u->piece_bytes = *size;
    if (!api_pool_give(r, true, write_piece))
        *size = 0;
    r->given = false;
    return MHD_YES;
}

const struct api_upload *api_upload_of(struct api_req *r)
{
    struct api_uploading *u = r->upload;

    if (!u || !u->done.bytes)
        return NULL;
    if (!u->piece) /* asked for again */
        return &u->done;
    digest_sha256_final(&u->hash, u->done.sha256);
    u->piece = NULL;
    return &u->done;
}
