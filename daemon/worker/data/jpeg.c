/* daemon/worker/data/jpeg.c: JPEG by libjpeg-turbo; the one place that includes jpeglib.h.
 *
 * The library reports by longjmp: what must survive it lives in one struct on the caller's side of setjmp.
 * What it only warns of is an error here when pixels were made up for lost data: a picture is whole or
 * refused. Bytes that merely do not belong there are let pass, since collections such as ImageNet hold
 * some. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off: the numbers of jerror.h depend on what jpeglib.h defines */
#include <jpeglib.h>
#include <jerror.h>
/* clang-format on */

#include "daemon/worker/data/codec.h"

/* A progressive file may name thousands of scans over one picture: hours of work in few bytes. */
#define SCANS_MAX 200

struct jpeg {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr err;
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    enum pd_err failed;
    char text[JMSG_LENGTH_MAX];
    uint8_t *pixels, *row;
};

static void leave(struct jpeg *j, enum pd_err err)
{
    j->failed = err;
    longjmp(j->out, 1);
}

static void on_error(j_common_ptr c)
{
    struct jpeg *j = c->client_data;

    c->err->format_message(c, j->text);
    leave(j, c->err->msg_code == JERR_OUT_OF_MEMORY ? PD_ERR_NOMEM : PD_ERR_CORRUPT);
}

static void on_message(j_common_ptr c, int level)
{
    if (level >= 0)
        return; /* a trace */
    switch (c->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
        on_error(c);
        break;
    default:
        break;
    }
}

static void on_output(j_common_ptr c)
{
    (void)c;
}

static void on_progress(j_common_ptr c)
{
    struct jpeg *j = c->client_data;

    if (j->d.input_scan_number > SCANS_MAX) {
        snprintf(j->text, sizeof j->text, "more than %d scans", SCANS_MAX);
        leave(j, PD_ERR_LIMIT);
    }
}

static void check_size(struct jpeg *j)
{
    struct pd_why why;
    enum pd_err err = data_image_check(j->d.image_height, j->d.image_width, &why);

    if (err != PD_OK) {
        snprintf(j->text, sizeof j->text, "%.*s", JMSG_LENGTH_MAX - 1, why.text);
        leave(j, err);
    }
}

static void start(struct jpeg *j, const void *bytes, size_t len)
{
    jpeg_create_decompress(&j->d);
    j->d.client_data = j;
    j->progress.progress_monitor = on_progress;
    j->d.progress = &j->progress;
    jpeg_mem_src(&j->d, bytes, (unsigned long)len);
    (void)jpeg_read_header(&j->d, TRUE);
    check_size(j);
}

static void set_errors(struct jpeg *j)
{
    memset(j, 0, sizeof *j);
    j->d.err = jpeg_std_error(&j->err);
    j->d.client_data = j; /* an error may come from jpeg_create_decompress itself */
    j->err.error_exit = on_error;
    j->err.emit_message = on_message;
    j->err.output_message = on_output;
}

enum pd_err data_jpeg_size(const void *bytes, size_t len, int32_t *ret_height, int32_t *ret_width,
                           struct pd_why *why)
{
    struct jpeg j;

    set_errors(&j);
    if (setjmp(j.out)) {
        jpeg_destroy_decompress(&j.d);
        return pd_fail(why, j.failed, "JPEG: %s", j.text);
    }
    start(&j, bytes, len);
    *ret_height = (int32_t)j.d.image_height;
    *ret_width = (int32_t)j.d.image_width;
    jpeg_destroy_decompress(&j.d);
    return PD_OK;
}

/* Inks to light as Pillow does it. Adobe stores inks inverted. */
static void from_cmyk(const uint8_t *from, uint8_t *to, int32_t width, bool inverted)
{
    for (int32_t x = 0; x < width; x++, from += 4, to += 3) {
        unsigned k = inverted ? from[3] : 255u - from[3];

        for (int c = 0; c < 3; c++) {
            unsigned ink = inverted ? 255u - from[c] : from[c], t = ink * k + 128;

            to[c] = (uint8_t)(k - ((t + (t >> 8)) >> 8));
        }
    }
}

static void grey_row(const uint8_t *from, uint8_t *to, int32_t width)
{
    for (int32_t x = 0; x < width; x++)
        to[x] = data_grey(from + 3 * x);
}

static void decode(struct jpeg *j, int32_t channels, int32_t least)
{
    struct jpeg_decompress_struct *d = &j->d;
    bool inks = d->jpeg_color_space == JCS_CMYK || d->jpeg_color_space == JCS_YCCK;
    bool grey = d->jpeg_color_space == JCS_GRAYSCALE;
    int32_t shorter = (int32_t)(d->image_height < d->image_width ? d->image_height : d->image_width);

    d->out_color_space = inks ? JCS_CMYK : grey && channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    d->scale_num = 1;
    d->scale_denom = 1;
    for (unsigned denominator = 8; least > 0 && denominator > 1; denominator /= 2)
        if ((shorter + (int32_t)denominator - 1) / (int32_t)denominator >= least) {
            d->scale_denom = denominator;
            break;
        }
    (void)jpeg_start_decompress(d);
    j->pixels = malloc((size_t)d->output_height * d->output_width * (size_t)channels);
    if (d->output_components != channels || inks)
        j->row = malloc((size_t)d->output_width * 7);
    if (!j->pixels || ((d->output_components != channels || inks) && !j->row)) {
        snprintf(j->text, sizeof j->text, "no memory for %ux%u pixels", d->output_height, d->output_width);
        leave(j, PD_ERR_NOMEM);
    }
    while (d->output_scanline < d->output_height) {
        uint8_t *to = j->pixels + (size_t)d->output_scanline * d->output_width * (size_t)channels;
        JSAMPROW row = j->row ? j->row : to;

        (void)jpeg_read_scanlines(d, &row, 1);
        if (inks) {
            uint8_t *rgb = channels == 3 ? to : j->row + (size_t)d->output_width * 4;

            from_cmyk(row, rgb, (int32_t)d->output_width, d->saw_Adobe_marker);
            row = rgb;
        }
        if (channels == 1 && row != to)
            grey_row(row, to, (int32_t)d->output_width);
    }
    (void)jpeg_finish_decompress(d);
}

enum pd_err data_jpeg_decode(const void *bytes, size_t len, int32_t channels, int32_t least,
                             struct data_image *ret, struct pd_why *why)
{
    struct jpeg j;

    set_errors(&j);
    if (setjmp(j.out)) {
        jpeg_destroy_decompress(&j.d);
        free(j.pixels);
        free(j.row);
        return pd_fail(why, j.failed, "JPEG: %s", j.text);
    }
    start(&j, bytes, len);
    decode(&j, channels, least);
    *ret = (struct data_image){.pixels = j.pixels,
                               .height = (int32_t)j.d.output_height,
                               .width = (int32_t)j.d.output_width,
                               .channels = channels};
    jpeg_destroy_decompress(&j.d);
    free(j.row);
    return PD_OK;
}
