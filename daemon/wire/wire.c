#include "daemon/wire/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/base/crc32c.h"

static const uint8_t magic[4] = {'P', 'D', 'W', 'K'};

/* Little-endian on every machine. */
static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, (uint16_t)v);
    put16(p + 2, (uint16_t)(v >> 16));
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

/* ---- header --------------------------------------------------------------------------------- */

enum pd_err wire_header_parse(const uint8_t bytes[WIRE_HEADER_BYTES], struct wire_header *ret,
                              struct pd_why *why)
{
    uint32_t len = get32(bytes + 8);

    if (memcmp(bytes, magic, sizeof magic) != 0)
        return pd_fail(why, PD_ERR_CORRUPT, "not a frame: the magic is missing");
    if (len > WIRE_PAYLOAD_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "a frame of %u bytes is too large", len);
    *ret = (struct wire_header){.version = bytes[4],
                                .flags = bytes[5],
                                .type = get16(bytes + 6),
                                .len = len,
                                .crc = get32(bytes + 12),
                                .seq = get64(bytes + 16)};
    return PD_OK;
}

const char *wire_type_name(unsigned type)
{
    static const char *const names[WIRE_TYPE_COUNT] = {
        [WIRE_HELLO] = "hello",
        [WIRE_WELCOME] = "welcome",
        [WIRE_ASSIGN] = "assign",
        [WIRE_PROGRESS] = "progress",
        [WIRE_METRICS] = "metrics",
        [WIRE_ACK] = "ack",
        [WIRE_LOG_OFFSET] = "log_offset",
        [WIRE_CHECKPOINT_WRITTEN] = "checkpoint_written",
        [WIRE_EVENT] = "event",
        [WIRE_BLOB] = "blob",
        [WIRE_CANCEL] = "cancel",
        [WIRE_CHECKPOINT_NOW] = "checkpoint_now",
        [WIRE_DRAIN] = "drain",
        [WIRE_INFER] = "infer",
        [WIRE_INFER_RESULT] = "infer_result",
        [WIRE_UNLOAD] = "unload",
        [WIRE_HEARTBEAT] = "heartbeat",
        [WIRE_BYE] = "bye",
        [WIRE_READY] = "ready",
        [WIRE_RENDEZVOUS] = "rendezvous",
        [WIRE_TUNED_ASK] = "tuned_ask",
        [WIRE_TUNED] = "tuned",
    };

    return type < WIRE_TYPE_COUNT && names[type] ? names[type] : "unknown";
}

/* ---- writing -------------------------------------------------------------------------------- */

size_t wire_begin(struct pd_buf *b, enum wire_type type, unsigned flags, uint64_t seq)
{
    size_t at = b->len;
    uint8_t *head = pd_buf_reserve(b, WIRE_HEADER_BYTES);

    if (head) {
        memset(head, 0, WIRE_HEADER_BYTES);
        memcpy(head, magic, sizeof magic);
        /* The layout of these two never changes: a worker of any age reads them. */
        head[4] = type == WIRE_HELLO || type == WIRE_WELCOME ? 0 : WIRE_VERSION;
        head[5] = (uint8_t)flags;
        put16(head + 6, (uint16_t)type);
        put64(head + 16, seq);
    }
    return at;
}

static uint8_t *put_field(struct pd_buf *b, enum wire_tag tag, size_t len)
{
    uint8_t *p = len <= WIRE_PAYLOAD_MAX ? pd_buf_reserve(b, 8 + len) : NULL;

    if (!p) {
        b->failed = true; /* also when only the field is too long: wire_end tells */
        return NULL;
    }
    put16(p, (uint16_t)tag);
    put16(p + 2, 0);
    put32(p + 4, (uint32_t)len);
    return p + 8;
}

void wire_put_bytes(struct pd_buf *b, enum wire_tag tag, const void *bytes, size_t len)
{
    uint8_t *p = put_field(b, tag, len);

    if (p && len)
        memcpy(p, bytes, len);
}

void wire_put_text(struct pd_buf *b, enum wire_tag tag, const char *text)
{
    wire_put_bytes(b, tag, text, strlen(text));
}

void wire_put_u32(struct pd_buf *b, enum wire_tag tag, uint32_t value)
{
    uint8_t *p = put_field(b, tag, 4);

    if (p)
        put32(p, value);
}

void wire_put_u64(struct pd_buf *b, enum wire_tag tag, uint64_t value)
{
    uint8_t *p = put_field(b, tag, 8);

    if (p)
        put64(p, value);
}

void wire_put_timing(struct pd_buf *b, const struct wire_timing *t)
{
    const uint64_t values[] = {t->queue_us, t->compute_us, t->batch, t->tokens, t->first_us, t->span_us};
    uint8_t *p = put_field(b, WIRE_TAG_TIMING, sizeof values);

    for (size_t i = 0; p && i < sizeof values / sizeof *values; i++)
        put64(p + 8 * i, values[i]);
}

void wire_put_f64(struct pd_buf *b, enum wire_tag tag, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    wire_put_u64(b, tag, bits);
}

enum pd_err wire_end(struct pd_buf *b, size_t begin)
{
    size_t len;
    uint8_t *head;

    if (b->failed) {
        b->failed = false; /* earlier frames in the buffer are complete */
        b->len = begin < b->len ? begin : b->len;
        return PD_ERR_LIMIT;
    }
    len = b->len - begin - WIRE_HEADER_BYTES;
    if (len > WIRE_PAYLOAD_MAX) {
        b->len = begin;
        return PD_ERR_LIMIT;
    }
    head = (uint8_t *)b->data + begin;
    put32(head + 8, (uint32_t)len);
    put32(head + 12, pd_crc32c(0, head + WIRE_HEADER_BYTES, len));
    return PD_OK;
}

void wire_set_version(uint8_t *frame, unsigned version)
{
    unsigned type = get16(frame + 6);

    if (type != WIRE_HELLO && type != WIRE_WELCOME)
        frame[4] = (uint8_t)version;
}

/* ---- reading -------------------------------------------------------------------------------- */

bool wire_next(const uint8_t *payload, size_t len, size_t *pos, struct wire_field *ret, bool *ret_bad)
{
    size_t left = len - *pos;
    uint32_t bytes;

    if (ret_bad)
        *ret_bad = false;
    if (!left)
        return false;
    if (left < 8 || get16(payload + *pos + 2) != 0) {
        if (ret_bad)
            *ret_bad = true;
        return false;
    }
    bytes = get32(payload + *pos + 4);
    if (bytes > left - 8) {
        if (ret_bad)
            *ret_bad = true;
        return false;
    }
    *ret = (struct wire_field){.tag = get16(payload + *pos), .len = bytes, .bytes = payload + *pos + 8};
    *pos += 8 + (size_t)bytes;
    return true;
}

bool wire_valid(const uint8_t *payload, size_t len)
{
    struct wire_field f;
    size_t pos = 0;
    bool bad = false;

    while (wire_next(payload, len, &pos, &f, &bad)) {
    }
    return !bad;
}

bool wire_find(const uint8_t *payload, size_t len, enum wire_tag tag, struct wire_field *ret)
{
    struct wire_field f;
    size_t pos = 0;

    while (wire_next(payload, len, &pos, &f, NULL))
        if (f.tag == tag) {
            *ret = f;
            return true;
        }
    return false;
}

uint32_t wire_get_u32(const uint8_t *payload, size_t len, enum wire_tag tag, uint32_t missing)
{
    struct wire_field f;

    return wire_find(payload, len, tag, &f) && f.len == 4 ? get32(f.bytes) : missing;
}

uint64_t wire_get_u64(const uint8_t *payload, size_t len, enum wire_tag tag, uint64_t missing)
{
    struct wire_field f;

    return wire_find(payload, len, tag, &f) && f.len == 8 ? get64(f.bytes) : missing;
}

bool wire_get_timing(const uint8_t *payload, size_t len, struct wire_timing *ret)
{
    struct wire_field f;
    uint64_t *values[] = {&ret->queue_us, &ret->compute_us, &ret->batch,
                          &ret->tokens,   &ret->first_us,   &ret->span_us};

    if (!wire_find(payload, len, WIRE_TAG_TIMING, &f) || f.len < 8 * sizeof values / sizeof *values)
        return false;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        *values[i] = get64(f.bytes + 8 * i);
    return true;
}

static double f64(const uint8_t *p)
{
    uint64_t bits = get64(p);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

double wire_get_f64(const uint8_t *payload, size_t len, enum wire_tag tag, double missing)
{
    struct wire_field f;

    return wire_find(payload, len, tag, &f) && f.len == 8 ? f64(f.bytes) : missing;
}

bool wire_get_text(const uint8_t *payload, size_t len, enum wire_tag tag, char *out, size_t size)
{
    struct wire_field f;

    out[0] = '\0';
    if (!wire_find(payload, len, tag, &f) || f.len >= size || memchr(f.bytes, 0, f.len))
        return false;
    memcpy(out, f.bytes, f.len);
    out[f.len] = '\0';
    return true;
}

/* ---- metrics -------------------------------------------------------------------------------- */

void wire_put_points(struct pd_buf *b, const struct wire_point *points, size_t count)
{
    uint8_t *p = put_field(b, WIRE_TAG_POINTS, count * WIRE_POINT_BYTES);

    for (size_t i = 0; p && i < count; i++, p += WIRE_POINT_BYTES) {
        uint64_t bits;

        memcpy(&bits, &points[i].value, sizeof bits);
        put32(p, points[i].key);
        put64(p + 4, (uint64_t)points[i].step);
        put64(p + 12, (uint64_t)points[i].time_us);
        put64(p + 20, bits);
    }
}

struct wire_point wire_point_at(const struct wire_field *points, size_t i)
{
    const uint8_t *p = points->bytes + i * WIRE_POINT_BYTES;

    return (struct wire_point){.key = get32(p),
                               .step = (int64_t)get64(p + 4),
                               .time_us = (int64_t)get64(p + 12),
                               .value = f64(p + 20)};
}

/* ---- measured choices ----------------------------------------------------------------------- */

void wire_put_tuned(struct pd_buf *b, const char *key, const void *value, size_t size)
{
    wire_put_text(b, WIRE_TAG_KEY, key);
    wire_put_bytes(b, WIRE_TAG_RECORD, value, size);
}

bool wire_next_tuned(const uint8_t *payload, size_t len, size_t *pos, char *key, const uint8_t **ret_value,
                     size_t *ret_size, int *bad)
{
    struct wire_field f;

    key[0] = '\0';
    while (wire_next(payload, len, pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_KEY) {
            *bad += key[0] != '\0'; /* the one before had no value */
            key[0] = '\0';
            if (f.len && f.len <= WIRE_TUNED_KEY && !memchr(f.bytes, 0, f.len)) {
                memcpy(key, f.bytes, f.len);
                key[f.len] = '\0';
            }
        } else if (f.tag == WIRE_TAG_RECORD) {
            if (key[0] && f.len && f.len <= WIRE_TUNED_VALUE) {
                *ret_value = f.bytes;
                *ret_size = f.len;
                return true;
            }
            (*bad)++;
            key[0] = '\0';
        }
    }
    *bad += key[0] != '\0';
    return false;
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* u8 name bytes, name, u8 dtype bytes, dtype, u32 rank, rank x i64, data: to the end of the field */
void wire_put_tensor(struct pd_buf *b, const struct wire_tensor *t)
{
    size_t name = strnlen(t->name, WIRE_NAME_MAX), dtype = strnlen(t->dtype, sizeof t->dtype - 1);
    size_t head = 1 + name + 1 + dtype + 4 + 8 * (size_t)t->rank;
    uint8_t *p = t->rank <= WIRE_RANK_MAX && t->bytes <= WIRE_PAYLOAD_MAX
                     ? put_field(b, WIRE_TAG_TENSOR, head + t->bytes)
                     : NULL;

    if (!p) {
        b->failed = true;
        return;
    }
    *p++ = (uint8_t)name;
    memcpy(p, t->name, name);
    p += name;
    *p++ = (uint8_t)dtype;
    memcpy(p, t->dtype, dtype);
    p += dtype;
    put32(p, t->rank);
    p += 4;
    for (uint32_t i = 0; i < t->rank; i++, p += 8)
        put64(p, (uint64_t)t->shape[i]);
    if (t->bytes)
        memcpy(p, t->data, t->bytes);
}

enum pd_err wire_get_tensor(const struct wire_field *f, struct wire_tensor *ret, struct pd_why *why)
{
    const uint8_t *p = f->bytes;
    size_t left = f->len, n;

    memset(ret, 0, sizeof *ret);
    if (left < 1 || left - 1 < (n = *p))
        return pd_fail(why, PD_ERR_CORRUPT, "a tensor in a frame is truncated");
    memcpy(ret->name, p + 1, n);
    p += 1 + n;
    left -= 1 + n;
    if (left < 1 || left - 1 < (n = *p) || n >= sizeof ret->dtype)
        return pd_fail(why, PD_ERR_CORRUPT, "a tensor in a frame is truncated");
    memcpy(ret->dtype, p + 1, n);
    p += 1 + n;
    left -= 1 + n;
    if (left < 4 || get32(p) > WIRE_RANK_MAX || left - 4 < 8 * (size_t)get32(p))
        return pd_fail(why, PD_ERR_CORRUPT, "a tensor in a frame has an invalid shape");
    ret->rank = get32(p);
    p += 4;
    left -= 4;
    for (uint32_t i = 0; i < ret->rank; i++, p += 8, left -= 8) {
        ret->shape[i] = (int64_t)get64(p);
        if (ret->shape[i] < 0)
            return pd_fail(why, PD_ERR_CORRUPT, "a tensor in a frame has a negative size");
    }
    ret->data = p;
    ret->bytes = left;
    return PD_OK;
}

/* ---- a stream ------------------------------------------------------------------------------- */

void wire_in_init(struct wire_in *in)
{
    pd_buf_init(&in->buf, 0);
    in->pos = 0;
}

void wire_in_done(struct wire_in *in)
{
    pd_buf_done(&in->buf);
    in->pos = 0;
}

enum pd_err wire_in_read(struct wire_in *in, int fd, size_t most, struct pd_why *why)
{
    /* Keep what is not yet a whole frame, at the front. */
    if (in->pos) {
        pd_buf_consume(&in->buf, in->pos);
        in->pos = 0;
    }
    while (most) {
        union {
            char bytes[CMSG_SPACE(sizeof(int) * 4)];
            struct cmsghdr align;
        } control;
        char piece[64 << 10];
        struct iovec iov = {.iov_base = piece, .iov_len = most < sizeof piece ? most : sizeof piece};
        struct msghdr msg = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return PD_OK;
        if (n < 0 && (errno == ECONNRESET || errno == EPIPE))
            return pd_fail(why, PD_ERR_CLOSED, "the connection was reset");
        if (n < 0)
            return pd_fail_errno(why, errno, "cannot read the connection");
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
            if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
                size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

                for (size_t i = 0; i < fds; i++) {
                    int got;

                    memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
                    close(got);
                }
            }
        if (!n)
            return pd_fail(why, PD_ERR_CLOSED, "the other side closed the connection");
        pd_buf_append(&in->buf, piece, (size_t)n);
        if (pd_buf_err(&in->buf) != PD_OK)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a frame");
        most -= (size_t)n;
    }
    return PD_OK;
}

enum pd_err wire_in_next(struct wire_in *in, struct wire_header *ret_head, const uint8_t **ret_payload,
                         struct pd_why *why)
{
    size_t left = in->buf.len - in->pos;
    const uint8_t *at;
    struct wire_header head;
    enum pd_err err;

    if (left < WIRE_HEADER_BYTES)
        return PD_ERR_NOT_FOUND;
    at = (const uint8_t *)in->buf.data + in->pos;
    err = wire_header_parse(at, &head, why);
    if (err != PD_OK)
        return err;
    if (left - WIRE_HEADER_BYTES < head.len)
        return PD_ERR_NOT_FOUND;
    at += WIRE_HEADER_BYTES;
    if (pd_crc32c(0, at, head.len) != head.crc)
        return pd_fail(why, PD_ERR_CORRUPT, "a %s frame has a wrong checksum", wire_type_name(head.type));
    if (!wire_valid(at, head.len))
        return pd_fail(why, PD_ERR_CORRUPT, "a %s frame has invalid fields", wire_type_name(head.type));
    in->pos += WIRE_HEADER_BYTES + head.len;
    *ret_head = head;
    *ret_payload = at;
    return PD_OK;
}

enum pd_err wire_out_write(struct pd_buf *b, int fd, struct pd_why *why)
{
    size_t sent = 0;
    enum pd_err err = PD_OK;

    while (sent < b->len) {
        ssize_t n = send(fd, b->data + sent, b->len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        else {
            err = n < 0 && errno != EPIPE && errno != ECONNRESET
                      ? pd_fail_errno(why, errno, "cannot write to the connection")
                      : pd_fail(why, PD_ERR_CLOSED, "the other side has closed the connection");
            break;
        }
    }
    if (sent)
        pd_buf_consume(b, sent);
    return err;
}
